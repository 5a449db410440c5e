//go:build !linux

package main

import "time"

func sleep(span time.Duration) { time.Sleep(span) }

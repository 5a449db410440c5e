package main

import (
	"syscall"
	"time"
)

// sleep is exact to some 50 µs. Go's own timers may be a millisecond late.
func sleep(span time.Duration) {
	request := syscall.NsecToTimespec(span.Nanoseconds())
	// A signal may end it early: the next call comes early by less than what was left, and its time is the intended
	// one.
	_ = syscall.Nanosleep(&request, nil)
}

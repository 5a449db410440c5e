//go:build tools

// Package h2spec names the conformance test of HTTP/2 that Tidegate's proxy is held to, so that go.sum covers all it needs.
package h2spec

import (
	_ "github.com/summerwind/h2spec/cmd/h2spec"
)

//go:build unix

package tidegategrpc

import (
	"syscall"
	"time"
)

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

//go:build !unix

package tidegategrpc

import "time"

// cpu is not known here. Handlers that wait start whenever a processor is idle then.
func cpu() time.Duration { return 0 }

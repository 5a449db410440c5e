package tidegategrpc

import (
	"math"
	"runtime"
	"runtime/metrics"
	"time"

	"tidegate.invalid/sdk/go/internal/credits"
)

// probe returns what tells how much of its cores this process has taken.
func probe() func() credits.Taken {
	samples := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	return func() credits.Taken {
		taken := credits.Taken{Cores: runtime.GOMAXPROCS(0), CPU: cpu()}
		metrics.Read(samples)
		if samples[0].Value.Kind() == metrics.KindFloat64Histogram {
			taken.Runnable = sumOf(samples[0].Value.Float64Histogram())
		}
		return taken
	}
}

// sumOf returns the sum of the times that a histogram of seconds counted.
func sumOf(of *metrics.Float64Histogram) time.Duration {
	sum := 0.0
	for at, count := range of.Counts {
		if count == 0 {
			continue
		}
		low, high := of.Buckets[at], of.Buckets[at+1]
		if math.IsInf(low, -1) {
			low = 0
		}
		if math.IsInf(high, 1) {
			high = low
		}
		sum += float64(count) * (low + high) / 2
	}
	return time.Duration(sum * 1e9)
}

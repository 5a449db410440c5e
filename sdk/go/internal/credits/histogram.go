package credits

import "math/bits"

// histogram counts times in log-linear buckets of a sixteenth of their power of two, and forgets slowly.
type histogram struct {
	counts [64 * 16]float64
	sum    float64
	count  float64
}

// histogramMemory is the number of samples after which the older ones count half.
const histogramMemory = 4096

func bucketOf(ns uint64) int {
	if ns < 16 {
		return int(ns)
	}
	power := bits.Len64(ns) - 5
	return power*16 + int(ns>>power)
}

// middleOf returns a value of the bucket.
func middleOf(bucket int) float64 {
	if bucket < 32 {
		return float64(bucket)
	}
	power := bucket/16 - 1
	return (float64(bucket-power*16) + 0.5) * float64(uint64(1)<<power)
}

func (h *histogram) record(ns uint64) {
	if h.count >= 2*histogramMemory {
		for bucket := range h.counts {
			h.counts[bucket] /= 2
		}
		h.sum /= 2
		h.count /= 2
	}
	h.counts[bucketOf(ns)]++
	h.sum += float64(ns)
	h.count++
}

func (h *histogram) mean() float64 { return h.sum / max(h.count, 1) }

// quantile returns the value that the share q does not exceed, within 1/32.
func (h *histogram) quantile(q float64) float64 {
	rank, seen, last := q*h.count, 0.0, 0
	for bucket, count := range h.counts {
		if count == 0 {
			continue
		}
		last = bucket
		seen += count
		if seen >= rank {
			break
		}
	}
	return middleOf(last)
}

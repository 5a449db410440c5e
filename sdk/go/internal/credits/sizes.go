package credits

import "math"

const (
	// Buckets, eight for each doubling, from a nanosecond to 2^40 of them, 18 minutes.
	sizeBuckets = 8 * 40
	// What is left of a number's bits above these tells its bucket: the exponent and three bits behind it.
	sizeShift = 49
	// sizeLeast is that of a nanosecond.
	sizeLeast = 1023 << 3
)

// sizes are how many sessions want how much, in buckets by the time between two calls.
type sizes [sizeBuckets]uint32

// add counts one that wants a call every gap nanoseconds.
func (s *sizes) add(gap float64) {
	bucket := int64(math.Float64bits(max(gap, 0))>>sizeShift) - sizeLeast
	s[min(max(bucket, 0), sizeBuckets-1)]++
}

// waterLevel returns the most calls in a nanosecond that one session can have if share is shared by max-min: those who
// want less get it, and leave the rest to the others. The greatest number if all have what they want.
func (s *sizes) waterLevel(share float64) float64 {
	left, sessions := share, 0.0
	for _, count := range s {
		sessions += float64(count)
	}
	// Those who want least come first. The middle of a bucket is within 6 % of all that is in it.
	for at := sizeBuckets - 1; at >= 0; at-- {
		if s[at] == 0 {
			continue
		}
		each := left / sessions
		wants := 1 / math.Float64frombits((2*uint64(at+sizeLeast)+1)<<(sizeShift-1))
		if wants > each {
			return each
		}
		left -= float64(s[at]) * wants
		sessions -= float64(s[at])
	}
	return math.MaxFloat64
}

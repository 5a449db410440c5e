package main

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// tick is how often the clock is looked at, gapLeast by how much later than that a look must be to be a gap.
	tick     = 200 * time.Microsecond
	gapLeast = time.Millisecond
	// gapsMost are remembered; a machine with more gaps is none to measure on.
	gapsMost = 100_000
)

// gap is a time in which a thread that had to run did not: the host, or others on this core, had taken it.
type gap struct{ from, to time.Time }

// gapClock finds gaps, in a thread that does nothing else.
type gapClock struct {
	mu    sync.Mutex
	found []gap
	last  time.Time
}

func watch() *gapClock {
	clock := &gapClock{last: time.Now()}
	go func() {
		runtime.LockOSThread()
		for {
			sleep(tick)
			clock.look()
		}
	}()
	return clock
}

func (c *gapClock) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.last) > tick+gapLeast && len(c.found) < gapsMost {
		c.found = append(c.found, gap{c.last, now})
	}
	c.last = now
}

// gaps returns those so far, in their order.
func (c *gapClock) gaps() []gap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.found)
}

// meets tells whether one of gaps, which are in their order, is within a span of time in part at least.
func meets(gaps []gap, from, to time.Time) bool {
	first, _ := slices.BinarySearchFunc(gaps, from, func(each gap, from time.Time) int { return each.to.Compare(from) })
	return first < len(gaps) && !gaps[first].from.After(to)
}

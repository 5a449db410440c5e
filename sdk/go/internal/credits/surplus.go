package credits

import "math"

const (
	// surplusTicks is the number of ticks over which the idle share is averaged.
	surplusTicks = 16.0
	// surplusStep is by how much one tick may change what is let through, as a share of the surplus.
	surplusStep = 0.05
	// A surplus below surplusLeast is changed as if it were this, or it would never leave zero.
	surplusLeast = 0.01
	// surplusMost is ever let through beyond the capacity: twice as much again.
	surplusMost = 2.0
	// surplusLoss is what a correction may cost in refusals, as a share of the capacity.
	surplusLoss = 0.001
	// cut is the golden section.
	cut = 0.618033988749895
	// Cores that idle by mistake's share while calls are refused are no chance but a mistake of the estimates.
	mistake = 0.1
)

// surplus is what is let through beyond the capacity, as a share of it, so that chance does not leave cores idle.
//
// With more coming than fits, the queue is a random walk below its bound, and it is empty for a share of the time
// that M/M/1/K tells: (ρ - 1) / (ρ^(K+1) - 1). What comes too much is refused, and each refusal takes a message's
// time. The surplus ρ - 1 is the one with the least loss in all; what real arrivals and services do differently is
// corrected by the idle share that is seen.
type surplus struct {
	idle float64
	// correction is added to best.
	correction float64
	// The room and the cost for which best and bestIdle were computed.
	room, cost     float64
	best, bestIdle float64
}

// onTick tells of a tick in which the cores were idle for this share of their time; whether somebody was held back
// meanwhile.
func (s *surplus) onTick(idle float64, throttled bool) {
	s.idle += (idle - s.idle) / surplusTicks
	if throttled && s.bestIdle > 0 {
		deviation := min(max((s.idle-s.bestIdle)/s.bestIdle, -1), 1)
		now := s.best + s.correction
		next := now + surplusStep*deviation*max(now, surplusLeast)
		// Half of what theory says at least: chance may be quiet for a while, and then is not. And not so much more
		// that the refusals would cost more than the idling: they would cost surplusLoss at most.
		more := 0.5*s.best + surplusLoss/max(s.cost, surplusLoss)
		s.correction = min(max(next-s.best, -0.5*s.best), more)
	}
}

// factor returns what is let through for each call that fits, for a server with room for room calls, where a refusal
// costs the share cost of what a served call takes.
func (s *surplus) factor(room, cost float64) float64 {
	near := func(now, before float64) bool { return math.Abs(now-before) <= 0.05*before }
	if !near(room, s.room) || !near(cost, s.cost) {
		s.room, s.cost = room, cost
		s.best, s.bestIdle = bestSurplus(room, cost)
	}
	let := min(max(s.best+s.correction, 0), surplusMost)
	// A mistake is repaired at once, in proportion, and not a step at a time.
	return (1 + let) / (1 - min(max(s.idle-mistake, 0), 0.9))
}

// bestSurplus returns the surplus that loses least of the cores' time to idling and to refusals, and the idle share
// that remains with it.
func bestSurplus(room, cost float64) (best, idle float64) {
	places := max(room, 1) + 1
	idleAt := func(surplus float64) float64 { return surplus / math.Expm1(math.Log1p(surplus)*places) }
	loss := func(surplus float64) float64 { return idleAt(surplus) + cost*surplus }
	// The loss has one minimum: 40 cuts place it within a billionth.
	low, high := 1e-6, surplusMost
	for range 40 {
		left, right := high-cut*(high-low), low+cut*(high-low)
		if loss(left) < loss(right) {
			high = right
		} else {
			low = left
		}
	}
	best = (low + high) / 2
	return best, idleAt(best)
}

package credits

import (
	"math"
	"slices"
	"time"
)

const (
	// tickCalls is after how many calls rates and levels are computed anew.
	tickCalls = 64
	// demandTicks is the number of ticks over which rates are averaged: eight thousand calls tell a rate to about 1
	// %.
	demandTicks = 128.0
	// Calls that differ from the average by stepFactor, by so many deviations, and by so many times what the server
	// has room for, are a step, and neither chance nor a burst.
	stepFactor     = 1.5
	stepDeviations = 5.0
	stepRooms      = 3.0
	// stepPatience is the number of ticks over which such differences are remembered.
	stepPatience = 16.0
	// stepFewer ticks in a row tell a lower demand.
	stepFewer = 3
	// A tick comes when overdue times the calls that are let through in its time would have come, however few did.
	overdue = 2.0
	// stretchCalls is the number of calls over which active sessions are counted.
	stretchCalls = 1024
	// A demand below forgotten of the capacity is forgotten.
	forgotten = 1e-6
)

// wanted is the calls wanted of one priority: what one tick brought, and the fading sum.
type wanted struct {
	priority  Priority
	tick, sum float64
}

// tenant is one tenant's demand and what it was granted.
type tenant struct {
	name   uint32
	weight float64
	// wanted is sorted by priority; only those that were seen.
	wanted []wanted
	level  Level
	// share is the calls a second of its share.
	share float64
	// mostPerNs is what one of its sessions may have at most, in calls in a nanosecond, and mostCalls in a stretch.
	mostPerNs float64
	mostCalls int
	// Sessions heard in this stretch of calls so far, and in the one before.
	active, activeBefore int
}

// demand is that of all tenants. A tenant is named by its place in the table.
type demand struct {
	tenants []tenant
	bound   int
	// sessionShares are the fair shares that one session may have.
	sessionShares float64
	weights       map[uint32]float64
	// Calls since the last tick, the squares of what they stand for, and when that was.
	calls   int
	squares float64
	since   Time
	// timeNs is the fading sum of time.
	timeNs float64
	// excess is the calls beyond the average, fading; below zero if there were fewer. A pause and the rush after it
	// make nothing. excessSquares is the same for the squares of what calls stand for.
	excess, excessSquares float64
	// Ticks in a row with far more, and with far fewer.
	more, fewer int
	// due is when the next tick is due although few calls came.
	due Time
	// Calls wanted by sessions that were held back, in this tick and fading: they move nobody's level.
	heldTick, held float64
	// preferred is what calls take of the capacity that are sure to be let through although others are not.
	preferred float64
	throttled bool
}

func newDemand(config *Config, now Time) *demand {
	return &demand{
		bound: max(config.Tenants, 1), sessionShares: config.SessionShares, weights: config.Weights, since: now, due: Never,
	}
}

// place returns the place of a tenant; of the last one, if the table is full. O(tenants): asked once for a session.
func (d *demand) place(name uint32) int {
	for at := range d.tenants {
		if d.tenants[at].name == name {
			return at
		}
	}
	if len(d.tenants) < d.bound {
		weight, weighs := d.weights[name]
		if !weighs {
			weight = 1
		}
		added := tenant{name: name, weight: max(weight, math.SmallestNonzeroFloat64)}
		added.open()
		d.tenants = append(d.tenants, added)
	}
	return len(d.tenants) - 1
}

// levelOf returns the level of a tenant by its name; of one that is not known, everything.
func (d *demand) levelOf(name uint32) Level {
	for at := range d.tenants {
		if d.tenants[at].name == name {
			return d.tenants[at].level
		}
	}
	return Open
}

// onStretch ends a stretch of calls: sessions are counted anew.
func (d *demand) onStretch() {
	for at := range d.tenants {
		of := &d.tenants[at]
		of.activeBefore, of.active = of.active, 0
	}
}

// onCall tells that a call arrived that stands for so many wanted ones. True when it is time for tick.
func (d *demand) onCall(place int, priority Priority, calls float64, now Time) bool {
	of := &d.tenants[place]
	at, known := slices.BinarySearchFunc(of.wanted, priority, func(w wanted, p Priority) int {
		return int(w.priority) - int(p)
	})
	if !known {
		of.wanted = slices.Insert(of.wanted, at, wanted{priority: priority})
	}
	of.wanted[at].tick += calls
	d.squares += calls * calls
	d.calls++
	return d.calls >= tickCalls || now >= d.due
}

// tick computes rates and levels anew for a server that shall be sent supply calls a second; all are let through if
// it is 0. It has room for room calls.
func (d *demand) tick(supply, room float64, now Time) {
	elapsed := float64(max(now.Since(d.since), 1))
	d.fold(elapsed, room)
	d.calls, d.squares, d.since = 0, 0, now
	if supply <= 0 {
		d.open()
		return
	}
	seconds := d.timeNs / 1e9
	claims, sum := make([]float64, len(d.tenants)), 0.0
	for at := range d.tenants {
		of := &d.tenants[at]
		of.wanted = slices.DeleteFunc(of.wanted, func(w wanted) bool { return w.sum/seconds <= forgotten*supply })
		for _, w := range of.wanted {
			claims[at] += w.sum / seconds
		}
		sum += claims[at]
	}
	if sum <= supply {
		d.open()
		// Without those who are held back there is room for all others: as long as they are.
		d.throttled = sum+d.held/seconds > supply
		if d.throttled {
			d.boundSessions(supply)
		}
		return
	}
	shares := d.maxMin(supply, claims)
	d.preferred = 0
	for at := range d.tenants {
		of := &d.tenants[at]
		of.share = shares[at]
		level, certain := levelFor(of.wanted, shares[at]*seconds)
		of.level = level
		d.preferred += certain / seconds / supply
	}
	d.boundSessions(supply)
	d.throttled = true
	due := min(max(overdue*tickCalls/supply, 1e-9), 1)
	d.due = now.After(time.Duration(due * 1e9))
}

// boundSessions computes what one session of each tenant may have of its share: so many times what each had if all
// active ones had the same.
func (d *demand) boundSessions(supply float64) {
	for at := range d.tenants {
		of := &d.tenants[at]
		most := d.sessionShares * min(of.share, supply) / float64(max(of.active, of.activeBefore, 1))
		of.mostPerNs = most / 1e9
		of.mostCalls = int(min(max(stretchCalls*most/supply, 1), 1e9))
	}
}

// maxMin splits supply over the tenants by weighted max-min fairness.
func (d *demand) maxMin(supply float64, claims []float64) []float64 {
	order := make([]int, len(claims))
	left, weights := supply, 0.0
	for at := range order {
		order[at] = at
		weights += d.tenants[at].weight
	}
	// Those that want least for their weight are satisfied first.
	wish := func(at int) float64 { return claims[at] / d.tenants[at].weight }
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case wish(a) < wish(b):
			return -1
		case wish(a) > wish(b):
			return 1
		default:
			return 0
		}
	})
	shares := make([]float64, len(claims))
	for _, at := range order {
		weight, share := d.tenants[at].weight, left
		// The last one's weight may have been rounded away from what is left of the sum.
		if weights > weight {
			share = left * weight / weights
		}
		shares[at] = min(claims[at], share)
		left -= shares[at]
		weights -= weight
	}
	return shares
}

func (t *tenant) open() {
	t.level, t.share, t.mostPerNs, t.mostCalls = Open, math.MaxFloat64, math.MaxFloat64, math.MaxInt
}

func (d *demand) open() {
	for at := range d.tenants {
		d.tenants[at].open()
	}
	d.preferred, d.throttled, d.due = 0, false, Never
}

// isStep tells whether what differs from the average rate is a step; tick calls in elapsed ns come to it.
func (d *demand) isStep(tick, rate, elapsed, room float64) bool {
	average := rate * elapsed
	const fade = 1 - 1/stepPatience
	d.excess = d.excess*fade + tick - average
	d.excessSquares = d.excessSquares*fade + d.squares
	inARow := func(so *int, holds bool) {
		if holds {
			*so++
		} else {
			*so = 0
		}
	}
	inARow(&d.more, tick > average*stepFactor)
	inARow(&d.fewer, tick < average/stepFactor)
	if math.Abs(d.excess) <= max(stepDeviations*math.Sqrt(d.excessSquares), stepRooms*room) {
		return false
	}
	// A pause of the whole server is one tick with few calls: a lower demand is more of them.
	if d.excess > 0 {
		return d.more > 0
	}
	return d.fewer >= stepFewer
}

// fold adds the tick to the fading sums; a step replaces them.
func (d *demand) fold(elapsed, room float64) {
	tick, sum := 0.0, 0.0
	for at := range d.tenants {
		for _, w := range d.tenants[at].wanted {
			tick += w.tick
			sum += w.sum
		}
	}
	fade := 1 - float64(d.calls)/(tickCalls*demandTicks)
	if d.isStep(tick, sum/max(d.timeNs, 1), elapsed, room) {
		fade = 0
		d.excess, d.excessSquares, d.more, d.fewer = 0, 0, 0, 0
	}
	d.timeNs = d.timeNs*fade + elapsed
	d.held = d.held*fade + d.heldTick
	d.heldTick = 0
	for at := range d.tenants {
		each := d.tenants[at].wanted
		for i := range each {
			each[i].sum = each[i].sum*fade + each[i].tick
			each[i].tick = 0
		}
	}
}

// levelFor returns the level at which share of the wanted calls is let through, the better priorities first; and what
// those priorities want that are let through for sure.
func levelFor(of []wanted, share float64) (Level, float64) {
	certain := 0.0
	for _, w := range of {
		if certain+w.sum > share*(1+1e-9) {
			return LevelAt(w.priority, (share-certain)/w.sum), certain
		}
		certain += w.sum
	}
	return Open, certain
}

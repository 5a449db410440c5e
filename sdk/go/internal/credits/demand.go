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
	// marginal is what a session may have beyond its max-min share, for calls that are not let through for sure: this
	// part of what it may for others. Just enough that chance leaves no core idle.
	marginal = 0.1
	// A part of the supply that changed by no more than samePart is the same.
	samePart = 0.01
	// byChance deviations more may be sent by a session that does as it was told.
	byChance = 4.0
	// stretchCalls is the number of calls over which active sessions are counted.
	stretchCalls = 1024
	// creditedMost is the share of a tenant's calls that is admitted by credits; the rest stays free to follow the
	// demand.
	creditedMost = 0.5
	// A demand below forgotten of the capacity is forgotten.
	forgotten = 1e-6
)

// wanted is the calls wanted of one priority: what one tick brought, and the fading sum.
type wanted struct {
	priority  Priority
	tick, sum float64
	// Those of them that came with a credit: they come whatever the level is.
	tickCredited, credited float64
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
	// mostSurePerNs and mostPerNs are what one of its sessions may have at most, in calls in a nanosecond, of a
	// priority that is let through for sure and of others.
	mostSurePerNs, mostPerNs float64
	// credits are those that its sessions hold, sessions the number of these.
	credits, sessions int
	// sizes are what each session wants that was heard in this stretch of calls so far, and in the one before.
	sizes, sizesBefore *sizes
	// boundFor is for which part of a supply, in calls in a nanosecond, the bound of a session was computed; 0 since a
	// stretch ended.
	boundFor float64
}

// most returns the calls of priority in a nanosecond that one session may have at most.
func (t *tenant) most(priority Priority) float64 {
	if t.level.isSure(priority) {
		return t.mostSurePerNs
	}
	return t.mostPerNs
}

// demand is that of all tenants. A tenant is named by its place in the table.
type demand struct {
	tenants []tenant
	bound   int
	// sessionShares is how many times its max-min share one session may have.
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
	// stretchNs is how long a stretch of calls takes, if as many are let through as shall be.
	stretchNs float64
}

func newDemand(config *Config, now Time) *demand {
	return &demand{
		bound: max(config.Tenants, 1), sessionShares: config.SessionShares, weights: config.Weights, since: now, due: Never,
	}
}

// enter counts a session of a tenant, whose place it returns. If the table is full, that of one without sessions, or
// the last. O(tenants): asked once for a session.
func (d *demand) enter(name uint32) int {
	at := slices.IndexFunc(d.tenants, func(of tenant) bool { return of.name == name })
	switch {
	case at >= 0:
	case len(d.tenants) < d.bound:
		at = len(d.tenants)
		d.tenants = append(d.tenants, d.newTenant(name))
	default:
		at = slices.IndexFunc(d.tenants, func(of tenant) bool {
			_, weighs := d.weights[of.name]
			return of.sessions == 0 && of.credits == 0 && !weighs
		})
		if at < 0 {
			at = len(d.tenants) - 1
		} else {
			d.tenants[at] = d.newTenant(name)
		}
	}
	d.tenants[at].sessions++
	return at
}

// leave ends a session of the tenant in that place.
func (d *demand) leave(place int) { d.tenants[place].sessions-- }

func (d *demand) newTenant(name uint32) tenant {
	weight, weighs := d.weights[name]
	if !weighs {
		weight = 1
	}
	added := tenant{
		name: name, weight: max(weight, math.SmallestNonzeroFloat64), sizes: new(sizes), sizesBefore: new(sizes),
	}
	added.open()
	return added
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
		of.sizes, of.sizesBefore = of.sizesBefore, of.sizes
		*of.sizes = sizes{}
		of.boundFor = 0
	}
}

// mostCalls returns the calls of priority in a stretch of calls that one session of the tenant in place may have at
// most, and what chance adds.
func (d *demand) mostCalls(place int, priority Priority) int {
	most := d.tenants[place].most(priority) * d.stretchNs
	return int(min(max(most+byChance*(math.Sqrt(most)+1), 1), 1e9))
}

// onCall tells that a call arrived that stands for so many wanted ones, with a credit or without. True when it is time
// for tick.
func (d *demand) onCall(place int, priority Priority, calls float64, credited bool, now Time) bool {
	of := &d.tenants[place]
	at, known := slices.BinarySearchFunc(of.wanted, priority, func(w wanted, p Priority) int {
		return int(w.priority) - int(p)
	})
	if !known {
		of.wanted = slices.Insert(of.wanted, at, wanted{priority: priority})
	}
	of.wanted[at].tick += calls
	if credited {
		of.wanted[at].tickCredited += calls
	}
	d.squares += calls * calls
	d.calls++
	return d.calls >= tickCalls || now >= d.due
}

// tick computes rates and levels anew for a server that shall be sent supply calls a second; all are let through if
// it is 0. It has room for room calls, and serves the share served of the supply: refusals take the rest.
func (d *demand) tick(supply, served, room float64, now Time) {
	elapsed := float64(max(now.Since(d.since), 1))
	d.fold(elapsed, room)
	d.calls, d.squares, d.since = 0, 0, now
	if supply <= 0 {
		d.open()
		return
	}
	seconds := d.timeNs / 1e9
	d.stretchNs = 1e9 * stretchCalls / supply
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
			d.boundSessions(served, supply)
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
	d.boundSessions(served, supply)
	d.throttled = true
	due := min(max(overdue*tickCalls/supply, 1e-9), 1)
	d.due = now.After(time.Duration(due * 1e9))
}

// boundSessions computes what one session of each tenant may have: so many times its max-min share of what is served
// of the tenant's part.
func (d *demand) boundSessions(served, supply float64) {
	for at := range d.tenants {
		of := &d.tenants[at]
		part := served * min(of.share, supply) / 1e9
		if math.Abs(part-of.boundFor) <= samePart*part {
			continue
		}
		of.boundFor = part
		fair := of.sizesBefore.waterLevel(part)
		of.mostSurePerNs = d.sessionShares * fair
		of.mostPerNs = (1 + marginal*(d.sessionShares-1)) * fair
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
	t.level, t.share, t.boundFor = Open, math.MaxFloat64, 0
	t.mostSurePerNs, t.mostPerNs = math.MaxFloat64, math.MaxFloat64
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
			each[i].credited = each[i].credited*fade + each[i].tickCredited
			each[i].tick, each[i].tickCredited = 0, 0
		}
	}
}

// levelFor returns the level at which share of the wanted calls is let through, the better priorities first; and what
// those priorities want that are let through for sure.
func levelFor(of []wanted, share float64) (Level, float64) {
	// Credited calls come first, whatever they are; who sends more of them than it has credits takes nobody's place.
	credited := 0.0
	for _, w := range of {
		credited += w.credited
	}
	left := max(share-min(credited, creditedMost*share), 0)
	certain := 0.0
	for _, w := range of {
		byLevel := w.sum - w.credited
		if certain+byLevel > left*(1+1e-9) {
			return LevelAt(w.priority, (left-certain)/byLevel), certain
		}
		certain += byLevel
	}
	return Open, certain
}

package credits

import (
	"math"
	"time"
)

const (
	// room is the stay that the limit allows for, in unloaded stays. A stay lasts from a call's begin to its end;
	// it is unloaded if few others are in flight.
	stayRoom = 2.0
	// few is the number of calls in flight beside a call up to which its stay counts as unloaded, as a share of
	// those that the throughput needs.
	few = 0.5
	// stayMemory is the number of unloaded stays over which their mean is taken.
	stayMemory = 32.0
	// stayKnown is the number of stays of a group that must have ended before their mean counts as known.
	stayKnown = 8
	// longestStay is the most that a single stay counts, in unloaded stays: a few very long ones do not tell that
	// calls are held up.
	longestStay = 8.0
	// Calls that must have ended before a stretch tells anything: while there is no limit, and with one. With one,
	// those that were in flight when it changed come first.
	firstStretch = 32
	limitStretch = 64
	// longerStretches in a row in which calls stayed longer make a limit.
	longerStretches = 2
	// A limit that is not always reached grows while stays are shorter than this, in unloaded stays.
	hardlyLonger = 1.5
	// Stays longer than this lower the limit at once, as long as no throughputs were compared.
	farLonger = 4.0
	// hangs: after so many unloaded stays without an end, one more call may begin if one waits: those in flight may
	// hang.
	hangs = 8.0
	// swing is the share by which the limit swings to both sides: what that does to the throughput says whether it
	// is too low.
	swing = 0.1
	// Stretches of the same swing over which their throughput is averaged, and after how many it says something.
	stretches     = 10.0
	stretchesTold = 3.0
	// bound is the share of a stretch's time for which somebody must have been held up for its throughput to be
	// that of its limit.
	bound = 0.9
	// hasRoom is the growth of the throughput over that of the calls in flight from which on what is behind has
	// room; sure are the deviations that make sure of it.
	hasRoom = 0.2
	sure    = 2.0
	// By what share unloaded stays are corrected upwards, at least and at most, when the throughput shows room, and
	// downwards when it shows none.
	up     = 0.5
	upMost = 1.0
	down   = 0.05
	// forget is the share by which a limit grows in a stretch that never reached it.
	forget = 0.05
	// inFlightMost may be in flight before anything is known: far more than anything behind a service works on at a
	// time.
	inFlightMost = 65_536
)

// InFlight learns how many calls may be in flight to something whose capacity nobody states: a pool of connections, a
// lock, another service, threads that share a core. It is the core's InFlightLimit in Go.
//
// There is no limit until calls stay longer than they do when few are in flight. From then on it is what Little's
// law says the throughput needs, with room for as many again. The unloaded stay is learnt from calls that find few
// others in flight: nothing is held back to measure it. While the limit holds calls up for long, no call finds few
// others; then the throughput tells. The limit swings by a tenth to both sides, and if more calls in flight bring
// more throughput, what is behind has room; if they bring none, fewer do as well. A limit that is not reached is
// forgotten slowly.
type InFlight struct {
	least    float64
	inFlight int
	// limit is in calls, without its swing; infinite while there is none.
	limit float64
	// atMost may be in flight now, the swing included.
	atMost int
	// few are the others in flight up to which a stay is unloaded.
	few    float64
	groups [groupsMost]quick
	held   bool
	// moved is when a call last ended, or one more was let begin since none did.
	moved Time
	// quickNs is the mean unloaded stay of the calls of the last stretch.
	quickNs float64
	// longer counts stretches in a row in which calls stayed longer although there is no limit.
	longer  int
	stretch stretch
	isHigh  bool
	// low is the stretch at the lower swing that waits for its pair.
	low    stretch
	hasLow bool
	// throughput of stretches at the lower and at the higher swing.
	throughput [2]throughput
}

// groupsMost is the number of groups of calls that are told apart, such as methods; group 0 is that of all others.
const groupsMost = 64

// Began is how a call began: [InFlight.OnEnd] wants it back.
type Began struct {
	group  uint8
	beside int
}

// quick is the unloaded stay of one group.
type quick struct {
	meanNs float64
	told   int
}

// stretch is what happened since the limit was last looked at.
type stretch struct {
	// settling calls must end before it begins: those that began under another limit.
	settling       int
	since, counted Time
	ended          int
	// compared calls ended whose group is known; sums of their stays, of their groups' unloaded stays, and of the
	// calls in flight when they began, themselves included.
	compared int
	staysNs  float64
	quickNs  float64
	inFlight float64
	// timeNs is how long it was, once it is over.
	timeNs float64
	// heldNs is the time for which somebody was held up, inFlightNs calls in flight summed over time.
	heldNs     float64
	inFlightNs float64
	reached    bool
}

// throughput is that of stretches of one swing.
type throughput struct {
	told float64
	// Mean and variance of the logarithm of calls that ended in a nanosecond, and the mean of that of calls in
	// flight.
	mean, variance, inFlight float64
}

// longer returns the mean stay in unloaded stays.
func (s *stretch) longer() float64 { return s.staysNs / max(s.quickNs, 1) }

// needed returns the calls that would be in flight at the same throughput if every stay were unloaded.
func (s *stretch) needed() float64 {
	return s.inFlight / float64(max(s.compared, 1)) / s.longer()
}

func (t *throughput) add(of *stretch) {
	t.told = min(t.told+1, stretches)
	weight := 1 / t.told
	off := math.Log(float64(of.ended)/of.timeNs) - t.mean
	t.mean += weight * off
	t.variance = (1 - weight) * (t.variance + weight*off*off)
	t.inFlight += weight * (math.Log(max(of.inFlightNs/of.timeNs, 1)) - t.inFlight)
}

// newInFlight knows nothing: there is no limit but [inFlightMost], nor will there be one below least.
func newInFlight(least int, now Time) *InFlight {
	return &InFlight{
		least: float64(max(least, 1)), limit: math.Inf(1), atMost: inFlightMost, isHigh: true, moved: now,
		stretch: stretch{since: now, counted: now},
	}
}

// InFlight returns the calls in flight.
func (l *InFlight) InFlight() int { return l.inFlight }

// Limit returns how many may be in flight now; false while nothing is known to hold calls up.
func (l *InFlight) Limit() (int, bool) { return l.atMost, !math.IsInf(l.limit, 1) }

// Room returns how many more may begin.
func (l *InFlight) Room() int { return max(l.atMost-l.inFlight, 0) }

// Quick returns the mean unloaded stay of a group; 0 while it is not known.
func (l *InFlight) Quick(group uint8) time.Duration {
	if of := &l.groups[group%groupsMost]; of.told >= stayKnown {
		return time.Duration(of.meanNs)
	}
	return 0
}

// OnHeld tells whether somebody wants to begin and waits for room: whenever it changes, and now and then while it
// does not, such as when another one comes: should all that are in flight hang, there is room for one more now and
// then.
func (l *InFlight) OnHeld(held bool, now Time) {
	l.count(now)
	if held && l.held && float64(now.Since(l.moved)) > hangs*l.quickNs {
		l.atMost = min(l.atMost+1, inFlightMost)
		l.moved = now
	}
	l.held = held
	l.stretch.reached = l.stretch.reached || held
}

// OnBegin tells that a call of group begins. It is let in even where there is no room: whoever asks has looked.
func (l *InFlight) OnBegin(group uint8, now Time) Began {
	l.count(now)
	began := Began{group: group % groupsMost, beside: l.inFlight}
	l.inFlight++
	l.stretch.reached = l.stretch.reached || l.inFlight >= l.atMost
	return began
}

// OnEnd tells that a call that began so ended after stay.
func (l *InFlight) OnEnd(began Began, stay time.Duration, now Time) {
	settles := l.stretch.settling > 0
	l.OnGone(now)
	l.learn(began, float64(max(stay, 1)))
	if settles {
		return
	}
	l.stretch.ended++
	enough := firstStretch
	if !math.IsInf(l.limit, 1) {
		enough = max(limitStretch, l.inFlight)
	}
	if l.stretch.ended >= enough {
		l.endStretch(now)
	}
}

// OnGone tells that a call that began is gone in a way that says nothing of its stay: its caller left, or it waits
// for its caller.
func (l *InFlight) OnGone(now Time) {
	l.count(now)
	l.inFlight = max(l.inFlight-1, 0)
	l.moved = now
	if l.stretch.settling > 0 {
		l.stretch.settling--
		if l.stretch.settling == 0 {
			l.begin(0, now)
		}
	}
}

// Forget removes the limit: whatever calls stay longer for is limited elsewhere.
func (l *InFlight) Forget() {
	l.limit, l.atMost, l.longer, l.isHigh, l.hasLow = math.Inf(1), inFlightMost, 0, true, false
	l.stretch.settling = 0
}

func (l *InFlight) begin(settling int, now Time) {
	l.stretch = stretch{settling: settling, since: now, counted: now, reached: l.held}
}

func (l *InFlight) count(now Time) {
	ns := float64(now.Since(l.stretch.counted))
	l.stretch.inFlightNs += ns * float64(l.inFlight)
	if l.held {
		l.stretch.heldNs += ns
	}
	l.stretch.counted = max(l.stretch.counted, now)
}

func (l *InFlight) learn(began Began, stayNs float64) {
	of := &l.groups[began.group]
	// The first calls of a group are believed whatever is in flight, for nothing else is known of it.
	if of.told < stayKnown || float64(began.beside) <= l.few {
		of.told++
		of.meanNs += (stayNs - of.meanNs) / min(float64(of.told), stayMemory)
	}
	if of.told >= stayKnown {
		l.stretch.compared++
		l.stretch.staysNs += min(stayNs, longestStay*of.meanNs)
		l.stretch.quickNs += of.meanNs
		l.stretch.inFlight += float64(began.beside + 1)
	}
}

func (l *InFlight) endStretch(now Time) {
	ended := l.stretch
	ended.timeNs = float64(max(now.Since(ended.since), 1))
	if ended.compared > 0 {
		l.quickNs = ended.quickNs / float64(ended.compared)
		l.few = few * ended.needed()
		l.adapt(&ended)
	}
	if l.limit > inFlightMost {
		l.limit = math.Inf(1)
	} else {
		l.limit = max(l.limit, l.least)
	}
	// Away from the limit, so that both differ even if it is a single call.
	swung := math.Floor(l.limit * (1 - swing))
	if l.isHigh {
		swung = math.Ceil(l.limit * (1 + swing))
	}
	l.atMost = int(min(max(swung, l.least), inFlightMost))
	settling := 0
	if !math.IsInf(l.limit, 1) {
		settling = l.inFlight
	}
	l.begin(settling, now)
}

func (l *InFlight) adapt(of *stretch) {
	longer, needed := of.longer(), of.needed()
	switch {
	case math.IsInf(l.limit, 1):
		isCrowded := of.inFlight > l.least*float64(of.compared)
		if longer > stayRoom && isCrowded {
			l.longer++
		} else {
			l.longer = 0
		}
		if l.longer >= longerStretches {
			l.limit = stayRoom * needed
			l.longer, l.hasLow, l.throughput = 0, false, [2]throughput{}
		}
	case longer > farLonger && l.throughput[0].told < stretchesTold:
		// They gathered before there was a limit.
		l.limit = stayRoom * needed
		l.hasLow, l.isHigh = false, true
	case of.heldNs >= bound*of.timeNs:
		if !l.isHigh {
			l.low, l.hasLow = *of, true
		} else if l.hasLow {
			l.hasLow = false
			l.compare(&l.low, of)
		}
		l.isHigh = !l.isHigh
	default:
		// Demand and not the limit made this throughput.
		l.hasLow, l.isHigh = false, true
		if !of.reached || longer < hardlyLonger {
			l.limit *= 1 + forget
		} else if longer > stayRoom {
			l.limit = min(l.limit, stayRoom*needed)
		}
	}
}

// compare looks at two stretches whose throughputs were those of their limits.
func (l *InFlight) compare(low, high *stretch) {
	l.throughput[0].add(low)
	l.throughput[1].add(high)
	slow, fast := l.throughput[0], l.throughput[1]
	growth := max(fast.inFlight-slow.inFlight, swing/4)
	gain := (fast.mean - slow.mean) / growth
	deviation := math.Sqrt((slow.variance+fast.variance)/slow.told) / growth
	longer := (low.longer() + high.longer()) / 2
	wanted := stayRoom * (low.needed() + high.needed()) / 2
	before := l.limit
	switch {
	case slow.told < stretchesTold:
		// More at once; fewer only if it is known that it costs nothing.
		if wanted > l.limit {
			l.limit += (wanted - l.limit) / 2
		}
	case gain-sure*deviation > hasRoom:
		// The throughput grows as the calls in flight do: nothing holds them up, and what was learnt is too short.
		l.correct(1 + min(max(longer-1, up), upMost))
	case gain+deviation < hasRoom:
		l.correct(1 - down)
		l.limit += (wanted - l.limit) / 2
	}
	// What was counted at a limit far from this one says little of it.
	if math.Abs(math.Log(l.limit/before)) > 2*swing {
		l.throughput = [2]throughput{}
	}
}

// correct makes unloaded stays factor times what they seemed, and so the limit.
func (l *InFlight) correct(factor float64) {
	for i := range l.groups {
		l.groups[i].meanNs *= factor
	}
	l.limit *= factor
}

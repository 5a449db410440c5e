package credits

import (
	"math"
	"time"
)

const (
	// servedKnown calls must have been served before their time counts as known.
	servedKnown = 8
	// paceMemory is the number of starts over which the pace of the queue and the error of the predicted waits are
	// averaged.
	paceMemory = 512.0
	// paceKnown starts or ends tell a pace.
	paceKnown = 8.0
	// worst is the quantile of the time that a call is assumed to need at worst: with the longest wait, one in a
	// hundred is later than its objective, and most wait less.
	worst = 0.99
	// deviations of the predicted wait that a call must have left when it is admitted, or it might be admitted,
	// wait, and be shed all the same. A deviation of untold of the longest wait makes that precaution useless: the
	// wait cannot be told beforehand.
	deviations = 2.5
	untold     = 0.2
	// late calls there may be: one in 500. The longest wait grows until so many are; each one shortens it by
	// lateStep of the most that it may have grown.
	late     = 0.002
	lateStep = 0.005
	// longerMost is the most by which the longest wait grows, as a share of what the worst time exceeds the mean.
	longerMost = 0.1
	// refusal is what a refusal costs beyond its message, as a share of a served call, for each call that the
	// server has room for, refusalMost at most: with much room the loss is flat around its minimum, and then it is
	// better that fewer are refused late.
	refusal     = 0.002
	refusalMost = 0.2
	// lineGaps is the longest wait for a place in flight, in mean times between two starts: at 0.8 of the capacity
	// of what is behind, hardly any call waits longer.
	lineGaps = 12.0
	// unreadNs is for how long Go may leave sockets unread while goroutines run that timers woke.
	unreadNs = 10e6
	// How long calls may wait since others wake at the same time: in stays, and in the time above, at most. In
	// simulation less leaves cores idle at overload, and more only makes calls wait longer.
	bunchStays = 6.0
	bunchMost  = 3.0
	// parkedMemory is the number of looks over which the share of those is averaged that found handlers which wait,
	// and waitsFrom how much longer than their CPU time these stay at least, for that to make a difference.
	parkedMemory = 32.0
	waitsFrom    = 1.5
	// held is the share of the time for which calls must be held back by the learnt limit for something behind the
	// handlers to be what the server lacks.
	held = 0.5
	// ofCores is the share of what calls stay longer than when nothing holds them up that their goroutines must be
	// runnable for it to be for a core.
	ofCores = 0.5
	// heldAtTimes is the share of the time for which calls must be held back by the learnt limit for something
	// behind the handlers to be short at times.
	heldAtTimes = 0.01
	// loadFade is what a tick leaves of the counts of what happened: four thousand calls count.
	loadFade = 63.0 / 64.0
	// firstWords are the round trips of which the shortest is believed, until the middle of many is known.
	firstWords = 8
	// By what share a word moves what is believed: firstSteps divided by the number of words, and lastStep at least.
	firstSteps = 4.0
	lastStep   = 0.01
)

// load is what happened lately. The sums fade alike.
type load struct {
	// arrived calls; of them those that found others waiting, and those that were refused.
	arrived, waited, refused float64
	// ended handlers, and the time of it all.
	ended, timeNs float64
	// idleNs is the time for which cores had no handler and no call waited, as a share of all cores.
	idleNs float64
	// heldNs is the time for which calls were held back since as many were in flight as the learnt limit allows.
	heldNs float64
	// cpuNs is the process's CPU time, runnableNs that for which its goroutines were runnable and did not run, and
	// probedEnded the handlers that ended while these were told; staysNs is how long handlers ran.
	cpuNs, runnableNs, probedEnded, staysNs float64
}

func (l *load) fade() {
	for _, sum := range []*float64{
		&l.arrived, &l.waited, &l.refused, &l.ended, &l.timeNs, &l.idleNs, &l.heldNs, &l.cpuNs, &l.runnableNs,
		&l.probedEnded, &l.staysNs,
	} {
		*sum *= loadFade
	}
}

// isFull tells whether there is more to do than is done: calls wait or are refused.
func (l *load) isFull() bool { return l.waited+l.refused > 0.1*l.arrived }

// service is what the server learns of itself: how long calls stay, how fast the line moves, how long a call may
// wait. All in nanoseconds.
//
// Go does not say when a handler waits for something else than a core, so what a call takes of a core is not seen.
// Two things bound it from above, and the lesser is taken: its stay when nothing holds it up, and its share of the
// process's CPU time.
type service struct {
	// fixed is the objective that was set; 0 for multiple of the unloaded time.
	fixed    float64
	multiple float64
	cores    float64
	stays    histogram
	mean     float64
	worst    float64
	// quickNs is the mean stay when nothing holds a call up; 0 while unknown.
	quickNs float64
	// Time between two starts while calls wait, and of how many it was learnt.
	pacedNs, paced float64
	// backloggedSince is when a call was last started with others left in line; negative if none were left.
	backloggedSince Time
	// longer is how much of what the worst time exceeds the mean is waited for all the same, up to longerMost.
	longer float64
	// bias is by how much calls waited longer than predicted, square that error's square, both averages.
	bias, square float64
	// work is what a call takes of a core, message what reading and refusing one takes, capacity the calls in a
	// nanosecond.
	work, message, capacity float64
	// cpu is the process's CPU time for each call.
	cpu float64
	// parked is the share of the looks that found handlers which wait.
	parked float64
	// coresShort says that it is for a core that calls stay longer than when nothing holds them up.
	coresShort bool
	// limited says that something behind the handlers is short at times.
	limited bool
	// gap is the mean time between two starts.
	gap float64
	// The round trip in the middle of those that clients tell, and when nothing is in its way; how often one was
	// told.
	roundTrip, leastRoundTrip float64
	told                      float64
}

func newService(config *Config, cores int) *service {
	return &service{
		fixed: float64(config.Objective), multiple: config.Multiple, cores: float64(max(cores, 1)), backloggedSince: -1,
	}
}

// known tells whether enough calls were served to say anything.
func (s *service) known() bool { return s.mean > 0 }

// onServed tells that a handler ran for so long, and how long its call was in the server.
func (s *service) onServed(stay, inAll time.Duration) {
	if s.known() {
		// A handler's own wait is neither the line's nor the cores'.
		waits := max(s.quickNs-s.work, 0)
		s.longer += late * lateStep
		if float64(inAll)-waits+s.roundTrip > s.objective() {
			s.longer -= lateStep
		}
		s.longer = min(max(s.longer, 0), longerMost)
	}
	s.stays.record(uint64(max(stay, 1)))
	// Often while little is known, seldom later.
	count := uint64(s.stays.count)
	if count >= servedKnown && (count&(count-1) == 0 || count%1024 == 0) {
		s.mean, s.worst = s.stays.mean(), s.stays.quantile(worst)
		s.learn()
	}
}

// onStarted tells that a call was started at now that had waited, with left others in line.
func (s *service) onStarted(waited time.Duration, predicted float64, left int, now Time) {
	if s.backloggedSince >= 0 {
		ns := float64(now.Since(s.backloggedSince))
		s.paced = min(s.paced+1, paceMemory)
		s.pacedNs += (ns - s.pacedNs) / s.paced
		deviation := float64(waited) - predicted
		s.bias += (deviation - s.bias) / paceMemory
		s.square += (deviation*deviation - s.square) / paceMemory
	}
	s.backloggedSince = -1
	if left > 0 {
		s.backloggedSince = now
	}
}

// onEmpty tells that nothing waits any more although nothing was started.
func (s *service) onEmpty() { s.backloggedSince = -1 }

// onRoundTrip takes a client's word of its round trip; each is asked as often as any other, however much it calls.
// The middle one counts: no single client's word moves it far, not even if it is the first.
func (s *service) onRoundTrip(told time.Duration) {
	if told <= 0 {
		return
	}
	ns := float64(told)
	if s.told == 0 || s.told < firstWords && ns < s.roundTrip {
		s.roundTrip, s.leastRoundTrip = ns, ns
	}
	s.told++
	// What is told first may come from a rush of calls at the start and be many times too long.
	step := max(firstSteps/max(s.told, firstWords), lastStep)
	approach(&s.roundTrip, ns, step, step)
	// One in twenty is less than it: a step down is twenty steps up.
	approach(&s.leastRoundTrip, ns, step/20, step)
}

// approach moves believed towards told: up or down by these shares at most.
func approach(believed *float64, told, up, down float64) {
	*believed = min(max(told, *believed/(1+down)), *believed*(1+up))
}

// onLoad takes what happened lately. quickNs is the stay of calls that nothing holds up.
func (s *service) onLoad(of *load, quickNs float64) {
	s.quickNs = quickNs
	s.limited = of.heldNs > heldAtTimes*of.timeNs
	s.gap = of.timeNs / max(of.ended, 1)
	if of.probedEnded >= paceKnown {
		s.cpu = of.cpuNs / of.probedEnded
		longer := of.staysNs/max(of.ended, 1) - quickNs
		s.coresShort = of.runnableNs/of.probedEnded > ofCores*longer
	}
	s.learn()
	s.capacity = 0
	if of.ended >= paceKnown {
		s.capacity = of.ended / max(of.timeNs-of.idleNs, 1)
	}
	if s.waits() {
		// Their line is there while they wait, and gone while the cores are busy with them.
		s.capacity = s.cores / s.cpu
		if of.heldNs > held*of.timeNs && !s.coresShort {
			s.capacity = min(s.capacity, of.ended/of.timeNs)
		}
	}
	// What remains of the time that the cores are busy, and do not run calls, is what messages take. Of handlers
	// that wait it is not seen.
	s.message = 0
	if s.capacity > 0 && s.quickNs > 0 {
		each := max(of.arrived/max(of.ended, 1), 1)
		s.message = min(max(s.cores/s.capacity-s.quickNs, 0)/each, s.work)
	}
}

// learn computes what a call takes of a core.
func (s *service) learn() {
	s.work = s.mean
	if s.quickNs > 0 {
		s.work = min(s.work, s.quickNs)
	}
	if s.cpu > 0 {
		s.work = min(s.work, s.cpu)
	}
}

// onParked tells whether a core had nothing to run although as many handlers as there are cores had not ended, or
// one of no more ended first.
func (s *service) onParked(parked bool) {
	seen := 0.0
	if parked {
		seen = 1
	}
	s.parked += (seen - s.parked) / parkedMemory
}

// waits tells whether handlers wait for something, so that more of them than there are cores are needed to keep those
// busy. A host that takes cores away makes stays longer than CPU time too, but leaves none idle.
func (s *service) waits() bool {
	return s.parked > 0.5 && s.cpu > 0 && min(s.mean, s.quickNs) >= waitsFrom*s.cpu
}

// pace returns the time between two starts while calls wait.
func (s *service) pace() float64 {
	switch {
	case s.capacity > 0 && s.waits():
		// Handlers that wake go before calls that start, so these come by fits.
		return 1 / s.capacity
	case s.paced >= paceKnown:
		return s.pacedNs
	default:
		// A few starts tell less than the times of calls that did not wait for each other.
		return (s.work + s.message) / s.cores
	}
}

// objective returns how long a call takes at most, from its caller's view and without what its handler waits for,
// if all is as it should be.
func (s *service) objective() float64 {
	if s.fixed > 0 {
		return s.fixed
	}
	return s.multiple * (s.work + s.leastRoundTrip)
}

// unloaded returns what a call takes from end to end when nothing holds it up: what its own deadline must leave.
func (s *service) unloaded() float64 {
	if s.quickNs > 0 {
		return s.quickNs + s.roundTrip
	}
	return s.mean + s.roundTrip
}

// coreWait returns how long a call may wait for a core.
func (s *service) coreWait() float64 {
	// What a core's time is of a stay, it is taken to be of the worst stay too.
	worst := s.worst * s.work / max(s.mean, 1)
	left := s.objective() - s.roundTrip - worst + s.longer*max(worst-s.work, 0)
	// However tight the objective is, one call may wait for another: else a server would idle between calls.
	return max(left, s.pace())
}

// longestWait returns how long a call may wait for its start.
func (s *service) longestWait() float64 {
	least := 0.0
	if s.fixed == 0 {
		least = min(s.bunch(), lineGaps*s.gap+unreadNs)
		if s.limited {
			least = max(least, lineGaps*max(s.gap, s.pace()))
		}
	}
	return max(s.coreWait(), least)
}

// admittedWait returns the predicted wait up to which a call is admitted.
func (s *service) admittedWait() float64 {
	longest := s.longestWait()
	if s.limited {
		// One that waits for room and is shed after all has cost nothing.
		return longest
	}
	deviation := math.Sqrt(max(s.square-s.bias*s.bias, 0))
	useless := deviation / (untold * longest)
	return longest - deviations*deviation*max(1-useless*useless, 0)
}

// bunch returns how long a call may have to wait since others wake at the same time: Go reads requests when those
// have run, so calls that came apart start together and wake together.
func (s *service) bunch() float64 {
	if !s.waits() {
		return 0
	}
	return min(bunchStays*s.quickNs, bunchMost*unreadNs)
}

// predict returns the wait of a call that finds so many others before it.
func (s *service) predict(ahead int) float64 {
	if ahead == 0 {
		return 0
	}
	return max(float64(ahead)*s.pace()+s.bias, 0)
}

// busyAt returns the calls in flight at which what is short is busy, by Little's law.
func (s *service) busyAt() float64 {
	if s.capacity > 0 && s.quickNs > 0 {
		return max(s.capacity*s.quickNs, 1)
	}
	return s.cores
}

// coreLimit returns how many calls may be in flight: as many as keep the cores busy, and those that may wait for
// one. Far from what handlers that only compute ever have.
func (s *service) coreLimit() int {
	if !s.known() || s.quickNs <= 0 || s.cpu <= 0 {
		return math.MaxInt
	}
	return int(min(max(s.cores*(s.quickNs+max(s.coreWait(), s.bunch(), s.cpu))/s.cpu, s.cores), inFlightMost))
}

// refusalCost returns what a refusal costs, as a share of what a served call takes.
func (s *service) refusalCost() float64 {
	return s.message/max(s.work+s.message, 1) + min(refusal*s.room(), refusalMost)
}

// room returns the calls that fit into the server, waiting or running, while all are admitted in time.
func (s *service) room() float64 {
	each := s.pace()
	if s.capacity > 0 {
		each = max(each, 1/s.capacity)
	}
	return s.admittedWait()/max(each, 1) + s.cores
}

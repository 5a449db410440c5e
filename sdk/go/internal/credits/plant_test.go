package credits

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// plant is a Go process with cores, a run queue and sockets, in virtual time, with the machine before its handlers;
// and its callers, each with the other machine or with none.
//
// Sockets are looked at when a core finds nothing to run, and every 10 ms, as Go's scheduler does it.
type plant struct {
	now    Time
	random *rand.Rand
	events events
	serial int

	server  *Server
	cores   int
	message time.Duration
	running int
	ready   []runnable // the run queue: each occupies a core until it calls yield
	unread  []func()
	// hogs says that the process has something else to do whenever it may.
	hogs      bool
	looked    Time
	taken     Taken
	bare      bool
	tookMs    []float64
	waiting   []waiter
	asked     bool
	timer     Time
	mostAtOne int
	// queued is how long what runs now was in the run queue.
	queued time.Duration

	callers []*simCaller
	way     time.Duration
	shape   func(*plant) []segment
	behind  int // places of the pool behind the handlers, if any
	queue   []func()

	// priorities says that half of the calls are critical and the others batch.
	priorities bool
	claims     Claims
	servedOf   [256]int

	from, until                        Time
	slo                                time.Duration
	offered, good, served, here, there int
	longestRefusal                     time.Duration
}

// segment is a part of a handler: it computes, or it waits; in the pool if there is one.
type segment struct {
	compute, wait time.Duration
	pooled        bool
}

// runnable is a goroutine in the run queue.
type runnable struct {
	since Time
	run   func()
}

// waiter is a goroutine that waits for its call's verdict.
type waiter struct {
	call   *Call
	answer func(Grant, Reason)
}

type simCaller struct {
	machine *Client // nil for one without the interceptor
	keys    []Key
	// weight is by how much it calls more than the others; 0 is 1.
	weight float64
	// invents says that it claims another name and the best priority with each call, as one that obeys.
	invents bool
	// offered and good are its calls that count, and those of them that were answered in time.
	offered, good int
}

type event struct {
	at     Time
	serial int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func newPlant(cores, callers int, aware bool, shape func(*plant) []segment) *plant {
	p := &plant{
		random: rand.New(rand.NewPCG(7, 11)), cores: cores, message: 30 * us, way: 50 * us, shape: shape,
		timer: Never, claims: Trusted,
	}
	p.server = NewServer(Config{Cores: cores, Probe: func() Taken { return p.taken }}, 0)
	for i := range callers {
		caller := &simCaller{keys: []Key{AddressKey(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))}}
		if aware {
			caller.machine = NewClient(uint16(p.random.Uint32()))
			caller.keys = append([]Key{ClientKeyOf(uint64(i))}, caller.keys...)
		}
		p.callers = append(p.callers, caller)
	}
	return p
}

// handlers wait, then compute for so long on average.
func handlers(wait, compute time.Duration) func(*plant) []segment {
	return func(p *plant) []segment {
		return []segment{{wait: wait}, {compute: p.exponential(compute)}}
	}
}

func (p *plant) exponential(mean time.Duration) time.Duration {
	return time.Duration(p.random.ExpFloat64() * float64(mean))
}

func (p *plant) at(when Time, do func()) {
	p.serial++
	heap.Push(&p.events, event{when, p.serial, do})
}

func (p *plant) after(span time.Duration, do func()) { p.at(p.now.After(span), do) }

// run plays so long at so many calls a second. What is called after its first quarter counts.
func (p *plant) run(rate float64, length time.Duration, slo time.Duration) {
	p.offered, p.good, p.served, p.here, p.there, p.mostAtOne = 0, 0, 0, 0, 0, 0
	p.tookMs, p.servedOf = nil, [256]int{}
	for _, each := range p.callers {
		each.offered, each.good = 0, 0
	}
	p.from, p.until, p.slo = p.now.After(length/4), p.now.After(length), slo
	end := p.until
	var next func()
	next = func() {
		if p.now < end {
			p.call(p.pick())
			p.after(p.exponential(time.Duration(1e9/rate)), next)
		}
	}
	next()
	var poll func()
	poll = func() {
		if p.now < end {
			if p.now.Since(p.looked) >= 10*ms {
				p.look()
			}
			p.after(10*ms, poll)
		}
	}
	poll()
	if p.hogs {
		p.runnable(p.hog)
	}
	drained := end.After(2 * time.Second)
	for len(p.events) > 0 && p.events[0].at <= drained {
		event := heap.Pop(&p.events).(event)
		p.now = event.at
		event.do()
		p.dispatch()
	}
	p.now = drained
}

// pick draws a caller by its weight.
func (p *plant) pick() *simCaller {
	weight := func(of *simCaller) float64 {
		if of.weight == 0 {
			return 1
		}
		return of.weight
	}
	sum := 0.0
	for _, each := range p.callers {
		sum += weight(each)
	}
	at := p.random.Float64() * sum
	for _, each := range p.callers {
		if at -= weight(each); at < 0 {
			return each
		}
	}
	return p.callers[0]
}

// hog computes for 10 ms whenever it is its turn.
func (p *plant) hog() {
	p.work(10*ms, func() {
		if p.now < p.until {
			p.runnable(p.hog)
		}
		p.yield()
	})
}

// call makes a call of a caller; an odd one is of the least priority if there are two.
func (p *plant) call(caller *simCaller) {
	at := p.now
	counts := at >= p.from && at < p.until
	if counts {
		p.offered++
		caller.offered++
	}
	priority := Default
	if p.priorities {
		priority = Priority(p.random.IntN(2)) * Batch
	}
	ask := Unaware
	ask.Priority = priority
	if caller.machine != nil {
		signed, reason := caller.machine.OnCall(priority, -1, at)
		if reason != "" {
			if counts {
				p.here++
			}
			return
		}
		ask = signed
	}
	keys := caller.keys
	if caller.invents {
		keys = append([]Key{ClientKeyOf(p.random.Uint64())}, keys...)
		ask.Aware, ask.Priority = true, Critical
	}
	answer := func(grant Grant, reason Reason) {
		p.after(p.way, func() {
			took := p.now.Since(at)
			if caller.machine != nil {
				caller.machine.OnReply(&Reply{Served: reason == "", Granted: true, Grant: grant, Took: took}, p.now)
			}
			switch {
			case !counts:
			case reason != "":
				p.there++
				p.longestRefusal = max(p.longestRefusal, took)
			default:
				p.served++
				p.servedOf[priority]++
				p.tookMs = append(p.tookMs, float64(took)/1e6)
				if took <= p.slo {
					p.good++
					caller.good++
				}
			}
		})
	}
	p.after(p.way, func() {
		p.unread = append(p.unread, func() { p.read(keys, &ask, answer) })
	})
}

// read runs on a core: a request is read and looked at.
func (p *plant) read(keys []Key, ask *Ask, answer func(Grant, Reason)) {
	p.work(p.message, func() {
		if p.bare {
			p.segments(p.shape(p), func() {
				answer(Grant{}, "")
				p.yield()
			})
			return
		}
		call := NewCall()
		judged, claimed := p.claims.Judge(*ask, Known{})
		verdict, known := p.server.OnArrive(call, &Arrival{Keys: keys, Ask: judged, Claimed: claimed}, p.now)
		p.told()
		if !known {
			p.waiting = append(p.waiting, waiter{call, answer})
			if p.server.WantsTurn(p.now) {
				// Behind all that is runnable.
				p.runnable(p.turn)
			}
			p.ask()
			p.yield()
			return
		}
		p.proceed(call, verdict, answer)
	})
}

// told does what a driver does after each event: wakes the calls whose verdict came, asks for a look, sets the timer.
func (p *plant) told() {
	for i := 0; i < len(p.waiting); {
		select {
		case verdict := <-p.waiting[i].call.Turn:
			each := p.waiting[i]
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			p.runnable(func() { p.proceed(each.call, verdict, each.answer) })
		default:
			i++
		}
	}
	if at := p.server.NextTimeout(); at != p.timer && at < Never {
		p.timer = at
		p.at(max(at, p.now), func() {
			if p.timer == at {
				p.timer = Never
				p.server.OnTimeout(p.now)
				p.ask()
				p.told()
			}
		})
	}
}

// ask asks for a look if the machine wants one: a byte is written into a pipe.
func (p *plant) ask() {
	p.asked = p.asked || p.server.WantsLook(p.now)
}

// proceed runs on a core: a verdict came.
func (p *plant) proceed(call *Call, verdict Verdict, answer func(Grant, Reason)) {
	if !verdict.Start {
		answer(verdict.Grant, verdict.Reason)
		p.yield()
		return
	}
	p.ask()
	p.mostAtOne = max(p.mostAtOne, p.server.inFlight.InFlight())
	p.segments(p.shape(p), func() {
		answer(p.server.OnEnd(call, true, p.now), "")
		p.told()
		p.ask()
		p.yield()
	})
}

func (p *plant) segments(left []segment, done func()) {
	if len(left) == 0 {
		done()
		return
	}
	rest := func() { p.segments(left[1:], done) }
	if left[0].wait == 0 {
		p.work(left[0].compute, rest)
		return
	}
	resume := func() { p.runnable(rest) }
	if !left[0].pooled {
		p.after(left[0].wait, resume)
	} else {
		p.pool(left[0].wait, resume)
	}
	p.yield()
}

// pool takes one of the places behind the handlers for so long, in order.
func (p *plant) pool(wait time.Duration, resume func()) {
	take := func() {
		p.after(wait, func() {
			p.behind++
			if len(p.queue) > 0 {
				next := p.queue[0]
				p.queue = p.queue[1:]
				p.behind--
				next()
			}
			resume()
		})
	}
	if p.behind > 0 {
		p.behind--
		take()
	} else {
		p.queue = append(p.queue, take)
	}
}

// work occupies a core for so long, in slices of 10 ms between which others run.
func (p *plant) work(span time.Duration, then func()) {
	slice := min(span, 10*ms)
	p.taken.CPU += slice
	p.after(slice, func() {
		if slice == span {
			then()
			return
		}
		p.runnable(func() { p.work(span-slice, then) })
		p.yield()
	})
}

func (p *plant) runnable(run func()) { p.ready = append(p.ready, runnable{p.now, run}) }

// yield frees the core.
func (p *plant) yield() {
	p.running--
}

// dispatch gives cores to what is runnable, and looks at the sockets when nothing is.
func (p *plant) dispatch() {
	for p.running < p.cores {
		if len(p.ready) == 0 && !p.look() {
			return
		}
		next := p.ready[0]
		p.ready = p.ready[1:]
		p.running++
		p.queued = p.now.Since(next.since)
		p.taken.Runnable += p.queued
		next.run()
	}
}

// look reads what came and, after that, does what the machine asked for. Whether there is anything to run now.
func (p *plant) look() bool {
	p.looked = p.now
	for _, read := range p.unread {
		p.runnable(read)
	}
	p.unread = nil
	if p.asked {
		p.asked = false
		p.runnable(p.turn)
	}
	return len(p.ready) > 0
}

func (p *plant) turn() {
	p.server.OnLook(p.queued, p.now)
	p.told()
	p.yield()
}

// good is the share of the calls that count which were answered in time, over the share that could have been.
func (p *plant) goodput(rate, capacity float64) float64 {
	seconds := p.until.Since(p.from).Seconds()
	return float64(p.good) / seconds / min(rate, capacity)
}

// p99 of the answers, in milliseconds.
func (p *plant) p99() float64 {
	slices.Sort(p.tookMs)
	return p.tookMs[len(p.tookMs)*99/100]
}

// constant handlers wait, then compute, for exactly so long.
func constant(wait, compute time.Duration) func(*plant) []segment {
	return func(*plant) []segment { return []segment{{wait: wait}, {compute: compute}} }
}

// played has seen a quiet time first, then the load.
func played(p *plant, rate float64, slo time.Duration) *plant {
	p.run(rate/4, 2*time.Second, slo)
	p.run(rate, 12*time.Second, slo)
	return p
}

func TestHandlersThatComputeServeWhatTheCoresCanAndNoMoreAtOnceThanThereAreCores(t *testing.T) {
	for _, cores := range []int{1, 2} {
		// A message takes 30 µs beside the millisecond of work.
		capacity := float64(cores) * 1000 / 1.03
		for load, least := range map[float64]float64{0.5: 0.985, 1: 0.93, 2: 0.96, 10: 0.96} {
			p := played(newPlant(cores, 8, true, constant(0, ms)), load*capacity, 12*ms)
			good := p.goodput(load*capacity, capacity)
			if good < least || p.mostAtOne > cores {
				t.Errorf("%d cores at %vx: %.3f of the capacity in time, %d at once", cores, load, good, p.mostAtOne)
			}
		}
	}
}

func TestHandlersThatWaitAreNotShedAtHalfLoadAndKeepTheCoresBusyBeyond(t *testing.T) {
	const capacity = 1000 / 1.03
	for _, wait := range []time.Duration{2 * ms, 20 * ms, 200 * ms} {
		bare := newPlant(1, 8, false, constant(wait, ms))
		bare.bare = true
		slo := time.Duration(3 * played(bare, 0.8*capacity, time.Minute).p99() * 1e6)
		for _, aware := range []bool{true, false} {
			half := played(newPlant(1, 8, aware, constant(wait, ms)), 0.5*capacity, slo)
			if shed := half.here + half.there; shed > half.offered/200 {
				t.Errorf("wait %v, aware %v: %d of %d shed at half load", wait, aware, shed, half.offered)
			}
		}
		for _, load := range []float64{1, 2, 10} {
			p := played(newPlant(1, 8, true, constant(wait, ms)), load*capacity, slo)
			if good := p.goodput(load*capacity, capacity); good < 0.9 {
				t.Errorf("wait %v at %vx: %.3f of the capacity in time, p99 %.1f ms", wait, load, good, p.p99())
			}
		}
	}
}

func TestCallersWithoutTheInterceptorAreServedWhatIsLeftAfterRefusingTheOthers(t *testing.T) {
	for _, load := range []float64{2, 5} {
		// Each refusal takes a message.
		capacity := 1000 * (1 - 0.03*load)
		p := played(newPlant(1, 8, false, constant(0, ms)), 1000*load, 12*ms)
		if good := p.goodput(1000*load, capacity); good < 0.95 {
			t.Errorf("at %vx: %.3f in time", load, good)
		}
		if p.longestRefusal > 30*ms {
			t.Errorf("at %vx: a refusal took %v", load, p.longestRefusal)
		}
	}
}

func TestAPoolBehindTheHandlersIsKeptBusyAndItsCallsShort(t *testing.T) {
	// Ten places of 20 ms serve 500 a second; the cores would do far more.
	shape := func(*plant) []segment {
		return []segment{{compute: 100 * us}, {wait: 20 * ms, pooled: true}, {compute: 100 * us}}
	}
	for _, load := range []float64{0.5, 2, 5} {
		p := newPlant(1, 8, true, shape)
		p.behind = 10
		played(p, 500*load, 100*ms)
		good := p.goodput(500*load, 500)
		if good < 0.85 {
			t.Errorf("at %vx: %.3f of the capacity in time, p99 %.1f ms", load, good, p.p99())
		}
	}
}

func TestABetterPriorityIsServedInFullAtTwiceTheCapacity(t *testing.T) {
	p := newPlant(1, 8, true, constant(0, ms))
	p.priorities = true
	played(p, 1600, 12*ms)
	seconds := p.until.Since(p.from).Seconds()
	critical, batch := float64(p.servedOf[Critical])/seconds, float64(p.servedOf[Batch])/seconds
	if critical < 0.95*800 || batch < 50 {
		t.Errorf("%.0f critical and %.0f batch calls a second", critical, batch)
	}
}

func TestOneThatInventsNamesAndPrioritiesTakesNothingOfOthersShares(t *testing.T) {
	for _, aware := range []bool{false, true} {
		p := newPlant(1, 9, aware, constant(0, ms))
		p.claims = Untrusted
		inventor := p.callers[8]
		inventor.machine, inventor.invents, inventor.weight = nil, true, 160
		inventor.keys = inventor.keys[len(inventor.keys)-1:]
		// The others want half of the capacity, it wants ten times that.
		p.run(10_500, 4*time.Second, 20*ms)
		p.run(10_500, 8*time.Second, 20*ms)
		good, offered := 0, 0
		for _, each := range p.callers[:8] {
			good, offered = good+each.good, offered+each.offered
		}
		if kept := float64(good) / float64(offered); kept < 0.95 {
			t.Errorf("aware %v: %.3f of the honest calls were answered in time", aware, kept)
		}
	}
}

func TestAGatewayGetsWhatSmallCallersLeave(t *testing.T) {
	for _, aware := range []bool{true, false} {
		// One wants 1.3 of the capacity, twenty 0.02 each.
		p := newPlant(1, 21, aware, constant(0, ms))
		p.callers[0].weight = 65
		// What each may have is settled after some ten thousand calls.
		played(p, 1_700, 15*ms)
		p.run(1_700, 20*time.Second, 15*ms)
		if good := p.goodput(1_700, 1_000/1.03); good < 0.95 {
			t.Errorf("aware %v: %.3f of the capacity in time", aware, good)
		}
		small := 0.0
		for _, each := range p.callers[1:] {
			small += float64(each.good) / float64(each.offered) / 20
		}
		if small < 0.85 {
			t.Errorf("aware %v: %.3f of the small callers' calls in time", aware, small)
		}
	}
}

func TestFastClientsHoldCreditsAndTheyComeBack(t *testing.T) {
	p := newPlant(1, 4, true, constant(0, ms))
	held := 0
	p.shape = func(*plant) []segment {
		held = max(held, p.server.Gauges(p.now).Credits)
		return []segment{{compute: ms}}
	}
	played(p, 3_000, 15*ms)
	if good := p.goodput(3_000, 1_000/1.03); good < 0.95 {
		t.Errorf("%.3f of the capacity in time", good)
	}
	if held == 0 || held > 20 {
		t.Errorf("%d credits at most", held)
	}
	p.server.reclaim(p.now.After(time.Minute))
	if gauges := p.server.Gauges(p.now); gauges.Credits != 0 || p.server.demand.tenants[0].credits != 0 {
		t.Errorf("%d credits never came back", gauges.Credits)
	}
}

func TestAProcessThatIsNeverIdleStarvesNobody(t *testing.T) {
	// Something else computes in slices of 10 ms whenever it may, so requests are read only that often, and a
	// handler that computes takes a slice's time and its own: one in each is what there is.
	for wait, least := range map[time.Duration]float64{0: 0.2, 20 * ms: 0.4} {
		p := newPlant(1, 8, false, constant(wait, ms))
		p.hogs = true
		p.server.service.fixed = 100e6
		played(p, 200, time.Minute)
		if served := float64(p.served) / float64(p.offered); served < least {
			t.Errorf("wait %v: %.2f served", wait, served)
		}
	}
}

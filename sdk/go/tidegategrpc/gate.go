package tidegategrpc

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"tidegate.invalid/sdk/go/internal/credits"
)

// methodsMost is the number of methods that are told apart; calls of further ones are of none. A longer name than
// methodBytes is none.
const (
	methodsMost = 63
	methodBytes = 256
)

// gate is the server's machine behind its lock, with what Go needs to drive it.
type gate struct {
	mu      sync.Mutex
	machine *credits.Server
	methods map[string]uint8
	count   ServerCounts
	// paper is the server on paper of a dry run; nil while verdicts are carried out.
	paper *credits.Paper
	// timer calls when calls in line are no longer worth starting.
	timer   *time.Timer
	timerAt credits.Time
	look    looker
}

// running is a call that began.
type running struct {
	// call is nil for one that came in a dry run.
	call   *credits.Call
	group  uint8
	budget time.Duration
	// at is when it came, waited how long its handler waited for its client, since pausedAt if isPaused.
	at, pausedAt credits.Time
	waited       time.Duration
	isPaused     bool
}

func newGate(config credits.Config) *gate {
	g := &gate{
		machine: credits.NewServer(config, now()), methods: make(map[string]uint8), timerAt: credits.Never,
		count: ServerCounts{Shed: make(map[string]uint64), WouldHaveShed: make(map[string]uint64)},
	}
	g.timer = time.AfterFunc(time.Hour, g.onTimer)
	g.look.start(g.onLook)
	return g
}

// enter waits until a call may run or is refused. An error says that its caller went away.
func (g *gate) enter(ctx context.Context, method string, arrival *credits.Arrival) (*running, credits.Verdict, error) {
	call := credits.NewCall()
	g.mu.Lock()
	arrival.Group = g.group(method)
	// Read under the lock, so that the machine's time never steps back.
	at := now()
	if g.paper != nil {
		g.paper.Arrive(arrival, at)
		g.mu.Unlock()
		return &running{group: arrival.Group, budget: arrival.Ask.Budget, at: at}, credits.Verdict{Start: true}, nil
	}
	verdict, known := g.machine.OnArrive(call, arrival, at)
	takesTurn := !known && g.machine.WantsTurn(at)
	wantsLook := g.finish(at)
	if known && !verdict.Start {
		g.count.Shed[string(verdict.Reason)]++
	}
	g.mu.Unlock()
	if wantsLook {
		g.look.ask()
	}
	if takesTurn {
		// Whatever was read with this call arrives too, before a handler takes the core.
		g.onLook(queue())
	}
	if !known {
		var err error
		if verdict, err = g.wait(ctx, call); err != nil {
			return nil, verdict, err
		}
	}
	return &running{call: call, group: arrival.Group, budget: arrival.Ask.Budget, at: at}, verdict, nil
}

// wait waits for the verdict of a call in line.
func (g *gate) wait(ctx context.Context, call *credits.Call) (credits.Verdict, error) {
	var verdict credits.Verdict
	select {
	case verdict = <-call.Turn:
	case <-ctx.Done():
		g.mu.Lock()
		at := now()
		left := g.machine.OnLeave(call, at)
		if left {
			g.count.Cancelled++
		}
		g.after(at)
		if left {
			return verdict, status.FromContextError(ctx.Err()).Err()
		}
		// Its turn came in the same moment.
		verdict = <-call.Turn
	}
	g.mu.Lock()
	at := now()
	if !verdict.Start {
		g.count.Shed[string(verdict.Reason)]++
	}
	// The one that started asks for the next look, and not the look before it: that would start all at once.
	g.after(at)
	return verdict, nil
}

// setMode begins or ends a dry run.
func (g *gate) setMode(mode Mode) {
	g.mu.Lock()
	at := now()
	switch {
	case mode == DryRun && g.paper == nil:
		g.paper = credits.NewPaper(g.machine, func(reason credits.Reason) { g.count.WouldHaveShed[string(reason)]++ }, at)
	case mode == Enforce && g.paper != nil:
		g.paper.End(at)
		g.paper = nil
	}
	g.after(at)
}

// end ends a call that began; what its answer tells, and whether it tells anything.
func (g *gate) end(of *running, answered bool) (grant credits.Grant, tells bool) {
	g.mu.Lock()
	at := now()
	if of.call != nil {
		grant, tells = g.machine.OnEnd(of.call, answered, at), answered && g.paper == nil
	} else if g.paper != nil && answered {
		if of.isPaused {
			of.waited += at.Since(of.pausedAt)
		}
		g.paper.Measured(of.group, at.Since(of.at)-of.waited)
	}
	if answered {
		g.count.Served++
		if of.budget < 0 || at.Since(of.at) <= of.budget {
			g.count.InTime++
		}
	} else {
		g.count.Cancelled++
	}
	g.after(at)
	return grant, tells
}

// after unlocks after an event at that time, and does what the machine wants done.
func (g *gate) after(at credits.Time) {
	wantsLook := g.finish(at)
	g.mu.Unlock()
	if wantsLook {
		g.look.ask()
	}
}

// finish sets the timer, and says whether a look is to be asked for. The lock is held.
func (g *gate) finish(at credits.Time) bool {
	if g.paper != nil {
		return false
	}
	// One that rings too early sets itself again; most calls leave it alone.
	if next := g.machine.NextTimeout(); next < g.timerAt {
		g.timerAt = next
		g.timer.Reset(max(next.Since(at), 0))
	}
	return g.machine.WantsLook(at)
}

func (g *gate) onTimer() {
	g.mu.Lock()
	at := now()
	g.timerAt = credits.Never
	if g.paper == nil {
		g.machine.OnTimeout(at)
	}
	g.after(at)
}

// onLook tells that all that was runnable has run, which took so long. The next look is asked for by the call that
// starts.
func (g *gate) onLook(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// One that was asked for before a dry run began finds nothing that waits.
	if g.paper == nil {
		g.machine.OnLook(took, now())
	}
}

// queue lets all that is runnable go first; how long that took.
func queue() time.Duration {
	since := now()
	runtime.Gosched()
	return now().Since(since)
}

func (g *gate) pause(of *running) {
	g.mu.Lock()
	at := now()
	if of.call != nil {
		g.machine.OnPause(of.call, at)
	} else {
		of.isPaused, of.pausedAt = true, at
	}
	g.after(at)
}

func (g *gate) resume(of *running) {
	g.mu.Lock()
	at := now()
	if of.call != nil {
		g.machine.OnResume(of.call, at)
	} else if of.isPaused {
		of.isPaused, of.waited = false, of.waited+at.Since(of.pausedAt)
	}
	g.after(at)
}

// group returns the number of a method, from 1 on, in the order in which they were first called; 0 if too many others
// came first. The lock is held.
func (g *gate) group(method string) uint8 {
	known, has := g.methods[method]
	if has || len(method) > methodBytes || len(g.methods) >= methodsMost {
		return known
	}
	next := uint8(len(g.methods) + 1)
	g.methods[method] = next
	return next
}

func (g *gate) countExempt() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count.Exempt++
}

// random returns a number from 0 to 1.
func (g *gate) random() float64 { return rand.Float64() }

func (g *gate) counts() ServerCounts {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := now()
	if g.paper != nil {
		g.paper.Advance(at)
	}
	counts, gauges := g.count, g.machine.Gauges(at)
	counts.Shed, counts.WouldHaveShed = maps.Clone(g.count.Shed), maps.Clone(g.count.WouldHaveShed)
	counts.Waiting, counts.InFlight = gauges.Waiting, gauges.InFlight
	counts.InFlightLimit, counts.CoreLimit, counts.Sessions = gauges.InFlightLimit, gauges.CoreLimit, gauges.Sessions
	counts.CapacityPerS, counts.SupplyPerS, counts.Chance = gauges.CapacityPerS, gauges.SupplyPerS, gauges.Chance
	counts.Work, counts.LongestWait, counts.QueueingDelay = gauges.Work, gauges.LongestWait, gauges.QueueingDelay
	return counts
}

// looker tells when a core has nothing to run and has read what came: Go looks at its sockets then, and one of them
// is this pipe. A busy process looks every 10 ms all the same.
type looker struct {
	onLook func(took time.Duration)
	// write is nil if no descriptor was left for a pipe: then everything runnable goes first, and nothing is read
	// between.
	write *os.File
}

// start begins to listen, and to call onLook after each look that was asked for.
func (l *looker) start(onLook func(took time.Duration)) {
	l.onLook = onLook
	read, write, err := os.Pipe()
	if err != nil {
		return
	}
	l.write = write
	go func() {
		var one [1]byte
		for {
			if _, err := read.Read(one[:]); err != nil {
				return
			}
			// What was read in the same look goes first.
			onLook(queue())
		}
	}()
}

// ask asks for a look. The machine asks for one at a time, so the pipe never holds more than one byte.
func (l *looker) ask() {
	if l.write == nil {
		go func() { l.onLook(queue()) }()
		return
	}
	// It ends with the process: there is no error to be had of its other end.
	_, _ = l.write.Write([]byte{0})
}

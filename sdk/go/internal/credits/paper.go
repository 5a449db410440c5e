package credits

import (
	"container/heap"
	"time"
)

const (
	// paperGroups are those of which times are kept apart; calls of further ones are of the first.
	paperGroups = 64
	// paperInFlight calls there are on paper at most; further ones wait in the line.
	paperInFlight = 1 << 16
	// paperProbe ended calls tell what one takes of a core, and paperFade is by how much.
	paperProbe = 64
	paperFade  = 8
)

// Paper is a server that exists on paper, for a dry run: what enforcing would do.
//
// In a dry run every call runs. Told of those, a machine would take the cores that calls keep busy which it believes
// refused for cores that something else has, and would shed more and more. So it is told of a server on paper instead:
// what really arrives stands in a line there, takes a core for as long as a call of this process takes one, waits for
// as long as the shortest calls of its method do besides, and ends. Nobody hears its grants, so every caller counts as
// one without the interceptor.
type Paper struct {
	server *Server
	// shed hears of every call that would have been shed.
	shed func(Reason)
	// Cores, and how many of them run calls; ready calls were started and no core runs them.
	cores, busy int
	ready       []*paperCall
	due         paperEvents
	serial      uint64
	// taken is what was taken on paper.
	taken Taken
	// quick is what the shortest calls of each group take, last that of the group that was measured last; 0 if unknown.
	quick [paperGroups]time.Duration
	last  time.Duration
	// probe asks what the process really took; nil where nobody knows. What it said last, real calls that ended since,
	// and what one takes of a core.
	probe  func() Taken
	real   Taken
	probed bool
	ended  int
	cpu    time.Duration
	// isOver says that the dry run ends.
	isOver bool
}

// paperCall is a call on paper.
type paperCall struct {
	call            *Call
	computes, waits time.Duration
	since           Time
}

// NewPaper makes the calls of a machine ones on paper, until [Paper.End]; shed hears of each that would be shed.
// Those that wait start, for in a dry run none does.
func NewPaper(server *Server, shed func(Reason), now Time) *Paper {
	server.startAll(now)
	p := &Paper{server: server, shed: shed, probe: server.config.Probe, cores: server.config.Cores}
	server.config.Probe = func() Taken { return p.taken }
	server.probed = false
	return p
}

// Measured tells that a real call of a group ended that took so long.
func (p *Paper) Measured(group uint8, stay time.Duration) {
	quick := p.of(group)
	*quick = shortest(*quick, stay)
	p.last = *quick
	p.ended++
	if p.probe == nil || p.ended < paperProbe {
		return
	}
	taken := p.probe()
	if p.probed {
		each := max(taken.CPU-p.real.CPU, 0) / time.Duration(p.ended)
		if p.cpu > 0 {
			each = p.cpu + (each-p.cpu)/paperFade
		}
		p.cpu = each
	}
	if taken.Cores > 0 {
		p.cores = taken.Cores
	}
	p.real, p.probed, p.ended = taken, true, 0
	p.taken.Cores = p.cores
}

func (p *Paper) of(group uint8) *time.Duration {
	if group >= paperGroups {
		group = 0
	}
	return &p.quick[group]
}

// Arrive makes a call arrive.
func (p *Paper) Arrive(of *Arrival, now Time) {
	p.Advance(now)
	arrival := *of
	// Nobody was told anything.
	arrival.Ask.Aware, arrival.Ask.Credited = false, false
	each := &paperCall{}
	each.call = NewCall()
	each.call.told = func(verdict Verdict) { p.told(each, verdict, p.server.counted) }
	verdict, known := p.server.OnArrive(each.call, &arrival, now)
	if known {
		p.told(each, verdict, now)
	}
	p.run(now)
}

// told takes a verdict.
func (p *Paper) told(each *paperCall, verdict Verdict, now Time) {
	if !verdict.Start {
		p.shed(verdict.Reason)
		return
	}
	takes := *p.of(each.call.group)
	if takes == 0 {
		takes = p.last
	}
	each.computes, each.since = takes, now
	if p.cpu > 0 {
		each.computes = min(p.cpu, takes)
	}
	each.waits = takes - each.computes
	p.ready = append(p.ready, each)
}

// run gives cores to what was started, and lets the machine start more while cores are free.
func (p *Paper) run(now Time) {
	for p.busy < p.cores {
		if len(p.ready) == 0 {
			if len(p.due) >= paperInFlight || !p.server.WantsLook(now) {
				return
			}
			p.server.OnLook(0, now)
			if len(p.ready) == 0 {
				return
			}
		}
		each := p.ready[0]
		p.ready = p.ready[1:]
		p.busy++
		p.taken.CPU += each.computes
		p.taken.Runnable += now.Since(each.since)
		p.push(now.After(each.computes), func(at Time) {
			p.busy--
			if each.waits == 0 || p.isOver {
				p.server.OnEnd(each.call, !p.isOver, at)
				return
			}
			p.push(at.After(each.waits), func(at Time) { p.server.OnEnd(each.call, !p.isOver, at) })
		})
	}
}

// Advance plays what is due by now, in order.
func (p *Paper) Advance(now Time) {
	for {
		timeout := p.server.NextTimeout()
		switch {
		case len(p.due) > 0 && p.due[0].at <= min(now, timeout):
			next := heap.Pop(&p.due).(paperEvent)
			next.do(next.at)
			p.run(next.at)
		case timeout <= now:
			p.server.OnTimeout(timeout)
			p.run(timeout)
		default:
			return
		}
	}
}

// End ends all calls on paper: the machine is told of real ones again.
func (p *Paper) End(now Time) {
	p.Advance(now)
	p.isOver = true
	for front := p.server.desk.front; front != nil; front = p.server.desk.front {
		p.server.OnLeave(front, now)
	}
	for _, each := range p.ready {
		p.server.OnEnd(each.call, false, now)
	}
	p.ready = nil
	for len(p.due) > 0 {
		next := heap.Pop(&p.due).(paperEvent)
		next.do(now)
	}
	p.server.config.Probe, p.server.probed = p.probe, false
	p.server.desk.asked = false
}

func (p *Paper) push(at Time, do func(Time)) {
	p.serial++
	heap.Push(&p.due, paperEvent{at, p.serial, do})
}

// paperEvent is what is due on paper.
type paperEvent struct {
	at     Time
	serial uint64
	do     func(Time)
}

type paperEvents []paperEvent

func (e paperEvents) Len() int { return len(e) }
func (e paperEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e paperEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *paperEvents) Push(x any)   { *e = append(*e, x.(paperEvent)) }
func (e *paperEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

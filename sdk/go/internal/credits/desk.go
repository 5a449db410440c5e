package credits

import "time"

const (
	// lateLook: a look that comes so late found the cores at work for something else than the handlers that were
	// started.
	lateLook = 5 * time.Millisecond
	// idleLook: one behind which what was runnable took so long found no core idle; more likely Go took it from a
	// handler that had run for 10 ms.
	idleLook = time.Millisecond
)

// Call is one that was admitted or refused, until it ends. Its caller makes one with [NewCall] and hands it from
// verb to verb.
type Call struct {
	session  *session
	priority Priority
	// claimed is the priority by which its client goes.
	claimed Priority
	// name gets a session of its own when the call is served, if isNew.
	name  Key
	isNew bool
	// isOver says that its client wants or sends more than it may.
	isOver  bool
	group   uint8
	budget  time.Duration
	arrived Time
	startBy Time
	started Time
	// paused is since when its handler has waited for its client.
	paused Time
	began  Began
	// predicted is the wait that it faced when it came.
	predicted float64
	state     callState
	// before and after are its neighbours in line.
	before, after *Call
	// Turn gets the verdict of a call that waits: its room is one, so nobody waits to send it.
	Turn chan Verdict
	// told gets it instead, if the call is one on paper.
	told func(Verdict)
}

// tell tells a call that waited its verdict.
func (c *Call) tell(verdict Verdict) {
	if c.told != nil {
		c.told(verdict)
		return
	}
	c.Turn <- verdict
}

type callState uint8

const (
	isNew callState = iota
	isWaiting
	isRunning
	isPaused
	isOver
)

// Verdict is what becomes of a call.
type Verdict struct {
	// Start says that its handler shall run now; otherwise Reason says why it never will, and Grant what its
	// refusal tells.
	Start  bool
	Reason Reason
	Grant  Grant
}

// NewCall returns a call that is to arrive.
func NewCall() *Call { return &Call{Turn: make(chan Verdict, 1)} }

// desk is the line of calls that no core has started, and who starts next.
//
// Go does not tell when a handler waits. But it does tell when a core has nothing to do: only then does it look at
// its sockets. So whoever drives the machine asks for a look whenever [Server.WantsLook], by making a socket of its
// own ready, and one more call starts whenever a look comes: when all that was runnable has run, and what had come
// was read. Handlers that compute are therefore as many as there are cores; those that wait are as many as there is
// room for.
type desk struct {
	front, back *Call
	waiting     int
	// asked says that a look was asked for and has not come, askedAt since when no call could start without it.
	asked   bool
	askedAt Time
	// started is the time of handlers that were started since the last one came, lookEvery after how much the next
	// is due, in nanoseconds.
	started, lookEvery float64
}

func (d *desk) push(call *Call) {
	call.state = isWaiting
	call.before, call.after = d.back, nil
	if d.back == nil {
		d.front = call
	} else {
		d.back.after = call
	}
	d.back = call
	d.waiting++
}

func (d *desk) remove(call *Call) {
	if call.before == nil {
		d.front = call.after
	} else {
		call.before.after = call.after
	}
	if call.after == nil {
		d.back = call.before
	} else {
		call.after.before = call.before
	}
	call.before, call.after = nil, nil
	d.waiting--
}

// Arrival is what the machine shall know of a request.
type Arrival struct {
	// Keys name whom it comes from: by its number if it has one, and by its address. A number counts once a call under
	// it was served.
	Keys []Key
	// Ask is what its client says, as far as the server believes it; Claimed is the priority by which the client let the
	// call through. See [Claims.Judge].
	Ask     Ask
	Claimed Priority
	// Group is its method's number; 0 for none.
	Group uint8
}

// OnArrive tells of a request at now. It is to run, or refused, if the second value is true; else it waits, and its
// verdict comes by its channel.
func (s *Server) OnArrive(call *Call, of *Arrival, now Time) (Verdict, bool) {
	s.count(now)
	s.expire(now)
	s.reclaim(now)
	from := s.sessions.enter(of.Keys, s.demand.enter, now)
	if from == nil {
		call.state = isOver
		return Verdict{Reason: ServerFull}, true
	}
	call.session, call.priority, call.claimed, call.group = from, of.Ask.Priority, of.Claimed, of.Group
	call.budget, call.arrived = of.Ask.Budget, now
	arrival := *of
	if call.name, call.isNew = of.Keys[0], from.key != of.Keys[0]; call.isNew {
		// Many may share that session: none of them was told what it is told.
		arrival.Ask.Aware = false
	}
	heard := s.hear(from, &arrival, now)
	call.isOver = heard.isOver
	if s.demand.onCall(from.tenant, call.priority, heard.standsFor, heard.credited, now) {
		s.tick(now)
	}
	s.load.arrived++
	if s.desk.waiting > 0 {
		s.load.waited++
	}
	call.predicted = s.service.predict(s.desk.waiting)
	call.startBy = s.startBy(call)
	reason := Share
	if !heard.held {
		reason = s.decide(call, now)
	}
	if reason != "" {
		return s.refuse(call, reason, now), true
	}
	inFlight := s.inFlight.InFlight()
	if s.desk.waiting == 0 && s.room() > 0 && inFlight >= s.config.Cores && inFlight < s.turns {
		// It will hardly take a core before others have waited.
		s.start(call, now)
		return Verdict{Start: true}, true
	}
	s.desk.push(call)
	s.lookHeld(now)
	return Verdict{}, false
}

// WantsTurn tells whether the caller of a call that waits shall let all that is runnable go first, and then call
// [Server.OnLook]. That is cheaper than a look at the sockets, and enough where a core is free: the call was just
// read.
func (s *Server) WantsTurn(now Time) bool {
	return s.inFlight.InFlight() < s.config.Cores && s.WantsLook(now)
}

// refuse ends a call that never ran.
func (s *Server) refuse(call *Call, reason Reason, now Time) Verdict {
	call.state = isOver
	s.load.refused++
	grant := s.grant(call, now)
	grant.ServerTime = now.Since(call.arrived)
	return Verdict{Reason: reason, Grant: grant}
}

// start lets a call run that is in no line.
func (s *Server) start(call *Call, now Time) {
	call.state, call.started = isRunning, now
	s.desk.started += s.service.work
	if !s.service.known() {
		s.desk.started = s.desk.lookEvery
	}
	s.service.onStarted(now.Since(call.arrived), call.predicted, s.desk.waiting, now)
	call.began = s.inFlight.OnBegin(call.group, now)
	s.lookHeld(now)
}

// expire refuses the calls at the front of the line that are no longer worth starting.
func (s *Server) expire(now Time) {
	for s.desk.front != nil && s.desk.front.startBy < now {
		call := s.desk.front
		s.desk.remove(call)
		if s.desk.waiting == 0 {
			s.service.onEmpty()
		}
		call.tell(s.refuse(call, Deadline, now))
	}
	s.lookHeld(now)
}

// startNext starts the oldest call in line that is worth it; false if there is none.
func (s *Server) startNext(now Time) bool {
	s.expire(now)
	call := s.desk.front
	if call == nil || s.room() == 0 {
		return false
	}
	s.desk.remove(call)
	s.start(call, now)
	call.tell(Verdict{Start: true})
	return true
}

// startAll starts all calls in line.
func (s *Server) startAll(now Time) {
	for s.desk.front != nil {
		call := s.desk.front
		s.desk.remove(call)
		s.start(call, now)
		call.tell(Verdict{Start: true})
	}
}

// WantsLook tells whether the sockets shall be looked at and [Server.OnLook] be called then: when calls wait that may
// start. True once for each look.
func (s *Server) WantsLook(now Time) bool {
	if s.desk.asked || s.desk.waiting == 0 || s.room() == 0 {
		return false
	}
	s.desk.asked, s.desk.askedAt = true, now
	return true
}

// OnLook tells that the sockets were looked at since that was wanted, and that all that was runnable then has run,
// which took so long. One call starts; it asks for the next look when it has begun to run, and not before.
func (s *Server) OnLook(took time.Duration, now Time) {
	s.count(now)
	late := now.Since(s.desk.askedAt)
	s.desk.asked, s.desk.started = false, 0
	// What a look costs, others take as well: as much time is theirs, or a process with much to refuse would only
	// look.
	s.desk.lookEvery = float64(min(max(late, s.config.LookEvery), lateLook))
	inFlight := s.inFlight.InFlight()
	if inFlight >= s.config.Cores && took < idleLook && late < lateLook {
		s.service.onParked(true)
	}
	starts := 1
	if late >= lateLook {
		// So long no core was idle, and not for handlers as short as these: as many as could have run in that time,
		// or as many again, as far as the limits go, for it is not known what those in flight do.
		starts = max(int(float64(late)*float64(s.config.Cores)/max(s.service.work, 1)), inFlight, 1)
	}
	for s.startNext(now) {
		starts--
		inFlight := s.inFlight.InFlight()
		if starts <= 0 && (inFlight < s.config.Cores || inFlight >= s.turns) {
			return
		}
	}
}

// OnEnd tells that the handler of a call ended, and whether it answered; a caller that went away gets no answer.
// What the answer tells.
func (s *Server) OnEnd(call *Call, answered bool, now Time) Grant {
	s.count(now)
	if call.state == isPaused {
		s.resume(call, now)
	}
	if call.state != isRunning {
		return Grant{}
	}
	call.state = isOver
	s.load.ended++
	s.ended++
	if s.desk.asked && s.inFlight.InFlight() <= s.config.Cores {
		s.service.onParked(false)
	}
	stay := now.Since(call.started)
	s.load.staysNs += float64(stay)
	if answered {
		s.inFlight.OnEnd(call.began, stay, now)
		s.service.onServed(stay, now.Since(call.arrived))
	} else {
		s.inFlight.OnGone(now)
	}
	s.lookHeld(now)
	if answered && call.isNew {
		s.sessions.admit(call.name, s.demand.enter, now)
	}
	grant := s.grant(call, now)
	grant.ServerTime = now.Since(call.arrived)
	inFlight := s.inFlight.InFlight()
	switch {
	case s.desk.waiting == 0:
	case inFlight < s.config.Cores:
		if s.desk.asked {
			s.desk.askedAt = now
		}
		// Handlers of a few microseconds follow each other without a look.
		if s.desk.started < s.desk.lookEvery {
			s.startNext(now)
		}
	case inFlight < s.turns:
		s.startNext(now)
	}
	return grant
}

// OnLeave tells that the caller of a call in line went away. False if its verdict was told already: then it is in its
// channel.
func (s *Server) OnLeave(call *Call, now Time) bool {
	if call.state != isWaiting {
		return false
	}
	s.count(now)
	s.desk.remove(call)
	call.state = isOver
	call.session.inServer--
	if s.desk.waiting == 0 {
		s.service.onEmpty()
	}
	s.lookHeld(now)
	return true
}

// OnPause tells that the handler of a call waits for its client. Until [Server.OnResume] or its end it occupies
// nothing, and the time is its client's.
func (s *Server) OnPause(call *Call, now Time) {
	if call.state != isRunning {
		return
	}
	s.count(now)
	call.state, call.paused = isPaused, now
	s.inFlight.OnGone(now)
	s.lookHeld(now)
}

// OnResume tells that the handler of a call goes on that has waited for its client.
func (s *Server) OnResume(call *Call, now Time) {
	if call.state != isPaused {
		return
	}
	s.count(now)
	s.resume(call, now)
}

func (s *Server) resume(call *Call, now Time) {
	call.state = isRunning
	// As if everything had happened that much later: a client that sends slowly is no slow service.
	pause := now.Since(call.paused)
	call.arrived, call.started = call.arrived.After(pause), call.started.After(pause)
	call.began = s.inFlight.OnBegin(call.group, now)
	s.lookHeld(now)
}

// NextTimeout returns when to call [Server.OnTimeout] if nothing else happens.
func (s *Server) NextTimeout() Time {
	if s.desk.front == nil {
		return Never
	}
	return s.desk.front.startBy.After(1)
}

// OnTimeout refuses what is no longer worth starting.
func (s *Server) OnTimeout(now Time) {
	s.count(now)
	s.expire(now)
}

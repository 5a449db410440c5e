package credits

import (
	"math"
	"time"
)

const (
	// leaseGaps is the number of gaps between its calls for which a client may act on what it was told: of calls at
	// random one gap in 3,000 is longer.
	leaseGaps = 8.0
	// leaseMost is the longest lease: what a client that calls this seldom does matters to nobody.
	leaseMost = time.Minute
	// leaseObjectives is the shortest lease in objectives: calls under way when a grant is made end before it does.
	leaseObjectives = 8.0
	// blind calls may wait for each core before any service time is known.
	blind = 16
	// stepBack is by how much calls of the marginal priority or tenant wait less than the others at most, as a
	// share of the wait.
	stepBack = 0.5
	// One that may have less than farOver of what it sends does not do as it was told.
	farOver = 0.5
	// servedLeast is the least share of the capacity that is left for served calls, however much the refusals seem to
	// take.
	servedLeast = 0.1
	// steering is by how much more the chance is at an empty line than at a full one, for clients that come back
	// before it changes. Twice as much overshoots.
	steering = 1.0
)

// Config is what a server may be told; the zero value of a field is its default.
type Config struct {
	// Cores run handlers.
	Cores int
	// Objective is how long a call may take from its caller's view, without what its handler waits for. If absent,
	// it is Multiple times what it takes when nothing waits: 10, the choice of Breakwater's authors.
	Objective time.Duration
	Multiple  float64
	// Sessions there are at most; beyond it calls are shed.
	Sessions int
	// Waiting calls there are at most; beyond it calls are shed.
	Waiting int
	// Lease is after what silence a session is forgotten.
	Lease time.Duration
	// Tenants told apart at most; further ones share the last place. Weights are of those that do not weigh 1.
	Tenants int
	Weights map[uint32]float64
	// SessionShares is how many times its max-min share of its tenant's calls a single session is let take while others
	// are refused, at least 1: of priorities that are let through for sure; of the others a tenth of what that is
	// beyond 1.
	SessionShares float64
	// LookEvery is after how much time of handlers the sockets are looked at before the next one starts.
	LookEvery time.Duration
	// Instance is the number of this server among all that its callers may meet, from 1 to 2^53 - 1; 0 for none.
	Instance uint64
	// Probe returns what the process has taken of its cores so far; nil where nobody knows.
	Probe func() Taken
}

// Taken is what a process has taken of its cores.
type Taken struct {
	// Cores is how many it may use now; 0 if that does not change.
	Cores int
	// CPU is its CPU time; 0 where nobody knows.
	CPU time.Duration
	// Runnable is the time for which its goroutines were runnable and did not run, summed over them.
	Runnable time.Duration
}

func (c Config) withDefaults() Config {
	fill(&c.Cores, 1)
	fill(&c.Multiple, 10)
	// 100,000 sessions are some 20 MB.
	fill(&c.Sessions, 100_000)
	// Far above what is ever let wait; a request may hold a few KiB while it does.
	fill(&c.Waiting, 16_384)
	// Longer than any keep-alive pause of a busy client, short enough that a dead one is soon forgotten.
	fill(&c.Lease, 10*time.Second)
	fill(&c.Tenants, 256)
	// Chance makes a fair client look like two at times, hardly ever like three.
	fill(&c.SessionShares, 2)
	// Sooner would cost more system calls than handlers of a few microseconds are worth, later would delay refusals.
	fill(&c.LookEvery, 200*time.Microsecond)
	return c
}

func fill[T int | float64 | time.Duration](field *T, otherwise T) {
	if *field <= 0 {
		*field = otherwise
	}
}

// Server is the machine beside the handlers: it admits or sheds calls, says when each starts, and tells all clients
// what to send. O(1) for each call, but for one in 64, which takes O(t log t) for t tenants.
//
// Calls wait in one line, in order of arrival. How one leaves it is written in desk.go.
type Server struct {
	config   Config
	sessions *sessions
	demand   *demand
	service  *service
	surplus  surplus
	inFlight *InFlight
	// coreLimit is how many may be in flight so that none waits for a core longer than it may, whatever it waits
	// for besides.
	coreLimit int
	// turns is how many may start without waiting until the cores have nothing else to do.
	turns int
	desk  desk
	// Whether calls wait since enough are in flight, and whether that is since the learnt limit is reached.
	held, heldByLimit bool
	// idleNs is the time since the last tick in which less was in flight than keeps busy what is short.
	idleNs  float64
	counted Time
	load    load
	// What the process had taken when it was last asked.
	taken  Taken
	probed bool
	// Handlers that ended since the last tick.
	ended float64
	// In which stretch of calls active sessions are being counted, calls in it, and when it ends although few came.
	stretch      uint64
	stretchCalls int
	stretchEnds  Time
	// When it began, and how long the one before took.
	stretchBegan Time
	stretchNs    float64
	// Computed at each tick: the wait up to which calls are admitted, that up to which they are started, and calls
	// a second that are let through; 0 while all are.
	admittedWait, longestWait, supply float64
}

// NewServer knows nobody and nothing.
func NewServer(config Config, now Time) *Server {
	config = config.withDefaults()
	return &Server{
		config: config, sessions: newSessions(config.Sessions, config.Lease), demand: newDemand(&config, now),
		service: newService(&config, config.Cores), inFlight: newInFlight(config.Cores, now),
		coreLimit: math.MaxInt, turns: config.Cores,
		counted: now, stretch: 1, stretchEnds: Never, stretchBegan: now, stretchNs: math.MaxFloat64,
		admittedWait: math.MaxFloat64, longestWait: math.MaxFloat64,
	}
}

// Gauges are what the server measures and decides, for display.
type Gauges struct {
	// CapacityPerS is the calls a second that can be served; 0 while unknown.
	CapacityPerS float64
	// SupplyPerS is the calls a second that are let through at most; 0 while nobody is held back.
	SupplyPerS float64
	// Chance is that of a call of default priority of tenant 0 to be let through.
	Chance float64
	// Work is what a call takes of a core.
	Work time.Duration
	// LongestWait is how long a call may wait for its start.
	LongestWait time.Duration
	// QueueingDelay is how long the oldest call in line has waited.
	QueueingDelay time.Duration
	Waiting       int
	InFlight      int
	// InFlightLimit is the learnt one; 0 while nothing is known to hold calls up. CoreLimit is that of calls that
	// the cores can serve in time; 0 while unknown.
	InFlightLimit int
	CoreLimit     int
	Turns         int
	Sessions      int
	// Credits are those that sessions hold.
	Credits int
}

// Gauges returns what the server measures and decides.
func (s *Server) Gauges(now Time) Gauges {
	gauges := Gauges{
		CapacityPerS: s.service.capacity * 1e9, Work: time.Duration(s.service.work), Waiting: s.desk.waiting,
		InFlight: s.inFlight.InFlight(), Sessions: len(s.sessions.byKey), Chance: 1, Turns: s.turns, Credits: s.sessions.out,
		QueueingDelay: s.queueingDelay(now),
	}
	if s.longestWait < math.MaxInt64 {
		gauges.LongestWait = time.Duration(s.longestWait)
	}
	if s.demand.throttled {
		gauges.SupplyPerS = s.supply
		gauges.Chance = s.demand.levelOf(0).chance(Default)
	}
	if limit, known := s.inFlight.Limit(); known {
		gauges.InFlightLimit = limit
	}
	if s.coreLimit < math.MaxInt {
		gauges.CoreLimit = s.coreLimit
	}
	return gauges
}

// queueingDelay returns how long the oldest call in line has waited.
func (s *Server) queueingDelay(now Time) time.Duration {
	if s.desk.front == nil {
		return 0
	}
	return now.Since(s.desk.front.arrived)
}

// count counts what the time since the last event was.
func (s *Server) count(now Time) {
	ns := float64(now.Since(s.counted))
	s.counted = max(s.counted, now)
	if s.desk.waiting > 0 {
		if s.heldByLimit {
			s.load.heldNs += ns
		}
		return
	}
	inFlight := float64(s.inFlight.InFlight())
	s.load.idleNs += ns * max(1-inFlight/s.service.cores, 0)
	s.idleNs += ns * max(1-inFlight/s.service.busyAt(), 0)
}

// room returns how many more calls may be started as far as limits go.
func (s *Server) room() int {
	return min(s.inFlight.Room(), max(s.coreLimit-s.inFlight.InFlight(), 0))
}

// lookHeld looks whether calls are held back after either changed: those that wait, or those in flight.
func (s *Server) lookHeld(now Time) {
	held := s.desk.waiting > 0 && s.room() == 0
	if held || s.held {
		s.inFlight.OnHeld(held, now)
	}
	s.held = held
	s.heldByLimit = held && s.inFlight.Room() == 0
}

// tick computes anew what follows from what happened.
func (s *Server) tick(now Time) {
	elapsed := float64(max(now.Since(s.demand.since), 1))
	s.surplus.onTick(min(max(s.idleNs/elapsed, 0), 1), s.demand.throttled)
	s.idleNs = 0
	s.load.timeNs += elapsed
	s.probe()
	s.ended = 0
	s.service.onLoad(&s.load, s.inFlight.quickNs)
	s.coreLimit, s.turns = s.service.coreLimit(), s.config.Cores
	if s.service.waits() {
		s.turns = s.coreLimit
		if s.service.coresShort {
			s.inFlight.Forget()
		}
	}
	if s.service.known() {
		s.longestWait = s.service.longestWait()
		s.admittedWait = s.service.admittedWait()
	}
	room := s.service.room()
	factor := s.surplus.factor(room, s.service.refusalCost())
	supply := 0.0
	if s.load.isFull() {
		supply = s.service.capacity * 1e9 * factor
	}
	s.supply = supply
	refusals := s.load.refused * s.service.message / max(s.load.timeNs*s.service.cores, 1)
	s.load.fade()
	s.demand.tick(supply, max(1-refusals, servedLeast), room, now)
}

// probe asks what the process has taken since it last did.
func (s *Server) probe() {
	if s.config.Probe == nil {
		return
	}
	taken := s.config.Probe()
	if taken.Cores > 0 && taken.Cores != s.config.Cores {
		s.config.Cores = taken.Cores
		s.service.cores, s.inFlight.least = float64(taken.Cores), float64(taken.Cores)
	}
	if s.probed {
		s.load.cpuNs += float64(max(taken.CPU-s.taken.CPU, 0))
		s.load.runnableNs += float64(max(taken.Runnable-s.taken.Runnable, 0))
		s.load.probedEnded += s.ended
	}
	s.taken, s.probed = taken, true
}

// unloaded returns what a call of the group takes from end to end when nothing holds it up.
func (s *Server) unloaded(group uint8) float64 {
	// Calls that nobody tells apart are taken for what all calls are.
	if quick := s.inFlight.Quick(group); group != 0 && quick > 0 {
		return float64(quick) + s.service.roundTrip
	}
	return s.service.unloaded()
}

// isIdle tells whether the next call that comes is started at once.
func (s *Server) isIdle() bool {
	busy := max(float64(s.config.Cores), s.service.busyAt())
	return s.desk.waiting == 0 && s.room() > 0 && float64(s.inFlight.InFlight()) < busy
}

// limit returns the wait up to which a call is admitted: less for those that are let through by chance, so that those
// which are let through for sure find room.
func (s *Server) limit(call *Call) float64 {
	if call.isOver {
		return s.admittedWait * (1 - stepBack)
	}
	if s.demand.throttled && s.demand.tenants[call.session.tenant].level.chance(call.priority) < 1 {
		return s.admittedWait * (1 - stepBack*min(s.demand.preferred, 1))
	}
	return s.admittedWait
}

// startBy returns when the call is no longer worth starting.
func (s *Server) startBy(call *Call) Time {
	wait := s.longestWait
	if call.budget >= 0 {
		left := float64(call.budget)
		if !s.isIdle() {
			left -= s.unloaded(call.group)
		}
		wait = min(wait, left)
	}
	return call.arrived.After(wholeNs(wait))
}

// decide returns why a call is refused that was just read; "" if it is admitted.
func (s *Server) decide(call *Call, now Time) Reason {
	// An idle server refuses nobody for what it takes others to be served: else nothing might ever teach it better.
	late := call.budget >= 0 && call.predicted+s.unloaded(call.group) > float64(call.budget)
	if late && (!s.isIdle() || call.budget == 0) {
		return Deadline
	}
	if s.desk.waiting >= s.config.Waiting {
		return ServerFull
	}
	if !s.service.known() {
		if s.desk.waiting >= blind*s.config.Cores {
			return Delay
		}
		return ""
	}
	isLong := call.predicted > s.limit(call) ||
		float64(s.queueingDelay(now)) > s.longestWait
	if isLong && s.desk.waiting > 0 {
		return Delay
	}
	return ""
}

// heardCall is what a call says about its client.
type heardCall struct {
	// standsFor is the number of wanted calls for which it stands.
	standsFor float64
	// held says that it is held back since its client does not do it itself, isOver that the client wants or sends more
	// than it may.
	held, isOver bool
	// credited says that it came with a credit that its client has.
	credited bool
}

// hear tells of a call that was read at now.
func (s *Server) hear(of *session, arrival *Arrival, now Time) heardCall {
	if s.stretchCalls >= stretchCalls || now >= s.stretchEnds {
		s.beginStretch(now)
	}
	ask := &arrival.Ask
	// A credit is for one call: beyond those that it has, a session's calls are not credited whatever they say.
	credited := ask.Aware && ask.Credited && of.inServer < of.credits(now)
	of.inServer++
	told := 1.0
	if ask.Aware && !credited {
		told = of.chance(arrival.Claimed, now)
	}
	if of.stretch != s.stretch {
		of.stretch, of.calls = s.stretch, 0
		if s.demand.throttled {
			// One that is heard less than once in a stretch stands for those that are not heard in it.
			gap := s.stretchNs * told
			if of.gapNs > 0 {
				gap = min(gap, of.gapNs)
			}
			s.demand.tenants[of.tenant].sizes.add(gap)
		}
		s.service.onRoundTrip(ask.RoundTrip)
	}
	of.hear(told, now)
	heard := heardCall{standsFor: 1 / told}
	if s.demand.throttled {
		heard = s.hearThrottled(of, arrival, told, credited)
	}
	heard.credited = credited
	if !heard.held {
		of.calls++
		s.stretchCalls++
	}
	return heard
}

func (s *Server) hearThrottled(of *session, arrival *Arrival, told float64, credited bool) heardCall {
	tenant, priority := &s.demand.tenants[of.tenant], arrival.Ask.Priority
	if arrival.Ask.Aware && of.capped && of.calls >= s.demand.mostCalls(of.tenant, priority) {
		// It does not do as it was told. What is held back does not count: nobody else shall pay for it.
		s.demand.heldTick += 1 / told
		return heardCall{held: true, isOver: true}
	}
	chance := tenant.level.chance(priority)
	most := s.cap(of, priority)
	isOver := most < chance
	if arrival.Ask.Aware {
		// One that is capped counts as if it wanted no more than it may have.
		counts := told
		if isOver {
			counts = max(told, chance)
		}
		// What its client could not know of its priority is done by the server in its stead.
		held := arrival.Claimed != priority && !credited && !passesBy(min(chance, most)/told, &of.carry)
		return heardCall{standsFor: 1 / counts, held: held, isOver: isOver || most < farOver*told}
	}
	// Kept to the level by the server in its stead.
	standsFor := 1.0
	if isOver {
		standsFor = most / chance
	}
	s.demand.heldTick += 1 - standsFor
	held := !passesBy(min(chance, most), &of.carry)
	return heardCall{standsFor: standsFor, held: held, isOver: isOver}
}

// cap returns the chance at which a session has as much as one may have; above 1 if it has less anyway. Only while
// somebody is held back.
func (s *Server) cap(of *session, priority Priority) float64 {
	if of.gapNs <= 0 {
		return math.MaxFloat64
	}
	return s.demand.tenants[of.tenant].most(priority) * of.gapNs
}

// beginStretch begins another stretch of calls, over which active sessions are counted, after so many or when they
// should long have come.
func (s *Server) beginStretch(now Time) {
	s.stretchCalls = 0
	s.stretch++
	s.stretchNs = float64(max(now.Since(s.stretchBegan), 1))
	s.stretchBegan = now
	s.demand.onStretch()
	s.stretchEnds = Never
	if s.demand.throttled {
		s.stretchEnds = now.After(wholeNs(2e9 * stretchCalls / max(s.supply, 1)))
	}
}

// grant returns what the client of a call is told at its end, for as long as a few of its calls take to come.
func (s *Server) grant(call *Call, now Time) Grant {
	of, priority := call.session, call.priority
	wanted := of.inServer
	of.inServer = max(of.inServer-1, 0)
	level, capped := s.demand.tenants[of.tenant].level, false
	if s.demand.throttled {
		if most := s.cap(of, priority); most < level.chance(priority) {
			level, capped = min(LevelAt(priority, most), level), true
		}
	}
	// Calls that are not let through are not heard: a lower chance means longer gaps.
	chance := level.chance(priority)
	gap := of.gapNs / chance
	if gap > 0 && s.demand.throttled {
		level = s.steer(level, gap)
	}
	// One that is so fast that it always has something in the server may go on having as much there.
	if !s.demand.throttled || capped || gap <= 0 || gap >= s.service.objective() {
		wanted = 0
	}
	lease := leaseObjectives * s.service.objective()
	if wanted == 0 {
		if gap <= 0 {
			// The time between two calls of a session, if all were alike.
			gap = 1e9 * float64(len(s.sessions.byKey)) / max(s.supply, 1) / chance
		}
		lease = max(leaseGaps*gap, lease)
	}
	if priority != call.claimed {
		level = level.inClaims(priority, call.claimed)
	}
	span := min(max(wholeNs(lease), time.Microsecond), leaseMost)
	of.level, of.capped, of.leaseUntil = level, capped, now.After(span)
	grant := Grant{Level: level, Lease: span, Instance: s.config.Instance}
	if wanted > 0 {
		grant.Window = uint32(s.grantCredits(of, wanted, of.leaseUntil))
	}
	return grant
}

// grantCredits returns as many of the wanted credits as are free for the session.
func (s *Server) grantCredits(to *session, wanted int, until Time) int {
	tenant := &s.demand.tenants[to.tenant]
	underWay := (s.longestWait + s.service.unloaded()) / 1e9
	most := min(creditedMost*min(tenant.share, s.supply)*underWay, 1e9)
	told, more := s.sessions.grant(to, wanted, max(int(most)-tenant.credits, 0), until)
	tenant.credits += more
	return told
}

// reclaim takes back the credits of leases that have ended, and forgets silent sessions.
func (s *Server) reclaim(now Time) {
	s.sessions.takeBack(now, func(of *session, credits int) { s.demand.tenants[of.tenant].credits -= credits })
	s.sessions.expire(now, func(of *session) {
		s.demand.tenants[of.tenant].credits -= s.sessions.discharge(of)
		s.demand.leave(of.tenant)
	})
}

// steer returns the level for one that comes back in gap: lower while the line is longer than half of what it may be,
// higher while it is shorter. The less so the later it comes, for the line will be another one then.
func (s *Server) steer(level Level, gap float64) Level {
	reach := min(s.admittedWait/gap, 1)
	fill := min(s.service.predict(s.desk.waiting)/s.admittedWait, 1)
	return level.times(1 + steering*reach*(0.5-fill))
}

// wholeNs is a span of nanoseconds, an hour at most.
func wholeNs(ns float64) time.Duration {
	return time.Duration(min(max(ns, 0), float64(time.Hour)))
}

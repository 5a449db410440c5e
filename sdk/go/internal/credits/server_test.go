package credits

import (
	"net/netip"
	"testing"
	"time"
)

// desktop is a server whose calls are driven by hand.
type desktop struct {
	*Server
	now Time
}

func newDesktop(config Config) *desktop { return &desktop{Server: NewServer(config, 0)} }

func (d *desktop) pass(span time.Duration) { d.now = d.now.After(span) }

// arrive makes a call arrive with so much time left; negative for no deadline.
func (d *desktop) arrive(name uint64, budget time.Duration) (*Call, Verdict, bool) {
	call := NewCall()
	ask := Ask{Aware: true, Priority: Default, Budget: budget}
	keys := []Key{ClientKeyOf(name), AddressKey(netip.Addr{})}
	verdict, known := d.OnArrive(call, &Arrival{Keys: keys, Ask: ask, Claimed: Default, Group: 1}, d.now)
	return call, verdict, known
}

// serve makes a call arrive and run for so long, with nothing beside it.
func (d *desktop) serve(t *testing.T, span time.Duration) {
	t.Helper()
	call, _, known := d.arrive(1, -1)
	if known || !d.WantsTurn(d.now) {
		t.Fatal("an idle server lets what is runnable go first")
	}
	d.OnLook(0, d.now)
	if verdict := <-call.Turn; !verdict.Start {
		t.Fatalf("%+v", verdict)
	}
	d.pass(span)
	d.OnEnd(call, true, d.now)
}

// verdictOf is what a call was told, if it was.
func verdictOf(call *Call) (Verdict, bool) {
	select {
	case verdict := <-call.Turn:
		return verdict, true
	default:
		return Verdict{}, false
	}
}

func TestCallsStartOneByOneInTheOrderOfTheirArrival(t *testing.T) {
	d := newDesktop(Config{})
	var calls []*Call
	for range 3 {
		call, _, _ := d.arrive(1, -1)
		calls = append(calls, call)
	}
	if !d.WantsLook(d.now) || d.WantsLook(d.now) {
		t.Error("one look is wanted")
	}
	for at := range calls {
		d.OnLook(0, d.now)
		for other, call := range calls[at:] {
			if verdict, told := verdictOf(call); told != (other == 0) || told && !verdict.Start {
				t.Errorf("at turn %d call %d was told %v %+v", at, at+other, told, verdict)
			}
		}
		d.pass(ms)
		d.OnEnd(calls[at], true, d.now)
		if wants := d.WantsLook(d.now); wants != (at < 2) {
			t.Errorf("after call %d a look is wanted: %v", at, wants)
		}
	}
}

func TestOneThatLeavesTheLineIsPassedOver(t *testing.T) {
	d := newDesktop(Config{})
	first, _, _ := d.arrive(1, -1)
	second, _, _ := d.arrive(1, -1)
	if !d.OnLeave(first, d.now) || d.OnLeave(first, d.now) {
		t.Error("it leaves once")
	}
	d.OnLook(0, d.now)
	if verdict, told := verdictOf(second); !told || !verdict.Start {
		t.Errorf("%v %+v", told, verdict)
	}
	if d.OnLeave(second, d.now) {
		t.Error("its turn has come")
	}
	d.OnEnd(second, false, d.now)
	if gauges := d.Gauges(d.now); gauges.Waiting != 0 || gauges.InFlight != 0 {
		t.Errorf("%+v", gauges)
	}
}

func TestACallThatWouldBeLateIsRefusedBeforeItRunsUnlessNothingIsInItsWay(t *testing.T) {
	d := newDesktop(Config{})
	for range 100 {
		d.serve(t, 20*ms)
		d.pass(5 * ms)
	}
	if call, verdict, known := d.arrive(1, 10*ms); known {
		t.Errorf("an idle server refused by what it took others: %+v", verdict)
	} else {
		d.OnLook(0, d.now)
		<-call.Turn
	}
	if _, verdict, _ := d.arrive(1, 10*ms); verdict.Reason != Deadline {
		t.Errorf("%+v", verdict)
	}
	if _, verdict, _ := d.arrive(1, 0); verdict.Reason != Deadline {
		t.Errorf("without any time left: %+v", verdict)
	}
}

func TestOneThatWaitedTooLongIsToldWhenItsTimeIsOver(t *testing.T) {
	d := newDesktop(Config{})
	for range 100 {
		d.serve(t, ms)
		d.pass(ms)
	}
	running, _, _ := d.arrive(1, -1)
	d.OnLook(0, d.now)
	<-running.Turn
	late, _, _ := d.arrive(1, 5*ms)
	d.now = d.NextTimeout()
	d.OnTimeout(d.now)
	verdict, told := verdictOf(late)
	if !told || verdict.Reason != Deadline || d.now.Since(late.arrived) > 5*ms {
		t.Errorf("%v %+v after %v", told, verdict, d.now.Since(late.arrived))
	}
	if verdict.Grant.Lease <= 0 {
		t.Error("a refusal tells a grant as well")
	}
}

func TestTheLineIsBounded(t *testing.T) {
	d := newDesktop(Config{Waiting: 10, Objective: time.Hour})
	for range 100 {
		d.serve(t, ms)
	}
	refused := 0
	for range 100 {
		if _, verdict, known := d.arrive(1, -1); known && verdict.Reason == ServerFull {
			refused++
		}
	}
	if waiting := d.Gauges(d.now).Waiting; waiting != 10 || refused != 90 {
		t.Errorf("%d wait, %d were refused", waiting, refused)
	}
}

func TestNamesLeaveRoomForAddresses(t *testing.T) {
	s := newSessions(16, time.Second)
	tenant := func(uint32) int { return 0 }
	for name := range uint64(1000) {
		s.admit(ClientKeyOf(name), tenant, 0)
		session := s.enter([]Key{ClientKeyOf(name), AddressKey(netip.Addr{})}, tenant, 0)
		if session.key.isNamed != (name < 14) {
			t.Fatalf("name %d: %+v", name, session.key)
		}
	}
	honest := AddressKey(netip.MustParseAddr("10.0.0.1"))
	if session := s.enter([]Key{ClientKeyOf(5000), honest}, tenant, 0); session == nil || session.key != honest {
		t.Errorf("%+v", session)
	}
	if session := s.enter([]Key{AddressKey(netip.MustParseAddr("10.0.0.2"))}, tenant, 0); session != nil {
		t.Error("the table is full")
	}
	gone := 0
	for now := at(1000); len(s.byKey) > 0 && now < at(100_000); now = now.After(ms) {
		s.expire(now, func(*session) { gone++ })
	}
	if len(s.byKey) != 0 || len(s.looks)-s.first != 0 || gone != 16 {
		t.Errorf("%d silent sessions stay, %d went", len(s.byKey), gone)
	}
}

func TestANameThatWasNotServedIsItsAddress(t *testing.T) {
	d := newDesktop(Config{})
	calls := make([]*Call, 4)
	for at := range calls {
		calls[at], _, _ = d.arrive(uint64(at%3), -1)
	}
	if gauges := d.Gauges(d.now); gauges.Sessions != 1 {
		t.Errorf("%d sessions of names that nobody was served under", gauges.Sessions)
	}
	for range calls[:2] {
		d.OnLook(0, d.now)
	}
	d.OnEnd(calls[0], true, d.now)
	d.OnLook(0, d.now)
	// Whoever went away was not answered.
	d.OnEnd(calls[1], false, d.now)
	if gauges := d.Gauges(d.now); gauges.Sessions != 2 {
		t.Errorf("%d sessions", gauges.Sessions)
	}
	served, _, _ := d.arrive(0, -1)
	other, _, _ := d.arrive(1, -1)
	if !served.session.key.isNamed || other.session.key.isNamed {
		t.Errorf("%+v, %+v", served.session.key, other.session.key)
	}
}

func TestWhatWaitsForItsClientIsNotInFlight(t *testing.T) {
	d := newDesktop(Config{})
	call, _, _ := d.arrive(1, -1)
	d.OnLook(0, d.now)
	<-call.Turn
	d.OnPause(call, d.now)
	if d.Gauges(d.now).InFlight != 0 {
		t.Error("it is in flight")
	}
	d.pass(time.Minute)
	d.OnResume(call, d.now)
	d.pass(ms)
	grant := d.OnEnd(call, true, d.now)
	if grant.ServerTime != ms || d.Gauges(d.now).InFlight != 0 {
		t.Errorf("%+v", grant)
	}
}

func TestFewerCreditsFreeTheRestOnlyWhenTheOlderLeaseEnds(t *testing.T) {
	var l ledger
	of, freed := &session{}, 0
	back := func(_ *session, credits int) { freed += credits }
	if told, more := l.grant(of, 5, 10, at(100)); told != 5 || more != 5 {
		t.Errorf("%d, %d", told, more)
	}
	if told, more := l.grant(of, 2, 5, at(150)); told != 2 || more != 0 || l.out != 5 {
		t.Errorf("%d, %d, %d out", told, more, l.out)
	}
	l.takeBack(at(99), back)
	if freed != 0 || of.credits(at(99)) != 5 {
		t.Errorf("%d freed", freed)
	}
	l.takeBack(at(100), back)
	if freed != 3 || l.out != 2 || of.credits(at(149)) != 2 {
		t.Errorf("%d freed, %d out", freed, l.out)
	}
	l.takeBack(at(150), back)
	if freed != 5 || l.out != 0 || l.oldest != nil || l.newest != nil {
		t.Errorf("%d freed, %d out", freed, l.out)
	}
}

func TestMoreCreditsMakeTheOlderLeasesPartOfTheNewOne(t *testing.T) {
	var l ledger
	of, other, freed := &session{}, &session{}, 0
	back := func(_ *session, credits int) { freed += credits }
	l.grant(of, 3, 10, at(100))
	l.grant(other, 1, 10, at(120))
	l.grant(of, 2, 10, at(150))
	if told, more := l.grant(of, 9, 1, at(85)); told != 4 || more != 1 {
		t.Errorf("%d, %d: no more than is free", told, more)
	}
	l.takeBack(at(149), back)
	if freed != 1 || of.credits(at(149)) != 4 {
		t.Errorf("%d freed", freed)
	}
	if l.discharge(of) != 4 || l.out != 0 || l.oldest != nil {
		t.Errorf("%d out", l.out)
	}
}

func TestSessionsShareByMaxMin(t *testing.T) {
	level := func(share float64, groups ...[2]float64) float64 {
		var all sizes
		for _, group := range groups {
			for range int(group[0]) {
				all.add(1 / group[1])
			}
		}
		return all.waterLevel(share)
	}
	near := func(level, expected float64) {
		t.Helper()
		if level < 0.94*expected || level > 1.06*expected {
			t.Errorf("%g, not %g", level, expected)
		}
	}
	near(level(1e-3, [2]float64{1, 1.3e-3}, [2]float64{20, 0.02e-3}), 0.6e-3)
	near(level(1e-3, [2]float64{1, 1.3e-3}, [2]float64{20, 0.05e-3}), 1e-3/21)
	near(level(5e-3, [2]float64{10, 1e-3}), 0.5e-3)
	near(level(6e-3, [2]float64{1, 5e-3}, [2]float64{1, 2e-3}, [2]float64{1000, 1e-6}), 3e-3)
	if most := level(1e-3, [2]float64{20, 0.04e-3}); most < 1e300 {
		t.Errorf("all have what they want, and yet %g", most)
	}
	var all sizes
	for _, gap := range []float64{0, 0.5, 1, 1e15, 1e300} {
		all.add(gap)
	}
	if all[0] != 3 || all[sizeBuckets-1] != 2 {
		t.Error("the least and the greatest have a bucket")
	}
}

func TestPlacesOfTenantsWithoutSessionsAreUsedAgain(t *testing.T) {
	d := newDemand(&Config{Tenants: 3, Weights: map[uint32]float64{1: 2}}, 0)
	one, two, three := d.enter(1), d.enter(2), d.enter(3)
	if again := d.enter(2); again != two || d.enter(4) != three {
		t.Error("the last place is for those that find none")
	}
	for _, place := range []int{one, two, two} {
		d.leave(place)
	}
	if d.enter(5) != two || d.tenants[two].name != 5 || d.enter(1) != one {
		t.Errorf("%+v", d.tenants)
	}
}

func TestAClaimedPriorityIsToldTheChanceOfTheTrueOneAtLeast(t *testing.T) {
	level := LevelAt(0, 0.5)
	if told := level.inClaims(0, 128); told != LevelAt(128, 0.5) {
		t.Errorf("%d", told)
	}
	level = LevelAt(128, 0.5)
	if told := level.inClaims(255, 128); told != level {
		t.Errorf("others of its calls may truly be that: %d", told)
	}
	if Open.inClaims(0, 255) != Open {
		t.Error("everything passes")
	}
}

func TestAClientThatWorksForSeveralTenantsHasASessionForEach(t *testing.T) {
	s := newSessions(16, time.Second)
	tenant := func(name uint32) int { return int(name) }
	address := AddressKey(netip.Addr{})
	first, second := s.enter([]Key{address.For(1)}, tenant, 0), s.enter([]Key{address.For(2)}, tenant, 0)
	if first == second || first.tenant != 1 || second.tenant != 2 || s.enter([]Key{address.For(1)}, tenant, 0) != first {
		t.Errorf("%+v, %+v", first, second)
	}
}

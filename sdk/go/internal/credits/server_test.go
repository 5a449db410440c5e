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
	verdict, known := d.OnArrive(call, &Arrival{Keys: keys, Ask: ask, Group: 1}, d.now)
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

func TestInventedNamesLeaveRoomForAddresses(t *testing.T) {
	s := newSessions(16, time.Second)
	tenant := func() int { return 0 }
	for name := range uint64(1000) {
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
	for now := at(1000); len(s.byKey) > 0 && now < at(100_000); now = now.After(ms) {
		s.expire(now)
	}
	if len(s.byKey) != 0 || len(s.looks)-s.first != 0 {
		t.Errorf("%d silent sessions stay", len(s.byKey))
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

package credits

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// paperShare is the share of calls that would be shed at rate calls a second on one core, after two seconds of
// learning. Each takes a millisecond of a core and waits besides.
func paperShare(rate float64, waits time.Duration) float64 {
	random := rand.New(rand.NewPCG(3, 5))
	var really Taken
	server := NewServer(Config{Probe: func() Taken { return really }}, at(1000))
	calls, sheds, isLearnt := 0, 0, false
	paper := NewPaper(server, func(Reason) {
		if isLearnt {
			sheds++
		}
	}, at(1000))
	for now := at(1000); now < at(13_000); now = now.After(time.Duration(random.ExpFloat64() / rate * 1e9)) {
		isLearnt = now > at(3000)
		// Real calls go on: their times are measured whatever would have been shed.
		really.CPU += ms
		paper.Measured(1, ms+waits)
		from := AddressKey(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(20))}))
		paper.Arrive(&Arrival{Keys: []Key{from}, Ask: Unaware, Claimed: Default, Group: 1}, now)
		if isLearnt {
			calls++
		}
	}
	return float64(sheds) / float64(calls)
}

func TestOnPaperWhatFitsIsNotShedAndWhatDoesNotIs(t *testing.T) {
	for _, waits := range []time.Duration{0, 20 * ms} {
		for _, test := range []struct{ rate, least, most float64 }{
			{500, 0, 0.005}, {2000, 0.47, 0.56}, {10_000, 0.88, 0.92},
		} {
			if share := paperShare(test.rate, waits); share < test.least || share > test.most {
				t.Errorf("%v calls a second that wait %v: %.4f would be shed", test.rate, waits, share)
			}
		}
	}
}

func TestWhenADryRunEndsTheMachineHasNoCalls(t *testing.T) {
	server := NewServer(Config{Cores: 2}, 0)
	call, _ := NewCall(), 0
	arrival := Arrival{Keys: []Key{AddressKey(netip.Addr{})}, Ask: Unaware, Claimed: Default}
	if _, known := server.OnArrive(call, &arrival, at(1)); known {
		t.Fatal("it waits for its turn")
	}
	paper := NewPaper(server, func(Reason) {}, at(1))
	if verdict, told := verdictOf(call); !told || !verdict.Start {
		t.Error("what waited starts")
	}
	paper.Measured(0, 6*ms)
	for quarter := range 8 {
		paper.Arrive(&arrival, at(1).After(time.Duration(quarter)*ms/4))
	}
	if gauges := server.Gauges(at(3)); gauges.Waiting == 0 || gauges.InFlight == 0 {
		t.Errorf("%+v", gauges)
	}
	paper.End(at(3))
	server.OnEnd(call, true, at(4))
	if gauges := server.Gauges(at(4)); gauges.Waiting != 0 || gauges.InFlight != 0 {
		t.Errorf("%+v", gauges)
	}
	for key, each := range server.sessions.byKey {
		if each.inServer != 0 {
			t.Errorf("%+v: %d in the server", key, each.inServer)
		}
	}
	next := NewCall()
	server.OnArrive(next, &arrival, at(5))
	if !server.WantsTurn(at(5)) {
		t.Error("real calls take their turns again")
	}
}

func TestALineOnPaperIsBounded(t *testing.T) {
	server := NewServer(Config{Waiting: 2}, 0)
	sheds := map[Reason]int{}
	paper := NewPaper(server, func(reason Reason) { sheds[reason]++ }, 0)
	paper.Measured(0, ms)
	for range 5 {
		paper.Arrive(&Arrival{Keys: []Key{AddressKey(netip.Addr{})}, Ask: Unaware, Claimed: Default}, at(1))
	}
	if sheds[ServerFull] != 2 {
		t.Errorf("one runs, two wait: %v", sheds)
	}
	paper.Advance(at(4))
	if paper.busy != 0 || len(paper.due) != 0 || len(sheds) != 1 {
		t.Errorf("%d busy, %d due, %v", paper.busy, len(paper.due), sheds)
	}
}

package credits

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestAnAskSurvivesItsValue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		ask := Ask{
			Aware: true, Demand: random.Uint32(), Exact: random.IntN(2) == 0, Credited: random.IntN(2) == 0,
			Priority: Priority(random.IntN(256)), Tenant: random.Uint32(),
			Budget: time.Duration(random.Int64N(1<<50)) * us, RoundTrip: time.Duration(random.Uint32()) * us,
		}
		if random.IntN(4) == 0 {
			ask.Budget = -1
		}
		value := ask.Value()
		if read, known := ReadAsk(value); !known || read != ask || len(value) > maxLen {
			t.Fatalf("%q reads as %+v, %v; it was %+v", value, read, known, ask)
		}
	}
}

func TestAGrantSurvivesItsValue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		grant := Grant{
			Window: random.Uint32(), Level: LevelFromWire(random.Uint32()), Lease: time.Duration(random.Uint32()) * us,
			ServerTime: time.Duration(random.Uint32()) * us,
		}
		if read, known := ReadGrant(grant.Value()); !known || read != grant {
			t.Fatalf("%q reads as %+v, %v", grant.Value(), read, known)
		}
	}
	short := Grant{Lease: 1}
	if value := short.Value(); value != "w=0,l=0,t=1,s=0" {
		t.Errorf("a lease of a nanosecond is written as %q: 0 would mean until the next grant", value)
	}
}

func TestBetterPrioritiesPassAndWorseOnesProbe(t *testing.T) {
	level := LevelAt(100, 0.25)
	for priority, want := range map[Priority]uint32{99: whole, 100: whole / 4, 101: probe} {
		if parts := level.parts(priority); parts != want {
			t.Errorf("priority %d: %d, not %d", priority, parts, want)
		}
	}
	if Open.parts(255) != whole || LevelFromWire(1<<32-1) != Open || Level(0).parts(0) != probe {
		t.Error("the ends of the scale")
	}
	carry, passed := uint32(0), 0
	for range 400 {
		if passes(level.parts(100), &carry) {
			passed++
		}
	}
	if passed != 100 {
		t.Errorf("%d of 400 passed at a quarter", passed)
	}
	if level.times(3) != LevelAt(100, 0.75) || level.times(9) != LevelAt(100, 1) || Open.times(0.5) != Open {
		t.Error("a factor moves the chance and never the priority")
	}
}

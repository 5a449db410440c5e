package credits

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestAnAskSurvivesItsValue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		ask := Ask{
			Aware: true, Credited: random.IntN(2) == 0, Priority: Priority(random.IntN(256)), Tenant: random.Uint32(),
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

func TestValuesOfTheRustLayersAreReadAsTheyMeanThem(t *testing.T) {
	ask, known := ReadAsk("d=3,x,c,p=128,t=7,b=1500,r=80")
	want := Ask{Aware: true, Credited: true, Priority: 128, Tenant: 7, Budget: 1500 * us, RoundTrip: 80 * us}
	if !known || ask != want {
		t.Errorf("%+v, %v", ask, known)
	}
	grant, known := ReadGrant("w=4,l=17,t=20000,s=812")
	if want := (Grant{Window: 4, Level: 17, Lease: 20 * ms, ServerTime: 812 * us}); !known || grant != want {
		t.Errorf("%+v, %v", grant, known)
	}
}

func TestBrokenValuesAreNoneAndUnknownPartsAreSkipped(t *testing.T) {
	if ask, known := ReadAsk("p=1,zz=9,new, t=2 ,p=999"); !known || ask.Priority != 255 || ask.Tenant != 2 {
		t.Errorf("%+v, %v", ask, known)
	}
	broken := []string{"", "d=-1", "d=1x", "d=99999999999999999999", "d=", "p=+1", "p=1_0", strings.Repeat("d=1,", 40)}
	for _, value := range broken {
		if _, known := ReadAsk(value); known {
			t.Errorf("an ask of %q was believed", value)
		}
		if _, known := ReadGrant(value); known {
			t.Errorf("a grant of %q was believed", value)
		}
	}
	for _, value := range []string{"", "0x1", "+1", "-1", "1_0", "xyz", "12345678123456781"} {
		if _, known := ReadClient(value); known {
			t.Errorf("%q was taken for a client", value)
		}
	}
	if client, known := ReadClient(ClientValue(42)); !known || client != 42 || ClientValue(42) != "000000000000002a" {
		t.Errorf("%q", ClientValue(42))
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

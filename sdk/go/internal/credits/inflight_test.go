package credits

import (
	"math/rand/v2"
	"testing"
	"time"
)

// behind is something with so many places, each taken for so long by a call; who finds none waits in order.
type behind struct {
	limit   *InFlight
	random  *rand.Rand
	now     Time
	places  int
	service time.Duration
	// ends are when the calls in the places end, waiting those that have none, line those that the limit holds back.
	ends    []end
	waiting []begun
	line    int
	ended   int
}

type begun struct {
	began Began
	at    Time
}

type end struct {
	at Time
	of begun
}

func newBehind(places int, service time.Duration) *behind {
	return &behind{limit: newInFlight(1, 0), random: rand.New(rand.NewPCG(7, 7)), places: places, service: service}
}

// play lets calls arrive at random for so long; the line holds 50. Calls that ended a second.
func (b *behind) play(rate float64, length time.Duration) float64 {
	b.ended = 0
	until := b.now.After(length)
	gap := func() time.Duration { return time.Duration(b.random.ExpFloat64() / rate * 1e9) }
	for arrival := b.now.After(gap()); ; {
		next := -1
		for at := range b.ends {
			if next < 0 || b.ends[at].at < b.ends[next].at {
				next = at
			}
		}
		if next >= 0 && b.ends[next].at <= min(arrival, until) {
			of := b.ends[next]
			b.ends = append(b.ends[:next], b.ends[next+1:]...)
			b.now = of.at
			b.ended++
			b.limit.OnEnd(of.of.began, b.now.Since(of.of.at), b.now)
		} else if arrival >= until {
			b.now = until
			return float64(b.ended) / length.Seconds()
		} else {
			b.now = arrival
			b.line = min(b.line+1, 50)
			arrival = b.now.After(gap())
		}
		for b.line > 0 && b.limit.Room() > 0 {
			b.line--
			b.waiting = append(b.waiting, begun{b.limit.OnBegin(0, b.now), b.now})
		}
		b.limit.OnHeld(b.line > 0, b.now)
		for len(b.waiting) > 0 && len(b.ends) < b.places {
			b.ends = append(b.ends, end{b.now.After(b.service), b.waiting[0]})
			b.waiting = b.waiting[1:]
		}
	}
}

func TestNothingIsLimitedWhileNothingIsHeldUp(t *testing.T) {
	b := newBehind(1000, 20*ms)
	b.play(2000, 20*time.Second)
	if limit, limited := b.limit.Limit(); limited {
		t.Errorf("%d", limit)
	}
}

func TestTwiceWhatAPoolDoesKeepsItBusyWithFewInFlight(t *testing.T) {
	for _, places := range []int{1, 10} {
		b := newBehind(places, 20*ms)
		capacity := float64(places) / 0.020
		b.play(0.3*capacity, 10*time.Second)
		b.play(2*capacity, 30*time.Second)
		served := b.play(2*capacity, 20*time.Second) / capacity
		limit, limited := b.limit.Limit()
		if served < 0.9 || !limited || limit > 4*places {
			t.Errorf("%d places: %.2f of what they do, limit %d %v", places, served, limit, limited)
		}
	}
}

func TestALimitThatWasLearntWhileItWasSlowGrowsWhenItIsFastAgain(t *testing.T) {
	b := newBehind(10, 20*ms)
	b.play(150, 10*time.Second)
	b.play(1000, 10*time.Second)
	for _, service := range []time.Duration{60 * ms, 20 * ms, 5 * ms, 20 * ms} {
		b.service = service
		capacity := 10 / service.Seconds()
		b.play(2*capacity, 20*time.Second)
		if served := b.play(2*capacity, 20*time.Second) / capacity; served < 0.85 {
			limit, _ := b.limit.Limit()
			t.Errorf("%v: %.2f of it, limit %d", service, served, limit)
		}
	}
}

func TestCallsThatHangMakeRoomNowAndThen(t *testing.T) {
	b := newBehind(1, 20*ms)
	b.play(20, 10*time.Second)
	b.play(100, 20*time.Second)
	limit, _ := b.limit.Limit()
	for b.limit.Room() > 0 {
		b.limit.OnBegin(0, b.now)
	}
	for range 10 {
		b.now = b.now.After(time.Second)
		b.limit.OnHeld(true, b.now)
	}
	if room := b.limit.Room(); room == 0 || room > 10 {
		t.Errorf("room for %d after ten seconds without an end, at a limit of %d", room, limit)
	}
}

package credits

import (
	"testing"
	"time"
)

const testLease = 10 * ms

// at is a moment so many milliseconds after the origin.
func at(of int) Time { return Time(of) * Time(ms) }

// sends makes so many calls; how many were sent.
func sends(c *Client, calls int, now Time) int {
	before := c.InFlight()
	for range calls {
		c.OnCall(Default, -1, now)
	}
	return int(c.InFlight() - before)
}

// open is the answer of a server that has time, after took there and back and in all of that in itself.
func open(c *Client, took, inServer time.Duration, now Time) {
	grant := Grant{Level: Open, Lease: testLease, ServerTime: inServer}
	c.OnReply(&Reply{Served: true, Granted: true, Grant: grant, Took: took}, now)
}

// told is a client that was told a level at once by a server of that address.
func told(c *Client, server string, level Level, lease time.Duration, now Time) {
	c.OnReply(&Reply{Server: server, Served: true, Granted: true, Grant: Grant{Level: level, Lease: lease}, Took: ms}, now)
}

func TestALevelIsObeyedForItsLeaseAndNoLonger(t *testing.T) {
	c := NewClient(0)
	told(c, "a", LevelAt(Default, 0.25), testLease, at(100))
	if sent := sends(c, 8, at(100)); sent != 2 {
		t.Errorf("%d of 8 sent at a quarter", sent)
	}
	if sent := sends(c, 8, at(110)); sent != 8 {
		t.Errorf("%d of 8 sent after the lease", sent)
	}
}

func TestAtALevelOfZeroOneCallIn256AsksAgain(t *testing.T) {
	c := NewClient(0)
	told(c, "a", 0, time.Hour, at(0))
	if sent := sends(c, 2560, at(1)); sent != 10 {
		t.Errorf("%d of 2560 sent", sent)
	}
}

func TestACallWithoutTimeLeftIsNotSent(t *testing.T) {
	c := NewClient(0)
	if _, reason := c.OnCall(Default, 0, at(0)); reason != Deadline || c.InFlight() != 0 {
		t.Errorf("%q", reason)
	}
}

func TestCreditsGoBeyondTheLevelAndAreMarked(t *testing.T) {
	c := NewClient(0)
	told(c, "a", 0, time.Hour, at(0))
	c.OnReply(&Reply{Server: "a", Granted: true, Grant: Grant{Window: 2, Lease: time.Hour}, Took: ms}, at(1))
	for call := range 3 {
		ask, reason := c.OnCall(Default, -1, at(2))
		if sent := reason == ""; sent != (call < 2) || sent && !ask.Credited {
			t.Errorf("call %d: %+v %q", call, ask, reason)
		}
	}
}

func TestAClientThatWasNeverAnsweredAsksOnceASecondAfterARush(t *testing.T) {
	c := NewClient(0)
	if sent := sends(c, 1000, at(0)); sent != unheard {
		t.Errorf("%d sent", sent)
	}
	for second := range 4 {
		if early, due := sends(c, 500, at(second*1000+900)), sends(c, 500, at(second*1000+1000)); early != 0 || due != 1 {
			t.Errorf("in second %d: %d, then %d", second, early, due)
		}
	}
	c.OnReply(&Reply{Served: true, Took: ms}, at(5000))
	if sent := sends(c, 1000, at(5000)); sent != 1000 {
		t.Errorf("a server without levels is left alone, but %d of 1000 were sent", sent)
	}
}

func TestALevelOutlivesItsLeaseWhileManyCallsAreUnanswered(t *testing.T) {
	c := NewClient(0)
	sends(c, 1, at(0))
	told(c, "a", LevelAt(Default, 0.25), testLease, at(10))
	if sent := sends(c, 16+400, at(20)); sent != 16+100 {
		t.Errorf("%d sent", sent)
	}
	if c.Chance(Default, at(1019)) == whole || c.Chance(Default, at(1020)) != whole {
		t.Error("it holds for a second of silence")
	}
}

func TestAServerThatFellSilentIsOnlyAskedFromTimeToTime(t *testing.T) {
	c := NewClient(0)
	sends(c, 1, at(0))
	open(c, ms, ms, at(1))
	if sent := sends(c, 500, at(10)); sent != 500 {
		t.Errorf("%d sent", sent)
	}
	for call := range 500 {
		if call > 0 {
			c.OnCancel()
		}
	}
	asked := 0
	for ms := 1010; ms < 4000; ms++ {
		asked += sends(c, 500, at(ms))
	}
	if asked != 3 {
		t.Errorf("asked %d times in three seconds", asked)
	}
	open(c, ms, ms, at(4000))
	if sent := sends(c, 500, at(4900)); sent != 500 {
		t.Errorf("one word is enough, but %d of 500 were sent", sent)
	}
}

func TestCallsThatWaitOnACrowdedWayHoldOthersBack(t *testing.T) {
	c := NewClient(0)
	sends(c, 1, at(0))
	open(c, ms, 0, at(1))
	if sent := sends(c, 500, at(1)); sent != 500 {
		t.Errorf("%d sent while the way is free", sent)
	}
	for range 484 {
		open(c, 12*ms, 0, at(13))
	}
	if sent := sends(c, 500, at(14)); c.InFlight() != 16 || sent != 0 {
		t.Errorf("%d in flight, %d sent", c.InFlight(), sent)
	}
	for range 2 {
		open(c, 2*ms, 0, at(15))
	}
	if sent := sends(c, 500, at(15)); sent != 10 {
		t.Errorf("%d sent", sent)
	}
}

func TestTheLevelsOfServersBehindOneTargetAreAveraged(t *testing.T) {
	c := NewClient(0)
	told(c, "a", LevelAt(Default, 0.5), time.Hour, at(0))
	told(c, "b", LevelAt(Default, 1), time.Hour, at(0))
	if chance := c.Chance(Default, at(1)); chance != whole*3/4 {
		t.Errorf("%d", chance)
	}
	for range turns*2 + 1 {
		told(c, "b", LevelAt(Default, 1), time.Hour, at(2))
	}
	if chance := c.Chance(Default, at(3)); chance != whole {
		t.Errorf("one that is gone still counts: %d", chance)
	}
}

func TestTheTableOfServersIsBounded(t *testing.T) {
	c := NewClient(0)
	for number := range 1000 {
		told(c, string(rune(number)), Open, time.Hour, at(number))
		if len(c.servers) > instances {
			t.Fatalf("%d servers", len(c.servers))
		}
	}
}

func TestAServerIsKnownByItsNumberWhereverItAnswers(t *testing.T) {
	c := NewClient(0)
	tell := func(address string, id uint64, chance float64) {
		grant := Grant{Level: LevelAt(Default, chance), Lease: time.Hour, Instance: id}
		c.OnReply(&Reply{Server: address, Served: true, Granted: true, Grant: grant, Took: ms}, at(0))
	}
	// One behind two addresses, then another behind one of these.
	tell("a", 1, 0.5)
	tell("b", 1, 0.25)
	if chance := c.Chance(Default, at(1)); chance != whole/4 || len(c.servers) != 1 {
		t.Errorf("%d of %d servers", chance, len(c.servers))
	}
	tell("a", 2, 0.75)
	if chance := c.Chance(Default, at(1)); chance != whole/2 || len(c.servers) != 2 {
		t.Errorf("%d of %d servers", chance, len(c.servers))
	}
}

func TestAServerWhoseCallsTakeFiveSecondsIsNotSilentWhileTheyDo(t *testing.T) {
	c := NewClient(0)
	sends(c, 1, at(0))
	open(c, ms, ms, at(1))
	sends(c, 1, at(1))
	open(c, 5*time.Second, 5*time.Second, at(5_001))
	// Quick answers beside it, and refusals by the hundred, do not make it a quick server.
	if sent := sends(c, 550, at(5_001)); sent != 550 {
		t.Errorf("%d sent", sent)
	}
	for range 50 {
		open(c, ms, ms, at(5_002))
	}
	for range 500 {
		grant := Grant{Level: Open, Lease: testLease, ServerTime: ms}
		c.OnReply(&Reply{Granted: true, Grant: grant, Took: ms}, at(5_002))
	}
	for second := range 8 {
		if sent := sends(c, 500, at(5_003+second*1_000)); sent == 0 {
			t.Errorf("silent after %d s", second)
		}
	}
	// Twice what they take is too long.
	if once, none := sends(c, 500, at(16_000)), sends(c, 500, at(16_500)); once != 1 || none != 0 {
		t.Errorf("%d, then %d", once, none)
	}
}

func TestSlowCallsAreForgottenWhenTheyAreOver(t *testing.T) {
	c := NewClient(0)
	sends(c, 1, at(0))
	open(c, 5*time.Second, 5*time.Second, at(5_000))
	for call := range 2_000 {
		sends(c, 1, at(6_000+call))
		open(c, ms, ms, at(6_001+call))
	}
	sends(c, 500, at(9_000))
	if before, after := sends(c, 500, at(9_999)), sends(c, 500, at(10_000)); before != 500 || after != 1 {
		t.Errorf("%d, then %d", before, after)
	}
}

package credits

import "time"

const (
	// unanswered is a number of calls of which one will be answered soon, or be told to be over.
	unanswered = 16
	// unheard is the number of unanswered calls of a client that was never answered: a rush of more would only keep
	// that answer from being read.
	unheard = 256
	// unheardOf is the number of calls that are sent in a row without a word from the server.
	unheardOf = 4096
	// For patience of what this server's calls take, and for patienceLeast at least, silence is no sign.
	patience      = 2
	patienceLeast = time.Second
	// slowFades is what a shorter answer of a handler takes of the time that slow ones are known to take: of one slow
	// call in a hundred two thirds are remembered when the next one is answered.
	slowFades = 256
	// crowded: a way there and back that takes so many of the shortest answers is full of this client's own calls.
	crowded = 8
	// standBack: an answer that came by a crowded way takes a sixteenth of the limit.
	standBack = 16
	// widen is what an answer that came by a free way adds to the limit.
	widen = 4
	// noLimit is a limit of no meaning.
	noLimit = 1<<16 - 1
	// instances is the number of servers behind one target whose levels are told apart; beyond it, the one that has
	// been silent longest is forgotten.
	instances = 64
	// turns is after how many answers of each of the others a server counts as gone.
	turns = 16
)

// Client is the machine beside the callers of one target. It has no timer and no queue: nothing waits in it.
//
// A target may stand for several servers, which tell different levels. Which of them a call goes to is decided after
// this machine has let it through, so its chance is the mean of theirs.
type Client struct {
	servers []heard
	answers uint64
	// windowUntil is until when the window holds. Only a single server's window counts.
	windowUntil Time
	window      uint32
	// quietSince is when a server last said something, or what it has not spoken since was sent.
	quietSince Time
	inFlight   uint32
	// longest is how long the longest of the recent answers took; 0 if there was none.
	longest time.Duration
	// slow is how long the slow ones among the calls take that are served. Refusals tell nothing of it.
	slow time.Duration
	// carry is what earlier chances left over, in 1/65536.
	carry uint32
	// roundTrip is the shortest way there and back, answer the shortest answer that was one; 0 if none.
	roundTrip time.Duration
	answer    time.Duration
	// limit is the number of unanswered calls beyond which only credits let more through; while the way is free, it
	// grows.
	limit uint32
	// unheard is the number of calls that were sent since the server last said something; unheardOf if it is taken
	// to be silent.
	unheard uint32
	// aware says whether a server ever told a level.
	aware bool
}

// heard is what one server said last.
type heard struct {
	name  instance
	level Level
	until Time
	// at is the number of the answer that said it.
	at uint64
}

// instance names a server: by the number that it gave itself, or by its address if it gave none.
type instance struct {
	id      uint64
	address string
}

func instanceOf(reply *Reply) instance {
	if reply.Grant.Instance != 0 {
		return instance{id: reply.Grant.Instance}
	}
	return instance{address: reply.Server}
}

// NewClient returns a client that has heard nothing yet and therefore sends what it is asked to, up to 256 calls and
// then one a second. random spreads clients: those that began at the same point would send their first calls at the
// same time.
func NewClient(random uint16) *Client {
	return &Client{limit: unheard, carry: uint32(random)}
}

// InFlight returns the calls that were sent and not ended.
func (c *Client) InFlight() uint32 { return c.inFlight }

// Chance returns the chance with which a call of priority is sent at now, in 1/65536.
func (c *Client) Chance(priority Priority, now Time) uint32 {
	// With many calls unanswered a level outlives its lease for a while: the next word is on its way, and whoever
	// opened up meanwhile would send most to a server that answers late.
	wordIsDue := c.inFlight >= unanswered && now.Since(c.quietSince) < c.patience()
	sum, count := uint32(0), uint32(0)
	for i := range c.servers {
		if server := &c.servers[i]; now < server.until || wordIsDue {
			sum += server.level.parts(priority)
			count++
		}
	}
	if count == 0 {
		return whole
	}
	return sum / count
}

// credits returns the credits that are not in use at now.
func (c *Client) credits(now Time) uint32 {
	if now >= c.windowUntil || c.window <= c.inFlight || len(c.servers) != 1 {
		return 0
	}
	return c.window - c.inFlight
}

func (c *Client) patience() time.Duration {
	return max(patience*max(c.longest, c.slow), patienceLeast)
}

// OnCall says whether a call is sent, and with what ask; if not, why. A negative budget is none. What it asks for
// beside that, such as its tenant, the caller adds.
func (c *Client) OnCall(priority Priority, budget time.Duration, now Time) (Ask, Reason) {
	if budget == 0 {
		return Ask{}, Deadline
	}
	credited := c.credits(now) > 0
	if !credited && (!passes(c.Chance(priority, now), &c.carry) || c.holdsBack(now)) {
		return Ask{}, NoCredit
	}
	c.inFlight++
	if c.unheard == 0 {
		c.quietSince = now
	}
	c.unheard = min(c.unheard+1, unheardOf)
	return Ask{Aware: true, Credited: credited, Priority: priority, Budget: budget, RoundTrip: c.roundTrip}, ""
}

// holdsBack tells whether no call should be added that has no credit: because as many are unanswered as the way has
// room for, or because the server has said nothing to many for longer than its answers took. An open level says
// that it had time when it spoke; silent since, it may be sinking under what it was sent. One call from time to
// time asks again, so nothing is shut for good.
func (c *Client) holdsBack(now Time) bool {
	quiet := now.Since(c.quietSince)
	if c.aware && c.unheard >= unanswered && quiet >= c.patience() {
		c.unheard = unheardOf
	}
	silent := c.aware && c.unheard >= unheardOf
	if !silent && c.inFlight < c.limit {
		return false
	}
	askAfter := patienceLeast
	if !silent && c.longest > 0 {
		askAfter = min(patience*c.longest, patienceLeast)
	}
	if quiet < askAfter {
		return true
	}
	c.quietSince = now
	return false
}

// Reply is what came back for a call.
type Reply struct {
	// Server is the address that answered.
	Server string
	// Served says that a handler ran.
	Served bool
	// Granted says that the answer carried Grant.
	Granted bool
	Grant   Grant
	// Took is the time from OnCall to the answer.
	Took time.Duration
	// Untimed says that Took tells nothing of the way: the answer lay here for a while, as those of streams may.
	Untimed bool
}

// OnReply ends a call that was answered.
func (c *Client) OnReply(reply *Reply, now Time) {
	c.inFlight -= min(c.inFlight, 1)
	c.unheard = 0
	c.quietSince = now
	if !reply.Untimed {
		c.longest = max(reply.Took, c.longest-c.longest/8, time.Microsecond)
		if reply.Served {
			c.slow = max(reply.Took, c.slow-c.slow/slowFades)
		}
	}
	if !reply.Granted {
		// How long its server worked is not said. One that never says a level is left alone.
		if reply.Served && !c.aware {
			c.limit = noLimit
		}
		return
	}
	if !reply.Untimed {
		way := max(reply.Took-reply.Grant.ServerTime, 0)
		c.watchTheWay(way, reply.Grant.ServerTime)
		c.roundTrip = shortest(c.roundTrip, way)
		if reply.Served {
			c.answer = shortest(c.answer, reply.Took)
		}
	}
	c.accept(reply, now)
}

// accept takes a grant that came at now and was made reply.Took earlier or later.
//
// The lease of its credits runs from then: so it never outlives the server's own count of it. That of its level runs
// from now: where answers take longer than a lease, no level would hold at all, and they would take longer yet.
func (c *Client) accept(reply *Reply, now Time) {
	c.aware = true
	c.answers++
	c.window = reply.Grant.Window
	c.windowUntil = (now - Time(max(reply.Took, 0))).After(reply.Grant.Lease)
	said := heard{name: instanceOf(reply), level: reply.Grant.Level, until: now.After(reply.Grant.Lease), at: c.answers}
	if reply.Grant.Lease == 0 {
		said.until = Never
	}
	kept, oldest := c.servers[:0], 0
	for _, server := range c.servers {
		// One that others have answered in the place of for so long is most likely gone, or spared by the balancer.
		isGone := c.answers-server.at > turns*uint64(len(c.servers))
		if server.name != said.name && !isGone {
			kept = append(kept, server)
			if server.at < kept[oldest].at {
				oldest = len(kept) - 1
			}
		}
	}
	if len(kept) >= instances {
		kept[oldest] = said
	} else {
		kept = append(kept, said)
	}
	c.servers = kept
}

// OnGrant takes a grant that came beside an answer, such as at the end of a stream.
func (c *Client) OnGrant(reply *Reply, now Time) {
	c.unheard = 0
	c.quietSince = now
	c.accept(reply, now)
}

// OnCancel ends a call that was given up: its caller left, or its connection broke.
func (c *Client) OnCancel() {
	c.inFlight -= min(c.inFlight, 1)
}

// watchTheWay makes room on the way after an answer that was way on it and server in the server. The server sees
// neither what waits in this process nor what waits in the network, so it may say that it has time while calls are
// already too old when they arrive.
func (c *Client) watchTheWay(way, server time.Duration) {
	least := max(c.roundTrip, c.answer)
	shortForTheWork := way <= server*crowded
	switch {
	case c.inFlight >= unanswered && least == 0 && !shortForTheWork:
		// How long the way is will show when those that were sent before any answer are out of it.
		c.limit = unanswered
	case least == 0:
		c.limit = noLimit
	case c.inFlight >= unanswered && way > least*crowded:
		limit := min(c.limit, c.inFlight)
		c.limit = max(limit-limit/standBack, unanswered)
	case c.inFlight >= c.limit && !shortForTheWork:
		// Those on the way now are more than it has room for, unless they wait elsewhere.
	default:
		c.limit = min(c.limit+widen, noLimit)
	}
}

// shortest takes a sample into the shortest time so far: what waiting adds must not make it longer. It creeps up,
// should it have become longer for good, and hardly while that is most likely a crowd.
func shortest(so, sample time.Duration) time.Duration {
	creep := func(share time.Duration) time.Duration { return so + (sample-so+share-1)/share }
	switch {
	case so == 0 || sample <= so:
		return max(sample, 1)
	case sample > so*crowded:
		return creep(65_536)
	default:
		return creep(1024)
	}
}

package credits

// credit is what the ledger keeps of a session.
type credit struct {
	// charged credits are out until chargedUntil: the most that its client may still believe in.
	charged      int
	chargedUntil Time
	// lesser is the most that it was told since, in leases that outlive that one, until lesserUntil.
	lesser      int
	lesserUntil Time
	// isOut says that it is in the ledger's list, before and after are its neighbours there.
	isOut         bool
	before, after *session
}

// credits returns those that its client may use at now.
func (c *credit) credits(now Time) int {
	if now < c.chargedUntil {
		return c.charged
	}
	return 0
}

// ledger keeps account of the credits that are out, in a list of sessions, the oldest lease first.
type ledger struct {
	oldest, newest *session
	// out is the number of credits out.
	out int
}

// grant tells a session credits, which it may use until then; at most free more than are charged for it already. What
// it is told, and how many more are out.
//
// What it was told before may still be on its way or in use: the ledger keeps the greatest of all that it was told
// until the lease of that has ended, then the greatest of what it was told since.
func (l *ledger) grant(to *session, wanted, free int, until Time) (told, more int) {
	told = min(wanted, to.charged+free)
	more = max(told-to.charged, 0)
	switch {
	case told <= 0:
	case told >= to.charged:
		// All that it was told before is within this, as long as the longest of those leases.
		to.chargedUntil = max(until, to.chargedUntil, to.lesserUntil)
		to.charged, to.lesser, to.lesserUntil = told, 0, 0
		l.unlink(to)
		l.append(to)
	case until > to.chargedUntil:
		// Answers may overtake each other, or be lost: it may go on to believe in any of them.
		to.lesser, to.lesserUntil = max(to.lesser, told), max(to.lesserUntil, until)
	}
	l.out += more
	return told, more
}

// takeBack ends what leases that are over at now gave out beyond the sessions' present leases, and tells back of each.
func (l *ledger) takeBack(now Time, back func(*session, int)) {
	for l.oldest != nil && l.oldest.chargedUntil <= now {
		of := l.oldest
		lesser, until := of.lesser, of.lesserUntil
		freed := l.discharge(of)
		if lesser > 0 && until > now {
			// It was told fewer meanwhile: these stay out until that lease ends.
			of.charged, of.chargedUntil = lesser, until
			l.append(of)
			l.out += lesser
			freed -= lesser
		}
		back(of, freed)
	}
}

// discharge forgets what a session holds; how much it was.
func (l *ledger) discharge(of *session) int {
	freed := of.charged
	l.unlink(of)
	of.credit = credit{}
	l.out -= freed
	return freed
}

func (l *ledger) unlink(of *session) {
	if !of.isOut {
		return
	}
	if of.before == nil {
		l.oldest = of.after
	} else {
		of.before.after = of.after
	}
	if of.after == nil {
		l.newest = of.before
	} else {
		of.after.before = of.before
	}
	of.before, of.after, of.isOut = nil, nil, false
}

func (l *ledger) append(of *session) {
	of.before, of.after, of.isOut = l.newest, nil, true
	if l.newest == nil {
		l.oldest = of
	} else {
		l.newest.after = of
	}
	l.newest = of
}

package credits

// Level says which calls may be sent without a credit: priorities better than level / 65536 always, that one with a
// chance of the remainder / 65536, worse ones only to probe.
type Level uint32

const (
	// whole is a chance of one.
	whole = 1 << 16
	// probe is the chance with which calls beyond the level are sent, so that their demand stays known: one in 256.
	probe = whole / 256
	// Open lets everything through.
	Open Level = 256 * whole
)

// LevelAt lets better priorities through always and priority with chance, from 0 to 1.
func LevelAt(priority Priority, chance float64) Level {
	return Level(priority)*whole + Level(min(max(chance, 0), 1)*whole)
}

// LevelFromWire takes anything above [Open] for it.
func LevelFromWire(level uint32) Level {
	return min(Level(level), Open)
}

// parts returns the chance of a call of priority, in 1/65536.
func (l Level) parts(priority Priority) uint32 {
	floor := Level(priority) * whole
	if l <= floor+probe {
		return probe
	}
	return uint32(min(l-floor, whole))
}

// chance returns the chance of a call of priority, above 0 and at most 1.
func (l Level) chance(priority Priority) float64 {
	return float64(l.parts(priority)) / whole
}

// isSure tells whether calls of priority are let through for sure, and worse ones are not.
func (l Level) isSure(priority Priority) bool {
	return l != Open && (Level(priority)+1)*whole < l
}

// inClaims returns the level for a client that lets calls through by the priority claimed which the server takes for
// priority: no lower than this, and high enough that they come with the chance of priority.
func (l Level) inClaims(priority, claimed Priority) Level {
	return max(l, LevelAt(claimed, l.chance(priority)))
}

// times has the same priorities, with factor times the chance of the marginal one.
func (l Level) times(factor float64) Level {
	chance := float64(l%whole) * factor
	return l - l%whole + Level(min(max(chance, 0), whole))
}

// passes tells whether a call with that chance, in 1/65536, goes, if carry holds what earlier chances left over:
// with a chance of a third, each third one. Over any stretch the number sent is within one of its mean.
func passes(parts uint32, carry *uint32) bool {
	*carry += parts
	if *carry < whole {
		return false
	}
	*carry -= whole
	return true
}

// passesBy is the same with a chance from 0 to 1; of one in 256 at least.
func passesBy(chance float64, carry *uint32) bool {
	return passes(max(uint32(min(max(chance, 0), 1)*whole), probe), carry)
}

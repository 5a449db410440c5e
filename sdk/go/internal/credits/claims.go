package credits

// Claims is how far a server trusts what calls claim: their tenant and their priority.
//
// The name that a client gives itself is no claim: it counts once a call of it was served, and earns the part of one
// client.
type Claims uint8

// How far.
const (
	// Untrusted is no further than a stranger's: claimed tenants are ignored, and a call matters no more than
	// [Default]. It may matter less, for that harms nobody else. Among the calls of one client its own better priorities
	// still come first: the client sends these before others, within what the server lets it send.
	Untrusted Claims = iota
	// Priorities are believed, tenants are not: for callers that are one's own and of one tenant.
	Priorities
	// Trusted is all of it: for callers that are one's own services, which hand on what they know of theirs.
	Trusted
)

// Known is what the server knows of a call by itself; nil where it leaves it to [Claims].
type Known struct {
	Tenant   *uint32
	Priority *Priority
}

// Judge returns what an ask is to the server, and the priority by which its client let the call through.
func (c Claims) Judge(ask Ask, known Known) (judged Ask, claimed Priority) {
	switch {
	case known.Tenant != nil:
		ask.Tenant = *known.Tenant
	case c != Trusted:
		ask.Tenant = 0
	}
	claimed = ask.Priority
	switch {
	case known.Priority != nil:
		ask.Priority = *known.Priority
	case c == Untrusted:
		ask.Priority = max(ask.Priority, Default)
		claimed = ask.Priority
	}
	return ask, claimed
}

package credits

import (
	"net/netip"
	"time"
)

// Key names whom a request comes from: a client with the interceptor by its number, one without by its address, and
// nobody known by the zero value.
type Key struct {
	client  uint64
	isNamed bool
	address netip.Addr
	// tenant is whom the request belongs to: a client that works for several tenants has a session for each.
	tenant uint32
}

// ClientKeyOf names a client with the interceptor.
func ClientKeyOf(client uint64) Key { return Key{client: client, isNamed: true} }

// AddressKey names a client without the interceptor; the zero address is nobody's.
func AddressKey(address netip.Addr) Key { return Key{address: address.Unmap().WithZone("")} }

// For names the same client where it works for a tenant.
func (k Key) For(tenant uint32) Key {
	k.tenant = tenant
	return k
}

// session is what is known of one client.
type session struct {
	key    Key
	tenant int
	// heard is when it last called; -1 if never.
	heard Time
	// level is what it was told, leaseUntil until when it may act on that.
	level      Level
	leaseUntil Time
	// gapNs is the time between the calls that it wants to make, averaged; 0 if unknown.
	gapNs float64
	// carry is what earlier chances left over, in 1/65536, for what the server decides in its stead.
	carry uint32
	// inServer are its calls that wait or run.
	inServer int
	// stretch in which it was last heard, for counting the active ones, and its calls in that stretch that were not
	// held back.
	stretch uint64
	calls   int
	// capped says that it was told less than others of its tenant.
	capped bool
	credit
}

// hear tells of a call at now that the client let through with a chance of told.
func (s *session) hear(told float64, now Time) {
	if s.heard >= 0 {
		gap := float64(now.Since(s.heard)) * told
		if s.gapNs > 0 {
			// An eighth: a burst of a few calls does not make a client a fast one.
			gap = s.gapNs + (gap-s.gapNs)/8
		}
		s.gapNs = gap
	}
	s.heard = now
}

// chance returns that with which its client let a call through, as far as the server told it; 1 if that has expired.
func (s *session) chance(priority Priority, now Time) float64 {
	if now >= s.leaseUntil {
		return 1
	}
	return s.level.chance(priority)
}

// sessions is the bounded table of clients: who is heard, and who has been silent for a lease.
//
// A name costs nothing to invent. So it has a session of its own only once a call of it was served, and shares its
// address's until then: whoever invents a name for each call is one client, and whoever keeps his is soon himself.
type sessions struct {
	byKey map[Key]*session
	// looks says when to look at a session again; one entry for each, in order, from first on.
	looks []look
	first int
	bound int
	lease time.Duration
	ledger
}

type look struct {
	at Time
	of *session
}

func newSessions(bound int, lease time.Duration) *sessions {
	return &sessions{byKey: make(map[Key]*session), bound: max(bound, 1), lease: lease}
}

// enter returns the session of the first of keys that has one, else of the last, its address, which gets one; nil if
// the table is full.
func (s *sessions) enter(keys []Key, tenant func(name uint32) int, now Time) *session {
	for _, key := range keys {
		if known := s.byKey[key]; known != nil {
			return known
		}
	}
	return s.open(keys[len(keys)-1], tenant, now)
}

// admit gives key a session of its own from now on, if there is room.
func (s *sessions) admit(key Key, tenant func(name uint32) int, now Time) {
	if s.byKey[key] == nil {
		s.open(key, tenant, now)
	}
}

// open gives key a session; nil if there is no room. An eighth of the table is kept for those who are known by
// address, so that no flood of names can shut them out.
func (s *sessions) open(key Key, tenant func(name uint32) int, now Time) *session {
	room := s.bound
	if key.isNamed {
		room -= s.bound / 8
	}
	if len(s.byKey) >= room {
		return nil
	}
	added := &session{key: key, tenant: tenant(key.tenant), heard: -1, level: Open}
	s.byKey[key] = added
	s.looks = append(s.looks, look{now.After(s.lease), added})
	return added
}

// expire forgets sessions that have been silent for a lease and have nothing in the server, and calls gone for each.
// Looks at two at most: each call opens one session at most, so the table shrinks faster than it grows.
func (s *sessions) expire(now Time, gone func(*session)) {
	for range 2 {
		if s.first == len(s.looks) || s.looks[s.first].at > now {
			break
		}
		of := s.looks[s.first].of
		s.looks[s.first] = look{}
		s.first++
		until := max(of.heard, 0).After(s.lease)
		if of.inServer == 0 && until <= now {
			delete(s.byKey, of.key)
			gone(of)
		} else {
			s.looks = append(s.looks, look{max(until, now.After(s.lease/2)), of})
		}
	}
	if s.first > 64 && s.first > len(s.looks)/2 {
		s.looks = append([]look(nil), s.looks[s.first:]...)
		s.first = 0
	}
}

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
}

// ClientKeyOf names a client with the interceptor.
func ClientKeyOf(client uint64) Key { return Key{client: client, isNamed: true} }

// AddressKey names a client without the interceptor; the zero address is nobody's.
func AddressKey(address netip.Addr) Key { return Key{address: address.Unmap().WithZone("")} }

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
type sessions struct {
	byKey map[Key]*session
	// looks says when to look at a session again; one entry for each, in order, from first on.
	looks []look
	first int
	bound int
	lease time.Duration
}

type look struct {
	at Time
	of *session
}

func newSessions(bound int, lease time.Duration) *sessions {
	return &sessions{byKey: make(map[Key]*session), bound: max(bound, 1), lease: lease}
}

// enter returns the session of the first of keys that has one or can get one; nil if the table is full.
//
// Names cost nothing to invent, addresses do: an eighth of the table is kept for those who are known by address, so a
// flood of invented names cannot shut them out, and an honest newcomer falls back to its address.
func (s *sessions) enter(keys []Key, tenant func() int, now Time) *session {
	for _, key := range keys {
		if known := s.byKey[key]; known != nil {
			return known
		}
		room := s.bound
		if key.isNamed {
			room -= s.bound / 8
		}
		if len(s.byKey) >= room {
			continue
		}
		added := &session{key: key, tenant: tenant(), heard: -1, level: Open}
		s.byKey[key] = added
		s.looks = append(s.looks, look{now.After(s.lease), added})
		return added
	}
	return nil
}

// expire forgets sessions that have been silent for a lease and have nothing in the server. Looks at two at most:
// each arrival opens one session at most, so the table shrinks faster than it grows.
func (s *sessions) expire(now Time) {
	for range 2 {
		if s.first == len(s.looks) || s.looks[s.first].at > now {
			break
		}
		of := s.looks[s.first].of
		s.looks[s.first] = look{}
		s.first++
		until := of.heard.After(s.lease)
		if of.inServer == 0 && until <= now {
			delete(s.byKey, of.key)
		} else {
			s.looks = append(s.looks, look{max(until, now.After(s.lease/2)), of})
		}
	}
	if s.first > 64 && s.first > len(s.looks)/2 {
		s.looks = append([]look(nil), s.looks[s.first:]...)
		s.first = 0
	}
}

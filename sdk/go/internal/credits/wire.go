package credits

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Names of the metadata. They and their values are those of the Rust layers.
const (
	ClientKey = "tidegate-client"  // with requests: the client's number, 16 hexadecimal digits
	AskKey    = "tidegate-ask"     // with requests: an Ask
	GrantKey  = "tidegate-grant"   // with answers: a Grant, as header or trailer
	ShedKey   = "tidegate-shed"    // with answers: why the call was shed. Its handler never ran
	ShedAtKey = "tidegate-shed-at" // with answers: where it was shed, "client" or "server"
	// PushbackKey is gRPC's own: milliseconds after which a retry policy may try again.
	PushbackKey = "grpc-retry-pushback-ms"
)

// maxLen is the longest value that is read, in bytes.
const maxLen = 128

// microsMost is the longest time that is read, in microseconds: 35 years. A longer one is taken for it.
const microsMost = 1 << 50

// Priority says how much a call matters: 0 most, 255 least.
type Priority uint8

// Priorities with a name.
const (
	Critical Priority = 0
	Default  Priority = 128
	Batch    Priority = 255
)

// Reason is why a call was shed. Whatever it is, the handler never ran: the call is safe to send again.
type Reason string

// The reasons. Other words are of later versions.
const (
	NoCredit   Reason = "no_credit"   // the client was told to send fewer
	Expired    Reason = "expired"     // it waited at the client for as long as it may
	ClientFull Reason = "client_full" // the client's queue was full
	Delay      Reason = "delay"       // the server's queueing delay would have been too long
	Deadline   Reason = "deadline"    // it would not have been ready before its deadline
	Worse      Reason = "priority"    // its priority is not served at present
	Share      Reason = "share"       // its tenant or its client has had its share
	ServerFull Reason = "server_full" // a table of the server was full
	Lost       Reason = "lost"        // its session ended
)

// Reasons are all of them, in the order of their numbers in the protocol over TCP.
var Reasons = []Reason{NoCredit, Expired, ClientFull, Delay, Deadline, Worse, Share, ServerFull, Lost}

// Ask is what a request carries beside its payload.
type Ask struct {
	// Aware is false for a caller that does not know the scheme.
	Aware bool
	// Demand is how many calls wait at the client after this one left; Exact says that there are no others. Clients of
	// this package hold none back, and never say so.
	Demand uint32
	Exact  bool
	// Credited says that the call is sent under a credit of the window, not by the level.
	Credited bool
	Priority Priority
	Tenant   uint32
	// Budget is the time left to the call's deadline; negative if it has none.
	Budget time.Duration
	// RoundTrip is the shortest time between sending and answer that the client has seen, without the server's own
	// time; 0 if it has seen none.
	RoundTrip time.Duration
}

// Unaware is the ask of a caller without the interceptor.
var Unaware = Ask{Priority: Default, Budget: -1}

// Grant is what an answer carries beside its payload.
type Grant struct {
	// Window is the number of calls that the client may have in flight whatever the level is.
	Window uint32
	// Level says which calls may be sent beyond the window.
	Level Level
	// Lease is how long this holds from its arrival on.
	Lease time.Duration
	// ServerTime is how long the call was at the server.
	ServerTime time.Duration
	// Instance is the number that the server gave itself when it started; 0 if it gave none.
	Instance uint64
}

// Value returns the ask as metadata.
func (a *Ask) Value() string {
	text := number(make([]byte, 0, 48), "d=", uint64(a.Demand))
	if a.Exact {
		text = append(text, ",x"...)
	}
	if a.Credited {
		text = append(text, ",c"...)
	}
	if a.Priority != Default {
		text = number(text, ",p=", uint64(a.Priority))
	}
	if a.Tenant != 0 {
		text = number(text, ",t=", uint64(a.Tenant))
	}
	if a.Budget >= 0 {
		text = number(text, ",b=", micros(a.Budget))
	}
	if a.RoundTrip > 0 {
		text = number(text, ",r=", micros(a.RoundTrip))
	}
	return string(text)
}

// ReadAsk reads an ask; false if it is broken.
func ReadAsk(value string) (Ask, bool) {
	ask := Unaware
	ask.Aware = true
	known := parts(value, func(name string, number uint64) {
		switch name {
		case "d":
			ask.Demand = saturated(number)
		case "x":
			ask.Exact = true
		case "c":
			ask.Credited = true
		case "p":
			ask.Priority = Priority(min(number, 255))
		case "t":
			ask.Tenant = saturated(number)
		case "b":
			ask.Budget = span(number)
		case "r":
			ask.RoundTrip = span(number)
		}
	})
	return ask, known
}

// Value returns the grant as metadata.
func (g *Grant) Value() string {
	text := make([]byte, 0, 48)
	text = number(text, "w=", uint64(g.Window))
	text = number(text, ",l=", uint64(g.Level))
	if g.Lease > 0 {
		// At least 1: a lease of 0 µs would mean "until the next grant".
		text = number(text, ",t=", max(micros(g.Lease), 1))
	}
	text = number(text, ",s=", micros(g.ServerTime))
	if g.Instance != 0 {
		text = number(text, ",i=", g.Instance)
	}
	return string(text)
}

// ReadGrant reads a grant; false if it is broken.
func ReadGrant(value string) (Grant, bool) {
	var grant Grant
	known := parts(value, func(name string, number uint64) {
		switch name {
		case "w":
			grant.Window = saturated(number)
		case "l":
			grant.Level = LevelFromWire(saturated(number))
		case "t":
			grant.Lease = span(number)
		case "s":
			grant.ServerTime = span(number)
		case "i":
			grant.Instance = number
		}
	})
	return grant, known
}

// ClientValue returns a client's number as metadata.
func ClientValue(client uint64) string {
	text := strconv.FormatUint(client, 16)
	return strings.Repeat("0", 16-len(text)) + text
}

// ReadClient reads a client's number; false unless it is 1 to 16 hexadecimal digits.
func ReadClient(value string) (uint64, bool) {
	if len(value) > 16 {
		return 0, false
	}
	// ParseUint takes underscores and signs in no base that is named.
	client, err := strconv.ParseUint(value, 16, 64)
	return client, err == nil
}

// ReadPushback reads when a server wants a call back; false is never, which gRPC says with a negative number, or with
// what is none of at most 31 bits.
func ReadPushback(value string) (time.Duration, bool) {
	ms, err := digits(value)
	return time.Duration(ms) * time.Millisecond, err == nil && ms <= math.MaxInt32
}

// parts calls each for the parts of a value, a part without a number counting as 1; false if one of them is broken,
// or if there is none. The grammar is the book's page reference/rpc-protocol.md.
func parts(value string, each func(name string, number uint64)) bool {
	if len(value) > maxLen || strings.Trim(value, ", \t") == "" {
		return false
	}
	for _, char := range []byte(value) {
		if char != '\t' && (char < ' ' || char > '~') {
			return false
		}
	}
	for part := range strings.SplitSeq(value, ",") {
		name, text, found := strings.Cut(strings.Trim(part, " \t"), "=")
		number := uint64(1)
		if found {
			parsed, err := digits(text)
			if err != nil {
				return false
			}
			number = parsed
		}
		each(name, number)
	}
	return true
}

// digits reads a number that has nothing but digits.
func digits(text string) (uint64, error) {
	if strings.HasPrefix(text, "+") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 10, 64)
}

func number(text []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(text, name...), value, 10)
}

func micros(of time.Duration) uint64 {
	return uint64(max(of, 0) / time.Microsecond)
}

func saturated(number uint64) uint32 {
	return uint32(min(number, 1<<32-1))
}

// span is a number of microseconds.
func span(micros uint64) time.Duration {
	return time.Duration(min(micros, microsMost)) * time.Microsecond
}

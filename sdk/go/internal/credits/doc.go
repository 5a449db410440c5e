// Package credits is Tidegate's overload control as pure state machines: one beside the callers, one beside the
// handlers, and the words that travel between them.
//
// Nothing here reads a clock, sleeps, locks or starts a goroutine. Time is an argument, so the tests run the same
// code in virtual time. The scheme is that of the Rust crate tidegate-rpc; docs/src/explanation/credits.md explains
// it.
//
//	wire.go      asks and grants as metadata values
//	level.go     which calls may be sent, in one number
//	client.go    beside the callers: send, or fail at once
//	server.go    beside the handlers: admit, shed, tell everybody what to send
//	desk.go      the server with its line of waiting calls: who starts when
//	service.go   what the server learns of itself: pace, work of a call, longest wait
//	demand.go    what everybody wants, and the level that follows from it
//	sizes.go     how many clients want how much, and what each may have
//	surplus.go   how much more is let through than fits
//	sessions.go  the bounded table of clients
//	ledger.go    the credits that they hold
//	claims.go    how far they are believed
//	paper.go     a dry run: the machine before a server on paper
//	inflight.go  the learnt bound on calls in flight
package credits

import "time"

// Time is a number of nanoseconds since an origin that the caller chose.
type Time int64

// Never is later than every other time.
const Never Time = 1<<63 - 1

// Since returns the time from then to t; 0 if time stepped back.
func (t Time) Since(then Time) time.Duration {
	if t <= then {
		return 0
	}
	return time.Duration(t - then)
}

// After returns the time d later, at most [Never].
func (t Time) After(d time.Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

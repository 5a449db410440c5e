package tidegategrpc

import (
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tidegate.invalid/sdk/go/internal/credits"
)

// Place is where a call was refused.
type Place string

// The two places.
const (
	AtClient Place = "client"
	AtServer Place = "server"
)

// ShedError is the error of a call that overload control refused. Its status is RESOURCE_EXHAUSTED, and not
// UNAVAILABLE, which most retry policies repeat at once.
type ShedError struct {
	// Reason is a word such as "no_credit", "delay", "deadline" or "share".
	Reason string
	// At is where the call was refused.
	At Place
	// Pushback is when to come back, as a server asks of callers that obey no grants; 0 if nobody asked.
	Pushback time.Duration

	status *status.Status
}

// Error describes the refusal.
func (e *ShedError) Error() string {
	return "tidegate: shed by the " + string(e.At) + ": " + e.Reason
}

// GRPCStatus is what package status finds in the error.
func (e *ShedError) GRPCStatus() *status.Status { return e.status }

// Shed returns what refused a call; nil if err is anything else.
func Shed(err error) *ShedError {
	var shed *ShedError
	if errors.As(err, &shed) {
		return shed
	}
	return nil
}

// refusals are made once: most calls of an overloaded client end with one.
var refusals = func() map[credits.Reason]*ShedError {
	errors := make(map[credits.Reason]*ShedError)
	for _, reason := range []credits.Reason{credits.NoCredit, credits.Deadline} {
		errors[reason] = refusal(reason, AtClient)
	}
	return errors
}()

func refusal(reason credits.Reason, at Place) *ShedError {
	return &ShedError{Reason: string(reason), At: at, status: status.New(codes.ResourceExhausted, string(reason))}
}

// mark writes to the caller's options what a server's refusal would have carried.
func (e *ShedError) mark(opts []grpc.CallOption) {
	for _, option := range opts {
		switch option := option.(type) {
		case grpc.HeaderCallOption:
			*option.HeaderAddr = nil
		case grpc.TrailerCallOption:
			*option.TrailerAddr = metadata.Pairs(credits.ShedKey, e.Reason, credits.ShedAtKey, string(e.At))
		}
	}
}

// shedBy returns the refusal that the metadata of an answer tells; nil if it was none.
func shedBy(err error, header, trailer metadata.MD) *ShedError {
	if err == nil {
		return nil
	}
	reason := told(credits.ShedKey, header, trailer)
	if reason == "" {
		return nil
	}
	shed := &ShedError{Reason: reason, At: AtServer, status: status.Convert(err)}
	if Place(told(credits.ShedAtKey, header, trailer)) == AtClient {
		// Whoever answered did not get it through to another.
		shed.At = AtClient
	}
	if pushback, known := credits.ReadPushback(told(credits.PushbackKey, header, trailer)); known {
		shed.Pushback = pushback
	}
	return shed
}

// told returns the value of key in an answer's metadata; "" if it has none.
func told(key string, header, trailer metadata.MD) string {
	for _, metadata := range []metadata.MD{header, trailer} {
		if values := metadata[key]; len(values) > 0 {
			return values[0]
		}
	}
	return ""
}

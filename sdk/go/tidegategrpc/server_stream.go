package tidegategrpc

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"tidegate.invalid/sdk/go/internal/credits"
)

// Stream is a [grpc.StreamServerInterceptor]. A stream counts as a call until its handler's first word: one that
// lives for hours holds no place and is not taken for an hour of service. While it waits for its client it is not
// in flight.
func (s *Server) Stream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if s.exempt(info.FullMethod) {
		s.gate.countExempt()
		return handler(service, stream)
	}
	call, ctx, err := s.begin(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	wrapped := &serverStream{ServerStream: stream, ctx: ctx, gate: s.gate, call: call}
	answered := false
	defer func() { wrapped.end(answered, stream.SetTrailer) }()
	err = handler(service, wrapped)
	answered = err == nil || stream.Context().Err() == nil
	return err
}

// serverStream ends its call with the first word of its handler.
type serverStream struct {
	grpc.ServerStream
	// ctx is that of its handler.
	ctx  context.Context
	gate *gate
	call *running
	// mu guards over: handlers may send and receive at the same time.
	mu   sync.Mutex
	over bool
}

// Context returns the context of the handler.
func (s *serverStream) Context() context.Context { return s.ctx }

// end ends the call, unless it has ended.
func (s *serverStream) end(answered bool, tell func(metadata.MD)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over = true
	if grant, tells := s.gate.end(s.call, answered); tells {
		tell(metadata.Pairs(credits.GrantKey, grant.Value()))
	}
}

func (s *serverStream) first() {
	s.end(true, func(md metadata.MD) {
		if s.ServerStream.SetHeader(md) != nil {
			s.ServerStream.SetTrailer(md)
		}
	})
}

// SendHeader sends the head of the answer.
func (s *serverStream) SendHeader(md metadata.MD) error {
	s.first()
	return s.ServerStream.SendHeader(md)
}

// SendMsg sends a message.
func (s *serverStream) SendMsg(message any) error {
	s.first()
	return s.ServerStream.SendMsg(message)
}

// RecvMsg waits for the client.
func (s *serverStream) RecvMsg(message any) error {
	if !s.pause() {
		return s.ServerStream.RecvMsg(message)
	}
	defer s.resume()
	return s.ServerStream.RecvMsg(message)
}

func (s *serverStream) pause() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.gate.pause(s.call)
	}
	return !s.over
}

func (s *serverStream) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.gate.resume(s.call)
	}
}

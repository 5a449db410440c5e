package tidegategrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"tidegate.invalid/sdk/go/internal/credits"
)

// Stream is a [grpc.StreamClientInterceptor]. A stream counts as a call until its server's first word: one that
// lives for hours holds nothing up and is not taken for an hour of service.
func (c *Client) Stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if c.exempt(method) {
		return streamer(ctx, desc, conn, method, opts...)
	}
	away, shed := c.target(conn.Target()).send(ctx)
	if shed != nil {
		shed.mark(opts)
		return nil, shed
	}
	inner, err := streamer(c.sign(ctx, away), desc, conn, method, opts...)
	if err != nil {
		away.cancel()
		return nil, err
	}
	stream := &clientStream{ClientStream: inner, call: away}
	// Whoever gives a stream up says so by its context, as gRPC wants it.
	stream.forget = context.AfterFunc(ctx, away.cancel)
	return stream, nil
}

// clientStream ends its call with the first word of the server.
type clientStream struct {
	grpc.ClientStream
	call   *call
	forget func() bool
	// heard says that the call has ended; granted that the grant of its answer came. Only receivers look at them,
	// and gRPC allows one at a time.
	heard, granted bool
}

// RecvMsg receives a message or the stream's end.
func (s *clientStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if s.granted && s.heard || err == nil && s.heard {
		return err
	}
	var header, trailer metadata.MD
	if !s.heard {
		// It came before the first message, so this does not wait. Without one there is only a trailer.
		header, _ = s.ClientStream.Header()
	}
	if err != nil {
		trailer = s.ClientStream.Trailer()
	}
	grant, granted := credits.ReadGrant(told(credits.GrantKey, header, trailer))
	s.granted = granted
	reply := credits.Reply{Server: s.server(), Granted: granted, Grant: grant, Untimed: true}
	if s.heard {
		if granted {
			s.call.granted(reply)
		}
		return err
	}
	s.heard = true
	s.forget()
	shed := shedBy(err, header, trailer)
	reply.Served = shed == nil
	if shed != nil {
		s.call.answered(reply)
		return shed
	}
	if err != nil && !granted && isOfTheWay(err) {
		s.call.cancel()
		return err
	}
	s.call.answered(reply)
	return err
}

func (s *clientStream) server() string {
	from, known := peer.FromContext(s.ClientStream.Context())
	if !known || from.Addr == nil {
		return ""
	}
	return from.Addr.String()
}

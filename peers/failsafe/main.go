// A gRPC service that computes, behind failsafe-go's adaptive limiter: what the RPC bars stand beside.
//
// It serves the method of crates/tidegate-rpc/examples/tonic_work with as long a work, counted in rounds, so that the same
// load drives both. It listens twice, with the limiter and bare, prints both addresses as a line of JSON and ends when
// its standard input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"math/bits"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// sink keeps the compiler from leaving the work out.
var sink atomic.Uint64

// compute does the rounds that the example in Rust does.
func compute(rounds uint64) uint64 {
	x := uint64(0x9e3779b97f4a7c15)
	for round := uint64(0); round < rounds; round++ {
		x = (bits.RotateLeft64(x, 7) * 5) ^ round
	}
	return x
}

// raw is a codec whose messages are their bytes.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(bytes []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), bytes...)
	return nil
}

// refused tells callers what gRPC has a code for.
func refused(err error) error {
	if _, known := status.FromError(err); err == nil || known {
		return err
	}
	return status.Error(codes.ResourceExhausted, err.Error())
}

func work(rounds uint64) grpc.ServiceDesc {
	do := func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := new([]byte)
		if err := decode(request); err != nil {
			return nil, err
		}
		handler := func(_ context.Context, request any) (any, error) {
			sink.Add(compute(rounds))
			return request, nil
		}
		if interceptor == nil {
			return handler(ctx, request)
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/tidegate.example.Work/Do"}, handler)
	}
	return grpc.ServiceDesc{
		ServiceName: "tidegate.example.Work",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Do", Handler: do}},
	}
}

// limited is the limiter with its defaults, used as its documentation says: an early look before a request is read,
// and the permit around its handler.
func limited() []grpc.ServerOption {
	limiter := adaptivelimiter.NewWithDefaults[any]()
	early := failsafegrpc.NewServerInHandle[any](limiter)
	around := failsafegrpc.NewUnaryServerInterceptor[any](limiter)
	return []grpc.ServerOption{
		grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
			ctx, err := early(ctx, info)
			return ctx, refused(err)
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			answer, err := around(ctx, request, info, handler)
			return answer, refused(err)
		}),
	}
}

func main() {
	workUs := flag.Uint64("work-us", 1000, "work of a call, in microseconds of this processor, measured once at the start")
	flag.Parse()
	// The server has one CPU.
	runtime.GOMAXPROCS(1)
	description := work(roundsOf(*workUs))
	controlled, bare := serve(&description, limited()...), serve(&description)
	started := map[string]string{"addr": controlled, "bare_addr": bare}
	if err := json.NewEncoder(os.Stdout).Encode(started); err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// serve starts a server with options at a port of its own and returns its address.
func serve(description *grpc.ServiceDesc, options ...grpc.ServerOption) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.ForceServerCodec(raw{}))...)
	server.RegisterService(description, struct{}{})
	go func() { log.Fatal(server.Serve(listener)) }()
	return listener.Addr().String()
}

// roundsOf returns the rounds that take us microseconds of this processor, by the fastest of several tries.
func roundsOf(us uint64) uint64 {
	const try = 2_000_000
	fastest := time.Hour
	for range 20 {
		start := time.Now()
		sink.Add(compute(try))
		fastest = min(fastest, time.Since(start))
	}
	return us * 1_000 * try / uint64(max(fastest.Nanoseconds(), 1))
}

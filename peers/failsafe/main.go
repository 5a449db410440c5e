// A gRPC service that computes, behind failsafe-go's adaptive limiter: what the RPC bars stand beside.
//
// It serves the method of crates/tidegate-rpc/examples/tonic_work with the same rounds of work, so that the same load
// drives both. It prints its address as a line of JSON and ends when its standard input does.
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

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafegrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// sink keeps the compiler from leaving the work out.
var sink uint64

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
			sink += compute(rounds)
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
	rounds := flag.Uint64("work-rounds", 0, "rounds of work of a call")
	control := flag.String("control", "failsafe", "failsafe or none")
	flag.Parse()
	// The server has one CPU.
	runtime.GOMAXPROCS(1)
	options := []grpc.ServerOption{grpc.ForceServerCodec(raw{})}
	if *control == "failsafe" {
		options = append(options, limited()...)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(options...)
	description := work(*rounds)
	server.RegisterService(&description, struct{}{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	started := map[string]string{"addr": listener.Addr().String()}
	if err := json.NewEncoder(os.Stdout).Encode(started); err != nil {
		log.Fatal(err)
	}
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

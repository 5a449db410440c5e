// Command server serves tidegate.example.Work with Tidegate's interceptors. It listens twice, with control and
// bare, prints both addresses as a line of JSON, ends when its standard input does, and then prints its counters.
//
//	server -work-us 1000                    # handlers that compute
//	server -work-us 1000 -shape wait:20     # that wait, then compute
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"tidegate.invalid/sdk/go/example/work"
	"tidegate.invalid/sdk/go/tidegategrpc"
)

var (
	workUs    = flag.Uint64("work-us", 1000, "work of a call, in microseconds of this processor, measured once at the start")
	shape     = flag.String("shape", "compute", "what a call does: compute, wait:MS, between:MS, lock or pool:PLACESxMS")
	control   = flag.String("control", "tidegate", "tidegate or none")
	tell      = flag.String("tell", "", "answer all calls, each with this as its grant: to test clients")
	objective = flag.Uint64(
		"objective-us", 0, "how long a call may take, in place of ten times what it takes when nothing waits",
	)
	threads = flag.Int("threads", 0, "processors that run goroutines; 0 for what the runtime finds")
)

func main() {
	flag.Parse()
	if *threads > 0 {
		runtime.GOMAXPROCS(*threads)
	}
	handler, err := work.ReadShape(*shape)
	if err != nil {
		log.Fatal(err)
	}
	description := work.Service(work.Rounds(time.Duration(*workUs)*time.Microsecond), handler)
	// A server needs no more than this; one that wants no counters takes tidegategrpc.UnaryServerInterceptor()
	// instead.
	var settings []tidegategrpc.ServerOption
	if *objective > 0 {
		settings = append(settings, tidegategrpc.ServerObjective(time.Duration(*objective)*time.Microsecond))
	}
	protection := tidegategrpc.NewServer(settings...)
	var options []grpc.ServerOption
	var told atomic.Uint64
	switch {
	case *tell != "":
		options = append(options, grpc.UnaryInterceptor(telling(*tell, &told)))
	case *control == "tidegate":
		options = append(options, grpc.UnaryInterceptor(protection.Unary), grpc.StreamInterceptor(protection.Stream))
	}
	controlled, bare := serve(description, options...), serve(description)
	say(map[string]string{"addr": controlled, "bare_addr": bare})
	_, _ = io.Copy(io.Discard, os.Stdin)
	counts := protection.Counts()
	counts.Served += told.Load()
	say(counts)
}

// telling answers each call with that grant, and counts them.
func telling(grant string, told *atomic.Uint64) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		told.Add(1)
		if err := grpc.SetHeader(ctx, metadata.Pairs("tidegate-grant", grant)); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// serve starts a server with options at a port of its own and returns its address.
func serve(description *grpc.ServiceDesc, options ...grpc.ServerOption) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.ForceServerCodec(work.Raw{}))...)
	server.RegisterService(description, struct{}{})
	go func() { log.Fatal(server.Serve(listener)) }()
	return listener.Addr().String()
}

func say(line any) {
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
}

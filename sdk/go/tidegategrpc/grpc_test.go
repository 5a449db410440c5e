package tidegategrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tidegate.invalid/sdk/go/example/work"
	"tidegate.invalid/sdk/go/tidegategrpc"
)

// service answers Do by its function, and Stream by echoing each message.
func service(do func(ctx context.Context) error) *grpc.ServiceDesc {
	description := work.Service(0, func(ctx context.Context, _ uint64) error { return do(ctx) })
	description.Streams = []grpc.StreamDesc{{
		StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				var message []byte
				if err := stream.RecvMsg(&message); err != nil {
					if errors.Is(err, io.EOF) {
						return nil
					}
					return err
				}
				if err := stream.SendMsg(&message); err != nil {
					return err
				}
			}
		},
	}}
	return description
}

// serve starts a server on a port of its own until the test ends; its address.
func serve(t *testing.T, description *grpc.ServiceDesc, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(options, grpc.ForceServerCodec(work.Raw{}))...)
	server.RegisterService(description, struct{}{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-ended })
	return listener.Addr().String()
}

// protected are the options of a server with the interceptors.
func protected(server *tidegategrpc.Server) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(server.Unary), grpc.StreamInterceptor(server.Stream)}
}

// connect connects to address, with the client if there is one.
func connect(t *testing.T, address string, client *tidegategrpc.Client) *grpc.ClientConn {
	t.Helper()
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(work.Raw{})),
	}
	if client != nil {
		options = append(options, grpc.WithUnaryInterceptor(client.Unary), grpc.WithStreamInterceptor(client.Stream))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call makes a call.
func call(ctx context.Context, conn *grpc.ClientConn, options ...grpc.CallOption) error {
	request, answer := []byte("hello"), []byte(nil)
	if err := conn.Invoke(ctx, work.Method, &request, &answer, options...); err != nil {
		return err
	}
	if string(answer) != "hello" {
		return fmt.Errorf("it answered %q", answer)
	}
	return nil
}

// telling is a server without the interceptors that tells every caller the same grant.
func telling(t *testing.T, grant string) string {
	return serve(t, service(func(ctx context.Context) error {
		return grpc.SetHeader(ctx, metadata.Pairs("tidegate-grant", grant))
	}))
}

func TestACallGoesThroughBothAndCarriesAGrant(t *testing.T) {
	server, client := tidegategrpc.NewServer(), tidegategrpc.NewClient()
	conn := connect(t, serve(t, service(func(context.Context) error { return nil }), protected(server)...), client)
	var header metadata.MD
	if err := call(t.Context(), conn, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if grants := header.Get("tidegate-grant"); len(grants) != 1 || !strings.Contains(grants[0], "l=16777216") ||
		!strings.Contains(grants[0], ",i=") {
		t.Errorf("an idle server tells an open level and its number in its header: %v", header)
	}
	counts, _ := client.Counts(conn.Target())
	if counts.Sent != 1 || counts.Served != 1 || counts.Grants != 1 || counts.Chance != 1 {
		t.Errorf("%+v", counts)
	}
	there := server.Counts()
	if counts := there; counts.Served != 1 || counts.InTime != 1 || counts.InFlight != 0 || counts.Sessions != 2 {
		t.Errorf("%+v", counts)
	}
}

func TestALevelOfZeroLetsOneCallIn256ThroughWithinItsLease(t *testing.T) {
	client := tidegategrpc.NewClient()
	conn := connect(t, telling(t, "w=0,l=0,t=60000000,s=10"), client)
	if err := call(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for range 2560 {
		var header, trailer metadata.MD
		err := call(t.Context(), conn, grpc.Header(&header), grpc.Trailer(&trailer))
		if err == nil {
			continue
		}
		shed := tidegategrpc.Shed(err)
		if shed == nil || shed.At != tidegategrpc.AtClient || shed.Reason != "no_credit" ||
			status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%v", err)
		}
		if trailer.Get("tidegate-shed")[0] != "no_credit" || trailer.Get("tidegate-shed-at")[0] != "client" {
			t.Fatalf("%v", trailer)
		}
	}
	counts, _ := client.Counts(conn.Target())
	if counts.Sent-1 < 9 || counts.Sent-1 > 11 || counts.ShedHere != 2560-(counts.Sent-1) {
		t.Errorf("%+v", counts)
	}
}

func TestALevelCutsByPriority(t *testing.T) {
	client := tidegategrpc.NewClient()
	// Better priorities than 128 always, 128 and worse not.
	conn := connect(t, telling(t, fmt.Sprintf("w=0,l=%d,t=60000000,s=10", 128<<16)), client)
	if err := call(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	served := map[uint8]int{}
	for range 100 {
		for _, priority := range []uint8{0, 127, 128, 255} {
			if call(tidegategrpc.WithPriority(t.Context(), priority), conn) == nil {
				served[priority]++
			}
		}
	}
	if served[0] != 100 || served[127] != 100 || served[128]+served[255] > 2 {
		t.Errorf("%v", served)
	}
}

func TestWhatAServerShedIsKnownByItsMarks(t *testing.T) {
	address := serve(t, service(func(ctx context.Context) error {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(
			"tidegate-shed", "delay", "tidegate-shed-at", "server", "grpc-retry-pushback-ms", "1500",
			"tidegate-grant", "w=0,l=16777216,t=1000,s=10"))
		return status.Error(codes.ResourceExhausted, "delay")
	}))
	client := tidegategrpc.NewClient()
	conn := connect(t, address, client)
	shed := tidegategrpc.Shed(call(t.Context(), conn))
	if shed == nil || shed.At != tidegategrpc.AtServer || shed.Reason != "delay" ||
		shed.Pushback != 1500*time.Millisecond {
		t.Fatalf("%+v", shed)
	}
	if counts, _ := client.Counts(conn.Target()); counts.ShedThere != 1 || counts.Grants != 1 || counts.Served != 0 {
		t.Errorf("%+v", counts)
	}
}

func TestAServerThatIsFullShedsWithMarks(t *testing.T) {
	server, move := tidegategrpc.Frozen()
	release := make(chan struct{})
	address := serve(t, service(func(context.Context) error { <-release; return nil }), protected(server)...)
	conn := connect(t, address, tidegategrpc.NewClient())
	results := make(chan error, 2)
	begin := func() { results <- call(t.Context(), conn) }
	go begin()
	waitFor(t, func() bool { return server.Counts().InFlight == 1 })
	go begin()
	waitFor(t, func() bool { return server.Counts().Waiting == 1 })
	var trailer metadata.MD
	err := call(t.Context(), connect(t, address, nil), grpc.Trailer(&trailer))
	if status.Code(err) != codes.ResourceExhausted || trailer.Get("tidegate-shed")[0] != "server_full" ||
		trailer.Get("tidegate-shed-at")[0] != "server" || trailer.Get("grpc-retry-pushback-ms") == nil {
		t.Errorf("without the interceptor: %v %v", err, trailer)
	}
	shed := tidegategrpc.Shed(call(t.Context(), conn))
	if shed == nil || shed.At != tidegategrpc.AtServer || shed.Reason != "server_full" ||
		shed.Pushback < 500*time.Millisecond {
		t.Errorf("with it: %+v", shed)
	}
	close(release)
	for ended := 0; ended < 2; ended++ {
		move()
		if err := <-results; err != nil {
			t.Error(err)
		}
		waitFor(t, func() bool { return server.Counts().InFlight == 0 })
	}
	if counts := server.Counts(); counts.Waiting != 0 || counts.Served != 2 || counts.Shed["server_full"] != 2 {
		t.Errorf("%+v", counts)
	}
}

func TestACallInLineIsGivenUpWithItsContext(t *testing.T) {
	server, _ := tidegategrpc.Frozen()
	release := make(chan struct{})
	address := serve(t, service(func(context.Context) error { <-release; return nil }), protected(server)...)
	conn := connect(t, address, nil)
	first := make(chan error, 1)
	go func() { first <- call(t.Context(), conn) }()
	waitFor(t, func() bool { return server.Counts().InFlight == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- call(ctx, conn) }()
	waitFor(t, func() bool { return server.Counts().Waiting == 1 })
	cancel()
	if err := <-second; status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	waitFor(t, func() bool { return server.Counts().Waiting == 0 })
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if counts := server.Counts(); counts.Cancelled != 1 || counts.Served != 1 {
		t.Errorf("%+v", counts)
	}
}

func TestADeadlineThatCannotBeMetIsRefusedWithoutRunning(t *testing.T) {
	server := tidegategrpc.NewServer()
	ran := make(chan struct{}, 100)
	release := make(chan struct{})
	hold := func(context.Context) error { ran <- struct{}{}; <-release; return nil }
	address := serve(t, service(hold), protected(server)...)
	conn := connect(t, address, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	begin := func(ctx context.Context) {
		calls.Add(1)
		go func() { defer calls.Done(); _ = call(ctx, conn) }()
		waitFor(t, func() bool { counts := server.Counts(); return counts.InFlight+counts.Waiting > 0 })
	}
	begin(ctx)
	<-ran
	expired, done := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer done()
	if err := call(expired, connect(t, address, tidegategrpc.NewClient())); tidegategrpc.Shed(err) == nil {
		t.Errorf("a call whose time is over was not refused here: %v", err)
	}
	// One that goes away leaves the server as it was.
	cancel()
	close(release)
	calls.Wait()
	waitFor(t, func() bool { counts := server.Counts(); return counts.InFlight == 0 && counts.Waiting == 0 })
	if counts := server.Counts(); counts.Cancelled+counts.Served != 1 {
		t.Errorf("%+v", counts)
	}
}

func TestErrorsPanicsAndExemptCallsKeepTheAccounts(t *testing.T) {
	streams := func(method string) bool { return strings.HasSuffix(method, "Stream") }
	server := tidegategrpc.NewServer(tidegategrpc.ServerExempt(streams))
	fails := true
	recovering := func(
		ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (answer any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "it panicked")
			}
		}()
		return handler(ctx, request)
	}
	address := serve(t, service(func(context.Context) error {
		if fails {
			return status.Error(codes.NotFound, "nothing is here")
		}
		panic("a handler's mistake")
	}), grpc.ChainUnaryInterceptor(recovering, server.Unary), grpc.StreamInterceptor(server.Stream))
	client := tidegategrpc.NewClient()
	conn := connect(t, address, client)
	if err := call(t.Context(), conn); status.Code(err) != codes.NotFound || tidegategrpc.Shed(err) != nil {
		t.Errorf("%v", err)
	}
	fails = false
	if err := call(t.Context(), conn); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	if err := echo(t.Context(), conn); err != nil {
		t.Error(err)
	}
	counts := server.Counts()
	if counts.Served != 1 || counts.Cancelled != 1 || counts.InFlight != 0 || counts.Exempt != 1 {
		t.Errorf("%+v", counts)
	}
	if counts, _ := client.Counts(conn.Target()); counts.Served != 3 || counts.Grants != 1 || counts.Cancelled != 0 {
		t.Errorf("an error of a handler is an answer: %+v", counts)
	}
}

// open opens a stream.
func open(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	return conn.NewStream(ctx, both, "/tidegate.example.Work/Stream")
}

// echo opens a stream, sends two messages and receives them again.
func echo(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := open(ctx, conn)
	if err != nil {
		return err
	}
	for _, sent := range []string{"one", "two"} {
		message, back := []byte(sent), []byte(nil)
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
		if err := stream.RecvMsg(&back); err != nil || string(back) != sent {
			return fmt.Errorf("%q came back: %w", back, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var rest []byte
	if err := stream.RecvMsg(&rest); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after its end it said %q: %w", rest, err)
	}
	return nil
}

func TestAStreamIsACallUntilItsFirstWord(t *testing.T) {
	server, client := tidegategrpc.NewServer(), tidegategrpc.NewClient()
	conn := connect(t, serve(t, service(func(context.Context) error { return nil }), protected(server)...), client)
	if err := echo(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if counts := server.Counts(); counts.Served != 1 || counts.InFlight != 0 {
		t.Errorf("%+v", counts)
	}
	if counts, _ := client.Counts(conn.Target()); counts.Served != 1 || counts.Grants != 1 {
		t.Errorf("%+v", counts)
	}
	// One that is given up before it says anything.
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := open(ctx, conn); err != nil {
		t.Fatal(err)
	}
	cancel()
	waitFor(t, func() bool {
		counts, _ := client.Counts(conn.Target())
		return counts.Cancelled == 1 && server.Counts().InFlight == 0
	})
}

func TestADryRunRunsEverythingTellsNothingAndCounts(t *testing.T) {
	server, _ := tidegategrpc.Frozen(tidegategrpc.ServerMode(tidegategrpc.DryRun))
	release, running := make(chan struct{}), make(chan struct{}, 5)
	hold := func(context.Context) error { running <- struct{}{}; <-release; return nil }
	conn := connect(t, serve(t, service(hold), protected(server)...), tidegategrpc.NewClient())
	results, headers := make(chan error, 5), make([]metadata.MD, 5)
	for at := range headers {
		go func() { results <- call(t.Context(), conn, grpc.Header(&headers[at])) }()
	}
	// A server that enforces would run one, and let one wait.
	for range headers {
		<-running
	}
	close(release)
	for range headers {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	for _, header := range headers {
		if len(header.Get("tidegate-grant")) != 0 {
			t.Errorf("%v", header)
		}
	}
	if counts := server.Counts(); counts.Served != 5 || len(counts.Shed) != 0 {
		t.Errorf("%+v", counts)
	}
	server.SetMode(tidegategrpc.Enforce)
	if counts := server.Counts(); counts.Waiting != 0 || counts.InFlight != 0 {
		t.Errorf("nothing of it is left: %+v", counts)
	}
}

func TestClaimsCountAsFarAsTheServerTrusts(t *testing.T) {
	tenant := uint32(0)
	server := tidegategrpc.NewServer(
		tidegategrpc.ServerClaims(tidegategrpc.Trusted),
		tidegategrpc.ServerTenant(func(_ context.Context, claimed uint32) uint32 { tenant = claimed; return 3 }),
		tidegategrpc.ServerPriority(func(_ context.Context, method string, claimed uint8) uint8 {
			if method != work.Method || claimed != 9 {
				t.Errorf("%s, %d", method, claimed)
			}
			return 200
		}),
	)
	client := tidegategrpc.NewClient(tidegategrpc.ClientTenant(7))
	conn := connect(t, serve(t, service(func(context.Context) error { return nil }), protected(server)...), client)
	if err := call(tidegategrpc.WithPriority(t.Context(), 9), conn); err != nil || tenant != 7 {
		t.Errorf("%v, tenant %d", err, tenant)
	}
}

func TestGoroutinesEndWithTheirCalls(t *testing.T) {
	server, client := tidegategrpc.NewServer(), tidegategrpc.NewClient()
	conn := connect(t, serve(t, service(func(context.Context) error { return nil }), protected(server)...), client)
	if err := call(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var calls sync.WaitGroup
	for number := range 400 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(number)*50*time.Microsecond)
			defer cancel()
			if number%2 == 0 {
				_ = echo(ctx, conn)
			} else {
				_ = call(ctx, conn)
			}
		}()
	}
	calls.Wait()
	waitFor(t, func() bool {
		counts := server.Counts()
		return runtime.NumGoroutine() <= before && counts.InFlight == 0 && counts.Waiting == 0
	})
}

// waitFor waits until something holds that other goroutines bring about.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	for tries := 0; !holds(); tries++ {
		if tries > 5000 {
			t.Fatal("it never came about")
		}
		time.Sleep(time.Millisecond)
	}
}

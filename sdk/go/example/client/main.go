// Command client loads a tidegate.example.Work server: calls at the times of a Poisson process, whether or not
// earlier ones were answered. It prints one line of JSON, with the keys of the Rust example tonic_work load. Calls
// that met a gap of the host, in which nothing here ran, are told apart as met_gap; of the other numbers they are only in
// the rates of calls that were offered, served and in time.
//
//	client -addr 127.0.0.1:PORT -rate 2000 -seconds 5 -control tidegate -slo-us 11000
//	client -addr 127.0.0.1:PORT -closed 8 -seconds 1 -slo-us 11000    # capacity
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"tidegate.invalid/sdk/go/example/work"
	"tidegate.invalid/sdk/go/tidegategrpc"
)

var (
	addr        = flag.String("addr", "", "the server")
	rate        = flag.Float64("rate", 1000, "calls per second, in all")
	closed      = flag.Int("closed", 0, "in place of a rate: so many calls are always in flight. For capacity")
	seconds     = flag.Float64("seconds", 5, "seconds that count")
	warmUp      = flag.Float64("warm-up", 1, "seconds before them")
	payload     = flag.Int("payload", 32, "bytes of a request")
	connections = flag.Int("connections", 8, "connections, each a client of its own")
	control     = flag.String("control", "none", "what stands behind the callers: tidegate or none")
	sloUs       = flag.Int64("slo-us", 11_000, "answers later than this are not goodput, in µs from the intended arrival")
	deadlineMs  = flag.Int("deadline-ms", 0, "deadline of each call; 0 for none")
	batch       = flag.Float64("batch", 0, "share of calls with the least priority")
	seed        = flag.Uint64("seed", 1, "seed of the arrivals")
)

// caller is a connection with what stands behind it.
type caller struct {
	conn   *grpc.ClientConn
	client *tidegategrpc.Client
}

func connect() caller {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(work.Raw{})),
	}
	var client *tidegategrpc.Client
	if *control == "tidegate" {
		// One for a process is right elsewhere; here each connection stands for a process.
		client = tidegategrpc.NewClient()
		options = append(options, grpc.WithUnaryInterceptor(client.Unary), grpc.WithStreamInterceptor(client.Stream))
	}
	conn, err := grpc.NewClient("passthrough:///"+*addr, options...)
	if err != nil {
		log.Fatal(err)
	}
	conn.Connect()
	return caller{conn, client}
}

// tally is what came of the calls that count.
type tally struct {
	mu          sync.Mutex
	from, until time.Time
	ends        []end
	failure     string
}

// end is how a call ended, and when.
type end struct {
	intended, entered, at time.Time
	what                  outcome
}

type outcome uint8

const (
	failed outcome = iota
	served
	shedHere
	shedThere
)

func main() {
	flag.Parse()
	// The generator and the clock sleep in threads of their own.
	runtime.GOMAXPROCS(max(3, runtime.GOMAXPROCS(0)))
	callers := make([]caller, max(*connections, 1))
	for i := range callers {
		callers[i] = connect()
	}
	from := time.Now().Add(time.Duration(*warmUp * float64(time.Second)))
	until := from.Add(time.Duration(*seconds * float64(time.Second)))
	run := &tally{from: from, until: until}
	clock := watch()
	var calls sync.WaitGroup
	if *closed > 0 {
		for i := range *closed {
			begin(&calls, func() {
				for time.Now().Before(until) {
					run.one(callers[i%len(callers)], time.Now(), false)
				}
			})
		}
	} else {
		open(run, callers, &calls)
	}
	ended := make(chan struct{})
	go func() { calls.Wait(); close(ended) }()
	select {
	case <-ended:
	// What is not over by then never will be, and shows in the counts.
	case <-time.After(time.Until(until) + 20*time.Second):
	}
	run.report(callers, clock.gaps())
}

// begin runs each in a goroutine that calls waits for.
func begin(calls *sync.WaitGroup, each func()) {
	calls.Add(1)
	go func() {
		defer calls.Done()
		each()
	}()
}

// open calls at random times until the end.
func open(run *tally, callers []caller, calls *sync.WaitGroup) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	random := rand.New(rand.NewPCG(*seed, 1))
	for intended := time.Now(); intended.Before(run.until); {
		if wait := time.Until(intended); wait > 0 {
			sleep(wait)
		}
		to, at, isBatch := callers[random.IntN(len(callers))], intended, random.Float64() < *batch
		begin(calls, func() { run.one(to, at, isBatch) })
		intended = intended.Add(time.Duration(random.ExpFloat64() / *rate * float64(time.Second)))
	}
}

// one makes a call and counts what comes of it.
func (t *tally) one(to caller, intended time.Time, isBatch bool) {
	ctx := context.Background()
	if isBatch {
		ctx = tidegategrpc.WithPriority(ctx, 255)
	}
	if *deadlineMs > 0 {
		limited, cancel := context.WithDeadline(ctx, intended.Add(time.Duration(*deadlineMs)*time.Millisecond))
		defer cancel()
		ctx = limited
	}
	request, answer := make([]byte, *payload), []byte(nil)
	entered := time.Now()
	err := to.conn.Invoke(ctx, work.Method, &request, &answer)
	now := time.Now()
	if intended.Before(t.from) || !intended.Before(t.until) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends = append(t.ends, end{intended, entered, now, to.outcome(err)})
	if t.failure == "" && to.outcome(err) == failed {
		t.failure = err.Error()
	}
}

func (c *caller) outcome(err error) outcome {
	shed := tidegategrpc.Shed(err)
	switch {
	case err == nil:
		return served
	case shed != nil && shed.At == tidegategrpc.AtClient:
		return shedHere
	// Without the interceptor, refusals are only known by their status.
	case shed != nil || c.client == nil && status.Code(err) == codes.ResourceExhausted:
		return shedThere
	default:
		return failed
	}
}

// quantiles of times in microseconds.
func quantiles(us []int64) map[string]any {
	slices.Sort(us)
	at := func(q float64) int64 {
		if len(us) == 0 {
			return 0
		}
		return us[min(int(q*float64(len(us))), len(us)-1)]
	}
	return map[string]any{"calls": len(us), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1)}
}

func (t *tally) report(callers []caller, gaps []gap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var good, met, failures, answered int64
	var servedUs, here, there, late []int64
	for _, each := range t.ends {
		if each.what == served {
			answered++
		}
		if meets(gaps, each.intended, each.at) {
			met++
			continue
		}
		late = append(late, each.entered.Sub(each.intended).Microseconds())
		us := each.at.Sub(each.intended).Microseconds()
		switch each.what {
		case served:
			servedUs = append(servedUs, us)
			if us <= *sloUs {
				good++
			}
		case shedHere:
			// From the entry into the interceptor: what it adds.
			here = append(here, each.at.Sub(each.entered).Microseconds())
		case shedThere:
			there = append(there, us)
		default:
			failures++
		}
	}
	offered := int64(len(t.ends))
	var counts tidegategrpc.ClientCounts
	for _, each := range callers {
		if each.client == nil {
			continue
		}
		of, _ := each.client.Counts(each.conn.Target())
		counts.Sent += of.Sent
		counts.Served += of.Served
		counts.Cancelled += of.Cancelled
		counts.ShedHere += of.ShedHere
		counts.ShedThere += of.ShedThere
		counts.Grants += of.Grants
		counts.Chance += of.Chance / float64(len(callers))
	}
	report := map[string]any{
		"offered_per_s": float64(offered) / *seconds,
		// All answers, by the share of those in time among the ones that met no gap. An answered call takes longer than a
		// refused one and meets gaps more often: by the share of all calls that met none, goodput would seem less.
		"goodput_per_s":  float64(answered) / *seconds * float64(good) / float64(max(len(servedUs), 1)),
		"served_per_s":   float64(answered) / *seconds,
		"served_us":      quantiles(servedUs),
		"shed_local_us":  quantiles(here),
		"shed_remote_us": quantiles(there),
		"failed":         failures,
		"first_failure":  t.failure,
		"late_us_p99":    quantiles(late)["p99"],
		"met_gap":        float64(met) / float64(max(offered, 1)),
		"gaps":           len(gaps),
		"client":         counts,
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		log.Fatal(err)
	}
}

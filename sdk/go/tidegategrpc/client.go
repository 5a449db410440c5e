package tidegategrpc

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"tidegate.invalid/sdk/go/internal/credits"
)

// targetsMost is the number of targets whose grants a client remembers; beyond it, one of them is forgotten.
const targetsMost = 256

// Client is the callers' side: one for a process is right, whatever number of targets it calls.
type Client struct {
	tenant  uint32
	exempt  func(method string) bool
	mu      sync.Mutex
	targets map[string]*target
}

// target is what a client knows of one target.
type target struct {
	// name is what its servers know this client by. They are told it, so other targets are told another.
	name    string
	mu      sync.Mutex
	machine *credits.Client
	counts  ClientCounts
}

// ClientCounts is what became of a client's calls to one target, since it was first called.
type ClientCounts struct {
	// Sent is the number of calls that were sent.
	Sent uint64
	// Served were answered by a handler, whatever it answered.
	Served uint64
	// Cancelled were given up by their callers, or their connection broke.
	Cancelled uint64
	// ShedHere failed here, without being sent.
	ShedHere uint64
	// ShedThere were refused by a server.
	ShedThere uint64
	// Grants is the number of answers that carried a grant.
	Grants uint64
	// Chance is that with which a call of default priority is sent now, above 0 and at most 1.
	Chance float64
}

// ClientOption sets something of a [Client].
type ClientOption func(*Client)

// ClientTenant says whom this client's calls belong to; the server may know better. Without it: the tenant of the call
// whose handler makes them, outside of handlers tenant 0.
func ClientTenant(tenant uint32) ClientOption {
	return func(c *Client) { c.tenant = tenant }
}

// ClientExempt lets the calls pass by that the rule is true for; method is as in /package.Service/Method. Without it
// those of gRPC's health service pass by.
func ClientExempt(rule func(method string) bool) ClientOption {
	return func(c *Client) { c.exempt = rule }
}

// NewClient returns a client of its own, with names of its own for the servers' fair shares: one for each target.
func NewClient(options ...ClientOption) *Client {
	client := &Client{exempt: isHealthCheck, targets: make(map[string]*target)}
	for _, option := range options {
		option(client)
	}
	return client
}

// defaultClient is the one of this process.
var defaultClient = sync.OnceValue(func() *Client { return NewClient() })

// UnaryClientInterceptor returns the interceptor of this process's client, for [grpc.WithUnaryInterceptor]. See
// [NewClient] for one with options.
func UnaryClientInterceptor() grpc.UnaryClientInterceptor { return defaultClient().Unary }

// StreamClientInterceptor returns the interceptor of this process's client, for [grpc.WithStreamInterceptor].
func StreamClientInterceptor() grpc.StreamClientInterceptor { return defaultClient().Stream }

type (
	priorityKey struct{}
	tenantKey   struct{}
)

// WithPriority says how much the calls made with the returned context matter: 0 most, 255 least, 128 without it. The
// context of a handler behind the server's interceptors has the priority and the tenant of its own call.
func WithPriority(ctx context.Context, priority uint8) context.Context {
	return context.WithValue(ctx, priorityKey{}, credits.Priority(priority))
}

// inherited is ctx for the calls that the handler of a call makes which said, or was given, ask.
func inherited(ctx context.Context, ask *credits.Ask) context.Context {
	if ask.Priority != credits.Default {
		ctx = context.WithValue(ctx, priorityKey{}, ask.Priority)
	}
	if ask.Tenant != 0 {
		ctx = context.WithValue(ctx, tenantKey{}, ask.Tenant)
	}
	return ctx
}

func priorityOf(ctx context.Context) credits.Priority {
	if priority, known := ctx.Value(priorityKey{}).(credits.Priority); known {
		return priority
	}
	return credits.Default
}

// Unary is a [grpc.UnaryClientInterceptor].
func (c *Client) Unary(
	ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if c.exempt(method) {
		return invoke(ctx, method, request, answer, conn, opts...)
	}
	to := c.target(conn.Target())
	away, shed := to.send(ctx)
	if shed != nil {
		shed.mark(opts)
		return shed
	}
	// A panic of an inner interceptor must not leave the call in flight for ever.
	defer away.cancel()
	var back received
	err := invoke(c.sign(ctx, away), method, request, answer, conn, back.options(opts)...)
	return away.end(&back, err)
}

// call is one on its way.
type call struct {
	to  *target
	ask credits.Ask
	at  credits.Time
	// over is set once it was told to the machine how it ended. The target's lock guards it.
	over bool
}

// received is what came back beside an answer.
type received struct {
	header, trailer metadata.MD
	peer            peer.Peer
}

func (r *received) options(opts []grpc.CallOption) []grpc.CallOption {
	own := []grpc.CallOption{grpc.Header(&r.header), grpc.Trailer(&r.trailer), grpc.Peer(&r.peer)}
	// The caller's options last: what they are given is theirs.
	return append(own, opts...)
}

func (r *received) server() string {
	if r.peer.Addr == nil {
		return ""
	}
	return r.peer.Addr.String()
}

// sign adds what the server's interceptor reads.
func (c *Client) sign(ctx context.Context, away *call) context.Context {
	ask := &away.ask
	ask.Tenant = c.tenant
	if inherited, known := ctx.Value(tenantKey{}).(uint32); known && c.tenant == 0 {
		ask.Tenant = inherited
	}
	// In place of what may be there: a service that hands its callers' metadata on must not speak with their words.
	md, known := metadata.FromOutgoingContext(ctx)
	if !known {
		md = make(metadata.MD, 2)
	}
	md.Set(credits.ClientKey, away.to.name)
	md.Set(credits.AskKey, ask.Value())
	return metadata.NewOutgoingContext(ctx, md)
}

// target returns what is known of the target of that name.
func (c *Client) target(name string) *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.targets[name]; known != nil {
		return known
	}
	if len(c.targets) >= targetsMost {
		// Any: its servers tell their levels again with the next answers.
		for other := range c.targets {
			delete(c.targets, other)
			break
		}
	}
	added := &target{name: credits.ClientValue(random()), machine: credits.NewClient(uint16(random()))}
	c.targets[name] = added
	return added
}

// Counts returns what became of the calls to a target, by the name that its connection was made with; false if
// there were none.
func (c *Client) Counts(name string) (ClientCounts, bool) {
	c.mu.Lock()
	to := c.targets[name]
	c.mu.Unlock()
	if to == nil {
		return ClientCounts{}, false
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	counts := to.counts
	counts.Chance = float64(to.machine.Chance(credits.Default, now())) / (1 << 16)
	return counts, true
}

// send asks whether a call may be sent.
func (t *target) send(ctx context.Context) (*call, *ShedError) {
	budget := time.Duration(-1)
	if deadline, has := ctx.Deadline(); has {
		budget = max(time.Until(deadline), 0)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Read under the lock, so that the machine's time never steps back.
	at := now()
	ask, reason := t.machine.OnCall(priorityOf(ctx), budget, at)
	if reason != "" {
		t.counts.ShedHere++
		return nil, refusals[reason]
	}
	t.counts.Sent++
	return &call{to: t, ask: ask, at: at}, nil
}

// end ends a unary call; the error is what its caller gets.
func (c *call) end(back *received, err error) error {
	grant, granted := credits.ReadGrant(told(credits.GrantKey, back.header, back.trailer))
	shed := shedBy(err, back.header, back.trailer)
	if err != nil && shed == nil && !granted && isOfTheWay(err) {
		c.cancel()
		return err
	}
	c.answered(credits.Reply{Server: back.server(), Served: shed == nil, Granted: granted, Grant: grant})
	if shed != nil {
		return shed
	}
	return err
}

// answered ends the call with an answer that came now, unless it has ended.
func (c *call) answered(reply credits.Reply) {
	t := c.to
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	if reply.Served {
		t.counts.Served++
	} else {
		t.counts.ShedThere++
	}
	if reply.Granted {
		t.counts.Grants++
	}
	at := now()
	reply.Took = at.Since(c.at)
	t.machine.OnReply(&reply, at)
}

// granted takes a grant that came after the call had ended.
func (c *call) granted(reply credits.Reply) {
	t := c.to
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Grants++
	t.machine.OnGrant(&reply, now())
}

// cancel ends the call without an answer, unless it has ended.
func (c *call) cancel() {
	t := c.to
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	t.counts.Cancelled++
	t.machine.OnCancel()
}

// isOfTheWay tells whether an error may be that of a call that no server answered.
func isOfTheWay(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	default:
		return false
	}
}

// isHealthCheck tells whether a method is of gRPC's health service. A server that fails its health checks under
// overload is restarted or taken out, and its load meets the others.
func isHealthCheck(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.Health/")
}

// origin is when the process began, for the machines.
var origin = time.Now()

// now is the time that machines are told.
func now() credits.Time { return credits.Time(time.Since(origin)) }

// random returns 64 bits that nobody can guess: the hash's seed is drawn from the system's randomness.
func random() uint64 { return maphash.String(maphash.MakeSeed(), "tidegate") }

package tidegategrpc

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"tidegate.invalid/sdk/go/internal/credits"
)

// Server is the handlers' side: one for a process is right, since what is short belongs to the process.
type Server struct {
	config credits.Config
	exempt func(method string) bool
	claims Claims
	mode   Mode
	// tenant and priority are the server's own rules; nil where claims decide.
	tenant   func(ctx context.Context, claimed uint32) uint32
	priority func(ctx context.Context, method string, claimed uint8) uint8
	// pushback is what shed callers without the interceptor are asked to wait before they try again; spread by half
	// of it to both sides.
	pushback time.Duration
	gate     *gate
}

// ServerOption sets something of a [Server].
type ServerOption func(*Server)

// ServerObjective says how long a call may take from its caller's view, without what its handler waits for. Without
// it: ten times what it takes when nothing waits.
func ServerObjective(objective time.Duration) ServerOption {
	return func(s *Server) { s.config.Objective = objective }
}

// Mode says whether verdicts are carried out.
type Mode uint8

// The modes.
const (
	// Enforce carries them out.
	Enforce Mode = iota
	// DryRun only counts them, see [ServerCounts.WouldHaveShed]: all calls run, and no caller is told anything.
	DryRun
)

// ServerMode says whether verdicts are carried out, until [Server.SetMode] says otherwise. Without it: [Enforce].
func ServerMode(mode Mode) ServerOption {
	return func(s *Server) { s.mode = mode }
}

// ServerExempt lets the calls pass by that the rule is true for: they are neither counted as load nor shed. Method
// is as in /package.Service/Method. Without it those of gRPC's health service pass by.
func ServerExempt(rule func(method string) bool) ServerOption {
	return func(s *Server) { s.exempt = rule }
}

// Claims is how far a server trusts the tenant and the priority that calls claim.
type Claims = credits.Claims

// How far.
const (
	// Untrusted ignores claimed tenants, and lets no call matter more than one without a priority.
	Untrusted = credits.Untrusted
	// Priorities believes priorities and not tenants: for callers that are one's own and of one tenant.
	Priorities = credits.Priorities
	// Trusted believes both: for callers that are one's own services.
	Trusted = credits.Trusted
)

// ServerClaims says how far callers are trusted that claim a tenant or a priority. Without it: [Untrusted].
func ServerClaims(claims Claims) ServerOption {
	return func(s *Server) { s.claims = claims }
}

// ServerPriority says how much a call matters, whatever its client claims, with the interceptor or without: 0 most, 255
// least. Without it that is left to [ServerClaims].
func ServerPriority(rule func(ctx context.Context, method string, claimed uint8) uint8) ServerOption {
	return func(s *Server) { s.priority = rule }
}

// ServerTenant says whom a call belongs to, whatever its client claims. Without it that is left to [ServerClaims].
// Tenants share what there is by max-min fairness, up to 256 of them.
func ServerTenant(rule func(ctx context.Context, claimed uint32) uint32) ServerOption {
	return func(s *Server) { s.tenant = rule }
}

// ServerTenantWeights gives weights, above 0, to tenants that do not weigh 1.
func ServerTenantWeights(weights map[uint32]float64) ServerOption {
	return func(s *Server) { s.config.Weights = weights }
}

// ServerPushback is what shed callers without the interceptor are asked to wait before they try again. Without it: a
// second.
func ServerPushback(pushback time.Duration) ServerOption {
	return func(s *Server) { s.pushback = pushback }
}

// NewServer returns a server of its own. It keeps one goroutine and one pipe for as long as the process runs.
func NewServer(options ...ServerOption) *Server {
	server := &Server{
		config:   credits.Config{Cores: runtime.GOMAXPROCS(0), Probe: probe(), Instance: instance()},
		exempt:   isHealthCheck,
		pushback: time.Second,
	}
	for _, option := range options {
		option(server)
	}
	server.gate = newGate(server.config)
	server.gate.setMode(server.mode)
	return server
}

// SetMode carries verdicts out from now on, or only counts them; calls that were admitted go on.
func (s *Server) SetMode(mode Mode) { s.gate.setMode(mode) }

// instance returns a number that no other server is likely to have: 53 bits, as much as every language has in one.
func instance() uint64 { return max(random()>>11, 1) }

// defaultServer is the one of this process.
var defaultServer = sync.OnceValue(func() *Server { return NewServer() })

// UnaryServerInterceptor returns the interceptor of this process's server, for [grpc.UnaryInterceptor]; put it
// before all others. See [NewServer] for one with options.
func UnaryServerInterceptor() grpc.UnaryServerInterceptor { return defaultServer().Unary }

// StreamServerInterceptor returns the interceptor of this process's server, for [grpc.StreamInterceptor]; put it
// before all others.
func StreamServerInterceptor() grpc.StreamServerInterceptor { return defaultServer().Stream }

// Unary is a [grpc.UnaryServerInterceptor].
func (s *Server) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (answer any, err error) {
	if s.exempt(info.FullMethod) {
		s.gate.countExempt()
		return handler(ctx, request)
	}
	call, ctx, err := s.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	// It ends however the handler does, also by a panic.
	answered := false
	defer func() {
		grant, tells := s.gate.end(call, answered)
		if !tells {
			return
		}
		// What follows a handler's error is a single frame if there is no header.
		tell, md := grpc.SetHeader, metadata.Pairs(credits.GrantKey, grant.Value())
		if err != nil {
			tell = grpc.SetTrailer
		}
		// A handler may have sent the header itself.
		if tell(ctx, md) != nil {
			_ = grpc.SetTrailer(ctx, md)
		}
	}()
	answer, err = handler(ctx, request)
	// Nobody is told anything any more if the caller is gone.
	answered = err == nil || ctx.Err() == nil
	return answer, err
}

// begin waits until the call may run, and returns the context of its handler. The error is the refusal.
func (s *Server) begin(ctx context.Context, method string) (*running, context.Context, error) {
	arrival := s.arrival(ctx, method)
	call, verdict, err := s.gate.enter(ctx, method, &arrival)
	if err != nil {
		return nil, ctx, err
	}
	if verdict.Start {
		return call, inherited(ctx, &arrival.Ask), nil
	}
	pushback := time.Duration(float64(s.pushback) * (0.5 + s.gate.random()))
	md := metadata.Pairs(
		credits.ShedKey, string(verdict.Reason), credits.ShedAtKey, string(AtServer),
		credits.PushbackKey, strconv.FormatInt(pushback.Milliseconds(), 10),
	)
	if verdict.Grant.Lease > 0 {
		md.Set(credits.GrantKey, verdict.Grant.Value())
	}
	// Only outside of a gRPC server does this fail, and then nobody reads it.
	_ = grpc.SetTrailer(ctx, md)
	shed := refusal(verdict.Reason, AtServer)
	shed.Pushback = pushback
	return nil, ctx, shed
}

// arrival reads what a request says of itself.
func (s *Server) arrival(ctx context.Context, method string) credits.Arrival {
	ask := credits.Unaware
	if values := metadata.ValueFromIncomingContext(ctx, credits.AskKey); len(values) > 0 {
		if read, known := credits.ReadAsk(values[0]); known {
			ask = read
		}
	}
	if deadline, has := ctx.Deadline(); has {
		left := max(time.Until(deadline), 0)
		if ask.Budget < 0 || left < ask.Budget {
			ask.Budget = left
		}
	}
	ask, claimed := s.claims.Judge(ask, s.known(ctx, method, &ask))
	keys := make([]credits.Key, 0, 2)
	if values := metadata.ValueFromIncomingContext(ctx, credits.ClientKey); len(values) > 0 {
		if client, known := credits.ReadClient(values[0]); known {
			keys = append(keys, credits.ClientKeyOf(client).For(ask.Tenant))
		}
	}
	keys = append(keys, credits.AddressKey(addressOf(ctx)).For(ask.Tenant))
	return credits.Arrival{Keys: keys, Ask: ask, Claimed: claimed}
}

// known returns what the server's own rules say of a call.
func (s *Server) known(ctx context.Context, method string, ask *credits.Ask) credits.Known {
	var known credits.Known
	if s.tenant != nil {
		tenant := s.tenant(ctx, ask.Tenant)
		known.Tenant = &tenant
	}
	if s.priority != nil {
		priority := credits.Priority(s.priority(ctx, method, uint8(ask.Priority)))
		known.Priority = &priority
	}
	return known
}

// addressOf returns the caller's address; the zero one where it has none, such as on a Unix socket.
func addressOf(ctx context.Context) netip.Addr {
	from, known := peer.FromContext(ctx)
	if !known {
		return netip.Addr{}
	}
	switch address := from.Addr.(type) {
	case *net.TCPAddr:
		return address.AddrPort().Addr()
	case nil:
		return netip.Addr{}
	default:
		parsed, err := netip.ParseAddrPort(address.String())
		if err != nil {
			return netip.Addr{}
		}
		return parsed.Addr()
	}
}

// ServerCounts is what became of a server's calls, and what it measures and decides now.
type ServerCounts struct {
	// Served is the number of calls whose handler answered, InTime those of them within the time that their caller
	// had left; all that named none.
	Served, InTime uint64
	// Cancelled are calls whose caller went away before the end.
	Cancelled uint64
	// Exempt calls passed by.
	Exempt uint64
	// Shed calls, by reason.
	Shed map[string]uint64
	// WouldHaveShed are the calls, by reason, that would have been shed in dry runs, were verdicts carried out.
	WouldHaveShed map[string]uint64
	// Waiting calls have not started, InFlight ones run. In a dry run this and what follows is that of the server on
	// paper.
	Waiting, InFlight int
	// InFlightLimit is the learnt bound on calls in flight to what is behind the handlers, CoreLimit that of
	// handlers that wait and that the cores can serve in time; 0 while there is none.
	InFlightLimit, CoreLimit int
	// Sessions is the number of clients that are told apart.
	Sessions int
	// CapacityPerS is the calls a second that can be served; 0 while unknown. SupplyPerS is how many are let
	// through at most; 0 while nobody is held back.
	CapacityPerS, SupplyPerS float64
	// Chance is that of a call of default priority of tenant 0 to be let through.
	Chance float64
	// Work is what a call takes of a core.
	Work time.Duration
	// LongestWait is how long a call may wait for its start, QueueingDelay how long the oldest has waited.
	LongestWait, QueueingDelay time.Duration
}

// Counts returns what became of the calls so far.
func (s *Server) Counts() ServerCounts { return s.gate.counts() }

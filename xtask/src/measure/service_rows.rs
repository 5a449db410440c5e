//! The bars of overload control for services whose handlers wait, one row each.

use super::rows::{self, Row};
use super::{rpc_cost, rpc_go, rpc_mixed, rpc_shapes, rpc_sim, rpc_tcp};

/// In the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row {
        issue: 19,
        name: "handlers below capacity",
        bar: "0.5x, 0.8x: shed at most 0.5 %, goodput at least 0.99 and p99 at most 1.1x of the bare service",
        run: rpc_shapes::below,
    },
    Row {
        issue: 19,
        name: "handlers above capacity",
        bar: "0.85 (plain callers), 0.95 (with the layer) of the best fixed limit; plain, 2x, 5x: 0.75 of the capacity; \
              p99 at most the SLO; refusals at 10x in 2 ms, 50 us",
        run: rpc_shapes::above,
    },
    Row {
        issue: 19,
        name: "reports beside pings",
        bar: "reports of 2 s (10 %), pings of 1 ms with 100 ms: pings 0.99 in time at 0.5x, 0.9 of their part at 3x",
        run: rpc_mixed::reports,
    },
    Row {
        issue: 19,
        name: "invented names",
        bar: "one caller at 10x with a name, tenant and priority for each call: honest ones keep 0.95 of their share",
        run: rpc_mixed::invented,
    },
    Row {
        issue: 19,
        name: "rpc mixes",
        bar: "1 gateway, 20 and 1,000 callers: cores at least 0.97 busy, Jain over max-min shares at least 0.98",
        run: |bench| rows::lab(bench, "rpc_mixes"),
    },
    Row {
        issue: 19,
        name: "rpc call graph",
        bar: "31 services, depth 5, a leaf with a third, 1x, 2x, 5x, 10x: at most 0.02 of the work thrown away, goodput at \
              least 0.9 of that leaf",
        run: |bench| rows::lab(bench, "rpc_graph"),
    },
    Row {
        issue: 19,
        name: "rpc no tuning, rough hosts",
        bar: "72 services, smooth, with jitter, pauses of 1 to 12 ms, handlers that wait, all: goodput at least 0.95 where \
              Breakwater's best tuning reaches it, p99 at most the SLO",
        run: |bench| rows::lab(bench, "rpc_hosts"),
    },
    Row {
        issue: 19,
        name: "rpc goodput unchanged",
        bar: "1,000 clients at 1.2x, 2x, 5x, 10x: at least 0.98 of the capacity",
        run: rpc_sim::goodput,
    },
    Row {
        issue: 19,
        name: "rpc spike unchanged",
        bar: "goodput of the first 20 ms at least 0.97, each bin of 1 ms: p99 at most the SLO",
        run: rpc_sim::spike,
    },
    Row {
        issue: 19,
        name: "rpc million unchanged",
        bar: "1,000,000 clients at once: 0.97 of the possible, at 2x first 0.88; 0.1 extra messages a call",
        run: rpc_sim::million,
    },
    Row {
        issue: 19,
        name: "rpc wedges",
        bar: "0 violations in the model and 0 wedges over 10,000 seeds of faults; 64 bytes a session",
        run: rpc_cost::conservation,
    },
    Row {
        issue: 19,
        name: "rpc decision, throttled too",
        bar: "at most 60 ns alone, 150 ns with two threads",
        run: rpc_cost::decision_throttled,
    },
    Row {
        issue: 19,
        name: "rpc tcp beside bare tonic",
        bar: "half of each server's capacity, CPU of a call beside its work: at most 0.35 of bare tonic's",
        run: rpc_tcp::cost_beside_bare,
    },
    Row {
        issue: 19,
        name: "grpc-go callers",
        bar: "interceptors, Rust and grpc-go servers, 1x, 2x, 10x, and 1x with the SLO told: goodput at least 0.95 of the \
              capacity",
        run: rpc_go::run,
    },
];

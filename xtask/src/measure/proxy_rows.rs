//! The bars of the proxy, one row each.

use super::rows::Row;
use super::{
    proxy_attack, proxy_cheap, proxy_cost, proxy_hellos, proxy_names, proxy_noise, proxy_paced, proxy_placed,
    proxy_reconnect, proxy_shared, proxy_spike,
};

/// In the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row {
        issue: 4,
        name: "proxy spike",
        bar: "A: 100 %, p99 1.25x alone; B 80 % of the rest; learnt in 1 s, muted in 100 ms, given back in 2 s",
        run: proxy_spike::spike,
    },
    Row {
        issue: 4,
        name: "proxy flood",
        bar: "30,000 hellos/s: A 100 %, p99 2x alone; 15 us of CPU for each",
        run: proxy_spike::flood,
    },
    Row {
        issue: 4,
        name: "proxy noise",
        bar: "each other resource: A's p99 1.5x alone, 0 refusals of A",
        run: proxy_noise::noise,
    },
    Row {
        issue: 4,
        name: "proxy overload",
        bar: "3x: goodput 95 % of a core, 0 time-outs under the fair share",
        run: proxy_noise::overload,
    },
    Row { issue: 4, name: "proxy cpu keep-alive", bar: "at most 1.2x HAProxy's", run: proxy_cost::keep_alive },
    Row { issue: 4, name: "proxy cpu tls", bar: "at most nginx's, ECDSA and RSA", run: proxy_cost::tls },
    Row { issue: 4, name: "proxy limiters", bar: "at most 0.3 us of a request", run: proxy_cost::limiters },
    Row {
        issue: 4,
        name: "proxy decision",
        bar: "40 ns resolved, 300 ns of a million; 100,000 rebalanced in 5 ms, slices of 200 us",
        run: proxy_cost::decision,
    },
    Row { issue: 4, name: "proxy invariants", bar: "0 violations over 10,000 seeds", run: proxy_cost::invariants },
    Row {
        issue: 4,
        name: "proxy idle memory",
        bar: "a TLS connection: at most 2x HAProxy's",
        run: proxy_cost::idle_memory,
    },
    Row { issue: 4, name: "proxy reload", bar: "0 failed requests", run: proxy_cost::reload },
    Row { issue: 4, name: "proxy h2spec", bar: "146 of 146, strict, h2c and TLS", run: proxy_attack::h2spec },
    Row {
        issue: 4,
        name: "proxy smuggling",
        bar: "at least 200 cases, 0 desyncs, nothing unclean upstream; nginx and HAProxy beside it",
        run: proxy_attack::smuggling,
    },
    Row {
        issue: 4,
        name: "proxy attacks",
        bar: "the other tenant's goodput 95 %, 99 % after; memory grows by at most 64 MiB",
        run: proxy_attack::attacks,
    },
    Row {
        issue: 20,
        name: "cheap answers",
        bar: "under their share: 100 %, p99 1.5x nginx's or 2 ms; all goodput 0.9 of nginx's and of its own without limits",
        run: proxy_cheap::beside,
    },
    Row {
        issue: 20,
        name: "one tenant alone",
        bar: "0 refused, 0.98 of mode off, longest wait at most nginx's",
        run: proxy_cheap::alone,
    },
    Row {
        issue: 20,
        name: "paced bytes",
        bar: "endless answers and tunnels of B, held to 100 MB/s: B within 5 %, A's p99 1.5x alone",
        run: proxy_paced::paced,
    },
    Row {
        issue: 20,
        name: "spike beside a busy program",
        bar: "A: 100 %, p99 1.25x alone there; B 80 % of the rest; learnt in 1 s",
        run: proxy_placed::beside_a_busy_program,
    },
    Row {
        issue: 20,
        name: "spike under a quota",
        bar: "50 ms of every 100; A: 100 %, p99 1.25x alone there; B 80 % of the rest; learnt in 1 s",
        run: proxy_placed::under_a_quota,
    },
    Row {
        issue: 20,
        name: "spike beside busy groups",
        bar: "two of them; A: 100 %, p99 1.25x alone there; B 80 % of the rest; learnt in 1 s",
        run: proxy_placed::beside_busy_groups,
    },
    Row {
        issue: 20,
        name: "refused clients",
        bar: "that reconnect at once: goodput 0.6 of the capacity; that back off: 0.95; A 100 %",
        run: proxy_reconnect::reconnect,
    },
    Row {
        issue: 20,
        name: "invented names",
        bar: "100,000 SNIs and Hosts, 2,000/s and all that can be sent: A 100 %, p99 1.5x alone",
        run: proxy_names::invented,
    },
    Row {
        issue: 20,
        name: "hellos held",
        bar: "hellos/s of B up to which A's p99 is 2x alone: 3x HAProxy's with its limit by SNI",
        run: proxy_hellos::held,
    },
    Row {
        issue: 20,
        name: "idle connections",
        bar: "one tenant alone: 0.95 of HAProxy's with the same limit of open files",
        run: proxy_names::idle,
    },
    Row {
        issue: 20,
        name: "shared upstream",
        bar: "A and B behind one upstream, HTTP/1 and h2c: A's p99 1.5x alone, 0 refusals of A",
        run: proxy_shared::flooded,
    },
    Row {
        issue: 20,
        name: "stalled readers",
        bar: "1 to 1,000 of B, upstreams of HTTP/1 and h2c: A's p99 1.5x alone, 0 refusals of A",
        run: proxy_shared::stalled,
    },
];

//! The bars of a broker that keeps its limit and its messages through restarts, shards and hostile clients, one row each.

use super::rows::Row;
use super::{cost, crowd, kills, law, memory, stalled, statsd};

/// In the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row {
        issue: 18,
        name: "law at sockets",
        bar: "0 violations over 10^6 messages, 0 accepted messages lost, through restarts, deletions and edits",
        run: law::law,
    },
    Row {
        issue: 18,
        name: "kills of new topics",
        bar: "100 SIGKILLs within 50 ms of the first publish, all synced: 0 acknowledged messages lost",
        run: kills::new_topics,
    },
    Row {
        issue: 18,
        name: "one pub at a time",
        bar: "2, 100, 1,000 connections: 1.4x, 1.6x, 1.5x nsqd, 0.75 of an echo server",
        run: cost::one_at_a_time,
    },
    Row {
        issue: 18,
        name: "batches of ten",
        bar: "MPUB of 10, its delivery: 2.5x, 4x nsqd",
        run: cost::batches_of_ten,
    },
    Row {
        issue: 18,
        name: "memory bounds",
        bar: "full line or queue of 1-byte bodies, 10^6 deferred: growth at most 1.5x the bound",
        run: memory::bounds,
    },
    Row {
        issue: 18,
        name: "stalled clients",
        bar: "2,000 POSTs, 1,000 handshakes: /ping at most 100 ms, a publisher's p99 at most 1.5x",
        run: stalled::stalled,
    },
    Row {
        issue: 18,
        name: "watched crowd",
        bar: "10,000 topics, /metrics each second, the console open: p99 of a probe at most 2x",
        run: crowd::watched,
    },
    Row {
        issue: 18,
        name: "crowd comes and goes",
        bar: "10,000 topics by PUB 5 s, 20,000 queues saved 30 s and found 15 s, 0 lost",
        run: crowd::come_and_go,
    },
    Row { issue: 18, name: "statsd", bar: "the same load: nsqd's names and values", run: statsd::same_names },
];

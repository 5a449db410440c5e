//! The books of all shards as one JSON document.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::estimate::Histogram;
use tidegate_rpc::machine::{Priority, ShedReason};

use super::book::{Calls, micros};
use super::watched::Seen;

/// Clients that are shown one by one: those with the most calls. The rest is counted.
const CLIENTS: usize = 50;

/// A server at one moment. Counters are since its start, spans in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(super) scheme: &'static str,
    pub(super) now_ms: u64,
    pub(super) uptime_s: f64,
    pub(super) shards: usize,
    pub(super) offered_total: u64,
    pub(super) served_total: u64,
    /// Served within the objective.
    pub(super) good_total: u64,
    pub(super) shed_total: u64,
    pub(super) cancelled_total: u64,
    pub(super) sheds_by_reason: BTreeMap<ShedReason, u64>,
    pub(super) priorities: Vec<PriorityRow>,
    /// Of calls that were started in the last ten seconds.
    pub(super) queueing_delay_us: Delay,
    /// Calls that wait at clients, as they last said.
    pub(super) demand: u64,
    pub(super) sessions: usize,
    /// Calls that are in the server.
    pub(super) in_server: u64,
    /// What Tidegate's own scheme measures and decides; `null` for another.
    pub(super) control: Option<Control>,
    /// The busiest, most calls first.
    pub(super) clients: Vec<ClientRow>,
    pub(super) clients_left_out: usize,
}

/// Quantiles in microseconds; zeros while `count` is.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Delay {
    pub(super) count: u64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

/// What Tidegate's own scheme measures and decides, all shards together.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Control {
    /// Credits that clients hold.
    pub(super) credits: u64,
    /// Calls a second that can be served; 0 while unknown.
    pub(super) capacity_per_s: f64,
    /// Calls a second that are let through at most; 0 while nobody is held back.
    pub(super) supply_per_s: f64,
    /// The share of ordinary calls that clients are told to send: the least of the shards.
    pub(super) send_share: f64,
    /// How long a call may take, and how long it may wait: the longest of the shards.
    pub(super) objective_us: f64,
    pub(super) longest_wait_us: f64,
    /// Share of the cores' time that is idle, the mean of the shards.
    pub(super) idle: f64,
    pub(super) waiting: u64,
    pub(super) in_service: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct PriorityRow {
    pub(super) priority: u8,
    pub(super) offered_total: u64,
    pub(super) served_total: u64,
    pub(super) shed_total: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ClientRow {
    pub(super) shard: usize,
    pub(super) session: usize,
    pub(super) tenant: u32,
    pub(super) offered_total: u64,
    pub(super) served_total: u64,
    pub(super) shed_total: u64,
    pub(super) demand: u32,
    pub(super) credits: u32,
    pub(super) in_server: u32,
}

impl Snapshot {
    /// Of a server that runs `scheme` since `since`.
    pub(super) fn of(scheme: &'static str, since: Instant, seen: &[Seen], now: Instant) -> Self {
        let mut calls = Calls::default();
        let (mut good, mut cancelled) = (0, 0);
        let mut by_reason = BTreeMap::new();
        let mut by_priority: BTreeMap<Priority, Calls> = BTreeMap::new();
        let mut delays = Histogram::new();
        for Seen { book, .. } in seen {
            calls.add(book.calls);
            good += book.in_objective;
            cancelled += book.cancelled;
            book.by_reason.iter().for_each(|(reason, count)| *by_reason.entry(*reason).or_default() += count);
            book.by_priority.iter().for_each(|(priority, one)| by_priority.entry(*priority).or_default().add(*one));
            book.delays.merge_into(&mut delays, now);
        }
        let clients = || seen.iter().flat_map(|one| one.book.clients()).map(|(_, client)| client);
        let sessions = clients().count();
        let rows = client_rows(seen);
        Self {
            scheme,
            now_ms: now.as_nanos() / 1_000_000,
            uptime_s: now.since(since).as_secs_f64(),
            shards: seen.len(),
            offered_total: calls.offered,
            served_total: calls.served,
            good_total: good,
            shed_total: calls.shed,
            cancelled_total: cancelled,
            sheds_by_reason: by_reason,
            priorities: by_priority.into_iter().map(priority_row).collect(),
            queueing_delay_us: Delay::of(&delays),
            demand: clients().map(|client| u64::from(client.demand)).sum(),
            sessions,
            in_server: clients().map(|client| u64::from(client.in_server)).sum(),
            control: control(seen),
            clients_left_out: sessions - rows.len(),
            clients: rows,
        }
    }
}

impl Delay {
    fn of(delays: &Histogram) -> Self {
        if delays.is_empty() {
            return Self::default();
        }
        let at = |quantile| float(delays.quantile(quantile)) / 1e3;
        Self { count: delays.count(), p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }
}

fn control(seen: &[Seen]) -> Option<Control> {
    let mut all = Control { send_share: 1.0, ..Control::default() };
    for one in seen {
        let gauges = one.gauges?;
        all.credits += u64::from(gauges.credits);
        all.capacity_per_s += gauges.capacity_per_s;
        all.supply_per_s += gauges.supply_per_s;
        all.send_share = all.send_share.min(one.send_share.unwrap_or(1.0));
        all.objective_us = all.objective_us.max(micros(gauges.objective));
        all.longest_wait_us = all.longest_wait_us.max(micros(gauges.longest_wait));
        all.idle += gauges.idle / float(seen.len() as u64);
        all.waiting += u64::from(gauges.waiting);
        all.in_service += u64::from(gauges.in_service);
    }
    Some(all)
}

fn priority_row((Priority(priority), calls): (Priority, Calls)) -> PriorityRow {
    let Calls { offered, served, shed } = calls;
    PriorityRow { priority, offered_total: offered, served_total: served, shed_total: shed }
}

fn client_rows(seen: &[Seen]) -> Vec<ClientRow> {
    let mut rows = Vec::new();
    for (shard, one) in seen.iter().enumerate() {
        rows.extend(one.book.clients().map(|(session, client)| ClientRow {
            shard,
            session,
            tenant: client.tenant.0,
            offered_total: client.calls.offered,
            served_total: client.calls.served,
            shed_total: client.calls.shed,
            demand: client.demand,
            credits: client.credits,
            in_server: client.in_server,
        }));
    }
    let busiest = |row: &ClientRow| (Reverse(row.offered_total), row.shard, row.session);
    if rows.len() > CLIENTS {
        rows.select_nth_unstable_by_key(CLIENTS, busiest);
        rows.truncate(CLIENTS);
    }
    rows.sort_unstable_by_key(busiest);
    rows
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

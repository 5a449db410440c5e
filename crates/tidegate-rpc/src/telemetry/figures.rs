//! A server at one moment, as one document for programs and pages.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::estimate::Histogram;

use super::book::Book;
use super::calls::{Calls, Class};
use crate::io::layer::Mode;
use crate::machine::ShedReason;
use crate::machine::short::{Short, Shortage, View};

/// Clients that are shown one by one: those with the most calls. The rest is counted.
pub const CLIENTS: usize = 50;

/// What was seen of one shard, or of a layer.
#[derive(Clone, Debug)]
pub struct Look {
    /// What was counted.
    pub book: Book,
    /// What the scheme shows of itself.
    pub view: Option<View>,
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// Calls that would have been shed in a dry run, by reason.
    pub would_have_shed: BTreeMap<ShedReason, u64>,
    /// Calls that passed by.
    pub exempt: u64,
    /// Calls in the server, and those of them that no core has started.
    pub in_server: u64,
    /// See `in_server`.
    pub waiting: u64,
    /// Calls that wait at clients, as they last said.
    pub demand: u64,
    /// Connected clients.
    pub sessions: usize,
    /// They, or the busiest of them; `shard` is set by [`Figures::of`].
    pub clients: Vec<ClientRow>,
}

/// A server at one moment. Counters are since its start, spans in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// The scheme's name.
    pub scheme: Cow<'static, str>,
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// The server's own clock.
    pub now_ms: u64,
    /// Since the start.
    pub uptime_s: f64,
    /// Parts that were added up.
    pub shards: usize,
    /// Calls by what became of them.
    #[serde(flatten)]
    pub calls: CallsTotal,
    /// Served within the objective.
    pub good_total: u64,
    /// Whose caller went away.
    pub cancelled_total: u64,
    /// That passed by: health checks, and calls of handlers to their own service.
    pub exempt_total: u64,
    /// By reason.
    pub sheds_by_reason: BTreeMap<ShedReason, u64>,
    /// Calls that a dry run would have shed, by reason.
    pub would_have_shed_by_reason: BTreeMap<ShedReason, u64>,
    /// The four classes, what matters most first.
    pub classes: Vec<ClassRow>,
    /// The tenants with the most calls, then all others.
    pub tenants: Vec<TenantRow>,
    /// Of calls that were started in the last ten seconds.
    pub queueing_delay_us: Times,
    /// Of calls that were served in the last ten seconds: from start to end, waits of handlers included.
    pub service_time_us: Times,
    /// Calls that wait at clients, as they last said.
    pub demand: u64,
    /// Connected clients.
    pub sessions: usize,
    /// Calls in the server.
    pub in_server: u64,
    /// Those of them that no core has started.
    pub waiting: u64,
    /// What Tidegate's own scheme measures and decides; `null` for another.
    pub control: Option<Control>,
    /// What is short; `null` for other schemes than Tidegate's.
    pub short: Option<ShortRow>,
    /// The busiest, most calls first.
    pub clients: Vec<ClientRow>,
    /// Clients that are not among them.
    pub clients_left_out: usize,
}

/// [`Calls`] under their names in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CallsTotal {
    /// That arrived.
    pub offered_total: u64,
    /// Whose handlers were started.
    pub admitted_total: u64,
    /// Whose handlers ran to the end.
    pub served_total: u64,
    /// Those of them within their caller's time.
    pub in_time_total: u64,
    /// That were refused.
    pub shed_total: u64,
}

impl From<Calls> for CallsTotal {
    fn from(Calls { offered, admitted, served, in_time, shed }: Calls) -> Self {
        Self {
            offered_total: offered,
            admitted_total: admitted,
            served_total: served,
            in_time_total: in_time,
            shed_total: shed,
        }
    }
}

impl From<CallsTotal> for Calls {
    fn from(total: CallsTotal) -> Self {
        let CallsTotal { offered_total, admitted_total, served_total, in_time_total, shed_total } = total;
        let (offered, admitted, served) = (offered_total, admitted_total, served_total);
        Self { offered, admitted, served, in_time: in_time_total, shed: shed_total }
    }
}

/// Quantiles in microseconds; zeros while `count` is.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Times {
    /// Calls that were measured.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// One in a hundred is longer.
    pub p99: f64,
    /// One in a thousand is longer.
    pub p999: f64,
}

/// What Tidegate's own scheme measures and decides, all shards together.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Control {
    /// Credits that clients hold.
    pub credits: u64,
    /// Calls a second that can be served; 0 while unknown.
    pub capacity_per_s: f64,
    /// Calls a second that are let through at most; 0 while nobody is held back.
    pub supply_per_s: f64,
    /// The share of ordinary calls that clients are told to send, which is their level: the least of the shards.
    pub send_share: f64,
    /// How long a call may take, and how long it may wait: the longest of the shards.
    pub objective_us: f64,
    /// See `objective_us`.
    pub longest_wait_us: f64,
    /// Share of the cores' time that is idle, the mean of the shards.
    pub idle: f64,
    /// Calls that wait.
    pub waiting: u64,
    /// Calls that take a core.
    pub in_service: u64,
    /// Calls that were started and have not ended.
    pub in_flight: u64,
    /// How many there may be; `null` while nothing but cores bounds them.
    pub in_flight_limit: Option<u64>,
}

/// What is short: of several shards, that of the one that lacks most.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ShortRow {
    /// What.
    pub what: Shortage,
    /// For how long it has been that.
    pub for_s: f64,
    /// All of it in one sentence.
    pub sentence: String,
    /// See [`Short`].
    pub idle_share: f64,
    /// See [`Short`].
    pub held_share: f64,
    /// See [`Short`].
    pub message_share: f64,
    /// How long the oldest waiting call has waited.
    pub queueing_delay_us: f64,
    /// How long a call may take.
    pub objective_us: f64,
    /// Calls that were started and have not ended.
    pub in_flight: u32,
    /// How many there may be.
    pub limit: Option<u32>,
}

/// Calls of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ClassRow {
    /// Which.
    pub class: Class,
    /// Its calls.
    #[serde(flatten)]
    pub calls: CallsTotal,
}

/// Calls of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TenantRow {
    /// Which; `null` for all that have no row of their own.
    pub tenant: Option<u32>,
    /// Its calls.
    #[serde(flatten)]
    pub calls: CallsTotal,
}

/// One client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ClientRow {
    /// The shard that it is connected to.
    pub shard: usize,
    /// Its session's number there.
    pub session: u32,
    /// Whom it belongs to.
    pub tenant: u32,
    /// Its calls that arrived.
    pub offered_total: u64,
    /// Its calls whose handlers ran to the end.
    pub served_total: u64,
    /// Its calls that were refused.
    pub shed_total: u64,
    /// Calls that wait at it, as it last said.
    pub demand: u32,
    /// Credits that it holds.
    pub credits: u32,
    /// Its calls in the server.
    pub in_server: u32,
}

impl Figures {
    /// Of a server that runs `scheme`, by what was seen of its shards, of which there is one at least.
    #[must_use]
    pub fn of(scheme: impl Into<Cow<'static, str>>, looks: &[Look], now: Instant) -> Self {
        let since = looks.iter().map(|look| look.book.since()).min().unwrap_or(now);
        let mut all = Book::new(now);
        let (mut sheds, mut would) = (BTreeMap::new(), BTreeMap::new());
        let mut tenants: BTreeMap<(bool, Option<u32>), Calls> = BTreeMap::new();
        let (mut delays, mut services) = (Histogram::new(), Histogram::new());
        for Look { book, would_have_shed, .. } in looks {
            all.calls.add(book.calls);
            all.in_objective += book.in_objective;
            all.cancelled += book.cancelled;
            all.by_class.iter_mut().zip(book.by_class).for_each(|(sum, calls)| sum.add(calls));
            for reason in ShedReason::ALL.into_iter().filter(|reason| book.shed_for(*reason) > 0) {
                *sheds.entry(reason).or_default() += book.shed_for(reason);
            }
            for (tenant, calls) in book.by_tenant.rows() {
                tenants.entry((tenant.is_none(), tenant.map(|tenant| tenant.0))).or_default().add(calls);
            }
            for (reason, calls) in would_have_shed {
                *would.entry(*reason).or_default() += calls;
            }
            book.queueing_delays.merge_into(&mut delays, now);
            book.service_times.merge_into(&mut services, now);
        }
        let sum = |of: fn(&Look) -> u64| looks.iter().map(of).sum();
        let sessions = looks.iter().map(|look| look.sessions).sum();
        let clients = client_rows(looks);
        Self {
            scheme: scheme.into(),
            mode: looks.first().map_or(Mode::default(), |look| look.mode),
            now_ms: now.as_nanos() / 1_000_000,
            uptime_s: now.since(since).as_secs_f64(),
            shards: looks.len(),
            calls: all.calls.into(),
            good_total: all.in_objective,
            cancelled_total: all.cancelled,
            exempt_total: sum(|look| look.exempt),
            sheds_by_reason: sheds,
            would_have_shed_by_reason: would,
            classes: Class::ALL.map(|class| ClassRow { class, calls: all.class(class).into() }).into(),
            tenants: tenant_rows(tenants),
            queueing_delay_us: Times::of(&delays),
            service_time_us: Times::of(&services),
            demand: sum(|look| look.demand),
            sessions,
            in_server: sum(|look| look.in_server),
            waiting: sum(|look| look.waiting),
            control: control(looks),
            short: short(looks, now),
            clients_left_out: sessions.saturating_sub(clients.len()),
            clients,
        }
    }
}

impl Times {
    fn of(times: &Histogram) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        let at = |quantile| float(times.quantile(quantile)) / 1e3;
        Self { count: times.count(), p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }

    /// Each quantile with its place, in seconds; none while nothing was measured.
    pub(super) fn quantiles(self) -> Vec<(&'static str, f64)> {
        let Self { count, p50, p99, p999 } = self;
        let all = [("0.5", p50), ("0.99", p99), ("0.999", p999)];
        all.into_iter().filter(|_| count > 0).map(|(place, us)| (place, us / 1e6)).collect()
    }
}

fn tenant_rows(tenants: BTreeMap<(bool, Option<u32>), Calls>) -> Vec<TenantRow> {
    let row = |((_, tenant), calls): (_, Calls)| TenantRow { tenant, calls: calls.into() };
    tenants.into_iter().map(row).collect()
}

fn control(looks: &[Look]) -> Option<Control> {
    let mut all = Control { send_share: 1.0, ..Control::default() };
    for look in looks {
        let View { gauges, send_share, .. } = look.view?;
        all.credits += u64::from(gauges.credits);
        all.capacity_per_s += gauges.capacity_per_s;
        all.supply_per_s += gauges.supply_per_s;
        all.send_share = all.send_share.min(send_share);
        all.objective_us = all.objective_us.max(micros(gauges.objective));
        all.longest_wait_us = all.longest_wait_us.max(micros(gauges.longest_wait));
        all.idle += gauges.idle / float(looks.len() as u64);
        all.waiting += u64::from(gauges.waiting);
        all.in_service += u64::from(gauges.in_service);
        all.in_flight += u64::from(gauges.in_flight);
        if let Some(limit) = gauges.in_flight_limit {
            *all.in_flight_limit.get_or_insert(0) += u64::from(limit);
        }
    }
    Some(all)
}

fn short(looks: &[Look], now: Instant) -> Option<ShortRow> {
    let shorts = looks.iter().filter_map(|look| Some(look.view?.short));
    let worst: Short = shorts.max_by_key(|short| (short.what, core::cmp::Reverse(short.since)))?;
    Some(ShortRow {
        what: worst.what,
        for_s: now.since(worst.since).as_secs_f64(),
        sentence: worst.to_string(),
        idle_share: worst.idle_share,
        held_share: worst.held_share,
        message_share: worst.message_share,
        queueing_delay_us: micros(worst.queueing_delay),
        objective_us: micros(worst.objective),
        in_flight: worst.in_flight,
        limit: worst.limit,
    })
}

fn client_rows(looks: &[Look]) -> Vec<ClientRow> {
    let shards = looks.iter().enumerate();
    let mut rows: Vec<ClientRow> =
        shards.flat_map(|(shard, look)| look.clients.iter().map(move |row| ClientRow { shard, ..*row })).collect();
    let busiest = |row: &ClientRow| (core::cmp::Reverse(row.offered_total), row.shard, row.session);
    if rows.len() > CLIENTS {
        rows.select_nth_unstable_by_key(CLIENTS, busiest);
        rows.truncate(CLIENTS);
    }
    rows.sort_unstable_by_key(busiest);
    rows
}

/// A span in microseconds.
pub(super) fn micros(span: core::time::Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

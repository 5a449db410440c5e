//! The list of metrics: what Prometheus and OpenTelemetry are told, and how it is read from the figures.

use std::borrow::Cow;

use super::calls::Calls;
use super::figures::{Control, Figures, float};
use crate::io::layer::Mode;
use crate::io::layer::headers::reason_word;
use crate::machine::short::Shortage;

/// Whether a metric only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// One value of a metric, with its labels.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Series {
    pub(super) labels: Vec<(&'static str, Cow<'static, str>)>,
    pub(super) value: f64,
}

/// One metric.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    /// Its unit as OpenTelemetry has it.
    #[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "Prometheus has it in the name"))]
    pub(super) unit: &'static str,
    pub(super) series: fn(&Figures) -> Vec<Series>,
}

/// All metrics, in the order of the page and of the book.
pub(super) const METRICS: &[Metric] = &[
    counter("tidegate_rpc_offered_calls_total", "Calls that arrived.", |f| one(f.calls.offered_total)),
    counter("tidegate_rpc_admitted_calls_total", "Calls whose handler was started.", |f| one(f.calls.admitted_total)),
    counter("tidegate_rpc_served_calls_total", "Calls whose handler ran to the end.", |f| one(f.calls.served_total)),
    counter("tidegate_rpc_in_time_calls_total", "Calls served within the time that their caller had left.", |f| {
        one(f.calls.in_time_total)
    }),
    counter("tidegate_rpc_good_calls_total", "Calls served within the objective.", |f| one(f.good_total)),
    counter("tidegate_rpc_cancelled_calls_total", "Calls whose caller went away.", |f| one(f.cancelled_total)),
    counter("tidegate_rpc_exempt_calls_total", "Calls that passed by.", |f| one(f.exempt_total)),
    counter("tidegate_rpc_shed_calls_total", "Calls shed, by reason.", |f| reasons(&f.sheds_by_reason)),
    counter("tidegate_rpc_would_shed_calls_total", "Calls that a dry run would have shed, by reason.", |f| {
        reasons(&f.would_have_shed_by_reason)
    }),
    counter("tidegate_rpc_priority_calls_total", "Calls by class of priority and by what became of them.", |f| {
        f.classes.iter().flat_map(|row| fates("priority", row.class.word().into(), row.calls.into())).collect()
    }),
    counter("tidegate_rpc_tenant_calls_total", "Calls by tenant and by what became of them.", |f| {
        let name = |tenant: Option<u32>| tenant.map_or("other".into(), |tenant| Cow::Owned(tenant.to_string()));
        f.tenants.iter().flat_map(|row| fates("tenant", name(row.tenant), row.calls.into())).collect()
    }),
    gauge(
        "tidegate_rpc_queueing_delay_seconds",
        "s",
        "Wait of calls before their start, over the last ten seconds.",
        |f| quantiles(f.queueing_delay_us.quantiles()),
    ),
    gauge(
        "tidegate_rpc_service_time_seconds",
        "s",
        "From a call's start to its end, over the last ten seconds.",
        |f| quantiles(f.service_time_us.quantiles()),
    ),
    gauge("tidegate_rpc_sessions", "{session}", "Connected clients.", |f| one(f.sessions as u64)),
    gauge("tidegate_rpc_demand_calls", "{call}", "Calls that wait at clients, as they last said.", |f| one(f.demand)),
    gauge("tidegate_rpc_in_server_calls", "{call}", "Calls in the server.", |f| one(f.in_server)),
    gauge("tidegate_rpc_waiting_calls", "{call}", "Calls in the server that no core has started.", |f| one(f.waiting)),
    gauge("tidegate_rpc_dry_run_bool", "1", "1 while verdicts are only counted.", |f| {
        one((f.mode == Mode::DryRun).into())
    }),
    gauge("tidegate_rpc_uptime_seconds", "s", "Time since the start.", |f| vec![plain(f.uptime_s)]),
    gauge("tidegate_rpc_short_bool", "1", "1 for what is short now.", |f| {
        let short =
            |what: Shortage| f.short.as_ref().map(|now| labelled("what", what.word(), f64::from(now.what == what)));
        Shortage::ALL.into_iter().filter_map(short).collect()
    }),
    gauge("tidegate_rpc_credits", "{credit}", "Credits that clients hold.", |f| control(f, |c| float(c.credits))),
    gauge("tidegate_rpc_capacity_calls_per_second", "{call}/s", "Calls a second that can be served, as learnt.", |f| {
        control(f, |c| c.capacity_per_s)
    }),
    gauge(
        "tidegate_rpc_supply_calls_per_second",
        "{call}/s",
        "Calls a second let through; 0 while nobody is held back.",
        |f| control(f, |c| c.supply_per_s),
    ),
    gauge("tidegate_rpc_send_ratio", "1", "Share of ordinary calls that clients are told to send.", |f| {
        control(f, |c| c.send_share)
    }),
    gauge("tidegate_rpc_objective_seconds", "s", "How long a call may take, as learnt.", |f| {
        control(f, |c| c.objective_us / 1e6)
    }),
    gauge("tidegate_rpc_longest_wait_seconds", "s", "How long a call may wait.", |f| {
        control(f, |c| c.longest_wait_us / 1e6)
    }),
    gauge("tidegate_rpc_idle_ratio", "1", "Share of the cores' time without work.", |f| control(f, |c| c.idle)),
    gauge(
        "tidegate_rpc_held_ratio",
        "1",
        "Share of the cores' time without work although calls waited for a place.",
        |f| f.short.iter().map(|short| plain(short.held_share)).collect(),
    ),
    gauge("tidegate_rpc_in_flight_calls", "{call}", "Calls that were started and have not ended.", |f| {
        control(f, |c| float(c.in_flight))
    }),
    gauge(
        "tidegate_rpc_in_flight_limit_calls",
        "{call}",
        "How many may be in flight, as learnt; 0 for any number.",
        |f| control(f, |c| float(c.in_flight_limit.unwrap_or(0))),
    ),
];

const fn counter(name: &'static str, help: &'static str, series: fn(&Figures) -> Vec<Series>) -> Metric {
    Metric { name, help, kind: Kind::Counter, unit: "{call}", series }
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    series: fn(&Figures) -> Vec<Series>,
) -> Metric {
    Metric { name, help, kind: Kind::Gauge, unit, series }
}

fn plain(value: f64) -> Series {
    Series { labels: Vec::new(), value }
}

fn one(count: u64) -> Vec<Series> {
    vec![plain(float(count))]
}

fn labelled(name: &'static str, label: impl Into<Cow<'static, str>>, value: f64) -> Series {
    Series { labels: vec![(name, label.into())], value }
}

fn control(figures: &Figures, of: fn(&Control) -> f64) -> Vec<Series> {
    figures.control.iter().map(|control| plain(of(control))).collect()
}

fn quantiles(quantiles: Vec<(&'static str, f64)>) -> Vec<Series> {
    quantiles.into_iter().map(|(place, seconds)| labelled("quantile", place, seconds)).collect()
}

fn reasons(by_reason: &std::collections::BTreeMap<crate::machine::ShedReason, u64>) -> Vec<Series> {
    by_reason.iter().map(|(reason, calls)| labelled("reason", reason_word(*reason), float(*calls))).collect()
}

fn fates(name: &'static str, label: Cow<'static, str>, calls: Calls) -> impl Iterator<Item = Series> {
    calls.fates().into_iter().map(move |(fate, calls)| Series {
        labels: vec![(name, label.clone()), ("fate", fate.into())],
        value: float(calls),
    })
}

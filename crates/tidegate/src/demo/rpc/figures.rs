//! What the page is shown.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use tidegate_lab::rpc::window::Place;
use tidegate_lab::rpc::{Scenario, Window};
use tidegate_rpc::machine::credits::CreditServer;
use tidegate_rpc::machine::{Priority, Tenant};

/// The plant that all schemes share.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Plan {
    pub(crate) capacity_per_s: f64,
    pub(crate) slo_us: f64,
    cores: u32,
    clients: u32,
    service_us: f64,
    round_trip_us: f64,
    /// Milliseconds of the server in a second on screen.
    pub(crate) virtual_ms_per_s: f64,
}

impl Plan {
    pub(crate) fn of(scenario: &Scenario, virtual_per_s: Duration) -> Self {
        Self {
            capacity_per_s: scenario.capacity(),
            slo_us: micros(scenario.slo()),
            cores: scenario.cores,
            clients: scenario.clients(),
            service_us: micros(scenario.service.mean),
            round_trip_us: micros(scenario.round_trip),
            virtual_ms_per_s: virtual_per_s.as_secs_f64() * 1e3,
        }
    }

    /// Calls within `seconds`, as a share of the capacity.
    fn share(&self, calls: u64, seconds: f64) -> f64 {
        if seconds > 0.0 { float(calls) / (self.capacity_per_s * seconds) } else { 0.0 }
    }
}

/// One scheme over the last second on screen. Shares are of the capacity, so that what became of the calls adds up to
/// what was offered, but for those still under way.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) offered: f64,
    /// Answered within the SLO.
    pub(crate) goodput: f64,
    /// Answered too late to be of use.
    pub(crate) late: f64,
    /// Refused beside the caller.
    pub(crate) refused_local: f64,
    /// Refused by the server.
    pub(crate) refused_remote: f64,
    /// Given up since their caller held too many.
    pub(crate) lost: f64,
    pub(crate) p50_us: f64,
    /// Of answered calls; zero if there were none.
    pub(crate) p99_us: f64,
    /// From the call to the refusal; zero if nothing was refused.
    pub(crate) notice_p99_us: f64,
    /// Calls without an answer yet.
    pub(crate) under_way: usize,
}

impl Figures {
    /// Of a window of so many virtual seconds, if there is one.
    pub(crate) fn new(name: &'static str, window: Option<(&Window, f64)>, under_way: usize, plan: &Plan) -> Self {
        let Some((window, seconds)) = window else { return Self { name, under_way, ..Self::default() } };
        let share = |calls| plan.share(calls, seconds);
        let at = |quantile| float(window.response.value_at_quantile(quantile)) / 1e3;
        Self {
            name,
            offered: share(window.calls.offered),
            goodput: share(window.calls.in_slo),
            late: share(window.calls.served.saturating_sub(window.calls.in_slo)),
            refused_local: share(window.sheds_at(Place::Client)),
            refused_remote: share(window.sheds_at(Place::Request) + window.sheds_at(Place::Start)),
            lost: share(window.dropped),
            p50_us: at(0.5),
            p99_us: at(0.99),
            notice_p99_us: float(window.notice.value_at_quantile(0.99)) / 1e3,
            under_way,
        }
    }
}

/// What Tidegate's server measures and decides.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Inside {
    /// Credits that clients hold.
    credits: u32,
    /// The level that clients are told.
    level: u32,
    /// The share of ordinary calls that the level lets through.
    pub(crate) send_share: f64,
    /// Calls a second that it has learnt it can serve; 0 while unknown.
    capacity_per_s: f64,
    /// Calls a second that it lets through; 0 while nobody is held back.
    supply_per_s: f64,
    objective_us: f64,
    longest_wait_us: f64,
    waiting: u32,
    in_service: u32,
    pub(crate) sessions: u32,
}

impl Inside {
    pub(crate) fn of(server: &CreditServer) -> Self {
        let gauges = server.gauges();
        let level = server.level(Tenant::default());
        Self {
            credits: gauges.credits,
            level: level.to_wire(),
            send_share: level.chance(Priority::DEFAULT),
            capacity_per_s: gauges.capacity_per_s,
            supply_per_s: gauges.supply_per_s,
            objective_us: micros(gauges.objective),
            longest_wait_us: micros(gauges.longest_wait),
            waiting: gauges.waiting,
            in_service: gauges.in_service,
            sessions: gauges.sessions,
        }
    }
}

/// All schemes in a quarter of a second on screen.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Point {
    t_ms: u64,
    offered: f64,
    /// By scheme.
    goodput: Vec<f64>,
}

impl Point {
    pub(crate) fn new<'a>(t_ms: u64, windows: impl Iterator<Item = (&'a Window, f64)>, plan: &Plan) -> Self {
        let mut point = Self { t_ms, offered: 0.0, goodput: Vec::new() };
        for (window, seconds) in windows {
            point.offered = thousandths(plan.share(window.calls.offered, seconds));
            point.goodput.push(thousandths(plan.share(window.calls.in_slo, seconds)));
        }
        point
    }
}

/// Points as columns, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct History {
    t_ms: Vec<u64>,
    offered: Vec<f64>,
    /// A column for each scheme.
    goodput: Vec<Vec<f64>>,
}

impl History {
    pub(crate) fn of(points: &VecDeque<Point>) -> Self {
        let schemes = points.back().map_or(0, |point| point.goodput.len());
        let column = |scheme: usize| points.iter().filter_map(|point| point.goodput.get(scheme).copied()).collect();
        Self {
            t_ms: points.iter().map(|point| point.t_ms).collect(),
            offered: points.iter().map(|point| point.offered).collect(),
            goodput: (0..schemes).map(column).collect(),
        }
    }
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// As exact as a chart shows it, and short as text.
fn thousandths(share: f64) -> f64 {
    (share * 1e3).round() / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(count: u64) -> f64 {
    count as f64
}

//! A run from warm-up to end, and its figures.

use core::time::Duration;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_core::allocate::{Claim, weighted_max_min};
use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::{Client, Priority, Server, ShedReason, Tenant};

use super::Plant;
use super::arrivals::kinds;
use super::scenario::{Scenario, ScenarioError};
use super::window::{Place, Share, Window};

/// Quantiles of spans of time, in microseconds; zeros if there were none.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Quantiles {
    /// How many spans.
    pub count: u64,
    /// Half are not longer.
    pub p50_us: f64,
    /// 90 %.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Quantiles {
    fn of(spans: &Histogram<u64>) -> Self {
        let at = |quantile| micros(spans.value_at_quantile(quantile));
        if spans.is_empty() {
            return Self::default();
        }
        Self {
            count: spans.len(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: micros(spans.max()),
        }
    }
}

/// Calls refused, by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Sheds {
    /// Beside the caller.
    pub client: u64,
    /// When the server had read them.
    pub request: u64,
    /// When a core would have started them.
    pub start: u64,
}

/// What became of the calls of one priority, tenant or group.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ShareReport {
    /// The priority, the tenant, or the number of the group.
    pub key: u32,
    /// Wanted, a second.
    pub offered_per_s: f64,
    /// Answered, a second.
    pub served_per_s: f64,
    /// Answered within the SLO, a second.
    pub goodput_per_s: f64,
    /// Answered within the SLO, of those wanted.
    pub in_slo: f64,
}

/// A short part of the run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Bin {
    /// Its start, in seconds since the start of the run.
    pub at_s: f64,
    /// Wanted, a second.
    pub offered_per_s: f64,
    /// Answered within the SLO, a second.
    pub goodput_per_s: f64,
    /// 99 % of the response times of answered calls are not longer, in microseconds.
    pub p99_us: f64,
    /// The queueing delay at its end, in microseconds.
    pub queueing_delay_us: f64,
}

/// The figures of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Virtual time measured, in seconds.
    pub seconds: f64,
    /// Calls a second that the cores can serve, when the time for which the host pauses is taken off.
    pub capacity_per_s: f64,
    /// Calls wanted, a second.
    pub offered_per_s: f64,
    /// Calls answered, a second.
    pub served_per_s: f64,
    /// Calls answered within the SLO, a second.
    pub goodput_per_s: f64,
    /// Goodput as a share of the capacity.
    pub goodput_of_capacity: f64,
    /// Goodput as a share of what is possible: at each instant the lesser of load and capacity.
    pub goodput_of_possible: f64,
    /// In microseconds.
    pub slo_us: f64,
    /// Of answered calls, from the call to its answer.
    pub response: Quantiles,
    /// Of refused calls, from the call to the refusal.
    pub notice: Quantiles,
    /// Refused, by place.
    pub sheds: Sheds,
    /// Refused, by reason.
    pub sheds_by_reason: BTreeMap<ShedReason, u64>,
    /// Calls that the plant dropped, since more were under way than the scenario allows.
    pub dropped: u64,
    /// Demand messages and grants outside answers, for each answered call.
    pub extra_messages_per_call: f64,
    /// Of started calls at the server, in microseconds.
    pub mean_queueing_delay_us: f64,
    /// Share of the time for which the host paused.
    pub paused: f64,
    /// Share of the rest of the cores' time that was spent on calls and messages.
    pub busy: f64,
    /// By priority, if there is more than one.
    pub by_priority: Vec<ShareReport>,
    /// By tenant, if there is more than one.
    pub by_tenant: Vec<ShareReport>,
    /// Jain's index of what each client's group got over its max-min share of the capacity, tenants alike; 1 is fair.
    pub max_min_jain: f64,
    /// By group of clients, numbered from 0, if there is more than one.
    pub by_group: Vec<ShareReport>,
    /// Jain's index of the tenants' goodput; 1 is equal.
    pub jain: f64,
    /// Time bins, if the scenario asks for them; over the whole run, warm-up included.
    pub bins: Vec<Bin>,
    /// Events of the whole run.
    pub events: u64,
    /// Calls under way at the end.
    pub under_way: usize,
    /// The hash of the whole run.
    pub trace: String,
}

/// Runs `scenario` with the machines of a scheme.
///
/// # Errors
/// [`ScenarioError`] if the scenario makes no sense or the server cannot hold its clients.
pub fn measure<S: Server, C: Client>(
    scenario: &Scenario,
    server: S,
    client: impl FnMut(Tenant, Instant, &mut Rng) -> C,
) -> Result<Report, ScenarioError> {
    let mut plant = Plant::new(scenario, server, client)?;
    let start = Instant::ZERO + scenario.warm_up;
    let end = start + scenario.duration;
    let mut bins = Vec::new();
    let mut total = plant.window.cleared();
    advance(&mut plant, start, &mut total, &mut bins);
    total = total.cleared();
    advance(&mut plant, end, &mut total, &mut bins);
    Ok(report(&plant, &total, bins))
}

/// Runs up to `end` bin by bin, or at once if there are none, and adds everything to `total`.
fn advance<S: Server, C: Client>(plant: &mut Plant<S, C>, end: Instant, total: &mut Window, bins: &mut Vec<Bin>) {
    while plant.now() < end {
        let from = plant.now();
        let to = plant.scenario.bin.map_or(end, |bin| end.min(from + bin));
        plant.run_until(to);
        let window = plant.take_window();
        total.add(&window);
        if plant.scenario.bin.is_some() {
            let seconds = to.since(from).as_secs_f64();
            bins.push(Bin {
                at_s: from.since(Instant::ZERO).as_secs_f64(),
                offered_per_s: ratio(window.calls.offered) / seconds,
                goodput_per_s: ratio(window.calls.in_slo) / seconds,
                p99_us: Quantiles::of(&window.response).p99_us,
                queueing_delay_us: plant.queueing_delay().as_secs_f64() * 1e6,
            });
        }
    }
}

fn report<S: Server, C: Client>(plant: &Plant<S, C>, window: &Window, bins: Vec<Bin>) -> Report {
    let scenario = &plant.scenario;
    let seconds = scenario.duration.as_secs_f64();
    let paused = ratio(window.paused_ns) / 1e9 / seconds;
    let capacity = scenario.capacity() * (1.0 - paused);
    let per_s = |count: u64| ratio(count) / seconds;
    let (offered, goodput) = (per_s(window.calls.offered), per_s(window.calls.in_slo));
    // What was offered is a random number near the load; with steps, only the mean is known of what was possible.
    let has_steps = scenario.groups.iter().any(|group| !group.steps.is_empty());
    let possible = if has_steps { scenario.possible() * capacity } else { offered.min(capacity) };
    let (priorities, tenants) = kinds(scenario);
    let share = |key: u32, share: &Share| ShareReport {
        key,
        offered_per_s: per_s(share.offered),
        served_per_s: per_s(share.served),
        goodput_per_s: per_s(share.in_slo),
        in_slo: ratio(share.in_slo) / ratio(share.offered.max(1)),
    };
    let by_priority: Vec<_> =
        priorities.iter().zip(&window.by_class).map(|(&Priority(key), one)| share(key.into(), one)).collect();
    let of_tenant = |tenant: &Tenant| {
        let mut sum = Share::default();
        let groups = scenario.groups.iter().zip(&window.by_group).filter(|(group, _)| group.tenant == *tenant);
        groups.for_each(|(_, one)| sum.add(*one));
        sum
    };
    let tenant_shares: Vec<_> = tenants.iter().map(of_tenant).collect();
    let by_tenant: Vec<_> = tenants.iter().zip(&tenant_shares).map(|(&Tenant(key), one)| share(key, one)).collect();
    let by_group: Vec<_> = (0..).zip(&window.by_group).map(|(key, one)| share(key, one)).collect();
    Report {
        seconds,
        capacity_per_s: capacity,
        offered_per_s: offered,
        served_per_s: per_s(window.calls.served),
        goodput_per_s: goodput,
        goodput_of_capacity: goodput / capacity,
        goodput_of_possible: if possible > 0.0 { goodput / possible } else { 0.0 },
        slo_us: scenario.slo().as_secs_f64() * 1e6,
        response: Quantiles::of(&window.response),
        notice: Quantiles::of(&window.notice),
        sheds: Sheds {
            client: window.sheds_at(Place::Client),
            request: window.sheds_at(Place::Request),
            start: window.sheds_at(Place::Start),
        },
        sheds_by_reason: window.sheds_by_reason(),
        dropped: window.dropped,
        extra_messages_per_call: ratio(window.extra_messages) / ratio(window.calls.served.max(1)),
        mean_queueing_delay_us: micros(window.started.1) / ratio(window.started.0.max(1)),
        paused,
        busy: ratio(window.busy_ns) / ((1.0 - paused) * seconds * 1e9 * f64::from(scenario.cores)),
        jain: jains_index(tenant_shares.iter().map(|share| (1.0, ratio(share.in_slo)))),
        max_min_jain: max_min_jain(scenario, &window.by_group),
        by_priority: if by_priority.len() > 1 { by_priority } else { Vec::new() },
        by_tenant: if by_tenant.len() > 1 { by_tenant } else { Vec::new() },
        by_group: if by_group.len() > 1 { by_group } else { Vec::new() },
        bins,
        events: plant.events(),
        under_way: plant.under_way(),
        trace: plant.trace().to_string(),
    }
}

/// (sum x)^2 / (n sum x^2) of so many of each size, from 1 / n to 1; zero if nobody got anything. Source: Jain, Chiu and
/// Hawe (1984).
fn jains_index(sizes: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (many, size) in sizes {
        count += many;
        sum += many * size;
        squares += many * size * size;
    }
    if squares > 0.0 { sum * sum / (count * squares) } else { 0.0 }
}

/// The same of what each client got over its max-min share of the capacity, those of a group taken for alike.
fn max_min_jain(scenario: &Scenario, by_group: &[Share]) -> f64 {
    let calls = scenario.capacity() * scenario.duration.as_secs_f64();
    let claims: Vec<Claim> = (scenario.groups.iter().zip(by_group))
        .map(|(group, share)| Claim { demand: ratio(share.offered), weight: f64::from(group.clients) })
        .collect();
    let mut fair = Vec::new();
    weighted_max_min(calls, &claims, &mut Vec::new(), &mut fair);
    let clients = claims.iter().map(|claim| claim.weight);
    jains_index(clients.zip(by_group.iter().zip(fair).map(|(share, fair)| ratio(share.in_slo) / fair.max(1.0))))
}

impl Report {
    /// Goodput of the bins in `from..to` of the run, as calls a second; zero if there are none.
    #[must_use]
    pub fn goodput_between(&self, from: Duration, to: Duration) -> f64 {
        let inside = |bin: &&Bin| bin.at_s >= from.as_secs_f64() - 1e-9 && bin.at_s < to.as_secs_f64() - 1e-9;
        let (sum, count) = self
            .bins
            .iter()
            .filter(inside)
            .fold((0.0, 0.0), |(sum, count), bin| (sum + bin.goodput_per_s, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// The highest p99 of any bin that begins at or after `from`, in microseconds.
    #[must_use]
    pub fn worst_bin_p99_us(&self, from: Duration) -> f64 {
        let inside = self.bins.iter().filter(|bin| bin.at_s >= from.as_secs_f64() - 1e-9);
        inside.fold(0.0, |worst, bin| bin.p99_us.max(worst))
    }
}

fn micros(ns: u64) -> f64 {
    ratio(ns) / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
fn ratio(count: u64) -> f64 {
    count as f64
}

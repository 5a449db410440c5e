//! A planner played in virtual time against arrivals and models of the nodes: what a placement would be, without touching
//! anything.

use core::time::Duration;

use tidegate_core::limit::{Limit, split};
use tidegate_core::number::{float, whole};
use tidegate_core::replay::{BrokerReplay, Passed, ServiceModel};
use tidegate_core::theory::mmc;
use tidegate_core::{Instant, Rng};

use super::types::{
    Measured, NodeLoad, NodeNo, Part, Plan, PlanEvent, PlanOrder, Planner, Publisher, PublisherNo, Recorded, Shortfall,
    Slo,
};

/// Orders that a planner may give; one that gives more is taken as not to end.
const ORDERS_MAX: usize = 10_000;
/// Batches of other topics that are played for each measurement of a node; with more traffic they come in larger batches.
const BESIDE_MAX: u32 = 50_000;

/// What a planner is played against.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// The objective.
    pub slo: Slo,
    /// Who sends.
    pub publishers: Vec<Publisher>,
    /// What they send, in order of time.
    pub arrivals: Vec<Recorded>,
    /// The nodes.
    pub nodes: Vec<NodeLoad>,
    /// `services[i]` is what `nodes[i]` takes for a message.
    pub services: Vec<ServiceModel>,
    /// Same seed, same answers.
    pub seed: u64,
}

/// How it ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Rehearsed {
    /// The plan.
    Done(Box<Plan>),
    /// There is none.
    OutOfNodes(Box<Shortfall>),
    /// The planner did not end.
    Unfinished,
}

/// Delays of one replay.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Replayed {
    /// Messages.
    pub messages: u64,
    /// Those beyond the objective.
    pub over_slo: u64,
    /// From arrival to the end of the way, at the objective's quantile, microseconds.
    pub delay_us: f64,
    /// Waiting for tokens, at the same.
    pub access_us: f64,
}

/// Delays as they come.
#[derive(Debug)]
struct Tally {
    slo: Slo,
    delays_ns: Vec<u64>,
    access_ns: Vec<u64>,
    over_slo: u64,
}

impl Tally {
    fn new(slo: Slo) -> Self {
        Self { slo, delays_ns: Vec::new(), access_ns: Vec::new(), over_slo: 0 }
    }

    fn add(&mut self, passed: Passed) {
        self.over_slo += u64::from(Duration::from_nanos(passed.total_ns) > self.slo.within);
        self.delays_ns.push(passed.total_ns);
        self.access_ns.push(passed.access_ns);
    }

    fn end(mut self) -> Replayed {
        Replayed {
            messages: self.delays_ns.len() as u64,
            over_slo: self.over_slo,
            delay_us: quantile_us(&mut self.delays_ns, self.slo.quantile),
            access_us: quantile_us(&mut self.access_ns, self.slo.quantile),
        }
    }
}

/// The least of `values_ns` that the share `q` does not exceed, in microseconds; 0 of none.
fn quantile_us(values_ns: &mut [u64], q: f64) -> f64 {
    if values_ns.is_empty() {
        return 0.0;
    }
    let rank = whole((float(values_ns.len() as u64) * q).ceil()).max(1) - 1;
    let at = usize::try_from(rank).unwrap_or(usize::MAX).min(values_ns.len() - 1);
    let (_, value, _) = values_ns.select_nth_unstable(at);
    float(*value) / 1e3
}

impl Rehearsal {
    /// Plays `planner` from its first event to its last order.
    pub fn run(&self, planner: &mut impl Planner) -> Rehearsed {
        let mut now = Instant::ZERO;
        let mut parts: Vec<Part> = Vec::new();
        planner.on_event(PlanEvent::Begin { nodes: self.nodes.clone() }, now);
        for _ in 0..ORDERS_MAX {
            match planner.poll_output() {
                Some(PlanOrder::Assign { revision, parts: wanted }) => {
                    parts = wanted;
                    planner.on_event(PlanEvent::Assigned { revision }, now);
                }
                // One that is watched is measured to its end.
                Some(PlanOrder::Measure { round, nodes, span } | PlanOrder::Watch { round, nodes, span, .. }) => {
                    now += span;
                    let results = nodes.into_iter().map(|node| self.measure(node, &parts, round)).collect();
                    planner.on_event(PlanEvent::Measured { round, results }, now);
                }
                Some(PlanOrder::Record { span }) => {
                    now += span;
                    planner.on_event(PlanEvent::Recorded { arrivals: self.arrivals.clone() }, now);
                }
                Some(PlanOrder::Done(plan)) => return Rehearsed::Done(plan),
                Some(PlanOrder::OutOfNodes(shortfall)) => return Rehearsed::OutOfNodes(shortfall),
                None => match planner.next_timeout() {
                    Some(at) => {
                        now = now.max(at);
                        planner.on_timeout(now);
                    }
                    None => return Rehearsed::Unfinished,
                },
            }
        }
        Rehearsed::Unfinished
    }

    /// What `node` would show with its part.
    fn measure(&self, node: NodeNo, parts: &[Part], round: u64) -> Measured {
        let at = node.0 as usize;
        let (load, service) = match (self.nodes.get(at), self.services.get(at)) {
            (Some(load), Some(service)) => (*load, *service),
            _ => return measured(node, Replayed::default()),
        };
        let Some(part) = parts.iter().find(|part| part.node == node) else {
            return measured(node, Replayed::default());
        };
        let mut here = vec![false; self.publishers.len()];
        for publisher in &part.publishers {
            if let Some(here) = here.get_mut(publisher.0 as usize) {
                *here = true;
            }
        }
        let arrivals = self.arrivals.iter().filter(|batch| here.get(batch.publisher.0 as usize) == Some(&true));
        let mut rng = Rng::stream(self.seed, round ^ (u64::from(node.0) << 32));
        measured(node, replay(part.limit, service, self.slo, arrivals, load.allocated_per_s, &mut rng))
    }
}

fn measured(node: NodeNo, seen: Replayed) -> Measured {
    Measured {
        node,
        messages: seen.messages,
        over_slo: seen.over_slo,
        delay_us_p99: seen.delay_us,
        access_us_p99: seen.access_us,
    }
}

/// `arrivals` through a node with this part, beside `beside_per_s` messages a second of other topics.
fn replay<'a>(
    limit: Limit,
    service: ServiceModel,
    slo: Slo,
    arrivals: impl Iterator<Item = &'a Recorded> + Clone,
    beside_per_s: f64,
    rng: &mut Rng,
) -> Replayed {
    let first = arrivals.clone().next().map_or(Instant::ZERO, |batch| batch.at);
    let last = arrivals.clone().last().map_or(first, |batch| batch.at);
    let mut node = BrokerReplay::new(limit, service, first);
    let mut tally = Tally::new(slo);
    let mut beside = Beside::new(beside_per_s, first, last, rng);
    for batch in arrivals {
        while let Some(at) = beside.before(batch.at, rng) {
            node.arrive_beside(at, beside.batch, rng, |passed| tally.add(passed));
        }
        node.arrive(batch.at, batch.messages, rng, |passed| tally.add(passed));
    }
    node.finish(rng, |passed| tally.add(passed));
    tally.end()
}

/// Batches of other topics, at random.
#[derive(Debug)]
struct Beside {
    gap_ns: f64,
    batch: u32,
    next: Option<Instant>,
}

impl Beside {
    fn new(per_s: f64, first: Instant, last: Instant, rng: &mut Rng) -> Self {
        let messages = per_s.max(0.0) * last.since(first).as_secs_f64();
        if messages < 1.0 {
            return Self { gap_ns: 0.0, batch: 0, next: None };
        }
        let batch = u32::try_from(whole((messages / f64::from(BESIDE_MAX)).ceil())).unwrap_or(u32::MAX).max(1);
        let gap_ns = 1e9 * f64::from(batch) / per_s;
        Self { gap_ns, batch, next: Some(first.plus_nanos(whole(rng.exponential() * gap_ns))) }
    }

    /// The next batch if it comes no later than `at`.
    fn before(&mut self, at: Instant, rng: &mut Rng) -> Option<Instant> {
        let next = self.next.filter(|next| *next <= at)?;
        self.next = Some(next.plus_nanos(whole(rng.exponential() * self.gap_ns)));
        Some(next)
    }
}

/// Arrivals of publishers of which rates and groups are known: batches of `batch` messages at random times; those of a group
/// at the same. About `messages_max` messages, over at most `span`; in order of time.
#[must_use]
pub fn poisson(
    publishers: &[Publisher],
    batch: u32,
    span: Duration,
    messages_max: u32,
    rng: &mut Rng,
) -> Vec<Recorded> {
    let batch = batch.max(1);
    let rate_per_s: f64 = publishers.iter().map(|publisher| publisher.rate_per_s.max(0.0)).sum();
    let span_s = span.as_secs_f64().min(f64::from(messages_max) / rate_per_s.max(1e-9));
    let mut groups: std::collections::BTreeMap<u32, Vec<PublisherNo>> = std::collections::BTreeMap::new();
    for (number, publisher) in (0..).zip(publishers) {
        groups.entry(publisher.group.0).or_default().push(PublisherNo(number));
    }
    let rate_of = |member: &PublisherNo| publishers[member.0 as usize].rate_per_s / f64::from(batch);
    let mut arrivals = Vec::new();
    for members in groups.values() {
        let busiest = members.iter().map(rate_of).fold(0.0, f64::max);
        if busiest <= 0.0 {
            continue;
        }
        let mut at_s = rng.exponential() / busiest;
        while at_s < span_s {
            let at = Instant::from_nanos(whole(at_s * 1e9));
            for member in members {
                // The busiest sends each time, the others as often as their rates say.
                if rng.chance(rate_of(member) / busiest) {
                    arrivals.push(Recorded { at, publisher: *member, messages: batch });
                }
            }
            at_s += rng.exponential() / busiest;
        }
    }
    arrivals.sort_by_key(|recorded| (recorded.at, recorded.publisher));
    arrivals
}

/// Poisson traffic of `rate_per_s` messages in batches of `batch` over `nodes` equal parts of `limit`: what one of them shows
/// in about `messages_max` messages. `None` if the burst has no token for each part.
#[must_use]
pub fn even_parts(
    limit: Limit,
    nodes: usize,
    service: ServiceModel,
    slo: Slo,
    (rate_per_s, batch): (f64, u32),
    (messages_max, seed): (u32, u64),
) -> Option<Replayed> {
    // The last has what does not divide the least.
    let part = split::evenly(limit, nodes).ok()?.pop()?;
    let mut rng = Rng::new(seed);
    let publisher = Publisher { rate_per_s: rate_per_s / float(nodes as u64), group: super::types::GroupNo(0) };
    let arrivals = poisson(&[publisher], batch, Duration::from_hours(1), messages_max, &mut rng);
    Some(replay(part, service, slo, arrivals.iter(), 0.0, &mut rng))
}

/// A node of which only the capacity is known: with `mcap_per_s` single messages at random it just keeps `slo`, as `tidegate
/// bench mcap` measures it. Of that a message's way takes `way` beside its core, but no more than half.
///
/// Its cores are not all busy at `mcap_per_s`: a queue that is always full keeps no objective. How busy they are is solved for
/// exactly; see [`mmc`].
#[must_use]
pub fn service_of(mcap_per_s: f64, cores: u32, slo: Slo, way: Duration) -> ServiceModel {
    let cores = u16::try_from(cores.max(1)).unwrap_or(u16::MAX);
    let way = way.min(slo.within / 2);
    let within_s = slo.within.saturating_sub(way).as_secs_f64();
    let objective = mmc::Objective { quantile: slo.quantile, within_s };
    let service_s = mmc::longest_service_s(mcap_per_s.max(1.0), cores.into(), objective);
    ServiceModel {
        cores,
        batch_ns: 0,
        message_ns: u32::try_from(whole(1e9 * service_s)).unwrap_or(u32::MAX),
        way_ns: u32::try_from(way.as_nanos()).unwrap_or(u32::MAX),
        spread: tidegate_core::replay::Spread::Exponential,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;
    use tidegate_core::theory::md1::{AccessDelay, Bucket, Traffic};

    use super::super::benchmark::{Benchmark, BenchmarkConfig, Showed};
    use super::super::distributor::Distributor;
    use super::super::types::{Cause, Demand, FitConfig, GroupNo, Principles};
    use super::*;

    const SLO: Slo = Slo { quantile: 0.99, within: Duration::from_millis(5) };
    const WAY: Duration = Duration::from_micros(100);

    fn publishers(many: u32, group: u32) -> Vec<Publisher> {
        (0..many).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / group) }).collect()
    }

    fn rehearsal(publishers: Vec<Publisher>, mcap_per_s: f64, nodes: usize) -> (Rehearsal, Demand) {
        let rate = 10 * publishers.len() as u64;
        let demand = Demand {
            limit: Limit::new(Rate::per_s(rate * 11 / 10), 60),
            slo: SLO,
            publishers: publishers.clone(),
            principles: Principles::SRTM,
            fit: FitConfig::default(),
            force_nodes: None,
            seed: 1,
        };
        let mut rng = Rng::new(1);
        let arrivals = poisson(&publishers, 1, Duration::from_secs(10), 50_000, &mut rng);
        let rehearsal = Rehearsal {
            slo: SLO,
            publishers,
            arrivals,
            nodes: vec![NodeLoad { mcap_per_s, allocated_per_s: 0.0 }; nodes],
            services: vec![service_of(mcap_per_s, 2, SLO, WAY); nodes],
            seed: 1,
        };
        (rehearsal, demand)
    }

    #[test]
    fn a_topic_is_placed_on_as_few_nodes_as_have_room() {
        for (mcap_per_s, nodes) in [(20e3, 1), (7e3, 2)] {
            let (rehearsal, demand) = rehearsal(publishers(1_000, 1), mcap_per_s, 4);
            let Rehearsed::Done(plan) = rehearsal.run(&mut Distributor::new(demand)) else { panic!("no plan") };
            assert_eq!(plan.parts.len(), nodes, "{:?}", plan.why);
            let placed: usize = plan.parts.iter().map(|part| part.publishers.len()).sum();
            assert_eq!(placed, 1_000);
        }
    }

    #[test]
    fn what_has_no_room_is_said() {
        let (rehearsal, demand) = rehearsal(publishers(1_000, 1), 3e3, 2);
        let Rehearsed::OutOfNodes(shortfall) = rehearsal.run(&mut Distributor::new(demand)) else { panic!("a plan") };
        assert_eq!(shortfall.cause, Cause::Capacity);
        assert!((shortfall.missing_per_s - 4_000.0).abs() < 1.0, "{}", shortfall.missing_per_s);
    }

    #[test]
    fn a_group_sends_together_and_rates_are_kept() {
        let all = publishers(100, 10);
        let arrivals = poisson(&all, 2, Duration::from_mins(1), 1_000_000, &mut Rng::new(3));
        let messages: u32 = arrivals.iter().map(|batch| batch.messages).sum();
        // 100 publishers of 10 a second for 60 s; a standard deviation is below 2 %.
        assert!((f64::from(messages) / 60_000.0 - 1.0).abs() < 0.08, "{messages}");
        assert!(arrivals.is_sorted_by_key(|batch| batch.at));
        let first = arrivals[0];
        let together = arrivals.iter().take_while(|batch| batch.at == first.at).count();
        assert_eq!(together, 10);
        assert!(poisson(&[], 1, Duration::from_secs(1), 10, &mut Rng::new(1)).is_empty());
    }

    /// What a benchmark of a node finds, as `tidegate bench mcap` does it: random messages, none of which waits for a token.
    fn benchmarked(service: ServiceModel, slo: Slo) -> f64 {
        let free = Limit::new(Rate::per_s(1_000_000_000), 1_000_000);
        let mut search = Benchmark::new(BenchmarkConfig::default());
        while let Some(rate_per_s) = search.next_per_s() {
            let seen = even_parts(free, 1, service, slo, (float(rate_per_s), 1), (60_000, rate_per_s)).unwrap();
            let meets = seen.delay_us <= slo.within.as_secs_f64() * 1e6;
            search.on_measured(if meets { Showed::Meets } else { Showed::Misses });
        }
        float(search.mcap_per_s())
    }

    #[test]
    fn a_benchmark_of_the_model_finds_the_capacity_that_it_was_made_from() {
        let slo = |quantile, us| Slo { quantile, within: Duration::from_micros(us) };
        for (mcap_per_s, cores, slo) in [
            (73e3, 1, slo(0.99, 1_000)),
            (73e3, 4, slo(0.99, 1_000)),
            (20e3, 2, slo(0.999, 5_000)),
            (2e3, 1, slo(0.5, 2_000)),
            // A way that is longer than half of the objective.
            (30e3, 2, slo(0.99, 150)),
        ] {
            let service = service_of(mcap_per_s, cores, slo, WAY);
            let found = benchmarked(service, slo);
            // The search ends within a twentieth below, and 60,000 messages say no more than a few hundredths.
            assert!((found / mcap_per_s - 0.98).abs() < 0.08, "{found} of {mcap_per_s} for {slo:?}: {service:?}");
            assert!(service.capacity_per_s(1) > 1.02 * mcap_per_s, "not all cores are busy: {service:?}");
        }
    }

    #[test]
    fn equal_parts_show_what_the_theory_says() {
        let limit = Limit::new(Rate::per_s(11_000), 26);
        let instant = ServiceModel { message_ns: 0, way_ns: 0, ..service_of(1e9, 1, SLO, Duration::ZERO) };
        let seen = even_parts(limit, 2, instant, SLO, (10_000.0, 1), (400_000, 1)).unwrap();
        let bucket = Bucket { rate_per_s: 11_000.0, burst: 26.0 };
        let exact = AccessDelay::split_evenly(Traffic { rate_per_s: 10_000.0, batch: 1 }, bucket, 2).unwrap();
        let exact_us = exact.quantile_s(0.99) * 1e6;
        assert!((seen.access_us / exact_us - 1.0).abs() < 0.15, "{} for {exact_us}", seen.access_us);
        assert_eq!(even_parts(limit, 27, instant, SLO, (10_000.0, 1), (10, 1)), None);
    }

    #[test]
    fn traffic_of_other_topics_is_bounded_in_batches() {
        let mut rng = Rng::new(1);
        let end = Instant::ZERO + Duration::from_secs(10);
        let mut beside = Beside::new(100_000.0, Instant::ZERO, end, &mut rng);
        assert_eq!(beside.batch, 20);
        let batches = std::iter::from_fn(|| beside.before(end, &mut rng)).count();
        assert!((45_000..55_000).contains(&batches), "{batches}");
        assert_eq!(Beside::new(0.0, Instant::ZERO, end, &mut rng).next, None);
    }
}

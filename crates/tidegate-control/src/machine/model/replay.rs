//! A placement, played with the machines that nodes run.

use core::time::Duration;

use tidegate_core::number::{float, whole};
use tidegate_core::replay::{Passed, ServiceModel};
use tidegate_core::{Instant, Rng};

use super::super::types::{Measured, NodeLoad, NodeNo, Part, Recorded, Slo};
use super::lane::{Batch, Beside, Lane};

/// Messages that are slow together are counted in slices of this.
const SLICE_NS: u64 = 250_000_000;
/// Slices are taken together up to so many, as long as [`SLICES_LEAST`] are left.
const TOGETHER_MAX: usize = 64;
const SLICES_LEAST: usize = 8;

/// What nodes do with messages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct World<'a> {
    /// All nodes, by number.
    pub nodes: &'a [NodeLoad],
    /// What each does with a message.
    pub service: ServiceModel,
    /// Messages in a batch of others' traffic, which takes what the nodes' loads say.
    pub beside_batch: u32,
    /// The objective.
    pub slo: Slo,
    /// Same seed, same draws of service times, whatever the placement.
    pub seed: u64,
}

/// What a placement showed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Replayed {
    /// Of each part, in their order.
    pub nodes: Vec<Measured>,
    /// The share of messages beyond the objective at the node that has most of them.
    pub worst_over: f64,
    /// Messages that are late together: by so much the count of late messages in a span varies more than if each were late
    /// on its own. At least 1.
    pub late_together: f64,
}

/// Traces from which on the one that fares worst is left out.
const LEAVES_OUT: usize = 4;

/// What a part showed.
#[derive(Clone, Debug, Default)]
struct Shown {
    /// When messages came, and how long they took.
    totals: Vec<(u64, u64)>,
    /// How long they waited for tokens.
    access: Vec<u64>,
    /// Messages that were turned away.
    refused: u64,
}

/// Plays `traces`, each in order of time from [`Instant::ZERO`] and with full buckets, on `parts`. Of four or more the one with
/// most messages beyond the objective does not count. O(n) for n messages; 24 bytes for each.
#[must_use]
pub fn replay(traces: &[Vec<Recorded>], parts: &[Part], world: World<'_>) -> Replayed {
    let mut trial = Trial::new(parts.to_vec());
    while !trial.play_next(traces, world) {}
    trial.end(world).1
}

/// The same, one trace after the other, so that whoever plays it can do something else in between.
#[derive(Clone, Debug)]
pub struct Trial {
    parts: Vec<Part>,
    /// Of each trace that was played, its length in nanoseconds and what the parts showed.
    played: Vec<(u64, Vec<Shown>)>,
}

impl Trial {
    /// Of `parts`; nothing is played yet.
    #[must_use]
    pub fn new(parts: Vec<Part>) -> Self {
        Self { parts, played: Vec::new() }
    }

    /// Plays the next of `traces`, which are the same each time; true if there is none left.
    pub fn play_next(&mut self, traces: &[Vec<Recorded>], world: World<'_>) -> bool {
        if let Some(trace) = traces.get(self.played.len()) {
            let end = trace.last().map_or(Instant::ZERO, |batch| batch.at);
            let seed = world.seed.wrapping_add(self.played.len() as u64);
            self.played.push((end.as_nanos(), play(trace, end, &self.parts, World { seed, ..world })));
        }
        self.played.len() >= traces.len()
    }

    /// The parts, and what they showed.
    #[must_use]
    pub fn end(self, world: World<'_>) -> (Vec<Part>, Replayed) {
        let within_ns = tidegate_core::time::nanos(world.slo.within);
        let over = |shown: &[Shown]| -> usize {
            shown.iter().flat_map(|shown| &shown.totals).filter(|(_, total_ns)| *total_ns > within_ns).count()
        };
        let Self { parts, mut played } = self;
        if played.len() >= LEAVES_OUT
            && let Some(worst) = (0..played.len()).max_by_key(|&at| over(&played[at].1))
        {
            played.swap_remove(worst);
        }
        // One after the other.
        let mut whole = vec![Shown::default(); parts.len()];
        let mut end_ns = 0;
        for (span_ns, shown) in played {
            for (whole, shown) in whole.iter_mut().zip(shown) {
                whole.totals.extend(shown.totals.into_iter().map(|(at, total_ns)| (at + end_ns, total_ns)));
                whole.access.extend(shown.access);
                whole.refused += shown.refused;
            }
            end_ns += span_ns;
        }
        let late_together = late_together(&whole, 1.0 - world.slo.quantile, end_ns);
        let nodes: Vec<Measured> =
            parts.iter().zip(whole).map(|(part, shown)| measured(part.node, shown, world.slo)).collect();
        let worst_over = nodes.iter().map(share_over).fold(0.0, f64::max);
        (parts, Replayed { nodes, worst_over, late_together })
    }
}

fn play(trace: &[Recorded], end: Instant, parts: &[Part], world: World<'_>) -> Vec<Shown> {
    let mut owner: Vec<Option<usize>> = Vec::new();
    for (lane, part) in parts.iter().enumerate() {
        for publisher in &part.publishers {
            let at = publisher.0 as usize;
            if owner.len() <= at {
                owner.resize(at + 1, None);
            }
            owner[at] = Some(lane);
        }
    }
    let mut lanes: Vec<Lane<Beside>> = parts.iter().map(|part| lane(part, world)).collect();
    let mut all = vec![Shown::default(); parts.len()];
    for batch in trace {
        let Some(Some(lane)) = owner.get(batch.publisher.0 as usize).copied() else { continue };
        let shown = &mut all[lane];
        lanes[lane].arrive(Batch { at: batch.at, messages: batch.messages }, |passed| shown.note(passed));
    }
    for (shown, lane) in all.iter_mut().zip(lanes) {
        shown.refused = lane.finish(end, |passed| shown.note(passed));
    }
    all
}

impl Shown {
    fn note(&mut self, passed: Passed) {
        self.totals.push((passed.arrival.as_nanos(), passed.total_ns));
        self.access.push(passed.access_ns);
    }
}

/// The share of messages beyond the objective; 0 without messages.
#[must_use]
pub fn share_over(measured: &Measured) -> f64 {
    float(measured.over_slo) / float(measured.messages.max(1))
}

/// The nodes' delays at the objective's quantile, each weighted by its messages; 0 without messages.
#[must_use]
pub fn delay_us_p99(nodes: &[Measured]) -> f64 {
    let messages: f64 = nodes.iter().map(|node| float(node.messages)).sum();
    let sum: f64 = nodes.iter().map(|node| float(node.messages) * node.delay_us_p99).sum();
    if messages > 0.0 { sum / messages } else { 0.0 }
}

fn lane(part: &Part, world: World<'_>) -> Lane<Beside> {
    let mut rng = Rng::stream(world.seed, part.node.0.into());
    let load = world.nodes.get(part.node.0 as usize).map_or(0.0, |node| node.allocated_per_s);
    let (traffic, own) = (rng.split(), rng.split());
    let beside = (load > 0.0).then(|| Beside::new(load, world.beside_batch, traffic));
    Lane::new(part.limit, world.service, beside, own)
}

fn measured(node: NodeNo, mut shown: Shown, slo: Slo) -> Measured {
    let within_ns = tidegate_core::time::nanos(slo.within);
    let mut totals: Vec<u64> = shown.totals.iter().map(|(_, total_ns)| *total_ns).collect();
    let over = totals.iter().filter(|total_ns| **total_ns > within_ns).count() as u64;
    Measured {
        node,
        messages: totals.len() as u64 + shown.refused,
        over_slo: over + shown.refused,
        delay_us_p99: quantile(&mut totals, slo.quantile) / 1e3,
        access_us_p99: quantile(&mut shown.access, slo.quantile) / 1e3,
    }
}

/// The least value that the share `q` of `values` does not exceed; 0 of none.
fn quantile(values: &mut [u64], q: f64) -> f64 {
    let rank = whole((q * float(values.len() as u64)).ceil()).saturating_sub(1);
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let rank = usize::try_from(rank).unwrap_or(last).min(last);
    float(*values.select_nth_unstable(rank).1)
}

/// By how much the number of messages that are among the slowest varies from span to span, over what it would if each were
/// slow on its own: the size of a cluster. The largest over spans of several lengths.
fn late_together(shown: &[Shown], share: f64, end_ns: u64) -> f64 {
    let seen = || shown.iter().flat_map(|shown| &shown.totals);
    let mut totals: Vec<u64> = seen().map(|(_, total_ns)| *total_ns).collect();
    let slow = quantile(&mut totals, 1.0 - share.clamp(0.001, 0.5));
    let many = usize::try_from(end_ns / SLICE_NS).unwrap_or(0);
    // Of each slice, its messages and its slow ones.
    let mut slices = vec![(0.0, 0.0); many];
    for &(at, total_ns) in seen() {
        if let Some(slice) = slices.get_mut(usize::try_from(at / SLICE_NS).unwrap_or(usize::MAX)) {
            slice.0 += 1.0;
            slice.1 += if float(total_ns) > slow { 1.0 } else { 0.0 };
        }
    }
    let (mut most, mut together) = (1.0f64, 1);
    while together <= TOGETHER_MAX && many / together >= SLICES_LEAST {
        let whole: Vec<(f64, f64)> = slices
            .chunks_exact(together)
            .map(|chunk| chunk.iter().fold((0.0, 0.0), |sum, slice| (sum.0 + slice.0, sum.1 + slice.1)))
            .collect();
        most = most.max(dispersion(&whole));
        together *= 2;
    }
    most
}

/// The variance of the second numbers over that of independent events, whose chances are in proportion to the first.
pub(crate) fn dispersion(slices: &[(f64, f64)]) -> f64 {
    let (messages, slow) = slices.iter().fold((0.0, 0.0), |sum, slice| (sum.0 + slice.0, sum.1 + slice.1));
    if messages <= 0.0 || slow <= 0.0 || slow >= messages {
        return 1.0;
    }
    let share = slow / messages;
    let off: f64 = slices.iter().map(|(of, slow)| (slow - share * of).powi(2)).sum();
    off / (share * (1.0 - share) * messages)
}

/// How long a trace of `rate_per_s` messages is, if it is to have at most so many.
#[must_use]
pub fn horizon(span: Duration, rate_per_s: f64, messages_max: u64) -> Duration {
    let most = float(messages_max) / rate_per_s.max(1e-3);
    span.min(Duration::from_secs_f64(most.min(1e9)))
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;
    use tidegate_core::limit::Limit;
    use tidegate_core::replay::Spread;

    use super::super::super::types::PublisherNo;
    use super::*;

    const SERVICE: ServiceModel =
        ServiceModel { cores: 1, batch_ns: 0, message_ns: 1_000, way_ns: 0, spread: Spread::Constant };

    fn world(nodes: &[NodeLoad]) -> World<'_> {
        let slo = Slo { quantile: 0.99, within: Duration::from_micros(5) };
        World { nodes, service: SERVICE, beside_batch: 1, slo, seed: 1 }
    }

    fn part(node: u32, publishers: &[u32], burst: u64) -> Part {
        let publishers = publishers.iter().copied().map(PublisherNo).collect();
        Part { node: NodeNo(node), limit: Limit::new(Rate::per_s(1_000_000), burst), publishers }
    }

    fn batches(spans: &[(u64, u32, u32)]) -> Vec<Recorded> {
        let batch = |&(us, publisher, messages): &(u64, u32, u32)| Recorded {
            at: Instant::from_nanos(us * 1_000),
            publisher: PublisherNo(publisher),
            messages,
        };
        spans.iter().map(batch).collect()
    }

    #[test]
    fn each_publishers_messages_go_to_its_node() {
        let nodes = [NodeLoad { mcap_per_s: 1e6, allocated_per_s: 0.0 }; 2];
        let trace = batches(&[(0, 0, 2), (0, 1, 10), (100, 0, 1), (100, 2, 1)]);
        let parts = [part(0, &[0], 10), part(1, &[1], 5)];
        let replayed = replay(&[trace], &parts, world(&nodes));
        let [first, second] = replayed.nodes[..] else { panic!("two nodes") };
        assert_eq!((first.messages, first.over_slo), (3, 0));
        // Five have their tokens at once, the next one each microsecond: the core is never behind.
        assert_eq!((second.messages, second.over_slo), (10, 5));
        assert!((second.delay_us_p99 - 10.0).abs() < 1e-9 && (second.access_us_p99 - 5.0).abs() < 1e-9);
        assert!((replayed.worst_over - 0.5).abs() < 1e-9);
        assert!((delay_us_p99(&replayed.nodes) - (3.0 * first.delay_us_p99 + 100.0) / 13.0).abs() < 1e-9);
    }

    #[test]
    fn traffic_of_others_delays() {
        let idle = [NodeLoad { mcap_per_s: 1e6, allocated_per_s: 0.0 }];
        let busy = [NodeLoad { mcap_per_s: 1e6, allocated_per_s: 800e3 }];
        let trace = [batches(&(0..2_000).map(|at| (at * 50, 0, 1)).collect::<Vec<_>>())];
        let of = |nodes: &[NodeLoad]| replay(&trace, &[part(0, &[0], 100)], world(nodes)).nodes[0].delay_us_p99;
        assert!((of(&idle) - 1.0).abs() < 1e-9);
        assert!(of(&busy) > 5.0, "{}", of(&busy));
        assert!((of(&busy) - of(&busy)).abs() < 1e-12, "same seed, same answer");
    }

    #[test]
    fn the_trace_that_fares_worst_is_left_out_of_four() {
        let nodes = [NodeLoad { mcap_per_s: 1e6, allocated_per_s: 0.0 }];
        let (calm, burst) = (batches(&[(0, 0, 2), (50, 0, 1)]), batches(&[(0, 0, 90)]));
        let of = |traces: &[Vec<Recorded>]| {
            let node = replay(traces, &[part(0, &[0], 10)], world(&nodes)).nodes[0];
            (node.messages, node.over_slo)
        };
        let three = vec![calm.clone(), burst.clone(), calm.clone()];
        assert_eq!(of(&three), (96, 85));
        assert_eq!(of(&[three, vec![calm]].concat()), (9, 0));
    }

    #[test]
    fn messages_that_are_late_together_are_one_sample() {
        assert!(dispersion(&[(100.0, 1.0); 50]) < 1e-9);
        // In one span of fifty all the slow ones of five hundred.
        let mut slices = [(100.0, 0.0); 50];
        slices[7].1 = 50.0;
        assert!((dispersion(&slices) - 49.5).abs() < 0.1, "{}", dispersion(&slices));
        assert!((dispersion(&[]) - 1.0).abs() < 1e-12);
        assert_eq!(horizon(Duration::from_secs(100), 1e4, 500_000), Duration::from_secs(50));
        assert_eq!(horizon(Duration::from_secs(100), 0.0, 500), Duration::from_secs(100));
    }
}

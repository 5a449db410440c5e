//! Recorded arrivals, continued for as long as is wanted.
//!
//! A recording of seconds is too short to see how often a bucket runs dry: it is continued from what it says of bursts. The
//! publishers of a group that send at about the same time make a burst; which batches, and how far apart, is taken from the
//! recording as it is. The time between the bursts of a group follows one of three laws, by the gaps of all groups, each over
//! its mean: periodic, if they hardly differ; without memory, if they differ as much as those of a Poisson process, which a
//! short recording shows as a somewhat smaller variance; else the gaps themselves, drawn at random. How often a group sends
//! is not taken from the recording, in which a few bursts more or less are chance, but from its publishers' mean rates.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tidegate_core::number::{float, whole};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use super::super::types::{Publisher, PublisherNo, Recorded};

/// Gaps that say something of their law; with fewer they are taken to be without memory.
const GAPS_LEAST: usize = 10;
/// Squared variation below which gaps are periodic.
const PERIODIC: f64 = 0.1;
/// Squared variation of gaps without memory in a recording that is not much longer than a gap.
const MEMORYLESS: core::ops::Range<f64> = 0.5..1.6;

#[derive(Clone, Copy, Debug)]
struct Piece {
    offset_ns: u64,
    publisher: u32,
    messages: u32,
}

#[derive(Clone, Debug)]
struct Group {
    /// Its bursts, of which one is drawn each time; at least one.
    bursts: Vec<Vec<Piece>>,
    /// Between the beginnings of bursts, on average.
    gap_ns: f64,
    /// When the first recorded one began.
    first_ns: Option<u64>,
}

#[derive(Clone, PartialEq, Debug)]
enum GapLaw {
    Periodic,
    Memoryless,
    /// Gaps over their mean.
    Drawn(Vec<f64>),
}

/// What a recording says of a claim's traffic.
#[derive(Clone, Debug)]
pub struct TrafficModel {
    groups: Vec<Group>,
    law: GapLaw,
}

impl TrafficModel {
    /// `recorded` is in order of time; publishers are numbered as in `publishers`. Those without a rate, and those of groups of
    /// which nothing was recorded and nothing is known, do not send. O(n log n).
    #[must_use]
    pub fn of(recorded: &[Recorded], publishers: &[Publisher]) -> Self {
        let mut members: BTreeMap<u32, (Vec<u32>, f64)> = BTreeMap::new();
        for (number, publisher) in (0..).zip(publishers) {
            let (group, rate) = members.entry(publisher.group.0).or_default();
            group.push(number);
            *rate += publisher.rate_per_s.max(0.0);
        }
        let mut arrivals: BTreeMap<u32, Vec<Recorded>> = BTreeMap::new();
        let (mut batches, mut messages) = (0u64, 0u64);
        for batch in recorded {
            let Some(publisher) = publishers.get(batch.publisher.0 as usize) else { continue };
            arrivals.entry(publisher.group.0).or_default().push(*batch);
            batches += 1;
            messages += u64::from(batch.messages);
        }
        let mean_batch = (float(messages) / float(batches.max(1))).max(1.0);
        let start = recorded.first().map_or(Instant::ZERO, |batch| batch.at);
        let (mut groups, mut gaps) = (Vec::new(), Vec::new());
        for (number, (members, rate_per_s)) in members.into_iter().filter(|(_, (_, rate))| *rate > 0.0) {
            let own = arrivals.remove(&number).unwrap_or_default();
            // Half of the time between two batches of one publisher.
            let apart_ns = whole(0.5e9 * mean_batch * float(members.len() as u64) / rate_per_s);
            let bursts = bursts(&own, apart_ns);
            let starts: Vec<u64> = bursts.iter().map(|burst| burst[0].at.nanos_since(start)).collect();
            let mut pieces: Vec<Vec<Piece>> = bursts.iter().map(|burst| pieces(burst)).collect();
            if pieces.is_empty() {
                let messages = u32::try_from(whole(mean_batch.round())).unwrap_or(u32::MAX);
                let all = members.iter().map(|&publisher| Piece { offset_ns: 0, publisher, messages });
                pieces.push(all.collect());
            }
            let sent: u64 = pieces.iter().flatten().map(|piece| u64::from(piece.messages)).sum();
            let gap_ns = 1e9 * float(sent) / float(pieces.len() as u64) / rate_per_s;
            gaps.extend(starts.windows(2).map(|pair| float(pair[1] - pair[0]) / gap_ns));
            groups.push(Group { bursts: pieces, gap_ns, first_ns: starts.first().copied() });
        }
        Self { groups, law: law(gaps) }
    }

    /// All batches of so long, in order of time from [`Instant::ZERO`], but for what exceeds `messages_max` messages.
    #[must_use]
    pub fn trace(&self, span: Duration, messages_max: u64, seed: u64) -> Vec<Recorded> {
        let mut rng = Rng::new(seed);
        let end_ns = nanos(span);
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        for (at, group) in self.groups.iter().enumerate() {
            let first = match (&self.law, group.first_ns) {
                (GapLaw::Periodic, Some(first_ns)) => float(first_ns) % group.gap_ns,
                // As if one had looked at any moment.
                (GapLaw::Periodic, None) => rng.f64() * group.gap_ns,
                _ => rng.exponential() * group.gap_ns,
            };
            next.push(Reverse((whole(first), at)));
        }
        let mut trace = Vec::new();
        // Bursts overlap: a batch is due when no burst begins before it.
        let mut due: BinaryHeap<Reverse<(u64, u32, u32)>> = BinaryHeap::new();
        let mut messages = 0u64;
        loop {
            let begins = next.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            while let Some(&Reverse((at, publisher, count))) = due.peek().filter(|Reverse((at, ..))| *at <= begins) {
                due.pop();
                messages += u64::from(count);
                if at >= end_ns || messages > messages_max {
                    return trace;
                }
                let publisher = PublisherNo(publisher);
                trace.push(Recorded { at: Instant::from_nanos(at), publisher, messages: count });
            }
            let Some(Reverse((at, number))) = next.pop() else { return trace };
            if at >= end_ns {
                continue;
            }
            let group = &self.groups[number];
            let drawn = usize::try_from(rng.below(group.bursts.len() as u64)).unwrap_or(0);
            for piece in &group.bursts[drawn] {
                due.push(Reverse((at.saturating_add(piece.offset_ns), piece.publisher, piece.messages)));
            }
            let gap = match &self.law {
                GapLaw::Periodic => 1.0,
                GapLaw::Memoryless => rng.exponential(),
                GapLaw::Drawn(gaps) => gaps[usize::try_from(rng.below(gaps.len() as u64)).unwrap_or(0)],
            };
            next.push(Reverse((at.saturating_add(whole(gap * group.gap_ns).max(1)), number)));
        }
    }
}

/// A group's batches, cut where a publisher sends again or nothing came for so long.
fn bursts(own: &[Recorded], apart_ns: u64) -> Vec<&[Recorded]> {
    let mut bursts = Vec::new();
    let (mut from, mut seen) = (0, std::collections::BTreeSet::new());
    for (at, batch) in own.iter().enumerate() {
        let is_apart = at > from && batch.at.nanos_since(own[at - 1].at) > apart_ns;
        if is_apart || seen.contains(&batch.publisher) {
            bursts.push(&own[from..at]);
            (from, seen) = (at, std::collections::BTreeSet::new());
        }
        seen.insert(batch.publisher);
    }
    if from < own.len() {
        bursts.push(&own[from..]);
    }
    bursts
}

fn pieces(burst: &[Recorded]) -> Vec<Piece> {
    let start = burst[0].at;
    let piece = |batch: &Recorded| Piece {
        offset_ns: batch.at.nanos_since(start),
        publisher: batch.publisher.0,
        messages: batch.messages,
    };
    burst.iter().map(piece).collect()
}

fn law(mut gaps: Vec<f64>) -> GapLaw {
    if gaps.len() < GAPS_LEAST {
        return GapLaw::Memoryless;
    }
    let many = float(gaps.len() as u64);
    let mean = gaps.iter().sum::<f64>() / many;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / many;
    let variation = variance / (mean * mean);
    if variation < PERIODIC {
        return GapLaw::Periodic;
    }
    if MEMORYLESS.contains(&variation) {
        return GapLaw::Memoryless;
    }
    for gap in &mut gaps {
        *gap /= mean;
    }
    GapLaw::Drawn(gaps)
}

#[cfg(test)]
mod tests {
    use super::super::super::types::GroupNo;
    use super::*;

    /// Publishers of 10 messages a second in batches of ten, in groups of `size`.
    fn publishers(many: u32, size: u32) -> Vec<Publisher> {
        (0..many).map(|at| Publisher { rate_per_s: 10.0, group: GroupNo(at / size) }).collect()
    }

    /// Five seconds of groups that send every second on average, with `gap` giving the gaps, members `apart_us` apart.
    fn recording(many: u32, size: u32, apart_us: u64, mut gap: impl FnMut(&mut Rng) -> f64) -> Vec<Recorded> {
        let mut rng = Rng::new(5);
        let mut recorded = Vec::new();
        for group in 0..many / size {
            let mut at = rng.f64();
            while at < 5.0 {
                for member in 0..size {
                    let ns = whole(at * 1e9) + u64::from(member) * apart_us * 1_000;
                    let publisher = PublisherNo(group * size + member);
                    recorded.push(Recorded { at: Instant::from_nanos(ns), publisher, messages: 10 });
                }
                at += gap(&mut rng);
            }
        }
        recorded.sort_by_key(|batch| (batch.at, batch.publisher));
        recorded
    }

    fn rate(trace: &[Recorded], seconds: f64) -> f64 {
        trace.iter().map(|batch| f64::from(batch.messages)).sum::<f64>() / seconds
    }

    #[test]
    fn groups_send_as_they_did_and_as_often_as_is_known() {
        let publishers = publishers(990, 30);
        let model = TrafficModel::of(&recording(990, 30, 100, Rng::exponential), &publishers);
        assert_eq!(model.law, GapLaw::Memoryless);
        let trace = model.trace(Duration::from_secs(200), u64::MAX, 1);
        let per_s = rate(&trace, 200.0);
        assert!((per_s / 9_900.0 - 1.0).abs() < 0.05, "{per_s}");
        assert!(trace.is_sorted_by_key(|batch| batch.at));
        // Group 0's first burst: its thirty members, 100 us apart.
        let own: Vec<&Recorded> = trace.iter().filter(|batch| batch.publisher.0 < 30).take(30).collect();
        assert!(own.windows(2).all(|pair| pair[1].at.nanos_since(pair[0].at) == 100_000), "{own:?}");
        assert_eq!(trace, model.trace(Duration::from_secs(200), u64::MAX, 1));
        assert!(rate(&model.trace(Duration::from_secs(200), 5_000, 1), 1.0) <= 5_000.0);
    }

    #[test]
    fn periodic_publishers_stay_periodic() {
        let publishers = publishers(100, 1);
        let recorded = recording(100, 1, 0, |_| 1.0);
        let model = TrafficModel::of(&recorded, &publishers);
        assert_eq!(model.law, GapLaw::Periodic);
        let trace = model.trace(Duration::from_secs(20), u64::MAX, 3);
        assert_eq!(trace.len(), 2_000);
        let own: Vec<&Recorded> = trace.iter().filter(|batch| batch.publisher.0 == 7).collect();
        assert!(own.windows(2).all(|pair| pair[1].at.nanos_since(pair[0].at) == 1_000_000_000));
    }

    #[test]
    fn gaps_of_another_law_are_drawn_from_the_recording() {
        let publishers = publishers(100, 1);
        // Nearly all gaps are short, a few very long.
        let recorded = recording(100, 1, 0, |rng| if rng.chance(0.9) { 0.05 } else { 3.0 });
        let model = TrafficModel::of(&recorded, &publishers);
        assert!(matches!(model.law, GapLaw::Drawn(_)), "{:?}", model.law);
    }

    #[test]
    fn without_a_recording_there_are_the_known_rates() {
        let model = TrafficModel::of(&[], &publishers(60, 30));
        let trace = model.trace(Duration::from_secs(100), u64::MAX, 1);
        assert!((rate(&trace, 100.0) / 600.0 - 1.0).abs() < 0.15);
        let silent = [Publisher { rate_per_s: 0.0, group: GroupNo(0) }];
        assert!(TrafficModel::of(&[], &silent).trace(Duration::from_secs(1), 10, 1).is_empty());
    }
}

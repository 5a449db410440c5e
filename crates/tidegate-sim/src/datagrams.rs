//! Links that lose, double and reorder what they carry.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use crate::distribution::Distribution;
use crate::network::NodeId;

/// What links do to datagrams. Each chance is from 0 to 1 and for each datagram.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFaults {
    /// How likely one is lost.
    pub loss: f64,
    /// How likely one comes twice, the second time with a delay of its own.
    pub duplicate: f64,
    /// How likely one takes ten times as long as others, so that later ones overtake it.
    pub reorder: f64,
}

impl LinkFaults {
    /// Links that lose nothing; what is sent later may still come earlier if delays differ.
    pub const NONE: Self = Self { loss: 0.0, duplicate: 0.0, reorder: 0.0 };
}

/// One way between two nodes carries nothing for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Who is not heard.
    pub from: NodeId,
    /// By whom.
    pub to: NodeId,
    /// From when.
    pub since: Instant,
    /// Until when.
    pub until: Instant,
}

/// Nodes that send each other datagrams.
#[derive(Clone, Debug)]
pub struct Datagrams {
    delay: Distribution,
    faults: LinkFaults,
    partitions: Vec<Partition>,
}

impl Datagrams {
    /// Each datagram is so long on its way, independent of others.
    #[must_use]
    pub fn new(delay: Distribution, faults: LinkFaults, partitions: Vec<Partition>) -> Self {
        Self { delay, faults, partitions }
    }

    /// When a datagram sent at `now` arrives: not at all, once or twice.
    pub fn send(&mut self, from: NodeId, to: NodeId, now: Instant, rng: &mut Rng) -> impl Iterator<Item = Instant> {
        let cut = |partition: &Partition| {
            (partition.from, partition.to) == (from, to) && (partition.since..partition.until).contains(&now)
        };
        let lost = rng.chance(self.faults.loss) || self.partitions.iter().any(cut);
        let twice = rng.chance(self.faults.duplicate);
        let first = self.arrival(now, rng);
        let second = self.arrival(now, rng);
        [Some(first).filter(|_| !lost), Some(second).filter(|_| twice && !lost)].into_iter().flatten()
    }

    fn arrival(&self, now: Instant, rng: &mut Rng) -> Instant {
        let delay = self.delay.sample_ns(rng);
        now.plus_nanos(if rng.chance(self.faults.reorder) { delay.saturating_mul(10) } else { delay })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn arrivals(faults: LinkFaults, partitions: Vec<Partition>, sent_us: impl Iterator<Item = u64>) -> Vec<Instant> {
        let mut datagrams = Datagrams::new(Distribution::Constant { us: 5.0 }, faults, partitions);
        let mut rng = Rng::new(1);
        sent_us.flat_map(|us| datagrams.send(A, B, at(us), &mut rng).collect::<Vec<_>>()).collect()
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    #[test]
    fn sound_links_carry_everything_once() {
        assert_eq!(arrivals(LinkFaults::NONE, Vec::new(), 0..3), [5, 6, 7].map(at));
    }

    #[test]
    fn faults_happen_as_often_as_they_should() {
        let faults = LinkFaults { loss: 0.3, duplicate: 0.2, reorder: 0.1 };
        let arrivals = arrivals(faults, Vec::new(), 0..10_000);
        assert!(arrivals.len().abs_diff(8_400) < 200, "{}", arrivals.len());
        let overtaken = arrivals.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(overtaken > 500, "{overtaken}");
    }

    #[test]
    fn a_partition_is_one_way_and_ends() {
        let partition = |from, to| Partition { from, to, since: at(1), until: at(3) };
        assert_eq!(arrivals(LinkFaults::NONE, vec![partition(A, B)], 0..4), [5, 8].map(at));
        assert_eq!(arrivals(LinkFaults::NONE, vec![partition(B, A)], 0..4).len(), 4);
    }
}

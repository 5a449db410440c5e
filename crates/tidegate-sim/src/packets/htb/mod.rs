//! Classes that hold packets back, as Linux HTB does.
//!
//! A class has tokens, kept as time: while they are not below zero its next packet leaves at once, whatever its size, and
//! what it costs is taken afterwards, so that a large packet leaves a debt. Behind the class stand leaves: those of a lower
//! priority wait for those of a higher one, and leaves of one priority take turns by their quanta; as in Linux a packet larger
//! than the quantum goes in one turn.
//!
//! Departures: a packet's cost is exact, where Linux multiplies and shifts; timers are exact; classes do not borrow.

use std::collections::VecDeque;

use tidegate_core::Instant;

const SECOND_NS: u64 = 1_000_000_000;
/// As many as HTB has.
const PRIORITIES: u8 = 8;

/// Settings of a class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassConfig {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that can leave at once after a pause.
    pub burst: u64,
    /// Where its packets wait; at least one.
    pub leaves: Vec<LeafConfig>,
}

/// Settings of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafConfig {
    /// 0 is served first.
    pub priority: u8,
    /// Bytes of a turn.
    pub quantum: u32,
    /// Packets that may wait: the length of Linux's usual `pfifo` is 1000.
    pub packets_max: usize,
    /// Bytes that may wait.
    pub bytes_max: u64,
}

/// A queue was full; the packet comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped<P>(pub P);

/// The classes of a device.
#[derive(Clone, Debug)]
pub struct Htb<P> {
    classes: Vec<Class<P>>,
    /// The class after the one that sent last.
    next: usize,
}

#[derive(Clone, Debug)]
struct Class<P> {
    rate: u64,
    /// Tokens at `checked`, in nanoseconds; below zero is a debt.
    tokens_ns: i64,
    buffer_ns: i64,
    checked: Instant,
    leaves: Vec<Leaf<P>>,
    /// For each priority the leaf whose turn it is.
    turns: [usize; PRIORITIES as usize],
    backlog: u64,
    packets: usize,
}

#[derive(Clone, Debug)]
struct Leaf<P> {
    config: LeafConfig,
    queue: VecDeque<(u64, P)>,
    bytes: u64,
    /// Bytes left of its turn; below zero after a large packet.
    deficit: i64,
}

impl<P> Htb<P> {
    /// Empty classes with full buckets.
    ///
    /// # Panics
    /// If a class has no rate or no leaf, or a quantum is zero.
    #[must_use]
    pub fn new(classes: &[ClassConfig], now: Instant) -> Self {
        Self { classes: classes.iter().map(|config| Class::new(config, now)).collect(), next: 0 }
    }

    /// Puts a packet of `bytes` into a leaf of a class.
    ///
    /// # Errors
    /// [`Dropped`] if the leaf is full.
    pub fn enqueue(&mut self, class: usize, leaf: usize, bytes: u64, packet: P) -> Result<(), Dropped<P>> {
        let class = &mut self.classes[class];
        let leaf = &mut class.leaves[leaf];
        if leaf.queue.len() >= leaf.config.packets_max || leaf.bytes + bytes > leaf.config.bytes_max {
            return Err(Dropped(packet));
        }
        leaf.queue.push_back((bytes, packet));
        leaf.bytes += bytes;
        class.backlog += bytes;
        class.packets += 1;
        Ok(())
    }

    /// When the next packet can leave; `None` if none waits.
    #[must_use]
    pub fn next_at(&self, now: Instant) -> Option<Instant> {
        let waiting = self.classes.iter().filter(|class| class.packets > 0);
        waiting.map(|class| now.plus_nanos((-class.tokens_at(now)).max(0).unsigned_abs())).min()
    }

    /// The next packet and its size, if one can leave; classes that can take turns.
    pub fn dequeue(&mut self, now: Instant) -> Option<(u64, P)> {
        let count = self.classes.len();
        let ready = (self.next..self.next + count)
            .map(|at| at % count)
            .find(|&at| self.classes[at].packets > 0 && self.classes[at].tokens_at(now) >= 0)?;
        self.next = (ready + 1) % count;
        Some(self.classes[ready].take(now))
    }

    /// What waits in a class with its debt, in nanoseconds of its rate; below zero, so much could leave at once.
    #[must_use]
    pub fn occupancy_ns(&self, class: usize, now: Instant) -> i64 {
        let class = &self.classes[class];
        cost_ns(class.backlog, class.rate) - class.tokens_at(now)
    }

    /// Puts another rate in force, with as many bytes of burst as before; a debt keeps its bytes.
    pub fn set_rate(&mut self, class: usize, rate: u64, now: Instant) {
        let class = &mut self.classes[class];
        class.settle(now);
        let scale = |ns: i64| {
            i64::try_from(i128::from(ns) * i128::from(class.rate) / i128::from(rate))
                .expect("a debt is that of packets")
        };
        class.tokens_ns = scale(class.tokens_ns);
        class.buffer_ns = scale(class.buffer_ns);
        class.rate = rate;
    }
}

impl<P> Class<P> {
    fn new(config: &ClassConfig, now: Instant) -> Self {
        assert!(config.rate > 0 && !config.leaves.is_empty(), "a class has a rate and a leaf");
        let leaf = |config: &LeafConfig| {
            assert!(config.quantum > 0, "a turn is some bytes");
            Leaf { config: *config, queue: VecDeque::new(), bytes: 0, deficit: 0 }
        };
        let buffer_ns = cost_ns(config.burst, config.rate);
        Self {
            rate: config.rate,
            tokens_ns: buffer_ns,
            buffer_ns,
            checked: now,
            leaves: config.leaves.iter().map(leaf).collect(),
            turns: [0; PRIORITIES as usize],
            backlog: 0,
            packets: 0,
        }
    }

    fn tokens_at(&self, now: Instant) -> i64 {
        let since = i64::try_from(now.nanos_since(self.checked)).unwrap_or(i64::MAX);
        self.tokens_ns.saturating_add(since).min(self.buffer_ns)
    }

    fn settle(&mut self, now: Instant) {
        self.tokens_ns = self.tokens_at(now);
        self.checked = now.max(self.checked);
    }

    fn take(&mut self, now: Instant) -> (u64, P) {
        self.settle(now);
        let at = self.leaf_in_turn();
        let count = self.leaves.len();
        let leaf = &mut self.leaves[at];
        let (bytes, packet) = leaf.queue.pop_front().expect("a leaf in turn has a packet");
        leaf.bytes -= bytes;
        leaf.deficit -= i64::try_from(bytes).expect("a packet is small");
        if leaf.deficit < 0 {
            leaf.deficit += i64::from(leaf.config.quantum);
            self.turns[usize::from(leaf.config.priority % PRIORITIES)] = (at + 1) % count;
        }
        self.tokens_ns -= cost_ns(bytes, self.rate);
        self.backlog -= bytes;
        self.packets -= 1;
        (bytes, packet)
    }

    /// The leaf that sends next: of the highest priority that has packets, the first in turn.
    fn leaf_in_turn(&self) -> usize {
        let waiting = self.leaves.iter().filter(|leaf| !leaf.queue.is_empty());
        let priority =
            waiting.map(|leaf| leaf.config.priority).min().expect("a class with packets has a leaf with some");
        let (count, turn) = (self.leaves.len(), self.turns[usize::from(priority % PRIORITIES)]);
        let waits = |at: &usize| !self.leaves[*at].queue.is_empty() && self.leaves[*at].config.priority == priority;
        (turn..turn + count).map(|at| at % count).find(waits).expect("one of them waits")
    }
}

fn cost_ns(bytes: u64, rate: u64) -> i64 {
    i64::try_from(u128::from(bytes) * u128::from(SECOND_NS) / u128::from(rate)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LeafConfig = LeafConfig { priority: 0, quantum: 1_514, packets_max: 1_000, bytes_max: u64::MAX };

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn one(leaves: &[LeafConfig]) -> Htb<u32> {
        Htb::new(&[ClassConfig { rate: 1_000_000_000, burst: 2_000, leaves: leaves.to_vec() }], at(0))
    }

    /// When each packet leaves, and which it is, in microseconds.
    fn departures(htb: &mut Htb<u32>, from: Instant) -> Vec<(u64, u32)> {
        let mut now = from;
        let mut left = Vec::new();
        while let Some(next) = htb.next_at(now) {
            now = next;
            left.push((now.as_nanos() / 1_000, htb.dequeue(now).expect("it said so").1));
        }
        left
    }

    #[test]
    fn a_large_packet_leaves_at_once_and_the_next_waits_for_its_debt() {
        let mut htb = one(&[PLAIN]);
        (0..3).for_each(|packet| htb.enqueue(0, 0, 64_000, packet).unwrap());
        assert_eq!(htb.occupancy_ns(0, at(0)), 192_000 - 2_000, "a byte takes a nanosecond");
        assert_eq!(departures(&mut htb, at(0)), [(0, 0), (62, 1), (126, 2)]);
        assert_eq!(htb.occupancy_ns(0, at(126)), 64_000, "nothing waits, but the debt");
        assert_eq!(htb.occupancy_ns(0, at(1_000)), -2_000);
    }

    #[test]
    fn a_full_leaf_gives_the_packet_back() {
        let mut htb = one(&[LeafConfig { packets_max: 2, bytes_max: 3_000, ..PLAIN }]);
        htb.enqueue(0, 0, 1_500, 1).unwrap();
        assert_eq!(htb.enqueue(0, 0, 1_501, 2), Err(Dropped(2)));
        htb.enqueue(0, 0, 1_500, 3).unwrap();
        assert_eq!(htb.enqueue(0, 0, 0, 4), Err(Dropped(4)));
    }

    #[test]
    fn leaves_take_turns_by_bytes_and_a_lower_priority_waits() {
        let mut htb = one(&[PLAIN, LeafConfig { priority: 1, ..PLAIN }, LeafConfig { priority: 1, ..PLAIN }]);
        (0..4).for_each(|packet| htb.enqueue(0, 1, 1_514, 10 + packet).unwrap());
        (0..2).for_each(|packet| htb.enqueue(0, 2, 3_028, 20 + packet).unwrap());
        htb.enqueue(0, 0, 100, 1).unwrap();
        let order: Vec<u32> = departures(&mut htb, at(0)).into_iter().map(|(_, packet)| packet).collect();
        assert_eq!(order, [1, 10, 20, 11, 21, 12, 13]);
    }

    #[test]
    fn two_classes_get_their_rates_from_the_same_device() {
        let class = |rate| ClassConfig { rate, burst: 0, leaves: vec![PLAIN] };
        let mut htb = Htb::new(&[class(1_000_000_000), class(2_000_000_000)], at(0));
        for class in 0..2 {
            (0..500).for_each(|_| htb.enqueue(class, 0, 1_000, class).unwrap());
        }
        let left = departures_of(&mut htb, at(300));
        assert_eq!(left, [301, 500], "a microsecond and half a one for each packet, the first at once");
    }

    fn departures_of(htb: &mut Htb<usize>, until: Instant) -> [usize; 2] {
        let (mut now, mut left) = (at(0), [0, 0]);
        while let Some(next) = htb.next_at(now).filter(|next| *next <= until) {
            now = next;
            left[htb.dequeue(now).expect("it said so").1] += 1;
        }
        left
    }

    #[test]
    fn a_new_rate_keeps_what_is_owed() {
        let mut htb = one(&[PLAIN]);
        htb.enqueue(0, 0, 10_000, 1).unwrap();
        htb.enqueue(0, 0, 10_000, 2).unwrap();
        htb.dequeue(at(0)).unwrap();
        htb.set_rate(0, 500_000_000, at(0));
        assert_eq!(departures(&mut htb, at(0)), [(16, 2)]);
    }
}

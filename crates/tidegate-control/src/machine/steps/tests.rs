use std::collections::BTreeMap;

use tidegate_core::number::whole;
use tidegate_core::{Rate, Rng};

use super::super::portion::divide;
use super::*;

/// A mistake that the simulation must see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// Parts grow before those that shrink have answered.
    GrowsAtOnce,
    /// An order that failed is taken for one that had no effect.
    FailedIsUndone,
    /// The part of a node that is gone is given away at once.
    GoneHoldsNothing,
}

const CONTRACT: Limit = Limit::new(Rate::per_s(11_000), 26);
const ALL: Portion = Portion { rate_shares: WHOLE, burst: 26 };

fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn steps() -> Steps<u32> {
    let mut steps = Steps::new(StepsConfig::default(), CONTRACT, Instant::ZERO, 0);
    for node in 0..3 {
        steps.on_clock(&node, 1_000_000 * u64::from(node), ms(0));
    }
    steps
}

fn parts(shares: &[(u32, u64, u64)]) -> BTreeMap<u32, Portion> {
    shares.iter().map(|&(node, percent, burst)| (node, Portion { rate_shares: percent * WHOLE / 100, burst })).collect()
}

/// All orders of now, answered.
fn settle(steps: &mut Steps<u32>, now: Instant) -> Vec<(u32, u64, u64)> {
    let mut sent = Vec::new();
    while let Some(put) = steps.poll(now) {
        sent.push((put.node, put.portion.rate_shares * 100 / WHOLE, put.portion.burst));
        steps.on_put(&put.node, put.revision);
    }
    sent
}

#[test]
fn what_shrinks_answers_before_what_grows_is_sent() {
    let mut steps = steps();
    steps.want(&parts(&[(0, 100, 26)]));
    assert_eq!(settle(&mut steps, ms(0)), [(0, 100, 26)]);
    steps.want(&parts(&[(0, 40, 10), (1, 60, 16)]));
    let shrink = steps.poll(ms(1)).unwrap();
    assert_eq!((shrink.node, shrink.limit), (0, Limit::new(Rate::per_s(4_400), 10)));
    assert_eq!((steps.poll(ms(1)), steps.is_settled()), (None, false));
    steps.on_put(&0, shrink.revision);
    assert_eq!(settle(&mut steps, ms(2)), [(1, 60, 16)]);
    assert!(steps.is_settled());
}

#[test]
fn a_part_that_grows_and_shrinks_at_once_does_so_in_two_steps() {
    let mut steps = steps();
    steps.want(&parts(&[(0, 50, 20), (1, 50, 6)]));
    settle(&mut steps, ms(0));
    steps.want(&parts(&[(0, 80, 10), (1, 20, 16)]));
    assert_eq!(settle(&mut steps, ms(1)), [(0, 50, 10), (1, 20, 16), (0, 80, 10)]);
    assert!(steps.is_settled());
}

#[test]
fn the_part_of_a_dead_node_is_given_away_when_its_lease_is_over() {
    let mut steps = steps();
    steps.want(&parts(&[(0, 50, 13), (1, 50, 13)]));
    settle(&mut steps, ms(0));
    steps.on_gone(&1);
    steps.want(&parts(&[(0, 100, 26)]));
    assert_eq!(settle(&mut steps, ms(9_999)), [(0, 50, 13)], "only the own part is renewed");
    let over = ms(10_000).plus_nanos(10_000_000);
    assert_eq!(steps.next_timeout(), Some(over));
    assert_eq!(settle(&mut steps, over), [(0, 100, 26)]);
}

#[test]
fn parts_are_renewed_and_orders_repeated() {
    let mut steps = steps();
    steps.want(&parts(&[(1, 100, 26)]));
    let first = steps.poll(ms(0)).unwrap();
    // Its clock showed a second then, and the lease is ten.
    assert_eq!((first.revision, first.until_us), (1, 11_000_000));
    assert_eq!((steps.poll(ms(1)), steps.next_timeout()), (None, Some(ms(2_000))));
    let again = steps.poll(ms(2_000)).unwrap();
    assert_eq!((again.revision, again.until_us), (1, 13_000_000));
    steps.on_put(&1, 1);
    assert_eq!((steps.poll(ms(2_001)), steps.next_timeout()), (None, Some(ms(5_000))));
    assert_eq!(steps.poll(ms(5_000)).unwrap().revision, 1);
    steps.on_failed(&1, 1, ms(5_001));
    assert_eq!(steps.poll(ms(5_001)), None);
    assert_eq!(steps.next_timeout(), Some(ms(5_501)));
    assert_eq!(steps.poll(ms(5_501)).unwrap().revision, 1);
}

#[test]
fn a_fenced_part_gets_a_newer_revision() {
    let mut steps = steps();
    steps.want(&parts(&[(1, 100, 26)]));
    let put = steps.poll(ms(0)).unwrap();
    steps.on_fenced(&1, put.revision, 700, ms(1));
    assert_eq!(steps.poll(ms(501)).unwrap().revision, 701);
}

#[test]
fn what_is_reissued_has_a_new_revision_and_the_same_part() {
    let mut steps = steps();
    steps.want(&parts(&[(0, 50, 13), (1, 50, 13)]));
    settle(&mut steps, ms(0));
    let before = steps.revision();
    steps.reissue();
    assert_eq!(settle(&mut steps, ms(1)), [(0, 50, 13), (1, 50, 13)]);
    assert_eq!((steps.revision(), steps.is_settled()), (before + 2, true));
    assert_eq!(settle(&mut steps, ms(2)), [], "once");
}

#[test]
fn nothing_is_sent_while_a_former_leaders_leases_last() {
    let mut steps = Steps::new(StepsConfig::default(), CONTRACT, ms(10_000), 41);
    steps.on_clock(&0, 0, ms(0));
    steps.want(&parts(&[(0, 100, 26)]));
    assert_eq!((steps.poll(ms(9_999)), steps.next_timeout()), (None, Some(ms(10_000))));
    assert_eq!(steps.poll(ms(10_000)).unwrap().revision, 42);
}

#[test]
fn another_contract_changes_all_parts() {
    let mut steps = steps();
    let halves = parts(&[(0, 50, 13), (1, 50, 13)]);
    steps.want(&halves);
    settle(&mut steps, ms(0));
    steps.set_contract(Limit::new(Rate::per_s(22_000), 26));
    steps.want(&halves);
    assert!(!steps.is_settled());
    assert_eq!(settle(&mut steps, ms(1)).len(), 2);
    assert_eq!(steps.acknowledged(&0).unwrap().0, Limit::new(Rate::per_s(11_000), 13));
    // Back, and by less burst: both shrink at once.
    steps.set_contract(Limit::new(Rate::per_s(11_000), 20));
    steps.want(&parts(&[(0, 50, 10), (1, 50, 10)]));
    let sent: Vec<Put<u32>> = std::iter::from_fn(|| steps.poll(ms(2))).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|put| put.limit == Limit::new(Rate::per_s(5_500), 10)));
}

#[test]
fn what_is_more_than_the_contract_is_never_granted() {
    let mut steps = steps();
    steps.want(&parts(&[(0, 80, 20), (1, 80, 20)]));
    assert_eq!(settle(&mut steps, ms(0)), [(0, 80, 20), (1, 20, 6)]);
}

/// A node at the other end of a bad network.
struct Node {
    clock_us: u64,
    /// Millionths by which its clock is too fast, with an offset to keep it whole.
    ppm: u64,
    newest: u64,
    holds: Portion,
    until_us: u64,
    cut_until: Instant,
}

impl Node {
    fn clock(&self, now: Instant) -> u64 {
        let real = u128::from(now.as_nanos()) * u128::from(999_500 + self.ppm) / 1_000_000_000;
        self.clock_us + u64::try_from(real).unwrap()
    }

    fn in_force(&self, now: Instant) -> Portion {
        if self.clock(now) < self.until_us { self.holds } else { Portion::NONE }
    }
}

enum Message {
    Put(Put<u32>),
    Done(u32, u64),
    Failed(u32, u64),
    Clock(u32, u64),
    Poll(u32),
    Gone(u32),
    Want,
    Tick,
}

struct World {
    rng: Rng,
    now: Instant,
    steps: Steps<u32>,
    nodes: Vec<Node>,
    due: BTreeMap<(Instant, u64), Message>,
    sequence: u64,
    quiet_from: Instant,
    worst: Portion,
    /// When the next tick is due.
    tick_at: Instant,
}

const NODES: u32 = 4;
const LEASE_US: u64 = 10_000_000;

impl World {
    fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut rng = Rng::new(seed);
        let mut steps = Steps::new(StepsConfig::default(), CONTRACT, Instant::ZERO, 0);
        steps.flaw = flaw;
        let nodes = (0..NODES)
            .map(|_| Node {
                clock_us: rng.below(1 << 40),
                ppm: rng.below(1_000),
                newest: 0,
                holds: Portion::NONE,
                until_us: 0,
                cut_until: Instant::ZERO,
            })
            .collect();
        let mut world = Self {
            rng,
            now: Instant::ZERO,
            steps,
            nodes,
            due: BTreeMap::new(),
            sequence: 0,
            quiet_from: ms(60_000),
            worst: Portion::NONE,
            tick_at: Instant::MAX,
        };
        for node in 0..NODES {
            world.at(0, Message::Poll(node));
        }
        world.at(100, Message::Want);
        world
    }

    fn at(&mut self, after_ms: u64, message: Message) {
        self.sequence += 1;
        let at = self.now.plus_nanos(after_ms * 1_000_000 + self.rng.below(1_000_000));
        self.due.insert((at, self.sequence), message);
    }

    /// The way of a message: mostly milliseconds, sometimes many seconds.
    fn way_ms(&mut self) -> u64 {
        if self.now >= self.quiet_from {
            return 1;
        }
        let mean = if self.rng.chance(0.1) { 8_000.0 } else { 20.0 };
        whole(self.rng.exponential() * mean)
    }

    fn lost(&mut self) -> bool {
        self.now < self.quiet_from && self.rng.chance(0.2)
    }

    fn send(&mut self) {
        while let Some(put) = self.steps.poll(self.now) {
            let copies = if self.rng.chance(0.1) { 2 } else { 1 };
            for _ in 0..copies {
                if !self.lost() {
                    let way = self.way_ms();
                    self.at(way, Message::Put(put.clone()));
                } else if self.rng.chance(0.5) {
                    self.at(50, Message::Failed(put.node, put.revision));
                }
            }
            if self.rng.chance(0.1) {
                // The connection broke; the order may arrive all the same.
                self.at(5, Message::Failed(put.node, put.revision));
            }
        }
        if let Some(at) = self.steps.next_timeout().map(|at| at.max(self.now))
            && at < self.tick_at
        {
            let after = at.nanos_since(self.now) / 1_000_000;
            self.tick_at = at;
            self.at(after, Message::Tick);
        }
    }

    fn on(&mut self, message: Message) {
        match message {
            Message::Put(put) => {
                let node = &mut self.nodes[put.node as usize];
                let clock = node.clock(self.now);
                if self.now < node.cut_until || clock >= put.until_us || put.revision < node.newest {
                    return;
                }
                let until_us = put.until_us.min(clock + LEASE_US);
                // A renewal never shortens a lease.
                node.until_us = if put.revision == node.newest { node.until_us.max(until_us) } else { until_us };
                (node.newest, node.holds) = (put.revision, put.portion);
                if !self.lost() {
                    let way = self.way_ms();
                    self.at(way, Message::Done(put.node, put.revision));
                }
            }
            Message::Done(node, revision) => {
                self.steps.on_put(&node, revision);
                self.send();
            }
            Message::Failed(node, revision) => {
                self.steps.on_failed(&node, revision, self.now);
                self.send();
            }
            Message::Poll(node) => {
                let there = &self.nodes[node as usize];
                let (clock, cut) = (there.clock(self.now), self.now < there.cut_until);
                if !cut && !self.lost() {
                    let way = self.way_ms();
                    self.at(way, Message::Clock(node, clock));
                }
                self.at(1_000, Message::Poll(node));
            }
            Message::Clock(node, clock) => {
                self.steps.on_clock(&node, clock, self.now);
                self.send();
            }
            Message::Gone(node) => {
                self.steps.on_gone(&node);
                self.want(Some(node));
            }
            Message::Want => {
                if self.now < self.quiet_from {
                    if self.rng.chance(0.15) {
                        // A node is cut off for a while, with what it holds; it is missed some seconds later.
                        let node = self.rng.below(NODES.into());
                        let long = self.rng.below(30_000);
                        let until = self.now.plus_nanos(long * 1_000_000);
                        let number = u32::try_from(node).unwrap();
                        self.nodes[number as usize].cut_until = until;
                        self.at(3_000, Message::Gone(number));
                    }
                    self.want(None);
                    let wait = 300 + self.rng.below(3_000);
                    self.at(wait, Message::Want);
                }
            }
            Message::Tick => {
                self.tick_at = Instant::MAX;
                self.send();
            }
        }
    }

    fn want(&mut self, without: Option<u32>) {
        let weight =
            |node: u32, rng: &mut Rng| if Some(node) == without || rng.chance(0.2) { 0 } else { rng.below(100) };
        let weights: Vec<u64> = (0..NODES).map(|node| weight(node, &mut self.rng)).collect();
        let bursts: Vec<u64> = (0..NODES).map(|node| weight(node, &mut self.rng)).collect();
        let portions = divide(WHOLE, &weights, 0).into_iter().zip(divide(CONTRACT.burst, &bursts, 0));
        let portions = portions.map(|(rate_shares, burst)| Portion { rate_shares, burst });
        self.steps.want(&(0..NODES).zip(portions).collect());
        self.send();
    }

    /// Until the end; the most that was in force at one moment.
    fn run(mut self, until: Instant) -> Self {
        while let Some(((at, _), message)) = self.due.pop_first() {
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            self.on(message);
            let in_force: Vec<Portion> = self.nodes.iter().map(|node| node.in_force(self.now)).collect();
            self.worst = self.worst.most(sum(&in_force));
        }
        self
    }
}

#[test]
fn no_moment_has_more_than_the_whole_in_force() {
    let mut granted = Portion::NONE;
    for seed in 0..80 {
        let world = World::new(seed, None).run(ms(60_000));
        assert!(world.worst.is_within(ALL), "seed {seed}: {:?}", world.worst);
        granted = granted.most(world.worst);
    }
    assert_eq!(granted, ALL, "the whole is in force at some moments");
}

#[test]
fn planted_mistakes_are_seen() {
    for flaw in [Flaw::GrowsAtOnce, Flaw::FailedIsUndone, Flaw::GoneHoldsNothing] {
        let seen = (0..200).any(|seed| !World::new(seed, Some(flaw)).run(ms(60_000)).worst.is_within(ALL));
        assert!(seen, "{flaw:?}");
    }
}

#[test]
fn when_the_network_is_well_again_all_hold_what_is_wanted() {
    for seed in 0..15 {
        let world = World::new(seed, None).run(ms(120_000));
        assert!(world.steps.is_settled(), "seed {seed}");
        for (number, node) in (0..).zip(&world.nodes) {
            let wanted = world.steps.wanted(&number);
            assert_eq!(node.in_force(world.now), wanted, "seed {seed}, node {number}");
        }
    }
}

use proptest::prelude::*;
use tidegate_core::{Rate, Rng};

use super::*;

const CONTRACT: Limit = Limit::new(Rate::per_s(1_000), 30);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// A node in memory, whose clock began at another moment.
#[derive(Clone, Default)]
struct Node {
    offset_ms: u64,
    /// What it holds, of which revision, and until when by its clock.
    part: Option<(Limit, u64, u64)>,
    demand: (u64, u64),
    dead: bool,
}

struct World {
    divider: Divider,
    nodes: BTreeMap<Name, Node>,
    now: u64,
    /// Answers that are under way.
    answers: VecDeque<(u64, DividerEvent)>,
    rng: Rng,
    /// Out of a hundred orders and answers so many are lost.
    lost: u64,
}

impl World {
    fn new(names: &[&'static str], seed: u64) -> Self {
        let nodes: BTreeMap<Name, Node> = (names.iter().zip(1..))
            .map(|(name, number)| (Name::from(*name), Node { offset_ms: number * 1_000_000, ..Node::default() }))
            .collect();
        let divider = Divider::new(DividerConfig::new(CONTRACT), nodes.keys().cloned(), at(0));
        Self { divider, nodes, now: 0, answers: VecDeque::new(), rng: Rng::new(seed), lost: 0 }
    }

    fn lead(&mut self, above: u64, quiet: Duration) {
        self.divider.on_event(DividerEvent::Lead { leads: true, above, quiet }, at(self.now));
    }

    fn demand(&mut self, node: &'static str, tokens: u64, backlog: u64) {
        self.nodes.get_mut(&Name::from(node)).unwrap().demand = (tokens, backlog);
    }

    fn holds(&self, node: &'static str) -> Option<Limit> {
        self.nodes[&Name::from(node)].in_force(self.now)
    }

    /// What all nodes together may let pass.
    fn total(&self) -> (f64, u64) {
        let held = self.nodes.values().filter_map(|node| node.in_force(self.now));
        held.fold((0.0, 0), |(rate, burst), limit| (rate + limit.rate.as_per_s(), burst + limit.burst))
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            while let Some(order) = self.divider.poll_order() {
                self.carry_out(order);
            }
            let next = self.divider.next_timeout().map_or(until, |at| at.as_nanos().div_ceil(1_000_000));
            let answer = self.answers.iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX);
            self.now = next.min(answer).min(until).max(self.now);
            if answer <= self.now {
                let place = self.answers.iter().position(|(at, _)| *at == answer).unwrap();
                let (_, event) = self.answers.remove(place).unwrap();
                self.divider.on_event(event, at(self.now));
            } else {
                self.divider.on_timeout(at(self.now));
            }
            let (rate, burst) = self.total();
            assert!(rate <= 1_000.000_001 && burst <= 30, "{rate} and {burst} at {}", self.now);
        }
    }

    fn carry_out(&mut self, order: DividerOrder) {
        let (now, loses) = (self.now, self.lost);
        let mut is_lost = || self.rng.below(100) < loses;
        let (lost_there, lost_back) = (is_lost(), is_lost());
        let no = order.no;
        let name = match &order.what {
            DividerAsk::Sense { node, .. } => node,
            DividerAsk::Put(put) => &put.node,
        };
        let node = self.nodes.get_mut(name).unwrap();
        if node.dead || lost_there {
            return;
        }
        let event = match order.what {
            DividerAsk::Sense { seconds, .. } => {
                let clock_us = (now + node.offset_ms) * 1_000;
                let newest = clock_us / 1_000_000;
                let seconds = (newest.saturating_sub(seconds.into())..newest)
                    .map(|start| Second {
                        start_us: start * 1_000_000,
                        tokens: node.demand.0,
                        backlog_max: node.demand.1,
                    })
                    .collect();
                let holds = node.in_force(now);
                DividerEvent::Sensed {
                    order: no,
                    reading: DemandReading { clock_us, seconds, holds, ..DemandReading::default() },
                }
            }
            DividerAsk::Put(put) => match node.part {
                Some((_, revision, _)) if revision > put.revision => {
                    DividerEvent::Fenced { order: no, holds: revision }
                }
                _ => {
                    node.part = Some((put.limit, put.revision, put.until_us));
                    DividerEvent::Put { order: no }
                }
            },
        };
        if !lost_back {
            self.answers.push_back((now + 1 + self.rng.below(20), event));
        }
    }
}

impl Node {
    fn in_force(&self, now: u64) -> Option<Limit> {
        let until = |(limit, _, until_us): (Limit, u64, u64)| {
            ((now + self.offset_ms) * 1_000 < until_us && !self.dead).then_some(limit)
        };
        self.part.and_then(until)
    }
}

#[test]
fn a_limit_is_divided_evenly_and_then_follows_the_demand() {
    let mut world = World::new(&["a", "b"], 1);
    world.run(5_000);
    assert_eq!(world.total(), (0.0, 0), "nobody leads");
    world.lead(0, Duration::ZERO);
    world.run(5_500);
    assert_eq!(world.holds("a"), Some(Limit::new(Rate::per_s(500), 15)));
    assert_eq!(world.total(), (1_000.0, 30));
    world.demand("a", 900, 20);
    world.demand("b", 100, 10);
    world.run(20_000);
    assert_eq!(world.holds("a"), Some(Limit::new(Rate::per_s(900), 20)));
    assert_eq!(world.holds("b"), Some(Limit::new(Rate::per_s(100), 10)));
    let view = world.divider.view(at(20_000));
    assert!(view.leads && view.nodes.iter().all(|node| node.acknowledged == Some(node.wanted)), "{view:?}");
}

#[test]
fn a_node_that_dies_gives_its_part_to_the_others_and_comes_back_with_one() {
    let mut world = World::new(&["a", "b", "c"], 2);
    world.lead(0, Duration::ZERO);
    world.run(3_000);
    let dead = Name::from("b");
    world.nodes.get_mut(&dead).unwrap().dead = true;
    world.run(8_000);
    assert_eq!(
        world.holds("a"),
        Some(Limit::new(Rate::from_fraction(333_333_334, 1_000_000_000_000_000).unwrap(), 10))
    );
    // Its lease of ten seconds is over, and the others have all of it.
    world.run(20_000);
    assert_eq!(world.total().1, 30);
    let half = world.holds("a").unwrap();
    assert!(half.burst == 15 && (half.rate.as_per_s() - 500.0).abs() < 1e-3, "{half:?}");
    let back = world.nodes.get_mut(&dead).unwrap();
    (back.dead, back.part) = (false, None);
    world.run(25_000);
    assert!(world.holds("b").is_some_and(|limit| limit.burst >= 9), "{:?}", world.holds("b"));
    assert_eq!(world.total().1, 30);
}

#[test]
fn a_node_that_is_started_again_has_its_part_when_it_was_asked_next() {
    let mut world = World::new(&["a", "b"], 6);
    world.lead(0, Duration::ZERO);
    world.run(15_000);
    let (held, revision) = (world.holds("a"), world.divider.view(at(world.now)).revision);
    assert!(held.is_some());
    // Sooner than anybody notices that it was away.
    world.nodes.get_mut(&Name::from("a")).unwrap().part = None;
    world.run(16_100);
    assert_eq!((world.holds("a"), world.divider.view(at(world.now)).revision), (held, revision));
}

#[test]
fn another_leader_takes_over_what_nodes_hold() {
    let mut world = World::new(&["a", "b"], 3);
    world.lead(0, Duration::ZERO);
    world.demand("a", 800, 20);
    world.demand("b", 200, 10);
    world.run(15_000);
    let held = (world.holds("a"), world.holds("b"));
    let mut other = Divider::new(DividerConfig::new(CONTRACT), world.nodes.keys().cloned(), at(world.now));
    std::mem::swap(&mut world.divider, &mut other);
    world.answers.clear();
    world.lead(1 << 24, Duration::from_secs(10));
    world.run(15_500);
    let wanted: Vec<Limit> = world.divider.view(at(world.now)).nodes.iter().map(|node| node.wanted).collect();
    assert_eq!((Some(wanted[0]), Some(wanted[1])), held);
    world.run(27_000);
    assert_eq!(world.total(), (1_000.0, 30), "after the quiet they are granted");
    assert!(world.divider.view(at(world.now)).revision > 1 << 24);
}

proptest! {
    /// The world asserts that the sum is within the contract at every step.
    #[test]
    fn whatever_is_lost_the_sum_is_within_the_contract(
        seed in any::<u64>(),
        lost in 0..60u64,
        changes in proptest::collection::vec((0..3usize, 0..2_000u64, 0..60u64, any::<bool>()), 1..12),
    ) {
        let names = ["a", "b", "c"];
        let mut world = World::new(&names, seed);
        world.lost = lost;
        world.lead(0, Duration::ZERO);
        for (node, tokens, backlog, toggle) in changes {
            world.demand(names[node], tokens, backlog);
            if toggle {
                let node = world.nodes.get_mut(&Name::from(names[node])).unwrap();
                node.dead = !node.dead;
            }
            world.run(world.now + 2_700);
        }
        world.lost = 0;
        for node in world.nodes.values_mut() {
            node.dead = false;
        }
        world.run(world.now + 40_000);
        prop_assert_eq!(world.total().1, 30, "nothing is wasted in the end");
    }
}

#[test]
fn a_term_that_is_not_renewed_ends_by_itself() {
    let mut world = World::new(&["a", "b"], 1);
    world.lead(0, Duration::ZERO);
    world.divider.on_event(DividerEvent::LeadsUntil(at(3_000)), at(0));
    world.run(2_000);
    assert!(world.divider.view(at(2_000)).leads);
    world.divider.on_event(DividerEvent::LeadsUntil(at(5_000)), at(2_000));
    world.run(4_999);
    assert!(world.divider.view(at(4_999)).leads && world.holds("a").is_some());
    // It stood still.
    world.divider.on_event(DividerEvent::Failed { order: 1 }, at(9_000));
    assert_eq!((world.divider.view(at(9_000)).leads, world.divider.poll_order()), (false, None));
    assert_eq!(world.divider.next_timeout(), None);
}

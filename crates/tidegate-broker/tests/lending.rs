//! Brokers whose parts of a limit lend each other tokens, over a network that loses datagrams: together they never let more
//! pass than the whole limit, whatever is lost, killed or paused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use harness::{Broker, Client, SECOND, START, ms, put, topic_name, wait};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Recording};
use tidegate_broker::machine::lending::split::SplitNode;
use tidegate_broker::machine::lending::{BOOTS_PER_START, LendSnapshot, LendState, Split, WhySplit};
use tidegate_broker::machine::limiter::Unit;
use tidegate_broker::machine::parts::{OnLapse, PartGrant, PartOrder, PartRefused, PartStep};
use tidegate_core::lend::{Frame, Member};
use tidegate_core::limit::Limit;
use tidegate_core::number::float;
use tidegate_core::{Instant, Rate, Rng};
use tidegate_sim::datagrams::{Datagrams, LinkFaults, Partition};
use tidegate_sim::distribution::Distribution;
use tidegate_sim::law::Windows;
use tidegate_sim::network::NodeId;

const RATE: u64 = 2_000;
const BURST: u64 = 16;

/// What one broker is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lends {
    On,
    Off,
}

struct Node {
    broker: Broker,
    publisher: Client,
    consumer: Client,
    boots: u32,
    /// It does nothing until then.
    paused: Option<Instant>,
    arrivals: Vec<Instant>,
    frames: Vec<Frame>,
}

struct World {
    now: Instant,
    nodes: Vec<Node>,
    network: Datagrams,
    /// On their way, by the instant of arrival.
    under_way: Vec<(Instant, usize, Frame)>,
    rng: Rng,
    releases: Vec<Instant>,
    delays_ns: Vec<u64>,
    revision: u64,
    order: (u64, Vec<u64>, Lends),
    sent: u64,
    /// Frames that say that parts of a message were given.
    parts: u64,
    /// The last frame that was sent to the first broker.
    last: Option<Frame>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 5_000 + u16::try_from(node).unwrap()))
}

fn split(generation: u64, bursts: &[u64], own: usize) -> Arc<Split> {
    let node = |(number, burst): (usize, &u64)| SplitNode {
        number: u16::try_from(number).unwrap(),
        name: format!("n{number}"),
        burst: *burst,
        addresses: vec![address(number)],
    };
    let nodes = bursts.iter().enumerate().map(node).collect();
    Arc::new(Split { generation, own: u16::try_from(own).unwrap(), nodes }.checked().unwrap())
}

fn step(broker: &mut Broker, order: &PartOrder, step: PartStep) -> Result<(), PartRefused> {
    let order = PartOrder { step, until: broker.now + order.lease, ..order.clone() };
    match broker.ask_all(&AdminRequest::PutParts(order)).remove(0) {
        AdminReply::Parts(_) => Ok(()),
        AdminReply::PartsRefused(why) => Err(why),
        other => panic!("{other:?}"),
    }
}

impl Node {
    fn start(boots: u32, now: Instant) -> Self {
        let mut broker = Broker::lending(boots * BOOTS_PER_START + 1, now);
        let consumer = broker.subscribe("t", "c", 2500);
        let publisher = broker.connect();
        Self { broker, publisher, consumer, boots, paused: None, arrivals: Vec::new(), frames: Vec::new() }
    }

    fn lending(&mut self) -> LendSnapshot {
        match self.broker.ask_all(&AdminRequest::Lending).remove(0) {
            AdminReply::Lending(snapshot) => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self) -> Option<LendState> {
        self.lending().circles.first().map(|circle| circle.state)
    }
}

impl World {
    fn new(nodes: usize, faults: LinkFaults, way: Distribution, seed: u64) -> Self {
        Self::with_partitions(nodes, (faults, way), Vec::new(), seed)
    }

    fn with_partitions(
        nodes: usize,
        (faults, way): (LinkFaults, Distribution),
        partitions: Vec<Partition>,
        seed: u64,
    ) -> Self {
        Self {
            now: START,
            nodes: (0..nodes).map(|_| Node::start(1, START)).collect(),
            network: Datagrams::new(way, faults, partitions),
            under_way: Vec::new(),
            rng: Rng::new(seed),
            releases: Vec::new(),
            delays_ns: Vec::new(),
            revision: 0,
            order: (0, Vec::new(), Lends::Off),
            sent: 0,
            parts: 0,
            last: None,
        }
    }

    /// The order for `node`, as control renews it.
    fn order_for(&self, node: usize) -> PartOrder {
        let (revision, bursts, lends) = &self.order;
        let many = bursts.len() as u64;
        let part = PartGrant {
            topic: topic_name("t"),
            limit: Limit::new(Rate::from_fraction(RATE.into(), (many * 1_000_000_000).into()).unwrap(), bursts[node]),
            unit: Unit::Messages,
            split: (*lends == Lends::On).then(|| split(*revision, bursts, node)),
        };
        PartOrder {
            revision: *revision,
            lease: SECOND * 60,
            // As it is sent.
            until: Instant::ZERO,
            on_lapse: OnLapse::Local,
            parts: [part].into(),
            step: PartStep::Check,
        }
    }

    /// Puts this split in force, what shrinks first, as control does. Ends when each broker has said that it is.
    fn put(&mut self, bursts: &[u64], lends: Lends) {
        let before = self.order.1.clone();
        self.revision += 1;
        self.order = (self.revision, bursts.to_vec(), lends);
        let mut nodes: Vec<usize> = (0..bursts.len()).collect();
        nodes.sort_by_key(|&node| before.get(node).is_some_and(|before| bursts[node] > *before));
        for node in nodes {
            self.put_at(node);
        }
    }

    /// Sends the order to one node until it is carried out.
    fn put_at(&mut self, node: usize) {
        let order = self.order_for(node);
        for at in [PartStep::Check, PartStep::Shrink, PartStep::All] {
            loop {
                self.wake(node);
                match step(&mut self.nodes[node].broker, &order, at) {
                    Ok(()) => break,
                    Err(PartRefused::Lent { .. }) => self.run(ms(5), 0.0),
                    Err(why) => panic!("{why}"),
                }
            }
            self.carry(node);
        }
    }

    /// Every broker records what it releases.
    fn record(&mut self) {
        for node in &mut self.nodes {
            node.broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
        }
    }

    fn harvest(&mut self, node: usize) {
        let broker = &mut self.nodes[node].broker;
        broker.order(AdminRequest::Record(topic_name("t"), Recording::Off));
        for passage in std::mem::take(&mut broker.passages) {
            self.releases.push(passage.release);
            self.delays_ns.push(passage.release.nanos_since(passage.arrival));
        }
    }

    /// Time passes, with `rate_per_s` messages a second to all brokers together.
    fn run(&mut self, span: Duration, rate_per_s: f64) {
        let until = self.now + span;
        let gap = |rng: &mut Rng| match rate_per_s {
            rate if rate > 0.0 => Duration::from_secs_f64(rng.exponential() / rate),
            _ => Duration::from_hours(1),
        };
        let mut arrival = self.now + gap(&mut self.rng);
        loop {
            let datagram = self.under_way.iter().map(|(at, ..)| *at).min().unwrap_or(Instant::MAX);
            let timeout = |node: &Node| match node.paused {
                Some(until) => Some(until),
                None => node.broker.next_timeout(),
            };
            let timeout = self.nodes.iter().filter_map(timeout).min().unwrap_or(Instant::MAX);
            let next = arrival.min(datagram).min(timeout);
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            let count = self.nodes.len() as u64;
            if next == arrival {
                let node = usize::try_from(self.rng.below(count)).unwrap();
                self.nodes[node].arrivals.push(self.now);
                self.wake(node);
                arrival = self.now + gap(&mut self.rng);
            } else if next == datagram {
                let place = self.under_way.iter().position(|(at, ..)| *at == datagram).unwrap();
                let (_, to, frame) = self.under_way.swap_remove(place);
                self.nodes[to].frames.push(frame);
                self.wake(to);
            } else {
                for node in 0..self.nodes.len() {
                    self.wake(node);
                }
            }
        }
        self.now = until;
    }

    /// The node does all that it can do now.
    fn wake(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        if node.paused.is_some_and(|until| now < until) {
            return;
        }
        node.paused = None;
        node.broker.now = now;
        for arrival in std::mem::take(&mut node.arrivals) {
            node.broker.give(node.publisher, put("t", "hello"), arrival);
        }
        node.broker.wake();
        for frame in std::mem::take(&mut node.frames) {
            node.broker.on_lend_frame(frame);
        }
        for message in node.broker.messages(node.consumer) {
            let consumer = node.consumer;
            node.broker.finish(consumer, &message);
        }
        node.broker.replies(node.publisher);
        self.carry(number);
    }

    fn carry(&mut self, from: usize) {
        for (to, frame) in std::mem::take(&mut self.nodes[from].broker.lent) {
            let to = usize::from(to.port()) - 5_000;
            let node = |number: usize| NodeId(u32::try_from(number).unwrap());
            self.sent += 1;
            self.parts += u64::from(frame.entries.iter().any(|entry| !entry.given.is_multiple_of(16)));
            if to == 0 {
                self.last = Some(frame.clone());
            }
            for at in self.network.send(node(from), node(to), self.now, &mut self.rng) {
                self.under_way.push((at, to, frame.clone()));
            }
        }
    }

    /// The process is killed, and started again; control gives it the same part, and its publishers come back.
    fn kill(&mut self, number: usize) {
        self.wake(number);
        self.harvest(number);
        let boots = self.nodes[number].boots + 1;
        self.nodes[number] = Node::start(boots, self.now);
        self.put_at(number);
        self.nodes[number].broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
    }

    fn pause(&mut self, number: usize, span: Duration) {
        self.wake(number);
        self.nodes[number].paused = Some(self.now + span);
    }

    /// Deletes the topic, which its publishers make anew.
    fn delete(&mut self, number: usize) {
        self.harvest(number);
        let broker = &mut self.nodes[number].broker;
        broker.order(AdminRequest::DeleteTopic(topic_name("t")));
        let node = &mut self.nodes[number];
        node.consumer = node.broker.subscribe("t", "c", 2500);
        node.broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
        self.carry(number);
    }

    /// What it has borrowed and lent.
    fn position(&mut self, number: usize) -> (u64, u64) {
        let circles = self.nodes[number].lending().circles;
        circles.first().map_or((0, 0), |circle| (circle.position.borrowed, circle.position.lent))
    }

    /// Depth of all buckets, with what their books say is lent.
    fn depth(&mut self) -> u64 {
        self.nodes.iter_mut().map(|node| node.broker.topic("t").limit.unwrap().burst).sum()
    }

    /// Releases that completed a window with more than the whole limit, of all releases.
    fn violations(&mut self) -> (u64, u64) {
        for node in 0..self.nodes.len() {
            self.harvest(node);
        }
        self.releases.sort_unstable();
        let mut windows = Windows::new(Limit::new(Rate::per_s(RATE), BURST), Duration::ZERO);
        for &at in &self.releases {
            windows.observe(at);
        }
        (windows.violations(), windows.messages())
    }

    fn mean_delay_us(&self) -> f64 {
        let sum: u64 = self.delays_ns.iter().sum();
        float(sum) / 1_000.0 / float(self.delays_ns.len() as u64)
    }
}

const NEAR: Distribution = Distribution::Constant { us: 100.0 };

/// `k` brokers with the whole limit between them for `span` at nine tenths of it; delays, and datagrams for each message.
fn steady(bursts: &[u64], lends: Lends, seed: u64) -> (f64, f64) {
    let mut world = World::new(bursts.len(), LinkFaults::NONE, NEAR, seed);
    world.put(bursts, lends);
    // A broker that has just started holds what it may have lent before back, for a lease.
    world.run(ms(1_500), 0.0);
    world.record();
    world.run(SECOND * 4, 0.9 * float(RATE));
    let (violations, messages) = world.violations();
    assert_eq!(violations, 0);
    assert!(messages > 6_500, "{messages}");
    assert_eq!(world.parts > world.sent / 2, lends == Lends::On, "{} frames, {}", world.sent, world.parts);
    (world.mean_delay_us(), float(world.sent) / float(messages))
}

#[test]
fn two_brokers_that_lend_delay_like_one() {
    let (lent, frames) = steady(&[8, 8], Lends::On, 1);
    let (split, none) = steady(&[8, 8], Lends::Off, 1);
    assert!(none == 0.0 && frames < 0.3, "{frames} datagrams a message");
    assert!(lent < split / 4.0, "{lent} us with lending, {split} us without");
}

#[test]
fn three_brokers_that_lend_delay_less_than_split_ones() {
    let (lent, _) = steady(&[6, 5, 5], Lends::On, 2);
    let (split, _) = steady(&[6, 5, 5], Lends::Off, 2);
    assert!(lent < split / 4.0, "{lent} us with lending, {split} us without");
}

/// Everything at once: datagrams lost, doubled and late, ways cut off, brokers killed and paused, splits changed, lending
/// switched off and on, the topic deleted.
fn chaos(seed: u64) -> (u64, u64) {
    let mut rng = Rng::stream(seed, 7);
    let many = 2 + usize::try_from(rng.below(2)).unwrap();
    let faults = LinkFaults { loss: 0.4 * rng.f64(), duplicate: 0.2, reorder: 0.1 };
    let way =
        Distribution::Uniform { from_us: 20.0, to_us: [200.0, 2_000.0, 40_000.0][usize::try_from(seed % 3).unwrap()] };
    let cut = |rng: &mut Rng| {
        let [from, to] =
            [rng.below(many as u64), rng.below(many as u64)].map(|node| NodeId(u32::try_from(node).unwrap()));
        let since = START + ms(rng.below(8_000));
        Partition { from, to, since, until: since + ms(rng.below(2_500)) }
    };
    let partitions = (0..4).map(|_| cut(&mut rng)).collect();
    let mut world = World::with_partitions(many, (faults, way), partitions, seed);
    let shares = |rng: &mut Rng| {
        let mut bursts = vec![1; many];
        (0..BURST - many as u64).for_each(|_| bursts[usize::try_from(rng.below(many as u64)).unwrap()] += 1);
        bursts
    };
    let first = shares(&mut rng);
    world.put(&first, Lends::On);
    world.record();
    for _ in 0..16 {
        world.run(ms(100 + rng.below(500)), 0.95 * float(RATE));
        let node = usize::try_from(rng.below(many as u64)).unwrap();
        match rng.below(6) {
            0 => world.kill(node),
            1 | 2 => world.pause(node, ms(rng.below(1_800))),
            3 => {
                // Control waits for each answer.
                world.run(SECOND * 2, 0.0);
                let next = shares(&mut rng);
                let lends = if rng.chance(0.2) { Lends::Off } else { Lends::On };
                world.put(&next, lends);
            }
            4 => {
                world.wake(node);
                if world.nodes[node].paused.is_none() {
                    world.delete(node);
                }
            }
            _ => {}
        }
        // One that stands still may hold what has ended: it cuts that off before it takes anything.
        if world.nodes.iter().all(|node| node.paused.is_none()) {
            let depth = world.depth();
            assert!(depth <= BURST, "{depth} tokens of depth");
        }
    }
    world.run(SECOND * 2, 0.0);
    world.violations()
}

#[test]
fn the_whole_limit_holds_whatever_goes_wrong() {
    for seed in 0..24 {
        let (violations, messages) = chaos(seed);
        assert_eq!(violations, 0, "seed {seed}: of {messages} messages");
        assert!(messages > 3_000, "seed {seed}: {messages}");
    }
}

/// Two brokers of which the first has borrowed of the second.
fn borrowed() -> World {
    let mut world = World::new(2, LinkFaults::NONE, NEAR, 3);
    world.put(&[8, 8], Lends::On);
    world.run(ms(1_500), 0.0);
    world.record();
    world.nodes[0].arrivals = vec![world.now; 14];
    world.wake(0);
    world.run(ms(3), 0.0);
    let [first, second] = [0, 1].map(|node| world.position(node));
    assert!(first.0 > 0 && first.0 == second.1 && second.0 == 0, "{first:?} {second:?}");
    world
}

#[test]
fn what_is_lent_comes_back_when_a_broker_stops() {
    let mut world = borrowed();
    let drained = &mut world.nodes[0].broker;
    drained.now = world.now;
    drained.drain_only();
    assert!(!drained.is_drained(), "it has not heard that the other knows");
    world.carry(0);
    world.run(ms(1), 0.0);
    assert!(world.nodes[0].broker.is_drained());
    assert_eq!(world.position(1), (0, 0));
    assert_eq!(world.nodes[1].broker.topic("t").limit.unwrap().burst, 8);
}

#[test]
fn a_broker_that_stops_while_no_other_answers_waits_for_a_lease_at_most() {
    let mut world = borrowed();
    let lender = &mut world.nodes[1].broker;
    lender.now = world.now;
    lender.drain();
    assert!(lender.now <= world.now + ms(1_100), "{:?}", lender.now - world.now);
}

#[test]
fn a_part_that_lapses_is_a_static_one_until_another_split() {
    let mut world = borrowed();
    let short = PartOrder { lease: ms(100), ..world.order_for(0) };
    let broker = &mut world.nodes[0].broker;
    broker.now = world.now;
    // A lease is never shortened: another revision, with the same split, has one of its own.
    let mut next = PartOrder { revision: 2, ..short };
    for at in [PartStep::Check, PartStep::Shrink, PartStep::All] {
        step(broker, &next, at).unwrap();
    }
    assert_eq!(world.nodes[0].state(), Some(LendState::Lends));
    world.run(ms(200), 0.0);
    assert_eq!(world.nodes[0].state(), Some(LendState::Split(WhySplit::Lapsed)));
    assert_eq!([0, 1].map(|node| world.nodes[node].broker.topic("t").limit.unwrap().burst), [8, 8]);
    next.lease = SECOND;
    world.wake(0);
    step(&mut world.nodes[0].broker, &next, PartStep::All).unwrap();
    assert_eq!(world.nodes[0].state(), Some(LendState::Split(WhySplit::Left)), "frames of its past may be under way");
    world.revision = 2;
    world.put(&[8, 8], Lends::On);
    world.run(ms(10), 0.0);
    assert_eq!([0, 1].map(|node| world.nodes[node].state()), [Some(LendState::Lends); 2]);
}

#[test]
fn a_smaller_contract_or_another_mode_ends_lending_at_once() {
    let mut world = borrowed();
    world.wake(0);
    world.nodes[0].broker.limit("t", wait(RATE, 5));
    assert_eq!(world.nodes[0].broker.topic("t").limit.unwrap().part.unwrap().burst, 5);
    world.carry(0);
    world.run(ms(1), 0.0);
    assert_eq!(world.nodes[0].state(), Some(LendState::Split(WhySplit::Contract)));
    assert_eq!([0, 1].map(|node| world.nodes[node].broker.topic("t").limit.unwrap().burst), [5, 8]);
}

#[test]
fn a_part_that_is_lent_shrinks_when_it_has_come_back() {
    let mut world = borrowed();
    // Nobody hears anybody: what the second lent comes back with its lease.
    world.network = Datagrams::new(NEAR, LinkFaults { loss: 1.0, ..LinkFaults::NONE }, Vec::new());
    let lent = world.position(1).1;
    assert!(lent > 2, "{lent}");
    let before = world.now;
    world.put(&[14, 2], Lends::On);
    assert!(world.now > before + ms(900) && world.now < before + ms(1_200), "{:?}", world.now - before);
    assert!(world.depth() <= BURST);
}

#[test]
fn a_sleep_ends_what_is_borrowed() {
    let mut world = borrowed();
    world.wake(0);
    world.nodes[0].broker.slept();
    assert_eq!(world.position(0), (0, 0));
    assert_eq!(world.nodes[0].broker.topic("t").limit.unwrap().burst, 8);
}

#[test]
fn frames_of_strangers_change_nothing() {
    let mut world = borrowed();
    let before = world.position(0);
    let mut frame = world.last.clone().unwrap();
    for entry in &mut frame.entries {
        (entry.given, entry.room) = (entry.given + 1_000, entry.room + 1_000);
    }
    // Of a member that is in no circle, and to another one.
    for (from, to) in [(40 << 6, frame.to.0), (frame.from.0, 41 << 6)] {
        let strange = Frame { from: Member(from), to: Member(to), ..frame.clone() };
        world.nodes[0].frames.push(strange);
        world.wake(0);
        assert_eq!(world.position(0), before);
    }
}

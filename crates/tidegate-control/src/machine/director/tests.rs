mod laws;
mod moving;

use core::fmt::Write as _;

use tidegate_core::number::{float, whole};
use tidegate_core::{Rate, Rng};

use super::super::roster::{Roster, RosterConfig, Says};
use super::super::types::Slo;
use super::*;
use moving::Past;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Limit = Limit::new(Rate::per_s(1_100), 60);
const CAPACITY: f64 = 600.0;

fn config() -> DirectorConfig {
    let mut config = DirectorConfig::new(LIMIT, Slo { quantile: 0.99, within: Duration::from_millis(1) });
    (config.fit.round, config.fit.settle) = (Duration::from_secs(5), SECOND);
    config.ready_within = Duration::from_secs(8);
    config.forget_after = Duration::from_secs(20);
    config.retry_after = Duration::from_secs(30);
    config
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

struct Node {
    name: NodeName,
    offset_us: u64,
    newest: u64,
    holds: Limit,
    until_us: u64,
    /// It runs.
    alive: bool,
    /// Nothing reaches it, and nobody hears it.
    cut: bool,
    draining: bool,
    missing: Vec<String>,
    /// What waits there beside what its publishers make wait.
    line: u64,
    split: Option<Arc<Split>>,
}

struct Publisher {
    identity: Identity,
    rate_per_s: f64,
    on: Option<usize>,
    stopped: bool,
    /// It does not do as it is told.
    stays: bool,
}

enum What {
    /// An order arrives at its node.
    Arrives(Order),
    Answer(Event),
    Poll(usize),
    Moves(usize),
    Tick,
    /// A tenth of a second passed.
    Passes,
    Do(fn(&mut World)),
}

/// Nodes, publishers and a bad network around a director.
struct World {
    rng: Rng,
    now: Instant,
    director: Director,
    roster: Roster,
    nodes: Vec<Node>,
    publishers: Vec<Publisher>,
    placement: Placement,
    due: BTreeMap<(Instant, u64), What>,
    sequence: u64,
    loss: f64,
    reports: Vec<Report>,
    log: String,
    /// The largest contract of the last leases.
    contracts: Vec<(Instant, Limit)>,
    tick_at: Instant,
    /// Sensors say what was, and not what is.
    past: Option<Past>,
}

impl World {
    fn new(config: DirectorConfig, nodes: &[&str], publishers: usize, loss: f64, seed: u64) -> Self {
        let mut world = Self {
            rng: Rng::new(seed),
            now: Instant::ZERO,
            contracts: vec![(Instant::MAX, config.limit)],
            director: Director::new(config, Instant::ZERO),
            roster: Roster::new(RosterConfig::default()),
            nodes: Vec::new(),
            publishers: Vec::new(),
            placement: Placement::default(),
            due: BTreeMap::new(),
            sequence: 0,
            loss,
            reports: Vec::new(),
            log: String::new(),
            tick_at: Instant::MAX,
            past: None,
        };
        for name in nodes {
            world.add_node(name);
        }
        for number in 0..publishers {
            world.add_publisher(number, 10.0);
        }
        world.tell(Event::Lead { leads: true, above: 0, quiet: Duration::ZERO });
        world
    }

    fn add_node(&mut self, name: &str) {
        let name = NodeName::from(name);
        self.roster.add(&name, self.now).unwrap();
        let offset_us = 5_000_000 + self.rng.below(1 << 40);
        self.nodes.push(Node {
            name,
            offset_us,
            newest: 0,
            holds: Limit::new(Rate::ZERO, 0),
            until_us: 0,
            alive: true,
            cut: false,
            draining: false,
            missing: Vec::new(),
            line: 0,
            split: None,
        });
        self.plan(0, What::Poll(self.nodes.len() - 1));
    }

    fn add_publisher(&mut self, number: usize, rate_per_s: f64) {
        let identity = Identity::from(format!("publisher-{number}"));
        self.publishers.push(Publisher { identity, rate_per_s, on: None, stopped: false, stays: false });
        self.plan(300, What::Moves(self.publishers.len() - 1));
    }

    fn plan(&mut self, after_ms: u64, what: What) {
        self.sequence += 1;
        let at = self.now.plus_nanos(after_ms * 1_000_000);
        self.due.insert((at, self.sequence), what);
    }

    fn later(&mut self, at_ms: u64, what: fn(&mut World)) {
        let after = at(at_ms).nanos_since(self.now) / 1_000_000;
        self.plan(after, What::Do(what));
    }

    fn tell(&mut self, event: Event) {
        self.director.on_event(event, self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        for _ in 0..100_000 {
            let Some(order) = self.director.poll_order() else { break };
            writeln!(self.log, "{:?} {order:?}", self.now).unwrap();
            match order.what {
                Ask::Place(change) => {
                    self.placement.apply(&change);
                    for number in 0..self.publishers.len() {
                        let slow_ms = self.past.as_ref().map_or(0, |past| past.slow_ms);
                        let after = slow_ms + 20 + self.rng.below(200);
                        self.plan(after, What::Moves(number));
                    }
                }
                Ask::Report(report) => self.reports.push(report),
                Ask::Disconnect { .. } => {}
                _ if self.rng.chance(self.loss) => {}
                _ => {
                    let way = 1 + self.rng.below(30);
                    self.plan(way, What::Arrives(order));
                }
            }
        }
        assert!(self.director.poll_order().is_none(), "orders do not end");
        if self.director.left.is_empty() {
            assert_eq!(self.placement, self.director.placement());
        }
        assert!(self.director.waiting.len() <= UNANSWERED_MAX * self.nodes.len());
        if let Some(at) = self.director.next_timeout()
            && at < self.tick_at
        {
            self.tick_at = at;
            let after = at.nanos_since(self.now).div_ceil(1_000_000);
            self.plan(after, What::Tick);
        }
    }

    fn clock_us(&self, node: usize) -> u64 {
        self.nodes[node].offset_us + self.now.as_nanos() / 1_000
    }

    fn answer(&mut self, event: Event, after_ms: u64) {
        if !self.rng.chance(self.loss) {
            self.plan(after_ms, What::Answer(event));
        }
    }

    fn arrives(&mut self, order: Order) {
        let named = |name: &NodeName| self.nodes.iter().position(|node| node.name == *name).unwrap();
        let no = order.no;
        match order.what {
            Ask::Sense { node, seconds, .. } => {
                let node = named(&node);
                if self.reaches(node) {
                    let reading = self.reading(node, seconds);
                    self.answer(Event::Sensed { order: no, reading }, 2);
                }
            }
            Ask::Prepare { node } => {
                let node = named(&node);
                if self.reaches(node) {
                    let missing = self.nodes[node].missing.clone();
                    self.answer(Event::Prepared { order: no, missing }, 2);
                }
            }
            Ask::Put { node, grant } => {
                let at = named(&node);
                if !self.reaches(at) {
                    return self.answer(Event::Failed { order: no }, 100);
                }
                let clock_us = self.clock_us(at);
                let node = &mut self.nodes[at];
                if grant.revision < node.newest {
                    let holds = node.newest;
                    return self.answer(Event::Fenced { order: no, holds }, 2);
                }
                if clock_us < grant.until_us {
                    let lease_us = u64::try_from(grant.lease.as_micros()).unwrap();
                    let until_us = grant.until_us.min(clock_us + lease_us);
                    let is_renewal = node.newest == grant.revision;
                    node.until_us = if is_renewal { node.until_us.max(until_us) } else { until_us };
                    (node.newest, node.holds, node.split) = (grant.revision, grant.limit, grant.split);
                    self.judge();
                    self.answer(Event::Put { order: no }, 2);
                }
            }
            Ask::Withdraw { node, revision } => {
                let node = named(&node);
                self.nodes[node].newest = revision;
                self.nodes[node].until_us = 0;
                self.answer(Event::Put { order: no }, 2);
            }
            Ask::Record { .. } | Ask::Disconnect { .. } | Ask::Place(_) | Ask::Report(_) => unreachable!("{no}"),
        }
    }

    fn reaches(&self, node: usize) -> bool {
        self.nodes[node].alive && !self.nodes[node].cut
    }

    /// Of seconds that all were like this moment, unless the past is kept.
    fn reading(&mut self, node: usize, seconds: u32) -> Reading {
        if let Some(past) = &self.past {
            return past.reading(self, node, u64::from(seconds));
        }
        let clock_us = self.clock_us(node);
        let on: Vec<&Publisher> =
            self.publishers.iter().filter(|publisher| publisher.on == Some(node) && !publisher.stopped).collect();
        let rate: f64 = on.iter().map(|publisher| publisher.rate_per_s).sum();
        let delay_us_p99 = 1_000.0 * rate / CAPACITY;
        let line = self.nodes[node].line;
        let publishers = on
            .iter()
            .map(|publisher| Seen {
                identity: publisher.identity.clone(),
                correlation: None,
                rate_per_s: publisher.rate_per_s,
            })
            .collect();
        let second = |back: u64| Second {
            start_us: (clock_us / 1_000_000 - 1 - back) * 1_000_000,
            tokens: whole(rate),
            backlog_max: whole(rate / 50.0) + line,
        };
        let messages = whole(rate) * u64::from(seconds);
        let over_slo = if delay_us_p99 > 1_000.0 { messages / 20 } else { 0 };
        Reading {
            clock_us,
            seconds: (0..u64::from(seconds.min(4))).rev().map(second).collect(),
            publishers,
            delays: Delays { messages, over_slo, delay_us_p99, access_us_p99: 0.0 },
        }
    }

    /// What is in force anywhere is never more than the contract, be it that of a lease ago.
    fn judge(&mut self) {
        let now = self.now;
        self.contracts.retain(|(until, _)| *until > now);
        let of = |node: usize| {
            let known = &self.nodes[node];
            if known.alive && self.clock_us(node) < known.until_us { Some(known.holds) } else { None }
        };
        let in_force: Vec<Limit> = (0..self.nodes.len()).filter_map(of).collect();
        let burst: u64 = in_force.iter().map(|limit| limit.burst).sum();
        let rate: f64 = in_force.iter().map(|limit| limit.rate.as_per_s()).sum();
        let most = |of: fn(&Limit) -> f64| self.contracts.iter().map(|(_, limit)| of(limit)).fold(0.0, f64::max);
        assert!(float(burst) <= most(|limit| float(limit.burst)), "{now:?}: {in_force:?}");
        assert!(rate <= most(|limit| limit.rate.as_per_s()) * (1.0 + 1e-9), "{now:?}: {in_force:?}");
    }

    fn poll(&mut self, node: usize) {
        if self.reaches(node) && !self.rng.chance(self.loss) {
            let says = if self.nodes[node].draining { Says::Draining } else { Says::Ready };
            let name = self.nodes[node].name.clone();
            self.roster.on_answer(name.as_str(), says, self.now);
        }
        self.roster.on_timeout(self.now);
        while let Some(change) = self.roster.poll_change() {
            let load = NodeLoad { mcap_per_s: 800.0, allocated_per_s: 0.0 };
            self.tell(Event::Node { node: change.node, state: change.state, load });
        }
        self.plan(1_000, What::Poll(node));
    }

    /// A publisher goes where the placement says; one that is not named, by weights, to the largest.
    fn moves(&mut self, number: usize) {
        if self.placement.nodes.is_empty() {
            return self.plan(200, What::Moves(number));
        }
        let identity = self.publishers[number].identity.clone();
        let weights = self.placement.default.iter().enumerate();
        let most = weights.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).map_or(0, |(place, _)| place);
        let place = self.placement.publishers.get(&identity).map_or(most, |&place| place as usize);
        let name = &self.placement.nodes[place];
        if !self.publishers[number].stays {
            self.publishers[number].on = self.nodes.iter().position(|node| node.name == *name);
        }
    }

    fn set_limit(&mut self, limit: Limit) {
        for (until, _) in &mut self.contracts {
            *until = (*until).min(self.now + Duration::from_secs(11));
        }
        self.contracts.push((Instant::MAX, limit));
        self.tell(Event::Limit(limit));
    }

    fn run(&mut self, until_ms: u64) {
        while let Some((&(at_time, sequence), _)) = self.due.first_key_value() {
            if at_time > at(until_ms) {
                break;
            }
            let what = self.due.remove(&(at_time, sequence)).unwrap();
            self.now = self.now.max(at_time);
            match what {
                What::Arrives(order) => self.arrives(order),
                What::Answer(event) => self.tell(event),
                What::Poll(node) => self.poll(node),
                What::Moves(number) => self.moves(number),
                What::Passes => self.passes(),
                What::Tick => {
                    self.tick_at = Instant::MAX;
                    self.director.on_timeout(self.now);
                    self.carry_out();
                }
                What::Do(what) => what(self),
            }
        }
    }

    fn phase(&self) -> Phase {
        self.director.view(self.now).phase
    }

    fn planned(&self) -> usize {
        self.reports.iter().filter(|report| matches!(report, Report::Planned { .. })).count()
    }

    /// Publishers by node.
    fn on(&self) -> Vec<usize> {
        let mut on = vec![0; self.nodes.len()];
        for publisher in self.publishers.iter().filter(|publisher| !publisher.stopped) {
            if let Some(node) = publisher.on {
                on[node] += 1;
            }
        }
        on
    }

    /// All parts that are wanted are in force, and sum to the contract.
    fn assert_whole(&self) {
        let view = self.director.view(self.now);
        let wanted: u64 = view.nodes.iter().map(|node| node.wanted.burst).sum();
        assert_eq!(wanted, view.limit.burst, "{view:?}");
        for (node, known) in self.nodes.iter().zip(&view.nodes) {
            assert_eq!(node.name, known.node);
            assert!(known.wanted.burst == 0 || node.holds == known.wanted, "{known:?} holds {:?}", node.holds);
        }
    }
}

#[test]
fn a_claim_is_watched_planned_and_stands() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(4_000);
    assert_eq!(world.phase(), Phase::Watches);
    // A hundred publishers of 10 messages a second: two nodes have room for 1,100, and each takes 600 within the objective.
    world.run(90_000);
    assert_eq!((world.phase(), world.planned()), (Phase::Stands, 1), "{:?}", world.reports);
    assert_eq!(world.on(), [50, 50, 0]);
    world.assert_whole();
    let Some(Report::Planned { words, .. }) = world.director.view(world.now).last else { panic!("it is planned") };
    assert!(words[0].starts_with("2 brokers for 1000 messages/s, the fewest with room"), "{words:?}");
    // A new publisher goes to a node of the plan, and is named.
    world.add_publisher(100, 20.0);
    world.run(100_000);
    assert_eq!(world.placement.publishers.len(), 101);
    assert_eq!(world.on().iter().sum::<usize>(), 101);
    // One that is not seen any more leaves.
    world.publishers[3].stopped = true;
    world.run(130_000);
    assert_eq!(world.placement.publishers.len(), 100);
}

#[test]
fn parts_follow_the_traffic() {
    let mut world = World::new(config(), &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    let burst = |world: &World| -> Vec<u64> {
        world.director.view(world.now).nodes.iter().map(|node| node.wanted.burst).collect()
    };
    assert_eq!(burst(&world), [30, 30]);
    for publisher in &mut world.publishers {
        publisher.rate_per_s = if publisher.on == Some(0) { 15.0 } else { 5.0 };
    }
    world.run(110_000);
    assert_eq!(burst(&world), [45, 15]);
    world.assert_whole();
}

#[test]
fn nodes_that_lend_keep_their_bursts_and_are_told_one_split() {
    let mut world = World::new(DirectorConfig { lends: true, ..config() }, &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    let split = world.nodes[0].split.clone().unwrap();
    assert_eq!(split.nodes, [(NodeName::from("a"), 30), (NodeName::from("b"), 30)]);
    for publisher in &mut world.publishers {
        publisher.rate_per_s = if publisher.on == Some(0) { 15.0 } else { 5.0 };
    }
    world.run(110_000);
    // The rates follow the traffic, the bursts do not.
    world.assert_whole();
    assert!(world.nodes[0].holds.rate.as_per_s() > 1.5 * world.nodes[1].holds.rate.as_per_s());
    assert_eq!([0, 1].map(|node| world.nodes[node].split.clone()), [Some(split.clone()), Some(split.clone())]);
    // One that has left it is told another one, and so are the others; what is left of an older one changes nothing.
    world.tell(Event::LeftSplit { generation: split.generation });
    world.tell(Event::LeftSplit { generation: split.generation - 1 });
    world.run(120_000);
    let next = world.nodes[0].split.clone().unwrap();
    assert!(next.generation > split.generation && next.nodes == split.nodes, "{next:?}");
    assert_eq!(world.nodes[1].split.as_ref(), Some(&next));
    // Alone, a node has nobody to lend to.
    world.nodes[1].alive = false;
    world.run(200_000);
    assert_eq!((world.nodes[0].holds.burst, world.nodes[0].split.as_ref()), (60, None));
}

#[test]
fn the_publishers_of_a_lost_node_go_to_the_others_at_once() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(90_000);
    world.nodes[0].alive = false;
    world.run(94_500);
    let lost = world.reports.iter().find(|report| matches!(report, Report::NodeLost { .. }));
    let Some(Report::NodeLost { node, moved, beyond_room }) = lost else { panic!("{:?}", world.reports) };
    assert_eq!((node.as_str(), *moved), ("a", 50));
    // b has room for 80 in all, and those beyond it go there all the same, until there is a new plan.
    assert_eq!((*beyond_room, world.on()), (20, vec![0, 100, 0]));
    world.run(160_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![0, 50, 50]));
    world.assert_whole();
}

#[test]
fn a_node_that_drains_is_emptied_and_answers_for_its_part() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(90_000);
    world.nodes[1].draining = true;
    world.run(160_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![50, 0, 50]));
    assert!(!world.placement.nodes.iter().any(|node| node.as_str() == "b"));
    world.assert_whole();
}

#[test]
fn a_node_that_publishers_left_keeps_a_part_until_its_line_is_empty() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(90_000);
    (world.nodes[1].draining, world.nodes[1].line) = (true, 500);
    world.run(160_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![50, 0, 50]));
    // 499 that wait beside 10,000 that come in a window: one of 500 may be what is missing from a bucket of one token.
    let part = world.nodes[1].holds;
    assert!((part.rate.as_per_s() - 52.3).abs() < 0.05 && part.burst == 1, "{part:?}");
    assert!(world.director.steps.as_ref().unwrap().is_settled());
    world.nodes[1].line = 0;
    world.run(180_000);
    assert_eq!(world.nodes[1].holds.burst, 0);
    world.assert_whole();
}

#[test]
fn out_of_nodes_is_told_with_what_is_missing_and_ends_with_another_node() {
    let mut world = World::new(config(), &["a"], 100, 0.0, 1);
    world.run(30_000);
    let short = world.reports.iter().find(|report| matches!(report, Report::OutOfNodes { .. }));
    let Some(Report::OutOfNodes { missing_per_s, words }) = short else { panic!("{:?}", world.reports) };
    assert!((missing_per_s - 200.0).abs() < 1.0 && words[0].contains("too little capacity"), "{words:?}");
    assert_eq!((world.phase(), world.on()), (Phase::Short, vec![100]));
    world.add_node("b");
    world.run(100_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![50, 50]));
}

#[test]
fn a_node_without_consumers_takes_nobody() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.nodes[0].missing = vec!["billing".to_owned()];
    world.run(150_000);
    let not_ready = Report::NotReady { node: "a".into(), missing: vec!["billing".to_owned()] };
    assert!(world.reports.contains(&not_ready), "{:?}", world.reports);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![0, 50, 50]));
}

#[test]
fn publishers_that_left_take_no_room_until_they_are_forgotten() {
    let config = DirectorConfig { forget_after: Duration::from_mins(10), ..config() };
    let mut world = World::new(config, &["a", "b"], 50, 0.0, 1);
    world.run(60_000);
    assert_eq!((world.phase(), world.placement.nodes.len()), (Phase::Stands, 1));
    // All of them come again under other names, as after a roll-out; one node has no room for both counts.
    for number in 0..50 {
        world.publishers[number].stopped = true;
        world.add_publisher(1_000 + number, 10.0);
    }
    world.run(70_000);
    world.tell(Event::Replan);
    world.run(120_000);
    let view = world.director.view(world.now);
    let rate: f64 = view.nodes.iter().map(|node| node.rate_per_s).sum();
    assert_eq!((view.publishers, world.phase(), world.placement.nodes.len()), (100, Phase::Stands, 1));
    assert!((rate - 500.0).abs() < 1.0, "{rate}");
}

#[test]
fn consumers_that_come_end_a_shortage_of_brokers() {
    let config = DirectorConfig { retry_after: Duration::from_hours(1), ..config() };
    let mut world = World::new(config, &["a", "b"], 50, 0.0, 1);
    for node in &mut world.nodes {
        node.missing = vec!["billing".to_owned()];
    }
    world.run(100_000);
    assert_eq!(world.phase(), Phase::Short);
    // Nobody consumes, and the limit is in force all the same.
    world.assert_whole();
    world.nodes[1].missing.clear();
    world.run(150_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![0, 50]));
}

#[test]
fn consumers_that_leave_after_a_plan_are_told_and_nobody_moves() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(90_000);
    let on = world.on();
    world.nodes[0].missing = vec!["billing".to_owned()];
    // One that has no publishers is of no interest.
    world.nodes[2].missing = vec!["billing".to_owned()];
    world.run(120_000);
    let left: Vec<&Report> =
        world.reports.iter().filter(|report| matches!(report, Report::ConsumersLeft { .. })).collect();
    let billing = Report::ConsumersLeft { node: "a".into(), missing: vec!["billing".to_owned()] };
    assert_eq!((left, world.phase(), world.on()), (vec![&billing], Phase::Stands, on));
    // A new plan leaves the node out.
    world.nodes[2].missing.clear();
    world.tell(Event::Replan);
    world.run(200_000);
    assert_eq!((world.phase(), world.on()), (Phase::Stands, vec![0, 50, 50]), "{:?}", world.reports);
    world.assert_whole();
}

#[test]
fn a_person_edits_the_limit_and_asks_for_a_plan() {
    let mut world = World::new(config(), &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    world.set_limit(Limit::new(Rate::per_s(2_200), 30));
    world.run(95_000);
    world.assert_whole();
    let view = world.director.view(world.now);
    assert_eq!((view.limit.burst, view.phase), (30, Phase::Stands));
    world.tell(Event::Replan);
    assert_eq!(world.phase(), Phase::Plans);
    world.run(150_000);
    assert_eq!((world.phase(), world.planned()), (Phase::Stands, 2));
}

#[test]
fn what_comes_to_a_node_of_no_plan_is_held_to_a_part_while_a_plan_is_made() {
    let mut world = World::new(config(), &["a", "b", "c"], 100, 0.0, 1);
    world.run(90_000);
    world.tell(Event::Replan);
    world.run(91_000);
    assert_eq!((world.phase(), world.nodes[2].holds.burst), (Phase::Plans, 0));
    // Somebody publishes there who does not do as he is told.
    world.nodes[2].line = 500;
    world.run(94_000);
    assert_eq!((world.phase(), world.nodes[2].holds.burst), (Phase::Plans, 1));
}

#[test]
fn who_does_not_lead_orders_nothing() {
    let mut world = World::new(config(), &["a", "b"], 10, 0.0, 1);
    world.run(50_000);
    assert_eq!(world.phase(), Phase::Stands);
    world.tell(Event::Lead { leads: false, above: 0, quiet: Duration::ZERO });
    let before = world.log.len();
    world.run(80_000);
    assert_eq!((world.phase(), world.log.len(), world.director.next_timeout()), (Phase::Follows, before, None));
    // Again, above what another leader did; and quiet until that one's leases are over.
    world.placement = Placement::default();
    world.tell(Event::Lead { leads: true, above: 900, quiet: Duration::from_secs(10) });
    world.run(89_000);
    assert!(!world.log[before..].contains("Put {"), "{}", &world.log[before..]);
    assert!(world.placement.revision > 900 && world.placement.publishers.len() == 10);
    world.run(92_000);
    assert!(world.nodes.iter().any(|node| node.newest > 900));
}

#[test]
fn an_edit_that_is_undone_while_parts_move_leaves_the_contract_as_it_was() {
    let mut world = World::new(config(), &["a", "b"], 100, 0.05, 1);
    world.run(90_000);
    for publisher in &mut world.publishers {
        publisher.rate_per_s = if publisher.on == Some(0) { 15.0 } else { 5.0 };
    }
    // The edit comes while the adaptor moves parts each second, and again and again before what it wants is in force.
    for edit in 0..20 {
        world.run(95_000 + 700 * edit);
        world.set_limit(if edit % 2 == 0 { Limit::new(Rate::per_s(300), 20) } else { LIMIT });
    }
    world.loss = 0.0;
    world.run(140_000);
    let view = world.director.view(world.now);
    assert_eq!((view.limit, view.phase, world.planned()), (LIMIT, Phase::Stands, 1), "no plan follows an edit");
    world.assert_whole();
    let bursts: Vec<u64> = view.nodes.iter().map(|node| node.wanted.burst).collect();
    assert_eq!(bursts, [45, 15], "parts follow the traffic as before");
}

#[test]
fn an_objective_that_no_placement_meets_is_said_and_everybody_stays_served() {
    let mut config = config();
    // One publisher alone shows 17 us.
    config.slo.within = Duration::from_micros(5);
    config.retry_after = Duration::from_mins(10);
    let mut world = World::new(config, &["a", "b"], 10, 0.0, 1);
    world.run(200_000);
    let short = world.reports.iter().find(|report| matches!(report, Report::OutOfNodes { .. }));
    let Some(Report::OutOfNodes { words, .. }) = short else { panic!("{:?}", world.reports) };
    assert!(words[0].starts_with("no number of brokers meets the objective; the best p99 was"), "{words:?}");
    assert_eq!((world.phase(), world.planned()), (Phase::Short, 0));
    assert_eq!((world.on().iter().sum::<usize>(), world.placement.publishers.len()), (10, 10));
    world.assert_whole();
}

#[test]
fn a_publisher_larger_than_any_node_is_said_and_stays_served() {
    let mut world = World::new(config(), &["a", "b"], 10, 0.0, 1);
    world.run(60_000);
    assert_eq!(world.phase(), Phase::Stands);
    // A node takes 800.
    world.add_publisher(10, 900.0);
    world.run(70_000);
    world.tell(Event::Replan);
    world.run(100_000);
    let short = world.reports.iter().rev().find(|report| matches!(report, Report::OutOfNodes { .. }));
    let Some(Report::OutOfNodes { words, .. }) = short else { panic!("{:?}", world.reports) };
    let said = "publisher publisher-10 sends 900 messages/s, and no broker takes more than 800";
    assert_eq!(words[0], said, "{words:?}");
    assert_eq!((world.phase(), world.on().iter().sum::<usize>()), (Phase::Short, 11));
    world.assert_whole();
}

#[test]
fn a_term_that_is_not_renewed_ends_by_itself() {
    let mut world = World::new(config(), &["a", "b"], 10, 0.0, 1);
    world.run(50_000);
    world.tell(Event::LeadsUntil(at(60_000)));
    world.run(55_000);
    world.tell(Event::LeadsUntil(at(65_000)));
    world.run(64_999);
    assert_eq!(world.phase(), Phase::Stands);
    let before = world.log.len();
    world.run(80_000);
    assert!(!world.log[before..].contains("Put {"), "{}", &world.log[before..]);
    assert_eq!((world.phase(), world.director.next_timeout()), (Phase::Follows, None));
    // Also where what happens first after it is something else.
    world.tell(Event::Lead { leads: true, above: 900, quiet: Duration::ZERO });
    world.tell(Event::LeadsUntil(at(81_000)));
    world.run(81_000);
    world.tell(Event::Limit(Limit::new(Rate::per_s(1), 1)));
    assert_eq!((world.phase(), world.director.poll_order()), (Phase::Follows, None));
}

#[test]
fn another_configuration_moves_nobody_and_plans_only_what_it_must() {
    let mut world = World::new(config(), &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    let (on, newest) = (world.on(), world.nodes[0].newest);
    let configured = |config: DirectorConfig, reissues| Event::Configured { config: Box::new(config), reissues };
    let slower = AdaptorConfig { period: Duration::from_secs(5), ..config().adapt };
    world.tell(configured(DirectorConfig { adapt: slower, ..config() }, false));
    world.run(94_000);
    assert_eq!((world.phase(), world.on(), world.nodes[0].newest), (Phase::Stands, on.clone(), newest));
    // What a lapsed part does is another thing: the same parts go out again, under newer revisions.
    world.tell(configured(config(), true));
    world.run(96_000);
    assert!(world.nodes.iter().all(|node| node.newest > newest));
    world.assert_whole();
    world.contracts.push((Instant::MAX, Limit::new(Rate::per_s(1_300), 70)));
    world.tell(configured(DirectorConfig { limit: Limit::new(Rate::per_s(1_300), 70), ..config() }, false));
    world.run(105_000);
    assert_eq!((world.phase(), world.on(), world.planned()), (Phase::Stands, on, 1));
    world.assert_whole();
    let slo = Slo { quantile: 0.99, within: Duration::from_micros(900) };
    world.tell(configured(DirectorConfig { slo, limit: Limit::new(Rate::per_s(1_300), 70), ..config() }, false));
    assert_eq!(world.phase(), Phase::Plans);
    world.run(200_000);
    assert_eq!((world.phase(), world.planned()), (Phase::Stands, 2));
}

#[test]
fn the_end_takes_parts_back() {
    let mut world = World::new(config(), &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    world.tell(Event::End);
    world.run(95_000);
    assert!(world.nodes.iter().all(|node| node.until_us == 0));
    assert_eq!((world.phase(), world.director.next_timeout()), (Phase::Ended, None));
}

#[test]
fn strays_are_told_once_to_ask_again() {
    let mut world = World::new(DirectorConfig { disconnect_strays: true, ..config() }, &["a", "b"], 100, 0.0, 1);
    world.run(90_000);
    world.log.clear();
    // It has moved by itself, and does not come back.
    let from = world.publishers[0].on.unwrap();
    world.publishers[0].on = Some(1 - from);
    world.run(120_000);
    assert_eq!(world.log.matches("Disconnect").count(), 1, "{}", world.log);
    assert!(world.log.contains("identities: [\"publisher-0\"]"));
}

/// Nodes die and come back, are cut off, publishers come and go, a limit changes, and every tenth message is lost.
fn stormy(seed: u64) -> World {
    let mut world = World::new(config(), &["a", "b", "c", "d"], 80, 0.1, seed);
    world.later(60_000 + 100 * seed, |world| world.nodes[0].alive = false);
    world.later(75_000, |world| {
        for number in 80..100 {
            world.add_publisher(number, 10.0);
        }
    });
    world.later(90_000, |world| world.nodes[1].cut = true);
    world.later(100_000, |world| world.set_limit(Limit::new(Rate::per_s(1_500), 40)));
    world.later(120_000, |world| {
        // A node that was restarted knows of no part, and its clock begins anew.
        let node = &mut world.nodes[0];
        (node.alive, node.newest, node.until_us) = (true, 0, 0);
        node.offset_us = 0;
    });
    world.later(130_000, |world| world.nodes[1].cut = false);
    world.later(150_000, |world| world.set_limit(LIMIT));
    world.later(160_000, |world| world.loss = 0.0);
    world.run(300_000);
    world
}

#[test]
fn in_a_storm_the_contract_is_kept_and_afterwards_all_is_well() {
    for seed in 0..12 {
        let world = stormy(seed);
        assert_eq!(world.phase(), Phase::Stands, "seed {seed}: {:?}", world.reports);
        assert_eq!(world.on().iter().sum::<usize>(), 100, "seed {seed}");
        for publisher in &world.publishers {
            let placed = world.placement.publishers[&publisher.identity];
            let node = world.placement.nodes[placed as usize].clone();
            assert_eq!(publisher.on.map(|on| world.nodes[on].name.clone()), Some(node), "seed {seed}");
        }
        world.assert_whole();
    }
}

#[test]
fn the_same_seed_has_the_same_orders() {
    let (first, again, other) = (stormy(3), stormy(3), stormy(4));
    assert!(first.log == again.log);
    assert!(first.log != other.log);
}

#[test]
fn before_the_first_plan_only_seconds_count_in_which_publishers_were_watched() {
    let mut world = World::new(config(), &["a"], 10, 0.0, 3);
    world.run(20_000);
    let asked = world.log.lines().filter_map(|line| line.split_once("Sense {")?.1.split_once("seconds: "));
    let asked: Vec<u32> = asked.map(|(_, rest)| rest[..rest.find(',').unwrap()].parse().unwrap()).collect();
    let seen = asked.iter().position(|seconds| *seconds < 10).unwrap();
    assert!(asked[seen..].starts_with(&[1, 1, 1, 2, 3]), "{asked:?}");
    assert_eq!(asked.last(), Some(&10), "{asked:?}");
}

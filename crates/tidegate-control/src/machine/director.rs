//! The life of one claim: its publishers are watched, planned and placed, and its parts follow the traffic.
//!
//! A director is told what its nodes and their sensors say, and orders what is to be done. It begins as one that does not
//! lead. Once it leads, it opens: publishers stay where they are seen, or, if there are none yet, go to the fewest nodes with
//! room for the contract; each node's part is in proportion to its publishers. When publishers were watched for a while
//! their placement is planned, and the planner's orders are carried out: a node is prepared before it takes publishers,
//! parts are in force before publishers move, and moves have time before a measurement begins. Between plans the adaptor
//! fits the parts to the traffic each period, new publishers go to the node with most room, and those that are not seen any
//! more leave. A node that is lost or drained gives its publishers to the others at once, as far as these have room, and
//! a new plan follows.
//!
//! All parts go through [`Steps`]: whatever is lost or late, their sum never exceeds the contract.
//!
//! | module | its one job |
//! |---|---|
//! | `types` | events and orders |
//! | `crowd` | publishers by name |
//! | `running` | a planner's orders, carried out |
//! | `lines` | what waits at nodes because publishers move |
//! | `inherit` | what a former leader had in force |
//! | `term` | when it leads, by which configuration, and how it ends |

mod crowd;
mod inherit;
mod lines;
mod running;
mod term;
mod types;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::limit::Limit;

use self::crowd::{Crowd, Sight};
pub use self::inherit::Inherited;
use self::running::Running;
pub use self::types::*;
use super::adaptor::Adaptor;
use super::capacity::least_nodes;
use super::portion::{Portion, divide};
use super::roster::NodeState;
use super::standing::Standing;
use super::steps::Steps;
use super::term::TermEnd;
use super::types::{NODES_MAX, NodeLoad, NodeNo, PublisherNo};

/// What nodes are called in reports.
const KIND: &str = "broker";
/// Identities in one order to disconnect at most.
const DISCONNECT_MAX: usize = 1_000;
/// Publishers are watched for so many times as long before the first plan, if new ones always come.
const WATCHES_MAX: u32 = 4;
/// A node that takes publishers is asked so often whether its consumers are still there.
const CONSUMERS_EVERY: Duration = Duration::from_secs(5);
/// A publisher that sends to another node than its own so long after it was told is a stray.
const STRAY_AFTER: Duration = Duration::from_secs(5);

/// A node, as a director knows it.
#[derive(Debug)]
struct Node {
    name: NodeName,
    state: NodeState,
    load: NodeLoad,
    /// All channels had consumers there, when it was asked last.
    prepared: bool,
    /// When it is to be asked again although they had.
    prepare_at: Instant,
    /// Channels without consumers, when it was asked last.
    missing: Vec<String>,
    /// Its clock showed this at that instant or before.
    clock: Option<(Instant, u64)>,
    /// When it told its publishers last; a measurement tells none.
    listed: Option<Instant>,
    delays: Delays,
}

impl Node {
    fn answers(&self) -> bool {
        matches!(self.state, NodeState::Ready | NodeState::Draining)
    }
}

/// An order that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    node: NodeNo,
    what: Asked,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// The current state, for the adaptor.
    Sense,
    /// For a measurement of a plan.
    Measure,
    Prepare,
    Put(u64),
    Withdraw,
    Record,
}

/// See the module.
#[derive(Debug)]
pub struct Director {
    config: DirectorConfig,
    phase: Phase,
    /// `None`: it does not lead.
    steps: Option<Steps<NodeNo>>,
    adaptor: Adaptor<NodeNo>,
    /// What nodes are to have.
    parts: BTreeMap<NodeNo, Portion>,
    /// What more comes to nodes than their publishers send, or less, per second: some do not do as they are told.
    strays: BTreeMap<NodeNo, f64>,
    /// What nodes that lend were told last of it, and the newest generation.
    split: Option<Arc<Split>>,
    split_above: u64,
    /// By number; numbers are never given again.
    nodes: Vec<Node>,
    crowd: Crowd,
    standing: Standing,
    /// Nodes have taken publishers since it leads.
    opened: bool,
    led_since: Instant,
    /// From then on it does not lead, unless it is told a later moment before.
    leads_until: TermEnd,
    placement: u64,
    /// The nodes that those who steer were told, and their weights.
    told: (Vec<NodeNo>, Vec<f64>),
    told_at: Instant,
    /// Publishers whose node may differ from what was told.
    dirty: Vec<PublisherNo>,
    /// Publishers that are to be named no more.
    left: Vec<Identity>,
    running: Option<Running>,
    /// What it takes over when it opens.
    inherited: Option<Inherited>,
    /// Plans that were begun.
    plans: u64,
    plan_at: Option<Instant>,
    /// When the first publisher was seen that the first plan is about.
    watched_since: Instant,
    last: Option<Report>,
    orders: VecDeque<Order>,
    waiting: BTreeMap<u64, Waiting>,
    next_no: u64,
    sense_at: Instant,
    sweep_at: Instant,
    /// The latest moment that it was told.
    now: Instant,
}

impl Director {
    /// One that does not lead, and knows no node.
    #[must_use]
    pub fn new(config: DirectorConfig, now: Instant) -> Self {
        Self {
            adaptor: Adaptor::new(config.adapt, now),
            config,
            phase: Phase::Follows,
            steps: None,
            parts: BTreeMap::new(),
            strays: BTreeMap::new(),
            split: None,
            split_above: 0,
            nodes: Vec::new(),
            crowd: Crowd::default(),
            standing: Standing::default(),
            opened: false,
            led_since: now,
            leads_until: TermEnd::UNKNOWN,
            placement: 0,
            told: (Vec::new(), Vec::new()),
            told_at: now,
            dirty: Vec::new(),
            left: Vec::new(),
            running: None,
            inherited: None,
            plans: 0,
            plan_at: None,
            watched_since: now,
            last: None,
            orders: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_no: 1,
            sense_at: now,
            sweep_at: now,
            now,
        }
    }

    /// Something happened. A planner with a model computes in pieces of some tens of milliseconds, each at a time-out of its
    /// own.
    pub fn on_event(&mut self, event: Event, now: Instant) {
        if let Event::LeadsUntil(until) = event {
            self.leads_until = TermEnd::at(until);
        }
        self.end_term(now);
        match event {
            Event::Node { node, state, load } => self.on_node(node, state, load, now),
            Event::Sensed { order, reading } => self.on_sensed(order, &reading, now),
            Event::Prepared { order, missing } => {
                if let Some(node) = self.answered(order, Asked::Prepare) {
                    self.on_prepared(node, missing, now);
                }
            }
            Event::Put { order } => {
                if let Some(Waiting { node, what: Asked::Put(revision), .. }) = self.waiting.remove(&order)
                    && let Some(steps) = &mut self.steps
                {
                    steps.on_put(&node, revision);
                }
            }
            Event::Fenced { order, holds } => {
                if let Some(Waiting { node, what: Asked::Put(revision), .. }) = self.waiting.remove(&order)
                    && let Some(steps) = &mut self.steps
                {
                    steps.on_fenced(&node, revision, holds, now);
                    let node = self.nodes[node.0 as usize].name.clone();
                    self.order(Ask::Report(Report::Fenced { node, holds }));
                }
            }
            Event::Recorded { order, recording } => {
                if let Some(node) = self.answered(order, Asked::Record) {
                    self.on_recorded(order, node, &recording);
                }
            }
            Event::LeftSplit { generation } => {
                self.split.take_if(|split| split.generation == generation);
            }
            Event::Failed { order } => self.on_failed(order, now),
            Event::Limit(limit) => self.on_limit(limit, now),
            Event::Replan => {
                self.running = None;
                self.plan_at = Some(now);
            }
            Event::Configured { config, reissues } => self.on_configured(*config, reissues, now),
            Event::Lead { leads, above, quiet } => self.on_lead(leads, above, quiet, now),
            Event::LeadsUntil(_) => {}
            Event::End => self.on_end(now),
        }
        self.advance(now);
    }

    /// When to call [`Director::on_timeout`] if nothing happens before; `None` if it does not lead.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let steps = self.steps.as_ref()?;
        let answers = self.waiting.values().map(|waiting| waiting.until).min();
        let term = self.leads_until.next_timeout();
        let adapts = (self.running.is_none() && self.opened).then(|| self.adaptor.due());
        let running = self.running.as_ref().and_then(Running::next_timeout);
        let computes = self.running.as_ref().and_then(Running::computes);
        // What is overdue waits for something else, which each reading of the sensors looks after.
        [answers, term, adapts, running, self.plan_at, steps.next_timeout(), Some(self.sense_at)]
            .into_iter()
            .flatten()
            .filter(|&at| at > self.now)
            .chain(computes)
            .min()
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// The next order; call until `None`.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// The placement that those who steer were told: all changes in one.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let place = |node: NodeNo| {
            let at = self.told.0.iter().position(|&told| told == node)?;
            u32::try_from(at).ok()
        };
        let publishers = self.crowd.iter().filter_map(|(_, known)| Some((known.identity.clone(), place(known.told?)?)));
        Placement {
            revision: self.placement,
            nodes: self.names(&self.told.0),
            default: self.told.1.clone(),
            publishers: publishers.collect(),
        }
    }

    /// The state for people.
    #[must_use]
    pub fn view(&self, now: Instant) -> View {
        let node = |(number, node): (NodeNo, &Node)| {
            let held = self.steps.as_ref().and_then(|steps| steps.acknowledged(&number));
            NodeView {
                node: node.name.clone(),
                state: node.state,
                load: node.load,
                wanted: self.parts.get(&number).copied().unwrap_or_default().limit(self.config.limit),
                acknowledged: held.map(|(limit, _)| limit),
                lease_ms: held.map_or(0, |(_, until)| until.nanos_since(now) / 1_000_000),
                publishers: self.standing.publishers(number),
                rate_per_s: self.standing.rate_per_s(number),
                delays: node.delays,
                backlog_max: self.adaptor.backlog_max(&number),
            }
        };
        View {
            phase: self.phase,
            limit: self.config.limit,
            revision: self.steps.as_ref().map_or(0, Steps::revision),
            placement: self.placement,
            nodes: (0..).map(NodeNo).zip(&self.nodes).map(node).collect(),
            publishers: count(self.crowd.len()),
            last: self.last.clone(),
        }
    }

    fn names(&self, nodes: &[NodeNo]) -> Vec<NodeName> {
        nodes.iter().filter_map(|node| Some(self.nodes.get(node.0 as usize)?.name.clone())).collect()
    }

    /// All that is due.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let now = self.now;
        self.end_term(now);
        let late: Vec<u64> =
            self.waiting.iter().filter(|(_, waiting)| waiting.until <= now).map(|(&order, _)| order).collect();
        for order in late {
            self.on_failed(order, now);
        }
        if self.steps.is_none() {
            return;
        }
        if now >= self.sense_at {
            self.sense_at = now + self.config.sense_every;
            self.quieten();
            self.sense(now);
            self.prepare(now);
        }
        if now >= self.sweep_at {
            self.sweep_at = now + self.config.forget_after / 4;
            self.sweep(now);
        }
        if !self.opened {
            self.open(now);
        }
        self.start_plan(now);
        self.drive(now);
        self.adapt(now);
        self.publish(now);
        self.put_parts(now);
    }

    /// An order without a node that is waited for.
    fn order(&mut self, what: Ask) {
        self.orders.push_back(Order { no: self.next_no, what });
        self.next_no += 1;
    }

    /// An order whose answer is waited for; its number.
    fn ask(&mut self, node: NodeNo, asked: Asked, within: Duration, now: Instant, what: Ask) -> u64 {
        let no = self.next_no;
        self.order(what);
        self.waiting.insert(no, Waiting { node, what: asked, until: now + within });
        no
    }

    /// The node of an order that is answered; `None` if nobody waits for it.
    fn answered(&mut self, order: u64, what: Asked) -> Option<NodeNo> {
        if self.waiting.get(&order)?.what != what {
            return None;
        }
        self.waiting.remove(&order).map(|waiting| waiting.node)
    }

    fn is_asked(&self, node: NodeNo, what: Asked) -> bool {
        self.waiting.values().any(|waiting| waiting.node == node && waiting.what == what)
    }

    fn numbers(&self) -> impl Iterator<Item = NodeNo> + use<> {
        (0..).map(NodeNo).take(self.nodes.len())
    }

    fn node(&self, node: NodeNo) -> &Node {
        &self.nodes[node.0 as usize]
    }

    /// Seconds to read: those of the adaptor. Before the first plan only those since publishers were seen: they may have
    /// come with them, and the silence before would dilute their rates.
    fn seconds_to_sense(&self, now: Instant) -> u32 {
        let most = self.config.adapt.window_s();
        let Some(plan_at) = self.plan_at.filter(|_| self.phase == Phase::Watches) else { return most };
        let watched = self.config.watch_first.saturating_sub(plan_at.since(now));
        // Nodes count by whole seconds: the last of these may have ended most of a second ago.
        u32::try_from(watched.as_secs().saturating_sub(1)).unwrap_or(most).clamp(1, most.max(1))
    }

    fn sense(&mut self, now: Instant) {
        let seconds = self.seconds_to_sense(now);
        for node in self.numbers().filter(|&node| self.node(node).answers()).collect::<Vec<_>>() {
            if !self.is_asked(node, Asked::Sense) {
                let ask = Ask::Sense { node: self.node(node).name.clone(), seconds, slo: self.config.slo.within };
                self.ask(node, Asked::Sense, self.config.answer_within, now, ask);
            }
        }
    }

    /// Asks nodes that take publishers, or are to, whether all consumers are there.
    fn prepare(&mut self, now: Instant) {
        let wanted = |node: &NodeNo| {
            let known = self.node(*node);
            let is_planned = self.running.as_ref().is_some_and(|running| running.prepares(*node));
            // Where brokers are missing, any that its consumers come to is one.
            let is_wanted = is_planned || self.standing.takes(*node) || self.phase == Phase::Short;
            let is_due = !known.prepared || now >= known.prepare_at;
            known.state == NodeState::Ready && is_due && is_wanted
        };
        for node in self.numbers().filter(wanted).collect::<Vec<_>>() {
            if !self.is_asked(node, Asked::Prepare) {
                let ask = Ask::Prepare { node: self.node(node).name.clone() };
                self.ask(node, Asked::Prepare, self.config.answer_within, now, ask);
            }
        }
    }

    /// A node said which channels have no consumer there. Nobody moves if they left: what comes waits for them where it is, and
    /// people are told.
    fn on_prepared(&mut self, node: NodeNo, missing: Vec<String>, now: Instant) {
        let takes = self.standing.takes(node);
        let known = &mut self.nodes[node.0 as usize];
        let is_ready = missing.is_empty();
        let was_ready = core::mem::replace(&mut known.prepared, is_ready);
        known.missing = missing;
        known.prepare_at = now + CONSUMERS_EVERY;
        if is_ready && !was_ready && self.phase == Phase::Short {
            self.plan_at = Some(now);
        }
        if was_ready && !is_ready && takes {
            let (node, missing) = (known.name.clone(), known.missing.clone());
            self.order(Ask::Report(Report::ConsumersLeft { node, missing }));
        }
    }

    /// Publishers that are not where they were seen last. O(n) once a second.
    fn quieten(&mut self) {
        let nodes = &self.nodes;
        for (publisher, rate_per_s) in self.crowd.refresh(|node| listed_at(nodes, node)) {
            self.standing.set_rate(publisher, rate_per_s);
        }
    }

    /// Publishers that were not seen for long leave, and strays are told to ask again.
    fn sweep(&mut self, now: Instant) {
        for (publisher, known) in self.crowd.forget(self.config.forget_after, now) {
            self.standing.remove_publisher(publisher);
            if let Some(running) = &mut self.running {
                running.forget(publisher);
            }
            if known.told.is_some() {
                self.left.push(known.identity);
            }
        }
        if self.config.disconnect_strays && self.running.is_none() && self.told_at + STRAY_AFTER <= now {
            self.disconnect_strays();
        }
    }

    fn disconnect_strays(&mut self) {
        let mut strays: BTreeMap<NodeNo, Vec<PublisherNo>> = BTreeMap::new();
        for (publisher, known) in self.crowd.iter() {
            let is_stray = known.told.is_some_and(|told| told != known.on) && known.disconnected < self.placement;
            let of_node = strays.entry(known.on).or_default();
            if is_stray && of_node.len() < DISCONNECT_MAX {
                of_node.push(publisher);
            }
        }
        for (node, publishers) in strays.into_iter().filter(|(_, publishers)| !publishers.is_empty()) {
            let mut identities = Vec::new();
            for publisher in publishers {
                if let Some(known) = self.crowd.get_mut(publisher) {
                    known.disconnected = self.placement;
                    identities.push(known.identity.clone());
                }
            }
            self.order(Ask::Disconnect { node: self.node(node).name.clone(), identities });
        }
    }

    /// Once sensors were read, nodes take publishers: those that have some, or else the fewest with room.
    fn open(&mut self, now: Instant) {
        let ready: Vec<NodeNo> = self.numbers().filter(|&node| self.node(node).state == NodeState::Ready).collect();
        let all_read = ready.iter().all(|&node| self.node(node).clock.is_some());
        let is_late = self.led_since + 2 * self.config.sense_every <= now;
        let read: Vec<NodeNo> = ready.into_iter().filter(|&node| self.node(node).clock.is_some()).collect();
        if read.is_empty() || !(all_read || is_late) {
            return;
        }
        self.opened = true;
        if let Some(inherited) = self.inherited.take()
            && self.open_as(&inherited, now)
        {
            return self.prepare(now);
        }
        let seen: Vec<(PublisherNo, NodeNo)> = self.crowd.iter().map(|(number, known)| (number, known.on)).collect();
        for (publisher, on) in seen {
            if read.contains(&on) {
                self.standing.set_takes(on, true);
                self.standing.put(publisher, Some(on));
            }
        }
        if !read.iter().any(|&node| self.standing.takes(node)) {
            let mut rooms: Vec<(NodeNo, f64)> =
                read.iter().map(|&node| (node, self.node(node).load.rcap_per_s())).collect();
            rooms.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let sorted: Vec<f64> = rooms.iter().map(|(_, room)| *room).collect();
            let many = least_nodes(self.config.limit.rate.as_per_s(), &sorted).unwrap_or(rooms.len());
            for (node, _) in rooms.into_iter().take(many.max(1)) {
                self.standing.set_takes(node, true);
            }
        }
        self.settle_homeless();
        self.divide(now);
        self.prepare(now);
    }

    /// Publishers without a node get one, as far as there is one that takes some; how many, and how many beyond its room.
    fn settle_homeless(&mut self) -> (u32, u32) {
        let homeless: Vec<PublisherNo> =
            self.crowd.iter().map(|(number, _)| number).filter(|&at| self.standing.node_of(at).is_none()).collect();
        let (mut moved, mut beyond) = (0, 0);
        for publisher in homeless {
            if let Some(node) = self.standing.settle(publisher) {
                moved += 1;
                beyond += u32::from(self.standing.room_per_s(node) < 0.0);
            }
            self.dirty.push(publisher);
        }
        (moved, beyond)
    }

    fn has_traffic(&self, node: NodeNo) -> bool {
        self.node(node).answers() && self.adaptor.is_in_use(&node, self.parts.get(&node).map_or(0, |part| part.burst))
    }

    /// Parts by the publishers' rates, and those of strays. A burst without a token for each node stays as it is divided.
    fn divide(&mut self, now: Instant) {
        let also = |node| self.has_traffic(node);
        let portions = self.standing.portions_with(self.config.limit, also, |node| self.strays_per_s(node));
        if !portions.is_empty() {
            self.set_parts(portions.into_iter().collect());
            self.adaptor.restart(now + self.config.fit.settle + self.config.adapt.window / 2);
        }
    }

    fn set_parts(&mut self, parts: BTreeMap<NodeNo, Portion>) {
        self.parts = parts;
        if let Some(steps) = &mut self.steps {
            steps.want(&self.parts);
        }
    }

    fn adapt(&mut self, now: Instant) {
        // A node without a part holds nothing back: what comes there waits for no period, and for no plan.
        let escapes =
            self.opened && self.numbers().any(|node| !self.parts.contains_key(&node) && self.has_traffic(node));
        if !escapes && (self.running.is_some() || !self.opened || now < self.adaptor.due()) {
            return;
        }
        let has_part = |node: &NodeNo| {
            self.standing.takes(*node) || self.standing.publishers(*node) > 0 || self.has_traffic(*node)
        };
        if !self.numbers().filter(has_part).eq(self.parts.keys().copied()) {
            let portions = self.standing.portions(self.config.limit, |node| self.has_traffic(node));
            if !portions.is_empty() {
                self.set_parts(portions.into_iter().collect());
            }
        }
        if self.running.is_some() {
            return;
        }
        if let Some(mut parts) = self.adaptor.adapt(self.config.limit, &self.parts, now) {
            if self.config.lends {
                parts.iter_mut().zip(self.parts.values()).for_each(|((_, part), before)| part.burst = before.burst);
            }
            self.set_parts(parts);
        }
    }

    fn put_parts(&mut self, now: Instant) {
        while let Some(put) = self.steps.as_mut().and_then(|steps| steps.poll(now)) {
            let grant = Grant {
                revision: put.revision,
                limit: put.limit,
                lease: self.config.lease,
                until_us: put.until_us,
                split: self.split(),
            };
            let ask = Ask::Put { node: self.node(put.node).name.clone(), grant };
            self.ask(put.node, Asked::Put(put.revision), self.config.answer_within, now, ask);
        }
    }

    /// The split that nodes are told: another generation whenever somebody's burst is another one.
    fn split(&mut self) -> Option<Arc<Split>> {
        if !self.config.lends || self.parts.len() < 2 {
            return None;
        }
        let name = |(node, part): (&NodeNo, &Portion)| (self.node(*node).name.clone(), part.burst);
        let nodes: Vec<(NodeName, u64)> = self.parts.iter().map(name).collect();
        if self.split.as_ref().is_none_or(|split| split.nodes != nodes) {
            let newest = self.steps.as_ref().map_or(0, Steps::revision);
            let generation = newest.max(self.split_above + 1);
            self.split_above = generation;
            self.split = Some(Arc::new(Split { generation, nodes }));
        }
        self.split.clone()
    }

    /// Tells those who steer what is different.
    fn publish(&mut self, now: Instant) {
        if !self.opened || self.running.as_ref().is_some_and(Running::holds_moves) {
            return;
        }
        let takes: Vec<NodeNo> = self.numbers().filter(|&node| self.standing.takes(node)).collect();
        let nodes_changed = takes != self.told.0;
        if self.dirty.is_empty() && self.left.is_empty() && !nodes_changed {
            return;
        }
        let place = |node: NodeNo| takes.iter().position(|&other| other == node).map(count);
        let left = core::mem::take(&mut self.left);
        let mut changed: Vec<(Identity, Option<u32>)> = left.into_iter().map(|identity| (identity, None)).collect();
        let mut dirty = core::mem::take(&mut self.dirty);
        if nodes_changed {
            dirty.extend(self.crowd.iter().map(|(number, _)| number));
        }
        dirty.sort_unstable();
        dirty.dedup();
        for publisher in dirty {
            let node = self.standing.node_of(publisher).filter(|node| takes.contains(node));
            let Some(known) = self.crowd.get_mut(publisher) else { continue };
            if known.told != node {
                known.told = node;
                changed.push((known.identity.clone(), node.and_then(place)));
            }
        }
        if changed.is_empty() && !nodes_changed {
            return;
        }
        let default = takes.iter().map(|&node| self.standing.room_per_s(node).max(0.0)).collect();
        self.told = (takes, default);
        self.told_at = now;
        self.placement += 1;
        let change = PlacementChange {
            revision: self.placement,
            nodes: self.names(&self.told.0),
            default: self.told.1.clone(),
            changed,
        };
        self.order(Ask::Place(change));
    }

    fn on_node(&mut self, name: NodeName, state: NodeState, load: NodeLoad, now: Instant) {
        let Some(at) = self.nodes.iter().position(|node| node.name == name) else {
            if self.nodes.len() < NODES_MAX {
                let number = self.standing.add_node(load);
                self.nodes.push(Node {
                    name,
                    state,
                    load,
                    prepared: false,
                    prepare_at: now,
                    missing: Vec::new(),
                    clock: None,
                    listed: None,
                    delays: Delays::default(),
                });
                self.on_state(number, NodeState::Known, now);
            }
            return;
        };
        let number = NodeNo(count(at));
        let before = core::mem::replace(&mut self.nodes[at].state, state);
        self.nodes[at].load = load;
        self.standing.set_load(number, load);
        self.on_state(number, before, now);
    }

    fn on_state(&mut self, node: NodeNo, before: NodeState, now: Instant) {
        let state = self.node(node).state;
        if state == before || self.steps.is_none() {
            return;
        }
        match state {
            NodeState::Ready => {
                if let Some(running) = &mut self.running {
                    running.on_node_added(node, self.nodes[node.0 as usize].load, now);
                }
                if self.phase == Phase::Short {
                    self.plan_at = Some(now);
                }
                self.sense_at = now;
            }
            NodeState::Draining => self.evacuate(node, now),
            NodeState::Gone => {
                let lost = &mut self.nodes[node.0 as usize];
                (lost.prepared, lost.clock, lost.listed) = (false, None, None);
                self.waiting.retain(|_, waiting| waiting.node != node);
                self.adaptor.forget(&node);
                if let Some(steps) = &mut self.steps {
                    steps.on_gone(&node);
                }
                self.evacuate(node, now);
            }
            NodeState::Known => {}
        }
    }

    /// The publishers of a node that takes no more go to the others.
    fn evacuate(&mut self, node: NodeNo, now: Instant) {
        let had = self.standing.publishers(node);
        let took = self.standing.takes(node);
        self.standing.set_takes(node, false);
        if let Some(running) = &mut self.running {
            running.on_node_gone(node, now);
        }
        if !self.opened || !(took || had > 0) {
            return;
        }
        if self.standing.most_room().is_none() {
            let room = |node: &NodeNo| self.standing.room_per_s(*node);
            let ready = self.numbers().filter(|&other| self.node(other).state == NodeState::Ready);
            let Some(next) = ready.max_by(|a, b| room(a).total_cmp(&room(b)).then(b.cmp(a))) else { return };
            self.standing.set_takes(next, true);
        }
        let on: Vec<PublisherNo> =
            self.crowd.iter().map(|(number, _)| number).filter(|&at| self.standing.node_of(at) == Some(node)).collect();
        for publisher in on {
            self.standing.put(publisher, None);
        }
        let (moved, beyond_room) = self.settle_homeless();
        self.divide(now);
        let node = self.node(node).name.clone();
        self.order(Ask::Report(Report::NodeLost { node, moved, beyond_room }));
        if self.crowd.len() > 0 && self.running.is_none() {
            self.plan_at = Some(now + 2 * self.config.sense_every);
        }
    }

    fn on_sensed(&mut self, order: u64, reading: &Reading, now: Instant) {
        let Some(&Waiting { node, what, .. }) = self.waiting.get(&order) else { return };
        if !matches!(what, Asked::Sense | Asked::Measure) {
            return;
        }
        self.waiting.remove(&order);
        let known = &mut self.nodes[node.0 as usize];
        known.clock = Some((now, reading.clock_us));
        if let Some(steps) = &mut self.steps {
            steps.on_clock(&node, reading.clock_us, now);
        }
        self.adaptor.on_seconds(&node, &reading.seconds, now);
        if what == Asked::Measure {
            if let Some(running) = &mut self.running {
                running.on_delays(order, reading.delays);
            }
            return;
        }
        known.delays = reading.delays;
        known.listed = Some(now);
        for seen in &reading.publishers {
            let nodes = &self.nodes;
            match self.crowd.see(seen, node, now, |node| listed_at(nodes, node)) {
                Sight::Known(publisher, rate_per_s) => self.standing.set_rate(publisher, rate_per_s),
                Sight::New => self.welcome(seen, node, now),
                Sight::Full => {}
            }
        }
    }

    /// A new publisher stays where it came to, if that node has room, or goes to the one with most room.
    fn welcome(&mut self, seen: &Seen, on: NodeNo, now: Instant) {
        let publisher = self.standing.seat(seen.rate_per_s);
        self.crowd.add(publisher, seen, on, now);
        if self.opened {
            if self.standing.takes(on) && self.standing.room_per_s(on) >= seen.rate_per_s {
                self.standing.put(publisher, Some(on));
            } else {
                self.standing.settle(publisher);
            }
        }
        self.dirty.push(publisher);
        if self.phase == Phase::Watches {
            self.watch_longer(now);
        }
    }

    /// The first plan waits until the publishers were watched that came last: what is known of one that has just come is less
    /// than it sends. Not for ever, for new ones may always come.
    fn watch_longer(&mut self, now: Instant) {
        if self.plan_at.is_none() {
            self.watched_since = now;
        }
        let most = self.watched_since + WATCHES_MAX * self.config.watch_first;
        self.plan_at = self.plan_at.max(Some((now + self.config.watch_first).min(most)));
    }

    fn on_failed(&mut self, order: u64, now: Instant) {
        let Some(Waiting { node, what, .. }) = self.waiting.remove(&order) else { return };
        match what {
            Asked::Put(revision) => {
                if let Some(steps) = &mut self.steps {
                    steps.on_failed(&node, revision, now);
                }
            }
            Asked::Measure => {
                if let Some(running) = &mut self.running {
                    running.on_no_delays(order);
                }
            }
            Asked::Record => self.on_recorded(order, node, &Recording::default()),
            Asked::Sense | Asked::Prepare | Asked::Withdraw => {}
        }
    }

    fn on_limit(&mut self, limit: Limit, now: Instant) {
        self.config.limit = limit;
        if let Some(steps) = &mut self.steps {
            steps.set_contract(limit);
        }
        let bursts: Vec<u64> = self.parts.values().map(|part| part.burst).collect();
        let mut parts = core::mem::take(&mut self.parts);
        for (part, burst) in parts.values_mut().zip(divide(limit.burst, &bursts, 1)) {
            part.burst = burst;
        }
        self.set_parts(parts);
        if self.running.take().is_some() {
            self.plan_at = Some(now);
        }
    }
}

/// When a node told its publishers last; `None`: it is not there.
fn listed_at(nodes: &[Node], node: NodeNo) -> Option<Instant> {
    nodes.get(node.0 as usize)?.listed
}

/// A number of things as it is counted here.
fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

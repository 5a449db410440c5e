//! A planner's orders, carried out.

use core::mem;
use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_core::Instant;
use tidegate_core::time::nanos;

use super::super::distributor::Distributor;
use super::super::modelled::Modelled;
use super::super::roster::NodeState;
use super::super::types::{
    Demand, Excess, FitConfig, Measured, NODES_MAX, NodeLoad, NodeNo, Part, Plan, PlanEvent, PlanOrder, Planner,
    Publisher, PublisherNo, Recorded, Shortfall,
};
use super::types::{Ask, Delays, Phase, PlannerKind, Recording, Report};
use super::{Asked, Director, KIND, STRAY_AFTER, count};

/// A node that does not answer for a measurement is asked so often again.
const TRIES: u32 = 3;
/// Batches of a recording at most; later ones are left out.
const RECORDED_MAX: usize = 4_000_000;
/// Seconds that a node's delays can be read for at most.
const SECONDS_MAX: u64 = 60;
/// A recording may come so much later than its end: it is large.
const RECORDING_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum AnyPlanner {
    Paper(Box<Distributor>),
    Model(Box<Modelled>),
}

impl AnyPlanner {
    fn planner(&mut self) -> &mut dyn Planner {
        match self {
            Self::Paper(planner) => planner.as_mut(),
            Self::Model(planner) => planner.as_mut(),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        match self {
            Self::Paper(planner) => planner.next_timeout(),
            Self::Model(planner) => planner.next_timeout(),
        }
    }
}

#[derive(Debug, Default)]
enum Doing {
    /// The planner's next order is due.
    #[default]
    Nothing,
    Assign(Assign),
    Measure(Measure),
    Record(Record),
}

#[derive(Debug)]
struct Assign {
    revision: u64,
    parts: Vec<Part>,
    stage: Stage,
    /// When the stage ends, in one way or the other.
    until: Instant,
    /// When publishers began to move, once they did.
    moved: Option<Instant>,
    /// When lines are looked at next.
    look_at: Instant,
    /// Parts are not those of the plan, but work off lines.
    works_off: bool,
    /// Parts are also for publishers that have not moved, though they had the time.
    fits_strays: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nodes wait for their consumers.
    Prepare,
    /// Parts come in force.
    Parts,
    /// Publishers move, and what waits because of that is worked off.
    Settle,
}

#[derive(Debug)]
struct Measure {
    round: u64,
    nodes: Vec<NodeNo>,
    began: Instant,
    ends: Instant,
    /// It is watched.
    every: Option<Duration>,
    /// The next reading.
    due: Instant,
    reads: bool,
    is_last: bool,
    /// Nodes that have not told this reading.
    open: Vec<NodeNo>,
    /// Orders, and the nodes that they went to.
    asked: BTreeMap<u64, NodeNo>,
    results: Vec<Measured>,
    tries: u32,
}

#[derive(Debug)]
struct Record {
    asked: BTreeMap<u64, NodeNo>,
    arrivals: Vec<Recorded>,
}

/// A plan that is being made.
#[derive(Debug)]
pub(super) struct Running {
    planner: AnyPlanner,
    /// By their numbers in the plan.
    nodes: Vec<NodeNo>,
    /// By their numbers in the plan; `None`: it left.
    publishers: Vec<Option<PublisherNo>>,
    /// Numbers in the plan.
    numbers: BTreeMap<PublisherNo, PublisherNo>,
    doing: Doing,
}

enum Next {
    /// Something else must happen first.
    Waits,
    Goes,
    Ended,
}

impl Running {
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match &self.doing {
            Doing::Assign(assign) => Some(assign.until),
            Doing::Measure(measure) if !measure.reads => Some(measure.due),
            Doing::Measure(_) | Doing::Record(_) | Doing::Nothing => None,
        }
    }

    /// When the planner's next piece of computing is due: at once, if there is one.
    pub(super) fn computes(&self) -> Option<Instant> {
        self.planner.next_timeout()
    }

    /// True while parts come in force for publishers that have not moved yet.
    pub(super) fn holds_moves(&self) -> bool {
        matches!(&self.doing, Doing::Assign(assign) if assign.stage == Stage::Parts)
    }

    /// True if a node is to take publishers and is not known to be ready for them.
    pub(super) fn prepares(&self, node: NodeNo) -> bool {
        let Doing::Assign(assign) = &self.doing else { return false };
        assign.stage == Stage::Prepare && assign.parts.iter().any(|part| self.node(part.node) == Some(node))
    }

    pub(super) fn on_node_added(&mut self, node: NodeNo, load: NodeLoad, now: Instant) {
        if self.nodes.len() < NODES_MAX {
            self.nodes.push(node);
            let number = NodeNo(count(self.nodes.len() - 1));
            self.planner.planner().on_event(PlanEvent::NodeAdded(number, load), now);
        }
    }

    pub(super) fn on_node_gone(&mut self, node: NodeNo, now: Instant) {
        if let Some(number) = self.number(node) {
            match &mut self.doing {
                Doing::Measure(measure) => {
                    measure.asked.retain(|_, asked| *asked != number);
                    measure.nodes.retain(|other| *other != number);
                    measure.open.retain(|other| *other != number);
                }
                Doing::Record(record) => record.asked.retain(|_, asked| *asked != node),
                Doing::Assign(_) | Doing::Nothing => {}
            }
            self.planner.planner().on_event(PlanEvent::NodeGone(number), now);
        }
    }

    pub(super) fn forget(&mut self, publisher: PublisherNo) {
        if let Some(number) = self.numbers.remove(&publisher) {
            self.publishers[number.0 as usize] = None;
        }
    }

    pub(super) fn on_delays(&mut self, order: u64, delays: Delays) {
        let Doing::Measure(measure) = &mut self.doing else { return };
        let Some(node) = measure.asked.remove(&order) else { return };
        measure.open.retain(|open| *open != node);
        measure.results.push(Measured {
            node,
            messages: delays.messages,
            over_slo: delays.over_slo,
            delay_us_p99: delays.delay_us_p99,
            access_us_p99: delays.access_us_p99,
        });
    }

    pub(super) fn on_no_delays(&mut self, order: u64) {
        if let Doing::Measure(measure) = &mut self.doing {
            measure.asked.remove(&order);
        }
    }

    fn node(&self, number: NodeNo) -> Option<NodeNo> {
        self.nodes.get(number.0 as usize).copied()
    }

    /// A node's number in the plan; the last one of a node that came back.
    fn number(&self, node: NodeNo) -> Option<NodeNo> {
        self.nodes.iter().rposition(|other| *other == node).map(|at| NodeNo(count(at)))
    }
}

impl Director {
    /// Begins a plan if one is due and there is something to plan.
    pub(super) fn start_plan(&mut self, now: Instant) {
        let is_due = self.plan_at.is_some_and(|at| at <= now) && self.opened && self.running.is_none();
        let nodes: Vec<NodeNo> = self.numbers().filter(|&node| self.node(node).state == NodeState::Ready).collect();
        if !is_due || self.crowd.len() == 0 || nodes.is_empty() {
            return;
        }
        let publishers: Vec<PublisherNo> = self.crowd.iter().map(|(number, _)| number).collect();
        if publishers.iter().all(|&publisher| self.standing.rate_of(publisher) <= 0.0) {
            // Where nothing is sent there is nothing to plan by.
            self.plan_at = Some(now + self.config.watch_first);
            return;
        }
        self.plan_at = None;
        let groups = self.crowd.groups(&publishers);
        let rates = publishers.iter().map(|&publisher| self.standing.rate_of(publisher));
        let known = rates.zip(groups).map(|(rate_per_s, group)| Publisher { rate_per_s, group }).collect();
        let demand = Demand {
            limit: self.config.limit,
            slo: self.config.slo,
            publishers: known,
            principles: self.config.principles,
            fit: FitConfig { excess: Excess::NextNode, ..self.config.fit },
            force_nodes: None,
            seed: self.config.seed.wrapping_add(self.plans),
        };
        self.plans += 1;
        let mut planner = match self.config.planner {
            PlannerKind::Paper => AnyPlanner::Paper(Box::new(Distributor::new(demand))),
            PlannerKind::Model(config) => AnyPlanner::Model(Box::new(Modelled::new(demand, config))),
        };
        let loads = nodes.iter().map(|&node| self.node(node).load).collect();
        planner.planner().on_event(PlanEvent::Begin { nodes: loads }, now);
        let numbers = publishers.iter().copied().zip((0..).map(PublisherNo)).collect();
        let publishers = publishers.into_iter().map(Some).collect();
        self.note_strays();
        self.running = Some(Running { planner, nodes, publishers, numbers, doing: Doing::Nothing });
        self.phase = Phase::Plans;
    }

    /// Carries on with the plan as far as that goes now.
    pub(super) fn drive(&mut self, now: Instant) {
        let Some(mut running) = self.running.take() else { return };
        if running.planner.next_timeout().is_some_and(|at| at <= now) {
            running.planner.planner().on_timeout(now);
        }
        loop {
            let next = match mem::take(&mut running.doing) {
                Doing::Nothing => match running.planner.planner().poll_output() {
                    Some(order) => self.begin(&mut running, order, now),
                    None => Next::Waits,
                },
                Doing::Assign(assign) => self.assign(&mut running, assign, now),
                Doing::Measure(measure) => self.measure(&mut running, measure, now),
                Doing::Record(record) => Self::record(&mut running, record, now),
            };
            match next {
                Next::Goes => {}
                Next::Waits => break,
                Next::Ended => return,
            }
        }
        self.running = Some(running);
    }

    fn begin(&mut self, running: &mut Running, order: PlanOrder, now: Instant) -> Next {
        match order {
            PlanOrder::Assign { revision, parts } => {
                let until = now + self.config.ready_within;
                running.doing = Doing::Assign(Assign {
                    revision,
                    parts,
                    stage: Stage::Prepare,
                    until,
                    moved: None,
                    look_at: now,
                    works_off: false,
                    fits_strays: false,
                });
            }
            PlanOrder::Measure { round, nodes, span } => {
                running.doing = Doing::Measure(Measure::new(round, nodes, span, None, now));
            }
            PlanOrder::Watch { round, nodes, span, every } => {
                running.doing = Doing::Measure(Measure::new(round, nodes, span, Some(every), now));
            }
            PlanOrder::Record { span } => {
                let within = span + self.config.answer_within + RECORDING_WITHIN;
                let mut record = Record { asked: BTreeMap::new(), arrivals: Vec::new() };
                let has_some = |node: &NodeNo| {
                    self.node(*node).answers() && (self.standing.publishers(*node) > 0 || self.has_traffic(*node))
                };
                for node in self.numbers().filter(has_some).collect::<Vec<_>>() {
                    let ask = Ask::Record { node: self.node(node).name.clone(), span };
                    let order = self.ask(node, Asked::Record, within, now, ask);
                    record.asked.insert(order, node);
                }
                running.doing = Doing::Record(record);
            }
            PlanOrder::Done(plan) => return self.end_plan(running, *plan, now),
            PlanOrder::OutOfNodes(shortfall) => return self.end_short(running, &shortfall, now),
        }
        Next::Goes
    }

    fn assign(&mut self, running: &mut Running, mut assign: Assign, now: Instant) -> Next {
        let of = |part: &Part| running.node(part.node).filter(|&node| self.node(node).state == NodeState::Ready);
        match assign.stage {
            Stage::Prepare => {
                let unready = |part: &&Part| of(part).is_some_and(|node| !self.node(node).prepared);
                if let Some(part) = assign.parts.iter().find(unready) {
                    let (number, node) = (part.node, of(part).expect("it is a ready node"));
                    if now < assign.until {
                        running.doing = Doing::Assign(assign);
                        let unasked: Vec<NodeNo> = self.numbers().filter(|&node| running.prepares(node)).collect();
                        for node in unasked {
                            self.ask_to_prepare(node, now);
                        }
                        return Next::Waits;
                    }
                    let known = self.node(node);
                    let report = Report::NotReady { node: known.name.clone(), missing: known.missing.clone() };
                    self.order(Ask::Report(report));
                    let event = PlanEvent::NotAssigned { revision: assign.revision, node: number };
                    running.planner.planner().on_event(event, now);
                    return Next::Goes;
                }
                self.shift(running, &assign.parts, now);
                assign.stage = Stage::Parts;
                assign.until = now + self.config.lease + 2 * self.config.answer_within;
            }
            Stage::Parts => {
                let settled = |part: &Part| {
                    let steps = self.steps.as_ref();
                    of(part).is_none_or(|node| steps.is_some_and(|steps| steps.is_settled_at(&node)))
                };
                if now < assign.until && !assign.parts.iter().all(settled) {
                    running.doing = Doing::Assign(assign);
                    return Next::Waits;
                }
                assign.stage = Stage::Settle;
                assign.until = now + self.config.fit.settle;
                assign.moved.get_or_insert(now);
            }
            Stage::Settle => {
                if now < assign.until || self.waits_for_lines(&mut assign, now) {
                    running.doing = Doing::Assign(assign);
                    return Next::Waits;
                }
                // Once: who moves later is counted in the next round.
                let fits = mem::replace(&mut assign.fits_strays, true);
                if !fits {
                    self.note_strays();
                }
                if !mem::take(&mut assign.works_off) && (fits || self.strays.is_empty()) {
                    let event = PlanEvent::Assigned { revision: assign.revision };
                    running.planner.planner().on_event(event, now);
                    return Next::Goes;
                }
                self.divide(now);
                assign.stage = Stage::Parts;
                assign.until = now + self.config.lease + 2 * self.config.answer_within;
            }
        }
        running.doing = Doing::Assign(assign);
        Next::Goes
    }

    /// Whether something waits because publishers moved; where it does, parts follow once for each reading of the sensors. Not for
    /// longer than is configured, for a node may have a line that does not end.
    fn waits_for_lines(&mut self, assign: &mut Assign, now: Instant) -> bool {
        let Some(moved) = assign.moved else { return false };
        if now >= moved + self.config.fit.settle + self.config.lines_within {
            return false;
        }
        let lines = self.lines(moved);
        if !lines.are_gone() && now >= assign.look_at {
            assign.look_at = now + self.config.sense_every;
            if now >= moved + STRAY_AFTER {
                self.note_strays();
            }
            assign.works_off |= self.work_off(&lines);
        }
        !lines.are_gone()
    }

    /// Asks at most once a second, as sensors are read; the first time at once.
    fn ask_to_prepare(&mut self, node: NodeNo, now: Instant) {
        let known = self.node(node);
        if !known.prepared && known.missing.is_empty() && !self.is_asked(node, Asked::Prepare) {
            let ask = Ask::Prepare { node: known.name.clone() };
            self.ask(node, Asked::Prepare, self.config.answer_within, now, ask);
        }
    }

    /// Publishers belong where the parts say. One that is in no part stays where it is, or goes to a prepared node that is
    /// in none, if its own node is to be measured without it.
    fn shift(&mut self, running: &Running, parts: &[Part], now: Instant) {
        for node in self.numbers() {
            self.standing.set_takes(node, false);
        }
        let mut placed = vec![false; running.publishers.len()];
        for part in parts {
            let Some(node) = running.node(part.node).filter(|&node| self.node(node).state == NodeState::Ready) else {
                continue;
            };
            self.standing.set_takes(node, true);
            for &number in &part.publishers {
                if let Some(Some(publisher)) = running.publishers.get(number.0 as usize) {
                    self.standing.put(*publisher, Some(node));
                    self.dirty.push(*publisher);
                    placed[number.0 as usize] = true;
                }
            }
        }
        let in_parts: Vec<NodeNo> = parts.iter().filter_map(|part| running.node(part.node)).collect();
        let room = |node: &NodeNo| self.standing.room_per_s(*node);
        let spare = self
            .numbers()
            .filter(|node| self.node(*node).state == NodeState::Ready && self.node(*node).prepared)
            .filter(|node| !in_parts.contains(node))
            .max_by(|a, b| room(a).total_cmp(&room(b)).then(b.cmp(a)));
        let others: Vec<PublisherNo> = self
            .crowd
            .iter()
            .map(|(publisher, _)| publisher)
            .filter(|publisher| running.numbers.get(publisher).is_none_or(|number| !placed[number.0 as usize]))
            .collect();
        for publisher in others {
            let on = self.standing.node_of(publisher).filter(|&node| self.node(node).state == NodeState::Ready);
            let stays = on.filter(|node| !in_parts.contains(node)).or(spare).or(on);
            if let Some(node) = stays {
                self.standing.set_takes(node, true);
                self.standing.put(publisher, Some(node));
            } else {
                self.standing.settle(publisher);
            }
            self.dirty.push(publisher);
        }
        self.divide(now);
    }

    fn measure(&mut self, running: &mut Running, mut measure: Measure, now: Instant) -> Next {
        if !measure.reads {
            if now < measure.due {
                running.doing = Doing::Measure(measure);
                return Next::Waits;
            }
            (measure.reads, measure.is_last) = (true, now >= measure.ends);
            let seconds = (now.nanos_since(measure.began) / 1_000_000_000).clamp(1, SECONDS_MAX);
            for number in measure.open.clone() {
                let Some(node) = running.node(number).filter(|&node| self.node(node).answers()) else { continue };
                let (name, slo) = (self.node(node).name.clone(), self.config.slo.within);
                let ask = Ask::Sense { node: name, seconds: u32::try_from(seconds).unwrap_or(1), slo };
                let order = self.ask(node, Asked::Measure, self.config.answer_within, now, ask);
                measure.asked.insert(order, number);
            }
        }
        if !measure.asked.is_empty() {
            running.doing = Doing::Measure(measure);
            return Next::Waits;
        }
        if !measure.open.is_empty() && measure.tries < TRIES {
            measure.tries += 1;
            (measure.reads, measure.due) = (false, now + self.config.sense_every);
            running.doing = Doing::Measure(measure);
            return Next::Waits;
        }
        let round = measure.round;
        let mut results = mem::take(&mut measure.results);
        results.sort_by_key(|result| result.node);
        if measure.is_last {
            running.planner.planner().on_event(PlanEvent::Measured { round, results }, now);
            return Next::Goes;
        }
        running.planner.planner().on_event(PlanEvent::Watched { round, results }, now);
        if let Some(order) = running.planner.planner().poll_output() {
            return self.begin(running, order, now);
        }
        if running.computes().is_some() {
            // What was seen is enough for what it computes.
            return Next::Goes;
        }
        measure.next(now);
        running.doing = Doing::Measure(measure);
        Next::Goes
    }

    fn record(running: &mut Running, mut record: Record, now: Instant) -> Next {
        if !record.asked.is_empty() {
            running.doing = Doing::Record(record);
            return Next::Waits;
        }
        record.arrivals.sort_by_key(|arrival| (arrival.at, arrival.publisher));
        running.planner.planner().on_event(PlanEvent::Recorded { arrivals: record.arrivals }, now);
        Next::Goes
    }

    /// What a node recorded, on the one clock that is ours.
    pub(super) fn on_recorded(&mut self, order: u64, node: NodeNo, recording: &Recording) {
        let clock = self.node(node).clock;
        let Some(running) = &mut self.running else { return };
        let Doing::Record(record) = &mut running.doing else { return };
        if record.asked.remove(&order).is_none() {
            return;
        }
        let Some((here, there_us)) = clock else { return };
        let numbers: Vec<Option<PublisherNo>> = recording
            .identities
            .iter()
            .map(|identity| running.numbers.get(&self.crowd.number_of(identity)?).copied())
            .collect();
        let at = |at_us: u64| {
            if at_us <= there_us {
                here.minus_nanos((there_us - at_us).saturating_mul(1_000))
            } else {
                here.plus_nanos((at_us - there_us).saturating_mul(1_000))
            }
        };
        for batch in &recording.batches {
            if let Some(Some(publisher)) = numbers.get(batch.publisher as usize)
                && record.arrivals.len() < RECORDED_MAX
            {
                let (publisher, messages) = (*publisher, batch.messages.max(1));
                record.arrivals.push(Recorded { at: at(batch.at_us), publisher, messages });
            }
        }
    }

    fn end_plan(&mut self, running: &Running, plan: Plan, now: Instant) -> Next {
        let nodes = self.names(&running.nodes);
        let name = |node: NodeNo| nodes.get(node.0 as usize).map_or_else(String::new, ToString::to_string);
        let words = plan.why.iter().map(|reason| reason.in_words(KIND, name)).collect();
        let report = Report::Planned { nodes: nodes.clone(), plan: Box::new(plan), words };
        self.phase = Phase::Stands;
        self.tell(report, now);
        Next::Ended
    }

    fn end_short(&mut self, running: &Running, shortfall: &Shortfall, now: Instant) -> Next {
        let nodes = self.names(&running.nodes);
        let name = |node: NodeNo| nodes.get(node.0 as usize).map_or_else(String::new, ToString::to_string);
        let decisions = shortfall.best.why.iter().map(|reason| reason.in_words(KIND, name));
        let who = |publisher: PublisherNo| {
            let number = running.publishers.get(publisher.0 as usize).copied().flatten();
            let known = number.and_then(|number| self.crowd.get(number));
            known.map_or_else(|| publisher.0.to_string(), |known| known.identity.to_string())
        };
        let words = [shortfall.cause.in_words_of(KIND, who)].into_iter().chain(decisions).collect();
        let report = Report::OutOfNodes { missing_per_s: shortfall.missing_per_s, words };
        self.phase = Phase::Short;
        self.plan_at = Some(now + self.config.retry_after);
        // Nobody is left without a node, be it beyond its room.
        self.settle_homeless();
        self.tell(report, now);
        Next::Ended
    }

    fn tell(&mut self, report: Report, now: Instant) {
        self.last = Some(report.clone());
        self.order(Ask::Report(report));
        self.adaptor.restart(now + self.config.fit.settle + self.config.adapt.window / 2);
    }
}

impl Measure {
    fn new(round: u64, nodes: Vec<NodeNo>, span: Duration, every: Option<Duration>, now: Instant) -> Self {
        let ends = now.plus_nanos(nanos(span));
        let due = every.map_or(ends, |every| (now + every).min(ends));
        Self {
            round,
            open: nodes.clone(),
            nodes,
            began: now,
            ends,
            every,
            due,
            reads: false,
            is_last: false,
            asked: BTreeMap::new(),
            results: Vec::new(),
            tries: 0,
        }
    }

    /// On to the next reading.
    fn next(&mut self, now: Instant) {
        let every = self.every.unwrap_or(self.ends.since(self.began));
        (self.due, self.reads, self.tries) = ((now + every).min(self.ends), false, 0);
        self.open.clone_from(&self.nodes);
    }
}

//! The life of a limit that is divided among nodes which take whoever comes: proxies behind a balancer.
//!
//! Nothing is placed: clients reach nodes as they will, and the parts follow the demand. A divider is told what its nodes
//! saw in each second, and orders parts: shares of the rate by demand, shares of the burst by backlog, as the
//! [`Adaptor`] computes them and [`Steps`] puts them in force, so that their sum is never beyond the contract. A node that
//! refuses instead of holding up tells its refusals as backlog. A node that does not answer gives its part to the others
//! when its lease is over; one that answers again gets an even share, and what it needs a period later.
//!
//! One that begins to lead takes over what nodes say they hold: nothing changes because another process leads.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;

use super::adaptor::{Adaptor, AdaptorConfig, Second};
use super::name::Name;
use super::portion::{Portion, WHOLE, divide, sum};
use super::roster::{NodeState, Roster, RosterConfig, Says};
use super::steps::{Put, Steps, StepsConfig};
use super::term::TermEnd;

/// What a divider works with.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct DividerConfig {
    /// The whole contract.
    pub limit: Limit,
    /// How parts follow the demand.
    pub adapt: AdaptorConfig,
    /// How long parts hold.
    pub steps: StepsConfig,
    /// How often nodes are asked; 1 s, as they count by the second.
    pub sense_every: Duration,
    /// A node that has not answered for so long is gone.
    pub silence: Duration,
    /// Nodes lend each other tokens: their bursts stay even, as loans move depth within milliseconds, and so does half of
    /// the rate. Else all that is minted where the demand was, and a node's depth of it at most, would have to be
    /// borrowed by the one to which it moves.
    pub lends: bool,
}

impl DividerConfig {
    /// The usual numbers for `limit`.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            adapt: AdaptorConfig::default(),
            steps: StepsConfig::default(),
            sense_every: Duration::from_secs(1),
            silence: RosterConfig::default().silence,
            lends: false,
        }
    }
}

/// What a node said.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DemandReading {
    /// Its monotonic clock, when it was asked or later.
    pub clock_us: u64,
    /// It takes no new connections.
    pub draining: bool,
    /// The last whole seconds.
    pub seconds: Vec<Second>,
    /// Refusals in them, per second.
    pub refused_per_s: f64,
    /// The part that it has.
    pub holds: Option<Limit>,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum DividerEvent {
    /// A node answered.
    Sensed {
        /// The order.
        order: u64,
        /// What it said.
        reading: DemandReading,
    },
    /// A node put a part in force.
    Put {
        /// The order.
        order: u64,
    },
    /// A node holds a newer part.
    Fenced {
        /// The order.
        order: u64,
        /// Its revision.
        holds: u64,
    },
    /// An order was not carried out, or nobody knows.
    Failed {
        /// The order.
        order: u64,
    },
    /// Whether this process leads from now on.
    Lead {
        /// It does.
        leads: bool,
        /// Revisions are above this.
        above: u64,
        /// Others' orders may come as long as this.
        quiet: Duration,
    },
    /// It leads until then, unless it is told a later moment before, as a director is by
    /// [`LeadsUntil`](crate::machine::director::Event::LeadsUntil). Without it the term has no end.
    LeadsUntil(Instant),
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum DividerAsk {
    /// Asks a node for its last seconds.
    Sense {
        /// Which.
        node: Name,
        /// How many.
        seconds: u32,
    },
    /// Puts a part in force.
    Put(Put<Name>),
}

/// An order, with the number that its answer has.
#[derive(Clone, PartialEq, Debug)]
pub struct DividerOrder {
    /// Grows.
    pub no: u64,
    /// What.
    pub what: DividerAsk,
}

/// A node, as people see it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DividedNode {
    /// Its name.
    pub node: Name,
    /// Whether it answers.
    pub state: NodeState,
    /// What it is to have.
    pub wanted: Limit,
    /// What it certainly has.
    pub acknowledged: Option<Limit>,
    /// Until its lease ends; 0 without one.
    pub lease_ms: u64,
    /// Requests per second over the window.
    pub rate_per_s: f64,
    /// Refusals per second over the window.
    pub refused_per_s: f64,
    /// The largest backlog within the window.
    pub backlog_max: u64,
}

/// The state for people.
#[derive(Clone, PartialEq, Debug)]
pub struct DividerView {
    /// This process leads.
    pub leads: bool,
    /// The whole.
    pub limit: Limit,
    /// The newest revision of parts.
    pub revision: u64,
    /// By name.
    pub nodes: Vec<DividedNode>,
}

#[derive(Clone, Debug)]
enum Asked {
    Sense,
    Put(u64),
}

#[derive(Clone, Debug)]
struct Waiting {
    node: Name,
    what: Asked,
    until: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Divider {
    config: DividerConfig,
    roster: Roster,
    adaptor: Adaptor<Name>,
    /// `None`: it does not lead.
    steps: Option<Steps<Name>>,
    /// What nodes are to have; empty before the first division.
    parts: BTreeMap<Name, Portion>,
    /// What nodes said last, without their seconds.
    said: BTreeMap<Name, DemandReading>,
    orders: VecDeque<DividerOrder>,
    waiting: BTreeMap<u64, Waiting>,
    next_no: u64,
    led_since: Instant,
    leads_until: TermEnd,
    sense_at: Instant,
    /// The latest moment that it was told.
    now: Instant,
}

impl Divider {
    /// One that does not lead, over these nodes; those beyond the roster's bound are left out.
    #[must_use]
    pub fn new(config: DividerConfig, nodes: impl IntoIterator<Item = Name>, now: Instant) -> Self {
        let mut roster = Roster::new(RosterConfig { silence: config.silence });
        for node in nodes {
            // A configuration has no more nodes than the roster.
            let _ = roster.add(&node, now);
        }
        Self {
            roster,
            adaptor: Adaptor::new(config.adapt, now),
            config,
            steps: None,
            parts: BTreeMap::new(),
            said: BTreeMap::new(),
            orders: VecDeque::new(),
            waiting: BTreeMap::new(),
            next_no: 1,
            led_since: now,
            leads_until: TermEnd::UNKNOWN,
            sense_at: now,
            now,
        }
    }

    /// Something happened.
    pub fn on_event(&mut self, event: DividerEvent, now: Instant) {
        if let DividerEvent::LeadsUntil(until) = event {
            self.leads_until = TermEnd::at(until);
        }
        self.end_term(now);
        match event {
            DividerEvent::Sensed { order, reading } => self.on_sensed(order, &reading, now),
            DividerEvent::Put { order } => {
                if let Some((node, revision, steps)) = self.put_of(order) {
                    steps.on_put(&node, revision);
                }
            }
            DividerEvent::Fenced { order, holds } => {
                if let Some((node, revision, steps)) = self.put_of(order) {
                    steps.on_fenced(&node, revision, holds, now);
                }
            }
            DividerEvent::Failed { order } => self.on_failed(order, now),
            DividerEvent::Lead { leads, above, quiet } => self.on_lead(leads, above, quiet, now),
            DividerEvent::LeadsUntil(_) => {}
        }
        self.advance(now);
    }

    /// When to call [`Self::on_timeout`] if nothing happens before; `None` if it does not lead.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let steps = self.steps.as_ref()?;
        let answers = self.waiting.values().map(|waiting| waiting.until).min();
        let adapts = (!self.parts.is_empty()).then(|| self.adaptor.due());
        let term = self.leads_until.next_timeout();
        // What is overdue waits for something else, which each reading looks after.
        [answers, term, adapts, self.roster.next_timeout(), steps.next_timeout(), Some(self.sense_at)]
            .into_iter()
            .flatten()
            .filter(|&at| at > self.now)
            .min()
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// The next order; call until `None`.
    pub fn poll_order(&mut self) -> Option<DividerOrder> {
        self.orders.pop_front()
    }

    /// The state for people.
    #[must_use]
    pub fn view(&self, now: Instant) -> DividerView {
        let node = |(name, state): (&Name, NodeState)| {
            let held = self.steps.as_ref().and_then(|steps| steps.acknowledged(name));
            DividedNode {
                node: name.clone(),
                state,
                wanted: self.parts.get(name).copied().unwrap_or_default().limit(self.config.limit),
                acknowledged: held.map(|(limit, _)| limit),
                lease_ms: held.map_or(0, |(_, until)| until.nanos_since(now) / 1_000_000),
                rate_per_s: self.adaptor.rate_per_s(name).unwrap_or(0.0),
                refused_per_s: self.said.get(name).map_or(0.0, |said| said.refused_per_s),
                backlog_max: self.adaptor.backlog_max(name),
            }
        };
        DividerView {
            leads: self.steps.is_some(),
            limit: self.config.limit,
            revision: self.steps.as_ref().map_or(0, Steps::revision),
            nodes: self.roster.nodes().map(node).collect(),
        }
    }

    /// The node and the revision of an order for a part that is answered, if this process leads.
    fn put_of(&mut self, order: u64) -> Option<(Name, u64, &mut Steps<Name>)> {
        match self.waiting.remove(&order)? {
            Waiting { node, what: Asked::Put(revision), .. } => Some((node, revision, self.steps.as_mut()?)),
            Waiting { .. } => None,
        }
    }

    fn on_sensed(&mut self, order: u64, reading: &DemandReading, now: Instant) {
        let Some(Waiting { node, what: Asked::Sense, .. }) = self.waiting.remove(&order) else { return };
        let says = if reading.draining { Says::Draining } else { Says::Ready };
        self.roster.on_answer(node.as_str(), says, now);
        if let Some(steps) = &mut self.steps {
            steps.on_clock(&node, reading.clock_us, now);
            // An answer that an order has overtaken costs a renewal.
            if reading.holds.is_none() {
                steps.on_lost(&node, now);
            }
        }
        self.adaptor.on_seconds(&node, &reading.seconds, now);
        let &DemandReading { clock_us, draining, refused_per_s, holds, .. } = reading;
        self.said.insert(node, DemandReading { clock_us, draining, refused_per_s, holds, seconds: Vec::new() });
    }

    fn on_failed(&mut self, order: u64, now: Instant) {
        if let Some((node, revision, steps)) = self.put_of(order) {
            steps.on_failed(&node, revision, now);
        }
    }

    /// A term that was not renewed in time is over, also if nobody says so: this process may have stood still.
    fn end_term(&mut self, now: Instant) {
        if self.steps.is_some() && self.leads_until.has_come(now) {
            self.stop_leading();
        }
    }

    fn stop_leading(&mut self) {
        self.steps = None;
        self.waiting.clear();
        self.orders.clear();
        self.parts.clear();
    }

    fn on_lead(&mut self, leads: bool, above: u64, quiet: Duration, now: Instant) {
        self.stop_leading();
        self.leads_until = TermEnd::UNKNOWN;
        if !leads {
            return;
        }
        let quiet_until = if quiet.is_zero() { Instant::ZERO } else { now + quiet + quiet / 1_000 };
        self.steps = Some(Steps::new(self.config.steps, self.config.limit, quiet_until, above));
        self.adaptor = Adaptor::new(self.config.adapt, now);
        // What they hold is asked anew.
        self.said.clear();
        (self.led_since, self.sense_at) = (now, now);
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
        self.roster.on_timeout(now);
        while let Some(change) = self.roster.poll_change() {
            if change.state == NodeState::Gone {
                self.said.remove(&change.node);
                self.adaptor.forget(&change.node);
                if let Some(steps) = &mut self.steps {
                    steps.on_gone(&change.node);
                }
            }
        }
        if self.steps.is_none() {
            return;
        }
        if now >= self.sense_at {
            self.sense_at = now + self.config.sense_every;
            self.sense(now);
        }
        self.divide(now);
        if let Some(parts) = self.adaptor.adapt(self.config.limit, &self.parts, now) {
            self.set_parts(parts);
        }
        self.put_parts(now);
    }

    /// Asks every node, also those that are gone: they may be back.
    fn sense(&mut self, now: Instant) {
        let seconds = self.config.adapt.window_s();
        let nodes: Vec<Name> = self.roster.nodes().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            let is_asked = |waiting: &Waiting| waiting.node == node && matches!(waiting.what, Asked::Sense);
            if !self.waiting.values().any(is_asked) {
                self.ask(node.clone(), Asked::Sense, DividerAsk::Sense { node, seconds }, now);
            }
        }
    }

    /// Parts for the nodes that answer, if these are others than before.
    fn divide(&mut self, now: Instant) {
        let answers = |state| matches!(state, NodeState::Ready | NodeState::Draining);
        let here: Vec<Name> =
            self.roster.nodes().filter(|(_, state)| answers(*state)).map(|(node, _)| node.clone()).collect();
        if here.iter().eq(self.parts.keys()) {
            return;
        }
        if self.parts.is_empty() {
            // The first division waits until everybody was asked once, and had time to answer.
            let all = self.said.len() == self.roster.nodes().count();
            let is_late = self.led_since + 2 * self.config.sense_every <= now;
            if here.is_empty() || !(all || is_late) {
                return;
            }
        }
        let contract = self.config.limit;
        let whole = Portion { rate_shares: WHOLE, burst: contract.burst };
        let mut known = self.parts.clone();
        if known.is_empty() {
            let held = |(node, said): (&Name, &DemandReading)| {
                said.holds.map(|limit| (node.clone(), Portion::of(contract, limit)))
            };
            known = self.said.iter().filter_map(held).collect();
            if !sum(known.values()).is_within(whole) {
                known.clear();
            }
        }
        // As much as one of the others has on the mean: then its share is an even one.
        let stay = here.iter().filter(|node| known.contains_key(*node)).count().max(1) as u64;
        let even = Portion { rate_shares: WHOLE / stay, burst: (contract.burst / stay).max(1) };
        let weights: Vec<Portion> = here.iter().map(|node| known.get(node).copied().unwrap_or(even)).collect();
        let rates = divide(WHOLE, &weights.iter().map(|weight| weight.rate_shares).collect::<Vec<_>>(), 1);
        let bursts = divide(contract.burst, &weights.iter().map(|weight| weight.burst).collect::<Vec<_>>(), 1);
        let portions = rates.into_iter().zip(bursts).map(|(rate_shares, burst)| Portion { rate_shares, burst });
        self.set_parts(here.into_iter().zip(portions).collect());
    }

    fn set_parts(&mut self, mut parts: BTreeMap<Name, Portion>) {
        if self.config.lends {
            let many = parts.len().max(1);
            let bursts = divide(self.config.limit.burst, &vec![1; many], 1);
            let even = WHOLE / many as u64;
            let weights: Vec<u64> = parts.values().map(|part| part.rate_shares + even).collect();
            let rates = divide(WHOLE, &weights, 1);
            for (part, (rate_shares, burst)) in parts.values_mut().zip(rates.into_iter().zip(bursts)) {
                *part = Portion { rate_shares, burst };
            }
        }
        self.parts = parts;
        if let Some(steps) = &mut self.steps {
            steps.want(&self.parts);
        }
    }

    fn put_parts(&mut self, now: Instant) {
        while let Some(put) = self.steps.as_mut().and_then(|steps| steps.poll(now)) {
            self.ask(put.node.clone(), Asked::Put(put.revision), DividerAsk::Put(put), now);
        }
    }

    fn ask(&mut self, node: Name, what: Asked, ask: DividerAsk, now: Instant) {
        let no = self.next_no;
        self.next_no += 1;
        self.waiting.insert(no, Waiting { node, what, until: now + self.config.steps.answer_within });
        self.orders.push_back(DividerOrder { no, what: ask });
    }
}

#[cfg(test)]
mod tests;

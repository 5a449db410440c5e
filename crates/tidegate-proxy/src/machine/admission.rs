//! Work that is beyond its tenant's share waits until there is something left over, and is told no only when it has
//! waited too long.
//!
//! To say no costs nearly what a cheap answer costs, and whoever is told no at once asks again at once: a core that
//! refuses has little left to serve with. Work that waits costs nothing, and its client feels it.
//!
//! Each tenant has a line, first come, first served; the lines take turns, those of one source's made-up names within
//! the turns of their source. Who comes to a line waits behind those in it. A line is asked for again [a thousand times
//! a second](Tuning::every), and whenever the core has nothing else to do.
//!
//! Source: ours. The turns are those of round-robin fair queueing as in Nagle, "On packet switches with infinite
//! storage" (RFC 970).

use core::time::Duration;
use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

use super::Resource;
use super::neighbours::{Claimant, Lane, Neighbours, Refusal, Stage, Tenant, Verdict};

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// How often those who wait are asked for again while the core is busy. 1 ms: what comes together in it is some ten
    /// requests, and one who keeps to his share waits so long at most when he is taken for one who does not.
    pub every: Duration,
    /// Most that wait. Each holds a request's head: with 16,384, some 64 MiB.
    pub waiting_max: usize,
    /// Lines that one turn looks at, and that it lets go on; the next turn goes on behind them.
    pub looked_at: usize,
    /// What one idle moment lets go on, in nanoseconds of the core: enough to keep it busy until the next look at the
    /// sockets, and no more than somebody within his share can wait for.
    pub spare_ns: u64,
    /// Refusals of requests that waited too long: at 30 us each, 1,000 in a second take 3 % of the core.
    pub answers: Limit,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(1),
            waiting_max: 16_384,
            looked_at: 256,
            spare_ns: 100_000,
            answers: Limit::new(Rate::per_s(1_000), 100),
        }
    }
}

/// What one piece of work asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    list: [(Resource, u64); Self::MOST],
    len: usize,
}

impl Costs {
    /// Most resources that one piece of work asks for.
    pub const MOST: usize = 6;

    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: [(Resource::Requests, 0); Self::MOST], len: 0 }
    }

    /// As well `amount` of `resource`; of none nothing is asked.
    ///
    /// # Panics
    /// If there are more than [`MOST`](Self::MOST).
    #[must_use]
    pub fn and(mut self, resource: Resource, amount: u64) -> Self {
        if amount > 0 {
            self.list[self.len] = (resource, amount);
            self.len += 1;
        }
        self
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[(Resource, u64)] {
        &self.list[..self.len]
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells one that waits apart from others.
pub type Ticket = u64;

/// The answer to work that comes.
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub enum Arrival {
    /// It was charged; do it.
    Admit(Lane),
    /// It waits; what becomes of it is an [`Output`].
    Wait(Ticket),
    /// Say no, and why.
    Refuse(Refusal),
}

/// The answer to work under way that asks for its next part: it can wait, but not be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Onward {
    /// It was charged; go on.
    Go,
    /// It waits; [`Output::Go`] follows, whatever the patience.
    Wait(Ticket),
    /// There is no room for one more that waits: ask again later.
    Later,
}

/// What became of one that waited.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Output {
    /// It was charged; do it.
    Go(Ticket, Lane),
    /// It has waited too long: say no.
    Refuse(Ticket, Refusal),
}

/// The waiting requests of one thread: a FIFO queue for each tenant, the claimants served round robin, and so
/// the queues of each.
#[derive(Debug)]
pub struct Admission {
    tuning: Tuning,
    patience: Duration,
    lines: HashMap<Tenant, Line, RandomState>,
    /// Claimants with a line, in the order of their turns.
    order: VecDeque<Claimant>,
    claimants: HashMap<Claimant, Members, RandomState>,
    waiting: HashMap<Ticket, Waiting, RandomState>,
    next: Ticket,
    /// Refusals of those who waited too long.
    answers: TokenBucket,
    /// All tenants with a line, in no order, for counting what they want once in each tick.
    all: Vec<Tenant>,
    /// The tick in which they are counted, how many of them are left, and behind which the count goes on.
    ticked: Instant,
    uncounted: usize,
    hand: usize,
    outputs: VecDeque<Output>,
}

/// The FIFO queue of one tenant. A cancelled request stays in it until it is the first, or half of the queue is
/// cancelled.
#[derive(Debug)]
struct Line {
    claimant: Claimant,
    /// Its place among all of them, and the tick in which it was last counted as wanting.
    place: usize,
    ticked: Instant,
    tickets: VecDeque<Ticket>,
    gone: usize,
    /// What those who are there ask for together, by resource.
    wanted: [u64; Resource::COUNT],
}

/// The lines of one claimant.
#[derive(Debug, Default)]
struct Members {
    /// Their tenants, in the order of their turns.
    order: VecDeque<Tenant>,
    /// How many wait in them.
    waiting: usize,
}

#[derive(Debug)]
struct Waiting {
    tenant: Tenant,
    costs: Costs,
    /// [`Instant::MAX`] of one that never waits too long.
    since: Instant,
}

impl Admission {
    /// Nobody waits; who does waits for `patience` before it is told no, and not at all if that is zero.
    #[must_use]
    pub fn new(tuning: Tuning, patience: Duration, now: Instant) -> Self {
        Self {
            tuning,
            patience,
            lines: HashMap::default(),
            order: VecDeque::new(),
            claimants: HashMap::default(),
            waiting: HashMap::default(),
            next: 0,
            answers: TokenBucket::empty(tuning.answers, now),
            all: Vec::new(),
            ticked: now,
            uncounted: 0,
            hand: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Another patience; for those who wait as well.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Work of `tenant` comes.
    pub fn arrive(&mut self, limiter: &mut Neighbours, tenant: Tenant, costs: &Costs, now: Instant) -> Arrival {
        let stage = Stage::Request;
        let is_behind = self.lines.get(&tenant).is_some_and(|line| line.tickets.len() > line.gone);
        if self.patience.is_zero() || (!is_behind && !self.has_room(limiter.claimant(tenant))) {
            return match limiter.try_take(tenant, stage, costs.as_slice(), now) {
                Verdict::Admit { lane, .. } => Arrival::Admit(lane),
                Verdict::Refuse(refusal) => Arrival::Refuse(refusal),
            };
        }
        if is_behind {
            if !self.has_room(limiter.claimant(tenant)) {
                let refusal = limiter.turn_away(tenant, stage, Resource::EventTime, &[], self.patience, now);
                return Arrival::Refuse(refusal);
            }
            limiter.await_all(tenant, costs.as_slice(), now);
            return Arrival::Wait(self.push(limiter, tenant, costs, now, now));
        }
        match limiter.try_take_or_wait(tenant, stage, costs.as_slice(), now) {
            Some(Verdict::Admit { lane, .. }) => Arrival::Admit(lane),
            Some(Verdict::Refuse(refusal)) => Arrival::Refuse(refusal),
            None => Arrival::Wait(self.push(limiter, tenant, costs, now, now)),
        }
    }

    /// Work of `tenant` that is under way asks for its next part. It waits as new work does and behind it, so that a
    /// long body has no more than its tenant's share of what is wanted by others, and all that nobody wants.
    pub fn go_on(&mut self, limiter: &mut Neighbours, tenant: Tenant, costs: &Costs, now: Instant) -> Onward {
        if self.lines.get(&tenant).is_some_and(|line| line.tickets.len() > line.gone) {
            limiter.await_all(tenant, costs.as_slice(), now);
        } else {
            match limiter.try_take_or_wait(tenant, Stage::Request, costs.as_slice(), now) {
                Some(Verdict::Admit { .. }) => return Onward::Go,
                Some(Verdict::Refuse(_)) => return Onward::Later,
                None => {}
            }
        }
        if !self.has_room(limiter.claimant(tenant)) {
            return Onward::Later;
        }
        Onward::Wait(self.push(limiter, tenant, costs, Instant::MAX, now))
    }

    /// Whether one more of the claimant may wait: fewer of it do than all lines leave room for. So one takes half of
    /// the room at most, however many names it has, and others find some.
    fn has_room(&self, claimant: Claimant) -> bool {
        let own = self.claimants.get(&claimant).map_or(0, |members| members.waiting);
        own < self.tuning.waiting_max.saturating_sub(self.waiting.len())
    }

    /// One more waits, which was counted as wanting.
    fn push(
        &mut self,
        limiter: &mut Neighbours,
        tenant: Tenant,
        costs: &Costs,
        since: Instant,
        now: Instant,
    ) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.count(limiter, tenant, now);
        let Self { lines, order, claimants, all, .. } = self;
        let line = lines.entry(tenant).or_insert_with(|| {
            let claimant = limiter.claimant(tenant);
            let members = claimants.entry(claimant).or_insert_with(|| {
                order.push_back(claimant);
                Members::default()
            });
            members.order.push_back(tenant);
            all.push(tenant);
            let place = all.len() - 1;
            let wanted = [0; Resource::COUNT];
            Line { claimant, place, ticked: limiter.ticked(), tickets: VecDeque::new(), gone: 0, wanted }
        });
        line.tickets.push_back(ticket);
        line.count(costs, u64::saturating_add);
        claimants.get_mut(&line.claimant).expect("a line's claimant has members").waiting += 1;
        self.waiting.insert(ticket, Waiting { tenant, costs: *costs, since });
        ticket
    }

    /// Whoever waits with `ticket` has gone.
    pub fn leave(&mut self, ticket: Ticket) {
        let Some(Waiting { tenant, costs, .. }) = self.waiting.remove(&ticket) else { return };
        let Some(line) = self.lines.get_mut(&tenant) else { return };
        line.count(&costs, u64::saturating_sub);
        line.gone += 1;
        self.claimants.get_mut(&line.claimant).expect("a line's claimant has members").waiting -= 1;
        // Who comes and goes without end leaves no more behind than who stays.
        if line.gone > line.tickets.len() / 2 {
            line.tickets.retain(|ticket| self.waiting.contains_key(ticket));
            line.gone = 0;
        }
    }

    /// When to [`turn`](Self::turn) next.
    #[must_use]
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        (!self.is_empty()).then(|| now + self.tuning.every)
    }

    /// Goes on with counting, in each tick, what all lines want.
    fn count_some(&mut self, limiter: &mut Neighbours, now: Instant) {
        if limiter.ticked() != self.ticked {
            (self.ticked, self.uncounted) = (limiter.ticked(), self.all.len());
        }
        for _ in 0..self.uncounted.min(self.tuning.looked_at) {
            self.uncounted -= 1;
            self.hand = self.hand.checked_sub(1).unwrap_or(self.all.len().saturating_sub(1));
            let Some(&tenant) = self.all.get(self.hand) else { continue };
            self.count(limiter, tenant, now);
        }
    }

    /// Counts what a line wants, once in each tick: at the latest when it is looked at.
    fn count(&mut self, limiter: &mut Neighbours, tenant: Tenant, now: Instant) {
        let Some(line) = self.lines.get_mut(&tenant).filter(|line| line.ticked != limiter.ticked()) else { return };
        line.ticked = limiter.ticked();
        let (mut wanted, mut kinds) = ([(Resource::Requests, 0); Resource::COUNT], 0);
        for (resource, &amount) in Resource::ALL.into_iter().zip(&line.wanted).filter(|(_, amount)| **amount > 0) {
            wanted[kinds] = (resource, amount);
            kinds += 1;
        }
        limiter.await_all(tenant, &wanted[..kinds], now);
    }

    /// Lets go on what can, and tells those who have waited too long.
    pub fn turn(&mut self, limiter: &mut Neighbours, now: Instant) {
        self.count_some(limiter, now);
        // Lines in a row that could not go on.
        let mut short = 0;
        for _ in 0..self.tuning.looked_at {
            let Some(tenant) = self.first() else { return };
            let Some((ticket, costs, since)) = self.head(tenant) else { continue };
            self.count(limiter, tenant, now);
            self.next_turn();
            let told = match limiter.try_again(tenant, costs.as_slice(), false, now) {
                Ok(lane) => Output::Go(ticket, lane),
                Err(resource) if now.since(since) >= self.patience && self.answers.try_take(1, now).is_ok() => {
                    let stage = Stage::Request;
                    Output::Refuse(ticket, limiter.turn_away(tenant, stage, resource, &[], self.patience, now))
                }
                Err(_) => {
                    short += 1;
                    if short >= self.lines.len() {
                        return;
                    }
                    continue;
                }
            };
            short = 0;
            self.tell(tenant, ticket, told);
        }
    }

    /// The core has nothing to do: lets go on what only its time was short for, a moment's work of it.
    pub fn spare(&mut self, limiter: &mut Neighbours, now: Instant) {
        let (mut left, mut short) = (self.tuning.spare_ns, 0);
        while left > 0 && short < self.lines.len().min(self.tuning.looked_at) {
            let Some(tenant) = self.first() else { return };
            let Some((ticket, costs, _)) = self.head(tenant) else { continue };
            self.count(limiter, tenant, now);
            self.next_turn();
            match limiter.try_again(tenant, costs.as_slice(), true, now) {
                Ok(lane) => {
                    self.tell(tenant, ticket, Output::Go(ticket, lane));
                    let time = costs.as_slice().iter().find(|(resource, _)| *resource == Resource::EventTime);
                    left = left.saturating_sub(time.map_or(0, |(_, ns)| *ns).max(1_000));
                    short = 0;
                }
                Err(_) => short += 1,
            }
        }
    }

    /// What became of one that waited, if there is more to tell.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The tenant whose turn it is.
    fn first(&self) -> Option<Tenant> {
        self.claimants.get(self.order.front()?)?.order.front().copied()
    }

    /// Whose turn it was is the last one of its claimant from now on, and its claimant the last one.
    fn next_turn(&mut self) {
        let Some(members) = self.order.front().and_then(|claimant| self.claimants.get_mut(claimant)) else { return };
        members.order.rotate_left(1);
        self.order.rotate_left(1);
    }

    /// The first of the tenant's line who is there; a line without any is taken out of the order, of which it is the
    /// first.
    fn head(&mut self, tenant: Tenant) -> Option<(Ticket, Costs, Instant)> {
        let line = self.lines.get_mut(&tenant)?;
        while let Some(&ticket) = line.tickets.front() {
            if let Some(waiting) = self.waiting.get(&ticket) {
                return Some((ticket, waiting.costs, waiting.since));
            }
            line.tickets.pop_front();
            line.gone = line.gone.saturating_sub(1);
        }
        let Line { claimant, place, .. } = self.lines.remove(&tenant)?;
        self.all.swap_remove(place);
        if let Some(moved) = self.all.get(place).and_then(|moved| self.lines.get_mut(moved)) {
            moved.place = place;
        }
        let members = self.claimants.get_mut(&claimant)?;
        members.order.pop_front();
        if members.order.is_empty() {
            self.claimants.remove(&claimant);
            self.order.pop_front();
        }
        None
    }

    /// The first of the tenant's line is told something, and waits no more.
    fn tell(&mut self, tenant: Tenant, ticket: Ticket, told: Output) {
        let waited = self.waiting.remove(&ticket);
        if let (Some(line), Some(waited)) = (self.lines.get_mut(&tenant), waited) {
            line.tickets.pop_front();
            line.count(&waited.costs, u64::saturating_sub);
            self.claimants.get_mut(&line.claimant).expect("a line's claimant has members").waiting -= 1;
        }
        self.outputs.push_back(told);
    }
}

impl Line {
    fn count(&mut self, costs: &Costs, change: fn(u64, u64) -> u64) {
        for &(resource, amount) in costs.as_slice() {
            let wanted = &mut self.wanted[resource.index()];
            *wanted = change(*wanted, amount);
        }
    }
}

#[cfg(test)]
mod tests;

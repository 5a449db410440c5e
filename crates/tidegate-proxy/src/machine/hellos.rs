//! Hellos beyond their tenants' shares wait until there is something left over, and are told no only when they have
//! waited too long.
//!
//! To take a connection and refuse it at its hello costs some tens of microseconds, and a client that is refused at once
//! comes back at once: a core that refuses has little left to compute handshakes with. A hello that waits costs a file
//! and a few hundred bytes, and its client feels it.
//!
//! Each tenant has a line, first come, first served; claimants take turns, and within its turns so do the lines of one
//! source's made-up names. A hello that comes to a line waits behind those in it. The first of a line is asked for again
//! [a thousand times a second](Tuning::every), and whenever the core's second thread may soon have nothing to do. One whose
//! client has closed meanwhile is dropped in its turn, and takes none.
//!
//! Source: ours; see [`admission`](super::admission), which does the same for requests.

use core::time::Duration;
use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

use super::Resource;
use super::neighbours::{Claimant, Lane, Mode, Neighbours, Refusal, Second, Stage, Tenant, Verdict};

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// How often the lines are asked for again while the core is busy. 1 ms: a hello that its tenant may have after all
    /// waits no longer.
    pub every: Duration,
    /// Most that wait,
    pub waiting_max: usize,
    /// and of the thread's places for connections one in so many: each has a file.
    pub places_part: usize,
    /// Hellos that one turn looks at: at some ten microseconds for each that goes on, others wait 160 us.
    pub looked_at: usize,
    /// Ends of those that waited too long: at 20 us each, 1,000 in a second take 2 % of the core.
    pub ends: Limit,
    /// Bytes that a connection holds that goes on.
    pub memory: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(1),
            waiting_max: 4_096,
            places_part: 4,
            looked_at: 16,
            ends: Limit::new(Rate::per_s(1_000), 100),
            memory: 16 * 1024,
        }
    }
}

/// What is asked for a handshake that is expected to take `ns` and holds `memory` bytes.
#[must_use]
pub const fn costs(ns: u64, memory: u64) -> [(Resource, u64); 4] {
    [(Resource::Handshakes, 1), (Resource::HandshakeTime, ns), (Resource::Connections, 1), (Resource::Memory, memory)]
}

/// Leave to go on: all that was asked for was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leave {
    /// Where.
    pub lane: Lane,
    /// Whether it may not be refused any more, as in [`Verdict::Admit`].
    pub owed: bool,
    /// Nanoseconds that were charged for the handshake.
    pub ns: u64,
}

/// The answer to a hello that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arrival {
    /// Do it.
    Admit(Leave),
    /// It is to [wait](Hellos::push).
    Wait,
    /// Say no, and why.
    Refuse(Refusal),
}

/// What became of one that waited.
#[derive(Debug)]
pub enum Output<T> {
    /// Do it.
    Go(T, Tenant, Leave),
    /// Its client has closed: nothing was charged.
    Gone(T, Tenant),
    /// It has waited too long: say no.
    Refuse(T, Tenant, Refusal),
}

/// One turn of those that wait: how far it has come.
#[derive(Debug)]
pub struct Turn {
    /// Looks that are left.
    left: usize,
    /// Lines in a row that could not go on.
    short: usize,
}

/// The hellos of one thread that wait: a FIFO queue for each tenant, the claimants served round robin, and so the queues of
/// each. `T` is a connection.
#[derive(Debug)]
pub struct Hellos<T> {
    tuning: Tuning,
    patience: Duration,
    most: usize,
    /// None is empty.
    lines: HashMap<Tenant, Line<T>, RandomState>,
    /// Claimants with a line, in the order of their turns.
    order: VecDeque<Claimant>,
    claimants: HashMap<Claimant, Members, RandomState>,
    waiting: usize,
    /// Ends of those that waited too long.
    ends: TokenBucket,
    /// The tick in which those that wait were counted as wanting.
    ticked: Instant,
}

#[derive(Debug)]
struct Line<T> {
    claimant: Claimant,
    hellos: VecDeque<Waiting<T>>,
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
struct Waiting<T> {
    connection: T,
    since: Instant,
}

impl<T> Hellos<T> {
    /// None waits, of a thread with so many `places`; one that does waits for `patience` before it is told no, and not at
    /// all if that is zero.
    #[must_use]
    pub fn new(tuning: Tuning, patience: Duration, places: usize, now: Instant) -> Self {
        let mut made = Self {
            tuning,
            patience,
            most: 0,
            lines: HashMap::default(),
            order: VecDeque::new(),
            claimants: HashMap::default(),
            waiting: 0,
            ends: TokenBucket::empty(tuning.ends, now),
            ticked: now,
        };
        made.set_places(places);
        made
    }

    /// Another patience; for those that wait as well.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// The thread has so many places now.
    pub fn set_places(&mut self, places: usize) {
        self.most = self.tuning.waiting_max.min(places / self.tuning.places_part);
    }

    /// How many wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.waiting
    }

    /// Whether none waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// A hello of `tenant` comes. Whether it `may_wait` is up to what it came with.
    pub fn arrive(
        &mut self,
        limiter: &mut Neighbours,
        tenant: Tenant,
        may_wait: bool,
        second: Second,
        now: Instant,
    ) -> Arrival {
        let ns = limiter.expected_cost(tenant, Resource::HandshakeTime);
        let costs = costs(ns, self.tuning.memory);
        let waits = limiter.config().mode == Mode::Restrict && !self.patience.is_zero();
        let is_behind = waits && self.lines.contains_key(&tenant);
        let has_room = waits && may_wait && self.has_room(limiter.claimant(tenant));
        if is_behind && has_room {
            limiter.await_all(tenant, &costs, now);
            return Arrival::Wait;
        }
        if is_behind {
            return Arrival::Refuse(self.refusal(limiter, tenant, Resource::HandshakeTime, now));
        }
        let verdict = if has_room {
            limiter.try_hello(tenant, &costs, second, now)
        } else {
            Some(limiter.try_take_or_spare(tenant, Stage::Hello, &costs, second.has_spare, now))
        };
        match verdict {
            Some(Verdict::Admit { lane, owed }) => Arrival::Admit(Leave { lane, owed, ns }),
            Some(Verdict::Refuse(refusal)) => Arrival::Refuse(refusal),
            None => Arrival::Wait,
        }
    }

    /// Whether one more of the claimant may wait: fewer of it do than all lines leave room for. So one takes half of
    /// the room at most, however many names it has, and others find some.
    fn has_room(&self, claimant: Claimant) -> bool {
        let own = self.claimants.get(&claimant).map_or(0, |members| members.waiting);
        own < self.most.saturating_sub(self.waiting)
    }

    /// One of `tenant` that is told to wait does so from now on.
    pub fn push(&mut self, limiter: &Neighbours, tenant: Tenant, connection: T, now: Instant) {
        let Self { lines, order, claimants, .. } = self;
        let line = lines.entry(tenant).or_insert_with(|| {
            let claimant = limiter.claimant(tenant);
            let members = claimants.entry(claimant).or_insert_with(|| {
                order.push_back(claimant);
                Members::default()
            });
            members.order.push_back(tenant);
            Line { claimant, hellos: VecDeque::new() }
        });
        line.hellos.push_back(Waiting { connection, since: now });
        claimants.get_mut(&line.claimant).expect("a line's claimant has members").waiting += 1;
        self.waiting += 1;
    }

    /// When to begin the next [`turn`](Self::turn).
    #[must_use]
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        (!self.is_empty()).then(|| now + self.tuning.every)
    }

    /// Begins a turn of those that wait; what becomes of them is told by [`next`](Self::next).
    pub fn turn(&mut self, limiter: &mut Neighbours, now: Instant) -> Turn {
        if limiter.ticked() != self.ticked {
            self.ticked = limiter.ticked();
            for (&tenant, line) in &self.lines {
                let many = line.hellos.len() as u64;
                let ns = limiter.expected_cost(tenant, Resource::HandshakeTime).saturating_mul(many);
                limiter.await_all(tenant, &[(Resource::Handshakes, many), (Resource::HandshakeTime, ns)], now);
            }
        }
        Turn { left: self.tuning.looked_at, short: 0 }
    }

    /// What became of the next one, until there is no more to tell in this turn. `is_gone` says of a connection whether its
    /// client has closed.
    pub fn next(
        &mut self,
        turn: &mut Turn,
        limiter: &mut Neighbours,
        second: Second,
        is_gone: impl Fn(&T) -> bool,
        now: Instant,
    ) -> Option<Output<T>> {
        while turn.left > 0 && turn.short < self.lines.len() {
            turn.left -= 1;
            let (claimant, tenant, first) = self.first()?;
            if is_gone(&first.connection) {
                return self.take(claimant, false).map(|connection| Output::Gone(connection, tenant));
            }
            let is_late = now.since(first.since) >= self.patience;
            let ns = limiter.expected_cost(tenant, Resource::HandshakeTime);
            match limiter.try_hello_again(tenant, &costs(ns, self.tuning.memory), second, now) {
                Ok((lane, owed)) => {
                    turn.short = 0;
                    let leave = Leave { lane, owed, ns };
                    return self.take(claimant, true).map(|connection| Output::Go(connection, tenant, leave));
                }
                Err(resource) if is_late && self.ends.try_take(1, now).is_ok() => {
                    turn.short = 0;
                    let refusal = self.refusal(limiter, tenant, resource, now);
                    return self.take(claimant, true).map(|connection| Output::Refuse(connection, tenant, refusal));
                }
                Err(_) => {
                    turn.short += 1;
                    self.next_turn();
                }
            }
        }
        None
    }

    /// The claimant that has the most; those that wait give up their files before any connection that is served does.
    #[must_use]
    pub fn largest(&self) -> Option<Claimant> {
        self.claimants.iter().max_by_key(|(_, members)| members.waiting).map(|(claimant, _)| *claimant)
    }

    /// The next one of the claimant in its turns is not to wait any longer: say no.
    pub fn give_up(
        &mut self,
        claimant: Claimant,
        limiter: &mut Neighbours,
        now: Instant,
    ) -> Option<(T, Tenant, Refusal)> {
        let tenant = *self.claimants.get(&claimant)?.order.front()?;
        let connection = self.take(claimant, true)?;
        Some((connection, tenant, self.refusal(limiter, tenant, Resource::HandshakeTime, now)))
    }

    fn refusal(&self, limiter: &mut Neighbours, tenant: Tenant, resource: Resource, now: Instant) -> Refusal {
        limiter.turn_away(tenant, Stage::Hello, resource, &[], self.patience, now)
    }

    /// The one whose turn it is.
    fn first(&self) -> Option<(Claimant, Tenant, &Waiting<T>)> {
        let claimant = *self.order.front()?;
        let tenant = *self.claimants.get(&claimant)?.order.front()?;
        Some((claimant, tenant, self.lines.get(&tenant)?.hellos.front()?))
    }

    /// The line whose turn it was is the last one of its claimant from now on, and its claimant the last one.
    fn next_turn(&mut self) {
        let Some(members) = self.order.front().and_then(|claimant| self.claimants.get_mut(claimant)) else { return };
        members.order.rotate_left(1);
        self.order.rotate_left(1);
    }

    /// Takes the first one of the claimant's line whose turn it is; whether it `takes_turn` or leaves it to the next one. A
    /// line that is empty then goes, and so does a claimant without a line.
    fn take(&mut self, claimant: Claimant, takes_turn: bool) -> Option<T> {
        let members = self.claimants.get_mut(&claimant)?;
        let tenant = *members.order.front()?;
        let line = self.lines.get_mut(&tenant)?;
        let taken = line.hellos.pop_front()?;
        members.waiting -= 1;
        self.waiting -= 1;
        if line.hellos.is_empty() {
            self.lines.remove(&tenant);
            members.order.pop_front();
        } else if takes_turn {
            members.order.rotate_left(1);
        }
        let is_last = members.order.is_empty();
        let at = if is_last || takes_turn { self.order.iter().position(|other| *other == claimant) } else { None };
        let at = at.and_then(|at| self.order.remove(at));
        if is_last {
            self.claimants.remove(&claimant);
        } else {
            self.order.extend(at);
        }
        Some(taken.connection)
    }
}

#[cfg(test)]
mod tests;

//! Whose task runs next on a thread that several tenants share.
//!
//! A thread runs its tasks in the order in which they became ready, and a tenant within its share can have hundreds that
//! are, each for a moment: together they are milliseconds for which every other tenant waits. So who has had his part of
//! the last moment waits in a line with each further task; others run as they come. The lines get the thread by turns
//! between two looks at the sockets, a [quantum](Tuning::quantum_ns) in all, and who has had the least of it comes first.
//!
//! Source: Goyal, Guo and Vin, "A Hierarchical CPU Scheduler for Multimedia Operating Systems" (OSDI 1996), §3: start-time
//! fair queueing. Departures: what a task takes is known afterwards, so it is charged then; and a tenant's line begins when
//! its part of a moment is used up. All names that one source makes up are one tenant here: each of them has next to
//! nothing.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;

use super::neighbours::Claimant;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// In a moment of this length a tenant's tasks run as they come
    pub moment: Duration,
    /// until they have taken so many nanoseconds. A tenth: ten such tenants fill the thread.
    pub free_ns: u64,
    /// What the lines get between two looks at the sockets: a look costs some microseconds, and who comes waits so long.
    pub quantum_ns: u64,
    /// Who has had the thread to himself for so long waits for nobody: turns cost a little.
    pub alone: Duration,
    /// Tenants of which it is remembered what they had, beside those with a line. Whoever is forgotten begins anew.
    pub remembered: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            moment: Duration::from_millis(1),
            free_ns: 100_000,
            quantum_ns: 100_000,
            alone: Duration::from_millis(100),
            remembered: 4_096,
        }
    }
}

/// A task takes so long at least.
const LEAST_NS: u64 = 1_000;

/// Tells a task that waits apart from others.
pub type Ticket = u64;

/// The time that each tenant used of a thread, and the queues of tasks that wait for it.
#[derive(Debug)]
pub struct Turns {
    tuning: Tuning,
    /// When the moment began.
    began: Instant,
    moment: u64,
    tenants: HashMap<Claimant, Part, RandomState>,
    /// Those with a line, by what they had.
    order: BTreeSet<(u64, Claimant)>,
    lines: HashMap<Claimant, VecDeque<Ticket>, RandomState>,
    /// What the one that was last in turn had had: who comes to a line has had no less.
    virtual_ns: u64,
    waiting: HashMap<Ticket, Claimant, RandomState>,
    next: Ticket,
    /// Whose task ran last, and when he followed on another.
    last: (Claimant, Instant),
}

/// What a tenant had.
#[derive(Clone, Copy, Default, Debug)]
struct Part {
    /// The moment that `used_ns` is of.
    moment: u64,
    used_ns: u64,
    virtual_ns: u64,
    /// Mean of what a task takes.
    mean_ns: u64,
    /// Tasks that were let go from its queue and have not run.
    granted: u32,
}

impl Turns {
    /// Nobody was here.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            began: Instant::ZERO,
            moment: 0,
            tenants: HashMap::default(),
            order: BTreeSet::new(),
            lines: HashMap::default(),
            virtual_ns: 0,
            waiting: HashMap::default(),
            next: 0,
            last: (Claimant::OTHER, Instant::ZERO),
        }
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a task of the tenant has to wait.
    #[must_use]
    #[inline]
    pub fn is_over(&self, tenant: Claimant, now: Instant) -> bool {
        now < self.began + self.tuning.moment
            && self.tenants.get(&tenant).is_some_and(|part| self.used(part) >= self.tuning.free_ns)
            && !self.is_alone(tenant, now)
    }

    #[inline]
    fn used(&self, part: &Part) -> u64 {
        if part.moment == self.moment { part.used_ns } else { 0 }
    }

    #[inline]
    fn is_alone(&self, tenant: Claimant, now: Instant) -> bool {
        tenant == self.last.0 && now >= self.last.1 + self.tuning.alone
    }

    /// A task of the tenant waits from now on.
    pub fn wait(&mut self, tenant: Claimant) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, tenant);
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.push_back(ticket);
            return ticket;
        }
        let part = self.tenants.entry(tenant).or_default();
        part.virtual_ns = part.virtual_ns.max(self.virtual_ns);
        self.order.insert((part.virtual_ns, tenant));
        self.lines.insert(tenant, VecDeque::from([ticket]));
        ticket
    }

    /// Whoever waits with `ticket` has gone. Its place in the line goes when its turn comes.
    pub fn leave(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// A task of the tenant ran for so many nanoseconds, until `now`.
    #[inline]
    pub fn ran(&mut self, tenant: Claimant, ns: u64, now: Instant) {
        if tenant != self.last.0 {
            self.last = (tenant, now);
        } else if self.waiting.is_empty() && self.is_alone(tenant, now) {
            return;
        }
        if now >= self.began + self.tuning.moment {
            self.began = now;
            self.moment += 1;
            if self.tenants.len() > self.tuning.remembered {
                let lines = &self.lines;
                self.tenants.retain(|tenant, _| lines.contains_key(tenant));
            }
        }
        let moment = self.moment;
        let part = self.tenants.entry(tenant).or_default();
        if part.moment != moment {
            (part.moment, part.used_ns) = (moment, 0);
        }
        part.used_ns += ns;
        part.mean_ns = part.mean_ns - part.mean_ns / 8 + ns / 8;
        // Time outside of the queue is nobody's loss: else a tenant that used a little for hours would wait for hours.
        if part.granted > 0 {
            part.granted -= 1;
            part.virtual_ns += ns;
        }
    }

    /// There was a look at the sockets: tasks that may run now, in their order, are appended to `go`.
    pub fn turn(&mut self, go: &mut Vec<Ticket>, now: Instant) {
        let mut left = self.tuning.quantum_ns;
        while left > 0 {
            let Some((virtual_ns, tenant)) = self.order.pop_first() else { return };
            let Some(line) = self.lines.get_mut(&tenant) else { continue };
            let next = core::iter::from_fn(|| line.pop_front()).find(|next| self.waiting.remove(next).is_some());
            let is_last = line.is_empty();
            if is_last {
                self.lines.remove(&tenant);
            }
            let part = self.tenants.entry(tenant).or_default();
            let mean_ns = part.mean_ns.max(LEAST_NS);
            part.granted += u32::from(next.is_some());
            let used_ns = part.virtual_ns;
            if let Some(next) = next {
                go.push(next);
                self.virtual_ns = self.virtual_ns.max(virtual_ns);
                // Nobody waits for who is alone.
                if !self.is_alone(tenant, now) {
                    left = left.saturating_sub(mean_ns);
                }
            }
            if !is_last {
                // Until it has run it counts for what such a task usually takes: others come between.
                let taken = if next.is_some() { mean_ns } else { 0 };
                self.order.insert((used_ns.max(virtual_ns) + taken, tenant));
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Whose handshake begins next on a thread.
//!
//! A handshake is the longest task there is, and those that a tenant may begin at once, its share saved up for some ticks,
//! take tens of milliseconds together. So they begin one at a time, with a look at the sockets before each, and tenants
//! take turns: a tenant's next one waits for the one that is being made and for one of each other tenant, however many
//! those ask for. All names that one source makes up are one tenant here.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::neighbours::Claimant;

/// Tells a handshake that waits apart from others.
pub type Ticket = u64;

/// What follows on a handshake that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// The next one begins when it ends.
    Next,
    /// It is one more than begin at once: nobody follows on it.
    Nobody,
}

/// A thread's handshakes that have not begun. Each waits on a connection's place, so there are no more than these, and those
/// that have gone since the last turn.
#[derive(Debug)]
pub struct Starts {
    /// So many begin at once.
    at_once: usize,
    /// So many begin now.
    begin: usize,
    /// Tenants for whom somebody waits, in the order of their turns.
    order: VecDeque<Claimant>,
    /// Of those, who waits; nobody's queue is empty.
    tenants: HashMap<Claimant, VecDeque<Ticket>, RandomState>,
    /// Those who have not gone.
    waiting: HashSet<Ticket, RandomState>,
    next: Ticket,
}

impl Starts {
    /// Nobody waits; `at_once` may begin together.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self {
            at_once,
            begin: 0,
            order: VecDeque::new(),
            tenants: HashMap::default(),
            waiting: HashSet::default(),
            next: 0,
        }
    }

    /// Whether nobody waits, and none begins.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.begin == 0
    }

    /// How many begin now.
    #[must_use]
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// One more of `tenant`: `None` if it begins at once, else it waits.
    pub fn ask(&mut self, tenant: Claimant) -> Option<Ticket> {
        if self.begin < self.at_once {
            self.begin += 1;
            return None;
        }
        let ticket = self.next;
        self.next += 1;
        let queue = self.tenants.entry(tenant).or_default();
        if queue.is_empty() {
            self.order.push_back(tenant);
        }
        queue.push_back(ticket);
        self.waiting.insert(ticket);
        Some(ticket)
    }

    /// Whoever waits with `ticket` has gone. Its place in the queue goes when its turn comes.
    pub fn leave(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// One that began ends; returns the one that begins then, with the same to follow.
    #[must_use]
    pub fn end(&mut self, follow: Follow) -> Option<Ticket> {
        let next = match follow {
            Follow::Next => self.take_next(),
            Follow::Nobody => None,
        };
        self.begin -= usize::from(next.is_none());
        next
    }

    /// Lets the next one begin though as many do as may at once. [`Nobody`](Follow::Nobody) follows on it.
    #[must_use]
    pub fn one_more(&mut self) -> Option<Ticket> {
        let next = self.take_next();
        self.begin += usize::from(next.is_some());
        next
    }

    /// Takes the next one in turn off its queue. Who has gone takes no turn, and costs its tenant none.
    fn take_next(&mut self) -> Option<Ticket> {
        loop {
            let tenant = self.order.pop_front()?;
            let Some(queue) = self.tenants.get_mut(&tenant) else { continue };
            let next = core::iter::from_fn(|| queue.pop_front()).find(|next| self.waiting.remove(next));
            if queue.is_empty() {
                self.tenants.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::super::neighbours::{Neighbours, NeighboursConfig};
    use super::*;

    fn tenants() -> [Claimant; 2] {
        let mut limiter = Neighbours::new(NeighboursConfig::default(), Instant::ZERO);
        ["noisy", "quiet"].map(|name| Claimant::Tenant(limiter.tenant(name, Instant::ZERO)))
    }

    /// Whose turns come, one behind another.
    fn turns(starts: &mut Starts) -> Vec<Ticket> {
        core::iter::from_fn(|| starts.end(Follow::Next)).collect()
    }

    #[test]
    fn a_tenant_that_asks_for_one_waits_for_one_of_each_other() {
        let (mut starts, [noisy, quiet]) = (Starts::new(1), tenants());
        assert_eq!(starts.ask(noisy), None);
        let noisy_ones: Vec<_> = (0..3).map(|_| starts.ask(noisy).unwrap()).collect();
        let quiet_one = starts.ask(quiet).unwrap();
        assert_eq!(turns(&mut starts), [noisy_ones[0], quiet_one, noisy_ones[1], noisy_ones[2]]);
        assert!(starts.is_empty() && starts.tenants.is_empty() && starts.order.is_empty());
    }

    #[test]
    fn who_has_gone_takes_no_turn_and_costs_his_tenant_none() {
        let (mut starts, [noisy, quiet]) = (Starts::new(1), tenants());
        assert_eq!(starts.ask(noisy), None);
        let [gone, goes] = [(); 2].map(|()| starts.ask(noisy).unwrap());
        let last = starts.ask(quiet).unwrap();
        starts.leave(gone);
        assert_eq!(turns(&mut starts), [goes, last]);
        assert!(starts.is_empty() && starts.waiting.is_empty());
    }

    #[test]
    fn one_more_than_begin_at_once_is_followed_by_nobody() {
        let (mut starts, [noisy, quiet]) = (Starts::new(2), tenants());
        assert_eq!(starts.one_more(), None, "nobody waits");
        assert_eq!([starts.ask(noisy), starts.ask(noisy)], [None; 2]);
        let [extra, next] = [noisy, quiet].map(|tenant| starts.ask(tenant).unwrap());
        assert_eq!((starts.one_more(), starts.begin()), (Some(extra), 3));
        assert_eq!((starts.end(Follow::Nobody), starts.begin()), (None, 2));
        assert_eq!((starts.end(Follow::Next), starts.begin()), (Some(next), 2));
    }
}

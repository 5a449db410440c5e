//! From one division of a contract to the next, so that no moment has more than the whole of it in force.
//!
//! What shrinks is put in force first; what grows is put in force only from room that is certainly free: a part that a node
//! may still hold counts until the node acknowledged a newer one, or until its lease has ended there. So the sum of all
//! parts that may be in force anywhere is at most the contract, with orders and answers lost, doubled or late, and with
//! nodes that died or were cut off. After its lease a node does what its policy for lapsed parts says; with any other than
//! to let nothing pass, a node that is cut off is no longer bound by this law.
//!
//! The end of a lease is stated on the node's own clock, counted from a reading of that clock. An order that is late does
//! not move it, so no bound on the delay of orders is assumed; only that clocks go equally fast to one in a thousand.

use core::time::Duration;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;

use super::portion::{Portion, WHOLE, sum};

/// Clocks differ in speed by at most one part in so many; quartz does by less than one in ten thousand.
const DRIFT: u64 = 1_000;
/// Parts that one node may hold, as far as is known. At the bound the node gets nothing new until it answers or a lease ends;
/// leases are renewed all the same.
const POSSIBLE_MAX: usize = 32;
const US: u64 = 1_000;

/// The longest loan among nodes that lend: a second, and what clocks and rounding add.
pub const LOAN: Duration = Duration::from_millis(1_010);

/// How long parts hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepsConfig {
    /// Without a renewal.
    pub lease: Duration,
    /// A part is renewed so often.
    pub renew_every: Duration,
    /// An order without an answer is sent again after this.
    pub answer_within: Duration,
    /// What a node lent to others is in force there for so long after its own lease: the longest loan, or 0.
    #[serde(default)]
    pub linger: Duration,
}

impl Default for StepsConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            answer_within: Duration::from_secs(2),
            linger: Duration::ZERO,
        }
    }
}

/// A part to put in force at a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Put<K> {
    /// Where.
    pub node: K,
    /// Fences older ones there; the same one again is a renewal.
    pub revision: u64,
    /// The part, as a share of the contract
    pub portion: Portion,
    /// and as a limit of its own.
    pub limit: Limit,
    /// When it ends, on the node's own clock.
    pub until_us: u64,
}

/// A part that a node may hold.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Possible {
    revision: u64,
    /// As it was sent,
    limit: Limit,
    /// and what that is of the contract now.
    portion: Portion,
    /// It certainly has ended by then.
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    revision: u64,
    again_at: Instant,
}

#[derive(Clone, Debug, Default)]
struct Holder {
    wanted: Portion,
    /// By revision; at most [`POSSIBLE_MAX`].
    may_hold: Vec<Possible>,
    acknowledged: Option<u64>,
    /// It holds a part of this revision that is not ours, or of ours that is not to be renewed.
    fenced: u64,
    unanswered: Option<Sent>,
    renew_at: Instant,
    /// Its clock showed this at that instant or before; `None`: it is not there, and gets nothing.
    clock: Option<(Instant, u64)>,
}

/// One contract's parts at its nodes, which `K` names.
#[derive(Clone, Debug)]
pub struct Steps<K> {
    config: StepsConfig,
    contract: Limit,
    nodes: BTreeMap<K, Holder>,
    revision: u64,
    /// Nothing is sent before: what others granted before holds until then.
    quiet_until: Instant,
    #[cfg(test)]
    flaw: Option<tests::Flaw>,
}

impl<K: Ord + Clone> Steps<K> {
    /// No node holds a part, but for what others granted: their leases have ended at `quiet_until`. Revisions are above
    /// `above`.
    #[must_use]
    pub fn new(config: StepsConfig, contract: Limit, quiet_until: Instant, above: u64) -> Self {
        Self {
            config,
            contract,
            nodes: BTreeMap::new(),
            revision: above,
            quiet_until,
            #[cfg(test)]
            flaw: None,
        }
    }

    /// Another contract, from now on; [`Steps::want`] follows with its parts. With a smaller one the sum of what is in force
    /// is above it until those that shrink have answered, or their leases have ended.
    pub fn set_contract(&mut self, contract: Limit) {
        let before = core::mem::replace(&mut self.contract, contract);
        for possible in self.nodes.values_mut().flat_map(|holder| &mut holder.may_hold) {
            possible.portion = possible.portion.under(contract, before);
        }
    }

    /// Something of parts changed that is not their limit: what is sent from now on has new revisions.
    pub fn reissue(&mut self) {
        for holder in self.nodes.values_mut() {
            holder.fenced = holder.fenced.max(self.revision);
        }
    }

    /// The contract.
    #[must_use]
    pub fn contract(&self) -> Limit {
        self.contract
    }

    /// The division that is wanted; nodes that are not named get nothing. What exceeds the contract is never granted.
    pub fn want(&mut self, parts: &BTreeMap<K, Portion>) {
        for (node, holder) in &mut self.nodes {
            holder.wanted = parts.get(node).copied().unwrap_or_default();
        }
        for (node, &portion) in parts {
            self.nodes.entry(node.clone()).or_default().wanted = portion;
        }
    }

    /// A node is there: its clock showed `clock_us` at `now` or before.
    pub fn on_clock(&mut self, node: &K, clock_us: u64, now: Instant) {
        self.nodes.entry(node.clone()).or_default().clock = Some((now, clock_us));
    }

    /// A node is gone: nothing is sent to it, and what it may hold counts until its leases have ended.
    pub fn on_gone(&mut self, node: &K) {
        let Some(holder) = self.nodes.get_mut(node) else { return };
        (holder.clock, holder.unanswered) = (None, None);
        #[cfg(test)]
        if self.flaw == Some(tests::Flaw::GoneHoldsNothing) {
            holder.may_hold.clear();
        }
    }

    /// A node answered: it holds the part of this revision, or a newer one.
    pub fn on_put(&mut self, node: &K, revision: u64) {
        let Some(holder) = self.nodes.get_mut(node) else { return };
        holder.may_hold.retain(|possible| possible.revision >= revision);
        holder.acknowledged = holder.acknowledged.max(Some(revision));
        if holder.unanswered.is_some_and(|sent| sent.revision <= revision) {
            holder.unanswered = None;
        }
    }

    /// A node says that it holds no part: it was started again, and gets its own again at once.
    pub fn on_lost(&mut self, node: &K, now: Instant) {
        if let Some(holder) = self.nodes.get_mut(node)
            && holder.acknowledged.take().is_some()
        {
            holder.renew_at = now;
        }
    }

    /// An order failed: it may have had its effect or not. It is sent again, but not at once.
    pub fn on_failed(&mut self, node: &K, revision: u64, now: Instant) {
        let Some(holder) = self.nodes.get_mut(node) else { return };
        if let Some(sent) = holder.unanswered.as_mut().filter(|sent| sent.revision == revision) {
            sent.again_at = sent.again_at.min(now + self.config.answer_within / 4);
        }
        #[cfg(test)]
        if self.flaw == Some(tests::Flaw::FailedIsUndone) {
            holder.may_hold.retain(|possible| possible.revision != revision);
        }
    }

    /// A node refused an order for it holds another's part, of this revision. Ours are of newer ones from now on.
    pub fn on_fenced(&mut self, node: &K, revision: u64, holds: u64, now: Instant) {
        self.revision = self.revision.max(holds);
        if let Some(holder) = self.nodes.get_mut(node) {
            holder.fenced = holder.fenced.max(holds);
        }
        self.on_failed(node, revision, now);
    }

    /// What may be in force at a node at most.
    #[must_use]
    pub fn most(&self, node: &K) -> Portion {
        self.nodes.get(node).map_or(Portion::NONE, Holder::most)
    }

    /// What a node acknowledged last, and when that certainly has ended.
    #[must_use]
    pub fn acknowledged(&self, node: &K) -> Option<(Limit, Instant)> {
        let holder = self.nodes.get(node)?;
        let held = holder.may_hold.iter().find(|possible| Some(possible.revision) == holder.acknowledged)?;
        Some((held.limit, held.until))
    }

    /// What a node is to have.
    #[must_use]
    pub fn wanted(&self, node: &K) -> Portion {
        self.nodes.get(node).map_or(Portion::NONE, |holder| holder.wanted)
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// True if every node certainly holds what is wanted, and nothing else.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.nodes.keys().all(|node| self.is_settled_at(node))
    }

    /// True if a node certainly holds what is wanted there, and nothing else.
    #[must_use]
    pub fn is_settled_at(&self, node: &K) -> bool {
        let Some(holder) = self.nodes.get(node) else { return true };
        match &holder.may_hold[..] {
            [] => holder.wanted == Portion::NONE,
            [only] => only.limit == holder.wanted.limit(self.contract) && Some(only.revision) == holder.acknowledged,
            _ => false,
        }
    }

    /// When to poll again if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let of = |holder: &Holder| {
            let ends = holder.may_hold.iter().map(|possible| possible.until).min();
            let renews = (!holder.may_hold.is_empty() && holder.wanted != Portion::NONE).then_some(holder.renew_at);
            let again = holder.unanswered.map(|sent| sent.again_at).or(renews).filter(|_| holder.clock.is_some());
            [ends, again].into_iter().flatten().min()
        };
        // Before the end of the quiet there is something to do at its end.
        let quiet = self.nodes.values().any(|holder| holder.may_hold.is_empty() && holder.wanted != Portion::NONE);
        let quiet = (quiet && self.quiet_until > Instant::ZERO).then_some(self.quiet_until);
        self.nodes.values().filter_map(of).map(|at| at.max(self.quiet_until)).chain(quiet).min()
    }

    /// The next order; call until `None` after every event and timeout.
    pub fn poll(&mut self, now: Instant) -> Option<Put<K>> {
        if now < self.quiet_until {
            return None;
        }
        // It has passed: nothing waits for it any more.
        self.quiet_until = Instant::ZERO;
        self.lapse(now);
        let room = self.room();
        let mut newest = self.revision;
        let mut order = None;
        // Parts that shrink or stay, then those that grow: what the former leave is not there before they answered.
        let mut waits_for_shrinking = false;
        for (node, holder) in &mut self.nodes {
            let most = holder.most();
            if !holder.wanted.is_within(most) {
                continue;
            }
            order = holder.put(node, holder.wanted, self.contract, &mut newest, self.config, now);
            if order.is_some() {
                break;
            }
            waits_for_shrinking |= holder.wanted != most && holder.clock.is_some();
        }
        if order.is_none() {
            for (node, holder) in &mut self.nodes {
                let most = holder.most();
                if holder.wanted.is_within(most) {
                    continue;
                }
                let part = holder.wanted.least(most.plus(room));
                let held = holder.may_hold.last().map_or(Portion::NONE, |last| last.portion);
                // A part of the way only if nobody who is there is about to leave more room.
                let next = if part == holder.wanted || !waits_for_shrinking { part } else { held.least(part) };
                order = holder.put(node, next, self.contract, &mut newest, self.config, now);
                if order.is_some() {
                    break;
                }
            }
        }
        self.revision = newest;
        order
    }

    /// What no node may hold.
    fn room(&self) -> Portion {
        let whole = Portion { rate_shares: WHOLE, burst: self.contract.burst };
        #[cfg(test)]
        if self.flaw == Some(tests::Flaw::GrowsAtOnce) {
            return whole;
        }
        let most: Vec<Portion> = self.nodes.values().map(Holder::most).collect();
        whole.beyond(sum(&most))
    }

    /// Leases that have ended.
    fn lapse(&mut self, now: Instant) {
        for holder in self.nodes.values_mut() {
            holder.may_hold.retain(|possible| possible.until > now);
        }
        self.nodes.retain(|_, holder| {
            holder.clock.is_some() || holder.wanted != Portion::NONE || !holder.may_hold.is_empty()
        });
    }
}

impl Holder {
    /// The most that may be in force there.
    fn most(&self) -> Portion {
        self.may_hold.iter().fold(Portion::NONE, |most, possible| most.most(possible.portion))
    }

    /// Sends `portion`, unless it is there already and not to be renewed, or an answer is waited for.
    fn put<K: Clone>(
        &mut self,
        node: &K,
        portion: Portion,
        contract: Limit,
        newest: &mut u64,
        config: StepsConfig,
        now: Instant,
    ) -> Option<Put<K>> {
        let (read_at, clock_us) = self.clock?;
        if self.unanswered.is_some_and(|sent| sent.again_at > now)
            || (portion == Portion::NONE && self.may_hold.is_empty())
        {
            return None;
        }
        let limit = portion.limit(contract);
        let is_full = self.may_hold.len() >= POSSIBLE_MAX;
        let fenced = self.fenced;
        let same = self.may_hold.last_mut().filter(|last| is_full || (last.limit == limit && last.revision > fenced));
        let is_there = same.as_ref().is_some_and(|same| Some(same.revision) == self.acknowledged);
        // What lets nothing pass is not renewed: after its lease nobody publishes there.
        let is_answered = self.unanswered.is_none() && !is_full;
        if is_there && is_answered && (self.renew_at > now || portion == Portion::NONE) {
            return None;
        }
        // From the reading of the node's clock to the end of the lease.
        let span_ns = now.nanos_since(read_at).saturating_add(nanos(config.lease));
        let counted_ns = span_ns.saturating_add(nanos(config.linger));
        let until = read_at.plus_nanos(counted_ns.saturating_add(counted_ns.div_ceil(DRIFT)));
        let sent = if let Some(same) = same {
            same.until = same.until.max(until);
            *same
        } else {
            *newest += 1;
            let fresh = Possible { revision: *newest, limit, portion, until };
            self.may_hold.push(fresh);
            fresh
        };
        self.unanswered = Some(Sent { revision: sent.revision, again_at: now + config.answer_within });
        self.renew_at = now + config.renew_every;
        let until_us = clock_us.saturating_add(span_ns / US);
        let Possible { revision, limit, portion, .. } = sent;
        Some(Put { node: node.clone(), revision, portion, limit, until_us })
    }
}

#[cfg(test)]
mod tests;

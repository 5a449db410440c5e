//! A node's parts of topics' limits.
//!
//! Where a topic's publishers are on several nodes, its limit is divided among them: each has a part, a rate and a burst
//! of its own, and the sum over the nodes is the whole. A part is volatile: it is leased, it stands beside the contract
//! that a person set, and it goes with the process.
//! Source: SRTM, §4.2 step 3 and §5.3. Departure: parts are leased and fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use tidegate_core::lease::OnLapse;
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate};
use tidegate_wire::nsq::TopicName;

use super::lending::{LendState, Split};
use super::limiter::{PartRule, Unit};
use super::part_lease::PartLease;

/// Parts of a shard, and as many revisions of parts that were removed. At this bound a new part is refused, and of the
/// removed ones it is only known that no order of an older revision than theirs is taken.
pub const PARTS_MAX: usize = 65_536;

/// The part of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartGrant {
    /// The topic, which need not exist.
    pub topic: TopicName,
    /// Its rate and burst; a rate of zero lets nothing pass that is not there.
    pub limit: Limit,
    /// What one token buys: the same as in the contract, if there is one.
    pub unit: Unit,
    /// How the burst is split among brokers that lend each other tokens; `None`: the part is a static one.
    pub split: Option<Arc<Split>>,
}

/// How far an order for parts is carried out. Each step is taken by all shards before the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartStep {
    /// It is looked at, and nothing changes.
    Check,
    /// Parts that shrink do; of one that shrinks and grows, what shrinks.
    Shrink,
    /// Everything.
    All,
}

/// An order that puts parts in force, or renews their leases: then revision and parts are the same.
#[derive(Clone, Debug)]
pub struct PartOrder {
    /// An order never replaces a part of a newer revision.
    pub revision: u64,
    /// How long the parts hold, from when the shard is told.
    pub lease: Duration,
    /// They hold no longer than until then, on the shard's clock; and nothing is put in force after it.
    pub until: Option<Instant>,
    /// What holds after that.
    pub on_lapse: OnLapse,
    /// At most one for each topic. A shard looks at those of its own topics.
    pub parts: Arc<[PartGrant]>,
    /// How far to go.
    pub step: PartStep,
}

impl PartOrder {
    /// When the leases end; `None` if they have.
    pub(super) fn ends(&self, now: Instant) -> Option<Instant> {
        let ends = now + self.lease;
        Some(self.until.map_or(ends, |until| ends.min(until))).filter(|ends| *ends > now)
    }
}

/// A part as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartStatus {
    /// Its topic.
    pub topic: TopicName,
    /// The rate and burst that rule the bucket; `None` if nothing does: the part has lapsed open, and no contract is set.
    pub in_force: Option<Limit>,
    /// The rate and burst of the part. More than what is in force if the contract has less, if the part has lapsed and
    /// holds everything, or before the last step of an order.
    pub limit: Limit,
    /// What one token buys.
    pub unit: Unit,
    /// The revision of its order.
    pub revision: u64,
    /// Until its lease ends; `None` if it has.
    pub lapses_in: Option<Duration>,
    /// What holds then.
    pub on_lapse: OnLapse,
    /// How it lends; `None` if no order asks for it.
    pub lends: Option<LendState>,
}

impl PartStatus {
    /// Whole milliseconds until its lease ends; `None` if it has.
    #[must_use]
    pub fn lapses_in_ms(&self) -> Option<u64> {
        self.lapses_in.map(|span| nanos(span) / 1_000_000)
    }
}

/// Why an order for parts changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartRefused {
    /// A newer order came before.
    #[error("the part of `{topic}` is of revision {holds}, which is newer")]
    Stale {
        /// The topic.
        topic: TopicName,
        /// The revision that holds.
        holds: u64,
    },
    /// An order of this revision said something else.
    #[error("revision {revision} gives `{topic}` another part; a change takes a new revision")]
    OtherContent {
        /// The topic.
        topic: TopicName,
        /// The revision.
        revision: u64,
    },
    /// The contract counts something else.
    #[error("the limit of `{topic}` does not count {}", word_of(*unit))]
    OtherUnit {
        /// The topic.
        topic: TopicName,
        /// As ordered.
        unit: Unit,
    },
    /// It came after the end of its lease.
    #[error("the order came after the end of its lease")]
    Late,
    /// The table of parts is full.
    #[error("a shard holds {bound} parts at most")]
    Full {
        /// [`PARTS_MAX`].
        bound: usize,
    },
    /// The part is in force but for what is lent of a larger one: that counts until it has come back.
    #[error("what is lent of `{topic}` has not come back yet; send the order again")]
    Lent {
        /// The topic.
        topic: TopicName,
    },
    /// There is no part to remove.
    #[error("`{topic}` has no part")]
    Nothing {
        /// The topic.
        topic: TopicName,
    },
}

fn word_of(unit: Unit) -> &'static str {
    match unit {
        Unit::Messages => "messages",
        Unit::Bytes => "bytes",
    }
}

/// A part that made a contract, as it outlives the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptPart {
    /// What was in force.
    pub limit: Limit,
    /// What one token buys.
    pub unit: Unit,
    /// The revision of its order.
    pub revision: u64,
}

/// A part of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    lease: PartLease,
    /// As ordered.
    limit: Limit,
    /// As far as the order was carried out.
    taken: Limit,
    unit: Unit,
    on_lapse: OnLapse,
    of_earlier_run: bool,
}

impl Part {
    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    pub(super) fn unit(&self) -> Unit {
        self.unit
    }

    pub(super) fn revision(&self) -> u64 {
        self.lease.revision()
    }

    /// Its lease has not ended.
    pub(super) fn is_leased(&self) -> bool {
        self.lease.ends().is_some()
    }

    /// It is what an earlier run left of the only limit of its topic.
    pub(super) fn is_of_earlier_run(&self) -> bool {
        self.of_earlier_run
    }

    /// What it does to the bucket; `None` if nothing.
    pub(super) fn rule(&self) -> Option<PartRule> {
        match (self.lease.ends(), self.on_lapse) {
            (Some(_), _) | (None, OnLapse::Local) => Some(PartRule::Limit(self.taken)),
            (None, OnLapse::Open) => None,
            (None, OnLapse::Closed) => Some(PartRule::Closed(self.taken)),
        }
    }

    /// From when on it does something else; [`Instant::MAX`] if it does not.
    pub(super) fn ends(&self) -> Instant {
        let ends = self.lease.ends().filter(|_| self.on_lapse != OnLapse::Local);
        ends.unwrap_or(Instant::MAX)
    }

    pub(super) fn status(&self, topic: &TopicName, in_force: Option<Limit>, now: Instant) -> PartStatus {
        PartStatus {
            topic: topic.clone(),
            in_force,
            limit: self.limit,
            unit: self.unit,
            revision: self.revision(),
            lapses_in: self.lease.ends().map(|ends| ends.since(now)),
            on_lapse: self.on_lapse,
            lends: None,
        }
    }

    /// To be remembered, where `in_force` holds. One that lets nothing pass lets nothing pass then either.
    pub(super) fn kept(&self, in_force: Limit) -> KeptPart {
        let limit = match self.rule() {
            Some(PartRule::Closed(_)) => Limit::new(Rate::ZERO, 0),
            _ => in_force,
        };
        KeptPart { limit, unit: self.unit, revision: self.revision() }
    }
}

/// The parts of a shard's topics, by topic, and the revisions of those that were removed.
#[derive(Debug)]
pub(super) struct Parts {
    by_topic: BTreeMap<TopicName, Part>,
    by_end: BTreeSet<(Instant, TopicName)>,
    removed: BTreeMap<TopicName, u64>,
    /// The newest revision that was forgotten.
    forgotten: u64,
    capacity: usize,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            by_topic: BTreeMap::new(),
            by_end: BTreeSet::new(),
            removed: BTreeMap::new(),
            forgotten: 0,
            capacity: PARTS_MAX,
        }
    }
}

impl Parts {
    pub(super) fn is_empty(&self) -> bool {
        self.by_topic.is_empty()
    }

    pub(super) fn get(&self, topic: &TopicName) -> Option<&Part> {
        self.by_topic.get(topic)
    }

    /// In order of their topics.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&TopicName, &Part)> {
        self.by_topic.iter()
    }

    /// Whether `order` may put `grant` in force.
    pub(super) fn check(&self, order: &PartOrder, grant: &PartGrant) -> Result<(), PartRefused> {
        let PartGrant { topic, limit, unit, .. } = grant;
        let Some(part) = self.by_topic.get(topic) else {
            return self.check_unheld(topic, order.revision);
        };
        if part.lease.fences(order.revision) {
            return Err(PartRefused::Stale { topic: topic.clone(), holds: part.revision() });
        }
        let same = (part.limit, part.unit, part.on_lapse) == (*limit, *unit, order.on_lapse);
        if part.revision() == order.revision && !same && !part.of_earlier_run {
            return Err(PartRefused::OtherContent { topic: topic.clone(), revision: order.revision });
        }
        Ok(())
    }

    /// The same of a topic without a part.
    fn check_unheld(&self, topic: &TopicName, revision: u64) -> Result<(), PartRefused> {
        match self.removed.get(topic).copied().unwrap_or(self.forgotten) {
            holds if revision < holds => Err(PartRefused::Stale { topic: topic.clone(), holds }),
            _ => Ok(()),
        }
    }

    /// Whether so many of the parts of `grants` that are new fit.
    pub(super) fn check_room<'a>(&self, grants: impl Iterator<Item = &'a PartGrant>) -> Result<(), PartRefused> {
        let new = grants.filter(|grant| !self.by_topic.contains_key(&grant.topic)).count();
        let fits = self.by_topic.len() + new <= self.capacity;
        if fits { Ok(()) } else { Err(PartRefused::Full { bound: self.capacity }) }
    }

    /// Puts `grant` down as `order` says, which was checked; `taken` of it is in force now, until `ends`.
    pub(super) fn put(&mut self, order: &PartOrder, grant: &PartGrant, taken: Limit, ends: Instant) {
        let topic = &grant.topic;
        let earlier = self.by_topic.get(topic).copied();
        if let Some(until) = earlier.and_then(|part| part.lease.ends()) {
            self.by_end.remove(&(until, topic.clone()));
        }
        let renewed = earlier.filter(|part| part.revision() == order.revision);
        let mut lease = renewed.map_or(PartLease::granted(order.revision, ends), |part| part.lease);
        lease.renew(ends);
        if let Some(ends) = lease.ends() {
            self.by_end.insert((ends, topic.clone()));
        }
        let part = Part {
            lease,
            limit: grant.limit,
            taken,
            unit: grant.unit,
            on_lapse: order.on_lapse,
            of_earlier_run: false,
        };
        self.by_topic.insert(topic.clone(), part);
        self.removed.remove(topic);
    }

    /// Takes the part of `topic` away, by an order of `revision`.
    ///
    /// # Errors
    /// If it is newer, or if there is none.
    pub(super) fn remove(&mut self, topic: &TopicName, revision: u64) -> Result<(), PartRefused> {
        let Some(part) = self.by_topic.get(topic).copied() else {
            self.check_unheld(topic, revision)?;
            return Err(PartRefused::Nothing { topic: topic.clone() });
        };
        if part.lease.fences(revision) {
            return Err(PartRefused::Stale { topic: topic.clone(), holds: part.revision() });
        }
        self.by_topic.remove(topic);
        if let Some(ends) = part.lease.ends() {
            self.by_end.remove(&(ends, topic.clone()));
        }
        if self.removed.len() >= self.capacity
            && let Some((_, revision)) = self.removed.pop_first()
        {
            self.forgotten = self.forgotten.max(revision);
        }
        self.removed.insert(topic.clone(), revision);
        Ok(())
    }

    /// Brings back what an earlier run left of the only limit of `topic`.
    pub(super) fn restore(&mut self, topic: &TopicName, kept: KeptPart) {
        if self.by_topic.len() >= self.capacity {
            return;
        }
        let KeptPart { limit, unit, revision } = kept;
        let lease = PartLease::lapsed(revision);
        let part = Part { lease, limit, taken: limit, unit, on_lapse: OnLapse::Local, of_earlier_run: true };
        self.by_topic.insert(topic.clone(), part);
    }

    /// When the next lease ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// The next topic with a part that has not been said to be at its end, with that end; call until `None`. It has not
    /// lapsed before [`lapse`](Self::lapse).
    pub(super) fn pop_ended(&mut self, now: Instant) -> Option<(Instant, TopicName)> {
        if self.by_end.first().is_none_or(|(ends, _)| *ends > now) {
            return None;
        }
        self.by_end.pop_first()
    }

    /// The lease of the part of `topic` has ended.
    pub(super) fn lapse(&mut self, topic: &TopicName) {
        if let Some(part) = self.by_topic.get_mut(topic) {
            part.lease.lapse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn grant(topic: &str, rate: u64) -> PartGrant {
        let limit = Limit::new(Rate::per_s(rate), 5);
        PartGrant { topic: TopicName::new(topic).unwrap(), limit, unit: Unit::Messages, split: None }
    }

    fn order(revision: u64, on_lapse: OnLapse) -> PartOrder {
        let lease = Duration::from_millis(100);
        PartOrder { revision, lease, until: None, on_lapse, parts: Arc::new([]), step: PartStep::All }
    }

    fn put(parts: &mut Parts, order: &PartOrder, grant: &PartGrant, now: Instant) -> Result<(), PartRefused> {
        parts.check(order, grant)?;
        parts.put(order, grant, grant.limit, order.ends(now).unwrap());
        Ok(())
    }

    #[test]
    fn an_older_order_never_replaces_a_newer_one() {
        let mut parts = Parts::default();
        let [first, second] = [grant("t", 1), grant("t", 2)];
        put(&mut parts, &order(5, OnLapse::Local), &first, at(0)).unwrap();
        let stale = PartRefused::Stale { topic: first.topic.clone(), holds: 5 };
        assert_eq!(put(&mut parts, &order(4, OnLapse::Local), &second, at(0)), Err(stale.clone()));
        let other = PartRefused::OtherContent { topic: first.topic.clone(), revision: 5 };
        assert_eq!(put(&mut parts, &order(5, OnLapse::Local), &second, at(0)), Err(other.clone()));
        assert_eq!(put(&mut parts, &order(5, OnLapse::Open), &first, at(0)), Err(other));
        assert_eq!(parts.remove(&first.topic, 4), Err(stale));
        parts.remove(&first.topic, 6).unwrap();
        let stale = PartRefused::Stale { topic: first.topic.clone(), holds: 6 };
        assert_eq!(put(&mut parts, &order(5, OnLapse::Local), &first, at(0)), Err(stale));
        put(&mut parts, &order(6, OnLapse::Local), &second, at(0)).unwrap();
    }

    #[test]
    fn a_renewal_moves_the_end_and_a_lapse_comes_once() {
        let mut parts = Parts::default();
        let part = grant("t", 1);
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(0)).unwrap();
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(50)).unwrap();
        assert_eq!(parts.next_end(), Some(at(150)));
        assert_eq!(parts.pop_ended(at(149)), None);
        assert_eq!(parts.pop_ended(at(150)), Some((at(150), part.topic.clone())));
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Limit(part.limit)));
        parts.lapse(&part.topic);
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Closed(part.limit)));
        assert_eq!((parts.pop_ended(at(200)), parts.next_end()), (None, None));
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(300)).unwrap();
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Limit(part.limit)), "it is renewed");
    }

    #[test]
    fn an_order_ends_when_it_says_at_the_latest() {
        let order = PartOrder { until: Some(at(70)), ..order(1, OnLapse::Local) };
        assert_eq!([at(0), at(69), at(70)].map(|now| order.ends(now)), [Some(at(70)), Some(at(70)), None]);
        assert_eq!(PartOrder { until: Some(at(500)), ..order }.ends(at(0)), Some(at(100)));
    }

    #[test]
    fn at_the_bound_parts_are_refused_and_old_orders_still_are() {
        let mut parts = Parts { capacity: 2, ..Parts::default() };
        let grants = ["a", "b", "c", "d"].map(|topic| grant(topic, 1));
        for grant in &grants[..2] {
            put(&mut parts, &order(3, OnLapse::Local), grant, at(0)).unwrap();
        }
        assert_eq!(parts.check_room(grants[..2].iter()), Ok(()));
        assert_eq!(parts.check_room(grants[1..3].iter()), Err(PartRefused::Full { bound: 2 }));
        for grant in &grants[..2] {
            parts.remove(&grant.topic, 4).unwrap();
        }
        put(&mut parts, &order(5, OnLapse::Local), &grants[2], at(0)).unwrap();
        parts.remove(&grants[2].topic, 6).unwrap();
        // What was known of `a` is forgotten, and of `d` nothing ever was: both count as of the newest that is forgotten.
        for topic in [&grants[0], &grants[3]] {
            let stale = PartRefused::Stale { topic: topic.topic.clone(), holds: 4 };
            assert_eq!(put(&mut parts, &order(3, OnLapse::Local), topic, at(0)), Err(stale));
        }
        assert!(matches!(
            put(&mut parts, &order(5, OnLapse::Local), &grants[2], at(0)),
            Err(PartRefused::Stale { .. })
        ));
        put(&mut parts, &order(4, OnLapse::Local), &grants[0], at(0)).unwrap();
    }

    #[test]
    fn a_part_of_an_earlier_run_is_replaced_by_any_newer_order() {
        let mut parts = Parts::default();
        let kept = KeptPart { limit: grant("t", 9).limit, unit: Unit::Messages, revision: 7 };
        let topic = TopicName::new("t").unwrap();
        parts.restore(&topic, kept);
        assert_eq!(parts.get(&topic).unwrap().rule(), Some(PartRule::Limit(kept.limit)));
        assert!(put(&mut parts, &order(6, OnLapse::Local), &grant("t", 1), at(0)).is_err());
        put(&mut parts, &order(7, OnLapse::Local), &grant("t", 1), at(0)).unwrap();
        assert!(!parts.get(&topic).unwrap().is_of_earlier_run());
    }
}

//! A node's parts of topics' limits.
//!
//! Where a topic's publishers are on several nodes, its limit is divided among them: each has a part, a rate and a burst
//! of its own, and the sum over the nodes is the whole. A part is leased and fenced by the core's [`Leases`], and stands
//! beside the contract that a person set. It outlives the process as [`KeptPart`], for as long as its lease says.
//! Source: SRTM, §4.2 step 3 and §5.3. Departure: parts are leased and fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
pub use tidegate_core::lease::OnLapse;
use tidegate_core::lease::{Entry, Grant, Leases, Refused, ends_on_another_clock};
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_wire::nsq::TopicName;

use super::lending::split::{LendState, Split, loans_over};
use super::limiter::{PartRule, Unit};

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
    /// They hold no longer than until then, on the shard's clock; and nothing is put in force after it. So an order that
    /// was held up on its way never holds for longer than its sender believes.
    pub until: Instant,
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
        Some((now + self.lease).min(self.until)).filter(|ends| *ends > now)
    }

    /// See [`ends_on_another_clock`].
    pub(super) fn is_of_another_clock(&self, now: Instant) -> bool {
        ends_on_another_clock(self.until, self.lease, now)
    }

    /// The parts as they are to outlive the process, of an order that comes at `now`; none if it is late.
    pub fn kept(&self, now: Instant) -> impl Iterator<Item = KeptPart> {
        let ends = self.ends(now);
        self.parts.iter().filter_map(move |grant| {
            let PartGrant { topic, limit, unit, split } = grant.clone();
            let (revision, until, on_lapse, lends) = (self.revision, ends?, self.on_lapse, split.is_some());
            Some(KeptPart { topic, limit, unit, revision, until, on_lapse, lends })
        })
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
    /// The end of its lease is not on this clock.
    #[error("the order ends later than its lease: it knows another clock than this one")]
    OtherClock,
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

/// A part as it outlives the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptPart {
    /// Its topic.
    pub topic: TopicName,
    /// Its rate and burst.
    pub limit: Limit,
    /// What one token buys.
    pub unit: Unit,
    /// The revision of its order.
    pub revision: u64,
    /// When its lease ends, or has ended.
    pub until: Instant,
    /// What holds then.
    pub on_lapse: OnLapse,
    /// Others may have borrowed of it, which the next run does not know.
    pub lends: bool,
}

impl KeptPart {
    /// The part of `status`, which was told at `now`.
    #[must_use]
    pub fn of(status: &PartStatus, now: Instant) -> Self {
        let PartStatus { topic, limit, unit, revision, lapses_in, on_lapse, lends, .. } = status.clone();
        let until = now + lapses_in.unwrap_or_default();
        Self { topic, limit, unit, revision, until, on_lapse, lends: lends.is_some() }
    }
}

/// A part of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    given: Given,
    revision: u64,
    /// `None` once its lease has ended.
    until: Option<Instant>,
    on_lapse: OnLapse,
    /// As far as the order was carried out.
    taken: Limit,
}

/// What a lease is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    limit: Limit,
    unit: Unit,
}

impl Part {
    pub(super) fn limit(&self) -> Limit {
        self.given.limit
    }

    pub(super) fn unit(&self) -> Unit {
        self.given.unit
    }

    /// Its lease has not ended.
    pub(super) fn is_leased(&self) -> bool {
        self.until.is_some()
    }

    /// What it does to the bucket; `None` if nothing.
    pub(super) fn rule(&self) -> Option<PartRule> {
        match (self.until, self.on_lapse) {
            (Some(_), _) | (None, OnLapse::Local) => Some(PartRule::Limit(self.taken)),
            (None, OnLapse::Open) => None,
            (None, OnLapse::Closed) => Some(PartRule::Closed(self.taken)),
        }
    }

    /// From when on it does something else; [`Instant::MAX`] if it does not.
    pub(super) fn ends(&self) -> Instant {
        self.until.filter(|_| self.on_lapse != OnLapse::Local).unwrap_or(Instant::MAX)
    }

    pub(super) fn status(&self, topic: &TopicName, in_force: Option<Limit>, now: Instant) -> PartStatus {
        PartStatus {
            topic: topic.clone(),
            in_force,
            limit: self.limit(),
            unit: self.unit(),
            revision: self.revision,
            lapses_in: self.until.map(|ends| ends.since(now)),
            on_lapse: self.on_lapse,
            lends: None,
        }
    }
}

/// The parts of a shard's topics, by topic, and the revisions of those that were removed.
#[derive(Debug)]
pub(super) struct Parts {
    leases: Leases<TopicName, Given>,
    /// What is in force of parts whose order is not carried out to its end.
    taken: BTreeMap<TopicName, Limit>,
    /// Known of the leases, and given back.
    removed: BTreeSet<TopicName>,
    /// Topics whose part an earlier run lent, with the end of the last loan.
    withheld: BTreeMap<TopicName, Instant>,
    /// The newest revision that was forgotten.
    forgotten: u64,
    capacity: usize,
}

impl Default for Parts {
    fn default() -> Self {
        Self::new(PARTS_MAX)
    }
}

impl Parts {
    fn new(capacity: usize) -> Self {
        Self {
            leases: Leases::new(2 * capacity),
            taken: BTreeMap::new(),
            removed: BTreeSet::new(),
            withheld: BTreeMap::new(),
            forgotten: 0,
            capacity,
        }
    }

    fn len(&self) -> usize {
        self.leases.len() - self.removed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, topic: &TopicName) -> Option<Part> {
        self.leases.entry(topic).map(|entry| self.part(topic, entry))
    }

    /// The topics that have one, in order.
    pub(super) fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.leases.entries().map(|(topic, _)| topic)
    }

    fn part(&self, topic: &TopicName, entry: Entry<'_, Given>) -> Part {
        let Entry { value: given, revision, until, on_lapse } = entry;
        let taken = self.taken.get(topic).copied().unwrap_or(given.limit);
        Part { given: *given, revision, until, on_lapse, taken }
    }

    /// Whether `order` may put `grant` in force.
    pub(super) fn check(&self, order: &PartOrder, grant: &PartGrant, now: Instant) -> Result<(), PartRefused> {
        let topic = &grant.topic;
        if order.revision < self.forgotten && self.leases.revision(topic).is_none() {
            return Err(PartRefused::Stale { topic: topic.clone(), holds: self.forgotten });
        }
        let ends = order.ends(now).ok_or(PartRefused::Late)?;
        match self.leases.check(topic, &lease_of(order, grant, ends), now) {
            Ok(_) => Ok(()),
            Err(why) => Err(self.refused(why, topic, order.revision)),
        }
    }

    fn refused(&self, why: Refused, topic: &TopicName, revision: u64) -> PartRefused {
        let topic = topic.clone();
        match why {
            Refused::Fenced { known: holds } => PartRefused::Stale { topic, holds },
            Refused::Differs => PartRefused::OtherContent { topic, revision },
            Refused::Full { .. } => PartRefused::Full { bound: self.capacity },
            Refused::Unknown => PartRefused::Nothing { topic },
            _ => PartRefused::Late,
        }
    }

    /// Whether so many of the parts of `grants` that are new fit.
    pub(super) fn check_room<'a>(&self, grants: impl Iterator<Item = &'a PartGrant>) -> Result<(), PartRefused> {
        let new = grants.filter(|grant| self.leases.entry(&grant.topic).is_none()).count();
        let fits = self.len() + new <= self.capacity;
        if fits { Ok(()) } else { Err(PartRefused::Full { bound: self.capacity }) }
    }

    /// Puts `grant` down as `order` says, which was checked; `taken` of it is in force now. What was over until `now` has
    /// been told to have lapsed.
    pub(super) fn put(&mut self, order: &PartOrder, grant: &PartGrant, taken: Limit, now: Instant) {
        debug_assert!(self.leases.next_timeout().is_none_or(|ends| ends > now), "a lapse was not put in force");
        let Some(ends) = order.ends(now) else { return };
        if self.leases.grant(grant.topic.clone(), lease_of(order, grant, ends), now).is_ok() {
            self.removed.remove(&grant.topic);
            self.take(&grant.topic, grant.limit, taken);
        }
    }

    fn take(&mut self, topic: &TopicName, limit: Limit, taken: Limit) {
        if taken == limit {
            self.taken.remove(topic);
        } else {
            self.taken.insert(topic.clone(), taken);
        }
    }

    /// Takes the part of `topic` away, by an order of `revision`.
    ///
    /// # Errors
    /// If it is newer, or if there is none.
    pub(super) fn remove(&mut self, topic: &TopicName, revision: u64, now: Instant) -> Result<(), PartRefused> {
        let is_there = self.leases.entry(topic).is_some();
        if !is_there {
            let holds = self.leases.revision(topic).unwrap_or(self.forgotten);
            let topic = topic.clone();
            return Err(if revision < holds {
                PartRefused::Stale { topic, holds }
            } else {
                PartRefused::Nothing { topic }
            });
        }
        self.leases.give_back(topic, revision, now).map_err(|why| self.refused(why, topic, revision))?;
        self.taken.remove(topic);
        if self.removed.len() >= self.capacity
            && let Some(oldest) = self.removed.pop_first()
        {
            self.forgotten = self.forgotten.max(self.leases.revision(&oldest).unwrap_or(0));
            self.leases.forget(&oldest);
        }
        self.removed.insert(topic.clone());
        Ok(())
    }

    /// Brings back what an earlier run left, at `now`. If its lease has ended it lapses at the next look, from that end on.
    pub(super) fn restore(&mut self, kept: KeptPart, now: Instant) {
        let KeptPart { topic, limit, unit, revision, until, on_lapse, lends } = kept;
        let given = Given { limit, unit };
        let until = until.max(Instant::from_nanos(1));
        if self.len() < self.capacity {
            if lends {
                self.withheld.insert(topic.clone(), loans_over(now));
            }
            // One that an earlier one of the same topic fences stays away.
            let _ = self.leases.grant(topic, Grant { value: given, revision, until, on_lapse }, Instant::ZERO);
        }
    }

    /// Until then others may still have what an earlier run lent them of the part of `topic`; `None` if it lent nothing.
    pub(super) fn withheld_until(&self, topic: &TopicName) -> Option<Instant> {
        self.withheld.get(topic).copied()
    }

    /// When the next lease ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.leases.next_timeout()
    }

    /// The next topic with a part that is at its end, with that end. It lapses with [`lapse`](Self::lapse).
    pub(super) fn next_ended(&self, now: Instant) -> Option<(Instant, TopicName)> {
        let (ends, topic) = self.leases.next_end()?;
        (ends <= now).then(|| (ends, topic.clone()))
    }

    /// The lease of the part of `topic` has ended.
    pub(super) fn lapse(&mut self, topic: &TopicName) {
        self.leases.lapse(topic);
        // It is known already.
        while self.leases.poll_output().is_some() {}
    }
}

fn lease_of(order: &PartOrder, grant: &PartGrant, until: Instant) -> Grant<Given> {
    let value = Given { limit: grant.limit, unit: grant.unit };
    Grant { value, revision: order.revision, until, on_lapse: order.on_lapse }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

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
        PartOrder { revision, lease, until: Instant::MAX, on_lapse, parts: Arc::new([]), step: PartStep::All }
    }

    fn put(parts: &mut Parts, order: &PartOrder, grant: &PartGrant, now: Instant) -> Result<(), PartRefused> {
        parts.check(order, grant, now)?;
        parts.put(order, grant, grant.limit, now);
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
        assert_eq!(parts.remove(&first.topic, 4, at(0)), Err(stale));
        parts.remove(&first.topic, 6, at(0)).unwrap();
        for late in [5, 6] {
            let stale = PartRefused::Stale { topic: first.topic.clone(), holds: 6 };
            assert_eq!(put(&mut parts, &order(late, OnLapse::Local), &first, at(0)), Err(stale));
        }
        put(&mut parts, &order(7, OnLapse::Local), &second, at(0)).unwrap();
    }

    #[test]
    fn a_renewal_moves_the_end_and_a_lapse_comes_once() {
        let mut parts = Parts::default();
        let part = grant("t", 1);
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(0)).unwrap();
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(50)).unwrap();
        assert_eq!(parts.next_end(), Some(at(150)));
        assert_eq!(parts.next_ended(at(149)), None);
        assert_eq!(parts.next_ended(at(150)), Some((at(150), part.topic.clone())));
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Limit(part.limit)));
        parts.lapse(&part.topic);
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Closed(part.limit)));
        assert_eq!((parts.next_ended(at(200)), parts.next_end()), (None, None));
        put(&mut parts, &order(1, OnLapse::Closed), &part, at(300)).unwrap();
        assert_eq!(parts.get(&part.topic).unwrap().rule(), Some(PartRule::Limit(part.limit)), "it is renewed");
    }

    #[test]
    fn an_order_ends_when_it_says_at_the_latest() {
        let order = PartOrder { until: at(70), ..order(1, OnLapse::Local) };
        assert_eq!([at(0), at(69), at(70)].map(|now| order.ends(now)), [Some(at(70)), Some(at(70)), None]);
        assert_eq!(PartOrder { until: at(500), ..order }.ends(at(0)), Some(at(100)));
    }

    #[test]
    fn at_the_bound_parts_are_refused_and_old_orders_still_are() {
        let mut parts = Parts::new(2);
        let grants = ["a", "b", "c", "d"].map(|topic| grant(topic, 1));
        for grant in &grants[..2] {
            put(&mut parts, &order(3, OnLapse::Local), grant, at(0)).unwrap();
        }
        assert_eq!(parts.check_room(grants[..2].iter()), Ok(()));
        assert_eq!(parts.check_room(grants[1..3].iter()), Err(PartRefused::Full { bound: 2 }));
        for grant in &grants[..2] {
            parts.remove(&grant.topic, 4, at(0)).unwrap();
        }
        put(&mut parts, &order(5, OnLapse::Local), &grants[2], at(0)).unwrap();
        parts.remove(&grants[2].topic, 6, at(0)).unwrap();
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
    fn a_part_of_an_earlier_run_holds_until_its_lease_ends_and_is_fenced() {
        let mut parts = Parts::default();
        let grant = grant("t", 9);
        let PartGrant { topic, limit, unit, .. } = grant.clone();
        let on_lapse = OnLapse::Closed;
        let kept = KeptPart { topic, limit, unit, revision: 7, until: at(50), on_lapse, lends: false };
        parts.restore(kept, at(0));
        assert_eq!(parts.withheld_until(&grant.topic), None);
        let rule = |parts: &Parts| parts.get(&grant.topic).unwrap().rule();
        assert_eq!((rule(&parts), parts.next_end()), (Some(PartRule::Limit(limit)), Some(at(50))));
        assert!(put(&mut parts, &order(6, OnLapse::Closed), &grant, at(0)).is_err());
        put(&mut parts, &order(7, OnLapse::Closed), &grant, at(0)).unwrap();
        assert_eq!(parts.next_end(), Some(at(100)), "it is renewed");
        parts.lapse(&grant.topic);
        assert_eq!(rule(&parts), Some(PartRule::Closed(limit)));
    }

    #[test]
    fn what_an_earlier_run_may_have_lent_is_held_back_until_all_loans_have_ended() {
        let mut parts = Parts::default();
        let PartGrant { topic, limit, unit, .. } = grant("t", 9);
        let (until, on_lapse) = (at(9_000), OnLapse::Local);
        let kept = KeptPart { topic: topic.clone(), limit, unit, revision: 7, until, on_lapse, lends: true };
        parts.restore(kept, at(500));
        assert!(parts.withheld_until(&topic).is_some_and(|until| until > at(1_500) && until < at(1_510)));
    }
}

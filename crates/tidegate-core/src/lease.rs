//! What is granted until a time: placements, loans, parts of a limit.
//!
//! One end grants, the other holds. Both keep the same books, [`Leases`], and each ends a grant by its own clock: by
//! [`Terms`] the holder never after the granter. A grant has a revision, and whatever is older than what was heard last
//! is refused, at either end. What a holder does without a grant is a part of the grant, [`OnLapse`].

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::Instant;
use crate::time::nanos;

/// Added to the granter's side for whatever rounds.
const ROUNDING_NS: u64 = 1_000_000;

/// How long a grant is in force at either end, without a common clock.
///
/// The holder counts from the instant, by its own clock, at which it sent what the grant answers; the granter from the
/// receipt of that, by its own, and longer by what the two clocks may differ in that time. Nothing is received before
/// it is sent, so the holder's end is before the granter's in true time, however long the grant was on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    holder_ns: u64,
    granter_ns: u64,
}

impl Terms {
    /// Grants of `lease`, between clocks whose speeds differ by at most `drift_ppm` parts in a million.
    #[must_use]
    pub fn new(lease: Duration, drift_ppm: u32) -> Self {
        let holder_ns = nanos(lease);
        let drift_ns = u128::from(holder_ns) * u128::from(drift_ppm) / 1_000_000;
        let drift_ns = u64::try_from(drift_ns).unwrap_or(u64::MAX);
        Self { holder_ns, granter_ns: holder_ns.saturating_add(drift_ns).saturating_add(ROUNDING_NS) }
    }

    /// How long a grant lasts at its holder, in nanoseconds.
    #[must_use]
    pub fn lease_ns(self) -> u64 {
        self.holder_ns
    }

    /// When a grant ends at its holder, which at `asked` sent what the grant answers.
    #[must_use]
    pub fn holder_end(self, asked: Instant) -> Instant {
        asked.plus_nanos(self.holder_ns)
    }

    /// Until when the holder may have a grant that answers what was received at `received`; by the granter's clock.
    #[must_use]
    pub fn granter_end(self, received: Instant) -> Instant {
        received.plus_nanos(self.granter_ns)
    }
}

/// A grant of `lease` that is to end at `until` ends later than the lease allows, by more than clocks of different speeds
/// explain: `until` is on the clock of another boot of this machine, or of another machine that had this address. When
/// the grant ends on this one, at `now`, is not known.
#[must_use]
pub fn ends_on_another_clock(until: Instant, lease: Duration, now: Instant) -> bool {
    until > now + lease + lease / 10
}

/// What a holder does when its grant has lapsed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum OnLapse {
    /// It goes on with the value that it had. Safe where nobody else is given that value in its place.
    #[default]
    Local,
    /// It does as if nothing limited it but what stands without grants.
    Open,
    /// It lets nothing pass.
    Closed,
}

impl OnLapse {
    /// As it is written: `local`, `open` or `closed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for OnLapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is none of the three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotOnLapse;

impl fmt::Display for NotOnLapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what happens without a lease is `local`, `open` or `closed`")
    }
}

impl core::error::Error for NotOnLapse {}

impl FromStr for OnLapse {
    type Err = NotOnLapse;

    fn from_str(text: &str) -> Result<Self, NotOnLapse> {
        [Self::Local, Self::Open, Self::Closed].into_iter().find(|policy| policy.name() == text).ok_or(NotOnLapse)
    }
}

/// One grant, as it is told to [`Leases::grant`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant<V> {
    /// What is granted.
    pub value: V,
    /// Greater for every change of the value; the same for a renewal.
    pub revision: u64,
    /// It lapses at this instant, by the clock of whoever keeps the books: see [`Terms`].
    pub until: Instant,
    /// What then holds.
    pub on_lapse: OnLapse,
}

/// What a grant did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granted {
    /// Nothing was known of its key.
    First,
    /// It took the place of an older revision.
    Replaced,
    /// It is the revision that was known: it lasts longer, or is in force again.
    Renewed,
}

/// A grant that changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A newer revision has been heard of, or this one has been given back.
    Fenced {
        /// The newest so far.
        known: u64,
    },
    /// Another value was granted under the same revision.
    Differs,
    /// It ended before it came.
    Over,
    /// There are as many keys as the books have room for.
    Full {
        /// How many.
        capacity: usize,
    },
    /// Nothing is known of this key.
    Unknown,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced { known } => write!(f, "the revision is over: revision {known} has been heard of"),
            Self::Differs => f.write_str("the same revision has granted something else"),
            Self::Over => f.write_str("the lease ended before it came"),
            Self::Full { capacity } => write!(f, "at most {capacity} leases are kept"),
            Self::Unknown => f.write_str("nothing is granted under this key"),
        }
    }
}

impl core::error::Error for Refused {}

/// What holds of one key at some instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InForce<'a, V> {
    /// It is granted.
    Granted(&'a V),
    /// The grant has lapsed, and its last value goes on.
    Last(&'a V),
    /// The grant has lapsed: nothing limits but what stands without grants.
    Open,
    /// The grant has lapsed: nothing passes.
    Closed,
}

impl<'a, V> InForce<'a, V> {
    /// The value, if one is in force.
    #[must_use]
    pub fn value(self) -> Option<&'a V> {
        match self {
            Self::Granted(value) | Self::Last(value) => Some(value),
            Self::Open | Self::Closed => None,
        }
    }

    /// False once the grant has lapsed.
    #[must_use]
    pub fn is_granted(self) -> bool {
        matches!(self, Self::Granted(_))
    }
}

/// A grant as the books have it, whether it is over or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a, V> {
    /// What was granted.
    pub value: &'a V,
    /// Its revision.
    pub revision: u64,
    /// When it lapses; `None` once it has.
    pub until: Option<Instant>,
    /// What then holds.
    pub on_lapse: OnLapse,
}

/// A grant that has lapsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lapse<K> {
    /// Of what.
    pub key: K,
    /// The revision that lapsed.
    pub revision: u64,
    /// What holds now.
    pub on_lapse: OnLapse,
}

/// How far a grant has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Held { until: Instant },
    Lapsed,
    GivenBack,
}

#[derive(Clone, Debug)]
struct Record<V> {
    value: V,
    revision: u64,
    on_lapse: OnLapse,
    state: State,
}

impl<V> Record<V> {
    fn entry(&self) -> Option<Entry<'_, V>> {
        let until = match self.state {
            State::GivenBack => return None,
            State::Lapsed => None,
            State::Held { until } => Some(until),
        };
        Some(Entry { value: &self.value, revision: self.revision, until, on_lapse: self.on_lapse })
    }

    fn in_force(&self, now: Instant) -> Option<InForce<'_, V>> {
        match self.state {
            State::GivenBack => None,
            State::Held { until } if now < until => Some(InForce::Granted(&self.value)),
            State::Held { .. } | State::Lapsed => Some(match self.on_lapse {
                OnLapse::Local => InForce::Last(&self.value),
                OnLapse::Open => InForce::Open,
                OnLapse::Closed => InForce::Closed,
            }),
        }
    }
}

/// The books of one end: what is granted under each key, and until when. O(log n) for each call.
///
/// A key stays known when its grant has lapsed or was given back, so that an older revision that comes late is refused;
/// [`forget`](Self::forget) drops it. At `capacity` keys a new one is refused.
#[derive(Clone, Debug)]
pub struct Leases<K, V> {
    capacity: usize,
    records: BTreeMap<K, Record<V>>,
    ends: BTreeSet<(Instant, K)>,
    /// Lapsed, and not yet said.
    unsaid: BTreeSet<K>,
}

impl<K: Ord + Clone, V: PartialEq> Leases<K, V> {
    /// Empty books with room for `capacity` keys.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, records: BTreeMap::new(), ends: BTreeSet::new(), unsaid: BTreeSet::new() }
    }

    /// Puts `grant` in force under `key`, or renews it: the same revision with the same value and policy lasts as long
    /// as the longest of its renewals, and is in force again if it had lapsed.
    ///
    /// # Errors
    /// [`Refused`]; then nothing is changed.
    pub fn grant(&mut self, key: K, grant: Grant<V>, now: Instant) -> Result<Granted, Refused> {
        self.on_timeout(now);
        let granted = self.check(&key, &grant, now)?;
        let Grant { value, revision, mut until, on_lapse } = grant;
        if granted == Granted::Renewed {
            until = self.until(&key).map_or(until, |before| until.max(before));
        }
        self.end(&key);
        self.unsaid.remove(&key);
        self.ends.insert((until, key.clone()));
        self.records.insert(key, Record { value, revision, on_lapse, state: State::Held { until } });
        Ok(granted)
    }

    /// What [`grant`](Self::grant) would do, without doing it.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, key: &K, grant: &Grant<V>, now: Instant) -> Result<Granted, Refused> {
        if grant.until <= now {
            return Err(Refused::Over);
        }
        match self.records.get(key) {
            None if self.records.len() >= self.capacity => Err(Refused::Full { capacity: self.capacity }),
            None => Ok(Granted::First),
            Some(record) if grant.revision > record.revision => Ok(Granted::Replaced),
            Some(record) if grant.revision < record.revision || record.state == State::GivenBack => {
                Err(Refused::Fenced { known: record.revision })
            }
            Some(record) if record.value != grant.value || record.on_lapse != grant.on_lapse => Err(Refused::Differs),
            Some(_) => Ok(Granted::Renewed),
        }
    }

    /// Makes what `revision` granted under `key` last until `until`, as [`grant`](Self::grant) of the same value does.
    ///
    /// # Errors
    /// [`Refused`], [`Refused::Fenced`] also for a revision that is not known yet; then nothing is changed.
    pub fn renew(&mut self, key: &K, revision: u64, until: Instant, now: Instant) -> Result<(), Refused> {
        self.on_timeout(now);
        let record = self.records.get_mut(key).ok_or(Refused::Unknown)?;
        if revision != record.revision || record.state == State::GivenBack {
            return Err(Refused::Fenced { known: record.revision });
        }
        if until <= now {
            return Err(Refused::Over);
        }
        let before = if let State::Held { until } = record.state { Some(until) } else { None };
        let until = before.map_or(until, |before| until.max(before));
        record.state = State::Held { until };
        self.ends.insert((until, key.clone()));
        if let Some(before) = before.filter(|&before| before != until) {
            self.ends.remove(&(before, key.clone()));
        }
        self.unsaid.remove(key);
        Ok(())
    }

    /// Ends what is granted under `key`: nothing holds there any more, and no grant of `revision` or an older one is
    /// taken again.
    ///
    /// # Errors
    /// [`Refused::Fenced`] if a newer revision is known, [`Refused::Unknown`] if none is; then nothing is changed.
    pub fn give_back(&mut self, key: &K, revision: u64, now: Instant) -> Result<(), Refused> {
        self.on_timeout(now);
        let known = self.revision(key).ok_or(Refused::Unknown)?;
        if revision < known {
            return Err(Refused::Fenced { known });
        }
        self.end(key);
        self.unsaid.remove(key);
        if let Some(record) = self.records.get_mut(key) {
            (record.revision, record.state) = (revision, State::GivenBack);
        }
        Ok(())
    }

    /// Drops `key` with its revision: whatever is granted next is taken, however old. For keys that are gone for good.
    pub fn forget(&mut self, key: &K) {
        self.end(key);
        self.unsaid.remove(key);
        self.records.remove(key);
    }

    /// What holds under `key` at `now`; `None` if nothing was granted or it was given back.
    #[must_use]
    pub fn in_force(&self, key: &K, now: Instant) -> Option<InForce<'_, V>> {
        self.records.get(key)?.in_force(now)
    }

    /// The newest revision that was heard of under `key`.
    #[must_use]
    pub fn revision(&self, key: &K) -> Option<u64> {
        self.records.get(key).map(|record| record.revision)
    }

    /// When the grant under `key` lapses; `None` if none is held.
    #[must_use]
    pub fn until(&self, key: &K) -> Option<Instant> {
        match self.records.get(key)?.state {
            State::Held { until } => Some(until),
            State::Lapsed | State::GivenBack => None,
        }
    }

    /// What was granted last under `key`; `None` if nothing was or it was given back.
    #[must_use]
    pub fn entry(&self, key: &K) -> Option<Entry<'_, V>> {
        self.records.get(key)?.entry()
    }

    /// All of them, in the order of keys.
    pub fn entries(&self) -> impl Iterator<Item = (&K, Entry<'_, V>)> {
        self.records.iter().filter_map(|(key, record)| Some((key, record.entry()?)))
    }

    /// Everything that holds at `now`, in the order of keys.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (&K, u64, InForce<'_, V>)> {
        self.records.iter().filter_map(move |(key, record)| Some((key, record.revision, record.in_force(now)?)))
    }

    /// Keys that are known, also those whose grant has lapsed or was given back.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True if no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// When the next grant lapses.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// The grant that lapses next, with that moment.
    #[must_use]
    pub fn next_end(&self) -> Option<(Instant, &K)> {
        self.ends.first().map(|(at, key)| (*at, key))
    }

    /// Ends what is over. What holds does not depend on it: [`in_force`](Self::in_force) looks at the time itself.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some((_, key)) = self.ends.first().filter(|(at, _)| *at <= now).cloned() {
            self.lapse(&key);
        }
    }

    /// This machine has slept, and its clock stood still meanwhile: everything that it holds may be over.
    pub fn on_slept(&mut self) {
        while let Some((_, key)) = self.ends.first().cloned() {
            self.lapse(&key);
        }
    }

    /// The next grant that has lapsed and is not in force again, in the order of keys; each lapse once.
    pub fn poll_output(&mut self) -> Option<Lapse<K>> {
        let key = self.unsaid.pop_first()?;
        let record = self.records.get(&key)?;
        Some(Lapse { key, revision: record.revision, on_lapse: record.on_lapse })
    }

    /// Ends the grant under `key` as if its time had come. For a holder that must know what held until then: it looks at
    /// [`next_end`](Self::next_end), and then lets that one lapse.
    pub fn lapse(&mut self, key: &K) {
        self.end(key);
        if let Some(record) = self.records.get_mut(key) {
            record.state = State::Lapsed;
            self.unsaid.insert(key.clone());
        }
    }

    /// Forgets the end of the grant under `key`.
    fn end(&mut self, key: &K) {
        if let Some(until) = self.until(key) {
            self.ends.remove(&(until, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn grant(value: u32, revision: u64, until_ms: u64) -> Grant<u32> {
        Grant { value, revision, until: at(until_ms), on_lapse: OnLapse::Local }
    }

    fn leases() -> Leases<&'static str, u32> {
        let mut leases = Leases::new(2);
        assert_eq!(leases.grant("a", grant(7, 3, 100), at(0)), Ok(Granted::First));
        leases
    }

    #[test]
    fn a_grant_holds_until_its_end_whether_it_is_looked_at_or_not() {
        let mut leases = leases();
        assert_eq!(leases.next_timeout(), Some(at(100)));
        let last = Instant::from_nanos(at(100).as_nanos() - 1);
        assert_eq!(leases.in_force(&"a", last), Some(InForce::Granted(&7)));
        assert_eq!(leases.in_force(&"a", at(100)), Some(InForce::Last(&7)));
        assert_eq!(leases.poll_output(), None);
        leases.on_timeout(at(100));
        assert_eq!(leases.poll_output(), Some(Lapse { key: "a", revision: 3, on_lapse: OnLapse::Local }));
        assert_eq!((leases.poll_output(), leases.next_timeout()), (None, None));
        assert_eq!(leases.in_force(&"a", at(0)), Some(InForce::Last(&7)), "a clock that steps back revives nothing");
    }

    #[test]
    fn each_policy_says_what_holds_after_a_lapse() {
        for (on_lapse, expected) in
            [(OnLapse::Local, InForce::Last(&1)), (OnLapse::Open, InForce::Open), (OnLapse::Closed, InForce::Closed)]
        {
            let mut leases = Leases::new(1);
            leases.grant((), Grant { on_lapse, ..grant(1, 1, 5) }, at(0)).unwrap();
            let held = leases.in_force(&(), at(4)).unwrap();
            assert!(held.is_granted() && held.value() == Some(&1));
            let lapsed = leases.in_force(&(), at(5)).unwrap();
            assert_eq!((lapsed, lapsed.is_granted()), (expected, false));
            assert_eq!(on_lapse.name().parse(), Ok(on_lapse));
            assert_eq!(on_lapse.to_string(), on_lapse.name());
        }
        assert_eq!("".parse::<OnLapse>(), Err(NotOnLapse));
    }

    #[test]
    fn an_older_revision_is_fenced_and_the_same_one_renews() {
        let mut leases = leases();
        assert_eq!(leases.grant("a", grant(9, 2, 500), at(1)), Err(Refused::Fenced { known: 3 }));
        assert_eq!(leases.grant("a", grant(9, 3, 500), at(1)), Err(Refused::Differs));
        let open = Grant { on_lapse: OnLapse::Open, ..grant(7, 3, 500) };
        assert_eq!(leases.grant("a", open, at(1)), Err(Refused::Differs));
        assert_eq!(leases.grant("a", grant(7, 3, 1), at(1)), Err(Refused::Over));
        assert_eq!(leases.grant("a", grant(7, 3, 200), at(1)), Ok(Granted::Renewed));
        assert_eq!(leases.grant("a", grant(7, 3, 150), at(1)), Ok(Granted::Renewed));
        assert_eq!(leases.until(&"a"), Some(at(200)), "a shorter renewal shortens nothing");
        assert_eq!(leases.grant("a", grant(8, 4, 50), at(1)), Ok(Granted::Replaced));
        assert_eq!((leases.until(&"a"), leases.next_timeout()), (Some(at(50)), Some(at(50))));
        assert_eq!(leases.in_force(&"a", at(1)).and_then(InForce::value), Some(&8));
    }

    #[test]
    fn a_renewal_without_the_value_does_the_same() {
        let mut leases = leases();
        assert_eq!(leases.renew(&"b", 3, at(200), at(1)), Err(Refused::Unknown));
        assert_eq!(leases.renew(&"a", 2, at(200), at(1)), Err(Refused::Fenced { known: 3 }));
        assert_eq!(leases.renew(&"a", 4, at(200), at(1)), Err(Refused::Fenced { known: 3 }));
        assert_eq!(leases.renew(&"a", 3, at(1), at(1)), Err(Refused::Over));
        for (until, expected) in [(200, 200), (150, 200), (200, 200)] {
            assert_eq!(leases.renew(&"a", 3, at(until), at(1)), Ok(()));
            assert_eq!((leases.until(&"a"), leases.next_timeout()), (Some(at(expected)), Some(at(expected))));
        }
        leases.on_timeout(at(200));
        assert_eq!(leases.renew(&"a", 3, at(300), at(210)), Ok(()));
        assert_eq!(leases.in_force(&"a", at(210)), Some(InForce::Granted(&7)));
        assert_eq!(leases.poll_output(), None, "it is in force again");
    }

    #[test]
    fn what_was_given_back_comes_only_in_a_newer_revision() {
        let mut leases = leases();
        assert_eq!(leases.give_back(&"b", 3, at(1)), Err(Refused::Unknown));
        assert_eq!(leases.give_back(&"a", 2, at(1)), Err(Refused::Fenced { known: 3 }));
        assert_eq!(leases.give_back(&"a", 5, at(1)), Ok(()));
        assert_eq!((leases.in_force(&"a", at(1)), leases.next_timeout()), (None, None));
        assert_eq!(leases.iter(at(1)).count(), 0);
        for revision in [3, 5] {
            assert_eq!(leases.grant("a", grant(7, revision, 99), at(1)), Err(Refused::Fenced { known: 5 }));
        }
        assert_eq!(leases.renew(&"a", 5, at(99), at(1)), Err(Refused::Fenced { known: 5 }));
        assert_eq!(leases.grant("a", grant(7, 6, 99), at(1)), Ok(Granted::Replaced));
        leases.forget(&"a");
        assert!(leases.is_empty());
        assert_eq!(leases.grant("a", grant(7, 1, 99), at(1)), Ok(Granted::First));
    }

    #[test]
    fn books_that_are_full_take_no_new_key_but_renew_those_they_have() {
        let mut leases = leases();
        leases.grant("b", grant(1, 1, 100), at(0)).unwrap();
        assert_eq!(leases.grant("c", grant(1, 1, 100), at(0)), Err(Refused::Full { capacity: 2 }));
        assert_eq!(leases.grant("b", grant(2, 2, 100), at(0)), Ok(Granted::Replaced));
        let all: Vec<_> = leases.iter(at(0)).map(|(&key, revision, held)| (key, revision, held.value())).collect();
        assert_eq!((all, leases.len()), (vec![("a", 3, Some(&7)), ("b", 2, Some(&2))], 2));
    }

    #[test]
    fn a_look_changes_nothing_and_says_what_a_grant_would_do() {
        let mut leases = leases();
        for (revision, value, expected) in [
            (2, 7, Err(Refused::Fenced { known: 3 })),
            (3, 9, Err(Refused::Differs)),
            (3, 7, Ok(Granted::Renewed)),
            (4, 9, Ok(Granted::Replaced)),
        ] {
            assert_eq!(leases.check(&"a", &grant(value, revision, 50), at(1)), expected);
        }
        let entry = Entry { value: &7, revision: 3, until: Some(at(100)), on_lapse: OnLapse::Local };
        assert_eq!((leases.entry(&"a"), leases.next_end()), (Some(entry), Some((at(100), &"a"))));
        leases.lapse(&"a");
        assert_eq!(leases.entry(&"a"), Some(Entry { until: None, ..entry }), "what lapsed is still told");
        assert_eq!((leases.next_end(), leases.entries().count()), (None, 1));
        leases.give_back(&"a", 4, at(1)).unwrap();
        assert_eq!((leases.entry(&"a"), leases.entries().count()), (None, 0));
    }

    #[test]
    fn a_sleep_ends_everything() {
        let mut leases = leases();
        leases.grant("b", grant(1, 1, 1_000), at(0)).unwrap();
        leases.on_slept();
        assert!(leases.iter(at(1)).all(|(_, _, held)| !held.is_granted()));
        assert_eq!(std::iter::from_fn(|| leases.poll_output()).count(), 2);
    }
}

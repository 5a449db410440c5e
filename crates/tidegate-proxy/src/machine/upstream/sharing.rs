//! What an upstream can do at once, learnt and shared by tenant; all names that one source makes up share like one.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::limit::{Began, InFlightConfig, InFlightLimit};
use tidegate_core::time::nanos;

use super::company::Company;
use crate::machine::neighbours::Claimant;

/// What is not the operator's to say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharingTuning {
    /// How the limit is learnt. Its room is 1.25: of an upstream that is always busy, a request waits for a quarter of what
    /// it takes alone; 1.5 is what a tenant may feel of another. It is never below 2 calls, so that one always follows on
    /// the other.
    pub limit: InFlightConfig,
    /// A tenant is alone if no other one has come for so long: then the limit refuses it nothing.
    pub alone: Duration,
}

impl Default for SharingTuning {
    fn default() -> Self {
        Self {
            limit: InFlightConfig { least: 2, room: 1.25, ..InFlightConfig::default() },
            alone: Duration::from_secs(10),
        }
    }
}

/// How a request began, for its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call(Began);

/// How long an answer took. The proxy sees it when it looks, which may be later than it came: a proxy that is busy must not
/// take its own delay for the upstream's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stay {
    /// Until the last look that did not find it.
    pub least: Duration,
    /// Until it was found.
    pub most: Duration,
}

/// The calls in flight to one upstream, from their begin to the head of their answer, and how many may be.
///
/// A claimant within its fair share of the limit, by weight, begins at once, whatever others have in flight; so there
/// may be twice as many as the limit says, until those beyond their shares have fewer. All others wait until there is
/// room.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    tuning: SharingTuning,
    limit: InFlightLimit,
    /// Claimants with calls in flight, in their order. A vector keeps its memory: most requests come and go alone.
    claimants: Vec<Held>,
    weights: u64,
    /// The tenants that came last.
    recent: Company<u32>,
    is_held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    claimant: Claimant,
    calls: u32,
    /// That of its last call that met the limit; 1 before.
    weight: u32,
}

impl Sharing {
    pub(super) fn new(tuning: SharingTuning, now: Instant) -> Self {
        let limit = InFlightLimit::new(tuning.limit, now);
        Self { tuning, limit, claimants: Vec::new(), weights: 0, recent: Company::default(), is_held: false }
    }

    /// Goes on with what `old` learnt, where there are `part` times as many servers.
    pub(super) fn inherit(&mut self, old: &Self, part: f64, now: Instant) {
        self.limit.inherit(&old.limit, part, now);
        self.recent.clone_from(&old.recent);
    }

    /// How many calls may be in flight; `None` while nothing holds them up.
    pub(super) fn limit(&self) -> Option<u32> {
        self.limit.limit()
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.limit.in_flight()
    }

    /// A request of `tenant` came.
    #[inline]
    pub(super) fn on_arrival(&mut self, tenant: u32, now: Instant) {
        self.recent.on_arrival(tenant, now);
    }

    /// Whether no other tenant has come of late.
    pub(super) fn is_alone(&self, tenant: u32, now: Instant) -> bool {
        self.recent.is_alone(tenant, self.tuning.alone, now)
    }

    /// Whether a call may begin that asks for no more than that there is room.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.limit.room() > 0
    }

    /// Whether a call of `claimant`, which has this weight, may begin.
    #[inline]
    pub(super) fn admit(&self, claimant: Claimant, weight: u32) -> bool {
        self.has_room() || self.is_within(claimant, weight)
    }

    /// Whether nothing may begin, whoever asks.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        !self.has_room() && u64::from(self.limit.in_flight()) >= 2 * self.most()
    }

    /// Calls that may be in flight: what is not limited may have those that are, and what there is room for.
    fn most(&self) -> u64 {
        let most = || self.limit.in_flight().saturating_add(self.limit.room());
        u64::from(self.limit.limit().unwrap_or_else(most))
    }

    fn is_within(&self, claimant: Claimant, weight: u32) -> bool {
        let limit = self.most();
        let weight = u64::from(weight.max(1));
        let (calls, others) = match self.place(claimant) {
            Ok(place) => (self.claimants[place].calls, self.weights - u64::from(self.claimants[place].weight)),
            Err(_) => (0, self.weights),
        };
        u64::from(self.limit.in_flight()) < 2 * limit && u64::from(calls) * (others + weight) < limit * weight
    }

    /// A call of `claimant` begins. `weight` is known if it met the limit.
    #[inline]
    pub(super) fn on_begin(&mut self, claimant: Claimant, weight: Option<u32>, group: u8, now: Instant) -> Call {
        let place = self.place(claimant).unwrap_or_else(|place| {
            self.claimants.insert(place, Held { claimant, calls: 0, weight: 1 });
            self.weights += 1;
            place
        });
        let held = &mut self.claimants[place];
        held.calls += 1;
        if let Some(weight) = weight.map(|weight| weight.max(1)) {
            self.weights = self.weights - u64::from(held.weight) + u64::from(weight);
            held.weight = weight;
        }
        let number = match claimant {
            Claimant::Tenant(tenant) => tenant.number(),
            Claimant::Source(source) => source,
        };
        Call(self.limit.on_begin_of(number.to_le_bytes()[0], group, now))
    }

    /// The head of its answer came.
    #[inline]
    pub(super) fn on_answer(&mut self, claimant: Claimant, call: Call, stay: Stay, now: Instant) {
        self.let_go(claimant);
        // What the bounds leave open is taken as usual: nothing is learnt from it.
        let stay = match self.limit.quick(call.0.group) {
            Some(quick) => quick.max(stay.least).min(stay.most),
            None => stay.most,
        };
        self.limit.on_end(call.0, stay, now);
    }

    /// It ended in a way that says nothing of the upstream.
    pub(super) fn on_gone(&mut self, claimant: Claimant, now: Instant) {
        self.let_go(claimant);
        self.limit.on_gone(now);
    }

    /// Whether requests wait for room; to be told after every event while some do.
    #[inline]
    pub(super) fn on_held(&mut self, is_held: bool, now: Instant) {
        if is_held || self.is_held {
            self.is_held = is_held;
            self.limit.on_held(is_held, now);
        }
    }

    fn let_go(&mut self, claimant: Claimant) {
        let Ok(place) = self.place(claimant) else { return };
        let held = &mut self.claimants[place];
        held.calls -= 1;
        if held.calls == 0 {
            self.weights -= u64::from(held.weight);
            self.claimants.remove(place);
        }
    }

    #[inline]
    fn place(&self, claimant: Claimant) -> Result<usize, usize> {
        self.claimants.binary_search_by_key(&claimant, |held| held.claimant)
    }
}

impl Stay {
    /// From `sent` until the proxy found it at `found`; `looked` is when it last looked without finding it.
    #[must_use]
    pub fn between(sent: Instant, looked: Instant, found: Instant) -> Self {
        let most = found.since(sent);
        Self { least: Duration::from_nanos(nanos(looked.since(sent))).min(most), most }
    }
}

#[cfg(test)]
mod tests;

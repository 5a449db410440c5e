//! What an upstream can do at once, learnt and shared by tenant.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::limit::{Began, InFlightConfig, InFlightLimit};
use tidegate_core::time::nanos;

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
            limit: InFlightConfig { least: 2, room: 1.25, tries: true, ..InFlightConfig::default() },
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
/// A tenant within its fair share of the limit, by weight, begins at once, whatever others have in flight; so there may be
/// twice as many as the limit says, until those beyond their shares have fewer. All others wait until there is room.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    tuning: SharingTuning,
    limit: InFlightLimit,
    /// Tenants with calls in flight, by their numbers. A vector keeps its memory: most requests come and go alone.
    tenants: Vec<Held>,
    weights: u64,
    /// The tenant that came last, and the last one before it that was another.
    recent: [(u32, Option<Instant>); 2],
    is_held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    tenant: u32,
    calls: u32,
    /// That of its last call that met the limit; 1 before.
    weight: u32,
}

impl Sharing {
    pub(super) fn new(tuning: SharingTuning, now: Instant) -> Self {
        let limit = InFlightLimit::new(tuning.limit, now);
        Self { tuning, limit, tenants: Vec::new(), weights: 0, recent: [(0, None); 2], is_held: false }
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
        if self.recent[0].0 != tenant {
            self.recent.swap(0, 1);
        }
        self.recent[0] = (tenant, Some(now));
    }

    /// Whether no other tenant has come of late.
    pub(super) fn is_alone(&self, tenant: u32, now: Instant) -> bool {
        let [last, before] = self.recent;
        let other = if last.0 == tenant { before } else { last };
        other.1.is_none_or(|at| now.since(at) >= self.tuning.alone)
    }

    /// Whether a call may begin that asks for no more than that there is room.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.limit.room() > 0
    }

    /// Whether a call of `tenant`, which has this weight, may begin.
    #[inline]
    pub(super) fn admit(&self, tenant: u32, weight: u32) -> bool {
        self.has_room() || self.is_within(tenant, weight)
    }

    fn is_within(&self, tenant: u32, weight: u32) -> bool {
        let limit = u64::from(self.limit.in_flight().saturating_add(self.limit.room()));
        let limit = self.limit.limit().map_or(limit, u64::from);
        let weight = u64::from(weight.max(1));
        let (calls, others) = match self.place(tenant) {
            Ok(place) => (self.tenants[place].calls, self.weights - u64::from(self.tenants[place].weight)),
            Err(_) => (0, self.weights),
        };
        u64::from(self.limit.in_flight()) < 2 * limit && u64::from(calls) * (others + weight) < limit * weight
    }

    /// A call of `tenant` begins. `weight` is known if it met the limit.
    #[inline]
    pub(super) fn on_begin(&mut self, tenant: u32, weight: Option<u32>, group: u8, now: Instant) -> Call {
        let place = self.place(tenant).unwrap_or_else(|place| {
            self.tenants.insert(place, Held { tenant, calls: 0, weight: 1 });
            self.weights += 1;
            place
        });
        let held = &mut self.tenants[place];
        held.calls += 1;
        if let Some(weight) = weight.map(|weight| weight.max(1)) {
            self.weights = self.weights - u64::from(held.weight) + u64::from(weight);
            held.weight = weight;
        }
        Call(self.limit.on_begin(group, now))
    }

    /// The head of its answer came.
    #[inline]
    pub(super) fn on_answer(&mut self, tenant: u32, call: Call, stay: Stay, now: Instant) {
        self.let_go(tenant);
        // What the bounds leave open is taken as usual: nothing is learnt from it.
        let stay = match self.limit.quick(call.0.group) {
            Some(quick) => quick.max(stay.least).min(stay.most),
            None => stay.most,
        };
        self.limit.on_end(call.0, stay, now);
    }

    /// It ended in a way that says nothing of the upstream.
    pub(super) fn on_gone(&mut self, tenant: u32, now: Instant) {
        self.let_go(tenant);
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

    fn let_go(&mut self, tenant: u32) {
        let Ok(place) = self.place(tenant) else { return };
        let held = &mut self.tenants[place];
        held.calls -= 1;
        if held.calls == 0 {
            self.weights -= u64::from(held.weight);
            self.tenants.remove(place);
        }
    }

    #[inline]
    fn place(&self, tenant: u32) -> Result<usize, usize> {
        self.tenants.binary_search_by_key(&tenant, |held| held.tenant)
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

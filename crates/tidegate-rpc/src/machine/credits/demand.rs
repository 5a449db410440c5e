//! What everybody wants, and the level that follows from it.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use tidegate_core::Instant;
use tidegate_core::allocate::{Claim, weighted_max_min};

use crate::machine::credits::{Config, Level};
use crate::machine::{Priority, Tenant};

/// Calls after which rates and levels are computed anew.
pub(super) const TICK: u32 = 64;
/// Ticks over which rates are averaged: eight thousand calls tell a rate to about 1 %.
const TICKS: f64 = 128.0;
/// Calls that differ from the average by this factor, by so many deviations, and by so many times what the server has
/// room for, are a step, and neither chance nor a burst.
const STEP: f64 = 1.5;
const DEVIATIONS: f64 = 5.0;
const ROOMS: f64 = 3.0;
/// Ticks over which such differences are remembered.
const PATIENCE: f64 = 16.0;
/// Ticks in a row that tell a lower demand.
const FEWER: u32 = 3;
/// A tick comes when this many times the calls that are let through in its time would have come, however few did.
const OVERDUE: f64 = 2.0;
/// What a session may have beyond its max-min share, for calls that are not let through for sure: this part of what it
/// may for others. Just enough that chance leaves no core idle.
const MARGINAL: f64 = 0.1;
/// A part of the supply that changed by no more than this share is the same.
const SAME: f64 = 0.01;
/// Deviations by which a session that does as it was told may send more.
const CHANCE: f64 = 4.0;
/// Share of a tenant's calls that is admitted by credits; the rest stays free to follow the demand.
pub(super) const CREDITED: f64 = 0.5;
/// Calls over which active sessions are counted.
pub(super) const STRETCH: u32 = 1024;
/// A demand below this share of the capacity is forgotten.
const FORGOTTEN: f64 = 1e-6;

/// Calls wanted of one priority: what one tick brought, and the fading sum.
#[derive(Clone, Copy, Default, Debug)]
struct Wanted {
    tick: f64,
    sum: f64,
    /// Those of them that came with a credit: they come whatever the level is.
    tick_credited: f64,
    credited: f64,
}

/// One tenant's demand and what it was granted.
#[derive(Clone, Debug)]
struct TenantState {
    name: Tenant,
    weight: f64,
    /// Its open sessions.
    sessions: u32,
    /// Whether its place is in [`Demand::left`].
    is_left: bool,
    /// Whether it keeps its place without sessions.
    is_kept: bool,
    /// By priority, sorted; only those that were seen.
    wanted: Vec<(Priority, Wanted)>,
    level: Level,
    /// Calls a second of its share.
    share: f64,
    /// Calls in a nanosecond that one of its sessions may have at most, of a priority that is let through for sure and of
    /// others.
    most_sure_per_ns: f64,
    most_per_ns: f64,
    /// The same in a stretch of calls, and what chance adds.
    most_sure_calls: u16,
    most_calls: u16,
    /// Credits that its sessions hold.
    credits: u32,
    /// What each session wants that was heard in this stretch of calls so far, and in the one before.
    sizes: Box<Sizes>,
    sizes_before: Box<Sizes>,
    /// For which part of a supply, in calls in a nanosecond, the bound of a session was computed; zero since a stretch ended.
    bound_for: f64,
}

impl TenantState {
    fn new(name: Tenant, weight: f64) -> Self {
        Self {
            name,
            weight: weight.max(f64::MIN_POSITIVE),
            sessions: 0,
            is_left: false,
            is_kept: false,
            wanted: Vec::new(),
            level: Level::OPEN,
            share: f64::MAX,
            most_sure_per_ns: f64::MAX,
            most_per_ns: f64::MAX,
            most_sure_calls: u16::MAX,
            most_calls: u16::MAX,
            credits: 0,
            sizes: Box::new(Sizes::new()),
            sizes_before: Box::new(Sizes::new()),
            bound_for: 0.0,
        }
    }

    /// Calls that it wanted lately, fading.
    fn wanted(&self) -> f64 {
        self.wanted.iter().map(|(_, wanted)| wanted.sum).sum()
    }

    /// Computes what one session may have, `shares` times its max-min share of what is `served` of the tenant's part; a
    /// stretch of calls takes `stretch_ns`.
    fn bound_sessions(&mut self, shares: f64, served: f64, supply: f64, stretch_ns: f64) {
        let part = served * self.share.min(supply) / 1e9;
        if (part - self.bound_for).abs() > SAME * part {
            self.bound_for = part;
            let fair = self.sizes_before.water_level(part);
            self.most_sure_per_ns = shares * fair;
            self.most_per_ns = (1.0 + MARGINAL * (shares - 1.0)) * fair;
        }
        self.most_sure_calls = with_chance(self.most_sure_per_ns * stretch_ns);
        self.most_calls = with_chance(self.most_per_ns * stretch_ns);
    }

    fn unbind_sessions(&mut self) {
        self.bound_for = 0.0;
        (self.most_sure_per_ns, self.most_per_ns) = (f64::MAX, f64::MAX);
    }
}

/// How many sessions want how much, in buckets by the time between two calls.
#[derive(Clone, Debug)]
struct Sizes([u32; SIZES]);

/// Buckets, eight for each doubling, from a nanosecond to 2^40 of them, 18 minutes.
const SIZES: usize = 8 * 40;
/// What is left of a number's bits above these tells its bucket: the exponent and three bits behind it.
const SIZE_SHIFT: u32 = 49;
/// That of a nanosecond.
const SIZE_LEAST: u64 = 1023 << 3;

impl Sizes {
    fn new() -> Self {
        Self([0; SIZES])
    }

    /// One wants a call every `gap` nanoseconds.
    #[inline]
    fn add(&mut self, gap: f64) {
        let bucket = (gap.to_bits() >> SIZE_SHIFT).saturating_sub(SIZE_LEAST);
        let bucket = usize::try_from(bucket).map_or(SIZES - 1, |bucket| bucket.min(SIZES - 1));
        self.0[bucket] += 1;
    }

    /// The most calls in a nanosecond that one session can have if `share` is shared by max-min: those who want less get
    /// it, and leave the rest to the others. [`f64::MAX`] if all have what they want.
    fn water_level(&self, share: f64) -> f64 {
        let (mut left, mut sessions) = (share, f64::from(self.0.iter().sum::<u32>()));
        // Those who want least come first. The middle of a bucket is within 6 % of all that is in it.
        let middle = |bits: u64| f64::from_bits((2 * bits + 1) << (SIZE_SHIFT - 1));
        for (above, &count) in (0_u64..).zip(self.0.iter().rev()).filter(|(_, count)| **count > 0) {
            let bits = SIZE_LEAST + (SIZES as u64 - 1) - above;
            let (each, wanted) = (left / sessions, middle(bits).recip());
            if wanted > each {
                return each;
            }
            left -= f64::from(count) * wanted;
            sessions -= f64::from(count);
        }
        f64::MAX
    }
}

/// How far what comes has been off the average, and for how long.
#[derive(Clone, Copy, Default, Debug)]
struct Difference {
    /// Calls beyond the average, fading; below zero if there were fewer. A pause and the rush after it make nothing.
    excess: f64,
    /// The same for the squares of what calls stand for.
    squares: f64,
    /// Ticks in a row with far more, and with far fewer.
    more: u32,
    fewer: u32,
}

/// The demand of all tenants. A tenant is named by its place in the table.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    tenants: Vec<TenantState>,
    bound: usize,
    /// Which place is whose. Tenants that share the last one are not in it.
    places: BTreeMap<Tenant, u16>,
    /// Places that are nobody's.
    free: Vec<u16>,
    /// Places of tenants that had no session when they were put here, the one that lost its last session first in front.
    left: VecDeque<u16>,
    /// Times its max-min share that one session may have.
    session_shares: f64,
    /// Calls since the last tick, the squares of what they stand for, and when that was.
    calls: u32,
    squares: f64,
    since: Instant,
    /// The fading sum of time.
    time_ns: f64,
    difference: Difference,
    /// When the next tick is due although few calls came.
    due: Instant,
    /// Calls wanted by sessions that were held back, in this tick and fading: they move nobody's level.
    held_tick: f64,
    held: f64,
    /// Of capacity, what calls take that are sure to be let through although others are not.
    preferred: f64,
    throttled: bool,
    /// How long a stretch of calls takes, if as many are let through as shall be.
    stretch_ns: f64,
    claims: Vec<Claim>,
    order: Vec<usize>,
    shares: Vec<f64>,
}

impl Demand {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        // One place more than are kept: all others share it at least.
        let bound = config.tenants.max(config.weights.len() + 1).clamp(1, 1 << 16);
        let mut demand = Self {
            tenants: Vec::new(),
            bound,
            places: BTreeMap::new(),
            free: Vec::new(),
            left: VecDeque::new(),
            session_shares: config.session_shares,
            calls: 0,
            squares: 0.0,
            since: now,
            time_ns: 0.0,
            difference: Difference::default(),
            due: Instant::MAX,
            held_tick: 0.0,
            held: 0.0,
            preferred: 0.0,
            throttled: false,
            stretch_ns: 0.0,
            claims: Vec::new(),
            order: Vec::new(),
            shares: Vec::new(),
        };
        // Tenants with a weight of their own are known, and no flood of others shall take their places.
        for &(name, _) in config.weights.iter().take(bound - 1) {
            let place = demand.give_place(name, config).expect("there is a place for each of these");
            demand.tenants[usize::from(place)].is_kept = true;
        }
        demand
    }

    /// A session of tenant `name` opens: the place of the tenant. If all places are taken, it gets that of the tenant
    /// without sessions that lost its last one first; if there is none, it shares the last place. Amortized O(log tenants);
    /// [`Demand::leave`] is owed.
    pub(super) fn enter(&mut self, name: Tenant, config: &Config) -> u16 {
        let known = self.places.get(&name).copied();
        let place = known
            .or_else(|| self.give_place(name, config))
            .unwrap_or_else(|| u16::try_from(self.tenants.len() - 1).expect("at most 65536 tenants"));
        self.tenants[usize::from(place)].sessions += 1;
        place
    }

    /// A session of the tenant in `place` closed. Its credits were returned.
    pub(super) fn leave(&mut self, place: u16) {
        let tenant = &mut self.tenants[usize::from(place)];
        tenant.sessions -= 1;
        if tenant.sessions == 0 && !tenant.is_left && !tenant.is_kept {
            tenant.is_left = true;
            self.left.push_back(place);
        }
    }

    /// A place for a tenant that has none.
    fn give_place(&mut self, name: Tenant, config: &Config) -> Option<u16> {
        let next = u16::try_from(self.tenants.len()).ok().filter(|next| usize::from(*next) < self.bound);
        let place = self.free.pop().or(next).or_else(|| self.take_left())?;
        let tenant = TenantState::new(name, config.weight(name));
        match self.tenants.get_mut(usize::from(place)) {
            Some(free) => *free = tenant,
            None => self.tenants.push(tenant),
        }
        self.places.insert(name, place);
        Some(place)
    }

    /// Takes the place of the tenant without sessions that lost its last one first.
    fn take_left(&mut self) -> Option<u16> {
        while let Some(place) = self.left.pop_front() {
            let tenant = &mut self.tenants[usize::from(place)];
            tenant.is_left = false;
            if tenant.sessions == 0 {
                self.places.remove(&tenant.name);
                return Some(place);
            }
        }
        None
    }

    /// Frees the places of tenants that have no session and want nothing any more.
    fn free_left(&mut self) {
        let forgotten = FORGOTTEN * self.tenants.iter().map(TenantState::wanted).sum::<f64>();
        self.left.retain(|&place| {
            let tenant = &mut self.tenants[usize::from(place)];
            let is_over = tenant.sessions == 0 && tenant.wanted() <= forgotten;
            tenant.is_left = tenant.sessions == 0 && !is_over;
            if is_over {
                self.places.remove(&tenant.name);
                tenant.wanted.clear();
                self.free.push(place);
            }
            tenant.is_left
        });
    }

    /// The level of a tenant by its name; of one that is not known, everything.
    pub(super) fn level_of(&self, name: Tenant) -> Level {
        self.places.get(&name).map_or(Level::OPEN, |place| self.level(*place))
    }

    /// The lowest level of the tenants that want anything.
    pub(super) fn least_level(&self) -> Level {
        let wanting = self.tenants.iter().filter(|tenant| tenant.wanted.iter().any(|(_, wanted)| wanted.sum > 0.0));
        wanting.map(|tenant| tenant.level).min().unwrap_or(Level::OPEN)
    }

    /// The level of the tenant in `place`.
    #[inline]
    pub(super) fn level(&self, place: u16) -> Level {
        self.tenants[usize::from(place)].level
    }

    /// Credits that the tenant in `place` holds.
    #[inline]
    pub(super) fn credits(&mut self, place: u16) -> &mut u32 {
        &mut self.tenants[usize::from(place)].credits
    }

    /// Calls a second of the tenant in `place`.
    #[inline]
    pub(super) fn share(&self, place: u16) -> f64 {
        self.tenants[usize::from(place)].share
    }

    /// Whether anybody is held back.
    #[inline]
    pub(super) fn throttled(&self) -> bool {
        self.throttled
    }

    /// The share of the capacity that goes to calls sure to be let through; 0 unless others are held back.
    #[inline]
    pub(super) fn preferred(&self) -> f64 {
        self.preferred
    }

    /// A session of the tenant in `place` was heard for the first time in this stretch, which wants a call every `gap`
    /// nanoseconds.
    #[inline]
    pub(super) fn on_active(&mut self, place: u16, gap: f64) {
        self.tenants[usize::from(place)].sizes.add(gap);
    }

    /// A stretch of calls ended: sessions are counted anew.
    pub(super) fn on_stretch(&mut self) {
        for tenant in &mut self.tenants {
            core::mem::swap(&mut tenant.sizes, &mut tenant.sizes_before);
            *tenant.sizes = Sizes::new();
            tenant.bound_for = 0.0;
        }
    }

    /// Calls of `priority` in a nanosecond that one session of the tenant in `place` may have at most.
    #[inline]
    pub(super) fn most_per_ns(&self, place: u16, priority: Priority) -> f64 {
        let tenant = &self.tenants[usize::from(place)];
        if tenant.level.is_sure(priority) { tenant.most_sure_per_ns } else { tenant.most_per_ns }
    }

    /// Calls in a stretch that are the max-min share of a session of the tenant in `place`.
    #[inline]
    pub(super) fn fair_calls(&self, place: u16) -> f64 {
        self.tenants[usize::from(place)].most_per_ns * self.stretch_ns
    }

    /// The same in a stretch of calls, and what chance adds.
    #[inline]
    pub(super) fn most_calls(&self, place: u16, priority: Priority) -> u16 {
        let tenant = &self.tenants[usize::from(place)];
        if tenant.level.is_sure(priority) { tenant.most_sure_calls } else { tenant.most_calls }
    }

    /// A call arrived that stands for `calls` wanted ones and is held back for its session's sake.
    #[inline]
    pub(super) fn on_held(&mut self, calls: f64) {
        self.held_tick += calls;
    }

    /// A call arrived that stands for `calls` wanted ones. True when it is time for [`Demand::tick`].
    #[inline]
    pub(super) fn on_call(&mut self, place: u16, priority: Priority, calls: f64, credited: bool, now: Instant) -> bool {
        let wanted = &mut self.tenants[usize::from(place)].wanted;
        // A handful of priorities at most: a search from the front beats a tree.
        let at = wanted.iter().position(|(known, _)| *known >= priority).unwrap_or(wanted.len());
        if wanted.get(at).is_none_or(|(known, _)| *known != priority) {
            insert(wanted, at, priority);
        }
        wanted[at].1.tick += calls;
        if credited {
            wanted[at].1.tick_credited += calls;
        }
        self.squares += calls * calls;
        self.calls += 1;
        self.calls >= TICK || now >= self.due
    }

    /// Calls until the next tick.
    #[cfg(test)]
    pub(super) fn calls_left(&self) -> u32 {
        TICK - self.calls
    }

    /// Time since the last tick.
    #[inline]
    pub(super) fn since_tick(&self, now: Instant) -> u64 {
        now.nanos_since(self.since)
    }

    /// Calls a second that are wanted, by the fading sums.
    pub(super) fn wanted(&self) -> f64 {
        let every = self.tenants.iter().flat_map(|tenant| &tenant.wanted);
        1e9 * every.map(|(_, wanted)| wanted.sum + wanted.tick).sum::<f64>() / self.time_ns.max(1.0)
    }

    /// Computes rates and levels anew for a server that shall be sent `supply` calls a second; all are let through if
    /// it is `None`. It has room for `room` calls, and serves the share `served` of the supply: refusals take the rest.
    #[expect(clippy::cast_precision_loss, reason = "a tick is far below 2^52 ns")]
    pub(super) fn tick(&mut self, supply: Option<f64>, served: f64, room: f64, now: Instant) {
        let elapsed = self.since_tick(now).max(1) as f64;
        self.fold(elapsed, room);
        if !self.left.is_empty() {
            self.free_left();
        }
        self.calls = 0;
        self.squares = 0.0;
        self.since = now;
        let Some(supply) = supply else {
            self.open();
            return;
        };
        let seconds = self.time_ns / 1e9;
        self.stretch_ns = 1e9 * f64::from(STRETCH) / supply;
        self.claims.clear();
        self.claims.extend(self.tenants.iter_mut().map(|tenant| {
            tenant.wanted.retain(|(_, wanted)| wanted.sum / seconds > FORGOTTEN * supply);
            let demand = tenant.wanted() / seconds;
            Claim { demand, weight: tenant.weight }
        }));
        let demand: f64 = self.claims.iter().map(|claim| claim.demand).sum();
        if demand <= supply {
            self.open();
            // Without those who are held back there is room for all others: as long as they are.
            self.throttled = demand + self.held / seconds > supply;
            if self.throttled {
                let (shares, stretch_ns) = (self.session_shares, self.stretch_ns);
                self.tenants.iter_mut().for_each(|tenant| tenant.bound_sessions(shares, served, supply, stretch_ns));
            }
            return;
        }
        weighted_max_min(supply, &self.claims, &mut self.order, &mut self.shares);
        let mut preferred = 0.0;
        for (tenant, &share) in self.tenants.iter_mut().zip(&self.shares) {
            tenant.share = share;
            let (level, sure) = level_for(&tenant.wanted, share * seconds);
            tenant.level = level;
            preferred += sure / seconds;
            tenant.bound_sessions(self.session_shares, served, supply, self.stretch_ns);
        }
        self.preferred = preferred / supply;
        self.throttled = true;
        self.due = now + Duration::from_secs_f64((OVERDUE * f64::from(TICK) / supply).clamp(1e-9, 1.0));
    }

    fn open(&mut self) {
        for tenant in &mut self.tenants {
            tenant.level = Level::OPEN;
            tenant.share = f64::MAX;
            tenant.unbind_sessions();
        }
        self.preferred = 0.0;
        self.throttled = false;
        self.due = Instant::MAX;
    }

    /// Whether what differs from the average `rate` is a step; `tick` calls in `elapsed` ns come to it.
    fn is_step(&mut self, tick: f64, rate: f64, elapsed: f64, room: f64) -> bool {
        let average = rate * elapsed;
        let so_far = &mut self.difference;
        // Ticks of a rush pass in no time: with it the pause before it must not be forgotten, or it would be a step.
        let fade = (1.0 - 1.0 / PATIENCE).powf((average / tick.max(1.0)).min(1.0));
        so_far.excess = so_far.excess * fade + tick - average;
        so_far.squares = so_far.squares * fade + self.squares;
        so_far.more = if tick > average * STEP { so_far.more + 1 } else { 0 };
        so_far.fewer = if tick < average / STEP { so_far.fewer + 1 } else { 0 };
        let sure = so_far.excess.abs() > (DEVIATIONS * so_far.squares.sqrt()).max(ROOMS * room);
        // A pause of the whole server is one tick with few calls: a lower demand is more of them.
        sure && if so_far.excess > 0.0 { so_far.more > 0 } else { so_far.fewer >= FEWER }
    }

    /// Adds the tick to the fading sums; a step replaces them.
    fn fold(&mut self, elapsed: f64, room: f64) {
        let every = || self.tenants.iter().flat_map(|tenant| &tenant.wanted);
        let tick = every().map(|(_, wanted)| wanted.tick).sum::<f64>();
        let rate = every().map(|(_, wanted)| wanted.sum).sum::<f64>() / self.time_ns.max(1.0);
        let step = self.is_step(tick, rate, elapsed, room);
        if step {
            self.difference = Difference::default();
        }
        let fade = if step { 0.0 } else { 1.0 - f64::from(self.calls) / (f64::from(TICK) * TICKS) };
        self.time_ns = self.time_ns * fade + elapsed;
        self.held = self.held * fade + core::mem::take(&mut self.held_tick);
        for (_, wanted) in self.tenants.iter_mut().flat_map(|tenant| &mut tenant.wanted) {
            wanted.sum = wanted.sum * fade + wanted.tick;
            wanted.credited = wanted.credited * fade + wanted.tick_credited;
            wanted.tick = 0.0;
            wanted.tick_credited = 0.0;
        }
    }
}

/// So many calls on average, and what chance adds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
fn with_chance(most: f64) -> u16 {
    (most + CHANCE * (most.sqrt() + 1.0)).clamp(1.0, f64::from(u16::MAX)) as u16
}

/// Few priorities come for the first time.
#[cold]
fn insert(wanted: &mut Vec<(Priority, Wanted)>, at: usize, priority: Priority) {
    wanted.insert(at, (priority, Wanted::default()));
}

/// The level at which `share` of the `wanted` calls is let through, the better priorities first; and what those
/// priorities want that are let through for sure.
fn level_for(wanted: &[(Priority, Wanted)], share: f64) -> (Level, f64) {
    // Credited calls come first, whatever they are; who sends more of them than it has credits takes nobody's place.
    let credited: f64 = wanted.iter().map(|(_, wanted)| wanted.credited).sum();
    let credited = credited.min(CREDITED * share);
    let left = (share - credited).max(0.0);
    let mut sure = 0.0;
    for (priority, wanted) in wanted {
        let by_level = wanted.sum - wanted.credited;
        if sure + by_level > left * (1.0 + 1e-9) {
            return (Level::at(*priority, (left - sure) / by_level), sure);
        }
        sure += by_level;
    }
    (Level::OPEN, sure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(wanted: &[(u32, f64)], share: f64) -> f64 {
        let mut sizes = Sizes::new();
        for &(sessions, each) in wanted {
            (0..sessions).for_each(|_| sizes.add(each.recip()));
        }
        sizes.water_level(share)
    }

    #[test]
    fn who_wants_little_leaves_the_rest_to_the_others() {
        let near = |level: f64, expected: f64| assert!((level - expected).abs() < 0.06 * expected, "{level}");
        near(level(&[(1, 1.3e-3), (20, 0.02e-3)], 1e-3), 0.6e-3);
        near(level(&[(1, 1.3e-3), (20, 0.05e-3)], 1e-3), 1e-3 / 21.0);
        near(level(&[(10, 1e-3)], 5e-3), 0.5e-3);
        near(level(&[(1, 5e-3), (1, 2e-3), (1000, 1e-6)], 6e-3), 3e-3);
        assert!(level(&[(20, 0.04e-3)], 1e-3) >= f64::MAX && level(&[], 1e-3) >= f64::MAX);
    }

    fn table(tenants: usize, weights: &[(u32, f64)]) -> (Demand, Config) {
        let weights = weights.iter().map(|&(name, weight)| (Tenant(name), weight)).collect();
        let config = Config { tenants, weights, ..Config::default() };
        (Demand::new(&config, Instant::ZERO), config)
    }

    /// Calls of the tenant in `place` alone, until what others wanted is forgotten.
    fn only(demand: &mut Demand, place: u16) {
        for at in 1..200_000 {
            let now = Instant::from_nanos(1_000 * at);
            if demand.on_call(place, Priority::DEFAULT, 1.0, false, now) {
                demand.tick(None, 1.0, 10.0, now);
            }
        }
    }

    #[test]
    fn the_place_of_a_tenant_without_sessions_and_demand_is_free_again() {
        let (mut demand, config) = table(3, &[]);
        let (one, two) = (demand.enter(Tenant(1), &config), demand.enter(Tenant(2), &config));
        assert!(!demand.on_call(one, Priority::DEFAULT, 1.0, false, Instant::from_nanos(1)));
        demand.leave(one);
        assert_eq!((demand.free.len(), demand.left.len()), (0, 1), "its calls are not forgotten");
        only(&mut demand, two);
        assert_eq!((demand.free.len(), demand.left.len(), demand.places.len()), (1, 0, 1));
        assert_eq!(demand.enter(Tenant(3), &config), one);
        assert_eq!(demand.enter(Tenant(1), &config), 2, "and comes back to another");
    }

    #[test]
    fn a_tenant_that_comes_back_in_time_has_its_place() {
        let (mut demand, config) = table(3, &[]);
        let (one, two) = (demand.enter(Tenant(1), &config), demand.enter(Tenant(2), &config));
        demand.leave(one);
        assert_eq!(demand.enter(Tenant(1), &config), one);
        only(&mut demand, two);
        assert_eq!((demand.free.len(), demand.left.len()), (0, 0));
    }

    #[test]
    fn at_the_bound_who_left_first_makes_room_and_then_the_last_place_is_shared() {
        let (mut demand, config) = table(3, &[]);
        let places = [1, 2, 3].map(|name| demand.enter(Tenant(name), &config));
        demand.leave(places[1]);
        demand.leave(places[0]);
        assert_eq!([4, 5, 6, 7].map(|name| demand.enter(Tenant(name), &config)), [places[1], places[0], 2, 2]);
        for name in 0..100_000 {
            let place = demand.enter(Tenant(1_000 + name), &config);
            demand.leave(place);
        }
        assert_eq!((demand.tenants.len(), demand.places.len(), demand.left.len()), (3, 3, 0));
    }

    #[test]
    fn a_tenant_with_a_weight_keeps_its_place() {
        let (mut demand, config) = table(2, &[(7, 2.0), (8, 3.0)]);
        let invented = [1, 2, 3].map(|name| demand.enter(Tenant(name), &config));
        let known = [7, 8].map(|name| demand.enter(Tenant(name), &config));
        assert_eq!((invented, known), ([2; 3], [0, 1]));
        demand.leave(known[0]);
        only(&mut demand, known[1]);
        assert_eq!(demand.enter(Tenant(7), &config), 0);
    }

    #[test]
    fn the_least_and_the_greatest_have_a_bucket() {
        let mut sizes = Sizes::new();
        for gap in [0.0, 0.5, 1.0, 1e15, f64::MAX] {
            sizes.add(gap);
        }
        assert_eq!((sizes.0[0], sizes.0[SIZES - 1]), (3, 2));
    }
}

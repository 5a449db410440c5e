//! The prototype: overflow token buckets, version 1, as its authors had it. The baseline.
//!
//! A tenant has T of L units for each tick, in proportion to what it used in the tick before; what is left over is
//! everybody's. Its holes are kept: a share of zero refuses nothing, so that nobody but the [`top`](RtbConfig::top)
//! tenants is limited, and nobody in its first tick; shares follow offered demand, so that a spike takes from those who
//! have none; the pool is served in order of arrival; a window of two ticks can give twice the limit; the penalty of a
//! gauge never ends, and what is given back pays the overflow first, whoever overflowed.
//!
//! Source: Koshiba, "Resource Constraints: Can you mute noisy neighbors?" (ATS Summit 2021), "Overflow Token Bucket", and
//! the prototype's code. What Tidegate does instead is [`neighbours`](super::neighbours).

use std::collections::BTreeMap;

use super::resource::Kind;

/// Settings of one resource.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RtbConfig {
    /// L: units for each tick, of a gauge units at once. 0: nothing is limited.
    pub limit: u64,
    /// Part of the limit that is never a share.
    pub red_zone: f64,
    /// Ticks for which a tenant that was refused keeps the share that it had.
    pub penalty_ticks: u32,
    /// Only so many tenants, those that use most, have a share.
    pub top: usize,
}

impl Default for RtbConfig {
    /// As in the prototype, without a limit.
    fn default() -> Self {
        Self { limit: 0, red_zone: 0.2, penalty_ticks: 60, top: 10 }
    }
}

/// One tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    observed: u64,
    overflowed: u64,
    token: u64,
    penalty: u64,
    penalty_age: u32,
    denied: u64,
}

/// One resource of one thread.
#[derive(Clone, PartialEq, Debug)]
pub struct Rtb {
    config: RtbConfig,
    kind: Kind,
    tenants: BTreeMap<u64, State>,
    overflow_used: u64,
    global: u64,
}

impl Rtb {
    /// Tenants that are told apart, as in the prototype; others are not limited.
    pub const TENANTS_MAX: usize = 1_000;

    /// Nobody is there.
    #[must_use]
    pub fn new(config: RtbConfig, kind: Kind) -> Self {
        Self { config, kind, tenants: BTreeMap::new(), overflow_used: 0, global: config.limit }
    }

    /// Whether the next unit of `tenant` is refused; counted if it is.
    pub fn is_full(&mut self, tenant: u64) -> bool {
        let (limit, overflow_full) = (self.config.limit, self.overflow_used > self.global);
        let Some(state) = self.tenants.get_mut(&tenant) else { return false };
        if limit == 0 || state.token == 0 || state.observed <= state.token || !overflow_full {
            return false;
        }
        state.denied += 1;
        true
    }

    /// A unit was used.
    pub fn inc(&mut self, tenant: u64) {
        self.inc_by(tenant, 1);
    }

    /// So many units were used, one after the other.
    pub fn inc_by(&mut self, tenant: u64, units: u64) {
        if self.tenants.len() >= Self::TENANTS_MAX && !self.tenants.contains_key(&tenant) {
            return;
        }
        let state = self.tenants.entry(tenant).or_default();
        state.observed += units;
        let beyond = if state.token == 0 { units } else { state.observed.saturating_sub(state.token).min(units) };
        state.overflowed += beyond;
        self.overflow_used += beyond;
    }

    /// A unit of a gauge was given back.
    pub fn dec(&mut self, tenant: u64) {
        self.dec_by(tenant, 1);
    }

    /// So many units of a gauge were given back.
    pub fn dec_by(&mut self, tenant: u64, units: u64) {
        if let Some(state) = self.tenants.get_mut(&tenant) {
            state.observed = state.observed.saturating_sub(units);
            let back = units.min(state.overflowed);
            state.overflowed -= back;
            self.overflow_used = self.overflow_used.saturating_sub(back);
        }
    }

    /// A tick ended: shares are set by what was used in it.
    pub fn tick(&mut self) {
        let mut order: Vec<u64> = self.tenants.keys().copied().collect();
        order.sort_by_key(|tenant| core::cmp::Reverse(self.tenants[tenant].observed));
        order.truncate(self.config.top);
        let overflow_full = self.overflow_used > self.global;
        let mut demand = 0;
        for tenant in &order {
            let state = self.tenants.get_mut(tenant).expect("it is a key");
            state.judge(overflow_full, self.config.penalty_ticks);
            demand += state.demand();
        }
        #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
        let unit = self.config.limit as f64 * (1.0 - self.config.red_zone) / demand.max(1) as f64;
        let mut given = 0;
        for (tenant, state) in &mut self.tenants {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "shares are below the limit"
            )]
            let token = (state.demand() as f64 * unit) as u64;
            state.token = if order.contains(tenant) { token } else { 0 };
            given += state.token;
            if self.kind == Kind::Counter {
                (state.observed, state.overflowed, state.denied) = (0, 0, 0);
            }
        }
        self.global = self.config.limit.saturating_sub(given);
        if self.kind == Kind::Counter {
            self.overflow_used = 0;
        }
    }

    /// T of a tenant.
    #[must_use]
    pub fn token(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(0, |state| state.token)
    }

    /// Tg: what is nobody's share.
    #[must_use]
    pub fn global(&self) -> u64 {
        self.global
    }

    /// Og: what was used beyond shares.
    #[must_use]
    pub fn overflow_used(&self) -> u64 {
        self.overflow_used
    }
}

impl State {
    fn judge(&mut self, overflow_full: bool, penalty_ticks: u32) {
        if self.penalty > 0 {
            self.penalty_age += 1;
            if self.penalty_age >= penalty_ticks {
                (self.penalty, self.penalty_age) = (0, 0);
            }
        } else if overflow_full && self.observed > self.token && self.denied > 0 {
            self.penalty = self.token;
        }
    }

    fn demand(&self) -> u64 {
        if self.penalty > 0 { self.penalty } else { self.observed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: RtbConfig = RtbConfig { limit: 10, red_zone: 0.2, penalty_ticks: 300, top: 10 };

    fn inc(rtb: &mut Rtb, tenant: u64, times: u32) {
        (0..times).for_each(|_| rtb.inc(tenant));
    }

    #[test]
    fn one_tenant() {
        let mut rtb = Rtb::new(TEN, Kind::Counter);
        inc(&mut rtb, 1, 3);
        rtb.tick();
        assert_eq!((rtb.token(1), rtb.global()), (8, 2));
        assert!(!rtb.is_full(1));
        inc(&mut rtb, 1, 11);
        assert!(rtb.is_full(1));
    }

    #[test]
    fn two_tenants() {
        let mut rtb = Rtb::new(TEN, Kind::Counter);
        inc(&mut rtb, 1, 3);
        inc(&mut rtb, 2, 4);
        rtb.tick();
        assert_eq!((rtb.token(1), rtb.token(2), rtb.global()), (3, 4, 3));
        inc(&mut rtb, 1, 11);
        inc(&mut rtb, 2, 4);
        assert!(rtb.is_full(1));
        assert!(!rtb.is_full(2));
    }

    #[test]
    fn a_gauge() {
        let mut rtb = Rtb::new(TEN, Kind::Gauge);
        inc(&mut rtb, 1, 3);
        rtb.tick();
        inc(&mut rtb, 1, 11);
        (0..9).for_each(|_| rtb.dec(1));
        assert!(!rtb.is_full(1));
        inc(&mut rtb, 1, 11);
        assert!(rtb.is_full(1));
        rtb.tick();
        assert!(rtb.is_full(1), "it stays full over a tick");
        (0..16).for_each(|_| rtb.dec(1));
        assert_eq!(rtb.overflow_used(), 0);
        assert!(!rtb.is_full(1));
    }

    #[test]
    fn shares_and_what_is_left_sum_to_the_limit_after_every_tick() {
        let mut rng = tidegate_core::Rng::new(1);
        for kind in [Kind::Counter, Kind::Gauge] {
            let mut rtb = Rtb::new(TEN, kind);
            for _ in 0..1_000 {
                for tenant in 1..=20 {
                    for _ in 0..rng.below(5) {
                        if !rtb.is_full(tenant) {
                            rtb.inc(tenant);
                        }
                    }
                    (0..rng.below(5)).for_each(|_| rtb.dec(tenant));
                }
                rtb.tick();
                let given: u64 = (1..=20).map(|tenant| rtb.token(tenant)).sum();
                assert_eq!(given + rtb.global(), 10);
            }
        }
    }

    /// The slides' experiment, tick by tick, with what goes wrong in it.
    #[test]
    fn when_the_penalty_ends_a_quiet_tenant_pays_for_the_spike() {
        let mut rtb = Rtb::new(RtbConfig { limit: 2_560, penalty_ticks: 3, ..TEN }, Kind::Counter);
        let tick = |rtb: &mut Rtb, spike: u32| {
            let mut refused = [0, 0];
            for n in 0..spike.max(100) {
                for (at, tenant, want) in [(0, 1, 100), (1, 2, spike)] {
                    // Evenly over the tick.
                    let due = |n: u32| u64::from(want) * u64::from(n) / u64::from(spike.max(100));
                    for _ in due(n)..due(n + 1) {
                        refused[at] += u32::from(rtb.is_full(tenant));
                        // What was refused was seen as well.
                        rtb.inc(tenant);
                    }
                }
            }
            rtb.tick();
            refused
        };
        tick(&mut rtb, 100);
        assert_eq!((rtb.token(1), rtb.token(2), rtb.global()), (1_024, 1_024, 512));
        assert_eq!(tick(&mut rtb, 3_200)[0], 0, "the pool and B's share are used up, A has its own");
        assert_eq!(rtb.token(1), 182, "the penalty holds B's demand at its last share");
        assert!(rtb.token(1) > 100);
        for _ in 0..3 {
            tick(&mut rtb, 3_200);
        }
        assert_eq!(rtb.token(1), 62, "less than A's demand: a spike took A's share");
    }
}

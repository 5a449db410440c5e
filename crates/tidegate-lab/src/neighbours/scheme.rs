//! The limiters that are compared, behind one face.

use core::fmt;
use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};
use tidegate_proxy::machine::neighbours::{Capacity, Neighbours, NeighboursConfig, Source, Stage, Tenant, Verdict};
use tidegate_proxy::machine::rate_limit::{Decision, RateLimit, RateLimitConfig};
use tidegate_proxy::machine::resource::{Kind, Resource};
use tidegate_proxy::machine::rtb::{Rtb, RtbConfig};

use super::trace::Trace;
use crate::statistics::float;

/// Who limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Nobody.
    None,
    /// Traffic Server's plugin: a number for each tenant, set by hand.
    RateLimit,
    /// The prototype of overflow token buckets.
    Rtb,
    /// Overflow token buckets as they are here.
    Tidegate,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::RateLimit, Self::Rtb, Self::Tidegate];

    /// Its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RateLimit => "rate_limit",
            Self::Rtb => "rtb",
            Self::Tidegate => "tidegate",
        }
    }

    /// The scheme of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Units of each resource.
pub(super) type Shares = BTreeMap<Resource, f64>;

/// What a tenant of a trace is called: one name, or many that it makes up.
pub(super) struct Names {
    tenants: Vec<Tenant>,
    next: usize,
}

impl Names {
    /// Each in its turn.
    fn take(&mut self) -> Tenant {
        let tenant = self.tenants[self.next];
        self.next = (self.next + 1) % self.tenants.len();
        tenant
    }
}

/// A limiter with the tenants of a trace.
pub(super) enum Limiter {
    None,
    /// One for each tenant, and the number of the piece that came last.
    RateLimit(Vec<RateLimit>, u64),
    Rtb(BTreeMap<Resource, Rtb>),
    Tidegate(Box<Neighbours>, Vec<Names>),
}

impl Limiter {
    pub(super) fn new(scheme: Scheme, trace: &Trace, now: Instant) -> Self {
        match scheme {
            Scheme::None => Self::None,
            Scheme::RateLimit => Self::RateLimit(rate_limits(trace, now), 0),
            Scheme::Rtb => {
                let limited = trace.capacity.iter().map(|(resource, capacity)| {
                    let limit = match resource.kind() {
                        Kind::Counter => capacity.saturating_mul(trace.tick_ms) / 1_000,
                        Kind::Gauge => *capacity,
                    };
                    (*resource, Rtb::new(RtbConfig { limit, ..RtbConfig::default() }, resource.kind()))
                });
                Self::Rtb(limited.collect())
            }
            Scheme::Tidegate => {
                let mut config = NeighboursConfig { mode: trace.mode, ..NeighboursConfig::default() };
                for (resource, capacity) in &trace.capacity {
                    config = config.with(*resource, Capacity::Fixed(*capacity));
                }
                let weighted = trace.tenants.iter().filter(|tenant| tenant.weight != 1);
                config.weights = weighted.map(|tenant| (tenant.name.clone(), tenant.weight)).collect();
                let mut neighbours = Neighbours::new(config, now);
                let tenants = trace.tenants.iter().zip(0_u32..).map(|(tenant, at)| {
                    let mut name = |number: u32| match tenant.made_up_names {
                        0 | 1 => neighbours.tenant(&tenant.name, now),
                        _ => {
                            let source = Source::of(Ipv4Addr::from_bits(at).into());
                            neighbours.tenant_from(&format!("{}-{number}", tenant.name), source, now)
                        }
                    };
                    let tenants = (0..tenant.made_up_names.max(1)).map(&mut name).collect();
                    Names { tenants, next: 0 }
                });
                let tenants = tenants.collect();
                Self::Tidegate(Box::new(neighbours), tenants)
            }
        }
    }

    /// Whether a piece of a tenant's work is admitted.
    pub(super) fn ask(&mut self, at: usize, costs: &[(Resource, u64)], now: Instant) -> bool {
        match self {
            Self::None => true,
            Self::RateLimit(limits, piece) => {
                *piece += 1;
                matches!(limits[at].on_arrival(*piece, now), Decision::Admit)
            }
            Self::Rtb(limits) => ask_rtb(limits, at, costs),
            Self::Tidegate(neighbours, tenants) => {
                let verdict = neighbours.try_take(tenants[at].take(), Stage::Request, costs, now);
                matches!(verdict, Verdict::Admit { .. })
            }
        }
    }

    /// The number of the piece that was admitted last, for [`release`](Self::release).
    pub(super) fn piece(&self) -> u64 {
        if let Self::RateLimit(_, piece) = self { *piece } else { 0 }
    }

    /// A piece of work gives back what it held.
    pub(super) fn release(&mut self, at: usize, piece: u64, costs: &[(Resource, u64)], now: Instant) {
        let held = costs.iter().filter(|(resource, _)| resource.kind() == Kind::Gauge);
        match self {
            Self::None => {}
            Self::RateLimit(limits, _) => {
                let _ = limits[at].on_end(piece, now);
            }
            Self::Rtb(limits) => {
                for (resource, cost) in held {
                    if let Some(rtb) = limits.get_mut(resource) {
                        rtb.dec_by(key(at), *cost);
                    }
                }
            }
            Self::Tidegate(neighbours, tenants) => {
                held.for_each(|(resource, cost)| neighbours.release(tenants[at].tenants[0], *resource, *cost, now));
            }
        }
    }

    /// Lets its timers run until `now`.
    pub(super) fn pass(&mut self, now: Instant) {
        if let Self::Tidegate(neighbours, _) = self {
            while let Some(due) = neighbours.next_timeout().filter(|due| *due <= now) {
                neighbours.on_timeout(due);
            }
        }
    }

    /// A tick of the trace ended: for the prototype, its own.
    pub(super) fn tick(&mut self) {
        if let Self::Rtb(limits) = self {
            limits.values_mut().for_each(Rtb::tick);
        }
    }

    /// What each tenant may use in a tick of its own right, in units; of what is held, at once.
    pub(super) fn shares(&self, trace: &Trace) -> Vec<Shares> {
        let seconds = float(trace.tick_ms) / 1e3;
        match self {
            Self::None | Self::RateLimit(..) => trace.tenants.iter().map(|_| Shares::new()).collect(),
            Self::Rtb(limits) => {
                let of = |at| limits.iter().map(move |(resource, rtb)| (*resource, float(rtb.token(key(at)))));
                (0..trace.tenants.len()).map(|at| of(at).collect()).collect()
            }
            Self::Tidegate(neighbours, tenants) => {
                let of = |names: &Names| {
                    let tenant = names.tenants[0];
                    let shares = trace.capacity.keys().filter_map(|resource| {
                        let per = if resource.kind() == Kind::Gauge { 1.0 } else { seconds };
                        Some((*resource, neighbours.share(tenant, *resource)? * per))
                    });
                    shares.collect()
                };
                tenants.iter().map(of).collect()
            }
        }
    }
}

/// The plugin's limiters: as many pieces per second, or at once, as the trace says, or an equal part.
fn rate_limits(trace: &Trace, now: Instant) -> Vec<RateLimit> {
    let (resource, capacity) = trace.first();
    let count = u64::try_from(trace.tenants.len()).unwrap_or(u64::MAX);
    let limits = trace.tenants.iter().map(|tenant| {
        let costs = trace.costs(tenant);
        let cost = costs.iter().find(|(other, _)| *other == resource).map_or(1, |(_, cost)| (*cost).max(1));
        let pieces = tenant.rate_limit.unwrap_or(capacity / cost / count).max(1);
        let mut config = RateLimitConfig::default();
        if trace.holds() {
            config.limit = Some(u32::try_from(pieces).unwrap_or(u32::MAX));
        } else {
            // The plugin's bucket holds what a second gives.
            config.rate = Some(Limit::new(Rate::per_s(pieces), pieces));
        }
        RateLimit::new(config, now)
    });
    limits.collect()
}

fn ask_rtb(limits: &mut BTreeMap<Resource, Rtb>, at: usize, costs: &[(Resource, u64)]) -> bool {
    let mut full = false;
    for (resource, _) in costs {
        full |= limits.get_mut(resource).is_some_and(|rtb| rtb.is_full(key(at)));
    }
    // Its counters see what was refused as well; what was refused is not held.
    for (resource, cost) in costs.iter().filter(|(resource, _)| resource.kind() == Kind::Counter || !full) {
        if let Some(rtb) = limits.get_mut(resource) {
            rtb.inc_by(key(at), *cost);
        }
    }
    !full
}

/// The prototype's tenants are numbers; 0 is nobody.
fn key(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX - 1) + 1
}

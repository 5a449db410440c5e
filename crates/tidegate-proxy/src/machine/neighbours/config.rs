//! Settings of [`Neighbours`](super::Neighbours); the defaults need no change.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::share::CAPACITY_MAX;

use crate::machine::Resource;
use crate::machine::resource::grains;

/// What the limiter does with what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing: everything is admitted, nothing is counted.
    Off,
    /// It counts whom it would have refused, and admits everybody: a dry run.
    Stats,
    /// It refuses.
    #[default]
    Restrict,
}

/// How much there is of a resource, for one core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// Found out. Time of the core is: by [`on_idle`](super::Neighbours::on_idle). What costs such time, as handshakes
    /// and requests do, is limited by it. Nothing else is limited then.
    #[default]
    Learnt,
    /// So many units per second; of a gauge so many units.
    Fixed(u64),
}

/// Settings of [`Neighbours`](super::Neighbours).
#[derive(Clone, PartialEq, Debug)]
pub struct NeighboursConfig {
    /// What it does.
    pub mode: Mode,
    /// Capacities, by [`Resource::index`].
    pub capacities: [Capacity; Resource::COUNT],
    /// Tenants whose weight is not 1; they stay in the table when idle.
    pub weights: Vec<(String, u32)>,
    /// Most tenants in the table, 1 to [`TENANTS_MAX`](Self::TENANTS_MAX); who finds no room shares with
    /// [`Tenant::OTHER`](super::Tenant::OTHER).
    pub tenants_max: u32,
    /// From one sharing-out to the next. 100 ms: a tenant is muted before a person notices.
    pub tick: Duration,
    /// Part of a capacity that is nobody's share, for who needs more suddenly; whoever wants may borrow it. 0.2: as in
    /// the prototype.
    pub reserve: f64,
    /// Part of a capacity that is kept for tenants that were not there before; lent while unused.
    pub newcomers: f64,
    /// What a share exceeds its tenant's demand by, as a part of the demand.
    pub headroom: f64,
    /// A bucket's depth, as a span of its rate.
    pub burst: Duration,
    /// A tenant that asked for nothing for so long has no share.
    pub idle_after: Duration,
}

impl NeighboursConfig {
    /// Most tenants that a table can have.
    pub const TENANTS_MAX: u32 = (1 << 20) - 1;
    /// The greatest [`reserve`](Self::reserve).
    pub const RESERVE_MAX: f64 = 0.9;
    /// The greatest part for [`newcomers`](Self::newcomers): beside the greatest reserve, shares are left.
    pub const NEWCOMERS_MAX: f64 = 0.05;

    /// The greatest capacity of `resource` for one core; a greater one counts as this.
    #[must_use]
    pub fn capacity_max(resource: Resource) -> u64 {
        CAPACITY_MAX / grains(resource)
    }

    /// The defaults with this capacity of `resource`.
    #[must_use]
    pub fn with(mut self, resource: Resource, capacity: Capacity) -> Self {
        self.capacities[resource.index()] = capacity;
        self
    }
}

impl Default for NeighboursConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Restrict,
            capacities: [Capacity::Learnt; Resource::COUNT],
            weights: Vec::new(),
            tenants_max: Self::TENANTS_MAX,
            tick: Duration::from_millis(100),
            reserve: 0.2,
            newcomers: 0.05,
            headroom: 0.1,
            burst: Duration::from_millis(100),
            idle_after: Duration::from_secs(30),
        }
    }
}

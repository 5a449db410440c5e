//! What tenants ask for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_proxy::machine::neighbours::Mode;
use tidegate_proxy::machine::resource::{Kind, Resource};

/// Most pieces of work in a trace: a minute of a fast machine.
const WORK_MAX: u64 = 20_000_000;
const TICKS_MAX: u32 = 100_000;
const TENANTS_MAX: usize = 10_000;
const NAMES_MAX: u32 = 100_000;

/// Tenants and what they ask for in each tick; read from TOML or JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Length of a tick of the trace, and of the prototype's; 1,000 as there.
    #[serde(default = "second_ms")]
    pub tick_ms: u64,
    /// How many ticks are played.
    pub ticks: u32,
    /// What Tidegate does with what it finds.
    #[serde(default)]
    pub mode: Mode,
    /// Same seed, same arrivals.
    #[serde(default)]
    pub seed: u64,
    /// What is limited: units per second, of connections and memory units at once.
    pub capacity: BTreeMap<Resource, u64>,
    /// Who asks.
    pub tenants: Vec<TenantTrace>,
}

/// One tenant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantTrace {
    /// Its name.
    pub name: String,
    /// What it counts beside others, for Tidegate.
    #[serde(default = "one")]
    pub weight: u32,
    /// If there are several, it is not one tenant but an address that makes up so many names, for Tidegate, and says one after
    /// the other; 100,000 at most.
    #[serde(default = "one")]
    pub made_up_names: u32,
    /// How its work is spread over a tick.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Pieces of work in each tick; after the last one as in the last one.
    pub work: Vec<u64>,
    /// What a piece takes of each resource; without it a unit of each that is limited.
    #[serde(default)]
    pub cost: BTreeMap<Resource, u64>,
    /// How long a piece holds what it holds.
    #[serde(default)]
    pub hold_ms: u64,
    /// Its number for `rate_limit`: pieces per second, or at once if something is held. Without it an equal part of the
    /// capacity.
    #[serde(default)]
    pub rate_limit: Option<u64>,
}

/// How work is spread over a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Even,
    /// At random; the numbers are means.
    Poisson,
}

/// Why a trace cannot be played.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The text is none.
    #[error("{message}")]
    Text {
        /// What is wrong, and where.
        message: String,
    },
    /// Nobody asks for anything.
    #[error("a trace has 1 to {TENANTS_MAX} tenants and 1 to {TICKS_MAX} ticks of 1 ms to a minute")]
    Shape,
    /// Nothing is limited.
    #[error("`capacity` names no resource, or one of which there is nothing")]
    Capacity,
    /// Two tenants have one name.
    #[error("two tenants are called `{name}`")]
    Twice {
        /// Which.
        name: String,
    },
    /// A tenant makes no sense.
    #[error(
        "`{name}`: `work` has a number for at least one tick, `weight` is 1 to 10,000, `made_up_names` 1 to 100,000, and 1 \
         where something is held"
    )]
    Tenant {
        /// Which.
        name: String,
    },
    /// It would take too long.
    #[error("{work} pieces of work; at most {WORK_MAX} are played")]
    Long {
        /// How many.
        work: u64,
    },
}

/// How a trace is written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

impl Trace {
    /// Reads a trace, and checks it.
    ///
    /// # Errors
    /// If the text is no trace, or the trace makes no sense.
    pub fn parse(text: &str, format: Format) -> Result<Self, TraceError> {
        let parsed: Result<Self, String> = match format {
            Format::Toml => toml::from_str(text).map_err(|error| error.to_string()),
            Format::Json => serde_json::from_str(text).map_err(|error| error.to_string()),
        };
        let trace = parsed.map_err(|message| TraceError::Text { message: message.trim_end().to_owned() })?;
        trace.check()?;
        Ok(trace)
    }

    /// Checks what no single value can be wrong about.
    ///
    /// # Errors
    /// The first thing that makes no sense.
    pub fn check(&self) -> Result<(), TraceError> {
        let shape = (1..=TENANTS_MAX).contains(&self.tenants.len())
            && (1..=TICKS_MAX).contains(&self.ticks)
            && (1..=60_000).contains(&self.tick_ms);
        if !shape {
            return Err(TraceError::Shape);
        }
        if self.capacity.is_empty() || self.capacity.values().any(|units| *units == 0) {
            return Err(TraceError::Capacity);
        }
        let mut names: Vec<&str> = self.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(TraceError::Twice { name: pair[0].to_owned() });
        }
        for tenant in &self.tenants {
            let names = if self.holds() { 1..=1 } else { 1..=NAMES_MAX };
            let counts = (1..=10_000).contains(&tenant.weight) && names.contains(&tenant.made_up_names);
            if tenant.work.is_empty() || !counts {
                return Err(TraceError::Tenant { name: tenant.name.clone() });
            }
        }
        let work = (0..self.ticks).flat_map(|tick| self.tenants.iter().map(move |tenant| tenant.work_in(tick)));
        let work = work.fold(0, u64::saturating_add);
        if work > WORK_MAX { Err(TraceError::Long { work }) } else { Ok(()) }
    }

    /// The resource that `rate_limit` is about: the first that is limited.
    pub(crate) fn first(&self) -> (Resource, u64) {
        let (resource, capacity) = self.capacity.first_key_value().expect("a checked trace limits something");
        (*resource, *capacity)
    }

    /// True if something limited is held and given back.
    pub(crate) fn holds(&self) -> bool {
        self.capacity.keys().any(|resource| resource.kind() == Kind::Gauge)
    }

    /// What a piece of a tenant's work takes.
    pub(crate) fn costs(&self, tenant: &TenantTrace) -> Vec<(Resource, u64)> {
        if tenant.cost.is_empty() {
            return self.capacity.keys().map(|resource| (*resource, 1)).collect();
        }
        tenant.cost.iter().map(|(resource, cost)| (*resource, *cost)).collect()
    }
}

impl TenantTrace {
    /// Pieces of work in a tick.
    #[must_use]
    pub fn work_in(&self, tick: u32) -> u64 {
        let at = usize::try_from(tick).unwrap_or(usize::MAX).min(self.work.len().saturating_sub(1));
        self.work.get(at).copied().unwrap_or(0)
    }
}

const fn second_ms() -> u64 {
    1_000
}

const fn one() -> u32 {
    1
}

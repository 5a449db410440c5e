//! A scheme by its name and its settings, and the two machines that they make.

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};

use crate::machine::any::{AnyClient, AnyServer};
use crate::machine::breakwater::{BreakwaterClient, BreakwaterServer};
use crate::machine::client_rate::ClientRateClient;
use crate::machine::credits::{CreditClient, CreditServer};
use crate::machine::dagor::{DagorClient, DagorServer};
use crate::machine::none::{EagerClient, OpenServer};
use crate::machine::probing::{ProbingClient, ProbingServer};
use crate::machine::seda::SedaClient;
use crate::machine::static_limit::StaticLimitServer;
use crate::machine::{Tenant, aqm, breakwater, client_rate, credits, dagor, none, probing, seda, static_limit};

/// A scheme of overload control with its settings: `kind` is its name, all other keys are its own.
///
/// ```
/// use tidegate_rpc::config::Scheme;
///
/// let scheme: Scheme = serde_json::from_str(r#"{"kind": "breakwater", "target_delay_us": 45}"#)?;
/// assert_eq!(scheme.name(), "breakwater");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Scheme {
    /// Tidegate's credits, the default.
    Tidegate(credits::Config),
    /// Breakwater as published.
    Breakwater(breakwater::Config),
    /// DAGOR.
    Dagor(dagor::Config),
    /// SEDA.
    Seda(seda::Config),
    /// Drops by delay at the server, nothing at the clients.
    Aqm(aqm::Config),
    /// A fixed rate for each client.
    ClientRate(client_rate::Config),
    /// Clients that ask before they send.
    Probing(probing::Config),
    /// A fixed number of calls in the server.
    StaticLimit(static_limit::Config),
    /// No control.
    None(none::Config),
}

impl Default for Scheme {
    fn default() -> Self {
        Self::Tidegate(credits::Config::default())
    }
}

/// A setting that makes no sense.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// It is outside its range.
    #[error("`{key}` is {found}, but must be from {least} to {most}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// Its value.
        found: f64,
        /// The least that it may be.
        least: f64,
        /// The most that it may be.
        most: f64,
    },
    /// Breakwater's clients would have no way to ask for a second credit.
    #[error("without `over_commitment` clients need `exact_demand` to ask for credit")]
    NobodyAsks,
}

impl Scheme {
    /// The names of all schemes, Tidegate's own first.
    pub const NAMES: [&'static str; 9] =
        ["tidegate", "breakwater", "dagor", "seda", "aqm", "client_rate", "probing", "static_limit", "none"];

    /// The scheme of this name with its default settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "tidegate" => Self::Tidegate(credits::Config::default()),
            "breakwater" => Self::Breakwater(breakwater::Config::default()),
            "dagor" => Self::Dagor(dagor::Config::default()),
            "seda" => Self::Seda(seda::Config::default()),
            "aqm" => Self::Aqm(aqm::Config::default()),
            "client_rate" => Self::ClientRate(client_rate::Config::default()),
            "probing" => Self::Probing(probing::Config::default()),
            "static_limit" => Self::StaticLimit(static_limit::Config::default()),
            "none" => Self::None(none::Config::default()),
            _ => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tidegate(_) => "tidegate",
            Self::Breakwater(_) => "breakwater",
            Self::Dagor(_) => "dagor",
            Self::Seda(_) => "seda",
            Self::Aqm(_) => "aqm",
            Self::ClientRate(_) => "client_rate",
            Self::Probing(_) => "probing",
            Self::StaticLimit(_) => "static_limit",
            Self::None(_) => "none",
        }
    }

    /// Its server, for `cores` cores. The settings are those that [`check`](Self::check) accepts.
    #[must_use]
    pub fn server(&self, cores: u32, now: Instant) -> AnyServer {
        let queue = |max_sessions| AnyServer::Open(OpenServer::new(none::Config { max_sessions }));
        match self {
            Self::Tidegate(config) => AnyServer::Tidegate(CreditServer::new(config.clone(), cores, now)),
            Self::Breakwater(config) => AnyServer::Breakwater(BreakwaterServer::new(*config, cores, now)),
            Self::Dagor(config) => AnyServer::Dagor(DagorServer::new(*config, now)),
            Self::Aqm(config) => AnyServer::Aqm(aqm::AqmServer::new(*config)),
            Self::Probing(config) => AnyServer::Probing(ProbingServer::new(*config, now)),
            Self::StaticLimit(config) => AnyServer::StaticLimit(StaticLimitServer::new(*config)),
            Self::Seda(config) => queue(config.max_sessions),
            Self::ClientRate(config) => queue(config.max_sessions),
            Self::None(config) => queue(config.max_sessions),
        }
    }

    /// The client of a fresh connection. The settings are those that [`check`](Self::check) accepts.
    #[must_use]
    pub fn client(&self, tenant: Tenant, now: Instant, rng: &mut Rng) -> AnyClient {
        match self {
            Self::Tidegate(_) => AnyClient::Tidegate(CreditClient::new(tenant, rng)),
            Self::Breakwater(config) => AnyClient::Breakwater(BreakwaterClient::new(config, now)),
            Self::Dagor(config) => AnyClient::Dagor(DagorClient::new(config, rng)),
            Self::Seda(config) => AnyClient::Seda(Box::new(SedaClient::new(config, now, rng))),
            Self::ClientRate(config) => AnyClient::ClientRate(ClientRateClient::new(config, now, rng)),
            Self::Probing(config) => AnyClient::Probing(ProbingClient::new(config, now)),
            Self::Aqm(_) | Self::StaticLimit(_) | Self::None(_) => AnyClient::Eager(EagerClient),
        }
    }

    /// Whether the settings make sense. Those of Tidegate's own scheme always do.
    ///
    /// # Errors
    /// The first setting that does not.
    pub fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Tidegate(config) => check_tidegate(config),
            Self::Breakwater(config) => check_breakwater(config),
            Self::Dagor(config) => check_dagor(config),
            Self::Seda(config) => check_seda(config),
            Self::Aqm(config) => {
                span("drop_delay_us", config.drop_delay_us)?;
                sessions(config.max_sessions)
            }
            Self::ClientRate(config) => {
                within("rate_per_s", config.rate_per_s, 1e-3, 1e9)?;
                within("burst", precise(config.burst), 1.0, 1e9)?;
                queue(config.queue_calls, config.expiry_us)?;
                sessions(config.max_sessions)
            }
            Self::Probing(config) => {
                span("target_delay_us", config.target_delay_us)?;
                span("period_us", config.period_us)?;
                within("lease_us", precise(config.lease_us), 0.0, LONGEST_US)?;
                queue(config.queue_calls, config.expiry_us)?;
                sessions(config.max_sessions)
            }
            Self::StaticLimit(config) => {
                within("limit", f64::from(config.limit), 1.0, f64::from(u32::MAX))?;
                sessions(config.max_sessions)
            }
            Self::None(config) => sessions(config.max_sessions),
        }
    }
}

fn check_tidegate(config: &credits::Config) -> Result<(), Invalid> {
    match config.objective {
        credits::Objective::Multiple(times) => within("objective.multiple", times, 1.0, 1e6)?,
        credits::Objective::Fixed(span) => within("objective.fixed", span.as_secs_f64(), 1e-6, LONGEST_US / 1e6)?,
    }
    within("sessions", precise(config.sessions as u64), 1.0, f64::from(1_u32 << 30))?;
    within("tenants", precise(config.tenants as u64), 1.0, 65_536.0)?;
    for (_, weight) in &config.weights {
        within("weights", *weight, 1e-6, 1e6)?;
    }
    if let Some(limit) = config.in_flight {
        within("in_flight", f64::from(limit), 1.0, f64::from(u32::MAX))?;
    }
    within("session_shares", config.session_shares, 1.0, 1e6)
}

fn check_breakwater(config: &breakwater::Config) -> Result<(), Invalid> {
    span("target_delay_us", config.target_delay_us)?;
    span("drop_delay_us", config.drop_delay_us)?;
    span("control_period_us", config.control_period_us)?;
    within("increase", config.increase, 0.0, 1e3)?;
    within("decrease", config.decrease, 0.0, 1e3)?;
    within("decrease_floor", config.decrease_floor, 0.0, 1.0)?;
    within("slots", f64::from(config.slots), 2.0, 1024.0)?;
    queue(config.queue_calls, config.expiry_us)?;
    sessions(config.max_sessions)?;
    if config.over_commitment || config.exact_demand { Ok(()) } else { Err(Invalid::NobodyAsks) }
}

fn check_dagor(config: &dagor::Config) -> Result<(), Invalid> {
    span("target_delay_us", config.target_delay_us)?;
    span("period_us", config.period_us)?;
    span("window_us", config.window_us)?;
    within("smoothing", config.smoothing, 0.0, 1.0)?;
    within("window_requests", f64::from(config.window_requests), 1.0, f64::from(u32::MAX))?;
    within("levels", f64::from(config.levels), 2.0, 256.0)?;
    within("initial_threshold", f64::from(config.initial_threshold), 0.0, f64::from(config.levels) - 1.0)?;
    within("decrease", config.decrease, 0.0, 1.0)?;
    within("increase", config.increase, 0.0, 1.0)?;
    sessions(config.max_sessions)
}

fn check_seda(config: &seda::Config) -> Result<(), Invalid> {
    span("target_us", config.target_us)?;
    span("window_us", config.window_us)?;
    within("burst", config.burst, 1.0, 1e9)?;
    within("rate_per_s_min", config.rate_per_s_min, 1e-3, 1e9)?;
    within("initial_per_s_min", config.initial_per_s_min, config.rate_per_s_min, 1e9)?;
    within("initial_per_s_max", config.initial_per_s_max, config.initial_per_s_min, 1e9)?;
    within("window_responses", f64::from(config.window_responses), 1.0, 1e4)?;
    within("smoothing", config.smoothing, 0.0, 1.0)?;
    within("decrease", config.decrease, 1.0, 1e3)?;
    within("increase_per_s", config.increase_per_s, 0.0, 1e9)?;
    within("increase_below", config.increase_below, -1.0, 0.0)?;
    within("increase_offset", config.increase_offset, 0.0, -config.increase_below)?;
    queue(config.queue_calls, config.expiry_us)?;
    sessions(config.max_sessions)
}

/// A quarter of an hour: longer than anything that a call waits for.
const LONGEST_US: f64 = 1e9;

fn span(key: &'static str, us: u64) -> Result<(), Invalid> {
    within(key, precise(us), 1.0, LONGEST_US)
}

fn queue(calls: u32, expiry_us: u64) -> Result<(), Invalid> {
    within("queue_calls", f64::from(calls), 1.0, 4096.0)?;
    span("expiry_us", expiry_us)
}

fn sessions(most: u32) -> Result<(), Invalid> {
    within("max_sessions", f64::from(most), 1.0, f64::from(1 << 21))
}

/// Also refuses what is not a number.
fn within(key: &'static str, found: f64, least: f64, most: f64) -> Result<(), Invalid> {
    if (least..=most).contains(&found) { Ok(()) } else { Err(Invalid::OutOfRange { key, found, least, most }) }
}

#[expect(clippy::cast_precision_loss, reason = "the bounds are far below 2^53")]
fn precise(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_scheme_whose_defaults_make_sense_and_come_back_from_text() {
        for name in Scheme::NAMES {
            let scheme = Scheme::named(name).unwrap();
            assert_eq!((scheme.name(), scheme.check()), (name, Ok(())));
            let text = serde_json::to_string(&scheme).unwrap();
            assert_eq!(serde_json::from_str::<Scheme>(&text).unwrap(), scheme, "{text}");
            let bare: Scheme = serde_json::from_str(&format!(r#"{{"kind": "{name}"}}"#)).unwrap();
            assert_eq!(bare, scheme);
        }
        assert_eq!(Scheme::named("hope"), None);
        assert_eq!(Scheme::default().name(), "tidegate");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let text = r#"{"kind": "breakwater", "target_delay": 45}"#;
        let error = serde_json::from_str::<Scheme>(text).unwrap_err().to_string();
        assert!(error.contains("target_delay"), "{error}");
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_named() {
        let breakwater = |change: fn(&mut breakwater::Config)| {
            let mut config = breakwater::Config::default();
            change(&mut config);
            Scheme::Breakwater(config).check().unwrap_err().to_string()
        };
        assert_eq!(
            breakwater(|config| config.target_delay_us = 0),
            "`target_delay_us` is 0, but must be from 1 to 1000000000"
        );
        assert!(breakwater(|config| config.decrease = f64::NAN).starts_with("`decrease` is NaN"));
        assert!(breakwater(|config| config.over_commitment = false).contains("exact_demand"));
        let credits = credits::Config { session_shares: 0.5, ..credits::Config::default() };
        assert!(Scheme::Tidegate(credits).check().unwrap_err().to_string().starts_with("`session_shares` is 0.5"));
        let objective = credits::Objective::Multiple(f64::NAN);
        let credits = credits::Config { objective, ..credits::Config::default() };
        assert!(Scheme::Tidegate(credits).check().unwrap_err().to_string().starts_with("`objective.multiple`"));
        let seda = seda::Config { initial_per_s_max: 1.0, ..seda::Config::default() };
        assert!(Scheme::Seda(seda).check().unwrap_err().to_string().starts_with("`initial_per_s_max`"));
    }
}

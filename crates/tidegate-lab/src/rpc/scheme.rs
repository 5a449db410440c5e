//! Schemes by name, each run with its own machines so that nothing is looked up at each event.

use tidegate_core::Instant;
use tidegate_rpc::machine::breakwater::{self, BreakwaterClient, BreakwaterServer};
use tidegate_rpc::machine::credits::{self, CreditClient, CreditServer};

use super::report::{Report, measure};
use super::scenario::{Scenario, ScenarioError};

/// A scheme of overload control with its settings.
#[derive(Clone, PartialEq, Debug)]
pub enum Scheme {
    /// Tidegate's credits.
    Tidegate(credits::Config),
    /// Breakwater as published.
    Breakwater(breakwater::Config),
}

impl Scheme {
    /// What [`named`](Self::named) knows.
    pub const NAMES: [&'static str; 2] = ["tidegate", "breakwater"];

    /// The scheme of this name with its default settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tidegate" => Some(Self::Tidegate(credits::Config::default())),
            "breakwater" => Some(Self::Breakwater(breakwater::Config::default())),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tidegate(_) => "tidegate",
            Self::Breakwater(_) => "breakwater",
        }
    }
}

/// Runs `scenario` under `scheme`.
///
/// # Errors
/// [`ScenarioError`] if the scenario makes no sense or the server cannot hold its clients.
pub fn measure_scheme(scenario: &Scenario, scheme: &Scheme) -> Result<Report, ScenarioError> {
    let (cores, now) = (scenario.cores, Instant::ZERO);
    match scheme {
        Scheme::Tidegate(config) => {
            let server = CreditServer::new(config.clone(), cores, now);
            measure(scenario, server, |tenant, _, rng| CreditClient::new(tenant, rng))
        }
        Scheme::Breakwater(config) => {
            let server = BreakwaterServer::new(*config, cores, now);
            measure(scenario, server, |_, now, _| BreakwaterClient::new(config, now))
        }
    }
}

//! Each scheme with its own machines, so that nothing is looked up at each event.

use tidegate_core::Instant;
use tidegate_rpc::config::Scheme;
use tidegate_rpc::machine::aqm::AqmServer;
use tidegate_rpc::machine::breakwater::{BreakwaterClient, BreakwaterServer};
use tidegate_rpc::machine::client_rate::ClientRateClient;
use tidegate_rpc::machine::credits::{CreditClient, CreditServer};
use tidegate_rpc::machine::dagor::{DagorClient, DagorServer};
use tidegate_rpc::machine::none::{self, EagerClient, OpenServer};
use tidegate_rpc::machine::probing::{ProbingClient, ProbingServer};
use tidegate_rpc::machine::seda::SedaClient;
use tidegate_rpc::machine::static_limit::StaticLimitServer;

use super::report::{Report, measure};
use super::scenario::{Scenario, ScenarioError};

/// Runs `scenario` under `scheme`.
///
/// # Errors
/// [`ScenarioError`] if the scenario or the scheme makes no sense or the server cannot hold its clients.
pub fn measure_scheme(scenario: &Scenario, scheme: &Scheme) -> Result<Report, ScenarioError> {
    scheme.check()?;
    let (cores, now) = (scenario.cores, Instant::ZERO);
    let open = |max_sessions| OpenServer::new(none::Config { max_sessions });
    match scheme {
        Scheme::Tidegate(config) => {
            let server = CreditServer::new(config.clone(), cores, now);
            measure(scenario, server, |tenant, _, rng| CreditClient::new(tenant, rng))
        }
        Scheme::Breakwater(config) => {
            let server = BreakwaterServer::new(*config, cores, now);
            measure(scenario, server, |_, now, _| BreakwaterClient::new(config, now))
        }
        Scheme::Dagor(config) => {
            measure(scenario, DagorServer::new(*config, now), |_, _, rng| DagorClient::new(config, rng))
        }
        Scheme::Seda(config) => {
            measure(scenario, open(config.max_sessions), |_, now, rng| SedaClient::new(config, now, rng))
        }
        Scheme::ClientRate(config) => {
            measure(scenario, open(config.max_sessions), |_, now, rng| ClientRateClient::new(config, now, rng))
        }
        Scheme::Probing(config) => {
            measure(scenario, ProbingServer::new(*config, now), |_, now, _| ProbingClient::new(config, now))
        }
        Scheme::Aqm(config) => measure(scenario, AqmServer::new(*config), |_, _, _| EagerClient),
        Scheme::StaticLimit(config) => measure(scenario, StaticLimitServer::new(*config), |_, _, _| EagerClient),
        Scheme::None(config) => measure(scenario, open(config.max_sessions), |_, _, _| EagerClient),
    }
}

//! `tidegate demo neighbours`: one noisy neighbour, twice.
//!
//! | module | its one job |
//! |---|---|
//! | `plan` | what is offered, to whom, and what is good |
//! | `service` | what stands behind each proxy: its capacity is stated |
//! | `proxies` | the two proxies, alike but for their limits |
//! | `stage` | the noise that is asked for, and what both sides show |
//! | `figures` | a tenant over the last few seconds |
//! | `headless` | a script, a table and a verdict instead of the page |
//!
//! Everything runs in this process, over real sockets on loopback: the production proxy with threads of its own, tenants
//! with a thread each, services that wait rather than compute.

mod figures;
mod headless;
mod plan;
mod proxies;
mod service;
mod stage;

use std::sync::Arc;
use std::time::Duration;

use tidegate_console::{ConsoleConfig, ProxySource};
use tidegate_load::http::live::{LiveConfig, LiveSource};
use tidegate_runtime::clock;

use self::plan::{Plan, Side, Tenant};
use self::proxies::Proxies;
use self::stage::{Both, Stage};
use super::theatre::{self, Theatre};
use crate::cli::Showing;
use crate::failure::Failure;
use crate::output::Style;
use crate::servers::{Bound, Servers};
use crate::token::Token;
use crate::up;

/// What the page begins with: already too much, so that the two sides part while one looks.
const NOISE_AT_START: f64 = 1_600.0;
/// Both sides, each time: everybody sees the same demo.
const SEED: u64 = 1;
/// Requests of a tenant that are under way at once. A service lets 200 wait and refuses the rest at once, so that more are
/// needed by a machine alone that is short of processor.
const CONNECTIONS: u32 = 400;

pub(crate) fn run(args: &Showing) -> Result<(), Failure> {
    theatre::log_little()?;
    up::runtime()?.block_on(async {
        if !args.headless {
            return theatre::watch(&args.address, || Neighbourhood::open(NOISE_AT_START)).await;
        }
        let script = headless::script(Duration::from_secs(args.seconds));
        let stage = theatre::perform(&script, || Neighbourhood::open(script[0].0)).await?;
        headless::report(&stage, Style::of(args.json))
    })
}

/// The two proxies, the services behind them and who sends to them.
struct Neighbourhood {
    stage: Arc<Stage>,
    services: Servers,
    proxies: Proxies,
    tenants: Both<LiveSource>,
    token: Token,
}

impl Neighbourhood {
    async fn open(noise: f64) -> Result<Self, Failure> {
        let token = Token::generate().map_err(|error| Failure::new("cannot make a token").because(error))?;
        let plan = Plan::default();
        let mut services = Servers::new();
        let mut behind = Vec::new();
        for _ in Side::BOTH {
            let bound = Bound::bind(&theatre::anywhere()).await?;
            behind.push(super::socket_address(&bound.address)?);
            services.serve(bound, None, service::router(&plan));
        }
        let [left, right] = behind[..] else { return Err(Failure::new("a service is missing")) };
        let proxies = Proxies::start(&plan, [left, right], &token).await?;
        let at = proxies.addresses;
        let tenant = |side: Side, tenant: Tenant| {
            LiveSource::start(&LiveConfig {
                address: at[side as usize],
                name: tenant.host().to_owned(),
                connections: CONNECTIONS,
                rate_per_s: plan.offered_per_s(tenant, noise),
                timeout_ms: u64::try_from(plan.deadline.as_millis()).unwrap_or(u64::MAX),
                // The same for both sides: they are asked the same.
                seed: SEED + tenant as u64,
            })
            .map_err(super::load_failed)
        };
        let both = |side| Ok::<_, Failure>([tenant(side, Tenant::Quiet)?, tenant(side, Tenant::Noisy)?]);
        let tenants = [both(Side::Left)?, both(Side::Right)?];
        Ok(Self { stage: Arc::new(Stage::new(plan, noise)), services, proxies, tenants, token })
    }
}

impl Theatre for Neighbourhood {
    type Stage = Stage;

    fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn console(&self) -> ConsoleConfig {
        let source = |(side, admin): (Side, &String)| ProxySource {
            name: side.as_str().to_owned(),
            admin_url: admin.clone(),
            token: Some(self.token.reveal().to_owned()),
        };
        let proxies = Side::BOTH.into_iter().zip(&self.proxies.admin).map(source).collect();
        ConsoleConfig { proxies, ..ConsoleConfig::default() }
    }

    /// Until somebody's load breaks off.
    async fn play(&self) -> Failure {
        let offer = |noise| self.tenants.iter().for_each(|[_, noisy]| noisy.set_rate(noise));
        let sample = || {
            let seen = self.tenants.each_ref().map(|side| side.each_ref().map(LiveSource::snapshot));
            self.stage.sample(clock::now(), &seen);
            let is_running = self.tenants.iter().flatten().all(LiveSource::is_running);
            is_running.then_some(()).ok_or_else(|| Failure::new("this machine ended the load"))
        };
        theatre::follow(self.stage.noise(), offer, sample).await
    }

    /// Ends load, proxies, services.
    async fn close(self) -> Result<(), Failure> {
        let Self { services, proxies, tenants, .. } = self;
        let stopped =
            tokio::task::spawn_blocking(move || tenants.into_iter().flatten().map(LiveSource::stop).collect());
        let stopped: Vec<_> = stopped.await.expect("it returns its errors");
        proxies.stop().await;
        services.stop().await;
        stopped.into_iter().try_for_each(|stopped| stopped.map_err(super::load_failed))
    }
}

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

use tidegate_broker::config::Address;
use tidegate_console::{ConsoleConfig, ProxySource};
use tidegate_load::http::live::{LiveConfig, LiveSource};
use tidegate_runtime::clock;
use tidegate_runtime::telemetry::{self, Format};
use tokio::time::{MissedTickBehavior, interval};

use self::plan::{Plan, Side, Tenant};
use self::proxies::Proxies;
use self::stage::{Both, Stage};
use super::control;
use super::stage::SAMPLE;
use crate::cli::Showing;
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::servers::{Bound, Servers};
use crate::signals::Signals;
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
    telemetry::init(Format::Human, "warn").map_err(|error| Failure::new(&error).because(error))?;
    up::runtime()?.block_on(async {
        if args.headless {
            headless(Duration::from_secs(args.seconds), Style::of(args.json)).await
        } else {
            watch(&args.address).await
        }
    })
}

/// The two proxies, the services behind them and who sends to them.
struct Theatre {
    stage: Arc<Stage>,
    services: Servers,
    proxies: Proxies,
    tenants: Both<LiveSource>,
    token: Token,
}

impl Theatre {
    async fn open(noise: f64) -> Result<Self, Failure> {
        let token = Token::generate().map_err(|error| Failure::new("cannot make a token").because(error))?;
        let plan = Plan::default();
        let mut services = Servers::new();
        let mut behind = Vec::new();
        for _ in Side::BOTH {
            let bound = Bound::bind(&anywhere()).await?;
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

    /// Follows the noise that is asked for and takes the figures, until somebody's load breaks off.
    async fn play(&self) -> Failure {
        let mut noise = self.stage.noise();
        let mut sample = interval(SAMPLE);
        sample.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                changed = noise.changed() => {
                    if changed.is_err() {
                        return Failure::new("the demo lost its stage");
                    }
                    let noise = *noise.borrow_and_update();
                    self.tenants.iter().for_each(|[_, noisy]| noisy.set_rate(noise));
                }
                _ = sample.tick() => {
                    let seen = self.tenants.each_ref().map(|side| side.each_ref().map(LiveSource::snapshot));
                    self.stage.sample(clock::now(), &seen);
                    if !self.tenants.iter().flatten().all(LiveSource::is_running) {
                        return Failure::new("this machine ended the load");
                    }
                }
            }
        }
    }

    /// Ends load, proxies, services. What broke off by itself says why.
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

async fn headless(noise: Duration, style: Style) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let theatre = Theatre::open(*plan::NOISE.start()).await?;
    let stage = Arc::clone(&theatre.stage);
    let ended = tokio::select! {
        done = headless::perform(&stage, noise) => done,
        broken = theatre.play() => Err(broken),
        () = signals.wait() => Err(Failure::new("stopped before the end")),
    };
    let closed = theatre.close().await;
    ended.and(closed)?;
    headless::report(&stage, style)
}

async fn watch(address: &str) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let page = Bound::bind(&super::page_address(address)?).await?;
    let control = Bound::bind(&anywhere()).await?;
    let theatre = Theatre::open(NOISE_AT_START).await?;

    let mut servers = Servers::new();
    let console = ConsoleConfig {
        proxies: sources(&theatre),
        write_token: theatre.token.reveal().to_owned(),
        demo: control.local_authority().map(|authority| format!("http://{authority}")),
        stop: Some(servers.stopping()),
        ..ConsoleConfig::default()
    };
    servers.serve(control, None, control::router(Arc::clone(&theatre.stage)));
    let authority = page.local_authority().unwrap_or_default();
    servers.serve(page, None, tidegate_console::router(console));
    output::line(format_args!("http://{authority}/demo#token={}", theatre.token.reveal()))?;
    output::line("Open it in a browser. Ctrl-C ends the demo and leaves nothing behind.")?;

    let broken = tokio::select! {
        broken = theatre.play() => Err(broken),
        () = signals.wait() => Ok(()),
    };
    servers.stop().await;
    let closed = theatre.close().await;
    broken.and(closed)
}

fn sources(theatre: &Theatre) -> Vec<ProxySource> {
    let source = |(side, admin): (Side, &String)| ProxySource {
        name: side.as_str().to_owned(),
        admin_url: admin.clone(),
        token: Some(theatre.token.reveal().to_owned()),
    };
    Side::BOTH.into_iter().zip(&theatre.proxies.admin).map(source).collect()
}

fn anywhere() -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }
}

//! `tidegate demo`: the same overload twice, side by side.
//!
//! | module | its one job |
//! |---|---|
//! | `plan` | what is offered, to whom, and what is good |
//! | `troupe` | publishers and consumer of one broker, over real TCP |
//! | `stage` | the load that is asked for, and what both sides show |
//! | `meter` | figures of the last few seconds |
//! | `theatre` | how every demo is shown, on a page or by script |
//! | `control`, `slider` | what a page can ask of a demo; its slider and its button |
//! | `headless` | a script, a table and a verdict instead of the page |
//! | `neighbours` | `tidegate demo neighbours`: one noisy neighbour, twice |
//! | `rpc` | `tidegate demo rpc`: one overload, five schemes of overload control |
//! | `shaper` | `tidegate demo shaper`: one limit of bandwidth, with long queues and with short ones |
//! | `srtm` | `tidegate demo srtm`: a limit split over six brokers, a topic placed on the fewest, and the split with lending |
//!
//! Brokers run in this process. They are the production broker on real sockets; a process each would add that one
//! of them may die alone and leave its children behind, and would show nothing more: what is scarce is the consumer.

mod control;
mod headless;
mod meter;
mod neighbours;
mod plan;
mod rpc;
mod shaper;
mod slider;
mod srtm;
mod stage;
mod theatre;
mod troupe;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_broker::config::{Address, Config, Options, QueuePolicy};
use tidegate_broker::io::admin::{Target, Transient};
use tidegate_broker::machine::limiter::Contract;
use tidegate_console::{BrokerSource, ConsoleConfig};
use tidegate_load::LoadError;
use tidegate_runtime::clock;

use self::plan::{Plan, Role};
use self::stage::{Name, Stage};
use self::theatre::Theatre;
use self::troupe::Troupe;
use crate::cli::{Demo, DemoOf};
use crate::failure::Failure;
use crate::output::Style;
use crate::running::{Running, Setup};
use crate::scratch::Folder;
use crate::settings;
use crate::token::Token;
use crate::up;

/// What the page begins with: already too much, so that the two sides part while one looks.
const LOAD_AT_START: f64 = 1.5;
/// Both sides, each time: everybody sees the same demo.
const SEED: u64 = 1;

pub(crate) fn run(args: &Demo) -> Result<(), Failure> {
    match &args.of {
        Some(DemoOf::Rpc(args)) => return rpc::run(args),
        Some(DemoOf::Neighbours(args)) => return neighbours::run(args),
        Some(DemoOf::Shaper(args)) => return shaper::run(args),
        Some(DemoOf::Srtm(args)) => return srtm::run(args),
        None => {}
    }
    let args = &args.showing;
    theatre::log_little()?;
    up::runtime()?.block_on(async {
        if !args.headless {
            return theatre::watch(&args.address, || Twins::open(LOAD_AT_START)).await;
        }
        let script = headless::script(Duration::from_secs(args.seconds));
        let stage = theatre::perform(&script, || Twins::open(script[0].0)).await?;
        headless::report(&stage, Style::of(args.json))
    })
}

/// The two brokers and who makes their load.
struct Twins {
    stage: Arc<Stage>,
    brokers: [Running; 2],
    troupes: [Troupe; 2],
    token: Token,
    /// Goes last: the brokers write into it while they stop.
    _folder: Folder,
}

impl Twins {
    async fn open(load: f64) -> Result<Self, Failure> {
        let system = |error: std::io::Error| Failure::new("cannot prepare a folder for the brokers").because(error);
        let folder = Folder::new("demo").map_err(system)?;
        let token = Token::generate().map_err(system)?;
        let plan = Plan::default();
        let without = side(Name::Without, plan, &folder, &token).await?;
        let with = side(Name::With, plan, &folder, &token).await?;
        let brokers = [without, with];
        let mut troupes = Vec::new();
        for broker in &brokers {
            let address = socket_address(&broker.tcp)?;
            let started = tokio::task::spawn_blocking(move || Troupe::start(address, plan, load, SEED)).await;
            troupes.push(started.expect("it returns its errors").map_err(load_failed)?);
        }
        let troupes = troupes.try_into().map_err(|_| Failure::new("a side is missing"))?;
        Ok(Self { stage: Arc::new(Stage::new(plan, load)), brokers, troupes, token, _folder: folder })
    }
}

impl Theatre for Twins {
    type Stage = Stage;

    fn stage(&self) -> &Arc<Stage> {
        &self.stage
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn console(&self) -> ConsoleConfig {
        let source = |(name, broker): (Name, &Running)| {
            Some(BrokerSource {
                name: name.as_str().to_owned(),
                admin_url: format!("http://{}", broker.admin.as_ref()?.here),
                token: Some(self.token.reveal().to_owned()),
            })
        };
        let brokers = Name::BOTH.into_iter().zip(&self.brokers).filter_map(source).collect();
        ConsoleConfig { brokers, ..ConsoleConfig::default() }
    }

    /// Until a side's load breaks off.
    async fn play(&self) -> Failure {
        let offer = |load| self.troupes.iter().for_each(|troupe| troupe.offer(load));
        let sample = || {
            let totals = self.troupes.each_ref().map(Troupe::totals);
            self.stage.sample(clock::now(), &totals);
            let is_playing = self.troupes.iter().all(Troupe::is_playing);
            is_playing.then_some(()).ok_or_else(|| Failure::new("a broker dropped its publishers or its consumer"))
        };
        theatre::follow(self.stage.offered(), offer, sample).await
    }

    /// Ends load, then brokers.
    async fn close(self) -> Result<(), Failure> {
        let Self { brokers, troupes, _folder, .. } = self;
        let stopped = tokio::task::spawn_blocking(move || troupes.map(Troupe::stop)).await;
        let stopped = stopped.expect("it returns its errors");
        for broker in brokers {
            broker.stop().await?;
        }
        stopped.into_iter().try_for_each(|stopped| stopped.map_err(load_failed))
    }
}

/// One of the two brokers: alike, but for the limit.
async fn side(name: Name, plan: Plan, folder: &Folder, token: &Token) -> Result<Running, Failure> {
    let options = Options {
        mem_queue_size: i64::try_from(plan.queue).ok(),
        // What a flooded broker without limits does to its oldest messages; the disk stays out of it.
        queue_policy: Some(QueuePolicy::DropOldest),
        ..Options::default()
    };
    let limited = Target { topic: plan::topic_name(Role::Noisy), channel: None };
    let limits = match name {
        Name::Without => Vec::new(),
        Name::With => vec![(limited, plan.contract())],
    };
    broker(&folder.path().join(name.as_str()), options, limits, token).await
}

/// A broker of its own for a demo: on ports of loopback that the system picks, with its data in a new folder.
async fn broker(
    data_path: &Path,
    options: Options,
    limits: Vec<(Target, Contract)>,
    token: &Token,
) -> Result<Running, Failure> {
    std::fs::create_dir(data_path).map_err(|error| Failure::new("cannot make a folder").because(error))?;
    let anywhere = || Some(theatre::anywhere().to_string());
    let options = Options {
        tcp_address: anywhere(),
        http_address: Some(String::new()),
        admin_address: anywhere(),
        data_path: Some(data_path.to_owned()),
        // One is plenty for some thousand messages per second, and leaves the machine to the browser.
        shards: Some(1),
        ..options
    };
    let config = Config::from_options(options, &settings::host()).map_err(Failure::new)?;
    let store = Arc::new(Transient::default());
    Running::start(Setup { config: Arc::new(config), limits, store, token: Some(token.clone()) }).await
}

fn socket_address(address: &Address) -> Result<SocketAddr, Failure> {
    address.to_string().parse().map_err(|_| Failure::new(format!("{address} is no socket address")))
}

fn load_failed(error: LoadError) -> Failure {
    Failure::new(&error).because(error)
}

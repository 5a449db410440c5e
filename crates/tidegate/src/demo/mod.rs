//! `tidegate demo`: the same overload twice, side by side.
//!
//! | module | its one job |
//! |---|---|
//! | `plan` | what is offered, to whom, and what is good |
//! | `troupe` | publishers and consumer of one broker, over real TCP |
//! | `stage` | the load that is asked for, and what both sides show |
//! | `meter` | figures of the last few seconds |
//! | `control` | a page's slider and button, for every demo |
//! | `headless` | a script, a table and a verdict instead of the page |
//! | `neighbours` | `tidegate demo neighbours`: one noisy neighbour, twice |
//! | `rpc` | `tidegate demo rpc`: one overload, five schemes of overload control |
//!
//! Both brokers run in this process. They are the production broker on real sockets; a process each would add that one
//! of them may die alone and leave its children behind, and would show nothing more: what is scarce is the consumer.

mod control;
mod headless;
mod meter;
mod neighbours;
mod plan;
mod rpc;
mod stage;
mod troupe;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_broker::config::{Address, Config, Options, QueuePolicy};
use tidegate_broker::io::admin::{Target, Transient};
use tidegate_console::{BrokerSource, ConsoleConfig};
use tidegate_load::LoadError;
use tidegate_runtime::clock;
use tidegate_runtime::telemetry::{self, Format};
use tokio::time::{MissedTickBehavior, interval};

use self::plan::{Plan, Role};
use self::stage::{Name, SAMPLE, Stage};
use self::troupe::Troupe;
use crate::cli::{Demo, DemoOf};
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::running::{Running, Setup};
use crate::scratch::Folder;
use crate::servers::{Bound, Servers};
use crate::settings;
use crate::signals::Signals;
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
        None => {}
    }
    let args = &args.showing;
    telemetry::init(Format::Human, "warn").map_err(|error| Failure::new(&error).because(error))?;
    up::runtime()?.block_on(async {
        if args.headless {
            headless(Duration::from_secs(args.seconds), Style::of(args.json)).await
        } else {
            watch(&args.address).await
        }
    })
}

/// The two brokers and who makes their load.
struct Theatre {
    stage: Arc<Stage>,
    brokers: [Running; 2],
    troupes: [Troupe; 2],
    token: Token,
    /// Goes last: the brokers write into it while they stop.
    _folder: Folder,
}

impl Theatre {
    async fn open(load: f64) -> Result<Self, Failure> {
        let system = |error: std::io::Error| Failure::new("cannot prepare a folder for the brokers").because(error);
        let folder = Folder::new("demo").map_err(system)?;
        let token = Token::generate().map_err(system)?;
        let plan = Plan::default();
        let without = broker(Name::Without, plan, &folder, &token).await?;
        let with = broker(Name::With, plan, &folder, &token).await?;
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

    /// Follows the load that is asked for and takes the figures, until a side's load breaks off.
    async fn play(&self) -> Failure {
        let mut offered = self.stage.offered();
        let mut sample = interval(SAMPLE);
        sample.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                changed = offered.changed() => {
                    if changed.is_err() {
                        return Failure::new("the demo lost its stage");
                    }
                    let load = *offered.borrow_and_update();
                    self.troupes.iter().for_each(|troupe| troupe.offer(load));
                }
                _ = sample.tick() => {
                    let totals = self.troupes.each_ref().map(Troupe::totals);
                    self.stage.sample(clock::now(), &totals);
                    if !self.troupes.iter().all(Troupe::is_playing) {
                        return Failure::new("a broker dropped its publishers or its consumer");
                    }
                }
            }
        }
    }

    /// Ends load, then brokers. What broke off by itself says why.
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

async fn headless(overload: Duration, style: Style) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let theatre = Theatre::open(headless::CALM.0).await?;
    let stage = Arc::clone(&theatre.stage);
    let ended = tokio::select! {
        done = headless::perform(&stage, overload) => done,
        broken = theatre.play() => Err(broken),
        () = signals.wait() => Err(Failure::new("stopped before the end")),
    };
    let closed = theatre.close().await;
    ended.and(closed)?;
    headless::report(&stage, style)
}

async fn watch(address: &str) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let page = Bound::bind(&page_address(address)?).await?;
    let control = Bound::bind(&Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }).await?;
    let theatre = Theatre::open(LOAD_AT_START).await?;

    let mut servers = Servers::new();
    let console = ConsoleConfig {
        brokers: sources(&theatre),
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

fn sources(theatre: &Theatre) -> Vec<BrokerSource> {
    let source = |(name, broker): (Name, &Running)| {
        Some(BrokerSource {
            name: name.as_str().to_owned(),
            admin_url: format!("http://{}", broker.admin.as_ref()?),
            token: Some(theatre.token.reveal().to_owned()),
        })
    };
    Name::BOTH.into_iter().zip(&theatre.brokers).filter_map(source).collect()
}

/// One of the two brokers: alike, but for the limit.
async fn broker(name: Name, plan: Plan, folder: &Folder, token: &Token) -> Result<Running, Failure> {
    let data_path = folder.path().join(name.as_str());
    std::fs::create_dir(&data_path).map_err(|error| Failure::new("cannot make a folder").because(error))?;
    let anywhere = || Some("127.0.0.1:0".to_owned());
    let options = Options {
        tcp_address: anywhere(),
        http_address: Some(String::new()),
        admin_address: anywhere(),
        data_path: Some(data_path),
        // One is plenty for some thousand messages per second, and leaves the machine to the browser.
        shards: Some(1),
        mem_queue_size: i64::try_from(plan.queue).ok(),
        // What a flooded broker without limits does to its oldest messages; the disk stays out of it.
        queue_policy: Some(QueuePolicy::DropOldest),
        ..Options::default()
    };
    let config = Config::from_options(options, &settings::host()).map_err(Failure::new)?;
    let limited = Target { topic: plan::topic_name(Role::Noisy), channel: None };
    let limits = match name {
        Name::Without => Vec::new(),
        Name::With => vec![(limited, plan.contract())],
    };
    let store = Arc::new(Transient::default());
    Running::start(Setup { config: Arc::new(config), limits, store, token: Some(token.clone()) }).await
}

fn page_address(text: &str) -> Result<Address, Failure> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_matches(['[', ']']).to_owned();
        Some(Address::Tcp { host, port: port.parse().ok()? })
    });
    parsed.ok_or_else(|| {
        Failure::usage(format!("{text:?} is no address")).help("write address:port, such as 127.0.0.1:7070")
    })
}

fn socket_address(address: &Address) -> Result<SocketAddr, Failure> {
    address.to_string().parse().map_err(|_| Failure::new(format!("{address} is no socket address")))
}

fn load_failed(error: LoadError) -> Failure {
    Failure::new(&error).because(error)
}

//! The shaper, the load through it, and the switch that is thrown while packets pass.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_console::ConsoleConfig;
use tidegate_load::LoadError;
use tidegate_load::tcp::receive::{ReceiveConfig, Receiver};
use tidegate_load::tcp::report::SendReport;
use tidegate_load::tcp::send::{self, SendConfig};
use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::agent::{AgentHandle, Switch};
use tidegate_shaper::io::netns::Namespace;
use tidegate_shaper::io::view::{DeviceView, State};

use super::hosts::{DEVICE, Host, Hosts};
use super::told::{self, Told};
use crate::cli::ShaperDemo;
use crate::demo::theatre;
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::servers::{Bound, Servers};
use crate::shaper::ShaperRunning;
use crate::signals::Signals;
use crate::token::Token;
use crate::up;

/// What the class may send.
pub(super) const RATE_MBPS: f64 = 1_000.0;
const FLOWS: usize = 4;
/// Requests of 64 bytes beside the flows.
const REQUESTS_PER_S: u32 = 1_000;
const PORT: u16 = 5201;
/// From the first byte until figures count. The switch is thrown within.
const WARM_UP: Duration = Duration::from_millis(2_500);
/// From the first byte until the switch is thrown: the flows have found the rate by then.
const SWITCH_AFTER: Duration = Duration::from_secs(1);
/// The agent reads the kernel's counts once a second.
const READ: Duration = Duration::from_millis(1_200);

/// What is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Off,
    On,
    Isolated,
}

impl Act {
    const ALL: [Self; 3] = [Self::Off, Self::On, Self::Isolated];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Off => "control off",
            Self::On => "control on",
            Self::Isolated => "isolation on",
        }
    }
}

pub(crate) fn run(args: &ShaperDemo) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "the demo needs root: it makes network namespaces and loads programs into the kernel",
        )
        .help("start it with sudo; it touches no device of this machine"));
    }
    theatre::log_little()?;
    let runtime = up::runtime()?;
    let ended = runtime.block_on(play(args));
    // Load that a signal cut off is not waited for: its threads end with the process.
    runtime.shutdown_background();
    ended
}

async fn play(args: &ShaperDemo) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let page = if args.headless { None } else { Some(Bound::bind(&theatre::page_address(&args.address)?).await?) };
    let hosts = beside(Hosts::make).await?;
    let ended = tokio::select! {
        ended = show(args, page, &hosts) => ended,
        () = signals.wait() => Err(Failure::new("stopped before the end")),
    };
    beside(move || drop(hosts)).await;
    output::passing("");
    let told = ended?;
    told::tell(&told, Style::of(args.json))
}

/// Work that waits, in a thread of its own.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it returns its errors")
}

async fn show(args: &ShaperDemo, page: Option<Bound>, hosts: &Hosts) -> Result<Vec<Told>, Failure> {
    let token = Token::generate().map_err(|error| Failure::new("cannot make a token").because(error))?;
    let shaper = ShaperRunning::start(config(hosts, Act::On)?, &token).await?;
    let mut servers = Servers::new();
    if let Some(page) = page {
        let authority = page.local_authority().unwrap_or_default();
        let console = ConsoleConfig {
            shaper: shaper.console_source(&token),
            write_token: token.reveal().to_owned(),
            stop: Some(servers.stopping()),
            ..ConsoleConfig::default()
        };
        servers.serve(page, None, tidegate_console::router(console));
        output::line(format_args!("http://{authority}/shaper#token={}", token.reveal()))?;
        output::line("Open it in a browser while the demo runs. Ctrl-C ends it and leaves nothing behind.")?;
    }
    let ended = all(args, hosts, &shaper.handle()).await;
    servers.stop().await;
    shaper.stop().await;
    ended
}

async fn all(args: &ShaperDemo, hosts: &Hosts, agent: &AgentHandle) -> Result<Vec<Told>, Failure> {
    can_control(&device(agent)?)?;
    let receiver = hosts.namespace(Host::Receiver)?;
    let address = SocketAddr::from((Host::Receiver.address(), PORT));
    let receiving = ReceiveConfig { address, connections: 64, ..ReceiveConfig::default() };
    let receiver = beside(move || within(&receiver, || Receiver::start(&receiving))).await?;
    let mut told = Vec::new();
    for act in Act::ALL {
        if act == Act::Isolated {
            let reloaded = agent.reload(config(hosts, act)?).await;
            reloaded.map_err(|error| Failure::new("the shaper does not isolate").because(error))?;
            tokio::time::sleep(READ).await;
            can_control(&device(agent)?)?;
        }
        if !args.json {
            output::passing(format_args!("{}: {} s of {FLOWS} flows and a probe", act.title(), args.seconds));
        }
        told.push(one(args, hosts, agent, act).await?);
    }
    beside(move || receiver.stop()).await.map_err(load_failed)?;
    Ok(told)
}

/// One act: the load begins, the switch is thrown, and then figures count.
async fn one(args: &ShaperDemo, hosts: &Hosts, agent: &AgentHandle, act: Act) -> Result<Told, Failure> {
    let sending = SendConfig {
        address: SocketAddr::from((Host::Receiver.address(), PORT)),
        flows: FLOWS,
        congestion: "cubic".to_owned(),
        requests_per_s: REQUESTS_PER_S,
        warm_up_ms: u64::try_from(WARM_UP.as_millis()).unwrap_or(u64::MAX),
        duration_ms: args.seconds * 1_000,
        ..SendConfig::default()
    };
    let dropped_before = drops(&device(agent)?);
    let sender = hosts.namespace(Host::Sender)?;
    let load = tokio::task::spawn_blocking(move || within(&sender, || send::run(&sending)));
    tokio::time::sleep(SWITCH_AFTER).await;
    let switch = if act == Act::Off { Switch::Off } else { Switch::On };
    agent.switch(switch).await.map_err(|error| Failure::new("the control was not switched").because(error))?;
    let report: SendReport = load.await.expect("it returns its errors")?;
    tokio::time::sleep(READ).await;
    let drops = drops(&device(agent)?).saturating_sub(dropped_before);
    Ok(Told { act, report, drops })
}

/// Does `work` in a namespace: its sockets and threads are of there.
fn within<T: Send>(namespace: &Namespace, work: impl FnOnce() -> Result<T, LoadError> + Send) -> Result<T, Failure> {
    let done = namespace.run(work);
    let done = done.map_err(|error| Failure::new("cannot enter a namespace of the demo").because(error))?;
    done.map_err(load_failed)
}

fn load_failed(error: LoadError) -> Failure {
    Failure::new("the load broke off").because(error)
}

fn device(agent: &AgentHandle) -> Result<DeviceView, Failure> {
    agent.view().devices.first().cloned().ok_or_else(|| Failure::new("the shaper lost its device"))
}

/// Without its tree and programs there is nothing to show.
fn can_control(device: &DeviceView) -> Result<(), Failure> {
    if device.state != State::Shaped {
        let problem = device.problem.as_deref().unwrap_or("it is not there");
        return Err(Failure::new(format!("{DEVICE} is not shaped: {problem}")));
    }
    if device.programs.is_none() {
        let problem = device.programs_problem.as_deref().unwrap_or("this build has none");
        return Err(Failure::new(format!("the programs were refused: {problem}")).help(
            "`tidegate shaper` would hold the rates without them; the book's page on the shaper says what they need",
        ));
    }
    Ok(())
}

/// Since the tree was made.
fn drops(device: &DeviceView) -> u64 {
    device.classes.iter().filter_map(|class| class.figures).map(|figures| figures.drops_total).sum()
}

fn config(hosts: &Hosts, act: Act) -> Result<Config, Failure> {
    let text = format!(
        "[shaper]\nadmin_address = \"127.0.0.1:0\"\n[[shaper.device]]\nname = \"{DEVICE}\"\nnamespace = \"{}\"\nisolation = \
         {}\ndefault_class = \"limited\"\n[[shaper.device.class]]\nname = \"limited\"\nrate = \"1 Gbit/s\"\nmatch = [{{ \
         destination = \"{}\" }}]\n",
        hosts.path(Host::Sender).display(),
        act == Act::Isolated,
        Host::Receiver.address(),
    );
    Ok(Config::from_document(&Document::new("(demo)", text))?)
}

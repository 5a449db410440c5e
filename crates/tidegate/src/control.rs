//! `tidegate control`: topics on the fewest brokers that keep their promise, each with its part of the limit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use tidegate_broker::config::Address;
use tidegate_console::{BrokerSource, ConsoleConfig, ControlSource};
use tidegate_control::config::{Config, Node};
use tidegate_control::io::kept::Leader;
use tidegate_control::io::{Control, Setup, admin};
use tidegate_runtime::access::{self, Guard, Reach};
use tidegate_runtime::config::Document;
use tidegate_runtime::process::{self, Phase};
use tidegate_runtime::store::{self, ControlStore, EmbeddedStore};
use tidegate_runtime::telemetry;
use tokio::sync::watch;

use self::reload::Reload;
use crate::failure::Failure;
use crate::output;
use crate::servers::{AdminAt, Bound, Servers};
use crate::settings::{self, Settings};
use crate::signals::{Hangups, Signals};
use crate::store_section::StorePlace;
use crate::token::{Token, TokenError};
use crate::up;

mod reload;

/// Looked for where it is started without a file.
const USUAL_FILE: &str = "tidegate.toml";
/// Brokers and topics that the screen names; more are only counted.
const SHOWN: usize = 8;

/// `tidegate control`.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// The configuration; by default `tidegate.toml` in this folder
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Also serve a console that shows placements
    #[arg(long, value_name = "ADDRESS:PORT")]
    console: Option<String>,
    /// What is logged, such as `debug` or `info,tidegate_control=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

pub(crate) fn run(args: &ControlArgs) -> Result<(), Failure> {
    let file = match &args.config {
        Some(file) => file.clone(),
        None if Path::new(USUAL_FILE).exists() => USUAL_FILE.into(),
        None => {
            return Err(Failure::usage("there is nothing to run")
                .help("give -c FILE with a section [control]; the book has a page `Place a topic`"));
        }
    };
    let document = Document::read(&file)?;
    let settings = Settings::from_document(&document, &settings::host())?;
    let Some(config) = settings.control.clone() else {
        return Err(Failure::config(format!("{} has no section [control]", file.display())).help(
            "add [control] with nodes and [[control.topic]] with name, rate and burst; or with proxies and \
                 [[control.limit]] with route, rate and burst",
        ));
    };
    telemetry::init(settings.log_format, &args.log).map_err(|error| Failure::usage(&error).because(error))?;
    // Each node takes up to eight connections.
    let _ = process::raise_open_files_limit();
    up::runtime()?.block_on(serve(args, file, settings, config))
}

async fn serve(args: &ControlArgs, file: PathBuf, settings: Settings, config: Config) -> Result<(), Failure> {
    let (mut signals, mut hangups) = (Signals::listen()?, Hangups::listen()?);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // Ports are taken before anything starts.
    let bound = bind(&config.listen.to_string()).await?;
    let console = match &args.console {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let token_file = config.token_file.clone().unwrap_or_else(|| settings.token_file.clone());
    let token = Token::load_or_create(&token_file).map_err(token_failure)?;
    let tokens = tokens_of(&config, &token).map_err(token_failure)?;
    let (store, kept_at) = open_store(&config, &settings).await?;
    let reach = Reach::of_host(&config.listen.ip().to_string());
    let authority = bound.local_authority().unwrap_or_default();
    let config = Arc::new(config);
    let me = Leader {
        name: config.name.clone().unwrap_or_else(|| format!("{}:{}", settings::host().name, port_of(&authority))),
        admin: authority,
    };
    let mut control = Control::start(Setup { config: Arc::clone(&config), store, tokens: tokens.clone(), me });
    let mut servers = Servers::new();
    let guard = |reach| Guard { token: Some(access::Token::new(token.reveal())), reach };
    let at = servers.serve_admin(bound, reach, |reach| admin::router(control.shared(), guard(reach))).await?;
    introduce(&config, &kept_at, at.as_ref())?;
    let sources = watch::Sender::new(sources_of(&config, &tokens));
    if let (Some(bound), Some(at)) = (console, &at) {
        let address = bound.local_authority().unwrap_or_default();
        let source = ControlSource {
            admin_url: format!("http://{}", at.here),
            token: Some(token.reveal().to_owned()),
            brokers: sources.subscribe(),
        };
        let config = ConsoleConfig {
            control: Some(source),
            write_token: token.reveal().to_owned(),
            stop: Some(servers.stopping()),
            ..ConsoleConfig::default()
        };
        servers.serve(bound, None, tidegate_console::router(config));
        output::console(&format!("{address}/placement"), Some((&token, &token_file)))?;
    }
    up::tell_supervisor(Phase::Ready);
    let mut reload = Reload::new(file, &settings, Arc::unwrap_or_clone(config), token, sources);
    reload.serve_until(&mut control, &mut hangups, signals.wait()).await;
    tracing::info!("stopping: brokers keep their parts until the leases end");
    up::tell_supervisor(Phase::Stopping);
    // Requests that wait for a change of a placement are answered when control ends.
    let ((), ()) = tokio::join!(control.stop(), servers.stop());
    Ok(())
}

/// The store, and where it is: that of the section, else the etcd of `[store]`, else a file beside the broker's.
async fn open_store(config: &Config, settings: &Settings) -> Result<(Arc<dyn ControlStore>, String), Failure> {
    if let (None, StorePlace::Etcd(options)) = (&config.store, &settings.store) {
        return Ok((up::etcd(options).await?, settings.store.to_string()));
    }
    let path = config.store.clone().unwrap_or_else(|| settings.broker.data_path.join("placement.redb"));
    let store = EmbeddedStore::open(&path, store::Options::default())?;
    Ok((Arc::new(store), path.display().to_string()))
}

/// What each broker is shown, and then each proxy.
fn tokens_of(config: &Config, token: &Token) -> Result<Vec<Option<String>>, TokenError> {
    let of = |file: &Option<PathBuf>| match file {
        Some(file) => Token::load(file).map(|token| Some(token.reveal().to_owned())),
        None => Ok(Some(token.reveal().to_owned())),
    };
    let files = config.nodes.iter().map(|node| &node.token_file);
    files.chain(config.proxies.iter().map(|proxy| &proxy.token_file)).map(of).collect()
}

/// The brokers as the console asks them; `tokens` begin with theirs.
fn sources_of(config: &Config, tokens: &[Option<String>]) -> Vec<BrokerSource> {
    let source = |(node, token): (&Node, &Option<String>)| BrokerSource {
        name: node.name.clone(),
        admin_url: format!("http://{}", node.admin),
        token: token.clone(),
    };
    config.nodes.iter().zip(tokens).map(source).collect()
}

pub(crate) async fn bind(address: &str) -> Result<Bound, Failure> {
    let at: std::net::SocketAddr = address.parse().map_err(|error| {
        Failure::usage(format!("{address:?} is no address")).help("such as 127.0.0.1:7070").because(error)
    })?;
    Bound::bind(&Address::Tcp { host: at.ip().to_string(), port: at.port() }).await
}

fn port_of(authority: &str) -> &str {
    authority.rsplit_once(':').map_or("", |(_, port)| port)
}

fn token_failure(error: TokenError) -> Failure {
    let help = error.remedy();
    Failure::new(&error).help(help).because(error)
}

/// Says on standard output what there is.
fn introduce(config: &Config, kept_at: &str, at: Option<&AdminAt>) -> Result<(), Failure> {
    if let Some(at) = at {
        output::line(format_args!("control  {at}"))?;
    }
    output::line(format_args!("store    {kept_at}"))?;
    for node in config.nodes.iter().take(SHOWN) {
        output::line(format_args!("broker   {}: admin http://{}, publishers {}", node.name, node.admin, node.nsq))?;
    }
    more(config.nodes.len(), "brokers")?;
    for topic in config.topics.iter().take(SHOWN) {
        output::line(format_args!(
            "topic    {}: {} burst {}, {}, by {}",
            topic.name,
            topic.limit.rate,
            topic.limit.burst,
            topic.slo,
            topic.policy.word()
        ))?;
    }
    more(config.topics.len(), "topics")?;
    for proxy in config.proxies.iter().take(SHOWN) {
        output::line(format_args!("proxy    {}: admin http://{}", proxy.name, proxy.admin))?;
    }
    more(config.proxies.len(), "proxies")?;
    for limit in config.limits.iter().take(SHOWN) {
        output::line(format_args!("limit    {}: {} burst {}", limit.name, limit.limit.rate, limit.limit.burst))?;
    }
    more(config.limits.len(), "limits")
}

fn more(number: usize, what: &str) -> Result<(), Failure> {
    if number > SHOWN { output::line(format_args!("         and {} more {what}", number - SHOWN)) } else { Ok(()) }
}

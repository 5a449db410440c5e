//! `tidegate up`: broker, admin API, console and, if the file has them, proxy and shaper on one machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueHint};
use tidegate_broker::config::LogLevel;
use tidegate_console::{BrokerSource, ConsoleConfig};
use tidegate_runtime::config::Document;
use tidegate_runtime::process::{self, Phase};
use tidegate_runtime::store::{self, ControlStore, EmbeddedStore, EtcdOptions};
use tidegate_runtime::telemetry::{self, LogControl};
use tokio::sync::watch;

use crate::failure::{Failure, enough_descriptors};
use crate::limit_book::{LimitBook, Writers};
use crate::output;
use crate::proxy::{ProxyRunning, Watched};
use crate::reload::{LogLevelFrom, Reading, Reload, Source};
use crate::running::{Running, Setup};
use crate::servers::{Bound, Servers};
use crate::settings::{Console, Settings};
use crate::shaper::{ShaperRunning, must_be_built};
use crate::signals::{Hangups, Signals};
use crate::store_section::StorePlace;
use crate::token::Token;

/// Looked for where `up` is started without a file.
const USUAL_FILE: &str = "tidegate.toml";

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// The configuration; by default `tidegate.toml` in this folder if there is one, else the defaults
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// What is logged, such as `debug` or `info,tidegate_broker=debug`; by default as `broker.log_level` says
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

pub(crate) fn run(args: &UpArgs) -> Result<(), Failure> {
    let usual = Path::new(USUAL_FILE);
    let file = args.config.as_deref().or_else(|| usual.exists().then_some(usual));
    let watched = file.map(Watched::new);
    let document = match file {
        Some(file) => Document::read(file)?,
        None => Document::new("(defaults)", ""),
    };
    let (settings, reading) = Reading::up(&document)?;
    if settings.shaper.is_some() {
        must_be_built(&document)?;
    }
    let filter = args.log.clone().unwrap_or_else(|| log_filter(settings.broker.log_level).to_owned());
    let log = telemetry::init_with_prefix(settings.log_format, &filter, &settings.broker.log_prefix)
        .map_err(|error| Failure::usage(&error).because(error))?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let from = file.map_or_else(|| "defaults".to_owned(), |file| file.display().to_string());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), configuration = from, "starting");
    let source = file.map_or(Source::Defaults, |file| Source::Up(file.to_owned()));
    runtime()?.block_on(serve(settings, watched, args.log.is_none().then_some(log), (source, reading)))
}

/// The runtime for everything but the shards, which have threads of their own.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(2).on_thread_start(process::stand_back).enable_all().build();
    built.map_err(|error| Failure::new("cannot start threads").because(error))
}

/// What `tracing` calls nsqd's levels; it has nothing above error.
pub(crate) fn log_filter(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error | LogLevel::Fatal => "error",
    }
}

/// Follows the level that nsqd's `PUT /config/log_level` sets, until the broker is gone.
pub(crate) async fn follow_log_level(log: LogControl, mut level: watch::Receiver<LogLevel>) {
    while level.changed().await.is_ok() {
        let filter = log_filter(*level.borrow_and_update());
        if let Err(error) = log.set(filter) {
            tracing::warn!(%error, "the log level stays as it is");
        }
    }
}

/// `log` is there if nothing on the command line fixes what is logged.
async fn serve(
    settings: Settings,
    file: Option<Watched>,
    log: Option<LogControl>,
    (source, reading): (Source, Reading),
) -> Result<(), Failure> {
    let (threads, listeners) = settings.proxy.as_ref().map_or((0, 0), |proxy| (proxy.threads, proxy.listeners.len()));
    enough_descriptors(settings.broker.shards, threads, listeners)?;
    let (mut signals, mut hangups) = (Signals::listen()?, Hangups::listen()?);
    // The console's port too is taken before anything starts.
    let console = match settings.console {
        Some(console) => Some((Bound::bind(&console.address).await?, console)),
        None => None,
    };
    let token = Token::load_or_create(&settings.token_file).map_err(|error| {
        let help = error.remedy();
        Failure::new(&error).help(help).because(error)
    })?;
    let store = open_store(&settings.store).await?;
    let setup = Setup {
        config: Arc::new(settings.broker),
        limits: settings.limits,
        store: Arc::new(store),
        token: Some(token.clone()),
    };
    let running = Running::start(setup).await?;
    let mut proxy = match settings.proxy {
        Some(config) => Some(ProxyRunning::start_beside_broker(config, file, Some(&token)).await?),
        None => None,
    };
    let shaper = match settings.shaper {
        Some(config) => Some(ShaperRunning::start(config, &token).await?),
        None => None,
    };
    let log_level_from = if log.is_some() { LogLevelFrom::File } else { LogLevelFrom::CommandLine };
    let shaper_reload = shaper.as_ref().map(ShaperRunning::reload);
    let mut reload = Reload::new(source, log_level_from, reading, &running).with_shaper(shaper_reload);
    let follower = log.map(|log| tokio::spawn(follow_log_level(log, running.live.log_level.subscribe())));
    let mut servers = Servers::new();
    output::line(format_args!("NSQ      {}", running.tcp))?;
    if let Some(http) = &running.http {
        output::line(format_args!("HTTP     http://{http}"))?;
    }
    if let Some(admin) = &running.admin {
        output::line(format_args!("admin    {admin}"))?;
    }
    if let (Some((bound, console)), Some(admin)) = (console, &running.admin) {
        output::console(
            &format!("{}/", bound.local_authority().unwrap_or_default()),
            Some((&token, &settings.token_file)),
        )?;
        let proxies = proxy.iter().filter_map(|proxy| proxy.console_source(Some(&token))).collect();
        let shaper = shaper.as_ref().and_then(|shaper| shaper.console_source(&token));
        let config = ConsoleConfig { proxies, shaper, ..console_of(console, &admin.here, &token, &servers) };
        servers.serve(bound, None, tidegate_console::router(config));
    }
    if let Some(shaper) = &shaper {
        shaper.introduce()?;
    }
    tell_supervisor(Phase::Ready);
    let mut ended = None;
    let end = async {
        tokio::select! {
            () = signals.wait() => {}
            shard = running.shard_ended() => ended = Some(shard),
        }
    };
    match &mut proxy {
        Some(proxy) => {
            proxy.introduce(None)?;
            proxy.serve_until(&mut hangups, Some(&mut reload), end).await;
        }
        None => reload.serve_until(&mut hangups, end).await,
    }

    tracing::info!("stopping: messages are being saved");
    tell_supervisor(Phase::Stopping);
    running.begin_stop();
    drop(reload);
    if let Some(proxy) = proxy {
        proxy.stop().await;
    }
    if let Some(shaper) = shaper {
        shaper.stop().await;
    }
    servers.stop().await;
    let stopped = running.stop().await;
    if let Some(follower) = follower {
        follower.abort();
    }
    ended_well(ended, stopped)
}

/// The limits that are set live, in the store that the file names.
async fn open_store(place: &StorePlace) -> Result<LimitBook, Failure> {
    match place {
        StorePlace::Embedded(path) => {
            let store = EmbeddedStore::open(path, store::Options::default())?;
            Ok(LimitBook::new(Arc::new(store), Writers::One))
        }
        StorePlace::Etcd(options) => Ok(LimitBook::new(etcd(options).await?, Writers::Many)),
    }
}

/// The etcd of `options`.
#[cfg(feature = "etcd")]
pub(crate) async fn etcd(options: &EtcdOptions) -> Result<Arc<dyn ControlStore>, Failure> {
    let store = store::EtcdStore::connect(options).await?;
    tracing::info!(endpoints = ?options.endpoints(), prefix = options.key_prefix(), "limits are kept in an etcd");
    Ok(Arc::new(store))
}

/// Reading the file has said so before.
#[cfg(not(feature = "etcd"))]
#[expect(clippy::unused_async, reason = "as with the feature")]
pub(crate) async fn etcd(_: &EtcdOptions) -> Result<Arc<dyn ControlStore>, Failure> {
    use crate::store_section::{WITH_ETCD, WITHOUT_ETCD};
    Err(Failure::config(WITHOUT_ETCD).help(WITH_ETCD))
}

/// A process in which a shard ended by itself fails, also if everything else was saved.
pub(crate) fn ended_well(shard: Option<usize>, stopped: Result<(), Failure>) -> Result<(), Failure> {
    let Some(shard) = shard else { return stopped };
    let failure = Failure::new(format!("shard {shard} ended unexpectedly, so the broker stopped"))
        .help("the log says why it ended; what the other shards held is saved");
    Err(match stopped {
        Ok(()) => failure,
        Err(unsaved) => failure.because(unsaved),
    })
}

fn console_of(console: Console, admin: &str, token: &Token, servers: &Servers) -> ConsoleConfig {
    let broker = BrokerSource {
        name: "local".to_owned(),
        admin_url: format!("http://{admin}"),
        token: Some(token.reveal().to_owned()),
    };
    ConsoleConfig {
        brokers: vec![broker],
        write_token: token.reveal().to_owned(),
        allowed_hosts: console.allowed_hosts,
        poll_interval: console.poll_interval,
        stop: Some(servers.stopping()),
        ..ConsoleConfig::default()
    }
}

/// Tells systemd, which waits for it; a supervisor that does not listen is no reason to stop.
pub(crate) fn tell_supervisor(phase: Phase) {
    if let Err(error) = process::notify_supervisor(phase) {
        tracing::warn!(%error, "the supervisor could not be told");
    }
}

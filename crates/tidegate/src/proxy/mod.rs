//! `tidegate proxy`: a reverse proxy in which no tenant can hurt another.
//!
//! | module | its one job |
//! |---|---|
//! | `figures` | a running proxy in a few tables |
//! | `handover` | listening sockets that go from one process to its successor |
//! | `quick` | a configuration from a few flags, for a first try |
//! | `run` | a proxy that runs: started, reloaded, drained, with its admin API |
//! | `screen` | what is said about it at the start |
//! | `upgrade` | a successor: started, given the sockets, waited for |
//! | `watch` | notices that its files changed |

mod figures;
mod handover;
mod quick;
mod run;
mod screen;
mod upgrade;
mod watch;

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use tidegate_runtime::config::Document;
use tidegate_runtime::process::{self, Phase};
use tidegate_runtime::telemetry::{self, Format};

use crate::failure::{Failure, enough_descriptors};
use crate::settings::{self, Settings};
use crate::signals::{Hangups, Signals};
use crate::token::Token;
use crate::up;

use self::upgrade::Upgrades;

pub(crate) use self::figures::{Figures, quantity};
pub(crate) use self::run::{ProxyRunning, remedy};
pub(crate) use self::upgrade::Taken;
pub(crate) use self::watch::Watched;

/// Looked for where it is started without a file.
const USUAL_FILE: &str = "tidegate.toml";

/// `tidegate proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// The configuration; by default `tidegate.toml` in this folder
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "upstream")]
    config: Option<PathBuf>,
    /// Without a file: where clients connect
    #[arg(long, value_name = "ADDRESS:PORT", requires = "upstream")]
    listen: Vec<String>,
    /// Without a file: where all requests go; may be repeated, for servers that do the same work
    #[arg(long, value_name = "HOST:PORT")]
    upstream: Vec<String>,
    /// Without a file: speak TLS with this PEM chain
    #[arg(long, value_name = "FILE", requires_all = ["upstream", "key"], value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,
    /// Without a file: the key of --cert
    #[arg(long, value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,
    /// Without a file: where the admin API listens; "" for none
    #[arg(long, value_name = "ADDRESS:PORT", requires = "upstream")]
    admin: Option<String>,
    /// Also serve a console that shows the proxy
    #[arg(long, value_name = "ADDRESS:PORT")]
    console: Option<String>,
    /// Take the ports over from the proxy whose `upgrade_socket` this is; it drains and ends
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    take_over: Option<PathBuf>,
    /// What is logged, such as `debug` or `info,tidegate_proxy=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    let mut inherited = match &args.take_over {
        Some(socket) => {
            // Each socket that is taken is a file.
            let _ = process::raise_open_files_limit();
            Taken::from(socket)?
        }
        None => Taken::default(),
    };
    let ended = serve(args, &mut inherited);
    if let Err(failure) = &ended {
        inherited.give_up(failure);
    }
    ended
}

fn serve(args: &ProxyArgs, inherited: &mut Taken) -> Result<(), Failure> {
    let file = file_of(args)?;
    let watched = file.as_deref().map(Watched::new);
    let document = match &file {
        Some(file) => Document::read(file)?,
        None => quick::document(args),
    };
    let settings = Settings::from_document(&document, &settings::host())?;
    let Some(config) = settings.proxy else {
        return Err(no_section(&document));
    };
    let format = if file.is_some() { settings.log_format } else { Format::Human };
    telemetry::init(format, &args.log).map_err(|error| Failure::usage(&error).because(error))?;
    let token = match &file {
        Some(_) => Some(Token::load_or_create(&settings.token_file).map_err(|error| {
            let help = error.remedy();
            Failure::new(&error).help(help).because(error)
        })?),
        None => None,
    };
    enough_descriptors(0, config.threads, config.listeners.len())?;
    // The proxy's threads are its own; this one only waits for signals and answers the admin API.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot start").because(error))?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let mut hangups = Hangups::listen()?;
        let socket = config.upgrade_socket.clone();
        let mut upgrades = Upgrades::new()?;
        if !inherited.is_from_another() {
            upgrades.open(socket.as_deref(), false)?;
        }
        let mut running = ProxyRunning::start(config, watched, token.as_ref(), inherited).await?;
        if let Some(console) = &args.console {
            running.show(console, token.as_ref(), inherited).await?;
        }
        running.introduce(token.as_ref().map(|token| (token, settings.token_file.as_path())))?;
        if inherited.is_from_another() {
            running.has_names().await?;
            inherited.serve_instead()?;
            running.accept();
            if let Err(error) = upgrades.open(socket.as_deref(), true) {
                tracing::error!(%error, "it serves, and there can be no upgrade until it is started again");
            }
        }
        up::tell_supervisor(Phase::Ready);
        let given = running.given();
        let end = async {
            tokio::select! {
                () = signals.wait() => End::Asked,
                () = upgrades.wait(&given) => End::HandedOver,
            }
        };
        let end = running.serve_until(&mut hangups, None, end).await;
        drop(given);
        match end {
            End::Asked => {
                tracing::info!("stopping: requests under way are finished; a second signal ends them");
                up::tell_supervisor(Phase::Stopping);
                tokio::select! {
                    () = running.stop() => {}
                    () = signals.wait() => tracing::warn!("ended with requests under way"),
                }
            }
            // The supervisor's signal at the end of the service reaches this process as well as its successor.
            End::HandedOver => tokio::select! {
                () = running.hand_over() => {}
                () = async { signals.wait().await; signals.wait().await } => tracing::warn!("ended with requests under way"),
            },
        }
        Ok(())
    });
    // What a second signal cut short is not waited for.
    runtime.shutdown_background();
    ended
}

/// Why a proxy ends.
enum End {
    Asked,
    HandedOver,
}

fn file_of(args: &ProxyArgs) -> Result<Option<PathBuf>, Failure> {
    if !args.upstream.is_empty() {
        return Ok(None);
    }
    match &args.config {
        Some(file) => Ok(Some(file.clone())),
        None if Path::new(USUAL_FILE).exists() => Ok(Some(USUAL_FILE.into())),
        None => Err(Failure::usage("there is nothing to run")
            .help("give -c FILE, or try it at once: tidegate proxy --listen 127.0.0.1:8080 --upstream 127.0.0.1:9000")),
    }
}

fn no_section(document: &Document) -> Failure {
    Failure::config(format!("{} has no section [proxy]", document.file().display())).help(
        "add [[proxy.listen]] with an address, [[proxy.upstream]] with name and servers, and [[proxy.route]] with upstream",
    )
}

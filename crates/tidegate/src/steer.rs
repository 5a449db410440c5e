//! `tidegate steer`: the address that unmodified NSQ producers dial.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use tidegate_broker::config::Address;
use tidegate_control::io::hop::config::{Config, Source};
use tidegate_control::io::hop::{FileError, Steer, SteerError, read_placements};
use tidegate_runtime::access::{self, Guard, Reach};
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::config::{ConfigError, Document};
use tidegate_runtime::process::{self, Phase};
use tidegate_runtime::telemetry;

use crate::failure::{Failure, MORE_DESCRIPTORS};
use crate::output;
use crate::servers::{Bound, Servers};
use crate::settings::{self, Settings};
use crate::signals::Signals;
use crate::token::{Token, TokenError};
use crate::up;

/// Looked for where it is started without a file.
const USUAL_FILE: &str = "tidegate.toml";

/// Open files of a process that serves nobody.
const DESCRIPTORS: u64 = 40;
/// Open files of a producer while its topic moves: its own socket, and two to brokers.
const DESCRIPTORS_OF_PRODUCER: u64 = 3;

/// `tidegate steer`.
#[derive(Debug, Args)]
pub(crate) struct SteerArgs {
    /// The configuration; by default `tidegate.toml` in this folder
    #[arg(short, long, value_name = "FILE", default_value = USUAL_FILE, hide_default_value = true, value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// What is logged, such as `debug` or `info,tidegate_control=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

pub(crate) fn run(args: &SteerArgs) -> Result<(), Failure> {
    let document = Document::read(&args.config)?;
    let settings = Settings::from_document(&document, &settings::host())?;
    let Some(mut config) = settings.steer.clone() else {
        return Err(Failure::config(format!("{} has no section [steer]", args.config.display()))
            .help("add [steer] with nodes = [ { name = \"a\", nsq = \"10.0.0.1:4150\" } ]"));
    };
    check_placements(&config, &document)?;
    telemetry::init(settings.log_format, &args.log).map_err(|error| Failure::usage(&error).because(error))?;
    let control_token = config.token_file.as_deref().map(Token::load).transpose().map_err(token_failure)?;
    config.max_producers = producers_within(process::raise_open_files_limit(), config.max_producers);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(config.threads).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot start threads").because(error))?;
    let ended = runtime.block_on(serve(config, control_token.as_ref(), &settings.token_file));
    // What a second signal cut short is not waited for.
    runtime.shutdown_background();
    ended
}

async fn serve(config: Config, control_token: Option<&Token>, token_file: &Path) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    // Ports are taken before anything is served.
    let admin = match &config.admin_address {
        Some(text) => {
            let address = address(text)?;
            Some((Bound::bind(&address).await?, reach_of(&address)))
        }
        None => None,
    };
    // Everything here is a read, and only reads from the network need a token.
    let token = match &admin {
        Some((_, Reach::Network)) => Some(Token::load_or_create(token_file).map_err(token_failure)?),
        _ => None,
    };
    let steer = Steer::start(config, control_token.map(Token::reveal)).await.map_err(not_started)?;
    let mut servers = Servers::new();
    output::line(format_args!("NSQ      {}", steer.address()))?;
    if let Some((bound, reach)) = admin {
        let token = token.map(|token| access::Token::new(token.reveal()));
        let router = |reach| steer.router(Guard { token: token.clone(), reach });
        if let Some(admin) = servers.serve_admin(bound, reach, router).await? {
            output::line(format_args!("admin    {admin}"))?;
        }
    }
    up::tell_supervisor(Phase::Ready);
    signals.wait().await;
    tracing::info!("stopping: open commands are answered; a second signal ends them");
    up::tell_supervisor(Phase::Stopping);
    tokio::select! {
        is_whole = steer.drain() => {
            if !is_whole {
                tracing::warn!("time is up: commands without an answer were cut off");
            }
            servers.stop().await;
        }
        () = signals.wait() => tracing::warn!("ended with commands without an answer"),
    }
    Ok(())
}

fn address(text: &str) -> Result<Address, Failure> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| Failure::config(format!("steer.admin_address: found {text:?}")))?;
    Ok(Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port })
}

fn reach_of(address: &Address) -> Reach {
    tidegate_broker::io::admin::reach_of(address)
}

/// Whether the file of placements, if there is one, can be followed.
pub(crate) fn check_placements(config: &Config, document: &Document) -> Result<(), ConfigError> {
    let Source::File(file) = &config.source else { return Ok(()) };
    match read_placements(file) {
        // It may be another machine's; the start says so.
        Ok(_) | Err(FileError::Unreadable { .. }) => Ok(()),
        Err(error) => {
            let remedy = "expected {\"topics\": [ { \"topic\": .., \"nodes\": [ { \"name\": .., \"nsq\": .. } ] } ]}";
            Err(document.problem("steer.placement", with_causes(&error), remedy))
        }
    }
}

/// Files that a hop would not start without, and that cannot be opened. They may be another machine's, or another user's.
pub(crate) fn unreadable(config: &Config) -> impl Iterator<Item = String> {
    let placement = match &config.source {
        Source::File(file) => Some(("placement", file.as_path())),
        Source::Nodes | Source::Control(_) => None,
    };
    let token = config.token_file.as_deref().map(|file| ("token_file", file));
    placement.into_iter().chain(token).filter_map(|(key, file)| {
        let error = std::fs::File::open(file).err()?;
        Some(format!("steer.{key}: cannot read {}: {error}", file.display()))
    })
}

/// As many of `producers` as the open files suffice for: with none left the hop could neither reach brokers nor tell how it is.
fn producers_within(limit: u64, producers: usize) -> usize {
    let fit = usize::try_from(limit.saturating_sub(DESCRIPTORS) / DESCRIPTORS_OF_PRODUCER).unwrap_or(usize::MAX).max(1);
    if fit < producers {
        tracing::warn!(
            limit,
            producers = fit,
            "fewer files may be open than steer.max_producers needs: {MORE_DESCRIPTORS}"
        );
    }
    producers.min(fit)
}

fn token_failure(error: TokenError) -> Failure {
    let help = error.remedy();
    Failure::new(&error).help(help).because(error)
}

fn not_started(error: SteerError) -> Failure {
    let (failure, help) = match &error {
        SteerError::Listen { .. } => {
            (Failure::new(&error), "something listens there already, or the address is another machine's")
        }
        _ => (Failure::config(&error), "steer.placement names the file"),
    };
    failure.help(help).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_producers_are_taken_than_there_are_files_for() {
        assert_eq!([1_024, 20_000, 30_040].map(|limit| producers_within(limit, 10_000)), [328, 6_653, 10_000]);
    }

    #[test]
    fn addresses_of_both_kinds_are_read() {
        let of = |text| address(text).map(|address| address.to_string()).map_err(|failure| failure.to_string());
        assert_eq!(of("127.0.0.1:0"), Ok("127.0.0.1:0".to_owned()));
        assert!(matches!(address("[::1]:4156"), Ok(Address::Tcp { host, port: 4156 }) if host == "::1"));
        assert_eq!(of("4156"), Err("steer.admin_address: found \"4156\"".to_owned()));
    }
}

//! `tidegate broker`: in the place of nsqd.

use std::ffi::OsString;
use std::sync::Arc;

use tidegate_broker::config::{Action, Config, FLAGS, FlagError, Options};
use tidegate_broker::io::admin::{LimitStore, Transient};
use tidegate_runtime::config::{Document, suggest};
use tidegate_runtime::process::Phase;
use tidegate_runtime::store::{self, EmbeddedStore};
use tidegate_runtime::telemetry::{self, Format, LogControl};

use crate::failure::{Failure, enough_descriptors};
use crate::limit_book::{LimitBook, Writers};
use crate::reload::{LogLevelFrom, Reading, Reload, Source};
use crate::running::{Running, Setup};
use crate::signals::{Hangups, Signals};
use crate::token::Token;
use crate::{output, settings, up};

/// The name that the broker was started under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    Tidegate,
    Nsqd,
}

pub(crate) fn run(name: Name, args: &[OsString]) -> Result<(), Failure> {
    let args = args.iter().map(|arg| {
        let text = arg.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8", arg.display())))?;
        Ok(text.to_owned())
    });
    let line = Options::from_flags(args.collect::<Result<Vec<_>, Failure>>()?).map_err(|error| usage(&error))?;
    match line.action {
        Action::Version => return output::line(version()),
        Action::Help => return help(name),
        Action::Run => {}
    }
    let (file, document) = match &line.config {
        Some(path) => {
            let document = Document::read(path)?;
            (document.parse::<Options>()?, Some(document))
        }
        None => (Options::default(), None),
    };
    let source =
        line.config.clone().map_or(Source::Defaults, |path| Source::Broker(path, Box::new(line.options.clone())));
    let options = line.options.over(file.clone());
    let config = Config::from_options(options.clone(), &settings::host()).map_err(|error| {
        // Only a file's own mistake has a place in it: what flags override is not read.
        let in_file = Config::from_options(file, &settings::host()).is_err();
        match &document {
            Some(document) if in_file => document.problem(error.key(), &error, settings::OPTIONS_HELP).into(),
            _ => Failure::usage(&error).help(settings::OPTIONS_HELP),
        }
    })?;
    let log = telemetry::init_with_prefix(Format::Human, up::log_filter(config.log_level), &config.log_prefix)
        .map_err(|error| Failure::new(&error).because(error))?;
    if !line.ignored.is_empty() {
        tracing::warn!(arguments = ?line.ignored, "not looked at, as nsqd would not");
    }
    let reading = Reading::broker(options, config.clone());
    up::runtime()?.block_on(serve(config, log, source, reading))
}

async fn serve(config: Config, log: LogControl, source: Source, reading: Reading) -> Result<(), Failure> {
    let (mut signals, mut hangups) = (Signals::listen()?, Hangups::listen()?);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // With a token only reads are open.
    let http_address = config.http_address.as_ref().filter(|_| config.http_token_file.is_none());
    for (key, address) in [("tcp-address", Some(&config.tcp_address)), ("http-address", http_address)] {
        if let Some(address) = address.filter(|address| !settings::is_loopback(address)) {
            tracing::warn!(%address, "{key} is open to other machines without a token, as nsqd's is");
        }
    }
    tracing::info!(version = version(), "starting");
    enough_descriptors(config.shards, 0, 0)?;
    // Limits that are set live outlast the process here too, if somebody can set them.
    let (store, token): (Arc<dyn LimitStore>, _) = match config.admin_address {
        Some(_) => {
            let store = EmbeddedStore::open(config.data_path.join("control.redb"), store::Options::default())?;
            let token = Token::load_or_create(&config.data_path.join("admin.token")).map_err(|error| {
                let help = error.remedy();
                Failure::new(&error).help(help).because(error)
            })?;
            (Arc::new(LimitBook::new(Arc::new(store), Writers::One)), Some(token))
        }
        None => (Arc::new(Transient::default()), None),
    };
    let setup = Setup { config: Arc::new(config), limits: Vec::new(), store, token };
    let running = Running::start(setup).await?;
    tracing::info!(tcp = %running.tcp, http = running.http.as_ref().map(ToString::to_string), "serving");
    let follower = tokio::spawn(up::follow_log_level(log, running.live.log_level.subscribe()));
    up::tell_supervisor(Phase::Ready);
    let mut ended = None;
    let end = async {
        tokio::select! {
            () = signals.wait() => {}
            shard = running.shard_ended() => ended = Some(shard),
        }
    };
    let mut reload = Reload::new(source, LogLevelFrom::File, reading, &running);
    reload.serve_until(&mut hangups, end).await;
    drop(reload);
    tracing::info!("stopping: messages are being saved");
    up::tell_supervisor(Phase::Stopping);
    let stopped = running.stop().await;
    follower.abort();
    up::ended_well(ended, stopped)
}

fn usage(error: &FlagError) -> Failure {
    let help = match error {
        FlagError::Unknown { name } => match suggest(name, FLAGS.iter().map(|flag| flag.name)) {
            Some(meant) => format!("did you mean -{meant}? {}", settings::OPTIONS_HELP),
            None => settings::OPTIONS_HELP.to_owned(),
        },
        _ => settings::OPTIONS_HELP.to_owned(),
    };
    Failure::usage(error).help(help)
}

/// nsqd's line, with whose broker it is: scripts look for the word after `nsqd`.
fn version() -> String {
    format!("nsqd v1.3.0 (tidegate v{})", env!("CARGO_PKG_VERSION"))
}

fn help(name: Name) -> Result<(), Failure> {
    let name = match name {
        Name::Tidegate => "tidegate broker",
        Name::Nsqd => "nsqd",
    };
    output::line(format_args!(
        "Usage: {name} [flags]\n\nnsqd's flags, in Go's syntax: -flag=value, -flag value, --flag.\n"
    ))?;
    for flag in FLAGS {
        let default = if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        let more = if flag.repeatable { " May be repeated." } else { "" };
        output::line(format_args!("  -{}{}\n        {}{more}", flag.name, default, flag.help))?;
    }
    Ok(())
}

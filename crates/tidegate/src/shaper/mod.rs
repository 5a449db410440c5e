//! `tidegate shaper`: short queues in the rate limiters of this host.
//!
//! | module | its one job |
//! |---|---|
//! | `run` | the verb itself, and `clear` (feature `shaper`) |
//! | `running` | an agent that runs, with its admin API: started, reloaded, stopped (feature `shaper`) |
//! | `absent` | the same in a binary without the feature: it cannot be started |
//! | `feature` | whether there is the feature, and what is said if not |
//! | `shown` | the figures of a running agent as tables |
//! | `verbs` | `status`, `set` and `top`, which ask a running agent |

#[cfg(not(feature = "shaper"))]
mod absent;
mod feature;
#[cfg(feature = "shaper")]
mod run;
#[cfg(feature = "shaper")]
mod running;
mod shown;
mod verbs;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::machine::line_rate::LineRate;

use crate::admin_client::authority;
use crate::failure::Failure;
use crate::settings::Settings;

#[cfg(not(feature = "shaper"))]
pub(crate) use self::absent::{ShaperReload, ShaperRunning};
pub(crate) use self::feature::{WITHOUT_SHAPER, must_be_built};
#[cfg(feature = "shaper")]
pub(crate) use self::running::{ShaperReload, ShaperRunning};

/// Looked for where it is started without a file.
const USUAL_FILE: &str = "tidegate.toml";
/// Where a running agent is asked if nothing is said.
const ADMIN: &str = "127.0.0.1:4158";

/// `tidegate shaper`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ShaperArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: RunArgs,
}

/// With which file it runs.
#[derive(Debug, Args)]
struct RunArgs {
    /// The configuration; by default `tidegate.toml` in this folder
    #[arg(short, long, value_name = "FILE", default_value = USUAL_FILE, hide_default_value = true, value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// What is logged, such as `debug` or `info,tidegate_shaper=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// Also serve a console with devices and classes
    #[arg(long, value_name = "ADDRESS:PORT")]
    console: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the devices and classes of a running agent
    Status(Reading),
    /// Change what a class may send, while packets pass; until the file is read again
    Set(SetArgs),
    /// Show what the classes do, each second
    Top(TopArgs),
    /// Take the trees of the file's devices away; the kernel's default takes their place
    Clear(ClearArgs),
}

#[derive(Debug, Args)]
struct Reading {
    /// The agent's admin API
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADMIN, value_parser = authority)]
    admin: String,
    #[command(flatten)]
    token: crate::admin_client::ReadToken,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TopArgs {
    #[command(flatten)]
    reading: Reading,
    /// Only once
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// `class`, or `device/class` where several devices have one of this name
    class: String,
    /// Guaranteed, such as `1Gbit` or "2.5 Gbit/s"
    #[arg(long)]
    rate: LineRate,
    /// At most, with what others leave; by default as before if that is above the rate, else the rate
    #[arg(long)]
    ceil: Option<LineRate>,
    /// The agent's admin API
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADMIN, value_parser = authority)]
    admin: String,
    /// The file with its token
    #[arg(long, value_name = "FILE", default_value = "tidegate-data/admin.token", value_hint = ValueHint::FilePath)]
    token_file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ClearArgs {
    /// The configuration; by default `tidegate.toml` in this folder
    #[arg(short, long, value_name = "FILE", default_value = USUAL_FILE, hide_default_value = true, value_hint = ValueHint::FilePath)]
    config: PathBuf,
}

pub(crate) fn run(args: &ShaperArgs) -> Result<(), Failure> {
    match &args.verb {
        Some(Verb::Status(reading)) => verbs::status(reading),
        Some(Verb::Set(set)) => verbs::set(set),
        Some(Verb::Top(top)) => verbs::top(top),
        Some(Verb::Clear(clear)) => {
            let (document, _, config) = section(&clear.config)?;
            must_be_built(&document)?;
            clear_all(&config)
        }
        None => {
            let (document, settings, config) = section(&args.run.config)?;
            must_be_built(&document)?;
            serve(&args.run, &settings, config)
        }
    }
}

/// The section of a file, which must have one.
fn section(file: &Path) -> Result<(Document, Settings, Config), Failure> {
    let document = Document::read(file)?;
    let mut settings = Settings::from_document(&document, &crate::settings::host())?;
    match settings.shaper.take() {
        Some(config) => Ok((document, settings, config)),
        None => Err(Failure::config(format!("{} has no section [shaper]", file.display()))
            .help("add [[shaper.device]] with a name, and [[shaper.device.class]] with name, rate and match")),
    }
}

#[cfg(feature = "shaper")]
use self::run::{clear_all, serve};

#[cfg(not(feature = "shaper"))]
fn serve(_: &RunArgs, _: &Settings, _: Config) -> Result<(), Failure> {
    Err(Failure::config(WITHOUT_SHAPER).help(feature::WITH_SHAPER))
}

#[cfg(not(feature = "shaper"))]
fn clear_all(_: &Config) -> Result<(), Failure> {
    Err(Failure::config(WITHOUT_SHAPER).help(feature::WITH_SHAPER))
}

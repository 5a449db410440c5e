//! Runs from a command line: `run KEY=VALUE..`, `idle KEY=VALUE..`, `witness KEY=VALUE..`, `echo KEY=VALUE..`,
//! `gaps KEY=VALUE..`.
//!
//! Keys are those of [`BenchConfig`], [`IdleConfig`], [`WitnessConfig`], [`EchoConfig`] and [`GapsConfig`], dotted where
//! they nest; a value is JSON, or text where it is none, or `@FILE` for what a JSON file holds:
//!
//! ```text
//! run publishers=100 pace.open.rate_per_s=5000 buffering=unbuffered pid=4711
//! run publishers=4 pace.saturate.window=8 command=mpub batch=200 warm_up_ms=500
//! run publishers=0 expect=@manifest.json
//! idle pid=4711 stage=subscribed
//! ```

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bench::{self, BenchConfig};
use crate::echo::{self, EchoConfig};
use crate::error::LoadError;
use crate::gaps::{self, GapsConfig};
use crate::http::idle::{self as idle_http, HttpIdleConfig};
use crate::http::upstream::{Upstream, UpstreamConfig};
use crate::http::{self, HttpBenchConfig};
use crate::idle::{self, IdleConfig};
use crate::rpc::{self, RpcBenchConfig};
use crate::tcp::burst::{self, BurstConfig};
use crate::tcp::receive::{self, ReceiveConfig};
use crate::tcp::send::{self, SendConfig};
use crate::witness::{self, WitnessConfig};

/// A report as JSON, and whether it counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The report, over several lines.
    pub json: String,
    /// False if the run spoilt itself.
    pub is_valid: bool,
}

/// Does what `args` say.
///
/// # Errors
/// [`LoadError::Config`] and [`LoadError::Argument`] for arguments that say nothing, others as the runs themselves.
pub fn execute(args: &[String]) -> Result<Outcome, LoadError> {
    let (what, settings) = args.split_first().map_or(("", args), |(what, rest)| (what.as_str(), rest));
    match what {
        "run" => {
            let report = bench::run(&read::<BenchConfig>(settings)?)?;
            outcome(&report, report.invalid.is_none())
        }
        "idle" => outcome(&idle::measure(&read::<IdleConfig>(settings)?)?, true),
        "echo" => {
            echo::run(&read::<EchoConfig>(settings)?)?;
            outcome(&(), true)
        }
        "witness" => {
            let report = witness::run(&read::<WitnessConfig>(settings)?)?;
            outcome(&report, report.left_out == 0)
        }
        "gaps" => outcome(&gaps::run(&read::<GapsConfig>(settings)?)?, true),
        other => {
            let expected = "run, idle, witness, echo or gaps";
            Err(LoadError::Config { key: "command", value: other.into(), expected })
        }
    }
}

/// Calls a `tidegate-rpc` server as `settings` say, which are keys and values of [`RpcBenchConfig`].
///
/// # Errors
/// As [`execute`].
pub fn execute_rpc(settings: &[String]) -> Result<Outcome, LoadError> {
    let report = rpc::run(&read::<RpcBenchConfig>(settings)?)?;
    outcome(&report, report.invalid.is_none())
}

/// Sends HTTP load as `settings` say, which are keys and values of [`HttpBenchConfig`].
///
/// `idle KEY=VALUE..` holds connections open instead, with keys of [`HttpIdleConfig`].
///
/// # Errors
/// As [`execute`].
pub fn execute_http(settings: &[String]) -> Result<Outcome, LoadError> {
    if let [first, settings @ ..] = settings
        && first == "idle"
    {
        return outcome(&idle_http::measure(&read::<HttpIdleConfig>(settings)?)?, true);
    }
    let report = http::run(&read::<HttpBenchConfig>(settings)?)?;
    outcome(&report, report.invalid.is_none())
}

/// Sends or receives TCP as `args` say: `receive`, `send` or `burst` with keys and values of [`ReceiveConfig`],
/// [`SendConfig`] or [`BurstConfig`].
///
/// # Errors
/// As [`execute`].
pub fn execute_tcp(args: &[String]) -> Result<Outcome, LoadError> {
    let (what, settings) = args.split_first().map_or(("", args), |(what, rest)| (what.as_str(), rest));
    match what {
        "receive" => outcome(&receive::run(&read::<ReceiveConfig>(settings)?)?, true),
        "send" => outcome(&send::run(&read::<SendConfig>(settings)?)?, true),
        "burst" => outcome(&burst::run(&read::<BurstConfig>(settings)?)?, true),
        other => Err(LoadError::Config { key: "command", value: other.into(), expected: "receive, send or burst" }),
    }
}

/// Starts the server behind proxies as `settings` say, which are keys and values of [`UpstreamConfig`].
///
/// # Errors
/// As [`execute`].
pub fn start_upstream(settings: &[String]) -> Result<Upstream, LoadError> {
    Upstream::start(read::<UpstreamConfig>(settings)?)
}

/// Does what `args` say and prints it: 0 if the run counts, 2 if it spoilt itself, 1 if it failed.
#[must_use]
pub fn run_cli(args: &[String]) -> ExitCode {
    let printed = execute(args).map(|outcome| {
        // Nobody is left to be told that standard output is closed.
        let _ = writeln!(io::stdout().lock(), "{}", outcome.json);
        if outcome.is_valid { ExitCode::SUCCESS } else { ExitCode::from(2) }
    });
    printed.unwrap_or_else(|error| {
        let mut text = error.to_string();
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            text.push_str(": ");
            text.push_str(&source.to_string());
            cause = source;
        }
        let _ = writeln!(io::stderr().lock(), "{text}");
        ExitCode::FAILURE
    })
}

fn outcome(report: &impl Serialize, is_valid: bool) -> Result<Outcome, LoadError> {
    Ok(Outcome { json: serde_json::to_string_pretty(report)?, is_valid })
}

/// What the settings say together; a failure names the first that goes too far.
fn read<T: DeserializeOwned>(settings: &[String]) -> Result<T, LoadError> {
    let read = |settings: &[String]| Ok::<_, LoadError>(serde_json::from_value::<T>(parse(settings)?));
    let source = match read(settings)? {
        Ok(config) => return Ok(config),
        Err(error) => error,
    };
    for (at, argument) in settings.iter().enumerate() {
        if let Err(source) = read(&settings[..=at])? {
            return Err(LoadError::Argument { argument: argument.clone(), source });
        }
    }
    Err(source.into())
}

/// One object from all `key=value`.
fn parse(settings: &[String]) -> Result<Value, LoadError> {
    let mut object = Map::new();
    for setting in settings {
        let malformed = || LoadError::Config { key: "argument", value: setting.clone(), expected: "KEY=VALUE" };
        let (path, value) = setting.split_once('=').ok_or_else(malformed)?;
        let value = match value.strip_prefix('@') {
            Some(file) => {
                serde_json::from_str(&fs::read_to_string(file).map_err(LoadError::os("read the file of an argument"))?)?
            }
            None => serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into())),
        };
        let (parents, key) = path.rsplit_once('.').map_or((None, path), |(parents, key)| (Some(parents), key));
        let mut at = &mut object;
        for parent in parents.iter().flat_map(|parents| parents.split('.')) {
            let child = at.entry(parent).or_insert_with(|| Value::Object(Map::new()));
            at = child.as_object_mut().ok_or_else(malformed)?;
        }
        at.insert(key.into(), value);
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Process;
    use crate::bench::{Command, Pace};

    fn config(settings: &str) -> Result<BenchConfig, LoadError> {
        let settings: Vec<String> = settings.split(' ').map(str::to_owned).collect();
        read(&settings)
    }

    #[test]
    fn settings_nest_and_keep_the_defaults() {
        let read = config("topic=t publishers=7 pace.open.rate_per_s=50 command.dpub.delay_ms=9 cpus=[1]").unwrap();
        let expected = BenchConfig {
            topic: "t".into(),
            publishers: 7,
            pace: Pace::Open { process: Process::Poisson, rate_per_s: 50.0 },
            command: Command::Dpub { delay_ms: 9 },
            cpus: vec![1],
            ..BenchConfig::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn nonsense_is_named() {
        assert!(matches!(config("topic"), Err(LoadError::Config { key: "argument", .. })));
        assert!(matches!(config("topic=t topic.x=1"), Err(LoadError::Config { key: "argument", .. })));
        let wrong = config("publishers=2 tropic=t topic=u").unwrap_err();
        assert_eq!(wrong.to_string(), "the argument tropic=t cannot be used");
        assert!(matches!(execute(&[]), Err(LoadError::Config { key: "command", .. })));
        assert!(matches!(execute(&["run".into(), "batch=0".into()]), Err(LoadError::Config { key: "batch", .. })));
    }
}

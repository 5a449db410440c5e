//! Other people's test suites and tools, run against the real nsqd and against ours.
//!
//! The rule: whatever passes on nsqd passes on ours, and where a script has an outcome, both have the same one.
//! Several of them insist on nsqd's own ports, so each run has a private network and a private process table:
//! see [`sandbox`]. The broker under test is always started as a program named `nsqd`.

mod go_nsq;
mod nsqjs;
mod protocol;
mod sandbox;
mod server;
mod steer;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Map, Value};

use crate::places::Places;

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It passed; scripts say with which outcome, test programs say nothing.
    Passed(String),
    /// It failed, with the reason.
    Failed(String),
}

/// A run's tests by name.
pub(crate) type Results = BTreeMap<String, Verdict>;

/// A suite of other people's making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// go-nsq's own tests.
    GoNsq,
    /// nsqjs's own tests.
    Nsqjs,
    /// NSQ's command line tools and nsqadmin, in a script.
    Tools,
    /// Bytes on the TCP port and requests on the HTTP port, answer for answer.
    Protocol,
    /// Producers of go-nsq and nsqjs through `tidegate steer`.
    Steer,
}

impl Suite {
    /// All of them, in the order of a test run.
    pub(crate) const ALL: [Self; 5] = [Self::Protocol, Self::GoNsq, Self::Nsqjs, Self::Tools, Self::Steer];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GoNsq => "go-nsq",
            Self::Nsqjs => "nsqjs",
            Self::Tools => "tools",
            Self::Protocol => "protocol",
            Self::Steer => "steer",
        }
    }

    /// The suite of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

/// What a suite runs against: a folder whose `nsqd` is the broker under test, and room for files.
#[derive(Debug)]
struct Subject {
    /// First in `PATH`; holds `nsqd` and, beside it, nothing.
    bin: PathBuf,
    /// Empty at the start, removed at the end.
    scratch: PathBuf,
}

impl Subject {
    fn nsqd(&self) -> PathBuf {
        self.bin.join("nsqd")
    }
}

/// Runs `suite` against the real nsqd and against `broker`, and compares.
pub(crate) fn compare(places: &Places, suite: Suite, broker: &Path) -> Result<String> {
    let reference = run(places, suite, &places.peers().join("nsqd"), "nsqd")?;
    let ours = run(places, suite, broker, "ours")?;
    verdict(&reference, &ours)
}

/// Runs `suite` against one broker, in a network of its own.
fn run(places: &Places, suite: Suite, broker: &Path, label: &str) -> Result<Results> {
    let name = format!("{}-{label}", suite.name());
    let scratch = places.scratch(&name)?;
    let results = scratch.path.join("results.json");
    let arguments = [suite.name().as_ref(), broker.as_os_str(), scratch.path.as_os_str(), results.as_os_str()];
    sandbox::run(places, &name, &arguments)?;
    let text = std::fs::read_to_string(&results).into_diagnostic().wrap_err("the suite left no results")?;
    let kept = places.logs().join(format!("suite-{name}.json"));
    std::fs::write(kept, &text).into_diagnostic()?;
    decode(&text)
}

/// The inside of the private network: runs the suite and leaves its results in a file.
pub(crate) fn run_inside(places: &Places, suite: Suite, broker: &Path, scratch: &Path, results: &Path) -> Result<()> {
    sandbox::raise_loopback()?;
    let bin = scratch.join("bin");
    std::fs::create_dir_all(&bin).into_diagnostic()?;
    let broker =
        broker.canonicalize().into_diagnostic().wrap_err_with(|| format!("no broker at {}", broker.display()))?;
    std::os::unix::fs::symlink(&broker, bin.join("nsqd")).into_diagnostic()?;
    let subject = Subject { bin, scratch: scratch.to_owned() };
    let found = match suite {
        Suite::GoNsq => go_nsq::run(places, &subject)?,
        Suite::Nsqjs => nsqjs::run(places, &subject)?,
        Suite::Tools => tools::run(places, &subject)?,
        Suite::Protocol => protocol::run(&subject)?,
        Suite::Steer => steer::run(places, &subject)?,
    };
    std::fs::write(results, encode(&found)).into_diagnostic()
}

/// Holds ours against the reference; the error lists each difference.
fn verdict(reference: &Results, ours: &Results) -> Result<String> {
    let expected: Vec<_> = reference.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Passed(_))).collect();
    if expected.is_empty() {
        miette::bail!("nothing passes on nsqd, so this suite says nothing");
    }
    let mut differences = Vec::new();
    for (name, wanted) in &expected {
        match (wanted, ours.get(*name)) {
            (_, Some(found)) if found == *wanted => {}
            (_, None) => differences.push(format!("{name}: did not run on ours")),
            (_, Some(Verdict::Failed(reason))) => differences.push(format!("{name}: fails on ours: {reason}")),
            (Verdict::Failed(_), Some(Verdict::Passed(_))) => {}
            (Verdict::Passed(nsqd), Some(Verdict::Passed(found))) => {
                differences.push(format!("{name}:\n  nsqd: {nsqd}\n  ours: {found}"));
            }
        }
    }
    if !differences.is_empty() {
        miette::bail!("{} of {} differ from nsqd:\n{}", differences.len(), expected.len(), differences.join("\n"));
    }
    let weak: Vec<&str> =
        reference.iter().filter(|(_, v)| matches!(v, Verdict::Failed(_))).map(|(name, _)| name.as_str()).collect();
    let note = if weak.is_empty() {
        String::new()
    } else {
        format!("; nsqd itself fails {}: {}", weak.len(), weak.join(", "))
    };
    Ok(format!("{} pass on nsqd and on ours{note}", expected.len()))
}

fn encode(results: &Results) -> String {
    let map: Map<String, Value> = results
        .iter()
        .map(|(name, verdict)| {
            let (key, text) = match verdict {
                Verdict::Passed(text) => ("passed", text),
                Verdict::Failed(text) => ("failed", text),
            };
            (name.clone(), serde_json::json!({ key: text }))
        })
        .collect();
    Value::Object(map).to_string()
}

fn decode(text: &str) -> Result<Results> {
    let map: Map<String, Value> = serde_json::from_str(text).into_diagnostic()?;
    let verdict = |value: &Value| {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        text("passed").map(Verdict::Passed).or_else(|| text("failed").map(Verdict::Failed))
    };
    map.iter()
        .map(|(name, value)| Some((name.clone(), verdict(value)?)))
        .collect::<Option<_>>()
        .ok_or_else(|| miette::miette!("results of another shape: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(pairs: &[(&str, Verdict)]) -> Results {
        pairs.iter().map(|(name, verdict)| ((*name).to_owned(), verdict.clone())).collect()
    }

    fn passed(outcome: &str) -> Verdict {
        Verdict::Passed(outcome.to_owned())
    }

    fn failed() -> Verdict {
        Verdict::Failed("why".to_owned())
    }

    #[test]
    fn what_nsqd_passes_ours_must_pass_with_the_same_outcome() {
        let reference = results(&[("a", passed("1")), ("b", passed("2")), ("c", failed())]);
        assert!(verdict(&reference, &results(&[("a", passed("1")), ("b", passed("2"))])).is_ok());
        assert!(verdict(&reference, &results(&[("a", passed("1")), ("b", passed("3"))])).is_err(), "another outcome");
        assert!(verdict(&reference, &results(&[("a", passed("1")), ("b", failed())])).is_err(), "a failure");
        assert!(verdict(&reference, &results(&[("a", passed("1"))])).is_err(), "not run");
    }

    #[test]
    fn a_suite_in_which_nsqd_passes_nothing_is_an_error() {
        assert!(verdict(&results(&[("a", failed())]), &results(&[("a", passed(""))])).is_err());
    }

    #[test]
    fn results_survive_the_way_through_the_file() {
        let all = results(&[("a", passed("x\ny")), ("b", failed())]);
        assert_eq!(decode(&encode(&all)).unwrap(), all);
    }
}

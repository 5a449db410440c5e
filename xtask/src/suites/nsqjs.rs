//! nsqjs's own tests, which its npm package carries. They start `nsqd` from `PATH` themselves.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use super::{Results, Subject, Verdict};
use crate::places::Places;
use crate::{peers, process};

/// On nsqd it takes four seconds; each test that hangs costs mocha's two.
const LIMIT: Duration = Duration::from_mins(3);

/// Runs the whole suite with the subject's `nsqd` first in `PATH`.
pub(super) fn run(places: &Places, subject: &Subject) -> Result<Results> {
    let modules = peers::nsqjs(places).join("node_modules");
    let report = subject.scratch.join("mocha.json");
    let mut path = OsString::from(&subject.bin);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new(modules.join(".bin/mocha"));
    command.args(["--reporter", "json", "--exit", "--reporter-option"]).arg(format!("output={}", report.display()));
    // Its tests ask for `localhost` where their nsqd listens on 127.0.0.1 only.
    command.env("PATH", path).env("NODE_OPTIONS", "--dns-result-order=ipv4first");
    command.current_dir(modules.join("nsqjs"));
    let log = subject.scratch.join("mocha.log");
    // Failures show in the report; its absence is what is wrong here.
    let done = process::run(&mut command, LIMIT, &log, |_| {})?;
    let text = std::fs::read_to_string(&report)
        .into_diagnostic()
        .wrap_err_with(|| format!("mocha {} and left no report:\n{}", done.ending(), done.tail))?;
    read_report(&text)
}

fn read_report(text: &str) -> Result<Results> {
    let report: Value = serde_json::from_str(text).into_diagnostic()?;
    let list = |key: &str| report.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let title = |test: &Value| test.get("fullTitle").and_then(Value::as_str).unwrap_or("untitled").to_owned();
    let mut results = Results::new();
    for test in list("passes") {
        results.insert(title(&test), Verdict::Passed(String::new()));
    }
    // After the passes: of two tests with one title, the failed one counts.
    for test in list("failures") {
        let reason = test.pointer("/err/message").and_then(Value::as_str).unwrap_or("no reason given");
        results.insert(title(&test), Verdict::Failed(reason.to_owned()));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_that_both_passed_and_failed_has_failed() {
        let report = r#"{"passes":[{"fullTitle":"a b"},{"fullTitle":"c"}],"failures":[{"fullTitle":"a b","err":{"message":"late"}}]}"#;
        let results = read_report(report).unwrap();
        assert_eq!(results["a b"], Verdict::Failed("late".to_owned()));
        assert_eq!(results["c"], Verdict::Passed(String::new()));
    }
}

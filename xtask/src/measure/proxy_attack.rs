//! Abuse of a proxy: conformance of HTTP/2, requests that two servers may read differently, floods.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::broker::{free_address, pinned};
use super::proxy_load::{A, B, upstream};
use super::proxy_server::{self, KeyKind, Limiting, Proxy, Running, Setting};
use super::table::Figure;
use crate::{peers, process, steps};

/// Cases of h2spec 2.2.1, strict ones included.
const H2SPEC_CASES: u64 = 146;
/// Cases of the smuggling corpus, at least.
const CORPUS_LEAST: u64 = 200;
/// Files that a proxy may have open when it is to run out of them.
const FEW_FILES: &str = "--nofile=1024:1024";
/// So many connections at once are more than it has files for, whether it took them or left them waiting.
const MORE_THAN_FILES: f64 = 1_024.0;
/// Connections of a client that sends slowly.
const SLOW_CONNECTIONS: f64 = 10_000.0;
/// Slow readers ask for more than sockets hold.
const LARGE: &str = "/?bytes=1000000";

/// How a script is run.
struct Attempt {
    script: &'static str,
    is_tls: bool,
    /// Further arguments.
    arguments: &'static [&'static str],
    /// The proxy has [`FEW_FILES`].
    few_files: bool,
}

impl Attempt {
    const fn new(script: &'static str, is_tls: bool) -> Self {
        Self { script, is_tls, arguments: &[], few_files: false }
    }
}

const ATTEMPTS: &[Attempt] = &[
    Attempt::new("rapid-reset", false),
    Attempt::new("rapid-reset", true),
    Attempt::new("continuation-flood", false),
    Attempt::new("continuation-flood", true),
    Attempt::new("settings-flood", false),
    Attempt::new("settings-flood", true),
    Attempt::new("ping-flood", false),
    Attempt::new("ping-flood", true),
    Attempt::new("window-update-flood", true),
    Attempt::new("zero-length-data", true),
    Attempt::new("header-bomb", true),
    Attempt::new("slowloris", false),
    Attempt { arguments: &["--path", LARGE], ..Attempt::new("slow-read", false) },
    Attempt { arguments: &["--path", LARGE], ..Attempt::new("slow-read", true) },
    Attempt::new("handshake-flood", true),
    Attempt::new("hello-garbage", true),
    Attempt { few_files: true, ..Attempt::new("fd-exhaustion", false) },
    Attempt { few_files: true, ..Attempt::new("fd-exhaustion", true) },
    Attempt::new("smuggling", false),
];

/// Requests as long as the corpus's limits have it.
const LIMITS: &str = "\n[proxy.http]\nmax_head = \"8KiB\"\n";

fn start(bench: &Bench, proxy: Proxy, upstream: &str, more: &str) -> Result<Running> {
    let limiting = if proxy == Proxy::Tidegate { Limiting::On } else { Limiting::Off };
    Running::start_with(bench, &Setting::new(proxy, limiting, KeyKind::P256, upstream), more)
}

/// h2spec in strict mode, without and with TLS.
pub(super) fn h2spec(bench: &Bench) -> Result<Vec<Figure>> {
    proxy_server::ensure(bench)?;
    peers::build_h2spec(bench.places)?;
    let upstream = upstream(bench)?;
    // A port for HTTP/2 alone: where HTTP/1 is spoken too, a wrong preface is a bad request of HTTP/1 and answered in it.
    let h2c = free_address()?;
    let listener = format!("\n[[proxy.listen]]\naddress = \"{h2c}\"\nalpn = [\"h2\"]\n");
    let proxy = start(bench, Proxy::Tidegate, upstream.said("address")?, &listener)?;
    let mut figures = Vec::new();
    for (what, address, arguments) in [("h2c", &h2c, &[][..]), ("TLS", &proxy.tls, &["-t", "-k"])] {
        let (host, port) = address.rsplit_once(':').ok_or_else(|| miette::miette!("{address} has no port"))?;
        let mut command = Command::new(peers::h2spec(bench.places));
        command.args(["--strict", "--host", host, "--port", port]).args(arguments);
        let name = format!("h2spec {what}");
        let done = steps::run(bench.places, &name, &mut command, Duration::from_mins(15), steps::quiet)?;
        let said = std::fs::read_to_string(&done.log).into_diagnostic()?;
        let (cases, passed) = counts(&said).ok_or_else(|| miette::miette!("h2spec does not count: {}", done.tail))?;
        let failures: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with('×')).collect();
        figures.push(Figure {
            what: format!("h2spec strict, {what}"),
            value: format!("{passed} of {cases} cases"),
            spread: failures.join("; "),
            passes: passed == H2SPEC_CASES && cases == H2SPEC_CASES,
            runs: json!({ "cases": cases, "passed": passed, "failures": failures }),
        });
    }
    proxy.stop()?;
    upstream.stop()?;
    Ok(figures)
}

/// From `146 tests, 146 passed, 0 skipped, 0 failed`.
fn counts(said: &str) -> Option<(u64, u64)> {
    let line = said.lines().rev().find(|line| line.contains(" tests, ") && line.contains(" passed, "))?;
    let mut numbers = line.split(", ").filter_map(|part| part.split_once(' ')?.0.trim().parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Every case of the corpus through ours, nginx and `HAProxy`, each in front of an upstream that remembers.
pub(super) fn smuggling(bench: &Bench) -> Result<Vec<Figure>> {
    proxy_server::ensure(bench)?;
    let mut reports = Vec::new();
    for proxy in [Proxy::Tidegate, Proxy::Nginx, Proxy::Haproxy] {
        let recorder = free_address()?;
        let running = start(bench, proxy, &recorder, LIMITS)?;
        let mut command = Command::new(bench.places.tidegate());
        command.args(["attack", "smuggling", "--json", "--target", &running.plain, "--record", &recorder]);
        command.args(["--victim-host", A]);
        reports.push((proxy, report(&mut command).wrap_err(proxy.name())?));
        running.stop()?;
    }
    let figures = reports.iter().map(|(proxy, report)| {
        let count = |key: &str| report[key].as_u64().ok_or_else(|| miette::miette!("the report has no {key}"));
        let (cases, desyncs, unclean) = (count("cases")?, count("desyncs")?, count("unclean")?);
        let (laxer, stricter, waits) = (count("laxer")?, count("stricter")?, count("waits")?);
        let is_ours = *proxy == Proxy::Tidegate;
        Ok(Figure {
            what: format!("{}, {cases} cases", proxy.name()),
            value: format!("{desyncs} desyncs, {unclean} unclean, {laxer} laxer than a strict server"),
            spread: format!("{stricter} stricter, {waits} waiting{}", if is_ours { "" } else { " (no bar)" }),
            passes: !is_ours || (cases >= CORPUS_LEAST && desyncs == 0 && unclean == 0 && laxer == 0),
            runs: report.clone(),
        })
    });
    let figures = figures.collect::<Result<Vec<Figure>>>()?;
    println!("{}", differences(&reports));
    Ok(figures)
}

/// Cases in which one of the proxies is not a strict server, as a table.
fn differences(reports: &[(Proxy, Value)]) -> String {
    let mut text =
        String::from("cases in which one of them is not a strict server (! desync, ~ unclean bytes upstream):\n");
    let none = Vec::new();
    let cases = |report: &Value| report["reports"].as_array().unwrap_or(&none).clone();
    let all: Vec<Vec<Value>> = reports.iter().map(|(_, report)| cases(report)).collect();
    let differs = |case: &Value| case["conduct"] != "same" || !case["desync"].is_null() || !case["unclean"].is_null();
    for number in 0..all.first().map_or(0, Vec::len) {
        let row: Vec<&Value> = all.iter().filter_map(|cases| cases.get(number)).collect();
        if !row.iter().any(|case| differs(case)) {
            continue;
        }
        // Writing to a string does not fail.
        let _ = write!(text, "  {:<44} {:<36}", word(row[0], "name"), word(row[0], "expected"));
        for (case, (proxy, _)) in row.iter().zip(reports) {
            let mark = match (case["desync"].is_null(), case["unclean"].is_null()) {
                (false, _) => "!",
                (true, false) => "~",
                (true, true) => "",
            };
            let _ = write!(text, " {}: {}{mark};", proxy.name(), word(case, "found"));
        }
        text.push('\n');
    }
    text
}

fn word<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap_or("?")
}

/// Every script on a proxy of its own, with another tenant beside it.
pub(super) fn attacks(bench: &Bench) -> Result<Vec<Figure>> {
    proxy_server::ensure(bench)?;
    let upstream = upstream(bench)?;
    let address = upstream.said("address")?.to_owned();
    let figures = ATTEMPTS.iter().map(|attempt| run(bench, &address, attempt).wrap_err(attempt.script));
    let figures = figures.collect::<Result<Vec<Figure>>>()?;
    upstream.stop()?;
    Ok(figures)
}

fn run(bench: &Bench, upstream: &str, attempt: &Attempt) -> Result<Figure> {
    let proxy = start(bench, Proxy::Tidegate, upstream, "")?;
    let pids = proxy.pids();
    let pid = pids.first().ok_or_else(|| miette::miette!("a running proxy has a process"))?.to_string();
    if attempt.few_files {
        process::output(Command::new("prlimit").args(["--pid", &pid, FEW_FILES]))?;
    }
    let mut command = pinned("1");
    command.arg(bench.places.tidegate()).args([
        "attack",
        attempt.script,
        "--json",
        "--host",
        B,
        "--victim-host",
        A,
        "--pid",
        &pid,
    ]);
    command.args(["--target", if attempt.is_tls { &proxy.tls } else { &proxy.plain }]);
    command.args(["--seconds", bench.size("10", "2"), "--calm-seconds", bench.size("3", "1")]);
    if attempt.is_tls {
        command.arg("--tls");
    }
    let report = report(command.args(attempt.arguments))?;
    proxy.stop()?;
    let percent = |pointer| number(&report, pointer).map(|share| share * 100.0);
    let ms = |pointer| number(&report, pointer).map(|us| us / 1e3);
    let (goodput, after) = (percent("/victim/during/goodput")?, percent("/victim/after/goodput")?);
    let growth = number(&report, "/process/growth_bytes")? / f64::from(1 << 20);
    let attempts = number(&report, "/attack/attempts")?;
    let (open, files) = (number(&report, "/attack/open_max")?, number(&report, "/process/open_files_peak")?);
    // A script that did not come to its end was not withstood.
    let is_whole =
        (attempt.script != "slowloris" || open >= SLOW_CONNECTIONS) && (!attempt.few_files || open >= MORE_THAN_FILES);
    Ok(Figure {
        what: format!("{}, {}", attempt.script, if attempt.is_tls { "TLS" } else { "plain" }),
        value: format!("goodput {goodput:.1} %, after {after:.1} %, {growth:+.0} MiB"),
        spread: format!(
            "p99 {:.1} ms before, {:.1} ms during; {attempts:.0} {}, {open:.0} connections at once, {files:.0} files at most",
            ms("/victim/before/us_p99")?,
            ms("/victim/during/us_p99")?,
            report["unit"].as_str().unwrap_or("attempts")
        ),
        // Without attempts nothing was withstood.
        passes: report["objective"]["reached"] == true && attempts > 0.0 && is_whole,
        runs: report,
    })
}

/// The JSON that `command` prints. A missed objective is a finding here, not a failure.
fn report(command: &mut Command) -> Result<Value> {
    let said = command.stdin(Stdio::null()).output().into_diagnostic()?;
    serde_json::from_slice(&said.stdout)
        .map_err(|_| miette::miette!("tidegate attack: {}", String::from_utf8_lossy(&said.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2specs_last_line_is_counted() {
        let said = "Finished in 3.1 seconds\n146 tests, 145 passed, 0 skipped, 1 failed\n";
        assert_eq!(counts(said), Some((146, 145)));
        assert_eq!(counts("146 of them\n"), None);
    }

    #[test]
    fn only_differing_cases_are_listed() {
        let case = |name: &str, is_same: bool| {
            json!({ "name": name, "expected": "refused with 400", "found": "1 accepted",
                "conduct": if is_same { "same" } else { "laxer" },
                "desync": null, "unclean": if is_same { Value::Null } else { json!("a bare line feed") } })
        };
        let ours = json!({ "reports": [case("same", true), case("other", true)] });
        let theirs = json!({ "reports": [case("same", true), case("other", false)] });
        let text = differences(&[(Proxy::Tidegate, ours), (Proxy::Nginx, theirs)]);
        assert!(text.contains("other") && text.contains("nginx: 1 accepted~;") && !text.contains("same"), "{text}");
    }
}

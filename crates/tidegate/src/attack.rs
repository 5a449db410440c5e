//! `tidegate attack`: abuse scripts against a proxy on this machine.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate_load::LoadError;
use tidegate_load::attack::smuggling::{self, Conduct, DifferentialReport, Recorder};
use tidegate_load::attack::{self, AttackConfig, AttackReport, Loopback, Phase, Script};

use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// `tidegate attack`.
#[derive(Debug, Args)]
#[command(
    after_help = "The target must be on loopback and yours. Exit code 4: the target misses an objective: 95 % of \
                        the other tenant's requests answered in time during the attack, 99 % after it, at most 64 MiB \
                        more memory."
)]
pub(crate) struct Attack {
    /// The script, as `--list` names it
    #[arg(required_unless_present = "list", value_parser = scripts())]
    name: Option<Script>,
    /// Say what each script does
    #[arg(long)]
    list: bool,
    /// The proxy, on loopback
    #[arg(long, value_name = "127.0.0.1:PORT", default_value = "127.0.0.1:8080")]
    target: Loopback,
    /// The target speaks TLS
    #[arg(long)]
    tls: bool,
    /// How long the attack lasts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How long the other tenant is alone before it, and again after it, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    calm_seconds: u64,
    /// The attacker's host: what makes it a tenant
    #[arg(long, value_name = "NAME", default_value = "noisy.example")]
    host: String,
    /// What the attacker asks for
    #[arg(long, default_value = "/")]
    path: String,
    /// The host of the tenant that shall not notice
    #[arg(long, value_name = "NAME", default_value = "quiet.example")]
    victim_host: String,
    /// What that tenant asks for
    #[arg(long, value_name = "PATH", default_value = "/")]
    victim_path: String,
    /// How often, in requests per second
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    victim_rate: f64,
    /// Connections of the script, instead of its own number
    #[arg(long, value_name = "N")]
    connections: Option<usize>,
    /// The proxy's process: to watch its memory and CPU time
    #[arg(long)]
    pid: Option<u32>,
    /// With smuggling: be the proxy's upstream at this address, and judge each case by what arrives there
    #[arg(long, value_name = "127.0.0.1:PORT", conflicts_with_all = ["tls", "pid"])]
    record: Option<SocketAddr>,
    /// Same seed, same requests of the other tenant and same garbage
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Names for completions and for the error when it is none of them.
fn scripts() -> impl TypedValueParser<Value = Script> {
    let names = PossibleValuesParser::new(Script::ALL.map(Script::name));
    names.map(|name| name.parse().expect("one of the names just listed"))
}

/// Lists the scripts or runs one.
pub(crate) fn run(args: &Attack) -> Result<(), Failure> {
    let style = Style::of(args.json);
    match (args.name, args.record) {
        (None, _) => list(style),
        (Some(_), _) if args.list => list(style),
        (Some(Script::Smuggling), Some(upstream)) => differential(args, upstream, style),
        (Some(_), Some(_)) => Err(Failure::usage("only smuggling has an upstream that records")),
        (Some(script), None) => {
            let report = attack::run(&config(args, script)).map_err(failed)?;
            match style {
                Style::Json => output::json(&report)?,
                Style::Table => print(&report)?,
            }
            if report.objective.reached { Ok(()) } else { Err(missed(&report)) }
        }
    }
}

fn config(args: &Attack, script: Script) -> AttackConfig {
    AttackConfig {
        is_tls: args.tls,
        host: args.host.clone(),
        path: args.path.clone(),
        victim_host: args.victim_host.clone(),
        victim_path: args.victim_path.clone(),
        victim_rate_per_s: args.victim_rate,
        seconds: args.seconds,
        calm_seconds: args.calm_seconds,
        connections: args.connections,
        pid: args.pid,
        seed: args.seed,
        ..AttackConfig::new(script, args.target)
    }
}

fn failed(error: LoadError) -> Failure {
    match error {
        LoadError::Config { .. } | LoadError::NotLoopback { .. } => Failure::usage(error),
        LoadError::Unanswered { .. } => {
            let help =
                "--victim-host and --victim-path must name something that the proxy serves; --tls if it speaks TLS";
            Failure::new(&error).help(help)
        }
        error => Failure::new(&error).because(error),
    }
}

fn missed(report: &AttackReport) -> Failure {
    let objective = report.objective;
    let missed = [
        (objective.keeps_goodput, "the other tenant's goodput during the attack"),
        (objective.recovers, "its goodput after the attack"),
        (objective.bounds_memory, "growth of memory"),
    ];
    let missed: Vec<&str> = missed.into_iter().filter(|(reached, _)| !reached).map(|(_, what)| what).collect();
    Failure::slo_missed(format!("{}: {} is missed", report.script, missed.join(", ")))
}

fn list(style: Style) -> Result<(), Failure> {
    if style == Style::Json {
        let scripts: Vec<_> = Script::ALL
            .iter()
            .map(|script| {
                serde_json::json!({
                    "name": script.name(),
                    "description": script.description(),
                    "connections": script.connections(),
                    "needs_tls": script.needs_tls(),
                })
            })
            .collect();
        return output::json(&scripts);
    }
    for script in Script::ALL {
        output::line(format_args!("{}\n    {}\n", script.name(), script.description()))?;
    }
    Ok(())
}

fn print(report: &AttackReport) -> Result<(), Failure> {
    let attack = &report.attack;
    output::line(format_args!(
        "{}: {} {} on {} connections ({} at once at most), {} refused, {} closed by the target",
        report.script,
        attack.attempts,
        report.unit,
        attack.connections,
        attack.open_max,
        attack.refused_connections,
        attack.closed_by_target
    ))?;
    let counts = |what: &str, counts: String| {
        if counts.is_empty() { Ok(()) } else { output::line(format_args!("  {what}: {counts}")) }
    };
    counts("statuses", joined(&attack.statuses))?;
    counts("GOAWAY", joined(&attack.goaways))?;
    counts("RST_STREAM", joined(&attack.resets))?;
    let shakes = attack.handshakes;
    if report.script.needs_tls() || report.script == Script::HelloGarbage {
        output::line(format_args!(
            "  hellos: {} taken up, {} alerts, {} closed, {} other answers, {} without an answer",
            shakes.taken_up, shakes.alerts, shakes.closed, shakes.other, shakes.silent
        ))?;
    }
    counts("missing on this machine", joined(&attack.missing_here))?;
    let mut table = Table::new(&["other tenant", "requests", "good", "p50 ms", "p99 ms", "max ms", "not good"]);
    for (when, phase) in
        [("before", &report.victim.before), ("during", &report.victim.during), ("after", &report.victim.after)]
    {
        table.row(row(when, phase));
    }
    table.print()?;
    if let Some(process) = report.process {
        output::line(format_args!(
            "memory: {} MiB before, {} at most, {} after; {} s of CPU during the attack; {} open files at most",
            mebibytes(process.rss_bytes_before),
            mebibytes(process.rss_bytes_peak),
            mebibytes(process.rss_bytes_after),
            figure(seconds(process.cpu_ns)),
            process.open_files_peak
        ))?;
    }
    Ok(())
}

fn row(when: &str, phase: &Phase) -> [String; 7] {
    [
        when.to_owned(),
        phase.sent.to_string(),
        format!("{:.2} %", phase.goodput * 100.0),
        figure(phase.us_p50 / 1e3),
        figure(phase.us_p99 / 1e3),
        figure(phase.us_max / 1e3),
        joined(&phase.misses),
    ]
}

fn joined<K: std::fmt::Display>(counts: &std::collections::BTreeMap<K, u64>) -> String {
    counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
}

fn mebibytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    figure(bytes as f64 / f64::from(1 << 20))
}

fn seconds(ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ns = ns as f64;
    ns / 1e9
}

fn differential(args: &Attack, upstream: SocketAddr, style: Style) -> Result<(), Failure> {
    let upstream = Loopback::new(upstream).map_err(failed)?;
    let recorder = Recorder::start(upstream.address()).map_err(failed)?;
    let report =
        smuggling::differential(args.target, &recorder, &smuggling::corpus(), &args.victim_host).map_err(failed)?;
    match style {
        Style::Json => output::json(&report)?,
        Style::Table => print_cases(&report)?,
    }
    if report.desyncs == 0 {
        return Ok(());
    }
    Err(Failure::slo_missed(format!("{} desyncs", report.desyncs)))
}

/// Only cases that are not as a strict server would have them.
fn print_cases(report: &DifferentialReport) -> Result<(), Failure> {
    let mut table = Table::new(&["case", "expected", "found", "desync", "unclean upstream"]);
    let mut differing = 0;
    for case in &report.reports {
        if case.conduct == Conduct::Same && case.desync.is_none() && case.unclean.is_none() {
            continue;
        }
        differing += 1;
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        table.row([
            case.name.clone(),
            case.expected.clone(),
            case.found.clone(),
            or_dash(&case.desync),
            or_dash(&case.unclean),
        ]);
    }
    if differing > 0 {
        table.print()?;
    }
    output::line(format_args!(
        "{} cases: {} desyncs, {} with unclean bytes upstream; beside a strict server {} laxer, {} stricter, {} waiting",
        report.cases, report.desyncs, report.unclean, report.laxer, report.stricter, report.waits
    ))
}

//! The bars, one row each.

use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, Better, Pairing, median, number, range};
use super::broker::{Broker, IN_MEMORY, Kind, SHARDS, shards_in_words};
use super::table::Figure;
use super::{broker_sim, etcd, lending, lending_sim, limits, one_limit, rpc_cost, rpc_sim, rpc_tcp, rpc_tonic};
use crate::peers::cargo;
use crate::process::Group;
use crate::suites::{self, Suite};
use crate::{clock, steps};

/// A bar and how to measure it.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The issue that set the bar.
    pub(super) issue: u32,
    /// A short name, for `--only`.
    pub(super) name: &'static str,
    /// The bar, in words.
    pub(super) bar: &'static str,
    /// Measures.
    pub(super) run: fn(&Bench) -> Result<Vec<Figure>>,
}

/// Every bar, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row { issue: 2, name: "compatibility", bar: "all that pass on nsqd pass on ours", run: compatibility },
    Row {
        issue: 2,
        name: "publish",
        bar: "MPUB of 200, pipelined PUB, request-reply: 3x, 4x, 1.5x nsqd",
        run: publish,
    },
    Row { issue: 2, name: "deliver", bar: "pipelined PUB, MPUB of 200: 4x, 3x nsqd", run: deliver },
    Row {
        issue: 2,
        name: "end to end",
        bar: "p99: unbuffered 1/3, default 1/25 at 10,000/s, 1/200 at 1,000/s of nsqd's",
        run: end_to_end,
    },
    Row { issue: 2, name: "idle memory", bar: "at most 4 KiB for each of 10,000 connections", run: idle_memory },
    Row { issue: 2, name: "timers", bar: "DPUB, REQ, message timeout: at most 5 ms late at p99", run: timers },
    Row { issue: 2, name: "data folder", bar: "0 messages lost each way, SIGTERM under load", run: data_folder },
    Row { issue: 2, name: "overflow", bar: "through the disk: 2x nsqd per second and per CPU second", run: overflow },
    Row {
        issue: 2,
        name: "access delay",
        bar: "p99 of the error against Eq. 2 at most 100 us",
        run: limits::access_delay,
    },
    Row {
        issue: 2,
        name: "simulator",
        bar: "M/D/1 within its confidence interval, 10^8 arrivals",
        run: |bench| lab(bench, "theory_check"),
    },
    Row {
        issue: 2,
        name: "release law",
        bar: "0 violations over 10^7 messages of 100 publishers",
        run: limits::release_law,
    },
    Row {
        issue: 2,
        name: "paused reader",
        bar: "0 conforming messages delayed by a pause of 50 ms",
        run: limits::paused_reader,
    },
    Row {
        issue: 2,
        name: "token decision",
        bar: "at most 20 ns alone, 80 ns with two threads on one bucket",
        run: token_decision,
    },
    Row {
        issue: 2,
        name: "release law, injected stamps",
        bar: "0 violations over 10^7 messages of 100 publishers",
        run: |bench| lab(bench, "release_law"),
    },
    Row { issue: 2, name: "figure 6a", bar: "the paper's order and shape", run: |bench| lab(bench, "fig6a") },
    Row { issue: 2, name: "figure 6b", bar: "the paper's order and shape", run: |bench| lab(bench, "fig6b") },
    Row {
        issue: 3,
        name: "rpc goodput",
        bar: "1,000 clients at 1.2x, 2x, 5x, 10x: at least 0.98 of the capacity",
        run: rpc_sim::goodput,
    },
    Row {
        issue: 3,
        name: "rpc tail",
        bar: "answered calls: p99 at most the SLO, p99.9 at most 1.1 SLO",
        run: rpc_sim::tail,
    },
    Row {
        issue: 3,
        name: "rpc spike",
        bar: "goodput of the first 20 ms at least 0.97, each bin of 1 ms: p99 at most the SLO",
        run: rpc_sim::spike,
    },
    Row {
        issue: 3,
        name: "rpc refusals",
        bar: "known within the round trip and 5 us at p99: 15 us",
        run: rpc_sim::refusals,
    },
    Row {
        issue: 3,
        name: "rpc million",
        bar: "1,000,000 clients at once: 0.97 of the possible, at 2x first 0.88; 0.1 extra messages a call",
        run: rpc_sim::million,
    },
    Row {
        issue: 3,
        name: "rpc no tuning",
        bar: "1 us to 100 ms, three shapes, 1 to 64 cores at 2x: goodput at least 0.95, p99 at most the SLO",
        run: rpc_sim::no_tuning,
    },
    Row {
        issue: 3,
        name: "rpc priorities",
        bar: "at least 0.999 of the critical calls within the SLO",
        run: rpc_sim::priorities,
    },
    Row {
        issue: 3,
        name: "rpc fairness",
        bar: "Jain's index of equal tenants at least 0.99 beside one at a hundred times",
        run: rpc_sim::fairness,
    },
    Row {
        issue: 3,
        name: "rpc tonic",
        bar: "real, 1 ms and 100 us: goodput at least 0.95; refusals at 10x: own 50 us, server's 0.25 SLO",
        run: rpc_tonic::run,
    },
    Row {
        issue: 3,
        name: "rpc tcp goodput",
        bar: "real, 10 us at 2x and 5x: goodput at least 0.95 of the capacity",
        run: rpc_tcp::goodput,
    },
    Row {
        issue: 3,
        name: "rpc tcp cost",
        bar: "CPU of a call beside its work at most a fifth of tonic's",
        run: rpc_tcp::cost,
    },
    Row { issue: 3, name: "rpc tcp connections", bar: "10,000 connections held", run: rpc_tcp::connections },
    Row {
        issue: 3,
        name: "rpc decision",
        bar: "at most 50 ns alone, 150 ns with two threads",
        run: rpc_cost::decision,
    },
    Row {
        issue: 3,
        name: "rpc cost in service",
        bar: "at most 1 % more instructions of a served call, here as CPU time",
        run: rpc_cost::in_service,
    },
    Row {
        issue: 3,
        name: "rpc conservation",
        bar: "0 violations in the model of 2 clients and 3 credits and over 10,000 seeds; 64 bytes a session",
        run: rpc_cost::conservation,
    },
    Row {
        issue: 18,
        name: "broker simulation",
        bar: "100,000 seeds: 0 violations, 0 lost, the same trace again",
        run: broker_sim::simulation,
    },
    Row {
        issue: 21,
        name: "one limit over proxies",
        bar: "3 real, 6 simulated: admitted <= b + r t; refused while the undivided limit had tokens <= 1 %",
        run: one_limit::run,
    },
    Row {
        issue: 21,
        name: "lending brokers",
        bar: "0 violations of b + r*t while datagrams, a broker and its time are lost; half the mean delay of a split",
        run: lending::lending,
    },
    Row {
        issue: 21,
        name: "lending",
        bar: "six parts, 0.2 ms: p99 1 ms, mean 10x one bucket's, frames 15 %; 20 topics 5 %; 1 ms: p99 3 ms; batches 1/20",
        run: lending_sim::lending,
    },
    Row {
        issue: 21,
        name: "lending law",
        bar: "10,000 seeds of faults: 0 windows above b + r·t",
        run: lending_sim::law,
    },
    Row {
        issue: 21,
        name: "etcd leader",
        bar: "SIGKILL, SIGSTOP: 0 publishes fail, 0 changes lost, 0 events missed, stall at most 3 s",
        run: etcd::leader,
    },
    Row {
        issue: 21,
        name: "etcd gone",
        bar: "60 s: data path unaffected within leases, then exactly on_store_loss",
        run: etcd::gone,
    },
    Row {
        issue: 21,
        name: "etcd handover",
        bar: "the other control leads within a lease; orders of the earlier leader are fenced",
        run: etcd::handover,
    },
];

#[expect(clippy::unnecessary_wraps, reason = "every row has this signature")]
fn compatibility(bench: &Bench) -> Result<Vec<Figure>> {
    let figures = Suite::ALL.iter().map(|suite| {
        let result = suites::compare(bench.places, *suite, &bench.places.tidegate());
        let passes = result.is_ok();
        let value = result.unwrap_or_else(|report| steps::plain(&report));
        Figure { what: suite.name().to_owned(), value, spread: String::new(), passes, runs: Value::Null }
    });
    Ok(figures.collect())
}

/// Into a topic without a channel, in memory: what publishing alone costs.
fn publish(bench: &Bench) -> Result<Vec<Figure>> {
    let per_cpu = |bar| [("/target/accepted_per_cpu_s", "messages per CPU second", Better::Higher, bar)];
    let loads = [
        ("MPUB of 200", "command=mpub batch=200 publishers=4 pace.saturate.window=4", 3.0),
        ("pipelined PUB", "publishers=4 pace.saturate.window=256", 4.0),
        ("request-reply PUB", "command=pub_wait publishers=4 pace.saturate.window=1", 1.5),
    ];
    let mut figures = Vec::new();
    for (what, load, bar) in loads {
        let load = format!("{load} consumers=0 warm_up_ms=300");
        figures.extend(bench.compare(&Pairing { what, flags: &IN_MEMORY, load: &load, figures: &per_cpu(bar) })?);
    }
    Ok(figures)
}

fn deliver(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (what, load, bar) in [
        ("pipelined PUB", "publishers=4 pace.saturate.window=256", 4.0),
        ("MPUB of 200", "command=mpub batch=200 publishers=4 pace.saturate.window=4", 3.0),
    ] {
        let figure = [("/target/delivered_per_cpu_s", "messages per CPU second", Better::Higher, bar)];
        figures.extend(bench.compare(&Pairing { what, flags: &[], load, figures: &figure })?);
    }
    Ok(figures)
}

fn end_to_end(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (what, load, bar) in [
        ("unbuffered, 10,000/s", "buffering=unbuffered pace.open.rate_per_s=10000", 3.0),
        ("default client, 10,000/s", "pace.open.rate_per_s=10000", 25.0),
        ("default client, 1,000/s", "pace.open.rate_per_s=1000", 200.0),
    ] {
        let figure = [("/end_to_end/us_p99", "us at p99", Better::Lower, bar)];
        let load = format!("{load} publishers=1000 spin_us=60");
        figures.extend(bench.compare(&Pairing { what, flags: &[], load: &load, figures: &figure })?);
    }
    Ok(figures)
}

fn overflow(bench: &Bench) -> Result<Vec<Figure>> {
    let figures = [
        ("/window/delivered_per_s", "messages per second", Better::Higher, 2.0),
        ("/target/delivered_per_cpu_s", "messages per CPU second", Better::Higher, 2.0),
    ];
    let load = "publishers=4 pace.saturate.window=256 drain_ms=30000";
    bench.compare(&Pairing { what: "no memory queue", flags: &["-mem-queue-size=0"], load, figures: &figures })
}

/// Ours alone has a bar; nsqd's figure stands beside it.
fn idle_memory(bench: &Bench) -> Result<Vec<Figure>> {
    let connections = bench.size(10_000, 1_000);
    let stages = SHARDS.into_iter().flat_map(|shards| ["identified", "subscribed"].map(|stage| (shards, stage)));
    stages
        .map(|(shards, stage)| {
            let flag = format!("-shards={shards}");
            let mut bytes = [Vec::new(), Vec::new()];
            for _ in 0..bench.size(3, 1) {
                for (kind, found) in [Kind::Ours, Kind::Nsqd].into_iter().zip(&mut bytes) {
                    let data = bench.folder(&format!("idle-{}", kind.name()))?;
                    let broker = Broker::start(bench, kind, &data, &[&flag])?;
                    let arguments = format!("connections={connections} stage={stage}");
                    let report = bench.idle(&broker, &arguments)?;
                    found.push(number(&report, "/rss_bytes_per_connection")?);
                }
            }
            let [ours, nsqd] = bytes;
            Ok(Figure {
                what: format!("{stage}, {connections} connections, {}", shards_in_words(shards)),
                value: format!("{:.0} B (nsqd {:.0} B)", median(&ours), median(&nsqd)),
                spread: range(&ours),
                passes: median(&ours) <= 4096.0,
                runs: json!({ "ours": ours, "nsqd": nsqd }),
            })
        })
        .collect()
}

fn timers(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (what, load) in [
        ("DPUB", "command.dpub.delay_ms=1000"),
        ("REQ", "action.requeue.delay_ms=500"),
        ("message timeout", "action=time_out msg_timeout_ms=1000"),
    ] {
        // A new channel each time, which is where nsqd's queue scan is slowest. No buffer of the client's may add to it.
        let length = bench.size(8_000, 2_000);
        let load = format!(
            "{load} buffering=unbuffered publishers=100 spin_us=1000 pace.open.rate_per_s=1000 warm_up_ms=0 duration_ms={length}"
        );
        let late = |kind, flags: &[&str], runs: usize| -> Result<Vec<f64>> {
            (0..runs).map(|_| number(&bench.run_fresh(kind, flags, &load)?, "/timers/us_p99")).collect()
        };
        let nsqd = late(Kind::Nsqd, &[], 2)?;
        for shards in SHARDS {
            let ours = late(Kind::Ours, &[&format!("-shards={shards}")], bench.pairs())?;
            figures.push(Figure {
                what: format!("{what}, p99 of lateness, {}", shards_in_words(shards)),
                value: format!("{:.0} us (nsqd {:.0} us)", median(&ours), median(&nsqd)),
                spread: format!("{} over {} runs", range(&ours), ours.len()),
                passes: median(&ours) <= 5_000.0,
                runs: json!({ "ours": ours, "nsqd": nsqd }),
            });
        }
    }
    Ok(figures)
}

fn data_folder(bench: &Bench) -> Result<Vec<Figure>> {
    let ways = SHARDS.into_iter().flat_map(|shards| [Kind::Nsqd, Kind::Ours].map(|from| (from, shards)));
    ways.map(|(from, shards)| hand_over(bench, from, shards)).collect()
}

/// One broker is ended under load, with messages deferred, in flight and on disk; the other must find them all.
fn hand_over(bench: &Bench, from: Kind, shards: u32) -> Result<Figure> {
    let to = from.other();
    let flag = format!("-shards={shards}");
    let data = bench.folder(&format!("handed-over-by-{}", from.name()))?;
    let mut broker = Broker::start(bench, from, &data, &["-mem-queue-size=100", &flag])?;
    // Deferred for longer than this takes; both brokers hand them out at once after a restart.
    let deferred = "topic=deferred command.dpub.delay_ms=3600000 publishers=10 pace.open.rate_per_s=2000 duration_ms=1000 drain_ms=0";
    let deferred = bench.load(&broker, &format!("{deferred} manifest=true lateness_us_p99_max=1e9"))?;
    // The consumer holds what it gets, so there are messages in flight; the rest overflows to disk.
    let held = "topic=held action=hold rdy=100 publishers=10 pace.open.rate_per_s=5000 duration_ms=6000 drain_ms=0";
    let held = format!("{held} manifest=true tolerate_disconnect=true lateness_us_p99_max=1e9");
    let report = data.with_extension("held.json");
    let mut generator = bench.generator(&broker, &format!("run {held}"));
    generator.stdout(std::fs::File::create(&report).into_diagnostic()?);
    let mut generator = Group::spawn(&mut generator)?;
    // In the midst of the load.
    generator.wait(Duration::from_secs(4))?;
    broker.ask_to_end()?;
    generator.wait(Duration::from_mins(1))?.ok_or_else(|| miette::miette!("the generator did not end"))?;
    broker.stop()?;
    let held: Value = serde_json::from_str(&std::fs::read_to_string(&report).into_diagnostic()?).into_diagnostic()?;
    let broker = Broker::start(bench, to, &data, &[&flag])?;
    let (mut accepted, mut lost) = (0.0, 0.0);
    for (topic, left) in [("deferred", deferred), ("held", held)] {
        let manifest = data.with_extension(format!("{topic}.manifest"));
        std::fs::write(&manifest, left["manifest"].to_string()).into_diagnostic()?;
        let find = format!(
            "topic={topic} publishers=0 expect=@{} warm_up_ms=0 duration_ms=2000 drain_ms=30000",
            manifest.display()
        );
        let found =
            bench.load(&broker, &find).wrap_err_with(|| format!("{topic}: looking for what {} left", from.name()))?;
        accepted += number(&left, "/conservation/accepted")?;
        lost += number(&found, "/conservation/lost")?;
    }
    broker.stop()?;
    Ok(Figure {
        what: format!("left by {}, found by {}, {}", from.name(), to.name(), shards_in_words(shards)),
        value: format!("{lost:.0} lost of {accepted:.0} accepted"),
        spread: String::new(),
        passes: lost == 0.0 && accepted > 0.0,
        runs: json!({ "accepted": accepted, "lost": lost }),
    })
}

fn token_decision(bench: &Bench) -> Result<Vec<Figure>> {
    let cases =
        [("token_bucket/try_take", 20.0), ("shared_bucket/uncontended", 20.0), ("shared_bucket/two_threads", 80.0)];
    decisions(bench, "tidegate-core", &cases)
}

/// Criterion's estimates of a package's benchmark `decision`, one for each case of it with its bar in nanoseconds.
pub(super) fn decisions(bench: &Bench, package: &str, cases: &[(&str, f64)]) -> Result<Vec<Figure>> {
    estimates(bench, package, "decision", cases)
}

/// The same of any benchmark.
pub(super) fn estimates(bench: &Bench, package: &str, name: &str, cases: &[(&str, f64)]) -> Result<Vec<Figure>> {
    let mut command = cargo(bench.places);
    command.args(["bench", "--locked", "--package", package, "--bench", name, "--"]);
    if bench.quick {
        command.args(["--warm-up-time", "0.2", "--measurement-time", "0.5"]);
    }
    let name = format!("{name} of {package}");
    let done = steps::run(bench.places, &name, &mut command, Duration::from_mins(20), steps::quiet)?;
    steps::finish(&command, &done)?;
    cases
        .iter()
        .map(|&(case, bar)| {
            // Criterion names the folder of a case after it, without the slash.
            let file = bench.places.target.join("criterion").join(case.replace('/', "_")).join("new/estimates.json");
            let text = std::fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
            let estimates: Value = serde_json::from_str(&text).into_diagnostic()?;
            let ns = number(&estimates, "/median/point_estimate")?;
            let (low, high) = ("/median/confidence_interval/lower_bound", "/median/confidence_interval/upper_bound");
            Ok(Figure {
                what: case.to_owned(),
                value: format!("{} (bar {})", span(ns), span(bar)),
                spread: format!("{} to {}", span(number(&estimates, low)?), span(number(&estimates, high)?)),
                passes: ns <= bar,
                runs: estimates,
            })
        })
        .collect()
}

/// Nanoseconds as people read them.
fn span(ns: f64) -> String {
    match ns {
        ns if ns < 1e4 => format!("{ns:.1} ns"),
        ns if ns < 1e7 => format!("{:.1} us", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

/// An experiment of the lab. It holds itself to the expectations in its file and ends with an error when they fail.
pub(super) fn lab(bench: &Bench, name: &str) -> Result<Vec<Figure>> {
    let file = format!("lab/{name}.toml");
    let mut command = Command::new(bench.places.tidegate());
    command.args(["lab", "run", &file]).current_dir(&bench.places.root);
    let watch = clock::Stopwatch::start();
    let done = steps::run(bench.places, &format!("lab {name}"), &mut command, Duration::from_hours(1), steps::quiet)?;
    Ok(vec![Figure {
        what: file,
        value: format!("{} in {:.0} s", done.ending(), watch.elapsed().as_secs_f64()),
        spread: String::new(),
        passes: done.success(),
        runs: json!({ "output": done.tail }),
    }])
}

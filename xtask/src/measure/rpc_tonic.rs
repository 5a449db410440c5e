//! Bars of the layers on a real tonic service, beside what else one can put in front of it.

use std::path::PathBuf;
use std::time::Duration;

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, number, range};
use super::broker::pinned;
use super::rpc_server::{self, Server, load};
use super::table::Figure;
use crate::{peers, steps};

const LOADS: [f64; 4] = [1.2, 2.0, 5.0, 10.0];
/// A generator later than this at p99 measured itself.
const LATENESS_US_MAX: f64 = 100.0;
/// A slice whose generator was late is repeated so often.
const TRIES: u32 = 4;
const RIVAL_TRIES: u32 = 2;
/// Repetitions of what has a bar, and of what stands beside it.
const REPETITIONS: usize = 5;
const RIVAL_REPETITIONS: usize = 3;
/// From the entry into the caller's own layer.
const LOCAL_NOTICE_US_MAX: f64 = 50.0;
/// Of the objective.
const REMOTE_NOTICE_MAX: f64 = 0.25;
/// Calls in flight while capacity is measured: enough that the server never idles.
const CLOSED: u32 = 8;

/// What stands before the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Both layers.
    Tidegate,
    /// Nothing.
    Nothing,
    /// tower's.
    LoadShed,
    /// failsafe-go's adaptive limiter on a service in Go.
    Failsafe,
}

impl Control {
    const ALL: [Self; 4] = [Self::Tidegate, Self::Nothing, Self::LoadShed, Self::Failsafe];

    fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Nothing => "no control",
            Self::LoadShed => "tower load_shed",
            Self::Failsafe => "failsafe-go",
        }
    }

    /// What a limiter gets to find its limit: failsafe-go's moves it once a second.
    fn warm_up_s(self) -> f64 {
        match self {
            Self::Failsafe => 4.0,
            _ => 0.5,
        }
    }

    fn repetitions(self, bench: &Bench) -> usize {
        match self {
            Self::Tidegate => bench.size(REPETITIONS, 1),
            _ => bench.size(RIVAL_REPETITIONS, 1),
        }
    }
}

/// The example's program.
pub(super) fn program(bench: &Bench) -> PathBuf {
    bench.places.target.join("release/examples/tonic_work")
}

/// Builds the example.
pub(super) fn build(bench: &Bench) -> Result<()> {
    let mut command = peers::cargo(bench.places);
    command.args(["build", "--release", "--locked", "--package", "tidegate-rpc", "--example", "tonic_work"]);
    let done = steps::run(bench.places, "build tonic_work", &mut command, Duration::from_mins(20), steps::quiet)?;
    steps::finish(&command, &done)
}

/// One slice of open-loop load.
struct Slice {
    control: Control,
    load: f64,
    /// Of the mean of the capacities that were measured just before and just after.
    goodput: f64,
    capacities: [f64; 2],
    local_notice_us: f64,
    remote_notice_us: f64,
    unanswered: f64,
    lateness_us: f64,
}

impl Slice {
    fn counts(&self) -> bool {
        self.lateness_us <= LATENESS_US_MAX
    }
}

/// Everything of one work.
struct Work {
    each_us: u64,
    slo_us: f64,
    slices: Vec<Slice>,
    /// Why there are none of a rival.
    missing: Vec<(Control, String)>,
}

/// Goodput and refusals at 1 ms and 100 us of work.
pub(super) fn run(bench: &Bench) -> Result<Vec<Figure>> {
    build(bench)?;
    // Without a new enough Go, the other figures are still worth having.
    let failsafe = peers::build_failsafe(bench.places);
    let mut figures = Vec::new();
    for work_us in [1_000, 100] {
        let mut work =
            Work { each_us: work_us, slo_us: objective(bench, work_us)?, slices: Vec::new(), missing: Vec::new() };
        for repetition in 0..bench.size(REPETITIONS, 1) {
            for control in Control::ALL {
                if repetition >= control.repetitions(bench) {
                    continue;
                }
                if let (Control::Failsafe, Err(report)) = (control, &failsafe) {
                    work.missing.push((control, steps::plain(report)));
                    continue;
                }
                let slices = repeat(bench, &work, control, repetition);
                work.slices.extend(slices.wrap_err_with(|| format!("{} at {work_us} us", control.name()))?);
            }
        }
        figures.extend(work.figures());
    }
    Ok(figures)
}

fn serve(bench: &Bench, control: Control, work_us: u64) -> Result<Server> {
    let mut command = pinned("0");
    match control {
        Control::Failsafe => command.arg(peers::failsafe(bench.places)),
        _ => command.arg(program(bench)).arg("serve"),
    };
    command.arg("--work-us").arg(work_us.to_string());
    match control {
        Control::Tidegate => command.args(["--control", "tidegate"]),
        Control::Nothing => command.args(["--control", "none"]),
        // As many as a call's objective has room for: ten times the work, less one for the round trip.
        Control::LoadShed => command.args(["--control", "load_shed:8"]),
        Control::Failsafe => &mut command,
    };
    rpc_server::start(bench, "calls", &mut command)
}

/// Ten times the median of calls that nothing delays.
fn objective(bench: &Bench, work_us: u64) -> Result<f64> {
    let server = serve(bench, Control::Nothing, work_us)?;
    let arguments = format!(
        "load --addr {} --closed 1 --connections 1 --seconds 1 --warm-up 0.3 --slo-us 1000000",
        server.said("bare_addr")?
    );
    let report = load(&program(bench), &arguments)?;
    server.stop()?;
    Ok(10.0 * number(&report, "/served_us/p50")?)
}

/// All loads in turn. A slice whose generator was late is repeated; one that can make no more calls than this stays late:
/// a rival's says so, ours misses.
fn repeat(bench: &Bench, work: &Work, control: Control, repetition: usize) -> Result<Vec<Slice>> {
    let each = |load: f64| {
        let tries = if control == Control::Tidegate { bench.size(TRIES, 1) } else { bench.size(RIVAL_TRIES, 1) };
        for _ in 1..tries {
            let slice = measure(bench, work, control, load, repetition)?;
            if slice.counts() {
                return Ok(slice);
            }
        }
        measure(bench, work, control, load, repetition)
    };
    LOADS.into_iter().map(each).collect()
}

/// One slice, between two that measure the capacity: this processor's own speed drifts by more than the bar allows. The
/// server is a fresh one, and a rival's is again afterwards: what was left in an overloaded one would be taken for a lower
/// capacity. Ours leaves nothing.
fn measure(bench: &Bench, work: &Work, control: Control, factor: f64, repetition: usize) -> Result<Slice> {
    let mut server = serve(bench, control, work.each_us)?;
    let before = capacity(bench, work, &server)?;
    let caller = if control == Control::Tidegate { "tidegate" } else { "none" };
    let open = format!(
        "load --addr {} --rate {:.0} --seconds {} --warm-up {} --slo-us {:.0} --control {caller} --seed {}",
        server.said("addr")?,
        before * factor,
        bench.size(2.0, 0.5),
        bench.size(control.warm_up_s(), 0.5),
        work.slo_us,
        repetition + 1
    );
    let report = load(&program(bench), &open)?;
    if control != Control::Tidegate {
        server.stop()?;
        server = serve(bench, control, work.each_us)?;
    }
    let after = capacity(bench, work, &server)?;
    server.stop()?;
    slice(control, factor, [before, after], &report)
}

/// Calls that a closed loop without control has served in a second.
fn capacity(bench: &Bench, work: &Work, server: &Server) -> Result<f64> {
    let closed = format!(
        "load --addr {} --closed {CLOSED} --seconds {} --warm-up 0.2 --slo-us {:.0}",
        server.said("bare_addr")?,
        bench.size(0.8, 0.3),
        work.slo_us
    );
    let calls = number(&load(&program(bench), &closed)?, "/served_per_s")?;
    if calls < 1.0 {
        miette::bail!("no call was served while the capacity was measured");
    }
    Ok(calls)
}

fn slice(control: Control, load: f64, capacities: [f64; 2], report: &Value) -> Result<Slice> {
    let [before, after] = capacities;
    Ok(Slice {
        control,
        load,
        goodput: number(report, "/goodput_per_s")? / f64::midpoint(before, after),
        capacities,
        local_notice_us: notice_us(report, "shed_local_us")?,
        remote_notice_us: notice_us(report, "shed_remote_us")?,
        unanswered: number(report, "/unanswered")?,
        lateness_us: number(report, "/late_us_p99")?,
    })
}

/// How soon refused callers knew; not a number if none was refused, which reaches no bar.
fn notice_us(report: &Value, key: &str) -> Result<f64> {
    let calls = number(report, &format!("/{key}/calls"))?;
    if calls > 0.0 { number(report, &format!("/{key}/p99")) } else { Ok(f64::NAN) }
}

impl Work {
    fn figures(&self) -> Vec<Figure> {
        let mut figures: Vec<Figure> = LOADS.iter().map(|load| self.goodput(*load)).collect();
        figures.extend(self.notices());
        figures
    }

    fn of(&self, control: Control, load: f64) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| slice.control == control && (slice.load - load).abs() < 1e-9)
    }

    fn goodput(&self, load: f64) -> Figure {
        let of = |control| self.of(control, load).map(|slice| slice.goodput).collect::<Vec<f64>>();
        let late = |control| self.of(control, load).filter(|slice| !slice.counts()).count();
        let ours = of(Control::Tidegate);
        let rivals = Control::ALL.into_iter().skip(1).map(|control| {
            let missing = self.missing.iter().find(|(other, _)| *other == control);
            let mark = if late(control) > 0 { " (generator late)" } else { "" };
            missing.map_or_else(
                || format!("{} {:.3}{mark}", control.name(), median(&of(control))),
                |(_, why)| format!("{} not measured: {}", control.name(), why.lines().next().unwrap_or_default()),
            )
        });
        let rivals = rivals.collect::<Vec<_>>().join(", ");
        let runs = |control: Control| {
            let each = |slice: &Slice| {
                json!({
                    "goodput": slice.goodput,
                    "capacities_per_s": slice.capacities,
                    "lateness_us_p99": slice.lateness_us,
                })
            };
            (control.name().to_owned(), self.of(control, load).map(each).collect::<Value>())
        };
        let late_ours = late(Control::Tidegate);
        let mark = if late_ours > 0 { format!("; the generator was late in {late_ours}") } else { String::new() };
        Figure {
            what: format!("{} us of work at {load}x, goodput", self.each_us),
            value: format!("{:.4} of the capacity{mark}", median(&ours)),
            spread: format!("{} over {}; {rivals}", range(&ours), ours.len()),
            passes: median(&ours) >= 0.95 && late_ours == 0,
            runs: Control::ALL.into_iter().map(runs).collect::<serde_json::Map<_, _>>().into(),
        }
    }

    /// At ten times the capacity: how soon callers know, and that all of them do.
    fn notices(&self) -> Vec<Figure> {
        let of = |pick: fn(&Slice) -> f64| self.of(Control::Tidegate, 10.0).map(pick).collect::<Vec<f64>>();
        let (local, remote) = (of(|slice| slice.local_notice_us), of(|slice| slice.remote_notice_us));
        let everywhere = self.slices.iter().filter(|slice| slice.control == Control::Tidegate);
        let unanswered: Vec<f64> = everywhere.map(|slice| slice.unanswered).collect();
        let remote_bar = REMOTE_NOTICE_MAX * self.slo_us;
        let figure = |what: &str, value: String, values: &[f64], passes: bool| Figure {
            what: format!("{} us of work at 10x, {what}", self.each_us),
            value,
            spread: format!("{} over {}", range(values), values.len()),
            passes,
            runs: json!(values),
        };
        let all_told = |values: &[f64]| values.iter().all(|us| us.is_finite());
        let told = |values: &[f64], bar: f64| format!("{:.0} us at p99 (bar {bar:.0} us)", median(values));
        vec![
            figure(
                "refusal by the own layer",
                told(&local, LOCAL_NOTICE_US_MAX),
                &local,
                median(&local) <= LOCAL_NOTICE_US_MAX && all_told(&local),
            ),
            figure(
                "refusal by the server",
                told(&remote, remote_bar),
                &remote,
                median(&remote) <= remote_bar && all_told(&remote),
            ),
            Figure {
                what: format!("{} us of work, calls without an end", self.each_us),
                value: format!("{:.0} in all slices", unanswered.iter().sum::<f64>()),
                spread: format!("SLO {:.0} us", self.slo_us),
                passes: unanswered.iter().all(|count| *count == 0.0),
                runs: json!(unanswered),
            },
        ]
    }
}

/// Starts the example for other rows: `rounds` of work, with the layer and bare.
pub(super) fn serve_rounds(bench: &Bench, rounds: u64) -> Result<Server> {
    serve_with(bench, rounds, "tidegate")
}

/// The same without the layer on either port, and on tokio's own runtime.
pub(super) fn serve_rounds_bare(bench: &Bench, rounds: u64) -> Result<Server> {
    serve_with(bench, rounds, "none")
}

fn serve_with(bench: &Bench, rounds: u64, control: &str) -> Result<Server> {
    let mut command = pinned("0");
    command.arg(program(bench)).args(["serve", "--control", control, "--work-rounds", &rounds.to_string()]);
    rpc_server::start(bench, "tonic", &mut command)
}

//! The bar of the grpc-go interceptors: Go callers before the Rust server and before a Go server.

use std::path::PathBuf;
use std::process::Command;

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, number, range};
use super::broker::pinned;
use super::rpc_server::{self, Server, load};
use super::rpc_tonic;
use super::table::Figure;
use crate::{sdk_go, setup};

/// Of the capacity.
const LOADS: [f64; 3] = [1.0, 2.0, 10.0];
/// Goodput, of the lesser of what was offered and the capacity.
const GOODPUT_LEAST: f64 = 0.95;
/// The objective, in p99s of the service without interceptors at this share of its capacity.
const SLO: (f64, f64) = (3.0, 0.8);
/// Slices of each load, each between two slices of the service without interceptors.
const ALTERNATIONS: usize = 5;
/// A slice of which more calls met a gap of the host does not count, and is repeated so often.
const MET_MOST: f64 = 0.1;
const TRIES: u32 = 6;
/// Calls in flight while capacity is measured: enough that the server never idles.
const CLOSED: u32 = 8;

/// Who is called.
#[derive(Clone, Copy, Debug)]
enum Callee {
    Rust,
    Go,
}

impl Callee {
    const ALL: [Self; 2] = [Self::Rust, Self::Go];

    fn name(self) -> &'static str {
        match self {
            Self::Rust => "the Rust server",
            Self::Go => "a grpc-go server",
        }
    }

    /// Serves 1 ms of work on CPU 0, with control and bare; a call may take `objective_us` if that is given.
    fn serve(self, bench: &Bench, objective_us: Option<f64>) -> Result<Server> {
        let mut command: Command = pinned("0");
        let flag = match self {
            Self::Rust => {
                command.arg(rpc_tonic::program(bench)).args(["serve", "--work-us", "1000", "--stock"]);
                "--objective-us"
            }
            Self::Go => {
                command.arg(sdk_go::programs(bench.places).join("server")).args(["-work-us", "1000"]);
                "-objective-us"
            }
        };
        if let Some(us) = objective_us {
            command.arg(flag).arg(format!("{us:.0}"));
        }
        rpc_server::start(bench, "calls", &mut command)
    }
}

/// Goodput of Go callers with the interceptors.
pub(super) fn run(bench: &Bench) -> Result<Vec<Figure>> {
    setup::ensure(bench.places, setup::SDK_GO)?;
    rpc_tonic::build(bench)?;
    sdk_go::build_examples(bench.places)?;
    let mut figures = Vec::new();
    for callee in Callee::ALL {
        figures.extend(before(bench, callee).wrap_err_with(|| callee.name())?);
    }
    Ok(figures)
}

/// One server, and the calls to it.
struct Calls<'a> {
    bench: &'a Bench<'a>,
    client: PathBuf,
    /// What it is called in the table.
    name: String,
    server: Server,
    /// Slices that were repeated, and those that count although many of their calls met gaps.
    dropped: u32,
    with_gaps: u32,
}

impl<'a> Calls<'a> {
    fn new(bench: &'a Bench<'a>, callee: Callee, objective_us: Option<f64>) -> Result<Self> {
        let told = objective_us.map_or("", |_| " that is told the SLO");
        Ok(Self {
            bench,
            client: sdk_go::programs(bench.places).join("client"),
            name: format!("{}{told}", callee.name()),
            server: callee.serve(bench, objective_us)?,
            dropped: 0,
            with_gaps: 0,
        })
    }

    /// A slice that few gaps were in; if there is none, the one with the fewest, and that is told.
    fn slice(&mut self, arguments: &str) -> Result<Value> {
        let mut best: Option<(f64, Value)> = None;
        for _ in 0..TRIES {
            let report = load(&self.client, arguments)?;
            let met = number(&report, "/met_gap")?;
            if met <= MET_MOST {
                return Ok(report);
            }
            self.dropped += 1;
            if best.as_ref().is_none_or(|(fewest, _)| met < *fewest) {
                best = Some((met, report));
            }
        }
        self.dropped -= 1;
        self.with_gaps += 1;
        let (_, report) = best.expect("it was tried at least once");
        Ok(report)
    }

    /// Calls a second that the service without interceptors answers.
    fn capacity(&mut self) -> Result<f64> {
        let (addr, seconds) = (self.server.said("bare_addr")?, self.bench.size(2.0, 0.5));
        let closed = format!("-addr {addr} -closed {CLOSED} -seconds {seconds} -warm-up 0.5 -slo-us 10000000");
        number(&self.slice(&closed)?, "/served_per_s")
    }

    /// A slice at a rate, on the address that the server calls `key`.
    fn open(&mut self, key: &str, control: &str, rate_per_s: f64, slo_us: f64, seed: usize) -> Result<Value> {
        let (addr, seconds) = (self.server.said(key)?, self.bench.size(4.0, 1.0));
        let open = format!(
            "-addr {addr} -control {control} -rate {rate_per_s:.1} -slo-us {slo_us:.0} -seed {seed} -seconds {seconds} -warm-up 1"
        );
        self.slice(&open)
    }
}

fn before(bench: &Bench, callee: Callee) -> Result<Vec<Figure>> {
    let slo_us = slo(bench, callee)?;
    let mut figures = Vec::new();
    // With nothing set, a queue within ten times an unloaded call's time loses a twentieth of what comes at random at
    // exactly the capacity, whatever the control is. So 1x is also measured with a server that is told the SLO.
    for (objective_us, loads) in [(None, &LOADS[..]), (Some(slo_us), &LOADS[..1])] {
        let mut calls = Calls::new(bench, callee, objective_us)?;
        for &factor in loads {
            figures.push(at(&mut calls, factor, slo_us)?);
        }
        calls.server.stop()?;
    }
    Ok(figures)
}

/// The objective of the row, from the service without interceptors.
fn slo(bench: &Bench, callee: Callee) -> Result<f64> {
    let mut calls = Calls::new(bench, callee, None)?;
    let (times, share) = SLO;
    let rate_per_s = share * calls.capacity()?;
    let p99_us = number(&calls.open("bare_addr", "none", rate_per_s, 60e6, 1)?, "/served_us/p99")?;
    calls.server.stop()?;
    Ok(times * p99_us)
}

/// One load: slices of it by turns with slices of the service without interceptors.
fn at(calls: &mut Calls, factor: f64, slo_us: f64) -> Result<Figure> {
    (calls.dropped, calls.with_gaps) = (0, 0);
    let mut capacities = vec![calls.capacity()?];
    let (mut shares, mut p99s, mut slices) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..calls.bench.size(ALTERNATIONS, 2) {
        let just_before = capacities[turn];
        let slice = calls.open("addr", "tidegate", just_before * factor, slo_us, turn + 1)?;
        let just_after = calls.capacity()?;
        capacities.push(just_after);
        let capacity = f64::midpoint(just_before, just_after);
        let possible = number(&slice, "/offered_per_s")?.min(capacity);
        shares.push(number(&slice, "/goodput_per_s")? / possible);
        p99s.push(number(&slice, "/served_us/p99")?);
        slices.push(slice);
    }
    let goodput = median(&shares);
    Ok(Figure {
        what: format!("Go callers, {}, {factor}x of {:.0}/s", calls.name, median(&capacities)),
        value: format!("{goodput:.3} of what is possible (bar {GOODPUT_LEAST})"),
        spread: format!(
            "{} over {}; p99 {:.0} us, SLO {slo_us:.0} us; {} slices dropped for gaps, {} with many gaps",
            range(&shares),
            shares.len(),
            median(&p99s),
            calls.dropped,
            calls.with_gaps
        ),
        passes: goodput >= GOODPUT_LEAST,
        runs: json!({ "goodput": shares, "capacities": capacities, "slo_us": slo_us, "slices": slices }),
    })
}

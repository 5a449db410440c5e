//! Bars of the layer on services whose handlers wait: beside the same service without it, and beside the same layer with
//! its limit fixed at the best number.

use std::fmt::Write as _;

use miette::{Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::broker::pinned;
use super::rpc_server::{self, Server, load};
use super::rpc_tonic::{build, program};
use super::table::Figure;

/// What handlers do, with 1 ms of work each.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The example's word for it.
    name: &'static str,
    /// At least twenty of its calls, and at least a quarter of a second.
    slice_ms: u32,
    /// Calls in flight with which the bare service is never idle.
    in_flight: u32,
    /// Whether it is measured at every load above the capacity.
    at_all_loads: bool,
}

const SHAPES: [Shape; 8] = [
    Shape { name: "compute", slice_ms: 250, in_flight: 8, at_all_loads: true },
    Shape { name: "wait:2", slice_ms: 250, in_flight: 16, at_all_loads: false },
    Shape { name: "wait:20", slice_ms: 500, in_flight: 64, at_all_loads: true },
    Shape { name: "wait:200", slice_ms: 4_000, in_flight: 500, at_all_loads: false },
    Shape { name: "between:2", slice_ms: 250, in_flight: 16, at_all_loads: false },
    Shape { name: "blocking", slice_ms: 250, in_flight: 8, at_all_loads: false },
    Shape { name: "lock", slice_ms: 250, in_flight: 8, at_all_loads: true },
    Shape { name: "pool:10x20", slice_ms: 500, in_flight: 32, at_all_loads: true },
];

/// What handlers run on, with what the server is told of it.
const RUNTIMES: [(&str, &str); 3] = [
    ("tokio::main with 1 worker", "--stock --threads 1"),
    ("tokio::main with 2 workers", "--stock --threads 2"),
    ("its own runtime", "--threads 1"),
];
/// Where loads above the capacity are measured.
const STOCK: &str = RUNTIMES[0].1;
/// On its own runtime, of which the difference is told.
const ON_OWN: [&str; 2] = ["compute", "wait:20"];
/// The objective of a row, in p99s of the bare service at this share of its capacity.
const SLO: (f64, f64) = (3.0, 0.8);
/// Loads below the capacity, and above.
const BELOW: [f64; 2] = [0.5, 0.8];
const ABOVE: [f64; 4] = [1.2, 2.0, 5.0, 10.0];
/// At which every shape is measured, and the best fixed limit is looked for.
const TWICE: f64 = 2.0;
/// Pairs of slices.
const PAIRS: u32 = 20;
/// The bars below the capacity, of all calls and in shares of what the bare service does.
const SHED_MOST: f64 = 0.005;
const GOODPUT_LEAST: f64 = 0.99;
const P99_MOST: f64 = 1.1;
/// The bars above it: of the goodput with the best fixed limit, and of the capacity for plain callers at some loads.
const PLAIN_LEAST: f64 = 0.85;
const LAYERED_LEAST: f64 = 0.95;
const OF_CAPACITY_LEAST: f64 = 0.75;
const OF_CAPACITY_AT: [f64; 2] = [2.0, 5.0];
/// How soon a refusal is known, by the server and by the caller's own layer.
const REFUSED_THERE_US_MOST: f64 = 2_000.0;
const REFUSED_HERE_US_MOST: f64 = 50.0;

/// Starts the example on CPU 0.
fn serve(bench: &Bench, shape: Shape, runtime: &str, more: &str) -> Result<Server> {
    let mut command = pinned("0");
    command.arg(program(bench)).args(["serve", "--work-us", "1000", "--shape", shape.name]);
    command.args(runtime.split_whitespace()).args(more.split_whitespace());
    rpc_server::start(bench, "calls", &mut command)
}

/// Calls that a closed loop has served in a second by the service without the layer.
fn capacity(bench: &Bench, shape: Shape, server: &Server) -> Result<f64> {
    let arguments = format!(
        "load --addr {} --closed {} --seconds {} --warm-up 0.5 --slo-us 10000000",
        server.said("bare_addr")?,
        shape.in_flight,
        bench.size(2.0, 0.5)
    );
    number(&load(&program(bench), &arguments)?, "/served_per_s")
}

/// Who calls whom.
#[derive(Clone, Copy, Debug)]
struct Pair<'a> {
    ours: &'a str,
    other: &'a str,
    /// What stands behind the callers of either.
    controls: [&'a str; 2],
    rate_per_s: f64,
    slo_us: f64,
}

/// Slices by turns on both.
fn pair(bench: &Bench, shape: Shape, pair: &Pair) -> Result<Value> {
    let [control, other] = pair.controls;
    let arguments = format!(
        "pair --addr {} --bare {} --control {control} --bare-control {other} --rate {:.1} --slo-us {:.0} --pairs {} --slice-ms {} --warm-up {}",
        pair.ours,
        pair.other,
        pair.rate_per_s,
        pair.slo_us,
        bench.size(PAIRS, 2),
        shape.slice_ms,
        bench.size(4, 1),
    );
    load(&program(bench), &arguments)
}

/// Below the capacity nothing changes.
pub(super) fn below(bench: &Bench) -> Result<Vec<Figure>> {
    build(bench)?;
    let mut figures = Vec::new();
    for (name, runtime) in RUNTIMES {
        for shape in SHAPES.into_iter().filter(|shape| runtime != RUNTIMES[2].1 || ON_OWN.contains(&shape.name)) {
            let what = format!("{}, {name}", shape.name);
            figures.extend(below_on(bench, shape, runtime, &what).wrap_err_with(|| what.clone())?);
        }
    }
    Ok(figures)
}

fn below_on(bench: &Bench, shape: Shape, runtime: &str, what: &str) -> Result<Vec<Figure>> {
    let server = serve(bench, shape, runtime, "")?;
    let capacity = capacity(bench, shape, &server)?;
    let mut figures = Vec::new();
    for factor in BELOW {
        let report = pair(
            bench,
            shape,
            &Pair {
                ours: server.said("addr")?,
                other: server.said("bare_addr")?,
                controls: ["none", "none"],
                rate_per_s: capacity * factor,
                slo_us: 60e6,
            },
        )?;
        let of = |pointer: &str| number(&report, pointer);
        let (shed, goodput, p99) = (of("/shed_share")?, of("/goodput")?, of("/p99")?);
        figures.push(Figure {
            what: format!("{what}, {factor}x of {capacity:.0}/s"),
            value: format!("shed {:.2} %, goodput {goodput:.4}, p99 {p99:.3}", shed * 100.0),
            spread: format!(
                "p99 {} in fifths, {:.0} us bare; {} pairs, {} dropped for gaps",
                parts(&report, "/p99_parts"),
                of("/bare/us_p99")?,
                of("/pairs")?,
                of("/dropped")?
            ),
            passes: shed <= SHED_MOST && goodput >= GOODPUT_LEAST && p99 <= P99_MOST,
            runs: report,
        });
    }
    server.stop()?;
    Ok(figures)
}

/// Values of parts of a run, in words.
fn parts(report: &Value, pointer: &str) -> String {
    let parts = report.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut words = String::new();
    for part in parts.iter().filter_map(Value::as_f64) {
        write!(words, "{}{part:.2}", if words.is_empty() { "" } else { ", " }).expect("text takes everything");
    }
    words
}

/// Above the capacity the layer does nearly as well as if its best limit were known.
pub(super) fn above(bench: &Bench) -> Result<Vec<Figure>> {
    build(bench)?;
    let mut figures = Vec::new();
    for shape in SHAPES {
        figures.extend(above_of(bench, shape).wrap_err_with(|| shape.name)?);
    }
    Ok(figures)
}

/// A service above its capacity.
struct Overload {
    shape: Shape,
    control: &'static str,
    capacity: f64,
    slo_us: f64,
    limit: u32,
}

fn above_of(bench: &Bench, shape: Shape) -> Result<Vec<Figure>> {
    let server = serve(bench, shape, STOCK, "")?;
    let bare = server.said("bare_addr")?.to_owned();
    let capacity = capacity(bench, shape, &server)?;
    let (times, slo_load) = SLO;
    let alone =
        Pair { ours: &bare, other: &bare, controls: ["none"; 2], rate_per_s: capacity * slo_load, slo_us: 60e6 };
    let slo_us = times * number(&pair(bench, shape, &alone)?, "/bare/us_p99")?;
    server.stop()?;
    let mut figures = Vec::new();
    for control in ["none", "tidegate"] {
        let limit = best_limit(bench, shape, control, capacity * TWICE, slo_us)?;
        let overload = Overload { shape, control, capacity, slo_us, limit };
        for factor in ABOVE.into_iter().filter(|factor| shape.at_all_loads || same(*factor, TWICE)) {
            figures.extend(overload.measure(bench, factor)?);
        }
    }
    Ok(figures)
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// The limit on calls in flight, of all powers of two up to 1,024, with which most calls are in time.
fn best_limit(bench: &Bench, shape: Shape, control: &str, rate_per_s: f64, slo_us: f64) -> Result<u32> {
    let mut best = (f64::NEG_INFINITY, 1);
    for limit in (0..=10).map(|power| 1_u32 << power) {
        let server = serve(bench, shape, STOCK, &format!("--in-flight {limit}"))?;
        let seconds = f64::from(shape.slice_ms) / 1e3;
        let arguments = format!(
            "load --addr {} --control {control} --rate {rate_per_s:.1} --slo-us {slo_us:.0} --warm-up {} --seconds {}",
            server.said("addr")?,
            bench.size(seconds, 0.3),
            bench.size(seconds.max(1.0), 0.3),
        );
        let goodput = number(&load(&program(bench), &arguments)?, "/goodput_per_s")?;
        server.stop()?;
        if goodput > best.0 {
            best = (goodput, limit);
        }
    }
    Ok(best.1)
}

impl Overload {
    /// Learnt against fixed, and against the capacity.
    fn measure(&self, bench: &Bench, factor: f64) -> Result<Vec<Figure>> {
        let learnt = serve(bench, self.shape, STOCK, "")?;
        let fixed = serve(bench, self.shape, STOCK, &format!("--in-flight {}", self.limit))?;
        let report = pair(
            bench,
            self.shape,
            &Pair {
                ours: learnt.said("addr")?,
                other: fixed.said("addr")?,
                controls: [self.control; 2],
                rate_per_s: self.capacity * factor,
                slo_us: self.slo_us,
            },
        )?;
        learnt.stop()?;
        fixed.stop()?;
        let is_plain = self.control == "none";
        let callers = if is_plain { "plain callers" } else { "callers with the layer" };
        let what = format!("{} at {factor}x, {callers}", self.shape.name);
        let of = |pointer: &str| number(&report, pointer);
        let (goodput, p99_us) = (of("/goodput")?, of("/ours/us_p99")?);
        let of_capacity = of("/ours/good_per_s")? / self.capacity;
        let bar = if is_plain { PLAIN_LEAST } else { LAYERED_LEAST };
        let has_share =
            !is_plain || of_capacity >= OF_CAPACITY_LEAST || !OF_CAPACITY_AT.into_iter().any(|load| same(load, factor));
        let mut figures = vec![Figure {
            what: what.clone(),
            value: format!("{goodput:.3} of the best fixed limit's ({}), {of_capacity:.3} of the capacity", self.limit),
            spread: format!(
                "{} in fifths; p99 {p99_us:.0} us, SLO {:.0} us; {} pairs, {} dropped for gaps",
                parts(&report, "/goodput_parts"),
                self.slo_us,
                of("/pairs")?,
                of("/dropped")?
            ),
            passes: goodput >= bar && has_share && p99_us <= self.slo_us,
            runs: report.clone(),
        }];
        if same(factor, ABOVE[3]) {
            let (place, most_us) =
                if is_plain { ("shed_there", REFUSED_THERE_US_MOST) } else { ("shed_here", REFUSED_HERE_US_MOST) };
            let (calls, us) = (of(&format!("/ours/{place}/calls"))?, of(&format!("/ours/{place}/p99"))?);
            figures.push(Figure {
                what: format!("{what}, refusals"),
                value: format!("known after {us:.0} us at p99 (bar {most_us:.0} us)"),
                spread: format!("{calls:.0} refusals"),
                passes: calls > 0.0 && us <= most_us,
                runs: json!({ "us_p99": us, "calls": calls }),
            });
        }
        Ok(figures)
    }
}

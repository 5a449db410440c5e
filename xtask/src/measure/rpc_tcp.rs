//! Bars of calls over the lean protocol: `tidegate rpc serve` and `tidegate bench rpc`.

use miette::Result;
use serde_json::{Value, json};

use super::bench::{Bench, TRIES, median, number, range};
use super::broker::pinned;
use super::rpc_server::{self, Server, load};
use super::rpc_tonic;
use super::table::Figure;

/// Microseconds of work of a call.
const WORK_US: u64 = 10;
const REPETITIONS: usize = 5;
/// Calls a second of the comparison with tonic: less than half of what either can do.
const RATE_PER_S: f64 = 5_000.0;
/// Of served calls: with more refusals than that, what they cost would be taken for what calls cost.
const SHED_MAX: f64 = 0.02;

fn serve(bench: &Bench) -> Result<Server> {
    let mut command = pinned("0");
    command.arg(bench.places.tidegate()).args(["rpc", "serve", "--address", "127.0.0.1:0", "--bare"]);
    command.args(["--work-us", &WORK_US.to_string()]);
    rpc_server::start(bench, "calls", &mut command)
}

/// A run whose generator was punctual; a quick one takes what comes.
fn run(bench: &Bench, arguments: &str) -> Result<Value> {
    let (report, late) = run_or_late(bench, arguments)?;
    if late {
        miette::bail!("the generator was late in {TRIES} runs of `bench rpc {arguments}`");
    }
    Ok(report)
}

/// A run whose generator was punctual, or after as many tries as are made one with whatever generator, and that it was late.
fn run_or_late(bench: &Bench, arguments: &str) -> Result<(Value, bool)> {
    let whatever = "lateness_us_p99_max=1e9";
    for _ in 0..TRIES {
        let arguments = format!("bench rpc {arguments} {}", bench.size("", whatever));
        let report = load(&bench.places.tidegate(), &arguments)?;
        if report["invalid"].is_null() {
            return Ok((report, false));
        }
    }
    Ok((load(&bench.places.tidegate(), &format!("bench rpc {arguments} {whatever}"))?, true))
}

/// Ten times the median of calls that nothing delays, in microseconds.
fn objective(bench: &Bench, bare: &str) -> Result<f64> {
    let arguments =
        format!("address={bare} scheme.kind=none connections=1 pace.closed.calls=1 warm_up_ms=200 duration_ms=500");
    Ok(10.0 * number(&run(bench, &arguments)?, "/response/us_p50")?)
}

/// Goodput above the capacity that a closed loop without control had just before and just after.
pub(super) fn goodput(bench: &Bench) -> Result<Vec<Figure>> {
    let server = serve(bench)?;
    let (address, bare) = (server.said("address")?.to_owned(), server.said("bare_address")?.to_owned());
    let slo_us = objective(bench, &bare)?;
    let window = bench.size("warm_up_ms=500 duration_ms=2500", "warm_up_ms=100 duration_ms=300");
    let mut figures = Vec::new();
    for factor in [2.0, 5.0] {
        let (mut shares, mut notices, mut missing, mut late) = (Vec::new(), Vec::new(), 0.0, 0_u32);
        for seed in 1..=bench.size(REPETITIONS, 1) {
            let before = capacity(bench, &bare)?;
            let open = format!(
                "address={address} pace.open.rate_per_s={:.0} slo_us={slo_us:.0} seed={seed} {window}",
                before * factor
            );
            let (report, was_late) = run_or_late(bench, &open)?;
            late += u32::from(was_late);
            let capacity = f64::midpoint(before, capacity(bench, &bare)?);
            shares.push(number(&report, "/goodput_per_s")? / capacity);
            notices.push(number(&report, "/shed_remote/notice/us_p99")?);
            missing += number(&report, "/unanswered")? + number(&report, "/lost")?;
        }
        let mark = if late > 0 { format!("; the generator was late in {late}") } else { String::new() };
        figures.push(Figure {
            what: format!("{WORK_US} us of work at {factor}x, goodput"),
            value: format!("{:.4} of the capacity{mark}", median(&shares)),
            spread: format!(
                "{} over {}; refusal by the server {:.0} us at p99, SLO {slo_us:.0} us, {missing:.0} without an end",
                range(&shares),
                shares.len(),
                median(&notices)
            ),
            passes: median(&shares) >= 0.95 && missing == 0.0 && late == 0,
            runs: json!({ "goodput": shares, "late": late, "remote_notice_us_p99": notices, "without_an_end": missing }),
        });
    }
    server.stop()?;
    Ok(figures)
}

/// Calls that a closed loop without control has served in a second.
fn capacity(bench: &Bench, bare: &str) -> Result<f64> {
    let closed = format!("address={bare} scheme.kind=none pace.closed.calls=64 warm_up_ms=200 duration_ms=800");
    number(&run(bench, &closed)?, "/served_per_s")
}

/// What a call costs the server beside its work, here and with tonic.
pub(super) fn cost(bench: &Bench) -> Result<Vec<Figure>> {
    rpc_tonic::build(bench)?;
    let seconds = bench.size(3.0, 0.5);
    let (mut ours, mut tonics) = (Vec::new(), Vec::new());
    for _ in 0..bench.size(REPETITIONS, 1) {
        let server = serve(bench)?;
        let rounds = server.said_number("work_rounds")?;
        let arguments = format!(
            "bench rpc address={} pace.open.rate_per_s={RATE_PER_S} connections=8 slo_us=10000 warm_up_ms=0 duration_ms={:.0} lateness_us_p99_max=1e9",
            server.said("address")?,
            seconds * 1e3
        );
        ours.push(overhead_us(bench, &server, || {
            let report = load(&bench.places.tidegate(), &arguments)?;
            Ok((number(&report, "/served")?, number(&report, "/shed_remote/count")?))
        })?);
        server.stop()?;
        let server = rpc_tonic::serve_rounds(bench, rounds)?;
        let arguments = format!(
            "load --addr {} --control tidegate --rate {RATE_PER_S} --connections 8 --slo-us 10000 --warm-up 0 --seconds {seconds}",
            server.said("addr")?
        );
        tonics.push(overhead_us(bench, &server, || {
            let report = load(&rpc_tonic::program(bench), &arguments)?;
            Ok((number(&report, "/served_us/calls")?, number(&report, "/shed_remote_us/calls")?))
        })?);
        server.stop()?;
    }
    let ratios: Vec<f64> = ours.iter().zip(&tonics).map(|(ours, tonic)| ours / tonic).collect();
    Ok(vec![Figure {
        what: format!("CPU for a call beside {WORK_US} us of work, at {RATE_PER_S}/s"),
        value: format!("{:.1} us (tonic {:.1} us): {:.3}", median(&ours), median(&tonics), median(&ratios)),
        spread: format!("{} over {} pairs (bar 0.2)", range(&ratios), ratios.len()),
        passes: median(&ratios) <= 0.2,
        runs: json!({ "ours_us": ours, "tonic_us": tonics, "ratios": ratios }),
    }])
}

/// The same beside tonic without the layer, each at half of its own capacity: neither's cores sleep more than the other's.
pub(super) fn cost_beside_bare(bench: &Bench) -> Result<Vec<Figure>> {
    rpc_tonic::build(bench)?;
    let seconds = bench.size(3.0, 0.5);
    let (mut ours, mut tonics, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(REPETITIONS, 1) {
        let server = serve(bench)?;
        let rounds = server.said_number("work_rounds")?;
        let rate_per_s = capacity(bench, server.said("bare_address")?)? / 2.0;
        let arguments = format!(
            "bench rpc address={} pace.open.rate_per_s={rate_per_s:.0} connections=8 slo_us=10000 warm_up_ms=0 duration_ms={:.0} lateness_us_p99_max=1e9",
            server.said("address")?,
            seconds * 1e3
        );
        ours.push(overhead_us(bench, &server, || {
            let report = load(&bench.places.tidegate(), &arguments)?;
            Ok((number(&report, "/served")?, number(&report, "/shed_remote/count")?))
        })?);
        server.stop()?;
        let server = rpc_tonic::serve_rounds_bare(bench, rounds)?;
        let closed = format!(
            "load --addr {} --closed 64 --connections 8 --seconds 1 --warm-up 0.2 --slo-us 10000000",
            server.said("addr")?
        );
        let tonic_per_s = number(&load(&rpc_tonic::program(bench), &closed)?, "/served_per_s")? / 2.0;
        let arguments = format!(
            "load --addr {} --rate {tonic_per_s:.0} --connections 8 --slo-us 10000 --warm-up 0 --seconds {seconds}",
            server.said("addr")?
        );
        tonics.push(overhead_us(bench, &server, || {
            Ok((number(&load(&rpc_tonic::program(bench), &arguments)?, "/served_us/calls")?, 0.0))
        })?);
        server.stop()?;
        rates.push([rate_per_s, tonic_per_s]);
    }
    let ratios: Vec<f64> = ours.iter().zip(&tonics).map(|(ours, tonic)| ours / tonic).collect();
    let rate = |which: usize| median(&rates.iter().map(|rates| rates[which]).collect::<Vec<_>>());
    Ok(vec![Figure {
        what: format!("CPU for a call beside {WORK_US} us of work, at {:.0}/s and {:.0}/s", rate(0), rate(1)),
        value: format!("{:.1} us (bare tonic {:.1} us): {:.3}", median(&ours), median(&tonics), median(&ratios)),
        spread: format!("{} over {} pairs (bar 0.35)", range(&ratios), ratios.len()),
        passes: median(&ratios) <= 0.35,
        runs: json!({ "ours_us": ours, "tonic_us": tonics, "ratios": ratios, "rates_per_s": rates }),
    }])
}

/// CPU time of `server` for each call, less the work, in microseconds. `calls` makes them and returns how many were served,
/// and how many the server shed.
fn overhead_us(bench: &Bench, server: &Server, calls: impl Fn() -> Result<(f64, f64)>) -> Result<f64> {
    for _ in 0..TRIES {
        let before = server.cpu_ns()?;
        let (count, shed) = calls()?;
        let used = server.cpu_ns()?.saturating_sub(before);
        if count >= 1.0 && (shed <= count * SHED_MAX || bench.quick) {
            #[expect(clippy::cast_precision_loss, reason = "a few seconds in nanoseconds are far below 2^53")]
            let (used_us, work_us) = (used as f64 / 1e3, WORK_US as f64);
            return Ok(used_us / count - work_us);
        }
    }
    miette::bail!("in {TRIES} runs the server shed calls far below its capacity: something else uses this machine")
}

/// Many connections, of which most say nothing.
pub(super) fn connections(bench: &Bench) -> Result<Vec<Figure>> {
    let connections = bench.size(10_000.0, 500.0);
    let server = serve(bench)?;
    let before = server.rss_bytes()?;
    let arguments = format!(
        "address={} connections={connections} pace.open.rate_per_s=1000 slo_us=10000 pid={} warm_up_ms=1000 duration_ms=3000 lateness_us_p99_max=1e9",
        server.said("address")?,
        server.id()
    );
    let report = run(bench, &arguments)?;
    server.stop()?;
    let each = (number(&report, "/target/memory/rss_bytes")? - before) / connections;
    let (answered, offered) = (number(&report, "/served")?, number(&report, "/offered")?);
    let ends = number(&report, "/unanswered")? + number(&report, "/lost")? + number(&report, "/failed")?;
    // Most of them made no call: one that was closed shows only here.
    let open = number(&report, "/open")?;
    Ok(vec![Figure {
        what: format!("{connections} connections held"),
        value: format!("{open:.0} open at the end, {each:.0} B each; {answered:.0} of {offered:.0} calls served"),
        spread: format!("{ends:.0} lost, failed or unanswered; p99 {:.0} us", number(&report, "/response/us_p99")?),
        passes: ends == 0.0 && answered > 0.0 && open >= connections,
        runs: json!({ "bytes_each": each, "open": open, "served": answered, "offered": offered }),
    }])
}

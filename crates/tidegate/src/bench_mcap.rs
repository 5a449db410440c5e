//! `tidegate bench mcap`: the messages per second that a broker takes within an objective, found by load of growing rates.

use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;
use tidegate_control::config::SloText;
use tidegate_control::machine::benchmark::{Benchmark, BenchmarkConfig, Showed};
use tidegate_control::machine::types::Slo;
use tidegate_core::Rate;
use tidegate_core::number::float;
use tidegate_load::bench::{self, BenchConfig, BenchReport, Command, Pace};
use tidegate_load::latency::LatencySummary;
use tidegate_runtime::config::units::Span;

use crate::failure::Failure;
use crate::output::{self, figure};

/// Gone with its last client, so that nothing of a benchmark stays.
const TOPIC: &str = "tidegate-mcap#ephemeral";
/// A share of what was sent that may still be on its way when a measurement ends.
const OUTSTANDING: f64 = 0.01;
/// Load before a measurement, so that it is of a flow that stands.
const WARM_UP_MS: u64 = 500;
/// What is outstanding is waited for so long.
const DRAIN_MS: u64 = 2_000;

/// `tidegate bench mcap`.
#[derive(Debug, Args)]
pub(crate) struct McapArgs {
    /// The broker's NSQ address
    #[arg(value_name = "ADDRESS:PORT")]
    address: SocketAddr,
    /// The objective, from a message's due time to its consumer: p50, p90, p99 or p99.9
    #[arg(long, value_name = "OBJECTIVE", default_value = "p99 <= 1ms")]
    slo: SloText,
    /// Publishers, each a connection
    #[arg(long, default_value_t = 100)]
    publishers: u32,
    /// Messages of a publisher that arrive at once
    #[arg(long, default_value_t = 1)]
    batch: u32,
    /// Bytes of a message
    #[arg(long, default_value_t = 100)]
    bytes: usize,
    /// How long each rate is offered
    #[arg(long, value_name = "SPAN", default_value = "3s")]
    step: Span,
    /// The first rate
    #[arg(long, value_name = "RATE", default_value = "1k/s")]
    first: Rate,
    /// The largest rate
    #[arg(long, value_name = "RATE", default_value = "2000k/s")]
    most: Rate,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One of the figures of a run.
type Figure = fn(&LatencySummary) -> f64;

/// One rate that was offered.
#[derive(Debug, Serialize)]
struct Tried {
    rate_per_s: u64,
    delay_us: f64,
    delivered_per_s: f64,
    meets: bool,
    /// The generator's own lateness, microseconds.
    late_us_p99: f64,
}

#[derive(Debug, Serialize)]
struct Found<'a> {
    address: SocketAddr,
    slo: String,
    mcap_per_s: u64,
    /// More was not offered.
    is_at_most: bool,
    /// The generator was late at the rate that missed: the broker may take more.
    is_generator: bool,
    tried: &'a [Tried],
}

pub(crate) fn run(args: &McapArgs) -> Result<(), Failure> {
    let SloText(slo) = args.slo;
    let quantile = quantile_of(slo)
        .ok_or_else(|| Failure::usage(format!("{} is of none of p50, p90, p99 and p99.9", args.slo)))?;
    let per_s = |rate: Rate| tidegate_core::number::whole(rate.as_per_s());
    let config = BenchmarkConfig {
        first_per_s: per_s(args.first).max(1),
        most_per_s: per_s(args.most),
        ..BenchmarkConfig::default()
    };
    let mut search = Benchmark::new(config);
    let mut tried = Vec::new();
    while let Some(rate_per_s) = search.next_per_s() {
        let report = bench::run(&load(args, rate_per_s)).map_err(crate::load_failure)?;
        let step = judged(&report, rate_per_s, slo, quantile);
        if !args.json {
            let Tried { delay_us, meets, .. } = &step;
            let (rate, delay) = (figure(float(rate_per_s)), figure(*delay_us / 1e3));
            output::line(format_args!("{rate}/s  {delay} ms  {}", if *meets { "meets" } else { "misses" }))?;
        }
        search.on_measured(if step.meets { Showed::Meets } else { Showed::Misses });
        tried.push(step);
    }
    tell(args, &search, slo, &tried)
}

/// Open loop: what a slow broker holds up is late, and is sent all the same.
fn load(args: &McapArgs, rate_per_s: u64) -> BenchConfig {
    let Span(step) = args.step;
    BenchConfig {
        address: args.address,
        topic: TOPIC.to_owned(),
        channel: TOPIC.to_owned(),
        publishers: args.publishers,
        pace: Pace::Open { process: tidegate_load::arrivals::Process::Poisson, rate_per_s: float(rate_per_s) },
        command: if args.batch > 1 { Command::Mpub } else { Command::Pub },
        batch: args.batch,
        payload_bytes: args.bytes,
        warm_up_ms: WARM_UP_MS,
        duration_ms: u64::try_from(step.as_millis()).unwrap_or(u64::MAX),
        drain_ms: DRAIN_MS,
        // Its lateness is told beside the delay, which counts from the due time.
        lateness_us_p99_max: f64::MAX,
        ..BenchConfig::default()
    }
}

fn judged(report: &BenchReport, rate_per_s: u64, slo: Slo, quantile: Figure) -> Tried {
    let delay_us = quantile(&report.end_to_end);
    let is_whole = float(report.window.delivered) >= (1.0 - OUTSTANDING) * float(report.window.written);
    let is_taken = report.window.written > 0 && report.conservation.refused == 0 && is_whole;
    Tried {
        rate_per_s,
        delay_us,
        delivered_per_s: report.window.delivered_per_s,
        meets: is_taken && delay_us <= slo.within.as_secs_f64() * 1e6,
        late_us_p99: report.lateness.us_p99,
    }
}

/// The figure of a quantile that a run reports.
fn quantile_of(slo: Slo) -> Option<Figure> {
    const FIGURES: [(f64, Figure); 4] = [
        (0.5, |summary| summary.us_p50),
        (0.9, |summary| summary.us_p90),
        (0.99, |summary| summary.us_p99),
        (0.999, |summary| summary.us_p999),
    ];
    FIGURES.into_iter().find(|(quantile, _)| (quantile - slo.quantile).abs() < 1e-9).map(|(_, figure)| figure)
}

fn tell(args: &McapArgs, search: &Benchmark, slo: Slo, tried: &[Tried]) -> Result<(), Failure> {
    let (mcap_per_s, is_at_most) = (search.mcap_per_s(), search.is_at_most());
    let half_us = slo.within.as_secs_f64() * 1e6 / 2.0;
    let is_generator = tried.iter().any(|step| !step.meets && step.late_us_p99 > half_us);
    if args.json {
        let slo = args.slo.to_string();
        let found = Found { address: args.address, slo, mcap_per_s, is_at_most, is_generator, tried };
        output::line(serde_json::to_string_pretty(&found).expect("numbers are finite"))?;
    } else if mcap_per_s > 0 {
        output::line(format_args!("mcap = \"{mcap_per_s}/s\"  # {}, of {}", args.slo, args.address))?;
        if is_at_most {
            output::line("more was not offered: --most is the bound")?;
        }
    }
    if is_generator && !args.json {
        output::line(
            "this machine sent late when the objective was missed: from another one the broker may take more",
        )?;
    }
    if mcap_per_s == 0 {
        let said = format!("{} does not meet {} at any rate that was offered", args.address, args.slo);
        return Err(Failure::new(said).help("a longer --step, a smaller --first, or another objective"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_of_quantiles_that_a_run_reports() {
        let of = |text: &str| quantile_of(text.parse::<SloText>().unwrap().0).is_some();
        assert_eq!(["p50 <= 1ms", "p99 <= 1ms", "p99.9 <= 1ms", "p98 <= 1ms"].map(of), [true, true, true, false]);
    }
}

//! Bars of overload control in virtual time: many runs of `tidegate sim rpc`, side by side, since none can disturb another.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::table::Figure;
use crate::process;

/// Multiples of the capacity at which a server is overloaded.
const LOADS: [f64; 4] = [1.2, 2.0, 5.0, 10.0];
/// Where the tail must hold as well.
const ALL_LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.2, 2.0, 5.0, 10.0];
/// What Tidegate stands beside.
const RIVALS: [&str; 4] = ["breakwater", "dagor", "aqm", "none"];
/// Rivals have no bar: two seeds show where they are.
const RIVAL_SEEDS: u64 = 2;
/// Round trip of the plant, and what a notice may take beyond it.
const NOTICE_US_MAX: f64 = 10.0 + 5.0;

/// The figures of a run, by their place in its report.
const GOODPUT: &str = "/goodput_of_capacity";
const POSSIBLE: &str = "/goodput_of_possible";
const SLO: &str = "/slo_us";

/// Runs every one of `asks`, as many at once as there are CPUs; the reports are in the same order.
pub(super) fn simulate(bench: &Bench, asks: &[String]) -> Result<Vec<Value>> {
    let queue = Mutex::new(asks.iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(asks.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(asks.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((index, ask)) = queue.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
                    let report = simulate_one(bench, ask);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, report)| report).collect()
}

/// One run. Several rows ask for the same: it is answered once.
fn simulate_one(bench: &Bench, ask: &str) -> Result<Value> {
    if let Some(known) = bench.known(ask) {
        return Ok(known);
    }
    let mut command = Command::new(bench.places.tidegate());
    command.args(["sim", "rpc", "--json"]).args(ask.split_whitespace());
    let text = process::output(&mut command).wrap_err_with(|| format!("tidegate sim rpc {ask}"))?;
    let answer: Value = serde_json::from_str(&text).into_diagnostic()?;
    let report = answer.pointer("/runs/0/report").cloned();
    let report = report.ok_or_else(|| miette::miette!("`tidegate sim rpc --json {ask}` answers no report"))?;
    bench.learn(ask, &report);
    Ok(report)
}

/// The number at `pointer` in each report.
fn numbers(reports: &[Value], pointer: &str) -> Result<Vec<f64>> {
    reports.iter().map(|report| number(report, pointer)).collect()
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn seeds(bench: &Bench) -> u64 {
    bench.size(5, 2)
}

fn length(bench: &Bench) -> &'static str {
    bench.size("--warm-up 100ms --duration 2s", "--warm-up 100ms --duration 200ms")
}

/// One ask for each seed.
fn over_seeds(bench: &Bench, count: u64, ask: &str) -> Result<Vec<Value>> {
    let asks: Vec<String> = (1..=count).map(|seed| format!("{ask} --seed {seed}")).collect();
    simulate(bench, &asks)
}

fn at_load(bench: &Bench, scheme: &str, load: f64, count: u64) -> Result<Vec<Value>> {
    over_seeds(bench, count, &format!("--scheme {scheme} --clients 1000 --load {load} {}", length(bench)))
}

/// Least goodput over the seeds, beside the rivals'.
pub(super) fn goodput(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for load in LOADS {
        let found = numbers(&at_load(bench, "tidegate", load, seeds(bench))?, GOODPUT)?;
        let mut rivals = serde_json::Map::new();
        let mut beside = Vec::new();
        for rival in RIVALS {
            let theirs = numbers(&at_load(bench, rival, load, RIVAL_SEEDS)?, GOODPUT)?;
            beside.push(format!("{rival} {:.3}", least(&theirs)));
            rivals.insert(rival.to_owned(), json!(theirs));
        }
        figures.push(Figure {
            what: format!("goodput at {load}x, least of {} seeds", found.len()),
            value: format!("{:.4} of the capacity", least(&found)),
            spread: format!("to {:.4}; {}", greatest(&found), beside.join(", ")),
            passes: least(&found) >= 0.98,
            runs: json!({ "tidegate": found, "rivals": rivals }),
        });
    }
    Ok(figures)
}

/// Worst p99 and p99.9 over the seeds, as shares of the objective.
pub(super) fn tail(bench: &Bench) -> Result<Vec<Figure>> {
    let each = |load: f64| -> Result<Figure> {
        let reports = at_load(bench, "tidegate", load, seeds(bench))?;
        let slo = numbers(&reports, SLO)?;
        let of_slo = |pointer| -> Result<Vec<f64>> {
            Ok(numbers(&reports, pointer)?.iter().zip(&slo).map(|(us, slo)| us / slo).collect())
        };
        let (p99, p999) = (of_slo("/response/p99_us")?, of_slo("/response/p999_us")?);
        Ok(Figure {
            what: format!("answered calls at {load}x, worst seed"),
            value: format!("p99 {:.3}, p99.9 {:.3} of the SLO", greatest(&p99), greatest(&p999)),
            spread: format!("p99 from {:.3}, p99.9 from {:.3}", least(&p99), least(&p999)),
            passes: greatest(&p99) <= 1.0 && greatest(&p999) <= 1.1,
            runs: json!({ "p99": p99, "p999": p999 }),
        })
    };
    ALL_LOADS.into_iter().map(each).collect()
}

/// How soon callers are told, wherever the call was refused.
pub(super) fn refusals(bench: &Bench) -> Result<Vec<Figure>> {
    let each = |load: f64| -> Result<Figure> {
        let reports = at_load(bench, "tidegate", load, seeds(bench))?;
        let (notice, left) = (numbers(&reports, "/notice/p99_us")?, numbers(&reports, "/under_way")?);
        Ok(Figure {
            what: format!("refusal known at {load}x, p99, worst seed"),
            value: format!("{:.1} us", greatest(&notice)),
            spread: format!("from {:.1} us; at most {:.0} calls under way at the end", least(&notice), greatest(&left)),
            passes: greatest(&notice) <= NOTICE_US_MAX,
            runs: json!({ "notice_us": notice, "under_way": left }),
        })
    };
    LOADS.into_iter().map(each).collect()
}

/// When the load of a spike rises, and for how long it is watched, in milliseconds since the start.
const SPIKE_MS: f64 = 150.0;
const SPIKE_END_MS: f64 = 350.0;

/// A load that rises at once: the first 20 ms, and each millisecond after.
pub(super) fn spike(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for to in [1.4, 10.0] {
        let length = SPIKE_END_MS - 100.0;
        let ask = format!(
            "--scheme tidegate --clients 1000 --load 0.4 --step-to {to} --step-at 50ms --bin 1ms --warm-up 100ms --duration {length}ms"
        );
        let reports = over_seeds(bench, seeds(bench), &ask)?;
        let goodput: Vec<f64> = reports.iter().map(|report| first_goodput(report, 20.0)).collect::<Result<_>>()?;
        let worst: Vec<f64> = reports.iter().map(worst_bin).collect::<Result<_>>()?;
        figures.push(Figure {
            what: format!("0.4x to {to}x, goodput of the first 20 ms, least seed"),
            value: format!("{:.4} of the capacity", least(&goodput)),
            spread: format!("to {:.4}", greatest(&goodput)),
            passes: least(&goodput) >= 0.97,
            runs: json!(goodput),
        });
        figures.push(Figure {
            what: format!("0.4x to {to}x, worst 1 ms bin's p99, worst seed"),
            value: format!("{:.3} of the SLO", greatest(&worst)),
            spread: format!("from {:.3}", least(&worst)),
            passes: greatest(&worst) <= 1.0,
            runs: json!(worst),
        });
    }
    Ok(figures)
}

/// Bins from the spike on, up to `span_ms` after it.
fn bins_after_spike(report: &Value, span_ms: f64) -> Result<Vec<&Value>> {
    let bins = report["bins"].as_array().ok_or_else(|| miette::miette!("the report has no bins"))?;
    let inside = |bin: &&Value| {
        let at_ms = bin["at_s"].as_f64().unwrap_or(f64::NAN) * 1e3;
        // Half a bin of margin for rounding.
        at_ms > SPIKE_MS - 0.5 && at_ms < SPIKE_MS + span_ms - 0.5
    };
    let bins: Vec<&Value> = bins.iter().filter(inside).collect();
    if bins.is_empty() {
        miette::bail!("the report has no bin after the spike");
    }
    Ok(bins)
}

fn first_goodput(report: &Value, span_ms: f64) -> Result<f64> {
    let bins = bins_after_spike(report, span_ms)?;
    let sum: f64 = bins.iter().map(|bin| number(bin, "/goodput_per_s")).sum::<Result<f64>>()?;
    Ok(sum / span_ms / number(report, "/capacity_per_s")?)
}

fn worst_bin(report: &Value) -> Result<f64> {
    let bins = bins_after_spike(report, SPIKE_END_MS - SPIKE_MS)?;
    let p99: Vec<f64> = bins.iter().map(|bin| number(bin, "/p99_us")).collect::<Result<_>>()?;
    Ok(greatest(&p99) / number(report, SLO)?)
}

/// Clients that the server has never heard of, all at once.
pub(super) fn million(bench: &Bench) -> Result<Vec<Figure>> {
    let clients = bench.size(1_000_000, 10_000);
    let cases = [
        ("0.5x, first 100 ms", "--load 0.5 --warm-up 0ms", 0.97),
        ("1.2x, first 100 ms", "--load 1.2 --warm-up 0ms", 0.97),
        ("2x, first 100 ms", "--load 2 --warm-up 0ms", 0.88),
        ("2x, 100 ms after 2.5 s", "--load 2 --warm-up 2500ms", 0.97),
    ];
    let ask = |case: &str| format!("--scheme tidegate --clients {clients} {case} --duration 100ms");
    let reports = simulate(bench, &cases.map(|(_, case, _)| ask(case)))?;
    let each = |((what, _, bar), report): (&(&str, &str, f64), &Value)| -> Result<Figure> {
        let (goodput, extra) = (number(report, POSSIBLE)?, number(report, "/extra_messages_per_call")?);
        Ok(Figure {
            what: format!("{clients} clients, {what}"),
            value: format!("{goodput:.4} of the possible (bar {bar})"),
            spread: format!("{extra:.3} extra messages for each call"),
            passes: goodput >= *bar && extra <= 0.1,
            runs: json!({ "goodput": goodput, "extra_messages_per_call": extra }),
        })
    };
    cases.iter().zip(&reports).map(each).collect()
}

/// One cell of the grid of services.
#[derive(Clone, Copy)]
struct Cell {
    mean_us: u32,
    law: &'static str,
    cores: u32,
}

impl Cell {
    fn name(self) -> String {
        format!("{} us {} on {}", self.mean_us, self.law, self.cores)
    }

    /// As long as `calls` take to be served, after a warm-up of 30 % of that.
    fn ask(self, calls: f64) -> String {
        let seconds = calls * f64::from(self.mean_us + 1) / 1e6 / f64::from(self.cores);
        format!(
            "--scheme tidegate --clients 1000 --load 2 --service {} --service-mean {}us --cores {} --warm-up {:.0}us --duration {:.0}us",
            self.law,
            self.mean_us,
            self.cores,
            seconds * 0.3e6,
            seconds * 1e6
        )
    }
}

/// One configuration for every service: the worst cells decide, and all that miss are named.
pub(super) fn no_tuning(bench: &Bench) -> Result<Vec<Figure>> {
    let mut cells = Vec::new();
    for mean_us in [1, 10, 100, 1_000, 10_000, 100_000] {
        for law in ["constant", "exponential", "bimodal"] {
            cells.extend([1, 4, 16, 64].map(|cores| Cell { mean_us, law, cores }));
        }
    }
    let asks: Vec<String> = cells.iter().map(|cell| cell.ask(bench.size(200_000.0, 5_000.0))).collect();
    let reports = simulate(bench, &asks)?;
    let goodput = numbers(&reports, GOODPUT)?;
    let slo = numbers(&reports, SLO)?;
    let p99: Vec<f64> = numbers(&reports, "/response/p99_us")?.iter().zip(slo).map(|(us, slo)| us / slo).collect();
    let figure = |what: &str, values: &[f64], bar: f64, higher: bool| {
        let sign = if higher { 1.0 } else { -1.0 };
        let mut order: Vec<(f64, Cell)> = values.iter().copied().zip(cells.iter().copied()).collect();
        order.sort_by(|(one, _), (other, _)| (sign * one).total_cmp(&(sign * other)));
        let misses = order.iter().filter(|(value, _)| sign * value < sign * bar).count();
        // All that miss, and else the three that come nearest to it.
        let named = order.iter().take(misses.max(3)).map(|(value, cell)| format!("{} {value:.4}", cell.name()));
        Figure {
            what: format!("{what}, worst of {} cells", values.len()),
            value: format!(
                "{:.4} (bar {bar}); {misses} cells miss",
                order.first().map_or(f64::NAN, |(value, _)| *value)
            ),
            spread: named.collect::<Vec<_>>().join(", "),
            passes: misses == 0,
            runs: order.iter().map(|(value, cell)| json!({ "cell": cell.name(), "value": value })).collect(),
        }
    };
    Ok(vec![figure("goodput of the capacity", &goodput, 0.95, true), figure("p99 of the SLO", &p99, 1.0, false)])
}

/// What critical calls alone ask for.
const CRITICAL_LOAD: f64 = 0.75;

/// Critical calls while others take what they can get.
pub(super) fn priorities(bench: &Bench) -> Result<Vec<Figure>> {
    let each = |load: f64| -> Result<Figure> {
        let rest = (load - CRITICAL_LOAD) / 2.0;
        let ask = format!(
            "--scheme tidegate --clients 1000 --load {load} --priorities 0={CRITICAL_LOAD},128={rest},255={rest} {}",
            length(bench)
        );
        let reports = over_seeds(bench, seeds(bench), &ask)?;
        let critical = reports.iter().map(|report| share(report, "by_priority", 0)).collect::<Result<Vec<_>>>()?;
        let in_slo = numbers(&critical, "/in_slo")?;
        let goodput = numbers(&reports, GOODPUT)?;
        Ok(Figure {
            what: format!("critical, {CRITICAL_LOAD} of the capacity, at {load}x"),
            value: format!("{:.5} within the SLO, least seed", least(&in_slo)),
            spread: format!("to {:.5}; all goodput {:.3} of the capacity", greatest(&in_slo), least(&goodput)),
            passes: least(&in_slo) >= 0.999,
            runs: json!({ "in_slo": in_slo, "goodput": goodput }),
        })
    };
    [2.0, 5.0, 10.0].into_iter().map(each).collect()
}

/// How many tenants ask for the same.
const EQUALS: u32 = 10;

/// Equal tenants beside one that asks for a hundred times as much as each of them.
pub(super) fn fairness(bench: &Bench) -> Result<Vec<Figure>> {
    let greedy = EQUALS + 1;
    let tenants: Vec<String> = (1..=EQUALS).map(|tenant| format!("{tenant}=1")).collect();
    let each = |load: f64| -> Result<Figure> {
        let ask = format!(
            "--scheme tidegate --clients 1100 --load {load} --tenants {},{greedy}=100 {}",
            tenants.join(","),
            length(bench)
        );
        let reports = over_seeds(bench, seeds(bench), &ask)?;
        let (mut jain, mut served) = (Vec::new(), Vec::new());
        for report in &reports {
            let equals: Vec<Value> =
                (1..=EQUALS).map(|tenant| share(report, "by_tenant", tenant)).collect::<Result<_>>()?;
            jain.push(jains_index(&numbers(&equals, "/goodput_per_s")?));
            served.push(least(&numbers(&equals, "/in_slo")?));
        }
        Ok(Figure {
            what: format!("{EQUALS} equal tenants and one at 100 times, at {load}x"),
            value: format!("Jain's index {:.5}, least seed", least(&jain)),
            spread: format!("of their calls within the SLO at least {:.4}", least(&served)),
            passes: least(&jain) >= 0.99,
            runs: json!({ "jain": jain, "in_slo": served }),
        })
    };
    // At ten times each equal tenant asks for its fair share exactly, at two for less, at 22 for twice as much.
    [2.0, 10.0, 22.0].into_iter().map(each).collect()
}

/// The part of a report about one priority or tenant.
fn share(report: &Value, list: &str, key: u32) -> Result<Value> {
    let shares = report[list].as_array().map_or(&[][..], Vec::as_slice);
    let found = shares.iter().find(|share| share["key"].as_u64() == Some(key.into()));
    found.cloned().ok_or_else(|| miette::miette!("the report has no {key} in {list}"))
}

/// (sum x)^2 / (n sum x^2): 1 when all have the same. Source: Jain, Chiu and Hawe (1984).
fn jains_index(values: &[f64]) -> f64 {
    let count = values.iter().fold(0.0, |count, _| count + 1.0);
    let sum: f64 = values.iter().sum();
    sum * sum / (count * values.iter().map(|value| value * value).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_milliseconds_after_a_spike_are_those_after_it() {
        let bin = |ms: u32, goodput: f64| json!({ "at_s": f64::from(ms) / 1e3, "goodput_per_s": goodput, "p99_us": 150.0 + goodput });
        let bins: Vec<Value> =
            (100..350).map(|ms| bin(ms, if (150..170).contains(&ms) { 90.0 } else { 10.0 })).collect();
        let report = json!({ "bins": bins, "capacity_per_s": 100.0, "slo_us": 200.0 });
        assert!((first_goodput(&report, 20.0).unwrap() - 0.9).abs() < 1e-9);
        assert!((worst_bin(&report).unwrap() - 1.2).abs() < 1e-9);
        assert!(first_goodput(&json!({}), 20.0).is_err());
    }

    #[test]
    fn the_index_is_one_for_equals_and_small_for_a_taker() {
        assert!((jains_index(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jains_index(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn a_cell_lasts_as_long_as_its_calls() {
        let ask = Cell { mean_us: 9, law: "constant", cores: 4 }.ask(200_000.0);
        assert!(ask.contains("--duration 500000us") && ask.contains("--warm-up 150000us"), "{ask}");
    }
}

//! A limit that is split over real brokers: what the parts do to messages, and what the model says that they will.
//!
//! All brokers run on CPU 0, each with a part of the limit and with its share of the publishers, which are a load generator
//! of its own on CPU 1. Beside them [`Gaps`] watches the machine. What came in a window in which the host ran something else
//! for more than 50 us is left out, and counted.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, number};
use super::limits::{Limited, TOPIC};
use super::table::Figure;
use super::trace::{self, Replay};
use crate::process::Group;

/// The paper's own load.
const PUBLISHERS: u32 = 1_000;
const OFFERED_PER_S: u32 = 10_000;
/// What three brokers, their generators and who watches do with half a core, of single messages.
const OFFERED_IN_HALF_A_CORE_PER_S: u32 = 4_000;
const BROKERS: [usize; 3] = [1, 2, 3];
/// Messages in a batch, with the least burst that lets 99 % of them pass one broker undelayed.
const LOADS: [(u32, u32); 2] = [(1, 26), (10, 260)];
/// Windows that are left out or not.
const WINDOW_NS: i128 = 20_000_000;
/// With fewer messages a p99 says nothing: what is left after gaps is judged only above.
const MESSAGES_LEAST: usize = 10_000;
const ERROR_US_MAX: f64 = 100.0;
/// Of one core, for all processes together.
const CORES_MAX: f64 = 0.5;
const OFF_MOST: f64 = 0.2;
/// A limit that holds nothing back.
const NO_LIMIT: (u32, u32) = (1_000_000, 100_000);

/// Each message's delay at its broker against Eq. 2 over the stamps.
pub(super) fn replayed(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (batch, burst) in LOADS {
        let offered_per_s = if batch == 1 { OFFERED_IN_HALF_A_CORE_PER_S } else { OFFERED_PER_S };
        for brokers in BROKERS {
            let parts = evenly((a_tenth_above(offered_per_s), burst), brokers);
            let run = Run::of(bench, (batch, offered_per_s), &parts, bench.size(30_000, 3_000))?;
            let (mut errors_ns, mut delayed) = (Vec::new(), 0_u64);
            for (part, (rate_per_s, burst)) in run.parts.iter().zip(parts) {
                let mut replay = Replay::new(rate_per_s, burst);
                trace::read(&part.trace, |passage| {
                    let expected = replay.delay_ns(passage.arrival_ns);
                    if run.gaps.is_clear(passage.arrival_ns, passage.passed_ns) {
                        delayed += u64::from(expected > 0);
                        errors_ns.push((passage.passed_ns - passage.arrival_ns - expected).abs());
                    }
                })?;
            }
            let all = errors_ns.len();
            let error_us = |quantile| quantile_us(&mut errors_ns, quantile);
            let [median, p99, p999] = [0.5, 0.99, 0.999].map(error_us);
            figures.push(Figure {
                what: format!("{}, {all} messages, {delayed} delayed", named(brokers, batch)),
                value: format!("{p99:.1} us at p99, {:.2} cores", run.cores),
                spread: format!("p50 {median:.1} us, p99.9 {p999:.1} us; {}", run.gaps.in_words()),
                passes: p99 <= ERROR_US_MAX && run.cores <= CORES_MAX && delayed > 0 && all >= MESSAGES_LEAST,
                runs: json!({
                    "us_p50": median, "us_p99": p99, "us_p999": p999, "messages": all, "delayed": delayed,
                    "cores": run.cores, "gaps": run.gaps.json(),
                }),
            });
        }
    }
    Ok(figures)
}

/// The p99 from publisher to consumer against that of the planner's model, which knows the broker from runs without a limit.
pub(super) fn predicted(bench: &Bench) -> Result<Vec<Figure>> {
    compared(bench, 1, 60_000)
}

/// The same of batches. Who waits does so for tens of them: a p99 of batches of ten needs ten times the messages to scatter as
/// little.
pub(super) fn predicted_in_batches(bench: &Bench) -> Result<Vec<Figure>> {
    compared(bench, 10, 240_000)
}

fn compared(bench: &Bench, batch: u32, length_ms: u32) -> Result<Vec<Figure>> {
    let service = Service::measured(bench)?;
    let mut figures = vec![service.figure()];
    for brokers in BROKERS {
        let told = service.predict(bench, batch, brokers)?;
        let run = Run::of(bench, (batch, OFFERED_PER_S), &told.parts, bench.size(length_ms, 3_000))?;
        let mut delays_ns = run.delays_ns()?;
        let messages = delays_ns.len();
        let measured = quantile_us(&mut delays_ns, 0.99);
        let off = measured / told.us_p99 - 1.0;
        figures.push(Figure {
            what: format!("{}, {messages} messages", named(brokers, batch)),
            value: format!("{:+.1} %: {measured:.0} us at p99 for {:.0} us", off * 100.0, told.us_p99),
            spread: format!("{:.2} cores; {}", run.cores, run.gaps.in_words()),
            passes: off.abs() <= OFF_MOST && messages >= MESSAGES_LEAST,
            runs: json!({
                "predicted_us_p99": told.us_p99, "us_p99": measured, "messages": messages, "cores": run.cores,
                "gaps": run.gaps.json(),
            }),
        });
    }
    Ok(figures)
}

fn named(brokers: usize, batch: u32) -> String {
    let brokers = if brokers == 1 { "1 broker".to_owned() } else { format!("{brokers} brokers") };
    if batch == 1 { brokers } else { format!("{brokers}, batches of {batch}") }
}

/// The limit of the paper's load: a tenth above it.
fn a_tenth_above(offered_per_s: u32) -> u32 {
    offered_per_s + offered_per_s / 10
}

/// The whole in parts that differ by one at most.
fn evenly((rate_per_s, burst): (u32, u32), parts: usize) -> Vec<(u32, u32)> {
    let parts = u32::try_from(parts).unwrap_or(u32::MAX);
    let part = |whole: u32, at: u32| whole / parts + u32::from(at < whole % parts);
    (0..parts).map(|at| (part(rate_per_s, at), part(burst, at))).collect()
}

/// The least of `values` that the share `q` does not exceed; NaN of none, which passes no bar.
fn quantile_us(values_ns: &mut [i128], q: f64) -> f64 {
    values_ns.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 values and nanoseconds")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among them")]
    let at = |len: usize| ((len as f64 * q).ceil() as usize).saturating_sub(1);
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
    values_ns.get(at(values_ns.len())).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// One load on brokers with a part each.
struct Run {
    parts: Vec<PartRun>,
    gaps: Seen,
    /// Of all processes together.
    cores: f64,
    cpu_us_per_message: f64,
}

struct PartRun {
    trace: PathBuf,
    deliveries: PathBuf,
}

impl Run {
    /// `load`: messages in a batch, and messages a second.
    fn of(bench: &Bench, load: (u32, u32), parts: &[(u32, u32)], length_ms: u32) -> Result<Self> {
        let (batch, offered_per_s) = load;
        let many = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let mut brokers = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            brokers.push(Limited::start_named(bench, &format!("part-{at}"), 1, *part)?);
        }
        let folder = bench.folder("split")?;
        std::fs::create_dir_all(&folder).into_diagnostic()?;
        let gaps = Gaps::start(bench, &folder)?;
        let mut generators = Vec::new();
        for (at, limited) in brokers.iter().enumerate() {
            let said = folder.join(format!("{at}.json"));
            let deliveries = said.with_extension("csv");
            let command = if batch == 1 { "pub" } else { "mpub" };
            let run = format!(
                "run topic={TOPIC} publishers={} batch={batch} command={command} seed={} buffering=unbuffered \
                 pace.open.rate_per_s={} duration_ms={length_ms} lateness_us_p99_max=1e9 deliveries={}",
                PUBLISHERS / many,
                at + 1,
                f64::from(offered_per_s) / f64::from(many),
                deliveries.display()
            );
            let report = File::create(&said).into_diagnostic()?;
            let group = Group::spawn(bench.generator(&limited.broker, &run).stdout(report))?;
            generators.push((group, said, deliveries));
        }
        let (mut runs, mut cores, mut cpu_us) = (Vec::new(), 0.0, 0.0);
        for ((mut group, said, deliveries), limited) in generators.into_iter().zip(brokers) {
            let ended = group.wait(Duration::from_millis(u64::from(length_ms) + 60_000))?;
            if ended.is_none_or(|status| !status.success()) {
                miette::bail!("a load generator ended with {ended:?}");
            }
            let report: Value = serde_json::from_slice(&std::fs::read(&said).into_diagnostic()?).into_diagnostic()?;
            let seconds = number(&report, "/window/length_s")?;
            cores += (number(&report, "/target/cpu_s")? + number(&report, "/generator_cpu_s")?) / seconds;
            cpu_us += number(&report, "/target/cpu_us_per_message")? / f64::from(many);
            runs.push((limited, deliveries));
        }
        let gaps = gaps.stop()?;
        let mut parts = Vec::new();
        for (limited, deliveries) in runs {
            parts.push(PartRun { trace: limited.finish()?, deliveries });
        }
        Ok(Self { parts, cores: cores + gaps.cores, gaps, cpu_us_per_message: cpu_us })
    }

    /// From publisher to consumer, of messages that no gap was near.
    fn delays_ns(&self) -> Result<Vec<i128>> {
        let mut delays = Vec::new();
        for part in &self.parts {
            let spans = spans(&part.deliveries)?;
            let clear = spans.into_iter().filter(|(sent, came)| self.gaps.is_clear(*sent, *came));
            delays.extend(clear.map(|(sent, came)| came - sent));
        }
        Ok(delays)
    }
}

/// Reads a file of lines `FROM,TO` that ends with `over`.
fn spans(file: &Path) -> Result<Vec<(i128, i128)>> {
    let text = std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| file.display().to_string())?;
    let lines = text.strip_suffix("over\n").ok_or_else(|| miette::miette!("{} is torn", file.display()))?;
    let span = |line: &str| {
        let (from, to) = line.split_once(',')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    let spans = lines.lines().map(|line| span(line).ok_or_else(|| miette::miette!("{}: {line}", file.display())));
    spans.collect()
}

/// Threads that go before all others and note when they do not wake in time.
struct Gaps {
    group: Group,
    file: PathBuf,
    began_ns: i128,
}

/// What they noted.
struct Seen {
    /// Windows that a gap touches.
    windows: BTreeSet<i128>,
    all: i128,
    gaps: usize,
    late_us_max: f64,
    /// What looking takes.
    cores: f64,
}

impl Gaps {
    fn start(bench: &Bench, folder: &Path) -> Result<Self> {
        let file = folder.join("gaps.csv");
        let report = File::create(file.with_extension("json")).into_diagnostic()?;
        let mut command = Command::new(bench.places.tidegate());
        command.args(["bench", "nsq", "gaps", "cpus=[0,1]"]).arg(format!("out={}", file.display()));
        let group = Group::spawn(command.stdin(Stdio::piped()).stdout(report))?;
        Ok(Self { group, file, began_ns: crate::clock::monotonic_ns() })
    }

    fn stop(mut self) -> Result<Seen> {
        let length_ns = crate::clock::monotonic_ns() - self.began_ns;
        drop(self.group.stdin());
        let ended = self.group.wait(Duration::from_mins(1))?;
        if ended.is_none_or(|status| !status.success()) {
            miette::bail!("what watches for gaps ended with {ended:?}: it needs the right to be a real-time program");
        }
        let text = std::fs::read(self.file.with_extension("json")).into_diagnostic()?;
        let report: Value = serde_json::from_slice(&text).into_diagnostic()?;
        let gaps = spans(&self.file)?;
        let windows = gaps.iter().flat_map(|(from, to)| from / WINDOW_NS..=to / WINDOW_NS).collect();
        #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
        let cores = number(&report, "/cpu_s")? * 1e9 / length_ns as f64;
        let late_us_max = number(&report, "/late_us_max")?;
        Ok(Seen { windows, all: length_ns / WINDOW_NS, gaps: gaps.len(), late_us_max, cores })
    }
}

impl Seen {
    /// No gap touches a window of these two instants or between them.
    fn is_clear(&self, from_ns: i128, to_ns: i128) -> bool {
        self.windows.range(from_ns / WINDOW_NS..=to_ns.max(from_ns) / WINDOW_NS).next().is_none()
    }

    fn in_words(&self) -> String {
        format!(
            "{} of {} windows left out for {} gaps, {:.0} us at most",
            self.windows.len(),
            self.all,
            self.gaps,
            self.late_us_max
        )
    }

    fn json(&self) -> Value {
        json!({
            "gaps": self.gaps, "windows": self.windows.len(), "late_us_max": self.late_us_max,
            "cores": self.cores,
        })
    }
}

/// Halvings of the share of the CPU time that explains delays.
const SHARE_STEPS: usize = 6;

/// What the broker does with a message, in microseconds.
#[derive(Clone, Copy)]
struct Service {
    batch: f64,
    message: f64,
    way: f64,
}

/// What the planner's model says of a placement.
struct Told {
    parts: Vec<(u32, u32)>,
    us_p99: f64,
}

impl Service {
    /// Of one broker that holds nothing back: its CPU time for single messages and for batches, and the rest of the way. At this
    /// load a message's CPU time has in it what the broker does beside, above all to wake up, and which holds nobody up: where
    /// that alone explains longer delays than there are, as large a share of it is taken as explains them.
    fn measured(bench: &Bench) -> Result<Self> {
        let mut costs = Vec::new();
        let mut delays_ns = Vec::new();
        for (batch, _) in LOADS {
            let run = Run::of(bench, (batch, OFFERED_PER_S), &[NO_LIMIT], bench.size(30_000, 3_000))?;
            if batch == 1 {
                delays_ns = run.delays_ns()?;
            }
            costs.push((f64::from(batch), run.cpu_us_per_message));
        }
        let [(_, single), (batch, in_batches)] = costs[..] else { miette::bail!("two loads are compared") };
        let batch_us = ((single - in_batches) * batch / (batch - 1.0)).max(0.0);
        let mut service = Self { batch: batch_us, message: (single - batch_us).max(0.0), way: 0.0 };
        // What the model does not explain of messages that wait for nothing is the constant part of their way.
        let us_p99 = quantile_us(&mut delays_ns, 0.99);
        let mut unexplained = us_p99 - service.us_p99_alone(bench)?;
        if unexplained < 0.0 {
            let whole = service;
            let (mut least, mut most) = (0.0, 1.0);
            for _ in 0..SHARE_STEPS {
                let share = f64::midpoint(least, most);
                let of = Self { batch: share * whole.batch, message: share * whole.message, way: 0.0 };
                let rest = us_p99 - of.us_p99_alone(bench)?;
                if rest < 0.0 {
                    most = share;
                } else {
                    (least, service, unexplained) = (share, of, rest);
                }
            }
        }
        service.way = unexplained.max(0.0);
        Ok(service)
    }

    /// The model's p99 of single messages that no limit holds up.
    fn us_p99_alone(&self, bench: &Bench) -> Result<f64> {
        number(&self.simulate(bench, &["--margin", "100", "--batch", "1"], 1)?, "/us_p99")
    }

    fn predict(&self, bench: &Bench, batch: u32, brokers: usize) -> Result<Told> {
        let report = self.simulate(bench, &["--undelayed", "0.99", "--batch", &batch.to_string()], brokers)?;
        let burst = report["limit"]["burst"].as_u64().and_then(|burst| u32::try_from(burst).ok());
        let burst = burst.ok_or_else(|| miette::miette!("the model names no burst"))?;
        Ok(Told { parts: evenly((a_tenth_above(OFFERED_PER_S), burst), brokers), us_p99: number(&report, "/us_p99")? })
    }

    /// So many brokers, as the model has them.
    fn simulate(&self, bench: &Bench, arguments: &[&str], brokers: usize) -> Result<Value> {
        let us = |span: f64| format!("{:.0}ns", span * 1e3);
        let brokers = brokers.to_string();
        let mut command = Command::new(bench.places.tidegate());
        command.args(["sim", "placement", "--json", "--round", "10m", "--simulate", "600", "--cores", "1"]);
        command.args(["--brokers", &brokers, "--force-brokers", &brokers]);
        command.args(["--batch-cost", &us(self.batch), "--message-cost", &us(self.message)]);
        command.args(["--way", &us(self.way)]).args(arguments);
        let done = command.output().into_diagnostic()?;
        // A placement beyond its objective ends with an error and says all the same what it shows.
        serde_json::from_slice(&done.stdout)
            .into_diagnostic()
            .wrap_err_with(|| String::from_utf8_lossy(&done.stderr).into_owned())
    }

    fn figure(&self) -> Figure {
        let Self { batch, message, way } = self;
        Figure {
            what: "the broker, as it is measured without a limit".to_owned(),
            value: format!("{batch:.1} us a batch, {message:.1} us a message, {way:.0} us of way"),
            spread: String::new(),
            passes: *way >= 0.0 && batch + message > 0.0,
            runs: json!({ "batch_us": batch, "message_us": message, "way_us": way }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(gaps: &[(i128, i128)]) -> Seen {
        let windows = gaps.iter().flat_map(|(from, to)| from / WINDOW_NS..=to / WINDOW_NS).collect();
        Seen { windows, all: 100, gaps: gaps.len(), late_us_max: 0.0, cores: 0.0 }
    }

    #[test]
    fn parts_sum_to_the_whole() {
        assert_eq!(evenly((11_000, 26), 3), [(3_667, 9), (3_667, 9), (3_666, 8)]);
        assert_eq!(evenly((11_000, 26), 1), [(11_000, 26)]);
    }

    #[test]
    fn a_message_that_a_gap_was_near_does_not_count() {
        let gaps = seen(&[(WINDOW_NS * 3 - 1, WINDOW_NS * 3 + 1)]);
        let at = |windows: i128| WINDOW_NS * windows + WINDOW_NS / 2;
        assert!(gaps.is_clear(at(1), at(1)) && gaps.is_clear(at(4), at(9)));
        assert!(!gaps.is_clear(at(2), at(2)) && !gaps.is_clear(at(3), at(3)));
        assert!(!gaps.is_clear(at(1), at(7)), "it was under way meanwhile");
    }

    #[test]
    fn quantiles_are_of_all_values() {
        let mut values: Vec<i128> = (1..=200).rev().map(|us| us * 1_000).collect();
        assert!((quantile_us(&mut values, 0.99) - 198.0).abs() < 1e-9);
        assert!(quantile_us(&mut [], 0.99).is_nan());
    }
}

//! Runs of the load generator against a broker, in pairs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::broker::{Broker, Kind, SHARDS, pinned, shards_in_words};
use super::table::Figure;
use crate::places::{Places, Scratch};

/// Runs that the generator spoilt are repeated so often; then the machine is too busy to measure on.
pub(super) const TRIES: u32 = 6;

/// What all rows share.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    /// Folders.
    pub(super) places: &'a Places,
    /// Short runs.
    pub(super) quick: bool,
    scratch: Scratch,
    /// Answers of runs that several rows need.
    answers: Mutex<BTreeMap<String, Value>>,
    /// How late the generator was in runs that count all the same, in microseconds at p99, and how late it might be.
    late: Mutex<Vec<(f64, f64)>>,
    /// Runs that failed, and why.
    failed: Mutex<Vec<String>>,
}

/// Better is which way?
#[derive(Clone, Copy, Debug)]
pub(super) enum Better {
    /// The ratio is ours by nsqd's.
    Higher,
    /// The ratio is nsqd's by ours.
    Lower,
}

/// A comparison of both brokers under one load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairing<'a> {
    /// What it is called.
    pub(super) what: &'a str,
    /// Flags of both brokers.
    pub(super) flags: &'a [&'a str],
    /// The generator's arguments.
    pub(super) load: &'a str,
    /// Where in its report the figures are, each with its unit, its direction and the ratio that is enough.
    pub(super) figures: &'a [(&'a str, &'a str, Better, f64)],
}

impl<'a> Bench<'a> {
    /// Room for the brokers' data.
    pub(super) fn new(places: &'a Places, quick: bool) -> Result<Self> {
        Ok(Self {
            places,
            quick,
            scratch: places.scratch("measure")?,
            answers: Mutex::default(),
            late: Mutex::default(),
            failed: Mutex::default(),
        })
    }

    /// A run counts though the generator was so late, in microseconds at p99.
    pub(super) fn note_late(&self, us_p99: f64, us_max: f64) {
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push((us_p99, us_max));
    }

    /// What a row has to say of such runs since it was last asked.
    pub(super) fn late(&self) -> Option<Figure> {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        let us_max = late.first()?.1;
        let us_p99: Vec<f64> = late.iter().map(|(us_p99, _)| *us_p99).collect();
        Some(Figure {
            what: format!(
                "runs whose generator was late, and that are in the figures (needed: at most {us_max:.0} us)"
            ),
            value: us_p99.len().to_string(),
            spread: format!("{} us at p99", range(&us_p99)),
            passes: false,
            runs: json!(us_p99),
        })
    }

    /// A run failed; its row goes on with the others, and is missed.
    pub(super) fn note_failed(&self, why: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    /// What a row has to say of such runs since it was last asked.
    pub(super) fn failed(&self) -> Option<Figure> {
        let failed = std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner));
        Some(Figure {
            what: "runs that failed, and are in no figure".to_owned(),
            value: failed.len().to_string(),
            spread: format!("the first: {}", failed.first()?),
            passes: false,
            runs: json!(failed),
        })
    }

    /// What `ask` was answered before.
    pub(super) fn known(&self, ask: &str) -> Option<Value> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(ask).cloned()
    }

    /// Keeps the answer to `ask`.
    pub(super) fn learn(&self, ask: &str, answer: &Value) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(ask.to_owned(), answer.clone());
    }

    /// At least five pairs count as a measurement.
    pub(super) fn pairs(&self) -> usize {
        if self.quick { 2 } else { 7 }
    }

    /// `full` at full size, `short` in a quick run.
    pub(super) fn size<T>(&self, full: T, short: T) -> T {
        if self.quick { short } else { full }
    }

    /// A folder that does not exist yet.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.path.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path).into_diagnostic()?;
        }
        Ok(path)
    }

    /// The generator on CPU 1 against `broker`, with its report.
    pub(super) fn load(&self, broker: &Broker, arguments: &str) -> Result<Value> {
        // A quick run may be on a busy machine: its figures mean nothing, but they come.
        let arguments = format!("run {arguments} {}", self.size("", "lateness_us_p99_max=1e9"));
        for _ in 0..TRIES {
            let report =
                self.generator(broker, &arguments).output().into_diagnostic().wrap_err("the load generator")?;
            let Ok(found) = serde_json::from_slice::<Value>(&report.stdout) else {
                miette::bail!("the load generator: {}", String::from_utf8_lossy(&report.stderr));
            };
            // The generator says of itself when it was late.
            if found["invalid"].is_null() {
                return Ok(found);
            }
        }
        miette::bail!("the generator was late in {TRIES} runs: something else uses this machine")
    }

    /// Opens idle connections and reads what they cost.
    pub(super) fn idle(&self, broker: &Broker, arguments: &str) -> Result<Value> {
        let report = self.generator(broker, &format!("idle {arguments}")).output().into_diagnostic()?;
        if !report.status.success() {
            miette::bail!("the load generator: {}", String::from_utf8_lossy(&report.stderr));
        }
        serde_json::from_slice(&report.stdout).into_diagnostic()
    }

    /// The generator, ready to be started; the first of `arguments` says what it does.
    pub(super) fn generator(&self, broker: &Broker, arguments: &str) -> Command {
        let mut command = pinned("1");
        command.arg(self.places.tidegate()).args(["bench", "nsq"]).args(arguments.split_whitespace());
        command.arg(format!("address={}", broker.tcp)).arg(format!("pid={}", broker.id()));
        command.stdin(Stdio::null());
        command
    }

    /// A fresh nsqd and a fresh broker of ours with one shard and with two, in turn, the same load on each, for all pairs.
    pub(super) fn compare(&self, pairing: &Pairing) -> Result<Vec<Figure>> {
        let shards = SHARDS.map(|shards| format!("-shards={shards}"));
        let mut turns = vec![(Kind::Nsqd, "")];
        turns.extend(shards.iter().map(|flag| (Kind::Ours, flag.as_str())));
        let mut reports = vec![Vec::new(); turns.len()];
        let full = format!("{} {}", pairing.load, self.size("duration_ms=8000", "duration_ms=1500"));
        for pair in 0..self.pairs() {
            for place in 0..turns.len() {
                // Each is first once in a while, so that a machine that slows down slows all of them.
                let at = (place + pair) % turns.len();
                let (kind, flag) = turns[at];
                let flags: Vec<&str> =
                    pairing.flags.iter().copied().chain([flag].into_iter().filter(|flag| !flag.is_empty())).collect();
                let report = self
                    .run_fresh(kind, &flags, &full)
                    .wrap_err_with(|| format!("{} on {} {flag}", pairing.what, kind.name()))?;
                reports[at].push(report);
            }
        }
        let mut figures = Vec::new();
        for (shards, ours) in SHARDS.into_iter().zip(&reports[1..]) {
            let what = format!("{}, {}", pairing.what, shards_in_words(shards));
            for figure in pairing.figures {
                figures.push(ratio_figure(&what, *figure, ours, &reports[0])?);
            }
        }
        Ok(figures)
    }

    /// One load on a broker that starts empty.
    pub(super) fn run_fresh(&self, kind: Kind, flags: &[&str], load: &str) -> Result<Value> {
        let data = self.folder(&format!("{}-data", kind.name()))?;
        let broker = Broker::start(self, kind, &data, flags)?;
        let report = self.load(&broker, load)?;
        broker.stop()?;
        Ok(report)
    }
}

/// The number at `pointer` in a report.
pub(super) fn number(report: &Value, pointer: &str) -> Result<f64> {
    report
        .pointer(pointer)
        .and_then(Value::as_f64)
        .ok_or_else(|| miette::miette!("the report has no number at {pointer}"))
}

fn ratio_figure(what: &str, figure: (&str, &str, Better, f64), ours: &[Value], theirs: &[Value]) -> Result<Figure> {
    let (pointer, unit, better, bar) = figure;
    let read = |reports: &[Value]| reports.iter().map(|report| number(report, pointer)).collect::<Result<Vec<f64>>>();
    let (ours, theirs) = (read(ours)?, read(theirs)?);
    let ratios: Vec<f64> = ours
        .iter()
        .zip(&theirs)
        .map(|(ours, theirs)| match better {
            Better::Higher => ours / theirs,
            Better::Lower => theirs / ours,
        })
        .collect();
    let ratio = median(&ratios);
    Ok(Figure {
        what: format!("{what}, {unit}"),
        value: format!("{ratio:.2}x (ours {:.0}, nsqd {:.0})", median(&ours), median(&theirs)),
        spread: format!("{} over {} pairs", range(&ratios), ratios.len()),
        passes: ratio >= bar,
        runs: json!({ "ours": ours, "nsqd": theirs, "ratios": ratios, "bar": bar }),
    })
}

/// The middle one; the mean of the two middle ones. NaN of none, which passes no bar.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// From the least to the greatest.
pub(super) fn range(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{least:.2} to {greatest:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_says_how_much_better_ours_is() {
        let reports = |values: [f64; 3]| values.map(|value| json!({ "x": value }));
        let (ours, theirs) = (reports([10.0, 20.0, 90.0]), reports([5.0, 5.0, 5.0]));
        let higher = ratio_figure("a", ("/x", "messages", Better::Higher, 4.0), &ours, &theirs).unwrap();
        assert!(higher.passes && higher.value.starts_with("4.00x"), "the median, not the mean: {}", higher.value);
        let lower = ratio_figure("a", ("/x", "us", Better::Lower, 0.5), &ours, &theirs).unwrap();
        assert!(!lower.passes && lower.value.starts_with("0.25x"), "{}", lower.value);
        assert!(ratio_figure("a", ("/y", "us", Better::Lower, 0.5), &ours, &theirs).is_err());
    }

    #[test]
    fn no_values_have_no_median() {
        assert!(median(&[]).is_nan());
        assert!((median(&[1.0, 4.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}

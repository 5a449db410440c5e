//! One core of the proxy under more than it can do: who is answered, how soon, and how much of the core is thrown away.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::proxy::{Client, Costs, Mode, Report, Row, Scenario, Supply, play};
use crate::statistics::float;
use crate::table::{Table, number};

/// A quick run measures at most this long.
const QUICK_MS: u64 = 500;

/// Settings of the kind `proxy`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proxy {
    /// Modes of the limiter; each case runs in each.
    #[serde(default = "restrict")]
    pub modes: Vec<Mode>,
    /// Time before the measurement begins.
    pub warmup_ms: u64,
    /// Time that is measured.
    pub measured_ms: u64,
    /// Time-out of clients.
    pub timeout_ms: u64,
    /// What work costs.
    #[serde(default)]
    pub costs: Costs,
    /// Cases, run one after the other.
    pub case: Vec<Case>,
    /// Claims, checked after the runs.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// Clients, and the core that they ask.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What claims call it.
    pub name: String,
    /// How much of its processor the core gets.
    #[serde(default)]
    pub supply: Supply,
    /// The clients that send requests.
    pub clients: Vec<Client>,
}

/// A claim: it must hold in every case and for every tenant that it names.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// The case that the claim is about; all if absent.
    pub case: Option<String>,
    /// The limiter's mode.
    #[serde(default)]
    pub mode: Mode,
    /// The clients that the claim is about; all if absent.
    pub client: Option<String>,
    /// The number that is compared.
    pub what: Metric,
    /// Its lower bound.
    pub at_least: Option<f64>,
    /// Its upper bound.
    pub at_most: Option<f64>,
}

/// A single number of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The part of a tenant's requests that were answered in time.
    Answered,
    /// The part that was refused.
    Refused,
    /// The 99th percentile of its response times, in milliseconds.
    P99Ms,
    /// Its answers per second.
    GoodputPerS,
    /// The part of the core's time that became answers in time.
    Useful,
    /// Requests refused to tenants that ask for less than their equal part.
    WronglyRefused,
    /// Times at which shares and what is nobody's were not the capacity.
    BooksWrong,
}

impl Metric {
    const fn title(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::P99Ms => "p99 in ms",
            Self::GoodputPerS => "answers per second",
            Self::Useful => "useful part of the core",
            Self::WronglyRefused => "refused within shares",
            Self::BooksWrong => "books that do not add up",
        }
    }

    const fn is_of_a_tenant(self) -> bool {
        matches!(self, Self::Answered | Self::Refused | Self::P99Ms | Self::GoodputPerS)
    }

    fn of_row(self, row: &Row) -> f64 {
        let part = |count: u64| if row.offered == 0 { 0.0 } else { float(count) / float(row.offered) };
        match self {
            Self::Refused => part(row.refused),
            Self::P99Ms => row.p99_ms,
            Self::GoodputPerS => row.goodput_per_s,
            _ => part(row.answered),
        }
    }

    /// Each number of a run that is meant.
    fn of(self, report: &Report, client: Option<&str>) -> Vec<f64> {
        match self {
            Self::Useful => vec![report.useful],
            Self::WronglyRefused => vec![float(report.wrongly_refused())],
            Self::BooksWrong => vec![float(report.books_wrong)],
            _ => {
                let concerned = report.tenants.iter().filter(|row| client.is_none_or(|client| row.client == client));
                concerned.map(|row| self.of_row(row)).collect()
            }
        }
    }
}

/// One run.
struct Run<'a> {
    case: &'a Case,
    mode: Mode,
    report: Report,
}

fn restrict() -> Vec<Mode> {
    vec![Mode::Restrict]
}

const fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Stats => "stats",
        Mode::Restrict => "restrict",
    }
}

impl Proxy {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless(!self.modes.is_empty(), "proxy.modes", "nothing to compare")?;
        Complaint::unless(!self.case.is_empty(), "proxy", "nobody asks: write tables [[proxy.case]]")?;
        for (index, case) in self.case.iter().enumerate() {
            let checked = self.scenario(case, Mode::Restrict, 0, Size::Full).check();
            let message = checked.as_ref().err().map(ToString::to_string).unwrap_or_default();
            Complaint::unless(checked.is_ok(), &format!("proxy.case[{index}]"), message)?;
        }
        for (index, bar) in self.claim.iter().enumerate() {
            let key = format!("proxy.claim[{index}]");
            let mut cases = self.case.iter().filter(|case| bar.case.as_ref().is_none_or(|name| case.name == *name));
            let has_client = |case: &Case| {
                bar.client.as_ref().is_none_or(|name| case.clients.iter().any(|client| client.name == *name))
            };
            Complaint::unless(cases.any(has_client), &key, "no case has this name and this client")?;
            Complaint::unless(self.modes.contains(&bar.mode), &key, format!("{} is not run", name_of(bar.mode)))?;
            Complaint::unless(bar.at_least.is_some() || bar.at_most.is_some(), &key, "at_least or at_most is missing")?;
            let is_of_all = bar.client.is_none() || bar.what.is_of_a_tenant();
            Complaint::unless(is_of_all, &key, format!("{} is not a client's", bar.what.title()))?;
        }
        Ok(())
    }

    fn scenario(&self, case: &Case, mode: Mode, seed: u64, size: Size) -> Scenario {
        let measured_ms = if size == Size::Quick { self.measured_ms.min(QUICK_MS) } else { self.measured_ms };
        Scenario {
            seed,
            mode,
            warmup_ms: self.warmup_ms,
            measured_ms,
            timeout_ms: self.timeout_ms,
            supply: case.supply,
            costs: self.costs,
            clients: case.clients.clone(),
        }
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let mut runs = Vec::new();
        for case in &self.case {
            for &mode in &self.modes {
                let report = play(&self.scenario(case, mode, experiment.seed, size))?;
                runs.push(Run { case, mode, report });
            }
        }
        let rows = runs.iter().map(|run| json!({ "case": run.case.name, "mode": run.mode, "report": run.report }));
        Ok(Results {
            claims: self.claim.iter().map(|bar| judge(bar, &runs)).collect(),
            numbers: json!({ "runs": rows.collect::<Vec<_>>() }),
            table: table(&runs),
            ..Results::default()
        })
    }
}

fn judge(bar: &Bar, runs: &[Run<'_>]) -> Claim {
    let concerned =
        runs.iter().filter(|run| run.mode == bar.mode && bar.case.as_ref().is_none_or(|name| run.case.name == *name));
    let values: Vec<f64> = concerned.flat_map(|run| bar.what.of(&run.report, bar.client.as_deref())).collect();
    let held = |value: &f64| {
        bar.at_least.is_none_or(|bound| *value >= bound) && bar.at_most.is_none_or(|bound| *value <= bound)
    };
    let bounds = [("at least", bar.at_least), ("at most", bar.at_most)];
    let bounds: Vec<String> =
        bounds.iter().filter_map(|(word, bound)| bound.map(|bound| format!("{word} {}", number(bound)))).collect();
    let place = [bar.case.as_deref(), bar.client.as_deref()].into_iter().flatten().map(|word| format!(", {word}"));
    let seen: Vec<String> = values.iter().map(|value| number(*value)).collect();
    Claim {
        claim: format!(
            "{}{}: {} {}",
            name_of(bar.mode),
            place.collect::<String>(),
            bar.what.title(),
            bounds.join(" and ")
        ),
        held: !values.is_empty() && values.iter().all(held),
        seen: seen.join(", "),
    }
}

/// A line for each kind of clients; of several like tenants the one that fares worst.
fn table(runs: &[Run<'_>]) -> Table {
    let header = [
        "case",
        "mode",
        "client",
        "asked",
        "answered",
        "refused",
        "answers/s",
        "p99 ms",
        "core useful",
        "idle",
        "refusing",
        "looks",
        "shares",
    ];
    let mut table = Table::new(header);
    for run in runs {
        for client in &run.case.clients {
            let all = |what: Metric| what.of(&run.report, Some(&client.name));
            let least = |what| all(what).into_iter().fold(f64::INFINITY, f64::min);
            let most = |what| all(what).into_iter().fold(0.0, f64::max);
            let asked = run.report.tenants.iter().filter(|row| row.client == client.name).map(|row| row.offered);
            let percent = |part: f64| format!("{:.1}%", 100.0 * part);
            table.push([
                run.case.name.clone(),
                name_of(run.mode).to_owned(),
                if client.times > 1 { format!("{} x {}", client.name, client.times) } else { client.name.clone() },
                asked.sum::<u64>().to_string(),
                percent(least(Metric::Answered)),
                percent(most(Metric::Refused)),
                number(all(Metric::GoodputPerS).iter().sum()),
                number(most(Metric::P99Ms)),
                percent(run.report.useful),
                percent(run.report.idle),
                percent(run.report.refusing),
                percent(run.report.looking),
                percent(run.report.sharing),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn text(name: &str) -> String {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab").join(name)).unwrap()
    }

    #[test]
    fn a_spike_shows_what_it_should_on_a_whole_processor_and_on_half_of_one() {
        let experiment = crate::experiment::parse(Path::new("spike.toml"), &text("proxy_spike.toml")).unwrap();
        let outcome = experiment.run("spike", Size::Quick).unwrap();
        assert!(outcome.holds(), "{outcome}");
    }

    #[test]
    fn each_file_can_be_run_and_a_mistake_is_named_with_its_place() {
        for name in ["proxy_cheap.toml", "proxy_names.toml"] {
            crate::experiment::parse(Path::new(name), &text(name)).unwrap();
        }
        let text = text("proxy_spike.toml");
        let wrong = |from: &str, to: &str| {
            let text = text.replacen(from, to, 1);
            crate::experiment::parse(Path::new("a.toml"), &text).unwrap_err().to_string()
        };
        assert!(wrong("rate = 30", "rate = 0").contains("proxy.case[0]"));
        assert!(wrong("case = \"whole, 1000\"", "case = \"none\"").contains("proxy.claim[1]"));
        assert!(wrong("period_us = 100000", "period_us = 1").contains("supply"));
    }
}

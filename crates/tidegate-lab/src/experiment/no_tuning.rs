//! One configuration for every service and every host, beside the best tuning that Breakwater has for each.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_rpc::machine::breakwater;

use super::outcome::Results;
use super::rpc::{Task, measure_all};
use super::rpc_show::Measured;
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::rpc::{Behind, Group, Jitter, Pauses, Scenario, Scheme, Service, ServiceLaw};
use crate::table::{Table, number};

/// What a cell must reach, if any of Breakwater's tunings does, as a share of the capacity.
const GOODPUT: f64 = 0.95;
/// A quick run plays only every so many-th cell, and so much less of it.
const QUICK_CELLS: usize = 7;
const QUICK: u32 = 10;

/// Settings of the kind `no_tuning`: a cell for each combination of host, mean, law and number of cores.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoTuning {
    /// Mean service times in microseconds.
    pub means_us: Vec<u32>,
    /// Their shapes.
    pub laws: Vec<ServiceLaw>,
    /// Numbers of cores.
    pub cores: Vec<u32>,
    /// Clients of each cell.
    pub clients: u32,
    /// What they offer, as a multiple of the capacity.
    pub load: f64,
    /// Each cell is measured for as long as so many calls take to be served,
    pub calls: u32,
    /// and at least for so many microseconds; after a fourth of that.
    pub least_us: u32,
    /// Breakwater's tunings: target delays in unloaded times. Calls are dropped at twice that. Its control period and
    /// its calls' expiry are half of the unloaded time, and at least its authors' 10 us.
    pub targets: Vec<f64>,
    /// The hosts.
    pub host: Vec<Host>,
}

/// What is rough about a host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// What it is called.
    pub name: String,
    /// What disturbs ways and handlers.
    #[serde(default)]
    pub jitter: Option<Jitter>,
    /// What stops it now and then.
    #[serde(default)]
    pub pauses: Option<Pauses>,
    /// What handlers wait for before they compute, in means of their service: exponential, and without a bound.
    #[serde(default)]
    pub waits: Option<f64>,
}

/// One combination.
struct Cell<'a> {
    host: &'a Host,
    name: String,
    scenario: Scenario,
}

/// What became of a cell.
struct Found<'a> {
    host: &'a str,
    name: String,
    goodput: f64,
    p99: f64,
    /// The best of Breakwater's goodputs with a p99 within the SLO, and the target that has it; zeros if there is none.
    best: (f64, f64),
}

impl NoTuning {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let any = |right: bool, key: &str| {
            Complaint::unless(right, &format!("no_tuning.{key}"), "a list of at least one, each above zero")
        };
        any(!self.means_us.is_empty() && self.means_us.iter().all(|mean| *mean > 0), "means_us")?;
        any(!self.laws.is_empty(), "laws")?;
        any(!self.cores.is_empty(), "cores")?;
        any(!self.targets.is_empty() && self.targets.iter().all(|target| *target > 0.0), "targets")?;
        any(!self.host.is_empty(), "host")?;
        Complaint::unless(self.calls > 0, "no_tuning.calls", "at least 1")?;
        for (index, host) in self.host.iter().enumerate() {
            let waits = host.waits.is_none_or(|waits| waits > 0.0 && waits <= 1e6);
            Complaint::unless(waits, &format!("no_tuning.host[{index}].waits"), "above 0 and at most 1e6")?;
        }
        for cell in self.cells(0, Size::Full) {
            let sane = cell.scenario.check();
            Complaint::unless(
                sane.is_ok(),
                "no_tuning",
                sane.err().map(|error| error.to_string()).unwrap_or_default(),
            )?;
        }
        Ok(())
    }

    fn cells(&self, seed: u64, size: Size) -> Vec<Cell<'_>> {
        let mut cells = Vec::new();
        for host in &self.host {
            for &mean_us in &self.means_us {
                for &law in &self.laws {
                    cells.extend(self.cores.iter().map(|&cores| self.cell(host, mean_us, law, cores, seed)));
                }
            }
        }
        if size == Size::Quick {
            cells = cells.into_iter().step_by(QUICK_CELLS).collect();
            for Cell { scenario, .. } in &mut cells {
                (scenario.warm_up, scenario.duration) = (scenario.warm_up / QUICK, scenario.duration / QUICK);
            }
        }
        cells
    }

    fn cell<'a>(&self, host: &'a Host, mean_us: u32, law: ServiceLaw, cores: u32, seed: u64) -> Cell<'a> {
        let mean = Duration::from_micros(mean_us.into());
        let wait = |waits: f64| Service { law: ServiceLaw::Exponential, mean: mean.mul_f64(waits) };
        let mut scenario = Scenario {
            cores,
            service: Service { law, mean },
            behind: host.waits.map(|waits| Behind { service: wait(waits), places: None }),
            jitter: host.jitter,
            pauses: host.pauses,
            groups: vec![Group::new(self.clients, self.load)],
            seed,
            ..Scenario::default()
        };
        let served = Duration::from_secs_f64(f64::from(self.calls) / scenario.capacity());
        scenario.duration = served.max(Duration::from_micros(self.least_us.into()));
        scenario.warm_up = scenario.duration / 4;
        let law = match law {
            ServiceLaw::Constant => "constant",
            ServiceLaw::Exponential => "exponential",
            ServiceLaw::Bimodal => "bimodal",
        };
        Cell { host, name: format!("{mean_us} us {law} on {cores}"), scenario }
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let cells = self.cells(experiment.seed, size);
        let mut tasks = Vec::new();
        for (case, cell) in cells.iter().enumerate() {
            let task = |name: String, scheme| Task { case, name, scheme, scenario: cell.scenario.clone() };
            tasks.push(task("tidegate".to_owned(), Scheme::default()));
            for target in &self.targets {
                tasks.push(task(target.to_string(), breakwater(&cell.scenario, *target)));
            }
        }
        let runs = measure_all(tasks)?;
        let found: Vec<Found> = cells.iter().zip(runs.chunks(1 + self.targets.len())).map(found).collect();
        let numbers = found.iter().map(|found| {
            let Found { host, name, goodput, p99, best } = found;
            json!({ "host": host, "cell": name, "goodput": goodput, "p99_of_slo": p99,
                    "breakwater": { "goodput": best.0, "target": best.1 } })
        });
        Ok(Results {
            claims: self.host.iter().flat_map(|host| claims(&host.name, &found)).collect(),
            numbers: json!({ "cells": numbers.collect::<Vec<_>>() }),
            table: table(&found),
            ..Results::default()
        })
    }
}

/// Breakwater with a target of so many unloaded times.
fn breakwater(scenario: &Scenario, target: f64) -> Scheme {
    let unloaded = scenario.slo() / 10;
    let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let authors = breakwater::Config::with_target(us(unloaded.mul_f64(target)).max(1));
    let half = us(unloaded / 2);
    Scheme::Breakwater(breakwater::Config {
        control_period_us: half.max(authors.control_period_us),
        expiry_us: half.max(authors.expiry_us),
        ..authors
    })
}

fn found<'a>((cell, runs): (&Cell<'a>, &[Measured])) -> Found<'a> {
    let p99 = |run: &Measured| run.report.response.p99_us / run.report.slo_us;
    let (own, others) = runs.split_first().expect("each cell is run at least once");
    let of = |run: &Measured| (run.report.goodput_of_possible, run.scheme.parse().unwrap_or(0.0));
    let within = others.iter().filter(|run| p99(run) <= 1.0).map(of);
    let best = within.fold((0.0, 0.0), |best: (f64, f64), one| if one.0 > best.0 { one } else { best });
    let goodput = own.report.goodput_of_possible;
    Found { host: &cell.host.name, name: cell.name.clone(), goodput, p99: p99(own), best }
}

/// The bar on one host, and the cells that miss it.
fn claims(host: &str, found: &[Found]) -> [Claim; 2] {
    let here: Vec<&Found> = found.iter().filter(|found| found.host == host).collect();
    let claim = |claim: String, misses: Vec<String>| Claim {
        claim,
        held: misses.is_empty(),
        seen: match misses.len() {
            0 => format!("in all of {}", here.len()),
            count => format!("not in {count} of {}: {}", here.len(), misses.join(", ")),
        },
    };
    let low = |found: &&&Found| found.best.0 >= GOODPUT && found.goodput < GOODPUT;
    let goodput = here
        .iter()
        .filter(low)
        .map(|found| format!("{} {} (Breakwater {})", found.name, number(found.goodput), number(found.best.0)));
    let late = here.iter().filter(|found| found.p99 > 1.0);
    let late = late.map(|found| format!("{} {}", found.name, number(found.p99)));
    [
        claim(
            format!("{host}: goodput at least {GOODPUT} of the capacity where Breakwater's best tuning has that"),
            goodput.collect(),
        ),
        claim(format!("{host}: p99 at most the SLO"), late.collect()),
    ]
}

fn table(found: &[Found]) -> Table {
    let mut table = Table::new(["host", "service", "goodput", "p99 of SLO", "Breakwater's best", "its target"]);
    for Found { host, name, goodput, p99, best } in found {
        let best = if best.0 > 0.0 { [number(best.0), number(best.1)] } else { ["-".to_owned(), "-".to_owned()] };
        let [theirs, target] = best;
        table.push([(*host).to_owned(), name.clone(), number(*goodput), number(*p99), theirs, target]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_host_and_service_has_a_cell_and_breakwater_its_best_tuning() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/rpc_hosts.toml");
        let experiment = crate::experiment::read(&file).unwrap();
        let hosts = experiment.no_tuning.as_ref().unwrap();
        assert_eq!(hosts.cells(1, Size::Full).len(), 5 * 72);
        let small = NoTuning { means_us: vec![100], laws: vec![ServiceLaw::Constant], cores: vec![4], ..hosts.clone() };
        let small = NoTuning { calls: 4_000, least_us: 0, host: hosts.host[..1].to_vec(), ..small };
        let results = small.run(&experiment, Size::Full).unwrap();
        let cell = &results.numbers["cells"][0];
        assert!(cell["goodput"].as_f64().unwrap() > 0.9, "{cell}");
        assert!(cell["breakwater"]["goodput"].as_f64().unwrap() > 0.5, "{cell}");
        assert_eq!((results.table.rows.len(), results.claims.len()), (1, 2));
    }

    #[test]
    fn a_miss_is_a_miss_only_where_breakwater_reaches_it() {
        let one = |goodput, p99, best| Found { host: "h", name: "n".to_owned(), goodput, p99, best: (best, 1.0) };
        let held = |found: Found| claims("h", &[found]).map(|claim| claim.held);
        assert_eq!(held(one(0.94, 0.9, 0.94)), [true, true]);
        assert_eq!(held(one(0.94, 1.1, 0.96)), [false, false]);
        assert_eq!(held(one(0.96, 1.0, 0.99)), [true, true]);
    }
}

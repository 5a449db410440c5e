//! Services that call each other, one of them short: how much work is thrown away.

use core::num::NonZero;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_rpc::config::Scheme;

use super::outcome::Results;
use super::rpc::Choice;
use super::{Claim, Complaint, Experiment, RunError, Size};
use crate::graph::tally::Figures;
use crate::graph::{Graph, Tree};
use crate::rpc::ScenarioError;
use crate::table::{Table, number};

/// A quick run takes this much less virtual time.
const QUICK: u32 = 10;

/// Settings of the kind `rpc_graph`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpcGraph {
    /// What is compared.
    pub schemes: Vec<Choice>,
    /// Names of the schemes in which services are not told the levels of the services that they call.
    #[serde(default)]
    pub alone: Vec<String>,
    /// How often each load is run, each time with another seed.
    pub seeds: u32,
    /// Calls of the root, as multiples of what the short service can do.
    pub loads: Vec<f64>,
    /// The services.
    pub tree: Tree,
    /// What should be seen.
    #[serde(default)]
    pub claim: Vec<Bar>,
}

/// A claim about a scheme: it must hold for every load and seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Name of the scheme.
    pub scheme: String,
    /// The most of all work that may be thrown away.
    pub wasted_at_most: f64,
    /// The least share of what the short service can do that must be answered in time.
    pub goodput_at_least: f64,
}

/// One run.
struct Run {
    name: String,
    tree: Tree,
    scheme: Scheme,
    load: f64,
    seed: u64,
}

impl RpcGraph {
    pub(super) fn check(&self) -> Result<(), Complaint> {
        Complaint::unless((1..=100).contains(&self.seeds), "rpc_graph.seeds", "a number from 1 to 100")?;
        Complaint::unless(!self.schemes.is_empty(), "rpc_graph.schemes", "nothing to compare: name a scheme")?;
        for choice in &self.schemes {
            let message = choice.scheme().err().map(|error| format!("{}: {error}", choice.name()));
            Complaint::unless(message.is_none(), "rpc_graph.schemes", message.unwrap_or_default())?;
        }
        let sane = |load: &f64| *load > 0.0 && *load <= 1_000.0;
        let loads = !self.loads.is_empty() && self.loads.iter().all(sane);
        Complaint::unless(loads, "rpc_graph.loads", "a list of at least one, each above 0 and at most 1,000")?;
        if let Some((key, message)) = self.tree.mistake() {
            return Complaint::unless(false, &format!("rpc_graph.tree.{key}"), message);
        }
        for name in &self.alone {
            let known = self.schemes.iter().any(|choice| choice.name() == name);
            Complaint::unless(known, "rpc_graph.alone", format!("no scheme is called {name}"))?;
        }
        for (index, bar) in self.claim.iter().enumerate() {
            let known = self.schemes.iter().any(|choice| choice.name() == bar.scheme);
            let message = format!("no scheme is called {}", bar.scheme);
            Complaint::unless(known, &format!("rpc_graph.claim[{index}]"), message)?;
        }
        Ok(())
    }

    pub(super) fn run(&self, experiment: &Experiment, size: Size) -> Result<Results, RunError> {
        let mut tree = self.tree.clone();
        let mut seeds = self.seeds;
        if size == Size::Quick {
            (tree.warm_up, tree.duration, seeds) = (tree.warm_up / QUICK, tree.duration / QUICK, 1);
        }
        let mut runs = Vec::new();
        for &load in &self.loads {
            for choice in &self.schemes {
                let scheme = choice.scheme().map_err(|_| ScenarioError::Invalid("a scheme makes no sense"))?;
                let name = choice.name();
                let coupled = tree.coupled && !self.alone.iter().any(|alone| alone == name);
                let tree = Tree { coupled, ..tree.clone() };
                // Every scheme meets the same arrivals.
                let seeds = (0..seeds).map(|seed| experiment.seed.wrapping_add(seed.into()));
                runs.extend(seeds.map(|seed| Run {
                    name: name.to_owned(),
                    tree: tree.clone(),
                    scheme: scheme.clone(),
                    load,
                    seed,
                }));
            }
        }
        let runs = run_all(runs)?;
        let row = |(run, figures): &(Run, Figures)| json!({ "scheme": run.name, "load": run.load, "seed": run.seed, "figures": figures });
        Ok(Results {
            claims: self.claim.iter().flat_map(|bar| judge(bar, &runs)).collect(),
            numbers: json!({
                "services": tree.services(),
                "short_per_s": tree.capacity_per_s(),
                "others_per_s": tree.others_per_s(),
                "runs": runs.iter().map(row).collect::<Vec<_>>(),
            }),
            table: table(&runs),
            ..Results::default()
        })
    }
}

/// Runs all, as many at a time as there are cores. The order of the results is that of the runs.
fn run_all(runs: Vec<Run>) -> Result<Vec<(Run, Figures)>, RunError> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(runs.len().max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(index) else { return done };
            let graph = Graph::new(&run.tree, &run.scheme, run.load, run.seed);
            done.push((index, graph.map(|graph| graph.run().figures(&run.tree))));
        }
    };
    let mut found = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a run does not panic")).collect::<Vec<_>>()
    });
    found.sort_by_key(|(index, _)| *index);
    runs.into_iter().zip(found).map(|(run, (_, figures))| Ok((run, figures?))).collect()
}

fn judge(bar: &Bar, runs: &[(Run, Figures)]) -> [Claim; 2] {
    let of = |what: fn(&Figures) -> f64| {
        let figures = runs.iter().filter(|(run, _)| run.name == bar.scheme).map(|(_, figures)| what(figures));
        figures.collect::<Vec<f64>>()
    };
    let most = of(|figures| figures.wasted).into_iter().fold(0.0, f64::max);
    let least = of(|figures| figures.goodput).into_iter().fold(f64::INFINITY, f64::min);
    [
        Claim {
            claim: format!("{}: work thrown away, at most {} of all", bar.scheme, number(bar.wasted_at_most)),
            held: most <= bar.wasted_at_most,
            seen: format!("at most {}", number(most)),
        },
        Claim {
            claim: format!("{}: goodput, at least {} of the short service", bar.scheme, number(bar.goodput_at_least)),
            held: least >= bar.goodput_at_least,
            seen: format!("at least {}", number(least)),
        },
    ]
}

fn table(runs: &[(Run, Figures)]) -> Table {
    let mut table = Table::new(["scheme", "load", "seed", "goodput", "thrown away", "p99 us", "refused at no cost"]);
    for (run, figures) in runs {
        let Figures { goodput, wasted, p99_us, refused_at_once, .. } = *figures;
        let [goodput, wasted, p99, at_once] = [goodput, wasted, p99_us, refused_at_once].map(number);
        table.push([run.name.clone(), number(run.load), run.seed.to_string(), goodput, wasted, p99, at_once]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_file_can_be_read_and_its_mistakes_are_named() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/rpc_graph.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let graph = crate::experiment::parse(&file, &text).unwrap().rpc_graph.unwrap();
        assert_eq!((graph.tree.services(), graph.tree.capacity_per_s()), (31, 4_000.0));
        let with = |from: &str, to: &str| {
            let text = text.replacen(from, to, 1);
            crate::experiment::parse(&file, &text).unwrap_err().to_string()
        };
        assert!(with("\"tidegate\"", "\"nobody\"").contains("rpc_graph.schemes: nobody: no scheme"));
        assert!(with("depth = 5", "depth = 50").contains("rpc_graph.tree.depth: at most 1,000 services"));
        assert!(with("[1.0,", "[0.0,").contains("rpc_graph.loads: a list"));
    }
}

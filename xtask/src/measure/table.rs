//! The table: what was measured, where, and whether it is enough.

use miette::Result;
use serde_json::{Value, json};

use crate::peers;
use crate::places::Places;

/// One figure of a row.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// What it is a figure of.
    pub(super) what: String,
    /// The figure with its unit and, where there is one, nsqd's beside it.
    pub(super) value: String,
    /// The range over all runs.
    pub(super) spread: String,
    /// It reaches the bar.
    pub(super) passes: bool,
    /// All runs, for the file.
    pub(super) runs: Value,
}

/// One row of the table.
#[derive(Debug)]
pub(super) struct Entry {
    /// The row's name.
    pub(super) name: &'static str,
    /// The bar, in words.
    pub(super) bar: &'static str,
    /// Its figures, or why there are none.
    pub(super) figures: std::result::Result<Vec<Figure>, String>,
    /// How long measuring took.
    pub(super) seconds: f64,
}

impl Entry {
    /// All figures reach the bar, and there is one.
    pub(super) fn passes(&self) -> bool {
        self.figures.as_ref().is_ok_and(|figures| !figures.is_empty() && figures.iter().all(|figure| figure.passes))
    }

    /// Prints the row.
    pub(super) fn print(&self) {
        println!("{} {} (bar: {})", verdict(self.passes()), self.name, self.bar);
        match &self.figures {
            Ok(figures) => {
                for figure in figures {
                    println!(
                        "     {} {:<44} {:<44} {}",
                        verdict(figure.passes),
                        figure.what,
                        figure.value,
                        figure.spread
                    );
                }
            }
            Err(reason) => println!("     {reason}"),
        }
    }

    fn json(&self) -> Value {
        let figures: Vec<Value> = self
            .figures
            .iter()
            .flatten()
            .map(
                |f| json!({ "what": f.what, "value": f.value, "spread": f.spread, "passes": f.passes, "runs": f.runs }),
            )
            .collect();
        let reason = self.figures.as_ref().err();
        json!({ "name": self.name, "bar": self.bar, "passes": self.passes(), "figures": figures, "error": reason, "seconds": self.seconds })
    }
}

fn verdict(passes: bool) -> &'static str {
    if passes { "pass" } else { "MISS" }
}

/// Where the figures come from.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// The commit, with a mark when the tree has changes.
    pub(super) commit: String,
    cpu: String,
    cpus: usize,
    kernel: String,
}

impl Machine {
    /// Describes this one.
    pub(super) fn describe(places: &Places) -> Result<Self> {
        let commit = peers::git(places, &["describe", "--always", "--dirty", "--abbrev=10"])?;
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            commit,
            cpu: model.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cpus,
            kernel: kernel.trim().to_owned(),
        })
    }

    fn line(&self) -> String {
        format!(
            "commit {}, {} x {}, Linux {}; servers on CPU 0, load on CPU 1",
            self.commit, self.cpus, self.cpu, self.kernel
        )
    }
}

/// Prints everything once more, together.
pub(super) fn print(machine: &Machine, entries: &[Entry], quick: bool) {
    println!("\n{}", machine.line());
    if quick {
        println!("quick: these figures show that the rows work and nothing else");
    }
    entries.iter().for_each(Entry::print);
}

/// The same for programs.
pub(super) fn json(machine: &Machine, entries: &[Entry], quick: bool) -> Value {
    let rows: Vec<Value> = entries.iter().map(Entry::json).collect();
    json!({ "machine": machine.line(), "quick": quick, "rows": rows })
}

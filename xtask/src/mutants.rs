//! `cargo xtask mutants PATH`: does a test fail when the code at PATH is changed? Not in CI: it takes hours.
//!
//! cargo-mutants changes one thing at a time and runs the tests of the changed package. From some hundred mutants on, a
//! sample is run: every n-th mutant of the list, over all files, the first of them drawn from the seed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use crate::peers::cargo;
use crate::places::Places;
use crate::rng::Rng;
use crate::{process, steps};

/// The version whose options are used here.
const VERSION: &str = "27.0.0";
/// The sample has at least as many, if there are as many.
const SAMPLE_LEAST: usize = 200;
/// The share of viable mutants that tests must catch.
const CAUGHT_LEAST: f64 = 0.9;
/// Compiling cargo-mutants takes minutes; running its sample takes hours.
const INSTALL_LIMIT: Duration = Duration::from_mins(30);
const RUN_LIMIT: Duration = Duration::from_hours(12);

/// Reads `PATH [--seed N]`, runs, and prints what survived.
pub(crate) fn run(places: &Places, words: &[&str]) -> Result<()> {
    let (path, seed) = match words {
        [path] => (*path, 1),
        [path, "--seed", seed] => {
            (*path, seed.parse().map_err(|_| miette::miette!("--seed needs a whole number, not {seed}"))?)
        }
        _ => miette::bail!("mutants needs one PATH in crates/, and takes --seed N"),
    };
    let scope = Scope::of(places, path)?;
    let program = ensure(places)?;
    let list = process::output(scope.command(places, &program).args(["--list", "--json"]))?;
    let list: Value = serde_json::from_str(&list).into_diagnostic().wrap_err("the list of mutants")?;
    let total = list.as_array().map_or(0, Vec::len);
    if total == 0 {
        miette::bail!("there is nothing to change in {path}");
    }
    let shards = shards(total);
    let shard = Rng::new(seed).index(shards);
    println!("{total} mutants in {path}; running {shard} of {shards} samples (seed {seed})");
    let folder = places.target.join("mutants");
    let copies = folder.join("copies");
    std::fs::create_dir_all(&copies).into_diagnostic()?;
    let mut command = scope.command(places, &program);
    command.args(["--sharding", "round-robin", "--shard", &format!("{shard}/{shards}"), "--output"]).arg(&folder);
    // The copies of the tree that it changes are large.
    command.env("TMPDIR", &copies);
    let name = format!("mutants {path}");
    let done = steps::run(places, &name, &mut command, RUN_LIMIT, |line| Some(line.to_owned()))?;
    let result = Summary::read(&folder.join("mutants.out"))
        .wrap_err_with(|| format!("cargo-mutants {}\n{}", done.ending(), done.tail))?;
    result.print();
    let caught = result.share_caught();
    if caught >= CAUGHT_LEAST {
        return Ok(());
    }
    miette::bail!("{:.1} % of the viable mutants are caught; {:.0} % are needed", caught * 100.0, CAUGHT_LEAST * 100.0)
}

/// What is changed, and what is tested.
#[derive(Debug, PartialEq, Eq)]
struct Scope {
    package: String,
    /// A glob of cargo-mutants.
    files: String,
    /// The machine of a component is tested without the outside world, which takes far less time to build.
    is_pure: bool,
}

impl Scope {
    fn of(places: &Places, path: &str) -> Result<Self> {
        let path = path.trim_end_matches('/');
        let full = places.root.join(path);
        let mut parts = Path::new(path).iter().map(|part| part.to_string_lossy());
        let (Some("crates"), Some(package)) = (parts.next().as_deref(), parts.next()) else {
            miette::bail!("{path} is not in a crate; give a path such as crates/tidegate-core/src/limit");
        };
        if !full.exists() {
            miette::bail!("there is no {}", full.display());
        }
        let files = if full.is_dir() { format!("{path}/**/*.rs") } else { path.to_owned() };
        let is_pure = parts.any(|part| part == "machine" || part == "machine.rs");
        Ok(Self { package: package.into_owned(), files, is_pure })
    }

    fn command(&self, places: &Places, program: &Path) -> Command {
        let mut command = cargo(places);
        // As a subcommand it would have to be in PATH.
        let cargo = command.get_program().to_owned();
        command = Command::new(program);
        command.current_dir(&places.root).env("CARGO", cargo).env("CARGO_TERM_COLOR", "never");
        command.args(["mutants", "--no-shuffle", "--package", &self.package, "--file", &self.files]);
        if self.is_pure {
            command.arg("--no-default-features");
        }
        command
    }
}

/// As many samples as there can be of which each has [`SAMPLE_LEAST`].
fn shards(total: usize) -> usize {
    (total / SAMPLE_LEAST).max(1)
}

/// Where cargo-mutants is; installs it beside the other build products if it is not there.
fn ensure(places: &Places) -> Result<PathBuf> {
    let root = places.target.join("tools");
    let program = root.join("bin/cargo-mutants");
    let is_there = process::output(Command::new(&program).args(["mutants", "--version"]));
    if is_there.is_ok_and(|said| said.contains(VERSION)) {
        return Ok(program);
    }
    println!("installing cargo-mutants {VERSION} into {}", root.display());
    let mut command = cargo(places);
    command.args(["install", "cargo-mutants", "--locked", "--version", VERSION, "--force", "--root"]).arg(&root);
    let done = steps::run(places, "install cargo-mutants", &mut command, INSTALL_LIMIT, steps::quiet)?;
    steps::finish(&command, &done).wrap_err_with(|| {
        format!(
            "cargo-mutants {VERSION} is missing and cannot be installed from crates.io; install it by hand: \
             cargo install cargo-mutants --locked --version {VERSION} --root {}",
            root.display()
        )
    })?;
    Ok(program)
}

/// What became of the mutants.
#[derive(Debug, Default, PartialEq)]
struct Summary {
    caught: u64,
    /// Tests that did not end: that is seen too.
    timed_out: u64,
    missed: u64,
    unviable: u64,
    survivors: Vec<String>,
}

impl Summary {
    fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let file = folder.join(name);
            std::fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| file.display().to_string())
        };
        let outcomes: Value = serde_json::from_str(&read("outcomes.json")?).into_diagnostic()?;
        let survivors = read("missed.txt")?.lines().map(str::to_owned).collect();
        Ok(Self::new(&outcomes, survivors))
    }

    fn new(outcomes: &Value, survivors: Vec<String>) -> Self {
        let count = |key: &str| outcomes[key].as_u64().unwrap_or(0);
        Self {
            caught: count("caught"),
            timed_out: count("timeout"),
            missed: count("missed"),
            unviable: count("unviable"),
            survivors,
        }
    }

    fn share_caught(&self) -> f64 {
        let found = self.caught + self.timed_out;
        #[expect(clippy::cast_precision_loss, reason = "some hundred mutants")]
        let share = found as f64 / (found + self.missed).max(1) as f64;
        share
    }

    fn print(&self) {
        let Self { caught, timed_out, missed, unviable, survivors } = self;
        println!("{caught} caught, {timed_out} timed out, {missed} missed, {unviable} unviable");
        for survivor in survivors {
            println!("survived: {survivor}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_two_hundred_or_everything() {
        for (total, expected) in [(1, 1), (199, 1), (399, 1), (400, 2), (1_999, 9)] {
            assert_eq!(shards(total), expected);
            // Every n-th of the list: the smallest sample has at least the whole part.
            assert!(total < SAMPLE_LEAST || total / shards(total) >= SAMPLE_LEAST);
        }
    }

    #[test]
    fn the_package_and_its_features_follow_from_the_path() {
        let places = Places::find();
        let limit = Scope::of(&places, "crates/tidegate-core/src/limit/").unwrap();
        assert_eq!(limit.package, "tidegate-core");
        assert_eq!((limit.files.as_str(), limit.is_pure), ("crates/tidegate-core/src/limit/**/*.rs", false));
        let queue = Scope::of(&places, "crates/tidegate-broker/src/machine/queue.rs").unwrap();
        assert_eq!((queue.files.as_str(), queue.is_pure), ("crates/tidegate-broker/src/machine/queue.rs", true));
        assert!(Scope::of(&places, "xtask/src").is_err() && Scope::of(&places, "crates/none/src").is_err());
    }

    #[test]
    fn time_outs_are_caught_and_unviable_ones_do_not_count() {
        let outcomes = serde_json::json!({ "caught": 17, "timeout": 1, "missed": 2, "unviable": 80 });
        let summary = Summary::new(&outcomes, vec!["a".to_owned(), "b".to_owned()]);
        assert!((summary.share_caught() - 0.9).abs() < 1e-9);
        assert_eq!(summary.survivors.len(), 2);
    }
}

//! Runs one experiment file: `cargo run --release -p tidegate-lab --example run_experiment lab/fig6a.toml lab/results`.

use std::error::Error;
use std::path::PathBuf;

use tidegate_lab::experiment::{self, Size};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(file), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("which file, and which folder for the results?".into());
    };
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let outcome = experiment::read(&file)?.run(&name, Size::Full)?;
    eprint!("{outcome}");
    outcome.write(&folder)?;
    if outcome.holds() { Ok(()) } else { Err("a claim failed".into()) }
}

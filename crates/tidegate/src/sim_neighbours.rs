//! `tidegate sim neighbours`: a trace of tenants' demands against limiters, in virtual time.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde::Serialize;
use tidegate_lab::neighbours::{Format, Mode, Played, Resource, Row, Scheme, Trace, play};

use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// Largest file that is read.
const FILE_MAX_BYTES: u64 = 64 << 20;

/// `tidegate sim neighbours`.
#[derive(Debug, Args)]
pub(crate) struct SimNeighboursArgs {
    /// The trace, TOML or JSON: tenants, weights, costs, capacities, and pieces of work in each tick
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Which limiters, one after the other: none, `rate_limit`, rtb, tidegate
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "tidegate", value_parser = scheme)]
    scheme: Vec<Scheme>,
    /// What Tidegate does with what it finds: off, stats or restrict; by default as the trace says
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// Same seed, same arrivals; by default as the trace says
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::named(name).ok_or_else(|| format!("one of {}", Scheme::ALL.map(Scheme::name).join(", ")))
}

fn mode(name: &str) -> Result<Mode, String> {
    match name {
        "off" => Ok(Mode::Off),
        "stats" => Ok(Mode::Stats),
        "restrict" => Ok(Mode::Restrict),
        _ => Err("one of off, stats, restrict".to_owned()),
    }
}

#[derive(Serialize)]
struct Answer {
    trace: Trace,
    runs: Vec<Played>,
}

pub(crate) fn simulate(args: &SimNeighboursArgs) -> Result<(), Failure> {
    let mut trace = read(&args.file)?;
    trace.mode = args.mode.unwrap_or(trace.mode);
    trace.seed = args.seed.unwrap_or(trace.seed);
    let wrong = |error: &dyn std::fmt::Display| Failure::config(format!("{}: {error}", args.file.display()));
    let runs = args.scheme.iter().map(|scheme| play(&trace, *scheme).map_err(|error| wrong(&error)));
    let runs = runs.collect::<Result<Vec<_>, Failure>>()?;
    match Style::of(args.json) {
        Style::Json => output::json(&Answer { trace, runs }),
        Style::Table => runs.iter().try_for_each(|run| print(&trace, run)),
    }
}

fn read(file: &Path) -> Result<Trace, Failure> {
    let unreadable = |error| Failure::config(format!("cannot read {}", file.display())).because(error);
    if fs::metadata(file).map_err(unreadable)?.len() > FILE_MAX_BYTES {
        return Err(Failure::config(format!("{} is larger than {FILE_MAX_BYTES} bytes", file.display())));
    }
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let is_json = file.extension().is_some_and(|extension| extension == "json");
    let format = if is_json { Format::Json } else { Format::Toml };
    Trace::parse(&text, format).map_err(|error| Failure::config(format!("{}: {error}", file.display())))
}

fn print(trace: &Trace, run: &Played) -> Result<(), Failure> {
    output::line(run.scheme)?;
    let resources: Vec<Resource> = trace.capacity.keys().copied().collect();
    let shares: Vec<String> = resources.iter().map(|resource| format!("share of {}", resource.name())).collect();
    let mut header = vec!["tick", "tenant", "offered", "admitted", "refused", "served"];
    header.extend(shares.iter().map(String::as_str));
    let mut table = Table::new(&header);
    for tick in &run.ticks {
        for row in &tick.tenants {
            table.row(cells(tick.tick, row, &resources));
        }
    }
    table.print()
}

fn cells(tick: u32, row: &Row, resources: &[Resource]) -> Vec<String> {
    let mut cells = vec![
        tick.to_string(),
        row.name.clone(),
        row.offered.to_string(),
        row.admitted.to_string(),
        row.refused.to_string(),
        figure(row.served),
    ];
    cells.extend(
        resources.iter().map(|resource| row.share.get(resource).map_or("-".to_owned(), |share| figure(*share))),
    );
    cells
}

//! `cargo xtask measure`: every bar at full size, beside the real nsqd and other limiters, as one table and as JSON.
//!
//! Ours and nsqd run in turns, never at once; a figure is the median of its pairs with the whole range beside it. A run
//! whose generator was late does not count and is repeated.

mod bench;
mod broker;
mod broker_sim;
mod cgroup;
mod cost;
mod crowd;
mod etcd;
mod kills;
mod law;
mod lending;
mod lending_sim;
mod lifetime_rows;
mod limits;
mod memory;
mod one_limit;
mod placement_rows;
mod proxy_attack;
mod proxy_cheap;
mod proxy_cost;
mod proxy_hellos;
mod proxy_load;
mod proxy_names;
mod proxy_noise;
mod proxy_paced;
mod proxy_placed;
mod proxy_reconnect;
mod proxy_rows;
mod proxy_server;
mod proxy_shared;
mod proxy_spike;
mod rows;
mod rpc_cost;
mod rpc_go;
mod rpc_mixed;
mod rpc_server;
mod rpc_shapes;
mod rpc_sim;
mod rpc_tcp;
mod rpc_tonic;
mod service_rows;
mod shaper_bounds;
mod shaper_bpf;
mod shaper_changes;
mod shaper_cost;
mod shaper_datagrams;
mod shaper_limiter;
mod shaper_rivals;
mod shaper_rows;
mod shaper_run;
mod shaper_shares;
mod shaper_switch;
mod split;
mod stalled;
mod statsd;
mod table;
mod trace;

use miette::{IntoDiagnostic, Result};

use crate::places::Places;
use crate::steps::Steps;
use crate::{clock, peers, setup, steps};

use bench::Bench;
use table::{Entry, Machine};

/// What to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Bars of this issue only.
    issue: Option<u32>,
    /// Rows whose name contains this only.
    only: Option<String>,
    /// Two pairs of short runs: to see that a row works, not what it says.
    quick: bool,
}

impl Options {
    /// Reads `[ISSUE] [--only ROW] [--quick]`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--quick" => options.quick = true,
                "--only" => {
                    let name = words.next().ok_or_else(|| miette::miette!("--only needs a part of a row's name"))?;
                    options.only = Some((*name).to_owned());
                }
                number => {
                    let issue =
                        number.parse().map_err(|_| miette::miette!("neither an issue nor an option: {number}"))?;
                    options.issue = Some(issue);
                }
            }
        }
        Ok(options)
    }
}

/// Builds what is needed, runs the chosen rows, prints and keeps the table.
pub(crate) fn run(places: &Places, options: &Options) -> Result<()> {
    let wanted = |row: &&rows::Row| {
        options.issue.is_none_or(|issue| row.issue == issue)
            && options.only.as_ref().is_none_or(|part| row.name.contains(part.as_str()))
    };
    let all = || {
        rows::ROWS
            .iter()
            .chain(proxy_rows::ROWS)
            .chain(lifetime_rows::ROWS)
            .chain(service_rows::ROWS)
            .chain(placement_rows::ROWS)
            .chain(shaper_rows::ROWS)
    };
    let chosen: Vec<&rows::Row> = all().filter(wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all().map(|row| row.name).collect();
        miette::bail!(help = format!("rows: {}", names.join(", ")), "no row is meant by that");
    }
    setup::ensure(places, setup::MEASURE)?;
    let mut set_up = Steps::new(places);
    // What stands beside the bars of the broker; other rows build their own.
    if chosen.iter().any(|row| matches!(row.issue, 2 | 18)) {
        set_up.step("build nsqd and its tools", || peers::build_go(places));
    }
    if chosen.iter().any(|row| row.issue == 2) {
        set_up.step("install nsqjs", || peers::install_nsqjs(places));
    }
    set_up.step("build tidegate", || peers::build_tidegate(places));
    set_up.close()?;
    let bench = Bench::new(places, options.quick)?;
    let machine = Machine::describe(places)?;
    let mut entries = Vec::new();
    for row in chosen {
        println!("measuring: {}", row.name);
        let watch = clock::Stopwatch::start();
        let mut figures = (row.run)(&bench);
        let noted = [bench.late(), bench.failed()];
        if let Ok(figures) = &mut figures {
            figures.extend(noted.into_iter().flatten());
        }
        let entry = Entry {
            name: row.name,
            bar: row.bar,
            figures: figures.map_err(|report| steps::plain(&report)),
            seconds: watch.elapsed().as_secs_f64(),
        };
        entry.print();
        entries.push(entry);
    }
    let folder = places.target.join("measure");
    std::fs::create_dir_all(&folder).into_diagnostic()?;
    let file = folder.join(format!("{}{}.json", machine.commit, if options.quick { "-quick" } else { "" }));
    std::fs::write(&file, table::json(&machine, &entries, options.quick).to_string()).into_diagnostic()?;
    table::print(&machine, &entries, options.quick);
    println!("kept in {}", file.display());
    let failed = entries.iter().filter(|entry| !entry.passes()).count();
    println!("{} passed, {failed} failed", entries.len() - failed);
    if failed == 0 { Ok(()) } else { miette::bail!("{failed} bars are missed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let expected = Options { issue: Some(2), only: Some("idle".to_owned()), quick: true };
        assert_eq!(Options::parse(&["2", "--only", "idle", "--quick"]).unwrap(), expected);
        assert_eq!(Options::parse(&["--quick", "--only", "idle", "2"]).unwrap(), expected);
        assert!(Options::parse(&["--fast"]).is_err() && Options::parse(&["--only"]).is_err());
    }
}

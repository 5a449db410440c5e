//! `tidegate profile`: the limit that a recorded trace asks for.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::json;
use tidegate_broker::io::trace::{HEADER, HEADER_V1, PUBLISHER_MARK};
use tidegate_core::Instant;
use tidegate_core::profile::{Arrival, Profile, ProfileConfig};

use crate::cli::Profile as Args;
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};
use crate::words::{RateText, UnitWord};

/// An hour at 10,000 messages per second; 600 MB while it is read.
const MOST_MESSAGES: usize = 40_000_000;
/// Shares of messages for which the burst is shown, beside the one that was asked for.
const SHARES: [f64; 4] = [0.9, 0.99, 0.999, 1.0];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let trace = read(&args.trace, args.unit)?;
    let config = ProfileConfig { margin: args.margin, undelayed: args.undelayed };
    let profile =
        Profile::of(&trace, config).map_err(|error| Failure::config(format!("{}: {error}", args.trace.display())))?;
    let limit = profile.limit();
    let bursts: Vec<(f64, u64)> = SHARES.iter().map(|share| (*share, profile.burst_for(*share))).collect();
    match Style::of(args.json) {
        Style::Json => output::json(&json!({
            "messages": profile.messages(),
            "mean_rate": RateText(profile.mean()),
            "unit": args.unit,
            "limit": { "rate": RateText(limit.rate), "burst": limit.burst },
            "undelayed": profile.undelayed_with(limit.burst),
            "bursts": bursts.iter().map(|(share, burst)| json!({ "undelayed": share, "burst": burst })).collect::<Vec<_>>(),
        })),
        Style::Table => {
            let unit = match args.unit {
                UnitWord::Messages => "messages",
                UnitWord::Bytes => "bytes",
            };
            output::line(format_args!(
                "{} messages, {} {unit}/s on average\n",
                profile.messages(),
                figure(profile.mean().as_per_s())
            ))?;
            let mut table = Table::new(&["undelayed %", "burst"]);
            for (share, burst) in bursts {
                table.row([figure(100.0 * share), burst.to_string()]);
            }
            table.print()?;
            output::line(format_args!(
                "\n[[topic]]\nname = \"...\"\nrate = \"{}\"\nburst = {}\nunit = \"{unit}\"",
                limit.rate, limit.burst
            ))
        }
    }
}

/// A trace as a broker records it, of either version, or any list whose first column is a time in ns and whose last one
/// is bytes. Who published does not matter here.
fn read(path: &Path, unit: UnitWord) -> Result<Vec<Arrival>, Failure> {
    let shown = path.display();
    let unreadable = |error| Failure::config(format!("cannot read {shown}")).because(error);
    let bad = |line: usize, found: &str| {
        let found: String = found.chars().take(80).collect();
        Failure::config(format!("{shown}:{line}: `{found}` is no row of a trace")).help(format!("expected {HEADER}"))
    };
    let mut trace = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(File::open(path).map_err(unreadable)?).lines()) {
        let line = line.map_err(unreadable)?;
        // A broker whose disk was too slow says in a comment how many rows it left out.
        let is_beside = line.is_empty() || line.starts_with(['#', PUBLISHER_MARK]);
        if is_beside || (number == 1 && [HEADER, HEADER_V1].contains(&line.as_str())) {
            continue;
        }
        let arrival = row(&line, unit).ok_or_else(|| bad(number, &line))?;
        if trace.len() == MOST_MESSAGES {
            return Err(
                Failure::config(format!("{shown} has more than {MOST_MESSAGES} messages")).help("record for less time")
            );
        }
        trace.push(arrival);
    }
    // Stamps of several connections may be written a little out of order.
    trace.sort_by_key(|arrival: &Arrival| arrival.at);
    Ok(trace)
}

fn row(line: &str, unit: UnitWord) -> Option<Arrival> {
    let (at, rest) = line.split_once(',')?;
    let bytes = rest.rsplit(',').next()?;
    let at = Instant::from_nanos(at.trim().parse().ok()?);
    let cost = match unit {
        UnitWord::Messages => 1,
        UnitWord::Bytes => bytes.trim().parse().ok()?,
    };
    Some(Arrival { at, cost })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::Folder;

    #[test]
    fn a_brokers_trace_is_read_in_order_of_time() {
        let folder = Folder::new("profile").unwrap();
        let file = folder.path().join("orders.trace");
        let left_out = "# 4 messages left out: the disk was too slow";
        let publisher = r#"@{"publisher":1,"identity":"100,1,1","correlation":null}"#;
        for text in [
            format!("{HEADER_V1}\n300,305,300,310,7\n{left_out}\n100,105,200,210,5\n"),
            format!("{HEADER}\n{publisher}\n300,305,300,310,1,7\n{left_out}\n100,105,200,210,0,5\n"),
        ] {
            fs::write(&file, text).unwrap();
            let costs = |unit| -> Vec<(u64, u64)> {
                read(&file, unit).unwrap().iter().map(|arrival| (arrival.at.as_nanos(), arrival.cost)).collect()
            };
            assert_eq!(costs(UnitWord::Messages), [(100, 1), (300, 1)]);
            assert_eq!(costs(UnitWord::Bytes), [(100, 5), (300, 7)]);
        }
    }

    #[test]
    fn rows_that_are_none_are_named_with_their_line() {
        let folder = Folder::new("profile-bad").unwrap();
        let file = folder.path().join("orders.trace");
        fs::write(&file, format!("{HEADER}\n100,105,200,210,0,5\nsoon,105,200,210,0,5\n")).unwrap();
        let error = read(&file, UnitWord::Messages).unwrap_err().to_string();
        assert!(error.ends_with("orders.trace:3: `soon,105,200,210,0,5` is no row of a trace"), "{error}");
    }
}

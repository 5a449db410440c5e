//! What a publish costs the broker, beside nsqd and beside a server that only echoes, in the same rounds.

use miette::{Result, WrapErr as _};
use serde_json::json;

use super::bench::{Bench, median, number, range};
use super::broker::{Broker, IN_MEMORY, Kind};
use super::table::Figure;

/// What the generator sends for each message: the command's line, the size, the body.
const PAYLOAD_BYTES: usize = 100;
const TOPIC: &str = "bench";
/// Warm-up beside the measured time.
const COMMON: &str = "warm_up_ms=300";

/// A server in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Nsqd,
    Ours { shards: u32 },
    Echo,
}

impl Turn {
    fn name(self) -> String {
        match self {
            Self::Nsqd => "nsqd".to_owned(),
            Self::Ours { shards: 1 } => "1 shard".to_owned(),
            Self::Ours { shards } => format!("{shards} shards"),
            Self::Echo => "echo".to_owned(),
        }
    }
}

/// One PUB at a time over 2, 100 and 1,000 connections.
pub(super) fn one_at_a_time(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (connections, beside_nsqd) in [(2, 1.4), (100, 1.6), (1_000, 1.5)] {
        let load = format!(
            "topic={TOPIC} command=pub_wait publishers={connections} pace.saturate.window=1 consumers=0 payload_bytes={PAYLOAD_BYTES}"
        );
        let turns = [Turn::Nsqd, Turn::Ours { shards: 1 }, Turn::Ours { shards: 2 }, Turn::Echo];
        let found = rounds(bench, &turns, &load, "/target/accepted_per_cpu_s")?;
        let what = format!("PUB at a time, {connections} connections");
        for ours in [1, 2] {
            figures.push(ratio(&what, &turns, &found, (ours, 0), beside_nsqd));
            figures.push(ratio(&what, &turns, &found, (ours, 3), 0.75));
        }
    }
    Ok(figures)
}

/// MPUB of ten messages, and their delivery.
pub(super) fn batches_of_ten(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let load = "command=mpub batch=10 publishers=4 pace.saturate.window=64";
    for (what, load, pointer, bar) in [
        ("MPUB of 10", format!("{load} consumers=0"), "/target/accepted_per_cpu_s", 2.5),
        ("delivery of MPUB of 10", load.to_owned(), "/target/delivered_per_cpu_s", 4.0),
    ] {
        let turns = [Turn::Nsqd, Turn::Ours { shards: 1 }, Turn::Ours { shards: 2 }];
        let found = rounds(bench, &turns, &load, pointer)?;
        figures.extend([1, 2].map(|ours| ratio(what, &turns, &found, (ours, 0), bar)));
    }
    Ok(figures)
}

/// Each server in turn, again and again; returns the figures of each.
fn rounds(bench: &Bench, turns: &[Turn], load: &str, pointer: &str) -> Result<Vec<Vec<f64>>> {
    let length = bench.size(5_000, 1_000);
    let load = format!("{load} {COMMON} duration_ms={length}");
    let mut found = vec![Vec::new(); turns.len()];
    for round in 0..bench.pairs() {
        for place in 0..turns.len() {
            // Each is first once in a while, so that a machine that slows down slows all of them.
            let at = (place + round) % turns.len();
            let report = run(bench, turns[at], &load).wrap_err_with(|| format!("{load}: {}", turns[at].name()))?;
            found[at].push(number(&report, pointer)?);
        }
    }
    Ok(found)
}

fn run(bench: &Bench, turn: Turn, load: &str) -> Result<serde_json::Value> {
    let shards;
    let (kind, flags) = match turn {
        Turn::Nsqd => (Kind::Nsqd, IN_MEMORY.to_vec()),
        Turn::Ours { shards: count } => {
            shards = format!("-shards={count}");
            (Kind::Ours, [&IN_MEMORY[..], &[&shards]].concat())
        }
        Turn::Echo => {
            let request_bytes = format!("PUB {TOPIC}\n").len() + 4 + PAYLOAD_BYTES;
            let echo = Broker::echo(bench, request_bytes)?;
            let report = bench.load(&echo, load)?;
            echo.kill();
            return Ok(report);
        }
    };
    bench.run_fresh(kind, &flags, load)
}

/// The median over the rounds of one server's figure by another's of the same round.
fn ratio(what: &str, turns: &[Turn], found: &[Vec<f64>], (of, by): (usize, usize), bar: f64) -> Figure {
    let ratios: Vec<f64> = found[of].iter().zip(&found[by]).map(|(of, by)| of / by).collect();
    let middle = median(&ratios);
    let (of_name, by_name) = (turns[of].name(), turns[by].name());
    Figure {
        what: format!("{what}, {of_name} by {by_name}"),
        value: format!("{middle:.2}x (bar {bar}), {:.0} by {:.0} a CPU second", median(&found[of]), median(&found[by])),
        spread: format!("{} over {} rounds", range(&ratios), ratios.len()),
        passes: middle >= bar,
        runs: json!({ "ours": found[of], by_name: found[by], "ratios": ratios, "bar": bar }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let turns = [Turn::Nsqd, Turn::Ours { shards: 2 }];
        // The machine was half as fast in the second round.
        let found = [vec![100.0, 50.0, 100.0], vec![200.0, 100.0, 150.0]];
        let figure = ratio("PUB", &turns, &found, (1, 0), 1.9);
        assert!(figure.passes && figure.value.starts_with("2.00x"), "{}", figure.value);
        assert_eq!(figure.what, "PUB, 2 shards by nsqd");
    }
}

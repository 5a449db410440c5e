//! The bars of placing and of splitting a limit, one row each.

use miette::Result;

use super::bench::Bench;
use super::rows::{Row, estimates, lab};
use super::split;
use super::table::Figure;

/// In the order of the table.
pub(super) const ROWS: &[Row] = &[
    Row {
        issue: 21,
        name: "placement",
        bar: "100,000 publishers on 100 brokers at most 200 ms, a change of one publisher 1 ms",
        run: placement,
    },
    Row {
        issue: 21,
        name: "split theory",
        bar: "k = 1 to 6, Poisson and batches of ten, 10^8 arrivals each: the exact values within the intervals",
        run: |bench| lab(bench, "theory_split"),
    },
    Row {
        issue: 21,
        name: "split brokers",
        bar: "1 to 3 real brokers, half a core in all: Eq. 2 over the stamps within 100 us at p99",
        run: split::replayed,
    },
    Row {
        issue: 21,
        name: "model brokers",
        bar: "predicted p99 of 1 to 3 real brokers within 20 %",
        run: split::predicted,
    },
    Row { issue: 21, name: "model of batches", bar: "the same of batches of ten", run: split::predicted_in_batches },
    Row {
        issue: 21,
        name: "model off",
        bar: "service times 20 % off: seen in 10 of 10, and the objective is met in the end",
        run: |bench| lab(bench, "model_off"),
    },
    Row {
        issue: 21,
        name: "model table 1",
        bar: "groups up to 30: in force within 10 s, confirmed within 60 s",
        run: |bench| lab(bench, "table1_model"),
    },
    Row {
        issue: 21,
        name: "paper figures",
        bar: "every statement on Fig. 7 to 11 and Table 1, but those that are named with a reason",
        run: paper_figures,
    },
];

/// Criterion's names of the two cases, with their bars in nanoseconds.
fn placement(bench: &Bench) -> Result<Vec<Figure>> {
    estimates(bench, "tidegate-control", "placement", &[("place_100000_on_100", 200e6), ("one_comes_and_goes", 1e6)])
}

fn paper_figures(bench: &Bench) -> Result<Vec<Figure>> {
    let files =
        ["fig7a", "fig7b", "fig7c", "fig7d", "fig8a", "fig8b", "fig8c", "fig8d", "fig9", "fig10", "fig11", "table1"];
    files.into_iter().map(|file| lab(bench, file)).collect::<Result<Vec<_>>>().map(|all| all.concat())
}

//! The first law of limiters, over every window of a long run of the broker's machine.

use serde_json::json;

use super::outcome::Results;
use super::{Claim, Complaint, Experiment, Size};
use crate::release_law::{ReleaseLaw, release_law};
use crate::table::{Table, number};

/// A quick run takes this much less.
const QUICK: u64 = 100;

pub(super) fn check(law: &ReleaseLaw) -> Result<(), Complaint> {
    let rules = [
        (!law.limit.rate.is_zero() && law.limit.burst > 0, "limit", "rate and burst are above zero"),
        ((1..=10_000).contains(&law.publishers), "publishers", "a number from 1 to 10000"),
        ((1..=law.publishers).contains(&law.group), "group", "a number from 1 to the publishers'"),
        (law.load > 0.0 && law.load < 1.0, "load", "above 0 and below 1, or the line grows without end"),
        ((1..=1_000_000_000).contains(&law.messages), "messages", "a number from 1 to 10^9"),
        (law.pause_ms <= 1_000, "pause_ms", "at most 1000, so that nobody takes the reader for dead"),
    ];
    rules
        .into_iter()
        .try_for_each(|(right, key, message)| Complaint::unless(right, &format!("release_law.{key}"), message))
}

pub(super) fn run(law: &ReleaseLaw, experiment: &Experiment, size: Size) -> Results {
    let messages = if size == Size::Quick { law.messages.div_ceil(QUICK) } else { law.messages };
    let law = ReleaseLaw { messages, seed: experiment.seed, ..law.clone() };
    let report = release_law(&law);
    let mut table = Table::new(["released by the contract", ""]);
    let rows = [
        ("messages", report.messages.to_string()),
        ("delivered", report.delivered.to_string()),
        ("share delayed by the contract", number(report.share_delayed)),
        ("windows too full", report.violations.to_string()),
        ("fullest window, messages above b + r t", number(report.excess_max)),
        ("passages too close, beyond the reader's pause", report.passage_violations.to_string()),
    ];
    for (name, value) in rows {
        table.push([name.to_owned(), value]);
    }
    let seen = format!("{} of {} messages", report.violations, report.messages);
    let claims = vec![
        Claim {
            claim: "messages in any window of length t are at most b + r t".to_owned(),
            held: report.violations == 0 && report.messages >= messages,
            seen: format!("{seen} completed a window with more"),
        },
        Claim {
            claim: "on the wall clock they are at most b + r (t + the reader's longest pause)".to_owned(),
            held: report.passage_violations == 0,
            seen: format!("{} completed a window with more", report.passage_violations),
        },
    ];
    Results { claims, numbers: json!(report), table, ..Results::default() }
}

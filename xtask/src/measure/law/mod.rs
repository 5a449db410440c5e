//! The law at the sockets of consumers, while an operator does what operators do.
//!
//! A witness of the load generator consumes from a real broker, always ready, and notes when each message came. A script
//! restarts the broker with SIGTERM and SIGKILL, lets ephemeral channels come and go, deletes and creates topics, sets
//! limits, removes and restores them, and pauses. [`mod@judge`] then looks at every window of every limit.
//!
//! | limit | deliveries that count |
//! |---|---|
//! | of a topic | the first of each message at the channel `all`, which has no limit of its own |
//! | of a channel | every one, repeated ones too |

mod judge;
mod operator;
mod plan;
mod sight;

use std::fmt::Write as _;

use miette::Result;
use serde_json::{Value, json};

use self::judge::{Gap, Rules, Verdict, judge};
use self::operator::{Log, Operator, TARGETS, TOPIC};
use self::plan::{Ends, Plan, Setting};
use self::sight::Sight;
use super::bench::Bench;
use super::table::Figure;
use crate::steps;

/// Messages of all runs together.
const MESSAGES_LEAST: u64 = 1_000_000;
/// From the answer to an edit to the last delivery under the limit before, and the end of a rush behind a gap: the way
/// through the socket and the witness's tick.
const SETTLE_NS: i128 = 2_000_000;

/// The row.
#[expect(clippy::unnecessary_wraps, reason = "every row has this signature")]
pub(super) fn law(bench: &Bench) -> Result<Vec<Figure>> {
    let (mut figures, mut messages) = (Vec::new(), 0);
    for setting in Setting::all() {
        let figure = match try_setting(bench, setting) {
            Ok(found) => {
                messages += found.messages;
                found.figure(&setting)
            }
            // The other settings are tried all the same.
            Err(report) => Figure {
                what: setting.name(),
                value: "the script broke off".to_owned(),
                spread: steps::plain(&report).replace('\n', "; "),
                passes: false,
                runs: Value::Null,
            },
        };
        println!("     {}: {}", figure.what, figure.value);
        figures.push(figure);
    }
    figures.push(Figure {
        what: "messages that left their topics, in all".to_owned(),
        value: messages.to_string(),
        spread: String::new(),
        passes: messages >= bench.size(MESSAGES_LEAST, 1),
        runs: json!(messages),
    });
    Ok(figures)
}

fn try_setting(bench: &Bench, setting: Setting) -> Result<Found> {
    let plan = setting.plan(bench);
    let (log, file) = Operator::start(bench, setting, plan)?.work(plan.length)?;
    let sight = Sight::read(&file, plan.topics)?;
    Ok(Found::new(&log, &sight, plan, setting.ends))
}

/// What one run showed.
#[derive(Default)]
struct Found {
    /// That left their topics, each once.
    messages: u64,
    /// Deliveries that were held to a channel's limit.
    deliveries: u64,
    violations: u64,
    /// The most messages above what is allowed, over all limits.
    excess_max: f64,
    accepted: u64,
    lost: u64,
    /// Accepted before a kill of a broker with queues in memory, and gone: that is what memory means.
    lost_to_kills: u64,
    longest_gap_ns: i128,
    /// The first violation of each limit that has one.
    broken: Vec<String>,
    script: Vec<String>,
}

impl Found {
    fn new(log: &Log, sight: &Sight, plan: Plan, ends: Ends) -> Self {
        let mut found = Self {
            excess_max: f64::NEG_INFINITY,
            longest_gap_ns: sight.gaps.iter().map(|gap| gap.to_ns - gap.from_ns).max().unwrap_or(0),
            ..Self::default()
        };
        let begin_ns = log.lines.first().map_or(0, |(at, _)| *at);
        found.script.extend(log.lines.iter().map(|(at, line)| format!("{:.3} s {line}", seconds(at - begin_ns))));
        let rules = Rules { settle_ns: SETTLE_NS, slack_ns: plan.slack_ns };
        for (topic, lives) in log.limits.iter().enumerate() {
            let seen = &sight.topics[topic];
            for (target, life) in lives.iter().enumerate() {
                let Some(life) = life else { continue };
                // What left the topic while `all` had no consumer comes when it has one again.
                let mut gaps = sight.gaps.clone();
                if target == 0 {
                    gaps.extend(seen.away.iter().map(|away| without_outages(*away, log)));
                }
                let deliveries = if target == 0 { seen.first_at_all() } else { seen.deliveries(target) };
                let verdict = judge(&deliveries, life.first, &life.edits, &gaps, rules);
                found.add(log, topic, target, verdict);
            }
            found.count_losses(log, sight, topic, ends);
        }
        found
    }

    fn add(&mut self, log: &Log, topic: usize, target: usize, verdict: Verdict) {
        *(if target == 0 { &mut self.messages } else { &mut self.deliveries }) += verdict.counted;
        self.violations += verdict.violations;
        self.excess_max = self.excess_max.max(verdict.excess_max);
        if let Some(at) = verdict.first_ns {
            self.broken.push(format!(
                "{TOPIC}{topic}{}: {} violations, {:.1} too many at most, the first{}",
                TARGETS[target],
                verdict.violations,
                verdict.excess_max,
                after_what(log, at)
            ));
        }
    }

    /// Accepted messages that never came, without those that a deletion took away.
    fn count_losses(&mut self, log: &Log, sight: &Sight, topic: usize, ends: Ends) {
        let seen = &sight.topics[topic];
        // Until `all` has its consumer again, messages may go to the other channels alone.
        let forgiven_ns = log
            .deletions
            .iter()
            .filter(|deletion| deletion.topic == topic)
            .map(|deletion| seen.ready.iter().copied().find(|ready| *ready >= deletion.to_ns).unwrap_or(i128::MAX));
        let deleted_ns = forgiven_ns.max().unwrap_or(i128::MIN);
        let killed_ns = log.outages.iter().filter(|outage| outage.is_kill).map(|outage| outage.died_ns).max();
        let killed_ns = killed_ns.filter(|_| ends == Ends::Kill).unwrap_or(i128::MIN);
        self.accepted += seen.accepted.len() as u64;
        let (mut lost, mut first_ns) = (0, i128::MAX);
        for accepted in seen.accepted.iter().filter(|accepted| !seen.came_to_all(accepted.sequence)) {
            if accepted.sent_ns <= deleted_ns {
                continue;
            }
            if accepted.sent_ns <= killed_ns {
                self.lost_to_kills += 1;
                continue;
            }
            lost += 1;
            first_ns = first_ns.min(accepted.sent_ns);
        }
        if lost > 0 {
            self.lost += lost;
            self.broken.push(format!("{TOPIC}{topic}: {lost} lost, the first was sent{}", after_what(log, first_ns)));
        }
    }

    fn value(&self) -> String {
        format!("{} violations, {} lost of {} accepted", self.violations, self.lost, self.accepted)
    }

    fn figure(self, setting: &Setting) -> Figure {
        let mut spread = format!(
            "{} left topics, {} from limited channels; at most {:+.1} messages from the bound; longest gap {:.1} ms",
            self.messages,
            self.deliveries,
            self.excess_max,
            seconds(self.longest_gap_ns) * 1e3,
        );
        if self.lost_to_kills > 0 {
            let _ = write!(spread, "; {} in memory lost to kills", self.lost_to_kills);
        }
        if let Some(broken) = self.broken.first() {
            let _ = write!(spread, "; {broken}");
        }
        Figure {
            what: setting.name(),
            value: self.value(),
            spread,
            passes: self.violations == 0 && self.lost == 0 && self.messages > 0,
            runs: json!({
                "violations": self.violations, "lost": self.lost, "lost_to_kills": self.lost_to_kills,
                "accepted": self.accepted, "messages": self.messages, "deliveries": self.deliveries,
                "excess_max": self.excess_max, "broken": self.broken, "script": self.script,
            }),
        }
    }
}

/// What the script did last before `at_ns`.
fn after_what(log: &Log, at_ns: i128) -> String {
    let last = log.lines.iter().take_while(|(when, _)| *when <= at_ns).last();
    last.map_or_else(String::new, |(when, line)| format!(" {:.1} ms after `{line}`", seconds(at_ns - when) * 1e3))
}

/// What an absence of the consumer may have held back: nothing is released while the broker is down.
fn without_outages(away: Gap, log: &Log) -> Gap {
    let dead =
        log.outages.iter().map(|outage| (outage.started_ns.min(away.to_ns) - outage.died_ns.max(away.from_ns)).max(0));
    Gap { dead_ns: dead.sum(), ..away }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(ns: i128) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::law::operator::{Deletion, Outage};
    use crate::measure::law::sight::{Accepted, Seen};

    #[test]
    fn downtime_is_no_gap() {
        let log = Log { outages: vec![Outage { is_kill: true, died_ns: 20, started_ns: 50 }], ..Log::default() };
        let away = Gap { from_ns: 10, to_ns: 60, dead_ns: 0 };
        assert_eq!(without_outages(away, &log).dead_ns, 30);
        assert_eq!(without_outages(Gap { from_ns: 60, to_ns: 70, dead_ns: 0 }, &log).dead_ns, 0);
    }

    #[test]
    fn losses_are_told_from_deletions_and_kills() {
        let accepted = (0..6).map(|i| Accepted { sequence: i, sent_ns: i128::from(i) * 10 }).collect();
        let mut seen = Seen::default();
        (seen.accepted, seen.ready) = (accepted, vec![0, 15]);
        let sight = Sight { topics: vec![seen], gaps: Vec::new() };
        let log = Log {
            deletions: vec![Deletion { topic: 0, to_ns: 12 }],
            outages: vec![Outage { is_kill: true, died_ns: 35, started_ns: 36 }],
            ..Log::default()
        };
        let mut found = Found::default();
        found.count_losses(&log, &sight, 0, Ends::Kill);
        // 0 and 1 were deleted, 2 and 3 were in memory at the kill, 4 and 5 are lost.
        assert_eq!((found.accepted, found.lost_to_kills, found.lost), (6, 2, 2));
        found.count_losses(&log, &sight, 0, Ends::KillSynced);
        assert_eq!((found.lost_to_kills, found.lost), (2, 6));
    }
}

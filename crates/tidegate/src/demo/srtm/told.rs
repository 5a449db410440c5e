//! All acts in words, and as JSON.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tidegate_core::limit::Limit;
use tidegate_core::number::float;

use super::brokers::Seen;
use super::plan::{Plan, QUANTILE};
use super::pulse::Pulse;
use super::troupe::Counted;
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// What was seen in an act.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Act {
    pub(super) name: &'static str,
    /// Of the act in which control decides.
    pub(super) plan: Option<Planned>,
    /// Of brokers that had something to do.
    pub(super) parts: Vec<Part>,
    /// The p99 of waiting for a token, by theory.
    pub(super) theory_us: Option<f64>,
    pub(super) counted: Counted,
    /// Of the machine, while it was measured.
    pub(super) pulse: Pulse,
    /// Datagrams of lending for each message, if brokers lend.
    pub(super) frames_per_message: Option<f64>,
}

/// What control decided.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Planned {
    pub(super) headline: String,
    /// A plan stands.
    pub(super) stands: bool,
    pub(super) took_s: Option<f64>,
    /// Of the machine, while it was planned.
    pub(super) pulse: Pulse,
}

/// A broker in an act.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Part {
    broker: String,
    producers: usize,
    rate_per_s: f64,
    burst: u64,
    messages: u64,
    late: u64,
    delay_us_p99: f64,
    access_us_p99: f64,
}

impl Part {
    /// A broker with this part of the limit: tokens per second, and depth.
    pub(super) fn of(seen: &Seen, (rate_per_s, burst): (f64, u64)) -> Self {
        Self {
            broker: seen.name.clone(),
            producers: seen.producers,
            rate_per_s,
            burst,
            messages: seen.delay.count,
            late: seen.delay.over_slo,
            delay_us_p99: seen.delay.e2e_p99_us,
            access_us_p99: seen.delay.access_p99_us,
        }
    }
}

impl Act {
    /// Without what only some acts have.
    pub(super) fn new(name: &'static str, parts: Vec<Part>, counted: Counted, pulse: Pulse) -> Self {
        Self { name, plan: None, parts, theory_us: None, counted, pulse, frames_per_message: None }
    }

    /// The slowest broker's.
    fn worst(&self, of: fn(&Part) -> f64) -> f64 {
        self.parts.iter().map(of).fold(0.0, f64::max)
    }

    fn access_us(&self) -> f64 {
        self.worst(|part| part.access_us_p99)
    }

    fn delay_us(&self) -> f64 {
        self.worst(|part| part.delay_us_p99)
    }

    /// Share of messages beyond the objective.
    fn late(&self) -> f64 {
        let sum = |of: fn(&Part) -> u64| self.parts.iter().map(of).sum::<u64>();
        float(sum(|part| part.late)) / float(sum(|part| part.messages).max(1))
    }

    fn meets(&self) -> bool {
        !self.parts.is_empty() && self.late() <= 1.0 - QUANTILE
    }

    fn undelivered(&self) -> u64 {
        self.counted.accepted.saturating_sub(self.counted.delivered)
    }

    fn stands(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.stands)
    }

    /// What the machine has to do with a promise that was not kept, or a plan that does not stand.
    fn excuse(&self, plan: &Plan) -> Option<String> {
        let busiest = |pulse: &Pulse| pulse.share() > (1.0 - QUANTILE) / 2.0;
        let planning = self.plan.as_ref().filter(|planned| !planned.stands).map(|planned| &planned.pulse);
        if let Some(pulse) = [Some(&self.pulse), planning].into_iter().flatten().find(|pulse| busiest(pulse)) {
            return Some(format!(
                "this machine was busy with other work: it stood still for {} % of the time, for up to {}",
                figure(100.0 * pulse.share()),
                ms(pulse.longest()),
            ));
        }
        let has_tokens = !self.meets() && self.access_us() <= plan.slo.as_secs_f64() * 1e6;
        has_tokens.then(|| {
            format!("they had their tokens within {} ms: the rest is this machine", figure(self.access_us() / 1e3))
        })
    }

    fn json(&self, plan: &Plan) -> serde_json::Value {
        let planned = self.plan.as_ref();
        json!({
            "act": self.name,
            "headline": planned.map(|planned| &planned.headline),
            "stands": self.stands(),
            "planned_in_s": planned.and_then(|planned| planned.took_s),
            "brokers": self.parts.len(),
            "delay_us_p99": self.delay_us(),
            "access_us_p99": self.access_us(),
            "access_us_p99_theory": self.theory_us,
            "share_late": self.late(),
            "meets_slo": self.meets(),
            "accepted": self.counted.accepted,
            "undelivered": self.undelivered(),
            "lending_frames_per_message": self.frames_per_message,
            "machine": self.pulse.json(),
            "machine_while_planned": planned.map(|planned| planned.pulse.json()),
            "too_busy": self.excuse(plan),
            "parts": self.parts,
        })
    }
}

/// Tells a person what happens while it does; a program is told at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    style: Style,
}

impl Teller {
    pub(super) fn new(style: Style) -> Self {
        Self { style }
    }

    pub(super) fn say(self, text: impl Display) -> Result<(), Failure> {
        match self.style {
            Style::Table => output::line(format_args!("  {text}")),
            Style::Json => Ok(()),
        }
    }

    pub(super) fn title(self, text: &str) -> Result<(), Failure> {
        match self.style {
            Style::Table => output::line(format_args!("\n{text}")),
            Style::Json => Ok(()),
        }
    }

    /// Shows how far it is, until the next line.
    pub(super) fn passing(self, text: impl Display) {
        if self.style == Style::Table {
            output::passing(text);
        }
    }

    pub(super) fn introduce(self, plan: &Plan) -> Result<(), Failure> {
        if self.style == Style::Json {
            return Ok(());
        }
        output::line(format_args!(
            "{} brokers on this machine; {} producers send {} messages/s together to one topic.",
            plan.brokers,
            plan.producers,
            figure(plan.offered_per_s()),
        ))?;
        output::line(format_args!(
            "Its limit is {}, and 99 % of the messages are to be delivered within {}.",
            limit(plan.limit),
            ms(plan.slo),
        ))
    }

    /// What was seen in an act, broker by broker.
    pub(super) fn act(self, act: &Act, plan: &Plan) -> Result<(), Failure> {
        if self.style == Style::Json {
            return Ok(());
        }
        let late = format!("later than {}", ms(plan.slo));
        let mut table =
            Table::new(&["  broker", "producers", "part of the limit", "p99 ms", "of that for tokens", &late]);
        for part in &act.parts {
            table.row([
                format!("  {}", part.broker),
                part.producers.to_string(),
                format!("{} burst {}", output::rate(part.rate_per_s), part.burst),
                figure(part.delay_us_p99 / 1e3),
                figure(part.access_us_p99 / 1e3),
                format!("{} %", figure(100.0 * float(part.late) / float(part.messages.max(1)))),
            ]);
        }
        table.print()?;
        let theory = act.theory_us.map_or_else(String::new, |us| format!("; the theory says {} ms", figure(us / 1e3)));
        self.say(format_args!(
            "99 % of the messages had their token within {} ms on the slowest broker{theory}",
            figure(act.access_us() / 1e3)
        ))?;
        self.say(format_args!(
            "{} % came later than {}: the promise is {}",
            figure(100.0 * act.late()),
            ms(plan.slo),
            if act.meets() { "kept" } else { "broken" },
        ))?;
        if let Some(frames) = act.frames_per_message {
            self.say(format_args!("{} datagrams of lending were sent for each message", figure(frames)))?;
        }
        if let Some(excuse) = act.excuse(plan) {
            self.say(excuse)?;
        }
        self.say(format_args!(
            "{} messages were accepted, {} of them are not delivered",
            act.counted.accepted,
            act.undelivered()
        ))
    }

    /// All acts side by side; fails if the promise was not kept by the placement, and the machine is not the reason.
    pub(super) fn verdict(self, acts: [&Act; 3], plan: &Plan) -> Result<(), Failure> {
        let [before, after, lent] = acts;
        let single_us = plan.theory_us(1).unwrap_or_default();
        let penalty_us = |act: &Act| (act.access_us() - single_us).max(0.0);
        match self.style {
            Style::Json => output::json(&json!({
                "brokers": plan.brokers,
                "producers": plan.producers,
                "offered_per_s": plan.offered_per_s(),
                "limit": { "rate_per_s": plan.limit.rate.as_per_s(), "burst": plan.limit.burst },
                "slo_us": plan.slo.as_secs_f64() * 1e6,
                "penalty_us_p99": {
                    "before": penalty_us(before), "after": penalty_us(after), "lent": penalty_us(lent),
                },
                "acts": acts.map(|act| act.json(plan)),
            }))?,
            Style::Table => {
                output::line(format_args!(
                    "\nThe same limit cost {} ms of waiting for tokens split over {} brokers, {} ms as placed on {}, and {} ms \
                     split again with lending.",
                    figure(penalty_us(before) / 1e3),
                    plan.brokers,
                    figure(penalty_us(after) / 1e3),
                    after.parts.len(),
                    figure(penalty_us(lent) / 1e3),
                ))?;
            }
        }
        if let Some(act) = [after, lent].into_iter().find(|act| act.undelivered() > 0) {
            return Err(Failure::slo_missed(format!("{} messages were not delivered", act.undelivered())));
        }
        if after.stands() && after.meets() {
            return Ok(());
        }
        if after.excuse(plan).is_some() {
            return self.say("It says little of the placement: try again when the machine has less to do.");
        }
        let missed = if after.stands() {
            let late = figure(100.0 * after.late());
            format!("placed by Tidegate, {late} % of the messages came later than {}", ms(plan.slo))
        } else {
            "control found no placement that keeps the promise".to_owned()
        };
        Err(Failure::slo_missed(missed))
    }
}

/// A limit as people read it.
pub(super) fn limit(limit: Limit) -> String {
    format!("{} with a burst of {}", limit.rate, limit.burst)
}

fn ms(span: Duration) -> String {
    format!("{} ms", span.as_millis())
}

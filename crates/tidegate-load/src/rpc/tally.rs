//! What became of the calls of a run, and the report of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_rpc::error::{CallError, ShedBy};
use tidegate_rpc::machine::ShedReason;

use super::config::RpcBenchConfig;
use crate::bench::Invalid;
use crate::latency::{Latency, LatencySummary};
use crate::target::Memory;

/// All figures of a run: of calls intended in the measured window, whenever they ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RpcBenchReport {
    /// What was run.
    pub config: RpcBenchConfig,
    /// Why this run must not count; `None` if it may.
    pub invalid: Option<Invalid>,
    /// Length of the measured window in seconds.
    pub window_s: f64,
    /// Calls intended in the window.
    pub offered: u64,
    /// Of these, sent to the server: those that it shed or answered, and those that were not answered.
    pub sent: u64,
    /// Of these, answered.
    pub served: u64,
    /// Of these, within the objective.
    pub good: u64,
    /// Calls intended per second.
    pub offered_per_s: f64,
    /// Calls answered per second.
    pub served_per_s: f64,
    /// Calls answered within the objective per second.
    pub goodput_per_s: f64,
    /// From the intended time to the answer, of served calls.
    pub response: LatencySummary,
    /// Calls shed before they were sent.
    pub shed_local: Sheds,
    /// Calls shed by the server.
    pub shed_remote: Sheds,
    /// Calls whose handler failed.
    pub failed: u64,
    /// Calls without an answer in their time, and those that had none when the run ended.
    pub unanswered: u64,
    /// Calls on connections that were lost.
    pub lost: u64,
    /// Connections that were open when the run ended.
    pub open: u64,
    /// Calls made behind their intended times: the generator's own fault.
    pub lateness: LatencySummary,
    /// The server's process, if its id was given.
    pub target: Option<RpcTarget>,
    /// CPU time of this process in the window, in seconds.
    pub generator_cpu_s: f64,
}

/// Calls that were shed, and how soon the caller was told.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sheds {
    /// How many.
    pub count: u64,
    /// By reason; of what other servers refuse none is known.
    pub reasons: BTreeMap<ShedReason, u64>,
    /// From the call to the notice.
    pub notice: LatencySummary,
}

/// What the server used in the window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RpcTarget {
    /// CPU time in seconds.
    pub cpu_s: f64,
    /// CPU time for each call served in the window, whatever else was done; zero if none was.
    pub cpu_us_per_served: f64,
    /// Memory at the window's end.
    pub memory: Memory,
}

/// What a call's end is recorded with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    /// Its connection.
    pub(super) line: usize,
    pub(super) intended: Instant,
    pub(super) called: Instant,
    pub(super) is_measured: bool,
}

#[derive(Debug, Default)]
struct ShedTally {
    reasons: BTreeMap<ShedReason, u64>,
    notice: Latency,
}

impl ShedTally {
    fn report(&self) -> Sheds {
        let reasons = self.reasons.clone();
        Sheds { count: self.notice.count(), reasons, notice: self.notice.summary() }
    }
}

#[derive(Debug)]
pub(super) struct Tally {
    slo: Duration,
    offered: u64,
    good: u64,
    failed: u64,
    timed_out: u64,
    lost: u64,
    ended: u64,
    lateness: Latency,
    response: Latency,
    local: ShedTally,
    remote: ShedTally,
    /// Connections of calls that have ended, measured or not: what keeps a closed loop going, which empties it.
    pub(super) freed: Vec<usize>,
    /// Calls answered, measured or not: with their count at the window's ends, the server's work in it.
    pub(super) served: u64,
}

impl Tally {
    pub(super) fn new(slo: Duration) -> Self {
        Self {
            slo,
            offered: 0,
            good: 0,
            failed: 0,
            timed_out: 0,
            lost: 0,
            ended: 0,
            lateness: Latency::default(),
            response: Latency::default(),
            local: ShedTally::default(),
            remote: ShedTally::default(),
            freed: Vec::new(),
            served: 0,
        }
    }

    pub(super) fn on_call(&mut self, tag: &Tag) {
        if tag.is_measured {
            self.offered += 1;
            self.lateness.record(tag.intended, tag.called);
        }
    }

    pub(super) fn on_end(&mut self, tag: &Tag, ending: Result<(), CallError>, now: Instant) {
        self.freed.push(tag.line);
        self.served += u64::from(ending.is_ok());
        if !tag.is_measured {
            return;
        }
        self.ended += 1;
        match ending {
            Ok(()) => {
                self.response.record(tag.intended, now);
                self.good += u64::from(now.since(tag.intended) <= self.slo);
            }
            Err(CallError::Shed { reason, by }) => {
                let sheds = if by == ShedBy::Client { &mut self.local } else { &mut self.remote };
                *sheds.reasons.entry(reason).or_default() += 1;
                sheds.notice.record(tag.called, now);
            }
            Err(CallError::TimedOut) => self.timed_out += 1,
            Err(CallError::Failed) => self.failed += 1,
            Err(_) => self.lost += 1,
        }
    }

    /// A call was refused by a server that says no more than that.
    pub(super) fn on_refused(&mut self, tag: &Tag, now: Instant) {
        self.freed.push(tag.line);
        if tag.is_measured {
            self.ended += 1;
            self.remote.notice.record(tag.called, now);
        }
    }

    /// True once every measured call has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.ended == self.offered
    }

    pub(super) fn report(&self, config: &RpcBenchConfig, use_of: Use) -> RpcBenchReport {
        let window_s = use_of.window.as_secs_f64();
        let (lateness, served) = (self.lateness.summary(), self.response.count());
        let invalid = if served + self.remote.notice.count() + self.local.notice.count() == 0 {
            Some(Invalid::Empty)
        } else {
            let is_late = lateness.us_p99 > config.lateness_us_p99_max;
            is_late.then_some(Invalid::Late { us_p99: lateness.us_p99 })
        };
        RpcBenchReport {
            config: config.clone(),
            invalid,
            window_s,
            offered: self.offered,
            sent: self.offered - self.local.notice.count(),
            served,
            good: self.good,
            offered_per_s: per(self.offered, window_s),
            served_per_s: per(served, window_s),
            goodput_per_s: per(self.good, window_s),
            response: self.response.summary(),
            shed_local: self.local.report(),
            shed_remote: self.remote.report(),
            failed: self.failed,
            unanswered: self.timed_out + (self.offered - self.ended),
            lost: self.lost,
            open: use_of.open,
            lateness,
            target: use_of.target,
            generator_cpu_s: use_of.generator.as_secs_f64(),
        }
    }
}

/// What the run used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) window: Duration,
    pub(super) generator: Duration,
    pub(super) open: u64,
    pub(super) target: Option<RpcTarget>,
}

/// `count / span`, zero where that has no meaning.
pub(super) fn per(count: u64, span: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let count = count as f64;
    if span > 0.0 { count / span } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_counted_once_by_its_end() {
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        let mut tally = Tally::new(Duration::from_micros(100));
        let tag =
            |intended, is_measured| Tag { line: 0, intended: at(intended), called: at(intended + 1), is_measured };
        let shed = |by| Err(CallError::Shed { reason: ShedReason::Delay, by });
        let ends = [
            (Ok(()), 50),
            (Ok(()), 101),
            (shed(ShedBy::Client), 2),
            (shed(ShedBy::Server), 40),
            (Err(CallError::TimedOut), 900),
            (Err(CallError::Failed), 9),
            (Err(CallError::Lost), 9),
        ];
        for (ending, us) in ends {
            let tag = tag(0, true);
            tally.on_call(&tag);
            assert!(!tally.is_complete());
            tally.on_end(&tag, ending, at(us));
        }
        assert!(tally.is_complete());
        tally.on_call(&tag(0, false));
        tally.on_end(&tag(0, false), Ok(()), at(5));
        tally.on_call(&tag(0, true));
        let use_of = Use { window: Duration::from_secs(2), generator: Duration::ZERO, open: 8, target: None };
        let report = tally.report(&RpcBenchConfig::default(), use_of);
        assert_eq!((report.offered, report.sent, report.served, report.good), (8, 7, 2, 1));
        assert_eq!((report.shed_local.count, report.shed_remote.count), (1, 1));
        assert_eq!((report.failed, report.unanswered, report.lost, report.open), (1, 2, 1, 8));
        assert!((report.goodput_per_s - 0.5).abs() < 1e-9 && (report.offered_per_s - 4.0).abs() < 1e-9);
        assert!((report.shed_remote.notice.us_max / 39.0 - 1.0).abs() < 1e-2);
        assert_eq!(report.invalid, None);
    }
}

//! What became of the requests of one source.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::config::{HttpBenchConfig, RECORDS_MAX, Source};
use crate::latency::{Latency, LatencySummary};

const MS_NS: u64 = 1_000_000;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// An answer of status 200 to 399, read whole.
    Answered,
    /// 429.
    OverShare,
    /// 503.
    SystemFull,
    /// Any other status.
    OtherStatus,
    /// The connection was reset.
    Reset,
    /// The connection was closed before the answer's end.
    Closed,
    /// A TLS alert.
    Alert,
    /// No connection: refused, unreachable.
    NotConnected,
    /// Bytes that are no TLS or no HTTP.
    Garbled,
    /// The server began a handshake after a hello that leads to none.
    Welcomed,
    /// No answer in time.
    TimedOut,
    /// All connections were under way or waited for: it was not sent.
    Unsent,
}

impl Ending {
    /// Of an answer with `status`.
    pub(super) fn of(status: u16) -> Self {
        match status {
            200..=399 => Self::Answered,
            429 => Self::OverShare,
            503 => Self::SystemFull,
            _ => Self::OtherStatus,
        }
    }

    /// The server said no, or closed the connection, as opposed to: nothing came.
    fn is_refusal(self) -> bool {
        !matches!(self, Self::Answered | Self::TimedOut | Self::Unsent | Self::Welcomed)
    }
}

/// From where to where rates stay: a step of one source is an edge for all, so that they can be compared.
pub(super) fn edges(config: &HttpBenchConfig, from: Instant, to: Instant) -> Vec<Instant> {
    let steps = config.sources.iter().flat_map(|source| &source.steps);
    let mut edges: Vec<Instant> = steps.map(|step| from.plus_nanos(step.at_ms * MS_NS)).collect();
    edges.retain(|at| *at > from && *at < to);
    edges.extend([from, to]);
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// One source's figures: of requests intended in the measured window, whenever they ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source's name.
    pub name: String,
    /// Requests begun behind their intended times: the generator's own fault.
    pub lateness: LatencySummary,
    /// The whole window.
    pub total: PhaseReport,
    /// The window in parts: from one change of any source's rate to the next.
    pub phases: Vec<PhaseReport>,
    /// The timeline, if one was asked for.
    pub bins: Vec<Bin>,
    /// Each request, if that was asked for: intended time since the window's beginning and response time, both in
    /// microseconds, and how it ended.
    pub records: Vec<(u64, u64, Ending)>,
}

/// Figures of one span of intended times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PhaseReport {
    /// Since the window's beginning.
    pub from_ms: u64,
    /// Since the window's beginning.
    pub to_ms: u64,
    /// Requests intended.
    pub offered: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Answered per second.
    pub answered_per_s: f64,
    /// How all ended.
    pub endings: BTreeMap<Ending, u64>,
    /// The status codes of all answers.
    pub statuses: BTreeMap<u16, u64>,
    /// From the intended time to the whole answer.
    pub response: LatencySummary,
    /// From the intended time to the refusal.
    pub notice: LatencySummary,
}

/// A short span of intended times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bin {
    /// Requests intended.
    pub offered: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Of these, refused.
    pub refused: u64,
    /// The longest response time of those answered.
    pub us_max: u64,
}

#[derive(Debug)]
struct Phase {
    from: Instant,
    to: Instant,
    offered: u64,
    endings: BTreeMap<Ending, u64>,
    statuses: BTreeMap<u16, u64>,
    response: Latency,
    notice: Latency,
}

impl Phase {
    fn new(from: Instant, to: Instant) -> Self {
        let (endings, statuses) = (BTreeMap::new(), BTreeMap::new());
        Self { from, to, offered: 0, endings, statuses, response: Latency::default(), notice: Latency::default() }
    }

    fn merge(&mut self, other: &Self) {
        self.offered += other.offered;
        for (ending, count) in &other.endings {
            *self.endings.entry(*ending).or_default() += count;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.response.merge(&other.response);
        self.notice.merge(&other.notice);
    }

    fn report(&self, origin: Instant) -> PhaseReport {
        let answered = self.response.count();
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let answered_per_s = answered as f64 / self.to.since(self.from).as_secs_f64();
        PhaseReport {
            from_ms: self.from.nanos_since(origin) / MS_NS,
            to_ms: self.to.nanos_since(origin) / MS_NS,
            offered: self.offered,
            answered,
            answered_per_s,
            endings: self.endings.clone(),
            statuses: self.statuses.clone(),
            response: self.response.summary(),
            notice: self.notice.summary(),
        }
    }
}

/// Counts while a source runs.
#[derive(Debug)]
pub(super) struct Tally {
    name: String,
    from: Instant,
    to: Instant,
    bin_ns: u64,
    has_records: bool,
    lateness: Latency,
    phases: Vec<Phase>,
    bins: Vec<Bin>,
    records: Vec<(u64, u64, Ending)>,
    /// Requests of the window that have not ended.
    pub(super) open: u64,
}

impl Tally {
    /// For requests intended from `from` on.
    pub(super) fn new(config: &HttpBenchConfig, source: &Source, from: Instant) -> Self {
        let to = from.plus_nanos(config.duration_ms * MS_NS);
        let edges = edges(config, from, to);
        let bins = config.duration_ms.checked_div(config.bin_ms).map_or(0, |bins| bins + 1);
        Self {
            name: source.name.clone(),
            from,
            to,
            bin_ns: config.bin_ms * MS_NS,
            has_records: source.record,
            lateness: Latency::default(),
            phases: edges.windows(2).map(|edge| Phase::new(edge[0], edge[1])).collect(),
            bins: vec![Bin::default(); usize::try_from(bins).expect("bins are at most 100,001")],
            records: Vec::new(),
            open: 0,
        }
    }

    /// A request is begun.
    pub(super) fn on_begin(&mut self, intended: Instant, now: Instant) {
        let Some(phase) = self.phase(intended) else { return };
        self.phases[phase].offered += 1;
        self.open += 1;
        self.lateness.record(intended, now);
        if let Some(bin) = self.bin(intended) {
            bin.offered += 1;
        }
    }

    /// It has ended; `status` is 0 unless there was an answer.
    pub(super) fn on_end(&mut self, intended: Instant, now: Instant, ending: Ending, status: u16) {
        let Some(phase) = self.phase(intended) else { return };
        let phase = &mut self.phases[phase];
        self.open -= 1;
        *phase.endings.entry(ending).or_default() += 1;
        if status > 0 {
            *phase.statuses.entry(status).or_default() += 1;
        }
        if ending == Ending::Answered {
            phase.response.record(intended, now);
        } else if ending.is_refusal() {
            phase.notice.record(intended, now);
        }
        let took_us = now.nanos_since(intended) / 1_000;
        if let Some(bin) = self.bin(intended) {
            bin.answered += u64::from(ending == Ending::Answered);
            bin.refused += u64::from(ending.is_refusal());
            if ending == Ending::Answered {
                bin.us_max = bin.us_max.max(took_us);
            }
        }
        if self.has_records && self.records.len() < RECORDS_MAX {
            self.records.push((intended.nanos_since(self.from) / 1_000, took_us, ending));
        }
    }

    pub(super) fn report(&mut self) -> SourceReport {
        let mut total = Phase::new(self.from, self.to);
        for phase in &self.phases {
            total.merge(phase);
        }
        self.records.sort_unstable_by_key(|(intended, ..)| *intended);
        SourceReport {
            name: self.name.clone(),
            lateness: self.lateness.summary(),
            total: total.report(self.from),
            phases: self.phases.iter().map(|phase| phase.report(self.from)).collect(),
            bins: std::mem::take(&mut self.bins),
            records: std::mem::take(&mut self.records),
        }
    }

    /// The phase of a moment in the window.
    fn phase(&self, at: Instant) -> Option<usize> {
        (at >= self.from && at < self.to).then(|| self.phases.partition_point(|phase| phase.to <= at))
    }

    fn bin(&mut self, at: Instant) -> Option<&mut Bin> {
        let number = at.nanos_since(self.from).checked_div(self.bin_ns)?;
        self.bins.get_mut(usize::try_from(number).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Step;
    use super::*;

    #[test]
    fn every_request_is_counted_once_where_it_was_intended() {
        let steps = vec![Step { at_ms: 400, rate_per_s: 1.0 }, Step { at_ms: 9_000, rate_per_s: 1.0 }];
        let sources = vec![Source { record: true, ..Source::default() }, Source { steps, ..Source::default() }];
        let config = HttpBenchConfig { duration_ms: 1_000, bin_ms: 100, sources, ..HttpBenchConfig::default() };
        let source = &config.sources[0];
        let from = Instant::from_nanos(50);
        let mut tally = Tally::new(&config, source, from);
        let at = |ms: u64| from.plus_nanos(ms * MS_NS);
        let ends = [
            (0, 5, Ending::Answered, 200),
            (399, 2_000, Ending::OverShare, 429),
            (400, 401, Ending::Answered, 301),
            (999, 1_999, Ending::TimedOut, 0),
            (1_000, 1_001, Ending::Answered, 200),
        ];
        for (intended, end, ending, status) in ends {
            tally.on_begin(at(intended), at(intended));
            tally.on_end(at(intended), at(end), ending, status);
        }
        assert_eq!(tally.open, 0);
        let report = tally.report();
        let counts: Vec<_> = report.phases.iter().map(|phase| (phase.from_ms, phase.to_ms, phase.offered)).collect();
        assert_eq!(counts, [(0, 400, 2), (400, 1_000, 2)]);
        assert_eq!((report.total.offered, report.total.answered, report.total.notice.count), (4, 2, 1));
        assert_eq!(report.total.statuses, [(200, 1), (301, 1), (429, 1)].into());
        assert_eq!(report.bins[0], Bin { offered: 1, answered: 1, refused: 0, us_max: 5_000 });
        assert_eq!((report.bins[3].refused, report.bins[4].answered), (1, 1));
        assert_eq!(report.records[2], (400_000, 1_000, Ending::Answered));
        assert!((report.phases[0].answered_per_s - 2.5).abs() < 1e-9);
    }
}

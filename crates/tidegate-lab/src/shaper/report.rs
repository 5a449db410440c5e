//! What was seen.

use serde::{Deserialize, Serialize};

use super::scenario::{FRAME, MSS, Scheme};

/// A number of a report that a claim can be about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Goodput as a share of the rate less headers, of the limiter that has least; of limiters that borrow, of all together.
    Efficiency,
    /// Median of the smoothed round trips of the bulk flows.
    SrttUsP50,
    /// 99th percentile of these.
    SrttUsP99,
    /// Median round trip of the mice.
    MiceUsP50,
    /// 99th percentile of these.
    MiceUsP99,
    /// Packets dropped by the limiters.
    Drops,
    /// Jain's index of the bulk flows' goodputs, of the limiter that has the least.
    Jain,
    /// The longest time in which nothing of a bulk flow was acknowledged.
    StallMs,
    /// Flows of which nothing was acknowledged in the last two seconds of the run, or that should have ended and did not.
    Stuck,
    /// Segments in each packet of the bulk flows.
    SegmentsPerPacket,
    /// 99th percentile of the times that short flows took.
    ShortMsP99,
    /// Goodput of the far flows, each, as a share of an equal share.
    FarShare,
    /// Milliseconds from a change of the rate, or of neighbours, to the first 5 ms in which the goodput is within 5 % of the new
    /// share, of the limiter and the change that took longest.
    SettleMs,
}

impl Metric {
    /// In claims.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Efficiency => "efficiency",
            Self::SrttUsP50 => "median srtt in us",
            Self::SrttUsP99 => "p99 of srtt in us",
            Self::MiceUsP50 => "median of mice in us",
            Self::MiceUsP99 => "p99 of mice in us",
            Self::Drops => "drops",
            Self::Jain => "Jain's index",
            Self::StallMs => "longest stall in ms",
            Self::Stuck => "stuck flows",
            Self::SegmentsPerPacket => "segments a packet",
            Self::ShortMsP99 => "p99 of short flows in ms",
            Self::FarShare => "far flows' part of an equal share",
            Self::SettleMs => "ms to the new share",
        }
    }
}

/// What was seen of one run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What kept the queue short, if anything.
    pub scheme: Scheme,
    /// Goodput of each limiter as a share of its rate less headers; if they borrow, of all together of the total.
    pub efficiency: Vec<f64>,
    /// Jain's index of each limiter's bulk flows.
    pub jain: Vec<f64>,
    /// Smoothed round trips of the bulk flows, each millisecond, in microseconds, by percentile.
    pub srtt_us: Percentiles,
    /// Round trips of the mice, in microseconds.
    pub mice_us: Percentiles,
    /// The same, for a picture: percentile and microseconds.
    pub mice_curve: Vec<[f64; 2]>,
    /// Times of short flows, in milliseconds.
    pub short_ms: Percentiles,
    /// Packets dropped by the limiters.
    pub drops: u64,
    /// Longest stall of a bulk flow, in milliseconds.
    pub stall_ms: f64,
    /// Flows that hang.
    pub stuck: u64,
    /// Segments in each packet of the bulk flows.
    pub segments_per_packet: f64,
    /// A far flow's goodput, as a share of an equal part.
    pub far_share: f64,
    /// After the change that took longest; infinite if one was never reached.
    pub settle_ms: f64,
    /// Bursts sent again, and timeouts.
    pub repeats: u64,
    /// Retransmission timeouts of the senders.
    pub timeouts: u64,
    /// Packets that left the limiters.
    pub packets: u64,
    /// The first class's window at the end, in microseconds of its rate.
    pub window_us: f64,
    /// Hash of everything that happened.
    pub trace: String,
}

/// Percentiles of what was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// 90 % are at most so much.
    pub p90: f64,
    /// 99 % are at most so much.
    pub p99: f64,
    /// 99.9 % are at most so much.
    pub p999: f64,
    /// The most.
    pub max: f64,
}

impl Percentiles {
    /// Percentiles of nanoseconds, in units of `unit_ns`.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn of(mut values_ns: Vec<u64>, unit_ns: f64) -> Self {
        values_ns.sort_unstable();
        let at = |thousandths: usize| {
            let index = (values_ns.len() * thousandths).div_ceil(1_000).saturating_sub(1);
            values_ns.get(index).map_or(0.0, |&ns| ns as f64 / unit_ns)
        };
        let count = values_ns.len() as u64;
        Self { count, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: at(1_000) }
    }
}

/// Percentile and value in units of `unit_ns`, from the 1st to the 99th.
#[expect(clippy::cast_precision_loss, reason = "for a picture")]
pub(super) fn curve(values_ns: &[u64], unit_ns: f64) -> Vec<[f64; 2]> {
    let mut sorted = values_ns.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1));
    let points = [1].into_iter().chain((5..=95).step_by(5)).chain([99]);
    points.filter_map(|percent| at(percent).map(|&ns| [percent as f64, ns as f64 / unit_ns])).collect()
}

impl Report {
    /// A number of it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn metric(&self, metric: Metric) -> f64 {
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        match metric {
            Metric::Efficiency => least(&self.efficiency),
            Metric::SrttUsP50 => self.srtt_us.p50,
            Metric::SrttUsP99 => self.srtt_us.p99,
            Metric::MiceUsP50 => self.mice_us.p50,
            Metric::MiceUsP99 => self.mice_us.p99,
            Metric::Drops => self.drops as f64,
            Metric::Jain => least(&self.jain),
            Metric::StallMs => self.stall_ms,
            Metric::Stuck => self.stuck as f64,
            Metric::SegmentsPerPacket => self.segments_per_packet,
            Metric::ShortMsP99 => self.short_ms.p99,
            Metric::FarShare => self.far_share,
            Metric::SettleMs => self.settle_ms,
        }
    }
}

/// Goodput of `bytes` of payload in `ns` at `rate` bytes per second, as a share of what full frames carry of that rate.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub(super) fn efficiency(bytes: u64, ns: u64, rate: u64) -> f64 {
    bytes as f64 * 1e9 / ns as f64 / (rate as f64 * MSS as f64 / FRAME as f64)
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has all.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub(super) fn jain(goodputs: &[u64]) -> f64 {
    let sum: f64 = goodputs.iter().map(|&bytes| bytes as f64).sum();
    let squares: f64 = goodputs.iter().map(|&bytes| (bytes as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (squares * goodputs.len() as f64) }
}

//! What a run found: each figure over all of it, and over the part in which the machine did not stop us.

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;

use super::churn::ChurnReport;
use super::flood::FloodReport;
use super::info::Info;
use super::probe::Probed;
use super::quiet::Spoiled;
use super::sample::Look;
use crate::latency::{Latency, LatencySummary};

/// Figures of one run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SendReport {
    /// Over all of it.
    pub all: Figures,
    /// Without what gaps spoilt.
    pub clean: Figures,
    /// Jain's index of the flows' goodput: 1 is fair.
    pub jain: f64,
    /// Segments sent once more.
    pub retransmitted: u64,
    /// Retransmitted segments that the receiver had already.
    pub retransmitted_in_vain: u64,
    /// Requests without an answer.
    pub unanswered: u64,
    /// Each bulk flow.
    pub flows: Vec<FlowFigures>,
    /// CPU time of this process, from its first byte of bulk.
    pub cpu_s: f64,
    /// When the machine stopped us.
    pub gaps: GapFigures,
    /// Results of the short flows, if there were some.
    pub churn: Option<ChurnReport>,
    /// Results of the datagrams, if there were some.
    pub flood: Option<FloodReport>,
}

/// Figures of some of the time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Payload acknowledged, all flows together.
    pub goodput_mbps: f64,
    /// TCP's smoothed round trip, over all flows and samples.
    pub srtt: LatencySummary,
    /// From a request's start to its answer. Requests start at even times, whether others were answered or not.
    pub requests: LatencySummary,
    /// How much later than it should a request started, since no processor was free for it.
    pub requests_late: LatencySummary,
    /// From when a datagram that asks was sent to its answer.
    pub datagrams: LatencySummary,
    /// The longest time in which a flow had nothing acknowledged.
    pub stall_ms_max: f64,
}

/// One bulk flow.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct FlowFigures {
    /// Payload acknowledged.
    pub goodput_mbps: f64,
    /// Median of its round trip.
    pub srtt_us_p50: f64,
    /// 99 % are not longer.
    pub srtt_us_p99: f64,
    /// The longest time in which nothing was acknowledged.
    pub stall_ms_max: f64,
    /// Segments it may have in flight, on average.
    pub cwnd_mean: f64,
    /// Segments with payload.
    pub segments: u64,
    /// Segments sent once more.
    pub retransmitted: u64,
    /// Retransmitted segments that the receiver had already.
    pub retransmitted_in_vain: u64,
    /// Segments whose acknowledgement said that the network is congested.
    pub marked: u64,
    /// Share of the time in which the receiver's window held it.
    pub window_limited: f64,
}

/// When the machine ran nothing of ours.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GapFigures {
    /// How often, on all CPUs.
    pub count: u64,
    /// How long at most, of all looks.
    pub late_us_max: f64,
    /// How much is left out for it.
    pub left_out_ms: f64,
}

/// All that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) looks: &'a [Look],
    pub(super) probed: &'a Probed,
    pub(super) datagrams: &'a Probed,
    pub(super) spoiled: &'a Spoiled,
}

impl Evidence<'_> {
    pub(super) fn report(
        &self,
        cpu_s: f64,
        gaps: GapFigures,
        churn: Option<ChurnReport>,
        flood: Option<FloodReport>,
    ) -> SendReport {
        let flows: Vec<FlowFigures> =
            (0..self.looks.first().map_or(0, |look| look.flows.len())).map(|flow| self.flow(flow)).collect();
        SendReport {
            all: self.figures(&Spoiled::default()),
            clean: self.figures(self.spoiled),
            jain: jain(flows.iter().map(|flow| flow.goodput_mbps)),
            retransmitted: flows.iter().map(|flow| flow.retransmitted).sum(),
            retransmitted_in_vain: flows.iter().map(|flow| flow.retransmitted_in_vain).sum(),
            unanswered: self.probed.unanswered,
            flows,
            cpu_s,
            gaps,
            churn,
            flood,
        }
    }

    fn figures(&self, spoiled: &Spoiled) -> Figures {
        let mut srtt = Latency::default();
        for look in self.looks.iter().filter(|look| !spoiled.meets(look.at, look.at)) {
            look.flows.iter().for_each(|flow| record_us(&mut srtt, flow.srtt_us));
        }
        let (requests, requests_late) = summary(self.probed, spoiled);
        let (datagrams, _) = summary(self.datagrams, spoiled);
        let (mut bytes, mut ns) = (0, 0);
        for pair in self.looks.windows(2).filter(|pair| !spoiled.meets(pair[0].at, pair[1].at)) {
            let acked = |look: &Look| look.flows.iter().map(|flow| flow.acked_bytes).sum::<u64>();
            bytes += acked(&pair[1]) - acked(&pair[0]);
            ns += pair[1].at.nanos_since(pair[0].at);
        }
        let flows = self.looks.first().map_or(0, |look| look.flows.len());
        let stall_ns = (0..flows).map(|flow| self.stall_ns(flow, spoiled)).max().unwrap_or(0);
        Figures {
            goodput_mbps: mbps(bytes, ns),
            srtt: srtt.summary(),
            requests,
            requests_late,
            datagrams,
            stall_ms_max: ratio(stall_ns, 1_000_000),
        }
    }

    /// The longest time without progress; one that meets what is spoilt is left out.
    fn stall_ns(&self, flow: usize, spoiled: &Spoiled) -> u64 {
        let mut longest = 0;
        let mut moved: Option<(Instant, u64)> = None;
        for (index, look) in self.looks.iter().enumerate() {
            let acked = look.flows[flow].acked_bytes;
            let (at, before) = *moved.get_or_insert((look.at, acked));
            let is_last = index + 1 == self.looks.len();
            if acked != before || is_last {
                // It may have moved any time since the look before: up to a period is blamed on it wrongly.
                if !spoiled.meets(at, look.at) {
                    longest = longest.max(look.at.nanos_since(at));
                }
                moved = Some((look.at, acked));
            }
        }
        longest
    }

    fn flow(&self, flow: usize) -> FlowFigures {
        let Some((first, last)) = self.looks.first().zip(self.looks.last()) else { return FlowFigures::default() };
        let (from, to, ns) = (first.flows[flow], last.flows[flow], last.at.nanos_since(first.at));
        let mut srtt = Latency::default();
        self.looks.iter().for_each(|look| record_us(&mut srtt, look.flows[flow].srtt_us));
        let srtt = srtt.summary();
        let since = |of: fn(&Info) -> u32| u64::from(of(&to).wrapping_sub(of(&from)));
        FlowFigures {
            goodput_mbps: mbps(to.acked_bytes - from.acked_bytes, ns),
            srtt_us_p50: srtt.us_p50,
            srtt_us_p99: srtt.us_p99,
            stall_ms_max: ratio(self.stall_ns(flow, &Spoiled::default()), 1_000_000),
            cwnd_mean: ratio(
                self.looks.iter().map(|look| u64::from(look.flows[flow].cwnd)).sum(),
                self.looks.len() as u64,
            ),
            segments: since(|info| info.segments),
            retransmitted: since(|info| info.retransmitted),
            retransmitted_in_vain: since(|info| info.in_vain),
            marked: since(|info| info.marked),
            window_limited: ratio((to.window_limited_us - from.window_limited_us) * 1_000, ns),
        }
    }
}

/// How long answers took, and how late their requests were.
fn summary(probed: &Probed, spoiled: &Spoiled) -> (LatencySummary, LatencySummary) {
    let (mut latency, mut late) = (Latency::default(), Latency::default());
    for one in probed.answered.iter().filter(|one| !spoiled.meets(one.due, one.at)) {
        latency.record(one.sent, one.at);
        late.record(one.due, one.sent);
    }
    (latency.summary(), late.summary())
}

fn record_us(latency: &mut Latency, us: u32) {
    latency.record(Instant::ZERO, Instant::from_nanos(u64::from(us) * 1_000));
}

fn mbps(bytes: u64, ns: u64) -> f64 {
    ratio(bytes.saturating_mul(8_000), ns)
}

/// Zero of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a report has fewer digits")]
    let of = |number: u64| number as f64;
    if whole == 0 { 0.0 } else { of(part) / of(whole) }
}

fn jain(shares: impl Iterator<Item = f64> + Clone) -> f64 {
    let (sum, squares) =
        shares.clone().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    #[expect(clippy::cast_precision_loss, reason = "a number of flows")]
    let count = shares.count() as f64;
    if squares > 0.0 { sum * sum / (count * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(acked: &[(u64, [u64; 2])]) -> Vec<Look> {
        let look = |&(ms, acked): &(u64, [u64; 2])| Look {
            at: Instant::from_nanos(ms * 1_000_000),
            flows: acked.iter().map(|&acked_bytes| Info { acked_bytes, srtt_us: 70, ..Info::default() }).collect(),
        };
        acked.iter().map(look).collect()
    }

    #[test]
    fn goodput_stalls_and_fairness_come_from_what_is_acknowledged() {
        let looks =
            looks(&[(0, [0, 0]), (1, [1_000, 500]), (2, [1_000, 1_000]), (3, [1_000, 1_500]), (4, [3_000, 1_500])]);
        let gap = (Instant::from_nanos(1_500_000), Instant::from_nanos(1_600_000));
        let spoiled = Spoiled::new(vec![gap], 0);
        let none = Probed::default();
        let evidence = Evidence { looks: &looks, probed: &none, datagrams: &none, spoiled: &spoiled };
        let report = evidence.report(0.0, GapFigures::default(), None, None);
        // 4,500 bytes in 4 ms; without the second millisecond 4,000 in 3.
        assert!((report.all.goodput_mbps - 9.0).abs() < 1e-9);
        assert!((report.clean.goodput_mbps - 8.0 * 4.0 / 3.0).abs() < 1e-9);
        // The first flow was seen to move at 1 ms and next at 4 ms, all others each millisecond.
        assert!((report.all.stall_ms_max - 3.0).abs() < 1e-9);
        assert!((report.clean.stall_ms_max - 1.0).abs() < 1e-9);
        assert_eq!((report.all.srtt.count, report.clean.srtt.count), (10, 10));
        // (3 + 1.5)^2 / (2 (9 + 2.25))
        assert!((report.jain - 0.9).abs() < 1e-9);
    }
}

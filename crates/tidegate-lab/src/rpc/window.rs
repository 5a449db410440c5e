//! What is counted between two instants.

use core::time::Duration;
use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate_core::time::nanos;
use tidegate_rpc::machine::ShedReason;

/// Where a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Beside the caller: it cost nothing.
    Client,
    /// When the server had read it.
    Request,
    /// When a core would have started it.
    Start,
}

/// Calls of one priority, group or tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Wanted.
    pub offered: u64,
    /// Answered.
    pub served: u64,
    /// Answered within the SLO.
    pub in_slo: u64,
}

impl Share {
    pub(super) fn add(&mut self, other: Self) {
        self.offered += other.offered;
        self.served += other.served;
        self.in_slo += other.in_slo;
    }
}

/// Reasons that are counted apart; see [`ShedReason`].
const REASONS: usize = 16;

/// Counters of everything that ended within a span of time; what was offered counts when it was wanted.
#[derive(Clone, Debug)]
pub struct Window {
    /// Calls wanted, answered, answered within the SLO.
    pub calls: Share,
    /// Calls that the plant itself dropped, since too many were under way.
    pub dropped: u64,
    /// Calls that their callers gave up.
    pub cancelled: u64,
    /// Demand messages and grants outside answers.
    pub extra_messages: u64,
    /// Time that cores worked, in nanoseconds, counted when the work began.
    pub busy_ns: u64,
    /// Time for which no core ran since the host paused, in nanoseconds.
    pub paused_ns: u64,
    /// Calls that a core started, and how long they had waited at the server in all, in nanoseconds.
    pub started: (u64, u64),
    /// Response times of answered calls, in nanoseconds.
    pub response: Histogram<u64>,
    /// From the call to the refusal, of refused calls, in nanoseconds.
    pub notice: Histogram<u64>,
    /// By index of the priority.
    pub by_class: Vec<Share>,
    /// By index of the group.
    pub by_group: Vec<Share>,
    sheds: [[u64; REASONS]; 3],
    slo_ns: u64,
}

/// The longest time told apart: 100 s.
const HIGHEST_NS: u64 = 100_000_000_000;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, HIGHEST_NS, 3).expect("the bounds are apart and the digits few")
}

impl Window {
    pub(super) fn new(classes: usize, groups: usize, slo: Duration) -> Self {
        Self {
            calls: Share::default(),
            dropped: 0,
            cancelled: 0,
            extra_messages: 0,
            busy_ns: 0,
            paused_ns: 0,
            started: (0, 0),
            response: histogram(),
            notice: histogram(),
            by_class: vec![Share::default(); classes],
            by_group: vec![Share::default(); groups],
            sheds: [[0; REASONS]; 3],
            slo_ns: nanos(slo),
        }
    }

    /// The same counters at zero.
    #[must_use]
    pub fn cleared(&self) -> Self {
        Self::new(self.by_class.len(), self.by_group.len(), Duration::from_nanos(self.slo_ns))
    }

    #[inline]
    pub(super) fn offered(&mut self, class: u8, group: u16) {
        self.calls.offered += 1;
        self.by_class[usize::from(class)].offered += 1;
        self.by_group[usize::from(group)].offered += 1;
    }

    #[inline]
    pub(super) fn served(&mut self, class: u8, group: u16, response_ns: u64) {
        let in_slo = u64::from(response_ns <= self.slo_ns);
        let served = Share { offered: 0, served: 1, in_slo };
        self.calls.add(served);
        self.by_class[usize::from(class)].add(served);
        self.by_group[usize::from(group)].add(served);
        self.response.saturating_record(response_ns);
    }

    #[inline]
    pub(super) fn shed(&mut self, place: Place, reason: ShedReason, notice_ns: u64) {
        self.sheds[place as usize][(reason as usize).min(REASONS - 1)] += 1;
        self.notice.saturating_record(notice_ns);
    }

    /// Calls refused at `place`.
    #[must_use]
    pub fn sheds_at(&self, place: Place) -> u64 {
        self.sheds[place as usize].iter().sum()
    }

    /// Calls refused, by reason; reasons without any are not there.
    #[must_use]
    pub fn sheds_by_reason(&self) -> BTreeMap<ShedReason, u64> {
        let count = |reason: ShedReason| self.sheds.iter().map(|place| place[reason as usize]).sum();
        ShedReason::ALL.into_iter().map(|reason| (reason, count(reason))).filter(|(_, count)| *count > 0).collect()
    }

    /// Adds what `other` counted.
    pub fn add(&mut self, other: &Self) {
        self.calls.add(other.calls);
        self.dropped += other.dropped;
        self.cancelled += other.cancelled;
        self.extra_messages += other.extra_messages;
        self.busy_ns += other.busy_ns;
        self.paused_ns += other.paused_ns;
        self.started.0 += other.started.0;
        self.started.1 += other.started.1;
        self.response.add(&other.response).expect("both have the same bounds");
        self.notice.add(&other.notice).expect("both have the same bounds");
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(mine, theirs)| mine.add(*theirs));
        self.by_group.iter_mut().zip(&other.by_group).for_each(|(mine, theirs)| mine.add(*theirs));
        for (mine, theirs) in self.sheds.iter_mut().flatten().zip(other.sheds.iter().flatten()) {
            *mine += theirs;
        }
    }
}

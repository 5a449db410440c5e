//! A proxy: its limiter and its clock.

use core::time::Duration;

use tidegate_control::machine::adaptor::Second;
use tidegate_control::machine::divider::DemandReading;
use tidegate_control::machine::name::Name;
use tidegate_control::machine::steps::Put;
use tidegate_core::lease::{Grant, OnLapse, Refused};
use tidegate_core::lend::{Circle, Frame, Member};
use tidegate_core::limit::Limit;
use tidegate_core::number::float;
use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::rate_limit::{
    Decision, DemandSecond, LendTerms, NotGranted, RateLimitConfig, SharedLimit,
};

use super::{Scenario, Scheme};

const MILLION: i128 = 1_000_000;

/// What became of an order for a part.
pub(super) enum PutAnswer {
    Done,
    /// A newer part holds.
    Fenced(u64),
    /// It is late, or what it takes is lent.
    NotYet,
}

pub(super) struct Node {
    fast_ppm: i128,
    offset_ns: i128,
    config: RateLimitConfig,
    limit: SharedLimit,
    /// With whom it lends.
    terms: Option<LendTerms>,
    visits: u64,
}

impl Node {
    pub(super) fn new(scenario: &Scenario, scheme: Scheme, number: u32, rng: &mut Rng) -> Self {
        let half = u64::from(scenario.drift_ppm / 2);
        let fast_ppm = i128::from(rng.below(2 * half + 1)) - i128::from(half);
        let offset_ns = i128::from(rng.below(5_000_000_000));
        let member = |number: u32| Member(u16::try_from(number).expect("a few proxies"));
        let members = (0..scenario.proxies).map(member).collect();
        let terms = LendTerms { circle: Circle(1), own: member(number), members };
        // Nothing passes before a part is granted.
        let config = RateLimitConfig { rate: Some(scenario.limit), divided: true, ..RateLimitConfig::default() };
        let first = Instant::from_nanos(u64::try_from(offset_ns).expect("a few seconds"));
        let limit = SharedLimit::new(config, 1, first).fresh();
        Self { fast_ppm, offset_ns, config, limit, terms: Some(terms).filter(|_| scheme.lends()), visits: 0 }
    }

    /// What its clock shows.
    pub(super) fn clock(&self, true_time: Instant) -> Instant {
        let ns = i128::from(true_time.as_nanos()) * (MILLION + self.fast_ppm) / MILLION + self.offset_ns;
        Instant::from_nanos(u64::try_from(ns).expect("a clock that begins above zero"))
    }

    /// The first true time at which its clock shows `reading`.
    pub(super) fn when(&self, reading: Instant) -> Instant {
        let ns = (i128::from(reading.as_nanos()) - self.offset_ns).max(0);
        let early = Instant::from_nanos(u64::try_from(ns * MILLION / (MILLION + self.fast_ppm)).unwrap_or(u64::MAX));
        if self.clock(early) >= reading { early } else { early.plus_nanos(1) }
    }

    /// It is killed, and at once there again with nothing left.
    pub(super) fn restart(&mut self, true_now: Instant) {
        let boot = u32::try_from(true_now.as_nanos() / 1_000_000).expect("a short run") + 2;
        self.limit = SharedLimit::new(self.config, boot, self.clock(true_now));
    }

    /// A request; whether it is admitted.
    pub(super) fn ask(&mut self, true_now: Instant) -> bool {
        let now = self.clock(true_now);
        self.visits += 1;
        let decision = self.limit.on_arrival(self.visits, now);
        self.limit.on_end(self.visits, now);
        decision == Decision::Admit
    }

    /// A datagram of another proxy.
    pub(super) fn hear(&mut self, frame: &Frame, true_now: Instant) {
        self.limit.on_frame(frame, self.clock(true_now));
    }

    pub(super) fn wake(&mut self, true_now: Instant) {
        self.limit.on_timeout(self.clock(true_now));
    }

    pub(super) fn poll_frame(&mut self) -> Option<Frame> {
        self.limit.poll_frame()
    }

    /// When to wake it, in true time.
    pub(super) fn next_wake(&mut self) -> Option<Instant> {
        self.limit.next_timeout().map(|at| self.when(at))
    }

    /// What it saw, as its admin API tells it.
    pub(super) fn demand(&self, seconds: u32, true_now: Instant) -> DemandReading {
        let now = self.clock(true_now);
        let told = self.limit.limiter().demand(seconds.into(), now);
        let refused: u64 = told.iter().map(|second| second.refused).sum();
        let second = |told: &DemandSecond| Second {
            start_us: told.second * 1_000_000,
            tokens: told.arrived,
            backlog_max: told.backlog_max,
        };
        DemandReading {
            clock_us: now.as_nanos() / 1_000,
            draining: false,
            seconds: told.iter().map(second).collect(),
            refused_per_s: float(refused) / float(told.len().max(1) as u64),
            holds: self.limit.limiter().part(now).map(|part| part.limit),
        }
    }

    /// An order for a part, as its admin API takes it.
    pub(super) fn put(&mut self, put: &Put<Name>, lease: Duration, true_now: Instant) -> PutAnswer {
        let until = Instant::from_nanos(put.until_us.saturating_mul(1_000)).min(self.clock(true_now) + lease);
        self.grant(put.limit, put.revision, until, true_now)
    }

    /// A part that is in force until its clock shows `until`.
    pub(super) fn grant(&mut self, value: Limit, revision: u64, until: Instant, true_now: Instant) -> PutAnswer {
        let grant = Grant { value, revision, until, on_lapse: OnLapse::Closed };
        match self.limit.grant(grant, self.terms.as_ref(), self.clock(true_now)) {
            Ok(()) => PutAnswer::Done,
            Err(NotGranted::Refused(Refused::Fenced { known })) => PutAnswer::Fenced(known),
            Err(_) => PutAnswer::NotYet,
        }
    }
}

//! The sum of the windows of a class's flows.

use super::drain::{Drain, Limits, Measured, Period};
use super::{FLOOR_SEGMENTS, bytes_in, span_of};
use crate::Instant;

/// The window is not computed anew more often: a shorter round trip is that of a few packets.
const PERIOD_MIN_NS: u64 = 100_000;
/// Longest base that counts.
const BASE_MAX_NS: u64 = 1_000_000_000;
/// A flow counts as active while it was seen held by its window in the current or the last epoch: long against the round
/// trips of a data centre, short against the life of a bulk flow.
const EPOCH_NS: u64 = 10_000_000;
/// The first window: a round trip in a data centre and the setpoint.
const WINDOW_START_NS: u64 = 200_000;
/// The largest window.
const WINDOW_MAX_NS: u64 = 4_000_000;
/// The largest window of slow classes.
const WINDOW_MAX_SEGMENTS: u64 = 64;
/// One, for `alpha`.
const ALPHA_ONE: u64 = 1 << 10;
/// `alpha` moves by a 2^4th of the difference. Source: DCTCP, §3.3, g = 1/16.
const ALPHA_SHIFT: u32 = 4;
/// The integral controller moves by a 2^2th of the error. The plant answers one round trip late with gain 1: below 1 the
/// loop is stable, and up to 1/4 it does not overshoot.
const GAIN_SHIFT: u32 = 2;
/// A queue counts as at most so long, either way, so that the sum of a period's samples fits.
const QUEUE_MAX_NS: i64 = 1 << 36;

/// How a class's window follows its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By an integral controller on the mean queue.
    Integral,
    /// As DCTCP follows marks, on the share of samples that found the queue above its setpoint.
    Dctcp,
}

/// Settings of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassConfig {
    /// What the limiter lets pass at least, in bytes per second; above zero.
    pub rate: u64,
    /// What it lets pass if neighbours leave it; at least `rate`, and `rate` if the class cannot borrow.
    pub ceil: u64,
    /// The queue that is wanted, in nanoseconds of what the limiter lets pass; at most a second.
    pub setpoint_ns: u64,
    /// The control law.
    pub mode: Mode,
}

/// When a flow was last counted as held by its window: part of the flow's record, zero at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Where that epoch began.
    pub epoch: Instant,
}

/// The controller of one class.
///
/// Call with each acknowledgement of its flows [`sample`](Self::sample) if the flow [counts](Self::counts) and then
/// [`on_timeout`](Self::on_timeout); tell it of bases ([`on_base`](Self::on_base)) and of flows held by their window
/// ([`on_limited`](Self::on_limited)) as they are seen. O(1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassWindow {
    config: ClassConfig,
    /// How fast the queue drains.
    drain: Drain,
    /// Sum of the windows, in nanoseconds of the drain.
    window_ns: u64,
    /// Sum of the samples since the last update; below zero while the class has tokens to spare.
    queue_sum_ns: i64,
    /// Number of samples since the last update.
    samples: u64,
    /// Samples above the setpoint since the last update.
    above: u64,
    /// DCTCP's estimate of the share of samples above the setpoint, in units of 2^-10.
    alpha: u64,
    /// When the window is computed anew.
    next_update: Instant,
    /// Where the current epoch began; not zero.
    epoch: Instant,
    /// Flows seen held in the current epoch, and in the last.
    limited_now: u64,
    limited_last: u64,
    /// Round trip of its flows without the queue, smoothed towards the shortest; 0 before the first.
    base_ns: u64,
    /// Payload of the last full segment, in bytes.
    mss: u64,
}

impl ClassWindow {
    /// A class that has seen nothing yet; `mss` is the payload of a full segment, in bytes, above zero.
    #[must_use]
    pub fn new(config: ClassConfig, mss: u64, now: Instant) -> Self {
        Self {
            config,
            drain: Drain::default(),
            window_ns: WINDOW_START_NS,
            queue_sum_ns: 0,
            samples: 0,
            above: 0,
            alpha: 0,
            next_update: now,
            epoch: now.max(Instant::from_nanos(1)),
            limited_now: 0,
            limited_last: 0,
            base_ns: 0,
            mss,
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> ClassConfig {
        self.config
    }

    /// Puts `config` in force. All is kept as time at the rate, so that a new rate is used at once.
    pub fn set_config(&mut self, config: ClassConfig) {
        self.config = config;
    }

    /// What the limiter lets pass now, in bytes per second: the rate, or more while the class borrows.
    #[must_use]
    pub fn drain(&self) -> u64 {
        self.drain.rate(self.limits())
    }

    fn limits(&self) -> Limits {
        Limits { rate: self.config.rate, ceil: self.config.ceil }
    }

    /// Sum of the windows of the class's flows, in nanoseconds of its [`drain`](Self::drain).
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Round trip of the class's flows without the queue, in nanoseconds; 0 before the first.
    #[must_use]
    pub fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// Flows that share the window: those held by it in the current or the last epoch, whichever are more, at least 1.
    #[must_use]
    pub fn flows(&self) -> u64 {
        self.limited_now.max(self.limited_last).max(1)
    }

    /// True if a flow was held by its window in the current epoch or recently. The queue is sampled with acknowledgements of
    /// such flows alone: a class whose applications send less keeps its window.
    #[must_use]
    pub fn counts(&self, census: Census, now: Instant) -> bool {
        census.epoch == self.epoch || census.epoch > Instant::ZERO && census.epoch.plus_nanos(2 * EPOCH_NS) > now
    }

    /// The class had `queue_ns` of its drain waiting, token debt included; below zero, so much could pass at once.
    pub fn sample(&mut self, queue_ns: i64) {
        let queue_ns = queue_ns.clamp(-QUEUE_MAX_NS, QUEUE_MAX_NS);
        self.queue_sum_ns = self.queue_sum_ns.saturating_add(queue_ns);
        self.samples += 1;
        if queue_ns > signed(self.config.setpoint_ns) {
            self.above += 1;
        }
    }

    /// A round trip took `base_ns` besides the queue, of a flow that is not far from the class's others.
    pub fn on_base(&mut self, base_ns: u64) {
        self.base_ns = follow_base(self.base_ns, base_ns);
    }

    /// A full segment has `mss` bytes of payload.
    pub fn on_mss(&mut self, mss: u64) {
        self.mss = mss.max(1);
    }

    /// The flow with this `census` was seen held by the window it was given. True if for the first time in this epoch.
    pub fn on_limited(&mut self, census: &mut Census) -> bool {
        if census.epoch == self.epoch {
            return false;
        }
        census.epoch = self.epoch;
        self.limited_now += 1;
        true
    }

    /// When the current epoch began: flows that share the window are counted anew in each.
    #[must_use]
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Computes the window anew if it is time. `drained` is the number of bytes that have left the class, counted from
    /// anywhere; of a class that cannot borrow it is not looked at.
    pub fn on_timeout(&mut self, drained: u64, now: Instant) {
        if now < self.next_update {
            return;
        }
        self.next_update = now.plus_nanos(self.base_ns.max(PERIOD_MIN_NS));
        if now.nanos_since(self.epoch) >= EPOCH_NS {
            self.epoch = now;
            self.limited_last = self.limited_now;
            self.limited_now = 0;
        }
        if self.samples == 0 {
            return;
        }
        let queue_ns = mean(self.queue_sum_ns, self.samples);
        self.window_ns = match self.config.mode {
            Mode::Integral => self.integral(queue_ns),
            Mode::Dctcp => self.dctcp(),
        };
        if self.config.ceil > self.config.rate {
            self.follow_drain(queue_ns, drained, now);
        }
        self.window_ns = self.window_ns.min(self.window_max_ns()).max(self.window_min_ns());
        self.queue_sum_ns = 0;
        self.samples = 0;
        self.above = 0;
    }

    /// A quarter of the error: at most a quarter of the setpoint up, and of the window down.
    fn integral(&self, queue_ns: i64) -> u64 {
        let error_ns = signed(self.config.setpoint_ns) - queue_ns;
        if error_ns >= 0 {
            self.window_ns + (error_ns.unsigned_abs().min(self.config.setpoint_ns) >> GAIN_SHIFT)
        } else {
            self.window_ns - (error_ns.unsigned_abs().min(self.window_ns) >> GAIN_SHIFT)
        }
    }

    fn dctcp(&mut self) -> u64 {
        let share = (self.above << 10) / self.samples;
        self.alpha = self.alpha.saturating_add_signed((signed(share) - signed(self.alpha)) >> ALPHA_SHIFT);
        if self.above == 0 {
            return self.window_ns + span_of(self.mss, self.drain());
        }
        self.window_ns - ((self.window_ns * self.alpha.min(ALPHA_ONE)) >> 11)
    }

    /// The same bytes are another time at another drain. A class that ran dry and drains faster than was thought is given what
    /// the new drain needs.
    fn follow_drain(&mut self, queue_ns: i64, drained: u64, now: Instant) {
        let before = self.drain();
        let period = Period {
            queue_ns,
            queue_least_ns: signed(self.config.setpoint_ns / 2),
            length_ns: self.base_ns.max(PERIOD_MIN_NS),
            drained,
        };
        let measured = self.drain.on_period(period, self.limits(), now);
        let same_ns = span_of(bytes_in(before, self.window_ns), self.drain());
        match measured {
            Measured::Nothing => {}
            Measured::Queued => self.window_ns = same_ns,
            Measured::Faster => {
                self.window_ns = self.window_ns.min(self.base_ns + self.config.setpoint_ns).max(same_ns);
            }
        }
    }

    fn window_min_ns(&self) -> u64 {
        span_of(FLOOR_SEGMENTS * self.mss, self.drain())
    }

    fn window_max_ns(&self) -> u64 {
        span_of(WINDOW_MAX_SEGMENTS * self.mss, self.drain()).max(WINDOW_MAX_NS)
    }
}

/// A base that was `base_ns`, after a round trip of `sample_ns` besides the queue: an eighth of the way down, a 64th of the
/// way up, and of that no further than by a 64th of itself, since a delayed acknowledgement is no longer way.
#[must_use]
pub fn follow_base(base_ns: u64, sample_ns: u64) -> u64 {
    let sample_ns = sample_ns.clamp(1, BASE_MAX_NS);
    if base_ns == 0 {
        sample_ns
    } else if sample_ns < base_ns {
        base_ns - ((base_ns - sample_ns) >> 3)
    } else {
        base_ns + ((sample_ns - base_ns).min(base_ns) >> 6)
    }
}

/// `value`, which is far below 2^63.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// `sum / samples`, rounded towards zero, without a signed division.
fn mean(sum: i64, samples: u64) -> i64 {
    let size = signed(sum.unsigned_abs() / samples);
    if sum < 0 { -size } else { size }
}

#[cfg(test)]
mod tests;

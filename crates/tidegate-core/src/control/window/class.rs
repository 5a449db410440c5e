//! The sum of the windows of a class's flows.

use super::{SECOND_NS, bytes_in};
use crate::Instant;

/// The window is not computed anew more often: a shorter round trip is that of a few packets.
const PERIOD_MIN_NS: u64 = 100_000;
/// Longest time that a round trip counts as.
const RTT_MAX_NS: u64 = 1_000_000_000;
/// A flow counts as active while it was seen held by its window in the current or the last epoch: long against the round
/// trips of a data centre, short against the life of a bulk flow.
const EPOCH_NS: u64 = 10_000_000;
/// The first window, as time at the class's rate: a round trip in a data centre and the setpoint.
const START_NS: u64 = 200_000;
/// The largest window, as time at the class's rate.
const WINDOW_MAX_NS: u64 = 4_000_000;
/// The largest window of slow classes.
const WINDOW_MAX_SEGMENTS: u64 = 64;
/// The smallest window: with one segment in flight each would wait for the receiver's delayed acknowledgement.
const WINDOW_MIN_SEGMENTS: u64 = 2;
/// One, for `alpha`.
const ALPHA_ONE: u64 = 1 << 20;
/// `alpha` moves by a 2^4th of the difference. Source: DCTCP, §3.3, g = 1/16.
const ALPHA_SHIFT: u32 = 4;
/// The integral controller moves by a 2^2th of the error. The plant answers one round trip late with gain 1: below 1 the
/// loop is stable, and up to 1/4 it does not overshoot.
const GAIN_SHIFT: u32 = 2;
/// A queue counts as at most so many bytes, either way, so that the sum of a period's samples fits.
const QUEUE_MAX: i64 = 1 << 32;
/// One sample of the round trip counts as at most so many times the mean: a delayed acknowledgement and one flow with a far
/// peer do not slow the class down.
const RTT_GROWTH_MAX: u64 = 4;

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
    /// What the limiter lets pass, in bytes per second; above zero.
    pub rate: u64,
    /// The setpoint of the queue, as time at that rate, in nanoseconds; at most a second.
    pub delay_ns: u64,
    /// Payload of a full segment, in bytes; above zero.
    pub mss: u64,
    /// The control law.
    pub mode: Mode,
}

impl ClassConfig {
    /// The setpoint of the queue in bytes, at least one segment: less cannot be told from an empty queue.
    #[must_use]
    pub const fn setpoint(&self) -> u64 {
        at_least(bytes_in(self.rate, self.delay_ns), self.mss)
    }

    /// The smallest window in bytes.
    #[must_use]
    pub const fn window_min(&self) -> u64 {
        WINDOW_MIN_SEGMENTS.saturating_mul(self.mss)
    }

    /// The largest window in bytes.
    #[must_use]
    pub const fn window_max(&self) -> u64 {
        at_least(bytes_in(self.rate, WINDOW_MAX_NS), WINDOW_MAX_SEGMENTS.saturating_mul(self.mss))
    }
}

const fn at_least(value: u64, floor: u64) -> u64 {
    if value < floor { floor } else { value }
}

/// When a flow was last counted as held by its window: part of the flow's record, zero at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// The epoch, counted from 1.
    pub epoch: u64,
}

/// The controller of one class.
///
/// Tell it samples of the queue ([`sample`](Self::sample)), round trips ([`on_rtt`](Self::on_rtt)) and flows that are held
/// by their window ([`on_limited`](Self::on_limited)), and call [`on_timeout`](Self::on_timeout) with each packet. O(1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassWindow {
    config: ClassConfig,
    /// Sum of the windows, in bytes.
    window: u64,
    /// Sum of the samples since the last update, in bytes; below zero while the class has tokens to spare.
    queue_sum: i64,
    /// Number of samples since the last update.
    samples: u64,
    /// Of these, those above the setpoint.
    above: u64,
    /// DCTCP's estimate of the share of samples above the setpoint, in units of 2^-20.
    alpha: u64,
    /// Smoothed round trip, in nanoseconds; 0 before the first.
    srtt_ns: u64,
    /// When the window was last computed.
    updated: Instant,
    /// The current epoch, counted from 1.
    epoch: u64,
    /// Flows seen held in the current epoch.
    held: u64,
    /// Flows seen held in the last epoch and not yet in the current one.
    held_before: u64,
}

impl ClassWindow {
    /// A class that has seen nothing yet.
    #[must_use]
    pub fn new(config: ClassConfig, now: Instant) -> Self {
        Self {
            config,
            window: bytes_in(config.rate, START_NS).clamp(config.window_min(), config.window_max()),
            queue_sum: 0,
            samples: 0,
            above: 0,
            alpha: 0,
            srtt_ns: 0,
            updated: now,
            epoch: epoch_of(now),
            held: 0,
            held_before: 0,
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> ClassConfig {
        self.config
    }

    /// Puts `config` in force. The window keeps its length as time at the rate, so that a new rate is used at once.
    pub fn set_config(&mut self, config: ClassConfig) {
        let length_ns = self.window.saturating_mul(SECOND_NS) / self.config.rate;
        self.window = bytes_in(config.rate, length_ns).clamp(config.window_min(), config.window_max());
        self.config = config;
    }

    /// Sum of the windows of the class's flows, in bytes.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Smoothed round trip of the class's flows, in nanoseconds; 0 before the first.
    #[must_use]
    pub fn srtt_ns(&self) -> u64 {
        self.srtt_ns
    }

    /// Flows that share the window: those seen held by it in the current or the last epoch, at least 1.
    #[must_use]
    pub fn flows(&self) -> u64 {
        at_least(self.limited(), 1)
    }

    /// A packet found `queue` bytes waiting, token debt included; below zero, so many bytes could pass at once.
    pub fn sample(&mut self, queue: i64) {
        let queue = queue.clamp(-QUEUE_MAX, QUEUE_MAX);
        self.queue_sum = self.queue_sum.saturating_add(queue);
        self.samples += 1;
        if queue > 0 && queue.unsigned_abs() > self.config.setpoint() {
            self.above += 1;
        }
    }

    /// A round trip of one of the class's flows took `rtt_ns`.
    pub fn on_rtt(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.min(RTT_MAX_NS);
        if self.srtt_ns == 0 {
            self.srtt_ns = at_least(rtt_ns, 1);
            return;
        }
        let counted = rtt_ns.min(self.srtt_ns.saturating_mul(RTT_GROWTH_MAX));
        self.srtt_ns = at_least(self.srtt_ns - (self.srtt_ns >> 3) + (counted >> 3), 1);
    }

    /// The flow with this `census` was seen held by the window it was given.
    pub fn on_limited(&mut self, census: &mut Census, now: Instant) {
        self.turn_epoch(now);
        if census.epoch == self.epoch {
            return;
        }
        // Counted in the last epoch: it moves. A census of an older epoch is counted nowhere any more.
        if census.epoch + 1 == self.epoch {
            self.held_before = self.held_before.saturating_sub(1);
        }
        census.epoch = self.epoch;
        self.held += 1;
    }

    /// Computes the window anew if it is time. True if it was.
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        self.turn_epoch(now);
        if self.samples == 0 || now.nanos_since(self.updated) < at_least(self.srtt_ns, PERIOD_MIN_NS) {
            return false;
        }
        let window = match self.config.mode {
            Mode::Integral => self.integral(),
            Mode::Dctcp => self.dctcp(),
        };
        // A window that holds nobody says nothing about the queue: it does not grow meanwhile.
        let ceiling = if self.limited() == 0 { self.window } else { self.config.window_max() };
        self.window = at_least(window.min(ceiling), self.config.window_min());
        self.queue_sum = 0;
        self.samples = 0;
        self.above = 0;
        self.updated = now;
        true
    }

    fn integral(&self) -> u64 {
        let setpoint = signed(self.config.setpoint());
        let error = (setpoint - mean(self.queue_sum, self.samples)).clamp(-signed(self.window), setpoint);
        self.window.saturating_add_signed(error >> GAIN_SHIFT)
    }

    fn dctcp(&mut self) -> u64 {
        let share = self.above.saturating_mul(ALPHA_ONE) / self.samples;
        self.alpha = self.alpha - (self.alpha >> ALPHA_SHIFT) + (share >> ALPHA_SHIFT);
        if self.above == 0 {
            return self.window.saturating_add(self.config.mss);
        }
        self.window - (self.window.saturating_mul(self.alpha) >> 21)
    }

    fn limited(&self) -> u64 {
        self.held + self.held_before
    }

    fn turn_epoch(&mut self, now: Instant) {
        let epoch = epoch_of(now);
        if epoch <= self.epoch {
            return;
        }
        self.held_before = if epoch == self.epoch + 1 { self.held } else { 0 };
        self.held = 0;
        self.epoch = epoch;
    }
}

fn epoch_of(now: Instant) -> u64 {
    now.as_nanos() / EPOCH_NS + 1
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
mod tests {
    use super::*;
    use crate::control::window::{NEAR_NS, Share, share};
    use proptest::prelude::*;

    const MSS: u64 = 1_448;
    const GIGABIT: u64 = 125_000_000;

    fn config(rate: u64, mode: Mode) -> ClassConfig {
        ClassConfig { rate, delay_ns: 60_000, mss: MSS, mode }
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    /// A class with one flow that always fills its window.
    struct Busy {
        class: ClassWindow,
        census: Census,
        now: Instant,
    }

    impl Busy {
        fn new(config: ClassConfig) -> Self {
            Self { class: ClassWindow::new(config, Instant::ZERO), census: Census::default(), now: Instant::ZERO }
        }

        /// One period that found `queue`.
        fn period(&mut self, queue: i64) -> u64 {
            self.now = self.now.plus_nanos(self.class.srtt_ns().max(PERIOD_MIN_NS));
            self.class.on_limited(&mut self.census, self.now);
            self.class.sample(queue);
            assert!(self.class.on_timeout(self.now));
            self.class.window()
        }
    }

    #[test]
    fn the_window_moves_by_a_quarter_of_the_error_and_not_too_far() {
        let mut busy = Busy::new(config(GIGABIT, Mode::Integral));
        assert_eq!(busy.class.window(), 25_000);
        assert_eq!(busy.period(7_500 - 400), 25_100, "400 bytes below the setpoint of 60 us");
        assert_eq!(busy.period(7_500 + 400), 25_000);
        assert_eq!(busy.period(-1_000_000), 26_875, "up by a quarter of the setpoint at most");
        assert_eq!(busy.period(10_000_000), 26_875 - 6_719, "down by a quarter of the window at most");
    }

    #[test]
    fn samples_between_updates_are_averaged() {
        let mut class = Busy::new(config(GIGABIT, Mode::Integral));
        class.class.sample(40_000);
        class.class.sample(-32_900);
        assert_eq!(class.period(0), 25_000 + (7_500 - 2_366) / 4);
    }

    #[test]
    fn marks_move_the_window_as_in_dctcp() {
        let mut busy = Busy::new(config(GIGABIT, Mode::Dctcp));
        assert_eq!(busy.period(7_500), 25_000 + MSS, "the setpoint itself is no mark");
        // Half of the samples above it: the share of marks moves by a 32nd, the window by a 64th.
        busy.class.sample(7_501);
        let before = busy.class.window();
        assert_eq!(busy.period(0), before - before / 64);
    }

    #[test]
    fn it_is_not_computed_anew_before_a_round_trip_is_over() {
        let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), at(0));
        class.on_rtt(250_000);
        class.sample(0);
        assert!(!class.on_timeout(at(249)));
        assert!(class.on_timeout(at(250)));
        assert!(!class.on_timeout(at(900)), "no packet, nothing to go by");
    }

    #[test]
    fn an_outlier_of_the_round_trip_counts_as_four_times_the_mean() {
        let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), at(0));
        class.on_rtt(100_000);
        class.on_rtt(40_000_000);
        assert_eq!(class.srtt_ns(), 137_500);
    }

    #[test]
    fn a_window_that_holds_nobody_does_not_grow() {
        let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), at(0));
        for period in 1..1_000 {
            class.sample(-60_000);
            class.on_timeout(at(period * 100));
        }
        assert_eq!(class.window(), 25_000);
    }

    #[test]
    fn flows_count_for_the_rest_of_their_epoch_and_the_next() {
        let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), at(0));
        let mut flows = [Census::default(); 3];
        for flow in &mut flows {
            class.on_limited(flow, at(9_999));
        }
        class.on_limited(&mut flows[0], at(9_999));
        assert_eq!(class.flows(), 3);
        class.on_limited(&mut flows[0], at(10_000));
        assert_eq!(class.flows(), 3, "one of them in the new epoch");
        class.on_limited(&mut flows[0], at(20_000));
        assert_eq!(class.flows(), 1, "the others' last epoch is over");
        class.on_timeout(at(1_000_000));
        assert_eq!(class.flows(), 1, "at least one");
    }

    #[test]
    fn a_new_rate_keeps_the_length_of_the_window() {
        let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), at(0));
        class.set_config(config(GIGABIT * 2, Mode::Integral));
        assert_eq!(class.window(), 50_000);
        class.set_config(config(1, Mode::Integral));
        assert_eq!(class.window(), 2 * MSS);
    }

    /// The plant: what exceeds rate times round trip of one flow's window waits, and is seen one round trip later.
    fn settled(mode: Mode, rate: u64, rtt_ns: u64, periods: u32) -> Vec<i64> {
        let mut busy = Busy::new(config(rate, mode));
        let mut coin = crate::Rng::new(rate ^ rtt_ns);
        let mut queue = 0;
        let mut queues = Vec::new();
        for _ in 0..periods {
            let waits_ns = u64::try_from(queue.max(0)).unwrap() * SECOND_NS / rate;
            busy.class.on_rtt(rtt_ns + waits_ns);
            let window = busy.period(queue);
            let share = share(Share {
                window,
                flows: busy.class.flows(),
                rate,
                rtt_min_ns: rtt_ns,
                mss: MSS,
                coin: coin.u64(),
            });
            // Idle for at most 500 us: the limiter's burst.
            let burst = i64::try_from(bytes_in(rate, 500_000)).unwrap();
            queue = (signed(share) - signed(bytes_in(rate, rtt_ns))).max(-burst);
            queues.push(queue);
        }
        queues.split_off(queues.len() / 2)
    }

    const RATES_MBIT: [u64; 9] = [1, 3, 10, 100, 500, 1_000, 2_000, 10_000, 40_000];
    const RTTS_US: [u64; 10] = [20, 50, 100, 150, 200, 500, 1_000, 5_000, 20_000, 100_000];

    #[test]
    fn the_integral_law_settles_at_the_setpoint_for_every_rate_and_round_trip() {
        for (rate, rtt) in RATES_MBIT.iter().flat_map(|rate| RTTS_US.map(|rtt| (rate * 125_000, rtt * 1_000))) {
            let setpoint = signed(config(rate, Mode::Integral).setpoint());
            // The floor of two segments may be more than the class can have without a longer queue.
            let floor = signed(2 * MSS) - signed(bytes_in(rate, rtt.min(NEAR_NS)));
            let wanted = setpoint.max(floor);
            let queues = settled(Mode::Integral, rate, rtt, 4_000);
            let mean = queues.iter().sum::<i64>() / i64::try_from(queues.len()).unwrap();
            let far = queues.iter().map(|queue| (queue - wanted).abs()).max().unwrap();
            assert!((mean - wanted).abs() <= 1_448, "rate {rate}, rtt {rtt}: mean {mean}, wanted {wanted}");
            assert!(far <= 3 * 1_448, "rate {rate}, rtt {rtt}: {far} from {wanted}");
        }
    }

    #[test]
    fn the_dctcp_law_stays_near_the_setpoint_without_running_dry() {
        for (rate, rtt) in RATES_MBIT.iter().flat_map(|rate| RTTS_US.map(|rtt| (rate * 125_000, rtt * 1_000))) {
            let setpoint = signed(config(rate, Mode::Dctcp).setpoint());
            let queues = settled(Mode::Dctcp, rate, rtt, 40_000);
            let most = *queues.iter().max().unwrap();
            let floor = signed(2 * MSS) - signed(bytes_in(rate, rtt.min(NEAR_NS)));
            assert!(most <= setpoint.max(floor) + 6 * signed(MSS), "rate {rate}, rtt {rtt}: {most}");
            let burst = i64::try_from(bytes_in(rate, 500_000)).unwrap();
            let dry = queues.iter().filter(|queue| **queue <= -burst.max(1)).count();
            assert!(dry * 50 <= queues.len(), "rate {rate}, rtt {rtt}: dry in {dry} of {}", queues.len());
        }
    }

    proptest! {
        #[test]
        fn the_window_is_bounded_whatever_is_told(
            rate in 1_u64..12_500_000_000,
            delay_ns in 0_u64..1_000_000_000,
            mss in 1_u64..65_536,
            dctcp: bool,
            told in proptest::collection::vec((any::<i64>(), any::<u64>(), 0_u64..30_000_000, any::<bool>()), 1..80),
        ) {
            let mode = if dctcp { Mode::Dctcp } else { Mode::Integral };
            let config = ClassConfig { rate, delay_ns, mss, mode };
            let mut class = ClassWindow::new(config, Instant::ZERO);
            let mut census = [Census::default(); 2];
            let mut now = Instant::ZERO;
            for (queue, rtt_ns, gap, held) in told {
                now = now.plus_nanos(gap);
                class.sample(queue);
                class.on_rtt(rtt_ns);
                class.on_limited(&mut census[usize::from(held)], now);
                class.on_timeout(now);
                prop_assert!((config.window_min()..=config.window_max()).contains(&class.window()));
                prop_assert!((1..=2).contains(&class.flows()));
                prop_assert!(class.alpha <= ALPHA_ONE);
            }
        }
    }
}

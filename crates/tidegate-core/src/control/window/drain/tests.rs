use proptest::prelude::*;

use super::*;
use crate::control::window::{Census, ClassConfig, ClassWindow, Mode, bytes_in};

const GIGABIT: u64 = 125_000_000;
const LIMITS: Limits = Limits { rate: GIGABIT / 2, ceil: GIGABIT };

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

/// Periods of 100 us, each with its queue and the bytes that leave in it. The drain after them, in Mbit/s.
fn after(drain: &mut Drain, periods: impl IntoIterator<Item = (i64, u64)>) -> u64 {
    let (mut now, mut drained) = (drain.last.max(at(200_000)), drain.drained);
    for (queue_ns, bytes) in periods {
        now = now.plus_nanos(100_000);
        drained += bytes;
        let period = Period { queue_ns, queue_least_ns: 50_000, length_ns: 100_000, drained };
        drain.on_period(period, LIMITS, now);
    }
    drain.rate(LIMITS) / 125_000
}

#[test]
fn with_a_queue_the_drain_is_what_leaves_and_without_one_no_less() {
    let mut drain = Drain::default();
    assert_eq!(after(&mut drain, [(100_000, 12_500)]), 500, "the guarantee at first");
    assert_eq!(after(&mut drain, [(0, 10_000); 10]), 800, "no queue: it is at least this");
    assert_eq!(after(&mut drain, [(0, 7_000); 10]), 800, "nobody sent more");
    assert_eq!(after(&mut drain, [(100_000, 12_500); 10]), 900, "half of the way up");
    assert_eq!(after(&mut drain, [(100_000, 7_500); 10]), 600, "all of the way down");
    assert_eq!(after(&mut drain, [(100_000, 1_000); 20]), 500, "never below the guarantee");
    assert_eq!(after(&mut drain, [(0, 100_000); 20]), 1_000, "nor above the ceiling");
}

#[test]
fn a_fall_to_a_small_part_is_seen_before_the_span_is_over() {
    let limits = Limits { rate: GIGABIT / 1_000, ceil: GIGABIT };
    let mut drain = Drain { rate: GIGABIT, ..Drain::default() };
    let mut rates = Vec::new();
    for at_us in (500_000..512_000).step_by(1_000) {
        let period = Period { queue_ns: 1_000_000, queue_least_ns: 50_000, length_ns: 100_000, drained: 0 };
        drain.on_period(period, limits, at(at_us));
        drain.rate = if at_us == 500_000 { GIGABIT } else { drain.rate };
        rates.push(drain.rate(limits) / 125_000);
    }
    assert_eq!(rates, [1_000, 131, 65, 43, 32, 26, 21, 18, 16, 14, 1, 1]);
}

#[test]
fn a_pause_is_not_taken_for_a_slow_drain_and_a_long_one_is_forgotten() {
    let mut drain = Drain::default();
    after(&mut drain, [(100_000, 12_500); 200]);
    let busy = drain.rate(LIMITS);
    assert!(busy > GIGABIT * 9 / 10, "{busy}");
    let mut resumed = |gap_ms: u64| {
        let drained = drain.drained;
        let now = drain.last.plus_nanos(gap_ms * 1_000_000);
        let period = Period { queue_ns: 100_000, queue_least_ns: 50_000, length_ns: 100_000, drained };
        assert_eq!(drain.on_period(period, LIMITS, now), Measured::Nothing);
        drain.rate(LIMITS)
    };
    assert_eq!(resumed(50), busy);
    assert_eq!(resumed(101), LIMITS.rate);
}

/// A class with one flow that fills its window, at a limiter that lets `capacity` bytes per second pass.
struct Plant {
    class: ClassWindow,
    census: Census,
    now: Instant,
    base_ns: u64,
    drained: u64,
    /// Bytes that left in the last period, as a share of what could.
    used: f64,
    queue_ns: i64,
}

impl Plant {
    fn new(rate: u64, ceil: u64, base_ns: u64) -> Self {
        let config = ClassConfig { rate, ceil, setpoint_ns: 100_000, mode: Mode::Integral };
        let class = ClassWindow::new(config, 1_448, Instant::ZERO);
        Self { class, census: Census::default(), now: at(200_000), base_ns, drained: 0, used: 0.0, queue_ns: 0 }
    }

    fn run(&mut self, capacity: u64, span_ms: u64) {
        let end = self.now.plus_nanos(span_ms * 1_000_000);
        while self.now < end {
            let period_ns = self.base_ns.max(100_000);
            self.now = self.now.plus_nanos(period_ns);
            let window = bytes_in(self.class.drain(), self.class.window_ns()).max(2 * 1_448);
            let way = bytes_in(capacity, self.base_ns);
            let room = bytes_in(capacity, period_ns);
            let left = if window >= way { room } else { bytes_in(rate_of(window, self.base_ns), period_ns) };
            self.drained += left;
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let used = left as f64 / room as f64;
            self.used = used;
            let waits = span_of(window.saturating_sub(way), self.class.drain()).cast_signed();
            self.queue_ns = if window >= way { waits } else { -200_000 };
            self.class.on_base(self.base_ns);
            self.class.on_limited(&mut self.census);
            self.class.sample(self.queue_ns);
            self.class.on_timeout(self.drained, self.now);
        }
    }
}

#[test]
fn a_neighbours_beginning_and_end_are_followed_within_five_milliseconds() {
    for (rate_mbit, ceil_mbit) in [(500, 1_000), (100, 1_000), (1_000, 10_000), (10_000, 40_000)] {
        // Over a longer way it takes longer: a rise is by a few tenths in each round trip.
        for base_ns in [20_000, 70_000, 200_000] {
            let (rate, ceil) = (rate_mbit * GIGABIT / 1_000, ceil_mbit * GIGABIT / 1_000);
            let mut plant = Plant::new(rate, ceil, base_ns);
            plant.run(ceil, 100);
            for capacity in [rate, ceil, rate + (ceil - rate) / 3, ceil, rate] {
                plant.run(capacity, 5);
                let what = format!("{rate_mbit} to {ceil_mbit} Mbit/s, {base_ns} ns, {capacity}");
                let drain = plant.class.drain();
                assert!(drain.abs_diff(capacity) <= capacity / 10, "{what}: {drain}");
                assert!(plant.used > 0.95, "{what}: {}", plant.used);
                plant.run(capacity, 20);
                assert!(plant.class.drain().abs_diff(capacity) <= capacity / 50, "{what}: {}", plant.class.drain());
                // Two segments are always in flight.
                let wanted = 100_000.max(span_of(2 * 1_448, capacity).saturating_sub(base_ns).cast_signed());
                assert!(plant.queue_ns.abs_diff(wanted) < 50_000, "{what}: {} ns", plant.queue_ns);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_drain_lies_between_the_guarantee_and_the_ceiling(
        rate in 1_u64..12_500_000_000,
        more in 0_u64..12_500_000_000,
        told in proptest::collection::vec((any::<i32>(), 0_u64..1_000_000_000, 0_u64..300_000_000), 1..80),
    ) {
        let ceil = rate + more;
        let config = ClassConfig { rate, ceil, setpoint_ns: 100_000, mode: Mode::Integral };
        let mut class = ClassWindow::new(config, 1_448, Instant::ZERO);
        let (mut now, mut drained) = (Instant::ZERO, 0_u64);
        for (queue_ns, bytes, gap_ns) in told {
            now = now.plus_nanos(gap_ns);
            drained += bytes;
            class.sample(queue_ns.into());
            class.on_timeout(drained, now);
            prop_assert!((rate..=ceil).contains(&class.drain()));
        }
    }

    #[test]
    fn of_a_class_that_cannot_borrow_nothing_is_measured(
        told in proptest::collection::vec((any::<i32>(), any::<u64>(), 0_u64..3_000_000), 1..80),
    ) {
        let config = ClassConfig { rate: GIGABIT, ceil: GIGABIT, setpoint_ns: 100_000, mode: Mode::Integral };
        let mut classes = [ClassWindow::new(config, 1_448, Instant::ZERO); 2];
        let mut now = Instant::ZERO;
        for (queue_ns, drained, gap_ns) in told {
            now = now.plus_nanos(gap_ns);
            for (class, drained) in classes.iter_mut().zip([0, drained]) {
                class.sample(queue_ns.into());
                class.on_timeout(drained, now);
            }
            prop_assert_eq!(classes[0], classes[1]);
        }
    }
}

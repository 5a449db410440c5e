use proptest::prelude::*;

use super::*;
use crate::control::window::{Share, bytes_in, share};

const MSS: u64 = 1_448;
const GIGABIT: u64 = 125_000_000;

fn config(rate: u64, mode: Mode) -> ClassConfig {
    ClassConfig { rate, ceil: rate, setpoint_ns: 100_000, mode }
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
        let mut class = ClassWindow::new(config, MSS, Instant::ZERO);
        class.on_timeout(0, Instant::ZERO);
        Self { class, census: Census::default(), now: Instant::ZERO }
    }

    /// One period that found `queue_ns`.
    fn period(&mut self, queue_ns: i64) -> u64 {
        self.now = self.now.plus_nanos(self.class.base_ns().max(PERIOD_MIN_NS));
        self.class.on_limited(&mut self.census);
        self.class.sample(queue_ns);
        self.class.on_timeout(0, self.now);
        self.class.window_ns()
    }
}

#[test]
fn the_window_moves_by_a_quarter_of_the_error_and_not_too_far() {
    let mut busy = Busy::new(config(GIGABIT, Mode::Integral));
    assert_eq!(busy.class.window_ns(), 200_000);
    assert_eq!(busy.period(100_000 - 4_000), 201_000);
    assert_eq!(busy.period(100_000 + 4_000), 200_000);
    assert_eq!(busy.period(-1_000_000), 225_000, "up by a quarter of the setpoint at most");
    assert_eq!(busy.period(1_000_000_000), 225_000 - 56_250, "down by a quarter of the window at most");
}

#[test]
fn samples_between_updates_are_averaged() {
    let mut busy = Busy::new(config(GIGABIT, Mode::Integral));
    busy.class.sample(400_000);
    busy.class.sample(-329_000);
    assert_eq!(busy.period(0), 200_000 + (100_000 - 23_666) / 4);
}

#[test]
fn marks_move_the_window_as_in_dctcp() {
    let mut busy = Busy::new(config(GIGABIT, Mode::Dctcp));
    assert_eq!(busy.period(100_000), 200_000 + 11_584, "the setpoint itself is no mark");
    // Half of the samples above it: the share of marks moves by a 32nd, the window by a 64th.
    busy.class.sample(100_001);
    let before = busy.class.window_ns();
    assert_eq!(busy.period(0), before - before / 64);
}

#[test]
fn it_is_not_computed_anew_before_a_round_trip_is_over() {
    let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), MSS, at(0));
    class.on_base(250_000);
    class.on_timeout(0, at(0));
    class.sample(0);
    class.on_timeout(0, at(249));
    assert_eq!(class.window_ns(), 200_000);
    class.on_timeout(0, at(250));
    assert_eq!(class.window_ns(), 225_000);
    class.on_timeout(0, at(900));
    assert_eq!(class.window_ns(), 225_000, "no sample, nothing to go by");
}

#[test]
fn the_base_follows_short_round_trips_fast_and_long_ones_slowly() {
    assert_eq!(follow_base(0, 70_000), 70_000);
    assert_eq!(follow_base(80_000, 72_000), 79_000);
    assert_eq!(follow_base(64_000, 70_400), 64_100);
    assert_eq!(follow_base(64_000, 40_000_000), 65_000, "a delayed acknowledgement");
}

#[test]
fn flows_count_for_the_rest_of_their_epoch_and_the_next() {
    let mut class = ClassWindow::new(config(GIGABIT, Mode::Integral), MSS, at(1));
    let mut flows = [Census::default(); 3];
    assert!(!class.counts(flows[0], at(1)), "never held");
    for flow in &mut flows {
        class.on_limited(flow);
    }
    class.on_limited(&mut flows[0]);
    assert_eq!(class.flows(), 3);
    class.on_timeout(0, at(10_001));
    class.on_limited(&mut flows[0]);
    assert_eq!(class.flows(), 3, "one of them in the new epoch");
    assert!(class.counts(flows[1], at(20_000)));
    class.on_timeout(0, at(20_001));
    assert_eq!(class.flows(), 1, "the others' last epoch is over");
    assert!(!class.counts(flows[1], at(20_001)));
    class.on_timeout(0, at(30_001));
    class.on_timeout(0, at(40_001));
    assert_eq!(class.flows(), 1, "at least one");
}

/// The plant: what exceeds the round trip of one flow's window waits, and is seen one round trip later.
fn settled(mode: Mode, rate: u64, rtt_ns: u64, periods: u32) -> Vec<i64> {
    let mut busy = Busy::new(config(rate, mode));
    let mut queue_ns = 0;
    let mut queues = Vec::new();
    for _ in 0..periods {
        busy.class.on_base(rtt_ns);
        let window_ns = busy.period(queue_ns);
        let far_ns = crate::control::window::far_ns(rtt_ns, busy.class.base_ns());
        let share = share(Share { window_ns, flows: busy.class.flows(), rate, far_ns, mss: MSS });
        // Idle for at most 500 us: the limiter's burst.
        queue_ns = (signed(span_of(with_headers(share), rate)) - signed(rtt_ns)).max(-500_000);
        queues.push(queue_ns);
    }
    queues.split_off(queues.len() / 2)
}

const RATES_MBIT: [u64; 9] = [1, 3, 10, 100, 500, 1_000, 2_000, 10_000, 40_000];
const RTTS_US: [u64; 10] = [20, 50, 100, 150, 200, 500, 1_000, 5_000, 20_000, 100_000];

fn each() -> impl Iterator<Item = (u64, u64)> {
    RATES_MBIT.into_iter().flat_map(|rate| RTTS_US.map(|rtt| (rate * GIGABIT / 1_000, rtt * 1_000)))
}

/// The shortest queue that a class can have: its one flow has 9/4 segments in flight.
fn floor_ns(rate: u64, rtt_ns: u64) -> i64 {
    signed(span_of(with_headers(MSS * 9 / 4), rate)) - signed(rtt_ns)
}

/// Bytes that the limiter counts for `payload`.
fn with_headers(payload: u64) -> u64 {
    payload * 1_514 / MSS
}

#[test]
fn the_integral_law_settles_at_the_setpoint_for_every_rate_and_round_trip() {
    for (rate, rtt_ns) in each() {
        let wanted = 100_000.max(floor_ns(rate, rtt_ns));
        let queues = settled(Mode::Integral, rate, rtt_ns, 2_000);
        let far = queues.iter().map(|queue| (queue - wanted).abs()).max().unwrap();
        // A share is whole bytes, and a window that far from a second's whole byte rounds.
        let rounding = signed(span_of(2, rate)).max(100);
        // The smallest window of a slow class may be longer than what its flow needs beyond its way.
        let slack = signed(span_of(2 * MSS, rate)).max(0);
        let bound = if wanted > 100_000 || slack > 100_000 { rounding + slack } else { rounding };
        assert!(far <= bound, "rate {rate}, rtt {rtt_ns}: {far} from {wanted}");
    }
}

#[test]
fn the_integral_law_never_overshoots_by_more_than_its_step() {
    // From the first window up and down: the queue goes to its setpoint without passing it by more than rounding.
    for rtt_ns in [20_000, 70_000, 150_000] {
        let mut busy = Busy::new(config(GIGABIT, Mode::Integral));
        busy.class.on_base(rtt_ns);
        let mut errors = Vec::new();
        let mut queue_ns = signed(busy.class.window_ns()) - signed(rtt_ns);
        for _ in 0..60 {
            queue_ns = signed(busy.period(queue_ns)) - signed(rtt_ns);
            errors.push(queue_ns - 100_000);
        }
        let sides = errors.windows(2).filter(|pair| pair[0].signum() * pair[1].signum() < 0).count();
        assert_eq!(sides, 0, "{errors:?}");
        assert!(errors[40].abs() < 100, "{errors:?}");
    }
}

#[test]
fn the_dctcp_law_stays_near_the_setpoint_without_running_dry() {
    for (rate, rtt_ns) in each() {
        let queues = settled(Mode::Dctcp, rate, rtt_ns, 20_000);
        let most = *queues.iter().max().unwrap();
        let segment = signed(span_of(MSS, rate));
        let bound = 100_000.max(floor_ns(rate, rtt_ns)) + 6 * segment;
        assert!(most <= bound, "rate {rate}, rtt {rtt_ns}: {most} of {bound}");
        let dry = queues.iter().filter(|queue| **queue <= -500_000).count();
        // Far peers: up to 31/32 of the way is filled without the law, which then saws over many round trips.
        let rarely = if rtt_ns < 100_000_000 { 50 } else { 10 };
        assert!(dry * rarely <= queues.len(), "rate {rate}, rtt {rtt_ns}: dry in {dry} of {}", queues.len());
    }
}

#[test]
fn bytes_and_spans_are_exact_where_shapers_work() {
    assert_eq!(bytes_in(GIGABIT, 60_000), 7_500);
    assert_eq!(bytes_in(40 * GIGABIT + 1, 3_600_000_000_000), 18_000_000_003_600);
    assert_eq!(span_of(1_514, GIGABIT), 12_112);
}

proptest! {
    #[test]
    fn the_window_is_bounded_whatever_is_told(
        rate in 1_u64..12_500_000_000,
        setpoint_ns in 0_u64..1_000_000_000,
        mss in 1_u64..65_536,
        dctcp: bool,
        told in proptest::collection::vec((any::<i64>(), any::<u64>(), 0_u64..30_000_000, any::<bool>()), 1..80),
    ) {
        let mode = if dctcp { Mode::Dctcp } else { Mode::Integral };
        let mut class = ClassWindow::new(ClassConfig { rate, ceil: rate, setpoint_ns, mode }, mss, Instant::ZERO);
        let mut census = [Census::default(); 2];
        let mut now = Instant::ZERO;
        for (queue_ns, base_ns, gap, which) in told {
            now = now.plus_nanos(gap);
            class.sample(queue_ns);
            class.on_base(base_ns);
            class.on_limited(&mut census[usize::from(which)]);
            class.on_timeout(0, now);
            let within = class.window_min_ns()..=class.window_max_ns();
            prop_assert!(class.window_ns() == WINDOW_START_NS || within.contains(&class.window_ns()));
            prop_assert!((1..=2).contains(&class.flows()));
            prop_assert!(class.alpha <= ALPHA_ONE);
        }
    }
}

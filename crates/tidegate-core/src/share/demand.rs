//! What a claimant is expected to want next.

use core::time::Duration;

use crate::number::short;

/// How much of a rise is believed at once. A share must be there when it is needed: a claimant within its part of the
/// capacity is not refused in the meantime, but every refusal of others that lasts longer costs them.
const RISE: f64 = 0.7;
/// How fast the trend follows the level.
const TREND: f64 = 0.3;
/// What a fall of the demand leaves of itself in [`HALF_LIFE`].
const FALL: f64 = 0.5;
/// A share is given up slowly, since giving it up too early costs a claimant refusals and keeping it costs nobody
/// anything: what it does not use is lent.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// Level and trend of a demand, in units per second, of a gauge in units.
///
/// Source: Holt, "Forecasting seasonals and trends by exponentially weighted moving averages" (1957). Departures: a
/// rise is followed faster than a fall, and a falling trend is not extrapolated.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Demand {
    level: f32,
    trend: f32,
}

/// The factors of one tick, the same for all claimants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Smoothing {
    fall: f64,
}

impl Smoothing {
    /// For a tick of `elapsed`.
    pub(super) fn over(elapsed: Duration) -> Self {
        Self { fall: 1.0 - FALL.powf(elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64()) }
    }
}

impl Demand {
    /// Takes in what was wanted during a tick; more than `most` is nobody's demand.
    #[inline]
    pub(super) fn observe(&mut self, wanted: f64, smoothing: Smoothing, most: f64) {
        let (level, trend) = (f64::from(self.level), f64::from(self.trend));
        let wanted = wanted.min(most);
        let expected = level + trend.max(0.0);
        let next = if wanted > expected {
            expected + RISE * (wanted - expected)
        } else {
            level + smoothing.fall * (wanted - level)
        };
        self.trend = short(TREND * (next - level) + (1.0 - TREND) * trend);
        // Below a thousandth nothing is left; and numbers near zero are slow.
        self.level = if next < 1e-3 { 0.0 } else { short(next.min(most)) };
        if self.trend.abs() < 1e-3 {
            self.trend = 0.0;
        }
    }

    /// What is expected for the next tick, 0 to `most`.
    #[inline]
    pub(super) fn expected(self, most: f64) -> f64 {
        (f64::from(self.level) + f64::from(self.trend).max(0.0)).clamp(0.0, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn after(demand: &mut Demand, wanted: f64, ticks: u32) -> f64 {
        for _ in 0..ticks {
            demand.observe(wanted, Smoothing::over(TICK), 1e6);
        }
        demand.expected(1e6)
    }

    #[test]
    fn a_rise_is_followed_within_two_ticks_and_a_fall_takes_ten_seconds() {
        let mut demand = Demand::default();
        assert!(after(&mut demand, 100.0, 1) >= 70.0);
        assert!(after(&mut demand, 100.0, 1) >= 95.0);
        let peak = after(&mut demand, 100.0, 50);
        let half = after(&mut demand, 0.0, 100);
        assert!((half / peak - 0.5).abs() < 0.05, "{peak} {half}");
    }

    #[test]
    fn nobody_is_expected_to_want_more_than_there_is() {
        let mut demand = Demand::default();
        demand.observe(1e12, Smoothing::over(TICK), 1_000.0);
        assert!(demand.expected(1_000.0) <= 1_000.0);
        assert!(after(&mut demand, 0.0, 6_000) < 1e-3);
    }
}

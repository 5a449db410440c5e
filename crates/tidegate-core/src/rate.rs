//! Exact rates.

use core::cmp::Ordering;
use core::time::Duration;

mod text;

pub use text::ParseRateError;

const SECOND_NS: u64 = 1_000_000_000;

/// Tokens per span of time, kept as the reduced fraction `tokens / period`, so that nothing is ever rounded.
///
/// Three per second is 3 tokens per 10^9 ns, not one per 333,333,333 ns.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: u64,
    period_ns: u64,
}

impl Rate {
    /// No tokens, ever.
    pub const ZERO: Self = Self { tokens: 0, period_ns: 1 };

    /// `tokens` in every second.
    #[must_use]
    pub const fn per_s(tokens: u64) -> Self {
        Self::of(tokens, SECOND_NS)
    }

    /// `tokens` in every `period`.
    ///
    /// # Panics
    /// If `period` is zero or longer than 584 years.
    #[must_use]
    pub const fn per(tokens: u64, period: Duration) -> Self {
        let ns = period.as_nanos();
        assert!(ns > 0 && ns <= u64::MAX as u128, "the period of a rate is a positive span below 584 years");
        #[expect(clippy::cast_possible_truncation, reason = "checked in the line above")]
        Self::of(tokens, ns as u64)
    }

    /// The rate nearest to `per_s` tokens a second, to a millionth of a token; zero for negative numbers and NaN.
    #[must_use]
    pub fn from_per_s_f64(per_s: f64) -> Self {
        let millionths = (per_s * 1e6).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "float casts saturate; NaN gives 0"
        )]
        Self::of(millionths as u64, SECOND_NS * 1_000_000)
    }

    /// `tokens` in every `period_ns`, exactly; `None` if the period is zero or the reduced fraction does not fit.
    #[must_use]
    pub fn from_fraction(tokens: u128, period_ns: u128) -> Option<Self> {
        let (mut divisor, mut rest) = (tokens, period_ns);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let period_ns = period_ns.checked_div(divisor).filter(|&period_ns| period_ns > 0)?;
        Some(Self { tokens: (tokens / divisor).try_into().ok()?, period_ns: period_ns.try_into().ok()? })
    }

    const fn of(tokens: u64, period_ns: u64) -> Self {
        let divisor = greatest_common_divisor(tokens, period_ns);
        Self { tokens: tokens / divisor, period_ns: period_ns / divisor }
    }

    /// The numerator of the reduced fraction.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.tokens
    }

    /// The denominator of the reduced fraction, in nanoseconds; never zero.
    #[must_use]
    pub const fn period_ns(self) -> u64 {
        self.period_ns
    }

    /// True if no token is ever minted.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.tokens == 0
    }

    /// Tokens per second, rounded to the nearest `f64`, for people and for formulas.
    #[must_use]
    pub fn as_per_s(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for display; the exact value is the fraction")]
        let (tokens, period_ns) = (self.tokens as f64, self.period_ns as f64);
        tokens * 1e9 / period_ns
    }

    /// The sum of two rates, exactly; `None` if it is no fraction of two 64-bit numbers.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let (mine, theirs) = (u128::from(self.period_ns), u128::from(other.period_ns));
        let tokens = (u128::from(self.tokens) * theirs).checked_add(u128::from(other.tokens) * mine)?;
        Self::from_fraction(tokens, mine * theirs)
    }

    /// `times` as much; the nearest below that if it is no fraction of two 64-bit numbers, which takes 10^15 tokens a
    /// second or more.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        let (mut tokens, mut period_ns) = (u128::from(self.tokens) * u128::from(times), u128::from(self.period_ns));
        loop {
            if let Some(rate) = Self::from_fraction(tokens, period_ns) {
                return rate;
            }
            (tokens, period_ns) = (tokens / 2, period_ns.div_ceil(2));
        }
    }

    /// One of `parts` shares that sum to `self` exactly.
    ///
    /// # Panics
    /// If `parts` is zero, or the period times `parts` exceeds 584 years.
    #[must_use]
    pub const fn divided_by(self, parts: u64) -> Self {
        assert!(parts > 0, "a rate is divided into at least one part");
        let divisor = greatest_common_divisor(self.tokens, parts);
        let (tokens, parts) = (self.tokens / divisor, parts / divisor);
        Self { tokens, period_ns: self.period_ns.checked_mul(parts).expect("the period stays below 584 years") }
    }
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> Ordering {
        let (left, right) = (u128::from(self.tokens), u128::from(other.tokens));
        (left * u128::from(other.period_ns)).cmp(&(right * u128::from(self.period_ns)))
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_reduced_fractions() {
        assert_eq!(Rate::per_s(1_000), Rate::per(1, Duration::from_millis(1)));
        assert_eq!(Rate::per_s(0), Rate::per(0, Duration::from_secs(7)));
        assert_eq!(Rate::per_s(3).divided_by(2), Rate::per(3, Duration::from_secs(2)));
        assert_eq!(Rate::from_per_s_f64(2.5), Rate::per(5, Duration::from_secs(2)));
        assert_eq!(Rate::from_per_s_f64(f64::NAN), Rate::ZERO);
        assert_eq!(Rate::from_fraction(0, 0), None);
        assert_eq!(Rate::from_fraction(1, 0), None);
        assert_eq!(Rate::from_fraction(6 << 90, 4 << 90), Rate::from_fraction(3, 2));
        assert_eq!(Rate::from_fraction(1 << 64, 1), None);
    }

    #[test]
    fn a_multiple_is_exact_or_a_bit_less() {
        assert_eq!(Rate::per_s(11_000).divided_by(6).times(16), Rate::per_s(88_000).divided_by(3));
        assert_eq!(Rate::ZERO.times(16), Rate::ZERO);
        let most = Rate::from_fraction(u64::MAX.into(), 1_000).unwrap();
        let many = most.times(16);
        assert!(many > most.times(15) && many.as_per_s() <= most.as_per_s() * 16.0);
    }

    #[test]
    fn rates_add_and_compare_exactly() {
        let third = Rate::per(1, Duration::from_nanos(3));
        assert_eq!(third.checked_add(third).and_then(|sum| sum.checked_add(third)), Some(Rate::per_s(SECOND_NS)));
        assert!(third < Rate::per(333_333_334, Duration::from_secs(1)));
        assert!(third > Rate::per(333_333_333, Duration::from_secs(1)));
        assert_eq!(Rate::per_s(u64::MAX - 2).checked_add(Rate::per_s(SECOND_NS)), None);
    }
}

//! Rates as people write them: `11k/s`, `2.5/s`, `90/min`, `50M/h`.

use core::fmt;
use core::str::FromStr;

use crate::Rate;

const SECOND_NS: u64 = 1_000_000_000;

/// Units of time, first the name that is written, then the others that are read.
const UNITS: [(&[&str], u64); 7] = [
    (&["s", "sec", "second"], SECOND_NS),
    (&["min", "minute"], 60 * SECOND_NS),
    (&["h", "hour"], 3_600 * SECOND_NS),
    (&["d", "day"], 86_400 * SECOND_NS),
    (&["ms"], 1_000_000),
    (&["us"], 1_000),
    (&["ns"], 1),
];

const MULTIPLES: [(char, u64); 3] = [('G', 1_000_000_000), ('M', 1_000_000), ('k', 1_000)];

/// Decimal places that are written before another unit or a fraction is preferred.
const PLACES: u32 = 9;

/// Text that is no rate.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseRateError {
    /// There is no decimal number before the unit.
    Number {
        /// What stands there.
        found: String,
    },
    /// The unit of time is unknown, or its count is zero or no whole number.
    Unit {
        /// What stands after the slash.
        found: String,
    },
    /// No fraction of two 64-bit numbers expresses it exactly.
    OutOfRange {
        /// The whole text.
        found: String,
    },
}

impl fmt::Display for ParseRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { found } => write!(f, "`{found}` is no decimal number with an optional k, M or G")?,
            Self::Unit { found } => {
                write!(f, "`{found}` is no span of time in ")?;
                for (position, (names, _)) in UNITS.iter().enumerate() {
                    write!(f, "{}{}", if position == 0 { "" } else { ", " }, names[0])?;
                }
            }
            Self::OutOfRange { found } => write!(f, "`{found}` is too large or too finely divided")?,
        }
        f.write_str("; a rate reads like 11k/s, 2.5/s, 90/min, 50M/h, 1/15min, or 11000 for so many a second")
    }
}

impl core::error::Error for ParseRateError {}

impl FromStr for Rate {
    type Err = ParseRateError;

    /// Reads `<number>[k|M|G][/[<count>]<unit>]`, exactly; without a unit it is per second.
    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        let text = text.trim();
        let (amount, span) = text.split_once('/').unwrap_or((text, "s"));
        let out_of_range = || ParseRateError::OutOfRange { found: text.to_owned() };
        let span_ns = parse_span(span.trim())?;
        let (digits, multiple) = split_multiple(amount.trim());
        let (number, divisor) = parse_decimal(digits, amount)?.ok_or_else(out_of_range)?;
        let tokens = number.checked_mul(u128::from(multiple)).ok_or_else(out_of_range)?;
        let period_ns = divisor.checked_mul(span_ns.ok_or_else(out_of_range)?).ok_or_else(out_of_range)?;
        Self::from_fraction(tokens, period_ns).ok_or_else(out_of_range)
    }
}

fn split_multiple(amount: &str) -> (&str, u64) {
    let found = MULTIPLES.iter().find_map(|&(letter, multiple)| Some((amount.strip_suffix(letter)?, multiple)));
    found.unwrap_or((amount, 1))
}

/// `digits` as a fraction with a power of ten below; `None` if it overflows.
fn parse_decimal(digits: &str, amount: &str) -> Result<Option<(u128, u128)>, ParseRateError> {
    let (whole, places) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit()) && part.chars().all(is_digit_or_gap);
    if !is_number(whole) || !is_number(places) {
        return Err(ParseRateError::Number { found: amount.to_owned() });
    }
    let places = places.trim_end_matches('0');
    let mut number: Option<u128> = Some(0);
    for digit in whole.chars().chain(places.chars()).filter_map(|c| c.to_digit(10)) {
        number = number.and_then(|n| n.checked_mul(10)?.checked_add(u128::from(digit)));
    }
    let count = places.chars().filter(char::is_ascii_digit).count();
    let divisor = u32::try_from(count).ok().and_then(|count| 10u128.checked_pow(count));
    Ok(number.zip(divisor))
}

fn is_digit_or_gap(c: char) -> bool {
    c.is_ascii_digit() || c == '_'
}

/// `15min` in nanoseconds; `None` if it overflows.
fn parse_span(span: &str) -> Result<Option<u128>, ParseRateError> {
    let unknown = || ParseRateError::Unit { found: span.to_owned() };
    let name = span.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = &span[..span.len() - name.len()];
    let (_, unit_ns) = UNITS.iter().find(|(names, _)| names.contains(&name.trim())).ok_or_else(unknown)?;
    if count.is_empty() {
        return Ok(Some(u128::from(*unit_ns)));
    }
    if count.bytes().all(|digit| digit == b'0') {
        return Err(unknown());
    }
    Ok(count.parse::<u64>().ok().map(|count| u128::from(count) * u128::from(*unit_ns)))
}

impl fmt::Display for Rate {
    /// Text that reads back as the same rate: a decimal per second if there is a short one, else a whole number in
    /// another unit, else the fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = [(0, PLACES), (1, 0), (2, 0), (3, 0)];
        for (unit, places) in decimals {
            let (names, unit_ns) = UNITS[unit];
            if let Some(number) = self.decimal_in(unit_ns, places) {
                return write!(f, "{number}/{}", names[0]);
            }
        }
        write!(f, "{}/{}ns", self.tokens(), self.period_ns())
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `units` / 10^`places`.
struct Decimal {
    units: u128,
    places: u32,
}

impl Rate {
    /// Tokens in a span as a decimal of at most `places` places, if it is one.
    fn decimal_in(self, span_ns: u64, places: u32) -> Option<Decimal> {
        let tokens = u128::from(self.tokens()) * u128::from(span_ns);
        let period_ns = u128::from(self.period_ns());
        (0..=places).find_map(|places| {
            let scaled = tokens.checked_mul(10u128.pow(places))?;
            (scaled % period_ns == 0).then_some(Decimal { units: scaled / period_ns, places })
        })
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { units, places } = *self;
        if places > 0 {
            let one = 10u128.pow(places);
            return write!(f, "{}.{:0width$}", units / one, units % one, width = places as usize);
        }
        for (letter, multiple) in MULTIPLES {
            if units > 0 && units % u128::from(multiple) == 0 {
                return write!(f, "{}{letter}", units / u128::from(multiple));
            }
        }
        write!(f, "{units}")
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use core::fmt;

    use serde::de::{self, Deserialize, Deserializer, Visitor};
    use serde::ser::{Serialize, Serializer};

    use crate::Rate;

    impl Serialize for Rate {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Rate {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(RateVisitor)
        }
    }

    struct RateVisitor;

    impl Visitor<'_> for RateVisitor {
        type Value = Rate;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a rate: a number per second, or text like `11k/s`")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Rate, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_u64<E: de::Error>(self, per_s: u64) -> Result<Rate, E> {
            Ok(Rate::per_s(per_s))
        }

        fn visit_i64<E: de::Error>(self, per_s: i64) -> Result<Rate, E> {
            let per_s = u64::try_from(per_s).map_err(|_| E::invalid_value(de::Unexpected::Signed(per_s), &self))?;
            Ok(Rate::per_s(per_s))
        }

        fn visit_f64<E: de::Error>(self, per_s: f64) -> Result<Rate, E> {
            // The shortest decimal that means this number is what its writer wrote.
            format!("{per_s}").parse().map_err(|_| E::invalid_value(de::Unexpected::Float(per_s), &self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn people_write_rates_in_many_ways() {
        let minute = Duration::from_mins(1);
        for (text, expected) in [
            ("11k/s", Rate::per_s(11_000)),
            ("11000", Rate::per_s(11_000)),
            ("11_000 / second", Rate::per_s(11_000)),
            ("2.5/s", Rate::per(5, Duration::from_secs(2))),
            ("90/min", Rate::per(90, minute)),
            ("50M/h", Rate::per(50_000_000, 60 * minute)),
            ("0.1G/d", Rate::per(100_000_000, 24 * 60 * minute)),
            ("1/15min", Rate::per(1, 15 * minute)),
            ("3/333ns", Rate::per(3, Duration::from_nanos(333))),
            ("0/s", Rate::ZERO),
            ("18446744073709551615", Rate::per_s(u64::MAX)),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_named() {
        for (text, expected) in [
            ("", ParseRateError::Number { found: String::new() }),
            ("-1/s", ParseRateError::Number { found: "-1".into() }),
            (".5/s", ParseRateError::Number { found: ".5".into() }),
            ("1e3", ParseRateError::Number { found: "1e3".into() }),
            ("11K/s", ParseRateError::Number { found: "11K".into() }),
            ("5/fortnight", ParseRateError::Unit { found: "fortnight".into() }),
            ("5/0s", ParseRateError::Unit { found: "0s".into() }),
            ("5/", ParseRateError::Unit { found: String::new() }),
            ("18446744073709551617/s", ParseRateError::OutOfRange { found: "18446744073709551617/s".into() }),
            ("1/99999999999999999999s", ParseRateError::OutOfRange { found: "1/99999999999999999999s".into() }),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(expected), "{text}");
        }
        let message = "5/fortnight".parse::<Rate>().unwrap_err().to_string();
        assert_eq!(
            message,
            "`fortnight` is no span of time in s, min, h, d, ms, us, ns; a rate reads like 11k/s, 2.5/s, 90/min, \
             50M/h, 1/15min, or 11000 for so many a second"
        );
    }

    #[test]
    fn the_shortest_exact_text_is_written() {
        for (text, expected) in [
            ("11000", "11k/s"),
            ("11500", "11500/s"),
            ("90/min", "1.5/s"),
            ("50M/h", "50M/h"),
            ("1/min", "1/min"),
            ("1/15min", "4/h"),
            ("1/7d", "1/604800000000000ns"),
            ("0", "0/s"),
            ("0.05/s", "0.05/s"),
        ] {
            assert_eq!(rate(text).to_string(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_reads_back_as_the_same_rate(tokens: u64, period_ns in 1u64..) {
            let rate = Rate::from_fraction(tokens.into(), period_ns.into()).unwrap();
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn no_text_panics(text in "[0-9._kMG/smhd -]{0,24}") {
            if let Ok(rate) = text.parse::<Rate>() {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn numbers_and_text_deserialize_exactly() {
        for (json, expected) in [("\"11k/s\"", "11k/s"), ("11000", "11k/s"), ("2.5", "2.5/s"), ("0.1", "0.1/s")] {
            let rate: Rate = serde_json::from_str(json).unwrap();
            assert_eq!(rate.to_string(), expected);
            let text = serde_json::to_string(&rate).unwrap();
            assert_eq!(serde_json::from_str::<Rate>(&text).unwrap(), rate);
        }
        for json in ["-1", "-0.5", "1e300", "\"\"", "null"] {
            assert!(serde_json::from_str::<Rate>(json).is_err(), "{json}");
        }
    }
}

//! Rates of links and classes: whole bytes a second, as the kernel counts, written in bits.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};

/// Bytes of frames per second; written in bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LineRate(u64);

/// With their bits.
const UNITS: [(&str, u64); 5] =
    [("bit", 1), ("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("tbit", 1_000_000_000_000)];
const WORDS: [&str; 5] = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
const ACCEPTED: &str = "a rate from 8 kbit/s to 1 Tbit/s such as \"1 Gbit/s\", \"2.5 Gbit/s\" or \"100 Mbit/s\"";

impl LineRate {
    /// Below, a packet of 1,500 bytes would take more than 1.5 s.
    pub const MIN: Self = Self(1_000);
    /// Above, spans of a packet are below the kernel's tick.
    pub const MAX: Self = Self(125_000_000_000);

    /// From bytes a second; within [`Self::MIN`] and [`Self::MAX`].
    #[must_use]
    pub fn of_bytes(per_s: u64) -> Self {
        Self(per_s.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes_per_s(self) -> u64 {
        self.0
    }

    /// Whole bytes that pass in `span`.
    #[must_use]
    pub fn bytes_in(self, span: Duration) -> u64 {
        let bytes = u128::from(self.0) * span.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// How long `bytes` take, rounded up to whole nanoseconds.
    #[must_use]
    pub fn span_of(self, bytes: u64) -> Duration {
        let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// A text that is no rate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not {ACCEPTED}")]
pub struct NotALineRate {
    /// The text.
    pub found: String,
}

impl FromStr for LineRate {
    type Err = NotALineRate;

    fn from_str(text: &str) -> Result<Self, NotALineRate> {
        let read = || {
            let trimmed = text.trim();
            let trimmed = trimmed.strip_suffix("/s").unwrap_or(trimmed);
            let (number, unit) = trimmed.split_at(trimmed.find(|c: char| !c.is_ascii_digit() && c != '.')?);
            let unit = unit.trim_start().to_ascii_lowercase();
            let (_, bits) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if whole.is_empty() || number.ends_with('.') || fraction.len() > 12 || fraction.contains('.') {
                return None;
            }
            let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            let parts = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
            let scaled = whole.parse::<u128>().ok()?.checked_mul(scale)?.checked_add(parts)?;
            let bytes = u64::try_from(scaled.checked_mul(bits.into())? / scale / 8).ok()?;
            (Self::MIN.0..=Self::MAX.0).contains(&bytes).then_some(Self(bytes))
        };
        read().ok_or_else(|| NotALineRate { found: text.to_owned() })
    }
}

impl fmt::Display for LineRate {
    /// In the largest unit that needs at most three digits behind the point, else in bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8;
        for ((_, unit), word) in UNITS.iter().zip(WORDS).rev() {
            if bits >= *unit && (bits * 1_000).is_multiple_of(*unit) {
                let (whole, thousandths) = (bits / unit, bits % unit * 1_000 / unit);
                let fraction = if thousandths == 0 { String::new() } else { format!(".{thousandths:03}") };
                return write!(f, "{whole}{} {word}", fraction.trim_end_matches('0'));
            }
        }
        write!(f, "{bits} bit/s")
    }
}

impl Serialize for LineRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LineRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = LineRate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ACCEPTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LineRate, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_str(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<u64> {
        text.parse().ok().map(LineRate::bytes_per_s)
    }

    #[test]
    fn rates_are_read_in_bits() {
        assert_eq!(bytes("1 Gbit/s"), Some(125_000_000));
        assert_eq!(bytes("2.5gbit"), Some(312_500_000));
        assert_eq!(bytes("100 Mbit/s"), Some(12_500_000));
        assert_eq!(bytes("8 kbit/s"), Some(1_000));
        assert_eq!(bytes("400 Gbit/s"), Some(50_000_000_000));
        assert_eq!(bytes("12345678 bit/s"), Some(1_543_209));
    }

    #[test]
    fn what_is_no_rate_is_none() {
        for text in ["", "1", "1 Gb/s", "125 MB/s", "1.", ".5 Gbit", "0 bit", "7 kbit", "2 Tbit/s", "-1 Gbit", "1 G"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_shown_as_they_are_written() {
        for text in ["1 Gbit/s", "2.5 Gbit/s", "100 Mbit/s", "8 kbit/s", "1 Tbit/s", "1.5 Mbit/s", "40 Gbit/s"] {
            assert_eq!(text.parse::<LineRate>().unwrap().to_string(), text);
        }
        assert_eq!(LineRate(1_543_209).to_string(), "12345.672 kbit/s");
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_is_read_as_the_same(per_s in 1_000_u64..=125_000_000_000) {
            let rate = LineRate::of_bytes(per_s);
            proptest::prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn a_span_holds_its_bytes(per_s in 1_000_u64..=125_000_000_000, bytes in 0_u64..1 << 32) {
            let rate = LineRate::of_bytes(per_s);
            proptest::prop_assert!(rate.bytes_in(rate.span_of(bytes)) >= bytes);
        }
    }
}

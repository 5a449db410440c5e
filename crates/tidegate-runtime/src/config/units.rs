//! Quantities as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};

/// A span such as `250ms`, `10s` or `1m30s`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub Duration);

/// A number of bytes such as `512`, `64KiB` or `1.5GB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

/// A text that is no quantity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not {accepted}")]
pub struct NotAQuantity {
    /// The text.
    pub found: String,
    /// What would have been one.
    pub accepted: &'static str,
}

impl Span {
    const ACCEPTED: &'static str = "a duration such as \"250ms\", \"10s\" or \"1m30s\"";
    const UNITS: [(&'static str, u64); 7] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];

    fn parse(mut text: &str) -> Option<Self> {
        if text == "0" {
            return Some(Self::default());
        }
        let mut total: u64 = 0;
        loop {
            let (number, rest) = split(text, |c| c.is_ascii_digit() || c == '.');
            let (unit, rest) = split(rest, char::is_alphabetic);
            let (_, ns) = Self::UNITS.into_iter().find(|(name, _)| *name == unit)?;
            total = total.checked_add(decimal(number, ns)?)?;
            if rest.is_empty() {
                return Some(Self(Duration::from_nanos(total)));
            }
            text = rest;
        }
    }
}

impl Bytes {
    const ACCEPTED: &'static str = "a number of bytes such as 512, \"64KiB\" or \"1.5GB\"";
    const UNITS: [(&'static str, u64); 10] = [
        ("", 1),
        ("b", 1),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
    ];

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split(text, |c| c.is_ascii_digit() || c == '.' || c == '_');
        let unit = unit.trim_start().to_ascii_lowercase();
        let (_, bytes) = Self::UNITS.into_iter().find(|(name, _)| *name == unit)?;
        decimal(&number.replace('_', ""), bytes).map(Self)
    }
}

/// `number` times `unit`, exactly or not at all: `1.5` of 1,000 is 1,500, of 1 it is nothing.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') || fraction.len() > 18 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scaled = parts * u128::from(unit);
    if !scaled.is_multiple_of(scale) {
        return None;
    }
    whole.checked_mul(unit)?.checked_add(u64::try_from(scaled / scale).ok()?)
}

fn split(text: &str, first: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !first(c)).unwrap_or(text.len()))
}

macro_rules! quantity {
    ($type:ident, |$number:ident| $from_number:expr) => {
        impl FromStr for $type {
            type Err = NotAQuantity;
            fn from_str(text: &str) -> Result<Self, NotAQuantity> {
                Self::parse(text.trim())
                    .ok_or_else(|| NotAQuantity { found: text.to_owned(), accepted: Self::ACCEPTED })
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($type::ACCEPTED)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
                    }
                    fn visit_u64<E: de::Error>(self, $number: u64) -> Result<$type, E> {
                        $from_number.ok_or_else(|| E::invalid_type(Unexpected::Unsigned($number), &self))
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        match u64::try_from(number) {
                            Ok(number) => self.visit_u64(number),
                            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                        }
                    }
                }
                from.deserialize_any(Reader)
            }
        }
    };
}

// A bare number says no unit, and milliseconds are as likely as seconds: only zero needs none.
quantity!(Span, |number| (number == 0).then(Span::default));
quantity!(Bytes, |number| Some(Bytes(number)));

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> Option<Duration> {
        text.parse().ok().map(|Span(span)| span)
    }

    fn bytes(text: &str) -> Option<u64> {
        text.parse().ok().map(|Bytes(bytes)| bytes)
    }

    #[test]
    fn spans_add_up() {
        assert_eq!(span("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(span("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(span("1.5h"), Some(Duration::from_mins(90)));
        assert_eq!(span("2us"), span("2µs"));
        assert_eq!(span("0"), Some(Duration::ZERO));
        assert_eq!(span("0s"), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_no_span_is_none() {
        for text in ["", "5", "ms", "-1s", "1 s", "1s2", "1..5s", ".5s", "5.s", "1d", "99999999999h", "0.3ns", "1s-"] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_are_decimal_or_binary_as_written() {
        assert_eq!(bytes("512"), Some(512));
        assert_eq!(bytes("64KiB"), Some(65_536));
        assert_eq!(bytes("1.5 GB"), Some(1_500_000_000));
        assert_eq!(bytes("1_000kb"), Some(1_000_000));
        assert_eq!(bytes("0.5KiB"), Some(512));
    }

    #[test]
    fn what_is_no_size_is_none() {
        for text in ["", "-1", "KiB", "1.5", "0.3KiB", "1 QB", "20000000TiB", "1.GB"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn files_may_write_bytes_as_numbers_but_spans_need_a_unit() {
        #[derive(serde::Deserialize)]
        struct File {
            size: Bytes,
            wait: Span,
        }
        let file: File = toml::from_str("size = 4096\nwait = 0").unwrap();
        assert_eq!((file.size, file.wait), (Bytes(4_096), Span::default()));
        assert!(toml::from_str::<File>("size = -1\nwait = \"1s\"").is_err());
        assert!(toml::from_str::<File>("size = 1\nwait = 5").is_err());
    }
}

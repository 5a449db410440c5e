//! The small values of `[shaper]`.

use core::fmt;
use core::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{self, Deserializer, Unexpected, Visitor};

use crate::machine::device::{Mark, Prefix};

/// `443` or `"8000-8099"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ports(pub(super) RangeInclusive<u16>);

/// `7`, `"0x7"` or `"0x100/0xff00"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MarkText(pub(super) Mark);

/// `"10.0.0.0/24"` or an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PrefixText(pub(super) Prefix);

impl Ports {
    const ACCEPTED: &'static str = "a port such as 443, or a range such as \"8000-8099\"";

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && first > 0).then_some(Self(first..=last))
    }
}

impl MarkText {
    const ACCEPTED: &'static str = "a mark such as 7, \"0x7\" or, with a mask, \"0x100/0xff00\"";

    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| match text.trim().strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.trim().parse().ok(),
        };
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (number(value)?, number(mask)?),
            None => (number(text)?, u32::MAX),
        };
        (value & !mask == 0).then_some(Self(Mark { value, mask }))
    }
}

impl PrefixText {
    const ACCEPTED: &'static str =
        "an address or a prefix without bits beyond its length, such as \"10.0.0.0/24\" or \"fd00::/64\"";

    fn parse(text: &str) -> Option<Self> {
        Prefix::parse(text).map(Self)
    }
}

macro_rules! from_text_or_number {
    ($type:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($type::ACCEPTED)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $type::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        let read = $type::parse(&number.to_string());
                        read.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
                    }
                }
                from.deserialize_any(Reader)
            }
        }
    };
}

from_text_or_number!(Ports);
from_text_or_number!(MarkText);
from_text_or_number!(PrefixText);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_marks_read_as_they_are_written() {
        let ports = |text| Ports::parse(text).map(|Ports(ports)| ports);
        assert_eq!([ports("443"), ports("8000-8099")], [Some(443..=443), Some(8_000..=8_099)]);
        assert_eq!([ports("0"), ports("9-8"), ports("65536"), ports("-1")], [None, None, None, None]);
        let mark = |text| MarkText::parse(text).map(|MarkText(mark)| (mark.value, mark.mask));
        assert_eq!([mark("7"), mark("0x100/0xff00")], [Some((7, u32::MAX)), Some((0x100, 0xff00))]);
        assert_eq!([mark("0x101/0xff00"), mark("-1"), mark("0xg")], [None, None, None]);
    }
}

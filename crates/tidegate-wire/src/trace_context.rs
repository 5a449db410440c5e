//! W3C Trace Context: which trace a request belongs to, and which span it came from.
//!
//! Source: "Trace Context", W3C Recommendation of 23 November 2021, §3.2 (`traceparent`). The flag that says that a trace id
//! is random is level 2's, of the same version; it is passed on and not set.
//!
//! ```
//! use tidegate_wire::trace_context::TraceParent;
//!
//! let text = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0b1902b7-01";
//! let parent = TraceParent::parse(text)?;
//! assert_eq!((parent.span_id.to_string().as_str(), parent.is_sampled()), ("00f067aa0b1902b7", true));
//! assert_eq!(&parent.to_bytes(), text);
//! # Ok::<(), tidegate_wire::trace_context::Malformed>(())
//! ```

use core::fmt;
use core::num::{NonZeroU64, NonZeroU128};

/// Bytes of a `traceparent` of version 00.
pub const TRACEPARENT_BYTES: usize = 55;

/// The caller may have recorded the request.
const SAMPLED: u8 = 0b01;
/// The last seven bytes of the trace id are random.
const RANDOM: u8 = 0b10;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A trace. Written as 32 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceId(NonZeroU128);

/// One piece of work in a trace, such as a request that a program sent. Written as 16 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpanId(NonZeroU64);

/// What a `traceparent` says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span of whoever sent it: the `parent-id` of the specification.
    pub span_id: SpanId,
    /// Those that this version knows.
    flags: u8,
}

/// Why a `traceparent` is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Version ff, which is forbidden.
    #[error("version ff is forbidden")]
    Version,
    /// Too short; or too long for version 00, or of a later one without a hyphen behind what is known.
    #[error("{0} bytes are not those of its version")]
    Length(usize),
    /// Not hexadecimal digits in lower case with hyphens in their places.
    #[error("it is not of the form 00-TRACE-PARENT-FLAGS in lower case")]
    Form,
    /// A trace or parent of zeroes only.
    #[error("an id of zeroes only")]
    Zero,
}

/// What the `traceparent` fields of a request say together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// There is none.
    Absent,
    /// There is one, and it is sound.
    Valid(TraceParent),
    /// There is one that is not, or there are several. The trace begins anew.
    Invalid,
}

impl Incoming {
    /// Of the values of all `traceparent` fields.
    pub fn read<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => TraceParent::parse(value).map_or(Self::Invalid, Self::Valid),
            (Some(_), Some(_)) => Self::Invalid,
        }
    }

    /// The one, if it is sound.
    #[must_use]
    pub const fn valid(self) -> Option<TraceParent> {
        match self {
            Self::Valid(parent) => Some(parent),
            Self::Absent | Self::Invalid => None,
        }
    }
}

impl TraceId {
    /// Of random bits. Zero, which is no id, becomes 1.
    #[must_use]
    pub fn of_random(bits: u128) -> Self {
        Self(NonZeroU128::new(bits).unwrap_or(NonZeroU128::MIN))
    }
}

impl SpanId {
    /// Of random bits. Zero, which is no id, becomes 1.
    #[must_use]
    pub fn of_random(bits: u64) -> Self {
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TraceParent {
    /// The first of a trace.
    #[must_use]
    pub const fn root(trace_id: TraceId, span_id: SpanId, sampled: bool) -> Self {
        Self { trace_id, span_id, flags: if sampled { SAMPLED } else { 0 } }
    }

    /// The next in the same trace, with the same flags.
    #[must_use]
    pub const fn child(self, span_id: SpanId) -> Self {
        Self { span_id, ..self }
    }

    /// Whether the caller may have recorded the request.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads the value of a field; spaces and tabs around it are not part of it.
    ///
    /// # Errors
    /// If it is none that this or a later version permits. Of a later one what this version knows is read.
    pub fn parse(value: &[u8]) -> Result<Self, Malformed> {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
        let begin = value.iter().take_while(|byte| is_space(byte)).count();
        let end = value.iter().rev().take_while(|byte| is_space(byte)).count();
        let value = value.get(begin..value.len() - end).unwrap_or_default();
        let Some((known, more)) = value.split_at_checked(TRACEPARENT_BYTES) else {
            return Err(Malformed::Length(value.len()));
        };
        if [2, 35, 52].iter().any(|&at| known[at] != b'-') {
            return Err(Malformed::Form);
        }
        let version = number(&known[..2])?;
        let permitted = match version {
            0xff => return Err(Malformed::Version),
            0 => more.is_empty(),
            _ => matches!(more.first(), None | Some(b'-')),
        };
        if !permitted {
            return Err(Malformed::Length(value.len()));
        }
        let trace_id = NonZeroU128::new(number(&known[3..35])?).ok_or(Malformed::Zero)?;
        let low = |number: u128| u64::try_from(number).map_err(|_| Malformed::Form);
        let span_id = NonZeroU64::new(low(number(&known[36..52])?)?).ok_or(Malformed::Zero)?;
        let flags = number(&known[53..])?;
        let understood = if version == 0 { SAMPLED | RANDOM } else { SAMPLED };
        let flags = u8::try_from(flags).map_err(|_| Malformed::Form)? & understood;
        Ok(Self { trace_id: TraceId(trace_id), span_id: SpanId(span_id), flags })
    }

    /// The value of a field, of version 00.
    #[must_use]
    pub fn to_bytes(self) -> [u8; TRACEPARENT_BYTES] {
        let mut bytes = [b'-'; TRACEPARENT_BYTES];
        put(&mut bytes[..2], 0);
        put(&mut bytes[3..35], self.trace_id.0.get());
        put(&mut bytes[36..52], self.span_id.0.get().into());
        put(&mut bytes[53..], self.flags.into());
        bytes
    }
}

/// At most 32 hexadecimal digits in lower case.
fn number(digits: &[u8]) -> Result<u128, Malformed> {
    digits.iter().try_fold(0, |number: u128, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return Err(Malformed::Form),
        };
        Ok(number << 4 | u128::from(value))
    })
}

/// The last digits of `number`, as many as there is room for.
fn put(room: &mut [u8], mut number: u128) {
    for digit in room.iter_mut().rev() {
        *digit = HEX[usize::from(number.to_le_bytes()[0] & 0xf)];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0b1902b7";

    fn parse(text: &str) -> Result<TraceParent, Malformed> {
        TraceParent::parse(text.as_bytes())
    }

    #[test]
    fn what_the_specification_permits_is_read() {
        for (text, flags, written) in [
            (format!("00-{TRACE}-{SPAN}-00"), 0, "00"),
            (format!("00-{TRACE}-{SPAN}-01"), 1, "01"),
            (format!("00-{TRACE}-{SPAN}-03"), 3, "03"),
            // Flags that are not known are not passed on.
            (format!("00-{TRACE}-{SPAN}-ff"), 3, "03"),
            (format!("00-{TRACE}-{SPAN}-08"), 0, "00"),
            (format!(" \t00-{TRACE}-{SPAN}-01\t "), 1, "01"),
            // A later version may have more; of it only what version 00 says is known.
            (format!("cc-{TRACE}-{SPAN}-01"), 1, "01"),
            (format!("01-{TRACE}-{SPAN}-03"), 1, "01"),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"), 1, "01"),
            (format!("fe-{TRACE}-{SPAN}-01-"), 1, "01"),
        ] {
            let parent = parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((parent.flags, parent.trace_id.to_string().as_str()), (flags, TRACE), "{text}");
            assert_eq!(parent.to_bytes(), format!("00-{TRACE}-{SPAN}-{written}").as_bytes(), "{text}");
        }
    }

    #[test]
    fn what_it_forbids_is_refused() {
        let zero_trace = "0".repeat(32);
        for (text, error) in [
            (String::new(), Malformed::Length(0)),
            (format!("ff-{TRACE}-{SPAN}-01"), Malformed::Version),
            (format!("FF-{TRACE}-{SPAN}-01"), Malformed::Form),
            (format!("0x-{TRACE}-{SPAN}-01"), Malformed::Form),
            (format!("00-{zero_trace}-{SPAN}-01"), Malformed::Zero),
            (format!("00-{TRACE}-0000000000000000-01"), Malformed::Zero),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), Malformed::Form),
            (format!("00-{TRACE}-{}-01", SPAN.to_uppercase()), Malformed::Form),
            (format!("00-{TRACE}-{SPAN}-0A"), Malformed::Form),
            (format!("00-{TRACE}-{SPAN}-.1"), Malformed::Form),
            (format!("00-{TRACE}_{SPAN}-01"), Malformed::Form),
            (format!("00-{TRACE}-{SPAN}-1"), Malformed::Length(54)),
            (format!("00-{TRACE}-{SPAN}"), Malformed::Length(52)),
            // Version 00 ends with its flags; a later one goes on behind a hyphen.
            (format!("00-{TRACE}-{SPAN}-01-more"), Malformed::Length(60)),
            (format!("00-{TRACE}-{SPAN}-01-"), Malformed::Length(56)),
            (format!("cc-{TRACE}-{SPAN}-01.more"), Malformed::Length(60)),
            (format!("0-{TRACE}-{SPAN}-01"), Malformed::Length(54)),
            (format!("00-{TRACE}0-{SPAN}-01"), Malformed::Form),
            (format!("00-{TRACE}-{SPAN}-01 x"), Malformed::Length(57)),
        ] {
            assert_eq!(parse(&text), Err(error), "{text}");
        }
        assert!(TraceParent::parse(&[0xff; 55]).is_err());
    }

    #[test]
    fn of_two_fields_none_counts() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let read = |count| Incoming::read(std::iter::repeat_n(text.as_bytes(), count));
        assert_eq!((read(0), read(2), read(3)), (Incoming::Absent, Incoming::Invalid, Incoming::Invalid));
        assert_eq!(read(1).valid(), parse(&text).ok());
        assert_eq!(Incoming::read([&b"00-1"[..]]), Incoming::Invalid);
    }

    #[test]
    fn a_child_has_the_trace_and_the_flags_of_its_parent() {
        let root = TraceParent::root(TraceId::of_random(7), SpanId::of_random(0), true);
        assert_eq!(root.to_bytes(), *b"00-00000000000000000000000000000007-0000000000000001-01");
        let child = root.child(SpanId::of_random(0xab));
        assert_eq!(child.to_bytes(), *b"00-00000000000000000000000000000007-00000000000000ab-01");
        assert!(!TraceParent::root(TraceId::of_random(0), SpanId::of_random(1), false).is_sampled());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_it_was(trace in 1_u128.., span in 1_u64.., flags in 0_u8..4) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            prop_assert_eq!(parse(&text).expect("it is sound").to_bytes(), text.as_bytes());
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(parent) = TraceParent::parse(&bytes) {
                prop_assert_eq!(TraceParent::parse(&parent.to_bytes()), Ok(parent));
            }
        }
    }
}

//! What users write for an option.
//!
//! nsqd reads flags with Go's `flag` and `strconv` packages and its file with a lenient TOML reader: integers may have
//! a base prefix, a file may hold numbers as text and lists as one text with commas, and a bare number for a duration
//! is milliseconds. [`Value`] says it once for each type, for both sources.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// The kind of value a flag takes, for help texts and completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Nothing: the flag is true by being there, or `-flag=false`.
    Switch,
    /// Any text.
    Text,
    /// A file or folder.
    Path,
    /// A whole number.
    Integer,
    /// Numbers with a fraction, several with commas between.
    Numbers,
    /// Go's form of a span.
    Duration,
    /// One of these.
    Choice(&'static [&'static str]),
    /// One of these, or nothing for the first.
    OptionalChoice(&'static [&'static str]),
}

impl Takes {
    /// Whether the flag stands alone: in Go's syntax such a flag never takes the next argument as its value.
    #[must_use]
    pub fn is_switch(self) -> bool {
        matches!(self, Self::Switch | Self::OptionalChoice(_))
    }
}

/// A text that is no value of its type. What would have been is [`Value::ACCEPTED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid;

/// A type that an option can have.
pub trait Value: Sized {
    /// Its kind.
    const TAKES: Takes;
    /// What is accepted, as the end of the sentence "expected ..".
    const ACCEPTED: &'static str;
    /// Whether a flag may be given again to add to its value.
    const REPEATABLE: bool = false;

    /// Reads a flag's text.
    fn from_text(text: &str) -> Result<Self, Invalid>;

    /// A number in a file; nsqd also takes it as text.
    fn from_integer(_: i64) -> Result<Self, Invalid> {
        Err(Invalid)
    }

    /// A number with a fraction in a file.
    fn from_float(_: f64) -> Result<Self, Invalid> {
        Err(Invalid)
    }

    /// A truth value in a file.
    fn from_bool(_: bool) -> Result<Self, Invalid> {
        Err(Invalid)
    }

    /// Adds what a further occurrence of the flag says.
    fn add(&mut self, later: Self) {
        *self = later;
    }

    /// Adds an item of a list in a file; false if the type is not a list.
    fn push(&mut self, _item: &Item) -> bool {
        false
    }

    /// The empty list, if the type is one.
    #[must_use]
    fn empty_list() -> Option<Self> {
        None
    }
}

/// An item of a list in a file.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// A whole number.
    Integer(i32),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// Reads an option from a file; for serde's `deserialize_with`.
pub fn deserialize<'de, D: Deserializer<'de>, T: Value>(from: D) -> Result<Option<T>, D::Error> {
    from.deserialize_any(Reader(PhantomData)).map(Some)
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Value> Visitor<'de> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::ACCEPTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(|Invalid| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        T::from_integer(number).map_err(|Invalid| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        T::from_float(number).map_err(|Invalid| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
        T::from_bool(truth).map_err(|Invalid| E::invalid_value(de::Unexpected::Bool(truth), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<T, A::Error> {
        let mut list = T::empty_list().ok_or_else(|| de::Error::invalid_type(de::Unexpected::Seq, &self))?;
        while let Some(item) = items.next_element::<Item>()? {
            if !list.push(&item) {
                return Err(de::Error::invalid_value(de::Unexpected::Other("item of another type"), &self));
            }
        }
        Ok(list)
    }
}

impl Value for String {
    const TAKES: Takes = Takes::Text;
    const ACCEPTED: &'static str = "a text";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        Ok(text.to_owned())
    }
}

impl Value for PathBuf {
    const TAKES: Takes = Takes::Path;
    const ACCEPTED: &'static str = "a path";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        Ok(text.into())
    }
}

impl Value for bool {
    const TAKES: Takes = Takes::Switch;
    const ACCEPTED: &'static str = "true or false";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err(Invalid),
        }
    }
    fn from_bool(truth: bool) -> Result<Self, Invalid> {
        Ok(truth)
    }
}

impl Value for i64 {
    const TAKES: Takes = Takes::Integer;
    const ACCEPTED: &'static str = "a whole number";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        let (sign, magnitude) = match text.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = magnitude.replace('_', "").to_ascii_lowercase();
        let (base, digits) = match digits.as_bytes() {
            [b'0', b'x', ..] => (16, &digits[2..]),
            [b'0', b'o', ..] => (8, &digits[2..]),
            [b'0', b'b', ..] => (2, &digits[2..]),
            [b'0', _, ..] => (8, &digits[1..]),
            _ => (10, &*digits),
        };
        if digits.starts_with(['+', '-']) {
            return Err(Invalid);
        }
        Self::from_str_radix(&format!("{sign}{digits}"), base).map_err(|_| Invalid)
    }
    fn from_integer(number: i64) -> Result<Self, Invalid> {
        Ok(number)
    }
}

impl Value for Duration {
    const TAKES: Takes = Takes::Duration;
    const ACCEPTED: &'static str =
        "a duration such as \"250ms\", \"60s\" or \"1h30m\" (in a file also a number of milliseconds)";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(Invalid);
        }
        let mut total = 0_u128;
        while !rest.is_empty() {
            let (ns, tail) = leading_span(rest)?;
            total += ns;
            rest = tail;
        }
        // Go counts nanoseconds in 63 bits; so do the peers that will read this number.
        i64::try_from(total).map(|ns| Self::from_nanos(ns.unsigned_abs())).map_err(|_| Invalid)
    }
    fn from_integer(number: i64) -> Result<Self, Invalid> {
        u64::try_from(number).map(Self::from_millis).map_err(|_| Invalid)
    }
}

/// One number with its unit from the front of `text`, in nanoseconds, and what follows it.
fn leading_span(text: &str) -> Result<(u128, &str), Invalid> {
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(Invalid)?;
    let (number, rest) = text.split_at(number_len);
    let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_len);
    let unit_ns = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000_u128,
        _ => return Err(Invalid),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || whole.len() > 18 || fraction.contains('.') {
        return Err(Invalid);
    }
    // Digits beyond the eighteenth are below a nanosecond even for hours.
    let fraction = &fraction[..fraction.len().min(18)];
    let digits = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u128>().map_err(|_| Invalid) };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| Invalid)?);
    Ok((digits(whole)? * unit_ns + digits(fraction)? * unit_ns / scale, rest))
}

impl Value for Vec<String> {
    const TAKES: Takes = Takes::Text;
    const ACCEPTED: &'static str = "a text or a list of texts";
    const REPEATABLE: bool = true;
    fn from_text(text: &str) -> Result<Self, Invalid> {
        Ok(text.split(',').map(str::to_owned).collect())
    }
    fn add(&mut self, later: Self) {
        self.extend(later);
    }
    fn push(&mut self, item: &Item) -> bool {
        let Item::Text(text) = item else { return false };
        self.push(text.clone());
        true
    }
    fn empty_list() -> Option<Self> {
        Some(Self::new())
    }
}

impl Value for Vec<f64> {
    const TAKES: Takes = Takes::Numbers;
    const ACCEPTED: &'static str = "numbers with commas between, or a list of numbers";
    const REPEATABLE: bool = true;
    fn from_text(text: &str) -> Result<Self, Invalid> {
        let mut numbers =
            text.split(',').map(|part| part.trim().parse().map_err(|_| Invalid)).collect::<Result<Self, _>>()?;
        numbers.sort_by(|a, b| b.total_cmp(a));
        Ok(numbers)
    }
    fn from_float(number: f64) -> Result<Self, Invalid> {
        Ok(vec![number])
    }
    fn add(&mut self, later: Self) {
        self.extend(later);
        // nsqd shows the quantiles of its flags from the highest down, and those of its file as they stand there.
        self.sort_by(|a, b| b.total_cmp(a));
    }
    fn push(&mut self, item: &Item) -> bool {
        match item {
            Item::Integer(number) => self.push(f64::from(*number)),
            Item::Number(number) => self.push(*number),
            Item::Text(_) => return false,
        }
        true
    }
    fn empty_list() -> Option<Self> {
        Some(Self::new())
    }
}

/// Declares an option that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $accepted:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The word users write.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl Value for $name {
            const TAKES: Takes = Takes::Choice(&[$($word),+]);
            const ACCEPTED: &'static str = $accepted;
            fn from_text(text: &str) -> Result<Self, Invalid> {
                match text.to_ascii_lowercase().as_str() {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(Invalid),
                }
            }
        }
    };
}

words! {
    /// How much is logged, from everything to almost nothing.
    LogLevel, "debug, info, warn, error or fatal" {
        /// Connections.
        Debug = "debug",
        /// Changes an operator sees.
        Info = "info",
        /// What needs a person.
        Warn = "warn",
        /// What was lost.
        Error = "error",
        /// The end of the process.
        Fatal = "fatal",
    }
}

words! {
    /// What is asked of a client's certificate.
    ClientAuth, "\"\", require or require-verify" {
        /// Nothing.
        None = "",
        /// There must be one, from anybody.
        Require = "require",
        /// There must be one that the root CA vouches for.
        RequireVerify = "require-verify",
    }
}

words! {
    /// A version of TLS.
    TlsVersion, "tls1.0, tls1.1, tls1.2 or tls1.3" {
        /// Not spoken here.
        Tls10 = "tls1.0",
        /// Not spoken here.
        Tls11 = "tls1.1",
        /// The least we speak.
        Tls12 = "tls1.2",
        /// The newest.
        Tls13 = "tls1.3",
    }
}

words! {
    /// What happens to a message when its queue is at its bound in memory.
    QueuePolicy, "overflow, back-pressure, refuse or drop-oldest" {
        /// It goes to disk, as with nsqd.
        Overflow = "overflow",
        /// Its publisher's socket is not read until there is room.
        BackPressure = "back-pressure",
        /// Its publisher gets an error.
        Refuse = "refuse",
        /// The oldest message makes room.
        DropOldest = "drop-oldest",
    }
}

words! {
    /// What a publisher's OK means.
    Durability, "memory" {
        /// nsqd's promise: the message is in memory or in the page cache, and flushed at exit.
        Memory = "memory",
    }
}

/// Which clients must speak TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsRequired {
    /// None.
    No,
    /// Those of the TCP protocol; the HTTP address stays open.
    ExceptHttp,
    /// All.
    Yes,
}

impl Value for TlsRequired {
    const TAKES: Takes = Takes::OptionalChoice(&["true", "false", "tcp-https"]);
    const ACCEPTED: &'static str = "true, false or tcp-https";
    fn from_text(text: &str) -> Result<Self, Invalid> {
        match text.to_ascii_lowercase().as_str() {
            "tcp-https" => Ok(Self::ExceptHttp),
            lower => bool::from_text(lower).and_then(Self::from_bool),
        }
    }
    fn from_integer(number: i64) -> Result<Self, Invalid> {
        match number {
            0 => Ok(Self::No),
            1 => Ok(Self::Yes),
            _ => Err(Invalid),
        }
    }
    fn from_bool(required: bool) -> Result<Self, Invalid> {
        Ok(if required { Self::Yes } else { Self::No })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let ns = |text| Duration::from_text(text).map(|d| d.as_nanos());
        assert_eq!(ns("250ms"), Ok(250_000_000));
        assert_eq!(ns("1h30m0.5s"), Ok(5_400_500_000_000));
        assert_eq!(ns("1.5us"), Ok(1_500));
        assert_eq!(ns(".5s"), Ok(500_000_000));
        assert_eq!(ns("1.s"), Ok(1_000_000_000));
        assert_eq!(ns("3\u{b5}s"), Ok(3_000));
        assert_eq!(ns("0"), Ok(0));
        assert_eq!(ns("+0"), Ok(0));
        assert_eq!(ns("0.0000000000000000000000001h"), Ok(0));
        for bad in ["", "+", "60", "s", ".s", "1.2.3s", "-1s", "1 s", "1d", "9999999999999999999999s", "300000000h"] {
            assert_eq!(ns(bad), Err(Invalid), "{bad}");
        }
    }

    #[test]
    fn integers_are_gos() {
        for (text, number) in [
            ("10", 10),
            ("-10", -10),
            ("+7", 7),
            ("0x1F", 31),
            ("-0x10", -16),
            ("0o17", 15),
            ("017", 15),
            ("0b101", 5),
            ("1_000_000", 1_000_000),
            ("0", 0),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(i64::from_text(text), Ok(number), "{text}");
        }
        for bad in ["", "-", "--1", "0x", "0x-1", "1.0", "9223372036854775808", "ten", "08"] {
            assert_eq!(i64::from_text(bad), Err(Invalid), "{bad}");
        }
    }

    #[test]
    fn words_are_case_blind_and_closed() {
        assert_eq!(LogLevel::from_text("WARN"), Ok(LogLevel::Warn));
        assert_eq!(TlsRequired::from_text("TCP-HTTPS"), Ok(TlsRequired::ExceptHttp));
        assert_eq!(TlsRequired::from_text("True"), Ok(TlsRequired::Yes));
        assert_eq!(TlsVersion::from_text("ssl3.0"), Err(Invalid));
        assert_eq!(QueuePolicy::from_text("drop"), Err(Invalid));
        assert_eq!(QueuePolicy::BackPressure.as_str(), "back-pressure");
    }
}

//! Words as they stand in files, on the command line and in the control store: those of a limit above all.

use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Deserialize as DeriveDeserialize, Serialize, Serializer};
use tidegate_broker::machine::limiter::{Discipline, Mode, Unit};
use tidegate_core::Rate;
use tidegate_runtime::config::units::{Bytes, NotAQuantity};

/// Which arrivals.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ArrivalsWord {
    /// At random
    Poisson,
    /// Strictly periodic publishers with random phases
    Periodic,
}

/// Declares the words for a machine's choice of two, the default first; the machine itself knows no words.
macro_rules! words {
    ($(#[$doc:meta])* $word:ident for $of:ident { $first:ident, $second:ident }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, DeriveDeserialize, Serialize, clap::ValueEnum)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum $word {
            #[default]
            $first,
            $second,
        }

        impl From<$word> for $of {
            fn from(word: $word) -> Self {
                match word {
                    $word::$first => Self::$first,
                    $word::$second => Self::$second,
                }
            }
        }

        impl From<$of> for $word {
            fn from(of: $of) -> Self {
                match of {
                    $of::$first => Self::$first,
                    $of::$second => Self::$second,
                }
            }
        }
    };
}

words! {
    /// What one token buys.
    UnitWord for Unit { Messages, Bytes }
}
words! {
    /// What happens without a token.
    DisciplineWord for Discipline { Wait, Refuse }
}
words! {
    /// Whether the limit acts or only counts.
    ModeWord for Mode { Enforce, Shadow }
}

/// How many may come at once, on the command line: a number of whatever the unit is, or bytes with their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BurstText {
    pub(crate) tokens: u64,
    /// Whether a unit of bytes was written.
    pub(crate) in_bytes: bool,
}

impl FromStr for BurstText {
    type Err = NotAQuantity;
    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let Bytes(tokens) = text.parse()?;
        Ok(Self { tokens, in_bytes: text.contains(char::is_alphabetic) })
    }
}

/// A rate: `"11k/s"`, `"3/min"`, or a number per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RateText(pub(crate) Rate);

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RateReader).map(Self)
    }
}

impl Serialize for RateText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

struct RateReader;

impl Visitor<'_> for RateReader {
    type Value = Rate;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a rate such as \"11k/s\", \"90/min\" or a number per second")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Rate, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Rate, E> {
        Ok(Rate::per_s(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Rate, E> {
        u64::try_from(number).map(Rate::per_s).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Rate, E> {
        if !(number.is_finite() && number >= 0.0) {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        Ok(Rate::from_per_s_f64(number))
    }
}

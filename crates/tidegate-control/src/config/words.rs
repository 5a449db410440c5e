//! The words and small values of `[control]`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::{Serialize, Serializer};
use tidegate_runtime::config::choice;
use tidegate_runtime::config::units::Span;

use crate::machine::types::{Principles, Slo};

choice! {
    /// What one token of a topic's limit buys.
    Unit {
        /// A message.
        Messages = "messages",
        /// A byte of a body.
        Bytes = "bytes",
    }
}

choice! {
    /// How a placement is found.
    Planner {
        /// Arrivals are recorded for some seconds and replayed; one measurement confirms what the model says.
        Model = "model",
        /// Rounds of measurements, as in the paper.
        Paper = "paper",
    }
}

choice! {
    /// By which principles a topic is placed. Source: §3 of the paper.
    Policy {
        /// Concentration, max-min and correlation-awareness.
        Srtm = "srtm",
        /// Without correlation-awareness.
        MaxMin = "max-min",
        /// Concentration alone.
        Conc = "conc",
        /// All nodes alike.
        Lb = "lb",
    }
}

choice! {
    /// What a node does with its part of a limit once the part's lease has ended.
    OnStoreLoss {
        /// It keeps the part.
        Local = "local",
        /// The whole limit holds there.
        Open = "open",
        /// Nothing passes.
        Closed = "closed",
    }
}

choice! {
    /// Whether a topic's nodes lend each other tokens.
    Lend {
        /// They do not.
        Off = "off",
        /// They do.
        On = "on",
    }
}

impl From<Policy> for Principles {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Srtm => Self::SRTM,
            Policy::MaxMin => Self::MAX_MIN,
            Policy::Conc => Self::CONC,
            Policy::Lb => Self::LB,
        }
    }
}

/// An objective as it is written: `p99 <= 1ms`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SloText(pub Slo);

impl Default for SloText {
    /// The paper's: a p99 of 1 ms.
    fn default() -> Self {
        Self(Slo { quantile: 0.99, within: Duration::from_millis(1) })
    }
}

/// A text that is no objective.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not {SLO}")]
pub struct NotAnObjective {
    /// The text.
    pub found: String,
}

const SLO: &str = "an objective such as \"p99 <= 1ms\" or \"p99.9 <= 20ms\"";

impl FromStr for SloText {
    type Err = NotAnObjective;

    fn from_str(text: &str) -> Result<Self, NotAnObjective> {
        let read = || {
            let (quantile, within) = text.split_once("<=")?;
            let percent: f64 = quantile.trim().strip_prefix('p')?.parse().ok()?;
            let Span(within) = within.trim().parse().ok()?;
            let is_one = (50.0..100.0).contains(&percent) && !within.is_zero();
            is_one.then_some(Self(Slo { quantile: percent / 100.0, within }))
        };
        read().ok_or_else(|| NotAnObjective { found: text.to_owned() })
    }
}

impl fmt::Display for SloText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two digits behind the point: what is no exact fraction in binary reads as it was written.
        let percent = (self.0.quantile * 1e4).round() / 1e2;
        write!(f, "p{percent} <= {:?}", self.0.within)
    }
}

impl Serialize for SloText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SloText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = SloText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SLO)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SloText, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_str(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_reads_as_it_is_written() {
        let read = |text: &str| text.parse::<SloText>().map(|SloText(slo)| (slo.quantile, slo.within));
        assert_eq!(read("p99 <= 1ms"), Ok((0.99, Duration::from_millis(1))));
        assert_eq!(read("p50<=2s"), Ok((0.5, Duration::from_secs(2))));
        let odd: SloText = "p99.9 <= 500us".parse().unwrap();
        assert_eq!(odd.to_string(), "p99.9 <= 500µs");
        assert_eq!(odd.to_string().parse::<SloText>().unwrap(), odd);
    }

    #[test]
    fn what_is_no_objective_is_refused() {
        for text in ["", "p99", "99 <= 1ms", "p99 < 1ms", "p100 <= 1ms", "p10 <= 1ms", "p99 <= 0", "p99 <= 5"] {
            let error = text.parse::<SloText>().unwrap_err();
            assert!(error.to_string().contains("p99 <= 1ms"), "{error}");
        }
    }

    #[test]
    fn every_policy_is_one_of_the_planners() {
        let all = [Policy::Srtm, Policy::MaxMin, Policy::Conc, Policy::Lb].map(Principles::from);
        assert_eq!(all, [Principles::SRTM, Principles::MAX_MIN, Principles::CONC, Principles::LB]);
        assert_eq!(Policy::MaxMin.word(), "max-min");
    }
}

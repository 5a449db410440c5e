//! The brokers that placements are tried on: the paper's, and our own.
//!
//! A model is what a core spends on messages, the rest of a message's way, and how many messages a second the broker
//! takes within the objective. All constants of the paper's brokers are here, with how they were chosen; ours are
//! measured and stand in a file, `lab/calibration.toml`.

use serde::{Deserialize, Serialize};
use tidegate_core::Rate;
use tidegate_core::replay::{ServiceModel, Spread};

/// Longest time of one step that a calibration may name, in microseconds: what 32 bits of nanoseconds hold.
const STEP_US_MAX: f64 = 4e6;

/// What the paper's brokers do with messages: NSQ in Go on two cores.
///
/// - Single messages take 34 us. Fig. 6b: 60,000 a second overload a broker, so two cores need more than 33.3 us for
///   each; 34 us is the shortest round number.
/// - Of these, 16 us are for a batch and 18 us for each of its messages. Fig. 8: brokers carry 80,000 messages a second
///   in batches of ten, so a message in a batch costs less than 25 us. Of 16, 18, 20 and 22.3 us for a message, 18 us is
///   the one with which Table 1's groups of five stay on one broker and groups of ten take two after three rounds.
/// - Times are spread without memory: so a broker's p99 reaches 1 ms at 92 % of its capacity, which agrees with the
///   0.87 ms that Fig. 8 states for a broker close to its limit.
/// - The rest of the way is a guess, the same for every placement: it changes no order.
pub const PAPER: ServiceModel =
    ServiceModel { cores: 2, batch_ns: 16_000, message_ns: 18_000, way_ns: 100_000, spread: Spread::Exponential };

/// Single messages a second that one of the paper's brokers takes within 1 ms.
///
/// Fig. 8: beside 10,000 a second of other topics, 40,000 fit and more than that do not (50,000 to 70,000); 80,000 fit on
/// three brokers with 10,000, 40,000 and 50,000 (60,000 at least) and not on the first two (below 65,000).
pub const PAPER_MCAP: Rate = Rate::per_s(62_000);

/// The same of messages in batches of ten, for the files that say so.
///
/// Fig. 8 again: in batches of ten, 10,000 publishers are on the first two brokers, which carry 150,000 messages a second
/// then (75,000 at least). 77,000 is 75 % of the capacity of [`PAPER`] for such batches.
pub const PAPER_MCAP_OF_TEN: Rate = Rate::per_s(77_000);

/// Which broker is modelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// The paper's: claims about the paper's figures are claims about this one.
    #[default]
    Paper,
    /// Ours, as calibrated.
    Own,
}

/// What a message costs the real broker, as it was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// What the file shows, in a line.
    pub title: String,
    /// By which command, on what and when.
    pub measured: String,
    /// Cores of a broker.
    pub cores: u16,
    /// What a core spends on a batch, with its first message, in microseconds: system calls above all.
    pub batch_us: f64,
    /// What a core spends on each message, its delivery included, in microseconds.
    pub message_us: f64,
    /// The rest of the way from publisher to subscriber, in microseconds.
    pub way_us: f64,
    /// How the time on a core is spread.
    pub spread: Spread,
    /// Messages a second that it takes within the objective.
    pub mcap: Rate,
}

/// A calibration that cannot be.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The text is no calibration.
    #[error("{message}")]
    Unreadable {
        /// What the parser says.
        message: String,
    },
    /// A number is out of its range.
    #[error("{name}: {found} is not from {least} to {most}")]
    OutOfRange {
        /// Which.
        name: &'static str,
        /// What it is.
        found: f64,
        /// At least this,
        least: f64,
        /// at most this.
        most: f64,
    },
}

impl Calibration {
    /// Reads the calibration in `text`, a TOML document.
    ///
    /// # Errors
    /// If it is none, or the first number that is out of its range.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let parsed: Self = toml::from_str(text)
            .map_err(|error| CalibrationError::Unreadable { message: error.message().replace('\n', "; ") })?;
        let ranges = [
            ("cores", f64::from(parsed.cores), 1.0, 1e3),
            ("batch_us", parsed.batch_us, 0.0, STEP_US_MAX),
            ("message_us", parsed.message_us, 0.0, STEP_US_MAX),
            ("way_us", parsed.way_us, 0.0, STEP_US_MAX),
            ("mcap", parsed.mcap.as_per_s(), 1.0, 1e9),
        ];
        for (name, found, least, most) in ranges {
            if !(least..=most).contains(&found) {
                return Err(CalibrationError::OutOfRange { name, found, least, most });
            }
        }
        Ok(parsed)
    }

    /// The measured broker as a model.
    #[must_use]
    pub fn service(&self) -> ServiceModel {
        let ns = |us: f64| u32::try_from(tidegate_core::number::whole((us * 1e3).round())).unwrap_or(u32::MAX);
        ServiceModel {
            cores: self.cores,
            batch_ns: ns(self.batch_us),
            message_ns: ns(self.message_us),
            way_ns: ns(self.way_us),
            spread: self.spread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
title = "t"
measured = "by hand"
cores = 2
batch_us = 12.5
message_us = 0.8
way_us = 60
spread = "constant"
mcap = "100k/s"
"#;

    #[test]
    fn a_calibration_is_a_model_in_nanoseconds() {
        let calibration = Calibration::parse(TEXT).unwrap();
        let service =
            ServiceModel { cores: 2, batch_ns: 12_500, message_ns: 800, way_ns: 60_000, spread: Spread::Constant };
        assert_eq!((calibration.service(), calibration.mcap), (service, Rate::per_s(100_000)));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wrong = |from: &str, to: &str| Calibration::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
        assert_eq!(wrong("0.8", "-1"), "message_us: -1 is not from 0 to 4000000");
        assert_eq!(wrong("cores = 2", "cores = 0"), "cores: 0 is not from 1 to 1000");
        assert!(wrong("way_us", "weigh_us").contains("weigh_us"));
    }

    #[test]
    fn the_papers_broker_agrees_with_figures_6b_and_8() {
        assert!(PAPER.capacity_per_s(1) < 60_000.0 && PAPER.capacity_per_s(1) > 58_000.0);
        assert!(PAPER.capacity_per_s(10) > 80_000.0);
        let rooms = [10.0, 40.0, 50.0].map(|load| PAPER_MCAP.as_per_s() - load * 1e3);
        assert!(rooms[0] >= 40_000.0 && rooms[0] < 60_000.0);
        assert!(rooms[0] + rooms[1] < 80_000.0 && rooms.iter().sum::<f64>() >= 80_000.0);
        let share = PAPER_MCAP_OF_TEN.as_per_s() / PAPER.capacity_per_s(10);
        assert!(PAPER_MCAP_OF_TEN.as_per_s() >= 75_000.0 && (0.74..0.76).contains(&share), "{share}");
    }
}

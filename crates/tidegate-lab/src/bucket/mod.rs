//! What a token bucket does to arrivals: computed exactly, or by running the production bucket in virtual time.
//!
//! One [`BucketQuestion`] for both, and one [`BucketAnswer`]: [`theory`] knows M/D/1 and, for a list of arrivals, Eq. 2
//! of the paper; [`simulate`] drives the core's own gate, whatever arrives.
//!
//! ```
//! use tidegate_lab::bucket::{self, Arrivals, BucketQuestion};
//!
//! let question = BucketQuestion {
//!     messages: 100_000,
//!     ..BucketQuestion::new(Arrivals::Poisson { rate: "10k/s".parse().unwrap() }, "11k/s".parse().unwrap(), 26)
//! };
//! let exact = bucket::theory(&question).unwrap();
//! let simulated = bucket::simulate(&question).unwrap();
//! assert!(exact.share_delayed < 0.01 && exact.delay_us_p99 == 0.0);
//! assert!((simulated.share_delayed - exact.share_delayed).abs() < 0.01);
//! ```

mod answer;
mod assign;
mod list;
mod simulate;
mod theory;

pub use answer::{BucketAnswer, MessageDelay, Method, Part};
pub use list::{ParseListError, parse_list};
pub(crate) use simulate::observe;
pub use simulate::simulate;
pub(crate) use theory::exact_delay;
pub use theory::theory;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;
use tidegate_core::limit::split::{self, SplitError};
use tidegate_core::theory::md1::TheoryError;
use tidegate_core::{Instant, Rate};

/// Arrivals in a list at most: each gets a line of the answer.
pub const LIST_MAX: usize = 1_000_000;
/// Messages in one simulation at most: half an hour of CPU.
pub const MESSAGES_MAX: u64 = 100_000_000_000;
/// Simulated seconds at most, 317 years: the clock has 584.
pub const SECONDS_MAX: u64 = 10_000_000_000;
/// Parts of a split at most.
pub const PARTS_MAX: usize = 10_000;

/// What arrives at which bucket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketQuestion {
    /// When messages, or batches of them, arrive.
    pub arrivals: Arrivals,
    /// Messages in each batch; 1 unless they come together.
    #[serde(default = "one")]
    pub batch: u32,
    /// Tokens per second, of all parts together.
    pub rate: Rate,
    /// Depth in tokens, of all parts together.
    pub burst: u64,
    /// Into which parts the bucket is split; by default it is not.
    #[serde(default)]
    pub split: Split,
    /// Which message goes to which part.
    #[serde(default)]
    pub assignment: Assignment,
    /// Messages to simulate; a list has its own number of them.
    #[serde(default = "a_million")]
    pub messages: u64,
    /// Messages before those, which are not counted, to forget that the bucket was full at first.
    #[serde(default)]
    pub warm_up: u64,
    /// Same seed, same answer.
    #[serde(default = "one_u64")]
    pub seed: u64,
}

fn one() -> u32 {
    1
}

fn one_u64() -> u64 {
    1
}

fn a_million() -> u64 {
    1_000_000
}

/// When batches arrive.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// At random.
    Poisson {
        /// Messages per second.
        rate: Rate,
    },
    /// Strictly periodic publishers with random phases.
    Periodic {
        /// Messages per second, of all publishers together.
        rate: Rate,
        /// How many publishers.
        publishers: u32,
    },
    /// At these instants, in nanoseconds; put in order.
    List(Vec<Instant>),
}

/// Parts of a bucket. Bursts are whole tokens, at least one for each part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Split {
    /// So many equal ones.
    Even(u32),
    /// In proportion to these weights, which the messages follow too.
    Weights(Vec<u64>),
}

impl Default for Split {
    fn default() -> Self {
        Self::Even(1)
    }
}

/// Which message goes to which part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignment {
    /// Each batch to one part at random, as if its publisher were bound to that part's broker.
    #[default]
    Batch,
    /// Each message to a part at random, whatever batch it came in.
    Message,
    /// In turn, so that a burst is split as evenly as can be: what the paper's correlation-awareness aims at.
    Even,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// The bucket cannot be split so.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Theory has no steady state to describe.
    #[error(transparent)]
    Theory(#[from] TheoryError),
    /// The process has no known exact results.
    #[error("there are exact results for Poisson arrivals and for lists; `sim bucket` answers for the rest")]
    NotPoisson,
    /// The parts do not see Poisson arrivals of equal batches.
    #[error(
        "parts that get {assignment:?} shares of batches of {batch} have no exact results; `sim bucket` answers for them"
    )]
    NoClosedForm {
        /// How messages are assigned.
        assignment: Assignment,
        /// Messages in a batch.
        batch: u32,
    },
    /// A number is outside of what can be answered.
    #[error("{key} is {value}; it must be from {min} to {max}")]
    OutOfRange {
        /// Which.
        key: &'static str,
        /// What it is.
        value: u64,
        /// The least possible.
        min: u64,
        /// The greatest possible.
        max: u64,
    },
}

impl BucketQuestion {
    /// `arrivals` at a bucket of `rate` and `burst`, one by one, a million of them, seed 1.
    #[must_use]
    pub fn new(arrivals: Arrivals, rate: Rate, burst: u64) -> Self {
        Self {
            arrivals,
            batch: 1,
            rate,
            burst,
            split: Split::default(),
            assignment: Assignment::default(),
            messages: a_million(),
            warm_up: 0,
            seed: 1,
        }
    }

    /// Messages for each token; `None` for a list, which has no rate.
    #[must_use]
    pub fn load(&self) -> Option<f64> {
        match &self.arrivals {
            Arrivals::Poisson { rate } | Arrivals::Periodic { rate, .. } => {
                Some(rate.as_per_s() / self.rate.as_per_s())
            }
            Arrivals::List(_) => None,
        }
    }

    /// The contracts of the parts, after everything else was found to be in range.
    fn parts(&self) -> Result<Vec<Limit>, BucketError> {
        self.check()?;
        let limit = Limit::new(self.rate, self.burst);
        let parts = match &self.split {
            Split::Even(parts) => split::evenly(limit, *parts as usize)?,
            Split::Weights(weights) => split::by_weights(limit, weights)?,
        };
        // A part's share of the messages is random: even of the smallest some must fit before the end of the clock. A weight
        // too small for its part to have any rate at all is caught here, too.
        let weighty = parts.iter().zip(self.weights()).filter(|(_, weight)| *weight > 0);
        let slowest = weighty.map(|(part, _)| part.rate).min().unwrap_or(self.rate);
        within(SECONDS, seconds(100, slowest), 0, SECONDS_MAX)?;
        Ok(parts)
    }

    fn weights(&self) -> Vec<u64> {
        match &self.split {
            Split::Even(parts) => vec![1; *parts as usize],
            Split::Weights(weights) => weights.clone(),
        }
    }

    fn check(&self) -> Result<(), BucketError> {
        let parts = match &self.split {
            Split::Even(parts) => *parts as usize,
            Split::Weights(weights) => {
                // So that their sum, and that of messages dealt by them, stays far from overflow.
                within("the greatest weight", weights.iter().copied().max().unwrap_or(0), 1, 1 << 32)?;
                weights.len()
            }
        };
        within("split", parts as u64, 1, PARTS_MAX as u64)?;
        within("batch", self.batch.into(), 1, 1_000_000)?;
        within("rate", self.rate.tokens(), 1, u64::MAX)?;
        match &self.arrivals {
            Arrivals::List(list) => {
                let messages = list.len() as u64 * u64::from(self.batch);
                within("the number of arrivals", list.len() as u64, 1, LIST_MAX as u64)?;
                within("the number of messages", messages, 1, LIST_MAX as u64)?;
                let end_s = list.iter().max().map_or(0, |end| end.as_nanos() / 1_000_000_000);
                within("the last arrival in seconds", end_s, 0, SECONDS_MAX)?;
                within(SECONDS, seconds(messages, self.rate), 0, SECONDS_MAX)
            }
            Arrivals::Poisson { rate } | Arrivals::Periodic { rate, .. } => {
                if let Arrivals::Periodic { publishers, .. } = &self.arrivals {
                    within("publishers", (*publishers).into(), 1, 1_000_000)?;
                }
                within("the arrivals' rate", rate.tokens(), 1, u64::MAX)?;
                within("messages", self.messages, 1, MESSAGES_MAX)?;
                within("warm_up", self.warm_up, 0, MESSAGES_MAX)?;
                // Batches and periods may round up what is simulated, but not beyond the clock.
                let slowest = self.rate.min(*rate);
                within(SECONDS, seconds(self.messages + self.warm_up, slowest), 0, SECONDS_MAX)
            }
        }
    }
}

fn within(key: &'static str, value: u64, min: u64, max: u64) -> Result<(), BucketError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(BucketError::OutOfRange { key, value, min, max }) }
}

const SECONDS: &str = "the simulated time in seconds";

fn seconds(messages: u64, rate: Rate) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let seconds = (crate::statistics::float(messages) / rate.as_per_s()) as u64;
    seconds
}

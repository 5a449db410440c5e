//! Experiment files, their kinds and their results.
//!
//! A file has a title, a seed and one table, named after the kind of experiment:
//!
//! | kind | what it does |
//! |---|---|
//! | [`drl_penalty`] | end-to-end latency of a topic whose bucket is split over 1 to n brokers |
//! | [`theory_check`] | the simulated bucket against the exact M/D/1 values |
//!
//! [`read`] reads and checks it, [`Experiment::run`] runs it, [`Outcome::write`] leaves a text, a JSON file and a figure
//! in a folder. Same file, same results.

pub mod drl_penalty;
mod file;
mod outcome;
pub mod theory_check;

pub use file::{ExperimentError, parse, read};
pub use outcome::{Claim, Outcome, WriteError};

use serde::{Deserialize, Serialize};

use crate::bucket::BucketError;

/// An experiment as it stands in its file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it shows, in a line.
    pub title: String,
    /// Same seed, same results.
    pub seed: u64,
    /// If it is of this kind, its settings.
    pub drl_penalty: Option<drl_penalty::DrlPenalty>,
    /// If it is of this kind, its settings.
    pub theory_check: Option<theory_check::TheoryCheck>,
}

/// How much of an experiment is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// All of it, as the file says.
    Full,
    /// A small part, for tests: the same shapes, less sharp.
    Quick,
}

/// Something in a file that makes no sense, found after it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint {
    /// Where, as in `theory_check.confidence`.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Complaint {
    fn unless(right: bool, key: &str, message: impl Into<String>) -> Result<(), Self> {
        if right { Ok(()) } else { Err(Self { key: key.to_owned(), message: message.into() }) }
    }
}

impl Experiment {
    /// Checks what no single value can be wrong about.
    ///
    /// # Errors
    /// The first thing that makes no sense.
    pub fn check(&self) -> Result<(), Complaint> {
        match (&self.drl_penalty, &self.theory_check) {
            (Some(drl_penalty), None) => drl_penalty.check(),
            (None, Some(theory_check)) => theory_check.check(),
            (None, None) => Complaint::unless(false, "", "no kind: write a table [drl_penalty] or [theory_check]"),
            (Some(_), Some(_)) => {
                Complaint::unless(false, "", "two kinds: keep one of [drl_penalty] and [theory_check]")
            }
        }
    }

    /// Runs it; `name` is what its files will be called.
    ///
    /// # Errors
    /// If a bucket of it cannot be as the settings say; [`check`](Self::check) does not try them all.
    pub fn run(&self, name: &str, size: Size) -> Result<Outcome, BucketError> {
        let results = match (&self.drl_penalty, &self.theory_check) {
            (Some(drl_penalty), _) => drl_penalty.run(self, size)?,
            (None, Some(theory_check)) => theory_check.run(self, size)?,
            (None, None) => outcome::Results::default(),
        };
        Ok(Outcome::new(name, self, size, results))
    }
}

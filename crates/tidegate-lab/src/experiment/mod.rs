//! Experiment files, their kinds and their results.
//!
//! A file has a title, a seed and one table, named after the kind of experiment:
//!
//! | kind | what it does |
//! |---|---|
//! | [`divided_limit`] | one limit over several proxies, by demand and by lending |
//! | [`drl_penalty`] | end-to-end latency of a topic whose bucket is split over 1 to n brokers |
//! | [`neighbours`] | a quiet tenant and a noisy one, limiters side by side |
//! | [`no_tuning`] | one configuration for every service and host, beside Breakwater's best tuning for each |
//! | [`placement`] | a topic placed on brokers by several policies |
//! | [`proxy`] | one core of the proxy, asked for more than it can do |
//! | [`release_law`](crate::release_law) | every window of releases of the broker's machine |
//! | [`rpc`] | schemes of overload control side by side |
//! | [`rpc_graph`] | services that call each other, one of them short: whose work is thrown away |
//! | [`shaper`] | classes of HTB with TCP flows, and what keeps their queues short |
//! | [`theory_check`] | the simulated bucket, whole or in parts, against the exact M/D/1 values |
//!
//! [`read`] reads and checks it, [`Experiment::run`] runs it, [`Outcome::write`] leaves a text, a JSON file and a figure
//! in a folder. Same file, same results.

pub mod divided_limit;
pub mod drl_penalty;
mod file;
pub mod neighbours;
pub mod no_tuning;
mod outcome;
pub mod placement;
pub mod proxy;
mod release_law;
pub mod rpc;
pub mod rpc_graph;
mod rpc_show;
pub mod shaper;
pub mod theory_check;

pub use file::{ExperimentError, parse, read};
pub use outcome::{Claim, Outcome, WriteError};
pub use rpc_show::Metric;

use serde::{Deserialize, Serialize};

use crate::bucket::BucketError;
use crate::neighbours::TraceError;
use crate::release_law::ReleaseLaw;
use crate::rpc::ScenarioError;

/// An experiment as it stands in its file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it shows, in a line.
    pub title: String,
    /// Same seed, same results.
    pub seed: u64,
    /// If it is of this kind, its settings.
    pub divided_limit: Option<divided_limit::DividedLimit>,
    /// If it is of this kind, its settings.
    pub drl_penalty: Option<drl_penalty::DrlPenalty>,
    /// If it is of this kind, its settings.
    pub neighbours: Option<neighbours::Neighbours>,
    /// If it is of this kind, its settings.
    pub no_tuning: Option<no_tuning::NoTuning>,
    /// If it is of this kind, its settings.
    pub placement: Option<placement::Placement>,
    /// If it is of this kind, its settings.
    pub proxy: Option<proxy::Proxy>,
    /// If it is of this kind, its settings.
    pub release_law: Option<ReleaseLaw>,
    /// If it is of this kind, its settings.
    pub rpc: Option<rpc::Rpc>,
    /// If it is of this kind, its settings.
    pub rpc_graph: Option<rpc_graph::RpcGraph>,
    /// If it is of this kind, its settings.
    pub shaper: Option<shaper::Shaper>,
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

/// An experiment could not be run.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A bucket cannot be.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// A scenario of a placement cannot be.
    #[error(transparent)]
    Placement(#[from] crate::placement::ScenarioError),
    /// A scenario of the proxy cannot be.
    #[error(transparent)]
    Proxy(#[from] crate::proxy::ScenarioError),
    /// A scenario cannot be.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A trace cannot be.
    #[error(transparent)]
    Trace(#[from] TraceError),
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
        let Self {
            divided_limit,
            drl_penalty,
            neighbours,
            no_tuning,
            placement,
            proxy,
            release_law,
            rpc,
            rpc_graph,
            shaper,
            theory_check,
            ..
        } = self;
        let kinds = [
            divided_limit.is_some(),
            drl_penalty.is_some(),
            neighbours.is_some(),
            no_tuning.is_some(),
            placement.is_some(),
            proxy.is_some(),
            release_law.is_some(),
            rpc.is_some(),
            rpc_graph.is_some(),
            shaper.is_some(),
            theory_check.is_some(),
        ];
        let kinds = kinds.into_iter().filter(|is_there| *is_there).count();
        let message = format!(
            "{kinds} kinds: write one of [divided_limit], [drl_penalty], [neighbours], [no_tuning], [placement], [proxy], [release_law], [rpc], [rpc_graph], [shaper] and [theory_check]"
        );
        Complaint::unless(kinds == 1, "", message)?;
        divided_limit.iter().try_for_each(divided_limit::DividedLimit::check)?;
        drl_penalty.iter().try_for_each(drl_penalty::DrlPenalty::check)?;
        neighbours.iter().try_for_each(neighbours::Neighbours::check)?;
        no_tuning.iter().try_for_each(no_tuning::NoTuning::check)?;
        placement.iter().try_for_each(placement::Placement::check)?;
        proxy.iter().try_for_each(proxy::Proxy::check)?;
        release_law.iter().try_for_each(release_law::check)?;
        rpc.iter().try_for_each(rpc::Rpc::check)?;
        rpc_graph.iter().try_for_each(rpc_graph::RpcGraph::check)?;
        shaper.iter().try_for_each(shaper::Shaper::check)?;
        theory_check.iter().try_for_each(theory_check::TheoryCheck::check)
    }

    /// Runs it; `name` is what its files will be called.
    ///
    /// # Errors
    /// If a bucket or a scenario of it cannot be as the settings say; [`check`](Self::check) does not try them all.
    pub fn run(&self, name: &str, size: Size) -> Result<Outcome, RunError> {
        let results = if let Some(divided_limit) = &self.divided_limit {
            divided_limit.run(self, size)
        } else if let Some(drl_penalty) = &self.drl_penalty {
            drl_penalty.run(self, size)?
        } else if let Some(theory_check) = &self.theory_check {
            theory_check.run(self, size)?
        } else if let Some(neighbours) = &self.neighbours {
            neighbours.run(self, size)?
        } else if let Some(no_tuning) = &self.no_tuning {
            no_tuning.run(self, size)?
        } else if let Some(placement) = &self.placement {
            placement.run(self, size)?
        } else if let Some(proxy) = &self.proxy {
            proxy.run(self, size)?
        } else if let Some(law) = &self.release_law {
            release_law::run(law, self, size)
        } else if let Some(rpc) = &self.rpc {
            rpc.run(self, size)?
        } else if let Some(rpc_graph) = &self.rpc_graph {
            rpc_graph.run(self, size)?
        } else if let Some(shaper) = &self.shaper {
            shaper.run(self, size)
        } else {
            outcome::Results::default()
        };
        Ok(Outcome::new(name, self, size, results))
    }
}

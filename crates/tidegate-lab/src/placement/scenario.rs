//! What is placed, and on what.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_control::machine::modelled::ModelConfig;
use tidegate_control::machine::types::{
    Demand, FitConfig, GroupNo, NodeLoad, PUBLISHERS_MAX, Principles, Publisher, Slo,
};
use tidegate_core::limit::Limit;
use tidegate_core::profile::{self, Profile, ProfileConfig, ProfileError};
use tidegate_core::replay::ServiceModel;
use tidegate_core::theory::md1::{self, TheoryError, Traffic};
use tidegate_core::{Instant, Rate, Rng};
use tidegate_sim::workload::{Arrival, GroupConfig, Groups, Periodic, Poisson, Publishers};

use super::model::{PAPER, PAPER_MCAP};
use crate::statistics::count;

/// Streams of random numbers: phases of periodic publishers, the profile's trace; those of measurements follow.
const PHASES: u64 = 0;
const PROFILE: u64 = 1;
/// Periods of periodic publishers that are profiled: the first of them begins with an empty bucket's work.
const PERIODS_PROFILED: u32 = 60;
/// The quantile of the objective, as the paper's.
pub(super) const QUANTILE: f64 = 0.99;

/// By which principles publishers are placed. Source: §6 of the paper
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// All brokers alike.
    Lb,
    /// As few brokers as possible, with equal total loads.
    Conc,
    /// As few as possible, and the smallest part of the topic as large as possible.
    MaxMin,
    /// The same, and groups of publishers are spread over them.
    Srtm,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lb, Self::Conc, Self::MaxMin, Self::Srtm];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lb => "lb",
            Self::Conc => "conc",
            Self::MaxMin => "max-min",
            Self::Srtm => "srtm",
        }
    }

    /// The policy that is written so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    fn principles(self) -> Principles {
        match self {
            Self::Lb => Principles::LB,
            Self::Conc => Principles::CONC,
            Self::MaxMin => Principles::MAX_MIN,
            Self::Srtm => Principles::SRTM,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlannerName {
    /// The paper's, by rounds of measurements.
    Paper,
    /// One that asks a model of the brokers, and confirms by one measurement.
    Model,
}

impl PlannerName {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Paper, Self::Model];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Model => "model",
        }
    }

    /// The planner that is written so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planner| planner.name() == name)
    }
}

/// When publishers, or groups of them, send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalLaw {
    /// At random.
    Poisson,
    /// Periodically, each with a phase of its own.
    Periodic,
}

/// A topic and the brokers that it may be placed on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// How many brokers there are.
    pub brokers: u32,
    /// Messages per second that one takes within the objective, all topics together: what a benchmark would say.
    pub mcap: Rate,
    /// Messages per second of other topics on each broker, as Poisson batches; what is not listed is idle.
    pub preload: Vec<Rate>,
    /// Messages in a batch of them.
    pub preload_batch: u32,
    /// What a broker does with messages.
    pub service: ServiceModel,
    /// The topic's publishers.
    pub publishers: u32,
    /// Messages per second of each.
    pub publisher_rate: Rate,
    /// Messages in a batch.
    pub batch: u32,
    /// Publishers that send together; 1: none do.
    pub group: u32,
    /// The batches of a group are spread over so many microseconds.
    pub spread_us: f64,
    /// When they send.
    pub arrivals: ArrivalLaw,
    /// The p99 from arrival to the end of processing that is promised, in microseconds.
    pub slo_us: f64,
    /// By which principles.
    pub policy: Policy,
    /// Exactly so many brokers, measured once and not fitted.
    pub force_brokers: Option<u32>,
    /// Rate of the limit over the publishers' rate.
    pub margin: f64,
    /// The share of messages that the whole bucket lets pass undelayed: it gives the burst.
    pub undelayed: f64,
    /// Messages of the trace that gives it, where it is not computed.
    pub profile_messages: u32,
    /// How measurements are made.
    pub fit: FitConfig,
    /// Who plans.
    pub planner: PlannerName,
    /// A core's times in the planner's model over those of the brokers: 1, if the model is right.
    pub model_off: f64,
    /// Of a longer measurement only so many seconds are simulated. It counts with its whole length.
    pub simulated_s_max: u32,
    /// What the planner ended with is measured for so long, all of it simulated; as a round, if it is not said. A p99 of a
    /// minute is that of a few moments in which the bucket runs dry, if there are any.
    pub judged_s: Option<u32>,
    /// Same seed, same answer.
    pub seed: u64,
}

impl Default for Scenario {
    /// The topic of the paper's §6.4 and §6.5, without groups.
    fn default() -> Self {
        Self {
            brokers: 6,
            mcap: PAPER_MCAP,
            preload: Vec::new(),
            preload_batch: 10,
            service: PAPER,
            publishers: 1_000,
            publisher_rate: Rate::per_s(10),
            batch: 10,
            group: 1,
            spread_us: 0.0,
            arrivals: ArrivalLaw::Poisson,
            slo_us: 1_000.0,
            policy: Policy::Srtm,
            force_brokers: None,
            margin: 1.1,
            undelayed: 0.999,
            profile_messages: 3_000_000,
            fit: FitConfig::default(),
            planner: PlannerName::Paper,
            model_off: 1.0,
            simulated_s_max: 60,
            judged_s: None,
            seed: 1,
        }
    }
}

/// A scenario that cannot be.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
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
    /// More brokers are loaded than there are.
    #[error("the loads of {loads} brokers are given, and there are {brokers}")]
    TooManyLoads {
        /// Loads.
        loads: usize,
        /// Brokers.
        brokers: u32,
    },
    /// The publishers' traffic gives no limit.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No burst is large enough.
    #[error(transparent)]
    Theory(#[from] TheoryError),
}

impl Scenario {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// The first number that is out of its range.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let rate = self.publisher_rate.as_per_s();
        let ranges = [
            ("brokers", f64::from(self.brokers), 1.0, 100.0),
            ("mcap", self.mcap.as_per_s(), 1.0, 1e9),
            ("preload batch", f64::from(self.preload_batch), 1.0, 1e3),
            ("publishers", f64::from(self.publishers), 1.0, count(PUBLISHERS_MAX)),
            ("publisher's rate", rate, 1e-3, 1e6),
            ("rate of all publishers", rate * f64::from(self.publishers), 1.0, 1e7),
            ("batch", f64::from(self.batch), 1.0, 1e3),
            ("group", f64::from(self.group), 1.0, f64::from(self.publishers)),
            ("spread", self.spread_us, 0.0, 1e9),
            ("slo, in microseconds", self.slo_us, 1.0, 1e9),
            ("margin", self.margin, 1.001, 1e3),
            ("undelayed", self.undelayed, 0.0, 0.999_999),
            ("messages profiled", f64::from(self.profile_messages), 1e3, 1e8),
            ("seconds simulated", f64::from(self.simulated_s_max), 1.0, 3_600.0),
            ("seconds judged", f64::from(self.judged_s.unwrap_or(1)), 1.0, 36_000.0),
            ("model_off", self.model_off, 0.1, 10.0),
            ("brokers forced", f64::from(self.force_brokers.unwrap_or(1)), 1.0, f64::from(self.brokers)),
        ];
        for (name, found, least, most) in ranges {
            if !(least..=most).contains(&found) {
                return Err(ScenarioError::OutOfRange { name, found, least, most });
            }
        }
        if self.preload.len() > self.brokers as usize {
            return Err(ScenarioError::TooManyLoads { loads: self.preload.len(), brokers: self.brokers });
        }
        Ok(())
    }

    /// The topic's limit: what its publishers ask for.
    ///
    /// Of Poisson publishers, and of groups of them that send at the same instant, the burst is computed for an endless
    /// trace: a burst that is rarely used up depends on a few moments of a finite one. Else a trace is profiled.
    ///
    /// # Errors
    /// If there is no such burst.
    pub fn limit(&self) -> Result<Limit, ScenarioError> {
        let mean_per_s = self.publisher_rate.as_per_s() * f64::from(self.publishers);
        let rate = Rate::from_per_s_f64(mean_per_s * self.margin);
        if self.arrivals == ArrivalLaw::Poisson && (self.group == 1 || self.spread_us <= 0.0) {
            let traffic = Traffic { rate_per_s: mean_per_s, batch: self.batch.saturating_mul(self.group) };
            return Ok(Limit::new(rate, md1::smallest_burst(traffic, rate.as_per_s(), self.undelayed)?));
        }
        let batches = self.profiled_batches() as usize;
        let single = |arrival: Arrival| {
            let message = profile::Arrival { at: arrival.at, cost: 1 };
            std::iter::repeat_n(message, arrival.messages as usize)
        };
        let trace: Vec<profile::Arrival> = self.traffic(PROFILE).take(batches).flat_map(single).collect();
        let config = ProfileConfig { margin: self.margin, undelayed: self.undelayed };
        let burst = Profile::of(&trace, config)?.limit().burst;
        Ok(Limit::new(rate, burst))
    }

    /// How many batches of the publishers are profiled. Of periodic ones a few periods tell all: they repeat themselves.
    fn profiled_batches(&self) -> u32 {
        let batches = self.profile_messages / self.batch.max(1);
        match self.arrivals {
            ArrivalLaw::Poisson => batches,
            ArrivalLaw::Periodic => batches.min(self.publishers.saturating_mul(PERIODS_PROFILED)),
        }
    }

    /// What a planner is asked.
    #[must_use]
    pub fn demand(&self, limit: Limit) -> Demand {
        let group = |publisher: u32| GroupNo(publisher / self.group.max(1));
        let rate_per_s = self.publisher_rate.as_per_s();
        let publishers = (0..self.publishers).map(|at| Publisher { rate_per_s, group: group(at) });
        Demand {
            limit,
            slo: Slo { quantile: QUANTILE, within: std::time::Duration::from_secs_f64(self.slo_us / 1e6) },
            publishers: publishers.collect(),
            principles: self.policy.principles(),
            fit: self.fit,
            force_nodes: self.force_brokers,
            seed: self.seed,
        }
    }

    /// What a planner with a model knows of the brokers.
    #[must_use]
    pub fn model(&self) -> ModelConfig {
        let off = |ns: u32| {
            let ns = tidegate_core::number::whole((f64::from(ns) * self.model_off).round());
            u32::try_from(ns).unwrap_or(u32::MAX)
        };
        let ServiceModel { batch_ns, message_ns, .. } = self.service;
        let service = ServiceModel { batch_ns: off(batch_ns), message_ns: off(message_ns), ..self.service };
        // Nobody sends before there is a broker for it.
        ModelConfig { service, beside_batch: self.preload_batch, place_first: true, ..ModelConfig::default() }
    }

    /// The brokers as a planner knows them.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeLoad> {
        let load = |at| NodeLoad { mcap_per_s: self.mcap.as_per_s(), allocated_per_s: self.preload_of(at).as_per_s() };
        (0..self.brokers as usize).map(load).collect()
    }

    pub(super) fn preload_of(&self, broker: usize) -> Rate {
        self.preload.get(broker).copied().unwrap_or(Rate::ZERO)
    }

    /// All publishers' batches, endless and in order of time. Periodic publishers keep their phases: they are the same
    /// ones whenever they are looked at. Others are drawn by the number of the stream.
    pub(super) fn traffic(&self, stream: u64) -> Box<dyn Iterator<Item = Arrival>> {
        let rate = Rate::from_per_s_f64(self.publisher_rate.as_per_s() * f64::from(self.publishers));
        let publishers = Publishers { count: self.publishers, rate, batch: self.batch };
        let periodic = self.arrivals == ArrivalLaw::Periodic;
        let mut rng = Rng::stream(self.seed, if periodic { PHASES } else { stream });
        if self.group > 1 {
            let config = GroupConfig { size: self.group, spread_us: self.spread_us, periodic };
            Box::new(Groups::new(publishers, config, Instant::ZERO, rng))
        } else if periodic {
            Box::new(Periodic::new(publishers, Instant::ZERO, &mut rng))
        } else {
            Box::new(Poisson::new(publishers, Instant::ZERO, rng))
        }
    }
}

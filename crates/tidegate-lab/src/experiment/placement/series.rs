//! What is compared: policies, and in what their scenarios differ from the common one.

use serde::{Deserialize, Serialize};
use tidegate_core::Rate;

use super::super::Complaint;
use crate::placement::{ArrivalLaw, Calibration, Model, Policy, Scenario};

/// The panel of series on our own broker.
const OWN: &str = "own";

/// What differs from point to point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Publishers in a group.
    Group,
    /// The topic's publishers.
    Publishers,
    /// Over how many microseconds a group's batches are spread.
    SpreadUs,
    /// A core's times in the planner's model over those of the brokers.
    ModelOff,
}

impl Axis {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Group => "publishers in a group",
            Self::Publishers => "publishers",
            Self::SpreadUs => "spread of a group, us",
            Self::ModelOff => "core's times in the model over those of the brokers",
        }
    }

    /// True if its values need not be whole.
    pub(super) fn is_broken(self) -> bool {
        matches!(self, Self::SpreadUs | Self::ModelOff)
    }

    pub(super) fn set(self, value: f64, scenario: &mut Scenario) {
        let whole = u32::try_from(tidegate_core::number::whole(value)).unwrap_or(u32::MAX);
        match self {
            Self::Group => scenario.group = whole,
            Self::Publishers => scenario.publishers = whole,
            Self::SpreadUs => scenario.spread_us = value,
            Self::ModelOff => scenario.model_off = value,
        }
    }
}

/// One series: a policy, and what its scenario has of its own. What is absent is as in the common scenario.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// In claims, tables and legends.
    pub name: String,
    /// By which principles publishers are placed.
    pub policy: Policy,
    /// The figure that it is drawn in, a part of the file's name; the main one if there is none.
    pub panel: Option<String>,
    /// On which brokers.
    #[serde(default)]
    pub model: Model,
    /// When publishers send.
    pub arrivals: Option<ArrivalLaw>,
    /// Messages in a batch.
    pub batch: Option<u32>,
    /// Messages a second that a broker takes within the objective: it takes more in batches.
    pub mcap: Option<Rate>,
    /// The share of messages that the whole bucket lets pass undelayed.
    pub undelayed: Option<f64>,
    /// Exactly so many brokers, measured once and not fitted.
    pub force_brokers: Option<u32>,
    /// As many brokers as this earlier series shows in the same repeat, measured once and not fitted.
    pub brokers_of: Option<String>,
}

impl Compared {
    /// The policy with nothing of its own, by its own name.
    pub(super) fn of(policy: Policy) -> Self {
        Self {
            name: policy.name().to_owned(),
            policy,
            panel: None,
            model: Model::Paper,
            arrivals: None,
            batch: None,
            mcap: None,
            undelayed: None,
            force_brokers: None,
            brokers_of: None,
        }
    }

    /// The same on our own broker, in a panel of its own.
    pub(super) fn on_own(&self) -> Self {
        let renamed = |name: &String| format!("{name}, own broker");
        Self {
            name: renamed(&self.name),
            panel: Some(self.panel.as_ref().map_or_else(|| OWN.to_owned(), |panel| format!("{panel}_{OWN}"))),
            model: Model::Own,
            brokers_of: self.brokers_of.as_ref().map(renamed),
            ..self.clone()
        }
    }

    pub(super) fn scenario(&self, common: &Scenario, own: Option<&Calibration>) -> Scenario {
        let mut scenario = Scenario {
            policy: self.policy,
            arrivals: self.arrivals.unwrap_or(common.arrivals),
            batch: self.batch.unwrap_or(common.batch),
            mcap: self.mcap.unwrap_or(common.mcap),
            undelayed: self.undelayed.unwrap_or(common.undelayed),
            force_brokers: self.force_brokers.or(common.force_brokers),
            ..common.clone()
        };
        if let (Model::Own, Some(own)) = (self.model, own) {
            (scenario.service, scenario.mcap) = (own.service(), own.mcap);
        }
        scenario
    }

    /// Checks it beside those that stand before it.
    pub(super) fn check(&self, before: &[Self], has_own: bool) -> Result<(), Complaint> {
        let key = "placement.series";
        let name = &self.name;
        Complaint::unless(!name.trim().is_empty(), key, "a series has no name")?;
        let is_new = before.iter().all(|other| other.name != *name);
        Complaint::unless(is_new, key, format!("there are two series named {name}"))?;
        let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let is_word = self.panel.as_ref().is_none_or(|panel| !panel.is_empty() && panel.chars().all(fits));
        Complaint::unless(is_word, key, format!("{name}: a panel is named by letters a to z, digits and _"))?;
        let is_calibrated = self.model == Model::Paper || has_own;
        Complaint::unless(is_calibrated, key, format!("{name}: the own broker needs placement.calibration"))?;
        let Some(other) = &self.brokers_of else { return Ok(()) };
        let is_known = before.iter().any(|known| known.name == *other);
        Complaint::unless(is_known, key, format!("{name}: brokers_of names {other}, which does not stand before it"))?;
        Complaint::unless(self.force_brokers.is_none(), key, format!("{name}: brokers_of beside force_brokers"))
    }
}

//! How the planner with a model plans.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::replay::{ServiceModel, Spread};

use super::super::confirm::ConfirmConfig;

/// How the model plans.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// What a node does with a message: calibrated once for each kind of node.
    pub service: ServiceModel,
    /// Messages in a batch of the traffic beside.
    pub beside_batch: u32,
    /// Arrivals are recorded for so long.
    pub record: Duration,
    /// Publishers are placed on the fewest nodes with room before they are recorded. Else they are recorded where they are.
    pub place_first: bool,
    /// A placement is tried for so long, in virtual time,
    pub horizon: Duration,
    /// and for so many messages at most.
    pub messages_max: u32,
    /// A number of nodes is taken if no node's share of messages beyond the objective is above this part of what is allowed.
    pub spare: f64,
    /// Model and measurement disagree if one p99 is above the other by more than this share of the other. The constant part of
    /// a message's way does not count, so that a tenth tells cores that are a fifth slower or faster from chance.
    pub margin: f64,
    /// The model's service times are fitted to a measurement at most so many times.
    pub fits: u32,
    /// How a placement is confirmed.
    pub confirm: ConfirmConfig,
}

impl Default for ModelConfig {
    /// Five seconds of recording; two minutes, or 1.5 million messages, of every trial; half of the late messages that are
    /// allowed, for those of a trial are an estimate; a margin of a tenth.
    fn default() -> Self {
        Self {
            service: ServiceModel {
                cores: 2,
                batch_ns: 16_000,
                message_ns: 18_000,
                way_ns: 100_000,
                spread: Spread::Exponential,
            },
            beside_batch: 10,
            record: Duration::from_secs(5),
            place_first: false,
            horizon: Duration::from_mins(2),
            messages_max: 1_500_000,
            spare: 0.5,
            margin: 0.1,
            fits: 1,
            confirm: ConfirmConfig::default(),
        }
    }
}

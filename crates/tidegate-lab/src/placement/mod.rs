//! A topic that a planner places on brokers, in virtual time.
//!
//! | module | its one job |
//! |---|---|
//! | `scenario` | what is placed, and on what |
//! | `model` | what the brokers do with messages |
//! | `plant` | carries out a planner's orders |
//!
//! The planner is the production one. Brokers are models: the production gate, then cores that serve released messages in
//! order, beside the traffic of other topics.

mod model;
mod plant;
mod scenario;

pub use model::{Calibration, CalibrationError, Model, PAPER, PAPER_MCAP, PAPER_MCAP_OF_TEN};
pub use plant::{BrokerFigures, Played, place, play};
pub use tidegate_control::machine::types::FitConfig;

pub use scenario::{ArrivalLaw, PlannerName, Policy, Scenario, ScenarioError};

//! A topic that a planner places on brokers, in virtual time.
//!
//! | module | its one job |
//! |---|---|
//! | `scenario` | what is placed, and on what |
//! | `plant` | carries out a planner's orders |
//!
//! The planner is the production one. Brokers are models: the production gate, then cores that serve released messages in
//! order, beside the traffic of other topics.

mod plant;
mod scenario;

pub use plant::{BrokerFigures, Played, place, play};
pub use tidegate_control::machine::types::FitConfig;

pub use scenario::{ArrivalLaw, PAPER, Policy, Scenario, ScenarioError};

//! A host whose classes are limited, its flows, and what keeps its queues short.
//!
//! The simulator's HTB, line and TCP; the shaper's own machine between them, told of every packet as the kernel's program
//! is: what the machine decides here it decides there.
//!
//! | module | its one job |
//! |---|---|
//! | `scenario` | what is run |
//! | `end` | one flow, both ends |
//! | `limiters` | the tree of classes that the shaper builds |
//! | `guard` | the shaper's machine, or nothing, at the host's edge |
//! | `plant` | events |
//! | `settling` | how soon a limiter's goodput is what it should be |
//! | `report` | what was seen |

mod end;
mod guard;
mod limiters;
mod plant;
mod report;
mod scenario;
mod settling;

pub use report::{Metric, Report};
pub use scenario::{Change, Churn, Far, Neighbour, Scenario, Scheme, Stall};

pub use plant::play;

#[cfg(test)]
mod tests;

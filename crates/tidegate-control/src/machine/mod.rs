//! Planners, and what they are made of. Each is told what happened and when, and reads no clock.
//!
//! | module | its one job |
//! |---|---|
//! | [`types`] | what a planner is told and what it orders |
//! | [`capacity`] | how many nodes a rate needs, and how it is divided among them |
//! | [`select`] | which publishers go to which node |
//! | `search` | how many publishers a node takes within its objective |
//! | [`distributor`] | SRTM's Load Distributor |
//! | `words` | decisions in words |

pub mod capacity;
pub mod distributor;
mod search;
pub mod select;
pub mod types;
mod words;

//! Planners, and what they are made of. Each is told what happened and when, and reads no clock.
//!
//! | module | its one job |
//! |---|---|
//! | [`types`] | what a planner is told and what it orders |
//! | [`benchmark`] | what a node takes within an objective |
//! | [`capacity`] | how many nodes a rate needs, and how it is divided among them |
//! | [`select`] | which publishers go to which node |
//! | `search` | how many publishers a node takes within its objective |
//! | [`distributor`] | SRTM's Load Distributor |
//! | [`model`] | what a placement would show, computed instead of measured |
//! | [`modelled`] | placement by a model, confirmed by one measurement |
//! | [`confirm`] | whether a placement keeps its objective, decided early |
//! | [`standing`] | a plan that changes by single publishers |
//! | [`portion`] | parts of a contract as exact shares |
//! | [`adaptor`] | parts that follow the traffic |
//! | [`steps`] | from one division of a contract to the next |
//! | [`roster`] | which nodes there are |
//! | [`director`] | the life of one claim |
//! | [`divider`] | the life of a limit that is divided among nodes which take whoever comes |
//! | [`rehearsal`] | a planner played in virtual time, without touching anything |
//! | [`name`] | names that are cheap to copy |
//! | [`hop`] | between one NSQ producer and the brokers that its topics are placed on |
//! | `term` | how long a process leads |
//! | `words` | decisions in words |

pub mod adaptor;
pub mod benchmark;
pub mod capacity;
pub mod confirm;
pub mod director;
pub mod distributor;
pub mod divider;
pub mod hop;
pub mod model;
pub mod modelled;
pub mod name;
pub mod portion;
pub mod rehearsal;
pub mod roster;
mod search;
pub mod select;
pub mod standing;
pub mod steps;
mod term;
pub mod types;
mod words;

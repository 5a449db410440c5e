//! Who sends when: endless or finite iterators of [`Arrival`]s in order of time.
//!
//! | workload | arrivals |
//! |---|---|
//! | [`Poisson`] | at random, at a constant rate |
//! | [`Periodic`] | each publisher strictly periodic, with a phase of its own |
//! | [`Groups`] | publishers that send together, more or less |
//! | [`Peaks`] | at random, at a rate with Gaussian peaks |
//! | [`trace`] | as recorded |
//!
//! All of them send batches of a given size, and are equal for equal generators.

mod arrival;
mod groups;
mod peaks;
mod periodic;
mod poisson;

pub use arrival::{Arrival, Publishers, trace};
pub use groups::{GroupConfig, Groups};
pub use peaks::{Peak, Peaks};
pub use periodic::Periodic;
pub use poisson::Poisson;

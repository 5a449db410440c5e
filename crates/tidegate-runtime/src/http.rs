//! What the HTTP servers of all components answer alike: errors, orders for parts of limits, and whom they let ask.

mod guard;
pub mod parts;
mod problem;

pub use guard::{asked, guard};
pub use problem::Problem;

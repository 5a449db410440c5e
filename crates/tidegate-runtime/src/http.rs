//! What the HTTP servers of all components answer alike: errors, and whom they let ask.

mod guard;
mod problem;

pub use guard::{asked, guard};
pub use problem::Problem;

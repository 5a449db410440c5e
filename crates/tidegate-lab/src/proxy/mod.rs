//! One core of the proxy in virtual time: its loop, its machines, and clients that ask for more than it can do.
//!
//! [`neighbours`](crate::neighbours) shows what a limiter grants. Here the work that it grants, and that of saying no, takes
//! time of the same core, as in the proxy: a look at the sockets, some tasks in the order in which they became ready, another
//! look. So it is seen what of the core's time becomes answers, and how long each tenant waits.
//!
//! Turns, admission, starts, signing and the limits are the proxy's own machines. What is modelled: the kernel's backlog, the
//! runtime's queue of tasks, the core's second thread, and what work costs.
//!
//! | module | its one job |
//! |---|---|
//! | [`scenario`] | what is played |
//! | `thread` | the core's loop, and its second thread |
//! | `handshakes` | new connections, from the kernel's backlog to the first request |
//! | `requests` | requests on connections that are there |
//! | `account` | what a connection's tenant used |
//! | `clients` | who asks, and what became of it |
//! | [`report`] | the figures of a run |

mod account;
mod clients;
mod handshakes;
pub mod report;
mod requests;
pub mod scenario;
mod thread;

pub use report::{Report, Row};
pub use scenario::{Client, ClientKind, Costs, Scenario, ScenarioError};
pub use tidegate_proxy::machine::neighbours::Mode;
pub use tidegate_sim::processor::Supply;

/// Plays a scenario. Same scenario, same answer.
///
/// # Errors
/// If the scenario makes no sense.
pub fn play(scenario: &Scenario) -> Result<Report, ScenarioError> {
    scenario.check()?;
    Ok(thread::Thread::new(scenario).run())
}

#[cfg(test)]
mod tests;

//! A server, its clients and a scheme of overload control between them, in virtual time.
//!
//! The model, which [`Plant`] runs event by event:
//! - Calls come open-loop: as Poisson processes for each [`Group`] of clients, spread evenly over its clients, and
//!   optionally as bursts of calls at one instant ([`Incast`]). A call's time counts from that instant.
//! - Each client has one [`Client`](tidegate_rpc::machine::Client) machine and one session; a message takes half of the
//!   round trip each way.
//! - The server has cores, a queue of messages and a queue of admitted calls. A free core takes messages first, as a
//!   runtime does that polls its packets between threads; nothing is interrupted. A message, be it a request, a demand or a
//!   grant that leaves outside an answer, costs a fixed time of a core. Then the
//!   [`Server`](tidegate_rpc::machine::Server) machine admits the request or sheds it, which costs no more. An admitted
//!   call is asked about again when a core takes it, and runs for a random time.
//! - A handler may wait before it computes, for a delay or for one of a few places ([`Behind`]): it takes no core
//!   then. Calls that may start and those that may go on have one queue.
//! - If wanted, ways and handlers take longer by random times, and all cores stop now and then ([`Jitter`], [`Pauses`]).
//! - The signal is the age of the oldest waiting message plus that of the oldest call that waits for a core.
//! - Capacity is cores / (mean service + cost of a message), or what the places that handlers wait for can do if less. Goodput counts the calls whose answer arrives within the SLO.
//!
//! Source of the model: Breakwater's evaluation (OSDI '20), §5.1.
//!
//! | module | its one job |
//! |---|---|
//! | `behind` | what handlers wait for before they compute |
//! | `faults` | what goes wrong on the way |
//! | [`rough`] | jitter, and pauses of the host |
//! | [`scenario`] | what is asked: plant, load and times |
//! | [`plant`] | the events |
//! | [`scheme`] | each scheme with its own machines |
//! | [`window`] | what is counted between two instants |
//! | [`report`] | a run from warm-up to end, and its figures |

mod arrivals;
mod behind;
mod calls;
mod client_side;
mod faults;
pub mod plant;
pub mod report;
pub mod rough;
pub mod scenario;
pub mod scheme;
mod server_side;
pub mod window;

pub use plant::Plant;
pub use report::{Bin, Report, measure};
pub use rough::{Jitter, Pauses};
pub use scenario::{Behind, Group, Incast, LoadStep, Scenario, ScenarioError, Service, ServiceLaw};
pub use scheme::measure_scheme;
pub use tidegate_rpc::config::Scheme;
pub use tidegate_rpc::machine::{Priority, Tenant};
pub use window::Window;

#[cfg(test)]
mod tests;

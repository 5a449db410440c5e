//! Services that call each other, one of them short, in virtual time.
//!
//! The model, which [`Graph`] runs event by event:
//! - The services are a full tree. Callers call its root, open-loop, as one Poisson process; each call is of a random one of
//!   them. A handler computes, calls all services below its own at once, waits until they have answered, computes once more
//!   and answers. Those of the leaves compute once.
//! - Each service has a server machine behind a [`Desk`](tidegate_rpc::machine::desk::Desk), with as many turns as it has
//!   cores, and one client machine before each service that it calls. Each caller has one before the root.
//! - What a handler calls inherits its priority and its deadline: the caller's, less the way.
//! - A service is told, before it looks at a request and before it answers, the lowest level of those that it calls; and a
//!   call that it lets through is not chosen by lot again below. Unless the services are not coupled.
//! - A refusal reaches the root: a handler of which a call was refused or failed gives its other calls up, takes its turn once
//!   more and fails. A caller gives up at its deadline. What is given up ends where it waits; what computes is not
//!   interrupted, and does not go on.
//! - Messages take half of a round trip, and no core: what is measured is the work of handlers.
//!
//! | module | its one job |
//! |---|---|
//! | [`tree`] | what is asked: services, load and times |
//! | `call` | a call, and where it is |
//! | [`plant`] | the events |
//! | `server_side` | what happens at a service |
//! | `client_side` | what happens beside callers and in front of the services that handlers call |
//! | [`tally`] | what came of it |

mod call;
mod client_side;
pub mod plant;
mod server_side;
pub mod tally;
pub mod tree;

pub use plant::Graph;
pub use tally::Tally;
pub use tree::Tree;

#[cfg(test)]
mod tests;

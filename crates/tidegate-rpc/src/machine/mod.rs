//! Every overload-control scheme as a pair of pure state machines: one beside the callers, one beside the handlers.
//!
//! [`shape`] says what all of them look like, and [`desk`] how a server's machine is driven, so that the simulator, the
//! layers and the TCP transport carry any of them. No machine reads a clock, and none draws random numbers but from the `Rng` that it is handed.

pub mod any;
pub mod aqm;
pub mod breakwater;
pub mod claims;
pub mod client_rate;
pub mod credits;
pub mod dagor;
pub mod desk;
pub mod instances;
mod line;
pub mod none;
pub mod probing;
pub mod seda;
mod sessions;
pub mod shadow;
pub mod shape;
pub mod short;
pub mod static_limit;
mod waiting;

pub use claims::{Claims, Known};
pub use shape::{
    Ask, CERTAIN, CallId, Client, ClientOutput, Done, Full, Grant, Outcome, Priority, Reply, Request, Server,
    SessionId, ShedReason, Signal, Step, Tenant, Ticket, Verdict,
};

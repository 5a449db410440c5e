//! Every overload-control scheme as a pair of pure state machines: one beside the callers, one beside the handlers.
//!
//! [`shape`] says what all of them look like, so that the simulator, the layers and the TCP transport carry any of
//! them. No machine reads a clock, and none draws random numbers but from the `Rng` that it is handed.

pub mod breakwater;
pub mod credits;
mod sessions;
pub mod shape;
mod waiting;

pub use shape::{
    Ask, CallId, Client, ClientOutput, Done, Full, Grant, Outcome, Priority, Reply, Request, Server, SessionId,
    ShedReason, Signal, Step, Tenant, Ticket, Verdict,
};

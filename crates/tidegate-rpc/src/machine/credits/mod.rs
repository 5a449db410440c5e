//! Tidegate's own scheme, the default: measured demand, computed admission, credits for the fast.
//!
//! The server knows three things of itself: how fast it drains its queue, how long its calls run, and which share of
//! its time it was idle. From these follow, with nothing to set, how long a call may wait (`service`) and how many
//! calls a second it can take. It knows the demand too: every call that reaches it was let through by a client with a
//! chance that the server itself told that client, so one call stands for 1/chance calls that were wanted
//! (`demand`). The chance that each tenant and priority has from now on is then a division, not a search.
//!
//! Answers carry it to the clients as a [`Level`]: which priorities are sent always, which one by chance, which not.
//! It is a lease: a client that has not heard anything for several of its own calls starts anew. So there are no
//! messages but calls and answers, nothing waits at a client, and nothing can hang. Clients that call so often that
//! they always have a call in the server get credits as well, a window counted in a ledger (`session`).
//!
//! What arrives too much in spite of that, at a step or by chance, is shed at once if the wait that it faces is longer
//! than its limit, and again when a core would start it too late. This costs a message, therefore a little more is
//! let through than fits, as much as keeps the cores from idling more than the configured share.
//!
//! Departures from Breakwater: a computed admission in place of additive increase; a predicted wait against each
//! call's own limit in place of one age for all; nothing waits at clients; credits expire.

mod client;
mod config;
mod demand;
mod level;
mod mark;
mod server;
mod service;
mod session;
mod shortage;
mod surplus;

pub use client::CreditClient;
pub use config::{Config, Objective};
pub use level::Level;
pub use server::{CreditServer, Gauges};

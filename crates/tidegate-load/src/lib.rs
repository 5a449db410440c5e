//! Open-loop load and raw clients for demo, benchmarks and attacks.
//!
//! | module | its one job |
//! |---|---|
//! | [`arrivals`] | intended send times from a seed |
//! | [`stamp`] | what a message of ours says about itself |
//! | [`latency`], [`ledger`] | delays; conservation |
//! | [`release_law`], [`access`] | what a token bucket lets through; when it should have |
//! | [`target`] | CPU time and memory of another process |
//! | [`mod@bench`] | a measured run against one NSQ broker |
//! | [`demo_load`] | load whose rate and capacity change while it is watched |
//! | [`mod@rpc`] | a measured run against one `tidegate-rpc` server |
//! | [`mod@http`] | a measured run of HTTP and TLS load; the server behind proxies |
//! | [`tcp`] | bulk flows between two hosts, and a probe beside them |
//! | [`attack`] | abuse scripts against a proxy on this machine |
//! | [`idle`] | what an idle connection costs a broker |
//! | [`echo`] | what one thread and epoll cost at least |
//! | [`witness`] | what consumers see of a broker whose limits and processes come and go |
//! | [`gaps`] | when a machine ran nothing of ours |
//! | [`cli`] | both from a command line |
//! | [`error`] | what can go wrong |
//!
//! Latency begins when a message should have been sent, so that a broker that stalls the generator does not hide its own
//! delay. The generator's own lateness is measured beside it, and spoils the run if it is large.
//!
//! ```
//! use tidegate_core::Instant;
//! use tidegate_load::arrivals::{Arrivals, Process, Shape};
//!
//! let shape = Shape { process: Process::Periodic, rate_per_s: 100.0, batch: 1, publishers: 2 };
//! let arrivals: Vec<_> = Arrivals::new(shape, Instant::ZERO, 1).take(4).collect();
//! assert_eq!(arrivals[2].at.nanos_since(arrivals[0].at), 20_000_000); // each of the two every 20 ms
//! ```
//!
//! Its NSQ is plain: no TLS, compression or AUTH, and it does not reconnect.

pub mod access;
pub mod arrivals;
pub mod attack;
pub mod bench;
pub mod cli;
pub mod demo_load;
pub mod echo;
pub mod error;
pub mod gaps;
pub mod http;
pub mod idle;
pub mod latency;
pub mod ledger;
mod link;
mod load_thread;
mod poll;
pub mod release_law;
pub mod rpc;
mod spans;
pub mod stamp;
pub mod target;
pub mod tcp;
pub mod witness;

pub use error::LoadError;
pub use link::{Buffering, Identify};

//! A discrete-event kernel: virtual clock, seeded randomness, network, hosts, workloads, faults, traces.
//!
//! It drives the same machines that run in production, at any speed, and always the same way for the same seed. It
//! knows limiters from the core, but no component.
//!
//! | module | its one job |
//! |---|---|
//! | [`kernel`] | the clock and the queue of events |
//! | [`trace`] | one number for everything that happened |
//! | [`distribution`] | random spans of time |
//! | [`workload`] | who sends when |
//! | [`lane`] | things that happen later, mostly in the order of putting in |
//! | [`mod@line`] | arrivals through a production gate, as fast as it goes |
//! | [`host`] | cores that serve one queue |
//! | [`processor`] | a processor that others have at times |
//! | [`network`] | links that delay and keep order |
//! | [`packets`] | a shaper's classes, a line, and the ends of TCP flows |
//! | [`datagrams`] | links that lose, double and reorder what they carry |
//! | [`circle`] | members that lend each other tokens over such links |
//! | [`law`] | what no limiter may release more of |
//! | [`fault`] | what goes wrong, and when |
//! | [`replay`] | many seeds, and the command that repeats the one that failed |
//!
//! ```
//! use std::time::Duration;
//! use tidegate_core::Instant;
//! use tidegate_sim::kernel::{Bounds, Simulation};
//!
//! #[derive(Hash)]
//! enum Event {
//!     Tick,
//! }
//! let mut simulation = Simulation::new(7, Bounds::default());
//! simulation.after(Duration::from_secs(1), Event::Tick);
//! let mut ticks = 0;
//! simulation
//!     .run_until(Instant::from_nanos(5_500_000_000), |simulation, Event::Tick| {
//!         ticks += 1;
//!         simulation.after(Duration::from_secs(1), Event::Tick);
//!     })
//!     .expect("five events are within the bounds");
//! assert_eq!(ticks, 5);
//! ```

pub mod circle;
pub mod datagrams;
pub mod distribution;
pub mod fault;
pub mod host;
pub mod kernel;
pub mod lane;
pub mod law;
pub mod line;
pub mod network;
pub mod packets;
pub mod processor;
pub mod replay;
pub mod trace;
pub mod workload;

pub use distribution::Distribution;
pub use kernel::{Bounds, Overrun, Simulation};
pub use trace::TraceHash;

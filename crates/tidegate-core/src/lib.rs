//! Pure limiters, controllers, estimates and theory: no clock, no I/O, no threads.
//!
//! Every type here is a value that is told what happened and when. The same code runs in production and in the
//! simulator.
//!
//! | module | its one job |
//! |---|---|
//! | [`time`] | instants as plain numbers |
//! | [`rate`] | exact rates |
//! | [`limit`] | what enforces: token bucket, the gate that waits for it, and their kin |
//! | [`lease`] | what is granted until a time, at either end |
//! | [`lend`] | parts of one limit that lend each other tokens |
//! | [`profile`] | the contract that a recorded trace asks for |
//! | [`replay`] | what a broker with a limit does to arrivals |
//! | [`theory`] | what can be computed: the exact M/D/1 delays of a bucket |
//! | [`control`] | what decides: controllers |
//! | [`allocate`] | how a scarce supply is shared out |
//! | [`share`] | one resource, shared among claimants by overflow token buckets |
//! | [`estimate`] | what measures: histograms of delays |
//! | [`sleep`] | whether the machine has slept |
//! | [`timer_wheel`] | many timers, each cheap |
//! | [`number`] | between whole numbers and fractions |
//! | [`rng`] | seeded random numbers |
//!
//! ```
//! use tidegate_core::limit::{Limit, TokenBucket};
//! use tidegate_core::{Instant, Rate};
//!
//! let start = Instant::ZERO;
//! let mut bucket = TokenBucket::new(Limit::new(Rate::per_s(10), 2), start);
//! assert!(bucket.try_take(2, start).is_ok());
//! assert!(bucket.try_take(1, start).is_err()); // the refusal says when to come back
//! ```
//!
//! It does not know what a topic, a tenant or a socket is.

pub mod allocate;
pub mod control;
pub mod estimate;
pub mod lease;
pub mod lend;
pub mod limit;
pub mod number;
pub mod profile;
pub mod rate;
pub mod replay;
pub mod rng;
pub mod share;
pub mod sleep;
pub mod theory;
pub mod time;
pub mod timer_wheel;

pub use rate::Rate;
pub use rng::Rng;
pub use time::Instant;
pub use timer_wheel::{TimerKey, TimerWheel};

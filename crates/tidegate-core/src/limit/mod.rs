//! What enforces: the token bucket and its kin.
//!
//! A [`Limit`] is the contract, rate and burst. [`TokenBucket`] holds callers to it and refuses at once;
//! [`Gate`] makes them wait in order until a token is there.

mod gate;
mod token_bucket;

pub use gate::{Full, Gate, Released};
pub use token_bucket::{Limit, Throttled, TokenBucket};

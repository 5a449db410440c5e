//! What enforces: the token bucket and its kin.
//!
//! A [`Limit`] is the contract, rate and burst. [`TokenBucket`] holds callers to it and refuses at once;
//! [`Gate`] makes them wait in order until a token is there; [`SharedBucket`] refuses for many threads at a time.
//! [`split`] makes several contracts of one. [`ConcurrencyLimit`] bounds not the rate but what is under way.

pub mod concurrency;
mod gate;
pub mod shared;
pub mod split;
mod token_bucket;

pub use concurrency::ConcurrencyLimit;
pub use gate::{Full, Gate, Released};
pub use shared::SharedBucket;
pub use token_bucket::{Limit, Throttled, TokenBucket};

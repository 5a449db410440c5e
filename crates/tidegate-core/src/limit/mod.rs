//! What enforces: the token bucket and its kin.
//!
//! A [`Limit`] is the contract, rate and burst. [`TokenBucket`] holds callers to it and refuses at once;
//! [`Pacer`] says when the head of a line has its tokens, and [`Gate`] is such a line in memory; [`SharedBucket`] refuses
//! for many threads at a time. [`SpentBuckets`] remembers what buckets held that were taken away. [`split`] makes several
//! contracts of one. [`RetryBudget`] bounds retries to a share of what goes well. [`ConcurrencyLimit`] bounds not the rate but what is under way; [`InFlightLimit`] learns that bound.

pub mod concurrency;
mod gate;
mod in_flight;
mod pacer;
mod retry_budget;
pub mod shared;
mod spent;
pub mod split;
mod token_bucket;

pub use concurrency::ConcurrencyLimit;
pub use gate::{Full, Gate, Released};
pub use in_flight::{Began, InFlightConfig, InFlightLimit};
pub use pacer::Pacer;
pub use retry_budget::{RetryBudget, RetryTerms};
pub use shared::SharedBucket;
pub use spent::SpentBuckets;
pub use token_bucket::{Limit, Throttled, TokenBucket};

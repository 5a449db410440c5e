//! The `rate_limit` plugin of Apache Traffic Server as a state machine, option by option.
//!
//! | module | its one job |
//! |---|---|
//! | `lending` | its tokens, as the limiters of other proxies borrow and lend them |
//! | [`limiter`] | one limiter: how many at once, how many a second, and who waits |
//! | [`part`] | its part of a rate that several proxies divide, and what is asked of it each second |
//! | [`shared_limit`] | a limiter with its part and with what it lends and borrows |
//! | [`selector`] | which limiter a client's connection or request falls under, if any |
//! | [`prefixes`] | ranges of addresses that are exempt or refused |
//! | [`metrics`] | what a limiter counts, and the plugin's names for it |
//!
//! What the plugin's options say is kept. What its code does else is not: `tests` has one test for each of those.
//! The book maps every option to ours.

mod lending;
pub mod limiter;
pub mod metrics;
pub mod part;
pub mod prefixes;
pub mod selector;
pub mod shared_limit;

pub use limiter::{Cause, Decision, Ended, Outlook, Output, RateLimit, RateLimitConfig, Rejection};
pub use metrics::{Counts, MetricName, Scope};
pub use part::{DemandSecond, PartStatus};
pub use prefixes::{Prefix, PrefixSet};
pub use selector::{Access, Lists, Selector, Selectors};
pub use shared_limit::{LendTerms, NotGranted, SharedLimit};

#[cfg(test)]
mod tests;

//! What a running `tidegate rpc serve` shows of itself, read-only.
//!
//! | module | its one job |
//! |---|---|
//! | `watched` | a server machine that is counted while it works |
//! | `book` | what is counted |
//! | `snapshot` | the books of all shards as one JSON document |
//! | `metrics` | the same for Prometheus |
//! | `admin` | the two over HTTP |
//! | `serve` | both, and a console in front of them, on loopback |

mod admin;
mod book;
mod metrics;
mod serve;
mod snapshot;
mod watched;

pub(crate) use self::admin::Source;
pub(crate) use self::serve::{Shown, Wanted, show};
pub(crate) use self::watched::{Watch, Watched};

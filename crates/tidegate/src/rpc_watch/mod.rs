//! What a running `tidegate rpc serve` shows of itself, read-only.
//!
//! | module | its one job |
//! |---|---|
//! | `watched` | a server machine that is counted while it works |
//! | `clients` | its connected clients |
//! | `admin` | the figures of all shards over HTTP |
//! | `serve` | both, and a console in front of them, on loopback |

mod admin;
mod clients;
mod serve;
mod watched;

pub(crate) use self::admin::Source;
pub(crate) use self::serve::{Shown, Wanted, show};
pub(crate) use self::watched::{Watch, Watched};

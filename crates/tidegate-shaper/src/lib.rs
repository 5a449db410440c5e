//! A host agent that keeps the queues of HTB short by rewriting the receive windows of TCP in eBPF.
//!
//! | module | its one job |
//! |---|---|
//! | `config` | `[shaper]` of `tidegate.toml`, checked once (feature `config`) |
//! | `error` | why a shaper does not start, or cannot change (feature `io`) |
//! | `io` | netlink, namespaces, the admin API and the agent around the machines (feature `io`) |
//! | [`machine`] | the trees and their changes, as values; pure |

#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "io")]
pub mod error;
#[cfg(feature = "io")]
pub mod io;
pub mod machine;

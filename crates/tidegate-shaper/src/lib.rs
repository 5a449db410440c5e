//! A host agent that keeps the queues of HTB short by rewriting the receive windows of TCP in eBPF.
//!
//! | module | its one job |
//! |---|---|
//! | `config` | `[shaper]` of `tidegate.toml`, checked once (feature `config`) |
//! | [`machine`] | the trees and their changes, as values; pure |

#[cfg(feature = "config")]
pub mod config;
pub mod machine;

//! Placement: divides a limit among nodes and says which of them serves whom.
//!
//! | module | its one job |
//! |---|---|
//! | [`machine`] | planners and what carries them out: told what happened, they order what to do next; the hop; pure |
//! | `config` | `[control]` of `tidegate.toml`, checked once (feature `io`) |
//! | `error` | why a node does not answer, and why the store does not (feature `io`) |
//! | `io` | control itself, and the hop that producers dial (feature `io`) |
//!
//! The machines do not know what a topic or a broker is: a claim has a limit, publishers and an objective, and nodes have
//! capacities; a limit that is divided has nodes, and what they are asked for. The hop knows NSQ. Source, where an item names a section: Li, Liu,
//! Lu, Guerin, Gill, "Impact of Distributed Rate Limiting on Load Distribution in a Latency-sensitive Messaging Service".

#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
pub mod error;
#[cfg(feature = "io")]
pub mod io;
pub mod machine;

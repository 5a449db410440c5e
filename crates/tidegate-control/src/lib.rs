//! Placement: divides a limit among nodes and says which of them serves whom.
//!
//! | module | its one job |
//! |---|---|
//! | [`machine`] | planners: told what was measured, they order what to do next |
//!
//! It does not know what a topic or a broker is: a claim has a limit, publishers and an objective, and nodes have
//! capacities. Source, where an item names a section: Li, Liu,
//! Lu, Guerin, Gill, "Impact of Distributed Rate Limiting on Load Distribution in a Latency-sensitive Messaging Service".

pub mod machine;

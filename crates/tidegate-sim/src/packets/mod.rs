//! Packets: a shaper's classes, a line, and the two ends of a TCP flow.
//!
//! | module | its one job |
//! |---|---|
//! | [`htb`] | classes that hold packets back, as Linux HTB does |
//! | [`wire`] | a line that takes time for each byte, and then for the way |
//! | [`tcp`] | a sender and a receiver, as Linux has them as far as queues can tell |
//!
//! None of them schedules events: each says when it wants to be called next.

pub mod htb;
pub mod tcp;
pub mod wire;

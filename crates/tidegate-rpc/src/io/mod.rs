//! Sockets, layers and clocks around the machines.
//!
//! | module | its one job |
//! |---|---|
//! | [`layer`] | tower layers for any HTTP/1 or HTTP/2 stack |
//! | [`signal`] | a tokio runtime that reads requests when they arrive |
//! | [`tcp`] | a lean binary protocol over TCP |

pub mod layer;
pub mod signal;
pub mod tcp;

//! Sockets, layers and clocks around the machines.
//!
//! | module | its one job |
//! |---|---|
//! | [`layer`] | tower layers for any HTTP/1 or HTTP/2 stack |

pub mod layer;

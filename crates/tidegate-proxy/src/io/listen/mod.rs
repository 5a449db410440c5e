//! Threads and their ports, and connections until they are served.
//!
//! | module | its one job |
//! |---|---|
//! | `bind` | the socket of a port |
//! | `tuning` | the numbers that steer how connections are taken |
//! | `gates` | when the gates of limits by hand are turned |

pub(crate) mod bind;
pub(crate) mod gates;
pub(crate) mod tuning;

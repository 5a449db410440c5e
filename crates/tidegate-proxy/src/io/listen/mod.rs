//! Threads and their ports, and connections until they are served.
//!
//! | module | its one job |
//! |---|---|
//! | `bind` | the socket of a port |
//! | `tuning` | the numbers that steer how connections are taken |

pub(crate) mod bind;
pub(crate) mod tuning;

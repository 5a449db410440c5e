//! The limiters as state machines: told what happened and when, they decide. No clock, no socket, no thread.
//!
//! | module | its one job |
//! |---|---|
//! | [`admission`] | who waits for what is left over, and whose turn comes |
//! | [`bandwidth`] | bytes per second of a tenant, as a number |
//! | [`budget`] | what is left of a quota of processor time |
//! | [`neighbours`] | all tenants and all resources of one core: who is admitted, and in which lane |
//! | [`patience`] | how long a slow client is waited for |
//! | [`places`] | who is ended when there is no room for one more connection |
//! | [`rate_limit`] | Traffic Server's plugin of that name, option by option |
//! | [`rest`] | what is still read of a client that has its last answer |
//! | [`response_times`] | how long answers take, by fixed bounds |
//! | [`resource`] | what tenants use of a machine, and in which unit |
//! | [`rtb`] | the prototype of overflow token buckets, as the baseline |
//! | [`sampling`] | which requests have a line in the access log |
//! | [`seats`] | who has a place for a connection, and who gives up his |
//! | [`signing`] | where handshakes beyond a share are computed |
//! | [`starts`] | whose handshake begins next |
//! | [`turns`] | whose task runs next on a thread |
//! | [`upstream`] | which server gets a request, whether it is well, what may be tried again |

pub mod admission;
pub mod bandwidth;
pub mod budget;
pub mod neighbours;
pub mod patience;
pub mod places;
pub mod rate_limit;
pub mod resource;
pub mod response_times;
pub mod rest;
pub mod rtb;
pub mod sampling;
pub mod seats;
pub mod signing;
pub mod starts;
pub mod turns;
pub mod upstream;

pub use resource::{Kind, Resource};

//! Threads and their ports, and connections until they are served.
//!
//! | module | its one job |
//! |---|---|
//! | `proxy` | a proxy that runs |
//! | `worker` | the threads: one for each core, and two beside it |
//! | `thread` | what the tasks of one thread share |
//! | `settings` | the configuration, as the way of a request uses it |
//! | `files` | what is wrong with the files that a configuration names |
//! | `ports` | ports of all threads, and what holds for who comes by one |
//! | `bind` | the socket of a port |
//! | `accept`, `hello` | a connection: taken, judged by its first bytes |
//! | `tuning` | the numbers that steer how connections are taken |
//! | `refused` | connections that are refused, until they are ended |
//! | `seats` | who is ended when there is no room for one more |
//! | `starts` | whose handshake begins next |
//! | `signer` | what the core's other threads compute: handshakes beyond their tenants' shares |
//! | `cpu` | a quota of processor time, and what is left of it |
//! | `gates` | when the gates of limits by hand are turned |

pub(crate) mod accept;
pub(crate) mod bind;
pub(crate) mod cpu;
pub(crate) mod files;
pub(crate) mod gates;
pub(crate) mod hello;
pub(crate) mod ports;
pub(crate) mod proxy;
pub(crate) mod refused;
pub(crate) mod seats;
pub(crate) mod settings;
pub(crate) mod signer;
pub(crate) mod starts;
pub(crate) mod thread;
pub(crate) mod tuning;
pub(crate) mod worker;

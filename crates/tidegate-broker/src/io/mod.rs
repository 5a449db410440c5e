//! Sockets, files and HTTP around the machine.
//!
//! | module | its one job |
//! |---|---|
//! | [`broker`] | a running broker: its threads, started and stopped |
//! | [`handle`] | how the rest of the process speaks to the shards |
//! | `shard_thread`, `connection`, `socket`, `alarm`, `arrival`, `listener`, `mailbox` | one shard's thread and what it waits for |
//! | `handshake` | TLS handshakes, on a thread beside the shard's |
//! | [`transport`], [`tls`] | the layers between a socket's bytes and the protocol's |
//! | [`disk_thread`], [`disk_queue`], [`metadata`] | the data folder, in nsqd's files |
//! | [`names`], [`adoption`] | the names of topics and channels, kept up to date and found again |
//! | [`buckets`], [`kept_parts`] | what is left of the tokens, and of parts of limits, over a restart |
//! | [`lend_socket`], `lend_boot` | datagrams of lending, and the numbers of their sessions |
//! | [`trace`] | traces of a topic's messages |
//! | [`http`], [`admin`] | nsqd's HTTP API, and Tidegate's own |
//! | [`lookupd`], [`auth_client`], [`statsd`] | nsqlookupds, AUTH servers, a statsd server |

pub mod admin;
pub mod adoption;
mod alarm;
mod arrival;
pub mod auth_client;
pub mod broker;
pub mod buckets;
mod connection;
pub mod disk_queue;
pub mod disk_thread;
pub mod handle;
mod handshake;
pub mod http;
pub mod kept_parts;
mod lend_boot;
pub mod lend_socket;
mod listener;
pub mod lookupd;
mod mailbox;
pub mod metadata;
pub mod names;
mod shard_thread;
mod socket;
pub mod statsd;
pub mod tls;
pub mod trace;
pub mod transport;

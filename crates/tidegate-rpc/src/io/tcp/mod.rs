//! `tidegate-rpc` over TCP and Unix sockets: a lean transport for services whose calls take microseconds.
//!
//! | module | its one job |
//! |---|---|
//! | [`address`] | where a server listens |
//! | [`config`] | what server and client can be told |
//! | [`server`] | a server: one thread, one listener and one machine for each shard |
//! | `shard`, `connection`, `waiting` | one shard's thread, its connections, its calls that wait |
//! | [`link`] | a client's connection without a socket: calls in, bytes out |
//! | [`engine`] | many connections driven by one thread, for load generators |
//! | [`client`] | one connection for callers on tokio |
//! | `listener`, `poller`, `words` | listening sockets; epoll; machine and wire in each other's terms |

pub mod address;
pub mod client;
pub mod config;
mod connection;
pub mod engine;
pub mod link;
mod listener;
mod poller;
pub mod server;
mod shard;
mod waiting;
mod words;

pub use address::Address;
pub use client::RpcClient;
pub use config::{CallOptions, ClientConfig, ServerConfig};
pub use server::{Handler, HandlerFailed, RpcServer, ShardStats};

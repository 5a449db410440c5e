//! Sockets, files and HTTP around the machine.

pub mod admin;
pub mod auth_client;
pub mod disk_queue;
pub mod disk_thread;
pub mod handle;
pub mod http;
pub mod lookupd;
pub mod metadata;
pub mod tls;
pub mod transport;

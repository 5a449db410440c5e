//! Sockets, files and HTTP around the machine.

pub mod disk_queue;
pub mod handle;

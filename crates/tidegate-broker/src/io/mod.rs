//! Sockets, files and HTTP around the machine.

pub mod handle;

//! `tidegate steer`: the address that unmodified NSQ producers dial.
//!
//! | module | its one job |
//! |---|---|
//! | [`config`] | `[steer]` of `tidegate.toml`, checked once |
//! | `book` | where topics go, and who is told of changes |
//! | `control` | asks the control plane for placements, and waits for newer ones |
//! | `file` | reads placements from a file, and looks whether it changed |
//! | `session` | one producer: its socket, and those to brokers |
//! | `steer` | a running hop: started and drained |
//! | `admin` | what it shows of itself over HTTP |
//! | `figures` | what it counts |
//!
//! One task serves a producer with all its connections to brokers, so a message crosses no channel between tasks: it is
//! read into one buffer, and written from there.

mod admin;
mod book;
pub mod config;
mod control;
mod figures;
mod file;
mod session;
mod steer;

pub use book::BookError;
pub use file::{FileError, read_placements};
pub use steer::{Steer, SteerError};

//! Planners, and what they are made of. Each is told what happened and when, and reads no clock.

pub mod types;

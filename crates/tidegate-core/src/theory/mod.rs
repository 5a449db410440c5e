//! What can be computed instead of measured.

pub mod md1;
pub mod mmc;

//! What a placement would show, computed instead of measured.
//!
//! | module | its one job |
//! |---|---|
//! | [`traffic`] | recorded arrivals, continued for as long as is wanted |
//! | [`lane`] | a node behind its part of a limit, told of batches in order of time |
//! | [`replay`] | a placement, played with the machines that nodes run |
//! | [`theory`] | exact access delays of a limit that is split |

pub mod lane;
pub mod replay;
pub mod theory;
pub mod traffic;

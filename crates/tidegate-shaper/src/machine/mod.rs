//! The decisions of the shaper, pure.
//!
//! | module | its one job |
//! |---|---|
//! | [`class_id`] | how the kernel names a class |
//! | [`device`] | a device and its classes as an operator wants them |
//! | [`line_rate`] | rates of links and classes |
//! | [`plan`] | the changes that make the kernel's tree the wanted one |
//! | [`program`] | what the programs in the kernel are told |
//! | [`tree`] | the HTB tree of a device |

pub mod class_id;
pub mod device;
pub mod line_rate;
pub mod plan;
pub mod program;
pub mod tree;

//! The decisions of the shaper, pure.
//!
//! | module | its one job |
//! |---|---|
//! | [`ahead`] | what goes ahead of the others under isolation |
//! | [`class`] | what is done with each packet of a class |
//! | [`class_id`] | how the kernel names a class |
//! | [`device`] | a device and its classes as an operator wants them |
//! | [`flow`] | what is known of one TCP flow, and the bounded table of them |
//! | [`kinds`] | rules by what they look at |
//! | [`leaves`] | which of a class's leaves a flow is queued in |
//! | [`line_rate`] | rates of links and classes |
//! | [`packet`] | frames to TCP segments; the window field rewritten |
//! | [`plan`] | the changes that make the kernel's tree the wanted one |
//! | [`program`] | what the programs in the kernel are told |
//! | [`tree`] | the HTB tree of a device |
//!
//! [`packet`], [`flow`], [`ahead`] and [`class`] are the reference of the programs in the kernel, which a differential test holds to
//! them, and what the simulator runs.

pub mod ahead;
pub mod class;
pub mod class_id;
pub mod device;
pub mod flow;
pub mod kinds;
pub mod leaves;
pub mod line_rate;
pub mod packet;
pub mod plan;
pub mod program;
pub mod tree;

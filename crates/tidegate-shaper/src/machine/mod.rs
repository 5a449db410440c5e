//! What the shaper decides, without netlink, kernel or clock.
//!
//! | module | its one job |
//! |---|---|
//! | [`packet`] | frames to TCP segments; the window field rewritten |
//! | [`flow`] | what is known of one TCP flow, and the bounded table of them |
//! | [`class`] | what is done with each packet of a class |
//!
//! [`packet`], [`flow`] and [`class`] are the reference of the programs in the kernel, which a differential test holds to
//! them, and what the simulator runs.

pub mod class;
pub mod flow;
pub mod packet;

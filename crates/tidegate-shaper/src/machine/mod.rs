//! What the shaper decides, without netlink, kernel or clock.
//!
//! | module | its one job |
//! |---|---|
//! | [`packet`] | frames to TCP segments; the window field rewritten |
//!

pub mod packet;

//! How parts of a limit lend each other tokens, apart from the shard that they are of.
//!
//! | module | its one job |
//! |---|---|
//! | [`split`] | who is in a circle, and how a topic lends |
//! | `book` | the circles of a shard, and what went through them |

use std::net::SocketAddr;

use tidegate_core::lend::Frame;

mod book;
pub mod split;

pub use self::book::{CircleSnapshot, FlowSnapshot, LendSnapshot};
pub(super) use self::book::{Lender, Place};
pub use self::split::{LendState, Split, WhySplit};

/// Numbers of sessions that one start of a broker may use: see [`Lending::new`](tidegate_core::lend::Lending::new).
pub const BOOTS_PER_START: u32 = 16;

/// Where a frame goes.
pub(super) type Addressed = (SocketAddr, Frame);

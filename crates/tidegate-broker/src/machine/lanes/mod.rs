//! How the gate of one topic is spread over several shards.
//!
//! A topic lives on its home shard: its channels, its log, its contract. Where `spread_topics` names it, its publishers
//! stay on the shards that accepted them, and while nothing but tokens holds the topic up each of these shards has a
//! *lane* of it: a share of its limit and a line of what waits for that share's tokens. What has its token travels to the
//! home and goes straight on to the channels there. The shares lend each other tokens as brokers do, by
//! [`tidegate_core::lend`].
//!
//! At all other times a lane is shut, and what is published there goes to the home at once and waits in its line: a
//! paused topic, one without a channel or without room in memory, one whose limit refuses, only counts, is a part of a
//! limit of several brokers or is just being changed.
//!
//! | module | its one job |
//! |---|---|
//! | `words` | what a home and its lanes tell each other |
//! | `lane` | what waits for tokens beside the home |
//! | `host` | the home's knowledge of its lanes |
//! | `book` | all that a shard has of lanes |
//!
//! # Rules
//!
//! 1. The home alone opens and shuts lanes, all together. Each opening has a number that none had before, which is the
//!    number of the circle in which the shares lend.
//! 2. A lane that is to open first holds what it takes and says so behind all that it sent before. Only when that has
//!    left the home's line does the lane get its share. So nothing of a publisher overtakes anything else of it.
//! 3. The share comes out of the home's bucket: its depth, its rate, and those tokens that the home has no room for any
//!    more. The shares add up to the limit.
//! 4. The home passes on what a lane released only while that opening is in force and the channels have room. Whatever
//!    comes later, or finds the topic held up, joins the line of the home and takes a token there. So the moment at which
//!    the home shuts the lanes is the moment from which their tokens are worth nothing, however late they hear of it.
//! 5. A lane that is shut sends what waits, in order, and says what it has left of tokens. When all have, the home has
//!    the depth of their shares and these tokens again, and not before: depth alone would be filled twice. What lanes
//!    minted after the home had shut them is not counted, nor more than an edit since has left of the whole. Where an edit
//!    leaves the home less than a message costs, its line waits until then.
//! 6. Only so much that a lane released is on its way at a time: a home that does not keep up holds the lanes up.

mod book;
mod host;
mod lane;
mod words;

pub(crate) use book::{Laning, shard_of};
pub(crate) use host::Host;
pub(crate) use lane::{Bounds, Lane, Passed, Waiting};
pub(crate) use words::{Rest, Way, Word};

/// Topics that can be spread, at most: each has a place on every shard.
pub const SPREAD_TOPICS_MAX: usize = 64;
/// Shards among which a topic can be spread, at most: as many as can lend each other.
pub const SPREAD_SHARDS_MAX: usize = tidegate_core::lend::PEERS_MAX + 1;

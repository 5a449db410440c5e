//! What a home and its lanes tell each other.

use tidegate_core::Instant;
use tidegate_core::limit::TokenBucket;

use crate::machine::limiter::Unit;

/// Between the home of a topic and one of its lanes, in order with what is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Home: hold what comes from now on, and say when you do.
    Hold {
        /// The opening.
        epoch: u64,
    },
    /// Lane: it holds. All that it took before is on its way before this.
    Holds {
        /// The opening.
        epoch: u64,
    },
    /// Home: this is your share.
    Go {
        /// The opening.
        epoch: u64,
        /// The share, with what there is of tokens.
        bucket: Box<TokenBucket>,
        /// What a token buys.
        unit: Unit,
    },
    /// Home: it is over.
    Shut {
        /// The opening.
        epoch: u64,
        /// What becomes of what waits.
        rest: Rest,
    },
    /// Lane: it is over here as well, and what waited is on its way before this.
    IsShut {
        /// The opening.
        epoch: u64,
        /// What is left of the share, if it was given one.
        left: Option<Left>,
    },
    /// Home: so much of what the lane released has come.
    Landed(Landed),
    /// Lane: how it stands.
    Stands(Stand),
}

/// What becomes of what waits in a lane that is shut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// It goes to the home.
    Comes,
    /// It is dropped: the topic was emptied, or deleted.
    Drops,
}

/// What a lane has left of its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    /// Whole tokens of the share that nothing was released for.
    pub(crate) tokens: u64,
    /// When that was.
    pub(crate) at: Instant,
}

/// Messages that a lane released and that have come to the home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Landed {
    /// How many.
    pub(crate) messages: u64,
    /// Bytes of the messages' bodies.
    pub(crate) bytes: u64,
}

/// How a lane stands, for whoever looks at the topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stand {
    /// Messages that wait.
    pub(crate) messages: u64,
    /// Bytes of memory that they take.
    pub(crate) bytes: u64,
    /// Bytes of the messages' bodies.
    pub(crate) body_bytes: u64,
    /// Connections that wait for room.
    pub(crate) blocked: u64,
    /// The share, if it has one.
    pub(crate) bucket: Option<TokenBucket>,
}

/// How a publish comes from another shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// As its client sent it: it is to be answered.
    Asked,
    /// Through a lane, which took its tokens. It was answered when the lane took it.
    Released {
        /// The opening.
        epoch: u64,
        /// Nothing but tokens held it from then on.
        since: Instant,
        /// When it had them.
        release: Instant,
    },
    /// Out of the line of a lane that is shut; it was answered.
    Unpaid,
}

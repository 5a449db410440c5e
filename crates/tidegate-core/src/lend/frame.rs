//! What members say to each other.

use crate::Instant;

/// Holds one part of a limit: a shard of a broker, a proxy, a core. Unique among the members of a circle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member(pub u16);

/// The members among which one limit is split, named by the revision that split it. Another revision is another circle:
/// what was lent in the one does not count in the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Circle(pub u64);

/// A reading of the sender's clock in nanoseconds. It means nothing to anybody else, and comes back as it was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The reading of one's own clock at `now`.
    #[must_use]
    pub fn at(now: Instant) -> Self {
        Self(now.as_nanos())
    }

    /// When one's own clock showed this.
    #[must_use]
    pub fn instant(self) -> Instant {
        Instant::from_nanos(self.0)
    }
}

/// What a frame asks of its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asks {
    /// A frame back, at once.
    Answer,
    /// Nothing.
    Nothing,
}

/// One datagram. It may be lost, come twice, late, or after one that was sent later.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// Sender.
    pub from: Member,
    /// Receiver.
    pub to: Member,
    /// The sender's number of the session.
    pub mine: u64,
    /// The receiver's number of the session as the sender knows it; 0 in a hello.
    pub yours: u64,
    /// When it was sent, by the sender's clock.
    pub sent: Stamp,
    /// The latest stamp that the sender has of the receiver.
    pub echo: Option<Stamp>,
    /// What is asked.
    pub asks: Asks,
    /// At most [`ENTRIES_MAX`](super::ENTRIES_MAX), each of another circle.
    pub entries: Vec<Entry>,
}

/// What a frame says of one circle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Which circle.
    pub circle: Circle,
    /// Tokens that the sender has given the receiver since their session began: a sum, so that a frame that is lost,
    /// doubled or late neither loses nor mints any.
    pub given: u64,
    /// Depth without tokens that it has given, likewise.
    pub room: u64,
    /// Tokens that the sender has, less those that its line waits for.
    pub level: i32,
    /// Tokens that the sender would like to get at most; 0 if it asks for none.
    pub want: u32,
    /// One of the two has left the circle: the sender has nothing of the receiver's any more, and takes nothing but
    /// what is its own.
    pub over: bool,
}

impl Entry {
    /// What a member that has left says when it has forgotten the circle.
    pub(super) fn left(circle: Circle) -> Self {
        Self { circle, given: 0, room: 0, level: 0, want: 0, over: true }
    }
}

//! A call, and where it is.

use tidegate_core::Instant;
use tidegate_rpc::machine::desk::{Paused, Running, Waiting, Woken};
use tidegate_rpc::machine::{Ask, CallId, Grant};

/// Where a call is.
#[derive(Debug)]
pub(super) enum Stage {
    /// At its client, which has not sent it.
    Held,
    /// On its way.
    Sent,
    /// It was admitted and has not started.
    Waiting(Waiting),
    /// Its handler computes.
    Running(Running),
    /// Its handler waits for those that it called.
    Paused(Paused),
    /// They have answered, or one has failed, and it waits for its turn.
    Woken(Woken),
    /// Its answer is on its way.
    Answered,
}

/// How far a handler has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handler {
    /// It has called nobody.
    Alone,
    /// It has.
    HasCalled,
    /// One of the calls that its handler made failed.
    Fails,
}

/// A call of the root, or one that is made for one.
#[derive(Debug)]
pub(super) struct Call {
    /// The client before its server.
    pub(super) link: u32,
    /// The call of the root that it is made for, which may be itself.
    pub(super) root: CallId,
    /// The call whose handler made this one.
    pub(super) parent: Option<CallId>,
    /// Whether the work for it counts.
    pub(super) is_measured: bool,
    /// When it was made, and until when its answer is worth something.
    pub(super) made: Instant,
    pub(super) deadline: Instant,
    /// Until when what its handler calls is worth something: when the answer would have to leave.
    pub(super) deadline_below: Instant,
    /// The chance with which it came as far as it is, in 1/65536.
    pub(super) chance: u32,
    pub(super) stage: Stage,
    /// Its handler's calls that are not answered.
    pub(super) awaited: Vec<CallId>,
    pub(super) handler: Handler,
    /// Whether its caller takes no answer any more, and whether its server knows.
    pub(super) is_given_up: bool,
    pub(super) is_cancelled: bool,
}

/// How a call ended at its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// As it was wanted.
    Good,
    /// Its handler ran, and something that it called failed.
    Failed,
    /// No handler ran.
    Shed,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A caller calls the root.
    Call,
    /// A request arrives at its server.
    Request(CallId, Ask),
    /// A demand arrives at a server, by a link.
    Demand(u32, Ask),
    /// An answer arrives at its client, with how long the call was at the server.
    Answer(CallId, Answer, Grant, u64),
    /// A grant arrives at a client.
    Grant(u32, Grant),
    /// A server learns that a call is given up.
    GiveUp(CallId),
    /// A core has computed what the handler wanted.
    Computed(CallId),
    /// A call of the root becomes worthless.
    Deadline(CallId),
    /// A server's, and a client's, time-out.
    ServerTimer(u32),
    ClientTimer(u32),
}

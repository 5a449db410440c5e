//! What can go wrong beside a shed, and how a call can end without an answer.

use std::io;

use tidegate_wire::rpc::BadFrame;

use crate::io::tcp::Address;
use crate::machine::ShedReason;

/// Why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It was shed here or at the server; its handler did not run.
    #[error("the call was shed: {reason:?}")]
    Shed {
        /// Why.
        reason: ShedReason,
        /// Who shed it.
        by: ShedBy,
    },
    /// Its time was up before an answer came; its handler may have run.
    #[error("the call had no answer in its time")]
    TimedOut,
    /// The connection ended after it was sent; its handler may have run.
    #[error("the connection ended before the answer")]
    Lost,
    /// There is no connection at present; nothing was sent.
    #[error("there is no connection to the server")]
    Disconnected,
    /// The handler ran and failed.
    #[error("the handler failed")]
    Failed,
    /// The payload is larger than the configuration allows; nothing was sent.
    #[error("the payload has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
}

/// At which end of the connection a call was shed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShedBy {
    /// It was never sent.
    Client,
    /// The server answered so.
    Server,
}

impl CallError {
    /// True if the handler surely did not run, so that sending the call again cannot run it twice.
    #[must_use]
    pub const fn is_retry_safe(self) -> bool {
        matches!(self, Self::Shed { .. } | Self::Disconnected)
    }
}

/// Why a server or a client cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The operating system refused something.
    #[error("cannot {what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        #[source]
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// Where.
        address: Address,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server cannot be reached.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where.
        address: Address,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A key of a configuration is out of its range.
    #[error("{key} is {found}, expected {expected}")]
    Config {
        /// Which.
        key: &'static str,
        /// What it is.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
}

impl RpcError {
    /// Adds what was tried to an error of the operating system.
    pub(crate) fn os<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::Os { what, source: source.into() }
    }
}

/// What a peer did that costs it its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that no peer sends.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Its first frame is not a hello, or another one is.
    #[error("a hello is the first frame and no other")]
    Hello,
    /// Two calls that wait have the same name.
    #[error("request {id} is there already")]
    DuplicateId {
        /// The name.
        id: u64,
    },
    /// A shed for a reason that does not exist.
    #[error("shed for the unknown reason {0}")]
    Reason(u8),
    /// It does not read its answers.
    #[error("{bytes} bytes of answers wait to be read")]
    Unread {
        /// How many.
        bytes: usize,
    },
    /// The server has all the sessions that it may have.
    #[error("the server has all the sessions that it may have")]
    Full,
}

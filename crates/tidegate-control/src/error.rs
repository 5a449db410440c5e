//! Why a node's answer is none, and why the store did not do what it was asked.

use std::time::Duration;

use http::StatusCode;
pub use tidegate_runtime::causes::with_causes;
use tidegate_runtime::store::StoreError;

/// Why there is no answer of a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The request could not be sent, or the connection broke.
    #[error("cannot be reached at {address}")]
    Unreachable {
        /// `host:port`.
        address: String,
        /// What the client said.
        #[source]
        source: hyper_util::client::legacy::Error,
    },
    /// No whole answer came in time, the wait for a connection included.
    #[error("{address} did not answer within {} ms", within.as_millis())]
    TimedOut {
        /// `host:port`.
        address: String,
        /// How long was waited.
        within: Duration,
    },
    /// The answer broke off or was too long.
    #[error("{address} broke off its answer, or sent more than {limit} bytes")]
    Body {
        /// `host:port`.
        address: String,
        /// The bound.
        limit: usize,
        /// What the client said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An answer that is no success.
    #[error("{address} answered {status} to {request}: {detail}")]
    Status {
        /// `host:port`.
        address: String,
        /// Method and path.
        request: String,
        /// The status.
        status: StatusCode,
        /// What the node says about it; empty if it says nothing.
        detail: String,
        /// What the node holds, if it refused an older revision.
        holds: Option<u64>,
    },
    /// Not what is expected there.
    #[error("{address} sent something else than the answer to {request}")]
    Json {
        /// `host:port`.
        address: String,
        /// Method and path.
        request: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A trace of a version that is not known, or no trace.
    #[error("{address} sent a trace whose line {line} cannot be read")]
    Trace {
        /// `host:port`.
        address: String,
        /// Counted from 1.
        line: usize,
    },
    /// The request cannot be written.
    #[error("`{path}` is no path of {address}")]
    Path {
        /// `host:port`.
        address: String,
        /// The path.
        path: String,
        /// What is wrong.
        #[source]
        source: http::Error,
    },
}

impl NodeError {
    /// Whether the node says that there is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status, .. } if *status == StatusCode::NOT_FOUND)
    }

    /// The revision that the node holds, if it refused an older one and control can go beyond it.
    #[must_use]
    pub fn fenced_by(&self) -> Option<u64> {
        match self {
            Self::Status { holds, .. } => holds.filter(|holds| *holds <= REVISION_MAX),
            _ => None,
        }
    }
}

/// Revisions above this are not control's: it counts from 2^24 for each leader. Going beyond one that somebody made up would
/// leave none for the next leaders. A node that holds one gets no order until a person has taken that part away.
pub const REVISION_MAX: u64 = 1 << 62;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptError {
    /// The store said why.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It did not answer in time: the write may have happened.
    #[error("the store did not answer within {} ms", within.as_millis())]
    TimedOut {
        /// How long was waited.
        within: Duration,
    },
    /// Another process leads, or this one's lease has ended: nothing was written.
    #[error("another process leads")]
    NotLeading,
    /// What is kept cannot be read.
    #[error("what the store keeps at `{key}` cannot be read")]
    Unreadable {
        /// The key.
        key: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_that_somebody_made_up_is_not_gone_beyond() {
        let refused = |holds| NodeError::Status {
            address: "x:1".to_owned(),
            request: "PUT /api/v1/parts".to_owned(),
            status: StatusCode::CONFLICT,
            detail: String::new(),
            holds: Some(holds),
        };
        assert_eq!(refused(REVISION_MAX).fenced_by(), Some(REVISION_MAX));
        assert_eq!(refused(u64::MAX).fenced_by(), None);
    }
}

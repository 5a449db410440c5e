//! Why a body broke off.

use crate::io::conn::limiter::Cause;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BodyError {
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed in the middle.
    #[error("the body ended too early")]
    Cut,
    /// Its framing is malformed.
    #[error(transparent)]
    Framing(#[from] crate::io::http1::decode::BadChunk),
    /// The client broke the rules.
    #[error(transparent)]
    Violation(#[from] tidegate_wire::http1::Violation),
    /// Longer than the configuration permits.
    #[error("the body is longer than {limit} bytes")]
    TooLong {
        /// Bytes.
        limit: u64,
    },
    /// No byte came for too long.
    #[error("the body stalled")]
    Stalled,
    /// HTTP/2 said so.
    #[error(transparent)]
    Http2(#[from] hyper::Error),
    /// It was spooled and could not be read back.
    #[error("the spooled body is lost")]
    Spool,
    /// There is no room for it in the spool.
    #[error("the spool has no room")]
    Full(Cause),
}

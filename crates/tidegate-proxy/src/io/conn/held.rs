//! What connections and streams hold in memory, as the limiter counts it.

/// Bytes that a connection without TLS holds while it is open: buffers and task.
pub(crate) const HELD_PLAIN: u64 = 4 * 1024;

/// The same with TLS: its session too.
pub(crate) const HELD_TLS: u64 = 16 * 1024;

/// Bytes that a request of HTTP/2 holds: its task and state, and the two pieces of its answer that wait for the client.
pub(crate) const HELD_STREAM: u64 = 24 * 1024;

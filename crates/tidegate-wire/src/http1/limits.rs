//! How much a request may be, and what is said of one that is refused.

/// Bounds on one request. Each has its answer; none is ever exceeded in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The request line with its end, in bytes; 414 beyond. 8 KiB, which RFC 9112 §3 asks for at least.
    pub request_line_bytes: usize,
    /// A field line with its end, in bytes; 431 beyond.
    pub field_bytes: usize,
    /// Request line, fields and the ends of all lines, in bytes; 431 beyond.
    pub head_bytes: usize,
    /// Number of field lines; 431 beyond. 100, as in hyper.
    pub fields: usize,
    /// The content, in bytes, in either framing; 413 beyond. At most `i64::MAX`, the default: content is streamed.
    pub body_bytes: u64,
    /// A chunk's size and extensions with the line's end, in bytes; 400 beyond.
    pub chunk_line_bytes: usize,
    /// All extensions of one message together, in bytes; 400 beyond. 16 KiB, as in hyper.
    pub chunk_extension_bytes: usize,
    /// The trailer section with the ends of its lines, in bytes; 431 beyond.
    pub trailer_bytes: usize,
    /// Number of trailer lines; 431 beyond.
    pub trailers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_line_bytes: 8 * 1024,
            field_bytes: 16 * 1024,
            head_bytes: 64 * 1024,
            fields: 100,
            body_bytes: BODY_BYTES_MAX,
            // Signatures in extensions are of some 160 bytes.
            chunk_line_bytes: 512,
            chunk_extension_bytes: 16 * 1024,
            trailer_bytes: 8 * 1024,
            trailers: 32,
        }
    }
}

/// No length is larger, whatever is configured: what follows must fit the signed 64-bit numbers of other readers.
pub(super) const BODY_BYTES_MAX: u64 = i64::MAX as u64;

/// A request that goes no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} (byte {offset} of the connection, answered with {status})")]
pub struct Violation {
    /// What to answer: 400, 413, 414, 417, 431, 501 or 505. The connection ends after it.
    pub status: u16,
    /// What is wrong, as a phrase for people.
    pub reason: &'static str,
    /// Where it shows, in bytes from the first one fed.
    pub offset: u64,
}

/// The same before its place in the connection is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) status: u16,
    pub(super) reason: &'static str,
    /// From the start of what was looked at.
    pub(super) at: usize,
}

impl Fault {
    /// Answered with 400.
    pub(super) const fn bad(reason: &'static str, at: usize) -> Self {
        Self { status: 400, reason, at }
    }

    pub(super) const fn new(status: u16, reason: &'static str, at: usize) -> Self {
        Self { status, reason, at }
    }

    /// As seen from `by` bytes earlier.
    pub(super) const fn shifted(self, by: usize) -> Self {
        Self { at: self.at + by, ..self }
    }
}

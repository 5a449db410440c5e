//! What all frames have in common: the first eight bytes, and how far a header or payload has arrived.

/// The version that a hello names.
pub const VERSION: u8 = 1;
/// The largest payload that any configuration may allow: 16 MiB.
pub const PAYLOAD_BYTES_MAX: u32 = 16 << 20;
/// No header is longer.
pub const HEADER_BYTES_MAX: usize = 40;

/// How far the first frame of an input has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<F> {
    /// It is not complete: the input must hold this many bytes, or more if even that is not known yet.
    Need(usize),
    /// The frame and the bytes that it took.
    Frame(F, usize),
}

/// Bytes that no peer of this version sends; the stream is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// A payload that is too large, or one where none belongs.
    #[error("frame announces a payload of {announced} bytes, the limit is {limit}")]
    TooLarge {
        /// What the frame says.
        announced: u32,
        /// The reader's bound; 0 for kinds without a payload.
        limit: u32,
    },
    /// A kind that this side of a connection does not send.
    #[error("frame of kind {0}, which the peer does not send")]
    Kind(u8),
    /// A bit without meaning is set, or a value is not among those defined.
    #[error("field `{field}` of a frame is {value}, which has no meaning")]
    Field {
        /// Which.
        field: &'static str,
        /// What it says.
        value: u8,
    },
    /// The stream is of another protocol.
    #[error("hello begins with {found:#010x}, which is another protocol")]
    Magic {
        /// What stands in its place.
        found: u32,
    },
    /// The peer speaks another version.
    #[error("hello is of version {found}, this side speaks {VERSION}")]
    Version {
        /// The peer's.
        found: u8,
    },
}

/// The first eight bytes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) payload: u32,
    pub(super) kind: u8,
    /// What the kind makes of them.
    pub(super) marks: [u8; 3],
}

pub(super) const HEAD_BYTES: usize = 8;

impl Head {
    #[inline]
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let [a, b, c] = self.marks;
        out.extend_from_slice(&self.payload.to_le_bytes());
        out.extend_from_slice(&[self.kind, a, b, c]);
    }

    #[inline]
    pub(super) fn read(input: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, d, kind, marks @ ..] = input;
        Self { payload: u32::from_le_bytes([a, b, c, d]), kind, marks }
    }

    /// The frame has a payload of at most `limit` bytes.
    #[inline]
    pub(super) fn check_payload(self, limit: u32) -> Result<(), BadFrame> {
        if self.payload > limit {
            return Err(BadFrame::TooLarge { announced: self.payload, limit });
        }
        Ok(())
    }
}

/// `marks[index]` has none but the bits of `allowed`.
#[inline]
pub(super) fn check_bits(field: &'static str, value: u8, allowed: u8) -> Result<(), BadFrame> {
    if value & !allowed != 0 {
        return Err(BadFrame::Field { field, value });
    }
    Ok(())
}

/// The length of a payload of ours.
///
/// # Panics
/// If it is not below 4 GiB; callers bound it by [`PAYLOAD_BYTES_MAX`].
#[inline]
pub(super) fn payload_bytes(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).expect("payloads are bounded far below 4 GiB")
}

/// A header's fields, one after the other.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    /// The next four bytes; the caller has compared the header's length with its kind.
    #[inline]
    pub(super) fn u32(&mut self) -> u32 {
        let (bytes, rest) = self.0.split_first_chunk().expect("the header is as long as its kind says");
        self.0 = rest;
        u32::from_le_bytes(*bytes)
    }

    /// The next eight bytes; as above.
    #[inline]
    pub(super) fn u64(&mut self) -> u64 {
        let (bytes, rest) = self.0.split_first_chunk().expect("the header is as long as its kind says");
        self.0 = rest;
        u64::from_le_bytes(*bytes)
    }
}

/// Header fields and payload of the first frame of `input`, if both are there.
#[inline]
pub(super) fn body(input: &[u8], header_bytes: usize, payload: u32) -> Result<(Fields<'_>, &[u8], usize), usize> {
    let total = header_bytes + payload as usize;
    let whole = input.get(..total).ok_or(total)?;
    let (header, payload) = whole.split_at(header_bytes);
    Ok((Fields(&header[HEAD_BYTES..]), payload, total))
}

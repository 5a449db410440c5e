//! What a message of ours says about itself, at the beginning of its body.

use tidegate_core::Instant;

/// Bytes of a stamp; the smallest payload.
pub const STAMP_BYTES: usize = 32;

/// Who sent a message, which of its messages it is, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// When it should have been sent: latency begins here.
    pub intended: Instant,
    /// When it was written: a deferral begins here.
    pub sent: Instant,
    /// Tells this run's messages from what others left in the topic.
    pub run: u32,
    /// The publisher, from 0.
    pub publisher: u32,
    /// Number of the message at its publisher, from 0 without gaps.
    pub sequence: u64,
}

impl Stamp {
    /// Writes the stamp over the beginning of `body`, which has at least [`STAMP_BYTES`].
    pub fn write(&self, body: &mut [u8]) {
        body[..8].copy_from_slice(&self.intended.as_nanos().to_be_bytes());
        body[8..16].copy_from_slice(&self.sent.as_nanos().to_be_bytes());
        body[16..20].copy_from_slice(&self.run.to_be_bytes());
        body[20..24].copy_from_slice(&self.publisher.to_be_bytes());
        body[24..32].copy_from_slice(&self.sequence.to_be_bytes());
    }

    /// The stamp at the beginning of `body`, if it has room for one.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let (intended, body) = body.split_first_chunk::<8>()?;
        let (sent, body) = body.split_first_chunk::<8>()?;
        let (run, body) = body.split_first_chunk::<4>()?;
        let (publisher, body) = body.split_first_chunk::<4>()?;
        let sequence = body.first_chunk::<8>()?;
        Some(Self {
            intended: Instant::from_nanos(u64::from_be_bytes(*intended)),
            sent: Instant::from_nanos(u64::from_be_bytes(*sent)),
            run: u32::from_be_bytes(*run),
            publisher: u32::from_be_bytes(*publisher),
            sequence: u64::from_be_bytes(*sequence),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_read_as_written() {
        let stamp = Stamp {
            intended: Instant::from_nanos(u64::MAX - 1),
            sent: Instant::from_nanos(3),
            run: 4,
            publisher: 5,
            sequence: 1 << 40,
        };
        let mut body = [0xff; STAMP_BYTES + 3];
        stamp.write(&mut body);
        assert_eq!(Stamp::read(&body), Some(stamp));
        assert_eq!(body[STAMP_BYTES..], [0xff; 3]);
        assert_eq!(Stamp::read(&body[..STAMP_BYTES - 1]), None);
    }
}

//! The two ends of a TCP flow, as Linux has them as far as queues can tell.
//!
//! The sender has CUBIC's window, Karn's round trips, selective acknowledgements, tail probes and timeouts, sends bursts of
//! up to 64 kB sized by its rate, and lets no more of them wait in its own host's queue than TCP small queues do. The
//! receiver acknowledges every second segment or after 40 ms. A burst is one packet to the host's queue; behind it, any of its
//! segments may be lost.

mod cubic;
mod receiver;
mod sender;

pub use receiver::{Receiver, ReceiverConfig};
pub use sender::{Sender, SenderConfig};

/// Bytes of headers of each segment on an Ethernet, with timestamps.
pub const HEADER_BYTES: u64 = 66;

/// A burst on its way to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Burst {
    /// The first byte; the SYN is byte 0, so data begin at 1.
    pub seq: u64,
    /// Bytes of payload, 0 for the SYN and for probes of a closed window.
    pub payload: u64,
    /// Segments that it is cut into.
    pub segments: u64,
    /// True for the first burst of a flow.
    pub syn: bool,
}

impl Burst {
    /// Bytes on the line.
    #[must_use]
    pub const fn wire_bytes(&self) -> u64 {
        self.payload + self.segments * HEADER_BYTES
    }

    /// The byte after it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.seq + self.payload + self.syn as u64
    }

    /// What arrives of it without the segments, of `mss` bytes of payload, for which `is_lost` says so: the parts between, each as
    /// a burst. A burst of one segment or none arrives whole or not at all.
    pub fn without(&self, mss: u64, mut is_lost: impl FnMut() -> bool) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for segment in 0..self.segments.max(1) {
            if is_lost() {
                continue;
            }
            if self.segments <= 1 {
                return vec![*self];
            }
            let seq = self.seq + segment * mss;
            let payload = mss.min(self.end() - seq);
            match parts.last_mut().filter(|part| part.end() == seq) {
                Some(part) => (part.payload, part.segments) = (part.payload + payload, part.segments + 1),
                None => parts.push(Self { seq, payload, segments: 1, syn: false }),
            }
        }
        parts
    }
}

/// An acknowledgement on its way to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ack {
    /// The next byte that the receiver expects.
    pub ack: u64,
    /// The window field, unscaled.
    pub field: u16,
    /// What is held beyond a gap from the burst on that caused it: its first byte, and the byte after the last.
    pub sacked: Option<(u64, u64)>,
    /// True for the answer to a SYN, whose field is never scaled.
    pub syn: bool,
}

#[cfg(test)]
mod tests;

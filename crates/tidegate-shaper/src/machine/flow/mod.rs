//! What is known of one TCP flow.

mod table;

pub use table::{FLOWS_MAX, Flows};

use tidegate_core::Instant;
use tidegate_core::control::window::{Census, NetworkAck, NetworkWindow};

use super::packet::{Endpoint, Flags, Segment, SynOptions};

/// Payload of a full segment until one is seen: Ethernet's, with timestamps.
const MSS_USUAL: u32 = 1_448;
/// What timestamps take of each segment.
const TIMESTAMP_BYTES: u32 = 12;
/// Longest round trip that counts.
const RTT_MAX_NS: u64 = 1_000_000_000;

/// Names a flow, whichever way a segment goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey {
    /// Behind the limiter.
    pub local: Endpoint,
    /// The peer.
    pub remote: Endpoint,
}

impl FlowKey {
    /// Of a segment that goes out through the limiter.
    #[must_use]
    pub const fn of_egress(segment: &Segment) -> Self {
        Self { local: segment.source, remote: segment.destination }
    }

    /// Of a segment that comes in.
    #[must_use]
    pub const fn of_ingress(segment: &Segment) -> Self {
        Self { local: segment.destination, remote: segment.source }
    }
}

/// How the peer's window field is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// The handshake was not seen: windows of this flow are left alone.
    Unknown,
    /// Half of the handshake was seen, with these options.
    Offered(SynOptions),
    /// By so many bits; 0 if a side did not offer scaling.
    Known(u8),
}

/// A segment whose acknowledgement is waited for, to measure a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Timing {
    /// The sequence number after it.
    end: u32,
    sent: Instant,
}

/// One flow, told of its segments both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// How its peer's windows are read. Of a flow that was open already, the local socket knows it.
    pub scale: Scale,
    /// What of it is sent and not acknowledged; `None` before its first byte.
    pub sent: Option<Sent>,
    /// Payload of a full segment in bytes.
    pub mss: u32,
    /// Shortest round trip seen, in nanoseconds; 0 before the first.
    pub rtt_min_ns: u64,
    /// When it was counted as held by its window.
    pub census: Census,
    /// What the network's marks allow it.
    pub network: NetworkWindow,
    /// The window that its sender was last given by us, in bytes; `None` if it has the receiver's own.
    pub given: Option<u64>,
    /// The bulk leaf that it is queued in, in isolation mode; `None` while it is sparse.
    pub bulk: Option<u8>,
    timing: Option<Timing>,
}

/// What is sent and not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The lowest sequence number not acknowledged.
    pub una: u32,
    /// The highest sequence number sent, plus one.
    pub nxt: u32,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            scale: Scale::Unknown,
            sent: None,
            mss: MSS_USUAL,
            rtt_min_ns: 0,
            census: Census::default(),
            network: NetworkWindow::new(0),
            given: None,
            bulk: None,
            timing: None,
        }
    }
}

impl Flow {
    /// Bytes sent and not acknowledged.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.sent.map_or(0, |sent| sent.nxt.wrapping_sub(sent.una).into())
    }

    /// True if the window that we gave has no room for another full segment.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.given.is_some_and(|given| self.in_flight() + u64::from(self.mss) > given)
    }

    /// A segment goes out. `gso_bytes` is the payload of each packet that it is cut into, 0 if it is whole.
    pub fn on_sent(&mut self, segment: &Segment, gso_bytes: u32, now: Instant) {
        if segment.flags.has(Flags::SYN) {
            self.on_syn(segment, Way::Out);
            // Another handshake under the same addresses.
            self.sent = self.sent.filter(|sent| sent.una == segment.seq);
        }
        if gso_bytes > 0 {
            self.mss = gso_bytes;
        } else if segment.payload > self.mss && segment.payload < u32::from(u16::MAX) {
            self.mss = segment.payload;
        }
        let end = segment.end();
        if end == segment.seq {
            return;
        }
        if self.sent.is_none() {
            self.network = NetworkWindow::new(segment.seq);
            self.timing = None;
        }
        let sent = self.sent.get_or_insert(Sent { una: segment.seq, nxt: segment.seq });
        if after(end, sent.nxt) {
            sent.nxt = end;
            self.timing = self.timing.or(Some(Timing { end, sent: now }));
        } else if self.timing.is_some_and(|timing| after(timing.end, segment.seq)) {
            // Sent again: an acknowledgement may be of either. Source: Karn's algorithm.
            self.timing = None;
        }
    }

    /// A segment comes in. The round trip that it completes, in nanoseconds.
    pub fn on_received(&mut self, segment: &Segment, now: Instant) -> Option<u64> {
        if segment.flags.has(Flags::SYN) {
            self.on_syn(segment, Way::In);
        }
        let sent = self.sent.as_mut().filter(|_| segment.flags.has(Flags::ACK))?;
        // Acknowledges nothing new, or what was never sent.
        if !after(segment.ack, sent.una) || after(segment.ack, sent.nxt) {
            return None;
        }
        let acked = segment.ack.wrapping_sub(sent.una);
        sent.una = segment.ack;
        self.network.on_ack(NetworkAck {
            acked,
            marked: segment.flags.has(Flags::ECE),
            una: sent.una,
            snd_nxt: sent.nxt,
            mss: self.mss,
        });
        let timing = self.timing.filter(|timing| !after(timing.end, segment.ack))?;
        self.timing = None;
        let rtt_ns = now.nanos_since(timing.sent).clamp(1, RTT_MAX_NS);
        self.rtt_min_ns = if self.rtt_min_ns == 0 { rtt_ns } else { self.rtt_min_ns.min(rtt_ns) };
        Some(rtt_ns)
    }

    /// Either side opens: the first SYN has the one's offer, the SYN with ACK the other's.
    fn on_syn(&mut self, segment: &Segment, way: Way) {
        let options = segment.options;
        if !segment.flags.has(Flags::ACK) {
            // Unless it is the same SYN again, what was known under these addresses is another flow's.
            if self.scale != Scale::Offered(options) {
                *self = Self { scale: Scale::Offered(options), ..Self::default() };
            }
            return;
        }
        let Scale::Offered(first) = self.scale else { return };
        let peers = if way == Way::In { options.window_scale } else { first.window_scale };
        let both = first.window_scale.is_some() && options.window_scale.is_some();
        self.scale = Scale::Known(peers.filter(|_| both).unwrap_or(0));
        if let (Some(first_mss), Some(mss)) = (first.mss, options.mss) {
            let stamps = if first.timestamps && options.timestamps { TIMESTAMP_BYTES } else { 0 };
            self.mss = u32::from(first_mss.min(mss)).saturating_sub(stamps).max(1);
        }
    }
}

/// Which way a segment goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Out,
    In,
}

/// True if `a` lies behind `b` on the circle of sequence numbers.
#[must_use]
pub(crate) const fn after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) > u32::MAX / 2
}

#[cfg(test)]
mod tests;

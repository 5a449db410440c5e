//! What is known of one TCP flow.

mod held;
pub mod sweep;
pub(crate) mod table;

pub use held::{FLOWS_MAX, Flows, NoRoom};

use tidegate_core::Instant;
use tidegate_core::control::window::{Census, NetworkAck, NetworkWindow, follow_base};

use super::packet::{Endpoint, Flags, Segment};

/// Payload of a full segment until one is seen: Ethernet's, with timestamps.
const MSS_USUAL: u32 = 1_448;
/// The least that every host takes, without options. Source: RFC 9293, §3.7.1.
const MSS_LEAST: u32 = 536;
/// What timestamps take of each segment.
const TIMESTAMP_BYTES: u32 = 12;

/// Names a flow, whichever way a segment goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey {
    /// Behind the limiter.
    pub local: Endpoint,
    /// The peer.
    pub remote: Endpoint,
}

impl FlowKey {
    /// Key of a segment that goes out through the limiter.
    #[must_use]
    pub const fn of_egress(segment: &Segment) -> Self {
        Self { local: segment.source, remote: segment.destination }
    }

    /// Key of a segment that comes in.
    #[must_use]
    pub const fn of_ingress(segment: &Segment) -> Self {
        Self { local: segment.destination, remote: segment.source }
    }
}

/// How the peer's window field is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Half of the handshake was seen: its sender offered a scale, of so many bits, or none.
    Offered(Option<u8>),
    /// By so many bits; 0 if a side did not offer scaling.
    Known(u8),
}

/// A segment whose acknowledgement is waited for, to measure a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Timing {
    /// The sequence number after it.
    end: u32,
    sent: Instant,
    /// What waited before it.
    queue_ns: u64,
}

/// One flow, told of its segments both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Flow {
    /// How its peer's windows are read. Of a flow that was open already, the local socket knows it.
    pub scale: Scale,
    /// The lowest sequence number not acknowledged.
    pub una: u32,
    /// The highest sequence number sent, plus one.
    pub next: u32,
    /// Where the window ends that its sender was last given.
    pub edge: u32,
    /// Payload of a full segment in bytes.
    pub mss: u32,
    /// Round trip without the queue, smoothed towards the shortest, in nanoseconds; 0 before the first.
    pub base_ns: u64,
    /// When it was counted as held by its window.
    pub census: Census,
    /// What the network's marks allow it.
    pub network: NetworkWindow,
    /// True until its sequence numbers are known.
    pub fresh: bool,
    /// True once a packet of it went out: only then its class is known, and what comes in is acted on.
    pub classified: bool,
    /// What its guests said of explicit congestion notification.
    pub ecn: GuestEcn,
    /// True if a mark came that its next segment out is to echo.
    pub mark_pending: bool,
    /// Which sides have said that they have no more to say.
    pub closed: Closed,
    /// True if its window opened with the last acknowledgement, and not in clumps.
    pub opens: bool,
    /// The bulk leaf that it is queued in, in isolation mode; `None` while it is sparse.
    pub bulk: Option<u8>,
    timing: Option<Timing>,
}

impl Flow {
    /// A flow that begins at `next`, its first byte.
    #[must_use]
    pub fn new(scale: Scale, next: u32) -> Self {
        Self {
            scale,
            una: next,
            next,
            edge: next,
            mss: MSS_USUAL,
            base_ns: 0,
            census: Census::default(),
            network: NetworkWindow::new(next),
            fresh: false,
            classified: false,
            ecn: GuestEcn::default(),
            mark_pending: false,
            closed: Closed::default(),
            opens: false,
            bulk: None,
            timing: None,
        }
    }

    /// A flow that was open already: its sequence numbers are learnt from its next segment, its scale from the local socket or
    /// not at all.
    #[must_use]
    pub fn of_open(scale: Scale) -> Self {
        Self { fresh: true, ..Self::new(scale, 0) }
    }

    /// The flow's first byte is `first`.
    fn begin(&mut self, first: u32) {
        (self.una, self.next, self.edge) = (first, first, first);
        self.network = NetworkWindow::new(first);
        self.fresh = false;
    }

    /// A segment passed, of its own side or the peer's. True if the flow is over: both have closed, or one has given up.
    pub fn is_over(&mut self, segment: &Segment, way: Way) -> bool {
        if segment.flags.has(Flags::FIN) {
            match way {
                Way::Out => self.closed.local = true,
                Way::In => self.closed.remote = true,
            }
        }
        segment.flags.has(Flags::RST) || self.closed == Closed { local: true, remote: true }
    }

    /// Bytes sent beyond `ack`; 0 if it lies ahead of what was sent.
    #[must_use]
    pub const fn in_flight(&self, ack: u32) -> u32 {
        let beyond = self.next.wrapping_sub(ack);
        if beyond > u32::MAX / 2 { 0 } else { beyond }
    }

    /// A SYN goes out: the first, or the answer to the peer's.
    pub fn on_syn_sent(&mut self, segment: &Segment) {
        let first = segment.seq.wrapping_add(segment.payload).wrapping_add(1);
        match self.scale {
            Scale::Offered(peers) if segment.flags.has(Flags::ACK) => {
                let both = segment.options.window_scale.and(peers);
                self.scale = Scale::Known(both.unwrap_or(0));
                self.begin(first);
            }
            _ if segment.flags.has(Flags::ACK) => return,
            // Of ours it matters only that there is one: what is read is the peer's.
            _ => *self = Self::new(Scale::Offered(segment.options.window_scale.map(|_| 0)), first),
        }
        self.ecn = self.ecn.after_syn(segment.flags);
    }

    /// A SYN comes in: the peer's first, or its answer to ours.
    pub fn on_syn_received(&mut self, segment: &Segment) {
        let peers = segment.options.window_scale;
        match self.scale {
            Scale::Offered(ours) if segment.flags.has(Flags::ACK) && self.is_answered_by(segment) => {
                self.scale = Scale::Known(ours.and(peers).unwrap_or(0));
            }
            _ if segment.flags.has(Flags::ACK) => return,
            _ => *self = Self::of_open(Scale::Offered(peers)),
        }
        let mss = segment.options.mss.map_or(MSS_LEAST, u32::from);
        self.mss = mss.saturating_sub(TIMESTAMP_BYTES).max(1);
        self.ecn = self.ecn.after_syn(segment.flags);
    }

    /// True if a segment with SYN answers ours: anybody can send one, and a scale that is not the peer's would close the flow.
    /// Data that our SYN carried need not be taken.
    fn is_answered_by(&self, segment: &Segment) -> bool {
        !self.fresh && self.next.wrapping_sub(segment.ack) <= u16::MAX.into()
    }

    /// Data go out. `gso_bytes` is the payload of each packet that they are cut into, 0 if it is one. True if the window has
    /// no room for another full segment behind it.
    pub fn on_data(&mut self, segment: &Segment, gso_bytes: u32, seen: Seen) -> bool {
        if self.fresh {
            self.begin(segment.seq);
        }
        if gso_bytes > 0 {
            self.mss = gso_bytes;
        } else if segment.payload > self.mss {
            self.mss = segment.payload;
        }
        let end = segment.seq.wrapping_add(segment.payload);
        if !after(end, self.next) || after(self.next, segment.seq) {
            // Sent again: an acknowledgement may be of either. Source: Karn's algorithm.
            self.timing = None;
        } else if self.timing.is_none() {
            let queue_ns = seen.queue_ns.max(0).unsigned_abs();
            self.timing = Some(Timing { end, sent: seen.now, queue_ns });
        }
        if after(end, self.next) {
            self.next = end;
        }
        // As a signed number: a window that ends before the segment is the fullest of all.
        let room = self.edge.wrapping_sub(end);
        // A sender with a large window waits until it has room for another packet as large as this.
        let wanted = if self.opens { self.mss.max(segment.payload) } else { self.mss };
        room < wanted || room > u32::MAX / 2
    }

    /// An acknowledgement comes in. The round trip that it completes, without the queue.
    ///
    /// # Errors
    /// [`Stray`] if a later one came before it, or what it acknowledges was not sent: then the flow is as before.
    pub fn on_ack(&mut self, segment: &Segment, marks: Marks, now: Instant) -> Result<Option<u64>, Stray> {
        if self.fresh {
            self.begin(segment.ack);
        }
        // The end of a flow counts as a byte.
        if after(self.una, segment.ack) || after(segment.ack, self.next.wrapping_add(1)) {
            return Err(Stray);
        }
        let acked = segment.ack.wrapping_sub(self.una);
        self.una = segment.ack;
        if after(self.una, self.next) {
            self.next = self.una;
        }
        if acked > 0 && marks == Marks::Ours {
            let marked = segment.flags.has(Flags::ECE);
            self.network.on_ack(NetworkAck { acked, marked, una: self.una, snd_nxt: self.next, mss: self.mss });
        }
        let Some(timing) = self.timing.filter(|timing| !after(timing.end, segment.ack)) else { return Ok(None) };
        self.timing = None;
        let base_ns = now.nanos_since(timing.sent).saturating_sub(timing.queue_ns);
        self.base_ns = follow_base(self.base_ns, base_ns);
        Ok(Some(base_ns))
    }
}

/// What the guests of a flow said of explicit congestion notification in their handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GuestEcn {
    /// Nothing: the shapers of both hosts may use it between them.
    #[default]
    None,
    /// The one that opens offers it.
    Offered,
    /// Both use it: the marks are theirs.
    Native,
}

impl GuestEcn {
    /// After a segment with SYN. Source: RFC 3168, §6.1.1.
    fn after_syn(self, flags: Flags) -> Self {
        let (echo, reduced) = (flags.has(Flags::ECE), flags.has(Flags::CWR));
        match (self, flags.has(Flags::ACK)) {
            (_, false) if echo && reduced => Self::Offered,
            (Self::Offered, true) if echo && !reduced => Self::Native,
            _ => self,
        }
    }
}

/// Which sides of a flow have sent their last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Closed {
    local: bool,
    remote: bool,
}

/// For whom echoes of marks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marks {
    /// For the shaper, which makes a window of them.
    Ours,
    /// For the guests.
    Guests,
}

/// Which way a segment goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Out through the limiter.
    Out,
    /// In from the peer.
    In,
}

/// An acknowledgement that a later one overtook, or of what was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stray;

/// What is told with each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What waits in the class with its token debt, in nanoseconds of its drain; below zero, so much could pass at once.
    pub queue_ns: i64,
    /// Bytes that have left the class, counted from anywhere.
    pub drained: u64,
    /// When.
    pub now: Instant,
}

/// True if `a` lies behind `b` on the circle of sequence numbers.
#[must_use]
pub(crate) const fn after(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) > u32::MAX / 2
}

#[cfg(test)]
mod tests;

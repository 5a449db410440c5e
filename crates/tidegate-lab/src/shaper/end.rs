//! One flow, both ends.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_shaper::machine::packet::{Ecn, Endpoint, Flags, Segment, SynOptions};
use tidegate_sim::packets::tcp::{Ack, Burst, Receiver, ReceiverConfig, Sender, SenderConfig};

use super::scenario::MSS;

/// Window scale of receivers that have one.
const SCALE: u8 = 9;
/// Room of a receiver: for 100 ms at 1 Gbit/s and what waits.
const BUFFER: u64 = 30_000_000;

/// What a flow is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Always has something to send.
    Bulk,
    /// Ends.
    Short,
}

/// How a flow is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndConfig {
    pub(super) kind: Kind,
    pub(super) class: usize,
    /// Bytes to send.
    pub(super) total: u64,
    pub(super) burst_max: u64,
    /// Added to each way.
    pub(super) far_ns: u64,
    pub(super) scaled: bool,
    /// Its first sequence number, of 32 bits.
    pub(super) first: u32,
    pub(super) began: Instant,
}

/// A flow.
pub(super) struct End {
    pub(super) config: EndConfig,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// When the event of its timers comes.
    pub(super) timer_at: Option<Instant>,
    /// When something was last acknowledged, and the longest time without.
    progress: Instant,
    pub(super) gap_ns: u64,
    /// What had arrived at the end of the warm-up.
    pub(super) before: u64,
    pub(super) done: Option<Instant>,
}

impl End {
    pub(super) fn new(config: EndConfig) -> Self {
        let scale = if config.scaled { SCALE } else { 0 };
        let sender = SenderConfig { mss: MSS, burst_max: config.burst_max, scale, total: config.total };
        Self {
            config,
            sender: Sender::new(sender),
            receiver: Receiver::new(ReceiverConfig { mss: MSS, buffer: BUFFER, scale }),
            timer_at: None,
            progress: config.began,
            gap_ns: 0,
            before: 0,
            done: None,
        }
    }

    /// When one of its timers is due, if no event for that is on its way.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        let timers = [self.sender.next_timeout(), self.receiver.next_timeout()];
        let next = timers.into_iter().flatten().min()?;
        if self.timer_at.is_some_and(|at| at <= next) {
            return None;
        }
        self.timer_at = Some(next);
        Some(next)
    }

    pub(super) fn on_ack(&mut self, ack: Ack, now: Instant) {
        let before = self.sender.acknowledged();
        self.sender.on_ack(ack, now);
        if self.sender.acknowledged() > before {
            self.note_progress(now);
        }
        if self.sender.is_done() {
            self.done = self.done.or(Some(now));
        }
    }

    pub(super) fn note_progress(&mut self, now: Instant) {
        self.gap_ns = self.gap_ns.max(now.nanos_since(self.progress));
        self.progress = now;
    }

    /// Starts the watch for gaps anew.
    pub(super) fn forget_gaps(&mut self, now: Instant) {
        self.progress = now;
        self.gap_ns = 0;
    }

    /// True if it has something to send and nothing of it was acknowledged for `span`. A stalled receiver's flow does not
    /// count as long as it is stalled.
    pub(super) fn hangs(&self, now: Instant, span: Duration) -> bool {
        self.done.is_none() && now.since(self.progress) >= span && !self.receiver.is_stalled()
    }

    /// The burst as the segment that leaves the host.
    pub(super) fn segment(&self, burst: &Burst, number: usize) -> Segment {
        let (source, destination) = endpoints(number);
        Segment {
            source,
            destination,
            seq: self.wire_number(burst.seq),
            ack: 1,
            flags: if burst.syn { Flags::SYN } else { Flags::ACK },
            window: u16::MAX,
            payload: u32::try_from(burst.payload).expect("a burst has at most 64 kB"),
            ecn: Ecn::NOT_ECT,
            options: if burst.syn { self.options(true) } else { SynOptions::default() },
        }
    }

    /// The acknowledgement as the segment that comes to the host.
    pub(super) fn reply(&self, ack: &Ack, number: usize) -> Segment {
        let (destination, source) = endpoints(number);
        Segment {
            source,
            destination,
            seq: 1,
            ack: self.wire_number(ack.ack),
            flags: if ack.syn { Flags::SYN.with(Flags::ACK) } else { Flags::ACK },
            window: ack.field,
            payload: 0,
            ecn: Ecn::NOT_ECT,
            options: if ack.syn { self.options(self.config.scaled) } else { SynOptions::default() },
        }
    }

    #[expect(clippy::unused_self, reason = "the options are the flow's")]
    fn options(&self, scaled: bool) -> SynOptions {
        SynOptions { window_scale: scaled.then_some(SCALE), mss: Some(1_460), timestamps: true }
    }

    /// Sequence numbers on the line have 32 bits.
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is meant")]
    fn wire_number(&self, byte: u64) -> u32 {
        self.config.first.wrapping_add(byte as u32)
    }
}

/// The addresses of flow `number`: its own and its peer's.
fn endpoints(number: usize) -> (Endpoint, Endpoint) {
    let mut address = [0; 16];
    address[8..].copy_from_slice(&(number as u64 / 50_000).to_be_bytes());
    let port = u16::try_from(number % 50_000).expect("below 2^16") + 1_024;
    (Endpoint { address, port }, Endpoint { address: [0x20; 16], port: 5_201 })
}

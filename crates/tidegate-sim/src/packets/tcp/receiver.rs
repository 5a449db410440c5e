//! The end that data come to.

use std::collections::BTreeMap;

use tidegate_core::Instant;

use super::{Ack, Burst};

/// The longest that an acknowledgement is put off. Source: Linux, `TCP_DELACK_MIN`.
const DELAY_NS: u64 = 40_000_000;
/// Acknowledgements that are not put off at the beginning. Source: Linux, `TCP_MAX_QUICKACKS`.
const QUICK: u32 = 16;

/// Settings of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiverConfig {
    /// Payload of a full segment, in bytes.
    pub mss: u64,
    /// Room for data that its application has not read.
    pub buffer: u64,
    /// Its window scale.
    pub scale: u8,
}

/// A receiver whose application reads at once, unless it is stalled.
#[derive(Clone, Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    /// The next byte expected.
    next: u64,
    /// Beyond a gap: first byte, and the byte after.
    held: BTreeMap<u64, u64>,
    /// Received in order and not read.
    unread: u64,
    stalled: bool,
    unacked: u64,
    quick: u32,
    ack_at: Option<Instant>,
    /// The furthest byte that the announced windows reached.
    edge: u64,
}

impl Receiver {
    /// A receiver that has got nothing.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        Self {
            config,
            next: 0,
            held: BTreeMap::new(),
            unread: 0,
            stalled: false,
            unacked: 0,
            quick: QUICK,
            ack_at: None,
            edge: 0,
        }
    }

    /// Bytes received in order, the SYN among them.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.next
    }

    /// When an acknowledgement that was put off is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.ack_at
    }

    /// The acknowledgement that is due.
    pub fn on_timeout(&mut self, now: Instant) -> Option<Ack> {
        self.ack_at.filter(|at| *at <= now).map(|_| self.ack(None))
    }

    /// True while the application does not read.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The application stops reading.
    pub fn stall(&mut self) {
        self.stalled = true;
    }

    /// The application reads on. The new window, which is announced at once if the flow is open.
    pub fn resume(&mut self) -> Option<Ack> {
        self.stalled = false;
        self.unread = 0;
        (self.next > 0).then(|| self.ack(None))
    }

    /// A burst arrives. The acknowledgement that it causes, if it is not put off.
    pub fn on_burst(&mut self, burst: &Burst, now: Instant) -> Option<Ack> {
        if burst.syn {
            self.next = self.next.max(1);
            return Some(Ack { syn: true, ..self.ack_with(None, 0) });
        }
        if self.next == 0 {
            // Not open yet: its SYN was lost.
            return None;
        }
        let (start, end) = (burst.seq, burst.end());
        let beyond = start > self.next;
        if end <= self.next || end > self.next + self.room() {
            // Nothing new, a probe, or more than there is room for.
            return Some(self.ack(None));
        }
        if beyond {
            let known = self.held.entry(start).or_default();
            *known = end.max(*known);
            let block = self.block_from(start);
            return Some(self.ack(Some(block)));
        }
        let filled = !self.held.is_empty();
        let before = self.next;
        self.next = end;
        while let Some((&start, &end)) = self.held.first_key_value().filter(|(start, _)| **start <= self.next) {
            self.next = self.next.max(end);
            self.held.remove(&start);
        }
        if self.stalled {
            self.unread += self.next - before;
        }
        self.unacked += self.next - before;
        if filled || self.unacked >= 2 * self.config.mss || self.quick > 0 {
            self.quick = self.quick.saturating_sub(1);
            return Some(self.ack(None));
        }
        self.ack_at = self.ack_at.or(Some(now.plus_nanos(DELAY_NS)));
        None
    }

    /// What is held without a gap from `start` on.
    fn block_from(&self, start: u64) -> (u64, u64) {
        let mut end = start;
        for (&next, &next_end) in self.held.range(start..) {
            if next > end {
                break;
            }
            end = end.max(next_end);
        }
        (start, end)
    }

    /// Bytes beyond the next one that there is room for. An announced window is not taken back.
    fn room(&self) -> u64 {
        self.config.buffer.saturating_sub(self.unread).max(self.edge.saturating_sub(self.next))
    }

    fn ack(&mut self, sacked: Option<(u64, u64)>) -> Ack {
        self.ack_with(sacked, self.config.scale)
    }

    fn ack_with(&mut self, sacked: Option<(u64, u64)>, scale: u8) -> Ack {
        self.unacked = 0;
        self.ack_at = None;
        let field = u16::try_from(self.room() >> scale).unwrap_or(u16::MAX);
        self.edge = self.edge.max(self.next + (u64::from(field) << scale));
        Ack { ack: self.next, field, sacked, syn: false }
    }
}

//! What is done with each packet of a class.

use tidegate_core::Instant;
use tidegate_core::control::window::{
    Announcement, Census, ClassConfig, ClassWindow, Share, announce, clumps, far_ns, share,
};

use super::ahead::{Ahead, Leaf};
use super::flow::{Flow, FlowKey, Flows, GuestEcn, Marks, NoRoom, Scale, Seen, Way};
use super::leaves::Leaves;
use super::packet::{Ecn, Flags, Segment, TCP};

/// A flow with more in flight is not sparse, whatever holds it: more than the first window of TCP, ten segments.
const SPARSE_FLIGHT_BYTES: u32 = 16_384;

/// What a class's packets met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassCounters {
    /// Segments with payload that went out, of flows that are known.
    pub sent: u64,
    /// Their bytes of payload.
    pub sent_bytes: u64,
    /// Sent segments that filled their window.
    pub limited: u64,
    /// Acknowledgements that came in.
    pub acks: u64,
    /// Acknowledgements whose window was rewritten.
    pub rewritten: u64,
    /// Acknowledgements that echoed a mark for the shaper.
    pub marked: u64,
    /// Segments with payload that went out, of flows whose scale is unknown: their windows are left alone.
    pub unscaled: u64,
    /// Flows that were held from their handshake on.
    pub flows_made: u64,
    /// Flows that were held and of which both sides closed or one gave up.
    pub flows_ended: u64,
}

/// Sizes of a segment that goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Payload of each packet that it is cut into, 0 if it is one.
    pub gso_bytes: u32,
    /// All that goes on the line, headers included.
    pub wire_bytes: u32,
}

/// What is to be written into a segment, if anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// Its window field.
    pub window: Option<u16>,
    /// Its flags.
    pub flags: Option<Flags>,
    /// The bits in its IP header.
    pub ecn: Option<Ecn>,
}

/// One class of a rate limiter: its controller and its counters. The flows stand outside, in the table that all classes
/// of a host share.
#[derive(Clone, Debug)]
pub struct Class {
    window: ClassWindow,
    counters: ClassCounters,
    /// Which of a device's classes it is.
    slot: usize,
    /// True if marks of the network hold flows too.
    ecn: bool,
    leaves: Leaves,
    /// What goes ahead, in isolation mode.
    ahead: Option<Ahead>,
}

impl Class {
    /// A class that has seen nothing yet; `mss` is the payload of a full segment, in bytes.
    #[must_use]
    pub fn new(config: ClassConfig, mss: u64, now: Instant) -> Self {
        Self {
            window: ClassWindow::new(config, mss, now),
            counters: ClassCounters::default(),
            slot: 0,
            ecn: false,
            leaves: Leaves::default(),
            ahead: None,
        }
    }

    /// The same as class number `slot` of its device; the first is 0.
    #[must_use]
    pub fn in_slot(self, slot: usize) -> Self {
        Self { slot, ..self }
    }

    /// Its controller.
    #[must_use]
    pub fn window(&self) -> &ClassWindow {
        &self.window
    }

    /// What its packets met.
    #[must_use]
    pub fn counters(&self) -> ClassCounters {
        self.counters
    }

    /// From now on marks of the network hold flows whose guests know nothing of them: what such a flow sends may be marked,
    /// marks that come in are echoed to the peer's host and hidden from the guest, and so are echoes that come in.
    pub fn use_marks(&mut self) {
        self.ecn = true;
    }

    /// From now on what goes ahead of all else is held to a part of the class, and what no window can hold has leaves of its own.
    pub fn isolate(&mut self) {
        self.ahead = Some(Ahead::new(self.window.config().rate));
    }

    /// Puts `config` in force.
    pub fn set_config(&mut self, config: ClassConfig) {
        self.window.set_config(config);
        if let Some(ahead) = &mut self.ahead {
            ahead.set_rate(config.rate);
        }
    }

    /// The leaf of a packet that goes out and that no window can hold; without isolation it is of no account.
    pub fn on_other(&mut self, key: FlowKey, protocol: u8, wire_bytes: u32, now: Instant) -> Leaf {
        self.ahead.as_mut().map_or(Leaf::Sparse, |ahead| ahead.of_other(key, protocol, wire_bytes, now))
    }

    /// A segment goes out, before it is queued. Its leaf; without isolation that is of no account.
    pub fn on_egress(&mut self, flows: &mut Flows, segment: &Segment, sizes: Sizes, seen: Seen) -> (Leaf, Rewrite) {
        let key = FlowKey::of_egress(segment);
        let unknown = Flow::of_open(Scale::Offered(None));
        let Some(flow) = flows.of_sent(key, segment.flags, unknown) else {
            return (self.on_other(key, TCP, sizes.wire_bytes, seen.now), Rewrite::default());
        };
        let goes_on = !segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::RST);
        let has_opened = matches!(flow.scale, Scale::Known(_)) && goes_on;
        if has_opened && !flows.is_held(&key) {
            match flows.hold(key, self.slot) {
                Ok(()) => self.counters.flows_made += 1,
                Err(NoRoom) => return (self.on_other(key, TCP, sizes.wire_bytes, seen.now), Rewrite::default()),
            }
        }
        let Some(flow) = flows.of_sent(key, segment.flags, unknown) else { return (Leaf::Sparse, Rewrite::default()) };
        let mut leaf = None;
        if segment.flags.has(Flags::SYN) {
            flow.on_syn_sent(segment);
        } else if segment.payload > 0 {
            self.counters.sent += 1;
            self.counters.sent_bytes += u64::from(segment.payload);
            let idle = flow.in_flight(flow.una) == 0;
            let full = flow.on_data(segment, sizes.gso_bytes, seen);
            self.window.on_mss(flow.mss.into());
            if matches!(flow.scale, Scale::Known(_)) {
                let mut first = false;
                if full {
                    self.counters.limited += 1;
                    first = self.window.on_limited(&mut flow.census);
                }
                self.choose_leaf(flow, idle, first, seen.now);
                leaf = flow.bulk.map(Leaf::Bulk);
            } else {
                self.counters.unscaled += 1;
                leaf = Some(self.on_other(key, TCP, sizes.wire_bytes, seen.now));
            }
        }
        let leaf = leaf.unwrap_or_else(|| match &mut self.ahead {
            Some(ahead) => ahead.of_sparse(&key, sizes.wire_bytes, seen.now),
            None => Leaf::Sparse,
        });
        if let Leaf::Bulk(number) = leaf
            && segment.payload > 0
        {
            // Until nothing of the flow waits there that its next could overtake.
            flow.bulk = Some(number);
        }
        flow.classified = true;
        let rewrite = if self.takes_marks(flow) { mark(flow, segment) } else { Rewrite::default() };
        if flow.is_over(segment, Way::Out) {
            self.end(flows, &key, segment.flags);
        }
        (leaf, rewrite)
    }

    fn takes_marks(&self, flow: &Flow) -> bool {
        self.ecn && flow.ecn != GuestEcn::Native
    }

    /// Anybody can forge a reset: a flow that goes on is held again with its next packet.
    fn end(&mut self, flows: &mut Flows, key: &FlowKey, flags: Flags) {
        let was_held = if flags.has(Flags::RST) { flows.let_go(key) } else { flows.remove(key) };
        self.counters.flows_ended += u64::from(was_held);
    }

    /// A flow leaves its bulk leaf only when nothing of it waits there that a packet ahead could overtake.
    fn choose_leaf(&mut self, flow: &mut Flow, idle: bool, first: bool, now: Instant) {
        let counts = flow.census != Census::default() && self.window.counts(flow.census, now);
        if !counts && flow.in_flight(flow.una) <= SPARSE_FLIGHT_BYTES {
            if idle {
                flow.bulk = None;
            }
        } else if first || flow.bulk.is_none() {
            flow.bulk = Some(self.leaves.enter(flow.bulk, self.window.epoch()));
        }
    }

    /// A segment comes in. What to write into it; `coin` is any number, drawn anew for each.
    pub fn on_ingress(&mut self, flows: &mut Flows, segment: &Segment, coin: u16, seen: Seen) -> Rewrite {
        let key = FlowKey::of_ingress(segment);
        let unknown = Flow::of_open(Scale::Offered(None));
        let Some(flow) = flows.of_received(key, segment.flags, unknown) else { return Rewrite::default() };
        if segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) {
            flow.on_syn_received(segment);
            return Rewrite::default();
        }
        if segment.flags.has(Flags::SYN) {
            flow.on_syn_received(segment);
        }
        if !flow.classified {
            return Rewrite::default();
        }
        if segment.flags.has(Flags::SYN) {
            self.window.on_limited(&mut flow.census);
        }
        let mut rewrite = Rewrite::default();
        if segment.ecn == Ecn::CE && self.takes_marks(flow) {
            flow.mark_pending = true;
            rewrite.ecn = Some(Ecn::NOT_ECT);
        }
        if let Scale::Known(scale) = flow.scale
            && segment.flags.has(Flags::ACK)
            && !segment.flags.has(Flags::RST)
        {
            self.on_ack(flow, segment, scale, coin, seen, &mut rewrite);
        }
        if flow.is_over(segment, Way::In) {
            self.end(flows, &key, segment.flags);
        }
        rewrite
    }

    fn on_ack(&mut self, flow: &mut Flow, segment: &Segment, scale: u8, coin: u16, seen: Seen, rewrite: &mut Rewrite) {
        self.counters.acks += 1;
        let marks = if self.takes_marks(flow) { Marks::Ours } else { Marks::Guests };
        let Ok(base_ns) = flow.on_ack(segment, marks, seen.now) else { return };
        if marks == Marks::Ours && segment.flags.has(Flags::ECE) {
            self.counters.marked += 1;
            rewrite.flags = Some(segment.flags.without(Flags::ECE));
        }
        // A far flow is far from the others: it says nothing of their way.
        let others = self.window.base_ns();
        if let Some(base_ns) = base_ns.filter(|_| others == 0 || flow.base_ns <= 2 * others + 100_000) {
            self.window.on_base(base_ns);
        }
        if self.window.counts(flow.census, seen.now) {
            self.window.sample(seen.queue_ns);
        }
        self.window.on_timeout(seen.drained, seen.now);
        let scale = if segment.flags.has(Flags::SYN) { 0 } else { scale };
        let field = self.announce(flow, segment, scale, coin);
        if field < segment.window {
            self.counters.rewritten += 1;
            rewrite.window = Some(field);
        }
    }

    /// The field that the flow's sender is to see: ours, or the peer's own if that is smaller.
    fn announce(&self, flow: &mut Flow, segment: &Segment, scale: u8, coin: u16) -> u16 {
        let far_ns = far_ns(flow.base_ns, self.window.base_ns());
        let mss = u64::from(flow.mss);
        let share = share(Share {
            window_ns: self.window.window_ns(),
            flows: self.window.flows(),
            rate: self.window.drain(),
            far_ns,
            mss,
        });
        let share = share.min(flow.network.window());
        flow.opens = !clumps(share, far_ns > 0);
        let edge = flow.edge.wrapping_sub(segment.ack);
        let units = announce(Announcement {
            share,
            in_flight: flow.in_flight(segment.ack).into(),
            room: if edge > u32::MAX / 2 { 0 } else { edge.into() },
            far: far_ns > 0,
            mss,
            scale,
            coin,
        });
        let field = u16::try_from(units).unwrap_or(u16::MAX).min(segment.window);
        flow.edge = segment.ack.wrapping_add(u32::from(field) << scale);
        field
    }
}

/// What goes out may be marked, and echoes a mark that came.
fn mark(flow: &mut Flow, segment: &Segment) -> Rewrite {
    let echoes = segment.flags.has(Flags::ACK) && core::mem::take(&mut flow.mark_pending);
    Rewrite {
        window: None,
        flags: echoes.then(|| segment.flags.with(Flags::ECE)),
        ecn: (segment.payload > 0 && segment.ecn == Ecn::NOT_ECT).then_some(Ecn::ECT0),
    }
}

#[cfg(test)]
mod tests;

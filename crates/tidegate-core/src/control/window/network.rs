//! What the network's marks allow one flow.

use super::FLOOR_SEGMENTS;

/// Largest window: what TCP can announce at all.
pub const NETWORK_WINDOW_MAX: u64 = 1 << 30;
/// One, for `alpha`.
const ALPHA_ONE: u32 = 1 << 20;
/// `alpha` moves by a 2^4th of the difference. Source: DCTCP, §3.3, g = 1/16.
const ALPHA_SHIFT: u32 = 4;

/// An acknowledgement of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkAck {
    /// Bytes that it acknowledges anew.
    pub acked: u32,
    /// True if it echoes a CE mark.
    pub marked: bool,
    /// The sequence number that it acknowledges.
    pub una: u32,
    /// The highest sequence number sent, plus one.
    pub snd_nxt: u32,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
}

/// The window that DCTCP would use at the sender, kept beside it: 32 bytes for each flow.
///
/// It holds nothing until the first mark. Then it grows by a segment each round trip without marks in which it was used, and
/// shrinks by `alpha / 2` in one with marks. Source: DCTCP, §3; AC/DC TCP, §3.2. Departure: no slow start, which is the
/// sender's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkWindow {
    /// In bytes.
    window: u64,
    /// Bytes acknowledged in the current round trip.
    acked: u64,
    /// Bytes acknowledged with a mark in this round.
    marked: u64,
    /// Share of marked bytes, smoothed, in units of 2^-20.
    alpha: u32,
    /// The current round trip ends when this is acknowledged.
    round_end: u32,
    /// True after the first mark.
    seen_marks: bool,
}

impl NetworkWindow {
    /// A flow that has seen no mark; `una` is where it starts.
    #[must_use]
    pub fn new(una: u32) -> Self {
        // 1: as DCTCP starts in Linux, so that the first mark halves the window.
        Self { window: NETWORK_WINDOW_MAX, acked: 0, marked: 0, alpha: ALPHA_ONE, round_end: una, seen_marks: false }
    }

    /// What the flow may have in flight, in bytes.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// An acknowledgement passes.
    pub fn on_ack(&mut self, ack: NetworkAck) {
        self.acked += u64::from(ack.acked);
        if ack.marked {
            self.marked += u64::from(ack.acked);
            if !self.seen_marks {
                // Until now nothing held the flow: what it has in flight is where DCTCP would be.
                self.seen_marks = true;
                self.window = u64::from(ack.snd_nxt.wrapping_sub(ack.una)) + u64::from(ack.acked);
            }
        }
        if before(ack.una, self.round_end) || self.acked == 0 {
            return;
        }
        self.end_round(ack);
        self.round_end = ack.snd_nxt;
    }

    fn end_round(&mut self, ack: NetworkAck) {
        let mss = u64::from(ack.mss);
        let in_flight = u64::from(ack.snd_nxt.wrapping_sub(ack.una)) + u64::from(ack.acked);
        let share = u32::try_from((self.marked << 20) / self.acked).unwrap_or(ALPHA_ONE);
        self.alpha = self.alpha - (self.alpha >> ALPHA_SHIFT) + (share >> ALPHA_SHIFT);
        if self.marked > 0 {
            self.window -= (self.window * u64::from(self.alpha)) >> 21;
        } else if self.seen_marks && in_flight + mss >= self.window {
            self.window += mss;
        }
        self.window = self.window.clamp(FLOOR_SEGMENTS * mss, NETWORK_WINDOW_MAX);
        self.acked = 0;
        self.marked = 0;
    }
}

/// True if `a` lies before `b` on the circle of sequence numbers.
const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// One round trip of a flow that fills `window` segments, of which the first `marked` are marked.
    fn round(network: &mut NetworkWindow, una: &mut u32, window: u32, marked: u32) {
        let end = una.wrapping_add(window * MSS);
        for segment in 0..window {
            *una = una.wrapping_add(MSS);
            let snd_nxt = end.wrapping_add((segment + 1) * MSS);
            network.on_ack(NetworkAck { acked: MSS, marked: segment < marked, una: *una, snd_nxt, mss: MSS });
        }
    }

    #[test]
    fn nothing_is_held_before_the_first_mark() {
        let (mut network, mut una) = (NetworkWindow::new(0), 0);
        (0..20).for_each(|_| round(&mut network, &mut una, 100, 0));
        assert_eq!(network.window(), NETWORK_WINDOW_MAX);
    }

    #[test]
    fn the_first_mark_finds_the_window_in_use_and_nearly_halves_it_unless_marks_had_been_rare() {
        let (mut network, mut una) = (NetworkWindow::new(u32::MAX - 5_000), u32::MAX - 5_000);
        round(&mut network, &mut una, 40, 40);
        assert!((20_000..24_000).contains(&network.window()), "{}", network.window());
        let (mut network, mut una) = (NetworkWindow::new(0), 0);
        (0..200).for_each(|_| round(&mut network, &mut una, 40, 0));
        round(&mut network, &mut una, 40, 40);
        assert!((36_000..=41_000).contains(&network.window()), "{}", network.window());
    }

    #[test]
    fn a_steady_share_of_marks_finds_its_window() {
        // Every round trip beyond 50 segments is marked, none below: the window saws below and about that.
        let (mut network, mut una) = (NetworkWindow::new(0), 0);
        let mut seen = Vec::new();
        for _ in 0..1_000 {
            let window = u32::try_from(network.window().min(80_000)).unwrap() / MSS;
            round(&mut network, &mut una, window.max(1), window.saturating_sub(50));
            seen.push(window);
        }
        let settled = &seen[500..];
        assert!(settled.iter().all(|window| (40..=53).contains(window)), "{settled:?}");
    }

    #[test]
    fn marks_alone_never_close_the_window() {
        let (mut network, mut una) = (NetworkWindow::new(0), 0);
        (0..1_000).for_each(|_| round(&mut network, &mut una, 2, 2));
        assert_eq!(network.window(), FLOOR_SEGMENTS * u64::from(MSS));
    }
}

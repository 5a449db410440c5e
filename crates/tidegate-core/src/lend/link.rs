//! A session with one peer, and until when it is in force at either end.

use crate::Instant;
use crate::lease::Terms;
use crate::lend::frame::{Asks, Frame, Member, Stamp};
use crate::number::{float, whole};

/// The first hello is said again after the lease divided by two to this power, and then after twice as long each time, up
/// to a lease: a peer that is there and missed one is bound within a few hundredths of a lease, and one that is not there
/// costs five frames more.
const HELLO_DOUBLINGS: u32 = 5;

/// How far a session has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The peer's number is not known to be its present one.
    Unbound,
    /// Tokens are given and booked.
    Bound,
    /// What was borrowed is gone; what was lent comes back at the lender's end.
    Closed,
}

/// The latest stamp of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Latest {
    /// The peer's number of the session.
    number: u64,
    stamp: Stamp,
    /// By our clock.
    receipt: Instant,
}

/// What a frame means for the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// Of another session, or unintelligible.
    Nothing,
    /// The peer wants to know our number and its own stamp.
    Hello,
    /// It is of this session; its entries count if it is fresh.
    Session {
        /// It answers something that we sent within the lease.
        fresh: bool,
    },
    /// The peer has begun a new session: this one ends.
    Restarted,
}

/// A session with one peer.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) peer: Member,
    pub(super) phase: Phase,
    terms: Terms,
    mine: u64,
    latest: Option<Latest>,
    borrower_end: Instant,
    lender_end: Instant,
    /// Circles in which something is lent or borrowed.
    pub(super) loans: usize,
    /// When to say hello; `None` while nobody needs the link.
    pub(super) hello_at: Option<Instant>,
    /// Hellos of this session so far.
    hellos: u32,
    /// When to say in which circles this member has left; `None` if the peer knows.
    pub(super) part_at: Option<Instant>,
    /// When an answer was last asked for.
    asked: Option<Instant>,
    /// Mean time from question to answer; 0 until the first.
    pub(super) round_trip_ns: f64,
}

impl Link {
    /// A link that says hello at once. `number` is greater than in any session before; the peer may know those.
    pub(super) fn new(peer: Member, number: u64, terms: Terms, now: Instant) -> Self {
        Self {
            peer,
            phase: Phase::Unbound,
            terms,
            mine: number,
            latest: None,
            borrower_end: Instant::ZERO,
            lender_end: Instant::ZERO,
            loans: 0,
            hello_at: Some(now),
            hellos: 0,
            part_at: None,
            asked: None,
            round_trip_ns: 0.0,
        }
    }

    /// When the session must be looked at, whatever comes.
    pub(super) fn deadline(&self) -> Instant {
        match self.phase {
            Phase::Unbound => Instant::MAX,
            Phase::Bound => self.borrower_end,
            Phase::Closed => self.lender_end,
        }
    }

    /// When to ask for an answer only to keep loans in force: a third of the lease after the last exchange, and again
    /// every sixth.
    pub(super) fn keep_alive_at(&self) -> Option<Instant> {
        if self.phase != Phase::Bound || self.loans == 0 {
            return None;
        }
        let lease_ns = self.terms.lease_ns();
        let again = self.asked.map_or(Instant::ZERO, |asked| asked.plus_nanos(lease_ns / 6));
        Some(self.borrower_end.minus_nanos(lease_ns - lease_ns / 3).max(again))
    }

    /// Until when the peer may have something of ours, as far as is known.
    pub(super) fn lender_end(&self) -> Instant {
        self.lender_end
    }

    /// When to say again what the peer has not said that it knows.
    pub(super) fn say_again_at(&self, now: Instant) -> Instant {
        now.plus_nanos(self.terms.lease_ns() / 6)
    }

    /// How long an answer may take before it counts as lost.
    pub(super) fn patience_ns(&self) -> u64 {
        whole(2.0 * self.round_trip_ns).saturating_add(1_000_000)
    }

    /// In some circle something was lent or borrowed, or not, and now is.
    pub(super) fn on_standing(&mut self, had: bool, has: bool) {
        self.loans = (self.loans + usize::from(has)).saturating_sub(usize::from(had));
    }

    /// Ends the session but for what is lent.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        self.part_at = None;
    }

    /// Begins the next session. Everything that was lent in the last one is back.
    pub(super) fn reset(&mut self, hello_at: Option<Instant>) {
        self.phase = Phase::Unbound;
        self.mine += 1;
        (self.latest, self.asked) = (None, None);
        (self.loans, self.hellos) = (0, 0);
        self.hello_at = hello_at;
    }

    /// Takes note of a frame of the peer.
    pub(super) fn on_frame(&mut self, frame: &Frame, now: Instant) -> Meaning {
        match (self.phase, self.latest) {
            (Phase::Closed, _) => Meaning::Nothing,
            (Phase::Bound, Some(latest)) if frame.mine != latest.number => {
                if frame.mine > latest.number {
                    Meaning::Restarted
                } else {
                    Meaning::Nothing
                }
            }
            _ => {
                self.note(frame, now);
                self.on_present(frame, now)
            }
        }
    }

    fn note(&mut self, frame: &Frame, now: Instant) {
        let known = self.latest.filter(|latest| latest.number == frame.mine && latest.stamp >= frame.sent);
        self.latest = known.or(Some(Latest { number: frame.mine, stamp: frame.sent, receipt: now }));
    }

    fn on_present(&mut self, frame: &Frame, now: Instant) -> Meaning {
        if frame.yours != self.mine {
            let hello = self.phase == Phase::Unbound || frame.yours == 0;
            return if hello { Meaning::Hello } else { Meaning::Nothing };
        }
        let end = |stamp: Stamp| self.terms.holder_end(stamp.instant());
        let Some(echo) = frame.echo.filter(|&echo| echo.instant() <= now && now < end(echo)) else {
            return if self.phase == Phase::Bound { Meaning::Session { fresh: false } } else { Meaning::Nothing };
        };
        let end = end(echo);
        self.borrower_end = if self.phase == Phase::Bound { self.borrower_end.max(end) } else { end };
        self.phase = Phase::Bound;
        self.hello_at = None;
        if self.asked == Some(echo.instant()) {
            let took = float(now.nanos_since(echo.instant()));
            self.asked = None;
            self.round_trip_ns =
                if self.round_trip_ns > 0.0 { self.round_trip_ns * 0.875 + took * 0.125 } else { took };
        }
        Meaning::Session { fresh: true }
    }

    /// A frame to the peer, without entries. What it echoes keeps our loans in force at the peer for another lease.
    pub(super) fn frame(&mut self, own: Member, asks: Asks, now: Instant) -> Frame {
        if let Some(latest) = self.latest {
            self.lender_end = self.lender_end.max(self.terms.granter_end(latest.receipt));
        }
        self.asked = if asks == Asks::Answer { Some(now) } else { self.asked };
        Frame {
            from: own,
            to: self.peer,
            mine: self.mine,
            yours: self.latest.map_or(0, |latest| latest.number),
            sent: Stamp::at(now),
            echo: self.latest.map(|latest| latest.stamp),
            asks,
            entries: Vec::new(),
        }
    }

    /// A frame to a peer of which nothing is known, to be said again if nothing comes of it.
    pub(super) fn hello(&mut self, own: Member, now: Instant) -> Frame {
        self.latest = None;
        let patience_ns = self.terms.lease_ns() >> HELLO_DOUBLINGS.saturating_sub(self.hellos);
        self.hello_at = Some(now.plus_nanos(patience_ns));
        self.hellos = self.hellos.saturating_add(1);
        self.frame(own, Asks::Answer, now)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    fn link(peer: u16, number: u64) -> Link {
        Link::new(Member(peer), number, Terms::new(Duration::from_millis(100), 1_000), at(0))
    }

    const A: Member = Member(0);
    const B: Member = Member(1);

    /// Two ends that have bound each other at 3 ms; every frame takes 1 ms.
    fn bound() -> (Link, Link) {
        let (mut a, mut b) = (link(1, 10), link(0, 20));
        let hello = a.hello(A, at(0));
        assert_eq!((hello.yours, b.on_frame(&hello, at(1))), (0, Meaning::Hello));
        let answer = b.frame(B, Asks::Answer, at(1));
        assert_eq!(a.on_frame(&answer, at(2)), Meaning::Session { fresh: true });
        let last = a.frame(A, Asks::Nothing, at(2));
        assert_eq!(b.on_frame(&last, at(3)), Meaning::Session { fresh: true });
        (a, b)
    }

    #[test]
    fn three_frames_bind_both_ends_and_the_lender_s_end_is_the_later() {
        let (a, b) = bound();
        assert_eq!((a.phase, b.phase), (Phase::Bound, Phase::Bound));
        assert_eq!((a.borrower_end, b.borrower_end), (at(100), at(101)));
        // What a has echoed it had at 2 ms, b at 1 ms; 0.1 ms for drift and 1 ms for rounding.
        assert_eq!(a.lender_end, Instant::from_nanos(2 * MS + 101 * MS + MS / 10));
        assert!(a.lender_end > b.borrower_end && b.lender_end > a.borrower_end);
    }

    #[test]
    fn stale_and_invented_echoes_do_not_count() {
        let (mut a, mut b) = bound();
        let mut frame = b.frame(B, Asks::Nothing, at(4));
        assert_eq!(a.on_frame(&frame, at(101)), Meaning::Session { fresh: true });
        assert_eq!(a.on_frame(&frame, at(102)), Meaning::Session { fresh: false });
        frame.echo = Some(Stamp::at(at(500)));
        assert_eq!(a.on_frame(&frame, at(102)), Meaning::Session { fresh: false });
        assert_eq!(a.borrower_end, at(102));
    }

    #[test]
    fn frames_of_other_sessions_are_told_apart() {
        let (mut a, mut b) = bound();
        let old = b.frame(B, Asks::Nothing, at(4));
        let forged = Frame { yours: 9, ..old.clone() };
        assert_eq!(a.on_frame(&forged, at(5)), Meaning::Nothing);
        b.close();
        b.reset(Some(at(5)));
        let hello = b.hello(B, at(5));
        assert_eq!(a.on_frame(&hello, at(6)), Meaning::Restarted);
        a.close();
        assert_eq!(a.on_frame(&old, at(6)), Meaning::Nothing);
        a.reset(None);
        assert_eq!(a.on_frame(&old, at(7)), Meaning::Hello, "its numbers are another session's");
    }

    #[test]
    fn a_peer_that_missed_the_last_frame_of_binding_asks_again() {
        let (mut a, mut b) = (link(1, 10), link(0, 20));
        b.on_frame(&a.hello(A, at(0)), at(1));
        a.on_frame(&b.frame(B, Asks::Answer, at(1)), at(2));
        assert_eq!(a.on_frame(&b.hello(B, at(101)), at(102)), Meaning::Hello);
        let answer = a.frame(A, Asks::Nothing, at(102));
        assert_eq!(b.on_frame(&answer, at(103)), Meaning::Session { fresh: true });
    }

    #[test]
    fn a_hello_is_said_again_soon_and_then_ever_more_rarely() {
        let mut a = Link::new(B, 10, Terms::new(Duration::from_millis(3_200), 0), at(0));
        let mut said = Vec::new();
        while let Some(due) = a.hello_at.filter(|&due| due < at(20_000)) {
            said.push(due.as_nanos() / MS);
            a.hello(A, due);
        }
        assert_eq!(said, [0, 100, 300, 700, 1_500, 3_100, 6_300, 9_500, 12_700, 15_900, 19_100]);
        // The next session begins anew.
        a.reset(Some(at(20_000)));
        a.hello(A, at(20_000));
        assert_eq!(a.hello_at, Some(at(20_100)));
    }

    #[test]
    fn loans_alone_keep_a_link_alive() {
        let (mut a, _) = bound();
        assert_eq!(a.keep_alive_at(), None);
        a.loans = 1;
        assert_eq!(a.keep_alive_at().map(|at| at.as_nanos() / MS), Some(33));
        a.frame(A, Asks::Answer, at(34));
        assert_eq!(a.keep_alive_at().map(|at| at.as_nanos() / MS), Some(50));
    }
}

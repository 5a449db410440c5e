//! Beside the callers: send by credit, by level, or fail at once.

use core::time::Duration;

use tidegate_core::{Instant, Rng};

use crate::machine::credits::Level;
use crate::machine::{Ask, CallId, Client, Grant, Reply, Request, ShedReason, Step, Tenant};

/// With so many calls unanswered, a client does not take silence for leave: one of them will be answered soon, or be
/// told to be over.
const UNANSWERED: u32 = 16;

/// For how many of the longest recent answers a client with so many unanswered calls sends on without a word.
const PATIENCE: u32 = 2;

/// A way there and back that takes so many of the shortest is full of this client's own calls.
const CROWDED: u32 = 8;

/// What an answer that came by a crowded way takes of the limit: a sixteenth. So many remain.
const STAND_BACK: u16 = 16;

/// What an answer that came by a free way adds to the limit.
const WIDEN: u16 = 4;

/// The longest time between two calls that ask whether a silent server answers again.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Calls that a client makes before the first answer: a rush of more would only keep that answer from being read.
const UNHEARD: u16 = 256;

/// How long an answer is taken to need before there was one, in nanoseconds.
const UNTOLD_NS: u32 = 1_000_000_000;

/// A client of [`CreditServer`](super::CreditServer). 64 bytes; it has no timer and no queue, so nothing waits in it.
#[derive(Clone, Debug)]
pub struct CreditClient {
    /// Until when the window holds, and until when the level does.
    window_until: Instant,
    level_until: Instant,
    /// When silence becomes a sign, and when one call may ask again.
    word_due: Instant,
    probe_at: Instant,
    level: Level,
    window: u32,
    in_flight: u32,
    /// How long the longest of the recent answers took, in nanoseconds.
    longest_ns: u32,
    /// What earlier chances left over, in 1/65536.
    carry: u32,
    /// The shortest round trip seen, in nanoseconds; 0 if none.
    round_trip_ns: u32,
    tenant: Tenant,
    /// Unanswered calls beyond which only credits let more through; while the way is free, it grows.
    limit: u16,
    /// Whether anything was ever answered.
    heard: bool,
}

impl CreditClient {
    /// A client that has heard nothing yet and therefore sends what it is asked to, up to 256 calls.
    pub fn new(tenant: Tenant, rng: &mut Rng) -> Self {
        // Clients that began at the same point would send their first calls at the same time.
        let carry = u32::try_from(rng.below(1 << 16)).expect("16 bits");
        Self {
            window_until: Instant::ZERO,
            level_until: Instant::ZERO,
            word_due: Instant::ZERO,
            probe_at: Instant::ZERO,
            level: Level::OPEN,
            window: 0,
            in_flight: 0,
            longest_ns: UNTOLD_NS,
            carry,
            round_trip_ns: 0,
            tenant,
            limit: UNHEARD,
            heard: false,
        }
    }

    /// The level in force at `now`. With many calls unanswered it outlives its lease: the next word is on its way, and
    /// whoever opened up meanwhile would send most to a server that answers late.
    #[must_use]
    pub fn level(&self, now: Instant) -> Level {
        if now < self.level_until || self.in_flight >= UNANSWERED { self.level } else { Level::OPEN }
    }

    /// Credits that are not in use at `now`.
    #[must_use]
    pub fn credits(&self, now: Instant) -> u32 {
        if now < self.window_until { self.window.saturating_sub(self.in_flight) } else { 0 }
    }

    /// Calls that were sent and not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A grant that came at `now` and was made at `granted` or later.
    ///
    /// The lease of its credits runs from `granted`: so it never outlives the server's own count of it. That of its level
    /// runs from now: where answers take longer than a lease, no level would hold at all, and they would take longer yet.
    fn accept(&mut self, grant: &Grant, granted: Instant, now: Instant) {
        self.level = Level::from_wire(grant.level);
        self.window = grant.window;
        self.window_until = granted + grant.lease;
        self.level_until = now + grant.lease;
        self.hear(now);
    }

    /// A word of the server: more may follow it for a while.
    fn hear(&mut self, now: Instant) {
        self.word_due = now + PATIENCE * Duration::from_nanos(self.longest_ns.into());
        self.probe_at = self.word_due;
    }

    /// Makes room on the way. The server sees neither what waits in this process nor what waits in the network, so it
    /// may say that it has time while calls are already too old when they arrive.
    fn watch_the_way(&mut self, way_ns: u32) {
        let is_ours = self.in_flight >= UNANSWERED;
        let crowded = way_ns > self.round_trip_ns.saturating_mul(CROWDED);
        self.limit = match (self.heard, is_ours) {
            (false, false) => u16::MAX,
            // How long the way is will show when those that were sent before any answer are out of it.
            (false, true) => STAND_BACK,
            (true, true) if crowded => {
                let limit = self.limit.min(u16::try_from(self.in_flight).unwrap_or(u16::MAX));
                limit - limit / STAND_BACK
            }
            (true, _) if self.in_flight < self.limit.into() => self.limit.saturating_add(WIDEN),
            (true, _) => self.limit,
        };
    }

    /// Whether no call should be added that has no credit: because as many are unanswered as the way has room for, or
    /// because many are and the server has said nothing for longer than its answers took. An open level says that it had
    /// time when it spoke; silent since, it may be sinking under what it was sent. A call from time to time asks again,
    /// each time after as long a silence as there was, so nothing is shut for good.
    fn holds_back(&mut self, now: Instant) -> bool {
        if self.in_flight < UNANSWERED {
            self.hear(now);
        }
        let is_full = self.in_flight >= self.limit.into();
        if now < self.word_due || !(self.heard || is_full) {
            return is_full;
        }
        if now < self.probe_at {
            return true;
        }
        let silence = now.since(self.word_due).max(Duration::from_nanos(self.longest_ns.into()));
        self.probe_at = now + silence.min(PROBE_EVERY);
        false
    }
}

impl Client for CreditClient {
    #[inline]
    fn on_call(&mut self, request: &Request, now: Instant, _: &mut Rng) -> Step {
        let budget = request.deadline.map(|deadline| deadline.since(now));
        if budget == Some(Duration::ZERO) {
            return Step::Fail(ShedReason::Deadline);
        }
        let credited = self.credits(now) > 0;
        if !credited && (!self.level(now).passes(request.priority, &mut self.carry) || self.holds_back(now)) {
            return Step::Fail(ShedReason::NoCredit);
        }
        self.in_flight += 1;
        Step::Send(Ask {
            demand: 0,
            exact: false,
            credited,
            aware: true,
            priority: request.priority,
            tenant: self.tenant,
            budget,
            round_trip: Duration::from_nanos(self.round_trip_ns.into()),
        })
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let sample =
            u32::try_from(reply.response_time.saturating_sub(reply.server_time).as_nanos()).unwrap_or(u32::MAX);
        let shortest = self.round_trip_ns;
        // The shortest: what waiting adds must not make the objective longer. It creeps up, should the way become longer,
        // and hardly while that is most likely a crowd.
        self.round_trip_ns = match shortest {
            0 => sample,
            _ if sample > shortest.saturating_mul(CROWDED) => shortest + (sample - shortest) / 65_536,
            _ if sample > shortest => shortest + (sample - shortest) / 1024,
            _ => sample,
        };
        if reply.grant.is_some() {
            self.watch_the_way(sample);
        } else {
            // How long its server worked is not said.
            self.limit = u16::MAX;
        }
        let response_ns = u32::try_from(reply.response_time.as_nanos()).unwrap_or(u32::MAX);
        let longest = if self.heard { self.longest_ns - self.longest_ns / 8 } else { 0 };
        self.longest_ns = response_ns.max(longest);
        self.heard = true;
        self.hear(now);
        if let Some(grant) = &reply.grant {
            self.accept(grant, now.minus_nanos(tidegate_core::time::nanos(reply.response_time)), now);
        }
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.accept(grant, now, now);
    }

    fn on_cancel(&mut self, _: CallId, _: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    fn on_lost(&mut self, _: Instant) {
        self.in_flight = 0;
        self.window = 0;
        (self.window_until, self.level_until) = (Instant::ZERO, Instant::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Outcome, Priority};

    const LEASE: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn sends(client: &mut CreditClient, calls: u64, now: Instant) -> u32 {
        let before = client.in_flight();
        for call in 0..calls {
            let request = Request { id: CallId(call), priority: Priority::DEFAULT, deadline: None };
            client.on_call(&request, now, &mut Rng::new(1));
        }
        client.in_flight() - before
    }

    /// A server without the scheme answers.
    fn answer(client: &mut CreditClient, now: Instant) {
        let (response_time, server_time) = (LEASE, Duration::ZERO);
        let reply = Reply { id: CallId(0), outcome: Outcome::Served, grant: None, response_time, server_time };
        client.on_reply(&reply, now);
    }

    fn tell(client: &mut CreditClient, window: u32, response_time: Duration, now: Instant) {
        let level = Level::at(Priority::DEFAULT, 0.25).to_wire();
        let grant = Some(Grant { window, level, lease: LEASE });
        let server_time = Duration::ZERO;
        client.on_reply(&Reply { id: CallId(0), outcome: Outcome::Served, grant, response_time, server_time }, now);
    }

    #[test]
    fn a_level_that_took_longer_than_its_lease_holds_and_its_credits_do_not() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        tell(&mut client, 5, 3 * LEASE, at(100));
        assert_eq!((client.credits(at(100)), sends(&mut client, 8, at(100))), (0, 2));
        assert_eq!(sends(&mut client, 8, at(110)), 8, "its lease is over");
    }

    #[test]
    fn a_client_that_was_never_answered_makes_so_many_calls_and_no_more() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        assert_eq!(sends(&mut client, 1_000, at(0)), u32::from(UNHEARD));
        answer(&mut client, at(10));
        assert_eq!(sends(&mut client, 1_000, at(10)), 1_000);
    }

    #[test]
    fn a_level_outlives_its_lease_while_many_calls_are_unanswered() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        tell(&mut client, 0, LEASE, at(10));
        assert_eq!(sends(&mut client, 16 + 400, at(20)), 16 + 100);
        (0..101).for_each(|call| client.on_cancel(CallId(call), at(30)));
        assert_eq!(sends(&mut client, 1, at(30)), 1);
    }

    #[test]
    fn a_server_that_fell_silent_is_only_asked_from_time_to_time() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        assert_eq!(sends(&mut client, 17, at(0)), 17);
        answer(&mut client, at(10));
        assert_eq!(sends(&mut client, 500, at(29)), 500, "twice as long as its last answer took");
        let asked: Vec<_> = (30..200).filter(|ms| sends(&mut client, 500, at(*ms)) > 0).collect();
        assert_eq!(asked, [30, 40, 50, 70, 110, 190]);
        answer(&mut client, at(200));
        assert_eq!(sends(&mut client, 500, at(219)), 500, "one word is enough");
    }

    #[test]
    fn calls_that_wait_on_a_crowded_way_hold_others_back_until_it_is_free() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        let open = Some(Grant { window: 0, level: Level::OPEN.to_wire(), lease: LEASE });
        let told = |client: &mut CreditClient, response_time, now| {
            let server_time = Duration::ZERO;
            let reply = Reply { id: CallId(0), outcome: Outcome::Served, grant: open, response_time, server_time };
            client.on_reply(&reply, now);
        };
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        told(&mut client, Duration::from_millis(1), at(1));
        assert_eq!(sends(&mut client, 500, at(1)), 500, "the way is free");
        (0..400).for_each(|_| told(&mut client, Duration::from_millis(12), at(13)));
        assert_eq!(sends(&mut client, 500, at(13)), 0);
        (0..84).for_each(|_| told(&mut client, Duration::from_millis(12), at(14)));
        assert_eq!((client.in_flight(), sends(&mut client, 500, at(14))), (16, 0));
        (0..2).for_each(|_| told(&mut client, Duration::from_millis(2), at(15)));
        assert_eq!(sends(&mut client, 500, at(15)), 5);
    }

    #[test]
    fn a_client_whose_calls_were_lost_asks_again() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        assert_eq!(sends(&mut client, 500, at(0)), 256);
        let asked: Vec<_> = (1..60).filter(|tenth| sends(&mut client, 500, at(100 * tenth)) > 0).collect();
        assert_eq!(asked, [20, 30, 40, 50]);
    }

    #[test]
    fn a_rush_after_a_long_rest_is_not_silence_of_the_server() {
        let mut client = CreditClient::new(Tenant(0), &mut Rng::new(1));
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        answer(&mut client, at(10));
        assert_eq!(sends(&mut client, 1_000, at(60_000)), 1_000);
    }

    #[test]
    fn an_idle_client_takes_64_bytes_at_most() {
        assert!(size_of::<CreditClient>() <= 64, "{}", size_of::<CreditClient>());
    }
}

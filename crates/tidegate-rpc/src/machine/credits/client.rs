//! Beside the callers: send by credit, by level, or fail at once.

use core::time::Duration;

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use crate::machine::credits::Level;
use crate::machine::{
    Ask, CERTAIN, CallId, Client, Grant, Outcome, Priority, Reply, Request, ShedReason, Step, Tenant,
};

/// Of so many unanswered calls one will be answered soon, or be told to be over.
const UNANSWERED: u16 = 16;

/// Unanswered calls of a client that was never answered: a rush of more would only keep that answer from being read.
const UNHEARD: u16 = 256;

/// Calls that are sent in a row without a word from the server.
const UNHEARD_OF: u16 = 4096;

/// For how many of the longest recent answers, and for how long at least, silence is no sign.
const PATIENCE: u32 = 2;
const PATIENCE_LEAST: Duration = Duration::from_secs(1);

/// What a shorter answer of a handler takes of the time that slow ones are known to take: of one slow call in a hundred two
/// thirds are remembered when the next one is answered.
const SLOW_FADES: u16 = 256;

/// A way there and back that takes so many of the shortest answers is full of this client's own calls.
const CROWDED: u32 = 8;

/// What an answer that came by a crowded way takes of the limit: a sixteenth.
const STAND_BACK: u16 = 16;

/// What an answer that came by a free way adds to the limit.
const WIDEN: u16 = 4;

/// A client of [`CreditServer`](super::CreditServer). 64 bytes; it has no timer and no queue, so nothing waits in it.
#[derive(Clone, Debug)]
pub struct CreditClient {
    /// Until when the window holds, and until when the level does.
    window_until: Instant,
    level_until: Instant,
    /// When the server last said something, or what it has not spoken since was sent.
    quiet_since: Instant,
    level: Level,
    window: u32,
    in_flight: u32,
    /// How long the longest of the recent answers took, in microseconds; 0 if there was none.
    longest_us: u32,
    /// How long the slow ones among the calls that this server serves take, in milliseconds. Refusals tell nothing of it.
    slow_ms: u16,
    /// What earlier chances left over, in 1/65536.
    carry: u32,
    /// The shortest way there and back, and the shortest answer that was one, in nanoseconds; 0 if none.
    round_trip_ns: u32,
    answer_ns: u32,
    tenant: Tenant,
    /// Unanswered calls beyond which only credits let more through; while the way is free, it grows.
    limit: u16,
    /// Calls that were sent since the server last said something; the most there can be if it is taken to be silent.
    unheard: u16,
    /// Whether the server ever said a level.
    aware: bool,
}

impl CreditClient {
    /// A client that has heard nothing yet and therefore sends what it is asked to, up to 256 calls and then one a second.
    pub fn new(tenant: Tenant, rng: &mut Rng) -> Self {
        // Clients that began at the same point would send their first calls at the same time.
        Self::fresh(tenant, u32::try_from(rng.below(1 << 16)).expect("16 bits"))
    }

    fn fresh(tenant: Tenant, carry: u32) -> Self {
        Self {
            window_until: Instant::ZERO,
            level_until: Instant::ZERO,
            quiet_since: Instant::ZERO,
            level: Level::OPEN,
            window: 0,
            in_flight: 0,
            longest_us: 0,
            slow_ms: 0,
            carry,
            round_trip_ns: 0,
            answer_ns: 0,
            tenant,
            limit: UNHEARD,
            unheard: 0,
            aware: false,
        }
    }

    /// The level in force at `now`. With many calls unanswered it outlives its lease for a while: the next word is on its
    /// way, and whoever opened up meanwhile would send most to a server that answers late.
    #[must_use]
    pub fn level(&self, now: Instant) -> Level {
        let word_is_due = self.has_many_unanswered() && now.since(self.quiet_since) < self.patience();
        if now < self.level_until || word_is_due { self.level } else { Level::OPEN }
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

    fn has_many_unanswered(&self) -> bool {
        self.in_flight >= UNANSWERED.into()
    }

    /// How long silence is no sign: by what this server's calls take, be it five seconds each.
    fn patience(&self) -> Duration {
        let longest = Duration::from_micros(self.longest_us.into()).max(Duration::from_millis(self.slow_ms.into()));
        (PATIENCE * longest).max(PATIENCE_LEAST)
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
        self.aware = true;
    }

    /// The server said something: more may be sent.
    fn hear(&mut self, now: Instant) {
        self.unheard = 0;
        self.quiet_since = now;
    }

    /// Makes room on the way after an answer that was `way_ns` on it and `server_ns` in the server. The server sees neither
    /// what waits in this process nor what waits in the network, so it may say that it has time while calls are already too
    /// old when they arrive.
    fn watch_the_way(&mut self, way_ns: u32, server_ns: u32) {
        let shortest_ns = self.round_trip_ns.max(self.answer_ns);
        let is_short_for_the_work = way_ns <= server_ns.saturating_mul(CROWDED);
        let in_flight = u16::try_from(self.in_flight).unwrap_or(u16::MAX);
        self.limit = match in_flight {
            // How long the way is will show when those that were sent before any answer are out of it.
            UNANSWERED.. if shortest_ns == 0 && !is_short_for_the_work => UNANSWERED,
            _ if shortest_ns == 0 => u16::MAX,
            UNANSWERED.. if way_ns > shortest_ns.saturating_mul(CROWDED) => {
                let limit = self.limit.min(in_flight);
                (limit - limit / STAND_BACK).max(UNANSWERED)
            }
            // Those on the way now are more than it has room for, unless they wait elsewhere.
            _ if in_flight >= self.limit && !is_short_for_the_work => self.limit,
            _ => self.limit.saturating_add(WIDEN),
        };
    }

    /// Whether no call should be added that has no credit: because as many are unanswered as the way has room for, or
    /// because the server has said nothing to many for longer than its answers took. An open level says that it had time
    /// when it spoke; silent since, it may be sinking under what it was sent. One call from time to time asks again, so
    /// nothing is shut for good.
    fn holds_back(&mut self, now: Instant) -> bool {
        let quiet = now.since(self.quiet_since);
        let is_silent = self.is_silent(now);
        if is_silent {
            self.unheard = UNHEARD_OF;
        }
        if !is_silent && self.in_flight < self.limit.into() {
            return false;
        }
        let answer = PATIENCE * Duration::from_micros(self.longest_us.into());
        let ask_after = if is_silent || self.longest_us == 0 { PATIENCE_LEAST } else { answer.min(PATIENCE_LEAST) };
        if quiet < ask_after {
            return true;
        }
        self.quiet_since = now;
        false
    }
}

impl Client for CreditClient {
    #[inline]
    fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> Step {
        self.on_call_below(request, CERTAIN, now, rng)
    }

    #[inline]
    fn on_call_below(&mut self, request: &Request, came_by: u32, now: Instant, _: &mut Rng) -> Step {
        let budget = request.deadline.map(|deadline| deadline.since(now));
        if budget == Some(Duration::ZERO) {
            return Step::Fail(ShedReason::Deadline);
        }
        let credited = self.credits(now) > 0;
        if !credited
            && (!self.level(now).passes_after(request.priority, came_by, &mut self.carry) || self.holds_back(now))
        {
            return Step::Fail(ShedReason::NoCredit);
        }
        self.in_flight += 1;
        if self.unheard == 0 {
            self.quiet_since = now;
        }
        self.unheard = (self.unheard + 1).min(UNHEARD_OF);
        Step::Send(Ask {
            demand: 0,
            exact: false,
            credited,
            aware: true,
            priority: request.priority,
            claimed: None,
            tenant: self.tenant,
            budget,
            round_trip: Duration::from_nanos(self.round_trip_ns.into()),
            chance: 0,
            group: 0,
        })
    }

    fn level_below(&self, now: Instant) -> Option<u32> {
        Some(self.level(now).to_wire())
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.hear(now);
        let response_us = u32::try_from(reply.response_time.as_micros()).unwrap_or(u32::MAX);
        self.longest_us = response_us.max(1).max(self.longest_us - self.longest_us / 8);
        let served = reply.outcome == Outcome::Served;
        if served {
            let took_ms = u16::try_from(response_us / 1_000).unwrap_or(u16::MAX);
            self.slow_ms = took_ms.max(self.slow_ms - self.slow_ms / SLOW_FADES);
        }
        let Some(grant) = &reply.grant else {
            // How long its server worked is not said. One that never says a level is left alone.
            if served && !self.aware {
                self.limit = u16::MAX;
            }
            return;
        };
        let (way_ns, server_ns) =
            (short(reply.response_time.saturating_sub(reply.server_time)), short(reply.server_time));
        self.watch_the_way(way_ns, server_ns);
        self.round_trip_ns = shortest(self.round_trip_ns, way_ns);
        if served {
            self.answer_ns = shortest(self.answer_ns, short(reply.response_time));
        }
        self.accept(grant, now.minus_nanos(nanos(reply.response_time)), now);
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.hear(now);
        self.accept(grant, now, now);
    }

    fn on_cancel(&mut self, _: CallId, _: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    fn on_elsewhere(&mut self, id: CallId, now: Instant) {
        self.unheard = self.unheard.saturating_sub(1);
        self.on_cancel(id, now);
    }

    fn is_silent(&self, now: Instant) -> bool {
        let is_long_quiet = self.unheard >= UNANSWERED && now.since(self.quiet_since) >= self.patience();
        self.aware && (self.unheard >= UNHEARD_OF || is_long_quiet)
    }

    fn another(&self) -> Option<Self> {
        Some(Self::fresh(self.tenant, self.carry))
    }

    fn adopt(&mut self) {
        self.in_flight += 1;
    }

    fn chance(&self, priority: Priority, now: Instant) -> f64 {
        self.level(now).chance(priority)
    }

    fn on_lost(&mut self, _: Instant) {
        // Whoever answers next may be another, elsewhere.
        *self = Self::fresh(self.tenant, self.carry);
    }
}

fn short(time: Duration) -> u32 {
    u32::try_from(nanos(time)).unwrap_or(u32::MAX)
}

/// The shortest time with a new sample: what waiting adds must not make it longer. It creeps up, should it have become longer
/// for good, and hardly while that is most likely a crowd.
fn shortest(shortest: u32, sample: u32) -> u32 {
    match shortest {
        0 => sample.max(1),
        _ if sample > shortest.saturating_mul(CROWDED) => shortest + (sample - shortest).div_ceil(65_536),
        _ if sample > shortest => shortest + (sample - shortest).div_ceil(1024),
        _ => sample.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(10);
    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn new() -> CreditClient {
        CreditClient::new(Tenant(0), &mut Rng::new(1))
    }

    fn sends(client: &mut CreditClient, calls: u64, now: Instant) -> u32 {
        let before = client.in_flight();
        for call in 0..calls {
            let request = Request { id: CallId(call), priority: Priority::DEFAULT, deadline: None };
            client.on_call(&request, now, &mut Rng::new(1));
        }
        client.in_flight() - before
    }

    /// Of the milliseconds of `when` those in which one of many calls is sent at least.
    fn asked(client: &mut CreditClient, when: impl Iterator<Item = u64>) -> Vec<u64> {
        when.filter(|ms| sends(client, 500, at(*ms)) > 0).collect()
    }

    fn reply(client: &mut CreditClient, grant: Option<Grant>, times: [Duration; 2], now: Instant) {
        let [response_time, server_time] = times;
        client.on_reply(&Reply { id: CallId(0), outcome: Outcome::Served, grant, response_time, server_time }, now);
    }

    /// A server without the scheme answers.
    fn answer(client: &mut CreditClient, now: Instant) {
        reply(client, None, [LEASE, Duration::ZERO], now);
    }

    /// A server that has time answers, after `times` there and back and in all of that in itself.
    fn open(client: &mut CreditClient, times: [Duration; 2], now: Instant) {
        reply(client, Some(Grant { window: 0, level: Level::OPEN.to_wire(), lease: LEASE }), times, now);
    }

    /// One whose server has time and is near.
    fn heard() -> CreditClient {
        let mut client = new();
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        open(&mut client, [MS, MS], at(1));
        client
    }

    fn tell(client: &mut CreditClient, window: u32, response_time: Duration, now: Instant) {
        let level = Level::at(Priority::DEFAULT, 0.25).to_wire();
        reply(client, Some(Grant { window, level, lease: LEASE }), [response_time, Duration::ZERO], now);
    }

    #[test]
    fn a_level_that_took_longer_than_its_lease_holds_and_its_credits_do_not() {
        let mut client = new();
        tell(&mut client, 5, 3 * LEASE, at(100));
        assert_eq!((client.credits(at(100)), sends(&mut client, 8, at(100))), (0, 2));
        assert_eq!(sends(&mut client, 8, at(110)), 8, "its lease is over");
    }

    #[test]
    fn a_client_that_was_never_answered_makes_so_many_calls_and_then_asks_again_each_second() {
        let mut client = new();
        assert_eq!(sends(&mut client, 1_000, at(0)), u32::from(UNHEARD));
        assert_eq!(asked(&mut client, (100..5_000).step_by(100)), [1_000, 2_000, 3_000, 4_000]);
        answer(&mut client, at(10));
        assert_eq!(sends(&mut client, 1_000, at(10)), 1_000);
    }

    #[test]
    fn a_level_outlives_its_lease_while_many_calls_are_unanswered_and_a_word_may_be_due() {
        let mut client = new();
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        tell(&mut client, 0, LEASE, at(10));
        assert_eq!(sends(&mut client, 16 + 400, at(20)), 16 + 100);
        (0..101).for_each(|call| client.on_cancel(CallId(call), at(30)));
        assert_eq!((client.in_flight(), sends(&mut client, 1, at(30))), (15, 1));
        assert!(client.level(at(1_019)) < Level::OPEN);
        assert_eq!(client.level(at(1_020)), Level::OPEN);
    }

    #[test]
    fn a_server_that_fell_silent_is_only_asked_from_time_to_time() {
        let mut client = heard();
        assert_eq!(sends(&mut client, 500, at(10)), 500);
        assert_eq!(sends(&mut client, 500, at(1_009)), 500, "a second after the first that it did not answer");
        // Calls that are given up are no word.
        (0..1_000).for_each(|call| client.on_cancel(CallId(call), at(1_009)));
        assert_eq!(asked(&mut client, 1_010..4_000), [1_010, 2_010, 3_010]);
        open(&mut client, [MS, MS], at(4_000));
        assert_eq!(sends(&mut client, 500, at(4_900)), 500, "one word is enough");
    }

    #[test]
    fn a_server_whose_calls_take_five_seconds_is_not_silent_while_they_do() {
        let mut client = heard();
        assert_eq!(sends(&mut client, 1, at(1)), 1);
        open(&mut client, [5_000 * MS, 5_000 * MS], at(5_001));
        // Quick answers beside it, and refusals by the hundred, do not make it a quick server.
        assert_eq!(sends(&mut client, 550, at(5_001)), 550);
        (0..50).for_each(|_| open(&mut client, [MS, MS], at(5_002)));
        let level = Some(Grant { window: 0, level: Level::OPEN.to_wire(), lease: LEASE });
        let shed = Reply { id: CallId(0), outcome: Outcome::Shed, grant: level, response_time: MS, server_time: MS };
        (0..500).for_each(|_| client.on_reply(&shed, at(5_002)));
        assert_eq!(asked(&mut client, (5_003..13_000).step_by(1_000)).len(), 8);
        // Twice what they take is too long.
        assert_eq!(sends(&mut client, 500, at(16_000)), 1);
        assert_eq!(sends(&mut client, 500, at(16_500)), 0);
    }

    #[test]
    fn slow_calls_are_forgotten_when_they_are_over() {
        let mut client = heard();
        assert_eq!(sends(&mut client, 1, at(1)), 1);
        open(&mut client, [5_000 * MS, 5_000 * MS], at(5_001));
        for call in 0..2_000 {
            assert_eq!(sends(&mut client, 1, at(6_000 + call)), 1);
            open(&mut client, [MS, MS], at(6_001 + call));
        }
        assert_eq!(sends(&mut client, 500, at(9_000)), 500);
        assert_eq!(asked(&mut client, 9_999..12_100), [9_999, 10_000, 11_000, 12_000]);
    }

    #[test]
    fn without_a_word_so_many_calls_are_sent_and_no_more() {
        let mut client = heard();
        assert_eq!(sends(&mut client, 10_000, at(1)), u32::from(UNHEARD_OF));
    }

    #[test]
    fn calls_that_wait_on_a_crowded_way_hold_others_back_until_it_is_free() {
        let mut client = new();
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        open(&mut client, [MS, Duration::ZERO], at(1));
        assert_eq!(sends(&mut client, 500, at(1)), 500, "the way is free");
        (0..400).for_each(|_| open(&mut client, [12 * MS, Duration::ZERO], at(13)));
        assert_eq!(sends(&mut client, 500, at(13)), 0);
        (0..84).for_each(|_| open(&mut client, [12 * MS, Duration::ZERO], at(14)));
        assert_eq!((client.in_flight(), sends(&mut client, 500, at(14))), (16, 0));
        (0..2).for_each(|_| open(&mut client, [2 * MS, Duration::ZERO], at(15)));
        assert_eq!(sends(&mut client, 500, at(15)), 10);
    }

    #[test]
    fn a_rush_before_the_first_answer_must_be_over_before_more_is_sent() {
        let mut client = new();
        assert_eq!(sends(&mut client, 256, at(0)), 256);
        (0..240).for_each(|_| open(&mut client, [30 * MS, MS], at(30)));
        assert_eq!((client.in_flight(), sends(&mut client, 500, at(30))), (16, 0));
        open(&mut client, [30 * MS, MS], at(31));
        assert_eq!(sends(&mut client, 500, at(31)), 5);
    }

    #[test]
    fn calls_that_wait_in_the_server_do_not_hold_others_back() {
        let mut client = new();
        assert_eq!(sends(&mut client, 20, at(0)), 20, "these wait for news, which take their time");
        assert_eq!(sends(&mut client, 1, at(0)), 1);
        open(&mut client, [2 * MS, MS], at(2));
        for later in (1_000..100_000).step_by(1_000) {
            assert_eq!(sends(&mut client, 5, at(later)), 5);
            (0..5).for_each(|_| open(&mut client, [2 * MS, MS], at(later + 2)));
        }
    }

    #[test]
    fn calls_that_were_lost_on_a_crowded_way_shut_nothing_for_good() {
        let mut client = new();
        assert_eq!(sends(&mut client, 256, at(0)), 256);
        (0..240).for_each(|_| open(&mut client, [30 * MS, MS], at(30)));
        assert_eq!(asked(&mut client, 31..200), [90, 150]);
        client.on_lost(at(200));
        assert_eq!(sends(&mut client, 256, at(200)), 256);
    }

    #[test]
    fn a_rush_after_a_long_rest_is_not_silence_of_the_server() {
        assert_eq!(sends(&mut heard(), 1_000, at(60_000)), 1_000);
    }

    #[test]
    fn the_shortest_creeps_up_however_short_it_is() {
        let longer = (0..200_000).fold(6_000, |so_far, _| shortest(so_far, 55_000));
        assert_eq!((longer, shortest(longer, 5_000)), (55_000, 5_000));
    }

    #[test]
    fn an_idle_client_takes_64_bytes_at_most() {
        assert!(size_of::<CreditClient>() <= 64, "{}", size_of::<CreditClient>());
    }
}

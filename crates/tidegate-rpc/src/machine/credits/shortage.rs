//! Whether the cores are short, or what is behind the handlers, from shares of the cores' time.

use tidegate_core::Instant;

use crate::machine::short::Shortage;

/// Time over which shares are averaged. A person who looks wants to see what is so now.
const MEMORY_NS: f64 = 1e9;
/// Another shortage must show for so long before it is believed: chance alone makes some ticks look otherwise.
const BELIEVED_NS: u64 = 1_000_000_000;
/// Without a tick for so long, and without calls, nothing is short.
const QUIET_NS: u64 = 2_000_000_000;
/// Cores that idle for less than this share of their time are busy.
const BUSY: f64 = 0.1;
/// Share of the cores' time for which calls must be held back for places to be short while clients are held back, and for
/// places to be short whatever clients do: at 0.8 of its capacity a pool of one already holds back for 0.16 of the time.
const HELD: f64 = 0.02;
const HELD_MOSTLY: f64 = 0.5;
/// Share of the calls that must be refused by busy cores for them to be short although clients are not held back: a little more
/// than fits is let through always.
const REFUSED: f64 = 0.01;
/// Share of the cores' time that messages take when they are what is short.
const MESSAGES: f64 = 0.5;

/// The shares of one tick, and what it found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// Time that the tick stands for, in nanoseconds.
    pub(super) elapsed_ns: f64,
    /// Of the cores' time: without work, without work although calls waited, and spent on messages.
    pub(super) idle: f64,
    pub(super) held: f64,
    pub(super) messages: f64,
    /// Of the calls that arrived: refused.
    pub(super) refused: f64,
    /// Whether clients are held back.
    pub(super) throttled: bool,
}

/// What is said of the server when somebody asks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Believed {
    pub(super) what: Shortage,
    pub(super) since: Instant,
    pub(super) idle: f64,
    pub(super) held: f64,
    pub(super) messages: f64,
}

/// What is short, as ticks tell.
#[derive(Clone, Debug)]
pub(super) struct ShortageNow {
    idle: f64,
    held: f64,
    messages: f64,
    refused: f64,
    what: Shortage,
    since: Instant,
    /// Something else that shows, and since when.
    other: Option<(Shortage, Instant)>,
    ticked: Instant,
}

impl ShortageNow {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            idle: 1.0,
            held: 0.0,
            messages: 0.0,
            refused: 0.0,
            what: Shortage::Nothing,
            since: now,
            other: None,
            ticked: now,
        }
    }

    /// A tick ended at `now`.
    pub(super) fn on_tick(&mut self, shares: Shares, now: Instant) {
        let weight = shares.elapsed_ns / (shares.elapsed_ns + MEMORY_NS);
        self.idle += weight * (shares.idle - self.idle);
        self.held += weight * (shares.held - self.held);
        self.refused += weight * (shares.refused - self.refused);
        self.messages = shares.messages;
        let began = self.ticked;
        self.ticked = now;
        let what = self.shows(shares.throttled);
        if what == self.what {
            self.other = None;
            return;
        }
        let since = self.other.filter(|(other, _)| *other == what).map_or(began, |(_, since)| since);
        self.other = Some((what, since));
        if now.nanos_since(since) >= BELIEVED_NS {
            (self.what, self.since, self.other) = (what, since, None);
        }
    }

    fn shows(&self, throttled: bool) -> Shortage {
        let Self { idle, held, messages, refused, .. } = *self;
        match throttled || (refused > REFUSED && idle < BUSY) {
            true if messages > MESSAGES => Shortage::Messages,
            true if held > HELD && idle + held < BUSY => Shortage::Both,
            true if held > HELD => Shortage::Behind,
            true => Shortage::Cores,
            false if held > HELD_MOSTLY => Shortage::Behind,
            false => Shortage::Nothing,
        }
    }

    /// Whether no tick came for a while.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        now.nanos_since(self.ticked) > QUIET_NS
    }

    /// What is short at `now`; `is_empty` if no call waits or runs.
    pub(super) fn at(&self, is_empty: bool, now: Instant) -> Believed {
        let Self { idle, held, messages, what, since, .. } = *self;
        if is_empty && self.is_quiet(now) {
            let since = if what == Shortage::Nothing { since } else { self.ticked };
            return Believed { what: Shortage::Nothing, since, idle: 1.0, held: 0.0, messages: 0.0 };
        }
        Believed { what, since, idle, held, messages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of 50 ms for so long, each with these shares.
    fn run(now: &mut u64, state: &mut ShortageNow, ms: u64, idle: f64, held: f64, throttled: bool) -> Shortage {
        for _ in 0..ms / 50 {
            *now += 50_000_000;
            let shares = Shares { elapsed_ns: 5e7, idle, held, messages: 0.1, refused: 0.0, throttled };
            state.on_tick(shares, Instant::from_nanos(*now));
        }
        state.at(false, Instant::from_nanos(*now)).what
    }

    #[test]
    fn idle_cores_and_waiting_calls_tell_what_is_short() {
        let (mut now, mut state) = (0, ShortageNow::new(Instant::ZERO));
        assert_eq!(run(&mut now, &mut state, 5_000, 0.4, 0.1, false), Shortage::Nothing);
        assert_eq!(run(&mut now, &mut state, 8_000, 0.01, 0.0, true), Shortage::Cores);
        assert_eq!(run(&mut now, &mut state, 8_000, 0.0, 0.7, true), Shortage::Behind);
        assert_eq!(run(&mut now, &mut state, 8_000, 0.01, 0.05, true), Shortage::Both);
        assert_eq!(run(&mut now, &mut state, 8_000, 0.9, 0.0, false), Shortage::Nothing);
    }

    #[test]
    fn busy_cores_that_refuse_calls_are_short_although_nobody_is_held_back() {
        let (mut now, mut state) = (0, ShortageNow::new(Instant::ZERO));
        for (idle, what) in [(0.0, Shortage::Cores), (0.5, Shortage::Nothing)] {
            for _ in 0..200 {
                now += 50_000_000;
                let shares = Shares { elapsed_ns: 5e7, idle, held: 0.0, messages: 0.1, refused: 0.1, throttled: false };
                state.on_tick(shares, Instant::from_nanos(now));
            }
            assert_eq!(state.at(false, Instant::from_nanos(now)).what, what, "idle for {idle} of the time");
        }
    }

    #[test]
    fn what_shows_for_less_than_a_second_is_not_believed() {
        let (mut now, mut state) = (0, ShortageNow::new(Instant::ZERO));
        for _ in 0..100 {
            assert_eq!(run(&mut now, &mut state, 900, 0.01, 0.0, true), Shortage::Nothing);
            assert_eq!(run(&mut now, &mut state, 100, 0.01, 0.0, false), Shortage::Nothing);
        }
        assert_eq!(run(&mut now, &mut state, 1_100, 0.01, 0.0, true), Shortage::Cores);
        let since = state.at(false, Instant::from_nanos(now)).since;
        assert_eq!(since, Instant::from_nanos(now - 1_100_000_000), "since it first showed");
    }

    #[test]
    fn an_empty_server_lacks_nothing_although_no_call_says_so() {
        let (mut now, mut state) = (0, ShortageNow::new(Instant::ZERO));
        run(&mut now, &mut state, 5_000, 0.0, 0.0, true);
        let later = Instant::from_nanos(now + 3_000_000_000);
        let believed = state.at(true, later);
        assert_eq!((believed.what, believed.since), (Shortage::Nothing, Instant::from_nanos(now)));
        assert_eq!(state.at(false, later).what, Shortage::Cores);
    }
}

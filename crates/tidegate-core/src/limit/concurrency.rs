//! A bound on how many things are under way at once.

use core::time::Duration;
use std::collections::VecDeque;

use crate::Instant;

/// What a [`ConcurrencyLimit`] allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct ConcurrencyConfig {
    /// Items under way at once.
    pub limit: u32,
    /// Items that may wait for a slot.
    pub queue: u32,
    /// How long one may wait before it is turned away; whoever asked has given up by then.
    pub max_age: Duration,
}

/// Lets `limit` items run at once; the next ones wait in order of arrival, no longer than `max_age`.
///
/// Each item that starts, whether from [`on_arrival`](Self::on_arrival) or from the queue, holds a slot until
/// [`on_done`](Self::on_done). Every step is O(1), but for a cancellation, which closes the gap in the bounded queue.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit<T> {
    config: ConcurrencyConfig,
    in_flight: u32,
    /// In order of arrival, and so of tickets.
    queue: VecDeque<Waiting<T>>,
    next_ticket: u64,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    ticket: Ticket,
    arrival: Instant,
    item: T,
}

/// The answer to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission<T> {
    /// A slot was free; it is held now.
    Start(T),
    /// It waits; the ticket cancels it.
    Queued(Ticket),
    /// The queue is full; the item comes back.
    Shed(T),
}

/// What became of an item that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<T> {
    /// It got a slot and holds it.
    Start {
        /// What waited.
        item: T,
        /// From its arrival to now.
        queueing_delay: Duration,
    },
    /// It reached `max_age` and is turned away.
    Expired(T),
}

/// Names one waiting item; harmless once it no longer waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

impl<T> ConcurrencyLimit<T> {
    /// Nothing runs and nothing waits.
    #[must_use]
    pub fn new(config: ConcurrencyConfig) -> Self {
        Self { config, in_flight: 0, queue: VecDeque::new(), next_ticket: 0 }
    }

    /// What is allowed.
    #[must_use]
    pub fn config(&self) -> ConcurrencyConfig {
        self.config
    }

    /// Puts `config` in force. Nothing that runs or waits is turned away; drain [`poll_output`](Self::poll_output).
    pub fn set_config(&mut self, config: ConcurrencyConfig) {
        self.config = config;
    }

    /// Items that hold a slot.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Items that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// An item wants to start. It never overtakes one that waits.
    pub fn on_arrival(&mut self, item: T, now: Instant) -> Admission<T> {
        if self.in_flight < self.config.limit && self.queue.is_empty() {
            self.in_flight += 1;
            return Admission::Start(item);
        }
        self.on_arrival_in_line(item, now)
    }

    /// An item wants to start and needs more than a slot, which the caller knows not to be there: it waits even if one
    /// is free. While somebody waits so, [`poll_output`](Self::poll_output) is called only when he has all he needs, or
    /// at [`next_timeout`](Self::next_timeout).
    pub fn on_arrival_in_line(&mut self, item: T, now: Instant) -> Admission<T> {
        if self.queue.len() >= self.config.queue as usize {
            return Admission::Shed(item);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // Time that steps back makes nobody older than the one ahead, so that the head is always the oldest.
        let arrival = self.queue.back().map_or(now, |last| last.arrival.max(now));
        self.queue.push_back(Waiting { ticket, arrival, item });
        Admission::Queued(ticket)
    }

    /// An item that held a slot is done; its slot is for the next in line: drain [`poll_output`](Self::poll_output).
    ///
    /// # Panics
    /// If nothing is under way.
    pub fn on_done(&mut self) {
        self.in_flight = self.in_flight.checked_sub(1).expect("only what was started can be done");
    }

    /// Takes an item out of the queue; `None` if it no longer waits.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let place = self.queue.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        self.queue.remove(place).map(|waiting| waiting.item)
    }

    /// When the head of the queue came; `None` if nothing waits.
    #[must_use]
    pub fn head_arrival(&self) -> Option<Instant> {
        self.queue.front().map(|head| head.arrival)
    }

    /// When the head of the queue reaches its age; `None` if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|head| head.arrival + self.config.max_age)
    }

    /// What became of those that waited, up to `now`; call until `None` after every other event and timeout.
    pub fn poll_output(&mut self, now: Instant) -> Option<Output<T>> {
        let expired = self.next_timeout()? <= now;
        if !expired && self.in_flight >= self.config.limit {
            return None;
        }
        let Waiting { arrival, item, .. } = self.queue.pop_front()?;
        if expired {
            return Some(Output::Expired(item));
        }
        self.in_flight += 1;
        Some(Output::Start { item, queueing_delay: now - arrival })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn limiter(limit: u32, queue: u32, max_age_ms: u64) -> ConcurrencyLimit<u32> {
        ConcurrencyLimit::new(ConcurrencyConfig { limit, queue, max_age: Duration::from_millis(max_age_ms) })
    }

    #[test]
    fn the_next_in_line_starts_when_a_slot_frees() {
        let mut limiter = limiter(1, 2, 100);
        assert_eq!(limiter.on_arrival(0, at(0)), Admission::Start(0));
        assert!(matches!(limiter.on_arrival(1, at(1)), Admission::Queued(_)));
        assert!(matches!(limiter.on_arrival(2, at(2)), Admission::Queued(_)));
        assert_eq!(limiter.on_arrival(3, at(3)), Admission::Shed(3));
        assert_eq!(limiter.poll_output(at(4)), None);
        limiter.on_done();
        let start = Output::Start { item: 1, queueing_delay: Duration::from_millis(4) };
        assert_eq!((limiter.poll_output(at(5)), limiter.poll_output(at(5))), (Some(start), None));
    }

    #[test]
    fn whoever_waits_too_long_is_turned_away_before_a_slot_is_spent_on_it() {
        let mut limiter = limiter(1, 9, 10);
        limiter.on_arrival(0, at(0));
        limiter.on_arrival(1, at(5));
        limiter.on_arrival(2, at(6));
        assert_eq!(limiter.next_timeout(), Some(at(15)));
        limiter.on_done();
        assert_eq!(limiter.poll_output(at(15)), Some(Output::Expired(1)));
        assert!(matches!(limiter.poll_output(at(15)), Some(Output::Start { item: 2, .. })));
        assert_eq!((limiter.in_flight(), limiter.next_timeout()), (1, None));
    }

    #[test]
    fn a_ticket_cancels_its_own_item_and_no_later_one() {
        let mut limiter = limiter(0, 2, 10);
        let Admission::Queued(first) = limiter.on_arrival(1, at(0)) else { panic!("it waits") };
        assert_eq!(limiter.cancel(first), Some(1));
        limiter.on_arrival(2, at(0));
        assert_eq!((limiter.cancel(first), limiter.queued()), (None, 1));
    }

    #[test]
    fn a_raised_limit_starts_those_who_wait() {
        let mut limiter = limiter(0, 5, 10);
        limiter.on_arrival(1, at(0));
        limiter.set_config(ConcurrencyConfig { limit: 1, ..limiter.config() });
        assert!(matches!(limiter.on_arrival(2, at(0)), Admission::Queued(_)), "nobody overtakes");
        assert!(matches!(limiter.poll_output(at(0)), Some(Output::Start { item: 1, .. })));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_order_is_kept(
            steps in proptest::collection::vec((0u8..4, 0u64..8), 1..200),
            limit in 0u32..4,
            queue in 0u32..6,
        ) {
            let mut limiter = limiter(limit, queue, 20);
            let (mut now, mut tickets, mut waiting, mut running) = (0, Vec::new(), Vec::new(), 0u32);
            for (item, (step, value)) in (0u32..).zip(steps) {
                now += value;
                match step {
                    0 | 1 => match limiter.on_arrival(item, at(now)) {
                        Admission::Start(started) => {
                            prop_assert!(started == item && waiting.is_empty());
                            running += 1;
                        }
                        Admission::Queued(ticket) => {
                            tickets.push((ticket, item));
                            waiting.push(item);
                        }
                        Admission::Shed(shed) => prop_assert!(shed == item && waiting.len() >= queue as usize),
                    },
                    2 if running > 0 => {
                        limiter.on_done();
                        running -= 1;
                    }
                    3 if !tickets.is_empty() => {
                        let (ticket, item) = tickets[usize::try_from(value).unwrap() % tickets.len()];
                        let place = waiting.iter().position(|&other| other == item);
                        prop_assert_eq!(limiter.cancel(ticket), place.map(|place| waiting.remove(place)));
                    }
                    _ => {}
                }
                while let Some(output) = limiter.poll_output(at(now)) {
                    let (Output::Start { item, .. } | Output::Expired(item)) = output;
                    prop_assert_eq!(item, waiting.remove(0));
                    running += u32::from(matches!(output, Output::Start { .. }));
                }
                prop_assert!(running <= limit && limiter.in_flight() == running);
                prop_assert!(waiting.is_empty() || running == limit, "a slot is free and somebody waits");
                prop_assert!(limiter.next_timeout().is_none_or(|timeout| timeout > at(now)));
            }
        }
    }
}

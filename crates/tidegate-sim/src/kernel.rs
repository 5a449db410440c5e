//! The clock and the queue of events.

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::BinaryHeap;

use tidegate_core::{Instant, Rng};

use crate::trace::TraceHash;

/// What a simulation may use before it counts as run away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Events handled in all.
    pub events: u64,
    /// Events waiting at any time.
    pub queued: usize,
}

impl Default for Bounds {
    /// Ten million events, a million of them at a time: a minute of CPU and a few hundred MiB at most.
    fn default() -> Self {
        Self { events: 10_000_000, queued: 1_000_000 }
    }
}

/// A simulation did not end within its [`Bounds`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Overrun {
    /// Too many events were handled.
    #[error("the simulation was stopped at {at:?} after {events} events")]
    Events {
        /// The bound.
        events: u64,
        /// The simulated time.
        at: Instant,
    },
    /// Too many events waited; the newest was not queued.
    #[error("the simulation was stopped at {at:?} with {queued} events waiting")]
    Queued {
        /// The bound.
        queued: usize,
        /// The simulated time.
        at: Instant,
    },
}

/// A virtual clock and the events to come, of the type `E` that the caller chooses.
///
/// Events are handled in order of time; those of one instant in the order in which they were scheduled. Everything
/// handled goes into the trace. O(log n) for each event, n of them waiting.
#[derive(Debug)]
pub struct Simulation<E> {
    seed: u64,
    now: Instant,
    queue: BinaryHeap<Scheduled<E>>,
    /// Number of events ever scheduled: the tie breaker.
    scheduled: u64,
    handled: u64,
    bounds: Bounds,
    overrun: Option<Overrun>,
    trace: TraceHash,
}

impl<E: Hash> Simulation<E> {
    /// A clock at [`Instant::ZERO`] with nothing to come.
    #[must_use]
    pub fn new(seed: u64, bounds: Bounds) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            queue: BinaryHeap::new(),
            scheduled: 0,
            handled: 0,
            bounds,
            overrun: None,
            trace: TraceHash::new(),
        }
    }

    /// The simulated time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The random numbers of one part of the model: streams of different `part`s are independent, so that a part that
    /// draws more does not change the others.
    #[must_use]
    pub fn rng(&self, part: u64) -> Rng {
        Rng::stream(self.seed, part)
    }

    /// `event` happens at `at`, or now if that is past.
    pub fn at(&mut self, at: Instant, event: E) {
        if self.queue.len() >= self.bounds.queued {
            self.overrun = Some(Overrun::Queued { queued: self.bounds.queued, at: self.now });
            return;
        }
        self.queue.push(Scheduled { at: at.max(self.now), order: self.scheduled, event });
        self.scheduled += 1;
    }

    /// `event` happens `delay` from now.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// The next event not after `end`, with the clock moved to it; `None`, with the clock at `end`, if there is none.
    ///
    /// # Errors
    /// [`Overrun`] if a bound was reached.
    pub fn next_until(&mut self, end: Instant) -> Result<Option<E>, Overrun> {
        if let Some(overrun) = self.overrun {
            return Err(overrun);
        }
        if self.queue.peek().is_none_or(|next| next.at > end) {
            self.now = self.now.max(end);
            return Ok(None);
        }
        if self.handled >= self.bounds.events {
            return Err(Overrun::Events { events: self.bounds.events, at: self.now });
        }
        Ok(self.queue.pop().map(|next| {
            self.now = next.at;
            self.handled += 1;
            self.trace.write_u64(next.at.as_nanos());
            next.event.hash(&mut self.trace);
            next.event
        }))
    }

    /// Hands every event up to `end` to `handle`, which may schedule more.
    ///
    /// # Errors
    /// [`Overrun`] if a bound was reached.
    pub fn run_until(&mut self, end: Instant, mut handle: impl FnMut(&mut Self, E)) -> Result<(), Overrun> {
        while let Some(event) = self.next_until(end)? {
            handle(self, event);
        }
        Ok(())
    }

    /// Adds an observation that is no event, such as a decision, to the trace.
    pub fn note(&mut self, observation: impl Hash) {
        observation.hash(&mut self.trace);
    }

    /// The hash of everything handled and noted so far.
    #[must_use]
    pub fn trace(&self) -> TraceHash {
        self.trace
    }

    /// Number of events handled so far.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled
    }
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Instant,
    order: u64,
    event: E,
}

impl<E> Ord for Scheduled<E> {
    /// The earliest is the greatest, since a binary heap yields the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<E> Eq for Scheduled<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ties_are_handled_in_the_order_of_scheduling() {
        let mut simulation = Simulation::new(1, Bounds::default());
        for event in 0..100u32 {
            simulation.at(Instant::from_nanos(u64::from(event % 3)), event);
        }
        let mut seen = Vec::new();
        simulation.run_until(Instant::MAX, |simulation, event| seen.push((simulation.now(), event))).unwrap();
        assert!(seen.is_sorted());
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn what_is_scheduled_for_the_past_happens_now() {
        let mut simulation = Simulation::new(1, Bounds::default());
        simulation.after(SECOND, "late");
        simulation
            .run_until(Instant::MAX, |simulation, event| {
                assert_eq!(simulation.now(), Instant::ZERO + SECOND);
                if event == "late" {
                    simulation.at(Instant::ZERO, "past");
                }
            })
            .unwrap();
        assert_eq!(simulation.handled(), 2);
    }

    #[test]
    fn the_clock_stops_at_the_end_and_goes_on_from_there() {
        let mut simulation = Simulation::new(1, Bounds::default());
        simulation.after(SECOND * 3, ());
        assert_eq!(simulation.next_until(Instant::ZERO + SECOND), Ok(None));
        assert_eq!(simulation.now(), Instant::ZERO + SECOND);
        assert_eq!(simulation.next_until(Instant::ZERO + SECOND * 3), Ok(Some(())));
    }

    #[test]
    fn a_runaway_is_stopped() {
        let mut simulation = Simulation::new(1, Bounds { events: 5, queued: 2 });
        simulation.after(SECOND, ());
        let stopped = simulation.run_until(Instant::MAX, |simulation, ()| simulation.after(SECOND, ()));
        assert_eq!(stopped, Err(Overrun::Events { events: 5, at: Instant::ZERO + SECOND * 5 }));

        let mut simulation = Simulation::new(1, Bounds { events: 5, queued: 2 });
        (0..3).for_each(|_| simulation.after(SECOND, ()));
        assert_eq!(simulation.next_until(Instant::MAX), Err(Overrun::Queued { queued: 2, at: Instant::ZERO }));
    }

    fn random_walk(seed: u64) -> TraceHash {
        let mut simulation = Simulation::new(seed, Bounds::default());
        let mut rng = simulation.rng(0);
        simulation.after(SECOND, 0u64);
        simulation
            .run_until(Instant::ZERO + SECOND * 1_000, |simulation, step| {
                simulation.after(Duration::from_nanos(rng.below(2_000_000_000)), step + 1);
            })
            .unwrap();
        simulation.trace()
    }

    #[test]
    fn one_seed_one_trace() {
        assert_eq!(random_walk(3), random_walk(3));
        assert_ne!(random_walk(3), random_walk(4));
    }
}

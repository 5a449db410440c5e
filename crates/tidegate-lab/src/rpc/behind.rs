//! What handlers wait for before they compute: a delay, or a place in something that has few.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::{Instant, Rng};

use super::scenario::Behind;

/// Calls that wait for something else than a core, by slot.
#[derive(Debug)]
pub(super) struct Waits {
    behind: Behind,
    mean_ns: f64,
    taken: u32,
    /// Calls without a place, in order of arrival.
    queue: VecDeque<u32>,
    ends: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Waits {
    pub(super) fn new(behind: Behind) -> Self {
        let mean_ns = behind.service.mean.as_secs_f64() * 1e9;
        Self { behind, mean_ns, taken: 0, queue: VecDeque::new(), ends: BinaryHeap::new() }
    }

    /// When the next one goes on.
    #[inline]
    pub(super) fn next_at(&self) -> Instant {
        self.ends.peek().map_or(Instant::MAX, |Reverse((at, _))| *at)
    }

    /// A handler begins to wait.
    pub(super) fn push(&mut self, slot: u32, now: Instant, rng: &mut Rng) {
        self.queue.push_back(slot);
        self.serve(now, rng);
    }

    /// The one that goes on at `now`.
    pub(super) fn pop(&mut self, now: Instant, rng: &mut Rng) -> Option<u32> {
        let Reverse((_, slot)) = self.ends.pop()?;
        self.taken -= 1;
        self.serve(now, rng);
        Some(slot)
    }

    fn serve(&mut self, now: Instant, rng: &mut Rng) {
        while self.behind.places.is_none_or(|places| self.taken < places)
            && let Some(slot) = self.queue.pop_front()
        {
            self.taken += 1;
            let ns = self.behind.service.sample_ns(self.mean_ns, rng);
            self.ends.push(Reverse((now.plus_nanos(ns), slot)));
        }
    }

    /// Everything that waited is gone.
    pub(super) fn clear(&mut self) {
        self.taken = 0;
        self.queue.clear();
        self.ends.clear();
    }
}

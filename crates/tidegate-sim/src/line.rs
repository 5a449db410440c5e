//! Arrivals through a production gate, as fast as it goes.

use tidegate_core::Instant;
use tidegate_core::limit::{Gate, Limit};

/// The core's [`Gate`], driven in virtual time without events: a message that joins a line knows when it will leave, as
/// long as the limit stays. A few nanoseconds for each message, so that 10^8 of them are a matter of seconds.
#[derive(Clone, Debug)]
pub struct Line {
    gate: Gate<()>,
}

impl Line {
    /// An empty line before a full bucket.
    ///
    /// # Panics
    /// If the rate or the burst is zero: then somebody would wait for ever.
    #[must_use]
    pub fn new(limit: Limit, now: Instant) -> Self {
        assert!(!limit.rate.is_zero() && limit.burst > 0, "a line moves: {limit:?}");
        Self { gate: Gate::new(limit, 1, now) }
    }

    /// When a message leaves that arrives at `at` and costs one token. Arrivals are told in order of time.
    #[inline]
    pub fn release(&mut self, at: Instant) -> Instant {
        self.gate.push((), 1, at).expect("the line is empty: whoever joined has left");
        self.gate.pop(Instant::MAX).expect("the rate is above zero").release
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_core::Rate;

    /// The same gate as a driver runs it: told of each arrival in time, and asked again at its time-outs.
    fn in_time(limit: Limit, arrivals: &[Instant]) -> Vec<Instant> {
        let mut gate = Gate::new(limit, u64::MAX, Instant::ZERO);
        let mut releases = Vec::new();
        for &at in arrivals {
            while let Some(due) = gate.next_timeout().filter(|&due| due < at) {
                releases.extend(gate.pop(due).map(|released| released.release));
            }
            gate.push((), 1, at).unwrap();
        }
        releases.extend(std::iter::from_fn(|| gate.pop(Instant::MAX)).map(|released| released.release));
        releases
    }

    proptest! {
        #[test]
        fn asking_ahead_changes_no_release(
            gaps in proptest::collection::vec(0u64..400_000, 1..200),
            tokens in 1u64..20_000,
            burst in 1u64..10,
        ) {
            let limit = Limit::new(Rate::per_s(tokens), burst);
            let mut at = 0;
            let arrivals: Vec<_> = gaps.iter().map(|gap| { at += gap; Instant::from_nanos(at) }).collect();
            let mut line = Line::new(limit, Instant::ZERO);
            let ahead: Vec<_> = arrivals.iter().map(|&at| line.release(at)).collect();
            prop_assert_eq!(ahead, in_time(limit, &arrivals));
        }
    }
}

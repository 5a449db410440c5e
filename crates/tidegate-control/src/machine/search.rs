//! How many publishers a node takes within its objective.

use super::types::{FitConfig, Slo};

/// What a measurement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Another number of publishers is to be measured.
    Goes,
    /// The search is over; the node keeps so many publishers.
    Ended(usize),
}

/// Whether the number that missed the objective is measured once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    None,
    Open,
    Settled,
}

/// A binary search between none and a number that missed the objective. Source: online fitting, §4.2 of the paper.
///
/// Departure: a measurement holds few of the rare moments in which a burst is used up, and one such moment fails a number
/// that would fit. If the search ends right below a number that missed, and what it found is far within the objective,
/// the number is measured once more. Else the next node gets the one or two publishers of difference, with a part of the
/// bucket that is smaller than a single batch of theirs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// The largest that met it.
    low: usize,
    /// The smallest that missed it.
    high: usize,
    doubt: Doubt,
}

impl Search {
    /// `failed` missed it; at least 1.
    pub(super) fn new(failed: usize) -> Self {
        Self { low: 0, high: failed.max(1), doubt: Doubt::None }
    }

    /// The number to try; `None` if a single one missed it.
    pub(super) fn next(&self) -> Option<usize> {
        if self.doubt == Doubt::Open {
            return Some(self.high);
        }
        (self.high - self.low > 1).then(|| usize::midpoint(self.low, self.high))
    }

    /// The number to try had this delay.
    pub(super) fn on_measured(&mut self, delay_us: f64, slo: Slo, fit: &FitConfig) -> Step {
        let Some(tried) = self.next() else { return Step::Ended(self.low) };
        let most = slo.within.as_secs_f64() * 1e6;
        let is_close = delay_us >= fit.accept_from * most;
        if self.doubt == Doubt::Open {
            self.doubt = Doubt::Settled;
            return Step::Ended(if delay_us <= most { tried } else { self.low });
        }
        if delay_us <= most {
            self.low = tried;
            if is_close {
                return Step::Ended(tried);
            }
        } else {
            self.high = tried;
        }
        if self.high - self.low == 1 && self.low == tried {
            self.doubt = Doubt::Open;
        }
        if self.next().is_some() { Step::Goes } else { Step::Ended(self.low) }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const SLO: Slo = Slo { quantile: 0.99, within: Duration::from_millis(1) };

    /// What is kept of 100, and after how many measurements, if `capacity` have a delay of the objective.
    fn found(capacity: f64) -> (usize, u32) {
        let mut search = Search::new(100);
        for round in 1.. {
            let Some(tried) = search.next() else { return (search.low, round - 1) };
            let delay_us = f64::from(u32::try_from(tried).unwrap()) / capacity * 1_000.0;
            if let Step::Ended(kept) = search.on_measured(delay_us, SLO, &FitConfig::default()) {
                return (kept, round);
            }
        }
        unreachable!("it ends")
    }

    #[test]
    fn it_ends_within_a_fifth_below_the_objective() {
        assert_eq!(found(55.0), (50, 1));
        assert_eq!(found(95.0), (87, 3));
        assert_eq!(found(30.0), (25, 2));
    }

    #[test]
    fn one_that_takes_none_keeps_none() {
        assert_eq!(found(0.5), (0, 6));
        assert_eq!(Search::new(1).next(), None);
    }

    #[test]
    fn a_number_that_missed_by_chance_is_measured_once_more() {
        let mut tried = Vec::new();
        let mut search = Search::new(100);
        let kept = loop {
            tried.push(search.next().unwrap());
            if let Step::Ended(kept) = search.on_measured(500.0, SLO, &FitConfig::default()) {
                break kept;
            }
        };
        assert_eq!((tried.as_slice(), kept), (&[50, 75, 87, 93, 96, 98, 99, 100][..], 100));
        // If it misses again, it stays out.
        let mut search = Search::new(2);
        assert_eq!(search.on_measured(500.0, SLO, &FitConfig::default()), Step::Goes);
        assert_eq!(search.next(), Some(2));
        assert_eq!(search.on_measured(1_500.0, SLO, &FitConfig::default()), Step::Ended(1));
    }
}

//! Which message goes to which part.

use tidegate_core::Rng;

use super::Assignment;

/// Picks parts in proportion to weights, at random or in turn.
#[derive(Clone, Debug)]
pub(super) struct Assigner {
    assignment: Assignment,
    /// Sums of the weights up to each part.
    up_to: Vec<u64>,
    /// In turn: what each part has got less than its due, in messages times the sum of weights.
    owed: Vec<i128>,
    weights: Vec<u64>,
    rng: Rng,
    current: usize,
}

impl Assigner {
    pub(super) fn new(assignment: Assignment, weights: Vec<u64>, rng: Rng) -> Self {
        let mut sum = 0;
        let up_to = weights
            .iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Self { assignment, up_to, owed: vec![0; weights.len()], weights, rng, current: 0 }
    }

    /// A batch begins.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        if self.assignment == Assignment::Batch && self.weights.len() > 1 {
            self.current = self.draw();
        }
    }

    /// The part of the next message.
    #[inline]
    pub(super) fn next(&mut self) -> usize {
        match self.assignment {
            _ if self.weights.len() == 1 => 0,
            Assignment::Batch => self.current,
            Assignment::Message => self.draw(),
            Assignment::Even => self.deal(),
        }
    }

    fn draw(&mut self) -> usize {
        let sum = self.up_to[self.up_to.len() - 1];
        let ticket = self.rng.below(sum);
        self.up_to.partition_point(|&up_to| up_to <= ticket)
    }

    /// The part that is owed most; the first of several.
    fn deal(&mut self) -> usize {
        for (owed, weight) in self.owed.iter_mut().zip(&self.weights) {
            *owed += i128::from(*weight);
        }
        let most = self.owed.iter().copied().max().unwrap_or(0);
        let part = self.owed.iter().position(|&owed| owed == most).unwrap_or(0);
        self.owed[part] -= i128::from(self.up_to[self.up_to.len() - 1]);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(assignment: Assignment, weights: &[u64], messages: usize) -> Vec<usize> {
        let mut assigner = Assigner::new(assignment, weights.to_vec(), Rng::new(1));
        let mut counts = vec![0; weights.len()];
        for message in 0..messages {
            if message % 2 == 0 {
                assigner.begin_batch();
            }
            counts[assigner.next()] += 1;
        }
        counts
    }

    #[test]
    fn dealing_is_exact_at_every_moment() {
        assert_eq!(counts(Assignment::Even, &[1, 1, 1], 7), [3, 2, 2]);
        assert_eq!(counts(Assignment::Even, &[3, 0, 1], 8), [6, 0, 2]);
    }

    #[test]
    fn random_shares_follow_the_weights() {
        for assignment in [Assignment::Batch, Assignment::Message] {
            let counts = counts(assignment, &[3, 0, 1], 100_000);
            assert!(counts[0].abs_diff(75_000) < 1_000 && counts[1] == 0, "{counts:?}");
        }
        assert!(counts(Assignment::Batch, &[1, 1], 1_000).iter().all(|count| count % 2 == 0));
    }
}

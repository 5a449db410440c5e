//! Which node is used: one until it fails, then the next; one that fell silent is passed over for a while.

use std::time::Duration;

use tidegate_core::Instant;

/// How a node failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// It answered, or refused the connection: asking it again costs little.
    Spoke,
    /// It did not answer in time. A machine that stands still takes connections and says nothing, and each question to it
    /// costs all the time that a node has for an answer.
    Silent,
}

/// The nodes' turns.
#[derive(Debug)]
pub(super) struct Rota {
    current: usize,
    /// Until when each node is passed over.
    shunned: Vec<Instant>,
    shun: Duration,
}

impl Rota {
    /// The first of `nodes` is used, of which there is at least one; one that falls silent is passed over for `shun`.
    pub(super) fn new(nodes: usize, shun: Duration) -> Self {
        Self { current: 0, shunned: vec![Instant::ZERO; nodes], shun }
    }

    /// The node to use.
    pub(super) const fn current(&self) -> usize {
        self.current
    }

    /// Notes that `node` failed, and goes on to the next one that is not passed over, unless somebody did so already.
    /// Where all are, it is the next one all the same. Returns the new one if it is another.
    pub(super) fn leave(&mut self, node: usize, how: Failure, now: Instant) -> Option<usize> {
        if how == Failure::Silent {
            self.shunned[node] = now + self.shun;
        }
        if self.current != node {
            return None;
        }
        let count = self.shunned.len();
        let others = || (1..count).map(|step| (node + step) % count);
        let next = others().find(|other| self.shunned[*other] <= now).or_else(|| others().next())?;
        self.current = next;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHUN: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn one_that_fails_is_followed_by_the_next_once() {
        let mut rota = Rota::new(3, SHUN);
        assert_eq!(rota.leave(0, Failure::Spoke, at(1)), Some(1));
        assert_eq!(rota.leave(0, Failure::Spoke, at(1)), None, "another caller left it before");
        assert_eq!((rota.leave(1, Failure::Spoke, at(2)), rota.leave(2, Failure::Spoke, at(3))), (Some(2), Some(0)));
    }

    #[test]
    fn a_silent_one_is_passed_over_until_its_time_is_up() {
        let mut rota = Rota::new(3, SHUN);
        rota.leave(0, Failure::Silent, at(0));
        assert_eq!((rota.leave(1, Failure::Spoke, at(1)), rota.leave(2, Failure::Spoke, at(2))), (Some(2), Some(1)));
        assert_eq!(
            (rota.leave(1, Failure::Spoke, at(3)), rota.leave(2, Failure::Spoke, at(5_000))),
            (Some(2), Some(0))
        );
    }

    #[test]
    fn where_all_are_silent_they_take_turns() {
        let mut rota = Rota::new(3, SHUN);
        let silent = |rota: &mut Rota, node, ms| rota.leave(node, Failure::Silent, at(ms)).unwrap();
        assert_eq!((silent(&mut rota, 0, 0), silent(&mut rota, 1, 1), silent(&mut rota, 2, 2)), (1, 2, 0));
        assert_eq!(silent(&mut rota, 0, 3), 1);
    }

    #[test]
    fn a_lone_node_is_used_whatever_it_does() {
        let mut rota = Rota::new(1, SHUN);
        assert_eq!((rota.leave(0, Failure::Silent, at(0)), rota.current()), (None, 0));
    }
}

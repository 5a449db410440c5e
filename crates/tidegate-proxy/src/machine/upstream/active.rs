//! Asks a server how it is, and believes it after some answers.

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use super::config::ActiveConfig;

/// The state of one server by its checks.
///
/// The driver starts a check at [`next_timeout`](Self::next_timeout) and tells its result. A server is up until its first
/// check, and that one alone decides, in either direction: a proxy that starts beside a dead server must not send three
/// rounds of requests there. From then on only `fall` failures or `rise` successes in a row turn it.
#[derive(Clone, Debug)]
pub struct ActiveHealth {
    up: bool,
    /// Results in a row that speak against the present state; `None` before the first result.
    against: Option<u32>,
    next: Instant,
}

/// The server went up or down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Requests may go to it.
    Up,
    /// They may not.
    Down,
}

impl ActiveHealth {
    /// Up and unchecked; the first check is due at once.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { up: true, against: None, next: now }
    }

    /// What is known from earlier checks, asked in another way; the first check is due at once, and is one of several.
    #[must_use]
    pub fn known(up: bool, now: Instant) -> Self {
        Self { up, against: Some(0), next: now }
    }

    /// True if requests may go to it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// When the next check is due.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.next
    }

    /// A check starts; the next one is due an interval later, moved by up to a tenth in either direction.
    pub fn on_check(&mut self, config: &ActiveConfig, rng: &mut Rng, now: Instant) {
        let interval = nanos(config.interval).max(1);
        let spread = interval / 5;
        self.next = now.plus_nanos(interval - spread / 2 + rng.below(spread + 1));
    }

    /// A check ended: was the server well?
    pub fn on_result(&mut self, well: bool, config: &ActiveConfig) -> Option<Change> {
        let Some(against) = self.against.as_mut() else {
            self.against = Some(0);
            return self.turn_if(well != self.up);
        };
        if well == self.up {
            *against = 0;
            return None;
        }
        *against += 1;
        let needed = if self.up { config.fall } else { config.rise };
        let turns = *against >= needed.max(1);
        self.turn_if(turns)
    }

    fn turn_if(&mut self, turns: bool) -> Option<Change> {
        if !turns {
            return None;
        }
        self.against = Some(0);
        self.up = !self.up;
        Some(if self.up { Change::Up } else { Change::Down })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn config() -> ActiveConfig {
        ActiveConfig { interval: Duration::from_secs(1), rise: 2, fall: 3, ..ActiveConfig::default() }
    }

    fn results(results: &[bool]) -> Vec<Option<Change>> {
        let mut health = ActiveHealth::new(Instant::ZERO);
        results.iter().map(|&well| health.on_result(well, &config())).collect()
    }

    #[test]
    fn the_first_check_alone_decides() {
        assert_eq!(results(&[false]), [Some(Change::Down)]);
        assert_eq!(results(&[true, false, false]), [None, None, None]);
    }

    #[test]
    fn three_in_a_row_take_it_down_and_two_bring_it_back() {
        let turns = results(&[true, false, false, true, false, false, false, true, false, true, true]);
        let mut expected = vec![None; 11];
        expected[6] = Some(Change::Down);
        expected[10] = Some(Change::Up);
        assert_eq!(turns, expected);
    }

    #[test]
    fn one_failure_does_not_take_down_who_is_known_to_be_up() {
        let mut health = ActiveHealth::known(true, Instant::ZERO);
        assert_eq!([false, false].map(|well| health.on_result(well, &config())), [None, None]);
        assert_eq!(health.on_result(false, &config()), Some(Change::Down));
        let mut health = ActiveHealth::known(false, Instant::ZERO);
        assert_eq!([true, true].map(|well| health.on_result(well, &config())), [None, Some(Change::Up)]);
    }

    #[test]
    fn checks_spread_by_a_tenth_and_keep_their_interval() {
        let (mut health, mut rng) = (ActiveHealth::new(Instant::ZERO), Rng::new(1));
        assert_eq!(health.next_timeout(), Instant::ZERO);
        let (mut sum, mut last) = (0, Instant::ZERO);
        for _ in 0..1_000 {
            health.on_check(&config(), &mut rng, last);
            let gap = health.next_timeout().nanos_since(last);
            assert!((900_000_000..=1_100_000_000).contains(&gap));
            (sum, last) = (sum + gap, health.next_timeout());
        }
        assert!((sum / 1_000).abs_diff(1_000_000_000) < 10_000_000);
    }
}

//! How long a client is waited for that sends or takes bytes too slowly.
//!
//! A bucket of time: it is as deep as the longest pause that is permitted, waiting takes out of it, and each byte puts back
//! what it may take at the least rate. So a client below that rate is given up when it has fallen a whole pause behind, and
//! one that was fast for an hour is owed no more than a pause for it. Only time in which the client was waited for counts:
//! slow upstreams and the proxy's own pacing are not its fault.
//!
//! Source: ours; the effect is that of `MinRate` of Apache's `mod_reqtimeout` and of `minBytesPerSecond` of IIS.

use core::time::Duration;

use tidegate_core::Instant;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    pause: Duration,
    /// Bytes per second; `None` if any byte puts all of the pause back.
    rate: Option<u64>,
    left: Duration,
    /// Since when the client is waited for, if it is.
    since: Option<Instant>,
}

impl Patience {
    /// With all of the patience that there is: `pause` without a byte, and no less than `rate` bytes per second.
    #[must_use]
    pub const fn new(pause: Duration, rate: Option<u64>) -> Self {
        Self { pause, rate, left: pause, since: None }
    }

    /// The client is waited for, at `now` and perhaps before: when it is given up if it moves no byte until then.
    pub fn wait(&mut self, now: Instant) -> Instant {
        *self.since.get_or_insert(now) + self.left
    }

    /// So many bytes came or were taken at `now`, and for the moment nobody waits.
    pub fn moved(&mut self, bytes: u64, now: Instant) {
        let Some(rate) = self.rate else {
            self.since = None;
            return;
        };
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now.since(since));
        }
        let worth = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let worth = Duration::from_nanos(u64::try_from(worth).unwrap_or(u64::MAX));
        self.left = self.left.saturating_add(worth).min(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// When a client is given up that sends so many bytes at once and then waits so long, if it is within an hour.
    fn given_up(mut patience: Patience, bytes: u64, every_ms: u64) -> Option<u64> {
        let mut now = 0;
        while now < 3_600_000 {
            let deadline = patience.wait(at(now));
            now += every_ms;
            if deadline <= at(now) {
                return Some(deadline.as_nanos() / 1_000_000);
            }
            patience.moved(bytes, at(now));
        }
        None
    }

    const PAUSE: Duration = Duration::from_secs(30);

    #[test]
    fn without_a_rate_only_a_pause_counts() {
        assert_eq!(given_up(Patience::new(PAUSE, None), 1, 29_999), None);
        assert_eq!(given_up(Patience::new(PAUSE, None), 1, 30_001), Some(30_000));
    }

    #[test]
    fn a_client_below_the_rate_is_given_up_when_it_is_a_pause_behind() {
        // Half of the rate: half a second is lost in each.
        let when = given_up(Patience::new(PAUSE, Some(240)), 120, 1_000);
        assert!(when.is_some_and(|ms| (58_000..=60_000).contains(&ms)), "{when:?}");
        // One byte in a while is no way around it.
        let when = given_up(Patience::new(PAUSE, Some(240)), 1, 10_000);
        assert!(when.is_some_and(|ms| ms <= 31_000), "{when:?}");
    }

    #[test]
    fn a_client_at_the_rate_is_not_however_it_divides_its_bytes() {
        assert_eq!(given_up(Patience::new(PAUSE, Some(240)), 240, 1_000), None);
        assert_eq!(given_up(Patience::new(PAUSE, Some(240)), 240 * 29, 29_000), None);
    }

    #[test]
    fn what_was_fast_once_is_owed_no_more_than_a_pause() {
        let mut patience = Patience::new(PAUSE, Some(240));
        patience.moved(1 << 30, at(0));
        assert_eq!(given_up(patience, 1, 1_000).map(|ms| ms / 1_000), Some(30));
    }

    #[test]
    fn time_in_which_nobody_waits_does_not_count() {
        let mut patience = Patience::new(PAUSE, Some(240));
        patience.wait(at(0));
        patience.moved(0, at(10_000));
        assert_eq!(patience.wait(at(1_000_000)), at(1_020_000));
        assert_eq!(patience.wait(at(1_010_000)), at(1_020_000), "it is waited for since then");
    }
}

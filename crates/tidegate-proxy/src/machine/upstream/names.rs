//! When a server's name is asked for again, and what has changed since.

use core::net::IpAddr;
use core::time::Duration;

use tidegate_core::Instant;

/// A name is asked for no more often than so, whatever its records and whoever finds its servers gone.
pub const AGAIN_MIN: Duration = Duration::from_secs(1);
/// And at least so often.
pub const AGAIN_MAX: Duration = Duration::from_mins(5);
/// After a failure; doubled for each one in a row, up to [`FAILED_MAX`].
const FAILED_MIN: Duration = AGAIN_MIN;
/// How long after a failure at most.
pub const FAILED_MAX: Duration = Duration::from_secs(30);
/// Addresses of one name that are servers; the numerically first of more.
pub const ADDRESSES_MAX: usize = 32;

/// One name, its addresses as of the last answer, and when the next question is due.
#[derive(Clone, Debug)]
pub struct Name {
    /// In order; empty before the first answer.
    addresses: Vec<IpAddr>,
    state: State,
    /// Failures in a row.
    failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The next question is due then; the last one was asked before.
    Waiting { due: Instant, asked: Option<Instant> },
    /// An answer is on its way.
    Asked(Instant),
}

/// What an answer said that was not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// Addresses that came.
    pub came: usize,
    /// Addresses that went.
    pub gone: usize,
    /// Addresses beyond [`ADDRESSES_MAX`], which are no servers.
    pub left_out: usize,
}

impl Name {
    /// Unknown; the first question is due at once.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { addresses: Vec::new(), state: State::Waiting { due: now, asked: None }, failures: 0 }
    }

    /// Its addresses, in order; empty before the first answer.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Failures since the last answer.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When it is to be asked for; `None` while an answer is on its way.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { due, .. } => Some(due),
            State::Asked(_) => None,
        }
    }

    /// It was asked for.
    pub fn on_asked(&mut self, now: Instant) {
        self.state = State::Asked(now);
    }

    /// These are its addresses, for so long. They are in force from now on; an answer without any is a failure.
    pub fn on_answer(
        &mut self,
        found: impl IntoIterator<Item = IpAddr>,
        valid: Duration,
        now: Instant,
    ) -> Option<Changed> {
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            self.on_failure(now);
            return None;
        }
        let left_out = found.len().saturating_sub(ADDRESSES_MAX);
        found.truncate(ADDRESSES_MAX);
        self.failures = 0;
        self.wait(valid.clamp(AGAIN_MIN, AGAIN_MAX), now);
        if found == self.addresses {
            return None;
        }
        let new = |one: &[IpAddr], other: &[IpAddr]| {
            one.iter().filter(|address| other.binary_search(address).is_err()).count()
        };
        let changed = Changed { came: new(&found, &self.addresses), gone: new(&self.addresses, &found), left_out };
        self.addresses = found;
        Some(changed)
    }

    /// There was no answer, or none with an address: what was known stays.
    pub fn on_failure(&mut self, now: Instant) {
        let doubled = 1u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        self.wait(FAILED_MIN.saturating_mul(doubled).min(FAILED_MAX), now);
    }

    /// Nothing answers at one of its addresses: it may have moved, whatever its records promised.
    pub fn on_unreachable(&mut self, now: Instant) {
        if let State::Waiting { due, asked } = &mut self.state {
            let earliest = asked.map_or(now, |asked| asked + AGAIN_MIN);
            *due = (*due).min(earliest.max(now));
        }
    }

    fn wait(&mut self, span: Duration, now: Instant) {
        let asked = match self.state {
            State::Asked(at) => Some(at),
            State::Waiting { asked, .. } => asked,
        };
        self.state = State::Waiting { due: now + span, asked };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn answered(addresses: &[u8], valid: Duration) -> Name {
        let mut name = Name::new(at(0));
        name.on_asked(at(0));
        name.on_answer(addresses.iter().map(|&last| ip(last)), valid, at(0));
        name
    }

    #[test]
    fn a_name_is_asked_for_again_when_its_records_end_within_bounds() {
        let mut name = Name::new(at(5));
        assert_eq!(name.next_timeout(), Some(at(5)));
        name.on_asked(at(5));
        assert_eq!(name.next_timeout(), None, "an answer is on its way");
        for (valid, next) in [(0, 1_000), (30, 30_000), (86_400, 300_000)] {
            assert_eq!(answered(&[1], Duration::from_secs(valid)).next_timeout(), Some(at(next)), "{valid}");
        }
    }

    #[test]
    fn an_answer_says_what_came_and_what_went() {
        let minute = Duration::from_mins(1);
        let mut name = answered(&[3, 1, 1], minute);
        assert_eq!(name.addresses(), [ip(1), ip(3)]);
        assert_eq!(name.on_answer([ip(3), ip(1)], minute, at(1)), None, "another order is no change");
        let changed = name.on_answer([ip(4), ip(2), ip(1)], minute, at(2));
        assert_eq!(changed, Some(Changed { came: 2, gone: 1, left_out: 0 }));
        let many = (0..40).rev().map(ip);
        let changed = name.on_answer(many, minute, at(3)).unwrap();
        assert_eq!((name.addresses().len(), changed.left_out), (ADDRESSES_MAX, 8));
        assert_eq!(name.on_answer((0..40).map(ip), minute, at(4)), None, "the same ones whatever their order");
    }

    #[test]
    fn a_failure_keeps_what_is_known_and_is_tried_again_ever_later() {
        let mut name = answered(&[1], Duration::from_mins(1));
        let mut now = 60_000;
        for span in [1, 2, 4, 8, 16, 30, 30] {
            name.on_asked(at(now));
            name.on_failure(at(now));
            assert_eq!(name.next_timeout(), Some(at(now + span * 1_000)));
            now += span * 1_000;
        }
        assert_eq!((name.addresses(), name.failures()), (&[ip(1)][..], 7));
        assert_eq!(name.on_answer([], Duration::from_mins(1), at(now)), None, "no address is a failure");
        assert_eq!((name.addresses(), name.failures()), (&[ip(1)][..], 8));
        name.on_answer([ip(1)], Duration::from_mins(1), at(now));
        name.on_failure(at(now));
        assert_eq!(name.next_timeout(), Some(at(now + 1_000)), "an answer ends the row");
    }

    #[test]
    fn a_name_whose_server_is_gone_is_asked_for_soon_but_once_a_second_at_most() {
        let mut name = answered(&[1], Duration::from_mins(1));
        name.on_unreachable(at(200));
        assert_eq!(name.next_timeout(), Some(at(1_000)));
        let mut name = answered(&[1], Duration::from_mins(1));
        name.on_unreachable(at(5_000));
        assert_eq!(name.next_timeout(), Some(at(5_000)));
        name.on_asked(at(5_000));
        name.on_unreachable(at(5_001));
        assert_eq!(name.next_timeout(), None, "it is asked for already");
    }
}

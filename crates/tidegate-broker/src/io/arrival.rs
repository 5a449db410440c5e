//! When bytes arrived, whatever delayed the reader.
//!
//! A stamp of the kernel is close to the truth while the reader is prompt. When the reader was held up, messages that
//! came one by one lie merged in the receive queue under the newest stamp: charged there, they would look like a burst
//! and be delayed though their publisher conformed. True arrival then lies between the last moment at which the socket
//! was known to be empty and the stamp; charging the earliest moment delays no conforming message. (Whatever the
//! true arrivals were, if they conform, the bucket that charges each of them earlier has at least as many tokens when
//! the reader comes back.) The law then holds for release times, and on the wall clock within the length of the pause.
//!
//! To know of pauses, the poll is cut into short waits while limited topics are busy: a wait that ends late, or work
//! between two waits that took long, is a pause.
//! Source: SRTM, §5.2. Departure: no patched kernel; see the book's page on arrival times.

use std::time::Duration;

use tidegate_core::Instant;

/// A reader that comes this late was held up. One message a millisecond on one connection is not yet a burst.
const LATE: Duration = Duration::from_millis(1);
/// Longest wait while stamps matter.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// A pause of the reader is followed by this part of it, and by [`LATE`] at least, in which what publishers could not
/// send comes in: the reader's socket was full, and opens only now.
const AFTERMATH_PART: u32 = 10;
/// Stamps matter for this long after the last stamped read; then the reader may sleep as long as it likes.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// Whether a poll told of every socket that was readable: it had room for all, and no signal ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reported {
    All,
    Some,
}

/// Tells arrivals from readings, for one reader.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// The last poll returned here: a socket it did not report was empty.
    polled: Instant,
    /// And the one before it: what is readable now was empty then, unless an earlier read left bytes behind.
    empty_at: Instant,
    /// The running poll began here and was to end by then.
    entered: Instant,
    until: Instant,
    /// Unread sockets were empty at this moment, if the reader was held up since.
    held_up_since: Option<Instant>,
    /// Until then bytes come that the pause has kept at the publishers.
    aftermath_until: Instant,
    last_stamped: Option<Instant>,
    last_reported: Reported,
    /// Wall clock minus monotonic clock, ns.
    wall_offset: i64,
}

impl Arrivals {
    pub(super) fn new(now: Instant, unix_ns: i64) -> Self {
        let mut arrivals = Self {
            polled: now,
            empty_at: now,
            entered: now,
            until: now,
            held_up_since: None,
            aftermath_until: now,
            last_stamped: None,
            last_reported: Reported::All,
            wall_offset: 0,
        };
        arrivals.set_wall_clock(now, unix_ns);
        arrivals
    }

    fn set_wall_clock(&mut self, now: Instant, unix_ns: i64) {
        self.wall_offset = unix_ns.wrapping_sub(now.as_nanos().cast_signed());
    }

    /// A poll begins that would last until `until`; answers until when it may last.
    pub(super) fn before_poll(&mut self, now: Instant, until: Option<Instant>) -> Option<Instant> {
        self.entered = now;
        let busy = self.last_stamped.is_some_and(|at| now.since(at) < BUSY_FOR);
        let until = match (busy, until) {
            (true, Some(until)) => Some(until.min(now + WAIT_MAX)),
            (true, None) => Some(now + WAIT_MAX),
            (false, until) => until,
        };
        self.until = if busy { until.unwrap_or(Instant::MAX) } else { Instant::MAX };
        until
    }

    /// The poll returned; if it could not report every socket, the next one goes on with the same arrivals.
    pub(super) fn after_poll(&mut self, now: Instant, unix_ns: i64, reported: Reported) {
        self.set_wall_clock(now, unix_ns);
        let busy = self.until != Instant::MAX;
        let held_up_since = if busy && now > self.until + LATE {
            Some(self.entered)
        } else if busy && self.entered.since(self.polled) > LATE {
            Some(self.polled)
        } else {
            None
        };
        let goes_on = self.last_reported == Reported::Some && self.held_up_since.is_some();
        match held_up_since {
            Some(since) if !goes_on => {
                self.held_up_since = Some(since);
                self.aftermath_until = now + (now.since(since) / AFTERMATH_PART).max(LATE);
            }
            None if !goes_on && now >= self.aftermath_until => self.held_up_since = None,
            _ => {}
        }
        if self.last_reported == Reported::All {
            self.empty_at = self.polled;
        }
        self.last_reported = reported;
        self.polled = now;
    }

    /// When bytes with this stamp, read since the last poll, arrived. When that poll returned at the latest: were the
    /// reader held up since, a later stamp would merge what came one by one. `left_since` is what
    /// [`Arrivals::empty_at`] said when an earlier read began to leave bytes behind.
    pub(super) fn of(&mut self, stamp_unix_ns: Option<i64>, left_since: Option<Instant>) -> Instant {
        let latest = self.polled;
        self.last_stamped = Some(latest);
        let earliest = left_since.unwrap_or_else(|| self.empty_at());
        if self.held_up_since.is_some() {
            return earliest;
        }
        // Clamped, so that a step of the wall clock neither mints nor withholds tokens.
        stamp_unix_ns.map_or(latest, |stamp| {
            let at = u64::try_from(stamp.wrapping_sub(self.wall_offset)).unwrap_or(u64::MAX);
            Instant::from_nanos(at).clamp(earliest.min(latest), latest)
        })
    }

    /// When the sockets that are readable now were last known empty.
    pub(super) fn empty_at(&self) -> Instant {
        self.held_up_since.unwrap_or(self.empty_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_700_000_000_000_000_000;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn wall(at: Instant) -> i64 {
        WALL + at.as_nanos().cast_signed()
    }

    /// A reader that has just read something at `now`.
    fn busy(now: Instant) -> Arrivals {
        let mut arrivals = Arrivals::new(now, wall(now));
        arrivals.of(None, None);
        arrivals
    }

    fn poll(arrivals: &mut Arrivals, from: Instant, to: Instant) {
        arrivals.before_poll(from, None);
        arrivals.after_poll(to, wall(to), Reported::All);
    }

    #[test]
    fn a_prompt_reader_believes_the_stamp() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(101));
        let came = Instant::from_nanos(100_900_000);
        assert_eq!(arrivals.of(Some(wall(came)), None), came);
    }

    #[test]
    fn a_reader_held_up_in_its_poll_charges_the_moment_before_the_pause() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(150));
        assert_eq!(arrivals.of(Some(wall(ms(149))), None), ms(100));
    }

    #[test]
    fn a_reader_held_up_between_polls_charges_the_poll_before() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(101));
        poll(&mut arrivals, ms(140), ms(140));
        assert_eq!(arrivals.of(Some(wall(ms(139))), None), ms(101));
    }

    #[test]
    fn a_reader_held_up_between_its_poll_and_its_read_charges_the_poll() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(101));
        // Read at 150 ms, with all that came meanwhile.
        assert_eq!(arrivals.of(Some(wall(ms(149))), None), ms(101));
    }

    #[test]
    fn sockets_that_did_not_fit_into_a_poll_were_held_up_with_the_others() {
        let mut arrivals = busy(ms(100));
        arrivals.before_poll(ms(100), None);
        arrivals.after_poll(ms(150), wall(ms(150)), Reported::Some);
        poll(&mut arrivals, ms(150), ms(150));
        assert_eq!(arrivals.of(Some(wall(ms(149))), None), ms(100));
    }

    /// Stopped and continued, as a debugger or a freezer does it.
    #[test]
    fn a_poll_that_a_signal_ended_says_nothing_of_any_socket() {
        let mut arrivals = busy(ms(100));
        arrivals.before_poll(ms(100), None);
        arrivals.after_poll(ms(150), wall(ms(150)), Reported::Some);
        poll(&mut arrivals, ms(150), ms(150));
        assert_eq!(arrivals.of(Some(wall(ms(150))), None), ms(100));
    }

    #[test]
    fn what_the_pause_kept_at_the_publisher_belongs_to_the_pause() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(150));
        poll(&mut arrivals, ms(150), ms(151));
        assert_eq!(arrivals.of(Some(wall(ms(151))), None), ms(100));
        for at in 151..156 {
            poll(&mut arrivals, ms(at), ms(at + 1));
        }
        assert_eq!(arrivals.of(Some(wall(ms(156))), None), ms(156), "a tenth of it later the stamp is believed again");
    }

    #[test]
    fn a_pause_in_the_aftermath_of_another_begins_anew() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(150));
        poll(&mut arrivals, ms(150), ms(154));
        assert_eq!(arrivals.of(Some(wall(ms(154))), None), ms(150));
    }

    #[test]
    fn an_idle_reader_was_not_held_up() {
        let mut arrivals = Arrivals::new(ms(0), WALL);
        poll(&mut arrivals, ms(0), ms(9_000));
        assert_eq!(arrivals.of(Some(wall(ms(8_999))), None), ms(8_999));
    }

    #[test]
    fn a_step_of_the_wall_clock_stays_within_the_gap() {
        let mut arrivals = busy(ms(100));
        poll(&mut arrivals, ms(100), ms(101));
        assert_eq!(arrivals.of(Some(wall(ms(3_600_000))), None), ms(101));
        assert_eq!(arrivals.of(Some(0), None), ms(101));
        assert_eq!(arrivals.of(Some(wall(ms(5))), None), ms(100));
    }
}

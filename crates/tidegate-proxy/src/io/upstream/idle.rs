//! Connections that wait for the next request.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::Instant;

use super::endpoint::Announced;

/// A connection that can be kept between two exchanges.
pub(crate) trait Keep {
    /// False if the peer has closed it, or sent what nobody asked for. Must not wait.
    fn is_open(&mut self, look: Look) -> bool;

    /// True if more than elsewhere is to be feared that the peer sends what nobody asked for.
    fn is_doubtful(&self) -> bool {
        false
    }

    /// How long the peer keeps it, as far as it said so.
    fn kept_for(&self) -> Duration {
        Duration::MAX
    }
}

/// How closely to look at a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// As the thread knows it since it last looked at its sockets. Without a system call unless something came.
    Known,
    /// As it is now: for a request that cannot be sent again when it turns out that the peer had closed.
    Now,
}

/// Idle connections of one upstream. The one that was used last is used first: so the others grow old and are closed, and
/// what is used is warm, in the peer's congestion window and in both ends' caches.
#[derive(Debug)]
pub(super) struct Idle<C> {
    /// To each server, in order of the time they were put here, the newest last.
    servers: Vec<VecDeque<Kept<C>>>,
    /// For each server.
    max: usize,
    timeout: Duration,
}

#[derive(Debug)]
struct Kept<C> {
    connection: C,
    /// Whom the server was told about; a connection that was opened for one client is for no other.
    announced: Option<Rc<Announced>>,
    since: Instant,
}

impl<C: Keep> Kept<C> {
    /// It has waited neither too long for the configuration nor for its peer.
    fn is_young(&self, timeout: Duration, now: Instant) -> bool {
        now.since(self.since) < timeout.min(self.connection.kept_for())
    }
}

impl<C: Keep> Idle<C> {
    pub(super) fn new(servers: usize, max: usize, timeout: Duration) -> Self {
        Self { servers: (0..servers).map(|_| VecDeque::new()).collect(), max, timeout }
    }

    pub(super) fn len(&self) -> usize {
        self.servers.iter().map(VecDeque::len).sum()
    }

    /// The newest connection to `server` that was opened for `announced`; those found closed on the way are dropped.
    /// O(1) unless servers are told their clients.
    pub(super) fn take(&mut self, server: usize, announced: Option<&Announced>, look: Look, now: Instant) -> Option<C> {
        let kept = &mut self.servers[server];
        loop {
            let place = kept.iter().rposition(|kept| kept.announced.as_deref() == announced)?;
            let mut kept = kept.remove(place)?;
            let look = if kept.connection.is_doubtful() { Look::Now } else { look };
            if kept.is_young(self.timeout, now) && kept.connection.is_open(look) {
                return Some(kept.connection);
            }
        }
    }

    /// Keeps a connection; the oldest one of the same server goes if there are too many.
    pub(super) fn put(&mut self, connection: C, server: usize, announced: Option<Rc<Announced>>, now: Instant) {
        if self.max == 0 || self.timeout.is_zero() || connection.kept_for().is_zero() {
            return;
        }
        let kept = &mut self.servers[server];
        if kept.len() >= self.max {
            kept.pop_front();
        }
        kept.push_back(Kept { connection, announced, since: now });
    }

    /// Closes the oldest connection to `server`, to make room for a new one.
    pub(super) fn drop_oldest(&mut self, server: usize) {
        self.servers[server].pop_front();
    }

    /// Connections to `server`.
    pub(super) fn count(&self, server: usize) -> usize {
        self.servers[server].len()
    }

    /// Closes those that waited too long, and those that the peer has closed.
    pub(super) fn sweep(&mut self, now: Instant) {
        for kept in &mut self.servers {
            kept.retain_mut(|kept| kept.is_young(self.timeout, now) && kept.connection.is_open(Look::Known));
        }
    }

    /// Takes over the connections that `old` has to its server `theirs`, which is `mine` here.
    pub(super) fn inherit(&mut self, mine: usize, old: &mut Self, theirs: usize) {
        self.servers[mine].append(&mut old.servers[theirs]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Eq, Debug)]
    struct Fake(u32, bool);

    impl Keep for Fake {
        fn is_open(&mut self, _: Look) -> bool {
            self.1
        }
    }

    /// One that its peer has closed since the thread looked at its sockets.
    #[derive(PartialEq, Eq, Debug)]
    struct JustClosed {
        is_doubtful: bool,
    }

    impl Keep for JustClosed {
        fn is_open(&mut self, look: Look) -> bool {
            look == Look::Known
        }

        fn is_doubtful(&self) -> bool {
            self.is_doubtful
        }
    }

    /// One that its peer keeps for so many seconds.
    #[derive(PartialEq, Eq, Debug)]
    struct KeptFor(u64);

    impl Keep for KeptFor {
        fn is_open(&mut self, _: Look) -> bool {
            true
        }

        fn kept_for(&self) -> Duration {
            Duration::from_secs(self.0)
        }
    }

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    fn idle(connections: &[(u32, usize, bool)]) -> Idle<Fake> {
        let mut idle = Idle::new(2, 2, Duration::from_secs(10));
        for (s, &(name, server, open)) in (0..).zip(connections) {
            idle.put(Fake(name, open), server, None, at(s));
        }
        idle
    }

    #[test]
    fn the_last_in_is_the_first_out() {
        let mut idle = idle(&[(1, 0, true), (2, 0, true), (3, 1, true)]);
        assert_eq!(idle.take(0, None, Look::Known, at(3)), Some(Fake(2, true)));
        assert_eq!(idle.take(0, None, Look::Known, at(3)), Some(Fake(1, true)));
        assert_eq!((idle.take(0, None, Look::Known, at(3)), idle.len()), (None, 1));
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut idle = idle(&[(1, 0, true), (2, 0, true), (3, 0, true), (4, 1, true)]);
        assert_eq!(idle.count(0), 2);
        idle.take(0, None, Look::Known, at(4));
        assert_eq!(idle.take(0, None, Look::Known, at(4)), Some(Fake(2, true)));
    }

    #[test]
    fn what_is_closed_or_too_old_is_no_connection() {
        let mut idle = idle(&[(1, 0, true), (2, 0, false)]);
        assert_eq!(idle.take(0, None, Look::Known, at(5)), Some(Fake(1, true)));
        let mut idle = self::idle(&[(1, 0, true), (2, 0, true)]);
        idle.sweep(at(10));
        assert_eq!(idle.len(), 1);
        assert_eq!(idle.take(0, None, Look::Known, at(11)), None);
    }

    #[test]
    fn a_closer_look_is_taken_where_it_is_wanted_or_needed() {
        for (is_doubtful, look, is_taken) in
            [(false, Look::Known, true), (false, Look::Now, false), (true, Look::Known, false)]
        {
            let mut idle = Idle::new(1, 9, Duration::from_secs(10));
            idle.put(JustClosed { is_doubtful }, 0, None, at(0));
            idle.sweep(at(1));
            assert_eq!(idle.take(0, None, look, at(1)).is_some(), is_taken, "{is_doubtful} {look:?}");
        }
    }

    #[test]
    fn a_connection_is_used_no_longer_than_its_peer_keeps_it() {
        let mut idle = Idle::new(1, 9, Duration::from_secs(10));
        for kept_for in [99, 5, 3, 0] {
            idle.put(KeptFor(kept_for), 0, None, at(0));
        }
        assert_eq!(idle.len(), 3, "one that is not kept at all does not wait");
        idle.sweep(at(3));
        assert_eq!(idle.len(), 2);
        assert_eq!(idle.take(0, None, Look::Known, at(5)), Some(KeptFor(99)));
        idle.put(KeptFor(99), 0, None, at(5));
        assert_eq!(idle.take(0, None, Look::Known, at(15)), None, "nor longer than the configuration says");
    }

    #[test]
    fn a_connection_that_was_opened_for_one_client_is_for_no_other() {
        let client = |port| {
            let (source, destination) = (([192, 0, 2, 1], port).into(), ([192, 0, 2, 9], 443).into());
            Rc::new(Announced { source, destination, authority: None })
        };
        let mut idle = Idle::new(1, 9, Duration::from_secs(10));
        idle.put(Fake(1, true), 0, Some(client(1)), at(0));
        assert_eq!(idle.take(0, Some(&client(2)), Look::Known, at(0)), None);
        assert_eq!(idle.take(0, None, Look::Known, at(0)), None);
        assert_eq!(idle.take(0, Some(&client(1)), Look::Known, at(0)), Some(Fake(1, true)));
    }
}

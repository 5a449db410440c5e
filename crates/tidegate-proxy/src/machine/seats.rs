//! A thread's places for connections, and who gives up his when there is none left.
//!
//! Everybody who comes is let in while somebody else's client is awaited: the proxy may be full of connections that say
//! nothing, and still serves those that do. Places are as many as the limit of open files permits; when even fewer can be
//! had, there are fewer for a while.

use std::collections::VecDeque;
use std::net::IpAddr;

use slab::Slab;

use super::neighbours::{Claimant, Source};
use super::places::{Hand, Waiting};

/// A thread has so many places at least.
pub const LEAST: usize = 16;
/// One place in so many may be given to somebody new before who had it is gone: that happens when its task runs next.
const LEAVING_PART: usize = 8;
/// When files run out, one place in so many is given up.
const SHRINK_PART: usize = 8;
/// Claimants that are looked at in one search for those that have too many: some 20 us.
pub const LOOKED_AT: usize = 256;
/// Each time that files may have become free, one in so many is added.
const GROW_PART: usize = 64;

/// For what a connection's client is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Its first request.
    First,
    /// Another request.
    Next,
    /// That it reads its answer.
    Reading,
}

impl For {
    const COUNT: usize = 3;
}

/// Who answers for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// Where it comes from.
    Source(Source),
    /// Who pays for it: all names that a source makes up are one.
    Claimant(Claimant),
}

impl From<IpAddr> for Group {
    fn from(source: IpAddr) -> Self {
        Self::Source(Source::of(source))
    }
}

/// The places of one thread. A place is a number from 0, and low numbers are given first.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    taken: Slab<Taken>,
    /// Those that lost their places and are not gone yet.
    leaving: usize,
    waiting: [Waiting<Group>; For::COUNT],
    /// Where the search for those that have too many goes on.
    hand: Hand,
    ended: VecDeque<usize>,
}

#[derive(Debug)]
struct Taken {
    group: Group,
    waits: Option<For>,
    loses: bool,
}

impl Seats {
    /// `most` places.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(LEAST),
            taken: Slab::new(),
            leaving: 0,
            waiting: <[Waiting<Group>; For::COUNT]>::default(),
            hand: Hand::default(),
            ended: VecDeque::new(),
        }
    }

    /// A place for a connection of `group`, whose first request is awaited. If all are taken, that of one of whom something
    /// is awaited; `None` if there is work under way on all of them.
    pub fn take(&mut self, group: Group) -> Option<usize> {
        let has_room = self.taken.len() - self.leaving < self.most;
        if !has_room && !self.end_one() {
            return None;
        }
        let number = self.taken.insert(Taken { group, waits: Some(For::First), loses: false });
        self.waiting[For::First as usize].push(number, group);
        Some(number)
    }

    /// The connection in place `number` is gone.
    pub fn leave(&mut self, number: usize) {
        let Some(taken) = self.taken.try_remove(number) else { return };
        self.leaving -= usize::from(taken.loses);
        if let Some(waits) = taken.waits {
            self.waiting[waits as usize].remove(number);
        }
    }

    /// How many connections may be there: of those that are refused too some may be open for a moment.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// True if those who lost their places should be gone before more come.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.leaving > 0 && self.taken.len() >= self.most + self.most / LEAVING_PART
    }

    /// Files ran out: there are fewer places for now, unless some of them are about to be free. False if nobody gives up his.
    pub fn shrink(&mut self) -> bool {
        if self.leaving > 0 {
            return true;
        }
        let most = self.most.min(self.taken.len());
        self.most = (most - most / SHRINK_PART).max(LEAST);
        self.shed()
    }

    /// Some time passed, and the limit of files permits `most` places.
    pub fn adjust(&mut self, most: usize) {
        self.most = (self.most + self.most / GROW_PART + 1).min(most.max(LEAST));
        self.shed();
    }

    /// Ends up to `most` connections that wait for another request, of claimants that have `too_many`, and of each no more
    /// than those: the oldest of whichever of them has the most that wait. Says how many. So many claimants are asked for at
    /// most as [`LOOKED_AT`] says; the next time it goes on behind them.
    pub fn give_back(&mut self, most: usize, too_many: impl Fn(Claimant) -> u64) -> usize {
        let of = |group| match group {
            Group::Claimant(claimant) => too_many(claimant),
            Group::Source(_) => 0,
        };
        let found = self.waiting[For::Next as usize].too_many(most, LOOKED_AT, &mut self.hand, of);
        for &number in &found {
            self.end(number, For::Next);
        }
        found.len()
    }

    /// Something is under way on the connection in place `number`.
    pub fn works(&mut self, number: usize) {
        if let Some(waits) = self.taken[number].waits.take() {
            self.waiting[waits as usize].remove(number);
        }
    }

    /// The client of the connection in place `number`, of `group`, is awaited. Who waits on keeps its age.
    pub fn awaits(&mut self, number: usize, what: For, group: Group) {
        let taken = &mut self.taken[number];
        if taken.loses || (taken.waits == Some(what) && taken.group == group) {
            return;
        }
        if let Some(waits) = taken.waits {
            self.waiting[waits as usize].remove(number);
        }
        (taken.waits, taken.group) = (Some(what), group);
        self.waiting[what as usize].push(number, group);
    }

    /// Whether the connection in place `number` has lost it.
    #[must_use]
    pub fn is_lost(&self, number: usize) -> bool {
        self.taken[number].loses
    }

    /// A place whose connection is to end, if there is one that was not told yet.
    pub fn poll_ended(&mut self) -> Option<usize> {
        self.ended.pop_front()
    }

    /// Ends connections until no more stay than there are places; false if none was ended.
    fn shed(&mut self) -> bool {
        let over = (self.taken.len() - self.leaving).saturating_sub(self.most);
        (0..over).take_while(|_| self.end_one()).count() > 0
    }

    /// Ends a connection of whose client something is awaited: of what most are awaited for.
    fn end_one(&mut self) -> bool {
        let fullest = [For::First, For::Next, For::Reading]
            .into_iter()
            .max_by_key(|&what| self.waiting[what as usize].len())
            .unwrap_or(For::First);
        let found = self.waiting[fullest as usize].next();
        found.inspect(|&number| self.end(number, fullest)).is_some()
    }

    /// Ends the connection in place `number`, which waits for `what`.
    fn end(&mut self, number: usize, what: For) {
        self.waiting[what as usize].remove(number);
        self.leaving += 1;
        let taken = &mut self.taken[number];
        (taken.waits, taken.loses) = (None, true);
        self.ended.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::super::neighbours::{Neighbours, NeighboursConfig};
    use super::*;

    const OTHER: Group = Group::Claimant(Claimant::OTHER);

    fn source(last: u8) -> Group {
        IpAddr::from([192, 0, 2, last]).into()
    }

    fn take(seats: &mut Seats, sources: &[u8]) -> Vec<usize> {
        sources.iter().map(|&last| seats.take(source(last)).unwrap()).collect()
    }

    /// Those that are to end, which are told once each.
    fn lost(seats: &mut Seats) -> Vec<usize> {
        let ended: Vec<_> = core::iter::from_fn(|| seats.poll_ended()).collect();
        assert!(ended.iter().all(|&number| seats.is_lost(number)));
        ended
    }

    #[test]
    fn who_says_nothing_makes_room_first_from_the_address_that_has_the_most() {
        let mut seats = Seats::new(LEAST);
        let mut sources = [1; LEAST];
        sources[..3].copy_from_slice(&[2, 2, 3]);
        take(&mut seats, &sources);
        assert_eq!(lost(&mut seats), [0; 0]);
        let newcomers = take(&mut seats, &[4, 4]);
        assert_eq!(lost(&mut seats), [3, 4], "the oldest two of the address with the most");
        assert!(!seats.is_lost(newcomers[0]));
    }

    #[test]
    fn work_under_way_is_never_ended_for_a_newcomer() {
        let mut seats = Seats::new(LEAST);
        for number in take(&mut seats, &[1; LEAST]) {
            seats.works(number);
        }
        assert!(seats.take(source(2)).is_none());
        seats.awaits(5, For::Next, OTHER);
        assert!(seats.take(source(2)).is_some());
        assert_eq!(lost(&mut seats), [5]);
    }

    #[test]
    fn of_what_most_are_awaited_for_one_is_ended() {
        let mut seats = Seats::new(LEAST);
        take(&mut seats, &[1; LEAST]);
        (0..4).for_each(|number| seats.awaits(number, For::Next, OTHER));
        (4..12).for_each(|number| seats.awaits(number, For::Reading, OTHER));
        seats.works(4);
        seats.awaits(4, For::Reading, OTHER);
        seats.awaits(5, For::Reading, OTHER);
        take(&mut seats, &[2, 2]);
        assert_eq!(lost(&mut seats), [5, 6], "who took something in between is not the one that waits longest");
    }

    #[test]
    fn who_has_too_many_that_wait_gives_those_back_and_nobody_else_any() {
        let mut seats = Seats::new(64);
        take(&mut seats, &[1; 30]);
        let mut limiter = Neighbours::new(NeighboursConfig::default(), Instant::ZERO);
        let [a, b] = ["a", "b"].map(|name| Claimant::Tenant(limiter.tenant(name, Instant::ZERO)));
        (0..4).for_each(|number| seats.awaits(number, For::Next, Group::Claimant(a)));
        (4..16).for_each(|number| seats.awaits(number, For::Next, Group::Claimant(b)));
        (16..20).for_each(|number| seats.works(number));
        let of = |who: Claimant, many: u64| move |claimant| if claimant == who { many } else { 0 };
        assert_eq!(seats.give_back(5, of(a, 2)), 2, "though another has more");
        assert_eq!(seats.give_back(5, of(b, 64)), 5);
        assert_eq!(lost(&mut seats), [0, 1, 4, 5, 6, 7, 8]);
        assert_eq!(seats.give_back(64, of(b, 64)), 7, "of those that have a request under way, none");
    }

    #[test]
    fn newcomers_wait_while_those_who_lost_their_places_are_not_gone() {
        let mut seats = Seats::new(LEAST);
        take(&mut seats, &[1; LEAST]);
        for number in 0..LEAST / LEAVING_PART {
            assert!(!seats.is_crowded(), "{number}");
            take(&mut seats, &[2]);
        }
        assert!(seats.is_crowded());
        for number in lost(&mut seats) {
            seats.leave(number);
        }
        assert!(!seats.is_crowded() && seats.taken.len() == LEAST);
    }

    #[test]
    fn without_files_there_are_fewer_places_and_more_again_later() {
        let mut seats = Seats::new(64);
        let crowd = take(&mut seats, &[1; 64]);
        assert!(seats.shrink());
        assert_eq!(lost(&mut seats), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(seats.shrink(), "these are to be gone first");
        assert_eq!(lost(&mut seats), [0; 0]);
        for number in crowd {
            seats.leave(number);
        }
        (0..10).for_each(|_| seats.adjust(64));
        take(&mut seats, &[1; 64]);
        assert!(lost(&mut seats).is_empty());
        seats.adjust(20);
        assert_eq!(lost(&mut seats).len(), 44, "the limit was lowered from outside");
    }

    #[test]
    fn nobody_ends_for_lack_of_files_while_all_work() {
        let mut seats = Seats::new(LEAST);
        for number in take(&mut seats, &[1; LEAST]) {
            seats.works(number);
        }
        assert!(!seats.shrink());
        assert!(lost(&mut seats).is_empty());
    }
}

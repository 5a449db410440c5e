//! Who holds how much of the spool's room.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::Instant;

use crate::io::conn::limiter::{Cause, Source};

/// A source with all names that it makes up may hold so many times what is left: the more, the more its names find
/// beside each other, and the less one finds who comes.
const OF_SOURCE: u64 = 3;

/// Who holds room, on every core: each has its own numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Holder {
    /// The tenant's name,
    pub(crate) name: Arc<str>,
    /// and the source that makes it up.
    pub(crate) source: Option<Source>,
}

/// The room, and what each tenant with bodies in it holds.
///
/// A tenant may hold as much as is left for everybody else: alone half of the room, of two that want all a third each. So
/// there is always some for one who comes, and nobody has to know how many will. Names that one source makes up may do
/// so too, and hold three times what is left together: alone three quarters of the room, however many they are.
///
/// Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches" (1998), with a factor
/// of 1, and of 3 for a source.
#[derive(Debug)]
pub(super) struct Room {
    max: u64,
    used: u64,
    /// Only those that hold some: no more than there are bodies.
    held: HashMap<Claim, Part, foldhash::fast::RandomState>,
    /// Of sources, their names.
    names: HashMap<Holder, u64, foldhash::fast::RandomState>,
    /// The disk did not take something, however much room there should be: until then there is none.
    closed_until: Instant,
    /// When a failure of the disk was said last.
    said: Option<Instant>,
}

/// Who stands for a holder.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Claim {
    Name(Arc<str>),
    Source(Source),
}

#[derive(Clone, Copy, Default, Debug)]
struct Part {
    bytes: u64,
    /// Of a source, names that hold some of these.
    names: u64,
}

impl Holder {
    fn claim(&self) -> Claim {
        self.source.map_or_else(|| Claim::Name(Arc::clone(&self.name)), Claim::Source)
    }
}

/// How long there is no room when the disk did not take something. Each try costs a write that fails, and who is refused is
/// told to come back after a second.
const CLOSED: Duration = Duration::from_secs(1);

/// From one line of the log about the disk to the next.
const SAID: Duration = Duration::from_mins(1);

impl Room {
    /// Room for `max` bytes, and nobody in it.
    pub(super) fn new(max: u64) -> Self {
        let (held, names) = (HashMap::default(), HashMap::default());
        Self { max, used: 0, held, names, closed_until: Instant::ZERO, said: None }
    }

    /// Takes `bytes` for `holder`; or says whether it is that one that has more than its part, or all together. Without
    /// `shares` whoever comes takes what is there.
    pub(super) fn take(&mut self, holder: &Holder, bytes: u64, shares: bool, now: Instant) -> Result<(), Cause> {
        if now < self.closed_until {
            return Err(Cause::SystemFull);
        }
        let claim = holder.claim();
        let part = self.held.get(&claim).copied().unwrap_or_default();
        let own = if holder.source.is_some() { self.names.get(holder).copied().unwrap_or(0) } else { part.bytes };
        let [held, own_held, used] = [part.bytes, own, self.used].map(|before| before.saturating_add(bytes));
        if !shares && used > self.max {
            return Err(Cause::SystemFull);
        }
        let (left, names) = (self.max.saturating_sub(used), part.names + u64::from(own == 0));
        if shares && (own_held > left || held > OF_SOURCE.saturating_mul(left)) {
            let claims = self.held.len() as u64 + u64::from(part.bytes == 0);
            // A name's part beside the others of its source, and beside other claimants.
            let parts = if holder.source.is_some() { claims + names } else { claims + 1 };
            return Err(if own_held > self.max / parts { Cause::OverShare } else { Cause::SystemFull });
        }
        self.used = used;
        if holder.source.is_some() {
            self.names.insert(holder.clone(), own_held);
            self.held.insert(claim, Part { bytes: held, names });
        } else {
            self.held.insert(claim, Part { bytes: held, names: 0 });
        }
        Ok(())
    }

    /// The disk did not take something: for a while there is no room.
    pub(super) fn close(&mut self, now: Instant) {
        self.closed_until = now + CLOSED;
    }

    /// Whether a failure of the disk is to be said: once a minute at most, since each body may meet one.
    pub(super) fn says(&mut self, now: Instant) -> bool {
        let says = self.said.is_none_or(|said| now >= said + SAID);
        if says {
            self.said = Some(now);
        }
        says
    }

    /// Gives back what `holder` took.
    pub(super) fn give_back(&mut self, holder: &Holder, bytes: u64) {
        let claim = holder.claim();
        let Some(part) = self.held.get_mut(&claim) else { return };
        let mut bytes = bytes.min(part.bytes);
        if holder.source.is_some() {
            let Some(own) = self.names.get_mut(holder) else { return };
            bytes = bytes.min(*own);
            *own -= bytes;
            if *own == 0 {
                self.names.remove(holder);
                part.names -= 1;
            }
        }
        part.bytes -= bytes;
        self.used -= bytes;
        if part.bytes == 0 {
            self.held.remove(&claim);
        }
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(room: &mut Room, holder: &Holder) -> u64 {
        (0..room.max).take_while(|_| room.take(holder, 1, true, Instant::ZERO).is_ok()).count() as u64
    }

    fn named(name: &str) -> Holder {
        Holder { name: name.into(), source: None }
    }

    fn made_up(name: usize, last: u8) -> Holder {
        Holder { name: name.to_string().into(), source: Some(Source::of([192, 0, 2, last].into())) }
    }

    #[test]
    fn names_that_one_source_makes_up_leave_a_quarter() {
        let mut room = Room::new(1_600);
        let loud: Vec<_> = (0..50).map(|name| fill(&mut room, &made_up(name, 1))).collect();
        assert_eq!((loud[..2].to_vec(), loud.iter().sum()), (vec![800, 400], 1_200), "{loud:?}");
        assert_eq!(fill(&mut room, &named("a")), 200, "half of what is left");
        assert_eq!(fill(&mut room, &made_up(0, 2)), 100, "and of another source's");
        assert_eq!(room.take(&made_up(0, 1), 1, true, Instant::ZERO), Err(Cause::OverShare));
        assert_eq!(
            room.take(&made_up(60, 1), 1, true, Instant::ZERO),
            Err(Cause::SystemFull),
            "it has less than its part"
        );
        for (name, source) in (0..50).map(|name| (name, 1)).chain([(0, 2)]) {
            room.give_back(&made_up(name, source), 1_000);
        }
        room.give_back(&named("a"), 1_000);
        assert_eq!((room.used(), room.held.len(), room.names.len()), (0, 0, 0));
    }

    #[test]
    fn nobody_takes_so_much_that_nothing_is_left_for_one_who_comes() {
        let mut room = Room::new(1_200);
        let [a, b, c] = ["a", "b", "c"].map(named);
        assert_eq!(fill(&mut room, &a), 600, "half, alone");
        assert_eq!(room.take(&a, 1, true, Instant::ZERO), Err(Cause::OverShare));
        assert_eq!(fill(&mut room, &b), 300, "half of what is left");
        assert_eq!(fill(&mut room, &c), 150);
        assert_eq!(room.take(&c, 150, true, Instant::ZERO), Err(Cause::SystemFull), "it has less than its part");
        // Who has more than the others gets nothing until it has less.
        room.give_back(&a, 400);
        assert_eq!(room.take(&a, 1, true, Instant::ZERO), Ok(()));
        assert_eq!(fill(&mut room, &c), 199, "and the others get what it gave back");
    }

    #[test]
    fn a_disk_that_takes_nothing_has_no_room_for_a_while() {
        let mut room = Room::new(100);
        let tenant = named("a");
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        room.close(at(500));
        for shares in [true, false] {
            assert_eq!(room.take(&tenant, 1, shares, at(1_499)), Err(Cause::SystemFull));
        }
        assert_eq!(room.used(), 0);
        assert_eq!(room.take(&tenant, 1, true, at(1_500)), Ok(()));
    }

    #[test]
    fn failures_are_said_once_a_minute() {
        let mut room = Room::new(100);
        let said: Vec<u64> = (0..1_000)
            .map(|tick| tick * 500)
            .filter(|&ms| room.says(Instant::ZERO + Duration::from_millis(ms)))
            .collect();
        assert_eq!(said, [0, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000]);
    }

    #[test]
    fn without_shares_one_may_take_all_and_no_more() {
        let mut room = Room::new(100);
        let [a, b] = ["a", "b"].map(named);
        room.take(&a, 100, false, Instant::ZERO).unwrap();
        assert_eq!(room.take(&b, 1, false, Instant::ZERO), Err(Cause::SystemFull));
        room.give_back(&a, 1);
        room.take(&b, 1, false, Instant::ZERO).unwrap();
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nobody_gives_back_more_than_he_took() {
        let mut room = Room::new(100);
        let tenant = named("a");
        for _ in 0..10 {
            room.take(&tenant, 50, true, Instant::ZERO).unwrap();
            assert!(room.take(&tenant, 1, true, Instant::ZERO).is_err());
            room.give_back(&tenant, 20);
            room.give_back(&tenant, 1_000);
            assert_eq!((room.used(), room.held.len()), (0, 0));
        }
    }
}

//! Who holds how much of the spool's room.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::Instant;

use crate::io::limiter::Cause;

/// The room, and what each tenant with bodies in it holds.
///
/// A tenant may hold as much as is left for everybody else: alone half of the room, of two that want all a third each. So
/// there is always some for one who comes, and nobody has to know how many will.
///
/// Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches" (1998), with a factor
/// of 1.
#[derive(Debug)]
pub(super) struct Room {
    max: u64,
    used: u64,
    /// Only those that hold some: no more than there are bodies.
    held: HashMap<Arc<str>, u64, foldhash::fast::RandomState>,
    /// The disk did not take something, however much room there should be: until then there is none.
    closed_until: Instant,
    /// When a failure of the disk was said last.
    said: Option<Instant>,
}

/// How long there is no room when the disk did not take something. Each try costs a write that fails, and who is refused is
/// told to come back after a second.
const CLOSED: Duration = Duration::from_secs(1);

/// From one line of the log about the disk to the next.
const SAID: Duration = Duration::from_secs(60);

impl Room {
    /// Room for `max` bytes, and nobody in it.
    pub(super) fn new(max: u64) -> Self {
        Self { max, used: 0, held: HashMap::default(), closed_until: Instant::ZERO, said: None }
    }

    /// Takes `bytes` for `tenant`; or says whether it is the tenant that has more than its part, or all together. Without
    /// `shares` whoever comes takes what is there.
    pub(super) fn take(&mut self, tenant: &Arc<str>, bytes: u64, shares: bool, now: Instant) -> Result<(), Cause> {
        if now < self.closed_until {
            return Err(Cause::SystemFull);
        }
        let own = self.held.get(tenant).copied().unwrap_or(0);
        let (held, used) = (own.saturating_add(bytes), self.used.saturating_add(bytes));
        if !shares && used > self.max {
            return Err(Cause::SystemFull);
        }
        if shares && held > self.max.saturating_sub(used) {
            let tenants = self.held.len() + usize::from(own == 0);
            let part = self.max / (tenants as u64 + 1);
            return Err(if held > part { Cause::OverShare } else { Cause::SystemFull });
        }
        self.used = used;
        *self.held.entry(Arc::clone(tenant)).or_insert(0) = held;
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

    /// Gives back what `tenant` took.
    pub(super) fn give_back(&mut self, tenant: &Arc<str>, bytes: u64) {
        let Some(held) = self.held.get_mut(tenant) else { return };
        let bytes = bytes.min(*held);
        *held -= bytes;
        self.used -= bytes;
        if *held == 0 {
            self.held.remove(tenant);
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

    fn fill(room: &mut Room, tenant: &Arc<str>) -> u64 {
        (0..room.max).take_while(|_| room.take(tenant, 1, true, Instant::ZERO).is_ok()).count() as u64
    }

    #[test]
    fn nobody_takes_so_much_that_nothing_is_left_for_one_who_comes() {
        let mut room = Room::new(1_200);
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
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
        let tenant = Arc::<str>::from("a");
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
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        room.take(&a, 100, false, Instant::ZERO).unwrap();
        assert_eq!(room.take(&b, 1, false, Instant::ZERO), Err(Cause::SystemFull));
        room.give_back(&a, 1);
        room.take(&b, 1, false, Instant::ZERO).unwrap();
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nobody_gives_back_more_than_he_took() {
        let mut room = Room::new(100);
        let tenant = Arc::<str>::from("a");
        for _ in 0..10 {
            room.take(&tenant, 50, true, Instant::ZERO).unwrap();
            assert!(room.take(&tenant, 1, true, Instant::ZERO).is_err());
            room.give_back(&tenant, 20);
            room.give_back(&tenant, 1_000);
            assert_eq!((room.used(), room.held.len()), (0, 0));
        }
    }
}

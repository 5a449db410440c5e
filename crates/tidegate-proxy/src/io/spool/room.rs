//! Who holds how much of the spool's room.

use std::sync::Arc;

use hashbrown::HashMap;

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
}

impl Room {
    /// Room for `max` bytes, and nobody in it.
    pub(super) fn new(max: u64) -> Self {
        Self { max, used: 0, held: HashMap::default() }
    }

    /// Takes `bytes` for `tenant`; or says whether it is the tenant that has more than its part, or all together. Without
    /// `shares` whoever comes takes what is there.
    pub(super) fn take(&mut self, tenant: &Arc<str>, bytes: u64, shares: bool) -> Result<(), Cause> {
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
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(room: &mut Room, tenant: &Arc<str>) -> u64 {
        (0..room.max).take_while(|_| room.take(tenant, 1, true).is_ok()).count() as u64
    }

    #[test]
    fn nobody_takes_so_much_that_nothing_is_left_for_one_who_comes() {
        let mut room = Room::new(1_200);
        let [a, b, c] = ["a", "b", "c"].map(Arc::<str>::from);
        assert_eq!(fill(&mut room, &a), 600, "half, alone");
        assert_eq!(room.take(&a, 1, true), Err(Cause::OverShare));
        assert_eq!(fill(&mut room, &b), 300, "half of what is left");
        assert_eq!(fill(&mut room, &c), 150);
        assert_eq!(room.take(&c, 150, true), Err(Cause::SystemFull), "it has less than its part");
        // Who has more than the others gets nothing until it has less.
        room.give_back(&a, 400);
        assert_eq!(room.take(&a, 1, true), Ok(()));
        assert_eq!(fill(&mut room, &c), 199, "and the others get what it gave back");
    }

    #[test]
    fn without_shares_one_may_take_all_and_no_more() {
        let mut room = Room::new(100);
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        room.take(&a, 100, false).unwrap();
        assert_eq!(room.take(&b, 1, false), Err(Cause::SystemFull));
        room.give_back(&a, 1);
        room.take(&b, 1, false).unwrap();
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nobody_gives_back_more_than_he_took() {
        let mut room = Room::new(100);
        let tenant = Arc::<str>::from("a");
        for _ in 0..10 {
            room.take(&tenant, 50, true).unwrap();
            assert!(room.take(&tenant, 1, true).is_err());
            room.give_back(&tenant, 20);
            room.give_back(&tenant, 1_000);
            assert_eq!((room.used(), room.held.len()), (0, 0));
        }
    }
}

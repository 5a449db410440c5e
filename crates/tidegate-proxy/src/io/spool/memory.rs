//! What bodies that wait hold in memory, counted as their tenant's.

use std::rc::Rc;

use crate::io::conn::account::Account;

/// Bytes that are held at once: the limiter is told now and then, not for every piece.
const STEP: u64 = 64 * 1024;

/// Bytes of one body that are in memory, held for who pays for it.
#[derive(Debug)]
pub(crate) struct InMemory {
    account: Rc<Account>,
    held: u64,
}

impl InMemory {
    /// None so far, on `account`.
    pub(super) fn new(account: &Rc<Account>) -> Self {
        Self { account: Rc::clone(account), held: 0 }
    }

    /// So many bytes are in memory.
    pub(super) fn set(&mut self, bytes: usize) {
        let needed = (bytes as u64).next_multiple_of(STEP);
        if needed > self.held {
            self.account.hold_memory(needed - self.held);
        } else if needed < self.held {
            self.account.give_back_memory(self.held - needed);
        }
        self.held = needed;
    }

    /// The same; false if it is more than a step, and the tenant may not have so much. Then it is counted as before.
    pub(super) fn try_set(&mut self, bytes: usize) -> bool {
        let needed = (bytes as u64).next_multiple_of(STEP);
        if needed <= self.held.max(STEP) {
            self.set(bytes);
            return true;
        }
        let may = self.account.try_hold_memory(needed - self.held);
        if may {
            self.held = needed;
        }
        may
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::spool::folder::tests::account;

    #[test]
    fn what_is_in_memory_is_held_in_steps_and_given_back() {
        let account = account("a");
        let mut memory = InMemory::new(&account);
        for (bytes, held) in [(1, 1), (65_536, 1), (65_537, 2), (1_000_000, 16), (65_537, 2), (0, 0), (10, 1)] {
            memory.set(bytes);
            assert_eq!(account.held_memory(), held * STEP, "{bytes} bytes");
        }
        drop(memory);
        assert_eq!(account.held_memory(), 0);
    }

    #[test]
    fn who_may_not_have_more_memory_has_one_step_and_is_told() {
        let account = account("a");
        let mut memory = InMemory::new(&account);
        // More than there is for all.
        account.hold_memory(crate::io::spool::folder::tests::MEMORY);
        assert!(memory.try_set(60_000), "one step is for everybody");
        assert!(!memory.try_set(70_000));
        account.give_back_memory(crate::io::spool::folder::tests::MEMORY);
        assert!(memory.try_set(70_000));
        assert_eq!(account.held_memory(), 2 * STEP);
    }
}

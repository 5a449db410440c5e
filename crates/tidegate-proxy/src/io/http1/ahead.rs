//! What of a client's connection is in memory beyond what is counted for every connection.

use std::rc::Rc;

use crate::io::conn::account::Account;

/// Bytes that are counted with each connection.
const COUNTED: usize = 4 * 1024;
/// More are held in steps: a read is no larger.
const STEP: usize = 16 * 1024;

/// Bytes that came and are not worked on, held for the tenant of the connection.
#[derive(Debug)]
pub(super) struct Ahead {
    account: Rc<Account>,
    held: usize,
}

impl Ahead {
    /// Nothing more than is counted, on `account`.
    pub(super) fn new(account: &Rc<Account>) -> Self {
        Self { account: Rc::clone(account), held: 0 }
    }

    /// How many bytes may be read ahead, `length` being there; none if the tenant may have no more memory.
    pub(super) fn room(&mut self, length: usize) -> usize {
        if length >= COUNTED + self.held {
            if !self.account.try_hold_memory(STEP as u64) {
                return 0;
            }
            self.held += STEP;
        }
        (COUNTED + self.held).saturating_sub(length)
    }

    /// So many bytes are there, whether or not the tenant may have them: of a head that is not whole. True if it is less than
    /// before.
    pub(super) fn set(&mut self, length: usize) -> bool {
        let needed = length.saturating_sub(COUNTED).next_multiple_of(STEP);
        let before = std::mem::replace(&mut self.held, needed);
        if needed > before {
            self.account.hold_memory((needed - before) as u64);
        } else if needed < before {
            self.account.give_back_memory((before - needed) as u64);
        }
        needed < before
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::Instant;

    use super::*;
    use crate::io::conn::limiter::{Limiter, NeighboursConfig};
    use crate::machine::Resource;
    use crate::machine::neighbours::Capacity;

    const MEMORY: u64 = 1 << 30;

    fn account(name: &str) -> Rc<Account> {
        let config = NeighboursConfig::default().with(Resource::Memory, Capacity::Fixed(MEMORY));
        let limiter = Arc::new(Limiter::new(config, Instant::ZERO));
        let tenant = limiter.with(|limiter| limiter.tenant(name, Instant::ZERO));
        Account::open(limiter, tenant)
    }

    #[test]
    fn what_is_read_ahead_is_held_in_steps_and_given_back() {
        let account = account("a");
        let mut ahead = Ahead::new(&account);
        assert_eq!((ahead.room(0), ahead.room(4_000), account.held_memory()), (4_096, 96, 0));
        assert_eq!((ahead.room(4_096), account.held_memory()), (STEP, STEP as u64));
        assert_eq!((ahead.room(20_480), account.held_memory()), (STEP, 2 * STEP as u64));
        assert!(ahead.set(5_000));
        assert_eq!(account.held_memory(), STEP as u64);
        assert!(ahead.set(0) && !ahead.set(4_096));
        assert_eq!(account.held_memory(), 0);
        assert!(!ahead.set(4_097));
        drop(ahead);
        assert_eq!(account.held_memory(), 0);
    }

    #[test]
    fn who_may_not_have_more_memory_reads_no_further_than_is_counted() {
        let account = account("a");
        let mut ahead = Ahead::new(&account);
        account.hold_memory(MEMORY);
        assert_eq!((ahead.room(0), ahead.room(4_095), ahead.room(4_096)), (4_096, 1, 0));
        account.give_back_memory(MEMORY);
        assert_eq!(ahead.room(4_096), STEP);
    }
}

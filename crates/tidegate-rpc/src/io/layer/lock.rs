//! A lock for work of a fraction of a microsecond, shared by a few threads.

use parking_lot::{Mutex, MutexGuard};

/// How often one that finds the lock taken steps back before it sleeps.
const TRIES: u32 = 8;
/// Pauses of the first step back; each further one is twice as long, so the last is some microseconds.
const PAUSES: u32 = 8;

/// A mutex whose losers step back before they sleep.
///
/// The winner then goes on for a few turns with all that it touches in its own cache, instead of handing it to and fro
/// with each turn, and nobody pays for being put to sleep and woken. Unfair for some microseconds, never for longer: in
/// the end the mutex itself decides. What a holder that panicked left behind is handed on: machines are consistent between
/// calls.
#[derive(Debug, Default)]
pub struct BriefLock<T>(Mutex<T>);

impl<T> BriefLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.lock_later())
    }

    #[cold]
    fn lock_later(&self) -> MutexGuard<'_, T> {
        for step in 0..TRIES {
            for _ in 0..PAUSES << step {
                core::hint::spin_loop();
            }
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_waits_gets_the_lock_and_what_others_did_under_it() {
        let lock = BriefLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn a_panic_under_the_lock_locks_nobody_out() {
        let lock = BriefLock::new(7);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("on purpose");
            });
            assert!(holder.join().is_err());
        });
        assert_eq!(*lock.lock(), 7);
    }
}

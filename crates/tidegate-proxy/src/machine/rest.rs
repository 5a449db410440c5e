//! What is still read of a client that has its last answer.
//!
//! A socket that is closed with unread bytes is reset, and the reset may overtake the answer. Many clients read no answer
//! before they have sent all of their request, so the rest of an upload that is not wanted is read and dropped, as long as
//! there is something to have for it: its bytes and its time are its tenant's, as those of any upload are.

use core::time::Duration;

use tidegate_core::Instant;

/// Bytes that are read whatever the tenant may have: what is on its way when the answer goes out.
const FREE: u64 = 256 * 1024;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    left: u64,
    taken: u64,
    quiet: Duration,
    until: Instant,
}

impl Rest {
    /// Of an upload that was answered before its end, at `now`.
    #[must_use]
    pub fn of_upload(now: Instant) -> Self {
        Self { left: 64 << 20, taken: 0, quiet: Duration::from_secs(5), until: now + Duration::from_secs(30) }
    }

    /// Of a client that broke the rules, or was too slow.
    #[must_use]
    pub fn of_offender(now: Instant) -> Self {
        let quiet = Duration::from_secs(2);
        Self { left: FREE, taken: 0, quiet, until: now + quiet }
    }

    /// When the client is given up that has sent nothing more since `now`.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Instant {
        (now + self.quiet).min(self.until)
    }

    /// So many bytes came; `has_part` says whether the tenant may have more, and is asked when that matters. False if that
    /// was enough.
    pub fn came(&mut self, bytes: u64, now: Instant, has_part: impl FnOnce() -> bool) -> bool {
        self.taken += bytes;
        let Some(left) = self.left.checked_sub(bytes) else { return false };
        self.left = left;
        now < self.until && (self.taken <= FREE || has_part())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_upload_is_read_while_its_tenant_may_have_more() {
        let mut rest = Rest::of_upload(at(0));
        assert!(rest.came(FREE, at(0), || false), "this much is on its way in any case");
        assert!(rest.came(1, at(0), || true) && !rest.came(1, at(0), || false));
    }

    #[test]
    fn there_is_an_end_to_bytes_and_to_time() {
        let mut rest = Rest::of_upload(at(0));
        assert!((0..64).all(|second| rest.came(MIB, at(second * 400), || true)));
        assert!(!rest.came(1, at(0), || true));
        let mut rest = Rest::of_upload(at(0));
        assert_eq!(
            (rest.wait(at(0)), rest.wait(at(10_000)), rest.wait(at(29_000))),
            (at(5_000), at(15_000), at(30_000))
        );
        assert!(rest.came(1, at(29_999), || true) && !rest.came(1, at(30_000), || true));
    }

    #[test]
    fn who_broke_the_rules_gets_less() {
        let mut rest = Rest::of_offender(at(0));
        assert_eq!(rest.wait(at(1_500)), at(2_000));
        assert!(rest.came(FREE, at(0), || true) && !rest.came(1, at(0), || true));
    }
}

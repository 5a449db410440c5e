//! One number for everything that happened.

use core::fmt;
use core::hash::Hasher;

/// The hash of a sequence of events: equal for equal runs, on every platform.
///
/// A [`Hasher`], so that `event.hash(&mut trace)` adds any event. Words are taken by value, not by their bytes in
/// memory: the platform's byte order and word size do not reach the result. Not for secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceHash(u64);

impl TraceHash {
    /// The hash of an empty trace.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    #[inline]
    fn add(&mut self, word: u64) {
        // A step of splitmix64 for each word: order counts, and one flipped bit flips half of the result.
        let mut z = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }
}

impl Hasher for TraceHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        self.add(bytes.len() as u64);
    }

    fn write_u8(&mut self, word: u8) {
        self.add(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.add(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_u128(&mut self, word: u128) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
        self.add(word as u64);
        self.add((word >> 64) as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hash;

    fn of(value: impl Hash) -> TraceHash {
        let mut trace = TraceHash::new();
        value.hash(&mut trace);
        trace
    }

    #[test]
    fn order_length_and_value_count() {
        assert_eq!(of((1u64, 2u64)), of((1u64, 2u64)));
        assert_ne!(of((1u64, 2u64)), of((2u64, 1u64)));
        assert_ne!(of("ab"), of("ab\0"));
        assert_ne!(of(0u64), TraceHash::new());
    }

    #[test]
    fn the_hash_is_the_same_on_every_platform() {
        insta::assert_snapshot!(of(("publish", 7u64, [1u8, 2, 3], -1i32)), @"3919526ee8dd94db");
    }
}

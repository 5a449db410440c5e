//! A list that grows without moving what is in it.

use core::ops::{Index, IndexMut};

/// Entries of a block, as a power of two.
const LOG2: usize = 9;
const BLOCK: usize = 1 << LOG2;

/// A list in blocks. One more entry never costs more than a new block: a list in one piece would be copied when it has
/// doubled, and that takes tens of milliseconds for a hundred thousand entries of several lists.
#[derive(Clone, Debug)]
pub struct Blocks<T> {
    /// All but the last are full.
    blocks: Vec<Vec<T>>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    /// How many there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| ((self.blocks.len() - 1) << LOG2) + last.len())
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The entry at `at`, if there is one.
    #[must_use]
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.blocks.get(at >> LOG2)?.get(at % BLOCK)
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.blocks.get_mut(at >> LOG2)?.get_mut(at % BLOCK)
    }

    /// One entry more, at the end.
    pub fn push(&mut self, entry: T) {
        if self.blocks.last().is_none_or(|last| last.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        if let Some(last) = self.blocks.last_mut() {
            last.push(entry);
        }
    }

    /// Drops the last entry, if there is one.
    pub fn shorten(&mut self) {
        if let Some(last) = self.blocks.last_mut() {
            last.pop();
            if last.is_empty() {
                self.blocks.pop();
            }
        }
    }

    /// The last entry, if there is one.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.blocks.last()?.last()
    }

    /// So many entries at least, `make` giving those that are missing.
    pub fn reach(&mut self, len: usize, mut make: impl FnMut() -> T) {
        while self.len() < len {
            self.push(make());
        }
    }

    /// All entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten()
    }
}

impl<T> Index<usize> for Blocks<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.blocks[at >> LOG2][at % BLOCK]
    }
}

impl<T> IndexMut<usize> for Blocks<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.blocks[at >> LOG2][at % BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it_stays_where_it_is_while_it_grows() {
        let mut list = Blocks::default();
        assert!(list.is_empty() && list.get(0).is_none());
        let mut places = Vec::new();
        for number in 0..10_000_usize {
            list.push(number);
            assert_eq!(list.len(), number + 1);
            places.push(&raw const list[number]);
        }
        assert!(places.iter().enumerate().all(|(at, place)| *place == &raw const list[at]));
        assert!(list.iter().copied().eq(0..10_000));
        assert!(list.get(10_000).is_none() && list.get(20_000).is_none());
        *list.get_mut(9_999).unwrap() = 7;
        list[0] += 5;
        list.reach(10_300, || 1);
        list.reach(10, || 2);
        assert_eq!((list[0], list[9_999], list[10_299], list.len()), (5, 7, 1, 10_300));
        for len in (0..10_300_usize).rev() {
            list.shorten();
            assert_eq!((list.len(), list.last()), (len, len.checked_sub(1).map(|at| &list[at])));
        }
        list.shorten();
        assert!(list.is_empty());
    }
}

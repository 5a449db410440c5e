//! Places for values, named by keys of their own type.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// A value's place in its [`Arena`]; reused after the value is removed. 4 bytes.
pub(super) struct Key<T> {
    index: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    fn new(index: usize) -> Self {
        Self { index: u32::try_from(index).expect("fewer than 2^32 values of a kind"), of: PhantomData }
    }

    fn index(self) -> usize {
        self.index as usize
    }
}

// By hand: derived ones would ask the same of `T`.

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.index.cmp(&other.index)
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index)
    }
}

/// Values at places that stay the same while they are there.
#[derive(Debug)]
pub(super) struct Arena<T>(Slab<T>);

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self(Slab::new())
    }
}

impl<T> Arena<T> {
    /// The key that the next [`insert`](Self::insert) will give.
    pub(super) fn next_key(&self) -> Key<T> {
        Key::new(self.0.vacant_key())
    }

    pub(super) fn insert(&mut self, value: T) -> Key<T> {
        Key::new(self.0.insert(value))
    }

    pub(super) fn remove(&mut self, key: Key<T>) -> T {
        self.0.remove(key.index())
    }

    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        self.0.get(key.index())
    }

    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        self.0.get_mut(key.index())
    }

    pub(super) fn contains(&self, key: Key<T>) -> bool {
        self.0.contains(key.index())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.0.iter().map(|(index, value)| (Key::new(index), value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<T> Index<Key<T>> for Arena<T> {
    type Output = T;
    #[inline]
    fn index(&self, key: Key<T>) -> &T {
        &self.0[key.index()]
    }
}

impl<T> IndexMut<Key<T>> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, key: Key<T>) -> &mut T {
        &mut self.0[key.index()]
    }
}

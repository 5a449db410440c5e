//! A first-in, first-out list of sessions whose links live in the sessions: joining and leaving anywhere is O(1).

use super::server::Session;
use crate::machine::sessions::Sessions;

/// No session.
const NONE: u32 = u32::MAX;

/// The list that a session is in; at most one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    /// In none.
    #[default]
    Nowhere,
    /// Without credit and without a request inside: it waits for the pool.
    Drained,
    /// Its window shall be told.
    Outbox,
}

/// A session's neighbours; only meaningful while it is in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    before: u32,
    after: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, after: NONE }
    }
}

/// The ends of a list.
#[derive(Clone, Debug)]
pub(super) struct Line {
    kind: Place,
    first: u32,
    last: u32,
}

impl Line {
    pub(super) fn new(kind: Place) -> Self {
        Self { kind, first: NONE, last: NONE }
    }

    /// The session that has been in it for longest.
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Appends a session that is in no list.
    pub(super) fn push(&mut self, table: &mut Sessions<Session>, index: u32) {
        debug_assert_eq!(table[index].place, Place::Nowhere, "a session is in one list at most");
        table[index].place = self.kind;
        table[index].links = Links { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = index,
            last => table[last].links.after = index,
        }
        self.last = index;
    }

    /// Takes a session out if it is in this list.
    pub(super) fn remove(&mut self, table: &mut Sessions<Session>, index: u32) {
        if table[index].place != self.kind {
            return;
        }
        let Links { before, after } = core::mem::take(&mut table[index].links);
        table[index].place = Place::Nowhere;
        match before {
            NONE => self.first = after,
            before => table[before].links.after = after,
        }
        match after {
            NONE => self.last = before,
            after => table[after].links.before = before,
        }
    }
}

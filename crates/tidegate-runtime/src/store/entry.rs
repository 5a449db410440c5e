//! What a store holds, and how it is read.

/// The number of a committed transaction. Later ones have higher numbers; a store that others use too has gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// A claim on keys that ends by itself unless it is kept alive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value, as it was put.
    pub value: Vec<u8>,
    /// The transaction that made the key.
    pub created: Revision,
    /// The transaction that last wrote it; what `Expect::Unchanged` compares.
    pub modified: Revision,
    /// The lease that the key ends with.
    pub lease: Option<LeaseId>,
}

/// A committed write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The transaction it belongs to; several events may share it.
    pub revision: Revision,
    /// The key.
    pub key: String,
    /// The new value; `None` for a key that was removed or whose lease ended.
    pub value: Option<Vec<u8>>,
}

/// Most entries of a page. A limit's entry has some 300 bytes.
pub const MAX_PAGE: usize = 1_000;

/// Which entries to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scan<'a> {
    /// What their keys begin with.
    pub prefix: &'a str,
    /// The first key that may be read; `None` for the first of the prefix.
    pub from: Option<&'a str>,
    /// Most entries; 1 to [`MAX_PAGE`], and what is outside counts as the nearer of the two.
    pub limit: usize,
}

impl<'a> Scan<'a> {
    /// The first page of everything under `prefix`.
    #[must_use]
    pub const fn of(prefix: &'a str) -> Self {
        Self { prefix, from: None, limit: MAX_PAGE }
    }

    /// The page that begins at `from`.
    #[must_use]
    pub const fn from(self, from: Option<&'a str>) -> Self {
        Self { from, ..self }
    }

    /// A page of at most `limit` entries.
    #[must_use]
    pub const fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// The key that the page begins at.
    pub(super) fn start(&self) -> &'a str {
        self.from.map_or(self.prefix, |from| from.max(self.prefix))
    }

    /// Most entries of the page.
    pub(super) fn bound(&self) -> usize {
        self.limit.clamp(1, MAX_PAGE)
    }
}

/// Some entries, in order of key, as they were at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The revision that they are from; pages of one scan may be from different ones.
    pub revision: Revision,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<String>,
}

/// Where a page ends that stopped after `last`, and is not the last one: the smallest key behind it.
pub(super) fn after(last: &str) -> String {
    format!("{last}\0")
}

/// How one of the processes that keep a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It answers, and orders all writes.
    Leads,
    /// It answers, and knows a leader.
    Follows,
    /// It answers, and knows no leader: nothing can be written through it.
    Leaderless,
    /// It does not answer.
    Silent,
}

/// One of the processes that keep a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeHealth {
    /// Its endpoint, or the file.
    pub name: String,
    /// How it is.
    pub state: NodeState,
    /// The version that it runs, if it said.
    pub version: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_within_its_prefix() {
        let scan = Scan::of("limit/");
        assert_eq!(scan.start(), "limit/");
        assert_eq!(scan.from(Some("limit/b")).start(), "limit/b");
        assert_eq!(scan.from(Some("aaa")).start(), "limit/");
        assert_eq!((scan.limit(0).bound(), scan.limit(7).bound(), scan.limit(5_000).bound()), (1, 7, MAX_PAGE));
    }

    #[test]
    fn no_key_lies_between_a_page_and_the_next() {
        let next = after("limit/a");
        assert!("limit/a" < next.as_str() && next.as_str() < "limit/a\u{1}" && next.as_str() < "limit/a!");
    }
}

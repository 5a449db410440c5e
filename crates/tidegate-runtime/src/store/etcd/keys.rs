//! Between the store's keys and etcd's, which begin with a prefix; and between the numbers of both.

use super::messages::{DELETE, KeyValue, KvEvent};
use crate::store::entry::{Entry, Event, LeaseId, Revision};
use crate::store::error::StoreError;

/// The prefix, which is not empty.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// etcd's key.
    pub(super) fn full(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    /// The first of etcd's keys behind all that begin with `prefix`.
    pub(super) fn end_of(&self, prefix: &str) -> Vec<u8> {
        let mut end = self.full(prefix);
        // Text in UTF-8 has no byte 0xff, so there is a next one.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// The store's key.
    fn own(&self, key: Vec<u8>) -> Result<String, StoreError> {
        let foreign = |key: &[u8]| StoreError::Foreign { key: String::from_utf8_lossy(key).into_owned() };
        let key = String::from_utf8(key).map_err(|error| foreign(error.as_bytes()))?;
        key.strip_prefix(&self.prefix).map(str::to_owned).ok_or_else(|| foreign(key.as_bytes()))
    }

    pub(super) fn entry(&self, found: KeyValue) -> Result<Entry, StoreError> {
        Ok(Entry {
            key: self.own(found.key)?,
            value: found.value,
            created: revision(found.create_revision),
            modified: revision(found.mod_revision),
            lease: (found.lease != 0).then(|| lease(found.lease)),
        })
    }

    pub(super) fn event(&self, told: KvEvent) -> Result<Event, StoreError> {
        let kv = told.kv.unwrap_or_default();
        Ok(Event {
            revision: revision(kv.mod_revision),
            key: self.own(kv.key)?,
            value: (told.kind != DELETE).then_some(kv.value),
        })
    }
}

/// etcd's revisions are positive.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// Those that no etcd has reached are as good as the last.
pub(super) fn revision_number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Lease ids are any 64 bits but zero.
pub(super) fn lease(number: i64) -> LeaseId {
    LeaseId(u64::from_ne_bytes(number.to_ne_bytes()))
}

pub(super) fn lease_number(lease: LeaseId) -> i64 {
    i64::from_ne_bytes(lease.0.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_neighbour() {
        let keys = Keys::new("/tidegate/");
        assert_eq!(keys.full("limit/a"), b"/tidegate/limit/a");
        assert_eq!(keys.end_of("limit/"), b"/tidegate/limit0");
        assert_eq!(keys.end_of(""), b"/tidegate0");
        assert!(keys.end_of("limit/") > keys.full("limit/\u{10ffff}"));
    }

    #[test]
    fn keys_come_back_and_others_are_refused() {
        let keys = Keys::new("/tidegate/");
        let kv = |key: &[u8]| KeyValue { key: key.to_vec(), mod_revision: 5, ..KeyValue::default() };
        assert_eq!(keys.entry(kv(b"/tidegate/limit/a")).unwrap().key, "limit/a");
        assert!(matches!(keys.entry(kv(b"/tidegate/\xff")), Err(StoreError::Foreign { .. })));
        assert!(matches!(keys.entry(kv(b"/other/a")), Err(StoreError::Foreign { .. })));
        let removal = KvEvent { kind: DELETE, kv: Some(kv(b"/tidegate/a")) };
        let event = keys.event(removal).unwrap();
        assert_eq!((event.revision, event.key.as_str(), event.value), (Revision(5), "a", None));
    }

    #[test]
    fn lease_ids_survive_the_way_there_and_back() {
        for number in [1, 7_587_848_943_239_472_000, i64::MAX, i64::MIN, -1] {
            assert_eq!(lease_number(lease(number)), number);
        }
    }
}

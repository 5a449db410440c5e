//! What users of the control store rely on.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::store::{
    ControlStore, EmbeddedStore, Expect, Options, Outcome, Revision, StoreError, Transaction, Write,
};

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-store-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("control.redb")
    }

    fn store(&self) -> EmbeddedStore {
        EmbeddedStore::open(self.file(), Options::default()).expect("the store opens")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn entries_revisions_and_history_survive_a_restart() {
    let folder = Folder::new("restart");
    let store = folder.store();
    assert_eq!(store.put_if("a", b"1".to_vec(), Expect::Absent).unwrap(), Outcome::Committed(Revision(1)));
    store.put_if("a", b"2".to_vec(), Expect::Unchanged(Revision(1))).unwrap();
    store.put_if("b", b"3".to_vec(), Expect::Absent).unwrap();
    drop(store);

    let store = folder.store();
    let a = store.get("a").unwrap().unwrap();
    assert_eq!((a.value.as_slice(), a.created, a.modified), (&b"2"[..], Revision(1), Revision(2)));
    let events = store.watch_from("a", Revision(0)).unwrap().next(Duration::ZERO).unwrap();
    let values: Vec<_> = events.iter().map(|event| (event.revision.0, event.value.as_deref())).collect();
    assert_eq!(values, [(1, Some(&b"1"[..])), (2, Some(&b"2"[..]))]);
    assert_eq!(store.put_if("c", vec![], Expect::Anything).unwrap(), Outcome::Committed(Revision(4)));
}

#[test]
fn a_writer_with_a_stale_revision_changes_nothing() {
    let folder = Folder::new("stale");
    let store = folder.store();
    store.put_if("a", b"1".to_vec(), Expect::Anything).unwrap();
    let transaction = Transaction {
        expect: vec![("b".into(), Expect::Absent), ("a".into(), Expect::Unchanged(Revision(9)))],
        writes: vec![Write::put("b", "x"), Write::delete("a")],
    };
    let Outcome::Conflict { key, found } = store.txn(transaction).unwrap() else { panic!("revision 9 never was") };
    assert_eq!((key.as_str(), found.unwrap().modified), ("a", Revision(1)));
    let (entries, revision) = store.range("", 10).unwrap();
    assert_eq!((entries.len(), revision), (1, Revision(1)));
}

#[test]
fn ranges_hold_their_prefix_in_order_up_to_a_limit() {
    let folder = Folder::new("range");
    let store = folder.store();
    for key in ["limit/b", "limit/a", "limit/c", "limits", "kimit"] {
        store.put_if(key, vec![], Expect::Absent).unwrap();
    }
    let keys =
        |limit| -> Vec<String> { store.range("limit/", limit).unwrap().0.into_iter().map(|entry| entry.key).collect() };
    assert_eq!(keys(9), ["limit/a", "limit/b", "limit/c"]);
    assert_eq!(keys(2), ["limit/a", "limit/b"]);
}

#[test]
fn a_watch_wakes_up_for_a_commit_and_misses_none() {
    let folder = Folder::new("watch");
    let store = folder.store();
    let mut watch = store.watch_from("limit/", Revision(0)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_u8 {
                store.put_if(if n % 2 == 0 { "limit/x" } else { "other" }, vec![n], Expect::Anything).unwrap();
            }
        });
        let mut seen = Vec::new();
        while seen.len() < 10 {
            let events = watch.next(SOON).unwrap();
            seen.extend(events.into_iter().map(|event| event.value.unwrap()[0]));
        }
        assert_eq!(seen, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    });
}

#[test]
fn history_is_bounded_and_a_watch_behind_it_is_told() {
    let folder = Folder::new("history");
    let store = EmbeddedStore::open(folder.file(), Options { history: 3, ..Options::default() }).unwrap();
    let mut slow = store.watch_from("", Revision(0)).unwrap();
    for n in 1..=5_u8 {
        store.put_if("a", vec![n], Expect::Anything).unwrap();
    }
    let error = slow.next(Duration::ZERO).unwrap_err();
    assert!(matches!(error, StoreError::Compacted { seen: Revision(0), oldest: Revision(2) }), "{error}");
    let mut kept = store.watch_from("", Revision(2)).unwrap();
    assert_eq!(kept.next(Duration::ZERO).unwrap().len(), 3);
}

thread_local! {
    static TIME: Cell<u64> = const { Cell::new(1) };
}

#[test]
fn keys_end_with_their_lease_and_with_the_process() {
    let folder = Folder::new("lease");
    let options = Options { clock: || Instant::from_nanos(TIME.get()), ..Options::default() };
    let store = EmbeddedStore::open(folder.file(), options).unwrap();
    let lease = store.lease_grant(Duration::from_nanos(10)).unwrap();
    let put = |lease| Write::Put { key: "owner".into(), value: b"me".to_vec(), lease: Some(lease) };
    store.txn(Transaction { expect: vec![], writes: vec![put(lease)] }).unwrap();
    TIME.set(10);
    store.lease_keepalive(lease).unwrap();
    TIME.set(19);
    assert_eq!(store.get("owner").unwrap().unwrap().lease, Some(lease));
    TIME.set(20);
    assert_eq!(store.get("owner").unwrap(), None);
    assert!(matches!(store.lease_keepalive(lease), Err(StoreError::LeaseEnded { .. })));
    assert!(store.txn(Transaction { expect: vec![], writes: vec![put(lease)] }).is_err());

    let lease = store.lease_grant(Duration::from_mins(1)).unwrap();
    store.txn(Transaction { expect: vec![], writes: vec![put(lease)] }).unwrap();
    drop(store);
    let store = EmbeddedStore::open(folder.file(), options).unwrap();
    assert_eq!(store.get("owner").unwrap(), None);
}

#[test]
fn a_store_in_use_says_so() {
    let folder = Folder::new("locked");
    let _first = folder.store();
    let error = EmbeddedStore::open(folder.file(), Options::default()).err().unwrap();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    assert!(error.remedy().unwrap().contains("store.path"));
}

#[test]
fn any_other_file_is_refused_and_left_alone() {
    let folder = Folder::new("foreign");
    let text = b"[broker]\ndata_path = \"/var/lib/tidegate\"\n".repeat(1_000);
    fs::write(folder.file(), &text).unwrap();
    let error = EmbeddedStore::open(folder.file(), Options::default()).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert_eq!(fs::read(folder.file()).unwrap(), text);
}

#[test]
fn a_file_cut_short_opens_whole_or_says_that_it_is_damaged() {
    let folder = Folder::new("torn");
    let store = folder.store();
    for n in 0..50_u8 {
        store.put_if(&format!("key/{n}"), vec![n; 1_000], Expect::Absent).unwrap();
    }
    drop(store);
    let whole = fs::read(folder.file()).unwrap();
    let mut refused = 0;
    for part in 0..16 {
        fs::write(folder.file(), &whole[..whole.len() * part / 16]).unwrap();
        match EmbeddedStore::open(folder.file(), Options::default()) {
            // Either nothing was there yet, or what is there is all of it.
            Ok(store) => assert!(matches!(store.range("key/", 99).unwrap().0.len(), 0 | 50), "cut at {part}/16"),
            Err(StoreError::Damaged { path, .. }) => {
                assert_eq!(path, folder.file());
                refused += 1;
            }
            Err(other) => panic!("cut at {part}/16: {other}"),
        }
    }
    assert!(refused >= 8, "only {refused} of 16 cuts were noticed");
}

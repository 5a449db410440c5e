//! The embedded store: the suite of all stores, and what is special about a file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod conformance;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::store::{
    ControlStore, EmbeddedStore, Expect, Options, Outcome, Revision, StoreError, Transaction, Write, list,
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

/// As many transactions as a part of the suite makes before it watches, and more.
const HISTORY: u64 = 100;

struct Files {
    folder: Folder,
    made: AtomicU64,
}

impl conformance::Factory for Files {
    async fn fresh(&self) -> Arc<dyn ControlStore> {
        let file = self.folder.0.join(format!("{}.redb", self.made.fetch_add(1, Ordering::Relaxed)));
        Arc::new(EmbeddedStore::open(file, Options { history: HISTORY, ..Options::default() }).unwrap())
    }

    async fn forget(&self, store: &Arc<dyn ControlStore>, revision: Revision) {
        let mut newest = revision;
        while newest.0 < revision.0 + HISTORY {
            let outcome = store.put_if("forget", Vec::new(), Expect::Anything).await.unwrap();
            let Outcome::Committed(at) = outcome else { panic!("nobody else writes: {outcome:?}") };
            newest = at;
        }
    }
}

#[tokio::test]
async fn it_conforms() {
    let files = Files { folder: Folder::new("conformance"), made: AtomicU64::new(0) };
    conformance::conformance(&files).await;
}

#[tokio::test]
async fn entries_revisions_and_history_survive_a_restart() {
    let folder = Folder::new("restart");
    let store = folder.store();
    assert_eq!(store.put_if("a", b"1".to_vec(), Expect::Absent).await.unwrap(), Outcome::Committed(Revision(1)));
    store.put_if("a", b"2".to_vec(), Expect::Unchanged(Revision(1))).await.unwrap();
    store.put_if("b", b"3".to_vec(), Expect::Absent).await.unwrap();
    drop(store);

    let store = folder.store();
    let a = store.get("a").await.unwrap().unwrap();
    assert_eq!((a.value.as_slice(), a.created, a.modified), (&b"2"[..], Revision(1), Revision(2)));
    let events = store.watch_from("a", Revision(0)).await.unwrap().next().await.unwrap();
    let values: Vec<_> = events.iter().map(|event| (event.revision.0, event.value.as_deref())).collect();
    assert_eq!(values, [(1, Some(&b"1"[..])), (2, Some(&b"2"[..]))]);
    assert_eq!(store.put_if("c", vec![], Expect::Anything).await.unwrap(), Outcome::Committed(Revision(4)));
}

#[tokio::test]
async fn history_is_bounded_and_a_watch_behind_it_is_told() {
    let folder = Folder::new("history");
    let store = EmbeddedStore::open(folder.file(), Options { history: 3, ..Options::default() }).unwrap();
    let mut slow = store.watch_from("", Revision(0)).await.unwrap();
    for n in 1..=5_u8 {
        store.put_if("a", vec![n], Expect::Anything).await.unwrap();
    }
    let error = slow.next().await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { seen: Revision(0), oldest: Revision(2) }), "{error}");
    let mut kept = store.watch_from("", Revision(2)).await.unwrap();
    assert_eq!(kept.next().await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_watch_ends_with_its_store() {
    let folder = Folder::new("closed");
    let store = folder.store();
    let mut watch = store.watch_from("", Revision(0)).await.unwrap();
    drop(store);
    let error = watch.next().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    folder.store();
}

static TIME: AtomicU64 = AtomicU64::new(1);

fn time() -> Instant {
    Instant::from_nanos(TIME.load(Ordering::SeqCst))
}

#[tokio::test]
async fn keys_end_with_their_lease_to_the_nanosecond_and_with_the_process() {
    let folder = Folder::new("lease");
    let options = Options { clock: time, ..Options::default() };
    let store = EmbeddedStore::open(folder.file(), options).unwrap();
    let lease = store.lease_grant(Duration::from_nanos(10)).await.unwrap();
    let put = |lease| Transaction::of([Write::leased("owner", "me", lease)]);
    store.txn(put(lease)).await.unwrap();
    TIME.store(10, Ordering::SeqCst);
    store.lease_keepalive(lease).await.unwrap();
    TIME.store(19, Ordering::SeqCst);
    assert_eq!(store.get("owner").await.unwrap().unwrap().lease, Some(lease));
    TIME.store(20, Ordering::SeqCst);
    assert_eq!(store.get("owner").await.unwrap(), None);
    assert!(matches!(store.lease_keepalive(lease).await, Err(StoreError::LeaseEnded { .. })));
    assert!(store.txn(put(lease)).await.is_err());

    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    store.txn(put(lease)).await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(folder.file(), options).unwrap();
    assert_eq!(store.get("owner").await.unwrap(), None);
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

#[tokio::test]
async fn a_file_cut_short_opens_whole_or_says_that_it_is_damaged() {
    let folder = Folder::new("torn");
    let store = folder.store();
    for n in 0..50_u8 {
        store.put_if(&format!("key/{n}"), vec![n; 1_000], Expect::Absent).await.unwrap();
    }
    drop(store);
    let whole = fs::read(folder.file()).unwrap();
    let mut refused = 0;
    for part in 0..16 {
        fs::write(folder.file(), &whole[..whole.len() * part / 16]).unwrap();
        match EmbeddedStore::open(folder.file(), Options::default()) {
            // Either nothing was there yet, or what is there is all of it.
            Ok(store) => {
                let found = list(&store, "key/", 99).await.unwrap().0.len();
                assert!(matches!(found, 0 | 50), "cut at {part}/16");
            }
            Err(StoreError::Damaged { path, .. }) => {
                assert_eq!(path, folder.file());
                refused += 1;
            }
            Err(other) => panic!("cut at {part}/16: {other}"),
        }
    }
    assert!(refused >= 8, "only {refused} of 16 cuts were noticed");
}

//! What every control store does. One suite for all of them: a store that passes can stand in for another.

use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::store::{
    ControlStore, Event, Expect, Follower, KeptLease, LeaseId, MAX_PAGE, MAX_VALUE_BYTES, MAX_WRITES, NodeState,
    Outcome, Revision, Scan, StoreError, Transaction, Watch, Write, commit, list,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Far longer than any of this takes; a test that waits so long has failed.
const SOON: Duration = Duration::from_secs(30);
/// As short as every store grants it.
const LEASE: Duration = Duration::from_secs(2);

type Store = Arc<dyn ControlStore>;

/// Makes stores.
pub(crate) trait Factory {
    /// A store without entries.
    async fn fresh(&self) -> Store;

    /// Lets `store` forget its history up to `revision`, which is not its newest one.
    async fn forget(&self, store: &Store, revision: Revision);
}

/// Runs the whole suite, each part on a store of its own.
pub(crate) async fn conformance(factory: &impl Factory) {
    entries_remember_who_made_and_last_wrote_them(&factory.fresh().await).await;
    a_writer_with_a_stale_revision_changes_nothing(&factory.fresh().await).await;
    pages_put_together_are_all_of_a_prefix(&factory.fresh().await).await;
    what_is_not_there_is_removed_without_an_event(&factory.fresh().await).await;
    bounds_are_told_before_anything_is_written(&factory.fresh().await).await;
    a_watch_wakes_up_and_misses_none(&factory.fresh().await).await;
    a_transactions_events_come_together_and_in_order(&factory.fresh().await).await;
    a_watch_goes_on_from_any_revision(&factory.fresh().await).await;
    writers_at_the_same_time_lose_nothing(&factory.fresh().await).await;
    keys_end_with_a_lease_that_is_revoked(&factory.fresh().await).await;
    keys_end_with_a_lease_that_runs_out(&factory.fresh().await).await;
    a_kept_lease_outlives_its_span(&factory.fresh().await).await;
    a_conflict_is_not_a_lost_answer(&factory.fresh().await).await;
    somebody_leads(&factory.fresh().await).await;
    let store = factory.fresh().await;
    history_that_is_forgotten_is_told_and_read_again(factory, &store).await;
}

fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict { key, found } => panic!("{key} is in the way: {found:?}"),
    }
}

async fn put(store: &Store, key: &str, value: &str) -> Revision {
    committed(store.put_if(key, value.into(), Expect::Anything).await.unwrap())
}

async fn value_of(store: &Store, key: &str) -> Option<String> {
    store.get(key).await.unwrap().map(|entry| String::from_utf8(entry.value).unwrap())
}

async fn keys_under(store: &Store, prefix: &str) -> Vec<String> {
    list(&**store, prefix, 10_000).await.unwrap().0.into_iter().map(|entry| entry.key).collect()
}

/// The next `count` events, as they come.
async fn next(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        let told = timeout(SOON, watch.next()).await.expect("an event in time").unwrap();
        assert!(!told.is_empty(), "a watch says something or nothing");
        events.extend(told);
    }
    events
}

fn told(events: &[Event]) -> Vec<(&str, Option<&str>)> {
    events.iter().map(|event| (event.key.as_str(), event.value.as_deref().map(text))).collect()
}

fn text(value: &[u8]) -> &str {
    str::from_utf8(value).unwrap()
}

async fn entries_remember_who_made_and_last_wrote_them(store: &Store) {
    assert_eq!(store.get("a").await.unwrap(), None);
    let first = committed(store.put_if("a", b"1".to_vec(), Expect::Absent).await.unwrap());
    let second = committed(store.put_if("a", b"2".to_vec(), Expect::Unchanged(first)).await.unwrap());
    let third = put(store, "b", "3").await;
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
    let a = store.get("a").await.unwrap().unwrap();
    assert_eq!((a.key.as_str(), a.value.as_slice(), a.created, a.modified), ("a", &b"2"[..], first, second));
    assert_eq!(a.lease, None);
    store.txn(Transaction::of([Write::delete("a")])).await.unwrap();
    let again = committed(store.put_if("a", Vec::new(), Expect::Absent).await.unwrap());
    let a = store.get("a").await.unwrap().unwrap();
    assert_eq!((a.value.len(), a.created, a.modified), (0, again, again), "a key that comes back is a new one");
}

async fn a_writer_with_a_stale_revision_changes_nothing(store: &Store) {
    let at = put(store, "a", "1").await;
    let stale = Revision(at.0 + 1_000_000);
    let transaction = Transaction {
        expect: vec![
            ("b".into(), Expect::Absent),
            ("c".into(), Expect::Anything),
            ("a".into(), Expect::Unchanged(stale)),
            ("z".into(), Expect::Unchanged(at)),
        ],
        writes: vec![Write::put("b", "x"), Write::delete("a")],
        marker: None,
    };
    let Outcome::Conflict { key, found } = store.txn(transaction).await.unwrap() else {
        panic!("revision {stale:?} never was")
    };
    assert_eq!((key.as_str(), found.unwrap().modified), ("a", at), "the first that does not hold is named");
    assert_eq!(keys_under(store, "").await, ["a"]);
    let taken = store.put_if("a", Vec::new(), Expect::Absent).await.unwrap();
    assert!(matches!(taken, Outcome::Conflict { found: Some(entry), .. } if entry.value == b"1"));
    let missing = store.put_if("no", Vec::new(), Expect::Unchanged(at)).await.unwrap();
    assert_eq!(missing, Outcome::Conflict { key: "no".to_owned(), found: None });
}

async fn pages_put_together_are_all_of_a_prefix(store: &Store) {
    for key in ["limit/b", "limit/a", "limit/\u{e9}", "limits", "kimit"] {
        put(store, key, "").await;
    }
    let newest = put(store, "limit/c", "").await;
    assert_eq!(keys_under(store, "limit/").await, ["limit/a", "limit/b", "limit/c", "limit/\u{e9}"]);
    assert!(keys_under(store, "nothing/").await.is_empty());
    let page = store.range(Scan::of("limit/").limit(2)).await.unwrap();
    let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["limit/a", "limit/b"]);
    assert!(page.revision >= newest);
    let next = page.next.expect("there is more");
    let page = store.range(Scan::of("limit/").from(Some(&next)).limit(2)).await.unwrap();
    let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!((keys, page.next), (vec!["limit/c", "limit/\u{e9}"], None));
    let behind = store.range(Scan::of("limit/").from(Some("limit/\u{10ffff}"))).await.unwrap();
    assert_eq!((behind.entries.len(), behind.next), (0, None));

    // More than one page of the largest size, and a list that is longer than it may be.
    let count = MAX_PAGE + 5;
    for batch in (0..count).collect::<Vec<_>>().chunks(MAX_WRITES) {
        let writes: Vec<_> = batch.iter().map(|n| Write::put(format!("many/{n:05}"), n.to_string())).collect();
        committed(store.txn(Transaction::of(writes)).await.unwrap());
    }
    let (entries, _) = list(&**store, "many/", count).await.unwrap();
    assert!(entries.iter().enumerate().all(|(n, entry)| entry.value == n.to_string().as_bytes()));
    assert_eq!(entries.len(), count);
    let longer = list(&**store, "many/", count - 1).await.unwrap_err();
    assert!(matches!(longer, StoreError::TooLarge { what: "list", .. }), "{longer}");
}

async fn what_is_not_there_is_removed_without_an_event(store: &Store) {
    let seen = put(store, "a", "1").await;
    let same = committed(store.txn(Transaction::of([Write::delete("b")])).await.unwrap());
    assert!(same >= seen);
    store.txn(Transaction::of([Write::delete("b"), Write::delete("a")])).await.unwrap();
    put(store, "c", "3").await;
    let mut watch = store.watch_from("", seen).await.unwrap();
    let events = next(&mut *watch, 2).await;
    assert_eq!(told(&events), [("a", None), ("c", Some("3"))]);
}

async fn bounds_are_told_before_anything_is_written(store: &Store) {
    committed(store.put_if("large", vec![7; MAX_VALUE_BYTES], Expect::Absent).await.unwrap());
    assert_eq!(store.get("large").await.unwrap().unwrap().value.len(), MAX_VALUE_BYTES);
    let refused = async |writes: Vec<Write>| store.txn(Transaction::of(writes)).await.unwrap_err();
    let error = refused(vec![Write::put("small", "1"), Write::put("larger", vec![7; MAX_VALUE_BYTES + 1])]).await;
    assert!(matches!(error, StoreError::TooLarge { what: "value", .. }), "{error}");
    let error = refused((0..=MAX_WRITES).map(|n| Write::put(n.to_string(), "")).collect()).await;
    assert!(matches!(error, StoreError::TooLarge { what: "transaction", .. }), "{error}");
    let error = refused(vec![Write::put("twice", "1"), Write::put("twice", "2")]).await;
    assert!(matches!(error, StoreError::WrittenTwice { .. }), "{error}");
    assert_eq!(keys_under(store, "").await, ["large"]);
    let most = (0..MAX_WRITES).map(|n| Write::put(format!("n/{n}"), "")).collect::<Vec<_>>();
    let expect = most.iter().map(|write| (write.key().to_owned(), Expect::Absent)).collect();
    committed(store.txn(Transaction { expect, writes: most, marker: None }).await.unwrap());
    assert_eq!(keys_under(store, "n/").await.len(), MAX_WRITES);
    // Pages of large entries are smaller, and none is left out.
    for n in 0..12 {
        committed(store.put_if(&format!("big/{n:02}"), vec![n; MAX_VALUE_BYTES], Expect::Absent).await.unwrap());
    }
    let (entries, _) = list(&**store, "big/", 12).await.unwrap();
    assert!(entries.len() == 12 && entries.iter().zip(0..).all(|(entry, n)| entry.value[0] == n));
}

async fn a_watch_wakes_up_and_misses_none(store: &Store) {
    let seen = put(store, "before", "").await;
    let mut watch = store.watch_from("limit/", seen).await.unwrap();
    // A wait that is given up loses nothing.
    assert!(timeout(Duration::from_millis(50), watch.next()).await.is_err());
    let writer = {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for n in 0..60 {
                put(&store, if n % 3 == 0 { "limit/x" } else { "other" }, &n.to_string()).await;
            }
        })
    };
    let events = next(&mut *watch, 20).await;
    writer.await.unwrap();
    let values: Vec<_> = told(&events).iter().map(|(_, value)| value.unwrap().parse::<u32>().unwrap()).collect();
    assert_eq!(values, (0..20).map(|n| n * 3).collect::<Vec<_>>());
    assert!(events.windows(2).all(|pair| pair[0].revision < pair[1].revision));
}

async fn a_transactions_events_come_together_and_in_order(store: &Store) {
    let seen = put(store, "t/gone", "").await;
    let mut watch = store.watch_from("t/", seen).await.unwrap();
    let writes = [Write::put("t/2", "a"), Write::delete("t/gone"), Write::put("u", "b"), Write::put("t/1", "c")];
    let revision = committed(store.txn(Transaction::of(writes)).await.unwrap());
    let events = timeout(SOON, watch.next()).await.unwrap().unwrap();
    assert_eq!(told(&events), [("t/2", Some("a")), ("t/gone", None), ("t/1", Some("c"))]);
    assert!(events.iter().all(|event| event.revision == revision));
}

async fn a_watch_goes_on_from_any_revision(store: &Store) {
    let mut revisions = vec![put(store, "w/0", "0").await];
    for n in 1..10 {
        put(store, "elsewhere", "").await;
        revisions.push(put(store, &format!("w/{n}"), &n.to_string()).await);
    }
    for (n, seen) in revisions.iter().enumerate().take(9) {
        let mut watch = store.watch_from("w/", *seen).await.unwrap();
        let events = next(&mut *watch, 9 - n).await;
        let found: Vec<_> = events.iter().map(|event| event.revision).collect();
        assert_eq!(found, revisions[n + 1..], "after {n}");
    }
    // Nothing is told of what was seen, but of what comes after it.
    let mut watch = store.watch_from("w/", revisions[9]).await.unwrap();
    put(store, "w/new", "").await;
    assert_eq!(told(&next(&mut *watch, 1).await), [("w/new", Some(""))]);
}

async fn writers_at_the_same_time_lose_nothing(store: &Store) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 6;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = Arc::clone(store);
        writers.spawn(async move {
            let mut done = 0;
            while done < EACH {
                let found = store.get("count").await.unwrap();
                let count: u64 = found.as_ref().map_or(0, |entry| text(&entry.value).parse().unwrap());
                let expect = found.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
                let value = (count + 1).to_string().into_bytes();
                if let Outcome::Committed(_) = store.put_if("count", value, expect).await.unwrap() {
                    done += 1;
                }
            }
        });
    }
    writers.join_all().await;
    assert_eq!(value_of(store, "count").await, Some((WRITERS * EACH).to_string()));
}

async fn keys_end_with_a_lease_that_is_revoked(store: &Store) {
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    let other = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    assert_ne!(lease, other);
    let owner = Transaction::of([Write::leased("owner", "me", lease), Write::leased("other", "", other)]);
    let seen = committed(store.txn(owner.clone()).await.unwrap());
    assert_eq!(store.get("owner").await.unwrap().unwrap().lease, Some(lease));
    store.lease_keepalive(lease).await.unwrap();
    store.lease_revoke(lease).await.unwrap();
    assert_eq!(keys_under(store, "").await, ["other"]);
    let mut watch = store.watch_from("", seen).await.unwrap();
    assert_eq!(told(&next(&mut *watch, 1).await), [("owner", None)]);

    let error = store.lease_keepalive(lease).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseEnded { lease: ended } if ended == lease), "{error}");
    let error = store.txn(owner).await.unwrap_err();
    assert!(matches!(error, StoreError::LeaseEnded { lease: ended } if ended == lease), "{error}");
    assert_eq!(value_of(store, "owner").await, None);
    store.lease_revoke(lease).await.unwrap();
    store.lease_revoke(LeaseId(987_654_321)).await.unwrap();
    // A key that is put without its lease stays.
    put(store, "other", "kept").await;
    store.lease_revoke(other).await.unwrap();
    assert_eq!(value_of(store, "other").await.as_deref(), Some("kept"));
}

async fn keys_end_with_a_lease_that_runs_out(store: &Store) {
    let lease = store.lease_grant(LEASE).await.unwrap();
    let seen = committed(store.txn(Transaction::of([Write::leased("owner", "me", lease)])).await.unwrap());
    // Nobody asks meanwhile, and the watch is told all the same.
    let mut watch = store.watch_from("owner", seen).await.unwrap();
    assert_eq!(told(&next(&mut *watch, 1).await), [("owner", None)]);
    assert!(matches!(store.lease_keepalive(lease).await, Err(StoreError::LeaseEnded { .. })));
}

async fn a_kept_lease_outlives_its_span(store: &Store) {
    let mut kept = KeptLease::grant(Arc::clone(store), LEASE).await.unwrap();
    let granted_until = kept.until();
    store.txn(Transaction::of([Write::leased("leader", "me", kept.id())])).await.unwrap();
    assert!(timeout(LEASE * 2, kept.ended()).await.is_err(), "it is renewed");
    assert!(kept.until() > granted_until);
    assert_eq!(value_of(store, "leader").await.as_deref(), Some("me"));
    // One that is ended from elsewhere is over here too.
    store.lease_revoke(kept.id()).await.unwrap();
    timeout(SOON, kept.ended()).await.expect("its holder is told");
    assert_eq!(value_of(store, "leader").await, None);

    let kept = KeptLease::grant(Arc::clone(store), LEASE).await.unwrap();
    store.txn(Transaction::of([Write::leased("leader", "you", kept.id())])).await.unwrap();
    kept.revoke().await.unwrap();
    assert_eq!(value_of(store, "leader").await, None);
}

async fn a_conflict_is_not_a_lost_answer(store: &Store) {
    let marked = |value: &str| Transaction {
        expect: vec![("mark".into(), Expect::Absent)],
        writes: vec![Write::put("mark", value)],
        marker: Some("mark".to_owned()),
    };
    let first = committed(commit(&**store, marked("me")).await.unwrap());
    let second = commit(&**store, marked("me")).await.unwrap();
    assert!(matches!(second, Outcome::Conflict { found: Some(entry), .. } if entry.modified == first));
}

async fn somebody_leads(store: &Store) {
    let nodes = store.nodes().await.unwrap();
    assert_eq!(nodes.iter().filter(|node| node.state == NodeState::Leads).count(), 1, "{nodes:?}");
}

async fn history_that_is_forgotten_is_told_and_read_again(factory: &impl Factory, store: &Store) {
    let begin = put(store, "f/stays", "1").await;
    put(store, "f/changes", "1").await;
    put(store, "f/goes", "1").await;
    let (entries, mut follower) = Follower::start(Arc::clone(store), "f/", 100).await.unwrap();
    let keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["f/changes", "f/goes", "f/stays"]);
    store.txn(Transaction::of([Write::delete("f/goes"), Write::put("f/comes", "2")])).await.unwrap();
    let forgotten = put(store, "f/changes", "3").await;
    put(store, "unrelated", "").await;
    factory.forget(store, forgotten).await;

    let behind = match store.watch_from("f/", begin).await {
        Ok(mut watch) => timeout(SOON, watch.next()).await.unwrap().unwrap_err(),
        Err(error) => error,
    };
    assert!(
        matches!(behind, StoreError::Compacted { seen, oldest } if seen == begin && oldest >= forgotten),
        "{behind}"
    );

    let mut events = timeout(SOON, follower.next()).await.unwrap().unwrap();
    events.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(told(&events), [("f/changes", Some("3")), ("f/comes", Some("2")), ("f/goes", None)]);
    // And from there on it follows.
    put(store, "f/stays", "4").await;
    let events = timeout(SOON, follower.next()).await.unwrap().unwrap();
    assert_eq!(told(&events), [("f/stays", Some("4"))]);
}

//! The store in an etcd, on real servers: the suite of all stores, and what several nodes are there for.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod conformance;
#[expect(dead_code, reason = "the tests of brokers that share an etcd use more of it")]
mod etcd_nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_runtime::store::{
    ControlStore, EtcdOptions, EtcdStore, Expect, NodeState, Outcome, Revision, StoreError, Transaction, Watch, Write,
    commit, list,
};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::etcd_nodes::EtcdNodes;
use self::etcd_nodes::relay::Relay;

/// Longer than any of this takes.
const SOON: Duration = Duration::from_mins(1);

struct Prefixes {
    etcd: EtcdNodes,
    made: AtomicU64,
}

impl conformance::Factory for Prefixes {
    async fn fresh(&self) -> Arc<dyn ControlStore> {
        let prefix = format!("/conformance/{}/", self.made.fetch_add(1, Ordering::Relaxed));
        // What the suite is about is no time: a busy disk may take its own.
        let options = self.etcd.options().answer_within(Duration::from_secs(10)).unwrap();
        Arc::new(EtcdStore::connect(&options.prefix(prefix).unwrap()).await.unwrap())
    }

    async fn forget(&self, _: &Arc<dyn ControlStore>, revision: Revision) {
        EtcdStore::connect(&self.etcd.options()).await.unwrap().compact(revision).await.unwrap();
    }
}

#[tokio::test]
async fn it_conforms() {
    let etcd = EtcdNodes::start("conformance", 1).await;
    conformance::conformance(&Prefixes { etcd, made: AtomicU64::new(0) }).await;
}

#[tokio::test]
async fn three_nodes_conform() {
    let etcd = EtcdNodes::start("conformance-three", 3).await;
    conformance::conformance(&Prefixes { etcd, made: AtomicU64::new(0) }).await;
}

async fn connect(options: &EtcdOptions) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::connect(options).await.unwrap())
}

/// A write that was acknowledged.
struct Acknowledged {
    key: String,
    revision: Revision,
    /// When, and how long it took.
    at: Instant,
    took: Duration,
}

/// Writes keys of its own until it is told to stop, each once, and notes what was acknowledged.
async fn write(store: Arc<EtcdStore>, writer: usize, stop: Arc<AtomicBool>) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (key, sent) = (format!("w/{writer}/{n:06}"), clock::now());
        let transaction = Transaction {
            expect: vec![(key.clone(), Expect::Absent)],
            writes: vec![Write::put(key.clone(), format!("{writer} {n}"))],
            marker: Some(key.clone()),
        };
        match commit(&*store, transaction).await {
            Ok(Outcome::Committed(revision)) => {
                let at = clock::now();
                acknowledged.push(Acknowledged { key, revision, at, took: at.since(sent) });
            }
            Ok(conflict @ Outcome::Conflict { .. }) => panic!("nobody else writes {key}: {conflict:?}"),
            // Not acknowledged: it counts as nothing, whatever became of it.
            Err(error) if error.may_pass() => {}
            Err(error) => panic!("{error}"),
        }
    }
    acknowledged
}

/// What a watch was told: each key with its revision.
async fn watch(mut watch: Box<dyn Watch>, until: Arc<AtomicU64>) -> Vec<(String, Revision)> {
    let mut told = Vec::new();
    loop {
        for event in watch.next().await.unwrap() {
            if event.key == "w/end" {
                until.store(event.revision.0, Ordering::Relaxed);
                return told;
            }
            told.push((event.key, event.revision));
        }
    }
}

/// Four clients write and one watches, while the leader is lost by `signal`; afterwards it comes back.
async fn the_leader_is_lost(test: &str, signal: Signal) {
    const WRITERS: usize = 4;
    let mut etcd = EtcdNodes::start(test, 3).await;
    let leader = etcd.leader().await;
    // Each client begins at another node: one of them at the leader.
    let options = |first: usize| {
        let mut endpoints = etcd.options().endpoints().to_vec();
        endpoints.rotate_left(first % 3);
        EtcdOptions::new(endpoints).unwrap()
    };
    let watcher = connect(&options(leader)).await;
    let begin = list(&*watcher, "w/", 1).await.unwrap().1;
    let end = Arc::new(AtomicU64::new(0));
    let told = tokio::spawn(watch(watcher.watch_from("w/", begin).await.unwrap(), Arc::clone(&end)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(connect(&options(leader + writer)).await, writer, Arc::clone(&stop)));
    }

    sleep(Duration::from_secs(1)).await;
    let lost_at = clock::now();
    etcd.signal(leader, signal);
    sleep(Duration::from_secs(6)).await;
    if signal == Signal::KILL {
        etcd.kill(leader);
        etcd.spawn(leader);
    } else {
        etcd.signal(leader, Signal::CONT);
    }
    // What the old leader still held comes out now, if it ever does.
    sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged: Vec<_> = timeout(SOON, writers.join_all()).await.unwrap().into_iter().flatten().collect();
    let last = commit(
        &*watcher,
        Transaction {
            expect: vec![("w/end".into(), Expect::Absent)],
            writes: vec![Write::put("w/end", "")],
            marker: Some("w/end".to_owned()),
        },
    );
    assert!(matches!(last.await.unwrap(), Outcome::Committed(_)));
    let told = timeout(SOON, told).await.expect("the watch reaches the end").unwrap();

    acknowledged.sort_by_key(|write| write.at);
    let stall = acknowledged.windows(2).map(|pair| pair[1].at.since(pair[0].at)).max().unwrap();
    let slowest = acknowledged.iter().map(|write| write.took).max().unwrap();
    let after = acknowledged.iter().filter(|write| write.at > lost_at).count();
    eprintln!(
        "the leader was {test}: {} writes acknowledged, {after} of them after it; no write for {stall:?}, \
         the slowest took {slowest:?}",
        acknowledged.len()
    );
    assert!(after > 100, "it goes on without the leader, {after} writes");
    assert!(stall < Duration::from_secs(6), "writes stood still for {stall:?}");

    // No acknowledged write is lost, and each is where it was said to be.
    let (entries, _) = list(&*watcher, "w/", 1_000_000).await.unwrap();
    let there: BTreeMap<_, _> = entries.iter().map(|entry| (entry.key.as_str(), entry)).collect();
    for write in &acknowledged {
        let entry = there.get(write.key.as_str()).unwrap_or_else(|| panic!("{} was lost", write.key));
        assert_eq!((entry.created, entry.modified), (write.revision, write.revision), "{} twice", write.key);
    }
    // The watch was told of all that is there, once, in order.
    assert!(told.windows(2).all(|pair| pair[0].1 < pair[1].1), "out of order, or twice");
    let told: BTreeSet<_> = told.iter().map(|(key, revision)| (key.as_str(), *revision)).collect();
    let all: BTreeSet<_> = entries.iter().filter(|e| e.key != "w/end").map(|e| (e.key.as_str(), e.modified)).collect();
    assert_eq!(told.len(), all.len());
    assert!(told == all, "missed: {:?}", all.difference(&told).take(5).collect::<Vec<_>>());
    assert!(end.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_leader_that_is_killed_costs_no_acknowledged_write_and_no_event() {
    the_leader_is_lost("killed", Signal::KILL).await;
}

#[tokio::test]
async fn a_leader_that_stands_still_costs_no_acknowledged_write_and_no_event() {
    the_leader_is_lost("stopped", Signal::STOP).await;
}

#[tokio::test]
async fn without_any_node_calls_end_in_time_and_with_them_a_watch_goes_on() {
    let mut etcd = EtcdNodes::start("gone", 3).await;
    let store = connect(&etcd.options()).await;
    let Outcome::Committed(seen) = store.put_if("a", b"1".to_vec(), Expect::Absent).await.unwrap() else {
        panic!("nobody else writes")
    };
    let mut watch = store.watch_from("", seen).await.unwrap();
    for n in 0..etcd.count() {
        etcd.kill(n);
    }
    let error = timeout(SOON, store.get("a")).await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    // There is no connection left, so it is sure that nothing was written.
    let error = timeout(SOON, store.put_if("a", b"2".to_vec(), Expect::Anything)).await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(store.nodes().await.unwrap().iter().all(|node| node.state == NodeState::Silent));
    assert!(timeout(Duration::from_millis(100), watch.next()).await.is_err(), "it waits");
    for n in 0..etcd.count() {
        etcd.spawn(n);
    }
    let written = timeout(SOON, async {
        loop {
            match store.put_if("a", b"3".to_vec(), Expect::Unchanged(seen)).await {
                Ok(outcome) => return outcome,
                Err(error) => assert!(error.may_pass(), "{error}"),
            }
        }
    });
    // It is the first write since, unless its first copy was the one that came through.
    assert!(matches!(written.await.unwrap(), Outcome::Committed(_) | Outcome::Conflict { .. }));
    let events = timeout(SOON, watch.next()).await.unwrap().unwrap();
    let values: Vec<_> = events.iter().map(|event| event.value.as_deref()).collect();
    assert_eq!(values, [Some(&b"3"[..])]);
}

#[tokio::test]
async fn a_lost_answer_is_said_to_be_lost_and_found_again() {
    let etcd = EtcdNodes::start("lost", 1).await;
    let relay = Relay::to(etcd.client_port(0)).await;
    let store = connect(&EtcdOptions::new([format!("http://127.0.0.1:{}", relay.port)]).unwrap()).await;
    let marked = |key: &str| Transaction {
        expect: vec![(key.to_owned(), Expect::Absent)],
        writes: vec![Write::put(key, "me")],
        marker: Some(key.to_owned()),
    };

    relay.lose_next();
    let error = store.txn(marked("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error}");
    assert!(relay.has_lost(), "an answer was lost");
    let written = store.get("a").await.unwrap().expect("the answer was lost, not the write");

    relay.lose_next();
    let outcome = commit(&*store, marked("b")).await.unwrap();
    assert!(relay.has_lost(), "an answer was lost");
    let entry = store.get("b").await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Committed(entry.modified));
    assert!(entry.modified > written.modified);

    // Without a marker nobody decides, and nothing is sent twice.
    relay.lose_next();
    let error = commit(&*store, Transaction::of([Write::put("c", "me")])).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown { .. }), "{error}");

    // A read whose answer is lost is asked again.
    relay.lose_next();
    assert!(store.get("a").await.unwrap().is_some());
    assert!(relay.has_lost(), "an answer was lost");
}

#[tokio::test]
async fn a_prefix_is_cut_off_and_put_back() {
    let etcd = EtcdNodes::start("prefix", 1).await;
    let outer = connect(&etcd.options().prefix("/tidegate/").unwrap()).await;
    outer.put_if("inner/ours", b"1".to_vec(), Expect::Absent).await.unwrap();
    let inner = connect(&etcd.options().prefix("/tidegate/inner/").unwrap()).await;
    assert_eq!(list(&*inner, "", 9).await.unwrap().0[0].key, "ours");
    assert_eq!(list(&*outer, "inner/", 9).await.unwrap().0[0].key, "inner/ours");
}

#[tokio::test]
async fn an_etcd_with_tls_and_users_is_used_through_lost_tokens() {
    let mut etcd = EtcdNodes::start_secured("secured").await;
    etcd.admit_users();
    // Nobody, a stranger, and one whose authority is unknown.
    let error = EtcdStore::connect(&etcd.options()).await.err().expect("it has users");
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let error = EtcdStore::connect(&etcd.options_of_user("of-nobody")).await.err().expect("it is another password");
    assert!(matches!(error, StoreError::Refused { .. }) && !format!("{error:?}").contains("of-nobody"), "{error}");
    let unvouched = EtcdOptions::new(etcd.options().endpoints().to_vec()).unwrap();
    let error = EtcdStore::connect(&unvouched.answer_within(Duration::from_millis(100)).unwrap()).await.err().unwrap();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");

    let store = connect(&etcd.options_of_tidegate()).await;
    let put = async |key: &str| {
        let marked = Transaction {
            expect: vec![(key.to_owned(), Expect::Absent)],
            writes: vec![Write::put(key, "me")],
            marker: Some(key.to_owned()),
        };
        timeout(SOON, commit(&*store, marked)).await.unwrap()
    };
    let Ok(Outcome::Committed(seen)) = put("a").await else { panic!("nobody else writes") };
    let mut watch = store.watch_from("", seen).await.unwrap();
    // Tokens of before are not taken any more.
    etcd.change_a_role();
    assert!(matches!(put("b").await, Ok(Outcome::Committed(_))));
    assert_eq!(timeout(SOON, watch.next()).await.unwrap().unwrap()[0].key, "b");
    // A server that was started again knows no token of before.
    etcd.kill(0);
    etcd.spawn(0);
    let written = timeout(SOON, async {
        loop {
            match put("c").await {
                Ok(outcome) => return outcome,
                Err(error) => assert!(error.may_pass(), "{error}"),
            }
        }
    });
    written.await.unwrap();
    assert_eq!(timeout(SOON, watch.next()).await.unwrap().unwrap()[0].key, "c");
    // Its role ends where its prefix does.
    let elsewhere = etcd.options_of_tidegate().prefix("/elsewhere/").unwrap();
    let error = EtcdStore::connect(&elsewhere).await.err().expect("it has no permission there");
    assert!(error.to_string().contains("permission denied"), "{error}");
}

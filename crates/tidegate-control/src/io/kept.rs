//! What outlives the process, in the control store: who leads, and each topic's placement and parts.
//!
//! | key | value |
//! |---|---|
//! | `control/leader` | who leads, as JSON; it ends with its lease |
//! | `control/fence` | a number that every leader has raised; revisions of orders begin with it |
//! | `control/lend-key` | the secret of nodes that lend each other tokens |
//! | `control/topic/TOPIC` | placement and parts, as JSON, without the publishers |
//! | `control/topic/TOPIC/REVISION/N` | the publishers of that placement, in pieces |
//!
//! Every write depends on `control/leader` being the writer's own, so one that no longer leads writes nothing. At most
//! [`CALLS_MAX`] calls are under way at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_runtime::clock;
use tidegate_runtime::store::{
    ControlStore, Entry, Expect, LeaseId, NodeHealth, Outcome, Pending, Revision, Scan, StoreError, Transaction, Write,
    commit,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::{KeptError, with_causes};
use crate::machine::director::Placement;
use crate::machine::name::Name;

/// Calls of the store under way at a time; further ones wait for their turn within their time.
pub const CALLS_MAX: usize = 4;
/// A call that takes longer has failed; what it writes may be there all the same.
const WITHIN: Duration = Duration::from_secs(3);
/// Publishers of a placement in one entry: about 300 KiB of usual names, 1.4 MiB of the longest ones, which are cut further.
const PUBLISHERS_PER_PIECE: usize = 8_192;
/// Bytes of a piece at most; a store takes values of 1 MiB.
const PIECE_BYTES_MAX: usize = 768 << 10;
/// Pieces of a placement that are looked for when old ones are removed.
const PIECES_MAX: usize = 1_000;

const LEADER: &str = "control/leader";
const FENCE: &str = "control/fence";
const LEND_KEY: &str = "control/lend-key";

/// Bits of an order's revision that count within one fence. 16 million parts are a day of a hundred nodes; then the fence
/// is raised.
pub const FENCE_SHIFT: u32 = 24;

/// A process that leads, or wants to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leader {
    /// Its name.
    pub name: String,
    /// Its admin API, as `host:port`.
    pub admin: String,
}

/// Leadership, from one acquisition to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    /// The write that made this process the leader.
    pub revision: Revision,
    /// What it ends with.
    pub lease: LeaseId,
    /// All revisions of its orders begin with this number.
    pub fence: u64,
    /// Nobody led before, so no node holds anything.
    pub is_first: bool,
}

impl Term {
    /// Revisions of its orders are above this.
    #[must_use]
    pub const fn above(self) -> u64 {
        self.fence << FENCE_SHIFT
    }
}

/// What became of an attempt to lead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// This process leads.
    Leads(Term),
    /// Another one does.
    Other(Leader),
}

/// How the store does.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Health {
    /// When it last answered.
    pub answered: Option<Instant>,
    /// How long its last answer took.
    pub latency: Duration,
    /// Calls that failed.
    pub failures_total: u64,
    /// Why the last call failed; `None` if it did not.
    pub error: Option<String>,
    /// The processes that keep it, when they were last looked at.
    pub nodes: Vec<NodeHealth>,
}

/// The entry of the leader.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    #[serde(flatten)]
    leader: Leader,
    /// Tells this attempt from all others: the answer to a claim may be lost.
    at_ns: i64,
}

/// A node's part of a topic, as it is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedPart {
    /// The node.
    pub node: Name,
    /// Its part.
    pub limit: Limit,
}

/// What is kept of a topic.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Saved {
    /// Where its publishers belong.
    pub placement: Placement,
    /// What its nodes have of the limit.
    pub parts: Vec<SavedPart>,
    /// The decision in words.
    pub words: Vec<String>,
    /// A plan stood, and none was being made.
    pub stands: bool,
}

/// The entry of a topic.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Head {
    revision: u64,
    nodes: Vec<Name>,
    default: Vec<f64>,
    pieces: usize,
    parts: Vec<SavedPart>,
    words: Vec<String>,
    stands: bool,
}

/// The store, as control uses it.
pub struct Kept {
    store: Arc<dyn ControlStore>,
    turns: Semaphore,
    health: Mutex<Health>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("health", &self.health).finish_non_exhaustive()
    }
}

impl Kept {
    /// Keeps everything in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn ControlStore>) -> Self {
        Self { store, turns: Semaphore::new(CALLS_MAX), health: Mutex::default() }
    }

    /// How the store does.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Becomes the leader until `lease` ends, unless there is one.
    ///
    /// `reach` is a revision of orders that nodes hold already: all orders of the new term are above it.
    pub async fn acquire(&self, me: &Leader, lease: Duration, reach: u64) -> Result<Acquired, KeptError> {
        if let Some(entry) = self.get(LEADER).await? {
            return Ok(Acquired::Other(leader_of(&entry)?));
        }
        let id = self.call(|store| store.lease_grant(lease)).await?;
        let claim = Claim { leader: me.clone(), at_ns: clock::realtime_ns() };
        let value = serde_json::to_vec(&claim).expect("it is texts and a number");
        let claim = Transaction {
            expect: vec![(LEADER.to_owned(), Expect::Absent)],
            writes: vec![Write::leased(LEADER, value, id)],
            marker: Some(LEADER.to_owned()),
        };
        let outcome = self.call(|store| Box::pin(commit(store, claim.clone()))).await;
        if !matches!(outcome, Ok(Outcome::Committed(_))) {
            // It ends by itself where this fails.
            let _ = self.call(|store| store.lease_revoke(id)).await;
        }
        match outcome? {
            Outcome::Committed(revision) => {
                let term = self.fenced(Term { revision, lease: id, fence: 0, is_first: false }, reach).await;
                if term.is_err() {
                    // Without a fence it does not lead, and nobody else could until the lease ends by itself.
                    let _ = self.call(|store| store.lease_revoke(id)).await;
                }
                term.map(Acquired::Leads)
            }
            Outcome::Conflict { found: Some(entry), .. } => Ok(Acquired::Other(leader_of(&entry)?)),
            Outcome::Conflict { found: None, .. } => Err(KeptError::NotLeading),
        }
    }

    /// The term with its first fence.
    async fn fenced(&self, term: Term, reach: u64) -> Result<Term, KeptError> {
        let is_first = reach == 0 && self.get(FENCE).await?.is_none();
        let fence = self.raise(term, reach).await?;
        Ok(Term { fence, is_first, ..term })
    }

    /// Raises the fence above that of every leader before, and above `reach`; returns it.
    pub async fn raise(&self, term: Term, reach: u64) -> Result<u64, KeptError> {
        let before = self.get(FENCE).await?;
        let stored = before.as_ref().and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse::<u64>().ok());
        let fence = (stored.unwrap_or(0) + 1).max(term.revision.0).max((reach >> FENCE_SHIFT) + 1);
        let expected = before.map_or(Expect::Absent, |entry| Expect::Unchanged(entry.modified));
        let transaction = Transaction {
            expect: vec![(LEADER.to_owned(), Expect::Unchanged(term.revision)), (FENCE.to_owned(), expected)],
            writes: vec![Write::put(FENCE, fence.to_string())],
            marker: None,
        };
        self.commit(transaction).await.map(|()| fence)
    }

    /// Leads for another lease.
    pub async fn keep_alive(&self, term: Term) -> Result<(), KeptError> {
        match self.call(|store| store.lease_keepalive(term.lease)).await {
            Err(KeptError::Store(StoreError::LeaseEnded { .. })) => return Err(KeptError::NotLeading),
            answer => answer?,
        }
        let entry = self.get(LEADER).await?;
        let is_ours = entry.is_some_and(|entry| entry.modified == term.revision);
        if is_ours { Ok(()) } else { Err(KeptError::NotLeading) }
    }

    /// Lets another lead at once.
    pub async fn resign(&self, term: Term) -> Result<(), KeptError> {
        self.write(term, Write::delete(LEADER)).await?;
        self.call(|store| store.lease_revoke(term.lease)).await
    }

    /// The secret of nodes that lend, which the first leader drew: `drawn`, if there is none yet.
    pub async fn lend_key(&self, term: Term, drawn: [u8; 16]) -> Result<[u8; 16], KeptError> {
        let read = |entry: &Entry| <[u8; 16]>::try_from(&entry.value[..]).ok();
        if let Some(known) = self.get(LEND_KEY).await?.as_ref().and_then(read) {
            return Ok(known);
        }
        self.write(term, Write::put(LEND_KEY, drawn)).await?;
        // Only one leads, and only it writes.
        Ok(drawn)
    }

    /// Looks at the processes that keep the store.
    pub async fn look(&self) {
        if let Ok(nodes) = self.call(|store| store.nodes()).await {
            self.health.lock().unwrap_or_else(PoisonError::into_inner).nodes = nodes;
        }
    }

    /// Who leads.
    pub async fn leader(&self) -> Result<Option<Leader>, KeptError> {
        self.get(LEADER).await?.as_ref().map(leader_of).transpose()
    }

    /// Keeps `saved`; the publishers only if the placement is not that of revision `kept`, which is there already.
    pub async fn save(&self, term: Term, topic: &str, saved: &Saved, kept: Option<u64>) -> Result<(), KeptError> {
        let Saved { placement, parts, words, stands } = saved;
        let pieces = pieces_of(placement);
        let count = pieces.len();
        let is_new = kept != Some(placement.revision);
        if is_new {
            for (number, value) in pieces.into_iter().enumerate() {
                let key = piece_key(topic, placement.revision, number);
                self.write(term, Write::put(key, value)).await?;
            }
        }
        let head = Head {
            revision: placement.revision,
            nodes: placement.nodes.clone(),
            default: placement.default.clone(),
            pieces: count,
            parts: parts.clone(),
            words: words.clone(),
            stands: *stands,
        };
        let value = serde_json::to_vec(&head).expect("keys are texts and numbers are finite");
        self.write(term, Write::put(topic_key(topic), value)).await?;
        if is_new { self.forget_others(term, topic, placement.revision).await } else { Ok(()) }
    }

    /// What is kept of a topic; `None` if there is nothing, or the placement is that of revision `known`.
    pub async fn load(&self, topic: &str, known: Option<u64>) -> Result<Option<Saved>, KeptError> {
        let key = topic_key(topic);
        let Some(entry) = self.get(&key).await? else { return Ok(None) };
        let head: Head = read(&entry)?;
        if known == Some(head.revision) {
            return Ok(None);
        }
        let mut placement =
            Placement { revision: head.revision, nodes: head.nodes, default: head.default, ..Placement::default() };
        for number in 0..head.pieces.min(PIECES_MAX) {
            // A piece that is not there belongs to a placement that another leader has replaced meanwhile.
            let Some(entry) = self.get(&piece_key(topic, head.revision, number)).await? else { return Ok(None) };
            placement.publishers.extend(read::<Vec<(Name, u32)>>(&entry)?);
        }
        Ok(Some(Saved { placement, parts: head.parts, words: head.words, stands: head.stands }))
    }

    /// Removes what is kept of a topic.
    pub async fn remove(&self, term: Term, topic: &str) -> Result<(), KeptError> {
        self.write(term, Write::delete(topic_key(topic))).await?;
        self.forget_others(term, topic, u64::MAX).await
    }

    /// Removes pieces of other placements than that of `revision`.
    async fn forget_others(&self, term: Term, topic: &str, revision: u64) -> Result<(), KeptError> {
        let prefix = format!("{}/", topic_key(topic));
        let ours = format!("{prefix}{revision}/");
        let page = self.call(|store| store.range(Scan::of(&prefix).limit(PIECES_MAX))).await?;
        for entry in page.entries.into_iter().filter(|entry| !entry.key.starts_with(&ours)) {
            self.write(term, Write::delete(entry.key)).await?;
        }
        Ok(())
    }

    /// One write of the leader.
    async fn write(&self, term: Term, write: Write) -> Result<(), KeptError> {
        let expect = vec![(LEADER.to_owned(), Expect::Unchanged(term.revision))];
        self.commit(Transaction { expect, writes: vec![write], marker: None }).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), KeptError> {
        match self.call(|store| store.txn(transaction.clone())).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict { .. } => Err(KeptError::NotLeading),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, KeptError> {
        self.call(|store| store.get(key)).await
    }

    async fn call<'a, T>(&'a self, ask: impl FnOnce(&'a dyn ControlStore) -> Pending<'a, T>) -> Result<T, KeptError> {
        let began = clock::now();
        let answer = timeout(WITHIN, async {
            let _turn = self.turns.acquire().await.expect("it is never closed");
            ask(&*self.store).await
        });
        let answer = match answer.await {
            Ok(answer) => answer.map_err(KeptError::from),
            Err(_) => Err(KeptError::TimedOut { within: WITHIN }),
        };
        self.note(began, &answer);
        answer
    }

    fn note<T>(&self, began: Instant, answer: &Result<T, KeptError>) {
        let now = clock::now();
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            // These say something about a key, not about the store.
            Ok(_) | Err(KeptError::Store(StoreError::LeaseEnded { .. } | StoreError::Compacted { .. })) => {
                (health.answered, health.latency, health.error) = (Some(now), now.since(began), None);
            }
            Err(error) => {
                health.failures_total += 1;
                health.error = Some(with_causes(error));
            }
        }
    }
}

fn topic_key(topic: &str) -> String {
    format!("control/topic/{topic}")
}

fn piece_key(topic: &str, revision: u64, number: usize) -> String {
    format!("control/topic/{topic}/{revision}/{number}")
}

fn read<T: for<'de> Deserialize<'de>>(entry: &Entry) -> Result<T, KeptError> {
    serde_json::from_slice(&entry.value).map_err(|source| KeptError::Unreadable { key: entry.key.clone(), source })
}

fn leader_of(entry: &Entry) -> Result<Leader, KeptError> {
    read::<Claim>(entry).map(|claim| claim.leader)
}

/// The publishers of a placement in pieces that fit an entry.
fn pieces_of(placement: &Placement) -> Vec<Vec<u8>> {
    let all: Vec<(&Name, &u32)> = placement.publishers.iter().collect();
    let mut pieces = Vec::new();
    let mut parts: Vec<&[(&Name, &u32)]> = all.chunks(PUBLISHERS_PER_PIECE).rev().collect();
    while let Some(part) = parts.pop() {
        let piece = serde_json::to_vec(part).expect("it is texts and numbers");
        if piece.len() <= PIECE_BYTES_MAX || part.len() == 1 {
            pieces.push(piece);
        } else {
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([second, first]);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tidegate_core::Rate;
    use tidegate_runtime::store::{EmbeddedStore, Options};

    use super::*;

    fn kept(name: &str) -> (Kept, Kept, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("tidegate-kept-{name}-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let store: Arc<dyn ControlStore> = Arc::new(EmbeddedStore::open(&path, Options::default()).unwrap());
        (Kept::new(Arc::clone(&store)), Kept::new(store), path)
    }

    fn leader(name: &str) -> Leader {
        Leader { name: name.to_owned(), admin: "127.0.0.1:1".to_owned() }
    }

    async fn lead(kept: &Kept, name: &str, reach: u64) -> Term {
        match kept.acquire(&leader(name), Duration::from_secs(10), reach).await.unwrap() {
            Acquired::Leads(term) => term,
            Acquired::Other(other) => panic!("{other:?} leads"),
        }
    }

    #[tokio::test]
    async fn one_leads_and_the_next_has_a_higher_fence() {
        let (a, b, path) = kept("one");
        let first = lead(&a, "a", 0).await;
        assert!(first.is_first);
        assert_eq!(b.acquire(&leader("b"), Duration::from_secs(10), 0).await.unwrap(), Acquired::Other(leader("a")));
        assert_eq!(b.leader().await.unwrap(), Some(leader("a")));
        a.keep_alive(first).await.unwrap();
        a.resign(first).await.unwrap();
        let second = lead(&b, "b", 0).await;
        assert!(second.fence > first.fence && second.above() > first.above() && !second.is_first);
        assert!(matches!(a.keep_alive(first).await, Err(KeptError::NotLeading)), "its key is another's");
        assert!(matches!(a.save(first, "t", &Saved::default(), None).await, Err(KeptError::NotLeading)));
        b.resign(second).await.unwrap();
        // A store that was replaced begins again below what nodes hold.
        let reach = (1 << 40) + 5;
        assert!(lead(&a, "a", reach).await.above() > reach);
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_lease_that_is_not_renewed_ends() {
        static NOW: AtomicU64 = AtomicU64::new(1);
        fn now() -> Instant {
            Instant::from_nanos(NOW.load(Ordering::Relaxed))
        }
        let path = std::env::temp_dir().join(format!("tidegate-kept-lease-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let options = Options { clock: now, ..Options::default() };
        let kept = Kept::new(Arc::new(EmbeddedStore::open(&path, options).unwrap()));
        let term = lead(&kept, "a", 0).await;
        NOW.fetch_add(11_000_000_000, Ordering::Relaxed);
        assert!(matches!(kept.keep_alive(term).await, Err(KeptError::NotLeading)));
        assert!(kept.health().error.is_none(), "the store answered");
        lead(&kept, "b", 0).await;
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_placement_of_many_publishers_is_kept_in_pieces() {
        let (kept, _, path) = kept("pieces");
        let term = lead(&kept, "a", 0).await;
        let name = |number: u32| Name::from(format!("{number:0>120}"));
        let mut saved = Saved {
            placement: Placement {
                revision: 3,
                nodes: vec!["a".into(), "b".into()],
                default: vec![1.0, 0.5],
                publishers: (0..20_000).map(|number| (name(number), number % 2)).collect(),
            },
            parts: vec![SavedPart { node: "a".into(), limit: Limit::new(Rate::per_s(7), 5) }],
            words: vec!["two brokers".to_owned()],
            stands: true,
        };
        assert!(pieces_of(&saved.placement).iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
        kept.save(term, "orders", &saved, None).await.unwrap();
        assert_eq!(kept.load("orders", None).await.unwrap().as_ref(), Some(&saved));
        assert_eq!(kept.load("order", None).await.unwrap(), None);
        assert_eq!(kept.load("orders", Some(3)).await.unwrap(), None, "it is known");
        // The next placement replaces the pieces of the one before.
        saved.placement.revision = 4;
        saved.placement.publishers.retain(|_, at| *at == 0);
        kept.save(term, "orders", &saved, Some(3)).await.unwrap();
        assert_eq!(kept.load("orders", None).await.unwrap().as_ref(), Some(&saved));
        let pieces = kept.store.range(Scan::of("control/topic/orders/")).await.unwrap().entries;
        assert!(pieces.iter().all(|entry| entry.key.starts_with("control/topic/orders/4/")), "{}", pieces.len());
        saved.parts.clear();
        kept.save(term, "orders", &saved, Some(4)).await.unwrap();
        assert_eq!(kept.load("orders", None).await.unwrap().as_ref(), Some(&saved));
        kept.remove(term, "orders").await.unwrap();
        let left = kept.store.range(Scan::of("control/topic/")).await.unwrap().entries;
        assert_eq!((kept.load("orders", None).await.unwrap(), left), (None, Vec::new()));
        std::fs::remove_file(path).unwrap();
    }
}

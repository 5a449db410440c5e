//! The store of several machines: the nodes of an etcd, version 3.4 or later, over its gRPC API.
//!
//! - One node is used by all calls. One that does not answer within `EtcdOptions::answer_within` (500 ms by default) is left
//!   for the next; a call that no node carries out within ten times that ends in `Unavailable`.
//! - A transaction is sent again only if it was surely not carried out: there was no connection, or etcd said so. If its
//!   answer is lost, it ends in `OutcomeUnknown`.
//! - A watch that loses its node continues at the next from the revision that it has reached. While it hears nothing it asks
//!   each second whether the node is alive, and leaves one that does not answer, or that etcd's other nodes have lost.
//! - Revisions are those of the whole etcd, which others may use beside Tidegate: they have gaps.
//! - History is etcd's. It forgets what its operator lets it (`--auto-compaction-retention`); a watch that was behind says so.
//!
//! - Nodes at `https` endpoints are asked over TLS; where the etcd has users, requests carry the token of one.

mod credentials;
mod keys;
mod links;
mod messages;
mod rota;
mod verdict;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::{Code, Status};

use self::keys::{Keys, lease, lease_number, revision, revision_number};
use self::links::{Effect, Links, MAX_ANSWER_BYTES, refusal};
use self::messages::{
    CREATE, CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, MOD, PutRequest,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use self::verdict::is_too_large;
use self::watch::EtcdWatch;
use super::contract::{ControlStore, Pending, Watch};
use super::entry::{Entry, LeaseId, NodeHealth, NodeState, Page, Revision, Scan, after};
use super::error::StoreError;
use super::etcd_options::EtcdOptions;
use super::transaction::{Expect, Outcome, Transaction, Write};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";
const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Shortest lease, in seconds: etcd's own bound is one and a half election time-outs, 1.5 s by default.
const SHORTEST_LEASE_S: u64 = 2;
/// Longest, as in etcd.
const LONGEST_LEASE_S: u64 = 9_000_000_000;

/// A [`ControlStore`] in an etcd.
pub struct EtcdStore {
    links: Arc<Links>,
    keys: Keys,
}

impl EtcdStore {
    /// Connects to the first node that answers.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if none does, [`StoreError::Refused`] if it is no etcd.
    pub async fn connect(options: &EtcdOptions) -> Result<Self, StoreError> {
        let store = Self { links: Arc::new(Links::new(options)?), keys: Keys::new(options.key_prefix()) };
        store.read(Scan::of("").limit(1)).await?;
        Ok(store)
    }

    /// Lets etcd forget the history up to `forgotten`, of all its keys: watches that have seen less read everything again.
    /// An operator has etcd do so by itself.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if there is no later revision yet, or if history does not reach back so far any more.
    pub async fn compact(&self, forgotten: Revision) -> Result<(), StoreError> {
        let request = CompactionRequest { revision: revision_number(forgotten).saturating_add(1) };
        let _: CompactionResponse = self.links.call(COMPACT, Effect::Repeatable, &request, refusal).await?;
        Ok(())
    }

    /// A page, in smaller and smaller ones where the entries are large.
    async fn read(&self, scan: Scan<'_>) -> Result<Page, StoreError> {
        let mut limit = scan.bound();
        loop {
            let request = RangeRequest {
                key: self.keys.full(scan.start()),
                range_end: self.keys.end_of(scan.prefix),
                limit: i64::try_from(limit).unwrap_or(i64::MAX),
            };
            let refused = |store: &str, status: &Status| {
                if is_too_large(status) { TOO_LARGE } else { refusal(store, status) }
            };
            match self.links.call::<_, RangeResponse>(RANGE, Effect::Repeatable, &request, refused).await {
                Ok(found) => return self.page(found),
                Err(StoreError::TooLarge { .. }) if limit > 1 => limit /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    fn page(&self, found: RangeResponse) -> Result<Page, StoreError> {
        let revision = revision_of(found.header.as_ref());
        let entries = found.kvs.into_iter().map(|kv| self.keys.entry(kv)).collect::<Result<Vec<_>, _>>()?;
        let next = entries.last().filter(|_| found.more).map(|last| after(&last.key));
        Ok(Page { entries, revision, next })
    }

    async fn read_one(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let request = RangeRequest { key: self.keys.full(key), ..RangeRequest::default() };
        let found: RangeResponse = self.links.call(RANGE, Effect::Repeatable, &request, refusal).await?;
        found.kvs.into_iter().next().map(|kv| self.keys.entry(kv)).transpose()
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.check()?;
        let request = self.request_of(transaction);
        let lease = transaction.writes.iter().find_map(Write::lease);
        let refused = |store: &str, status: &Status| match lease {
            Some(lease) if status.code() == Code::NotFound => StoreError::LeaseEnded { lease },
            _ => refusal(store, status),
        };
        let answer: TxnResponse = self.links.call(TXN, Effect::Once, &request, refused).await?;
        if answer.succeeded {
            return Ok(Outcome::Committed(revision_of(answer.header.as_ref())));
        }
        // For each expectation, in order, what is at its key.
        let mut found = answer.responses.into_iter().map(|response| response.range.unwrap_or_default().kvs.pop());
        for (key, expect) in &transaction.expect {
            let found = found.next().flatten().map(|kv| self.keys.entry(kv)).transpose()?;
            if !expect.holds(found.as_ref()) {
                return Ok(Outcome::Conflict { key: key.clone(), found });
            }
        }
        let found = "a transaction did not succeed though what it expects holds".to_owned();
        Err(StoreError::Refused { store: self.links.names(), found })
    }

    fn request_of(&self, transaction: &Transaction) -> TxnRequest {
        let compare = |(key, expect): &(String, Expect)| {
            let key = self.keys.full(key);
            match expect {
                Expect::Anything => None,
                // A key that was never made, or was removed, has create revision 0.
                Expect::Absent => Some(Compare { target: CREATE, key, create_revision: Some(0), mod_revision: None }),
                Expect::Unchanged(seen) => {
                    let mod_revision = Some(revision_number(*seen));
                    Some(Compare { target: MOD, key, create_revision: None, mod_revision })
                }
            }
        };
        let write = |write: &Write| match write {
            Write::Put { key, value, lease } => {
                let (key, value, lease) = (self.keys.full(key), value.clone(), lease.map_or(0, lease_number));
                RequestOp { put: Some(PutRequest { key, value, lease }), ..RequestOp::default() }
            }
            Write::Delete { key } => {
                let delete_range = Some(DeleteRangeRequest { key: self.keys.full(key) });
                RequestOp { delete_range, ..RequestOp::default() }
            }
        };
        let look = |(key, _): &(String, Expect)| {
            let range = Some(RangeRequest { key: self.keys.full(key), ..RangeRequest::default() });
            RequestOp { range, ..RequestOp::default() }
        };
        TxnRequest {
            compare: transaction.expect.iter().filter_map(compare).collect(),
            success: transaction.writes.iter().map(write).collect(),
            failure: transaction.expect.iter().map(look).collect(),
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = whole.clamp(SHORTEST_LEASE_S, LONGEST_LEASE_S);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        // One whose answer is lost ends by itself.
        let granted: LeaseGrantResponse = self.links.call(LEASE_GRANT, Effect::Repeatable, &request, refusal).await?;
        if !granted.error.is_empty() {
            return Err(StoreError::Refused { store: self.links.names(), found: granted.error });
        }
        Ok(lease(granted.id))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let request = LeaseKeepAliveRequest { id: lease_number(lease) };
        // A stream of one request, to which there is one answer.
        let kept: Result<LeaseKeepAliveResponse, _> =
            self.links.call(LEASE_KEEP_ALIVE, Effect::Repeatable, &request, gone_or(lease)).await;
        if kept?.ttl > 0 { Ok(()) } else { Err(StoreError::LeaseEnded { lease }) }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let request = LeaseRevokeRequest { id: lease_number(lease) };
        let revoked: Result<LeaseRevokeResponse, _> =
            self.links.call(LEASE_REVOKE, Effect::Repeatable, &request, gone_or(lease)).await;
        match revoked {
            Ok(_) | Err(StoreError::LeaseEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn look_at_nodes(&self) -> Result<Vec<NodeHealth>, StoreError> {
        let mut asked = JoinSet::new();
        for node in 0..self.links.count() {
            let links = Arc::clone(&self.links);
            asked.spawn(async move {
                let status = links.ask_any::<_, StatusResponse>(node, STATUS, &StatusRequest {}).await;
                (node, status.ok())
            });
        }
        let mut found = asked.join_all().await;
        found.sort_unstable_by_key(|(node, _)| *node);
        let health = |(node, status): (usize, Option<StatusResponse>)| {
            let state = status.as_ref().map_or(NodeState::Silent, |status| {
                let itself = status.header.as_ref().map_or(0, |header| header.member_id);
                match status.leader {
                    0 => NodeState::Leaderless,
                    leader if leader == itself => NodeState::Leads,
                    _ => NodeState::Follows,
                }
            });
            NodeHealth { name: self.links.name(node).to_owned(), state, version: status.map(|status| status.version) }
        };
        Ok(found.into_iter().map(health).collect())
    }
}

const TOO_LARGE: StoreError = StoreError::TooLarge { what: "page", size: MAX_ANSWER_BYTES, limit: MAX_ANSWER_BYTES };

fn gone_or(lease: LeaseId) -> impl Fn(&str, &Status) -> StoreError {
    move |store, status| match status.code() {
        Code::NotFound => StoreError::LeaseEnded { lease },
        _ => refusal(store, status),
    }
}

fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    revision(header.map_or(0, |header| header.revision))
}

impl ControlStore for EtcdStore {
    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
        Box::pin(self.read_one(key))
    }

    fn range<'a>(&'a self, scan: Scan<'a>) -> Pending<'a, Page> {
        Box::pin(self.read(scan))
    }

    fn txn(&self, transaction: Transaction) -> Pending<'_, Outcome> {
        Box::pin(async move { self.transact(&transaction).await })
    }

    fn watch_from<'a>(&'a self, prefix: &'a str, seen: Revision) -> Pending<'a, Box<dyn Watch>> {
        Box::pin(async move {
            let watch = EtcdWatch::open(Arc::clone(&self.links), self.keys.clone(), prefix, seen).await?;
            Ok(Box::new(watch) as Box<dyn Watch>)
        })
    }

    fn lease_grant(&self, ttl: Duration) -> Pending<'_, LeaseId> {
        Box::pin(self.grant(ttl))
    }

    fn lease_keepalive(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(self.keep_alive(lease))
    }

    fn lease_revoke(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(self.revoke(lease))
    }

    fn nodes(&self) -> Pending<'_, Vec<NodeHealth>> {
        Box::pin(self.look_at_nodes())
    }
}

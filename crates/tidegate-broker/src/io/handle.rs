//! How the rest of the process speaks to the shards.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_wire::nsq::TopicName;
use tokio::sync::oneshot;

use super::kept_parts::PartsKeeper;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::home_shard;
pub use crate::machine::output::Notice;

/// Takes requests to one shard from any thread. Implemented by the shard's mailbox.
pub trait Mailbox: Send + Sync {
    /// Delivers `request`; `answer` is dropped if the shard is gone.
    fn ask(&self, request: AdminRequest, answer: oneshot::Sender<AdminReply>);
}

/// The broker, as seen by its HTTP servers and background tasks. Cheap to clone.
#[derive(Clone)]
pub struct BrokerHandle {
    shards: Arc<[Arc<dyn Mailbox>]>,
    parts: Option<PartsKeeper>,
    lend_addresses: Arc<[SocketAddr]>,
}

impl BrokerHandle {
    /// A handle on these shards, in order of their numbers.
    #[must_use]
    pub fn new(shards: Vec<Arc<dyn Mailbox>>) -> Self {
        Self { shards: shards.into(), parts: None, lend_addresses: Arc::default() }
    }

    /// The same, with parts of limits that outlive the process.
    #[must_use]
    pub fn keeping(self, parts: PartsKeeper) -> Self {
        Self { parts: Some(parts), ..self }
    }

    /// What keeps parts of limits, if anything does.
    #[must_use]
    pub fn parts(&self) -> Option<&PartsKeeper> {
        self.parts.as_ref()
    }

    /// The same of shards that take datagrams of lending at `addresses`, by their numbers.
    #[must_use]
    pub(super) fn lending_at(self, addresses: Arc<[SocketAddr]>) -> Self {
        Self { lend_addresses: addresses, ..self }
    }

    /// Where the shards take datagrams of lending, by their numbers; empty if they take none.
    #[must_use]
    pub fn lend_addresses(&self) -> &[SocketAddr] {
        &self.lend_addresses
    }

    /// Asks the shard that owns `topic`. `None` when the broker is shutting down.
    pub async fn ask_topic(&self, topic: &TopicName, request: AdminRequest) -> Option<AdminReply> {
        let (sender, answer) = oneshot::channel();
        self.shards[home_shard(topic.as_str(), self.shards.len())].ask(request, sender);
        answer.await.ok()
    }

    /// Asks every shard, in order; shards that are gone are left out.
    pub async fn ask_all(&self, request: &AdminRequest) -> Vec<AdminReply> {
        let mut replies = Vec::with_capacity(self.shards.len());
        for shard in self.shards.iter() {
            let (sender, answer) = oneshot::channel();
            shard.ask(request.clone(), sender);
            replies.extend(answer.await.ok());
        }
        replies
    }
}

//! How the rest of the process speaks to the shards.

use std::sync::Arc;

use tidegate_wire::nsq::{ChannelName, TopicName};
use tokio::sync::oneshot;

use crate::machine::admin::{AdminReply, AdminRequest};

/// What a shard tells the rest of the process, without waiting for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A topic came to be. With `AdminRequest::StartTopic` it begins to flow, if the broker has nsqlookupds to ask.
    TopicCreated(TopicName),
    /// A topic is gone.
    TopicDeleted(TopicName),
    /// A channel came to be.
    ChannelCreated(TopicName, ChannelName),
    /// A channel is gone.
    ChannelDeleted(TopicName, ChannelName),
    /// A topic or channel was paused or resumed; the metadata file is stale.
    PauseChanged,
}

/// Takes requests to one shard from any thread. Implemented by the shard's mailbox.
pub trait Mailbox: Send + Sync {
    /// Delivers `request`; `answer` is dropped if the shard is gone.
    fn ask(&self, request: AdminRequest, answer: oneshot::Sender<AdminReply>);
}

/// The broker, as seen by its HTTP servers and background tasks. Cheap to clone.
#[derive(Clone)]
pub struct BrokerHandle {
    shards: Arc<[Arc<dyn Mailbox>]>,
}

impl BrokerHandle {
    /// A handle on these shards, in order of their numbers.
    #[must_use]
    pub fn new(shards: Vec<Arc<dyn Mailbox>>) -> Self {
        Self { shards: shards.into() }
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

/// The shard of `shards` that owns the topic called `name`: the same for every connection and every run.
#[must_use]
pub fn home_shard(name: &str, shards: usize) -> usize {
    // FNV-1a: the names are validated and few, and the answer must not depend on a per-process seed.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    usize::try_from(hash % shards as u64).expect("a shard number fits")
}

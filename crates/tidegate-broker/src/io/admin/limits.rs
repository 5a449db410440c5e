//! The limits in force, changed one after the other.
//!
//! A limit comes from the file or from this API, and the latter outranks the former until it is removed. A change is
//! durable before it is in force.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_runtime::clock;
use tidegate_wire::nsq::{BadName, ChannelName, TopicName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use super::store::{Change, LimitStore, LimitStoreError};
use crate::io::handle::BrokerHandle;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::limiter::{Contract, Source};

/// What a limit holds for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// The topic.
    pub topic: TopicName,
    /// The channel; `None` for the topic itself.
    pub channel: Option<ChannelName>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.channel {
            Some(channel) => write!(f, "{}/{channel}", self.topic),
            None => write!(f, "{}", self.topic),
        }
    }
}

impl FromStr for Target {
    type Err = BadName;

    /// `topic` or `topic/channel`.
    fn from_str(text: &str) -> Result<Self, BadName> {
        let (topic, channel) = text.split_once('/').map_or((text, None), |(topic, channel)| (topic, Some(channel)));
        Ok(Self { topic: TopicName::new(topic)?, channel: channel.map(ChannelName::new).transpose()? })
    }
}

/// Every limit in force, by target.
pub type InForce = BTreeMap<Target, (Contract, Source)>;

/// A change, with what was and is in force, the file's limits included.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    pub(super) target: Target,
    pub(super) before: Option<(Contract, Source)>,
    pub(super) after: Option<(Contract, Source)>,
    pub(super) revision: u64,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// It could not be made durable; nothing has changed.
    #[error("the change cannot be stored: {0}")]
    Store(#[from] LimitStoreError),
    /// There is nothing to remove, or nothing to undo.
    #[error("there is nothing to take away")]
    Nothing,
    /// The limit stands in the file, which this API does not write.
    #[error("the limit stands in the configuration file")]
    FromFile,
    /// The broker is shutting down; if the change was stored, it is in force after the next start.
    #[error("the broker is shutting down")]
    Exiting,
}

enum Order {
    Set(Target, Option<Contract>),
    Undo,
}

type Answer = oneshot::Sender<Result<Applied, LimitError>>;

/// Asks for changes, and knows what is in force. Cheap to clone.
#[derive(Clone)]
pub struct Limits {
    orders: mpsc::Sender<(Order, Answer)>,
    in_force: watch::Receiver<Arc<InForce>>,
    store: Arc<dyn LimitStore>,
    file: Arc<BTreeMap<Target, Contract>>,
}

/// Changes that wait for their turn. People make them.
const WAITING_ORDERS: usize = 64;

impl Limits {
    /// Puts every stored limit in force, and those of the `file` that nothing outranks; then makes changes as they are
    /// asked for, until the last handle is dropped, which ends the task.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn start(
        broker: BrokerHandle,
        store: Arc<dyn LimitStore>,
        file: impl IntoIterator<Item = (Target, Contract)>,
    ) -> Result<(Self, JoinHandle<()>), LimitStoreError> {
        let file: BTreeMap<_, _> = file.into_iter().collect();
        let mut in_force: InForce = file.iter().map(|(target, c)| (target.clone(), (*c, Source::File))).collect();
        let stored = blocking(&store, LimitStore::limits).await?;
        in_force.extend(stored.into_iter().map(|(target, contract)| (target, (contract, Source::Admin))));
        for (target, contract) in &in_force {
            // A broker that is gone so early reports it elsewhere.
            apply(&broker, target, Some(*contract)).await;
        }
        let (sender, receiver) = watch::channel(Arc::new(in_force));
        let (orders, waiting) = mpsc::channel(WAITING_ORDERS);
        let file = Arc::new(file);
        let keeper = Keeper { broker, store: Arc::clone(&store), file: Arc::clone(&file), in_force: sender };
        let task = tokio::spawn(keeper.run(waiting));
        Ok((Self { orders, in_force: receiver, store, file }, task))
    }

    /// What is in force now.
    #[must_use]
    pub fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.borrow())
    }

    pub(super) async fn set(&self, target: Target, contract: Contract) -> Result<Applied, LimitError> {
        self.order(Order::Set(target, Some(contract))).await
    }

    pub(super) async fn remove(&self, target: Target) -> Result<Applied, LimitError> {
        self.order(Order::Set(target, None)).await
    }

    /// Takes the newest change back, as a change of its own: doing it twice redoes it.
    pub(super) async fn undo(&self) -> Result<Applied, LimitError> {
        self.order(Order::Undo).await
    }

    async fn order(&self, order: Order) -> Result<Applied, LimitError> {
        let (answer, answered) = oneshot::channel();
        self.orders.send((order, answer)).await.map_err(|_| LimitError::Exiting)?;
        answered.await.map_err(|_| LimitError::Exiting)?
    }

    /// The latest changes, newest first.
    pub(super) async fn history(&self) -> Result<Vec<Change>, LimitStoreError> {
        blocking(&self.store, LimitStore::history).await
    }

    /// What holds for `target` where the store has `stored`.
    pub(super) fn resolve(&self, target: &Target, stored: Option<Contract>) -> Option<(Contract, Source)> {
        resolve(&self.file, target, stored)
    }
}

fn resolve(file: &BTreeMap<Target, Contract>, target: &Target, stored: Option<Contract>) -> Option<(Contract, Source)> {
    let own = stored.map(|contract| (contract, Source::Admin));
    own.or_else(|| file.get(target).map(|contract| (*contract, Source::File)))
}

/// The one that changes limits, so that two changes never cross on their way to store and shard.
struct Keeper {
    broker: BrokerHandle,
    store: Arc<dyn LimitStore>,
    file: Arc<BTreeMap<Target, Contract>>,
    in_force: watch::Sender<Arc<InForce>>,
}

impl Keeper {
    async fn run(self, mut orders: mpsc::Receiver<(Order, Answer)>) {
        while let Some((order, answer)) = orders.recv().await {
            let result = self.carry_out(order).await;
            // Whoever asked may have gone away; the change stays.
            answer.send(result).ok();
        }
    }

    async fn carry_out(&self, order: Order) -> Result<Applied, LimitError> {
        let (target, stored) = match order {
            Order::Set(target, None) => {
                let source = self.in_force.borrow().get(&target).map(|(_, source)| *source);
                match source {
                    None => return Err(LimitError::Nothing),
                    Some(Source::File) => return Err(LimitError::FromFile),
                    Some(Source::Admin) => (target, None),
                }
            }
            Order::Set(target, contract) => (target, contract),
            Order::Undo => {
                let history = blocking(&self.store, LimitStore::history).await?;
                let newest = history.into_iter().next().ok_or(LimitError::Nothing)?;
                (newest.target, newest.before)
            }
        };
        let at_ms = clock::realtime_ns() / 1_000_000;
        let changed = target.clone();
        let change = blocking(&self.store, move |store| store.set(&changed, stored, at_ms)).await?;
        let before = self.in_force.borrow().get(&target).copied();
        let after = resolve(&self.file, &target, stored);
        let done = apply(&self.broker, &target, after).await;
        self.in_force.send_modify(|in_force| {
            let in_force = Arc::make_mut(in_force);
            match after {
                Some(contract) => in_force.insert(target.clone(), contract),
                None => in_force.remove(&target),
            };
        });
        if done.is_none() {
            return Err(LimitError::Exiting);
        }
        Ok(Applied { target, before, after, revision: change.revision })
    }
}

async fn apply(broker: &BrokerHandle, target: &Target, contract: Option<(Contract, Source)>) -> Option<AdminReply> {
    let topic = target.topic.clone();
    let request = match target.channel.clone() {
        None => AdminRequest::SetTopicLimit(topic, contract),
        Some(channel) => AdminRequest::SetChannelLimit(topic, channel, contract),
    };
    broker.ask_topic(&target.topic, request).await
}

/// Runs `work`, which may wait for a disk, where waiting holds nobody up.
async fn blocking<T: Send + 'static>(
    store: &Arc<dyn LimitStore>,
    work: impl FnOnce(&dyn LimitStore) -> Result<T, LimitStoreError> + Send + 'static,
) -> Result<T, LimitStoreError> {
    let store = Arc::clone(store);
    spawn_blocking(move || work(&*store)).await.expect("a store returns its errors")
}

//! The limits in force, changed one after the other.
//!
//! A limit comes from the file or from this API, and the latter outranks the former until it is removed. A change is
//! durable before it is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_runtime::clock;
use tidegate_wire::nsq::{BadName, ChannelName, TopicName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};

use super::store::{Action, Change, Edit, LimitStore, LimitStoreError};
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
    /// The earlier change that was taken back or made again.
    pub(super) earlier: Option<Change>,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// It could not be made durable; nothing has changed.
    #[error("the change cannot be stored: {0}")]
    Store(#[from] LimitStoreError),
    /// There is nothing to remove, to undo or to redo.
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
    /// With the client that asked, as it named itself.
    Change(Action, String),
    /// The limits of the configuration file, which was read again.
    File(BTreeMap<Target, Contract>),
}

/// What came of an order.
enum Carried {
    Changed(Box<Applied>),
    File(Vec<FileChange>),
}

/// A limit that stands in the configuration file and is another there now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileChange {
    /// What it holds for.
    pub target: Target,
    /// As it stood in the file.
    pub before: Option<Contract>,
    /// As it stands there now.
    pub after: Option<Contract>,
    /// The limit that was set live and outranks the file's, so that nothing changes until it is removed.
    pub outranked_by: Option<Contract>,
}

type Answer = oneshot::Sender<Result<Carried, LimitError>>;

/// Asks for changes, and knows what is in force. Cheap to clone.
#[derive(Clone)]
pub struct Limits {
    orders: mpsc::Sender<(Order, Answer)>,
    in_force: watch::Receiver<Arc<InForce>>,
    store: Arc<dyn LimitStore>,
    file: watch::Receiver<Arc<BTreeMap<Target, Contract>>>,
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
        let (file_sender, file) = watch::channel(Arc::new(file));
        let keeper = Keeper { broker, store: Arc::clone(&store), file: file_sender, in_force: sender };
        let task = tokio::spawn(keeper.run(waiting));
        Ok((Self { orders, in_force: receiver, store, file }, task))
    }

    /// What is in force now.
    #[must_use]
    pub fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Puts the limits of the configuration file, which was read again, in the place of those it had, and says what
    /// changed. What was set live goes on to outrank them.
    ///
    /// # Errors
    /// If the broker is shutting down.
    pub async fn set_file(
        &self,
        file: impl IntoIterator<Item = (Target, Contract)>,
    ) -> Result<Vec<FileChange>, LimitError> {
        match self.order(Order::File(file.into_iter().collect())).await? {
            Carried::File(changes) => Ok(changes),
            Carried::Changed(_) => unreachable!("each order has its own answer"),
        }
    }

    /// Carries `action` out for the client `by`.
    pub(super) async fn change(&self, action: Action, by: String) -> Result<Applied, LimitError> {
        match self.order(Order::Change(action, by)).await? {
            Carried::Changed(applied) => Ok(*applied),
            Carried::File(_) => unreachable!("each order has its own answer"),
        }
    }

    async fn order(&self, order: Order) -> Result<Carried, LimitError> {
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
        resolve(&self.file.borrow(), target, stored)
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
    file: watch::Sender<Arc<BTreeMap<Target, Contract>>>,
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

    async fn carry_out(&self, order: Order) -> Result<Carried, LimitError> {
        match order {
            Order::Change(action, by) => {
                self.change(action, by).await.map(|applied| Carried::Changed(Box::new(applied)))
            }
            Order::File(file) => self.set_file(file).await.map(Carried::File),
        }
    }

    async fn change(&self, action: Action, by: String) -> Result<Applied, LimitError> {
        if let Action::Set(target, None) = &action {
            match self.in_force.borrow().get(target).map(|(_, source)| *source) {
                None => return Err(LimitError::Nothing),
                Some(Source::File) => return Err(LimitError::FromFile),
                Some(Source::Admin) => {}
            }
        }
        let edit = Edit { action, at_ms: clock::realtime_ns() / 1_000_000, by };
        let changed = blocking(&self.store, move |store| store.change(&edit)).await?;
        let (change, earlier) = changed.ok_or(LimitError::Nothing)?;
        let target = change.target;
        let before = self.in_force.borrow().get(&target).copied();
        let after = resolve(&self.file.borrow(), &target, change.after);
        self.put_in_force(&target, after).await?;
        Ok(Applied { target, before, after, revision: change.revision, earlier })
    }

    async fn set_file(&self, file: BTreeMap<Target, Contract>) -> Result<Vec<FileChange>, LimitError> {
        let old = self.file.send_replace(Arc::new(file.clone()));
        let targets: BTreeSet<&Target> = old.keys().chain(file.keys()).collect();
        let mut changes = Vec::new();
        for target in targets {
            let (before, after) = (old.get(target).copied(), file.get(target).copied());
            if before == after {
                continue;
            }
            let live = self.in_force.borrow().get(target).filter(|(_, source)| *source == Source::Admin).copied();
            if live.is_none() {
                self.put_in_force(target, after.map(|contract| (contract, Source::File))).await?;
            }
            let outranked_by = live.map(|(contract, _)| contract);
            changes.push(FileChange { target: target.clone(), before, after, outranked_by });
        }
        Ok(changes)
    }

    async fn put_in_force(&self, target: &Target, limit: Option<(Contract, Source)>) -> Result<(), LimitError> {
        let done = apply(&self.broker, target, limit).await;
        self.in_force.send_modify(|in_force| {
            let in_force = Arc::make_mut(in_force);
            match limit {
                Some(limit) => in_force.insert(target.clone(), limit),
                None => in_force.remove(target),
            };
        });
        done.map(drop).ok_or(LimitError::Exiting)
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

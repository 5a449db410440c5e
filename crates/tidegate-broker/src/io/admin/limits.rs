//! The limits in force, changed one after the other.
//!
//! A limit comes from the file or from this API, and the latter outranks the former until it is removed. A change is
//! durable before it is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::clock;
use tidegate_wire::nsq::{BadName, ChannelName, TopicName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::store::{Action, Change, Edit, LimitFeed, LimitStore, LimitStoreError};
use crate::io::handle::BrokerHandle;
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::limiter::{Contract, Source};
use crate::machine::parts::PartStatus;

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
    /// The node's part of the limit, which goes on to rule the bucket.
    pub(super) part: Option<PartStatus>,
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

/// Wait after the store could not say what others changed.
const RETRY: Duration = Duration::from_secs(1);

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
        // Followed from before it is read, so that nothing falls in between.
        let feed = store.follow().await?;
        let stored = store.limits().await?;
        in_force.extend(stored.into_iter().map(|(target, contract)| (target, (contract, Source::Admin))));
        for (target, contract) in &in_force {
            // A broker that is gone so early reports it elsewhere.
            apply(&broker, target, Some(*contract)).await;
        }
        let (sender, receiver) = watch::channel(Arc::new(in_force));
        let (orders, waiting) = mpsc::channel(WAITING_ORDERS);
        let (file_sender, file) = watch::channel(Arc::new(file));
        let keeper = Keeper { broker, store: Arc::clone(&store), file: file_sender, in_force: sender };
        let task = tokio::spawn(keeper.run(waiting, feed));
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
        self.store.history().await
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
    async fn run(self, mut orders: mpsc::Receiver<(Order, Answer)>, mut feed: Option<Box<dyn LimitFeed>>) {
        // Others have changed these, and what they are now is not read yet: at most all limits that the store holds.
        let mut stale = BTreeSet::new();
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some((order, answer)) = order else { return };
                    let result = self.carry_out(order).await;
                    // Whoever asked may have gone away; the change stays.
                    answer.send(result).ok();
                }
                changed = changed_by_others(feed.as_mut(), wait) => match changed {
                    Ok(targets) => {
                        wait = Duration::ZERO;
                        stale.extend(targets);
                    }
                    Err(error) => {
                        wait = RETRY;
                        tracing::warn!(%error, "limits that others change are not in force here");
                    }
                },
                () = sleep(RETRY), if !stale.is_empty() => {}
            }
            self.catch_up(&mut stale).await;
        }
    }

    /// Puts in force what the store has for the targets in `stale`, and leaves those that it could not say.
    async fn catch_up(&self, stale: &mut BTreeSet<Target>) {
        while let Some(target) = stale.first().cloned() {
            let stored = match self.store.limit(&target).await {
                Ok(stored) => stored,
                Err(error) => {
                    tracing::warn!(%target, %error, "a limit that another changed is not in force here");
                    return;
                }
            };
            stale.remove(&target);
            let after = resolve(&self.file.borrow(), &target, stored);
            if self.in_force.borrow().get(&target).copied() == after {
                continue;
            }
            tracing::info!(%target, "a limit was changed by another node");
            if self.put_in_force(&target, after).await.is_err() {
                // The broker is shutting down.
                return;
            }
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
                // What a part makes is none of these.
                None | Some(Source::Part) => return Err(LimitError::Nothing),
                Some(Source::File) => return Err(LimitError::FromFile),
                Some(Source::Admin) => {}
            }
        }
        let edit = Edit { action, at_ms: clock::realtime_ns() / 1_000_000, by };
        let (change, earlier) = self.store.change(&edit).await?.ok_or(LimitError::Nothing)?;
        let target = change.target;
        let before = self.in_force.borrow().get(&target).copied();
        let after = resolve(&self.file.borrow(), &target, change.after);
        let part = self.put_in_force(&target, after).await?;
        Ok(Applied { target, before, after, revision: change.revision, earlier, part })
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

    /// Answers the node's part of it, if it has one.
    async fn put_in_force(
        &self,
        target: &Target,
        limit: Option<(Contract, Source)>,
    ) -> Result<Option<PartStatus>, LimitError> {
        let done = apply(&self.broker, target, limit).await;
        self.in_force.send_modify(|in_force| {
            let in_force = Arc::make_mut(in_force);
            match limit {
                Some(limit) => in_force.insert(target.clone(), limit),
                None => in_force.remove(target),
            };
        });
        match done.ok_or(LimitError::Exiting)? {
            AdminReply::Parts(parts) => Ok(parts.into_iter().next()),
            _ => Ok(None),
        }
    }
}

/// What the `feed` says next, after `wait`; nothing ever without one.
async fn changed_by_others(
    feed: Option<&mut Box<dyn LimitFeed>>,
    wait: Duration,
) -> Result<Vec<Target>, LimitStoreError> {
    let Some(feed) = feed else { return std::future::pending().await };
    if !wait.is_zero() {
        sleep(wait).await;
    }
    feed.next().await
}

async fn apply(broker: &BrokerHandle, target: &Target, contract: Option<(Contract, Source)>) -> Option<AdminReply> {
    let topic = target.topic.clone();
    let request = match target.channel.clone() {
        None => AdminRequest::SetTopicLimit(topic, contract),
        Some(channel) => AdminRequest::SetChannelLimit(topic, channel, contract),
    };
    broker.ask_topic(&target.topic, request).await
}

//! Which nodes there are: a task for each asks it every second who it is, one keeps the roster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::broker_api::NodeAnswer;
use super::client::NodeClient;
use super::lead::stopped;
use crate::config;
use crate::error::with_causes;
use crate::machine::name::Name;
use crate::machine::roster::{NodeState, Roster, RosterConfig, Says};

/// How often a node is asked.
const EVERY: Duration = Duration::from_secs(1);
/// A look at the roster that is late by more than the time between two found this process standing still: nodes may have
/// answered meanwhile.
const LOOK: Duration = Duration::from_millis(250);
/// Answers that wait for the roster; beyond, a node waits before it is asked again.
const ANSWERS: usize = 256;
/// What a node takes that neither the file nor the node itself says anything about, per shard: below what one core of a
/// broker was measured to take, so that a first placement is not too dense.
pub const MCAP_PER_SHARD: f64 = 50_000.0;

/// From where the capacity of a node is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum McapFrom {
    /// Nobody said: [`MCAP_PER_SHARD`].
    #[default]
    Assumed,
    /// The node says so.
    Node,
    /// The file says so.
    File,
}

/// A node, as far as claims need to know it.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeNow {
    /// Whether it takes publishers.
    pub state: NodeState,
    /// Messages per second that it takes within the objectives.
    pub mcap_per_s: f64,
    /// Who says so.
    pub mcap_from: McapFrom,
    /// Its cores.
    pub shards: u32,
    /// Where they take the datagrams of lending; empty if they take none.
    pub lend_addresses: Vec<SocketAddr>,
}

/// All nodes by name.
pub type Nodes = Arc<BTreeMap<Name, NodeNow>>;

/// The last contact with a node.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    /// When it answered.
    pub answered: Option<Instant>,
    /// Why it did not answer the last time.
    pub error: Option<String>,
    /// What it said.
    pub said: NodeAnswer,
}

/// The last contact with each node.
#[derive(Debug, Default)]
pub struct Contacts(Mutex<BTreeMap<Name, Contact>>);

impl Contacts {
    /// The last contact with `node`.
    #[must_use]
    pub fn of(&self, node: &str) -> Contact {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned().unwrap_or_default()
    }

    fn forget(&self, node: &Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }

    fn note(&self, node: &Name, answer: &Result<NodeAnswer, String>, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let contact = all.entry(node.clone()).or_default();
        match answer {
            Ok(said) => {
                *contact = Contact { answered: Some(now), error: None, said: said.clone() };
            }
            Err(error) => contact.error = Some(error.clone()),
        }
    }
}

/// A node with its client.
#[derive(Clone, Debug)]
pub struct Member {
    /// As in the file.
    pub node: config::Node,
    /// Its admin API.
    pub client: NodeClient,
}

/// The nodes with their clients, by name.
pub type Members = Arc<BTreeMap<Name, Member>>;

type Heard = (Name, Result<NodeAnswer, String>);

/// What asks all nodes.
pub(super) struct Watch {
    pub(super) members: watch::Receiver<Members>,
    pub(super) contacts: Arc<Contacts>,
    pub(super) nodes: watch::Sender<Nodes>,
    /// After how long without an answer a node is gone.
    pub(super) silence: Duration,
    pub(super) stop: watch::Receiver<bool>,
}

impl Watch {
    /// Asks until it is told to stop.
    pub(super) async fn run(mut self) {
        let (answers, mut heard) = mpsc::channel::<Heard>(ANSWERS);
        let mut roster = Roster::new(RosterConfig { silence: self.silence });
        let mut tasks = self.enter(&mut roster, &answers);
        self.publish(&mut roster);
        loop {
            let now = clock::now();
            let due = roster.next_timeout().unwrap_or(now + LOOK).min(now + LOOK);
            tokio::select! {
                () = stopped(&mut self.stop) => break,
                Some((node, answer)) = heard.recv() => self.on_answer(&mut roster, &node, &answer),
                Ok(()) = self.members.changed() => tasks = self.enter(&mut roster, &answers),
                () = sleep(due.since(now)) => {
                    let now = clock::now();
                    if now.since(due) > LOOK {
                        roster.on_standstill(now.since(due));
                    }
                    roster.on_timeout(now);
                }
            }
            self.publish(&mut roster);
        }
        tasks.shutdown().await;
    }

    /// Asks the nodes that there are from now on, and no others.
    fn enter(&mut self, roster: &mut Roster, answers: &mpsc::Sender<Heard>) -> JoinSet<()> {
        let members = Arc::clone(&self.members.borrow_and_update());
        let gone: Vec<Name> =
            roster.nodes().map(|(name, _)| name.clone()).filter(|at| !members.contains_key(at)).collect();
        for name in gone {
            roster.remove(name.as_str());
            self.contacts.forget(&name);
        }
        let mut tasks = JoinSet::new();
        for (name, member) in members.iter() {
            // The configuration has no more nodes than the roster.
            if roster.add(name, clock::now()).is_ok() {
                tasks.spawn(ask(name.clone(), member.client.clone(), answers.clone()));
            }
        }
        tasks
    }

    fn on_answer(&self, roster: &mut Roster, node: &Name, answer: &Result<NodeAnswer, String>) {
        let now = clock::now();
        self.contacts.note(node, answer, now);
        if let Ok(said) = answer {
            let says = if said.draining { Says::Draining } else { Says::Ready };
            roster.on_answer(node.as_str(), says, now);
        }
    }

    /// Tells claims of what changed.
    fn publish(&self, roster: &mut Roster) {
        while let Some(change) = roster.poll_change() {
            let error = self.contacts.of(change.node.as_str()).error;
            match change.state {
                NodeState::Gone => tracing::warn!(node = %change.node, error, "a node is gone"),
                state => tracing::info!(node = %change.node, ?state, "a node's state changed"),
            }
        }
        let members = Arc::clone(&self.members.borrow());
        let now = |(name, state): (&Name, NodeState)| {
            let member = members.get(name.as_str())?;
            let said = self.contacts.of(name.as_str()).said;
            Some((name.clone(), now_of(&member.node, &said, state)))
        };
        let nodes: BTreeMap<Name, NodeNow> = roster.nodes().filter_map(now).collect();
        self.nodes.send_if_modified(|old| {
            let changed = **old != nodes;
            if changed {
                *old = Arc::new(nodes);
            }
            changed
        });
    }
}

fn now_of(node: &config::Node, said: &NodeAnswer, state: NodeState) -> NodeNow {
    let shards = said.shards.max(1);
    let own = said.mcap_per_s.filter(|mcap| mcap.is_finite() && *mcap > 0.0);
    let (mcap_per_s, mcap_from) = match (node.mcap_per_s, own) {
        (Some(mcap), _) => (mcap, McapFrom::File),
        (None, Some(mcap)) => (mcap, McapFrom::Node),
        (None, None) => (MCAP_PER_SHARD * f64::from(shards), McapFrom::Assumed),
    };
    NodeNow { state, mcap_per_s, mcap_from, shards, lend_addresses: said.lend_addresses.clone() }
}

async fn ask(name: Name, client: NodeClient, answers: mpsc::Sender<Heard>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = client.node().await.map_err(|error| with_causes(&error));
        if answers.send((name.clone(), answer)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;

    #[test]
    fn capacity_is_the_files_then_the_nodes_then_assumed() {
        let node = |mcap_per_s| config::Node {
            name: "a".to_owned(),
            admin: "h:1".to_owned(),
            nsq: "h:2".to_owned(),
            mcap_per_s,
            token_file: None,
        };
        let said = |mcap_per_s| NodeAnswer { shards: 3, mcap_per_s, ..NodeAnswer::default() };
        let of = |file, own| {
            let now = now_of(&node(file), &said(own), NodeState::Ready);
            (now.mcap_per_s, now.mcap_from)
        };
        assert_eq!(of(Some(7.0), Some(8.0)), (7.0, McapFrom::File));
        assert_eq!(of(None, Some(8.0)), (8.0, McapFrom::Node));
        assert_eq!(of(None, None), (3.0 * MCAP_PER_SHARD, McapFrom::Assumed));
        assert_eq!(of(None, Some(f64::NAN)), (3.0 * MCAP_PER_SHARD, McapFrom::Assumed));
    }

    #[tokio::test]
    async fn a_node_that_answers_is_ready_and_one_that_falls_silent_is_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&silent);
        let answer = move || {
            let silent = seen.load(std::sync::atomic::Ordering::Relaxed);
            async move { if silent { std::future::pending().await } else { "{\"shards\": 2}" } }
        };
        let router = Router::new().route("/api/v1/node", get(answer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let node = config::Node {
            name: "a".to_owned(),
            admin: address.clone(),
            nsq: "h:2".to_owned(),
            mcap_per_s: None,
            token_file: None,
        };
        let member = Member { node, client: NodeClient::new(&address, None) };
        let (sender, mut nodes) = watch::channel(Nodes::default());
        let (stop, stopping) = watch::channel(false);
        let watch = Watch {
            members: watch::channel(Arc::new([(Name::from("a"), member)].into())).1,
            contacts: Arc::default(),
            nodes: sender,
            silence: Duration::from_millis(1_500),
            stop: stopping,
        };
        let running = tokio::spawn(watch.run());
        let mut until = async |state: NodeState| {
            let is = |nodes: &Nodes| nodes.get("a").is_some_and(|node| node.state == state);
            let waited = tokio::time::timeout(Duration::from_secs(20), nodes.wait_for(is)).await;
            waited.expect("in time").expect("it runs").get("a").cloned().expect("it is there")
        };
        assert_eq!(until(NodeState::Ready).await.shards, 2);
        silent.store(true, std::sync::atomic::Ordering::Relaxed);
        until(NodeState::Gone).await;
        stop.send_replace(true);
        running.await.unwrap();
    }
}

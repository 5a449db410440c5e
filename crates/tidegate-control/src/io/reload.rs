//! What the file declares, put in force at the start and again while control runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};

use super::claim::{self, COMMANDS_MAX, Claim, ClaimSetup, ClaimState, Command};
use super::client::NodeClient;
use super::nodes::{Member, Members};
use super::{ClaimHandle, Control, Declared};
use crate::config::{Config, Node, Topic};
use crate::machine::director::{Director, Placement};
use crate::machine::name::Name;

/// What another configuration changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Topics that were not declared before, those that are no more, and those that are declared otherwise.
    pub topics: Named,
    /// The same of brokers.
    pub nodes: Named,
}

/// Names of what came, went or changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Named {
    /// New.
    pub added: Vec<String>,
    /// Gone.
    pub removed: Vec<String>,
    /// Other than before.
    pub changed: Vec<String>,
}

impl Named {
    fn of<T: PartialEq>(before: &[T], now: &[T], name: impl Fn(&T) -> &str) -> Self {
        let find = |all: &'_ [T], one: &T| all.iter().position(|other| name(other) == name(one));
        let names = |all: &[T], wanted: &dyn Fn(&T) -> bool| {
            all.iter().filter(|one| wanted(one)).map(|one| name(one).to_owned()).collect()
        };
        Self {
            added: names(now, &|one| find(before, one).is_none()),
            removed: names(before, &|one| find(now, one).is_none()),
            changed: names(now, &|one| find(before, one).is_some_and(|at| before[at] != *one)),
        }
    }

    /// Nothing did.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The nodes of `config`, with what each is shown as a token, in the same order.
pub(super) fn members_of(config: &Config, tokens: Vec<Option<String>>) -> Members {
    let tokens = tokens.into_iter().chain(std::iter::repeat(None));
    let member = |(node, token): (&Node, Option<String>)| {
        let client = NodeClient::new(&node.admin, token.as_deref());
        (Name::from(node.name.as_str()), Member { node: node.clone(), client })
    };
    Arc::new(config.nodes.iter().zip(tokens).map(member).collect())
}

impl Control {
    /// Puts `config` in the place of what is in force, which [`Config::reread`] has compared with it; `tokens` as in
    /// [`Setup`](super::Setup). Topics that are not in it any more give their parts back, those that are new wait for a
    /// lease, and everything else stays where it is.
    pub async fn reload(&mut self, config: Config, tokens: Vec<Option<String>>) -> Changes {
        let before = self.shared.declared();
        let changes = Changes {
            topics: Named::of(&before.config.topics, &config.topics, |topic| &topic.name),
            nodes: Named::of(&before.config.nodes, &config.nodes, |node| &node.name),
        };
        let config = Arc::new(config);
        self.members.send_replace(members_of(&config, tokens));
        let mut claims = BTreeMap::new();
        for topic in &config.topics {
            let topic = Arc::new(topic.clone());
            let name = topic.name.clone();
            let handle = match before.claims.get(&name) {
                Some(handle) => {
                    let command = Command::Configure { topic: Arc::clone(&topic), config: Arc::clone(&config) };
                    // An error means that control is ending.
                    let _ = handle.commands.send(command).await;
                    ClaimHandle { topic, ..handle.clone() }
                }
                None => self.claim(topic, &config),
            };
            claims.insert(name, handle);
        }
        for (_, handle) in before.claims.iter().filter(|(name, _)| !claims.contains_key(*name)) {
            let _ = handle.commands.send(Command::End).await;
        }
        self.declare(config, claims);
        changes
    }

    /// What the admin API shows from now on.
    pub(super) fn declare(&self, config: Arc<Config>, claims: BTreeMap<String, ClaimHandle>) {
        let members = Arc::clone(&self.members.borrow());
        self.declared.send_replace(Arc::new(Declared { config, members, claims }));
    }

    /// Starts the task of a topic.
    pub(super) fn claim(&mut self, topic: Arc<Topic>, config: &Arc<Config>) -> ClaimHandle {
        let shared = &self.shared;
        let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
        let director = Director::new(claim::director_config(&topic, config), clock::now());
        let (state_sender, state) = watch::channel(Arc::new(ClaimState::new(director.view(clock::now()))));
        let (placement_sender, placement) = watch::channel(Arc::<Placement>::default());
        let setup = ClaimSetup {
            topic: Arc::clone(&topic),
            config: Arc::clone(config),
            members: self.members.subscribe(),
            kept: Arc::clone(&shared.kept),
            loads: Arc::clone(&shared.loads),
            nodes: shared.nodes.clone(),
            standing: shared.standing.clone(),
            fenced: self.fenced.clone(),
            commands: commanded,
            state: state_sender,
            placement: placement_sender,
            stop: shared.stop.clone(),
        };
        self.tasks.spawn(Claim::new(setup, director).run());
        ClaimHandle { topic, state, placement, commands }
    }
}

//! Control itself: nodes' admin APIs, the store and time around the machines, and an admin API.
//!
//! | module | its one job |
//! |---|---|
//! | [`admin`] | the admin API: state, placements, new plans, what-if, metrics |
//! | [`broker_api`] | a broker's admin API, as far as control uses it |
//! | [`proxy_api`] | a proxy's, and its requests |
//! | [`client`] | requests to a node, bounded in time, size and number |
//! | [`dry_run`] | what a plan would be |
//! | `claim` | a task for each topic around its director |
//! | [`division`] | a task for each limit that proxies divide, around its divider |
//! | `orders` | how an order of a director is carried out |
//! | `sensed` | what sensors say, as directors want to know it |
//! | `trace` | a broker's trace, as planners want to know it |
//! | [`kept`] | what outlives the process, in the control store |
//! | [`lead`] | which process leads |
//! | [`loads`] | what claims have of nodes |
//! | [`nodes`] | which nodes there are |
//! | [`predict`] | what the exact theory says of a split |
//! | `reload` | another configuration while it runs |
//! | [`hop`] | `tidegate steer`: the address that unmodified NSQ producers dial |
//! | [`hook`] | who is told that brokers are missing |
//! | [`view`] | the state for people and programs |

pub mod admin;
pub mod broker_api;
mod claim;
pub mod client;
pub mod division;
pub mod dry_run;
pub mod hook;
pub mod hop;
pub mod kept;
pub mod lead;
pub mod loads;
pub mod nodes;
mod orders;
pub mod predict;
pub mod proxy_api;
mod reload;
mod sensed;
mod trace;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_runtime::store::ControlStore;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::claim::{ClaimState, Command};
use self::division::{Division, DivisionHandle, DivisionSetup, DivisionState};
use self::kept::{Kept, Leader};
use self::lead::{Candidate, Standing, stopped};
use self::loads::Loads;
use self::nodes::{Contacts, Members, Nodes, Watch};
pub use self::reload::{Changes, Named};
use crate::config::{Config, Topic};
use crate::machine::director::Placement;

/// Answers of `GET /api/v1/placement/{topic}` that wait for a change at a time; further ones are answered 503.
pub const WAITERS_MAX: usize = 10_000;
/// Rehearsals and what-ifs that compute at a time; further ones are answered 503.
pub const COMPUTING_MAX: usize = 2;
/// How often the processes that keep the store are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Revisions above the leader's that wait to be looked at.
const FENCED_MAX: usize = 64;

/// What control is made of.
pub struct Setup {
    /// What it runs with.
    pub config: Arc<Config>,
    /// Where everything is kept that outlives it.
    pub store: Arc<dyn ControlStore>,
    /// What nodes want as `Authorization: Bearer ...`: one for each node, in the order of the configuration, and then one
    /// for each proxy.
    pub tokens: Vec<Option<String>>,
    /// How this process is called, and where it is asked.
    pub me: Leader,
}

/// A claim, as the admin API reaches it.
#[derive(Clone, Debug)]
pub struct ClaimHandle {
    /// As in the file.
    pub topic: Arc<Topic>,
    /// The newest state.
    pub state: watch::Receiver<Arc<ClaimState>>,
    /// The newest placement.
    pub placement: watch::Receiver<Arc<Placement>>,
    commands: mpsc::Sender<Command>,
}

/// What the file declares.
#[derive(Debug)]
struct Declared {
    config: Arc<Config>,
    members: Members,
    claims: BTreeMap<String, ClaimHandle>,
}

/// What all tasks and the admin API share.
#[derive(Debug)]
pub struct Shared {
    me: Leader,
    declared: watch::Receiver<Arc<Declared>>,
    contacts: Arc<Contacts>,
    kept: Arc<Kept>,
    loads: Arc<Loads>,
    nodes: watch::Receiver<Nodes>,
    standing: watch::Receiver<Standing>,
    divisions: Vec<DivisionHandle>,
    waiters: Arc<Semaphore>,
    computing: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
    started: Instant,
}

impl Shared {
    fn declared(&self) -> Arc<Declared> {
        Arc::clone(&self.declared.borrow())
    }

    /// The limits that proxies divide, in the order of the configuration.
    #[must_use]
    pub fn divisions(&self) -> &[DivisionHandle] {
        &self.divisions
    }
}

/// Control that runs. [`Self::stop`] ends it; parts stay in force at nodes until their leases end.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    declared: watch::Sender<Arc<Declared>>,
    members: watch::Sender<Members>,
    fenced: mpsc::Sender<u64>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Control {
    /// Starts every task. Nothing is ordered before this process leads.
    #[must_use]
    pub fn start(setup: Setup) -> Self {
        let Setup { config, store, tokens, me } = setup;
        let (stop, stopping) = watch::channel(false);
        let mut tokens = tokens;
        let of_proxies = tokens.split_off(config.nodes.len().min(tokens.len()));
        let (members, members_now) = watch::channel(reload::members_of(&config, tokens));
        let proxies = division::proxies_of(&config, of_proxies);
        let (kept, contacts, loads) = (Arc::new(Kept::new(store)), Arc::<Contacts>::default(), Arc::<Loads>::default());
        let (nodes_sender, nodes) = watch::channel(Nodes::default());
        let (standing_sender, standing) = watch::channel(Standing::Follows { leader: None });
        let (fenced, fenced_receiver) = mpsc::channel(FENCED_MAX);
        let mut tasks = JoinSet::new();
        let mut divisions = Vec::new();
        for (number, limit) in config.limits.iter().enumerate() {
            let limit = Arc::new(limit.clone());
            let divider = division::divider(&limit, &config);
            let first = DivisionState { view: divider.view(clock::now()), failed: BTreeMap::new() };
            let (state_sender, state) = watch::channel(Arc::new(first));
            divisions.push(DivisionHandle { limit: Arc::clone(&limit), state });
            let setup = DivisionSetup {
                limit,
                number,
                config: Arc::clone(&config),
                proxies: Arc::clone(&proxies),
                kept: Arc::clone(&kept),
                standing: standing.clone(),
                fenced: fenced.clone(),
                state: state_sender,
                stop: stopping.clone(),
            };
            tasks.spawn(Division::new(setup, divider).run());
        }
        let watch = Watch {
            members: members_now,
            contacts: Arc::clone(&contacts),
            nodes: nodes_sender,
            silence: config.lease.min(Duration::from_secs(3)),
            stop: stopping.clone(),
        };
        tasks.spawn(watch.run());
        let candidate = Candidate {
            kept: Arc::clone(&kept),
            me: me.clone(),
            lease: config.lease,
            standing: standing_sender,
            fenced: fenced_receiver,
            stop: stopping.clone(),
            reach: 0,
        };
        tasks.spawn(candidate.run());
        tasks.spawn(look(Arc::clone(&kept), stopping.clone()));
        let nothing = Declared { config: Arc::clone(&config), members: Members::default(), claims: BTreeMap::new() };
        let (declared, declared_now) = watch::channel(Arc::new(nothing));
        let shared = Shared {
            me,
            declared: declared_now,
            contacts,
            kept,
            loads,
            nodes,
            standing,
            divisions,
            waiters: Arc::new(Semaphore::new(WAITERS_MAX)),
            computing: Arc::new(Semaphore::new(COMPUTING_MAX)),
            stop: stopping,
            started: clock::now(),
        };
        let mut this = Self { shared: Arc::new(shared), declared, members, fenced, stop, tasks };
        let claims =
            config.topics.iter().map(|topic| (topic.name.clone(), this.claim(Arc::new(topic.clone()), &config)));
        let claims = claims.collect();
        this.declare(config, claims);
        this
    }

    /// What the admin API stands on.
    #[must_use]
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Lets another process lead, and ends every task.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task did not end well");
            }
        }
    }
}

/// Looks at the processes that keep the store, until control ends.
async fn look(kept: Arc<Kept>, mut stop: watch::Receiver<bool>) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
            _ = ticks.tick() => kept.look().await,
        }
    }
}

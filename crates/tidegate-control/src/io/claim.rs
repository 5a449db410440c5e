//! A task for each topic: it drives the topic's director, carries out its orders, keeps what must outlive the process, and
//! tells the admin API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::broker_api::PublishersAnswer;
use super::hook::{self, Shortage};
use super::kept::{Kept, Saved, SavedPart, Term};
use super::lead::{Standing, stopped};
use super::loads::Loads;
use super::nodes::{Members, Nodes};
use super::orders::{Carried, Known, carry_out};
use super::predict::{Offered, Prediction, predict};
use super::sensed::{offered_of, publishers_of};
use crate::config::{Config, Lend, Model, Planner, Topic, Unit};
use crate::error::{KeptError, with_causes};
use crate::machine::confirm::ConfirmConfig;
use crate::machine::director::{
    AdaptorConfig, Ask, Director, DirectorConfig, Event, Inherited, Phase, Placement, PlannerKind, Report, View,
};
use crate::machine::modelled::ModelConfig;
use crate::machine::name::Name;
use crate::machine::roster::NodeState;
use crate::machine::types::{Excess, FitConfig, NodeLoad, Publisher};

/// How often the state is shown, loads are compared and what changed is kept.
const REFRESH: Duration = Duration::from_millis(500);
/// A placement that changed is kept no more often than this,
const KEEP_PLACEMENT: Duration = Duration::from_secs(1);
/// and parts alone no more often than this: after a restart they are fitted again within a window.
const KEEP_PARTS: Duration = Duration::from_secs(10);
/// One that follows looks this often at what the leader keeps.
const FOLLOW: Duration = Duration::from_secs(1);
/// or less often with more than two hundred topics.
const FOLLOW_EACH: Duration = Duration::from_millis(5);
/// How often the theory is asked.
const PREDICT: Duration = Duration::from_secs(5);
/// A node's load is told to the director when it changed by more than this share of the capacity.
const LOAD_STEP: f64 = 0.01;
/// Commands that wait for the task; further ones are answered that it is busy.
pub(super) const COMMANDS_MAX: usize = 16;

/// What somebody asks of a claim.
#[derive(Debug)]
pub(super) enum Command {
    /// A new plan, from the publishers as they are now.
    Replan,
    /// Who publishes now.
    Publishers(oneshot::Sender<Publishers>),
    /// The file says this from now on.
    Configure { topic: Arc<Topic>, config: Arc<Config> },
    /// The topic is not in the file any more.
    End,
}

/// Who publishes to a topic now.
#[derive(Clone, Debug, Default)]
pub(super) struct Publishers {
    pub(super) names: Vec<Name>,
    pub(super) known: Vec<Publisher>,
    pub(super) offered: Offered,
}

/// What is known of a claim, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct ClaimState {
    /// What the director says.
    pub view: View,
    /// What is sent.
    pub offered: Offered,
    /// What the theory says; `None` without a steady state, or for a limit in bytes.
    pub prediction: Option<Prediction>,
    /// The decision in words.
    pub words: Vec<String>,
    /// By node: channels that have no consumer there.
    pub missing: BTreeMap<Name, Vec<String>>,
    /// By node: why it did not carry out the last order.
    pub failed: BTreeMap<Name, String>,
    /// What happened lately, newest last; at most twenty.
    pub events: Vec<String>,
}

impl ClaimState {
    /// Nothing is known beside what the director says.
    pub(super) fn new(view: View) -> Self {
        Self {
            view,
            offered: Offered::default(),
            prediction: None,
            words: Vec::new(),
            missing: BTreeMap::new(),
            failed: BTreeMap::new(),
            events: Vec::new(),
        }
    }
}

/// Events of a claim that are told.
const EVENTS_MAX: usize = 20;

/// Something that was asked for ended.
enum Done {
    Carried(Box<Carried>),
    Predicted(Option<Prediction>),
    /// What is kept; `known` as for [`Claim::load`].
    Loaded {
        known: Option<u64>,
        loaded: Result<Option<Saved>, KeptError>,
    },
    Kept {
        revision: u64,
        parts: Vec<SavedPart>,
        stands: bool,
        result: Result<(), KeptError>,
    },
}

/// What a claim's task stands on.
pub(super) struct ClaimSetup {
    pub(super) topic: Arc<Topic>,
    pub(super) config: Arc<Config>,
    pub(super) members: watch::Receiver<Members>,
    pub(super) kept: Arc<Kept>,
    pub(super) loads: Arc<Loads>,
    pub(super) nodes: watch::Receiver<Nodes>,
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) fenced: mpsc::Sender<u64>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) state: watch::Sender<Arc<ClaimState>>,
    pub(super) placement: watch::Sender<Arc<Placement>>,
    pub(super) stop: watch::Receiver<bool>,
}

/// The task.
pub(super) struct Claim {
    setup: ClaimSetup,
    director: Director,
    tasks: JoinSet<Done>,
    hooks: JoinSet<()>,
    /// What the director knows of nodes.
    told: BTreeMap<Name, (NodeState, NodeLoad)>,
    sensed: BTreeMap<Name, PublishersAnswer>,
    missing: BTreeMap<Name, Vec<String>>,
    failed: BTreeMap<Name, String>,
    events: Vec<String>,
    words: Vec<String>,
    prediction: Option<Prediction>,
    predicted: Option<Instant>,
    predicting: bool,
    /// Under which the director leads,
    term: Option<Term>,
    /// and until when, as it was told.
    leads_until: Option<Instant>,
    life: Life,
    loading: bool,
    loaded: Option<Instant>,
    keeping: bool,
    kept: Option<Instant>,
    in_store: InStore,
}

/// Whether the topic is in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// It is.
    Declared,
    /// It is not any more: its parts are taken back, and the task ends.
    Ends,
}

/// What the store has of a claim.
#[derive(Debug, Default)]
struct InStore {
    /// Of the placement.
    revision: Option<u64>,
    parts: Vec<SavedPart>,
    stands: bool,
}

/// What a director of `topic` is to do.
pub(super) fn director_config(topic: &Topic, config: &Config) -> DirectorConfig {
    let slo = topic.slo.0;
    DirectorConfig {
        principles: topic.policy.into(),
        planner: match topic.planner {
            Planner::Paper => PlannerKind::Paper,
            Planner::Model => PlannerKind::Model(model_config(topic)),
        },
        fit: FitConfig { round: topic.round, excess: Excess::NextNode, ..FitConfig::default() },
        adapt: AdaptorConfig { period: topic.adapt.period, window: topic.adapt.window, ..AdaptorConfig::default() },
        lends: topic.lend == Lend::On,
        lease: config.lease,
        renew_every: config.lease / 4,
        ready_within: config.ready_timeout,
        ..DirectorConfig::new(topic.limit, slo)
    }
}

fn model_config(topic: &Topic) -> ModelConfig {
    let Model { record, confirm: least, margin, service } = topic.model;
    let default = ModelConfig::default();
    ModelConfig { record, margin, service, confirm: ConfirmConfig { least, ..default.confirm }, ..default }
}

/// What nodes are to have.
fn parts_of(view: &View) -> Vec<SavedPart> {
    let has_some = view.nodes.iter().filter(|node| node.wanted.burst > 0);
    has_some.map(|node| SavedPart { node: node.node.clone(), limit: node.wanted }).collect()
}

impl Claim {
    /// `director` is new.
    pub(super) fn new(setup: ClaimSetup, director: Director) -> Self {
        Self {
            setup,
            director,
            tasks: JoinSet::new(),
            hooks: JoinSet::new(),
            told: BTreeMap::new(),
            sensed: BTreeMap::new(),
            missing: BTreeMap::new(),
            failed: BTreeMap::new(),
            events: Vec::new(),
            words: Vec::new(),
            prediction: None,
            predicted: None,
            predicting: false,
            term: None,
            leads_until: None,
            life: Life::Declared,
            loading: false,
            loaded: None,
            keeping: false,
            kept: None,
            in_store: InStore::default(),
        }
    }

    /// Works until it is told to stop. Parts stay in force at nodes until their leases end.
    pub(super) async fn run(mut self) {
        let mut refresh = interval(REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.on_standing();
        self.on_nodes();
        loop {
            self.give_orders();
            if self.life == Life::Ends && self.tasks.is_empty() {
                break;
            }
            let due = self.director.next_timeout().map_or(REFRESH, |at| at.since(clock::now()));
            tokio::select! {
                () = stopped(&mut self.setup.stop) => break,
                Some(done) = self.tasks.join_next() => self.on_done(done.expect("orders return their errors")),
                Some(ended) = self.hooks.join_next() => ended.expect("hooks return their errors"),
                Ok(()) = self.setup.nodes.changed() => self.on_nodes(),
                Ok(()) = self.setup.standing.changed() => self.on_standing(),
                Some(command) = self.setup.commands.recv() => self.on_command(command),
                () = sleep(due) => self.on_due(),
                _ = refresh.tick() => self.refresh(),
            }
        }
        self.tasks.shutdown().await;
        if self.life == Life::Ends {
            while self.hooks.join_next().await.is_some() {}
        }
        self.hooks.shutdown().await;
    }

    /// Every event of the director comes this way: it knows before until when this process leads.
    fn tell(&mut self, event: Event) {
        self.tell_term();
        self.director.on_event(event, clock::now());
    }

    fn on_due(&mut self) {
        self.tell_term();
        self.director.on_timeout(clock::now());
    }

    fn tell_term(&mut self) {
        let until = self.setup.standing.borrow().until().filter(|_| self.term.is_some());
        if until != self.leads_until {
            self.leads_until = until;
            if let Some(until) = until {
                self.director.on_event(Event::LeadsUntil(until), clock::now());
            }
        }
    }

    /// Whether this process leads, as the director is to know it. It is told when what the last leader kept is here.
    fn on_standing(&mut self) {
        let term = self.setup.standing.borrow_and_update().term();
        match (self.term, term) {
            (Some(_), None) => self.follow(),
            // A fence that was raised: what holds is taken over under newer revisions.
            (Some(before), Some(term)) if before != term && before.revision == term.revision => {
                let view = self.director.view(clock::now());
                let parts = parts_of(&view).into_iter().map(|part| (part.node, part.limit)).collect();
                let stands = view.phase == Phase::Stands;
                self.director.inherit(Inherited { placement: self.director.placement(), parts, stands });
                self.term = Some(term);
                self.lead(term);
            }
            (Some(before), Some(term)) if before != term => {
                self.follow();
                self.load(None);
            }
            (None, Some(_)) => self.load(None),
            _ => {}
        }
    }

    fn follow(&mut self) {
        self.term = None;
        self.tell(Event::Lead { leads: false, above: 0, quiet: Duration::ZERO });
        self.note("this process leads no longer".to_owned());
    }

    fn lead(&mut self, term: Term) {
        let quiet = if term.is_first { Duration::ZERO } else { self.setup.config.lease };
        self.tell(Event::Lead { leads: true, above: term.above(), quiet });
        // The term that it knew of was another one.
        self.leads_until = None;
        self.tell_term();
    }

    /// Reads what is kept of the topic; nothing if its placement is that of revision `known`.
    fn load(&mut self, known: Option<u64>) {
        if self.loading {
            return;
        }
        self.loading = true;
        self.loaded = Some(clock::now());
        let (kept, topic) = (Arc::clone(&self.setup.kept), Arc::clone(&self.setup.topic));
        self.tasks.spawn(async move { Done::Loaded { known, loaded: kept.load(&topic.name, known).await } });
    }

    fn on_loaded(&mut self, known: Option<u64>, loaded: Result<Option<Saved>, KeptError>) {
        self.loading = false;
        let term = self.setup.standing.borrow().term();
        if known.is_some() && term.is_some() && self.term.is_none() && matches!(loaded, Ok(None)) {
            // It was asked while another led, and nothing had changed: that is not to say that nothing is kept.
            self.load(None);
            return;
        }
        let saved = match loaded {
            Ok(saved) => saved,
            Err(error @ KeptError::Unreadable { .. }) => {
                tracing::error!(topic = self.setup.topic.name, error = with_causes(&error), "it is placed anew");
                None
            }
            Err(error) => {
                // It is asked again by the next refresh.
                tracing::warn!(topic = self.setup.topic.name, error = with_causes(&error), "cannot be read yet");
                return;
            }
        };
        if let Some(Saved { placement, parts, words, stands }) = saved {
            let is_newer = placement.revision > self.setup.placement.borrow().revision;
            if is_newer || self.term.is_none() {
                self.in_store = InStore { revision: Some(placement.revision), parts: parts.clone(), stands };
                self.words = words;
            }
            if is_newer {
                self.setup.placement.send_replace(Arc::new(placement.clone()));
            }
            if term.is_some() && self.term.is_none() {
                let parts: Vec<(Name, Limit)> = parts.into_iter().map(|part| (part.node, part.limit)).collect();
                self.director.inherit(Inherited { placement, parts, stands });
            }
        }
        if let (Some(term), None) = (term, self.term) {
            self.term = Some(term);
            self.lead(term);
        }
    }

    /// Tells the director of nodes that changed.
    fn on_nodes(&mut self) {
        let nodes = Arc::clone(&self.setup.nodes.borrow_and_update());
        let gone: Vec<Name> = self.told.keys().filter(|name| !nodes.contains_key(*name)).cloned().collect();
        for name in gone {
            self.sensed.remove(&name);
            if let Some((_, load)) = self.told.remove(&name) {
                self.tell(Event::Node { node: name, state: NodeState::Gone, load });
            }
        }
        for (name, node) in nodes.iter() {
            let allocated_per_s = self.setup.loads.of_others(&self.setup.topic.name, name.as_str());
            let load = NodeLoad { mcap_per_s: node.mcap_per_s, allocated_per_s };
            let step = node.mcap_per_s * LOAD_STEP;
            let is_known = self.told.get(name).is_some_and(|(state, told)| {
                let same = |a: f64, b: f64| (a - b).abs() <= step;
                *state == node.state
                    && same(told.mcap_per_s, load.mcap_per_s)
                    && same(told.allocated_per_s, load.allocated_per_s)
            });
            if is_known {
                continue;
            }
            self.told.insert(name.clone(), (node.state, load));
            if node.state == NodeState::Gone {
                self.sensed.remove(name);
            }
            self.tell(Event::Node { node: name.clone(), state: node.state, load });
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Replan => {
                self.note("a person asked for a new plan".to_owned());
                self.tell(Event::Replan);
            }
            Command::Configure { topic, config } => self.configure(topic, config),
            Command::End => {
                self.note("the topic is not in the file any more".to_owned());
                self.life = Life::Ends;
                self.tell(Event::End);
                self.setup.loads.set(&self.setup.topic.name, BTreeMap::new());
                if let Some(term) = self.term.take() {
                    let (kept, topic) = (Arc::clone(&self.setup.kept), Arc::clone(&self.setup.topic));
                    // What stays there is read by nobody until the topic is declared again.
                    self.hooks.spawn(async move { drop(kept.remove(term, &topic.name).await) });
                }
            }
            Command::Publishers(reply) => {
                let (names, known) = publishers_of(&self.setup.topic, self.sensed.values());
                let offered = offered_of(self.sensed.values());
                // Who asked may be gone.
                let _ = reply.send(Publishers { names, known, offered });
            }
        }
    }

    /// The file was read again.
    fn configure(&mut self, topic: Arc<Topic>, config: Arc<Config>) {
        let director = director_config(&topic, &config);
        let is_same = director == director_config(&self.setup.topic, &self.setup.config)
            && topic.channels == self.setup.topic.channels
            && topic.on_store_loss == self.setup.topic.on_store_loss;
        let reissues = topic.on_store_loss != self.setup.topic.on_store_loss;
        (self.setup.topic, self.setup.config) = (topic, config);
        if !is_same {
            self.note("the file was read again".to_owned());
            self.tell(Event::Configured { config: Box::new(director), reissues });
        }
    }

    /// Carries out what the director wants.
    fn give_orders(&mut self) {
        while let Some(order) = self.director.poll_order() {
            match order.what {
                Ask::Place(change) => {
                    self.setup.placement.send_modify(|placement| Arc::make_mut(placement).apply(&change));
                }
                Ask::Report(report) => self.on_report(report),
                what => {
                    let members = Arc::clone(&self.setup.members.borrow());
                    let known = Known { members, nodes: Arc::clone(&self.setup.nodes.borrow()) };
                    let carried = carry_out(Arc::clone(&self.setup.topic), known, order.no, what);
                    self.tasks.spawn(async move { Done::Carried(Box::new(carried.await)) });
                }
            }
        }
    }

    fn on_report(&mut self, report: Report) {
        let declared = Arc::clone(&self.setup.topic);
        let topic = &declared.name;
        match report {
            Report::Planned { words, plan, .. } => {
                tracing::info!(topic, nodes = plan.parts.len(), "a plan stands");
                self.note(format!("a plan stands on {} brokers", plan.parts.len()));
                self.words = words;
            }
            Report::OutOfNodes { missing_per_s, words } => {
                tracing::warn!(topic, missing_per_s, "there are too few brokers");
                self.note(format!("brokers are missing for {missing_per_s:.0} messages/s"));
                self.words.clone_from(&words);
                self.call_hook(Shortage { topic: topic.clone(), missing_per_s, words });
            }
            Report::NodeLost { node, moved, beyond_room } => {
                tracing::warn!(topic, %node, moved, beyond_room, "a node is lost, and others have its publishers");
                self.note(format!("{node} is lost: {moved} publishers moved, {beyond_room} of them beyond capacity"));
            }
            Report::NotReady { node, missing } => {
                tracing::warn!(topic, %node, ?missing, "a node was not ready in time, and is left out");
                let why = if missing.is_empty() { "no answer".to_owned() } else { missing.join(", ") };
                self.note(format!("{node} was not ready in time: no consumer of {why}"));
            }
            Report::ConsumersLeft { node, missing } => {
                tracing::warn!(topic, %node, ?missing, "a node with publishers has no consumers any more");
                self.note(format!("{node} has no consumer of {} any more", missing.join(", ")));
            }
            Report::Fenced { node, holds } => {
                tracing::warn!(topic, %node, holds, "a node holds a newer revision");
                self.note(format!("{node} holds a newer revision, {holds}"));
            }
        }
    }

    /// Calls the hook, unless the last call is not over.
    fn call_hook(&mut self, shortage: Shortage) {
        let Some(hook) = self.setup.config.on_out_of_brokers.clone() else { return };
        if self.hooks.is_empty() {
            self.hooks.spawn(hook::call(hook, shortage));
        } else {
            tracing::warn!(topic = shortage.topic, "on_out_of_brokers is not called: the call before is not over");
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Carried(carried) => self.on_carried(*carried),
            Done::Predicted(prediction) => (self.prediction, self.predicting) = (prediction, false),
            Done::Loaded { known, loaded } => self.on_loaded(known, loaded),
            Done::Kept { revision, parts, stands, result } => {
                self.keeping = false;
                match result {
                    Ok(()) => self.in_store = InStore { revision: Some(revision), parts, stands },
                    Err(error) => {
                        let topic = &self.setup.topic.name;
                        tracing::warn!(topic, error = with_causes(&error), "the placement cannot be kept");
                    }
                }
            }
        }
    }

    fn on_carried(&mut self, carried: Carried) {
        let Carried { event, sensed, missing, failed, fenced, left } = carried;
        if let Some(generation) = left {
            self.director.on_event(Event::LeftSplit { generation }, clock::now());
        }
        if let Some((node, answer)) = sensed {
            self.failed.remove(&node);
            self.sensed.insert(node, answer);
        }
        if let Some((node, channels)) = missing {
            if channels.is_empty() {
                self.missing.remove(&node);
            } else {
                self.missing.insert(node, channels);
            }
        }
        if let Some((node, why)) = failed {
            self.failed.insert(node, why);
        }
        if let (Some(holds), Some(event), Some(term)) = (fenced, &event, self.term) {
            // Whether this process still leads is asked before the director goes beyond what the node holds.
            let (kept, event, fenced) = (Arc::clone(&self.setup.kept), event.clone(), self.setup.fenced.clone());
            self.tasks.spawn(async move {
                let leads = kept.keep_alive(term).await.is_ok();
                if leads {
                    // One that finds no room is told by the next order that is refused.
                    let _ = fenced.try_send(holds);
                }
                let carried = Carried { event: leads.then_some(event), ..Carried::default() };
                Done::Carried(Box::new(carried))
            });
            return;
        }
        match event {
            // A model computes for seconds then; other tasks go on.
            Some(event @ Event::Recorded { .. }) => tokio::task::block_in_place(|| self.tell(event)),
            Some(event) => self.tell(event),
            None => {}
        }
    }

    fn refresh(&mut self) {
        if self.life == Life::Ends {
            return;
        }
        let now = clock::now();
        let view = self.director.view(now);
        let rates = |view: &View| -> BTreeMap<Name, f64> {
            view.nodes.iter().map(|node| (node.node.clone(), node.rate_per_s)).collect()
        };
        self.setup.loads.set(&self.setup.topic.name, rates(&view));
        self.on_nodes();
        let offered = offered_of(self.sensed.values());
        self.ask_theory(&view, offered, now);
        if self.term.is_some() {
            self.keep(&view, now);
        } else {
            // Many topics share the store's turns.
            let every = FOLLOW.max(FOLLOW_EACH * u32::try_from(self.setup.config.topics.len()).unwrap_or(u32::MAX));
            let leads = self.setup.standing.borrow().term().is_some();
            if leads {
                self.load(None);
            } else if self.loaded.is_none_or(|at| now.since(at) >= every) {
                let known = self.setup.placement.borrow().revision;
                self.load(Some(known).filter(|known| *known > 0));
            }
        }
        let state = ClaimState {
            view,
            offered,
            prediction: self.prediction.clone(),
            words: self.words.clone(),
            missing: self.missing.clone(),
            failed: self.failed.clone(),
            events: self.events.clone(),
        };
        self.setup.state.send_if_modified(|old| {
            let changed = **old != state;
            if changed {
                *old = Arc::new(state);
            }
            changed
        });
    }

    /// Asks the theory about the parts as they are, in a thread that may compute.
    fn ask_theory(&mut self, view: &View, offered: Offered, now: Instant) {
        let is_due = self.predicted.is_none_or(|at| now.since(at) >= PREDICT);
        if self.predicting || !is_due || self.setup.topic.unit == Unit::Bytes {
            return;
        }
        let parts: Vec<(Name, Limit, f64)> = view
            .nodes
            .iter()
            .filter(|node| node.wanted.burst > 0 && !node.wanted.rate.is_zero())
            .map(|node| (node.node.clone(), node.wanted, node.rate_per_s))
            .collect();
        let (limit, slo) = (view.limit, self.setup.topic.slo.0);
        (self.predicted, self.predicting) = (Some(now), true);
        self.tasks.spawn_blocking(move || Done::Predicted(predict(limit, slo, offered, &parts)));
    }

    /// Keeps placement and parts, if they changed and not too often.
    fn keep(&mut self, view: &View, now: Instant) {
        let Some(term) = self.term.filter(|_| !self.keeping && view.phase != Phase::Follows) else { return };
        let placement = Arc::clone(&self.setup.placement.borrow());
        let is_new = self.in_store.revision != Some(placement.revision);
        let stands = view.phase == Phase::Stands;
        let is_other = is_new || stands != self.in_store.stands;
        let every = if is_other { KEEP_PLACEMENT } else { KEEP_PARTS };
        if placement.revision == 0 || self.kept.is_some_and(|at| now.since(at) < every) {
            return;
        }
        let parts = parts_of(view);
        if !is_other && parts == self.in_store.parts {
            return;
        }
        (self.keeping, self.kept) = (true, Some(now));
        let (kept, topic, before) =
            (Arc::clone(&self.setup.kept), Arc::clone(&self.setup.topic), self.in_store.revision);
        let words = self.words.clone();
        self.tasks.spawn(async move {
            let saved = Saved { placement: (*placement).clone(), parts, words, stands };
            let result = kept.save(term, &topic.name, &saved, before).await;
            Done::Kept { revision: saved.placement.revision, parts: saved.parts, stands, result }
        });
    }

    fn note(&mut self, event: String) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

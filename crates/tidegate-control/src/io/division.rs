//! A task for each limit that proxies divide: it drives the limit's divider, carries out its orders, and tells the admin
//! API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::client::NodeClient;
use super::kept::{Kept, Term};
use super::lead::{Standing, stopped};
use super::proxy_api::{LendBody, PutTerms, lenders};
use crate::config::{Config, DividedLimit, Lend, Proxy};
use crate::error::{NodeError, with_causes};
use crate::machine::director::AdaptorConfig;
use crate::machine::divider::{Divider, DividerAsk, DividerConfig, DividerEvent, DividerOrder, DividerView};
use crate::machine::name::Name;
use crate::machine::roster::NodeState;
use crate::machine::steps::{LOAN, StepsConfig};

/// How often the state is shown.
const REFRESH: Duration = Duration::from_millis(500);

/// The proxies' admin APIs, by name.
pub type Proxies = Arc<BTreeMap<Name, NodeClient>>;

/// What is known of a limit, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct DivisionState {
    /// What the divider says.
    pub view: DividerView,
    /// By proxy: why it did not carry out the last order.
    pub failed: BTreeMap<Name, String>,
}

/// What became of an order.
struct Carried {
    event: DividerEvent,
    node: Name,
    /// Why it was not carried out.
    failed: Option<String>,
    /// A newer revision that the node holds.
    fenced: Option<u64>,
}

/// What a division's task stands on.
pub(super) struct DivisionSetup {
    pub(super) limit: Arc<DividedLimit>,
    /// Its place in the configuration.
    pub(super) number: usize,
    pub(super) config: Arc<Config>,
    pub(super) proxies: Proxies,
    pub(super) kept: Arc<Kept>,
    pub(super) standing: watch::Receiver<Standing>,
    pub(super) fenced: mpsc::Sender<u64>,
    pub(super) state: watch::Sender<Arc<DivisionState>>,
    pub(super) stop: watch::Receiver<bool>,
}

/// The task.
pub(super) struct Division {
    setup: DivisionSetup,
    divider: Divider,
    tasks: JoinSet<Carried>,
    /// Questions whether this process still leads, where a node holds a newer part.
    doubts: JoinSet<()>,
    failed: BTreeMap<Name, String>,
    /// Under which the divider leads,
    term: Option<Term>,
    /// and until when, as it was told.
    leads_until: Option<Instant>,
    /// By proxy, once the secret is known; empty if nothing is lent.
    lenders: Arc<BTreeMap<Name, LendBody>>,
}

/// The proxies of `config`, with what each is shown as a token, in the same order.
pub(super) fn proxies_of(config: &Config, tokens: Vec<Option<String>>) -> Proxies {
    let tokens = tokens.into_iter().chain(std::iter::repeat(None));
    let proxy = |(proxy, token): (&Proxy, Option<String>)| {
        (Name::from(proxy.name.as_str()), NodeClient::new(&proxy.admin, token.as_deref()))
    };
    Arc::new(config.proxies.iter().zip(tokens).map(proxy).collect())
}

/// A divider of `limit` that does not lead.
pub(super) fn divider(limit: &DividedLimit, config: &Config) -> Divider {
    let adapt = AdaptorConfig { period: limit.adapt.period, window: limit.adapt.window, ..AdaptorConfig::default() };
    let lends = limit.lend == Lend::On;
    let linger = if lends { LOAN } else { Duration::ZERO };
    let steps = StepsConfig { lease: config.lease, renew_every: config.lease / 4, linger, ..StepsConfig::default() };
    let silence = config.lease.min(Duration::from_secs(3));
    let config_of = DividerConfig { adapt, steps, silence, lends, ..DividerConfig::new(limit.limit) };
    let names = config.proxies.iter().map(|proxy| Name::from(proxy.name.as_str()));
    Divider::new(config_of, names, clock::now())
}

impl Division {
    /// `divider` is new.
    pub(super) fn new(setup: DivisionSetup, divider: Divider) -> Self {
        Self {
            setup,
            divider,
            tasks: JoinSet::new(),
            doubts: JoinSet::new(),
            failed: BTreeMap::new(),
            term: None,
            leads_until: None,
            lenders: Arc::default(),
        }
    }

    /// Works until it is told to stop. Parts stay in force at proxies until their leases end.
    pub(super) async fn run(mut self) {
        let mut refresh = interval(REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.on_standing().await;
        loop {
            while let Some(order) = self.divider.poll_order() {
                self.carry_out(order);
            }
            let due = self.divider.next_timeout().map_or(REFRESH, |at| at.since(clock::now()));
            tokio::select! {
                () = stopped(&mut self.setup.stop) => break,
                Some(done) = self.tasks.join_next() => self.on_carried(done.expect("orders return their errors")),
                Some(ended) = self.doubts.join_next() => ended.expect("questions return their errors"),
                Ok(()) = self.setup.standing.changed() => self.on_standing().await,
                () = sleep(due) => self.divider.on_timeout(clock::now()),
                _ = refresh.tick() => self.refresh(),
            }
        }
        self.tasks.shutdown().await;
        self.doubts.shutdown().await;
    }

    async fn on_standing(&mut self) {
        let term = self.setup.standing.borrow_and_update().term();
        if term == self.term {
            return self.tell_term();
        }
        if let Some(term) = term {
            self.learn_lenders(term).await;
        }
        // What the same leader ordered under a lower fence is in force no longer than what another one did.
        let quiet = term.filter(|term| !term.is_first).map_or(Duration::ZERO, |_| self.setup.config.lease);
        let above = term.map_or(0, Term::above);
        self.divider.on_event(DividerEvent::Lead { leads: term.is_some(), above, quiet }, clock::now());
        // The term that it knew of was another one.
        (self.term, self.leads_until) = (term, None);
        self.tell_term();
    }

    fn tell_term(&mut self) {
        let until = self.setup.standing.borrow().until().filter(|_| self.term.is_some());
        if until != self.leads_until {
            self.leads_until = until;
            if let Some(until) = until {
                self.divider.on_event(DividerEvent::LeadsUntil(until), clock::now());
            }
        }
    }

    /// Reads who lends under which secret. Without it parts are parts alone, until another term.
    async fn learn_lenders(&mut self, term: Term) {
        let (limit, proxies) = (&self.setup.limit, &self.setup.config.proxies);
        if limit.lend != Lend::On || !self.lenders.is_empty() {
            return;
        }
        let known = match secret() {
            Ok(drawn) => self.setup.kept.lend_key(term, drawn).await.map_err(|error| with_causes(&error)),
            Err(error) => Err(error.to_string()),
        };
        match known {
            Ok(secret) => {
                let names = proxies.iter().map(|proxy| Name::from(proxy.name.as_str()));
                let all = names.zip(lenders(&limit.name, self.setup.number, proxies, secret));
                self.lenders = Arc::new(all.collect());
            }
            Err(error) => tracing::warn!(limit = limit.name, error, "proxies do not lend: there is no secret for them"),
        }
    }

    fn carry_out(&mut self, order: DividerOrder) {
        let DividerOrder { no, what } = order;
        let (limit, proxies) = (Arc::clone(&self.setup.limit), Arc::clone(&self.setup.proxies));
        let terms = PutTerms { lease: self.setup.config.lease, on_lapse: limit.on_store_loss };
        let lenders = Arc::clone(&self.lenders);
        self.tasks.spawn(async move {
            let (node, done) = match what {
                DividerAsk::Sense { node, seconds } => {
                    let Some(client) = proxies.get(node.as_str()) else { return unknown(no, node) };
                    let answer = client.demand(&limit.name, seconds).await;
                    (node, answer.map(|answer| DividerEvent::Sensed { order: no, reading: answer.reading() }))
                }
                DividerAsk::Put(put) => {
                    let Some(client) = proxies.get(put.node.as_str()) else { return unknown(no, put.node) };
                    let answer = client.put_limit_part(&limit.name, &put, terms, lenders.get(put.node.as_str())).await;
                    (put.node, answer.map(|()| DividerEvent::Put { order: no }))
                }
            };
            match done {
                Ok(event) => Carried { event, node, failed: None, fenced: None },
                Err(error) => refused(no, node, &error),
            }
        });
    }

    fn on_carried(&mut self, carried: Carried) {
        let Carried { event, node, failed, fenced } = carried;
        match failed {
            Some(why) => {
                self.failed.insert(node, why);
            }
            None => {
                self.failed.remove(&node);
            }
        }
        if let (Some(holds), Some(term)) = (fenced, self.term) {
            // The leader raises its fence above what the node holds, if it still leads.
            let (kept, fenced) = (Arc::clone(&self.setup.kept), self.setup.fenced.clone());
            self.doubts.spawn(async move {
                if kept.keep_alive(term).await.is_ok() {
                    // One that finds no room is told by the next order that is refused.
                    let _ = fenced.try_send(holds);
                }
            });
        }
        self.divider.on_event(event, clock::now());
    }

    fn refresh(&mut self) {
        let state = DivisionState { view: self.divider.view(clock::now()), failed: self.failed.clone() };
        self.setup.state.send_if_modified(|old| {
            let changed = **old != state;
            if changed {
                *old = Arc::new(state);
            }
            changed
        });
    }
}

/// Sixteen bytes that nobody can guess.
fn secret() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

fn unknown(order: u64, node: Name) -> Carried {
    Carried { event: DividerEvent::Failed { order }, node, failed: None, fenced: None }
}

fn refused(order: u64, node: Name, error: &NodeError) -> Carried {
    let said = with_causes(error);
    tracing::debug!(%node, error = said, "an order was not carried out");
    match error.fenced_by() {
        Some(holds) => {
            let event = DividerEvent::Fenced { order, holds };
            Carried { event, node, failed: Some(said), fenced: Some(holds) }
        }
        None => Carried { event: DividerEvent::Failed { order }, node, failed: Some(said), fenced: None },
    }
}

/// A limit that proxies divide, as the admin API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct DivisionView {
    /// `route NAME` or `sni NAME`.
    pub name: String,
    /// The whole rate, exact.
    pub rate: String,
    /// The same, rounded to the nearest number.
    pub rate_per_s: f64,
    /// The whole burst.
    pub burst: u64,
    /// `local`, `open` or `closed`.
    pub on_store_loss: &'static str,
    /// The newest revision of parts.
    pub revision: u64,
    /// Requests per second at all proxies.
    pub offered_per_s: f64,
    /// Refusals per second at all proxies.
    pub refused_per_s: f64,
    /// By proxy.
    pub parts: Vec<DivisionPartView>,
}

/// A proxy's part.
#[derive(Clone, Debug, Serialize)]
pub struct DivisionPartView {
    /// The proxy.
    pub node: String,
    /// Whether it answers.
    pub state: NodeState,
    /// Why it did not do what it was told last.
    pub error: Option<String>,
    /// Its part of the rate.
    pub limit_rate_per_s: f64,
    /// Its part of the burst.
    pub limit_burst: u64,
    /// It acknowledged them.
    pub in_force: bool,
    /// Until its lease ends.
    pub lease_ms: u64,
    /// Requests per second there.
    pub rate_per_s: f64,
    /// Refusals per second there.
    pub refused_per_s: f64,
    /// The largest backlog within the window.
    pub backlog_max: u64,
}

/// A limit, as the admin API reaches it.
#[derive(Debug)]
pub struct DivisionHandle {
    /// As in the file.
    pub limit: Arc<DividedLimit>,
    /// The newest state.
    pub state: watch::Receiver<Arc<DivisionState>>,
}

impl DivisionHandle {
    /// For people and programs.
    #[must_use]
    pub fn view(&self) -> DivisionView {
        let state = Arc::clone(&self.state.borrow());
        let Limit { rate, burst } = self.limit.limit;
        let part = |node: &crate::machine::divider::DividedNode| DivisionPartView {
            node: node.node.to_string(),
            state: node.state,
            error: state.failed.get(&node.node).cloned(),
            limit_rate_per_s: node.wanted.rate.as_per_s(),
            limit_burst: node.wanted.burst,
            in_force: node.acknowledged == Some(node.wanted),
            lease_ms: node.lease_ms,
            rate_per_s: node.rate_per_s,
            refused_per_s: node.refused_per_s,
            backlog_max: node.backlog_max,
        };
        let parts: Vec<DivisionPartView> = state.view.nodes.iter().map(part).collect();
        DivisionView {
            name: self.limit.name.clone(),
            rate: rate.to_string(),
            rate_per_s: rate.as_per_s(),
            burst,
            on_store_loss: self.limit.on_store_loss.word(),
            revision: state.view.revision,
            offered_per_s: parts.iter().map(|part| part.rate_per_s).sum(),
            refused_per_s: parts.iter().map(|part| part.refused_per_s).sum(),
            parts,
        }
    }
}

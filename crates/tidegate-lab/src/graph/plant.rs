//! The events: what happens next, and to whom it is told.

use std::collections::BTreeMap;

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_rpc::config::Scheme;
use tidegate_rpc::machine::any::{AnyClient, AnyServer};
use tidegate_rpc::machine::desk::Desk;
use tidegate_rpc::machine::{CallId, Server, SessionId, Tenant};
use tidegate_sim::lane::Lane;

use super::call::{Call, Event};
use super::{Tally, Tree};
use crate::rpc::ScenarioError;

/// A client, and the session of its server that it has.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: AnyClient,
    pub(super) service: u32,
    pub(super) session: SessionId,
    /// When its time-out is among the events; [`Instant::MAX`] if it is not.
    pub(super) armed: Instant,
}

/// A service.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) desk: Desk<AnyServer, Named>,
    /// Its clients, by session.
    pub(super) links: Vec<u32>,
    /// Its own clients, before the services that it calls.
    pub(super) below: Vec<u32>,
    pub(super) armed: Instant,
}

/// What stands in line for a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named(pub(super) CallId);

impl Default for Named {
    fn default() -> Self {
        Self(CallId(u64::MAX))
    }
}

/// A tree of services under load, in virtual time.
#[derive(Debug)]
pub struct Graph {
    pub(super) now: Instant,
    pub(super) tree: Tree,
    pub(super) nodes: Vec<Node>,
    /// First those of the callers, then one before each service but the root, in their order.
    pub(super) links: Vec<Link>,
    pub(super) calls: BTreeMap<CallId, Call>,
    pub(super) events: Lane<Event>,
    pub(super) ever: u64,
    pub(super) half_trip_ns: u64,
    pub(super) mean_ns: f64,
    gap_ns: f64,
    begins: Instant,
    ends: Instant,
    pub(super) arrivals: Rng,
    pub(super) service_rng: Rng,
    pub(super) client_rng: Rng,
    pub(super) tally: Tally,
}

impl Graph {
    /// All services at rest at [`Instant::ZERO`], before callers that make `load` times as many calls as the short service can
    /// serve.
    ///
    /// # Errors
    /// [`ScenarioError`] if the scheme makes no sense or a server cannot hold its clients.
    pub fn new(tree: &Tree, scheme: &Scheme, load: f64, seed: u64) -> Result<Self, ScenarioError> {
        scheme.check()?;
        let now = Instant::ZERO;
        let mut client_rng = Rng::stream(seed, 1);
        let node = |service| Node {
            desk: Desk::new(scheme.server(tree.cores_of(service), now), tree.cores_of(service)),
            links: Vec::new(),
            below: Vec::new(),
            armed: Instant::MAX,
        };
        let mut nodes: Vec<Node> = (0..tree.services()).map(node).collect();
        let mut links = Vec::new();
        let servers = (0..tree.callers).map(|_| 0).chain(1..tree.services());
        for (name, service) in (0_u32..).zip(servers) {
            let node = &mut nodes[service as usize];
            let session = node.desk.machine_mut().open(Tenant(0), now)?;
            let place = session.0 as usize;
            node.links.resize(node.links.len().max(place + 1), 0);
            node.links[place] = name;
            let client = scheme.client(Tenant(0), now, &mut client_rng);
            links.push(Link { client, service, session, armed: Instant::MAX });
        }
        for (service, node) in (0..).zip(&mut nodes) {
            node.below = tree.below(service).map(|below| tree.callers + below - 1).collect();
        }
        let begins = now + tree.warm_up;
        let mut graph = Self {
            now,
            nodes,
            links,
            calls: BTreeMap::new(),
            events: Lane::default(),
            ever: 0,
            half_trip_ns: nanos(tree.round_trip) / 2,
            mean_ns: tree.service.mean.as_secs_f64() * 1e9,
            gap_ns: 1e9 / (load * tree.capacity_per_s()),
            begins,
            ends: begins + tree.duration,
            arrivals: Rng::stream(seed, 2),
            service_rng: Rng::stream(seed, 3),
            client_rng,
            tally: Tally::new(),
            tree: tree.clone(),
        };
        (0..tree.services()).for_each(|service| graph.settle(service));
        let links = u32::try_from(graph.links.len()).expect("callers and services are few");
        (0..links).for_each(|link| graph.after_client(link));
        graph.await_next_call();
        Ok(graph)
    }

    /// Runs it from its beginning to its end, and a deadline longer so that what counts has ended.
    #[must_use]
    pub fn run(mut self) -> Tally {
        let last = self.ends + self.tree.deadline;
        while self.events.next_at() <= last
            && let Some((at, event)) = self.events.pop()
        {
            self.now = self.now.max(at);
            self.handle(event);
        }
        self.tally
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call => {
                self.await_next_call();
                self.call_root();
            }
            Event::Request(call, ask) => self.request(call, &ask),
            Event::Demand(link, ask) => {
                let Link { service, session, .. } = self.links[link as usize];
                let now = self.now;
                self.nodes[service as usize].desk.machine_mut().on_demand(session, &ask, now);
                self.settle(service);
            }
            Event::Answer(call, answer, grant, server_ns) => self.answered(call, answer, grant, server_ns),
            Event::Grant(link, grant) => self.granted(link, &grant),
            Event::GiveUp(call) => self.cancel(call),
            Event::Computed(call) => self.computed(call),
            Event::Deadline(root) => {
                if self.calls.get(&root).is_some_and(|call| !call.is_given_up) {
                    self.give_up(root);
                    self.tally.end(root, None);
                }
            }
            Event::ServerTimer(service) => self.server_timer(service),
            Event::ClientTimer(link) => self.client_timer(link),
        }
    }

    /// Callers go on until the end of the run, so that the last that count meet the same as the first.
    fn await_next_call(&mut self) {
        let gap = self.gap_ns * self.arrivals.exponential();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "far below 2^53 ns, and not below 0"
        )]
        let at = self.now.plus_nanos(gap.ceil() as u64);
        self.events.push(at, Event::Call);
    }

    /// Whether a call of the root that is made now counts.
    pub(super) fn is_measuring(&self) -> bool {
        self.now >= self.begins && self.now < self.ends
    }

    /// When a message arrives that is sent now.
    pub(super) fn there_at(&self) -> Instant {
        self.now.plus_nanos(self.half_trip_ns)
    }

    /// A core works on this call's handler for so long.
    pub(super) fn compute(&mut self, id: CallId, ns: u64) {
        let call = &self.calls[&id];
        if call.is_measured {
            self.tally.work(call.root, ns);
        }
        self.events.push(self.now.plus_nanos(ns), Event::Computed(id));
    }
}

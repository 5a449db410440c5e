//! The servers behind the proxy, as one thread sees them: slots, connections that wait for the next request, health.
//!
//! | module | its one job |
//! |---|---|
//! | `send` | one request and its tries |
//! | `lease` | one request's slot at one server, and how it gets a connection there |
//! | `leased`, `broken` | answers that hold their slots until they end; why their requests' bodies broke off |
//! | `key` | what requests have in common that should meet the same server |
//! | `idle` | connections that wait for the next request |
//! | `endpoint` | where a server is, and connecting to it |
//! | `names` | asks for the addresses of servers that are written with a name, for all threads |
//! | `system` | asks the system for those that `names` does not follow, for all threads |
//! | `tls` | how TLS is spoken with servers |
//! | `checks` | asks servers how they are, for all threads |
//! | `http2` | connections that many requests of a tenant share |
//! | `peer` | what a server of HTTP/2 says that it takes |
//! | `tasks` | what runs beside requests of HTTP/2, and who pays for it |
//! | `settings` | what the configuration says, as the machines want it |
//!
//! Nothing here is shared between threads but the verdicts of the checks and the addresses of names, so no request takes a lock.
//!
//! [`Upstreams::send`] does all of it for one request: it waits for a slot, takes the newest connection that is still
//! open or opens one, exchanges, and tries again elsewhere what may be tried again.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::rc::{Rc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tokio::sync::{Notify, oneshot, watch};

pub(crate) use checks::{Checks, Verdicts};
pub(crate) use endpoint::{Announced, ConnectError, Handshakes};
pub(crate) use idle::{Keep, Look};
pub(crate) use key::key_of;
pub(crate) use lease::Lease;
pub(crate) use leased::{Leased, Opened};
pub(crate) use names::{Known, LookupCounts, Names};
pub(crate) use settings::{Part, Settings};
pub(crate) use system::System;
pub(crate) use tls::Tls;

use crate::config::Server;
use crate::io::conn::meter;
use crate::machine::upstream::{Acquire, Asker, Call, Flow, Output, Pool, Refusal, ServerState, Stay, Tried};
use endpoint::Endpoint;
use http2::Shared;
use idle::Idle;
use lease::HandedOver;

mod broken;
mod checks;
mod endpoint;
mod http2;
mod idle;
mod key;
mod lease;
mod leased;
mod names;
mod peer;
pub(crate) mod send;
mod settings;
mod system;
mod tasks;
#[cfg(test)]
mod tests;
mod tls;

/// How often connections that waited too long are closed. They are not used meanwhile, but should be closed before their
/// servers do so: these leave at least a second more.
const SWEEP: Duration = Duration::from_secs(1);

/// All upstreams of one thread.
#[derive(Debug)]
pub(crate) struct Upstreams<C> {
    /// In the order of the configuration; replaced one by one when it changes.
    all: RefCell<Vec<Rc<Upstream<C>>>>,
    /// Those that a reload replaced while requests waited there.
    replaced: RefCell<Vec<Rc<Upstream<C>>>>,
    /// Somebody began to wait, so there may be a new time-out.
    queued: Rc<Notify>,
    verdicts: watch::Receiver<Verdicts>,
    /// What is configured, before its names have addresses.
    configured: RefCell<Vec<Settings>>,
    known: Known,
    seed: Cell<u64>,
    groups: RandomState,
}

/// An upstream as the configuration calls it by which a request was routed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) index: usize,
    pub(crate) name: &'a str,
}

/// One upstream of one thread.
#[derive(Debug)]
pub(crate) struct Upstream<C> {
    settings: Settings,
    endpoints: Vec<Endpoint>,
    state: RefCell<State<C>>,
    queued: Rc<Notify>,
    known: Known,
    /// Shared by all of one name that took each other's place; the one in force.
    line: Line<C>,
    /// TLS handshakes with servers that are gone.
    gone: Cell<Handshakes>,
    /// Used for HTTP/2 only.
    http2: Shared,
}

type Line<C> = Rc<RefCell<Weak<Upstream<C>>>>;

#[derive(Debug)]
struct State<C> {
    pool: Pool,
    rng: Rng,
    idle: Idle<C>,
    /// Of requests that wait, by their names in the pool.
    waiters: HashMap<u64, Waiter, RandomState>,
    last_request: u64,
    /// Exchanges that end on their own, by their tickets.
    exchanges: Slab<HandedOver>,
}

#[derive(Debug)]
struct Waiter {
    flow: Flow,
    answer: oneshot::Sender<Result<Started, Refusal>>,
}

/// A slot, and how the request began that has it.
#[derive(Clone, Copy, Debug)]
struct Started {
    server: usize,
    call: Call,
}

impl<C: Keep> Upstreams<C> {
    /// The upstreams of one thread; `seed` makes its draws differ from those of other threads.
    pub(crate) fn new(
        settings: Vec<Settings>,
        verdicts: watch::Receiver<Verdicts>,
        known: Known,
        seed: u64,
    ) -> Rc<Self> {
        let this = Self {
            all: RefCell::default(),
            replaced: RefCell::default(),
            queued: Rc::new(Notify::new()),
            verdicts,
            configured: RefCell::default(),
            known,
            seed: Cell::new(seed),
            groups: RandomState::default(),
        };
        this.reload(settings, seed);
        Rc::new(this)
    }

    /// Waits for a slot at a server of `upstream` that is none of `tried`, if possible. Flows that wait take turns, by the
    /// `weight` of their tenants, which is asked for only then.
    pub(crate) async fn acquire(
        &self,
        upstream: Target<'_>,
        asker: Asker,
        tried: Tried,
        announced: Option<Rc<Announced>>,
        weight: impl FnOnce() -> u32,
    ) -> Result<Lease<C>, Refusal> {
        // A request that was routed before a reload that removed its upstream finds none.
        let upstream = self.find(upstream).ok_or(Refusal::NoServer)?;
        upstream.acquire(asker, tried, announced, weight).await
    }

    /// Requests of a tenant for the same path take about as long as each other: their group, of so many as fit in a byte's
    /// quarter. That several share one makes it no worse than none.
    fn group(&self, tenant: u32, target: &str) -> u8 {
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        u8::try_from(self.groups.hash_one((tenant, path)) % 63).map_or(0, |group| group + 1)
    }

    /// A reload may have put it elsewhere since the request was routed.
    fn find(&self, upstream: Target<'_>) -> Option<Rc<Upstream<C>>> {
        let all = self.all.borrow();
        let is_meant = |found: &&Rc<Upstream<C>>| found.settings.name == upstream.name;
        all.get(upstream.index).filter(is_meant).or_else(|| all.iter().find(is_meant)).cloned()
    }

    /// Puts other settings in force. Requests under way end where they are. An upstream whose settings did not change
    /// keeps everything; else its servers keep their connections, what is known of their health, and what is under way.
    pub(crate) fn reload(&self, settings: Vec<Settings>, seed: u64) {
        *self.configured.borrow_mut() = settings;
        self.seed.set(seed);
        self.put_in_force();
    }

    /// The same settings with the addresses that their names have now.
    fn put_in_force(&self) {
        let addresses = self.known.addresses.borrow().clone();
        let settings: Vec<_> = self.configured.borrow().iter().map(|one| one.resolved(&addresses)).collect();
        // Another one each time: no two pools draw alike.
        let seed = self.seed.replace(self.seed.get().wrapping_add(1));
        let now = clock::now();
        let old = self.all.borrow().clone();
        let named = |name: &str| old.iter().find(|old| old.settings.name == name);
        let one = |(stream, settings): (u64, Settings)| match named(&settings.name) {
            Some(same) if same.settings == settings => Rc::clone(same),
            changed => {
                let line = changed.map(|changed| Rc::clone(&changed.line)).unwrap_or_default();
                let rng = Rng::stream(seed, stream);
                let new = Upstream::new(settings, rng, Rc::clone(&self.queued), self.known.clone(), line, now);
                if let Some(changed) = changed {
                    new.inherit(changed, now);
                }
                new
            }
        };
        let new: Vec<_> = (0..).zip(settings).map(one).collect();
        let gone = old.into_iter().filter(|old| !new.iter().any(|new| Rc::ptr_eq(new, old)));
        self.replaced.borrow_mut().extend(gone.filter(|old| old.has_waiting()));
        *self.all.borrow_mut() = new;
        self.take_verdicts();
        self.queued.notify_one();
    }

    /// Ends waits in time, closes connections that waited too long, and takes the checks' verdicts. Never ends; runs
    /// once beside the thread's other tasks.
    pub(crate) async fn drive(self: Rc<Self>) {
        let (mut verdicts, mut addresses) = (self.verdicts.clone(), self.known.addresses.clone());
        let mut sweep = clock::now() + SWEEP;
        loop {
            let now = clock::now();
            let wake = self.next_timeout().map_or(sweep, |timeout| timeout.min(sweep));
            tokio::select! {
                () = tokio::time::sleep(wake - now) => {}
                () = self.queued.notified() => continue,
                // When the checks are gone for good, their last verdict stands.
                Ok(()) = verdicts.changed() => self.take_verdicts(),
                Ok(()) = addresses.changed() => self.put_in_force(),
            }
            let now = clock::now();
            let all = self.all.borrow().clone();
            self.replaced.borrow_mut().retain(|old| old.has_waiting());
            for upstream in all.iter().chain(&*self.replaced.borrow()) {
                upstream.with_pool(|pool, rng| pool.on_timeout(rng, now));
            }
            if now >= sweep {
                for upstream in &all {
                    upstream.state.borrow_mut().idle.sweep(now);
                    upstream.http2.sweep(now);
                }
                sweep = now + SWEEP;
            }
        }
    }

    /// Every upstream by name, with its servers' addresses and states, and how many requests wait.
    pub(crate) fn states(&self) -> Vec<UpstreamState> {
        let now = clock::now();
        self.all.borrow().iter().map(|upstream| upstream.state(now)).collect()
    }

    fn next_timeout(&self) -> Option<Instant> {
        let (all, replaced) = (self.all.borrow(), self.replaced.borrow());
        all.iter().chain(&*replaced).filter_map(|upstream| upstream.state.borrow().pool.next_timeout()).min()
    }

    fn take_verdicts(&self) {
        let verdicts = self.verdicts.borrow().clone();
        for upstream in &*self.all.borrow() {
            upstream.take_verdicts(|server| verdicts.of(&upstream.settings.name, server));
        }
        // Nobody who waits at one that was replaced should start where nobody is; who comes back has its slots elsewhere.
        for upstream in &*self.replaced.borrow() {
            upstream.take_verdicts(|server| verdicts.of(&upstream.settings.name, server).filter(|up| !up));
        }
    }
}

/// One upstream as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UpstreamState {
    /// Its name.
    pub(crate) name: String,
    /// Its servers, each with its address as configured.
    pub(crate) servers: Vec<(String, ServerState)>,
    /// Requests that wait.
    pub(crate) pending: usize,
    /// Requests that may wait for the head of their answer, as learnt; `None` if there is no such limit.
    pub(crate) limit: Option<u32>,
    /// Requests that wait for the heads of their answers; 0 if nothing is learnt.
    pub(crate) in_flight: u32,
    /// Connections that wait.
    pub(crate) idle: usize,
    /// Tries after the first.
    pub(crate) retries: u64,
    /// TLS handshakes with its servers.
    pub(crate) handshakes: Handshakes,
}

impl<C: Keep> Upstream<C> {
    /// In force in its line from now on.
    fn new(settings: Settings, rng: Rng, queued: Rc<Notify>, known: Known, line: Line<C>, now: Instant) -> Rc<Self> {
        let endpoints = settings
            .servers
            .iter()
            .map(|server| Endpoint::new(server.clone(), settings.tls.clone(), known.system.clone()));
        let endpoints = endpoints.collect();
        let state = State {
            pool: Pool::new(settings.pool.clone(), now),
            rng,
            idle: Idle::new(settings.servers.len(), settings.max_idle, settings.idle_timeout),
            waiters: HashMap::with_hasher(RandomState::default()),
            last_request: 0,
            exchanges: Slab::new(),
        };
        let http2 = Shared::new(settings.servers.len(), settings.http2);
        let this = Rc::new(Self {
            settings,
            endpoints,
            state: RefCell::new(state),
            queued,
            known,
            line,
            gone: Cell::default(),
            http2,
        });
        this.line.replace(Rc::downgrade(&this));
        this
    }

    async fn acquire(
        self: Rc<Self>,
        asker: Asker,
        tried: Tried,
        announced: Option<Rc<Announced>>,
        weight: impl FnOnce() -> u32,
    ) -> Result<Lease<C>, Refusal> {
        let (flow, now) = (asker.flow, clock::now());
        let waiting = {
            let state = &mut *self.state.borrow_mut();
            state.last_request += 1;
            let request = state.last_request;
            let acquired = state.pool.acquire(request, asker, tried, weight, &mut state.rng, now);
            let call = state.pool.call();
            self.deliver(state);
            match acquired {
                Acquire::Start(server) => Ok((Started { server, call }, now)),
                Acquire::Refused(refusal) => return Err(refusal),
                Acquire::Queued => {
                    let (answer, receiver) = oneshot::channel();
                    state.waiters.insert(request, Waiter { flow, answer });
                    Err((request, receiver))
                }
            }
        };
        let (started, began) = match waiting {
            Ok(started) => started,
            Err((request, mut receiver)) => {
                self.queued.notify_one();
                let place = Place { upstream: &self, flow, request, receiver: &mut receiver };
                (place.wait().await?, clock::now())
            }
        };
        Ok(Lease::new(self, started, began, flow, tried, announced))
    }

    fn has_waiting(&self) -> bool {
        self.state.borrow().pool.pending() > 0
    }

    /// Tells the pool something, and those who waited for it what it says.
    fn with_pool(&self, tell: impl FnOnce(&mut Pool, &mut Rng)) {
        let state = &mut *self.state.borrow_mut();
        tell(&mut state.pool, &mut state.rng);
        self.deliver(state);
    }

    fn deliver(&self, state: &mut State<C>) {
        while let Some(output) = state.pool.poll_output() {
            let (request, answer) = match output {
                Output::Start { request, server, call, .. } => (request, Ok(Started { server, call })),
                Output::Refused { request, refusal } => (request, Err(refusal)),
            };
            // The waiter is there: whoever gives up takes his request out of the pool in the same step.
            let waiter = state.waiters.remove(&request).expect("who waits in the pool waits here");
            if let (Ok(started), Some(heir)) = (answer, self.heir()) {
                let place = self.place_at(&heir, started.server);
                heir.with_pool(|pool, _| pool.on_inherited_start(place, waiter.flow));
            }
            // The receiver lives as long as its `Place`, which hands a slot that nobody takes back.
            let _ = waiter.answer.send(answer);
        }
    }

    /// A request that had a slot is over. Those who wait here come before those who wait at the heir.
    fn give_back(&self, server: usize, flow: Flow) {
        let now = clock::now();
        self.with_pool(|pool, rng| pool.on_end(server, flow, rng, now));
        if let Some(heir) = self.heir() {
            heir.with_pool(|pool, rng| pool.on_inherited_end(self.place_at(&heir, server), flow, rng, now));
        }
    }

    /// The head of the answer to a request came, that began so at `began`.
    fn answered(&self, flow: Flow, call: Call, began: Instant) {
        let now = meter::now();
        let stay = Stay::between(began, meter::looked(), now);
        self.with_pool(|pool, rng| pool.on_answer(flow, call, stay, rng, now));
    }

    /// All of a request has come that was its client's to send.
    fn sent(&self, flow: Flow, group: u8) -> (Call, Instant) {
        let now = meter::now();
        (self.state.borrow_mut().pool.on_sent(flow, group, now), now)
    }

    /// A request ended that says nothing of how long its server takes.
    fn gone(&self, flow: Flow) {
        let now = clock::now();
        self.with_pool(|pool, rng| pool.on_gone(flow, rng, now));
    }

    /// Tells the pool in force, and its own, about the server at this place.
    fn report(&self, server: usize, tell: impl Fn(&mut Pool, usize)) {
        tell(&mut self.state.borrow_mut().pool, server);
        if let Some(heir) = self.heir()
            && let Some(place) = self.place_at(&heir, server)
        {
            tell(&mut heir.state.borrow_mut().pool, place);
        }
    }

    /// Takes one retry of `flow` out of the budget in force.
    fn try_retry(&self, flow: Flow) -> bool {
        let heir = self.heir();
        heir.as_deref().unwrap_or(self).state.borrow_mut().pool.try_retry(flow, clock::now())
    }

    /// Which took the place of this one in a reload.
    fn heir(&self) -> Option<Rc<Self>> {
        self.line.borrow().upgrade().filter(|current| !std::ptr::eq(Rc::as_ptr(current), self))
    }

    /// Where the server at this place stands at another upstream.
    fn place_at(&self, other: &Self, server: usize) -> Option<usize> {
        other.endpoints.iter().position(|endpoint| endpoint.server() == self.endpoints[server].server())
    }

    fn take_verdicts(&self, verdict: impl Fn(&Server) -> Option<bool>) {
        let now = clock::now();
        self.with_pool(|pool, rng| {
            for (place, endpoint) in self.endpoints.iter().enumerate() {
                if let Some(up) = verdict(endpoint.server()) {
                    pool.set_up(place, up, rng, now);
                }
            }
        });
    }

    fn inherit(&self, old: &Self, now: Instant) {
        let (mine, theirs) = (&mut *self.state.borrow_mut(), &mut *old.state.borrow_mut());
        let places: Vec<_> = (0..old.endpoints.len()).map(|server| old.place_at(self, server)).collect();
        mine.pool.inherit(&theirs.pool, &places, now);
        self.gone.set(old.gone.get());
        for (place, endpoint) in places.iter().zip(&old.endpoints) {
            match *place {
                Some(place) => self.endpoints[place].handshakes.set(endpoint.handshakes.get()),
                None => self.gone.set(self.gone.get().plus(endpoint.handshakes.get())),
            }
        }
        // Connections that were announced in another way, or speak another protocol, are not what they would be now; nor
        // are those whose servers showed certificates to other roots.
        let is_same = self.settings.protocol == old.settings.protocol && self.settings.tls == old.settings.tls;
        if is_same && self.settings.announce == old.settings.announce {
            for (same, place) in places.into_iter().enumerate() {
                if let Some(place) = place {
                    mine.idle.inherit(place, &mut theirs.idle, same);
                }
            }
        }
    }

    fn state(&self, now: Instant) -> UpstreamState {
        let state = self.state.borrow();
        let servers = self.endpoints.iter().map(|endpoint| endpoint.server().to_string()).zip(state.pool.servers(now));
        UpstreamState {
            name: self.settings.name.clone(),
            servers: servers.collect(),
            pending: state.pool.pending(),
            limit: state.pool.limit(),
            in_flight: state.pool.in_flight(),
            idle: state.idle.len(),
            retries: state.pool.retries(),
            handshakes: self
                .endpoints
                .iter()
                .fold(self.gone.get(), |sum, endpoint| sum.plus(endpoint.handshakes.get())),
        }
    }
}

/// A place in the queue. Its owner may go away at any time.
struct Place<'a, C: Keep> {
    upstream: &'a Upstream<C>,
    flow: Flow,
    request: u64,
    receiver: &'a mut oneshot::Receiver<Result<Started, Refusal>>,
}

impl<C: Keep> Place<'_, C> {
    async fn wait(self) -> Result<Started, Refusal> {
        let answer = (&mut *self.receiver).await;
        // Whoever drops the state drops the upstream, and this future holds it.
        answer.unwrap_or(Err(Refusal::NoServer))
    }
}

impl<C: Keep> Drop for Place<'_, C> {
    fn drop(&mut self) {
        match self.receiver.try_recv() {
            // It was given a slot and went away before it took it.
            Ok(Ok(Started { server, .. })) => {
                self.upstream.gone(self.flow);
                self.upstream.give_back(server, self.flow);
            }
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
            Err(oneshot::error::TryRecvError::Empty) => self.upstream.with_pool(|pool, _| {
                pool.cancel(self.request);
            }),
        }
        self.upstream.state.borrow_mut().waiters.remove(&self.request);
    }
}

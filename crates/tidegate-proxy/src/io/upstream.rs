//! The servers behind the proxy, as one thread sees them: slots, connections that wait for the next request, health.
//!
//! | module | its one job |
//! |---|---|
//! | `send` | one request and its tries |
//! | `lease` | one request's slot at one server, and how it gets a connection there |
//! | `idle` | connections that wait for the next request |
//! | `endpoint` | where a server is, and connecting to it |
//! | `checks` | asks servers how they are, for all threads |
//! | `http2` | connections that many requests share |
//! | `settings` | what the configuration says, as the machines want it |
//!
//! Nothing here is shared between threads but the verdicts of the checks, so no request takes a lock.
//!
//! [`Upstreams::send`] does all of it for one request: it waits for a slot, takes the newest connection that is still
//! open or opens one, exchanges, and tries again elsewhere what may be tried again.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tokio::sync::{Notify, oneshot, watch};

pub(crate) use checks::{Checks, Verdicts};
pub(crate) use endpoint::{Announced, ConnectError};
pub(crate) use http2::Leased;
pub(crate) use idle::Keep;
pub(crate) use lease::Lease;
pub(crate) use send::{Outbound, SendError};
pub(crate) use settings::{Part, Settings};

use crate::machine::upstream::{Acquire, Flow, Output, Pool, Refusal, ServerState, Tried};
use endpoint::Endpoint;
use http2::Shared;
use idle::Idle;
use lease::HandedOver;

mod checks;
mod endpoint;
mod http2;
mod idle;
mod lease;
mod send;
mod settings;
#[cfg(test)]
mod tests;

/// How often connections that waited too long are closed. They may live so much longer than they should.
const SWEEP: Duration = Duration::from_secs(5);

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
}

/// One upstream of one thread.
#[derive(Debug)]
pub(crate) struct Upstream<C> {
    settings: Settings,
    endpoints: Vec<Endpoint>,
    state: RefCell<State<C>>,
    queued: Rc<Notify>,
    /// Used for HTTP/2 only.
    http2: Shared,
}

#[derive(Debug)]
struct State<C> {
    pool: Pool,
    rng: Rng,
    idle: Idle<C>,
    /// Of requests that wait, by their names in the pool.
    waiters: HashMap<u64, oneshot::Sender<Result<usize, Refusal>>, RandomState>,
    last_request: u64,
    /// Exchanges that end on their own, by their tickets.
    exchanges: Slab<HandedOver>,
}

impl<C: Keep> Upstreams<C> {
    /// The upstreams of one thread; `seed` makes its draws differ from those of other threads.
    pub(crate) fn new(settings: Vec<Settings>, verdicts: watch::Receiver<Verdicts>, seed: u64) -> Rc<Self> {
        let queued = Rc::new(Notify::new());
        let now = clock::now();
        let one = |(stream, settings): (u64, Settings)| {
            Rc::new(Upstream::new(settings, Rng::stream(seed, stream), Rc::clone(&queued), now))
        };
        let all = (0..).zip(settings).map(one).collect();
        let this = Self { all: RefCell::new(all), replaced: RefCell::default(), queued, verdicts };
        this.take_verdicts();
        Rc::new(this)
    }

    /// Waits for a slot at a server of `upstream` that is none of `tried`, if possible. Flows that wait take turns.
    pub(crate) async fn acquire(
        &self,
        upstream: usize,
        flow: Flow,
        tried: Tried,
        announced: Option<Announced>,
    ) -> Result<Lease<C>, Refusal> {
        // A request that was routed before a reload that removed its upstream finds none.
        let upstream = self.all.borrow().get(upstream).cloned().ok_or(Refusal::NoServer)?;
        upstream.acquire(flow, tried, announced).await
    }

    /// Puts other settings in force. Requests under way end where they are. An upstream whose settings did not change
    /// keeps everything; else what is known of the health of its servers is kept, and their connections are.
    pub(crate) fn reload(&self, settings: Vec<Settings>, seed: u64) {
        let now = clock::now();
        let old = self.all.borrow().clone();
        let named = |name: &str| old.iter().find(|old| old.settings.name == name);
        let one = |(stream, settings): (u64, Settings)| match named(&settings.name) {
            Some(same) if same.settings == settings => Rc::clone(same),
            changed => {
                let new = Upstream::new(settings, Rng::stream(seed, stream), Rc::clone(&self.queued), now);
                if let Some(changed) = changed {
                    new.inherit(changed);
                }
                Rc::new(new)
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
        let mut verdicts = self.verdicts.clone();
        let mut sweep = clock::now() + SWEEP;
        loop {
            let now = clock::now();
            let wake = self.next_timeout().map_or(sweep, |timeout| timeout.min(sweep));
            tokio::select! {
                () = tokio::time::sleep(wake - now) => {}
                () = self.queued.notified() => continue,
                // When the checks are gone for good, their last verdict stands.
                Ok(()) = verdicts.changed() => self.take_verdicts(),
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
        let now = clock::now();
        for upstream in &*self.all.borrow() {
            upstream.with_pool(|pool, rng| {
                for (place, endpoint) in upstream.endpoints.iter().enumerate() {
                    if let Some(up) = verdicts.of(&upstream.settings.name, endpoint.server()) {
                        pool.set_up(place, up, rng, now);
                    }
                }
            });
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
    /// Connections that wait.
    pub(crate) idle: usize,
    /// Tries after the first.
    pub(crate) retries: u64,
}

impl<C: Keep> Upstream<C> {
    fn new(settings: Settings, rng: Rng, queued: Rc<Notify>, now: Instant) -> Self {
        let endpoints = settings.servers.iter().cloned().map(Endpoint::new).collect();
        let state = State {
            pool: Pool::new(settings.pool.clone(), now),
            rng,
            idle: Idle::new(settings.servers.len(), settings.max_idle, settings.idle_timeout),
            waiters: HashMap::with_hasher(RandomState::default()),
            last_request: 0,
            exchanges: Slab::new(),
        };
        let http2 = Shared::new(settings.servers.len());
        Self { settings, endpoints, state: RefCell::new(state), queued, http2 }
    }

    async fn acquire(
        self: Rc<Self>,
        flow: Flow,
        tried: Tried,
        announced: Option<Announced>,
    ) -> Result<Lease<C>, Refusal> {
        let now = clock::now();
        let waiting = {
            let state = &mut *self.state.borrow_mut();
            state.last_request += 1;
            let request = state.last_request;
            let acquired = state.pool.acquire(request, flow, tried, &mut state.rng, now);
            state.deliver();
            match acquired {
                Acquire::Start(server) => Ok(server),
                Acquire::Refused(refusal) => return Err(refusal),
                Acquire::Queued => {
                    let (sender, receiver) = oneshot::channel();
                    state.waiters.insert(request, sender);
                    Err((request, receiver))
                }
            }
        };
        let server = match waiting {
            Ok(server) => server,
            Err((request, mut receiver)) => {
                self.queued.notify_one();
                let place = Place { upstream: &self, flow, request, receiver: &mut receiver };
                place.wait().await?
            }
        };
        Ok(Lease::new(self, server, flow, tried, announced))
    }

    fn has_waiting(&self) -> bool {
        self.state.borrow().pool.pending() > 0
    }

    /// Tells the pool something, and those who waited for it what it says.
    fn with_pool(&self, tell: impl FnOnce(&mut Pool, &mut Rng)) {
        let state = &mut *self.state.borrow_mut();
        tell(&mut state.pool, &mut state.rng);
        state.deliver();
    }

    fn inherit(&self, old: &Self) {
        let (mine, theirs) = (&mut *self.state.borrow_mut(), &mut *old.state.borrow_mut());
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            let Some(same) = old.endpoints.iter().position(|old| old.server() == endpoint.server()) else { continue };
            mine.pool.inherit(place, &theirs.pool, same);
            // Connections that were announced in another way, or speak another protocol, are not what they would be now.
            if self.settings.protocol == old.settings.protocol && self.settings.announce == old.settings.announce {
                mine.idle.inherit(place, &mut theirs.idle, same);
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
            idle: state.idle.len(),
            retries: state.pool.retries(),
        }
    }
}

impl<C> State<C> {
    fn deliver(&mut self) {
        while let Some(output) = self.pool.poll_output() {
            let (request, answer) = match output {
                Output::Start { request, server, .. } => (request, Ok(server)),
                Output::Refused { request, refusal } => (request, Err(refusal)),
            };
            // The waiter is there: whoever gives up takes his request out of the pool in the same step.
            let waiter = self.waiters.remove(&request).expect("who waits in the pool waits here");
            // The receiver lives as long as its `Place`, which hands a slot that nobody takes back.
            let _ = waiter.send(answer);
        }
    }
}

/// A place in the queue. Its owner may go away at any time.
struct Place<'a, C: Keep> {
    upstream: &'a Upstream<C>,
    flow: Flow,
    request: u64,
    receiver: &'a mut oneshot::Receiver<Result<usize, Refusal>>,
}

impl<C: Keep> Place<'_, C> {
    async fn wait(self) -> Result<usize, Refusal> {
        let answer = (&mut *self.receiver).await;
        // Whoever drops the state drops the upstream, and this future holds it.
        answer.unwrap_or(Err(Refusal::NoServer))
    }
}

impl<C: Keep> Drop for Place<'_, C> {
    fn drop(&mut self) {
        let now = clock::now();
        let given = self.receiver.try_recv();
        self.upstream.with_pool(|pool, rng| match given {
            // It was given a slot and went away before it took it.
            Ok(Ok(server)) => pool.on_end(server, self.flow, rng, now),
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
            Err(oneshot::error::TryRecvError::Empty) => {
                pool.cancel(self.request);
            }
        });
        self.upstream.state.borrow_mut().waiters.remove(&self.request);
    }
}

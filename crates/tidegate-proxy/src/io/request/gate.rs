//! A `rate_limit` of the configuration, as all threads share it.
//!
//! Its limits are of the whole proxy, as operators of such limits expect, so this is the one lock that threads of
//! different cores meet at; only requests of routes that have such a limit do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::lease::{Grant, Refused};
use tidegate_core::lend::{Frame, Member};
use tidegate_core::limit::Limit;
use tidegate_core::sleep::Sleep;
use tidegate_runtime::clock;
use tidegate_wire::lend::Key;
use tokio::sync::{Notify, OnceCell, oneshot};

use crate::config::RateLimit as Rule;
use crate::io::lend::Peers;
use crate::machine::rate_limit::{
    Access, Cause, Counts, Decision, DemandSecond, LendTerms, Lists, NotGranted, Outlook, Output, PartStatus,
    RateLimitConfig, Rejection, SharedLimit,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    next: AtomicU64,
    /// What it is told apart by.
    pub(crate) name: String,
    /// Somebody waits, or the next time-out may have moved.
    queued: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    lists: Lists,
    machine: SharedLimit,
    waiting: HashMap<u64, oneshot::Sender<Result<Duration, Rejection>>, RandomState>,
    /// When the driver will look.
    armed: Option<Instant>,
    /// Those that it lends to and borrows from.
    peers: Option<Peers>,
    sleep: Sleep,
}

/// Leave to be inside; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Option<(Arc<Gate>, u64)>,
    /// How long it took to get it.
    pub(crate) waited: Duration,
}

impl Gate {
    /// A gate where nobody is inside.
    pub(crate) fn new(name: String, rule: Rule, lists: Lists, queued: Arc<Notify>, now: Instant) -> Arc<Self> {
        let machine = SharedLimit::new(machine_config(&rule), boot_number(), now);
        let state = State {
            rule,
            lists,
            machine,
            waiting: HashMap::default(),
            armed: None,
            peers: None,
            sleep: Sleep::default(),
        };
        Arc::new(Self { state: Mutex::new(state), next: AtomicU64::new(1), name, queued })
    }

    /// Other limits; who is inside or waits stays.
    pub(crate) fn reload(&self, rule: Rule, lists: Lists, now: Instant) {
        let mut state = self.lock();
        state.machine.set_config(machine_config(&rule), now);
        state.rule = rule;
        state.lists = lists;
        self.tell(&mut state);
    }

    /// There is no limit any more: those who wait go on.
    pub(crate) fn lift(&self, now: Instant) {
        let mut state = self.lock();
        state.machine.lift(now);
        self.tell(&mut state);
    }

    /// Puts a part of its rate in force, or renews it. It lends as `lends` says, to those that it [knows](Self::knows) if
    /// that names none.
    pub(crate) fn grant_part(
        &self,
        grant: Grant<Limit>,
        lends: Option<(LendTerms, Option<Peers>)>,
    ) -> Result<(), NotGranted> {
        let mut state = self.lock();
        let now = state.wake();
        let (terms, peers) = lends.unzip();
        let granted = state.machine.grant(grant, terms.as_ref(), now);
        match (&granted, peers) {
            (Err(NotGranted::Refused(_)), _) | (_, Some(None)) => {}
            (_, peers) => state.peers = peers.flatten(),
        }
        self.tell(&mut state);
        granted
    }

    /// Whether it lends to the members at `addresses` under the key already.
    pub(crate) fn knows(&self, key: Key, addresses: &BTreeMap<Member, SocketAddr>) -> bool {
        self.lock().peers.as_ref().is_some_and(|peers| peers.is(key, addresses))
    }

    /// Takes its part away.
    pub(crate) fn remove_part(&self, revision: u64, now: Instant) -> Result<(), Refused> {
        let mut state = self.lock();
        let removed = state.machine.remove(revision, now);
        self.tell(&mut state);
        removed
    }

    /// A datagram of another proxy came.
    pub(crate) fn on_frame(&self, frame: &Frame) {
        let mut state = self.lock();
        let now = state.wake();
        state.machine.on_frame(frame, now);
        self.tell(&mut state);
    }

    /// Who it is among those that lend to each other.
    pub(crate) fn member(&self) -> Option<Member> {
        self.lock().machine.member()
    }

    /// The key of its datagrams.
    pub(crate) fn lend_key(&self) -> Option<Key> {
        self.lock().peers.as_ref().map(Peers::key)
    }

    /// Its part, if it has one.
    pub(crate) fn part(&self, now: Instant) -> Option<PartStatus> {
        self.lock().machine.limiter().part(now)
    }

    /// What was asked for in each of the last `seconds` whole seconds.
    pub(crate) fn demand(&self, seconds: u64, now: Instant) -> Vec<DemandSecond> {
        self.lock().machine.limiter().demand(seconds, now)
    }

    /// How often it said what.
    pub(crate) fn counts(&self) -> Counts {
        self.lock().machine.limiter().counts()
    }

    /// What it would say to the next one now, if no list is about him.
    pub(crate) fn outlook(&self, now: Instant) -> Outlook {
        self.lock().machine.limiter().outlook(now)
    }

    /// Lets those in or go whose time came.
    pub(crate) fn turn(&self, now: Instant) {
        let mut state = self.lock();
        if !state.waiting.is_empty() || state.peers.is_some() {
            let now = state.wake().max(now);
            state.machine.on_timeout(now);
            state.deliver();
        }
    }

    /// When to [`turn`](Self::turn) next; whoever asks must do so then.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let mut state = self.lock();
        state.armed = state.machine.next_timeout();
        state.armed
    }

    /// Asks for leave, and waits for it if the rule has a queue. A client that goes away while it waits is forgotten.
    pub(crate) async fn enter(self: &Arc<Self>, client: IpAddr) -> Result<Pass, Rejection> {
        let asked = {
            let state = self.lock();
            if !state.is_limited(client)? {
                return Ok(Pass { gate: None, waited: Duration::ZERO });
            }
            self.arrive(state)
        };
        asked.answer().await
    }

    /// Asks for leave on behalf of somebody whom the lists say nothing about.
    fn arrive(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> Asked {
        // A name for this visit; nothing is ordered by it.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let now = state.wake();
        let decision = state.machine.on_arrival(id, now);
        let pass = || Pass { gate: Some((Arc::clone(self), id)), waited: Duration::ZERO };
        let asked = match decision {
            Decision::Admit => Asked::Answer(Ok(pass())),
            Decision::Reject(rejection) => Asked::Answer(Err(rejection)),
            Decision::Queue => {
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(id, sender);
                Asked::Wait(pass(), receiver)
            }
        };
        self.tell(&mut state);
        asked
    }

    /// Tells those who waited what became of them, and the driver if it would look too late for the rest.
    fn tell(&self, state: &mut State) {
        state.deliver();
        let next = state.machine.next_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            state.armed = next;
            self.queued.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Asked {
    Answer(Result<Pass, Rejection>),
    Wait(Pass, oneshot::Receiver<Result<Duration, Rejection>>),
}

impl Asked {
    async fn answer(self) -> Result<Pass, Rejection> {
        let (mut pass, receiver) = match self {
            Self::Answer(answer) => return answer,
            Self::Wait(pass, receiver) => (pass, receiver),
        };
        // A gate that is gone has no limit any more.
        pass.waited = receiver.await.unwrap_or(Ok(Duration::ZERO))?;
        Ok(pass)
    }
}

impl State {
    /// What the clock shows. If the machine has slept, what it was granted is over.
    fn wake(&mut self) -> Instant {
        if !self.rule.divided {
            return clock::now();
        }
        let since_boot_ns = clock::since_boot_ns();
        let now = clock::now();
        if self.sleep.has_slept(since_boot_ns, now) {
            self.machine.on_slept(now);
        }
        now
    }

    /// Whether the limits are for `client`, or the lists let it pass; the rejection, if they deny it.
    fn is_limited(&self, client: IpAddr) -> Result<bool, Rejection> {
        match self.lists.access(client) {
            Access::Limited => Ok(true),
            Access::Exempt => Ok(false),
            Access::Denied => {
                let status = self.rule.error.as_u16();
                Err(Rejection { cause: Cause::Denied, status, retry_after: None })
            }
        }
    }

    /// Tells those who waited what became of them, and other proxies what there is to say.
    fn deliver(&mut self) {
        while let Some(frame) = self.machine.poll_frame() {
            if let Some(peers) = &mut self.peers {
                peers.send(&frame);
            }
        }
        while let Some(output) = self.machine.poll_output() {
            let (id, answer) = match output {
                Output::Resume { id, waited } => (id, Ok(waited)),
                Output::Expire { id, rejection } => (id, Err(rejection)),
            };
            if let Some(sender) = self.waiting.remove(&id) {
                // Who went away leaves through its pass.
                let _ = sender.send(answer);
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some((gate, id)) = self.gate.take() else { return };
        let mut state = gate.lock();
        state.machine.on_end(id, clock::now());
        state.waiting.remove(&id);
        gate.tell(&mut state);
    }
}

/// The gates that count a connection once, whatever number of requests it sends.
#[derive(Debug, Default)]
pub(crate) struct Tracked(RefCell<Vec<(Arc<Gate>, Inside)>>);

/// Leave that one request gets for all of a connection's.
type Inside = Rc<OnceCell<Pass>>;

impl Tracked {
    /// Asks for leave if the connection is not inside yet, and waits for it; how long that took. Requests that come
    /// together wait for the same leave. The lists are about each request's `client`: behind a hop that is trusted one
    /// connection has those of many.
    pub(crate) async fn enter(&self, gate: &Arc<Gate>, client: IpAddr) -> Result<Duration, Rejection> {
        let is_limited = gate.lock().is_limited(client)?;
        if !is_limited {
            return Ok(Duration::ZERO);
        }
        let cell = {
            let mut all = self.0.borrow_mut();
            if let Some((_, cell)) = all.iter().find(|(other, _)| Arc::ptr_eq(other, gate)) {
                Rc::clone(cell)
            } else {
                let cell = Rc::default();
                all.push((Arc::clone(gate), Rc::clone(&cell)));
                cell
            }
        };
        let mut waited = Duration::ZERO;
        let enter = async {
            let asked = gate.arrive(gate.lock());
            let pass = asked.answer().await?;
            waited = pass.waited;
            Ok(pass)
        };
        cell.get_or_try_init(|| enter).await?;
        Ok(waited)
    }
}

fn machine_config(rule: &Rule) -> RateLimitConfig {
    RateLimitConfig {
        limit: rule.limit,
        rate: rule.rate.map(|rate| Limit { rate, burst: rule.burst }),
        divided: rule.divided,
        queue: rule.queue,
        max_age: rule.max_age,
        error: rule.error.as_u16(),
        retry: rule.retry,
    }
}

/// A number that no start of this machine's proxies had before, unless its clock was set back.
fn boot_number() -> u32 {
    let ms = clock::realtime_ns().unsigned_abs() / 1_000_000;
    u32::try_from(ms % (1 << 32)).expect("it is below 2^32")
}

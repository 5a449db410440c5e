//! A `rate_limit` of the configuration, as all threads share it.
//!
//! Its limits are of the whole proxy, as operators of such limits expect, so this is the one lock that threads of
//! different cores meet at; only requests of routes that have such a limit do.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_runtime::clock;
use tokio::sync::oneshot;

use crate::config::{Cidr, RateLimit as Rule};
use crate::machine::rate_limit::{Cause, Counts, Decision, Output, RateLimit, RateLimitConfig, Rejection};

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    next: AtomicU64,
    /// What it is told apart by.
    pub(crate) name: String,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    allow: Vec<Cidr>,
    deny: Vec<Cidr>,
    machine: RateLimit,
    waiting: HashMap<u64, oneshot::Sender<Result<Duration, Rejection>>, RandomState>,
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
    pub(crate) fn new(name: String, rule: Rule, lists: (Vec<Cidr>, Vec<Cidr>), now: Instant) -> Arc<Self> {
        let machine = RateLimit::new(machine_config(&rule), now);
        let (allow, deny) = lists;
        let state = State { rule, allow, deny, machine, waiting: HashMap::default() };
        Arc::new(Self { state: Mutex::new(state), next: AtomicU64::new(1), name })
    }

    /// Other limits; who is inside or waits stays.
    pub(crate) fn reload(&self, rule: Rule, (allow, deny): (Vec<Cidr>, Vec<Cidr>), now: Instant) {
        let mut state = self.lock();
        state.machine.set_config(machine_config(&rule), now);
        state.rule = rule;
        state.allow = allow;
        state.deny = deny;
        state.deliver();
    }

    /// How often it said what.
    pub(crate) fn counts(&self) -> Counts {
        self.lock().machine.counts()
    }

    /// Lets those in or go whose time came; called now and then.
    pub(crate) fn turn(&self, now: Instant) {
        let mut state = self.lock();
        if !state.waiting.is_empty() {
            state.machine.on_timeout(now);
            state.deliver();
        }
    }

    /// Asks for leave, and waits for it if the rule has a queue. A client that goes away while it waits is forgotten.
    pub(crate) async fn enter(self: &Arc<Self>, client: IpAddr) -> Result<Pass, Rejection> {
        let (mut pass, receiver) = match self.ask(client) {
            Asked::Answer(answer) => return answer,
            Asked::Wait(pass, receiver) => (pass, receiver),
        };
        // A gate that is gone has no limit any more.
        pass.waited = receiver.await.unwrap_or(Ok(Duration::ZERO))?;
        Ok(pass)
    }

    fn ask(self: &Arc<Self>, client: IpAddr) -> Asked {
        let mut state = self.lock();
        if state.deny.iter().any(|range| range.contains(client)) {
            let status = state.rule.error.as_u16();
            return Asked::Answer(Err(Rejection { cause: Cause::Denied, status, retry_after: None }));
        }
        if state.allow.iter().any(|range| range.contains(client)) {
            return Asked::Answer(Ok(Pass { gate: None, waited: Duration::ZERO }));
        }
        // A name for this visit; nothing is ordered by it.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let decision = state.machine.on_arrival(id, clock::now());
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
        state.deliver();
        asked
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Asked {
    Answer(Result<Pass, Rejection>),
    Wait(Pass, oneshot::Receiver<Result<Duration, Rejection>>),
}

impl State {
    /// Tells those who waited what became of them.
    fn deliver(&mut self) {
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
        state.deliver();
    }
}

fn machine_config(rule: &Rule) -> RateLimitConfig {
    RateLimitConfig {
        limit: rule.limit,
        rate: rule.rate.map(|rate| Limit { rate, burst: rule.burst }),
        queue: rule.queue,
        max_age: rule.max_age,
        error: rule.error.as_u16(),
        retry: rule.retry,
    }
}

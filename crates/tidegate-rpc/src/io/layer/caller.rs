//! The client's machine behind its lock, and the calls that wait for it.

use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::task::Waker;

use hashbrown::HashMap;
use http::HeaderValue;
use parking_lot::MutexGuard;
use tidegate_core::limit::RetryBudget;
use tidegate_core::{Instant, Rng};

use super::client_config::{ClientConfig, Wishes};
use super::counts::{ClientSnapshot, Sheds};
use super::headers::{GrantHeader, write_client};
use super::lock::BriefLock;
use crate::machine::instances::{Instances, Via};
use crate::machine::{Ask, CallId, Client, ClientOutput, Grant, Outcome, Priority, Reply, Request, ShedReason, Step};

/// What all clones of a client layer's service share.
pub(super) struct Caller<C> {
    state: BriefLock<State<C>>,
    pub(super) config: ClientConfig,
    /// The value of `tidegate-client`.
    pub(super) name: HeaderValue,
}

struct State<C> {
    machine: Instances<C>,
    rng: Rng,
    next: u64,
    /// As many as the machine's queue holds.
    waiting: HashMap<CallId, Parked, foldhash::fast::RandomState>,
    counts: Counts,
    demand: Option<Ask>,
    retries: RetryBudget,
}

#[derive(Default)]
struct Counts {
    sent: u64,
    served: u64,
    cancelled: u64,
    retries: u64,
    retries_refused: u64,
    shed_here: Sheds,
    shed_there: Sheds,
    grant: Option<Grant>,
}

/// A call that waits, or whose decision nobody has fetched yet.
#[derive(Default)]
struct Parked {
    waker: Option<Waker>,
    decision: Option<Decision>,
}

/// What the machine decided about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    Send(Ask),
    Fail(ShedReason),
}

/// What becomes of a call that the machine has no credit for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WithoutCredit {
    /// It fails, and is counted.
    Fails,
    /// Another server is asked.
    GoesElsewhere,
}

/// What the machine says about a call now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Now {
    Decided(Decision),
    /// Its waker is called; until then, ask again after this span if there is one.
    Wait(Option<Duration>),
}

/// A call of this client, until it is answered. Dropping it cancels it.
pub(super) struct Sent<C: Client> {
    caller: Arc<Caller<C>>,
    id: CallId,
    /// The machine that is owed its end; `None` if no machine was asked.
    via: Option<Via>,
    entered: Instant,
    pub(super) wishes: Wishes,
    over: bool,
}

/// What came back for a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) shed: Option<ShedReason>,
    pub(super) grant: Option<GrantHeader>,
}

impl<C: Client> Caller<C> {
    pub(super) fn new(machine: C, config: ClientConfig) -> Arc<Self> {
        // std's hasher is seeded from the system's randomness.
        let random = |of: u8| RandomState::new().hash_one(of);
        let state = State {
            machine: Instances::new(machine),
            rng: Rng::new(random(0)),
            next: 0,
            waiting: HashMap::default(),
            counts: Counts::default(),
            demand: None,
            retries: RetryBudget::new(config.retries.terms(), (config.clock)()),
        };
        Arc::new(Self { state: BriefLock::new(state), config, name: write_client(random(1)) })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Instant {
        (self.config.clock)()
    }

    /// The chance of a call of `priority` to be let through.
    pub(super) fn chance(&self, priority: Priority) -> f64 {
        let state = self.lock();
        state.machine.chance(priority, self.now())
    }

    /// A caller wants something.
    pub(super) fn call<B>(
        self: &Arc<Self>,
        request: &http::Request<B>,
        without_credit: WithoutCredit,
    ) -> (Sent<C>, Now) {
        let wishes = Wishes::of(request, &self.config, self.now());
        let (id, via, now, step, wakers) = {
            let mut state = self.lock();
            let now = self.now();
            let (id, via, step) = state.call(&wishes, without_credit, now);
            (id, via, now, step, state.carry_out(now))
        };
        wake(wakers);
        let over = matches!(step, Now::Decided(Decision::Fail(_)));
        (Sent { caller: Arc::clone(self), id, via, entered: now, wishes, over }, step)
    }

    /// Runs `tell` on the machine and carries out what it wants done.
    fn tell<R>(&self, tell: impl FnOnce(&mut State<C>, Instant) -> R) -> R {
        let (result, wakers) = {
            let mut state = self.lock();
            let now = self.now();
            let result = tell(&mut state, now);
            (result, state.carry_out(now))
        };
        wake(wakers);
        result
    }

    /// The demand that shall be told without a call, if any; whoever takes it tells it.
    pub(super) fn take_demand(&self) -> Option<Ask> {
        self.lock().demand.take()
    }

    /// A demand was taken and not told: another waiting call shall.
    pub(super) fn put_demand_back(&self, ask: Ask) {
        let waker = {
            let mut state = self.lock();
            // A newer one replaces it.
            state.demand.get_or_insert(ask);
            state.any_waiter()
        };
        wake(waker.into_iter().collect());
    }

    /// A grant came without a call.
    pub(super) fn granted(&self, header: &GrantHeader) {
        self.tell(|state, now| {
            state.counts.grant = Some(header.grant);
            state.machine.on_grant(&header.grant, header.instance, now);
        });
    }

    /// Whether a call may be sent again.
    pub(super) fn try_retry(&self) -> bool {
        let mut state = self.lock();
        let now = self.now();
        state.try_retry(now)
    }

    /// The connection is gone.
    pub(super) fn lost(&self) {
        self.tell(|state, now| state.machine.on_lost(now));
    }

    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let state = self.lock();
        let counts = &state.counts;
        ClientSnapshot {
            sent: counts.sent,
            served: counts.served,
            cancelled: counts.cancelled,
            shed_here: counts.shed_here.list(),
            shed_there: counts.shed_there.list(),
            waiting: state.waiting.len() as u64,
            retries: counts.retries,
            retries_refused: counts.retries_refused,
            grant: counts.grant.map(Into::into),
            servers: state.machine.count() as u64,
        }
    }
}

impl<C: Client> State<C> {
    fn call(&mut self, wishes: &Wishes, without_credit: WithoutCredit, now: Instant) -> (CallId, Option<Via>, Now) {
        let id = CallId(self.next);
        self.next += 1;
        let Wishes { priority, budget, .. } = *wishes;
        if budget == Some(Duration::ZERO) {
            // Its deadline is over, whatever the scheme knows of deadlines.
            self.counts.shed_here.count(ShedReason::Deadline, priority);
            return (id, None, Now::Decided(Decision::Fail(ShedReason::Deadline)));
        }
        if wishes.is_retry && !self.try_retry(now) {
            self.counts.shed_here.count(ShedReason::NoCredit, priority);
            return (id, None, Now::Decided(Decision::Fail(ShedReason::NoCredit)));
        }
        let request = Request { id, priority, deadline: budget.map(|budget| now + budget) };
        let (step, via) = self.machine.on_call(&request, now, &mut self.rng);
        let step = match step {
            Step::Send(ask) => {
                self.counts.sent += 1;
                Now::Decided(Decision::Send(ask))
            }
            Step::Fail(reason) => {
                if reason != ShedReason::NoCredit || without_credit == WithoutCredit::Fails {
                    self.counts.shed_here.count(reason, priority);
                }
                Now::Decided(Decision::Fail(reason))
            }
            Step::Wait => {
                self.waiting.insert(id, Parked::default());
                Now::Wait(self.patience(now))
            }
        };
        (id, Some(via), step)
    }

    fn try_retry(&mut self, now: Instant) -> bool {
        let may = self.retries.try_retry(now);
        *(if may { &mut self.counts.retries } else { &mut self.counts.retries_refused }) += 1;
        may
    }

    /// How long until the machine wants to be called.
    fn patience(&self, now: Instant) -> Option<Duration> {
        self.machine.next_timeout().map(|timeout| timeout.since(now))
    }

    /// What became of a waiting call.
    fn ask_again(&mut self, id: CallId, priority: Priority, waker: &Waker, now: Instant) -> Now {
        let Some(parked) = self.waiting.get_mut(&id) else {
            return Now::Decided(Decision::Fail(ShedReason::Lost));
        };
        if let Some(decision) = parked.decision {
            self.waiting.remove(&id);
            match decision {
                Decision::Send(_) => self.counts.sent += 1,
                Decision::Fail(reason) => self.counts.shed_here.count(reason, priority),
            }
            return Now::Decided(decision);
        }
        match &mut parked.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Now::Wait(self.patience(now))
    }

    /// A call that waits, to carry the demand. If none does, nobody has a demand.
    fn any_waiter(&mut self) -> Option<Waker> {
        self.waiting.values_mut().find_map(|parked| parked.waker.take())
    }

    /// Runs the machine's timer if it is due, and its outputs. Whom to wake.
    fn carry_out(&mut self, now: Instant) -> Vec<Waker> {
        if self.machine.next_timeout().is_some_and(|timeout| timeout <= now) {
            self.machine.on_timeout(now);
        }
        let mut wakers = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            let (id, decision) = match output {
                ClientOutput::Send(id, ask) => (id, Decision::Send(ask)),
                ClientOutput::Fail(id, reason) => (id, Decision::Fail(reason)),
                ClientOutput::Demand(ask) => {
                    self.demand = Some(ask);
                    wakers.extend(self.any_waiter());
                    continue;
                }
            };
            if let Some(parked) = self.waiting.get_mut(&id) {
                parked.decision = Some(decision);
                wakers.extend(parked.waker.take());
            }
        }
        wakers
    }
}

impl<C: Client> Sent<C> {
    /// What became of it while it waited.
    pub(super) fn ask_again(&self, waker: &Waker) -> Now {
        self.caller.tell(|state, now| {
            // The timer first: it may be what this call waits for.
            let wakers = state.carry_out(now);
            let known = state.ask_again(self.id, self.wishes.priority, waker, now);
            wake(wakers);
            known
        })
    }

    /// Time left of its budget.
    pub(super) fn left(&self) -> Option<Duration> {
        let passed = self.caller.now().since(self.entered);
        self.wishes.budget.map(|budget| budget.saturating_sub(passed))
    }

    /// Whether it is sent again and the budget let it.
    pub(super) fn is_paid_retry(&self) -> bool {
        self.wishes.is_retry && self.via.is_some()
    }

    /// It failed here: nothing more is owed.
    pub(super) fn failed(mut self) {
        self.over = true;
    }

    /// It was answered.
    pub(super) fn answered(mut self, answer: &Answer) {
        self.over = true;
        let Self { caller, id, via, entered, wishes, .. } = &self;
        caller.tell(|state, now| {
            let outcome = match answer.shed {
                None => {
                    state.counts.served += 1;
                    state.retries.pay();
                    Outcome::Served
                }
                Some(reason) => {
                    state.counts.shed_there.count(reason, wishes.priority);
                    Outcome::Shed
                }
            };
            let grant = answer.grant.map(|header| header.grant);
            state.counts.grant = grant.or(state.counts.grant);
            let server_time = answer.grant.map_or(Duration::ZERO, |header| header.server_time);
            let reply = Reply { id: *id, outcome, grant, response_time: now.since(*entered), server_time };
            let instance = answer.grant.map_or(0, |header| header.instance);
            if let Some(via) = *via {
                state.machine.on_reply(via, &reply, instance, now);
            }
        });
    }

    pub(super) fn caller(&self) -> &Arc<Caller<C>> {
        &self.caller
    }
}

impl<C: Client> Drop for Sent<C> {
    fn drop(&mut self) {
        if !self.over {
            self.caller.tell(|state, now| {
                state.waiting.remove(&self.id);
                state.counts.cancelled += 1;
                if let Some(via) = self.via {
                    state.machine.on_cancel(via, self.id, now);
                }
            });
        }
    }
}

/// Called without the lock: a waker may poll at once.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

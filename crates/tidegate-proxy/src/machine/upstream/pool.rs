//! The servers of one upstream: who is asked, who waits, who is refused.

use core::time::Duration;
use std::collections::VecDeque;

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use super::balance::{Balancer, Candidate};
use super::config::{MAX_TRIES, PassiveConfig, PoolConfig, ServerConfig};
use super::passive::{Client, Passive};
use super::retries::Retries;
use super::sharing::{Call, Sharing, Stay};
use super::slots::{Holders, Shares};
use super::turns::{Asker, Flow, May, Turns, Waiting};

/// Weights are scaled so that a server's slow start has steps: its full share is 1,000 times its weight.
const FULL: u64 = 1_000;
/// A server that just came back gets a twentieth, not nothing: without requests it would never warm up.
const COLD: u64 = 50;

/// The servers of one upstream and the requests that wait for one of them.
///
/// A request gets a server that is up, not ejected, has a slot free and was not tried before. If only tried ones are left,
/// one of them; if all that are up are ejected, one of those, since a server that failed some requests is better than a
/// certain refusal. If every server that would do is full, the request waits, and starts in the event that frees a slot
/// anywhere: a request never waits for a busy server while another is free. Flows take turns: one that floods a slow
/// upstream delays another one's next request by one of its own at most. Of eight slots or more an eighth is for tenants that
/// hold less than their fair share, so that nobody waits for one who does not let go. Streams have a part of the slots, which
/// is shared in the same way.
///
/// How many requests may wait for the head of their answer at once is learnt, if the [settings](PoolConfig::learnt) say so,
/// and shared by tenant and weight: those beyond a tenant's fair share wait here while the upstream has as many as it can
/// work on. A tenant that is alone is refused nothing for that: what finds the queue full, or has waited for too long, goes
/// to the upstream all the same.
///
/// Whatever started ends once, with [`on_end`](Self::on_end). After every event drain [`poll_output`](Self::poll_output).
#[derive(Clone, Debug)]
pub struct Pool {
    config: PoolConfig,
    servers: Vec<Server>,
    balancer: Balancer,
    waiting: Turns,
    held: Holders,
    /// What the upstream can do at once; `None` if nothing is learnt.
    sharing: Option<Sharing>,
    /// How the request that started last began.
    call: Call,
    outputs: VecDeque<Output>,
    retries: Retries,
    /// What the balancer chooses among, kept for its memory.
    candidates: Vec<Candidate>,
    /// When slots were last offered to those who wait; ejections that ended before were seen to end.
    settled: Instant,
}

#[derive(Clone, Debug)]
struct Server {
    config: ServerConfig,
    active: u32,
    /// Of these, how many were started by a pool before this one.
    inherited: u32,
    /// By its checks; true without any.
    up: bool,
    passive: Passive,
    /// When it last came back from its checks' verdict; an ejection's end is known to `passive`.
    back: Option<Instant>,
    requests: u64,
    failures: u64,
}

/// The servers that a request was sent to already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tried([Option<u16>; MAX_TRIES as usize]);

impl Tried {
    /// Adds the server at this place; one more than the greatest number of tries is forgotten.
    #[must_use]
    pub fn and(mut self, server: usize) -> Self {
        if let (Some(free), Ok(server)) = (self.0.iter_mut().find(|slot| slot.is_none()), u16::try_from(server)) {
            *free = Some(server);
        }
        self
    }

    /// How many were tried.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// True before the first try.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// True if the server at this place was tried.
    #[must_use]
    pub fn contains(&self, server: usize) -> bool {
        self.0.iter().flatten().any(|&tried| usize::from(tried) == server)
    }
}

/// The answer to a request for a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// It has this server, whose slot it holds.
    Start(usize),
    /// It waits; an [`Output`] will name it.
    Queued,
    /// It gets none.
    Refused(Refusal),
}

/// Why a request gets no server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No server is up.
    NoServer,
    /// All are full, and so is the queue; of those who wait, its flow had the most.
    QueueFull,
    /// It waited as long as one may.
    TimedOut,
}

/// What became of a request that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// It has this server, whose slot it holds.
    Start {
        /// Which.
        request: u64,
        /// Its server.
        server: usize,
        /// From its arrival to now.
        waited: Duration,
        /// For [`Pool::on_answer`] or [`Pool::on_gone`].
        call: Call,
    },
    /// It gets none.
    Refused {
        /// Which.
        request: u64,
        /// Why.
        refusal: Refusal,
    },
}

/// One server as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerState {
    /// Requests under way.
    pub active: u32,
    /// By its checks.
    pub up: bool,
    /// Failed too often of late.
    pub ejected: bool,
    /// Requests started there since the first of the pools that inherited from each other began.
    pub requests: u64,
    /// Of these, how many ended with a failure of the server.
    pub failures: u64,
}

impl Pool {
    /// All servers are up and idle, and nobody waits.
    #[must_use]
    pub fn new(config: PoolConfig, now: Instant) -> Self {
        let servers: Vec<_> = config.servers.iter().map(|&config| Server::new(config)).collect();
        Self {
            balancer: Balancer::new(config.balance, &config.servers),
            candidates: Vec::with_capacity(servers.len()),
            retries: Retries::new(config.retry.terms(), now),
            servers,
            waiting: Turns::default(),
            held: Holders::default(),
            sharing: config.learnt.map(|tuning| Sharing::new(tuning, now)),
            call: Call::default(),
            outputs: VecDeque::new(),
            settled: now,
            config,
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Retries since the first of the pools that inherited from each other began.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries.total()
    }

    /// Requests that wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len()
    }

    /// How many requests may wait for the heads of their answers; `None` if nothing limits them.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.sharing.as_ref()?.limit()
    }

    /// Requests that wait for the heads of their answers; 0 if nothing is learnt.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.sharing.as_ref().map_or(0, Sharing::in_flight)
    }

    /// Requests under way at the server at this place.
    #[must_use]
    pub fn active(&self, server: usize) -> u32 {
        self.servers[server].active
    }

    /// The servers as they are at `now`, in their order.
    pub fn servers(&self, now: Instant) -> impl Iterator<Item = ServerState> {
        self.servers.iter().map(move |server| ServerState {
            active: server.active,
            up: server.up,
            ejected: server.passive.is_ejected(now),
            requests: server.requests,
            failures: server.failures,
        })
    }

    /// `request` wants a server that is none of `tried`, if possible. The first try of a request pays into the budget.
    /// `weight` is asked for if there is not room for all. What starts is begun as [`call`](Self::call) says.
    pub fn acquire(
        &mut self,
        request: u64,
        asker: Asker,
        tried: Tried,
        weight: impl FnOnce() -> u32,
        rng: &mut Rng,
        now: Instant,
    ) -> Acquire {
        let flow = asker.flow;
        if let Some(sharing) = &mut self.sharing {
            sharing.on_arrival(flow.tenant, now);
        }
        self.settle(rng, now);
        if tried.is_empty() {
            self.retries.pay(flow.claimant, now);
        }
        let has_room = self.sharing.as_ref().is_none_or(Sharing::has_room);
        let weight = if has_room { None } else { Some(weight()) };
        let asker = Asker { weight, ..asker };
        // Nobody overtakes one of its own name that waits.
        if !self.waiting.has(flow)
            && may(asker, self.sharing.as_ref(), self.shares(), &self.held) == May::Start
            && let Some(server) = self.start(asker, tried, rng, now)
        {
            return Acquire::Start(server);
        }
        if !self.has_server() {
            return Acquire::Refused(Refusal::NoServer);
        }
        if self.waiting.len() >= self.config.max_pending as usize && !self.relieve(flow, rng, now) {
            let Some(longest) = self.waiting.make_room(flow) else { return Acquire::Refused(Refusal::QueueFull) };
            self.outputs.push_back(Output::Refused { request: longest, refusal: Refusal::QueueFull });
        }
        self.waiting.push(asker, request, tried, now);
        self.tell_held(now);
        Acquire::Queued
    }

    /// How the request began that [`acquire`](Self::acquire) started last.
    #[must_use]
    #[inline]
    pub fn call(&self) -> Call {
        self.call
    }

    /// The head of the answer to a request of `flow` came, `stay` after it began.
    #[inline]
    pub fn on_answer(&mut self, flow: Flow, call: Call, stay: Stay, rng: &mut Rng, now: Instant) {
        let Some(sharing) = &mut self.sharing else { return };
        sharing.on_answer(flow.claimant, call, stay, now);
        if self.waiting.len() > 0 {
            self.settle(rng, now);
        }
    }

    /// All of a request has come that began while its client still sent it, for which [`on_gone`](Self::on_gone) was told
    /// then. From now on it counts, whatever room there is.
    pub fn on_sent(&mut self, flow: Flow, group: u8, now: Instant) -> Call {
        let begin = |sharing: &mut Sharing| sharing.on_begin(flow.claimant, None, group, now);
        self.sharing.as_mut().map(begin).unwrap_or_default()
    }

    /// A request of `flow` has no answer, or one that says nothing of the upstream.
    pub fn on_gone(&mut self, flow: Flow, rng: &mut Rng, now: Instant) {
        let Some(sharing) = &mut self.sharing else { return };
        sharing.on_gone(flow.claimant, now);
        self.settle(rng, now);
    }

    /// Takes one retry out of the budget for a request of `flow`, if there is one for it.
    pub fn try_retry(&mut self, flow: Flow, now: Instant) -> bool {
        self.retries.try_take(flow.claimant, now)
    }

    /// The server at this place answered a request.
    pub fn on_success(&mut self, server: usize) {
        self.servers[server].passive.on_success();
    }

    /// The server at this place could not be reached. A client that gave up or misbehaved says nothing about a server:
    /// then neither this nor any of these is told.
    pub fn on_failure(&mut self, server: usize, now: Instant) {
        self.failed(server, now, |passive, config| passive.on_failure(config, now));
    }

    /// The server at this place did not answer a request of `flow`, or broke off.
    pub fn on_no_answer(&mut self, server: usize, flow: Flow, now: Instant) {
        self.failed(server, now, |passive, config| passive.on_no_answer(flow.claimant, config, now));
    }

    /// The server at this place answered a request of `flow`, from `client`, with a status that is one of the
    /// [`failure_statuses`](PoolConfig::failure_statuses).
    pub fn on_failure_status(&mut self, server: usize, flow: Flow, client: Client, now: Instant) {
        self.failed(server, now, |passive, config| passive.on_status(flow.claimant, client, config, now));
    }

    fn failed(&mut self, server: usize, now: Instant, is_due: impl FnOnce(&mut Passive, &PassiveConfig) -> bool) {
        self.servers[server].failures += 1;
        let Some(config) = self.config.passive else { return };
        if !is_due(&mut self.servers[server].passive, &config) {
            return;
        }
        let ejected = self.servers.iter().filter(|server| server.passive.is_ejected(now)).count();
        #[expect(clippy::cast_precision_loss, reason = "numbers of servers are small")]
        let allowed = (ejected + 1) as f64 <= self.servers.len() as f64 * config.max_ejected;
        if allowed {
            self.servers[server].passive.eject(&config, now);
        }
    }

    /// A request of `flow` that had a slot of the server at this place is over; the slot is for the next in line.
    ///
    /// # Panics
    /// If nothing is under way there.
    pub fn on_end(&mut self, server: usize, flow: Flow, rng: &mut Rng, now: Instant) {
        let active = &mut self.servers[server].active;
        *active = active.checked_sub(1).expect("only what was started can end");
        self.held.let_go(flow);
        self.settle(rng, now);
    }

    /// A waiting request's client is gone; false if it does not wait. O(n) in those who wait.
    pub fn cancel(&mut self, request: u64) -> bool {
        self.waiting.cancel(request)
    }

    /// The checks of a server found it well, or not. Who was found well starts anew: its past failures are forgotten.
    pub fn set_up(&mut self, server: usize, up: bool, rng: &mut Rng, now: Instant) {
        let server = &mut self.servers[server];
        if up && !server.up {
            server.back = Some(now);
            server.passive.reset();
        }
        server.up = up;
        self.settle(rng, now);
    }

    /// When somebody's wait ends, or an ejection that somebody waits behind.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let expiry = self.waiting.oldest()?.0 + self.config.pending_timeout;
        let until = self.servers.iter().filter(|server| server.up).filter_map(|server| server.passive.until());
        Some(until.filter(|&until| until > self.settled).min().map_or(expiry, |until| until.min(expiry)))
    }

    /// That moment came, perhaps late.
    pub fn on_timeout(&mut self, rng: &mut Rng, now: Instant) {
        self.settle(rng, now);
    }

    /// What became of those who waited; call until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes over from `old`, whose place it takes: what is known of the servers' health, what is under way, the budget
    /// and the totals; and, if a server stays, how much the upstream can do at once, as a part of it that is as large
    /// as the servers' weights are now. `places[i]` is where the server at place `i` of `old` stands here; `None` if it
    /// is gone.
    ///
    /// What was started there ends there, and those who wait there start there: both are to be told here too, by
    /// [`on_inherited_start`](Self::on_inherited_start) and [`on_inherited_end`](Self::on_inherited_end).
    pub fn inherit(&mut self, old: &Self, places: &[Option<usize>], now: Instant) {
        for (theirs, place) in old.servers.iter().zip(places) {
            let Some(place) = *place else { continue };
            let config = self.servers[place].config;
            self.servers[place] = Server { config, inherited: theirs.active, ..theirs.clone() };
        }
        // Who comes to servers that are warm starts slowly, as who comes back does.
        let some_stay = places.iter().any(Option::is_some);
        for (place, server) in self.servers.iter_mut().enumerate().filter(|_| some_stay) {
            if !places.contains(&Some(place)) {
                server.back = Some(now);
            }
        }
        if let (Some(mine), Some(theirs), true) = (&mut self.sharing, &old.sharing, some_stay) {
            let weight = |servers: &[Server]| servers.iter().map(|server| f64::from(server.config.weight)).sum::<f64>();
            mine.inherit(theirs, weight(&self.servers) / weight(&old.servers), now);
        }
        self.held.clone_from(&old.held);
        self.retries.inherit(&old.retries, now);
    }

    /// A request of `flow` that waited at the pool before this one was started there, at the server at this place here.
    pub fn on_inherited_start(&mut self, place: Option<usize>, flow: Flow) {
        if let Some(server) = place.map(|place| &mut self.servers[place]) {
            server.active += 1;
            server.inherited += 1;
            server.requests += 1;
        }
        self.held.take(flow);
    }

    /// A request of `flow` that was started at a pool before this one is over.
    pub fn on_inherited_end(&mut self, place: Option<usize>, flow: Flow, rng: &mut Rng, now: Instant) {
        // A server that was gone for one reload and came back with the next has forgotten what was under way there.
        if let Some(server) = place.map(|place| &mut self.servers[place]).filter(|server| server.inherited > 0) {
            server.active -= 1;
            server.inherited -= 1;
        }
        self.held.let_go(flow);
        self.settle(rng, now);
    }

    fn has_server(&self) -> bool {
        self.servers.iter().any(|server| server.up && server.config.weight > 0)
    }

    /// Ends waits that are over, then starts those whose turn it is while there are slots.
    fn settle(&mut self, rng: &mut Rng, now: Instant) {
        self.settled = self.settled.max(now);
        self.tell_held(now);
        if self.waiting.len() == 0 {
            return;
        }
        while let Some((arrival, request)) = self.waiting.oldest() {
            if arrival + self.config.pending_timeout > now {
                break;
            }
            let flow = self.waiting.oldest_flow().unwrap_or_default();
            if !self.relieve(flow, rng, now) {
                self.waiting.pop_oldest();
                self.outputs.push_back(Output::Refused { request, refusal: Refusal::TimedOut });
            }
        }
        loop {
            let (has_server, shares) = (self.has_server(), self.shares());
            let (sharing, held) = (self.sharing.as_ref(), &self.held);
            if has_server && (shares.is_used_up() || sharing.is_some_and(Sharing::is_full)) {
                break;
            }
            let may = |asker| if has_server { may(asker, sharing, shares, held) } else { May::Start };
            let next = self.waiting.next(may);
            let Some((asker, Waiting { request, arrival, tried, .. })) = next else { break };
            let output = if let Some(server) = self.start(asker, tried, rng, now) {
                Output::Start { request, server, waited: now - arrival, call: self.call }
            } else if has_server {
                break;
            } else {
                Output::Refused { request, refusal: Refusal::NoServer }
            };
            self.waiting.pop(asker.flow);
            self.outputs.push_back(output);
        }
        self.tell_held(now);
    }

    fn tell_held(&mut self, now: Instant) {
        if let Some(sharing) = &mut self.sharing {
            sharing.on_held(self.waiting.len() > 0 && !sharing.has_room(), now);
        }
    }

    /// Starts the one of `flow`'s name that waits longest, whatever is in flight, if its tenant is alone; false if it
    /// may not.
    fn relieve(&mut self, flow: Flow, rng: &mut Rng, now: Instant) -> bool {
        let is_alone = self.sharing.as_ref().is_some_and(|sharing| sharing.is_alone(flow.tenant, now));
        if !is_alone || self.shares().admit(flow, &self.held) != May::Start {
            return false;
        }
        let first = self.waiting.first(flow);
        let Some((asker, Waiting { request, arrival, tried, .. })) = first else { return false };
        let Some(server) = self.start(asker, tried, rng, now) else { return false };
        self.waiting.pop(flow);
        self.outputs.push_back(Output::Start { request, server, waited: now - arrival, call: self.call });
        true
    }

    /// What there is to share now. O(servers).
    fn shares(&self) -> Shares {
        let up = self.servers.iter().filter(|server| server.up && server.config.weight > 0);
        up.fold(Shares::default(), |shares, server| Shares {
            slots: shares.slots + u64::from(server.config.max_connections),
            active: shares.active + u64::from(server.active),
            streams: shares.streams + u64::from(self.config.max_streams),
        })
    }

    /// Takes a slot of a server that would do.
    fn start(&mut self, asker: Asker, tried: Tried, rng: &mut Rng, now: Instant) -> Option<usize> {
        let some_are_well = self.servers.iter().any(|server| server.is_well(now));
        let slow_start = nanos(self.config.slow_start);
        let mut fill = |candidates: &mut Vec<Candidate>, tried: Tried| {
            candidates.clear();
            candidates.extend(self.servers.iter().enumerate().map(|(place, server)| {
                let usable = if some_are_well { server.is_well(now) } else { server.up };
                let free = server.active < server.config.max_connections;
                let weight = if usable && free && !tried.contains(place) { server.weight(slow_start, now) } else { 0 };
                Candidate { weight, active: server.active }
            }));
            self.balancer.pick(candidates, asker.key, rng)
        };
        let untried = fill(&mut self.candidates, tried);
        let again = || fill(&mut self.candidates, Tried::default());
        let server = if tried.is_empty() { untried } else { untried.or_else(again) }?;
        self.servers[server].active += 1;
        self.servers[server].requests += 1;
        self.servers[server].passive.on_request(asker.flow.claimant, now);
        self.held.take(asker.flow);
        if let Some(sharing) = &mut self.sharing {
            self.call = sharing.on_begin(asker.flow.claimant, asker.weight, asker.group, now);
        }
        Some(server)
    }
}

/// Whether a request may begin, as far as its tenant is concerned.
fn may(asker: Asker, sharing: Option<&Sharing>, shares: Shares, held: &Holders) -> May {
    let (flow, weight) = (asker.flow, asker.weight.unwrap_or(1));
    if sharing.is_none_or(|sharing| sharing.admit(flow.claimant, weight)) {
        shares.admit(flow, held)
    } else {
        May::NotItsFlow
    }
}

impl Server {
    fn new(config: ServerConfig) -> Self {
        Self {
            config,
            active: 0,
            inherited: 0,
            up: true,
            passive: Passive::default(),
            back: None,
            requests: 0,
            failures: 0,
        }
    }

    fn is_well(&self, now: Instant) -> bool {
        self.up && self.config.weight > 0 && !self.passive.is_ejected(now)
    }

    /// Its share now, in thousandths of a weight; less than its full one while it starts slowly.
    fn weight(&self, slow_start_ns: u64, now: Instant) -> u32 {
        let back = self.back.max(self.passive.until());
        let part = match back {
            Some(back) if slow_start_ns > 0 => {
                let age = u128::from(now.nanos_since(back)) * u128::from(FULL) / u128::from(slow_start_ns);
                u64::try_from(age).unwrap_or(FULL).clamp(COLD, FULL)
            }
            _ => FULL,
        };
        u32::try_from(u64::from(self.config.weight) * part).expect("a 16-bit weight times a thousand")
    }
}

#[cfg(test)]
mod tests;

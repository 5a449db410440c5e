//! Beside the handlers: admit, shed, and tell everybody what to send.

use core::time::Duration;
use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_core::limit::{InFlightConfig, InFlightLimit};
use tidegate_core::time::nanos;

use crate::machine::credits::config::Config;
use crate::machine::credits::demand::{CREDITED, Demand, STRETCH};
use crate::machine::credits::level::Level;
use crate::machine::credits::mark::{Generation, Mark, Stage};
use crate::machine::credits::service::{Load, Service, Start};
use crate::machine::credits::session::{Session, Sessions, float, span};
use crate::machine::credits::shortage::{Believed, Shares, ShortageNow};
use crate::machine::credits::surplus::Surplus;
use crate::machine::short::{Short, View};
use crate::machine::{
    Ask, CERTAIN, Done, Full, Grant, Priority, Server, SessionId, ShedReason, Signal, Tenant, Ticket, Verdict,
};

/// Gaps between its calls for which a client may act on what it was told: of calls at random one gap in 3,000 is
/// longer.
const LEASE_GAPS: f64 = 8.0;
/// The longest lease: what a client that calls this seldom does matters to nobody.
const LEASE_MOST_NS: u64 = 60_000_000_000;
/// The shortest lease, and that of credits, in objectives: calls under way when a grant is made end before it does.
const LEASE_OBJECTIVES: f64 = 8.0;
/// Calls that may wait for each core before any service time is known.
const BLIND: u32 = 4;
/// By how much calls of the marginal priority or tenant wait less than the others at most, as a share of the wait.
const STEP_BACK: f64 = 0.5;
/// By how much more the chance is at an empty queue than at a full one, for clients that come back before it changes.
/// Twice as much overshoots.
const STEER: f64 = 1.0;
/// Calls over which the number of running calls is averaged.
const PARALLEL: f64 = 256.0;
/// One that may have less than this share of what it sends, or of what others of its tenant may, is far over it.
const FAR_OVER: f64 = 0.5;
/// The least share of the capacity that is left for served calls, however much the refusals seem to take.
const SERVED_LEAST: f64 = 0.1;
/// What a tick leaves of the counts of what happened: eight thousand calls count.
const FADE: f64 = 127.0 / 128.0;
/// Calls of the first stretch in which somebody is held back.
const FIRST_STRETCH: u32 = 128;
/// That is one in which nobody was for so long.
const FORGOTTEN_NS: u64 = 1_000_000_000;
/// Ticks after which a third of the calls is left that may be in flight besides since cores stood still.
const EXTRA_FADES: u32 = 16;

/// The server of Tidegate's credits. O(1) for each call, but for one in 64, which takes O(t log t) for t tenants.
#[derive(Clone, Debug)]
pub struct CreditServer {
    config: Config,
    cores: u32,
    sessions: Sessions,
    demand: Demand,
    service: Service,
    surplus: Surplus,
    shortage: ShortageNow,
    waiting: u32,
    /// Calls that take a core, or wait for their turn after they have waited for something else.
    in_service: u32,
    /// Calls that started and did not end, and how many there may be of them.
    in_flight: InFlightLimit,
    /// How many may be in flight so that none waits for a core longer than it may, whatever it waits for besides.
    core_limit: u32,
    /// How many more, since cores stood still for all those; and core time without work, while calls were held back, since a
    /// call last went on or started.
    core_extra: u32,
    still_ns: f64,
    /// Whether calls wait since enough are in flight, and whether they did since one last started.
    is_held: bool,
    was_held: bool,
    /// Until when each waiting call is worth starting, in order of arrival, without those for which that has passed.
    line: VecDeque<Instant>,
    /// Whether requests were waiting to be read when one last was.
    unread: bool,
    /// Core time without work since the last tick, and until when it is counted.
    idle_ns: f64,
    /// Core time without work since the last tick that calls would have used, were not enough in flight.
    held_ns: f64,
    counted: Instant,
    /// What those let through that the handlers call.
    below: Level,
    /// What happened lately.
    load: Load,
    /// What it said after the last tick.
    refused_before: f64,
    arrived_before: f64,
    /// The share of the demand that is let through while nothing is known.
    blind: f64,
    /// In which stretch of calls active sessions are being counted, and calls in it.
    stretch: u16,
    stretch_calls: u32,
    stretch_ends: Instant,
    /// When somebody was last held back.
    held_back: Option<Instant>,
    /// When it began, and the shortest time that a call of the one before stands for.
    stretch_began: Instant,
    stretch_ns: f64,
    /// Computed at each tick: the wait up to which calls are admitted, that up to which they are started, and calls a
    /// second that are let through.
    admitted_wait: f64,
    longest_wait: f64,
    longest_wait_ns: u64,
    supply: f64,
}

/// What the machine measures and decides, for display.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gauges {
    /// Calls a second that the server can serve; 0 while unknown.
    pub capacity_per_s: f64,
    /// Calls a second that are let through at most; 0 while nobody is held back.
    pub supply_per_s: f64,
    /// Mean service time.
    pub service: Duration,
    /// How long a call may take.
    pub objective: Duration,
    /// How long a call may wait at most.
    pub longest_wait: Duration,
    /// Share of the cores' time that is idle.
    pub idle: f64,
    /// Calls that wait.
    pub waiting: u32,
    /// Calls that take a core.
    pub in_service: u32,
    /// Calls that were started and have not ended, whatever they wait for.
    pub in_flight: u32,
    /// How many there may be of them; `None` while nothing but cores is short.
    pub in_flight_limit: Option<u32>,
    /// Open sessions.
    pub sessions: u32,
    /// Credits that sessions hold.
    pub credits: u32,
}

/// What a call says about its session.
#[derive(Clone, Copy)]
struct Heard {
    stands_for: f64,
    held: bool,
    /// Whether its session sends far more than it may.
    far_over: bool,
    /// Whether it is refused for what the handlers would call.
    refused_below: bool,
    /// The chance with which it came as far as this.
    chance: f64,
}

/// Whose call it is.
#[derive(Clone, Copy)]
struct Caller {
    /// Its tenant's place.
    place: u16,
    /// Whether it comes with a credit.
    credited: bool,
    generation: Generation,
}

impl CreditServer {
    /// A server with `cores` that run handlers, and nobody connected.
    #[must_use]
    pub fn new(config: Config, cores: u32, now: Instant) -> Self {
        let learnt = InFlightConfig { least: cores, ..InFlightConfig::default() };
        let fixed = |limit: u32| InFlightConfig { least: limit.max(1), most: limit.max(1), ..learnt };
        Self {
            cores: cores.max(1),
            sessions: Sessions::new(config.sessions),
            demand: Demand::new(&config, now),
            service: Service::new(config.objective, cores),
            surplus: Surplus::new(),
            shortage: ShortageNow::new(now),
            waiting: 0,
            in_service: 0,
            in_flight: InFlightLimit::new(config.in_flight.map_or(learnt, fixed), now),
            core_limit: u32::MAX,
            core_extra: 0,
            still_ns: 0.0,
            is_held: false,
            was_held: false,
            line: VecDeque::new(),
            unread: false,
            idle_ns: 0.0,
            held_ns: 0.0,
            counted: now,
            below: Level::OPEN,
            load: Load::default(),
            refused_before: 0.0,
            arrived_before: 0.0,
            blind: 1.0,
            stretch: 1,
            stretch_calls: 0,
            stretch_ends: Instant::MAX,
            held_back: None,
            stretch_began: now,
            stretch_ns: f64::MAX,
            admitted_wait: f64::MAX,
            longest_wait: f64::MAX,
            longest_wait_ns: whole(f64::MAX),
            supply: 0.0,
            config,
        }
    }

    /// What it measures and decides.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let time = |ns: f64| Duration::from_secs_f64((ns / 1e9).clamp(0.0, 1e6));
        Gauges {
            capacity_per_s: self.service.capacity().unwrap_or(0.0),
            supply_per_s: if self.demand.throttled() { self.supply } else { 0.0 },
            service: time(self.service.mean()),
            objective: time(self.service.objective()),
            longest_wait: time(self.service.longest_wait()),
            idle: self.surplus.idle(),
            waiting: self.waiting,
            in_service: self.in_service,
            in_flight: self.in_flight.in_flight(),
            in_flight_limit: self.in_flight.limit(),
            sessions: self.sessions.open_count(),
            credits: self.sessions.charged(),
        }
    }

    /// The level that a tenant's sessions are told now. O(tenants).
    #[must_use]
    pub fn level(&self, tenant: Tenant) -> Level {
        self.demand.level_of(tenant)
    }

    /// Counts idle core time up to `now`. Cores without a call while calls wait are on their way to one; while requests
    /// are unread, they read.
    #[inline]
    fn count_idle(&mut self, now: Instant) {
        if self.waiting == 0 && self.in_service < self.cores && !self.unread {
            self.idle_ns += f64::from(self.cores - self.in_service) * float(now.nanos_since(self.counted));
        }
        if self.is_held && self.in_service < self.cores {
            let idle = float(now.nanos_since(self.counted));
            self.held_ns += f64::from(self.cores - self.in_service) * idle;
            self.still_ns += idle;
            if self.still_ns > self.service.each() {
                // Those in flight wait for longer than such calls do, and cores have nothing to do: one more may start.
                self.still_ns = 0.0;
                self.core_extra = self.core_extra.saturating_add(1);
            }
        }
        self.counted = self.counted.max(now);
    }

    /// Looks whether calls are held back after either changed: those that wait, or those in flight.
    #[inline]
    fn look_held(&mut self, now: Instant) {
        let is_held = self.waiting > 0 && self.may_start() == 0;
        if is_held || self.is_held {
            self.in_flight.on_held(is_held, now);
        }
        self.is_held = is_held;
        self.was_held |= is_held;
    }

    /// What a call of the group takes from end to end when nothing holds it up.
    #[inline]
    fn unloaded(&self, group: u8) -> f64 {
        // Calls that nobody tells apart are taken for what all calls are.
        let quick = if group == 0 { None } else { self.in_flight.quick(group) };
        quick.map_or(self.service.unloaded(), |quick| span(quick) + self.service.round_trip())
    }

    /// Whether a core is free for the next call that comes.
    #[inline]
    fn has_idle_core(&self) -> bool {
        self.waiting == 0 && self.in_service < self.cores && self.may_start() > 0
    }

    /// How many more calls may be started.
    #[inline]
    fn may_start(&self) -> u32 {
        if self.core_limit == u32::MAX && self.in_flight.limit().is_none() && self.in_flight.room() > 0 {
            // Nothing is known that would bound them.
            return u32::MAX;
        }
        let for_cores = self.core_limit.saturating_add(self.core_extra);
        self.in_flight.room().min(for_cores.saturating_sub(self.in_flight.in_flight()))
    }

    /// Waiting calls that will be started, and not be shed because they have waited too long already.
    #[inline]
    fn worth_starting(&mut self, now: Instant) -> u32 {
        // Calls that were cancelled are still in the line: it is never longer than what waits.
        while self.line.len() > self.waiting as usize || self.line.front().is_some_and(|&start_by| start_by < now) {
            self.line.pop_front();
        }
        u32::try_from(self.line.len()).unwrap_or(u32::MAX)
    }

    /// A call left the line without being started.
    #[inline]
    fn left_waiting(&mut self) {
        if self.waiting == 0 {
            self.service.on_empty();
        }
    }

    /// Rarely runs: apart, so that what each call runs stays small.
    #[inline(never)]
    fn tick(&mut self, now: Instant) {
        let elapsed = float(self.demand.since_tick(now).max(1));
        let cores = f64::from(self.cores).max(self.load.parallel);
        let idle = (self.idle_ns / (elapsed * cores)).clamp(0.0, 1.0);
        self.idle_ns = 0.0;
        self.surplus.on_tick(idle, self.demand.throttled());
        // While calls are held back, cores work no more than what is in flight makes them.
        self.load.busy_ns += (elapsed * cores * (1.0 - idle) - self.held_ns).max(0.0);
        self.load.held_ns += self.held_ns;
        self.load.time_ns += elapsed * cores;
        let held = (self.held_ns / (elapsed * cores)).min(1.0);
        self.held_ns = 0.0;
        let full = self.load.is_full();
        if full {
            self.service.on_load(&self.load);
        }
        self.service.on_held(&self.load);
        if self.config.in_flight.is_none() {
            self.core_limit = self.service.core_limit(self.in_flight.quick_ns());
            self.core_extra -= self.core_extra.div_ceil(EXTRA_FADES);
        }
        if self.service.known() {
            self.longest_wait = self.service.longest_wait();
            self.longest_wait_ns = whole(self.longest_wait);
            self.admitted_wait = self.service.admitted_wait();
        }
        let factor = self.surplus.factor(self.service.room(), self.service.refusal_cost());
        let supply = match self.service.capacity() {
            Some(capacity) => Some(capacity * factor),
            // Messages may keep the cores so busy that no call is served and nothing is learnt: half of them must do,
            // and if that is still too much, half of these.
            None if full => {
                self.blind /= 2.0;
                Some(self.demand.wanted() * self.blind)
            }
            None => None,
        };
        self.supply = supply.unwrap_or(0.0);
        let refusals = self.load.refused * self.service.message() / self.load.time_ns.max(1.0);
        let served = (1.0 - refusals).max(SERVED_LEAST);
        let messages = self.load.arrived * self.service.message() / self.load.time_ns.max(1.0);
        let refused = (self.load.refused - self.refused_before) / (self.load.arrived - self.arrived_before).max(1.0);
        self.load.fade(FADE);
        (self.refused_before, self.arrived_before) = (self.load.refused, self.load.arrived);
        self.demand.tick(supply.filter(|_| full), served, self.service.room(), now);
        let throttled = self.demand.throttled();
        if throttled {
            let is_first = self.held_back.is_none_or(|last| now.nanos_since(last) > FORGOTTEN_NS);
            self.held_back = Some(now);
            if is_first {
                // Nobody's share is known, and until it is, who wants most gets most: a short stretch comes first.
                self.begin_stretch(now);
                self.stretch_calls = STRETCH - FIRST_STRETCH;
            }
        }
        // Where no call is ever served, messages are all that is known to take time.
        let messages = if self.service.known() { messages.min(1.0) } else { 1.0 - idle };
        self.shortage.on_tick(Shares { elapsed_ns: elapsed, idle, held, messages, refused, throttled }, now);
    }

    /// The wait up to which a call is admitted: less for those that are let through by chance, so that those which are
    /// let through for sure find room.
    #[inline]
    fn limit(&self, place: u16, priority: Priority, far_over: bool) -> f64 {
        let marginal = self.demand.throttled() && self.demand.level(place).chance(priority) < 1.0;
        let step_back = if marginal { STEP_BACK * self.demand.preferred().min(1.0) } else { 0.0 };
        // Likewise those of who sends far more than he may, for the others.
        self.admitted_wait * (1.0 - if far_over { STEP_BACK } else { step_back })
    }

    /// The chance at which a session has as many of its tenant's fair shares as one may have; above 1 if it has fewer
    /// anyway. Call only while somebody is held back.
    #[inline]
    fn cap(&self, place: u16, priority: Priority, gap: Option<f64>) -> f64 {
        gap.map_or(f64::MAX, |gap| self.demand.most_per_ns(place, priority) * gap)
    }

    /// When the call is no longer worth starting, and the wait that leaves.
    #[inline]
    fn start_by(&self, ask: &Ask, arrived: Instant) -> Instant {
        let wait = match ask.budget {
            None => self.longest_wait_ns,
            Some(budget) if self.has_idle_core() => whole(self.longest_wait.min(span(budget))),
            Some(budget) => whole(self.longest_wait.min(span(budget) - self.unloaded(ask.group))),
        };
        arrived.plus_nanos(wait)
    }

    #[inline]
    fn decide(&self, place: u16, ask: &Ask, far_over: bool, signal: Signal, predicted: f64) -> Option<ShedReason> {
        // An idle server refuses nobody for what it takes others to be served: else nothing might ever teach it better.
        if let Some(budget) = ask.budget
            && predicted + self.unloaded(ask.group) > span(budget)
            && (!self.has_idle_core() || budget.is_zero())
        {
            return Some(ShedReason::Deadline);
        }
        if !self.service.known() {
            return (self.waiting >= BLIND * self.cores).then_some(ShedReason::Delay);
        }
        let limit = self.limit(place, ask.priority, far_over);
        // The oldest may be one that will be shed for its age: its age says nothing about this one's wait then.
        let doomed = self.waiting as usize > self.line.len();
        let late = predicted > limit || ((!doomed || self.is_held) && span(signal.queueing_delay) > self.longest_wait);
        (late && self.waiting > 0).then_some(ShedReason::Delay)
    }

    /// Begins another stretch of calls, over which active sessions are counted, after so many or when they should long
    /// have come.
    #[cold]
    fn begin_stretch(&mut self, now: Instant) {
        self.stretch_calls = 0;
        self.stretch_ns = float(now.nanos_since(self.stretch_began).max(1));
        self.stretch_began = now;
        self.demand.on_stretch();
        self.stretch = if self.stretch == u16::MAX { 1 } else { self.stretch + 1 };
        self.stretch_ends = if self.demand.throttled() {
            now.plus_nanos(whole(2e9 * f64::from(STRETCH) / self.supply.max(1.0)))
        } else {
            Instant::MAX
        };
    }

    /// A call of `id` was read at `now`: what it stands for, and whose it is; `None` if there is no such
    /// session. One look-up of the session: this runs for each call.
    #[inline]
    fn hear(&mut self, id: SessionId, ask: &Ask, now: Instant) -> Option<(Heard, Caller)> {
        if self.stretch_calls >= STRETCH || now >= self.stretch_ends {
            self.begin_stretch(now);
        }
        let throttled = self.demand.throttled();
        let session = self.sessions.get(id)?;
        // A credit is for one call: beyond those that it has, a session's calls are not credited whatever they say.
        let credited = ask.credited && session.in_server < session.credits(now);
        session.in_server = session.in_server.saturating_add(1);
        let caller = Caller { place: session.tenant, credited, generation: session.generation() };
        let let_through_by = ask.claimed.unwrap_or(ask.priority);
        let told = if ask.aware && !credited { session.chance(let_through_by, now) } else { 1.0 };
        // One that was let through for another server's sake stands for fewer; for more it never does.
        let let_through = f64::from(ask.chance) / 65_536.0;
        let in_its_stead = ask.aware && !credited && (ask.claimed.is_some() || let_through > told);
        let told = if ask.aware { told.max(let_through.min(1.0)) } else { told };
        if session.stretch != self.stretch {
            (session.stretch, session.calls) = (self.stretch, 0);
            if throttled {
                // One that is heard less than once in a stretch stands for those that are not heard in it.
                let once = self.stretch_ns * told;
                self.demand.on_active(caller.place, session.gap(1.0).map_or(once, |gap| gap.min(once)));
            }
            if !ask.round_trip.is_zero() {
                self.service.on_round_trip(ask.round_trip);
            }
        }
        session.hear(told, now);
        let heard = if throttled {
            hear_throttled(session, &mut self.demand, ask, told, in_its_stead)
        } else {
            Heard { stands_for: wanted(told), held: false, far_over: false, refused_below: false, chance: told }
        };
        let heard = if self.below == Level::OPEN { heard } else { hear_below(session, self.below, ask, heard) };
        if !heard.held {
            session.calls = session.calls.saturating_add(1);
            self.stretch_calls += 1;
        }
        Some((heard, caller))
    }

    fn free_credits(&mut self, place: u16) -> u32 {
        let out = self.sessions.charged();
        if let Some(pool) = self.config.pool {
            return pool.saturating_sub(out);
        }
        let under_way = (self.service.longest_wait() + self.service.unloaded()) / 1e9;
        let most = CREDITED * self.demand.share(place).min(self.supply) * under_way;
        u32::try_from(whole(most)).unwrap_or(u32::MAX).saturating_sub(*self.demand.credits(place))
    }

    /// A call ended of that session, if it is still there: what it is told, for as long as a few of its
    /// calls take to come.
    #[inline]
    fn grant(&mut self, ticket: &Ticket, now: Instant) -> Grant {
        let (id, generation, priority) = (ticket.session, Mark::of(ticket).generation(), ticket.priority);
        let Some(session) = self.sessions.get(id).filter(|session| session.generation() == generation) else {
            return Grant::default();
        };
        // Copied field by field: whole, it would be read before it is written.
        let (place, in_server, gap_at) = (session.tenant, session.in_server, session.gap(1.0));
        let cap = if self.demand.throttled() { self.cap(place, priority, gap_at) } else { f64::MAX };
        let capped = cap < self.demand.level(place).chance(priority);
        let level =
            if capped { Level::at(priority, cap).min(self.demand.level(place)) } else { self.demand.level(place) };
        // Calls that are not let through are not heard: a lower chance means longer gaps.
        let chance = level.min(self.below).chance(priority);
        let gap = gap_at.map(|gap| gap / chance);
        let level = match gap {
            Some(gap) if self.demand.throttled() => self.steer(level, gap),
            _ => level,
        };
        let is_held_below = self.below < level;
        let level = level.min(self.below);
        let level = ticket.claimed.map_or(level, |claimed| level.in_claims(priority, claimed));
        // One that is so fast that it always has something in the server may go on having as much there.
        let is_fast = self.demand.throttled() && gap.is_some_and(|gap| gap < self.service.objective());
        let wanted = if is_fast && !capped && !is_held_below { in_server } else { 0 };
        let shortest = LEASE_OBJECTIVES * self.service.objective();
        let lease = if wanted > 0 {
            shortest
        } else {
            (LEASE_GAPS * gap.unwrap_or_else(|| self.mean_gap() / chance)).max(shortest)
        };
        let lease = whole(lease).clamp(1, LEASE_MOST_NS);
        let until = now.plus_nanos(lease);
        // Most want none, and nothing about credits has to be known to tell them so.
        let window = if wanted > 0 { self.grant_credits(id, place, wanted, until) } else { 0 };
        if let Some(session) = self.sessions.get(id) {
            session.level = level;
            session.capped = capped;
            session.lease_until = until;
            session.in_server = in_server.saturating_sub(1);
        }
        Grant { window: window.into(), level: level.to_wire(), lease: Duration::from_nanos(lease) }
    }

    /// As many of the `wanted` credits as are free for the session.
    fn grant_credits(&mut self, id: SessionId, place: u16, wanted: u16, until: Instant) -> u16 {
        let free = self.free_credits(place);
        let (window, more) = self.sessions.grant(id, wanted, free, until);
        *self.demand.credits(place) += u32::from(more);
        window
    }

    /// The level for one that comes back in `gap`: lower while the queue is longer than half of what it may be, higher
    /// while it is shorter. The less so the later it comes, for the queue will be another one then.
    #[inline]
    fn steer(&self, level: Level, gap: f64) -> Level {
        let reach = (self.admitted_wait / gap).min(1.0);
        let fill = (self.service.predict(self.waiting, self.is_held) / self.admitted_wait).min(1.0);
        level.times(1.0 + STEER * reach * (0.5 - fill))
    }

    /// The time between two calls of a session, if all were alike.
    #[inline]
    fn mean_gap(&self) -> f64 {
        let rate = if self.supply > 0.0 { self.supply } else { 1.0 };
        1e9 * f64::from(self.sessions.open_count()) / rate
    }

    #[inline]
    fn reclaim(&mut self, now: Instant) {
        // Nearly always nothing has ended: no more than that is looked at in each call's way.
        if self.sessions.next_end().is_some_and(|end| end <= now) {
            self.take_back(now);
        }
    }

    #[inline(never)]
    fn take_back(&mut self, now: Instant) {
        while let Some((tenant, credits)) = self.sessions.expire(now) {
            *self.demand.credits(tenant) -= u32::from(credits);
        }
    }
}

impl Server for CreditServer {
    fn open(&mut self, tenant: Tenant, _: Instant) -> Result<SessionId, Full> {
        let place = self.demand.enter(tenant, &self.config);
        self.sessions.open(place).inspect_err(|_| self.demand.leave(place))
    }

    fn close(&mut self, session: SessionId, _: Instant) {
        if let Some((tenant, credits)) = self.sessions.close(session) {
            *self.demand.credits(tenant) -= u32::from(credits);
            self.demand.leave(tenant);
        }
    }

    #[inline]
    fn on_request(&mut self, id: SessionId, ask: &Ask, signal: Signal, arrived: Instant, now: Instant) -> Verdict {
        self.count_idle(now);
        self.unread = !signal.queueing_delay.is_zero() && self.waiting == 0;
        self.reclaim(now);
        let Some((heard, caller)) = self.hear(id, ask, now) else {
            let mark = Mark::nobody().to_bits();
            let nobody = Ticket { start_by: now, mark, ..Ticket::new(id, ask, arrived) };
            return Verdict::Shed(nobody, ShedReason::Lost);
        };
        if self.waiting == 0 {
            // A core spent it on reading this call, and it was counted as idle.
            self.idle_ns -= self.service.message();
        }
        self.still_ns = (self.still_ns - self.service.message()).max(0.0);
        if self.demand.on_call(caller.place, ask.priority, heard.stands_for, caller.credited, now) {
            self.tick(now);
        }
        let ahead = self.worth_starting(now);
        self.load.arrived += 1.0;
        if self.waiting > 0 {
            self.load.waited += 1.0;
            self.load.parallel += (f64::from(self.in_service) - self.load.parallel) / PARALLEL;
        }
        let predicted = self.service.predict(ahead, self.is_held);
        let mark = Mark::new(caller.generation, whole(predicted));
        let start_by = self.start_by(ask, arrived);
        let chance = parts(heard.chance);
        let ticket = Ticket { start_by, chance, mark: mark.to_bits(), ..Ticket::new(id, ask, arrived) };
        let below = heard.refused_below.then_some(ShedReason::Priority);
        let held = heard.held.then_some(ShedReason::Share).or(below);
        if let Some(reason) = held.or_else(|| self.decide(caller.place, ask, heard.far_over, signal, predicted)) {
            self.load.refused += 1.0;
            return Verdict::Shed(at(Stage::Shed, ticket), reason);
        }
        self.waiting += 1;
        self.line.push_back(ticket.start_by);
        self.look_held(now);
        Verdict::Admit(ticket)
    }

    #[inline]
    fn on_start(&mut self, ticket: Ticket, now: Instant) -> Verdict {
        self.count_idle(now);
        self.waiting = self.waiting.saturating_sub(1);
        let (waited, predicted) = (now.nanos_since(ticket.arrived), Mark::of(&ticket).predicted_ns());
        // A call that nothing holds up but its own haste is started: refusing it would help nobody.
        if now > ticket.start_by && waited > 0 {
            if self.was_held {
                self.service.on_outwaited(waited, predicted);
            }
            self.left_waiting();
            self.look_held(now);
            self.load.refused += 1.0;
            return Verdict::Shed(at(Stage::Shed, ticket), ShedReason::Deadline);
        }
        self.line.pop_front();
        let for_room = core::mem::take(&mut self.was_held);
        self.service.on_started(Start { waited, predicted, left: self.waiting, for_room }, now);
        self.in_service += 1;
        self.still_ns = 0.0;
        self.load.started += 1.0;
        let began = Some(self.in_flight.on_begin(ticket.group, now));
        self.look_held(now);
        Verdict::Admit(Ticket { started: now, began, ..at(Stage::Running, ticket) })
    }

    fn on_pause(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        if Mark::of(&ticket).stage() != Stage::Running {
            return ticket;
        }
        self.count_idle(now);
        self.in_service = self.in_service.saturating_sub(1);
        if ticket.began.is_some() {
            self.in_flight.on_gone(now);
            self.look_held(now);
        }
        Ticket { began: None, ..at(Stage::Paused, ticket) }
    }

    fn on_resume(&mut self, ticket: Ticket, paused: Instant, now: Instant) -> Ticket {
        if Mark::of(&ticket).stage() != Stage::Paused {
            return ticket;
        }
        self.count_idle(now);
        self.in_service += 1;
        // As if everything had happened that much later: a client that sends slowly is no slow service.
        let pause = now.nanos_since(paused);
        let later = |at: Instant| at.plus_nanos(pause);
        let began = Some(self.in_flight.on_begin(ticket.group, now));
        self.look_held(now);
        let (arrived, started) = (later(ticket.arrived), later(ticket.started));
        Ticket { arrived, started, began, ..at(Stage::Running, ticket) }
    }

    #[inline]
    fn on_wait(&mut self, ticket: Ticket, now: Instant) -> Ticket {
        if Mark::of(&ticket).stage() != Stage::Running {
            return ticket;
        }
        self.count_idle(now);
        self.in_service = self.in_service.saturating_sub(1);
        at(Stage::Paused, ticket)
    }

    #[inline]
    fn on_wake(&mut self, ticket: Ticket, waits: Instant, now: Instant) -> Ticket {
        if Mark::of(&ticket).stage() != Stage::Paused {
            return ticket;
        }
        self.count_idle(now);
        self.in_service += 1;
        self.still_ns = 0.0;
        Ticket { waited: ticket.waited + now.since(waits), ..at(Stage::Running, ticket) }
    }

    #[inline]
    fn on_level_below(&mut self, level: u32) {
        self.below = Level::from_wire(level);
    }

    #[inline]
    fn room(&self) -> u32 {
        self.may_start()
    }

    fn on_paper(&mut self, is_on_paper: bool, now: Instant) {
        let least = if is_on_paper { u32::MAX } else { self.cores };
        if self.config.in_flight.is_none() {
            let learnt =
                InFlightConfig { least, most: InFlightConfig::default().most.max(least), ..InFlightConfig::default() };
            self.in_flight.forget(learnt, now);
            (self.core_limit, self.core_extra) = (u32::MAX, 0);
        }
    }

    #[inline]
    fn on_done(&mut self, ticket: Ticket, done: Done, now: Instant) -> Grant {
        self.count_idle(now);
        match Mark::of(&ticket).stage() {
            Stage::Waiting => {
                self.waiting = self.waiting.saturating_sub(1);
                self.left_waiting();
            }
            Stage::Running => self.in_service = self.in_service.saturating_sub(1),
            Stage::Shed | Stage::Paused => {}
        }
        match ticket.began {
            Some(began) if done == Done::Served => self.in_flight.on_end(began, now.since(ticket.started), now),
            Some(_) => self.in_flight.on_gone(now),
            None => {}
        }
        self.look_held(now);
        if done == Done::Served {
            let waited = nanos(ticket.waited);
            let (service, in_all) = (now.nanos_since(ticket.started), now.nanos_since(ticket.arrived));
            self.service.on_served(service.saturating_sub(waited), in_all.saturating_sub(waited), waited, now);
        }
        self.grant(&ticket, now)
    }

    #[inline]
    fn next_timeout(&self) -> Option<Instant> {
        self.sessions.next_end()
    }

    #[inline]
    fn on_timeout(&mut self, _: Signal, now: Instant) {
        self.reclaim(now);
    }

    fn view(&self, signal: Signal, now: Instant) -> Option<View> {
        let gauges = self.gauges();
        let is_empty = self.waiting == 0 && gauges.in_flight == 0;
        let is_over = is_empty && self.shortage.is_quiet(now);
        // What was said last holds for nobody any more when no call has come for a while.
        let gauges = if is_over { Gauges { supply_per_s: 0.0, idle: 1.0, ..gauges } } else { gauges };
        let Believed { what, since, idle, held, messages } = self.shortage.at(is_empty, now);
        let short = Short {
            what,
            since,
            idle_share: idle,
            held_share: held,
            message_share: messages,
            queueing_delay: signal.queueing_delay,
            objective: gauges.objective,
            in_flight: gauges.in_flight,
            limit: gauges.in_flight_limit,
        };
        let send_share = if is_over { 1.0 } else { self.demand.least_level().chance(Priority::DEFAULT) };
        Some(View { gauges, send_share, short })
    }
}

/// For how many wanted calls one of a session stands that was told to let calls through with a chance of `told`, and
/// whether it is held back since it does not do it itself, or since the server does it `in_its_stead`. While somebody is
/// held back.
#[inline]
fn hear_throttled(session: &mut Session, demand: &mut Demand, ask: &Ask, told: f64, in_its_stead: bool) -> Heard {
    if ask.aware && session.capped && session.calls >= demand.most_calls(session.tenant, ask.priority) {
        // It does not do as it was told. What is held back does not count: nobody else shall pay for it.
        demand.on_held(wanted(told));
        return Heard { stands_for: 0.0, held: true, far_over: true, refused_below: false, chance: told };
    }
    let level = demand.level(session.tenant);
    let chance = level.chance(ask.priority);
    let cap = session.gap(1.0).map_or(f64::MAX, |gap| demand.most_per_ns(session.tenant, ask.priority) * gap);
    let over = cap < chance;
    if ask.aware {
        // One that is capped counts as if it wanted no more than it may have.
        let stands_for = wanted(if over { told.max(chance) } else { told });
        // What its client could not know is done by the server in its stead.
        let held = in_its_stead && !is_first(session, demand, ask.priority) && !session.passes(chance.min(cap) / told);
        // Of one whose calls were thinned here no more come than should.
        let chance = if in_its_stead { told.min(chance.min(cap)) } else { told };
        return Heard {
            stands_for,
            held,
            far_over: !in_its_stead && cap < FAR_OVER * told,
            refused_below: false,
            chance,
        };
    }
    // Kept to the level by the server in its stead.
    let held = !is_first(session, demand, ask.priority) && !session.passes(chance.min(cap));
    let stands_for = if over { cap / chance } else { 1.0 };
    demand.on_held(1.0 - stands_for);
    // What is let through beyond the capacity, so that no core idles, would all be theirs that want so much more.
    let far_over = cap < FAR_OVER * chance && !level.is_sure(ask.priority);
    Heard { stands_for, held, far_over, refused_below: false, chance: chance.min(cap).min(1.0) }
}

/// What those that the handlers call would refuse is refused before any work, and by the chance that is missing.
fn hear_below(session: &mut Session, below: Level, ask: &Ask, heard: Heard) -> Heard {
    let chance = below.chance(ask.priority);
    if heard.held || chance >= heard.chance {
        return heard;
    }
    Heard { refused_below: !session.passes(chance / heard.chance), chance, ..heard }
}

/// Whether a call of `priority` goes before others of its session, for it is let through for sure and the session has had
/// less than its max-min share lately: however many others it wants besides.
#[inline]
fn is_first(session: &Session, demand: &Demand, priority: Priority) -> bool {
    demand.level(session.tenant).is_sure(priority) && f64::from(session.calls) < demand.fair_calls(session.tenant)
}

/// Calls that are wanted for each that is let through with `chance`; mostly one, and then nothing is divided.
#[inline]
fn wanted(chance: f64) -> f64 {
    if chance < 1.0 { 1.0 / chance } else { 1.0 }
}

/// A chance from 0 to 1 in 1/65536.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to at most 2^16")]
#[inline]
fn parts(chance: f64) -> u32 {
    (chance.clamp(0.0, 1.0) * f64::from(CERTAIN)) as u32
}

/// The ticket of a call that has come to another stage.
#[inline]
fn at(stage: Stage, ticket: Ticket) -> Ticket {
    Ticket { mark: Mark::of(&ticket).at(stage).to_bits(), ..ticket }
}

/// Nanoseconds in whole numbers; as much as a ticket's mark holds, eighteen minutes, at most.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
#[inline]
fn whole(ns: f64) -> u64 {
    const MOST: i64 = Mark::LONGEST_NS.cast_signed();
    // By way of a signed number, since processors convert to these.
    (ns as i64).clamp(0, MOST) as u64
}

#[cfg(test)]
mod hangs;
#[cfg(test)]
mod model;

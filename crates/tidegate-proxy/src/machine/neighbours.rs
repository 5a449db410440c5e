//! All tenants and all resources of one core.
//!
//! A tenant may take what it likes as long as nobody else wants it, and what it is guaranteed whatever the others do.
//! Each resource is an overflow token bucket (`overflow`); work is admitted if all that it needs can be had.
//!
//! Time of the core is one capacity: handshakes and requests both draw on it. It is learnt
//! ([`on_idle`](Neighbours::on_idle)), and so handshakes and requests need no limit of their own. Work is charged by what
//! such work cost before ([`expected_cost`](Neighbours::expected_cost)) and [settled](Neighbours::settle) when its true
//! cost is known.
//!
//! | module | its one job |
//! |---|---|
//! | `capacity` | how much time of its core a proxy can give |
//! | `config` | settings |
//! | `snapshot` | what is shown |
//! | `sources` | where names come from that anybody can make up |
//! | `table` | who the tenants are |
//! | `verdict` | what is asked, what is answered |
//! | `view` | from the state to what is shown |
//!
//! Capacities are those of one core; several cores, or several proxies, do not share them.

mod capacity;
mod config;
mod snapshot;
mod sources;
mod table;
mod verdict;
mod view;

use core::time::Duration;

use tidegate_core::share::{Answer, Fills, NONE, Overflow, Pass, Pay, Place, Terms};
use tidegate_core::{Instant, number};

use self::capacity::Learner;
use self::sources::Sources;
use self::table::Table;
use super::resource::{Kind, Resource};
use crate::machine::resource::grains;

pub use self::config::{Capacity, Mode, NeighboursConfig};
pub use self::snapshot::{
    LoanView, RefusedView, ResourceView, SNAPSHOT_LOANS_MAX, SNAPSHOT_TENANTS_MAX, Snapshot, TenantView, UseView,
};
pub use self::sources::Source;
pub use self::verdict::{Cause, Claimant, Lane, Refusal, Stage, Tenant, Verdict};
pub use self::view::Walk;
pub use tidegate_core::share::{Ledger, Sums, Tokens};

/// Tenants whose shares are set in one call of `on_timeout`, some 100 us, before other work has its turn.
const SLICE: usize = 1_024;
/// From slice to slice: they take a twentieth of the core.
const SLICE_GAP: Duration = Duration::from_millis(2);
/// The same as a number of times that a slice took; on a slow core it counts.
const GAP_TIMES: u32 = 20;
/// A slice that took very long, since it was interrupted, does not hold up the next for longer.
const SLICE_GAP_MAX: Duration = Duration::from_millis(20);
/// If the timer is so late, questions do its work, so many tenants each.
const LATE: Duration = Duration::from_millis(25);
const LATE_SLICE: usize = 64;
/// What a handshake is taken to cost before the first was seen: RSA-2048 on a slow core.
const HANDSHAKE_NS: u64 = 1_000_000;
/// A request, as well.
const REQUEST_NS: u64 = 50_000;
/// Bytes of one usual piece of work: a full TLS record there and back.
const PIECE_BYTES: u64 = 32 << 10;
/// A whole core, in nanoseconds of each second.
const CORE_NS: u64 = 1_000_000_000;
/// How much a new cost counts in the mean of all tenants.
const LATEST: f64 = 1.0 / 32.0;

/// The limiter of one core.
///
/// A question is O(1) and allocates only when a tenant asks for a resource for the first time.
#[derive(Clone, Debug)]
pub struct Neighbours {
    config: NeighboursConfig,
    table: Table,
    sources: Sources,
    resources: [Overflow; Resource::COUNT],
    /// Mean cost of a piece of work of all tenants, in units; 0 if none was seen.
    costs: [f64; Resource::COUNT],
    learner: Learner,
    /// Nanoseconds of processor time that the core's threads may use in each second.
    core_ns: u64,
    /// The work of setting shares: which resource, and how far.
    pass: Option<(usize, Pass)>,
    fills: Fills,
    closed: Vec<u32>,
    /// When the last tick ended, and how long it was.
    ticked: Instant,
    elapsed: Duration,
    /// When the next one ends.
    due: Instant,
    /// When there is something to do.
    wake: Instant,
}

impl Neighbours {
    /// Nobody is there.
    #[must_use]
    pub fn new(config: NeighboursConfig, now: Instant) -> Self {
        let terms = terms(&config);
        let capacities = config.capacities;
        let resources = Resource::ALL.map(|resource| {
            let capacity = limit_of(resource, capacities[resource.index()], CORE_NS);
            let mut made = Overflow::new(resource.kind(), grains(resource), terms, capacity, now);
            made.set_piece(first_cost(resource));
            // Nearly every question is about it.
            match resource {
                Resource::EventTime => made.by_owner(),
                Resource::Connections => made.recallable(),
                _ => made,
            }
        });
        let mut made = Self {
            table: Table::new(config.tenants_max),
            sources: Sources::default(),
            resources,
            costs: [0.0; Resource::COUNT],
            learner: Learner::new(),
            core_ns: CORE_NS,
            pass: None,
            fills: Fills::default(),
            closed: Vec::new(),
            ticked: now,
            elapsed: config.tick,
            due: now + config.tick,
            wake: now + config.tick,
            config,
        };
        made.set_weights();
        made
    }

    /// Puts other settings in force; who has used what stays known.
    pub fn reconfigure(&mut self, config: NeighboursConfig, now: Instant) {
        self.config = config;
        self.table.set_most(self.config.tenants_max);
        let terms = terms(&self.config);
        for resource in Resource::ALL {
            let at = resource.index();
            let capacity = limit_of(resource, self.config.capacities[at], self.time_ns());
            self.resources[at].set_terms(terms, now);
            self.resources[at].set_capacity(capacity, now);
        }
        for at in self.table.forget_weights() {
            self.reweigh(at);
        }
        self.set_weights();
    }

    /// The tenant called `name`, which is entered if it is new; [`Tenant::OTHER`] if the table is full of tenants that
    /// are not idle, or the name is empty or longer than 255 bytes.
    pub fn tenant(&mut self, name: &str, now: Instant) -> Tenant {
        let Self { table, sources, .. } = self;
        let tenant = table.resolve(name, |crowd| sources.leave(crowd));
        if self.crowd_of(tenant) != NONE {
            // Nobody made it up after all.
            self.stand_in(tenant, NONE, now);
        }
        tenant
    }

    /// The tenant called `name`, which anybody can make up, as said by `source`: all such names of one source share like
    /// one tenant. Of two sources that say a name, the one with fewer has it. Where a source says more names than an
    /// eighth of the table has room for, or all sources together more than seven eighths, idle ones lose their places;
    /// without such ones the rest of a source's names share one place.
    pub fn tenant_from(&mut self, name: &str, source: Source, now: Instant) -> Tenant {
        if let Some(tenant) = self.table.look_up(name) {
            self.settle_source(tenant, source, now);
            return tenant;
        }
        let may_have_more = self.table.has_room_for(self.sources.names_of(source));
        if may_have_more && self.table.has_room_for_made_up(self.sources.names()) {
            return self.enter_from(name, source, now);
        }
        let own = self.sources.crowd_of(source);
        let these = |crowd| if may_have_more { crowd != NONE } else { crowd == own };
        if let Some((tenant, before)) = self.table.take_over(name, these) {
            self.sources.leave(before);
            let crowd = self.sources.enter(source);
            self.stand_in(tenant, crowd, now);
            return tenant;
        }
        self.tenant_from_rest(&source.rest(), source, now)
    }

    #[cold]
    fn tenant_from_rest(&mut self, rest: &str, source: Source, now: Instant) -> Tenant {
        if let Some(tenant) = self.table.look_up(rest) {
            return tenant;
        }
        let has_room = self.table.has_room_for_rest(self.sources.names());
        if has_room { self.enter_from(rest, source, now) } else { Tenant::OTHER }
    }

    fn enter_from(&mut self, name: &str, source: Source, now: Instant) -> Tenant {
        let Self { table, sources, .. } = self;
        let tenant = table.resolve(name, |crowd| sources.leave(crowd));
        if table.index(tenant) != 0 {
            let crowd = self.sources.enter(source);
            self.stand_in(tenant, crowd, now);
        }
        tenant
    }

    /// Puts a tenant that `source` speaks for where it belongs.
    #[inline]
    fn settle_source(&mut self, tenant: Tenant, source: Source, now: Instant) {
        let crowd = self.crowd_of(tenant);
        if crowd != NONE && !self.sources.is_of(crowd, source) {
            self.compare_sources(tenant, crowd, source, now);
        }
    }

    #[cold]
    fn compare_sources(&mut self, tenant: Tenant, crowd: u32, source: Source, now: Instant) {
        if self.sources.names_of(source) + 1 < self.sources.names_in(crowd) {
            let to = self.sources.enter(source);
            self.sources.leave(crowd);
            self.stand_in(tenant, to, now);
        }
    }

    #[inline]
    fn crowd_of(&self, tenant: Tenant) -> u32 {
        self.table.slot(self.table.index(tenant)).crowd
    }

    /// Who takes turns for a tenant: itself, or its source if that makes its name up.
    #[must_use]
    #[inline]
    pub fn claimant(&self, tenant: Tenant) -> Claimant {
        match self.crowd_of(tenant) {
            NONE => Claimant::Tenant(tenant),
            crowd => Claimant::Source(crowd),
        }
    }

    /// The source that makes a tenant's name up, if one does.
    #[must_use]
    pub fn source_of(&self, tenant: Tenant) -> Option<Source> {
        self.sources.source(self.crowd_of(tenant))
    }

    /// Moves a tenant to `crowd`, of whose names it is one already.
    fn stand_in(&mut self, tenant: Tenant, crowd: u32, now: Instant) {
        let slot = self.table.index(tenant);
        for at in 0..Resource::COUNT {
            if self.table.slot(slot).cells[at] != NONE {
                let place = self.place(slot, at);
                self.resources[at].move_to(place, crowd, now);
            }
        }
        let before = core::mem::replace(&mut self.table.slot_mut(slot).crowd, crowd);
        if crowd == NONE {
            self.sources.leave(before);
        }
    }

    /// The tenant called `name`, if it is there.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Tenant> {
        self.table.handle_of(name)
    }

    /// What a tenant is called; one that lost its place is everybody else.
    #[must_use]
    pub fn name_of(&self, tenant: Tenant) -> &str {
        self.name(self.table.index(tenant))
    }

    /// True if the tenant has its place still: then a lookup by its name would find the same. Like one, it keeps the place.
    pub fn is_here(&mut self, tenant: Tenant) -> bool {
        self.table.touch(tenant)
    }

    /// The same for a tenant that `source` speaks for; one with a name that anybody can make up stands, from then on, where
    /// [`tenant_from`](Self::tenant_from) would put it.
    #[inline]
    pub fn is_here_from(&mut self, tenant: Tenant, source: Source, now: Instant) -> bool {
        let is_here = self.table.touch(tenant);
        if is_here {
            self.settle_source(tenant, source, now);
        }
        is_here
    }

    /// The tenant's share beside those of others.
    #[must_use]
    pub fn weight(&self, tenant: Tenant) -> u32 {
        self.table.slot(self.table.index(tenant)).weight
    }

    /// May a tenant take all of `costs` now? If so it is charged, and gauges are held until [`release`](Self::release).
    ///
    /// Amounts are in the resource's units; of counters those of the estimate. A resource that occurs twice counts twice.
    #[inline]
    pub fn try_take(&mut self, tenant: Tenant, stage: Stage, costs: &[(Resource, u64)], now: Instant) -> Verdict {
        match self.take(tenant, costs, now) {
            Ok((lane, owed)) => Verdict::Admit { lane, owed },
            Err(short) => self.refuse(&short, stage, now),
        }
    }

    /// The same for work that can wait: `None` if it should, and [ask again](Self::try_again), since time brings what there is
    /// not enough of. What somebody has to give back first is refused.
    #[inline]
    pub fn try_take_or_wait(
        &mut self,
        tenant: Tenant,
        stage: Stage,
        costs: &[(Resource, u64)],
        now: Instant,
    ) -> Option<Verdict> {
        let short = match self.take(tenant, costs, now) {
            Ok((lane, owed)) => return Some(Verdict::Admit { lane, owed }),
            Err(short) => short,
        };
        if self.config.mode != Mode::Restrict || Resource::ALL[short.at].kind() == Kind::Gauge {
            return Some(self.refuse(&short, stage, now));
        }
        self.await_all(tenant, costs, now);
        // As far as it came, the question has counted it already.
        for at in each(short.asked).take_while(|at| *at <= short.at) {
            if Resource::ALL[at].kind() == Kind::Counter && !self.is_uncounted(at) {
                let place = self.place(short.slot, at);
                self.resources[at].unwant(place, short.wanted[at]);
            }
        }
        None
    }

    /// Counts work that waits: as wanted, and as more than its tenant may have. To be told once in each [tick](Self::ticked)
    /// in which it waits.
    pub fn await_all(&mut self, tenant: Tenant, costs: &[(Resource, u64)], now: Instant) {
        let (wanted, asked) = merged(costs);
        let slot = self.table.index(tenant);
        for at in each(asked).filter(|at| Resource::ALL[*at].kind() == Kind::Counter) {
            let place = self.cell(slot, at, now);
            self.resources[at].want(place, wanted[at]);
            if is_muting(at) {
                self.resources[at].defer(place, wanted[at]);
            }
        }
    }

    /// When the tick began that lasts.
    #[must_use]
    pub fn ticked(&self) -> Instant {
        self.ticked
    }

    /// May work go on that waits, and was counted as wanted? If so it is charged; else the resource that it waits for. With
    /// `spare` the core has nothing else to do: then as much of its time can be had as was learnt that there is, and nobody
    /// is charged for it.
    pub fn try_again(
        &mut self,
        tenant: Tenant,
        costs: &[(Resource, u64)],
        spare: bool,
        now: Instant,
    ) -> Result<Lane, Resource> {
        if self.config.mode == Mode::Off {
            self.hold_all(tenant, costs, now);
            return Ok(Lane::Share);
        }
        let (wanted, asked) = merged(costs);
        let slot = self.table.index(tenant);
        let mut pays = [Pay::Own; Resource::COUNT];
        let is_dry = self.config.mode == Mode::Stats;
        for at in each(asked) {
            if self.is_uncounted(at) {
                continue;
            }
            let cell = self.cell(slot, at, now);
            let answer = self.resources[at].ask(cell, wanted[at], now);
            if Resource::ALL[at].kind() == Kind::Counter {
                self.resources[at].unwant(cell, wanted[at]);
            }
            pays[at] = match answer {
                Answer::Paid(pay) => pay,
                Answer::Beyond if self.may_go_beyond(slot, at) => Pay::Pool,
                _ if is_dry || (spare && self.is_learnt_time(at)) => Pay::Nobody,
                Answer::Beyond | Answer::Short => return Err(Resource::ALL[at]),
            };
        }
        self.charge(slot, (wanted, asked), pays, now);
        Ok(if is_dry { Lane::Share } else { Lane::Overflow })
    }

    /// The same for work that would be done in time that nobody else uses: with `spare` there is such, and then nothing that
    /// lacks the core's time alone is refused, nor charged to anybody.
    pub fn try_take_or_spare(
        &mut self,
        tenant: Tenant,
        stage: Stage,
        costs: &[(Resource, u64)],
        spare: bool,
        now: Instant,
    ) -> Verdict {
        let short = match self.take(tenant, costs, now) {
            Ok((lane, owed)) => return Verdict::Admit { lane, owed },
            Err(short) => short,
        };
        // What the question has counted as wanted stays counted; the second one counts nothing.
        let is_idle_time = spare && self.config.mode == Mode::Restrict && self.is_learnt_time(short.at);
        match is_idle_time.then(|| self.try_again(tenant, costs, true, now)) {
            Some(Ok(lane)) => Verdict::Admit { lane, owed: false },
            Some(Err(_)) | None => self.refuse(&short, stage, now),
        }
    }

    /// Whether all of `costs` can be had; if so it is charged. Says in which lane, and whether it is owed.
    #[inline]
    fn take(&mut self, tenant: Tenant, costs: &[(Resource, u64)], now: Instant) -> Result<(Lane, bool), Short> {
        if self.config.mode == Mode::Off {
            self.hold_all(tenant, costs, now);
            return Ok((Lane::Share, true));
        }
        if now >= self.wake + LATE {
            self.advance(LATE_SLICE, now);
        }
        // Slot and time come from memory together, not one after the other.
        self.resources[Resource::EventTime.index()].fetch(Table::number_of(tenant));
        let (wanted, asked) = merged(costs);
        let slot = self.table.index(tenant);
        let mut pays = [Pay::Own; Resource::COUNT];
        let (mut lane, mut owed) = (Lane::Share, true);
        for at in each(asked) {
            let cell = self.cell(slot, at, now);
            if self.is_uncounted(at) {
                continue;
            }
            match self.resources[at].ask(cell, wanted[at], now) {
                Answer::Paid(pay) => pays[at] = pay,
                Answer::Beyond if self.may_go_beyond(slot, at) => pays[at] = Pay::Pool,
                Answer::Beyond | Answer::Short => return Err(Short { slot, at, wanted, asked }),
            }
            let is_noisy = is_muting(at) && self.resources[at].is_noisy(cell);
            if is_noisy || (is_muting(at) && self.resources[at].stands_back(cell, pays[at], now)) {
                lane = Lane::Overflow;
            }
            owed &= !is_noisy && !matches!(pays[at], Pay::Pool | Pay::Fresh);
        }
        self.charge(slot, (wanted, asked), pays, now);
        match self.config.mode {
            Mode::Restrict => Ok((lane, owed)),
            Mode::Off | Mode::Stats => Ok((Lane::Share, true)),
        }
    }

    /// Charges what can be had to who pays.
    #[inline]
    fn charge(
        &mut self,
        slot: usize,
        (wanted, asked): ([u64; Resource::COUNT], u32),
        pays: [Pay; Resource::COUNT],
        now: Instant,
    ) {
        for at in each(asked) {
            if self.is_uncounted(at) {
                let requests = &mut self.table.slot_mut(slot).requests;
                *requests = requests.saturating_add(u32::try_from(wanted[at]).unwrap_or(u32::MAX));
                continue;
            }
            let place = self.cell(slot, at, now);
            self.resources[at].commit(place, wanted[at], pays[at]);
        }
    }

    /// Whether it is time of the core, of which what there is was found out.
    fn is_learnt_time(&self, at: usize) -> bool {
        Resource::ALL[at].is_time() && self.config.capacities[at] == Capacity::Learnt
    }

    /// Corrects a charge, `estimated` being what was charged for one whole piece of work and `actual` what it took, and
    /// learns from it what such work costs.
    pub fn settle(&mut self, tenant: Tenant, resource: Resource, estimated: u64, actual: u64, now: Instant) {
        self.correct(tenant, resource, estimated, actual, now);
        self.learn(tenant, resource, actual, now);
    }

    /// Gives back what was charged for work that was not done. It says nothing about what such work costs.
    pub fn give_back(&mut self, tenant: Tenant, resource: Resource, estimated: u64, now: Instant) {
        self.correct(tenant, resource, estimated, 0, now);
    }

    /// Takes an admission back for which there was no room after all: `costs` are given back, and a refusal for want of
    /// `resource` is counted. They were wanted all the same: a tenant that goes on asking stays muted.
    pub fn turn_away(
        &mut self,
        tenant: Tenant,
        stage: Stage,
        resource: Resource,
        costs: &[(Resource, u64)],
        retry_after: Duration,
        now: Instant,
    ) -> Refusal {
        for &(resource, amount) in costs {
            match resource.kind() {
                Kind::Counter => self.give_back(tenant, resource, amount, now),
                Kind::Gauge => self.release(tenant, resource, amount, now),
            }
        }
        let slot = self.table.index(tenant);
        let cell = self.cell(slot, resource.index(), now);
        if self.config.mode != Mode::Off {
            for &(wanted, amount) in costs.iter().filter(|(wanted, _)| wanted.kind() == Kind::Counter) {
                let time = (wanted == Resource::HandshakeTime).then_some(Resource::EventTime);
                for at in [Some(wanted), time].into_iter().flatten().map(Resource::index) {
                    let cell = self.cell(slot, at, now);
                    self.resources[at].miss(cell, amount, self.ticked, now);
                }
            }
            self.resources[resource.index()].count_refused(cell, true);
            let refused = &mut self.table.slot_mut(slot).refused[stage.index()];
            *refused = refused.saturating_add(1);
        }
        let limiter = &self.resources[resource.index()];
        let cost = costs.iter().find(|(wanted, _)| *wanted == resource).map(|(_, cost)| *cost);
        Refusal {
            resource,
            cause: Cause::OverShare,
            retry_after,
            share: limiter.share(cell),
            limit: limiter.capacity().map_or(0, number::whole),
            cost: cost.unwrap_or_else(|| self.expected_cost(tenant, resource)),
        }
    }

    /// Counts that another limit refused something of `tenant`.
    pub fn refused_elsewhere(&mut self, tenant: Tenant, stage: Stage) {
        let slot = self.table.index(tenant);
        let refused = &mut self.table.slot_mut(slot).refused[stage.index()];
        *refused = refused.saturating_add(1);
    }

    /// Learns what one whole piece of work cost, whose parts were [corrected](Self::correct) as they came.
    pub fn learn(&mut self, tenant: Tenant, resource: Resource, cost: u64, now: Instant) {
        if self.config.mode == Mode::Off {
            return;
        }
        let (slot, at) = (self.table.index(tenant), resource.index());
        let cell = self.cell(slot, at, now);
        self.resources[at].learn_cost(cell, cost);
        let (mean, cost) = (self.costs[at], number::float(cost));
        self.costs[at] = if mean > 0.0 { mean + LATEST * (cost - mean) } else { cost };
    }

    /// Corrects a charge for a part of a piece of work, of which `actual` was used. What was never charged is charged with
    /// an estimate of 0.
    pub fn correct(&mut self, tenant: Tenant, resource: Resource, estimated: u64, actual: u64, now: Instant) {
        if self.config.mode == Mode::Off {
            return;
        }
        let slot = self.table.index(tenant);
        let at = resource.index();
        let cell = self.cell(slot, at, now);
        if self.is_uncounted(at) {
            let used = &mut self.table.slot_mut(slot).requests;
            let corrected = u64::from(*used).saturating_add(actual).saturating_sub(estimated);
            *used = u32::try_from(corrected).unwrap_or(u32::MAX);
            return;
        }
        self.resources[at].settle(cell, estimated, actual, now);
        if resource == Resource::HandshakeTime {
            let time = Resource::EventTime.index();
            let cell = self.cell(slot, time, now);
            self.resources[time].settle(cell, estimated, actual, now);
        }
        if resource.is_time() {
            // What was only charged may wait for long, and would look like time that there was.
            self.learner.on_work(actual);
        }
    }

    /// Charges a tenant with the `ns` of processor time that it took to refuse it at its hello, as far as its own tokens go:
    /// a flood of hellos comes first out of the share of whose name they have. Half of what a handshake is expected to take
    /// is left to it: too little for one, and enough for requests on connections that are there. It is no demand. Returns
    /// what was charged, of the time of handshakes and of all time.
    pub fn charge_refusal(&mut self, tenant: Tenant, ns: u64, now: Instant) -> [u64; 2] {
        if self.config.mode != Mode::Restrict {
            return [0; 2];
        }
        let keep = self.expected_cost(tenant, Resource::HandshakeTime) / 2;
        let slot = self.table.index(tenant);
        let charged = [Resource::HandshakeTime, Resource::EventTime].map(|resource| {
            let cell = self.cell(slot, resource.index(), now);
            self.resources[resource.index()].fine(cell, ns, keep, now)
        });
        self.learner.on_work(charged[1]);
        charged
    }

    /// Without limits too it is known what is held: it is given back when there may be some again.
    fn hold_all(&mut self, tenant: Tenant, costs: &[(Resource, u64)], now: Instant) {
        for &(resource, cost) in costs.iter().filter(|(resource, _)| resource.kind() == Kind::Gauge) {
            self.hold(tenant, resource, cost, now);
        }
    }

    /// Holds `amount` of a gauge for a tenant without asking; of a counter uses it.
    pub fn hold(&mut self, tenant: Tenant, resource: Resource, amount: u64, now: Instant) {
        // Who holds nothing is not here: others are not to leave room for it.
        if amount == 0 {
            return;
        }
        if resource.kind() == Kind::Counter {
            return self.correct(tenant, resource, 0, amount, now);
        }
        let slot = self.table.index(tenant);
        let cell = self.cell(slot, resource.index(), now);
        self.resources[resource.index()].hold(cell, amount, Pay::Own);
    }

    /// Holds `amount` of a gauge for a tenant if it may have so much now; true if it does. A no counts as wanted, and not as
    /// a refusal: who asks so can do without.
    pub fn try_hold(&mut self, tenant: Tenant, resource: Resource, amount: u64, now: Instant) -> bool {
        if self.config.mode != Mode::Restrict {
            self.hold(tenant, resource, amount, now);
            return true;
        }
        let (slot, at) = (self.table.index(tenant), resource.index());
        let cell = self.cell(slot, at, now);
        let pay = match self.resources[at].ask(cell, amount, now) {
            Answer::Paid(pay) => pay,
            Answer::Beyond if self.may_go_beyond(slot, at) => Pay::Pool,
            Answer::Beyond | Answer::Short => return false,
        };
        self.resources[at].commit(cell, amount, pay);
        true
    }

    /// Gives `amount` of a gauge back. More than the tenant holds is not given back.
    pub fn release(&mut self, tenant: Tenant, resource: Resource, amount: u64, now: Instant) {
        if resource.kind() != Kind::Gauge || amount == 0 {
            return;
        }
        let (slot, at) = (self.table.index(tenant), resource.index());
        let cell = self.cell(slot, at, now);
        let is_left = self.resources[at].release(cell, amount);
        // No tick does it then.
        if is_left && self.config.mode == Mode::Off {
            self.resources[at].close(cell, now);
            self.table.slot_mut(slot).cells[at] = NONE;
        }
    }

    /// Connections that tenants over their shares have to give back, those on which nothing is under way first, so that
    /// others find what they are guaranteed. To be asked once a tick.
    #[must_use]
    pub fn excess_connections(&self) -> u64 {
        let restricts = self.config.mode == Mode::Restrict;
        if restricts { self.resources[Resource::Connections.index()].excess() } else { 0 }
    }

    /// Connections that a claimant holds beyond its share, and beyond what it is guaranteed.
    #[must_use]
    pub fn excess_connections_of(&self, claimant: Claimant) -> u64 {
        let (at, connections) = (Resource::Connections.index(), &self.resources[Resource::Connections.index()]);
        match claimant {
            Claimant::Source(crowd) => connections.excess_of_crowd(crowd),
            Claimant::Tenant(tenant) => {
                let slot = self.table.index(tenant);
                let known = self.table.slot(slot).cells[at] != NONE;
                if known { connections.excess_of(self.place(slot, at)) } else { 0 }
            }
        }
    }

    /// What a piece of work of this tenant is expected to use, in the resource's units: the mean of what was settled,
    /// of all tenants if nothing of its own was. Of work that is corrected in parts it is one part at most.
    #[must_use]
    pub fn expected_cost(&self, tenant: Tenant, resource: Resource) -> u64 {
        let at = resource.index();
        let slot = self.table.index(tenant);
        let known = self.table.slot(slot).cells[at] != NONE;
        let own = if known { self.resources[at].cost(self.place(slot, at)) } else { None };
        let all = || number::whole(self.costs[at].round());
        let whole = own.unwrap_or_else(|| if self.costs[at] > 0.0 { all() } else { first_cost(resource) });
        whole.min(resource.part_max())
    }

    /// Of the last `span` nobody's work ran on the core for `idle`; neither that of this proxy nor of another program.
    /// To be called every 50 to 100 ms. From it the core's capacity is learnt, within a second.
    pub fn on_idle(&mut self, idle: Duration, span: Duration, now: Instant) {
        if self.learner.on_idle(idle, span) {
            self.set_time(now);
        }
    }

    /// The core's threads may use `ns_per_s` of processor time in each second: less than a second of it under a quota. From
    /// now on no more than that is shared out, whatever is learnt.
    pub fn set_core(&mut self, ns_per_s: u64, now: Instant) {
        let ns_per_s = ns_per_s.clamp(1, CORE_NS);
        if self.core_ns != ns_per_s {
            self.core_ns = ns_per_s;
            self.set_time(now);
        }
    }

    fn set_time(&mut self, now: Instant) {
        for resource in [Resource::EventTime, Resource::HandshakeTime] {
            let at = resource.index();
            let capacity = limit_of(resource, self.config.capacities[at], self.time_ns());
            self.resources[at].set_capacity(capacity, now);
        }
    }

    /// Of each second of the core, what tenants' work can have as far as is known.
    fn time_ns(&self) -> u64 {
        self.learner.capacity(self.core_ns).unwrap_or(self.core_ns)
    }

    /// When to call [`on_timeout`](Self::on_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.config.mode != Mode::Off).then_some(self.wake)
    }

    /// Sets shares anew once a tick, in slices.
    pub fn on_timeout(&mut self, now: Instant) {
        if now >= self.wake {
            self.advance(SLICE, now);
        }
    }

    /// The slice that was done until `now` took so long. When the next is to be done, if shares are not all set.
    pub fn on_slice(&mut self, took: Duration, now: Instant) -> Option<Instant> {
        self.pass?;
        let gap = (took * GAP_TIMES).clamp(SLICE_GAP, SLICE_GAP_MAX);
        self.wake = self.wake.max(now + gap);
        Some(self.wake)
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &NeighboursConfig {
        &self.config
    }

    /// True if a tenant's work has to stand back behind the others': it wanted more than its share of the core lately.
    #[must_use]
    pub fn lane(&self, tenant: Tenant) -> Lane {
        let slot = self.table.index(tenant);
        let cells = self.table.slot(slot).cells;
        let noisy = |at: usize| {
            let counts = is_muting(at) && cells[at] != NONE && !self.is_uncounted(at);
            counts && self.resources[at].is_noisy(self.place(slot, at))
        };
        let muted = self.config.mode == Mode::Restrict && (0..Resource::COUNT).any(noisy);
        if muted { Lane::Overflow } else { Lane::Share }
    }

    /// The books of a resource, for those who check that they add up. Looks at all tenants.
    #[must_use]
    pub fn ledger(&self, resource: Resource) -> Ledger {
        self.resources[resource.index()].ledger()
    }

    /// What is in the buckets of a counter that has a capacity, for the same. Looks at all tenants.
    #[must_use]
    pub fn tokens(&self, resource: Resource, now: Instant) -> Option<Tokens> {
        self.resources[resource.index()].tokens(now)
    }

    /// Goes on with the setting of shares, for so many tenants.
    fn advance(&mut self, slice: usize, now: Instant) {
        if self.pass.is_none() {
            if now < self.due {
                self.wake = self.due;
                return;
            }
            self.elapsed = now.since(self.ticked);
            self.ticked = now;
            self.due = now + self.config.tick;
            self.set_pieces();
            self.pass = Some((0, Pass::new(self.elapsed)));
        }
        let mut left = slice;
        while let Some((at, mut pass)) = self.pass {
            let Self { resources, fills, closed, table, .. } = self;
            let done = if at == REQUESTS {
                let uncounted = |owner| core::mem::take(&mut table.slot_mut(owner as usize).requests);
                resources[at].rebalance(&mut pass, fills, &mut left, closed, uncounted, now)
            } else {
                resources[at].rebalance(&mut pass, fills, &mut left, closed, |_| 0, now)
            };
            for owner in self.closed.drain(..) {
                self.table.slot_mut(owner as usize).cells[at] = NONE;
            }
            self.pass = match at + 1 {
                _ if !done => Some((at, pass)),
                Resource::COUNT => None,
                next => Some((next, Pass::new(self.elapsed))),
            };
            if left == 0 && self.pass.is_some() {
                self.wake = now + SLICE_GAP;
                return;
            }
        }
        self.wake = self.due;
    }

    /// True if it is enough to count this resource's use in the tenant's slot, which is at hand in any case. Most proxies
    /// limit requests by the time that they take: then a question touches two cache lines, and the address of either is
    /// known from the start.
    #[inline]
    fn is_uncounted(&self, at: usize) -> bool {
        at == REQUESTS && self.resources[REQUESTS].is_free()
    }

    /// Where the state of the tenant in `slot` at a resource stands.
    #[inline]
    fn cell(&mut self, slot: usize, at: usize, now: Instant) -> Place {
        if self.table.slot(slot).cells[at] == NONE { self.open(slot, at, now) } else { self.place(slot, at) }
    }

    /// The same, if it is known that there is such a state.
    #[inline]
    fn place(&self, slot: usize, at: usize) -> Place {
        let known = self.table.slot(slot);
        self.resources[at].place(Table::number(slot), known.cells[at], known.crowd)
    }

    #[cold]
    fn open(&mut self, slot: usize, at: usize, now: Instant) -> Place {
        let (weight, crowd) = (self.table.slot(slot).weight, self.table.slot(slot).crowd);
        let place = self.resources[at].open_in(Table::number(slot), crowd, weight, now);
        self.table.slot_mut(slot).cells[at] = place.number();
        place
    }

    /// Whether the tenant in `slot` may take more of a pool than its allowance.
    #[cold]
    fn may_go_beyond(&self, slot: usize, at: usize) -> bool {
        let (cells, weight) = (self.table.slot(slot).cells, self.table.slot(slot).weight);
        let known = (0..Resource::COUNT).filter(|at| cells[*at] != NONE);
        let dominant = known.map(|at| self.resources[at].part(self.place(slot, at))).fold(0.0, f64::max);
        self.resources[at].may_go_beyond(dominant / f64::from(weight))
    }

    /// Says no; in a dry run, counts it and says yes.
    #[cold]
    fn refuse(&mut self, short: &Short, stage: Stage, now: Instant) -> Verdict {
        let Short { slot, at, wanted, asked } = *short;
        if asked >> REQUESTS & 1 != 0 && self.is_uncounted(REQUESTS) {
            let place = self.cell(slot, REQUESTS, now);
            self.resources[REQUESTS].want(place, wanted[REQUESTS]);
        }
        let place = self.place(slot, at);
        let limiter = &mut self.resources[at];
        let shortage = limiter.refuse(place, wanted[at], now, self.due);
        let (share, limit) = (limiter.share(place), limiter.capacity().map_or(0, number::whole));
        let refused = &mut self.table.slot_mut(slot).refused[stage.index()];
        *refused = refused.saturating_add(1);
        if self.config.mode == Mode::Stats {
            for at in (0..Resource::COUNT).filter(|at| asked >> at & 1 != 0) {
                let cell = self.cell(slot, at, now);
                self.resources[at].note(cell, wanted[at]);
            }
            return Verdict::Admit { lane: Lane::Share, owed: true };
        }
        Verdict::Refuse(Refusal {
            resource: Resource::ALL[at],
            cause: if shortage.over_share { Cause::OverShare } else { Cause::SystemFull },
            retry_after: shortage.retry_after,
            share,
            limit,
            cost: wanted[at],
        })
    }

    /// Tells the buckets what work usually costs: none may be too shallow for one piece of it.
    fn set_pieces(&mut self) {
        let mean = |resource: Resource| {
            let mean = self.costs[resource.index()];
            if mean > 0.0 { number::whole(mean).min(resource.part_max()) } else { first_cost(resource) }
        };
        // The dearest kind of work that draws on the core's time.
        let time = mean(Resource::HandshakeTime).max(mean(Resource::EventTime));
        self.resources[Resource::EventTime.index()].set_piece(time);
    }

    /// Gives the tenants of the settings their weights.
    fn set_weights(&mut self) {
        for (name, weight) in core::mem::take(&mut self.config.weights) {
            let Self { table, sources, .. } = self;
            if let Some(at) = table.set_weight(&name, weight.max(1), |crowd| sources.leave(crowd)) {
                self.reweigh(at);
            }
            self.config.weights.push((name, weight));
        }
    }

    fn reweigh(&mut self, slot: usize) {
        let (cells, weight) = (self.table.slot(slot).cells, self.table.slot(slot).weight);
        for at in (0..Resource::COUNT).filter(|at| cells[*at] != NONE) {
            let place = self.place(slot, at);
            self.resources[at].set_weight(place, weight);
        }
    }
}

const REQUESTS: usize = Resource::Requests.index();
const EVENT_TIME: u32 = 1 << Resource::EventTime.index();
const HANDSHAKE_TIME: u32 = 1 << Resource::HandshakeTime.index();

/// What there was not enough of, and all that was asked for with it.
struct Short {
    slot: usize,
    at: usize,
    wanted: [u64; Resource::COUNT],
    asked: u32,
}

/// The resources in a set.
#[inline]
fn each(mut asked: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let at = (asked != 0).then(|| asked.trailing_zeros() as usize)?;
        asked &= asked - 1;
        Some(at)
    })
}

/// Amounts by resource, and which there are. Time of handshakes is time of the core.
#[inline]
fn merged(costs: &[(Resource, u64)]) -> ([u64; Resource::COUNT], u32) {
    let (mut wanted, mut asked) = ([0_u64; Resource::COUNT], 0);
    for &(resource, cost) in costs {
        wanted[resource.index()] = wanted[resource.index()].saturating_add(cost);
        asked |= 1 << resource.index();
    }
    if asked & HANDSHAKE_TIME != 0 {
        let time = wanted[Resource::HandshakeTime.index()];
        wanted[Resource::EventTime.index()] = wanted[Resource::EventTime.index()].saturating_add(time);
        asked |= EVENT_TIME;
    }
    (wanted, asked)
}

/// True if wanting too much of it puts a tenant's work behind the others': what is held, and the disk, are not the core.
const fn is_muting(at: usize) -> bool {
    !matches!(Resource::ALL[at], Resource::Connections | Resource::Memory | Resource::DiskBytes)
}

/// The limit that is enforced. Of learnt ones that is the core's time alone, and for all kinds of work together.
fn limit_of(resource: Resource, capacity: Capacity, time_ns: u64) -> Option<u64> {
    match (resource, capacity) {
        (_, Capacity::Fixed(units)) => Some(units),
        (Resource::EventTime, Capacity::Learnt) => Some(time_ns),
        (_, Capacity::Learnt) => None,
    }
}

/// What a piece of work is taken to cost before the first was seen.
fn first_cost(resource: Resource) -> u64 {
    match resource {
        Resource::HandshakeTime => HANDSHAKE_NS,
        Resource::EventTime => REQUEST_NS,
        Resource::NetworkBytes | Resource::DiskBytes | Resource::Memory => PIECE_BYTES,
        Resource::Handshakes | Resource::Connections | Resource::Requests => 1,
    }
}

fn terms(config: &NeighboursConfig) -> Terms {
    let nanos = tidegate_core::time::nanos;
    let tick_ns = nanos(config.tick).clamp(1_000_000, 10_000_000_000);
    let idle_ticks = nanos(config.idle_after) / tick_ns;
    Terms {
        tick_ns,
        burst_ns: nanos(config.burst).min(10_000_000_000),
        idle_ticks: u16::try_from(idle_ticks.max(1)).unwrap_or(u16::MAX),
        reserve: config.reserve.clamp(0.0, NeighboursConfig::RESERVE_MAX),
        newcomers: config.newcomers.clamp(0.0, NeighboursConfig::NEWCOMERS_MAX),
        headroom: config.headroom.clamp(0.0, 10.0),
    }
}

#[cfg(test)]
mod tests;

//! From the state to what is shown.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::share::{NONE, Totals, Usage};

use super::{
    Capacity, LoanView, Neighbours, RefusedView, ResourceView, SNAPSHOT_LOANS_MAX, SNAPSHOT_TENANTS_MAX, Snapshot,
    Stage, Tenant, TenantView, UseView,
};
use crate::machine::Resource;

/// Of one resource, so many lenders and so many borrowers are shown with each other.
const SIDES: usize = 10;

/// Slots that one look counts, and tenants that one look describes: so long others wait who share the machine.
const COUNTED: usize = 1_024;
const DESCRIBED: usize = 64;

/// A snapshot in the making: what all tenants use is counted first, and those that use most are described then, a few in
/// each look. In between, the machine may go on.
#[derive(Debug)]
pub struct Walk {
    shown: Snapshot,
    /// By resource, what is all of it.
    whole: [f64; Resource::COUNT],
    /// Slots that are to be counted, and that were.
    end: usize,
    counted: usize,
    /// By the largest part that they use of anything, while there is more to count in no order.
    largest: Vec<(f64, Tenant)>,
    described: usize,
    sides: [Sides; Resource::COUNT],
}

impl Walk {
    /// Forgets those that use least.
    fn cut(&mut self, most: usize) {
        if self.largest.len() > most {
            self.largest.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0));
            self.largest.truncate(most);
        }
    }

    /// What it came to.
    #[must_use]
    pub fn end(mut self) -> Snapshot {
        self.shown.order();
        self.shown
    }
}

impl Neighbours {
    /// What is shown: totals, and the tenants that use most. Walks over all tenants.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let mut walk = self.walk(now);
        while self.look(&mut walk) {}
        walk.end()
    }

    /// What a tenant is granted of `resource`, in units per second, of a gauge units; `None` if it asked for none lately.
    #[must_use]
    pub fn share(&self, tenant: Tenant, resource: Resource) -> Option<f64> {
        let at = self.known(tenant)?;
        let is_known = self.table.slot(at).cells[resource.index()] != NONE;
        is_known.then(|| self.resources[resource.index()].usage(self.place(at, resource.index())).share)
    }

    /// Begins a snapshot. The totals are those of now.
    #[must_use]
    pub fn walk(&self, now: Instant) -> Walk {
        let resources: Vec<_> = Resource::ALL.map(|resource| self.resource_view(resource)).into();
        let whole = core::array::from_fn(|at| resources[at].capacity.unwrap_or(resources[at].used));
        let shown = Snapshot {
            at_ms: now.as_nanos() / 1_000_000,
            mode: self.config.mode,
            tick_ms: millis(self.config.tick),
            resources,
            tenants_total: 0,
            tenants: Vec::new(),
            lending: Vec::new(),
        };
        let sides = core::array::from_fn(|_| Sides::default());
        let end = self.table.len();
        Walk { shown, whole, end, counted: 0, largest: Vec::new(), described: 0, sides }
    }

    /// Goes on with a snapshot; true if there is more to do. Tenants that come or go meanwhile may be missing.
    pub fn look(&self, walk: &mut Walk) -> bool {
        if walk.counted < walk.end {
            let upto = (walk.counted + COUNTED).min(walk.end);
            (walk.counted..upto).for_each(|at| self.count(walk, at));
            walk.counted = upto;
            let most = if upto == walk.end { 1 } else { 2 } * SNAPSHOT_TENANTS_MAX;
            walk.cut(most);
            return true;
        }
        let upto = (walk.described + DESCRIBED).min(walk.largest.len());
        for at in walk.described..upto {
            let described = self.describe(walk.largest[at].1);
            walk.shown.tenants.extend(described);
        }
        walk.described = upto;
        if upto < walk.largest.len() {
            return true;
        }
        walk.shown.lending = self.loans(&walk.sides);
        false
    }

    fn count(&self, walk: &mut Walk, at: usize) {
        let cells = self.table.slot(at).cells;
        if cells.iter().all(|cell| *cell == NONE) {
            return;
        }
        let (tenant, mut largest) = (self.table.handle(at), 0.0_f64);
        for (resource, _) in cells.into_iter().enumerate().filter(|(_, cell)| *cell != NONE) {
            let usage = self.resources[resource].usage(self.place(at, resource));
            walk.sides[resource].add(tenant, usage);
            if walk.whole[resource] > 0.0 {
                largest = largest.max(usage.used / walk.whole[resource]);
            }
        }
        walk.shown.tenants_total += 1;
        walk.largest.push((largest, tenant));
    }

    /// `None` if the tenant went meanwhile.
    fn describe(&self, tenant: Tenant) -> Option<TenantView> {
        let at = self.known(tenant)?;
        let slot = self.table.slot(at);
        let known = Resource::ALL.into_iter().filter(|resource| slot.cells[resource.index()] != NONE);
        let usage = |resource: Resource| self.resources[resource.index()].usage(self.place(at, resource.index()));
        let used = known.map(|resource| use_view(resource, usage(resource)));
        let refused = |stage: Stage| u64::from(slot.refused[stage.index()]);
        Some(TenantView {
            name: self.name(at).to_owned(),
            weight: slot.weight,
            lane: self.lane(tenant),
            resources: used.collect(),
            refused: RefusedView {
                hello: refused(Stage::Hello),
                request: refused(Stage::Request),
                queue: refused(Stage::Queue),
            },
        })
    }

    /// The largest loans, largest first.
    fn loans(&self, sides: &[Sides; Resource::COUNT]) -> Vec<LoanView> {
        let mut loans = Vec::new();
        for (resource, sides) in Resource::ALL.into_iter().zip(sides) {
            sides.loans(resource, &mut loans);
        }
        loans.sort_by(|a, b| b.amount.total_cmp(&a.amount));
        loans.truncate(SNAPSHOT_LOANS_MAX);
        let name = |tenant| self.known(tenant).map(|at| self.name(at).to_owned());
        let named = loans.into_iter().filter_map(|Loan { from, to, resource, amount }| {
            Some(LoanView { from: name(from)?, to: name(to)?, resource: resource.name().to_owned(), amount })
        });
        named.collect()
    }

    /// The slot of a handle that is not stale.
    fn known(&self, tenant: Tenant) -> Option<usize> {
        let at = self.table.index(tenant);
        (self.table.handle(at) == tenant).then_some(at)
    }

    pub(super) fn name(&self, at: usize) -> &str {
        if at == 0 { Tenant::OTHER_NAME } else { self.table.name(at) }
    }

    /// The capacity that is in force or was learnt, in units per second, of a gauge units; `None` if it is unknown.
    ///
    /// That of handshakes and requests is what the core's time gives at their mean cost.
    #[must_use]
    pub fn capacity(&self, resource: Resource) -> Option<f64> {
        if let Some(capacity) = self.resources[resource.index()].capacity() {
            return Some(capacity);
        }
        let time = self.resources[Resource::EventTime.index()].capacity()?;
        let each = |resource: Resource| Some(self.costs[resource.index()]).filter(|cost| *cost > 0.0);
        match resource {
            Resource::HandshakeTime => Some(time),
            Resource::Handshakes => Some(time / each(Resource::HandshakeTime)?),
            Resource::Requests => Some(time / each(Resource::EventTime)?),
            _ => None,
        }
    }

    fn resource_view(&self, resource: Resource) -> ResourceView {
        let Totals { global, used, refused_share, refused_full } = self.resources[resource.index()].totals();
        let capacity = self.capacity(resource);
        ResourceView {
            name: resource.name().to_owned(),
            kind: resource.kind(),
            capacity,
            learnt: self.config.capacities[resource.index()] == Capacity::Learnt && capacity.is_some(),
            global,
            used,
            refused_share,
            refused_full,
        }
    }
}

fn use_view(resource: Resource, usage: Usage) -> UseView {
    UseView {
        name: resource.name().to_owned(),
        demand: usage.demand,
        share: usage.share,
        used: usage.used,
        overflow: usage.overflow,
        lent: usage.lent,
        refused_share: usage.refused_share,
        refused_full: usage.refused_full,
    }
}

/// Unused share of one that served another.
struct Loan {
    from: Tenant,
    to: Tenant,
    resource: Resource,
    amount: f64,
}

/// Who lends and who borrows of one resource: the largest of each, and the sums of all.
#[derive(Debug, Default)]
struct Sides {
    lenders: Vec<(Tenant, f64)>,
    borrowers: Vec<(Tenant, f64)>,
    lent: f64,
    borrowed: f64,
}

impl Sides {
    fn add(&mut self, tenant: Tenant, usage: Usage) {
        self.lent += usage.lent;
        self.borrowed += usage.overflow;
        keep_largest(&mut self.lenders, tenant, usage.lent);
        keep_largest(&mut self.borrowers, tenant, usage.overflow);
    }

    fn loans(&self, resource: Resource, loans: &mut Vec<Loan>) {
        // What is borrowed beyond all that is lent came from what is nobody's share.
        let moved = self.lent.min(self.borrowed);
        for &(from, lent) in &self.lenders {
            for &(to, borrowed) in self.borrowers.iter().filter(|(to, _)| *to != from) {
                let amount = moved * (lent / self.lent) * (borrowed / self.borrowed);
                loans.push(Loan { from, to, resource, amount });
            }
        }
    }
}

fn keep_largest(kept: &mut Vec<(Tenant, f64)>, tenant: Tenant, amount: f64) {
    if amount <= 0.0 {
        return;
    }
    let at = kept.partition_point(|(_, other)| *other >= amount);
    if at < SIDES {
        kept.insert(at, (tenant, amount));
        kept.truncate(SIDES);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

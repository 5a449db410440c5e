//! From the state to what is shown.

use core::time::Duration;

use tidegate_core::Instant;

use super::{
    Capacity, LoanView, Neighbours, RefusedView, ResourceView, SNAPSHOT_LOANS_MAX, Snapshot, Stage, TenantView, UseView,
};
use crate::machine::Resource;
use crate::machine::overflow::{NONE, Totals, Usage};

/// Of one resource, so many lenders and so many borrowers are shown with each other.
const SIDES: usize = 10;

impl Neighbours {
    /// What is shown: totals, and the tenants that use most. Walks over all tenants.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        let mut shown = Snapshot {
            at_ms: now.as_nanos() / 1_000_000,
            mode: self.config.mode,
            tick_ms: millis(self.config.tick),
            resources: Resource::ALL.map(|resource| self.resource_view(resource)).into(),
            tenants: Vec::new(),
            lending: Vec::new(),
        };
        let mut sides: [Sides; Resource::COUNT] = core::array::from_fn(|_| Sides::default());
        for (at, slot) in self.table.slots().iter().enumerate() {
            if slot.cells.iter().all(|cell| *cell == NONE) {
                continue;
            }
            let name = if at == 0 { "other" } else { self.table.name(at) };
            let mut used = Vec::new();
            for resource in Resource::ALL.into_iter().filter(|resource| slot.cells[resource.index()] != NONE) {
                let usage = self.resources[resource.index()].usage(self.place(at, resource.index()));
                sides[resource.index()].add(name, usage);
                used.push(use_view(resource, usage));
            }
            let refused = |stage: Stage| u64::from(slot.refused[stage.index()]);
            shown.tenants.push(TenantView {
                name: name.to_owned(),
                weight: slot.weight,
                lane: self.lane(self.table.handle(at)),
                resources: used,
                refused: RefusedView {
                    accept: refused(Stage::Accept),
                    hello: refused(Stage::Hello),
                    request: refused(Stage::Request),
                    queue: refused(Stage::Queue),
                },
            });
        }
        shown.order();
        for (resource, sides) in Resource::ALL.into_iter().zip(sides) {
            sides.loans(resource, &mut shown.lending);
        }
        shown.lending.sort_by(|a, b| b.amount.total_cmp(&a.amount));
        shown.lending.truncate(SNAPSHOT_LOANS_MAX);
        shown
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

/// Who lends and who borrows of one resource: the largest of each, and the sums of all.
#[derive(Default)]
struct Sides<'a> {
    lenders: Vec<(&'a str, f64)>,
    borrowers: Vec<(&'a str, f64)>,
    lent: f64,
    borrowed: f64,
}

impl<'a> Sides<'a> {
    fn add(&mut self, name: &'a str, usage: Usage) {
        self.lent += usage.lent;
        self.borrowed += usage.overflow;
        keep_largest(&mut self.lenders, name, usage.lent);
        keep_largest(&mut self.borrowers, name, usage.overflow);
    }

    fn loans(&self, resource: Resource, loans: &mut Vec<LoanView>) {
        // What is borrowed beyond all that is lent came from what is nobody's share.
        let moved = self.lent.min(self.borrowed);
        for (from, lent) in &self.lenders {
            for (to, borrowed) in self.borrowers.iter().filter(|(to, _)| to != from) {
                let amount = moved * (lent / self.lent) * (borrowed / self.borrowed);
                let resource = resource.name().to_owned();
                loans.push(LoanView { from: (*from).to_owned(), to: (*to).to_owned(), resource, amount });
            }
        }
    }
}

fn keep_largest<'a>(kept: &mut Vec<(&'a str, f64)>, name: &'a str, amount: f64) {
    if amount <= 0.0 {
        return;
    }
    let at = kept.partition_point(|(_, other)| *other >= amount);
    if at < SIDES {
        kept.insert(at, (name, amount));
        kept.truncate(SIDES);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

//! What [`Neighbours`](super::Neighbours) shows of itself.

use serde::{Deserialize, Serialize};

use super::{Lane, Mode};
use crate::machine::resource::Kind;

/// Most tenants in a snapshot: those that use most; the others are in the totals only.
pub const SNAPSHOT_TENANTS_MAX: usize = 1_000;
/// Most loans in a snapshot, the largest.
pub const SNAPSHOT_LOANS_MAX: usize = 100;

/// Tenants times resources at one instant. Rates are per second; `refused` counts since the start.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds on the caller's clock.
    pub at_ms: u64,
    /// What the limiter does.
    pub mode: Mode,
    /// From one sharing-out to the next.
    pub tick_ms: u64,
    /// By [`Resource::index`](crate::machine::Resource::index).
    pub resources: Vec<ResourceView>,
    /// How many asked for something lately. Of several cores, at least so many: who is not in `tenants` has no name here,
    /// and may be the same on each.
    #[serde(default)]
    pub tenants_total: u64,
    /// Who asked for something lately, by the largest part that it uses of anything, largest first.
    pub tenants: Vec<TenantView>,
    /// Whose unused share served whom, largest first. A pool has no memory of whose token went where: every borrower
    /// borrows from every lender in proportion.
    pub lending: Vec<LoanView>,
}

/// One resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResourceView {
    /// As [`Resource::name`](crate::machine::Resource::name).
    pub name: String,
    /// Rate or amount.
    pub kind: Kind,
    /// Units per second, of a gauge units; none if it is not limited and nothing was learnt.
    pub capacity: Option<f64>,
    /// True if it was found out.
    pub learnt: bool,
    /// What of the capacity is nobody's share.
    pub global: f64,
    /// What all together use.
    pub used: f64,
    /// Refused since the start, whose tenant was over its share.
    pub refused_share: u64,
    /// Refused since the start, for which there was no room.
    pub refused_full: u64,
}

/// One tenant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u32,
    /// Where its work is done.
    pub lane: Lane,
    /// What it asked for lately.
    pub resources: Vec<UseView>,
    /// Refusals since it came, by stage.
    pub refused: RefusedView,
}

/// One tenant's use of one resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UseView {
    /// As [`Resource::name`](crate::machine::Resource::name).
    pub name: String,
    /// What it is expected to want.
    pub demand: f64,
    /// What it is granted.
    pub share: f64,
    /// What it used.
    pub used: f64,
    /// What of that was beyond its share.
    pub overflow: f64,
    /// What of its share it left to others.
    pub lent: f64,
    /// Refused since it came, being over its share.
    pub refused_share: u64,
    /// Refused since it came, there being no room.
    pub refused_full: u64,
}

/// Refusals by [`Stage`](super::Stage).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RefusedView {
    /// When the `ClientHello` was read, here or by the `rate_limit` of its name.
    pub hello: u64,
    /// When a request was read.
    pub request: u64,
    /// By the queue of its route's `rate_limit`.
    pub queue: u64,
}

/// Unused share of one tenant that served another.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoanView {
    /// Whose.
    pub from: String,
    /// For whom.
    pub to: String,
    /// Of what.
    pub resource: String,
    /// Units per second.
    pub amount: f64,
}

impl Snapshot {
    /// Adds what another core shows: the sum is the proxy's.
    ///
    /// A tenant is muted if any core mutes it.
    pub fn add(&mut self, other: &Self) {
        self.at_ms = self.at_ms.max(other.at_ms);
        if self.resources.is_empty() {
            self.mode = other.mode;
            self.tick_ms = other.tick_ms;
        }
        for theirs in &other.resources {
            match self.resources.iter_mut().find(|mine| mine.name == theirs.name) {
                Some(mine) => mine.add(theirs),
                None => self.resources.push(theirs.clone()),
            }
        }
        // Names in order find each other without a table.
        self.tenants.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let known = self.tenants.len();
        for theirs in &other.tenants {
            match self.tenants[..known].binary_search_by(|mine| mine.name.cmp(&theirs.name)) {
                Ok(at) => self.tenants[at].add(theirs),
                Err(_) => self.tenants.push(theirs.clone()),
            }
        }
        let named = self.tenants.len() as u64;
        self.tenants_total = self.tenants_total.max(other.tenants_total).max(named);
        self.order();
        for theirs in &other.lending {
            let same = |mine: &&mut LoanView| {
                mine.from == theirs.from && mine.to == theirs.to && mine.resource == theirs.resource
            };
            match self.lending.iter_mut().find(same) {
                Some(mine) => mine.amount += theirs.amount,
                None => self.lending.push(theirs.clone()),
            }
        }
        self.lending.sort_by(|a, b| b.amount.total_cmp(&a.amount));
        self.lending.truncate(SNAPSHOT_LOANS_MAX);
    }

    /// Puts the tenants that use most first, and forgets those beyond the bound.
    pub(super) fn order(&mut self) {
        let capacity = |name: &str| {
            let resource = self.resources.iter().find(|resource| resource.name == name);
            resource.and_then(|resource| resource.capacity.or(Some(resource.used))).filter(|most| *most > 0.0)
        };
        let part = |tenant: &TenantView| {
            let parts = tenant.resources.iter().map(|one| capacity(&one.name).map_or(0.0, |most| one.used / most));
            parts.fold(0.0, f64::max)
        };
        let mut keyed: Vec<_> = core::mem::take(&mut self.tenants).into_iter().map(|one| (part(&one), one)).collect();
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
        keyed.truncate(SNAPSHOT_TENANTS_MAX);
        self.tenants = keyed.into_iter().map(|(_, one)| one).collect();
    }
}

impl ResourceView {
    fn add(&mut self, other: &Self) {
        self.capacity = match (self.capacity, other.capacity) {
            (Some(mine), Some(theirs)) => Some(mine + theirs),
            (mine, theirs) => mine.or(theirs),
        };
        self.learnt |= other.learnt;
        self.global += other.global;
        self.used += other.used;
        self.refused_share += other.refused_share;
        self.refused_full += other.refused_full;
    }
}

impl TenantView {
    fn add(&mut self, other: &Self) {
        if other.lane == Lane::Overflow {
            self.lane = Lane::Overflow;
        }
        for theirs in &other.resources {
            match self.resources.iter_mut().find(|mine| mine.name == theirs.name) {
                Some(mine) => mine.add(theirs),
                None => self.resources.push(theirs.clone()),
            }
        }
        self.refused.hello += other.refused.hello;
        self.refused.request += other.refused.request;
        self.refused.queue += other.refused.queue;
    }
}

impl UseView {
    fn add(&mut self, other: &Self) {
        self.demand += other.demand;
        self.share += other.share;
        self.used += other.used;
        self.overflow += other.overflow;
        self.lent += other.lent;
        self.refused_share += other.refused_share;
        self.refused_full += other.refused_full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, used: f64, lane: Lane) -> TenantView {
        let one = UseView {
            name: "requests".to_owned(),
            demand: used,
            share: 10.0,
            used,
            overflow: 0.0,
            lent: 0.0,
            refused_share: 1,
            refused_full: 0,
        };
        TenantView { name: name.to_owned(), weight: 1, lane, resources: vec![one], refused: RefusedView::default() }
    }

    fn core(tenants: Vec<TenantView>) -> Snapshot {
        let requests = ResourceView {
            name: "requests".to_owned(),
            kind: Kind::Counter,
            capacity: Some(100.0),
            learnt: false,
            global: 25.0,
            used: 0.0,
            refused_share: 0,
            refused_full: 0,
        };
        let tenants_total = tenants.len() as u64;
        Snapshot { resources: vec![requests], tenants_total, tenants, ..Snapshot::default() }
    }

    #[test]
    fn who_is_not_listed_is_counted() {
        let crowd = |names: core::ops::Range<usize>| {
            core(names.map(|at| tenant(&format!("t{at:04}"), 1.0, Lane::Share)).collect())
        };
        let mut sum = crowd(0..600);
        sum.add(&crowd(500..1_100));
        assert_eq!((sum.tenants.len(), sum.tenants_total), (SNAPSHOT_TENANTS_MAX, 1_100));
        sum.add(&core(vec![tenant("t0000", 1.0, Lane::Share)]));
        assert_eq!(sum.tenants_total, 1_100);
    }

    #[test]
    fn cores_add_up_and_who_uses_most_comes_first() {
        let mut sum = core(vec![tenant("a", 30.0, Lane::Share), tenant("b", 20.0, Lane::Share)]);
        sum.add(&core(vec![tenant("b", 40.0, Lane::Overflow), tenant("c", 1.0, Lane::Share)]));
        let names: Vec<_> = sum.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!((sum.tenants[0].resources[0].used, sum.tenants[0].lane), (60.0, Lane::Overflow));
        assert_eq!(sum.tenants[0].resources[0].refused_share, 2);
        assert_eq!(sum.resources[0].capacity, Some(200.0));
    }
}

//! Snapshots of proxies to what a page is shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::snapshot::{Loan, NeighbourSnapshot, Resource, Stages, Tenant, Usage};
use super::view::{Cell, Proxy, Rest, StageRates, TenantView};
use crate::rates::Window;

/// Tenants of a proxy with a row of their own; the rest is added up.
pub(crate) const MAX_TENANTS: usize = 50;
/// Loans of a proxy that are named; the rest is counted.
pub(crate) const MAX_LOANS: usize = 50;
/// Resources of a proxy; a proxy of a later release may have more, which are left out.
const MAX_RESOURCES: usize = 16;
/// How much busier a tenant must be to take another's row: two that are alike do not change places four times a second.
const KEEPS_ITS_ROW: f64 = 1.25;

/// Turns snapshots into views; remembers each shown tenant's counters for its rates.
#[derive(Default, Debug)]
pub(crate) struct NeighbourLedger {
    proxies: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Windows>>,
}

/// A tenant's counters of late.
#[derive(Default, Debug)]
struct Windows {
    stages: Window<3>,
    /// By resource: refused over its share, and by a full system.
    resources: BTreeMap<String, Window<2>>,
}

impl NeighbourLedger {
    /// What is shown of `snapshot`. Counters of tenants without a row of their own are forgotten.
    pub(crate) fn view(&mut self, name: Arc<str>, snapshot: NeighbourSnapshot) -> Proxy {
        let NeighbourSnapshot { at_ms, mode, tick_ms, mut resources, tenants_total, tenants, lending } = snapshot;
        resources.truncate(MAX_RESOURCES);
        let mut before = self.proxies.remove(&name).unwrap_or_default();
        let (shown, others) = split(tenants, &resources, |tenant| before.contains_key(tenant));
        let mut after = BTreeMap::new();
        let mut rows = Vec::with_capacity(shown.len());
        for tenant in shown {
            let (key, mut windows) = before
                .remove_entry(tenant.name.as_str())
                .unwrap_or_else(|| (tenant.name.as_str().into(), Windows::default()));
            rows.push(windows.row(key.clone(), at_ms, tenant, &resources));
            after.insert(key, windows);
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        self.proxies.insert(name.clone(), after);
        let (lending, lending_left_out) = largest(lending, &resources);
        let rest = (!others.is_empty()).then(|| rest(&others, tenants_total.saturating_sub(rows.len()), &resources));
        let resources = resources.into_iter().map(rounded).collect();
        Proxy { name, error: None, at_ms, mode, tick_ms, resources, tenants: rows, rest, lending, lending_left_out }
    }

    /// Forgets a proxy that cannot be reached: what it counted before may be of an earlier process.
    pub(crate) fn forget(&mut self, name: &str) {
        self.proxies.remove(name);
    }
}

impl Windows {
    fn row(&mut self, name: Arc<str>, at_ms: u64, tenant: Tenant, resources: &[Resource]) -> TenantView {
        let Stages { hello, request, queue } = tenant.refused;
        self.stages.push(at_ms, [hello, request, queue]);
        let [hello, request, queue] = self.stages.per_s().map(round);
        let refused_per_s = StageRates { hello, request, queue };
        let known = tenant.resources.into_iter().filter(|usage| resources.iter().any(|known| known.name == usage.name));
        let resources = known.filter_map(|usage| self.cell(at_ms, &usage)).collect();
        TenantView { name, weight: tenant.weight, lane: tenant.lane, resources, refused: tenant.refused, refused_per_s }
    }

    fn cell(&mut self, at_ms: u64, usage: &Usage) -> Option<Cell> {
        let counters = [usage.refused_share, usage.refused_full];
        let window = self.resources.entry(usage.name.clone()).or_default();
        window.push(at_ms, counters);
        let per_s = window.per_s();
        let mut cell = Cell { name: usage.name.clone(), ..Cell::default() };
        cell.add(usage);
        let touched = cell.amounts().into_iter().any(|amount| amount.abs() >= 0.05) || counters != [0, 0];
        [cell.refused_share_per_s, cell.refused_full_per_s] = per_s.map(round);
        touched.then(|| cell.rounded())
    }
}

impl Cell {
    fn add(&mut self, usage: &Usage) {
        self.demand += finite(usage.demand);
        self.share += finite(usage.share);
        self.used += finite(usage.used);
        self.overflow += finite(usage.overflow);
        self.lent += finite(usage.lent);
        self.refused_share = self.refused_share.saturating_add(usage.refused_share);
        self.refused_full = self.refused_full.saturating_add(usage.refused_full);
    }

    fn amounts(&self) -> [f64; 5] {
        [self.demand, self.share, self.used, self.overflow, self.lent]
    }

    fn rounded(mut self) -> Self {
        let [demand, share, used, overflow, lent] = self.amounts().map(round);
        (self.demand, self.share, self.used, self.overflow, self.lent) = (demand, share, used, overflow, lent);
        self
    }
}

/// The tenants that get a row of their own, and the others.
fn split(tenants: Vec<Tenant>, resources: &[Resource], has_row: impl Fn(&str) -> bool) -> (Vec<Tenant>, Vec<Tenant>) {
    if tenants.len() <= MAX_TENANTS {
        return (tenants, Vec::new());
    }
    let score = |tenant: &Tenant| {
        let busy = dominant_share(tenant, resources);
        if has_row(&tenant.name) { busy * KEEPS_ITS_ROW } else { busy }
    };
    let mut scored: Vec<(f64, Tenant)> = tenants.into_iter().map(|tenant| (score(&tenant), tenant)).collect();
    scored.sort_by(|(a, left), (b, right)| b.total_cmp(a).then_with(|| left.name.cmp(&right.name)));
    let others = scored.split_off(MAX_TENANTS);
    let names = |scored: Vec<(f64, Tenant)>| scored.into_iter().map(|(_, tenant)| tenant).collect();
    (names(scored), names(others))
}

/// The largest part of any capacity that the tenant wants or uses. Where a capacity is not known yet, of what all use.
fn dominant_share(tenant: &Tenant, resources: &[Resource]) -> f64 {
    let part = |usage: &Usage| {
        let of = resources.iter().find(|resource| resource.name == usage.name)?;
        let whole = of.capacity.unwrap_or(of.used);
        let wants = finite(usage.demand).max(finite(usage.used));
        (whole > 0.0 && whole.is_finite()).then(|| wants / whole)
    };
    tenant.resources.iter().filter_map(part).fold(0.0, f64::max)
}

/// `others` as one. They are `total`, if the proxy says so: not all of very many are listed.
fn rest(others: &[Tenant], total: usize, resources: &[Resource]) -> Rest {
    let mut refused = Stages::default();
    for tenant in others {
        refused.hello = refused.hello.saturating_add(tenant.refused.hello);
        refused.request = refused.request.saturating_add(tenant.refused.request);
        refused.queue = refused.queue.saturating_add(tenant.refused.queue);
    }
    let cell = |resource: &Resource| {
        let mut cell = Cell { name: resource.name.clone(), ..Cell::default() };
        others
            .iter()
            .flat_map(|tenant| &tenant.resources)
            .filter(|usage| usage.name == resource.name)
            .for_each(|usage| cell.add(usage));
        cell.rounded()
    };
    Rest { tenants: others.len().max(total), resources: resources.iter().map(cell).collect(), refused }
}

fn largest(mut lending: Vec<Loan>, resources: &[Resource]) -> (Vec<Loan>, usize) {
    lending.retain(|loan| loan.amount.is_finite() && loan.amount >= 0.05);
    let part = |loan: &Loan| {
        let of = resources.iter().find(|resource| resource.name == loan.resource);
        let whole = of.and_then(|of| of.capacity).filter(|whole| *whole > 0.0);
        whole.map_or(0.0, |whole| loan.amount / whole)
    };
    lending.sort_by(|a, b| {
        let named = || (&a.from, &a.to, &a.resource).cmp(&(&b.from, &b.to, &b.resource));
        part(b).total_cmp(&part(a)).then_with(named)
    });
    let left_out = lending.len().saturating_sub(MAX_LOANS);
    lending.truncate(MAX_LOANS);
    let rounded = |loan: Loan| Loan { amount: round(loan.amount), ..loan };
    (lending.into_iter().map(rounded).collect(), left_out)
}

fn rounded(resource: Resource) -> Resource {
    let Resource { capacity, global, used, .. } = resource;
    let figure = |value| round(finite(value));
    Resource {
        capacity: capacity.filter(|whole| whole.is_finite()).map(round),
        global: figure(global),
        used: figure(used),
        ..resource
    }
}

/// One decimal: an idle tenant then compares equal to itself, and the stream stays short.
fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// JSON has no infinity; a proxy that means "no bound" may still be parsed into one.
fn finite(figure: f64) -> f64 {
    if figure.is_finite() { figure } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(at_ms: u64, tenants: &[Value], lending: &[Value]) -> NeighbourSnapshot {
        let resource = json!({"name": "requests", "kind": "counter", "capacity": 1_000.0, "global": 100.0});
        let all = json!({"at_ms": at_ms, "mode": "restrict", "resources": [resource], "tenants": tenants, "lending": lending});
        serde_json::from_value(all).expect("a snapshot")
    }

    fn tenant(name: &str, used: f64, refused: u64) -> Value {
        json!({
            "name": name, "weight": 1, "lane": "share", "refused": {"request": refused},
            "resources": [{"name": "requests", "demand": used, "share": 200.0, "used": used, "refused_share": refused}],
        })
    }

    #[test]
    fn refusals_become_rates_by_the_clock_of_the_proxy() {
        let mut ledger = NeighbourLedger::default();
        ledger.view("p".into(), snapshot(1_000, &[tenant("b", 300.0, 10)], &[]));
        let proxy = ledger.view("p".into(), snapshot(1_500, &[tenant("b", 300.0, 60)], &[]));
        let row = &proxy.tenants[0];
        assert!((row.refused_per_s.request - 100.0).abs() < 1e-9, "{row:?}");
        assert!((row.resources[0].refused_share_per_s - 100.0).abs() < 1e-9, "{row:?}");
        assert!(row.resources[0].refused_full_per_s.abs() < 1e-9 && row.refused.request == 60);
    }

    #[test]
    fn a_proxy_that_was_away_starts_anew() {
        let mut ledger = NeighbourLedger::default();
        ledger.view("p".into(), snapshot(1_000, &[tenant("b", 300.0, 10)], &[]));
        ledger.forget("p");
        let proxy = ledger.view("p".into(), snapshot(1_500, &[tenant("b", 300.0, 60)], &[]));
        assert!(proxy.tenants[0].refused_per_s.request.abs() < 1e-9);
    }

    #[test]
    fn the_busiest_have_a_row_and_the_rest_is_added_up() {
        let tenants: Vec<_> = (0..60_u32).map(|i| tenant(&format!("t{i:02}"), f64::from(i), 2)).collect();
        let mut ledger = NeighbourLedger::default();
        let proxy = ledger.view("p".into(), snapshot(0, &tenants, &[]));
        let rest = proxy.rest.expect("ten others");
        assert_eq!((proxy.tenants.len(), rest.tenants, rest.refused.request), (MAX_TENANTS, 10, 20));
        assert_eq!((&*proxy.tenants[0].name, &*proxy.tenants[49].name), ("t10", "t59"));
        // 0 + 1 + ... + 9 used, and each of them a share of 200.
        assert!((rest.resources[0].used - 45.0).abs() < 1e-9 && (rest.resources[0].share - 2_000.0).abs() < 1e-9);
        assert_eq!(ledger.proxies["p"].len(), MAX_TENANTS, "the others' counters are not kept");
        let many = NeighbourSnapshot { tenants_total: 5_000, ..snapshot(0, &tenants, &[]) };
        let rest = ledger.view("p".into(), many).rest.expect("very many others");
        assert_eq!((rest.tenants, rest.refused.request), (4_950, 20), "nothing is known of those that are not listed");
    }

    #[test]
    fn two_tenants_that_are_alike_do_not_change_places() {
        let crowd = |first: f64, last: f64| {
            let mut all: Vec<Value> = (0..49).map(|i| tenant(&format!("m{i:02}"), 500.0, 0)).collect();
            all.extend([tenant("first", first, 0), tenant("last", last, 0)]);
            all
        };
        let mut ledger = NeighbourLedger::default();
        let has = |proxy: &Proxy, name: &str| proxy.tenants.iter().any(|row| &*row.name == name);
        assert!(has(&ledger.view("p".into(), snapshot(0, &crowd(101.0, 100.0), &[])), "first"));
        assert!(has(&ledger.view("p".into(), snapshot(1, &crowd(100.0, 110.0), &[])), "first"));
        assert!(has(&ledger.view("p".into(), snapshot(2, &crowd(100.0, 130.0), &[])), "last"));
    }

    #[test]
    fn loans_are_bounded_and_the_largest_come_first() {
        let loan = |i: u32| json!({"from": "a", "to": format!("t{i}"), "resource": "requests", "amount": f64::from(i)});
        let lending: Vec<_> = (0..60).map(loan).collect();
        let proxy = NeighbourLedger::default().view("p".into(), snapshot(0, &[], &lending));
        assert_eq!((proxy.lending.len(), proxy.lending_left_out), (MAX_LOANS, 9), "nothing is no loan");
        assert!((proxy.lending[0].amount - 59.0).abs() < 1e-9);
    }

    #[test]
    fn a_capacity_that_nobody_knows_is_none() {
        let unknown = json!({"resources": [{"name": "requests", "capacity": null, "used": 10.0}]});
        let snapshot = serde_json::from_value(unknown).expect("a snapshot");
        let proxy = NeighbourLedger::default().view("p".into(), snapshot);
        assert_eq!((proxy.resources[0].capacity, proxy.rest), (None, None));
    }

    #[test]
    fn what_a_tenant_does_not_touch_takes_no_room() {
        let mut idle = tenant("a", 0.0, 0);
        idle["resources"][0]["share"] = json!(0.0);
        let proxy = NeighbourLedger::default().view("p".into(), snapshot(0, &[idle], &[]));
        assert!(proxy.tenants[0].resources.is_empty());
    }
}

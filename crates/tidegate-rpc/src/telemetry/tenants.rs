//! Rows for the tenants with the most calls, and one for all others. Callers may invent tenants; rows stay bounded.

use super::calls::Calls;
use crate::machine::Tenant;

/// Tenants with a row of their own.
pub(super) const ROWS: usize = 16;
/// Calls of tenants without a row after which one of these may take the place of another: so seldom does a row change hands.
const STRETCH: u32 = 4096;
/// Tenants without a row that are counted in a stretch.
const RIVALS: usize = 8;
/// Calls of one tenant in a stretch that are worth a row.
const LEAST: u32 = STRETCH / 16;
/// How many times the calls of a row's tenant another must have made in a stretch to take its place.
const AHEAD: u32 = 2;

/// One tenant's row.
#[derive(Clone, Copy, Debug)]
struct Row {
    tenant: Tenant,
    calls: Calls,
    /// Calls in this stretch.
    recent: u32,
}

/// The first [`ROWS`] tenants that call have rows; a stretch of calls of others gives the row of the tenant that called least to the one
/// among them that called most. A tenant that loses its row takes its counts along: `other` never jumps.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenants {
    rows: Vec<Row>,
    other: Calls,
    /// Counts of the most frequent tenants without a row, too low by at most an eighth of the stretch (Misra and Gries, 1982).
    rivals: Vec<(Tenant, u32)>,
    stretch: u32,
}

impl Tenants {
    /// A call of `tenant` arrived.
    pub(super) fn offered(&mut self, tenant: Tenant) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.tenant == tenant) {
            row.recent = row.recent.saturating_add(1);
            row.calls.offered += 1;
        } else if self.rows.len() < ROWS {
            let calls = Calls { offered: 1, ..Calls::default() };
            self.rows.push(Row { tenant, calls, recent: 1 });
        } else {
            self.other.offered += 1;
            self.compete(tenant);
        }
    }

    /// The counts of `tenant`, whose call was offered before.
    pub(super) fn of(&mut self, tenant: Tenant) -> &mut Calls {
        let row = self.rows.iter_mut().find(|row| row.tenant == tenant);
        row.map_or(&mut self.other, |row| &mut row.calls)
    }

    /// The rows in the order of their tenants' numbers, then the others' together.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Option<Tenant>, Calls)> {
        let mut rows: Vec<(Tenant, Calls)> = self.rows.iter().map(|row| (row.tenant, row.calls)).collect();
        rows.sort_unstable_by_key(|(tenant, _)| *tenant);
        let other = (self.other != Calls::default()).then_some((None, self.other));
        rows.into_iter().map(|(tenant, calls)| (Some(tenant), calls)).chain(other)
    }

    fn compete(&mut self, tenant: Tenant) {
        if let Some((_, calls)) = self.rivals.iter_mut().find(|(rival, _)| *rival == tenant) {
            *calls += 1;
        } else if self.rivals.len() < RIVALS {
            self.rivals.push((tenant, 1));
        } else {
            self.rivals.iter_mut().for_each(|(_, calls)| *calls -= 1);
            self.rivals.retain(|(_, calls)| *calls > 0);
        }
        self.stretch += 1;
        if self.stretch >= STRETCH {
            self.end_stretch();
        }
    }

    fn end_stretch(&mut self) {
        let first = self.rivals.iter().max_by_key(|(_, calls)| *calls);
        let last = self.rows.iter_mut().min_by_key(|row| row.recent);
        if let (Some(&(tenant, calls)), Some(row)) = (first, last)
            && calls >= LEAST
            && calls > AHEAD * row.recent
        {
            // What it was counted before remains with the others.
            *row = Row { tenant, calls: Calls::default(), recent: 0 };
        }
        self.rows.iter_mut().for_each(|row| row.recent = 0);
        self.rivals.clear();
        self.stretch = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tenants: &Tenants) -> Vec<Option<u32>> {
        tenants.rows().map(|(tenant, _)| tenant.map(|Tenant(name)| name)).collect()
    }

    #[test]
    fn ten_thousand_invented_tenants_have_one_row() {
        let mut tenants = Tenants::default();
        for _ in 0..100 {
            (1..=16).for_each(|name| tenants.offered(Tenant(name)));
        }
        let honest = names(&tenants);
        for round in 0..20 {
            (0..10_000).for_each(|name| tenants.offered(Tenant(1_000 + name)));
            // The honest ones go on calling.
            (0..3 * (round % 2 + 1)).for_each(|_| (1..=16).for_each(|name| tenants.offered(Tenant(name))));
        }
        assert_eq!(names(&tenants), [honest, vec![None]].concat());
        assert_eq!(tenants.rows().last().map(|(_, calls)| calls.offered), Some(200_000));
    }

    #[test]
    fn a_tenant_that_calls_much_gets_the_row_of_one_that_no_longer_does() {
        let mut tenants = Tenants::default();
        (1..=16).for_each(|name| tenants.offered(Tenant(name)));
        for _ in 0..2 * STRETCH {
            (2..=16).for_each(|name| tenants.offered(Tenant(name)));
            tenants.offered(Tenant(99));
        }
        let rows = names(&tenants);
        assert!(rows.contains(&Some(99)) && !rows.contains(&Some(1)), "{rows:?}");
        assert_eq!(tenants.of(Tenant(99)).offered, u64::from(STRETCH));
    }
}

//! Who holds an upstream's slots, and who may have one more.

use std::collections::BTreeMap;

use super::turns::{Flow, May};
use crate::machine::neighbours::Claimant;

/// Of all slots, the part that is kept for claimants that hold less than their fair share: one in so many. A client
/// that reads its answers slowly keeps slots for as long as it likes, and would else keep all of them. As many beside
/// these are kept for names of one source that hold less than others of the same.
const KEPT_PART: u64 = 8;

/// Who holds slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    all: Held,
    /// Streams alone.
    streams: Held,
}

impl Holders {
    pub(super) fn take(&mut self, flow: Flow) {
        self.all.take(flow);
        if flow.is_stream {
            self.streams.take(flow);
        }
    }

    pub(super) fn let_go(&mut self, flow: Flow) {
        self.all.let_go(flow);
        if flow.is_stream {
            self.streams.let_go(flow);
        }
    }
}

/// Slots of each claimant; those with none are not in it.
#[derive(Clone, Debug, Default)]
struct Held {
    claimants: BTreeMap<Claimant, Part>,
    sum: u64,
    /// Those of names that sources make up, by source and tenant.
    names: BTreeMap<(u32, u32), u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    slots: u64,
    /// Of a source, names that have some of these.
    names: u64,
}

impl Held {
    fn take(&mut self, flow: Flow) {
        self.sum += 1;
        let part = self.claimants.entry(flow.claimant).or_default();
        part.slots += 1;
        if let Claimant::Source(source) = flow.claimant {
            let name = self.names.entry((source, flow.tenant)).or_default();
            part.names += u64::from(*name == 0);
            *name += 1;
        }
    }

    fn let_go(&mut self, flow: Flow) {
        let Some(part) = self.claimants.get_mut(&flow.claimant) else { return };
        self.sum -= 1;
        part.slots -= 1;
        if let Claimant::Source(source) = flow.claimant
            && let Some(name) = self.names.get_mut(&(source, flow.tenant))
        {
            *name -= 1;
            if *name == 0 {
                part.names -= 1;
                self.names.remove(&(source, flow.tenant));
            }
        }
        if part.slots == 0 {
            self.claimants.remove(&flow.claimant);
        }
    }

    /// Whether a claimant may have one more of `slots`, of which `active` are taken: anybody while more than the kept
    /// part is free, else, if there is one, who holds less than all would have with one more of them. Of what a source
    /// may have up to there, its names share the last in the same way.
    fn admit(&self, flow: Flow, slots: u64, active: u64) -> May {
        let (free, kept) = (slots.saturating_sub(active), slots / KEPT_PART);
        let Part { slots: held, names } = self.claimants.get(&flow.claimant).copied().unwrap_or_default();
        if free <= kept && (free == 0 || held * (self.claimants.len() as u64 + 1) >= slots) {
            return May::NotItsFlow;
        }
        if let Claimant::Source(source) = flow.claimant
            && free <= 2 * kept
            && let Some(own) = self.names.get(&(source, flow.tenant))
        {
            let part = held + free.saturating_sub(kept);
            if own * (names + 1) >= part {
                return May::NotItsName;
            }
        }
        May::Start
    }
}

/// Slots of all servers that are up, those that are taken, and how many of them streams may have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    pub(super) slots: u64,
    pub(super) active: u64,
    pub(super) streams: u64,
}

impl Shares {
    /// Whether a flow may have one more.
    pub(super) fn admit(self, flow: Flow, held: &Holders) -> May {
        match held.all.admit(flow, self.slots, self.active) {
            May::Start if flow.is_stream => held.streams.admit(flow, self.streams, held.streams.sum),
            may => may,
        }
    }

    /// Whether none is free.
    pub(super) fn is_used_up(self) -> bool {
        self.active >= self.slots
    }
}

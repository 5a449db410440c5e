//! What the machines say and what stands on the wire, in each other's terms.

use std::time::Duration;

use tidegate_core::time::nanos;
use tidegate_wire::rpc::client::Wish;
use tidegate_wire::rpc::server;

use crate::error::Violation;
use crate::machine::{Ask, Grant, Priority, ShedReason, Tenant};

#[inline]
pub(super) fn wish_of(ask: &Ask) -> Wish {
    Wish {
        demand: ask.demand,
        exact: ask.exact,
        credited: ask.credited,
        aware: ask.aware,
        priority: ask.priority.0,
        // Zero would say that there is no deadline, not that it is past.
        budget_ns: ask.budget.map_or(0, |budget| nanos(budget).max(1)),
        round_trip_ns: u32::try_from(nanos(ask.round_trip)).unwrap_or(u32::MAX),
    }
}

#[inline]
pub(super) fn ask_of(wish: &Wish, tenant: Tenant) -> Ask {
    Ask {
        demand: wish.demand,
        exact: wish.exact,
        credited: wish.credited,
        aware: wish.aware,
        priority: Priority(wish.priority),
        claimed: None,
        tenant,
        budget: (wish.budget_ns > 0).then(|| Duration::from_nanos(wish.budget_ns)),
        round_trip: Duration::from_nanos(wish.round_trip_ns.into()),
        chance: 0,
        group: 0,
    }
}

#[inline]
pub(super) fn wire_grant(grant: &Grant) -> server::Grant {
    server::Grant { lease_ns: nanos(grant.lease), window: grant.window, level: grant.level }
}

#[inline]
pub(super) fn machine_grant(grant: &server::Grant) -> Grant {
    Grant { window: grant.window, level: grant.level, lease: Duration::from_nanos(grant.lease_ns) }
}

pub(super) fn number_of(reason: ShedReason) -> u8 {
    let at = ShedReason::ALL.iter().position(|&other| other == reason).expect("every reason has its number");
    u8::try_from(at).expect("fewer than 256 reasons")
}

pub(super) fn reason_of(number: u8) -> Result<ShedReason, Violation> {
    ShedReason::ALL.get(usize::from(number)).copied().ok_or(Violation::Reason(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_survives_the_wire() {
        let ask = Ask {
            demand: 7,
            exact: true,
            credited: true,
            aware: true,
            priority: Priority::BATCH,
            claimed: None,
            tenant: Tenant(3),
            budget: Some(Duration::from_micros(5)),
            round_trip: Duration::from_micros(40),
            chance: 0,
            group: 0,
        };
        for exact in [true, false] {
            let ask = Ask { exact, ..ask };
            assert_eq!(ask_of(&wish_of(&ask), Tenant(3)), ask);
        }
        let none = Ask { budget: None, ..ask };
        assert_eq!(ask_of(&wish_of(&none), Tenant(3)), none);
        let past = Ask { budget: Some(Duration::ZERO), ..ask };
        assert_eq!(ask_of(&wish_of(&past), Tenant(3)).budget, Some(Duration::from_nanos(1)));
        let grant = Grant { window: 9, level: 8, lease: Duration::from_millis(3) };
        assert_eq!(machine_grant(&wire_grant(&grant)), grant);
    }

    #[test]
    fn reasons_keep_their_numbers() {
        assert!(ShedReason::ALL.iter().all(|&reason| reason_of(number_of(reason)) == Ok(reason)));
        assert_eq!(reason_of(9), Err(Violation::Reason(9)));
    }
}

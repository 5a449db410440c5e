//! Hellos that wait until their tenants may have more.
//!
//! A handshake that waits goes on as one that comes does, in the lane that its tenant is in then: what has become its
//! tenant's due meanwhile is done with the shares.

use tidegate_core::Instant;

use super::super::resource::Resource;
use super::{Lane, Mode, Neighbours, Short, Stage, Tenant, Verdict, merged};

/// What the threads have left that compute handshakes beyond their tenants' shares.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Second {
    /// They may soon have nothing to do: then more may come than there are tokens for.
    pub has_spare: bool,
    /// So many wait for them that no more may, but for what is owed.
    pub is_full: bool,
}

impl Second {
    fn has_room(self, lane: Lane, owed: bool) -> bool {
        lane == Lane::Share || owed || !self.is_full
    }
}

impl Neighbours {
    /// [`try_take_or_spare`](Self::try_take_or_spare) for a hello that can wait: `None` if it should, and
    /// [ask again](Self::try_hello_again). It waits as well if it would be computed by threads that have no room for it.
    pub fn try_hello(
        &mut self,
        tenant: Tenant,
        costs: &[(Resource, u64)],
        second: Second,
        now: Instant,
    ) -> Option<Verdict> {
        let short = match self.take_if(tenant, costs, |lane, owed| second.has_room(lane, owed), now) {
            Ok((lane, owed)) => return Some(Verdict::Admit { lane, owed }),
            Err(short) => short,
        };
        // What the question has counted as wanted stays counted; the second one counts nothing.
        if let Some(lane) = self.spare(tenant, costs, second.has_spare, &short, now) {
            return Some(Verdict::Admit { lane, owed: false });
        }
        self.refuse_or_wait(tenant, Stage::Hello, costs, &short, now)
    }

    /// May a hello go on that waits, and was counted as wanted? If so it is charged, in which lane and whether it is owed;
    /// else the resource that it waits for.
    ///
    /// # Errors
    /// The resource that there is not enough of.
    pub fn try_hello_again(
        &mut self,
        tenant: Tenant,
        costs: &[(Resource, u64)],
        second: Second,
        now: Instant,
    ) -> Result<(Lane, bool), Resource> {
        if self.config.mode != Mode::Restrict {
            return self.try_again(tenant, costs, false, now).map(|lane| (lane, true));
        }
        match self.take_if(tenant, costs, |lane, owed| second.has_room(lane, owed), now) {
            Ok(taken) => {
                let (wanted, asked) = merged(costs);
                let slot = self.table.index(tenant);
                self.uncount(&Short { slot, at: Resource::COUNT, wanted, asked });
                Ok(taken)
            }
            Err(short) => {
                self.uncount(&short);
                let lane = self.spare(tenant, costs, second.has_spare, &short, now);
                lane.map(|lane| (lane, false)).ok_or(Resource::ALL[short.at])
            }
        }
    }

    /// Charges nobody for the core's time, if nothing else is short and there is time to `spare`.
    pub(super) fn spare(
        &mut self,
        tenant: Tenant,
        costs: &[(Resource, u64)],
        spare: bool,
        short: &Short,
        now: Instant,
    ) -> Option<Lane> {
        let is_idle_time = spare && self.config.mode == Mode::Restrict && self.is_learnt_time(short.at);
        if is_idle_time { self.try_again(tenant, costs, true, now).ok() } else { None }
    }
}

//! What a server makes of what its callers say about themselves.

use serde::{Deserialize, Serialize};

use super::{Ask, Priority, Tenant};

/// How far a server trusts what calls claim: their tenant and their priority.
///
/// The name that a client gives itself is no claim: it counts once a call of it was served, and earns the part of one
/// client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claims {
    /// No further than a stranger's: claimed tenants are ignored, and a call matters no more than [`Priority::DEFAULT`]. It
    /// may matter less, for that harms nobody else. Among the calls of one client its own better priorities still come
    /// first: the client sends these before others, within what the server lets it send.
    #[default]
    Untrusted,
    /// Priorities are believed, tenants are not: for callers that are one's own and of one tenant.
    Priorities,
    /// All of it: for callers that are one's own services, which hand on what they know of theirs.
    Trusted,
}

/// What the server knows of a call by itself; `None` where it leaves it to [`Claims`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// Whom it belongs to.
    pub tenant: Option<Tenant>,
    /// How much it matters.
    pub priority: Option<Priority>,
}

impl Claims {
    /// The tenant of a caller that claims to be `claimed`.
    #[must_use]
    pub fn tenant(self, claimed: Tenant, known: Option<Tenant>) -> Tenant {
        let believed = if self == Self::Trusted { claimed } else { Tenant::default() };
        known.unwrap_or(believed)
    }

    /// What `ask` is to the server.
    #[must_use]
    pub fn judge(self, ask: Ask, known: Known) -> Ask {
        let tenant = self.tenant(ask.tenant, known.tenant);
        let (priority, claimed) = match known.priority {
            // Its caller let it through by another priority than this one.
            Some(priority) if priority != ask.priority => (priority, Some(ask.priority)),
            None if self == Self::Untrusted => (ask.priority.max(Priority::DEFAULT), None),
            _ => (ask.priority, None),
        };
        Ask { priority, claimed, tenant, ..ask }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(claims: Claims, priority: u8, known: Known) -> (u8, Option<u8>, u32) {
        let ask = Ask { priority: Priority(priority), tenant: Tenant(7), ..Ask::default() };
        let ask = claims.judge(ask, known);
        (ask.priority.0, ask.claimed.map(|claimed| claimed.0), ask.tenant.0)
    }

    #[test]
    fn a_stranger_may_matter_less_and_not_more() {
        let known = Known::default();
        assert_eq!(judged(Claims::Untrusted, 0, known), (128, None, 0));
        assert_eq!(judged(Claims::Untrusted, 255, known), (255, None, 0));
        assert_eq!(judged(Claims::Priorities, 0, known), (0, None, 0));
        assert_eq!(judged(Claims::Trusted, 0, known), (0, None, 7));
    }

    #[test]
    fn what_the_server_knows_counts_whatever_is_trusted() {
        let known = Known { tenant: Some(Tenant(3)), priority: Some(Priority(9)) };
        for claims in [Claims::Untrusted, Claims::Priorities, Claims::Trusted] {
            assert_eq!(judged(claims, 0, known), (9, Some(0), 3));
            assert_eq!(judged(claims, 9, known), (9, None, 3));
        }
    }
}

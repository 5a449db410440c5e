//! What is asked about a tenant, and what is answered.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Resource;

/// A tenant, resolved: where its state stands in the table of one [`Neighbours`](super::Neighbours).
///
/// A handle whose tenant was idle so long that another took its place means [`OTHER`](Self::OTHER). A tenant that holds
/// something is never idle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tenant(pub(super) u32);

impl Tenant {
    /// Everybody who has no name of his own, or for whom the table had no room: they share like one tenant.
    pub const OTHER: Self = Self(0);
    /// What they are called.
    pub const OTHER_NAME: &str = "other";

    /// A number that no other tenant has at the same time.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Who takes turns with others: a tenant, or all names together that one source makes up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Claimant {
    /// For itself.
    Tenant(Tenant),
    /// By the source's number.
    Source(u32),
}

impl Claimant {
    /// Everybody who has no name of his own.
    pub const OTHER: Self = Self::Tenant(Tenant::OTHER);

    /// A tenant by a number that the test gives it.
    #[cfg(test)]
    pub(crate) const fn numbered(tenant: u32) -> Self {
        Self::Tenant(Tenant(tenant))
    }
}

impl Default for Claimant {
    fn default() -> Self {
        Self::OTHER
    }
}

/// How far the work had come when it was asked about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stage {
    /// Its `ClientHello` was read.
    Hello,
    /// A request was read.
    Request,
    /// It waited in the queue of its route's `rate_limit`, or found that full.
    Queue,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// Its place, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The answer to [`try_take`](super::Neighbours::try_take).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// It was charged; do it.
    Admit {
        /// Where.
        lane: Lane,
        /// True if it may not be refused any more: it is guaranteed, and its tenant is not muted. If the overflow lane has
        /// no room for it, it is done at once.
        owed: bool,
    },
    /// Nothing was charged; say no, and why.
    Refuse(Refusal),
}

/// Where admitted work is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Its tenant keeps to its share: at once.
    Share,
    /// Its tenant wants more than its share: with what the others leave of the core, so that it delays none of them.
    Overflow,
}

/// Why work was refused, and when it would not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What there was not enough of; of several the first.
    pub resource: Resource,
    /// Whose fault it is.
    pub cause: Cause,
    /// The tokens are there then, if the tenant lets its other refused work come back when it was told to.
    pub retry_after: Duration,
    /// The tenant's share: units per second, of a gauge units.
    pub share: u64,
    /// The capacity, as the share.
    pub limit: u64,
    /// What the work was expected to take of it, in units.
    pub cost: u64,
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The tenant's: it took its share, and there is nothing left over. The answer is 429.
    OverShare,
    /// Nobody's: the tenant is within what it could expect, but there is no room. The answer is 503.
    SystemFull,
}

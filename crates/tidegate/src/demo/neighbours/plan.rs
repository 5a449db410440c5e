//! What the demo of neighbours offers, to whom, and what it calls good.
//!
//! Two proxies get the same two tenants, each in front of a service of its own that can answer
//! [`Plan::capacity_per_s`] requests per second, one after the other, and refuses when [`Plan::waiting_max`] wait. That
//! service is the scarce thing, and waiting is all that its work consists of: neither side takes the other's processor.
//! Tenant A sends [`Plan::quiet_per_s`], always. Tenant B sends what the slider says. The right proxy is told one number,
//! [`Plan::admitted_per_s`]: what may pass to the service, of whomever. The left one lets everything pass.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Which of the two proxies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// As the page and the console call it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Left => "Without limits",
            Self::Right => "With Tidegate",
        }
    }
}

/// Which of the two tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tenant {
    /// A: the same few requests, always.
    Quiet,
    /// B.
    Noisy,
}

impl Tenant {
    pub(crate) const BOTH: [Self; 2] = [Self::Quiet, Self::Noisy];

    /// The host that it asks for, which is what tells tenants apart.
    pub(crate) fn host(self) -> &'static str {
        match self {
            Self::Quiet => "a.example",
            Self::Noisy => "b.example",
        }
    }
}

/// The numbers of the demo.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Plan {
    /// What each service can answer.
    pub(crate) capacity_per_s: f64,
    /// Requests that wait at a service before it refuses more.
    pub(crate) waiting_max: u32,
    /// What A sends.
    pub(crate) quiet_per_s: f64,
    /// What the right proxy lets pass, of all tenants together.
    pub(crate) admitted_per_s: u32,
    /// The objective: 99 % of A's answers come within it.
    pub(crate) goal: Duration,
    /// An answer later than this is none.
    pub(crate) deadline: Duration,
    /// How long B sends the slider's most when the button is pressed.
    pub(crate) spike_length: Duration,
}

/// What B can be asked to send, in requests per second: as much as A, up to 32 times as much, as in the slides of
/// "Can you mute noisy neighbors?" (ATS Fall 2021 Summit).
pub(crate) const NOISE: RangeInclusive<f64> = 100.0..=3_200.0;

impl Default for Plan {
    fn default() -> Self {
        Self {
            // A millisecond each, as long as a small query to a database; and so few that two cores are never the
            // bottleneck, even at the most noise on both sides.
            capacity_per_s: 1_000.0,
            // A fifth of a second's work: as much as people put up with.
            waiting_max: 200,
            quiet_per_s: 100.0,
            // 80 % of what the service can do, where its line is still short, and soon short again after a burst.
            admitted_per_s: 800,
            goal: Duration::from_millis(50),
            deadline: Duration::from_secs(1),
            spike_length: Duration::from_secs(3),
        }
    }
}

impl Plan {
    /// What `tenant` sends when the noise is `noise`.
    pub(crate) fn offered_per_s(&self, tenant: Tenant, noise: f64) -> f64 {
        match tenant {
            Tenant::Quiet => self.quiet_per_s,
            Tenant::Noisy => noise,
        }
    }
}

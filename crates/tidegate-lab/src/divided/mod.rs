//! One limit over several proxies, which clients reach as they will.
//!
//! The proxies' own limiters, control's own divider and the core's lending in virtual time: requests arrive at one proxy
//! more than at others, and that one changes. Every admission of all proxies together is checked against the whole limit;
//! beside them the same requests meet an undivided bucket, so that it is known which of them was refused only because the
//! limit is divided.
//!
//! | module | its one job |
//! |---|---|
//! | `play` | the run |
//! | `node` | a proxy: its limiter, its lending and its clock |

mod node;
mod play;

use serde::{Deserialize, Serialize};
use tidegate_core::limit::Limit;

pub use self::play::play;

/// How a limit is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Evenly, for good.
    Static,
    /// Evenly at first; control's divider then follows the demand.
    Adaptor,
    /// Evenly, for good; proxies lend each other tokens.
    Lending,
    /// Control follows the demand, and proxies lend each other tokens.
    Both,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Static, Self::Adaptor, Self::Lending, Self::Both];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Adaptor => "adaptor",
            Self::Lending => "lending",
            Self::Both => "both",
        }
    }

    const fn adapts(self) -> bool {
        matches!(self, Self::Adaptor | Self::Both)
    }

    const fn lends(self) -> bool {
        matches!(self, Self::Lending | Self::Both)
    }
}

/// What is run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The whole limit.
    pub limit: Limit,
    /// Proxies.
    pub proxies: u32,
    /// Requests per second, as a share of the rate.
    pub load: f64,
    /// Requests that come together to one proxy.
    pub batch: u32,
    /// Share of the requests that come to the busy proxy; the others divide the rest evenly.
    pub busy: f64,
    /// After so long the next proxy is the busy one.
    pub shift_s: u32,
    /// At the end of that, nobody asks for so long, and all buckets fill.
    #[serde(default)]
    pub quiet_s: u32,
    /// How long a datagram between proxies is on its way.
    pub way_us: u32,
    /// How long a message between control and a proxy is on its way.
    pub control_way_us: u32,
    /// How likely a datagram, and a message of control, is lost.
    pub loss: f64,
    /// How often on average a proxy is killed and started again with nothing left, in seconds; 0 for never.
    #[serde(default)]
    pub crash_s: u32,
    /// Clocks of proxies run fast or slow by at most half of this, in parts in a million.
    #[serde(default)]
    pub drift_ppm: u32,
    /// Length of the run.
    pub length_s: u32,
    /// What is not counted at its beginning but in the law.
    pub warm_up_s: u32,
    /// Seconds of demand that the adaptor looks at.
    pub window_s: u32,
}

/// What was seen.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// How the limit was divided.
    pub scheme: Scheme,
    /// Requests after the warm-up.
    pub requests: u64,
    /// Of these, admitted.
    pub admitted: u64,
    /// Of these, refused while the undivided bucket admitted them.
    pub refused_with_tokens: u64,
    /// Of these, refused by the undivided bucket.
    pub refused_undivided: u64,
    /// Admissions, from the beginning on.
    pub checked: u64,
    /// Admissions that completed a window with more than burst + rate * t.
    pub violations: u64,
    /// The fullest window, in requests above burst + rate * t; not above zero if the law holds.
    pub excess_max: f64,
    /// Datagrams between proxies for each request.
    pub frames_per_request: f64,
    /// Orders of control that put a part in force, over the whole run.
    pub orders: u64,
    /// Of everything that happened.
    pub trace: String,
}

impl Report {
    /// Requests that were refused while the undivided bucket had tokens, as a share of all.
    #[must_use]
    pub fn share_refused_with_tokens(&self) -> f64 {
        share(self.refused_with_tokens, self.requests)
    }

    /// Requests that were refused, as a share of all.
    #[must_use]
    pub fn share_refused(&self) -> f64 {
        share(self.requests - self.admitted, self.requests)
    }

    /// Requests that the undivided bucket refuses, as a share of all.
    #[must_use]
    pub fn share_refused_undivided(&self) -> f64 {
        share(self.refused_undivided, self.requests)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests;

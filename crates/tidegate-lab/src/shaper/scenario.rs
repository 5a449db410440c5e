//! What is run.

use serde::{Deserialize, Serialize};
use tidegate_core::control::window::Mode;

/// Payload of a full segment at an MTU of 1500, and its bytes on the line.
pub(super) const MSS: u64 = 1_448;
pub(super) const FRAME: u64 = 1_514;

/// What keeps the queue of a class short, if anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scheme {
    /// HTB with its usual leaf of 1000 packets.
    Htb,
    /// HTB with a leaf of few bytes.
    Bfifo {
        /// How many.
        bytes: u64,
    },
    /// A queue of 25 ms, as the bandwidth plugin of container networks sets up.
    Tbf,
    /// The shaper with its integral controller.
    Integral,
    /// The shaper with DCTCP's law.
    Dctcp,
    /// The shaper with its integral controller and isolation.
    Isolation,
}

impl Scheme {
    /// In tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Htb => "htb".to_owned(),
            Self::Bfifo { bytes } => format!("bfifo {bytes}"),
            Self::Tbf => "tbf 25 ms".to_owned(),
            Self::Integral => "integral".to_owned(),
            Self::Dctcp => "dctcp".to_owned(),
            Self::Isolation => "isolation".to_owned(),
        }
    }

    /// The control law, if the shaper's machine stands there.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Htb | Self::Bfifo { .. } | Self::Tbf => None,
            Self::Integral | Self::Isolation => Some(Mode::Integral),
            Self::Dctcp => Some(Mode::Dctcp),
        }
    }

    /// Bytes that a leaf holds at `rate` bytes per second, if it is not packets that count.
    pub(super) fn bytes_max(self, rate: u64) -> Option<u64> {
        match self {
            Self::Bfifo { bytes } => Some(bytes),
            // 25 ms and the burst.
            Self::Tbf => Some(rate / 40 + (rate / 2_000).max(1_600)),
            Self::Htb | Self::Integral | Self::Dctcp | Self::Isolation => None,
        }
    }
}

/// A host, its limiters and its flows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Limiters on the host's one line.
    #[serde(default = "one")]
    pub limiters: u32,
    /// Rate of each limiter, in millions of bits per second.
    pub rate_mbit: u64,
    /// Rate of all together, in millions of bits per second: each limiter then borrows up to this what others leave.
    pub total_mbit: Option<u64>,
    /// Classes between the limiters and the total, with equal numbers of limiters below.
    #[serde(default)]
    pub parents: u32,
    /// Limiters that have flows for a while only.
    pub neighbour: Option<Neighbour>,
    /// Flows of each limiter that always have something to send.
    pub flows: u32,
    /// Rate of the line behind the limiters, in millions of bits per second.
    #[serde(default = "ten_gigabit")]
    pub line_mbit: u64,
    /// Round trip without any queue.
    #[serde(default = "near")]
    pub rtt_us: f64,
    /// The queue that the shaper is to hold, as time.
    #[serde(default = "setpoint")]
    pub setpoint_us: u64,
    /// Requests of 64 bytes through each limiter, each second.
    #[serde(default = "thousand")]
    pub mice_per_s: u32,
    /// Largest bursts of senders, in segments: 1 without segmentation offload.
    #[serde(default = "gso")]
    pub gso_segments: u64,
    /// Some of the flows have peers far away.
    pub far: Option<Far>,
    /// Short flows beside them.
    pub churn: Option<Churn>,
    /// The receiver of the first flow stops reading at times.
    pub stall: Option<Stall>,
    /// The receiver of the second flow has no window scaling.
    #[serde(default)]
    pub unscaled: bool,
    /// Share of packets lost behind the limiter, each way.
    #[serde(default)]
    pub loss: f64,
    /// The first limiter's rate changes.
    pub change: Option<Change>,
    /// From then on applications send nothing new, receivers read and nothing is lost: what is still on its way at the end of
    /// the run is stuck.
    pub calm_after_ms: Option<u64>,
    /// How long.
    pub length_ms: u64,
    /// Warm-up at the start of `length_ms`; nothing in it is counted.
    pub warm_up_ms: u64,
}

/// Flows with peers far away.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Far {
    /// Number of far flows: the last ones of each limiter.
    pub flows: u32,
    /// Their round trip.
    pub rtt_ms: f64,
}

/// Short flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// Flows that open each second through the first limiter.
    pub per_s: u32,
    /// Bytes of each.
    pub bytes: u64,
}

/// A receiver that stops reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Reads for so long, then stops.
    pub every_ms: u64,
    /// For so long.
    pub for_ms: u64,
}

/// Limiters that have flows for a while only: those after the first, which always has some. Any others have none but mice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbour {
    /// How many.
    pub limiters: u32,
    /// When they begin, from the beginning.
    pub from_ms: u64,
    /// When they end.
    pub to_ms: u64,
    /// What the first limiter has meanwhile, in millions of bits per second; the others share the rest.
    pub first_mbit: u64,
}

/// A new rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When, from the beginning.
    pub at_ms: u64,
    /// In millions of bits per second.
    pub to_mbit: u64,
}

const fn one() -> u32 {
    1
}

const fn ten_gigabit() -> u64 {
    10_000
}

const fn near() -> f64 {
    70.0
}

const fn setpoint() -> u64 {
    100
}

const fn thousand() -> u32 {
    1_000
}

const fn gso() -> u64 {
    44
}

impl Scenario {
    /// What is wrong with it, if anything: the key and what would be right.
    #[must_use]
    pub fn complaint(&self) -> Option<(&'static str, &'static str)> {
        let far = self.far.is_none_or(|far| far.flows <= self.flows && (0.0..=1_000.0).contains(&far.rtt_ms));
        let churn = self.churn.is_none_or(|churn| {
            churn.per_s > 0 && churn.bytes > 0 && u64::from(churn.per_s) * self.length_ms <= 50_000_000
        });
        let neighbour = self.neighbour.is_none_or(|neighbour| {
            (1..self.limiters).contains(&neighbour.limiters)
                && self.total_mbit.is_some_and(|total| (1..total).contains(&neighbour.first_mbit))
                && neighbour.from_ms < neighbour.to_ms
        });
        let rules = [
            ((1..=16).contains(&self.limiters), "limiters", "a number from 1 to 16"),
            ((1..=100_000).contains(&self.rate_mbit), "rate_mbit", "a number from 1 to 100000"),
            (self.flows <= 1_000, "flows", "at most 1000"),
            ((1..=400_000).contains(&self.line_mbit), "line_mbit", "a number from 1 to 400000"),
            ((1.0..=1e6).contains(&self.rtt_us), "rtt_us", "a number from 1 to 1000000"),
            ((1..=1_000_000).contains(&self.setpoint_us), "setpoint_us", "a number from 1 to 1000000"),
            ((1..=100_000).contains(&self.mice_per_s), "mice_per_s", "a number from 1 to 100000"),
            ((1..=44).contains(&self.gso_segments), "gso_segments", "a number from 1 to 44"),
            (far, "far", "at most as many flows as there are, with a round trip of at most 1000 ms"),
            (churn, "churn", "some flows, at most 50000 in all"),
            (self.stall.is_none_or(|stall| stall.every_ms > 0 && stall.for_ms > 0), "stall", "spans above zero"),
            (self.flows > 0 || self.stall.is_none(), "stall", "at least one flow"),
            (self.flows > 1 || !self.unscaled, "unscaled", "at least two flows"),
            ((0.0..=0.5).contains(&self.loss), "loss", "a share from 0 to 0.5"),
            (
                self.total_mbit.is_none_or(|total| total >= self.rate_mbit * u64::from(self.limiters)),
                "total_mbit",
                "all rates",
            ),
            (self.parents == 0 || self.limiters.is_multiple_of(self.parents), "parents", "a divisor of the limiters"),
            (neighbour, "neighbour", "other limiters, a total above what the first has, and times after one another"),
            (self.change.is_none_or(|change| (1..=100_000).contains(&change.to_mbit)), "change", "1 to 100000 Mbit/s"),
            ((1..=600_000).contains(&self.length_ms), "length_ms", "a number from 1 to 600000"),
            (self.warm_up_ms < self.length_ms, "warm_up_ms", "less than the length"),
        ];
        rules.into_iter().find(|(right, ..)| !right).map(|(_, key, message)| (key, message))
    }

    /// The same limiters without any flow but the mice.
    #[must_use]
    pub fn idle(&self) -> Self {
        let idle = Self { far: None, churn: None, stall: None, neighbour: None, change: None, ..self.clone() };
        Self { flows: 0, unscaled: false, loss: 0.0, ..idle }
    }

    /// Bytes per second.
    pub(super) fn rate(&self) -> u64 {
        bytes_per_s(self.rate_mbit)
    }

    /// With what others leave, in bytes per second.
    pub(super) fn ceil(&self) -> u64 {
        bytes_per_s(self.total_mbit.unwrap_or(self.rate_mbit))
    }

    pub(super) fn limiter_count(&self) -> usize {
        usize::try_from(self.limiters).expect("a checked scenario has few")
    }

    /// The parent above a limiter.
    pub(super) fn parent_of(&self, limiter: u32) -> usize {
        let each = self.limiters / self.parents.max(1);
        usize::try_from(limiter / each).expect("a checked scenario has few")
    }
}

pub(super) const fn bytes_per_s(mbit: u64) -> u64 {
    mbit * 125_000
}

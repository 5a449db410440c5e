//! What the exact theory says of a topic's parts: how long messages wait for tokens, beside what is measured.
//!
//! The theory is that of Poisson arrivals of batches (§7.2 and §7.11 of the specification). Correlated publishers wait
//! longer; what is measured beside it shows that.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::limit::Limit;
use tidegate_core::number::{float, whole};
use tidegate_core::replay::ServiceModel;
use tidegate_core::theory::md1::{AccessDelay, Bucket, Traffic};

use crate::machine::name::Name;
use crate::machine::rehearsal::{Replayed, even_parts};
use crate::machine::types::Slo;

/// Largest batch that the theory is asked about; it averages over the places in a batch.
const BATCH_MAX: u32 = 1_000;
/// Messages of a replay: some tens of milliseconds.
const REPLAYED: u32 = 60_000;
/// Same seed, same answer.
const SEED: u64 = 1;

/// The traffic of a topic.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Offered {
    /// Messages per second.
    pub rate_per_s: f64,
    /// Messages in a batch, on average.
    pub batch: f64,
}

impl Offered {
    fn traffic(self) -> Traffic {
        let batch = u32::try_from(whole(self.batch.round())).unwrap_or(BATCH_MAX).clamp(1, BATCH_MAX);
        Traffic { rate_per_s: self.rate_per_s, batch }
    }
}

/// What a part does to its messages, by theory.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Access {
    /// Waiting for tokens at the objective's quantile, microseconds.
    pub access_us_p99: f64,
    /// The mean of that.
    pub access_us_mean: f64,
    /// Messages that wait at all.
    pub share_delayed: f64,
}

impl Access {
    fn of(delay: &AccessDelay, quantile: f64) -> Self {
        Self {
            access_us_p99: delay.quantile_s(quantile) * 1e6,
            access_us_mean: delay.mean_s() * 1e6,
            share_delayed: delay.share_delayed(),
        }
    }
}

/// What a split costs, by theory.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Prediction {
    /// All parts together.
    pub split: Access,
    /// The limit as one bucket.
    pub single: Access,
    /// By how much the p99 of waiting for tokens is longer than with one bucket, microseconds.
    pub penalty_us_p99: f64,
    /// By node.
    pub nodes: BTreeMap<Name, Access>,
}

fn bucket(limit: Limit) -> Bucket {
    Bucket { rate_per_s: limit.rate.as_per_s(), burst: float(limit.burst) }
}

/// What the theory says of `parts` of `limit`, each with its own rate of messages; `None` if there is no steady state: the
/// load is nothing, or no less than the limit.
#[must_use]
pub fn predict(limit: Limit, slo: Slo, offered: Offered, parts: &[(Name, Limit, f64)]) -> Option<Prediction> {
    let traffic = offered.traffic();
    let single = Access::of(&AccessDelay::new(traffic, bucket(limit)).ok()?, slo.quantile);
    let buckets = parts.iter().map(|(_, part, _)| bucket(*part)).collect();
    let split = Access::of(&AccessDelay::split(traffic, buckets).ok()?, slo.quantile);
    let one = |(node, part, rate_per_s): &(Name, Limit, f64)| {
        let delay = AccessDelay::new(Traffic { rate_per_s: *rate_per_s, ..traffic }, bucket(*part)).ok()?;
        Some((node.clone(), Access::of(&delay, slo.quantile)))
    };
    let penalty_us_p99 = split.access_us_p99 - single.access_us_p99;
    Some(Prediction { split, single, penalty_us_p99, nodes: parts.iter().filter_map(one).collect() })
}

/// A question: what if the limit were on so many nodes, with this burst?
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WhatIf {
    /// Equal parts.
    pub nodes: u32,
    /// With the whole burst.
    pub limit: Limit,
    /// What users are promised.
    pub slo: Slo,
    /// What is sent.
    pub offered: Offered,
    /// What a node takes for a message.
    pub service: ServiceModel,
}

/// Its answer.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WhatIfAnswer {
    /// Equal parts.
    pub k: u32,
    /// The whole burst.
    pub b: u64,
    /// From arrival to the end of processing at the objective's quantile, microseconds: the replay's.
    pub predicted_p99_us: f64,
    /// Whether that keeps the objective.
    pub meets_slo: bool,
    /// Waiting for tokens by the exact theory; `null` without a steady state.
    pub exact: Option<Access>,
    /// By the replay of random arrivals.
    pub replay: ReplayAnswer,
}

/// What a replay showed.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct ReplayAnswer {
    /// Messages.
    pub messages: u64,
    /// Those beyond the objective.
    pub share_over: f64,
    /// From arrival to the end of processing, microseconds.
    pub delay_us_p99: f64,
    /// Waiting for tokens.
    pub access_us_p99: f64,
}

impl From<Replayed> for ReplayAnswer {
    fn from(seen: Replayed) -> Self {
        Self {
            messages: seen.messages,
            share_over: float(seen.over_slo) / float(seen.messages.max(1)),
            delay_us_p99: seen.delay_us,
            access_us_p99: seen.access_us,
        }
    }
}

impl WhatIf {
    /// The answer; `None` if the burst has no token for each part. Some tens of milliseconds of processor time.
    #[must_use]
    pub fn answer(self) -> Option<WhatIfAnswer> {
        let Self { nodes, limit, slo, offered, service } = self;
        let traffic = offered.traffic();
        let most = (REPLAYED, SEED);
        let replay = even_parts(limit, nodes as usize, service, slo, (traffic.rate_per_s, traffic.batch), most)?;
        let exact = AccessDelay::split_evenly(traffic, bucket(limit), nodes).ok();
        Some(WhatIfAnswer {
            k: nodes,
            b: limit.burst,
            predicted_p99_us: replay.delay_us,
            meets_slo: replay.messages > 0 && float(replay.over_slo) <= (1.0 - slo.quantile) * float(replay.messages),
            exact: exact.map(|delay| Access::of(&delay, slo.quantile)),
            replay: replay.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Rate;

    use super::*;
    use crate::machine::rehearsal::service_of;

    const SLO: Slo = Slo { quantile: 0.99, within: Duration::from_millis(1) };
    const OFFERED: Offered = Offered { rate_per_s: 10_000.0, batch: 1.0 };

    fn limit(per_s: u64, burst: u64) -> Limit {
        Limit::new(Rate::per_s(per_s), burst)
    }

    #[test]
    fn a_split_costs_what_the_paper_says() {
        let part = |node: &str| (Name::from(node), limit(5_500, 13), 5_000.0);
        let told = predict(limit(11_000, 26), SLO, OFFERED, &[part("a"), part("b")]).unwrap();
        // §2.1 of the paper: a burst of 26 is the least with which the p99 does not wait.
        assert!(told.single.access_us_p99 < 1.0 && told.single.share_delayed < 0.01, "{told:?}");
        assert!(told.penalty_us_p99 > 500.0, "{told:?}");
        assert!((told.nodes["a"].access_us_p99 - told.split.access_us_p99).abs() < 1.0);
        assert_eq!(predict(limit(9_000, 26), SLO, OFFERED, &[part("a")]), None, "no steady state");
        assert_eq!(predict(limit(11_000, 26), SLO, OFFERED, &[]), None);
    }

    #[test]
    fn what_if_tells_theory_and_replay_side_by_side() {
        let service = service_of(80_000.0, 4, SLO, Duration::from_micros(100));
        let what_if = |nodes, burst| WhatIf { nodes, limit: limit(11_000, burst), slo: SLO, offered: OFFERED, service };
        let one = what_if(1, 60).answer().unwrap();
        assert!(one.meets_slo && one.predicted_p99_us < 1_000.0, "{one:?}");
        let six = what_if(6, 26).answer().unwrap();
        assert!(!six.meets_slo && six.predicted_p99_us > 5_000.0, "{six:?}");
        let exact = six.exact.unwrap().access_us_p99;
        assert!((six.replay.access_us_p99 / exact - 1.0).abs() < 0.5, "{six:?}");
        assert_eq!(what_if(7, 6).answer(), None);
    }
}

//! The TB Adaptor: parts of a contract that follow the traffic.
//!
//! Each node's last seconds are kept, with the tokens that came and the largest backlog in each. In every period the rate
//! is divided by the nodes' mean rates, and the burst by their largest backlogs. Source: §5.4 of the paper.
//! Departures: parts have floors, so that a node without traffic can take the next message; a node whose sensors are
//! missing keeps its part, and the others divide what is left; without any traffic, or any backlog, nothing changes; a
//! node to which nothing comes any more gets what the others' traffic leaves of the rate until its line is empty.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_core::limit::Limit;
use tidegate_core::number::{float, whole};

use super::portion::{Portion, WHOLE, divide};

/// Seconds that are kept of a node at most; a longer window counts as this one.
pub const SECONDS_MAX: u32 = 60;
/// Microseconds in the second of a node's clock.
const SECOND_US: u64 = 1_000_000;

/// How parts follow the traffic.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptorConfig {
    /// How often parts change; 1 s.
    pub period: Duration,
    /// Whole seconds over which means and largest backlogs are taken, from 1 to [`SECONDS_MAX`]; the paper's: 10 s.
    pub window: Duration,
    /// The least share of the rate for each node, 0.01; at most half an even share.
    pub rate_floor: f64,
    /// The least burst for each node: 1, or the largest batch that is admitted at once.
    pub burst_floor: u64,
    /// A node without a reading for so long keeps its part: 3 s.
    pub missing_after: Duration,
}

impl Default for AdaptorConfig {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            window: Duration::from_secs(10),
            rate_floor: 0.01,
            burst_floor: 1,
            missing_after: Duration::from_secs(3),
        }
    }
}

impl AdaptorConfig {
    /// The window in whole seconds.
    #[must_use]
    pub fn window_s(&self) -> u32 {
        u32::try_from(self.window.as_secs()).unwrap_or(SECONDS_MAX).clamp(1, SECONDS_MAX)
    }
}

/// A whole second at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Second {
    /// When it began, on the node's own clock.
    pub start_us: u64,
    /// Tokens that came.
    pub tokens: u64,
    /// The most tokens that waited at one moment.
    pub backlog_max: u64,
}

#[derive(Clone, Debug)]
struct Sensor {
    /// In order of time, within the window.
    seconds: VecDeque<Second>,
    heard: Instant,
    /// What began then or before does not count.
    since_us: Option<u64>,
}

impl Sensor {
    /// The second that was told last.
    fn newest_us(&self) -> Option<u64> {
        self.seconds.back().map(|newest| newest.start_us).or(self.since_us)
    }

    /// Tokens in `window` seconds, as many as there would be had all been seen.
    fn tokens(&self, window: u32) -> u64 {
        let sum: u64 = self.seconds.iter().map(|second| second.tokens).fold(0, u64::saturating_add);
        sum.saturating_mul(window.into()) / (self.seconds.len() as u64).max(1)
    }

    /// What waits in its line, if nothing came within the window. A backlog counts what is missing from a full bucket, too,
    /// and only what is beyond a bucket of `burst` waits. In the last two seconds: in one of them the bucket may have been
    /// deeper, and have missed more.
    fn left_behind(&self, burst: u64) -> u64 {
        let is_idle = self.seconds.iter().all(|second| second.tokens == 0);
        let least = self.seconds.iter().rev().take(2).map(|second| second.backlog_max).min();
        least.filter(|_| is_idle).map_or(0, |least| least.saturating_sub(burst))
    }

    fn backlog_max(&self) -> u64 {
        self.seconds.iter().map(|second| second.backlog_max).max().unwrap_or(0)
    }
}

/// What is known of the traffic of one claim at its nodes, which `K` names.
#[derive(Clone, Debug)]
pub struct Adaptor<K> {
    config: AdaptorConfig,
    sensors: BTreeMap<K, Sensor>,
    due: Instant,
}

impl<K: Ord + Clone> Adaptor<K> {
    /// Nothing is known; the first change is due a period after `now`.
    #[must_use]
    pub fn new(config: AdaptorConfig, now: Instant) -> Self {
        Self { config, sensors: BTreeMap::new(), due: now + config.period }
    }

    /// A node told its last seconds, oldest first; those that it told before count once. A node whose clock stepped back was
    /// restarted: what it told before is forgotten.
    pub fn on_seconds(&mut self, node: &K, seconds: &[Second], now: Instant) {
        let window = u64::from(self.config.window_s());
        let sensor = self.sensors.entry(node.clone()).or_insert_with(|| Sensor {
            seconds: VecDeque::new(),
            heard: now,
            since_us: None,
        });
        sensor.heard = now;
        let Some(told) = seconds.iter().map(|second| second.start_us).max() else { return };
        if sensor.newest_us().is_some_and(|newest| told < newest) {
            sensor.seconds.clear();
            sensor.since_us = None;
        }
        for second in seconds {
            if sensor.newest_us().is_none_or(|newest| second.start_us > newest) {
                sensor.seconds.push_back(*second);
            }
        }
        let oldest = told.saturating_sub((window - 1) * SECOND_US);
        sensor.seconds.retain(|second| second.start_us >= oldest);
        while sensor.seconds.len() as u64 > window {
            sensor.seconds.pop_front();
        }
    }

    /// Publishers moved: what was told until now says nothing of what comes. Nothing changes until `until`.
    pub fn restart(&mut self, until: Instant) {
        for sensor in self.sensors.values_mut() {
            sensor.since_us = sensor.newest_us();
            sensor.seconds.clear();
        }
        self.due = self.due.max(until);
    }

    /// A node is of no more interest.
    pub fn forget(&mut self, node: &K) {
        self.sensors.remove(node);
    }

    /// Tokens of a node per second, over the window; `None` if it told nothing.
    #[must_use]
    pub fn rate_per_s(&self, node: &K) -> Option<f64> {
        let window = self.config.window_s();
        let sensor = self.sensors.get(node).filter(|sensor| !sensor.seconds.is_empty())?;
        Some(float(sensor.tokens(window)) / f64::from(window))
    }

    /// Tokens per second that came to a node in its last two; `None` if it told fewer.
    #[must_use]
    pub fn lately_per_s(&self, node: &K) -> Option<f64> {
        let sensor = self.sensors.get(node).filter(|sensor| sensor.seconds.len() > 1)?;
        let tokens = sensor.seconds.iter().rev().take(2).map(|second| second.tokens).fold(0, u64::saturating_add);
        Some(float(tokens) / 2.0)
    }

    /// The largest backlog of a node within the window; 0 if it told nothing.
    #[must_use]
    pub fn backlog_max(&self, node: &K) -> u64 {
        self.sensors.get(node).map_or(0, Sensor::backlog_max)
    }

    /// The line at a node whose bucket is `burst` deep, in tokens: what more waited in the newest second that began at `since_us`
    /// of the node's clock or later. `None` if it told no such second yet; 0 if it never told any.
    #[must_use]
    pub fn line(&self, node: &K, burst: u64, since_us: u64) -> Option<u64> {
        let Some(sensor) = self.sensors.get(node).filter(|sensor| sensor.newest_us().is_some()) else { return Some(0) };
        let newest = sensor.seconds.back().filter(|newest| newest.start_us >= since_us)?;
        Some(newest.backlog_max.saturating_sub(burst))
    }

    /// Something came within the window to a node whose bucket is `burst` deep, or waits there.
    #[must_use]
    pub fn is_in_use(&self, node: &K, burst: u64) -> bool {
        let of =
            |sensor: &Sensor| sensor.seconds.iter().any(|second| second.tokens > 0) || sensor.left_behind(burst) > 0;
        self.sensors.get(node).is_some_and(of)
    }

    /// When the next change is due.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The parts from now on, of the same nodes as `parts` has; `None` if no change is due or nothing would change.
    ///
    /// The new parts sum to the whole contract: their shares to [`WHOLE`] and their bursts to its burst, as far as nodes
    /// whose sensors are missing leave that. A burst with less than a token for each node does not change.
    pub fn adapt(
        &mut self,
        contract: Limit,
        parts: &BTreeMap<K, Portion>,
        now: Instant,
    ) -> Option<BTreeMap<K, Portion>> {
        if now < self.due {
            return None;
        }
        // Late calls do not add up.
        self.due += self.config.period;
        if self.due <= now {
            self.due = now + self.config.period;
        }
        let changed = self.fitted(contract, parts, now);
        (changed != *parts).then_some(changed)
    }

    fn fitted(&self, contract: Limit, parts: &BTreeMap<K, Portion>, now: Instant) -> BTreeMap<K, Portion> {
        let mut fitted = parts.clone();
        let heard = |node: &&K| {
            let sensor = self.sensors.get(*node);
            sensor.is_some_and(|sensor| !sensor.seconds.is_empty() && sensor.heard + self.config.missing_after > now)
        };
        let present: Vec<&K> = parts.keys().filter(heard).collect();
        if present.is_empty() {
            return fitted;
        }
        let mut kept = Portion::NONE;
        for (node, portion) in parts {
            if present.binary_search(&node).is_err() {
                kept = kept.plus(*portion);
            }
        }
        let window = self.config.window_s();
        let sensors: Vec<&Sensor> = present.iter().filter_map(|node| self.sensors.get(*node)).collect();
        let bursts = present.iter().map(|node| parts[*node].burst);
        let left: Vec<u64> = sensors.iter().zip(bursts).map(|(sensor, burst)| sensor.left_behind(burst)).collect();
        let is_still = |sensor: &&Sensor| sensor.seconds.back().is_none_or(|newest| newest.tokens == 0);
        if sensors.iter().all(is_still) && left.iter().all(|&left| left == 0) {
            // Nothing comes any more: the rest of the window, which ends at each node in another moment, is no traffic.
            return fitted;
        }
        let mut tokens: Vec<u64> = sensors.iter().map(|sensor| sensor.tokens(window)).collect();
        let backlog = |(sensor, left): (&&Sensor, &u64)| if *left > 0 { 0 } else { sensor.backlog_max() };
        let backlogs: Vec<u64> = sensors.iter().zip(&left).map(backlog).collect();
        let whole_rate = whole(contract.rate.as_per_s() * f64::from(window));
        let free = whole_rate.saturating_sub(tokens.iter().copied().fold(0, u64::saturating_add));
        let waiting = left.iter().copied().fold(0, u64::saturating_add);
        for (tokens, left) in tokens.iter_mut().zip(left).filter(|(_, left)| *left > 0) {
            let share = u128::from(left) * u128::from(free.min(waiting)) / u128::from(waiting.max(1));
            *tokens = u64::try_from(share).unwrap_or(u64::MAX);
        }
        let even = float(WHOLE) / (2.0 * float(parts.len() as u64));
        let floor = whole((self.config.rate_floor * float(WHOLE)).clamp(0.0, even));
        if tokens.iter().any(|&tokens| tokens > 0) {
            let shares = divide(WHOLE.saturating_sub(kept.rate_shares), &tokens, floor);
            for (node, rate_shares) in present.iter().zip(shares) {
                if let Some(portion) = fitted.get_mut(*node) {
                    portion.rate_shares = rate_shares;
                }
            }
        }
        let burst = contract.burst.saturating_sub(kept.burst);
        if burst >= present.len() as u64 && backlogs.iter().any(|&backlog| backlog > 0) {
            let bursts = divide(burst, &backlogs, self.config.burst_floor.max(1));
            for (node, burst) in present.iter().zip(bursts) {
                if let Some(portion) = fitted.get_mut(*node) {
                    portion.burst = burst;
                }
            }
        }
        fitted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Rate;

    use super::super::portion::sum;
    use super::*;

    const CONTRACT: Limit = Limit::new(Rate::per_s(11_000), 26);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn second(start_s: u64, tokens: u64, backlog_max: u64) -> Second {
        Second { start_us: start_s * SECOND_US, tokens, backlog_max }
    }

    fn even(nodes: &[&'static str]) -> BTreeMap<&'static str, Portion> {
        let shares = divide(WHOLE, &vec![1; nodes.len()], 0);
        let bursts = divide(CONTRACT.burst, &vec![1; nodes.len()], 1);
        let portions = shares.into_iter().zip(bursts).map(|(rate_shares, burst)| Portion { rate_shares, burst });
        nodes.iter().copied().zip(portions).collect()
    }

    fn adaptor() -> Adaptor<&'static str> {
        Adaptor::new(AdaptorConfig::default(), at(0))
    }

    #[test]
    fn rates_follow_means_and_bursts_follow_backlogs() {
        let mut adaptor = adaptor();
        adaptor.on_seconds(&"a", &[second(100, 6_000, 30), second(101, 9_000, 0)], at(1));
        adaptor.on_seconds(&"b", &[second(7, 2_500, 9), second(8, 2_500, 10)], at(1));
        let parts = adaptor.adapt(CONTRACT, &even(&["a", "b"]), at(1)).unwrap();
        // 7,500 and 2,500 a second; 30 and 10 tokens.
        assert_eq!(parts["a"], Portion { rate_shares: 750_000_000, burst: 20 });
        assert_eq!(parts["b"], Portion { rate_shares: 250_000_000, burst: 6 });
        assert_eq!(parts["a"].limit(CONTRACT).rate, Rate::per_s(8_250));
        assert_eq!(adaptor.rate_per_s(&"a"), Some(7_500.0));
        assert_eq!((adaptor.due(), adaptor.adapt(CONTRACT, &parts, at(1))), (at(2), None));
        assert_eq!(adaptor.adapt(CONTRACT, &parts, at(2)), None, "nothing would change");
    }

    #[test]
    fn only_the_window_counts_and_each_second_once() {
        let mut adaptor = adaptor();
        adaptor.on_seconds(&"a", &[second(0, 100, 50), second(1, 1, 1)], at(1));
        adaptor.on_seconds(&"a", &[second(1, 1, 1), second(2, 1, 1)], at(2));
        assert_eq!((adaptor.rate_per_s(&"a"), adaptor.backlog_max(&"a")), (Some(34.0), 50));
        let later: Vec<Second> = (1..=10).map(|start| second(start, 1, 1)).collect();
        adaptor.on_seconds(&"a", &later, at(10));
        assert_eq!((adaptor.rate_per_s(&"a"), adaptor.backlog_max(&"a")), (Some(1.0), 1));
        // A second further on; a clock that steps back is a node that was restarted.
        adaptor.on_seconds(&"a", &[second(11, 11, 0)], at(11));
        assert_eq!(adaptor.rate_per_s(&"a"), Some(2.0));
        adaptor.on_seconds(&"a", &[second(3, 7, 0)], at(12));
        assert_eq!(adaptor.rate_per_s(&"a"), Some(7.0));
    }

    #[test]
    fn after_publishers_moved_only_what_comes_counts() {
        let mut adaptor = adaptor();
        adaptor.on_seconds(&"a", &[second(1, 100, 5), second(2, 100, 5)], at(2));
        adaptor.restart(at(5));
        adaptor.on_seconds(&"a", &[second(1, 100, 5), second(2, 100, 5), second(3, 10, 1)], at(3));
        assert_eq!((adaptor.rate_per_s(&"a"), adaptor.backlog_max(&"a"), adaptor.due()), (Some(10.0), 1, at(5)));
    }

    #[test]
    fn floors_leave_room_for_the_next_message() {
        let mut adaptor = adaptor();
        adaptor.on_seconds(&"a", &[second(0, 10_000, 40)], at(1));
        adaptor.on_seconds(&"b", &[second(0, 0, 0)], at(1));
        let parts = adaptor.adapt(CONTRACT, &even(&["a", "b"]), at(1)).unwrap();
        assert_eq!(parts["b"], Portion { rate_shares: WHOLE / 100, burst: 1 });
        let config = AdaptorConfig { burst_floor: 10, ..AdaptorConfig::default() };
        let mut batches = Adaptor::new(config, at(0));
        batches.on_seconds(&"a", &[second(0, 10_000, 40)], at(1));
        batches.on_seconds(&"b", &[second(0, 0, 0)], at(1));
        assert_eq!(batches.adapt(CONTRACT, &even(&["a", "b"]), at(1)).unwrap()["b"].burst, 10);
    }

    #[test]
    fn a_line_that_publishers_left_behind_gets_what_the_others_leave() {
        let mut adaptor = adaptor();
        // 110,000 tokens fit into a window: 66,000 come to `b`, which leaves 44,000.
        adaptor.on_seconds(&"a", &[second(0, 0, 90_000), second(1, 0, 88_000)], at(1));
        adaptor.on_seconds(&"b", &[second(0, 6_600, 12), second(1, 6_600, 12)], at(1));
        assert!(adaptor.is_in_use(&"a", 13));
        let parts = adaptor.adapt(CONTRACT, &even(&["a", "b"]), at(1)).unwrap();
        assert_eq!(parts["a"], Portion { rate_shares: 400_000_000, burst: 1 });
        assert_eq!(parts["b"], Portion { rate_shares: 600_000_000, burst: 25 });
        adaptor.on_seconds(&"a", &[second(2, 0, 0)], at(2));
        assert!(!adaptor.is_in_use(&"a", 1) && adaptor.is_in_use(&"b", 25));
        // All of the rate is needed elsewhere: the floor is left.
        adaptor.on_seconds(&"a", &[second(3, 0, 500), second(4, 0, 500)], at(3));
        adaptor.on_seconds(&"b", &[second(2, 30_000, 40), second(3, 30_000, 40)], at(3));
        assert_eq!(adaptor.adapt(CONTRACT, &parts, at(3)).unwrap()["a"].rate_shares, WHOLE / 100);
    }

    #[test]
    fn parts_stay_when_everybody_stops_and_the_window_runs_out() {
        let mut adaptor = adaptor();
        let parts = even(&["a", "b"]);
        for step in 0..30 {
            let [a, b] = [(10, 5_000), (11, 4_000)].map(|(until, most)| if step < until { most } else { 0 });
            adaptor.on_seconds(&"a", &[second(step, a, a / 100)], at(step));
            adaptor.on_seconds(&"b", &[second(step, b, b / 100)], at(step));
            if step >= 12 {
                assert_eq!(adaptor.adapt(CONTRACT, &parts, at(step)), None);
            }
        }
    }

    #[test]
    fn a_bucket_that_fills_is_no_line() {
        let mut adaptor = adaptor();
        let deep = Portion { rate_shares: WHOLE / 100, burst: 25 };
        let shallow = Portion { rate_shares: WHOLE - WHOLE / 100, burst: 1 };
        let mut parts = BTreeMap::from([("a", deep), ("b", shallow)]);
        // Both are idle: `a` misses all of its deep bucket, which a hundredth of the rate fills slowly.
        for step in 0..20 {
            let missing = 25_u64.saturating_sub(step);
            let [a, b] = ["a", "b"].map(|node| parts[node].burst.min(missing));
            adaptor.on_seconds(&"a", &[second(step, 0, a)], at(step));
            adaptor.on_seconds(&"b", &[second(step, 0, b)], at(step));
            assert!(!adaptor.is_in_use(&"a", parts["a"].burst));
            parts = adaptor.adapt(CONTRACT, &parts, at(step)).unwrap_or(parts);
        }
        assert_eq!((parts["a"].rate_shares, parts["b"].rate_shares), (deep.rate_shares, shallow.rate_shares));
        // One second of a depth that it has no more is no line either.
        let made_shallow =
            BTreeMap::from([("a", Portion { burst: 1, ..deep }), ("b", Portion { burst: 25, ..shallow })]);
        adaptor.on_seconds(&"a", &[second(20, 0, 25), second(21, 0, 1)], at(21));
        let shares =
            adaptor.adapt(CONTRACT, &made_shallow, at(21)).map_or(deep.rate_shares, |parts| parts["a"].rate_shares);
        assert_eq!(shares, deep.rate_shares);
    }

    #[test]
    fn without_traffic_or_sensors_parts_stay() {
        let mut adaptor = adaptor();
        let parts = even(&["a", "b", "c"]);
        assert_eq!(adaptor.adapt(CONTRACT, &parts, at(1)), None);
        for node in ["a", "b", "c"] {
            adaptor.on_seconds(&node, &[second(1, 0, 0)], at(2));
        }
        assert_eq!(adaptor.adapt(CONTRACT, &parts, at(2)), None);
        // c is silent from now on: it keeps its third, and the others divide the rest.
        for now in 3..8 {
            adaptor.on_seconds(&"a", &[second(now, 900, 5)], at(now));
            adaptor.on_seconds(&"b", &[second(now, 100, 5)], at(now));
        }
        let changed = adaptor.adapt(CONTRACT, &parts, at(8)).unwrap();
        assert_eq!(changed["c"], parts["c"]);
        assert_eq!(sum(changed.values()), Portion { rate_shares: WHOLE, burst: 26 });
        assert!(changed["a"].rate_shares > 5 * changed["b"].rate_shares);
        adaptor.forget(&"a");
        assert_eq!(adaptor.rate_per_s(&"a"), None);
    }

    proptest! {
        #[test]
        fn the_sum_is_the_contract_whatever_is_told(
            burst in 1..2_000u64,
            floor in 0..40u64,
            told in proptest::collection::vec((0..100u64, 0..20_000u64, 0..500u64, any::<bool>()), 1..60),
        ) {
            let contract = Limit::new(Rate::per_s(11_000), burst);
            let nodes = ["a", "b", "c", "d", "e", "f"];
            let bursts = divide(burst, &[1; 6], 1);
            let mut parts: BTreeMap<_, _> = nodes
                .into_iter()
                .zip(divide(WHOLE, &[1; 6], 0).into_iter().zip(bursts))
                .map(|(node, (rate_shares, burst))| (node, Portion { rate_shares, burst }))
                .collect();
            let config = AdaptorConfig { burst_floor: floor, ..AdaptorConfig::default() };
            let mut adaptor = Adaptor::new(config, at(0));
            for (step, (start, tokens, backlog, silent)) in told.into_iter().enumerate() {
                let now = at(step as u64);
                if !silent {
                    adaptor.on_seconds(&nodes[step % 6], &[second(start, tokens, backlog)], now);
                }
                if let Some(next) = adaptor.adapt(contract, &parts, now) {
                    parts = next;
                }
                prop_assert_eq!(sum(parts.values()), Portion { rate_shares: WHOLE, burst });
                if burst >= 6 {
                    prop_assert!(parts.values().all(|part| part.burst >= 1 && part.rate_shares > 0), "{parts:?}");
                }
            }
        }
    }
}

//! The demo's state: the load that is asked for, both sides' meters, and what they showed lately.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;
use tokio::sync::watch;

use super::meter::{Figures, Meter};
use super::plan::{LOAD, Plan, Role};

/// The page's charts show two minutes.
const HISTORY: usize = 240;
/// How often a point is added.
pub(crate) const SAMPLE: Duration = Duration::from_millis(500);

/// Which of the two brokers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    Without,
    With,
}

impl Name {
    pub(crate) const BOTH: [Self; 2] = [Self::Without, Self::With];

    /// As the page and the console call it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Without => "without",
            Self::With => "with",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Without => "Without a limit",
            Self::With => "With a limit on clicks",
        }
    }
}

/// One topic's meter on one side; it is told by the publishers and by the consumer.
pub(crate) type SharedMeter = Arc<Mutex<Meter>>;

/// What the demo is doing. One for the whole demo, shared by everything in it.
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    /// By [`Name`], then by [`Role`].
    meters: [[SharedMeter; 2]; 2],
    /// The load that publishers offer now, spike included.
    offered: watch::Sender<f64>,
    script: Mutex<Script>,
}

struct Script {
    load: f64,
    spike_until: Option<Instant>,
    history: VecDeque<Point>,
}

/// Both sides' well-behaved topic at one moment.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Point {
    t_ms: u64,
    without_p99_ms: f64,
    with_p99_ms: f64,
    without_loss_percent: f64,
    with_loss_percent: f64,
}

/// What the page is shown.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct State {
    load: f64,
    capacity_per_s: f64,
    slo_ms: f64,
    spike: bool,
    pub(crate) sides: [Side; 2],
    history: Vec<Point>,
}

/// One broker's two topics.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) good: Figures,
    pub(crate) noisy: Figures,
}

/// A load that cannot be offered.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("load {found} is not between {} and {}", LOAD.start(), LOAD.end())]
pub(crate) struct BadLoad {
    found: f64,
}

impl Stage {
    pub(crate) fn new(plan: Plan, load: f64) -> Self {
        let meter = || Arc::new(Mutex::new(Meter::new(&plan)));
        Self {
            plan,
            meters: [[meter(), meter()], [meter(), meter()]],
            offered: watch::Sender::new(load),
            script: Mutex::new(Script { load, spike_until: None, history: VecDeque::new() }),
        }
    }

    pub(crate) fn meters(&self, name: Name) -> [SharedMeter; 2] {
        self.meters[name as usize].clone()
    }

    /// What publishers follow.
    pub(crate) fn offered(&self) -> watch::Receiver<f64> {
        self.offered.subscribe()
    }

    /// Offers `load` times the capacity from now on.
    pub(crate) fn set_load(&self, load: f64, now: Instant) -> Result<(), BadLoad> {
        if !LOAD.contains(&load) {
            return Err(BadLoad { found: load });
        }
        self.script().load = load;
        self.follow_script(now);
        Ok(())
    }

    /// Adds a spike to the load, for a while; one that is under way begins anew.
    pub(crate) fn spike(&self, now: Instant) {
        self.script().spike_until = Some(now + self.plan.spike_length);
        self.follow_script(now);
    }

    /// Ends a spike that is over, and adds a point to the history. To be called every [`SAMPLE`].
    pub(crate) fn sample(&self, now: Instant) {
        self.follow_script(now);
        let [without, with] = Name::BOTH.map(|name| self.figures(name, Role::Good, now));
        let mut script = self.script();
        if script.history.len() == HISTORY {
            script.history.pop_front();
        }
        script.history.push_back(Point {
            t_ms: now.as_nanos() / 1_000_000,
            without_p99_ms: without.p99_ms,
            with_p99_ms: with.p99_ms,
            without_loss_percent: without.loss_percent,
            with_loss_percent: with.loss_percent,
        });
    }

    pub(crate) fn state(&self, now: Instant) -> State {
        let sides = Name::BOTH.map(|name| Side {
            name: name.as_str(),
            title: name.title(),
            good: self.figures(name, Role::Good, now),
            noisy: self.figures(name, Role::Noisy, now),
        });
        let script = self.script();
        State {
            load: script.load,
            capacity_per_s: self.plan.capacity_per_s,
            slo_ms: self.plan.slo.as_secs_f64() * 1e3,
            spike: script.spike_until.is_some(),
            sides,
            history: script.history.iter().copied().collect(),
        }
    }

    pub(crate) fn figures(&self, name: Name, role: Role, now: Instant) -> Figures {
        let meter = &self.meters[name as usize][role as usize];
        meter.lock().unwrap_or_else(PoisonError::into_inner).figures(now)
    }

    fn follow_script(&self, now: Instant) {
        let mut script = self.script();
        if script.spike_until.is_some_and(|end| end <= now) {
            script.spike_until = None;
        }
        let spike = if script.spike_until.is_some() { self.plan.spike } else { 0.0 };
        self.offered.send_replace(script.load + spike);
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_spike_adds_to_the_load_and_ends() {
        let stage = Stage::new(Plan::default(), 0.8);
        let offered = stage.offered();
        stage.spike(s(10));
        assert!((*offered.borrow() - 3.8).abs() < 1e-9);
        stage.set_load(1.5, s(11)).unwrap();
        assert!((*offered.borrow() - 4.5).abs() < 1e-9);
        stage.sample(s(13));
        assert!((*offered.borrow() - 1.5).abs() < 1e-9);
        assert!(!stage.state(s(13)).spike);
    }

    #[test]
    fn loads_beyond_the_slider_are_refused() {
        let stage = Stage::new(Plan::default(), 1.0);
        for load in [0.1, 3.1, f64::NAN, -1.0, f64::INFINITY] {
            assert!(stage.set_load(load, s(1)).is_err(), "{load}");
        }
        assert_eq!(stage.set_load(4.0, s(1)).unwrap_err().to_string(), "load 4 is not between 0.2 and 3");
    }

    #[test]
    fn history_is_bounded_and_oldest_first() {
        let stage = Stage::new(Plan::default(), 1.0);
        for second in 1..=300 {
            stage.sample(s(second));
        }
        let history = stage.state(s(300)).history;
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].t_ms, history[HISTORY - 1].t_ms), (61_000, 300_000));
    }
}

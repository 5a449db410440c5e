//! The demo's state: the load that is asked for, both sides' figures, and what they were lately.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tidegate_core::Instant;
use tokio::sync::watch;

use super::control::{BadLoad, Controlled};
use super::meter::{Figures, Meter, Totals};
use super::plan::{LOAD, Plan, Role};
use super::slider::{Slider, Spike, SpikeLoad};

/// The page's charts show a minute; the tables of the console remember two.
const HISTORY: usize = 480;

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

/// Totals by [`Name`], then by [`Role`].
pub(crate) type AllTotals = [[Totals; 2]; 2];

/// What the demo is doing; shared by the page's control and by what drives the load.
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    scene: Mutex<Scene>,
}

struct Scene {
    slider: Slider,
    /// By [`Name`], then by [`Role`].
    meters: [[Meter<Totals>; 2]; 2],
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
    deadline_ms: f64,
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

impl Stage {
    pub(crate) fn new(plan: Plan, load: f64) -> Self {
        let spike = Spike { length: plan.spike_length, load: SpikeLoad::Beside(plan.spike) };
        let slider = Slider::new(load, LOAD, spike);
        let scene = Scene { slider, meters: Default::default(), history: VecDeque::new() };
        Self { plan, scene: Mutex::new(scene) }
    }

    /// The load to offer, spike included; changes at once when the page changes it.
    pub(crate) fn offered(&self) -> watch::Receiver<f64> {
        self.scene().slider.subscribe()
    }

    /// Ends a spike that is over, and takes the figures. To be called four times a second.
    pub(crate) fn sample(&self, now: Instant, totals: &AllTotals) {
        let mut scene = self.scene();
        scene.slider.on_time(now);
        for (meter, totals) in scene.meters.iter_mut().flatten().zip(totals.iter().flatten()) {
            meter.sample(now, *totals);
        }
        let [without, with] = Name::BOTH.map(|name| scene.figures(name, Role::Good));
        if scene.history.len() == HISTORY {
            scene.history.pop_front();
        }
        scene.history.push_back(Point {
            t_ms: now.as_nanos() / 1_000_000,
            without_p99_ms: without.p99_ms,
            with_p99_ms: with.p99_ms,
            without_loss_percent: without.loss_percent,
            with_loss_percent: with.loss_percent,
        });
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        // Its parts are shown, each on its own; a panic in between would leave none of them wrong.
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controlled for Stage {
    type State = State;

    fn state(&self) -> State {
        let scene = self.scene();
        let sides = Name::BOTH.map(|name| Side {
            name: name.as_str(),
            title: name.title(),
            good: scene.figures(name, Role::Good),
            noisy: scene.figures(name, Role::Noisy),
        });
        State {
            load: scene.slider.load(),
            capacity_per_s: self.plan.capacity_per_s,
            slo_ms: self.plan.slo.as_secs_f64() * 1e3,
            deadline_ms: self.plan.deadline.as_secs_f64() * 1e3,
            spike: scene.slider.is_spiking(),
            sides,
            history: scene.history.iter().copied().collect(),
        }
    }

    /// In capacities.
    fn set_load(&self, load: f64) -> Result<(), BadLoad> {
        self.scene().slider.set_load(load)
    }

    /// Adds to the load for a while.
    fn spike(&self, now: Instant) {
        self.scene().slider.spike(now);
    }
}

impl Scene {
    fn figures(&self, name: Name, role: Role) -> Figures {
        self.meters[name as usize][role as usize].figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn history_is_bounded_and_oldest_first() {
        let stage = Stage::new(Plan::default(), 1.0);
        for second in 1..=600 {
            stage.sample(s(second), &AllTotals::default());
        }
        let history = stage.state().history;
        assert_eq!(history.len(), HISTORY);
        assert_eq!((history[0].t_ms, history[HISTORY - 1].t_ms), (121_000, 600_000));
    }

    #[test]
    fn each_side_shows_its_own_figures() {
        let stage = Stage::new(Plan::default(), 1.0);
        let mut totals = AllTotals::default();
        stage.sample(s(1), &totals);
        totals[Name::With as usize][Role::Noisy as usize].offered = 500;
        totals[Name::Without as usize][Role::Good as usize].p99_ms = 7.0;
        stage.sample(s(2), &totals);
        let [without, with] = stage.state().sides;
        assert!((with.noisy.offered_per_s - 500.0).abs() < 1e-9);
        assert!((without.good.p99_ms - 7.0).abs() < 1e-9);
        assert!(with.good.offered_per_s.abs() < 1e-9 && without.noisy.offered_per_s.abs() < 1e-9);
    }
}

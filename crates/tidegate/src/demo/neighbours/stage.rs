//! The demo's state: the noise that is asked for, both sides' figures, and what they were lately.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_load::http::live::LiveSnapshot;
use tokio::sync::watch;

use super::figures::Figures;
use super::plan::{NOISE, Plan, Side, Tenant};
use crate::demo::control::{BadLoad, Controlled};
use crate::demo::meter::Meter;
use crate::demo::slider::{Slider, Spike, SpikeLoad};

/// The page's charts show a minute.
const HISTORY: usize = 240;

/// By [`Side`], then by [`Tenant`].
pub(crate) type Both<T> = [[T; 2]; 2];

/// What the demo is doing; shared by the page's control and by what drives the load.
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    scene: Mutex<Scene>,
}

struct Scene {
    slider: Slider,
    meters: Both<Meter<LiveSnapshot>>,
    /// When, and A's p99 by [`Side`].
    history: VecDeque<(u64, [f64; 2])>,
}

/// What the page is shown.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct State {
    /// What the page draws.
    kind: &'static str,
    load: f64,
    spike: bool,
    /// What B sends now, spike included.
    offered_load: f64,
    load_min: f64,
    load_max: f64,
    quiet_per_s: f64,
    capacity_per_s: f64,
    admitted_per_s: u32,
    goal_ms: f64,
    deadline_ms: f64,
    pub(crate) sides: [Shown; 2],
    history: History,
}

/// One proxy's two tenants.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) quiet: Figures,
    pub(crate) noisy: Figures,
}

/// A's delays as columns, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "a unit stands last in a name, and here it is the same for all")]
struct History {
    t_ms: Vec<u64>,
    left_p99_ms: Vec<f64>,
    right_p99_ms: Vec<f64>,
}

impl Stage {
    pub(crate) fn new(plan: Plan, load: f64) -> Self {
        // B sends the slider's most for a while.
        let spike = Spike { length: plan.spike_length, load: SpikeLoad::Instead(*NOISE.end()) };
        let slider = Slider::new(load, NOISE, spike);
        let scene = Scene { slider, meters: Default::default(), history: VecDeque::new() };
        Self { plan, scene: Mutex::new(scene) }
    }

    /// What B sends; changes at once when the page changes it.
    pub(crate) fn noise(&self) -> watch::Receiver<f64> {
        self.scene().slider.subscribe()
    }

    /// Ends a spike that is over, and takes the figures. To be called four times a second.
    pub(crate) fn sample(&self, now: Instant, seen: &Both<LiveSnapshot>) {
        let mut scene = self.scene();
        scene.slider.on_time(now);
        for (meter, seen) in scene.meters.iter_mut().flatten().zip(seen.iter().flatten()) {
            meter.sample(now, *seen);
        }
        if scene.history.len() == HISTORY {
            scene.history.pop_front();
        }
        let p99_ms = Side::BOTH.map(|side| scene.figures(side, Tenant::Quiet).p99_ms);
        scene.history.push_back((now.as_nanos() / 1_000_000, p99_ms));
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
        let sides = Side::BOTH.map(|side| Shown {
            name: side.as_str(),
            title: side.title(),
            quiet: scene.figures(side, Tenant::Quiet),
            noisy: scene.figures(side, Tenant::Noisy),
        });
        let history = History {
            t_ms: scene.history.iter().map(|(t_ms, _)| *t_ms).collect(),
            left_p99_ms: scene.history.iter().map(|(_, [left, _])| *left).collect(),
            right_p99_ms: scene.history.iter().map(|(_, [_, right])| *right).collect(),
        };
        State {
            kind: "neighbours",
            load: scene.slider.load(),
            spike: scene.slider.is_spiking(),
            offered_load: scene.slider.offered(),
            load_min: *NOISE.start(),
            load_max: *NOISE.end(),
            quiet_per_s: self.plan.quiet_per_s,
            capacity_per_s: self.plan.capacity_per_s,
            admitted_per_s: self.plan.admitted_per_s,
            goal_ms: self.plan.goal.as_secs_f64() * 1e3,
            deadline_ms: self.plan.deadline.as_secs_f64() * 1e3,
            sides,
            history,
        }
    }

    /// In requests of B per second.
    fn set_load(&self, load: f64) -> Result<(), BadLoad> {
        self.scene().slider.set_load(load)
    }

    fn spike(&self, now: Instant) {
        self.scene().slider.spike(now);
    }
}

impl Scene {
    fn figures(&self, side: Side, tenant: Tenant) -> Figures {
        self.meters[side as usize][tenant as usize].tenant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_spike_is_the_most_noise_and_ends_at_what_the_slider_says() {
        let stage = Stage::new(Plan::default(), 400.0);
        let noise = stage.noise();
        stage.spike(s(10));
        stage.set_load(600.0).unwrap();
        assert!((*noise.borrow() - 3_200.0).abs() < 1e-9);
        stage.sample(s(12), &Both::default());
        assert!(stage.state().spike);
        stage.sample(s(13), &Both::default());
        assert!((*noise.borrow() - 600.0).abs() < 1e-9 && !stage.state().spike);
    }

    #[test]
    fn history_is_bounded_and_each_side_shows_its_own() {
        let stage = Stage::new(Plan::default(), 400.0);
        let mut seen = Both::<LiveSnapshot>::default();
        for second in 1..=300 {
            seen[Side::Right as usize][Tenant::Quiet as usize].response.us_p99 = 5_000.0;
            seen[Side::Left as usize][Tenant::Noisy as usize].offered += 700;
            stage.sample(s(second), &seen);
        }
        let State { sides: [left, right], history, .. } = stage.state();
        assert_eq!((history.t_ms.len(), history.t_ms[0], history.right_p99_ms.len()), (HISTORY, 61_000, HISTORY));
        assert!((right.quiet.p99_ms - 5.0).abs() < 1e-9 && left.quiet.p99_ms.abs() < 1e-9);
        assert!((left.noisy.offered_per_s - 700.0).abs() < 1e-9 && right.noisy.offered_per_s.abs() < 1e-9);
    }
}

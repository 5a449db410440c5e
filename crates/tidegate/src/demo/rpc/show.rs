//! Five servers with their clients, in virtual time, under the same calls.
//!
//! Pure: whoever calls [`Show::step`] decides how fast it plays.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_lab::rpc::{Plant, Scenario, ScenarioError, Scheme, Window};
use tidegate_rpc::machine::any::{AnyClient, AnyServer};
use tidegate_rpc::machine::seda;

use super::figures::{Figures, History, Inside, Plan, Point};

/// The schemes, in the order in which they are shown: ours, two that tell the clients, one that lets them find out, none.
pub(crate) const SCHEMES: [&str; 5] = ["tidegate", "breakwater", "dagor", "seda", "none"];
/// How much of the server's time passes in a second on screen. A fiftieth: slow enough for all five on a fifth of a core at
/// the largest load, fast enough that the slowest scheme settles while one looks.
const VIRTUAL_PER_S: Duration = Duration::from_millis(20);
/// Steps in a second on screen: the slider is followed as often.
pub(crate) const STEPS_PER_S: u32 = 20;
/// Steps from one sample to the next. The page asks as often.
const STEPS_PER_SAMPLE: u32 = 5;
/// Samples that figures look back on: a second on screen.
const WINDOW: usize = 4;
/// Samples that charts look back on: a minute on screen.
pub(crate) const HISTORY: usize = 240;
/// Calls that callers hold at most; further ones are lost. Without control they all wait, and a second after the load is
/// gone they should be done: nobody watches a queue of half an hour empty itself.
const CALLS_MAX: usize = 16_384;
/// Each time: everybody sees the same demo.
const SEED: u64 = 1;

/// The load factors that can be asked for.
pub(crate) const LOAD: std::ops::RangeInclusive<f64> = 0.2..=10.0;

/// The five plants and what they did lately.
pub(crate) struct Show {
    pub(crate) plan: Plan,
    plants: Vec<Plant<AnyServer, AnyClient>>,
    load: f64,
    steps: u64,
    /// By scheme, the oldest sample first.
    samples: Vec<VecDeque<Window>>,
    history: VecDeque<Point>,
}

impl Show {
    /// All five at rest.
    pub(crate) fn new() -> Result<Self, ScenarioError> {
        let scenario = scenario();
        let plants = SCHEMES.iter().map(|name| plant(&scenario, &scheme(name, &scenario))).collect::<Result<_, _>>()?;
        Ok(Self {
            plan: Plan::of(&scenario, VIRTUAL_PER_S),
            plants,
            load: 0.0,
            steps: 0,
            samples: vec![VecDeque::new(); SCHEMES.len()],
            history: VecDeque::new(),
        })
    }

    /// Plays 1 / [`STEPS_PER_S`] of a second on screen at `load` times the capacity. True when figures are new.
    pub(crate) fn step(&mut self, load: f64) -> bool {
        self.steps += 1;
        let until = Instant::ZERO + VIRTUAL_PER_S / STEPS_PER_S * u32::try_from(self.steps).unwrap_or(u32::MAX);
        let changed = load.to_bits() != self.load.to_bits();
        self.load = load;
        for plant in &mut self.plants {
            if changed {
                plant.set_load(0, load);
            }
            plant.run_until(until);
        }
        let is_sample = self.steps.is_multiple_of(u64::from(STEPS_PER_SAMPLE));
        if is_sample {
            self.sample();
        }
        is_sample
    }

    fn sample(&mut self) {
        for (plant, samples) in self.plants.iter_mut().zip(&mut self.samples) {
            if samples.len() == WINDOW {
                samples.pop_front();
            }
            samples.push_back(plant.take_window());
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let newest = self.samples.iter().filter_map(VecDeque::back);
        let step_ms = 1_000 / u64::from(STEPS_PER_S);
        let (t_ms, seconds) = (self.steps * step_ms, self.seconds(1));
        let point = Point::new(t_ms, newest.map(|window| (window, seconds)), &self.plan);
        self.history.push_back(point);
    }

    /// Virtual seconds of `samples` samples.
    fn seconds(&self, samples: usize) -> f64 {
        let each = f64::from(STEPS_PER_SAMPLE) / f64::from(STEPS_PER_S);
        self.plan.virtual_ms_per_s / 1e3 * each * f64::from(u32::try_from(samples).unwrap_or(u32::MAX))
    }

    /// Each scheme's figures of the last second on screen.
    pub(crate) fn figures(&self) -> Vec<Figures> {
        let each = SCHEMES.iter().zip(&self.plants).zip(&self.samples);
        each.map(|((name, plant), samples)| {
            let mut all = samples.front().cloned();
            if let Some(all) = &mut all {
                samples.iter().skip(1).for_each(|one| all.add(one));
            }
            Figures::new(
                name,
                all.as_ref().map(|all| (all, self.seconds(samples.len()))),
                plant.under_way(),
                &self.plan,
            )
        })
        .collect()
    }

    /// What Tidegate's server measures and decides.
    pub(crate) fn inside(&self) -> Option<Inside> {
        self.plants.iter().find_map(|plant| match plant.server() {
            AnyServer::Tidegate(server) => Some(Inside::of(server)),
            _ => None,
        })
    }

    /// The last minute on screen.
    pub(crate) fn history(&self) -> History {
        History::of(&self.history)
    }

    /// Seconds on screen since the start.
    pub(crate) fn played_s(&self) -> f64 {
        f64::from(u32::try_from(self.steps).unwrap_or(u32::MAX)) / f64::from(STEPS_PER_S)
    }
}

/// Breakwater's own plant, but that nobody calls yet.
fn scenario() -> Scenario {
    let mut scenario = Scenario { seed: SEED, calls_max: CALLS_MAX, ..Scenario::default() };
    for group in &mut scenario.groups {
        group.load = 0.0;
    }
    scenario
}

/// A scheme with its own defaults. SEDA's clients begin near their fair share: from the two calls a second of its authors
/// it takes them seconds of the server's time to get there, which are minutes on screen.
fn scheme(name: &str, scenario: &Scenario) -> Scheme {
    let scheme = Scheme::named(name).expect("the table names schemes that exist");
    match scheme {
        Scheme::Seda(config) => {
            let fair = scenario.capacity() / f64::from(scenario.clients().max(1));
            Scheme::Seda(seda::Config { initial_per_s_min: fair * 0.8, initial_per_s_max: fair, ..config })
        }
        other => other,
    }
}

fn plant(scenario: &Scenario, scheme: &Scheme) -> Result<Plant<AnyServer, AnyClient>, ScenarioError> {
    scheme.check()?;
    let server = scheme.server(scenario.cores, Instant::ZERO);
    Plant::new(scenario, server, |tenant, now, rng| scheme.client(tenant, now, rng))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second and a half on screen.
    fn play(show: &mut Show, load: f64) {
        for _ in 0..30 {
            show.step(load);
        }
    }

    fn goodput(show: &Show, name: &str) -> f64 {
        show.figures().into_iter().find(|figures| figures.name == name).unwrap().goodput
    }

    #[test]
    fn below_capacity_all_answer_and_far_above_it_only_control_does() {
        let mut show = Show::new().unwrap();
        play(&mut show, 0.5);
        for name in ["tidegate", "breakwater", "none"] {
            assert!((0.45..0.55).contains(&goodput(&show, name)), "{name}: {}", goodput(&show, name));
        }
        play(&mut show, 10.0);
        assert!(goodput(&show, "tidegate") > 0.9, "{}", goodput(&show, "tidegate"));
        assert!(goodput(&show, "none") < 0.05, "{}", goodput(&show, "none"));
        let inside = show.inside().unwrap();
        assert!(inside.send_share < 0.5 && inside.sessions == 1_000, "{inside:?}");
    }

    #[test]
    fn everybody_sees_the_same_and_all_schemes_get_the_same_calls() {
        let play = || {
            let mut show = Show::new().unwrap();
            let samples = (0..10).filter(|_| show.step(1.5)).count();
            (samples, show.figures())
        };
        let (samples, figures) = play();
        assert_eq!(samples, 2);
        assert_eq!(figures, play().1);
        assert!(figures.windows(2).all(|two| two[0].offered.to_bits() == two[1].offered.to_bits()), "{figures:?}");
    }
}

//! The load that is asked for, and the thread that plays.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::figures::{Figures, History, Inside, Plan};
use super::show::{LOAD, STEPS_PER_S, Show};
use crate::demo::control::{BadLoad, Controlled};

/// A spike: this load for so many steps, one after the other. A calm second first, so that the jump is the same whatever
/// the slider says.
const SPIKE: [(f64, u32); 2] = [(0.4, STEPS_PER_S), (10.0, 3 * STEPS_PER_S)];
/// Steps for which it plays on after somebody looked: a tab that is closed costs nothing.
const UNWATCHED: u32 = 5 * STEPS_PER_S;

/// What the page is shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct State {
    /// What the page draws.
    kind: &'static str,
    #[serde(flatten)]
    plan: Plan,
    load: f64,
    spike: bool,
    /// The load that is offered now, spike included.
    offered_load: f64,
    schemes: Vec<Figures>,
    tidegate: Option<Inside>,
    history: History,
}

/// Where the page's control and the player meet.
pub(crate) struct Desk {
    wish: Mutex<Wish>,
    /// Tells the player that it has something to do before its next step is due.
    changed: Condvar,
}

struct Wish {
    load: f64,
    /// Steps of the spike that have been played; `None` if there is none.
    spike: Option<u32>,
    stop: bool,
    /// Steps since somebody last looked.
    unwatched: u32,
    shown: State,
}

impl Desk {
    pub(crate) fn new(show: &Show, load: f64) -> Self {
        let shown = State {
            kind: "rpc",
            plan: show.plan,
            load,
            spike: false,
            offered_load: load,
            schemes: show.figures(),
            tidegate: show.inside(),
            history: show.history(),
        };
        let wish = Wish { load, spike: None, stop: false, unwatched: UNWATCHED, shown };
        Self { wish: Mutex::new(wish), changed: Condvar::new() }
    }

    /// Waits for the next step, which is due at `due`, and returns its load; `None` when the demo ends.
    fn wait(&self, due: &mut Instant) -> Option<f64> {
        let mut wish = self.wish();
        loop {
            if wish.stop {
                return None;
            }
            let now = clock::now();
            if wish.unwatched >= UNWATCHED {
                wish = self.changed.wait(wish).unwrap_or_else(PoisonError::into_inner);
                *due = clock::now();
            } else if now < *due {
                let waited = self.changed.wait_timeout(wish, due.since(now));
                wish = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                break;
            }
        }
        let each = Duration::from_secs(1) / STEPS_PER_S;
        // A machine that is too slow plays slower; it does not pile up what it owes.
        *due = (*due + each).max(clock::now());
        Some(wish.next_load())
    }

    fn publish(&self, show: &Show, offered_load: f64) {
        let (schemes, tidegate, history) = (show.figures(), show.inside(), show.history());
        let mut wish = self.wish();
        let shown = &mut wish.shown;
        (shown.schemes, shown.tidegate, shown.history) = (schemes, tidegate, history);
        shown.offered_load = offered_load;
    }

    fn wish(&self) -> MutexGuard<'_, Wish> {
        // Its parts are shown, each on its own; a panic in between would leave none of them wrong.
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controlled for Desk {
    type State = State;

    /// The newest figures. While somebody asks for them, the player plays.
    fn state(&self) -> State {
        let mut wish = self.wish();
        if wish.unwatched >= UNWATCHED {
            self.changed.notify_all();
        }
        wish.unwatched = 0;
        State { load: wish.load, spike: wish.spike.is_some(), ..wish.shown.clone() }
    }

    /// In capacities, from the next step on.
    fn set_load(&self, load: f64) -> Result<(), BadLoad> {
        BadLoad::check(load, &LOAD)?;
        self.wish().load = load;
        Ok(())
    }

    fn spike(&self, _: Instant) {
        self.wish().spike = Some(0);
    }
}

impl Wish {
    /// The load of the next step.
    fn next_load(&mut self) -> f64 {
        self.unwatched = self.unwatched.saturating_add(1);
        let Some(played) = self.spike else { return self.load };
        let mut end = 0;
        for (load, steps) in SPIKE {
            end += steps;
            if played < end {
                self.spike = Some(played + 1);
                return load;
            }
        }
        self.spike = None;
        self.load
    }
}

/// The thread that plays. It ends when this is dropped.
pub(crate) struct Player {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    pub(crate) fn start(desk: Arc<Desk>, mut show: Show) -> io::Result<Self> {
        let play = {
            let desk = Arc::clone(&desk);
            move || {
                let mut due = clock::now();
                while let Some(load) = desk.wait(&mut due) {
                    if show.step(load) {
                        desk.publish(&show, load);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("demo-rpc".to_owned()).spawn(play)?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Ends it and waits for its end, at most the computing of a step.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.desk.wish().stop = true;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk() -> Desk {
        Desk::new(&Show::new().unwrap(), 1.0)
    }

    #[test]
    fn a_spike_goes_from_calm_to_ten_times_the_capacity_and_back() {
        let desk = desk();
        desk.spike(Instant::ZERO);
        let loads: Vec<f64> = (0..=4 * STEPS_PER_S).map(|_| desk.wish().next_load()).collect();
        let second = usize::try_from(STEPS_PER_S).unwrap();
        let near = |load: f64, wanted: f64| (load - wanted).abs() < 1e-9;
        assert!(loads[..second].iter().all(|load| near(*load, 0.4)));
        assert!(loads[second..4 * second].iter().all(|load| near(*load, 10.0)));
        assert!(near(loads[4 * second], 1.0) && !desk.state().spike);
    }

    #[test]
    fn loads_beyond_the_slider_are_refused() {
        let desk = desk();
        for load in [0.1, 10.1, f64::NAN, -1.0, f64::INFINITY] {
            assert!(desk.set_load(load).is_err(), "{load}");
        }
        assert_eq!(desk.set_load(11.0).unwrap_err().to_string(), "load 11 is not between 0.2 and 10");
        desk.set_load(10.0).unwrap();
        assert!((desk.state().load - 10.0).abs() < 1e-9);
    }

    #[test]
    fn the_player_ends_when_it_is_dropped_though_nobody_looks() {
        let show = Show::new().unwrap();
        let desk = Arc::new(Desk::new(&show, 1.0));
        drop(Player::start(Arc::clone(&desk), show).unwrap());
        assert_eq!(Arc::strong_count(&desk), 1);
    }
}

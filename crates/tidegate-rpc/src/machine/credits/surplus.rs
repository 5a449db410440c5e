//! How much more is let through than fits, so that chance does not leave cores idle.

/// Ticks over which the idle share is averaged.
const TICKS: f64 = 16.0;
/// By how much one tick may change the correction.
const STEP: f64 = 0.05;
/// How far the correction may go either way: four times what theory says.
const CORRECTION: f64 = 4.0;
/// The most that is ever let through beyond the capacity: twice as much again.
const MOST: f64 = 2.0;

/// Calls let through beyond the capacity, as a share of it.
///
/// With more coming than fits, the queue is a random walk below its bound, and it is empty for a share of the time that
/// M/M/1/K tells: (ρ - 1) / (ρ^(K+1) - 1). The surplus ρ - 1 is the one that makes it the idle share that is wanted;
/// what real arrivals and services do differently is corrected by the idle share that is seen.
#[derive(Clone, Debug)]
pub(super) struct Surplus {
    wanted: f64,
    idle: f64,
    correction: f64,
    /// The room for which `theory` was computed.
    room: f64,
    theory: f64,
}

impl Surplus {
    pub(super) fn new(wanted: f64) -> Self {
        Self { wanted: wanted.clamp(1e-6, 0.5), idle: 0.0, correction: 1.0, room: 0.0, theory: 0.0 }
    }

    /// A tick in which the cores were idle for this share of their time; whether somebody was held back meanwhile.
    pub(super) fn on_tick(&mut self, idle: f64, throttled: bool) {
        self.idle += (idle - self.idle) / TICKS;
        if throttled {
            let error = ((self.idle - self.wanted) / self.wanted).clamp(-1.0, 1.0);
            self.correction = (self.correction * (1.0 + STEP * error)).clamp(1.0 / CORRECTION, CORRECTION);
        }
    }

    /// The idle share lately.
    pub(super) fn idle(&self) -> f64 {
        self.idle
    }

    /// What is let through for each call that fits, for a server with room for `room` calls.
    pub(super) fn factor(&mut self, room: f64) -> f64 {
        if (room - self.room).abs() > 0.05 * self.room {
            self.room = room;
            self.theory = surplus_for(self.wanted, room);
        }
        let surplus = (self.theory * self.correction).min(MOST);
        // Cores that idle although calls are refused are a mistake of the estimates: it is repaired at once, in
        // proportion, and not a step at a time. What is wanted idle is no mistake, nor is four times as much.
        let mistake = (self.idle - 4.0 * self.wanted).clamp(0.0, 0.9);
        (1.0 + surplus) / (1.0 - mistake)
    }
}

/// The surplus with which a queue with room for `room` calls is empty for the share `idle` of the time.
fn surplus_for(idle: f64, room: f64) -> f64 {
    let places = room.max(1.0) + 1.0;
    let (mut low, mut high) = (0.0, MOST.ln_1p());
    // The idle share falls as the surplus grows; 30 halvings are exact to a billionth.
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        let empty = middle.exp_m1() / (middle * places).exp_m1();
        if empty > idle { low = middle } else { high = middle }
    }
    high.exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_room_needs_less_surplus() {
        let surplus = |room| surplus_for(0.005, room);
        assert!((surplus(12.0) - 0.37).abs() < 0.02, "{}", surplus(12.0));
        assert!((surplus(108.0) - 0.0125).abs() < 0.002, "{}", surplus(108.0));
        assert!(surplus(1.0) <= MOST + 1e-6);
    }

    #[test]
    fn idle_cores_raise_it_and_busy_ones_lower_it() {
        let mut idle = Surplus::new(0.005);
        let mut busy = idle.clone();
        for _ in 0..20 {
            idle.on_tick(0.015, true);
            busy.on_tick(0.0, true);
        }
        assert!(idle.factor(100.0) > 1.02 && busy.factor(100.0) < 1.01);
        assert!((idle.idle() - 0.0109).abs() < 0.001);
    }
}

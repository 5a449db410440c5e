//! How much more is let through than fits, so that chance does not leave cores idle.

/// Ticks over which the idle share is averaged.
const TICKS: f64 = 16.0;
/// By how much one tick may change what is let through, as a share of the surplus.
const STEP: f64 = 0.05;
/// A surplus below this is changed as if it were this, or it would never leave zero.
const LEAST: f64 = 0.01;
/// The most that is ever let through beyond the capacity: twice as much again.
const MOST: f64 = 2.0;
/// What a correction may cost in refusals, as a share of the capacity.
const LOSS: f64 = 0.001;
/// The golden section.
const CUT: f64 = 0.618_033_988_749_895;
/// Cores that idle this much while calls are refused are no chance but a mistake of the estimates.
const MISTAKE: f64 = 0.1;

/// Calls let through beyond the capacity, as a share of it.
///
/// With more coming than fits, the queue is a random walk below its bound, and it is empty for a share of the time that
/// M/M/1/K tells: (ρ - 1) / (ρ^(K+1) - 1). What comes too much is refused, and each refusal takes a message's time. The
/// surplus ρ - 1 is the one with the least loss in all; what real arrivals and services do differently is corrected by
/// the idle share that is seen.
#[derive(Clone, Debug)]
pub(super) struct Surplus {
    idle: f64,
    /// The correction, added to `best`.
    correction: f64,
    /// The room and the cost for which `best` was computed.
    computed_for: (f64, f64),
    best: Best,
}

/// The surplus with the least loss, and the idle share that remains with it.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Best {
    surplus: f64,
    idle: f64,
}

impl Surplus {
    pub(super) fn new() -> Self {
        Self { idle: 0.0, correction: 0.0, computed_for: (0.0, 0.0), best: Best::default() }
    }

    /// A tick in which the cores were idle for this share of their time; whether somebody was held back meanwhile.
    pub(super) fn on_tick(&mut self, idle: f64, throttled: bool) {
        self.idle += (idle - self.idle) / TICKS;
        if throttled && self.best.idle > 0.0 {
            let error = ((self.idle - self.best.idle) / self.best.idle).clamp(-1.0, 1.0);
            let surplus = self.best.surplus + self.correction;
            let next = surplus + STEP * error * surplus.max(LEAST);
            // Half of what theory says at least: chance may be quiet for a while, and then is not. And not so much more
            // that the refusals would cost more than the idling: they would cost LOSS at most.
            let more = 0.5 * self.best.surplus + LOSS / self.computed_for.1.max(LOSS);
            self.correction = (next - self.best.surplus).clamp(-0.5 * self.best.surplus, more);
        }
    }

    /// The idle share lately.
    pub(super) fn idle(&self) -> f64 {
        self.idle
    }

    /// What is let through for each call that fits, for a server with room for `room` calls, where a refusal costs the
    /// share `cost` of what a served call takes.
    pub(super) fn factor(&mut self, room: f64, cost: f64) -> f64 {
        let near = |now: f64, before: f64| (now - before).abs() <= 0.05 * before;
        if !near(room, self.computed_for.0) || !near(cost, self.computed_for.1) {
            self.computed_for = (room, cost);
            self.best = best(room, cost);
        }
        let surplus = (self.best.surplus + self.correction).clamp(0.0, MOST);
        // A mistake is repaired at once, in proportion, and not a step at a time.
        let mistake = (self.idle - MISTAKE).clamp(0.0, 0.9);
        (1.0 + surplus) / (1.0 - mistake)
    }
}

/// The surplus that loses least of the cores' time to idling and to refusals.
fn best(room: f64, cost: f64) -> Best {
    let places = room.max(1.0) + 1.0;
    let idle = |surplus: f64| surplus / ((surplus.ln_1p() * places).exp() - 1.0);
    let loss = |surplus: f64| idle(surplus) + cost * surplus;
    // The loss has one minimum: 25 cuts place it within 0.00002, and each needs one more of its values.
    let (mut low, mut high) = (1e-6, MOST);
    let (mut left, mut right) = (high - CUT * (high - low), low + CUT * (high - low));
    let (mut of_left, mut of_right) = (loss(left), loss(right));
    for _ in 0..25 {
        if of_left < of_right {
            (high, right, of_right) = (right, left, of_left);
            left = high - CUT * (high - low);
            of_left = loss(left);
        } else {
            (low, left, of_left) = (left, right, of_right);
            right = low + CUT * (high - low);
            of_right = loss(right);
        }
    }
    let surplus = f64::midpoint(low, high);
    Best { surplus, idle: idle(surplus) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_room_and_dearer_refusals_need_less_surplus() {
        let few = best(12.0, 0.1);
        let many = best(108.0, 0.1);
        let dear = best(108.0, 0.5);
        assert!((few.surplus - 0.25).abs() < 0.05 && few.idle < 0.03, "{few:?}");
        assert!((many.surplus - 0.03).abs() < 0.01 && many.idle < 0.002, "{many:?}");
        assert!(dear.surplus < many.surplus && dear.idle > many.idle, "{dear:?}");
    }

    #[test]
    fn idle_cores_raise_it_and_busy_ones_lower_it() {
        let mut idle = Surplus::new();
        let first = idle.factor(100.0, 0.1);
        let mut busy = idle.clone();
        for _ in 0..20 {
            idle.on_tick(0.05, true);
            busy.on_tick(0.0, true);
        }
        assert!(idle.factor(100.0, 0.1) > first && busy.factor(100.0, 0.1) < first);
    }
}

//! What the server learns of itself: how long calls run, how fast the queue drains, how long a call may wait.

use core::time::Duration;

use tidegate_core::Instant;
use tidegate_core::estimate::Histogram;
use tidegate_core::time::nanos;

use crate::machine::credits::Objective;

/// Calls after which the older half of the service times is forgotten.
const SERVICES: u64 = 4096;
/// Calls that must have been served before their time counts as known.
const KNOWN: u64 = 8;
/// Samples over which the pace of the queue and the error of the predicted waits are averaged.
const MEMORY: f64 = 512.0;
/// The longest time between two starts that counts, in times what is believed: a pause of the host is one of these, and as a
/// pace it would leave no time to wait for anything.
const PAUSED: f64 = 64.0;
/// The service time that a call is assumed to need at worst, as a quantile: with the longest wait, one in a hundred is
/// later than its objective, and most wait less.
const WORST: f64 = 0.99;
/// Deviations of the predicted wait that a call must have left when it is admitted, or it might be admitted, wait, and
/// be shed all the same.
const DEVIATIONS: f64 = 2.5;
/// The worst service time of a stretch of calls counts up to so many times that of the other one.
const DISTURBED: f64 = 1.5;
/// Calls that may be late for their objective: one in 500. The longest wait grows until so many are.
const LATE: f64 = 0.002;
/// By what share of the objective a late call shortens the longest wait.
const LATE_STEP: f64 = 0.005;
/// The most by which it grows, as a share of what the worst service time exceeds the mean: with a full queue, right
/// after a step, all calls wait longest.
const LONGER: f64 = 0.1;
/// Where even the wait that should do makes more calls late than this, one in 125, it shrinks until no more are; by
/// this share of itself at most, for what makes them late may be something else.
const LATE_MOST: f64 = 0.008;
const SHORTER: f64 = 0.5;
/// What is left of that after each call that did not wait at all.
const REST: f64 = 63.0 / 64.0;
/// The least share of what the objective leaves for waiting and working that waits may take, however long single calls
/// run: those run late whether they wait or not.
const WAIT_LEAST: f64 = 0.25;
/// Up to this many times the least mean service time that was seen, the objective follows the mean: chance and calls of
/// another mix. What is slower yet is a slow host or a slow neighbour, and no reason to keep callers waiting.
const BAND: f64 = 1.25;
/// In what time the least mean service time doubles if nothing confirms it: a service that has become slower for good
/// has its objective in a few of these.
const CREEP_NS: f64 = 300e9;
/// A deviation of this share of the longest wait makes the precaution useless: the wait cannot be told beforehand.
const UNTOLD: f64 = 0.2;
/// What a refusal costs beyond its message, as a share of a served call, for each call that the server has room for:
/// with much room the loss is flat around its minimum, and then it is better that fewer are refused late.
const REFUSAL: f64 = 0.002;
/// And at most.
const REFUSAL_MOST: f64 = 0.2;
/// The longest wait for a place in flight, in mean times between two starts: at 0.8 of the capacity of what is behind,
/// hardly any call waits longer.
const LINE: f64 = 12.0;
/// Places behind the handlers are what the server lacks if calls are held back for this share of the time that the cores
/// do not work, and for this share of all their time; it lacks them at times if they are for so much of it.
const HELD: f64 = 0.5;
const HELD_LEAST: f64 = 0.1;
const HELD_AT_TIMES: f64 = 0.01;
/// The longest wait of a call whose handler will wait too, in mean waits of handlers.
const STAYS: f64 = 2.0;
/// Calls over which the time that they wait for something else than a core is averaged.
const WAITS: f64 = 64.0;

/// Round trips of which the shortest is believed, until the middle of many is known.
const FIRST_WORDS: u32 = 8;

/// By what share a word moves what is believed: this, divided by the number of words, and at least that.
const FIRST_STEPS: f64 = 4.0;
const LAST_STEP: f64 = 0.01;

/// Moves `believed` towards `told`: up or down by these shares at most.
fn approach(believed: &mut f64, told: f64, up: f64, down: f64) {
    *believed = told.clamp(*believed / (1.0 + down), *believed * (1.0 + up));
}

/// Estimates of the server's own times, all in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Service {
    objective: Objective,
    cores: f64,
    /// Service times: the stretch of calls that is being recorded, and the one before it.
    recent: Histogram,
    before: Histogram,
    mean: f64,
    worst: f64,
    /// Time and starts while calls waited, both fading.
    paced_ns: f64,
    paced: f64,
    /// The one by the other: asked for more often than it changes.
    pace: f64,
    /// When a call was last started with others left waiting.
    backlogged_since: Option<Instant>,
    /// The least mean service time, which creeps up, and when it last did.
    least_mean: f64,
    crept: Instant,
    /// How much of what the worst service time exceeds the mean is waited for all the same, from 0 to `LONGER`; below 0
    /// the share of the wait that is given up, to `-SHORTER`.
    longer: f64,
    /// By how much calls waited longer than predicted, and that error's square, both averages.
    bias: f64,
    square: f64,
    /// A core's time for a message.
    message: f64,
    /// Whether what is behind the handlers is short, not the cores, and whether it is at times.
    held: bool,
    limited: bool,
    /// Time between two starts of which the later waited for room, and how many of them it was learnt from.
    room_pace: f64,
    room_paced: f64,
    /// Mean wait of handlers for something else than a core; and how long calls may wait to start for its sake: threads
    /// that block take the cores too.
    waited: f64,
    for_others: f64,
    /// Calls that run at a time while others wait: more than there are cores if they wait for something else.
    parallel: f64,
    /// The round trip when nothing is in its way: less than nearly all that clients tell.
    least_round_trip: f64,
    /// The round trip in the middle of those that clients tell.
    round_trip: f64,
    /// How often one was told.
    told: u32,
}

/// What happened in a span of time. Sums may fade, as long as all do alike.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Load {
    /// Time of all cores that was not idle.
    pub(super) busy_ns: f64,
    /// Calls that arrived; of them those that found others waiting, and those that were refused.
    pub(super) arrived: f64,
    pub(super) waited: f64,
    pub(super) refused: f64,
    /// Calls that were started.
    pub(super) started: f64,
    /// Calls that ran when one arrived that had to wait, on average.
    pub(super) parallel: f64,
    /// Time, and of it that for which calls were held back since enough were in flight.
    pub(super) time_ns: f64,
    pub(super) held_ns: f64,
}

/// How a call started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Nanoseconds that it waited, and those that were predicted.
    pub(super) waited: u64,
    pub(super) predicted: u64,
    /// Calls that still wait.
    pub(super) left: u32,
    /// Whether it waited since enough were in flight.
    pub(super) for_room: bool,
}

impl Load {
    /// Makes the past count less.
    pub(super) fn fade(&mut self, by: f64) {
        let Self { busy_ns, arrived, waited, refused, started, parallel: _, time_ns, held_ns } = self;
        for sum in [busy_ns, arrived, waited, refused, started, time_ns, held_ns] {
            *sum *= by;
        }
    }

    /// Whether there is more to do than is done: calls wait or are refused.
    pub(super) fn is_full(&self) -> bool {
        self.waited + self.refused > 0.1 * self.arrived
    }
}

impl Service {
    pub(super) fn new(objective: Objective, cores: u32) -> Self {
        Self {
            objective,
            cores: f64::from(cores.max(1)),
            recent: Histogram::new(),
            before: Histogram::new(),
            mean: 0.0,
            worst: 0.0,
            paced_ns: 0.0,
            paced: 0.0,
            pace: 0.0,
            backlogged_since: None,
            least_mean: 0.0,
            crept: Instant::ZERO,
            longer: 0.0,
            bias: 0.0,
            square: 0.0,
            message: 0.0,
            held: false,
            limited: false,
            room_pace: 0.0,
            room_paced: 0.0,
            waited: 0.0,
            for_others: 0.0,
            parallel: 0.0,
            least_round_trip: 0.0,
            round_trip: 0.0,
            told: 0,
        }
    }

    /// Whether enough calls were served to say anything.
    #[inline]
    pub(super) fn known(&self) -> bool {
        self.mean > 0.0
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
    /// A call took a core for so long and was so long in the server, without `waited_ns` for which it waited for something
    /// else than a core after its start.
    #[inline]
    pub(super) fn on_served(&mut self, service_ns: u64, in_all_ns: u64, waited_ns: u64, now: Instant) {
        self.waited += (waited_ns as f64 - self.waited) / WAITS;
        if self.known() {
            let left = self.objective() - self.round_trip;
            // One that ran for longer than that is late however little it waited.
            let late = in_all_ns as f64 > left && service_ns as f64 <= left;
            let allowed = if self.longer > 0.0 { LATE } else { LATE_MOST };
            self.longer += LATE_STEP * (allowed - if late { 1.0 } else { 0.0 });
            if self.longer < 0.0 && in_all_ns <= service_ns {
                // Nothing waits: what made calls late is over, and few calls come that could tell so.
                self.longer *= REST;
            }
            // Where calls may wait longer than that for something else than a core, shorter waits for cores help nobody.
            let is_for_cores = !self.limited && self.for_others < left;
            self.longer = self.longer.clamp(if is_for_cores { -SHORTER } else { 0.0 }, LONGER);
        }
        // A time of zero would make every limit zero: a clock that did not move is taken for its smallest step.
        self.recent.record(service_ns.max(1));
        let count = self.recent.count();
        if count >= SERVICES {
            self.forget_older();
        }
        // Often while little is known, seldom later.
        if count >= KNOWN && (count.is_power_of_two() || count.is_multiple_of(SERVICES / 4)) {
            self.learn(now);
        }
    }

    #[cold]
    fn forget_older(&mut self) {
        core::mem::swap(&mut self.recent, &mut self.before);
        self.recent = Histogram::new();
    }

    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds far below 2^52")]
    #[cold]
    fn learn(&mut self, now: Instant) {
        let (new, old) = (self.recent.count() as f64, self.before.count() as f64);
        self.mean = (self.recent.mean() * new + self.before.mean() * old) / (new + old).max(1.0);
        let worst = |times: &Histogram| times.quantile(WORST) as f64;
        let (worst_new, worst_old) = (worst(&self.recent), worst(&self.before));
        self.worst = (worst_new * new + worst_old * old) / (new + old).max(1.0);
        if old > 0.0 && new >= old / 4.0 {
            // Something that stopped all cores for a moment is in one of them only.
            self.worst = self.worst.min(DISTURBED * worst_new.min(worst_old));
        }
        let since = now.nanos_since(core::mem::replace(&mut self.crept, now)) as f64;
        let crept = self.least_mean * (since / CREEP_NS).min(1.0).exp2();
        // The first means are of few calls: none of them is worth keeping.
        let is_first = old == 0.0;
        self.least_mean = if is_first { self.mean } else { crept.min(self.mean) };
    }

    /// A call was started at `now`.
    #[expect(clippy::cast_precision_loss, reason = "waits are far below 2^52 ns")]
    #[inline]
    pub(super) fn on_started(&mut self, start: Start, now: Instant) {
        let Start { waited, predicted, left, for_room } = start;
        if let Some(since) = self.backlogged_since {
            let pace = now.nanos_since(since) as f64;
            if for_room {
                self.room_paced += 1.0;
                self.room_pace += (pace - self.room_pace) / self.room_paced.min(WAITS);
            } else {
                let pace = if self.known() { pace.min(PAUSED * self.pace()) } else { pace };
                let fade = 1.0 - 1.0 / MEMORY;
                self.paced_ns = self.paced_ns * fade + pace;
                self.paced = self.paced * fade + 1.0;
                self.pace = self.paced_ns / self.paced;
            }
            let error = waited as f64 - predicted as f64;
            self.bias += (error - self.bias) / MEMORY;
            self.square += (error * error - self.square) / MEMORY;
        }
        self.backlogged_since = (left > 0).then_some(now);
    }

    /// A call that waited for room was not worth starting any more after so long: it would have waited at least that.
    /// Without these, errors would be those of the calls that were lucky. Waits for a core are left out: pauses of the host,
    /// which tell nothing of the next wait, end as many of them as long lines do.
    #[expect(clippy::cast_precision_loss, reason = "waits are far below 2^52 ns")]
    pub(super) fn on_outwaited(&mut self, waited: u64, predicted: u64) {
        let error = waited as f64 - predicted as f64;
        if error > self.bias {
            self.bias += (error - self.bias) / MEMORY;
            self.square += (error * error - self.square) / MEMORY;
        }
    }

    /// A client told its round trip; each is asked as often as any other, however much it calls. The middle one counts:
    /// no single client's word moves it far, not even if it is the first.
    #[expect(clippy::cast_precision_loss, reason = "round trips are far below 2^52 ns")]
    pub(super) fn on_round_trip(&mut self, told: Duration) {
        let told = nanos(told) as f64;
        if told <= 0.0 {
            return;
        }
        if self.told == 0 || (self.told < FIRST_WORDS && told < self.round_trip) {
            (self.round_trip, self.least_round_trip) = (told, told);
        }
        self.told = self.told.saturating_add(1);
        // What is told first may come from a rush of calls at the start and be many times too long.
        let step = (FIRST_STEPS / f64::from(self.told.max(FIRST_WORDS))).max(LAST_STEP);
        approach(&mut self.round_trip, told, step, step);
        // One in twenty is less than it: a step down is twenty steps up.
        approach(&mut self.least_round_trip, told, step / 20.0, step);
    }

    /// Time between two starts while calls wait.
    #[inline]
    pub(super) fn pace(&self) -> f64 {
        // A few starts tell less than the service times of calls that did not wait for each other.
        if self.paced >= 8.0 { self.pace } else { (self.mean + self.message) / self.cores }
    }

    /// Time between two starts while calls wait for room.
    #[inline]
    fn room_pace(&self) -> f64 {
        if self.room_paced >= 8.0 { self.room_pace } else { self.pace() }
    }

    /// How many calls may be in flight that stay for `quick_ns` when nothing holds them up: by Little's law, as many as
    /// keep the cores busy, and those that may wait for one. Far from what a handler that only computes ever has.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
    pub(super) fn core_limit(&self, quick_ns: f64) -> u32 {
        if !self.known() || quick_ns <= 0.0 {
            return u32::MAX;
        }
        let each = self.each();
        (self.cores * (quick_ns + self.core_wait().max(each)) / each).clamp(self.cores, f64::from(u32::MAX)) as u32
    }

    /// Calls a second that the server can serve; `None` while that is not known.
    pub(super) fn capacity(&self) -> Option<f64> {
        let of_cores = || 1e9 * self.cores.max(self.parallel) / (self.mean + self.message);
        // While calls are held back, one starts whenever one ends.
        self.known().then(|| if self.held { of_cores().min(1e9 / self.room_pace().max(1.0)) } else { of_cores() })
    }

    /// How long a call takes at most, from its caller's view, if all is as it should be.
    #[inline]
    pub(super) fn objective(&self) -> f64 {
        match self.objective {
            Objective::Multiple(times) => times * (self.mean.min(BAND * self.least_mean) + self.least_round_trip),
            Objective::Fixed(objective) => objective.as_secs_f64() * 1e9,
        }
    }

    /// The mean service time.
    #[inline]
    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// The mean service time, what calls wait for something else, and the round trip: what a call's own deadline must
    /// leave.
    #[inline]
    pub(super) fn unloaded(&self) -> f64 {
        self.mean + self.waited + self.round_trip
    }

    /// The round trip in the middle of those that clients tell.
    #[inline]
    pub(super) fn round_trip(&self) -> f64 {
        self.round_trip
    }

    /// What a call takes of a core in all.
    #[inline]
    pub(super) fn each(&self) -> f64 {
        (self.mean + self.message).max(1.0)
    }

    /// How long a call may wait for its start.
    #[inline]
    pub(super) fn longest_wait(&self) -> f64 {
        let least = match self.objective {
            Objective::Multiple(_) if self.limited => self.for_others.max(LINE * self.room_pace().max(self.pace())),
            Objective::Multiple(_) => self.for_others,
            Objective::Fixed(_) => 0.0,
        };
        self.core_wait().max(least)
    }

    /// How long a call may wait for a core.
    fn core_wait(&self) -> f64 {
        // However tight the objective is, one call may wait for another: else a server would idle between calls.
        let left = self.objective() - self.round_trip;
        let wait = (left - self.worst).max(WAIT_LEAST * left);
        let more = self.longer.max(0.0) * (self.worst - self.mean).max(0.0);
        (wait * (1.0 + self.longer.min(0.0)) + more).max((self.mean + self.message) / self.cores)
    }

    /// The predicted wait up to which a call is admitted.
    pub(super) fn admitted_wait(&self) -> f64 {
        let longest = self.longest_wait();
        let deviation = (self.square - self.bias * self.bias).max(0.0).sqrt();
        let untold = deviation / (UNTOLD * longest);
        longest - DEVIATIONS * deviation * (1.0 - untold * untold).max(0.0)
    }

    /// The wait of a call that finds `waiting` others before it, for a core or for room.
    #[inline]
    pub(super) fn predict(&self, waiting: u32, for_room: bool) -> f64 {
        if waiting == 0 {
            return 0.0;
        }
        let pace = if for_room { self.room_pace() } else { self.pace() };
        (f64::from(waiting) * pace + self.bias).max(0.0)
    }

    /// What remains of the time that the cores were busy, and did not run calls, is what messages took.
    pub(super) fn on_load(&mut self, load: &Load) {
        self.parallel = load.parallel;
        self.message = ((load.busy_ns - load.started * self.mean) / load.arrived.max(1.0)).max(0.0);
    }

    /// For how long cores had no work although calls waited, and how many started.
    pub(super) fn on_held(&mut self, load: &Load) {
        let gap = load.time_ns / self.cores / load.started.max(1.0);
        // A quiet time before a rush lengthens that; what starts while others wait tells how soon the next one will.
        let gap = if self.room_paced >= 8.0 { gap.min(self.room_pace) } else { gap };
        self.for_others = (STAYS * self.waited).min(LINE * gap);
        self.held = load.held_ns > HELD_LEAST * load.time_ns && load.held_ns > HELD * (load.time_ns - load.busy_ns);
        self.limited = load.held_ns > HELD_AT_TIMES * load.time_ns;
    }

    /// A core's time for one message.
    #[inline]
    pub(super) fn message(&self) -> f64 {
        self.message
    }

    /// What a refusal costs, as a share of what a served call takes.
    pub(super) fn refusal_cost(&self) -> f64 {
        self.message / (self.mean + self.message).max(1.0) + (REFUSAL * self.room()).min(REFUSAL_MOST)
    }

    /// Calls that fit into the server, waiting or running, while all are admitted in time.
    pub(super) fn room(&self) -> f64 {
        self.admitted_wait() / self.pace().max(1.0) + self.cores
    }

    /// Nothing waits any more although nothing was started.
    #[inline]
    pub(super) fn on_empty(&mut self) {
        self.backlogged_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Served calls, one each millisecond from `now` on, of which each took so long and was in the server for so long.
    fn serve(service: &mut Service, now: &mut Instant, calls: u64, [took, in_all]: [u64; 2]) {
        for _ in 0..calls {
            *now = now.plus_nanos(MS);
            service.on_served(took, in_all, 0, *now);
        }
    }

    fn learnt() -> (Service, Instant) {
        let mut service = Service::new(Objective::Multiple(10.0), 1);
        let mut now = Instant::ZERO;
        service.on_round_trip(Duration::from_micros(100));
        serve(&mut service, &mut now, 3 * SERVICES, [MS, MS]);
        (service, now)
    }

    #[test]
    fn a_slow_host_widens_the_objective_by_a_quarter_and_then_hardly() {
        let (mut service, mut now) = learnt();
        let at_rest = service.objective();
        assert!((at_rest / 11e6 - 1.0).abs() < 0.02, "{at_rest}");
        // Twenty seconds of a host that runs three times slower.
        serve(&mut service, &mut now, 20_000, [3 * MS, 3 * MS]);
        assert!(service.mean() > 2.9e6 && service.objective() < 1.35 * at_rest, "{}", service.objective());
        // A service that has become slower for good has an objective for that a quarter of an hour later.
        serve(&mut service, &mut now, 900_000, [3 * MS, 3 * MS]);
        assert!((service.objective() / 31e6 - 1.0).abs() < 0.03, "{}", service.objective());
        // And fast calls are believed at once.
        serve(&mut service, &mut now, 3 * SERVICES, [MS, MS]);
        assert!((service.objective() / at_rest - 1.0).abs() < 0.02, "{}", service.objective());
    }

    #[test]
    fn an_objective_that_was_given_stays() {
        let mut service = Service::new(Objective::Fixed(Duration::from_millis(50)), 1);
        serve(&mut service, &mut Instant::ZERO.clone(), 10_000, [3 * MS, 3 * MS]);
        assert_eq!(service.objective().to_bits(), 50e6_f64.to_bits());
    }

    #[test]
    fn calls_that_are_late_since_they_waited_shorten_the_wait_and_others_do_not() {
        let (mut service, mut now) = learnt();
        let before = service.longest_wait();
        // Two in a hundred are later than the objective.
        for _ in 0..100 {
            serve(&mut service, &mut now, 98, [MS, 5 * MS]);
            serve(&mut service, &mut now, 2, [MS, 12 * MS]);
        }
        let shorter = service.longest_wait();
        assert!(shorter < 0.96 * before, "{before} {shorter}");
        serve(&mut service, &mut now, 20_000, [MS, 5 * MS]);
        assert!(service.longest_wait() >= before, "{before} {}", service.longest_wait());
        // These were late whatever they waited: the host stopped while they ran.
        for _ in 0..100 {
            serve(&mut service, &mut now, 199, [MS, 5 * MS]);
            serve(&mut service, &mut now, 1, [12 * MS, 13 * MS]);
        }
        assert!(service.longest_wait() > 0.8 * before, "{before} {}", service.longest_wait());
    }

    #[test]
    fn however_long_single_calls_run_there_is_time_to_wait() {
        let (mut service, mut now) = learnt();
        // Two in a hundred run for longer than the objective, in every stretch: nothing would ever be started that came
        // while others were there.
        for _ in 0..200 {
            serve(&mut service, &mut now, 98, [MS, MS]);
            serve(&mut service, &mut now, 2, [20 * MS, 20 * MS]);
        }
        let left = service.objective() - service.round_trip();
        assert!(service.longest_wait() >= 0.9 * WAIT_LEAST * left, "{} of {left}", service.longest_wait());
    }
}

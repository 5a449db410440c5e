//! How much time of its core a proxy can give to tenants' work.

use core::time::Duration;

use tidegate_core::number::{float, signed_float, whole};

/// A sample is taken over at least this span.
const SAMPLE_NS: u64 = 50_000_000;
/// How much a new sample counts: after ten, half a second, 97 % of a change is learnt.
const LATEST: f64 = 0.3;
/// Samples beyond the median of so many are noise.
const SAMPLES: usize = 3;
/// Whatever else the core does, so much of it is given to tenants; else a flood of refused work could stop all of it.
const LEAST: f64 = 0.05;

/// Learns what is left of a second of the core when the work that nobody is charged for is done: accepting, refusing,
/// other programs.
///
/// It is the core's time minus its idle time minus what tenants' work took, so that it can be learnt at any load. Source:
/// ours.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    idle_ns: u64,
    span_ns: u64,
    worked_ns: u64,
    recent: [f64; SAMPLES],
    samples: usize,
    /// Part of the time that is not charged to anybody, 0 to 1.
    overhead: f64,
}

impl Learner {
    pub(super) fn new() -> Self {
        Self { idle_ns: 0, span_ns: 0, worked_ns: 0, recent: [0.0; SAMPLES], samples: 0, overhead: 0.0 }
    }

    /// Notes time that a tenant's work took.
    #[inline]
    pub(super) fn on_work(&mut self, ns: u64) {
        self.worked_ns = self.worked_ns.saturating_add(ns);
    }

    /// Of the last `span` the core was idle for `idle`; true if something was learnt.
    pub(super) fn on_idle(&mut self, idle: Duration, span: Duration) -> bool {
        let nanos = tidegate_core::time::nanos;
        self.span_ns = self.span_ns.saturating_add(nanos(span));
        self.idle_ns = self.idle_ns.saturating_add(nanos(idle).min(nanos(span)));
        if self.span_ns < SAMPLE_NS {
            return false;
        }
        let span = signed_float(i64::try_from(self.span_ns).unwrap_or(i64::MAX));
        let idle = signed_float(i64::try_from(self.idle_ns).unwrap_or(i64::MAX));
        let worked = signed_float(i64::try_from(self.worked_ns).unwrap_or(i64::MAX));
        // Work done in one sample and told of in the next makes one too high and the other too low.
        let sample = ((span - idle - worked) / span).clamp(-1.0, 1.0);
        self.recent[self.samples % SAMPLES] = sample;
        self.samples += 1;
        let sample = median(&self.recent[..self.samples.min(SAMPLES)]);
        let weight = if self.samples == 1 { 1.0 } else { LATEST };
        self.overhead += weight * (sample - self.overhead);
        (self.idle_ns, self.span_ns, self.worked_ns) = (0, 0, 0);
        true
    }

    /// Nanoseconds of each second that tenants' work can have, if the threads may use `core_ns` of each; `None` if nothing was
    /// learnt yet. What nobody is charged for counts against a quota like the rest.
    pub(super) fn capacity(&self, core_ns: u64) -> Option<u64> {
        let core = float(core_ns);
        (self.samples > 0).then(|| whole((core - self.overhead * 1e9).clamp(LEAST * core, core)))
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = [0.0; SAMPLES];
    let sorted = &mut sorted[..samples.len()];
    sorted.copy_from_slice(samples);
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rng;

    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    /// A second of a core of which a fifth goes to nobody's work, at a load of `load`, with noise.
    fn learnt(load: f64, noise: f64, seed: u64) -> f64 {
        let (mut learner, mut rng) = (Learner::new(), Rng::new(seed));
        for _ in 0..10 {
            let charged = (0.8 * load + noise * rng.normal()).max(0.0);
            let idle = (0.8 - 0.8 * load + noise * rng.normal()).clamp(0.0, 1.0);
            learner.on_work(whole(charged * 1e8));
            learner.on_idle(TENTH.mul_f64(idle), TENTH);
        }
        signed_float(i64::try_from(learner.capacity(1_000_000_000).unwrap()).unwrap()) / 1e9
    }

    #[test]
    fn a_second_is_enough_at_any_load_and_with_noise() {
        for load in [0.0, 0.1, 0.5, 1.0] {
            assert!((learnt(load, 0.0, 1) - 0.8).abs() < 0.001);
            for seed in 0..100 {
                let found = learnt(load, 0.05, seed);
                assert!((found - 0.8).abs() < 0.1, "{found} at load {load}, seed {seed}");
            }
        }
    }

    #[test]
    fn one_wild_sample_changes_little_and_a_lasting_change_is_learnt_in_a_second() {
        let mut learner = Learner::new();
        for tick in 0..30 {
            // A pause of the machine in the twentieth tick.
            let idle = if tick == 20 { 0.0 } else { 0.5 };
            learner.on_work(40_000_000);
            learner.on_idle(TENTH.mul_f64(idle), TENTH);
        }
        let steady = learner.capacity(1_000_000_000).unwrap();
        assert!((890_000_000..=900_000_000).contains(&steady), "{steady}");
        for _ in 0..10 {
            learner.on_work(40_000_000);
            learner.on_idle(Duration::ZERO, TENTH);
        }
        let flooded = learner.capacity(1_000_000_000).unwrap();
        assert!((400_000_000..430_000_000).contains(&flooded), "{flooded}");
    }

    #[test]
    fn of_a_part_of_a_core_the_same_overhead_leaves_less() {
        let mut learner = Learner::new();
        learner.on_work(20_000_000);
        // A tenth of the core is nobody's.
        learner.on_idle(TENTH.mul_f64(0.7), TENTH);
        let found = [1_000_000_000, 500_000_000, 50_000_000].map(|core_ns| learner.capacity(core_ns).unwrap());
        assert!(found.iter().zip([900_000_000, 400_000_000, 2_500_000]).all(|(found, is)| found.abs_diff(is) <= 1));
    }
}

//! What goes wrong, and when.

use std::time::Duration;

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};

use crate::network::NodeId;

/// Something that goes wrong, or ends going wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A node stops and forgets what it did not store.
    Crash(NodeId),
    /// It starts again.
    Restart(NodeId),
    /// A node does nothing for a while, and then goes on as if nothing had been.
    Pause(NodeId, Duration),
    /// A node's wall clock jumps.
    ClockStep(NodeId, ClockStep),
}

/// A jump of a clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClockStep {
    /// It shows later.
    Forward(Duration),
    /// It shows earlier.
    Back(Duration),
}

/// How often what goes wrong, on the average, in a random plan; `None` for never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultRates {
    /// Time between crashes of some node; it is away a tenth of this on the average.
    pub crash_every: Option<Duration>,
    /// Time between pauses of some node; each lasts a hundredth of this on the average.
    pub pause_every: Option<Duration>,
    /// Time between jumps of some node's clock, by up to a second to either side.
    pub clock_step_every: Option<Duration>,
}

/// Faults in order of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<(Instant, Fault)>,
}

impl FaultPlan {
    /// A plan written by hand, in any order.
    #[must_use]
    pub fn new(mut faults: Vec<(Instant, Fault)>) -> Self {
        faults.sort_by_key(|(at, _)| *at);
        Self { faults }
    }

    /// A random plan for `nodes` nodes, numbered from 0, up to `end`, when all nodes run again.
    #[must_use]
    pub fn random(rates: FaultRates, nodes: u32, end: Instant, rng: &mut Rng) -> Self {
        let mut faults = Vec::new();
        let any = |rng: &mut Rng| NodeId(u32::try_from(rng.below(u64::from(nodes))).expect("below a 32-bit bound"));
        for_each(rates.crash_every, end, rng, |at, every_ns, rng| {
            let node = any(rng);
            faults.push((at, Fault::Crash(node)));
            faults.push((after(at, every_ns / 10.0, rng).min(end), Fault::Restart(node)));
        });
        for_each(rates.pause_every, end, rng, |at, every_ns, rng| {
            let pause = after(at, every_ns / 100.0, rng).min(end).since(at);
            faults.push((at, Fault::Pause(any(rng), pause)));
        });
        for_each(rates.clock_step_every, end, rng, |at, _, rng| {
            let by = Duration::from_nanos(rng.below(1_000_000_000));
            let step = if rng.chance(0.5) { ClockStep::Forward(by) } else { ClockStep::Back(by) };
            faults.push((at, Fault::ClockStep(any(rng), step)));
        });
        Self::new(faults)
    }

    /// The faults in order of time.
    pub fn iter(&self) -> impl Iterator<Item = &(Instant, Fault)> {
        self.faults.iter()
    }
}

/// Calls `make` at the instants of a Poisson process before `end`.
fn for_each(every: Option<Duration>, end: Instant, rng: &mut Rng, mut make: impl FnMut(Instant, f64, &mut Rng)) {
    let Some(every) = every.filter(|every| !every.is_zero()) else { return };
    let every_ns = every.as_secs_f64() * 1e9;
    let mut at = after(Instant::ZERO, every_ns, rng);
    while at < end {
        make(at, every_ns, rng);
        at = after(at, every_ns, rng);
    }
}

fn after(at: Instant, mean_ns: f64, rng: &mut Rng) -> Instant {
    at + Duration::from_nanos(nanos(Duration::try_from_secs_f64(rng.exponential() * mean_ns / 1e9).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> FaultPlan {
        let every = Some(Duration::from_secs(10));
        let rates = FaultRates { crash_every: every, pause_every: every, clock_step_every: every };
        FaultPlan::random(rates, 5, Instant::from_nanos(1_000_000_000_000), &mut Rng::new(seed))
    }

    #[test]
    fn a_random_plan_repeats_and_ends_well() {
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
        let plan = plan(1);
        assert!(plan.iter().map(|(at, _)| at).is_sorted());
        let count = |is: fn(&Fault) -> bool| plan.iter().filter(|(_, fault)| is(fault)).count();
        let crashes = count(|fault| matches!(fault, Fault::Crash(_)));
        assert!((70..130).contains(&crashes), "{crashes}");
        assert_eq!(crashes, count(|fault| matches!(fault, Fault::Restart(_))));
        assert_ne!(count(|fault| matches!(fault, Fault::Pause(..))), 0);
    }

    #[test]
    fn no_rates_no_faults() {
        let plan = FaultPlan::random(FaultRates::default(), 3, Instant::MAX, &mut Rng::new(1));
        assert_eq!(plan.iter().count(), 0);
    }
}

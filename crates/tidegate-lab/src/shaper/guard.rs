//! The shaper's machine, or nothing, at the host's edge.

use tidegate_core::control::window::{ClassConfig, Mode};
use tidegate_core::{Instant, Rng};
use tidegate_shaper::machine::ahead::Leaf;
use tidegate_shaper::machine::class::{Class, Sizes};
use tidegate_shaper::machine::flow::{Flows, Seen};
use tidegate_shaper::machine::packet::Segment;

use super::scenario::{MSS, Scenario, Scheme};

/// What a host's packets pass.
pub(super) struct Guard {
    /// One for each limiter; none if nothing controls.
    classes: Vec<Class>,
    flows: Flows,
    rng: Rng,
}

impl Guard {
    pub(super) fn new(scenario: &Scenario, scheme: Scheme, rng: Rng) -> Self {
        let class = |mode| {
            let config = ClassConfig {
                rate: scenario.rate(),
                ceil: scenario.ceil(),
                setpoint_ns: scenario.setpoint_us * 1_000,
                mode,
            };
            let mut class = Class::new(config, MSS, Instant::ZERO);
            if scheme == Scheme::Isolation {
                class.isolate();
            }
            class
        };
        let classes = scheme.mode().map_or(Vec::new(), |mode: Mode| {
            (0..).zip(0..scenario.limiters).map(|(slot, _)| class(mode).in_slot(slot)).collect()
        });
        Self { classes, flows: Flows::default(), rng }
    }

    /// A segment of a class goes out. The leaf that it goes to with isolation.
    pub(super) fn on_egress(&mut self, class: usize, segment: &Segment, sizes: Sizes, seen: Seen) -> Leaf {
        let Some(class) = self.classes.get_mut(class) else { return Leaf::Sparse };
        class.on_egress(&mut self.flows, segment, sizes, seen).0
    }

    /// A segment of a class comes in. Its window field.
    pub(super) fn on_ingress(&mut self, class: usize, segment: &Segment, seen: Seen) -> u16 {
        let Some(class) = self.classes.get_mut(class) else { return segment.window };
        let coin = u16::try_from(self.rng.below(1 << 16)).expect("below 2^16");
        class.on_ingress(&mut self.flows, segment, coin, seen).window.unwrap_or(segment.window)
    }

    pub(super) fn set_rate(&mut self, class: usize, rate: u64) {
        if let Some(class) = self.classes.get_mut(class) {
            let config = class.window().config();
            let ceil = if config.ceil > config.rate { config.ceil } else { rate };
            class.set_config(ClassConfig { rate, ceil, ..config });
        }
    }

    /// What the limiter lets pass, as far as the class knows.
    pub(super) fn drain(&self, class: usize) -> Option<u64> {
        self.classes.get(class).map(|class| class.window().drain())
    }

    /// The class's window in nanoseconds of its drain, if it has one.
    pub(super) fn window_ns(&self, class: usize) -> Option<u64> {
        self.classes.get(class).map(|class| class.window().window_ns())
    }
}

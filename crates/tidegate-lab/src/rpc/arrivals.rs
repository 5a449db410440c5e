//! Who calls next, and when.

use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_rpc::machine::Priority;

use super::scenario::{Scenario, whole};

/// One call to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) client: u32,
    pub(super) class: u8,
    pub(super) priority: Priority,
    /// Which of the scenario's groups, by index.
    pub(super) group: u16,
}

#[derive(Debug)]
struct Source {
    /// Calls a second.
    rate: f64,
    first_client: u32,
    clients: u32,
    group: u16,
    /// Priority, its index, and the share of the calls up to and including it.
    priorities: Vec<(Priority, u8, f64)>,
}

/// One Poisson process for all clients: whose call it is is drawn when it comes.
#[derive(Debug)]
pub(super) struct Arrivals {
    sources: Vec<Source>,
    capacity: f64,
    /// Calls a second, of all.
    rate: f64,
    /// The next call in nanoseconds, with its fraction: rounding each gap would change the rate.
    clock_ns: f64,
    next: Instant,
    /// Changes of a source's load, the next one last.
    steps: Vec<(Instant, usize, f64)>,
    burst: Option<(Instant, u32, u64)>,
    rng: Rng,
}

/// Priorities and tenants of a scenario, each once, in order.
pub(super) fn kinds(scenario: &Scenario) -> (Vec<Priority>, Vec<tidegate_rpc::machine::Tenant>) {
    let mut priorities: Vec<Priority> = Vec::new();
    for group in &scenario.groups {
        priorities.extend(group.priorities.iter().map(|(priority, _)| *priority));
        priorities.extend(group.priorities.is_empty().then_some(Priority::DEFAULT));
    }
    let mut tenants: Vec<_> = scenario.groups.iter().map(|group| group.tenant).collect();
    priorities.sort_unstable();
    priorities.dedup();
    tenants.sort_unstable();
    tenants.dedup();
    (priorities, tenants)
}

impl Arrivals {
    pub(super) fn new(scenario: &Scenario, rng: Rng) -> Self {
        let (classes, _) = kinds(scenario);
        let class = |priority: Priority| classes.binary_search(&priority).unwrap_or(0);
        let capacity = scenario.capacity();
        let mut first_client = 0;
        let mut sources = Vec::new();
        let mut steps = Vec::new();
        for (index, group) in scenario.groups.iter().enumerate() {
            let sum: f64 = group.priorities.iter().map(|(_, weight)| weight).sum();
            let mut up_to = 0.0;
            let mut priorities = Vec::new();
            for &(priority, weight) in &group.priorities {
                up_to += weight / sum;
                priorities.push((priority, u8::try_from(class(priority)).unwrap_or(u8::MAX), up_to));
            }
            if priorities.is_empty() {
                priorities.push((Priority::DEFAULT, u8::try_from(class(Priority::DEFAULT)).unwrap_or(u8::MAX), 1.0));
            }
            let number = u16::try_from(index).expect("the check bounds the groups");
            let rate = group.load * capacity;
            sources.push(Source { rate, first_client, clients: group.clients, group: number, priorities });
            first_client += group.clients;
            steps.extend(group.steps.iter().map(|step| (Instant::ZERO + step.at, index, step.load)));
        }
        steps.sort_by_key(|step| core::cmp::Reverse(step.0));
        let burst = scenario.incast.map(|burst| (Instant::ZERO + burst.every, burst.calls, nanos(burst.every)));
        let mut arrivals = Self { sources, capacity, rate: 0.0, clock_ns: 0.0, next: Instant::MAX, steps, burst, rng };
        arrivals.restart(Instant::ZERO);
        arrivals
    }

    /// When the next call, burst or change of load comes.
    #[inline]
    pub(super) fn next_at(&self) -> Instant {
        let step = self.steps.last().map_or(Instant::MAX, |step| step.0);
        let burst = self.burst.map_or(Instant::MAX, |burst| burst.0);
        self.next.min(step).min(burst)
    }

    /// From `now` on, source `index` offers `load` times the capacity.
    pub(super) fn set_load(&mut self, index: usize, load: f64, now: Instant) {
        if let Some(source) = self.sources.get_mut(index) {
            source.rate = load.max(0.0) * self.capacity;
            self.restart(now);
        }
    }

    /// What comes at `now`, which is [`next_at`](Self::next_at); the number of calls at this instant.
    #[inline]
    pub(super) fn pop(&mut self, now: Instant) -> u32 {
        if self.next <= now {
            self.schedule();
            return 1;
        }
        if let Some((at, calls, every)) = self.burst.filter(|burst| burst.0 <= now) {
            self.burst = Some((at.plus_nanos(every), calls, every));
            return calls;
        }
        if let Some((_, index, load)) = self.steps.pop() {
            self.set_load(index, load, now);
        }
        0
    }

    /// Who makes a call: of a burst, a client of the first group.
    #[inline]
    pub(super) fn draw(&mut self, of_burst: bool) -> Arrival {
        let index = if of_burst || self.sources.len() == 1 { 0 } else { self.pick() };
        let source = &self.sources[index];
        let offset = self.rng.below(source.clients.into());
        let client = source.first_client + u32::try_from(offset).expect("below the number of clients");
        let (priority, class) = match source.priorities.as_slice() {
            [(priority, class, _)] => (*priority, *class),
            several => {
                let at = self.rng.f64();
                let last = several.len() - 1;
                let index = several.iter().position(|(_, _, up_to)| at < *up_to).unwrap_or(last);
                (several[index].0, several[index].1)
            }
        };
        Arrival { client, class, priority, group: source.group }
    }

    fn pick(&mut self) -> usize {
        let mut at = self.rng.f64() * self.rate;
        let last = self.sources.len() - 1;
        self.sources
            .iter()
            .position(|source| {
                at -= source.rate;
                at < 0.0
            })
            .unwrap_or(last)
    }

    fn restart(&mut self, now: Instant) {
        self.rate = self.sources.iter().map(|source| source.rate).sum();
        #[expect(clippy::cast_precision_loss, reason = "runs are shorter than 100 days")]
        let now_ns = now.as_nanos() as f64;
        self.clock_ns = now_ns;
        self.schedule();
    }

    #[inline]
    fn schedule(&mut self) {
        if self.rate <= 0.0 {
            self.next = Instant::MAX;
            return;
        }
        self.clock_ns += self.rng.exponential() * 1e9 / self.rate;
        self.next = Instant::from_nanos(whole(self.clock_ns));
    }
}

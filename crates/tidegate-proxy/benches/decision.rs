//! What limiting costs: `cargo bench -p tidegate-proxy --bench decision`.
//!
//! `neighbours_resolved` asks for a request of one tenant whose handle is known, `neighbours_random` for one of a million,
//! drawn anew each time. Both ask for a request and the core's time for it, as the proxy does. `neighbours_rebalance`
//! sets the shares of 100,000 tenants that all asked in the tick, all slices together; `neighbours_slice_max` is the
//! longest of its slices.

use core::hint::black_box;
use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate_core::{Instant, Rng};
use tidegate_proxy::machine::Resource;
use tidegate_proxy::machine::neighbours::{Neighbours, NeighboursConfig, Stage, Tenant};
use tidegate_runtime::clock;

/// From question to question.
const GAP_NS: u64 = 10_000;
/// As short that 100,000 fall into one tick: then it is one setting of shares that is measured, of all of them.
const SHORT_GAP_NS: u64 = 500;
const TICK: Duration = Duration::from_millis(100);
const REQUEST: [(Resource, u64); 2] = [(Resource::Requests, 1), (Resource::EventTime, 5_000)];

/// A limiter, its tenants and its time.
struct Asked {
    neighbours: Neighbours,
    tenants: Vec<Tenant>,
    now: Instant,
    gap_ns: u64,
}

impl Asked {
    /// `count` tenants that all have asked once.
    fn new(count: u32, tick: Duration, gap_ns: u64) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut neighbours = Neighbours::new(NeighboursConfig { tick, ..NeighboursConfig::default() }, now);
        let tenants: Vec<_> = (0..count).map(|number| neighbours.tenant(&format!("tenant {number}"), now)).collect();
        let mut asked = Self { neighbours, tenants, now, gap_ns };
        for at in 0..asked.tenants.len() {
            asked.ask(asked.tenants[at]);
        }
        asked
    }

    /// One question; the timer is called as often as it would be in truth.
    #[inline]
    fn ask(&mut self, tenant: Tenant) {
        self.now = self.now.plus_nanos(self.gap_ns);
        let verdict = self.neighbours.try_take(tenant, Stage::Request, black_box(&REQUEST), self.now);
        let _ = black_box(verdict);
    }

    /// Sets all shares, and says how long that took together, and the longest slice.
    fn rebalance(&mut self) -> (Duration, Duration) {
        let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
        let tick = self.neighbours.config().tick;
        self.now += tick;
        let end = self.now + tick * 9 / 10;
        while let Some(at) = self.neighbours.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let start = clock::now();
            self.neighbours.on_timeout(self.now);
            let took = clock::now().since(start);
            sum += took;
            longest = longest.max(took);
        }
        (sum, longest)
    }
}

fn decisions(c: &mut Criterion) {
    let mut one = Asked::new(1, TICK, GAP_NS);
    one.rebalance();
    let tenant = one.tenants[0];
    c.bench_function("neighbours_resolved", |b| b.iter(|| one.ask(tenant)));

    // Shares are set between the questions, not while they are measured: that is another line.
    let mut million = Asked::new(1_000_000, Duration::from_secs(10), GAP_NS);
    let mut rng = Rng::new(1);
    // Handles, as connections have them: where a handle is kept is nothing that the limiter does.
    let any = |rng: &mut Rng| million.tenants[usize::try_from(rng.below(1_000_000)).expect("64 bits")];
    let drawn: Vec<_> = (0..1 << 20).map(|_| any(&mut rng)).collect();
    let (mut asked, mut set) = (0, 0);
    c.bench_function("neighbours_random", |b| {
        b.iter_custom(|times| {
            if asked - set > 500_000 {
                million.rebalance();
                set = asked;
            }
            let start = clock::now();
            let times = usize::try_from(times).expect("64 bits");
            for time in asked..asked + times {
                million.ask(drawn[time % (1 << 20)]);
            }
            let span = clock::now().since(start);
            asked += times;
            span
        });
    });
}

fn rebalances(c: &mut Criterion) {
    let mut many = Asked::new(100_000, TICK, SHORT_GAP_NS);
    let mut longest = Vec::new();
    c.bench_function("neighbours_rebalance", |b| {
        b.iter_custom(|times| {
            let mut all = Duration::ZERO;
            for _ in 0..times {
                // Everybody wants something in every tick.
                (0..many.tenants.len()).for_each(|at| many.ask(many.tenants[at]));
                let (sum, slice) = many.rebalance();
                all += sum;
                longest.push(slice);
            }
            all
        });
    });
    let mut next = longest.iter().copied().cycle();
    c.bench_function("neighbours_slice_max", |b| {
        b.iter_custom(|times| (0..times).map(|_| next.next().unwrap_or_default()).sum());
    });
}

criterion_group!(benches, decisions, rebalances);
criterion_main!(benches);

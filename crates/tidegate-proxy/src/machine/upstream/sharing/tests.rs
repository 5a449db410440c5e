//! Tenants before one upstream, in virtual time, through the pool that the proxy has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_core::Rng;
use tidegate_core::estimate::Histogram;

use super::*;
use crate::machine::upstream::{Acquire, Flow, Output, Pool, PoolConfig, Refusal, ServerConfig, Tried};

const MS: u64 = 1_000_000;

/// What is behind: so many workers, each busy for so long with a request; more than enough of them for a pure delay.
struct Behind {
    workers: usize,
    service: Duration,
    constant: bool,
    busy: usize,
    waiting: VecDeque<u64>,
}

/// How a tenant asks.
#[derive(Clone, Copy)]
enum Load {
    /// At random, so many requests a second.
    Open(f64),
    /// So many clients, each with its next request when it has an answer; a refused one comes back 10 ms later.
    Closed(u32),
}

struct Tenant {
    load: Load,
    /// So many names that one source makes up, one for each request in turn; none of a tenant for itself.
    names: u64,
    weight: u32,
    stays: Histogram,
    answered: u64,
    refused: u64,
    /// Requests that come, wait or are under way.
    asking: u32,
}

struct Request {
    tenant: usize,
    arrival: Instant,
    started: Option<(usize, Call, Instant)>,
}

struct Scene {
    pool: Pool,
    rng: Rng,
    now: Instant,
    behind: Behind,
    tenants: Vec<Tenant>,
    requests: BTreeMap<u64, Request>,
    next: u64,
    /// Requests that come, by their tenants.
    arrivals: BTreeSet<(Instant, u64, usize)>,
    ends: BTreeSet<(Instant, u64)>,
    /// The proxy sees an answer so long after it came.
    seen_late: Duration,
}

impl Scene {
    fn new(workers: usize, service: Duration, constant: bool) -> Self {
        let config = PoolConfig {
            servers: vec![ServerConfig::default()],
            pending_timeout: Duration::from_secs(3),
            learnt: Some(SharingTuning::default()),
            ..PoolConfig::default()
        };
        Self {
            pool: Pool::new(config, Instant::ZERO),
            rng: Rng::new(7),
            now: Instant::ZERO,
            behind: Behind { workers, service, constant, busy: 0, waiting: VecDeque::new() },
            tenants: Vec::new(),
            requests: BTreeMap::new(),
            next: 0,
            arrivals: BTreeSet::new(),
            ends: BTreeSet::new(),
            seen_late: Duration::ZERO,
        }
    }

    fn tenant(&mut self, load: Load, weight: u32) -> usize {
        self.tenants.push(Tenant {
            load,
            names: 0,
            weight,
            stays: Histogram::new(),
            answered: 0,
            refused: 0,
            asking: 0,
        });
        let tenant = self.tenants.len() - 1;
        self.begin(tenant);
        tenant
    }

    fn begin(&mut self, tenant: usize) {
        match self.tenants[tenant].load {
            Load::Open(_) => self.come(tenant, Duration::ZERO),
            Load::Closed(clients) => (0..clients).for_each(|_| self.come(tenant, Duration::ZERO)),
        }
    }

    fn set_load(&mut self, tenant: usize, load: Load) {
        let before = self.arrivals.len();
        self.arrivals.retain(|(_, _, of)| *of != tenant);
        self.tenants[tenant].asking -= u32::try_from(before - self.arrivals.len()).unwrap();
        self.tenants[tenant].load = load;
        self.begin(tenant);
    }

    fn come(&mut self, tenant: usize, after: Duration) {
        let gap = match self.tenants[tenant].load {
            Load::Open(rate) => Duration::from_secs_f64(self.rng.exponential() / rate),
            Load::Closed(_) => after,
        };
        self.next += 1;
        self.tenants[tenant].asking += 1;
        self.arrivals.insert((self.now + gap, self.next, tenant));
    }

    /// Plays so many seconds; what was counted before is forgotten.
    fn play(&mut self, seconds: u64) {
        for tenant in &mut self.tenants {
            (tenant.stays, tenant.answered, tenant.refused) = (Histogram::new(), 0, 0);
        }
        let until = self.now + Duration::from_secs(seconds);
        loop {
            let arrival = self.arrivals.first().map_or(Instant::MAX, |(at, ..)| *at);
            let end = self.ends.first().map_or(Instant::MAX, |(at, _)| *at);
            let timeout = self.pool.next_timeout().unwrap_or(Instant::MAX);
            self.now = arrival.min(end).min(timeout).min(until).max(self.now);
            if self.now == until {
                return;
            }
            if end <= self.now {
                let (_, request) = self.ends.pop_first().unwrap();
                self.end(request);
            } else if arrival <= self.now {
                let (_, request, tenant) = self.arrivals.pop_first().unwrap();
                self.arrive(request, tenant);
            } else {
                self.pool.on_timeout(&mut self.rng, self.now);
            }
            while let Some(output) = self.pool.poll_output() {
                match output {
                    Output::Start { request, server, call, .. } => self.start(request, server, call),
                    Output::Refused { request, .. } => self.refuse(request),
                }
            }
        }
    }

    fn flow(&self, request: u64, tenant: usize) -> Flow {
        let number = u32::try_from(tenant).unwrap();
        match self.tenants[tenant].names {
            0 => Flow::http1(number),
            names => Flow::made_up(number, 1_000 + u32::try_from(request % names).unwrap()),
        }
    }

    fn arrive(&mut self, request: u64, tenant: usize) {
        let flow = self.flow(request, tenant);
        self.requests.insert(request, Request { tenant, arrival: self.now, started: None });
        let (weight, now) = (self.tenants[tenant].weight, self.now);
        let asker = crate::machine::upstream::Asker { group: 1, ..flow.into() };
        match self.pool.acquire(request, asker, Tried::default(), || weight, &mut self.rng, now) {
            Acquire::Start(server) => self.start(request, server, self.pool.call()),
            Acquire::Queued => {}
            Acquire::Refused(Refusal::NoServer) => panic!("there is one"),
            Acquire::Refused(_) => self.refuse(request),
        }
        if matches!(self.tenants[tenant].load, Load::Open(_)) {
            self.come(tenant, Duration::ZERO);
        }
    }

    fn start(&mut self, request: u64, server: usize, call: Call) {
        self.requests.get_mut(&request).unwrap().started = Some((server, call, self.now));
        self.behind.waiting.push_back(request);
        self.serve();
    }

    fn serve(&mut self) {
        while self.behind.busy < self.behind.workers
            && let Some(request) = self.behind.waiting.pop_front()
        {
            self.behind.busy += 1;
            let spread = if self.behind.constant { 1.0 } else { self.rng.exponential() };
            self.ends.insert((self.now + self.behind.service.mul_f64(spread) + self.seen_late, request));
        }
    }

    fn end(&mut self, request: u64) {
        let Request { tenant, arrival, started } = self.requests.remove(&request).unwrap();
        let (server, call, started) = started.unwrap();
        self.behind.busy -= 1;
        self.serve();
        let most = self.now.since(started);
        let stay = Stay { least: most.saturating_sub(self.seen_late), most };
        let flow = self.flow(request, tenant);
        self.pool.on_answer(flow, call, stay, &mut self.rng, self.now);
        self.pool.on_end(server, flow, &mut self.rng, self.now);
        let of = &mut self.tenants[tenant];
        of.answered += 1;
        of.stays.record(self.now.nanos_since(arrival));
        self.again(tenant, Duration::ZERO);
    }

    fn refuse(&mut self, request: u64) {
        let Request { tenant, .. } = self.requests.remove(&request).unwrap();
        self.tenants[tenant].refused += 1;
        self.again(tenant, Duration::from_millis(10));
    }

    fn again(&mut self, tenant: usize, after: Duration) {
        self.tenants[tenant].asking -= 1;
        if let Load::Closed(clients) = self.tenants[tenant].load
            && self.tenants[tenant].asking < clients
        {
            self.come(tenant, after);
        }
    }

    fn p99_ms(&self, tenant: usize) -> f64 {
        float(self.tenants[tenant].stays.quantile(0.99)) / float(MS)
    }

    fn answered(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.answered).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and milliseconds")]
fn float(number: u64) -> f64 {
    number as f64
}

fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

#[test]
fn a_pure_delay_is_not_limited_and_demand_may_grow() {
    for constant in [true, false] {
        let mut scene = Scene::new(usize::MAX, ms(20), constant);
        let tenant = scene.tenant(Load::Open(100.0), 1);
        for rate in [100.0, 1_000.0, 10_000.0] {
            scene.set_load(tenant, Load::Open(rate));
            scene.play(1);
            scene.play(4);
            let served = float(scene.answered()) / (4.0 * rate);
            assert!(served > 0.98, "{constant} {rate}: {served}, {:?}", scene.pool.limit());
            assert_eq!(scene.tenants[tenant].refused, 0);
        }
    }
}

#[test]
fn a_quiet_tenant_feels_little_of_one_that_floods_the_same_workers() {
    for (workers, constant, seconds, names) in
        [(10, true, 20, 0), (10, false, 20, 0), (10, false, 20, 1_000), (100, true, 5, 0), (100, false, 5, 0)]
    {
        let mut scene = Scene::new(workers, ms(20), constant);
        let capacity = float(workers as u64) / 0.020;
        let quiet = scene.tenant(Load::Open(capacity * 0.1), 1);
        scene.play(seconds);
        let alone = scene.p99_ms(quiet);
        let loud = scene.tenant(Load::Closed(u32::try_from(workers).unwrap() * 20), 1);
        scene.tenants[loud].names = names;
        scene.play(seconds);
        scene.play(seconds);
        let (beside, served) = (scene.p99_ms(quiet), float(scene.answered()) / (float(seconds) * capacity));
        let told = format!("{workers} {constant} {names}: {alone} to {beside} ms, {served}, {:?}", scene.pool.limit());
        // Of constant service times even the 99th percentile alone holds no wait at all.
        assert!(beside <= if constant { 2.0 } else { 1.5 } * alone, "{told}");
        assert!(served > 0.9, "{told}");
        assert_eq!(scene.tenants[quiet].refused, 0, "{told}");
        assert!(scene.tenants[loud].answered > 0);
    }
}

#[test]
fn a_tenant_alone_is_never_refused_and_loses_little() {
    for clients in [1, 20, 500, 3_000] {
        let mut scene = Scene::new(10, ms(20), true);
        let tenant = scene.tenant(Load::Closed(clients), 1);
        scene.play(10);
        assert_eq!(scene.tenants[tenant].refused, 0, "{clients}");
        scene.play(20);
        let capacity = 500.0 * f64::from(clients.min(10)) / 10.0;
        let served = float(scene.answered()) / (20.0 * capacity);
        // The limit swings by a tenth, and half of the time it is one worker short.
        assert!(served > 0.94, "{clients}: {served}, {:?}", scene.pool.limit());
        assert_eq!(scene.tenants[tenant].refused, 0, "{clients}");
    }
}

#[test]
fn an_upstream_that_takes_longer_and_then_as_long_as_before_is_kept_busy() {
    for workers in [10, usize::MAX] {
        let mut scene = Scene::new(workers, ms(20), true);
        scene.tenant(Load::Closed(200), 1);
        scene.tenant(Load::Open(5.0), 1);
        for service in [20, 100, 20] {
            scene.behind.service = ms(service);
            scene.play(30);
            scene.play(20);
            let at_once = if workers == 10 { 10.0 } else { 200.0 };
            let served = float(scene.answered()) / (20.0 * at_once / (float(service) / 1e3));
            assert!(served > 0.9, "{workers} {service} ms: {served}, {:?}", scene.pool.limit());
        }
    }
}

#[test]
fn what_there_is_is_shared_by_weight() {
    let mut scene = Scene::new(20, ms(20), false);
    let light = scene.tenant(Load::Closed(200), 1);
    let heavy = scene.tenant(Load::Closed(200), 3);
    scene.play(20);
    scene.play(20);
    let ratio = float(scene.tenants[heavy].answered) / float(scene.tenants[light].answered);
    assert!((2.5..=3.5).contains(&ratio), "{ratio}, {:?}", scene.pool.limit());
}

#[test]
fn what_the_proxy_sees_late_is_not_taken_for_the_upstreams_delay() {
    let mut scene = Scene::new(usize::MAX, ms(1), true);
    let tenant = scene.tenant(Load::Closed(10), 1);
    scene.play(5);
    scene.seen_late = ms(50);
    scene.set_load(tenant, Load::Closed(1_000));
    scene.play(10);
    assert_eq!(scene.pool.limit(), None);
}

#[test]
fn what_was_learnt_outlives_a_change_of_addresses() {
    let mut scene = Scene::new(40, Duration::from_millis(10), true);
    scene.tenant(Load::Closed(100), 1);
    scene.tenant(Load::Closed(100), 1);
    scene.play(5);
    let learnt = f64::from(scene.pool.limit().unwrap());
    let after = |servers, places: &[Option<usize>]| {
        let servers = vec![ServerConfig::default(); servers];
        let mut pool = Pool::new(PoolConfig { servers, ..scene.pool.config().clone() }, scene.now);
        pool.inherit(&scene.pool, places, scene.now);
        pool.limit()
    };
    // It swings by a tenth to both sides.
    let is_about = |limit: Option<u32>, part: f64| {
        limit.is_some_and(|limit| (0.75..1.35).contains(&(f64::from(limit) / learnt / part)))
    };
    assert!(is_about(after(1, &[Some(0)]), 1.0), "{learnt} {:?}", after(1, &[Some(0)]));
    assert!(is_about(after(3, &[Some(2)]), 3.0), "{learnt} {:?}", after(3, &[Some(2)]));
    assert_eq!(after(1, &[None]), None, "of other servers nothing is known");
    // And those who ask go on as they did.
    let mut pool = Pool::new(scene.pool.config().clone(), scene.now);
    pool.inherit(&scene.pool, &[Some(0)], scene.now);
    let answered: u64 = scene.tenants.iter().map(|tenant| tenant.answered).sum();
    let mut fresh = Scene { pool, ..Scene::new(40, Duration::from_millis(10), true) };
    fresh.now = scene.now;
    fresh.tenant(Load::Closed(100), 1);
    fresh.tenant(Load::Closed(100), 1);
    fresh.play(5);
    let again: u64 = fresh.tenants.iter().map(|tenant| tenant.answered).sum();
    assert!(again * 10 > answered * 9, "{again} after {answered}");
}

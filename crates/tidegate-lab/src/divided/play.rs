//! The run.

use core::time::Duration;

use tidegate_control::machine::adaptor::AdaptorConfig;
use tidegate_control::machine::divider::{Divider, DividerAsk, DividerConfig, DividerEvent, DividerOrder};
use tidegate_control::machine::name::Name;
use tidegate_control::machine::steps::StepsConfig;
use tidegate_core::lend::Frame;
use tidegate_core::limit::{Limit, TokenBucket, split};
use tidegate_core::{Instant, Rate, Rng};
use tidegate_sim::datagrams::{Datagrams, LinkFaults};
use tidegate_sim::distribution::Distribution;
use tidegate_sim::kernel::{Bounds, Simulation};
use tidegate_sim::law::Windows;
use tidegate_sim::network::NodeId;

use super::node::{Node, PutAnswer};
use super::{Report, Scenario, Scheme};

/// The longest loan: a lease of lending, and what clocks and rounding add.
const LOAN: Duration = Duration::from_millis(1_010);

/// Streams of random numbers, by what they are for.
const CLOCKS: u64 = 0;
const ARRIVALS: u64 = 1;
const LINKS: u64 = 2;
const CRASHES: u64 = 3;

/// Runs `scenario` under `scheme`: same seed, same requests under every scheme.
///
/// # Panics
/// If there are fewer tokens than proxies.
#[must_use]
pub fn play(scenario: &Scenario, scheme: Scheme, seed: u64) -> Report {
    let end = Instant::ZERO + Duration::from_secs(scenario.length_s.into());
    let mut simulation = Simulation::new(seed, Bounds { events: 10_000_000_000, ..Bounds::default() });
    let mut run = Run::new(scenario, scheme, seed);
    run.begin(&mut simulation, end);
    let finished = simulation.run_until(end, |simulation, event| run.handle(simulation, event));
    finished.expect("few events wait at a time");
    run.report(format!("{:?}", simulation.trace()))
}

#[derive(Hash)]
enum Event {
    Arrive,
    /// To a proxy.
    Datagram(Frame),
    Wake(u32),
    Control,
    /// The order of this place comes to its proxy.
    Order(usize),
    /// Its answer is back.
    Answer(usize),
    Crash(u32),
}

struct Run<'a> {
    scenario: &'a Scenario,
    scheme: Scheme,
    nodes: Vec<Node>,
    /// When each will be woken.
    wakes: Vec<Instant>,
    divider: Divider,
    control_at: Instant,
    /// Orders by place, and their answers.
    orders: Vec<(DividerOrder, Option<DividerEvent>)>,
    steps: StepsConfig,
    undivided: TokenBucket,
    windows: Windows,
    datagrams: Datagrams,
    arrivals: Rng,
    links: Rng,
    frames: u64,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, scheme: Scheme, seed: u64) -> Self {
        let mut clocks = Rng::stream(seed, CLOCKS);
        let nodes: Vec<Node> =
            (0..scenario.proxies).map(|number| Node::new(scenario, scheme, number, &mut clocks)).collect();
        let linger = if scheme.lends() { LOAN } else { Duration::ZERO };
        let renew_every = StepsConfig::default().lease / 4;
        let steps = StepsConfig { renew_every, linger, ..StepsConfig::default() };
        let adapt = AdaptorConfig { window: Duration::from_secs(scenario.window_s.into()), ..AdaptorConfig::default() };
        let lends = scheme.lends();
        let config = DividerConfig { adapt, steps, lends, ..DividerConfig::new(scenario.limit) };
        let names = (0..scenario.proxies).map(name_of);
        let way = Distribution::Constant { us: f64::from(scenario.way_us) };
        let faults = LinkFaults { loss: scenario.loss, ..LinkFaults::NONE };
        Self {
            scenario,
            scheme,
            wakes: vec![Instant::MAX; nodes.len()],
            nodes,
            divider: Divider::new(config, names, Instant::ZERO),
            control_at: Instant::MAX,
            orders: Vec::new(),
            steps,
            undivided: TokenBucket::empty(scenario.limit, Instant::ZERO),
            windows: Windows::new(by_the_fastest_clock(scenario), Duration::ZERO),
            datagrams: Datagrams::new(way, faults, Vec::new()),
            arrivals: Rng::stream(seed, ARRIVALS),
            links: Rng::stream(seed, LINKS),
            frames: 0,
            report: Report {
                scheme,
                requests: 0,
                admitted: 0,
                refused_with_tokens: 0,
                refused_undivided: 0,
                checked: 0,
                violations: 0,
                excess_max: 0.0,
                frames_per_request: 0.0,
                orders: 0,
                trace: String::new(),
            },
        }
    }

    fn begin(&mut self, simulation: &mut Simulation<Event>, end: Instant) {
        let proxies = self.nodes.len();
        let shares = split::evenly(self.scenario.limit, proxies).expect("a token of burst for each proxy");
        for (node, share) in self.nodes.iter_mut().zip(shares) {
            if !self.scheme.adapts() {
                node.grant(share, 1, Instant::MAX, Instant::ZERO);
            }
        }
        if self.scheme.adapts() {
            let lead = DividerEvent::Lead { leads: true, above: 0, quiet: Duration::ZERO };
            self.divider.on_event(lead, Instant::ZERO);
            self.direct(simulation);
        }
        if self.scenario.crash_s > 0 {
            let mut rng = Rng::stream(simulation.rng(CRASHES).u64(), CRASHES);
            let every = Duration::from_secs(self.scenario.crash_s.into());
            let mut at = Instant::ZERO + every.mul_f64(rng.exponential());
            while at < end {
                let node = rng.below(self.scenario.proxies.into());
                simulation.at(at, Event::Crash(u32::try_from(node).expect("a few proxies")));
                at += every.mul_f64(rng.exponential());
            }
        }
        self.arrive_next(simulation);
        for node in 0..self.scenario.proxies {
            self.after(node, simulation);
        }
    }

    fn handle(&mut self, simulation: &mut Simulation<Event>, event: Event) {
        let now = simulation.now();
        match event {
            Event::Arrive => {
                self.arrive(simulation);
                self.arrive_next(simulation);
            }
            Event::Datagram(frame) => {
                let node = u32::from(frame.to.0);
                self.nodes[index(node)].hear(&frame, now);
                self.after(node, simulation);
            }
            Event::Wake(node) => {
                if now >= self.wakes[index(node)] {
                    self.wakes[index(node)] = Instant::MAX;
                    self.nodes[index(node)].wake(now);
                    self.after(node, simulation);
                }
            }
            Event::Control => {
                if now >= self.control_at {
                    self.control_at = Instant::MAX;
                    self.divider.on_timeout(now);
                    self.direct(simulation);
                }
            }
            Event::Order(place) => self.carry_out(place, simulation),
            Event::Answer(place) => {
                if let Some(event) = self.orders[place].1.take() {
                    self.divider.on_event(event, now);
                    self.direct(simulation);
                }
            }
            Event::Crash(node) => {
                self.nodes[index(node)].restart(now);
                self.after(node, simulation);
            }
        }
    }

    fn arrive_next(&mut self, simulation: &mut Simulation<Event>) {
        let per_s = self.scenario.load * self.scenario.limit.rate.as_per_s() / f64::from(self.scenario.batch);
        let gap = Duration::from_secs_f64(self.arrivals.exponential() / per_s);
        let second = 1_000_000_000;
        let (shift, quiet) =
            (u64::from(self.scenario.shift_s.max(1)) * second, u64::from(self.scenario.quiet_s) * second);
        let at = simulation.now() + gap;
        let phase = at.as_nanos() % shift;
        let waits = if phase + quiet >= shift { shift - phase } else { 0 };
        simulation.at(at.plus_nanos(waits), Event::Arrive);
    }

    /// A batch comes to one proxy.
    fn arrive(&mut self, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        let proxies = u64::from(self.scenario.proxies);
        let phase = now.as_nanos() / 1_000_000_000 / u64::from(self.scenario.shift_s.max(1));
        let busy = phase % proxies;
        let node = if proxies == 1 || self.arrivals.chance(self.scenario.busy) {
            busy
        } else {
            (busy + 1 + self.arrivals.below(proxies - 1)) % proxies
        };
        let node = u32::try_from(node).expect("a few proxies");
        let counts = now.as_nanos() >= u64::from(self.scenario.warm_up_s) * 1_000_000_000;
        for _ in 0..self.scenario.batch {
            let admitted = self.nodes[index(node)].ask(now);
            let had_tokens = self.undivided.try_take(1, now).is_ok();
            if admitted {
                self.windows.observe(now);
            }
            if counts {
                self.report.requests += 1;
                self.report.admitted += u64::from(admitted);
                self.report.refused_with_tokens += u64::from(had_tokens && !admitted);
                self.report.refused_undivided += u64::from(!had_tokens);
            }
        }
        self.after(node, simulation);
    }

    /// What a proxy does after whatever happened: it asks others, says what it has to say, and knows when to look again.
    fn after(&mut self, node: u32, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        let proxy = &mut self.nodes[index(node)];
        let mut frames = Vec::new();
        while let Some(frame) = proxy.poll_frame() {
            frames.push(frame);
        }
        let next = proxy.next_wake();
        for frame in frames {
            self.frames += 1;
            let to = NodeId(u32::from(frame.to.0));
            for at in self.datagrams.send(NodeId(node), to, now, &mut self.links) {
                simulation.at(at, Event::Datagram(frame.clone()));
            }
        }
        if let Some(at) = next.map(|at| at.max(now))
            && at < self.wakes[index(node)]
        {
            self.wakes[index(node)] = at;
            simulation.at(at, Event::Wake(node));
        }
    }

    /// Sends what control orders.
    fn direct(&mut self, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        while let Some(order) = self.divider.poll_order() {
            self.report.orders += u64::from(matches!(order.what, DividerAsk::Put(_)));
            self.orders.push((order, None));
            if !self.links.chance(self.scenario.loss) {
                simulation.at(now + self.control_way(), Event::Order(self.orders.len() - 1));
            }
        }
        if let Some(at) = self.divider.next_timeout()
            && at < self.control_at
        {
            self.control_at = at.max(now);
            simulation.at(self.control_at, Event::Control);
        }
    }

    fn carry_out(&mut self, place: usize, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        let no = self.orders[place].0.no;
        let (node, event) = match &self.orders[place].0.what {
            DividerAsk::Sense { node, seconds } => {
                let number = number_of(node);
                let reading = self.nodes[index(number)].demand(*seconds, now);
                (number, DividerEvent::Sensed { order: no, reading })
            }
            DividerAsk::Put(put) => {
                let number = number_of(&put.node);
                let event = match self.nodes[index(number)].put(put, self.steps.lease, now) {
                    PutAnswer::Done => DividerEvent::Put { order: no },
                    PutAnswer::Fenced(holds) => DividerEvent::Fenced { order: no, holds },
                    PutAnswer::NotYet => DividerEvent::Failed { order: no },
                };
                (number, event)
            }
        };
        self.orders[place].1 = Some(event);
        if !self.links.chance(self.scenario.loss) {
            simulation.at(now + self.control_way(), Event::Answer(place));
        }
        self.after(node, simulation);
    }

    fn control_way(&self) -> Duration {
        Duration::from_micros(self.scenario.control_way_us.into())
    }

    fn report(mut self, trace: String) -> Report {
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let frames_per_request = self.frames as f64 / (self.report.requests.max(1)) as f64;
        self.report.checked = self.windows.messages();
        self.report.violations = self.windows.violations();
        self.report.excess_max = self.windows.excess_max();
        self.report.frames_per_request = frames_per_request;
        self.report.trace = trace;
        self.report
    }
}

/// What the law allows where clocks run fast: the rate by the fastest of them.
fn by_the_fastest_clock(scenario: &Scenario) -> Limit {
    let Limit { rate, burst } = scenario.limit;
    let tokens = u128::from(rate.tokens()) * u128::from(1_000_000 + scenario.drift_ppm.div_ceil(2));
    let rate = Rate::from_fraction(tokens, u128::from(rate.period_ns()) * 1_000_000);
    Limit::new(rate.expect("a rate of a few digits"), burst)
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

fn name_of(number: u32) -> Name {
    Name::from(format!("p{number}"))
}

fn number_of(name: &Name) -> u32 {
    name.as_str().trim_start_matches('p').parse().expect("it is one of ours")
}

//! Members that lend each other tokens over a network that loses datagrams.
//!
//! The core's [`Lending`] and a [`Gate`] for every part of every limit, driven as a production driver does: told of
//! each arrival in time, never asked ahead. Every release of every limit is checked against the law of the whole.

use std::time::Duration;

use tidegate_core::lend::{Circle, Frame, Leave, LendConfig, Lending, Member, Memory, Purse, Purses};
use tidegate_core::limit::{Gate, Limit, TokenBucket, split};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate, Rng};

use crate::datagrams::{Datagrams, LinkFaults, Partition};
use crate::distribution::Distribution;
use crate::fault::{Fault, FaultPlan, FaultRates};
use crate::kernel::{Bounds, Simulation};
use crate::law::Windows;
use crate::network::NodeId;
use crate::trace::TraceHash;
use crate::workload::{Arrival, Poisson, Publishers};

/// Whether the parts of a limit lend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lend {
    /// On these terms; `own` is set for each member.
    On(LendConfig),
    /// Never: a static split.
    Off,
}

/// A mistake in a member or its driver, to see that the checks find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A borrower keeps what it borrowed when the lease is over.
    NoDeadline,
    /// A member that restarts has its whole share at once, and full.
    FullRestart,
    /// What a frame brings is booked twice.
    BookTwice,
    /// What is borrowed is lent on.
    LendBorrowed,
    /// Depth that comes back brings tokens.
    DeepenWithTokens,
    /// Tokens are lent without their depth.
    KeepDepth,
    /// The first member counts a lease as a quarter of what the others do.
    ShortLease,
}

/// What is run.
#[derive(Clone, PartialEq, Debug)]
pub struct CircleConfig {
    /// The limit of every circle in messages, split evenly among all members.
    pub limit: Limit,
    /// Tokens of a message, at least 1: members lend whole tokens, and so parts of a message if it costs several.
    pub grain: u64,
    /// Members; at least 1.
    pub members: u32,
    /// Circles; every member is in all of them.
    pub circles: u32,
    /// Messages a second of each circle, spread evenly over the members.
    pub rate_per_s: f64,
    /// Messages that arrive together.
    pub batch: u32,
    /// How long a datagram is on its way.
    pub way: Distribution,
    /// What goes wrong with members.
    pub faults: FaultRates,
    /// What goes wrong with datagrams.
    pub links: LinkFaults,
    /// How often, on the average, one way between two members is cut off, and for how long.
    pub partitions: Option<(Duration, Duration)>,
    /// How often, on the average, a message's depth is moved from one member's share to another's.
    pub moves: Option<Duration>,
    /// How often, on the average, a member leaves a circle for good, or until it restarts.
    pub leaves: Option<Duration>,
    /// Whether parts lend.
    pub lending: Lend,
    /// Clocks of members run fast or slow by at most half of this, in parts in a million.
    pub clock_drift_ppm: u32,
    /// Length of the run.
    pub length: Duration,
    /// Same seed, same run.
    pub seed: u64,
    /// What is done wrong on purpose.
    pub mistake: Option<Mistake>,
}

impl CircleConfig {
    fn in_tokens(&self) -> Limit {
        let Limit { rate, burst } = self.limit;
        let tokens = u128::from(rate.tokens()) * u128::from(self.grain);
        let rate = Rate::from_fraction(tokens, rate.period_ns().into()).expect("a rate of a few digits");
        Limit::new(rate, burst * self.grain)
    }
}

/// What was seen.
#[derive(Clone, PartialEq, Debug)]
pub struct CircleReport {
    /// Messages released.
    pub messages: u64,
    /// Messages that had to wait for a token.
    pub delayed: u64,
    /// Mean access delay over all messages, in nanoseconds.
    pub delay_ns_mean: f64,
    /// The delay that 99 % of the messages do not exceed, in nanoseconds.
    pub delay_ns_p99: u64,
    /// Frames sent.
    pub frames: u64,
    /// Releases that completed a window with more than burst + rate * t.
    pub violations: u64,
    /// The fullest window, in messages above burst + rate * t; not above zero if the law holds.
    pub excess_max: f64,
    /// At no moment was the sum of all depths above the burst, or a member's books not those of its bucket.
    pub conserved: bool,
    /// Of everything that happened.
    pub trace: TraceHash,
}

/// Runs `config`.
///
/// # Panics
/// If there is no member or the burst has less than a token for each, or no rate.
#[must_use]
pub fn run(config: &CircleConfig) -> CircleReport {
    let mut run = Run::new(config);
    let end = Instant::ZERO + config.length;
    let bounds = Bounds { events: 10_000_000_000, ..Bounds::default() };
    let mut simulation = Simulation::new(config.seed, bounds);
    run.plan(&mut simulation, end);
    let finished = simulation.run_until(end, |simulation, event| run.handle(simulation, event));
    finished.expect("few events wait at a time");
    run.report(simulation.trace())
}

#[derive(Hash)]
enum Event {
    Fault(Fault),
    Arrive { circle: u32, arrival: Arrival },
    Wake(u32),
    Datagram(Frame),
    Move { circle: u32, from: u32, to: u32 },
    Leave { circle: u32, node: u32 },
}

/// A clock that runs from the start at a speed of its own.
#[derive(Clone, Copy, Debug)]
struct Clock {
    fast_ppm: i64,
    /// What it showed at the start, less what it stood still.
    offset_ns: i64,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    fn at(self, true_time: Instant) -> Instant {
        let speed = MILLION + i128::from(self.fast_ppm);
        let ns = i128::from(true_time.as_nanos()) * speed / MILLION;
        Instant::from_nanos(u64::try_from(ns + i128::from(self.offset_ns)).unwrap_or(0))
    }

    /// The first true time at which it shows `reading`.
    fn when(self, reading: Instant) -> Instant {
        let ns = (i128::from(reading.as_nanos()) - i128::from(self.offset_ns)).max(0);
        let speed = MILLION + i128::from(self.fast_ppm);
        let early = Instant::from_nanos(u64::try_from(ns * MILLION / speed).unwrap_or(u64::MAX));
        if self.at(early) >= reading { early } else { early.plus_nanos(1) }
    }
}

/// A member's part of one limit, with the mistakes of its owner.
#[derive(Clone)]
struct Part {
    /// Items are the instants of arrival.
    gate: Gate<Instant>,
    mistake: Option<Mistake>,
    /// The member's share of the burst.
    base: u64,
}

impl Part {
    fn bucket(&mut self) -> &mut TokenBucket {
        self.gate.bucket_mut()
    }
}

impl Purse for Part {
    fn give(&mut self, most: u64, keep: u64, now: Instant) -> u64 {
        let given = self.bucket().give(most, keep, now);
        if self.mistake == Some(Mistake::KeepDepth) {
            self.bucket().deepen(given, now);
        }
        given
    }

    fn receive(&mut self, tokens: u64, now: Instant) -> u64 {
        if self.mistake == Some(Mistake::BookTwice) {
            self.bucket().receive(tokens, now);
        }
        self.bucket().receive(tokens, now)
    }

    fn cut(&mut self, by: u64, keep: u64, now: Instant) -> u64 {
        if self.mistake == Some(Mistake::NoDeadline) { by } else { self.bucket().cut(by, keep, now) }
    }

    fn deepen(&mut self, by: u64, now: Instant) {
        match self.mistake {
            Some(Mistake::DeepenWithTokens) => {
                self.bucket().receive(by, now);
            }
            Some(Mistake::LendBorrowed) => {}
            _ => self.bucket().deepen(by, now),
        }
    }

    fn tokens(&self, now: Instant) -> u64 {
        Purse::tokens(self.gate.bucket(), now)
    }

    fn limit(&self) -> Limit {
        self.gate.limit()
    }

    fn wait_ns(&self, cost: u64, now: Instant) -> u64 {
        Purse::wait_ns(self.gate.bucket(), cost, now)
    }
}

#[derive(Clone)]
struct Parts(Vec<Part>);

impl Purses for Parts {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        let part = self.0.get_mut(usize::try_from(circle.0).ok()?)?;
        Some(part)
    }
}

/// One member.
#[derive(Clone)]
struct Node {
    clock: Clock,
    lending: Option<Lending>,
    parts: Parts,
    boot: u32,
    /// It has crashed.
    down: bool,
    /// It does nothing until then, and its clock stands still or not.
    paused: Option<(Instant, bool)>,
    /// What came meanwhile.
    arrivals: Vec<(u32, Arrival)>,
    frames: Vec<Frame>,
    /// When it will be woken.
    wake_at: Instant,
}

struct Run<'a> {
    config: &'a CircleConfig,
    nodes: Vec<Node>,
    sources: Vec<Poisson>,
    network: Datagrams,
    rng: Rng,
    /// In true time, by circle.
    releases: Vec<Vec<Instant>>,
    delays_ns: Vec<u64>,
    frames: u64,
    conserved: bool,
}

/// Streams of random numbers, by what they are for.
const FAULTS: u64 = 0;
const LINKS: u64 = 1;
const CLOCKS: u64 = 2;
const SOURCES: u64 = 10;

impl<'a> Run<'a> {
    fn new(config: &'a CircleConfig) -> Self {
        let mut clocks = Rng::stream(config.seed, CLOCKS);
        let publishers =
            Publishers { count: config.members, rate: Rate::from_per_s_f64(config.rate_per_s), batch: config.batch };
        let source = |circle: u32| {
            let rng = Rng::stream(config.seed, SOURCES + u64::from(circle));
            Poisson::new(publishers, Instant::ZERO, rng)
        };
        let members = usize::try_from(config.members).expect("a few");
        let shares = split::evenly(config.in_tokens(), members).expect("a token of burst for each member");
        let nodes = shares.iter().zip(0..).map(|(share, number)| Node::new(config, number, *share, &mut clocks));
        let mut partitions = Vec::new();
        let mut rng = Rng::stream(config.seed, FAULTS);
        if let Some((every, long)) = config.partitions.filter(|_| config.members > 1) {
            let mut at = Instant::ZERO;
            while at < Instant::ZERO + config.length {
                at += every.mul_f64(rng.exponential());
                let (from, to) = two_of(config.members, &mut rng);
                let until = at + long.mul_f64(rng.exponential());
                partitions.push(Partition { from: NodeId(from), to: NodeId(to), since: at, until });
            }
        }
        Self {
            config,
            nodes: nodes.collect(),
            sources: (0..config.circles).map(source).collect(),
            network: Datagrams::new(config.way, config.links, partitions),
            rng: Rng::stream(config.seed, LINKS),
            releases: (0..config.circles).map(|_| Vec::new()).collect(),
            delays_ns: Vec::new(),
            frames: 0,
            conserved: true,
        }
    }

    fn plan(&mut self, simulation: &mut Simulation<Event>, end: Instant) {
        let mut rng = self.rng.split();
        for (at, fault) in FaultPlan::random(self.config.faults, self.config.members, end, &mut rng).iter() {
            simulation.at(*at, Event::Fault(*fault));
        }
        if let Some(every) = self.config.moves.filter(|_| self.config.members > 1) {
            let mut at = Instant::ZERO + every.mul_f64(rng.exponential());
            while at < end {
                let (from, to) = two_of(self.config.members, &mut rng);
                let circle = below(self.config.circles, &mut rng);
                simulation.at(at, Event::Move { circle, from, to });
                at += every.mul_f64(rng.exponential());
            }
        }
        if let Some(every) = self.config.leaves {
            let mut at = Instant::ZERO + every.mul_f64(rng.exponential());
            while at < end {
                let (circle, node) = (below(self.config.circles, &mut rng), below(self.config.members, &mut rng));
                simulation.at(at, Event::Leave { circle, node });
                at += every.mul_f64(rng.exponential());
            }
        }
        for circle in 0..self.config.circles {
            self.arrive_next(circle, simulation);
        }
        for node in 0..self.config.members {
            self.wake(node, simulation);
        }
    }

    fn arrive_next(&mut self, circle: u32, simulation: &mut Simulation<Event>) {
        let arrival = self.sources[index(circle)].next().expect("a Poisson process has no end");
        simulation.at(arrival.at, Event::Arrive { circle, arrival });
    }

    fn handle(&mut self, simulation: &mut Simulation<Event>, event: Event) {
        let now = simulation.now();
        match event {
            Event::Arrive { circle, arrival } => {
                self.arrive_next(circle, simulation);
                self.nodes[index(arrival.publisher)].arrivals.push((circle, arrival));
                self.step(arrival.publisher, simulation);
            }
            Event::Datagram(frame) => {
                let node = u32::from(frame.to.0);
                self.nodes[index(node)].frames.push(frame);
                self.step(node, simulation);
            }
            Event::Wake(node) => {
                if now >= self.nodes[index(node)].wake_at {
                    self.nodes[index(node)].wake_at = Instant::MAX;
                    self.step(node, simulation);
                }
            }
            Event::Move { circle, from, to } => self.move_share(circle, from, to, now),
            Event::Leave { circle, node } => self.leave(circle, node, simulation),
            Event::Fault(fault) => self.fault(fault, simulation),
        }
        self.check(now);
    }

    fn fault(&mut self, fault: Fault, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        match fault {
            Fault::Crash(NodeId(node)) => self.nodes[index(node)].crash(),
            Fault::Restart(NodeId(node)) => {
                let jump_ns = self.rng.below(3_000_000_000);
                self.nodes[index(node)].restart(self.config, node, now, jump_ns);
                self.wake(node, simulation);
            }
            Fault::Pause(NodeId(node), pause) => {
                let sleeps = self.rng.chance(0.5);
                let node_state = &mut self.nodes[index(node)];
                if node_state.paused.is_none() && !node_state.down {
                    node_state.paused = Some((now + pause, sleeps));
                    node_state.wake_at = now + pause;
                    simulation.at(now + pause, Event::Wake(node));
                }
            }
            // Of the wall clock, which nobody here reads.
            Fault::ClockStep(..) => {}
        }
    }

    /// A node does all that it can do now.
    fn step(&mut self, node: u32, simulation: &mut Simulation<Event>) {
        let true_now = simulation.now();
        let state = &mut self.nodes[index(node)];
        if state.down {
            state.arrivals.clear();
            state.frames.clear();
            return;
        }
        if let Some((until, sleeps)) = state.paused {
            if true_now < until {
                return;
            }
            state.resume(self.config, true_now, sleeps);
        }
        let now = state.clock.at(true_now);
        if let Some(lending) = &mut state.lending {
            lending.settle(&mut state.parts, now);
        }
        for (circle, arrival) in state.arrivals.drain(..) {
            let stamp = state.clock.at(arrival.at);
            let gate = &mut state.parts.0[index(circle)].gate;
            let cost = self.config.grain;
            (0..arrival.messages).for_each(|_| gate.push(stamp, cost, stamp).expect("the line has room"));
        }
        self.release(node, now);
        self.lend(node, now);
        self.release(node, now);
        self.say(node, simulation);
        self.wake(node, simulation);
    }

    /// Lets go what has its tokens.
    fn release(&mut self, node: u32, now: Instant) {
        let state = &mut self.nodes[index(node)];
        for (part, releases) in state.parts.0.iter_mut().zip(&mut self.releases) {
            while let Some(released) = part.gate.pop(now) {
                releases.push(state.clock.when(released.release));
                self.delays_ns.push(released.release.nanos_since(released.item));
            }
        }
    }

    fn lend(&mut self, node: u32, now: Instant) {
        let state = &mut self.nodes[index(node)];
        let Some(lending) = &mut state.lending else { return };
        for frame in state.frames.drain(..) {
            lending.on_frame(&frame, &mut state.parts, now);
        }
        self.release(node, now);
        let state = &mut self.nodes[index(node)];
        let Some(lending) = &mut state.lending else { return };
        for circle in 0..state.parts.0.len() {
            let part = &mut state.parts.0[circle];
            let waiting = part.gate.waiting_cost();
            lending.look(Circle(circle as u64), waiting, &mut state.parts, now);
            if self.config.mistake == Some(Mistake::LendBorrowed) && node == 0 {
                let depth = state.parts.0[circle].limit().burst;
                if lending.account(Circle(circle as u64)).is_some_and(|position| position.base < depth) {
                    state.parts.0[circle].mistake = self.config.mistake;
                    lending.set_base(Circle(circle as u64), depth, &mut state.parts, now);
                    state.parts.0[circle].mistake = None;
                }
            }
        }
        if lending.next_timeout().is_some_and(|at| at <= now) {
            lending.on_timeout(&mut state.parts, now);
        }
    }

    /// Sends what the node has to say.
    fn say(&mut self, node: u32, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        let Some(lending) = &mut self.nodes[index(node)].lending else { return };
        while let Some(frame) = lending.poll_output() {
            self.frames += 1;
            let to = NodeId(u32::from(frame.to.0));
            for at in self.network.send(NodeId(node), to, now, &mut self.rng) {
                simulation.at(at, Event::Datagram(frame.clone()));
            }
        }
    }

    /// Has the node woken when it next has something to do.
    fn wake(&mut self, node: u32, simulation: &mut Simulation<Event>) {
        let state = &mut self.nodes[index(node)];
        let gates = state.parts.0.iter_mut().filter_map(|part| part.gate.next_timeout()).min();
        let lending = state.lending.as_ref().and_then(Lending::next_timeout);
        let Some(at) = gates.into_iter().chain(lending).min() else { return };
        let at = state.clock.when(at).max(simulation.now());
        if at < state.wake_at {
            state.wake_at = at;
            simulation.at(at, Event::Wake(node));
        }
    }

    /// Moves a message's depth from one share to another, first away and then there.
    fn move_share(&mut self, circle: u32, from: u32, to: u32, now: Instant) {
        for node in [from, to] {
            let state = &mut self.nodes[index(node)];
            let at = state.clock.at(now);
            if state.down || state.paused.is_some() {
                return;
            }
            let Some(lending) = &mut state.lending else { return };
            lending.settle(&mut state.parts, at);
            if lending.account(Circle(circle.into())).is_none() {
                return;
            }
        }
        let mut moved = 0;
        for (node, up) in [(from, false), (to, true)] {
            let state = &mut self.nodes[index(node)];
            let Some(lending) = &mut state.lending else { return };
            let now = state.clock.at(now);
            let base = state.parts.0[index(circle)].base;
            let grain = self.config.grain;
            let wanted = if up { base + moved } else { base.saturating_sub(grain).max(grain) };
            let reached = lending.set_base(Circle(circle.into()), wanted, &mut state.parts, now);
            state.parts.0[index(circle)].base = reached;
            moved = base.saturating_sub(reached);
        }
    }

    /// A member leaves a circle, and keeps its share.
    fn leave(&mut self, circle: u32, node: u32, simulation: &mut Simulation<Event>) {
        let state = &mut self.nodes[index(node)];
        if state.down || state.paused.is_some() {
            return;
        }
        let now = state.clock.at(simulation.now());
        if let Some(lending) = &mut state.lending {
            lending.settle(&mut state.parts, now);
        }
        self.release(node, now);
        let state = &mut self.nodes[index(node)];
        if let Some(lending) = &mut state.lending {
            let leave = lending.close(Circle(circle.into()), &mut state.parts, now);
            assert_eq!(leave == Leave::Over, lending.account(Circle(circle.into())).is_none(), "{leave:?}");
        }
        self.say(node, simulation);
        self.wake(node, simulation);
    }

    /// All depths together are at most the burst, and each is what the books say.
    fn check(&mut self, now: Instant) {
        for circle in 0..self.releases.len() {
            let depth: u64 = self.nodes.iter().map(|node| node.depth(circle)).sum();
            let burst = self.config.in_tokens().burst;
            // One that stands still may hold what has ended: it cuts that off before it takes anything.
            let in_force = || self.nodes.iter().map(|node| node.depth_in_force(self.config, circle, now)).sum::<u64>();
            self.conserved &= depth <= burst || in_force() <= burst;
            if self.config.mistake.is_some() {
                continue;
            }
            for node in self.nodes.iter().filter(|node| !node.down) {
                let Some(lending) = &node.lending else { continue };
                let (part, books) = (&node.parts.0[circle], lending.account(Circle(circle as u64)));
                let depth = books.map_or(part.base, |books| books.depth());
                assert_eq!(depth, node.depth(circle), "{books:?} at {now:?}");
            }
        }
    }

    fn report(mut self, trace: TraceHash) -> CircleReport {
        let (limit, fastest) = (self.config.limit, u64::from(self.config.clock_drift_ppm.div_ceil(2)));
        let rate = Rate::from_fraction(
            u128::from(limit.rate.tokens()) * u128::from(1_000_000 + fastest),
            u128::from(limit.rate.period_ns()) * 1_000_000,
        );
        let rate = rate.expect("a rate of a few digits");
        let slack = Duration::from_nanos(if fastest > 0 { 2 } else { 0 });
        let (mut violations, mut excess_max) = (0, f64::NEG_INFINITY);
        for releases in &mut self.releases {
            releases.sort_unstable();
            let mut windows = Windows::new(Limit::new(rate, limit.burst), slack);
            for &at in releases.iter() {
                windows.observe(at);
            }
            violations += windows.violations();
            excess_max = excess_max.max(windows.excess_max());
        }
        let delays = &mut self.delays_ns;
        let messages = delays.len() as u64;
        let delayed = delays.iter().filter(|&&ns| ns > 0).count() as u64;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let delay_ns_mean = delays.iter().sum::<u64>() as f64 / messages.max(1) as f64;
        let rank = delays.len() * 99 / 100;
        let delay_ns_p99 = if delays.is_empty() { 0 } else { *delays.select_nth_unstable(rank).1 };
        CircleReport {
            messages,
            delayed,
            delay_ns_mean,
            delay_ns_p99,
            frames: self.frames,
            violations,
            excess_max,
            conserved: self.conserved,
            trace,
        }
    }
}

impl Node {
    fn new(config: &CircleConfig, number: u32, share: Limit, clocks: &mut Rng) -> Self {
        let half = u64::from(config.clock_drift_ppm / 2);
        let signed = |ns: u64| i64::try_from(ns).expect("a few seconds");
        let clock = Clock {
            fast_ppm: signed(clocks.below(2 * half + 1)) - signed(half),
            offset_ns: signed(clocks.below(5_000_000_000)),
        };
        let now = clock.at(Instant::ZERO);
        let part = |_| Part {
            gate: Gate::new(share, u64::MAX, now),
            mistake: config.mistake.filter(|&mistake| mistake != Mistake::LendBorrowed),
            base: share.burst,
        };
        let mut node = Self {
            clock,
            lending: None,
            parts: Parts((0..config.circles).map(part).collect()),
            boot: 0,
            down: false,
            paused: None,
            arrivals: Vec::new(),
            frames: Vec::new(),
            wake_at: Instant::MAX,
        };
        node.open(config, number, Memory::Fresh, now);
        node
    }

    fn open(&mut self, config: &CircleConfig, number: u32, memory: Memory, now: Instant) {
        let Lend::On(terms) = config.lending else { return };
        let member = |number: u32| Member(u16::try_from(number).expect("a few members"));
        let short = config.mistake == Some(Mistake::ShortLease) && number == 0;
        let lease = if short { terms.lease / 4 } else { terms.lease };
        let members: Vec<Member> = (0..config.members).map(member).collect();
        self.boot += 1;
        let mut lending = Lending::new(LendConfig { own: member(number), lease, ..terms }, self.boot, now);
        for (part, circle) in self.parts.0.iter_mut().zip(0..) {
            let share = (part.base, config.grain);
            lending.open(Circle(circle), &members, share, memory, part, now).expect("within the bounds");
        }
        self.lending = Some(lending);
    }

    fn crash(&mut self) {
        (self.down, self.paused, self.lending) = (true, None, None);
        self.arrivals.clear();
        self.frames.clear();
    }

    fn restart(&mut self, config: &CircleConfig, number: u32, true_now: Instant, jump_ns: u64) {
        if !self.down {
            return;
        }
        self.down = false;
        self.clock.offset_ns += i64::try_from(jump_ns).expect("a few seconds");
        let now = self.clock.at(true_now);
        let (memory, full) = match config.mistake {
            Some(Mistake::FullRestart) => (Memory::Fresh, true),
            _ => (Memory::Unknown, matches!(config.lending, Lend::Off)),
        };
        for part in &mut self.parts.0 {
            let limit = Limit::new(part.gate.limit().rate, part.base);
            part.gate = Gate::new(limit, u64::MAX, now);
            if !full {
                *part.bucket() = TokenBucket::empty(limit, now);
            }
        }
        self.wake_at = Instant::MAX;
        self.open(config, number, memory, now);
    }

    /// Goes on after a pause; after a sleep its clock shows what it showed before.
    fn resume(&mut self, config: &CircleConfig, true_now: Instant, slept: bool) {
        self.paused = None;
        if !slept || matches!(config.lending, Lend::Off) {
            return;
        }
        let last = self.arrivals.first().map_or(true_now, |(_, arrival)| arrival.at);
        self.clock.offset_ns -= i64::try_from(nanos(true_now.since(last))).expect("a few seconds");
        let now = self.clock.at(true_now);
        if let Some(lending) = &mut self.lending {
            lending.on_slept(&mut self.parts, now);
        }
    }

    /// Of the purse; nothing while it is down.
    fn depth(&self, circle: usize) -> u64 {
        if self.down { 0 } else { self.parts.0[circle].limit().burst }
    }

    /// What it would have if it went on at `true_now`.
    fn depth_in_force(&self, config: &CircleConfig, circle: usize, true_now: Instant) -> u64 {
        let Some((_, sleeps)) = self.paused else { return self.depth(circle) };
        let mut awake = self.clone();
        awake.resume(config, true_now, sleeps);
        let now = awake.clock.at(true_now);
        if let Some(lending) = &mut awake.lending {
            lending.settle(&mut awake.parts, now);
        }
        awake.depth(circle)
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

fn below(bound: u32, rng: &mut Rng) -> u32 {
    u32::try_from(rng.below(bound.into())).expect("below a 32-bit bound")
}

/// Two different members.
fn two_of(members: u32, rng: &mut Rng) -> (u32, u32) {
    let from = below(members, rng);
    (from, (from + 1 + below(members - 1, rng)) % members)
}

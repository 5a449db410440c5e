//! Events.

use core::time::Duration;

use tidegate_core::control::window::span_of;
use tidegate_core::{Instant, Rng};
use tidegate_shaper::machine::ahead::Leaf;
use tidegate_shaper::machine::class::Sizes;
use tidegate_shaper::machine::flow::Seen;
use tidegate_sim::packets::htb::Htb;
use tidegate_sim::packets::tcp::{Ack, Burst, HEADER_BYTES};
use tidegate_sim::packets::wire::Wire;
use tidegate_sim::{Bounds, Distribution, Simulation};

use super::end::{End, EndConfig, Kind};
use super::guard::Guard;
use super::limiters::Limiters;
use super::report::{Percentiles, Report, curve, efficiency, jain};
use super::scenario::{MSS, Scenario, Scheme, bytes_per_s};
use super::settling::Settling;

/// A request and its answer: 64 bytes and headers.
const MOUSE_BYTES: u64 = 64 + HEADER_BYTES;
/// A flow of which nothing is acknowledged for so long hangs.
const STUCK: Duration = Duration::from_secs(2);
/// Numbers are taken so often.
const SPAN: Duration = Duration::from_millis(1);
/// Events of a run, and at a time.
const BOUNDS: Bounds = Bounds { events: 200_000_000, queued: 2_000_000 };

#[derive(Clone, Copy, Hash, Debug)]
enum Packet {
    Burst { flow: usize, burst: Burst },
    Mouse { class: usize, sent: Instant },
}

#[derive(Clone, Copy, Hash)]
enum Event {
    /// The line may take a packet.
    Port,
    Arrives(Packet),
    AckArrives {
        flow: usize,
        ack: Ack,
    },
    /// A packet of the flow left the host's queue.
    Room {
        flow: usize,
    },
    AnswerArrives {
        sent: Instant,
    },
    Timer {
        flow: usize,
    },
    Mouse {
        class: usize,
    },
    Opens,
    Stall,
    Resume,
    Change,
    NeighbourBegins,
    NeighbourEnds,
    Calm,
    /// A millisecond is over.
    Tick,
    WarmedUp,
}

struct Plant<'a> {
    scenario: &'a Scenario,
    scheme: Scheme,
    simulation: Simulation<Event>,
    rng: Rng,
    limiters: Limiters,
    htb: Htb<Packet>,
    guard: Guard,
    out: Wire,
    back: Wire,
    ends: Vec<End>,
    /// When the event of the port comes.
    port_at: Option<Instant>,
    /// Nothing new is sent and nothing lost any more.
    calm: bool,
    settling: Vec<Settling>,
    counted: Counted,
}

#[derive(Default)]
struct Counted {
    warm: bool,
    srtt_ns: Vec<u64>,
    mice_ns: Vec<u64>,
    short_ns: Vec<u64>,
    drops: u64,
    packets: u64,
    bulk_packets: u64,
    bulk_segments: u64,
}

/// Runs `scenario` under `scheme`. Same seed, same report.
///
/// # Panics
/// If the simulation runs away: its bounds are far beyond what a checked scenario needs.
#[must_use]
pub fn play(scenario: &Scenario, scheme: Scheme, seed: u64) -> Report {
    let mut plant = Plant::new(scenario, scheme, seed);
    plant.begin();
    let end = Instant::ZERO + Duration::from_millis(scenario.length_ms);
    while let Some(event) = plant.simulation.next_until(end).expect("a checked scenario stays within the bounds") {
        plant.handle(event);
    }
    plant.report(scheme)
}

impl<'a> Plant<'a> {
    fn new(scenario: &'a Scenario, scheme: Scheme, seed: u64) -> Self {
        let simulation = Simulation::new(seed, BOUNDS);
        let limiters = Limiters::new(scenario, scheme, scenario.rate_mbit);
        // Hosts are not always equally quick: a seventh of the way, more or less.
        let half = scenario.rtt_us / 2.0;
        let way = Distribution::Uniform { from_us: half * 0.93, to_us: half * 1.07 };
        let line = bytes_per_s(scenario.line_mbit);
        Self {
            scenario,
            scheme,
            htb: Htb::new(&limiters.classes, Instant::ZERO),
            limiters,
            guard: Guard::new(scenario, scheme, simulation.rng(1)),
            out: Wire::new(line, way),
            back: Wire::new(line, way),
            rng: simulation.rng(0),
            simulation,
            ends: Vec::new(),
            port_at: None,
            calm: false,
            settling: settling(scenario),
            counted: Counted::default(),
        }
    }

    fn begin(&mut self) {
        let scenario = self.scenario;
        for class in 0..scenario.limiter_count() {
            if class == 0 || scenario.neighbour.is_none() {
                self.open_bulk(class);
            }
            self.simulation.after(Duration::from_micros(10), Event::Mouse { class });
        }
        if let Some(neighbour) = scenario.neighbour {
            self.simulation.after(Duration::from_millis(neighbour.from_ms), Event::NeighbourBegins);
            self.simulation.after(Duration::from_millis(neighbour.to_ms), Event::NeighbourEnds);
        }
        if let Some(churn) = scenario.churn {
            self.simulation.after(Duration::from_secs_f64(1.0 / f64::from(churn.per_s)), Event::Opens);
        }
        if let Some(stall) = scenario.stall {
            self.simulation.after(Duration::from_millis(stall.every_ms), Event::Stall);
        }
        if let Some(change) = scenario.change {
            self.simulation.after(Duration::from_millis(change.at_ms), Event::Change);
        }
        if let Some(calm_after_ms) = scenario.calm_after_ms {
            self.simulation.after(Duration::from_millis(calm_after_ms), Event::Calm);
        }
        self.simulation.after(SPAN, Event::Tick);
        self.simulation.after(Duration::from_millis(scenario.warm_up_ms), Event::WarmedUp);
    }

    /// The flows of a limiter that always have something to send.
    fn open_bulk(&mut self, class: usize) {
        let scenario = self.scenario;
        for flow in 0..scenario.flows {
            let far = scenario.far.filter(|far| flow >= scenario.flows - far.flows);
            let far_ns = far.map_or(0.0, |far| (far.rtt_ms * 1e6 - scenario.rtt_us * 1e3).max(0.0) / 2.0);
            // The second flow's receiver may be an old one.
            let scaled = !(scenario.unscaled && flow == 1);
            self.open(Kind::Bulk, class, u64::MAX, Duration::from_secs_f64(far_ns / 1e9), scaled);
        }
    }

    /// Limiters that have flows for a while only.
    fn neighbours(&self) -> core::ops::RangeInclusive<usize> {
        let count = self.scenario.neighbour.map_or(0, |neighbour| neighbour.limiters);
        1..=usize::try_from(count).expect("a checked scenario has few")
    }

    /// What the shaper sees with a packet of a limiter.
    fn seen(&self, class: usize, now: Instant) -> Seen {
        let (own, tcp) = (self.limiters.own(class), self.limiters.tcp(class));
        let drain = self.guard.drain(class).unwrap_or(1);
        let waits = span_of(self.htb.backlog(tcp), drain);
        let queue_ns = i64::try_from(waits).unwrap_or(i64::MAX).saturating_sub(self.htb.credit_ns(own, now));
        Seen { queue_ns, drained: self.htb.sent(own), now }
    }

    fn open(&mut self, kind: Kind, class: usize, total: u64, far: Duration, scaled: bool) {
        let far_ns = tidegate_core::time::nanos(far);
        let first = u32::try_from(self.rng.below(1 << 32)).expect("below 2^32");
        let burst_max = self.scenario.gso_segments * MSS;
        let began = self.simulation.now();
        self.ends.push(End::new(EndConfig { kind, class, total, burst_max, far_ns, scaled, first, began }));
        self.pump(self.ends.len() - 1);
    }

    fn handle(&mut self, event: Event) {
        let now = self.simulation.now();
        match event {
            Event::Port => {
                if self.port_at == Some(now) {
                    self.port_at = None;
                }
                self.serve(now);
            }
            Event::Arrives(packet) => self.arrives(packet, now),
            Event::AckArrives { flow, ack } => self.ack_arrives(flow, ack, now),
            Event::Room { flow } => self.pump(flow),
            Event::AnswerArrives { sent } => {
                if self.counted.warm {
                    self.counted.mice_ns.push(now.nanos_since(sent));
                }
            }
            Event::Timer { flow } => {
                let end = &mut self.ends[flow];
                if end.timer_at != Some(now) {
                    return;
                }
                end.timer_at = None;
                end.sender.on_timeout(now);
                let ack = end.receiver.on_timeout(now);
                self.answer(flow, ack, now);
                self.pump(flow);
            }
            Event::Mouse { class } => self.mouse(class, now),
            Event::Opens => {
                if let Some(churn) = self.scenario.churn.filter(|_| !self.calm) {
                    self.open(Kind::Short, 0, churn.bytes, Duration::ZERO, true);
                    let gap = self.rng.exponential() / f64::from(churn.per_s);
                    self.simulation.after(Duration::from_secs_f64(gap), Event::Opens);
                }
            }
            Event::Stall if self.calm => {}
            Event::Stall => {
                self.ends[0].receiver.stall();
                let stall = self.scenario.stall.map_or(1, |stall| stall.for_ms);
                self.simulation.after(Duration::from_millis(stall), Event::Resume);
            }
            Event::Resume => {
                let ack = self.ends[0].receiver.resume();
                self.answer(0, ack, now);
                let every = self.scenario.stall.map_or(1, |stall| stall.every_ms);
                self.simulation.after(Duration::from_millis(every), Event::Stall);
            }
            Event::Change => {
                if let Some(change) = self.scenario.change {
                    let limiters = Limiters::new(self.scenario, self.scheme, change.to_mbit);
                    for (class, config) in limiters.classes.iter().enumerate() {
                        self.htb.set_class(class, *config, now);
                    }
                    self.guard.set_rate(0, bytes_per_s(change.to_mbit));
                    self.serve(now);
                }
            }
            Event::NeighbourBegins => self.neighbours().for_each(|class| self.open_bulk(class)),
            Event::NeighbourEnds => {
                let neighbours = self.neighbours();
                let ends = self.ends.iter_mut().filter(|end| neighbours.contains(&end.config.class));
                ends.for_each(|end| end.sender.finish());
            }
            Event::Calm => self.calm_down(now),
            Event::Tick => self.tick(now),
            Event::WarmedUp => {
                self.counted = Counted { warm: true, ..Counted::default() };
                for end in &mut self.ends {
                    end.before = end.receiver.received();
                    end.forget_gaps(now);
                }
            }
        }
    }

    fn calm_down(&mut self, now: Instant) {
        self.calm = true;
        for flow in 0..self.ends.len() {
            self.ends[flow].sender.finish();
            if self.ends[flow].receiver.is_stalled() {
                let ack = self.ends[flow].receiver.resume();
                self.answer(flow, ack, now);
            }
            self.pump(flow);
        }
    }

    /// Whether a packet is lost behind the limiter.
    fn loses(&mut self) -> bool {
        !self.calm && self.scenario.loss > 0.0 && self.rng.chance(self.scenario.loss)
    }

    /// Sends what a flow may send.
    fn pump(&mut self, flow: usize) {
        let now = self.simulation.now();
        while let Some(burst) = self.ends[flow].sender.poll_send(now) {
            let class = self.ends[flow].config.class;
            let seen = self.seen(class, now);
            let end = &mut self.ends[flow];
            let gso_bytes = if burst.segments > 1 { u32::try_from(MSS).expect("a segment is small") } else { 0 };
            let wire_bytes = u32::try_from(burst.wire_bytes()).expect("a burst has at most 64 kB");
            let sizes = Sizes { gso_bytes, wire_bytes };
            let leaf = self.guard.on_egress(class, &end.segment(&burst, flow), sizes, seen);
            let packet = Packet::Burst { flow, burst };
            if self.htb.enqueue(self.limiters.leaf(class, leaf), burst.wire_bytes(), packet).is_err() {
                self.counted.drops += 1;
                end.sender.on_refused(&burst, now);
                break;
            }
            self.counted.packets += 1;
            if end.config.kind == Kind::Bulk && burst.payload > 0 {
                self.counted.bulk_packets += 1;
                self.counted.bulk_segments += burst.segments;
            }
        }
        self.serve(now);
        self.arm(flow);
    }

    fn arm(&mut self, flow: usize) {
        if let Some(at) = self.ends[flow].arm() {
            self.simulation.at(at, Event::Timer { flow });
        }
    }

    /// Puts what may leave on the line, and asks to be called when the next may.
    fn serve(&mut self, now: Instant) {
        while self.out.free_at() <= now {
            let Some((bytes, packet)) = self.htb.dequeue(now) else { break };
            let arrives = self.out.send(bytes, now, &mut self.rng);
            let far_ns = match packet {
                Packet::Burst { flow, burst } => {
                    self.ends[flow].sender.on_left(&burst);
                    // Room in the host's queue: more may be put there, after this round.
                    self.simulation.at(now, Event::Room { flow });
                    self.ends[flow].config.far_ns
                }
                Packet::Mouse { .. } => 0,
            };
            self.arrive(packet, arrives.plus_nanos(far_ns));
        }
        let next = self.htb.next_at(now).map(|at| at.max(self.out.free_at()));
        if let Some(at) = next.filter(|at| self.port_at.is_none_or(|port| *at < port)) {
            self.port_at = Some(at);
            self.simulation.at(at, Event::Port);
        }
    }

    /// What is not lost of a packet comes to its peer at `at`.
    fn arrive(&mut self, packet: Packet, at: Instant) {
        match packet {
            Packet::Burst { flow, burst } => {
                for burst in burst.without(MSS, || self.loses()) {
                    self.simulation.at(at, Event::Arrives(Packet::Burst { flow, burst }));
                }
            }
            Packet::Mouse { .. } => {
                if !self.loses() {
                    self.simulation.at(at, Event::Arrives(packet));
                }
            }
        }
    }

    fn arrives(&mut self, packet: Packet, now: Instant) {
        match packet {
            Packet::Burst { flow, burst } => {
                let ack = self.ends[flow].receiver.on_burst(&burst, now);
                self.answer(flow, ack, now);
                self.arm(flow);
            }
            Packet::Mouse { sent, .. } => {
                let at = self.back.send(MOUSE_BYTES, now, &mut self.rng);
                self.simulation.at(at, Event::AnswerArrives { sent });
            }
        }
    }

    fn answer(&mut self, flow: usize, ack: Option<Ack>, now: Instant) {
        let Some(ack) = ack else { return };
        let at = self.back.send(HEADER_BYTES, now, &mut self.rng);
        if !self.loses() {
            self.simulation.at(at.plus_nanos(self.ends[flow].config.far_ns), Event::AckArrives { flow, ack });
        }
    }

    fn ack_arrives(&mut self, flow: usize, ack: Ack, now: Instant) {
        let class = self.ends[flow].config.class;
        let seen = self.seen(class, now);
        let end = &mut self.ends[flow];
        let field = self.guard.on_ingress(class, &end.reply(&ack, flow), seen);
        let before = end.done;
        end.on_ack(Ack { field, ..ack }, now);
        let counts = before.is_none() && self.counted.warm && end.config.kind == Kind::Short;
        if let Some(done) = end.done.filter(|_| counts) {
            self.counted.short_ns.push(done.nanos_since(end.config.began));
        }
        self.pump(flow);
    }

    fn mouse(&mut self, class: usize, now: Instant) {
        // The shaper knows no window of a mouse that holds it: it goes to the sparse leaf.
        let leaf = self.limiters.leaf(class, Leaf::Sparse);
        if self.htb.enqueue(leaf, MOUSE_BYTES, Packet::Mouse { class, sent: now }).is_err() {
            self.counted.drops += 1;
        }
        self.serve(now);
        let gap = self.rng.exponential() / f64::from(self.scenario.mice_per_s);
        self.simulation.after(Duration::from_secs_f64(gap), Event::Mouse { class });
    }

    fn tick(&mut self, now: Instant) {
        self.simulation.after(SPAN, Event::Tick);
        if self.counted.warm {
            let bulk = self.ends.iter().filter(|end| end.config.kind == Kind::Bulk && end.done.is_none());
            self.counted.srtt_ns.extend(bulk.map(|end| end.sender.srtt_ns()).filter(|srtt_ns| *srtt_ns > 0));
        }
        for settling in &mut self.settling {
            let of_limiter = self.ends.iter().filter(|end| end.config.class == settling.limiter);
            settling.on_tick(of_limiter.map(|end| end.receiver.received()).sum(), SPAN, now);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn report(mut self, scheme: Scheme) -> Report {
        let now = self.simulation.now();
        let measured_ns = (self.scenario.length_ms - self.scenario.warm_up_ms) * 1_000_000;
        let (mut efficiencies, mut jains, mut sum) = (Vec::new(), Vec::new(), 0);
        for class in 0..self.scenario.limiter_count() {
            let of_class = |end: &&End| end.config.class == class;
            let goodput = |end: &End| end.receiver.received() - end.before;
            let all: u64 = self.ends.iter().filter(of_class).map(goodput).sum();
            let bulk: Vec<u64> =
                self.ends.iter().filter(of_class).filter(|end| end.config.kind == Kind::Bulk).map(goodput).collect();
            efficiencies.push(efficiency(all, measured_ns, self.scenario.rate()));
            sum += all;
            jains.push(jain(&bulk));
        }
        if let Some(total) = self.scenario.total_mbit {
            efficiencies = vec![efficiency(sum, measured_ns, bytes_per_s(total))];
        }
        let far: Vec<f64> = self
            .ends
            .iter()
            .filter(|end| end.config.far_ns > 0)
            .map(|end| efficiency(end.receiver.received() - end.before, measured_ns, self.scenario.rate()))
            .collect();
        let far_share = far.iter().sum::<f64>() / far.len().max(1) as f64 * f64::from(self.scenario.flows);
        let wait = if self.calm { Duration::ZERO } else { STUCK };
        let stuck = self.ends.iter().filter(|end| end.hangs(now, wait)).count() as u64;
        for end in &mut self.ends {
            if end.done.is_none() {
                end.note_progress(now);
            }
        }
        let bulk = self.ends.iter().filter(|end| end.config.kind == Kind::Bulk);
        let counted = self.counted;
        Report {
            scheme,
            efficiency: efficiencies,
            jain: jains,
            srtt_us: Percentiles::of(counted.srtt_ns, 1e3),
            mice_curve: curve(&counted.mice_ns, 1e3),
            mice_us: Percentiles::of(counted.mice_ns, 1e3),
            short_ms: Percentiles::of(counted.short_ns, 1e6),
            drops: counted.drops,
            stall_ms: bulk.map(|end| end.gap_ns).max().unwrap_or(0) as f64 / 1e6,
            stuck,
            segments_per_packet: counted.bulk_segments as f64 / counted.bulk_packets.max(1) as f64,
            far_share,
            settle_ms: self.settling.iter().map(Settling::ms).fold(0.0, f64::max),
            repeats: self.ends.iter().map(|end| end.sender.repeats()).sum(),
            timeouts: self.ends.iter().map(|end| end.sender.timeouts()).sum(),
            packets: counted.packets,
            window_us: self.guard.window_ns(0).unwrap_or(0) as f64 / 1e3,
            trace: self.simulation.trace().to_string(),
        }
    }
}

/// What is waited for after each change of a scenario.
fn settling(scenario: &Scenario) -> Vec<Settling> {
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    let mut waits = Vec::new();
    if let Some(change) = scenario.change {
        waits.push(Settling::new(0, at(change.at_ms), bytes_per_s(change.to_mbit)));
    }
    if let (Some(neighbour), Some(total)) = (scenario.neighbour, scenario.total_mbit) {
        let limiters = usize::try_from(neighbour.limiters).expect("a checked scenario has few");
        let each = (bytes_per_s(total) - bytes_per_s(neighbour.first_mbit)) / u64::from(neighbour.limiters);
        waits.push(Settling::new(0, at(neighbour.from_ms), bytes_per_s(neighbour.first_mbit)));
        waits.extend((1..=limiters).map(|limiter| Settling::new(limiter, at(neighbour.from_ms), each)));
        waits.push(Settling::new(0, at(neighbour.to_ms), bytes_per_s(total)));
    }
    waits
}

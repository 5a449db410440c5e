use tidegate_core::{Instant, Rng};

use super::*;
use crate::kernel::{Bounds, Simulation};

const MSS: u64 = 1_448;

/// A sender and a receiver over a path with a fixed round trip and nothing that queues.
struct Path {
    sender: Sender,
    receiver: Receiver,
    way_ns: u64,
    loss: f64,
    rng: Rng,
    /// Payload of each burst that was sent.
    bursts: Vec<u64>,
    /// When the timer's event comes.
    armed: Option<Instant>,
}

#[derive(Hash)]
enum Event {
    Burst(Burst),
    Ack(Ack),
    Timer,
    Stall,
    Resume,
    ResumeUnheard,
}

impl Path {
    fn new(total: u64, buffer: u64, way_us: u64) -> Self {
        let sender = SenderConfig { mss: MSS, burst_max: 44 * MSS, scale: 7, total };
        Self {
            sender: Sender::new(sender),
            receiver: Receiver::new(ReceiverConfig { mss: MSS, buffer, scale: 7 }),
            way_ns: way_us * 1_000,
            loss: 0.0,
            rng: Rng::new(5),
            bursts: Vec::new(),
            armed: None,
        }
    }

    fn pump(&mut self, simulation: &mut Simulation<Event>) {
        let now = simulation.now();
        while let Some(burst) = self.sender.poll_send(now) {
            self.sender.on_left(&burst);
            self.bursts.push(burst.payload);
            if !self.rng.chance(self.loss) {
                simulation.at(now.plus_nanos(self.way_ns), Event::Burst(burst));
            }
        }
        let next = self.sender.next_timeout().into_iter().chain(self.receiver.next_timeout()).min();
        if let Some(at) = next.filter(|at| self.armed.is_none_or(|armed| *at < armed)) {
            simulation.at(at, Event::Timer);
            self.armed = Some(at);
        }
    }

    fn run(&mut self, plan: Vec<(u64, Event)>, length_ms: u64) -> Instant {
        let mut simulation = Simulation::new(1, Bounds::default());
        for (ms, event) in plan {
            simulation.at(Instant::from_nanos(ms * 1_000_000), event);
        }
        self.pump(&mut simulation);
        let end = Instant::from_nanos(length_ms * 1_000_000);
        while let Some(event) = simulation.next_until(end).unwrap() {
            let now = simulation.now();
            let ack = match event {
                Event::Burst(burst) => self.receiver.on_burst(&burst, now),
                Event::Ack(ack) => {
                    self.sender.on_ack(ack, now);
                    None
                }
                Event::Timer => {
                    self.armed = None;
                    self.sender.on_timeout(now);
                    self.receiver.on_timeout(now)
                }
                Event::Stall => {
                    self.receiver.stall();
                    None
                }
                Event::Resume => self.receiver.resume(),
                Event::ResumeUnheard => {
                    let _lost = self.receiver.resume();
                    None
                }
            };
            if let Some(ack) = ack.filter(|_| !self.rng.chance(self.loss)) {
                simulation.at(now.plus_nanos(self.way_ns), Event::Ack(ack));
            }
            self.pump(&mut simulation);
            if self.sender.is_done() {
                return now;
            }
        }
        simulation.now()
    }
}

#[test]
fn slow_start_doubles_each_round_trip() {
    // Ten segments, then twice as many each time: 10 + 20 + 40 + 80 in four round trips after the handshake's.
    let mut path = Path::new(140 * MSS, 10_000_000, 5_000);
    let done = path.run(Vec::new(), 1_000);
    assert_eq!(done.as_nanos() / 1_000_000, 50);
    assert_eq!(path.sender.srtt_ns(), 10_000_000);
}

#[test]
fn the_receivers_window_is_never_passed() {
    let mut path = Path::new(u64::MAX, 20 * MSS, 500);
    path.run(Vec::new(), 200);
    // 20 segments, in whole units of the scale, each millisecond.
    let per_ms = path.receiver.received() / 200;
    assert!((18 * MSS..=20 * MSS).contains(&per_ms), "{per_ms}");
}

#[test]
fn bursts_to_a_near_peer_are_large_and_those_of_a_slow_flow_small() {
    let mut near = Path::new(u64::MAX, 10_000_000, 25);
    near.run(Vec::new(), 20);
    assert_eq!(near.bursts.iter().max(), Some(&(44 * MSS)));
    let mut slow = Path::new(u64::MAX, 70 * MSS, 20_000);
    slow.run(Vec::new(), 500);
    let most = slow.bursts.iter().max().unwrap();
    assert!(*most < 15 * MSS, "{most}");
}

#[test]
fn a_single_segment_waits_for_the_delayed_acknowledgement_after_the_quick_ones() {
    let mut path = Path::new(30 * MSS, MSS, 50);
    let done = path.run(Vec::new(), 10_000);
    let ms = done.as_nanos() / 1_000_000;
    assert!((400..700).contains(&ms), "about fourteen segments of thirty wait for 40 ms each: {ms}");
}

#[test]
fn every_byte_arrives_whatever_is_lost() {
    for seed in 0..60 {
        let mut path = Path::new(400 * MSS + 7, 1_000_000, 100);
        path.loss = [0.01, 0.1, 0.3][seed % 3];
        path.rng = Rng::new(seed as u64);
        path.run(Vec::new(), 600_000);
        assert!(path.sender.is_done(), "seed {seed}: {} arrived", path.receiver.received());
    }
}

#[test]
fn a_lost_burst_costs_a_round_trip_and_not_a_timeout() {
    let mut path = Path::new(20_000 * MSS, 10_000_000, 1_000);
    path.loss = 0.01;
    path.run(Vec::new(), 60_000);
    assert!(path.sender.is_done() && path.sender.repeats() > 0);
    assert_eq!(path.sender.timeouts(), 0);
}

#[test]
fn a_burst_arrives_without_the_segments_that_are_lost() {
    let burst = Burst { seq: 1, payload: 4 * MSS + 100, segments: 5, syn: false };
    let without = |lost: &[usize]| {
        let mut segment = 0..;
        let parts = burst.without(MSS, || lost.contains(&segment.next().unwrap()));
        parts.iter().map(|part| (part.seq, part.payload, part.segments)).collect::<Vec<_>>()
    };
    assert_eq!(without(&[]), [(1, 4 * MSS + 100, 5)]);
    assert_eq!(without(&[1, 4]), [(1, MSS, 1), (1 + 2 * MSS, 2 * MSS, 2)]);
    assert_eq!(without(&[0, 1, 2, 3, 4]), []);
}

#[test]
fn a_hole_within_a_burst_is_found_by_what_arrives_behind_it() {
    let mut path = Path::new(10 * MSS, 10_000_000, 100);
    let now = Instant::ZERO;
    let syn = path.sender.poll_send(now).unwrap();
    path.sender.on_left(&syn);
    let ack = path.receiver.on_burst(&syn, now).unwrap();
    path.sender.on_ack(ack, now);
    let burst = path.sender.poll_send(now).unwrap();
    path.sender.on_left(&burst);
    let mut segment = 0..;
    for part in burst.without(MSS, || segment.next().unwrap() == 1) {
        let ack = path.receiver.on_burst(&part, now).expect("the first ones are acknowledged at once");
        path.sender.on_ack(ack, now);
    }
    let again = path.sender.poll_send(now).unwrap();
    assert_eq!((again.seq, again.payload), (1 + MSS, MSS));
    path.sender.on_ack(path.receiver.on_burst(&again, now).unwrap(), now);
    assert_eq!(path.sender.acknowledged(), burst.end());
}

#[test]
fn a_stalled_application_stops_the_flow_and_no_longer() {
    let received = |length_ms| {
        let mut path = Path::new(u64::MAX, 100_000, 100);
        path.run(vec![(10, Event::Stall), (500, Event::Resume)], length_ms);
        path.receiver.received()
    };
    assert_eq!(received(30), received(499));
    assert!(received(510) > received(499) + 1_000_000);
}

#[test]
fn a_lost_window_update_is_found_by_a_probe() {
    let mut path = Path::new(u64::MAX, 100_000, 100);
    path.run(vec![(10, Event::Stall), (500, Event::ResumeUnheard)], 499);
    let stalled = path.receiver.received();
    let mut path = Path::new(u64::MAX, 100_000, 100);
    path.run(vec![(10, Event::Stall), (500, Event::ResumeUnheard)], 3_000);
    assert!(path.receiver.received() > stalled + 1_000_000);
}

#[test]
fn a_refused_burst_is_as_if_not_sent_and_is_tried_again() {
    let mut path = Path::new(10 * MSS, 10_000_000, 100);
    let now = Instant::ZERO;
    let syn = path.sender.poll_send(now).unwrap();
    path.sender.on_left(&syn);
    let ack = path.receiver.on_burst(&syn, now).unwrap();
    path.sender.on_ack(ack, now);
    let burst = path.sender.poll_send(now).unwrap();
    path.sender.on_refused(&burst, now);
    let timeout = path.sender.next_timeout().expect("nothing else will happen");
    path.sender.on_timeout(timeout);
    let probe = path.sender.poll_send(timeout).unwrap();
    assert_eq!((probe.seq, probe.payload), (1, 0));
    let again = path.sender.poll_send(timeout).unwrap();
    assert_eq!(again.seq, burst.seq);
    assert!(again.payload < burst.payload, "the window shrank");
}

#[test]
fn a_receiver_that_is_not_open_says_nothing() {
    let mut receiver = Receiver::new(ReceiverConfig { mss: MSS, buffer: 100_000, scale: 7 });
    receiver.stall();
    assert_eq!(receiver.resume(), None);
    let early = Burst { seq: 1, payload: MSS, segments: 1, syn: false };
    assert_eq!(receiver.on_burst(&early, Instant::ZERO), None);
    assert_eq!(receiver.received(), 0);
}

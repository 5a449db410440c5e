//! The first law of limiters, held to the broker's own machine: in any window of length t it releases at most
//! burst + rate * t messages.
//!
//! A [`Shard`] of the broker is driven in virtual time: publishers' commands as bytes, each with the stamp of its arrival,
//! and one consumer that finishes what it gets. The reader is sometimes late, reads connections in any order, and finds
//! some stamps only a round later, so that the stamps of the topic must be merged. Every window of releases is checked.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_broker::machine::admin::{AdminRequest, Recording};
use tidegate_broker::machine::limiter::{Contract, Discipline, Mode, Source, Unit};
use tidegate_broker::machine::output::{ConnId, Output};
use tidegate_broker::machine::shard::{OutputBuffer, QueuePolicy, Shard, ShardConfig};
use tidegate_core::limit::Limit;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate, Rng};
use tidegate_sim::law::Windows;
use tidegate_sim::workload::{Arrival, GroupConfig, Groups, Publishers};
use tidegate_wire::nsq::TopicName;
use tidegate_wire::nsq::client::{self, Frame};

use crate::statistics::float;

const TOPIC: &str = "law";
const MAX_RDY_COUNT: u32 = 2_500;
const FRAME_MAX_BYTES: u32 = 1 << 20;
/// A prompt reader looks this often.
const ROUND: Duration = Duration::from_micros(200);
/// How likely a round is a pause instead, and a stamp is seen only a round later.
const PAUSE_CHANCE: f64 = 0.001;
const STRAGGLER_CHANCE: f64 = 0.01;
/// Rounds of the whole run at most are this many times the expected ones: a broker that stops releasing is found.
const ROUNDS_SPARE: u64 = 20;

/// What is run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseLaw {
    /// The topic's contract.
    pub limit: Limit,
    /// Publishers of the topic, each with a connection of its own.
    pub publishers: u32,
    /// Publishers that send at the same instant.
    pub group: u32,
    /// Messages offered for each token.
    pub load: f64,
    /// Messages to check.
    pub messages: u64,
    /// How long the reader is away now and then.
    pub pause_ms: u64,
    /// Same seed, same run; an experiment's own goes before it.
    #[serde(default)]
    pub seed: u64,
}

impl Default for ReleaseLaw {
    /// The contract of the paper's first experiment, 100 publishers in groups of 20, ten million messages, pauses of 50 ms.
    fn default() -> Self {
        let limit = Limit::new(Rate::per_s(11_000), 26);
        Self { limit, publishers: 100, group: 20, load: 0.95, messages: 10_000_000, pause_ms: 50, seed: 1 }
    }
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// Messages released.
    pub messages: u64,
    /// Messages delivered to the consumer.
    pub delivered: u64,
    /// Releases that completed a window with more than burst + rate * t.
    pub violations: u64,
    /// The fullest window, in messages above burst + rate * t; not above zero if the law holds.
    pub excess_max: f64,
    /// As `violations`, for the moments at which messages really went, allowing for the longest pause h:
    /// burst + rate * (t + h).
    pub passage_violations: u64,
    /// The share of messages that the contract delayed: zero would prove nothing.
    pub share_delayed: f64,
}

/// Runs the messages of `law` through the broker's machine and checks every window.
#[must_use]
pub fn release_law(law: &ReleaseLaw) -> ReleaseReport {
    let mut run = Run::new(law);
    let mut rng = Rng::stream(law.seed, 1);
    let per_s = law.limit.rate.as_per_s() * law.load;
    let publishers = Publishers { count: law.publishers, rate: Rate::from_per_s_f64(per_s), batch: 1 };
    let groups = GroupConfig { size: law.group, spread_us: 0.0, periodic: false };
    let mut arrivals = Groups::new(publishers, groups, Instant::ZERO, Rng::stream(law.seed, 0)).peekable();
    let pause = Duration::from_millis(law.pause_ms);
    let expected_s = float(law.messages) / law.limit.rate.as_per_s().min(per_s);
    let rounds_max = ROUNDS_SPARE * nanos(Duration::from_secs_f64(expected_s)) / nanos(ROUND) + 1_000;
    let mut unread: Vec<Arrival> = Vec::new();
    for _ in 0..rounds_max {
        if run.releases.messages() >= law.messages {
            break;
        }
        run.now += if rng.chance(PAUSE_CHANCE) { pause } else { ROUND };
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at <= run.now) {
            unread.push(arrival);
        }
        rng.shuffle(&mut unread);
        let stragglers = unread.iter().filter(|_| rng.chance(STRAGGLER_CHANCE)).count();
        let late = unread.split_off(unread.len() - stragglers);
        run.round(&unread);
        unread = late;
    }
    run.report()
}

/// A broker's shard with its connections.
struct Run {
    shard: Shard,
    publishers: Vec<ConnId>,
    consumer: ConnId,
    /// The command that every publisher sends.
    publish: Vec<u8>,
    now: Instant,
    releases: Windows,
    passages: Windows,
    delayed: u64,
    delivered: u64,
}

impl Run {
    fn new(law: &ReleaseLaw) -> Self {
        let now = Instant::ZERO;
        let mut shard = Shard::new(shard_config(law.seed), now, 0);
        let topic = TopicName::new(TOPIC).expect("a valid name");
        let contract =
            Contract { limit: law.limit, unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce };
        shard.on_admin(AdminRequest::CreateTopic(topic.clone()), now);
        shard.on_admin(AdminRequest::SetTopicLimit(topic.clone(), Some((contract, Source::File))), now);
        shard.on_admin(AdminRequest::Record(topic, Recording::On), now);
        let consumer = shard.on_connect("127.0.0.1:1".to_owned(), now);
        let publishers = (0..law.publishers).map(|_| shard.on_connect("127.0.0.1:2".to_owned(), now)).collect();
        let pause = Duration::from_millis(law.pause_ms);
        let mut publish = Vec::new();
        client::put_pub(&mut publish, TOPIC, b"m");
        let mut run = Self {
            shard,
            publishers,
            consumer,
            publish,
            now,
            releases: Windows::new(law.limit, Duration::ZERO),
            passages: Windows::new(law.limit, pause.max(ROUND)),
            delayed: 0,
            delivered: 0,
        };
        let mut hello = b"  V2".to_vec();
        for conn in run.publishers.clone() {
            run.tell(conn, &hello, now);
        }
        client::put_sub(&mut hello, TOPIC, "channel");
        client::put_rdy(&mut hello, MAX_RDY_COUNT);
        run.tell(consumer, &hello, now);
        run.settle();
        run
    }

    /// The reader looks: at its timers, then at the connections with something to read.
    fn round(&mut self, unread: &[Arrival]) {
        while let Some(due) = self.shard.next_timeout().filter(|&due| due <= self.now) {
            self.shard.on_timeout(due);
            self.settle_at(due);
        }
        for arrival in unread {
            let conn = self.publishers[arrival.publisher as usize];
            let publish = std::mem::take(&mut self.publish);
            self.tell(conn, &publish, arrival.at);
            self.publish = publish;
        }
        self.settle();
    }

    fn tell(&mut self, conn: ConnId, bytes: &[u8], arrival: Instant) {
        let used = self.shard.on_bytes(conn, bytes, arrival, self.now);
        assert_eq!(used, bytes.len(), "whole commands are taken as long as the line has room");
    }

    fn settle(&mut self) {
        self.settle_at(self.now);
    }

    /// Carries out everything that the shard wants done, until it wants nothing more.
    fn settle_at(&mut self, now: Instant) {
        self.shard.end_batch(now);
        loop {
            while let Some(output) = self.shard.poll_output() {
                self.carry_out(output);
            }
            let Some(conn) = self.shard.next_dirty() else { break };
            let written = std::mem::take(self.shard.output_of(conn));
            self.shard.on_written(conn);
            if conn == self.consumer {
                self.consume(&written, now);
                self.shard.end_batch(now);
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Trace(_, traced) => {
                for passage in traced.passages {
                    self.releases.observe(passage.release);
                    self.passages.observe(passage.passed);
                    self.delayed += u64::from(passage.release > passage.arrival);
                }
            }
            Output::Close(conn) => panic!("the shard closed connection {conn}, which did nothing wrong"),
            // Queues never overflow here and nobody else listens.
            _ => {}
        }
    }

    /// The consumer finishes every message.
    fn consume(&mut self, mut input: &[u8], now: Instant) {
        let mut finishes = Vec::new();
        while let Some((frame, used)) = client::frame(input, FRAME_MAX_BYTES).expect("a shard writes whole frames") {
            if let Frame::Message(header, _) = frame {
                client::put_fin(&mut finishes, &header.id);
                self.delivered += 1;
            }
            input = &input[used..];
        }
        self.tell(self.consumer, &finishes, now);
    }

    fn report(self) -> ReleaseReport {
        ReleaseReport {
            messages: self.releases.messages(),
            delivered: self.delivered,
            violations: self.releases.violations(),
            excess_max: self.releases.excess_max(),
            passage_violations: self.passages.violations(),
            share_delayed: float(self.delayed) / float(self.releases.messages().max(1)),
        }
    }
}

/// nsqd's defaults, but one shard and room for a consumer that is never behind for long.
fn shard_config(seed: u64) -> ShardConfig {
    ShardConfig {
        shard: 0,
        shards: 1,
        node_id: 0,
        version: "1.3.0".to_owned(),
        max_msg_size: 1 << 20,
        max_body_size: 5 << 20,
        max_rdy_count: MAX_RDY_COUNT,
        msg_timeout: Duration::from_mins(1),
        max_msg_timeout: Duration::from_mins(15),
        max_req_timeout: Duration::from_hours(1),
        heartbeat: Duration::from_secs(30),
        max_heartbeat: Duration::from_mins(1),
        output_buffer: OutputBuffer {
            size: 16 << 10,
            size_max: 64 << 10,
            timeout: Duration::from_millis(250),
            timeout_min: Duration::from_millis(25),
            timeout_max: Duration::from_secs(30),
        },
        tls: false,
        tls_required: false,
        snappy: false,
        deflate: None,
        auth: false,
        max_channel_consumers: 0,
        mem_queue_size: 1_000_000,
        max_queue_bytes: 1 << 30,
        queue_policy: QueuePolicy::Refuse,
        line_bytes: 1 << 30,
        spread: BTreeSet::new(),
        topics_wait_for_start: false,
        e2e_percentiles: Vec::new(),
        e2e_window: Duration::from_mins(10),
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_keeps_the_law_whatever_its_reader_does() {
        let law = ReleaseLaw { messages: 100_000, ..ReleaseLaw::default() };
        let report = release_law(&law);
        assert!(report.messages >= 100_000 && report.delivered >= 99_000, "{report:?}");
        assert_eq!((report.violations, report.passage_violations), (0, 0), "{report:?}");
        // The check is as sharp as can be: some window was full, to less than a message.
        assert!(report.share_delayed > 0.1 && report.excess_max > -1.0, "{report:?}");
        assert_eq!(report, release_law(&law));
    }
}

//! In the steady state a message costs no allocation: memory that was freed is used again.
//!
//! The paper's garbage collector has no part here; this is the claim that takes its place.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::time::Duration;

use tidegate_broker::machine::admin::AdminRequest;
use tidegate_broker::machine::limiter::{Contract, Source};
use tidegate_broker::machine::output::{ConnId, Output};
use tidegate_broker::machine::shard::{Shard, ShardConfig};
use tidegate_wire::nsq::client;
use tidegate_wire::nsq::frame::ID_BYTES;

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

/// A shard with a publisher and subscribers, driven without an allocation of the driver's own.
struct Bench {
    shard: Shard,
    now: tidegate_core::Instant,
    publisher: ConnId,
    consumers: Vec<ConnId>,
    publish: Vec<u8>,
    answer: Vec<u8>,
    delivered: u64,
}

const MESSAGE_FRAME_BYTES: usize = 8 + 26 + 100;

impl Bench {
    fn new(channels: &[&str], contract: Option<Contract>) -> Self {
        let config = ShardConfig { mem_queue_size: 1_000_000, ..harness::config() };
        let mut shard = Shard::new(config, harness::START, harness::START_UNIX_NS);
        let now = harness::START;
        if let Some(contract) = contract {
            let contract = Some((contract, Source::File));
            shard.on_admin(AdminRequest::SetTopicLimit(harness::topic_name("t"), contract), now);
        }
        let mut connect = |said: &str| {
            let conn = shard.on_connect("10.0.0.1:1".to_owned(), now);
            assert_eq!(shard.on_bytes(conn, said.as_bytes(), now, now), said.len());
            conn
        };
        let consumers = channels.iter().map(|name| connect(&format!("  V2SUB t {name}\nRDY 2500\n"))).collect();
        let publisher = connect("  V2");
        let mut publish = Vec::new();
        for _ in 0..10 {
            client::put_pub(&mut publish, "t", &[b'x'; 100]);
        }
        let mut bench =
            Self { shard, now, publisher, consumers, publish, answer: Vec::with_capacity(1 << 20), delivered: 0 };
        bench.settle();
        bench
    }

    /// Ten messages are published, delivered and finished.
    fn round(&mut self) {
        self.now += Duration::from_micros(100);
        self.shard.on_timeout(self.now);
        let used = self.shard.on_bytes(self.publisher, &self.publish, self.now, self.now);
        assert_eq!(used, self.publish.len());
        self.settle();
        for index in 0..self.consumers.len() {
            let conn = self.consumers[index];
            self.answer.clear();
            // Frames of responses and messages differ in length, so the stream is walked.
            let output = self.shard.output_of(conn);
            let mut rest = &output[..];
            while let Some((size, _)) = rest.split_first_chunk::<4>() {
                let frame = 4 + u32::from_be_bytes(*size) as usize;
                if frame == MESSAGE_FRAME_BYTES {
                    let id: &[u8; ID_BYTES] = rest[18..34].try_into().unwrap();
                    client::put_fin(&mut self.answer, id);
                    self.delivered += 1;
                }
                rest = &rest[frame..];
            }
            output.clear();
            self.shard.on_written(conn);
            let used = self.shard.on_bytes(conn, &self.answer, self.now, self.now);
            assert_eq!(used, self.answer.len());
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.shard.end_batch(self.now);
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Log(_) | Output::Notice(_) | Output::Stamp(_) => {}
                other => panic!("nothing else is to happen: {other:?}"),
            }
        }
        while let Some(conn) = self.shard.next_dirty() {
            if conn == self.publisher {
                self.shard.output_of(conn).clear();
                self.shard.on_written(conn);
            }
        }
    }

    /// Allocations of `rounds` rounds, and how many messages were delivered in them.
    fn allocations(&mut self, rounds: u32) -> (u64, u64) {
        let before = self.delivered;
        let counted = allocation_counter::measure(|| {
            for _ in 0..rounds {
                self.round();
            }
        });
        (counted.count_total, self.delivered - before)
    }
}

/// Tables that grow to a high-water mark may still do so once or twice.
const CONST: u64 = 20;

#[track_caller]
fn steady(mut bench: Bench, channels: u64) {
    bench.allocations(3_000);
    let (allocations, delivered) = bench.allocations(10_000);
    assert_eq!(delivered, 100_000 * channels);
    assert!(allocations <= CONST, "{allocations} allocations for {delivered} messages");
}

#[test]
fn publishing_delivering_and_finishing_allocates_nothing() {
    steady(Bench::new(&["c"], None), 1);
}

#[test]
fn a_topic_with_several_channels_allocates_nothing() {
    steady(Bench::new(&["a", "b", "c"], None), 3);
}

#[test]
fn a_topic_with_a_contract_allocates_nothing() {
    steady(Bench::new(&["c"], Some(harness::wait(200_000, 26))), 1);
}

#[test]
fn a_line_that_waits_allocates_nothing() {
    // Each round of ten messages in 100 microseconds finds a bucket that lets them go over the next rounds.
    let mut bench = Bench::new(&["c"], Some(harness::wait(100_000, 1)));
    bench.allocations(3_000);
    let (allocations, delivered) = bench.allocations(10_000);
    assert!(delivered.abs_diff(100_000) < 20, "{delivered}");
    assert!(allocations <= CONST, "{allocations} allocations for {delivered} messages");
}

#[test]
fn a_line_that_stands_still_keeps_one_timer() {
    let mut bench = Bench::new(&["c"], Some(harness::wait(0, 1)));
    bench.shard.on_admin(
        AdminRequest::SetTopicLimit(
            harness::topic_name("t"),
            Some((Contract { limit: hourly(), ..harness::wait(1, 1) }, Source::File)),
        ),
        bench.now,
    );
    bench.round();
    bench.publish.clear();
    client::put_pub(&mut bench.publish, "t", b"x");
    let held = allocation_counter::measure(|| {
        for _ in 0..50_000 {
            bench.round();
        }
    });
    // A message in line takes about 200 bytes with its body's slot; a timer for each look at the line would add to it.
    assert!(held.bytes_current < 50_000 * 330, "{} bytes", held.bytes_current);
}

/// A publisher on one shard and its topic on another.
struct Across {
    shards: [Shard; 2],
    now: tidegate_core::Instant,
    publisher: ConnId,
    consumer: ConnId,
    publish: Vec<u8>,
    answer: Vec<u8>,
    delivered: u64,
}

impl Across {
    fn new(contract: Option<Contract>) -> Self {
        let now = harness::START;
        let topic = |shard| {
            let mut names = (0..100).map(|number| format!("t{number}"));
            names.find(|name| tidegate_broker::machine::home_shard(name, 2) == shard).unwrap()
        };
        let shard =
            |shard| Shard::new(ShardConfig { shard, shards: 2, ..harness::config() }, now, harness::START_UNIX_NS);
        let mut shards = [shard(0), shard(1)];
        if let Some(contract) = contract {
            let topic = harness::topic_name(&topic(1));
            shards[1].on_admin(AdminRequest::SetTopicLimit(topic, Some((contract, Source::File))), now);
        }
        let mut connect = |shard: usize, said: &str| {
            let conn = shards[shard].on_connect("10.0.0.1:1".to_owned(), now);
            assert_eq!(shards[shard].on_bytes(conn, said.as_bytes(), now, now), said.len());
            conn
        };
        let consumer = connect(1, &format!("  V2SUB {} c\nRDY 2500\n", topic(1)));
        let publisher = connect(0, "  V2");
        let mut settled = Vec::new();
        client::put_pub(&mut settled, &topic(0), b"x");
        assert_eq!(shards[0].on_bytes(publisher, &settled, now, now), settled.len());
        let mut publish = Vec::new();
        for _ in 0..10 {
            client::put_pub(&mut publish, &topic(1), &[b'x'; 100]);
        }
        let answer = Vec::with_capacity(1 << 20);
        let mut across = Self { shards, now, publisher, consumer, publish, answer, delivered: 0 };
        across.settle();
        across
    }

    fn round(&mut self) {
        self.now += Duration::from_micros(100);
        self.shards[1].on_timeout(self.now);
        let used = self.shards[0].on_bytes(self.publisher, &self.publish, self.now, self.now);
        assert_eq!(used, self.publish.len());
        self.settle();
        self.answer.clear();
        let output = self.shards[1].output_of(self.consumer);
        let mut rest = &output[..];
        while let Some((size, _)) = rest.split_first_chunk::<4>() {
            let frame = 4 + u32::from_be_bytes(*size) as usize;
            if frame == MESSAGE_FRAME_BYTES {
                client::put_fin(&mut self.answer, rest[18..34].try_into().unwrap());
                self.delivered += 1;
            }
            rest = &rest[frame..];
        }
        output.clear();
        self.shards[1].on_written(self.consumer);
        assert_eq!(self.shards[1].on_bytes(self.consumer, &self.answer, self.now, self.now), self.answer.len());
        self.settle();
    }

    fn settle(&mut self) {
        for number in [0, 1, 0, 1] {
            self.shards[number].end_batch(self.now);
            while let Some(output) = self.shards[number].poll_output() {
                match output {
                    Output::Log(_) | Output::Notice(_) | Output::Stamp(_) => {}
                    Output::Peer { shard, message } => self.shards[shard].on_peer(message, self.now),
                    other => panic!("nothing else is to happen: {other:?}"),
                }
            }
            while let Some(conn) = self.shards[number].next_dirty() {
                if number == 0 {
                    self.shards[0].output_of(conn).clear();
                    self.shards[0].on_written(conn);
                }
            }
        }
    }
}

#[test]
fn publishing_to_another_shard_allocates_nothing() {
    steady_across(Across::new(None));
}

#[test]
fn publishing_to_a_contract_of_another_shard_allocates_nothing() {
    steady_across(Across::new(Some(harness::wait(200_000, 26))));
}

#[track_caller]
fn steady_across(mut across: Across) {
    let run = |across: &mut Across, rounds: u32| (0..rounds).for_each(|_| across.round());
    run(&mut across, 3_000);
    let before = across.delivered;
    let counted = allocation_counter::measure(|| run(&mut across, 10_000)).count_total;
    assert_eq!(across.delivered - before, 100_000);
    assert!(counted <= CONST, "{counted} allocations for 100000 messages");
}

fn hourly() -> tidegate_core::limit::Limit {
    tidegate_core::limit::Limit::new(tidegate_core::Rate::per(1, Duration::from_hours(1)), 1)
}

//! Random but valid sessions of many clients, with faults, and a count of every message.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_broker::machine::admin::{AdminRequest, Pause};
use tidegate_broker::machine::limiter::Contract;
use tidegate_broker::machine::shard::{QueuePolicy, ShardConfig};
use tidegate_core::rng::Rng;

use super::{Broker, Client, Message, Reply, SECOND, channel_name, ms, topic_name};

const TOPICS: [&str; 3] = ["a", "b", "c"];
const PUBLISHERS: usize = 4;
const CONSUMERS: usize = 5;

/// One thing that happens. The numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) kind: u8,
    pub(crate) who: u8,
    pub(crate) what: u8,
    pub(crate) amount: u16,
}

impl Step {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let [kind, who, what, low, high, ..] = rng.u64().to_be_bytes();
        Self { kind, who, what, amount: u16::from_be_bytes([low, high]) }
    }
}

pub(crate) struct Session {
    pub(crate) broker: Broker,
    publishers: Vec<Client>,
    consumers: Vec<Option<Client>>,
    /// Delivered and, as far as the clients know, unanswered.
    held: Vec<(Client, Message)>,
    published: u32,
    /// Bodies finished, and how often.
    finished: BTreeMap<String, u32>,
    finished_this_run: u64,
    held_at_start: u64,
}

/// A broker's settings, chosen by the bits of `seed`.
pub(crate) fn settings(seed: u64) -> ShardConfig {
    let mut rng = Rng::stream(seed, 1);
    let mut choose = |of: &[u64]| of[usize::try_from(rng.below(of.len() as u64)).unwrap()];
    let mut config = super::config();
    config.shards = usize::try_from(choose(&[1, 2, 3])).unwrap();
    config.mem_queue_size = usize::try_from(choose(&[0, 1, 5, 50, 10_000])).unwrap();
    config.max_queue_bytes = choose(&[200, 1 << 30]);
    config.line_bytes = choose(&[100, 1 << 20]);
    config.msg_timeout = SECOND;
    config.max_msg_timeout = SECOND * 3;
    config.queue_policy = [QueuePolicy::Overflow, QueuePolicy::BackPressure, QueuePolicy::Refuse]
        [usize::try_from(choose(&[0, 0, 1, 2])).unwrap()];
    config
}

impl Session {
    pub(crate) fn new(config: ShardConfig) -> Self {
        let mut broker = Broker::new(config);
        for topic in TOPICS {
            broker.create_channel(topic, "c");
        }
        let mut session = Self {
            broker,
            publishers: Vec::new(),
            consumers: vec![None; CONSUMERS],
            held: Vec::new(),
            published: 0,
            finished: BTreeMap::new(),
            finished_this_run: 0,
            held_at_start: 0,
        };
        session.connect_publishers();
        session
    }

    fn connect_publishers(&mut self) {
        self.publishers = (0..PUBLISHERS).map(|_| self.broker.connect()).collect();
    }

    pub(crate) fn apply(&mut self, step: Step) {
        let Step { kind, who, what, amount } = step;
        let topic = TOPICS[usize::from(what) % TOPICS.len()];
        match kind % 32 {
            0..=7 => self.publish(usize::from(who) % PUBLISHERS, topic, amount),
            8..=10 => self.subscribe(usize::from(who) % CONSUMERS, topic, amount % 20),
            11..=16 => self.answer(usize::from(who), what, amount),
            17 => self.crash(usize::from(who) % CONSUMERS),
            18..=20 => self.broker.advance(Duration::from_micros(u64::from(amount) * 20)),
            21 => self.broker.pause(ms(u64::from(amount % 50))),
            22 => self.broker.disk.delay = ms([0, 3, 40][usize::from(what) % 3]),
            23 => self.broker.disk.full = what.is_multiple_of(2),
            24 => self.broker.disk.unreadable = what.is_multiple_of(2),
            25 => self.pause_or_resume(topic, who, amount),
            26 => self.broker.limit(topic, contract(who, amount)),
            27 => self.broker.limit_channel(topic, "c", contract(who, amount)),
            28 => {
                if let Some(client) = self.consumers[usize::from(who) % CONSUMERS] {
                    self.broker.set_reading(client, what.is_multiple_of(2));
                }
            }
            29 => {
                let publisher = &mut self.publishers[usize::from(who) % PUBLISHERS];
                self.broker.disconnect(*publisher);
                *publisher = self.broker.connect();
            }
            30 => {
                if let Some(client) = self.consumers[usize::from(who) % CONSUMERS].take() {
                    self.broker.send(client, if what.is_multiple_of(2) { "CLS\n" } else { "RDY 0\n" });
                }
            }
            _ => {
                if amount.is_multiple_of(8) {
                    self.restart();
                }
            }
        }
        self.collect();
    }

    fn publish(&mut self, publisher: usize, topic: &str, amount: u16) {
        let count = 1 + amount % 7;
        let bodies: Vec<_> = (0..count).map(|n| format!("{topic}{}", self.published + u32::from(n))).collect();
        self.published += u32::from(count);
        let bytes = match amount % 3 {
            0 => super::put_many(topic, &bodies),
            1 => bodies.iter().flat_map(|body| super::put(topic, body)).collect(),
            _ => bodies.iter().flat_map(|body| super::put_deferred(topic, u64::from(amount % 500), body)).collect(),
        };
        self.broker.send(self.publishers[publisher], bytes);
        for reply in self.broker.replies(self.publishers[publisher]) {
            match reply {
                Reply::Response(_) => {}
                Reply::Error(text) => assert!(text.contains("PUB_FAILED"), "{text}"),
                Reply::Message(_) => panic!("a publisher gets no messages"),
            }
        }
    }

    fn subscribe(&mut self, consumer: usize, topic: &str, ready: u16) {
        if let Some(client) = self.consumers[consumer] {
            self.broker.send(client, format!("RDY {ready}\n"));
            return;
        }
        let client = self.broker.connect();
        self.broker.send(client, format!("SUB {topic} c\nRDY {ready}\n"));
        self.consumers[consumer] = Some(client);
    }

    fn answer(&mut self, which: usize, what: u8, amount: u16) {
        for _ in 0..=amount % 6 {
            if self.held.is_empty() {
                return;
            }
            let index = which % self.held.len();
            match what % 5 {
                0..=2 => {
                    let (client, message) = self.held.swap_remove(index);
                    self.finish(client, &message);
                }
                3 => {
                    let (client, message) = self.held.swap_remove(index);
                    self.broker.send(client, super::req(&message, u64::from(amount % 700)));
                }
                _ => {
                    let (client, message) = &self.held[index];
                    let bytes = super::touch(message);
                    self.broker.send(*client, bytes);
                }
            }
            self.collect();
        }
    }

    fn finish(&mut self, client: Client, message: &Message) {
        // Whether it counted is seen in the broker's own count: who does not read sees no error.
        let before = self.finished_by_the_broker();
        self.broker.send(client, super::fin(message));
        if self.finished_by_the_broker() > before {
            *self.finished.entry(message.body.clone()).or_default() += 1;
            self.finished_this_run += 1;
        }
    }

    fn finished_by_the_broker(&mut self) -> u64 {
        self.broker.topics().iter().flat_map(|topic| &topic.channels).map(|channel| channel.finished_total).sum()
    }

    fn crash(&mut self, consumer: usize) {
        if let Some(client) = self.consumers[consumer].take() {
            self.broker.disconnect(client);
        }
    }

    fn pause_or_resume(&mut self, topic: &str, who: u8, amount: u16) {
        let pause = if amount.is_multiple_of(2) { Pause::Paused } else { Pause::Flowing };
        self.broker.order(if who.is_multiple_of(2) {
            AdminRequest::PauseTopic(topic_name(topic), pause)
        } else {
            AdminRequest::PauseChannel(topic_name(topic), channel_name("c"), pause)
        });
    }

    /// What the clients have got.
    fn collect(&mut self) {
        let broker = &mut self.broker;
        for client in self.consumers.iter().flatten() {
            let messages = broker.replies(*client).into_iter().filter_map(|reply| match reply {
                Reply::Message(message) => Some((*client, message)),
                _ => None,
            });
            self.held.extend(messages);
        }
    }

    fn restart(&mut self) {
        self.broker.disk.full = false;
        self.broker.disk.unreadable = false;
        self.broker.advance(SECOND);
        self.broker.disk.delay = Duration::ZERO;
        self.broker.advance(SECOND);
        self.held_at_start = self.in_the_broker();
        self.finished_this_run = 0;
        let hash = self.broker.trace_hash;
        let broker = std::mem::take(&mut self.broker);
        self.broker = broker.restart();
        self.broker.trace_hash ^= hash;
        self.consumers = vec![None; CONSUMERS];
        self.held.clear();
        self.connect_publishers();
    }

    /// Messages that the broker holds, wherever they are.
    pub(crate) fn in_the_broker(&mut self) -> u64 {
        let topics = self.broker.topics();
        let channels = topics.iter().flat_map(|topic| &topic.channels);
        topics.iter().map(|topic| topic.depth).sum::<u64>()
            + channels.map(|channel| channel.depth + channel.in_flight + channel.deferred).sum::<u64>()
    }

    /// Every message that was taken is finished or in the broker, and none was finished twice.
    pub(crate) fn check(&mut self) {
        let taken: u64 = self.broker.topics().iter().map(|topic| topic.offered_total - topic.refused_total).sum();
        let now = self.in_the_broker();
        assert_eq!(now + self.finished_this_run, self.held_at_start + taken, "held and finished, came with and taken");
        let twice = self.finished.iter().find(|(_, times)| **times > 1);
        assert_eq!(twice, None, "a message is finished once");
    }

    /// All faults end; consumers take everything there is. Answers how many messages were finished in all.
    pub(crate) fn finish_all(&mut self) -> usize {
        for consumer in 0..CONSUMERS {
            self.crash(consumer);
        }
        self.held.clear();
        (self.broker.disk.full, self.broker.disk.unreadable, self.broker.disk.delay) = (false, false, Duration::ZERO);
        for topic in TOPICS {
            self.broker.limit(topic, None);
            self.broker.limit_channel(topic, "c", None);
            self.pause_or_resume(topic, 0, 1);
            self.pause_or_resume(topic, 1, 1);
        }
        for (consumer, topic) in TOPICS.into_iter().enumerate() {
            self.subscribe(consumer, topic, 100);
        }
        for _ in 0..1_000 {
            self.broker.advance(SECOND / 2);
            self.collect();
            for (client, message) in std::mem::take(&mut self.held) {
                self.finish(client, &message);
            }
            self.collect();
            if self.held.is_empty() && self.in_the_broker() == 0 {
                self.check();
                return self.finished.len();
            }
        }
        panic!("{} messages are stuck: {:?}", self.in_the_broker(), self.broker.topics());
    }
}

fn contract(who: u8, amount: u16) -> Option<Contract> {
    let (rate, burst) = (1 + u64::from(amount) % 500, 1 + u64::from(amount) % 9);
    match who % 4 {
        0 => Some(super::refuse(rate, burst)),
        1 => None,
        _ => Some(super::wait(rate, burst)),
    }
}

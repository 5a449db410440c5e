//! A topic that is spread: its publishers stay on several shards, each with a share of its limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{
    Broker, Client, Reply, SECOND, fin, ms, numbered, put, put_deferred, put_many, refuse, topic_name, wait,
};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Pause, Recording};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::limiter::{Contract, Mode, Unit};
use tidegate_broker::machine::parts::{OnLapse, PartGrant, PartOrder, PartStep};
use tidegate_broker::machine::shard::{QueuePolicy, ShardConfig};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate, Rng};

const TOPIC: &str = "wide";

fn spread(shards: usize, change: impl FnOnce(&mut ShardConfig)) -> Broker {
    Broker::with(|config| {
        (config.shards, config.spread) = (shards, [topic_name(TOPIC)].into());
        change(config);
    })
}

fn home(shards: usize) -> usize {
    home_shard(TOPIC, shards)
}

/// A publisher on `shard`.
fn publisher(broker: &mut Broker, shard: usize) -> Client {
    let client = broker.raw_on(shard);
    broker.send(client, "  V2");
    client
}

/// A publisher on `shard`, which is not the home: it has published, so that lanes are of use.
fn guest(broker: &mut Broker, shard: usize) -> Client {
    let client = publisher(broker, shard);
    broker.publish(client, TOPIC, "first");
    client
}

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

fn lanes(broker: &mut Broker) -> u64 {
    broker.topic(TOPIC).lanes
}

/// Two shards, a consumer, a publisher beside the home, and its lane with a share of `contract`.
fn with_a_lane(contract: Contract, change: impl FnOnce(&mut ShardConfig)) -> (Broker, Client, Client) {
    let mut broker = spread(2, change);
    broker.limit(TOPIC, contract);
    let consumer = broker.subscribe(TOPIC, "c", 2_500);
    let guest = guest(&mut broker, 1 - home(2));
    assert_eq!((broker.bodies(consumer), lanes(&mut broker)), (vec!["first".to_owned()], 1));
    (broker, consumer, guest)
}

/// When messages came, after `start`.
fn times(broker: &mut Broker, consumer: Client, start: Instant) -> Vec<Duration> {
    broker.messages(consumer).iter().map(|message| message.at - start).collect()
}

#[test]
fn publishers_stay_where_they_are_with_a_limit_or_without() {
    let mut broker = spread(3, |_| {});
    let consumer = broker.subscribe(TOPIC, "c", 100);
    let publishers = [0, 1, 2].map(|shard| publisher(&mut broker, shard));
    for contract in [None, Some(wait(1_000, 30))] {
        broker.limit(TOPIC, contract);
        for (shard, publisher) in publishers.into_iter().enumerate() {
            broker.publish(publisher, TOPIC, "m");
            assert_eq!(broker.shard_of(publisher), Some(shard));
        }
        assert_eq!(broker.bodies(consumer).len(), 3);
        assert_eq!(lanes(&mut broker), if contract.is_some() { 2 } else { 0 });
    }
    // Another topic's publishers go to its shard.
    let other = publisher(&mut broker, 0);
    broker.publish(other, "t3", "m");
    assert_eq!(broker.shard_of(other), Some(home_shard("t3", 3)));
}

#[test]
fn a_message_waits_for_its_token_in_its_lane() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 10), |_| {});
    broker.advance(ms(100));
    let start = broker.now;
    broker.send(guest, put_many(TOPIC, &numbered(20)));
    assert_eq!(broker.replies(guest), [ok()]);
    let snapshot = broker.topic(TOPIC);
    assert_eq!((snapshot.depth, snapshot.waiting), (10, 10), "the home has lent what it had");
    assert!(snapshot.limit.unwrap().tokens < 1.0);
    broker.advance(SECOND);
    // Never more than the limit, and no less though one shard is idle.
    let times = times(&mut broker, consumer, start);
    assert_eq!(times.len(), 20);
    for (index, time) in times.iter().enumerate() {
        assert!(*time >= ms((index as u64 + 1).saturating_sub(10)), "{index}: {times:?}");
    }
    assert!(times[19] <= ms(14), "{times:?}");
    let snapshot = broker.topic(TOPIC);
    assert_eq!((snapshot.depth, snapshot.offered_total, snapshot.admitted_total), (0, 21, 21));
    assert!(snapshot.access_delay_us.max >= 9_000.0, "{snapshot:?}");
}

#[test]
fn the_shares_are_as_fast_as_the_limit_when_one_shard_has_all_the_load() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 26), |_| {});
    broker.delay_peers(Duration::from_micros(100), 1);
    for _ in 0..10 {
        broker.send(guest, put_many(TOPIC, &numbered(110)));
        broker.advance(ms(100));
    }
    let passed = broker.messages(consumer).len();
    assert!((1_000..=1_026).contains(&passed), "{passed} of 1,000 a second");
}

#[test]
fn what_cannot_be_shared_out_is_gated_at_home() {
    // A message dearer than a share would add to the whole.
    let bytes = Contract { unit: Unit::Bytes, ..wait(1 << 20, (8 << 20) - 1) };
    // A share would be no more than what is never lent.
    let shallow = wait(1_000, 3);
    let shadow = Contract { mode: Mode::Shadow, ..wait(1_000, 10) };
    for (contract, error) in
        [(refuse(1, 1), true), (shadow, false), (bytes, false), (wait(0, 10), false), (shallow, false)]
    {
        let mut broker = spread(2, |_| {});
        broker.limit(TOPIC, contract);
        broker.create_channel(TOPIC, "c");
        let guest = guest(&mut broker, 1 - home(2));
        broker.send(guest, put(TOPIC, "m"));
        match broker.replies(guest).as_slice() {
            [Reply::Error(text)] => assert!(error && text.starts_with("E_PUB_FAILED PUB failed rate limit"), "{text}"),
            replies => assert!(!error && *replies == [ok()], "{replies:?}"),
        }
        assert_eq!(lanes(&mut broker), 0);
    }
}

#[test]
fn shares_of_bytes_are_of_more_than_any_message() {
    let bytes = Contract { unit: Unit::Bytes, ..wait(100_000, 40_000) };
    let (mut broker, consumer, guest) = with_a_lane(bytes, |config| config.max_msg_size = 5_000);
    let body = "x".repeat(5_000);
    broker.advance(ms(10));
    let start = broker.now;
    broker.send(guest, put_many(TOPIC, &[&body; 20]));
    broker.advance(SECOND * 2);
    let times = times(&mut broker, consumer, start);
    assert_eq!((times.len(), lanes(&mut broker)), (20, 1));
    for (index, time) in times.iter().enumerate() {
        let sent = 5_000 * (index as u64 + 1);
        assert!(*time >= Duration::from_micros(10 * sent.saturating_sub(40_000)), "{index}: {times:?}");
    }
    assert!(times[19] <= ms(700), "{times:?}");
}

#[test]
fn deferred_messages_take_their_token_at_home() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 10), |_| {});
    broker.send(guest, put_deferred(TOPIC, 50, "late"));
    assert_eq!(broker.replies(guest), [ok()]);
    broker.advance(ms(49));
    assert_eq!(broker.bodies(consumer), [""; 0]);
    broker.advance(ms(1));
    assert_eq!(broker.bodies(consumer), ["late"]);
}

#[test]
fn nothing_passes_in_a_pause_and_nothing_is_lost_in_one() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 10), |_| {});
    broker.send(guest, put_many(TOPIC, &numbered(30)));
    broker.advance(ms(5));
    let before = broker.bodies(consumer).len();
    broker.order(AdminRequest::PauseTopic(topic_name(TOPIC), Pause::Paused));
    broker.send(guest, put_many(TOPIC, &["30", "31"]));
    broker.advance(SECOND);
    assert_eq!((broker.bodies(consumer), lanes(&mut broker)), (Vec::new(), 0));
    assert_eq!(broker.topic(TOPIC).depth, 32 - before as u64);
    let start = broker.now;
    broker.order(AdminRequest::PauseTopic(topic_name(TOPIC), Pause::Flowing));
    broker.advance(SECOND);
    let messages = broker.messages(consumer);
    let bodies: Vec<_> = messages.iter().map(|message| message.body.clone()).collect();
    assert_eq!(bodies, numbered(32)[before..]);
    assert_eq!(messages.iter().filter(|message| message.at == start).count(), 10);
}

#[test]
fn a_smaller_limit_holds_at_once_and_mints_nothing() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 100), |_| {});
    broker.delay_peers(ms(1), 3);
    broker.send(guest, put_many(TOPIC, &numbered(1_000)));
    broker.advance(ms(10));
    broker.messages(consumer);
    broker.limit(TOPIC, wait(10, 4));
    broker.advance(SECOND);
    let passed = broker.messages(consumer).len();
    // What was on its way at that instant had been released under the old limit, or pays again.
    assert!(passed <= 4 + 10, "{passed}");
    broker.limit(TOPIC, None);
    broker.advance(SECOND);
    let passed = broker.messages(consumer).len();
    assert!((8..=14).contains(&passed), "what waits goes at the pace of then: {passed}");
    broker.order(AdminRequest::ReleaseLine(topic_name(TOPIC)));
    assert_eq!(broker.topic(TOPIC).depth, 0, "what waited has gone");
}

#[test]
fn a_full_lane_holds_its_publishers_back() {
    let (mut broker, consumer, guest) = with_a_lane(wait(10, 4), |config| config.mem_queue_size = 8);
    for number in 0..20 {
        broker.send(guest, put(TOPIC, &number.to_string()));
    }
    let answered = broker.replies(guest).len();
    // Half of the bound, and what had its token at once.
    assert!((4..=8).contains(&answered), "{answered}");
    assert_eq!(broker.topic(TOPIC).blocked_publishers, 1);
    broker.advance(SECOND * 3);
    assert_eq!((broker.replies(guest).len(), broker.bodies(consumer)), (20 - answered, numbered(20)));
}

#[test]
fn a_channel_without_room_in_memory_gets_what_lanes_had_from_its_log() {
    let (mut broker, consumer, guest) = with_a_lane(wait(10_000, 100), |config| config.mem_queue_size = 30);
    broker.disconnect(consumer);
    for number in 0..200 {
        broker.send(guest, put(TOPIC, &number.to_string()));
        broker.advance(ms(1));
    }
    assert_eq!((broker.replies(guest).len(), lanes(&mut broker)), (200, 0));
    assert!(broker.channel(TOPIC, "c").backend_depth > 100);
    let consumer = broker.subscribe(TOPIC, "c", 1_000);
    // The first of all was not finished.
    assert_eq!(broker.bodies(consumer)[1..], numbered(200));
}

#[test]
fn deleting_and_emptying_drop_what_waits_in_lanes_as_well() {
    for empties in [true, false] {
        let (mut broker, consumer, guest) = with_a_lane(wait(100, 4), |_| {});
        broker.send(guest, put_many(TOPIC, &numbered(50)));
        broker.advance(ms(20));
        broker.messages(consumer);
        let name = topic_name(TOPIC);
        broker.order(if empties { AdminRequest::EmptyTopic(name) } else { AdminRequest::DeleteTopic(name) });
        broker.replies(guest);
        let consumer = if empties { consumer } else { broker.subscribe(TOPIC, "c", 100) };
        let start = broker.now;
        broker.send(guest, put_many(TOPIC, &["a", "b", "c"]));
        broker.advance(SECOND);
        let messages = broker.messages(consumer);
        assert_eq!(messages.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(messages[2].at >= start + ms(20), "the bucket was empty, and is remembered");
    }
}

#[test]
fn a_clean_stop_saves_what_waits_in_lanes_and_what_is_left_of_their_tokens() {
    for delay_us in [0, 300] {
        let (mut broker, consumer, guest) = with_a_lane(wait(100, 40), |_| {});
        if delay_us > 0 {
            broker.delay_peers(Duration::from_micros(delay_us), delay_us);
        }
        broker.send(guest, put_many(TOPIC, &numbered(100)));
        broker.advance(ms(100));
        assert_eq!(broker.replies(guest), [ok()]);
        let mut got = broker.bodies(consumer);
        assert!(got.len() >= 20, "{}", got.len());
        let mut broker = broker.restart();
        let start = broker.now;
        let consumer = broker.subscribe(TOPIC, "c", 2_500);
        broker.advance(ms(1));
        // In the second between there were at most a hundred tokens, and no more than forty.
        let messages = broker.messages(consumer);
        // What was in flight comes again, and is in the channel already.
        let again: Vec<_> = messages.iter().filter(|message| message.attempts > 1).map(|it| it.body.clone()).collect();
        assert_eq!(again[1..], got, "the first of all among them");
        let fresh: Vec<_> = messages.into_iter().filter(|message| message.attempts == 1).collect();
        // And what had its token as the broker stopped.
        assert!(fresh.len() <= 40 + 2, "{}", fresh.len());
        got.extend(fresh.into_iter().map(|message| message.body));
        broker.advance(SECOND * 2);
        let rest = broker.messages(consumer);
        assert!(rest.iter().all(|message| message.at > start));
        got.extend(rest.into_iter().map(|message| message.body));
        assert_eq!(got, numbered(100));
    }
}

#[test]
fn a_stop_at_any_moment_loses_nothing() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut broker = spread(3, |_| {});
        broker.limit(TOPIC, wait(1_000, 12));
        broker.create_channel(TOPIC, "c");
        broker.delay_peers(Duration::from_micros(1 + rng.below(2_000)), seed);
        let publishers = [0, 1, 2].map(|shard| publisher(&mut broker, shard));
        let (mut accepted, sent) = (0, rng.below(40));
        for _ in 0..sent {
            let from = publishers[usize::try_from(rng.below(3)).unwrap()];
            broker.send(from, put(TOPIC, "m"));
            broker.advance(Duration::from_micros(rng.below(500)));
        }
        broker.drain_only();
        while !broker.is_drained() {
            let next = broker.next_timeout().expect("a hop, or a lease");
            broker.advance_to(next);
        }
        for publisher in publishers {
            accepted += broker.replies(publisher).iter().filter(|reply| **reply == ok()).count() as u64;
        }
        let mut broker = broker.restart();
        broker.advance(SECOND);
        // Who was cut off may not have heard that it was accepted.
        let depth = broker.channel(TOPIC, "c").depth;
        assert!((accepted..=sent).contains(&depth), "seed {seed}: {accepted} of {sent} accepted, {depth} there");
    }
}

#[test]
fn who_subscribes_waits_until_what_it_published_has_left_its_lane() {
    let (mut broker, consumer, guest) = with_a_lane(wait(100, 4), |_| {});
    broker.send(guest, put_many(TOPIC, &numbered(9)));
    broker.replies(guest);
    let (other, there) = ("u".to_owned() + TOPIC, home(2));
    broker.send(guest, format!("SUB {other} c\n"));
    assert_eq!((broker.replies(guest), broker.shard_of(guest)), (vec![], Some(1 - there)));
    broker.send(guest, put(TOPIC, "9"));
    broker.advance(SECOND);
    assert_eq!((broker.replies(guest), broker.bodies(consumer)), (vec![ok(), ok()], numbered(10)));
}

#[test]
fn a_shard_that_lends_does_not_lapse_into_minting() {
    // A second and more without a word between shards: loans end, and the sum is the limit again.
    let (mut broker, consumer, guest) = with_a_lane(wait(100, 20), |_| {});
    broker.send(guest, put_many(TOPIC, &numbered(15)));
    broker.hold_peers = true;
    broker.advance(SECOND * 3);
    broker.hold_peers = false;
    broker.settle();
    broker.messages(consumer);
    let start = broker.now;
    broker.send(guest, put_many(TOPIC, &numbered(100)));
    broker.advance(ms(100));
    let passed = times(&mut broker, consumer, start).len();
    assert!(passed <= 20 + 10, "{passed}");
}

/// What one run under random load does.
struct Chaos {
    broker: Broker,
    rng: Rng,
    consumer: Client,
    publishers: Vec<(Client, u64)>,
    got: BTreeMap<u64, Vec<u64>>,
    /// From when on which limit holds.
    limits: Vec<(Instant, Limit)>,
    was_open: u64,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let shards = 2 + usize::try_from(rng.below(3)).unwrap();
        let mut broker = spread(shards, |config| {
            config.mem_queue_size = [20, 200, 10_000][usize::try_from(rng.below(3)).unwrap()];
            config.queue_policy = if rng.chance(0.3) { QueuePolicy::BackPressure } else { QueuePolicy::Overflow };
            config.line_bytes = if rng.chance(0.3) { 4_000 } else { 1 << 20 };
        });
        let most_us = [1, 50, 300, 3_000][usize::try_from(rng.below(4)).unwrap()];
        let consumer = broker.subscribe(TOPIC, "c", 2_500);
        let publishers = (0..2 * shards).map(|number| (publisher(&mut broker, number % shards), 0)).collect();
        broker.order(AdminRequest::Record(topic_name(TOPIC), Recording::On));
        broker.delay_peers(Duration::from_micros(most_us), seed);
        Self { broker, rng, consumer, publishers, got: BTreeMap::new(), limits: Vec::new(), was_open: 0 }
    }

    fn limit(&mut self) {
        let contract = wait(1_000 + self.rng.below(4_000), 5 + self.rng.below(60));
        self.limits.push((self.broker.now, contract.limit));
        self.broker.limit(TOPIC, contract);
    }

    fn act(&mut self, edits: bool) {
        let number = self.rng.below(self.publishers.len() as u64);
        let (client, sent) = self.publishers[usize::try_from(number).unwrap()];
        let count = 1 + if self.rng.chance(0.1) { self.rng.below(30) } else { 0 };
        let bodies: Vec<String> = (sent..sent + count).map(|at| format!("{number} {at}")).collect();
        self.publishers[usize::try_from(number).unwrap()].1 += count;
        let bytes = if self.rng.chance(0.5) {
            put_many(TOPIC, &bodies)
        } else {
            bodies.iter().flat_map(|body| put(TOPIC, body)).collect()
        };
        self.broker.send(client, bytes);
        let paused = |paused| AdminRequest::PauseTopic(topic_name(TOPIC), paused);
        match self.rng.below(400) {
            0..8 if edits => {
                // What is released in this instant is released under the limit of before.
                self.broker.advance(Duration::from_nanos(1));
                self.limit();
                // Often two in one instant: what the first cuts off is gone, wherever it is.
                if self.rng.chance(0.5) {
                    self.limit();
                }
            }
            8 => self.broker.order(paused(Pause::Paused)),
            9..30 => self.broker.order(paused(Pause::Flowing)),
            _ => {}
        }
        self.was_open += lanes(&mut self.broker);
        let span = Duration::from_micros(self.rng.below(900));
        self.pass(span);
    }

    fn pass(&mut self, span: Duration) {
        self.broker.advance(span);
        let messages = self.broker.messages(self.consumer);
        let fins: Vec<u8> = messages.iter().flat_map(fin).collect();
        self.broker.send(self.consumer, fins);
        for message in messages {
            let (publisher, number) = message.body.split_once(' ').unwrap();
            self.got.entry(publisher.parse().unwrap()).or_default().push(number.parse().unwrap());
        }
    }

    /// Everything arrives, once and in order for each publisher, and no faster than the limits of the time.
    fn end(mut self, seed: u64) -> u64 {
        self.broker.order(AdminRequest::PauseTopic(topic_name(TOPIC), Pause::Flowing));
        for _ in 0..40 {
            self.pass(SECOND / 2);
        }
        for (number, (client, sent)) in self.publishers.iter().enumerate() {
            let got = self.got.remove(&(number as u64)).unwrap_or_default();
            assert_eq!(got, (0..*sent).collect::<Vec<_>>(), "seed {seed}, publisher {number}");
            let replies = self.broker.replies(*client);
            assert!(replies.iter().all(|reply| *reply == ok() || matches!(reply, Reply::Response(_))), "{replies:?}");
        }
        self.broker.order(AdminRequest::Record(topic_name(TOPIC), Recording::Off));
        let mut releases: Vec<Instant> = self.broker.passages.iter().map(|passage| passage.release).collect();
        releases.sort_unstable();
        let mut limits = self.limits.iter().copied();
        let (began, limit) = limits.next().expect("there is one");
        let mut limits = limits.peekable();
        let mut judge = TokenBucket::new(limit, began);
        for release in releases {
            while let Some((from, limit)) = limits.next_if(|(from, _)| *from <= release) {
                judge.set_limit(limit, from);
            }
            assert_eq!(judge.try_take(1, release), Ok(()), "seed {seed} at {:?}", release - began);
        }
        self.was_open
    }
}

fn chaos(seeds: std::ops::Range<u64>, edits: bool) {
    let mut was_open = 0;
    for seed in seeds {
        let mut run = Chaos::new(seed);
        run.limit();
        for _ in 0..400 {
            run.act(edits);
        }
        was_open += run.end(seed);
    }
    assert!(was_open > 1_000, "lanes are at work");
}

#[test]
fn all_shares_together_keep_the_law_and_the_order_and_lose_nothing() {
    chaos(0..60, false);
}

#[test]
fn the_same_while_the_limit_is_edited() {
    chaos(1_000..1_060, true);
}

#[test]
fn a_part_of_the_limit_is_gated_at_home() {
    let (mut broker, consumer, guest) = with_a_lane(wait(1_000, 10), |_| {});
    let limit = Limit::new(Rate::per_s(100), 4);
    let part = PartGrant { topic: topic_name(TOPIC), limit, unit: Unit::Messages, split: None };
    let until = broker.now + SECOND * 9;
    let mut order = PartOrder {
        revision: 1,
        lease: SECOND * 9,
        until,
        on_lapse: OnLapse::Local,
        parts: [part].into(),
        step: PartStep::Check,
    };
    for step in [PartStep::Check, PartStep::Shrink, PartStep::All] {
        order.step = step;
        for reply in broker.ask_all(&AdminRequest::PutParts(order.clone())) {
            assert!(matches!(reply, AdminReply::Parts(_)), "{reply:?}");
        }
    }
    assert_eq!(lanes(&mut broker), 0);
    let start = broker.now;
    broker.send(guest, put_many(TOPIC, &numbered(10)));
    broker.advance(SECOND);
    let times = times(&mut broker, consumer, start);
    assert_eq!((times[3], times[4], times[9]), (ms(0), ms(10), ms(60)));
    assert_eq!(lanes(&mut broker), 0);
}

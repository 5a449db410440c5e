//! Contracts of topics and channels: exact, in order, and changed while they are in force.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{
    Broker, Client, Reply, SECOND, ms, numbered, over_http, put, put_deferred, put_many, refuse, topic_name, wait,
};
use tidegate_broker::machine::Passage;
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Pause, PublishRefused, Recording};
use tidegate_broker::machine::limiter::{Contract, Mode, Unit};
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};

/// What a message with a small body takes in a line, bookkeeping included.
const LEAST_BYTES: u64 = 160;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// A broker, a publisher, and a subscriber to everything in `t`.
fn ready() -> (Broker, Client, Client) {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2500);
    let publisher = broker.connect();
    (broker, publisher, consumer)
}

/// When each message came, since `from`, and its body.
fn arrivals(broker: &mut Broker, consumer: Client, from: Instant) -> Vec<(Duration, String)> {
    broker.messages(consumer).into_iter().map(|message| (message.at - from, message.body)).collect()
}

fn times(broker: &mut Broker, consumer: Client, from: Instant) -> Vec<Duration> {
    arrivals(broker, consumer, from).into_iter().map(|(at, _)| at).collect()
}

#[test]
fn a_message_is_accepted_at_once_and_waits_in_order_for_its_token() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 2));
    let start = broker.now;
    for body in numbered(5) {
        broker.publish(publisher, "t", &body);
    }
    assert_eq!((broker.topic("t").waiting, broker.topic("t").waiting_bytes), (3, 3 * LEAST_BYTES));
    broker.advance(SECOND);
    let expected: Vec<_> = [0, 0, 1, 2, 3].into_iter().zip(0..).map(|(at, body)| (ms(at), format!("{body}"))).collect();
    assert_eq!(arrivals(&mut broker, consumer, start), expected);
    let topic = broker.topic("t");
    assert_eq!((topic.offered_total, topic.admitted_total, topic.delayed_total, topic.waiting), (5, 5, 3, 0));
}

#[test]
fn each_message_of_a_batch_takes_a_token() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 2));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(4)));
    assert_eq!(broker.replies(publisher).len(), 1);
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 1, 2].map(ms));
}

#[test]
fn a_contract_in_bytes_charges_bodies() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", Contract { unit: Unit::Bytes, ..wait(1_000, 100) });
    let start = broker.now;
    for length in [60, 60, 10, 500, 10] {
        broker.publish(publisher, "t", &"x".repeat(length));
    }
    broker.advance(SECOND * 5);
    // 100 in the bucket; 20 short, 30 short; then 500 are more than it holds: they wait for all of it and pay in full.
    assert_eq!(times(&mut broker, consumer, start), [0, 20, 30, 530, 540].map(ms));
}

#[test]
fn stamps_of_several_connections_are_merged_in_order() {
    let (mut broker, first, consumer) = ready();
    let second = broker.connect();
    broker.limit("t", wait(1_000, 1));
    broker.advance(ms(10));
    let start = broker.now;
    broker.pause(ms(3));
    // The first connection is read first, though its bytes came last.
    broker.give(first, put("t", "late"), start + us(300));
    broker.give(first, put("t", "later"), start + us(400));
    broker.give(second, put("t", "early"), start + us(100));
    broker.settle();
    broker.advance(SECOND);
    let order: Vec<_> =
        broker.messages(consumer).into_iter().map(|message| (message.body, message.at - start)).collect();
    // Tokens at 0.1, 1.1 and 2.1 ms: all were there when the reader came at 3 ms.
    assert_eq!(order, [("early".into(), ms(3)), ("late".into(), ms(3)), ("later".into(), ms(3))]);
    assert_eq!(broker.topic("t").delayed_total, 2, "by 0.8 and 1.7 ms, says the bucket");
}

#[test]
fn a_trace_tells_the_delay_of_the_reader_from_that_of_the_bucket() {
    let (mut broker, publisher, _) = ready();
    broker.limit("t", wait(1_000, 1));
    broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
    let start = broker.now;
    broker.pause(us(2_500));
    broker.give(publisher, put_many("t", &numbered(4)), start);
    broker.settle();
    broker.advance(SECOND);
    broker.order(AdminRequest::Record(topic_name("t"), Recording::Off));
    let times = |passage: &Passage| {
        [passage.arrival, passage.read, passage.release, passage.passed].map(|at| (at - start).as_micros())
    };
    let passages: Vec<_> = broker.passages.iter().map(times).collect();
    assert_eq!(
        passages,
        [[0, 2_500, 0, 2_500], [0, 2_500, 1_000, 2_500], [0, 2_500, 2_000, 2_500], [0, 2_500, 3_000, 3_000]],
        "only the last one waits for its token when it has been read"
    );
}

#[test]
fn a_late_look_does_not_push_later_messages_back() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 1));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.pause(us(1_700));
    broker.advance(Duration::ZERO);
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [0, 1_700, 2_000, 3_000].map(us));
}

#[test]
fn a_refusal_names_a_time_that_comes_true() {
    let (mut broker, publisher, _) = ready();
    broker.limit("t", refuse(3, 2)); // A third of a second is no whole number of microseconds.
    broker.publish(publisher, "t", "0");
    broker.publish(publisher, "t", "1");
    broker.send(publisher, put("t", "2"));
    assert_eq!(broker.error(publisher), "E_PUB_FAILED PUB failed rate limit of topic exceeded, retry in 333.334 ms");
    assert!(!broker.is_closed(publisher));
    let publish = |broker: &mut Broker| broker.admin(over_http("t", &["2"], None));
    let AdminReply::Refused(PublishRefused::Throttled { retry_after }) = publish(&mut broker) else {
        panic!("there is no token");
    };
    assert_eq!(retry_after, Duration::from_nanos(333_333_334));
    broker.advance_to(broker.now.plus_nanos(333_333_333));
    assert!(matches!(publish(&mut broker), AdminReply::Refused(_)));
    broker.advance(Duration::from_nanos(1));
    assert!(matches!(publish(&mut broker), AdminReply::Done));
    let topic = broker.topic("t");
    assert_eq!((topic.offered_total, topic.admitted_total, topic.refused_total), (6, 3, 3));
}

#[test]
fn a_batch_is_refused_whole() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", refuse(10, 5));
    broker.send(publisher, put_many("t", &numbered(3)));
    broker.replies(publisher);
    broker.send(publisher, put_many("t", &numbered(3)));
    assert_eq!(broker.error(publisher), "E_MPUB_FAILED MPUB failed rate limit of topic exceeded, retry in 100.000 ms");
    broker.send(publisher, put_many("t", &numbered(6)));
    assert_eq!(broker.error(publisher), "E_MPUB_FAILED MPUB failed cost 6 exceeds the topic's burst of 5");
    assert_eq!(broker.messages(consumer).len(), 3);
    broker.publish(publisher, "t", "two are left");
}

#[test]
fn shadow_counts_and_touches_nothing() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", Contract { mode: Mode::Shadow, ..refuse(1_000, 2) });
    let start = broker.now;
    for body in numbered(5) {
        broker.publish(publisher, "t", &body);
    }
    assert_eq!(times(&mut broker, consumer, start), [Duration::ZERO; 5]);
    let topic = broker.topic("t");
    assert_eq!((topic.shadow_total, topic.refused_total, topic.delayed_total, topic.waiting), (3, 0, 0, 0));
}

#[test]
fn a_live_change_keeps_tokens_line_and_order() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 2));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(8)));
    broker.advance(us(2_500)); // 0 to 3 have gone; half a token is there.
    broker.limit("t", wait(100, 50)); // A deeper bucket does not fill by itself.
    broker.send(publisher, put("t", "8"));
    broker.advance(ms(10)); // 4 went 5 ms after the change, and half a token is there again.
    broker.limit("t", wait(10_000, 1));
    broker.advance(SECOND);
    let expected = [0, 0, 1_000, 2_000, 7_500, 12_550, 12_650, 12_750, 12_850].map(us);
    let got = arrivals(&mut broker, consumer, start);
    assert_eq!(got.iter().map(|(at, _)| *at).collect::<Vec<_>>(), expected);
    assert_eq!(got.into_iter().map(|(_, body)| body).collect::<Vec<_>>(), numbered(9));
}

#[test]
fn changing_a_limit_back_and_forth_mints_nothing() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(10, 5));
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!((broker.messages(consumer).len(), broker.replies(publisher).len()), (5, 1));
    for _ in 0..100 {
        broker.limit("t", wait(10, 100));
        broker.limit("t", wait(10, 5));
    }
    broker.publish(publisher, "t", "x");
    assert_eq!(broker.messages(consumer).len(), 0);
    broker.advance(ms(100));
    assert_eq!(broker.messages(consumer).len(), 1);
}

#[test]
fn a_line_goes_on_at_its_pace_when_the_discipline_becomes_refuse() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 1));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.limit("t", refuse(1_000, 1));
    broker.replies(publisher);
    broker.send(publisher, put("t", "overtakes nobody"));
    assert!(broker.error(publisher).starts_with("E_PUB_FAILED"));
    broker.advance(ms(3));
    assert_eq!(times(&mut broker, consumer, start), [0, 1, 2, 3].map(ms));
    broker.send(publisher, put("t", "x"));
    assert!(broker.error(publisher).starts_with("E_PUB_FAILED"), "the line took the last token");
    broker.advance(ms(1));
    broker.publish(publisher, "t", "x");
}

#[test]
fn what_waits_when_a_contract_is_taken_away_goes_at_its_pace_and_what_comes_behind_it() {
    for shadow in [false, true] {
        let (mut broker, publisher, consumer) = ready();
        broker.limit("t", wait(1_000, 1));
        let start = broker.now;
        broker.send(publisher, put_many("t", &numbered(4)));
        broker.limit("t", shadow.then_some(Contract { mode: Mode::Shadow, ..wait(1_000, 1) }));
        broker.send(publisher, put_many("t", &["behind", "them"]));
        broker.advance(SECOND);
        let expected = [(0, "0"), (1, "1"), (2, "2"), (3, "3"), (3, "behind"), (3, "them")];
        assert_eq!(arrivals(&mut broker, consumer, start), expected.map(|(at, body)| (ms(at), body.to_owned())));
        assert_eq!((broker.topic("t").waiting, broker.topic("t").waiting_bytes), (0, 0));
        assert_eq!(broker.topic("t").limit.is_some(), shadow);
    }
}

#[test]
fn the_line_of_a_contract_that_was_taken_away_can_be_let_go_at_once() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1, 1));
    broker.send(publisher, put_many("t", &numbered(100)));
    broker.order(AdminRequest::ReleaseLine(topic_name("t")));
    assert_eq!(broker.messages(consumer).len(), 1, "a contract in force is not touched");
    broker.limit("t", None);
    assert_eq!((broker.messages(consumer).len(), broker.topic("t").limit.is_none()), (0, true));
    broker.order(AdminRequest::ReleaseLine(topic_name("t")));
    assert_eq!(broker.messages(consumer).len(), 99);
}

#[test]
fn a_contract_taken_away_and_given_again_mints_nothing() {
    let (mut broker, publisher, consumer) = ready();
    for round in 0..5 {
        broker.limit("t", wait(10, 5));
        broker.send(publisher, put_many("t", &numbered(if round == 0 { 5 } else { 1 })));
        assert_eq!(broker.messages(consumer).len(), if round == 0 { 5 } else { 0 }, "round {round}");
        broker.order(AdminRequest::EmptyTopic(topic_name("t")));
        broker.limit("t", None);
    }
    broker.advance(ms(500));
    broker.limit("t", wait(10, 100));
    broker.send(publisher, put_many("t", &numbered(10)));
    assert_eq!(broker.messages(consumer).len(), 10, "it was full again, and forgotten");
}

#[test]
fn a_contract_made_shallow_taken_away_and_made_deep_again_mints_nothing() {
    // Slower, as fast, faster; the shallow one lets what it may before it goes.
    for shallow in [1, 10, 1_000] {
        let (mut broker, publisher, consumer) = ready();
        let mut got = 0;
        for round in 0..10 {
            broker.limit("t", wait(10, 5));
            broker.send(publisher, put_many("t", &numbered(5)));
            got += broker.messages(consumer).len();
            broker.order(AdminRequest::EmptyTopic(topic_name("t")));
            broker.limit("t", wait(shallow, 1));
            broker.advance(ms(10));
            broker.limit("t", None);
            if round % 2 == 0 {
                // A removal more makes no difference.
                broker.limit("t", wait(shallow, 1));
                broker.limit("t", None);
            }
        }
        // 0.1 s, at the rate of whichever was in force.
        let earned = 5 + (shallow.max(10) / 10) as usize;
        assert!(got <= earned, "{got} of {earned} at {shallow}/s");
        // When the deep one would have been full, all is forgotten.
        broker.advance(ms(5_000));
        broker.limit("t", wait(10, 5));
        broker.send(publisher, put_many("t", &numbered(6)));
        assert_eq!(broker.messages(consumer).len(), 5, "{shallow}/s");
    }
}

#[test]
fn a_shallow_contract_passes_at_its_rate_and_gives_no_burst_to_the_deep_one_after_it() {
    let (mut broker, publisher, consumer) = ready();
    let mut got = 0;
    for _ in 0..10 {
        broker.limit("t", wait(10, 5));
        broker.send(publisher, put_many("t", &numbered(20)));
        broker.limit("t", wait(10, 1));
        broker.advance(ms(510));
        got += broker.messages(consumer).len();
        broker.order(AdminRequest::EmptyTopic(topic_name("t")));
        broker.limit("t", None);
        broker.advance(ms(90));
    }
    assert!(got <= 5 + 60, "{got} in 6 s");
}

#[test]
fn a_topic_deleted_and_created_mints_nothing() {
    for name in ["t", "t#ephemeral"] {
        let mut broker = Broker::default();
        broker.limit(name, wait(10, 3));
        let mut got = 0;
        for _ in 0..10 {
            let consumer = broker.subscribe(name, "c", 100);
            let publisher = broker.connect();
            broker.send(publisher, put_many(name, &numbered(10)));
            got += broker.messages(consumer).len();
            if name == "t" {
                broker.order(AdminRequest::DeleteTopic(topic_name(name)));
            } else {
                // Its only channel is deleted, and the topic with it.
                broker.order(AdminRequest::DeleteChannel(topic_name(name), harness::channel_name("c")));
            }
            assert!(!broker.has_topic(name));
        }
        assert_eq!(got, 3, "{name}");
    }
}

#[test]
fn a_consumer_that_comes_back_to_an_ephemeral_channel_finds_its_tokens_as_they_were() {
    let mut broker = Broker::default();
    broker.limit_channel("t", "c#ephemeral", wait(10, 3));
    let publisher = broker.connect();
    let mut got = 0;
    for _ in 0..10 {
        let consumer = broker.subscribe("t", "c#ephemeral", 100);
        broker.send(publisher, put_many("t", &numbered(10)));
        got += broker.messages(consumer).len();
        broker.disconnect(consumer);
    }
    assert_eq!(got, 3);
}

#[test]
fn what_gathered_in_a_pause_or_without_a_channel_leaves_at_the_rate() {
    for paused in [false, true] {
        for contract in [wait(1_000, 2), refuse(1_000, 2)] {
            let mut broker = Broker::default();
            let publisher = broker.connect();
            let mut consumer = paused.then(|| broker.subscribe("t", "c", 2500));
            if paused {
                broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Paused));
            }
            broker.limit("t", contract);
            for _ in 0..10 {
                broker.send(publisher, put_many("t", &numbered(2)));
                broker.advance(ms(10));
            }
            let start = broker.now;
            if paused {
                broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Flowing));
            }
            let consumer = *consumer.get_or_insert_with(|| broker.subscribe("t", "c", 2500));
            broker.advance(SECOND);
            let expected: Vec<_> = [0].into_iter().chain(0..19).map(ms).collect();
            assert_eq!(times(&mut broker, consumer, start), expected, "paused: {paused}, {contract:?}");
        }
    }
}

#[test]
fn what_waits_for_tokens_waits_on_after_a_restart() {
    let mut broker = Broker::default();
    broker.limit("t", wait(10, 1));
    broker.create_channel("t", "c");
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(8)));
    broker.advance(ms(50));
    let mut broker = broker.restart();
    let consumer = broker.subscribe("t", "c", 2500);
    let start = broker.now;
    broker.advance(SECOND * 10);
    // Half a token was there at the stop, and the second of downtime filled the bucket.
    let mut expected = vec![Duration::ZERO; 1];
    expected.extend((0..7).map(|number| ms(100 * number)));
    assert_eq!(times(&mut broker, consumer, start), expected, "0 was in the channel already");
}

#[test]
fn after_a_crash_buckets_are_empty_and_unknown_time_counts_nothing() {
    let mut broker = Broker::default();
    broker.crashed = true;
    broker.limit("t", wait(10, 5));
    let mut broker = broker.restart();
    let consumer = broker.subscribe("t", "c", 2500);
    let publisher = broker.connect();
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(3)));
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [100, 200, 300].map(ms));
}

#[test]
fn a_contract_long_after_a_crash_finds_a_bucket_and_no_more() {
    let mut broker = Broker::default();
    broker.crashed = true;
    broker.limit("other", wait(10, 5));
    let mut broker = broker.restart();
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(100)));
    broker.advance(SECOND * 10);
    broker.limit("t", wait(10, 5));
    let consumer = broker.subscribe("t", "c", 2500);
    assert_eq!(broker.messages(consumer).len(), 5, "a full bucket, and not ten seconds' worth");
}

#[test]
fn emptying_a_topic_drops_its_line() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(10, 1));
    broker.send(publisher, put_many("t", &numbered(100)));
    assert_eq!((broker.messages(consumer).len(), broker.topic("t").depth), (1, 99));
    broker.order(AdminRequest::EmptyTopic(topic_name("t")));
    assert_eq!((broker.topic("t").depth, broker.topic("t").waiting), (0, 0));
    broker.advance(SECOND * 60);
    assert_eq!(broker.messages(consumer).len(), 0);
}

#[test]
fn a_contract_of_wait_in_shadow_tells_what_waiting_would_be() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", Contract { mode: Mode::Shadow, ..wait(1_000, 1) });
    for _ in 0..1_000 {
        broker.publish(publisher, "t", "x");
        broker.advance(us(500));
    }
    assert_eq!(broker.messages(consumer).len(), 1_000);
    let topic = broker.topic("t");
    assert_eq!((topic.shadow_total, topic.delayed_total, topic.waiting), (999, 0, 0), "all but the first would wait");
    let shadow = topic.limit.unwrap().shadow.unwrap();
    assert_eq!((shadow.delay_us.count, shadow.line), (1_000, 499));
    assert!((240_000.0..260_000.0).contains(&shadow.delay_us.p50), "{:?}", shadow.delay_us);
    // The line that did not form delays nobody when the contract acts.
    broker.limit("t", wait(1_000, 1));
    let start = broker.now;
    broker.publish(publisher, "t", "y");
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [ms(1)], "the bucket is empty, and no more");
}

#[test]
fn a_contract_can_come_before_its_topic_and_outlives_it() {
    let mut broker = Broker::default();
    broker.limit("t", wait(1_000, 1));
    assert!(!broker.has_topic("t"));
    for _ in 0..2 {
        let consumer = broker.subscribe("t", "c", 10);
        let publisher = broker.connect();
        let start = broker.now;
        broker.send(publisher, put_many("t", &numbered(3)));
        broker.advance(ms(10));
        assert_eq!(times(&mut broker, consumer, start), [0, 1, 2].map(ms));
        broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    }
    broker.limit("t", None);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "x");
    assert!(broker.topic("t").limit.is_none());
}

#[test]
fn deleting_a_topic_forgets_its_line() {
    let (mut broker, publisher, _) = ready();
    broker.limit("t", wait(1, 1));
    broker.send(publisher, put_many("t", &numbered(100)));
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    broker.advance(SECOND * 200);
    assert!(!broker.has_topic("t"));
}

#[test]
fn publishers_of_limited_topics_are_asked_for_stamps() {
    let (mut broker, publisher, _) = ready();
    broker.publish(publisher, "t", "x");
    assert!(!broker.is_stamped(publisher));
    broker.limit("t", wait(1_000, 1));
    broker.publish(publisher, "t", "y");
    assert!(broker.is_stamped(publisher));
}

#[test]
fn a_full_line_holds_its_publishers_back() {
    let mut broker = Broker::with(|config| config.line_bytes = 10 * LEAST_BYTES);
    let consumer = broker.subscribe("t", "c", 2500);
    broker.limit("t", wait(1_000, 1));
    let [publisher, other] = [broker.connect(), broker.connect()];
    let start = broker.now;
    for _ in 0..20 {
        broker.send(publisher, put("t", "tenletters"));
    }
    assert_eq!((broker.replies(publisher).len(), broker.topic("t").waiting), (11, 10));
    assert_eq!(broker.topic("t").blocked_publishers, 1);
    broker.send(other, put("free", "other topics are free"));
    assert_eq!(broker.replies(other).len(), 1);
    broker.advance(SECOND);
    assert_eq!((broker.replies(publisher).len(), broker.topic("t").blocked_publishers), (9, 0));
    assert_eq!(times(&mut broker, consumer, start), (0..20).map(ms).collect::<Vec<_>>(), "the bucket never idles");
}

#[test]
fn a_deferred_message_takes_its_token_when_it_is_due() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 1));
    let start = broker.now;
    broker.send(publisher, put_deferred("t", 50, "deferred"));
    broker.send(publisher, put("t", "next"));
    broker.advance(SECOND);
    let expected = [(ms(0), "next".to_owned()), (ms(50), "deferred".to_owned())];
    assert_eq!(arrivals(&mut broker, consumer, start), expected);
}

#[test]
fn deferred_messages_that_are_due_together_leave_at_the_rate() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(100, 1));
    let start = broker.now;
    for step in 0..5 {
        broker.send(publisher, put_deferred("t", 50 - 10 * step, "x"));
        broker.advance(ms(10));
    }
    assert_eq!(broker.channel("t", "c").deferred, 0);
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [50, 60, 70, 80, 90].map(ms));
}

#[test]
fn a_rate_of_zero_lets_the_burst_pass_and_holds_the_rest() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(0, 2));
    broker.send(publisher, put_many("t", &numbered(3)));
    broker.advance(SECOND * 10);
    assert_eq!(broker.messages(consumer).len(), 2);
    broker.limit("t", wait(1_000, 2));
    broker.advance(ms(1));
    assert_eq!(broker.bodies(consumer), ["2"]);
}

#[test]
fn a_channel_delivers_at_its_rate_and_others_at_once() {
    let (mut broker, publisher, consumer) = ready();
    let free = broker.subscribe("t", "free", 2500);
    broker.limit_channel("t", "c", wait(1_000, 2));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(5)));
    broker.advance(ms(10));
    assert_eq!(times(&mut broker, free, start), [Duration::ZERO; 5]);
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 1, 2, 3].map(ms));
    broker.limit_channel("t", "c", None);
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!(broker.messages(consumer).len(), 5);
}

#[test]
fn a_channels_contract_holds_for_a_consumer_that_comes_late() {
    let mut broker = Broker::default();
    broker.create_channel("t", "c");
    broker.limit_channel("t", "c", wait(10, 3));
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(100)));
    broker.advance(SECOND * 5);
    let consumer = broker.subscribe("t", "c", 2500);
    let start = broker.now;
    broker.advance(ms(250));
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 0, 100, 200].map(ms), "not what 5 s have minted");
}

#[test]
fn a_channels_contract_holds_for_a_consumer_that_pauses() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2500);
    broker.limit_channel("t", "c", wait(10, 3));
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(100)));
    assert_eq!(broker.messages(consumer).len(), 3);
    broker.send(consumer, "RDY 0\n");
    broker.advance(SECOND * 5);
    assert_eq!(broker.replies(consumer), []);
    broker.send(consumer, "RDY 2500\n");
    let start = broker.now;
    broker.advance(ms(250));
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 0, 100, 200].map(ms));
}

#[test]
fn a_channel_served_late_keeps_its_rate() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit_channel("t", "c", wait(1_000, 1));
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(100)));
    // Each timer fires 30 microseconds late; a bucket of one token must not lose them.
    while broker.channel("t", "c").depth > 0 {
        let next = broker.next_timeout().unwrap();
        broker.pause((next - broker.now) + us(30));
        broker.advance(Duration::ZERO);
    }
    let last = broker.messages(consumer).last().unwrap().at - start;
    assert!(last <= ms(99) + us(30), "{last:?}");
}

#[test]
fn a_channels_contract_can_be_in_bytes_or_shadow() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit_channel("t", "c", Contract { unit: Unit::Bytes, ..wait(1_000, 100) });
    let start = broker.now;
    for length in [60, 60, 500] {
        broker.publish(publisher, "t", &"x".repeat(length));
    }
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [0, 20, 520].map(ms), "more than the bucket holds is paid in full");
    broker.limit_channel("t", "c", Contract { mode: Mode::Shadow, ..wait(1, 1) });
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!(broker.messages(consumer).len(), 5);
    assert_eq!(broker.channel("t", "c").shadow_total, 4, "one token was left");
}

#[test]
fn a_channels_contract_survives_the_channel() {
    let mut broker = Broker::default();
    broker.limit_channel("t", "c", wait(1_000, 1));
    let consumer = broker.subscribe("t", "c", 10);
    let publisher = broker.connect();
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(2)));
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [ms(0), ms(1)]);
}

#[test]
fn snapshots_show_the_contract_and_its_tokens() {
    let (mut broker, publisher, _) = ready();
    let limit = Limit::new(Rate::from_per_s_f64(2.5), 10);
    broker.limit("t", Contract { limit, ..wait(1, 1) });
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.advance(ms(100));
    let limit = broker.topic("t").limit.unwrap();
    assert_eq!((limit.burst, limit.unit, limit.discipline, limit.mode), (10, "messages", "wait", "enforce"));
    assert!((limit.rate_per_s - 2.5).abs() < 1e-9 && (limit.tokens - 6.25).abs() < 1e-9);
    assert_eq!(broker.replies(publisher), [Reply::Response("OK".to_owned())]);
}

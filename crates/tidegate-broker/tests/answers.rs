//! When a publish is answered: when it is as safe as nsqd would have made it, and in the order of the commands.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::{
    Broker, Client, Reply, SECOND, ms, numbered, over_http, put, put_deferred, put_many, req, topic_name, wait,
};
use tidegate_broker::machine::admin::{AdminRequest, Pause};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::shard::QueuePolicy;

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

/// A topic that lives on `shard` of two.
fn topic_on(shard: usize) -> String {
    (0..100).map(|number| format!("t{number}")).find(|name| home_shard(name, 2) == shard).unwrap()
}

#[test]
fn what_goes_to_the_log_is_answered_when_it_is_there() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 2);
    broker.create_channel("t", "a");
    broker.create_channel("t", "b");
    broker.disk.delay = ms(10);
    let publisher = broker.connect();
    for body in numbered(5) {
        broker.send(publisher, put("t", &body));
    }
    assert_eq!(broker.replies(publisher), vec![ok(); 2], "two are in memory, as in nsqd");
    broker.send(publisher, put("t", "5"));
    broker.advance(ms(9));
    assert_eq!(broker.replies(publisher), [], "the log has not got them yet");
    broker.advance(SECOND);
    assert_eq!(broker.replies(publisher), vec![ok(); 4]);
}

#[test]
fn nothing_goes_to_a_log_whose_name_is_not_durable() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.hold_names = true;
    let publisher = broker.connect();
    broker.send(publisher, [put("new", "1"), put_many("new", &["2", "3"])].concat());
    broker.advance(SECOND);
    assert_eq!((broker.replies(publisher), broker.disk.depth("new")), (vec![], 0));
    broker.name_all();
    assert_eq!((broker.replies(publisher), broker.disk.depth("new")), (vec![ok(); 2], 3));
    broker.hold_names = true;
    broker.create_channel("new", "c");
    assert_eq!(broker.disk.depth("new:c"), 0);
    broker.name_all();
    assert_eq!(broker.disk.depth("new:c"), 3);
}

#[test]
fn nothing_goes_to_a_topics_log_while_a_channels_name_is_not_durable() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.create_channel("t", "c");
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Paused));
    let publisher = broker.connect();
    broker.send(publisher, put("t", "1"));
    assert_eq!(broker.replies(publisher), [ok()]);
    broker.hold_names = true;
    broker.create_channel("t", "d");
    broker.create_channel("t", "x#ephemeral");
    broker.send(publisher, put("t", "2"));
    broker.advance(SECOND);
    assert_eq!((broker.replies(publisher), broker.disk.depth("t")), (vec![], 1), "a crash would lose it for d");
    broker.name_all();
    assert_eq!((broker.replies(publisher), broker.disk.depth("t")), (vec![ok()], 2));
}

#[test]
fn http_publishes_wait_for_the_log_too() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.disk.delay = ms(10);
    let start = broker.now;
    broker.order(over_http("t", &["x"], None));
    assert!(broker.now >= start + ms(10));
    assert_eq!(broker.disk.depth("t"), 1);
}

#[test]
fn a_fatal_error_comes_after_the_answers_before_it() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.disk.delay = ms(10);
    let publisher = broker.connect();
    broker.send(publisher, [put("t", "1"), put("t", "2"), put("b@d", "3")].concat());
    assert_eq!((broker.replies(publisher), broker.is_closed(publisher)), (vec![], false));
    broker.advance(SECOND);
    let error = Reply::Error("E_BAD_TOPIC PUB topic name \"b@d\" is not valid".to_owned());
    assert_eq!((broker.replies(publisher), broker.is_closed(publisher)), (vec![ok(), ok(), error], true));
}

#[test]
fn publishes_elsewhere_are_pipelined_and_answered_in_order() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    let consumer = broker.subscribe(&there, "c", 2500);
    let publisher = broker.raw_on(0);
    broker.send(publisher, "  V2");
    broker.publish(publisher, &here, "settled");
    broker.hold_peers = true;
    let mut commands = Vec::new();
    for body in numbered(100) {
        commands.extend(put(&there, &body));
        commands.extend(put(&here, &body));
    }
    broker.send(publisher, commands);
    assert_eq!((broker.replies(publisher), broker.unread(publisher)), (vec![], 0), "all are taken");
    assert_eq!(broker.topic(&here).depth, 101, "what is here has been published");
    broker.hold_peers = false;
    broker.settle();
    assert_eq!(broker.replies(publisher), vec![ok(); 200]);
    assert_eq!(broker.bodies(consumer), numbered(100));
}

#[test]
fn a_connection_has_so_many_publishes_elsewhere_under_way_at_most() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    let publisher = broker.raw_on(0);
    broker.send(publisher, "  V2");
    broker.publish(publisher, &here, "settled");
    broker.hold_peers = true;
    broker.send(publisher, (0..2_000).flat_map(|_| put(&there, "x")).collect::<Vec<_>>());
    assert_eq!(broker.unread(publisher), put(&there, "x").len() * (2_000 - 1_024));
    broker.hold_peers = false;
    broker.settle();
    assert_eq!((broker.replies(publisher).len(), broker.topic(&there).depth), (2_000, 2_000));
}

#[test]
fn publishers_of_limited_topics_elsewhere_are_asked_for_stamps() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    broker.limit(&there, wait(1_000, 1));
    let publisher = broker.raw_on(0);
    broker.send(publisher, "  V2");
    broker.publish(publisher, &here, "settled");
    assert!(!broker.is_stamped(publisher));
    broker.publish(publisher, &there, "x");
    assert!(broker.is_stamped(publisher));
    // And the stamp goes along: two messages a millisecond apart, read together, are not delayed.
    let consumer = broker.subscribe(&there, "c", 10);
    broker.advance(SECOND);
    broker.messages(consumer);
    let start = broker.now;
    broker.pause(ms(5));
    broker.give(publisher, put(&there, "1"), start + ms(1));
    broker.give(publisher, put(&there, "2"), start + ms(2));
    broker.settle();
    assert_eq!(broker.bodies(consumer), ["1", "2"]);
}

/// A subscriber of `work` that publishes to `full`, which takes no more.
fn blocked_worker() -> (Broker, Client) {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 3;
        config.queue_policy = QueuePolicy::BackPressure;
        config.msg_timeout = SECOND * 5;
    });
    broker.create_channel("full", "c");
    let other = broker.connect();
    broker.send(other, (0..3).flat_map(|_| put("full", "x")).collect::<Vec<_>>());
    let worker = broker.subscribe("work", "c", 2);
    broker.send(other, (0..3).flat_map(|_| put("work", "job")).collect::<Vec<_>>());
    (broker, worker)
}

#[test]
fn answers_to_messages_are_read_behind_a_publish_that_waits_for_room() {
    let (mut broker, worker) = blocked_worker();
    let jobs = broker.messages(worker);
    let [first, second] = &jobs[..] else { panic!("two jobs are in flight") };
    broker.send(worker, [put("full", "result"), harness::fin(first), harness::fin(second)].concat());
    assert_eq!(broker.channel("work", "c").finished_total, 2);
    assert_eq!(broker.messages(worker).len(), 1, "and the next job comes");
    assert_eq!(broker.topic("full").blocked_publishers, 1);
    let reader = broker.subscribe("full", "c", 10);
    for message in broker.messages(reader) {
        broker.finish(reader, &message);
    }
    assert_eq!(broker.replies(worker), [ok()]);
}

#[test]
fn what_a_held_back_connection_has_in_flight_does_not_time_out() {
    let (mut broker, worker) = blocked_worker();
    let jobs = broker.messages(worker);
    // The second publish is not taken, and what is behind it not read.
    let said = [put("full", "1"), put("full", "2"), harness::fin(&jobs[0]), harness::fin(&jobs[1])].concat();
    broker.send(worker, said);
    broker.advance(SECOND * 60);
    let channel = broker.channel("work", "c");
    assert_eq!((channel.timed_out_total, channel.in_flight, channel.finished_total), (0, 2, 0));
    let reader = broker.subscribe("full", "c", 10);
    for _ in 0..3 {
        for message in broker.messages(reader) {
            broker.finish(reader, &message);
        }
    }
    assert_eq!(broker.channel("work", "c").finished_total, 2);
    broker.advance(SECOND * 60);
    assert!(broker.channel("work", "c").timed_out_total > 0, "the third job's: nobody holds the connection back now");
}

#[test]
fn deferred_messages_have_a_bound_in_bytes() {
    let mut broker = Broker::with(|config| config.max_queue_bytes = 1_000);
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    let mut taken = 0;
    for _ in 0..20 {
        broker.send(publisher, put_deferred("t", 60_000, "x"));
        match &broker.replies(publisher)[..] {
            [Reply::Response(_)] => taken += 1,
            [Reply::Error(text)] => {
                assert_eq!(text, "E_DPUB_FAILED DPUB failed deferred messages fill their 1000 bytes");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(taken, 4, "with their bookkeeping");
    assert!(!broker.is_closed(publisher));
    // One that is requeued with a delay stays in flight, and comes again after its time-out.
    broker.publish(publisher, "t", "now");
    let now = broker.messages(consumer);
    broker.send(consumer, req(&now[0], 60_000));
    assert!(broker.error(consumer).starts_with("E_REQ_FAILED REQ failed deferred messages fill"));
    assert_eq!((broker.channel("t", "c").in_flight, broker.channel("t", "c").deferred), (1, 4));
}

#[test]
fn an_inherited_log_moves_only_as_far_as_there_is_room() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 10);
    broker.disk.keep("t", &numbered(1_000));
    for policy in [QueuePolicy::BackPressure, QueuePolicy::Refuse] {
        broker.set_policy(policy);
        broker = broker.restart();
        broker.order(AdminRequest::CreateTopic(topic_name("t")));
        broker.create_channel("t", "c");
        let (topic, channel) = (broker.topic("t"), broker.channel("t", "c"));
        assert_eq!((topic.depth + channel.depth, channel.depth - channel.backend_depth), (1_000, 10), "{policy:?}");
    }
    let consumer = broker.subscribe("t", "c", 1);
    let mut got = Vec::new();
    while got.len() < 1_000 {
        for message in broker.messages(consumer) {
            broker.finish(consumer, &message);
            got.push(message.body);
        }
    }
    assert_eq!(got, numbered(1_000));
}

#[test]
fn a_record_leaves_the_topics_log_when_it_is_in_the_channels() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(10)));
    broker.disk.delay = ms(10);
    broker.create_channel("t", "a");
    broker.create_channel("t", "b");
    for _ in 0..100 {
        broker.advance(ms(1));
        let safe = broker.disk.depth("t") == 10 || (broker.disk.depth("t:a"), broker.disk.depth("t:b")) == (10, 10);
        assert!(safe, "a kill now would lose records");
    }
    assert_eq!((broker.disk.depth("t"), broker.disk.depth("t:a"), broker.disk.depth("t:b")), (0, 10, 10));
}

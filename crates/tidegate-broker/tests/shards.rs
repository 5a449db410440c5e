//! Several shards look like one broker.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::{
    Broker, Client, Reply, SECOND, ms, numbered, put, put_deferred, put_many, refuse, sized, topic_name, wait,
};
use tidegate_broker::machine::admin::AdminRequest;
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::shard::QueuePolicy;

/// A topic that lives on `shard` of two.
fn topic_on(shard: usize) -> String {
    (0..100).map(|number| format!("t{number}")).find(|name| home_shard(name, 2) == shard).unwrap()
}

fn two() -> Broker {
    Broker::with(|config| config.shards = 2)
}

/// A connection on shard 0 that stays there, since it has published to a topic of its own.
fn settled(broker: &mut Broker) -> Client {
    let publisher = broker.raw_on(0);
    broker.send(publisher, "  V2");
    broker.publish(publisher, &topic_on(0), "settled");
    publisher
}

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

#[test]
fn a_topics_shard_does_not_depend_on_the_run() {
    assert_eq!((home_shard("readings", 2), home_shard("readings", 4), home_shard("readings", 1)), (0, 0, 0));
    assert_eq!((home_shard("events", 2), home_shard("t#ephemeral", 5)), (0, 2));
    let mut shares = [0; 4];
    for number in 0..1_000 {
        shares[home_shard(&format!("sensor-{number}"), 4)] += 1;
    }
    assert!(shares.iter().all(|share| (200..300).contains(share)), "{shares:?}");
}

#[test]
fn a_connection_moves_to_its_topic_with_everything_it_has_said() {
    let mut broker = two();
    let (here, there) = (topic_on(0), topic_on(1));
    let consumer = broker.raw_on(0);
    broker
        .send(consumer, [b"  V2".to_vec(), sized("IDENTIFY", r#"{"client_id": "ada", "msg_timeout": 1000}"#)].concat());
    broker.send(consumer, format!("SUB {there} c\nRDY 1\n"));
    assert_eq!((broker.replies(consumer), broker.shard_of(consumer)), (vec![ok(), ok()], Some(1)));
    let publisher = broker.raw_on(0);
    broker.send(publisher, [b"  V2".to_vec(), put(&there, "a"), put(&there, "b")].concat());
    assert_eq!((broker.replies(publisher), broker.shard_of(publisher)), (vec![ok(), ok()], Some(1)));
    assert_eq!(broker.bodies(consumer), ["a"]);
    assert_eq!(broker.channel(&there, "c").clients[0].client_id, "ada");
    broker.advance(SECOND + ms(1));
    assert_eq!(broker.channel(&there, "c").timed_out_total, 1, "what IDENTIFY set came along");
    assert!(!broker.has_topic(&here));
}

#[test]
fn heartbeats_go_on_after_a_move() {
    let mut broker = two();
    let consumer = broker.raw_on(0);
    broker.send(consumer, "  V2");
    broker.advance(SECOND * 20);
    broker.send(consumer, format!("SUB {} c\n", topic_on(1)));
    broker.replies(consumer);
    broker.advance(SECOND * 30);
    assert_eq!(broker.replies(consumer), [Reply::Response("_heartbeat_".to_owned())]);
    broker.advance(SECOND * 30);
    assert!(broker.is_closed(consumer));
}

#[test]
fn a_publish_elsewhere_is_answered_in_its_turn() {
    let mut broker = two();
    let (here, there) = (topic_on(0), topic_on(1));
    let publisher = settled(&mut broker);
    broker.hold_peers = true;
    let commands = [put(&there, "1"), put("b@d", "2"), put(&here, "never")].concat();
    broker.send(publisher, commands);
    assert_eq!(broker.replies(publisher), [], "what comes behind waits");
    broker.hold_peers = false;
    broker.settle();
    let error = Reply::Error("E_BAD_TOPIC PUB topic name \"b@d\" is not valid".to_owned());
    assert_eq!(broker.replies(publisher), [ok(), error]);
    assert_eq!((broker.topic(&there).depth, broker.topic(&here).depth), (1, 1));
}

#[test]
fn batches_and_deferred_messages_go_elsewhere_whole() {
    let mut broker = two();
    let there = topic_on(1);
    let consumer = broker.subscribe(&there, "c", 10);
    let publisher = settled(&mut broker);
    broker.send(publisher, [put_many(&there, &numbered(3)), put_deferred(&there, 100, "late")].concat());
    assert_eq!((broker.replies(publisher), broker.shard_of(publisher)), (vec![ok(), ok()], Some(0)));
    assert_eq!(broker.bodies(consumer), numbered(3));
    broker.advance(ms(100));
    assert_eq!(broker.bodies(consumer), ["late"]);
}

#[test]
fn a_subscriber_may_publish_elsewhere() {
    let mut broker = two();
    let (here, there) = (topic_on(0), topic_on(1));
    let client = broker.subscribe(&here, "c", 1);
    broker.publish(client, &there, "m");
    assert_eq!((broker.topic(&there).depth, broker.shard_of(client)), (1, Some(0)));
}

#[test]
fn refusals_elsewhere_name_the_command() {
    let mut broker = two();
    let there = topic_on(1);
    broker.limit(&there, refuse(1, 1));
    let publisher = settled(&mut broker);
    broker.publish(publisher, &there, "m");
    broker.send(publisher, put(&there, "m"));
    assert!(broker.error(publisher).starts_with("E_PUB_FAILED PUB failed rate limit"));
    broker.send(publisher, put_many(&there, &numbered(2)));
    assert!(broker.error(publisher).starts_with("E_MPUB_FAILED MPUB failed cost 2"));
    broker.send(publisher, put_deferred(&there, 5, "m"));
    assert!(broker.error(publisher).starts_with("E_DPUB_FAILED DPUB failed rate limit"));
    assert!(!broker.is_closed(publisher));
}

#[test]
fn a_full_line_elsewhere_holds_the_publisher_back() {
    let mut broker = Broker::with(|config| {
        config.shards = 2;
        config.line_bytes = 3 * 160;
    });
    let there = topic_on(1);
    broker.limit(&there, wait(1_000, 1));
    let consumer = broker.subscribe(&there, "c", 100);
    let publishers = [settled(&mut broker), settled(&mut broker)];
    let start = broker.now;
    for number in 0..10 {
        broker.send(publishers[number % 2], put(&there, "m"));
    }
    assert_eq!(broker.topic(&there).blocked_publishers, 2);
    broker.advance(SECOND);
    assert_eq!(publishers.map(|publisher| broker.replies(publisher)), [vec![ok(); 5], vec![ok(); 5]]);
    let times: Vec<_> = broker.messages(consumer).into_iter().map(|message| message.at - start).collect();
    assert_eq!(times, (0..10).map(ms).collect::<Vec<_>>());
}

#[test]
fn who_waits_elsewhere_is_served_when_the_topic_is_deleted_under_it() {
    let mut broker = Broker::with(|config| {
        config.shards = 2;
        config.mem_queue_size = 1;
        config.queue_policy = QueuePolicy::BackPressure;
    });
    let there = topic_on(1);
    let publisher = settled(&mut broker);
    broker.publish(publisher, &there, "0");
    broker.send(publisher, put(&there, "1"));
    assert_eq!(broker.replies(publisher), []);
    broker.order(AdminRequest::DeleteTopic(topic_name(&there)));
    assert_eq!((broker.replies(publisher), broker.topic(&there).depth), (vec![ok()], 1));
}

#[test]
fn an_answer_from_elsewhere_reaches_nobody_else() {
    let mut broker = two();
    let there = topic_on(1);
    let gone = settled(&mut broker);
    broker.hold_peers = true;
    broker.send(gone, put(&there, "m"));
    broker.disconnect(gone);
    let other = broker.raw_on(0);
    broker.send(other, "  V2");
    broker.hold_peers = false;
    broker.settle();
    assert_eq!(broker.replies(other), []);
    assert_eq!(broker.topic(&there).depth, 1);
}

#[test]
fn stopping_saves_the_topics_of_every_shard() {
    let mut broker = Broker::with(|config| config.shards = 4);
    let publisher = broker.connect();
    let topics = ["a", "b", "c", "d", "e"];
    for topic in topics {
        broker.send(publisher, put_many(topic, &numbered(10)));
    }
    assert_eq!(broker.replies(publisher), vec![ok(); 5]);
    let mut broker = broker.restart();
    for topic in topics {
        let consumer = broker.subscribe(topic, "c", 10);
        assert_eq!(broker.bodies(consumer), numbered(10));
    }
}

#[test]
fn a_publish_that_waited_for_room_in_a_channel_is_charged_when_it_gets_in() {
    let mut broker = Broker::with(|config| {
        (config.shards, config.mem_queue_size, config.queue_policy) = (2, 1, QueuePolicy::BackPressure);
    });
    let there = topic_on(1);
    let publisher = settled(&mut broker);
    broker.create_channel(&there, "c");
    broker.limit(&there, wait(10, 1));
    for body in ["first", "second", "third"] {
        broker.send(publisher, put(&there, body));
        broker.advance(SECOND);
    }
    // A consumer comes a minute later: what waited leaves at the rate, and not by the stamps of then.
    broker.advance(SECOND * 60);
    let consumer = broker.subscribe(&there, "c", 10);
    broker.advance(SECOND);
    let times: Vec<_> = broker.messages(consumer).iter().map(|message| message.at).collect();
    assert_eq!(times.len(), 3);
    // The first was in the channel already.
    assert!(times[2] >= times[1] + ms(100), "{times:?}");
}

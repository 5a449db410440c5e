//! What happens at the bounds of a queue, on disk, and when the broker stops and starts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{
    Broker, Client, Reply, SECOND, channel_name, ms, numbered, over_http, put, put_deferred, put_many, req, topic_name,
};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Pause, PublishRefused};
use tidegate_broker::machine::shard::QueuePolicy;

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

/// Messages of the client, each finished as it comes.
fn finish_all(broker: &mut Broker, client: Client) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let messages = broker.messages(client);
        if messages.is_empty() {
            return bodies;
        }
        for message in messages {
            broker.finish(client, &message);
            bodies.push(message.body);
        }
    }
}

#[test]
fn what_does_not_fit_in_memory_goes_to_the_log_and_comes_back_in_order() {
    for mem_queue_size in [0, 1, 7, 1_000] {
        let mut broker = Broker::with(|config| config.mem_queue_size = mem_queue_size);
        let consumer = broker.subscribe("t", "c", 0);
        let publisher = broker.connect();
        for bodies in numbered(100).chunks(9) {
            broker.send(publisher, put_many("t", bodies));
        }
        let channel = broker.channel("t", "c");
        assert_eq!((channel.depth, channel.backend_depth), (100, 100_u64.saturating_sub(mem_queue_size as u64)));
        broker.send(consumer, "RDY 3\n");
        assert_eq!(finish_all(&mut broker, consumer), numbered(100), "with {mem_queue_size} in memory");
        let channel = broker.channel("t", "c");
        assert_eq!((channel.depth, channel.finished_total), (0, 100));
        assert_eq!(broker.disk.depth("t:c"), 0, "what was delivered is advanced over");
    }
}

#[test]
fn order_is_kept_while_publishing_goes_on() {
    for delay in [Duration::ZERO, ms(3)] {
        let mut broker = Broker::with(|config| config.mem_queue_size = 5);
        broker.disk.delay = delay;
        let consumer = broker.subscribe("t", "c", 1);
        let publisher = broker.connect();
        let (mut sent, mut got) = (0, Vec::new());
        for step in 0..200 {
            for _ in 0..if step < 100 { 3 } else { 0 } {
                broker.send(publisher, put("t", &sent.to_string()));
                sent += 1;
            }
            broker.advance(ms(2));
            for message in broker.messages(consumer) {
                broker.finish(consumer, &message);
                got.push(message.body);
            }
        }
        broker.advance(SECOND);
        for _ in 0..300 {
            got.extend(finish_all(&mut broker, consumer));
            broker.advance(ms(20));
        }
        assert_eq!(got, numbered(300));
    }
}

#[test]
fn a_topic_without_channels_overflows_too() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 2);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5_000)));
    assert_eq!(broker.disk.depth("t"), 4_998);
    let consumer = broker.subscribe("t", "c", 2500);
    assert_eq!(finish_all(&mut broker, consumer), numbered(5_000));
    assert_eq!(broker.disk.depth("t"), 0);
}

#[test]
fn deferred_messages_that_are_due_keep_to_the_bound() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 10);
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    for body in numbered(100) {
        broker.send(publisher, put_deferred("t", 5, &body));
    }
    broker.advance(ms(10));
    let channel = broker.channel("t", "c");
    assert_eq!((channel.depth, channel.backend_depth), (100, 90));
    broker.send(consumer, "RDY 3\n");
    assert_eq!(finish_all(&mut broker, consumer), numbered(100));
}

#[test]
fn what_comes_back_goes_to_the_log_where_memory_is_full() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let consumer = broker.subscribe("t", "c", 50);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(50)));
    assert_eq!(broker.messages(consumer).len(), 50);
    assert_eq!(broker.disk.depth("t:c"), 0);
    broker.disconnect(consumer);
    broker.advance(ms(10));
    assert_eq!(broker.disk.depth("t:c"), 50, "they would survive a kill again");
    let consumer = broker.subscribe("t", "c", 50);
    let again = broker.messages(consumer);
    assert_eq!(again.iter().map(|message| message.attempts).collect::<Vec<_>>(), [2; 50]);
}

#[test]
fn a_queue_is_bounded_in_bytes() {
    let mut broker = Broker::with(|config| config.max_queue_bytes = 1_000);
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    for _ in 0..10 {
        broker.publish(publisher, "t", &"x".repeat(300));
    }
    assert_eq!(broker.channel("t", "c").backend_depth, 7, "three reach the bound, with their bookkeeping");
    broker.send(consumer, "RDY 20\n");
    assert_eq!(broker.messages(consumer).len(), 10);
}

#[test]
fn a_slow_log_holds_publishers_back_and_loses_nothing() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.disk.delay = ms(10);
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    let body = "x".repeat(1 << 19);
    for number in 0..80 {
        broker.send(publisher, put("t", &format!("{number} {body}")));
    }
    assert!(broker.unread(publisher) > 10 << 20, "8 MiB wait for the log, the rest for their turn");
    assert_eq!(broker.topic("t").blocked_publishers, 1);
    broker.advance(SECOND * 2);
    assert_eq!(broker.replies(publisher), vec![ok(); 80]);
    broker.disk.delay = Duration::ZERO;
    broker.send(consumer, "RDY 2500\n");
    let got: Vec<_> =
        finish_all(&mut broker, consumer).iter().map(|b| b.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(got, numbered(80));
}

#[test]
fn a_full_disk_refuses_publishes_and_recovers_by_itself() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 2);
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.disk.full = true;
    broker.replies(publisher);
    let text = "E_PUB_FAILED PUB failed message log cannot be written: no space left on device";
    broker.send(publisher, put("t", "4"));
    assert_eq!(broker.error(publisher), text, "it is not safe, though it is kept");
    broker.send(publisher, put("t", "refused"));
    assert_eq!((broker.error(publisher).as_str(), broker.is_closed(publisher)), (text, false));
    assert_eq!(broker.log_errors(), ["no space left on device"]);
    broker.publish(publisher, "other", "has room in memory");
    // Consumers drain what is in memory and what is readable.
    broker.send(consumer, "RDY 1\n");
    assert_eq!(finish_all(&mut broker, consumer), numbered(4));
    assert_eq!(broker.channel("t", "c").depth, 1, "what was taken is kept");
    broker.disk.full = false;
    broker.advance(SECOND);
    assert_eq!(finish_all(&mut broker, consumer), ["4"]);
    assert_eq!(broker.log_errors(), Vec::<&str>::new());
    broker.publish(publisher, "t", "5");
    assert_eq!(finish_all(&mut broker, consumer), ["5"]);
}

#[test]
fn two_queues_with_a_full_disk_both_have_to_recover() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let publisher = broker.connect();
    for topic in ["a", "b"] {
        broker.create_channel(topic, "c");
    }
    broker.disk.full = true;
    broker.send(publisher, put("a", "m"));
    broker.advance(ms(100));
    broker.send(publisher, put("b", "m"));
    broker.disk.full = false;
    broker.advance(ms(150));
    assert_eq!(broker.log_errors().len(), 1, "b has not been tried again yet");
    broker.advance(ms(100));
    assert_eq!(broker.log_errors(), Vec::<&str>::new());
}

#[test]
fn emptying_a_queue_whose_appends_fail_ends_the_failure() {
    for retrying in [false, true] {
        let mut broker = Broker::with(|config| config.mem_queue_size = 0);
        let consumer = broker.subscribe("t", "c", 0);
        let publisher = broker.connect();
        broker.disk.full = true;
        broker.disk.delay = ms(10);
        broker.advance(ms(20));
        broker.send(publisher, put("t", "dropped"));
        if retrying {
            broker.advance(ms(100));
        }
        broker.order(AdminRequest::EmptyChannel(topic_name("t"), channel_name("c")));
        broker.disk.full = false;
        broker.advance(SECOND);
        assert_eq!(broker.log_errors(), Vec::<&str>::new());
        assert_eq!(broker.replies(publisher).len(), 1, "OK, or that the log fails");
        broker.send(publisher, put("t", "kept"));
        broker.send(consumer, "RDY 1\n");
        broker.advance(SECOND);
        assert_eq!(finish_all(&mut broker, consumer), ["kept"]);
    }
}

#[test]
fn deleting_a_queue_whose_appends_fail_ends_the_failure() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.create_channel("t", "c");
    let publisher = broker.connect();
    broker.disk.full = true;
    broker.send(publisher, put("t", "m"));
    assert_eq!(broker.log_errors().len(), 1);
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    assert_eq!(broker.log_errors(), Vec::<&str>::new());
}

#[test]
fn a_failed_read_is_tried_again() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(3)));
    broker.disk.unreadable = true;
    broker.send(consumer, "RDY 1\n");
    assert_eq!((broker.replies(consumer), broker.log_errors().len()), (vec![], 1));
    broker.advance(SECOND);
    broker.disk.unreadable = false;
    broker.advance(SECOND);
    assert_eq!(finish_all(&mut broker, consumer), numbered(3));
    assert_eq!(broker.log_errors(), Vec::<&str>::new(), "it reads again, so nothing is wrong any more");
}

#[test]
fn emptying_while_reads_and_appends_are_under_way_drops_all_of_it_and_nothing_later() {
    for unreadable in [false, true] {
        let mut broker = Broker::with(|config| config.mem_queue_size = 0);
        let consumer = broker.subscribe("t", "c", 0);
        let publisher = broker.connect();
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.replies(publisher);
        broker.disk.delay = ms(10);
        broker.disk.unreadable = unreadable;
        broker.send(consumer, "RDY 100\n"); // A read is under way,
        broker.send(publisher, put("t", "dropped")); // and an append,
        broker.send(publisher, put("t", "dropped")); // and more waits behind it.
        broker.order(AdminRequest::EmptyChannel(topic_name("t"), channel_name("c")));
        assert_eq!(broker.channel("t", "c").depth, 0);
        broker.send(publisher, put("t", "kept 1"));
        broker.advance(ms(10)); // The read under way is answered.
        broker.disk.unreadable = false;
        broker.send(publisher, put("t", "kept 2"));
        broker.advance(SECOND);
        assert_eq!(broker.replies(publisher), vec![ok(); 4]);
        assert_eq!(finish_all(&mut broker, consumer), ["kept 1", "kept 2"]);
        broker.advance(SECOND);
        let depth = broker.channel("t", "c").depth;
        assert_eq!((depth, broker.disk.depth("t:c"), broker.log_errors().len()), (0, 0, 0));
    }
}

#[test]
fn emptying_before_the_log_is_open_counts_nothing_twice() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(3)));
    let mut broker = {
        broker.create_channel("t", "c");
        broker.disk.delay = ms(10);
        broker.restart()
    };
    broker.order(AdminRequest::EmptyChannel(topic_name("t"), channel_name("c")));
    broker.advance(SECOND);
    assert_eq!((broker.channel("t", "c").depth, broker.disk.depth("t:c")), (0, 0));
}

#[test]
fn deleting_while_reads_and_appends_are_under_way_leaves_nothing_behind() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let publisher = broker.connect();
    for round in 0..5 {
        let consumer = broker.subscribe("t", "c", 0);
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.disk.delay = ms(10);
        broker.advance(ms(7 * round));
        broker.send(consumer, "RDY 1\n");
        broker.send(publisher, put_many("t", &numbered(3)));
        broker.order(AdminRequest::DeleteTopic(topic_name("t")));
        assert!(broker.is_closed(consumer));
    }
    broker.advance(SECOND);
    assert!(broker.disk.files.is_empty());
    broker.replies(publisher);
    broker.send(publisher, put("t", "anew"));
    broker.advance(SECOND);
    assert_eq!(broker.disk.bodies("t"), ["anew"]);
}

#[test]
fn back_pressure_holds_publishers_until_there_is_room() {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 3;
        config.queue_policy = QueuePolicy::BackPressure;
    });
    let consumer = broker.subscribe("t", "c", 0);
    let publishers = [broker.connect(), broker.connect()];
    for number in 0..10 {
        broker.send(publishers[number % 2], put("t", &number.to_string()));
    }
    assert_eq!((broker.channel("t", "c").depth, broker.topic("t").blocked_publishers), (3, 2));
    let elsewhere = broker.connect();
    broker.publish(elsewhere, "other", "others go on");
    broker.send(consumer, "RDY 1\n");
    let mut got = finish_all(&mut broker, consumer);
    got.sort();
    assert_eq!(got, numbered(10));
    assert_eq!(publishers.map(|publisher| broker.replies(publisher).len()), [5, 5]);
    assert_eq!(broker.disk.appends, 0);
}

#[test]
fn a_held_publisher_may_go_and_its_topic_too() {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 1;
        config.queue_policy = QueuePolicy::BackPressure;
    });
    let [stays, goes] = [broker.connect(), broker.connect()];
    broker.publish(stays, "t", "0");
    broker.send(stays, put("t", "1"));
    broker.send(goes, put("t", "lost with its publisher"));
    broker.disconnect(goes);
    assert_eq!(broker.topic("t").blocked_publishers, 1);
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    assert_eq!(broker.replies(stays), [ok()], "the topic is new, and has room");
    let consumer = broker.subscribe("t", "c", 5);
    assert_eq!(broker.bodies(consumer), ["1"]);
}

#[test]
fn a_held_publisher_is_not_taken_for_silent() {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 1;
        config.queue_policy = QueuePolicy::BackPressure;
    });
    let publisher = broker.connect();
    broker.publish(publisher, "t", "0");
    broker.send(publisher, put("t", "1"));
    broker.advance(SECOND * 600);
    assert!(!broker.is_closed(publisher), "its answers to heartbeats are not read");
}

#[test]
fn the_policy_refuse_answers_with_an_error() {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 2;
        config.queue_policy = QueuePolicy::Refuse;
    });
    let publisher = broker.connect();
    broker.publish(publisher, "t", "0");
    broker.publish(publisher, "t", "1");
    broker.send(publisher, put("t", "2"));
    assert_eq!(broker.error(publisher), "E_PUB_FAILED PUB failed queue is full");
    assert!(!broker.is_closed(publisher));
    broker.send(publisher, put_many("t", &["2"]));
    assert_eq!(broker.error(publisher), "E_MPUB_FAILED MPUB failed queue is full");
    let publish = over_http("t", &["2"], None);
    assert!(matches!(broker.admin(publish), AdminReply::Refused(PublishRefused::QueueFull)));
    let consumer = broker.subscribe("t", "c", 5);
    assert_eq!(finish_all(&mut broker, consumer), numbered(2));
    broker.publish(publisher, "t", "2");
}

#[test]
fn the_policy_drop_oldest_keeps_the_newest() {
    let mut broker = Broker::with(|config| {
        config.mem_queue_size = 3;
        config.queue_policy = QueuePolicy::DropOldest;
    });
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!((broker.topic("t").depth, broker.topic("t").dropped_total), (3, 2));
    let consumer = broker.subscribe("t", "c", 0);
    broker.send(publisher, put("t", "5"));
    assert_eq!(broker.channel("t", "c").dropped_total, 1);
    broker.send(consumer, "RDY 9\n");
    assert_eq!(broker.bodies(consumer), ["3", "4", "5"]);
}

#[test]
fn drop_oldest_makes_room_for_the_bytes_of_the_new_message() {
    let mut broker = Broker::with(|config| {
        config.max_queue_bytes = 1_000;
        config.queue_policy = QueuePolicy::DropOldest;
    });
    broker.create_channel("t", "c");
    let publisher = broker.connect();
    for _ in 0..10 {
        broker.publish(publisher, "t", &"x".repeat(100));
    }
    for _ in 0..5 {
        broker.publish(publisher, "t", &"x".repeat(1_000));
    }
    assert_eq!(broker.channel("t", "c").depth, 1, "the newest alone fills the queue");
    assert_eq!(broker.channel("t", "c").dropped_total, 14);
}

/// A broker with messages in every place that there is.
fn with_messages_everywhere() -> Broker {
    let mut broker = Broker::with(|config| config.mem_queue_size = 2);
    let consumer = broker.subscribe("t", "c", 3);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(8))); // Three in flight, two in memory, three in the log.
    broker.send(publisher, put_deferred("t", 60_000, "8")); // Deferred,
    let first = broker.messages(consumer).swap_remove(0);
    broker.send(consumer, req(&first, 60_000)); // and deferred after a delivery.
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Paused));
    broker.send(publisher, put_many("t", &["9", "10", "11"])); // Two in the topic's memory, one in its log.
    broker.limit("t", harness::wait(1, 1));
    broker.send(publisher, put_many("t", &["12", "13", "14"])); // Two in line for their tokens.
    broker.send(publisher, put("no-channel", "15"));
    broker
}

#[test]
fn stopping_saves_every_message_wherever_it_is() {
    for delay in [Duration::ZERO, ms(10)] {
        let mut broker = with_messages_everywhere();
        broker.disk.delay = delay;
        let mut broker = broker.restart();
        broker.advance(SECOND);
        assert_eq!(broker.topic("t").channels.len(), 1);
        assert!(broker.topic("t").paused, "it was paused");
        broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Flowing));
        let consumer = broker.subscribe("t", "c", 100);
        broker.advance(SECOND * 10);
        let mut messages = broker.messages(consumer);
        messages.sort_by_key(|message| message.body.parse::<u32>().unwrap());
        let bodies: Vec<_> = messages.iter().map(|message| message.body.clone()).collect();
        assert_eq!(bodies, numbered(15));
        let attempts: Vec<_> = messages.iter().take(4).map(|message| message.attempts).collect();
        assert_eq!(attempts, [2, 2, 2, 2], "deliveries before the restart count");
        let other = broker.subscribe("no-channel", "c", 1);
        broker.advance(SECOND);
        assert_eq!(broker.bodies(other), ["15"]);
    }
}

#[test]
fn what_an_earlier_run_left_goes_before_what_is_new() {
    for policy in [QueuePolicy::Overflow, QueuePolicy::BackPressure, QueuePolicy::Refuse, QueuePolicy::DropOldest] {
        let mut broker = Broker::with(|config| config.queue_policy = policy);
        let publisher = broker.connect();
        broker.subscribe("t", "c", 0);
        broker.send(publisher, put_many("t", &numbered(5)));
        let mut broker = broker.restart();
        broker.advance(SECOND);
        let publisher = broker.connect();
        broker.publish(publisher, "t", "5");
        broker.publish(publisher, "t", "6");
        let consumer = broker.subscribe("t", "c", 100);
        broker.advance(SECOND);
        assert_eq!(broker.bodies(consumer), numbered(7), "{policy:?}");
    }
}

#[test]
fn stopping_in_the_middle_of_reading_loses_nothing_and_uses_no_closed_queue() {
    for wait_ms in 0..12 {
        let mut broker = Broker::with(|config| config.mem_queue_size = 0);
        let publisher = broker.connect();
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.disk.delay = ms(3);
        let consumer = broker.subscribe("t", "c", 2);
        broker.advance(ms(wait_ms));
        let seen = broker.messages(consumer).len();
        let mut broker = broker.restart();
        broker.disk.delay = Duration::ZERO;
        broker.advance(SECOND);
        let consumer = broker.subscribe("t", "c", 100);
        broker.advance(SECOND);
        let mut got = broker.bodies(consumer);
        got.sort();
        assert_eq!(got, numbered(10), "stopped after {wait_ms} ms, {seen} in flight");
    }
}

#[test]
fn a_stopping_broker_takes_nothing_and_closes_its_connections() {
    let mut broker = Broker::default();
    let (consumer, publisher) = (broker.subscribe("t", "c", 1), broker.connect());
    broker.publish(publisher, "t", "m");
    broker.drain();
    assert!(broker.is_closed(consumer) && broker.is_closed(publisher));
    let publish = over_http("new", &["m"], None);
    assert!(matches!(broker.admin(publish), AdminReply::Refused(PublishRefused::Exiting)));
    assert!(matches!(
        broker.admin(AdminRequest::CreateTopic(topic_name("new"))),
        AdminReply::Refused(PublishRefused::Exiting)
    ));
    assert_eq!(broker.disk.files.keys().collect::<Vec<_>>(), ["t", "t:c"]);
    assert_eq!(broker.disk.bodies("t:c"), ["m"]);
    broker.drain();
}

#[test]
fn new_messages_queue_behind_those_of_the_last_run() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 100);
    broker.create_channel("t", "c");
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    let mut broker = broker.restart();
    let publisher = broker.connect();
    broker.publish(publisher, "t", "5");
    let consumer = broker.subscribe("t", "c", 1);
    assert_eq!(finish_all(&mut broker, consumer), numbered(6));
}

#[test]
fn a_message_that_a_crash_left_twice_is_answered_once() {
    let mut broker = Broker::default();
    for _ in 0..2 {
        // Both copies have the same id.
        broker.disk.keep("t:c", &["twin".to_owned()]);
    }
    broker.create_channel("t", "c");
    let client = broker.subscribe("t", "c", 10);
    broker.advance(SECOND);
    let messages = broker.messages(client);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].id, messages[1].id);
    broker.send(client, req(&messages[0], 500));
    assert_eq!(broker.channel("t", "c").in_flight, 0);
    broker.advance(SECOND);
    let again = broker.messages(client);
    assert_eq!(again.len(), 1);
    broker.finish(client, &again[0]);
    let channel = broker.channel("t", "c");
    assert_eq!((channel.in_flight, channel.depth, channel.deferred), (0, 0, 0));
}

#[test]
fn a_message_is_in_the_log_of_its_topic_until_that_of_its_channel_has_it() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    broker.disk.keep("t", &numbered(3));
    broker.disk.delay = ms(10);
    broker.create_channel("t", "c");
    let (mut seen, mut steps) = (0, 0);
    while seen < 3 || broker.disk.depth("t") > 0 {
        broker.advance(ms(1));
        seen = broker.disk.depth("t:c");
        assert!(seen == 3 || broker.disk.depth("t") == 3, "a kill now would lose {}", 3 - seen);
        steps += 1;
        assert!(steps < 1_000, "the log of the topic is not advanced over");
    }
}

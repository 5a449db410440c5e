//! What publishers and subscribers can rely on.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{
    Broker, Client, Message, Reply, SECOND, START_UNIX_NS, channel_name, fin, ms, numbered, over_http, put,
    put_deferred, put_many, req, sized, topic_name, touch,
};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Pause};
use tidegate_broker::machine::output::{Layers, Notice};

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

/// The one message that the client got.
fn only(broker: &mut Broker, client: Client) -> Message {
    let messages = broker.messages(client);
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.into_iter().next().unwrap()
}

#[test]
fn a_message_goes_from_publisher_to_subscriber_and_is_finished() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.advance(ms(5));
    broker.publish(publisher, "t", "hello");
    let message = only(&mut broker, consumer);
    assert_eq!((message.body.as_str(), message.attempts), ("hello", 1));
    assert_eq!(message.timestamp, START_UNIX_NS + 5_000_000);
    assert!(message.id.iter().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit)));
    assert_eq!(broker.channel("t", "c").in_flight, 1);
    broker.finish(consumer, &message);
    let channel = broker.channel("t", "c");
    assert_eq!((channel.in_flight, channel.finished_total, channel.depth), (0, 1, 0));
    assert_eq!(broker.replies(consumer), []);
}

#[test]
fn ids_and_time_stamps_of_messages_are_distinct_and_in_order() {
    let mut broker = Broker::with(|config| config.shards = 3);
    let publisher = broker.connect();
    for topic in ["a", "b", "c", "d"] {
        broker.send(publisher, put_many(topic, &numbered(50)));
    }
    assert_eq!(broker.replies(publisher), vec![ok(); 4]);
    let mut ids = Vec::new();
    for topic in ["a", "b", "c", "d"] {
        let consumer = broker.subscribe(topic, "c", 100);
        ids.extend(broker.messages(consumer).into_iter().map(|message| message.id));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 200);
}

#[test]
fn every_channel_gets_a_copy_and_each_message_one_client_of_a_channel() {
    let mut broker = Broker::default();
    let [first, second] = [(), ()].map(|()| broker.subscribe("t", "shared", 10));
    let alone = broker.subscribe("t", "alone", 100);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(20)));
    let (mut shared, other) = (broker.bodies(first), broker.bodies(second));
    assert_eq!((shared.len(), other.len()), (10, 10));
    shared.extend(other);
    shared.sort_by_key(|body| body.parse::<u32>().unwrap());
    assert_eq!(shared, numbered(20));
    assert_eq!(broker.bodies(alone), numbered(20));
}

#[test]
fn a_topic_keeps_messages_for_its_first_channel() {
    let mut broker = Broker::default();
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!(broker.topic("t").depth, 5);
    let consumer = broker.subscribe("t", "first", 10);
    assert_eq!(broker.bodies(consumer), numbered(5));
    let late = broker.subscribe("t", "second", 10);
    assert_eq!(broker.bodies(late), Vec::<String>::new());
}

#[test]
fn messages_are_dealt_to_ready_clients_in_turn() {
    let mut broker = Broker::default();
    let clients = [5, 5, 2].map(|ready| broker.subscribe("t", "c", ready));
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(9)));
    let dealt = clients.map(|client| broker.bodies(client));
    assert_eq!(dealt, [vec!["0", "3", "6", "8"], vec!["1", "4", "7"], vec!["2", "5"]]);
}

#[test]
fn rdy_bounds_what_is_in_flight() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    let held = broker.messages(consumer);
    assert_eq!(held.len(), 2);
    broker.finish(consumer, &held[0]);
    assert_eq!(broker.bodies(consumer), ["2"]);
    broker.send(consumer, "RDY 0\n");
    broker.finish(consumer, &held[1]);
    assert_eq!(broker.replies(consumer), []);
    broker.send(consumer, "RDY\n");
    assert_eq!(broker.replies(consumer), [], "one is in flight, and RDY without a count means one");
    broker.send(consumer, "RDY 3\n");
    assert_eq!(broker.bodies(consumer), ["3", "4"]);
}

#[test]
fn a_requeued_message_comes_back_at_once_or_after_its_delay() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, consumer);
    broker.send(consumer, req(&message, 0));
    let again = only(&mut broker, consumer);
    assert_eq!((again.id, again.attempts, again.timestamp), (message.id, 2, message.timestamp));
    let asked = broker.now;
    broker.send(consumer, req(&again, 100));
    assert_eq!(broker.channel("t", "c").deferred, 1);
    assert_eq!(broker.channel("t", "c").in_flight, 0);
    broker.advance(SECOND);
    let third = only(&mut broker, consumer);
    assert_eq!((third.attempts, third.at), (3, asked + ms(100)));
    assert_eq!(broker.channel("t", "c").requeued_total, 2);
}

#[test]
fn a_requeue_delay_is_clamped_to_the_maximum() {
    let mut broker = Broker::with(|config| config.max_req_timeout = SECOND);
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, consumer);
    let asked = broker.now;
    broker.send(consumer, req(&message, 99_000_000));
    broker.advance(SECOND * 2);
    assert_eq!(only(&mut broker, consumer).at, asked + SECOND);
}

#[test]
fn an_unanswered_message_times_out_within_a_millisecond_of_its_deadline_and_never_before() {
    let mut broker = Broker::default();
    let consumer = broker.connect();
    broker.send(consumer, sized("IDENTIFY", r#"{"msg_timeout": 1500}"#));
    broker.send(consumer, "SUB t c\nRDY 1\n");
    let publisher = broker.connect();
    broker.advance(Duration::from_nanos(123_456));
    broker.publish(publisher, "t", "m");
    let [_, _, Reply::Message(message)] = &broker.replies(consumer)[..] else { panic!("two OKs and a message") };
    broker.advance_to(message.at.plus_nanos(1_500_000_000 - 1));
    assert_eq!(broker.channel("t", "c").timed_out_total, 0);
    broker.advance(ms(1));
    let again = only(&mut broker, consumer);
    assert_eq!((again.at - message.at).as_millis(), 1500);
    assert_eq!(again.attempts, 2);
    let channel = broker.channel("t", "c");
    assert_eq!((channel.timed_out_total, channel.in_flight), (1, 1));
    broker.send(consumer, fin(message));
    assert_eq!(broker.channel("t", "c").finished_total, 1, "the id is the same: the second delivery is answered");
}

#[test]
fn the_answer_to_a_timed_out_message_is_refused() {
    let mut broker = Broker::with(|config| config.msg_timeout = SECOND);
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, consumer);
    broker.send(consumer, "RDY 0\n");
    broker.advance(SECOND);
    assert_eq!((broker.channel("t", "c").in_flight, broker.channel("t", "c").depth), (0, 1));
    for (bytes, verb) in [(fin(&message), "FIN"), (req(&message, 0), "REQ"), (touch(&message), "TOUCH")] {
        broker.send(consumer, bytes);
        let id = std::str::from_utf8(&message.id).unwrap();
        assert_eq!(broker.error(consumer), format!("E_{verb}_FAILED {verb} {id} failed ID not in flight"));
    }
    assert!(!broker.is_closed(consumer));
    assert_eq!(broker.channel("t", "c").depth, 1);
}

#[test]
fn touch_extends_the_time_out_up_to_the_maximum() {
    let mut broker = Broker::with(|config| {
        config.msg_timeout = SECOND * 2;
        config.max_msg_timeout = SECOND * 5;
    });
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, consumer);
    for _ in 0..4 {
        broker.advance(SECOND);
        broker.send(consumer, touch(&message));
    }
    broker.advance(Duration::from_nanos(999_999_999));
    assert_eq!(broker.replies(consumer), []);
    broker.advance(Duration::from_nanos(1));
    assert_eq!(only(&mut broker, consumer).at, message.at + SECOND * 5);
}

#[test]
fn only_the_client_that_holds_a_message_can_answer_it() {
    let mut broker = Broker::default();
    let owner = broker.subscribe("t", "c", 1);
    let stranger = broker.subscribe("t", "c", 0);
    let elsewhere = broker.subscribe("t", "d", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, owner);
    assert_eq!(only(&mut broker, elsewhere).id, message.id, "copies share their id");
    for (bytes, code) in [(fin(&message), "E_FIN"), (req(&message, 0), "E_REQ"), (touch(&message), "E_TOUCH")] {
        broker.send(stranger, bytes);
        assert!(broker.error(stranger).starts_with(code));
    }
    assert_eq!(broker.channel("t", "c").in_flight, 1);
    broker.finish(owner, &message);
    assert_eq!(broker.channel("t", "c").finished_total, 1);
    assert_eq!(broker.channel("t", "d").in_flight, 1, "the other channel's copy is untouched");
}

#[test]
fn a_deferred_publish_is_punctual_also_on_a_topic_and_channel_just_made() {
    let mut broker = Broker::default();
    let publisher = broker.connect();
    let start = broker.now;
    broker.send(publisher, put_deferred("new", 750, "m"));
    assert_eq!(broker.replies(publisher), [ok()]);
    broker.advance(ms(300));
    let consumer = broker.subscribe("new", "c", 1);
    broker.advance(ms(449));
    assert_eq!(broker.replies(consumer), []);
    assert_eq!(broker.channel("new", "c").deferred, 1);
    broker.advance(ms(10));
    let message = only(&mut broker, consumer);
    assert_eq!((message.at, message.attempts), (start + ms(750), 1));
}

#[test]
fn a_closed_connection_gives_its_messages_back_at_once_and_in_order() {
    let mut broker = Broker::default();
    let first = broker.subscribe("t", "c", 3);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(3)));
    assert_eq!(broker.messages(first).len(), 3);
    let second = broker.subscribe("t", "c", 10);
    broker.disconnect(first);
    let again = broker.messages(second);
    assert_eq!(again.iter().map(|m| m.body.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    assert!(again.iter().all(|message| message.attempts == 2));
    assert_eq!(broker.channel("t", "c").in_flight, 3);
    assert_eq!(broker.channel("t", "c").client_count, 1);
}

#[test]
fn cls_ends_the_flow_and_leaves_time_to_finish() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    let message = only(&mut broker, consumer);
    broker.send(consumer, "CLS\n");
    assert_eq!(broker.replies(consumer), [Reply::Response("CLOSE_WAIT".to_owned())]);
    broker.publish(publisher, "t", "n");
    broker.send(consumer, "RDY 5\n");
    assert_eq!(broker.replies(consumer), []);
    broker.finish(consumer, &message);
    assert_eq!((broker.replies(consumer), broker.is_closed(consumer)), (vec![], false));
    assert_eq!(broker.channel("t", "c").depth, 1);
}

#[test]
fn a_batch_is_published_whole_or_not_at_all() {
    let mut broker = Broker::with(|config| config.max_msg_size = 10);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &["a", "b", "too long for this broker"]));
    assert_eq!(broker.error(publisher), "E_BAD_MESSAGE MPUB message too big 24 > 10");
    assert!(!broker.has_topic("t"));
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &["a", "b"]));
    assert_eq!(broker.replies(publisher), [ok()]);
    assert_eq!(broker.topic("t").offered_total, 2);
}

#[test]
fn a_paused_topic_keeps_its_messages() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 10);
    let publisher = broker.connect();
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Paused));
    broker.send(publisher, put_many("t", &numbered(3)));
    assert_eq!((broker.topic("t").depth, broker.topic("t").paused), (3, true));
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Flowing));
    assert_eq!(broker.bodies(consumer), numbered(3));
    let paused = [Pause::Paused, Pause::Flowing].map(|pause| Notice::PauseChanged(topic_name("t"), None, pause));
    assert!(broker.notices.ends_with(&paused));
}

#[test]
fn a_paused_channel_keeps_its_messages_and_others_flow() {
    let mut broker = Broker::default();
    let (paused, other) = (broker.subscribe("t", "p", 10), broker.subscribe("t", "o", 10));
    let publisher = broker.connect();
    broker.order(AdminRequest::PauseChannel(topic_name("t"), channel_name("p"), Pause::Paused));
    broker.publish(publisher, "t", "m");
    assert_eq!((broker.bodies(paused).len(), broker.bodies(other).len()), (0, 1));
    broker.order(AdminRequest::PauseChannel(topic_name("t"), channel_name("p"), Pause::Flowing));
    assert_eq!(broker.bodies(paused), ["m"]);
}

#[test]
fn what_is_ephemeral_goes_with_its_last_client() {
    let mut broker = Broker::default();
    let first = broker.subscribe("t#ephemeral", "c#ephemeral", 1);
    let second = broker.subscribe("t#ephemeral", "c#ephemeral", 1);
    let publisher = broker.connect();
    broker.publish(publisher, "t#ephemeral", "m");
    broker.disconnect(first);
    assert_eq!(broker.channel("t#ephemeral", "c#ephemeral").client_count, 1);
    broker.disconnect(second);
    assert!(!broker.has_topic("t#ephemeral"));
    let (topic, channel) = (topic_name("t#ephemeral"), channel_name("c#ephemeral"));
    assert_eq!(broker.notices[2..], [Notice::ChannelDeleted(topic.clone(), channel), Notice::TopicDeleted(topic)]);
    assert!(broker.disk.files.is_empty());
    broker.publish(publisher, "t#ephemeral", "again");
    assert_eq!(broker.topic("t#ephemeral").depth, 1);
}

#[test]
fn an_ephemeral_channel_does_not_take_its_topic_along() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c#ephemeral", 1);
    broker.disconnect(consumer);
    assert!(broker.topic("t").channels.is_empty());
}

#[test]
fn an_ephemeral_queue_drops_what_does_not_fit() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 3);
    let consumer = broker.subscribe("t", "c#ephemeral", 0);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    assert_eq!(broker.channel("t", "c#ephemeral").dropped_total, 2);
    broker.send(consumer, "RDY 9\n");
    assert_eq!(broker.bodies(consumer), ["0", "1", "2"]);
}

#[test]
fn an_ephemeral_channel_delivers_to_a_waiting_client_even_without_memory() {
    let mut broker = Broker::with(|config| config.mem_queue_size = 0);
    let consumer = broker.subscribe("t#ephemeral", "c#ephemeral", 5);
    let publisher = broker.connect();
    for body in ["a", "b"] {
        broker.publish(publisher, "t#ephemeral", body);
    }
    assert_eq!(broker.bodies(consumer), ["a", "b"]);
}

#[test]
fn deleting_a_channel_disconnects_its_clients_and_forgets_its_messages() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 1);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.send(publisher, put_deferred("t", 1000, "later"));
    assert_eq!(broker.messages(consumer).len(), 1);
    broker.order(AdminRequest::DeleteChannel(topic_name("t"), channel_name("c")));
    assert!(broker.is_closed(consumer));
    broker.advance(SECOND * 100);
    assert!(broker.topic("t").channels.is_empty());
    assert_eq!(broker.disk.files.keys().collect::<Vec<_>>(), ["t"]);
    assert!(matches!(
        broker.admin(AdminRequest::DeleteChannel(topic_name("t"), channel_name("c"))),
        AdminReply::ChannelNotFound
    ));
}

#[test]
fn deleting_a_topic_ends_everything_in_it() {
    let mut broker = Broker::default();
    let consumers = ["c", "d"].map(|channel| broker.subscribe("t", channel, 1));
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    assert!(consumers.iter().all(|consumer| broker.is_closed(*consumer)));
    assert!(!broker.has_topic("t") && broker.disk.files.is_empty());
    assert!(matches!(broker.admin(AdminRequest::DeleteTopic(topic_name("t"))), AdminReply::TopicNotFound));
    broker.replies(publisher);
    broker.publish(publisher, "t", "anew");
    assert_eq!(broker.topic("t").depth, 1);
}

#[test]
fn a_connection_that_goes_while_its_channel_is_deleted_costs_no_other_its_place() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 1);
    // All in one batch: the channel's clients are to be closed, this one is gone already, and its number is taken again.
    let newcomer = broker.replace_while_deleting(consumer, "t");
    broker.send(newcomer, "  V2NOP\n");
    assert!(!broker.is_closed(newcomer));
}

#[test]
fn emptying_a_channel_drops_what_waits_and_what_is_in_flight() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    broker.send(publisher, put_deferred("t", 50, "later"));
    let held = broker.messages(consumer);
    broker.order(AdminRequest::EmptyChannel(topic_name("t"), channel_name("c")));
    let channel = broker.channel("t", "c");
    assert_eq!((channel.depth, channel.in_flight, channel.deferred), (0, 0, 0));
    broker.send(consumer, fin(&held[0]));
    assert!(broker.error(consumer).starts_with("E_FIN_FAILED"));
    broker.replies(publisher);
    broker.send(publisher, put_many("t", &["x", "y", "z"]));
    assert_eq!(broker.bodies(consumer), ["x", "y"], "it may have two in flight again");
    broker.advance(SECOND);
    assert_eq!(broker.channel("t", "c").depth, 1);
}

#[test]
fn emptying_a_topic_leaves_its_channels_alone() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 0);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "kept");
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Paused));
    broker.publish(publisher, "t", "dropped");
    broker.order(AdminRequest::EmptyTopic(topic_name("t")));
    broker.order(AdminRequest::PauseTopic(topic_name("t"), Pause::Flowing));
    broker.send(consumer, "RDY 9\n");
    assert_eq!(broker.bodies(consumer), ["kept"]);
}

#[test]
fn a_sampling_client_gets_its_share_and_eats_the_rest() {
    let mut broker = Broker::default();
    let consumer = broker.connect();
    broker.send(consumer, sized("IDENTIFY", r#"{"sample_rate": 25}"#));
    broker.send(consumer, "SUB t c\nRDY 2500\n");
    broker.replies(consumer);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(2_000)));
    let got = broker.messages(consumer).len();
    // nsqd lets 26 of 100 numbers pass at rate 25; six standard deviations of 2,000 draws are 118.
    assert!((402..638).contains(&got), "{got}");
    assert_eq!(broker.channel("t", "c").depth, 0);
}

#[test]
fn heartbeats_keep_a_connection_and_two_silent_intervals_end_it() {
    let mut broker = Broker::default();
    let (silent, answering) = (broker.connect(), broker.connect());
    for client in [silent, answering] {
        broker.send(client, sized("IDENTIFY", r#"{"heartbeat_interval": 1000}"#));
        assert_eq!(broker.replies(client), [ok()]);
    }
    broker.advance(ms(999));
    assert_eq!(broker.replies(silent), []);
    broker.advance(ms(1));
    assert_eq!(broker.replies(silent), [Reply::Response("_heartbeat_".to_owned())]);
    broker.send(answering, "NOP\n");
    broker.advance(ms(999));
    assert!(!broker.is_closed(silent));
    broker.advance(ms(1));
    assert!(broker.is_closed(silent) && !broker.is_closed(answering));
    assert_eq!(broker.replies(answering).len(), 2);
}

#[test]
fn a_connection_that_never_speaks_is_closed() {
    let mut broker = Broker::default();
    let client = broker.raw();
    broker.advance(Duration::from_secs(59));
    assert!(!broker.is_closed(client));
    broker.advance(SECOND);
    assert!(broker.is_closed(client));
    assert_eq!(broker.replies(client), [], "who has not said the magic gets no heartbeat");
}

#[test]
fn heartbeats_can_be_turned_off_by_publishers() {
    let mut broker = Broker::default();
    let client = broker.connect();
    broker.send(client, sized("IDENTIFY", r#"{"heartbeat_interval": -1}"#));
    broker.advance(Duration::from_hours(5));
    assert_eq!(broker.replies(client), [ok()]);
    broker.publish(client, "t", "m");
}

#[test]
fn identify_answers_what_was_negotiated() {
    let mut broker = Broker::with(|config| config.tls = true);
    let client = broker.connect();
    let asked = r#"{"feature_negotiation": true, "tls_v1": true, "snappy": true, "deflate": false, "sample_rate": 7,
        "msg_timeout": 2000, "output_buffer_size": -1, "output_buffer_timeout": 30, "unknown": [1], "user_agent": null}"#;
    broker.send(client, sized("IDENTIFY", asked));
    let replies = broker.replies(client);
    let [Reply::Response(json), tls, snappy] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!([tls, snappy], [&ok(), &ok()], "each layer is confirmed inside itself");
    let answer: serde_json::Value = serde_json::from_str(json).unwrap();
    let expected = serde_json::json!({
        "max_rdy_count": 2500, "version": "0.1.0", "max_msg_timeout": 900_000, "msg_timeout": 2000, "tls_v1": true,
        "deflate": false, "deflate_level": 6, "max_deflate_level": 6, "snappy": true, "sample_rate": 7,
        "auth_required": false, "output_buffer_size": 1, "output_buffer_timeout": 0,
    });
    assert_eq!(answer, expected);
    assert_eq!(broker.layers(client), Some(Layers { tls: true, snappy: true, deflate: None }));
    broker.publish(client, "t", "after the upgrade");
}

#[test]
fn identify_says_where_a_client_comes_from() {
    let mut broker = Broker::default();
    let client = broker.connect();
    broker.send(client, sized("IDENTIFY", r#"{"client_id": "id", "hostname": "host", "user_agent": "agent/1"}"#));
    broker.send(client, "SUB t c\n");
    let clients = broker.channel("t", "c").clients;
    let [seen] = &clients[..] else { panic!("one client") };
    assert_eq!((seen.client_id.as_str(), seen.hostname.as_str(), seen.user_agent.as_str()), ("id", "host", "agent/1"));
    assert_eq!((seen.state, seen.version), (3, "V2"));
}

#[test]
fn a_client_that_does_not_read_gets_no_more_than_its_buffer() {
    let mut broker = Broker::default();
    let (slow, quick) = (broker.subscribe("t", "c", 2500), broker.subscribe("t", "d", 2500));
    broker.set_reading(slow, false);
    let publisher = broker.connect();
    let body = "x".repeat(1024);
    for _ in 0..2000 {
        broker.send(publisher, put("t", &body));
    }
    assert_eq!(broker.messages(quick).len(), 2000);
    let in_flight = broker.channel("t", "c").in_flight;
    assert!((245..=250).contains(&in_flight), "256 KiB of messages, not {in_flight}");
    broker.set_reading(slow, true);
    assert_eq!(broker.messages(slow).len(), 2000);
}

#[test]
fn a_new_topic_can_wait_for_its_channels() {
    let mut broker = Broker::with(|config| config.topics_wait_for_start = true);
    let consumer = broker.subscribe("t", "c", 10);
    let publisher = broker.connect();
    broker.publish(publisher, "t", "m");
    assert_eq!((broker.bodies(consumer).len(), broker.topic("t").depth), (0, 1));
    broker.order(AdminRequest::StartTopic(topic_name("t"), vec![channel_name("other")]));
    assert_eq!(broker.bodies(consumer), ["m"]);
    assert_eq!(broker.channel("t", "other").depth, 1, "a channel that another broker has missed nothing");
}

#[test]
fn http_publishes_pass_the_same_way() {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 10);
    let publish = |defer| over_http("t", &["a", "b"], defer);
    broker.order(publish(None));
    assert_eq!(broker.bodies(consumer), ["a", "b"]);
    broker.order(publish(Some(ms(40))));
    broker.advance(ms(39));
    assert_eq!(broker.replies(consumer), []);
    broker.advance(ms(1));
    assert_eq!(broker.bodies(consumer), ["a", "b"]);
}

#[test]
fn a_trace_holds_every_message_once() {
    let mut broker = Broker::default();
    let publisher = broker.connect();
    broker.order(AdminRequest::Record(topic_name("t"), tidegate_broker::machine::admin::Recording::On));
    for count in [3, 2_000] {
        broker.send(publisher, put_many("t", &numbered(count)));
    }
    broker.order(AdminRequest::Record(topic_name("t"), tidegate_broker::machine::admin::Recording::Off));
    broker.replies(publisher);
    broker.publish(publisher, "t", "unrecorded");
    assert_eq!(broker.passages.len(), 2_003);
    assert!(broker.is_stamped(publisher), "a trace wants exact arrival times");
}

#[test]
fn what_a_crash_made_unknown_is_unknown_after_a_clean_stop_too() {
    let mut broker = Broker::default();
    broker.limit_channel("t", "c", harness::wait(1, 30));
    broker.crashed = true;
    let mut broker = broker.restart().restart_with_limits(&[("t", "c", harness::wait(1, 30))]);
    broker.create_channel("t", "c");
    let tokens = broker.channel("t", "c").limit.unwrap().tokens;
    assert!(tokens < 5.0, "{tokens} tokens of a bucket that held none when the crash was");
}

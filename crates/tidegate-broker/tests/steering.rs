//! Readiness of topics, publishers that are let go, and a node that takes no new ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::{Broker, Client, Reply, channel_name, numbered, put, put_many, sized, topic_name};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Creation, Newcomers, PublishRefused, Readiness};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::publishers::HttpPublisher;

/// A topic that lives on `shard` of two.
fn topic_on(shard: usize) -> String {
    (0..100).map(|number| format!("t{number}")).find(|name| home_shard(name, 2) == shard).unwrap()
}

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

fn ready(broker: &mut Broker, channels: &[&str], creation: Creation) -> Option<(bool, Vec<String>)> {
    let channels = channels.iter().map(|name| channel_name(name)).collect();
    match broker.admin(AdminRequest::Prepare { topic: topic_name("t"), channels, creation }) {
        AdminReply::Readiness(Readiness { started, missing }) => {
            Some((started, missing.iter().map(ToString::to_string).collect()))
        }
        AdminReply::TopicNotFound => None,
        other => panic!("{other:?}"),
    }
}

/// Asks all shards to let these go; answers whom they found.
fn disconnect(broker: &mut Broker, topic: &str, identities: &[&str]) -> Vec<String> {
    let identities = identities.iter().map(ToString::to_string).collect();
    let replies = broker.ask_all(&AdminRequest::Disconnect { topic: topic_name(topic), identities });
    let found = |reply| if let AdminReply::Disconnected(found) = reply { found } else { panic!("{reply:?}") };
    replies.into_iter().flat_map(found).collect()
}

/// A connection that has identified itself, as it would over TCP.
fn identified(broker: &mut Broker, fields: &str) -> Client {
    let client = broker.connect();
    broker.send(client, sized("IDENTIFY", format!("{{{fields}}}")));
    assert_eq!(broker.replies(client), [ok()]);
    client
}

#[test]
fn a_topic_is_ready_when_every_channel_has_a_consumer() {
    let mut broker = Broker::default();
    assert_eq!(ready(&mut broker, &["a"], Creation::Never), None, "a look makes nothing");
    let both = || vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(ready(&mut broker, &["b", "a"], Creation::IfMissing), Some((true, both())));
    assert_eq!(broker.topic("t").channels.len(), 2);
    let first = broker.subscribe("t", "a", 1);
    assert_eq!(ready(&mut broker, &[], Creation::Never), Some((true, vec!["b".to_owned()])));
    assert_eq!(ready(&mut broker, &["a"], Creation::Never), Some((true, Vec::new())), "only what is asked for");
    assert_eq!(ready(&mut broker, &["a", "c"], Creation::Never), Some((true, vec!["c".to_owned()])));
    broker.subscribe("t", "b", 1);
    assert_eq!(ready(&mut broker, &[], Creation::Never), Some((true, Vec::new())));
    broker.disconnect(first);
    assert_eq!(ready(&mut broker, &["a", "b"], Creation::IfMissing), Some((true, vec!["a".to_owned()])));
}

#[test]
fn a_topic_that_waits_for_nsqlookupd_is_not_started() {
    let mut broker = Broker::with(|config| config.topics_wait_for_start = true);
    assert_eq!(ready(&mut broker, &[], Creation::IfMissing), Some((false, Vec::new())));
    broker.order(AdminRequest::StartTopic(topic_name("t"), vec![channel_name("c")]));
    assert_eq!(ready(&mut broker, &[], Creation::IfMissing), Some((true, vec!["c".to_owned()])));
}

#[test]
fn a_publisher_is_called_by_client_and_host_or_as_it_says() {
    let mut broker = Broker::default();
    let plain = identified(&mut broker, r#""client_id": "ada", "hostname": "box""#);
    let named = identified(&mut broker, r#""client_id": "hop", "hostname": "box", "tidegate_publisher": "ada@far#2""#);
    let silent = broker.connect();
    let idle = identified(&mut broker, r#""client_id": "idle", "hostname": "box""#);
    for client in [plain, named, silent] {
        broker.publish(client, "t", "x");
    }
    broker.publish(idle, "u", "another topic's publisher");
    let asked = ["ada@far#2", "hop@box", "idle@box", "nobody@box"];
    assert_eq!(disconnect(&mut broker, "t", &asked), ["ada@far#2"]);
    assert_eq!([plain, named, silent, idle].map(|client| broker.is_closed(client)), [false, true, false, false]);
    assert_eq!(disconnect(&mut broker, "t", &["10.0.0.1@10.0.0.1", "ada@box"]), ["10.0.0.1@10.0.0.1", "ada@box"]);
    assert_eq!([plain, silent].map(|client| broker.is_closed(client)), [true, true]);
}

#[test]
fn a_publisher_that_is_let_go_is_answered_what_was_taken_and_no_more_is() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    let publisher = broker.raw_on(0);
    broker.send(publisher, "  V2");
    broker.publish(publisher, &here, "it stays on its shard");
    broker.hold_peers = true;
    broker.send(publisher, put_many(&there, &numbered(3)));
    assert_eq!(disconnect(&mut broker, &there, &["10.0.0.1@10.0.0.1"]), ["10.0.0.1@10.0.0.1"]);
    assert!(!broker.is_closed(publisher), "its publish is not answered yet");
    broker.send(publisher, put(&here, "too late"));
    broker.hold_peers = false;
    broker.settle();
    assert_eq!((broker.replies(publisher), broker.is_closed(publisher)), (vec![ok()], true));
    assert_eq!((broker.topic(&there).offered_total, broker.topic(&here).offered_total), (3, 1));
}

#[test]
fn a_publisher_that_waits_for_room_is_let_go_at_once() {
    let mut broker = Broker::with(|config| config.line_bytes = 1);
    let _consumer = broker.subscribe("t", "c", 1);
    broker.limit("t", harness::wait(1, 1));
    let publisher = broker.connect();
    for body in numbered(5) {
        broker.send(publisher, put("t", &body));
    }
    let answered = broker.replies(publisher).len();
    assert!(answered < 5 && broker.topic("t").blocked_publishers == 1);
    disconnect(&mut broker, "t", &["10.0.0.1@10.0.0.1"]);
    assert!(broker.is_closed(publisher));
    let topic = broker.topic("t");
    assert_eq!(
        (topic.offered_total, topic.blocked_publishers),
        (answered as u64, 0),
        "what was not taken is not there"
    );
}

#[test]
fn a_draining_node_takes_no_new_publishers_and_keeps_those_it_has() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let topics = [topic_on(0), topic_on(1)];
    let old = broker.connect();
    broker.publish(old, &topics[0], "x");
    let idle = broker.connect();
    for reply in broker.ask_all(&AdminRequest::SetNewcomers(Newcomers::Refused)) {
        assert!(matches!(reply, AdminReply::Done));
    }
    for topic in &topics {
        broker.publish(old, topic, "y");
        let new = broker.connect();
        broker.send(new, put(topic, "z"));
        let refused = "E_PUB_FAILED PUB failed draining: this node takes no new publishers";
        assert_eq!((broker.error(new), broker.is_closed(new)), (refused.to_owned(), true));
        let (topic, bodies, by) = (topic_name(topic), vec![b"z".to_vec()], HttpPublisher::default());
        let publish = AdminRequest::Publish { topic, bodies, defer: None, by };
        assert!(matches!(broker.admin(publish), AdminReply::Refused(PublishRefused::Draining)));
    }
    let consumer = broker.subscribe(&topics[0], "c", 10);
    assert_eq!(broker.bodies(consumer), ["x", "y"], "consumers are served");
    broker.ask_all(&AdminRequest::SetNewcomers(Newcomers::Welcome));
    broker.publish(idle, &topics[1], "z");
}

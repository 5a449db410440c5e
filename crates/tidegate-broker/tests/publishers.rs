//! What is counted for planners: who publishes to a topic, how much in each second, and how long its messages take.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::{
    Broker, Client, Reply, SECOND, fin, ms, numbered, over_http, put, put_many, refuse, sized, topic_name, wait,
};
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, PublishersScope, Recording};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::limiter::{Contract, Unit};
use tidegate_broker::machine::publishers::{HttpPublisher, Label};
use tidegate_broker::machine::watch::PublishersReport;

fn ask(broker: &mut Broker, topic: &str, slo_ns: Option<u64>) -> AdminReply {
    broker.admin(AdminRequest::Publishers(PublishersScope { topic: topic_name(topic), seconds: 10, slo_ns }))
}

/// The list, by identity.
#[track_caller]
fn listed(broker: &mut Broker, topic: &str, slo_ns: Option<u64>) -> PublishersReport {
    let AdminReply::Publishers(mut report) = ask(broker, topic, slo_ns) else { panic!("{topic} has publishers") };
    report.publishers.sort_by(|a, b| a.identity.cmp(&b.identity));
    *report
}

/// Identities and messages.
#[track_caller]
fn sent(broker: &mut Broker, topic: &str) -> Vec<(String, u64)> {
    let publishers = listed(broker, topic, None).publishers;
    publishers.into_iter().map(|publisher| (publisher.identity, publisher.messages)).collect()
}

fn pairs<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(identity, messages)| (identity.to_owned(), messages)).into()
}

fn ok() -> Reply {
    Reply::Response("OK".to_owned())
}

fn identify(broker: &mut Broker, client: Client, json: &str) {
    broker.send(client, sized("IDENTIFY", json));
    assert_eq!(broker.replies(client), [ok()]);
}

fn identified(broker: &mut Broker, json: &str) -> Client {
    let client = broker.connect();
    identify(broker, client, json);
    client
}

/// A broker with a topic `t` that is watched from this second's beginning on.
fn watched() -> Broker {
    let mut broker = Broker::default();
    broker.create_channel("t", "c");
    listed(&mut broker, "t", None);
    broker.advance(SECOND);
    broker
}

/// A topic that lives on `shard` of two.
fn topic_on(shard: usize) -> String {
    let mut names = (0..100).map(|number| format!("t{number}"));
    names.find(|name| home_shard(name, 2) == shard).unwrap()
}

#[test]
fn publishers_are_what_they_said_in_identify() {
    let mut broker = watched();
    let host = r#"{"client_id": "c", "hostname": "h"}"#;
    let first = identified(&mut broker, host);
    let second = identified(&mut broker, host);
    let named = identified(
        &mut broker,
        r#"{"client_id": "x", "hostname": "y", "tidegate_publisher": "hop:7", "tidegate_correlation": "sensors"}"#,
    );
    let silent = broker.connect();
    broker.advance(ms(500));
    broker.send(first, put_many("t", &numbered(3)));
    for client in [second, first, named, silent] {
        broker.send(client, put("t", "m"));
    }
    assert_eq!(
        sent(&mut broker, "t"),
        pairs([("10.0.0.1@10.0.0.1", 0), ("c@h", 0), ("c@h#2", 0), ("hop:7", 0)]),
        "the second is not over"
    );
    broker.advance(SECOND);
    let report = listed(&mut broker, "t", None);
    let of = |at: usize| {
        let publisher = &report.publishers[at];
        (publisher.identity.as_str(), publisher.messages, publisher.batches, publisher.rate_per_s)
    };
    assert_eq!([of(0), of(1), of(2)], [("10.0.0.1@10.0.0.1", 1, 1, 1.0), ("c@h", 4, 2, 4.0), ("c@h#2", 1, 1, 1.0)]);
    let named = &report.publishers[3];
    let texts = [&named.identity, &named.remote, &named.client_id, &named.hostname].map(String::as_str);
    assert_eq!(texts, ["hop:7", "10.0.0.1:1002", "x", "y"]);
    assert_eq!((named.correlation.as_deref(), named.connected_s), (Some("sensors"), 1));
    assert_eq!(report.publishers[0].correlation, None);
    assert_eq!((report.topic.as_str(), report.now_us), ("t", 1_002_500_000));
}

#[test]
fn identify_refuses_names_that_are_none() {
    let mut broker = Broker::default();
    let long = format!(r#"{{"tidegate_publisher": "{}"}}"#, "x".repeat(129));
    for (json, said) in [
        (long.as_str(), "E_BAD_BODY IDENTIFY tidegate_publisher (129 bytes) is invalid"),
        (r#"{"tidegate_correlation": "a\nb"}"#, "E_BAD_BODY IDENTIFY tidegate_correlation (3 bytes) is invalid"),
        (r#"{"tidegate_publisher": 7}"#, "E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ] {
        let client = broker.connect();
        broker.send(client, sized("IDENTIFY", json));
        assert_eq!(broker.error(client), said);
        assert!(broker.is_closed(client));
    }
    let client = broker.connect();
    identify(&mut broker, client, r#"{"tidegate_publisher": null, "tidegate_correlation": ""}"#);
}

#[test]
fn who_comes_back_goes_on_counting_and_who_stays_away_is_forgotten() {
    let mut broker = watched();
    let host = r#"{"client_id": "c", "hostname": "h"}"#;
    for _ in 0..3 {
        let client = identified(&mut broker, host);
        broker.publish(client, "t", "m");
        broker.disconnect(client);
    }
    broker.advance(SECOND);
    let report = listed(&mut broker, "t", None);
    let publisher = &report.publishers[0];
    assert_eq!((report.publishers.len(), publisher.messages, publisher.connected_s), (1, 3, 0));
    broker.advance(10 * SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([]));
}

#[test]
fn another_identify_is_another_publisher() {
    let mut broker = watched();
    let client = identified(&mut broker, r#"{"tidegate_publisher": "a"}"#);
    broker.publish(client, "t", "m");
    identify(&mut broker, client, r#"{"tidegate_publisher": "b"}"#);
    broker.publish(client, "t", "m");
    broker.publish(client, "t", "m");
    broker.advance(SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([("a", 1), ("b", 2)]));
    broker.advance(10 * SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([("b", 0)]), "only one is still there");
}

#[test]
fn over_http_addresses_publish() {
    let mut broker = watched();
    let by =
        |address: &str, key: &str| HttpPublisher { address: address.parse().ok(), correlation: Label::new(key).ok() };
    for by in [by("10.0.0.7", "k"), by("10.0.0.7", ""), by("2001:db8::1", "")] {
        let bodies = vec![b"a".to_vec(), b"b".to_vec()];
        broker.order(AdminRequest::Publish { topic: topic_name("t"), bodies, defer: None, by });
    }
    broker.order(over_http("t", &["c"], None));
    broker.advance(SECOND);
    let report = listed(&mut broker, "t", None);
    assert_eq!(sent(&mut broker, "t"), pairs([("http@10.0.0.7", 4), ("http@2001:db8::1", 2), ("http@unix", 1)]));
    assert_eq!(report.publishers[0].correlation, None, "what it said last counts");
}

#[test]
fn a_second_tells_messages_bytes_and_the_largest_backlog() {
    let mut broker = watched();
    let publisher = broker.connect();
    broker.limit("t", wait(10, 4));
    broker.send(publisher, put_many("t", &["12345"; 6]));
    broker.advance(ms(1_500));
    broker.send(publisher, put("t", "1"));
    broker.advance(ms(500));
    let seconds = listed(&mut broker, "t", None).seconds;
    let told: Vec<_> = seconds.iter().map(|s| (s.start_us, s.messages, s.bytes, s.backlog_max)).collect();
    // Four take the tokens and two wait. In the next second all tokens are there again.
    assert_eq!(told, [(1_001_000_000, 6, 30, 6), (1_002_000_000, 1, 1, 1)]);
}

#[test]
fn backlogs_are_in_tokens_of_the_contract_and_in_messages_without_one() {
    let bytes = Contract { unit: Unit::Bytes, ..wait(1_000, 4_000) };
    for (contract, backlog) in [(Some(refuse(10, 4)), 3), (Some(bytes), 15), (None, 0)] {
        let mut broker = watched();
        let publisher = broker.connect();
        broker.limit("t", contract);
        broker.send(publisher, put_many("t", &["12345"; 3]));
        broker.advance(SECOND);
        assert_eq!(listed(&mut broker, "t", None).seconds[0].backlog_max, backlog, "{contract:?}");
    }
    let mut broker = Broker::default();
    broker.order(AdminRequest::CreateTopic(topic_name("t")));
    listed(&mut broker, "t", None);
    broker.advance(SECOND);
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(7)));
    broker.advance(SECOND);
    assert_eq!(listed(&mut broker, "t", None).seconds[0].backlog_max, 7, "they wait for a channel");
}

#[test]
fn what_a_contract_refuses_is_counted() {
    let mut broker = watched();
    let publisher = broker.connect();
    broker.limit("t", refuse(1, 2));
    for _ in 0..5 {
        broker.send(publisher, put("t", "m"));
    }
    broker.advance(SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([("10.0.0.1@10.0.0.1", 5)]));
    assert_eq!(broker.topic("t").refused_total, 3);
}

#[test]
fn delays_are_counted_against_an_objective() {
    let mut broker = watched();
    let publisher = broker.connect();
    let consumer = broker.subscribe("t", "c", 10);
    let slo = Some(2_000_000);
    let first = listed(&mut broker, "t", slo).delay;
    assert_eq!((first.count, first.over_slo), (0, 0));
    broker.advance(SECOND);
    for delay in [1, 2, 3, 4] {
        broker.publish(publisher, "t", "m");
        broker.advance(ms(delay));
        let messages = broker.messages(consumer);
        broker.send(consumer, fin(&messages[0]));
    }
    broker.advance(SECOND);
    let delay = listed(&mut broker, "t", slo).delay;
    assert_eq!((delay.count, delay.over_slo), (4, 2));
    assert!((delay.e2e_p99_us / 4_000.0 - 1.0).abs() < 1.0 / 32.0, "{delay:?}");
    assert!(delay.access_p99_us.abs() < f64::EPSILON, "nothing waits for a token: {delay:?}");
    let other = listed(&mut broker, "t", Some(1_000_000)).delay;
    assert_eq!((other.count, other.over_slo), (0, 0), "it was not asked for then");
    assert_eq!(listed(&mut broker, "t", None).delay.over_slo, 0);
    broker.limit("t", wait(100, 1));
    broker.send(publisher, put_many("t", &numbered(2)));
    broker.advance(SECOND);
    let access_us = listed(&mut broker, "t", None).delay.access_p99_us;
    assert!((access_us / 10_000.0 - 1.0).abs() < 1.0 / 32.0, "{access_us}");
}

#[test]
fn quantiles_are_of_the_seconds_that_are_asked_for() {
    let mut broker = watched();
    let consumer = broker.subscribe("t", "c", 100);
    let publisher = broker.connect();
    let p99_us = |broker: &mut Broker, seconds: u64| {
        let scope = PublishersScope { topic: topic_name("t"), seconds, slo_ns: None };
        let AdminReply::Publishers(report) = broker.admin(AdminRequest::Publishers(scope)) else {
            panic!("it is there")
        };
        (report.delay.e2e_p99_us, report.delay.access_p99_us)
    };
    broker.limit("t", wait(1_000, 1));
    p99_us(&mut broker, 60);
    broker.advance(SECOND);
    // Ten seconds in which two messages of three wait for a token, and forty in which none does.
    for second in 0..50 {
        broker.send(publisher, put_many("t", &numbered(if second < 10 { 3 } else { 1 })));
        for _ in 0..3 {
            broker.advance(ms(1));
            for message in broker.messages(consumer) {
                broker.send(consumer, fin(&message));
            }
        }
        broker.advance(ms(997));
        p99_us(&mut broker, 10);
    }
    broker.advance(SECOND);
    let (short, long) = (p99_us(&mut broker, 30), p99_us(&mut broker, 60));
    assert!(short.1.abs() < f64::EPSILON && short.0 < 1_100.0, "{short:?}");
    assert!((long.1 / 2_000.0 - 1.0).abs() < 1.0 / 32.0 && long.0 > 1_900.0, "{long:?}");
}

#[test]
fn a_publisher_of_another_shard_is_known_by_name_until_it_goes() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    broker.create_channel(&there, "c");
    listed(&mut broker, &there, None);
    broker.advance(SECOND);
    let host = r#"{"client_id": "c", "hostname": "h", "tidegate_correlation": "k"}"#;
    let [first, second] = [0, 1].map(|_| {
        let client = broker.raw_on(0);
        broker.send(client, "  V2");
        identify(&mut broker, client, host);
        broker.publish(client, &here, "it stays here");
        client
    });
    let moved = broker.raw_on(0);
    broker.send(moved, "  V2");
    identify(&mut broker, moved, host);
    for client in [first, second, moved, first] {
        broker.publish(client, &there, "m");
    }
    assert_eq!([first, moved].map(|client| broker.shard_of(client)), [Some(0), Some(1)]);
    broker.advance(SECOND);
    assert_eq!(sent(&mut broker, &there), pairs([("c@h", 2), ("c@h#2", 1), ("c@h#3", 1)]));
    let report = listed(&mut broker, &there, None);
    let all = report.publishers.iter().all(|publisher| publisher.correlation.as_deref() == Some("k"));
    assert!(all && report.others.messages == 0, "{report:?}");
    broker.disconnect(first);
    identify(&mut broker, second, r#"{"tidegate_publisher": "renamed"}"#);
    broker.publish(second, &there, "m");
    broker.advance(10 * SECOND);
    assert_eq!(sent(&mut broker, &there), pairs([("c@h#3", 0), ("renamed", 1)]));
}

#[test]
fn a_topic_is_watched_for_a_minute_after_it_was_asked_about() {
    let mut broker = watched();
    let publish = |broker: &mut Broker| {
        let client = broker.connect();
        broker.publish(client, "t", "m");
    };
    publish(&mut broker);
    broker.advance(59 * SECOND);
    publish(&mut broker);
    broker.advance(SECOND);
    assert_eq!(listed(&mut broker, "t", None).seconds.len(), 10);
    broker.advance(62 * SECOND);
    publish(&mut broker);
    broker.advance(SECOND);
    let report = listed(&mut broker, "t", None);
    assert_eq!((report.seconds.len(), report.publishers.len()), (0, 0), "it begins anew");
    // With a contract it is watched whether anybody asks or not.
    broker.limit("t", wait(10, 10));
    broker.advance(62 * SECOND);
    publish(&mut broker);
    assert_eq!(listed(&mut broker, "t", None).seconds.len(), 10);
}

#[test]
fn a_long_list_comes_later_and_whole() {
    let mut broker = watched();
    for number in 0..600 {
        let client = identified(&mut broker, &format!(r#"{{"tidegate_publisher": "p{number:03}"}}"#));
        broker.publish(client, "t", "m");
    }
    broker.advance(SECOND);
    let all = sent(&mut broker, "t");
    assert_eq!((all.len(), all[599].clone()), (600, ("p599".to_owned(), 1)));
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    assert!(matches!(ask(&mut broker, "t", None), AdminReply::TopicNotFound));
}

#[test]
fn a_deleted_topic_takes_its_publishers_along() {
    let mut broker = watched();
    let client = identified(&mut broker, r#"{"tidegate_publisher": "a"}"#);
    broker.publish(client, "t", "m");
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    broker.create_channel("t", "c");
    listed(&mut broker, "t", None);
    broker.advance(SECOND);
    let other = identified(&mut broker, r#"{"tidegate_publisher": "b"}"#);
    broker.publish(other, "t", "m");
    broker.publish(client, "t", "m");
    broker.publish(client, "t", "m");
    broker.advance(SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([("a", 2), ("b", 1)]));
    broker.disconnect(client);
    broker.advance(10 * SECOND);
    assert_eq!(sent(&mut broker, "t"), pairs([("b", 0)]));
}

#[test]
fn a_trace_says_who_published() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let (here, there) = (topic_on(0), topic_on(1));
    broker.create_channel(&there, "c");
    let guest = broker.raw_on(0);
    broker.send(guest, "  V2");
    identify(&mut broker, guest, r#"{"client_id": "c", "hostname": "h"}"#);
    broker.publish(guest, &here, "it stays here");
    let local = broker.raw_on(1);
    broker.send(local, "  V2");
    identify(&mut broker, local, r#"{"tidegate_publisher": "local", "tidegate_correlation": "k"}"#);
    broker.limit(&there, wait(1_000, 1));
    for _ in 0..2 {
        broker.order(AdminRequest::Record(topic_name(&there), Recording::On));
        broker.send(local, put_many(&there, &numbered(2)));
        broker.send(guest, put(&there, "m"));
        broker.send(local, put(&there, "m"));
        broker.advance(SECOND);
        broker.order(AdminRequest::Record(topic_name(&there), Recording::Off));
        let numbers: Vec<_> = broker.passages.drain(..).map(|passage| passage.publisher).collect();
        assert_eq!(numbers, [1, 1, 2, 1]);
        let told: Vec<_> = broker.traced.drain(..).map(|told| (told.number, told.identity, told.correlation)).collect();
        assert_eq!(told, [(1, "local".to_owned(), Some("k".to_owned())), (2, "c@h".to_owned(), None)]);
    }
}

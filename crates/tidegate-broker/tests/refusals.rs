//! Every refusal of the protocol: its text, and whether it costs the connection.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{Broker, Client, Reply, SECOND, put, put_many, sized};
use tidegate_broker::machine::shard::ShardConfig;

/// What a client of a broker so configured is told after `bytes`, which must cost it the connection.
#[track_caller]
fn fatal(change: impl FnOnce(&mut ShardConfig), bytes: impl AsRef<[u8]>, expected: &str) {
    let mut broker = Broker::with(change);
    let client = broker.connect();
    broker.send(client, bytes);
    let replies = broker.replies(client);
    assert_eq!(replies.last(), Some(&Reply::Error(expected.to_owned())), "{replies:?}");
    assert!(broker.is_closed(client), "it is fatal");
    let other = broker.connect();
    broker.publish(other, "t", "m");
}

fn none(_: &mut ShardConfig) {}

fn auth(config: &mut ShardConfig) {
    config.auth = true;
}

#[test]
fn another_protocol() {
    let mut broker = Broker::default();
    let client = broker.raw();
    broker.send(client, "  V");
    assert!(!broker.is_closed(client));
    broker.send(client, "1");
    assert_eq!((broker.error(client).as_str(), broker.is_closed(client)), ("E_BAD_PROTOCOL", true));
    let http = broker.raw();
    broker.send(http, "GET / HTTP/1.1\r\n");
    assert_eq!((broker.error(http).as_str(), broker.is_closed(http)), ("E_BAD_PROTOCOL", true));
}

#[test]
fn unknown_commands_and_lines_without_end() {
    fatal(none, "HELLO world\n", "E_INVALID invalid command HELLO");
    fatal(none, "\n", "E_INVALID invalid command ");
    fatal(none, "x".repeat(16 * 1024), "E_INVALID command line exceeds 16384 bytes");
    let mut broker = Broker::default();
    let client = broker.connect();
    broker.send(client, "x".repeat(16 * 1024 - 1));
    assert!(!broker.is_closed(client), "its end may still come");
}

#[test]
fn identify() {
    let bad = |json: &str, text: &str| fatal(none, sized("IDENTIFY", json), &format!("E_BAD_BODY IDENTIFY {text}"));
    bad("{", "failed to decode JSON body");
    bad("[]", "failed to decode JSON body");
    bad(r#"{"client_id": 5}"#, "failed to decode JSON body");
    bad("", "invalid body size 0");
    bad(r#"{"heartbeat_interval": 999}"#, "heartbeat interval (999) is invalid");
    bad(r#"{"heartbeat_interval": 60001}"#, "heartbeat interval (60001) is invalid");
    bad(r#"{"output_buffer_size": 63}"#, "output buffer size (63) is invalid");
    bad(r#"{"output_buffer_size": 65537}"#, "output buffer size (65537) is invalid");
    bad(r#"{"output_buffer_timeout": 24}"#, "output buffer timeout (24) is invalid");
    bad(r#"{"output_buffer_timeout": 30001}"#, "output buffer timeout (30001) is invalid");
    bad(r#"{"sample_rate": 100}"#, "sample rate (100) is invalid");
    bad(r#"{"sample_rate": -1}"#, "sample rate (-1) is invalid");
    bad(r#"{"msg_timeout": 999}"#, "msg timeout (999) is invalid");
    bad(r#"{"msg_timeout": 900001}"#, "msg timeout (900001) is invalid");
    let big = |config: &mut ShardConfig| config.max_body_size = 10;
    fatal(big, sized("IDENTIFY", "{\"a\": 12345}"), "E_BAD_BODY IDENTIFY body too big 12 > 10");
    fatal(none, [&b"IDENTIFY\n"[..], &[0xff; 4]].concat(), "E_BAD_BODY IDENTIFY invalid body size -1");
    let both = r#"{"feature_negotiation": true, "snappy": true, "deflate": true}"#;
    let text = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression";
    fatal(none, sized("IDENTIFY", both), text);
    let late = [b"SUB t c\n".to_vec(), sized("IDENTIFY", "{}")].concat();
    fatal(none, late, "E_INVALID cannot IDENTIFY in current state");
}

#[test]
fn subscribing() {
    fatal(none, "SUB t c\nSUB t c\n", "E_INVALID cannot SUB in current state");
    fatal(none, "SUB t\n", "E_INVALID SUB insufficient number of parameters");
    fatal(none, "SUB b@d c\n", "E_BAD_TOPIC SUB topic name \"b@d\" is not valid");
    fatal(none, "SUB t b@d\n", "E_BAD_CHANNEL SUB channel name \"b@d\" is not valid");
    let long = "x".repeat(65);
    fatal(none, format!("SUB {long} c\n"), &format!("E_BAD_TOPIC SUB topic name \"{long}\" is not valid"));
    let mute = [sized("IDENTIFY", r#"{"heartbeat_interval": -1}"#), b"SUB t c\n".to_vec()].concat();
    fatal(none, mute, "E_INVALID cannot SUB with heartbeats disabled");
}

#[test]
fn more_consumers_than_allowed() {
    let mut broker = Broker::with(|config| config.max_channel_consumers = 2);
    let first = broker.subscribe("t", "c", 1);
    broker.subscribe("t", "c", 1);
    let third = broker.connect();
    broker.send(third, "SUB t c\n");
    assert_eq!(broker.error(third), "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2");
    assert!(broker.is_closed(third));
    broker.subscribe("t", "other", 1);
    broker.disconnect(first);
    broker.subscribe("t", "c", 1);
}

#[test]
fn rdy() {
    fatal(none, "RDY 1\n", "E_INVALID cannot RDY in current state");
    fatal(none, "SUB t c\nRDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500");
    fatal(none, "SUB t c\nRDY -1\n", "E_INVALID RDY could not parse count -1");
    fatal(none, "SUB t c\nRDY x\n", "E_INVALID RDY could not parse count x");
    let huge = "SUB t c\nRDY 4294967297\n";
    fatal(none, huge, "E_INVALID RDY count 4294967297 out of range 0-2500");
}

#[test]
fn answers_to_messages() {
    let id = "0123456789abcdef";
    for verb in ["FIN", "REQ", "TOUCH"] {
        fatal(none, format!("{verb} {id} 0\n"), &format!("E_INVALID cannot {verb} in current state"));
        let text = format!("E_INVALID {verb} insufficient number of params");
        fatal(none, format!("SUB t c\n{verb}\n"), &text);
        fatal(none, format!("SUB t c\n{verb} short 0\n"), "E_INVALID invalid message ID");
    }
    fatal(none, format!("SUB t c\nREQ {id}\n"), "E_INVALID REQ insufficient number of params");
    fatal(none, format!("SUB t c\nREQ {id} soon\n"), "E_INVALID REQ could not parse timeout soon");
    let mut broker = Broker::default();
    let client = broker.subscribe("t", "c", 1);
    for verb in ["FIN", "REQ", "TOUCH"] {
        broker.send(client, format!("{verb} {id} 0\n"));
        assert_eq!(broker.error(client), format!("E_{verb}_FAILED {verb} {id} failed ID not in flight"));
    }
    assert!(!broker.is_closed(client));
}

#[test]
fn closing() {
    fatal(none, "CLS\n", "E_INVALID cannot CLS in current state");
    fatal(none, "SUB t c\nCLS\nCLS\n", "E_INVALID cannot CLS in current state");
    fatal(none, "SUB t c\nCLS\nSUB t c\n", "E_INVALID cannot SUB in current state");
}

#[test]
fn publishing() {
    fatal(none, "PUB\n", "E_INVALID PUB insufficient number of parameters");
    fatal(none, "PUB b@d\n", "E_BAD_TOPIC PUB topic name \"b@d\" is not valid");
    fatal(none, sized("PUB t", ""), "E_BAD_MESSAGE PUB invalid message body size 0");
    fatal(none, [&b"PUB t\n"[..], &[0xff; 4]].concat(), "E_BAD_MESSAGE PUB invalid message body size -1");
    let small = |config: &mut ShardConfig| config.max_msg_size = 4;
    fatal(small, sized("PUB t", "12345"), "E_BAD_MESSAGE PUB message too big 5 > 4");
    fatal(small, b"PUB t\n\x00\x00\x00\x05", "E_BAD_MESSAGE PUB message too big 5 > 4");
}

#[test]
fn publishing_deferred() {
    fatal(none, "DPUB t\n", "E_INVALID DPUB insufficient number of parameters");
    fatal(none, "DPUB b@d 1\n", "E_BAD_TOPIC DPUB topic name \"b@d\" is not valid");
    fatal(none, sized("DPUB t x", "m"), "E_INVALID DPUB could not parse timeout x");
    fatal(none, sized("DPUB t 3600001", "m"), "E_INVALID DPUB timeout 3600001 out of range 0-3600000");
    fatal(none, sized("DPUB t 1", ""), "E_BAD_MESSAGE DPUB invalid message body size 0");
}

#[test]
fn publishing_many() {
    fatal(none, "MPUB\n", "E_INVALID MPUB insufficient number of parameters");
    // nsqd says the code twice here.
    fatal(none, "MPUB b@d\n", "E_BAD_TOPIC E_BAD_TOPIC MPUB topic name \"b@d\" is not valid");
    fatal(none, sized("MPUB t", ""), "E_BAD_BODY MPUB invalid body size 0");
    fatal(none, sized("MPUB t", b"\0\0\0\0"), "E_BAD_BODY MPUB invalid message count 0");
    fatal(none, sized("MPUB t", b"\x00\xff\0\0"), "E_BAD_BODY MPUB invalid message count 16711680");
    fatal(none, sized("MPUB t", b"\0\0\0\x02\0\0\0\x01a"), "E_BAD_MESSAGE MPUB failed to read message body");
    fatal(none, sized("MPUB t", b"\0\0\0\x01\0\0\0\0x"), "E_BAD_MESSAGE MPUB invalid message(0) body size 0");
    let small = |config: &mut ShardConfig| {
        config.max_body_size = 20;
        config.max_msg_size = 5;
    };
    fatal(small, put_many("t", &["123456"]), "E_BAD_MESSAGE MPUB message too big 6 > 5");
    fatal(small, put_many("t", &["12345", "12345"]), "E_BAD_BODY MPUB body too big 22 > 20");
}

#[test]
fn tls_is_required() {
    let required = |config: &mut ShardConfig| {
        config.tls = true;
        config.tls_required = true;
    };
    for line in ["SUB t c", "PUB t", "NOP"] {
        let verb = line.split(' ').next().unwrap();
        let text = format!("E_INVALID cannot {verb} in current state (TLS required)");
        fatal_alone(required, format!("{line}\n"), &text);
    }
    let mut broker = Broker::with(required);
    let client = broker.connect();
    broker.send(client, sized("IDENTIFY", r#"{"feature_negotiation": true, "tls_v1": true}"#));
    broker.replies(client);
    broker.publish(client, "t", "m");
}

/// The same of a broker on which the others may do nothing either.
#[track_caller]
fn fatal_alone(change: impl FnOnce(&mut ShardConfig), bytes: impl AsRef<[u8]>, expected: &str) {
    let mut broker = Broker::with(change);
    let client = broker.connect();
    broker.send(client, bytes);
    assert_eq!((broker.error(client).as_str(), broker.is_closed(client)), (expected, true));
}

#[test]
fn auth_that_cannot_be() {
    fatal(none, sized("AUTH", "secret"), "E_AUTH_DISABLED AUTH disabled");
    fatal(none, sized("AUTH now", "secret"), "E_INVALID AUTH invalid number of parameters");
    fatal(none, sized("AUTH", ""), "E_BAD_BODY AUTH invalid body size 0");
    let late = [b"SUB t c\n".to_vec(), sized("AUTH", "secret")].concat();
    fatal(none, late, "E_INVALID cannot AUTH in current state");
    fatal_alone(auth, put("t", "m"), "E_AUTH_FIRST AUTH required before PUB");
    fatal_alone(auth, put_many("t", &["m"]), "E_AUTH_FIRST AUTH required before MPUB");
    fatal_alone(auth, "SUB t c\n", "E_AUTH_FIRST AUTH required before SUB");
}

const ADA: &str = r#"{"ttl": 60, "identity": "ada", "identity_url": "http://x/ada", "authorizations":
    [{"topic": "^t$", "channels": [".*"], "permissions": ["publish", "subscribe"]}]}"#;

fn authorized(broker: &mut Broker) -> Client {
    let client = broker.connect();
    broker.send(client, sized("AUTH", "secret"));
    assert_eq!(broker.auth_questions[0].secret, b"secret");
    broker.authorize(Some(ADA));
    let answer = r#"{"identity":"ada","identity_url":"http://x/ada","permission_count":1}"#;
    assert_eq!(broker.replies(client), [Reply::Response(answer.to_owned())]);
    client
}

#[test]
fn an_authorized_client_may_do_what_it_may() {
    let mut broker = Broker::with(auth);
    let client = authorized(&mut broker);
    broker.publish(client, "t", "m");
    broker.send(client, put("other", "m"));
    assert_eq!(broker.error(client), r#"E_UNAUTHORIZED AUTH failed for PUB on "other" """#);
    assert!(broker.is_closed(client) && !broker.has_topic("other"));
    let client = authorized(&mut broker);
    broker.send(client, "SUB other c\n");
    assert_eq!(broker.error(client), r#"E_UNAUTHORIZED AUTH failed for SUB on "other" "c""#);
    let client = authorized(&mut broker);
    broker.send(client, sized("AUTH", "again"));
    assert_eq!((broker.error(client).as_str(), broker.is_closed(client)), ("E_INVALID AUTH already set", true));
}

#[test]
fn commands_behind_auth_wait_for_its_answer() {
    let mut broker = Broker::with(auth);
    let client = broker.connect();
    broker.send(client, [sized("AUTH", "secret"), put("t", "m"), b"SUB t c\nRDY 1\n".to_vec()].concat());
    assert_eq!(broker.replies(client), []);
    broker.authorize(Some(ADA));
    let replies = broker.replies(client);
    assert!(matches!(&replies[..], [Reply::Response(_), Reply::Response(_), Reply::Response(_), Reply::Message(_)]));
}

#[test]
fn an_auth_server_that_fails_or_grants_nothing_costs_the_connection() {
    let nothing = r#"{"ttl": 60, "identity": "eve", "authorizations": []}"#;
    let cases = [(None, "E_AUTH_FAILED AUTH failed"), (Some(nothing), "E_UNAUTHORIZED AUTH no authorizations found")];
    for (answer, text) in cases {
        let mut broker = Broker::with(auth);
        let client = broker.connect();
        broker.send(client, sized("AUTH", "secret"));
        broker.authorize(answer);
        assert_eq!((broker.error(client).as_str(), broker.is_closed(client)), (text, true));
    }
}

#[test]
fn an_expired_authorization_is_asked_for_again() {
    let mut broker = Broker::with(|config| {
        config.auth = true;
        config.heartbeat = Duration::from_hours(1);
    });
    let client = authorized(&mut broker);
    broker.advance(SECOND * 60);
    broker.publish(client, "t", "still valid");
    broker.advance(SECOND);
    broker.send(client, [put("t", "asks first"), put("t", "waits behind it")].concat());
    assert_eq!((broker.replies(client), broker.auth_questions.len()), (vec![], 1));
    broker.authorize(Some(ADA));
    assert_eq!(broker.replies(client), vec![Reply::Response("OK".to_owned()); 2], "no second answer to AUTH");
    assert_eq!(broker.topic("t").depth, 3);
    broker.advance(SECOND * 61);
    broker.send(client, put("t", "m"));
    broker.authorize(Some(r#"{"ttl": 60, "authorizations": []}"#));
    assert_eq!(broker.error(client), r#"E_UNAUTHORIZED AUTH failed for PUB on "t" """#);
}

#[test]
fn an_answer_for_a_connection_that_has_gone_is_nobodys() {
    let mut broker = Broker::with(auth);
    let gone = broker.connect();
    broker.send(gone, sized("AUTH", "secret"));
    broker.disconnect(gone);
    let other = broker.connect();
    broker.send(other, sized("AUTH", "secret"));
    broker.authorize(Some(ADA));
    assert_eq!(broker.replies(other), [], "the answer was the other's, though it had the same number");
    broker.authorize(Some(ADA));
    assert_eq!(broker.replies(other).len(), 1);
}

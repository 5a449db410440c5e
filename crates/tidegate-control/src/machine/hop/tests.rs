//! The hop between a scripted producer and scripted brokers.

mod laws;
mod world;

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_wire::nsq::{TopicName, client};

use super::{Hop, HopConfig, NodeId, OUTSTANDING_MAX, Order};
use world::{Heard, World};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

fn pubs(topic: &str, bodies: std::ops::Range<usize>) -> Vec<u8> {
    let mut out = Vec::new();
    for body in bodies {
        client::put_pub(&mut out, topic, body.to_string().as_bytes());
    }
    out
}

fn identify(json: &str) -> Vec<u8> {
    let mut out = client::MAGIC.to_vec();
    client::put_identify(&mut out, json.as_bytes());
    out
}

/// A world in which `t` goes to broker A and the producer is connected there.
fn at_a() -> World {
    let mut world = World::new(2);
    world.place("t", &[A, B]);
    world.send(&identify(r#"{"client_id":"svc","hostname":"h"}"#));
    world.send(&pubs("t", 0..1));
    world.run();
    assert_eq!(world.take_heard(), [Heard::Response("OK".into()), Heard::Response("OK".into())]);
    world
}

#[test]
fn identify_is_answered_by_the_first_broker_that_can_be_reached() {
    let mut world = World::new(2);
    world.kill(A);
    world.send(&identify(r#"{"client_id":"svc","hostname":"h","feature_negotiation":true,"tls_v1":true}"#));
    world.run();
    assert_eq!(world.take_heard(), [Heard::Response(r#"{"tls_v1":false}"#.into())]);
    let said = &world.brokers[1].identified[0];
    assert_eq!(said["tidegate_publisher"], "svc@h");
    assert_eq!(said["heartbeat_interval"], 10_000);
}

#[test]
fn without_any_broker_identify_fails_and_the_connection_ends() {
    let mut world = World::new(2);
    world.kill(A);
    world.kill(B);
    world.send(&identify("{}"));
    world.run();
    assert!(matches!(&world.take_heard()[..], [Heard::Error(text)] if text.starts_with("E_IDENTIFY_FAILED")));
    assert!(world.has_ended);
}

#[test]
fn a_topic_moves_when_its_open_commands_are_answered() {
    let mut world = at_a();
    world.brokers[0].is_mute = true;
    world.send(&pubs("t", 1..3));
    world.run();
    world.place("t", &[B, A]);
    world.run();
    assert!(world.is_connected(B));
    world.send(&pubs("t", 3..5));
    world.run();
    assert_eq!((world.bodies(A), world.bodies(B)), (vec![0, 1, 2], vec![]), "A has not answered yet");
    world.brokers[0].is_mute = false;
    world.run();
    assert_eq!((world.bodies(A), world.bodies(B)), (vec![0, 1, 2], vec![3, 4]));
    assert_eq!(world.take_heard().len(), 4);
    assert_eq!(world.hop.counts().moves, 1);
}

#[test]
fn while_the_new_broker_is_not_connected_the_old_one_is_used() {
    let mut world = at_a();
    world.brokers[1].refuses_connections = true;
    world.place("t", &[B, A]);
    world.send(&pubs("t", 1..4));
    world.run();
    assert_eq!((world.bodies(A), world.bodies(B)), (vec![0, 1, 2, 3], vec![]));
    world.brokers[1].refuses_connections = false;
    world.wait(Duration::from_secs(2));
    world.send(&pubs("t", 4..5));
    world.run();
    world.send(&pubs("t", 5..6));
    world.run();
    assert_eq!(world.bodies(B), [5], "the publish before it found no connection yet and went to A");
}

#[test]
fn a_failed_brokers_commands_fail_in_order_and_later_ones_go_elsewhere() {
    let mut world = at_a();
    world.place("u", &[B]);
    world.brokers[0].is_mute = true;
    let mut bytes = pubs("t", 1..2);
    bytes.extend(pubs("u", 2..3));
    client::put_dpub(&mut bytes, "t", 5, b"3");
    world.send(&bytes);
    world.run();
    assert!(world.take_heard().is_empty(), "the answer of B waits for its turn");
    world.kill(A);
    world.send(&pubs("t", 4..5));
    world.run();
    let heard = world.take_heard();
    let [Heard::Error(first), ok, Heard::Error(third), last] = &heard[..] else { panic!("{heard:?}") };
    assert!(first.starts_with("E_PUB_FAILED PUB failed") && third.starts_with("E_DPUB_FAILED DPUB failed"));
    assert_eq!([ok, last], [&Heard::Response("OK".into()); 2]);
    assert_eq!(world.bodies(B), [2, 4]);
    assert_eq!(world.hop.counts().lost, 2);
    assert!(!world.has_ended);
}

#[test]
fn without_a_broker_publishes_fail_at_once_until_one_is_back() {
    let mut world = at_a();
    world.kill(A);
    world.kill(B);
    world.send(&pubs("t", 1..3));
    world.run();
    let heard = world.take_heard();
    assert!(heard.iter().all(|heard| matches!(heard, Heard::Error(text) if text.starts_with("E_PUB_FAILED"))));
    assert_eq!(heard.len(), 2);
    world.brokers[1].is_alive = true;
    world.wait(Duration::from_secs(5));
    world.send(&pubs("t", 3..4));
    world.run();
    assert_eq!((world.take_heard(), world.bodies(B)), (vec![Heard::Response("OK".into())], vec![3]));
}

#[test]
fn a_broker_that_is_being_drained_is_left() {
    let mut world = at_a();
    world.brokers[0].is_draining = true;
    world.send(&pubs("t", 1..2));
    world.run();
    assert_eq!(world.take_heard(), [Heard::Error("E_FAILED draining".into())]);
    world.send(&pubs("t", 2..3));
    world.run();
    assert_eq!((world.take_heard(), world.bodies(B)), (vec![Heard::Response("OK".into())], vec![2]));
}

#[test]
fn a_broker_that_lets_the_publisher_go_is_asked_again() {
    let mut world = at_a();
    world.cut(A);
    world.send(&pubs("t", 1..2));
    world.run();
    assert_eq!((world.bodies(A), world.bodies(B)), (vec![0, 1], vec![]));
    assert_eq!(world.hop.counts().node_failures, 0);
}

#[test]
fn a_secret_is_told_to_every_broker() {
    let mut world = at_a();
    let mut bytes = Vec::new();
    client::put_auth(&mut bytes, b"s3cret");
    world.send(&bytes);
    world.run();
    assert_eq!(world.take_heard(), [Heard::Response("{}".into())]);
    world.place("t", &[B, A]);
    world.run();
    world.send(&pubs("t", 1..2));
    world.run();
    assert_eq!((world.take_heard(), world.bodies(B)), (vec![Heard::Response("OK".into())], vec![1]));
    for broker in &world.brokers {
        assert_eq!(broker.secrets, [b"s3cret".to_vec()]);
    }
}

#[test]
fn what_is_for_consumers_is_refused_behind_earlier_answers() {
    let mut world = at_a();
    world.brokers[0].is_mute = true;
    world.send(&pubs("t", 1..2));
    world.send(b"SUB t c\nNOP\n");
    world.run();
    assert!(world.take_heard().is_empty() && !world.has_ended);
    world.brokers[0].is_mute = false;
    world.run();
    let heard = world.take_heard();
    let [Heard::Response(ok), Heard::Error(text)] = &heard[..] else { panic!("{heard:?}") };
    assert!(ok == "OK" && text.starts_with("E_INVALID cannot SUB at tidegate steer, which serves producers"));
    assert!(world.has_ended);
}

#[test]
fn a_fatal_error_of_a_broker_ends_the_connection_in_its_turn() {
    let mut world = at_a();
    world.brokers[0].is_mute = true;
    world.place("u", &[B]);
    world.send(&pubs("t", 1..2));
    let mut bytes = Vec::new();
    // The broker of this world takes bodies that are numbers, and no others.
    client::put_pub(&mut bytes, "u", b"bad");
    world.send(&bytes);
    world.run();
    world.send(&pubs("t", 2..3));
    world.brokers[0].is_mute = false;
    world.run();
    assert_eq!(world.take_heard(), [Heard::Response("OK".into()), Heard::Error("E_BAD_MESSAGE bad".into())]);
    assert!(world.has_ended);
    assert_eq!(world.bodies(A), [0, 1], "behind it nothing is taken");
}

#[test]
fn a_close_is_answered_and_other_first_bytes_are_no_protocol() {
    let mut world = at_a();
    world.send(b"CLS\n");
    world.run();
    assert_eq!(world.take_heard(), [Heard::Response("CLOSE_WAIT".into())]);
    assert!(world.has_ended);
    let mut world = World::new(1);
    world.send(b"GET / HTTP/1.1\r\n\r\n");
    world.run();
    assert_eq!(world.take_heard(), [Heard::Error("E_BAD_PROTOCOL".into())]);
    assert!(world.has_ended);
}

#[test]
fn identify_comes_first_or_not_at_all() {
    let mut world = World::new(1);
    world.place("t", &[A]);
    world.send(client::MAGIC);
    world.send(&pubs("t", 0..1));
    world.run();
    assert_eq!(world.brokers[0].identified[0]["tidegate_publisher"], "10.0.0.9@10.0.0.9");
    world.send(&identify("{}")[client::MAGIC.len()..]);
    world.run();
    let heard = world.take_heard();
    assert_eq!(heard[1], Heard::Error("E_INVALID cannot IDENTIFY in current state".into()));
}

#[test]
fn both_sides_have_heartbeats_of_their_own() {
    let mut world = World::new(1);
    world.place("t", &[A]);
    world.send(&identify(r#"{"heartbeat_interval":1000}"#));
    world.send(&pubs("t", 0..1));
    world.run();
    world.take_heard();
    world.brokers[0].say_heartbeat();
    world.run();
    assert_eq!(world.brokers[0].nops, 1);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.take_heard(), [Heard::Response("_heartbeat_".into())]);
    world.send(b"NOP\n");
    world.wait(Duration::from_secs(1));
    assert!(!world.has_ended, "it was heard in the interval before");
    world.wait(Duration::from_secs(1));
    assert!(world.has_ended, "two intervals of silence");
}

#[test]
fn a_silent_broker_has_failed_and_an_unused_one_is_left() {
    let mut world = at_a();
    world.place("t", &[B, A]);
    world.run();
    world.brokers[1].is_mute = true;
    world.send(&pubs("t", 1..2));
    for _ in 0..2 {
        world.brokers[0].say_heartbeat();
        world.wait(Duration::from_secs(10));
    }
    let heard = world.take_heard();
    assert!(matches!(&heard[..], [Heard::Error(text)] if text.starts_with("E_PUB_FAILED")), "{heard:?}");
    assert_eq!(world.hop.counts().node_failures, 1);
    // Nothing goes to B while it rests; A stays as long as a topic goes there.
    world.brokers[1].is_mute = false;
    world.send(&pubs("t", 2..3));
    world.run();
    assert_eq!(world.bodies(A), [0, 2]);
}

#[test]
fn a_broker_that_no_topic_goes_to_is_left_after_a_while() {
    let mut world = at_a();
    world.place("t", &[B, A]);
    world.run();
    world.send(&pubs("t", 1..2));
    world.run();
    for _ in 0..8 {
        world.brokers[0].say_heartbeat();
        world.brokers[1].say_heartbeat();
        world.send(b"NOP\n");
        world.wait(Duration::from_secs(10));
    }
    assert_eq!((world.is_connected(A), world.is_connected(B)), (false, true));
    assert_eq!(world.hop.counts().node_failures, 0);
}

#[test]
fn a_producer_with_many_open_commands_is_not_read() {
    let mut world = at_a();
    world.brokers[0].is_mute = true;
    world.send(&pubs("t", 1..OUTSTANDING_MAX + 10));
    world.run();
    assert_eq!((world.hop.outstanding(), world.hop.wants_bytes()), (OUTSTANDING_MAX, false));
    world.brokers[0].is_mute = false;
    world.run();
    assert_eq!(world.take_heard().len(), OUTSTANDING_MAX + 9);
    assert!(world.hop.wants_bytes());
}

#[test]
fn draining_answers_what_is_open_and_takes_nothing_more() {
    let mut world = at_a();
    world.brokers[0].is_mute = true;
    world.send(&pubs("t", 1..2));
    world.run();
    world.hop.on_drain(world.now);
    world.send(&pubs("t", 2..3));
    world.run();
    assert!(!world.has_ended);
    world.brokers[0].is_mute = false;
    world.run();
    assert_eq!((world.take_heard(), world.bodies(A)), (vec![Heard::Response("OK".into())], vec![0, 1]));
    assert!(world.has_ended);
}

#[test]
fn a_producer_that_says_no_more_is_answered_what_it_said() {
    let mut world = at_a();
    world.send(&pubs("t", 1..3));
    world.send(b"PUB t\n\0\0\0\x09half");
    world.hop.on_eof(world.now);
    world.run();
    assert_eq!((world.take_heard().len(), world.bodies(A)), (2, vec![0, 1, 2]));
    assert!(world.has_ended);
}

#[test]
fn commands_that_follow_each_other_are_written_as_one_piece() {
    let now = Instant::ZERO;
    let mut hop = Hop::new(HopConfig::default(), "x", now);
    let mut bytes = client::MAGIC.to_vec();
    bytes.extend(pubs("t", 0..3));
    hop.read_buffer().extend_from_slice(&bytes);
    hop.on_bytes(now);
    hop.on_named("x", vec![A], now);
    hop.on_place(&TopicName::new("t").unwrap(), vec![A], now);
    hop.on_connected(A, now);
    hop.node_buffer(A).unwrap().extend_from_slice(b"\0\0\0\x06\0\0\0\0OK");
    hop.on_node_bytes(A, now);
    let orders: Vec<Order> = std::iter::from_fn(|| hop.poll_output()).collect();
    let Some(Order::Write(node, piece)) = orders.last() else { panic!("{orders:?}") };
    assert_eq!((*node, &piece[..]), (A, &pubs("t", 0..3)[..]));
}

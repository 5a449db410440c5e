//! The laws of the hop, under any interleaving.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_wire::nsq::client;

use super::world::{Heard, World, index};
use crate::machine::hop::{NodeId, OUTSTANDING_MAX};

const BROKERS: u32 = 3;
const TOPICS: [&str; 3] = ["a", "b", "c"];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// The hop reads so many bytes of the producer.
    Feed(usize),
    /// A broker takes a connection, or is found to be away.
    Dial(NodeId),
    /// A broker carries out so many commands.
    Serve(NodeId, usize),
    /// A broker carries out a command of a connection that the hop has left.
    ServeLeft(NodeId),
    /// The hop reads so many bytes of a broker.
    Hear(NodeId, usize),
    /// A topic is placed on this broker, then the next ones.
    Place(usize, u32),
    Kill(NodeId),
    Revive(NodeId),
    Cut(NodeId),
    /// A broker refuses its next publish.
    Refuse(NodeId),
    Pass(u64),
}

fn node() -> impl Strategy<Value = NodeId> {
    (0..BROKERS).prop_map(NodeId)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..400_usize).prop_map(Event::Feed),
        6 => node().prop_map(Event::Dial),
        8 => (node(), 1..6_usize).prop_map(|(node, commands)| Event::Serve(node, commands)),
        1 => node().prop_map(Event::ServeLeft),
        8 => (node(), 1..60_usize).prop_map(|(node, bytes)| Event::Hear(node, bytes)),
        3 => (0..TOPICS.len(), 0..BROKERS).prop_map(|(topic, first)| Event::Place(topic, first)),
        1 => node().prop_map(Event::Kill),
        1 => node().prop_map(Event::Revive),
        1 => node().prop_map(Event::Cut),
        1 => node().prop_map(Event::Refuse),
        1 => (1..500_u64).prop_map(Event::Pass),
    ]
}

/// A command of the producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pub,
    Mpub,
    Dpub,
}

fn script(commands: &[(Kind, usize)], identifies: bool) -> Vec<u8> {
    let mut out = client::MAGIC.to_vec();
    if identifies {
        client::put_identify(&mut out, br#"{"client_id":"p","heartbeat_interval":-1}"#);
    }
    for (number, (kind, topic)) in commands.iter().enumerate() {
        let (topic, body) = (TOPICS[*topic], number.to_string());
        match kind {
            Kind::Pub => client::put_pub(&mut out, topic, body.as_bytes()),
            Kind::Dpub => client::put_dpub(&mut out, topic, 7, body.as_bytes()),
            Kind::Mpub => {
                let mut batch = client::Batch::begin(&mut out, topic);
                batch.push(body.as_bytes());
                batch.push(b"more");
                batch.finish();
            }
        }
        if number % 5 == 0 {
            client::put_nop(&mut out);
        }
    }
    out
}

fn candidates(first: u32) -> Vec<NodeId> {
    (0..BROKERS).map(|step| NodeId((first + step) % BROKERS)).collect()
}

fn happen(world: &mut World, event: &Event) {
    match *event {
        Event::Feed(bytes) => _ = world.feed(bytes),
        Event::Dial(node) => _ = world.dial(node),
        Event::Serve(node, commands) => (0..commands).for_each(|_| _ = world.serve(node)),
        Event::ServeLeft(node) => _ = world.serve_left(node),
        Event::Hear(node, bytes) => _ = world.hear(node, bytes),
        Event::Place(topic, first) => world.place(TOPICS[topic], &candidates(first)),
        Event::Kill(node) => world.kill(node),
        Event::Revive(node) => world.brokers[index(node)].is_alive = true,
        Event::Cut(node) => world.cut(node),
        Event::Refuse(node) => world.brokers[index(node)].refuses += 1,
        Event::Pass(ms) => world.pass(Duration::from_millis(ms)),
    }
    assert!(world.hop.outstanding() <= OUTSTANDING_MAX);
}

fn is_ascending(numbers: impl Iterator<Item = usize>) -> bool {
    let numbers: Vec<usize> = numbers.collect();
    numbers.is_sorted_by(|a, b| a < b)
}

/// Every command has one answer in its place; returns which were accepted by their answers.
fn check_answers(heard: &[Heard], commands: &[(Kind, usize)]) -> Vec<bool> {
    assert_eq!(heard.len(), commands.len(), "each command has one answer");
    let accepted = heard.iter().zip(commands).map(|(heard, (kind, _))| match heard {
        Heard::Response(text) => {
            assert_eq!(text, "OK");
            true
        }
        Heard::Error(text) => {
            let code = match kind {
                Kind::Pub => "E_PUB_FAILED",
                Kind::Mpub => "E_MPUB_FAILED",
                Kind::Dpub => "E_DPUB_FAILED",
            };
            assert!(text.starts_with(code), "{kind:?} is answered {text}");
            false
        }
    });
    accepted.collect()
}

fn check_log(world: &World, accepted: &[bool]) {
    for (number, is_accepted) in accepted.iter().enumerate() {
        let times = world.log.iter().filter(|entry| entry.body == number).count();
        assert!(times <= 1, "{number} was accepted {times} times");
        assert!(!is_accepted || times == 1, "{number} was answered OK and is nowhere");
    }
    for topic in TOPICS {
        let of_topic = || world.log.iter().filter(move |entry| entry.topic == topic);
        assert!(is_ascending(of_topic().filter(|entry| accepted[entry.body]).map(|entry| entry.body)));
        for connection in 0..world.owners.len() {
            let here = of_topic().filter(|entry| entry.connection == connection);
            assert!(is_ascending(here.map(|entry| entry.body)), "a connection carries a topic in order");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn each_command_is_answered_once_in_order_and_accepted_at_most_once(
        commands in vec((prop_oneof![3 => Just(Kind::Pub), 1 => Just(Kind::Mpub), 1 => Just(Kind::Dpub)], 0..TOPICS.len()), 1..120),
        identifies in any::<bool>(),
        events in vec(event(), 0..400),
    ) {
        let mut world = World::new(BROKERS);
        world.queue(&script(&commands, identifies));
        for event in &events {
            happen(&mut world, event);
        }
        // In the end everybody is there, and all that can happen happens.
        for node in (0..BROKERS).map(NodeId) {
            world.brokers[index(node)].is_alive = true;
        }
        for (topic, first) in TOPICS.iter().zip(0..) {
            world.place(topic, &candidates(first));
        }
        world.run();
        let mut heard = world.take_heard();
        if world.has_ended {
            // Its first command found no broker, and nothing was accepted.
            prop_assert!(matches!(&heard[..], [Heard::Error(text)] if text.starts_with("E_IDENTIFY_FAILED")));
            prop_assert!(world.log.is_empty());
            return Ok(());
        }
        if identifies {
            prop_assert_eq!(heard.remove(0), Heard::Response("OK".to_owned()));
        }
        let accepted = check_answers(&heard, &commands);
        check_log(&world, &accepted);
        prop_assert_eq!(world.hop.outstanding(), 0);
        while (0..BROKERS).map(NodeId).any(|node| world.serve_left(node)) {}
        check_log(&world, &accepted);
    }
}

//! Laws of the protocol, on inputs that nobody thought of.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use harness::{Broker, Reply, put, put_deferred, put_many, sized};
use proptest::prelude::*;

/// A command, sound or not.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(proptest::char::range('a', 'z'), 1..40)
        .prop_map(|letters| letters.into_iter().collect::<String>());
    let topic = prop_oneof![8 => Just("t"), 4 => Just("u"), 1 => Just("b@d")];
    prop_oneof![
        6 => (topic.clone(), body.clone()).prop_map(|(topic, body)| put(topic, &body)),
        3 => (topic.clone(), proptest::collection::vec(body.clone(), 1..5)).prop_map(|(t, b)| put_many(t, &b)),
        2 => (topic.clone(), 0_u64..3, body.clone()).prop_map(|(topic, delay, body)| put_deferred(topic, delay, &body)),
        2 => topic.prop_map(|topic| format!("SUB {topic} c\n").into_bytes()),
        3 => (0_u32..9).prop_map(|ready| format!("RDY {ready}\n").into_bytes()),
        2 => Just(b"FIN 0123456789abcdef\r\n".to_vec()),
        1 => Just(b"REQ 0123456789abcdef 5\n".to_vec()),
        1 => Just(b"TOUCH 0123456789abcdef\n".to_vec()),
        2 => Just(b"NOP\n".to_vec()),
        1 => Just(b"CLS\n".to_vec()),
        1 => Just(sized("IDENTIFY", "{}")),
        1 => Just(sized("IDENTIFY", r#"{"feature_negotiation": true, "snappy": true}"#)),
        1 => body.prop_map(|secret| sized("AUTH", secret)),
        1 => proptest::collection::vec(any::<u8>(), 1..20),
    ]
}

/// What a client that sends `pieces` gets, and whether it is still connected.
fn answers(pieces: &[&[u8]], settle: bool) -> (Vec<Reply>, bool) {
    let mut broker = Broker::with(|config| config.max_msg_size = 64);
    let client = broker.raw();
    for piece in pieces {
        broker.give(client, piece, broker.now);
        if settle {
            broker.settle();
        }
    }
    broker.settle();
    (broker.replies(client), broker.is_closed(client))
}

fn cut<'a>(mut input: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for cut in cuts.iter().cycle() {
        if input.is_empty() {
            break;
        }
        let (piece, rest) = input.split_at((*cut).min(input.len()));
        pieces.push(piece);
        input = rest;
    }
    pieces
}

proptest! {
    #[test]
    fn input_in_pieces_is_answered_like_the_whole(
        commands in proptest::collection::vec(command(), 1..20),
        cuts in proptest::collection::vec(1_usize..30, 1..20),
    ) {
        let input = [b"  V2".to_vec(), commands.concat()].concat();
        let pieces = cut(&input, &cuts);
        let whole = answers(&[&input], false);
        prop_assert_eq!(&answers(&pieces, false), &whole);
        // Piece by piece, messages come between the answers, but both keep their order.
        let apart = |(replies, closed): (Vec<Reply>, bool)| {
            let (messages, answers): (Vec<_>, Vec<_>) =
                replies.into_iter().partition(|reply| matches!(reply, Reply::Message(_)));
            (messages.len(), answers, closed)
        };
        let (_, answered, closed) = apart(answers(&pieces, true));
        let (_, whole_answered, whole_closed) = apart(whole);
        prop_assert_eq!((answered, closed), (whole_answered, whole_closed));
    }

    #[test]
    fn any_bytes_are_survived(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..10),
        magic in any::<bool>(),
    ) {
        let mut broker = Broker::default();
        let client = broker.raw();
        if magic {
            broker.send(client, "  V2");
        }
        for piece in &pieces {
            broker.send(client, piece);
        }
        let other = broker.connect();
        broker.publish(other, "t", "others are served");
    }
}

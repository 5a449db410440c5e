//! A server's bytes as the proxy reads them, without a socket: for the cases of `vectors/http1_answers/` and for fuzzing.

use bytes::BytesMut;
use http::Method;
use tidegate_wire::http1::vectors::answers::{Reading, Then, To};

use super::http1::answer::{self, AnswerHead, Asked};
use super::http1::decode::{Decoded, Framing};

/// What the proxy makes of `bytes`, the answer to one request, when they come in pieces that end at `cuts` and at their end.
pub fn read(to: To, bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Reading {
    let method = if to == To::Head { Method::HEAD } else { Method::GET };
    let mut reader = Reader {
        asked: Asked { method: &method, upgrade: to == To::WebSocket },
        buffer: BytesMut::new(),
        interim: 0,
        head: None,
        content: 0,
    };
    let (mut from, mut then) = (0, Then::More);
    for end in cuts.into_iter().chain([bytes.len()]) {
        let end = end.clamp(from, bytes.len());
        reader.buffer.extend_from_slice(&bytes[from..end]);
        from = end;
        then = reader.step();
        if then == Then::Refuse {
            break;
        }
    }
    Reading { status: reader.head.map(|head| head.status.as_u16()), content: reader.content, then }
}

/// What [`AnswerBody`](super::http1::client::AnswerBody) does with what it has read.
struct Reader<'a> {
    asked: Asked<'a>,
    buffer: BytesMut,
    interim: u8,
    head: Option<AnswerHead>,
    content: u64,
}

impl Reader<'_> {
    fn step(&mut self) -> Then {
        if self.head.is_none() {
            match answer::take_head(&mut self.buffer, self.asked, &mut self.interim) {
                Ok(head) => self.head = head,
                Err(_) => return Then::Refuse,
            }
        }
        let Some(head) = self.head.as_mut() else { return Then::More };
        loop {
            if head.framing.is_done() {
                return if head.reusable && self.buffer.is_empty() { Then::Keep } else { Then::Close };
            }
            match head.framing.decode(&mut self.buffer) {
                Ok(Decoded::Piece(piece)) => self.content += piece.len() as u64,
                Ok(Decoded::End) => {}
                Ok(Decoded::Short) => {
                    return if head.framing == Framing::UntilClose { Then::UntilClose } else { Then::More };
                }
                Err(_) => return Then::Refuse,
            }
        }
    }
}

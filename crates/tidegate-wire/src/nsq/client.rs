//! The client's side: commands as they are written, frames as they are read.
//!
//! Commands are appended to a buffer of the caller, so a buffer that has grown once costs no allocation any more. Names
//! are the caller's promise: [`super::TopicName`] and [`super::ChannelName`] check them.

use super::frame::{Header, ID_BYTES, MESSAGE_HEADER_BYTES};

pub use super::command::MAGIC;

/// What the broker sends when it has heard nothing; the answer is [`put_nop`].
pub const HEARTBEAT: &[u8] = b"_heartbeat_";

/// Appends IDENTIFY with a JSON object.
pub fn put_identify(out: &mut Vec<u8>, json: &[u8]) {
    out.extend_from_slice(b"IDENTIFY\n");
    put_sized(out, json);
}

/// Appends AUTH with a secret.
pub fn put_auth(out: &mut Vec<u8>, secret: &[u8]) {
    out.extend_from_slice(b"AUTH\n");
    put_sized(out, secret);
}

/// Appends SUB.
pub fn put_sub(out: &mut Vec<u8>, topic: &str, channel: &str) {
    put_line(out, &[b"SUB", topic.as_bytes(), channel.as_bytes()]);
}

/// Appends RDY: up to `count` messages may be in flight.
pub fn put_rdy(out: &mut Vec<u8>, count: u32) {
    put_line(out, &[b"RDY", Decimal::of(u64::from(count)).digits()]);
}

/// Appends FIN.
pub fn put_fin(out: &mut Vec<u8>, id: &[u8; ID_BYTES]) {
    put_line(out, &[b"FIN", id]);
}

/// Appends REQ: deliver again in `delay_ms`.
pub fn put_req(out: &mut Vec<u8>, id: &[u8; ID_BYTES], delay_ms: u64) {
    put_line(out, &[b"REQ", id, Decimal::of(delay_ms).digits()]);
}

/// Appends TOUCH: the time-out begins anew.
pub fn put_touch(out: &mut Vec<u8>, id: &[u8; ID_BYTES]) {
    put_line(out, &[b"TOUCH", id]);
}

/// Appends NOP.
pub fn put_nop(out: &mut Vec<u8>) {
    out.extend_from_slice(b"NOP\n");
}

/// Appends CLS.
pub fn put_cls(out: &mut Vec<u8>) {
    out.extend_from_slice(b"CLS\n");
}

/// Appends PUB of one message.
pub fn put_pub(out: &mut Vec<u8>, topic: &str, body: &[u8]) {
    put_line(out, &[b"PUB", topic.as_bytes()]);
    put_sized(out, body);
}

/// Appends DPUB of one message, deferred by `delay_ms`.
pub fn put_dpub(out: &mut Vec<u8>, topic: &str, delay_ms: u64, body: &[u8]) {
    put_line(out, &[b"DPUB", topic.as_bytes(), Decimal::of(delay_ms).digits()]);
    put_sized(out, body);
}

/// An MPUB under construction at the end of a buffer; its sizes are filled in by [`finish`](Self::finish).
#[derive(Debug)]
#[must_use = "a batch that is not finished has no sizes"]
pub struct Batch<'a> {
    out: &'a mut Vec<u8>,
    size_at: usize,
    messages: u32,
}

impl<'a> Batch<'a> {
    /// Begins an MPUB at the end of `out`.
    pub fn begin(out: &'a mut Vec<u8>, topic: &str) -> Self {
        put_line(out, &[b"MPUB", topic.as_bytes()]);
        let size_at = out.len();
        out.extend_from_slice(&[0; 8]);
        Self { out, size_at, messages: 0 }
    }

    /// Appends one message.
    pub fn push(&mut self, body: &[u8]) {
        put_sized(self.out, body);
        self.messages += 1;
    }

    /// Completes the command.
    pub fn finish(self) {
        let size = size_of_body(self.out.len() - self.size_at - 4);
        self.out[self.size_at..self.size_at + 4].copy_from_slice(&size.to_be_bytes());
        self.out[self.size_at + 4..self.size_at + 8].copy_from_slice(&self.messages.to_be_bytes());
    }
}

/// A frame of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// `OK`, [`HEARTBEAT`], `CLOSE_WAIT`, or the JSON that answers IDENTIFY and AUTH.
    Response(&'a [u8]),
    /// A code such as `E_BAD_TOPIC`, and a text.
    Error(&'a [u8]),
    /// A message of the subscription.
    Message(Header, &'a [u8]),
}

/// Bytes that no broker sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// Larger than the caller takes, or too small to have a type.
    #[error("frame of {announced} bytes, expected 4 to {limit}")]
    Size {
        /// The size in the frame.
        announced: u32,
        /// The caller's bound.
        limit: u32,
    },
    /// Neither response, error nor message.
    #[error("frame of type {0}, expected 0, 1 or 2")]
    Type(u32),
    /// A message frame that ends inside its header.
    #[error("message frame of {0} bytes, shorter than its header")]
    Torn(usize),
}

/// The first frame of `input` and the bytes it took, or `None` if it is not complete yet.
///
/// `max_bytes` bounds type and data together; a frame that announces more is refused before it is waited for.
///
/// # Errors
/// [`BadFrame`] when the bytes cannot become a frame; the stream is lost then.
#[inline]
pub fn frame(input: &[u8], max_bytes: u32) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let Some((size, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let announced = u32::from_be_bytes(*size);
    if !(4..=max_bytes).contains(&announced) {
        return Err(BadFrame::Size { announced, limit: max_bytes });
    }
    let size = announced as usize;
    let Some((kind, data)) = rest.get(..size).and_then(<[u8]>::split_first_chunk::<4>) else { return Ok(None) };
    let frame = match u32::from_be_bytes(*kind) {
        0 => Frame::Response(data),
        1 => Frame::Error(data),
        2 => message(data).ok_or(BadFrame::Torn(data.len()))?,
        other => return Err(BadFrame::Type(other)),
    };
    Ok(Some((frame, 4 + size)))
}

#[inline]
fn message(data: &[u8]) -> Option<Frame<'_>> {
    let (header, body) = data.split_first_chunk::<MESSAGE_HEADER_BYTES>()?;
    let (timestamp, header) = header.split_first_chunk::<8>()?;
    let (attempts, header) = header.split_first_chunk::<2>()?;
    let id = header.first_chunk::<ID_BYTES>()?;
    let header = Header { timestamp: i64::from_be_bytes(*timestamp), attempts: u16::from_be_bytes(*attempts), id: *id };
    Some(Frame::Message(header, body))
}

fn put_line(out: &mut Vec<u8>, words: &[&[u8]]) {
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(word);
    }
    out.push(b'\n');
}

fn put_sized(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(&size_of_body(body.len()).to_be_bytes());
    out.extend_from_slice(body);
}

fn size_of_body(bytes: usize) -> u32 {
    // The protocol has no larger ones, and brokers refuse far smaller ones.
    u32::try_from(bytes).expect("a command's body is below 4 GiB")
}

/// A number's decimal digits, without an allocation.
struct Decimal {
    digits: [u8; 20],
    from: usize,
}

impl Decimal {
    fn of(mut number: u64) -> Self {
        let mut decimal = Self { digits: [b'0'; 20], from: 20 };
        loop {
            decimal.from -= 1;
            let digit = (number % 10) as u8;
            decimal.digits[decimal.from] = b'0' + digit;
            number /= 10;
            if number == 0 {
                return decimal;
            }
        }
    }

    fn digits(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::super::{command, frame as server};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAX: u32 = 1 << 20;

    /// The line, its parameters, and the body behind it, read as the broker reads them.
    fn parsed(out: &[u8]) -> (command::Verb, Vec<String>, &[u8]) {
        let (line, used) = command::line(out).unwrap().unwrap();
        let params = (0..line.param_count()).map(|at| String::from_utf8(line.param(at).unwrap().into()).unwrap());
        (line.verb, params.collect(), &out[used..])
    }

    #[test]
    fn commands_read_as_they_were_written() {
        let id = *b"0123456789abcdef";
        let mut out = Vec::new();
        put_sub(&mut out, "t", "c#ephemeral");
        assert_eq!(parsed(&out), (command::Verb::Sub, vec!["t".into(), "c#ephemeral".into()], &b""[..]));
        for (put, verb) in
            [(put_fin as fn(&mut Vec<u8>, &[u8; 16]), command::Verb::Fin), (put_touch, command::Verb::Touch)]
        {
            out.clear();
            put(&mut out, &id);
            assert_eq!(parsed(&out), (verb, vec!["0123456789abcdef".into()], &b""[..]));
        }
        out.clear();
        put_nop(&mut out);
        put_cls(&mut out);
        assert_eq!(out, b"NOP\nCLS\n");
        out.clear();
        put_auth(&mut out, b"secret");
        assert_eq!(parsed(&out), (command::Verb::Auth, vec![], &b"\0\0\0\x06secret"[..]));
    }

    #[test]
    fn impossible_frames_are_refused_before_they_are_waited_for() {
        assert_eq!(frame(&[0, 0, 0, 3], MAX), Err(BadFrame::Size { announced: 3, limit: MAX }));
        assert_eq!(frame(&[0, 16, 0, 1], MAX), Err(BadFrame::Size { announced: MAX + 1, limit: MAX }));
        assert_eq!(frame(&[0, 0, 0, 4, 0, 0, 0, 9], MAX), Err(BadFrame::Type(9)));
        assert_eq!(frame(&[0, 0, 0, 5, 0, 0, 0, 2, 1], MAX), Err(BadFrame::Torn(1)));
    }

    proptest! {
        #[test]
        fn publishes_carry_their_bodies(topic in "[a-z]{1,8}", delay in any::<u64>(), bodies in vec(vec(any::<u8>(), 1..40), 1..9)) {
            let mut out = Vec::new();
            put_pub(&mut out, &topic, &bodies[0]);
            let (verb, params, rest) = parsed(&out);
            prop_assert_eq!((verb, &params[..], command::length(rest)), (command::Verb::Pub, &[topic.clone()][..], i32::try_from(bodies[0].len()).ok()));
            prop_assert_eq!(&rest[4..], &bodies[0][..]);

            out.clear();
            put_dpub(&mut out, &topic, delay, &bodies[0]);
            let (verb, params, rest) = parsed(&out);
            prop_assert_eq!((verb, params), (command::Verb::Dpub, vec![topic.clone(), delay.to_string()]));
            prop_assert_eq!(&rest[4..], &bodies[0][..]);

            // Behind other bytes, as in a buffer that is not yet written out.
            let before = out.len();
            let mut batch = Batch::begin(&mut out, &topic);
            for body in &bodies {
                batch.push(body);
            }
            batch.finish();
            let (verb, _, rest) = parsed(&out[before..]);
            prop_assert_eq!((verb, command::length(rest)), (command::Verb::Mpub, i32::try_from(rest.len() - 4).ok()));
            let read = command::Batch::parse(&rest[4..], 1 << 10, usize::MAX).unwrap();
            prop_assert_eq!(read.map(<[u8]>::to_vec).collect::<Vec<_>>(), bodies);
        }

        #[test]
        fn frames_read_as_the_broker_wrote_them_in_any_pieces(
            parts in vec((0..3_u8, any::<i64>(), any::<u16>(), any::<u64>(), vec(any::<u8>(), 0..60)), 0..12), cut in any::<prop::sample::Index>()
        ) {
            let mut out = Vec::new();
            for (kind, timestamp, attempts, number, bytes) in &parts {
                match kind {
                    0 => server::put_response(&mut out, bytes),
                    1 => server::put_error(&mut out, bytes),
                    _ => server::put_message(&mut out, &Header { timestamp: *timestamp, attempts: *attempts, id: server::hex_id(*number) }, bytes),
                }
            }
            let expected = parts.iter().map(|(kind, timestamp, attempts, number, bytes)| match kind {
                0 => Frame::Response(bytes),
                1 => Frame::Error(bytes),
                _ => Frame::Message(Header { timestamp: *timestamp, attempts: *attempts, id: server::hex_id(*number) }, bytes),
            });
            // The first piece ends anywhere; what it lacks is asked for again with all bytes.
            let (mut read, mut at) = (Vec::new(), 0);
            for end in [cut.index(out.len() + 1), out.len()] {
                while let Some((frame, used)) = frame(&out[at..end], MAX).unwrap() {
                    read.push(frame);
                    at += used;
                }
            }
            prop_assert_eq!(read, expected.collect::<Vec<_>>());
            prop_assert_eq!(at, out.len());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, used))) = frame(&bytes, MAX) {
                prop_assert!(used <= bytes.len());
            }
        }
    }
}

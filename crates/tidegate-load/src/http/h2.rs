//! As much of HTTP/2 as a client needs that asks one question at a time.

use super::answer::Answer;
use super::config::Source;
use super::tally::Ending;

/// The client's preface; SETTINGS: no header table, no pushes, the largest window for a stream; the same for the connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00";
/// The frame size that every peer takes.
const FRAME_BYTES_MAX: usize = 16_384;
const HEADER_BYTES: usize = 9;
/// The connection's window is given back after so many bytes.
const WINDOW_BYTES: u32 = 1 << 30;
/// The last odd stream number.
const STREAM_MAX: u32 = (1 << 31) - 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The largest body of a request over HTTP/2: nobody here waits for the server's window.
pub(super) const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// One connection's state.
#[derive(Debug)]
pub(super) struct H2 {
    /// Of the request under way.
    stream: u32,
    input: Vec<u8>,
    status: u16,
    is_going_away: bool,
    /// Bytes of bodies since the window was given back.
    received: u32,
    /// A header block that has begun: it ends its stream, and it is the first of its stream.
    block: Option<(Vec<u8>, bool)>,
}

impl H2 {
    pub(super) fn new() -> Self {
        Self { stream: 0, input: Vec::new(), status: 0, is_going_away: false, received: 0, block: None }
    }

    /// Appends a request of `source`.
    pub(super) fn request(&mut self, source: &Source, out: &mut Vec<u8>) {
        if self.stream == 0 {
            out.extend_from_slice(PREFACE);
            self.stream = 1;
        } else {
            self.stream += 2;
        }
        self.status = 0;
        let block = header_block(source);
        let flags = END_HEADERS | if source.body_bytes == 0 { END_STREAM } else { 0 };
        put_frame(out, HEADERS, flags, self.stream, &block);
        if source.body_bytes > 0 {
            put_frame(out, DATA, END_STREAM, self.stream, &vec![b'x'; source.body_bytes.min(BODY_BYTES_MAX)]);
        }
    }

    /// Takes bytes, appends what the protocol answers; the answer once it is complete.
    pub(super) fn read(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<Answer>, Ending> {
        self.input.extend_from_slice(input);
        let (mut at, mut answer) = (0, None);
        while let Some(header) = self.input[at..].first_chunk::<HEADER_BYTES>().copied() {
            let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            if length > FRAME_BYTES_MAX {
                return Err(Ending::Garbled);
            }
            let from = at + HEADER_BYTES;
            let Some(payload) = self.input.get(from..from + length).map(<[u8]>::to_vec) else { break };
            at = from + length;
            let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
            let found = self.frame(header[3], header[4], stream, &payload, out)?;
            answer = answer.or(found);
        }
        self.input.drain(..at);
        Ok(answer)
    }

    /// The head of an answer has come.
    pub(super) fn has_begun(&self) -> bool {
        self.status > 0
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Answer>, Ending> {
        let is_ours = stream == self.stream;
        match kind {
            DATA => {
                self.received += u32::try_from(payload.len()).expect("a frame's length has 24 bits");
                if self.received >= WINDOW_BYTES {
                    put_frame(out, WINDOW_UPDATE, 0, 0, &self.received.to_be_bytes());
                    self.received = 0;
                }
                return Ok(self.end_if(is_ours && flags & END_STREAM != 0));
            }
            HEADERS | CONTINUATION => {
                let fragment = if kind == HEADERS { unpadded(flags, payload).ok_or(Ending::Garbled)? } else { payload };
                let (mut block, ends) = self.block.take().unwrap_or_default();
                let ends = ends || (kind == HEADERS && flags & END_STREAM != 0);
                block.extend_from_slice(fragment);
                if block.len() > 4 * FRAME_BYTES_MAX {
                    return Err(Ending::Garbled);
                }
                if flags & END_HEADERS == 0 {
                    self.block = Some((block, ends));
                    return Ok(None);
                }
                if is_ours {
                    // Trailers have no status; what comes before the answer itself has one below 200.
                    let status = status(&block).unwrap_or(0);
                    self.status = if self.status >= 200 { self.status } else { status };
                    return Ok(self.end_if(ends));
                }
            }
            RST_STREAM if is_ours => return Err(Ending::Reset),
            SETTINGS if flags & ACK == 0 => put_frame(out, SETTINGS, ACK, 0, b""),
            PING if flags & ACK == 0 => put_frame(out, PING, ACK, 0, payload),
            GOAWAY => {
                self.is_going_away = true;
                let last = payload.first_chunk::<4>().map_or(0, |last| u32::from_be_bytes(*last) & STREAM_MAX);
                if last < self.stream && self.stream > 0 {
                    return Err(Ending::Closed);
                }
            }
            _ => {}
        }
        Ok(None)
    }

    fn end_if(&self, ends: bool) -> Option<Answer> {
        let keeps_open = !self.is_going_away && self.stream < STREAM_MAX - 2;
        ends.then_some(Answer { status: self.status, keeps_open })
    }
}

/// A payload without its padding and priority.
fn unpadded(flags: u8, payload: &[u8]) -> Option<&[u8]> {
    let (padding, payload) = match payload.split_first() {
        Some((padding, rest)) if flags & PADDED != 0 => (usize::from(*padding), rest),
        _ => (0, payload),
    };
    let payload = if flags & PRIORITY == 0 { payload } else { payload.get(5..)? };
    payload.get(..payload.len().checked_sub(padding)?)
}

fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a frame of ours is short").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// HPACK without tables: indices of the static table and plain literals.
fn header_block(source: &Source) -> Vec<u8> {
    let mut block = Vec::new();
    match source.method.as_str() {
        "GET" => block.push(0x82),
        "POST" => block.push(0x83),
        method => put_literal(&mut block, 2, method),
    }
    block.push(if source.tls { 0x87 } else { 0x86 });
    put_literal(&mut block, 4, &source.path);
    put_literal(&mut block, 1, &source.name);
    for field in &source.headers {
        let (name, value) = field.split_once(": ").unwrap_or((field, ""));
        block.push(0);
        put_text(&mut block, &name.to_ascii_lowercase());
        put_text(&mut block, value);
    }
    block
}

/// A literal without indexing whose name is an entry of the static table below 15.
fn put_literal(block: &mut Vec<u8>, name: u8, value: &str) {
    block.push(name);
    put_text(block, value);
}

fn put_text(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(u8::try_from(length).expect("below 127"));
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push(u8::try_from(length % 128).expect("below 128") | 128);
            length /= 128;
        }
        block.push(u8::try_from(length).expect("below 128"));
    }
    block.extend_from_slice(text.as_bytes());
}

/// The status of an answer's header block, which begins with it. The static table has seven; others are literals.
fn status(mut block: &[u8]) -> Option<u16> {
    // Changes of the table's size come first; ours has none.
    while let [0x20..=0x3f, rest @ ..] = block {
        block = rest;
    }
    let (first, rest) = block.split_first()?;
    match first {
        0x88..=0x8e => [200, 204, 206, 304, 400, 404, 500].get(usize::from(first - 0x88)).copied(),
        // Literals with the name of an entry from 8 to 14, of all three kinds.
        0x48..=0x4e | 0x08..=0x0e | 0x18..=0x1e => {
            let (length, rest) = rest.split_first()?;
            let text = rest.get(..usize::from(length & 0x7f))?;
            if length & 0x80 == 0 { std::str::from_utf8(text).ok()?.parse().ok() } else { huffman_number(text) }
        }
        _ => None,
    }
}

/// Digits in HPACK's Huffman code: 0, 1 and 2 are the codes 0, 1, 2 of five bits, 3 to 9 are 25 to 31 of six.
fn huffman_number(bytes: &[u8]) -> Option<u16> {
    let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let mut left = u32::try_from(bytes.len()).ok().filter(|length| *length <= 4)? * 8;
    let mut number = 0_u16;
    for _ in 0..3 {
        let five = u16::try_from(bits >> left.checked_sub(5)? & 31).ok()?;
        let digit = if five <= 2 {
            left -= 5;
            five
        } else {
            let six = u16::try_from(bits >> left.checked_sub(6)? & 63).ok()?;
            left -= 6;
            (25..=31).contains(&six).then(|| six - 22)?
        };
        number = number * 10 + digit;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, kind, flags, stream, payload);
        out
    }

    #[test]
    fn statuses_are_read_in_all_their_forms() {
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x20, 0x8d]), Some(404));
        assert_eq!(status(b"\x48\x03429"), Some(429));
        // RFC 7541, C.6.1 and C.6.3: 302 and 307 in Huffman code.
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(&[0x40]), None);
        assert_eq!(status(&[]), None);
    }

    #[test]
    fn an_answer_ends_with_its_stream_whatever_the_split() {
        let mut bytes = frame(SETTINGS, 0, 0, &[]);
        bytes.extend(frame(HEADERS, 0, 1, &[0x88]));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 1, &[0x0f, 0x00]));
        bytes.extend(frame(DATA, 0, 1, b"abc"));
        bytes.extend(frame(PING, 0, 0, b"01234567"));
        bytes.extend(frame(DATA, END_STREAM, 1, b""));
        for at in 0..=bytes.len() {
            let (mut h2, mut out) = (H2::new(), Vec::new());
            h2.request(&Source::default(), &mut Vec::new());
            let first = h2.read(&bytes[..at], &mut out).unwrap();
            let second = h2.read(&bytes[at..], &mut out).unwrap();
            assert_eq!(first.or(second), Some(Answer { status: 200, keeps_open: true }), "split at {at}");
            assert_eq!(out, [frame(SETTINGS, ACK, 0, b""), frame(PING, ACK, 0, b"01234567")].concat());
        }
    }

    #[test]
    fn a_stream_that_is_reset_and_a_server_that_goes_away_are_told() {
        let after = |bytes: &[u8]| {
            let mut h2 = H2::new();
            h2.request(&Source::default(), &mut Vec::new());
            h2.read(bytes, &mut Vec::new())
        };
        assert_eq!(after(&frame(RST_STREAM, 0, 1, &[0; 4])), Err(Ending::Reset));
        assert_eq!(after(&frame(GOAWAY, 0, 0, &[0; 8])), Err(Ending::Closed));
        assert_eq!(after(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])), Ok(None));
        assert_eq!(after(&[0xff; 9]), Err(Ending::Garbled));
    }

    #[test]
    fn long_texts_have_long_lengths() {
        let mut block = Vec::new();
        put_text(&mut block, &"x".repeat(127 + 128));
        assert_eq!(block[..3], [127, 0x80, 1]);
        assert_eq!(block.len(), 3 + 255);
    }
}

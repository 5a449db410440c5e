//! The guard itself: where messages begin and end.

use super::chunk;
use super::grammar::{field, line};
use super::head::{Content, Head};
use super::limits::{BODY_BYTES_MAX, Fault, Limits, Violation};

/// Follows the requests of one connection.
///
/// Heads pass whole or not at all, and so do the lines around chunks; content passes as it comes. Bytes that did not
/// pass stay with the caller, who presents them again with what came behind them. Each byte is looked at once, however
/// it was cut.
///
/// A [`Violation`] is final. What passed before it is sound, and answers to it may still be under way.
#[derive(Clone, Debug)]
pub struct Guard {
    limits: Limits,
    state: State,
    switch: Switch,
    /// Bytes that passed since the connection began.
    passed: u64,
    heads: u64,
    requests: u64,
}

#[derive(Clone, Debug)]
enum State {
    Head(Head),
    /// Content of a known length: what is left of it, never 0.
    Length(u64),
    Chunks(Chunks),
    /// Behind a request that may change the protocol, before its answer.
    Held,
    Raw,
    Broken(Violation),
}

/// Content in chunks.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    next: Piece,
    /// No LF stands before this in the line that is waited for.
    searched: usize,
    /// Of data, so far and announced.
    bytes: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailers: usize,
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    Size,
    /// What is left of the chunk, never 0.
    Data(u64),
    /// The line end behind the data.
    End,
    Trailer,
}

/// What the current request may turn the connection into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Switch {
    No,
    Asked,
    Granted,
}

/// Where a connection stands, for timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// Between requests.
    Idle,
    /// Part of a head has come.
    Head,
    /// Within the content or its trailers.
    Content,
    /// Behind a CONNECT or an upgrade; [`Guard::upgraded`] or [`Guard::declined`] is due.
    Answer,
    /// Another protocol.
    Raw,
    /// A violation was found.
    Refused,
}

/// How much of the rest is sound.
enum Step {
    Pass(usize),
    Wait,
}

impl Guard {
    /// A guard at the beginning of a connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: State::Head(Head::new()), switch: Switch::No, passed: 0, heads: 0, requests: 0 }
    }

    /// How many bytes of `input` may pass; `input` begins with those that did not pass before.
    ///
    /// Fewer than all: the rest waits for more bytes, for [`upgraded`](Self::upgraded) or [`declined`](Self::declined),
    /// or is refused, which [`violation`](Self::violation) tells at once and the next call returns.
    ///
    /// # Errors
    /// The violation, if nothing passes because of it.
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let mut at = 0;
        loop {
            match self.step(&input[at..]) {
                Ok(Step::Wait) => break,
                Ok(Step::Pass(bytes)) => {
                    at += bytes;
                    self.passed += bytes as u64;
                }
                Err(Fault { status, reason, at: place }) => {
                    let offset = self.passed + place as u64;
                    self.state = State::Broken(Violation { status, reason, offset });
                    break;
                }
            }
        }
        match self.state {
            State::Broken(violation) if at == 0 => Err(violation),
            _ => Ok(at),
        }
    }

    /// What was found, if anything.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        if let State::Broken(violation) = self.state { Some(violation) } else { None }
    }

    /// Requests that passed whole.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Requests whose heads passed.
    #[must_use]
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Where the connection stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Head(head) if head.is_untouched() => Phase::Idle,
            State::Head(_) => Phase::Head,
            State::Length(_) | State::Chunks(_) => Phase::Content,
            State::Held => Phase::Answer,
            State::Raw => Phase::Raw,
            State::Broken(_) => Phase::Refused,
        }
    }

    /// The answer to a CONNECT or an upgrade to `WebSocket` changed the protocol: all that follows the request passes.
    ///
    /// Returns whether such a request was there.
    pub fn upgraded(&mut self) -> bool {
        let asked = self.switch == Switch::Asked;
        if asked {
            self.switch = Switch::Granted;
        }
        if asked && matches!(self.state, State::Held) {
            self.state = State::Raw;
        }
        asked
    }

    /// The answer to such a request changed nothing: what follows is another request. Without effect at other times.
    pub fn declined(&mut self) {
        self.switch = Switch::No;
        if matches!(self.state, State::Held) {
            self.state = State::Head(Head::new());
        }
    }

    fn step(&mut self, rest: &[u8]) -> Result<Step, Fault> {
        if rest.is_empty() {
            return Ok(Step::Wait);
        }
        match &mut self.state {
            State::Head(head) => {
                let Some(outline) = head.advance(rest, &self.limits)? else { return Ok(Step::Wait) };
                self.heads += 1;
                self.switch = if outline.may_switch { Switch::Asked } else { Switch::No };
                match outline.content {
                    Content::Length(0) => self.end_message(),
                    Content::Length(length) => self.state = State::Length(length),
                    Content::Chunked => self.state = State::Chunks(Chunks::new()),
                }
                Ok(Step::Pass(outline.bytes))
            }
            State::Length(left) => {
                let bytes = at_most(rest.len(), *left);
                *left -= bytes as u64;
                if *left == 0 {
                    self.end_message();
                }
                Ok(Step::Pass(bytes))
            }
            State::Chunks(chunks) => match chunks.step(rest, &self.limits)? {
                Chunked::Wait => Ok(Step::Wait),
                Chunked::Pass(bytes) => Ok(Step::Pass(bytes)),
                Chunked::Last(bytes) => {
                    self.end_message();
                    Ok(Step::Pass(bytes))
                }
            },
            State::Raw => Ok(Step::Pass(rest.len())),
            State::Held | State::Broken(_) => Ok(Step::Wait),
        }
    }

    fn end_message(&mut self) {
        self.requests += 1;
        self.state = match self.switch {
            Switch::No => State::Head(Head::new()),
            Switch::Asked => State::Held,
            Switch::Granted => State::Raw,
        };
    }
}

/// The same as [`Step`], and whether the message ends.
enum Chunked {
    Wait,
    Pass(usize),
    Last(usize),
}

impl Chunks {
    const fn new() -> Self {
        Self { next: Piece::Size, searched: 0, bytes: 0, extension_bytes: 0, trailer_bytes: 0, trailers: 0 }
    }

    fn step(&mut self, rest: &[u8], limits: &Limits) -> Result<Chunked, Fault> {
        match &mut self.next {
            Piece::Size => self.size(rest, limits),
            Piece::Data(left) => {
                let bytes = at_most(rest.len(), *left);
                *left -= bytes as u64;
                if *left == 0 {
                    self.next = Piece::End;
                }
                Ok(Chunked::Pass(bytes))
            }
            Piece::End => match rest {
                [b'\r', b'\n', ..] => {
                    self.next = Piece::Size;
                    Ok(Chunked::Pass(2))
                }
                [b'\r'] => Ok(Chunked::Wait),
                [b'\r', _, ..] => Err(Fault::bad("a chunk is longer than its size", 1)),
                _ => Err(Fault::bad("a chunk is longer than its size", 0)),
            },
            Piece::Trailer => self.trailer(rest, limits),
        }
    }

    fn size(&mut self, rest: &[u8], limits: &Limits) -> Result<Chunked, Fault> {
        let too_long = (400, "the line before a chunk is too long");
        let Some(line) = line(rest, 0, &mut self.searched, limits.chunk_line_bytes, too_long)? else {
            return Ok(Chunked::Wait);
        };
        self.searched = 0;
        let chunk = chunk::size_line(&rest[..line.end])?;
        self.extension_bytes += chunk.extension_bytes;
        if self.extension_bytes > limits.chunk_extension_bytes {
            return Err(Fault::bad("chunk extensions are too long", line.end));
        }
        match self.bytes.checked_add(chunk.size) {
            Some(bytes) if bytes <= limits.body_bytes.min(BODY_BYTES_MAX) => self.bytes = bytes,
            Some(bytes) if bytes <= BODY_BYTES_MAX => return Err(Fault::new(413, "the content is too large", 0)),
            _ => return Err(Fault::bad("a chunk size is too large a number", 0)),
        }
        self.next = if chunk.size == 0 { Piece::Trailer } else { Piece::Data(chunk.size) };
        Ok(Chunked::Pass(line.next))
    }

    fn trailer(&mut self, rest: &[u8], limits: &Limits) -> Result<Chunked, Fault> {
        let bound = limits.field_bytes.min(limits.trailer_bytes.saturating_sub(self.trailer_bytes));
        let too_long = (431, "the trailers are too long");
        let Some(line) = line(rest, 0, &mut self.searched, bound, too_long)? else { return Ok(Chunked::Wait) };
        self.searched = 0;
        if line.end == 0 {
            return Ok(Chunked::Last(line.next));
        }
        let (name, _) = field(&rest[..line.end], 0)?;
        if NEVER_TRAILERS.iter().any(|never| name.eq_ignore_ascii_case(never)) {
            return Err(Fault::bad("a trailer has a name that belongs in the head", 0));
        }
        self.trailers += 1;
        if self.trailers > limits.trailers {
            return Err(Fault::new(431, "there are too many trailers", 0));
        }
        self.trailer_bytes += line.next;
        Ok(Chunked::Pass(line.next))
    }
}

/// RFC 9110 §6.5.1: framing, routing, request modifiers, authentication, and how to read the content.
const NEVER_TRAILERS: [&[u8]; 20] = [
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"keep-alive",
    b"max-forwards",
    b"proxy-authorization",
    b"range",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-forwarded-for",
];

/// The lesser of the two.
fn at_most(there: usize, wanted: u64) -> usize {
    usize::try_from(wanted).map_or(there, |wanted| wanted.min(there))
}

#[cfg(test)]
mod tests;

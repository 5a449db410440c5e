//! The head of a request: its line and its fields, looked at once.

use super::grammar::{Line, decimal, field, is_token, line, members, trimmed};
use super::limits::{BODY_BYTES_MAX, Fault, Limits};
use super::target::{self, Form, Method};

/// The longest method; 501 beyond, as RFC 9112 §3 asks.
const METHOD_BYTES_MAX: usize = 32;
/// How many options all Connection fields together may list.
const CONNECTION_OPTIONS_MAX: usize = 16;

/// How the message goes on behind its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outline {
    /// The head's length, with the empty line.
    pub(super) bytes: usize,
    pub(super) content: Content,
    /// CONNECT, or an upgrade to `WebSocket`: what follows depends on the answer.
    pub(super) may_switch: bool,
}

/// How the end of the content is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// So many bytes.
    Length(u64),
    Chunked,
}

/// A part of the head, as places in it. Bytes that wait are presented again, so the head is never copied.
type Span = std::ops::Range<usize>;

/// How far a head has been looked at, and what it said.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each notes one thing that was seen, independent of the others")]
pub(super) struct Head {
    /// Where the next line begins.
    at: usize,
    /// No LF stands before this.
    searched: usize,
    /// An empty line stood before the request line.
    skipped: bool,
    /// Lines so far; the first is the request line.
    lines: usize,
    method: Method,
    minor: u8,
    target: Span,
    host: Option<Span>,
    length: Option<u64>,
    chunked: bool,
    connection_options: usize,
    upgrade_nominated: bool,
    websocket: bool,
}

impl Head {
    pub(super) const fn new() -> Self {
        Self {
            at: 0,
            searched: 0,
            skipped: false,
            lines: 0,
            method: Method::Other,
            minor: 1,
            target: 0..0,
            host: None,
            length: None,
            chunked: false,
            connection_options: 0,
            upgrade_nominated: false,
            websocket: false,
        }
    }

    /// Nothing of it has come.
    pub(super) const fn is_untouched(&self) -> bool {
        self.searched == 0
    }

    /// Looks at what has come; `input` begins where the head begins. `None`: its end is not there.
    pub(super) fn advance(&mut self, input: &[u8], limits: &Limits) -> Result<Option<Outline>, Fault> {
        while let Some(line) = self.next_line(input, limits)? {
            let start = self.at;
            let text = &input[start..line.end];
            self.at = line.next;
            if text.is_empty() && self.lines > 0 {
                return self.finish(input, start, line.next).map(Some);
            }
            if text.is_empty() {
                // RFC 9112 §2.2: one may be left over from a request that came before.
                if self.skipped {
                    return Err(Fault::bad("empty lines stand before the request", start));
                }
                self.skipped = true;
                continue;
            }
            if self.lines == 0 {
                self.request_line(text, start)?;
            } else if self.lines > limits.fields {
                return Err(Fault::new(431, "there are too many fields", start));
            } else {
                self.field(text, start, limits)?;
            }
            self.lines += 1;
        }
        Ok(None)
    }

    #[inline]
    fn next_line(&mut self, input: &[u8], limits: &Limits) -> Result<Option<Line>, Fault> {
        let (bound, too_long) = if self.lines == 0 {
            (limits.request_line_bytes, (414, "the request line is too long"))
        } else if limits.field_bytes <= limits.head_bytes.saturating_sub(self.at) {
            (limits.field_bytes, (431, "a field is too long"))
        } else {
            (limits.field_bytes, (431, "the head is too long"))
        };
        let end_max = self.at.saturating_add(bound).min(limits.head_bytes.max(self.at));
        line(input, self.at, &mut self.searched, end_max, too_long)
    }

    /// RFC 9112 §3: method, one space, target, one space, version.
    fn request_line(&mut self, text: &[u8], start: usize) -> Result<(), Fault> {
        let method_end = memchr::memchr(b' ', text).unwrap_or(text.len());
        let method = &text[..method_end];
        if !is_token(method) {
            return Err(Fault::bad("the method is not a token", start));
        }
        let rest = text.get(method_end + 1..).unwrap_or_default();
        let target_end = memchr::memchr(b' ', rest).ok_or(Fault::bad("the request line has no version", start))?;
        let (target, version) = (&rest[..target_end], &rest[target_end + 1..]);
        let version_at = start + method_end + 1 + target_end + 1;
        self.minor = match version {
            b"HTTP/1.1" => 1,
            b"HTTP/1.0" => 0,
            _ if text == b"PRI * HTTP/2.0" => {
                return Err(Fault::new(505, "this connection speaks HTTP/1, not HTTP/2", start));
            }
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
                return Err(Fault::new(505, "the version is neither HTTP/1.1 nor HTTP/1.0", version_at));
            }
            _ => return Err(Fault::bad("the request line does not end with a version", version_at)),
        };
        if method.len() > METHOD_BYTES_MAX {
            return Err(Fault::new(501, "the method is longer than any that is known", start));
        }
        self.method = Method::of(method);
        let target_at = start + method_end + 1;
        target::form(self.method, target).map_err(|fault| fault.shifted(target_at))?;
        self.target = target_at..target_at + target.len();
        Ok(())
    }

    #[inline]
    fn field(&mut self, text: &[u8], start: usize, limits: &Limits) -> Result<(), Fault> {
        let (name, value) = field(text, start)?;
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host(text, value, start),
            6 if name.eq_ignore_ascii_case(b"expect") => self.expect(value, start),
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.websocket |= members(value).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
                Ok(())
            }
            10 if name.eq_ignore_ascii_case(b"connection") => self.connection(value, start),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.content_length(value, start, limits),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.transfer_encoding(value, start),
            // Gateways that turn fields into variables read an underscore as the hyphen.
            14 if name.eq_ignore_ascii_case(b"content_length") => Err(Fault::bad(LOOKALIKE, start)),
            17 if name.eq_ignore_ascii_case(b"transfer_encoding") => Err(Fault::bad(LOOKALIKE, start)),
            _ => Ok(()),
        }
    }

    fn host(&mut self, text: &[u8], value: &[u8], start: usize) -> Result<(), Fault> {
        if self.host.is_some() {
            return Err(Fault::bad("there is more than one Host", start));
        }
        // `value` is a part of `text`: behind the colon and the spaces.
        let leading = text[5..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let at = start + 5 + leading;
        target::host(value).map_err(|fault| fault.shifted(at))?;
        self.host = Some(at..at + value.len());
        Ok(())
    }

    /// RFC 9110 §10.1.1: the one expectation there is; a request of HTTP/1.0 has none.
    fn expect(&self, value: &[u8], start: usize) -> Result<(), Fault> {
        if self.minor == 0 || value.eq_ignore_ascii_case(b"100-continue") {
            return Ok(());
        }
        Err(Fault::new(417, "the expectation is not 100-continue", start))
    }

    fn connection(&mut self, value: &[u8], start: usize) -> Result<(), Fault> {
        for option in members(value) {
            self.connection_options += 1;
            if self.connection_options > CONNECTION_OPTIONS_MAX {
                return Err(Fault::bad("Connection lists too many options", start));
            }
            if !is_token(option) {
                return Err(Fault::bad("an option of Connection is not a token", start));
            }
            self.upgrade_nominated |= option.eq_ignore_ascii_case(b"upgrade");
        }
        Ok(())
    }

    fn content_length(&mut self, value: &[u8], start: usize, limits: &Limits) -> Result<(), Fault> {
        if self.length.is_some() {
            return Err(Fault::bad("there is more than one Content-Length", start));
        }
        if self.chunked {
            return Err(Fault::bad(BOTH, start));
        }
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(Fault::bad("Content-Length is not one decimal number", start));
        }
        match decimal(value) {
            Some(length) if length <= limits.body_bytes.min(BODY_BYTES_MAX) => {
                self.length = Some(length);
                Ok(())
            }
            Some(length) if length <= BODY_BYTES_MAX => Err(Fault::new(413, "the content is too large", start)),
            _ => Err(Fault::bad("Content-Length is too large a number", start)),
        }
    }

    /// Nothing but `chunked`: other codings are answered as RFC 9112 §6.1 and §6.3 ask.
    fn transfer_encoding(&mut self, value: &[u8], start: usize) -> Result<(), Fault> {
        if self.minor == 0 {
            return Err(Fault::bad("Transfer-Encoding in a request of HTTP/1.0", start));
        }
        if self.chunked {
            return Err(Fault::bad("there is more than one Transfer-Encoding", start));
        }
        if self.length.is_some() {
            return Err(Fault::bad(BOTH, start));
        }
        if value.eq_ignore_ascii_case(b"chunked") {
            self.chunked = true;
            return Ok(());
        }
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let count = members(value).filter(|coding| is_chunked(coding)).count();
        let last = value.rsplit(|&byte| byte == b',').next().map(trimmed);
        if count == 1 && last.is_some_and(is_chunked) && members(value).all(is_token) && members(value).count() > 1 {
            return Err(Fault::new(501, "the content is coded in more ways than chunked", start));
        }
        Err(Fault::bad("Transfer-Encoding does not end with one chunked", start))
    }

    /// What only the whole head tells. `blank` is where its empty line is.
    fn finish(&self, input: &[u8], blank: usize, bytes: usize) -> Result<Outline, Fault> {
        let host = self.host.clone().map(|host| &input[host]);
        if host.is_none() && self.minor == 1 {
            return Err(Fault::bad("there is no Host", blank));
        }
        let target = &input[self.target.clone()];
        // A path, by far the most frequent, needs no second look.
        if target.first() != Some(&b'/')
            && let Form::Named(authority) = target::form(self.method, target)?
            && host.is_some_and(|host| !host.eq_ignore_ascii_case(authority))
        {
            return Err(Fault::bad("Host differs from the target's host", blank));
        }
        let content = if self.chunked { Content::Chunked } else { Content::Length(self.length.unwrap_or(0)) };
        if matches!(self.method, Method::Connect | Method::Trace) && content != Content::Length(0) {
            return Err(Fault::bad("CONNECT and TRACE have no content", blank));
        }
        let upgrade = self.minor == 1 && self.upgrade_nominated && self.websocket;
        Ok(Outline { bytes, content, may_switch: upgrade || self.method == Method::Connect })
    }
}

const BOTH: &str = "there are both Content-Length and Transfer-Encoding";
const LOOKALIKE: &str = "a field looks like one that says how long the content is";

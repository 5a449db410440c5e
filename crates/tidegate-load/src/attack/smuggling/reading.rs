//! Bytes as requests of HTTP/1.1.
//!
//! Not the reader of our proxy, which is under test: written on its own, and short. The strict reading takes nothing that
//! RFC 9112 forbids a sender, so that bytes which pass it mean the same to everybody. The lenient one is an upstream of the
//! easy-going kind.

/// How easy-going a reader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Takes only what a sender may send.
    Strict,
    /// Lines may end with a line feed, names may have spaces around, the last length counts, anything chunked is chunked.
    Lenient,
}

/// What a reader makes of the bytes of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// Method and target of each whole request.
    pub(super) requests: Vec<String>,
    /// Bytes that belong to these.
    pub(super) length: usize,
    /// What is wrong with the bytes behind them; `None` if they are the beginning of a request, or if there are none.
    pub(super) fault: Option<&'static str>,
}

/// Why a request cannot be taken from the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Incomplete,
    Fault(&'static str),
}

/// Reads all requests.
pub(super) fn read(bytes: &[u8], manner: Manner) -> Reading {
    let mut reading = Reading { requests: Vec::new(), length: 0, fault: None };
    while reading.length < bytes.len() {
        let mut cursor = Cursor { rest: &bytes[reading.length..], manner };
        match cursor.request() {
            Ok(request) => {
                reading.requests.push(request);
                reading.length = bytes.len() - cursor.rest.len();
            }
            Err(Stop::Incomplete) => break,
            Err(Stop::Fault(what)) => {
                reading.fault = Some(what);
                break;
            }
        }
    }
    reading
}

struct Cursor<'a> {
    rest: &'a [u8],
    manner: Manner,
}

/// A header's name and value.
type Field<'a> = (&'a [u8], &'a [u8]);

/// What ends a request's body.
enum Body {
    Length(usize),
    Chunked,
}

impl<'a> Cursor<'a> {
    fn request(&mut self) -> Result<String, Stop> {
        let line = self.line()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [method, target, version] = words[..] else { return Err(Stop::Fault("a request line of three words")) };
        if method.is_empty() || target.is_empty() || !version.starts_with(b"HTTP/1.") {
            return Err(Stop::Fault("a request line of HTTP/1"));
        }
        let name = format!("{} {}", printable(method), printable(target));
        match self.head()? {
            Body::Length(length) => {
                self.rest = self.rest.get(length..).ok_or(Stop::Incomplete)?;
            }
            Body::Chunked => self.chunks()?,
        }
        Ok(name)
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let end = memchr(b'\n', self.rest).ok_or(Stop::Incomplete)?;
        let (line, rest) = (&self.rest[..end], &self.rest[end + 1..]);
        self.rest = rest;
        match (line.strip_suffix(b"\r"), self.manner) {
            (Some(line), Manner::Strict) if line.contains(&b'\r') => Err(Stop::Fault("a bare carriage return")),
            (Some(line), _) => Ok(line),
            (None, Manner::Strict) => Err(Stop::Fault("a bare line feed")),
            (None, Manner::Lenient) => Ok(line),
        }
    }

    /// All headers up to the empty line.
    fn head(&mut self) -> Result<Body, Stop> {
        let (mut lengths, mut codings) = (Vec::new(), Vec::new());
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = self.field(line)? else { continue };
            if name.eq_ignore_ascii_case(b"content-length") {
                lengths.push(value);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                codings.push(value);
            }
        }
        match self.manner {
            Manner::Strict => strict_body(&lengths, &codings),
            Manner::Lenient => Ok(lenient_body(&lengths, &codings)),
        }
    }

    /// A header's name and value; `None` for a line that an easy-going reader skips.
    fn field(&self, line: &'a [u8]) -> Result<Option<Field<'a>>, Stop> {
        let colon = memchr(b':', line);
        if self.manner == Manner::Lenient {
            // A folded line belongs to the header above, of which only these two names matter.
            let is_folded = line.first().is_some_and(u8::is_ascii_whitespace);
            return Ok(colon.filter(|_| !is_folded).map(|at| (line[..at].trim_ascii(), line[at + 1..].trim_ascii())));
        }
        let colon = colon.ok_or(Stop::Fault("a header without a colon"))?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(Stop::Fault("a header's name that is no token"));
        }
        if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err(Stop::Fault("a control character in a header"));
        }
        Ok(Some((name, value.trim_ascii())))
    }

    fn chunks(&mut self) -> Result<(), Stop> {
        loop {
            let line = self.line()?;
            let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let size = std::str::from_utf8(&line[..digits]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
            let size = size.ok_or(Stop::Fault("a chunk's size"))?;
            if self.manner == Manner::Strict {
                // Optional whitespace before an extension is what the grammar allows, and what readers differ about.
                let rest = &line[digits..];
                if !(rest.is_empty() || rest.starts_with(b";")) || rest.iter().any(u8::is_ascii_control) {
                    return Err(Stop::Fault("something behind a chunk's size"));
                }
            }
            if size == 0 {
                break;
            }
            self.rest = self.rest.get(size..).ok_or(Stop::Incomplete)?;
            if !self.line()?.is_empty() {
                return Err(Stop::Fault("a chunk that is longer than its size"));
            }
        }
        // Trailers, of which none says where the message ends.
        while !self.line()?.is_empty() {}
        Ok(())
    }
}

/// RFC 9112, sections 6.1 to 6.3, for a sender: one length or one coding, never both.
fn strict_body(lengths: &[&[u8]], codings: &[&[u8]]) -> Result<Body, Stop> {
    match (lengths, codings) {
        ([], []) => Ok(Body::Length(0)),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Body::Chunked),
        ([length], []) => digits(length).map(Body::Length).ok_or(Stop::Fault("a Content-Length that is no number")),
        ([], _) => Err(Stop::Fault("a Transfer-Encoding that is not chunked")),
        (_, []) => Err(Stop::Fault("several Content-Length")),
        _ => Err(Stop::Fault("Content-Length beside Transfer-Encoding")),
    }
}

fn lenient_body(lengths: &[&[u8]], codings: &[&[u8]]) -> Body {
    let is_chunked = |coding: &&[u8]| coding.to_ascii_lowercase().windows(7).any(|window| window == b"chunked");
    if codings.iter().any(is_chunked) {
        return Body::Chunked;
    }
    let length = lengths.last().map(|length| {
        let length = length.strip_prefix(b"+").unwrap_or(length);
        let end = length.iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits(&length[..end]).unwrap_or(0)
    });
    Body::Length(length.unwrap_or(0))
}

fn digits(text: &[u8]) -> Option<usize> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Bytes that can stand in a header and in a table.
fn printable(bytes: &[u8]) -> String {
    bytes.iter().take(120).map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }).collect()
}

fn memchr(byte: u8, bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|found| *found == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(bytes: &[u8]) -> [(usize, Option<&'static str>); 2] {
        [Manner::Strict, Manner::Lenient].map(|manner| {
            let reading = read(bytes, manner);
            (reading.requests.len(), reading.fault)
        })
    }

    #[test]
    fn sound_requests_mean_the_same_to_both() {
        for (bytes, requests) in [
            (&b""[..], 0),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /x HTTP/1.1\r\nHost: a\r\n\r\n", 2),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n", 1),
            (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", 0),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", 0),
            (b"GET / HT", 0),
        ] {
            assert_eq!(counts(bytes), [(requests, None); 2], "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_may_be_read_differently_is_a_fault_to_the_strict_reader() {
        for bytes in [
            &b"GET / HTTP/1.1\nHost: a\n\n"[..],
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length : 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: +0\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0 \r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
        ] {
            let [strict, lenient] = counts(bytes);
            assert!(strict.0 == 0 && strict.1.is_some(), "{:?}", String::from_utf8_lossy(bytes));
            assert_eq!(lenient, (1, None), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic_or_read_beyond_them(bytes: Vec<u8>) {
            for manner in [Manner::Strict, Manner::Lenient] {
                proptest::prop_assert!(read(&bytes, manner).length <= bytes.len());
            }
        }
    }
}

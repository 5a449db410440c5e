//! Requests as bytes, and as much of an HTTP/1.1 answer as tells where it ends.

use std::fmt::Write as _;

use super::config::Source;
use super::framing::{BadMessage, Framing, Part};

/// The bytes of a request of `source`.
pub(super) fn request(source: &Source) -> Vec<u8> {
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", source.method, source.path, source.name);
    for field in &source.headers {
        head.push_str(field);
        head.push_str("\r\n");
    }
    if source.body_bytes > 0 || source.method == "POST" || source.method == "PUT" {
        // Writing to a string cannot fail.
        let _ = write!(head, "Content-Length: {}\r\n", source.body_bytes);
    }
    if source.new_connections {
        head.push_str("Connection: close\r\n");
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.resize(bytes.len() + source.body_bytes, b'x');
    bytes
}

/// A whole answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The connection can carry another request.
    pub(super) keeps_open: bool,
}

/// Reads one answer after the other.
#[derive(Debug)]
pub(super) struct AnswerReader {
    framing: Framing,
    answer: Answer,
    is_head: bool,
}

impl AnswerReader {
    /// For answers to requests with `method`.
    pub(super) fn new(method: &str) -> Self {
        let answer = Answer { status: 0, keeps_open: true };
        Self { framing: Framing::new(), answer, is_head: method == "HEAD" }
    }

    /// Takes bytes; the answer once it is complete. What follows it in `input` is ignored: nothing was asked.
    pub(super) fn read(&mut self, input: &[u8]) -> Result<Option<Answer>, BadMessage> {
        let Self { framing, answer, is_head } = self;
        let read = framing.read(input, |head| {
            let (found, part) = parse(head, *is_head)?;
            *answer = found;
            Ok(part)
        })?;
        Ok(read.is_complete.then_some(self.answer))
    }

    /// The server has closed the connection: the end of some answers, and no answer of others.
    pub(super) fn on_close(&mut self) -> Option<Answer> {
        self.framing.on_close().then_some(Answer { keeps_open: false, ..self.answer })
    }

    /// Bytes of an answer have come, but not all.
    pub(super) fn has_begun(&self) -> bool {
        self.framing.has_begun()
    }
}

/// What the head of an answer says.
fn parse(head: &str, is_head: bool) -> Result<(Answer, Part), BadMessage> {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let code = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    let status: u16 = code.and_then(|code| code.parse().ok()).ok_or(BadMessage)?;
    let mut answer = Answer { status, keeps_open: first.starts_with("HTTP/1.1") };
    let (mut length, mut is_chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse().map_err(|_| BadMessage)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            answer.keeps_open &= !value.eq_ignore_ascii_case("close");
            answer.keeps_open |= value.eq_ignore_ascii_case("keep-alive");
        }
    }
    let part = match status {
        // What comes before the answer itself.
        100..=199 => Part::Head,
        _ if is_head || status == 204 || status == 304 => Part::Length(0),
        _ if is_chunked => Part::ChunkSize,
        _ => length.map_or(Part::UntilClosed, Part::Length),
    };
    Ok((answer, part))
}

#[cfg(test)]
mod tests {
    use super::super::framing::HEAD_BYTES_MAX;
    use super::*;

    fn read(text: &str) -> (Vec<Answer>, Option<Answer>) {
        // Whole, and in every split into two: the same.
        let whole = read_parts(&[text.as_bytes()]);
        for at in 0..text.len() {
            assert_eq!(read_parts(&[&text.as_bytes()[..at], &text.as_bytes()[at..]]), whole, "split at {at}");
        }
        whole
    }

    fn read_parts(parts: &[&[u8]]) -> (Vec<Answer>, Option<Answer>) {
        let mut reader = AnswerReader::new("GET");
        let found = parts.iter().filter_map(|part| reader.read(part).unwrap()).collect();
        (found, reader.on_close())
    }

    #[test]
    fn answers_end_where_their_heads_say() {
        let open = |status| (vec![Answer { status, keeps_open: true }], None);
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"), open(200));
        assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n"), open(204));
        assert_eq!(read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 \r\nContent-Length: 0\r\n\r\n"), open(429));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n";
        assert_eq!(read(chunked), open(200));
        let closed = Answer { status: 503, keeps_open: false };
        assert_eq!(read("HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"), (vec![closed], None));
        assert_eq!(read("HTTP/1.0 503 Busy\r\n\r\nsome text"), (vec![], Some(closed)));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), (vec![], None));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in ["SSH-2.0 x\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"] {
            assert_eq!(AnswerReader::new("GET").read(text.as_bytes()), Err(BadMessage), "{text}");
        }
        assert_eq!(AnswerReader::new("GET").read(&vec![b'a'; HEAD_BYTES_MAX + 1]), Err(BadMessage));
    }

    #[test]
    fn requests_say_what_the_source_says() {
        let source = Source {
            name: "a.example".into(),
            method: "POST".into(),
            path: "/x?y".into(),
            headers: vec!["X-A: b".into()],
            body_bytes: 2,
            new_connections: true,
            ..Source::default()
        };
        let expected =
            "POST /x?y HTTP/1.1\r\nHost: a.example\r\nX-A: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxx";
        assert_eq!(String::from_utf8(request(&source)).unwrap(), expected);
    }
}

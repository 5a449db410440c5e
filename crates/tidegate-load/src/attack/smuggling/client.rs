//! Sends a case as it is, and reads the answers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use crate::error::LoadError;

/// After the last byte of an answer: so long may the next one take, of a proxy that means to answer at all.
const QUIET_NS: u64 = 2_000_000_000;
/// The same once everything expected is there: only a surplus could still come.
const SURPLUS_NS: u64 = 60_000_000;
/// However much a target says, a case ends.
const CASE_NS: u64 = 5_000_000_000;
const WRITE_LIMIT: Duration = Duration::from_secs(2);
const READ_LIMIT: Duration = Duration::from_millis(20);
/// No proxy answers a case with more.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// One answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    /// Its status.
    pub(super) status: u16,
    /// What the recorder says that it is an answer to.
    pub(super) seen: Option<String>,
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Heard {
    /// The final answers, in order.
    pub(super) answers: Vec<Answer>,
    /// The target closed the connection.
    pub(super) is_closed: bool,
}

/// Sends `bytes` on a new connection and listens until nothing more is to be expected after `expected` answers.
pub(super) fn ask(target: SocketAddr, bytes: &[u8], expected: usize) -> Result<Heard, LoadError> {
    let mut stream = TcpStream::connect(target).map_err(|source| LoadError::Connect { address: target, source })?;
    let set = stream.set_read_timeout(Some(READ_LIMIT)).and_then(|()| stream.set_write_timeout(Some(WRITE_LIMIT)));
    set.map_err(LoadError::os("set a socket's timeouts"))?;
    // A target that refuses early does not read to the end; its answer is there all the same.
    let _ = stream.write_all(bytes);
    let start = clock::now();
    let (mut last, mut received, mut heard) = (start, Vec::new(), Heard::default());
    let mut buffer = vec![0; 16 << 10];
    while !is_over(start, last, heard.answers.len() >= expected) && received.len() < ANSWER_BYTES_MAX {
        match stream.read(&mut buffer) {
            Ok(0) => {
                heard.is_closed = true;
                break;
            }
            Ok(length) => {
                received.extend_from_slice(&buffer[..length]);
                heard.answers = answers(&received);
                last = clock::now();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => {
                heard.is_closed = true;
                break;
            }
        }
    }
    Ok(heard)
}

fn is_over(start: Instant, last: Instant, is_complete: bool) -> bool {
    let now = clock::now();
    now.nanos_since(last) > if is_complete { SURPLUS_NS } else { QUIET_NS } || now.nanos_since(start) > CASE_NS
}

/// The final answers in `bytes`, as far as they are whole up to the end of their head.
pub(super) fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut rest = bytes;
    while let Some((answer, body, after)) = head(rest) {
        let status = answer.status;
        if status >= 200 {
            answers.push(answer);
        }
        rest = match body {
            // An answer to HEAD announces a body and has none.
            Body::Length(length) if !after.starts_with(b"HTTP/1.") => after.get(length..).unwrap_or_default(),
            Body::Length(_) => after,
            Body::Chunked => chunks(after).unwrap_or_default(),
            Body::ToTheEnd => &[],
        };
    }
    // Some proxies still know HTTP/0.9, whose answers are nothing but a body.
    if let Some(seen) = std::str::from_utf8(rest).ok().and_then(|text| text.trim_end().strip_prefix("X-Seen: ")) {
        answers.push(Answer { status: 200, seen: Some(seen.to_owned()) });
    }
    answers
}

enum Body {
    Length(usize),
    Chunked,
    ToTheEnd,
}

/// The first answer's head, what its body is, and the bytes behind the head.
fn head(bytes: &[u8]) -> Option<(Answer, Body, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let (first, fields) = text.split_once("\r\n")?;
    let status = first.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let field = |wanted: &str| {
        let mut fields = fields.split("\r\n").filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
    };
    let length = field("content-length").and_then(|length| length.parse().ok());
    let body = match (length, field("transfer-encoding")) {
        (_, Some(_)) => Body::Chunked,
        (Some(length), None) => Body::Length(length),
        (None, None) if status < 200 || status == 204 || status == 304 => Body::Length(0),
        (None, None) => Body::ToTheEnd,
    };
    Some((Answer { status, seen: field("x-seen") }, body, &bytes[end..]))
}

/// What is behind the last chunk.
fn chunks(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        bytes = bytes.get(end + 2..)?.get(size.checked_add(2)?..)?;
        if size == 0 {
            return Some(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_whatever_ends_them() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Seen: GET /a\r\n\r\nok\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
            HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\nHTTP/1.0 400 Bad Request\r\n\r\nuntil the end HTTP/1.1 200 OK\r\n\r\n";
        let found: Vec<(u16, Option<String>)> =
            answers(bytes).into_iter().map(|answer| (answer.status, answer.seen)).collect();
        let expected = [(200, Some("GET /a".to_owned())), (200, None), (404, None), (204, None), (400, None)];
        assert_eq!(found, expected);
        assert_eq!(answers(b"HTTP/1.1 200 OK\r\nContent-Le"), []);
        assert_eq!(answers(b"<html>no head</html>\r\n\r\n"), []);
        let without_a_head = [Answer { status: 200, seen: Some("GET /a".to_owned()) }];
        assert_eq!(answers(b"X-Seen: GET /a\n"), without_a_head);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(bytes: Vec<u8>) {
            let _ = answers(&bytes);
            let _ = chunks(&bytes);
        }
    }
}

//! The head of an answer: what it says, and where its content ends.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};

use super::decode::Framing;
use super::write;

/// Most bytes of an answer's head.
const HEAD_MAX: usize = 64 * 1024;
/// Most fields of an answer.
const FIELDS_MAX: usize = 128;
/// Most interim answers (1xx) before the final one. Servers send one or two; one that is long at work may say so now and
/// then.
pub(crate) const INTERIM_MAX: u8 = 16;

/// What an answer is to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a Method,
    /// It asked for another protocol.
    pub(crate) upgrade: bool,
}

/// The head of a final answer.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
    /// Whether the connection may be used again behind it.
    pub(crate) reusable: bool,
    /// How long the server keeps the connection then; [`Duration::MAX`] if it does not say.
    pub(crate) kept_for: Duration,
    /// It has no content, whatever it says: an answer to HEAD, 204 or 304.
    pub(crate) is_bare: bool,
}

/// Takes the next head off the front of `buffer`; `None` if it is not all there. Interim ones before it are dropped, and
/// counted in `interim`.
pub(crate) fn take_head(
    buffer: &mut BytesMut,
    asked: Asked<'_>,
    interim: &mut u8,
) -> Result<Option<AnswerHead>, &'static str> {
    loop {
        match parse(buffer, asked)? {
            Some(head) if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS => {
                if *interim == INTERIM_MAX {
                    return Err("it has too many interim answers");
                }
                *interim += 1;
            }
            head => return Ok(head),
        }
    }
}

fn parse(buffer: &mut BytesMut, asked: Asked<'_>) -> Result<Option<AnswerHead>, &'static str> {
    if buffer.is_empty() {
        return Ok(None);
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let length = match parsed.parse(buffer) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_MAX => length,
        Ok(httparse::Status::Complete(_)) => return Err("its head is too long"),
        Ok(httparse::Status::Partial) if buffer.len() >= HEAD_MAX => return Err("its head is too long"),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("it has too many fields"),
        Err(_) => return Err("its head is not HTTP/1"),
    };
    let status = StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| "its status")?;
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    // One copy holds all values; each of them is a part of it.
    let whole = Bytes::copy_from_slice(&buffer[..length]);
    let start = buffer.as_ptr().addr();
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + 4);
    let mut kept_for = Duration::MAX;
    for field in parsed.headers.iter() {
        if field.name.len() == KEEP_ALIVE.len() && field.name.eq_ignore_ascii_case(KEEP_ALIVE) {
            kept_for = kept_for.min(keep_alive(field.value));
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "the name of a field")?;
        let at = field.value.as_ptr().addr() - start;
        let value = if field.value.is_empty() { Bytes::new() } else { whole.slice(at..at + field.value.len()) };
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| "the value of a field")?;
        headers.append(name, value);
    }
    buffer.advance(length);
    let (framing, sound) = framing(asked, status, version, &headers)?;
    let reusable = sound && framing != Framing::UntilClose && keeps(version, &headers);
    let is_bare = !write::has_body(asked.method, status);
    Ok(Some(AnswerHead { status, headers, framing, reusable, kept_for, is_bare }))
}

/// How the body of an answer is framed (RFC 9112, section 6.3), and whether the connection may be used again.
fn framing(
    asked: Asked<'_>,
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Result<(Framing, bool), &'static str> {
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return if asked.upgrade { Ok((Framing::Done, false)) } else { Err("it changes the protocol unasked") };
    }
    if !write::has_body(asked.method, status) {
        // A 204 has no fields about content (RFC 9110, section 8.6); where it has, content may follow.
        let announces = status == StatusCode::NO_CONTENT
            && (headers.contains_key(TRANSFER_ENCODING)
                || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0"));
        return Ok((Framing::Done, !announces));
    }
    let lengths = headers.contains_key(CONTENT_LENGTH);
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("its transfer coding");
        }
        // Both: the length means nothing, and who sends it may have been tricked. Nor does HTTP/1.0 know chunks: what sends
        // them is not what it says (RFC 9112, section 6.1).
        return Ok((Framing::CHUNKED, !lengths && version == Version::HTTP_11));
    }
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|text| text.parse::<u64>().ok()).ok_or("its length")?;
        if length.replace(number).is_some_and(|other| other != number) {
            return Err("its two lengths");
        }
    }
    Ok((length.map_or(Framing::UntilClose, Framing::Length), true))
}

const KEEP_ALIVE: &str = "keep-alive";

/// How long the server keeps the connection by the `timeout` of a Keep-Alive field, which is in seconds; less a second, or
/// half of a single one: it counts from when it sent the answer, and the next request is to arrive before it closes.
fn keep_alive(value: &[u8]) -> Duration {
    let timeout = str::from_utf8(value).ok().and_then(|text| {
        let named = |parameter: &str| {
            let (name, seconds) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("timeout").then(|| seconds.trim().trim_matches('"').parse::<u32>().ok())?
        };
        text.split(',').find_map(named)
    });
    timeout.map_or(Duration::MAX, |seconds| {
        let whole = Duration::from_secs(seconds.into());
        whole.saturating_sub(Duration::from_secs(1)).max(whole.min(Duration::from_secs(1)) / 2)
    })
}

/// Whether the server keeps the connection.
fn keeps(version: Version, headers: &HeaderMap) -> bool {
    let says = |word: &str| {
        let values = headers.get_all(CONNECTION).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case(word))
    };
    if version == Version::HTTP_11 { !says("close") } else { says("keep-alive") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_for(method: &Method, text: &str) -> Result<Option<(Framing, bool)>, &'static str> {
        let head = take_head(&mut BytesMut::from(text), Asked { method, upgrade: false }, &mut 0)?;
        Ok(head.map(|head| (head.framing, head.reusable)))
    }

    #[test]
    fn an_answers_end_is_found_as_the_standard_says() {
        for (method, text, framing, reusable) in [
            (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Length(5), true),
            (Method::HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Done, true),
            (Method::GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Framing::Done, true),
            (Method::GET, "HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false),
            (Method::GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Framing::CHUNKED, true),
            (
                Method::GET,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                Framing::CHUNKED,
                false,
            ),
            (
                Method::GET,
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close\r\n\r\n",
                Framing::Length(5),
                false,
            ),
            (Method::GET, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Framing::Length(5), false),
            (
                Method::GET,
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n",
                Framing::CHUNKED,
                false,
            ),
            (Method::GET, "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Framing::Done, true),
            (Method::GET, "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Framing::Done, false),
            (Method::GET, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", Framing::Done, true),
        ] {
            assert_eq!(parse_for(&method, text), Ok(Some((framing, reusable))), "{text}");
        }
    }

    #[test]
    fn ambiguous_answers_are_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
        ] {
            assert!(parse_for(&Method::GET, text).is_err(), "{text}");
        }
        assert_eq!(parse_for(&Method::GET, "HTTP/1.1 200 OK\r\nConte"), Ok(None));
    }

    #[test]
    fn interim_answers_are_counted_over_all_reads() {
        let (method, mut interim, mut buffer) = (Method::GET, 0, BytesMut::new());
        let mut next = |text: &str| {
            buffer.extend_from_slice(text.as_bytes());
            let head = take_head(&mut buffer, Asked { method: &method, upgrade: false }, &mut interim);
            head.map(|head| head.map(|head| head.status.as_u16()))
        };
        for _ in 0..INTERIM_MAX {
            assert_eq!(next("HTTP/1.1 102 Processing\r\n\r\n"), Ok(None));
        }
        assert_eq!(next("HTTP/1.1 200 OK\r\n\r\n"), Ok(Some(200)));
        assert!(next("HTTP/1.1 102 Processing\r\n\r\n").is_err());
    }

    #[test]
    fn a_connection_is_kept_less_long_than_its_server_says() {
        for (value, millis) in [
            ("timeout=5, max=100", Some(4_000)),
            ("max=100,Timeout = \"2\"", Some(1_000)),
            ("timeout=1", Some(500)),
            ("timeout=0", Some(0)),
            ("timeout=75", Some(74_000)),
            ("timeout=-1", None),
            ("timeout", None),
            ("max=5", None),
            ("", None),
        ] {
            assert_eq!(keep_alive(value.as_bytes()), millis.map_or(Duration::MAX, Duration::from_millis), "{value}");
        }
    }
}

//! Heads and bodies as bytes.

use std::io::Write;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};

/// How a body that is written is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outgoing {
    /// There is none.
    None,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection closes: for clients of HTTP/1.0.
    UntilClose,
}

/// Writes a request's head. `target` is in origin form, or the form that its method wants.
pub(crate) fn request_head(out: &mut Vec<u8>, method: &Method, target: &str, headers: &HeaderMap, body: Outgoing) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    fields(out, headers);
    framing(out, body);
    out.extend_from_slice(b"\r\n");
}

/// Writes a response's head. `keep` says whether the connection stays open; `date` is added if the response has none.
pub(crate) fn response_head(
    out: &mut Vec<u8>,
    status: StatusCode,
    headers: &HeaderMap,
    body: Outgoing,
    connection: Option<&'static str>,
    date: Option<&[u8]>,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
    fields(out, headers);
    framing(out, body);
    if let Some(connection) = connection {
        out.extend_from_slice(b"connection: ");
        out.extend_from_slice(connection.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if let Some(date) = date {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// All fields but those that frame the body: these are the proxy's to say.
fn fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
            continue;
        }
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

fn framing(out: &mut Vec<u8>, body: Outgoing) {
    match body {
        Outgoing::Length(length) => {
            out.extend_from_slice(b"content-length: ");
            decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        Outgoing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Outgoing::None | Outgoing::UntilClose => {}
    }
}

/// Writes one piece of a body.
pub(crate) fn piece(out: &mut Vec<u8>, body: Outgoing, piece: &Bytes) {
    if body == Outgoing::Chunked {
        if piece.is_empty() {
            return; // An empty chunk would be the last one.
        }
        write!(out, "{:x}\r\n", piece.len()).expect("a vector takes every byte");
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    } else {
        out.extend_from_slice(piece);
    }
}

/// Writes what stands before a piece that is written apart; true if a line end is due behind it.
pub(crate) fn before_piece(out: &mut Vec<u8>, body: Outgoing, piece: &Bytes) -> bool {
    let chunked = body == Outgoing::Chunked;
    if chunked {
        write!(out, "{:x}\r\n", piece.len()).expect("a vector takes every byte");
    }
    chunked
}

/// Writes what stands behind the last piece.
pub(crate) fn end(out: &mut Vec<u8>, body: Outgoing) {
    if body == Outgoing::Chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// Digits without the machinery of formatting; every response has some.
fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Whether a response to `method` with this status has a body at all (RFC 9112, section 6.3).
pub(crate) fn has_body(method: &Method, status: StatusCode) -> bool {
    !(method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED)
}

/// Whether peers of this version know chunks.
pub(crate) fn knows_chunks(version: Version) -> bool {
    version >= Version::HTTP_11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            let mut out = Vec::new();
            decimal(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn an_empty_piece_does_not_end_a_body_in_chunks() {
        let mut out = Vec::new();
        piece(&mut out, Outgoing::Chunked, &Bytes::new());
        piece(&mut out, Outgoing::Chunked, &Bytes::from_static(b"0123456789abcdef"));
        end(&mut out, Outgoing::Chunked);
        assert_eq!(out, b"10\r\n0123456789abcdef\r\n0\r\n\r\n");
    }
}

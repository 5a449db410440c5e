//! The proxy's own answers to calls of gRPC, which are HTTP/2.
//!
//! A client of gRPC makes little of a status of HTTP: it takes 429 for "unavailable" and 413 for "unknown", and shows
//! neither why nor when to come back. So a call gets what a server of gRPC would say: 200, and in the head, which is then
//! the whole answer, `grpc-status` and `grpc-message`.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Deserialize;

use crate::io::request::response::ResponseBody;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a client may try again, in milliseconds: gRPC's own retries keep to it.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The statuses of gRPC that the proxy has a use for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Code {
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    /// What gRPC says of answers of HTTP ("HTTP to gRPC Status Code Mapping"), but for the two that it does not know: over
    /// one's share, and too long.
    const fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => Self::ResourceExhausted,
            StatusCode::UNAUTHORIZED => Self::Unauthenticated,
            StatusCode::FORBIDDEN => Self::PermissionDenied,
            StatusCode::NOT_FOUND | StatusCode::NOT_IMPLEMENTED => Self::Unimplemented,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::MISDIRECTED_REQUEST
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

/// Whether a request with these fields is a call of gRPC.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    const KIND: &[u8] = b"application/grpc";
    let Some(kind) = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) else { return false };
    let is_like = kind.get(..KIND.len()).is_some_and(|start| start.eq_ignore_ascii_case(KIND));
    // `application/grpc-web` is another protocol.
    is_like && matches!(kind.get(KIND.len()), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// The answer to a request with the fields `asked`: to a call, an error of the proxy's own is as its client understands it.
pub(crate) fn understood(response: Response<ResponseBody>, asked: &HeaderMap) -> Response<ResponseBody> {
    if is_own(&response) && is_call(asked) { refusal(response) } else { response }
}

/// Whether an answer is the proxy's own, and no success.
fn is_own(response: &Response<ResponseBody>) -> bool {
    // An upstream's answers come as they are read.
    matches!(response.body(), ResponseBody::Full(_)) && response.status().as_u16() >= 400
}

/// What an answer of the proxy's own says.
#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(borrow)]
    detail: Cow<'a, str>,
}

/// The same answer as a client of gRPC understands it.
fn refusal(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut head, body) = response.into_parts();
    let code = Code::of(head.status) as u8;
    let told = match &body {
        ResponseBody::Full(text) => serde_json::from_slice::<Problem<'_>>(text).ok(),
        _ => None,
    };
    let message = encoded(told.as_ref().map_or("The proxy refused the call.", |problem| &problem.detail));
    head.status = StatusCode::OK;
    let headers = &mut head.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(u16::from(code)));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(MESSAGE, message);
    }
    let after = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse::<u32>().ok());
    if let Some(millis) = after.and_then(|seconds| i32::try_from(seconds.checked_mul(1_000)?).ok()) {
        headers.insert(PUSHBACK, HeaderValue::from(millis));
    }
    Response::from_parts(head, ResponseBody::Empty)
}

/// As `grpc-message` has it: what is not printable ASCII, and the sign itself, in percent encoding.
fn encoded(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => all.push(char::from(byte)),
            _ => write!(all, "%{byte:02X}").expect("strings take every byte"),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::io::request::refuse;
    use crate::io::request::refuse::Problem as Told;

    #[test]
    fn calls_are_told_by_their_content() {
        for (kind, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpcx", false),
            ("application/json", false),
        ] {
            let headers = [(CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect();
            assert_eq!(is_call(&headers), is, "{kind}");
        }
        assert!(!is_call(&HeaderMap::new()));
    }

    #[test]
    fn a_refusal_says_to_a_call_why_and_when_to_come_back() {
        for (status, code) in [(429, "8"), (503, "14"), (404, "12"), (403, "7"), (400, "13"), (504, "14"), (413, "8")] {
            let status = StatusCode::from_u16(status).unwrap();
            let retry_after = Some(Duration::from_millis(1_500));
            let told = Told { status, kind: None, detail: "100 % \u{fc}ber \"x\"", error: "x", retry_after };
            let answer = refusal(refuse::answer(told));
            let field = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!((answer.status().as_u16(), field("grpc-status")), (200, Some(code)), "{status}");
            assert_eq!(field("grpc-message"), Some("100 %25 %C3%BCber \"x\""));
            assert_eq!((field("retry-after"), field("grpc-retry-pushback-ms")), (Some("2"), Some("2000")));
            assert_eq!(field("content-type"), Some("application/grpc"));
            assert!(matches!(answer.body(), ResponseBody::Empty));
        }
    }
}

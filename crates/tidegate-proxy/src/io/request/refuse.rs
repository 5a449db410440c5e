//! Answers of the proxy's own: refusals that explain themselves, and what went wrong.
//!
//! A tenant over its share gets 429 (RFC 6585), a full system 503 (RFC 9110, 15.6.4), both with a `Retry-After` that
//! comes true. The body is a problem (RFC 9457) of the types of draft-ietf-httpapi-ratelimit-headers-10; `Proxy-Status`
//! (RFC 9209) tells it from the upstream's answers.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use super::quota::{self, whole_seconds};
use crate::config::{RateLimit, RateLimitHeaders};
use crate::io::conn::limiter::{Cause, Refusal};
use crate::io::request::error::BodyError;
use crate::io::request::response::ResponseBody;
use crate::machine::rate_limit::{Cause as GateCause, Rejection};

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// Where the draft's problem types are registered.
const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

/// What an answer of the proxy's own says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem<'a> {
    /// The answer's status.
    pub(crate) status: StatusCode,
    /// The problem's type behind [`TYPES`], if it has one of its own.
    pub(crate) kind: Option<&'static str>,
    /// A phrase for people.
    pub(crate) detail: &'a str,
    /// The error's name in `Proxy-Status`.
    pub(crate) error: &'static str,
    /// When to come back.
    pub(crate) retry_after: Option<Duration>,
}

thread_local! {
    /// What a thread's last problem says.
    static LAST: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// The answer that says `problem`.
pub(crate) fn answer(problem: Problem<'_>) -> Response<ResponseBody> {
    let Problem { status, kind, detail, error, retry_after } = problem;
    let mut text = String::with_capacity(160);
    text.push('{');
    if let Some(kind) = kind {
        write!(text, "\"type\":\"{TYPES}{kind}\",").expect("strings take every byte");
    }
    let title = status.canonical_reason().unwrap_or("Error");
    let detail_json = serde_json::to_string(detail).unwrap_or_default();
    write!(text, "\"title\":\"{title}\",\"status\":{},\"detail\":{detail_json}}}", status.as_u16())
        .expect("strings take every byte");
    let mut response = Response::new(ResponseBody::Full(shared(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Ok(value) = HeaderValue::try_from(format!("tidegate; error={error}")) {
        headers.insert(PROXY_STATUS, value);
    }
    if let Some(after) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
    }
    response
}

/// `text`, which is the same allocation as that of the answer before if both say the same: those who do not read their
/// refusals hold one text together.
fn shared(text: String) -> Bytes {
    LAST.with_borrow_mut(|last| {
        if *last != text.as_bytes() {
            *last = Bytes::from(text);
        }
        last.clone()
    })
}

/// The answer to a request that the limiter refused.
pub(crate) fn refused(refusal: &Refusal, headers: RateLimitHeaders) -> Response<ResponseBody> {
    let resource = refusal.resource.name();
    let (status, kind, detail) = match refusal.cause {
        Cause::OverShare => (
            StatusCode::TOO_MANY_REQUESTS,
            "quota-exceeded",
            format!("The tenant uses more than its share of {resource}, and nothing is left over."),
        ),
        Cause::SystemFull => (
            StatusCode::SERVICE_UNAVAILABLE,
            "temporary-reduced-capacity",
            format!("There is not enough {resource} for everybody at the moment."),
        ),
    };
    let problem = Problem {
        status,
        kind: Some(kind),
        detail: &detail,
        error: "http_request_denied",
        retry_after: Some(refusal.retry_after),
    };
    let mut response = answer(problem);
    quota::tell_share(response.headers_mut(), refusal, headers);
    response
}

/// The answer to a request that a `rate_limit` rejected.
pub(crate) fn rejected(rejection: &Rejection, rule: &RateLimit, headers: RateLimitHeaders) -> Response<ResponseBody> {
    let detail = match rejection.cause {
        GateCause::Limit => "Too many requests are under way.",
        GateCause::Rate => "Requests come too fast.",
        GateCause::Age => "The request waited too long.",
        GateCause::Denied => "Requests from this address are not accepted.",
    };
    let mut response = answer(Problem {
        status: StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        kind: (rejection.cause != GateCause::Denied).then_some("quota-exceeded"),
        detail,
        error: "http_request_denied",
        retry_after: rejection.retry_after,
    });
    quota::tell_rule(response.headers_mut(), rejection, rule, headers);
    response
}

/// The answer to a request whose body broke off; `None` if nobody is there to read one.
pub(crate) fn broken_body(error: &BodyError) -> Option<Response<ResponseBody>> {
    let (status, detail) = match error {
        BodyError::Violation(violation) => {
            (StatusCode::from_u16(violation.status).unwrap_or(StatusCode::BAD_REQUEST), violation.reason)
        }
        BodyError::Framing(_) => (StatusCode::BAD_REQUEST, "The body is malformed."),
        BodyError::TooLong { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "The body is too long."),
        BodyError::Stalled => (StatusCode::REQUEST_TIMEOUT, "The body did not come in time."),
        BodyError::Spool => (StatusCode::SERVICE_UNAVAILABLE, "The body could not be kept."),
        BodyError::Full(cause) => return Some(no_room(*cause)),
        BodyError::Io(_) | BodyError::Cut | BodyError::Http2(_) => return None,
    };
    // What the disk did not give back once is sent anew.
    let retry_after = matches!(error, BodyError::Spool).then_some(SPOOL_RETRY);
    Some(answer(Problem { status, kind: None, detail, error: "http_request_error", retry_after }))
}

/// Room in the spool comes back with the end of each body in it, and nobody knows when that is: a second is long for most
/// of them. So long nothing is tried either after the disk did not take something.
const SPOOL_RETRY: Duration = Duration::from_secs(1);

/// The answer to a request whose body has no room in the spool.
fn no_room(cause: Cause) -> Response<ResponseBody> {
    let (status, kind, detail) = match cause {
        Cause::OverShare => (
            StatusCode::TOO_MANY_REQUESTS,
            "quota-exceeded",
            "The tenant's bodies take more than its share of the spool, and nothing is left over.",
        ),
        Cause::SystemFull => (
            StatusCode::SERVICE_UNAVAILABLE,
            "temporary-reduced-capacity",
            "There is not enough room in the spool for everybody at the moment.",
        ),
    };
    answer(Problem { status, kind: Some(kind), detail, error: "http_request_denied", retry_after: Some(SPOOL_RETRY) })
}

/// A short answer with a phrase.
pub(crate) fn plain(status: StatusCode, error: &'static str, detail: &str) -> Response<ResponseBody> {
    answer(Problem { status, kind: None, detail, error, retry_after: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Resource;

    fn refusal(cause: Cause, millis: u64) -> Refusal {
        let retry_after = Duration::from_millis(millis);
        Refusal { resource: Resource::Requests, cause, retry_after, share: 50, limit: 100, cost: 1 }
    }

    #[test]
    fn a_refusal_says_why_and_when_to_come_back() {
        let over = refused(&refusal(Cause::OverShare, 1_001), RateLimitHeaders::Both);
        assert_eq!(over.status(), 429);
        let header = |name: &str| over.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("retry-after"), Some("2"), "not earlier than it said");
        assert_eq!(header("ratelimit-policy"), Some("\"requests\";q=50;w=1"));
        assert_eq!(header("ratelimit"), Some("\"requests\";r=0;t=2"));
        assert_eq!(header("x-ratelimit-limit"), Some("50"));
        assert_eq!(header("proxy-status"), Some("tidegate; error=http_request_denied"));
        let full = refused(&refusal(Cause::SystemFull, 1_000), RateLimitHeaders::Off);
        assert_eq!(full.status(), 503);
        assert_eq!(full.headers().get("retry-after").unwrap(), "1");
        assert!(full.headers().get("ratelimit").is_none());
    }

    #[test]
    fn a_body_without_room_is_told_when_to_come_back() {
        for (cause, status) in [(Cause::OverShare, 429), (Cause::SystemFull, 503)] {
            let answer = broken_body(&BodyError::Full(cause)).unwrap();
            assert_eq!(answer.status().as_u16(), status);
            assert_eq!(answer.headers().get("retry-after").unwrap(), "1");
        }
        let lost = broken_body(&BodyError::Spool).unwrap();
        assert_eq!((lost.status().as_u16(), lost.headers().get("retry-after").unwrap().to_str().unwrap()), (503, "1"));
    }

    #[test]
    fn a_problem_is_json() {
        let response = plain(StatusCode::BAD_GATEWAY, "connection_refused", "it said \"no\"");
        let ResponseBody::Full(bytes) = response.into_body() else { panic!("it is short") };
        let problem: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(problem["status"], 502);
        assert_eq!(problem["detail"], "it said \"no\"");
    }
}

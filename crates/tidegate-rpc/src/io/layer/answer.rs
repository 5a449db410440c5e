//! The answers that the layers themselves give: refusals.
//!
//! | caller | share, own quota | everything else | when to come back |
//! |---|---|---|---|
//! | gRPC | `RESOURCE_EXHAUSTED` (8) | `RESOURCE_EXHAUSTED` (8) | `grpc-retry-pushback-ms` |
//! | HTTP | 429 | 503 | `Retry-After`, whole seconds |
//!
//! Not `UNAVAILABLE` (14) for gRPC: it is what most retry policies repeat at once, and repeated calls are the last thing
//! that an overloaded server needs. Callers who honour the pushback may list `RESOURCE_EXHAUSTED` in their policy:
//! every refusal carries `tidegate-shed`, so they know that no handler ran. tonic's own `load_shed` answers with the
//! same status.

use core::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::headers::{GRANT, SHED, SHED_AT, reason_word};
use crate::machine::ShedReason;

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The status of methods that there are not.
pub(super) const GRPC_UNIMPLEMENTED: &[u8] = b"12";
pub(super) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// How a caller speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// gRPC: the status travels in `grpc-status`.
    Grpc,
    /// Anything else.
    Http,
}

impl Dialect {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        if content.is_some_and(|content| content.starts_with(b"application/grpc")) { Self::Grpc } else { Self::Http }
    }
}

/// Where a call was shed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Client,
    Server,
}

/// Takes what other servers told this one's handler out of its answer: tonic hands the metadata of an error on that a handler
/// passes up. Their refusals would be taken for one by this server, whose handler ran, and their grants for its own.
pub(super) fn forget_others(headers: &mut HeaderMap) {
    headers.remove(GRANT);
    headers.remove(SHED_AT);
    if headers.remove(SHED).is_some() {
        headers.remove(GRPC_PUSHBACK);
        headers.remove(RETRY_AFTER);
    }
}

/// The refusal for a caller that speaks `dialect`; `pushback` is when to come back.
pub(super) fn refusal<B>(
    dialect: Dialect,
    reason: ShedReason,
    place: Place,
    pushback: Option<Duration>,
    body: B,
) -> Response<B> {
    let mut response = Response::new(body);
    let word = reason_word(reason);
    if dialect == Dialect::Http {
        *response.status_mut() = match reason {
            ShedReason::Share => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
    }
    let headers = response.headers_mut();
    headers.insert(SHED, HeaderValue::from_static(word));
    let place = match place {
        Place::Client => "client",
        Place::Server => "server",
    };
    headers.insert(SHED_AT, HeaderValue::from_static(place));
    match dialect {
        Dialect::Grpc => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(GRPC_STATUS, HeaderValue::from_static("8"));
            headers.insert(GRPC_MESSAGE, HeaderValue::from_static(word));
            if let Some(pushback) = pushback {
                let ms = u64::try_from(pushback.as_millis()).unwrap_or(u64::MAX);
                let mut value = HeaderValue::from(ms);
                // No secret, but hardly ever the same twice: it shall not push others out of HTTP/2's table.
                value.set_sensitive(true);
                headers.insert(GRPC_PUSHBACK, value);
            }
        }
        Dialect::Http => {
            if let Some(pushback) = pushback {
                // Rounded up, and so spread over whole seconds.
                let seconds = pushback.as_secs() + u64::from(pushback.subsec_nanos() > 0);
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
            }
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(dialect: Dialect, reason: ShedReason) -> Response<()> {
        refusal(dialect, reason, Place::Server, Some(Duration::from_millis(1_500)), ())
    }

    #[test]
    fn every_refusal_says_that_no_handler_ran() {
        for dialect in [Dialect::Grpc, Dialect::Http] {
            let response = refused(dialect, ShedReason::Delay);
            assert_eq!(
                (&response.headers()[SHED], &response.headers()[SHED_AT]),
                (&HeaderValue::from_static("delay"), &HeaderValue::from_static("server"))
            );
        }
    }

    #[test]
    fn grpc_callers_get_a_status_and_a_pushback() {
        let response = refused(Dialect::Grpc, ShedReason::Share);
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            (&response.headers()[GRPC_STATUS], &response.headers()[GRPC_PUSHBACK]),
            (&HeaderValue::from_static("8"), &HeaderValue::from_static("1500"))
        );
    }

    #[test]
    fn http_callers_can_tell_their_own_quota_from_overload() {
        assert_eq!(refused(Dialect::Http, ShedReason::Share).status(), StatusCode::TOO_MANY_REQUESTS);
        let overload = refused(Dialect::Http, ShedReason::Delay);
        assert_eq!(
            (overload.status(), &overload.headers()[RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &HeaderValue::from_static("2")),
            "a second and a half, in whole seconds"
        );
    }
}

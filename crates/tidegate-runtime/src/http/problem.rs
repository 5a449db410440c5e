//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::access::Denied;

/// What went wrong: a title that is always the same for its kind, and a detail that names key, value and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The answer's status.
    pub status: StatusCode,
    /// A word for programs: the end of the problem's type. `None` where the status says it all.
    pub kind: Option<&'static str>,
    /// The same for each problem of its kind.
    pub title: &'static str,
    /// What is wrong this time, and what to do about it.
    pub detail: String,
    retry_after_s: Option<u32>,
}

impl Problem {
    /// A problem that programs tell apart by `kind`.
    pub fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { kind: Some(kind), ..Self::untyped(status, title, detail) }
    }

    /// A problem without a type: programs look at its status alone.
    pub fn untyped(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind: None, title, detail: detail.into(), retry_after_s: None }
    }

    /// 400: a name, a body or a parameter is wrong.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be understood", detail)
    }

    /// 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing", detail)
    }

    /// 405: the path exists, for the methods that `detail` names.
    pub fn method_not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method", "Method not allowed", detail)
    }

    /// 503: it lives, and cannot do its work yet or any more.
    pub fn not_ready(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Not ready", detail)
    }

    /// The same, with a time after which to ask again.
    #[must_use]
    pub fn retry_after_s(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (kind, title) = denied.kind();
        let status = StatusCode::from_u16(denied.status()).expect("these are statuses");
        Self::new(status, kind, title, denied.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = self.kind.map_or_else(|| "about:blank".to_owned(), |kind| format!("urn:tidegate:problem:{kind}"));
        let body = json!({ "type": kind, "title": self.title, "status": self.status.as_u16(), "detail": self.detail });
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

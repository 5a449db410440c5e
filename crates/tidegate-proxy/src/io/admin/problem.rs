//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// What went wrong: a title that is always the same for its kind, and a detail that names value and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, title, detail: detail.into() }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be understood", detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("urn:tidegate:problem:{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let content_type = HeaderValue::from_static("application/problem+json");
        (self.status, [(CONTENT_TYPE, content_type)], Json(body).into_response().into_body()).into_response()
    }
}

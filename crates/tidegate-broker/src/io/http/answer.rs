//! Answers in nsqd's form.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::machine::admin::{AdminReply, PublishRefused};

const NSQ_CONTENT_TYPE: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-nsq-content-type"), HeaderValue::from_static("nsq; version=1.0"));
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What a request that succeeded is answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing.
    Done,
    /// Text as it is.
    Text(Cow<'static, str>),
    /// JSON.
    Json(Vec<u8>),
}

impl Answer {
    pub(super) const OK: Self = Self::Text(Cow::Borrowed("OK"));

    pub(super) fn json(value: &impl Serialize) -> Self {
        Self::Json(serde_json::to_vec(value).expect("answers are plain structs of numbers and strings"))
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Done => [NSQ_CONTENT_TYPE].into_response(),
            Self::Text(text) => ([NSQ_CONTENT_TYPE, (CONTENT_TYPE, TEXT)], text.into_owned()).into_response(),
            Self::Json(json) => ([NSQ_CONTENT_TYPE, (CONTENT_TYPE, JSON)], json).into_response(),
        }
    }
}

/// Why a request failed: a status and nsqd's word for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: Cow<'static, str>,
    retry_after: Option<Duration>,
}

impl Refusal {
    pub(super) const NOT_FOUND: Self = Self::new(StatusCode::NOT_FOUND, "NOT_FOUND");
    pub(super) const TOPIC_NOT_FOUND: Self = Self::new(StatusCode::NOT_FOUND, "TOPIC_NOT_FOUND");
    pub(super) const EXITING: Self = Self::new(StatusCode::SERVICE_UNAVAILABLE, "EXITING");
    pub(super) const INTERNAL: Self = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR");

    pub(super) const fn new(status: StatusCode, message: &'static str) -> Self {
        Self { status, message: Cow::Borrowed(message), retry_after: None }
    }

    /// With a message that says more than nsqd's words.
    pub(super) fn because(status: StatusCode, message: String) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    /// Status 400.
    pub(super) const fn bad(message: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Status 413.
    pub(super) const fn too_big(message: &'static str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Status 405, naming the methods that are allowed.
    pub(super) fn method_not_allowed(allowed: &'static str) -> Response {
        ([(ALLOW, allowed)], Self::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED")).into_response()
    }
}

impl From<PublishRefused> for Refusal {
    fn from(refused: PublishRefused) -> Self {
        let (status, retry_after) = match &refused {
            PublishRefused::Exiting => return Self::EXITING,
            PublishRefused::Throttled { retry_after } => (StatusCode::TOO_MANY_REQUESTS, Some(*retry_after)),
            PublishRefused::ExceedsBurst { .. } => (StatusCode::PAYLOAD_TOO_LARGE, None),
            PublishRefused::QueueFull
            | PublishRefused::DeferredFull { .. }
            | PublishRefused::LogFailed { .. }
            | PublishRefused::Draining => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        Self { status, message: refused.to_string().into(), retry_after }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "message": self.message }).to_string();
        let mut response = (self.status, [NSQ_CONTENT_TYPE, (CONTENT_TYPE, JSON)], body).into_response();
        if let Some(span) = self.retry_after {
            // The header has whole seconds only; the message is exact.
            let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// What a shard's answer to anything but a snapshot means over HTTP; `None` is a shard that is gone.
pub(super) fn outcome(reply: Option<AdminReply>) -> Result<(), Refusal> {
    match reply {
        Some(AdminReply::Done) => Ok(()),
        Some(AdminReply::TopicNotFound) => Err(Refusal::TOPIC_NOT_FOUND),
        Some(AdminReply::ChannelNotFound) => Err(Refusal::new(StatusCode::NOT_FOUND, "CHANNEL_NOT_FOUND")),
        Some(AdminReply::Refused(refused)) => Err(refused.into()),
        Some(_) => Err(Refusal::INTERNAL),
        None => Err(Refusal::EXITING),
    }
}

/// Plain text without nsqd's header, as `/ping` and the debug paths answer.
pub(super) fn plain(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Response {
    (status, [(CONTENT_TYPE, TEXT)], text.into().into_owned()).into_response()
}

/// What a plain listener answers to everything when TLS is required.
pub(super) fn tls_required(https_port: u16) -> Response {
    let body = format!(r#"{{"message": "TLS_REQUIRED", "https_port": {https_port}}}"#);
    (StatusCode::FORBIDDEN, [NSQ_CONTENT_TYPE, (CONTENT_TYPE, JSON)], body).into_response()
}

//! The middleware that asks who may ask.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, ORIGIN, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_runtime::access::{Asked, Denied, Guard};

use super::problem::Problem;

pub(super) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match check(&guard, &request) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let (kind, title) = denied.kind();
            let status = StatusCode::from_u16(denied.status()).expect("these are statuses");
            Problem::new(status, kind, title, denied.to_string()).into_response()
        }
    };
    let unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    if unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn check(guard: &Guard, request: &Request) -> Result<(), Denied> {
    let text = |name: HeaderName| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    guard.check(Asked {
        reads: matches!(*request.method(), Method::GET | Method::HEAD),
        path: request.uri().path(),
        host: text(HOST),
        origin: text(ORIGIN),
        authorization: text(AUTHORIZATION),
    })
}

//! The middleware that asks who may ask.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, ORIGIN, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use crate::access::{Asked, Guard};

/// In front of every route of an admin API, with `axum::middleware::from_fn_with_state`.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match check(&guard, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
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

fn check(guard: &Guard, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    guard.check(asked(reads, path, headers)).map_err(Problem::from)
}

/// What a request of these headers says about where it comes from.
#[must_use]
pub fn asked<'a>(reads: bool, path: &'a str, headers: &'a HeaderMap) -> Asked<'a> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    Asked { reads, path, host: text(HOST), origin: text(ORIGIN), authorization: text(AUTHORIZATION) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Reach, Token};

    #[test]
    fn who_is_denied_is_told_why() {
        let guard = Guard { token: Some(Token::new("s3cret")), reach: Reach::Loopback };
        let asked = |method: Method, headers: &[(HeaderName, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
            check(&guard, &method, "/x", &headers).map_err(|problem| (problem.status.as_u16(), problem.kind))
        };
        let host = (HOST, "localhost");
        assert_eq!(asked(Method::GET, std::slice::from_ref(&host)), Ok(()));
        assert_eq!(asked(Method::GET, &[]), Err((421, Some("unknown-host"))));
        assert_eq!(asked(Method::GET, &[host.clone(), (ORIGIN, "null")]), Err((403, Some("foreign-origin"))));
        assert_eq!(asked(Method::PUT, std::slice::from_ref(&host)), Err((401, Some("token"))));
        assert_eq!(asked(Method::PUT, &[host, (AUTHORIZATION, "Bearer s3cret")]), Ok(()));
    }
}

//! Who may ask what: Host, Origin and token checks, and the security headers of every answer.
//!
//! Reads are open to whoever reaches the console, which listens on loopback. Two attacks remain for a browser on the
//! same machine: a foreign page that posts to us (it cannot read our token, and its Origin gives it away), and one that
//! resolves its own name to 127.0.0.1 (its Host gives it away).

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_runtime::http::Problem;

/// Everything from ourselves, nothing inline, no frames around us. `data:` is for the one-pixel images of charts.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What requests are held against.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) write_token: String,
    pub(crate) allowed_hosts: Vec<String>,
}

/// The middleware around every route.
pub(crate) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

impl Guard {
    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = text(header::HOST).unwrap_or_default();
        if !self.knows(host) {
            let detail = format!("the console is not called `{host}`; add the name to its allowed hosts");
            return Err(Problem::untyped(StatusCode::MISDIRECTED_REQUEST, "Unknown host", detail));
        }
        let foreign = |origin: &str| {
            let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            authority.is_none_or(|authority| !authority.eq_ignore_ascii_case(host))
        };
        if let Some(origin) = text(header::ORIGIN).filter(|origin| foreign(origin)) {
            let detail = format!("requests from pages of `{origin}` are refused; open the console's own page");
            return Err(Problem::untyped(StatusCode::FORBIDDEN, "Foreign origin", detail));
        }
        if matches!(*method, Method::GET | Method::HEAD) || self.is_token(text(header::AUTHORIZATION)) {
            return Ok(());
        }
        let detail = if self.write_token.is_empty() {
            "this console was started without a write token, so it only shows"
        } else {
            "writes need `Authorization: Bearer <token>`; the token is in the address that was printed at start"
        };
        Err(Problem::untyped(StatusCode::UNAUTHORIZED, "Token missing or wrong", detail))
    }

    /// Whether `host`, with or without a port, is one of our names.
    fn knows(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
            || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }

    /// Takes as long for a token that is almost right as for one that is all wrong.
    fn is_token(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().as_bytes();
        let wanted = self.write_token.as_bytes();
        let differences = given.iter().zip(wanted).fold(0, |seen, (a, b)| seen | (a ^ b));
        !wanted.is_empty() && given.len() == wanted.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(method: &Method, headers: &[(&'static str, &'static str)]) -> Result<(), StatusCode> {
        let guard = Guard { write_token: "secret".to_owned(), allowed_hosts: vec!["tide.example".to_owned()] };
        let headers =
            headers.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
        guard.check(method, &headers.collect()).map_err(|problem| problem.into_response().status())
    }

    #[test]
    fn loopback_names_and_allowed_hosts_are_served() {
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070", "tide.example:80"] {
            assert_eq!(verdict(&Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["", "evil.example", "evil.example:7070", "localhost.evil.example", "10.0.0.1", "::", "[", "a:b:c"]
        {
            assert_eq!(verdict(&Method::GET, &[("host", host)]), Err(StatusCode::MISDIRECTED_REQUEST), "{host}");
        }
    }

    #[test]
    fn foreign_pages_are_refused_even_with_the_token() {
        let own = ("host", "localhost:7070");
        assert_eq!(verdict(&Method::GET, &[own, ("origin", "http://localhost:7070")]), Ok(()));
        for origin in ["http://localhost:8080", "http://evil.example", "null", ""] {
            let headers = [own, ("origin", origin), ("authorization", "Bearer secret")];
            assert_eq!(verdict(&Method::PUT, &headers), Err(StatusCode::FORBIDDEN), "{origin}");
        }
    }

    #[test]
    fn writes_need_the_token() {
        let own = ("host", "localhost");
        assert_eq!(verdict(&Method::PUT, &[own, ("authorization", "Bearer secret")]), Ok(()));
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH, Method::OPTIONS] {
            assert_eq!(verdict(&method, &[own]), Err(StatusCode::UNAUTHORIZED));
        }
        for wrong in ["secret", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret", "Basic secret"] {
            assert_eq!(
                verdict(&Method::PUT, &[own, ("authorization", wrong)]),
                Err(StatusCode::UNAUTHORIZED),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_empty_token_lets_nobody_write() {
        let guard = Guard { write_token: String::new(), allowed_hosts: Vec::new() };
        assert!(!guard.is_token(Some("Bearer ")));
        assert!(!guard.is_token(None));
    }
}

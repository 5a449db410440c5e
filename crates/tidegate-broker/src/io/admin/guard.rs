//! Who may ask what.
//!
//! Whoever reaches the loopback interface may read. A browser on the same machine reaches it too, and takes two attacks
//! with it: a foreign page that sends us requests, which its Origin gives away, and a page that has its own name
//! resolve to 127.0.0.1, which its Host gives away. Writes need the token in any case.

use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, ORIGIN, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use crate::config::Address;

/// The secret that lets its holder write.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// This secret, which is not empty.
    ///
    /// # Panics
    /// If it is empty: nobody could tell it from none.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        let secret = secret.into();
        assert!(!secret.is_empty(), "an empty token is no token");
        Self(secret)
    }

    /// Whether `given` is it; takes as long for a near miss as for any other.
    fn is(&self, given: &str) -> bool {
        let (given, wanted) = (given.as_bytes(), self.0.as_bytes());
        let differences = given.iter().zip(wanted).fold(0, |seen, (a, b)| black_box(seen | (a ^ b)));
        given.len() == wanted.len() && differences == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// From where the API can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// From this machine: requests must call us by a name of loopback, and reads are open.
    Loopback,
    /// Through a unix socket, whose file says who may: as loopback, by any name.
    Socket,
    /// From the network, because somebody said so: any name, and reads need the token too.
    Network,
}

impl Reach {
    /// From where `address` can be reached.
    #[must_use]
    pub fn of(address: &Address) -> Self {
        match address {
            Address::Unix(_) => Self::Socket,
            Address::Tcp { host, .. } if is_loopback_name(host) => Self::Loopback,
            Address::Tcp { .. } => Self::Network,
        }
    }
}

/// What requests are held against.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// Without one, nobody writes.
    pub(super) token: Option<Token>,
    pub(super) reach: Reach,
}

/// Paths that a supervisor without a token may ask, wherever the API listens.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The middleware in front of every route.
pub(super) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.uri().path(), request.headers()) {
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

impl Guard {
    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text(HOST).unwrap_or_default();
        if self.reach == Reach::Loopback && !is_loopback(host) {
            let detail = format!("Host is `{host}`; use localhost or 127.0.0.1, or bind the API to another address");
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "unknown-host", "Unknown host", detail));
        }
        if let Some(origin) = text(ORIGIN).filter(|origin| !is_own(origin, host)) {
            let detail = format!("Origin is `{origin}`; pages of other sites may not use this API");
            return Err(Problem::new(StatusCode::FORBIDDEN, "foreign-origin", "Foreign origin", detail));
        }
        let reads = matches!(*method, Method::GET | Method::HEAD);
        let open = reads && (self.reach != Reach::Network || PROBES.contains(&path));
        if open || self.is_authorized(text(AUTHORIZATION)) {
            return Ok(());
        }
        let detail = match &self.token {
            Some(_) => "send `Authorization: Bearer <token>` with the token that the broker was started with",
            None => "the broker was started without a token, so nothing can be changed; start it with one",
        };
        Err(Problem::new(StatusCode::UNAUTHORIZED, "token", "Token missing or wrong", detail))
    }

    fn is_authorized(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|value| value.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer") && self.token.as_ref().is_some_and(|token| token.is(given.trim()))
        })
    }
}

/// Whether `host`, with or without a port, can only be this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    is_loopback_name(address)
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a page of `origin` came from `host` itself.
fn is_own(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reach: Reach, token: Option<&str>, line: &str, headers: &[(HeaderName, &str)]) -> u16 {
        let guard = Guard { token: token.map(Token::new), reach };
        let (method, path) = line.split_once(' ').unwrap();
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        guard.check(&method.parse().unwrap(), path, &headers).map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn loopback_is_read_by_its_own_names_only() {
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:1", "127.9.9.9", "[::1]:7070", "[::1]"] {
            assert_eq!(check(Reach::Loopback, None, "GET /x", &[(HOST, host)]), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost:x"]
        {
            assert_eq!(check(Reach::Loopback, None, "GET /x", &[(HOST, host)]), 421, "{host}");
        }
        assert_eq!(check(Reach::Loopback, None, "GET /healthz", &[]), 421);
        assert_eq!(check(Reach::Socket, None, "GET /x", &[(HOST, "anything")]), 200);
    }

    #[test]
    fn the_address_says_from_where() {
        let tcp = |host: &str| Reach::of(&Address::Tcp { host: host.to_owned(), port: 7070 });
        assert_eq!([tcp("127.0.0.1"), tcp("localhost"), tcp("::1")], [Reach::Loopback; 3]);
        assert_eq!([tcp(""), tcp("0.0.0.0"), tcp("::"), tcp("10.0.0.1")], [Reach::Network; 4]);
        assert_eq!(Reach::of(&Address::Unix("/run/x".into())), Reach::Socket);
    }

    #[test]
    fn foreign_pages_are_refused_even_with_the_token() {
        let from = |origin| {
            let headers = [(HOST, "127.0.0.1:7070"), (ORIGIN, origin), (AUTHORIZATION, "Bearer s3cret")];
            check(Reach::Loopback, Some("s3cret"), "POST /x", &headers)
        };
        assert_eq!(from("http://127.0.0.1:7070"), 200);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:80", "file://"] {
            assert_eq!(from(origin), 403, "{origin}");
        }
    }

    #[test]
    fn writes_need_the_token() {
        let write =
            |token, given| check(Reach::Loopback, token, "PUT /x", &[(HOST, "localhost"), (AUTHORIZATION, given)]);
        assert_eq!(write(Some("s3cret"), "Bearer s3cret"), 200);
        assert_eq!(write(Some("s3cret"), "bearer  s3cret"), 200);
        for given in ["Bearer s3cre", "Bearer s3crets", "Bearer S3cret", "Bearer ", "Basic s3cret", "s3cret", ""] {
            assert_eq!(write(Some("s3cret"), given), 401, "{given}");
        }
        assert_eq!(write(None, "Bearer "), 401);
    }

    #[test]
    fn from_the_network_all_but_the_probes_need_the_token() {
        let read = |path: &str, headers: &[_]| check(Reach::Network, Some("s"), &format!("GET {path}"), headers);
        assert_eq!(read("/api/v1/snapshot", &[(HOST, "broker.example")]), 401);
        assert_eq!(read("/api/v1/snapshot", &[(AUTHORIZATION, "Bearer s")]), 200);
        assert_eq!((read("/healthz", &[]), read("/readyz", &[]), read("/metrics", &[])), (200, 200, 401));
    }
}

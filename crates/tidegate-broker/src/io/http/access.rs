//! Guards writes over nsqd's HTTP API.
//!
//! nsqd asks nobody. A browser that reaches the API takes every web page with it, so writes that a foreign page asks
//! for, or by a name that is not the broker's, are refused; clients and tools of nsqd send no Origin.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
pub use tidegate_runtime::access::Token;
use tidegate_runtime::access::{Denied, Hosts, Origins, WriteGuard};
use tidegate_runtime::http::asked;

use super::answer::Refusal;
use crate::config::{Address, Config};

/// What `config` demands of writes to its API at `address`; `token` is the one of `http_token_file`.
#[must_use]
pub fn guard_of(config: &Config, address: &Address, token: Option<Token>) -> WriteGuard {
    let any = |list: &[String]| list.iter().any(|item| item == "*");
    let hosts = match address {
        // The file says who may, and no browser gets there.
        Address::Unix(_) => Hosts::Any,
        Address::Tcp { .. } if any(&config.http_allowed_hosts) => Hosts::Any,
        Address::Tcp { host, .. } => {
            let own = [config.broadcast_address.clone(), host.clone()];
            let own = own.into_iter().filter(|name| !name.is_empty());
            Hosts::Named(own.chain(config.http_allowed_hosts.iter().cloned()).collect())
        }
    };
    let origins = &config.http_allowed_origins;
    let origins = if any(origins) { Origins::Any } else { Origins::Named(origins.clone()) };
    WriteGuard { token, hosts, origins }
}

/// `router` behind `guard`.
pub fn guarded(router: Router, guard: WriteGuard) -> Router {
    router.layer(from_fn_with_state(Arc::new(guard), check))
}

async fn check(State(guard): State<Arc<WriteGuard>>, request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    match guard.check(asked(reads, request.uri().path(), request.headers())) {
        Ok(()) => next.run(request).await,
        Err(denied) => refusal(&denied),
    }
}

fn refusal(denied: &Denied) -> Response {
    let (status, text) = match denied {
        Denied::UnknownHost { host } => (
            StatusCode::FORBIDDEN,
            format!(
                "UNKNOWN_HOST: writes may not call this broker {host:?}; use its IP address, or add the name to \
                 http_allowed_hosts"
            ),
        ),
        Denied::ForeignOrigin { origin } => (
            StatusCode::FORBIDDEN,
            format!(
                "FOREIGN_ORIGIN: pages of {origin:?} may not write to this broker; to let them, add that to \
                 http_allowed_origins"
            ),
        ),
        Denied::NoToken | Denied::NeverAllowed => (
            StatusCode::UNAUTHORIZED,
            "TOKEN: writes need `Authorization: Bearer <token>`, with the text of the broker's http_token_file"
                .to_owned(),
        ),
    };
    let mut response = Refusal::because(status, text).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::header::{HOST, ORIGIN};

    use super::*;
    use crate::config::{Host, Options};
    use crate::io::http::tests::send;

    fn config(change: impl FnOnce(&mut Options)) -> Config {
        let mut options = Options { broadcast_address: Some("nsq.example".to_owned()), ..Options::default() };
        change(&mut options);
        Config::from_options(options, &Host { name: "box".to_owned(), cpus: 1 }).unwrap()
    }

    async fn post(config: &Config, host: &str, origin: &str) -> (u16, String) {
        let address = Address::Tcp { host: String::new(), port: 4151 };
        let router = guarded(Router::new().fallback(|| async { "done" }), guard_of(config, &address, None));
        let request = Request::post("/topic/delete?topic=t").header(HOST, host);
        let request = if origin.is_empty() { request } else { request.header(ORIGIN, origin) };
        let (head, body) = send(&router, request.body(Body::empty()).unwrap()).await;
        (head.status().as_u16(), body)
    }

    #[tokio::test]
    async fn a_broker_in_nsqds_place_refuses_foreign_pages_only() {
        let nsqds = config(|_| {});
        assert_eq!(post(&nsqds, "anything", "").await.0, 200);
        let (status, message) = post(&nsqds, "127.0.0.1:4151", "http://evil.example").await;
        assert_eq!(status, 403);
        assert!(
            message.starts_with(r#"{"message":"FOREIGN_ORIGIN: "#) && message.contains("http_allowed_origins"),
            "{message}"
        );
        let open = config(|options| options.http_allowed_origins = Some(vec!["*".to_owned()]));
        assert_eq!(post(&open, "127.0.0.1:4151", "http://evil.example").await.0, 200);
    }

    #[tokio::test]
    async fn with_names_an_unknown_one_is_refused() {
        let named = config(|options| options.http_allowed_hosts = Some(vec!["queue.example".to_owned()]));
        for host in ["localhost", "10.0.0.7:4151", "nsq.example:4151", "queue.example"] {
            assert_eq!(post(&named, host, "").await.0, 200, "{host}");
        }
        let (status, message) = post(&named, "evil.example", "http://evil.example").await;
        assert_eq!(status, 403);
        assert!(message.contains("http_allowed_hosts"), "{message}");
        let socket = guard_of(&named, &Address::Unix("/run/nsqd.sock".into()), None);
        assert_eq!(socket.hosts, Hosts::Any);
    }

    #[tokio::test]
    async fn a_token_is_named_with_its_file() {
        let address = Address::Tcp { host: String::new(), port: 4151 };
        let guard = guard_of(&config(|_| {}), &address, Some(Token::new("s3cret")));
        let router = guarded(Router::new().fallback(|| async { "done" }), guard);
        let ask = |request: axum::http::request::Builder| request.uri("/pub?topic=t").body(Body::empty()).unwrap();
        let (head, body) = send(&router, ask(Request::builder().method("POST"))).await;
        assert_eq!((head.status().as_u16(), head.headers()[WWW_AUTHENTICATE].to_str().unwrap()), (401, "Bearer"));
        assert!(body.contains("http_token_file"), "{body}");
        let request = Request::builder().method("POST").header("authorization", "Bearer s3cret");
        assert_eq!(send(&router, ask(request)).await.0.status().as_u16(), 200);
        assert_eq!(send(&router, ask(Request::builder())).await.0.status().as_u16(), 200);
    }
}

//! The console of a service with the layer: who is answered what, mounted in either way.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tidegate_rpc::io::layer::ServerLayer;
use tidegate_rpc::telemetry::console::{Access, Console};
use tidegate_runtime::access::Token;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

fn local(path: &str) -> Request<Body> {
    let request = Request::builder().uri(path).header("host", "localhost:8080");
    let peer = SocketAddr::from(([127, 0, 0, 1], 4321));
    request.extension(peer).body(Body::empty()).expect("a request")
}

/// What a router answers that strips the prefix.
async fn ask(console: Console, request: Request<Body>) -> Answer {
    let mut router = Router::new().nest_service(console.prefix(), console.clone()).into_service();
    let Ok(answer) = router.call(request).await;
    let (parts, body) = answer.into_parts();
    let bytes = body.collect().await.expect("a page has no errors").to_bytes();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8_lossy(&bytes).into_owned() }
}

fn console() -> Console {
    Console::new(ServerLayer::default().telemetry())
}

#[tokio::test]
async fn the_page_brings_all_that_it_needs_and_nothing_from_elsewhere() {
    for path in ["/tidegate", "/tidegate/"] {
        let page = ask(console(), local(path)).await;
        assert_eq!(
            (page.status, &page.headers["content-type"].to_str().expect("text")[..9]),
            (StatusCode::OK, "text/html")
        );
        assert!(page.headers["content-security-policy"].to_str().expect("text").starts_with("default-src 'none'"));
        assert!(page.text.contains("This page only shows"), "it says that it is read-only");
        let links: Vec<&str> =
            page.text.split(['"', '\'']).filter(|text| text.starts_with('/') && !text.contains('>')).collect();
        assert!(links.len() >= 4, "{links:?}");
        for link in links {
            assert_eq!(ask(console(), local(link)).await.status, StatusCode::OK, "{link}");
        }
        assert!(!page.text.contains("http"), "no address of elsewhere");
    }
    assert!(ask(console(), local("/tidegate/model.js")).await.text.contains("export function growth"));
}

#[tokio::test]
async fn figures_come_as_json_and_for_prometheus() {
    let state = ask(console(), local("/tidegate/state.json")).await;
    let figures: serde_json::Value = serde_json::from_str(&state.text).expect("JSON");
    assert_eq!((&figures["offered_total"], &figures["short"]["what"]), (&0.into(), &"nothing".into()));
    assert_eq!(figures["classes"][0]["class"], "critical");
    let metrics = ask(console(), local("/tidegate/metrics")).await;
    assert!(metrics.text.contains("\ntidegate_rpc_offered_calls_total 0\n"), "{}", metrics.text);
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_nothing_can_be_changed() {
    for path in ["/tidegate/other", "/tidegate/page.js/", "/tidegate/..", "/tidegate/state"] {
        assert_eq!(ask(console(), local(path)).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let mut request = local("/tidegate/state.json");
        *request.method_mut() = method.parse().expect("a method");
        let answer = ask(console(), request).await;
        assert_eq!(
            (answer.status, &answer.headers["allow"]),
            (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD".parse().expect("text"))
        );
    }
}

#[tokio::test]
async fn others_than_this_machine_are_refused() {
    let with = |name: &'static str, value: &'static str| {
        let mut request = local("/tidegate/state.json");
        request.headers_mut().insert(name, value.parse().expect("text"));
        request
    };
    let mut far = local("/tidegate/state.json");
    far.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 7], 4321)));
    let mut unknown = local("/tidegate/");
    unknown.extensions_mut().clear();
    let mut mapped = local("/tidegate/state.json");
    mapped.extensions_mut().insert(SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1], 4321)));
    for (request, status) in [
        (far, 403),
        (unknown, 403),
        (mapped, 200),
        (with("host", "tide.example"), 421),
        (with("origin", "http://evil.example"), 403),
        (with("x-forwarded-for", "10.0.0.7"), 403),
        (with("forwarded", "for=10.0.0.7"), 403),
    ] {
        assert_eq!(ask(console(), request).await.status.as_u16(), status);
    }
}

#[tokio::test]
async fn a_token_opens_the_figures_from_anywhere() {
    let console = console().access(Access::Token(Token::new("s3cret")));
    let request = |path, authorization: Option<&str>| {
        let builder = Request::builder().uri(path).header("host", "tide.example");
        let builder = authorization.into_iter().fold(builder, |builder, value| builder.header("authorization", value));
        builder.body(Body::empty()).expect("a request")
    };
    for (path, authorization, status) in [
        ("/tidegate/", None, 200),
        ("/tidegate/page.js", None, 200),
        ("/tidegate/state.json", None, 401),
        ("/tidegate/metrics", Some("Bearer s3cre"), 401),
        ("/tidegate/metrics", Some("Bearer s3cret"), 200),
        ("/tidegate/state.json", Some("Bearer s3cret"), 200),
    ] {
        assert_eq!(ask(console.clone(), request(path, authorization)).await.status.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn as_a_layer_it_answers_below_its_prefix_and_nowhere_else() {
    let server = ServerLayer::default();
    let console = Console::new(server.telemetry()).at("/ops/rpc").access(Access::Anyone);
    let handler = service_fn(|request: Request<_>| async move {
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from(format!("handler of {}", request.uri().path()))))
    });
    let service = console.layer(server.layer(handler));
    let read = async |path: &'static str| {
        let request = Request::builder().uri(path).body(Full::<bytes::Bytes>::default()).expect("a request");
        let answer = service.clone().oneshot(request).await.expect("handlers do not fail");
        let bytes = answer.into_body().collect().await.expect("bodies do not fail").to_bytes();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    assert_eq!(read("/work").await, "handler of /work");
    assert_eq!(read("/ops/rpcs").await, "handler of /ops/rpcs");
    assert!(read("/ops/rpc").await.contains("src=\"/ops/rpc/page.js\""));
    assert!(read("/ops/rpc/metrics").await.contains("\ntidegate_rpc_served_calls_total 2\n"));
    assert!(read("/ops/rpc/work").await.contains("the page is at /ops/rpc"));
}

#[test]
#[should_panic(expected = "is no prefix")]
fn a_prefix_with_markup_is_refused() {
    let _ = console().at("/a\"><script>");
}

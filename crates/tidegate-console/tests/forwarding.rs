//! What the console passes on to brokers and the demo, and what it refuses to.

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod fake;

use axum::http::{Method, StatusCode};
use fake::{Answer, Broker, Console, json, nobody};
use tidegate_console::{ControlSource, ShaperSource};
use tokio::sync::watch;

const TOKEN: (&str, &str) = ("authorization", "Bearer page-token");

fn echo() -> Broker {
    Broker::start(|request, _| Answer::ok(serde_json::json!({ "path": request.path }).to_string()))
}

#[tokio::test]
async fn writes_reach_the_broker_with_its_own_token() {
    let broker = echo();
    let console = Console::before(&[&broker]);
    let body = r#"{"rate":11000,"burst":26}"#;
    for (method, path, forwarded) in [
        (Method::PUT, "limits/orders", "/api/v1/limits/orders"),
        (Method::PUT, "limits/orders/billing", "/api/v1/limits/orders/billing"),
        (Method::DELETE, "limits/orders%23ephemeral", "/api/v1/limits/orders%23ephemeral"),
        (Method::PUT, "limits/history", "/api/v1/limits/history"),
        (Method::POST, "limits/undo", "/api/v1/limits/undo"),
        (Method::POST, "limits/redo?target=a%2Fc", "/api/v1/limits/redo?target=a%2Fc"),
        (Method::POST, "topics/orders/pause", "/api/v1/topics/orders/pause"),
        (Method::POST, "topics/orders/channels/billing/empty", "/api/v1/topics/orders/channels/billing/empty"),
    ] {
        let sent = if method == Method::PUT { body } else { "" };
        let answer = console.send(method.clone(), &format!("/api/v1/brokers/b0/{path}"), &[TOKEN], sent).await;
        assert_eq!((answer.status, answer.json()["path"].as_str()), (StatusCode::OK, Some(forwarded)));
        let seen = broker.last();
        assert_eq!((seen.method.as_str(), seen.path.as_str()), (method.as_str(), forwarded));
        assert_eq!((seen.authorization.as_str(), seen.body.as_str()), ("Bearer broker-token", sent));
    }
}

#[tokio::test]
async fn what_the_broker_says_is_passed_on_as_it_is() {
    let broker = Broker::start(|_, _| Answer {
        status: StatusCode::BAD_REQUEST,
        content_type: "application/problem+json",
        body: r#"{"detail":"rate: 0 is not above zero"}"#.to_owned(),
    });
    let console = Console::before(&[&broker]);
    let answer = console.send(Method::PUT, "/api/v1/brokers/b0/limits/orders", &[TOKEN], "{}").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!(answer.json()["detail"], "rate: 0 is not above zero");
}

#[tokio::test]
async fn a_broker_that_refuses_the_console_does_not_look_like_a_bad_page_token() {
    let broker = Broker::start(|_, _| Answer { status: StatusCode::UNAUTHORIZED, ..Answer::ok("{}") });
    let console = Console::before(&[&broker]);
    let answer = console.send(Method::POST, "/api/v1/brokers/b0/limits/undo", &[TOKEN], "").await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn nothing_reaches_the_broker_without_the_token_or_from_elsewhere() {
    let broker = echo();
    let console = Console::before(&[&broker]);
    let path = "/api/v1/brokers/b0/limits/orders";
    for (headers, expected) in [
        (&[][..], StatusCode::UNAUTHORIZED),
        (&[("authorization", "Bearer broker-token")], StatusCode::UNAUTHORIZED),
        (&[TOKEN, ("origin", "http://evil.example")], StatusCode::FORBIDDEN),
        (&[TOKEN, ("origin", "null")], StatusCode::FORBIDDEN),
        (&[TOKEN, ("host", "evil.example")], StatusCode::MISDIRECTED_REQUEST),
    ] {
        let answer = console.send(Method::PUT, path, headers, "{}").await;
        assert_eq!(answer.status, expected, "{headers:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
    assert_eq!(broker.requests(), 0);
}

#[tokio::test]
async fn names_that_are_none_and_bodies_too_large_stay_here() {
    let broker = echo();
    let console = Console::before(&[&broker]);
    for (method, path, expected) in [
        (Method::PUT, "b0/limits/..", StatusCode::BAD_REQUEST),
        (Method::PUT, "b0/limits/%2e%2e", StatusCode::BAD_REQUEST),
        (Method::PUT, "b0/limits/a%2Fb", StatusCode::BAD_REQUEST),
        (Method::PUT, "b0/limits/a%3Fb", StatusCode::BAD_REQUEST),
        (Method::PUT, "b0/limits/%23ephemeral", StatusCode::BAD_REQUEST),
        (Method::PUT, "b1/limits/a", StatusCode::NOT_FOUND),
        (Method::POST, "b0/limits/a", StatusCode::NOT_FOUND),
        (Method::POST, "b0/topics/a/explode", StatusCode::NOT_FOUND),
        (Method::DELETE, "b0/topics/a/pause", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let answer = console.send(method, &format!("/api/v1/brokers/{path}"), &[TOKEN], "").await;
        assert_eq!(answer.status, expected, "{path}");
    }
    let large = "x".repeat(5_000);
    let answer = console.send(Method::PUT, "/api/v1/brokers/b0/limits/a", &[TOKEN], &large).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(broker.requests(), 0);
}

#[tokio::test]
async fn clients_are_asked_for_by_topic_and_channel() {
    let broker = Broker::start(|_, _| {
        let channel = |name: &str| serde_json::json!({"name": name, "clients": [{"client_id": name}]});
        let topics = [serde_json::json!({"name": "orders", "channels": [channel("a"), channel("b")]})];
        Answer::ok(serde_json::json!({ "topics": topics }).to_string())
    });
    let console = Console::before(&[&broker]);
    let all = console.send(Method::GET, "/api/v1/brokers/b0/clients/orders", &[], "").await.json();
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    let one = console.send(Method::GET, "/api/v1/brokers/b0/clients/orders/b", &[], "").await.json();
    assert_eq!(one, json(r#"[{"channel":"b","clients":[{"client_id":"b"}]}]"#));
    assert_eq!(broker.last().path, "/api/v1/snapshot?clients=true&topic=orders&channel=b");
}

#[tokio::test]
async fn the_demo_is_there_when_it_was_named() {
    let demo = echo();
    let console = Console::with(|config| config.demo = Some(demo.url()));
    assert_eq!(console.send(Method::GET, "/api/v1/demo/state", &[], "").await.json()["path"], "/state");
    let load = console.send(Method::POST, "/api/v1/demo/load", &[TOKEN], r#"{"load":2.0}"#).await;
    assert_eq!(load.json()["path"], "/load");
    assert_eq!(demo.last().body, r#"{"load":2.0}"#);
    let without_token = console.send(Method::POST, "/api/v1/demo/spike", &[], "{}").await;
    assert_eq!(without_token.status, StatusCode::UNAUTHORIZED);
    assert_eq!(console.watch(None).await.next().await.data["has_demo"], true);

    let plain = Console::before(&[]);
    assert_eq!(plain.send(Method::GET, "/api/v1/demo/state", &[], "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_mode_of_a_proxy_is_switched_with_the_token_alone() {
    let proxy = echo();
    let console = Console::with(|config| config.proxies = vec![proxy.proxy("p0")]);
    let body = r#"{"mode":"stats"}"#;
    let path = "/api/v1/proxies/p0/mode";
    assert_eq!(console.send(Method::POST, path, &[], body).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(console.send(Method::PUT, path, &[TOKEN], body).await.status, StatusCode::METHOD_NOT_ALLOWED);
    let unknown = console.send(Method::POST, "/api/v1/proxies/p1/mode", &[TOKEN], body).await;
    assert_eq!((unknown.status, proxy.requests()), (StatusCode::NOT_FOUND, 0));
    let answer = console.send(Method::POST, path, &[TOKEN], body).await;
    assert_eq!((answer.status, answer.json()["path"].as_str()), (StatusCode::OK, Some("/api/v1/neighbours/mode")));
    let seen = proxy.last();
    assert_eq!((seen.method.as_str(), seen.authorization.as_str(), &*seen.body), ("POST", "Bearer proxy-token", body));
}

#[tokio::test]
async fn an_rpc_server_is_there_when_it_was_named_and_is_only_read() {
    let server = echo();
    let console = Console::with(|config| config.rpc = Some(server.url()));
    assert_eq!(console.send(Method::GET, "/api/v1/rpc", &[], "").await.json()["path"], "/api/v1/rpc");
    let write = console.send(Method::POST, "/api/v1/rpc", &[TOKEN], "{}").await;
    assert_eq!(write.status, StatusCode::METHOD_NOT_ALLOWED);
    let seen = console.watch(None).await.next().await.data;
    assert_eq!((&seen["has_rpc"], &seen["has_demo"]), (&true.into(), &false.into()));

    let plain = Console::before(&[]);
    assert_eq!(plain.send(Method::GET, "/api/v1/rpc", &[], "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_shaper_is_read_by_all_and_changed_with_the_token() {
    let shaper = echo();
    let source = ShaperSource { admin_url: shaper.url(), token: Some("shaper-token".to_owned()) };
    let console = Console::with(|config| config.shaper = Some(source));
    assert_eq!(console.send(Method::GET, "/api/v1/shaper", &[], "").await.json()["path"], "/api/v1/shaper");
    let class = "/api/v1/shaper/classes/eth0%40%2Frun%2Fnetns%2Fa/tenant-a";
    for (method, path, body) in [
        (Method::PUT, class, r#"{"rate":"1 Gbit/s"}"#),
        (Method::POST, "/api/v1/shaper/control", r#"{"control":"off"}"#),
    ] {
        let before = shaper.requests();
        assert_eq!(console.send(method.clone(), path, &[], body).await.status, StatusCode::UNAUTHORIZED);
        assert_eq!(shaper.requests(), before);
        let answer = console.send(method.clone(), path, &[TOKEN], body).await;
        assert_eq!((answer.status, answer.json()["path"].as_str()), (StatusCode::OK, Some(path)));
        let seen = shaper.last();
        assert_eq!((seen.authorization.as_str(), &*seen.body), ("Bearer shaper-token", body));
    }
    let up = console.send(Method::PUT, "/api/v1/shaper/classes/../%2E%2E", &[TOKEN], "{}").await;
    assert_eq!(up.json()["path"], "/api/v1/shaper/classes/%2E%2E/%2E%2E");
    let seen = console.watch(None).await.next().await.data;
    assert_eq!((&seen["has_shaper"], &seen["has_placement"]), (&true.into(), &false.into()));
    let answer = Console::with(|_| {}).send(Method::GET, "/api/v1/shaper", &[], "").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_page_is_served_with_its_guards_and_nothing_else_is() {
    let console = Console::before(&[]);
    for path in ["/", "/demo", "/rpc", "/neighbours", "/shaper"] {
        let page = console.send(Method::GET, path, &[], "").await;
        assert_eq!((page.status, page.header("content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
        let policy = page.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!((page.header("x-content-type-options"), page.header("x-frame-options")), ("nosniff", "DENY"));
    }
    let script = console.send(Method::GET, "/assets/app.js", &[], "").await;
    assert_eq!(script.header("content-type"), "text/javascript; charset=utf-8");
    let known = [("if-none-match", script.header("etag"))];
    assert_eq!(console.send(Method::GET, "/assets/app.js", &known, "").await.status, StatusCode::NOT_MODIFIED);

    for path in [
        "/assets/../Cargo.toml",
        "/assets/..%2f..%2fCargo.toml",
        "/assets/%2e%2e/build.mjs",
        "/assets/..%5c..%5cbuild.mjs",
        "/assets/%2fetc%2fpasswd",
        "/assets//etc/passwd",
        "/assets/app.js%00.css",
        "/assets/",
        "/Cargo.toml",
    ] {
        let answer = console.send(Method::GET, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(!answer.header("content-security-policy").is_empty());
    }
}

#[tokio::test]
async fn the_pages_stay_small() {
    let console = Console::before(&[]);
    let mut bytes = 0;
    for name in ["app.js", "app.css", "favicon.svg", "index.html"] {
        bytes += console.send(Method::GET, &format!("/assets/{name}"), &[], "").await.body.len();
    }
    assert!((50_000..195_000).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn placements_are_asked_of_control_with_its_own_token() {
    let control = echo();
    let sources = watch::Sender::new(vec![control.source("b"), nobody("a")]);
    let source = ControlSource {
        admin_url: control.url(),
        token: Some("control-token".to_owned()),
        brokers: sources.subscribe(),
    };
    let console = Console::with(|config| config.control = Some(source));
    for (method, path, forwarded) in [
        (Method::GET, "placement", "/api/v1/control"),
        (Method::GET, "placement/orders/k?k=2&b=26", "/api/v1/topics/orders/k?k=2&b=26"),
        (
            Method::POST,
            "placement/orders%23ephemeral/place?dry_run=true",
            "/api/v1/place/orders%23ephemeral?dry_run=true",
        ),
    ] {
        let answer = console.send(method, &format!("/api/v1/{path}"), &[TOKEN], "").await;
        assert_eq!((answer.status, answer.json()["path"].as_str()), (StatusCode::OK, Some(forwarded)));
        assert_eq!(control.last().authorization, "Bearer control-token");
    }
    // Brokers are asked with their own tokens, and told in the order of the configuration.
    let told = console.send(Method::GET, "/api/v1/lending", &[], "").await.json();
    assert_eq!(control.last().authorization, "Bearer broker-token");
    assert_eq!((&told[0]["broker"], &told[0]["lending"]["path"]), (&"b".into(), &"/api/v1/lending".into()));
    assert_eq!((&told[1]["broker"], &told[1]["lending"]), (&"a".into(), &serde_json::Value::Null));
    assert!(told[1]["error"].as_str().unwrap().contains("cannot be reached"), "{told}");
    // Control's file was read again.
    sources.send_replace(vec![control.source("c"), control.source("b")]);
    let told = console.send(Method::GET, "/api/v1/lending", &[], "").await.json();
    let brokers: Vec<_> =
        told.as_array().unwrap().iter().map(|told| (&told["broker"], &told["lending"]["path"])).collect();
    let path = &"/api/v1/lending".into();
    assert_eq!(brokers, [(&"c".into(), path), (&"b".into(), path)]);
    // A new plan is a write.
    let answer = console.send(Method::POST, "/api/v1/placement/orders/place", &[], "").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let seen = console.watch(None).await.next().await.data;
    assert_eq!((&seen["has_placement"], &seen["has_rpc"]), (&true.into(), &false.into()));
    let answer = Console::with(|_| {}).send(Method::GET, "/api/v1/placement", &[], "").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
}

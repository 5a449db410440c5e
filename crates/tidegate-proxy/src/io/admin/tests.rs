//! The API, driven in process against a proxy that only answers.

use std::sync::Mutex;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tidegate_runtime::access::{Reach, Token};
use tidegate_runtime::clock;
use tidegate_runtime::config::Document;
use tidegate_runtime::cpu::{CpuLimits, Quota, Throttled};

use super::status::{Health, LiveRateLimit, LiveServer, LiveUpstream};
use super::*;
use crate::io::request::gate::Gate;
use crate::machine::rate_limit::{Cause, Counts, Lists, Outlook};

const FILE: &str = "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"shop\"\nservers = \
                    [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n[[proxy.route]]\nname = \"shop\"\nhost = \"a.example\"\n\
                    upstream = \"shop\"\n[proxy.route.rate_limit]\nlimit = 3\n";

struct Fake {
    config: Arc<Config>,
    live: Live,
    limits: Limits,
    mode: Mutex<Option<Mode>>,
}

impl Source for Fake {
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    fn tenancy(&self) -> Tenancy {
        Tenancy::new(&self.config(), [])
    }

    fn neighbours(&self) -> Snapshot {
        Snapshot { at_ms: 7, ..Snapshot::default() }
    }

    fn live(&self) -> Live {
        self.live.clone()
    }

    fn times(&self) -> ResponseTimes {
        self.live.times.clone()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn set_mode(&self, mode: Mode) {
        *self.mode.lock().unwrap() = Some(mode);
    }
}

fn fake(phase: Phase) -> Arc<Fake> {
    let servers = vec![
        LiveServer { requests_total: 5, ..LiveServer::default() },
        LiveServer { health: Health::Down, ..LiveServer::default() },
    ];
    let counts = Counts { admitted: 4, rejected: 2, active: 3, ..Counts::default() };
    let limit = LiveRateLimit {
        name: "route shop".to_owned(),
        scope: "remap",
        prefix: "p".to_owned(),
        tag: "shop".to_owned(),
        counts,
        outlook: Outlook::Reject(Cause::Limit),
    };
    let live = Live {
        phase,
        addresses: vec!["127.0.0.1:8080".parse().unwrap()],
        requests_total: vec![5],
        responses_total: [0, 0, 4, 0, 1, 0],
        upstreams: vec![LiveUpstream { servers, ..LiveUpstream::default() }],
        rate_limits: vec![limit],
        cpu: Some(CpuLimits {
            processors: 2,
            quota: Some(Quota { time: Duration::from_millis(50), period: Duration::from_millis(100) }),
            throttled: Some(Throttled { periods: 3, time: Duration::from_millis(20) }),
        }),
        ..Live::default()
    };
    let config = Config::from_document(&Document::new("t.toml", FILE), 1).unwrap();
    let rule = config.routes[0].rate_limit.clone().unwrap();
    let gate = Gate::new("route shop".to_owned(), rule, Lists::default(), Arc::default(), clock::now());
    Arc::new(Fake { config: Arc::new(config), live, limits: Limits::new(vec![gate]), mode: Mutex::new(None) })
}

async fn raw(fake: &Arc<Fake>, line: &str, token: &str, body: &'static str) -> (u16, HeaderMap, String) {
    let guard = Guard { token: Some(Token::new("s3cret")), reach: Reach::Loopback };
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost:4154");
    let request = request.header(AUTHORIZATION, token).header("content-type", "application/json");
    let service = TowerToHyperService::new(router(Arc::clone(fake) as Arc<dyn Source>, guard));
    let (head, body) = service.call(request.body(Body::from(body)).unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn call(fake: &Arc<Fake>, line: &str, body: &'static str) -> (u16, Value) {
    let (status, _, body) = raw(fake, line, "Bearer s3cret", body).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn the_proxy_shows_where_it_listens_and_how_its_servers_are() {
    let (status, answer) = call(&fake(Phase::Serving), "GET /api/v1/proxy", "").await;
    assert_eq!(status, 200);
    assert_eq!(answer["listeners"][0]["address"], "127.0.0.1:8080");
    assert_eq!(answer["listeners"][0]["protocols"], serde_json::json!(["h2", "http/1.1"]));
    assert_eq!(answer["routes"][0]["requests_total"], 5);
    assert_eq!(answer["upstreams"][0]["servers"][1]["health"], "down");
    assert_eq!(answer["responses_total"]["2xx"], 4);
    let cpu = serde_json::json!({
        "processors": 2, "quota_cores": 0.5, "throttled_periods_total": 3, "throttled_s_total": 0.02,
    });
    assert_eq!(answer["cpu"], cpu);
    assert_eq!((&answer["requests_total"], &answer["rate_limits"][0]["rejected_total"]), (&5.into(), &2.into()));
}

#[tokio::test]
async fn neighbours_are_the_limiters_snapshot() {
    let (status, answer) = call(&fake(Phase::Serving), "GET /api/v1/neighbours", "").await;
    assert_eq!((status, &answer["at_ms"], &answer["mode"]), (200, &7.into(), &"restrict".into()));
}

#[tokio::test]
async fn the_mode_is_set_with_the_token_only() {
    let fake = fake(Phase::Serving);
    let line = "POST /api/v1/neighbours/mode";
    let (status, headers, _) = raw(&fake, line, "Bearer guess", "{\"mode\":\"off\"}").await;
    assert_eq!((status, headers.contains_key("www-authenticate")), (401, true));
    assert_eq!(*fake.mode.lock().unwrap(), None);
    let (status, answer) = call(&fake, line, "{\"mode\":\"stats\"}").await;
    assert_eq!((status, &answer["mode"]), (200, &"stats".into()));
    assert_eq!(*fake.mode.lock().unwrap(), Some(Mode::Stats));
    let (status, answer) = call(&fake, line, "{\"mode\":\"loud\"}").await;
    assert_eq!(status, 400);
    assert!(answer["detail"].as_str().unwrap().contains("unknown variant `loud`"), "{answer}");
}

#[tokio::test]
async fn a_request_is_explained_over_http() {
    let fake = fake(Phase::Serving);
    let (status, answer) = call(&fake, "GET /api/v1/explain?host=a.example:80&path=/x%3Fy", "").await;
    assert_eq!((status, &answer["route"]["name"]), (200, &"shop".into()));
    assert_eq!(answer["rate_limits"][0]["active"], 3);
    assert_eq!(answer["why"][0], "rate limit shop has 3 of 3 under way: it is refused");
    assert_eq!((&answer["outcome"], &answer["status"]), (&"rate_limited".into(), &429.into()));
    let (status, answer) = call(&fake, "GET /api/v1/explain?hots=a", "").await;
    assert_eq!(status, 400);
    assert!(answer["detail"].as_str().unwrap().contains("the parameters are host"), "{answer}");
}

#[tokio::test]
async fn who_is_ending_is_not_ready() {
    assert_eq!(call(&fake(Phase::Serving), "GET /readyz", "").await.0, 200);
    assert_eq!(call(&fake(Phase::Draining), "GET /readyz", "").await.0, 503);
    assert_eq!(call(&fake(Phase::Draining), "GET /healthz", "").await.0, 200);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem() {
    let (status, headers, _) = raw(&fake(Phase::Serving), "GET /nope", "", "").await;
    assert_eq!((status, headers["content-type"].to_str().unwrap()), (404, "application/problem+json"));
    assert_eq!(call(&fake(Phase::Serving), "DELETE /metrics", "").await.0, 405);
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let (status, headers, page) = raw(&fake(Phase::Serving), "GET /metrics", "", "").await;
    assert_eq!((status, headers["content-type"].to_str().unwrap()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    assert!(page.contains("tidegate_proxy_server_up{upstream=\"shop\",server=\"127.0.0.1:2\"} 0\n"));
    assert!(page.contains("tidegate_proxy_rate_limit{name=\"p.remap.shop.rejected\"} 2\n"), "{page}");
    assert!(page.contains("tidegate_proxy_responses_total{class=\"2xx\"} 4\n"));
}

#[tokio::test]
async fn a_part_is_granted_renewed_fenced_and_taken_away() {
    let fake = fake(Phase::Serving);
    let (_, node) = call(&fake, "GET /api/v1/node", "").await;
    assert_eq!(
        node,
        serde_json::json!({ "role": "proxy", "draining": false, "lend_address": null, "limits": ["route shop"] })
    );
    let now_us = clock::now().as_nanos() / 1_000;
    // A body is there for as long as the test.
    let order_of = |revision: u64, until_us: u64, limit: &str, rate: &str| -> &'static str {
        let part = serde_json::json!({ "limit": limit, "rate_per_s": rate, "burst": 3 });
        serde_json::json!({ "revision": revision, "lease_ms": 60_000, "until_us": until_us, "on_lapse": "closed",
            "parts": [part] })
        .to_string()
        .leak()
    };
    let until_us = now_us + 60_000_000;
    let order = order_of(7, until_us, "route shop", "11/7s");
    let (status, put) = call(&fake, "PUT /api/v1/parts", order).await;
    let part = &put["in_force"][0];
    assert_eq!((status, &part["limit"]), (200, &"route shop".into()), "{put}");
    assert!((part["rate_per_s"].as_f64().unwrap() - 11.0 / 7.0).abs() < 1e-9);
    assert_eq!((&part["burst"], &part["revision"], &part["on_lapse"]), (&3.into(), &7.into(), &"closed".into()));
    assert!(part["lapses_in_ms"].as_u64().unwrap() > 50_000 && put["now_us"].as_u64().unwrap() > 0);
    assert_eq!(call(&fake, "PUT /api/v1/parts", order).await.0, 200, "it is renewed");
    let other = order_of(7, until_us, "route shop", "1/s");
    let stale = order_of(6, until_us, "route shop", "1/s");
    let late = order_of(8, 1, "route shop", "1/s");
    let elsewhere = order_of(8, now_us + 7_200_000_000, "route shop", "1/s");
    for (body, kind, said) in [
        (other, "other-content", "another part"),
        (stale, "stale-revision", "is of revision 7, which is newer"),
        (late, "late", "after the end"),
        (elsewhere, "other-clock", "another clock"),
    ] {
        let (status, problem) = call(&fake, "PUT /api/v1/parts", body).await;
        assert_eq!((status, &problem["type"]), (409, &format!("urn:tidegate:problem:{kind}").into()));
        assert!(problem["detail"].as_str().unwrap().contains(said), "{problem}");
    }
    let (_, all) = call(&fake, "GET /api/v1/parts", "").await;
    assert_eq!(all["parts"].as_array().unwrap().len(), 1);
    let (status, demand) = call(&fake, "GET /api/v1/demand/route%20shop?seconds=5", "").await;
    assert_eq!((status, demand["seconds"].as_array().unwrap().len()), (200, 0), "no second is whole yet");
    let (status, removed) = call(&fake, "DELETE /api/v1/parts/route%20shop?revision=8", "").await;
    assert_eq!((status, &removed["removed"]["revision"]), (200, &7.into()));
    assert_eq!(call(&fake, "DELETE /api/v1/parts/route%20shop?revision=9", "").await.0, 404);
    assert_eq!(call(&fake, "PUT /api/v1/parts", order).await.0, 409, "it was taken away under a newer revision");
    assert_eq!(call(&fake, "GET /api/v1/demand/route%20other", "").await.0, 404);
    let nowhere = order_of(9, until_us, "shop", "1/s");
    let (status, problem) = call(&fake, "PUT /api/v1/parts", nowhere).await;
    assert!(status == 404 && problem["detail"].as_str().unwrap().contains("`route NAME`"), "{problem}");
}

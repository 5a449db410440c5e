//! The API, driven in process against a shard that only answers; in `real` against a broker.

mod real;

use std::future::ready;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Request};
use serde_json::{Value, json};
use tidegate_core::Instant;
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::io::handle::BrokerHandle;
use crate::io::http::Listening;
use crate::io::http::tests::{FakeShard, config, send};
use crate::machine::admin::{AdminReply, AdminRequest};
use crate::machine::limiter::{Contract, Discipline, Mode, Source, Unit};
use crate::machine::publishers::{OthersReport, PublisherReport};
use crate::machine::seconds::SecondReport;
use crate::machine::snapshot::{
    ChannelSnapshot, DelaySnapshot, LimitSnapshot, PartSnapshot, ShardSnapshot, TopicSnapshot,
};
use crate::machine::watch::{DelayReport, PublishersReport};

struct Api {
    router: Router,
    phase: watch::Sender<Phase>,
}

impl Api {
    async fn new(shard: &Arc<FakeShard>, store: Arc<dyn LimitStore>, options: &str) -> Self {
        Self::on(shard.handle(), store, config(options)).await
    }

    async fn on(broker: BrokerHandle, store: Arc<dyn LimitStore>, config: Arc<Config>) -> Self {
        let file = [("filed".parse().unwrap(), contract(5))];
        let (limits, _) = Limits::start(broker.clone(), store, file).await.unwrap();
        let node = Node {
            hostname: "box".to_owned(),
            tcp: Listening::Port(4150),
            http: Listening::Nowhere,
            started: Instant::ZERO,
            start_time_s: 1_795_220_015,
        };
        let phase = watch::Sender::new(Phase::Starting);
        let state = AdminState {
            broker,
            limits,
            live: Live::new(&config),
            config,
            node: Arc::new(node),
            phase: phase.subscribe(),
        };
        let access = Access { token: Some(Token::new("s3cret")), reach: Reach::Loopback };
        Self { router: router(state, access), phase }
    }

    async fn of(shard: &Arc<FakeShard>) -> Self {
        Self::new(shard, Arc::new(Transient::default()), "").await
    }

    /// Status and JSON of `METHOD /path`, asked with the token.
    async fn call(&self, line: &str, body: impl Into<Body>) -> (u16, Value) {
        let (status, _, body) = self.raw(line, body).await;
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    async fn raw(&self, line: &str, body: impl Into<Body>) -> (u16, HeaderMap, String) {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path);
        let request = request.header(HOST, "localhost:7070").header(AUTHORIZATION, "Bearer s3cret");
        let (head, body) = send(&self.router, request.body(body.into()).unwrap()).await;
        (head.status().as_u16(), head.headers().clone(), body)
    }
}

fn contract(per_s: u64) -> Contract {
    let limit = Limit::new(Rate::per_s(per_s), 26);
    Contract { limit, unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce }
}

fn shown(per_s: u32, source: &str) -> Value {
    let rate = Rate::per_s(per_s.into()).to_string();
    json!({"rate": rate, "rate_per_s": f64::from(per_s), "burst": 26, "unit": "messages", "discipline": "wait",
        "mode": "enforce", "source": source})
}

#[tokio::test]
async fn a_limit_is_set_shown_undone_and_removed() {
    let shard = FakeShard::agreeable();
    let api = Api::of(&shard).await;
    shard.asked();
    let (status, set) = api.call("PUT /api/v1/limits/t", r#"{"rate": "11k/s", "burst": 26}"#).await;
    assert_eq!((status, &set["limit"], &set["previous"]), (200, &shown(11_000, "admin"), &Value::Null));
    let asked = shard.asked();
    assert!(asked[0].starts_with(r#"SetTopicLimit("t", Some((Contract { limit: Limit { rate: 11k/s"#), "{asked:?}");

    let again = api.call("PUT /api/v1/limits/t", r#"{"rate": 500, "burst": 26}"#).await.1;
    assert_eq!((&again["limit"], &again["previous"]), (&shown(500, "admin"), &shown(11_000, "admin")));
    assert!(again["revision"].as_u64() > set["revision"].as_u64());

    let undone = api.call("POST /api/v1/limits/undo", "").await.1;
    assert_eq!((&undone["limit"], &undone["target"]), (&shown(11_000, "admin"), &json!("t")));
    let history = api.call("GET /api/v1/limits/history", "").await.1;
    assert_eq!(history.as_array().unwrap().len(), 3);
    assert_eq!((&history[0]["before"], &history[0]["after"]), (&shown(500, "admin"), &shown(11_000, "admin")));
    assert_eq!(history[2]["before"], Value::Null);

    let removed = api.call("DELETE /api/v1/limits/t", "").await.1;
    assert_eq!((&removed["limit"], &removed["previous"]), (&Value::Null, &shown(11_000, "admin")));
    assert!(shard.asked().last().unwrap().starts_with(r#"SetTopicLimit("t", None)"#));
    assert_eq!(api.call("DELETE /api/v1/limits/t", "").await.0, 404);
    assert_eq!(api.call("GET /api/v1/limits/t", "").await.0, 404);
}

#[tokio::test]
async fn undo_and_redo_say_what_they_took_back() {
    let api = Api::of(&FakeShard::agreeable()).await;
    for rate in 1..=3 {
        api.call("PUT /api/v1/limits/t", format!(r#"{{"rate": {rate}, "burst": 26}}"#)).await;
    }
    let mut rates = Vec::new();
    for _ in 0..3 {
        let undone = api.call("POST /api/v1/limits/undo", "").await.1;
        assert_eq!((&undone["undone"]["target"], &undone["undone"]["cause"]), (&json!("t"), &json!("set")));
        rates.push((undone["undone"]["revision"].clone(), undone["limit"]["rate_per_s"].clone()));
    }
    assert_eq!(json!(rates), json!([[3, 2.0], [2, 1.0], [1, null]]));
    let (status, nothing) = api.call("POST /api/v1/limits/undo", "").await;
    assert_eq!((status, nothing["detail"].as_str().unwrap().contains("left to undo")), (404, true));
    let redone = api.call("POST /api/v1/limits/redo", "").await.1;
    assert_eq!((&redone["redone"]["revision"], &redone["limit"]), (&json!(1), &shown(1, "admin")));
    let history = api.call("GET /api/v1/limits/history", "").await.1;
    let told: Vec<_> = history.as_array().unwrap().iter().map(|change| (&change["cause"], &change["of"])).collect();
    assert_eq!(json!(told[..2]), json!([["redo", 1], ["undo", 1]]));
    assert_eq!(history[4]["undone_by"], json!(4));
    api.call("PUT /api/v1/limits/t", r#"{"rate": 9, "burst": 26}"#).await;
    assert_eq!(api.call("POST /api/v1/limits/redo", "").await.0, 404);
}

#[tokio::test]
async fn limits_of_a_file_that_is_read_again_leave_live_ones_alone() {
    let shard = FakeShard::agreeable();
    let file = [("a".parse().unwrap(), contract(1)), ("b".parse().unwrap(), contract(1))];
    let (limits, _) = Limits::start(shard.handle(), Arc::new(Transient::default()), file).await.unwrap();
    limits.change(Action::Set("b".parse().unwrap(), Some(contract(7))), String::new()).await.unwrap();
    shard.asked();
    let file = [("b".parse().unwrap(), contract(2)), ("c".parse().unwrap(), contract(3))];
    let changes = limits.set_file(file).await.unwrap();
    let told: Vec<_> = changes.iter().map(|c| (c.target.to_string(), c.before, c.after, c.outranked_by)).collect();
    let expected = [
        ("a".to_owned(), Some(contract(1)), None, None),
        ("b".to_owned(), Some(contract(1)), Some(contract(2)), Some(contract(7))),
        ("c".to_owned(), None, Some(contract(3)), None),
    ];
    assert_eq!(told, expected);
    let asked = shard.asked();
    assert_eq!(asked.len(), 2, "only those change that nothing outranks: {asked:?}");
    assert!(asked[0].starts_with(r#"SetTopicLimit("a", None)"#) && asked[1].contains("3/s"), "{asked:?}");
    // Removed live, the file's new limit is in force.
    limits.change(Action::Set("b".parse().unwrap(), None), String::new()).await.unwrap();
    assert_eq!(limits.in_force().get(&"b".parse().unwrap()), Some(&(contract(2), Source::File)));
}

#[tokio::test]
async fn a_live_limit_outranks_the_file_until_it_is_removed() {
    let shard = FakeShard::agreeable();
    let api = Api::of(&shard).await;
    assert!(shard.asked()[0].contains("File"), "the file's limit is in force from the start");
    assert_eq!(api.call("DELETE /api/v1/limits/filed", "").await.0, 409);
    let set = api.call("PUT /api/v1/limits/filed", r#"{"rate": 7, "burst": 26}"#).await.1;
    assert_eq!(set["previous"], shown(5, "file"));
    let removed = api.call("DELETE /api/v1/limits/filed", "").await.1;
    assert_eq!((&removed["limit"], &removed["previous"]), (&shown(5, "file"), &shown(7, "admin")));
    let history = api.call("GET /api/v1/limits/history", "").await.1;
    assert_eq!((&history[0]["before"], &history[0]["after"]), (&shown(7, "admin"), &shown(5, "file")));
    let all = api.call("GET /api/v1/limits", "").await.1;
    assert_eq!((&all["limits"][0]["target"], &all["limits"][0]["source"]), (&json!("filed"), &json!("file")));
}

#[tokio::test]
async fn limits_are_in_force_again_after_a_restart() {
    let store: Arc<dyn LimitStore> = Arc::new(Transient::default());
    let first = Api::new(&FakeShard::agreeable(), Arc::clone(&store), "").await;
    first.call("PUT /api/v1/limits/t/c", r#"{"rate": 9, "burst": 26}"#).await;
    let shard = FakeShard::agreeable();
    let second = Api::new(&shard, store, "").await;
    let asked = shard.asked();
    assert!(asked.iter().any(|asked| asked.starts_with(r#"SetChannelLimit("t", "c", Some("#)), "{asked:?}");
    assert_eq!(second.call("GET /api/v1/limits/t/c", "").await.1["burst"], 26);
    assert_eq!(second.call("POST /api/v1/limits/undo", "").await.1["limit"], Value::Null);
}

/// Fails to write.
struct Broken;

impl LimitStore for Broken {
    fn limits(&self) -> LimitStorePending<'_, Vec<(Target, Contract)>> {
        Box::pin(ready(Ok(Vec::new())))
    }
    fn limit<'a>(&'a self, _: &'a Target) -> LimitStorePending<'a, Option<Contract>> {
        Box::pin(ready(Ok(None)))
    }
    fn change<'a>(&'a self, edit: &'a Edit) -> LimitStorePending<'a, Option<(Change, Option<Change>)>> {
        Box::pin(ready(match edit.action {
            Action::Set(..) => Err(LimitStoreError::BadRow { key: "limit/x".to_owned() }),
            Action::Undo(_) | Action::Redo(_) => Ok(None),
        }))
    }
    fn history(&self) -> LimitStorePending<'_, Vec<Change>> {
        Box::pin(ready(Ok(Vec::new())))
    }
}

/// A store that another node writes to: the test sends which targets that node changed.
struct SharedStore {
    kept: Arc<Transient>,
    changed: Mutex<Option<mpsc::Receiver<Vec<Target>>>>,
}

struct Feed(mpsc::Receiver<Vec<Target>>);

impl LimitFeed for Feed {
    fn next(&mut self) -> LimitStorePending<'_, Vec<Target>> {
        Box::pin(async {
            match self.0.recv().await {
                Some(targets) => Ok(targets),
                None => std::future::pending().await,
            }
        })
    }
}

impl LimitStore for SharedStore {
    fn limits(&self) -> LimitStorePending<'_, Vec<(Target, Contract)>> {
        self.kept.limits()
    }
    fn limit<'a>(&'a self, target: &'a Target) -> LimitStorePending<'a, Option<Contract>> {
        self.kept.limit(target)
    }
    fn change<'a>(&'a self, edit: &'a Edit) -> LimitStorePending<'a, Option<(Change, Option<Change>)>> {
        self.kept.change(edit)
    }
    fn history(&self) -> LimitStorePending<'_, Vec<Change>> {
        self.kept.history()
    }
    fn follow(&self) -> LimitStorePending<'_, Option<Box<dyn LimitFeed>>> {
        let receiver = self.changed.lock().unwrap().take().expect("it is followed once");
        let feed: Box<dyn LimitFeed> = Box::new(Feed(receiver));
        Box::pin(ready(Ok(Some(feed))))
    }
}

#[tokio::test]
async fn what_another_node_changes_is_in_force_here_too() {
    let (changed, receiver) = mpsc::channel(4);
    let kept = Arc::new(Transient::default());
    let store = SharedStore { kept: Arc::clone(&kept), changed: Mutex::new(Some(receiver)) };
    let shard = FakeShard::agreeable();
    let (limits, _) = Limits::start(shard.handle(), Arc::new(store), []).await.unwrap();
    let target: Target = "orders".parse().unwrap();
    let set = |after| Edit { action: Action::Set("orders".parse().unwrap(), after), at_ms: 0, by: "other".to_owned() };
    for after in [Some(contract(7)), Some(contract(9)), None] {
        kept.change(&set(after)).await.unwrap();
        changed.send(vec![target.clone()]).await.unwrap();
        let expected = after.map(|contract| (contract, Source::Admin));
        // The task has nothing to wait for, so it is done after some turns.
        for _ in 0..1_000 {
            if limits.in_force().get(&target).copied() == expected {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(limits.in_force().get(&target).copied(), expected);
    }
    assert!(shard.asked().iter().any(|asked| asked.starts_with(r#"SetTopicLimit("orders", Some("#)));
}

#[tokio::test]
async fn a_change_that_cannot_be_stored_is_not_in_force() {
    let shard = FakeShard::agreeable();
    let api = Api::new(&shard, Arc::new(Broken), "").await;
    shard.asked();
    assert_eq!(api.call("PUT /api/v1/limits/t", r#"{"rate": 9, "burst": 26}"#).await.0, 500);
    assert_eq!(shard.asked(), Vec::<String>::new());
    assert_eq!(api.call("GET /api/v1/limits/t", "").await.0, 404);
    assert_eq!(api.call("POST /api/v1/limits/undo", "").await.0, 404);
}

#[tokio::test]
async fn problems_say_what_to_do() {
    let api = Api::of(&FakeShard::agreeable()).await;
    let long = "x".repeat(20 << 10);
    for (line, body, status, said) in [
        ("PUT /api/v1/limits/t", "{}", 400, "`rate` is missing"),
        ("PUT /api/v1/limits/t%20t", "{}", 400, "`t t` is no topic's name"),
        ("PUT /api/v1/limits/t", &long, 413, "at most 16384 bytes"),
        ("PUT /api/v1/limits/t/c", r#"{"rate":1,"burst":1,"discipline":"refuse"}"#, 400, r#"give "wait""#),
        ("POST /api/v1/topics/t/rename", "", 404, "there are pause, unpause, empty and release"),
        ("GET /api/v1/snapshot?clients=maybe", "", 400, "the parameters are"),
        ("GET /api/v1/publishers/t?seconds=0", "", 400, "the last 1 to 60 whole seconds"),
        ("GET /api/v1/publishers/t?seconds=61", "", 400, "`seconds` is 61"),
        ("GET /api/v1/publishers/t?slo_us=0", "", 400, "`slo_us` is 0; give 1 to 3600000000"),
        ("GET /api/v1/publishers/t?slo=1", "", 400, "the parameters are seconds and slo_us"),
        ("GET /api/v1/publishers/t%20t", "", 400, "`t t` is no topic's name"),
        ("POST /api/v1/snapshot", "", 405, "not for this method"),
        ("GET /nowhere", "", 404, "leads nowhere"),
    ] {
        let (got, headers, text) = api.raw(line, body.to_owned()).await;
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((got, &problem["status"]), (status, &json!(status)), "{line}: {text}");
        assert_eq!(headers["content-type"], "application/problem+json", "{line}");
        assert!(problem["detail"].as_str().unwrap().contains(said), "{line}: {text}");
        assert!(problem["title"].is_string() && problem["type"].is_string());
    }
}

#[tokio::test]
async fn without_the_token_nothing_changes() {
    let shard = FakeShard::agreeable();
    let api = Api::of(&shard).await;
    shard.asked();
    for (method, path) in [
        ("PUT", "limits/t"),
        ("DELETE", "topics/t"),
        ("POST", "topics/t/pause"),
        ("POST", "limits/undo"),
        ("PUT", "parts"),
        ("DELETE", "parts/t?revision=1"),
        ("POST", "topics/t/prepare"),
        ("POST", "publishers/t/disconnect"),
        ("POST", "drain"),
    ] {
        let request = Request::builder().method(method).uri(format!("/api/v1/{path}")).header(HOST, "localhost");
        let (head, _) = send(&api.router, request.body(r#"{"rate": 1, "burst": 1}"#.into()).unwrap()).await;
        assert_eq!((head.status().as_u16(), &head.headers()["www-authenticate"]), (401, &"Bearer".parse().unwrap()));
    }
    assert_eq!(shard.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn actions_become_requests() {
    let shard = FakeShard::agreeable();
    let api = Api::of(&shard).await;
    shard.asked();
    for (line, asked) in [
        ("POST /api/v1/topics/t/pause", r#"PauseTopic("t", Paused)"#),
        ("POST /api/v1/topics/t/unpause", r#"PauseTopic("t", Flowing)"#),
        ("POST /api/v1/topics/t/release", r#"ReleaseLine("t")"#),
        ("POST /api/v1/topics/t%23ephemeral/empty", r#"EmptyTopic("t#ephemeral")"#),
        ("DELETE /api/v1/topics/t", r#"DeleteTopic("t")"#),
        ("POST /api/v1/topics/t/channels/c/pause", r#"PauseChannel("t", "c", Paused)"#),
        ("POST /api/v1/topics/t/channels/c/empty", r#"EmptyChannel("t", "c")"#),
        ("DELETE /api/v1/topics/t/channels/c", r#"DeleteChannel("t", "c")"#),
    ] {
        assert_eq!(api.call(line, "").await.0, 204, "{line}");
        assert_eq!(shard.asked(), [asked]);
    }
    let empty = FakeShard::new(|request| match request {
        AdminRequest::SetTopicLimit(..) => Some(AdminReply::Done),
        _ => Some(AdminReply::ChannelNotFound),
    });
    let (status, problem) = Api::of(&empty).await.call("DELETE /api/v1/topics/t/channels/c", "").await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("`t/c`")), (404, true));
}

#[tokio::test]
async fn publishers_are_listed_as_the_shard_has_them() {
    let shard = FakeShard::new(|request| match request {
        AdminRequest::Publishers(scope) if scope.topic.as_str() == "t" => {
            let second = SecondReport { start_us: 7_000_000, messages: 3, bytes: 30, backlog_max: 3 };
            let publisher = PublisherReport {
                identity: "c@h#2".to_owned(),
                messages: 3,
                batches: 1,
                rate_per_s: 3.0,
                ..PublisherReport::default()
            };
            let report = PublishersReport {
                topic: "t".to_owned(),
                now_us: 8_000_001,
                seconds: vec![second],
                publishers: vec![publisher],
                others: OthersReport { publishers: 1, messages: 4 },
                delay: DelayReport {
                    count: 9,
                    over_slo: scope.slo_ns.unwrap_or(0),
                    e2e_p99_us: 1.5,
                    access_p99_us: 0.0,
                },
            };
            Some(AdminReply::Publishers(Box::new(report)))
        }
        AdminRequest::Publishers(_) => Some(AdminReply::TopicNotFound),
        _ => Some(AdminReply::Done),
    });
    let api = Api::of(&shard).await;
    shard.asked();
    let expected = json!({
        "topic": "t",
        "now_us": 8_000_001,
        "seconds": [{"start_us": 7_000_000, "messages": 3, "bytes": 30, "backlog_max": 3}],
        "publishers": [{"identity": "c@h#2", "correlation": null, "remote": "", "client_id": "", "hostname": "",
            "messages": 3, "batches": 1, "rate_per_s": 3.0, "connected_s": 0}],
        "others": {"publishers": 1, "messages": 4},
        "delay": {"count": 9, "over_slo": 250_000, "e2e_p99_us": 1.5, "access_p99_us": 0.0},
    });
    assert_eq!(api.call("GET /api/v1/publishers/t?seconds=60&slo_us=250", "").await, (200, expected));
    let whole = api.call("GET /api/v1/publishers/t", "").await.1;
    assert_eq!(whole["delay"]["over_slo"], 0);
    let scope =
        |seconds, slo| format!(r#"Publishers(PublishersScope {{ topic: "t", seconds: {seconds}, slo_ns: {slo} }})"#);
    assert_eq!(shard.asked(), [scope(60, "Some(250000)"), scope(10, "None")]);
    let (status, problem) = api.call("GET /api/v1/publishers/u", "").await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("`u` does not exist")), (404, true));
    assert_eq!(Api::of(&FakeShard::new(|_| None)).await.call("GET /api/v1/publishers/t", "").await.0, 503);
}

fn busy() -> ShardSnapshot {
    let part = PartSnapshot { rate_per_s: 3_000.0, burst: 8, lapses_in_ms: Some(2_500), ..PartSnapshot::default() };
    let part = Some(part);
    let limit = LimitSnapshot { rate_per_s: 11_000.0, burst: 26, tokens: 3.5, part, ..LimitSnapshot::default() };
    let delay = DelaySnapshot { count: 1, p99: 1_500.0, max: 2_000.0, ..DelaySnapshot::default() };
    let channel =
        ChannelSnapshot { name: "c".to_owned(), depth: 4, end_to_end_us: delay, ..ChannelSnapshot::default() };
    let topic = TopicSnapshot {
        name: "b".to_owned(),
        admitted_total: 10,
        delayed_total: 3,
        refused_total: 2,
        depth: 1,
        limit: Some(limit),
        channels: vec![channel],
        ..TopicSnapshot::default()
    };
    let first = TopicSnapshot { name: "a".to_owned(), ..TopicSnapshot::default() };
    ShardSnapshot { shard: 3, topics: vec![topic, first], connections: 7, ..ShardSnapshot::default() }
}

fn broker_of(snapshot: ShardSnapshot) -> Arc<FakeShard> {
    FakeShard::new(move |request| {
        Some(match request {
            AdminRequest::Snapshot(_) => AdminReply::Snapshot(Box::new(snapshot.clone())),
            _ => AdminReply::Done,
        })
    })
}

#[tokio::test]
async fn a_snapshot_joins_the_shards() {
    let api = Api::new(&broker_of(busy()), Arc::new(Transient::default()), "nsqlookupd_tcp_addresses = ['a:1']").await;
    let (status, snapshot) = api.call("GET /api/v1/snapshot", "").await;
    assert_eq!(status, 200);
    let keys: Vec<&str> = snapshot.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "connections",
        "durability",
        "memory_bytes",
        "node",
        "now_ms",
        "phase",
        "shards",
        "start_time_s",
        "topics",
        "uptime_s",
        "version",
        "warnings",
    ];
    assert_eq!(keys, expected);
    assert_eq!((&snapshot["topics"][0]["name"], &snapshot["topics"][1]["name"]), (&json!("a"), &json!("b")));
    assert_eq!(snapshot["shards"], json!([{"shard": 3, "connections": 7, "log_error": null}]));
    assert_eq!((&snapshot["connections"], &snapshot["durability"]), (&json!(7), &json!("memory")));
    assert!(snapshot["memory_bytes"].as_u64().unwrap() > 0 && snapshot["now_ms"].as_i64().unwrap() > 0);
    assert!(snapshot["warnings"][0].as_str().unwrap().contains("admits n times its rate"), "{snapshot}");
    let one = api.call("GET /api/v1/snapshot?topic=a&clients=true", "").await.1;
    assert_eq!(one["topics"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn health_and_readiness_follow_the_broker() {
    let api = Api::of(&FakeShard::agreeable()).await;
    assert_eq!((api.call("GET /readyz", "").await.0, api.call("GET /healthz", "").await.0), (503, 200));
    api.phase.send_replace(Phase::Serving);
    assert_eq!(api.call("GET /readyz", "").await.0, 200);
    api.phase.send_replace(Phase::Draining);
    let (status, not_ready) = api.call("GET /readyz", "").await;
    assert_eq!((status, not_ready["detail"].as_str().unwrap().starts_with("draining")), (503, true));
    assert_eq!(api.call("GET /healthz", "").await, (200, json!({"status": "draining"})));
    let full = ShardSnapshot { log_error: Some("disk full".to_owned()), ..ShardSnapshot::default() };
    let broken = Api::of(&broker_of(full)).await;
    let (status, problem) = broken.call("GET /healthz", "").await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("disk full")), (503, true));
    let gone = Api::of(&FakeShard::new(|_| None)).await;
    assert_eq!(gone.call("GET /healthz", "").await.0, 503);
}

#[tokio::test]
async fn metrics_tell_each_topic_and_channel() {
    let (status, headers, page) = Api::of(&broker_of(busy())).await.raw("GET /metrics", "").await;
    assert_eq!((status, &headers["content-type"]), (200, &"text/plain; version=0.0.4; charset=utf-8".parse().unwrap()));
    for line in [
        "tidegate_broker_topic_depth_messages{topic=\"b\"} 1",
        "tidegate_broker_channel_depth_messages{topic=\"b\",channel=\"c\"} 4",
        "tidegate_broker_decisions_total{topic=\"b\",decision=\"allow\"} 7",
        "tidegate_broker_decisions_total{topic=\"b\",decision=\"delay\"} 3",
        "tidegate_broker_decisions_total{topic=\"b\",decision=\"refuse\"} 2",
        "tidegate_broker_tokens_available{topic=\"b\"} 3.5",
        "tidegate_broker_part_tokens_per_second{topic=\"b\"} 3000",
        "tidegate_broker_part_burst_tokens{topic=\"b\"} 8",
        "tidegate_broker_part_lease_seconds{topic=\"b\"} 2.5",
        "tidegate_broker_draining_bool 0",
        "tidegate_broker_end_to_end_delay_seconds{topic=\"b\",channel=\"c\",quantile=\"0.99\"} 0.0015",
        "tidegate_broker_connections 7",
        "tidegate_broker_broken_logs 0",
        "tidegate_series_dropped_total 0",
        "# TYPE tidegate_broker_offered_messages_total counter",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
    }
    let mut names: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "no metric stands twice");
    assert!(!page.contains("access_delay"), "a delay that nobody had is not shown");
}

#[tokio::test]
async fn the_dropped_series_are_counted_over_pages() {
    let topics = (0..1_001).map(|i| TopicSnapshot { name: format!("t{i:04}"), ..TopicSnapshot::default() }).collect();
    let api = Api::of(&broker_of(ShardSnapshot { topics, ..ShardSnapshot::default() })).await;
    let dropped = async || {
        let page = api.raw("GET /metrics", "").await.2;
        let line = page.lines().find_map(|line| line.strip_prefix("tidegate_series_dropped_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let first = dropped().await;
    assert!(first > 0);
    assert_eq!(dropped().await, 2 * first);
}

#[tokio::test]
async fn the_last_trace_is_handed_out() {
    let folder = std::env::temp_dir().join(format!("tidegate-admin-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("t.trace"), "a,b\n1,2\n").unwrap();
    let options = format!("data_path = {:?}", folder.display().to_string());
    let api = Api::new(&FakeShard::agreeable(), Arc::new(Transient::default()), &options).await;
    let (status, headers, text) = api.raw("GET /api/v1/record/t", "").await;
    assert_eq!((status, headers["content-type"].to_str().unwrap(), text.as_str()), (200, "text/csv", "a,b\n1,2\n"));
    let (status, problem) = api.call("GET /api/v1/record/other", "").await;
    assert_eq!((status, &problem["detail"]), (404, &json!("`other` has no trace; POST to this path begins one")));
    assert_eq!(api.call("GET /api/v1/record/a%2Fb", "").await.0, 400);
    std::fs::remove_dir_all(folder).unwrap();
}

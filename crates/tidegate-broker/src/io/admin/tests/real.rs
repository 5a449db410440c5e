//! The API of a broker that runs, with NSQ clients over TCP.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_wire::nsq::client::{self, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::Address;
use crate::io::broker::{Broker, Extras};
use crate::io::http::client::{HttpClient, Trust};

mod lending;

/// Whatever is waited for happens within this; far more than it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker of two shards with its API, in a folder of this test's own.
struct Real {
    api: Api,
    broker: Broker,
    folder: PathBuf,
}

impl Real {
    async fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-admin-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self::start_in(folder).await
    }

    /// On what an earlier run left in `folder`.
    async fn start_in(folder: PathBuf) -> Self {
        let path = folder.display();
        let config = config(&format!("data_path = '{path}'\ntcp_address = '127.0.0.1:0'\nshards = 2"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let http = HttpClient::new(PATIENCE, PATIENCE, Trust::Configured(Box::new(tls))).unwrap();
        let runtime = tokio::runtime::Handle::current();
        let extras = Extras { limits: Vec::new(), http, tls: None, runtime };
        let starting = Arc::clone(&config);
        let broker = tokio::task::spawn_blocking(move || Broker::start(&starting, extras)).await.unwrap().unwrap();
        let api = Api::on(broker.handle(), Arc::new(Transient::default()), config).await;
        api.phase.send_replace(Phase::Serving);
        Self { api, broker, folder }
    }

    async fn stop(self) {
        self.broker.stop().await.unwrap();
        std::fs::remove_dir_all(&self.folder).unwrap();
    }

    /// An NSQ connection that has said who it is.
    async fn connect(&self, client_id: &str) -> Nsq {
        let Address::Tcp { host, port } = self.broker.tcp_address() else { panic!("it listens on TCP") };
        let stream = TcpStream::connect((host.as_str(), *port)).await.unwrap();
        let mut nsq = Nsq { stream, unread: Vec::new() };
        let mut hello = client::MAGIC.to_vec();
        client::put_identify(&mut hello, json!({"client_id": client_id, "hostname": "far"}).to_string().as_bytes());
        nsq.send(&hello).await;
        assert_eq!(nsq.reply().await.as_deref(), Some("OK"));
        nsq
    }

    async fn publisher(&self, client_id: &str, topic: &str) -> Nsq {
        let mut nsq = self.connect(client_id).await;
        assert_eq!(nsq.publish(topic).await.as_deref(), Some("OK"));
        nsq
    }
}

struct Nsq {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Nsq {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn publish(&mut self, topic: &str) -> Option<String> {
        let mut bytes = Vec::new();
        client::put_pub(&mut bytes, topic, b"hello");
        self.send(&bytes).await;
        self.reply().await
    }

    /// The next answer or message; `None` at the end of the connection.
    async fn reply(&mut self) -> Option<String> {
        loop {
            if let Some((frame, used)) = client::frame(&self.unread, 1 << 20).unwrap() {
                let text = match frame {
                    Frame::Response(text) | Frame::Error(text) | Frame::Message(_, text) => text,
                };
                let text = String::from_utf8(text.to_vec()).unwrap();
                self.unread.drain(..used);
                return Some(text);
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await.unwrap();
            if read.unwrap() == 0 {
                return None;
            }
        }
    }
}

fn order(revision: u64, lease_ms: u64, rate: &str, burst: u64) -> String {
    let parts = json!([
        {"topic": "orders", "rate_per_s": rate, "burst": burst},
        {"topic": "clicks", "rate_per_s": 10, "burst": 1},
    ]);
    let until_us = tidegate_runtime::clock::now().as_nanos() / 1_000 + 1_000 * lease_ms;
    json!({"revision": revision, "lease_ms": lease_ms, "until_us": until_us, "on_lapse": "closed", "parts": parts})
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_rule_beside_limits_that_people_set() {
    let real = Real::start("parts").await;
    let api = &real.api;
    let set = api.call("PUT /api/v1/limits/orders", r#"{"rate": "1k/s", "burst": 26}"#).await.1;
    assert_eq!(set["part"], Value::Null);
    let publisher = real.publisher("ada", "orders").await;

    let (status, answer) = api.call("PUT /api/v1/parts", order(7, 60_000, "2.5/s", 5)).await;
    assert_eq!((status, &answer["revision"]), (200, &json!(7)), "{answer}");
    assert!(answer["now_us"].as_u64().unwrap() > 0);
    let in_force = &answer["in_force"];
    assert_eq!((&in_force[0]["topic"], &in_force[1]["topic"]), (&json!("clicks"), &json!("orders")));
    let part = &in_force[1];
    assert_eq!((&part["rate"], &part["burst"], &part["unit"]), (&json!("2.5/s"), &json!(5), &json!("messages")));
    assert_eq!((&part["revision"], &part["on_lapse"]), (&json!(7), &json!("closed")));
    assert!((59_000..=60_000).contains(&part["lapses_in_ms"].as_u64().unwrap()));
    assert_eq!(part.get("ordered"), None);

    let all = api.call("GET /api/v1/parts", "").await.1;
    assert_eq!(all["parts"].as_array().unwrap().len(), 2);
    let snapshot = api.call("GET /api/v1/snapshot?topic=orders", "").await.1;
    let limit = &snapshot["topics"][0]["limit"];
    assert_eq!((&limit["rate_per_s"], &limit["part"]["burst"]), (&json!(1_000.0), &json!(5)));

    // A person's edit says that a part rules, and cuts it.
    let set = api.call("PUT /api/v1/limits/orders", r#"{"rate": "1k/s", "burst": 3}"#).await.1;
    assert_eq!((&set["limit"]["burst"], &set["part"]["burst"]), (&json!(3), &json!(3)));
    assert_eq!(set["part"]["ordered"], json!({"rate": "2.5/s", "burst": 5}));
    let undone = api.call("POST /api/v1/limits/undo", "").await.1;
    assert_eq!((&undone["limit"]["burst"], &undone["part"]["burst"]), (&json!(26), &json!(5)));

    for (line, body, status, kind) in [
        ("PUT /api/v1/parts", order(6, 60_000, "2.5/s", 5), 409, "stale-revision"),
        ("PUT /api/v1/parts", order(7, 60_000, "2.5/s", 6), 409, "other-content"),
        ("PUT /api/v1/parts", order(7, 99, "2.5/s", 5), 400, "bad-request"),
        ("DELETE /api/v1/parts/orders?revision=6", String::new(), 409, "stale-revision"),
        ("DELETE /api/v1/parts/orders", String::new(), 400, "bad-request"),
        ("DELETE /api/v1/parts/none?revision=9", String::new(), 404, "not-found"),
    ] {
        let (got, problem) = api.call(line, body).await;
        let expected = json!(format!("urn:tidegate:problem:{kind}"));
        assert_eq!((got, &problem["type"]), (status, &expected), "{line}: {problem}");
    }
    assert_eq!(api.call("PUT /api/v1/parts", order(7, 60_000, "2.5/s", 5)).await.0, 200, "a renewal");
    let (status, removed) = api.call("DELETE /api/v1/parts/orders?revision=8", "").await;
    assert_eq!((status, &removed["removed"]["revision"]), (200, &json!(7)));
    assert_eq!(api.call("GET /api/v1/parts", "").await.1["parts"].as_array().unwrap().len(), 1);
    drop(publisher);
    real.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_and_its_undo_are_the_persons_alone_while_parts_move() {
    let real = Real::start("edited").await;
    let api = &real.api;
    api.call("PUT /api/v1/limits/orders", r#"{"rate": "1k/s", "burst": 26}"#).await;
    let _publisher = real.publisher("ada", "orders").await;
    let mut in_force = Vec::new();
    for revision in 1..=30 {
        // A part that moves each second, with an edit and its undo in between.
        let moved = api.call("PUT /api/v1/parts", order(revision, 60_000, "2.5/s", 4 + revision % 3)).await;
        assert_eq!(moved.0, 200, "{}", moved.1);
        in_force.push(moved.1["in_force"][1]["burst"].as_u64().unwrap());
        match revision {
            10 => assert_eq!(api.call("PUT /api/v1/limits/orders", r#"{"rate": "1k/s", "burst": 3}"#).await.0, 200),
            20 => assert_eq!(api.call("POST /api/v1/limits/undo", "").await.1["limit"]["burst"], 26),
            _ => {}
        }
    }
    let expected = (1..=30).map(|revision| if (11..=20).contains(&revision) { 3 } else { 4 + revision % 3 });
    assert_eq!(in_force, expected.collect::<Vec<u64>>(), "the lesser rules at once");
    let history = api.call("GET /api/v1/limits/history", "").await.1;
    assert_eq!(history.as_array().unwrap().len(), 3, "no part is in it: {history}");
    real.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_not_renewed_lapses() {
    let real = Real::start("lapse").await;
    assert_eq!(real.api.call("PUT /api/v1/parts", order(1, 100, "1k/s", 5)).await.0, 200);
    let lapsed = async {
        loop {
            let parts = real.api.call("GET /api/v1/parts", "").await.1;
            if parts["parts"][1]["lapses_in_ms"] == Value::Null {
                return parts["parts"][1].clone();
            }
        }
    };
    let part = tokio::time::timeout(PATIENCE, lapsed).await.unwrap();
    assert_eq!((&part["topic"], &part["rate"]), (&json!("orders"), &json!("0/s")), "nothing passes: {part}");
    assert_eq!(part["ordered"], json!({"rate": "1k/s", "burst": 5}));
    let _publisher = real.publisher("ada", "orders").await;
    let mut consumer = real.connect("bob").await;
    consumer.send(b"SUB orders c\nRDY 1\n").await;
    assert_eq!(consumer.reply().await.as_deref(), Some("OK"));
    let snapshot = real.api.call("GET /api/v1/snapshot?topic=orders", "").await.1;
    assert_eq!(
        (&snapshot["topics"][0]["waiting"], &snapshot["topics"][0]["limit"]["source"]),
        (&json!(1), &json!("part"))
    );
    assert_eq!(real.api.call("PUT /api/v1/parts", order(1, 60_000, "1k/s", 5)).await.0, 200);
    assert_eq!(consumer.reply().await.as_deref(), Some("hello"), "it is renewed");
    real.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_are_let_go_by_their_identities() {
    let real = Real::start("disconnect").await;
    let [mut ada, mut bob] = [real.publisher("ada", "orders").await, real.publisher("bob", "orders").await];
    let line = "POST /api/v1/publishers/orders/disconnect";
    let (status, answer) = real.api.call(line, r#"{"identities": ["ada@far", "eve@far"]}"#).await;
    assert_eq!((status, answer), (200, json!({"disconnected": ["ada@far"], "unknown": ["eve@far"]})));
    assert_eq!(ada.reply().await, None);
    assert_eq!(bob.publish("orders").await.as_deref(), Some("OK"));
    let many: Vec<String> = (0..1_001).map(|number| format!("{number:0100}")).collect();
    let (status, problem) = real.api.call(line, json!({"identities": many}).to_string()).await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("give 1 to 1000")), (400, true), "{problem}");
    let (status, answer) = real.api.call(line, json!({"identities": many[..1_000]}).to_string()).await;
    assert_eq!((status, answer["unknown"].as_array().unwrap().len()), (200, 1_000));
    real.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_prepared_until_its_channels_have_consumers() {
    let real = Real::start("prepare").await;
    let line = "/api/v1/topics/orders/prepare";
    assert_eq!(real.api.call(&format!("GET {line}"), "").await.0, 404);
    let answer = real.api.call(&format!("POST {line}"), r#"{"channels": ["a", "b"]}"#).await.1;
    assert_eq!(answer, json!({"ready": false, "missing": ["a", "b"], "started": true, "draining": false}));
    let mut consumers = Vec::new();
    for channel in ["a", "b"] {
        let mut consumer = real.connect(channel).await;
        consumer.send(format!("SUB orders {channel}\n").as_bytes()).await;
        assert_eq!(consumer.reply().await.as_deref(), Some("OK"));
        consumers.push(consumer);
    }
    let answer = real.api.call(&format!("GET {line}?channels=a,b"), "").await.1;
    assert_eq!((&answer["ready"], &answer["missing"]), (&json!(true), &json!([])));
    let answer = real.api.call(&format!("POST {line}"), r#"{"channels": ["a", "new"]}"#).await.1;
    assert_eq!((&answer["ready"], &answer["missing"]), (&json!(false), &json!(["new"])));
    for (body, said) in [("{", "send {\"channels\""), (r#"{"channels": ["b c"]}"#, "`b c` is no channel's name")] {
        let (status, problem) = real.api.call(&format!("POST {line}"), body).await;
        assert_eq!((status, problem["detail"].as_str().unwrap().contains(said)), (400, true), "{problem}");
    }
    real.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_says_so_and_refuses_new_publishers() {
    let real = Real::start("drain").await;
    let api = &real.api;
    let expected = json!({"name": "box", "draining": false, "phase": "serving", "nsq_address": "box:4150",
        "shards": 2, "mcap_per_s": null, "lend_addresses": real.broker.handle().lend_addresses()});
    assert_eq!(api.call("GET /api/v1/node", "").await, (200, expected));
    let mut old = real.publisher("old", "orders").await;
    let mut idle = real.connect("idle").await;
    assert_eq!(api.call("POST /api/v1/drain", r#"{"draining": true}"#).await.1["draining"], json!(true));
    assert_eq!(api.call("GET /api/v1/node", "").await.1["draining"], json!(true));
    let (status, problem) = api.call("GET /readyz", "").await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("no new publishers")), (503, true));
    let warnings = api.call("GET /api/v1/snapshot", "").await.1["warnings"].to_string();
    assert!(warnings.contains("The node is draining"), "{warnings}");
    assert!(api.raw("GET /metrics", "").await.2.contains("\ntidegate_broker_draining_bool 1\n"));
    assert_eq!(api.call("GET /api/v1/topics/orders/prepare", "").await.1["ready"], json!(false));

    assert_eq!(old.publish("clicks").await.as_deref(), Some("OK"));
    assert!(idle.publish("orders").await.unwrap().starts_with("E_PUB_FAILED PUB failed draining"));
    assert_eq!(idle.reply().await, None);
    assert_eq!(api.call("POST /api/v1/drain", r#"{"draining": false}"#).await.1["draining"], json!(false));
    real.publisher("new", "orders").await;
    assert_eq!(api.call("POST /api/v1/drain", "{}").await.0, 400);
    real.stop().await;
}

//! A running hop between a producer, two brokers of a few lines, and a control plane of a few lines.
#![cfg(feature = "io")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_control::io::hop::Steer;
use tidegate_control::io::hop::config::{Config, Section};
use tidegate_runtime::config::Document;
use tidegate_wire::nsq::client::{self, Frame};
use tidegate_wire::nsq::command::{self, Verb};
use tidegate_wire::nsq::frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What takes longer is not coming.
const PATIENCE: Duration = Duration::from_secs(30);

/// A broker: what it was published, in order, and who said so.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<(String, String)>>>);

impl Heard {
    fn bodies(&self) -> Vec<String> {
        self.0.lock().expect("no holder panics").iter().map(|(_, body)| body.clone()).collect()
    }
}

/// Serves on a port of its own until the task ends.
async fn broker() -> (SocketAddr, Heard, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("a socket has an address");
    let heard = Heard::default();
    let all = heard.clone();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, all.clone()));
        }
    });
    (address, heard, task)
}

async fn serve(mut stream: TcpStream, heard: Heard) {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    let mut publisher = String::new();
    let mut is_greeted = false;
    loop {
        let mut piece = [0; 4096];
        let Ok(bytes @ 1..) = stream.read(&mut piece).await else { return };
        input.extend_from_slice(&piece[..bytes]);
        if !is_greeted && input.len() >= 4 {
            assert_eq!(input.drain(..4).collect::<Vec<_>>(), client::MAGIC);
            is_greeted = true;
        }
        while let Some((verb, body, used)) = first(&input) {
            match verb {
                Verb::Nop => {}
                Verb::Identify => {
                    let said: Value = serde_json::from_slice(&body).expect("JSON");
                    said["tidegate_publisher"].as_str().expect("the hop adds it").clone_into(&mut publisher);
                    frame::put_ok(&mut out);
                }
                _ => {
                    let body = String::from_utf8(body).expect("text");
                    heard.0.lock().expect("no holder panics").push((publisher.clone(), body));
                    frame::put_ok(&mut out);
                }
            }
            input.drain(..used);
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        out.clear();
    }
}

/// The first command: its verb, its body, its bytes.
fn first(input: &[u8]) -> Option<(Verb, Vec<u8>, usize)> {
    let (line, used) = command::line(input).expect("short lines")?;
    if line.verb == Verb::Nop {
        return Some((line.verb, Vec::new(), used));
    }
    let length = usize::try_from(command::length(&input[used..])?).expect("a size");
    let body = input.get(used + 4..used + 4 + length)?;
    Some((line.verb, body.to_vec(), used + 4 + length))
}

/// A control plane with the placement of one topic.
#[derive(Clone)]
struct Control {
    placement: watch::Sender<Value>,
}

#[derive(Deserialize)]
struct Asked {
    after: u64,
    wait_ms: u64,
}

async fn placement(Path(topic): Path<String>, Query(asked): Query<Asked>, State(control): State<Control>) -> Response {
    if topic != "orders#ephemeral" {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut placement = control.placement.subscribe();
    let news = placement.wait_for(|placement| placement["revision"].as_u64().expect("a revision") > asked.after);
    let wait = Duration::from_millis(asked.wait_ms).max(Duration::from_millis(1));
    let found = timeout(wait, news).await.map(|news| news.expect("its sender lives").clone());
    found.map_or_else(|_| StatusCode::NO_CONTENT.into_response(), |news| Json(news).into_response())
}

async fn control(first: Value) -> (String, Control, JoinHandle<()>) {
    let control = Control { placement: watch::Sender::new(first) };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("a socket has an address"));
    let router = Router::new().route("/api/v1/placement/{topic}", get(placement)).with_state(control.clone());
    let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    (address, control, task)
}

struct Producer {
    stream: TcpStream,
    input: Vec<u8>,
    sent: usize,
}

impl Producer {
    async fn connect(address: SocketAddr) -> Self {
        let mut producer =
            Self { stream: TcpStream::connect(address).await.expect("it listens"), input: Vec::new(), sent: 0 };
        let mut bytes = client::MAGIC.to_vec();
        client::put_identify(&mut bytes, br#"{"client_id":"svc","hostname":"h"}"#);
        producer.stream.write_all(&bytes).await.expect("the hop reads");
        assert_eq!(producer.told().await, "OK");
        producer
    }

    async fn publish(&mut self, topic: &str) -> String {
        let mut bytes = Vec::new();
        client::put_pub(&mut bytes, topic, self.sent.to_string().as_bytes());
        self.sent += 1;
        self.stream.write_all(&bytes).await.expect("the hop reads");
        self.told().await
    }

    async fn told(&mut self) -> String {
        loop {
            if let Some((frame, used)) = client::frame(&self.input, 1 << 20).expect("frames") {
                let (Frame::Response(text) | Frame::Error(text)) = frame else { panic!("no message") };
                let text = String::from_utf8(text.to_vec()).expect("text");
                self.input.drain(..used);
                return text;
            }
            let mut piece = [0; 4096];
            let read = timeout(PATIENCE, self.stream.read(&mut piece)).await.expect("an answer in time");
            let bytes = read.expect("the connection holds");
            assert!(bytes > 0, "the hop closed the connection");
            self.input.extend_from_slice(&piece[..bytes]);
        }
    }
}

async fn steer(brokers: &[SocketAddr], control: &str) -> Steer {
    steer_with(brokers, control, "").await
}

/// With `more` keys of its section.
async fn steer_with(brokers: &[SocketAddr], control: &str, more: &str) -> Steer {
    #[derive(Deserialize)]
    struct File {
        steer: Section,
    }
    let names = ["a", "b"].into_iter().zip(brokers);
    let nodes: Vec<String> = names.map(|(name, at)| format!("{{ name = \"{name}\", nsq = \"{at}\" }}")).collect();
    let text = format!(
        "[steer]\nlisten = \"127.0.0.1:0\"\nthreads = 1\ncontrol = \"{control}\"\nnodes = [ {} ]\n{more}\n",
        nodes.join(", ")
    );
    let document = Document::new("t.toml", text);
    let File { steer } = document.parse().expect("it is right");
    let config = Config::from_section(steer, &document, 1).expect("it is right");
    Steer::start(config, Some("s3cret")).await.expect("it starts")
}

fn placed(revision: u64, brokers: &[SocketAddr], at: usize) -> Value {
    let names = ["a", "b"].into_iter().zip(brokers);
    let nodes: Vec<Value> = names.map(|(name, at)| json!({ "name": name, "nsq": at.to_string() })).collect();
    json!({ "topic": "orders#ephemeral", "revision": revision, "nodes": nodes, "publishers": { "svc@h": at } })
}

#[tokio::test]
async fn a_hop_follows_the_control_plane_and_keeps_the_last_placement() {
    let (a, b) = (broker().await, broker().await);
    let brokers = [a.0, b.0];
    let (address, control, serving) = control(placed(1, &brokers, 0)).await;
    let steer = steer(&brokers, &address).await;
    let mut producer = Producer::connect(steer.address()).await;
    for _ in 0..3 {
        assert_eq!(producer.publish("orders#ephemeral").await, "OK");
    }
    assert_eq!((a.1.bodies(), b.1.bodies()), (["0", "1", "2"].map(str::to_owned).to_vec(), vec![]));

    control.placement.send_replace(placed(2, &brokers, 1));
    let is_there = async {
        while b.1.bodies().is_empty() {
            assert_eq!(producer.publish("orders#ephemeral").await, "OK");
        }
    };
    timeout(PATIENCE, is_there).await.expect("the topic moves");
    assert_eq!(b.1.0.lock().unwrap()[0].0, "svc@h");

    // Without the control plane it stays where it is; a publisher that comes then goes there too.
    serving.abort();
    let before = b.1.bodies().len();
    let a_before = a.1.bodies().len();
    assert_eq!(producer.publish("orders#ephemeral").await, "OK");
    drop(producer);
    let is_free = async {
        loop {
            let mut again = Producer::connect(steer.address()).await;
            assert_eq!(again.publish("orders#ephemeral").await, "OK");
            // The name is free when the hop has seen that the first connection is gone.
            if b.1.0.lock().unwrap().last().is_some_and(|(publisher, _)| publisher == "svc@h") {
                return;
            }
        }
    };
    timeout(PATIENCE, is_free).await.expect("the name is given back");
    assert!(b.1.bodies().len() > before + 1);
    assert_eq!(a.1.bodies().len(), a_before + others_at(&a.1));
    assert!(timeout(PATIENCE, steer.drain()).await.expect("it ends"));
}

/// Publishes of connections that had to take another name, which the placement does not know.
fn others_at(broker: &Heard) -> usize {
    broker.0.lock().expect("no holder panics").iter().filter(|(publisher, _)| publisher != "svc@h").count()
}

#[tokio::test]
async fn a_topic_without_a_placement_goes_to_the_nodes_of_the_configuration() {
    let (a, b) = (broker().await, broker().await);
    let brokers = [a.0, b.0];
    let (address, _control, _serving) = control(placed(1, &brokers, 0)).await;
    let steer = steer(&brokers, &address).await;
    let mut producer = Producer::connect(steer.address()).await;
    for _ in 0..3 {
        assert_eq!(producer.publish("unknown").await, "OK");
    }
    let all = (a.1.bodies().len(), b.1.bodies().len());
    assert!(all == (3, 0) || all == (0, 3), "one publisher goes to one broker: {all:?}");
    // The same when nobody can be asked.
    let steer = self::steer(&brokers, "http://127.0.0.1:1").await;
    let mut producer = Producer::connect(steer.address()).await;
    assert_eq!(producer.publish("orders").await, "OK");
}

#[tokio::test]
async fn a_broker_that_goes_is_replaced_by_another_one() {
    let (a, b) = (broker().await, broker().await);
    let brokers = [a.0, b.0];
    let (address, _control, _serving) = control(placed(1, &brokers, 0)).await;
    let steer = steer(&brokers, &address).await;
    let mut producer = Producer::connect(steer.address()).await;
    assert_eq!(producer.publish("orders#ephemeral").await, "OK");
    a.2.abort();
    let is_there = async {
        while b.1.bodies().is_empty() {
            let told = producer.publish("orders#ephemeral").await;
            assert!(told == "OK" || told.starts_with("E_PUB_FAILED PUB failed"), "{told}");
        }
    };
    timeout(PATIENCE, is_there).await.expect("the topic goes elsewhere");
    let last = (producer.sent - 1).to_string();
    assert_eq!(b.1.bodies(), [last], "nothing that failed was sent again");
    let mut other = Producer::connect(steer.address()).await;
    assert_eq!(other.publish("orders#ephemeral").await, "OK");
}

/// Its place would be lost for ever: the answers that it does not read never leave.
#[tokio::test]
async fn a_producer_that_reads_nothing_gives_its_place_up_when_its_connection_ends() {
    let a = broker().await;
    // The topic's broker cannot be reached: each publish is answered with an error at once.
    let nowhere = "127.0.0.1:1".parse().expect("an address");
    let (address, _control, _serving) = control(placed(1, &[nowhere], 0)).await;
    let steer = steer_with(&[a.0], &address, "max_producers = 1").await;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut deaf = socket.connect(steer.address()).await.expect("it listens");
    let mut bytes = client::MAGIC.to_vec();
    client::put_identify(&mut bytes, br#"{"client_id":"deaf","hostname":"h","heartbeat_interval":1000}"#);
    for _ in 0..1_000 {
        client::put_pub(&mut bytes, "orders#ephemeral", b"x");
    }
    // Until the hop reads no more, since its answers are not taken.
    while let Ok(sent) = timeout(Duration::from_secs(1), deaf.write_all(&bytes)).await {
        sent.expect("it ends the connection later than that");
        bytes.clear();
        for _ in 0..20_000 {
            client::put_pub(&mut bytes, "orders#ephemeral", b"x");
        }
    }
    let is_free = async {
        loop {
            let mut other = TcpStream::connect(steer.address()).await.expect("it listens");
            let mut bytes = client::MAGIC.to_vec();
            client::put_pub(&mut bytes, "unknown", b"x");
            let mut answer = [0; 10];
            let sent = other.write_all(&bytes).await;
            if sent.is_ok() && other.read_exact(&mut answer).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, is_free).await.expect("the place is free again");
    drop(deaf);
}

//! Against daemons that this test plays.

use std::sync::Arc;

use axum::Router;
use axum::http::Uri;
use tokio::io::Lines;
use tokio::net::{TcpListener, tcp};

use super::*;
use crate::io::http::client::Trust;
use crate::io::http::serve::{self, Bounds};
use crate::io::http::tests::FakeShard;

/// An nsqlookupd's TCP side.
struct Daemon {
    listener: TcpListener,
    http: String,
}

/// A connection that has said who it is.
struct Accepted {
    lines: Lines<BufReader<tcp::OwnedReadHalf>>,
    answers: tcp::OwnedWriteHalf,
}

impl Daemon {
    /// Its HTTP side answers every question with `channels`.
    async fn new(channels: &'static str) -> Self {
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = http.local_addr().unwrap().to_string();
        let router = Router::new().fallback(move |uri: Uri| async move {
            assert_eq!(uri.to_string(), "/channels?topic=t");
            channels
        });
        let listener = serve::Listener::Tcp(http);
        tokio::spawn(serve::serve(listener, None, router, Bounds::default(), std::future::pending()));
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), http: address }
    }

    fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    async fn accept(&self) -> Accepted {
        let (stream, _) = self.listener.accept().await.unwrap();
        let (reader, mut answers) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let mut magic = [0; 13];
        reader.read_exact(&mut magic).await.unwrap();
        assert_eq!(&magic, b"  V1IDENTIFY\n");
        let mut identity = vec![0; reader.read_u32().await.unwrap() as usize];
        reader.read_exact(&mut identity).await.unwrap();
        let expected =
            r#"{"broadcast_address":"b.example","tcp_port":4150,"http_port":4151,"hostname":"box","version":"1.3.0"}"#;
        assert_eq!(identity, expected.as_bytes());
        let (host, port) = self.http.split_once(':').unwrap();
        answer(&mut answers, &format!(r#"{{"tcp_port":1,"http_port":{port},"broadcast_address":"{host}"}}"#)).await;
        Accepted { lines: reader.lines(), answers }
    }
}

impl Accepted {
    /// The next command, which is told `OK`.
    async fn next(&mut self) -> String {
        let line = self.lines.next_line().await.unwrap().unwrap();
        answer(&mut self.answers, "OK").await;
        line
    }
}

async fn answer(to: &mut tcp::OwnedWriteHalf, text: &str) {
    to.write_u32(text.len().try_into().unwrap()).await.unwrap();
    to.write_all(text.as_bytes()).await.unwrap();
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn channel(name: &str) -> ChannelName {
    ChannelName::new(name).unwrap()
}

/// Patient, except between attempts and where a test waits for the opposite.
const PATIENT: Patience = Patience {
    answer: Duration::from_mins(1),
    ping: Duration::from_hours(1),
    first_retry: Duration::from_millis(1),
    last_retry: Duration::from_millis(1),
    start: Duration::from_hours(1),
};

struct Broker {
    lookupd: Lookupd,
    addresses: watch::Sender<Vec<String>>,
    shard: Arc<FakeShard>,
    started: mpsc::UnboundedReceiver<String>,
    task: JoinHandle<()>,
}

fn broker(addresses: &[String], patience: Patience) -> Broker {
    let (sender, started) = mpsc::unbounded_channel();
    let shard = FakeShard::new(move |request| {
        sender.send(format!("{request:?}")).ok();
        Some(crate::machine::admin::AdminReply::Done)
    });
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let http = HttpClient::new(patience.answer, patience.answer, Trust::Configured(Box::new(tls))).unwrap();
    let identity = Identity {
        broadcast_address: "b.example".to_owned(),
        tcp_port: 4150,
        http_port: 4151,
        hostname: "box".to_owned(),
        version: "1.3.0".to_owned(),
    };
    let addresses = watch::Sender::new(addresses.to_vec());
    let (lookupd, task) = Lookupd::start(identity, patience, http, shard.handle(), addresses.subscribe());
    Broker { lookupd, addresses, shard, started, task }
}

#[tokio::test]
async fn what_comes_and_goes_is_registered_and_unregistered() {
    let daemon = Daemon::new("{}").await;
    let broker = broker(&[daemon.address()], PATIENT);
    let mut connection = daemon.accept().await;
    broker.lookupd.observe(&Notice::TopicCreated(topic("t")));
    assert_eq!(connection.next().await, "REGISTER t");
    broker.lookupd.observe(&Notice::ChannelCreated(topic("t"), channel("c")));
    assert_eq!(connection.next().await, "REGISTER t c");
    broker.lookupd.observe(&Notice::ChannelCreated(topic("t"), channel("d")));
    assert_eq!(connection.next().await, "REGISTER t d");
    broker.lookupd.observe(&Notice::ChannelDeleted(topic("t"), channel("d")));
    assert_eq!(connection.next().await, "UNREGISTER t d");
    broker.lookupd.observe(&Notice::TopicDeleted(topic("t")));
    assert_eq!([connection.next().await, connection.next().await], ["UNREGISTER t c", "UNREGISTER t"]);
}

#[tokio::test]
async fn a_new_connection_registers_everything_again() {
    let daemon = Daemon::new("{}").await;
    let broker = broker(&[daemon.address()], PATIENT);
    broker.lookupd.observe(&Notice::ChannelCreated(topic("t"), channel("c")));
    let mut first = daemon.accept().await;
    assert_eq!(first.next().await, "REGISTER t c");
    drop(first);
    broker.lookupd.observe(&Notice::ChannelCreated(topic("u"), channel("c")));
    let mut second = daemon.accept().await;
    assert_eq!([second.next().await, second.next().await], ["REGISTER t c", "REGISTER u c"]);
}

#[tokio::test]
async fn the_daemon_hears_pings() {
    let daemon = Daemon::new("{}").await;
    let _broker = broker(&[daemon.address()], Patience { ping: Duration::from_millis(1), ..PATIENT });
    let mut connection = daemon.accept().await;
    assert_eq!([connection.next().await, connection.next().await], ["PING", "PING"]);
}

#[tokio::test]
async fn addresses_change_live() {
    let (old, new) = (Daemon::new("{}").await, Daemon::new("{}").await);
    let broker = broker(&[old.address()], PATIENT);
    broker.lookupd.observe(&Notice::ChannelCreated(topic("t"), channel("c")));
    let mut connection = old.accept().await;
    assert_eq!(connection.next().await, "REGISTER t c");
    broker.addresses.send_replace(vec![new.address()]);
    assert_eq!(new.accept().await.next().await, "REGISTER t c");
    assert!(!matches!(connection.lines.next_line().await, Ok(Some(_))), "the old daemon sees us go");
    drop(broker.lookupd);
    broker.task.await.unwrap();
}

#[tokio::test]
async fn a_new_topic_starts_with_the_channels_that_daemons_know() {
    let one = Daemon::new(r#"{"channels":["a","b","x#ephemeral","no good"]}"#).await;
    let two = Daemon::new(r#"{"channels":["b","c"]}"#).await;
    let mut broker = broker(&[one.address(), two.address()], PATIENT);
    broker.lookupd.observe(&Notice::ChannelCreated(topic("known"), channel("c")));
    let (mut one, mut two) = (one.accept().await, two.accept().await);
    // When they register, they have said where their HTTP side is.
    assert_eq!([one.next().await, two.next().await], ["REGISTER known c", "REGISTER known c"]);
    broker.lookupd.observe(&Notice::TopicCreated(topic("t")));
    assert_eq!(broker.started.recv().await.unwrap(), r#"StartTopic("t", ["a", "b", "c"])"#);
}

#[tokio::test]
async fn a_topic_starts_though_no_daemon_answers() {
    let mut alone = broker(&[], PATIENT);
    alone.lookupd.observe(&Notice::TopicCreated(topic("t")));
    assert_eq!(alone.started.recv().await.unwrap(), r#"StartTopic("t", [])"#);
    assert_eq!(alone.shard.asked().len(), 1);

    // Its HTTP side accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut daemon = Daemon::new("").await;
    daemon.http = silent.local_addr().unwrap().to_string();
    let mut broker = broker(&[daemon.address()], Patience { answer: Duration::from_millis(500), ..PATIENT });
    broker.lookupd.observe(&Notice::ChannelCreated(topic("known"), channel("c")));
    assert_eq!(daemon.accept().await.next().await, "REGISTER known c");
    broker.lookupd.observe(&Notice::TopicCreated(topic("t")));
    assert_eq!(broker.started.recv().await.unwrap(), r#"StartTopic("t", [])"#);
}

#[tokio::test]
async fn a_daemon_that_does_not_answer_holds_no_notice_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut daemon = Daemon::new("").await;
    daemon.http = silent.local_addr().unwrap().to_string();
    let mut broker = broker(&[daemon.address()], Patience { start: Duration::ZERO, ..PATIENT });
    let _connection = daemon.accept().await;
    for number in 0..5_000 {
        broker.lookupd.observe(&Notice::TopicCreated(topic(&format!("t{number}"))));
    }
    // Their turn comes too late to ask, so they start at once.
    for number in 0..5_000 {
        assert_eq!(broker.started.recv().await.unwrap(), format!(r#"StartTopic("t{number}", [])"#));
    }
}

#[test]
fn a_topic_waits_for_its_start_once_and_not_when_it_is_gone() {
    let mut waiting = NewTopics::default();
    for name in ["b", "a", "b", "c"] {
        waiting.add(topic(name), Instant::ZERO);
    }
    waiting.remove(&topic("a"));
    waiting.remove(&topic("x"));
    waiting.add(topic("a"), Instant::ZERO);
    let order: Vec<String> = std::iter::from_fn(|| waiting.pop()).map(|(topic, _)| topic.to_string()).collect();
    assert_eq!(order, ["b", "c", "a"]);
    assert!(waiting.numbers.is_empty());
}

#[tokio::test]
async fn answers_that_are_no_answers_end_the_connection() {
    let daemon = Daemon::new("{}").await;
    let broker = broker(&[daemon.address()], PATIENT);
    for bad in [&b"\0\0\0\x09E_INVALID"[..], b"\x7f\xff\xff\xff", b"\0\0\0\x02{}extra"] {
        let (mut stream, _) = daemon.listener.accept().await.unwrap();
        stream.write_all(bad).await.unwrap();
        let mut rest = Vec::new();
        // It reads until the broker hangs up; a reset is a way to do so.
        stream.read_to_end(&mut rest).await.ok();
        assert!(rest.starts_with(b"  V1IDENTIFY\n"));
    }
    broker.lookupd.observe(&Notice::ChannelCreated(topic("t"), channel("c")));
    assert_eq!(daemon.accept().await.next().await, "REGISTER t c");
}

//! Whole brokers that start, stop and start again on one folder.

use std::fs;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::HOST;
use serde_json::Value;
use tidegate_core::Rate;
use tidegate_core::limit::Limit;
use tidegate_wire::nsq::client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::io::admin::{Access, AdminState, Limits, Phase, Reach, Transient, router};
use crate::io::http::client::Trust;
use crate::io::http::tests::send;
use crate::io::http::{Listening, Live, Node};
use crate::machine::admin::{AdminReply, Pause, Recording, SnapshotScope};
use crate::machine::home_shard;
use crate::machine::limiter::{Contract, Discipline, Mode, Source, Unit};
use crate::machine::publishers::HttpPublisher;

/// Where the next file of names is written first: a folder there makes writing fail, for any user.
const DRAFT: &str = "nsqd.dat.tmp";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-broker-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    async fn start(&self, shards: usize, mem_queue_size: usize) -> Broker {
        self.start_with(&format!("shards = {shards}\nmem_queue_size = {mem_queue_size}")).await
    }

    async fn start_with(&self, options: &str) -> Broker {
        let folder = self.0.display();
        let config =
            crate::io::http::tests::config(&format!("data_path = '{folder}'\ntcp_address = '127.0.0.1:0'\n{options}"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let second = Duration::from_secs(1);
        let http = HttpClient::new(second, second, Trust::Configured(Box::new(tls))).unwrap();
        let runtime = runtime::Handle::current();
        let extras = Extras { limits: Vec::new(), http, tls: None, runtime };
        tokio::task::spawn_blocking(move || Broker::start(&config, extras)).await.unwrap().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn topic(number: usize) -> TopicName {
    TopicName::new(&format!("t{number}")).unwrap()
}

async fn publish(broker: &Broker, topic: &TopicName) {
    let (topic_name, bodies, by) = (topic.clone(), vec![b"hello".to_vec()], HttpPublisher::default());
    let request = AdminRequest::Publish { topic: topic_name, bodies, defer: None, by };
    let reply = broker.handle().ask_topic(topic, request).await;
    assert!(matches!(reply, Some(AdminReply::Done)), "{reply:?}");
}

/// Each topic, whether it is paused (`!`), and the depth of it and its channels.
async fn depths(broker: &Broker) -> Vec<String> {
    let mut topics = Vec::new();
    for reply in broker.handle().ask_all(&AdminRequest::Snapshot(SnapshotScope::default())).await {
        let AdminReply::Snapshot(snapshot) = reply else { panic!("{reply:?}") };
        for topic in snapshot.topics {
            let channels = topic.channels.iter().map(|channel| format!(" {}={}", channel.name, channel.depth));
            let paused = if topic.paused { "!" } else { "" };
            topics.push(format!("{}{paused}={}{}", topic.name, topic.depth, channels.collect::<String>()));
        }
    }
    topics.sort_unstable();
    topics
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_look_after_a_start_shows_every_message() {
    for shards in [1, 2] {
        let folder = Folder::new(&format!("depths-{shards}"));
        let broker = folder.start(shards, 10).await;
        for number in 0..300 {
            publish(&broker, &topic(number)).await;
        }
        broker.stop().await.unwrap();
        let broker = folder.start(shards, 10).await;
        let depths = depths(&broker).await;
        assert_eq!(depths.len(), 300);
        assert!(depths.iter().all(|topic| topic.ends_with("=1")), "{depths:?}");
        broker.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_cannot_be_opened_does_not_keep_the_broker_from_starting() {
    let folder = Folder::new("broken");
    let broker = folder.start(1, 10).await;
    publish(&broker, &topic(0)).await;
    publish(&broker, &topic(1)).await;
    broker.stop().await.unwrap();
    let meta = folder.0.join("t0.diskqueue.meta.dat");
    fs::remove_file(&meta).unwrap();
    fs::create_dir(&meta).unwrap();
    let broker = folder.start(1, 10).await;
    assert_eq!(depths(&broker).await, ["t0=0", "t1=1"]);
    fs::remove_dir(&meta).unwrap();
    broker.stop().await.unwrap();
    let broker = folder.start(1, 10).await;
    assert_eq!(depths(&broker).await, ["t0=1", "t1=1"]);
    broker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_saves_all_messages_though_the_names_cannot_be_written() {
    let folder = Folder::new("unwritable");
    let broker = folder.start(2, 10).await;
    publish(&broker, &topic(0)).await;
    broker.stop().await.unwrap();

    let broker = folder.start(2, 10).await;
    fs::create_dir(folder.0.join(DRAFT)).unwrap();
    publish(&broker, &topic(0)).await;
    publish(&broker, &topic(1)).await;
    let error = broker.stop().await.unwrap_err();
    assert!(matches!(error, StopError::Metadata(_)), "{error}");
    assert_eq!(Metadata::read(&folder.0).unwrap().metadata.topics.len(), 1);

    // What the file does not name is found by its files, and is in the file from then on.
    fs::remove_dir(folder.0.join(DRAFT)).unwrap();
    let broker = folder.start(2, 10).await;
    assert_eq!(depths(&broker).await, ["t0=2", "t1=1"]);
    broker.stop().await.unwrap();
    assert_eq!(Metadata::read(&folder.0).unwrap().metadata.topics.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_pauses_outlast_the_process() {
    let folder = Folder::new("pauses");
    let broker = folder.start(2, 10).await;
    let channel = ChannelName::new("c").unwrap();
    for number in 0..2 {
        let topic = topic(number);
        for request in [
            AdminRequest::CreateTopic(topic.clone()),
            AdminRequest::CreateChannel(topic.clone(), channel.clone()),
            AdminRequest::PauseTopic(topic.clone(), Pause::Paused),
        ] {
            broker.handle().ask_topic(&topic, request).await;
        }
        publish(&broker, &topic).await;
    }
    let flow = AdminRequest::PauseTopic(topic(1), Pause::Flowing);
    broker.handle().ask_topic(&topic(1), flow).await;
    broker.stop().await.unwrap();
    let broker = folder.start(2, 10).await;
    assert_eq!(depths(&broker).await, ["t0!=1 c=0", "t1=0 c=1"]);
    broker.stop().await.unwrap();
}

/// A topic that lives on `shard` of two.
fn topic_of(shard: usize) -> TopicName {
    (0..100).map(topic).find(|name| home_shard(name.as_str(), 2) == shard).unwrap()
}

/// The admin API of `broker`.
async fn api(broker: &Broker) -> Router {
    let config = crate::io::http::tests::config("");
    let (limits, _) = Limits::start(broker.handle(), Arc::new(Transient::default()), std::iter::empty()).await.unwrap();
    let node = Node {
        hostname: "box".to_owned(),
        tcp: Listening::Nowhere,
        http: Listening::Nowhere,
        started: clock::now(),
        start_time_s: 0,
    };
    let state = AdminState {
        broker: broker.handle(),
        limits,
        live: Live::new(&config),
        config,
        node: Arc::new(node),
        phase: watch::Sender::new(Phase::Serving).subscribe(),
    };
    router(state, Access { token: None, reach: Reach::Loopback })
}

async fn publishers(api: &Router, topic: &TopicName) -> (u16, Value) {
    let path = format!("/api/v1/publishers/{topic}?slo_us=1");
    let request = Request::builder().uri(path).header(HOST, "localhost").body(Body::empty()).unwrap();
    let (head, body) = send(api, request).await;
    (head.status().as_u16(), serde_json::from_str(&body).unwrap())
}

/// A publisher that has introduced itself and published to `topic` once, so that it stays on that topic's shard.
async fn publisher(broker: &Broker, topic: &TopicName) -> TcpStream {
    let mut stream = TcpStream::connect(broker.tcp_address().to_string()).await.unwrap();
    let mut said = client::MAGIC.to_vec();
    let identity = br#"{"client_id": "c", "hostname": "h", "tidegate_correlation": "k"}"#;
    client::put_identify(&mut said, identity);
    client::put_pub(&mut said, topic.as_str(), b"m");
    stream.write_all(&said).await.unwrap();
    expect_ok(&mut stream).await;
    expect_ok(&mut stream).await;
    stream
}

async fn expect_ok(stream: &mut TcpStream) {
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"\0\0\0\x06\0\0\0\0OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_lists_publishers_and_traces_name_them() {
    let folder = Folder::new("publishers");
    let broker = folder.start(2, 10).await;
    let api = api(&broker).await;
    let topic = topic_of(1);
    assert_eq!(publishers(&api, &topic).await.0, 404);
    let handle = broker.handle();
    let record = |recording| handle.ask_topic(&topic, AdminRequest::Record(topic.clone(), recording));
    let [mut here, mut there] = [publisher(&broker, &topic).await, publisher(&broker, &topic_of(0)).await];
    assert_eq!(publishers(&api, &topic).await.1["seconds"], serde_json::json!([]), "the list has begun");
    record(Recording::On).await;
    let mut publish = Vec::new();
    client::put_pub(&mut publish, topic.as_str(), b"m");
    let told = loop {
        for stream in [&mut here, &mut there] {
            stream.write_all(&publish).await.unwrap();
            expect_ok(stream).await;
        }
        let (status, told) = publishers(&api, &topic).await;
        assert_eq!(status, 200, "{told}");
        // A whole second passes before anything is told.
        if told["seconds"].as_array().is_some_and(|seconds| !seconds.is_empty()) {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let mut identities = Vec::new();
    for publisher in told["publishers"].as_array().unwrap() {
        identities.push(publisher["identity"].as_str().unwrap());
        assert!(publisher["messages"].as_u64().unwrap() > 0, "{told}");
        assert_eq!((&publisher["client_id"], &publisher["correlation"]), (&"c".into(), &"k".into()));
        assert!(publisher["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{told}");
    }
    identities.sort_unstable();
    assert_eq!(identities, ["c@h", "c@h#2"]);
    assert!(told["seconds"][0]["messages"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(told["others"], serde_json::json!({"publishers": 0, "messages": 0}));
    assert_eq!(told["delay"]["over_slo"], 0);
    record(Recording::Off).await;
    broker.stop().await.unwrap();
    let trace = fs::read_to_string(folder.0.join(format!("{topic}.trace"))).unwrap();
    let named = trace.lines().filter_map(|line| line.strip_prefix('@'));
    let named: Vec<Value> = named.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((named.len(), &named[0]["publisher"], &named[1]["publisher"]), (2, &1.into(), &2.into()), "{trace}");
    let mut identities: Vec<_> = named.iter().map(|named| named["identity"].as_str().unwrap()).collect();
    identities.sort_unstable();
    assert_eq!(identities, ["c@h", "c@h#2"]);
    let numbers = |at: usize| trace.lines().filter(|line| line.split(',').nth(4) == Some(["1", "2"][at])).count();
    assert!(numbers(0) > 0 && numbers(0) == numbers(1), "{trace}");
}

/// Messages of `count` that `consumer` gets, bodies alone; what else it is sent is passed over.
async fn bodies(consumer: &mut TcpStream, count: usize) -> Vec<String> {
    let (mut bytes, mut bodies) = (Vec::new(), Vec::new());
    while bodies.len() < count {
        while let Some((frame, used)) = client::frame(&bytes, 1 << 20).unwrap() {
            if let client::Frame::Message(_, body) = frame {
                bodies.push(String::from_utf8(body.to_vec()).unwrap());
            }
            bytes.drain(..used);
        }
        if bodies.len() < count {
            assert_ne!(consumer.read_buf(&mut bytes).await.unwrap(), 0, "the broker closed the connection");
        }
    }
    bodies
}

async fn consumer(broker: &Broker, topic: &TopicName) -> TcpStream {
    let mut stream = TcpStream::connect(broker.tcp_address().to_string()).await.unwrap();
    stream.write_all(format!("  V2SUB {topic} c\nRDY 2500\n").as_bytes()).await.unwrap();
    expect_ok(&mut stream).await;
    stream
}

async fn limit(broker: &Broker, topic: &TopicName, rate: u64, burst: u64) {
    let limit = Limit::new(Rate::per_s(rate), burst);
    let contract = Contract { limit, unit: Unit::Messages, discipline: Discipline::Wait, mode: Mode::Enforce };
    let request = AdminRequest::SetTopicLimit(topic.clone(), Some((contract, Source::Admin)));
    assert!(matches!(broker.handle().ask_topic(topic, request).await, Some(AdminReply::Done)));
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_of_a_spread_topic_share_its_limit_and_keep_their_order() {
    const EACH: usize = 150;
    let folder = Folder::new("spread");
    let topic = topic_of(1);
    let options = format!("shards = 2\nspread_topics = ['{topic}']");
    let broker = folder.start_with(&options).await;
    limit(&broker, &topic, 20_000, 50).await;
    let mut reader = consumer(&broker, &topic).await;
    let mut publishers = Vec::new();
    for _ in 0..8 {
        publishers.push(publisher(&broker, &topic).await);
    }
    bodies(&mut reader, publishers.len()).await;
    let begun = clock::now();
    for round in 0..EACH / 10 {
        for (number, stream) in publishers.iter_mut().enumerate() {
            let mut said = Vec::new();
            for at in 10 * round..10 * round + 10 {
                client::put_pub(&mut said, topic.as_str(), format!("{number} {at}").as_bytes());
            }
            stream.write_all(&said).await.unwrap();
        }
    }
    let sent = EACH * publishers.len();
    let mut last = vec![None; publishers.len()];
    for body in bodies(&mut reader, sent).await {
        let (number, at) = body.split_once(' ').unwrap();
        let (number, at): (usize, usize) = (number.parse().unwrap(), at.parse().unwrap());
        assert_eq!(at, last[number].map_or(0, |last: usize| last + 1), "publisher {number}");
        last[number] = Some(at);
    }
    let shortest = Duration::from_micros(50 * (sent as u64 - 50));
    assert!(clock::now().since(begun) >= shortest, "no faster than the limit");
    for stream in &mut publishers {
        for _ in 0..EACH {
            expect_ok(stream).await;
        }
    }
    let request = AdminRequest::Snapshot(SnapshotScope::default());
    let replies = broker.handle().ask_all(&request).await;
    let topics = replies.into_iter().flat_map(|reply| match reply {
        AdminReply::Snapshot(snapshot) => snapshot.topics,
        other => panic!("{other:?}"),
    });
    let found: Vec<_> = topics.map(|topic| (topic.name, topic.lanes, topic.admitted_total)).collect();
    assert_eq!(found, [(topic.to_string(), 1, (sent + publishers.len()) as u64)]);

    // What waits on either shard is there after a stop.
    limit(&broker, &topic, 1, 2).await;
    for stream in &mut publishers {
        let mut said = Vec::new();
        (0..5).for_each(|_| client::put_pub(&mut said, topic.as_str(), b"waits"));
        stream.write_all(&said).await.unwrap();
        for _ in 0..5 {
            expect_ok(stream).await;
        }
    }
    drop((reader, publishers));
    broker.stop().await.unwrap();
    let broker = folder.start_with(&options).await;
    let depths = depths(&broker).await;
    let numbers = depths[0].split(['=', ' ']).filter_map(|part| part.parse::<usize>().ok());
    assert_eq!(numbers.sum::<usize>(), sent + 8 + 40, "{depths:?}");
    broker.stop().await.unwrap();
}

fn names_in(folder: &Folder) -> Vec<TopicName> {
    let metadata = Metadata::read(&folder.0).unwrap().metadata;
    metadata.topics.into_iter().map(|topic| topic.name).collect()
}

/// A broker of two shards with a message on each of them, whose names are written.
async fn broker_with_messages(folder: &Folder) -> Broker {
    let broker = folder.start(2, 10).await;
    for shard in [0, 1] {
        publish(&broker, &topic_of(shard)).await;
    }
    while names_in(folder).len() < 2 {
        tokio::task::yield_now().await;
    }
    broker
}

/// Bytes of the first file of the queue of the topic on `shard`.
fn saved(folder: &Folder, shard: usize) -> u64 {
    let name = format!("{}.diskqueue.000000.dat", topic_of(shard));
    fs::metadata(folder.0.join(name)).map_or(0, |file| file.len())
}

fn is_clean_stop(folder: &Folder) -> bool {
    matches!(buckets::take(&SystemFiles, &folder.0, true, &BootTime::now()).0, buckets::Found::Kept(..))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_panics_ends_the_broker_and_the_others_are_saved() {
    let folder = Folder::new("panic");
    let broker = broker_with_messages(&folder).await;
    broker.mailboxes[1].send(Inbound::Panic);
    assert_eq!(broker.shard_ended().await, 1);
    let error = broker.stop().await.unwrap_err();
    assert!(matches!(error, StopError::Shard { shard: 1 }), "{error}");
    assert!(saved(&folder, 0) > 0, "the other shard's message");
    let names = names_in(&folder);
    assert!(names.contains(&topic_of(0)) && names.contains(&topic_of(1)), "no name is forgotten: {names:?}");
    assert!(!is_clean_stop(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_cannot_wait_for_events_saves_its_messages() {
    let folder = Folder::new("fail");
    let broker = broker_with_messages(&folder).await;
    broker.mailboxes[1].send(Inbound::Fail);
    assert_eq!(broker.shard_ended().await, 1);
    assert!(saved(&folder, 1) > 0);
    broker.stop().await.unwrap();
    assert!(saved(&folder, 0) > 0);
    assert!(!is_clean_stop(&folder), "the levels of its buckets are not known");

    // Beside it, a stop that all shards were told of.
    folder.start(2, 10).await.stop().await.unwrap();
    assert!(is_clean_stop(&folder));
}

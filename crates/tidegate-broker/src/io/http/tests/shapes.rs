//! The shapes of `/stats` and `/info`. The expected texts are what nsqd 1.3.0 answered in the same state, but for what
//! its runtime says of memory.

use std::sync::Arc;

use super::*;
use crate::machine::snapshot::{ChannelSnapshot, ClientSnapshot, TopicSnapshot};

fn consumer() -> ClientSnapshot {
    ClientSnapshot {
        client_id: "id".to_owned(),
        hostname: "host".to_owned(),
        version: "V2",
        remote_address: "10.0.0.1:5555".to_owned(),
        state: 3,
        ready_count: 10,
        in_flight_count: 1,
        message_count: 5,
        finish_count: 4,
        connect_ts: 1_795_220_015,
        user_agent: "go-nsq/1.1.0".to_owned(),
        ..ClientSnapshot::default()
    }
}

fn producer() -> ClientSnapshot {
    let pub_counts = vec![("a".to_owned(), 2), ("b".to_owned(), 3)];
    ClientSnapshot { authed: true, auth_identity: "ada".to_owned(), pub_counts, ..consumer() }
}

fn topic(name: &str, channels: Vec<ChannelSnapshot>) -> TopicSnapshot {
    TopicSnapshot {
        name: name.to_owned(),
        admitted_total: 1,
        admitted_bytes_total: 5,
        channels,
        ..TopicSnapshot::default()
    }
}

fn channel(clients: Vec<ClientSnapshot>) -> ChannelSnapshot {
    ChannelSnapshot {
        name: "c".to_owned(),
        message_total: 1,
        depth: 1,
        client_count: clients.len() as u64,
        clients,
        ..ChannelSnapshot::default()
    }
}

fn broker_of(snapshot: ShardSnapshot) -> Arc<FakeShard> {
    FakeShard::new(move |_| Some(AdminReply::Snapshot(Box::new(snapshot.clone()))))
}

const TOPIC_A: &str = concat!(
    r#"{"topic_name":"a","channels":[{"channel_name":"c","depth":1,"backend_depth":0,"in_flight_count":0,"#,
    r#""deferred_count":0,"message_count":1,"requeue_count":0,"timeout_count":0,"client_count":0,"clients":[],"#,
    r#""paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}],"depth":0,"backend_depth":0,"#,
    r#""message_count":1,"message_bytes":5,"paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}"#,
);

#[tokio::test]
async fn stats_are_nsqds_to_the_byte() {
    let shard =
        broker_of(ShardSnapshot { topics: vec![topic("a", vec![channel(vec![])])], ..ShardSnapshot::default() });
    let api = api(&shard, "");
    let head = r#"{"version":"1.3.0","health":"OK","start_time":1795220015,"topics":"#;
    let stats = async |query: &str| call(&api, &format!("GET /stats?format=json&include_mem=false{query}"), "").await.1;
    assert_eq!(stats("").await, format!(r#"{head}[{TOPIC_A}],"producers":null}}"#));
    let counted = TOPIC_A.replace(r#""clients":[]"#, r#""clients":null"#);
    assert_eq!(stats("&include_clients=false").await, format!(r#"{head}[{counted}],"producers":null}}"#));
    assert_eq!(stats("&topic=zz").await, format!(r#"{head}null,"producers":null}}"#));
    assert_eq!(stats("&topic=!!").await, format!(r#"{head}null,"producers":null}}"#));
    assert_eq!(stats("&channel=zz").await, format!(r#"{head}[],"producers":null}}"#));
    assert_eq!(stats("&topic=a&channel=c").await, format!(r#"{head}[{TOPIC_A}],"producers":null}}"#));
}

#[tokio::test]
async fn memory_has_the_fields_of_gos() {
    let api = api(&FakeShard::agreeable(), "");
    let stats: serde_json::Value = serde_json::from_str(&call(&api, "GET /stats?format=json", "").await.1).unwrap();
    let names: Vec<&str> = stats["memory"].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "gc_pause_usec_100",
        "gc_pause_usec_95",
        "gc_pause_usec_99",
        "gc_total_runs",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_objects",
        "heap_released_bytes",
        "next_gc_bytes",
    ];
    assert_eq!(names, expected);
    assert!(stats["memory"]["heap_in_use_bytes"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn clients_are_nsqds_to_the_byte() {
    let shard = broker_of(ShardSnapshot { producers: vec![producer()], ..ShardSnapshot::default() });
    let stats = call(&api(&shard, ""), "GET /stats?format=json&include_mem=0", "").await.1;
    let expected = concat!(
        r#""topics":[],"producers":[{"client_id":"id","hostname":"host","version":"V2","#,
        r#""remote_address":"10.0.0.1:5555","state":3,"ready_count":10,"in_flight_count":1,"message_count":5,"#,
        r#""finish_count":4,"requeue_count":0,"connect_ts":1795220015,"sample_rate":0,"deflate":false,"#,
        r#""snappy":false,"user_agent":"go-nsq/1.1.0","authed":true,"auth_identity":"ada","#,
        r#""pub_counts":[{"topic":"b","count":3},{"topic":"a","count":2}],"tls":false,"tls_cipher_suite":"","#,
        r#""tls_version":"","tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":false}]}"#,
    );
    assert!(stats.ends_with(expected), "{stats}");
}

#[tokio::test]
async fn latencies_are_shown_for_the_configured_quantiles() {
    let with_latency =
        |count, p50, p99| ChannelSnapshot { e2e_count: count, e2e_percentiles_ns: vec![p50, p99], ..channel(vec![]) };
    let channels = vec![with_latency(1, 1_000_000, 4_000_000), with_latency(3, 2_000_000, 8_000_000)];
    let topic = TopicSnapshot { e2e_count: 4, e2e_percentiles_ns: vec![1_750_000, 7_000_000], ..topic("a", channels) };
    let shard = broker_of(ShardSnapshot { topics: vec![topic], ..ShardSnapshot::default() });
    let api = api(&shard, "e2e_processing_latency_percentiles = [0.5, 0.99]");
    let stats: serde_json::Value = serde_json::from_str(&call(&api, "GET /stats?format=json", "").await.1).unwrap();
    let latency = |values: [u64; 2], count: u64| {
        let [p50, p99] = values.map(|value| serde_json::json!(value));
        serde_json::json!({"count": count, "percentiles": [
            {"quantile": 0.5, "value": p50}, {"quantile": 0.99, "value": p99}]})
    };
    let topic = &stats["topics"][0];
    assert_eq!(topic["channels"][0]["e2e_processing_latency"], latency([1_000_000, 4_000_000], 1));
    assert_eq!(topic["e2e_processing_latency"], latency([1_750_000, 7_000_000], 4));
    let text = call(&api, "GET /stats", "").await.1;
    assert!(text.contains("e2e%: 1.8ms, 7.0ms\n") && text.contains("e2e%: 1000.0us, 4.0ms\n"), "{text}");
}

#[tokio::test]
async fn messages_that_wait_for_a_token_are_in_the_topic() {
    let waiting = TopicSnapshot { waiting: 7, waiting_bytes: 70, refused_total: 3, ..topic("a", vec![]) };
    let shard = broker_of(ShardSnapshot { topics: vec![waiting], ..ShardSnapshot::default() });
    let stats = call(&api(&shard, ""), "GET /stats?format=json", "").await.1;
    assert!(stats.contains(r#""depth":7,"backend_depth":0,"message_count":8,"message_bytes":75,"#), "{stats}");
}

#[tokio::test]
async fn the_text_form_is_laid_out_as_nsqds() {
    let paused = TopicSnapshot { paused: true, ..topic("a", vec![channel(vec![consumer()])]) };
    let snapshot = ShardSnapshot { topics: vec![paused], producers: vec![producer()], ..ShardSnapshot::default() };
    let text = call(&api(&broker_of(snapshot), ""), "GET /stats?include_mem=false", "").await.1;
    let expected = "
Topics:
*P [a              ] depth: 0     be-depth: 0     msgs: 1        e2e%: 
      [c                        ] depth: 1     be-depth: 0     inflt: 0    def: 0    re-q: 0     timeout: 0     \
msgs: 1        e2e%: 
        [V2 host:5555 go-nsq/1.1.0] state: 3 inflt: 1    rdy: 10   fin: 4        re-q: 0        msgs: 5        connected: X

Producers:
   [V2 host:5555 go-nsq/1.1.0] msgs: 5        topics: a=2,b=3 connected: X
";
    let (head, rest) = text.split_at(text.find("\nTopics").unwrap());
    let shown: String = rest
        .lines()
        .map(|line| {
            line.split_once("connected: ").map_or(line.to_owned(), |(line, _)| format!("{line}connected: X")) + "\n"
        })
        .collect();
    assert_eq!(shown, expected);
    assert!(head.starts_with("nsqd v1.3.0 (built w/tidegate "), "{head}");
    assert!(
        head.contains("\nstart_time 2026-11-21T00:13:35Z\nuptime ") && head.ends_with("\n\nHealth: OK\n"),
        "{head}"
    );
    let nothing = call(&api(&FakeShard::agreeable(), ""), "GET /stats?include_mem=false", "").await.1;
    assert!(nothing.ends_with("\nTopics: None\n\nProducers: None\n"), "{nothing}");
}

#[tokio::test]
async fn info_is_nsqds_to_the_byte() {
    let expected = concat!(
        r#"{"version":"1.3.0","broadcast_address":"box","hostname":"box","http_port":-1,"tcp_port":4150,"#,
        r#""start_time":1795220015,"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,"#,
        r#""max_output_buffer_timeout":30000000000,"max_deflate_level":6}"#,
    );
    assert_eq!(call(&api(&FakeShard::agreeable(), ""), "GET /info", "").await.1, expected);
}

//! NSQ's own command line tools and nsqadmin, in a script. A case's outcome is what the tool brought about.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::Value;

use super::server::{self, LOOKUPD_HTTP, LOOKUPD_TCP, NSQADMIN, NSQD_HTTP, NSQD_TCP, Server};
use super::{Results, Subject, Verdict};
use crate::places::Places;
use crate::process::Group;
use crate::{clock, http, steps};

/// Every case takes well under a second on nsqd.
const LIMIT: Duration = Duration::from_secs(30);

/// What the cases share: a broker with TLS that tells a lookupd, nsqadmin in front of both.
struct Stage<'a> {
    places: &'a Places,
    scratch: &'a Path,
}

type Case = fn(&Stage) -> Result<String>;

const CASES: &[(&str, Case)] = &[
    ("to_nsq publishes its lines", |stage| stage.round_trip("to_nsq", &[], &[])),
    ("to_nsq with snappy", |stage| stage.round_trip("to_nsq_snappy", &["snappy,true"], &[])),
    ("to_nsq with deflate", |stage| stage.round_trip("to_nsq_deflate", &["deflate,true"], &[])),
    ("to_nsq with TLS", |stage| stage.round_trip("to_nsq_tls", &TLS, &[])),
    ("nsq_tail with snappy", |stage| stage.round_trip("tail_snappy", &[], &["snappy,true"])),
    ("nsq_tail with deflate", |stage| stage.round_trip("tail_deflate", &[], &["deflate,true"])),
    ("nsq_tail with TLS", |stage| stage.round_trip("tail_tls", &[], &TLS)),
    ("nsq_tail with TLS and snappy", |stage| {
        stage.round_trip("tail_tls_snappy", &[], &[TLS[0], TLS[1], "snappy,true"])
    }),
    ("nsq_tail with TLS and deflate", |stage| {
        stage.round_trip("tail_tls_deflate", &[], &[TLS[0], TLS[1], "deflate,true"])
    }),
    ("nsq_tail finds the broker through nsqlookupd", tail_by_lookupd),
    ("nsq_to_file writes every message", |stage| to_file(stage, "to_file", &[])),
    ("nsq_to_file writes gzip", |stage| to_file(stage, "to_file_gzip", &["-gzip"])),
    ("nsq_to_nsq copies a topic", to_nsq_copies),
    ("nsq_to_http posts every message", |stage| to_http(stage, "to_http_post", "-post", "/sink")),
    ("nsq_to_http gets with every message", |stage| to_http(stage, "to_http_get", "-get", "/sink?body=%s")),
    ("nsq_stat counts", stat_counts),
    ("nsqadmin lists topics, channels, nodes", admin_reads),
    ("nsqadmin pauses, unpauses, empties, deletes", admin_acts),
    ("nsqadmin creates a topic and a channel at nsqlookupd", admin_creates),
];

const TLS: [&str; 2] = ["tls_v1,true", "tls_insecure_skip_verify,true"];

/// Runs all cases on one broker.
pub(super) fn run(places: &Places, subject: &Subject) -> Result<Results> {
    server::make_certificates(&subject.scratch.join("test"))?;
    let _lookupd = Server::nsqlookupd(places, subject)?;
    let tls = ["-tls-cert=test/server.pem", "-tls-key=test/server.key"];
    let broker = Server::nsqd(subject, "tools", &["-lookupd-tcp-address", LOOKUPD_TCP, tls[0], tls[1]])?;
    let mut admin = Command::new(places.peers().join("nsqadmin"));
    admin.args(["-http-address", NSQADMIN, "-lookupd-http-address", LOOKUPD_HTTP]);
    let _admin = Server::start(&mut admin, &subject.scratch.join("nsqadmin.log"), &[NSQADMIN])?;
    let stage = Stage { places, scratch: &subject.scratch };
    let mut results = Results::new();
    for (name, case) in CASES {
        let verdict = case(&stage).map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
        results.insert((*name).to_owned(), verdict);
    }
    let ending = broker.stop().map(|status| status.to_string());
    let ending = ending.map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
    results.insert("the broker ends on SIGTERM".to_owned(), ending);
    Ok(results)
}

impl Stage<'_> {
    /// Starts a tool; its output and log go to files named after `topic`.
    fn start(&self, program: &str, topic: &str, arguments: &[&str], input: &[u8]) -> Result<Tool> {
        let file = |suffix: &str| self.scratch.join(format!("{topic}-{program}.{suffix}"));
        let (out, log) = (file("out"), file("log"));
        let mut command = Command::new(self.places.peers().join(program));
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(File::create(&out).into_diagnostic()?).stderr(File::create(&log).into_diagnostic()?);
        let mut group = Group::spawn(&mut command)?;
        if let Some(mut stdin) = group.stdin() {
            stdin.write_all(input).into_diagnostic()?;
        }
        Ok(Tool { group, out, log })
    }

    /// Three lines in through `to_nsq`, out through `nsq_tail`.
    fn round_trip(&self, topic: &str, producer: &[&str], consumer: &[&str]) -> Result<String> {
        let mut arguments = vec!["-topic", topic, "-nsqd-tcp-address", NSQD_TCP];
        arguments.extend(producer.iter().flat_map(|option| ["-producer-opt", *option]));
        self.start("to_nsq", topic, &arguments, b"one\ntwo\nthree\n")?.finish()?;
        let depth = depth(topic, "depth")?;
        let mut arguments = vec!["-topic", topic, "-n", "3", "-nsqd-tcp-address", NSQD_TCP];
        arguments.extend(consumer.iter().flat_map(|option| ["-consumer-opt", *option]));
        let said = self.start("nsq_tail", topic, &arguments, b"")?.finish()?;
        Ok(format!("depth {depth}, then {}", sorted(&said)))
    }
}

/// A tool that runs.
struct Tool {
    group: Group,
    out: PathBuf,
    log: PathBuf,
}

impl Tool {
    /// Waits until it ends by itself and returns what it printed.
    fn finish(mut self) -> Result<String> {
        let status = self.group.wait(LIMIT)?;
        if status.is_none_or(|status| !status.success()) {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            miette::bail!("it ended with {status:?}: {log}");
        }
        fs::read_to_string(&self.out).into_diagnostic()
    }

    /// Waits until `done`, then asks it to end.
    fn until(mut self, done: impl FnMut() -> Option<()>) -> Result<()> {
        let reached = clock::poll(LIMIT, done);
        let ended = self.group.terminate(LIMIT)?;
        if reached.is_none() || ended.is_none() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            miette::bail!("work done: {}, ended on SIGTERM: {}\n{log}", reached.is_some(), ended.is_some());
        }
        Ok(())
    }
}

fn tail_by_lookupd(stage: &Stage) -> Result<String> {
    let topic = "tail_by_lookupd";
    publish(topic, &["one", "two", "three"])?;
    let path = format!("/lookup?topic={topic}");
    let known = clock::poll(LIMIT, || {
        http::request(LOOKUPD_HTTP, "GET", &path, b"").ok().filter(|answer| answer.status == 200)
    });
    let known = known.ok_or_else(|| miette::miette!("nsqlookupd never heard of the topic"))?;
    let arguments = ["-topic", topic, "-n", "3", "-lookupd-http-address", LOOKUPD_HTTP];
    let said = stage.start("nsq_tail", topic, &arguments, b"")?.finish()?;
    let node: Value = serde_json::from_str(&known.body).into_diagnostic()?;
    let (tcp, http) = (&node["producers"][0]["tcp_port"], &node["producers"][0]["http_port"]);
    Ok(format!("ports {tcp} {http}, then {}", sorted(&said)))
}

fn to_file(stage: &Stage, topic: &str, more: &[&str]) -> Result<String> {
    let bodies = publish_many(topic)?;
    let folder = stage.scratch.join(format!("{topic}-files"));
    fs::create_dir_all(&folder).into_diagnostic()?;
    let folder_name = folder.display().to_string();
    let mut arguments = vec!["-topic", topic, "-output-dir", &folder_name, "-nsqd-tcp-address", NSQD_TCP];
    // It finishes messages when it syncs; 30 s is its default.
    arguments.extend(["-sync-interval", "100ms"]);
    arguments.extend(more);
    let tool = stage.start("nsq_to_file", topic, &arguments, b"")?;
    tool.until(|| finished(topic, "nsq_to_file", bodies.len()))?;
    let mut text = String::new();
    for entry in fs::read_dir(&folder).into_diagnostic()?.flatten() {
        let mut command = Command::new(if more.is_empty() { "cat" } else { "zcat" });
        text.push_str(&crate::process::output(command.arg(entry.path()))?);
    }
    Ok(count_against(&bodies, text.lines()))
}

fn to_nsq_copies(stage: &Stage) -> Result<String> {
    let (topic, copy) = ("copy_from", "copy_to");
    let bodies = publish_many(topic)?;
    let arguments = [
        "-topic",
        topic,
        "-destination-topic",
        copy,
        "-nsqd-tcp-address",
        NSQD_TCP,
        "-destination-nsqd-tcp-address",
        NSQD_TCP,
    ];
    stage.start("nsq_to_nsq", topic, &arguments, b"")?.until(|| finished(topic, "nsq_to_nsq", bodies.len()))?;
    let count = bodies.len().to_string();
    let said =
        stage.start("nsq_tail", copy, &["-topic", copy, "-n", &count, "-nsqd-tcp-address", NSQD_TCP], b"")?.finish()?;
    Ok(count_against(&bodies, said.lines()))
}

fn to_http(stage: &Stage, topic: &str, verb: &str, path: &str) -> Result<String> {
    let bodies = publish_many(topic)?;
    let listener = TcpListener::bind("127.0.0.1:0").into_diagnostic()?;
    let address = format!("http://{}{path}", listener.local_addr().into_diagnostic()?);
    let requests = http::collect(listener, bodies.len());
    let tool =
        stage.start("nsq_to_http", topic, &["-topic", topic, verb, &address, "-nsqd-tcp-address", NSQD_TCP], b"")?;
    tool.until(|| finished(topic, "nsq_to_http", bodies.len()))?;
    let got: Vec<String> = requests.try_iter().collect();
    let shape = got.first().and_then(|first| first.split([' ', '?']).next()).unwrap_or("nothing").to_owned();
    let said = got.iter().map(|request| request.rsplit([' ', '=']).find(|part| !part.is_empty()).unwrap_or_default());
    Ok(format!("{shape}: {}", count_against(&bodies, said)))
}

fn stat_counts(stage: &Stage) -> Result<String> {
    let topic = "stat";
    ok("POST", NSQD_HTTP, &format!("/topic/create?topic={topic}"))?;
    ok("POST", NSQD_HTTP, &format!("/channel/create?topic={topic}&channel=c"))?;
    publish(topic, &["one", "two", "three"])?;
    clock::poll(LIMIT, || (channel(topic, "c")?.get("depth")? == 3).then_some(()));
    let arguments =
        ["-topic", topic, "-channel", "c", "-nsqd-http-address", NSQD_HTTP, "-count", "1", "-interval", "100ms"];
    let said = stage.start("nsq_stat", topic, &arguments, b"")?.finish()?;
    Ok(said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n"))
}

fn admin_reads(_stage: &Stage) -> Result<String> {
    let topic = "admin_reads";
    ok("POST", NSQD_HTTP, &format!("/topic/create?topic={topic}"))?;
    ok("POST", NSQD_HTTP, &format!("/channel/create?topic={topic}&channel=c"))?;
    publish(topic, &["one", "two"])?;
    clock::poll(LIMIT, || (channel(topic, "c")?.get("depth")? == 2).then_some(()));
    registered(topic)?;
    let topics: Value = admin("GET", "/api/topics", "")?;
    let listed = topics["topics"].as_array().is_some_and(|topics| topics.iter().any(|name| name == topic));
    let mut all = vec![format!("listed: {listed}")];
    for path in [
        format!("/api/topics/{topic}"),
        format!("/api/topics/{topic}/c"),
        "/api/nodes".to_owned(),
        "/api/counter".to_owned(),
    ] {
        let mut answer = admin("GET", &path, "")?;
        steady(&mut answer);
        all.push(format!("{path}: {answer}"));
    }
    Ok(all.join("\n"))
}

fn admin_acts(_stage: &Stage) -> Result<String> {
    let topic = "admin_acts";
    ok("POST", NSQD_HTTP, &format!("/topic/create?topic={topic}"))?;
    ok("POST", NSQD_HTTP, &format!("/channel/create?topic={topic}&channel=c"))?;
    publish(topic, &["one", "two"])?;
    clock::poll(LIMIT, || (channel(topic, "c")?.get("depth")? == 2).then_some(()));
    registered(topic)?;
    let mut all = Vec::new();
    let (on_topic, on_channel) = (format!("/api/topics/{topic}"), format!("/api/topics/{topic}/c"));
    for (path, action) in [
        (&on_channel, "pause"),
        (&on_topic, "pause"),
        (&on_channel, "unpause"),
        (&on_topic, "unpause"),
        (&on_channel, "empty"),
    ] {
        admin("POST", path, &format!("{{\"action\":\"{action}\"}}"))?;
        let state = channel(topic, "c").unwrap_or_default();
        let topic_paused = topic_stats(topic).map(|stats| stats["paused"].clone()).unwrap_or_default();
        all.push(format!(
            "{action}: channel paused {} depth {}, topic paused {topic_paused}",
            state["paused"], state["depth"]
        ));
    }
    admin("DELETE", &on_channel, "")?;
    all.push(format!("channel deleted: {}", channel(topic, "c").is_none()));
    admin("DELETE", &on_topic, "")?;
    all.push(format!("topic deleted: {}", topic_stats(topic).is_none()));
    Ok(all.join("\n"))
}

fn admin_creates(_stage: &Stage) -> Result<String> {
    admin("POST", "/api/topics", r#"{"topic":"admin_creates","channel":"c"}"#)?;
    // nsqadmin tells nsqlookupd, and those brokers that have the topic already: here none.
    let known = http::request(LOOKUPD_HTTP, "GET", "/channels?topic=admin_creates", b"")?;
    Ok(known.body)
}

/// Waits until nsqlookupd knows the topic and its channel.
fn registered(topic: &str) -> Result<()> {
    let path = format!("/channels?topic={topic}");
    let found = clock::poll(LIMIT, || {
        http::request(LOOKUPD_HTTP, "GET", &path, b"").ok().filter(|answer| answer.body.contains("\"c\""))
    });
    found.map(|_| ()).ok_or_else(|| miette::miette!("nsqlookupd never heard of the channel"))
}

fn admin(method: &str, path: &str, body: &str) -> Result<Value> {
    let answer = http::request(NSQADMIN, method, path, body.as_bytes())?;
    if answer.status != 200 {
        miette::bail!("{method} {path}: {} {}", answer.status, answer.body);
    }
    if answer.body.is_empty() {
        Ok(Value::Null)
    } else {
        serde_json::from_str(&answer.body).into_diagnostic().wrap_err(answer.body)
    }
}

/// Takes out what is another in every run.
fn steady(value: &mut Value) {
    const UNSTEADY: [&str; 6] = ["hostname", "remote_address", "remote_addresses", "version", "memory", "timestamp"];
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !UNSTEADY.contains(&key.as_str()) && !key.contains("latency"));
            // The topics of a node depend on which cases ran before.
            map.retain(|key, value| !(key == "topics" && value.is_array()) && key != "total_messages");
            map.values_mut().for_each(steady);
        }
        Value::Array(list) => list.iter_mut().for_each(steady),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn ok(method: &str, address: &str, path: &str) -> Result<()> {
    let answer = http::request(address, method, path, b"")?;
    if answer.status == 200 { Ok(()) } else { miette::bail!("{method} {path}: {} {}", answer.status, answer.body) }
}

fn publish(topic: &str, bodies: &[&str]) -> Result<()> {
    let answer = http::request(NSQD_HTTP, "POST", &format!("/mpub?topic={topic}"), bodies.join("\n").as_bytes())?;
    if answer.status == 200 { Ok(()) } else { miette::bail!("mpub: {} {}", answer.status, answer.body) }
}

/// Enough messages for several batches of every tool.
fn publish_many(topic: &str) -> Result<Vec<String>> {
    let bodies: Vec<String> = (0..500).map(|i| format!("message-{i}")).collect();
    publish(topic, &bodies.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(bodies)
}

fn topic_stats(topic: &str) -> Option<Value> {
    let answer = http::request(NSQD_HTTP, "GET", &format!("/stats?format=json&topic={topic}"), b"").ok()?;
    let stats: Value = serde_json::from_str(&answer.body).ok()?;
    stats["topics"].as_array()?.iter().find(|entry| entry["topic_name"] == topic).cloned()
}

fn channel(topic: &str, channel: &str) -> Option<Value> {
    let stats = topic_stats(topic)?;
    stats["channels"].as_array()?.iter().find(|entry| entry["channel_name"] == channel).cloned()
}

fn depth(topic: &str, key: &str) -> Result<Value> {
    topic_stats(topic).map(|stats| stats[key].clone()).ok_or_else(|| miette::miette!("the broker has no topic {topic}"))
}

/// `Some` once the channel got that many messages and all are finished.
fn finished(topic: &str, name: &str, messages: usize) -> Option<()> {
    let stats = channel(topic, name)?;
    let idle = stats["depth"] == 0 && stats["in_flight_count"] == 0 && stats["deferred_count"] == 0;
    (idle && stats["message_count"] == messages).then_some(())
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join(" ")
}

/// How many of `bodies` are among `found`, and how many other things.
fn count_against<'a>(bodies: &[String], found: impl Iterator<Item = &'a str>) -> String {
    let mut wanted: std::collections::BTreeSet<&str> = bodies.iter().map(String::as_str).collect();
    let others = found.filter(|line| !wanted.remove(line)).count();
    format!("{} of {} arrived, {others} twice or unknown", bodies.len() - wanted.len(), bodies.len())
}

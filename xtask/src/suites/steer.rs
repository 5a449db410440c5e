//! Producers of go-nsq and nsqjs, unmodified, through `tidegate steer` to two of the brokers under test, while their
//! topics move from one to the other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::server::Server;
use super::{Results, Subject, Verdict};
use crate::nsq::{Client, Frame};
use crate::places::Places;
use crate::process::Group;
use crate::{clock, http, peers, steps};

/// A move takes as long as the hop takes to look at its file, and a round trip.
const LIMIT: Duration = Duration::from_mins(1);
/// Where producers connect, and where the hop shows what it does.
const HOP: &str = "127.0.0.1:4350";
const HOP_ADMIN: &str = "127.0.0.1:4356";
/// Where the topics are placed, one after the other.
const ROUTE: [&str; 4] = ["a", "b", "a", "b"];
/// Publishes at the end, after the last move.
const MORE: u64 = 500;

/// A broker under test.
struct Broker {
    name: &'static str,
    nsq: &'static str,
    http: &'static str,
}

const BROKERS: [Broker; 2] = [
    Broker { name: "a", nsq: "127.0.0.1:4150", http: "127.0.0.1:4151" },
    Broker { name: "b", nsq: "127.0.0.1:4250", http: "127.0.0.1:4251" },
];

/// Runs both producers at once.
pub(super) fn run(places: &Places, subject: &Subject) -> Result<Results> {
    let _brokers = BROKERS.iter().map(|broker| start(subject, broker)).collect::<Result<Vec<_>>>()?;
    place(subject, ROUTE[0])?;
    let hop = start_hop(places, subject)?;
    let producers = [
        Producer::start(
            subject,
            "go",
            Command::new(peers::producer_go(places)).args(["-address", HOP, "-topic", "go"]),
        ),
        Producer::start(subject, "js", Command::new("node").arg(peers::producer_nsqjs(places)).args([HOP, "js"])),
    ];
    let producers = producers.into_iter().collect::<Result<Vec<_>>>()?;
    let moved = lead(subject, producers.len() as u64);
    let ends: Vec<_> = producers.into_iter().map(|producer| (producer.topic, producer.finish())).collect();
    moved.wrap_err_with(|| format!("the hop said:\n{}", hop.said()))?;
    let mut results = Results::new();
    for (topic, end) in ends {
        let verdict = end.and_then(|told| check(topic, &told));
        let verdict = verdict.map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
        results.insert(format!("a producer of {topic}"), verdict);
    }
    let ending = hop.stop().map(|status| status.to_string());
    let ending = ending.map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
    results.insert("the hop ends on SIGTERM".to_owned(), ending);
    Ok(results)
}

/// A broker that keeps its messages in memory, in their order.
fn start(subject: &Subject, broker: &Broker) -> Result<Server> {
    let data = subject.scratch.join(format!("{}-data", broker.name));
    fs::create_dir_all(&data).into_diagnostic()?;
    let mut command = Command::new(subject.bin.join("nsqd"));
    command.arg("-data-path").arg(&data).args(["-tcp-address", broker.nsq, "-http-address", broker.http]);
    command.args(["-broadcast-address", "127.0.0.1", "-mem-queue-size", "500000"]);
    Server::start(&mut command, &subject.scratch.join(format!("{}.log", broker.name)), &[broker.nsq, broker.http])
}

fn start_hop(places: &Places, subject: &Subject) -> Result<Server> {
    let file = subject.scratch.join("steer.toml");
    let node = |broker: &Broker| format!("{{ name = \"{}\", nsq = \"{}\" }}", broker.name, broker.nsq);
    let nodes: Vec<String> = BROKERS.iter().map(node).collect();
    let text = format!(
        "[steer]\nlisten = \"{HOP}\"\nadmin_address = \"{HOP_ADMIN}\"\nplacement = \"{}\"\nnodes = [ {} ]\n",
        placements(subject).display(),
        nodes.join(", ")
    );
    fs::write(&file, text).into_diagnostic()?;
    let mut command = Command::new(places.tidegate());
    command.args(["steer", "--config"]).arg(&file).current_dir(&subject.scratch);
    Server::start(&mut command, &subject.scratch.join("steer.log"), &[HOP, HOP_ADMIN])
}

fn placements(subject: &Subject) -> PathBuf {
    subject.scratch.join("placement.json")
}

/// Places both topics on one broker. The file changes as a whole.
fn place(subject: &Subject, at: &str) -> Result<()> {
    let broker = BROKERS.iter().find(|broker| broker.name == at).ok_or_else(|| miette::miette!("no broker {at}"))?;
    let placed = |topic: &str| json!({ "topic": topic, "nodes": [{ "name": broker.name, "nsq": broker.nsq }] });
    let fresh = subject.scratch.join("placement.fresh");
    fs::write(&fresh, json!({ "topics": [placed("go"), placed("js")] }).to_string()).into_diagnostic()?;
    fs::rename(fresh, placements(subject)).into_diagnostic()
}

/// Moves the topics along the route while both producers publish.
fn lead(subject: &Subject, producers: u64) -> Result<()> {
    let all_publish = |report: &Value| {
        let publishers = report["publishers"].as_array()?;
        let publish = publishers.iter().filter(|publisher| !publisher["topics"][0]["node"].is_null()).count();
        (publish as u64 == producers).then_some(())
    };
    until("both producers publish", all_publish)?;
    for (moves, at) in (1..).zip(&ROUTE[1..]) {
        place(subject, at)?;
        let wanted = producers * moves;
        until(&format!("both topics are at {at}"), |report| (total(report, "moves_total")? >= wanted).then_some(()))?;
    }
    let before = until("the hop counts", |report| total(report, "accepted_total"))?;
    until("publishes go on", |report| (total(report, "accepted_total")? >= before + MORE).then_some(()))
}

fn total(report: &Value, name: &str) -> Option<u64> {
    report["totals"][name].as_u64()
}

/// Asks the hop until its report shows what is wanted.
fn until<T>(what: &str, found: impl Fn(&Value) -> Option<T>) -> Result<T> {
    let ask = || {
        let answer = http::request(HOP_ADMIN, "GET", "/api/v1/steer", b"").ok()?;
        found(&serde_json::from_str(&answer.body).ok()?)
    };
    clock::poll(LIMIT, ask).ok_or_else(|| miette::miette!("it did not come to pass that {what}"))
}

/// A producer that numbers what it publishes, until its input ends.
struct Producer {
    topic: &'static str,
    group: Group,
    out: PathBuf,
    log: PathBuf,
}

impl Producer {
    fn start(subject: &Subject, topic: &'static str, command: &mut Command) -> Result<Self> {
        let file = |suffix: &str| subject.scratch.join(format!("producer-{topic}.{suffix}"));
        let (out, log) = (file("out"), file("log"));
        let create = |path: &Path| File::create(path).into_diagnostic();
        command.stdin(Stdio::piped()).stdout(create(&out)?).stderr(create(&log)?);
        Ok(Self { topic, group: Group::spawn(command)?, out, log })
    }

    /// Lets it come to its end; returns what it says of itself.
    fn finish(mut self) -> Result<Value> {
        drop(self.group.stdin());
        let status = self.group.wait(LIMIT)?;
        if !status.is_some_and(|status| status.success()) {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            miette::bail!("the producer ended with {status:?}: {log}");
        }
        let out = fs::read_to_string(&self.out).into_diagnostic()?;
        serde_json::from_str(&out).into_diagnostic().wrap_err(out)
    }
}

/// Holds what is at the brokers against what a producer sent.
fn check(topic: &str, told: &Value) -> Result<String> {
    let sent = told["sent"].as_u64().and_then(|sent| usize::try_from(sent).ok()).unwrap_or(0);
    if told["failed"] != json!([]) {
        miette::bail!("publishes failed: {}", told["failed"]);
    }
    let mut owners = vec![None; sent];
    for (place, broker) in BROKERS.iter().enumerate() {
        let numbers = consume(broker, topic)?;
        if !numbers.is_sorted() {
            miette::bail!("broker {} has messages out of order", broker.name);
        }
        for number in numbers {
            let owner = owners.get_mut(number);
            let owner = owner.ok_or_else(|| miette::miette!("message {number} was never sent"))?;
            if owner.replace(place).is_some() {
                miette::bail!("message {number} is there twice");
            }
        }
    }
    let lost = owners.iter().filter(|owner| owner.is_none()).count();
    if lost > 0 || sent == 0 {
        miette::bail!("{lost} of {sent} messages are lost");
    }
    // Between two moves all messages are at one broker: over both of them, too, they are in order.
    let moves = owners.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if moves != ROUTE.len() - 1 {
        miette::bail!("messages go to the other broker {moves} times, and there were {} moves", ROUTE.len() - 1);
    }
    Ok(format!("each message is there once and in order, over {moves} moves"))
}

/// The numbers of all messages of `topic` at a broker, in its order.
fn consume(broker: &Broker, topic: &str) -> Result<Vec<usize>> {
    let path = format!("/stats?format=json&topic={topic}");
    let stats: Value = serde_json::from_str(&http::request(broker.http, "GET", &path, b"")?.body).into_diagnostic()?;
    let depth = stats["topics"][0]["depth"].as_u64().unwrap_or(0);
    let mut client = Client::subscribe(broker.nsq, topic, "c", 2_000, LIMIT)?;
    let mut numbers = Vec::new();
    while (numbers.len() as u64) < depth {
        match client.answer()? {
            Frame::Message(id, body) => {
                let number = String::from_utf8_lossy(&body).parse().into_diagnostic()?;
                numbers.push(number);
                client.put_fin(&id);
                client.flush()?;
            }
            other => miette::bail!("a consumer of {topic} at {} is told {other:?}", broker.name),
        }
    }
    Ok(numbers)
}

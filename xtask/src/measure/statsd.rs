//! What two brokers tell statsd of the same load.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};
use serde_json::json;

use super::bench::Bench;
use super::broker::{Addresses, Broker, Kind, SHARDS, shards_in_words};
use super::table::Figure;
use crate::clock::Stopwatch;
use crate::http;
use crate::nsq::{Client, Frame};

const PATIENCE: Duration = Duration::from_secs(5);
/// From one report of a broker to the next. nsqd spreads a report's packets over a second less than this, and panics if
/// nothing is left.
const INTERVAL: Duration = Duration::from_secs(2);
/// Reports that are read after the load, at least.
const REPORTS: u32 = 3;
/// The longest packet that a socket can carry.
const PACKET_BYTES_MAX: usize = 65_536;

/// What was said of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    /// `c`, `g` or `ms`.
    kind: String,
    /// The sum of a counter, the last of a gauge.
    value: i64,
}

type Stats = BTreeMap<String, Stat>;

/// The row.
pub(super) fn same_names(bench: &Bench) -> Result<Vec<Figure>> {
    let theirs = told_by(bench, Kind::Nsqd, 1)?;
    let mut figures = Vec::new();
    for shards in SHARDS {
        let ours = told_by(bench, Kind::Ours, shards)?;
        let differences = differences(&ours, &theirs);
        figures.push(Figure {
            what: format!("{}, {} names of nsqd", shards_in_words(shards), theirs.len()),
            value: format!("{} differ", differences.len()),
            spread: differences.iter().take(5).cloned().collect::<Vec<_>>().join("; "),
            passes: differences.is_empty() && !theirs.is_empty(),
            runs: json!({ "differences": differences, "ours": plain(&ours), "nsqd": plain(&theirs) }),
        });
    }
    Ok(figures)
}

fn told_by(bench: &Bench, kind: Kind, shards: u32) -> Result<Stats> {
    let socket = UdpSocket::bind("127.0.0.1:0").into_diagnostic()?;
    socket.set_read_timeout(Some(INTERVAL)).into_diagnostic()?;
    let flags = [
        format!("-shards={shards}"),
        format!("-statsd-address={}", socket.local_addr().into_diagnostic()?),
        format!("-statsd-interval={}s", INTERVAL.as_secs()),
        "-statsd-prefix=nsq".to_owned(),
        "-e2e-processing-latency-percentile=0.5,0.99".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let data = bench.folder(&format!("statsd-{}", kind.name()))?;
    let broker = Broker::start_at(bench, kind, &data, &Addresses::free()?, &flags)?;
    // The consumer stays, since its number is told too.
    let _consumer = load(&broker)?;
    let mut stats = Stats::new();
    let mut packet = vec![0; PACKET_BYTES_MAX];
    let watch = Stopwatch::start();
    // Reports from before the end of the load wait in the socket: counters are added up from the beginning.
    while watch.elapsed() < INTERVAL * (REPORTS + 1) {
        if let Ok(bytes) = socket.recv(&mut packet) {
            read(&String::from_utf8_lossy(&packet[..bytes]), &mut stats)?;
        }
    }
    if kind == Kind::Nsqd && stats.is_empty() {
        miette::bail!(
            "nsqd said nothing: {}",
            std::fs::read_to_string(data.with_extension("nsqd.log")).unwrap_or_default()
        );
    }
    broker.stop()?;
    Ok(stats)
}

/// The same to the last message on both brokers, when it is over.
fn load(broker: &Broker) -> Result<Client> {
    for path in ["/topic/create?topic=counted", "/channel/create?topic=counted&channel=c"] {
        http::request(&broker.http, "POST", path, b"")?;
    }
    let mut publisher = Client::connect(&broker.tcp, PATIENCE)?;
    for _ in 0..100 {
        publisher.put_pub("counted", b"0123456789");
    }
    for _ in 0..7 {
        publisher.put_dpub("counted", 3_600_000, b"later");
    }
    publisher.put_pub("brief#ephemeral", b"x");
    publisher.flush()?;
    for _ in 0..108 {
        match publisher.answer()? {
            Frame::Response(_) => {}
            other => miette::bail!("a publish is answered with {other:?}"),
        }
    }
    // Of the first 20 messages 10 are finished, 3 sent back and 7 kept: 20 are in flight again, 70 wait.
    let mut consumer = Client::subscribe(&broker.tcp, "counted", "c", 20, PATIENCE)?;
    for number in 0..33 {
        let Frame::Message(id, _) = consumer.answer()? else { miette::bail!("a consumer gets messages") };
        match number {
            0..10 => consumer.put_fin(&id),
            10..13 => consumer.put_req(&id, 0),
            _ => {}
        }
        consumer.flush()?;
    }
    Ok(consumer)
}

/// Adds the lines of a packet.
fn read(packet: &str, stats: &mut Stats) -> Result<()> {
    for line in packet.lines().filter(|line| !line.is_empty()) {
        let parts = line.rsplit_once(':').and_then(|(name, rest)| Some((name, rest.split_once('|')?)));
        let Some((name, (value, kind))) = parts else { miette::bail!("no statsd line: {line}") };
        let value: i64 = value.parse().into_diagnostic()?;
        let stat = stats.entry(name.to_owned()).or_insert_with(|| Stat { kind: kind.to_owned(), value: 0 });
        stat.value = if kind == "c" { stat.value + value } else { value };
    }
    Ok(())
}

/// Names that one of both lacks, kinds that differ, and values that the load decides and that differ.
fn differences(ours: &Stats, theirs: &Stats) -> Vec<String> {
    let lacking = |side: &str, has: &Stats, lacks: &Stats| -> Vec<String> {
        let names = has.keys().filter(|name| !lacks.contains_key(*name));
        names.map(|name| format!("{name}: {side} has it alone")).collect()
    };
    let mut found = lacking("nsqd", theirs, ours);
    found.extend(lacking("ours", ours, theirs));
    for (name, our) in ours {
        let Some(their) = theirs.get(name) else { continue };
        // Delays and the memory of a process are nobody's to repeat; their names and kinds are.
        let is_decided = name.contains("topic.") && !name.contains("latency");
        if our.kind != their.kind || (is_decided && our.value != their.value) {
            found.push(format!("{name}: {}|{}, nsqd {}|{}", our.value, our.kind, their.value, their.kind));
        }
    }
    found
}

fn plain(stats: &Stats) -> BTreeMap<&str, String> {
    stats.iter().map(|(name, stat)| (name.as_str(), format!("{}|{}", stat.value, stat.kind))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(packets: &[&str]) -> Stats {
        let mut stats = Stats::new();
        for packet in packets {
            read(packet, &mut stats).unwrap();
        }
        stats
    }

    #[test]
    fn counters_are_added_up_and_gauges_are_the_last() {
        let found = stats(&[
            "nsq.topic.t.message_count:3|c\nnsq.topic.t.depth:9|g\n",
            "nsq.topic.t.message_count:4|c\nnsq.topic.t.depth:2|g",
        ]);
        assert_eq!(found["nsq.topic.t.message_count"].value, 7);
        assert_eq!(found["nsq.topic.t.depth"], Stat { kind: "g".to_owned(), value: 2 });
        assert!(read("nonsense", &mut Stats::new()).is_err());
    }

    #[test]
    fn delays_may_differ_and_names_may_not() {
        let theirs =
            stats(&["nsq.topic.t.depth:2|g\nnsq.mem.heap_objects:5|g\nnsq.topic.t.e2e_processing_latency_99:7|g"]);
        let same =
            stats(&["nsq.topic.t.depth:2|g\nnsq.mem.heap_objects:0|g\nnsq.topic.t.e2e_processing_latency_99:8|g"]);
        assert!(differences(&same, &theirs).is_empty());
        let other = stats(&["nsq.topic.t.depth:3|g\nnsq.topic.t.e2e_processing_latency_99:8|ms\nnsq.more:1|c"]);
        assert_eq!(differences(&other, &theirs).len(), 4);
    }
}

//! What a full line, a full queue and deferred messages take, against the bound that is stated for them.

use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::Bench;
use super::broker::{Addresses, Broker, Kind, SHARDS, shards_in_words};
use super::table::Figure;
use crate::clock;
use crate::http;
use crate::nsq::{Client, Frame};

/// The bound of a queue and of a line, as it is set. What other things take is small beside it.
const BOUND_BYTES: u64 = 64 << 20;
/// Bytes of a queue that wait for the disk, beside its bound: see the list of bounds in the book.
const DISK_BYTES: u64 = 8 << 20;
/// Growth of the resident set, by the bound, at most.
const GROWTH_MAX: f64 = 1.5;
/// Messages of one byte in a command.
const BATCH: u32 = 1_000;
/// A publisher that gets no answer for so long is held back.
const HELD_BACK: Duration = Duration::from_secs(3);
/// From the last message to the reading of the memory.
const SETTLE: Duration = Duration::from_secs(2);
const TOPIC: &str = "full";
/// Longer than this takes.
const DEFERRED_MS: u64 = 3_600_000;

/// How a broker is filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    what: &'static str,
    flags: &'static [&'static str],
    how: How,
    /// What is said to belong to it beside the bound that is set.
    beside: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A limit lets nothing through: messages wait in its line.
    Line,
    /// A topic without a channel keeps its messages.
    Queue,
    /// A channel keeps messages for an hour.
    Deferred,
}

const FILLINGS: &[Filling] = &[
    Filling { what: "line", flags: &[], how: How::Line, beside: 0 },
    Filling { what: "queue, overflow", flags: &["-queue-policy=overflow"], how: How::Queue, beside: DISK_BYTES },
    Filling { what: "queue, back-pressure", flags: &["-queue-policy=back-pressure"], how: How::Queue, beside: 0 },
    Filling { what: "queue, refuse", flags: &["-queue-policy=refuse"], how: How::Queue, beside: 0 },
    Filling { what: "queue, drop-oldest", flags: &["-queue-policy=drop-oldest"], how: How::Queue, beside: 0 },
    Filling { what: "deferred", flags: &[], how: How::Deferred, beside: DISK_BYTES },
];

/// The row.
pub(super) fn bounds(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for shards in SHARDS {
        for filling in FILLINGS {
            figures.push(fill(bench, filling, shards).wrap_err_with(|| filling.what)?);
        }
    }
    Ok(figures)
}

fn fill(bench: &Bench, filling: &Filling, shards: u32) -> Result<Figure> {
    let data = bench.folder("memory")?;
    let addresses = Addresses::with_admin()?;
    let shards_flag = format!("-shards={shards}");
    let bound = bench.size(BOUND_BYTES, BOUND_BYTES / 8);
    let (bytes, line) = (format!("-max-queue-bytes={bound}"), format!("-max-line-bytes={bound}"));
    let bound = bound + filling.beside;
    // The number of messages does not bound anything here: their bytes do.
    let mut flags = vec!["-mem-queue-size=100000000", &shards_flag, &bytes, &line];
    flags.extend(filling.flags);
    let broker = Broker::start_at(bench, Kind::Ours, &data, &addresses, &flags)?;
    let post = |path: &str| http::request(&broker.http, "POST", path, b"");
    post(&format!("/topic/create?topic={TOPIC}"))?;
    match filling.how {
        How::Line => limit(&data, &addresses)?,
        How::Queue => {}
        How::Deferred => drop(post(&format!("/channel/create?topic={TOPIC}&channel=later"))?),
    }
    // One command before the reading: buffers of a connection that publishes are no part of the queue.
    let mut client = Client::connect(&broker.tcp, HELD_BACK)?;
    client.publish("warm", b"x")?;
    clock::rest(SETTLE);
    let before = resident_bytes(broker.id())?;
    // Without any bound, a few hundred bytes each would be several times the bound.
    let most =
        if filling.how == How::Deferred { bench.size(1_000_000, 50_000) } else { bench.size(4_000_000, 100_000) };
    let (taken, end) = publish(&mut client, filling.how, most)?;
    clock::rest(SETTLE);
    let growth = resident_bytes(broker.id())?.saturating_sub(before);
    let share = ratio(growth, bound);
    drop(client);
    broker.kill();
    Ok(Figure {
        what: format!("{}, {}", filling.what, shards_in_words(shards)),
        value: format!("{share:.2}x the bound: {:.1} of {:.0} MiB", mebibytes(growth), mebibytes(bound)),
        spread: format!("{taken} messages of 1 byte, then {end}"),
        passes: share <= GROWTH_MAX && taken > 0,
        runs: json!({ "growth_bytes": growth, "bound_bytes": bound, "messages": taken, "end": end }),
    })
}

/// A limit that lets one message through in an hour.
fn limit(data: &std::path::Path, addresses: &Addresses) -> Result<()> {
    let token = std::fs::read_to_string(data.join("admin.token")).into_diagnostic().wrap_err("the admin token")?;
    let body = json!({ "rate": "1/h", "burst": 1, "discipline": "wait" }).to_string();
    let admin = addresses.admin.clone().unwrap_or_default();
    let path = format!("/api/v1/limits/{TOPIC}");
    let answer = http::send_with_token(&admin, "PUT", &path, token.trim(), body.as_bytes())?;
    if answer.status == 200 { Ok(()) } else { miette::bail!("no limit: {} {}", answer.status, answer.body) }
}

/// Publishes until the broker takes no more, or `most` messages; returns how many it took and why that was the end.
fn publish(client: &mut Client, how: How, most: u32) -> Result<(u32, String)> {
    let mut taken = 0;
    while taken < most {
        if how == How::Deferred {
            (0..BATCH).for_each(|_| client.put_dpub(TOPIC, DEFERRED_MS, b"x"));
        } else {
            client.put_mpub(TOPIC, BATCH, b"x");
        }
        if client.flush().is_err() {
            return Ok((taken, "the publisher is held back".to_owned()));
        }
        let answers = if how == How::Deferred { BATCH } else { 1 };
        for _ in 0..answers {
            match client.answer_if_any() {
                Some(Frame::Response(_)) => taken += BATCH / answers,
                Some(Frame::Error(text)) => return Ok((taken, text)),
                Some(Frame::Message(..)) => miette::bail!("a publisher gets no messages"),
                None => return Ok((taken, "the publisher is held back".to_owned())),
            }
        }
    }
    Ok((taken, "all are taken".to_owned()))
}

/// The resident set of a process.
pub(super) fn resident_bytes(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| file.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1_024).ok_or_else(|| miette::miette!("{file} says nothing of VmRSS"))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn ratio(bytes: u64, of: u64) -> f64 {
    bytes as f64 / of as f64
}

fn mebibytes(bytes: u64) -> f64 {
    ratio(bytes, 1 << 20)
}

/// Depth of every queue of a broker, by nsqd's API: topics' and channels', added up.
pub(super) fn depths(http_address: &str) -> Result<u64> {
    let answer = http::request(http_address, "GET", "/stats?format=json", b"")?;
    let stats: Value = serde_json::from_str(&answer.body).into_diagnostic()?;
    let depth = |value: &Value| value["depth"].as_u64().unwrap_or(0);
    let topics = stats["topics"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_channels = |topic: &Value| topic["channels"].as_array().into_iter().flatten().map(depth).sum::<u64>();
    Ok(topics.iter().map(|topic| depth(topic) + of_channels(topic)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_resident() {
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 20);
    }
}

//! Topics that a broker had for some milliseconds when it was killed.

use std::collections::BTreeSet;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::Bench;
use super::broker::{Addresses, Broker, Kind, SHARDS, shards_in_words};
use super::table::Figure;
use crate::nsq::{Client, Frame};
use crate::rng::Rng;
use crate::{clock, http};

/// Everything goes to disk at once, and is synced.
const FLAGS: [&str; 2] = ["-mem-queue-size=0", "-sync-every=1"];
/// Topics of a round, each with a connection of its own.
const TOPICS: usize = 3;
/// Messages that are sent to a topic, if the broker lives so long.
const MESSAGES: u32 = 2_000;
/// A message that is there comes within this time after the one before.
const PATIENCE: Duration = Duration::from_secs(3);
/// At the latest so long after the first publish the broker is killed.
const KILLED_WITHIN_US: u64 = 50_000;

/// The row.
pub(super) fn new_topics(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for shards in SHARDS {
        figures.push(rounds(bench, Kind::Ours, shards)?);
    }
    // What the original does stands beside it and has no bar.
    let beside = rounds(bench, Kind::Nsqd, 1)?;
    figures.push(Figure { passes: true, ..beside });
    Ok(figures)
}

/// Publishes to new topics, kills, starts again and looks for what was acknowledged; again and again on one folder.
fn rounds(bench: &Bench, kind: Kind, shards: u32) -> Result<Figure> {
    let rounds = bench.size(100, 5);
    let data = bench.folder(&format!("kills-{}-{shards}", kind.name()))?;
    let addresses = Addresses::free()?;
    let shards_flag = format!("-shards={shards}");
    let flags = [FLAGS[0], FLAGS[1], &shards_flag];
    let start = || Broker::start_at(bench, kind, &data, &addresses, &flags);
    let mut rng = Rng::new(u64::from(shards));
    let (mut acknowledged, mut lost, mut unlucky, mut unknown) = (0, 0, 0, 0);
    let mut broker = start()?;
    for round in 0..rounds {
        let delay = Duration::from_micros(1_000 + rng.below(KILLED_WITHIN_US - 1_000));
        let published = publish_and_kill(broker, round, delay)?;
        broker = start()?;
        // Who subscribes by name makes the topic again and may find its files. A consumer that asks which topics there
        // are finds nothing, so what is in a topic that the broker does not know is lost.
        let known = topics(&broker)?;
        let mut lost_now = 0;
        for (number, answered) in published.iter().enumerate().filter(|(_, answered)| **answered > 0) {
            let name = topic(round, number);
            acknowledged += u64::from(*answered);
            if !known.contains(&name) {
                unknown += 1;
                lost_now += u64::from(*answered);
                continue;
            }
            let found = drain(&broker.tcp, &name, *answered)
                .wrap_err_with(|| format!("round {round}, killed after {delay:?}"))?;
            lost_now += u64::from(*answered) - found;
        }
        lost += lost_now;
        unlucky += u32::from(lost_now > 0);
    }
    broker.stop()?;
    let who = if kind == Kind::Ours { shards_in_words(shards) } else { "nsqd".to_owned() };
    Ok(Figure {
        what: format!("{who}, {rounds} SIGKILLs, {TOPICS} new topics each"),
        value: format!("{lost} lost of {acknowledged} acknowledged"),
        spread: format!("{unlucky} rounds lost something; {unknown} topics were unknown after the start"),
        passes: lost == 0 && acknowledged > 0,
        runs: json!({ "acknowledged": acknowledged, "lost": lost, "rounds": rounds, "rounds_with_losses": unlucky, "unknown": unknown }),
    })
}

/// The topics that a broker knows.
fn topics(broker: &Broker) -> Result<BTreeSet<String>> {
    let answer = http::request(&broker.http, "GET", "/stats?format=json", b"")?;
    let stats: Value = serde_json::from_str(&answer.body).into_diagnostic()?;
    let names = stats["topics"].as_array().into_iter().flatten();
    Ok(names.filter_map(|topic| topic["topic_name"].as_str().map(str::to_owned)).collect())
}

fn topic(round: u32, number: usize) -> String {
    format!("new-{round}-{number}")
}

/// Returns how many messages of each topic were acknowledged. They are numbered from 0 and answered in order.
fn publish_and_kill(broker: Broker, round: u32, delay: Duration) -> Result<Vec<u32>> {
    let clients: Vec<Client> = (0..TOPICS).map(|_| Client::connect(&broker.tcp, PATIENCE)).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let publishers: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| scope.spawn(move || publish(client, &topic(round, number))))
            .collect();
        clock::rest(delay);
        broker.kill();
        let counts = publishers.into_iter().map(|publisher| publisher.join().expect("a publisher panicked"));
        Ok(counts.collect())
    })
}

/// Publishes without waiting, and counts the answers until the connection is gone.
fn publish(mut client: Client, topic: &str) -> u32 {
    (0..MESSAGES).for_each(|number| client.put_pub(topic, &number.to_be_bytes()));
    let mut answered = 0;
    if client.flush().is_ok() {
        while answered < MESSAGES && client.answer_if_any() == Some(Frame::Response(b"OK".to_vec())) {
            answered += 1;
        }
    }
    answered
}

/// How many of the messages below `answered` are there.
fn drain(address: &str, topic: &str, answered: u32) -> Result<u64> {
    let mut client = Client::subscribe(address, topic, "found", 100, PATIENCE)?;
    let mut found = BTreeSet::new();
    while found.len() < answered as usize {
        // Nothing for so long means that nothing is left.
        let Some(frame) = client.answer_if_any() else { break };
        let Frame::Message(id, body) = frame else { continue };
        client.put_fin(&id);
        client.flush()?;
        if let Some(number) = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
            && number < answered
        {
            found.insert(number);
        }
    }
    Ok(found.len() as u64)
}

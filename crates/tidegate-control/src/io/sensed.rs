//! What a node's sensors say, as a claim's director wants to know it.

use std::collections::BTreeMap;

use tidegate_core::number::float;

use super::broker_api::{PublisherAnswer, PublishersAnswer, SecondAnswer};
use super::predict::Offered;
use crate::config::pattern::key_of;
use crate::config::{Topic, Unit};
use crate::machine::director::{Delays, Reading, Second, Seen};
use crate::machine::name::Name;
use crate::machine::types::{GroupNo, Publisher};

/// Bytes of a message on average, at least 1; 1 for limits that count messages.
fn tokens_per_message(unit: Unit, seconds: &[SecondAnswer]) -> f64 {
    let sum = |of: fn(&SecondAnswer) -> u64| float(seconds.iter().map(of).fold(0, u64::saturating_add));
    let (messages, bytes) = (sum(|second| second.messages), sum(|second| second.bytes));
    match unit {
        Unit::Bytes if messages > 0.0 => (bytes / messages).max(1.0),
        Unit::Messages | Unit::Bytes => 1.0,
    }
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// The key of a publisher: the one that it sent, else that of the first pattern that matches it.
fn correlation_of(topic: &Topic, publisher: &PublisherAnswer) -> Option<Name> {
    let key = publisher.correlation.as_deref();
    key.or_else(|| key_of(&topic.correlation, &publisher.client_id, &publisher.hostname)).map(Name::from)
}

/// The answer of a node in tokens of the topic's limit.
#[must_use]
pub(super) fn reading_of(topic: &Topic, answer: &PublishersAnswer) -> Reading {
    let per_message = tokens_per_message(topic.unit, &answer.seconds);
    let second = |second: &SecondAnswer| Second {
        start_us: second.start_us,
        tokens: match topic.unit {
            Unit::Messages => second.messages,
            Unit::Bytes => second.bytes,
        },
        backlog_max: second.backlog_max,
    };
    let seen = |publisher: &PublisherAnswer| Seen {
        identity: Name::from(publisher.identity.as_str()),
        correlation: correlation_of(topic, publisher),
        rate_per_s: finite(publisher.rate_per_s) * per_message,
    };
    Reading {
        clock_us: answer.now_us,
        seconds: answer.seconds.iter().map(second).collect(),
        publishers: answer.publishers.iter().map(seen).collect(),
        delays: Delays {
            messages: answer.delay.count,
            over_slo: answer.delay.over_slo,
            delay_us_p99: finite(answer.delay.e2e_p99_us),
            access_us_p99: finite(answer.delay.access_p99_us),
        },
    }
}

/// What all nodes together were sent.
#[must_use]
pub(super) fn offered_of<'a>(answers: impl IntoIterator<Item = &'a PublishersAnswer>) -> Offered {
    let (mut rate_per_s, mut messages, mut batches) = (0.0, 0_u64, 0_u64);
    for answer in answers {
        if let Some(seconds) = u32::try_from(answer.seconds.len()).ok().filter(|seconds| *seconds > 0) {
            let sum = answer.seconds.iter().map(|second| second.messages).fold(0, u64::saturating_add);
            rate_per_s += float(sum) / f64::from(seconds);
        }
        for publisher in &answer.publishers {
            messages = messages.saturating_add(publisher.messages);
            batches = batches.saturating_add(publisher.batches);
        }
    }
    let batch = if batches > 0 { float(messages) / float(batches) } else { 1.0 };
    Offered { rate_per_s, batch: batch.max(1.0) }
}

/// All publishers of a topic, each once, with those that share a key in one group; in order of their names.
#[must_use]
pub(super) fn publishers_of<'a>(
    topic: &Topic,
    answers: impl IntoIterator<Item = &'a PublishersAnswer>,
) -> (Vec<Name>, Vec<Publisher>) {
    let mut all: BTreeMap<Name, (f64, Option<Name>)> = BTreeMap::new();
    for answer in answers {
        let per_message = tokens_per_message(topic.unit, &answer.seconds);
        for publisher in &answer.publishers {
            let key = correlation_of(topic, publisher);
            let one = all.entry(Name::from(publisher.identity.as_str())).or_insert((0.0, key));
            one.0 += finite(publisher.rate_per_s) * per_message;
        }
    }
    let mut keys: BTreeMap<Name, u32> = BTreeMap::new();
    let mut groups = 0..u32::MAX;
    let mut next = || groups.next().unwrap_or(u32::MAX);
    let mut publishers = Vec::with_capacity(all.len());
    let mut names = Vec::with_capacity(all.len());
    for (name, (rate_per_s, key)) in all {
        let group = match key {
            Some(key) => *keys.entry(key).or_insert_with(&mut next),
            None => next(),
        };
        publishers.push(Publisher { rate_per_s, group: GroupNo(group) });
        names.push(name);
    }
    (names, publishers)
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;
    use crate::config::Config;

    fn topic(more: &str) -> Topic {
        let text = format!("[[control.topic]]\nname = \"t\"\nrate = 1\nburst = 9\n{more}");
        Config::from_document(&Document::new("t.toml", text)).unwrap().topics.remove(0)
    }

    fn answer(publishers: &str) -> PublishersAnswer {
        let text = format!(
            r#"{{"now_us": 9, "seconds": [{{"start_us": 1, "messages": 4, "bytes": 40, "backlog_max": 3}},
            {{"start_us": 2, "messages": 6, "bytes": 60}}], "publishers": [{publishers}],
            "delay": {{"count": 10, "over_slo": 1, "e2e_p99_us": 1500.0, "access_p99_us": 700.0}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const A: &str =
        r#"{"identity": "a@h", "client_id": "a", "hostname": "h", "messages": 8, "batches": 2, "rate_per_s": 4.0}"#;
    const B: &str =
        r#"{"identity": "b@h", "correlation": "k", "client_id": "b", "messages": 2, "batches": 2, "rate_per_s": 1.0}"#;

    #[test]
    fn tokens_are_messages_or_bytes() {
        let answer = answer(&format!("{A},{B}"));
        let reading = reading_of(&topic(""), &answer);
        assert_eq!((reading.clock_us, reading.seconds[0].tokens, reading.seconds[0].backlog_max), (9, 4, 3));
        assert_eq!(reading.publishers[0], Seen { identity: "a@h".into(), correlation: None, rate_per_s: 4.0 });
        assert_eq!(reading.publishers[1].correlation, Some("k".into()));
        assert_eq!((reading.delays.messages, reading.delays.over_slo), (10, 1));
        let reading = reading_of(&topic("unit = \"bytes\"\n"), &answer);
        assert_eq!((reading.seconds[1].tokens, reading.publishers[0].rate_per_s), (60, 40.0));
    }

    #[test]
    fn patterns_give_keys_to_those_that_send_none() {
        let topic = topic("correlation = [ { client = \"a*\", key = \"k\" }, { client = \"*\", key = \"rest\" } ]\n");
        let reading = reading_of(&topic, &answer(&format!("{A},{B}")));
        let keys: Vec<_> = reading.publishers.iter().map(|seen| seen.correlation.clone().unwrap()).collect();
        assert_eq!(keys, ["k".into(), "k".into()]);
    }

    #[test]
    fn publishers_of_all_nodes_are_counted_once() {
        let one = answer(&format!("{A},{B}"));
        let two = answer(&format!("{A},{{\"identity\": \"c\", \"correlation\": \"k\", \"rate_per_s\": -1.0}}"));
        let (names, publishers) = publishers_of(&topic(""), [&one, &two]);
        assert_eq!(names, ["a@h".into(), "b@h".into(), "c".into()]);
        assert_eq!(publishers.iter().map(|one| one.rate_per_s).collect::<Vec<_>>(), [8.0, 1.0, 0.0]);
        let groups: Vec<u32> = publishers.iter().map(|one| one.group.0).collect();
        assert!(groups[0] != groups[1] && groups[1] == groups[2], "{groups:?}");
        let offered = offered_of([&one, &two]);
        assert!((offered.rate_per_s - 10.0).abs() < 1e-9 && (offered.batch - 3.0).abs() < 1e-9, "{offered:?}");
        assert!(offered_of([]).rate_per_s.abs() < 1e-9);
    }
}

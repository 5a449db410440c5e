//! One state of everything, as a whole and as the difference to the one before.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::Serialize;

use crate::neighbours::Proxy;
use crate::view::{Broker, Row, RowId};

/// Names a frame across reconnects: the feed's own number, so that ids of an earlier process are not mistaken for ours,
/// and the frame's place in the feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameId {
    pub(crate) epoch: u32,
    pub(crate) sequence: u64,
}

impl FrameId {
    /// Reads what a browser sends as `Last-Event-ID`; `None` if it is not ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, sequence) = text.split_once('-')?;
        Some(Self { epoch: u32::from_str_radix(epoch, 16).ok()?, sequence: sequence.parse().ok()? })
    }

    fn follows(self, earlier: Self) -> bool {
        self.epoch == earlier.epoch && self.sequence == earlier.sequence + 1
    }
}

/// One round of polls, ready to be streamed. The event is encoded once, however many watch.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) id: FrameId,
    pub(crate) brokers: Vec<Broker>,
    /// In order of their ids.
    pub(crate) rows: Vec<Row>,
    proxies: Vec<Proxy>,
    left_out: usize,
    extras: Extras,
    delta: Bytes,
    full: OnceLock<Bytes>,
}

/// What a round of polls found.
pub(crate) struct Found {
    pub(crate) brokers: Vec<Broker>,
    pub(crate) rows: Vec<Row>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) left_out: usize,
    pub(crate) extras: Extras,
}

/// What there is beside brokers; the page shows a tab for each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each says of one thing whether it is there")]
pub(crate) struct Extras {
    pub(crate) has_demo: bool,
    pub(crate) has_rpc: bool,
    pub(crate) has_placement: bool,
    pub(crate) has_shaper: bool,
}

#[derive(Serialize)]
struct Event<'a> {
    brokers: &'a [Broker],
    rows: &'a [&'a Row],
    /// Rows of the frame before that are no longer there.
    gone: &'a [&'a RowId],
    left_out: usize,
    /// Absent from a difference when none of them changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxies: Option<&'a [Proxy]>,
    #[serde(flatten)]
    extras: Extras,
}

impl Frame {
    /// The frame after `before`.
    pub(crate) fn new(id: FrameId, found: Found, before: Option<&Self>) -> Self {
        let Found { brokers, rows, proxies, left_out, extras } = found;
        let old: BTreeMap<&RowId, &Row> = before.into_iter().flat_map(|f| &f.rows).map(|row| (&row.id, row)).collect();
        let changed: Vec<&Row> = rows.iter().filter(|row| old.get(&row.id) != Some(row)).collect();
        let is_gone = |id: &&RowId| rows.binary_search_by(|row| row.id.cmp(id)).is_err();
        let gone: Vec<&RowId> = old.into_keys().filter(is_gone).collect();
        let is_new = before.is_none_or(|before| before.proxies != proxies);
        let event = Event {
            brokers: &brokers,
            rows: &changed,
            gone: &gone,
            left_out,
            proxies: is_new.then_some(&*proxies),
            extras,
        };
        let delta = encode(id, "delta", &event);
        Self { id, brokers, rows, proxies, left_out, extras, delta, full: OnceLock::new() }
    }

    /// The event for a page whose newest frame is `seen`: the difference if that is the frame before this one, else
    /// everything. A page that was skipped because it reads slowly, or that reconnects, is thus whole again at once.
    pub(crate) fn event_after(&self, seen: Option<FrameId>) -> Bytes {
        if seen.is_some_and(|seen| self.id.follows(seen)) {
            return self.delta.clone();
        }
        let encode_full = || {
            let rows: Vec<&Row> = self.rows.iter().collect();
            let (left_out, extras, proxies) = (self.left_out, self.extras, Some(&*self.proxies));
            encode(
                self.id,
                "full",
                &Event { brokers: &self.brokers, rows: &rows, gone: &[], left_out, proxies, extras },
            )
        };
        self.full.get_or_init(encode_full).clone()
    }
}

/// An event of `text/event-stream`. JSON has no raw line breaks, so one data line holds it.
fn encode(id: FrameId, name: &str, event: &Event<'_>) -> Bytes {
    let data = serde_json::to_string(event).expect("strings and numbers only");
    format!("id: {:x}-{}\nevent: {name}\ndata: {data}\n\n", id.epoch, id.sequence).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::BrokerSnapshot;
    use crate::view::Ledger;

    fn frame(sequence: u64, depths: &[(&str, u64)], before: Option<&Frame>) -> Frame {
        let topics: Vec<_> = depths.iter().map(|(name, d)| serde_json::json!({"name": name, "depth": d})).collect();
        let snapshot: BrokerSnapshot = serde_json::from_value(serde_json::json!({ "topics": topics })).expect("valid");
        let (rows, left_out) = Ledger::default().rows(&[("b".into(), snapshot)]);
        let found = Found { brokers: Vec::new(), rows, proxies: Vec::new(), left_out, extras: Extras::default() };
        Frame::new(FrameId { epoch: 0xab, sequence }, found, before)
    }

    fn data(event: &Bytes) -> serde_json::Value {
        let text = std::str::from_utf8(event).expect("UTF-8");
        assert!(text.ends_with("\n\n"));
        serde_json::from_str(text.lines().nth(2).and_then(|line| line.strip_prefix("data: ")).expect("data"))
            .expect("JSON")
    }

    #[test]
    fn the_next_frame_carries_only_what_changed() {
        let first = frame(1, &[("a", 1), ("b", 1), ("c", 1)], None);
        let second = frame(2, &[("a", 1), ("b", 2), ("d", 1)], Some(&first));
        let delta = second.event_after(Some(first.id));
        assert!(delta.starts_with(b"id: ab-2\nevent: delta\n"));
        let delta = data(&delta);
        let names: Vec<_> = delta["rows"].as_array().expect("rows").iter().map(|row| row["topic"].clone()).collect();
        assert_eq!(names, ["b", "d"]);
        assert_eq!(delta["gone"][0]["topic"], "c");
        assert!(delta.get("proxies").is_none(), "there is nothing new about them");
        assert_eq!(delta["gone"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn whoever_missed_a_frame_gets_everything() {
        let first = frame(1, &[("a", 1), ("b", 1)], None);
        let second = frame(2, &[("a", 1), ("b", 2)], Some(&first));
        let other_process = FrameId { epoch: 0xac, sequence: 1 };
        for seen in [None, Some(second.id), Some(FrameId { sequence: 0, ..first.id }), Some(other_process)] {
            let full = second.event_after(seen);
            assert!(full.starts_with(b"id: ab-2\nevent: full\n"), "{seen:?}");
            assert_eq!(data(&full)["rows"].as_array().map(Vec::len), Some(2));
        }
    }

    #[test]
    fn ids_survive_the_round_trip_through_a_browser() {
        assert_eq!(FrameId::parse("ab-2"), Some(FrameId { epoch: 0xab, sequence: 2 }));
        for foreign in ["", "7", "ab-", "-2", "zz-1", "ab-1-1", "ab--1"] {
            assert_eq!(FrameId::parse(foreign), None, "{foreign}");
        }
    }
}

//! A broker's trace, version 2, as planners want to know it: batches by publisher, in order of their arrivals.
//!
//! A header line, then for each message its times and its publisher's number, and before the first message of a publisher a
//! line `@{"publisher": 1, "identity": ..}`. Publisher 0 is one that the broker does not tell apart.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::machine::director::{RecordedBatch, Recording};
use crate::machine::name::Name;

const HEADER: &str = "arrival_ns,read_ns,release_ns,passed_ns,publisher,bytes";
/// Messages at most; those beyond are left out, as the planner would.
const MESSAGES_MAX: usize = 4_000_000;
/// What publishers are called that a broker does not tell apart.
const OTHERS: &str = "others";

#[derive(Deserialize)]
struct Introduced {
    publisher: u32,
    identity: String,
}

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    arrival_ns: u64,
    /// A place among the identities.
    publisher: u32,
}

/// The recording in `text`.
///
/// # Errors
/// The number of the first line that cannot be read, counted from 1.
pub(super) fn parse(text: &[u8]) -> Result<Recording, usize> {
    let mut identities: Vec<Name> = Vec::new();
    let mut places: BTreeMap<u32, u32> = BTreeMap::new();
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in (1_usize..).zip(text.split(|byte| *byte == b'\n')) {
        let line = std::str::from_utf8(line).map_err(|_| number)?;
        // A broker whose disk was too slow says in a comment how many rows it left out.
        if line.is_empty() || line.starts_with('#') || (number == 1 && line == HEADER) {
            continue;
        }
        if let Some(introduced) = line.strip_prefix('@') {
            let Introduced { publisher, identity } = serde_json::from_str(introduced).map_err(|_| number)?;
            let place = place_of(&mut identities, &identity);
            places.insert(publisher, place);
            continue;
        }
        let (arrival_ns, publisher) = row(line).ok_or(number)?;
        if rows.len() == MESSAGES_MAX {
            break;
        }
        let publisher = *places.entry(publisher).or_insert_with(|| place_of(&mut identities, OTHERS));
        rows.push(Row { arrival_ns, publisher });
    }
    // Messages stand in the order in which they went.
    rows.sort_unstable();
    let mut batches: Vec<RecordedBatch> = Vec::new();
    let mut last = None;
    for row in rows {
        // Messages of one command came at one instant.
        match batches.last_mut() {
            Some(batch) if last == Some(row) => batch.messages = batch.messages.saturating_add(1),
            _ => batches.push(RecordedBatch { at_us: row.arrival_ns / 1_000, publisher: row.publisher, messages: 1 }),
        }
        last = Some(row);
    }
    Ok(Recording { identities, batches })
}

/// Where `identity` stands, at the end if it is new. Numbers are given once to a publisher, so names come once but for
/// those that are not told apart.
fn place_of(identities: &mut Vec<Name>, identity: &str) -> u32 {
    if identity == OTHERS
        && let Some(at) = identities.iter().position(|known| known.as_str() == OTHERS)
    {
        return u32::try_from(at).unwrap_or(u32::MAX);
    }
    identities.push(identity.into());
    u32::try_from(identities.len() - 1).unwrap_or(u32::MAX)
}

fn row(line: &str) -> Option<(u64, u32)> {
    let mut columns = line.split(',');
    let arrival_ns = columns.next()?.parse().ok()?;
    let publisher = columns.nth(3)?.parse().ok()?;
    columns.next()?.parse::<u64>().ok()?;
    columns.next().is_none().then_some((arrival_ns, publisher))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(at_us: u64, publisher: u32, messages: u32) -> RecordedBatch {
        RecordedBatch { at_us, publisher, messages }
    }

    #[test]
    fn messages_of_one_command_are_a_batch() {
        let text = format!(
            "{HEADER}\n@{{\"publisher\":1,\"identity\":\"a@h\",\"correlation\":null}}\n5000,1,2,3,1,9\n5000,1,2,3,1,9\n\
             @{{\"publisher\":2,\"identity\":\"b\"}}\n# 4 messages left out: the disk was too slow\n1000,1,2,3,2,7\n\
             5000,1,2,3,2,7\n6000,1,2,3,0,7\n7000,1,2,3,9,7\n"
        );
        let recording = parse(text.as_bytes()).unwrap();
        assert_eq!(recording.identities, ["a@h".into(), "b".into(), OTHERS.into()]);
        let expected = [batch(1, 1, 1), batch(5, 0, 2), batch(5, 1, 1), batch(6, 2, 1), batch(7, 2, 1)];
        assert_eq!(recording.batches, expected);
        assert_eq!(parse(b"").unwrap(), Recording::default());
    }

    #[test]
    fn lines_that_are_none_are_named() {
        for bad in ["5000,1,2,3,9", "x,1,2,3,1,9", "1,1,2,3,1,9,9", "@{}", "\u{fffd}"] {
            assert_eq!(parse(format!("{HEADER}\n1,1,2,3,0,9\n{bad}\n").as_bytes()), Err(3), "{bad}");
        }
        assert_eq!(parse(b"\xff"), Err(1));
    }
}

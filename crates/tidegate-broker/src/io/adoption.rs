//! Queues on disk that nobody knows: files of topics and channels that `nsqd.dat` does not name.
//!
//! A crash leaves them where the file of names was older than the messages, or where a deletion was under way. Their
//! messages may have been acknowledged, so their topics and channels come back.

use std::collections::BTreeMap;

use tidegate_wire::nsq::{ChannelName, TopicName};

use super::disk_queue::{DiskQueue, Files, Listing};
use super::disk_thread::DiskThreadOptions;
use super::metadata::{ChannelMetadata, Metadata, TopicMetadata};

/// Adopted queues that the log names; the others it counts.
const NAMED_MAX: usize = 20;

/// Adds to `names` each topic and channel of `listing` that it lacks and that has a message on disk; answers whether
/// there were any.
pub fn adopt<F: Files + Clone>(
    files: &F,
    options: &DiskThreadOptions,
    listing: &Listing,
    names: &mut Metadata,
) -> bool {
    let mut topics: BTreeMap<TopicName, usize> =
        names.topics.iter().enumerate().map(|(at, topic)| (topic.name.clone(), at)).collect();
    let mut adopted = 0;
    for queue in listing.names() {
        let Some((topic, channel)) = parse(queue) else { continue };
        let at = topics.get(&topic).copied();
        let known = at.is_some_and(|at| {
            let channels = &names.topics[at].channels;
            channel.as_ref().is_none_or(|channel| channels.iter().any(|known| known.name == *channel))
        });
        if known || !holds_messages(files, options, listing, queue) {
            continue;
        }
        adopted += 1;
        if adopted <= NAMED_MAX {
            tracing::warn!(
                %topic,
                channel = channel.as_ref().map(ToString::to_string),
                "has messages on disk and is not in nsqd.dat; it is taken up again. If it was deleted, delete it again"
            );
        }
        let at = at.unwrap_or_else(|| {
            names.topics.push(TopicMetadata { name: topic.clone(), paused: false, channels: Vec::new() });
            names.topics.len() - 1
        });
        topics.insert(topic, at);
        if let Some(name) = channel {
            names.topics[at].channels.push(ChannelMetadata { name, paused: false });
        }
    }
    if adopted > NAMED_MAX {
        tracing::warn!(
            queues = adopted,
            "all queues on disk, with these, that were not in nsqd.dat and are taken up again"
        );
    }
    adopted > 0
}

/// What nsqd calls `topic` or `topic:channel`. Nothing ephemeral is on disk.
fn parse(queue: &str) -> Option<(TopicName, Option<ChannelName>)> {
    let (topic, channel) = match queue.split_once(':') {
        Some((topic, channel)) => (topic, Some(ChannelName::new(channel).ok()?)),
        None => (queue, None),
    };
    let topic = TopicName::new(topic).ok()?;
    let ephemeral = topic.is_ephemeral() || channel.as_ref().is_some_and(ChannelName::is_ephemeral);
    (!ephemeral).then_some((topic, channel))
}

/// Whether the queue has a message, or cannot be read: then it may have some.
fn holds_messages<F: Files + Clone>(files: &F, options: &DiskThreadOptions, listing: &Listing, queue: &str) -> bool {
    let listed = |_: &F| Ok(listing.numbers(queue).to_owned());
    let disk = DiskQueue::open_listed(files.clone(), &options.data_path, queue, options.queue, listed);
    disk.map_or_else(
        |error| {
            tracing::warn!(%error, "files that nsqd.dat does not know cannot be read");
            true
        },
        |disk| disk.depth() > 0,
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::io::disk_queue::memory::MemoryFiles;
    use crate::io::disk_queue::{DiskQueueOptions, RecordLen};

    const RECORD: [u8; 8] = *b"\0\0\0\x04abcd";

    fn adopted(files: &MemoryFiles, known: &[(&str, &[&str])]) -> Vec<String> {
        let topic = |(name, channels): &(&str, &[&str])| TopicMetadata {
            name: TopicName::new(name).unwrap(),
            paused: true,
            channels: channels
                .iter()
                .map(|name| ChannelMetadata { name: ChannelName::new(name).unwrap(), paused: true })
                .collect(),
        };
        let mut names = Metadata { topics: known.iter().map(topic).collect() };
        let options = DiskThreadOptions {
            data_path: "/d".into(),
            queue: DiskQueueOptions {
                max_bytes_per_file: 100,
                record_len: RecordLen { min: 4, max: 60 },
                sync_every: 1,
            },
            sync_timeout: Duration::from_secs(1),
            holders_max: 8,
        };
        let listing = Listing::read(files, Path::new("/d")).unwrap();
        adopt(files, &options, &listing, &mut names);
        let flowing = names.topics.into_iter().flat_map(|topic| {
            let own = (!topic.paused).then(|| topic.name.to_string());
            let channels = topic.channels.into_iter().filter(|channel| !channel.paused);
            let name = topic.name;
            own.into_iter().chain(channels.map(move |channel| format!("{name}:{}", channel.name)))
        });
        flowing.collect()
    }

    fn with(files: &MemoryFiles, name: &str, contents: &[u8]) {
        files.with(name, |file| file.extend(contents));
    }

    #[test]
    fn files_with_records_and_without_a_name_are_adopted() {
        let files = MemoryFiles::default();
        with(&files, "known.diskqueue.000000.dat", &RECORD);
        with(&files, "known:known.diskqueue.000000.dat", &RECORD);
        with(&files, "known:new.diskqueue.000000.dat", &RECORD);
        with(&files, "new.diskqueue.000003.dat", &RECORD);
        with(&files, "other:a.diskqueue.000000.dat", &RECORD);
        with(&files, "other:b.diskqueue.1000000.dat", &RECORD);
        assert_eq!(adopted(&files, &[("known", &["known"])]), ["known:new", "new", "other", "other:a", "other:b"]);
    }

    #[test]
    fn what_holds_no_message_stays_where_it_is() {
        let files = MemoryFiles::default();
        with(&files, "empty.diskqueue.000000.dat", b"");
        with(&files, "torn.diskqueue.000000.dat", &RECORD[..5]);
        with(&files, "bad.diskqueue.000000.dat.bad", &RECORD);
        with(&files, "read.diskqueue.000000.dat", &RECORD);
        with(&files, "read.diskqueue.meta.dat", b"0\n0,8\n0,8\n");
        with(&files, "no name.diskqueue.000000.dat", &RECORD);
        with(&files, "gone#ephemeral.diskqueue.000000.dat", &RECORD);
        with(&files, "nsqd.dat", b"{}");
        let before = files.names();
        assert!(adopted(&files, &[]).is_empty());
        assert_eq!(files.names(), before);
    }
}

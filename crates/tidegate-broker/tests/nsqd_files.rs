//! Data folders that nsqd 1.3.0 left, as they are.
//!
//! Both come from `nsqd -mem-queue-size=0 -max-bytes-per-file=200`: messages 1 to 7 published to `readings`, whose
//! channel `archive` nobody consumes, and one to `quiet`, which is paused and has no channel. One nsqd was stopped, the
//! other killed.

#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_broker::io::disk_queue::{DiskQueue, DiskQueueOptions, RecordLen};
use tidegate_broker::io::metadata::Metadata;

/// Timestamp, attempts and id in front of a body.
const HEADER: usize = 26;

const OPTIONS: DiskQueueOptions =
    DiskQueueOptions { max_bytes_per_file: 200, record_len: RecordLen::for_messages(1024 * 1024), sync_every: 2500 };

/// Tests of this process run side by side, and some copy the same folder.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// A copy of one of the folders; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn copy_of(name: &str) -> Self {
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nsqd_1_3_0").join(name);
        let (process, copy) = (std::process::id(), COPIES.fetch_add(1, Ordering::Relaxed));
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nsqd-files-{name}-{process}-{copy}"));
        fs::create_dir_all(&copy).unwrap();
        for entry in fs::read_dir(original).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        Self(copy)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The depth that the queue claims and the bodies that it has.
fn drain(folder: &Folder, name: &str) -> (u64, Vec<String>) {
    let mut queue = DiskQueue::open(&folder.0, name, OPTIONS).unwrap();
    let depth = queue.depth();
    let (mut records, mut bodies) = (Vec::new(), Vec::new());
    while queue.read(100, &mut records).unwrap() > 0 {}
    let mut rest = &records[..];
    while let Some((len, tail)) = rest.split_first_chunk::<4>() {
        let (record, tail) = tail.split_at(u32::from_be_bytes(*len) as usize);
        bodies.push(String::from_utf8(record[HEADER..].to_vec()).unwrap());
        rest = tail;
    }
    queue.advance(u32::MAX);
    assert_eq!(queue.depth(), 0);
    queue.close().unwrap();
    (depth, bodies)
}

fn messages(numbers: std::ops::RangeInclusive<u32>) -> Vec<String> {
    numbers.map(|number| format!("message {number}")).collect()
}

#[test]
fn a_stopped_nsqd_leaves_exactly_its_messages() {
    let folder = Folder::copy_of("stopped");
    assert_eq!(drain(&folder, "readings:archive"), (7, messages(1..=7)));
    assert_eq!(drain(&folder, "readings"), (0, Vec::new()));
    assert_eq!(drain(&folder, "quiet"), (1, vec!["waits".to_owned()]));
    // And once drained, they stay so.
    assert_eq!(drain(&folder, "readings:archive"), (0, Vec::new()));
}

#[test]
fn a_killed_nsqd_leaves_more_than_its_meta_files_know() {
    let folder = Folder::copy_of("killed");
    assert_eq!(drain(&folder, "readings:archive"), (7, messages(1..=7)));
    // The channel has these already; that they left the topic was not written down.
    assert_eq!(drain(&folder, "readings"), (2, messages(6..=7)));
    assert_eq!(drain(&folder, "quiet"), (1, vec!["waits".to_owned()]));
}

#[test]
fn its_topics_and_channels_are_known() {
    for name in ["stopped", "killed"] {
        let folder = Folder::copy_of(name);
        let found = Metadata::read(&folder.0).unwrap();
        assert!(found.invalid_names.is_empty());
        let mut topics: Vec<_> = found
            .metadata
            .topics
            .iter()
            .map(|topic| {
                let channels: Vec<_> = topic.channels.iter().map(|c| (c.name.as_str(), c.paused)).collect();
                (topic.name.as_str(), topic.paused, channels)
            })
            .collect();
        // nsqd's order is that of a Go map: any.
        topics.sort();
        assert_eq!(topics, [("quiet", true, vec![]), ("readings", false, vec![("archive", false)])]);
    }
}

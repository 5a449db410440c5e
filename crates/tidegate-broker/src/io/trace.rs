//! Traces of a topic's messages, for `tidegate profile`, for replays and for measuring the limiter.
//!
//! A trace is a text file `TOPIC.trace` in the data folder: a header line, then for each message its arrival as the
//! contract charged it, when it was read, its release by the contract's reckoning, when it really went, all in ns of the
//! machine's monotonic clock, the number of its publisher, and its bytes. Before the first message of a publisher a line
//! says who that is, as JSON behind an `@`. Version 1 had no publishers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tidegate_wire::nsq::TopicName;

use crate::machine::Passage;
use crate::machine::trace::{Traced, TracedPublisher};

/// Batches that wait for the disk; beyond, they are left out and counted.
const BATCHES: usize = 1024;
/// Identities of pieces that were left out, which the next piece needs; beyond, its publishers are numbers alone.
const OWED_MAX: usize = 65_536;
/// The first line of a trace, version 2.
pub const HEADER: &str = "arrival_ns,read_ns,release_ns,passed_ns,publisher,bytes";
/// The same of version 1.
pub const HEADER_V1: &str = "arrival_ns,read_ns,release_ns,passed_ns,bytes";
/// What the line of a publisher begins with.
pub const PUBLISHER_MARK: char = '@';

enum Job {
    Traced(TopicName, Traced),
    Stop,
}

/// Owns the thread that writes traces.
#[derive(Debug)]
pub(super) struct TraceWriter {
    handle: TraceHandle,
    thread: JoinHandle<()>,
}

/// Hands passages to the writer.
#[derive(Clone, Debug)]
pub(super) struct TraceHandle {
    sender: SyncSender<Job>,
    left_out: Arc<LeftOut>,
}

/// What the disk was too slow for.
#[derive(Default, Debug)]
struct LeftOut {
    messages: AtomicU64,
    /// Publishers of which messages to come may speak.
    publishers: Mutex<Vec<(TopicName, TracedPublisher)>>,
}

impl LeftOut {
    fn note(&self, topic: &TopicName, traced: Traced) {
        // Relaxed: a count for people.
        self.messages.fetch_add(traced.passages.len() as u64, Ordering::Relaxed);
        if !traced.publishers.is_empty() {
            let mut owed = self.owed();
            let room = OWED_MAX.saturating_sub(owed.len());
            owed.extend(traced.publishers.into_iter().take(room).map(|publisher| (topic.clone(), publisher)));
        }
    }

    /// The publishers that the trace of `topic` lacks.
    fn take_publishers(&self, topic: &TopicName) -> Vec<TracedPublisher> {
        self.owed().extract_if(.., |(of, _)| *of == *topic).map(|(_, publisher)| publisher).collect()
    }

    fn owed(&self) -> MutexGuard<'_, Vec<(TopicName, TracedPublisher)>> {
        self.publishers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceWriter {
    pub(super) fn start(folder: PathBuf) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(BATCHES);
        let left_out = Arc::<LeftOut>::default();
        let handle = TraceHandle { sender, left_out: left_out.clone() };
        let thread =
            std::thread::Builder::new().name("trace".to_owned()).spawn(move || write(&folder, &receiver, &left_out))?;
        Ok(Self { handle, thread })
    }

    pub(super) fn handle(&self) -> TraceHandle {
        self.handle.clone()
    }

    pub(super) fn stop(self) {
        let _ = self.handle.sender.send(Job::Stop);
        let _ = self.thread.join();
    }
}

impl TraceHandle {
    /// An empty piece ends the topic's trace.
    pub(super) fn send(&self, topic: TopicName, traced: Traced) {
        let sent = self.sender.try_send(Job::Traced(topic, traced));
        if let Err(TrySendError::Full(Job::Traced(topic, traced))) = sent {
            self.left_out.note(&topic, traced);
        }
    }
}

fn write(folder: &Path, jobs: &Receiver<Job>, left_out: &LeftOut) {
    let mut files: BTreeMap<TopicName, BufWriter<File>> = BTreeMap::new();
    while let Ok(Job::Traced(topic, traced)) = jobs.recv() {
        if let Err(error) = append(folder, &mut files, &topic, &traced, left_out) {
            tracing::warn!(%topic, %error, "the trace cannot be written");
            files.remove(&topic);
        }
        if traced.is_empty() {
            files.remove(&topic);
            left_out.take_publishers(&topic);
        }
    }
}

fn append(
    folder: &Path,
    files: &mut BTreeMap<TopicName, BufWriter<File>>,
    topic: &TopicName,
    traced: &Traced,
    left_out: &LeftOut,
) -> io::Result<()> {
    if !files.contains_key(topic) {
        if traced.is_empty() {
            return Ok(());
        }
        let mut file = BufWriter::new(File::create(folder.join(format!("{topic}.trace")))?);
        writeln!(file, "{HEADER}")?;
        files.insert(topic.clone(), file);
    }
    let Some(file) = files.get_mut(topic) else { return Ok(()) };
    let lost = left_out.messages.swap(0, Ordering::Relaxed);
    if lost > 0 {
        writeln!(file, "# {lost} messages left out: the disk was too slow")?;
    }
    for publisher in left_out.take_publishers(topic).iter().chain(&traced.publishers) {
        write!(file, "{PUBLISHER_MARK}")?;
        serde_json::to_writer(&mut *file, publisher)?;
        writeln!(file)?;
    }
    for passage in &traced.passages {
        let Passage { arrival, read, release, passed, publisher, bytes } = passage;
        let [arrival, read, release, passed] = [arrival, read, release, passed].map(|at| at.as_nanos());
        writeln!(file, "{arrival},{read},{release},{passed},{publisher},{bytes}")?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Instant;

    use super::*;

    fn piece(publishers: &[(u32, &str)], numbers: &[u32]) -> Traced {
        let publisher = |(number, identity): &(u32, &str)| TracedPublisher {
            number: *number,
            identity: (*identity).to_owned(),
            correlation: (*number == 2).then(|| "k".to_owned()),
        };
        let [arrival, read, release, passed] = [1, 2, 3, 4].map(Instant::from_nanos);
        let passage = |publisher: &u32| Passage { arrival, read, release, passed, bytes: 9, publisher: *publisher };
        Traced {
            publishers: publishers.iter().map(publisher).collect(),
            passages: numbers.iter().map(passage).collect(),
        }
    }

    #[test]
    fn identities_stand_before_the_messages_that_speak_of_them() {
        let folder = std::env::temp_dir().join(format!("tidegate-trace-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let topic = TopicName::new("t").unwrap();
        let other = TopicName::new("other").unwrap();
        let (sender, jobs) = sync_channel(BATCHES);
        let left_out = LeftOut::default();
        left_out.note(&topic, piece(&[(1, "a@h"), (3, "c\n")], &[1, 3, 0]));
        left_out.note(&other, piece(&[(1, "elsewhere")], &[]));
        for job in [
            Job::Traced(topic.clone(), piece(&[(2, "b")], &[1, 2, 0])),
            Job::Traced(topic.clone(), piece(&[], &[3])),
            Job::Traced(topic.clone(), Traced::default()),
            Job::Traced(other.clone(), Traced::default()),
            Job::Stop,
        ] {
            sender.send(job).unwrap();
        }
        write(&folder, &jobs, &left_out);
        let written = std::fs::read_to_string(folder.join("t.trace")).unwrap();
        let expected = [
            "arrival_ns,read_ns,release_ns,passed_ns,publisher,bytes",
            "# 3 messages left out: the disk was too slow",
            r#"@{"publisher":1,"identity":"a@h","correlation":null}"#,
            r#"@{"publisher":3,"identity":"c\n","correlation":null}"#,
            r#"@{"publisher":2,"identity":"b","correlation":"k"}"#,
            "1,2,3,4,1,9",
            "1,2,3,4,2,9",
            "1,2,3,4,0,9",
            "1,2,3,4,3,9",
        ];
        assert_eq!(written.lines().collect::<Vec<_>>(), expected);
        assert!(left_out.owed().is_empty(), "a recording that has ended owes nothing");
        assert!(!folder.join("other.trace").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

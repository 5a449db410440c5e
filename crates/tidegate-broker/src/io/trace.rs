//! Traces of a topic's messages, for `tidegate profile` and for measuring the limiter.
//!
//! A trace is a text file `TOPIC.trace` in the data folder: a header line, then for each message its arrival as the
//! contract charged it, when it was read, its release by the contract's reckoning, when it really went, all in ns of the
//! machine's monotonic clock, and its bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tidegate_wire::nsq::TopicName;

use crate::machine::Passage;

/// Batches that wait for the disk; beyond, they are left out and counted.
const BATCHES: usize = 1024;
/// The first line of a trace.
pub const HEADER: &str = "arrival_ns,read_ns,release_ns,passed_ns,bytes";

enum Job {
    Passages(TopicName, Vec<Passage>),
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
    left_out: Arc<AtomicU64>,
}

impl TraceWriter {
    pub(super) fn start(folder: PathBuf) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(BATCHES);
        let left_out = Arc::new(AtomicU64::new(0));
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
    /// An empty batch ends the topic's trace.
    pub(super) fn send(&self, topic: TopicName, passages: Vec<Passage>) {
        let count = passages.len() as u64;
        if self.sender.try_send(Job::Passages(topic, passages)).is_err() {
            // Relaxed: a count for people.
            self.left_out.fetch_add(count, Ordering::Relaxed);
        }
    }
}

fn write(folder: &Path, jobs: &Receiver<Job>, left_out: &AtomicU64) {
    let mut files: BTreeMap<TopicName, BufWriter<File>> = BTreeMap::new();
    while let Ok(Job::Passages(topic, passages)) = jobs.recv() {
        if let Err(error) = append(folder, &mut files, &topic, &passages, left_out) {
            tracing::warn!(%topic, %error, "the trace cannot be written");
            files.remove(&topic);
        }
        if passages.is_empty() {
            files.remove(&topic);
        }
    }
}

fn append(
    folder: &Path,
    files: &mut BTreeMap<TopicName, BufWriter<File>>,
    topic: &TopicName,
    passages: &[Passage],
    left_out: &AtomicU64,
) -> io::Result<()> {
    if !files.contains_key(topic) {
        if passages.is_empty() {
            return Ok(());
        }
        let mut file = BufWriter::new(File::create(folder.join(format!("{topic}.trace")))?);
        writeln!(file, "{HEADER}")?;
        files.insert(topic.clone(), file);
    }
    let Some(file) = files.get_mut(topic) else { return Ok(()) };
    let lost = left_out.swap(0, Ordering::Relaxed);
    if lost > 0 {
        writeln!(file, "# {lost} messages left out: the disk was too slow")?;
    }
    for passage in passages {
        let Passage { arrival, read, release, passed, bytes } = passage;
        let [arrival, read, release, passed] = [arrival, read, release, passed].map(|at| at.as_nanos());
        writeln!(file, "{arrival},{read},{release},{passed},{bytes}")?;
    }
    file.flush()
}

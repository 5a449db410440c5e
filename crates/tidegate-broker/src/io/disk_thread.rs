//! The one thread that touches the queues' files.
//!
//! It carries out the [`LogCommand`]s of all shards, in the order in which they came, and answers through a function
//! that the caller gives. One thread is enough: the work is bounded by the device, and batches make commands rare.
//!
//! At most [`COMMANDS_MAX`] commands wait. A shard has a few of them under way for each of its queues, and holds
//! publishers back while a queue's append is; so the bound is only met when the device stalls with very many queues in
//! use, and then [`DiskHandle::send`] blocks the shard until the device has caught up.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tidegate_runtime::clock;
use tracing::{error, info, warn};

use super::disk_queue::{DiskQueue, DiskQueueError, DiskQueueOptions, Files, RecordLen, SystemFiles};
use crate::config::Config;
use crate::machine::log::{LogCommand, LogEvent, QueueId};

/// Commands that wait for the thread. Their bytes are bounded by the shards, each of which has one append under way for
/// each queue.
pub const COMMANDS_MAX: usize = 4096;

/// Commands carried out between two looks at the clock.
const COMMANDS_PER_LOOK: usize = 64;

/// Where the queues are and how they are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskThreadOptions {
    /// The folder.
    pub data_path: PathBuf,
    /// Of each queue.
    pub queue: DiskQueueOptions,
    /// Longest time between two syncs of a queue in use.
    pub sync_timeout: Duration,
}

impl DiskThreadOptions {
    /// As configured.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            data_path: config.data_path.clone(),
            queue: DiskQueueOptions {
                max_bytes_per_file: config.max_bytes_per_file,
                record_len: RecordLen::for_messages(config.max_msg_size),
                sync_every: config.sync_every,
            },
            sync_timeout: config.sync_timeout,
        }
    }
}

/// Owns the thread; stops it when dropped.
#[derive(Debug)]
pub struct DiskThread {
    handle: DiskHandle,
    thread: Option<JoinHandle<()>>,
}

/// Sends commands to the thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DiskHandle {
    sender: SyncSender<Job>,
}

#[derive(Debug)]
enum Job {
    Command { shard: usize, command: LogCommand },
    Stop,
}

impl DiskThread {
    /// Starts the thread. `answer` is called on it with the number of the shard that asked; it must not wait for that
    /// shard, which may be waiting for the thread.
    pub fn start(options: DiskThreadOptions, answer: impl Fn(usize, LogEvent) + Send + 'static) -> io::Result<Self> {
        let (sender, jobs) = sync_channel(COMMANDS_MAX);
        let sync_timeout = options.sync_timeout;
        let mut queues = Queues::new(SystemFiles, options, answer);
        let thread =
            thread::Builder::new().name("disk".to_owned()).spawn(move || run(&jobs, &mut queues, sync_timeout))?;
        Ok(Self { handle: DiskHandle { sender }, thread: Some(thread) })
    }

    /// A handle for a shard.
    #[must_use]
    pub fn handle(&self) -> DiskHandle {
        self.handle.clone()
    }

    /// Carries out all commands sent so far, syncs and closes every queue, and ends the thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        // An error means that the thread is gone already.
        let _ = self.handle.sender.send(Job::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the disk thread panicked; what it did not write is lost");
        }
    }
}

impl DiskHandle {
    /// Sends a command, waiting while [`COMMANDS_MAX`] are under way; gives it back if the thread has stopped.
    pub fn send(&self, shard: usize, command: LogCommand) -> Result<(), LogCommand> {
        self.sender.send(Job::Command { shard, command }).map_err(|back| back.0.into_command())
    }

    /// The same without waiting: the command also comes back if there is no room.
    pub fn try_send(&self, shard: usize, command: LogCommand) -> Result<(), LogCommand> {
        self.sender.try_send(Job::Command { shard, command }).map_err(|back| match back {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job.into_command(),
        })
    }
}

impl Job {
    fn into_command(self) -> LogCommand {
        match self {
            Self::Command { command, .. } => command,
            Self::Stop => unreachable!("only commands are sent through a handle"),
        }
    }
}

fn run<F: Files + Clone>(
    jobs: &Receiver<Job>,
    queues: &mut Queues<F, impl Fn(usize, LogEvent)>,
    sync_timeout: Duration,
) {
    let mut next_sync = clock::now() + sync_timeout;
    'run: loop {
        match jobs.recv_timeout(next_sync - clock::now()) {
            Ok(first) => {
                for job in std::iter::once(first).chain(jobs.try_iter().take(COMMANDS_PER_LOOK)) {
                    match job {
                        Job::Command { shard, command } => queues.carry_out(shard, command),
                        Job::Stop => break 'run,
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = clock::now();
        if now >= next_sync {
            queues.sync();
            next_sync = now + sync_timeout;
        }
    }
    queues.close();
}

/// The open queues of all shards.
struct Queues<F: Files, A> {
    files: F,
    options: DiskThreadOptions,
    answer: A,
    open: BTreeMap<(usize, QueueId), Slot<F>>,
    /// Whether the last round of syncs failed: only changes are logged.
    sync_fails: bool,
}

enum Slot<F: Files> {
    Open(Box<DiskQueue<F>>),
    /// It could not be opened; each command and each sync tries again, and the shard gets its `Opened` then.
    Broken {
        name: String,
    },
}

impl<F: Files + Clone, A: Fn(usize, LogEvent)> Queues<F, A> {
    fn new(files: F, options: DiskThreadOptions, answer: A) -> Self {
        Self { files, options, answer, open: BTreeMap::new(), sync_fails: false }
    }

    fn carry_out(&mut self, shard: usize, command: LogCommand) {
        let event = match command {
            LogCommand::Open { queue, name } => self.open(shard, queue, name),
            LogCommand::Append { queue, records, count } => Some(self.append(shard, queue, records, count)),
            LogCommand::Read { queue, max_bytes } => Some(self.read(shard, queue, max_bytes)),
            LogCommand::Advance { queue, count } => {
                if let Ok(disk) = self.queue(shard, queue) {
                    disk.advance(count);
                }
                None
            }
            LogCommand::Empty { queue } => {
                if let Err(error) = self.queue(shard, queue).and_then(DiskQueue::empty) {
                    warn!(%error, "files of an emptied queue stay behind");
                }
                None
            }
            LogCommand::Close { queue } => Some(self.end(shard, queue, DiskQueue::close)),
            LogCommand::Delete { queue } => Some(self.end(shard, queue, DiskQueue::delete)),
        };
        if let Some(event) = event {
            (self.answer)(shard, event);
        }
    }

    fn open(&mut self, shard: usize, queue: QueueId, name: String) -> Option<LogEvent> {
        self.open.insert((shard, queue), Slot::Broken { name });
        // On success `queue` answers with the depth.
        let error = self.queue(shard, queue).err()?;
        error!(%error, "a queue on disk cannot be opened");
        Some(LogEvent::ReadFailed { queue, error: error.to_string() })
    }

    /// The queue, opened if it could not be opened before.
    fn queue(&mut self, shard: usize, queue: QueueId) -> Result<&mut DiskQueue<F>, DiskQueueError> {
        let Entry::Occupied(entry) = self.open.entry((shard, queue)) else {
            unreachable!("a shard opens queue {queue:?} before it uses it");
        };
        let slot = entry.into_mut();
        if let Slot::Broken { name } = slot {
            let options = &self.options;
            let disk = DiskQueue::open_on(self.files.clone(), &options.data_path, name, options.queue)?;
            (self.answer)(shard, LogEvent::Opened { queue, depth: disk.depth() });
            *slot = Slot::Open(Box::new(disk));
        }
        match slot {
            Slot::Open(disk) => Ok(disk),
            Slot::Broken { .. } => unreachable!("opened above"),
        }
    }

    fn append(&mut self, shard: usize, queue: QueueId, mut records: Vec<u8>, count: u32) -> LogEvent {
        match self.queue(shard, queue).and_then(|disk| disk.append(&records, count)) {
            Ok(()) => {
                records.clear();
                LogEvent::Appended { queue, count, buffer: records }
            }
            Err(error) => LogEvent::AppendFailed { queue, records, count, error: error.to_string() },
        }
    }

    fn read(&mut self, shard: usize, queue: QueueId, max_bytes: u32) -> LogEvent {
        let mut records = Vec::new();
        match self.queue(shard, queue).and_then(|disk| disk.read(max_bytes, &mut records)) {
            Ok(count) => LogEvent::Read { queue, records, count },
            Err(error) => LogEvent::ReadFailed { queue, error: error.to_string() },
        }
    }

    fn end(&mut self, shard: usize, queue: QueueId, how: fn(DiskQueue<F>) -> Result<(), DiskQueueError>) -> LogEvent {
        let outcome = self.queue(shard, queue).map(|_| ());
        let outcome = match (outcome, self.open.remove(&(shard, queue))) {
            (Ok(()), Some(Slot::Open(disk))) => how(*disk),
            (outcome, _) => outcome,
        };
        if let Err(error) = outcome {
            error!(%error, "a queue's files are not as they should be left");
        }
        LogEvent::Closed { queue }
    }

    fn sync(&mut self) {
        let keys: Vec<(usize, QueueId)> = self.open.keys().copied().collect();
        let mut failure = None;
        for (shard, queue) in keys {
            let outcome =
                self.queue(shard, queue).and_then(|disk| if disk.needs_sync() { disk.sync() } else { Ok(()) });
            failure = outcome.err().or(failure);
        }
        match &failure {
            Some(error) if !self.sync_fails => warn!(%error, "queues on disk cannot be synced; trying on"),
            None if self.sync_fails => info!("queues on disk are synced again"),
            _ => {}
        }
        self.sync_fails = failure.is_some();
    }

    fn close(&mut self) {
        for (_, slot) in std::mem::take(&mut self.open) {
            if let Slot::Open(disk) = slot
                && let Err(error) = disk.close()
            {
                error!(%error, "a queue on disk is not closed; its last records may be delivered again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;

    use super::*;
    use crate::io::disk_queue::memory::MemoryFiles;

    const QUEUE: QueueId = QueueId(3);

    fn options(data_path: PathBuf) -> DiskThreadOptions {
        DiskThreadOptions {
            data_path,
            queue: DiskQueueOptions {
                max_bytes_per_file: 1_000,
                record_len: RecordLen { min: 1, max: 100 },
                sync_every: 1_000,
            },
            sync_timeout: Duration::from_hours(1),
        }
    }

    fn opened() -> LogCommand {
        LogCommand::Open { queue: QUEUE, name: "t".into() }
    }

    fn append(byte: u8) -> LogCommand {
        LogCommand::Append { queue: QUEUE, records: vec![0, 0, 0, 1, byte], count: 1 }
    }

    fn read() -> LogCommand {
        LogCommand::Read { queue: QUEUE, max_bytes: 100 }
    }

    /// Carries `commands` out and renders the events, each with its shard.
    fn events(files: &MemoryFiles, commands: Vec<LogCommand>) -> Vec<String> {
        let events = RefCell::new(Vec::new());
        let mut queues = Queues::new(files.clone(), options("/d".into()), |shard, event| {
            events.borrow_mut().push(format!("{shard} {event:?}"));
        });
        for command in commands {
            queues.carry_out(7, command);
        }
        queues.close();
        drop(queues);
        events.into_inner()
    }

    #[test]
    fn commands_are_answered_as_the_seam_says() {
        let files = MemoryFiles::default();
        let advance = LogCommand::Advance { queue: QUEUE, count: 1 };
        let commands =
            vec![opened(), append(5), append(6), read(), advance, read(), LogCommand::Close { queue: QUEUE }];
        assert_eq!(
            events(&files, commands),
            [
                "7 Opened { queue: QueueId(3), depth: 0 }",
                "7 Appended { queue: QueueId(3), count: 1, buffer: [] }",
                "7 Appended { queue: QueueId(3), count: 1, buffer: [] }",
                "7 Read { queue: QueueId(3), records: [0, 0, 0, 1, 5, 0, 0, 0, 1, 6], count: 2 }",
                "7 Read { queue: QueueId(3), records: [], count: 0 }",
                "7 Closed { queue: QueueId(3) }",
            ]
        );
        let commands = vec![opened(), LogCommand::Empty { queue: QUEUE }, read(), LogCommand::Delete { queue: QUEUE }];
        assert_eq!(
            events(&files, commands),
            [
                "7 Opened { queue: QueueId(3), depth: 1 }",
                "7 Read { queue: QueueId(3), records: [], count: 0 }",
                "7 Closed { queue: QueueId(3) }",
            ]
        );
        assert!(files.names().is_empty());
    }

    #[test]
    fn a_failed_append_gives_its_records_back() {
        let files = MemoryFiles::default();
        files.set_room(Some(0));
        let events = events(&files, vec![opened(), append(5)]);
        assert!(events[1].starts_with("7 AppendFailed { queue: QueueId(3), records: [0, 0, 0, 1, 5], count: 1"));
        assert!(events[1].contains("/d/t.diskqueue.000000.dat"), "{}", events[1]);
    }

    #[test]
    fn a_queue_that_cannot_be_opened_is_tried_again() {
        let files = MemoryFiles::default();
        files.with("t.diskqueue.meta.dat", |text| text.extend(b"0\n0,0\n0,0\n"));
        files.set_read_fails(true);
        let events = RefCell::new(Vec::new());
        let mut queues = Queues::new(files.clone(), options("/d".into()), |_, event| {
            events.borrow_mut().push(event);
        });
        queues.carry_out(0, opened());
        queues.carry_out(0, append(1));
        files.set_read_fails(false);
        queues.sync();
        queues.carry_out(0, append(1));
        drop(queues);
        let events = events.into_inner();
        assert!(matches!(
            &events[..],
            [
                LogEvent::ReadFailed { .. },
                LogEvent::AppendFailed { .. },
                LogEvent::Opened { .. },
                LogEvent::Appended { .. }
            ]
        ));
    }

    #[test]
    fn stopping_carries_out_what_was_sent_and_closes() {
        let folder = std::env::temp_dir().join(format!("tidegate-disk-thread-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (sender, events) = mpsc::channel();
        let thread = DiskThread::start(options(folder.clone()), move |shard, event| {
            sender.send((shard, event)).unwrap();
        })
        .unwrap();
        let handle = thread.handle();
        handle.send(1, opened()).unwrap();
        for byte in 0..100 {
            handle.send(1, append(byte)).unwrap();
        }
        thread.stop();
        assert!(matches!(handle.try_send(1, append(0)), Err(LogCommand::Append { .. })));
        let events: Vec<_> = events.iter().collect();
        assert_eq!(events.len(), 101);
        assert!(events.iter().all(|(shard, _)| *shard == 1));
        assert_eq!(std::fs::read_to_string(folder.join("t.diskqueue.meta.dat")).unwrap(), "100\n0,0\n0,500\n");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

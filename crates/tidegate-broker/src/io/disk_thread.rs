//! The one thread that touches the queues' files.
//!
//! It carries out the [`LogCommand`]s of all shards, in the order in which they came, and answers through a function
//! that the caller gives. One thread is enough: the work is bounded by the device, and batches make commands rare.
//!
//! At most [`COMMANDS_MAX`] commands wait. A shard has a few of them under way for each of its queues, and holds
//! publishers back while a queue's append is; so the bound is only met when the device stalls with very many queues in
//! use, and then [`DiskHandle::send`] blocks the shard until the device has caught up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tidegate_runtime::{clock, process};
use tracing::{error, info, warn};

use super::disk_queue::{self, DiskQueue, DiskQueueError, DiskQueueOptions, Files, Listing, RecordLen, SystemFiles};
use crate::config::Config;
use crate::machine::log::{LogCommand, LogEvent, QueueId};

/// Commands that wait for the thread. Their bytes are bounded by the shards, each of which has one append under way for
/// each queue.
pub const COMMANDS_MAX: usize = 4096;

/// Commands carried out between two looks at the clock.
const COMMANDS_PER_LOOK: usize = 64;

/// Queues that are closed together; each answers when all of them are on the device.
const CLOSING_MAX: usize = 4096;

/// Closed queues wait so long for more of them, while no other command comes.
const CLOSING_PAUSE: Duration = Duration::from_millis(20);

/// One of so many of the files that may be open is for queues, which have two at most, and [`HOLDERS_MAX`] of them
/// hold files at all: most are for connections.
const FILES_PER_HOLDER: u64 = 8;

/// Queues that keep their files open between two commands. Beyond, those that were not used for longest open them anew.
const HOLDERS_MAX: usize = 16_384;

/// Where the queues are and how they are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskThreadOptions {
    /// The folder.
    pub data_path: PathBuf,
    /// Of each queue.
    pub queue: DiskQueueOptions,
    /// Longest time between two syncs of a queue in use.
    pub sync_timeout: Duration,
    /// Queues that keep files open.
    pub holders_max: usize,
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
            holders_max: usize::try_from(process::open_files_limit() / FILES_PER_HOLDER)
                .map_or(HOLDERS_MAX, |holders| holders.clamp(1, HOLDERS_MAX)),
        }
    }
}

/// Owns the thread; stops it when dropped.
#[derive(Debug)]
pub struct DiskThread {
    handle: DiskHandle,
    thread: Option<JoinHandle<usize>>,
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
    /// Starts the thread. `listing` says which data files the folder holds; `answer` is called on it with the number of the shard that asked; it must not wait for that
    /// shard, which may be waiting for the thread.
    pub fn start(
        options: DiskThreadOptions,
        listing: Listing,
        answer: impl Fn(usize, LogEvent) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, jobs) = sync_channel(COMMANDS_MAX);
        let sync_timeout = options.sync_timeout;
        let mut queues = Queues::new(SystemFiles, options, listing, answer);
        let thread =
            thread::Builder::new().name("disk".to_owned()).spawn(move || run(&jobs, &mut queues, sync_timeout))?;
        Ok(Self { handle: DiskHandle { sender }, thread: Some(thread) })
    }

    /// A handle for a shard.
    #[must_use]
    pub fn handle(&self) -> DiskHandle {
        self.handle.clone()
    }

    /// Carries out all commands sent so far, syncs and closes every queue, and ends the thread. Answers how many queues
    /// were closed, now or earlier, without being synced.
    #[must_use]
    pub fn stop(mut self) -> usize {
        self.end()
    }

    fn end(&mut self) -> usize {
        let Some(thread) = self.thread.take() else { return 0 };
        // An error means that the thread is gone already.
        let _ = self.handle.sender.send(Job::Stop);
        thread.join().unwrap_or_else(|_| {
            error!("the disk thread panicked; what it did not write is lost");
            1
        })
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.end();
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
) -> usize {
    let mut next_sync = clock::now() + sync_timeout;
    'run: loop {
        let wait = next_sync - clock::now();
        let wait = if queues.closing.is_empty() { wait } else { wait.min(CLOSING_PAUSE) };
        match jobs.recv_timeout(wait) {
            Ok(first) => {
                for job in std::iter::once(first).chain(jobs.try_iter().take(COMMANDS_PER_LOOK)) {
                    match job {
                        Job::Command { shard, command } => queues.carry_out(shard, command),
                        Job::Stop => break 'run,
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => queues.finish_closing(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = clock::now();
        if now >= next_sync {
            queues.sync();
            next_sync = now + sync_timeout;
        }
    }
    queues.close()
}

/// The open queues of all shards: what the thread does.
pub struct Queues<F: Files, A> {
    files: F,
    options: DiskThreadOptions,
    /// The data files of queues that were not opened yet.
    listing: Listing,
    answer: A,
    open: BTreeMap<Key, Slot<F>>,
    /// Queues that hold files, each once, those first that have held them longest.
    holders: VecDeque<Key>,
    /// Closed queues that are not synced yet, and so not answered.
    closing: Vec<(Key, Box<DiskQueue<F>>)>,
    /// Some queue was closed.
    closed: bool,
    /// Queues that were closed without being synced.
    unsynced: usize,
    /// Whether the last round of syncs failed: only changes are logged.
    sync_fails: bool,
}

/// The shard, and its number for the queue.
type Key = (usize, QueueId);

enum Slot<F: Files> {
    Open(Opened<F>),
    /// It could not be opened; each command and each sync tries again, and the shard gets its `Opened` then.
    Broken {
        name: String,
    },
}

impl<F: Files> Slot<F> {
    fn opened(self) -> Option<Opened<F>> {
        match self {
            Self::Open(opened) => Some(opened),
            Self::Broken { .. } => None,
        }
    }
}

struct Opened<F: Files> {
    disk: Box<DiskQueue<F>>,
    /// It stands among the holders of files.
    holds: bool,
    /// It was used since its turn to close its files came last.
    recent: bool,
}

impl<F: Files + Clone, A: Fn(usize, LogEvent)> Queues<F, A> {
    /// No queue is open yet; events go to `answer`, with the number of the shard.
    pub fn new(files: F, options: DiskThreadOptions, listing: Listing, answer: A) -> Self {
        let (holders, closing) = (VecDeque::new(), Vec::new());
        let open = BTreeMap::new();
        Self { files, options, listing, answer, open, holders, closing, closed: false, unsynced: 0, sync_fails: false }
    }

    /// Carries out a command of a shard.
    pub fn carry_out(&mut self, shard: usize, command: LogCommand) {
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
            LogCommand::Close { queue } => self.close_one(shard, queue),
            LogCommand::Delete { queue } => Some(self.delete(shard, queue)),
        };
        self.limit_holders();
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
            let (options, listing) = (&self.options, &self.listing);
            let listed = |_: &F| Ok(listing.numbers(name).to_owned());
            let disk = DiskQueue::open_listed(self.files.clone(), &options.data_path, name, options.queue, listed)?;
            self.listing.forget(name);
            (self.answer)(shard, LogEvent::Opened { queue, depth: disk.depth() });
            *slot = Slot::Open(Opened { disk: Box::new(disk), holds: false, recent: false });
        }
        match slot {
            Slot::Open(opened) => {
                opened.recent = true;
                if !opened.holds {
                    // Most commands open a file.
                    opened.holds = true;
                    self.holders.push_back((shard, queue));
                }
                Ok(&mut opened.disk)
            }
            Slot::Broken { .. } => unreachable!("opened above"),
        }
    }

    /// Has queues close their files while too many hold some: those that were not used lately.
    fn limit_holders(&mut self) {
        while self.holders.len() > self.options.holders_max {
            let Some(key) = self.holders.pop_front() else { return };
            if let Some(Slot::Open(opened)) = self.open.get_mut(&key) {
                if std::mem::take(&mut opened.recent) {
                    self.holders.push_back(key);
                } else {
                    opened.holds = false;
                    opened.disk.release();
                }
            }
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

    /// Closes a queue. If it must be synced, it is answered with others like it, by [`Self::finish_closing`].
    fn close_one(&mut self, shard: usize, queue: QueueId) -> Option<LogEvent> {
        let outcome = self.queue(shard, queue).map(|_| ());
        match (outcome, self.open.remove(&(shard, queue))) {
            (Ok(()), Some(Slot::Open(mut opened))) if opened.disk.needs_sync() => {
                opened.disk.release();
                self.closing.push(((shard, queue), opened.disk));
                if self.closing.len() >= CLOSING_MAX {
                    self.finish_closing();
                }
                return None;
            }
            (Ok(()), _) => {}
            (Err(error), _) => {
                error!(%error, "a queue's files are not as they should be left");
                self.unsynced += 1;
            }
        }
        Some(LogEvent::Closed { queue })
    }

    /// Syncs the queues that are being closed, and answers.
    pub fn finish_closing(&mut self) {
        let mut closing = std::mem::take(&mut self.closing);
        self.sync_closed(closing.iter_mut().map(|(_, disk)| &mut **disk));
        for ((shard, queue), _) in closing {
            (self.answer)(shard, LogEvent::Closed { queue });
        }
    }

    /// Syncs queues that nobody will sync again.
    fn sync_closed<'a>(&mut self, queues: impl Iterator<Item = &'a mut DiskQueue<F>>)
    where
        F: 'a,
    {
        let mut queues = queues.peekable();
        self.closed |= queues.peek().is_some();
        if let Err(failed) = disk_queue::sync_all(&self.files, &self.options.data_path, queues) {
            error!(
                queues = failed.queues,
                error = %failed.first,
                "queues on disk are closed but not synced; their last records may be lost or delivered again"
            );
            self.unsynced += failed.queues;
        }
    }

    fn delete(&mut self, shard: usize, queue: QueueId) -> LogEvent {
        let outcome = self.queue(shard, queue).map(|_| ());
        let outcome = match (outcome, self.open.remove(&(shard, queue))) {
            (Ok(()), Some(Slot::Open(opened))) => {
                let name = opened.disk.name().to_owned();
                opened.disk.delete().inspect_err(|_| {
                    // What stays must be known when a queue of this name is opened next.
                    if let Ok(fresh) = Listing::read(&self.files, &self.options.data_path) {
                        self.listing.refresh(&name, fresh);
                    }
                })
            }
            (outcome, _) => outcome,
        };
        if let Err(error) = outcome {
            error!(%error, "files of a deleted queue stay behind");
        }
        LogEvent::Closed { queue }
    }

    /// Syncs every queue that needs it, and opens those that could not be opened.
    pub fn sync(&mut self) {
        self.finish_closing();
        let broken = |(key, slot): (&Key, &Slot<F>)| matches!(slot, Slot::Broken { .. }).then_some(*key);
        let broken: Vec<Key> = self.open.iter().filter_map(broken).collect();
        let mut failure = None;
        for (shard, queue) in broken {
            failure = self.queue(shard, queue).err().map(|error| error.to_string()).or(failure);
        }
        let open = self.open.values_mut().filter_map(|slot| match slot {
            Slot::Open(opened) => Some(&mut *opened.disk),
            Slot::Broken { .. } => None,
        });
        let outcome = disk_queue::sync_all(&self.files, &self.options.data_path, open);
        failure = outcome.err().map(|error| error.to_string()).or(failure);
        match &failure {
            Some(error) if !self.sync_fails => warn!(%error, "queues on disk cannot be synced; trying on"),
            None if self.sync_fails => info!("queues on disk are synced again"),
            _ => {}
        }
        self.sync_fails = failure.is_some();
    }

    /// Closes all that is open; answers how many queues were closed without being synced.
    pub fn close(&mut self) -> usize {
        self.finish_closing();
        let mut open: Vec<Opened<F>> = std::mem::take(&mut self.open).into_values().filter_map(Slot::opened).collect();
        self.sync_closed(open.iter_mut().map(|opened| &mut *opened.disk));
        if self.closed {
            // The names of the last meta files. Without this a power cut would have messages delivered again.
            let synced = self.files.sync_folder(&self.options.data_path);
            synced.unwrap_or_else(|error| warn!(%error, "the data folder cannot be synced"));
        }
        self.unsynced
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
            holders_max: 8,
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
        let mut queues = Queues::new(files.clone(), options("/d".into()), Listing::default(), |shard, event| {
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
        let mut queues = Queues::new(files.clone(), options("/d".into()), Listing::default(), |_, event| {
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

    fn each(count: u32, command: impl Fn(QueueId) -> LogCommand) -> Vec<LogCommand> {
        (0..count).map(QueueId).map(command).collect()
    }

    fn open_each(count: u32) -> Vec<LogCommand> {
        each(count, |queue| LogCommand::Open { queue, name: format!("t{}", queue.0) })
    }

    fn append_to_each(count: u32) -> Vec<LogCommand> {
        each(count, |queue| LogCommand::Append { queue, records: vec![0, 0, 0, 1, 9], count: 1 })
    }

    #[test]
    fn a_new_queue_needs_no_look_at_the_folder() {
        let files = MemoryFiles::default();
        events(&files, open_each(1_000));
        assert_eq!(files.lists(), 0);
    }

    #[test]
    fn queues_that_close_together_are_synced_together() {
        let files = MemoryFiles::default();
        let closed = RefCell::new(0);
        let mut queues = Queues::new(files.clone(), options("/d".into()), Listing::default(), |_, event| {
            *closed.borrow_mut() += u32::from(matches!(event, LogEvent::Closed { .. }));
        });
        let close = each(100, |queue| LogCommand::Close { queue });
        for command in open_each(101).into_iter().chain(append_to_each(100)).chain(close) {
            queues.carry_out(0, command);
        }
        assert_eq!((*closed.borrow(), files.syncs()), (0, (0, 0)), "no answer before all is on the device");
        // Nothing was written to it, so it has nothing to wait for.
        queues.carry_out(0, LogCommand::Close { queue: QueueId(100) });
        assert_eq!((*closed.borrow(), files.syncs()), (1, (0, 0)));
        queues.finish_closing();
        assert_eq!((*closed.borrow(), files.syncs()), (101, (0, 2)));
        assert_eq!(files.text("t7.diskqueue.meta.dat"), "1\n0,0\n0,5\n");
    }

    #[test]
    fn a_queue_that_is_closed_without_a_sync_is_counted() {
        let files = MemoryFiles::default();
        let mut queues = Queues::new(files.clone(), options("/d".into()), Listing::default(), |_, _| {});
        for command in open_each(2).into_iter().chain(append_to_each(2)) {
            queues.carry_out(0, command);
        }
        files.set_room(Some(0));
        queues.carry_out(0, LogCommand::Close { queue: QueueId(0) });
        assert_eq!(queues.close(), 2);
    }

    #[test]
    fn few_of_very_many_queues_hold_files() {
        let files = MemoryFiles::default();
        let records = RefCell::new(0);
        let mut queues = Queues::new(files.clone(), options("/d".into()), Listing::default(), |_, event| {
            if let LogEvent::Read { count, .. } = event {
                *records.borrow_mut() += count;
            }
        });
        let read = each(100, |queue| LogCommand::Read { queue, max_bytes: 100 });
        let commands = [open_each(100), append_to_each(100), append_to_each(100), read];
        for command in commands.into_iter().flatten() {
            queues.carry_out(0, command);
            let holders = queues.open.values().filter(|slot| match slot {
                Slot::Open(opened) => opened.disk.holds_files(),
                Slot::Broken { .. } => false,
            });
            assert!(holders.count() <= 8);
        }
        queues.sync();
        assert_eq!(*records.borrow(), 200);
    }

    #[test]
    fn stopping_carries_out_what_was_sent_and_closes() {
        let folder = std::env::temp_dir().join(format!("tidegate-disk-thread-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (sender, events) = mpsc::channel();
        let thread = DiskThread::start(options(folder.clone()), Listing::default(), move |shard, event| {
            sender.send((shard, event)).unwrap();
        })
        .unwrap();
        let handle = thread.handle();
        handle.send(1, opened()).unwrap();
        for byte in 0..100 {
            handle.send(1, append(byte)).unwrap();
        }
        assert_eq!(thread.stop(), 0);
        assert!(matches!(handle.try_send(1, append(0)), Err(LogCommand::Append { .. })));
        let events: Vec<_> = events.iter().collect();
        assert_eq!(events.len(), 101);
        assert!(events.iter().all(|(shard, _)| *shard == 1));
        assert_eq!(std::fs::read_to_string(folder.join("t.diskqueue.meta.dat")).unwrap(), "100\n0,0\n0,500\n");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

//! A queue of messages: memory first, the rest in the log.
//!
//! Order is kept across the two: once records are in the log, new messages go behind them until the log is drained.

use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_wire::nsq::frame::{self, Header};

use super::log::{LogCommand, QueueId};

/// One read of the log asks for this much.
const READ_BYTES: u32 = 256 * 1024;
/// Records not yet handed to the log; above it the queue is congested and publishers wait.
const UNWRITTEN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A message's place in its shard.
pub(super) type MessageKey = usize;

/// A message that waits in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) message: MessageKey,
    /// Deliveries so far.
    pub(super) attempts: u16,
    /// When it entered this queue.
    pub(super) entered: Instant,
}

/// The oldest message, still in the queue.
pub(super) enum Head {
    Memory(Queued),
    Record { body_bytes: usize },
}

/// The oldest message, taken out of the queue.
pub(super) enum Next<'a> {
    Memory(Queued),
    Record(Header, &'a [u8]),
}

/// A queue and its part of the log.
#[derive(Debug)]
pub(super) struct Queue {
    memory: VecDeque<Queued>,
    log: Option<Log>,
}

/// The part of a queue that is in the log or on its way there or back.
#[derive(Debug)]
struct Log {
    id: QueueId,
    open: bool,
    /// Records in the log or on their way there, not yet taken.
    depth: u64,
    /// Encoded, not yet handed over.
    unwritten: Vec<u8>,
    unwritten_count: u32,
    /// Handed over, not yet confirmed: its bytes and count.
    writing: Option<(usize, u32)>,
    /// What the last append failed with; cleared by the next success.
    error: Option<String>,
    /// The same of the last read, or of opening the log.
    read_error: Option<String>,
    /// Records that came back from a failed append, before `unwritten`.
    returned: Option<(Vec<u8>, u32)>,
    /// Confirmed in the log and not yet read.
    readable: u64,
    reading: Reading,
    /// Emptied before the log was open: what it held then counts for nothing.
    emptied_unopened: bool,
    /// Records that an earlier run left: older than anything in memory.
    inherited: u64,
    /// Reads under way that must be thrown away, since the queue was emptied after they were asked for.
    stale_reads: u32,
    /// Read ahead: records, position of the next, and how many are left.
    ahead: Vec<u8>,
    ahead_at: usize,
    ahead_count: u32,
    /// Taken since the last Advance.
    advanced: u32,
    /// A buffer to write into next.
    spare: Vec<u8>,
}

/// Whether the log is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    No,
    UnderWay,
    /// The last read failed; the next one waits for [`Queue::retry`].
    Later,
}

impl Queue {
    /// A queue with no log behind it: it overflows into nothing.
    pub(super) fn in_memory() -> Self {
        Self { memory: VecDeque::new(), log: None }
    }

    /// A queue whose log is still to be opened by the returned command.
    pub(super) fn with_log(id: QueueId, name: String) -> (Self, LogCommand) {
        let log = Log {
            id,
            open: false,
            depth: 0,
            unwritten: Vec::new(),
            unwritten_count: 0,
            writing: None,
            error: None,
            read_error: None,
            returned: None,
            readable: 0,
            reading: Reading::No,
            emptied_unopened: false,
            inherited: 0,
            stale_reads: 0,
            ahead: Vec::new(),
            ahead_at: 0,
            ahead_count: 0,
            advanced: 0,
            spare: Vec::new(),
        };
        (Self { memory: VecDeque::new(), log: Some(log) }, LogCommand::Open { queue: id, name })
    }

    pub(super) fn log_id(&self) -> Option<QueueId> {
        self.log.as_ref().map(|log| log.id)
    }

    pub(super) fn depth(&self) -> u64 {
        self.memory.len() as u64 + self.backend_depth()
    }

    pub(super) fn backend_depth(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.depth)
    }

    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.depth() == 0
    }

    /// New messages must go to the log to stay in order.
    pub(super) fn must_spill(&self) -> bool {
        self.backend_depth() > 0
    }

    /// True while the log refuses to be written.
    pub(super) fn error(&self) -> Option<&str> {
        self.log.as_ref()?.error.as_deref()
    }

    /// What is wrong with the log, if anything is.
    pub(super) fn failure(&self) -> Option<&str> {
        let log = self.log.as_ref()?;
        log.error.as_deref().or(log.read_error.as_deref())
    }

    /// The log is slower than what is sent to it: hold publishers back.
    pub(super) fn is_congested(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.unwritten.len() > UNWRITTEN_BYTES_MAX)
    }

    pub(super) fn push_memory(&mut self, queued: Queued) {
        self.memory.push_back(queued);
    }

    /// Appends to the log; `false` if there is none.
    pub(super) fn push_log(&mut self, header: &Header, body: &[u8]) -> bool {
        let Some(log) = &mut self.log else { return false };
        frame::put_record(&mut log.unwritten, header, body);
        log.unwritten_count += 1;
        log.depth += 1;
        true
    }

    pub(super) fn drop_oldest_in_memory(&mut self) -> Option<Queued> {
        self.memory.pop_front()
    }

    /// The oldest message, or `None` if nothing can be had right now.
    pub(super) fn pop(&mut self) -> Option<Next<'_>> {
        if !self.inherits()
            && let Some(queued) = self.memory.pop_front()
        {
            return Some(Next::Memory(queued));
        }
        let log = self.log.as_mut().filter(|log| log.ahead_count > 0)?;
        let Some((header, body, used)) = frame::record(&log.ahead[log.ahead_at..]) else {
            // The log checks lengths as it reads, so this is a damaged file: what is left of the chunk is given up.
            log.depth = log.depth.saturating_sub(u64::from(log.ahead_count));
            log.advanced += std::mem::take(&mut log.ahead_count);
            return None;
        };
        log.ahead_count -= 1;
        log.inherited = log.inherited.saturating_sub(1);
        log.depth -= 1;
        log.advanced += 1;
        log.ahead_at += used;
        Some(Next::Record(header, body))
    }

    /// Records of an earlier run are at hand, or will be. They go before what is in memory, which under a policy that
    /// does not spill could keep them back for ever; while the log cannot be read, memory does not wait for it.
    fn inherits(&self) -> bool {
        let to_be_read = |log: &Log| log.open && log.readable > 0 && log.reading != Reading::Later;
        self.log.as_ref().is_some_and(|log| log.inherited > 0 && (log.ahead_count > 0 || to_be_read(log)))
    }

    /// What [`Queue::pop`] would take.
    pub(super) fn head(&self) -> Option<Head> {
        if !self.inherits()
            && let Some(queued) = self.memory.front()
        {
            return Some(Head::Memory(*queued));
        }
        let log = self.log.as_ref().filter(|log| log.ahead_count > 0)?;
        let body_bytes = frame::record(&log.ahead[log.ahead_at..]).map_or(0, |(_, body, _)| body.len());
        Some(Head::Record { body_bytes })
    }

    /// Takes everything out of memory.
    pub(super) fn drain_memory(&mut self) -> impl Iterator<Item = Queued> + '_ {
        self.memory.drain(..)
    }

    /// Forgets what is in the log.
    pub(super) fn empty_log(&mut self) -> Option<LogCommand> {
        let log = self.log.as_mut()?;
        log.depth = 0;
        log.unwritten.clear();
        log.unwritten_count = 0;
        (log.returned, log.error) = (None, None);
        log.readable = 0;
        log.ahead.clear();
        (log.ahead_at, log.ahead_count, log.advanced, log.inherited) = (0, 0, 0, 0);
        log.stale_reads += u32::from(log.reading == Reading::UnderWay);
        log.reading = Reading::No;
        if log.open {
            log.read_error = None;
        }
        log.emptied_unopened = !log.open;
        // An append under way lands before the Empty behind it, so it counts for nothing.
        log.writing = log.writing.map(|_| (0, 0));
        Some(LogCommand::Empty { queue: log.id })
    }

    /// The commands that are due: what was pushed is appended, what was taken is advanced over, and if `reader` waits
    /// and nothing is at hand, more is read.
    pub(super) fn commands(&mut self, reader_waits: bool, out: &mut impl FnMut(LogCommand)) {
        let Some(log) = self.log.as_mut().filter(|log| log.open) else { return };
        if log.writing.is_none() && log.error.is_none() && log.unwritten_count > 0 {
            let records = std::mem::replace(&mut log.unwritten, std::mem::take(&mut log.spare));
            let count = std::mem::take(&mut log.unwritten_count);
            log.writing = Some((records.len(), count));
            out(LogCommand::Append { queue: log.id, records, count });
        }
        if log.advanced > 0 && (log.ahead_count == 0 || log.advanced >= 1_000) {
            out(LogCommand::Advance { queue: log.id, count: std::mem::take(&mut log.advanced) });
        }
        if reader_waits && log.reading == Reading::No && log.ahead_count == 0 && log.readable > 0 {
            log.reading = Reading::UnderWay;
            out(LogCommand::Read { queue: log.id, max_bytes: READ_BYTES });
        }
    }

    /// Hands everything over at once, whatever is under way: the last commands before the queue is closed.
    pub(super) fn flush(&mut self, out: &mut impl FnMut(LogCommand)) {
        let Some(log) = &mut self.log else { return };
        if let Some((records, count)) = log.returned.take() {
            out(LogCommand::Append { queue: log.id, records, count });
        }
        if log.unwritten_count > 0 {
            let records = std::mem::take(&mut log.unwritten);
            let count = std::mem::take(&mut log.unwritten_count);
            out(LogCommand::Append { queue: log.id, records, count });
        }
        if log.advanced > 0 {
            out(LogCommand::Advance { queue: log.id, count: std::mem::take(&mut log.advanced) });
        }
    }

    /// Tries a failed append again, and lets [`Queue::commands`] read again.
    pub(super) fn retry(&mut self, out: &mut impl FnMut(LogCommand)) {
        let Some(log) = &mut self.log else { return };
        if log.reading == Reading::Later {
            log.reading = Reading::No;
        }
        if let Some((records, count)) = log.returned.take() {
            log.writing = Some((records.len(), count));
            out(LogCommand::Append { queue: log.id, records, count });
        }
    }

    pub(super) fn on_opened(&mut self, depth: u64) {
        if let Some(log) = &mut self.log {
            log.open = true;
            (log.read_error, log.reading) = (None, Reading::No);
            if !log.emptied_unopened {
                log.depth += depth;
                log.readable += depth;
                log.inherited = depth;
            }
        }
    }

    pub(super) fn on_appended(&mut self, buffer: Vec<u8>) {
        if let Some(log) = &mut self.log {
            // The count of the command, unless the queue was emptied meanwhile.
            let (_, count) = log.writing.take().unwrap_or_default();
            log.readable += u64::from(count);
            if log.returned.is_none() {
                log.error = None;
            }
            log.spare = buffer;
        }
    }

    pub(super) fn on_append_failed(&mut self, records: Vec<u8>, count: u32, error: String) {
        if let Some(log) = &mut self.log {
            match log.writing.take() {
                Some((0, _)) => return, // Emptied meanwhile: nothing is missing.
                Some(_) => log.returned = Some((records, count)),
                None => {} // The last one before the queue was closed.
            }
            log.error = Some(error);
        }
    }

    pub(super) fn on_read(&mut self, records: Vec<u8>, count: u32) {
        let Some(log) = &mut self.log else { return };
        if log.stale_reads > 0 {
            log.stale_reads -= 1;
            return;
        }
        (log.reading, log.read_error) = (Reading::No, None);
        if count == 0 {
            // The file ended before its count: what is missing was damaged. Nothing more is to be expected.
            log.depth = log.depth.saturating_sub(log.readable);
            log.readable = 0;
            return;
        }
        log.readable = log.readable.saturating_sub(u64::from(count));
        (log.ahead, log.ahead_at, log.ahead_count) = (records, 0, count);
    }

    pub(super) fn on_read_failed(&mut self, error: String) {
        let Some(log) = &mut self.log else { return };
        if log.stale_reads > 0 {
            log.stale_reads -= 1;
            return;
        }
        (log.reading, log.read_error) = (Reading::Later, Some(error));
    }
}

//! The part of a queue that is in the log, or on its way there or back.

use std::collections::VecDeque;

use tidegate_wire::nsq::frame::{self, Header};

use super::acks::AckKey;
use super::log::{LogCommand, QueueId};

/// One read of the log asks for this much.
const READ_BYTES: u32 = 256 * 1024;
/// Records not yet handed to the log; above it the queue is congested and publishers wait.
const UNWRITTEN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Records of a queue beyond its memory, in order.
///
/// Nothing is appended before the log is open and the names that it needs are durable: its queue's, since what is in a
/// file whose queue is not known after a crash would be lost with it, and for a topic's log those of the channels that
/// the records are for.
#[derive(Debug)]
pub(super) struct QueueLog {
    id: QueueId,
    open: bool,
    /// Names that are not durable yet.
    unnamed: u32,
    /// Records in the log or on their way there, not yet taken.
    depth: u64,
    /// Bytes of those that this run appended.
    bytes: u64,
    /// Encoded, not yet handed over.
    unwritten: Vec<u8>,
    unwritten_count: u32,
    /// Handed over, not yet confirmed: bytes and count.
    writing: Option<(usize, u32)>,
    /// What the last append failed with; cleared by the next success.
    error: Option<String>,
    /// The same of the last read, or of opening the log.
    read_error: Option<String>,
    /// Records that came back from a failed append, before `unwritten`.
    returned: Option<(Vec<u8>, u32)>,
    /// Records ever pushed, and how many of those are in the log or emptied.
    pushed: u64,
    confirmed: u64,
    /// Publishes that are answered when so many records are confirmed, in order.
    awaiting: VecDeque<(u64, AckKey)>,
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
    /// What is taken goes to other logs: it is advanced over once it is there.
    moves: bool,
    /// On its way there.
    moving: u32,
    /// A buffer to write into next.
    spare: Vec<u8>,
}

/// Whether the log is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    No,
    UnderWay,
    /// The last read failed; the next one waits for [`QueueLog::retry`].
    Later,
}

impl QueueLog {
    /// A log that is still to be opened.
    pub(super) fn new(id: QueueId) -> Self {
        Self {
            id,
            open: false,
            unnamed: 1,
            depth: 0,
            bytes: 0,
            unwritten: Vec::new(),
            unwritten_count: 0,
            writing: None,
            error: None,
            read_error: None,
            returned: None,
            pushed: 0,
            confirmed: 0,
            awaiting: VecDeque::new(),
            readable: 0,
            reading: Reading::No,
            emptied_unopened: false,
            inherited: 0,
            stale_reads: 0,
            ahead: Vec::new(),
            ahead_at: 0,
            ahead_count: 0,
            advanced: 0,
            moves: false,
            moving: 0,
            spare: Vec::new(),
        }
    }

    /// The log of a topic: what leaves it is not forgotten before the logs of its channels have it.
    pub(super) fn moving_on(mut self) -> Self {
        self.moves = true;
        self
    }

    /// Records ever pushed.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The first so many of those are in the log.
    pub(super) fn has_confirmed(&self, pushed: u64) -> bool {
        self.confirmed >= pushed
    }

    /// Records were taken and wait until they are in other logs.
    pub(super) fn is_moving(&self) -> bool {
        self.moving > 0
    }

    /// Whether records were taken that are to be advanced over together; the caller calls [`Self::end_move`] when they
    /// are elsewhere.
    pub(super) fn begin_move(&mut self) -> bool {
        let due = self.moving == 0 && self.advance_is_due();
        if due {
            self.moving = std::mem::take(&mut self.advanced);
        }
        due
    }

    pub(super) fn end_move(&mut self, out: &mut impl FnMut(LogCommand)) {
        if self.moving > 0 {
            out(LogCommand::Advance { queue: self.id, count: std::mem::take(&mut self.moving) });
        }
    }

    fn advance_is_due(&self) -> bool {
        self.open && self.advanced > 0 && (self.ahead_count == 0 || self.advanced >= 1_000)
    }

    pub(super) fn id(&self) -> QueueId {
        self.id
    }

    /// Records in the log or on their way there, not yet taken.
    pub(super) fn depth(&self) -> u64 {
        self.depth
    }

    /// Bytes of those records that this run appended.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True while the log refuses to be written.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// What is wrong with the log, if anything is.
    pub(super) fn failure(&self) -> Option<&str> {
        self.error.as_deref().or(self.read_error.as_deref())
    }

    /// The log is slower than what is sent to it: hold publishers back.
    pub(super) fn is_congested(&self) -> bool {
        self.unwritten.len() > UNWRITTEN_BYTES_MAX
    }

    /// One more name must be durable before records are appended; [`Self::on_named`] will say so.
    pub(super) fn await_name(&mut self) {
        self.unnamed += 1;
    }

    /// A name is durable, at first the queue's own; after the last one records may be appended.
    pub(super) fn on_named(&mut self) {
        self.unnamed -= 1;
    }

    /// Puts a record at the end.
    pub(super) fn push(&mut self, header: &Header, body: &[u8]) {
        let before = self.unwritten.len();
        frame::put_record(&mut self.unwritten, header, body);
        self.bytes += (self.unwritten.len() - before) as u64;
        self.unwritten_count += 1;
        self.depth += 1;
        self.pushed += 1;
    }

    /// `ack` waits for all that was pushed until now; `false` if it did so before.
    pub(super) fn await_pushed(&mut self, ack: AckKey) -> bool {
        if let Some(last) = self.awaiting.back_mut()
            && last.1 == ack
        {
            last.0 = self.pushed;
            return false;
        }
        self.awaiting.push_back((self.pushed, ack));
        true
    }

    /// The next publish whose records are safe.
    pub(super) fn next_confirmed(&mut self) -> Option<AckKey> {
        self.awaiting.pop_front_if(|(records, _)| *records <= self.confirmed).map(|(_, ack)| ack)
    }

    /// Publishes that wait, whatever becomes of their records.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = AckKey> + '_ {
        self.awaiting.drain(..).map(|(_, ack)| ack)
    }

    /// Records of an earlier run are at hand, or will be. They go before what is in memory, which under a policy that
    /// does not spill could keep them back for ever; while the log cannot be read, memory does not wait for it.
    pub(super) fn inherits(&self) -> bool {
        let to_be_read = self.open && self.readable > 0 && self.reading != Reading::Later;
        self.inherited > 0 && (self.ahead_count > 0 || to_be_read)
    }

    /// Bytes of the next record's body, if it is at hand.
    pub(super) fn head(&self) -> Option<usize> {
        let ahead = self.ahead_count > 0;
        ahead.then(|| frame::record(&self.ahead[self.ahead_at..]).map_or(0, |(_, body, _)| body.len()))
    }

    /// Takes the next record, if it is at hand.
    pub(super) fn pop(&mut self) -> Option<(Header, &[u8])> {
        if self.ahead_count == 0 {
            return None;
        }
        let Some((header, body, used)) = frame::record(&self.ahead[self.ahead_at..]) else {
            // The log checks lengths as it reads, so this is a damaged file: what is left of the chunk is given up.
            self.depth = self.depth.saturating_sub(u64::from(self.ahead_count));
            self.advanced += std::mem::take(&mut self.ahead_count);
            return None;
        };
        self.ahead_count -= 1;
        if self.inherited > 0 {
            self.inherited -= 1;
        } else {
            self.bytes = self.bytes.saturating_sub(used as u64);
        }
        self.depth -= 1;
        if self.depth == 0 {
            self.bytes = 0;
        }
        self.advanced += 1;
        self.ahead_at += used;
        Some((header, body))
    }

    /// Forgets everything. Publishes that wait for records count as confirmed: they were accepted before.
    pub(super) fn empty(&mut self) -> LogCommand {
        (self.depth, self.bytes) = (0, 0);
        self.unwritten.clear();
        self.unwritten_count = 0;
        self.confirmed = self.pushed;
        (self.returned, self.error) = (None, None);
        self.readable = 0;
        self.ahead.clear();
        (self.ahead_at, self.ahead_count, self.advanced, self.moving, self.inherited) = (0, 0, 0, 0, 0);
        self.stale_reads += u32::from(self.reading == Reading::UnderWay);
        self.reading = Reading::No;
        if self.open {
            self.read_error = None;
        }
        self.emptied_unopened = !self.open;
        // An append under way lands before the Empty behind it, so it counts for nothing.
        self.writing = self.writing.map(|_| (0, 0));
        LogCommand::Empty { queue: self.id }
    }

    /// The commands that are due: what was pushed is appended, what was taken is advanced over, and if `reader_waits`
    /// and nothing is at hand, more is read.
    pub(super) fn commands(&mut self, reader_waits: bool, out: &mut impl FnMut(LogCommand)) {
        if !self.open {
            return;
        }
        if self.unnamed == 0 && self.writing.is_none() && self.error.is_none() && self.unwritten_count > 0 {
            let records = std::mem::replace(&mut self.unwritten, std::mem::take(&mut self.spare));
            let count = std::mem::take(&mut self.unwritten_count);
            self.writing = Some((records.len(), count));
            out(LogCommand::Append { queue: self.id, records, count });
        }
        if !self.moves && self.advance_is_due() {
            out(LogCommand::Advance { queue: self.id, count: std::mem::take(&mut self.advanced) });
        }
        if reader_waits && self.reading == Reading::No && self.ahead_count == 0 && self.readable > 0 {
            self.reading = Reading::UnderWay;
            out(LogCommand::Read { queue: self.id, max_bytes: READ_BYTES });
        }
    }

    /// Hands everything over at once, whatever is under way: the last commands before the queue is closed.
    pub(super) fn flush(&mut self, out: &mut impl FnMut(LogCommand)) {
        if let Some((records, count)) = self.returned.take() {
            out(LogCommand::Append { queue: self.id, records, count });
        }
        if self.unwritten_count > 0 {
            let records = std::mem::take(&mut self.unwritten);
            let count = std::mem::take(&mut self.unwritten_count);
            out(LogCommand::Append { queue: self.id, records, count });
        }
        self.advanced += std::mem::take(&mut self.moving);
        if self.advanced > 0 {
            out(LogCommand::Advance { queue: self.id, count: std::mem::take(&mut self.advanced) });
        }
    }

    /// Tries a failed append again, and lets [`QueueLog::commands`] read again.
    pub(super) fn retry(&mut self, out: &mut impl FnMut(LogCommand)) {
        if self.reading == Reading::Later {
            self.reading = Reading::No;
        }
        if let Some((records, count)) = self.returned.take() {
            self.writing = Some((records.len(), count));
            out(LogCommand::Append { queue: self.id, records, count });
        }
    }

    pub(super) fn on_opened(&mut self, depth: u64) {
        self.open = true;
        (self.read_error, self.reading) = (None, Reading::No);
        if !self.emptied_unopened {
            self.depth += depth;
            self.readable += depth;
            self.inherited = depth;
        }
    }

    pub(super) fn on_appended(&mut self, buffer: Vec<u8>) {
        // The count of the command, unless the queue was emptied meanwhile.
        let (_, count) = self.writing.take().unwrap_or_default();
        self.readable += u64::from(count);
        self.confirmed += u64::from(count);
        if self.returned.is_none() {
            self.error = None;
        }
        self.spare = buffer;
    }

    pub(super) fn on_append_failed(&mut self, records: Vec<u8>, count: u32, error: String) {
        match self.writing.take() {
            Some((0, _)) => return, // Emptied meanwhile: nothing is missing.
            Some(_) => self.returned = Some((records, count)),
            None => {} // The last one before the queue was closed.
        }
        self.error = Some(error);
    }

    pub(super) fn on_read(&mut self, records: Vec<u8>, count: u32) {
        if self.stale_reads > 0 {
            self.stale_reads -= 1;
            return;
        }
        (self.reading, self.read_error) = (Reading::No, None);
        if count == 0 {
            // The file ended before its count: what is missing was damaged. Nothing more is to be expected.
            self.depth = self.depth.saturating_sub(self.readable);
            self.readable = 0;
            return;
        }
        self.readable = self.readable.saturating_sub(u64::from(count));
        (self.ahead, self.ahead_at, self.ahead_count) = (records, 0, count);
    }

    pub(super) fn on_read_failed(&mut self, error: String) {
        if self.stale_reads > 0 {
            self.stale_reads -= 1;
            return;
        }
        (self.reading, self.read_error) = (Reading::Later, Some(error));
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_invariants(&self) {
        assert!(self.confirmed <= self.pushed, "confirmed {} of {}", self.confirmed, self.pushed);
        assert!(self.awaiting.iter().is_sorted_by_key(|(records, _)| *records), "publishes wait in order");
        let under_way = u64::from(self.unwritten_count)
            + self.writing.map_or(0, |(_, count)| u64::from(count))
            + self.returned.as_ref().map_or(0, |(_, count)| u64::from(*count));
        assert_eq!(self.pushed - self.confirmed, under_way, "every record is confirmed or on its way");
        assert!(self.depth >= u64::from(self.ahead_count), "what was read ahead is part of the queue");
    }
}

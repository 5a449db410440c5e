//! The seam to the message log.
//!
//! A queue that outgrows its memory appends the rest to a log and reads it back in order. The shard emits
//! [`LogCommand`]s and is told their outcome by [`LogEvent`]s, so that nsqd's disk queue, a log that syncs before it
//! acknowledges, or a simulated disk can stand behind it.
//!
//! Records are nsqd's: a big-endian `u32` length, then timestamp (8), attempts (2), id (16), body.

/// A queue's number within its shard, given by the shard and never reused while open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u32);

/// What a shard asks of its log. Commands of one queue are carried out in order.
#[derive(Debug)]
pub enum LogCommand {
    /// Opens or creates the queue `name`: `topic` or `topic:channel`, as nsqd names its files.
    Open {
        /// The number that later commands use.
        queue: QueueId,
        /// nsqd's file stem.
        name: String,
    },
    /// Appends `count` records. Answered by [`LogEvent::Appended`] or [`LogEvent::AppendFailed`].
    Append {
        /// Which queue.
        queue: QueueId,
        /// The records, back to back.
        records: Vec<u8>,
        /// How many.
        count: u32,
    },
    /// Reads on from the read cursor, at most `max_bytes` (but always one record). Answered by [`LogEvent::Read`].
    Read {
        /// Which queue.
        queue: QueueId,
        /// Bound on the answer.
        max_bytes: u32,
    },
    /// The next `count` records that were read have left for their clients: they need not be read again after a
    /// restart. Not answered.
    Advance {
        /// Which queue.
        queue: QueueId,
        /// How many.
        count: u32,
    },
    /// Forgets all records. Not answered; reads that were asked for before it may still be answered.
    Empty {
        /// Which queue.
        queue: QueueId,
    },
    /// Syncs and closes, keeping the files. Answered by [`LogEvent::Closed`].
    Close {
        /// Which queue.
        queue: QueueId,
    },
    /// Closes and removes the files. Answered by [`LogEvent::Closed`].
    Delete {
        /// Which queue.
        queue: QueueId,
    },
}

/// What became of a command.
#[derive(Debug)]
pub enum LogEvent {
    /// The queue is open and holds `depth` records.
    Opened {
        /// Which queue.
        queue: QueueId,
        /// Records not yet advanced over.
        depth: u64,
    },
    /// `count` records are in the file (not necessarily on the platter). The buffer comes back for reuse, empty.
    Appended {
        /// Which queue.
        queue: QueueId,
        /// How many.
        count: u32,
        /// The buffer of the command, cleared.
        buffer: Vec<u8>,
    },
    /// Nothing of the append is in the file; the records come back. The shard keeps them, refuses publishes, and tries
    /// again.
    AppendFailed {
        /// Which queue.
        queue: QueueId,
        /// The records of the command.
        records: Vec<u8>,
        /// How many.
        count: u32,
        /// What the system said, for the log and the health check.
        error: String,
    },
    /// Records read in order; `count` is 0 when the cursor is at the end.
    Read {
        /// Which queue.
        queue: QueueId,
        /// The records, back to back.
        records: Vec<u8>,
        /// How many.
        count: u32,
    },
    /// Nothing could be read now, though there are records; ask again later.
    ReadFailed {
        /// Which queue.
        queue: QueueId,
        /// What the system said.
        error: String,
    },
    /// The queue is closed or deleted.
    Closed {
        /// Which queue.
        queue: QueueId,
    },
}

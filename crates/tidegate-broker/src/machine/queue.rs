//! A queue of messages: memory first, the rest in the log.
//!
//! Order is kept across the two: once records are in the log, new messages go behind them until the log is drained.

use std::collections::VecDeque;

use tidegate_core::Instant;
use tidegate_wire::nsq::frame::Header;

use super::log::{LogCommand, QueueId};
use super::messages::{MessageKey, Messages};
use super::queue_log::QueueLog;

/// What a queue holds of a message, beside the message itself.
pub(super) trait Item: Copy {
    fn message(&self) -> MessageKey;
    /// Deliveries so far.
    fn attempts(&self) -> u16;
}

/// A message that waits in a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) message: MessageKey,
    /// Deliveries so far.
    pub(super) attempts: u16,
    /// When it entered this queue.
    pub(super) entered: Instant,
}

impl Item for Queued {
    fn message(&self) -> MessageKey {
        self.message
    }

    fn attempts(&self) -> u16 {
        self.attempts
    }
}

/// The oldest message, still in the queue.
pub(super) enum Head<T> {
    Memory(T),
    Record { body_bytes: usize },
}

/// The oldest message, taken out of the queue.
pub(super) enum Next<'a, T> {
    Memory(T),
    Record(Header, &'a [u8]),
}

/// A queue, which counts the bytes that it holds in memory, its own bookkeeping included.
#[derive(Debug)]
pub(super) struct Queue<T> {
    memory: VecDeque<Held<T>>,
    memory_bytes: u64,
    log: Option<QueueLog>,
}

#[derive(Clone, Copy, Debug)]
struct Held<T> {
    item: T,
    bytes: u32,
}

impl<T: Item> Queue<T> {
    /// A queue with no log behind it: it overflows into nothing.
    pub(super) fn in_memory() -> Self {
        Self { memory: VecDeque::new(), memory_bytes: 0, log: None }
    }

    /// The same queue, whose records go to other logs: see [`QueueLog::moving_on`].
    pub(super) fn moving_on(mut self) -> Self {
        self.log = self.log.map(QueueLog::moving_on);
        self
    }

    /// A queue whose log is still to be opened by the returned command.
    pub(super) fn with_log(id: QueueId, name: String) -> (Self, LogCommand) {
        let log = Some(QueueLog::new(id));
        (Self { memory: VecDeque::new(), memory_bytes: 0, log }, LogCommand::Open { queue: id, name })
    }

    pub(super) fn log(&self) -> Option<&QueueLog> {
        self.log.as_ref()
    }

    pub(super) fn log_mut(&mut self) -> Option<&mut QueueLog> {
        self.log.as_mut()
    }

    pub(super) fn depth(&self) -> u64 {
        self.memory.len() as u64 + self.backend_depth()
    }

    pub(super) fn backend_depth(&self) -> u64 {
        self.log.as_ref().map_or(0, QueueLog::depth)
    }

    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Bytes held in memory: bodies' slots, messages' places and this queue's.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Bytes held in memory and appended to the log by this run.
    pub(super) fn bytes(&self) -> u64 {
        self.memory_bytes + self.log.as_ref().map_or(0, QueueLog::bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.depth() == 0
    }

    /// New messages must go to the log to stay in order.
    pub(super) fn must_spill(&self) -> bool {
        self.backend_depth() > 0
    }

    pub(super) fn push_memory(&mut self, item: T, messages: &Messages) {
        let bytes = Self::bytes_of(item, messages);
        self.memory_bytes += u64::from(bytes);
        self.memory.push_back(Held { item, bytes });
    }

    /// Bytes that `item` takes in memory.
    pub(super) fn bytes_of(item: T, messages: &Messages) -> u32 {
        const ENTRY: u32 = 32;
        const { assert!(size_of::<Held<T>>() <= ENTRY as usize) }
        messages.get(item.message()).held_bytes() + ENTRY
    }

    fn pop_memory(&mut self) -> Option<T> {
        let held = self.memory.pop_front()?;
        self.memory_bytes -= u64::from(held.bytes);
        Some(held.item)
    }

    pub(super) fn drop_oldest_in_memory(&mut self) -> Option<T> {
        self.pop_memory()
    }

    /// The oldest message, or `None` if nothing can be had right now.
    pub(super) fn pop(&mut self) -> Option<Next<'_, T>> {
        if !self.inherits()
            && let Some(item) = self.pop_memory()
        {
            return Some(Next::Memory(item));
        }
        let (header, body) = self.log.as_mut()?.pop()?;
        Some(Next::Record(header, body))
    }

    /// What [`Queue::pop`] would take.
    pub(super) fn head(&self) -> Option<Head<T>> {
        if !self.inherits()
            && let Some(held) = self.memory.front()
        {
            return Some(Head::Memory(held.item));
        }
        let body_bytes = self.log.as_ref()?.head()?;
        Some(Head::Record { body_bytes })
    }

    fn inherits(&self) -> bool {
        self.log.as_ref().is_some_and(QueueLog::inherits)
    }

    /// Takes everything out of memory.
    pub(super) fn drain_memory(&mut self) -> impl Iterator<Item = T> + '_ {
        self.memory_bytes = 0;
        self.memory.drain(..).map(|held| held.item)
    }

    /// See [`QueueLog::commands`].
    pub(super) fn commands(&mut self, reader_waits: bool, out: &mut impl FnMut(LogCommand)) {
        if let Some(log) = &mut self.log {
            log.commands(reader_waits, out);
        }
    }

    /// Bodies of what is in memory, bytes.
    pub(super) fn body_bytes(&self, messages: &Messages) -> u64 {
        self.memory.iter().map(|held| messages.get(held.item.message()).body_bytes() as u64).sum()
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_invariants(&self, messages: &Messages) {
        let held: u64 = self.memory.iter().map(|held| u64::from(held.bytes)).sum();
        assert_eq!(self.memory_bytes, held, "a queue counts the bytes of what it holds");
        for held in &self.memory {
            assert_eq!(held.bytes, Self::bytes_of(held.item, messages), "a message's size does not change");
        }
        if let Some(log) = &self.log {
            log.assert_invariants();
        }
    }
}

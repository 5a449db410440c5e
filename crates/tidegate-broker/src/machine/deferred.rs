//! Messages that wait for their time.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::timer_wheel::{TimerKey, TimerWheel};

use super::messages::Messages;
use super::queue::Item;
use super::timers::Timer;

/// Bytes of memory beside the message: an entry of the table, which is half empty at worst, and its timer.
const ENTRY_BYTES: u64 = 200;

/// Messages of a topic or channel that are held back, by id, each with a timer. It counts the bytes that it holds.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    held: HashMap<[u8; 16], (TimerKey, T), RandomState>,
    bytes: u64,
}

impl<T> Default for Deferred<T> {
    fn default() -> Self {
        Self { held: HashMap::default(), bytes: 0 }
    }
}

impl<T: Item> Deferred<T> {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Bytes held in memory, bookkeeping included.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts a message in; answers another copy of it, with its timer. A crash can leave a message in the log twice.
    #[must_use]
    pub(super) fn insert(&mut self, timer: TimerKey, item: T, messages: &Messages) -> Option<(TimerKey, T)> {
        let message = messages.get(item.message());
        self.bytes += u64::from(message.held_bytes()) + ENTRY_BYTES;
        let twin = self.held.insert(message.id, (timer, item));
        if let Some((_, twin)) = &twin {
            self.bytes -= u64::from(messages.get(twin.message()).held_bytes()) + ENTRY_BYTES;
        }
        twin
    }

    /// Takes the message out whose timer fired.
    pub(super) fn remove(&mut self, id: &[u8; 16], messages: &Messages) -> Option<T> {
        let (_, item) = self.held.remove(id)?;
        self.bytes -= u64::from(messages.get(item.message()).held_bytes()) + ENTRY_BYTES;
        Some(item)
    }

    /// Takes everything out, in order of ids, and stops the timers.
    pub(super) fn drain(&mut self, timers: &mut TimerWheel<Timer>) -> Vec<T> {
        self.bytes = 0;
        let mut all: Vec<_> = std::mem::take(&mut self.held).into_iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter()
            .map(|(_, (timer, item))| {
                timers.cancel(timer);
                item
            })
            .collect()
    }

    /// What holds after every step; panics where it does not.
    pub(super) fn assert_invariants(&self, messages: &Messages) {
        let bytes = |(_, item): &(TimerKey, T)| u64::from(messages.get(item.message()).held_bytes()) + ENTRY_BYTES;
        assert_eq!(self.bytes, self.held.values().map(bytes).sum::<u64>(), "held-back messages are counted");
    }
}

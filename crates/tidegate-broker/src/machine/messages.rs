//! The messages of a shard, each held once however many channels it is in.

use tidegate_core::Instant;
use tidegate_wire::nsq::frame::Header;

use super::arena::{Arena, Key};
use super::store::{Body, BodyStore};

/// A message's place in its shard.
pub(super) type MessageKey = Key<Message>;

#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: [u8; 16],
    pub(super) timestamp: i64,
    pub(super) arrival: Instant,
    body: Body,
    /// Queues and clients that hold it.
    holders: u32,
}

impl Message {
    pub(super) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Bytes of memory that it takes: its body's slot and its own place. Each holder counts all of it.
    pub(super) fn held_bytes(&self) -> u32 {
        const PLACE: usize = size_of::<Message>() + size_of::<usize>();
        u32::try_from(self.body.slot_bytes() + PLACE).expect("bodies are bounded below 4 GiB")
    }

    pub(super) fn header(&self, attempts: u16) -> Header {
        Header { timestamp: self.timestamp, attempts, id: self.id }
    }
}

/// All messages of a shard with their bodies.
#[derive(Default, Debug)]
pub(super) struct Messages {
    places: Arena<Message>,
    bodies: BodyStore,
}

impl Messages {
    /// Takes in a message that one holder holds.
    pub(super) fn insert(&mut self, id: [u8; 16], timestamp: i64, arrival: Instant, body: &[u8]) -> MessageKey {
        let body = self.bodies.put(body);
        self.places.insert(Message { id, timestamp, arrival, body, holders: 1 })
    }

    #[inline]
    pub(super) fn get(&self, key: MessageKey) -> &Message {
        &self.places[key]
    }

    pub(super) fn body(&self, key: MessageKey) -> &[u8] {
        self.bodies.get(self.places[key].body)
    }

    /// So many hold it from now on instead of one.
    pub(super) fn share(&mut self, key: MessageKey, holders: usize) {
        self.places[key].holders = u32::try_from(holders).expect("fewer than 2^32 channels");
    }

    /// One holder lets go of it.
    pub(super) fn release(&mut self, key: MessageKey) {
        let message = &mut self.places[key];
        message.holders -= 1;
        if message.holders == 0 {
            self.bodies.free(message.body);
            self.places.remove(key);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Uses of all messages.
    pub(super) fn holders(&self) -> u64 {
        self.places.values().map(|message| u64::from(message.holders)).sum()
    }
}

//! Whether a publish is taken, refused or waits, and when it is answered.

use std::time::Duration;

use tidegate_core::Instant;
use tidegate_core::limit::Throttled;
use tidegate_wire::nsq::frame;

use super::acks::{Ack, AckKey, Origin};
use super::admin::{AdminReply, PublishRefused};
use super::client::Hold;
use super::limiter::{Limiter, Mode};
use super::output::{ConnId, Output};
use super::peers::{Parked, PeerAnswer};
use super::publishers::PublisherRef;
use super::queue::{Item, Queue};
use super::queue_log::QueueLog;
use super::shard::{QueuePolicy, Shard, ShardConfig};
use super::topic::{Mark, Pending, Staged, TopicKey};

/// What became of a publish.
pub(super) enum Published {
    Done,
    /// Some of it is on its way to the log; the answer comes when it is there. The caller says where it goes.
    Later(AckKey),
    /// There is no room now; the publisher is to wait.
    Blocked,
    Refused(PublishRefused),
}

/// Messages to publish, all or none.
pub(super) struct Publish<B> {
    pub(super) bodies: B,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) defer_ns: u64,
    /// As the contract charges it.
    pub(super) arrival: Instant,
    pub(super) read: Instant,
    /// The default if the topic is not watched.
    pub(super) publisher: PublisherRef,
}

/// Whether a queue takes more.
enum Room {
    Yes,
    /// Yes, and it may have to go to the log.
    Spills,
    Wait,
    Refuse(PublishRefused),
}

/// What is to be put somewhere.
#[derive(Clone, Copy)]
struct Load {
    count: usize,
    /// Of bodies.
    bytes: usize,
}

/// Bytes of memory of a message beside its body, at most; a guess that errs on the side of "it spills".
const MESSAGE_BYTES: usize = 256;
impl Shard {
    /// Publishes all of `publish` to `topic`, or none of it.
    #[inline]
    pub(super) fn publish<'b>(
        &mut self,
        topic: TopicKey,
        publish: Publish<impl Iterator<Item = &'b [u8]>>,
        now: Instant,
    ) -> Published {
        if !self.topics[topic].parked.is_empty() {
            return Published::Blocked; // Nobody overtakes those who wait for room.
        }
        self.publish_in_turn(topic, publish, now)
    }

    #[inline]
    fn publish_in_turn<'b>(
        &mut self,
        topic: TopicKey,
        publish: Publish<impl Iterator<Item = &'b [u8]>>,
        now: Instant,
    ) -> Published {
        let load = Load { count: publish.count, bytes: publish.bytes };
        let ack = match self.room(topic, load) {
            Room::Yes => None,
            Room::Spills => Some(self.acks.insert(Ack { origin: None, awaited: 1, refused: None })),
            Room::Wait => return Published::Blocked,
            Room::Refuse(why) => return Published::Refused(why),
        };
        self.take_in(topic, publish, ack, now)
    }

    /// Takes in `publish`, for which there is room, unless the contract refuses it.
    #[inline]
    fn take_in<'b>(
        &mut self,
        topic: TopicKey,
        publish: Publish<impl Iterator<Item = &'b [u8]>>,
        ack: Option<AckKey>,
        now: Instant,
    ) -> Published {
        let load = Load { count: publish.count, bytes: publish.bytes };
        self.count_sent(topic, publish.publisher, load.count as u64, load.bytes as u64, now);
        let refused = self.refusal(topic, load, publish.defer_ns > 0, publish.arrival, now);
        if let Some(why) = refused {
            if let Some(ack) = ack {
                self.acks.remove(ack);
            }
            return Published::Refused(why);
        }
        let timestamp = self.unix_ns(publish.arrival);
        let due = if publish.defer_ns > 0 { now.plus_nanos(publish.defer_ns) } else { Instant::ZERO };
        let delays = self.topics[topic].limiter.as_ref().is_some_and(Limiter::delays);
        for body in publish.bodies {
            let id = self.next_id();
            let message = self.messages.insert(id, timestamp, publish.arrival, body);
            let admitted = self.topics[topic].limiter.is_none();
            let publisher = publish.publisher.no();
            let mark = if admitted { Mark::admitted(publisher) } else { Mark::in_line(publisher) };
            let pending = Pending { message, due, read: publish.read, mark };
            if admitted {
                self.admit(topic, pending, publish.arrival, now);
            }
            if !admitted && due > now {
                self.defer_in_topic(topic, pending);
            } else if delays {
                self.stage(topic, Staged { pending, arrival: publish.arrival, ack });
            } else {
                self.enter_topic(topic, pending, ack, now);
            }
        }
        self.note_backlog(topic, now);
        match ack {
            Some(ack) if !self.settle_ack(ack, None) => Published::Later(ack),
            _ => Published::Done,
        }
    }

    pub(super) fn next_id(&mut self) -> [u8; 16] {
        let id = frame::hex_id(self.numbers.message_id);
        self.numbers.message_id += self.config.shards as u64;
        id
    }

    /// Counts what is offered, and asks the contract and the bound on deferred messages whether it is taken.
    #[inline]
    fn refusal(
        &mut self,
        topic: TopicKey,
        load: Load,
        deferred: bool,
        arrival: Instant,
        now: Instant,
    ) -> Option<PublishRefused> {
        let (count, bytes) = (load.count as u64, load.bytes as u64);
        let bound = self.config.max_queue_bytes;
        let entry = &mut self.topics[topic];
        entry.counts.offered += count;
        entry.counts.offered_bytes += bytes;
        if deferred {
            let channels = entry.routes.iter().map(|channel| self.channels[*channel].deferred.bytes());
            if channels.chain([entry.deferred.bytes()]).any(|held| held >= bound) {
                entry.counts.refused += count;
                return Some(PublishRefused::DeferredFull { bound });
            }
        }
        let limiter = entry.limiter.as_mut()?;
        let cost = limiter.cost_of_all(count, bytes);
        let why = limiter.accept(cost, arrival, now).err()?;
        if limiter.contract.mode == Mode::Shadow {
            entry.counts.shadow += count;
            return None;
        }
        entry.counts.refused += count;
        let burst = limiter.limit().burst;
        Some(match why {
            Throttled::Until(at) => {
                PublishRefused::Throttled { retry_after: at.since(now).max(Duration::from_micros(1)) }
            }
            Throttled::Never => PublishRefused::ExceedsBurst { cost, burst },
        })
    }

    /// Whether `topic` takes `load` now.
    fn room(&self, topic: TopicKey, load: Load) -> Room {
        if self.is_ending() {
            return Room::Refuse(PublishRefused::Exiting);
        }
        let entry = &self.topics[topic];
        let flows = entry.flows();
        let delays = entry.limiter.as_ref().is_some_and(Limiter::delays);
        if delays && flows && entry.line_bytes() >= entry.line_bytes_max {
            return Room::Wait;
        }
        let mut room = Room::Yes;
        // What was staged in this batch goes first.
        let load = Load { count: load.count + entry.staged.len(), ..load };
        if !flows || delays || !entry.queue.is_empty() {
            match self.queue_room(&entry.queue, load) {
                // What is over the bound of an ephemeral topic is dropped; what waits for a token is not.
                Room::Spills if delays && flows && entry.queue.log().is_none() => return Room::Wait,
                Room::Yes => {}
                Room::Spills => room = Room::Spills,
                other => return other,
            }
        }
        for channel in &entry.routes {
            match self.queue_room(&self.channels[*channel].queue, load) {
                Room::Yes => {}
                Room::Spills => room = Room::Spills,
                other => return other,
            }
        }
        room
    }

    /// Every channel of `topic` takes one more message, of `bytes`, in memory.
    #[inline]
    pub(super) fn channels_have_room(&self, topic: TopicKey, bytes: usize) -> bool {
        let load = Load { count: 1, bytes };
        let mut routes = self.topics[topic].routes.iter();
        routes.all(|channel| matches!(self.queue_room(&self.channels[*channel].queue, load), Room::Yes))
    }

    #[inline]
    fn queue_room<T: Item>(&self, queue: &Queue<T>, load: Load) -> Room {
        let config = &self.config;
        let log = queue.log();
        if log.is_some_and(QueueLog::is_congested) {
            return Room::Wait;
        }
        match config.queue_policy {
            QueuePolicy::Overflow => {
                // A body's slot is larger than the body by a half at most.
                let bytes = (load.bytes + load.bytes / 2 + load.count * MESSAGE_BYTES) as u64;
                let fits = queue.memory_len() + load.count <= most(queue, config)
                    && queue.memory_bytes() + bytes < config.max_queue_bytes;
                if fits && !queue.must_spill() {
                    return Room::Yes;
                }
                match log.and_then(|log| log.error()) {
                    Some(error) if is_full(queue, config) || queue.must_spill() => {
                        Room::Refuse(PublishRefused::LogFailed { error: error.to_owned() })
                    }
                    _ => Room::Spills,
                }
            }
            QueuePolicy::BackPressure if is_full(queue, config) => Room::Wait,
            QueuePolicy::Refuse if is_full(queue, config) => Room::Refuse(PublishRefused::QueueFull),
            _ => Room::Yes,
        }
    }

    // Publishers that wait for room.

    /// Holds `conn` back until `topic` has room.
    pub(super) fn block(&mut self, topic: TopicKey, conn: ConnId) {
        self.clients[conn].hold = Hold::LineFull;
        self.topics[topic].blocked.push(conn);
        self.list_blocked(topic);
    }

    /// Whether one more publish may wait for room in `topic` while its connection goes on. So many bytes may as its queue
    /// may hold: a connection that goes leaves its publish here, and another can come.
    pub(super) fn parks_more(&self, topic: TopicKey) -> bool {
        self.topics[topic].parked.bytes() < self.config.max_queue_bytes
    }

    /// A publish waits for room while its connection goes on.
    pub(super) fn park(&mut self, topic: TopicKey, parked: Parked) {
        self.topics[topic].parked.push_back(parked);
        self.list_blocked(topic);
    }

    pub(super) fn list_blocked(&mut self, topic: TopicKey) {
        if !self.changed.blocked.contains(&topic) {
            self.changed.blocked.push(topic);
        }
    }

    /// Lets publishers go on whose topic has room again, and messages whose channels have; `true` if something moved.
    pub(super) fn unblock(&mut self, now: Instant) -> bool {
        let mut moved = false;
        let mut index = 0;
        while let Some(topic) = self.changed.blocked.get(index).copied() {
            let entry = &self.topics[topic];
            if entry.flows() && !entry.queue.is_empty() && self.channels_take(topic, Instant::ZERO, now) {
                let before = self.topics[topic].queue.depth();
                self.drain_topic(topic, now);
                moved |= self.topics[topic].queue.depth() != before;
            }
            let load = self.topics[topic].parked.front().map_or(Load { count: 1, bytes: 0 }, |parked| Load {
                count: parked.parcel.count,
                bytes: parked.parcel.bytes,
            });
            if matches!(self.room(topic, load), Room::Wait) {
                index += 1;
                continue;
            }
            moved |= self.let_in(topic, now);
            let entry = &self.topics[topic];
            let stalled = entry.flows() && !entry.queue.is_empty() && !self.channels_take(topic, Instant::ZERO, now);
            if stalled || !entry.parked.is_empty() {
                index += 1;
            } else {
                self.changed.blocked.swap_remove(index);
            }
        }
        moved
    }

    /// Carries out what waits for room in `topic`, in order, while there is room; `true` if there was something.
    fn let_in(&mut self, topic: TopicKey, now: Instant) -> bool {
        let mut moved = false;
        while let Some(parked) = self.topics[topic].parked.pop_front() {
            if let Some(parked) = self.try_parked(topic, parked, now) {
                self.topics[topic].parked.push_front(parked);
                return moved;
            }
            moved = true;
        }
        for conn in std::mem::take(&mut self.topics[topic].blocked) {
            self.resume(conn);
            moved = true;
        }
        moved
    }

    /// Takes in all that waits for room in `topic`, whether there is some or not: what comes behind it was accepted
    /// already. They are at most as many bytes as may wait.
    pub(super) fn let_in_all(&mut self, topic: TopicKey, now: Instant) {
        while let Some(parked) = self.topics[topic].parked.pop_front() {
            let ack = self.acks.insert(Ack { origin: None, awaited: 1, refused: None });
            let published = self.take_in(topic, again(&parked, now), Some(ack), now);
            self.answer_parked(parked.origin, published);
        }
    }

    /// Publishes what was parked, or parks it again behind what is parked now.
    pub(super) fn publish_parked(&mut self, topic: TopicKey, parked: Parked, now: Instant) {
        let parked =
            if self.topics[topic].parked.is_empty() { self.try_parked(topic, parked, now) } else { Some(parked) };
        if let Some(parked) = parked {
            self.park(topic, parked);
        }
    }

    /// Gives the publish back if there is still no room.
    fn try_parked(&mut self, topic: TopicKey, parked: Parked, now: Instant) -> Option<Parked> {
        let published = self.publish_in_turn(topic, again(&parked, now), now);
        if matches!(published, Published::Blocked) {
            return Some(parked);
        }
        self.answer_parked(parked.origin, published);
        None
    }

    fn answer_parked(&mut self, origin: Origin, published: Published) {
        match published {
            Published::Blocked => {}
            Published::Done => self.answer(origin, Ok(())),
            Published::Later(ack) => self.acks[ack].origin = Some(origin),
            Published::Refused(why) => self.answer(origin, Err(why)),
        }
    }

    /// One of the things that `ack` waits for is done, or was refused; `true` if that was the last.
    pub(super) fn settle_ack(&mut self, ack: AckKey, refused: Option<PublishRefused>) -> bool {
        let entry = &mut self.acks[ack];
        entry.awaited -= 1;
        if entry.refused.is_none() {
            entry.refused = refused;
        }
        if entry.awaited > 0 {
            return false;
        }
        let Ack { origin, refused, .. } = self.acks.remove(ack);
        if let Some(origin) = origin {
            self.answer(origin, refused.map_or(Ok(()), Err));
        }
        true
    }

    /// Tells the publisher what became of its publish.
    pub(super) fn answer(&mut self, origin: Origin, result: Result<(), PublishRefused>) {
        match origin {
            Origin::Client(publisher) => self.answer_client(publisher, result),
            Origin::Peer(shard, publisher) => {
                let answer = PeerAnswer { publisher, result, stamp: false };
                self.peers.answer(shard, answer);
            }
            Origin::Admin(request) => {
                let reply = result.map_or_else(AdminReply::Refused, |()| AdminReply::Done);
                self.outputs.push_back(Output::AdminReply(request, reply));
            }
        }
    }
}

/// What was parked, as it is published.
fn again(parked: &Parked, now: Instant) -> Publish<impl Iterator<Item = &[u8]>> {
    let parcel = parked.parcel;
    Publish {
        bodies: parked.bodies(),
        count: parcel.count,
        bytes: parcel.bytes,
        defer_ns: parcel.defer_ns,
        // Room held it up until now, and not tokens.
        arrival: now,
        read: now,
        publisher: parcel.publisher,
    }
}

/// Messages that a queue holds in memory. One without a log behind it holds a message at least, or nothing could pass.
fn most<T: Item>(queue: &Queue<T>, config: &ShardConfig) -> usize {
    config.mem_queue_size.max(usize::from(queue.log().is_none()))
}

/// Whether a queue is at its bound.
pub(super) fn is_full<T: Item>(queue: &Queue<T>, config: &ShardConfig) -> bool {
    queue.memory_len() >= most(queue, config) || queue.memory_bytes() >= config.max_queue_bytes
}

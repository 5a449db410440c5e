//! Which messages are owed to which channels, judged by what publishers were answered and what consumers got.
//!
//! A message is owed to every channel that was there when it was sent, once its publish is answered OK, until a consumer
//! of the channel has it or the channel was emptied or deleted.
//!
//! What may be lost: whatever is ephemeral, at any stop. At a kill: what was handed to a socket or deferred; and if
//! queues are held in memory, what they held, which outside nobody can tell from what they had written, so it is
//! counted. Without memory (`mem_queue_size` 0) nothing else, and the same when the power goes if each record is
//! synced. At a clean stop nothing.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Instant;

/// A channel's name: its topic's place in the list, and its own.
pub(crate) type ChannelId = (usize, &'static str);

/// What became of a publish, as its publisher knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Unknown,
    Accepted,
    Refused,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) topic: usize,
    pub(crate) at: Instant,
    pub(crate) bytes: usize,
    pub(crate) deferred: bool,
    pub(crate) fate: Fate,
    /// When a consumer first had it, of whatever channel: it has left its topic by then.
    pub(crate) first_seen: Option<Instant>,
    /// The reference channel's consumer has it.
    pub(crate) seen: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Debt {
    accepted: bool,
    /// It was handed to a consumer's socket.
    written: bool,
}

#[derive(Default, Debug)]
struct Channel {
    there: bool,
    owed: BTreeMap<usize, Debt>,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum End {
    Clean,
    /// What was accepted is in the files.
    KilledWithoutMemory,
    /// What was in memory is gone.
    Killed,
}

#[derive(Default, Debug)]
pub(crate) struct Ledger {
    pub(crate) sent: Vec<Sent>,
    channels: BTreeMap<ChannelId, Channel>,
    /// Owed when a process that held messages in memory was killed.
    perhaps: BTreeSet<(ChannelId, usize)>,
    pub(crate) received: u64,
}

impl Ledger {
    pub(crate) fn send(&mut self, sent: Sent) -> usize {
        let number = self.sent.len();
        for (_, channel) in
            self.channels.iter_mut().filter(|((topic, _), channel)| *topic == sent.topic && channel.there)
        {
            channel.owed.insert(number, Debt::default());
        }
        self.sent.push(sent);
        number
    }

    /// The publisher was answered.
    pub(crate) fn answered(&mut self, number: usize, fate: Fate) {
        self.sent[number].fate = fate;
        let topic = self.sent[number].topic;
        for (_, channel) in self.channels.iter_mut().filter(|((of, _), _)| *of == topic) {
            match fate {
                Fate::Refused => drop(channel.owed.remove(&number)),
                Fate::Accepted | Fate::Unknown => {
                    if let Some(debt) = channel.owed.get_mut(&number) {
                        debt.accepted = fate == Fate::Accepted;
                    }
                }
            }
        }
    }

    /// The channel is there from now on, and keeps what it is given.
    pub(crate) fn created(&mut self, id: ChannelId) {
        self.channels.entry(id).or_default().there = true;
    }

    /// It was deleted.
    pub(crate) fn deleted(&mut self, id: ChannelId) {
        self.channels.insert(id, Channel::default());
    }

    /// Its messages were dropped by an order.
    pub(crate) fn emptied(&mut self, of: impl Fn(ChannelId) -> bool) {
        for (_, channel) in self.channels.iter_mut().filter(|(id, _)| of(**id)) {
            channel.owed.clear();
        }
    }

    /// A message was handed to a socket of the channel.
    pub(crate) fn written(&mut self, id: ChannelId, number: usize) {
        if let Some(debt) = self.channels.get_mut(&id).and_then(|channel| channel.owed.get_mut(&number)) {
            debt.written = true;
        }
    }

    /// A consumer of the channel has a message; `true` if it is the first time.
    pub(crate) fn received(&mut self, id: ChannelId, number: usize) {
        self.received += 1;
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.owed.remove(&number);
        }
        self.perhaps.remove(&(id, number));
    }

    /// The process is gone.
    pub(crate) fn ended(&mut self, end: End) {
        let Self { sent, channels, perhaps, .. } = self;
        for (id, channel) in channels.iter_mut() {
            channel.there = false;
            if is_ephemeral(*id) {
                channel.owed.clear();
            }
            if end == End::Clean {
                continue;
            }
            channel.owed.retain(|number, debt| {
                let in_memory = end == End::Killed || debt.written || sent[*number].deferred;
                if in_memory && debt.accepted {
                    perhaps.insert((*id, *number));
                }
                !in_memory
            });
        }
    }

    /// What is owed and was not delivered.
    pub(crate) fn owed(&self) -> Vec<(ChannelId, usize)> {
        let all = self.channels.iter().flat_map(|(id, channel)| channel.owed.iter().map(move |debt| (*id, debt)));
        all.filter(|(_, (_, debt))| debt.accepted).map(|(id, (number, _))| (id, *number)).collect()
    }

    /// Messages that were lost with memory.
    pub(crate) fn lost_with_memory(&self) -> usize {
        self.perhaps.len()
    }
}

/// It ends with the process, and with its last consumer.
fn is_ephemeral((topic, channel): ChannelId) -> bool {
    super::TOPICS[topic].ends_with("#ephemeral") || channel.ends_with("#ephemeral")
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: ChannelId = (0, "c");

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.created(C);
        ledger
    }

    fn send(ledger: &mut Ledger) -> usize {
        let at = Instant::ZERO;
        ledger.send(Sent {
            topic: 0,
            at,
            bytes: 1,
            deferred: false,
            fate: Fate::Unknown,
            first_seen: None,
            seen: false,
        })
    }

    #[test]
    fn what_is_accepted_is_owed_until_it_is_there() {
        let mut ledger = ledger();
        let number = send(&mut ledger);
        assert!(ledger.owed().is_empty(), "not answered");
        ledger.answered(number, Fate::Accepted);
        assert_eq!(ledger.owed(), [(C, number)]);
        ledger.written(C, number);
        ledger.ended(End::Clean);
        assert_eq!(ledger.owed(), [(C, number)], "a clean stop loses nothing");
        ledger.received(C, number);
        assert!(ledger.owed().is_empty());
    }

    #[test]
    fn a_kill_forgives_what_was_in_memory_only() {
        let mut ledger = ledger();
        let numbers = [send(&mut ledger), send(&mut ledger)];
        for number in numbers {
            ledger.answered(number, Fate::Accepted);
        }
        ledger.written(C, numbers[0]);
        ledger.ended(End::KilledWithoutMemory);
        assert_eq!(ledger.owed(), [(C, numbers[1])]);
        ledger.ended(End::Killed);
        assert_eq!((ledger.owed().len(), ledger.lost_with_memory()), (0, 2));
        ledger.received(C, numbers[1]);
        assert_eq!(ledger.lost_with_memory(), 1);
    }

    #[test]
    fn an_order_forgives_and_a_refusal_does() {
        let mut ledger = ledger();
        let number = send(&mut ledger);
        ledger.answered(number, Fate::Refused);
        let other = send(&mut ledger);
        ledger.answered(other, Fate::Accepted);
        assert_eq!(ledger.owed(), [(C, other)]);
        ledger.deleted(C);
        assert!(ledger.owed().is_empty());
        assert!({
            let late = send(&mut ledger);
            ledger.answered(late, Fate::Accepted);
            ledger.owed().is_empty()
        });
    }
}

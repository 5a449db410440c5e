//! The table of the calls that are under way.

use tidegate_core::Instant;
use tidegate_rpc::machine::desk::{Paused, Waiting, Woken};

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nowhere: its slot is free.
    Free,
    /// Beside its caller.
    AtClient,
    /// On its way, or at the server.
    Sent,
    /// The same, but nobody waits for it any more.
    Orphan,
}

/// A call from its client's wish to the moment at which the client knows how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// When its caller wanted it.
    pub(super) intended: Instant,
    pub(super) client: u32,
    /// Which of the scenario's priorities, by index.
    pub(super) class: u8,
    /// Which of the scenario's groups, by index.
    pub(super) group: u16,
    pub(super) state: State,
}

/// Where an admitted call is at the server while no core has it.
#[derive(Default, Debug)]
pub(super) enum AtServer {
    /// Nowhere, or on a core.
    #[default]
    Nowhere,
    /// In line.
    Waiting(Waiting),
    /// Its handler waits for something.
    Paused(Paused),
    /// Its handler waits for a core to go on.
    Woken(Woken),
}

impl Call {
    pub(super) fn new(intended: Instant, client: u32, class: u8, group: u16) -> Self {
        Self { intended, client, class, group, state: State::AtClient }
    }
}

/// Calls by slot; slots are reused, the latest first.
#[derive(Debug)]
pub(super) struct Calls {
    slots: Vec<Call>,
    /// Of each slot.
    at_server: Vec<AtServer>,
    free: Vec<u32>,
    max: usize,
}

impl Calls {
    pub(super) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), at_server: Vec::new(), free: Vec::new(), max }
    }

    /// The slot of `call`; `None` if the table is full.
    #[inline]
    pub(super) fn insert(&mut self, call: Call) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = call;
            return Some(slot);
        }
        if self.slots.len() >= self.max {
            return None;
        }
        self.slots.push(call);
        self.at_server.push(AtServer::Nowhere);
        u32::try_from(self.slots.len() - 1).ok()
    }

    #[inline]
    pub(super) fn get(&mut self, slot: u32) -> &mut Call {
        &mut self.slots[slot as usize]
    }

    /// Where the call is at the server.
    #[inline]
    pub(super) fn at_server(&mut self, slot: u32) -> &mut AtServer {
        &mut self.at_server[slot as usize]
    }

    /// Where the call was at the server; it is about to be elsewhere.
    #[inline]
    pub(super) fn take_from_server(&mut self, slot: u32) -> AtServer {
        core::mem::take(&mut self.at_server[slot as usize])
    }

    /// Ends the call; its slot is free.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) -> Call {
        self.free.push(slot);
        let call = self.slots[slot as usize];
        self.slots[slot as usize].state = State::Free;
        call
    }

    /// Slots of the calls that somebody waits for.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (u32, &Call)> {
        let all = (0..).zip(&self.slots);
        all.filter(|(_, call)| matches!(call.state, State::AtClient | State::Sent))
    }

    /// Frees the slots of all calls that nobody waits for.
    pub(super) fn forget_orphans(&mut self) {
        for (slot, call) in (0..).zip(&mut self.slots) {
            if call.state == State::Orphan {
                call.state = State::Free;
                self.free.push(slot);
            }
        }
    }

    /// Calls under way.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

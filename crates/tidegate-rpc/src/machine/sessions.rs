//! The table of a server's sessions: O(1) to open, find and close, and a ticket of a closed session finds nobody.

use core::ops::{Index, IndexMut};

use tidegate_core::Instant;

use super::shape::{Ask, Full, SessionId, Ticket};

/// The bits of a ticket's mark that hold the generation; the others are the scheme's own.
const GENERATION: u64 = u32::MAX as u64;

/// As many sessions as a server holds unless told otherwise: above a million, the largest number of clients compared.
pub(crate) const MAX_SESSIONS: u32 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    /// How often the slot was closed: a ticket of an earlier use carries another number.
    generation: u32,
    open: bool,
    state: T,
}

/// Sessions with a state `T` each.
#[derive(Clone, Debug)]
pub(crate) struct Sessions<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: u32,
}

impl<T: Default> Sessions<T> {
    /// A table for at most `limit` sessions; it grows as they come.
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// Open sessions.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free.len()).expect("the limit is a `u32`")
    }

    pub(crate) fn open(&mut self) -> Result<SessionId, Full> {
        if let Some(index) = self.free.pop() {
            self.slots[place(index)].open = true;
            return Ok(SessionId(index));
        }
        if self.len() >= self.limit {
            return Err(Full { sessions: self.slots.len() });
        }
        let id = SessionId(self.len());
        self.slots.push(Slot { generation: 0, open: true, state: T::default() });
        Ok(id)
    }

    /// Ends a session and returns its state; `None` if it is not open.
    pub(crate) fn close(&mut self, id: SessionId) -> Option<T> {
        let slot = self.slots.get_mut(place(id.0)).filter(|slot| slot.open)?;
        slot.open = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.0);
        Some(core::mem::take(&mut slot.state))
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        let slot = self.slots.get_mut(place(id.0)).filter(|slot| slot.open)?;
        Some(&mut slot.state)
    }

    /// The session that a ticket came from, if it is still the same one.
    pub(crate) fn of(&mut self, ticket: &Ticket) -> Option<&mut T> {
        let slot = self.slots.get_mut(place(ticket.session.0))?;
        let same = slot.open && u64::from(slot.generation) == ticket.mark & GENERATION;
        same.then_some(&mut slot.state)
    }

    /// A ticket for a request of a session. `flags` are for the scheme's own use, in the upper half of the mark.
    pub(crate) fn ticket(&self, session: SessionId, ask: &Ask, arrived: Instant, flags: u64) -> Ticket {
        debug_assert_eq!(flags & GENERATION, 0, "the low bits are the generation's");
        let generation = self.slots.get(place(session.0)).map_or(0, |slot| slot.generation);
        Ticket { mark: u64::from(generation) | flags, ..Ticket::new(session, ask, arrived) }
    }
}

/// The state of a session that its scheme keeps in a list, and so knows to be open.
impl<T> Index<u32> for Sessions<T> {
    type Output = T;
    fn index(&self, index: u32) -> &T {
        &self.slots[place(index)].state
    }
}

impl<T> IndexMut<u32> for Sessions<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.slots[place(index)].state
    }
}

fn place(index: u32) -> usize {
    usize::try_from(index).expect("32 bits fit an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_and_its_old_tickets_find_nobody() {
        let mut table: Sessions<u8> = Sessions::new(1);
        let id = table.open().unwrap();
        assert_eq!(table.open(), Err(Full { sessions: 1 }));
        let ticket = table.ticket(id, &Ask::default(), Instant::ZERO, 0);
        *table.of(&ticket).unwrap() = 7;
        assert_eq!(table.close(id), Some(7));
        assert_eq!((table.close(id), table.len()), (None, 0));
        assert_eq!(table.open(), Ok(id));
        assert_eq!(table.of(&ticket), None);
        assert_eq!(table.get_mut(id), Some(&mut 0), "a new session starts afresh");
    }
}

//! Who the tenants are.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tidegate_core::share::{Blocks, NONE};

use super::Tenant;
use crate::machine::Resource;

/// Longest name in bytes; longer ones have no place of their own.
const NAME_MAX: usize = 255;
/// Slots that are looked at for an idle tenant when the table is full.
const LOOKED_AT: usize = 16;
/// One source has the room of one name in so many at most.
const SOURCE_PART: usize = 8;
/// Of so many names one at least is left for names that nobody makes up, and of twice as many one when sources have a place
/// for the rest of theirs.
const KEPT_PART: usize = 8;
/// Tables of names, as a power of two: one that grows hashes all its names anew, so each has few.
const NAMES_LOG2: u32 = 8;
/// A handle's lower bits are the slot, the others count who had it before.
const SLOT_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (32 - SLOT_BITS);

/// One tenant: a cache line. Idle, it costs this, its name, and an entry in the table of names.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Where its state stands at each resource, or [`NONE`].
    pub(super) cells: [u32; Resource::COUNT],
    pub(super) weight: u32,
    /// The crowd of its source, if anybody can make its name up, or [`NONE`].
    pub(super) crowd: u32,
    generation: u32,
    /// Used since they were last counted, while nothing limits them.
    pub(super) requests: u32,
    /// By stage.
    pub(super) refused: [u32; super::Stage::COUNT],
    /// It has a weight of its own, or is everybody else: never recycled.
    kept: bool,
    /// Resolved since the search for an idle one came by.
    seen: bool,
}

/// All tenants by name; the first is everybody else.
#[derive(Clone, Debug)]
pub(super) struct Table {
    slots: Blocks<Slot>,
    /// Apart from the slots: a decision needs no name.
    labels: Blocks<Box<str>>,
    /// By the first bits of the names' hashes.
    names: Vec<HashTable<u32>>,
    hasher: RandomState,
    most: usize,
    /// Where the search for an idle tenant goes on.
    hand: usize,
}

impl Table {
    pub(super) fn new(tenants_max: u32) -> Self {
        let mut table = Self {
            slots: Blocks::default(),
            labels: Blocks::default(),
            names: vec![HashTable::new(); 1 << NAMES_LOG2],
            hasher: RandomState::default(),
            most: most(tenants_max),
            hand: 0,
        };
        table.add("", 1, true);
        table
    }

    pub(super) fn set_most(&mut self, tenants_max: u32) {
        self.most = most(tenants_max);
    }

    /// The tenant called `name`, in nobody's crowd; [`Tenant::OTHER`] if there is no room. `gone` is told the crowd of whoever
    /// had its place before.
    pub(super) fn resolve(&mut self, name: &str, gone: impl FnOnce(u32)) -> Tenant {
        if let Some(tenant) = self.look_up(name) {
            return tenant;
        }
        if name.len() > NAME_MAX {
            return Tenant::OTHER;
        }
        match self.room() {
            Some(at) => {
                gone(core::mem::replace(&mut self.slots[at].crowd, NONE));
                self.reuse(at, name)
            }
            None if self.slots.len() <= self.most => self.add(name, 1, false),
            None => Tenant::OTHER,
        }
    }

    /// The tenant called `name`, if it has a place, which it keeps.
    pub(super) fn look_up(&mut self, name: &str) -> Option<Tenant> {
        let at = self.find(name)?;
        self.slots[at].seen = true;
        Some(self.handle(at))
    }

    /// Whether one source, of which there are `names` here, may have another: one takes an eighth of the table at most.
    pub(super) fn has_room_for(&self, names: u32) -> bool {
        (names as usize) < self.most.div_ceil(SOURCE_PART)
    }

    /// Whether there may be another name that somebody makes up, with `names` here: they leave an eighth of the table.
    pub(super) fn has_room_for_made_up(&self, names: u32) -> bool {
        (names as usize) < self.most - self.most / KEPT_PART
    }

    /// Whether there may be another place for the rest of a source's names.
    pub(super) fn has_room_for_rest(&self, names: u32) -> bool {
        (names as usize) < self.most - self.most / KEPT_PART / 2
    }

    /// Gives the place of an idle tenant whose crowd is one of `these` to the tenant called `name`, which is new; the crowd
    /// of the one before is returned as well.
    pub(super) fn take_over(&mut self, name: &str, these: impl Fn(u32) -> bool) -> Option<(Tenant, u32)> {
        let at = self.look_for(these).filter(|_| name.len() <= NAME_MAX)?;
        let before = core::mem::replace(&mut self.slots[at].crowd, NONE);
        Some((self.reuse(at, name), before))
    }

    /// The tenant called `name`, if it has a place.
    pub(super) fn handle_of(&self, name: &str) -> Option<Tenant> {
        self.find(name).map(|at| self.handle(at))
    }

    /// True if a handle is not stale; nor that of everybody else, who may have a place of their own by now.
    #[inline]
    pub(super) fn touch(&mut self, tenant: Tenant) -> bool {
        let at = self.index(tenant);
        if at != 0 {
            self.slots[at].seen = true;
        }
        at != 0
    }

    /// Gives the tenant a weight for good; false if there is no room for it.
    pub(super) fn set_weight(&mut self, name: &str, weight: u32, gone: impl FnOnce(u32)) -> Option<usize> {
        let tenant = self.resolve(name, gone);
        let at = self.index(tenant);
        if at == 0 && !name.is_empty() && name != Tenant::OTHER_NAME {
            return None;
        }
        self.slots[at].kept = true;
        self.slots[at].weight = weight;
        Some(at)
    }

    /// Takes all given weights back, one calling `changed` for each tenant that had one.
    pub(super) fn forget_weights(&mut self) -> Vec<usize> {
        let mut changed = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate().skip(1) {
            if slot.kept {
                slot.kept = false;
                slot.weight = 1;
                changed.push(at);
            }
        }
        changed
    }

    /// The number in a handle, whether it is stale or not.
    #[inline]
    pub(super) const fn number_of(tenant: Tenant) -> u32 {
        tenant.0 & ((1 << SLOT_BITS) - 1)
    }

    /// The slot of a handle; of a stale one everybody else's.
    #[inline]
    pub(super) fn index(&self, tenant: Tenant) -> usize {
        let at = Self::number_of(tenant) as usize;
        match self.slots.get(at) {
            Some(slot) if slot.generation == tenant.0 >> SLOT_BITS => at,
            _ => 0,
        }
    }

    #[inline]
    pub(super) fn slot(&self, at: usize) -> &Slot {
        &self.slots[at]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, at: usize) -> &mut Slot {
        &mut self.slots[at]
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn name(&self, at: usize) -> &str {
        &self.labels[at]
    }

    fn find(&self, name: &str) -> Option<usize> {
        if name == Tenant::OTHER_NAME {
            return Some(0);
        }
        let hash = self.hasher.hash_one(name);
        let found = self.names[part(hash)].find(hash, |at| *self.labels[*at as usize] == *name);
        found.map(|at| *at as usize)
    }

    /// A slot's place, as short as it is kept.
    #[inline]
    pub(super) fn number(at: usize) -> u32 {
        u32::try_from(at).expect("slots are fewer than 2^20")
    }

    pub(super) fn handle(&self, at: usize) -> Tenant {
        Tenant(self.slots[at].generation << SLOT_BITS | Self::number(at))
    }

    fn add(&mut self, name: &str, weight: u32, kept: bool) -> Tenant {
        let slot = Slot {
            cells: [NONE; Resource::COUNT],
            weight,
            crowd: NONE,
            generation: 0,
            requests: 0,
            refused: [0; super::Stage::COUNT],
            kept,
            seen: true,
        };
        self.slots.push(slot);
        self.labels.push(name.into());
        let at = self.slots.len() - 1;
        self.enter(at);
        self.handle(at)
    }

    /// An idle tenant's slot, if the table is full and one is near.
    fn room(&mut self) -> Option<usize> {
        if self.slots.len() <= self.most { None } else { self.look_for(|_| true) }
    }

    /// The slot of an idle tenant whose crowd is one of `these`, if one is near.
    fn look_for(&mut self, these: impl Fn(u32) -> bool) -> Option<usize> {
        for _ in 0..LOOKED_AT {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            let idle = !slot.kept && these(slot.crowd) && slot.cells.iter().all(|cell| *cell == NONE);
            if idle && !core::mem::replace(&mut slot.seen, false) {
                return Some(self.hand);
            }
        }
        None
    }

    fn reuse(&mut self, at: usize, name: &str) -> Tenant {
        let hash = self.hasher.hash_one(&*self.labels[at]);
        if let Ok(entry) = self.names[part(hash)].find_entry(hash, |other| *other as usize == at) {
            entry.remove();
        }
        self.labels[at] = name.into();
        let slot = &mut self.slots[at];
        slot.generation = (slot.generation + 1) % GENERATIONS;
        slot.refused = [0; super::Stage::COUNT];
        slot.weight = 1;
        slot.requests = 0;
        slot.seen = true;
        self.enter(at);
        self.handle(at)
    }

    fn enter(&mut self, at: usize) {
        let Self { labels, names, hasher, .. } = self;
        let hash = hasher.hash_one(&*labels[at]);
        let entry = Self::number(at);
        names[part(hash)].insert_unique(hash, entry, |other| hasher.hash_one(&*labels[*other as usize]));
    }
}

/// The table that a name of this hash is in. A table itself goes by other bits.
fn part(hash: u64) -> usize {
    // Within a table an entry is found by the last bits of its hash, and told apart by the first ones.
    ((hash >> 40) & ((1 << NAMES_LOG2) - 1)) as usize
}

fn most(tenants_max: u32) -> usize {
    tenants_max.clamp(1, super::NeighboursConfig::TENANTS_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::share::Overflow;

    #[test]
    fn an_idle_tenant_costs_less_than_256_bytes_a_core() {
        // The slot, the line of the core's time that stands where the slot's number says, its entry in the table of names
        // (4 bytes and one, at a load of 7/16 after growth), and a name as long as they get in practice with the
        // allocator's rounding. Nothing else: all other state is given back when idle.
        let entry = 5 * 16 / 7 + 1;
        let name = size_of::<Box<str>>() + 64 + 16;
        assert_eq!(size_of::<Slot>(), 64, "one cache line");
        assert!(size_of::<Slot>() + Overflow::OWNER_BYTES + entry + name <= 256);
    }

    #[test]
    fn one_name_more_hashes_few_names_anew() {
        let mut table = Table::new(200_000);
        for name in 0..100_000 {
            table.resolve(&name.to_string(), |_| {});
        }
        let largest = table.names.iter().map(HashTable::len).max().unwrap();
        assert!(largest < 600, "{largest} of 100,000 names are in one of the tables");
        assert!((0..100_000).all(|name| table.handle_of(&name.to_string()).is_some()));
    }

    #[test]
    fn a_full_table_takes_the_place_of_idle_tenants_only() {
        let mut table = Table::new(3);
        let [a, b, c] = ["a", "b", "c"].map(|name| table.resolve(name, |_| {}));
        assert_eq!(table.resolve("a", |_| {}), a, "found again");
        table.slot_mut(table.index(a)).cells[0] = 7;
        table.set_weight("b", 5, |_| {});
        // Only c is idle and has nothing of its own; it was seen, so the search passes it once.
        let d = table.resolve("d", |_| {});
        assert!(table.touch(d) && !table.touch(c) && !table.touch(Tenant::OTHER));
        assert_eq!(table.index(c), 0, "its handle means everybody else now");
        assert!(table.index(d) != 0 && table.index(a) != 0 && table.index(b) != 0);
        assert_eq!(table.resolve("d", |_| {}), d);
        table.slot_mut(table.index(d)).cells[0] = 8;
        assert_eq!(table.resolve("e", |_| {}), Tenant::OTHER, "nobody is idle");
        assert_eq!(table.resolve(&"x".repeat(256), |_| {}), Tenant::OTHER);
        assert_eq!(table.resolve("", |_| {}), Tenant::OTHER);
    }
}

//! Classes that hold packets back, as Linux HTB does.
//!
//! | module | its one job |
//! |---|---|
//! | this one | the tree: which leaf sends next, and what that costs each class above it |
//! | `class` | tokens, and how they are spent |
//!
//! A class has tokens at its rate and at its ceiling, kept as time. While neither is below zero it can send, whatever the
//! size of its next packet: what that costs is taken afterwards, so that a large packet leaves a debt. With tokens at its
//! ceiling alone it sends if its parent can, and on the parent's account. The lowest classes that can send go first, of
//! these the leaves of the smallest priority, and those of one priority take turns by their quanta.
//!
//! Departures: a packet's cost is exact, where Linux multiplies and shifts; timers are exact, and there is no hysteresis.
//! Source: Linux, `net/sched/sch_htb.c`.

mod class;

use std::collections::VecDeque;

use class::Class;
use tidegate_core::Instant;

/// As many as HTB has.
const PRIORITIES: usize = 8;
/// Depth of a tree, as in HTB.
const LEVELS: usize = 8;

/// Settings of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassConfig {
    /// Class that it borrows from: one before it.
    pub parent: Option<usize>,
    /// Bytes per second of its own.
    pub rate: u64,
    /// Bytes per second with what its parent lends; at least `rate`.
    pub ceil: u64,
    /// Tokens that it gathers at its rate, in nanoseconds.
    pub buffer_ns: u64,
    /// The same at its ceiling.
    pub ceil_buffer_ns: u64,
    /// Where its packets wait. `None`: other classes are below it.
    pub leaf: Option<LeafConfig>,
}

/// Settings of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafConfig {
    /// 0 is served first.
    pub priority: u8,
    /// Bytes of a turn.
    pub quantum: u32,
    /// Packets that may wait: the length of Linux's usual `pfifo` is 1000.
    pub packets_max: usize,
    /// Bytes that may wait.
    pub bytes_max: u64,
}

/// A queue was full; the packet comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped<P>(pub P);

/// The classes of a device.
#[derive(Clone, Debug)]
pub struct Htb<P> {
    classes: Vec<Class>,
    leaves: Vec<Option<Leaf<P>>>,
    /// For each level and priority the class whose turn it is.
    turns: [[usize; PRIORITIES]; LEVELS],
}

#[derive(Clone, Debug)]
struct Leaf<P> {
    config: LeafConfig,
    queue: VecDeque<(u64, P)>,
    bytes: u64,
    /// For each level at which it is served: bytes left of its turn; below zero after a large packet.
    deficits: [i64; LEVELS],
}

/// Leaves that may send, all by classes of one level, and all of one priority.
struct Row {
    level: usize,
    priority: usize,
    leaves: Vec<usize>,
}

impl<P> Htb<P> {
    /// Empty classes with full buckets.
    ///
    /// # Panics
    /// If a class has no rate, a ceiling below it, a parent that is not before it, or a turn of no bytes.
    #[must_use]
    pub fn new(classes: &[ClassConfig], now: Instant) -> Self {
        let leaf = |config: &ClassConfig| {
            let config = config.leaf?;
            assert!(config.quantum > 0, "a turn is some bytes");
            Some(Leaf { config, queue: VecDeque::new(), bytes: 0, deficits: [0; LEVELS] })
        };
        let mut made: Vec<Class> = Vec::with_capacity(classes.len());
        for config in classes {
            let level = match (config.leaf, config.parent) {
                (Some(_), _) => 0,
                (None, None) => LEVELS - 1,
                (None, Some(parent)) => made[parent].level() - 1,
            };
            made.push(Class::new(*config, level, now));
        }
        Self { classes: made, leaves: classes.iter().map(leaf).collect(), turns: [[0; PRIORITIES]; LEVELS] }
    }

    /// Puts a packet of `bytes` into a class that is a leaf.
    ///
    /// # Errors
    /// [`Dropped`] if the leaf is full.
    ///
    /// # Panics
    /// If the class is no leaf.
    pub fn enqueue(&mut self, class: usize, bytes: u64, packet: P) -> Result<(), Dropped<P>> {
        let leaf = self.leaves[class].as_mut().expect("packets wait in leaves");
        if leaf.queue.len() >= leaf.config.packets_max || leaf.bytes + bytes > leaf.config.bytes_max {
            return Err(Dropped(packet));
        }
        leaf.queue.push_back((bytes, packet));
        leaf.bytes += bytes;
        for at in self.with_parents(class) {
            self.classes[at].backlog += bytes;
        }
        Ok(())
    }

    /// When the next packet can leave; `None` if none waits.
    #[must_use]
    pub fn next_at(&self, now: Instant) -> Option<Instant> {
        self.waiting().map(|leaf| now.plus_nanos(self.wait_ns(leaf, now))).min()
    }

    /// The next packet and its size, if one can leave.
    pub fn dequeue(&mut self, now: Instant) -> Option<(u64, P)> {
        let row = self.first_row(now)?;
        let at = self.leaf_in_turn(&row);
        let parent = self.classes[at].config().parent;
        let leaf = self.leaves[at].as_mut().expect("a leaf waits");
        let (bytes, packet) = leaf.queue.pop_front().expect("a leaf in turn has a packet");
        leaf.bytes -= bytes;
        let deficit = &mut leaf.deficits[row.level];
        *deficit -= i64::try_from(bytes).expect("a packet is small");
        if *deficit < 0 {
            *deficit += i64::from(leaf.config.quantum);
            let turn = match parent {
                Some(parent) if row.level > 0 => &mut self.classes[parent].turns[row.priority],
                _ => &mut self.turns[row.level][row.priority],
            };
            *turn = at + 1;
        }
        for class in self.with_parents(at) {
            self.classes[class].charge(bytes, row.level, now);
        }
        Some((bytes, packet))
    }

    /// Bytes that wait in a class and below it.
    #[must_use]
    pub fn backlog(&self, class: usize) -> u64 {
        self.classes[class].backlog
    }

    /// Bytes that have left a class.
    #[must_use]
    pub fn sent(&self, class: usize) -> u64 {
        self.classes[class].sent
    }

    /// Tokens that a class can use, its own or its parents' as far as its ceiling lets it, in nanoseconds; below zero, when it
    /// can send again.
    #[must_use]
    pub fn credit_ns(&self, class: usize, now: Instant) -> i64 {
        let (own, ceiling) = self.classes[class].tokens_at(now);
        let lent = self.classes[class].config().parent.map(|parent| self.credit_ns(parent, now));
        own.min(ceiling).max(lent.map_or(i64::MIN, |lent| lent.min(ceiling)))
    }

    /// Puts other settings of a class in force, but for its place. What it owes stays the same time.
    pub fn set_class(&mut self, class: usize, config: ClassConfig, now: Instant) {
        self.classes[class].set_config(config, now);
    }

    /// A class and those above it.
    fn with_parents(&self, class: usize) -> impl Iterator<Item = usize> + use<P> {
        let mut chain = [None; LEVELS];
        let parents = core::iter::successors(Some(class), |&at| self.classes[at].config().parent);
        chain.iter_mut().zip(parents).for_each(|(slot, at)| *slot = Some(at));
        chain.into_iter().flatten()
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        let waits = |leaf: &Option<Leaf<P>>| leaf.as_ref().is_some_and(|leaf| !leaf.queue.is_empty());
        self.leaves.iter().enumerate().filter(move |(_, leaf)| waits(leaf)).map(|(at, _)| at)
    }

    /// Until a class can send.
    fn wait_ns(&self, class: usize, now: Instant) -> u64 {
        let (own, ceiling) = self.classes[class].tokens_at(now);
        let debt = |tokens: i64| (-tokens).max(0).unsigned_abs();
        let lent = self.classes[class].config().parent.map_or(u64::MAX, |parent| self.wait_ns(parent, now));
        debt(ceiling).max(debt(own).min(lent))
    }

    /// The class by whose tokens a leaf can send: the lowest that has some, if those below it may borrow.
    fn lender(&self, leaf: usize, now: Instant) -> Option<usize> {
        for at in self.with_parents(leaf) {
            let (own, ceiling) = self.classes[at].tokens_at(now);
            if ceiling < 0 {
                return None;
            }
            if own >= 0 {
                return Some(at);
            }
        }
        None
    }

    /// The leaves that are served before all others.
    fn first_row(&self, now: Instant) -> Option<Row> {
        let mut row: Option<Row> = None;
        for at in self.waiting() {
            let Some(lender) = self.lender(at, now) else { continue };
            let level = self.classes[lender].level();
            let config = self.leaves[at].as_ref().expect("it waits").config;
            let priority = usize::from(config.priority) % PRIORITIES;
            match &mut row {
                Some(first) if (first.level, first.priority) == (level, priority) => first.leaves.push(at),
                Some(first) if (first.level, first.priority) < (level, priority) => {}
                _ => row = Some(Row { level, priority, leaves: vec![at] }),
            }
        }
        row
    }

    /// Lenders of the row take turns, and so do the classes below each.
    fn leaf_in_turn(&mut self, row: &Row) -> usize {
        loop {
            let turn = self.turns[row.level][row.priority];
            let lenders = row.leaves.iter().map(|&leaf| self.above(leaf, row.level));
            let Some(lender) = lenders.filter(|&lender| lender >= turn).min() else {
                self.turns[row.level][row.priority] = 0;
                continue;
            };
            let leaf = self.leaf_below(lender, row);
            self.turns[row.level][row.priority] = if leaf.is_some() { lender } else { lender + 1 };
            if let Some(leaf) = leaf {
                return leaf;
            }
        }
    }

    /// The leaf in turn below a class; `None` if all had theirs, and then the first is next.
    fn leaf_below(&mut self, class: usize, row: &Row) -> Option<usize> {
        if self.leaves[class].is_some() {
            return Some(class);
        }
        loop {
            let turn = self.classes[class].turns[row.priority];
            let below =
                row.leaves.iter().filter_map(|&leaf| self.with_parents(leaf).find(|&at| self.is_child(at, class)));
            let Some(child) = below.filter(|&child| child >= turn).min() else {
                self.classes[class].turns[row.priority] = 0;
                return None;
            };
            let leaf = self.leaf_below(child, row);
            self.classes[class].turns[row.priority] = if leaf.is_some() { child } else { child + 1 };
            if leaf.is_some() {
                return leaf;
            }
        }
    }

    fn is_child(&self, class: usize, parent: usize) -> bool {
        self.classes[class].config().parent == Some(parent)
    }

    /// The class of `level` at or above a leaf.
    fn above(&self, leaf: usize, level: usize) -> usize {
        self.with_parents(leaf)
            .find(|&at| self.classes[at].level() == level)
            .expect("a leaf's lender is of the row's level")
    }
}

#[cfg(test)]
mod tests;

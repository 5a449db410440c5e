//! The changes that make the kernel's tree the wanted one.
//!
//! Only our own tree is touched. A class that stays is changed in place, which loses no packet. Deletions come first, leaves
//! before their parents, then new classes, parents before their children: a tree that is as wanted gives no operation, and
//! operations that were cut short are finished by the next plan.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use super::class_id::ClassId;
use super::tree::{HANDLE, Htb, QDISC, Tree};

/// What the kernel has on a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// At most one of them is the root.
    pub qdiscs: Vec<SeenQdisc>,
    /// Classes of all qdiscs.
    pub classes: Vec<SeenClass>,
}

/// A qdisc of the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenQdisc {
    /// With the minor number 0; 0 for those that the kernel made itself.
    pub handle: ClassId,
    /// [`ClassId::ROOT`] for the device's own.
    pub parent: ClassId,
    /// As in `tc qdisc`.
    pub kind: String,
    /// Minor number of the class of packets that name no leaf; HTB only.
    pub default: Option<u16>,
}

/// A class of the kernel's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenClass {
    /// Its name.
    pub id: ClassId,
    /// [`ClassId::ROOT`] below the qdisc.
    pub parent: ClassId,
    /// Rates and bursts; HTB only.
    pub htb: Option<Htb>,
}

/// A change of the kernel's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Our qdisc becomes the root, in the place of the kernel's default.
    AddQdisc {
        /// Where packets go that name no leaf: a minor number.
        default: u16,
    },
    /// Our qdisc goes with all its classes and what waits in them; the kernel puts its default in the place.
    DeleteQdisc,
    /// A new class.
    AddClass {
        /// Its name.
        id: ClassId,
        /// [`ClassId::ROOT`] below the qdisc.
        parent: ClassId,
        /// What it may send.
        htb: Htb,
    },
    /// A class changes in place.
    ChangeClass {
        /// Its name.
        id: ClassId,
        /// As it is.
        parent: ClassId,
        /// What it may send from now on.
        htb: Htb,
    },
    /// A class goes, with what waits in it.
    DeleteClass {
        /// Its name.
        id: ClassId,
    },
    /// A leaf gets a queue of its own.
    AddQueue {
        /// The leaf.
        leaf: ClassId,
        /// Room of the queue.
        packets: u32,
    },
}

impl fmt::Display for Operation {
    /// As what is being done.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddQdisc { .. } => f.write_str("making its tree"),
            Self::DeleteQdisc => f.write_str("removing its tree"),
            Self::AddClass { id, .. } => write!(f, "adding class {id}"),
            Self::ChangeClass { id, .. } => write!(f, "changing class {id}"),
            Self::DeleteClass { id } => write!(f, "removing class {id}"),
            Self::AddQueue { leaf, .. } => write!(f, "adding a queue to class {leaf}"),
        }
    }
}

/// Somebody else's qdisc stands where ours would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the device has a {kind} qdisc {handle} that is not ours")]
pub struct Foreign {
    /// As in `tc qdisc`.
    pub kind: String,
    /// Its handle.
    pub handle: ClassId,
}

/// Owner of the root qdisc of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Root {
    /// The kernel's default.
    Default,
    Ours,
}

/// The operations, in their order, that make of `seen` the tree `wanted`.
///
/// # Errors
/// If the device's qdisc is somebody else's: then nothing is to be done.
pub fn plan(wanted: &Tree, seen: &Seen) -> Result<Vec<Operation>, Foreign> {
    let mut operations = Vec::new();
    let mut now = Now::default();
    if root_of(seen)? == Root::Ours {
        let root = seen.qdiscs.iter().find(|qdisc| qdisc.parent == ClassId::ROOT);
        if root.and_then(|root| root.default) == Some(wanted.default) {
            now = Now::of(seen);
        } else {
            // HTB cannot change it.
            operations.push(Operation::DeleteQdisc);
            operations.push(Operation::AddQdisc { default: wanted.default });
        }
    } else {
        operations.push(Operation::AddQdisc { default: wanted.default });
    }
    operations.extend(now.deletions(wanted));
    operations.extend(additions(wanted, &now));
    Ok(operations)
}

/// The operations that take our tree away; none if there is none.
///
/// # Errors
/// If the device's qdisc is somebody else's.
pub fn clear(seen: &Seen) -> Result<Vec<Operation>, Foreign> {
    Ok(match root_of(seen)? {
        Root::Ours => vec![Operation::DeleteQdisc],
        Root::Default => Vec::new(),
    })
}

fn root_of(seen: &Seen) -> Result<Root, Foreign> {
    match seen.qdiscs.iter().find(|qdisc| qdisc.parent == ClassId::ROOT) {
        None => Ok(Root::Default),
        // One that somebody made has a handle.
        Some(root) if root.handle.major() == 0 => Ok(Root::Default),
        Some(root) if root.handle == QDISC && root.kind == "htb" => Ok(Root::Ours),
        Some(root) => Err(Foreign { kind: root.kind.clone(), handle: root.handle }),
    }
}

/// Parts of our own tree that the kernel has.
#[derive(Default)]
struct Now {
    classes: BTreeMap<ClassId, (ClassId, Option<Htb>)>,
    /// Leaves with a queue of their own.
    queues: BTreeSet<ClassId>,
}

impl Now {
    fn of(seen: &Seen) -> Self {
        let ours = seen.classes.iter().filter(|class| class.id.major() == HANDLE);
        let queues = seen.qdiscs.iter().map(|qdisc| qdisc.parent).filter(|parent| parent.major() == HANDLE);
        Self { classes: ours.map(|class| (class.id, (class.parent, class.htb))).collect(), queues: queues.collect() }
    }

    /// Takes from the tree what is not wanted, children first.
    fn deletions(&mut self, wanted: &Tree) -> Vec<Operation> {
        let stays = |id: &ClassId, parent: ClassId| wanted.nodes.get(id).is_some_and(|node| node.parent == parent);
        // A class goes with its parent.
        let mut going: BTreeSet<ClassId> =
            self.classes.iter().filter(|(id, (parent, _))| !stays(id, *parent)).map(|(id, _)| *id).collect();
        loop {
            let before = going.len();
            let with_parent = self.classes.iter().filter(|(_, (parent, _))| going.contains(parent)).map(|(id, _)| *id);
            going.extend(with_parent.collect::<Vec<_>>());
            if going.len() == before {
                break;
            }
        }
        let mut order: Vec<_> = going.iter().map(|id| (self.depth(*id), *id)).collect();
        order.sort_unstable_by_key(|(depth, id)| (core::cmp::Reverse(*depth), *id));
        self.classes.retain(|id, _| !going.contains(id));
        self.queues.retain(|leaf| !going.contains(leaf));
        order.into_iter().map(|(_, id)| Operation::DeleteClass { id }).collect()
    }

    fn depth(&self, id: ClassId) -> usize {
        let up = |id: &ClassId| self.classes.get(id).map(|(parent, _)| *parent);
        core::iter::successors(Some(id), up).take(self.classes.len() + 1).count()
    }
}

/// New classes, parents first, and those that change.
fn additions(wanted: &Tree, now: &Now) -> Vec<Operation> {
    let depth = |id: ClassId| {
        let up = |id: &ClassId| wanted.nodes.get(id).map(|node| node.parent);
        core::iter::successors(Some(id), up).take(wanted.nodes.len() + 1).count()
    };
    let mut order: Vec<_> = wanted.nodes.iter().map(|(id, node)| (depth(*id), *id, node)).collect();
    order.sort_unstable_by_key(|(depth, id, _)| (*depth, *id));
    let mut operations = Vec::new();
    for (_, id, node) in order {
        let (parent, htb) = (node.parent, node.htb);
        match now.classes.get(&id) {
            None => operations.push(Operation::AddClass { id, parent, htb }),
            Some((_, Some(now))) if now.is_as(node) => {}
            Some(_) => operations.push(Operation::ChangeClass { id, parent, htb }),
        }
        if let Some(packets) = node.queue_packets.filter(|_| node.is_leaf && !now.queues.contains(&id)) {
            operations.push(Operation::AddQueue { leaf: id, packets });
        }
    }
    operations
}

#[cfg(test)]
mod tests;

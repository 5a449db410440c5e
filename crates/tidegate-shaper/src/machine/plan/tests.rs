use proptest::prelude::*;

use super::*;
use crate::machine::device::{Class, Device};
use crate::machine::tree::tests::{LINK, class, device};
use crate::machine::tree::{Link, assign_slots, class_of_slot};

/// A kernel that refuses what the real one refuses.
#[derive(Clone, Default)]
struct Kernel(Seen);

impl Kernel {
    fn class(&mut self, id: ClassId) -> Option<&mut SeenClass> {
        self.0.classes.iter_mut().find(|class| class.id == id)
    }

    fn has_children(&self, id: ClassId) -> bool {
        self.0.classes.iter().any(|class| class.parent == id)
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::AddQdisc { default } => {
                assert!(self.0.qdiscs.iter().all(|qdisc| qdisc.handle.major() == 0), "there is one already");
                let kind = "htb".to_owned();
                self.0.qdiscs = vec![SeenQdisc { handle: QDISC, parent: ClassId::ROOT, kind, default: Some(default) }];
            }
            Operation::DeleteQdisc => self.0 = Seen::default(),
            Operation::AddClass { id, parent, htb } => {
                assert!(self.class(id).is_none(), "{id} is there already");
                assert!(parent == ClassId::ROOT || self.class(parent).is_some(), "{id} has no parent {parent}");
                // What becomes an inner class loses its queue.
                self.0.qdiscs.retain(|qdisc| qdisc.parent != parent || parent == ClassId::ROOT);
                self.0.classes.push(SeenClass { id, parent, htb: Some(htb) });
            }
            Operation::ChangeClass { id, parent, htb } => {
                let is_leaf = !self.has_children(id);
                let class = self.class(id).expect("only what is there changes");
                assert_eq!(class.parent, parent, "{id} cannot move");
                let before = class.htb.unwrap();
                let (quantum, priority) =
                    if is_leaf { (htb.quantum, htb.priority) } else { (before.quantum, before.priority) };
                class.htb = Some(Htb { quantum, priority, ..htb });
            }
            Operation::DeleteClass { id } => {
                assert!(!self.has_children(id), "{id} is in use");
                assert!(self.class(id).is_some(), "{id} is not there");
                self.0.classes.retain(|class| class.id != id);
                self.0.qdiscs.retain(|qdisc| qdisc.parent != id);
            }
            Operation::AddQueue { leaf, .. } => {
                assert!(!self.has_children(leaf) && self.class(leaf).is_some(), "{leaf} is no leaf");
                let kind = "pfifo".to_owned();
                self.0.qdiscs.push(SeenQdisc { handle: ClassId::new(0x8001, 0), parent: leaf, kind, default: None });
            }
        }
    }

    /// Applies the plan, which makes the next plan empty.
    fn become_as(&mut self, wanted: &Tree) -> Vec<Operation> {
        let operations = plan(wanted, &self.0).expect("nobody else is here");
        for operation in &operations {
            self.apply(*operation);
        }
        assert_eq!(plan(wanted, &self.0), Ok(Vec::new()), "after {operations:?}");
        operations
    }
}

fn tree(device: &Device) -> Tree {
    Tree::new(device, &assign_slots(&[], &device.classes), LINK)
}

#[test]
fn a_new_tree_is_built_top_down_and_only_once() {
    let mut wanted = device(vec![class("a", "1 Gbit/s")]);
    wanted.rate = Some("10 Gbit/s".parse().unwrap());
    let mut kernel = Kernel::default();
    let built = kernel.become_as(&tree(&wanted));
    assert!(matches!(
        built[..],
        [Operation::AddQdisc { default: 0 }, Operation::AddClass { .. }, Operation::AddClass { .. }]
    ));
    assert_eq!(kernel.become_as(&tree(&wanted)), []);
}

#[test]
fn the_kernels_default_is_replaced_and_anything_else_is_left_alone() {
    let wanted = tree(&device(vec![class("a", "1 Gbit/s")]));
    let root = |major: u16, kind: &str| Seen {
        qdiscs: vec![SeenQdisc {
            handle: ClassId::new(major, 0),
            parent: ClassId::ROOT,
            kind: kind.to_owned(),
            default: None,
        }],
        classes: Vec::new(),
    };
    for kind in ["noqueue", "pfifo_fast", "mq", "fq_codel"] {
        assert_eq!(plan(&wanted, &root(0, kind)).unwrap()[0], Operation::AddQdisc { default: 0 });
        assert_eq!(clear(&root(0, kind)), Ok(Vec::new()));
    }
    for (major, kind) in [(1, "htb"), (0x8001, "fq"), (HANDLE, "tbf")] {
        let foreign = Foreign { kind: kind.to_owned(), handle: ClassId::new(major, 0) };
        assert_eq!(plan(&wanted, &root(major, kind)), Err(foreign.clone()));
        assert_eq!(clear(&root(major, kind)), Err(foreign));
    }
    assert_eq!(clear(&root(HANDLE, "htb")), Ok(vec![Operation::DeleteQdisc]));
}

#[test]
fn a_rate_changes_in_place() {
    let mut kernel = Kernel::default();
    kernel.become_as(&tree(&device(vec![class("a", "1 Gbit/s"), class("b", "1 Gbit/s")])));
    let changed = kernel.become_as(&tree(&device(vec![class("a", "1 Gbit/s"), class("b", "40 Gbit/s")])));
    assert!(matches!(changed[..], [Operation::ChangeClass { id, .. }] if id == class_of_slot(1)), "{changed:?}");
}

#[test]
fn isolation_comes_and_goes_below_its_class() {
    let shared = device(vec![class("a", "1 Gbit/s")]);
    let isolated = Device { isolation: true, ..shared.clone() };
    let mut kernel = Kernel::default();
    kernel.become_as(&tree(&shared));
    let added = kernel.become_as(&tree(&isolated));
    assert!(added.iter().all(|operation| matches!(operation, Operation::AddClass { .. })), "{added:?}");
    assert_eq!(added.len(), 27);
    let removed = kernel.become_as(&tree(&shared));
    // The deepest first.
    let first = Operation::DeleteClass { id: ClassId(class_of_slot(0).0 + 3) };
    assert_eq!((removed.len(), removed[0]), (27, first));
}

#[test]
fn another_default_needs_another_qdisc() {
    let mut wanted = device(vec![class("a", "1 Gbit/s"), class("b", "1 Gbit/s")]);
    let mut kernel = Kernel::default();
    kernel.become_as(&tree(&wanted));
    wanted.default_class = Some(1);
    let rebuilt = kernel.become_as(&tree(&wanted));
    assert_eq!(rebuilt[..2], [Operation::DeleteQdisc, Operation::AddQdisc { default: 0x40 }]);
}

#[test]
fn queues_are_added_where_the_device_has_none() {
    let wanted = device(vec![class("a", "1 Gbit/s")]);
    let without = Link { mtu: 1_500, queue_packets: 0 };
    let mut kernel = Kernel::default();
    let built = kernel.become_as(&Tree::new(&wanted, &[0], without));
    assert_eq!(built.last(), Some(&Operation::AddQueue { leaf: class_of_slot(0), packets: 1_000 }));
}

/// Up to twelve classes with names of twenty, parents before them, any rates.
fn devices() -> impl Strategy<Value = Device> {
    let one = (0_u8..20, 1_000_u64..5_000_000_000, 1_u64..4, proptest::option::of(0_usize..12));
    let classes = proptest::collection::vec(one, 1..12);
    (classes, any::<bool>(), any::<bool>(), proptest::option::of(0_usize..12)).prop_map(
        |(drawn, isolation, total, default)| {
            let mut classes: Vec<Class> = Vec::new();
            for (name, rate, more, parent) in drawn {
                let name = format!("c{name}");
                if classes.iter().any(|class| class.name == name) {
                    continue;
                }
                let rate = crate::machine::line_rate::LineRate::of_bytes(rate);
                let ceil = crate::machine::line_rate::LineRate::of_bytes(rate.bytes_per_s() * more);
                let parent = parent.filter(|parent| *parent < classes.len() && classes[*parent].parent.is_none());
                let matches = Vec::new();
                classes.push(Class { name, rate: Some(rate), ceil: Some(ceil), parent, classid: None, matches });
            }
            let mut device = device(classes);
            device.isolation = isolation;
            device.rate = total.then(|| "100 Gbit/s".parse().expect("it is a rate"));
            device.default_class = default.filter(|at| *at < device.classes.len() && !device.has_children(*at));
            device
        },
    )
}

proptest! {
    #[test]
    fn plans_make_the_tree_and_never_delete_a_class_that_stays(before in devices(), after in devices()) {
        let mut kernel = Kernel::default();
        let first = assign_slots(&[], &before.classes);
        kernel.become_as(&Tree::new(&before, &first, LINK));
        let names: Vec<_> = before.classes.iter().map(|class| class.name.clone()).zip(first).collect();
        let (old, slots) = (kernel.clone(), assign_slots(&names, &after.classes));
        let wanted = Tree::new(&after, &slots, LINK);
        let operations = kernel.become_as(&wanted);
        let rebuilt = operations.contains(&Operation::DeleteQdisc);
        for operation in operations {
            let Operation::DeleteClass { id } = operation else { continue };
            let parent = |id: ClassId| old.0.classes.iter().find(|class| class.id == id).map(|class| class.parent);
            // Unless it, or what it hangs below, hangs below something else from now on.
            let stays = |id: ClassId| wanted.nodes.get(&id).is_some_and(|node| Some(node.parent) == parent(id));
            let line = core::iter::successors(Some(id), |id| parent(*id).filter(|id| *id != ClassId::ROOT));
            prop_assert!(!line.into_iter().all(stays), "{} stays", id);
        }
        prop_assert!(!rebuilt || old.0.qdiscs[0].default != Some(wanted.default));
    }

    #[test]
    fn a_plan_that_was_cut_short_is_finished_by_the_next(device in devices(), done in 0_usize..40) {
        let mut kernel = Kernel::default();
        let wanted = tree(&device);
        let operations = plan(&wanted, &kernel.0).unwrap();
        for operation in operations.iter().take(done) {
            kernel.apply(*operation);
        }
        let rest = kernel.become_as(&wanted);
        prop_assert!(!rest.contains(&Operation::DeleteQdisc));
    }
}

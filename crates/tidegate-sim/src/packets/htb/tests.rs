use super::*;

/// A byte takes a nanosecond.
const GIGABYTE: u64 = 1_000_000_000;
const PLAIN: LeafConfig = LeafConfig { priority: 0, quantum: 1_514, packets_max: 1_000, bytes_max: u64::MAX };
const LEAF: ClassConfig = ClassConfig {
    parent: None,
    rate: GIGABYTE,
    ceil: GIGABYTE,
    buffer_ns: 2_000,
    ceil_buffer_ns: 2_000,
    leaf: Some(PLAIN),
};
const INNER: ClassConfig = ClassConfig { leaf: None, ..LEAF };

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

/// When each packet leaves, and which it is, in microseconds.
fn departures(htb: &mut Htb<u32>, from: Instant) -> Vec<(u64, u32)> {
    let mut now = from;
    let mut left = Vec::new();
    while let Some(next) = htb.next_at(now) {
        now = next;
        left.push((now.as_nanos() / 1_000, htb.dequeue(now).expect("it said so").1));
    }
    left
}

/// Bytes that left each class until then, of classes that always have packets of 1000 bytes.
fn shares(htb: &mut Htb<usize>, leaves: &[usize], until: Instant) -> Vec<u64> {
    let before: Vec<u64> = leaves.iter().map(|&leaf| htb.sent(leaf)).collect();
    let mut now = at(0);
    loop {
        for &leaf in leaves {
            while htb.backlog(leaf) < 10_000 {
                htb.enqueue(leaf, 1_000, leaf).unwrap();
            }
        }
        now = htb.next_at(now).expect("packets wait");
        if now > until {
            return leaves.iter().zip(before).map(|(&leaf, before)| htb.sent(leaf) - before).collect();
        }
        htb.dequeue(now).expect("it said so");
    }
}

#[test]
fn a_large_packet_leaves_at_once_and_the_next_waits_for_its_debt() {
    let mut htb = Htb::new(&[LEAF], at(0));
    (0..3).for_each(|packet| htb.enqueue(0, 64_000, packet).unwrap());
    assert_eq!((htb.backlog(0), htb.credit_ns(0, at(0))), (192_000, 2_000));
    assert_eq!(departures(&mut htb, at(0)), [(0, 0), (62, 1), (126, 2)]);
    assert_eq!((htb.backlog(0), htb.credit_ns(0, at(126))), (0, -64_000), "nothing waits, but the debt");
    assert_eq!((htb.credit_ns(0, at(1_000)), htb.sent(0)), (2_000, 192_000));
}

#[test]
fn a_full_leaf_gives_the_packet_back() {
    let leaf = Some(LeafConfig { packets_max: 2, bytes_max: 3_000, ..PLAIN });
    let mut htb = Htb::new(&[ClassConfig { leaf, ..LEAF }], at(0));
    htb.enqueue(0, 1_500, 1).unwrap();
    assert_eq!(htb.enqueue(0, 1_501, 2), Err(Dropped(2)));
    htb.enqueue(0, 1_500, 3).unwrap();
    assert_eq!(htb.enqueue(0, 0, 4), Err(Dropped(4)));
}

#[test]
fn leaves_that_borrow_take_turns_by_bytes_and_a_lower_priority_waits() {
    let leaf = |priority| {
        let leaf = Some(LeafConfig { priority, ..PLAIN });
        ClassConfig { parent: Some(0), rate: 1, buffer_ns: 0, leaf, ..LEAF }
    };
    let mut htb = Htb::new(&[INNER, leaf(0), leaf(1), leaf(1)], at(0));
    // Each leaf's own tokens last for one packet.
    (1..4).for_each(|class| htb.enqueue(class, 1, 0).unwrap());
    assert_eq!(departures(&mut htb, at(0)).len(), 3);
    (0..4).for_each(|packet| htb.enqueue(2, 1_514, 10 + packet).unwrap());
    (0..2).for_each(|packet| htb.enqueue(3, 3_028, 20 + packet).unwrap());
    htb.enqueue(1, 100, 1).unwrap();
    let order: Vec<u32> = departures(&mut htb, at(10)).into_iter().map(|(_, packet)| packet).collect();
    assert_eq!(order, [1, 10, 20, 11, 21, 12, 13]);
}

#[test]
fn a_leaf_with_tokens_of_its_own_waits_for_nobodys_debt() {
    let child = ClassConfig { parent: Some(0), rate: GIGABYTE / 2, ..LEAF };
    let poor = ClassConfig { rate: 1, buffer_ns: 0, ..child };
    let mut htb = Htb::new(&[INNER, child, poor], at(0));
    (0..2).for_each(|packet| htb.enqueue(2, 64_000, packet).unwrap());
    assert_eq!((htb.dequeue(at(0)).unwrap().1, htb.next_at(at(0))), (0, Some(at(62))));
    htb.enqueue(1, 130, 7).unwrap();
    assert_eq!(htb.dequeue(at(0)).map(|(_, packet)| packet), Some(7));
    assert!(htb.credit_ns(0, at(0)) < -60_000, "though their parent owes");
}

#[test]
fn classes_get_their_rates_and_share_the_rest_by_their_quanta() {
    let child = |rate, quantum| {
        let leaf = Some(LeafConfig { quantum, ..PLAIN });
        ClassConfig { parent: Some(0), rate, leaf, ..LEAF }
    };
    // 100, 300 and 600 MB/s of their own out of 2 GB/s: 1 GB/s is left, of which each may borrow up to 1 GB/s in all.
    let total = ClassConfig { rate: 2 * GIGABYTE, ceil: 2 * GIGABYTE, ..INNER };
    let classes =
        [total, child(GIGABYTE / 10, 2_000), child(GIGABYTE * 3 / 10, 2_000), child(GIGABYTE * 6 / 10, 2_000)];
    let mut htb = Htb::new(&classes, at(0));
    let mega = |shares: Vec<u64>| shares.iter().map(|bytes| bytes / 1_000_000).collect::<Vec<_>>();
    assert_eq!(mega(shares(&mut htb, &[1, 2, 3], at(100_000))), [43, 63, 93]);
    let mut htb = Htb::new(&classes, at(0));
    assert_eq!(mega(shares(&mut htb, &[1], at(100_000))), [100], "alone it has its ceiling");
}

#[test]
fn a_class_borrows_through_its_parent() {
    let parent = ClassConfig { parent: Some(0), rate: GIGABYTE / 2, ..INNER };
    let child = |parent| ClassConfig { parent: Some(parent), rate: GIGABYTE / 4, ..LEAF };
    let mut htb = Htb::new(&[INNER, parent, parent, child(1), child(1), child(2)], at(0));
    let mega = |shares: Vec<u64>| shares.iter().map(|bytes| (bytes + 500_000) / 1_000_000).collect::<Vec<_>>();
    assert_eq!(mega(shares(&mut htb, &[3, 4, 5], at(100_000))), [25, 25, 50], "each parent has its half");
}

#[test]
fn what_is_owed_stays_the_same_time_at_a_new_rate() {
    let mut htb = Htb::new(&[ClassConfig { buffer_ns: 0, ceil_buffer_ns: 0, ..LEAF }], at(0));
    htb.enqueue(0, 10_000, 1).unwrap();
    htb.enqueue(0, 10_000, 2).unwrap();
    htb.dequeue(at(0)).unwrap();
    htb.set_class(0, ClassConfig { rate: GIGABYTE / 2, ..LEAF }, at(0));
    assert_eq!(departures(&mut htb, at(0)), [(10, 2)]);
}

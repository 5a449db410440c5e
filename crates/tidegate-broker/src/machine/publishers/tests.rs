use proptest::prelude::*;

use super::*;
use crate::machine::who::Introduction;

fn at(s: u64) -> Instant {
    Instant::from_nanos(s * 1_000_000_000)
}

fn link(serial: u64) -> Link {
    Link { shard: 0, serial }
}

/// A publisher that calls itself so.
fn chosen(name: &str) -> Arc<Who> {
    who(Some(&Label::new(name).unwrap()), "c", "h")
}

/// A publisher without a name of its own.
fn derived() -> Arc<Who> {
    who(None, "c", "h")
}

fn who(name: Option<&Label>, client_id: &str, hostname: &str) -> Arc<Who> {
    let (correlation, remote, connected) = (None, "10.0.0.1:7", at(100));
    Arc::new(Introduction { name, correlation, remote, client_id, hostname, connected }.into())
}

fn list(publishers: &Publishers, now: Instant) -> Vec<PublisherReport> {
    let mut list = Vec::new();
    let window = Window::before(now, 10, 0);
    publishers.report(0..publishers.places(), window, now, &mut list);
    list.sort_by(|a, b| a.identity.cmp(&b.identity));
    list
}

fn identities(publishers: &Publishers, now: Instant) -> Vec<String> {
    list(publishers, now).into_iter().map(|publisher| publisher.identity).collect()
}

#[test]
fn connections_of_one_name_get_the_lowest_free_number() {
    let mut publishers = Publishers::new(1);
    for serial in 0..4 {
        publishers.join(link(serial), &derived(), at(100));
    }
    assert_eq!(identities(&publishers, at(100)), ["c@h", "c@h#2", "c@h#3", "c@h#4"]);
    publishers.leave(link(2));
    publishers.leave(link(0));
    assert_eq!(identities(&publishers, at(100)), ["c@h#2", "c@h#4"]);
    publishers.join(link(4), &derived(), at(101));
    assert_eq!(identities(&publishers, at(101)), ["c@h", "c@h#2", "c@h#4"]);
    // One that chose its name has it whatever is free, and shares it with whoever has it.
    publishers.join(link(5), &chosen("c@h#6"), at(101));
    publishers.join(link(6), &chosen("c@h#2"), at(101));
    publishers.leave(link(1));
    assert_eq!(identities(&publishers, at(101)), ["c@h", "c@h#2", "c@h#4", "c@h#6"]);
    for serial in 7..10 {
        publishers.join(link(serial), &derived(), at(101));
    }
    assert_eq!(
        identities(&publishers, at(101)),
        ["c@h", "c@h#2", "c@h#3", "c@h#4", "c@h#5", "c@h#6", "c@h#7"],
        "the sixth is taken"
    );
}

#[test]
fn who_chooses_the_same_name_is_the_same_publisher() {
    let mut publishers = Publishers::new(1);
    let name = chosen("hop:7");
    let [first, second] = [1, 2].map(|serial| publishers.join(link(serial), &name, at(100)));
    assert_eq!(first, second);
    publishers.count(publishers.reference(first), 3, at(100));
    publishers.leave(link(1));
    publishers.count(publishers.reference(second), 2, at(100));
    let told = list(&publishers, at(101));
    assert_eq!((told.len(), told[0].messages, told[0].batches, told[0].connected_s), (1, 5, 2, 1));
    assert!((told[0].rate_per_s - 0.5).abs() < 1e-9, "{told:?}");
}

#[test]
fn a_publisher_that_returns_has_its_counts_and_its_number_again() {
    let mut publishers = Publishers::new(1);
    let no = publishers.join(link(1), &derived(), at(100));
    publishers.count(publishers.reference(no), 7, at(100));
    publishers.leave(link(1));
    let gone = list(&publishers, at(105));
    assert_eq!((gone[0].messages, gone[0].connected_s), (7, 0));
    assert_eq!(list(&publishers, at(111)), [], "it sent nothing in the last ten seconds");
    publishers.sweep(100, at(160));
    assert_eq!(publishers.join(link(2), &derived(), at(160)), no, "it was kept for a minute");
    publishers.leave(link(2));
    publishers.sweep(100, at(160));
    assert_eq!(publishers.entries.len(), 1, "its last message is sixty seconds old and no more");
    publishers.sweep(100, at(161));
    assert_eq!((publishers.entries.len(), publishers.names.len()), (0, 0));
    let next = publishers.join(link(3), &derived(), at(161));
    assert!(next != no && !publishers.knows(publishers.reference(no)), "a number is not used again");
}

#[test]
fn a_loop_of_reconnects_leaves_one_trace() {
    let mut publishers = Publishers::new(1);
    for serial in 0..10_000 {
        let no = publishers.join(link(serial), &derived(), at(100));
        publishers.count(publishers.reference(no), 1, at(100));
        publishers.leave(link(serial));
    }
    assert_eq!((publishers.entries.len(), publishers.idle.len(), publishers.links.len()), (1, 1, 0));
    assert_eq!(list(&publishers, at(101))[0].messages, 10_000);
}

#[test]
fn ten_thousand_of_one_name_are_told_apart() {
    let mut publishers = Publishers::new(1);
    for serial in 0..10_000 {
        publishers.join(link(serial), &derived(), at(100));
    }
    let all = identities(&publishers, at(100));
    assert_eq!((all.len(), all.iter().any(|identity| identity == "c@h#10000")), (10_000, true));
}

#[test]
fn those_that_find_no_place_are_counted_together() {
    let mut publishers = Publishers::new(1);
    let places = PUBLISHERS_MAX as u64;
    for serial in 0..places + 2 {
        publishers.join(link(serial), &derived(), at(100));
    }
    let [inside, outside] = [0, places].map(|serial| publishers.of(link(serial)).unwrap());
    assert_eq!(outside, PublisherNo::UNKNOWN);
    let outside = publishers.reference(outside);
    assert!(publishers.knows(outside), "there is no place for it");
    publishers.count(publishers.reference(inside), 1, at(100));
    publishers.count(outside, 5, at(100));
    let window = Window::before(at(101), 10, 0);
    assert_eq!(publishers.others(window), OthersReport { publishers: 2, messages: 5 });
    // A place that is free again goes to the next that asks.
    publishers.leave(link(3));
    assert_eq!(publishers.of(link(places)), Some(PublisherNo::UNKNOWN), "it is kept for who had it");
    publishers.sweep(1, at(161));
    assert!(!publishers.knows(outside));
    assert_eq!(publishers.of(link(places)), None);
    assert_ne!(publishers.join(link(places), &derived(), at(161)), PublisherNo::UNKNOWN);
    assert_eq!(publishers.others(window).publishers, 1);
    publishers.leave(link(places + 1));
    assert_eq!(publishers.others(window).publishers, 0);
}

#[test]
fn an_address_keeps_its_name_while_it_is_remembered() {
    let mut publishers = Publishers::new(1);
    let by = HttpPublisher { address: Some("10.0.0.9".parse().unwrap()), correlation: Label::new("k").ok() };
    let no = publishers.visit(Who::over_http(&by, at(100)), at(100));
    publishers.count(publishers.reference(no), 2, at(100));
    assert_eq!(publishers.visit(Who::over_http(&by, at(103)), at(103)), no);
    publishers.join(link(1), &who(None, "http", "10.0.0.9"), at(103));
    let told = list(&publishers, at(104));
    let shown = |at: usize| (told[at].identity.as_str(), told[at].correlation.as_deref(), told[at].connected_s);
    assert_eq!((shown(0), shown(1)), (("http@10.0.0.9", Some("k"), 4), ("http@10.0.0.9#2", None, 4)));
    publishers.sweep(100, at(161));
    assert_eq!(identities(&publishers, at(161)), ["http@10.0.0.9#2"]);
    publishers.leave(link(1));
    publishers.join(link(2), &who(None, "http", "10.0.0.9"), at(161));
    assert_eq!(identities(&publishers, at(161)), ["http@10.0.0.9"]);
}

#[test]
fn numbers_of_another_table_name_nobody() {
    let [mut first, mut second] = [1, 2].map(Publishers::new);
    let stale = first.join(link(1), &derived(), at(100));
    second.join(link(1), &derived(), at(100));
    assert!(!second.knows(first.reference(stale)));
    second.count(first.reference(stale), 3, at(100));
    assert_eq!(list(&second, at(101))[0].messages, 0);
    assert_eq!(second.others(Window::before(at(101), 10, 0)).messages, 3);
    let mut recording = Recording::new(1);
    assert_eq!(second.trace_number(stale, &mut recording), 0);
}

#[test]
fn a_recording_gets_each_identity_once() {
    let mut publishers = Publishers::new(1);
    let [a, b] = [("a", 1), ("b", 2)].map(|(name, serial)| publishers.join(link(serial), &chosen(name), at(100)));
    let mut recording = Recording::new(1);
    assert_eq!([b, a, b].map(|no| publishers.trace_number(no, &mut recording)), [1, 2, 1]);
    let told: Vec<_> = recording.finish().publishers.into_iter().map(|told| (told.number, told.identity)).collect();
    assert_eq!(told, [(1, "b".to_owned()), (2, "a".to_owned())]);
    assert_eq!(publishers.trace_number(a, &mut Recording::new(2)), 1, "the next one begins anew");
}

proptest! {
    #[test]
    fn identities_are_unique_and_short(
        names in proptest::collection::vec(("(c|é{60,90}|)(#[0-9]{1,3}){0,2}", any::<bool>()), 1..40),
        left in proptest::collection::vec(0u64..40, 0..20),
    ) {
        let mut publishers = Publishers::new(1);
        for (serial, (name, chosen)) in (0..).zip(&names) {
            let label = Label::new(&format!("c@{name}")).ok().filter(|_| *chosen);
            publishers.join(link(serial), &who(label.as_ref(), "c", name), at(100));
            if left.contains(&serial) {
                publishers.leave(link(serial / 2));
            }
        }
        let all = identities(&publishers, at(100));
        prop_assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        prop_assert!(all.iter().all(|identity| identity.len() <= LABEL_BYTES_MAX), "{all:?}");
        for serial in 0..40 {
            publishers.leave(link(serial));
        }
        publishers.sweep(100, at(161));
        prop_assert_eq!((publishers.entries.len(), publishers.names.len(), publishers.links.len()), (0, 0, 0));
    }
}

//! Two members that lend, frame by frame.

use std::time::Duration;

use tidegate_core::lend::{
    CIRCLES_MAX, Circle, Frame, Leave, LendConfig, Lending, Member, Memory, OpenError, PEERS_MAX, Position, Purse,
    Purses,
};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

const CIRCLE: Circle = Circle(7);
const MEMBERS: [Member; 2] = [Member(0), Member(1)];

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

struct One(TokenBucket);

impl Purses for One {
    fn purse(&mut self, circle: Circle) -> Option<&mut dyn Purse> {
        let bucket = &mut self.0;
        (circle == CIRCLE).then_some(bucket)
    }
}

/// A member with a share of ten tokens that mints none.
struct Node {
    lending: Lending,
    purse: One,
}

impl Node {
    fn new(own: usize, memory: Memory, now: Instant) -> Self {
        let config = LendConfig { lease: Duration::from_millis(100), ..LendConfig::new(MEMBERS[own]) };
        let limit = Limit::new(Rate::per_s(1), 10);
        let bucket = match memory {
            Memory::Fresh => TokenBucket::new(limit, now),
            Memory::Unknown => TokenBucket::empty(limit, now),
        };
        let boot = u32::try_from(now.as_nanos() / 1_000_000).expect("a few milliseconds");
        let mut node = Self { lending: Lending::new(config, boot, now), purse: One(bucket) };
        node.lending.open(CIRCLE, &MEMBERS, (10, 1), memory, &mut node.purse.0, now).expect("within the bounds");
        node
    }

    fn tokens(&self, now: Instant) -> u64 {
        Purse::tokens(&self.purse.0, now)
    }

    fn depth(&self) -> u64 {
        let depth = self.purse.0.limit().burst;
        assert_eq!(self.lending.account(CIRCLE).map(|position| position.depth()), Some(depth));
        depth
    }

    fn leave(&mut self, now: Instant) -> Leave {
        self.lending.close(CIRCLE, &mut self.purse, now)
    }

    fn hear(&mut self, frame: &Frame, now: Instant) {
        self.lending.on_frame(frame, &mut self.purse, now);
    }

    fn due(&mut self, now: Instant) {
        self.lending.on_timeout(&mut self.purse, now);
    }
}

/// Hands all frames over at once, until nothing is said any more.
fn talk(nodes: &mut [Node; 2], now: Instant) {
    for from in [0, 1, 0, 1, 0, 1] {
        while let Some(frame) = nodes[from].lending.poll_output() {
            nodes[1 - from].hear(&frame, now);
        }
    }
}

/// Two members that know each other, the first without tokens and with somebody in line.
fn pair() -> [Node; 2] {
    let mut nodes = [0, 1].map(|own| Node::new(own, Memory::Fresh, at(0)));
    for node in &mut nodes {
        node.due(at(0));
    }
    talk(&mut nodes, at(0));
    nodes[0].purse.0.try_take(10, at(0)).expect("it is full");
    let Node { lending, purse } = &mut nodes[0];
    lending.look(CIRCLE, 2, purse, at(0));
    nodes
}

/// The first has asked and has got.
fn lent() -> [Node; 2] {
    let mut nodes = pair();
    nodes[0].due(at(1));
    talk(&mut nodes, at(1));
    nodes
}

#[test]
fn members_whose_first_frames_are_lost_lend_long_before_a_lease_is_over() {
    let mut nodes = [0, 1].map(|own| Node::new(own, Memory::Fresh, at(0)));
    for node in &mut nodes {
        node.due(at(0));
        assert!(node.lending.poll_output().is_some(), "a hello, which is lost");
    }
    nodes[0].purse.0.try_take(10, at(0)).expect("it is full");
    for ms in 1..20 {
        let Node { lending, purse } = &mut nodes[0];
        lending.look(CIRCLE, 2, purse, at(ms));
        for node in &mut nodes {
            node.due(at(ms));
        }
        talk(&mut nodes, at(ms));
    }
    // A lease is 100 ms.
    assert!(nodes[0].tokens(at(20)) > 0);
}

#[test]
fn a_third_of_the_difference_is_lent_with_its_depth() {
    let nodes = lent();
    // Ten, and two in line at the other.
    assert_eq!([nodes[0].tokens(at(1)), nodes[1].tokens(at(1))], [4, 6]);
    assert_eq!(nodes[0].depth() + nodes[1].depth(), 20);
    assert!(nodes[0].depth() >= 4);
}

#[test]
fn a_loan_ends_at_the_borrower_first_and_comes_back_empty() {
    let mut nodes = lent();
    let depths = [nodes[0].depth(), nodes[1].depth()];
    for (ms, sum) in [(100, 20), (101, 20)] {
        for node in &mut nodes {
            node.lending.settle(&mut node.purse, at(ms));
        }
        assert!(nodes[0].depth() + nodes[1].depth() <= sum, "{ms}");
    }
    let tokens = nodes[1].tokens(at(102));
    for node in &mut nodes {
        node.lending.settle(&mut node.purse, at(103));
    }
    assert_eq!([nodes[0].depth(), nodes[1].depth()], [10, 10], "{depths:?} before");
    assert_eq!(nodes[1].tokens(at(103)), tokens, "no token comes with the depth");
}

#[test]
fn keep_alive_frames_keep_a_loan_in_force() {
    let mut nodes = lent();
    let depths = [nodes[0].depth(), nodes[1].depth()];
    for ms in (10..1_000).step_by(10) {
        for node in &mut nodes {
            node.due(at(ms));
        }
        // Nobody waits any more.
        let Node { lending, purse } = &mut nodes[0];
        lending.look(CIRCLE, 0, purse, at(ms));
        talk(&mut nodes, at(ms));
    }
    assert_eq!([nodes[0].depth(), nodes[1].depth()], depths);
}

#[test]
fn frames_that_are_lost_doubled_or_late_mint_nothing() {
    let mut nodes = pair();
    nodes[0].due(at(1));
    let request = nodes[0].lending.poll_output().unwrap();
    nodes[1].hear(&request, at(1));
    let first = nodes[1].lending.poll_output().unwrap();
    // The first answer is lost; the same request comes again, and what was given is said again.
    nodes[1].hear(&request, at(2));
    let second = nodes[1].lending.poll_output().unwrap();
    let given = |frame: &Frame| frame.entries[0].given;
    assert!(given(&second) >= given(&first) && given(&first) > 0);
    for frame in [&second, &second, &first] {
        nodes[0].hear(frame, at(3));
    }
    assert_eq!(nodes[0].tokens(at(3)), given(&second));
    assert_eq!(nodes[0].depth() + nodes[1].depth(), 20);
}

#[test]
fn one_that_forgot_what_it_lent_has_its_share_when_all_loans_are_over() {
    let mut node = Node::new(1, Memory::Unknown, at(5));
    assert_eq!((node.depth(), node.tokens(at(5))), (1, 0));
    assert_eq!(node.lending.account(CIRCLE), Some(Position { base: 10, withheld: 9, ..Position::default() }));
    node.lending.settle(&mut node.purse, at(106));
    assert_eq!(node.depth(), 1, "a lease is 100 ms, and 1.1 ms more at the lender");
    node.lending.settle(&mut node.purse, at(107));
    assert_eq!((node.depth(), node.tokens(at(107))), (10, 0));
}

#[test]
fn a_peer_that_restarts_ends_the_session() {
    let mut nodes = lent();
    nodes[1] = Node::new(1, Memory::Unknown, at(10));
    nodes[1].due(at(10));
    talk(&mut nodes, at(10));
    assert!(nodes[0].depth() <= 10, "what was borrowed is gone at once");
    // The new session begins when the old one is over at the lender's end.
    for ms in 10..300 {
        for node in &mut nodes {
            node.due(at(ms));
        }
        talk(&mut nodes, at(ms));
    }
    assert_eq!(nodes[0].depth() + nodes[1].depth(), 20);
}

#[test]
fn a_sleep_ends_what_is_borrowed() {
    let mut nodes = lent();
    let Node { lending, purse } = &mut nodes[0];
    lending.on_slept(purse, at(2));
    assert!(nodes[0].depth() <= 10);
}

#[test]
fn a_share_shrinks_by_what_is_not_lent_and_grows_without_tokens() {
    let mut nodes = lent();
    let Node { lending, purse } = &mut nodes[1];
    let lent = lending.account(CIRCLE).unwrap().lent;
    assert_eq!(lending.set_base(CIRCLE, 1, purse, at(2)), 1 + lent);
    let tokens = nodes[1].tokens(at(2));
    let Node { lending, purse } = &mut nodes[1];
    assert_eq!(lending.set_base(CIRCLE, 10, purse, at(2)), 10);
    assert_eq!(nodes[1].tokens(at(2)), tokens);
    assert_eq!(nodes[0].depth() + nodes[1].depth(), 20);
}

/// What the buckets say, whether their members lend or not.
fn depths(nodes: &[Node; 2]) -> [u64; 2] {
    [0, 1].map(|own: usize| nodes[own].purse.0.limit().burst)
}

#[test]
fn a_borrower_that_leaves_gives_back_at_once_and_is_over_when_that_is_known() {
    let mut nodes = lent();
    let tokens = nodes[0].tokens(at(2)) + nodes[1].tokens(at(2));
    assert!(matches!(nodes[0].leave(at(2)), Leave::Waits { until } if until > at(2)));
    assert_eq!((nodes[0].depth(), nodes[0].tokens(at(2))), (10, 0));
    assert_eq!(nodes[0].lending.next_timeout(), Some(at(2)));
    nodes[0].due(at(2));
    talk(&mut nodes, at(2));
    assert_eq!((nodes[0].leave(at(2)), nodes[0].lending.account(CIRCLE)), (Leave::Over, None));
    assert_eq!((depths(&nodes), nodes[1].tokens(at(2))), ([10, 10], tokens));
    assert_eq!(nodes[1].lending.account(CIRCLE).map(|position| position.lent), Some(0));
}

#[test]
fn a_lender_that_leaves_waits_for_what_it_lent() {
    let mut nodes = lent();
    assert!(matches!(nodes[1].leave(at(2)), Leave::Waits { .. }));
    let lent = nodes[1].lending.account(CIRCLE).map(|position| position.lent);
    assert_eq!((lent, depths(&nodes)), (Some(4), [14, 6]));
    nodes[1].due(at(2));
    talk(&mut nodes, at(2));
    assert_eq!((nodes[1].leave(at(2)), depths(&nodes)), (Leave::Over, [10, 10]));
    assert_eq!((nodes[0].tokens(at(2)), nodes[1].tokens(at(2))), (0, 10), "the tokens come back, too");
    // Whoever has left is neither asked nor given anything.
    let Node { lending, purse } = &mut nodes[0];
    lending.look(CIRCLE, 2, purse, at(3));
    lending.on_timeout(purse, at(3));
    assert_eq!(lending.poll_output(), None);
}

#[test]
fn a_farewell_that_is_lost_is_said_again() {
    let mut nodes = lent();
    nodes[0].leave(at(2));
    nodes[0].due(at(2));
    assert_eq!(nodes[0].lending.poll_output().map(|frame| frame.entries.iter().all(|entry| entry.over)), Some(true));
    let again = nodes[0].lending.next_timeout().expect("it waits for an answer");
    assert!(again > at(2) && again < at(30));
    nodes[0].due(again);
    // The answer is lost, and what was said comes again.
    let farewell = nodes[0].lending.poll_output().expect("it says so again");
    nodes[1].hear(&farewell, again);
    assert_eq!(depths(&nodes), [10, 10]);
    assert!(nodes[1].lending.poll_output().is_some());
    let last = nodes[0].lending.next_timeout().expect("it waits for an answer");
    nodes[0].due(last);
    talk(&mut nodes, last);
    assert_eq!((nodes[0].leave(last), depths(&nodes)), (Leave::Over, [10, 10]));
}

#[test]
fn one_that_leaves_a_dead_peer_is_over_when_its_loan_is() {
    let mut nodes = lent();
    let Leave::Waits { until } = nodes[1].leave(at(2)) else { panic!("something is lent") };
    nodes[1].due(until);
    assert_eq!((nodes[1].leave(until), depths(&nodes)[1]), (Leave::Over, 10));
}

#[test]
fn what_is_under_way_when_one_leaves_is_not_booked() {
    let mut nodes = lent();
    nodes[0].purse.0.try_take(4, at(2)).expect("it has borrowed four");
    let Node { lending, purse } = &mut nodes[0];
    lending.look(CIRCLE, 1, purse, at(2));
    nodes[0].due(at(4));
    let request = nodes[0].lending.poll_output().expect("somebody waits");
    nodes[1].hear(&request, at(4));
    let grant = nodes[1].lending.poll_output().expect("it has six");
    nodes[0].leave(at(4));
    nodes[0].hear(&grant, at(5));
    assert!(depths(&nodes)[0] <= 10);
    nodes[0].due(at(5));
    talk(&mut nodes, at(5));
    assert_eq!((nodes[0].leave(at(5)), depths(&nodes)), (Leave::Over, [10, 10]));
    nodes[0].hear(&grant, at(6));
    assert_eq!(depths(&nodes), [10, 10]);
}

#[test]
fn two_that_leave_at_once_part_even() {
    let mut nodes = lent();
    for node in &mut nodes {
        node.leave(at(2));
        node.due(at(2));
    }
    talk(&mut nodes, at(2));
    for node in &mut nodes {
        assert_eq!(node.leave(at(2)), Leave::Over);
    }
    assert_eq!(depths(&nodes), [10, 10]);
}

#[test]
fn one_that_forgot_what_it_lent_leaves_when_all_loans_are_over() {
    let mut node = Node::new(1, Memory::Unknown, at(5));
    let Leave::Waits { until } = node.leave(at(5)) else { panic!("something may be lent") };
    assert_eq!(node.leave(until), Leave::Over);
    assert_eq!(node.purse.0.limit().burst, 10);
}

#[test]
fn a_member_has_room_for_so_many_circles() {
    let mut node = Node::new(0, Memory::Fresh, at(0));
    let bucket = &mut node.purse.0;
    let mut open = |lending: &mut Lending, circle: u64| {
        lending.open(Circle(circle), &MEMBERS, (10, 1), Memory::Fresh, bucket, at(0))
    };
    for circle in 1..CIRCLES_MAX as u64 {
        assert_eq!(open(&mut node.lending, 100 + circle), Ok(()));
    }
    assert_eq!(open(&mut node.lending, 99), Err(OpenError::TooManyCircles));
    assert_eq!(node.leave(at(0)), Leave::Over);
    let bucket = &mut node.purse.0;
    assert_eq!(node.lending.open(Circle(99), &MEMBERS, (10, 1), Memory::Fresh, bucket, at(0)), Ok(()));
}

#[test]
fn what_does_not_fit_is_not_opened() {
    let mut node = Node::new(0, Memory::Fresh, at(0));
    let bucket = &mut node.purse.0;
    let many: Vec<Member> = (0..=u16::try_from(PEERS_MAX).unwrap() + 1).map(Member).collect();
    let open = node.lending.open(CIRCLE, &MEMBERS, (10, 1), Memory::Fresh, bucket, at(0));
    assert_eq!(open, Err(OpenError::Open));
    let open = node.lending.open(Circle(8), &many, (10, 1), Memory::Fresh, bucket, at(0));
    assert_eq!(open, Err(OpenError::TooManyPeers));
}

//! Parts of limits: exact, leased, fenced, and beside the contracts that people set.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{Broker, Client, Reply, SECOND, ms, numbered, put_many, refuse, topic_name, wait};
use proptest::prelude::*;
use tidegate_broker::machine::admin::{AdminReply, AdminRequest, Recording};
use tidegate_broker::machine::home_shard;
use tidegate_broker::machine::limiter::{Contract, Mode, Unit};
use tidegate_broker::machine::parts::{OnLapse, PartGrant, PartOrder, PartRefused, PartStatus, PartStep};
use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::{Instant, Rate};

fn grant(topic: &str, rate: u64, burst: u64) -> PartGrant {
    let limit = Limit::new(Rate::per_s(rate), burst);
    PartGrant { topic: topic_name(topic), limit, unit: Unit::Messages, split: None }
}

fn order(revision: u64, on_lapse: OnLapse, lease: Duration, parts: &[PartGrant]) -> PartOrder {
    PartOrder { revision, lease, until: Instant::MAX, on_lapse, parts: parts.into(), step: PartStep::Check }
}

/// Carries out one step on all shards.
fn step(broker: &mut Broker, order: &PartOrder, step: PartStep) -> Result<Vec<PartStatus>, PartRefused> {
    let mut parts = Vec::new();
    let until = order.until.min(broker.now + order.lease);
    for reply in broker.ask_all(&AdminRequest::PutParts(PartOrder { step, until, ..order.clone() })) {
        match reply {
            AdminReply::Parts(statuses) => parts.extend(statuses),
            AdminReply::PartsRefused(why) => return Err(why),
            other => panic!("{other:?}"),
        }
    }
    Ok(parts)
}

/// All steps, as the admin API takes them.
fn put(broker: &mut Broker, order: &PartOrder) -> Result<Vec<PartStatus>, PartRefused> {
    step(broker, order, PartStep::Check)?;
    step(broker, order, PartStep::Shrink)?;
    step(broker, order, PartStep::All)
}

/// A part of `t` alone, for a minute.
fn put_part(broker: &mut Broker, revision: u64, rate: u64, burst: u64) {
    put(broker, &order(revision, OnLapse::Local, SECOND * 60, &[grant("t", rate, burst)])).unwrap();
}

fn remove(broker: &mut Broker, revision: u64) -> AdminReply {
    broker.admin(AdminRequest::RemovePart { topic: topic_name("t"), revision })
}

/// A broker, a publisher, and a subscriber to everything in `t`.
fn ready() -> (Broker, Client, Client) {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2500);
    let publisher = broker.connect();
    (broker, publisher, consumer)
}

fn times(broker: &mut Broker, consumer: Client, from: Instant) -> Vec<Duration> {
    broker.messages(consumer).into_iter().map(|message| message.at - from).collect()
}

fn tokens(broker: &mut Broker) -> f64 {
    broker.topic("t").limit.unwrap().tokens
}

fn in_force(status: &PartStatus) -> (u64, u64) {
    let limit = status.in_force.unwrap();
    (limit.rate.tokens() * (1_000_000_000 / limit.rate.period_ns()), limit.burst)
}

#[test]
fn a_part_rules_the_bucket_and_the_contract_stays_as_it_is() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 10));
    put_part(&mut broker, 7, 100, 2);
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(5)));
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 10, 20, 30].map(ms));
    let limit = broker.topic("t").limit.unwrap();
    assert!((limit.rate_per_s - 1_000.0).abs() < 1e-9, "the contract is shown");
    assert_eq!((limit.burst, limit.source, limit.mode), (10, "admin", "enforce"));
    let part = limit.part.unwrap();
    assert!((part.rate_per_s - 100.0).abs() < 1e-9);
    assert_eq!((part.burst, part.revision, part.on_lapse, part.lapses_in_ms), (2, 7, "local", Some(59_000)));
}

#[test]
fn a_part_that_grows_or_goes_gives_no_tokens() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 10));
    put_part(&mut broker, 1, 1_000, 3);
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(8)));
    put_part(&mut broker, 2, 1_000, 8);
    broker.advance(ms(2));
    assert!(matches!(remove(&mut broker, 3), AdminReply::Parts(removed) if removed[0].revision == 2));
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [0, 0, 0, 1, 2, 3, 4, 5].map(ms));
    assert!(broker.topic("t").limit.unwrap().part.is_none());
    let nothing = PartRefused::Nothing { topic: topic_name("t") };
    assert!(matches!(remove(&mut broker, 4), AdminReply::PartsRefused(why) if why == nothing));
}

#[test]
fn a_part_lapses_at_the_stated_instant_into_what_it_says() {
    let before = [0, 10, 20, 30, 40];
    for (on_lapse, after) in [
        (OnLapse::Local, vec![50, 60, 70, 80, 90]),
        // The token of the tenth millisecond is there when the lease ends.
        (OnLapse::Open, vec![50, 51, 52, 53, 54]),
        (OnLapse::Closed, vec![]),
    ] {
        let (mut broker, publisher, consumer) = ready();
        broker.limit("t", wait(1_000, 1));
        put(&mut broker, &order(1, on_lapse, ms(50), &[grant("t", 100, 1)])).unwrap();
        let start = broker.now;
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.advance(SECOND);
        let expected: Vec<_> = before.into_iter().chain(after).map(ms).collect();
        assert_eq!(times(&mut broker, consumer, start), expected, "{on_lapse:?}");
        let part = broker.topic("t").limit.unwrap().part.unwrap();
        assert_eq!((part.lapses_in_ms, part.on_lapse), (None, on_lapse.name()));
    }
}

#[test]
fn a_wall_clock_that_steps_by_an_hour_moves_no_lease_and_mints_nothing() {
    for hour in [-3_600, 3_600] {
        let (mut broker, publisher, consumer) = ready();
        broker.limit("t", wait(1_000, 1));
        put(&mut broker, &order(1, OnLapse::Closed, ms(50), &[grant("t", 100, 1)])).unwrap();
        let start = broker.now;
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.advance(ms(25));
        broker.step_wall_clock(hour);
        broker.advance(SECOND);
        assert_eq!(times(&mut broker, consumer, start), [0, 10, 20, 30, 40].map(ms), "{hour}");
    }
}

#[test]
fn a_thread_that_is_late_lets_nothing_go_that_was_due_after_the_lease() {
    for (on_lapse, released) in [(OnLapse::Closed, 5), (OnLapse::Open, 10)] {
        let (mut broker, publisher, consumer) = ready();
        broker.limit("t", wait(1_000, 1));
        put(&mut broker, &order(1, on_lapse, ms(50), &[grant("t", 100, 1)])).unwrap();
        broker.send(publisher, put_many("t", &numbered(10)));
        broker.pause(ms(145));
        // Whatever comes first: bytes, a request, a timer.
        broker.send(publisher, "NOP\n");
        assert_eq!(broker.messages(consumer).len(), released, "{on_lapse:?}");
    }
}

#[test]
fn a_renewed_lease_goes_on_and_what_was_held_comes_back_with_its_tokens() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", wait(1_000, 1));
    let order = order(1, OnLapse::Closed, ms(50), &[grant("t", 100, 1)]);
    put(&mut broker, &order).unwrap();
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(20)));
    broker.advance(ms(45));
    put(&mut broker, &order).unwrap();
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), (0..10).map(|n| ms(10 * n)).collect::<Vec<_>>(), "until 95 ms");
    let start = broker.now;
    put(&mut broker, &order).unwrap();
    broker.advance(ms(25));
    // Half a token was there when it lapsed, which a rate of zero does not count, and nothing was minted since.
    assert_eq!(times(&mut broker, consumer, start), [10, 20].map(ms));
}

#[test]
fn a_part_that_holds_everything_refuses_with_a_time_to_come_back() {
    let (mut broker, publisher, _) = ready();
    broker.limit("t", refuse(1_000, 5));
    put(&mut broker, &order(1, OnLapse::Closed, ms(50), &[grant("t", 100, 5)])).unwrap();
    broker.publish(publisher, "t", "x");
    broker.advance(ms(60));
    let refused = "E_PUB_FAILED PUB failed rate limit of topic exceeded, retry in 1000.000 ms";
    broker.send(publisher, harness::put("t", "y"));
    assert_eq!(broker.error(publisher), refused, "though there are tokens");
    put_part(&mut broker, 2, 0, 0);
    broker.send(publisher, harness::put("t", "y"));
    assert_eq!(broker.error(publisher), refused);
    put_part(&mut broker, 3, 100, 2);
    broker.advance(ms(20));
    broker.send(publisher, put_many("t", &numbered(3)));
    assert_eq!(broker.error(publisher), "E_MPUB_FAILED MPUB failed cost 3 exceeds the topic's burst of 2");
    broker.send(publisher, put_many("t", &numbered(2)));
    assert_eq!(broker.replies(publisher), [Reply::Response("OK".to_owned())]);
}

#[test]
fn an_edit_while_a_part_rules_cuts_it_and_an_undo_brings_it_back() {
    let (mut broker, ..) = ready();
    broker.limit("t", wait(1_000, 10));
    put_part(&mut broker, 1, 100, 5);
    assert!((tokens(&mut broker) - 5.0).abs() < 1e-9);
    let mut edit = |contract: Option<Contract>| {
        let contract = contract.map(|contract| (contract, tidegate_broker::machine::limiter::Source::Admin));
        let reply = broker.admin(AdminRequest::SetTopicLimit(topic_name("t"), contract));
        let AdminReply::Parts(parts) = reply else { panic!("it says that a part rules: {reply:?}") };
        (in_force(&parts[0]), tokens(&mut broker))
    };
    assert_eq!(edit(Some(wait(2_000, 20))).0, (100, 5), "a larger contract waits for control");
    let (cut, left) = edit(Some(wait(50, 2)));
    assert_eq!(cut, (50, 2));
    assert!((left - 2.0).abs() < 1e-9);
    let (back, left) = edit(Some(wait(1_000, 10)));
    assert_eq!(back, (100, 5));
    assert!((left - 2.0).abs() < 1e-9, "a deeper bucket does not fill by itself");
    assert_eq!(edit(None).0, (100, 5), "the part is the only limit now");
    assert_eq!(broker.topic("t").limit.unwrap().source, "part");
}

#[test]
fn mode_and_discipline_stay_the_contracts() {
    let (mut broker, publisher, consumer) = ready();
    broker.limit("t", Contract { mode: Mode::Shadow, ..wait(1_000, 10) });
    put(&mut broker, &order(1, OnLapse::Closed, ms(50), &[grant("t", 100, 1)])).unwrap();
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.advance(SECOND);
    broker.send(publisher, put_many("t", &numbered(1)));
    let mut expected = vec![Duration::ZERO; 4];
    expected.push(SECOND);
    assert_eq!(times(&mut broker, consumer, start), expected, "in shadow everything passes");
    assert_eq!(broker.topic("t").shadow_total, 4, "all but the first of four, and the one that came when all is held");
}

#[test]
fn a_part_counts_what_its_contract_counts() {
    let (mut broker, ..) = ready();
    broker.limit("t", Contract { unit: Unit::Bytes, ..wait(1_000, 10) });
    let refused = put(&mut broker, &order(1, OnLapse::Local, SECOND, &[grant("t", 100, 1)]));
    let other = PartRefused::OtherUnit { topic: topic_name("t"), unit: Unit::Messages };
    assert_eq!(refused, Err(other));
    let bytes = PartGrant { unit: Unit::Bytes, ..grant("t", 100, 1) };
    assert_eq!(put(&mut broker, &order(1, OnLapse::Local, SECOND, &[bytes])).unwrap().len(), 1);
}

#[test]
fn a_part_without_a_contract_makes_one_that_begins_empty() {
    let (mut broker, publisher, consumer) = ready();
    put_part(&mut broker, 1, 100, 3);
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(3)));
    broker.advance(SECOND);
    assert_eq!(times(&mut broker, consumer, start), [10, 20, 30].map(ms), "what there is is on other nodes");
    let limit = broker.topic("t").limit.unwrap();
    assert_eq!((limit.source, limit.mode, limit.discipline, limit.unit), ("part", "enforce", "wait", "messages"));
    // Without it nothing limits the topic.
    remove(&mut broker, 2);
    broker.send(publisher, put_many("t", &numbered(50)));
    assert_eq!(broker.messages(consumer).len(), 50);
    assert!(broker.topic("t").limit.is_none());
}

#[test]
fn what_waits_for_a_part_that_mints_nothing_goes_when_the_part_goes() {
    for lapse in [false, true] {
        let (mut broker, publisher, consumer) = ready();
        let (rate, burst) = if lapse { (100, 1) } else { (0, 0) };
        put(&mut broker, &order(1, OnLapse::Closed, ms(5), &[grant("t", rate, burst)])).unwrap();
        broker.send(publisher, put_many("t", &numbered(3)));
        broker.advance(SECOND);
        assert_eq!(broker.messages(consumer).len(), 0);
        let start = broker.now;
        remove(&mut broker, 2);
        broker.advance(SECOND);
        // At the pace of the part before it lapsed, or at once.
        let expected = if lapse { [10, 20, 30] } else { [0, 0, 0] };
        assert_eq!(times(&mut broker, consumer, start), expected.map(ms), "{lapse}");
    }
}

#[test]
fn a_part_that_changes_while_its_topic_is_not_there_mints_nothing() {
    let mut broker = Broker::default();
    put_part(&mut broker, 1, 10, 2);
    broker.advance(SECOND);
    put_part(&mut broker, 2, 10, 10);
    let publish = |broker: &mut Broker| {
        let consumer = broker.subscribe("t", "c", 2500);
        let publisher = broker.connect();
        broker.send(publisher, put_many("t", &numbered(12)));
        broker.messages(consumer).len()
    };
    assert_eq!(publish(&mut broker), 2, "full as it was before, and no fuller");
    broker.advance(SECOND * 10);
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    put_part(&mut broker, 3, 10, 10);
    assert_eq!(publish(&mut broker), 10);
    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
    put_part(&mut broker, 4, 1, 10);
    broker.advance(SECOND);
    assert_eq!(publish(&mut broker), 1, "a second at the rate of then");
}

#[test]
fn what_shrinks_of_an_order_does_so_in_the_first_step_and_the_rest_in_the_last() {
    let mut broker = Broker::with(|config| config.shards = 2);
    let topics: Vec<String> = (0..8).map(|number| format!("t{number}")).collect();
    let homes: Vec<_> = topics.iter().map(|topic| home_shard(topic, 2)).collect();
    assert!(homes.contains(&0) && homes.contains(&1));
    let parts = |limits: [(u64, u64); 2]| -> Vec<PartGrant> {
        topics.iter().enumerate().map(|(n, topic)| grant(topic, limits[n % 2].0, limits[n % 2].1)).collect()
    };
    put(&mut broker, &order(1, OnLapse::Local, SECOND, &parts([(100, 10), (200, 20)]))).unwrap();
    let next = order(2, OnLapse::Local, SECOND, &parts([(200, 5), (300, 30)]));
    step(&mut broker, &next, PartStep::Check).unwrap();
    let limits = |parts: Vec<PartStatus>| -> Vec<_> {
        topics.iter().map(|topic| in_force(parts.iter().find(|part| part.topic.as_str() == topic).unwrap())).collect()
    };
    let all = |broker: &mut Broker| -> Vec<PartStatus> {
        let replies = broker.ask_all(&AdminRequest::Parts);
        let parts = |reply| if let AdminReply::Parts(parts) = reply { parts } else { panic!("{reply:?}") };
        replies.into_iter().flat_map(parts).collect()
    };
    let of = |first, second| -> Vec<(u64, u64)> { [first, second].into_iter().cycle().take(8).collect() };
    assert_eq!(limits(all(&mut broker)), of((100, 10), (200, 20)), "a look changes nothing");
    assert_eq!(limits(step(&mut broker, &next, PartStep::Shrink).unwrap()), of((100, 5), (200, 20)));
    assert_eq!(limits(step(&mut broker, &next, PartStep::All).unwrap()), of((200, 5), (300, 30)));
    let stale = put(&mut broker, &order(1, OnLapse::Local, SECOND, &parts([(1, 1), (1, 1)])));
    assert!(matches!(stale, Err(PartRefused::Stale { holds: 2, .. })));
    assert_eq!(limits(all(&mut broker)), of((200, 5), (300, 30)), "a late order changes nothing");
}

#[test]
fn an_order_of_another_clock_changes_nothing() {
    let (mut broker, ..) = ready();
    let mut order = order(1, OnLapse::Local, SECOND, &[grant("t", 100, 1)]);
    for (ahead, refused) in [(ms(1_000), false), (ms(1_100), false), (ms(1_101), true), (SECOND * 3_600, true)] {
        (order.revision, order.until) = (order.revision + 1, broker.now + ahead);
        let replies = broker.ask_all(&AdminRequest::PutParts(order.clone()));
        let is = replies.iter().any(|reply| matches!(reply, AdminReply::PartsRefused(PartRefused::OtherClock)));
        assert_eq!(is, refused, "{ahead:?}");
    }
}

#[test]
fn an_order_that_comes_after_the_end_of_its_lease_changes_nothing() {
    let (mut broker, ..) = ready();
    let until = broker.now + ms(100);
    let late = PartOrder { until, ..order(1, OnLapse::Local, SECOND, &[grant("t", 100, 1)]) };
    broker.advance(ms(40));
    assert_eq!(put(&mut broker, &late).unwrap()[0].lapses_in, Some(ms(60)));
    broker.advance(ms(60));
    assert_eq!(put(&mut broker, &PartOrder { revision: 2, ..late }), Err(PartRefused::Late));
}

#[test]
fn over_a_restart_and_a_crash_a_part_rules_until_its_lease_ends_and_then_does_as_it_says() {
    let lease = SECOND * 2;
    for crashes in [false, true] {
        for (on_lapse, after) in [(OnLapse::Local, 10), (OnLapse::Open, 1_000), (OnLapse::Closed, 0)] {
            let mut broker = Broker::default();
            broker.create_channel("t", "c");
            broker.limit("t", wait(1_000, 10));
            put(&mut broker, &order(5, on_lapse, lease, &[grant("t", 10, 2)])).unwrap();
            broker.advance(ms(500));
            broker.crashed = crashes;
            // A second goes by meanwhile.
            let mut broker = broker.restart();
            let part = broker.topic("t").limit.unwrap().part.unwrap();
            assert_eq!((part.revision, part.burst, part.lapses_in_ms), (5, 2, Some(500)), "{on_lapse:?}");
            let older = put(&mut broker, &order(4, on_lapse, lease, &[grant("t", 900, 9)]));
            assert!(matches!(older, Err(PartRefused::Stale { holds: 5, .. })));
            broker.advance(ms(500));
            let consumer = broker.subscribe("t", "c", 2500);
            let publisher = broker.connect();
            broker.send(publisher, put_many("t", &numbered(12_000)));
            broker.advance(ms(50));
            broker.messages(consumer);
            broker.advance(SECOND);
            assert_eq!(broker.messages(consumer).len(), after, "{on_lapse:?}, crashed: {crashes}");
        }
    }
}

#[test]
fn a_topic_that_exists_only_by_its_part_is_never_without_a_limit_after_a_crash() {
    let mut broker = Broker::default();
    broker.create_channel("t", "c");
    put(&mut broker, &order(5, OnLapse::Local, ms(100), &[grant("t", 10, 1), grant("absent", 10, 3)])).unwrap();
    broker.crashed = true;
    let mut broker = broker.restart();
    let consumer = broker.subscribe("t", "c", 2500);
    let publisher = broker.connect();
    let start = broker.now;
    broker.send(publisher, put_many("t", &numbered(4)));
    broker.advance(SECOND);
    // Its tokens are not known, so there are none.
    assert_eq!(times(&mut broker, consumer, start), [100, 200, 300, 400].map(ms));
    let limit = broker.topic("t").limit.unwrap();
    assert_eq!((limit.source, limit.part.unwrap().lapses_in_ms), ("part", None));
    broker.create_channel("absent", "c");
    assert_eq!(broker.topic("absent").limit.unwrap().burst, 3);
}

#[test]
fn a_lease_that_ends_while_the_broker_is_down_ends_then() {
    let mut broker = Broker::default();
    broker.create_channel("t", "c");
    broker.limit("t", wait(1_000, 10));
    put(&mut broker, &order(5, OnLapse::Closed, ms(100), &[grant("t", 10, 5)])).unwrap();
    let publisher = broker.connect();
    broker.send(publisher, put_many("t", &numbered(5)));
    let mut broker = broker.restart();
    put(&mut broker, &order(6, OnLapse::Closed, SECOND, &[grant("t", 10, 5)])).unwrap();
    let left = tokens(&mut broker);
    assert!((left - 1.0).abs() < 1e-9, "a token in the tenth of a second until its end, none in the rest: {left}");
}

/// What happens to a topic.
#[derive(Clone, Debug)]
enum Event {
    Publish(usize),
    Wait(u64),
    /// The thread does not run for so many ms.
    Late(u64),
    Contract(u64, u64),
    NoContract,
    Part(u64, u64, u64, OnLapse),
    Renew,
    RemovePart,
    /// The topic is deleted, and comes back after so many ms.
    Delete(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let lapse = prop_oneof![Just(OnLapse::Local), Just(OnLapse::Open), Just(OnLapse::Closed)];
    let limit = (1_u64..200, 1_u64..8);
    let part = prop_oneof![6 => limit.clone(), 1 => Just((0, 0)), 1 => (Just(0_u64), 1_u64..8)];
    prop_oneof![
        6 => (1_usize..7).prop_map(Event::Publish),
        6 => (1_u64..120).prop_map(Event::Wait),
        2 => (1_u64..120).prop_map(Event::Late),
        2 => limit.prop_map(|(rate, burst)| Event::Contract(rate, burst)),
        1 => Just(Event::NoContract),
        5 => (part, 100_u64..300, lapse).prop_map(|((rate, burst), lease, lapse)| Event::Part(rate, burst, lease, lapse)),
        3 => Just(Event::Renew),
        1 => Just(Event::RemovePart),
        1 => (0_u64..150).prop_map(Event::Delete),
    ]
}

/// What stands, as a reader of the book would work it out.
#[derive(Clone, Debug, Default)]
struct Standing {
    contract: Option<(u64, u64)>,
    part: Option<StandingPart>,
    revision: u64,
}

#[derive(Clone, Copy, Debug)]
struct StandingPart {
    limit: (u64, u64),
    lease: u64,
    ends: Instant,
    on_lapse: OnLapse,
    lapsed: bool,
}

/// Rate, burst, and whether everything is held.
type Ruling = Option<(u64, u64, bool)>;

impl Standing {
    fn ruling(&self) -> Ruling {
        let whole = self.contract;
        let lesser = |(rate, burst): (u64, u64)| {
            whole.map_or((rate, burst), |(whole_rate, whole_burst)| (rate.min(whole_rate), burst.min(whole_burst)))
        };
        match self.part {
            None => whole.map(|(rate, burst)| (rate, burst, false)),
            Some(part) if part.lapsed && part.on_lapse == OnLapse::Open => {
                whole.map(|(rate, burst)| (rate, burst, false))
            }
            Some(part) if part.lapsed && part.on_lapse == OnLapse::Closed => Some((0, lesser(part.limit).1, true)),
            Some(part) => {
                let (rate, burst) = lesser(part.limit);
                Some((rate, burst, false))
            }
        }
    }

    /// The next lapse until `now`.
    fn lapse(&mut self, now: Instant) -> Option<Instant> {
        let part = self.part.as_mut().filter(|part| !part.lapsed && part.ends <= now)?;
        part.lapsed = true;
        Some(part.ends)
    }

    /// Carries out what an event says of contract and part, on both sides.
    fn apply(&mut self, event: &Event, broker: &mut Broker) {
        match *event {
            Event::Contract(rate, burst) => {
                self.contract = Some((rate, burst));
                broker.limit("t", wait(rate, burst));
            }
            Event::NoContract => {
                self.contract = None;
                broker.limit("t", None);
            }
            Event::Part(rate, burst, lease, on_lapse) => {
                self.revision += 1;
                let ends = broker.now + ms(lease);
                self.part = Some(StandingPart { limit: (rate, burst), lease, ends, on_lapse, lapsed: false });
                self.put(broker);
            }
            Event::Renew => {
                let now = broker.now;
                if let Some(part) = &mut self.part {
                    let ends = now + ms(part.lease);
                    part.ends = if part.lapsed { ends } else { part.ends.max(ends) };
                    part.lapsed = false;
                    self.put(broker);
                }
            }
            Event::RemovePart => {
                self.revision += 1;
                if self.part.take().is_some() {
                    assert!(matches!(remove(broker, self.revision), AdminReply::Parts(_)));
                }
            }
            Event::Publish(_) | Event::Wait(_) | Event::Late(_) | Event::Delete(_) => {}
        }
    }

    fn put(&self, broker: &mut Broker) {
        let part = self.part.unwrap();
        let grants = [grant("t", part.limit.0, part.limit.1)];
        put(broker, &order(self.revision, part.on_lapse, ms(part.lease), &grants)).unwrap();
    }
}

/// A line before a bucket that is told of every change: what the broker must do, to the nanosecond.
struct Oracle {
    standing: Standing,
    bucket: TokenBucket,
    line: std::collections::VecDeque<Instant>,
    released: Vec<Instant>,
}

impl Oracle {
    fn limit(&self) -> Limit {
        let (rate, burst, _) = self.standing.ruling().expect("a contract stands");
        Limit::new(Rate::per_s(rate), burst)
    }

    /// Lets go what is due until `until`, or before it.
    fn release(&mut self, until: Instant, inclusive: bool) {
        let closed = self.standing.ruling().is_some_and(|(_, _, closed)| closed);
        while let (false, Some(arrival)) = (closed, self.line.front().copied()) {
            if arrival > until || (!inclusive && arrival == until) {
                return;
            }
            let Some(release) = self.bucket.ready_in_line(1, arrival) else { return };
            if release > until || (!inclusive && release == until) {
                return;
            }
            self.bucket.take_in_line(1, release);
            self.line.pop_front();
            self.released.push(release);
        }
    }

    fn run_to(&mut self, now: Instant) {
        loop {
            let due = self.standing.part.filter(|part| !part.lapsed && part.ends <= now).map(|part| part.ends);
            let Some(ends) = due else { break };
            // A part that rules on does not even change the instant's order.
            let changes = self.standing.part.is_some_and(|part| part.on_lapse != OnLapse::Local);
            self.release(ends, !changes);
            self.standing.lapse(now);
            let limit = self.limit();
            self.bucket.set_limit(limit, ends);
        }
        self.release(now, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Nothing is minted, nothing that fits is lost, and nobody overtakes: every release is at its nanosecond, also
    /// when the thread is late.
    #[test]
    fn releases_are_exact_over_any_changes_of_contract_and_part(
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let (mut broker, publisher, consumer) = ready();
        let mut standing = Standing::default();
        standing.apply(&Event::Contract(50, 5), &mut broker);
        broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
        let bucket = TokenBucket::new(Limit::new(Rate::per_s(50), 5), broker.now);
        let mut oracle = Oracle { standing, bucket, line: std::collections::VecDeque::new(), released: Vec::new() };
        let mut published = 0;
        for event in &events {
            match event {
                // Without a contract, and without the topic, there is no one bucket.
                Event::NoContract | Event::Delete(_) => continue,
                Event::Late(span) => {
                    broker.pause(ms(*span));
                    continue;
                }
                Event::Wait(span) => broker.advance(ms(*span)),
                Event::Publish(count) => {
                    let bodies: Vec<_> = (published..published + count).map(|number| number.to_string()).collect();
                    published += count;
                    broker.send(publisher, put_many("t", &bodies));
                    oracle.run_to(broker.now);
                    oracle.line.extend(std::iter::repeat_n(broker.now, *count));
                }
                _ => {
                    oracle.run_to(broker.now);
                    oracle.standing.apply(event, &mut broker);
                    let limit = oracle.limit();
                    oracle.bucket.set_limit(limit, broker.now);
                }
            }
            oracle.run_to(broker.now);
        }
        broker.advance(SECOND);
        oracle.run_to(broker.now);
        broker.order(AdminRequest::Record(topic_name("t"), Recording::Off));
        let releases: Vec<_> = broker.passages.iter().map(|passage| passage.release).collect();
        prop_assert_eq!(&releases, &oracle.released);
        let bodies = broker.bodies(consumer);
        prop_assert_eq!(bodies, numbered(releases.len()));
    }

    /// The law, from outside: in any window in which something limits the topic, as much as the burst at its beginning
    /// and what the rates of then minted.
    #[test]
    fn no_window_has_more_than_burst_and_rates_allow(events in proptest::collection::vec(event(), 1..80)) {
        let (mut broker, publisher, mut consumer) = ready();
        let mut standing = Standing::default();
        // Every ruling from the beginning on, with when it began.
        let mut rulings: Vec<(Instant, Ruling)> = vec![(broker.now, None)];
        let mut seen = Vec::new();
        for event in &events {
            let note = |rulings: &mut Vec<(Instant, Ruling)>, standing: &mut Standing, now: Instant| {
                while let Some(at) = standing.lapse(now) {
                    rulings.push((at, standing.ruling()));
                }
            };
            match event {
                // Seen at the socket, a late thread is a burst.
                Event::Wait(span) | Event::Late(span) => {
                    broker.advance(ms(*span));
                    note(&mut rulings, &mut standing, broker.now);
                }
                Event::Publish(count) => broker.send(publisher, put_many("t", &numbered(*count))),
                Event::Delete(span) => {
                    seen.extend(broker.messages(consumer).into_iter().map(|message| message.at));
                    broker.order(AdminRequest::DeleteTopic(topic_name("t")));
                    broker.advance(ms(*span));
                    note(&mut rulings, &mut standing, broker.now);
                    consumer = broker.subscribe("t", "c", 2500);
                }
                _ => {
                    standing.apply(event, &mut broker);
                    rulings.push((broker.now, standing.ruling()));
                }
            }
        }
        seen.extend(broker.messages(consumer).into_iter().map(|message| message.at));
        for (first, from) in seen.iter().enumerate() {
            for (last, to) in seen.iter().enumerate().skip(first) {
                let Some(allowed) = allowed(&rulings, *from, *to) else { break };
                let sent = (last - first + 1) as u128 * 1_000_000_000;
                prop_assert!(sent <= allowed, "{first}..={last}: {sent} > {allowed}, {rulings:?}");
            }
        }
    }
}

/// Billionths of a token that a window may have; `None` if nothing limits a part of it.
fn allowed(rulings: &[(Instant, Ruling)], from: Instant, to: Instant) -> Option<u128> {
    let (mut burst, mut minted) = (0, 0);
    for (index, (since, ruling)) in rulings.iter().enumerate() {
        let until = rulings.get(index + 1).map_or(Instant::MAX, |(until, _)| *until);
        if until < from || *since > to {
            continue;
        }
        let (rate, depth, _) = (*ruling)?;
        if *since <= from {
            burst = burst.max(depth); // Of two that meet there, either may have ruled.
        }
        let span = until.min(to).nanos_since((*since).max(from));
        minted += u128::from(rate) * u128::from(span);
    }
    Some(u128::from(burst) * 1_000_000_000 + minted)
}

//! Claims of the SRTM paper about the token bucket, on the broker.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

#[expect(dead_code, reason = "each binary of tests uses a part")]
mod harness;

use std::time::Duration;

use harness::{Broker, Client, SECOND, ms, put, put_many, topic_name, wait};
use tidegate_broker::machine::admin::{AdminRequest, Recording};
use tidegate_core::rng::Rng;
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rate};

/// The paper's topic: 11,000 messages a second, a bucket of 26, and a load of 10,000.
const RATE: u64 = 11_000;
const BURST: u64 = 26;
const LOAD: u64 = 10_000;

/// Eq. 2 in exact arithmetic: work in the bucket, in units of which a token has `period`.
struct Equation2 {
    tokens: u128,
    period: u128,
    burst: u128,
    work: u128,
    at: Instant,
}

impl Equation2 {
    fn new(rate: u64, burst: u64, at: Instant) -> Self {
        let rate = Rate::per_s(rate);
        let (tokens, period) = (u128::from(rate.tokens()), u128::from(rate.period_ns()));
        Self { tokens, period, burst: u128::from(burst) * period, work: 0, at }
    }

    /// The delay of a message that arrives at `at`: max(0, U + 1 - b) / r, rounded up to the nanosecond.
    fn delay(&mut self, at: Instant) -> Duration {
        self.work = self.work.saturating_sub(u128::from(at.nanos_since(self.at)) * self.tokens);
        self.at = at;
        self.work += self.period;
        let ns = self.work.saturating_sub(self.burst).div_ceil(self.tokens);
        Duration::from_nanos(ns.try_into().unwrap())
    }
}

fn limited() -> (Broker, Client, Client) {
    let mut broker = Broker::default();
    let consumer = broker.subscribe("t", "c", 2500);
    broker.limit("t", wait(RATE, BURST));
    let publisher = broker.connect();
    (broker, publisher, consumer)
}

/// What the consumer got since last time; it finishes at once.
fn take(broker: &mut Broker, consumer: Client) -> Vec<(String, Instant)> {
    let messages = broker.messages(consumer);
    broker.send(consumer, messages.iter().flat_map(harness::fin).collect::<Vec<_>>());
    messages.into_iter().map(|message| (message.body, message.at)).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a span of some microseconds in ns")]
fn exponential(rng: &mut Rng, mean_ns: f64) -> Duration {
    Duration::from_nanos((rng.exponential() * mean_ns) as u64)
}

/// §5.2: each message of a Poisson stream is delayed as Eq. 2 says, to the nanosecond, also at a load above the rate.
#[test]
fn each_message_is_delayed_as_equation_2_says() {
    for load in [LOAD, 10_950, 13_000] {
        let (mut broker, publisher, consumer) = limited();
        let mut rng = Rng::new(load);
        let mut equation = Equation2::new(RATE, BURST, broker.now);
        let mut expected = Vec::new();
        let mut got = Vec::new();
        for number in 0..20_000 {
            broker.advance(exponential(&mut rng, 1e9 / f64::from(u32::try_from(load).unwrap())));
            expected.push((number.to_string(), broker.now + equation.delay(broker.now)));
            broker.publish(publisher, "t", &number.to_string());
            got.extend(take(&mut broker, consumer));
        }
        for _ in 0..100 {
            broker.advance(ms(100)); // No more than the consumer may have in flight.
            got.extend(take(&mut broker, consumer));
        }
        assert_eq!(got, expected, "at a load of {load}");
        let delayed = broker.topic("t").delayed_total;
        match load {
            LOAD => assert!((40..400).contains(&delayed), "about 1 %: {delayed}"),
            10_950 => assert!(delayed > 10_000, "most: {delayed}"),
            _ => assert!(delayed > 19_000, "nearly all: {delayed}"),
        }
    }
}

/// §7.11 of the specification: message j of a batch waits max(0, U + j - b) / r.
#[test]
fn message_j_of_a_batch_waits_for_j_tokens() {
    let (mut broker, publisher, consumer) = limited();
    let mut rng = Rng::new(11);
    let mut equation = Equation2::new(RATE, BURST, broker.now);
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    for batch in 0..2_000 {
        broker.advance(exponential(&mut rng, 1e6));
        let bodies: Vec<_> = (0..10).map(|j| format!("{batch}.{j}")).collect();
        expected.extend(bodies.iter().map(|body| (body.clone(), broker.now + equation.delay(broker.now))));
        broker.send(publisher, put_many("t", &bodies));
        assert_eq!(broker.replies(publisher).len(), 1);
        got.extend(take(&mut broker, consumer));
    }
    broker.advance(SECOND);
    got.extend(take(&mut broker, consumer));
    assert_eq!(got, expected);
}

/// §5.2: publishers on connections of their own are one stream to the topic's bucket, by their stamps.
#[test]
fn arrivals_of_many_connections_are_charged_as_one_stream() {
    let (mut broker, _, consumer) = limited();
    let publishers: Vec<_> = (0..20).map(|_| broker.connect()).collect();
    let mut rng = Rng::new(20);
    let mut equation = Equation2::new(RATE, BURST, broker.now);
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    for round in 0..500 {
        // What came within two milliseconds is read in one go, one connection after another.
        let from = broker.now;
        let mut stamps: Vec<_> = (0..20).map(|n| (from + Duration::from_nanos(rng.below(2_000_000)), n)).collect();
        broker.pause(ms(2));
        for (stamp, n) in &stamps {
            broker.give(publishers[*n], put("t", &format!("{round}.{n}")), *stamp);
        }
        broker.settle();
        stamps.sort_by_key(|(stamp, _)| *stamp);
        for (stamp, n) in stamps {
            let release = stamp + equation.delay(stamp);
            expected.push((format!("{round}.{n}"), release.max(broker.now)));
        }
        got.extend(take(&mut broker, consumer));
    }
    broker.advance(SECOND);
    got.extend(take(&mut broker, consumer));
    assert_eq!(got, expected);
}

/// §7.8 of the specification: a reader that was held up for 50 ms, and charges what it missed to the moment before,
/// delays no message of a stream that conforms, neither of the pause nor after it.
#[test]
fn a_paused_reader_delays_no_conforming_message() {
    let (mut broker, publisher, consumer) = limited();
    let mut rng = Rng::new(50);
    // A stream that conforms: Poisson arrivals, each put off to where Eq. 2 would let it go.
    let mut equation = Equation2::new(RATE, BURST, broker.now);
    let mut at = broker.now;
    let mut arrivals = Vec::new();
    for _ in 0..20_000 {
        at += exponential(&mut rng, 1e9 / 10_500.0);
        arrivals.push(at + equation.delay(at));
    }
    broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
    let mut got = 0;
    let mut arrivals = arrivals.into_iter().peekable();
    let mut pauses = 0;
    while let Some(next) = arrivals.next() {
        broker.advance_to(next);
        broker.send(publisher, put("t", "m"));
        let mut read = 1;
        if rng.chance(0.002) {
            let before = broker.now;
            broker.pause(ms(50));
            pauses += 1;
            while arrivals.next_if(|arrival| *arrival <= broker.now).is_some() {
                broker.give(publisher, put("t", "m"), before);
                read += 1;
            }
            broker.settle();
        }
        let delivered = take(&mut broker, consumer);
        assert_eq!(delivered.len(), read, "all of it passes as it is read");
        got += delivered.len();
        broker.replies(publisher);
    }
    assert_eq!(got, 20_000);
    assert!(pauses > 10);
    assert_eq!(broker.topic("t").waiting, 0);
    broker.order(AdminRequest::Record(topic_name("t"), Recording::Off));
    let passages = std::mem::take(&mut broker.passages);
    assert_eq!(passages.len(), got);
    assert!(passages.iter().all(|passage| passage.release <= passage.read), "so says the trace");
    let missed = passages.iter().filter(|passage| passage.arrival < passage.read).count();
    assert!(missed > pauses * 400, "of 500 in each pause");
}

/// The law of a contract over every window, by its running extremum: messages so far minus what the rate has given,
/// against the least that this was before.
struct Law {
    tokens: i128,
    period: i128,
    most: i128,
    count: i128,
    least: i128,
}

impl Law {
    /// At most `BURST` and `RATE` times (window plus `late`) messages.
    fn new(late: Duration) -> Self {
        let rate = Rate::per_s(RATE);
        let (tokens, period) = (i128::from(rate.tokens()), i128::from(rate.period_ns()));
        let most = i128::from(BURST) * period + i128::try_from(late.as_nanos()).unwrap() * tokens;
        Self { tokens, period, most, count: 0, least: i128::MAX }
    }

    fn left(&mut self, at: Instant) {
        let earned = i128::from(at.as_nanos()) * self.tokens;
        self.least = self.least.min(self.count * self.period - earned);
        self.count += 1;
        let above = self.count * self.period - earned - self.least;
        assert!(above <= self.most, "{} messages, {above} > {}", self.count, self.most);
    }
}

/// §1.1: in any window t, at most b + r t messages leave the bucket, whatever comes in. By the clock on the wall a
/// reader that is late by h adds r h.
#[test]
fn no_window_holds_more_than_the_contract() {
    let (mut broker, _, consumer) = limited();
    let publishers: Vec<_> = (0..10).map(|_| broker.connect()).collect();
    let mut rng = Rng::new(1);
    let late = Duration::from_micros(100);
    let (mut released, mut delivered) = (Law::new(Duration::ZERO), Law::new(late));
    broker.order(AdminRequest::Record(topic_name("t"), Recording::On));
    let mut sent = 0;
    while sent < 30_000 {
        let wait_ns = if rng.chance(0.01) { rng.below(20_000_000) } else { rng.below(150_000) };
        broker.advance(Duration::from_nanos(wait_ns));
        for _ in 0..rng.below(4) {
            let publisher = publishers[usize::try_from(rng.below(10)).unwrap()];
            let bodies = vec!["m"; usize::try_from(1 + rng.below(5)).unwrap()];
            let stamp = broker.now.minus_nanos(rng.below(nanos(late)));
            broker.give(publisher, put_many("t", &bodies), stamp);
            sent += bodies.len();
        }
        broker.settle();
        for (_, at) in take(&mut broker, consumer) {
            delivered.left(at);
        }
    }
    broker.order(AdminRequest::Record(topic_name("t"), Recording::Off));
    for passage in std::mem::take(&mut broker.passages) {
        released.left(passage.release);
    }
    assert!(released.count > 10_000 && released.count == delivered.count);
}

//! Producers and consumers of an act.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_load::demo_load::{Consumer, ConsumerConfig, Feed, Publishers, PublishersConfig};
use tidegate_runtime::clock;
use tokio::time::sleep;

use super::plan::{CHANNEL, Plan};
use crate::demo::load_failed;
use crate::failure::Failure;

/// A small JSON document.
const BODY_BYTES: usize = 200;
/// Seconds of the load: only a broker that stands still makes a producer drop a message.
const UNANSWERED_MAX: u64 = 10_000;
/// Far more than is sent: consumers are never what a message waits for.
const CONSUMED_PER_S: f64 = 50_000.0;
const READY: u32 = 1_000;
/// Later than this is late for the consumer's own count, which is not shown.
const DEADLINE: Duration = Duration::from_mins(1);
/// How often it is looked whether everything was delivered.
const LOOK: Duration = Duration::from_millis(100);
/// Every act has its own producers and consumers, so that one number is enough.
const RUN: u32 = 1;
/// The same arrivals each time: everybody sees the same demo.
const SEED: u64 = 1;

/// They stop when this is dropped.
pub(super) struct Troupe {
    plan: Plan,
    consumers: Vec<Consumer>,
    producers: Vec<Publishers>,
}

/// What became of an act's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    /// Taken by a broker.
    pub(super) accepted: u64,
    /// Delivered at least once.
    pub(super) delivered: u64,
}

impl Troupe {
    /// A consumer of `topic` at each of `brokers`; the producers dial `doors`, each as many of them.
    pub(super) async fn start(
        plan: &Plan,
        topic: &'static str,
        brokers: &[SocketAddr],
        doors: &[SocketAddr],
    ) -> Result<Self, Failure> {
        let (plan, brokers, doors) = (*plan, brokers.to_vec(), doors.to_vec());
        let started = tokio::task::spawn_blocking(move || {
            let consumers = brokers.into_iter().map(|broker| consumer(&plan, topic, broker));
            // First, so that the channels are there before the messages.
            let consumers = consumers.collect::<Result<_, _>>()?;
            let share = plan.producers / u32::try_from(doors.len()).unwrap_or(u32::MAX).max(1);
            let producers = (SEED..).zip(doors).map(|(seed, door)| {
                Publishers::start(&PublishersConfig {
                    address: door,
                    topic: topic.to_owned(),
                    publishers: share,
                    payload_bytes: BODY_BYTES,
                    rate_per_s: rate_of(&plan, share),
                    unanswered_max: UNANSWERED_MAX,
                    run: RUN,
                    seed,
                })
            });
            let producers = producers.collect::<Result<_, _>>()?;
            Ok(Self { plan, consumers, producers })
        });
        started.await.expect("it returns its errors").map_err(load_failed)
    }

    /// False once a connection was lost; [`Self::stop`] says why.
    pub(super) fn is_playing(&self) -> bool {
        self.consumers.iter().all(Consumer::is_running) && self.producers.iter().all(Publishers::is_running)
    }

    /// Lets producers pause until all that was accepted is delivered, or until `within` is over, and counts both.
    pub(super) async fn count(&self, within: Duration) -> Counted {
        self.producers.iter().for_each(|producers| producers.set_rate(0.0));
        let until = clock::now() + within;
        loop {
            // What is unanswered is not known to be accepted yet.
            let counts = || self.producers.iter().map(Publishers::counts);
            let unanswered: u64 = counts().map(|c| c.offered.saturating_sub(c.accepted + c.refused + c.dropped)).sum();
            let accepted = counts().map(|counts| counts.accepted).sum();
            let delivered = self.consumers.iter().map(|consumer| consumer.snapshot(0).received.unique).sum();
            if (unanswered == 0 && delivered >= accepted) || clock::now() >= until || !self.is_playing() {
                return Counted { accepted, delivered };
            }
            sleep(LOOK).await;
        }
    }

    /// Producers go on.
    pub(super) fn resume(&self) {
        let share = self.plan.producers / u32::try_from(self.producers.len()).unwrap_or(u32::MAX).max(1);
        self.producers.iter().for_each(|producers| producers.set_rate(rate_of(&self.plan, share)));
    }

    /// Ends the load. Waits for its threads, which look up every ten milliseconds.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        let Self { consumers, producers, .. } = self;
        let stopped = tokio::task::spawn_blocking(move || {
            let producers = producers.into_iter().map(Publishers::stop).fold(Ok(()), Result::and);
            consumers.into_iter().map(Consumer::stop).fold(producers, Result::and)
        });
        stopped.await.expect("it returns its errors").map_err(load_failed)
    }
}

fn rate_of(plan: &Plan, producers: u32) -> f64 {
    f64::from(producers) * f64::from(plan.each_per_s)
}

fn consumer(plan: &Plan, topic: &str, broker: SocketAddr) -> Result<Consumer, tidegate_load::LoadError> {
    Consumer::start(&ConsumerConfig {
        address: broker,
        feeds: vec![Feed {
            topic: topic.to_owned(),
            channel: CHANNEL.to_owned(),
            publishers: plan.producers,
            run: RUN,
        }],
        capacity_per_s: CONSUMED_PER_S,
        rdy: READY,
        deadline: DEADLINE,
    })
}

//! Who makes the load on one broker: the publishers of both topics, and the consumer that they share.

use std::net::SocketAddr;

use tidegate_load::LoadError;
use tidegate_load::demo_load::{Consumer, ConsumerConfig, Feed, Publishers, PublishersConfig};

use super::meter::Totals;
use super::plan::{Plan, Role};

const CHANNEL: &str = "billing";
/// A small JSON document.
const BODY_BYTES: usize = 200;
/// Connections that publish to each topic.
const PUBLISHERS: u32 = 4;
/// What a publisher may have unanswered before it drops messages itself: seconds of the largest load, so that only a
/// broker that stands still makes it do so.
const UNANSWERED_MAX: u64 = 10_000;

/// Publishers and consumer of one broker. They stop when this is dropped.
pub(crate) struct Troupe {
    plan: Plan,
    /// In the order of [`Role::BOTH`], as the consumer's feeds.
    publishers: [Publishers; 2],
    consumer: Consumer,
}

impl Troupe {
    /// Starts both at `load`. The same `seed` for both brokers offers them the same messages.
    pub(crate) fn start(broker: SocketAddr, plan: Plan, load: f64, seed: u64) -> Result<Self, LoadError> {
        let feeds = Role::BOTH.map(|role| Feed {
            topic: role.topic().to_owned(),
            channel: CHANNEL.to_owned(),
            publishers: PUBLISHERS,
            run: role as u32,
        });
        // First, so that the channels are there before the messages.
        let consumer = Consumer::start(&ConsumerConfig {
            address: broker,
            feeds: feeds.to_vec(),
            capacity_per_s: plan.capacity_per_s,
            rdy: plan.ready,
            deadline: plan.deadline,
        })?;
        let publish = |role: Role| {
            Publishers::start(&PublishersConfig {
                address: broker,
                topic: role.topic().to_owned(),
                publishers: PUBLISHERS,
                payload_bytes: BODY_BYTES,
                rate_per_s: plan.offered_per_s(role, load),
                unanswered_max: UNANSWERED_MAX,
                run: role as u32,
                seed: seed + role as u64,
            })
        };
        Ok(Self { plan, publishers: [publish(Role::Good)?, publish(Role::Noisy)?], consumer })
    }

    /// Offers `load` times the capacity from now on.
    pub(crate) fn offer(&self, load: f64) {
        for (role, publishers) in Role::BOTH.into_iter().zip(&self.publishers) {
            publishers.set_rate(self.plan.offered_per_s(role, load));
        }
    }

    /// What became of the messages so far, in the order of [`Role::BOTH`].
    pub(crate) fn totals(&self) -> [Totals; 2] {
        Role::BOTH.map(|role| {
            let sent = self.publishers[role as usize].counts();
            let seen = self.consumer.snapshot(role as usize);
            Totals {
                offered: sent.offered,
                finished: seen.finished,
                // What the broker refused or dropped is missing at the consumer once a later message has arrived.
                lost: seen.late + seen.missing + sent.dropped,
                p50_ms: seen.end_to_end.us_p50 / 1e3,
                p99_ms: seen.end_to_end.us_p99 / 1e3,
            }
        })
    }

    /// False once a connection was lost; [`Self::stop`] says why.
    pub(crate) fn is_playing(&self) -> bool {
        self.consumer.is_running() && self.publishers.iter().all(Publishers::is_running)
    }

    /// Ends the load. Waits for its threads, which look up every ten milliseconds.
    pub(crate) fn stop(self) -> Result<(), LoadError> {
        let [good, noisy] = self.publishers;
        good.stop().and(noisy.stop()).and(self.consumer.stop())
    }
}

//! Publishers and consumers, which go on whatever becomes of the etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use miette::Result;

use super::crew::{Broker, connect};
use crate::clock::{self, Stopwatch};
use crate::nsq::{Client, Frame};

/// A publish that is not answered within this time has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// A consumer looks so often whether it is to end.
const LOOK: Duration = Duration::from_secs(1);

/// A number of nanoseconds of the monotonic clock.
pub(super) type Ns = i128;

/// A publisher on a thread of its own, one message at a time.
#[derive(Debug)]
pub(super) struct Publisher {
    stop: Arc<AtomicBool>,
    per_s: Arc<AtomicU32>,
    thread: JoinHandle<Published>,
}

/// What became of what a publisher sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) answered: u64,
    /// Why publishes failed; the first that is not answered ends the publisher.
    pub(super) failures: Vec<String>,
    pub(super) slowest: Duration,
}

impl Publisher {
    /// Publishes `per_s` messages a second to `topic`, each with the instant at which it is sent.
    pub(super) fn start(broker: &Broker, topic: &str, per_s: u32) -> Result<Self> {
        let mut client = connect(broker, PATIENCE)?;
        let (stop, per_s) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(per_s)));
        let (seen, rate, topic) = (Arc::clone(&stop), Arc::clone(&per_s), topic.to_owned());
        let thread = std::thread::spawn(move || {
            let mut published = Published::default();
            while !seen.load(Ordering::Relaxed) && published.failures.is_empty() {
                let watch = Stopwatch::start();
                match publish(&mut client, &topic) {
                    Ok(()) => published.answered += 1,
                    Err(why) => published.failures.push(why),
                }
                published.slowest = published.slowest.max(watch.elapsed());
                let pause = Duration::from_secs(1) / rate.load(Ordering::Relaxed).max(1);
                clock::rest(pause.saturating_sub(watch.elapsed()));
            }
            published
        });
        Ok(Self { stop, per_s, thread })
    }

    /// From now on it publishes so many a second.
    pub(super) fn set_rate(&self, per_s: u32) {
        self.per_s.store(per_s, Ordering::Relaxed);
    }

    pub(super) fn finish(self) -> Published {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a publisher returns its errors")
    }
}

/// Ends them and adds up what they published.
pub(super) fn finish_all(publishers: Vec<Publisher>) -> Published {
    for publisher in &publishers {
        publisher.stop.store(true, Ordering::Relaxed);
    }
    publishers.into_iter().map(Publisher::finish).fold(Published::default(), |mut sum, one| {
        sum.answered += one.answered;
        sum.failures.extend(one.failures);
        sum.slowest = sum.slowest.max(one.slowest);
        sum
    })
}

fn publish(client: &mut Client, topic: &str) -> Result<(), String> {
    client.put_pub(topic, clock::monotonic_ns().to_string().as_bytes());
    let answer = client.flush().and_then(|()| client.answer()).map_err(|report| report.to_string())?;
    if answer == Frame::Response(b"OK".to_vec()) { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// A message that a consumer got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) sent: Ns,
    pub(super) came: Ns,
}

/// A consumer on a thread of its own, which finishes everything at once.
#[derive(Debug)]
pub(super) struct Consumer {
    stop: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Delivery>>,
}

impl Consumer {
    pub(super) fn start(broker: &Broker, topic: &str) -> Result<Self> {
        let mut client = Client::subscribe(&broker.nsq, topic, "c", 1_000, LOOK)?;
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (seen, count) = (Arc::clone(&stop), Arc::clone(&came));
        let thread = std::thread::spawn(move || {
            let mut deliveries = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                let Some(Frame::Message(id, body)) = client.answer_if_any() else { continue };
                let came = clock::monotonic_ns();
                client.put_fin(&id);
                if client.flush().is_err() {
                    break;
                }
                let sent = std::str::from_utf8(&body).ok().and_then(|text| text.parse().ok());
                deliveries.extend(sent.map(|sent| Delivery { sent, came }));
                count.store(deliveries.len() as u64, Ordering::Relaxed);
            }
            deliveries
        });
        Ok(Self { stop, came, thread })
    }

    /// How many messages came so far.
    pub(super) fn count(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Everything that came, in order.
    pub(super) fn finish(self) -> Vec<Delivery> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a consumer counts what comes")
    }
}

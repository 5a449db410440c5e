//! A watch: one stream after the other, each from the revision on that the one before it reached.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::keys::{Keys, revision, revision_number};
use super::links::{Links, Opened, Trouble, refusal};
use super::messages::{KvEvent, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use super::rota::Failure;
use crate::store::contract::{Pending, Watch};
use crate::store::entry::{Event, Revision};
use crate::store::error::StoreError;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Batches that wait for the watch's owner, each some 2 MiB at most; beyond that the stream is not read.
const WAITING_BATCHES: usize = 16;
/// A stream that was silent for so long is asked whether it is alive.
const SILENCE: Duration = Duration::from_secs(1);
/// Wait between streams that broke, doubling up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The owner's end.
pub(super) struct EtcdWatch {
    batches: mpsc::Receiver<Result<Vec<Event>, StoreError>>,
    links: Arc<Links>,
    /// Reads the streams; ends when dropped.
    _pump: JoinSet<()>,
}

impl EtcdWatch {
    /// Opens a first stream and goes on with it.
    pub(super) async fn open(links: Arc<Links>, keys: Keys, prefix: &str, seen: Revision) -> Result<Self, StoreError> {
        let (sender, batches) = mpsc::channel(WAITING_BATCHES);
        let pump = Pump { links: Arc::clone(&links), keys, prefix: prefix.to_owned(), seen, batches: sender };
        let first = pump.first_stream().await?;
        let mut task = JoinSet::new();
        task.spawn(pump.run(first));
        Ok(Self { batches, links, _pump: task })
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> Pending<'_, Vec<Event>> {
        Box::pin(async move {
            let ended =
                || StoreError::Unavailable { store: self.links.names(), found: "the watch has ended".to_owned() };
            match self.batches.recv().await {
                Some(batch) => batch,
                None => Err(ended()),
            }
        })
    }
}

type WatchStream = Opened<WatchRequest, WatchResponse>;

/// How a stream ended.
enum Ended {
    /// The owner is gone.
    Unwanted,
    /// No other stream would do better.
    For(StoreError),
    /// Another stream goes on.
    Broken(String),
}

struct Pump {
    links: Arc<Links>,
    keys: Keys,
    prefix: String,
    /// All events up to this revision were handed to the owner.
    seen: Revision,
    batches: mpsc::Sender<Result<Vec<Event>, StoreError>>,
}

impl Pump {
    /// A stream from any node, within the time that a call has.
    async fn first_stream(&self) -> Result<WatchStream, StoreError> {
        let patience = self.links.patience();
        let mut found = String::new();
        let tries = async {
            let mut pause = FIRST_PAUSE;
            loop {
                match self.stream().await {
                    Ok(stream) => return Ok(stream),
                    Err(Ended::For(error)) => return Err(error),
                    Err(Ended::Broken(why)) => found = why,
                    Err(Ended::Unwanted) => {}
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        let ended = timeout(patience, tries).await;
        ended.unwrap_or_else(|_| Err(StoreError::Unavailable { store: self.links.names(), found }))
    }

    /// Reads stream after stream until nobody wants to know, or none can go on.
    async fn run(mut self, first: WatchStream) {
        let (mut stream, mut pause) = (Ok(first), FIRST_PAUSE);
        loop {
            let before = self.seen;
            let ended = match stream {
                Ok(stream) => self.read(stream).await,
                Err(ended) => ended,
            };
            match ended {
                Ended::Unwanted => return,
                Ended::For(error) => {
                    // An owner that is gone needs no reason.
                    let _ = self.batches.send(Err(error)).await;
                    return;
                }
                Ended::Broken(found) => {
                    tracing::info!(prefix = %self.prefix, seen = self.seen.0, found, "a watch is opened anew");
                }
            }
            if self.seen > before {
                pause = FIRST_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            stream = self.stream().await;
        }
    }

    /// A stream of what comes after `seen`, from the node in use.
    async fn stream(&self) -> Result<WatchStream, Ended> {
        let create = WatchCreateRequest {
            key: self.keys.full(&self.prefix),
            range_end: self.keys.end_of(&self.prefix),
            start_revision: revision_number(self.seen).saturating_add(1),
            fragment: true,
        };
        match self.links.open(WATCH, WatchRequest { create: Some(create), progress: None }).await {
            Ok(stream) => Ok(stream),
            Err((node, Trouble::Refused(status))) => Err(Ended::For(refusal(self.links.name(node), &status))),
            Err((node, trouble)) => {
                self.links.leave(node, trouble.failure());
                Err(Ended::Broken(trouble.found()))
            }
        }
    }

    /// Hands the events of `stream` to the owner.
    async fn read(&mut self, stream: WatchStream) -> Ended {
        let Opened { requests, mut answers, node } = stream;
        let mut parts = Parts::default();
        // The stream owes an answer: at first that it was made.
        let mut owes = true;
        loop {
            let wait = if owes { self.links.answer_within() } else { SILENCE };
            let answer = match timeout(wait, answers.message()).await {
                Ok(Ok(Some(answer))) => answer,
                Ok(Ok(None)) => {
                    self.links.leave(node, Failure::Spoke);
                    return Ended::Broken("the node ended it".to_owned());
                }
                Ok(Err(status)) => {
                    self.links.leave(node, Failure::Spoke);
                    return Ended::Broken(status.message().to_owned());
                }
                Err(_) if owes => {
                    self.links.leave(node, Failure::Silent);
                    return Ended::Broken(self.links.no_answer());
                }
                Err(_) => {
                    let alive = WatchRequest { create: None, progress: Some(WatchProgressRequest {}) };
                    // Where there is no room, the last question is not even sent yet.
                    let _ = requests.try_send(alive);
                    owes = true;
                    continue;
                }
            };
            owes = false;
            if answer.canceled {
                return self.canceled(&answer);
            }
            let events = match parts.complete(answer) {
                events if events.is_empty() => continue,
                events => events.into_iter().map(|event| self.keys.event(event)).collect::<Result<Vec<_>, _>>(),
            };
            let events = match events {
                Ok(events) => events,
                Err(error) => return Ended::For(error),
            };
            let reached = events.last().map_or(self.seen, |last| last.revision);
            if self.batches.send(Ok(events)).await.is_err() {
                return Ended::Unwanted;
            }
            self.seen = reached;
        }
    }

    fn canceled(&self, answer: &WatchResponse) -> Ended {
        if answer.compact_revision > 0 {
            // etcd names the oldest revision that a watch may begin at.
            let oldest = Revision(revision(answer.compact_revision).0.saturating_sub(1));
            return Ended::For(StoreError::Compacted { seen: self.seen, oldest });
        }
        // It also cancels a stream whose user it does not know any more.
        self.links.doubt_token();
        Ended::Broken(answer.cancel_reason.clone())
    }
}

/// Puts answers together that came in parts, so that the events of a transaction stay together.
#[derive(Default)]
struct Parts {
    /// Events of one revision, of which more may come: the size of a transaction at most.
    held: Vec<KvEvent>,
}

impl Parts {
    /// The events of all revisions that are complete with `answer`.
    fn complete(&mut self, answer: WatchResponse) -> Vec<KvEvent> {
        let mut events = std::mem::take(&mut self.held);
        events.extend(answer.events);
        if answer.fragment {
            let newest = events.last().map(revision_of);
            let begins = events.iter().position(|event| Some(revision_of(event)) == newest).unwrap_or(0);
            self.held = events.split_off(begins);
        }
        events
    }
}

fn revision_of(event: &KvEvent) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::etcd::messages::KeyValue;

    fn answer(revisions: &[i64], fragment: bool) -> WatchResponse {
        let event = |at: &i64| KvEvent { kind: 0, kv: Some(KeyValue { mod_revision: *at, ..KeyValue::default() }) };
        WatchResponse { fragment, events: revisions.iter().map(event).collect(), ..WatchResponse::default() }
    }

    #[test]
    fn a_transaction_that_came_in_parts_is_told_at_once() {
        let mut parts = Parts::default();
        let mut told = |revisions: &[i64], fragment| -> Vec<i64> {
            parts.complete(answer(revisions, fragment)).iter().map(revision_of).collect()
        };
        assert_eq!(told(&[4, 5, 5], true), [4]);
        assert_eq!(told(&[5, 5], true), [0_i64; 0]);
        assert_eq!(told(&[6], true), [5, 5, 5, 5]);
        assert_eq!(told(&[6, 7], false), [6, 6, 7]);
        assert_eq!(told(&[8], false), [8]);
    }
}

//! The shared poller and its watchers.
//!
//! Frames go through a `watch` channel: it holds one frame, the newest. A watcher that reads slowly misses the frames in
//! between and gets the next one as a whole, so no watcher makes the console buffer more than one encoded frame.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{Stream, unfold};
use tidegate_runtime::causes::with_causes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;
use tracing::debug;

use crate::admin_client::{AdminClient, AdminError};
use crate::frame::{Extras, Found, Frame, FrameId};
use crate::neighbours::{NeighbourLedger, NeighbourSnapshot, Proxy};
use crate::series::{Columns, SeriesBook};
use crate::snapshot::BrokerSnapshot;
use crate::view::{Broker, Ledger, RowId};

/// Event streams open at once; the next is answered 503.
pub const MAX_WATCHERS: usize = 100;

/// A broker or a proxy to poll.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) client: AdminClient,
}

/// The poller, which runs while somebody watches, and what it found.
#[derive(Debug)]
pub(crate) struct Feed {
    sources: Vec<Source>,
    proxies: Vec<Source>,
    extras: Extras,
    poll_interval: Duration,
    stop: Option<watch::Receiver<bool>>,
    epoch: u32,
    newest: watch::Sender<Option<Arc<Frame>>>,
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

/// What outlives a run of the poller.
#[derive(Default, Debug)]
struct State {
    polling: bool,
    sequence: u64,
    series: SeriesBook,
}

/// What a run of the poller remembers of its last round.
#[derive(Default)]
struct Ledgers {
    brokers: Ledger,
    proxies: NeighbourLedger,
}

/// What a feed is made of.
pub(crate) struct FeedConfig {
    pub(crate) sources: Vec<Source>,
    pub(crate) proxies: Vec<Source>,
    pub(crate) extras: Extras,
    pub(crate) poll_interval: Duration,
    pub(crate) stop: Option<watch::Receiver<bool>>,
}

/// A place among the watchers, and what its holder has seen.
struct Watcher {
    feed: Arc<Feed>,
    frames: watch::Receiver<Option<Arc<Frame>>>,
    stop: Option<watch::Receiver<bool>>,
    seen: Option<FrameId>,
    _place: OwnedSemaphorePermit,
}

impl Feed {
    pub(crate) fn new(config: FeedConfig) -> Arc<Self> {
        let FeedConfig { sources, proxies, extras, poll_interval, stop } = config;
        // Any number that another run of this process is unlikely to have.
        #[expect(clippy::cast_possible_truncation, reason = "half of a random number is one")]
        let epoch = RandomState::new().hash_one(0) as u32;
        Arc::new(Self {
            sources,
            proxies,
            extras,
            poll_interval,
            stop,
            epoch,
            newest: watch::Sender::new(None),
            places: Arc::new(Semaphore::new(MAX_WATCHERS)),
            state: Mutex::default(),
        })
    }

    /// Events for one page, beginning after `seen`, until it goes away or the console stops. `None`: all places are
    /// taken.
    pub(crate) fn watch(
        self: &Arc<Self>,
        seen: Option<FrameId>,
    ) -> Option<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let mut state = self.state();
        let mut frames = self.newest.subscribe();
        frames.mark_changed();
        if !state.polling {
            state.polling = true;
            // It ends by itself one interval after the last watcher left, and holds nothing that waits for its end.
            tokio::spawn(self.clone().poll());
        }
        drop(state);
        let watcher = Watcher { feed: self.clone(), frames, stop: self.stop.clone(), seen, _place: place };
        Some(unfold(watcher, Watcher::next))
    }

    /// One row's last five minutes.
    pub(crate) fn columns(&self, id: &RowId) -> Columns {
        self.state().series.columns(id)
    }

    /// Every row's last minute, as JSON.
    pub(crate) fn overview(&self) -> String {
        serde_json::to_string(&self.state().series.overview()).expect("strings and numbers only")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; and figures half updated are better than no console.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn poll(self: Arc<Self>) {
        debug!(brokers = self.sources.len(), proxies = self.proxies.len(), "polling begins");
        let mut ledgers = Ledgers::default();
        // Differences need two rounds: the first would show a standstill that is none.
        self.ask_all(&mut ledgers).await;
        let mut ticks = tokio::time::interval(self.poll_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let mut state = self.state();
            // Under the lock that a new watcher takes before it looks: one of the two sees the other.
            if self.newest.receiver_count() == 0 {
                state.polling = false;
                // The next watcher is not to see figures of long ago.
                self.newest.send_replace(None);
                debug!("polling ends");
                return;
            }
            drop(state);
            let found = self.ask_all(&mut ledgers).await;
            let mut state = self.state();
            state.series.push(&found.brokers, &found.rows);
            state.sequence += 1;
            let id = FrameId { epoch: self.epoch, sequence: state.sequence };
            drop(state);
            let before = self.newest.borrow().clone();
            self.newest.send_replace(Some(Arc::new(Frame::new(id, found, before.as_deref()))));
        }
    }

    /// One round: all at once, so that the slowest, not the sum, sets the pace.
    async fn ask_all(&self, ledgers: &mut Ledgers) -> Found {
        let Ledgers { brokers, proxies } = ledgers;
        let (found, proxies) = tokio::join!(self.ask_brokers(brokers), self.ask_proxies(proxies));
        Found { proxies, ..found }
    }

    async fn ask_proxies(&self, ledger: &mut NeighbourLedger) -> Vec<Proxy> {
        let ask = |source: &Source| {
            let Source { name, client } = source.clone();
            async move { (name, client.read::<NeighbourSnapshot>("/api/v1/neighbours").await) }
        };
        let answers = join_all(self.proxies.iter().map(ask)).await.into_iter();
        let view = |(name, answer): (Arc<str>, Result<NeighbourSnapshot, AdminError>)| match answer {
            Ok(snapshot) => ledger.view(name, snapshot),
            Err(error) => {
                ledger.forget(&name);
                Proxy::down(name, with_causes(&error))
            }
        };
        answers.map(view).collect()
    }

    async fn ask_brokers(&self, ledger: &mut Ledger) -> Found {
        let ask = |source: &Source| {
            let Source { name, client } = source.clone();
            async move { (name, client.read::<BrokerSnapshot>("/api/v1/snapshot").await) }
        };
        let mut brokers = Vec::with_capacity(self.sources.len());
        let mut snapshots = Vec::with_capacity(self.sources.len());
        for (name, answer) in join_all(self.sources.iter().map(ask)).await {
            match answer {
                Ok(snapshot) => {
                    brokers.push(Broker::up(name.clone(), &snapshot));
                    snapshots.push((name, snapshot));
                }
                Err(error) => brokers.push(Broker::down(name, with_causes(&error))),
            }
        }
        let (rows, left_out) = ledger.rows(&snapshots);
        Found { brokers, rows, proxies: Vec::new(), left_out, extras: self.extras }
    }
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            tokio::select! {
                () = stopped(&mut self.stop) => return None,
                changed = self.frames.changed() => changed.ok()?,
            }
            let Some(frame) = self.frames.borrow_and_update().clone() else { continue };
            if self.seen == Some(frame.id) {
                continue; // Reconnected within one interval: nothing is new.
            }
            let event = frame.event_after(self.seen.replace(frame.id));
            return Some((Ok(event), self));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        debug!(places_left = self.feed.places.available_permits(), "a watcher leaves");
    }
}

async fn stopped(stop: &mut Option<watch::Receiver<bool>>) {
    let Some(stop) = stop else { return std::future::pending().await };
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Whoever could have said stop is gone without saying it.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use futures_util::future::poll_fn;

    use super::*;

    fn feed() -> Arc<Feed> {
        let poll_interval = Duration::from_millis(250);
        let (sources, proxies) = (Vec::new(), Vec::new());
        Feed::new(FeedConfig { sources, proxies, extras: Extras::default(), poll_interval, stop: None })
    }

    async fn next(stream: &mut Pin<&mut impl Stream<Item = Result<Bytes, Infallible>>>) -> Bytes {
        let Ok(event) = poll_fn(|context| stream.as_mut().poll_next(context)).await.expect("it goes on");
        event
    }

    // Time is virtual here and nothing else happens, so it jumps from tick to tick.
    #[tokio::test(start_paused = true)]
    async fn the_poller_runs_only_while_somebody_watches() {
        let feed = feed();
        assert!(!feed.state().polling);
        let first = feed.watch(None).expect("a place");
        let second = feed.watch(None).expect("a place");
        assert!(feed.state().polling);
        next(&mut pin!(first)).await;
        assert!(feed.state().polling, "the second still watches");
        drop(second);
        tokio::time::advance(Duration::from_millis(600)).await;
        tokio::task::yield_now().await;
        assert!(!feed.state().polling);
        assert!(feed.newest.borrow().is_none(), "the next one sees nothing stale");

        let mut again = pin!(feed.watch(None).expect("a place"));
        assert!(next(&mut again).await.windows(11).any(|text| text == b"event: full"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_waits_for_a_frame_that_it_has_not_seen() {
        let feed = feed();
        let mut stream = pin!(feed.watch(None).expect("a place"));
        next(&mut stream).await;
        let newest = feed.newest.borrow().as_ref().expect("a frame").id;
        let mut again = pin!(feed.watch(Some(newest)).expect("a place"));
        let waits = poll_fn(|context| Poll::Ready(again.as_mut().poll_next(context).is_pending())).await;
        assert!(waits, "it has seen this frame");
        assert!(next(&mut again).await.windows(12).any(|text| text == b"event: delta"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_reads_slowly_skips_frames_and_is_whole_again() {
        let feed = feed();
        let mut slow = pin!(feed.watch(None).expect("a place"));
        let mut quick = pin!(feed.watch(None).expect("a place"));
        next(&mut slow).await;
        for _ in 0..10 {
            next(&mut quick).await;
        }
        // Not ten frames one after the other, but the newest as a whole; from there on differences again.
        let newest = feed.newest.borrow().as_ref().expect("a frame").id.sequence;
        let expected = |name: &str, sequence: u64| format!("id: {:x}-{sequence}\nevent: {name}\n", feed.epoch);
        assert!(next(&mut slow).await.starts_with(expected("full", newest).as_bytes()));
        assert!(next(&mut slow).await.starts_with(expected("delta", newest + 1).as_bytes()));
    }
}

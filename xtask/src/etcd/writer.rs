//! A writer of numbered limit changes: each of another limit, so that none hides another, and again until it is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use miette::Result;

use super::crew::{Broker, Site};
use crate::clock::{self, Stopwatch};
use crate::http;

/// Between two changes, so that a writer leaves some of the machine to what it changes.
const PAUSE: Duration = Duration::from_millis(50);
/// A change that is refused is asked for again after this time.
const AGAIN: Duration = Duration::from_millis(20);
/// Changes of a run at most. A broker holds 100,000 limits.
const CHANGES_MAX: u64 = 20_000;

/// A change that was acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) target: String,
    pub(super) burst: u64,
    /// From the first time that it was asked for until it was acknowledged.
    pub(super) took: Duration,
    /// Answers before that: each says that the store does not answer, or that it is not known what became of the change.
    pub(super) refused: u32,
}

/// A writer on a thread of its own.
#[derive(Debug)]
pub(super) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Made>>>,
}

impl Writer {
    /// Makes changes at the admin API of `broker`, each of them a limit whose name begins with `prefix`.
    pub(super) fn start(broker: &Arc<Broker>, prefix: &'static str) -> Self {
        let broker = Arc::clone(broker);
        Self::spawn(prefix, move |target, burst| {
            let body = format!("{{\"rate\": \"7/s\", \"burst\": {burst}}}");
            let answer = broker.ask("PUT", &format!("/api/v1/limits/{target}"), &body);
            answer.and_then(|answer| is_made(&answer))
        })
    }

    /// Makes them by the command line.
    pub(super) fn start_with_verb(site: Site, broker: &Arc<Broker>, prefix: &'static str) -> Self {
        let (broker, binary, folder) = (Arc::clone(broker), site.binary.to_owned(), site.folder.to_owned());
        Self::spawn(prefix, move |target, burst| {
            let site = Site { binary: &binary, folder: &folder };
            // Its exit code says whether it is made.
            Ok(broker.set_by_verb(site, target, burst).is_ok())
        })
    }

    fn spawn(prefix: &'static str, mut change: impl FnMut(&str, u64) -> Result<bool> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut made = Vec::new();
            for burst in 1..=CHANGES_MAX {
                if seen.load(Ordering::Relaxed) {
                    break;
                }
                let (target, watch, mut refused) = (format!("{prefix}{burst}"), Stopwatch::start(), 0);
                while !change(&target, burst)? {
                    refused += 1;
                    clock::rest(AGAIN);
                }
                made.push(Made { target, burst, took: watch.elapsed(), refused });
                clock::rest(PAUSE);
            }
            Ok(made)
        });
        Self { stop, thread }
    }

    /// What it made, once the last one is made.
    pub(super) fn finish(self) -> Result<Vec<Made>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a writer returns its errors")
    }
}

/// Whether a change is made; an answer that no store explains is an error.
fn is_made(answer: &http::Answer) -> Result<bool> {
    match answer.status {
        200 => Ok(true),
        503 => Ok(false),
        status => miette::bail!("a limit change is answered {status}: {}", answer.body),
    }
}

//! A thread that makes load, or answers it, until it is told to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::error::LoadError;

/// Tells a thread to end. It looks by itself, or is woken by whoever told it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopSign(Arc<AtomicBool>);

// Relaxed: the sign stands for itself, nothing else is published with it.
impl StopSign {
    pub(crate) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn put_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread of ours at work. It is stopped and joined when this is dropped.
#[derive(Debug)]
pub(crate) struct LoadThread {
    stop: StopSign,
    thread: Option<JoinHandle<Result<(), LoadError>>>,
}

impl LoadThread {
    /// Starts `work`, which ends when the sign that it is given is up.
    pub(crate) fn start<W>(name: &str, work: W) -> Result<Self, LoadError>
    where
        W: FnOnce(StopSign) -> Result<(), LoadError> + Send + 'static,
    {
        let stop = StopSign::default();
        let sign = stop.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(|| work(sign));
        Ok(Self { stop, thread: Some(thread.map_err(LoadError::os("start a thread"))?) })
    }

    /// False if it had to give up; [`stop`](Self::stop) says why.
    pub(crate) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Tells it to end and does not wait.
    pub(crate) fn tell_to_stop(&self) {
        self.stop.put_up();
    }

    /// Ends it; fails if it had given up before.
    pub(crate) fn stop(mut self) -> Result<(), LoadError> {
        self.tell_to_stop();
        self.join()
    }

    /// Waits for its end without telling it to.
    pub(crate) fn join(&mut self) -> Result<(), LoadError> {
        self.thread.take().map_or(Ok(()), |thread| thread.join().expect("a thread of load panicked"))
    }
}

impl Drop for LoadThread {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            // Who drops it does not ask how it went.
            let _ = thread.join();
        }
    }
}

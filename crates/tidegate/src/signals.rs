//! How the process is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGTERM and SIGINT, from now on: both ask for a clean end.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over. A second one does not cut the end short: messages are being saved.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let on = |kind| signal(kind).map_err(|error| Failure::new("cannot listen for signals").because(error));
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// Returns when one has come.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGUSR2, from now on: a successor is to be started.
pub(crate) fn upgrades() -> Result<Signal, Failure> {
    signal(SignalKind::user_defined2()).map_err(|error| Failure::new("cannot listen for signals").because(error))
}

/// SIGHUP, from now on: the configuration is to be read again.
pub(crate) struct Hangups(Signal);

impl Hangups {
    /// Takes the signal over.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let hangup = signal(SignalKind::hangup());
        hangup.map(Self).map_err(|error| Failure::new("cannot listen for signals").because(error))
    }

    /// Returns when one has come.
    pub(crate) async fn wait(&mut self) {
        if self.0.recv().await.is_none() {
            // No more will come.
            std::future::pending::<()>().await;
        }
    }

    /// Does `hangup` each time that one has come, until `end`, which waits for nothing that a hangup began.
    pub(crate) async fn follow(&mut self, end: impl Future<Output = ()>, mut hangup: impl AsyncFnMut()) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                () = self.wait() => {}
            }
            tokio::select! {
                () = &mut end => return,
                () = hangup() => {}
            }
        }
    }
}

//! Asks the system for the addresses of names, for all threads: of those that the proxy does not follow itself.

use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::watch;

use crate::machine::upstream::lookups::{Found, Lookups, Question, Reply};

/// What looks a name up, and blocks its thread for as long as that takes.
type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The system's lookups, shared by all threads of a proxy.
///
/// Each has a thread of its own, which ends with it: nothing waits for one that does not end, not even the end of the
/// proxy.
#[derive(Clone)]
pub(crate) struct System(Arc<Inner>);

struct Inner {
    lookups: Mutex<Lookups>,
    /// Lookups that ended.
    ended: watch::Sender<u64>,
    look_up: Box<LookUp>,
}

impl System {
    pub(crate) fn new() -> Self {
        // The port is none of its business.
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    /// Asks `look_up` in the place of the system.
    pub(super) fn with(look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let (lookups, ended) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner { lookups, ended, look_up: Box::new(look_up) }))
    }

    /// The addresses of a name. Those found before `spoilt` are known to be no good. Can be dropped at any time; the
    /// lookup goes on, for the next one that asks.
    pub(super) async fn addresses(&self, name: &str, spoilt: Option<Instant>) -> Found {
        let mut ended = self.0.ended.subscribe();
        let question = Question { began: clock::now(), spoilt };
        loop {
            let reply = self.0.lock().ask(name, question);
            match reply {
                Reply::Known(found) => return found,
                Reply::Soon => self.start(),
            }
            // This value holds the other end.
            let _ = ended.changed().await;
        }
    }

    /// Starts threads for those that wait.
    fn start(&self) {
        loop {
            let next = self.0.lock().next(clock::now());
            let Some(name) = next else { return };
            let (inner, first) = (Arc::clone(&self.0), name.clone());
            let builder = std::thread::Builder::new().name("lookup".to_owned());
            if let Err(error) = builder.spawn(move || inner.run(first)) {
                self.0.end(&name, Err(format!("no thread can be started for its lookup: {error}")));
            }
        }
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("System").field(&*self.0.lock()).finish()
    }
}

impl Inner {
    /// Looks names up while some wait.
    fn run(&self, first: String) {
        let mut next = Some(first);
        while let Some(name) = next {
            let found = (self.look_up)(&name).map_err(|error| error.to_string());
            self.end(&name, found);
            next = self.lock().next(clock::now());
        }
    }

    /// A lookup ended.
    fn end(&self, name: &str, found: Found) {
        self.lock().on_found(name, found, clock::now());
        self.ended.send_modify(|ended| *ended += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Lookups> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What all connections of a script share.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::Rng;
use tokio::sync::Semaphore;

use super::dial::{Dial, Link, Refused, Speaks};
use super::frame::Request;
use super::{AttackConfig, Script, Tally, flood, hello, slow, smuggling};

/// Handshakes at once: more only wait in the target's accept queue.
const OPENING_MAX: usize = 128;
/// After a connection was refused or closed: an attacker comes back, but not in a loop that only loads itself.
const PAUSE: Duration = Duration::from_millis(20);
/// The same for those that want to hold connections: ten thousand at once.
const PAUSE_OF_HOLDERS: Duration = Duration::from_secs(1);

/// Settings and counts of one thread's connections.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) dial: Dial,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) hello: Vec<u8>,
    pub(super) corpus: Vec<smuggling::Case>,
    tally: RefCell<Tally>,
    rng: RefCell<Rng>,
    opening: Semaphore,
}

/// An open connection, counted as such while this lives.
pub(super) struct Open<'a>(&'a Context);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.note(Tally::ended);
    }
}

impl Context {
    pub(super) fn new(config: &AttackConfig, dial: Dial, hello: Vec<u8>) -> Self {
        Self {
            dial,
            host: config.host.clone(),
            path: config.path.clone(),
            hello,
            corpus: if config.script == Script::Smuggling { smuggling::corpus() } else { Vec::new() },
            tally: RefCell::default(),
            rng: RefCell::new(Rng::new(config.seed)),
            opening: Semaphore::new(OPENING_MAX),
        }
    }

    /// Everything counted so far.
    pub(super) fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    /// Counts something.
    pub(super) fn note(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tally.borrow_mut());
    }

    /// A generator of its own for one connection.
    pub(super) fn rng(&self) -> Rng {
        self.rng.borrow_mut().split()
    }

    /// An HTTP/2 request of the attacker's.
    pub(super) fn request<'a>(&'a self, method: &'a str) -> Request<'a> {
        Request { method, is_tls: self.dial.is_tls(), authority: &self.host, path: &self.path }
    }

    /// Opens a connection up to its first byte of HTTP, or counts why not.
    pub(super) async fn open(&self, speaks: Speaks, receive_bytes: Option<u32>) -> Option<(Link, Open<'_>)> {
        let permit = self.opening.acquire().await;
        let opened = self.dial.open(speaks, receive_bytes).await;
        drop(permit);
        self.counted(opened)
    }

    /// The same, up to the first byte of TLS.
    pub(super) async fn open_tcp(&self) -> Option<(Link, Open<'_>)> {
        let permit = self.opening.acquire().await;
        let opened = self.dial.tcp(None).await.map(|stream| Box::new(stream) as Link);
        drop(permit);
        self.counted(opened)
    }

    fn counted(&self, opened: Result<Link, Refused>) -> Option<(Link, Open<'_>)> {
        match opened {
            Ok(link) => {
                self.note(Tally::opened);
                return Some((link, Open(self)));
            }
            Err(Refused::Here(error)) => self.note(|tally| tally.missing(&error)),
            Err(Refused::There) => self.note(|tally| tally.refused_connections += 1),
        }
        None
    }
}

/// One connection after the other, until the runtime that drives this is dropped.
pub(super) async fn repeat(context: Rc<Context>, script: Script, number: usize) {
    let is_odd = number % 2 == 1;
    loop {
        match script {
            Script::RapidReset => flood::rapid_reset(&context).await,
            Script::ContinuationFlood => flood::continuation(&context, is_odd).await,
            Script::SettingsFlood => flood::settings(&context, is_odd).await,
            Script::PingFlood => flood::ping(&context, is_odd).await,
            Script::WindowUpdateFlood => flood::window_update(&context).await,
            Script::ZeroLengthData => flood::zero_length_data(&context).await,
            Script::HeaderBomb => flood::header_bomb(&context).await,
            Script::Slowloris => slow::slowloris(&context).await,
            Script::SlowRead => slow::slow_read(&context, is_odd).await,
            Script::FdExhaustion => slow::idle(&context).await,
            Script::HandshakeFlood => hello::flood(&context).await,
            Script::HelloGarbage => hello::garbage(&context).await,
            Script::Smuggling => smuggling::attack(&context, number).await,
        }
        let pause = if script.holds() { PAUSE_OF_HOLDERS } else { PAUSE };
        if script.holds() || !script.is_quick() {
            tokio::time::sleep(pause).await;
        } else {
            // A connection of these scripts lasts a round trip; others are to have their turn.
            tokio::task::yield_now().await;
        }
    }
}

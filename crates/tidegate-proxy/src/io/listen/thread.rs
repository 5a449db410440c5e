//! What the tasks of one thread share.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use http::{HeaderValue, StatusCode};
use tidegate_core::Rng;
use tokio::sync::Notify;

use super::cpu::{self, CpuBudget};
use super::ports::Door;
use super::refused;
use super::seats::{Seat, Seats};
use super::settings::Settings;
use super::signer::Signer;
use super::starts::Starts;
use crate::io::conn::account::Account;
use crate::io::conn::limiter::Limiter;
use crate::io::conn::timers::Timers;
use crate::io::conn::waits::Waits;
use crate::io::http1::client::Link;
use crate::io::listen::settings::InForce;
use crate::io::request::access_log::Lines;
use crate::io::request::times::{Published, Times};
use crate::io::request::whose::Whose;
use crate::io::spool::folder::Spool;
use crate::io::upstream::{UpstreamState, Upstreams};

/// What all threads of the proxy share. Nothing in here is touched for a request.
#[derive(Debug)]
pub(crate) struct Shared {
    /// What each thread counted, written by it now and then.
    pub(crate) counts: Vec<Mutex<Counts>>,
    /// The response times that each thread counted, likewise.
    pub(crate) times: Vec<Mutex<Published>>,
    /// What the process may use of the processors, as last seen.
    pub(crate) cpu: cpu::Seen,
}

/// What a thread counted since the proxy began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Open now.
    pub(crate) connections: u64,
    /// By [`Total`].
    pub(crate) totals: [u64; Total::COUNT],
    /// By route; of those in force when it was written.
    pub(crate) requests: Vec<u64>,
    /// Their names.
    pub(crate) routes: Arc<[String]>,
    /// By the first digit of the status.
    pub(crate) responses: [u64; 6],
    /// As the thread sees them.
    pub(crate) upstreams: Vec<UpstreamState>,
}

/// What is counted over all threads, from when the proxy began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Total {
    /// Connections.
    Accepted,
    /// Handshakes that ended well.
    Handshakes,
    /// Handshakes that did not.
    HandshakesFailed,
    /// Handshakes that resumed a session, of those that ended well.
    Resumed,
    /// Connections that were refused at their `ClientHello`.
    RefusedAtHello,
    /// Handshakes beyond their tenants' shares.
    Beyond,
    /// Clients that took too long.
    TimedOut,
    /// Times that there was no file descriptor left.
    OutOfFiles,
    /// Requests that broke the rules.
    Malformed,
    /// Lines that the access log leaves out, as it is told to.
    Unlogged,
}

impl Counts {
    /// None of anything so far, of the routes in `settings`.
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut counts = Self::default();
        counts.set_routes(settings);
        counts
    }

    fn set_routes(&mut self, settings: &Settings) {
        let names = settings.config.routes.iter().map(|route| route.name.clone());
        let routes: Arc<[String]> = names.collect();
        self.requests = routes.iter().map(|name| self.requests_of(name)).collect();
        self.routes = routes;
    }

    /// Requests of the route of this name. O(routes).
    pub(crate) fn requests_of(&self, name: &str) -> u64 {
        let place = self.routes.iter().position(|route| route == name);
        place.and_then(|place| self.requests.get(place)).copied().unwrap_or(0)
    }
}

impl Total {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Unlogged as usize + 1;
}

/// One core's.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: RefCell<Rc<InForce>>,
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) timers: Rc<Timers>,
    pub(crate) upstreams: Rc<Upstreams<Link>>,
    /// Where handshakes beyond their tenants' shares are computed, if not here.
    pub(crate) signer: Option<Rc<Signer>>,
    /// What is left of the core's part of a quota.
    pub(crate) budget: Rc<CpuBudget>,
    pub(crate) spool: RefCell<Option<Arc<Spool>>>,
    pub(crate) lines: RefCell<Option<Lines>>,
    pub(crate) connections: Cell<usize>,
    /// Held by each task that will be a connection and has not begun.
    pub(crate) beginning: Rc<()>,
    pub(crate) seats: Rc<Seats>,
    /// Handshakes that are computed here.
    pub(crate) starts: Rc<Starts>,
    /// Requests that wait until their tenants may have more.
    pub(crate) waits: Rc<Waits>,
    /// What it costs to take a connection and to refuse it, in nanoseconds, as far as is known.
    pub(crate) refusal_ns: Cell<u64>,
    /// What it costs to take a connection without TLS, in nanoseconds, as far as is known. It is known whose it is afterwards.
    pub(crate) taking_ns: Cell<u64>,
    /// Refused, and not ended yet: when they are is up to who takes connections.
    pub(crate) refused: refused::Waiting,
    /// Woken when the last connection ends, and when the proxy is told to stop.
    pub(crate) changed: Rc<Notify>,
    pub(crate) draining: Cell<bool>,
    /// Copied to the shared ones now and then.
    pub(crate) counts: RefCell<Counts>,
    /// Likewise.
    pub(crate) times: RefCell<Times>,
    /// For ids of traces, and for which requests have a line in the access log.
    pub(crate) rng: RefCell<Rng>,
}

impl Thread {
    /// The settings in force.
    pub(crate) fn settings(&self) -> Rc<InForce> {
        Rc::clone(&self.settings.borrow())
    }

    /// Counts one more.
    pub(crate) fn count(&self, total: Total) {
        self.counts.borrow_mut().totals[total as usize] += 1;
    }

    /// Puts `settings` in force. Routes keep their counts by their names.
    pub(crate) fn put_in_force(&self, settings: Arc<Settings>) {
        self.counts.borrow_mut().set_routes(&settings);
        self.times.borrow_mut().set_names(&settings);
        *self.settings.borrow_mut() = Rc::new(InForce(settings));
    }

    /// Counts a request of a route.
    pub(crate) fn count_request(&self, route: usize) {
        self.counts.borrow_mut().requests[route] += 1;
    }

    /// Counts an answer.
    pub(crate) fn count_response(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).min(5);
        self.counts.borrow_mut().responses[class] += 1;
    }
}

/// A client's connection, as everything that happens on it needs it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) thread: Rc<Thread>,
    pub(crate) account: Rc<Account>,
    /// Whose its last request was.
    pub(crate) whose: Whose,
    pub(crate) origin: Origin,
    /// The client's address, as headers want it.
    pub(crate) address: HeaderValue,
    pub(crate) seat: Rc<Seat>,
    /// The gate of a rule for this name in the `ClientHello`; left when the connection ends.
    _pass: Option<crate::io::request::gate::Pass>,
    /// The gates of routes that count connections; left when the connection ends.
    pub(crate) tracked: crate::io::request::gate::Tracked,
    /// Requests on it so far.
    pub(crate) requests: Cell<u64>,
    /// It takes no more requests.
    pub(crate) ends: Cell<bool>,
}

/// Where a connection came from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The client, as the PROXY protocol names it if it is believed.
    pub(crate) client: SocketAddr,
    /// Where it connected to.
    pub(crate) local: SocketAddr,
    /// What held where it came in.
    pub(crate) door: Rc<Door>,
    /// The name in the `ClientHello`, in lower case.
    pub(crate) sni: Option<Box<str>>,
    /// Whether TLS is spoken.
    pub(crate) tls: bool,
}

impl Connection {
    /// `origin` on `thread`, in `seat`, paid for by `account`; inside the gate of `pass`.
    pub(crate) fn new(
        thread: Rc<Thread>,
        seat: Rc<Seat>,
        account: Rc<Account>,
        origin: Origin,
        pass: Option<crate::io::request::gate::Pass>,
    ) -> Rc<Self> {
        thread.connections.set(thread.connections.get() + 1);
        let address = address_value(origin.client.ip());
        Rc::new(Self {
            thread,
            seat,
            account,
            whose: Whose::default(),
            origin,
            address,
            _pass: pass,
            tracked: crate::io::request::gate::Tracked::default(),
            requests: Cell::new(0),
            ends: Cell::new(false),
        })
    }

    /// Whether it takes one request more at most: the proxy stops, or its port is closed.
    pub(crate) fn is_last(&self) -> bool {
        self.thread.draining.get() || self.origin.door.is_closed()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let connections = self.thread.connections.get() - 1;
        self.thread.connections.set(connections);
        if connections == 0 {
            self.thread.changed.notify_waiters();
        }
    }
}

fn address_value(address: IpAddr) -> HeaderValue {
    HeaderValue::try_from(address.to_canonical().to_string()).expect("addresses are digits, letters, dots and colons")
}

//! One request's slot at one server.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;
use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::endpoint::{Announced, ConnectError};
use super::{Keep, Look, Started, Upstream};
use crate::config::{Server, UpstreamProtocol};
use crate::io::conn::pace::Sent;
use crate::io::conn::server_stream::ServerStream;
use crate::machine::upstream::{Call, Client, Failure, Flow, Pool, Replay, Tried, may_retry};

/// A slot at a server. Dropping it gives the slot to the next in line, and says nothing about the server.
#[derive(Debug)]
pub(crate) struct Lease<C: Keep> {
    upstream: Rc<Upstream<C>>,
    server: usize,
    flow: Flow,
    tried: Tried,
    announced: Option<Rc<Announced>>,
    /// The slot is somebody else's to give back.
    handed_over: bool,
    /// The place of the connection of HTTP/2 that it shares.
    shared: Option<usize>,
    /// How and when it began, until the head of its answer came.
    call: Option<(Call, Instant)>,
    /// If it does not count as such yet: its client still sends it.
    sending: Option<Rc<Sending<C>>>,
}

/// A request that its client still sends.
#[derive(Debug)]
struct Sending<C: Keep> {
    upstream: Rc<Upstream<C>>,
    flow: Flow,
    group: u8,
    is_over: Cell<bool>,
    call: Cell<Option<(Call, Instant)>>,
}

impl<C: Keep> Sending<C> {
    /// How and when it began to count, if it did. It does not any more.
    fn end(&self) -> Option<(Call, Instant)> {
        self.is_over.set(true);
        self.call.take()
    }
}

impl<C: Keep> Sent for Sending<C> {
    fn sent(&self) {
        // An answer may come before the last byte of the request.
        if !self.is_over.replace(true) {
            self.call.set(Some(self.upstream.sent(self.flow, self.group)));
        }
    }
}

/// What is to be given back when an exchange ends.
#[derive(Debug)]
pub(super) struct HandedOver {
    server: usize,
    flow: Flow,
    announced: Option<Rc<Announced>>,
}

impl<C: Keep> Lease<C> {
    pub(super) fn new(
        upstream: Rc<Upstream<C>>,
        Started { server, call }: Started,
        began: Instant,
        flow: Flow,
        tried: Tried,
        announced: Option<Rc<Announced>>,
    ) -> Self {
        let call = Some((call, began));
        Self { upstream, server, flow, tried, announced, handed_over: false, shared: None, call, sending: None }
    }

    /// The server, as configured.
    pub(crate) fn server(&self) -> &Server {
        self.upstream.endpoints[self.server].server()
    }

    /// What is spoken with it.
    pub(crate) fn protocol(&self) -> UpstreamProtocol {
        self.upstream.settings.protocol
    }

    /// A connection that waited for this request, the newest first; `None` if there is none.
    pub(crate) fn reuse(&self, look: Look) -> Option<C> {
        self.upstream.state.borrow_mut().idle.take(self.server, self.key(), look, clock::now())
    }

    /// The scheme of requests to it.
    pub(super) fn scheme(&self) -> &'static str {
        if self.upstream.settings.tls.is_some() { "https" } else { "http" }
    }

    /// A new connection; the PROXY header has been sent if there is one, and TLS is spoken if it is to be. In time, or not
    /// at all.
    pub(crate) async fn connect(&self) -> Result<ServerStream, ConnectError> {
        self.make_room();
        let settings = &self.upstream.settings;
        let endpoint = &self.upstream.endpoints[self.server];
        let preface = self.announced.as_ref().map(|announced| announced.header(settings.announce)).unwrap_or_default();
        let connected = endpoint.connect(&preface, settings.connect_timeout).await;
        if let Err(error) = &connected {
            tracing::debug!(upstream = settings.name, server = %self.server(), %error, "no connection");
            self.unreachable();
        }
        connected
    }

    /// The connection broke in an exchange: if TLS says why, so does the log.
    pub(super) fn broke(&self, error: &std::io::Error) {
        self.upstream.endpoints[self.server].warn_if_alerted(error);
    }

    /// How long a connection may take.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.upstream.settings.connect_timeout
    }

    /// It took longer.
    pub(super) fn timed_out(&self) -> ConnectError {
        ConnectError::TimedOut { server: self.server().clone(), timeout: self.connect_timeout() }
    }

    /// The server answered `client`: the head is there.
    pub(crate) fn answered(&mut self, status: StatusCode, client: Client) {
        if let Some((call, began)) = self.take_call() {
            self.upstream.answered(self.flow, call, began);
        }
        if self.upstream.settings.pool.failure_statuses.contains(&status.as_u16()) {
            let (flow, now) = (self.flow, clock::now());
            self.upstream.report(self.server, |pool, server| pool.on_failure_status(server, flow, client, now));
        } else {
            self.upstream.report(self.server, Pool::on_success);
        }
    }

    /// It ends without an answer.
    fn end_call(&mut self) {
        if self.take_call().is_some() {
            self.upstream.gone(self.flow);
        }
    }

    fn take_call(&mut self) -> Option<(Call, Instant)> {
        self.call.take().or_else(|| self.sending.take()?.end())
    }

    /// The server broke off, or did not answer in time.
    pub(crate) fn fail(&self) {
        let (flow, now) = (self.flow, clock::now());
        self.upstream.report(self.server, |pool, server| pool.on_no_answer(server, flow, now));
    }

    /// The server could not be reached.
    fn unreachable(&self) {
        let now = clock::now();
        self.upstream.report(self.server, |pool, server| pool.on_failure(server, now));
        self.upstream.known.unreachable(&self.upstream.settings.name, self.server());
    }

    /// The slot ends with an exchange: `Home::ended` of the upstream, with this ticket, gives it back.
    pub(super) fn hand_over(&mut self) -> u64 {
        self.handed_over = true;
        let handed_over = HandedOver { server: self.server, flow: self.flow, announced: self.announced.clone() };
        self.upstream.state.borrow_mut().exchanges.insert(handed_over) as u64
    }

    /// The try failed: which servers a next one should avoid, or `None` if there may be none. Takes from the budget.
    pub(crate) fn retry(&self, method: &str, failure: Failure, replay: Replay) -> Option<Tried> {
        let settings = &self.upstream.settings.pool.retry;
        let tried = self.tried.and(self.server);
        let allowed = tried.len() < usize::from(settings.tries)
            && may_retry(method, failure, replay, &settings.statuses)
            && self.upstream.try_retry(self.flow);
        allowed.then_some(tried)
    }

    pub(super) fn upstream(&self) -> &Rc<Upstream<C>> {
        &self.upstream
    }

    pub(super) fn place(&self) -> usize {
        self.server
    }

    /// The place of the connection that it shares with others of its tenant, until the lease is dropped.
    pub(super) fn share(&mut self) -> usize {
        let begin = || self.upstream.http2.begin(self.server, self.flow);
        *self.shared.get_or_insert_with(begin)
    }

    /// True if the server is told about a client.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Whom the server is told about, if it is told at all.
    fn key(&self) -> Option<&Announced> {
        self.announced.as_deref()
    }

    /// A connection for another client may hold the place that this one needs.
    fn make_room(&self) {
        let state = &mut *self.upstream.state.borrow_mut();
        let max = self.upstream.settings.pool.servers[self.server].max_connections as usize;
        let active = state.pool.active(self.server) as usize;
        while active + state.idle.count(self.server) > max {
            if state.idle.count(self.server) == 0 {
                return;
            }
            state.idle.drop_oldest(self.server);
        }
    }
}

impl<C: Keep + 'static> Lease<C> {
    /// How long its answer takes is for its client to say, who still sends, until what is returned hears of the end of
    /// that.
    pub(super) fn is_its_clients(&mut self, group: u8) -> Rc<dyn Sent> {
        self.end_call();
        let (upstream, flow) = (Rc::clone(&self.upstream), self.flow);
        let sending = Sending { upstream, flow, group, is_over: Cell::default(), call: Cell::default() };
        Rc::clone(self.sending.insert(Rc::new(sending))) as Rc<dyn Sent>
    }
}

impl<C: Keep> Drop for Lease<C> {
    fn drop(&mut self) {
        self.end_call();
        if let Some(place) = self.shared {
            self.upstream.http2.end(self.server, place, clock::now());
        }
        if !self.handed_over {
            self.upstream.give_back(self.server, self.flow);
        }
    }
}

impl<C: Keep> Upstream<C> {
    /// The exchange `ticket` ended; `connection` is there if it can be used again.
    pub(super) fn end(&self, ticket: u64, connection: Option<C>) {
        let place = usize::try_from(ticket).expect("a ticket is a place in a slab");
        // Each exchange tells its end once, and its ticket came from here.
        let HandedOver { server, flow, announced } = self.state.borrow_mut().exchanges.remove(place);
        if let Some(connection) = connection {
            self.state.borrow_mut().idle.put(connection, server, announced, clock::now());
        }
        self.give_back(server, flow);
    }
}

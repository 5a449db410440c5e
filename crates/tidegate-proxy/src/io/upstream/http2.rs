//! Connections that many requests share.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor as _;
use hyper_util::rt::TokioIo;
use tidegate_core::Instant;
use tokio::sync::Mutex;

use super::peer::{Heard, Peer};
use super::tasks::{Payer, Tasks};
use crate::io::conn::account::Account;
use crate::io::conn::meter;
use crate::io::conn::server_stream::ServerStream;
use crate::io::conn::timers::Timer;
use crate::io::http1::client::Patience;
use crate::io::request::body::RequestBody;
use crate::io::request::error::BodyError;
use crate::io::upstream::broken::Broken;
use crate::machine::upstream::{Begun, Connections, ConnectionsTuning, Flow};

/// What requests are sent with.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) requests: SendRequest<Clocked>,
    pub(super) peer: Rc<Peer>,
    pub(super) tasks: Tasks,
}

/// Bytes of an answer that may wait for its client. Half of it is asked for at a time, so a server 1 ms away may send 64 to
/// 128 MB/s for one client.
const STREAM_WINDOW: u32 = 128 * 1024;

/// Bytes of the head of an answer, decoded; as many as over HTTP/1.
const HEAD_MAX: u32 = 64 * 1024;

/// The connections to each server, as [`Connections`] says who shares them.
#[derive(Debug)]
pub(super) struct Shared {
    servers: Vec<RefCell<Open>>,
    streams: u32,
}

#[derive(Debug)]
struct Open {
    machine: Connections,
    /// By their places.
    slots: Vec<Slot>,
}

#[derive(Default, Debug)]
struct Slot {
    sender: Option<Sender>,
    /// Who opens a connection; the others wait for it instead of opening their own.
    opening: Rc<Mutex<()>>,
}

impl Shared {
    /// No connection to any server.
    pub(super) fn new(servers: usize, tuning: ConnectionsTuning) -> Self {
        let open = || RefCell::new(Open { machine: Connections::new(tuning), slots: Vec::new() });
        Self { servers: (0..servers).map(|_| open()).collect(), streams: tuning.streams.max(1) }
    }

    /// A request of `flow` begins: the place of its connection to the server at this place of the list.
    pub(super) fn begin(&self, server: usize, flow: Flow) -> usize {
        let open = &mut *self.servers[server].borrow_mut();
        let Begun { place, is_new } = open.machine.begin(flow.claimant, flow.tenant);
        if open.slots.len() <= place {
            open.slots.resize_with(place + 1, Slot::default);
        }
        if is_new {
            // A connection that nobody holds any more ends by itself.
            open.slots[place] = Slot::default();
        }
        place
    }

    /// It is over.
    pub(super) fn end(&self, server: usize, place: usize, now: Instant) {
        self.servers[server].borrow_mut().machine.on_end(place, now);
    }

    /// Closes connections that had no requests for too long.
    pub(super) fn sweep(&self, now: Instant) {
        for open in &self.servers {
            let open = &mut *open.borrow_mut();
            while let Some(place) = open.machine.expire(now) {
                open.slots[place] = Slot::default();
            }
        }
    }

    /// The open connection at this place; its server may close it at any time.
    pub(super) fn open(&self, server: usize, place: usize) -> Option<Sender> {
        let kept = &mut self.servers[server].borrow_mut().slots[place].sender;
        if kept.as_ref().is_some_and(|kept| kept.requests.is_closed()) {
            *kept = None;
        }
        kept.clone()
    }

    pub(super) fn keep(&self, server: usize, place: usize, connection: &Sender) {
        self.servers[server].borrow_mut().slots[place].sender = Some(connection.clone());
    }

    pub(super) fn opening(&self, server: usize, place: usize) -> Rc<Mutex<()>> {
        Rc::clone(&self.servers[server].borrow().slots[place].opening)
    }

    /// Whether requests of several tenants may share the connection at this place.
    pub(super) fn is_common(&self, server: usize, place: usize) -> bool {
        self.servers[server].borrow().machine.is_common(place)
    }

    /// Speaks HTTP/2 over `stream`; the connection lives until it is closed and the last handle to it is gone. `owner`
    /// pays for it, if it is one tenant's.
    pub(super) async fn handshake(&self, stream: ServerStream, owner: Option<Rc<Account>>) -> hyper::Result<Sender> {
        let window = STREAM_WINDOW.saturating_mul(self.streams);
        handshake(stream, (STREAM_WINDOW, window), Tasks::new(owner)).await
    }
}

/// Windows in bytes: of a stream, and of all streams together.
async fn handshake(stream: ServerStream, (of_stream, of_all): (u32, u32), tasks: Tasks) -> hyper::Result<Sender> {
    let mut builder = http2::Builder::new(tasks.clone());
    builder.initial_stream_window_size(of_stream).initial_connection_window_size(of_all);
    builder.max_header_list_size(HEAD_MAX);
    let (stream, peer) = Heard::new(stream);
    let (requests, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // Its end shows in every handle to it.
    tasks.execute(async { drop(connection.await) });
    Ok(Sender { requests, peer, tasks })
}

/// A request's body on its way to a server: tells the request's timer for whom it waits.
#[derive(Debug)]
pub(super) struct Clocked {
    body: RequestBody,
    timer: Rc<Timer>,
    patience: Patience,
    broken: Broken,
    /// Until the connection has begun with it.
    payer: Option<Payer>,
}

impl Clocked {
    /// `timer` is this request's only: it fires when the server takes nothing of `body` for too long, or does not answer
    /// in time when it has all of it. Who sends the body has time-outs of his own.
    pub(super) fn new(body: RequestBody, timer: Rc<Timer>, patience: Patience, payer: Payer) -> Self {
        let span = if body.is_end_stream() { patience.first_byte } else { patience.idle };
        timer.set(meter::now() + span);
        Self { body, timer, patience, broken: Broken::default(), payer: Some(payer) }
    }

    /// What will be known if it breaks off.
    pub(super) fn broken(&self) -> Broken {
        self.broken.clone()
    }

    /// The body again, which was not sent.
    pub(super) fn into_inner(mut self) -> RequestBody {
        std::mem::replace(&mut self.body, RequestBody::Empty)
    }
}

impl Body for Clocked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(payer) = this.payer.take() {
            payer.announce();
        }
        let polled = Pin::new(&mut this.body).poll_frame(context);
        match &polled {
            Poll::Pending => this.timer.clear(),
            Poll::Ready(_) => this.timer.set(meter::now() + this.patience.idle),
        }
        let Poll::Ready(Some(Err(error))) = polled else { return polled };
        this.broken.0.set(Some(error));
        Poll::Ready(Some(Err(BodyError::Cut)))
    }

    fn is_end_stream(&self) -> bool {
        if let Some(payer) = &self.payer {
            payer.announce();
        }
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Clocked {
    fn drop(&mut self) {
        // The connection has all of it, or wants no more.
        self.timer.set(meter::now() + self.patience.first_byte);
    }
}

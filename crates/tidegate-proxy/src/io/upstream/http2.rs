//! Connections that many requests share.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::{Keep, Lease};
use crate::io::body::{BodyError, RequestBody};
use crate::io::http1::client::Patience;
use crate::io::meter::{self, Common};
use crate::io::timers::Timer;

/// What requests are sent with.
pub(super) type Sender = SendRequest<Clocked>;

/// The connection to each server, if there is one.
#[derive(Debug)]
pub(super) struct Shared {
    servers: Vec<RefCell<Option<Sender>>>,
    /// Who opens a connection; the others wait for it instead of opening their own.
    opening: Vec<Rc<Mutex<()>>>,
}

impl Shared {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            servers: (0..servers).map(|_| RefCell::new(None)).collect(),
            opening: (0..servers).map(|_| Rc::default()).collect(),
        }
    }

    /// The open connection to the server at this place; no clock says how long it is kept: its server does.
    pub(super) fn open(&self, server: usize) -> Option<Sender> {
        let mut kept = self.servers[server].borrow_mut();
        if kept.as_ref().is_some_and(SendRequest::is_closed) {
            *kept = None;
        }
        kept.clone()
    }

    pub(super) fn keep(&self, server: usize, connection: &Sender) {
        *self.servers[server].borrow_mut() = Some(connection.clone());
    }

    pub(super) fn opening(&self, server: usize) -> Rc<Mutex<()>> {
        Rc::clone(&self.opening[server])
    }
}

/// Speaks HTTP/2 over `stream`; the connection lives until it is closed and the last handle to it is gone.
pub(super) async fn handshake(stream: TcpStream) -> hyper::Result<Sender> {
    let (sender, connection) = http2::handshake(Local, TokioIo::new(stream)).await?;
    // Its end shows in every handle to it. Requests of many share it, so its time is nobody's.
    drop(tokio::task::spawn_local(Common::new(async { drop(connection.await) })));
    Ok(sender)
}

/// Runs what HTTP/2 connections spawn on the thread that has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local;

impl<F: Future<Output = ()> + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        // The task ends with its connection.
        drop(tokio::task::spawn_local(Common::new(task)));
    }
}

/// A request's body on its way to a server: tells the request's timer for whom it waits.
#[derive(Debug)]
pub(super) struct Clocked {
    body: RequestBody,
    timer: Rc<Timer>,
    patience: Patience,
}

impl Clocked {
    /// `timer` is this request's only: it fires when the server takes nothing of `body` for too long, or does not answer
    /// in time when it has all of it. Who sends the body has time-outs of his own.
    pub(super) fn new(body: RequestBody, timer: Rc<Timer>, patience: Patience) -> Self {
        let span = if body.is_end_stream() { patience.first_byte } else { patience.idle };
        timer.set(meter::now() + span);
        Self { body, timer, patience }
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
        let polled = Pin::new(&mut this.body).poll_frame(context);
        match &polled {
            Poll::Pending => this.timer.clear(),
            Poll::Ready(_) => this.timer.set(meter::now() + this.patience.idle),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
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

/// The body of an answer that holds a slot of its server until it ends or is dropped.
#[derive(Debug)]
pub(crate) struct Leased<C: Keep> {
    body: Incoming,
    lease: Option<Lease<C>>,
}

impl<C: Keep> Leased<C> {
    pub(super) fn new(body: Incoming, lease: Lease<C>) -> Self {
        let lease = if body.is_end_stream() { None } else { Some(lease) };
        Self { body, lease }
    }
}

impl<C: Keep> Body for Leased<C>
where
    Self: Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(frame) = &frame {
            match (frame, &self.lease) {
                (Some(Ok(_)), _) => {}
                (Some(Err(_)), Some(lease)) => {
                    lease.fail();
                    self.lease = None;
                }
                _ => self.lease = None,
            }
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

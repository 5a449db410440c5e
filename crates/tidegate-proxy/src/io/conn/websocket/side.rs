//! The two ends of a tunnel.

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::{JoinHandle, spawn_local};

use crate::io::conn::account::{Account, Bill};
use crate::io::conn::meter::{self, Metered};
use crate::io::conn::server_stream::ServerStream;
use crate::io::conn::transport::Transport;
use crate::io::http1::client::{Link, Slot};
use crate::io::request::response::ResponseBody;
use crate::io::upstream::{Lease, Opened};

/// Bytes that are read at once, and so held in each direction.
const PIECE_MAX: usize = 16 * 1024;

/// One end of a tunnel. What moves there is put on the account of whoever pays.
pub(crate) trait Side {
    /// Appends what came to `buffer`; 0 at the end.
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>>;
    /// Sends some of `bytes`, which are not empty.
    fn poll_push(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Ready when more may be sent.
    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Tells the peer that nothing more is sent.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Ready when the peer broke off though nothing is read from it.
    fn poll_broken(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// A client of HTTP/1. Its connection charges for what moves there.
impl Side for &RefCell<Transport> {
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        self.borrow_mut().poll_fill(context, buffer)
    }

    fn poll_push(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.borrow_mut().poll_push(context, &[IoSlice::new(bytes)])
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.borrow_mut().poll_flushed(context)
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.borrow_mut()).poll_shutdown(context)
    }
}

/// A server at the other end of a tunnel, and its slot there, held as long.
#[derive(Debug)]
pub(crate) enum Far {
    /// Of HTTP/1: the connection is the tunnel's.
    Socket { stream: ServerStream, account: Rc<Account>, slot: Option<Slot> },
    /// Of HTTP/2.
    Stream { stream: Box<Stream>, lease: Lease<Link> },
}

impl Far {
    /// The server whose answer of 101 has this body, and what it sent behind its head. `account` pays. `None` if there is
    /// none: the answer is of another kind.
    pub(crate) fn of(body: ResponseBody, account: &Rc<Account>) -> Option<(Self, BytesMut)> {
        let account = Rc::clone(account);
        match body {
            ResponseBody::Upstream(body) => {
                let (stream, early, slot) = body.into_socket()?;
                Some((Self::Socket { stream, account, slot }, early))
            }
            ResponseBody::Tunnel(opened) => {
                let Opened { upgraded, lease } = *opened;
                let stream = Box::new(Stream::new(upgraded, Payer::Server(account), None));
                Some((Self::Stream { stream, lease }, BytesMut::new()))
            }
            _ => None,
        }
    }

    /// Breaks off: the server is not to take what it has for all there was. A stream that is dropped in the middle is reset.
    pub(crate) fn reset(self) {
        match self {
            Self::Socket { stream, slot, .. } => {
                // It is closed in any case.
                let _ = rustix::net::sockopt::set_socket_linger(stream.socket(), Some(Duration::ZERO));
                drop((stream, slot));
            }
            Self::Stream { stream, lease } => drop((stream, lease)),
        }
    }
}

impl Side for Far {
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        match self {
            Self::Socket { stream, account, .. } => {
                let read = ready!(fill(Pin::new(stream), context, buffer))?;
                account.add_bytes(read as u64);
                Poll::Ready(Ok(read))
            }
            Self::Stream { stream, .. } => stream.poll_fill(context, buffer),
        }
    }

    fn poll_push(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Socket { stream, account, .. } => {
                let written = ready!(Pin::new(stream).poll_write(context, bytes))?;
                account.add_bytes(written as u64);
                Poll::Ready(Ok(written))
            }
            Self::Stream { stream, .. } => stream.poll_push(context, bytes),
        }
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket { stream, .. } => Pin::new(stream).poll_flush(context),
            Self::Stream { stream, .. } => stream.poll_flushed(context),
        }
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket { stream, .. } => Pin::new(stream).poll_shutdown(context),
            Self::Stream { stream, .. } => stream.poll_end(context),
        }
    }
}

fn fill(stream: Pin<&mut impl AsyncRead>, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
    ready!(meter::poll_turn(context));
    let mut piece = [MaybeUninit::uninit(); PIECE_MAX];
    let mut came = ReadBuf::uninit(&mut piece);
    ready!(stream.poll_read(context, &mut came))?;
    buffer.extend_from_slice(came.filled());
    Poll::Ready(Ok(came.filled().len()))
}

/// Whether a stream was reset with `NO_ERROR`: servers say so behind the end of an answer if they want no more of the request
/// (RFC 9113, section 8.1).
fn is_no_error(error: &io::Error) -> bool {
    let mut cause = error.get_ref().map(|error| error as &(dyn Error + 'static));
    while let Some(error) = cause {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            return h2.reason() == Some(h2::Reason::NO_ERROR);
        }
        cause = error.source();
    }
    false
}

/// Who pays for what moves on a stream.
#[derive(Debug)]
enum Payer {
    /// A client's stream, of a connection with an account of its own.
    Client(Bill),
    /// The tenant for which a server's stream was opened.
    Server(Rc<Account>),
}

/// A stream of HTTP/2 that became a tunnel.
#[derive(Debug)]
pub(crate) struct Stream {
    io: TokioIo<Upgraded>,
    payer: Payer,
    sending: Option<Rc<Sending>>,
    /// It seemed to end, and others had their turn since.
    seemed_ended: bool,
    /// The peer is told that nothing more is sent.
    ending: bool,
    /// The peer ended, and said that it wants no more either: what is sent to it goes nowhere.
    wants_no_more: bool,
}

impl Stream {
    /// A client's, on whose `bill` it is put.
    pub(crate) fn of_client(upgraded: Upgraded, bill: Bill, sending: Rc<Sending>) -> Self {
        Self::new(upgraded, Payer::Client(bill), Some(sending))
    }

    fn new(upgraded: Upgraded, payer: Payer, sending: Option<Rc<Sending>>) -> Self {
        Self { io: TokioIo::new(upgraded), payer, sending, seemed_ended: false, ending: false, wants_no_more: false }
    }

    /// What `send` says, or `unwanted` if the peer wants no more.
    fn poll_wanted<T>(
        &mut self,
        unwanted: T,
        send: impl FnOnce(Pin<&mut TokioIo<Upgraded>>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.wants_no_more {
            return Poll::Ready(Ok(unwanted));
        }
        let polled = send(Pin::new(&mut self.io));
        if let Poll::Ready(Err(error)) = &polled
            && is_no_error(error)
        {
            self.wants_no_more = true;
            return Poll::Ready(Ok(unwanted));
        }
        polled
    }

    /// Breaks off with `RST_STREAM`. Dropped as it is, a client's stream would end as if that were all there was.
    pub(crate) fn reset(self) {
        if let Some(sending) = &self.sending {
            sending.abort();
        }
    }
}

impl Side for Stream {
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        let read = ready!(fill(Pin::new(&mut self.io), context, buffer))?;
        if read == 0 {
            // hyper says the same of a stream that was reset with CANCEL. Its other half, a task of its own, knows better;
            // it was woken too, and has run when this one is woken again.
            if !std::mem::replace(&mut self.seemed_ended, true) {
                ready!(pin!(tokio::task::yield_now()).poll(context));
            }
            if !self.ending
                && let Poll::Ready(Err(_)) = self.poll_flushed(context)
            {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        match &self.payer {
            Payer::Client(bill) => bill.add_read(read as u64),
            Payer::Server(account) => account.add_bytes(read as u64),
        }
        Poll::Ready(Ok(read))
    }

    fn poll_push(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let piece = &bytes[..bytes.len().min(PIECE_MAX)];
        let written = ready!(self.poll_wanted(piece.len(), |io| io.poll_write(context, piece)))?;
        match &self.payer {
            Payer::Client(bill) => bill.add_written(written as u64),
            Payer::Server(account) => account.add_bytes(written as u64),
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_wanted((), |io| io.poll_flush(context))
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ending = true;
        self.poll_wanted((), |io| io.poll_shutdown(context))
    }

    fn poll_broken(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.sending {
            Some(sending) if !self.ending => sending.poll_ended(context),
            _ => Poll::Pending,
        }
    }
}

/// The half of a client's stream that sends: hyper has it run as a task, which ends when the stream does.
#[derive(Debug)]
pub(crate) struct Sending {
    account: Rc<Account>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl Sending {
    /// One that is to be begun; `account` pays for its time.
    pub(crate) fn new(account: &Rc<Account>) -> Rc<Self> {
        Rc::new(Self { account: Rc::clone(account), task: RefCell::default() })
    }

    /// Runs it.
    pub(crate) fn begin(&self, half: impl Future<Output = ()> + 'static) {
        let task = spawn_local(Metered::new(Rc::clone(&self.account), half));
        *self.task.borrow_mut() = Some(task);
    }

    fn poll_ended(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.task.borrow_mut().as_mut() {
            Some(task) if !task.is_finished() => Pin::new(task).poll(context).map(|_ended| ()),
            _ => Poll::Ready(()),
        }
    }

    /// Without it the stream has nobody left, and is reset.
    fn abort(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.abort();
        }
    }
}

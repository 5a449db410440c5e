//! After an upgrade: bytes both ways, until one side ends or nothing moves for too long.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::account::Account;
use super::meter;
use super::pace::Pace;
use super::server_stream::ServerStream;
use super::thread::Connection;
use super::timers::Timer;
use super::transport::Transport;

/// Bytes that are read at once, and so held in each direction.
const PIECE_MAX: usize = 16 * 1024;

/// Carries bytes between the client and `server`: first what was read early on either side. Each direction has its pace.
pub(crate) async fn tunnel(
    connection: &Connection,
    client: &RefCell<Transport>,
    to_server: BytesMut,
    server: ServerStream,
    to_client: Vec<u8>,
    [up, down]: [Pace; 2],
    idle: Duration,
) {
    let timer = connection.thread.timers.timer();
    timer.set(meter::now() + idle);
    let mut tunnel = Tunnel {
        client,
        server,
        account: Rc::clone(&connection.account),
        up: Way { pending: to_server, pace: up, ended: false, shut: false },
        down: Way { pending: BytesMut::from(&to_client[..]), pace: down, ended: false, shut: false },
        timer,
        idle,
    };
    // However it ends, both sides are closed; there is nobody to tell why.
    let _ = poll_fn(|context| tunnel.poll(context)).await;
}

/// One direction.
#[derive(Debug)]
struct Way {
    /// Read and not written.
    pending: BytesMut,
    /// When what was read may go on.
    pace: Pace,
    /// The source ended.
    ended: bool,
    /// The sink was told so.
    shut: bool,
}

struct Tunnel<'a> {
    client: &'a RefCell<Transport>,
    server: ServerStream,
    account: Rc<Account>,
    up: Way,
    down: Way,
    timer: Timer,
    idle: Duration,
}

impl Tunnel<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let up = self.poll_up(context);
        let down = self.poll_down(context);
        for way in [&up, &down] {
            if let Poll::Ready(Err(_)) = way {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        if up.is_ready() && down.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.up.pace.is_waiting() || self.down.pace.is_waiting() {
            // It is the proxy that moves nothing.
            self.moved();
        }
        self.timer.poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn moved(&self) {
        self.timer.set(meter::now() + self.idle);
    }

    fn poll_up(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.up.pace.poll(&self.account, context));
            while !self.up.pending.is_empty() {
                let written = ready!(Pin::new(&mut self.server).poll_write(context, &self.up.pending))?;
                self.up.pending.advance(written);
                self.account.add_bytes(written as u64);
                self.moved();
            }
            // TLS may hold some of it.
            ready!(Pin::new(&mut self.server).poll_flush(context))?;
            if self.up.ended {
                if !self.up.shut {
                    ready!(Pin::new(&mut self.server).poll_shutdown(context))?;
                    self.up.shut = true;
                }
                return Poll::Ready(Ok(()));
            }
            let read = ready!(self.client.borrow_mut().poll_fill(context, &mut self.up.pending))?;
            self.up.ended = read == 0;
            self.up.pace.pass(read, &self.account);
        }
    }

    fn poll_down(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.down.pace.poll(&self.account, context));
            let mut client = self.client.borrow_mut();
            while !self.down.pending.is_empty() {
                let slices = [IoSlice::new(&self.down.pending)];
                let written = ready!(client.poll_push(context, &slices))?;
                self.down.pending.advance(written);
                self.timer.set(meter::now() + self.idle);
            }
            ready!(client.poll_flushed(context))?;
            if self.down.ended {
                if !self.down.shut {
                    ready!(Pin::new(&mut *client).poll_shutdown(context))?;
                    self.down.shut = true;
                }
                return Poll::Ready(Ok(()));
            }
            ready!(meter::poll_turn(context));
            let mut piece = [std::mem::MaybeUninit::uninit(); PIECE_MAX];
            let mut buffer = ReadBuf::uninit(&mut piece);
            ready!(Pin::new(&mut self.server).poll_read(context, &mut buffer))?;
            let read = buffer.filled();
            self.account.add_bytes(read.len() as u64);
            self.down.pending.extend_from_slice(read);
            self.down.ended = read.is_empty();
            self.down.pace.pass(read.len(), &self.account);
        }
    }
}

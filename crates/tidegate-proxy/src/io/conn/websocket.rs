//! After an upgrade: bytes both ways, until one side ends or nothing moves for too long.
//!
//! | module | its one job |
//! |---|---|
//! | `handshake` | the fields by which a client and a server agree (RFC 6455), where the proxy is one of them |
//! | `side` | the two ends of a tunnel: a socket, or a stream of HTTP/2 |

mod handshake;
mod side;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::account::Account;
use super::meter;
use super::pace::Pace;
use super::timers::Timer;
use crate::io::listen::thread::Connection;

pub(crate) use handshake::{VERSION, is_accepted, key, make_connect, opened_tunnel};
pub(crate) use side::{Far, Sending, Side, Stream};

/// Carries bytes between a client and a server, each with what was read early for it. Each direction has its pace, and
/// `account` pays. An error if one side broke off, or nothing moved for `idle`.
pub(crate) async fn tunnel(
    connection: &Connection,
    account: &Rc<Account>,
    (client, to_client): (&mut impl Side, BytesMut),
    (server, to_server): (&mut impl Side, BytesMut),
    [up, down]: [Pace; 2],
    idle: Duration,
) -> io::Result<()> {
    let timer = connection.thread.timers.timer();
    timer.set(meter::now() + idle);
    let mut tunnel = Tunnel {
        client,
        server,
        up: Way { pending: to_server, pace: up, ended: false, shut: false },
        down: Way { pending: to_client, pace: down, ended: false, shut: false },
        account,
        timer,
        idle,
    };
    poll_fn(|context| tunnel.poll(context)).await
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
    /// The sink was told so, or takes no more.
    shut: bool,
}

/// Which side of a direction broke off.
#[derive(Debug)]
enum Broken {
    Source(io::Error),
    Sink(io::Error),
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Source(error) | Broken::Sink(error) => error,
        }
    }
}

struct Tunnel<'a, C, S> {
    client: &'a mut C,
    server: &'a mut S,
    up: Way,
    down: Way,
    account: &'a Account,
    timer: Timer,
    idle: Duration,
}

impl<C: Side, S: Side> Tunnel<'_, C, S> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let moved = || self.timer.set(meter::now() + self.idle);
        let mut up = self.up.poll((&mut *self.client, &mut *self.server), self.account, moved, context);
        if let Poll::Ready(Err(Broken::Sink(_))) = up {
            // A server that closed behind its last message is one that takes no more. The message is not to be lost.
            self.up.shut = true;
            up = Poll::Ready(Ok(()));
        }
        let down = self.down.poll((&mut *self.server, &mut *self.client), self.account, moved, context);
        match (up, down) {
            (Poll::Ready(Err(broken)), _) | (_, Poll::Ready(Err(broken))) => return Poll::Ready(Err(broken.into())),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
            _ => {}
        }
        if self.client.poll_broken(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.up.pace.is_waiting() || self.down.pace.is_waiting() {
            // It is the proxy that moves nothing.
            self.timer.set(meter::now() + self.idle);
        }
        self.timer.poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Way {
    fn poll(
        &mut self,
        (source, sink): (&mut impl Side, &mut impl Side),
        account: &Account,
        moved: impl Fn(),
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            if self.shut {
                return Poll::Ready(Ok(()));
            }
            ready!(self.pace.poll(account, context));
            while !self.pending.is_empty() {
                let written = ready!(sink.poll_push(context, &self.pending)).map_err(Broken::Sink)?;
                self.pending.advance(written);
                moved();
            }
            ready!(sink.poll_flushed(context)).map_err(Broken::Sink)?;
            if self.ended {
                ready!(sink.poll_end(context)).map_err(Broken::Sink)?;
                self.shut = true;
                continue;
            }
            let read = ready!(source.poll_fill(context, &mut self.pending)).map_err(Broken::Source)?;
            self.ended = read == 0;
            self.pace.pass(read, account);
        }
    }
}

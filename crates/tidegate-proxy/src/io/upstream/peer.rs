//! What a server of HTTP/2 says that it takes, before the first request that needs it.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tidegate_wire::http2::FirstSettings;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::io::conn::meter;

/// What the server at the other end of a connection said.
#[derive(Debug, Default)]
pub(super) struct Peer {
    takes_connect: Cell<Option<bool>>,
    said: Notify,
}

impl Peer {
    /// Whether it takes extended CONNECT (RFC 8441), which its first frame says. Waits for that, so there is to be a
    /// time-out.
    pub(super) async fn takes_connect(&self) -> bool {
        loop {
            let said = self.said.notified();
            if let Some(takes) = self.takes_connect.get() {
                return takes;
            }
            said.await;
        }
    }
}

/// A connection to a server whose first frame is looked at as it comes.
#[derive(Debug)]
pub(super) struct Heard<S> {
    stream: S,
    /// Until that frame is whole.
    first: Option<(FirstSettings, Rc<Peer>)>,
}

impl<S> Heard<S> {
    /// `stream`, on which nothing has been read, and what its server will have said.
    pub(super) fn new(stream: S) -> (Self, Rc<Peer>) {
        let peer = Rc::<Peer>::default();
        (Self { stream, first: Some((FirstSettings::default(), Rc::clone(&peer))) }, peer)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(meter::poll_turn(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some((first, peer)) = &mut self.first
            && let Some(takes) = first.read(&buffer.filled()[before..])
        {
            peer.takes_connect.set(Some(takes));
            peer.said.notify_waiters();
            self.first = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! Listeners whose connections note when they were read and whom they belong to.
//!
//! [`stamped`] wraps a listener into what servers take: tonic's `serve_with_incoming` (feature `tonic`), `axum::serve`
//! (feature `axum`), or a loop of one's own around [`StampedListener::accept`].

use core::fmt;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, unix};

use super::clocked::{Sleep, sleep};
use super::stamp::Stamped;

/// How long a listener rests when the system has no room for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection that was accepted, and its other end.
pub type Accepted<L> = (Stamped<<L as Listen>::Io>, <L as Listen>::Addr);

/// A source of connections. There is one for TCP and one for Unix sockets; others are easily written.
pub trait Listen {
    /// A connection.
    type Io;
    /// What names an end of one.
    type Addr;

    /// The next connection and its other end.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted<Self>>>;

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not know.
    fn local_addr(&self) -> io::Result<Self::Addr>;
}

impl Listen for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted<Self>>> {
        let (stream, peer) = ready!(Self::poll_accept(self, cx))?;
        // Heads and bodies are written apart: the later one must not wait until the earlier one is acknowledged.
        stream.set_nodelay(true)?;
        let local = stream.local_addr().ok();
        Poll::Ready(Ok((Stamped::new(stream, Some(peer)).at(local), peer)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

impl Listen for UnixListener {
    type Io = UnixStream;
    type Addr = unix::SocketAddr;

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted<Self>>> {
        let (stream, peer) = ready!(Self::poll_accept(self, cx))?;
        Poll::Ready(Ok((Stamped::new(stream, None), peer)))
    }

    fn local_addr(&self) -> io::Result<unix::SocketAddr> {
        Self::local_addr(self)
    }
}

/// Wraps a listener, so that its connections are [`Stamped`].
///
/// With tonic, and with axum:
///
/// ```ignore
/// Server::builder().layer(ServerLayer::default()).add_service(work).serve_with_incoming(stamped(listener)).await?;
///
/// let app = router.into_make_service_with_connect_info::<ConnectionInfo>();
/// axum::serve(stamped(listener), app).await?;
/// ```
pub fn stamped<L: Listen>(listener: L) -> StampedListener<L> {
    StampedListener { listener, pause: None }
}

/// A listener whose connections are [`Stamped`]: see [`stamped`].
///
/// It has no errors. A connection that ended before it was accepted is passed over; when the system is out of something, the
/// listener rests for a tenth of a second, and those who are connected go on.
pub struct StampedListener<L> {
    listener: L,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<L: fmt::Debug> fmt::Debug for StampedListener<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StampedListener").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl<L: Listen> StampedListener<L> {
    /// The listener itself.
    #[must_use]
    pub fn inner(&self) -> &L {
        &self.listener
    }

    /// The next connection and its other end. Dropping the future loses no connection.
    pub async fn accept(&mut self) -> Accepted<L> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Accepted<L>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok(connection) => return Poll::Ready(connection),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "no connection can be accepted for now");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// True if the next connection may well be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    // `InvalidInput` and `NotConnected`: what a socket answers to an option when its peer has gone.
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | Interrupted | InvalidInput | NotConnected)
}

#[cfg(feature = "tonic")]
mod for_tonic {
    use futures_core::Stream;
    use tonic::transport::server::Connected;

    use super::{Context, Listen, Pin, Poll, Stamped, StampedListener, io};
    use crate::io::layer::ConnectionInfo;

    impl<L: Listen + Unpin> Stream for StampedListener<L> {
        type Item = io::Result<Stamped<L::Io>>;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.poll_accept(cx).map(|(connection, _)| Some(Ok(connection)))
        }
    }

    /// tonic attaches to every request what this says of its connection. With its TLS it attaches a `TlsConnectInfo` of it
    /// as well, which knows the certificates.
    impl<T> Connected for Stamped<T> {
        type ConnectInfo = ConnectionInfo;

        fn connect_info(&self) -> ConnectionInfo {
            self.info()
        }
    }
}

#[cfg(feature = "axum")]
mod for_axum {
    use axum::extract::connect_info::Connected;
    use axum::serve::{IncomingStream, Listener};
    use tokio::io::{AsyncRead, AsyncWrite};

    use super::{Listen, Stamped, StampedListener, io};
    use crate::io::layer::ConnectionInfo;

    impl<L> Listener for StampedListener<L>
    where
        L: Listen<Addr: Send> + Send + 'static,
        L::Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        type Io = Stamped<L::Io>;
        type Addr = L::Addr;

        async fn accept(&mut self) -> (Self::Io, Self::Addr) {
            Self::accept(self).await
        }

        fn local_addr(&self) -> io::Result<Self::Addr> {
            self.listener.local_addr()
        }
    }

    /// For `Router::into_make_service_with_connect_info`.
    impl<L> Connected<IncomingStream<'_, StampedListener<L>>> for ConnectionInfo
    where
        L: Listen<Addr: Send> + Send + 'static,
        L::Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        fn connect_info(connection: IncomingStream<'_, StampedListener<L>>) -> Self {
            connection.io().info()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Fails, or has a connection, as told.
    struct Told(VecDeque<Option<io::ErrorKind>>);

    impl Listen for Told {
        type Io = ();
        type Addr = ();

        fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Accepted<Self>>> {
            match self.0.pop_front() {
                Some(None) => Poll::Ready(Ok((Stamped::new((), None), ()))),
                Some(Some(kind)) => Poll::Ready(Err(kind.into())),
                None => Poll::Pending,
            }
        }

        fn local_addr(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_passes_over_what_ended_early_and_rests_when_the_system_has_no_room() {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, OutOfMemory};
        let told = [Some(ConnectionAborted), Some(ConnectionReset), None, Some(OutOfMemory), None];
        let mut listener = stamped(Told(told.into()));
        let start = tokio::time::Instant::now();
        let (first, ()) = listener.accept().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let (second, ()) = listener.accept().await;
        assert!(start.elapsed() >= PAUSE);
        assert_ne!(first.info().id(), second.info().id());
    }
}

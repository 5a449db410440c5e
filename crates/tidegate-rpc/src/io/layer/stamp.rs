//! When a request's bytes were read, carried from the socket to the layer.

use core::cell::Cell;
use core::net::SocketAddr;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use http::Extensions;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An extension of a request: when its bytes were read. For servers that know it exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived(pub Instant);

/// An extension of a request: its connection's peer, and when the connection was last read.
///
/// The stamp is exact where one thread runs tasks in the order in which they were woken: between the read and the
/// request's first poll the connection cannot be read again. Elsewhere it is at most too late, so a delay is
/// underestimated, never invented.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    id: ConnectionId,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    last_read: Arc<AtomicU64>,
}

/// A connection's identity: no two of a process have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(u64);

impl ConnectionId {
    fn next() -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: that no two calls get the same number is all that is needed.
        Self(CONNECTIONS.fetch_add(1, Ordering::Relaxed))
    }
}

impl ConnectionInfo {
    /// Which connection of this process it is. Those of Unix sockets have no peer's address to be told apart by.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The other end, if it was known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// This end, if it was known.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// When the connection was last read; `None` before the first byte.
    #[must_use]
    pub fn last_read(&self) -> Option<Instant> {
        // Relaxed: the number stands alone, no other memory is read because of it.
        Some(self.last_read.load(Ordering::Relaxed)).filter(|ns| *ns > 0).map(Instant::from_nanos)
    }
}

/// The best stamp that a request carries.
pub(super) fn arrival_stamp(extensions: &Extensions) -> Option<Instant> {
    if let Some(Arrived(at)) = extensions.get() {
        return Some(*at);
    }
    connection(extensions).and_then(ConnectionInfo::last_read)
}

/// A request's connection, as its server attached it.
pub(super) fn connection(extensions: &Extensions) -> Option<&ConnectionInfo> {
    let connection = extensions.get::<ConnectionInfo>();
    #[cfg(feature = "axum")]
    let connection = connection.or_else(|| extensions.get().map(|axum::extract::ConnectInfo(connection)| connection));
    connection
}

/// The other end of a request's connection, if its server attached it.
pub(super) fn peer(extensions: &Extensions) -> Option<SocketAddr> {
    let peer = connection(extensions).and_then(ConnectionInfo::peer);
    let peer = peer.or_else(|| extensions.get::<SocketAddr>().copied());
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| extensions.get().map(|axum::extract::ConnectInfo(peer)| *peer));
    #[cfg(feature = "tonic")]
    let peer = peer.or_else(|| extensions.get().and_then(tonic::transport::server::TcpConnectInfo::remote_addr));
    peer
}

/// Attaches what handlers find on a connection that is not stamped, so that they need not know of it: tonic's
/// `Request::remote_addr` and axum's `ConnectInfo<SocketAddr>`.
#[cfg_attr(
    not(any(feature = "axum", feature = "tonic")),
    expect(unused_variables, reason = "other handlers have no habit")
)]
pub(super) fn attach_peer(extensions: &mut Extensions) {
    #[cfg(feature = "tonic")]
    if let Some(ConnectionInfo { peer: peer @ Some(_), local, .. }) = extensions.get() {
        use tonic::transport::server::TcpConnectInfo;
        let ends = TcpConnectInfo { local_addr: *local, remote_addr: *peer };
        extensions.insert(ends);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(ConnectionInfo { peer: Some(peer), .. })) = extensions.get() {
        let peer = axum::extract::ConnectInfo(*peer);
        extensions.insert(peer);
    }
}

thread_local! {
    /// When a connection was last read on this thread.
    static READ: Cell<Instant> = const { Cell::new(Instant::ZERO) };
}

/// When a stamped connection was last read on this thread.
pub(super) fn last_read_here() -> Instant {
    READ.get()
}

/// A connection that notes when it was last read.
#[derive(Debug)]
pub struct Stamped<T> {
    inner: T,
    info: ConnectionInfo,
}

impl<T> Stamped<T> {
    /// Wraps a connection from `peer`.
    pub fn new(inner: T, peer: Option<SocketAddr>) -> Self {
        let info = ConnectionInfo { id: ConnectionId::next(), peer, local: None, last_read: Arc::default() };
        Self { inner, info }
    }

    /// The same, at this address of ours.
    #[must_use]
    pub fn at(mut self, local: Option<SocketAddr>) -> Self {
        self.info.local = local;
        self
    }

    /// What to attach to this connection's requests.
    #[must_use]
    pub fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }

    /// The connection itself.
    #[must_use]
    pub fn inner(&self) -> &T {
        &self.inner
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stamped<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if polled.is_ready() && buf.filled().len() > before {
            let now = clock::now();
            self.info.last_read.store(now.as_nanos(), Ordering::Relaxed);
            READ.set(now);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stamped<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_read_is_stamped_and_a_request_prefers_its_own_stamp() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Stamped::new(near, None);
        let info = near.info();
        assert_eq!(info.last_read(), None);
        let before = clock::now();
        far.write_all(b"hello").await.unwrap();
        assert_eq!(near.read(&mut [0; 8]).await.unwrap(), 5);
        let stamp = info.last_read().unwrap();
        assert!(before <= stamp && stamp <= clock::now());
        let mut extensions = Extensions::new();
        extensions.insert(info);
        assert_eq!(arrival_stamp(&extensions), Some(stamp));
        extensions.insert(Arrived(before));
        assert_eq!(arrival_stamp(&extensions), Some(before));
    }
}

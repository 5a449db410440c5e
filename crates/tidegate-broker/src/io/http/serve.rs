//! A listener in front of a router.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Open at a time; more wait in the kernel's backlog.
    pub connections: usize,
    /// From the end of one request to the end of the next one's head.
    pub idle: Duration,
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For requests under way when the server stops; after it they are cut off.
    pub drain: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // Tools and publishers over HTTP; consumers do not use it.
            connections: 1_024,
            // Go's clients drop a connection that has been idle for 90 s. If we did so first, a publisher could lose a
            // request that it must not repeat.
            idle: Duration::from_mins(2),
            handshake: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            head_bytes: 64 << 10,
        }
    }
}

/// How long accepting rests after an error, such as having no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Serves `router` on `listener`, with TLS if `tls` is given, until `stop` is ready; then takes no more connections,
/// finishes the requests under way, and returns.
pub async fn serve(
    listener: Listener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(bounds.connections));
    let tls = tls.map(TlsAcceptor::from);
    // Dropped to tell connections to finish.
    let (serving, stopping) = watch::channel(());
    let mut open = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(_) = open.join_next() => continue,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let (tls, router, stopping) = (tls.clone(), router.clone(), stopping.clone());
                open.spawn(async move {
                    match stream {
                        Stream::Tcp(stream) => connection(stream, tls, router, bounds, stopping).await,
                        Stream::Unix(stream) => connection(stream, tls, router, bounds, stopping).await,
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(serving);
    let drained = async { while open.join_next().await.is_some() {} };
    if timeout(bounds.drain, drained).await.is_err() {
        tracing::warn!(connections = open.len(), "HTTP connections cut off");
    }
}

async fn accept(listener: &Listener, room: &Arc<Semaphore>) -> io::Result<(Stream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.expect("nobody closes it");
    let stream = match listener {
        Listener::Tcp(listener) => {
            let stream = listener.accept().await?.0;
            stream.set_nodelay(true)?;
            Stream::Tcp(stream)
        }
        Listener::Unix(listener) => Stream::Unix(listener.accept().await?.0),
    };
    Ok((stream, permit))
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    tls: Option<TlsAcceptor>,
    router: Router,
    bounds: Bounds,
    stopping: watch::Receiver<()>,
) {
    let Some(tls) = tls else { return requests(stream, router, bounds, stopping).await };
    match timeout(bounds.handshake, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, router, bounds, stopping).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    bounds: Bounds,
    mut stopping: watch::Receiver<()>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.idle)
        .max_buf_size(bounds.head_bytes)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // The sender is never used, so this is its end.
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection failed");
    }
}

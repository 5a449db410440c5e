//! A listener in front of a router.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate_runtime::process::{self, Reserve};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Listening;
use crate::config::Address;

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Listens at `address`, and says where that is. Without a host that is every interface.
    pub async fn bind(address: &Address) -> io::Result<(Self, Listening)> {
        let (host, port) = match address {
            Address::Unix(path) => return Ok((Self::Unix(UnixListener::bind(path)?), Listening::Unix)),
            Address::Tcp { host, port } => (host.as_str(), *port),
        };
        let listener = match host {
            // A kernel without IPv6 has every interface under the older name only.
            "" => match TcpListener::bind(("::", port)).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(_) => TcpListener::bind(("0.0.0.0", port)).await?,
                Ok(listener) => listener,
            },
            host => TcpListener::bind((host, port)).await?,
        };
        let port = listener.local_addr()?.port();
        Ok((Self::Tcp(listener), Listening::Port(port)))
    }

    /// Closes the socket and removes its file, if it has one, so that the next start finds the path free.
    fn close(self) {
        if let Self::Unix(listener) = self {
            let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
            drop(listener);
            if let Some(error) = path.and_then(|path| std::fs::remove_file(path).err()) {
                tracing::warn!(%error, "cannot remove a unix socket");
            }
        }
    }
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
    listener.close();
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
    let scarce = match &stream {
        Stream::Tcp(stream) => process::is_scarce(stream.as_fd(), Reserve::Tools),
        Stream::Unix(stream) => process::is_scarce(stream.as_fd(), Reserve::Tools),
    };
    if scarce {
        // The last descriptors are for the files that messages are saved in.
        return Err(rustix::io::Errno::MFILE.into());
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::Uri;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{Notify, oneshot};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::io::http::client::{HttpClient, Trust};

    async fn tcp() -> (Listener, String) {
        let any = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let (listener, Listening::Port(port)) = Listener::bind(&any).await.unwrap() else { panic!("a TCP port") };
        (listener, format!("127.0.0.1:{port}"))
    }

    fn start(listener: Listener, router: Router, bounds: Bounds) -> (JoinHandle<()>, oneshot::Sender<()>) {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        (tokio::spawn(serve(listener, None, router, bounds, stopped)), stop)
    }

    async fn ask(stream: &mut (impl AsyncWrite + Unpin), path: &str) {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    }

    /// Reads until `end` has come.
    async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            text.push(char::from(stream.read_u8().await.unwrap()));
        }
        text
    }

    #[tokio::test]
    async fn a_stop_lets_requests_finish_and_closes_the_idle() {
        let (listener, address) = tcp().await;
        let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (in_handler, may_leave) = (Arc::clone(&entered), Arc::clone(&leave));
        let router = Router::new().fallback(move || async move {
            in_handler.notify_one();
            may_leave.notified().await;
            "done"
        });
        let (server, stop) = start(listener, router, Bounds { drain: Duration::from_mins(1), ..Bounds::default() });
        let mut idle = TcpStream::connect(&address).await.unwrap();
        let mut busy = TcpStream::connect(&address).await.unwrap();
        ask(&mut busy, "/").await;
        entered.notified().await;
        drop(stop);
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "an idle connection is closed");
        leave.notify_one();
        assert!(read_until(&mut busy, "done").await.contains("connection: close"));
        server.await.unwrap();
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_wait_for_room() {
        let (listener, address) = tcp().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&order);
        let router = Router::new().fallback(move |uri: Uri| async move {
            seen.lock().unwrap().push(uri.to_string());
            "done"
        });
        let (_server, _stop) = start(listener, router, Bounds { connections: 1, ..Bounds::default() });
        let mut first = TcpStream::connect(&address).await.unwrap();
        ask(&mut first, "/first").await;
        read_until(&mut first, "done").await;
        let mut second = TcpStream::connect(&address).await.unwrap();
        ask(&mut second, "/second").await;
        ask(&mut first, "/first-again").await;
        read_until(&mut first, "done").await;
        drop(first);
        read_until(&mut second, "done").await;
        assert_eq!(*order.lock().unwrap(), ["/first", "/first-again", "/second"]);
    }

    #[tokio::test]
    async fn whoever_does_not_finish_a_head_is_closed() {
        let (listener, address) = tcp().await;
        let (_server, _stop) =
            start(listener, Router::new(), Bounds { idle: Duration::from_millis(1), ..Bounds::default() });
        let mut slow = TcpStream::connect(&address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        slow.read_to_end(&mut Vec::new()).await.ok();
    }

    #[tokio::test]
    async fn tls_and_plain_serve_the_same() {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let certificate = issued.cert.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let tls = tls.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let tls = Arc::new(tls.with_single_cert(vec![certificate.clone()], key).unwrap());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let trust = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let trust = trust.unwrap().with_root_certificates(roots).with_no_client_auth();
        let patience = Duration::from_mins(1);
        let client = HttpClient::new(patience, patience, Trust::Configured(Box::new(trust))).unwrap();

        let router = Router::new().fallback(|| async { "served" });
        let (encrypted, address) = tcp().await;
        tokio::spawn(serve(encrypted, Some(tls), router.clone(), Bounds::default(), std::future::pending()));
        let port = address.rsplit_once(':').unwrap().1;
        assert_eq!(client.get(&format!("https://localhost:{port}/"), 100).await.unwrap(), b"served");
        assert!(client.get(&format!("http://localhost:{port}/"), 100).await.is_err());
        let (plain, address) = tcp().await;
        tokio::spawn(serve(plain, None, router, Bounds::default(), std::future::pending()));
        assert_eq!(client.get(&format!("http://{address}/"), 100).await.unwrap(), b"served");
    }

    #[tokio::test]
    async fn a_unix_socket_serves_too() {
        let path = std::env::temp_dir().join(format!("tidegate-serve-{}.sock", std::process::id()));
        let (listener, listening) = Listener::bind(&Address::Unix(path.clone())).await.unwrap();
        assert_eq!(listening, Listening::Unix);
        let router = Router::new().fallback(|| async { "served" });
        let (server, stop) = start(listener, router, Bounds::default());
        let mut stream = UnixStream::connect(&path).await.unwrap();
        ask(&mut stream, "/").await;
        read_until(&mut stream, "served").await;
        drop(stop);
        server.await.unwrap();
        assert!(!path.exists());
    }
}

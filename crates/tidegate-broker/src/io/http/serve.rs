//! A listener in front of a router, within bounds that hold whatever clients do.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_runtime::process::{self, Reserve};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;

use self::places::{Full, Places, group_of};
use self::talk::{Answered, Asked, Heard, Talk, within};
use super::Listening;
use crate::config::Address;
use crate::io::listener::listen;

mod places;
mod talk;

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
            "" => match listen_at("::", port).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(_) => listen_at("0.0.0.0", port).await?,
                Ok(listener) => listener,
            },
            host => listen_at(host, port).await?,
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

/// Listens at the first of the host's addresses that can be had.
async fn listen_at(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match listen(address) {
            Ok(listener) => return TcpListener::from_std(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Open at a time, two at least; half of them from one address. Beyond, the connection that has waited longest for
    /// its client ends. While clients are worked for in all of them, more wait in the kernel's backlog.
    pub connections: usize,
    /// From the end of one request to the first byte of the next one.
    pub idle: Duration,
    /// From there to the end of the request's head.
    pub head: Duration,
    /// Between two parts of a request's body.
    pub body_gap: Duration,
    /// From a request's first byte to the end of its body.
    pub body: Duration,
    /// While the client takes nothing of its answer.
    pub write_stall: Duration,
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
            // As the proxy's. nsqd waits for ever.
            head: Duration::from_secs(10),
            body_gap: Duration::from_secs(30),
            // The largest body that nsqd's defaults allow, at half a megabit per second.
            body: Duration::from_secs(90),
            write_stall: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            head_bytes: 64 << 10,
        }
    }
}

/// The address of a request's client, among the request's extensions; `None` over a unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientAddress(pub Option<IpAddr>);

/// How long accepting rests after an error, such as having no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether a client is awaited, while clients are worked for in all places.
const FULL_PAUSE: Duration = Duration::from_millis(5);

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
    let places = Places::new(bounds.connections);
    let tls = tls.map(TlsAcceptor::from);
    // Dropped to tell connections to finish.
    let (serving, stopping) = watch::channel(());
    let mut open = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    'serving: loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            Some(_) = open.join_next() => continue,
            accepted = accept(&listener) => accepted,
        };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let talk = Arc::new(Talk::new(Instant::now()));
        let group = client.0.map(group_of);
        let place = loop {
            match places.take(group, Arc::clone(&talk)) {
                Ok(place) => break Some(place),
                Err(Full::Address) => break None,
                Err(Full::All) => {}
            }
            tokio::select! {
                () = &mut stop => break 'serving,
                Some(_) = open.join_next() => {}
                () = tokio::time::sleep(FULL_PAUSE) => {}
            }
        };
        let Some(place) = place else {
            tracing::debug!(address = ?group, "half of all HTTP connections are worked for already, and are of this address");
            continue;
        };
        let (tls, router, stopping) = (tls.clone(), router.clone(), stopping.clone());
        open.spawn(async move {
            let talk = Arc::clone(&place.talk);
            let connection = async {
                match stream {
                    Stream::Tcp(stream) => connection(stream, tls, router, (client, &talk), bounds, stopping).await,
                    Stream::Unix(stream) => connection(stream, tls, router, (client, &talk), bounds, stopping).await,
                }
            };
            tokio::select! {
                () = connection => {}
                () = talk.ended() => tracing::debug!("an HTTP connection gave up its place to a new one"),
            }
            drop(place);
        });
    }
    listener.close();
    drop(serving);
    let drained = async { while open.join_next().await.is_some() {} };
    if timeout(bounds.drain, drained).await.is_err() {
        tracing::warn!(connections = open.len(), "HTTP connections cut off");
    }
}

async fn accept(listener: &Listener) -> io::Result<(Stream, ClientAddress)> {
    let (stream, client) = match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            // The peer may have gone again; reading will say so.
            let _ = stream.set_nodelay(true);
            (Stream::Tcp(stream), Some(peer.ip().to_canonical()))
        }
        Listener::Unix(listener) => (Stream::Unix(listener.accept().await?.0), None),
    };
    let scarce = match &stream {
        Stream::Tcp(stream) => process::is_scarce(stream.as_fd(), Reserve::Tools),
        Stream::Unix(stream) => process::is_scarce(stream.as_fd(), Reserve::Tools),
    };
    if scarce {
        // The last descriptors are for the files that messages are saved in.
        return Err(rustix::io::Errno::MFILE.into());
    }
    Ok((stream, ClientAddress(client)))
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    tls: Option<TlsAcceptor>,
    router: Router,
    client: (ClientAddress, &Arc<Talk>),
    bounds: Bounds,
    stopping: watch::Receiver<()>,
) {
    let Some(tls) = tls else { return requests(stream, router, client, bounds, stopping).await };
    match timeout(bounds.handshake, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, router, client, bounds, stopping).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    (client, talk): (ClientAddress, &Arc<Talk>),
    bounds: Bounds,
    mut stopping: watch::Receiver<()>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        talk.begin_request(Instant::now());
        request.extensions_mut().insert(client);
        let answer = router.call(request.map(|body| Asked { body, talk: Arc::clone(talk) }));
        async { answer.await.map(|answer| answer.map(|body| Answered::new(body, Arc::clone(talk)))) }
    });
    let stream = Heard { stream, talk: Arc::clone(talk) };
    // Its own timer would count from the end of the last request to the end of a head, which are two times here.
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(bounds.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = within(connection.as_mut(), talk, &bounds) => ended,
        // The sender is never used, so this is its end.
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            within(connection, talk, &bounds).await
        }
    };
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "HTTP connection failed"),
        None => tracing::debug!("an HTTP client took too long"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::{Notify, Semaphore, oneshot};
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

    /// A server of eight places that wants bodies.
    async fn server_that_reads() -> (String, JoinHandle<()>, oneshot::Sender<()>) {
        let (listener, address) = tcp().await;
        let router = Router::new().fallback(|body: Bytes| async move { format!("{} bytes, done", body.len()) });
        let (server, stop) = start(listener, router, Bounds { connections: 8, ..Bounds::default() });
        (address, server, stop)
    }

    async fn connect_from(last: u8, to: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(to.parse().unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_knows_its_clients_address() {
        let (listener, address) = tcp().await;
        let shown = |request: axum::extract::Request| async move {
            let client = request.extensions().get::<ClientAddress>().copied();
            format!("{client:?}, done")
        };
        let (server, stop) = start(listener, Router::new().fallback(shown), Bounds::default());
        let mut stream = connect_from(7, &address).await;
        ask(&mut stream, "/").await;
        let answer = read_until(&mut stream, "done").await;
        assert!(answer.contains("Some(ClientAddress(Some(127.0.0.7)))"), "{answer}");
        drop(stop);
        server.await.unwrap();
    }

    async fn stall(stream: &mut TcpStream) {
        stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nbody").await.unwrap();
    }

    #[tokio::test]
    async fn stalled_clients_never_keep_a_new_one_out() {
        let (address, _server, _stop) = server_that_reads().await;
        let mut stalled = Vec::new();
        // From its own address, from one other, and from one each.
        for last in [[1; 20], [2; 20], std::array::from_fn(|n| 3 + u8::try_from(n).unwrap())].concat() {
            let mut stream = connect_from(last, &address).await;
            stall(&mut stream).await;
            stalled.push(stream);
            if last == 1 || stalled.len() % 20 == 0 {
                let mut prober = connect_from(1, &address).await;
                ask(&mut prober, "/").await;
                assert!(read_until(&mut prober, "done").await.contains("0 bytes"));
            }
        }
        let newest = stalled.last_mut().unwrap();
        newest.write_all(b" rest").await.unwrap();
        assert!(read_until(newest, "done").await.contains("9 bytes"), "who was waited for least is still there");
        let _ = stalled[0].read_to_end(&mut Vec::new()).await;
    }

    #[tokio::test]
    async fn while_clients_are_worked_for_in_all_places_new_ones_wait() {
        let (listener, address) = tcp().await;
        let (entered, leave) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (in_handler, may_leave) = (Arc::clone(&entered), Arc::clone(&leave));
        let router = Router::new().fallback(move || async move {
            in_handler.add_permits(1);
            may_leave.acquire().await.unwrap().forget();
            "done"
        });
        let (_server, _stop) = start(listener, router, Bounds { connections: 2, ..Bounds::default() });
        let mut clients = Vec::new();
        for last in [1, 2, 3] {
            let mut client = connect_from(last, &address).await;
            ask(&mut client, "/").await;
            clients.push(client);
        }
        entered.acquire_many(2).await.unwrap().forget();
        leave.add_permits(3);
        for client in &mut clients {
            read_until(client, "done").await;
        }
    }

    #[tokio::test]
    async fn a_slow_client_is_closed() {
        let soon = Duration::from_millis(1);
        for bounds in [
            Bounds { idle: soon, ..Bounds::default() },
            Bounds { head: soon, ..Bounds::default() },
            Bounds { body_gap: soon, ..Bounds::default() },
            Bounds { body: soon, ..Bounds::default() },
            Bounds { write_stall: soon, ..Bounds::default() },
        ] {
            let (listener, address) = tcp().await;
            let router = Router::new().fallback(|body: Bytes| async move { vec![b'x'; body.len() << 24] });
            let (_server, _stop) = start(listener, router, bounds);
            let mut slow = TcpStream::connect(&address).await.unwrap();
            let sent: &[u8] = if bounds.idle == soon {
                b""
            } else if bounds.head == soon {
                b"POST / HTTP/1.1\r\nhost:"
            } else if bounds.write_stall == soon {
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"
            } else {
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nbody"
            };
            slow.write_all(sent).await.unwrap();
            // An answer that is not read fills the socket; then the end shows in what can be read of it.
            if bounds.write_stall == soon {
                while slow.write_all(b"x").await.is_ok() {
                    tokio::task::yield_now().await;
                }
            }
            let mut answer = Vec::new();
            let _ = slow.read_to_end(&mut answer).await;
            assert!(answer.len() < 4 << 24, "{bounds:?}");
        }
    }

    #[tokio::test]
    async fn tls_and_plain_serve_the_same() {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let certificate = issued.cert.der().clone();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
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

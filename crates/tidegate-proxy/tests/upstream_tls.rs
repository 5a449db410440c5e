//! TLS between the proxy and its upstreams, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use support::{Running, send, talk};
use tidegate_proxy::config::Config;
use tidegate_proxy::io::admin::status::{Health, LiveUpstream};
use tidegate_runtime::config::Document;

type Secured = StreamOwned<ServerConnection, TcpStream>;

/// A self-signed certificate, its own authority, in files that end with the test.
struct Made {
    directory: PathBuf,
    cert: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Made {
    /// For `name`; `test` tells the files of tests apart.
    fn new(test: &str, name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-upstream-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let rcgen::CertifiedKey { cert, signing_key: key } =
            rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let made = Self { directory, cert, key };
        made.write(&made.cert);
        std::fs::write(made.directory.join("key.pem"), made.key.serialize_pem()).unwrap();
        made
    }

    /// Puts `cert` into the file of this one.
    fn write(&self, cert: &rcgen::Certificate) {
        std::fs::write(self.directory.join("cert.pem"), cert.pem()).unwrap();
    }

    fn file(&self, name: &str) -> String {
        format!("\"{}\"", self.directory.join(name).display())
    }

    /// A server that shows this certificate, asks for that of `client`, and chooses among `alpn`.
    fn server_config(&self, client: Option<&Made>, alpn: &[&str]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let mut roots = RootCertStore::empty();
                roots.add(client.cert.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.unwrap())
            }
        };
        let key = rustls::pki_types::PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let mut config = builder.with_single_cert(vec![self.cert.der().clone()], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A server that does with each connection what the test says. It lives as long as the test's process.
struct Server {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Server {
    /// `serve` gets the socket as it is, before any TLS.
    fn raw(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let (serve, count) = (Arc::new(serve), Arc::clone(&accepted));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serve, number) = (Arc::clone(&serve), count.fetch_add(1, Ordering::SeqCst));
                let stream = stream.unwrap();
                // What a session says at its end is there at once, whatever the proxy has yet to acknowledge.
                stream.set_nodelay(true).unwrap();
                std::thread::spawn(move || serve(number, stream));
            }
        });
        Self { address, accepted }
    }

    fn new(config: Arc<ServerConfig>, serve: impl Fn(usize, Secured) + Send + Sync + 'static) -> Self {
        Self::raw(move |number, stream| serve(number, secured(&config, stream)))
    }

    /// Answers every request with its head.
    fn echo(config: Arc<ServerConfig>) -> Self {
        Self::new(config, |_, stream| echo_all(stream))
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// A proxy before it on one thread, with `tls` and `more` of its upstream, and `rest` of a configuration.
    fn behind(&self, tls: &str, more: &str, rest: &str) -> Running {
        Running::start(&self.config(tls, more, rest))
    }

    fn config(&self, tls: &str, more: &str, rest: &str) -> String {
        format!(
            "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
             retries = {{ attempts = 0 }}\ntls = {{ {tls} }}\n{more}\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\n\
             threads = 1\noverflow_threads = 0\n{rest}",
            self.address
        )
    }
}

fn secured(config: &Arc<ServerConfig>, stream: TcpStream) -> Secured {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream)
}

fn echo_all(mut stream: Secured) {
    while let Some(head) = read_head(&mut stream) {
        answer(&mut stream, &head);
    }
}

/// Everything up to the end of a head; `None` if the other side closed before.
fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

fn answer(stream: &mut impl Write, text: &str) {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    stream.write_all(answer.as_bytes()).unwrap();
    stream.flush().unwrap();
}

fn request(method: &str) -> String {
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    format!("{method} /x HTTP/1.1\r\nHost: shop.example\r\n{length}\r\n")
}

/// Status and error of the answer to a request.
fn outcome(proxy: &Running) -> (u16, String) {
    let answer = talk(&mut proxy.connect(), &request("GET"));
    (answer.status, answer.header("proxy-status").unwrap_or_default().to_owned())
}

/// The upstream's figures when it had so many requests. Threads publish theirs now and then.
fn after_requests(proxy: &Running, requests: u64) -> LiveUpstream {
    proxy.wait_until(|live| live.upstreams[0].servers.iter().any(|server| server.requests_total == requests));
    proxy.proxy().source().live().upstreams.remove(0)
}

fn refused(error: &str) -> (u16, String) {
    (502, format!("tidegate; error={error}"))
}

#[test]
fn a_server_is_verified_by_its_roots_and_its_name() {
    let (made, stranger) = (Made::new("verified", "service.internal"), Made::new("stranger", "service.internal"));
    let server = Server::echo(made.server_config(None, &["h2", "http/1.1"]));
    let (roots, others) = (made.file("cert.pem"), stranger.file("cert.pem"));
    for (tls, expected) in [
        (format!("roots = {roots}, name = \"service.internal\""), (200, String::new())),
        (format!("roots = {roots}, name = \"other.internal\""), refused("tls_certificate_error")),
        (format!("roots = {others}, name = \"service.internal\""), refused("tls_certificate_error")),
        ("verify = false".to_owned(), (200, String::new())),
    ] {
        let proxy = server.behind(&tls, "", "");
        assert_eq!(outcome(&proxy), expected, "{tls}");
        let live = after_requests(&proxy, 1);
        let (good, bad) = (u64::from(expected.0 == 200), u64::from(expected.0 != 200));
        assert_eq!((live.handshakes.full, live.handshakes.failed), (good, bad), "{tls}");
        assert_eq!(live.servers[0].failures_total, bad, "it counts as a connection that failed");
    }
}

#[test]
fn a_server_that_demands_a_certificate_gets_that_of_the_proxy() {
    let (made, own) = (Made::new("demanding", "service.internal"), Made::new("own", "proxy.internal"));
    let server = Server::echo(made.server_config(Some(&own), &[]));
    let tls = format!("roots = {}, name = \"service.internal\"", made.file("cert.pem"));
    assert_eq!(outcome(&server.behind(&tls, "", "")).0, 502);
    let tls = format!("{tls}, cert = {}, key = {}", own.file("cert.pem"), own.file("key.pem"));
    assert_eq!(outcome(&server.behind(&tls, "", "")).0, 200);
}

#[test]
fn what_does_not_fit_the_sockets_goes_through_whole() {
    let made = Made::new("large", "service.internal");
    let server = Server::new(made.server_config(None, &[]), |_, mut stream| {
        while let Some(head) = read_head(&mut stream) {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let body = support::exactly(&mut stream, length.unwrap());
            answer(&mut stream, str::from_utf8(&body).unwrap());
        }
    });
    let proxy = server.behind("verify = false", "", "");
    let body = "0123456789abcdef".repeat(500_000);
    let mut client = proxy.connect();
    for _ in 0..2 {
        let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert!(talk(&mut client, &post).text() == body);
    }
    assert_eq!(server.accepted(), 1, "the connection is kept");
}

#[test]
fn a_kept_connection_whose_session_ended_gets_no_post() {
    let made = Made::new("ended", "service.internal");
    let (end, is_time) = channel();
    let is_time = Mutex::new(is_time);
    let (ended, is_ended) = channel();
    let (heard, is_heard): (_, Receiver<usize>) = channel();
    let server = Server::new(made.server_config(None, &[]), move |number, mut stream| {
        read_head(&mut stream).unwrap();
        answer(&mut stream, "answered");
        if number == 0 {
            // When the connection is kept, the session ends, and the socket does not.
            is_time.lock().unwrap().recv().unwrap();
            stream.conn.send_close_notify();
            stream.conn.write_tls(&mut stream.sock).unwrap();
            ended.send(()).unwrap();
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest));
            heard.send(rest.len()).unwrap();
        }
    });
    let proxy = server.behind("verify = false", "", "");
    let mut client = proxy.connect();
    assert_eq!(talk(&mut client, &request("POST")).text(), "answered");
    end.send(()).unwrap();
    is_ended.recv().unwrap();
    assert_eq!(talk(&mut client, &request("POST")).text(), "answered");
    assert_eq!((server.accepted(), is_heard.recv().unwrap()), (2, 0), "the second one took another connection");
}

#[test]
fn a_time_out_of_connecting_covers_the_handshake() {
    // It keeps its connections and says nothing.
    let kept = Mutex::new(Vec::new());
    let mute = Server::raw(move |_, stream| kept.lock().unwrap().push(stream));
    let proxy = mute.behind("verify = false", "", "[proxy.timeouts]\nupstream_connect = \"50ms\"\n");
    assert_eq!(outcome(&proxy), (504, "tidegate; error=connection_timeout".to_owned()));
    proxy.wait_until(|live| live.upstreams[0].handshakes.failed == 1);
}

#[test]
fn the_proxy_header_comes_before_the_handshake() {
    let config = Made::new("announced", "service.internal").server_config(None, &[]);
    let server = Server::raw(move |_, mut stream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(support::exactly(&mut stream, 1));
        }
        assert!(line.starts_with(b"PROXY TCP4 127.0.0.1 "), "{}", line.escape_ascii());
        echo_all(secured(&config, stream));
    });
    let proxy = server.behind("verify = false", "proxy_protocol = \"v1\"", "");
    assert_eq!(outcome(&proxy).0, 200);
}

#[test]
fn a_session_is_resumed() {
    let made = Made::new("resumed", "service.internal");
    let server = Server::new(made.server_config(None, &[]), |_, mut stream| {
        read_head(&mut stream).unwrap();
        answer(&mut stream, "once");
        stream.conn.send_close_notify();
        stream.conn.write_tls(&mut stream.sock).unwrap();
    });
    let proxy = server.behind("verify = false", "", "");
    let mut client = proxy.connect();
    for _ in 0..3 {
        assert_eq!(talk(&mut client, &request("GET")).text(), "once");
    }
    proxy.wait_until(|live| live.upstreams[0].handshakes.full + live.upstreams[0].handshakes.resumed == 3);
    assert_eq!(proxy.proxy().source().live().upstreams[0].handshakes.full, 1);
}

#[test]
fn an_upgraded_connection_stays_in_tls() {
    let made = Made::new("upgraded", "service.internal");
    let server = Server::new(made.server_config(None, &[]), |_, mut stream| {
        read_head(&mut stream).unwrap();
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        send(&mut stream, switch);
        let mut bytes = [0; 1024];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..read]).unwrap();
        }
    });
    let proxy = server.behind("verify = false", "", "");
    let mut client = proxy.connect();
    send(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert!(support::read_head(&mut client).starts_with("HTTP/1.1 101 "));
    for word in ["one", "two"] {
        send(&mut client, word);
        assert_eq!(support::exactly(&mut client, 3), word.as_bytes());
    }
}

/// A server of HTTP/2 that answers with the target and version of each request.
fn http2(config: Arc<ServerConfig>) -> (tokio::runtime::Runtime, Server) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&accepted);
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            count.fetch_add(1, Ordering::SeqCst);
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let (head, body) = request.into_parts();
                let length = body.collect().await.unwrap().to_bytes().len();
                let text = format!("{} {:?} {length}", head.uri, head.version);
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, Server { address, accepted })
}

#[test]
fn http2_is_spoken_over_tls() {
    let made = Made::new("http2", "service.internal");
    let (_runtime, server) = http2(made.server_config(None, &["http/1.1", "h2"]));
    let tls = format!("roots = {}, name = \"service.internal\"", made.file("cert.pem"));
    let more = "protocol = \"http2\"\nhealth = { interval = \"50ms\", rise = 1, fall = 1 }";
    let proxy = server.behind(&tls, more, "");
    for (method, length) in [("GET", 0), ("POST", 0)] {
        let answer = talk(&mut proxy.connect(), &request(method));
        assert_eq!(answer.text(), format!("https://shop.example/x HTTP/2.0 {length}"));
    }
    let live = after_requests(&proxy, 2);
    assert_eq!((live.handshakes.full, live.handshakes.failed), (1, 0), "both share a connection");
    // Checks have connections of their own: one that ended well decides, and the next follows.
    while server.accepted() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(outcome(&proxy).0, 200, "the checks find it well");
}

#[test]
fn a_server_that_speaks_another_protocol_is_not_asked() {
    let made = Made::new("alpn", "service.internal");
    for (spoken, protocol, error) in [
        (&["http/1.1"][..], "http2", "tls_alert_received"),
        (&[], "http2", "tls_protocol_error"),
        (&["h2"], "http1", "tls_alert_received"),
    ] {
        let server = Server::echo(made.server_config(None, spoken));
        let proxy = server.behind("verify = false", &format!("protocol = \"{protocol}\""), "");
        assert_eq!(outcome(&proxy), refused(error), "{spoken:?} {protocol}");
    }
}

#[test]
fn checks_verify_the_server_too() {
    let made = Made::new("checked", "service.internal");
    let server = Server::echo(made.server_config(None, &[]));
    for (name, health) in [("service.internal", Health::Up), ("other.internal", Health::Down)] {
        let tls = format!("roots = {}, name = \"{name}\"", made.file("cert.pem"));
        let before = server.accepted();
        let proxy = server.behind(&tls, "health = { interval = \"50ms\", rise = 1, fall = 1 }", "");
        proxy.wait_until(|live| {
            server.accepted() > before + 1 && live.upstreams[0].servers.iter().any(|one| one.health == health)
        });
    }
}

#[test]
fn roots_that_change_are_for_new_connections_and_others_keep_theirs() {
    let (made, other) = (Made::new("reload", "service.internal"), Made::new("others", "service.internal"));
    let server = Server::echo(made.server_config(None, &[]));
    let tls = format!("roots = {}, name = \"service.internal\"", made.file("cert.pem"));
    let proxy = server.behind(&tls, "", "");
    let reload = || {
        let text = server.config(&tls, "", "");
        let config = Config::from_document(&Document::new("tidegate.toml", text), 1).unwrap();
        proxy.proxy().reload(config)
    };
    // Threads take a configuration when they come to it.
    let until = |status| while outcome(&proxy).0 != status {};
    assert_eq!(outcome(&proxy).0, 200);
    reload().unwrap();
    assert_eq!((outcome(&proxy).0, server.accepted()), (200, 1), "nothing changed, so the connection is kept");
    made.write(&other.cert);
    reload().unwrap();
    until(502);
    std::fs::write(made.directory.join("cert.pem"), "nothing").unwrap();
    let error = reload().unwrap_err().to_string();
    assert!(error.starts_with("cannot read the certificate file ") && error.ends_with("cert.pem"), "{error}");
    made.write(&made.cert);
    reload().unwrap();
    until(200);
}

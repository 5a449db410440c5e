//! WebSocket over HTTP/2 (RFC 8441), by a client that says each frame itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use support::{Running, read_head};

/// Longer than anything takes, shorter than anybody waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of HTTP/1 that opens a `WebSocket` and does what the path says. Tells of each request its head, and how its
/// client ended.
struct Server {
    address: SocketAddr,
    told: Receiver<String>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tell = tell.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &tell));
            }
        });
        Self { address, told }
    }

    fn next(&self) -> String {
        self.told.recv_timeout(PATIENCE).unwrap()
    }
}

fn accept(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn serve(mut stream: TcpStream, tell: &Sender<String>) {
    let head = read_head(&mut stream);
    if head.is_empty() {
        return;
    }
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let key = field(&head, "sec-websocket-key").unwrap_or_default().to_owned();
    let protocol = field(&head, "sec-websocket-protocol")
        .map_or(String::new(), |name| format!("Sec-WebSocket-Protocol: {}\r\n", name.split(',').next().unwrap()));
    let told = tell.clone();
    told.send(head).unwrap();
    let accept = if path == "/wrong" { accept("another") } else { accept(&key) };
    let answer = match path.as_str() {
        "/page" => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage".to_owned(),
        "/426" => "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nContent-Length: 0\r\n\r\n"
            .to_owned(),
        _ => format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n{protocol}\r\nhello"
        ),
    };
    stream.write_all(answer.as_bytes()).unwrap();
    if path == "/reset" {
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        return;
    }
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return told.send("ended".to_owned()).unwrap_or(()),
            Ok(read) => stream.write_all(&bytes[..read]).unwrap(),
            Err(_) => return told.send("broke off".to_owned()).unwrap_or(()),
        }
    }
}

fn proxy(address: SocketAddr, protocol: &str, more: &str) -> Running {
    Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nprotocol = \"{protocol}\"\n\
         servers = [\"{address}\"]\n[[proxy.route]]\nupstream = \"u\"\n{more}"
    ))
}

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn ask(path: &str) -> Request<()> {
    ask_for(path, Some("websocket"), "13")
}

fn ask_for(path: &str, protocol: Option<&'static str>, version: &str) -> Request<()> {
    let mut request = Request::builder().method("CONNECT").header("sec-websocket-version", version);
    request = match protocol {
        Some(protocol) => request
            .uri(format!("http://shop.example{path}"))
            .header("sec-websocket-protocol", "chat, mail")
            .header("sec-websocket-key", "bWluZSBpcyBub3QgdGhlIGtleQ==")
            .extension(Protocol::from_static(protocol)),
        None => request.uri("shop.example:80"),
    };
    request.body(()).unwrap()
}

/// A tunnel as its client has it.
struct Tunnel {
    to: SendStream<Bytes>,
    from: RecvStream,
}

impl Tunnel {
    async fn open(sender: &mut SendRequest<Bytes>, request: Request<()>) -> (Response<()>, Self) {
        let (answer, to) = sender.send_request(request, false).unwrap();
        Self::answered(answer.await.unwrap(), to)
    }

    fn answered(answer: Response<RecvStream>, to: SendStream<Bytes>) -> (Response<()>, Self) {
        let (head, from) = answer.into_parts();
        (Response::from_parts(head, ()), Self { to, from })
    }

    fn send(&mut self, text: &'static str) {
        self.to.send_data(Bytes::from_static(text.as_bytes()), false).unwrap();
    }

    fn end(&mut self) {
        self.to.send_data(Bytes::new(), true).unwrap();
    }

    /// Until so many bytes came.
    async fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let piece = self.piece().await.expect("there is more").unwrap();
            all.extend_from_slice(&piece);
        }
        all
    }

    async fn piece(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let piece = tokio::time::timeout(PATIENCE, self.from.data()).await.unwrap()?;
        if let Ok(piece) = &piece {
            self.from.flow_control().release_capacity(piece.len()).unwrap();
        }
        Some(piece)
    }
}

fn is_idle(live: &tidegate_proxy::io::admin::status::Live) -> bool {
    live.upstreams.first().and_then(|upstream| upstream.servers.first()).is_some_and(|server| server.active == 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_over_http2_is_an_upgrade_over_http1() {
    let server = Server::start();
    let proxy = proxy(server.address, "http1", "");
    let mut sender = connect(proxy.address()).await;
    let (answer, mut to) = sender.send_request(ask("/socket?a=b"), false).unwrap();
    // It may be sent before the answer is there, and waits for it.
    to.send_data(Bytes::from_static(b"early"), false).unwrap();
    let (head, mut tunnel) = Tunnel::answered(answer.await.unwrap(), to);
    assert!(sender.is_extended_connect_protocol_enabled());
    let told = server.next();
    assert!(told.starts_with("GET /socket?a=b HTTP/1.1\r\n"), "{told}");
    assert_eq!(field(&told, "connection").map(str::to_lowercase).as_deref(), Some("upgrade"), "{told}");
    assert_eq!((field(&told, "upgrade"), field(&told, "host")), (Some("websocket"), Some("shop.example")));
    assert_eq!(field(&told, "sec-websocket-version"), Some("13"));
    assert_eq!(STANDARD.decode(field(&told, "sec-websocket-key").unwrap()).unwrap().len(), 16);
    assert!(!told.contains("bWluZSBpcyBub3QgdGhlIGtleQ"), "the key is the proxy's own");
    assert!(!told.contains("content-length") && !told.contains("transfer-encoding"), "{told}");
    assert_eq!(head.status(), 200);
    assert_eq!(head.headers().get("sec-websocket-protocol").unwrap(), "chat");
    assert!(!head.headers().contains_key("sec-websocket-accept") && !head.headers().contains_key("upgrade"));
    // What came right behind the server's head, and what comes back.
    assert_eq!(tunnel.take(10).await, b"helloearly");
    tunnel.send("and more");
    assert_eq!(tunnel.take(8).await, b"and more");
    // Another stream of the connection goes on beside it.
    let (head, mut other) = Tunnel::open(&mut sender, ask("/socket")).await;
    assert_eq!((head.status().as_u16(), other.take(5).await), (200, b"hello".to_vec()));
    server.next();
    other.send("other");
    assert_eq!(other.take(5).await, b"other");
    tunnel.end();
    assert_eq!(server.next(), "ended");
    assert!(tunnel.piece().await.is_none_or(|piece| piece.unwrap().is_empty()), "END_STREAM, and no reset");
    drop(other);
    assert_eq!(server.next(), "broke off", "dropped, it is reset");
    proxy.wait_until(is_idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_breaks_off_breaks_the_other_off() {
    let server = Server::start();
    let proxy = proxy(server.address, "http1", "");
    let mut sender = connect(proxy.address()).await;
    let (head, mut tunnel) = Tunnel::open(&mut sender, ask("/socket")).await;
    assert_eq!(head.status(), 200);
    server.next();
    tunnel.to.send_reset(Reason::CANCEL);
    assert_eq!(server.next(), "broke off");
    let (head, mut tunnel) = Tunnel::open(&mut sender, ask("/reset")).await;
    assert_eq!(head.status(), 200);
    let broken = loop {
        if let Err(error) = tunnel.piece().await.expect("no clean end") {
            break error;
        }
    };
    assert_eq!(broken.reason(), Some(Reason::CANCEL));
    server.next();
    // A client that is gone with its connection.
    let mut gone = connect(proxy.address()).await;
    let (_, tunnel) = Tunnel::open(&mut gone, ask("/socket")).await;
    server.next();
    drop((gone, tunnel));
    assert_eq!(server.next(), "broke off");
    proxy.wait_until(is_idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_opens_no_websocket_is_refused_and_the_connection_goes_on() {
    let server = Server::start();
    let proxy = proxy(server.address, "http1", "");
    let mut sender = connect(proxy.address()).await;
    for (request, status, error) in [
        (ask_for("/socket", Some("connect-udp"), "13"), 501, Some("http_request_error")),
        (ask_for("", None, "13"), 501, Some("http_request_error")),
        (ask_for("/socket", Some("websocket"), "8"), 400, Some("http_request_error")),
        (ask("/wrong"), 502, Some("http_upgrade_failed")),
        (ask("/page"), 502, Some("http_upgrade_failed")),
        (ask("/426"), 426, None),
        (ask("/../socket"), 400, Some("http_request_error")),
    ] {
        let text = format!("{request:?}");
        let is_other_version = status == 400 && text.contains("\"8\"");
        let (head, _tunnel) = Tunnel::open(&mut sender, request).await;
        assert_eq!(head.status().as_u16(), status, "{text}");
        let told = head.headers().get("proxy-status").map(|told| told.to_str().unwrap().to_owned());
        assert_eq!(told, error.map(|error| format!("tidegate; error={error}")), "{text}");
        let version = head.headers().get("sec-websocket-version");
        assert_eq!(version.is_some(), is_other_version || status == 426, "{text}");
    }
    let (head, mut tunnel) = Tunnel::open(&mut sender, ask("/socket")).await;
    assert_eq!((head.status().as_u16(), tunnel.take(5).await), (200, b"hello".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_over_http2_can_be_switched_off() {
    let server = Server::start();
    let proxy = proxy(server.address, "http1", "[proxy.http]\nh2_websocket = false\n");
    let mut sender = connect(proxy.address()).await;
    let (answer, _to) = sender.send_request(ask("/socket"), false).unwrap();
    // Nobody was told that it may be asked for.
    assert_eq!(answer.await.unwrap_err().reason(), Some(Reason::PROTOCOL_ERROR));
    assert!(!sender.is_extended_connect_protocol_enabled());
}

/// A HEADERS frame with these fields, on stream 1.
fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut frame = vec![0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, 1];
    frame.extend_from_slice(&block);
    frame
}

#[test]
fn an_extended_connect_without_scheme_or_path_is_a_stream_error() {
    let server = Server::start();
    let proxy = proxy(server.address, "http1", "");
    let all = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/socket")];
    for missing in [":scheme", ":path"] {
        let mut client = proxy.connect();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut fields: Vec<_> = all.into_iter().filter(|(name, _)| *name != missing).collect();
        fields.extend([(":authority", "shop.example"), ("sec-websocket-version", "13")]);
        client.write_all(&headers(&fields)).unwrap();
        let reset = loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).unwrap();
            let mut payload = vec![0; usize::from(head[2]) + (usize::from(head[1]) << 8)];
            client.read_exact(&mut payload).unwrap();
            if head[8] == 1 {
                break (head[3], payload);
            }
        };
        assert_eq!(reset, (3, vec![0, 0, 0, 1]), "RST_STREAM with PROTOCOL_ERROR, without {missing}");
    }
}

/// A server of HTTP/2 that opens a `WebSocket`, if it says so; what it is asked in another way it answers with the method.
async fn server2(opens: bool) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut builder = h2::server::Builder::new();
            if opens {
                builder.enable_connect_protocol();
            }
            tokio::spawn(async move {
                let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    tokio::spawn(async move {
                        let protocol = request.extensions().get::<Protocol>().map(|name| name.as_str().to_owned());
                        let method = request.method().to_string();
                        assert!(!request.headers().contains_key("sec-websocket-key"));
                        let (status, path) = match (request.uri().path(), protocol.as_deref()) {
                            ("/403", _) => (403, "/403"),
                            (_, Some("websocket")) => (200, "/socket"),
                            _ => (200, "/other"),
                        };
                        let answer = Response::builder().status(status).header("x-method", method).body(()).unwrap();
                        let mut to = respond.send_response(answer, path != "/socket").unwrap();
                        if path != "/socket" {
                            return;
                        }
                        if request.uri().path() == "/bye" {
                            // Its last word, behind which it wants no more: END_STREAM and RST_STREAM with NO_ERROR.
                            return to.send_data(Bytes::from_static(b"bye"), true).unwrap();
                        }
                        let mut from = request.into_body();
                        while let Some(Ok(piece)) = from.data().await {
                            from.flow_control().release_capacity(piece.len()).unwrap();
                            to.send_data(piece, false).unwrap();
                        }
                        let _ = to.send_data(Bytes::new(), true);
                    });
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_goes_on_over_http2_where_the_upstream_takes_it() {
    let proxy = proxy(server2(true).await, "h2c", "");
    let mut sender = connect(proxy.address()).await;
    for _ in 0..2 {
        let (head, mut tunnel) = Tunnel::open(&mut sender, ask("/socket")).await;
        assert_eq!(
            (head.status().as_u16(), head.headers().get("x-method").unwrap().as_bytes()),
            (200, &b"CONNECT"[..])
        );
        assert!(!head.headers().contains_key("sec-websocket-accept"));
        tunnel.send("over both");
        assert_eq!(tunnel.take(9).await, b"over both");
        tunnel.end();
        assert!(tunnel.piece().await.is_none_or(|piece| piece.unwrap().is_empty()));
    }
    let (_, mut tunnel) = Tunnel::open(&mut sender, ask("/bye")).await;
    tunnel.send("unwanted");
    assert_eq!(tunnel.take(3).await, b"bye");
    assert!(tunnel.piece().await.is_none_or(|piece| piece.unwrap().is_empty()), "END_STREAM, and no reset");
    tunnel.end();
    let (head, _) = Tunnel::open(&mut sender, ask("/403")).await;
    assert_eq!(head.status(), 403);
    proxy.wait_until(is_idle);
    // A client of HTTP/1 too.
    let address = proxy.address();
    let by_http1 = std::thread::spawn(move || {
        let mut client = TcpStream::connect(address).unwrap();
        let request = "GET /socket HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\nearly";
        let answer = support::talk_head(&mut client, request);
        assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")), "{answer:?}");
        assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(support::exactly(&mut client, 5), b"early");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(support::is_closed(&mut client));
    });
    tokio::task::spawn_blocking(|| by_http1.join().unwrap()).await.unwrap();
    proxy.wait_until(is_idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_of_http2_that_opens_none_is_not_asked_for_one() {
    let proxy = proxy(server2(false).await, "h2c", "");
    let mut sender = connect(proxy.address()).await;
    let (head, _tunnel) = Tunnel::open(&mut sender, ask("/socket")).await;
    assert_eq!(head.status(), 502);
    assert_eq!(head.headers().get("proxy-status").unwrap(), "tidegate; error=http_upgrade_failed");
    // HTTP/1 lets a server leave the upgrade out.
    let address = proxy.address();
    let by_http1 = std::thread::spawn(move || {
        let mut client = TcpStream::connect(address).unwrap();
        let request = "GET /socket HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\n\r\n";
        let answer = support::talk_head(&mut client, request);
        assert_eq!((answer.status, answer.header("x-method")), (200, Some("GET")));
    });
    tokio::task::spawn_blocking(|| by_http1.join().unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_over_http2_has_its_tenants_bandwidth_and_its_time() {
    const BYTES: usize = 300_000;
    let server = Server::start();
    let tenant = "[[proxy.tenant]]\nname = \"shop.example\"\nbandwidth = \"2MB/s\"\n";
    let by_host = "[proxy.tenants]\nby = \"host\"\n[proxy.timeouts]\nupgraded_idle = \"500ms\"\n";
    let proxy = proxy(server.address, "http1", &format!("{by_host}{tenant}"));
    let mut sender = connect(proxy.address()).await;
    let (_, mut tunnel) = Tunnel::open(&mut sender, ask("/socket")).await;
    tunnel.take(5).await;
    tunnel.to.send_data(Bytes::from(vec![b'x'; BYTES]), false).unwrap();
    assert_eq!(tunnel.take(BYTES).await, vec![b'x'; BYTES]);
    let counted = &proxy.proxy().source().live().bandwidths[0];
    assert_eq!((counted.0.as_str(), counted.1.bytes), ("shop.example", 2 * BYTES as u64));
    assert!(counted.1.waits > 0, "{counted:?}");
    // Nothing moves any more.
    let ended = tunnel.piece().await.expect("a reset");
    assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
    proxy.wait_until(is_idle);
}

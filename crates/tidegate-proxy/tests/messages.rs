//! Messages that readers in a row understand differently: what of them goes on, in either direction.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream, is_closed, read_answer, read_head, send, talk, talk_head};

/// A server that does with each connection what the test says. It lives as long as the test's process.
struct Scripted {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let (serve, count) = (Arc::new(serve), Arc::clone(&accepted));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream.unwrap()));
            }
        });
        Self { address, accepted }
    }

    /// Answers every request with these bytes.
    fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::new(move |mut stream| while !read_head(&mut stream).is_empty() && stream.write_all(&answer).is_ok() {})
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn proxy(&self, more: &str) -> Running {
        let one = "[proxy]\nthreads = 1\noverflow_threads = 0\n";
        Running::before_address(&self.address.to_string(), &format!("{more}{one}"))
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n";

/// Fields that gateways may read as what the proxy writes, believes or ends here, and one that is nothing of that.
const LOOKALIKES: [(&str, &str); 9] = [
    ("X_Forwarded_For", "198.51.100.1"),
    ("x-forwarded_for", "198.51.100.2"),
    ("X_Real_IP", "198.51.100.3"),
    ("X_Forwarded_Proto", "https"),
    ("X_Forwarded_Anything", "1"),
    ("Keep_Alive", "timeout=900"),
    ("Proxy_Authorization", "Basic eA=="),
    ("X_Plan", "gold"),
    ("X_Custom", "stays"),
];

const WITH_PLAN: &str = "set_request_headers = { x-plan = \"free\" }\n";

fn assert_lookalikes_are_gone(echo: &str) {
    let told = echo.to_ascii_lowercase();
    assert!(told.contains("x_custom: stays\r\n"), "{echo}");
    assert!(told.contains("x-plan: free\r\n") && told.contains("x-forwarded-for: 127.0.0.1\r\n"), "{echo}");
    let underscores = told.lines().filter(|line| line.split(':').next().unwrap().contains('_')).count();
    assert_eq!(underscores, 1, "{echo}");
}

#[test]
fn fields_that_look_like_those_of_proxies_end_here() {
    let upstream = Upstream::echo();
    for trusted in ["", "[proxy]\ntrusted = [\"127.0.0.0/8\"]\n"] {
        let proxy = Running::before(&upstream, &format!("{WITH_PLAN}{trusted}"));
        let fields = LOOKALIKES.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let answer = talk(&mut proxy.connect(), &format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"));
        assert_eq!(answer.status, 200);
        assert_lookalikes_are_gone(answer.text());
    }
}

async fn http2(address: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = made.await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn text(answer: Response<Incoming>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn they_end_here_over_http2_as_well() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, WITH_PLAN);
    let mut request = Request::builder().uri("http://shop.example/");
    for (name, value) in LOOKALIKES {
        request = request.header(name.to_ascii_lowercase(), value);
    }
    let answer = http2(proxy.address()).await.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_lookalikes_are_gone(&text(answer).await);
}

#[tokio::test]
async fn a_path_over_http2_is_held_to_what_one_over_http1_is() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut sender = http2(proxy.address()).await;
    for (path, status) in
        [("/a%20b?c=%", 200), ("/a%00b", 400), ("/a%", 400), ("/a%2", 400), ("/a%zzb", 400), ("/a\"b", 400)]
    {
        let request = Request::builder().uri(format!("http://shop.example{path}"));
        let answer = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path} over HTTP/2");
        let one = talk(&mut proxy.connect(), &format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
        assert_eq!(one.status, status, "{path} over HTTP/1");
    }
}

#[tokio::test]
async fn te_goes_no_further_where_trailers_do_not() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    for fields in ["TE: trailers\r\n", "TE: trailers, gzip\r\nConnection: TE\r\n"] {
        let answer = talk(&mut proxy.connect(), &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert!(!answer.text().to_ascii_lowercase().contains("\r\nte:"), "{}", answer.text());
    }
    let request = Request::builder().uri("http://shop.example/").header("te", "trailers");
    let answer = http2(proxy.address()).await.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    assert!(!text(answer).await.contains("\r\nte:"));
}

#[tokio::test]
async fn te_of_an_http1_client_does_not_reach_a_server_of_http2() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let te = request.headers().get("te").map_or("none", |te| te.to_str().unwrap()).to_owned();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(te))))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let proxy = Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nprotocol = \"h2c\"\n\
         servers = [\"{address}\"]\n[[proxy.route]]\nupstream = \"u\"\n"
    ));
    let mut client = proxy.connect();
    let one = tokio::task::spawn_blocking(move || {
        talk(&mut client, "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n").text().to_owned()
    });
    assert_eq!(one.await.unwrap(), "none", "its trailers would be dropped");
    let request = Request::builder().uri("http://shop.example/").header("te", "trailers");
    let answer = http2(proxy.address()).await.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(text(answer).await, "trailers", "those of HTTP/2 go on");
}

#[test]
fn a_client_of_http10_is_not_told_to_go_on() {
    let (seen, head_came) = mpsc::channel();
    let server = Scripted::new(move |mut stream| {
        read_head(&mut stream);
        seen.send(()).unwrap();
        let mut body = [0; 5];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let proxy = server.proxy("");
    for (version, first) in [("1.0", "HTTP/1.1 200 OK"), ("1.1", "HTTP/1.1 100 Continue")] {
        let mut client = proxy.connect();
        let fields = "Host: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n";
        send(&mut client, &format!("POST / HTTP/{version}\r\n{fields}\r\n"));
        // When the server has the head, the proxy waits for the body.
        head_came.recv().unwrap();
        send(&mut client, "hello");
        let head = read_head(&mut client);
        assert_eq!(head.lines().next(), Some(first), "HTTP/{version}");
    }
}

#[test]
fn chunks_are_refused_by_http10_and_padded_sizes_are_bounded() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let post = |version: &str, chunks: &str| {
        let head = format!("POST / HTTP/{version}\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        talk(&mut proxy.connect(), &format!("{head}{chunks}"))
    };
    assert_eq!(post("1.0", "5\r\nhello\r\n0\r\n\r\n").status, 400);
    let padded = post("1.1", "0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n");
    assert_eq!(padded.status, 200);
    assert!(padded.text().ends_with("\r\n\r\nhello"), "{}", padded.text());
    for size in ["00000000000000005", " 5", "5 ", "5\t", "\t5", "5 ;a=b"] {
        let answer = post("1.1", &format!("{size}\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(answer.status, 400, "{size:?}");
    }
}

#[test]
fn padded_sizes_of_answers_are_bounded_as_those_of_requests() {
    let chunked = |size: &str| {
        Scripted::saying(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n+\r\n{size}\r\nhello\r\n0\r\n\r\n"
        ))
    };
    for size in ["5", "0000000000000005", "5;a=b", "5 ;a=b"] {
        let server = chunked(size);
        let proxy = server.proxy("");
        assert_eq!(talk(&mut proxy.connect(), GET).text(), "+hello", "{size:?}");
    }
    for size in ["00000000000000005", " 5", "5 ", "5\t", "8000000000000000"] {
        let server = chunked(size);
        let proxy = server.proxy("");
        let mut client = proxy.connect();
        send(&mut client, GET);
        let mut all = Vec::new();
        // It ends, however that is told, and not as an answer does.
        drop(client.read_to_end(&mut all));
        assert!(!all.ends_with(b"0\r\n\r\n"), "{size:?}: {}", all.escape_ascii());
    }
}

#[test]
fn interim_answers_are_read_and_not_without_end() {
    let few =
        format!("{}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(9));
    let server = Scripted::saying(few);
    let proxy = server.proxy("");
    let mut client = proxy.connect();
    for _ in 0..3 {
        assert_eq!(talk(&mut client, GET).text(), "done");
    }
    assert_eq!(server.accepted(), 1);
    let many = Scripted::new(|mut stream| {
        read_head(&mut stream);
        while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").is_ok() {}
    });
    let proxy = many.proxy("");
    assert_eq!(talk(&mut proxy.connect(), GET).status, 502);
}

#[test]
fn bytes_behind_an_answer_without_content_are_no_answer() {
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 42\r\n\r\n"),
    ] {
        for together in [true, false] {
            let (tell, told) = mpsc::channel::<()>();
            let (done, is_done) = mpsc::channel();
            let told = std::sync::Mutex::new(told);
            let server = Scripted::new(move |mut stream| {
                let first = read_head(&mut stream);
                if !first.contains("first") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood").unwrap();
                    return;
                }
                if together {
                    stream.write_all(format!("{head}{EVIL}").as_bytes()).unwrap();
                } else {
                    stream.write_all(head.as_bytes()).unwrap();
                    told.lock().unwrap().recv().unwrap();
                    stream.write_all(EVIL.as_bytes()).unwrap();
                }
                done.send(()).unwrap();
                // Open until the proxy ends it.
                drop(stream.read(&mut [0; 1024]));
            });
            let proxy = server.proxy("");
            let mut client = proxy.connect();
            talk_head(&mut client, &format!("{method} /first HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
            tell.send(()).unwrap();
            is_done.recv().unwrap();
            let answer = talk(&mut client, GET);
            assert_eq!((answer.status, answer.text()), (200, "good"), "{method} {head}");
            assert_eq!(server.accepted(), 2);
        }
    }
}

#[test]
fn a_post_does_not_go_out_on_a_connection_that_its_server_has_closed() {
    let (closed, is_closed) = mpsc::channel();
    let server = Scripted::new(move |mut stream| {
        let head = read_head(&mut stream);
        if head.starts_with("POST") {
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nonce").unwrap();
        if head.starts_with("GET") {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            closed.send(()).unwrap();
        }
    });
    let proxy = server.proxy("");
    let mut client = proxy.connect();
    for _ in 0..10 {
        assert_eq!(talk(&mut client, GET).text(), "once");
        is_closed.recv().unwrap();
        let post = talk(&mut client, "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!((post.status, post.text()), (200, "once"));
    }
}

#[test]
fn a_connection_whose_204_announces_content_is_not_used_again() {
    for field in ["Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"] {
        let server = Scripted::saying(format!("HTTP/1.1 204 No Content\r\n{field}\r\n"));
        let proxy = server.proxy("");
        let mut client = proxy.connect();
        for turn in 1..4 {
            assert_eq!(talk_head(&mut client, GET).status, 204);
            assert_eq!(server.accepted(), turn, "{field}");
        }
    }
    let server = Scripted::saying("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n");
    let proxy = server.proxy("");
    let mut client = proxy.connect();
    for _ in 0..3 {
        assert_eq!(talk_head(&mut client, GET).status, 204);
    }
    assert_eq!(server.accepted(), 1);
}

#[test]
fn a_server_says_how_long_its_connections_are_kept() {
    for (keep_alive, connections) in [("timeout=0", 3), ("timeout=100, max=7", 1), ("max=7", 1), ("nonsense", 1)] {
        let server =
            Scripted::saying(format!("HTTP/1.1 200 OK\r\nKeep-Alive: {keep_alive}\r\nContent-Length: 4\r\n\r\ndone"));
        let proxy = server.proxy("");
        let mut client = proxy.connect();
        for _ in 0..3 {
            let answer = talk(&mut client, GET);
            assert_eq!((answer.text(), answer.header("keep-alive")), ("done", None));
        }
        assert_eq!(server.accepted(), connections, "{keep_alive}");
    }
}

#[test]
fn a_drain_serves_what_waits_to_be_taken() {
    // More than a thread takes at once.
    const CLIENTS: usize = 300;
    let upstream = Upstream::echo();
    let proxy =
        Running::before(&upstream, "[proxy]\nthreads = 1\noverflow_threads = 0\n[proxy.limits]\nmode = \"off\"\n");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        send(client, GET);
    }
    assert!(proxy.drain(), "in time");
    for (turn, client) in clients.iter_mut().enumerate() {
        assert_eq!(read_answer(client).status, 200, "client {turn}");
        assert!(is_closed(client));
    }
}

//! HTTP/2 without TLS, by hyper's client.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::future::ready;
use std::io::Write;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::TE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream};
use tokio::net::{TcpListener, TcpStream};

async fn connect<B>(proxy: &Running) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let uri = format!("http://shop.example{path}");
    Request::builder().method("POST").uri(uri).body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let sender = connect(&proxy).await;
    let mut answers = Vec::new();
    for turn in 0..20 {
        let mut sender = sender.clone();
        answers.push(tokio::spawn(async move {
            let answer = sender.send_request(request(&format!("/{turn}"), "hello")).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            let text = str::from_utf8(&text).unwrap().to_owned();
            assert!(text.starts_with(&format!("POST /{turn} HTTP/1.1\r\n")), "{text}");
            assert!(text.contains("host: shop.example\r\n"), "{text}");
            assert!(text.ends_with("\r\n\r\nhello"), "{text}");
        }));
    }
    for answer in answers {
        answer.await.unwrap();
    }
    // Each stream is counted once, when it has ended.
    let source = proxy.proxy().source();
    while source.times().routes[0].count() < 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!((source.times().routes[0].count(), source.times().upstreams[0].count()), (20, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_came_by_a_port_that_closes_is_served_and_then_told_to_leave() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let held = tokio::spawn(sender.send_request(request("/held", "")));
    upstream.wait_for_held();
    let elsewhere = format!(
        "[[proxy.listen]]\naddress = \"127.0.0.2:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\nupstream = \"u\"\n",
        upstream.address()
    );
    proxy.proxy().reload(support::config(&elsewhere)).unwrap();
    upstream.release_held();
    let answer = held.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
    connection.await.unwrap().unwrap();
    assert!(sender.send_request(request("/", "")).await.is_err());
}

#[tokio::test]
async fn streams_of_one_connection_are_charged_to_whom_they_say() {
    let upstream = Upstream::echo();
    let tables = "[proxy.tenants]\nby = \"header:x-plan\"\nheader_from = [\"127.0.0.1\"]\n[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = 50\n";
    let proxy = Running::before(&upstream, tables);
    let mut sender = connect(&proxy).await;
    let mut refused = [0, 0];
    for turn in 0..300 {
        let mut request = request("/", "");
        request.headers_mut().insert("x-plan", HeaderValue::from_static(["gold", "free"][turn % 2]));
        let answer = sender.send_request(request).await.unwrap();
        refused[turn % 2] += u64::from(answer.status() != StatusCode::OK);
        answer.into_body().collect().await.unwrap();
    }
    let seen = proxy.proxy().snapshot();
    let of = |name| seen.tenants.iter().find(|tenant| tenant.name == name).unwrap().refused.request;
    assert_eq!([of("gold"), of("free")], refused);
    assert!(refused.iter().all(|&refused| refused > 0), "{refused:?}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.timeouts]\nwrite_stall = \"200ms\"\n");
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.initial_stream_window_size(1).handshake(TokioIo::new(stream)).await.unwrap();
    let ended = tokio::spawn(connection);
    // More than the proxy takes in two reads.
    let body = Full::new(Bytes::from(vec![b'x'; 1 << 20]));
    let request = Request::builder().method("POST").uri("http://shop.example/").body(body).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    // Its body is never read, so that its window stays as it is; the connection is what ends.
    let _ended_somehow = ended.await.unwrap();
    drop(answer);
    proxy.wait_until(|live| live.connections == 0);
}

#[tokio::test]
async fn a_request_has_its_whole_time_and_no_more() {
    // It accepts, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy =
        Running::before_address(&silent.local_addr().unwrap().to_string(), "[proxy.timeouts]\ntotal = \"200ms\"\n");
    let mut sender = connect(&proxy).await;
    let answer = sender.send_request(request("/", "hello")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn each_request_holds_memory_until_it_ends() {
    let upstream = Upstream::echo();
    // Enough for a connection and one request.
    let proxy = Running::before(&upstream, "[proxy.limits.capacities]\nmemory = \"50KiB\"\n");
    let mut sender = connect(&proxy).await;
    let first = sender.send_request(request("/held", ""));
    let second = sender.send_request(request("/", "")).await.unwrap();
    assert!([429, 503].contains(&second.status().as_u16()), "{}", second.status());
    upstream.release_held();
    let first = first.await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "done");
    let third = sender.send_request(request("/", "")).await.unwrap();
    assert_eq!(third.status(), StatusCode::OK);
}

#[tokio::test]
async fn who_says_nothing_leaves_memory_to_others() {
    // So many hold more than there is.
    const SILENT: u64 = 300;
    let upstream = Upstream::echo();
    let tables = "[proxy]\nthreads = 1\noverflow_threads = 0\n[proxy.limits.capacities]\nmemory = \"1MiB\"\n";
    let proxy = Running::before(&upstream, tables);
    let mut silent: Vec<_> = (0..SILENT).map(|_| proxy.connect()).collect();
    for client in &mut silent {
        client.write_all(b"P").unwrap();
    }
    proxy.wait_until(|live| live.connections_total == SILENT);
    let answer = connect(&proxy).await.send_request(request("/", "")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    proxy.wait_until(|live| live.connections <= 64);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "[proxy.http]\nmax_body = 4\n");
    let mut sender = connect(&proxy).await;
    let answer = sender.send_request(request("/", "hello")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// A server of HTTP/2 that answers with what came: body and trailers, and in the trailer `x-te` what it was told of them.
async fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                let te = request.headers().get(TE).cloned();
                let whole = request.into_body().collect().await.unwrap();
                let mut trailers = whole.trailers().cloned().unwrap_or_default();
                trailers.extend(te.map(|te| (HeaderName::from_static("x-te"), te)));
                let body = Full::new(whole.to_bytes()).with_trailers(ready(Some(Ok(trailers))));
                Ok::<_, Infallible>(Response::new(body))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn trailers_go_both_ways_whether_or_not_the_body_waits_on_disk() {
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-trailers-{}", std::process::id()));
    let spool = format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"\n", directory.display());
    let address = mirror().await;
    for more in ["", spool.as_str()] {
        let proxy = Running::start(&format!(
            "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nprotocol = \"h2c\"\n\
             servers = [\"{address}\"]\n[[proxy.route]]\nupstream = \"u\"\n{more}"
        ));
        let mut sender = connect(&proxy).await;
        for size in [0_usize, 10, 1_000_000] {
            let status = (HeaderName::from_static("grpc-status"), HeaderValue::from(size));
            let trailers: HeaderMap = [status].into_iter().collect();
            let body = Full::new(Bytes::from(vec![b'x'; size]));
            let body = body.with_trailers(ready(Some(Ok(trailers))));
            let head = Request::builder().method("POST").uri("http://shop.example/").header(TE, "trailers");
            let answer = sender.send_request(head.body(body).unwrap()).await.unwrap();
            let whole = answer.into_body().collect().await.unwrap();
            let trailers = whole.trailers().cloned().unwrap();
            assert_eq!(trailers.get("grpc-status").unwrap(), &HeaderValue::from(size));
            assert_eq!(trailers.get("x-te").unwrap(), "trailers");
            assert_eq!(whole.to_bytes().len(), size);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

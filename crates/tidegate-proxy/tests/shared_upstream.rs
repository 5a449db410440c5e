//! One upstream behind several tenants: what one of them does not read, or sends too slowly, holds up no other.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream, read_answer, read_head, send, talk};

/// More than all buffers on the way to a client that reads nothing have room for.
const BIG: usize = 8 << 20;
const SMALL: usize = 100_000;
/// As much as the head of an answer may have, less some room.
const LONG: usize = 60 << 10;

/// What `/big` and `/small` are answered with: one allocation for all.
fn body_of(path: &str) -> Bytes {
    static ZEROS: [u8; BIG] = [0; BIG];
    Bytes::from_static(if path == "/big" { &ZEROS } else { &ZEROS[..SMALL] })
}

/// A server of HTTP/2 by prior knowledge. It reads nothing of what is sent to `/deaf`, and answers nobody there.
fn h2c(streams: Option<u32>) -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(streams);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer)));
        }
    });
    (runtime, address)
}

async fn answer(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let path = request.uri().path().to_owned();
    if path == "/deaf" {
        std::future::pending::<()>().await;
    }
    drop(request.into_body().collect().await);
    let mut answer = Response::new(Full::new(body_of(&path)).boxed());
    if path == "/long-head" {
        answer.headers_mut().insert("x-long", "x".repeat(LONG).parse().unwrap());
    }
    Ok(answer)
}

/// The same over HTTP/1.
fn http1() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    while let Ok(1..) = read_byte(&mut stream, &mut head) {
        if head.ends_with(b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&head).into_owned();
            let body = body_of(text.split(' ').nth(1).unwrap());
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            if stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
                return;
            }
            head.clear();
        }
    }
}

fn read_byte(stream: &mut TcpStream, head: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut byte = [0];
    let read = stream.read(&mut byte)?;
    head.extend_from_slice(&byte[..read]);
    Ok(read)
}

/// A proxy on one thread whose tenants are told apart by their hosts.
fn before(address: SocketAddr, protocol: &str, more: &str) -> Running {
    Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{address}\"]\n\
         protocol = \"{protocol}\"\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 1\noverflow_threads = 0\n\
         [proxy.tenants]\nby = \"host\"\n{more}"
    ))
}

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn under_way(proxy: &Running, requests: u64) {
    proxy.wait_until(|live| live.upstreams[0].servers.first().is_some_and(|server| server.active == requests));
}

/// The quiet tenant's answers come whole. More than one is asked for: the loud one's may still fill windows.
fn quiet_is_served(proxy: &Running) {
    let mut client = proxy.connect();
    for _ in 0..10 {
        let answer = talk(&mut client, &get("/small", "quiet"));
        assert_eq!((answer.status, answer.body.len()), (200, SMALL));
    }
}

#[test]
fn readers_of_one_tenant_that_stop_do_not_hold_up_another() {
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-shared-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let spool =
        format!("[proxy.spool]\nabove = \"64KiB\"\nmax_bytes = \"16MiB\"\ndirectory = \"{}\"\n", directory.display());
    let (_runtime, h2c) = h2c(None);
    for (protocol, address) in [("h2c", h2c), ("http1", http1())] {
        for more in ["", spool.as_str()] {
            let proxy = before(address, protocol, more);
            let mut stalled = Vec::new();
            for readers in [1, 3, 50] {
                while stalled.len() < readers {
                    let mut reader = proxy.connect();
                    send(&mut reader, &get("/big", "loud"));
                    read_head(&mut reader);
                    stalled.push(reader);
                }
                quiet_is_served(&proxy);
            }
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_answer_over_http2_may_have_as_long_a_head_as_one_over_http1() {
    let (_runtime, address) = h2c(None);
    let proxy = before(address, "h2c", "");
    let answer = talk(&mut proxy.connect(), &get("/long-head", "quiet"));
    assert_eq!((answer.status, answer.header("x-long").map(str::len)), (200, Some(LONG)));
}

#[test]
fn readers_of_a_tenant_that_stop_do_not_hold_up_its_own_others() {
    let (_runtime, address) = h2c(None);
    let proxy = before(address, "h2c", "");
    let stalled: Vec<_> = (0..50)
        .map(|_| {
            let mut reader = proxy.connect();
            send(&mut reader, &get("/big", "quiet"));
            read_head(&mut reader);
            reader
        })
        .collect();
    quiet_is_served(&proxy);
    drop(stalled);
}

#[test]
fn a_body_that_the_upstream_does_not_read_holds_up_no_other_tenant() {
    let (_runtime, address) = h2c(None);
    let proxy = before(address, "h2c", "");
    let mut loud = proxy.connect();
    let mut sending = loud.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        send(&mut sending, "POST /deaf HTTP/1.1\r\nHost: loud\r\nContent-Length: 100000000\r\n\r\n");
        while sending.write_all(&[0; 4096]).is_ok() {}
    });
    under_way(&proxy, 1);
    let body = "x".repeat(SMALL);
    let mut client = proxy.connect();
    for _ in 0..20 {
        let post = format!("POST /small HTTP/1.1\r\nHost: quiet\r\nContent-Length: {SMALL}\r\n\r\n{body}");
        assert_eq!(talk(&mut client, &post).status, 200);
    }
    loud.shutdown(std::net::Shutdown::Both).unwrap();
    drop(loud.read(&mut [0]));
    sender.join().unwrap();
}

#[test]
fn names_that_one_address_makes_up_leave_connections_to_others() {
    let (_runtime, address) = h2c(Some(1));
    let proxy = before(address, "h2c", "unknown = \"apart\"\n[[proxy.tenant]]\nname = \"quiet\"\n");
    let mut loud: Vec<_> = (0..64).map(|_| proxy.connect()).collect();
    for (number, client) in loud.iter_mut().enumerate() {
        send(client, &get("/deaf", &format!("l{number}")));
        under_way(&proxy, number as u64 + 1);
    }
    quiet_is_served(&proxy);
}

#[test]
fn streams_that_a_server_allows_are_not_one_tenants() {
    let (_runtime, address) = h2c(Some(1));
    let proxy = before(address, "h2c", "");
    let mut loud: Vec<_> = (0..5).map(|_| proxy.connect()).collect();
    for client in &mut loud {
        send(client, &get("/deaf", "loud"));
    }
    under_way(&proxy, 5);
    quiet_is_served(&proxy);
}

/// A server with so many workers, each busy for 10 ms with a request.
fn workers(count: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let free = std::sync::Arc::new((std::sync::Mutex::new(count), std::sync::Condvar::new()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, free) = (stream.unwrap(), std::sync::Arc::clone(&free));
            std::thread::spawn(move || {
                let mut head = Vec::new();
                while let Ok(1..) = read_byte(&mut stream, &mut head) {
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    head.clear();
                    let (places, changed) = &*free;
                    let mut places = changed.wait_while(places.lock().unwrap(), |places| *places == 0).unwrap();
                    *places -= 1;
                    drop(places);
                    // Nobody unparks it.
                    std::thread::park_timeout(std::time::Duration::from_millis(10));
                    *free.0.lock().unwrap() += 1;
                    free.1.notify_one();
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Forty clients of one tenant ask a server of four workers, beside one of another tenant; whether a limit was learnt.
fn learns(adaptive: bool) -> bool {
    let more = format!("adaptive_concurrency = {adaptive}");
    let address = workers(4);
    let proxy = Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{address}\"]\n\
         {more}\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 1\noverflow_threads = 0\n\
         [proxy.tenants]\nby = \"host\"\n"
    ));
    let mut quiet = proxy.connect();
    for _ in 0..40 {
        assert_eq!(talk(&mut quiet, &get("/", "quiet")).status, 200);
    }
    let ask = |count: usize| {
        let mut client = proxy.connect();
        std::thread::spawn(move || (0..count).all(|_| talk(&mut client, &get("/", "loud")).status == 200))
    };
    let loud: Vec<_> = (0..40).map(|_| ask(20)).collect();
    while !loud.iter().all(std::thread::JoinHandle::is_finished) {
        assert_eq!(talk(&mut quiet, &get("/", "quiet")).status, 200, "it is refused nothing");
    }
    assert!(loud.into_iter().all(|loud| loud.join().unwrap()), "what waits is answered in the end");
    proxy.wait_until(|live| live.upstreams[0].servers.first().is_some_and(|server| server.requests_total >= 840));
    proxy.proxy().source().live().upstreams[0].limit.is_some()
}

#[test]
fn what_an_upstream_can_do_at_once_is_learnt_unless_it_is_not_wanted() {
    assert!(learns(true));
    assert!(!learns(false));
}

/// One of a known length and one without.
#[test]
fn an_upload_counts_for_what_an_upstream_can_do_from_its_last_byte() {
    let upstream = Upstream::echo();
    let proxy = before(upstream.address().parse().unwrap(), "http1", "");
    let piece = format!("{:x}\r\n{}\r\n", SMALL / 2, "x".repeat(SMALL / 2));
    let length = 2 * piece.len();
    let uploads = [(format!("Content-Length: {length}"), ""), ("Transfer-Encoding: chunked".to_owned(), "0\r\n\r\n")];
    let mut uploads = uploads.map(|(framing, end)| {
        let mut client = proxy.connect();
        send(&mut client, &format!("POST /held HTTP/1.1\r\nHost: slow\r\n{framing}\r\n\r\n{piece}"));
        (client, end)
    });
    let in_flight = std::cell::Cell::new(0);
    proxy.wait_until(|live| {
        in_flight.set(live.upstreams[0].in_flight);
        live.upstreams[0].servers.first().is_some_and(|server| server.active == 2)
    });
    assert_eq!(in_flight.get(), 0, "their clients still send");
    for (client, end) in &mut uploads {
        send(client, &format!("{piece}{end}"));
    }
    proxy.wait_until(|live| live.upstreams[0].in_flight == 2);
    upstream.release_held();
    for (client, _) in &mut uploads {
        assert_eq!(read_answer(client).status, 200);
    }
    proxy.wait_until(|live| live.upstreams[0].in_flight == 0);
}

//! Servers behind the proxy over real sockets: which one is asked, what is tried again, who waits.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream, read_answer, send, talk};
use tidegate_proxy::io::admin::status::{Health, Live, LiveServer};

/// A server that does with each connection what the test says. It lives as long as the test's process.
struct Scripted {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(serve: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::<AtomicUsize>::default();
        let (serve, count) = (Arc::new(serve), Arc::clone(&accepted));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serve, number) = (Arc::clone(&serve), count.fetch_add(1, Ordering::SeqCst));
                std::thread::spawn(move || serve(number, stream.unwrap()));
            }
        });
        Self { address, accepted }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Everything up to the end of a head; `None` if the other side closed before.
fn read_head(stream: &mut TcpStream) -> Option<String> {
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

fn answer(stream: &mut TcpStream, text: &str) {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
    stream.write_all(answer.as_bytes()).unwrap();
}

/// Answers every request with `name`.
fn named(name: &'static str) -> Scripted {
    Scripted::new(move |_, mut stream| {
        while read_head(&mut stream).is_some() {
            answer(&mut stream, name);
        }
    })
}

/// A proxy on one thread before these servers.
fn before(servers: &[SocketAddr], upstream: &str, more: &str) -> Running {
    let servers: Vec<_> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [{}]\n\
         balance = \"round_robin\"\n{upstream}\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 1\n\
         overflow_threads = 0\n{more}",
        servers.join(", ")
    ))
}

/// The first server's figures, once they are as wanted. Threads publish theirs now and then.
fn until(proxy: &Running, wanted: impl Fn(&LiveServer) -> bool) -> LiveServer {
    loop {
        let upstream = proxy.proxy().source().live().upstreams.remove(0);
        match upstream.servers.first() {
            Some(server) if wanted(server) => return *server,
            _ => std::thread::yield_now(),
        }
    }
}

fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn request(method: &str) -> String {
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    format!("{method} / HTTP/1.1\r\nHost: shop.example\r\n{length}\r\n")
}

/// Closes every connection when a request came.
fn rude() -> Scripted {
    Scripted::new(|_, mut stream| {
        read_head(&mut stream);
    })
}

#[test]
fn servers_take_turns_and_their_connections_are_kept() {
    let (a, b) = (named("a"), named("b"));
    let proxy = before(&[a.address, b.address], "", "");
    let mut client = proxy.connect();
    let answers: String = (0..6).map(|_| talk(&mut client, &request("GET")).text().to_owned()).collect();
    assert_eq!(answers, "ababab");
    assert_eq!((a.accepted(), b.accepted()), (1, 1));
}

#[test]
fn weights_are_parts_of_the_requests() {
    let (a, b) = (named("a"), named("b"));
    let weights = format!("weights = {{ \"{}\" = 2 }}", b.address);
    let proxy = before(&[a.address, b.address], &weights, "");
    let mut client = proxy.connect();
    let answers: String = (0..6).map(|_| talk(&mut client, &request("GET")).text().to_owned()).collect();
    assert_eq!(answers, "babbab");
}

#[test]
fn requests_of_one_key_meet_one_server() {
    let (a, b) = (named("a"), named("b"));
    let upstream = "max_connections = 8\nbalance = \"hash\"\nhash_by = \"header:X-User\"";
    let servers = [a.address, b.address].map(|server| format!("\"{server}\""));
    let text = |servers: &[String]| {
        format!(
            "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [{}]\n{upstream}\n\
             [[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 2\noverflow_threads = 0\n",
            servers.join(", ")
        )
    };
    let proxy = Running::start(&text(&servers));
    let ask = |user: usize| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n");
        talk(&mut proxy.connect(), &request).text().to_owned()
    };
    let home: Vec<_> = (0..20).map(ask).collect();
    assert!(home.contains(&"a".to_owned()) && home.contains(&"b".to_owned()), "{home:?}");
    for _ in 0..3 {
        assert_eq!((0..20).map(ask).collect::<Vec<_>>(), home, "on every thread");
    }
    // Another server comes, in another place of the list: who moves, moves there.
    let c = named("c");
    proxy.reload(&text(&[format!("\"{}\"", c.address), servers[1].clone(), servers[0].clone()]));
    let moved: Vec<_> = std::iter::repeat_with(|| (0..20).map(ask).collect::<Vec<_>>())
        .find(|answers| answers.contains(&"c".to_owned()))
        .unwrap();
    assert!(moved.iter().zip(&home).all(|(now, old)| now == old || now == "c"), "{moved:?}");
}

#[test]
fn a_tenant_that_floods_a_slow_server_does_not_shut_out_another() {
    let upstream = Upstream::echo();
    let by_host = "[proxy.tenants]\nby = \"host\"\n";
    let proxy = before(&[upstream.address().parse().unwrap()], "max_connections = 1\nqueue = 2", by_host);
    let waiting = |count| {
        while proxy.proxy().source().live().upstreams[0].waiting != count {
            std::thread::yield_now();
        }
    };
    let ask = |host: &str| {
        let (mut client, request) = (proxy.connect(), format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        std::thread::spawn(move || talk(&mut client, &request).status)
    };
    let mut held = proxy.connect();
    send(&mut held, "GET /held HTTP/1.1\r\nHost: loud\r\n\r\n");
    upstream.wait_for_held();
    let first = ask("loud");
    waiting(1);
    let second = ask("loud");
    waiting(2);
    assert_eq!(ask("loud").join().unwrap(), 503, "the queue is full, and of its own");
    let quiet = ask("quiet");
    assert_eq!(second.join().unwrap(), 503, "the loud one's newest makes room");
    upstream.release_held();
    assert_eq!((first.join().unwrap(), quiet.join().unwrap()), (200, 200));
    assert_eq!(read_answer(&mut held).status, 200);
}

#[test]
fn names_that_one_address_makes_up_shut_out_no_tenant() {
    let upstream = Upstream::echo();
    let tenants = "[proxy.tenants]\nby = \"host\"\nunknown = \"apart\"\n[[proxy.tenant]]\nname = \"quiet\"\n";
    let proxy = before(&[upstream.address().parse().unwrap()], "max_connections = 1\nqueue = 2", tenants);
    let ask = |host: &str| {
        let (mut client, request) = (proxy.connect(), format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        std::thread::spawn(move || talk(&mut client, &request).status)
    };
    let waiting = |count| proxy.wait_until(|live| live.upstreams[0].waiting == count);
    let mut held = proxy.connect();
    send(&mut held, "GET /held HTTP/1.1\r\nHost: l1\r\n\r\n");
    upstream.wait_for_held();
    let first = ask("l2");
    waiting(1);
    let second = ask("l3");
    waiting(2);
    let quiet = ask("quiet");
    assert_eq!(second.join().unwrap(), 503, "the newest of the made-up names makes room");
    upstream.release_held();
    assert_eq!((first.join().unwrap(), quiet.join().unwrap()), (200, 200));
    assert_eq!(read_answer(&mut held).status, 200);
}

#[test]
fn a_server_that_cannot_be_reached_costs_the_client_nothing() {
    let well = named("well");
    let proxy = before(&[nobody(), well.address], "", "");
    let mut client = proxy.connect();
    for method in ["GET", "POST", "GET", "POST"] {
        let answer = talk(&mut client, &request(method));
        assert_eq!((answer.status, answer.text()), (200, "well"), "nothing had been sent, so {method} goes again");
    }
}

#[test]
fn what_was_sent_is_sent_again_only_if_that_changes_nothing() {
    // It is the turn of the first server each time.
    let (rude, well) = (rude(), named("well"));
    let proxy = before(&[rude.address, well.address], "", "");
    let answer = talk(&mut proxy.connect(), &request("GET"));
    assert_eq!((answer.status, answer.text()), (200, "well"));
    let proxy = before(&[rude.address, well.address], "", "");
    let answer = talk(&mut proxy.connect(), &request("POST"));
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("proxy-status"), Some("tidegate; error=connection_terminated"));
}

#[test]
fn retries_end_when_no_server_is_left_or_none_are_wanted() {
    let both = [rude(), rude()];
    let proxy = before(&both.each_ref().map(|server| server.address), "retries = { attempts = 1 }", "");
    assert_eq!(talk(&mut proxy.connect(), &request("GET")).status, 502);
    assert_eq!(both.iter().map(Scripted::accepted).sum::<usize>(), 2);
    let (rude, well) = (rude(), named("well"));
    let proxy = before(&[rude.address, well.address], "retries = { attempts = 0 }", "");
    assert_eq!(talk(&mut proxy.connect(), &request("GET")).status, 502);
    assert_eq!(well.accepted(), 0);
}

#[test]
fn a_kept_connection_that_its_server_closes_fails_no_request() {
    // It answers once, and closes when the next request comes: as if its idle time-out and the request had crossed.
    let server = Scripted::new(|_, mut stream| {
        if read_head(&mut stream).is_some() {
            answer(&mut stream, "once");
            read_head(&mut stream);
        }
    });
    let proxy = before(&[server.address], "retries = { attempts = 0 }", "");
    let mut client = proxy.connect();
    for _ in 0..4 {
        let answer = talk(&mut client, &request("GET"));
        assert_eq!((answer.status, answer.text()), (200, "once"));
    }
    let server = until(&proxy, |server| server.requests_total == 7);
    assert_eq!(server.failures_total, 0, "that is nobody's fault");
}

#[test]
fn a_full_server_makes_requests_wait_and_a_full_queue_refuses() {
    let upstream = Upstream::echo();
    let proxy = before(&[upstream.address().parse().unwrap()], "max_connections = 1\nqueue = 1", "");
    let mut first = proxy.connect();
    send(&mut first, "GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    upstream.wait_for_held();
    let mut second = proxy.connect();
    let second = std::thread::spawn(move || talk(&mut second, &request("GET")).status);
    // The figures of a thread are published now and then.
    while proxy.proxy().source().live().upstreams[0].waiting == 0 {
        std::thread::yield_now();
    }
    let refused = talk(&mut proxy.connect(), &request("GET"));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("proxy-status"), Some("tidegate; error=connection_limit_reached"));
    assert_eq!(refused.header("retry-after"), Some("3"), "who waits now waits no more then");
    upstream.release_held();
    assert_eq!((read_answer(&mut first).status, second.join().unwrap()), (200, 200));
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_server_learns_the_client_by_the_proxy_protocol() {
    for (form, first) in [("v1", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11")] {
        let server = Scripted::new(move |_, mut stream| {
            let mut header = vec![0; first.len()];
            stream.read_exact(&mut header).unwrap();
            let told = header == first;
            while read_head(&mut stream).is_some() {
                answer(&mut stream, if told { "told" } else { "not told" });
            }
        });
        let proxy = before(&[server.address], &format!("proxy_protocol = \"{form}\""), "");
        let (mut one, mut other) = (proxy.connect(), proxy.connect());
        for client in [&mut one, &mut other] {
            assert_eq!(talk(client, &request("GET")).text(), "told", "{form}");
            assert_eq!(talk(client, &request("GET")).text(), "told");
        }
        assert_eq!(server.accepted(), 2, "a connection is one client's, and kept for it");
    }
}

#[test]
fn checks_take_a_server_out_and_bring_it_back() {
    let well = Arc::new(AtomicUsize::new(1));
    let (says, named) = (Arc::clone(&well), named("other"));
    let server = Scripted::new(move |_, mut stream| {
        while let Some(head) = read_head(&mut stream) {
            if head.starts_with("GET /healthy ") && says.load(Ordering::SeqCst) == 0 {
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").unwrap();
            } else {
                answer(&mut stream, "checked");
            }
        }
    });
    let health = "health = { path = \"/healthy\", interval = \"1s\", timeout = \"900ms\", rise = 1, fall = 1 }";
    let proxy = before(&[server.address, named.address], health, "");
    let mut client = proxy.connect();
    for (answers, health) in [(0, Health::Down), (1, Health::Up)] {
        well.store(answers, Ordering::SeqCst);
        until(&proxy, |server| server.health == health);
        let answers: String = (0..4).map(|_| talk(&mut client, &request("GET")).text().to_owned()).collect();
        assert_eq!(answers.contains("checked"), health == Health::Up, "{answers}");
    }
}

#[test]
fn a_check_asks_as_whom_and_takes_which_statuses_the_file_says() {
    let picky = || {
        Scripted::new(|_, mut stream| {
            while let Some(head) = read_head(&mut stream) {
                let knows = head.to_ascii_lowercase().contains("host: shop.example:80\r\n");
                let status = if knows { "401 Unauthorized" } else { "404 Not Found" };
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        })
    };
    let host = "host = \"shop.example:80\"";
    for (more, health) in [
        (String::new(), Health::Down),
        (host.to_owned(), Health::Down),
        ("statuses = [401]".to_owned(), Health::Down),
        (format!("{host}, statuses = [204, \"400-403\"]"), Health::Up),
    ] {
        let server = picky();
        let upstream = format!("health = {{ interval = \"50ms\", rise = 1, fall = 1, {more} }}");
        let proxy = before(&[server.address], upstream.replace(", }", " }").as_str(), "");
        // The second check begins when the first has had its answer, and that one alone decides.
        while server.accepted() < 2 {
            std::thread::yield_now();
        }
        until(&proxy, |server| server.health == health);
    }
}

#[test]
fn a_server_that_takes_no_more_of_a_request_is_given_up() {
    // It keeps its connections and reads nothing.
    let kept = std::sync::Mutex::new(Vec::new());
    let deaf = Scripted::new(move |_, stream| kept.lock().unwrap().push(stream));
    let proxy = before(&[deaf.address], "", "[proxy.timeouts]\nupstream_idle = \"100ms\"\n");
    let mut client = proxy.connect();
    let sending = std::thread::spawn(move || {
        // More than the buffers of all sockets on the way.
        send(&mut client, "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100000000\r\n\r\n");
        while client.write_all(&[0; 4096]).is_ok() {}
    });
    until(&proxy, |server| server.requests_total == 1 && server.active == 0);
    proxy.wait_until(|live| live.responses_total[5] == 1);
    sending.join().unwrap();
}

/// A server of HTTP/2 by prior knowledge that answers with what it got.
fn h2c() -> (tokio::runtime::Runtime, SocketAddr, Arc<AtomicUsize>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&accepted);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let service = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let (head, body) = request.into_parts();
                if head.uri.path() == "/early" {
                    return Ok::<_, Infallible>(Response::new(Counting(Some(body), 0).boxed()));
                }
                // One that breaks off has nobody to answer.
                let length = body.collect().await.map_or(0, |body| body.to_bytes().len());
                let text = format!("{} {} {:?} {length}", head.method, head.uri, head.version);
                Ok(Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, address, accepted)
}

#[test]
fn a_server_of_http2_is_checked_in_its_own_tongue() {
    let (_runtime, address, accepted) = h2c();
    let health = "protocol = \"h2c\"\nhealth = { interval = \"1s\", timeout = \"900ms\", rise = 1, fall = 1 }";
    let proxy = before(&[address], health, "");
    // The second check begins when the first has had its answer, and that one alone decides.
    while accepted.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
    assert_eq!(talk(&mut proxy.connect(), &request("GET")).status, 200);
}

#[test]
fn requests_to_a_server_of_http2_share_a_connection() {
    let (_runtime, address, accepted) = h2c();
    let proxy = before(&[address], "protocol = \"h2c\"", "");
    let clients: Vec<_> = (0..8).map(|_| proxy.connect()).collect();
    let talks = clients.into_iter().map(|mut client| {
        std::thread::spawn(move || {
            let get = talk(&mut client, "GET /a?b HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive\r\n\r\n");
            let post = "POST /p HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello";
            (get.text().to_owned(), talk(&mut client, post).text().to_owned())
        })
    });
    for talk in talks.collect::<Vec<_>>() {
        let (get, post) = talk.join().unwrap();
        assert_eq!(get, "GET http://shop.example/a?b HTTP/2.0 0");
        assert_eq!(post, "POST http://shop.example/p HTTP/2.0 5");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    until(&proxy, |server| server.requests_total == 16 && server.active == 0);
}

/// Says how many bytes of a request's body came, when it has ended.
struct Counting(Option<Incoming>, usize);

impl http_body::Body for Counting {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        while let Some(body) = this.0.as_mut() {
            if let Some(frame) = ready!(Pin::new(body).poll_frame(context)).transpose()? {
                this.1 += frame.data_ref().map_or(0, Bytes::len);
            } else {
                this.0 = None;
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(this.1.to_string())))));
            }
        }
        Poll::Ready(None)
    }
}

#[test]
fn a_server_of_http2_that_answers_early_still_gets_the_rest() {
    let (_runtime, address, _) = h2c();
    let proxy = before(&[address], "protocol = \"h2c\"", "");
    let chunks = format!("1000\r\n{}\r\n", "x".repeat(0x1000)).repeat(100);
    for turn in 0..8 {
        let mut client = proxy.connect();
        send(&mut client, "POST /early HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n");
        let (first, second) = chunks.split_at(chunks.len() / 8 * turn);
        send(&mut client, first);
        let mut head = client.try_clone().unwrap();
        let answer = std::thread::spawn(move || read_answer(&mut head));
        send(&mut client, second);
        send(&mut client, "0\r\n\r\n");
        let answer = answer.join().unwrap();
        assert_eq!(answer.text(), (100 * 0x1000).to_string());
    }
}

#[test]
fn a_client_that_breaks_off_what_it_sends_is_no_failure_of_a_server_of_http2() {
    let servers = [h2c(), h2c()];
    let proxy = before(&servers.each_ref().map(|server| server.1), "protocol = \"h2c\"", "");
    // Before the answer, and while it comes. Five failures in a row eject a server.
    for request in (1..=20).map(|request| ("/p", request)).chain((21..=40).map(|request| ("/early", request))) {
        let mut client = proxy.connect();
        send(&mut client, &format!("POST {} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1", request.0));
        if request.0 == "/early" {
            read_head(&mut client).unwrap();
        }
        let sums = |live: &Live| {
            let servers = &live.upstreams[0].servers;
            servers.iter().fold((0, 0), |sum, one| (sum.0 + one.requests_total, sum.1 + one.active))
        };
        proxy.wait_until(|live| sums(live) == (request.1, 1));
        drop(client);
        proxy.wait_until(|live| sums(live) == (request.1, 0));
    }
    let live = proxy.proxy().source().live().upstreams.remove(0);
    let states: Vec<_> = live.servers.iter().map(|server| (server.health, server.failures_total)).collect();
    assert_eq!(states, [(Health::Up, 0); 2]);
}

#[test]
fn a_client_is_told_what_was_wrong_with_its_body_before_a_server_of_http2_too() {
    let (_runtime, address, _) = h2c();
    let proxy = before(
        &[address],
        "protocol = \"h2c\"",
        "[proxy.http]\nmax_body = 4\n[proxy.timeouts]\nbody_idle = \"100ms\"\n",
    );
    let post = "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (chunks, status) in [("5\r\n12345\r\n", 413), ("5x\r\n", 400), ("3\r\n123\r\n", 408)] {
        assert_eq!(talk(&mut proxy.connect(), &format!("{post}{chunks}")).status, status);
    }
    assert_eq!(until(&proxy, |server| server.requests_total == 3 && server.active == 0).failures_total, 0);
}

#[test]
fn a_server_of_http2_that_takes_nothing_of_a_body_is_given_up() {
    // It answers nobody, so what may be sent to it is what HTTP/2 begins with: 64 KiB.
    let mute = Scripted::new(|_, mut stream| while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {});
    let timeouts = "[proxy.timeouts]\nupstream_idle = \"100ms\"\n";
    let proxy = before(&[mute.address], "protocol = \"h2c\"", timeouts);
    let mut client = proxy.connect();
    let body = "x".repeat(200_000);
    let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(talk(&mut client, &post).status, 504);
}

#[test]
fn a_server_of_http2_has_time_for_its_answer_from_the_requests_end_and_until_its_next_piece() {
    let (runtime, address, _) = h2c();
    let timeouts = "[proxy.timeouts]\nupstream_first_byte = \"300ms\"\nupstream_idle = \"100ms\"\n";
    let proxy = before(&[address], "protocol = \"h2c\"", timeouts);
    let mut client = proxy.connect();
    send(&mut client, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
    // The client takes longer than the server may: two other requests that no server answers tell the time.
    let mute = Scripted::new(|_, mut stream| while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {});
    let clock = before(&[mute.address], "protocol = \"h2c\"", timeouts);
    for _ in 0..2 {
        assert_eq!(talk(&mut clock.connect(), &request("GET")).status, 504);
    }
    assert_eq!(talk(&mut client, "2").text(), "POST http://a/p HTTP/2.0 2");
    drop(runtime);
    let stalling = stalling();
    let proxy = before(&[stalling.1], "protocol = \"h2c\"", timeouts);
    let mut client = proxy.connect();
    send(&mut client, &request("GET"));
    let mut all = Vec::new();
    // The connection ends, whichever way, since the rest of the answer does not come.
    drop(client.read_to_end(&mut all));
    assert!(String::from_utf8_lossy(&all).ends_with("4\r\nhalf\r\n"), "{}", all.escape_ascii());
}

/// A server of HTTP/2 of whose answers the second half never comes.
fn stalling() -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Half(Some(Bytes::from_static(b"half")))))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, address)
}

/// This, and nothing more.
struct Half(Option<Bytes>);

impl http_body::Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |half| Poll::Ready(Some(Ok(Frame::data(half)))))
    }
}

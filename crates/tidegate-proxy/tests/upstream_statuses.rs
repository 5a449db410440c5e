//! What statuses of answers say about their servers, over real sockets: who is left alone, what is tried again.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Answer, Running, exactly, read_head, talk};

const WELL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy";
const LATER: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 9\r\nContent-Length: 5\r\n\r\nlater";

/// Answers every request with `answer`, and counts its connections.
fn server(answer: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, accepted) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                loop {
                    let head = read_head(&mut stream);
                    if head.is_empty() {
                        return;
                    }
                    if head.to_ascii_lowercase().contains("content-length: 5\r\n") {
                        exactly(&mut stream, 5);
                    }
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    (address, accepted)
}

fn before(servers: [SocketAddr; 2], upstream: &str) -> Running {
    let [a, b] = servers;
    Running::start(&format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{a}\", \"{b}\"]\n\
         balance = \"round_robin\"\n{upstream}\n[[proxy.route]]\nupstream = \"u\"\n[proxy]\nthreads = 1\n\
         overflow_threads = 0\ntrusted = [\"127.0.0.0/8\"]\n"
    ))
}

fn ask(proxy: &Running, client: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n");
    talk(&mut proxy.connect(), &request).status
}

#[test]
fn a_server_that_answers_only_errors_is_left_alone_but_not_for_what_one_client_asks() {
    let ((busy, _), (well, _)) = (server(BUSY), server(WELL));
    let proxy = before([busy, well], "failure_statuses = [503]");
    let errors = |client, requests| (0..requests).filter(|_| ask(&proxy, client) == 503).count();
    assert_eq!(errors("192.0.2.1", 20), 10, "one client alone shows nothing");
    assert_eq!(errors("192.0.2.2", 20), 1, "the second one does");
    assert_eq!(errors("192.0.2.1", 4), 0);
    let proxy = before([busy, well], "");
    let errors = |client, requests| (0..requests).filter(|_| ask(&proxy, client) == 503).count();
    assert_eq!(errors("192.0.2.1", 20) + errors("192.0.2.2", 20), 20, "without the key an answer is an answer");
}

fn ask_as(proxy: &Running, method: &str, body: &str) -> Answer {
    let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    talk(&mut proxy.connect(), &request)
}

#[test]
fn a_status_is_tried_again_elsewhere_where_that_changes_nothing() {
    let ((busy, accepted), (well, _)) = (server(BUSY), server(WELL));
    let proxy = before([busy, well], "retries = { statuses = [503] }");
    for _ in 0..8 {
        assert_eq!(ask_as(&proxy, "GET", "").text(), "well");
    }
    proxy.wait_until(|live| live.upstreams[0].retries_total > 1);
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "an answer that nobody gets costs no connection");
    // It is the turn of the first server of a proxy that just began.
    for (method, body) in [("POST", ""), ("PUT", "12345")] {
        let proxy = before([busy, well], "retries = { statuses = [503] }");
        assert_eq!(ask_as(&proxy, method, body).text(), "busy", "it may have done something, or its body is gone");
    }
}

#[test]
fn a_server_that_says_when_to_come_again_is_believed() {
    let ((later, _), (well, _)) = (server(LATER), server(WELL));
    let proxy = before([later, well], "retries = { statuses = [503] }");
    let answer = ask_as(&proxy, "GET", "");
    assert_eq!((answer.text(), answer.header("retry-after")), ("later", Some("9")));
}

#[test]
fn the_last_answer_is_the_clients_when_there_is_no_further_try() {
    let ((busy, _), (other, _)) = (server(BUSY), server(BUSY));
    let proxy = before([busy, other], "retries = { attempts = 1, statuses = [503] }");
    assert_eq!(ask_as(&proxy, "GET", "").text(), "busy");
    let proxy = before([busy, other], "retries = { attempts = 0, statuses = [503] }");
    assert_eq!(ask_as(&proxy, "GET", "").text(), "busy");
}

#[test]
fn a_status_over_http2_is_tried_again_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let servers = [503, 200].map(|status| {
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(move |_| async move {
                    let answer = Response::builder().status(status).body(Full::new(Bytes::from(status.to_string())));
                    Ok::<_, Infallible>(answer.unwrap())
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    });
    for (method, text) in [("GET", "200"), ("POST", "503")] {
        let proxy = before(servers, "protocol = \"h2c\"\nretries = { statuses = [503] }");
        assert_eq!(ask_as(&proxy, method, "").text(), text);
    }
}

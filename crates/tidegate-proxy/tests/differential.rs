//! Requests that two servers may read differently where the two speak different protocols: HTTP/1 clients before a server of
//! HTTP/2, and clients of HTTP/2, frame by frame, before a server of HTTP/1 that remembers every byte.
#![cfg(feature = "io")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, exactly, read_answer, send};
use tidegate_load::attack::smuggling::{Case, Recorder, Verdict, corpus};

const ONE: &str = "[proxy]\nthreads = 1\noverflow_threads = 0\n[proxy.http]\nmax_head = \"8KiB\"\n";

/// A server of HTTP/2 that remembers which requests came whole, and says in `x-seen` of which its answer is.
struct Http2Recorder {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Http2Recorder {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let log = Arc::clone(&log);
                    async move {
                        let target = request.uri().path_and_query().map_or("*", |target| target.as_str());
                        let name = format!("{} {target}", request.method());
                        let mut answer = Response::new(Full::new(Bytes::new()));
                        if request.into_body().collect().await.is_err() {
                            *answer.status_mut() = StatusCode::BAD_REQUEST;
                            return Ok::<_, Infallible>(answer);
                        }
                        answer.headers_mut().insert("x-seen", name.parse().unwrap());
                        log.lock().unwrap().push(name);
                        Ok(answer)
                    }
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, seen, _runtime: runtime }
    }

    fn proxy(&self) -> Running {
        Running::start(&format!(
            "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nprotocol = \"h2c\"\n\
             servers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n{ONE}",
            self.address
        ))
    }
}

/// Which requests the answers in `bytes` are of.
fn answered(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter_map(|line| line.strip_prefix("x-seen: ")).map(str::to_owned).collect()
}

/// Most reads without a byte: behind all that is expected, and before.
const QUIET: [u32; 2] = [3, 15];

/// Sends `bytes`; what comes back until the proxy closes, or nothing more is to be expected.
fn ask(stream: &mut TcpStream, bytes: &[u8], expected: u64) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // Who is refused early need not be read to the end.
    drop(stream.write_all(bytes));
    let (mut heard, mut quiet, mut buffer) = (Vec::new(), 0, [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return heard,
            Ok(read) => {
                heard.extend_from_slice(&buffer[..read]);
                quiet = 0;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                quiet += 1;
                let answers = heard.windows(9).filter(|window| window.starts_with(b"HTTP/1.1 ")).count() as u64;
                if quiet >= QUIET[usize::from(answers < expected)] {
                    return heard;
                }
            }
            Err(_) => return heard,
        }
    }
}

/// What is wrong with what became of a case; `None` if nothing is.
fn trouble(recorder: &Http2Recorder, proxy: &Running, case: &Case) -> Option<String> {
    let allowed = match case.verdict {
        // What stands behind a request that may change the protocol is another one if the answer does not.
        Verdict::Accept { requests, open } => requests + u64::from(open),
        Verdict::Refuse { after, .. } => after,
    };
    let expected = allowed + u64::from(matches!(case.verdict, Verdict::Refuse { .. }));
    let mut stream = proxy.connect();
    let mut heard = ask(&mut stream, &case.bytes, expected);
    let seen = || recorder.seen.lock().unwrap().clone();
    // On a busy machine an answer may take longer than the pause that ends a case.
    if seen().len() > answered(&heard).len() {
        heard.extend(ask(&mut stream, b"", u64::MAX));
    }
    drop(stream);
    let (saw, answered) = (seen(), answered(&heard));
    let mut other = proxy.connect();
    send(&mut other, "GET /canary HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    let canary = read_answer(&mut other);
    let all = std::mem::take(&mut *recorder.seen.lock().unwrap());
    let of_others: Vec<_> = all.iter().filter(|name| *name != "GET /canary").cloned().collect();
    if canary.header("x-seen") != Some("GET /canary") || all.len() != of_others.len() + 1 {
        return Some(format!("the next client: {} {:?}, {all:?}", canary.status, canary.header("x-seen")));
    }
    if saw != answered || of_others != saw {
        return Some(format!("the server saw {saw:?}, then {of_others:?}, the client got {answered:?}"));
    }
    (saw.len() as u64 > allowed).then(|| format!("{saw:?} went through, {allowed} are sound"))
}

#[test]
fn no_case_of_the_corpus_reaches_a_server_of_http2_as_something_else() {
    const WORKERS: usize = 8;
    let cases = Arc::new(corpus());
    assert!(cases.len() >= 200, "{}", cases.len());
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let cases = Arc::clone(&cases);
            std::thread::spawn(move || {
                let recorder = Http2Recorder::start();
                let proxy = recorder.proxy();
                let mine = cases.iter().skip(worker).step_by(WORKERS);
                let trouble = |case: &Case| Some(format!("{}: {}", case.name, trouble(&recorder, &proxy, case)?));
                mine.filter_map(trouble).collect::<Vec<_>>()
            })
        })
        .collect();
    let bad: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

type Fields = &'static [(&'static str, &'static str)];

/// A request of HTTP/2 as it stands in frames.
struct Framed {
    name: &'static str,
    fields: Fields,
    body: Option<&'static str>,
    trailers: Fields,
    expected: Expected,
}

/// Whether a server of HTTP/1 is to see a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Passes,
    Ends,
}

/// The fields that every request has, and these.
macro_rules! fields {
    ($($more:expr),*) => {
        &[(":method", "POST"), (":scheme", "http"), (":authority", "a.example"), (":path", "/x"), $($more),*]
    };
}

const fn framed(name: &'static str, fields: Fields, expected: Expected) -> Framed {
    Framed { name, fields, body: Some("hello"), trailers: &[], expected }
}

/// What has `evil` in it must not begin a line anywhere.
fn framed_requests() -> Vec<Framed> {
    use Expected::{Ends, Passes};
    const SMUGGLED: &str = "x\r\n\r\nGET /evil HTTP/1.1\r\nHost: a\r\n\r\n";
    vec![
        framed("sound", fields![], Passes),
        Framed { body: None, ..framed("sound and without content", fields![], Passes) },
        framed("a sound length", fields![("content-length", "5")], Passes),
        framed("a longer length", fields![("content-length", "50")], Ends),
        framed("a shorter length", fields![("content-length", "1")], Ends),
        Framed { body: None, ..framed("a length and no content", fields![("content-length", "5")], Ends) },
        framed("two lengths", fields![("content-length", "5"), ("content-length", "0")], Ends),
        framed("a length with a sign", fields![("content-length", "+5")], Ends),
        framed("a length and its lookalike", fields![("content_length", "0")], Ends),
        framed("chunked", fields![("transfer-encoding", "chunked")], Ends),
        framed("a lookalike of chunked", fields![("transfer_encoding", "chunked")], Ends),
        framed("a field of the connection", fields![("connection", "x"), ("x", "1")], Ends),
        framed("keep-alive", fields![("keep-alive", "timeout=5")], Ends),
        framed("proxy-connection", fields![("proxy-connection", "keep-alive")], Ends),
        framed("an upgrade", fields![("upgrade", "websocket")], Ends),
        framed("te with trailers", fields![("te", "trailers")], Passes),
        framed("te with more", fields![("te", "gzip")], Ends),
        framed("a line end in a value", fields![("a", "b\r\nevil: 1")], Ends),
        framed("a request in a value", fields![("a", SMUGGLED)], Ends),
        framed("LF in a value", fields![("a", "b\nevil: 1")], Ends),
        framed("CR in a value", fields![("a", "b\revil: 1")], Ends),
        framed("NUL in a value", fields![("a", "b\0evil")], Ends),
        framed("a line end in a name", fields![("a\r\nevil", "1")], Ends),
        framed("a colon in a name", fields![("evil: 1\r\na", "1")], Ends),
        framed("a name and its colon", fields![("transfer-encoding:chunked", "")], Ends),
        framed("a capital in a name", fields![("Transfer-Encoding", "chunked")], Ends),
        framed("a blank in a name", fields![("transfer-encoding ", "chunked")], Ends),
        framed("an empty name", fields![("", "evil")], Ends),
        framed("a line end in a cookie", fields![("cookie", "a=b"), ("cookie", "c\r\nevil: 1")], Ends),
        framed("two cookies", fields![("cookie", "a=b"), ("cookie", "c=d")], Passes),
        framed("another host", fields![("host", "b.example")], Passes),
        framed("an expectation", fields![("expect", "100-continue")], Passes),
        framed("a second path", fields![(":path", "/evil")], Ends),
        framed("a pseudo-field that nobody knows", fields![(":evil", "1")], Ends),
        framed("a pseudo-field behind others", fields![("a", "b"), (":authority", "b.example")], Ends),
        framed(
            "a line end in the method",
            &[(":method", "GET /evil HTTP/1.1\r\nA:"), (":scheme", "http"), (":authority", "a"), (":path", "/x")],
            Ends,
        ),
        framed(
            "a blank in the method",
            &[(":method", "GET /evil"), (":scheme", "http"), (":authority", "a"), (":path", "/x")],
            Ends,
        ),
        framed(
            "a line end in the path",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x HTTP/1.1\r\nevil: 1")],
            Ends,
        ),
        framed(
            "a version in the path",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x HTTP/1.1")],
            Ends,
        ),
        framed("no path", &[(":method", "POST"), (":scheme", "http"), (":authority", "a")], Ends),
        framed("an empty path", &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "")], Ends),
        framed(
            "an encoded NUL in the path",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x%00")],
            Ends,
        ),
        framed(
            "a broken percent sign in the path",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x%0")],
            Ends,
        ),
        framed(
            "a line end in the authority",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "a\r\nevil: 1"), (":path", "/x")],
            Ends,
        ),
        framed(
            "a user in the authority",
            &[(":method", "POST"), (":scheme", "http"), (":authority", "evil@a"), (":path", "/x")],
            Ends,
        ),
        framed("no host", &[(":method", "POST"), (":scheme", "http"), (":path", "/x")], Ends),
        framed(
            "two hosts",
            &[(":method", "POST"), (":scheme", "http"), (":path", "/x"), ("host", "a"), ("host", "b")],
            Ends,
        ),
        Framed { trailers: &[("digest", "x")], ..framed("trailers", fields![], Passes) },
        Framed { trailers: &[("content-length", "0")], ..framed("a length in trailers", fields![], Passes) },
        Framed { trailers: &[("a", "b\r\nevil: 1")], ..framed("a line end in trailers", fields![], Ends) },
        // No trailers go on, and this one is dropped before that.
        Framed { trailers: &[(":path", "/evil")], ..framed("a path in trailers", fields![], Passes) },
    ]
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    out.extend_from_slice(&[0, length[0], length[1], kind, flags, 0, 0, 0, stream]);
    out.extend_from_slice(payload);
}

/// Fields in full, none of which is remembered (RFC 7541, section 6.2.2).
fn block(fields: Fields) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "a length of one byte");
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Sends the request and waits until its stream or the connection ends.
fn send_framed(proxy: &Running, request: &Framed) {
    let mut stream = proxy.connect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, 4, 0, 0, &[]);
    frame(&mut bytes, 1, 4 | u8::from(request.body.is_none()), 1, &block(request.fields));
    if let Some(body) = request.body {
        frame(&mut bytes, 0, u8::from(request.trailers.is_empty()), 1, body.as_bytes());
        if !request.trailers.is_empty() {
            frame(&mut bytes, 1, 5, 1, &block(request.trailers));
        }
    }
    stream.write_all(&bytes).unwrap();
    loop {
        let mut header = [0; 9];
        if stream.read_exact(&mut header).is_err() {
            return;
        }
        exactly(&mut stream, usize::from(header[1]) << 8 | usize::from(header[2]));
        match (header[3], header[8]) {
            (0 | 1, 1) if header[4] & 1 == 1 => return,
            (3, 1) | (7, _) => return,
            _ => {}
        }
    }
}

#[test]
fn no_request_of_http2_reaches_a_server_of_http1_as_something_else() {
    let recorder = Recorder::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Running::before_address(&recorder.address().to_string(), ONE);
    let mut bad = Vec::new();
    for request in framed_requests() {
        send_framed(&proxy, &request);
        let mut other = proxy.connect();
        send(&mut other, "GET /canary HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
        let canary = read_answer(&mut other);
        let connections = recorder.take();
        let mut seen: Vec<_> = connections.iter().flat_map(|connection| connection.requests.clone()).collect();
        let is_whole = seen.pop().as_deref() == Some("GET /canary") && canary.header("x-seen") == Some("GET /canary");
        let lines =
            connections.iter().flat_map(|connection| connection.bytes.split(|byte| matches!(byte, b'\r' | b'\n')));
        let evil = lines.filter(|line| line.starts_with(b"evil") || line.starts_with(b"GET /evil")).count();
        let wanted: &[&str] = if request.expected == Expected::Passes { &["POST /x"] } else { &[] };
        if !is_whole || evil > 0 || seen != wanted {
            bad.push(format!("{}: {seen:?}, evil lines {evil}, the next client got its own: {is_whole}", request.name));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

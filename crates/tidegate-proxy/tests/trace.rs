//! Which trace a request belongs to, and which requests have a line in the access log.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2::handshake;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use support::{Answer, Running, Upstream, talk};
use tokio::net::{TcpListener, TcpStream};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0b1902b7";
const ADD: &str = "[proxy]\ntrace = \"add\"\n";

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n")
}

fn traced(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")
}

/// The values of a field in the request that the upstream got.
fn got<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let field = |line: &'a str| line.split_once(": ").filter(|(known, _)| *known == name).map(|(_, value)| value);
    answer.text().lines().filter_map(field).collect()
}

/// Trace, span and flags of the one `traceparent` that the upstream got.
fn parent(answer: &Answer) -> [String; 3] {
    let values = got(answer, "traceparent");
    assert_eq!(values.len(), 1, "{}", answer.text());
    let parts: Vec<&str> = values[0].split('-').collect();
    assert_eq!(parts[0], "00");
    [parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned()]
}

#[test]
fn by_default_the_trace_passes_as_it_is() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, "");
    let mut client = proxy.connect();
    let fields = format!("{}tracestate: a=1\r\ntracestate: b=2\r\n", traced("ff"));
    let answer = talk(&mut client, &get("/", &fields));
    assert_eq!(got(&answer, "traceparent"), [format!("00-{TRACE}-{SPAN}-ff")]);
    assert_eq!(got(&answer, "tracestate"), ["a=1", "b=2"]);
    assert!(got(&talk(&mut client, &get("/", "")), "traceparent").is_empty());
    assert_eq!(got(&talk(&mut client, &get("/", "traceparent: x\r\n")), "traceparent"), ["x"]);
}

#[test]
fn the_proxy_is_a_span_of_each_trace_and_begins_one_where_there_is_none() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, ADD);
    let mut client = proxy.connect();
    let state = "tracestate: a=1\r\n";
    let answer = talk(&mut client, &get("/", &format!("{}{state}", traced("01"))));
    let [trace, span, flags] = parent(&answer);
    assert_eq!((trace.as_str(), flags.as_str(), got(&answer, "tracestate")), (TRACE, "01", vec!["a=1"]));
    assert!(span != SPAN && span.len() == 16, "{span}");
    let mut seen = vec![span];
    for fields in [
        String::new(),
        traced("0"),
        traced("01").to_uppercase(),
        traced("01").repeat(2),
        traced("01").replace("00-", "ff-"),
        // A client cannot have the proxy's own taken away.
        "Connection: traceparent\r\n".to_owned(),
    ] {
        let answer = talk(&mut client, &get("/", &format!("{fields}{state}")));
        let [trace, span, flags] = parent(&answer);
        assert!(trace != TRACE && trace.len() == 32 && flags == "00", "{fields}: {trace} {flags}");
        assert!(got(&answer, "tracestate").is_empty(), "{fields}");
        seen.extend([trace, span]);
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "no id is there twice");
}

#[tokio::test]
async fn over_http2_the_trace_is_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                let mut answer = Response::new(Empty::<Bytes>::new());
                *answer.headers_mut() = request.headers().clone();
                Ok::<_, Infallible>(answer)
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let proxy = Running::start(&format!(
        "{ADD}[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nprotocol = \"h2c\"\n\
         servers = [\"{address}\"]\n[[proxy.route]]\nupstream = \"u\"\n"
    ));
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (sent, same) in [(format!("00-{TRACE}-{SPAN}-01"), true), ("00-1".to_owned(), false)] {
        let request = Request::builder().uri("http://shop.example/").header("traceparent", sent);
        let request = request.header("tracestate", "a=1").body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let told = answer.headers()["traceparent"].to_str().unwrap();
        assert!(told.starts_with(&format!("00-{TRACE}-")) == same && !told.contains(SPAN), "{told}");
        assert_eq!(answer.headers().contains_key("tracestate"), same);
    }
}

/// A file that goes away with its test.
struct Log(PathBuf);

impl Log {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tidegate-proxy-{name}-{}.log", std::process::id())))
    }

    fn section(&self, more: &str) -> String {
        format!("[proxy.access_log]\npath = \"{}\"\n{more}", self.0.display())
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.0).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_log_of_no_part_has_what_it_is_to_have_in_any_case() {
    let (upstream, log) = (Upstream::echo(), Log::new("always"));
    let dead = "[[proxy.upstream]]\nname = \"dead\"\nservers = [\"127.0.0.1:1\"]\n\
                [[proxy.route]]\nupstream = \"dead\"\npath = \"/dead\"\n\
                [[proxy.route]]\nupstream = \"u\"\npath = \"/shut\"\n\
                rate_limit = { limit = 1, deny = [\"here\"], error = 503 }\n\
                [proxy.lists.here]\ncidr = [\"127.0.0.0/8\"]\n";
    let proxy = Running::before(&upstream, &format!("{dead}{}", log.section("sample = 0.0\n")));
    let mut client = proxy.connect();
    for (path, fields, status) in [
        ("/plain", String::new(), 200),
        ("/unsampled", traced("00"), 200),
        ("/sampled", traced("01"), 200),
        ("/dead", String::new(), 502),
        ("/shut", String::new(), 503),
    ] {
        assert_eq!(talk(&mut client, &get(path, &fields)).status, status, "{path}");
    }
    proxy.wait_until(|live| live.unlogged_total == 3);
    assert!(proxy.drain());
    let lines = log.lines();
    let targets: Vec<_> = lines.iter().map(|line| line["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["/sampled", "/dead"]);
    assert_eq!((&lines[0]["trace_id"], &lines[0]["parent_id"]), (&TRACE.into(), &SPAN.into()));
    // Both stand for themselves, and without `trace = "add"` there is no span.
    assert!(lines.iter().all(|line| line["sample"].is_null() && line["span_id"].is_null()), "{lines:?}");
}

#[test]
fn a_line_has_the_ids_that_the_upstream_got_and_a_new_trace_is_sampled_when_it_has_one() {
    let (upstream, log) = (Upstream::echo(), Log::new("ids"));
    let proxy = Running::before(&upstream, &format!("{ADD}{}", log.section("sample = 0.5\nalways = []\n")));
    let mut client = proxy.connect();
    let mut sampled = Vec::new();
    for _ in 0..60 {
        let [trace, span, flags] = parent(&talk(&mut client, &get("/", "")));
        if flags == "01" {
            sampled.push((trace, span));
        }
    }
    assert!((5..=55).contains(&sampled.len()), "{}: of 60 fair coins, once in 10^12", sampled.len());
    assert!(proxy.drain());
    let lines = log.lines();
    let of = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let logged: Vec<_> = lines.iter().map(|line| (of(line, "trace_id"), of(line, "span_id"))).collect();
    assert_eq!(logged, sampled);
    assert!(lines.iter().all(|line| line["sample"] == 0.5 && line["parent_id"].is_null()));
}

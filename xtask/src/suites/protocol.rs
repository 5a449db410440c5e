//! Bytes on the TCP port and requests on the HTTP port; the outcome is the answer.
//!
//! Other people's tests exercise what clients do right. This is mostly about what they do wrong: which answer, and
//! whether the connection lives on. Texts of errors may differ, their codes may not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use miette::{IntoDiagnostic, Result};

use super::server::{NSQD_HTTP, NSQD_TCP, Server};
use super::{Results, Subject, Verdict};
use crate::{http, steps};

/// One thing a client does.
enum Do {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits for so many frames.
    Read(usize),
}

fn line(text: &str) -> Do {
    Do::Send(format!("{text}\n").into_bytes())
}

/// A command with a body: four bytes of length, then the body.
fn body(command: &str, body: &[u8]) -> Do {
    let mut bytes = format!("{command}\n").into_bytes();
    bytes.extend(u32::try_from(body.len()).expect("bodies here are short").to_be_bytes());
    bytes.extend(body);
    Do::Send(bytes)
}

/// An MPUB: total length, count, then each message with its length.
fn mpub(topic: &str, bodies: &[&[u8]]) -> Do {
    let count = u32::try_from(bodies.len()).expect("few bodies");
    let mut inner = count.to_be_bytes().to_vec();
    for one in bodies {
        inner.extend(u32::try_from(one.len()).expect("bodies here are short").to_be_bytes());
        inner.extend(*one);
    }
    body(&format!("MPUB {topic}"), &inner)
}

fn tcp_cases() -> Vec<(&'static str, Vec<Do>)> {
    let long = "t".repeat(65);
    vec![
        ("an unknown command", vec![line("HELLO")]),
        ("an empty line", vec![line("")]),
        ("NOP has no answer", vec![line("NOP")]),
        ("PUB", vec![body("PUB p1", b"x")]),
        ("PUB without a topic", vec![line("PUB")]),
        ("PUB to a bad topic", vec![body("PUB bad*topic", b"x")]),
        ("PUB to a topic of 65 letters", vec![body(&format!("PUB {long}"), b"x")]),
        ("PUB to an ephemeral topic", vec![body("PUB p#ephemeral", b"x")]),
        ("PUB of nothing", vec![body("PUB p2", b"")]),
        ("PUB with a negative length", vec![Do::Send(b"PUB p2\n\xff\xff\xff\xff".to_vec())]),
        ("PUB longer than allowed", vec![Do::Send(b"PUB p2\n\x7f\x00\x00\x00".to_vec())]),
        ("MPUB", vec![mpub("p3", &[b"a", b"b"])]),
        ("MPUB of no messages", vec![mpub("p3", &[])]),
        ("MPUB with an empty message", vec![mpub("p3", &[b"a", b""])]),
        ("MPUB with a wrong count", vec![body("MPUB p3", &[0, 0, 0, 9, 0, 0, 0, 1, b'a'])]),
        ("MPUB without a topic", vec![line("MPUB")]),
        ("DPUB", vec![body("DPUB p4 60000", b"x")]),
        ("DPUB too far away", vec![body("DPUB p4 999999999", b"x")]),
        ("DPUB without a number", vec![body("DPUB p4 soon", b"x")]),
        ("DPUB negative", vec![body("DPUB p4 -1", b"x")]),
        ("DPUB without a delay", vec![body("DPUB p4", b"x")]),
        ("SUB", vec![line("SUB s1 c")]),
        ("SUB twice", vec![line("SUB s1 c"), line("SUB s1 c")]),
        ("SUB without a channel", vec![line("SUB s1")]),
        ("SUB to a bad topic", vec![line("SUB bad*topic c")]),
        ("SUB to a bad channel", vec![line("SUB s1 bad*channel")]),
        ("SUB then IDENTIFY", vec![line("SUB s1 c"), body("IDENTIFY", b"{}")]),
        ("IDENTIFY without negotiation", vec![body("IDENTIFY", b"{}")]),
        ("IDENTIFY that is no JSON", vec![body("IDENTIFY", b"nonsense")]),
        ("IDENTIFY twice", vec![body("IDENTIFY", b"{}"), body("IDENTIFY", b"{}")]),
        ("IDENTIFY with a bad heartbeat", vec![body("IDENTIFY", br#"{"heartbeat_interval":5}"#)]),
        ("IDENTIFY with a bad output buffer", vec![body("IDENTIFY", br#"{"output_buffer_size":5}"#)]),
        ("IDENTIFY with a bad buffer timeout", vec![body("IDENTIFY", br#"{"output_buffer_timeout":99999999}"#)]),
        ("IDENTIFY with a bad sample rate", vec![body("IDENTIFY", br#"{"sample_rate":101}"#)]),
        ("IDENTIFY with a bad message timeout", vec![body("IDENTIFY", br#"{"msg_timeout":5}"#)]),
        (
            "IDENTIFY with snappy and deflate",
            vec![body("IDENTIFY", br#"{"feature_negotiation":true,"snappy":true,"deflate":true}"#)],
        ),
        ("IDENTIFY with negotiation", vec![body("IDENTIFY", br#"{"feature_negotiation":true}"#)]),
        ("RDY before SUB", vec![line("RDY 1")]),
        ("RDY without a number", vec![line("SUB s1 c"), line("RDY many")]),
        ("RDY beyond the maximum", vec![line("SUB s1 c"), line("RDY 2501")]),
        ("RDY negative", vec![line("SUB s1 c"), line("RDY -1")]),
        ("RDY zero", vec![line("SUB s1 c"), line("RDY 0")]),
        ("FIN before SUB", vec![line("FIN 0123456789abcdef")]),
        ("FIN of an unknown message", vec![line("SUB s1 c"), line("FIN 0123456789abcdef")]),
        ("FIN with a short id", vec![line("SUB s1 c"), line("FIN 0123")]),
        ("FIN without an id", vec![line("SUB s1 c"), line("FIN")]),
        ("REQ of an unknown message", vec![line("SUB s1 c"), line("REQ 0123456789abcdef 0")]),
        ("REQ without a timeout", vec![line("SUB s1 c"), line("REQ 0123456789abcdef")]),
        ("REQ with a bad timeout", vec![line("SUB s1 c"), line("REQ 0123456789abcdef soon")]),
        ("REQ before SUB", vec![line("REQ 0123456789abcdef 0")]),
        ("TOUCH of an unknown message", vec![line("SUB s1 c"), line("TOUCH 0123456789abcdef")]),
        ("TOUCH before SUB", vec![line("TOUCH 0123456789abcdef")]),
        ("CLS", vec![line("SUB s1 c"), line("CLS")]),
        ("CLS before SUB", vec![line("CLS")]),
        ("AUTH where none is asked", vec![body("AUTH", b"secret")]),
        ("AUTH of nothing", vec![body("AUTH", b"")]),
        ("lower case is another command", vec![body("pub p1", b"x")]),
        ("a carriage return before the line feed", vec![Do::Send(b"PUB p5\r\n\0\0\0\x01x".to_vec())]),
        ("a message is delivered", vec![body("PUB d1", b"hello"), line("SUB d1 c"), line("RDY 1"), Do::Read(3)]),
        (
            "a second delivery counts its attempts",
            vec![
                body("IDENTIFY", br#"{"msg_timeout":1000}"#),
                body("PUB d2", b"again"),
                line("SUB d2 c"),
                line("RDY 1"),
                Do::Read(5),
            ],
        ),
        (
            "three messages come in order",
            vec![mpub("d3", &[b"a", b"b", b"c"]), line("SUB d3 c"), line("RDY 3"), Do::Read(5)],
        ),
    ]
}

const HTTP_CASES: &[(&str, &str, &str)] = &[
    ("GET", "/ping", ""),
    ("POST", "/ping", ""),
    ("GET", "/nothing", ""),
    ("POST", "/pub?topic=h1", "x"),
    ("POST", "/pub?topic=h1", ""),
    ("POST", "/pub", "x"),
    ("POST", "/pub?topic=bad*topic", "x"),
    ("GET", "/pub?topic=h1", ""),
    ("PUT", "/pub?topic=h1", "x"),
    ("POST", "/pub?topic=h1&defer=1000", "x"),
    ("POST", "/pub?topic=h1&defer=-1", "x"),
    ("POST", "/pub?topic=h1&defer=soon", "x"),
    ("POST", "/pub?topic=h1&defer=999999999", "x"),
    ("POST", "/mpub?topic=h2", "a\nb\n\nc"),
    ("POST", "/mpub?topic=h2", ""),
    ("POST", "/mpub", "a"),
    ("POST", "/mpub?topic=h2&binary=true", "a"),
    ("POST", "/topic/create?topic=h3", ""),
    ("POST", "/topic/create", ""),
    ("POST", "/topic/create?topic=bad*topic", ""),
    ("POST", "/channel/create?topic=h3&channel=c", ""),
    ("POST", "/channel/create?topic=h3", ""),
    ("POST", "/channel/create?topic=h3&channel=bad*channel", ""),
    ("POST", "/channel/create?topic=unknown&channel=c", ""),
    ("POST", "/topic/pause?topic=h3", ""),
    ("POST", "/topic/unpause?topic=h3", ""),
    ("POST", "/topic/pause?topic=unknown", ""),
    ("POST", "/channel/pause?topic=h3&channel=c", ""),
    ("POST", "/channel/unpause?topic=h3&channel=c", ""),
    ("POST", "/channel/pause?topic=h3&channel=unknown", ""),
    ("POST", "/topic/empty?topic=h3", ""),
    ("POST", "/topic/empty?topic=unknown", ""),
    ("POST", "/channel/empty?topic=h3&channel=c", ""),
    ("POST", "/channel/empty?topic=h3&channel=unknown", ""),
    ("GET", "/stats?format=json&topic=h3", ""),
    ("GET", "/stats?format=json&topic=h3&channel=c&include_clients=false&include_mem=false", ""),
    ("GET", "/stats?format=json&topic=unknown", ""),
    ("POST", "/channel/delete?topic=h3&channel=c", ""),
    ("POST", "/channel/delete?topic=h3&channel=c", ""),
    ("POST", "/topic/delete?topic=h3", ""),
    ("POST", "/topic/delete?topic=h3", ""),
    ("POST", "/topic/delete", ""),
    ("GET", "/config/nsqlookupd_tcp_addresses", ""),
    ("PUT", "/config/nsqlookupd_tcp_addresses", "nonsense"),
    ("GET", "/config/unknown", ""),
    ("GET", "/debug/pprof/cmdline", ""),
];

/// Runs all cases on one broker. Cases are independent but for the HTTP ones, which are one story.
pub(super) fn run(subject: &Subject) -> Result<Results> {
    let broker = Server::nsqd(subject, "protocol", &[])?;
    let mut results = Results::new();
    for (name, script) in tcp_cases() {
        let verdict = converse(script).map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
        results.insert(format!("tcp: {name}"), verdict);
    }
    for (index, (method, path, body)) in HTTP_CASES.iter().enumerate() {
        let verdict =
            ask(method, path, body).map_or_else(|report| Verdict::Failed(steps::plain(&report)), Verdict::Passed);
        results.insert(format!("http {index:02}: {method} {path} {body:?}"), verdict);
    }
    drop(broker);
    Ok(results)
}

/// Plays one client and returns what it was told until the broker closed. Its last word is always a publish to a bad
/// topic, on which the broker closes: so the end is an event and not a time-out, and an answer of `E_BAD_TOPIC` at the
/// end says that the connection had lived on.
fn converse(script: Vec<Do>) -> Result<String> {
    let mut stream = TcpStream::connect(NSQD_TCP).into_diagnostic()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).into_diagnostic()?;
    stream.write_all(b"  V2").into_diagnostic()?;
    let mut said = Vec::new();
    for step in script {
        match step {
            // The broker may have closed already, and then says why in what is read below.
            Do::Send(bytes) => drop(stream.write_all(&bytes)),
            Do::Read(frames) => {
                while said.len() < frames {
                    let frame = read_frame(&mut stream)?.ok_or_else(|| miette::miette!("closed after {said:?}"))?;
                    if let Some(id) = &frame.id
                        && frame.attempts > 1
                    {
                        stream.write_all(format!("FIN {id}\n").as_bytes()).into_diagnostic()?;
                    }
                    said.push(frame.shown);
                }
            }
        }
    }
    drop(stream.write_all(b"PUB !\n"));
    while let Some(frame) = read_frame(&mut stream)? {
        said.push(frame.shown);
    }
    Ok(said.join(", "))
}

struct Frame {
    shown: String,
    id: Option<String>,
    attempts: u16,
}

fn read_frame(stream: &mut TcpStream) -> Result<Option<Frame>> {
    let mut head = [0; 8];
    match stream.read_exact(&mut head) {
        Ok(()) => {}
        // A reset is an end as well: the broker closed while bytes of ours were unread.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).into_diagnostic(),
    }
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (size, kind) = (word(0), word(4));
    if !(4..1 << 20).contains(&size) {
        miette::bail!("a frame of {size} bytes");
    }
    let mut body = vec![0; size as usize - 4];
    stream.read_exact(&mut body).into_diagnostic()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let frame = match kind {
        1 => Frame { shown: text(&body).split(' ').next().unwrap_or_default().to_owned(), id: None, attempts: 0 },
        2 if body.len() >= 26 => {
            let attempts = u16::from_be_bytes([body[8], body[9]]);
            Frame {
                shown: format!("message {attempts} {:?}", text(&body[26..])),
                id: Some(text(&body[10..26])),
                attempts,
            }
        }
        _ => Frame { shown: keys_only(&text(&body)), id: None, attempts: 0 },
    };
    Ok(Some(frame))
}

/// An answer to IDENTIFY holds values of the program, its version first of all; a client relies on the keys.
fn keys_only(text: &str) -> String {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(mut map)) => {
            map.remove("version");
            serde_json::Value::Object(map).to_string()
        }
        _ => text.to_owned(),
    }
}

fn ask(method: &str, path: &str, body: &str) -> Result<String> {
    let answer = http::request(NSQD_HTTP, method, path, body.as_bytes())?;
    if path.starts_with("/debug") {
        return Ok(answer.status.to_string());
    }
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(&answer.body) else {
        return Ok(format!("{} {}", answer.status, answer.body));
    };
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !matches!(key.as_str(), "version" | "start_time" | "memory"));
    }
    Ok(format!("{} {value}", answer.status))
}

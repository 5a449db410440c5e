//! Clients that begin a request or a handshake and never finish it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use super::bench::{Bench, median, number, range};
use super::broker::{Addresses, Broker, IN_MEMORY, Kind, SHARDS, shards_in_words};
use super::table::Figure;
use crate::clock::{self, Stopwatch};
use crate::{http, process};

/// `/ping` is answered within this time, always.
const PING_MS_MAX: f64 = 100.0;
/// A publisher's p99 beside them, by that without.
const SLOWER_MAX: f64 = 1.5;
/// Other clients' addresses: 127.0.0.2 and the next ones.
const ADDRESSES: u8 = 200;
/// From one `/ping` to the next.
const PING_EVERY: Duration = Duration::from_millis(100);
/// A connection that is not there after this time waits in a backlog that is full.
const CONNECT_LIMIT: Duration = Duration::from_millis(200);
/// At the latest after this time, those that could be opened are enough.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// Connections opened, or opened again, in a tenth of a second at most.
const OPENED_AT_ONCE: u64 = 500;
/// Files beside the connections.
const OTHER_FILES: u64 = 256;

/// Who stalls, with what.
#[derive(Clone, Copy, Debug)]
struct Stall {
    what: &'static str,
    kind: What,
    connections: usize,
    /// All from the address that the prober has too.
    from_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A head that announces a body, and one byte of it.
    Post,
    /// IDENTIFY with TLS, then the first bytes of a handshake and no more. Heartbeats are off.
    Handshake,
}

const STALLS: &[Stall] = &[
    Stall { what: "2,000 POSTs from others", kind: What::Post, connections: 2_000, from_own: false },
    Stall { what: "2,000 POSTs from the prober's own", kind: What::Post, connections: 2_000, from_own: true },
    Stall { what: "1,000 handshakes from others", kind: What::Handshake, connections: 1_000, from_own: false },
    Stall { what: "1,000 handshakes from the prober's own", kind: What::Handshake, connections: 1_000, from_own: true },
];

/// The row.
pub(super) fn stalled(bench: &Bench) -> Result<Vec<Figure>> {
    allow_open_files()?;
    let mut figures = Vec::new();
    for shards in SHARDS {
        for stall in STALLS {
            figures.extend(stalled_by(bench, stall, shards).wrap_err_with(|| stall.what)?);
        }
    }
    Ok(figures)
}

fn stalled_by(bench: &Bench, stall: &Stall, shards: u32) -> Result<[Figure; 2]> {
    let data = bench.folder("stalled")?;
    std::fs::create_dir_all(&data).into_diagnostic()?;
    let (certificate, key) = (data.join("server.crt"), data.join("server.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey", "rsa:2048"]);
    process::output(openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate))?;
    let flags = [
        format!("-shards={shards}"),
        format!("-tls-cert={}", certificate.display()),
        format!("-tls-key={}", key.display()),
        "-https-address=127.0.0.1:0".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(IN_MEMORY).collect();
    let broker = Broker::start_at(bench, Kind::Ours, &data, &Addresses::free()?, &flags)?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let pings = Pings::default();
    let (is_over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = bench.size(5, 1);
    for _ in 0..rounds {
        without.push(publisher(bench, &broker)?);
    }
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| hold(&broker, stall, &is_over, &opened));
        // They are all there before anything is measured, or as many as the broker takes.
        let enough = stall.connections as u64;
        let _ = clock::poll(OPEN_LIMIT, || (opened.load(Ordering::Relaxed) >= enough).then_some(()));
        let prober = scope.spawn(|| pings.ask(&broker.http, &is_over));
        let measured = (0..rounds).try_for_each(|_| publisher(bench, &broker).map(|us| with.push(us)));
        // Relaxed: the flag stands for itself.
        is_over.store(true, Ordering::Relaxed);
        prober.join().expect("the prober panicked");
        holder.join().expect("the holder panicked")?;
        measured
    })?;
    broker.kill();
    let name = format!("{}, {}", stall.what, shards_in_words(shards));
    // Connections that the broker closes are opened again.
    let opened = opened.into_inner();
    let slower = median(&with) / median(&without);
    Ok([
        pings.figure(&name, opened),
        Figure {
            what: format!("{name}, publisher"),
            value: format!("{slower:.2}x: p99 {:.0} us, beside them {:.0} us", median(&without), median(&with)),
            spread: format!("{} without, {} with, over {rounds} runs each", range(&without), range(&with)),
            passes: slower <= SLOWER_MAX,
            runs: json!({ "us_p99": without, "us_p99_beside": with }),
        },
    ])
}

/// p99 of a publisher's answers, from the intended time, in microseconds.
fn publisher(bench: &Bench, broker: &Broker) -> Result<f64> {
    let length = bench.size(5_000, 1_000);
    let load = format!(
        "topic=beside publishers=10 consumers=0 pace.open.rate_per_s=1000 spin_us=60 warm_up_ms=500 duration_ms={length} \
         lateness_us_p99_max=1e9"
    );
    number(&bench.load(broker, &load)?, "/answer/us_p99")
}

/// How `/ping` was answered.
#[derive(Debug, Default)]
struct Pings {
    /// Microseconds each; those that were not answered count as all of the patience.
    took_us: std::sync::Mutex<Vec<f64>>,
    unanswered: AtomicU64,
}

impl Pings {
    fn ask(&self, address: &str, is_over: &AtomicBool) {
        // At least one, however short the run.
        loop {
            let watch = Stopwatch::start();
            let answer = http::request(address, "GET", "/ping", b"");
            let took = watch.elapsed();
            if !answer.is_ok_and(|answer| answer.status == 200) {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
            }
            self.took_us.lock().expect("nobody panics with it").push(took.as_secs_f64() * 1e6);
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            clock::rest(PING_EVERY.saturating_sub(took));
        }
    }

    fn figure(self, name: &str, opened: u64) -> Figure {
        let took = self.took_us.into_inner().expect("nobody panics with it");
        let longest_ms = took.iter().copied().fold(0.0, f64::max) / 1e3;
        let unanswered = self.unanswered.into_inner();
        Figure {
            what: format!("{name}, /ping"),
            value: format!("{longest_ms:.1} ms at most, {unanswered} of {} unanswered", took.len()),
            spread: format!("median {:.2} ms; {opened} connections opened", median(&took) / 1e3),
            passes: unanswered == 0 && longest_ms <= PING_MS_MAX && !took.is_empty(),
            runs: json!({ "us": took, "unanswered": unanswered, "opened": opened }),
        }
    }
}

/// Opens the connections, and again those that are closed, until it is over.
fn hold(broker: &Broker, stall: &Stall, is_over: &AtomicBool, opened: &AtomicU64) -> Result<()> {
    let to = if stall.kind == What::Post { &broker.http } else { &broker.tcp };
    let to: SocketAddr = to.parse().into_diagnostic()?;
    let begin = stall.kind.bytes();
    let mut held: Vec<Option<TcpStream>> = (0..stall.connections).map(|_| None).collect();
    while !is_over.load(Ordering::Relaxed) {
        let before = opened.load(Ordering::Relaxed);
        for (number, slot) in held.iter_mut().enumerate() {
            let opened_now = opened.load(Ordering::Relaxed) - before;
            if is_over.load(Ordering::Relaxed) || opened_now >= OPENED_AT_ONCE {
                break;
            }
            if slot.as_mut().is_some_and(is_closed) {
                *slot = None;
            }
            if slot.is_some() {
                continue;
            }
            let other = u8::try_from(number % usize::from(ADDRESSES)).expect("below 200");
            let from = Ipv4Addr::new(127, 0, 0, if stall.from_own { 1 } else { 2 + other });
            *slot = begin_request(from, to, &begin).ok();
            // A broker that takes no more is no failure of this row: it is asked again in the next round.
            if slot.is_none() {
                break;
            }
            opened.fetch_add(1, Ordering::Relaxed);
        }
        clock::rest(Duration::from_millis(100));
    }
    Ok(())
}

impl What {
    /// What is sent, and nothing after it.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Post => {
                b"POST /pub?topic=stalled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx".to_vec()
            }
            Self::Handshake => {
                let wishes = br#"{"feature_negotiation":true,"tls_v1":true,"heartbeat_interval":-1}"#;
                let size = u32::try_from(wishes.len()).expect("a short text").to_be_bytes();
                [b"  V2IDENTIFY\n", &size[..], wishes].concat()
            }
        }
    }
}

fn begin_request(from: Ipv4Addr, to: SocketAddr, begin: &[u8]) -> Result<TcpStream> {
    let SocketAddr::V4(to) = to else { miette::bail!("{to} is no IPv4 address") };
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).into_diagnostic()?;
    bind(&fd, &SocketAddrV4::new(from, 0)).into_diagnostic()?;
    // Linux bounds the connecting by it too.
    set_socket_timeout(&fd, Timeout::Send, Some(CONNECT_LIMIT)).into_diagnostic()?;
    connect(&fd, &to).into_diagnostic()?;
    let mut stream = TcpStream::from(fd);
    stream.write_all(begin).into_diagnostic()?;
    if begin.starts_with(b"  V2") {
        // The answer to IDENTIFY is in plain text; the handshake begins behind it.
        stream.set_read_timeout(Some(CONNECT_LIMIT)).into_diagnostic()?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).into_diagnostic()?;
        // A record of 512 bytes is announced, and one byte of it comes.
        stream.write_all(b"\x16\x03\x01\x02\x00\x01").into_diagnostic()?;
    }
    stream.set_nonblocking(true).into_diagnostic()?;
    Ok(stream)
}

fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 1_024];
    match stream.read(&mut bytes) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Lets this process hold all connections.
fn allow_open_files() -> Result<()> {
    let wanted = STALLS.iter().map(|stall| stall.connections as u64).max().unwrap_or(0) + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)
        .into_diagnostic()
        .wrap_err_with(|| format!("{wanted} open files are needed (ulimit -Hn {wanted})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_request_is_begun_from_an_address_of_its_own_and_its_end_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut held = begin_request(Ipv4Addr::new(127, 0, 0, 7), to, &What::Post.bytes()).unwrap();
        let (mut stream, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), Ipv4Addr::new(127, 0, 0, 7));
        let mut begin = [0; 4];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"POST");
        assert!(!is_closed(&mut held));
        drop((stream, listener));
        assert!(clock::poll(OPEN_LIMIT, || is_closed(&mut held).then_some(())).is_some());
    }
}

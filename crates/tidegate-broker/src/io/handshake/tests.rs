//! A shard's thread with clients over real sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, ServerConfig};
use tidegate_wire::nsq::TopicName;

use super::*;
use crate::config::{Address, ClientAuth, Config, Host, Options, TlsVersion};
use crate::io::broker::shard_config;
use crate::io::listener::Listener;
use crate::io::shard_thread::{self, Authentication, End, Parts, Surroundings, Waiting};
use crate::io::tls::fixture::{Identity, Pki};
use crate::io::tls::server_config;
use crate::machine::log::LogCommand;
use crate::machine::output::Notice;
use crate::machine::shard::Shard;
use crate::machine::trace::Traced;

struct Nowhere;

impl Surroundings for Nowhere {
    fn log(&self, _: usize, _: LogCommand) {}
    fn notice(&self, _: usize, _: Notice) {}
    fn keep(&self, _: crate::io::buckets::Kept) {}
    fn trace(&self, _: TopicName, _: Traced) {}
    fn authenticate(&self, _: Authentication) {}
}

/// A broker of one shard; it stops when it is dropped.
struct Running {
    address: String,
    mailbox: Arc<ShardMailbox>,
    thread: Option<JoinHandle<End>>,
}

impl Running {
    fn start(pki: &Pki, tls: ServerConfig, handshake_time: Duration) -> Self {
        let file = |name| Some(pki.folder.join(name));
        let options = Options { tls_cert: file("cert.pem"), tls_key: file("key.pem"), ..Options::default() };
        let config = Config::from_options(options, &Host { name: "test".to_owned(), cpus: 1 }).unwrap();
        let any = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let listener = Listener::bind(&any).unwrap();
        let (mailbox, inbox) = ShardMailbox::new().unwrap();
        let (address, mailbox) = (listener.local_address().to_string(), Arc::new(mailbox));
        let parts = Parts {
            number: 0,
            shard: Shard::new(shard_config(&config, 0), clock::now(), clock::realtime_ns()),
            mailboxes: [mailbox.clone()].into(),
            inbox,
            opened: None,
            tls: Some(Arc::new(tls)),
            handshake_time,
            surroundings: Nowhere,
        };
        let waiting = Waiting::new(0, &mailbox, true, None).unwrap();
        mailbox.send(Inbound::Listen(listener));
        Self { address, mailbox, thread: Some(std::thread::spawn(|| shard_thread::run(parts, waiting))) }
    }

    fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"  V2").unwrap();
        stream
    }

    /// A connection after the answer to IDENTIFY that announces TLS; without heartbeats.
    fn connect_tls(&self) -> TcpStream {
        let mut stream = self.connect();
        stream
            .write_all(&command("IDENTIFY", br#"{"feature_negotiation":true,"tls_v1":true,"heartbeat_interval":-1}"#))
            .unwrap();
        let answer = frame(&mut stream);
        assert!(answer.contains(r#""tls_v1":true"#), "{answer}");
        stream
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.mailbox.send(Inbound::Drain);
        assert!(matches!(self.thread.take().unwrap().join().unwrap(), End::Drained { .. }));
    }
}

fn command(line: &str, body: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\n", &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

fn frame(stream: &mut impl Read) -> String {
    let mut head = [0; 8];
    stream.read_exact(&mut head).unwrap();
    let len = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize - 4;
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn publishes(stream: &mut (impl Read + Write)) {
    stream.write_all(&command("PUB t#ephemeral", b"hello")).unwrap();
    assert_eq!(frame(stream), "OK");
}

fn tls(pki: &Pki) -> ServerConfig {
    let tls = server_config(&pki.tls(ClientAuth::RequireVerify, TlsVersion::Tls12)).unwrap().unwrap();
    Arc::into_inner(tls).unwrap()
}

/// A certificate that is found only when the test says so.
#[derive(Debug)]
struct Held {
    certificate: Arc<dyn ResolvesServerCert>,
    wanted: Sender<()>,
    found: Mutex<Receiver<()>>,
}

impl ResolvesServerCert for Held {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.wanted.send(()).unwrap();
        self.found.lock().unwrap().recv().unwrap();
        self.certificate.resolve(hello)
    }
}

#[test]
fn others_publish_while_a_handshake_is_computed() {
    let pki = Pki::new();
    let mut tls = tls(&pki);
    let ((wanted, is_wanted), (find, found)) = (mpsc::channel(), mpsc::channel());
    tls.cert_resolver = Arc::new(Held { certificate: tls.cert_resolver, wanted, found: Mutex::new(found) });
    let running = Running::start(&pki, tls, Duration::from_mins(1));

    let mut slow = running.connect_tls();
    let mut client: ClientConnection = pki.client(&Identity::Vouched("sensor 7"));
    client.write_tls(&mut slow).unwrap();
    is_wanted.recv().unwrap();
    publishes(&mut running.connect());
    find.send(()).unwrap();
    let mut slow = rustls::StreamOwned::new(client, slow);
    assert_eq!(frame(&mut slow), "OK", "TLS stands");
    publishes(&mut slow);
}

#[test]
fn a_client_that_leaves_meanwhile_is_forgotten() {
    let pki = Pki::new();
    let mut tls = tls(&pki);
    let ((wanted, is_wanted), (find, found)) = (mpsc::channel(), mpsc::channel());
    tls.cert_resolver = Arc::new(Held { certificate: tls.cert_resolver, wanted, found: Mutex::new(found) });
    let running = Running::start(&pki, tls, Duration::from_mins(1));
    let mut gone = running.connect_tls();
    pki.client(&Identity::None).write_tls(&mut gone).unwrap();
    is_wanted.recv().unwrap();
    drop(gone);
    publishes(&mut running.connect());
    find.send(()).unwrap();
    publishes(&mut running.connect());
}

#[test]
fn a_stalled_handshake_is_ended() {
    let pki = Pki::new();
    let running = Running::start(&pki, tls(&pki), Duration::from_millis(1));
    let mut silent = running.connect_tls();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let mut halfway = running.connect_tls();
    pki.client(&Identity::None).write_tls(&mut halfway).unwrap();
    // The server's part of the handshake, if it was in time, and the end. A reset is an end too.
    let _ = halfway.read_to_end(&mut Vec::new());
    publishes(&mut running.connect());
}

#[test]
fn a_client_without_a_certificate_is_told_so_and_turned_away() {
    let pki = Pki::new();
    let running = Running::start(&pki, tls(&pki), Duration::from_mins(1));
    let stream = running.connect_tls();
    let mut stream = rustls::StreamOwned::new(pki.client(&Identity::None), stream);
    let error = stream.read(&mut [0]).unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
}

#[test]
fn deadlines_come_in_order_and_the_oldest_makes_room() {
    let at = |ns| Instant::from_nanos(ns);
    let deadline = |n: usize| Deadline { until: at(n as u64), conn: n, serial: 7 };
    let mut deadlines = Deadlines::default();
    assert_eq!(deadlines.next(), None);
    for n in 0..DEADLINES_MAX {
        assert_eq!(deadlines.enter(deadline(n)), None);
    }
    assert_eq!(deadlines.enter(deadline(DEADLINES_MAX)), Some(deadline(0)));
    assert_eq!(deadlines.next(), Some(at(1)));
    assert_eq!((deadlines.pop_due(at(1)), deadlines.pop_due(at(1))), (Some(deadline(1)), None));
}

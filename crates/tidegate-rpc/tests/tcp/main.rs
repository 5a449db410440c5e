//! Servers and clients of `tidegate-rpc` over the loopback interface.

#![expect(clippy::unwrap_used, reason = "an error is to fail the test")]

#[path = "../folder/mod.rs"]
mod folder;
mod scheme;
mod unix;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scheme::{AT_ARRIVAL, AT_START, Counting, Free, Seen};
use tidegate_core::Instant;
use tidegate_rpc::error::{CallError, ShedBy};
use tidegate_rpc::io::tcp::engine::Engine;
use tidegate_rpc::io::tcp::{
    CallOptions, ClientConfig, Handler, HandlerFailed, RpcClient, RpcServer, ServerConfig, ShardStats,
};
use tidegate_rpc::machine::{Claims, Priority, ShedReason, Tenant};
use tidegate_runtime::clock;
use tidegate_wire::rpc::client::{Wish, put_cancel, put_demand, put_hello, put_request};
use tidegate_wire::rpc::server::{Frame, Response, Status, frame, put_response};
use tidegate_wire::rpc::{Decoded, client};

/// A server that echoes, fails, panics or waits for the test, as the payload says.
struct Stage {
    server: RpcServer,
    seen: Arc<Seen>,
    /// Lets a call go whose payload is `hold`.
    release: Sender<()>,
    /// Told when one begins.
    held: Receiver<()>,
}

impl Stage {
    fn address(&self) -> SocketAddr {
        self.server.address().tcp().unwrap()
    }
}

fn stage(config: &ServerConfig) -> Stage {
    stage_with(config, u64::MAX)
}

fn stage_with(config: &ServerConfig, sessions_max: u64) -> Stage {
    let seen = Arc::new(Seen::default());
    let (release, released) = mpsc::channel();
    let (holding, held) = mpsc::channel();
    let released = Arc::new(Mutex::new(released));
    let server = RpcServer::start(config, |_| {
        let (released, holding) = (Arc::clone(&released), holding.clone());
        let handler = move |payload: &[u8], answer: &mut Vec<u8>| {
            match payload {
                b"hold" => {
                    holding.send(()).unwrap();
                    released.lock().unwrap().recv().unwrap();
                }
                b"panic" => panic!("as the test wants"),
                b"fail" => return Err(HandlerFailed),
                _ => {}
            }
            answer.extend_from_slice(payload);
            Ok(())
        };
        (Counting::new(&seen, sessions_max), handler)
    })
    .unwrap();
    Stage { server, seen, release, held }
}

async fn client(stage: &Stage) -> RpcClient<Free> {
    let config = ClientConfig { tenant: Tenant(4), ..ClientConfig::default() };
    RpcClient::connect(stage.address(), Free(Arc::clone(&stage.seen)), config).await.unwrap()
}

/// Gives up only with the test itself.
fn wait_for(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

fn stats(stage: &Stage) -> ShardStats {
    stage.server.stats()[0]
}

/// A peer without a client's manners.
struct Raw {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let mut raw = Self { socket: TcpStream::connect(address).unwrap(), unread: Vec::new() };
        raw.send(|out| put_hello(out, 0));
        raw
    }

    fn send(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        put(&mut out);
        self.socket.write_all(&out).unwrap();
    }

    /// The next answer, without grants in between; `None` when the server has hung up.
    fn response(&mut self) -> Option<(Response, Vec<u8>)> {
        loop {
            let found = match frame(&self.unread, 1 << 20).unwrap() {
                Decoded::Frame(Frame::Response(response, payload), used) => {
                    Some((Some((response, payload.to_vec())), used))
                }
                Decoded::Frame(Frame::Grant(_), used) => Some((None, used)),
                Decoded::Need(_) => None,
            };
            if let Some((response, used)) = found {
                self.unread.drain(..used);
                if response.is_some() {
                    return response;
                }
                continue;
            }
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk) {
                Ok(bytes @ 1..) => self.unread.extend_from_slice(&chunk[..bytes]),
                _ => return None,
            }
        }
    }

    fn id(&mut self) -> Option<u64> {
        self.response().map(|(response, _)| response.id)
    }
}

#[tokio::test]
async fn a_call_is_answered_with_what_its_handler_wrote() {
    let stage = stage(&ServerConfig { claims: Claims::Trusted, ..ServerConfig::default() });
    let client = client(&stage).await;
    for bytes in [0, 1, 100, 100_000, 1 << 20] {
        let payload = vec![b'x'; bytes];
        let answer = client.call(&payload, CallOptions::default()).await.unwrap();
        assert_eq!(answer.payload, payload);
        assert!(answer.server_time <= answer.response_time);
    }
    assert_eq!(stage.seen.tenants.load(SeqCst), 4);
    assert_eq!(stage.seen.granted.load(SeqCst), 3, "a grant that no answer carried");
    assert_eq!((stage.seen.served.load(SeqCst), stage.seen.in_service.load(SeqCst)), (5, 0));
    let error = client.call(&vec![0; (1 << 20) + 1], CallOptions::default()).await.unwrap_err();
    assert_eq!(error, CallError::TooLarge { bytes: (1 << 20) + 1, limit: 1 << 20 });
    drop(client);
    while stage.seen.open.load(SeqCst) > 0 {
        // The client's task ends in its runtime.
        tokio::task::yield_now().await;
    }
    stage.server.stop().unwrap();
}

#[tokio::test]
async fn sheds_say_why_and_that_sending_again_is_safe() {
    let stage = stage(&ServerConfig::default());
    let client = client(&stage).await;
    for (priority, reason) in [(AT_ARRIVAL, ShedReason::Delay), (AT_START, ShedReason::Deadline)] {
        let error = client.call(b"x", CallOptions { priority, deadline: None }).await.unwrap_err();
        assert_eq!(error, CallError::Shed { reason, by: ShedBy::Server });
        assert!(error.is_retry_safe());
    }
    assert_eq!((stage.seen.shed.load(SeqCst), stage.seen.served.load(SeqCst)), (2, 0));
}

#[tokio::test]
async fn a_handler_that_fails_or_panics_costs_one_call() {
    let stage = stage(&ServerConfig::default());
    let client = client(&stage).await;
    for payload in [&b"fail"[..], b"panic", b"fail"] {
        let error = client.call(payload, CallOptions::default()).await.unwrap_err();
        assert!(error == CallError::Failed && !error.is_retry_safe());
    }
    assert!(client.call(b"x", CallOptions::default()).await.is_ok());
    assert_eq!(stage.seen.in_service.load(SeqCst), 0);
}

#[tokio::test]
async fn calls_of_one_connection_overlap() {
    let stage = stage(&ServerConfig::default());
    let client = client(&stage).await;
    let calls: Vec<_> = (0..100_u8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call(&[n], CallOptions::default()).await.unwrap().payload })
        })
        .collect();
    for (n, call) in (0..100_u8).zip(calls) {
        assert_eq!(call.await.unwrap(), [n]);
    }
    assert_eq!(client.pending(), 0);
}

#[test]
fn a_cancelled_call_that_waits_never_runs_and_returns_its_credit() {
    // The sockets are looked at after every handler.
    let stage = stage(&ServerConfig { poll_every_us: 0, ..ServerConfig::default() });
    let mut raw = Raw::connect(stage.address());
    raw.send(|out| {
        put_request(out, 1, &Wish::default(), b"hold");
        put_request(out, 2, &Wish::default(), b"two");
        put_request(out, 3, &Wish::default(), b"three");
    });
    stage.held.recv().unwrap();
    raw.send(|out| {
        put_demand(out, &Wish::default());
        put_cancel(out, 2);
        put_cancel(out, 99);
    });
    stage.release.send(()).unwrap();
    assert_eq!((raw.id(), raw.id()), (Some(1), Some(3)));
    assert_eq!((stage.seen.cancelled.load(SeqCst), stage.seen.in_service.load(SeqCst)), (1, 0));
}

#[test]
fn calls_of_a_closed_connection_are_cancelled() {
    let stage = stage(&ServerConfig { poll_every_us: 0, ..ServerConfig::default() });
    let mut raw = Raw::connect(stage.address());
    raw.send(|out| (1..=9).for_each(|id| put_request(out, id, &Wish::default(), b"hold")));
    stage.held.recv().unwrap();
    drop(raw);
    stage.release.send(()).unwrap();
    wait_for(|| stage.seen.open.load(SeqCst) == 0);
    assert_eq!((stage.seen.cancelled.load(SeqCst), stage.seen.in_service.load(SeqCst)), (8, 0));
    wait_for(|| stats(&stage).cancelled == 8 && stats(&stage).connections == 0);
}

#[test]
fn a_call_beyond_the_bound_of_those_that_wait_is_shed_at_once() {
    let stage = stage(&ServerConfig { waiting_max: 2, poll_every_us: 0, ..ServerConfig::default() });
    let mut raw = Raw::connect(stage.address());
    raw.send(|out| put_request(out, 1, &Wish::default(), b"hold"));
    stage.held.recv().unwrap();
    raw.send(|out| (2..=4).for_each(|id| put_request(out, id, &Wish::default(), b"x")));
    stage.release.send(()).unwrap();
    assert_eq!(raw.id(), Some(1));
    let (response, _) = raw.response().unwrap();
    assert_eq!((response.id, response.status), (4, Status::Shed { reason: 7 }));
    assert_eq!((raw.id(), raw.id()), (Some(2), Some(3)));
}

/// Appends what no client sends.
type Forge<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn forged_bytes_close_their_own_connection_only() {
    let stage = stage(&ServerConfig::default());
    let mut sound = Raw::connect(stage.address());
    let request = |out: &mut Vec<u8>, id| put_request(out, id, &Wish::default(), b"x");
    let forged: [Forge; 5] = [
        &|out| out.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n"),
        &|out| put_hello(out, 0),
        // Announces more than is taken.
        &|out| out.extend_from_slice(&[0, 0, 0, 1, 2, 0, 0, 1]),
        &|out| put_response(out, &Response { id: 1, status: Status::Failed, server_time_ns: 0, grant: None }, b""),
        // A name that is in use: the first has not been started when the second is read.
        &|out| (0..2).for_each(|_| request(out, 5)),
    ];
    for (violations, forge) in (1..).zip(forged) {
        let mut raw = Raw::connect(stage.address());
        raw.send(forge);
        while raw.response().is_some() {}
        wait_for(|| stats(&stage).violations == violations);
        sound.send(|out| request(out, violations));
        assert_eq!(sound.id(), Some(violations));
    }
    let mut mute = Raw { socket: TcpStream::connect(stage.address()).unwrap(), unread: Vec::new() };
    mute.send(|out| request(out, 1));
    assert!(mute.response().is_none(), "a hello comes first");
}

#[test]
fn frames_may_come_byte_by_byte() {
    let stage = stage(&ServerConfig::default());
    let mut raw = Raw::connect(stage.address());
    let mut out = Vec::new();
    put_request(&mut out, 1, &Wish::default(), b"in pieces");
    put_request(&mut out, 2, &Wish::default(), b"");
    for byte in out {
        raw.socket.write_all(&[byte]).unwrap();
    }
    assert_eq!(raw.response().unwrap().1, b"in pieces");
    assert_eq!(raw.id(), Some(2));
}

#[test]
fn a_server_with_all_its_connections_or_sessions_hangs_up() {
    let stage = stage_with(&ServerConfig { connections_max: 2, ..ServerConfig::default() }, 1);
    let mut first = Raw::connect(stage.address());
    first.send(|out| put_request(out, 1, &Wish::default(), b"x"));
    assert_eq!(first.id(), Some(1));
    // A connection, but no session.
    assert!(Raw::connect(stage.address()).response().is_none());
    wait_for(|| stats(&stage).connections == 1);
    let _held = TcpStream::connect(stage.address()).unwrap();
    wait_for(|| stats(&stage).connections == 2);
    let mut third = TcpStream::connect(stage.address()).unwrap();
    assert!(matches!(third.read(&mut [0; 8]), Ok(0) | Err(_)));
    wait_for(|| stats(&stage).refused == 1);
}

#[test]
fn whoever_does_not_read_answers_is_not_read_any_more() {
    let config = ServerConfig { unsent_bytes_max: 1 << 20, ..ServerConfig::default() };
    let stage = stage(&config);
    let mut raw = Raw::connect(stage.address());
    raw.socket.set_nonblocking(true).unwrap();
    // More than sockets hold: at some point the server leaves the rest unread, and the peer's writes stall.
    let mut out = Vec::new();
    put_request(&mut out, 1, &Wish::default(), &vec![0; 1 << 20]);
    let mut sent = 0_usize;
    let mut rest = &out[..];
    let mut other = Raw::connect(stage.address());
    for id in 1.. {
        match raw.socket.write(rest) {
            Ok(bytes) => {
                sent += bytes;
                rest = if bytes == rest.len() { &out } else { &rest[bytes..] };
            }
            Err(_) if id > 2_000 => break,
            Err(_) => assert!(sent < 64 << 20, "the server reads on"),
        }
        // The server goes on with others meanwhile.
        other.send(|out| put_request(out, id, &Wish::default(), b"x"));
        assert_eq!(other.id(), Some(id));
    }
    assert_eq!(stats(&stage).violations, 0);
}

/// A handler that knows whom its callers belong to and what its calls matter.
struct Knowing;

impl Handler for Knowing {
    fn handle(&mut self, payload: &[u8], answer: &mut Vec<u8>) -> Result<(), HandlerFailed> {
        answer.extend_from_slice(payload);
        Ok(())
    }

    fn tenant(&mut self, peer: Option<SocketAddr>) -> Option<Tenant> {
        peer?.ip().is_loopback().then_some(Tenant(70))
    }

    fn priority(&mut self, payload: &[u8]) -> Option<Priority> {
        (payload == b"report").then_some(AT_ARRIVAL)
    }
}

#[tokio::test]
async fn tenants_and_priorities_are_what_the_server_knows_and_not_what_is_claimed() {
    let stage = stage(&ServerConfig::default());
    let ignored = client(&stage).await;
    ignored.call(b"x", CallOptions::default()).await.unwrap();
    assert_eq!(stage.seen.tenants.load(SeqCst), 0);
    let seen = Arc::new(Seen::default());
    let server = RpcServer::start(&ServerConfig::default(), |_| (Counting::new(&seen, u64::MAX), Knowing)).unwrap();
    let config = ClientConfig { tenant: Tenant(4), ..ClientConfig::default() };
    let client = RpcClient::connect(server.address(), Free(Arc::clone(&seen)), config).await.unwrap();
    let options = CallOptions { priority: Priority::CRITICAL, deadline: None };
    assert_eq!(client.call(b"page", options).await.unwrap().payload, b"page");
    let error = client.call(b"report", options).await.unwrap_err();
    assert_eq!(error, CallError::Shed { reason: ShedReason::Delay, by: ShedBy::Server });
    assert_eq!(seen.tenants.load(SeqCst), 70);
}

#[test]
fn two_hundred_connections_are_served_by_two_shards() {
    let stage = stage(&ServerConfig { shards: 2, ..ServerConfig::default() });
    let config = ClientConfig::default();
    let machine = |_| Free(Arc::clone(&stage.seen));
    let mut engine = Engine::connect(stage.address(), &config, 200, machine).unwrap();
    let mut ended = vec![0; 1_000];
    let mut end = |tag: usize, ending: Result<tidegate_rpc::io::tcp::link::Answer<'_>, CallError>| {
        assert_eq!(ending.unwrap().payload, tag.to_le_bytes());
        ended[tag] += 1;
    };
    for tag in 0..1_000_usize {
        let id = engine.call(tag % 200, &tag.to_le_bytes(), &CallOptions::default(), tag, &mut end);
        assert!(id.is_some());
    }
    while engine.pending() > 0 {
        engine.poll(Instant::MAX, Duration::ZERO, &mut end).unwrap();
    }
    assert_eq!(ended, vec![1; 1_000]);
    assert_eq!(engine.open(), 200);
    let accepted: Vec<u64> = stage.server.stats().iter().map(|shard| shard.accepted).collect();
    assert_eq!(accepted.iter().sum::<u64>(), 200);
}

/// Reads a hello and one request of a client, as a server.
fn take_request(socket: &mut TcpStream) -> u64 {
    let mut unread = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let bytes = socket.read(&mut chunk).unwrap();
        assert!(bytes > 0, "the client hung up");
        unread.extend_from_slice(&chunk[..bytes]);
        let mut rest = &unread[..];
        while let Decoded::Frame(frame, used) = client::frame(rest, 1 << 20).unwrap() {
            if let client::Frame::Request { id, .. } = frame {
                return id;
            }
            rest = &rest[used..];
        }
    }
}

#[tokio::test]
async fn a_lost_connection_fails_its_calls_and_is_opened_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let config = ClientConfig { reconnect_ms_min: 1, reconnect_ms_max: 2, ..ClientConfig::default() };
    let client = RpcClient::connect(address, Free(Arc::default()), config).await.unwrap();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(b"x", CallOptions::default()).await }
    });
    let lost = tokio::task::spawn_blocking(move || {
        let (mut socket, _) = listener.accept().unwrap();
        take_request(&mut socket);
        listener
    });
    let listener = lost.await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert!(error == CallError::Lost && !error.is_retry_safe());

    let answering = tokio::task::spawn_blocking(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let id = take_request(&mut socket);
        let grant = Some(tidegate_wire::rpc::server::Grant { window: 5, ..Default::default() });
        let mut out = Vec::new();
        put_response(&mut out, &Response { id, status: Status::Served, server_time_ns: 1, grant }, b"again");
        socket.write_all(&out).unwrap();
        socket
    });
    let answer = loop {
        match client.call(b"x", CallOptions::default()).await {
            Ok(answer) => break answer,
            Err(error) => assert!(error == CallError::Disconnected && error.is_retry_safe()),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(answer.payload, b"again");
    drop(answering.await.unwrap());
}

#[tokio::test]
async fn no_call_outlives_its_deadline_and_a_dropped_one_is_cancelled() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let client = RpcClient::connect(address, Free(Arc::default()), ClientConfig::default()).await.unwrap();
    let (mut socket, _) = silent.accept().unwrap();
    let past = CallOptions { priority: Priority::DEFAULT, deadline: Some(clock::now()) };
    assert_eq!(client.call(b"late", past).await, Err(CallError::TimedOut));
    {
        let call = client.call(b"dropped", CallOptions::default());
        tokio::pin!(call);
        tokio::select! {
            biased;
            _ = &mut call => panic!("nobody answers"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(client.pending(), 1);
    }
    assert_eq!(client.pending(), 0);
    // On the wire: the two requests, each with its cancel.
    let cancels = tokio::task::spawn_blocking(move || {
        let (mut unread, mut cancels) = (Vec::new(), 0);
        while cancels < 2 {
            let mut chunk = [0; 4096];
            let bytes = socket.read(&mut chunk).unwrap();
            unread.extend_from_slice(&chunk[..bytes]);
            let mut rest = &unread[..];
            cancels = 0;
            while let Decoded::Frame(frame, used) = client::frame(rest, 1 << 20).unwrap() {
                cancels += u32::from(matches!(frame, client::Frame::Cancel { .. }));
                rest = &rest[used..];
            }
        }
    });
    cancels.await.unwrap();
}

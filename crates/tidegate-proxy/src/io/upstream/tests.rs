//! Tests with real sockets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

use super::{Announced, Checks, Keep, Known, Lease, Look, Settings, System, Target, Upstreams, Verdicts};
use crate::config::{ProxyProtocolOut, Server, UpstreamProtocol};
use crate::io::conn::server_stream::ServerStream;
use crate::machine::upstream::{
    ActiveConfig, Balance, ConnectionsTuning, Failure, Flow, PoolConfig, Refusal, Replay, ServerConfig, Tried,
};

/// Where requests of these tests go.
const TARGET: Target<'_> = Target { index: 0, name: "shop" };

/// A connection over which nothing but bytes go.
#[derive(Debug)]
struct Plain(TcpStream);

impl From<ServerStream> for Plain {
    fn from(stream: ServerStream) -> Self {
        let ServerStream::Plain(stream) = stream else { panic!("nobody asked for TLS") };
        Self(stream)
    }
}

impl Keep for Plain {
    fn is_open(&mut self, _: Look) -> bool {
        matches!(self.0.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

fn run<F: Future>(test: F) -> F::Output {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(test)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address where nobody listens: the port was the system's choice a moment ago.
async fn nobody() -> SocketAddr {
    listener().await.1
}

fn settings(servers: &[SocketAddr], max_connections: u32, max_pending: u32) -> Settings {
    let one = ServerConfig { max_connections, ..ServerConfig::default() };
    Settings {
        name: "shop".to_owned(),
        servers: servers
            .iter()
            .map(|at| Server { host: at.ip().to_string(), port: at.port(), address: None })
            .collect(),
        pool: PoolConfig {
            servers: vec![one; servers.len()],
            balance: Balance::RoundRobin,
            max_pending,
            pending_timeout: Duration::from_mins(1),
            ..PoolConfig::default()
        },
        health: None,
        protocol: UpstreamProtocol::Http1,
        announce: ProxyProtocolOut::Off,
        tls: None,
        connect_timeout: Duration::from_mins(1),
        max_idle: 8,
        idle_timeout: Duration::from_mins(1),
        http2: ConnectionsTuning::default(),
    }
}

fn upstreams(settings: Settings) -> Rc<Upstreams<Plain>> {
    let (_, verdicts) = watch::channel(Verdicts::default());
    let upstreams = Upstreams::new(vec![settings], verdicts, Known::nothing(), 1);
    tokio::task::spawn_local(Rc::clone(&upstreams).drive());
    upstreams
}

/// The exchange is over, and the connection can be used again.
fn keep(mut lease: Lease<Plain>, connection: Plain) {
    let ticket = lease.hand_over();
    lease.upstream().end(ticket, Some(connection));
}

async fn lease(upstreams: &Upstreams<Plain>) -> Lease<Plain> {
    upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap()
}

#[test]
fn the_newest_kept_connection_is_used_first_and_a_closed_one_never() {
    run(async {
        let (listener, address) = listener().await;
        let upstreams = upstreams(settings(&[address], 8, 0));
        let (first, second) = (lease(&upstreams).await, lease(&upstreams).await);
        let (oldest, newest) =
            (Plain::from(first.connect().await.unwrap()), Plain::from(second.connect().await.unwrap()));
        let (oldest_at, newest_at) = (oldest.0.local_addr().unwrap(), newest.0.local_addr().unwrap());
        let mut peers = [listener.accept().await.unwrap(), listener.accept().await.unwrap()];
        keep(first, oldest);
        keep(second, newest);
        let third = lease(&upstreams).await;
        let again = third.reuse(Look::Known).unwrap();
        assert_eq!(again.0.local_addr().unwrap(), newest_at);
        // The server closes it; when that can be read, it is not open any more.
        peers.sort_by_key(|(_, from)| *from != newest_at);
        let [(newest_peer, _), _oldest_peer] = peers;
        drop(newest_peer);
        again.0.readable().await.unwrap();
        keep(third, again);
        let fourth = lease(&upstreams).await;
        assert_eq!(fourth.reuse(Look::Known).unwrap().0.local_addr().unwrap(), oldest_at);
        assert!(fourth.reuse(Look::Known).is_none());
    });
}

#[test]
fn a_server_that_is_not_there_costs_a_try_and_another_one_is_asked() {
    run(async {
        let (_listener, address) = listener().await;
        let upstreams = upstreams(settings(&[nobody().await, address], 8, 0));
        let lease = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap();
        assert_ne!(lease.server().port, address.port(), "round robin begins with the first");
        lease.connect().await.unwrap_err();
        let tried = lease.retry("POST", Failure::Unsent, Replay::Whole).unwrap();
        drop(lease);
        let lease = upstreams.acquire(TARGET, Flow::http1(0).into(), tried, None, || 1).await.unwrap();
        lease.connect().await.unwrap();
        assert_eq!(lease.server().port, address.port());
        let failures: Vec<_> = upstreams.states()[0].servers.iter().map(|(_, state)| state.failures).collect();
        assert_eq!(failures, [1, 0]);
    });
}

#[test]
fn a_slot_that_frees_goes_to_the_one_that_waits() {
    run(async {
        let upstreams = upstreams(settings(&[nobody().await], 1, 1));
        let held = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap();
        let mut waiting = Box::pin(upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1));
        assert!(futures_poll(waiting.as_mut()).is_none());
        let refused = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await;
        assert_eq!(refused.unwrap_err(), Refusal::QueueFull);
        drop(held);
        waiting.await.unwrap();
        assert_eq!(upstreams.states()[0].servers[0].1.active, 0, "it gave its slot back too");
    });
}

#[test]
fn who_goes_away_while_he_waits_leaves_nothing_behind() {
    run(async {
        let upstreams = upstreams(settings(&[nobody().await], 1, 9));
        let held = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap();
        let mut gone = Box::pin(upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1));
        let mut late = Box::pin(upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1));
        assert!(futures_poll(gone.as_mut()).is_none() && futures_poll(late.as_mut()).is_none());
        drop(gone);
        assert_eq!(upstreams.states()[0].pending, 1);
        drop(held); // The slot is given to `late`, which goes away before it looks.
        drop(late);
        let state = upstreams.states().remove(0);
        assert_eq!((state.pending, state.servers[0].1.active), (0, 0));
    });
}

#[test]
fn nobody_waits_longer_than_the_configuration_says() {
    run(async {
        let mut settings = settings(&[nobody().await], 1, 9);
        settings.pool.pending_timeout = Duration::from_millis(20);
        let upstreams = upstreams(settings);
        let _held = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap();
        let refused = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await;
        assert_eq!(refused.unwrap_err(), Refusal::TimedOut);
    });
}

#[test]
fn the_proxy_header_comes_before_everything_else() {
    run(async {
        let (listener, address) = listener().await;
        let settings = Settings { announce: ProxyProtocolOut::V1, ..settings(&[address], 8, 0) };
        let upstreams = upstreams(settings);
        let announced = Announced {
            source: ([192, 0, 2, 1], 4711).into(),
            destination: ([198, 51, 100, 7], 443).into(),
            authority: None,
        };
        let lease = upstreams
            .acquire(TARGET, Flow::http1(0).into(), Tried::default(), Some(Rc::new(announced.clone())), || 1)
            .await
            .unwrap();
        let mut stream = lease.connect().await.unwrap();
        stream.write_all(b"!").await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut read = vec![0; 45];
        peer.read_exact(&mut read).await.unwrap();
        assert_eq!(read, b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 443\r\n!");
        keep(lease, stream.into());
        let other = Announced { source: ([192, 0, 2, 2], 4711).into(), ..announced };
        let lease = upstreams
            .acquire(TARGET, Flow::http1(0).into(), Tried::default(), Some(Rc::new(other)), || 1)
            .await
            .unwrap();
        assert!(lease.reuse(Look::Known).is_none(), "that connection is another client's");
    });
}

#[test]
fn a_reload_keeps_health_and_connections_of_the_servers_that_stay() {
    run(async {
        let (_listener, address) = listener().await;
        let old = settings(&[nobody().await, address], 8, 0);
        let upstreams = upstreams(old.clone());
        let lease =
            upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default().and(0), None, || 1).await.unwrap();
        let connection = Plain::from(lease.connect().await.unwrap());
        let port = connection.0.local_addr().unwrap();
        keep(lease, connection);
        let held = self::lease(&upstreams).await;
        upstreams.reload(vec![settings(&[address], 8, 0)], 2);
        drop(held); // Its slot is one of the pool that it came from.
        let lease = upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap();
        assert_eq!(lease.reuse(Look::Known).unwrap().0.local_addr().unwrap(), port);
        upstreams.reload(Vec::new(), 3);
        assert_eq!(
            upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1).await.unwrap_err(),
            Refusal::NoServer
        );
    });
}

#[test]
fn a_request_finds_its_upstream_where_a_reload_put_it() {
    run(async {
        let (address, other) = (nobody().await, nobody().await);
        let upstreams = upstreams(settings(&[address], 8, 0));
        let stranger = Settings { name: "bank".to_owned(), ..settings(&[other], 8, 0) };
        upstreams.reload(vec![stranger, settings(&[address], 8, 0)], 2);
        assert_eq!(lease(&upstreams).await.server().port, address.port());
    });
}

#[test]
fn who_waits_while_the_configuration_changes_waits_no_longer_than_before() {
    run(async {
        let mut old = settings(&[nobody().await], 1, 9);
        old.pool.pending_timeout = Duration::from_millis(20);
        let upstreams = upstreams(old);
        let _held = lease(&upstreams).await;
        let mut waiting = Box::pin(upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1));
        assert!(futures_poll(waiting.as_mut()).is_none());
        upstreams.reload(Vec::new(), 2);
        assert_eq!(waiting.await.unwrap_err(), Refusal::TimedOut);
    });
}

#[test]
fn what_is_under_way_when_the_configuration_changes_keeps_its_slots() {
    run(async {
        let (address, other) = (nobody().await, nobody().await);
        let upstreams = upstreams(settings(&[address], 1, 9));
        let held = lease(&upstreams).await;
        let mut changed = settings(&[other, address], 1, 9);
        changed.pool.servers[0].weight = 0;
        upstreams.reload(vec![changed], 2);
        let mut waiting = Box::pin(upstreams.acquire(TARGET, Flow::http1(0).into(), Tried::default(), None, || 1));
        assert!(futures_poll(waiting.as_mut()).is_none(), "the only slot is taken");
        held.fail();
        let state = upstreams.states()[0].servers[1].1;
        assert_eq!((state.active, state.requests, state.failures), (1, 1, 1));
        drop(held);
        let lease = waiting.await.unwrap();
        assert_eq!(lease.server().port, address.port());
        let state = upstreams.states()[0].servers[1].1;
        assert_eq!((state.active, state.requests, state.failures), (1, 2, 1));
    });
}

#[test]
fn checks_take_a_server_down_and_bring_it_back() {
    run(async {
        let (listener, address) = listener().await;
        let health = ActiveConfig {
            interval: Duration::from_millis(5),
            timeout: Duration::from_secs(5),
            path: Some("/healthy".to_owned()),
            rise: 2,
            fall: 2,
            ..ActiveConfig::default()
        };
        let settings = Settings { health: Some(health), ..settings(&[address], 8, 0) };
        let (sender, mut verdicts) = watch::channel(Verdicts::default());
        let mut checks = Checks::new(Arc::new(sender), System::new(), 1);
        checks.set(std::slice::from_ref(&settings));
        let upstreams = Upstreams::<Plain>::new(vec![settings.clone()], verdicts.clone(), Known::nothing(), 1);
        tokio::task::spawn_local(Rc::clone(&upstreams).drive());
        for (status, up) in [("204 No Content", true), ("500 Internal Server Error", false), ("200 OK", true)] {
            let mut asked = 0;
            while verdicts.borrow().of("shop", &settings.servers[0]) != Some(up) {
                tokio::select! {
                    changed = verdicts.changed() => changed.unwrap(),
                    accepted = listener.accept() => {
                        answer(accepted.unwrap().0, status).await;
                        asked += 1;
                    }
                }
            }
            assert!(asked <= 3, "{status}: {asked} checks for a turn");
            // The thread's own view follows.
            while upstreams.states()[0].servers[0].1.up != up {
                tokio::task::yield_now().await;
            }
        }
        drop(checks);
    });
}

#[test]
fn a_changed_check_starts_from_what_is_known_and_an_unchanged_one_goes_on() {
    run(async {
        let (listener, address) = listener().await;
        // So far apart at first that any further check is one that a change began.
        let checked = |interval| {
            let health = ActiveConfig {
                interval,
                timeout: Duration::from_mins(1),
                path: Some("/healthy".to_owned()),
                fall: 3,
                ..ActiveConfig::default()
            };
            [Settings { health: Some(health), ..settings(&[address], 8, 0) }]
        };
        let (seldom, often) = (checked(Duration::from_hours(1)), checked(Duration::from_millis(5)));
        let (sender, mut verdicts) = watch::channel(Verdicts::default());
        let mut checks = Checks::new(Arc::new(sender), System::new(), 1);
        checks.set(&seldom);
        answer(listener.accept().await.unwrap().0, "200 OK").await;
        verdicts.changed().await.unwrap();
        let before = checks.running[0].1.id();
        checks.set(&seldom);
        assert_eq!(checks.running[0].1.id(), before, "nothing changed");
        checks.set(&often);
        assert_ne!(checks.running[0].1.id(), before);
        for _ in 0..3 {
            // The result of one check is known before the next one begins.
            let asked = listener.accept().await.unwrap().0;
            assert_eq!(verdicts.borrow().of("shop", &often[0].servers[0]), Some(true));
            answer(asked, "500 Internal Server Error").await;
        }
        verdicts.changed().await.unwrap();
        assert_eq!(verdicts.borrow().of("shop", &often[0].servers[0]), Some(false));
        checks.set(&[]);
        assert_eq!(verdicts.borrow().of("shop", &often[0].servers[0]), None);
    });
}

#[test]
fn a_name_whose_lookup_does_not_end_is_looked_up_once_at_a_time_and_delays_no_check_of_another() {
    run(async {
        let (listener, address) = listener().await;
        let health = ActiveConfig {
            interval: Duration::from_millis(5),
            timeout: Duration::from_millis(20),
            path: Some("/healthy".to_owned()),
            rise: 1,
            fall: 1,
            ..ActiveConfig::default()
        };
        let mut settings = Settings { health: Some(health), ..settings(&[address; 2], 8, 0) };
        for (server, host) in settings.servers.iter_mut().zip(["dead.invalid", "well.invalid"]) {
            host.clone_into(&mut server.host);
        }
        let (began, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let (release, hold) = std::sync::mpsc::channel::<()>();
        let hold = std::sync::Mutex::new(hold);
        let system = System::with(move |name| {
            let _ = began.send(name.to_owned());
            if name == "dead.invalid" {
                let _ = hold.lock().unwrap().recv();
            }
            Ok(vec![[127, 0, 0, 1].into()])
        });
        let (sender, mut verdicts) = watch::channel(Verdicts::default());
        let mut checks = Checks::new(Arc::new(sender), system, 1);
        checks.set(std::slice::from_ref(&settings));
        // Many checks of the one give up while the other one is well.
        let mut answered = 0;
        while answered < 20 || verdicts.borrow().of("shop", &settings.servers[0]) != Some(false) {
            answer(listener.accept().await.unwrap().0, "200 OK").await;
            answered += 1;
        }
        assert_eq!(verdicts.borrow().of("shop", &settings.servers[1]), Some(true));
        let lookups: Vec<_> = std::iter::from_fn(|| asked.try_recv().ok()).collect();
        assert_eq!(lookups.iter().filter(|name| *name == "dead.invalid").count(), 1, "{lookups:?}");
        // The lookup ends after all: what it found is for the next check.
        release.send(()).unwrap();
        while verdicts.borrow().of("shop", &settings.servers[0]) != Some(true) {
            tokio::select! {
                changed = verdicts.changed() => changed.unwrap(),
                accepted = listener.accept() => answer(accepted.unwrap().0, "200 OK").await,
            }
        }
        drop(checks);
    });
}

/// Reads a request without a body and answers it.
async fn answer(mut peer: TcpStream, status: &str) {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let more = peer.read_buf(&mut read).await.unwrap();
        assert_ne!(more, 0, "a check is a whole request");
    }
    assert!(read.starts_with(b"GET /healthy HTTP/1.1\r\n"), "{}", read.escape_ascii());
    let _ = peer.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
}

/// One poll by nobody in particular.
fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

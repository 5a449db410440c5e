//! What moves no faster than a tenant's number, over real sockets: never more than burst and rate times the time, and all
//! of it in the end.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Running, Upstream, read_head, send, talk};
use tidegate_core::Instant;
use tidegate_runtime::clock;

const RATE: u64 = 1_000_000;
/// The depth of the bucket: 50 ms are less.
const BURST: u64 = 64 << 10;
const TABLES: &str = "[[proxy.tenant]]\nname = \"b.example\"\nbandwidth = \"1MB/s\"\n";

/// A server that gives as many bytes as the path says, or takes as many as come and says when it has them.
fn store() -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, taken) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
    let counted = Arc::clone(&taken);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counted) = (stream.unwrap(), Arc::clone(&counted));
            std::thread::spawn(move || {
                loop {
                    let head = read_head(&mut stream);
                    let Some(path) = head.split(' ').nth(1) else { return };
                    let mut length = 0;
                    for line in head.to_ascii_lowercase().lines() {
                        if let Some(given) = line.strip_prefix("content-length:") {
                            length = given.trim().parse().unwrap();
                        }
                    }
                    let mut bytes = vec![0; 64 << 10];
                    while length > 0 {
                        let most = bytes.len().min(length);
                        let Ok(read @ 1..) = stream.read(&mut bytes[..most]) else { return };
                        length -= read;
                        counted.fetch_add(read as u64, Ordering::SeqCst);
                    }
                    let give: usize = path[1..].parse().unwrap_or(0);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {give}\r\n\r\n");
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; give])).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, taken)
}

/// Fails if more came since `began` than may.
fn check(came: u64, began: Instant) {
    let most = BURST + RATE * u64::try_from(clock::now().since(began).as_nanos()).unwrap() / 1_000_000_000;
    assert!(came <= most, "{came} bytes in {:?}", clock::now().since(began));
}

/// Reads `length` bytes, adds them to `all` and checks after each piece.
fn read_checked(stream: &mut impl Read, length: usize, all: &AtomicU64, began: Instant) {
    let (mut left, mut bytes) = (length, vec![0; 16 << 10]);
    while left > 0 {
        let most = bytes.len().min(left);
        let read = stream.read(&mut bytes[..most]).unwrap();
        assert!(read > 0, "the body is cut");
        left -= read;
        check(all.fetch_add(read as u64, Ordering::SeqCst) + read as u64, began);
    }
}

fn get(host: &str, bytes: usize) -> String {
    format!("GET /{bytes} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn downloads_of_a_tenant_have_its_number_together_and_others_are_not_held() {
    let (address, _) = store();
    let proxy = Running::before_address(&address.to_string(), TABLES);
    let (began, all) = (clock::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let mut client = proxy.connect();
                for _ in 0..2 {
                    send(&mut client, &get("b.example", 100_000));
                    read_head(&mut client);
                    read_checked(&mut client, 100_000, &all, began);
                }
            });
        }
        // 200 MB would take minutes.
        let mut other = proxy.connect();
        assert_eq!(talk(&mut other, &get("a.example", 200_000_000)).body.len(), 200_000_000);
    });
    assert_eq!(all.load(Ordering::SeqCst), 1_000_000);
    let counted = proxy.proxy().source().live().bandwidths;
    assert_eq!((counted.len(), counted[0].0.as_str(), counted[0].1.bytes), (1, "b.example", 1_000_000));
    assert!(counted[0].1.waits > 0);
}

#[test]
fn answers_that_end_with_their_first_piece_are_held_as_well() {
    let (address, _) = store();
    let proxy = Running::before_address(&address.to_string(), TABLES);
    let (began, all) = (clock::now(), AtomicU64::new(0));
    let mut client = proxy.connect();
    for _ in 0..100 {
        send(&mut client, &get("b.example", 3_000));
        read_head(&mut client);
        read_checked(&mut client, 3_000, &all, began);
    }
}

#[test]
fn an_upload_is_read_no_faster_than_it_may() {
    let (address, taken) = store();
    let proxy = Running::before_address(&address.to_string(), TABLES);
    let mut client = proxy.connect();
    let began = clock::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while taken.load(Ordering::SeqCst) < 1_000_000 {
                check(taken.load(Ordering::SeqCst), began);
                std::thread::yield_now();
            }
        });
        let head = "POST /0 HTTP/1.1\r\nHost: b.example\r\nContent-Length: 1000000\r\n\r\n";
        send(&mut client, head);
        client.write_all(&vec![b'x'; 1_000_000]).unwrap();
        assert_eq!(support::read_answer(&mut client).status, 200);
    });
    check(taken.load(Ordering::SeqCst), began);
}

#[test]
fn a_tunnel_is_held_in_both_directions() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, TABLES);
    let mut client = proxy.connect();
    let began = clock::now();
    let head = "GET /socket HTTP/1.1\r\nHost: b.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(support::talk_head(&mut client, head).status, 101);
    let mut sends = client.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || sends.write_all(&vec![b'x'; 500_000]).unwrap());
        let (mut bytes, mut left) = (vec![0; 16 << 10], 500_000);
        while left > 0 {
            let read = client.read(&mut bytes).unwrap();
            assert!(read > 0);
            left -= read;
            // What comes back was charged on its way there as well.
            check(2 * (500_000 - left) as u64, began);
        }
    });
    assert_eq!(proxy.proxy().source().live().bandwidths[0].1.bytes, 1_000_000);
}

#[tokio::test]
async fn streams_of_http2_are_held_and_each_has_its_turn() {
    let (address, _) = store();
    let proxy = Running::before_address(&address.to_string(), TABLES);
    let stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let (began, all) = (clock::now(), Arc::<AtomicU64>::default());
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let (mut sender, all) = (sender.clone(), Arc::clone(&all));
        tasks.push(tokio::spawn(async move {
            let request = Request::get("http://b.example/200000").body(Empty::<Bytes>::new()).unwrap();
            let mut body = sender.send_request(request).await.unwrap().into_body();
            while let Some(frame) = body.frame().await {
                let bytes = frame.unwrap().into_data().unwrap().len() as u64;
                check(all.fetch_add(bytes, Ordering::SeqCst) + bytes, began);
            }
            all.load(Ordering::SeqCst)
        }));
    }
    for task in tasks {
        let came = task.await.unwrap();
        assert!(came >= 600_000, "one had all of its own when all together had {came}");
    }
    assert_eq!(all.load(Ordering::SeqCst), 1_000_000);
}

#[test]
fn another_number_holds_for_what_is_under_way_and_none_lets_it_go() {
    let (address, _) = store();
    let tables = TABLES.replace("1MB/s", "20kB/s");
    let proxy = Running::before_address(&address.to_string(), &tables);
    let mut client = proxy.connect();
    // Ten minutes at 20 kB/s.
    send(&mut client, &get("b.example", 12_000_000));
    read_head(&mut client);
    support::exactly(&mut client, 50_000);
    proxy.reload_before(&address.to_string());
    support::exactly(&mut client, 12_000_000 - 50_000);
    assert!(proxy.proxy().source().live().bandwidths.is_empty());
}

#[test]
fn a_client_that_goes_while_its_answer_waits_leaves_nothing_behind() {
    let (address, _) = store();
    let proxy = Running::before_address(&address.to_string(), &TABLES.replace("1MB/s", "1kB/s"));
    let mut client = proxy.connect();
    send(&mut client, &get("b.example", 1_000_000));
    read_head(&mut client);
    support::exactly(&mut client, 1_000);
    drop(client);
    proxy.wait_until(|live| live.connections == 0);
    assert!(proxy.drain(), "nobody waits for bytes that nobody takes");
}

/// 4 MB of which each byte counts when it comes and when it goes, beside a capacity of 4 MB/s: two seconds, of which the
/// first bytes are not waited for. Without a look while bytes move it takes milliseconds.
const SHORT: &str = "[proxy.limits.capacities]\nnetwork_bytes = \"4MB/s\"\n";
const LONG: usize = 4_000_000;

fn takes_its_time(work: impl FnOnce()) {
    let began = clock::now();
    work();
    assert!(clock::now().since(began) >= Duration::from_millis(700), "it took {:?}", clock::now().since(began));
}

#[test]
fn what_is_beyond_a_share_waits_while_it_moves_and_comes_whole() {
    let (address, taken) = store();
    let proxy = Running::before_address(&address.to_string(), SHORT);
    let mut client = proxy.connect();
    takes_its_time(|| assert_eq!(talk(&mut client, &get("b.example", LONG)).body.len(), LONG));
    takes_its_time(|| {
        send(&mut client, &format!("POST /0 HTTP/1.1\r\nHost: b.example\r\nContent-Length: {LONG}\r\n\r\n"));
        client.write_all(&vec![b'x'; LONG]).unwrap();
        assert_eq!(support::read_answer(&mut client).status, 200);
    });
    assert_eq!(taken.load(Ordering::SeqCst), LONG as u64);
    let refused = &proxy.proxy().snapshot().tenants[0].refused;
    assert_eq!((refused.request, refused.hello), (0, 0), "what waits is not refused, whatever the patience");
}

#[test]
fn a_tunnel_beyond_a_share_waits_as_well() {
    let upstream = Upstream::echo();
    let proxy = Running::before(&upstream, SHORT);
    let mut client = proxy.connect();
    let head = "GET /socket HTTP/1.1\r\nHost: b.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(support::talk_head(&mut client, head).status, 101);
    let mut sends = client.try_clone().unwrap();
    takes_its_time(|| {
        std::thread::scope(|scope| {
            scope.spawn(move || sends.write_all(&vec![b'x'; LONG / 2]).unwrap());
            support::exactly(&mut client, LONG / 2);
        });
    });
}

#[test]
fn an_upload_below_the_least_rate_is_given_up_though_it_never_pauses() {
    let (address, _) = store();
    let tables = "[proxy.timeouts]\nbody_idle = \"500ms\"\nbody_rate_min = \"10kB/s\"\n";
    let proxy = Running::before_address(&address.to_string(), tables);
    let mut client = proxy.connect();
    send(&mut client, "POST /0 HTTP/1.1\r\nHost: b.example\r\nContent-Length: 1000\r\n\r\n");
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut first = [0; 12];
    // A byte in 50 ms: all of them would take 50 seconds.
    let came = (0..1_000).find(|_| {
        let _closed = client.write_all(b"x");
        client.read_exact(&mut first).is_ok()
    });
    assert!(came.is_some_and(|sent| sent < 900), "{came:?}");
    assert_eq!(&first, b"HTTP/1.1 408");
    assert_eq!(proxy.proxy().source().live().responses_total[2], 0);
}

#[test]
fn a_client_that_takes_less_than_the_least_rate_is_given_up() {
    let (address, _) = store();
    let tables = "[proxy.timeouts]\nwrite_stall = \"2s\"\nwrite_rate_min = \"1GB/s\"\n";
    let proxy = Running::before_address(&address.to_string(), tables);
    let mut client = proxy.connect();
    send(&mut client, &get("b.example", 200_000_000));
    let (mut bytes, mut taken) = (vec![0; 64 << 10], 0);
    // It takes some all the time; of a pause of two seconds it is far.
    loop {
        std::thread::park_timeout(Duration::from_millis(20));
        match client.read(&mut bytes) {
            Ok(read @ 1..) => taken += read,
            Ok(0) | Err(_) => break,
        }
        assert!(taken < 100_000_000, "nobody minds");
    }
}

//! What a reload changes while clients go on asking.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use support::{Load, Running, Upstream, config, connect, is_closed, talk};

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n";

/// A proxy of two threads with these tables of listeners.
fn listening(upstream: &Upstream, listeners: &str) -> String {
    format!(
        "[proxy]\nthreads = 2\ntrusted = [\"127.0.0.0/8\"]\n{listeners}[[proxy.upstream]]\nname = \"u\"\n\
         servers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n",
        upstream.address()
    )
}

fn listener(address: impl std::fmt::Display) -> String {
    format!("[[proxy.listen]]\naddress = \"{address}\"\n")
}

#[test]
fn ports_come_and_go_and_every_request_is_served() {
    let upstream = Upstream::echo();
    let any = listener("127.0.0.1:0");
    let proxy = Running::start(&listening(&upstream, &any));
    let reload = |listeners: &str| proxy.proxy().reload(config(&listening(&upstream, listeners)));
    let load = Load::start(proxy.address(), GET);
    load.goes_on(20);

    reload(&any.repeat(2)).unwrap();
    let all = proxy.proxy().addresses();
    assert_eq!((all.len(), all[0]), (2, proxy.address()));
    let mut kept = connect(all[1]);
    assert_eq!(talk(&mut kept, GET).status, 200);
    load.goes_on(20);

    // One that cannot be had leaves everything as it is.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = reload(&format!("{any}{}{}", listener("[::1]:0"), listener(address))).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {address}"));
    assert_eq!(proxy.proxy().addresses(), all);
    assert_eq!(talk(&mut kept, GET).header("connection"), None);

    // Who asked before one closes is served, and so is one request on each connection that came by it.
    let mut asked: Vec<TcpStream> = (0..8).map(|_| connect(all[1])).collect();
    for client in &mut asked {
        support::send(client, GET);
    }
    reload(&any).unwrap();
    assert_eq!(proxy.proxy().addresses(), all[..1]);
    for client in &mut asked {
        assert_eq!(support::read_answer(client).status, 200);
    }
    while TcpStream::connect(all[1]).is_ok() {
        std::thread::yield_now();
    }
    let last = talk(&mut kept, GET);
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert!(is_closed(&mut kept));
    load.goes_on(20);
    load.stop();
}

#[test]
fn what_a_port_asks_of_clients_changes_for_those_who_come() {
    let upstream = Upstream::echo();
    let any = listener("127.0.0.1:0");
    let proxy = Running::start(&listening(&upstream, &any));
    let mut before = proxy.connect();
    assert_eq!(talk(&mut before, GET).status, 200);
    let required = format!("{any}proxy_protocol = \"require\"\n");
    proxy.proxy().reload(config(&listening(&upstream, &required))).unwrap();
    // Until its thread knows about it, the port takes the header for a bad request.
    let header = "PROXY TCP4 192.0.2.7 192.0.2.8 1024 80\r\n";
    let announced = || {
        let answer = talk(&mut connect(proxy.address()), &format!("{header}{GET}"));
        answer.status == 200 && answer.text().contains("x-forwarded-for: 192.0.2.7\r\n")
    };
    while !announced() {}
    assert_eq!(talk(&mut before, GET).status, 200);
}

#[test]
fn a_proxy_that_stops_closes_its_ports() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&listening(&upstream, &listener("127.0.0.1:0").repeat(2)));
    let all: Vec<SocketAddr> = proxy.proxy().addresses();
    assert!(proxy.drain());
    assert!(all.into_iter().all(|address| TcpStream::connect(address).is_err()));
}

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-reload-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn an_access_log_moves_and_every_request_has_its_line() {
    let upstream = Upstream::echo();
    let folder = Folder::new("log");
    let any = listener("127.0.0.1:0");
    let log = |name: &str, format: &str| {
        let path = folder.0.join(name);
        format!("[proxy.access_log]\npath = \"{}\"\nformat = \"{format}\"\n", path.display())
    };
    let text = |log: &str| listening(&upstream, &any) + log;
    let proxy = Running::start(&text(&log("one", "common")));
    let reload = |log: &str| proxy.proxy().reload(config(&text(log)));
    let load = Load::start(proxy.address(), GET);
    load.goes_on(50);
    reload(&log("two", "json")).unwrap();
    load.goes_on(50);
    let error = reload(&log("no/such/folder/log", "json")).unwrap_err();
    assert!(error.to_string().starts_with("cannot open the access log"), "{error}");
    load.goes_on(50);
    reload(&log("one", "common")).unwrap();
    load.goes_on(50);
    let all = load.stop();
    drop(proxy);
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    let (one, two) = (read("one"), read("two"));
    assert!(one.lines().all(|line| line.contains("\"GET / HTTP/1.1\" 200")), "{one}");
    assert!(two.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{two}");
    assert!(two.lines().count() >= 50);
    assert_eq!(one.lines().count() + two.lines().count(), all);
}

#[test]
fn the_spool_moves_and_what_is_in_the_old_one_ends_there() {
    let upstream = Upstream::echo();
    let folder = Folder::new("spool");
    let any = listener("127.0.0.1:0");
    let spool = |name: &str, more: &str| {
        format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"\n{more}", folder.0.join(name).display())
    };
    let text = |spool: &str| listening(&upstream, &any) + spool;
    let proxy = Running::start(&text(&spool("one", "")));
    let reload = |spool: &str| proxy.proxy().reload(config(&text(spool)));
    let body = "0123456789".repeat(30_000);
    let request = format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let load = Load::start(proxy.address(), &request);
    load.goes_on(5);
    // Half of it is in the folder that is left, whatever the other half is written to.
    let mut slow = proxy.connect();
    let (half, rest) = request.split_at(200_000);
    support::send(&mut slow, half);
    load.goes_on(5);
    reload(&spool("two", "threads = 3\n")).unwrap();
    load.goes_on(5);
    std::fs::write(folder.0.join("file"), "").unwrap();
    let error = reload(&spool("file", "")).unwrap_err();
    assert!(error.to_string().starts_with("cannot use the spool directory"), "{error}");
    reload(&spool("two", "max_bytes = \"8MiB\"\n")).unwrap();
    load.goes_on(5);
    reload("").unwrap();
    load.goes_on(5);
    reload(&spool("one", "")).unwrap();
    load.goes_on(5);
    let answer = talk(&mut slow, rest);
    assert!(answer.status == 200 && answer.text().ends_with(&body), "{}", answer.head);
    load.stop();

    // Its bounds hold from then on: no body may be longer than half of it.
    reload(&spool("one", "max_bytes = \"1MiB\"\n")).unwrap();
    let is_too_long = || {
        let mut client = proxy.connect();
        // Until its thread knows about it, the proxy waits for the body.
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        support::send(&mut client, "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 600000\r\n\r\n");
        let mut status = [0; 12];
        client.read_exact(&mut status).is_ok() && status == *b"HTTP/1.1 413"
    };
    while !is_too_long() {}
}

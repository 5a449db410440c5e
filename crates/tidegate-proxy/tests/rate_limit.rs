//! `rate_limit` over real sockets: before the upstream, and before the handshake.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::{Answer, Running, Upstream, read_answer, send, talk};
use tidegate_proxy::config::Config;
use tidegate_proxy::machine::rate_limit::Counts;
use tidegate_runtime::config::Document;

const LOOPBACK: &str = "[proxy.lists.here]\ncidr = [\"127.0.0.0/8\"]\n";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n")
}

fn routed(upstream: &Upstream, limit: &str) -> String {
    format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\nname = \"shop\"\nupstream = \"u\"\nrate_limit = {{ {limit} }}\n{LOOPBACK}",
        upstream.address()
    )
}

/// What the limiter with this tag counted.
fn counts(proxy: &Running, tag: &str) -> Counts {
    let live = proxy.proxy().source().live();
    live.rate_limits.iter().find(|limit| limit.tag == tag).unwrap().counts
}

/// Until what the limiter counted is as wanted.
fn until(proxy: &Running, tag: &str, wanted: impl Fn(&Counts) -> bool) {
    while !wanted(&counts(proxy, tag)) {
        std::thread::yield_now();
    }
}

/// Sends a request that the upstream holds until it is told otherwise.
fn hold(upstream: &Upstream, proxy: &Running) -> TcpStream {
    let mut client = proxy.connect();
    send(&mut client, &get("/held"));
    upstream.wait_for_held();
    client
}

/// The same, for a client that waits for its answer.
fn waiting(proxy: &Running, request: String) -> JoinHandle<Answer> {
    let mut client = proxy.connect();
    std::thread::spawn(move || talk(&mut client, &request))
}

fn ms_waited(answer: &Answer) -> Option<u64> {
    answer.text().lines().find_map(|line| line.strip_prefix("x-queue-ms: ")?.trim().parse().ok())
}

#[test]
fn who_waits_is_served_when_the_slot_frees_and_the_upstream_learns_how_long_it_was() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "limit = 1, queue = 1, retry = \"7s\", header = \"x-queue-ms\""));
    let mut first = hold(&upstream, &proxy);
    let forged = "GET /second HTTP/1.1\r\nHost: a.example\r\nX-Queue-Ms: 123456789\r\n\r\n".to_owned();
    let second = waiting(&proxy, forged.clone());
    until(&proxy, "shop", |counts| counts.queue == 1);
    let refused = talk(&mut proxy.connect(), &get("/third"));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    assert_eq!(refused.header("ratelimit"), Some("\"limit\";r=0;t=7"));
    assert_eq!(refused.header("ratelimit-policy"), Some("\"limit\";q=1;qu=\"concurrent-requests\""));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    upstream.release_held();
    assert_eq!(read_answer(&mut first).status, 200);
    let second = second.join().unwrap();
    assert_eq!(second.status, 200);
    assert!(ms_waited(&second).is_none_or(|ms| ms < 123_456_789), "{}", second.text());
    until(&proxy, "shop", |counts| counts.active == 0);
    let all = counts(&proxy, "shop");
    assert_eq!((all.admitted, all.queued, all.resumed, all.rejected, all.expired), (1, 1, 1, 1, 0));
    // Who did not wait says nothing of it, whatever his client said.
    assert_eq!(ms_waited(&talk(&mut proxy.connect(), &forged)), None);
}

#[test]
fn who_waits_too_long_is_told_so_in_the_words_of_the_operator() {
    let upstream = Upstream::echo();
    let limit = "limit = 1, queue = 9, max_age = \"30ms\", error = 503, tag = \"t\"";
    let proxy = Running::start(&routed(&upstream, limit));
    let _first = hold(&upstream, &proxy);
    let refused = talk(&mut proxy.connect(), &get("/late"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, None));
    assert_eq!(counts(&proxy, "t").expired, 1);
    upstream.release_held();
}

#[test]
fn a_client_that_goes_away_leaves_the_queue_and_its_slot() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "limit = 1, queue = 1, connections = true"));
    let mut first = proxy.connect();
    assert_eq!(talk(&mut first, &get("/1")).status, 200);
    let mut gone = proxy.connect();
    send(&mut gone, &get("/2"));
    until(&proxy, "shop", |counts| counts.queue == 1);
    drop(first);
    until(&proxy, "shop", |counts| counts.resumed == 1);
    drop(gone);
    until(&proxy, "shop", |counts| counts.active == 0 && counts.queue == 0);
}

#[test]
fn a_client_that_goes_away_before_its_body_was_asked_for_leaves_the_queue() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "limit = 1, queue = 1, connections = true"));
    let mut first = proxy.connect();
    assert_eq!(talk(&mut first, &get("/1")).status, 200);
    for body in ["", "half of it"] {
        let mut gone = proxy.connect();
        send(&mut gone, &format!("POST /2 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100000\r\n\r\n{body}"));
        until(&proxy, "shop", |counts| counts.queue == 1);
        drop(gone);
        until(&proxy, "shop", |counts| counts.queue == 0);
    }
}

#[test]
fn connections_are_counted_once_and_until_they_end() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "limit = 1, connections = true"));
    let mut first = proxy.connect();
    for turn in 0..3 {
        assert_eq!(talk(&mut first, &get(&format!("/{turn}"))).status, 200);
    }
    let mut second = proxy.connect();
    assert_eq!(talk(&mut second, &get("/")).status, 429);
    drop(first);
    until(&proxy, "shop", |counts| counts.active == 0);
    assert_eq!(talk(&mut second, &get("/")).status, 200);
}

#[test]
fn a_rate_alone_resumes_those_who_wait_for_it() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "rate = \"200/s\", burst = 1, queue = 9"));
    let clients: Vec<_> = (0..6).map(|turn| waiting(&proxy, get(&format!("/{turn}")))).collect();
    assert!(clients.into_iter().all(|client| client.join().unwrap().status == 200));
    let all = counts(&proxy, "shop");
    assert_eq!((all.admitted + all.resumed, all.rejected), (6, 0));
}

#[test]
fn who_is_allowed_is_exempt_and_who_is_denied_is_refused() {
    let upstream = Upstream::echo();
    let exempt = Running::start(&routed(&upstream, "limit = 0, allow = [\"here\"]"));
    assert_eq!(talk(&mut exempt.connect(), &get("/")).status, 200);
    assert_eq!(counts(&exempt, "shop"), Counts::default(), "nor is he counted");
    let denied = Running::start(&routed(&upstream, "limit = 9, error = 403, deny = [\"here\"]"));
    let mut client = denied.connect();
    assert_eq!(talk(&mut client, &get("/")).status, 403);
    let seen = denied.proxy().snapshot();
    let refused = seen.tenants.iter().find(|tenant| tenant.name == "a.example").unwrap().refused;
    assert_eq!((refused.request, refused.queue), (0, 0), "nothing ran out");
}

#[test]
fn a_reload_forgets_nobody() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "limit = 1, queue = 1"));
    let mut first = hold(&upstream, &proxy);
    let second = waiting(&proxy, get("/second"));
    until(&proxy, "shop", |counts| counts.queue == 1);
    let changed = routed(&upstream, "limit = 1, queue = 1, retry = \"3s\"");
    let config = Config::from_document(&Document::new("tidegate.toml", changed), 1).unwrap();
    proxy.proxy().reload(config).unwrap();
    assert_eq!((counts(&proxy, "shop").active, counts(&proxy, "shop").queue), (1, 1));
    assert_eq!(talk(&mut proxy.connect(), &get("/third")).status, 429);
    upstream.release_held();
    assert_eq!((read_answer(&mut first).status, second.join().unwrap().status), (200, 200));
}

#[test]
fn who_waits_for_a_limit_that_is_lifted_waits_no_more() {
    let upstream = Upstream::echo();
    let proxy = Running::start(&routed(&upstream, "rate = \"1/h\", queue = 9"));
    assert_eq!(talk(&mut proxy.connect(), &get("/first")).status, 200);
    let second = waiting(&proxy, get("/second"));
    until(&proxy, "shop", |counts| counts.queue == 1);
    let lifted = routed(&upstream, "limit = 9").replace("rate_limit", "# rate_limit");
    proxy.proxy().reload(Config::from_document(&Document::new("tidegate.toml", lifted), 1).unwrap()).unwrap();
    assert_eq!(second.join().unwrap().status, 200);
}

/// A proxy with TLS, and clients that trust it.
struct Secured {
    proxy: Running,
    roots: RootCertStore,
    directory: std::path::PathBuf,
}

impl Secured {
    fn new(upstream: &Upstream, test: &str, rules: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-rate-limit-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let names = ["a.example", "www.a.example", "b.example", "c.example"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let proxy = Running::start(&format!(
            "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[proxy.upstream]]\nname = \"u\"\n\
             servers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n[[proxy.certificate]]\ncert = \"{}\"\n\
             key = \"{}\"\n{rules}",
            upstream.address(),
            cert.display(),
            key.display(),
        ));
        Self { proxy, roots, directory }
    }

    fn client(&self, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), self.proxy.connect())
    }

    /// Whether a request gets an answer; else the connection ended before the handshake.
    fn serves(&self, name: &str) -> bool {
        let mut client = self.client(name);
        client.write_all(get("/").as_bytes()).is_ok() && read_answer(&mut client).status == 200
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

#[test]
fn a_connection_waits_before_its_handshake() {
    let upstream = Upstream::echo();
    let rules = "[[proxy.sni]]\nnames = [\"a.example\"]\naliases = [\"www.a.example\"]\n\
                 rate_limit = { limit = 1, queue = 1 }\n";
    let secured = Secured::new(&upstream, "queue", rules);
    let mut first = secured.client("a.example");
    assert_eq!(talk(&mut first, &get("/1")).status, 200);
    let mut second = secured.client("www.a.example");
    let waits = std::thread::spawn(move || talk(&mut second, &get("/2")).status);
    until(&secured.proxy, "a.example", |counts| counts.queue == 1);
    assert!(!secured.serves("a.example"), "the queue is full");
    assert!(secured.serves("b.example"), "that name has no rule");
    let all = counts(&secured.proxy, "a.example");
    assert_eq!((all.active, all.queue, all.rejected), (1, 1, 1));
    let seen = secured.proxy.proxy().snapshot();
    let refused = seen.tenants.iter().find(|tenant| tenant.name == "a.example").unwrap().refused;
    assert_eq!((refused.hello, refused.queue), (1, 0), "its tenant's figures tell of it too");
    drop(first);
    assert_eq!(waits.join().unwrap(), 200);
}

#[test]
fn who_hangs_up_while_he_waits_for_his_handshake_leaves_the_queue() {
    let upstream = Upstream::echo();
    let rules = "[[proxy.sni]]\ndefault = true\nrate_limit = { limit = 1, queue = 1, tag = \"rest\" }\n";
    let secured = Secured::new(&upstream, "gone", rules);
    let mut first = secured.client("a.example");
    assert_eq!(talk(&mut first, &get("/1")).status, 200);
    let mut gone = secured.client("b.example");
    gone.conn.write_tls(&mut gone.sock).unwrap();
    until(&secured.proxy, "rest", |counts| counts.queue == 1);
    drop(gone);
    until(&secured.proxy, "rest", |counts| counts.queue == 0);
    assert_eq!(counts(&secured.proxy, "rest").active, 1);
    drop(first);
    until(&secured.proxy, "rest", |counts| counts.active == 0);
    assert!(secured.serves("c.example"));
}

#[test]
fn behind_a_trusted_hop_lists_are_about_each_request_and_the_place_inside_is_the_connections() {
    let upstream = Upstream::echo();
    let tables =
        routed(&upstream, "limit = 1, connections = true, allow = [\"office\"], deny = [\"crawler\"], error = 403")
            + "[proxy.lists.office]\ncidr = [\"192.0.2.0/24\"]\n[proxy.lists.crawler]\ncidr = [\"203.0.113.0/24\"]\n";
    let proxy = Running::start(&format!("[proxy]\ntrusted = [\"127.0.0.1\"]\n{tables}"));
    let from = |client: &mut TcpStream, address: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{address}\r\n\r\n");
        talk(client, &request).status
    };
    let (mut first, mut second) = (proxy.connect(), proxy.connect());
    for (address, status) in [
        ("X-Forwarded-For: 192.0.2.7", 200),
        ("X-Forwarded-For: 203.0.113.7", 403),
        ("X-Forwarded-For: 198.51.100.7", 200),
        ("X-Forwarded-For: 203.0.113.7", 403),
        ("Forwarded: for=203.0.113.7", 403),
        ("Forwarded: for=192.0.2.7, for=\"203.0.113.7:4711\";host=\"a,b\"", 403),
        ("X-Forwarded-For: 198.51.100.8", 200),
    ] {
        assert_eq!(from(&mut first, address), status, "{address}");
    }
    assert_eq!(counts(&proxy, "shop").active, 1, "one connection, whoever asks on it");
    assert_eq!(from(&mut second, "X-Forwarded-For: 192.0.2.7"), 200);
    assert_eq!(from(&mut second, "X-Forwarded-For: 198.51.100.7"), 403, "the first one is inside");
    drop(first);
    until(&proxy, "shop", |counts| counts.active == 0);
    assert_eq!(from(&mut second, "X-Forwarded-For: 198.51.100.7"), 200);
}

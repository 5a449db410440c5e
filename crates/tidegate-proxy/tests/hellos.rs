//! Hellos beyond their tenants' shares, which wait for what is left over, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::{Running, Upstream, talk};

/// How many clients come at once: more than can be served in the moment in which they come.
const CLIENTS: usize = 50;

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A proxy of one thread with a certificate, and its clients.
struct Site {
    _folder: Folder,
    client: Arc<ClientConfig>,
    upstream: Upstream,
    proxy: Running,
}

impl Site {
    /// With these `[proxy.limits]` and capacities.
    fn new(test: &str, limits: &str, capacities: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-proxy-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let names = ["a.example", "b.example"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (directory.join("c.pem"), directory.join("c.key"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        let upstream = Upstream::echo();
        let proxy = Running::start(&format!(
            "[proxy]\nthreads = 1\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[proxy.upstream]]\n\
             name = \"u\"\nservers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n[[proxy.certificate]]\ncert = \"{}\"\n\
             key = \"{}\"\n[proxy.limits]\n{limits}\n[proxy.limits.capacities]\n{capacities}\n",
            upstream.address(),
            cert.display(),
            key.display()
        ));
        Self { _folder: Folder(directory), client, upstream, proxy }
    }

    fn client(&self, name: &str) -> Client {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(&self.client), name).unwrap(), self.proxy.connect())
    }

    /// So many clients of one tenant, each of which has said hello and no more.
    fn hellos(&self, name: &str, many: usize) -> Vec<Client> {
        let mut clients: Vec<_> = (0..many).map(|_| self.client(name)).collect();
        for client in &mut clients {
            client.conn.write_tls(&mut client.sock).unwrap();
        }
        clients
    }
}

fn is_served(mut client: Client, name: &str) -> bool {
    let request = format!("GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n");
    client.write_all(request.as_bytes()).is_ok() && talk(&mut client, "").status == 200
}

/// Whether the client is told anything but the end of its connection.
fn is_greeted(client: &mut Client) -> bool {
    matches!(client.sock.read(&mut [0]), Ok(1..))
}

#[test]
fn hellos_beyond_a_share_wait_and_all_are_served_in_the_end() {
    for word in ["reset", "alert"] {
        let limits = format!("patience = \"60s\"\nrefuse_hello = \"{word}\"");
        let site = Site::new(&format!("wait-{word}"), &limits, "handshakes = 40");
        let clients = site.hellos("b.example", CLIENTS);
        site.proxy.wait_until(|live| live.hellos_waiting > 0);
        assert!(is_served(site.client("a.example"), "a.example"), "another tenant has its share");
        let clients: Vec<_> =
            clients.into_iter().map(|client| std::thread::spawn(|| is_served(client, "b.example"))).collect();
        assert!(clients.into_iter().all(|client| client.join().unwrap()));
        site.proxy.wait_until(|live| live.hellos_waiting == 0);
        let live = site.proxy.proxy().source().live();
        assert_eq!((live.hellos_refused_total, live.handshakes_total), (0, CLIENTS as u64 + 1));
    }
}

#[test]
fn a_hello_in_two_pieces_waits_as_well() {
    let site = Site::new("pieces", "patience = \"60s\"", "handshakes = 20");
    let crowd = site.hellos("b.example", CLIENTS);
    site.proxy.wait_until(|live| live.hellos_waiting > 0);
    let mut client = site.client("b.example");
    let mut hello = Vec::new();
    client.conn.write_tls(&mut hello).unwrap();
    client.sock.write_all(&hello[..10]).unwrap();
    let taken = CLIENTS as u64 + 1;
    site.proxy.wait_until(|live| live.connections_total == taken);
    client.sock.write_all(&hello[10..]).unwrap();
    // Those that came before it leave it their turns.
    drop(crowd);
    assert!(is_served(client, "b.example"));
}

#[test]
fn one_whose_client_has_closed_is_no_refusal_and_gets_no_handshake() {
    let site = Site::new("gone", "patience = \"60s\"", "handshakes = 20");
    let crowd = site.hellos("b.example", CLIENTS);
    site.proxy.wait_until(|live| live.hellos_waiting > 0);
    drop(crowd);
    site.proxy.wait_until(|live| live.hellos_waiting == 0);
    let live = site.proxy.proxy().source().live();
    assert_eq!((live.hellos_refused_total, live.handshakes_total), (0, 0));
    assert!(is_served(site.client("b.example"), "b.example"));
}

#[test]
fn those_that_have_waited_too_long_are_refused_as_configured() {
    for (word, alert) in [("reset", &b""[..]), ("alert", &[21, 3, 3, 0, 2, 2, 80])] {
        let limits = format!("patience = \"50ms\"\nrefuse_hello = \"{word}\"");
        let site = Site::new(&format!("late-{word}"), &limits, "handshakes = 1");
        let mut refused = 0;
        for mut client in site.hellos("b.example", CLIENTS) {
            let mut came = [0; 7];
            let read = client.sock.read(&mut came).unwrap_or(0);
            if read == 0 || came[0] == 21 {
                assert_eq!(&came[..read], alert, "{word}");
                assert_eq!(client.sock.read(&mut came).unwrap_or(0), 0, "{word}");
                refused += 1;
            }
        }
        assert!(refused > 0, "{word}");
        site.proxy.wait_until(|live| live.hellos_refused_total == refused && live.hellos_waiting == 0);
    }
}

#[test]
fn a_full_room_refuses_at_once() {
    // Memory for 64 connections: 16 hellos wait, of one tenant 8.
    let site = Site::new("full", "patience = \"600s\"", "handshakes = 1\nmemory = \"1MiB\"");
    let mut clients = site.hellos("b.example", CLIENTS);
    site.proxy.wait_until(|live| live.hellos_waiting > 0);
    // The oldest wait: those that came behind them are told no.
    let last = clients.split_off(CLIENTS / 2);
    for mut client in last {
        assert!(!is_greeted(&mut client));
    }
    // None of them has waited too long.
    site.proxy.wait_until(|live| live.hellos_refused_total >= CLIENTS as u64 / 2);
    assert!(is_served(site.client("a.example"), "a.example"), "another tenant finds its share");
}

#[test]
fn a_drain_serves_those_that_wait() {
    let site = Site::new("drains", "patience = \"60s\"", "handshakes = 40");
    let clients = site.hellos("b.example", CLIENTS);
    site.proxy.wait_until(|live| live.hellos_waiting > 0);
    let clients: Vec<_> =
        clients.into_iter().map(|client| std::thread::spawn(|| is_served(client, "b.example"))).collect();
    let Site { proxy, upstream, .. } = site;
    assert!(proxy.drain(), "in time");
    assert!(clients.into_iter().all(|client| client.join().unwrap()));
    drop(upstream);
}

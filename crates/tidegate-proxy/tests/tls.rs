//! TLS, HTTP/2 and what is decided before any cryptography, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme, StreamOwned};
use support::verifier::Takes;
use support::{Running, Upstream, exactly, talk};

/// Certificates on disk, and clients that trust them.
struct Authority {
    directory: PathBuf,
    roots: RootCertStore,
}

impl Authority {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-proxy-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self { directory, roots: RootCertStore::empty() }
    }

    /// A table of the configuration.
    fn certificate(&mut self, name: &str) -> String {
        self.certificate_for(name, &[name])
    }

    /// The same, of one certificate for several names; its files are called `name`.
    fn certificate_for(&mut self, name: &str, names: &[&str]) -> String {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        self.roots.add(made.cert.der().clone()).unwrap();
        let (cert, key) = (self.directory.join(format!("{name}.pem")), self.directory.join(format!("{name}.key")));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        format!("[[proxy.certificate]]\ncert = \"{}\"\nkey = \"{}\"\n", cert.display(), key.display())
    }

    /// The same with a key of this kind. Clients are not told to trust it. In DER too.
    fn certificate_of(&self, kind: &'static rcgen::SignatureAlgorithm, name: &str) -> (Vec<u8>, String) {
        let key = rcgen::KeyPair::generate_for(kind).unwrap();
        let made = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
        let file = |end: &str| self.directory.join(format!("{name}-{kind:?}.{end}"));
        std::fs::write(file("pem"), made.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        let (cert, key) = (file("pem"), file("key"));
        let table = format!("[[proxy.certificate]]\ncert = \"{}\"\nkey = \"{}\"\n", cert.display(), key.display());
        (made.der().to_vec(), table)
    }

    fn client(&self, proxy: &Running, name: &str, alpn: &[&str]) -> StreamOwned<ClientConnection, TcpStream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), proxy.connect())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

fn listening(upstream: &Upstream, more: &str) -> String {
    format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[proxy.upstream]]\nname = \"u\"\n\
         servers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n{more}",
        upstream.address()
    )
}

fn get(host: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn each_name_gets_its_certificate() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("names");
    let tables = authority.certificate("a.example") + &authority.certificate("b.example");
    let proxy = Running::start(&listening(&upstream, &tables));
    for name in ["a.example", "b.example"] {
        let mut client = authority.client(&proxy, name, &["http/1.1"]);
        let answer = talk(&mut client, &get(name));
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains("x-forwarded-proto: https\r\n"), "{}", answer.text());
        assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
}

#[test]
fn of_two_kinds_of_keys_for_a_name_a_client_gets_the_one_that_it_can_check() {
    let upstream = Upstream::echo();
    let authority = Authority::new("kinds");
    let (rsa, table) = authority.certificate_of(&rcgen::PKCS_RSA_SHA256, "a.example");
    let (ecdsa, second) = authority.certificate_of(&rcgen::PKCS_ECDSA_P256_SHA256, "a.example");
    let (_, unused) = authority.certificate_of(&rcgen::PKCS_ECDSA_P384_SHA384, "a.example");
    // The names that the file gives may be the same too.
    let named = |table: &str| format!("{table}names = [\"a.example\"]\n");
    for tables in [table.clone() + &second + &unused, named(&table) + &named(&second)] {
        let proxy = Running::start(&listening(&upstream, &format!("{tables}[proxy]\nstrict_sni = false\n")));
        for (takes, served) in [
            (vec![SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256], &ecdsa),
            (vec![SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256], &rsa),
        ] {
            for (version, name) in [(&TLS12, "a.example"), (&TLS13, "A.example"), (&TLS13, "127.0.0.1")] {
                let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
                let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
                let verifier = Arc::new(Takes::new(takes.clone()));
                let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
                let name = ServerName::try_from(name).unwrap();
                let client = ClientConnection::new(Arc::new(config), name).unwrap();
                let mut client = StreamOwned::new(client, proxy.connect());
                assert_eq!(talk(&mut client, &get("a.example")).status, 200);
                let came = client.conn.peer_certificates().unwrap();
                assert!(came[0].as_ref() == served, "{version:?} {takes:?}");
            }
        }
    }
}

#[test]
fn a_hello_for_a_name_that_no_certificate_is_for_is_refused_with_its_alert() {
    let upstream = Upstream::echo();
    for (key, is_served) in [("", false), ("strict_sni = true\n", false), ("strict_sni = false\n", true)] {
        let mut authority = Authority::new("strict");
        let tables = authority.certificate("a.example");
        let proxy = Running::start(&format!("[proxy]\n{key}{}", listening(&upstream, &tables)));
        assert_eq!(talk(&mut authority.client(&proxy, "a.example", &[]), &get("a.example")).status, 200);
        let mut stranger = authority.client(&proxy, "b.example", &[]);
        stranger.conn.write_tls(&mut stranger.sock).unwrap();
        let mut came = [0; 7];
        stranger.sock.read_exact(&mut came).unwrap();
        assert_eq!(came == [21, 3, 3, 0, 2, 2, 112], !is_served, "{key}: {came:?}");
        proxy.wait_until(|live| live.hellos_refused_total == u64::from(!is_served));
        // A client that names nobody, as one that knows an address only, gets the first certificate.
        let mut nameless = authority.client(&proxy, "127.0.0.1", &[]);
        nameless.conn.write_tls(&mut nameless.sock).unwrap();
        nameless.sock.read_exact(&mut came).unwrap();
        assert_eq!(came[0], 22, "a handshake: {came:?}");
    }
}

#[test]
fn a_request_for_a_host_that_its_connection_is_not_for_is_misdirected() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("misdirected");
    let tables = authority.certificate_for("a", &["a.example", "*.a.example"]) + &authority.certificate("b.example");
    let proxy = Running::start(&listening(&upstream, &tables));
    let mut client = authority.client(&proxy, "a.example", &["http/1.1"]);
    // The connection goes on, as one of many names of a certificate does.
    for (host, status) in [
        ("a.example", 200),
        ("b.example", 421),
        ("www.a.example:8443", 200),
        ("nobody.example", 421),
        ("A.example", 200),
    ] {
        assert_eq!(talk(&mut client, &get(host)).status, status, "{host}");
    }
    proxy.wait_until(|live| live.responses_total[4] == 2);
    let names: Vec<_> = proxy.proxy().snapshot().tenants.into_iter().map(|tenant| tenant.name).collect();
    assert!(names.iter().any(|name| name == "www.a.example"), "who is served is charged: {names:?}");
}

#[test]
fn a_client_that_names_no_protocol_is_closed_where_http1_is_not_spoken() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("alpn");
    let tables = authority.certificate("a.example");
    for (spoken, is_served) in [("", true), ("alpn = [\"http/1.1\"]\n", true), ("alpn = [\"h2\"]\n", false)] {
        let listen = format!("tls = true\n{spoken}");
        let proxy = Running::start(&listening(&upstream, &tables).replace("tls = true\n", &listen));
        let mut client = authority.client(&proxy, "a.example", &[]);
        client.write_all(get("a.example").as_bytes()).unwrap();
        let mut begin = [0; 12];
        let answered = client.read_exact(&mut begin).is_ok();
        assert_eq!(answered, is_served, "{spoken}");
        if answered {
            assert_eq!(&begin, b"HTTP/1.1 200");
        }
    }
}

#[test]
fn a_body_larger_than_any_buffer_comes_whole_through_tls() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("large");
    let proxy = Running::start(&listening(&upstream, &authority.certificate("a.example")));
    let mut client = authority.client(&proxy, "a.example", &[]);
    let body = "0123456789abcdef".repeat(100_000);
    let request = format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        client.write_all(request.as_bytes()).unwrap();
        sender.send(client).unwrap();
    });
    let mut client = receiver.recv().unwrap();
    writer.join().unwrap();
    let answer = support::read_answer(&mut client);
    assert!(answer.text().ends_with(&body));
}

#[test]
fn the_end_of_a_connection_is_told_apart_from_a_cut() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("end");
    let more = authority.certificate("a.example") + "[proxy.timeouts]\nkeep_alive = \"100ms\"\n";
    let proxy = Running::start(&listening(&upstream, &more));
    for wish in ["close", "keep-alive"] {
        let mut client = authority.client(&proxy, "a.example", &[]);
        let request = format!("GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: {wish}\r\n\r\n");
        assert_eq!(talk(&mut client, &request).status, 200);
        // Without a word of its end this would be an error.
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{wish}");
    }
}

#[test]
fn what_is_not_tls_is_closed() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("plain");
    let proxy = Running::start(&listening(&upstream, &authority.certificate("a.example")));
    let mut client = proxy.connect();
    support::send(&mut client, &get("a.example"));
    assert!(support::is_closed(&mut client));
}

#[test]
fn a_name_that_is_denied_is_reset_before_its_handshake() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("denied");
    let rules = "[proxy.lists.everybody]\ncidr = [\"127.0.0.0/8\"]\n[[proxy.sni]]\nnames = [\"b.example\"]\n\
                 rate_limit = { limit = 1, deny = [\"everybody\"] }\n";
    let tables = authority.certificate("a.example") + &authority.certificate("b.example") + rules;
    let proxy = Running::start(&listening(&upstream, &tables));
    let mut denied = authority.client(&proxy, "b.example", &[]);
    assert!(denied.write_all(get("b.example").as_bytes()).is_err(), "no handshake ends");
    let mut other = authority.client(&proxy, "a.example", &[]);
    assert_eq!(talk(&mut other, &get("a.example")).status, 200);
}

#[test]
fn hellos_beyond_a_share_are_ended_as_configured_and_who_is_there_goes_on() {
    const HELLOS: u64 = 60;
    let upstream = Upstream::echo();
    for (word, alert) in [("reset", &b""[..]), ("alert", &[21, 3, 3, 0, 2, 2, 80])] {
        let mut authority = Authority::new(word);
        let tables = authority.certificate("a.example") + &authority.certificate("b.example");
        let limits = format!("[proxy.limits]\nrefuse_hello = \"{word}\"\n[proxy.limits.capacities]\nhandshakes = 20\n");
        let proxy = Running::start(&listening(&upstream, &(tables + &limits)));
        let mut other = authority.client(&proxy, "a.example", &[]);
        assert_eq!(talk(&mut other, &get("a.example")).status, 200, "{word}");
        // All are there before the first is answered.
        let mut clients: Vec<_> = (0..HELLOS).map(|_| authority.client(&proxy, "b.example", &[])).collect();
        for client in &mut clients {
            client.conn.write_tls(&mut client.sock).unwrap();
        }
        let mut refused = 0;
        for mut client in clients {
            // Who is welcome is greeted; who is not reads the alert, if that is what he gets, and then no more.
            let mut came = [0; 7];
            let read = client.sock.read(&mut came).unwrap_or(0);
            if read == 0 || came[0] == 21 {
                assert_eq!(&came[..read], alert);
                assert_eq!(client.sock.read(&mut came).unwrap_or(0), 0, "{word}");
                refused += 1;
            }
        }
        assert!(refused > HELLOS / 2, "{refused} of {HELLOS}, {word}");
        proxy.wait_until(|live| live.hellos_refused_total == refused);
        assert_eq!(talk(&mut other, &get("a.example")).status, 200, "{word}");
    }
}

#[test]
fn the_proxy_protocol_names_the_client() {
    let upstream = Upstream::echo();
    let text = format!(
        "[proxy]\ntrusted = [\"127.0.0.1\"]\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n\
         proxy_protocol = \"require\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\nupstream = \"u\"\n",
        upstream.address()
    );
    let proxy = Running::start(&text);
    let mut client = proxy.connect();
    let answer = talk(&mut client, &format!("PROXY TCP4 192.0.2.7 192.0.2.8 1000 80\r\n{}", get("a.example")));
    assert!(answer.text().contains("x-forwarded-for: 192.0.2.7\r\n"), "{}", answer.text());
    let mut bare = proxy.connect();
    support::send(&mut bare, &get("a.example"));
    assert!(support::is_closed(&mut bare), "the header is required");
}

#[test]
fn whoever_announces_nobody_may_take_his_time() {
    let upstream = Upstream::echo();
    // Nobody here is trusted.
    let text = format!(
        "[proxy]\ntrusted = [\"192.0.2.1\"]\n[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n\
         proxy_protocol = \"accept\"\n[[proxy.upstream]]\nname = \"u\"\nservers = [\"{}\"]\n\
         [[proxy.route]]\nupstream = \"u\"\n",
        upstream.address()
    );
    let proxy = Running::start(&text);
    let mut client = proxy.connect();
    // That may yet become the word PROXY.
    support::send(&mut client, "P");
    proxy.wait_until(|live| live.connections_total == 1);
    let answer = talk(&mut client, "OST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(answer.status, 200);
    let mut liar = proxy.connect();
    support::send(&mut liar, &format!("PROXY TCP4 192.0.2.7 192.0.2.8 1000 80\r\n{}", get("a.example")));
    assert!(support::is_closed(&mut liar));
}

#[test]
fn a_drain_serves_those_who_have_said_hello() {
    const CLIENTS: usize = 40;
    let upstream = Upstream::echo();
    let mut authority = Authority::new("drain");
    let certificate = authority.certificate("a.example");
    let one = "[proxy]\nthreads = 1\noverflow_threads = 0\n[proxy.limits]\nmode = \"off\"\n";
    let proxy = Running::start(&listening(&upstream, &format!("{certificate}{one}")));
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|turn| authority.client(&proxy, "a.example", &[["http/1.1", "h2"][turn % 2]])).collect();
    for client in &mut clients {
        client.conn.write_tls(&mut client.sock).unwrap();
    }
    let talks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(turn, mut client)| {
            std::thread::spawn(move || match turn % 2 {
                0 => talk(&mut client, &get("a.example")).status,
                _ => over_http2(&mut client),
            })
        })
        .collect();
    assert!(proxy.drain(), "in time");
    for talk in talks {
        assert_eq!(talk.join().unwrap(), 200);
    }
}

/// Asks for `/` by HTTP/2, with fields of the static table but for the host; 200 if the answer says so.
fn over_http2(client: &mut (impl Read + Write)) -> u16 {
    let block = b"\x82\x87\x84\x41\x09a.example";
    let head = [&[0, 0, 14, 1, 5, 0, 0, 0, 1][..], block].concat();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    client.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &head].concat()).unwrap();
    loop {
        let header = exactly(client, 9);
        let payload = exactly(client, usize::from(header[1]) << 8 | usize::from(header[2]));
        match header[3] {
            1 => return if payload[0] == 0x88 { 200 } else { 0 },
            // A ping is to be answered before the connection may end.
            6 if header[4] == 0 => client.write_all(&[&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &payload].concat()).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn a_port_that_begins_to_speak_tls_goes_on_with_those_who_came_before() {
    let upstream = Upstream::echo();
    let mut authority = Authority::new("begins");
    let tables = authority.certificate("a.example");
    let plain = listening(&upstream, &tables).replace("tls = true\n", "");
    let proxy = Running::start(&plain);
    let mut before = proxy.connect();
    assert_eq!(talk(&mut before, &get("a.example")).status, 200);
    proxy.proxy().reload(support::config(&listening(&upstream, &tables))).unwrap();
    // Until its thread knows about it, the port speaks as before, and takes a hello for a bad request.
    loop {
        let mut client = authority.client(&proxy, "a.example", &["http/1.1"]);
        if client.write_all(get("a.example").as_bytes()).is_ok() {
            assert_eq!(support::read_answer(&mut client).status, 200);
            break;
        }
    }
    assert_eq!(talk(&mut before, &get("a.example")).status, 200);
}

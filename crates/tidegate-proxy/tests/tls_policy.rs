//! What of TLS is spoken, sessions that several nodes resume, staples, and hellos that come in pieces.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, HandshakeKind, NamedGroup, ProtocolVersion, StreamOwned,
    SupportedProtocolVersion, version,
};
use support::verifier::Takes;
use support::{Running, Upstream, talk};
use tidegate_proxy::config::Config;
use tidegate_proxy::io::certificate_warnings;
use tidegate_runtime::config::Document;

const NAME: &str = "a.example";
const GET: &str = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n";

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A folder with a certificate for [`NAME`].
struct Folder {
    path: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-proxy-policy-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        std::fs::write(path.join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(path.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { path, certificate: made.cert.der().clone() }
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A configuration with `proxy`, `listen` and `certificate` in its tables of these names, and `more` behind them.
    fn text(&self, upstream: &Upstream, [proxy, listen, certificate, more]: [&str; 4]) -> String {
        let (cert, key) = (self.path.join("cert.pem"), self.path.join("key.pem"));
        format!(
            "[proxy]\nthreads = 1\n{proxy}[[proxy.listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n{listen}\
             [[proxy.certificate]]\ncert = \"{}\"\nkey = \"{}\"\n{certificate}[[proxy.upstream]]\nname = \"u\"\n\
             servers = [\"{}\"]\n[[proxy.route]]\nupstream = \"u\"\n{more}",
            cert.display(),
            key.display(),
            upstream.address()
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.path));
    }
}

fn config(text: &str) -> Config {
    Config::from_document(&Document::new("tidegate.toml", text), 1).unwrap()
}

/// A client with a memory for sessions, of `versions`, that likes `groups` in this order.
fn client(
    versions: &[&'static SupportedProtocolVersion],
    groups: &[&'static dyn SupportedKxGroup],
) -> (Arc<ClientConfig>, Arc<Takes>) {
    let provider = Arc::new(CryptoProvider { kx_groups: groups.to_vec(), ..aws_lc_rs::default_provider() });
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let looks = Arc::new(Takes::new(schemes));
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let verifier = Arc::clone(&looks) as Arc<dyn ServerCertVerifier>;
    let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    (Arc::new(config), looks)
}

/// What browsers send: keys of a post-quantum exchange first, and of a classic one beside them.
fn browser() -> Arc<ClientConfig> {
    client(rustls::ALL_VERSIONS, &[aws_lc_rs::kx_group::X25519MLKEM768, aws_lc_rs::kx_group::X25519]).0
}

fn connect(proxy: &Running, config: &Arc<ClientConfig>) -> Client {
    let name = ServerName::try_from(NAME).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), proxy.connect())
}

/// Status of an answer, and how the session began.
fn ask(proxy: &Running, config: &Arc<ClientConfig>) -> (u16, Option<HandshakeKind>) {
    let mut client = connect(proxy, config);
    let status = talk(&mut client, GET).status;
    (status, client.conn.handshake_kind())
}

/// Puts `text` in force, and waits until it is: it gives answers another header.
fn reload(proxy: &Running, text: &str) {
    let marked = format!("{text}set_response_headers = {{ x-config = \"{}\" }}\n", text.len());
    proxy.proxy().reload(config(&marked)).unwrap();
    let (config, mark) = (browser(), text.len().to_string());
    let is_there = || talk(&mut connect(proxy, &config), GET).header("x-config") == Some(mark.as_str());
    assert!((0..1_000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(1));
        is_there()
    }));
}

#[test]
fn a_listener_speaks_what_it_is_told_to_and_no_more() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("spoken"));
    let all = aws_lc_rs::DEFAULT_KX_GROUPS;
    let (v12, v13) = (version::TLS12.version, version::TLS13.version);
    let chacha = "ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"tls_ecdhe_ecdsa_with_aes_256_gcm_sha384\"]\n";
    let p256 = "key_exchange = [\"secp256r1\"]\n";
    for (listen, versions, version, suite, group) in [
        ("", &[&version::TLS13][..], Some(v13), None, Some(NamedGroup::X25519)),
        ("", &[&version::TLS12], Some(v12), None, None),
        ("tls_version_min = \"1.3\"\n", &[&version::TLS13], Some(v13), None, None),
        ("tls_version_min = \"1.3\"\n", &[&version::TLS12], None, None, None),
        (chacha, &[&version::TLS13], Some(v13), Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256), None),
        (chacha, &[&version::TLS12], Some(v12), Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), None),
        (p256, &[&version::TLS13], Some(v13), None, Some(NamedGroup::secp256r1)),
    ] {
        let proxy = Running::start(&folder.text(&upstream, ["", listen, "", ""]));
        let mut client = connect(&proxy, &client(versions, all).0);
        let Some(version) = version else {
            assert!(client.write_all(GET.as_bytes()).is_err(), "{listen}");
            proxy.wait_until(|live| live.handshakes_failed_total == 1);
            continue;
        };
        assert_eq!(talk(&mut client, GET).status, 200, "{listen}");
        let spoken: Option<ProtocolVersion> = client.conn.protocol_version();
        assert_eq!(spoken, Some(version), "{listen}");
        if let Some(suite) = suite {
            assert_eq!(client.conn.negotiated_cipher_suite().unwrap().suite(), suite);
        }
        if let Some(group) = group {
            assert_eq!(client.conn.negotiated_key_exchange_group().unwrap().name(), group);
        }
    }
}

#[test]
fn who_likes_a_post_quantum_exchange_best_gets_it() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("quantum"));
    let proxy = Running::start(&folder.text(&upstream, [""; 4]));
    let mut client = connect(&proxy, &browser());
    assert_eq!(talk(&mut client, GET).status, 200);
    assert_eq!(client.conn.negotiated_key_exchange_group().unwrap().name(), NamedGroup::X25519MLKEM768);
    assert_eq!(client.conn.handshake_kind(), Some(HandshakeKind::Full), "and no second hello");
}

#[test]
fn a_hello_in_pieces_is_served_as_one_that_came_whole() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("pieces"));
    let rules = "[[proxy.sni]]\nnames = [\"a.example\"]\nrate_limit = { limit = 5 }\n";
    for more in ["", rules] {
        let proxy = Running::start(&folder.text(&upstream, ["", "", "", more]));
        // In two, as an MTU of 1500 bytes cuts it; behind a head, so that its length is not known at first; and in bytes.
        for pieces in [&[1_200][..], &[3, 600, 600], &[1; 2_000]] {
            let mut client = connect(&proxy, &browser());
            let mut hello = Vec::new();
            client.conn.write_tls(&mut hello).unwrap();
            assert!(hello.len() > 1_250, "{}", hello.len());
            let mut rest = &hello[..];
            for &piece in pieces {
                let (now, later) = rest.split_at(rest.len().min(piece));
                client.sock.write_all(now).unwrap();
                rest = later;
                if piece > 1 {
                    std::thread::park_timeout(Duration::from_millis(10));
                }
            }
            client.sock.write_all(rest).unwrap();
            assert_eq!(talk(&mut client, GET).status, 200);
            assert_eq!(talk(&mut client, GET).status, 200, "it goes on as any other");
        }
        let seen = proxy.proxy().snapshot().tenants;
        assert!(seen.iter().any(|tenant| tenant.name == NAME));
    }
}

#[test]
fn who_sends_half_a_hello_is_closed_in_time() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("half"));
    let more = "[proxy.timeouts]\nclient_hello = \"100ms\"\n";
    let proxy = Running::start(&folder.text(&upstream, ["", "", "", more]));
    let mut hello = Vec::new();
    connect(&proxy, &browser()).conn.write_tls(&mut hello).unwrap();
    let mut client = proxy.connect();
    for piece in [&hello[..700], &hello[700..710], &hello[710..711]] {
        client.write_all(piece).unwrap();
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert!(support::is_closed(&mut client));
    proxy.wait_until(|live| live.clients_timed_out_total == 1);
}

#[test]
fn a_session_of_one_node_is_resumed_by_another_that_has_its_key() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("tickets"));
    let key = |name: &str, fill: u8, bytes: usize| {
        let path = folder.file(name, &vec![fill; bytes]);
        format!("\"{}\"", path.display())
    };
    let (old, new) = (key("old", 1, 80), key("new", 2, 48));
    let with = |keys: &str| folder.text(&upstream, [&format!("ticket_keys = [{keys}]\n"), "", "", ""]);
    for version in [&version::TLS13, &version::TLS12] {
        let [first, second] = [(); 2].map(|()| Running::start(&with(&old)));
        let config = client(&[version], aws_lc_rs::DEFAULT_KX_GROUPS).0;
        assert_eq!(ask(&first, &config), (200, Some(HandshakeKind::Full)));
        assert_eq!(ask(&second, &config), (200, Some(HandshakeKind::Resumed)), "{version:?}");
        second.wait_until(|live| (live.handshakes_total, live.handshakes_resumed_total) == (1, 1));
        // The keys change: old tickets are taken as long as their key is there, and new ones come with the new key.
        reload(&second, &with(&format!("{new}, {old}")));
        assert_eq!(ask(&second, &config), (200, Some(HandshakeKind::Resumed)), "{version:?}");
        reload(&first, &with(&new));
        assert_eq!(ask(&first, &config), (200, Some(HandshakeKind::Resumed)), "{version:?}");
        let stranger = Running::start(&folder.text(&upstream, [""; 4]));
        assert_eq!(ask(&stranger, &config), (200, Some(HandshakeKind::Full)), "{version:?}");
    }
    let proxy = Running::start(&with(&old));
    for (keys, problem) in [
        (key("short", 3, 79), "it has 79 bytes: expected 80 or 48"),
        (format!("{old}, {}", key("same", 1, 48)), "keep one of them"),
        ("\"nowhere\"".to_owned(), "it cannot be read"),
    ] {
        let error = proxy.proxy().reload(config(&with(&keys))).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(problem), "{source}");
    }
}

/// An element of DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x82][..], &length, &content].concat()
}

/// An answer about the certificate with this serial number, signed by nobody; `filling` tells two of them apart.
fn ocsp(serial: &[u8], filling: u8) -> Vec<u8> {
    ocsp_until(serial, filling, b"29991231235959Z")
}

fn ocsp_until(serial: &[u8], filling: u8, until: &[u8]) -> Vec<u8> {
    let until = der(0xa0, &[&der(0x18, &[until])]);
    let time = der(0x18, &[b"20260101000000Z"]);
    let id = der(0x30, &[&der(0x30, &[]), &der(4, &[&[filling; 20]]), &der(4, &[&[0; 20]]), &der(2, &[serial])]);
    let answers = der(0x30, &[&der(0x30, &[&id, &[0x80, 0], &time, &until])]);
    let signed = der(0x30, &[&der(0xa2, &[&der(4, &[&[0; 20]])]), &time, &answers]);
    let basic = der(0x30, &[&signed, &der(0x30, &[]), &der(3, &[&[0]])]);
    let kind = [6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
    der(0x30, &[&[0x0a, 1, 0], &der(0xa0, &[&der(0x30, &[&kind, &der(4, &[&basic])])])])
}

/// The serial number of a certificate of rcgen's, which is of version 3: behind two heads of four bytes and the version.
fn serial(certificate: &[u8]) -> &[u8] {
    let at = certificate.windows(5).position(|bytes| bytes == [0xa0, 3, 2, 1, 2]).unwrap() + 5;
    let length = usize::from(certificate[at + 1]);
    &certificate[at + 2..at + 2 + length]
}

#[test]
fn what_the_authority_says_is_stapled_and_read_again() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("staple"));
    let good = ocsp(serial(&folder.certificate), 1);
    let path: &Path = &folder.file("staple.der", &good);
    let text = folder.text(&upstream, ["", "", &format!("ocsp = \"{}\"\n", path.display()), ""]);
    let proxy = Running::start(&text);
    let stapled = || {
        let (config, looks) = client(rustls::ALL_VERSIONS, aws_lc_rs::DEFAULT_KX_GROUPS);
        assert_eq!(ask(&proxy, &config).0, 200);
        looks.stapled.lock().unwrap().clone()
    };
    assert_eq!(stapled(), good);
    let fresh = ocsp(serial(&folder.certificate), 2);
    folder.file("staple.der", &fresh);
    reload(&proxy, &text);
    assert_eq!(stapled(), fresh);
    let cut = &good[..good.len() - 1];
    for (nonsense, problem) in [
        (&b"-----BEGIN OCSP RESPONSE-----"[..], "no OCSP response"),
        (cut, "no OCSP response"),
        (&[0x30, 3, 0x0a, 1, 3], "the error 3"),
    ] {
        folder.file("staple.der", nonsense);
        let error = proxy.proxy().reload(config(&text)).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(problem), "{source}");
        assert_eq!(stapled(), fresh, "what was is still in force");
    }
    // After a renewal the response of the certificate before is left for a while; and who renews it may be late.
    let past = ocsp_until(serial(&folder.certificate), 3, b"20260102000000Z");
    for (useless, why) in [(ocsp(&[1, 2, 3], 1), "is about another certificate"), (past, "ended on Fri, 02 Jan 2026")] {
        folder.file("staple.der", &fresh);
        reload(&proxy, &text);
        assert_eq!(stapled(), fresh);
        folder.file("staple.der", &useless);
        reload(&proxy, &text);
        assert_eq!(stapled(), b"", "{why}");
        let started = Running::start(&text);
        assert_eq!(ask(&started, &client(rustls::ALL_VERSIONS, aws_lc_rs::DEFAULT_KX_GROUPS).0).0, 200, "{why}");
        let warnings = certificate_warnings(&config(&text));
        assert!(warnings.len() == 1 && warnings[0].contains(why), "{warnings:?}");
    }
}

#[test]
fn the_end_of_a_certificate_is_told() {
    let (upstream, folder) = (Upstream::echo(), Folder::new("expiry"));
    let mut params = rcgen::CertificateParams::new([NAME.to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 2, 3);
    let key = rcgen::KeyPair::generate().unwrap();
    folder.file("cert.pem", params.self_signed(&key).unwrap().pem().as_bytes());
    folder.file("key.pem", key.serialize_pem().as_bytes());
    let text = folder.text(&upstream, [""; 4]);
    let warnings = certificate_warnings(&config(&text));
    assert!(warnings.len() == 1 && warnings[0].contains("ended on Mon, 03 Feb 2020"), "{warnings:?}");
    let proxy = Running::start(&text);
    let told = proxy.proxy().source().live().certificates;
    assert_eq!((told.len(), told[0].certificate, told[0].staple), (1, Some(1_580_688_000), None));
    assert!(told[0].file.ends_with("cert.pem"));
}

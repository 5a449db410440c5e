//! Policies, versions and errors of the TLS options.

use std::fs;

use rustls::ClientConnection;
use rustls::version::TLS12;

use super::fixture::{Identity, Pki};
use super::*;
use crate::io::transport::Transport;

/// A handshake by hand: the transport as it stands afterwards, or why it failed.
fn handshake(tls: &Tls, mut client: ClientConnection) -> Result<Transport, String> {
    let mut transport = Transport::default();
    transport.start_tls(server_config(tls).unwrap().unwrap()).unwrap();
    let mut to_client = Vec::new();
    // Four flights and the tickets; a handshake that needs more is going nowhere.
    for _ in 0..6 {
        let mut to_server = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        transport.receive(&to_server, &mut Vec::new(), 1_000).map_err(|error| error.to_string())?;
        transport.send(&[], &mut to_client).unwrap();
        assert!(!transport.wants_send());
        let mut from_server = &to_client[..];
        while !from_server.is_empty() {
            client.read_tls(&mut from_server).unwrap();
            client.process_new_packets().map_err(|error| format!("client: {error}"))?;
        }
        to_client.clear();
    }
    assert!(!client.is_handshaking());
    Ok(transport)
}

#[test]
fn nobody_is_asked_without_a_policy() {
    let pki = Pki::new();
    let tls = pki.tls(ClientAuth::None, TlsVersion::Tls10);
    for identity in [Identity::None, Identity::Unknown("x")] {
        let session = handshake(&tls, pki.client(&identity)).unwrap().session().unwrap();
        assert_eq!((session.version, session.common_name.as_str()), ("TLS1.3", ""));
        assert!(session.cipher_suite.starts_with("TLS_AES_"), "{session}");
    }
}

#[test]
fn the_policies_ask_for_a_certificate_and_for_a_good_one() {
    use ClientAuth::{Require, RequireVerify};
    let pki = Pki::new();
    let outcome = |policy, identity: Identity| {
        let tls = pki.tls(policy, TlsVersion::Tls12);
        handshake(&tls, pki.client(&identity)).map(|transport| transport.session().unwrap().common_name)
    };
    assert_eq!(outcome(Require, Identity::Vouched("sensor 7")).as_deref(), Ok("sensor 7"));
    assert_eq!(outcome(Require, Identity::Unknown("stranger")).as_deref(), Ok("stranger"));
    assert_eq!(outcome(RequireVerify, Identity::Vouched("sensor 7")).as_deref(), Ok("sensor 7"));
    for (policy, identity) in
        [(Require, Identity::None), (RequireVerify, Identity::None), (RequireVerify, Identity::Unknown("stranger"))]
    {
        let error = outcome(policy, identity).unwrap_err();
        assert!(error.starts_with("TLS: "), "{error}");
    }
}

#[test]
fn the_floor_is_at_least_1_2() {
    let pki = Pki::new();
    let outcome = |floor, version| {
        let client = pki.client_of(&Identity::None, &[version]);
        handshake(&pki.tls(ClientAuth::None, floor), client).map(|transport| transport.session().unwrap())
    };
    for floor in [TlsVersion::Tls10, TlsVersion::Tls11, TlsVersion::Tls12] {
        let session = outcome(floor, &TLS12).unwrap();
        assert_eq!(session.version, "TLS1.2");
        assert!(session.cipher_suite.starts_with("TLS_ECDHE_ECDSA_WITH_"), "{session}");
        assert_eq!(outcome(floor, &TLS13).unwrap().version, "TLS1.3");
    }
    assert!(outcome(TlsVersion::Tls13, &TLS12).is_err());
    assert_eq!(outcome(TlsVersion::Tls13, &TLS13).unwrap().version, "TLS1.3");
}

#[test]
fn errors_name_option_and_file() {
    let pki = Pki::new();
    let tls = pki.tls(ClientAuth::RequireVerify, TlsVersion::Tls12);
    let text = || server_config(&tls).unwrap_err().to_string();
    assert!(server_config(&Tls { server: None, ..tls.clone() }).unwrap().is_none());

    let key = fs::read(pki.folder.join("key.pem")).unwrap();
    fs::write(pki.folder.join("key.pem"), "").unwrap();
    assert!(text().starts_with("tls_key: cannot read a private key from "), "{}", text());
    let other = Pki::new();
    fs::copy(other.folder.join("key.pem"), pki.folder.join("key.pem")).unwrap();
    assert!(text().contains("do not work together"), "{}", text());
    fs::write(pki.folder.join("key.pem"), key).unwrap();
    assert!(server_config(&tls).is_ok());

    fs::write(pki.folder.join("ca.pem"), "no certificate").unwrap();
    assert!(text().starts_with("tls_root_ca_file: cannot read certificates from "), "{}", text());
    fs::remove_file(pki.folder.join("cert.pem")).unwrap();
    fs::copy(other.folder.join("ca.pem"), pki.folder.join("ca.pem")).unwrap();
    assert!(text().starts_with("tls_cert: cannot read certificates from "), "{}", text());
}

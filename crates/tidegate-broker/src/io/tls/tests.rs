//! Policies, versions and errors of the TLS options.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
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

/// A self-signed certificate with these parameters, and its key in PKCS #8.
fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> (CertificateDer<'static>, Vec<u8>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "pair");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().der().clone(), key.serialize_der())
}

/// The same certificate in version 1: without version and extensions. Its signature is wrong then, which nobody checks
/// in a root.
fn of_version_1(certificate: &[u8]) -> CertificateDer<'static> {
    let sequence = |parts: &[&[u8]]| {
        let contents = parts.concat();
        let [high, low] = u16::try_from(contents.len()).unwrap().to_be_bytes();
        // The shortest form of the length; none here is below 128.
        let len: &[u8] = if high == 0 { &[0x81, low] } else { &[0x82, high, low] };
        [&[der::SEQUENCE], len, &contents].concat()
    };
    let whole = |der: &[u8]| der.len() - der::any(der).unwrap().2.len();
    let (outer, _) = der::element(certificate, der::SEQUENCE).unwrap();
    let (mut signed, signature) = der::element(outer, der::SEQUENCE).unwrap();
    signed = &signed[whole(signed)..];
    // Serial number, algorithm, issuer, validity, subject and key.
    let end = (0..6).fold(0, |end, _| end + whole(&signed[end..]));
    sequence(&[&sequence(&[&signed[..end]]), signature]).into()
}

fn pem(certificate: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in certificate.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        let digits = (0..=three.len()).map(|digit| char::from(DIGITS[bits >> (18 - 6 * digit) & 63]));
        text.extend(digits.chain(std::iter::repeat_n('=', 3 - three.len())));
    }
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[test]
fn a_client_may_show_a_root_itself() {
    use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
    let pki = Pki::new();
    let tls = pki.tls(ClientAuth::RequireVerify, TlsVersion::Tls12);
    let authority = fs::read_to_string(pki.folder.join("ca.pem")).unwrap();
    let outcome = |root: &CertificateDer<'static>, shown: &CertificateDer<'static>, key: &[u8]| {
        fs::write(pki.folder.join("ca.pem"), authority.clone() + &pem(root)).unwrap();
        let identity = Identity::Raw(shown.clone(), key.to_vec());
        let [new, old] = [&TLS13, &TLS12].map(|version| {
            let client = pki.client_of(&identity, &[version]);
            handshake(&tls, client).map(|transport| transport.session().unwrap().common_name)
        });
        assert_eq!(new.is_ok(), old.is_ok(), "{new:?} {old:?}");
        new
    };
    let (pair, key) = self_signed(|_| {});
    assert_eq!(outcome(&pair, &pair, &key).as_deref(), Ok("pair"));
    let first = of_version_1(&pair);
    assert_eq!(outcome(&first, &first, &key).as_deref(), Ok("pair"));
    let (for_clients, its_key) =
        self_signed(|pair| pair.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    assert_eq!(outcome(&for_clients, &for_clients, &its_key).as_deref(), Ok("pair"));

    // Who only has the certificate, not its key, is nobody.
    let (other, other_key) = self_signed(|_| {});
    for shown in [&pair, &first] {
        let error = outcome(shown, shown, &other_key).unwrap_err();
        assert!(error.contains("BadSignature"), "{error}");
    }
    // Equal means equal: the same name, or the same key, is not enough.
    assert!(outcome(&pair, &other, &other_key).is_err());
    assert!(outcome(&pair, &first, &key).is_err());
    let (for_servers, its_key) =
        self_signed(|pair| pair.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    assert!(outcome(&for_servers, &for_servers, &its_key).is_err());
    let (past, its_key) = self_signed(|pair| pair.not_after = date_time_ymd(2000, 1, 1));
    assert!(outcome(&past, &past, &its_key).unwrap_err().to_lowercase().contains("expired"));
    let (future, its_key) = self_signed(|pair| pair.not_before = date_time_ymd(3000, 1, 1));
    assert!(outcome(&future, &future, &its_key).unwrap_err().to_lowercase().replace(' ', "").contains("notvalidyet"));
    // What the authority vouches for goes on.
    let client = pki.client(&Identity::Vouched("sensor 7"));
    assert_eq!(handshake(&tls, client).unwrap().session().unwrap().common_name, "sensor 7");
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

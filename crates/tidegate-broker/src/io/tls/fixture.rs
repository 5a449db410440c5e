//! An authority, a server and a client, made for each test.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::provider;
use crate::config::{ClientAuth, ServerTls, Tls, TlsRequired, TlsVersion};

/// The name that the server's certificate is for.
const HOST: &str = "broker.test";

/// A folder with the PEM files of a public key infrastructure; gone when dropped.
pub(crate) struct Pki {
    pub(crate) folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tidegate-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let authority = authority("authority");
        let (certificate, key) = issue(&authority, "server", vec![HOST.to_owned()]);
        fs::write(folder.join("ca.pem"), authority.as_ref().pem()).unwrap();
        fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        Self { folder, authority }
    }

    pub(crate) fn tls(&self, client_auth: ClientAuth, min_version: TlsVersion) -> Tls {
        let file = |name| self.folder.join(name);
        Tls {
            server: Some(ServerTls { cert: file("cert.pem"), key: file("key.pem"), client_auth }),
            root_ca: Some(file("ca.pem")),
            required: TlsRequired::No,
            min_version,
        }
    }

    /// A client that trusts the authority.
    pub(crate) fn client(&self, identity: &Identity) -> ClientConnection {
        self.client_of(identity, &[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    /// The same with these versions only.
    pub(crate) fn client_of(
        &self,
        identity: &Identity,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.as_ref().der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let identity_issued = match identity {
            Identity::None | Identity::Raw(..) => None,
            Identity::Vouched(name) => Some(issue(&self.authority, name, Vec::new())),
            Identity::Unknown(name) => Some(issue(&authority("somebody else"), name, Vec::new())),
        };
        let identity = match identity {
            Identity::Raw(certificate, key) => Some((certificate.clone(), PrivatePkcs8KeyDer::from(key.clone()))),
            _ => identity_issued
                .map(|(certificate, key)| (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()))),
        };
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&PrivateKeyDer::from(key)).unwrap();
                // Not checked, as rustls would: a client may show a certificate that is not its own.
                builder.with_client_cert_resolver(Arc::new(Shows(Arc::new(CertifiedKey::new(vec![certificate], key)))))
            }
        };
        ClientConnection::new(Arc::new(config), HOST.try_into().unwrap()).unwrap()
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a client shows.
pub(crate) enum Identity {
    /// No certificate.
    None,
    /// One of the authority, for this name.
    Vouched(&'static str),
    /// One of nobody we know.
    Unknown(&'static str),
    /// This certificate, with a key in PKCS #8 that need not be its own.
    Raw(CertificateDer<'static>, Vec<u8>),
}

/// Shows one certificate, whatever it is asked for.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = named(name, Vec::new());
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(by: &CertifiedIssuer<'static, KeyPair>, name: &str, hosts: Vec<String>) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (named(name, hosts).signed_by(&key, by).unwrap(), key)
}

fn named(name: &str, hosts: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

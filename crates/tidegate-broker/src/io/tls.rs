//! TLS as nsqd's options describe it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, ProtocolVersion, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::config::{ClientAuth, Tls, TlsVersion};

mod common_name;
mod der;
mod own_root;

use self::own_root::RootsToo;

/// TLS options that do not work out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that is not there or holds no such thing.
    #[error("{key}: cannot read {what} from {}: {source}", path.display())]
    Pem {
        /// The option that names the file.
        key: &'static str,
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: pem::Error,
    },
    /// Certificate and key that cannot be used, or not together.
    #[error("tls_cert {} and tls_key {} do not work together: {source}", cert.display(), key.display())]
    Identity {
        /// The chain's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
    /// Authorities that cannot vouch.
    #[error("tls_root_ca_file {}: {source}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
    /// Authorities that cannot be built into a verifier.
    #[error("tls_root_ca_file: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// What to serve TLS with; `None` if no certificate is configured.
pub fn server_config(tls: &Tls) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let Some(server) = &tls.server else { return Ok(None) };
    let provider = provider();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(tls.min_version))
        .expect("the provider has suites for both versions");
    let builder = match server.client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Require => {
            builder.with_client_cert_verifier(Arc::new(Anybody(provider.signature_verification_algorithms)))
        }
        ClientAuth::RequireVerify => {
            let path = tls.root_ca.as_deref().expect("required by the configuration's own check");
            let roots = Arc::new(authorities(path)?);
            let algorithms = provider.signature_verification_algorithms;
            let authorities = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            let themselves = certificates("tls_root_ca_file", path)?;
            builder.with_client_cert_verifier(Arc::new(RootsToo::new(authorities, themselves, algorithms)))
        }
    };
    let chain = certificates("tls_cert", &server.cert)?;
    let key = PrivateKeyDer::from_pem_file(&server.key).map_err(|source| TlsError::Pem {
        key: "tls_key",
        what: "a private key",
        path: server.key.clone(),
        source,
    })?;
    let config = builder.with_single_cert(chain, key).map_err(|source| TlsError::Identity {
        cert: server.cert.clone(),
        key: server.key.clone(),
        source,
    })?;
    Ok(Some(Arc::new(config)))
}

/// The authorities of the PEM file `path`; also for our own clients.
pub fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls_root_ca_file", path)? {
        roots.add(certificate).map_err(|source| TlsError::Authorities { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

/// The versions to speak under a floor. Older ones than 1.2 are broken and not spoken; the configuration has warned.
fn versions(floor: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static ONLY_1_3: [&SupportedProtocolVersion; 1] = [&TLS13];
    match floor {
        TlsVersion::Tls10 | TlsVersion::Tls11 | TlsVersion::Tls12 => rustls::ALL_VERSIONS,
        TlsVersion::Tls13 => &ONLY_1_3,
    }
}

/// Named instead of installed for the process: a library has no business with process-wide state.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem { key, what: "certificates", path: path.to_owned(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if certificates.is_empty() { Err(failed(pem::Error::NoItemsFound)) } else { Ok(certificates) }
}

/// The policy `require`: there must be a certificate and its owner must have its key, but nobody vouches for it.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for Anybody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// What a handshake agreed on, in the words of nsqd's `/stats`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Session {
    /// `TLS1.2` or `TLS1.3`.
    pub version: &'static str,
    /// By its registered name; nsqd shows a number for those of TLS 1.3.
    pub cipher_suite: &'static str,
    /// The common name of the client's certificate, for AUTH servers; empty without one.
    pub common_name: String,
}

impl Session {
    /// `None` before the end of the handshake.
    pub(super) fn of(tls: &ServerConnection) -> Option<Self> {
        if tls.is_handshaking() {
            return None;
        }
        let version = match tls.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLS1.2",
            ProtocolVersion::TLSv1_3 => "TLS1.3",
            _ => "unknown",
        };
        let cipher_suite = match tls.negotiated_cipher_suite()?.suite() {
            // rustls marks these with their version, the registry does not.
            CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
            CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
            suite => suite.as_str().unwrap_or("unknown"),
        };
        let certificate = tls.peer_certificates().and_then(|chain| chain.first());
        let common_name = certificate.and_then(|der| common_name::of(der)).unwrap_or_default();
        Some(Self { version, cipher_suite, common_name })
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.version, self.cipher_suite)
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

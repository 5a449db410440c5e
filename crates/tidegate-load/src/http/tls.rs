//! The client's side of TLS: 1.3, X25519, no resumption, and a server that is known by its certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
};

use super::config::Http;
use crate::error::LoadError;

/// What all connections of a source share.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// For the server `name`, which shows `certificate` if one is given.
    pub(super) fn new(name: &str, http: Http, certificate: Option<&Path>) -> Result<Self, LoadError> {
        let certificate = certificate.map(read).transpose()?;
        let provider = CryptoProvider {
            // One of each: every server is asked for the same cryptography.
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            cipher_suites: aws_lc_rs::DEFAULT_CIPHER_SUITES
                .iter()
                .copied()
                .filter(|suite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256)
                .collect(),
            ..aws_lc_rs::default_provider()
        };
        let provider = Arc::new(provider);
        let verifier = Arc::new(Pinned { certificate, provider: Arc::clone(&provider) });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![match http {
            Http::H1 => b"http/1.1".to_vec(),
            Http::H2 => b"h2".to_vec(),
        }];
        let no_name = |_| LoadError::Config { key: "name", value: name.into(), expected: "a host name" };
        let name = ServerName::try_from(name.to_owned()).map_err(no_name)?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// A new connection's state; its first bytes are the `ClientHello`.
    pub(super) fn connection(&self) -> Result<ClientConnection, LoadError> {
        let mut connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        // Requests are written before the handshake is over, and their bodies may be large.
        connection.set_buffer_limit(None);
        Ok(connection)
    }

    /// The bytes of one `ClientHello`.
    pub(super) fn hello(&self) -> Result<Vec<u8>, LoadError> {
        let mut bytes = Vec::new();
        self.connection()?.write_tls(&mut bytes).map_err(LoadError::os("write to memory"))?;
        Ok(bytes)
    }
}

fn read(file: &Path) -> Result<CertificateDer<'static>, LoadError> {
    CertificateDer::from_pem_file(file)
        .map_err(|error| LoadError::Os { step: "read the certificate", source: std::io::Error::other(error) })
}

/// Takes one certificate, or any.
///
/// Comparing bytes proves as much as a chain of one does, and costs nothing; the signature over the handshake is still
/// verified.
#[derive(Debug)]
struct Pinned {
    certificate: Option<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.certificate {
            Some(expected) if expected != end_entity => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 was not offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.certificate.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_one_record_that_names_the_server() {
        let hello = Tls::new("a.example", Http::H1, None).unwrap().hello().unwrap();
        // A handshake record whose length is all that follows, with a ClientHello in it.
        assert_eq!((hello[0], hello[5]), (22, 1));
        assert_eq!(usize::from(u16::from_be_bytes([hello[3], hello[4]])), hello.len() - 5);
        assert!(hello.windows(9).any(|bytes| bytes == b"a.example"));
        assert!(hello.windows(8).any(|bytes| bytes == b"http/1.1"));
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        assert!(matches!(Tls::new("-", Http::H1, None), Err(LoadError::Config { key: "name", .. })));
    }
}

//! TLS to the servers of an upstream: whose certificates are accepted, for which name, and the proxy's own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{self, Server, Trust, UpstreamProtocol, UpstreamTls};
use crate::error::ProxyError;

/// Sessions that can be resumed, for each server: as many as rustls keeps of one name.
const SESSIONS: usize = 8;

/// How TLS is spoken with the servers of one upstream, for all threads: they share the sessions that can be resumed. It
/// equals its copies and nothing else, so that one that was read again from changed files is another.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<Read>);

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What the configuration says, and what its files said.
#[derive(Debug)]
struct Read {
    upstream: String,
    settings: UpstreamTls,
    protocol: UpstreamProtocol,
    files: Files,
    client: Arc<ClientConfig>,
}

#[derive(Debug)]
struct Files {
    /// `None` if nobody's certificate is verified.
    roots: Option<Arc<RootCertStore>>,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl PartialEq for Files {
    fn eq(&self, other: &Self) -> bool {
        fn anchors(files: &Files) -> Option<&[TrustAnchor<'static>]> {
            files.roots.as_ref().map(|roots| &roots.roots[..])
        }
        anchors(self) == anchors(other) && self.own == other.own
    }
}

impl Tls {
    /// Reads the files of all `upstreams`, in their order. An upstream whose settings and files are those of `before`
    /// keeps its sessions and its connections.
    pub(crate) fn load(
        upstreams: &[config::Upstream],
        before: &[Option<Self>],
    ) -> Result<Vec<Option<Self>>, ProxyError> {
        let mut system = None;
        let mut one = |upstream: &config::Upstream| match &upstream.tls {
            Some(settings) => Self::load_one(upstream, settings, before, &mut system).map(Some),
            None => Ok(None),
        };
        upstreams.iter().map(&mut one).collect()
    }

    fn load_one(
        upstream: &config::Upstream,
        settings: &UpstreamTls,
        before: &[Option<Self>],
        system: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Self, ProxyError> {
        for server in &upstream.servers {
            let name = name_of(settings, server);
            if ServerName::try_from(name).is_err() {
                return Err(ProxyError::ServerName { upstream: upstream.name.clone(), name: name.to_owned() });
            }
        }
        let roots = match &settings.trust {
            Trust::Unverified => None,
            Trust::File(path) => Some(Arc::new(roots_of(path)?)),
            Trust::System => Some(match system {
                Some(system) => Arc::clone(system),
                None => Arc::clone(system.insert(Arc::new(system_roots()?))),
            }),
        };
        let own = match &settings.client {
            Some(own) => Some((chain_of(&own.cert)?, key_of(&own.key)?)),
            None => None,
        };
        let files = Files { roots, own };
        let same = |old: &&Self| {
            let old = &old.0;
            let is_same = old.upstream == upstream.name && old.protocol == upstream.protocol;
            is_same && old.settings == *settings && old.files == files
        };
        if let Some(same) = before.iter().flatten().find(same) {
            return Ok(same.clone());
        }
        let mut client = client_config(settings, &files)?;
        let alpn: &[u8] = if upstream.protocol.is_http2() { b"h2" } else { b"http/1.1" };
        client.alpn_protocols = vec![alpn.to_vec()];
        client.resumption = Resumption::in_memory_sessions(SESSIONS * upstream.servers.len());
        let client = Arc::new(client);
        let (upstream, protocol) = (upstream.name.clone(), upstream.protocol);
        Ok(Self(Arc::new(Read { upstream, settings: settings.clone(), protocol, files, client })))
    }

    /// Whose servers it is for.
    pub(super) fn upstream(&self) -> &str {
        &self.0.upstream
    }

    /// Speaks TLS with `server` over `stream`.
    pub(super) async fn handshake(&self, server: &Server, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name_of(&self.0.settings, server).to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(Arc::clone(&self.0.client)).connect(name, stream).await?;
        // A server that answers to no ALPN speaks HTTP/1.1; another protocol than was offered, rustls refuses.
        if self.0.protocol.is_http2() && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the server did not agree to HTTP/2 (ALPN h2)"));
        }
        Ok(stream)
    }
}

/// What the certificate of `server` must be for.
fn name_of<'a>(settings: &'a UpstreamTls, server: &'a Server) -> &'a str {
    settings.name.as_deref().unwrap_or(&server.host)
}

fn client_config(settings: &UpstreamTls, files: &Files) -> Result<ClientConfig, ProxyError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has what TLS 1.2 and 1.3 need");
    let builder = match &files.roots {
        Some(roots) => builder.with_root_certificates(Arc::clone(roots)),
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider))),
    };
    match (&files.own, &settings.client) {
        (Some((chain, key)), Some(own)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|source| ProxyError::Certificate { path: own.cert.clone(), source }),
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn roots_of(path: &Path) -> Result<RootCertStore, ProxyError> {
    let mut roots = RootCertStore::empty();
    for certificate in chain_of(path)? {
        roots.add(certificate).map_err(|source| ProxyError::Certificate { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, ProxyError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems have a few that nobody can read; the others are enough.
    let _ = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(ProxyError::SystemRoots { source: found.errors.into_iter().next() });
    }
    Ok(roots)
}

/// All certificates of a file; one at least.
fn chain_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, ProxyError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let unreadable = |source| ProxyError::Pem { path: path.to_owned(), source };
    let chain = read.map_err(unreadable)?;
    if chain.is_empty() { Err(unreadable(rustls_pki_types::pem::Error::NoItemsFound)) } else { Ok(chain) }
}

fn key_of(path: &Path) -> Result<PrivateKeyDer<'static>, ProxyError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| ProxyError::Pem { path: path.to_owned(), source })
}

/// Accepts every certificate, for tests. Whoever shows one still proves that its key is there.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

//! TLS to the servers of an upstream: whose certificates are accepted, and for which name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
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
    roots: Arc<RootCertStore>,
}

impl PartialEq for Files {
    fn eq(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots
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
            Trust::File(path) => Arc::new(roots_of(path)?),
            Trust::System => match system {
                Some(system) => Arc::clone(system),
                None => Arc::clone(system.insert(Arc::new(system_roots()?))),
            },
        };
        let files = Files { roots };
        let same = |old: &&Self| {
            let old = &old.0;
            let is_same = old.upstream == upstream.name && old.protocol == upstream.protocol;
            is_same && old.settings == *settings && old.files == files
        };
        if let Some(same) = before.iter().flatten().find(same) {
            return Ok(same.clone());
        }
        let mut client = client_config(&files);
        let alpn: &[u8] = if upstream.protocol == UpstreamProtocol::H2c { b"h2" } else { b"http/1.1" };
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
        if self.0.protocol == UpstreamProtocol::H2c && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the server did not agree to HTTP/2 (ALPN h2)"));
        }
        Ok(stream)
    }
}

/// What the certificate of `server` must be for.
fn name_of<'a>(settings: &'a UpstreamTls, server: &'a Server) -> &'a str {
    settings.name.as_deref().unwrap_or(&server.host)
}

fn client_config(files: &Files) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has what TLS 1.2 and 1.3 need")
        .with_root_certificates(Arc::clone(&files.roots))
        .with_no_client_auth()
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

//! Connections to the target, which is on this machine and nowhere else.

use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::LoadError;

/// A target that accepts nobody for so long is taken for one that refuses.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Addresses that attackers come from, so that ports do not run out and the victim is told apart: 127.0.1.1 and following.
const SOURCES: u8 = 16;

/// An address on loopback. There is no way to make one of another address, so no script can reach another machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loopback(SocketAddr);

impl Loopback {
    /// Takes `address` if it is on loopback.
    ///
    /// # Errors
    /// [`LoadError::NotLoopback`] if it is not.
    pub fn new(address: SocketAddr) -> Result<Self, LoadError> {
        if address.ip().is_loopback() { Ok(Self(address)) } else { Err(LoadError::NotLoopback { address }) }
    }

    /// The address.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for Loopback {
    type Err = LoadError;

    /// Numbers only: a name could be anywhere.
    fn from_str(text: &str) -> Result<Self, LoadError> {
        let address = text.parse().map_err(|_| LoadError::Config {
            key: "target",
            value: text.to_owned(),
            expected: "ADDRESS:PORT in numbers, such as 127.0.0.1:8080",
        })?;
        Self::new(address)
    }
}

impl fmt::Display for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes in both directions, in TLS or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// An open connection.
pub(super) type Link = Box<dyn Stream>;

/// What is spoken on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaks {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS with prior knowledge.
    Http2,
}

/// How far a connection came.
#[derive(Debug)]
pub(super) enum Refused {
    /// We have no more of what a connection needs: files or ports.
    Here(io::Error),
    /// The target does not accept, or closed before a TLS handshake was done.
    There,
}

/// Opens connections of one tenant.
#[derive(Debug)]
pub(super) struct Dial {
    target: Loopback,
    /// Of the name that the tenant is known by.
    name: ServerName<'static>,
    tls: Option<[Arc<ClientConfig>; 2]>,
    /// Where from: the number of addresses, and the next.
    sources: Option<(u8, Cell<u8>)>,
}

impl Dial {
    /// Connections to `target` that say `host` in their handshake, if they have one.
    pub(super) fn new(target: Loopback, is_tls: bool, host: &str) -> Result<Self, LoadError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| LoadError::Config {
            key: "host",
            value: host.to_owned(),
            expected: "the name of a host, without a port",
        })?;
        let tls = if is_tls { Some([client(b"http/1.1")?, client(b"h2")?]) } else { None };
        Ok(Self { target, name, tls, sources: None })
    }

    /// The same from addresses that nobody else uses.
    pub(super) fn with_many_sources(mut self) -> Self {
        self.sources = self.target.0.is_ipv4().then(|| (SOURCES, Cell::new(0)));
        self
    }

    /// The target speaks TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens a TCP connection; `receive_bytes` is the size of its buffer, where the kernel's own is too large.
    pub(super) async fn tcp(&self, receive_bytes: Option<u32>) -> Result<TcpStream, Refused> {
        let socket = self.socket(receive_bytes).map_err(Refused::Here)?;
        match timeout(CONNECT_LIMIT, socket.connect(self.target.0)).await {
            Ok(Ok(stream)) => {
                // Delay of small writes would only slow a script down.
                let _ = stream.set_nodelay(true);
                Ok(stream)
            }
            Ok(Err(error)) if is_ours(&error) => Err(Refused::Here(error)),
            Ok(Err(_)) | Err(_) => Err(Refused::There),
        }
    }

    fn socket(&self, receive_bytes: Option<u32>) -> io::Result<TcpSocket> {
        let socket = if self.target.0.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A closed connection leaves nothing behind: else the ports of this machine run out within seconds.
        socket.set_zero_linger()?;
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some((count, next)) = &self.sources {
            next.set((next.get() + 1) % count);
            let address = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1 + next.get()));
            socket.bind(SocketAddr::new(address, 0))?;
        }
        Ok(socket)
    }

    /// Opens a connection up to where the first byte of HTTP can be sent.
    pub(super) async fn open(&self, speaks: Speaks, receive_bytes: Option<u32>) -> Result<Link, Refused> {
        let stream = self.tcp(receive_bytes).await?;
        let Some([http1, http2]) = &self.tls else { return Ok(Box::new(stream)) };
        let config = if speaks == Speaks::Http2 { http2 } else { http1 };
        let handshake = TlsConnector::from(Arc::clone(config)).connect(self.name.clone(), stream);
        match timeout(CONNECT_LIMIT, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(_)) | Err(_) => Err(Refused::There),
        }
    }

    /// The bytes of a `ClientHello` that a server takes seriously.
    pub(super) fn hello(&self) -> Result<Vec<u8>, LoadError> {
        let config = match &self.tls {
            Some([_, http2]) => Arc::clone(http2),
            None => client(b"h2")?,
        };
        let mut connection = ClientConnection::new(config, self.name.clone())?;
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).map_err(LoadError::os("write a ClientHello"))?;
        Ok(hello)
    }
}

/// This machine is short of something, not the target.
fn is_ours(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse)
        || matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A client that offers `protocol` alone.
fn client(protocol: &[u8]) -> Result<Arc<ClientConfig>, LoadError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    // Each handshake is to cost the target all that a handshake can cost.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Whom we talk to is settled by the address, which is on loopback. Not checking also keeps our own share of a core small.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
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
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_loopback_are_targets() {
        for good in ["127.0.0.1:80", "127.255.0.9:8443", "[::1]:80"] {
            assert_eq!(good.parse::<Loopback>().unwrap().to_string(), good);
        }
        for elsewhere in ["0.0.0.0:80", "10.0.0.1:80", "192.0.2.1:443", "[::]:80", "[::ffff:127.0.0.1]:80"] {
            let refused = elsewhere.parse::<Loopback>();
            assert!(matches!(refused, Err(LoadError::NotLoopback { .. })), "{elsewhere}: {refused:?}");
        }
        for unclear in ["localhost:80", "example.org:80", "127.0.0.1", ""] {
            assert!(matches!(unclear.parse::<Loopback>(), Err(LoadError::Config { .. })), "{unclear}");
        }
    }

    #[test]
    fn a_hello_is_one_record_that_names_the_host() {
        let target = "127.0.0.1:1".parse().unwrap();
        let hello = Dial::new(target, true, "noisy.example").unwrap().hello().unwrap();
        assert_eq!(hello[..2], [22, 3]);
        let length = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
        assert_eq!(hello.len(), 5 + length);
        assert!(hello.windows(13).any(|window| window == b"noisy.example"));
    }

    #[test]
    fn a_host_that_is_no_name_is_refused() {
        let target = "127.0.0.1:1".parse().unwrap();
        assert!(matches!(Dial::new(target, false, "a b"), Err(LoadError::Config { key: "host", .. })));
    }
}

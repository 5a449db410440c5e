//! Where a server is, and connecting to it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustls::HandshakeKind;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::proxy_protocol::{self, Fields, Origin, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::system::System;
use super::tls::Tls;
use crate::config::{ProxyProtocolOut, Server};
use crate::io::conn::server_stream::ServerStream;

/// At most as often it is said of a server that TLS with it fails: every request may find that out.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// A server, and its addresses once they are known.
#[derive(Debug)]
pub(super) struct Endpoint {
    server: Server,
    /// Its addresses are known for good.
    is_fixed: bool,
    addresses: RefCell<Rc<[SocketAddr]>>,
    /// Since when no connection to them comes about: they are asked for again.
    spoilt: Cell<Option<Instant>>,
    system: System,
    tls: Option<Tls>,
    pub(super) handshakes: Cell<Handshakes>,
    warned: Cell<Option<Instant>>,
}

/// TLS handshakes with a server since the proxy began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Handshakes {
    /// With certificates.
    pub(crate) full: u64,
    /// That went on with an earlier session.
    pub(crate) resumed: u64,
    /// That did not end well.
    pub(crate) failed: u64,
}

impl Handshakes {
    /// These and `more`.
    pub(super) fn plus(self, more: Self) -> Self {
        let Self { full, resumed, failed } = more;
        Self { full: self.full + full, resumed: self.resumed + resumed, failed: self.failed + failed }
    }
}

/// Whom a server is told about by the PROXY protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    /// The client.
    pub(crate) source: SocketAddr,
    /// Where it connected to.
    pub(crate) destination: SocketAddr,
    /// The name that it asked for in its `ClientHello`.
    pub(crate) authority: Option<Rc<str>>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConnectError {
    /// The name has no address.
    #[error("{host} cannot be resolved")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server refused, or cannot be reached.
    #[error("cannot connect to {server}")]
    Refused {
        /// Where.
        server: Server,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There was a connection, and no TLS over it: a certificate that is not accepted, or no common protocol.
    #[error("no TLS with {server}")]
    Tls {
        /// Where.
        server: Server,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("no connection to {server} within {timeout:?}")]
    TimedOut {
        /// Where.
        server: Server,
        /// How long it was tried.
        timeout: Duration,
    },
}

/// Why one address gave no connection.
enum Broken {
    Socket(io::Error),
    Tls(io::Error),
}

impl Endpoint {
    /// With TLS if there is `tls`. A name whose address is not known is asked of the `system`.
    pub(super) fn new(server: Server, tls: Option<Tls>, system: System) -> Self {
        let fixed: Vec<IpAddr> = match server.address.or_else(|| server.host.parse().ok()) {
            Some(address) => vec![address],
            // This machine, whatever name servers say of it (RFC 6761, section 6.3).
            None if server.host == "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            None => Vec::new(),
        };
        let addresses = fixed.iter().map(|&address| SocketAddr::new(address, server.port)).collect();
        let (spoilt, handshakes, warned) = (Cell::default(), Cell::default(), Cell::default());
        let (is_fixed, addresses) = (!fixed.is_empty(), RefCell::new(addresses));
        Self { server, is_fixed, addresses, spoilt, system, tls, handshakes, warned }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Connects, writes `preface` and speaks TLS if that is wanted, to one address after another, all within `timeout`. An
    /// address that does not answer takes its part of it only, so that the others have theirs.
    pub(super) async fn connect(&self, preface: &[u8], timeout: Duration) -> Result<ServerStream, ConnectError> {
        let began = clock::now();
        let addresses = self.addresses(timeout).await?;
        let timed_out = |_| Err(ConnectError::TimedOut { server: self.server.clone(), timeout });
        let left = timeout.saturating_sub(clock::now().since(began));
        let connected = tokio::time::timeout(left, self.connect_to_any(&addresses, preface, left)).await;
        let connected = connected.unwrap_or_else(timed_out);
        // A name that answers nowhere may have moved.
        self.spoilt.set(connected.is_err().then(clock::now));
        connected
    }

    async fn connect_to_any(
        &self,
        addresses: &[SocketAddr],
        preface: &[u8],
        timeout: Duration,
    ) -> Result<ServerStream, ConnectError> {
        let mut last = None;
        let count = u32::try_from(addresses.len()).expect("addresses are few: `lookups::ADDRESSES_MAX`");
        for (&address, nth) in addresses.iter().zip(1..) {
            // The last one has all that is left.
            let part = if nth == count { Duration::MAX } else { timeout / count };
            let connected = tokio::time::timeout(part, self.connect_to(address, preface)).await;
            match connected.unwrap_or_else(|_| Err(Broken::Socket(io::ErrorKind::TimedOut.into()))) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        let server = self.server.clone();
        match last.unwrap_or_else(|| Broken::Socket(io::ErrorKind::AddrNotAvailable.into())) {
            Broken::Socket(source) => Err(ConnectError::Refused { server, source }),
            Broken::Tls(source) => Err(ConnectError::Tls { server, source }),
        }
    }

    async fn connect_to(&self, address: SocketAddr, preface: &[u8]) -> Result<ServerStream, Broken> {
        let stream = connect(address, preface).await.map_err(Broken::Socket)?;
        match &self.tls {
            None => Ok(stream.into()),
            // In a box: requests without TLS need no room for it.
            Some(tls) => Box::pin(self.handshake(tls, stream)).await.map_err(Broken::Tls),
        }
    }

    async fn handshake(&self, tls: &Tls, stream: TcpStream) -> io::Result<ServerStream> {
        let mut outcome = Outcome { endpoint: self, kind: None };
        match tls.handshake(&self.server, stream).await {
            Ok(stream) => {
                outcome.kind = stream.get_ref().1.handshake_kind();
                Ok(stream.into())
            }
            Err(error) => {
                self.warn(tls, &error);
                Err(error)
            }
        }
    }

    /// Says why TLS with the server fails, now and then.
    fn warn(&self, tls: &Tls, reason: &io::Error) {
        let now = clock::now();
        if self.warned.get().is_none_or(|last| now.since(last) >= WARN_EVERY) {
            self.warned.set(Some(now));
            tracing::warn!(upstream = tls.upstream(), server = %self.server, %reason, "no TLS with a server");
        }
    }

    /// The server ended TLS when the handshake was over for the proxy: it does not accept the proxy's certificate, or
    /// wants one.
    pub(super) fn warn_if_alerted(&self, error: &io::Error) {
        let of_tls: Option<&rustls::Error> = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let (Some(tls), Some(_)) = (&self.tls, of_tls) {
            self.warn(tls, error);
        }
    }

    /// Within `timeout`. What is known stays if no more is found in half of it: the server may be back.
    async fn addresses(&self, timeout: Duration) -> Result<Rc<[SocketAddr]>, ConnectError> {
        let (known, spoilt) = (Rc::clone(&self.addresses.borrow()), self.spoilt.get());
        if self.is_fixed || (!known.is_empty() && spoilt.is_none()) {
            return Ok(known);
        }
        let patience = if known.is_empty() { timeout } else { timeout / 2 };
        let lookup = self.system.addresses(&self.server.host, spoilt);
        let reason = match tokio::time::timeout(patience, lookup).await {
            Ok(Ok(found)) => {
                let found: Rc<[SocketAddr]> =
                    found.into_iter().map(|address| SocketAddr::new(address, self.server.port)).collect();
                *self.addresses.borrow_mut() = Rc::clone(&found);
                return Ok(found);
            }
            Ok(Err(reason)) => io::Error::other(reason),
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}")),
        };
        if known.is_empty() {
            return Err(ConnectError::Resolve { host: self.server.host.clone(), source: reason });
        }
        Ok(known)
    }
}

/// A handshake under way. One that is given up counts as one that failed.
struct Outcome<'a> {
    endpoint: &'a Endpoint,
    kind: Option<HandshakeKind>,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        let mut counts = self.endpoint.handshakes.get();
        match self.kind {
            None => counts.failed += 1,
            Some(HandshakeKind::Resumed) => counts.resumed += 1,
            Some(_) => counts.full += 1,
        }
        self.endpoint.handshakes.set(counts);
    }
}

async fn connect(address: SocketAddr, preface: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    // Requests are written whole: waiting for more would only add delay.
    stream.set_nodelay(true)?;
    if !preface.is_empty() {
        stream.write_all(preface).await?;
    }
    Ok(stream)
}

impl Announced {
    /// The header that says so; empty if none is wanted.
    pub(super) fn header(&self, form: ProxyProtocolOut) -> Vec<u8> {
        header(form, Some(self))
    }
}

/// The header of the proxy's own connections.
pub(super) fn check_header(form: ProxyProtocolOut) -> Vec<u8> {
    header(form, None)
}

fn header(form: ProxyProtocolOut, announced: Option<&Announced>) -> Vec<u8> {
    let origin = announced.map_or(Origin::Local, |announced| Origin::Client {
        source: announced.source,
        destination: announced.destination,
        transport: Transport::Stream,
    });
    let mut out = Vec::new();
    match form {
        ProxyProtocolOut::Off => {}
        ProxyProtocolOut::V1 => proxy_protocol::put_v1(&mut out, &origin),
        ProxyProtocolOut::V2 => {
            let authority = announced.and_then(|announced| announced.authority.as_deref()).map(Box::from);
            proxy_protocol::put_v2(&mut out, &origin, &Fields { authority, ..Fields::default() });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that answers nobody: the one connection that may wait there does.
    fn mute() -> (socket2::Socket, std::net::TcpStream, SocketAddr) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let waits = std::net::TcpStream::connect(address).unwrap();
        (socket, waits, address)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next_and_a_name_that_answers_nowhere_is_asked_again() {
        let (_socket, _waits, mute) = mute();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let well = listener.local_addr().unwrap();
        let server = Server { host: "shop.invalid".to_owned(), port: 80, address: None };
        let endpoint = Endpoint::new(server, None, System::with(|_| Err(io::ErrorKind::NotFound.into())));
        *endpoint.addresses.borrow_mut() = Rc::new([mute, well]);
        let stream = endpoint.connect(b"", Duration::from_secs(1)).await.unwrap();
        assert_eq!(stream.socket().peer_addr().unwrap(), well);
        assert_eq!(endpoint.addresses.borrow().len(), 2);
        *endpoint.addresses.borrow_mut() = Rc::new([mute]);
        let timed_out = endpoint.connect(b"", Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(timed_out, ConnectError::TimedOut { .. }), "{timed_out}");
        assert!(endpoint.spoilt.get().is_some(), "the name is asked for next time");
        // And as it is not found, what was known is tried.
        *endpoint.addresses.borrow_mut() = Rc::new([well]);
        endpoint.connect(b"", Duration::from_secs(1)).await.unwrap();
        assert!(endpoint.spoilt.get().is_none());
    }

    #[tokio::test]
    async fn this_machine_needs_no_lookup_and_a_lookup_without_end_is_told_as_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = |host: &str| Server { host: host.to_owned(), port, address: None };
        let (release, hold) = std::sync::mpsc::channel::<()>();
        let hold = std::sync::Mutex::new(hold);
        let system = System::with(move |name| match name {
            "dead.invalid" => {
                let _ = hold.lock().unwrap().recv();
                Err(io::ErrorKind::TimedOut.into())
            }
            name => panic!("{name} needs no lookup"),
        });
        let second = Duration::from_secs(1);
        let stream = Endpoint::new(server("localhost"), None, system.clone()).connect(b"", second).await.unwrap();
        assert_eq!(stream.socket().peer_addr().unwrap().port(), port);
        let dead = Endpoint::new(server("dead.invalid"), None, system);
        let error = dead.connect(b"", Duration::from_millis(20)).await.unwrap_err();
        let ConnectError::Resolve { host, source } = error else { panic!("{error}") };
        assert_eq!((host.as_str(), source.kind()), ("dead.invalid", io::ErrorKind::TimedOut));
        drop(release);
    }

    #[test]
    fn a_server_is_told_the_client_or_that_it_is_a_check() {
        let announced = Announced {
            source: ([192, 0, 2, 1], 4711).into(),
            destination: ([198, 51, 100, 7], 443).into(),
            authority: Some("a.example".into()),
        };
        assert_eq!(announced.header(ProxyProtocolOut::V1), b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 443\r\n");
        assert_eq!(check_header(ProxyProtocolOut::V1), b"PROXY UNKNOWN\r\n");
        assert!(announced.header(ProxyProtocolOut::Off).is_empty());
        let second = announced.header(ProxyProtocolOut::V2);
        assert!(second.windows(9).any(|bytes| bytes == b"a.example"));
    }
}

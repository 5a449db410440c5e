//! Where clients of the NSQ protocol connect.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::socket::Socket;
use crate::config::Address;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { .. } => Self::bind_tcp(&address.socket_addrs()?),
            Address::Unix(path) => {
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, path.clone()))
            }
        }
    }

    fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
        for address in addresses {
            match listen(*address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// `None` when nobody waits.
    pub(super) fn accept(&self) -> io::Result<Option<Socket>> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
        };
        match accepted {
            Ok(socket) => Ok(Some(socket)),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where it listens, for people and for the port that the system picked.
    pub(super) fn local_address(&self) -> Address {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(at) => Address::Tcp { host: at.ip().to_string(), port: at.port() },
                Err(_) => Address::Tcp { host: String::new(), port: 0 },
            },
            Self::Unix(_, path) => Address::Unix(path.clone()),
        }
    }
}

/// A socket that does not block, and that keeps many waiting while nobody accepts.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = if address.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Nobody waits any more, or whoever did has gone.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

impl Address {
    /// The addresses behind the name; an empty host is every interface, IPv6 with IPv4 if there is IPv6.
    pub(super) fn socket_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        let Self::Tcp { host, port } = self else { return Ok(Vec::new()) };
        if host.is_empty() {
            return Ok(vec![([0_u16; 8], *port).into(), ([0, 0, 0, 0], *port).into()]);
        }
        Ok((host.as_str(), *port).to_socket_addrs()?.collect())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

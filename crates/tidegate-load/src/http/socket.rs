//! Sockets that connect without waiting.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

/// Ports below are left to servers.
const PORT_FIRST: u16 = 10_000;
/// Addresses of one source are in one /16, the source's own; the first stands after 127.0.0.0 and 127.1.0.0.
const NET_FIRST: u8 = 2;
/// An address in use is passed over so often before the connection fails.
const TRIES: u32 = 64;

/// Makes connections to one server.
///
/// With addresses of its own it takes local ports in turn: a port comes back after `addresses * 50,000` connections, which
/// keeps the kernel from searching for one among those that linger.
#[derive(Debug)]
pub(super) struct Dialler {
    server: SocketAddr,
    net: u8,
    addresses: u32,
    next: u32,
}

impl Dialler {
    /// For the source of that number.
    pub(super) fn new(server: SocketAddr, source: usize, addresses: u32) -> Self {
        let net = NET_FIRST.saturating_add(u8::try_from(source).unwrap_or(u8::MAX));
        Self { server, net, addresses, next: 0 }
    }

    /// A connection that is under way; what is written before it stands fails with `WouldBlock`.
    pub(super) fn dial(&mut self) -> io::Result<TcpStream> {
        let family = if self.server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        if self.addresses > 0 {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            self.bind(&socket)?;
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &self.server) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
            Err(error) => Err(error.into()),
        }
    }

    fn bind(&mut self, socket: &rustix::fd::OwnedFd) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = bind(socket, &self.local());
            if result != Err(rustix::io::Errno::ADDRINUSE) {
                break;
            }
        }
        Ok(result?)
    }

    fn local(&mut self) -> SocketAddrV4 {
        let ports = u32::from(u16::MAX - PORT_FIRST);
        let (address, port) = (self.next / ports % self.addresses, self.next % ports);
        self.next = (self.next + 1) % (ports * self.addresses);
        let [_, _, high, low] = (address + 1).to_be_bytes();
        let port = PORT_FIRST + u16::try_from(port).expect("a remainder below 65536");
        SocketAddrV4::new(Ipv4Addr::new(127, self.net, high, low), port)
    }
}

/// Closing it will reset the connection: nothing lingers, on neither side.
pub(super) fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_taken_in_turn_and_come_back() {
        let mut dialler = Dialler::new(SocketAddr::from(([127, 0, 0, 1], 1)), 0, 2);
        let first = dialler.local();
        assert_eq!(first, SocketAddrV4::new(Ipv4Addr::new(127, 2, 0, 1), PORT_FIRST));
        let others: Vec<_> = (0..55_535).map(|_| dialler.local()).collect();
        assert_eq!(others[55_534], SocketAddrV4::new(Ipv4Addr::new(127, 2, 0, 2), PORT_FIRST));
        assert_eq!((0..55_535).map(|_| dialler.local()).last(), Some(first));
    }
}

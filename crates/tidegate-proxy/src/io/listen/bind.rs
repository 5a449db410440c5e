//! A port that connections are taken from: its socket, before anybody comes.

use std::io;
use std::net::{SocketAddr, TcpListener};

use nix::libc;
use nix::sys::socket::SetSockOpt as _;
use nix::sys::socket::sockopt::SetUsize;
use socket2::{Domain, Protocol, Socket, Type};

/// Seconds for which the kernel keeps a connection to itself until its client has said something.
const SILENCE_S: usize = 1;

/// Connections that the kernel keeps until they are taken.
pub(crate) const BACKLOG: i32 = 4096;

/// Bytes that the kernel takes of an answer before it can send them. Left to itself it takes megabytes for each client that
/// does not read; a fast one keeps more than this on its way, which is not counted.
const UNSENT_MAX: u32 = 256 * 1024;

/// A port, for one of several threads: the kernel spreads connections over them.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Each address of the configuration is its own; `[::]` does not also mean all of IPv4.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // The connections inherit both. Answers are written whole: waiting for more would only add delay.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_MAX)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    // Clients speak first in all that is spoken here. Taken earlier, a connection would wake the thread twice, and the first
    // time nobody knows whose it is. Where it cannot be had, that is how it is.
    if let Err(error) = DeferAccept.set(&socket, &SILENCE_S) {
        tracing::debug!(%error, %address, "connections are taken before their clients have said anything");
    }
    Ok(socket.into())
}

/// `TCP_DEFER_ACCEPT` of tcp(7), in seconds.
#[derive(Clone, Copy, Debug)]
struct DeferAccept;

nix::setsockopt_impl!(DeferAccept, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, usize, SetUsize);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_the_kernel_holds_for_a_client_is_bounded_and_sent_at_once() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET").unwrap();
        listener.set_nonblocking(false).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let socket = Socket::from(socket);
        assert_eq!((socket.tcp_notsent_lowat().unwrap(), socket.tcp_nodelay().unwrap()), (UNSENT_MAX, true));
    }
}

//! A client's socket, and when its bytes arrived.

use std::io::{self, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use rustix::net::{RecvFlags, SendFlags};

/// A non-blocking stream socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What one read brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    /// Zero at the end of the stream.
    pub(super) bytes: usize,
    /// Wall-clock time at which the kernel took in the newest of them, ns, if the socket was asked to tell.
    ///
    /// The kernel merges segments that wait in the receive queue and keeps the newest stamp: it is an upper bound for
    /// the older bytes.
    pub(super) stamp_unix_ns: Option<i64>,
}

impl Socket {
    /// `address:port` as nsqd shows it; `@` for a unix socket's peer.
    pub(super) fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map_or_else(|_| String::new(), shown),
            Self::Unix(_) => "@".to_owned(),
        }
    }

    /// Prepares an accepted socket.
    pub(super) fn set_up(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)
            }
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// From now on the kernel stamps arrivals. Unix sockets have no such stamps; their reads count as arrivals.
    pub(super) fn stamp_arrivals(&self) {
        if let Self::Tcp(stream) = self {
            // A kernel without it leaves every read unstamped, which the caller handles.
            let _ = setsockopt(stream, sockopt::ReceiveTimestampns, &true);
        }
    }

    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<Received> {
        let bytes = rustix::net::recv(self, into, RecvFlags::empty())?.1;
        Ok(Received { bytes, stamp_unix_ns: None })
    }

    pub(super) fn receive_stamped(&self, into: &mut [u8], control: &mut [u8]) -> io::Result<Received> {
        let mut parts = [IoSliceMut::new(into)];
        let fd = self.as_fd().as_raw_fd();
        let message = recvmsg::<()>(fd, &mut parts, Some(control), MsgFlags::empty())?;
        let stamp_unix_ns = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(at) => Some(at.tv_sec() * 1_000_000_000 + at.tv_nsec()),
            _ => None,
        });
        Ok(Received { bytes: message.bytes, stamp_unix_ns })
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn shut_down_write(&self) {
        // The peer may have gone first.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

/// An IPv4 client of a socket that listens on all interfaces arrives as `::ffff:a.b.c.d`; Go, and so nsqd, shows it as
/// `a.b.c.d`. Permissions of AUTH servers and dashboards go by that text.
fn shown(peer: SocketAddr) -> String {
    match peer {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())).to_string(),
            None => peer.to_string(),
        },
        SocketAddr::V4(_) => peer.to_string(),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_ipv4_peer_is_shown_as_ipv4() {
        let shown = |peer: &str| shown(peer.parse().unwrap());
        assert_eq!(shown("10.0.0.1:5"), "10.0.0.1:5");
        assert_eq!(shown("[::ffff:10.0.0.1]:5"), "10.0.0.1:5");
        assert_eq!(shown("[2001:db8::1]:5"), "[2001:db8::1]:5");
        assert_eq!(shown("[::1]:5"), "[::1]:5");
    }
}

//! What TCP knows of a connection (`TCP_INFO`).

use std::net::TcpStream;

use nix::sys::socket::GetSockOpt as _;

use crate::error::LoadError;

/// Bytes of the kernel's structure since Linux 5.4; later ones have more behind it.
const BYTES: usize = 232;

/// The kernel's `struct tcp_info` as bytes.
#[derive(Clone, Copy, Debug)]
struct TcpInfoBytes;

nix::getsockopt_impl!(
    TcpInfoBytes,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    [u8; BYTES],
    nix::sys::socket::sockopt::GetStruct<[u8; BYTES]>
);

/// What TCP knows of one connection at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Info {
    /// Smoothed round trip.
    pub(crate) srtt_us: u32,
    /// Segments it may have in flight.
    pub(crate) cwnd: u32,
    /// Payload that the other side has acknowledged.
    pub(crate) acked_bytes: u64,
    /// Segments sent once more.
    pub(crate) retransmitted: u32,
    /// Retransmitted segments that the other side says it had already.
    pub(crate) in_vain: u32,
    /// Segments with payload, those sent once more too.
    pub(crate) segments: u32,
    /// Time in which the other side's window was what held it.
    pub(crate) window_limited_us: u64,
    /// Segments that came in with a mark of congestion.
    pub(crate) marked: u32,
}

impl Info {
    pub(crate) fn of(stream: &TcpStream) -> Result<Self, LoadError> {
        let bytes = TcpInfoBytes.get(stream).map_err(|error| LoadError::os("ask for TCP_INFO")(error.into()))?;
        Ok(Self::read(&bytes))
    }

    /// Offsets of `include/uapi/linux/tcp.h`, which only ever grows at its end.
    fn read(bytes: &[u8; BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self {
            srtt_us: word(68),
            cwnd: word(80),
            retransmitted: word(100),
            acked_bytes: long(120),
            segments: word(156),
            window_limited_us: long(176),
            marked: word(196),
            in_vain: word(216),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_kernel_tells_what_was_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(&[0; 1_000]).unwrap();
        server.read_exact(&mut [0; 1_000]).unwrap();
        // The answer carries the acknowledgement at the latest.
        server.write_all(&[0]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        let info = Info::of(&client).unwrap();
        assert!(info.acked_bytes >= 1_000, "{info:?}");
        assert_eq!((info.segments, info.retransmitted, info.marked), (1, 0, 0));
        assert!(info.cwnd > 0 && info.srtt_us > 0);
    }
}

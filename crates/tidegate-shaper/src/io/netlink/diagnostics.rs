//! Open TCP sockets, with what of their handshakes counts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::message::{Message, attributes, u16_at, u32_at};
use super::{NetlinkError, Socket};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;
/// `INET_DIAG_INFO`: the kernel's `struct tcp_info`.
const INFO: u16 = 2;
const ESTABLISHED: u32 = 1 << 1;
/// `struct inet_diag_sockid`.
const NAME_BYTES: usize = 48;
/// `struct inet_diag_msg`.
const FIXED_BYTES: usize = 72;
/// Bit of `tcpi_options`: window scaling is in use.
const SCALED: u8 = 4;

/// A TCP flow that a socket has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFlow {
    /// The socket's own address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// Bits by which its peer's windows are scaled, 0 to 14.
    pub scale: u8,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
}

impl Socket {
    /// The TCP flows that sockets of the namespace have open. Of a [`Socket::open_diagnostics`].
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn open_flows(&mut self) -> Result<Vec<OpenFlow>, NetlinkError> {
        let mut flows = Vec::new();
        for family in [IPV4, IPV6] {
            let message = Message::dump(BY_FAMILY)
                .with(&[family, TCP, 1 << (INFO - 1), 0])
                .with(&ESTABLISHED.to_ne_bytes())
                .with(&[0; NAME_BYTES]);
            flows.extend(self.dump(&message, read)?);
        }
        Ok(flows)
    }
}

fn read(body: &[u8]) -> Option<OpenFlow> {
    let family = *body.first()?;
    let port = |at: usize| Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize| {
        Some(match family {
            IPV4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?)),
            _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(body.get(at..at + 16)?).ok()?)),
        })
    };
    let local = SocketAddr::new(address(8)?, port(4)?);
    let remote = SocketAddr::new(address(24)?, port(6)?);
    let (_, info) = attributes(body.get(FIXED_BYTES..)?).find(|(kind, _)| *kind == INFO)?;
    let (options, scales) = (*info.get(5)?, u16_at(info, 6)?);
    let scale = u8::try_from(scales & 0xf).expect("it is four bits");
    Some(OpenFlow { local, remote, scale: if options & SCALED == 0 { 0 } else { scale }, mss: u32_at(info, 16)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_flow_of_ours_is_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = client.local_addr().unwrap();
        let flows = Socket::open_diagnostics().unwrap().open_flows().unwrap();
        let flow = flows.iter().find(|flow| flow.local == ours).expect("it is open");
        assert_eq!(flow.remote, listener.local_addr().unwrap());
        assert!(flow.mss > 1_000 && flow.scale <= 14, "{flow:?}");
    }
}

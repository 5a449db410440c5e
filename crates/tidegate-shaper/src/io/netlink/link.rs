//! Devices by name.

use rustix::io::Errno;

use super::message::{Message, attributes, u16_at, u32_at};
use super::{NetlinkError, Socket};
use crate::machine::tree::Link;

const GET: u16 = 18;
const NAME: u16 = 3;
const MTU: u16 = 4;
const QUEUE_PACKETS: u16 = 13;
/// Kinds of devices with Ethernet's header (`ARPHRD_ETHER`, `ARPHRD_LOOPBACK`).
const WITH_ETHERNET: [u16; 2] = [1, 772];
/// `struct ifinfomsg`.
const FIXED_BYTES: usize = 16;

/// A device that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number, which no other device of the namespace has had.
    pub index: u32,
    /// MTU and queue, from which the tree follows.
    pub link: Link,
    /// Whether its packets begin with Ethernet's header; those of tunnels begin with IP.
    pub has_ethernet: bool,
}

impl Socket {
    /// The device `name` of the socket's namespace, if it is there.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Found>, NetlinkError> {
        match self.ask(Message::request(GET, 0).with(&[0; FIXED_BYTES]).text(NAME, name)) {
            Ok(body) => read(&body).map(Some).ok_or(NetlinkError::Malformed),
            Err(error) if error.errno() == Some(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn read(body: &[u8]) -> Option<Found> {
    let index = u32_at(body, 4)?;
    let attribute = |wanted| attributes(body.get(FIXED_BYTES..)?).find(|(kind, _)| *kind == wanted);
    let number = |wanted| u32_at(attribute(wanted)?.1, 0);
    let has_ethernet = WITH_ETHERNET.contains(&u16_at(body, 2)?);
    let link = Link { mtu: number(MTU)?, queue_packets: number(QUEUE_PACKETS).unwrap_or(0) };
    Some(Found { index, link, has_ethernet })
}

//! Datagrams between proxies that lend each other tokens of a limit that they divide.
//!
//! An order for a part says who lends to whom, and under which key. What a limiter has to say is sent at once, by whoever
//! asked it; what comes is read by a thread of its own, which finds the limiter by the member that is meant.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_core::lend::{Frame, Member};
use tidegate_wire::lend::{self, DATAGRAM_BYTES_MAX, Key};

use crate::io::request::gate::Gate;

/// How long the thread waits for a datagram before it looks whether the proxy ends.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where the other members are, and the key that all share.
#[derive(Debug)]
pub(crate) struct Peers {
    key: Key,
    addresses: BTreeMap<Member, SocketAddr>,
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Peers {
    /// Members at `addresses`, of which there is one.
    pub(crate) fn new(key: Key, addresses: BTreeMap<Member, SocketAddr>) -> io::Result<Self> {
        let is_v4 = addresses.values().all(SocketAddr::is_ipv4);
        let any = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        // A datagram that finds no room is one that was lost.
        socket.set_nonblocking(true)?;
        Ok(Self { key, addresses, socket, buffer: Vec::new() })
    }

    /// Whether these are they.
    pub(crate) fn is(&self, key: Key, addresses: &BTreeMap<Member, SocketAddr>) -> bool {
        self.key == key && self.addresses == *addresses
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn send(&mut self, frame: &Frame) {
        let Some(address) = self.addresses.get(&frame.to) else { return };
        self.buffer.clear();
        lend::put(&mut self.buffer, frame, self.key);
        let _ = self.socket.send_to(&self.buffer, address);
    }
}

/// Takes datagrams at `address`, and the address with the port that the system picked.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    // At an upgrade the successor has the port as well: what comes to the wrong one of them is as good as lost.
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// Gives datagrams to the limiters that they are for, of those that `gates` has then, until it `is_over`.
pub(crate) fn run(socket: &UdpSocket, is_over: impl Fn() -> bool, gates: impl Fn() -> Vec<Arc<Gate>>) {
    // One that is longer is none of ours.
    let mut bytes = [0; DATAGRAM_BYTES_MAX + 1];
    while !is_over() {
        let Ok((length, _)) = socket.recv_from(&mut bytes) else { continue };
        let gates = gates();
        let keys: Vec<Key> = gates.iter().filter_map(|gate| gate.lend_key()).collect();
        let Ok(frame) = lend::read(&bytes[..length], &keys) else { continue };
        if let Some(gate) = gates.iter().find(|gate| gate.member() == Some(frame.to)) {
            gate.on_frame(&frame);
        }
    }
}

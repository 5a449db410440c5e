//! The datagrams of lending: bytes to frames and back, and nothing else.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use tidegate_core::lend::Frame;
use tidegate_wire::lend::{self, BadDatagram, DATAGRAM_BYTES_MAX, Key};

use crate::config::LendAddress;

/// What a socket is made with where no file has a key. Only processes of this machine reach such a socket.
const LOOPBACK_KEY: [u8; 16] = *b"tidegate-on-loop";
/// Keys of a file at most: the one to write with, and those that are still read.
const KEYS_MAX: usize = 4;

/// Why a broker cannot lend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LendError {
    /// The address is taken, or not ours.
    #[error("cannot take datagrams at {address}")]
    Bind {
        /// The shard's address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file of keys cannot be read.
    #[error("cannot read the keys in {path}")]
    KeyFile {
        /// As configured.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file has no key, or something else.
    #[error(
        "{path} line {line} is no key: a key is 32 hexadecimal digits, and a file has 1 to {KEYS_MAX}, each on its line"
    )]
    Key {
        /// As configured.
        path: String,
        /// Which, from 1.
        line: usize,
    },
}

/// The keys that datagrams are signed with: the first writes, all read.
pub(super) fn keys(file: Option<&Path>) -> Result<Arc<[Key]>, LendError> {
    let Some(path) = file else { return Ok(Arc::new([Key::new(LOOPBACK_KEY)])) };
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| LendError::KeyFile { path: named(), source })?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let key = |(number, line): (usize, &&str)| key(line).ok_or(LendError::Key { path: named(), line: number + 1 });
    if lines.is_empty() || lines.len() > KEYS_MAX {
        return Err(LendError::Key { path: named(), line: lines.len() });
    }
    lines.iter().enumerate().map(key).collect()
}

fn key(line: &str) -> Option<Key> {
    let bytes = line.as_bytes();
    if bytes.len() != 32 || !bytes.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut secret = [0; 16];
    for (byte, digits) in secret.iter_mut().zip(bytes.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Key::new(secret))
}

/// A socket for each of `shards`: at the configured port and those after it, or each at one that the system picks.
pub(super) fn bind(at: &LendAddress, shards: usize) -> Result<Vec<LendSocket>, LendError> {
    let keys = keys(at.key_file.as_deref())?;
    let socket = |shard: usize| {
        let offset = if at.address.port() == 0 { 0 } else { u16::try_from(shard).unwrap_or(u16::MAX) };
        let address = SocketAddr::new(at.address.ip(), at.address.port().saturating_add(offset));
        let bound = UdpSocket::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        });
        let (socket, address) = bound.map_err(|source| LendError::Bind { address, source })?;
        Ok(LendSocket { socket, address, keys: Arc::clone(&keys), out: Vec::new() })
    };
    (0..shards).map(socket).collect()
}

/// One shard's socket.
#[derive(Debug)]
pub(super) struct LendSocket {
    socket: UdpSocket,
    address: SocketAddr,
    keys: Arc<[Key]>,
    out: Vec<u8>,
}

impl LendSocket {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next datagram, if there is one. A socket that fails has none: what is lost is lost.
    pub(super) fn receive(&self) -> Option<Result<Frame, BadDatagram>> {
        // One byte more, so that a longer datagram is not taken for one that was cut.
        let mut bytes = [0; DATAGRAM_BYTES_MAX + 1];
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(length) => return Some(lend::read(&bytes[..length], &self.keys)),
                // A peer that is not there: what was sent to it came back.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused) => {
                }
                Err(_) => return None,
            }
        }
    }

    /// Sends one datagram, or loses it.
    pub(super) fn send(&mut self, to: SocketAddr, frame: &Frame) {
        self.out.clear();
        lend::put(&mut self.out, frame, self.keys[0]);
        if let Err(error) = self.socket.send_to(&self.out, to) {
            tracing::trace!(%error, %to, "a datagram of lending is lost");
        }
    }
}

impl AsFd for LendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::lend::{Asks, Member, Stamp};

    use super::*;

    fn at(key_file: Option<std::path::PathBuf>) -> LendAddress {
        LendAddress { address: SocketAddr::from(([127, 0, 0, 1], 0)), key_file }
    }

    fn frame() -> Frame {
        Frame {
            from: Member(1),
            to: Member(2),
            mine: 3,
            yours: 4,
            sent: Stamp(5),
            echo: None,
            asks: Asks::Nothing,
            entries: Vec::new(),
        }
    }

    /// A datagram on loopback is there when it was sent, or soon after.
    fn received(socket: &LendSocket) -> Result<Frame, BadDatagram> {
        loop {
            if let Some(frame) = socket.receive() {
                return frame;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_frame_comes_as_it_was_sent_and_other_bytes_are_refused() {
        let mut sockets = bind(&at(None), 2).unwrap();
        let mut second = sockets.pop().unwrap();
        let first = sockets.pop().unwrap();
        assert_ne!(first.address(), second.address());
        assert!(first.receive().is_none());
        second.send(first.address(), &frame());
        assert_eq!(received(&first), Ok(frame()));
        second.socket.send_to(&[0; 2_000], first.address()).unwrap();
        assert_eq!(received(&first), Err(BadDatagram::Magic { found: [0; 4] }));
    }

    #[test]
    fn the_first_key_writes_and_all_read() {
        let folder = std::env::temp_dir().join(format!("tidegate-lend-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (old, new) = ("00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100");
        let both = bind(&at(Some(file("both", &format!("{new}\n{old}\n")))), 1).unwrap().pop().unwrap();
        let mut before = bind(&at(Some(file("old", old))), 1).unwrap().pop().unwrap();
        let mut after = bind(&at(Some(file("new", new))), 1).unwrap().pop().unwrap();
        for socket in [&mut before, &mut after] {
            socket.send(both.address(), &frame());
            assert_eq!(received(&both), Ok(frame()));
        }
        after.send(before.address(), &frame());
        assert_eq!(received(&before), Err(BadDatagram::Tag));
        for (text, line) in [("", 0), ("0011", 1), (&format!("{old}\n{}", "g".repeat(32)), 2)] {
            let Err(LendError::Key { line: at, .. }) = keys(Some(&file("bad", text))) else { panic!("{text}") };
            assert_eq!(at, line);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

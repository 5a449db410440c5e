//! A connection on a shard's thread: socket, layers, and bytes on their way.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use tidegate_core::Instant;

use super::arrival::Arrivals;
use super::handshake;
use super::socket::Socket;
use super::transport::{Transport, TransportError};
use crate::machine::output::{ConnId, Layers};

/// Most bytes read from one connection before the others get their turn.
pub(super) const READ_BYTES: usize = 256 * 1024;
/// Decoded bytes of one turn of a compressed connection.
const DECODED_BYTES: usize = 256 * 1024;

/// Buffers that the connections of a shard share, so that an idle one holds none.
pub(super) struct Scratch {
    pub(super) bytes: Vec<u8>,
    pub(super) control: [u8; 64],
    wire: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; READ_BYTES], control: [0; 64], wire: Vec::new() }
    }
}

/// A connection's side of the outside world.
pub(super) struct Connection {
    pub(super) socket: Socket,
    transport: Transport,
    /// Protocol bytes that the shard has not taken.
    pub(super) unread: Vec<u8>,
    /// Bytes of the layers that are not whole yet, or not decoded yet.
    undecoded: Vec<u8>,
    /// The decoder stopped at its bound.
    pending: bool,
    /// Bytes for the socket that it did not take.
    unsent: Vec<u8>,
    stuck: bool,
    /// Layers still to be put on.
    upgrade: Option<Layers>,
    handshake: Handshake,
    /// When the socket was last known empty, while a read has left bytes in it.
    left_since: Option<Instant>,
    pub(super) stamped: bool,
    /// What epoll watches: readable, writable.
    pub(super) watched: (bool, bool),
}

/// Where the TLS layer is, and when a handshake under way has to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handshake {
    None,
    /// In the connection.
    Here(Instant),
    /// With the handshake thread; `transport` is empty meanwhile.
    Away(Instant),
}

/// How far an upgrade has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A handshake is under way.
    Waiting,
    /// TLS stands, with this version and cipher suite; tell the client, then go on.
    Tls(String, String),
    /// Compression stands; tell the client, then go on.
    Compression,
    /// All layers stand.
    Done,
}

impl Connection {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            transport: Transport::default(),
            unread: Vec::new(),
            undecoded: Vec::new(),
            pending: false,
            unsent: Vec::new(),
            stuck: false,
            upgrade: None,
            handshake: Handshake::None,
            left_since: None,
            stamped: false,
            watched: (true, false),
        }
    }

    /// True if protocol bytes are socket bytes.
    pub(super) fn is_plain(&self) -> bool {
        self.transport.is_plain() && !self.is_away()
    }

    /// True while a TLS handshake is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.is_away() || self.transport.is_handshaking()
    }

    /// True while a step of its handshake is computed elsewhere: nothing is read until that is done.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.handshake, Handshake::Away(_))
    }

    /// The common name in the client's certificate, empty if it has shown none.
    pub(super) fn common_name(&self) -> String {
        self.transport.session().map(|session| session.common_name).unwrap_or_default()
    }

    /// It leaves its shard; the next one has not asked for stamps.
    pub(super) fn leave(&mut self) {
        self.stamped = false;
        self.left_since = None;
    }

    /// True if the socket did not take all that it was last sent.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// True if there is more to decode that no event of the socket will announce.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Reads from the socket into `scratch.bytes`; answers how many bytes and when they arrived.
    pub(super) fn receive(
        &mut self,
        scratch: &mut Scratch,
        arrivals: &mut Arrivals,
        now: Instant,
    ) -> Option<(usize, Instant)> {
        let outcome = if self.stamped {
            self.socket.receive_stamped(&mut scratch.bytes, &mut scratch.control)
        } else {
            self.socket.receive(&mut scratch.bytes)
        };
        match outcome {
            Ok(received) if received.bytes == 0 => None,
            Ok(received) => {
                let arrival = if self.stamped {
                    let arrival = arrivals.of(received.stamp_unix_ns, self.left_since);
                    self.left_since = (received.bytes == scratch.bytes.len())
                        .then(|| self.left_since.unwrap_or_else(|| arrivals.empty_at()));
                    arrival
                } else {
                    now
                };
                Some((received.bytes, arrival))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Some((0, now))
            }
            Err(_) => None,
        }
    }

    /// Puts bytes of the socket through the layers into `unread`; `false` if the peer said goodbye in them.
    pub(super) fn decode(&mut self, wire: &[u8]) -> Result<bool, TransportError> {
        self.undecoded.extend_from_slice(wire);
        if self.is_handshaking() {
            return Ok(true); // For the handshake thread.
        }
        let undecoded = std::mem::take(&mut self.undecoded);
        let received = self.transport.receive(&undecoded, &mut self.unread, DECODED_BYTES)?;
        self.undecoded = undecoded;
        self.undecoded.drain(..received.consumed);
        if self.undecoded.is_empty() {
            self.undecoded = Vec::new();
        }
        self.pending = received.pending;
        Ok(!received.closed)
    }

    /// Sends as much of `out` as the socket takes, through the layers; removes it from `out`. During a handshake `out`
    /// waits for its end.
    pub(super) fn send(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) -> io::Result<()> {
        let sent = self.send_some(out, scratch);
        self.stuck = !self.unsent.is_empty() || !out.is_empty() && !self.is_handshaking();
        sent
    }

    fn send_some(&mut self, out: &mut Vec<u8>, scratch: &mut Scratch) -> io::Result<()> {
        if !self.unsent.is_empty() && !self.send_unsent()? {
            return Ok(());
        }
        if self.is_handshaking() {
            return Ok(());
        }
        if self.transport.is_plain() {
            let mut sent = 0;
            while sent < out.len() {
                match self.socket.send(&out[sent..]) {
                    Ok(bytes) => sent += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if sent == out.len() {
                out.clear();
            } else {
                out.drain(..sent);
            }
            return Ok(());
        }
        scratch.wire.clear();
        self.transport.send(out, &mut scratch.wire).map_err(io::Error::other)?;
        out.clear();
        self.unsent.extend_from_slice(&scratch.wire);
        self.send_unsent().map(drop)
    }

    /// True once everything is sent.
    fn send_unsent(&mut self) -> io::Result<bool> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.socket.send(&self.unsent[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
        }
        Ok(self.unsent.is_empty())
    }

    /// Begins to put `layers` on; `plain_left` goes out before them, and what was read behind the command belongs to them.
    /// A TLS handshake has to be done at `until`.
    pub(super) fn begin_upgrade(&mut self, layers: Layers, plain_left: &mut Vec<u8>, until: Instant) {
        self.handshake = if layers.tls { Handshake::Here(until) } else { Handshake::None };
        self.unsent.append(plain_left);
        self.undecoded.append(&mut self.unread);
        self.upgrade = Some(layers);
    }

    pub(super) fn is_upgrading(&self) -> bool {
        self.upgrade.is_some()
    }

    /// Puts the next layer on. Call again after each step that is to be told to the client, and when bytes came.
    pub(super) fn upgrade(&mut self, tls: Option<&Arc<ServerConfig>>) -> Result<Step, TransportError> {
        if self.is_away() {
            return Ok(Step::Waiting);
        }
        let Some(layers) = &mut self.upgrade else { return Ok(Step::Done) };
        if layers.tls {
            if let (true, Some(config)) = (self.transport.is_plain(), tls) {
                self.transport.start_tls(config.clone())?;
            }
            if self.transport.is_handshaking() {
                return Ok(Step::Waiting);
            }
            layers.tls = false;
            self.handshake = Handshake::None;
            let session = self.transport.session();
            let (version, suite) =
                session.map_or_else(Default::default, |s| (s.version.to_owned(), s.cipher_suite.to_owned()));
            return Ok(Step::Tls(version, suite));
        }
        if layers.snappy {
            layers.snappy = false;
            self.transport.start_snappy();
            return Ok(Step::Compression);
        }
        if let Some(level) = layers.deflate.take() {
            self.transport.start_deflate(level);
            return Ok(Step::Compression);
        }
        self.upgrade = None;
        Ok(Step::Done)
    }

    /// The next step of the handshake under way, if the client has sent anything for it; the layer is away until
    /// [`Connection::take_back`].
    pub(super) fn next_step(&mut self, conn: ConnId, serial: u64) -> Option<handshake::Step> {
        let Handshake::Here(until) = self.handshake else { return None };
        if self.undecoded.is_empty() {
            return None;
        }
        self.handshake = Handshake::Away(until);
        let transport = std::mem::take(&mut self.transport);
        Some(handshake::Step { conn, serial, until, transport, wire: std::mem::take(&mut self.undecoded) })
    }

    /// The layer is back.
    pub(super) fn take_back(&mut self, layer: handshake::Layer) {
        if let Handshake::Away(until) = self.handshake {
            self.handshake = Handshake::Here(until);
        }
        self.transport = layer.transport;
        self.unread.extend_from_slice(&layer.plain);
        self.undecoded = layer.rest;
        self.unsent.extend_from_slice(&layer.out);
    }

    /// Says goodbye in the layers and on the socket.
    pub(super) fn close(&mut self) {
        self.transport.close(&mut self.unsent);
        let _ = self.send_unsent();
    }
}

//! The layers between a socket's bytes and the protocol's: TLS, and snappy or deflate inside it.
//!
//! A [`Transport`] does no I/O and holds no bytes in the plain case, in which it costs one word. Sizes are bounded on
//! the decoded side and before memory is taken for them, so a small input that would decode to very much decodes to as
//! much as the caller asked for and then waits.

use std::fmt;
use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

use super::tls::Session;

mod crc32c;
mod deflate;
mod snappy;

/// Decrypted bytes that wait for the decoder: what one read from the TLS layer gives at most.
const DECRYPTED_MAX: usize = 16 * 1024;

/// A stack of layers, plain until told otherwise.
#[derive(Default)]
pub struct Transport {
    layers: Option<Box<Layers>>,
}

/// What [`Transport::receive`] did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Received {
    /// Bytes of the input that need not be given again.
    pub consumed: usize,
    /// The limit stopped it: there may be more, so call again before waiting for the socket, with the rest of the
    /// input even if that is empty.
    pub pending: bool,
    /// The peer said goodbye in the TLS layer; nothing more will come.
    pub closed: bool,
}

/// A peer's bytes that are not what its layers allow. The connection cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// TLS failed; [`Transport::send`] of nothing gives the alert for the peer.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A TLS message larger than any that the protocol needs.
    #[error("TLS: {0}")]
    TlsMessage(#[source] io::Error),
    /// A snappy stream that does not begin as one.
    #[error("snappy: the stream does not begin with its identifier")]
    SnappyNotBegun,
    /// A chunk that the format does not allow.
    #[error("snappy: chunk of kind {kind:#04x} with {body_len} bytes")]
    SnappyChunk {
        /// Its kind.
        kind: u8,
        /// The length it announced.
        body_len: usize,
    },
    /// A block that announced more than blocks may hold.
    #[error("snappy: block of {decoded} bytes exceeds the limit of {}", snappy::BLOCK_MAX)]
    SnappyBlockSize {
        /// What it announced.
        decoded: usize,
    },
    /// A block that cannot be decoded.
    #[error("snappy: {0}")]
    SnappyBlock(#[source] snap::Error),
    /// A block that decoded to something else than its sender had.
    #[error("snappy: wrong checksum")]
    SnappyChecksum,
    /// Bytes that are no deflate stream.
    #[error("deflate: {0}")]
    Deflate(#[source] flate2::DecompressError),
    /// Bytes behind the end of the deflate stream.
    #[error("deflate: bytes behind the end of the stream")]
    DeflateEnded,
}

#[derive(Default)]
struct Layers {
    tls: Option<Box<ServerConnection>>,
    codec: Option<Codec>,
    /// Decrypted and not yet decoded; at most [`DECRYPTED_MAX`] bytes.
    decrypted: Vec<u8>,
}

#[expect(clippy::large_enum_variant, reason = "it lives in the box of the layers, and deflate has more behind it")]
enum Codec {
    Snappy(snappy::Decoder, snappy::Encoder),
    Deflate(deflate::Decoder, deflate::Encoder),
}

impl Transport {
    /// Puts TLS below all that follows. Nothing else may have been started.
    pub fn start_tls(&mut self, config: Arc<ServerConfig>) -> Result<(), TransportError> {
        let mut tls = Box::new(ServerConnection::new(config)?);
        // What is sent is taken out at once, so the caller's bound on it holds.
        tls.set_buffer_limit(None);
        self.layers.get_or_insert_default().tls = Some(tls);
        Ok(())
    }

    /// From here on both directions speak the snappy framing format.
    pub fn start_snappy(&mut self) {
        self.layers.get_or_insert_default().codec = Some(Codec::Snappy(snappy::Decoder::new(), snappy::Encoder::new()));
    }

    /// From here on both directions speak raw deflate; ours at `level`, 1 to 9.
    pub fn start_deflate(&mut self, level: u32) {
        self.layers.get_or_insert_default().codec =
            Some(Codec::Deflate(deflate::Decoder::new(), deflate::Encoder::new(level)));
    }

    /// True without layers: bytes pass unchanged, and need not pass through here at all.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.layers.is_none()
    }

    /// True while a TLS handshake is under way. Only [`Transport::send`] of nothing makes sense then.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.tls().is_some_and(|tls| tls.is_handshaking())
    }

    /// True if the TLS layer has bytes of its own for the peer: its part of a handshake, or an alert. Take them with
    /// [`Transport::send`], if need be of nothing.
    #[must_use]
    pub fn wants_send(&self) -> bool {
        self.tls().is_some_and(|tls| tls.wants_write())
    }

    /// What the TLS handshake agreed on, once it is done.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        self.tls().and_then(Session::of)
    }

    /// Decodes from the front of `wire` and appends to `plain`, about `limit` bytes at most: snappy may go over it by
    /// less than a block of 65,536 bytes. Input is kept inside where a layer needs more of it to go on, so all of
    /// `wire` is consumed unless the limit is reached.
    pub fn receive(&mut self, wire: &[u8], plain: &mut Vec<u8>, limit: usize) -> Result<Received, TransportError> {
        let full = plain.len().saturating_add(limit);
        let Some(layers) = &mut self.layers else {
            let consumed = wire.len().min(limit);
            plain.extend_from_slice(&wire[..consumed]);
            return Ok(Received { consumed, pending: consumed < wire.len(), closed: false });
        };
        let (consumed, closed) = layers.receive(wire, plain, full)?;
        let pending = plain.len() >= full;
        Ok(Received { consumed, pending, closed: closed && !pending })
    }

    /// Encodes all of `plain` and appends it to `wire`, so that the peer can decode all of it; with it goes what the
    /// TLS layer itself has to say.
    pub fn send(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<(), TransportError> {
        let Some(layers) = &mut self.layers else {
            wire.extend_from_slice(plain);
            return Ok(());
        };
        let Layers { tls, codec, .. } = &mut **layers;
        match (tls, codec) {
            (None, Some(codec)) => codec.encode(plain, wire),
            (Some(tls), Some(codec)) => {
                let mut encoded = Vec::new();
                codec.encode(plain, &mut encoded);
                encrypt(tls, &encoded, wire);
            }
            (Some(tls), None) => encrypt(tls, plain, wire),
            (None, None) => wire.extend_from_slice(plain),
        }
        Ok(())
    }

    /// Appends the goodbye of the TLS layer, if there is one.
    pub fn close(&mut self, wire: &mut Vec<u8>) {
        if let Some(tls) = self.layers.as_mut().and_then(|layers| layers.tls.as_mut()) {
            tls.send_close_notify();
            encrypt(tls, &[], wire);
        }
    }

    fn tls(&self) -> Option<&ServerConnection> {
        self.layers.as_ref()?.tls.as_deref()
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = self.layers.as_ref().and_then(|layers| layers.codec.as_ref()).map(|codec| match codec {
            Codec::Snappy(..) => "snappy",
            Codec::Deflate(..) => "deflate",
        });
        f.debug_struct("Transport").field("tls", &self.tls().is_some()).field("codec", &codec).finish()
    }
}

impl Layers {
    /// Answers how much of `wire` was taken, and whether the peer has closed.
    fn receive(&mut self, wire: &[u8], plain: &mut Vec<u8>, full: usize) -> Result<(usize, bool), TransportError> {
        match (&mut self.tls, &mut self.codec) {
            (None, None) => unreachable!("a box without layers is never made"),
            (None, Some(codec)) => Ok((codec.decode(wire, plain, full)?, false)),
            (Some(tls), None) => decrypt(tls, wire, plain, full),
            (Some(tls), Some(codec)) => {
                let mut taken = 0;
                loop {
                    let decoded = codec.decode(&self.decrypted, plain, full)?;
                    self.decrypted.drain(..decoded);
                    if plain.len() >= full {
                        return Ok((taken, false));
                    }
                    // The decoder has taken everything, so there is room.
                    let (more, closed) = decrypt(tls, &wire[taken..], &mut self.decrypted, DECRYPTED_MAX)?;
                    taken += more;
                    if self.decrypted.is_empty() {
                        self.decrypted = Vec::new();
                        return Ok((taken, closed));
                    }
                }
            }
        }
    }
}

impl Codec {
    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>, full: usize) -> Result<usize, TransportError> {
        match self {
            Self::Snappy(decoder, _) => decoder.decode(input, out, full),
            Self::Deflate(decoder, _) => decoder.decode(input, out, full),
        }
    }

    fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) {
        if plain.is_empty() {
            return;
        }
        match self {
            Self::Snappy(_, encoder) => encoder.encode(plain, wire),
            Self::Deflate(_, encoder) => encoder.encode(plain, wire),
        }
    }
}

/// Decrypts until `wire` is used up or `out` has `full` bytes.
fn decrypt(
    tls: &mut ServerConnection,
    wire: &[u8],
    out: &mut Vec<u8>,
    full: usize,
) -> Result<(usize, bool), TransportError> {
    let mut rest = wire;
    loop {
        let mut reader = tls.reader();
        while out.len() < full {
            let chunk = match reader.fill_buf() {
                Ok(chunk) if !chunk.is_empty() => chunk,
                // Nothing yet, or the peer's goodbye.
                _ => break,
            };
            let taken = chunk.len().min(full - out.len());
            out.extend_from_slice(&chunk[..taken]);
            reader.consume(taken);
        }
        if out.len() >= full {
            return Ok((wire.len() - rest.len(), false));
        }
        // An empty read would mean to rustls that the socket has ended.
        if rest.is_empty() {
            return Ok((wire.len(), is_closed(tls)));
        }
        match tls.read_tls(&mut rest) {
            // After the goodbye nothing is read.
            Ok(0) => return Ok((wire.len(), true)),
            Ok(_) => tls.process_new_packets()?,
            Err(error) => return Err(TransportError::TlsMessage(error)),
        };
    }
}

/// Whether the peer has said goodbye. Only asked with no decrypted bytes left.
fn is_closed(tls: &mut ServerConnection) -> bool {
    matches!(tls.reader().fill_buf(), Ok([]))
}

fn encrypt(tls: &mut ServerConnection, plain: &[u8], wire: &mut Vec<u8>) {
    let into_memory: io::Result<()> = tls.writer().write_all(plain).and_then(|()| {
        while tls.wants_write() {
            tls.write_tls(wire)?;
        }
        Ok(())
    });
    into_memory.expect("no buffer here has a bound");
}

#[cfg(test)]
mod tests;

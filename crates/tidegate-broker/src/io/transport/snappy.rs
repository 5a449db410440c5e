//! The snappy framing format, in pieces as they come.
//!
//! `snap::read::FrameDecoder` pulls from a reader that blocks, loses its place when the reader has nothing yet, and
//! keeps 140 KiB of buffers for each connection; so the chunks are taken apart here and only the blocks in them are
//! left to `snap::raw`.

use snap::raw;

use super::TransportError;
use super::crc32c;

/// Most bytes that one chunk decodes to, by the format.
pub(super) const BLOCK_MAX: usize = 65_536;
/// Most bytes of a chunk that decodes to that, with its checksum: what `max_compress_len` says for a block.
const BODY_MAX: usize = 32 + BLOCK_MAX + BLOCK_MAX / 6 + CHECKSUM;
const HEADER: usize = 4;
const CHECKSUM: usize = 4;

const COMPRESSED: u8 = 0x00;
const UNCOMPRESSED: u8 = 0x01;
/// From here on unknown chunks may be passed over.
const SKIPPABLE: u8 = 0x80;
const STREAM: u8 = 0xff;
/// Kind, length and text that begin a stream.
const STREAM_CHUNK: &[u8; 10] = b"\xff\x06\x00\x00sNaPpY";

/// Takes frames apart.
pub(super) struct Decoder {
    raw: raw::Decoder,
    begun: bool,
    /// A chunk whose end has not come yet.
    partial: Vec<u8>,
    /// Bytes of a skippable chunk that are still to come.
    skip: usize,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { raw: raw::Decoder::new(), begun: false, partial: Vec::new(), skip: 0 }
    }

    /// Decodes chunks until `input` is used up or `out` has `full` bytes or more: then by less than [`BLOCK_MAX`].
    /// Answers how much of `input` it took; a partial chunk is taken and kept.
    pub(super) fn decode(&mut self, input: &[u8], out: &mut Vec<u8>, full: usize) -> Result<usize, TransportError> {
        let mut rest = input;
        while out.len() < full && !rest.is_empty() {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = &rest[skipped..];
            rest =
                if self.partial.is_empty() { self.take_chunk(rest, out)? } else { self.complete_partial(rest, out)? };
        }
        Ok(input.len() - rest.len())
    }

    /// The chunk at the front of `rest`, or its beginning kept for later.
    fn take_chunk<'a>(&mut self, rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], TransportError> {
        let Some(header) = rest.first_chunk::<HEADER>() else {
            self.partial.extend_from_slice(rest);
            return Ok(&[]);
        };
        let Some(body_len) = self.admit(*header)? else { return Ok(&rest[HEADER..]) };
        let Some(body) = rest.get(HEADER..HEADER + body_len) else {
            self.partial.extend_from_slice(rest);
            return Ok(&[]);
        };
        self.chunk(header[0], body, out)?;
        Ok(&rest[HEADER + body_len..])
    }

    /// Completes the kept chunk from `rest`, as far as that goes.
    fn complete_partial<'a>(&mut self, mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], TransportError> {
        let mut take = |partial: &mut Vec<u8>, until: usize| {
            let (now, later) = rest.split_at(until.saturating_sub(partial.len()).min(rest.len()));
            partial.extend_from_slice(now);
            rest = later;
            partial.len() >= until
        };
        if take(&mut self.partial, HEADER) {
            let header = *self.partial.first_chunk().expect("just completed");
            match self.admit(header)? {
                None => self.partial = Vec::new(),
                Some(body_len) if take(&mut self.partial, HEADER + body_len) => {
                    let partial = std::mem::take(&mut self.partial);
                    self.chunk(header[0], &partial[HEADER..], out)?;
                }
                Some(_) => {}
            }
        }
        Ok(rest)
    }

    /// Checks a chunk's kind and length before anything is kept for it. `None` if its body is passed over.
    fn admit(&mut self, [kind, len @ ..]: [u8; HEADER]) -> Result<Option<usize>, TransportError> {
        let body_len = usize::from(len[0]) | usize::from(len[1]) << 8 | usize::from(len[2]) << 16;
        if !self.begun && kind != STREAM {
            return Err(TransportError::SnappyNotBegun);
        }
        let fits = match kind {
            COMPRESSED => (CHECKSUM..=BODY_MAX).contains(&body_len),
            UNCOMPRESSED => (CHECKSUM..=CHECKSUM + BLOCK_MAX).contains(&body_len),
            STREAM => body_len == STREAM_CHUNK.len() - HEADER,
            SKIPPABLE.. => {
                self.skip = body_len;
                return Ok(None);
            }
            _ => false,
        };
        if fits { Ok(Some(body_len)) } else { Err(TransportError::SnappyChunk { kind, body_len }) }
    }

    fn chunk(&mut self, kind: u8, body: &[u8], out: &mut Vec<u8>) -> Result<(), TransportError> {
        if kind == STREAM {
            self.begun = body == &STREAM_CHUNK[HEADER..];
            return if self.begun { Ok(()) } else { Err(TransportError::SnappyNotBegun) };
        }
        let (checksum, block) = body.split_first_chunk::<CHECKSUM>().expect("at least the checksum, by `admit`");
        let start = out.len();
        if kind == UNCOMPRESSED {
            out.extend_from_slice(block);
        } else {
            let decoded = raw::decompress_len(block).map_err(TransportError::SnappyBlock)?;
            if decoded > BLOCK_MAX {
                return Err(TransportError::SnappyBlockSize { decoded });
            }
            out.resize(start + decoded, 0);
            if let Err(error) = self.raw.decompress(block, &mut out[start..]) {
                out.truncate(start);
                return Err(TransportError::SnappyBlock(error));
            }
        }
        if crc32c::masked(&out[start..]) != u32::from_le_bytes(*checksum) {
            out.truncate(start);
            return Err(TransportError::SnappyChecksum);
        }
        Ok(())
    }
}

/// Makes frames.
pub(super) struct Encoder {
    raw: raw::Encoder,
    begun: bool,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self { raw: raw::Encoder::new(), begun: false }
    }

    /// Appends `plain` to `wire` as whole chunks, the stream's beginning first.
    pub(super) fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) {
        if !self.begun {
            wire.extend_from_slice(STREAM_CHUNK);
            self.begun = true;
        }
        for block in plain.chunks(BLOCK_MAX) {
            let chunk = wire.len();
            let start = chunk + HEADER + CHECKSUM;
            wire.resize(start + raw::max_compress_len(block.len()), 0);
            let packed = self.raw.compress(block, &mut wire[start..]).expect("room for the worst case");
            // The format asks to leave blocks alone that shrink by less than an eighth.
            let kind = if packed < block.len() - block.len() / 8 {
                wire.truncate(start + packed);
                COMPRESSED
            } else {
                wire.truncate(start);
                wire.extend_from_slice(block);
                UNCOMPRESSED
            };
            let body_len = u32::try_from(wire.len() - chunk - HEADER).expect("below 2^24");
            wire[chunk] = kind;
            wire[chunk + 1..chunk + HEADER].copy_from_slice(&body_len.to_le_bytes()[..3]);
            wire[chunk + HEADER..start].copy_from_slice(&crc32c::masked(block).to_le_bytes());
        }
    }
}

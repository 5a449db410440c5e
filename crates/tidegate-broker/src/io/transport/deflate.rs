//! Raw deflate with a window of 2^15 bytes, flushed with every send.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::TransportError;

/// Bytes that pass through the stack at a time.
const PIECE: usize = 16 * 1024;

/// Inflates.
pub(super) struct Decoder {
    inflate: Decompress,
    ended: bool,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { inflate: Decompress::new(false), ended: false }
    }

    /// Inflates until `input` is used up or `out` has `full` bytes. Answers how much of `input` it took; when `out` is
    /// full there may be more even with no input left.
    pub(super) fn decode(&mut self, input: &[u8], out: &mut Vec<u8>, full: usize) -> Result<usize, TransportError> {
        let mut piece = [0; PIECE];
        let mut taken = 0;
        while out.len() < full {
            if self.ended {
                break;
            }
            let room = PIECE.min(full - out.len());
            let (total_in, total_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(&input[taken..], &mut piece[..room], FlushDecompress::None)
                .map_err(TransportError::Deflate)?;
            let (used, made) = (self.inflate.total_in() - total_in, self.inflate.total_out() - total_out);
            taken += small(used);
            out.extend_from_slice(&piece[..small(made)]);
            self.ended = status == Status::StreamEnd;
            if used == 0 && made == 0 {
                break;
            }
        }
        // With room left all input is used, unless the stream is over.
        if out.len() < full && taken < input.len() { Err(TransportError::DeflateEnded) } else { Ok(taken) }
    }
}

/// Deflates.
pub(super) struct Encoder {
    deflate: Compress,
}

impl Encoder {
    /// `level` is 1 to 9.
    pub(super) fn new(level: u32) -> Self {
        Self { deflate: Compress::new(Compression::new(level.clamp(1, 9)), false) }
    }

    /// Appends `plain`, deflated and flushed, to `wire`.
    pub(super) fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) {
        // Room for the worst case, in which nothing shrinks and each block of 31 KiB has its header. It matters for more
        // than speed: a call that runs out of room and is repeated may come back with room left and the flush not done.
        wire.reserve(plain.len() + plain.len() / 10 + 128);
        let mut taken = 0;
        loop {
            let total_in = self.deflate.total_in();
            self.deflate
                .compress_vec(&plain[taken..], wire, FlushCompress::Sync)
                .expect("deflating fails only on a stream that was finished, and this one never is");
            taken += small(self.deflate.total_in() - total_in);
            if taken == plain.len() && wire.len() < wire.capacity() {
                return;
            }
            wire.reserve(PIECE);
        }
    }
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no more than a buffer holds")
}

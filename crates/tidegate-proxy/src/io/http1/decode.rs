//! Where a message's body ends: RFC 9112, section 6 and 7.

use bytes::{Buf, Bytes, BytesMut};

/// Longest line of a chunk's size with its extensions and its end, in bytes. As for the guard, whose requests all pass.
const SIZE_LINE_MAX: usize = 512;
/// Most bytes of all trailers of a message together, with the ends of their lines. As for the guard.
const TRAILERS_MAX: usize = 8 * 1024;
/// Longest piece that is copied out, so that a short one does not hold the whole buffer that it stood in.
const COPY_MAX: usize = 1024;

/// How the rest of a body is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// Nothing (more) comes.
    Done,
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// Everything until the peer closes; responses only.
    UntilClose,
}

/// Where in the chunked coding the next byte stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chunk {
    /// At the line with a chunk's size.
    Size,
    /// In a chunk of which so many bytes are left.
    Data(u64),
    /// At the line end behind a chunk's data.
    End,
    /// In the trailers, of which so many bytes came.
    Trailers(usize),
}

/// What the next bytes gave.
#[derive(Debug)]
pub(crate) enum Decoded {
    /// A piece of the body.
    Piece(Bytes),
    /// More bytes are needed.
    Short,
    /// The body ended; what is left in the buffer belongs to the next message.
    End,
}

/// The body breaks the rules of the chunked coding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a body in chunks is malformed: {0}")]
pub(crate) struct BadChunk(&'static str);

impl Framing {
    /// A body in chunks, at its beginning.
    pub(crate) const CHUNKED: Self = Self::Chunked(Chunk::Size);

    /// True if nothing more comes.
    pub(crate) const fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Length(0))
    }

    /// Takes the next piece of the body off `buffer`. Trailers are read and dropped.
    pub(crate) fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, BadChunk> {
        match self {
            Self::Done => Ok(Decoded::End),
            Self::Length(left) => {
                if *left == 0 {
                    *self = Self::Done;
                    return Ok(Decoded::End);
                }
                let piece = take(buffer, *left);
                *left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
                Ok(piece.map_or(Decoded::Short, Decoded::Piece))
            }
            Self::UntilClose => Ok(take(buffer, u64::MAX).map_or(Decoded::Short, Decoded::Piece)),
            Self::Chunked(chunk) => {
                let decoded = chunk.decode(buffer)?;
                if matches!(decoded, Decoded::End) {
                    *self = Self::Done;
                }
                Ok(decoded)
            }
        }
    }
}

impl Chunk {
    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Decoded, BadChunk> {
        loop {
            match self {
                Self::Size => {
                    let Some(line) = line(buffer, SIZE_LINE_MAX)? else { return Ok(Decoded::Short) };
                    let size = size(&buffer[..line])?;
                    buffer.advance(line + 2);
                    *self = if size == 0 { Self::Trailers(0) } else { Self::Data(size) };
                }
                Self::Data(left) => {
                    let Some(piece) = take(buffer, *left) else { return Ok(Decoded::Short) };
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::End;
                    }
                    return Ok(Decoded::Piece(piece));
                }
                Self::End => {
                    if buffer.len() < 2 {
                        return Ok(Decoded::Short);
                    }
                    if !buffer.starts_with(b"\r\n") {
                        return Err(BadChunk("data longer than its size"));
                    }
                    buffer.advance(2);
                    *self = Self::Size;
                }
                Self::Trailers(read) => {
                    // The empty line at the end has always room.
                    let Some(line) = line(buffer, TRAILERS_MAX - *read + 2)? else { return Ok(Decoded::Short) };
                    buffer.advance(line + 2);
                    if line == 0 {
                        return Ok(Decoded::End);
                    }
                    *read += line + 2;
                    if *read > TRAILERS_MAX {
                        return Err(BadChunk("trailers too long"));
                    }
                }
            }
        }
    }
}

/// Length of the first line, without its end; `None` if its end has not come. With its end it has at most `most` bytes.
fn line(buffer: &[u8], most: usize) -> Result<Option<usize>, BadChunk> {
    let within = &buffer[..buffer.len().min(most.saturating_sub(1))];
    let Some(end) = within.iter().position(|byte| matches!(byte, b'\n' | b'\r' | 0)) else {
        return if buffer.len() >= most { Err(BadChunk("line too long")) } else { Ok(None) };
    };
    match (buffer[end], buffer.get(end + 1)) {
        (b'\r', Some(b'\n')) => Ok(Some(end)),
        (b'\r', None) => Ok(None),
        _ => Err(BadChunk("line end is not CRLF")),
    }
}

/// The size that a chunk's line states. Extensions are skipped, as section 7.1.1 of RFC 9112 wants.
fn size(line: &[u8]) -> Result<u64, BadChunk> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    // As for the guard: sixteen digits are 64 bits, and more zeros in front are nobody's need.
    if digits == 0 || digits > 16 {
        return Err(BadChunk("size"));
    }
    let rest = &line[digits..];
    if !rest.is_empty() && !rest.trim_ascii_start().starts_with(b";") {
        return Err(BadChunk("bytes behind the size"));
    }
    let size = line[..digits]
        .iter()
        .fold(0, |size, &digit| size << 4 | u64::from(char::from(digit).to_digit(16).unwrap_or(0)));
    // Other readers have signed numbers.
    if i64::try_from(size).is_err() {
        return Err(BadChunk("size"));
    }
    Ok(size)
}

/// Up to `most` bytes off the front; `None` if there are none.
fn take(buffer: &mut BytesMut, most: u64) -> Option<Bytes> {
    let len = usize::try_from(most).map_or(buffer.len(), |most| most.min(buffer.len()));
    if len == 0 {
        return None;
    }
    if len > COPY_MAX {
        return Some(buffer.split_to(len).freeze());
    }
    let piece = Bytes::copy_from_slice(&buffer[..len]);
    buffer.advance(len);
    Some(piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `wire` in steps of `step` bytes; the body and what was left behind it.
    fn decode(mut framing: Framing, wire: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), BadChunk> {
        let (mut buffer, mut body) = (BytesMut::new(), Vec::new());
        let mut parts = wire.chunks(step.max(1));
        loop {
            match framing.decode(&mut buffer)? {
                Decoded::Piece(piece) => body.extend_from_slice(&piece),
                Decoded::End => {
                    let mut rest = buffer.to_vec();
                    parts.for_each(|part| rest.extend_from_slice(part));
                    return Ok((body, rest));
                }
                Decoded::Short => match parts.next() {
                    Some(part) => buffer.extend_from_slice(part),
                    None => return Err(BadChunk("unfinished")),
                },
            }
        }
    }

    #[test]
    fn chunks_end_where_they_say_and_leave_the_next_message_alone() {
        let wire = b"5\r\nhello\r\n6;name=value\r\n world\r\n0\r\nX-Sum: 1\r\n\r\nGET /";
        for step in 1..wire.len() {
            let (body, rest) = decode(Framing::CHUNKED, wire, step).unwrap();
            assert_eq!((body.as_slice(), rest.as_slice()), (&b"hello world"[..], &b"GET /"[..]), "step {step}");
        }
    }

    #[test]
    fn lines_are_as_long_as_the_guard_lets_them_pass_and_no_longer() {
        // With their ends: a size line of 512 bytes, trailers of 8 KiB in one line or in many.
        let long_size = |bytes: usize| format!("1;e={}\r\nx\r\n0\r\n\r\n", "y".repeat(bytes - 6));
        let long_trailer = |bytes: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(bytes - 5));
        let trailers = |lines: usize| format!("0\r\n{}\r\n", format!("X: {}\r\n", "y".repeat(507)).repeat(lines));
        for sound in [long_size(512), long_trailer(8 * 1024), trailers(16)] {
            assert!(decode(Framing::CHUNKED, sound.as_bytes(), 64).is_ok(), "{sound}");
        }
        for bad in [long_size(513), long_trailer(8 * 1024 + 1), trailers(17)] {
            assert!(decode(Framing::CHUNKED, bad.as_bytes(), 64).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_size_is_padded_with_zeros_to_the_digits_of_a_number_and_no_further() {
        for wire in [
            &b"0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n"[..],
            // Bad whitespace before an extension is to be read and left out (RFC 9112, section 7.1.1).
            b"5 ;a=b\r\nhello\r\n0\r\n\r\n",
        ] {
            let (body, rest) = decode(Framing::CHUNKED, wire, 64).unwrap();
            assert_eq!((body.as_slice(), rest.len()), (&b"hello"[..], 0), "{}", wire.escape_ascii());
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for wire in [
            &b"g\r\n"[..],
            b"\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"-5\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b"00000000000000005\r\nhello\r\n0\r\n\r\n",
            b"8000000000000000\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"5 \r\nhello\r\n0\r\n\r\n",
            b"5\t\r\nhello\r\n0\r\n\r\n",
            b"5\r\rhello",
        ] {
            assert!(decode(Framing::CHUNKED, wire, 64).is_err(), "{}", wire.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn a_length_takes_exactly_its_bytes(wire in proptest::collection::vec(any::<u8>(), 0..64), step in 1..9_usize) {
            let len = wire.len() / 2;
            let (body, rest) = decode(Framing::Length(len as u64), &wire, step).unwrap();
            prop_assert_eq!(&body[..], &wire[..len]);
            prop_assert_eq!(&rest[..], &wire[len..]);
        }
    }
}

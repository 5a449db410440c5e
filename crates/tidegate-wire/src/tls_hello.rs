//! The first message of a TLS client, looked at before any cryptography.
//!
//! [`peek`] tells whom a connection is for, so that it can be refused for a few microseconds instead of a handshake. It
//! verifies nothing: what it says of a resumption is the client's claim. Records and messages are those of RFC 8446 §4
//! and §5, extensions those of RFC 6066 §3 (server name) and RFC 7301 §3.1 (ALPN).

use std::borrow::Cow;

mod read;

/// The longest hello, in bytes on the wire with the heads of its records. Those of browsers with post-quantum key
/// shares are below 2 KiB.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

/// Of a record's head: type, version, length.
const RECORD_HEAD_BYTES: usize = 5;
/// Of a handshake message's head: type, length.
const MESSAGE_HEAD_BYTES: usize = 4;
/// The largest record that is not encrypted. RFC 8446 §5.1.
const RECORD_BYTES_MAX: usize = 1 << 14;

/// How far a hello has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// It is not whole.
    Incomplete {
        /// It cannot be before the input has so many bytes; calling earlier is in vain. Always more than there are.
        needed: usize,
    },
    /// It is whole.
    Hello(Hello),
    /// The connection does not begin with a TLS handshake.
    NotTls,
    /// It begins like one, and is broken.
    Malformed(Malformed),
}

/// What is wrong with a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A record of another type stands within the hello.
    #[error("a record of another type stands within the hello")]
    RecordType,
    /// A record's version is not of TLS.
    #[error("a record's version is not of TLS")]
    RecordVersion,
    /// A record is empty or larger than 16 KiB.
    #[error("a record is empty or larger than 16 KiB")]
    RecordLength,
    /// The hello is larger than [`HELLO_BYTES_MAX`].
    #[error("the hello is larger than {HELLO_BYTES_MAX} bytes")]
    TooLarge,
    /// The first message is not a `ClientHello`.
    #[error("the first message is not a ClientHello")]
    NotHello,
    /// Something follows the hello in its last record.
    #[error("something follows the hello in its last record")]
    Trailing,
    /// A length within the hello does not fit what is there.
    #[error("the length of `{0}` does not fit")]
    Length(&'static str),
    /// An extension came twice.
    #[error("the extension `{0}` came twice")]
    Twice(&'static str),
    /// The server name is not a DNS name.
    #[error("the server name is not a DNS name")]
    ServerName,
    /// Something follows the pre-shared keys, which RFC 8446 §4.2.11 has last.
    #[error("an extension follows the pre-shared keys")]
    PskNotLast,
}

/// What a hello says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one extension of the hello, independent of the others")]
pub struct Hello {
    /// The name of the server that is wanted: in lower case, without a trailing dot, 1 to 253 bytes. `None` too when
    /// the client named an IP address, which RFC 6066 §3 does not allow and clients send.
    pub server_name: Option<Box<str>>,
    /// TLS 1.3 is offered.
    pub tls13: bool,
    /// TLS 1.2 is offered.
    pub tls12: bool,
    /// A session ticket of TLS 1.2 came along. A claim.
    pub ticket: bool,
    /// A pre-shared key of TLS 1.3 came along: the client says that it was here before. A claim.
    pub psk: bool,
    /// Data of the client follows before the handshake ends.
    pub early_data: bool,
    /// The server name is that of the front; the true one is encrypted. RFC 9849.
    pub encrypted_hello: bool,
    /// Bytes on the wire, with the heads of the records.
    pub bytes: usize,
    /// The list of protocols as it came, each behind its length.
    alpn: Box<[u8]>,
}

impl Hello {
    /// The protocols offered, in the client's order.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.alpn[..];
        std::iter::from_fn(move || {
            let (&length, tail) = rest.split_first()?;
            let (name, tail) = tail.split_at_checked(usize::from(length))?;
            rest = tail;
            Some(name)
        })
    }

    /// `protocol` is offered.
    #[must_use]
    pub fn offers(&self, protocol: &[u8]) -> bool {
        self.alpn().any(|name| name == protocol)
    }

    /// The client claims to continue an earlier session, which costs the server no signature if it is true.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.psk || self.ticket
    }
}

/// Looks at the first bytes of a connection.
///
/// Below a microsecond for a hello in one record, which is not copied; one that is cut into several is put together
/// first. A client that sends single bytes is looked at some fifty times at most, if the caller heeds `needed`.
#[must_use]
pub fn peek(input: &[u8]) -> Peek {
    match message(input) {
        Ok(Found::Whole(message, bytes)) => match read::hello(&message[MESSAGE_HEAD_BYTES..]) {
            Ok(hello) => Peek::Hello(Hello { bytes, ..hello }),
            Err(malformed) => Peek::Malformed(malformed),
        },
        Ok(Found::Needs(needed)) => Peek::Incomplete { needed },
        Ok(Found::NotTls) => Peek::NotTls,
        Err(malformed) => Peek::Malformed(malformed),
    }
}

enum Found<'a> {
    /// The message with its head, and where it ends on the wire.
    Whole(Cow<'a, [u8]>, usize),
    Needs(usize),
    NotTls,
}

/// Puts the first message together from the records it is in.
fn message(input: &[u8]) -> Result<Found<'_>, Malformed> {
    match *input {
        [first, ..] if first != HANDSHAKE => return Ok(Found::NotTls),
        // An SSL 2 hello, or nothing of ours.
        [_, major, ..] if major != 3 => return Ok(Found::NotTls),
        _ => {}
    }
    let mut parts = Parts::default();
    let mut at = 0;
    loop {
        let Some(head) = input.get(at..).and_then(<[u8]>::first_chunk::<RECORD_HEAD_BYTES>) else {
            return needs(at + RECORD_HEAD_BYTES + parts.missing().unwrap_or(1));
        };
        let length = record_length(*head)?;
        let start = at + RECORD_HEAD_BYTES;
        let end = start + length;
        fits(end)?;
        let there = &input[start..input.len().min(end)];
        if let (None, [kind, ..]) = (&parts.first, there)
            && *kind != CLIENT_HELLO
        {
            return Err(Malformed::NotHello);
        }
        parts.push(there);
        let missing = parts.missing();
        if start + there.len() < end {
            // At least the rest of this record, and of the message what does not fit there.
            let rest = end - start - there.len();
            return match missing {
                Some(missing) if missing < rest => Err(Malformed::Trailing),
                Some(missing) if missing > rest => needs(end + RECORD_HEAD_BYTES + missing - rest),
                _ => needs(end),
            };
        }
        at = end;
        match missing {
            Some(0) => return parts.whole(end),
            Some(missing) => fits(at + RECORD_HEAD_BYTES + missing)?,
            None => {}
        }
    }
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Checks a record's head. Any minor version: clients of TLS 1.3 write 1 or 3 there, and RFC 8446 §5.1 says to ignore
/// it.
fn record_length([kind, major, _, high, low]: [u8; RECORD_HEAD_BYTES]) -> Result<usize, Malformed> {
    if kind != HANDSHAKE {
        return Err(Malformed::RecordType);
    }
    if major != 3 {
        return Err(Malformed::RecordVersion);
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length == 0 || length > RECORD_BYTES_MAX {
        return Err(Malformed::RecordLength);
    }
    Ok(length)
}

/// The pieces of the message so far: the first borrowed, all copied as soon as there are two.
#[derive(Default)]
struct Parts<'a> {
    first: Option<&'a [u8]>,
    joined: Vec<u8>,
}

impl<'a> Parts<'a> {
    fn push(&mut self, part: &'a [u8]) {
        match self.first {
            None if part.is_empty() => {}
            None => self.first = Some(part),
            Some(first) => {
                if self.joined.is_empty() {
                    self.joined.extend_from_slice(first);
                }
                self.joined.extend_from_slice(part);
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.joined.is_empty() { self.first.unwrap_or_default() } else { &self.joined }
    }

    /// The message's length with its head, once that is there.
    fn length(&self) -> Option<usize> {
        let [_, high, middle, low] = *self.bytes().first_chunk::<MESSAGE_HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, high, middle, low]);
        usize::try_from(length).ok()?.checked_add(MESSAGE_HEAD_BYTES)
    }

    /// How many bytes of the message have not come, once its length is known; 0 as well if there are too many.
    fn missing(&self) -> Option<usize> {
        self.length().map(|length| length.saturating_sub(self.bytes().len()))
    }

    /// RFC 8446 §5.1: a message before a change of keys, as this one, ends where a record ends.
    fn whole(self, end: usize) -> Result<Found<'a>, Malformed> {
        if self.length() != Some(self.bytes().len()) {
            return Err(Malformed::Trailing);
        }
        let message = match self.first {
            Some(first) if self.joined.is_empty() => Cow::Borrowed(first),
            _ => Cow::Owned(self.joined),
        };
        Ok(Found::Whole(message, end))
    }
}

fn fits(bytes: usize) -> Result<(), Malformed> {
    if bytes > HELLO_BYTES_MAX { Err(Malformed::TooLarge) } else { Ok(()) }
}

fn needs<'a>(needed: usize) -> Result<Found<'a>, Malformed> {
    fits(needed).map(|()| Found::Needs(needed))
}

#[cfg(test)]
mod tests;

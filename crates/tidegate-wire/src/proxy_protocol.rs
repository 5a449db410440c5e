//! The PROXY protocol, versions 1 and 2: whom a connection came from, told by the proxy before this one.
//!
//! Source: "The PROXY protocol, Versions 1 & 2", `HAProxy` Technologies, §2.1 (version 1) and §2.2 (version 2).
//! Believe it from addresses that are configured to send it only, and from those demand it: the text itself proves
//! nothing.
//!
//! ```
//! use tidegate_wire::proxy_protocol::{Peek, peek};
//!
//! let Peek::Header(header) = peek(b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 443\r\nGET / ...") else { panic!() };
//! assert_eq!(header.source().map(|source| source.to_string()).as_deref(), Some("192.0.2.1:4711"));
//! assert_eq!(header.bytes, 44);
//! ```

use std::net::SocketAddr;

mod crc32c;
mod v1;
mod v2;

pub use v1::put_v1;
pub use v2::put_v2;

/// The longest header that is read, in bytes. Version 2 could announce 64 KiB; what proxies send is below 1 KiB.
pub const HEADER_BYTES_MAX: usize = 4 * 1024;

/// How far a header has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// It is not whole.
    Incomplete {
        /// It cannot be before the input has so many bytes. Always more than there are.
        needed: usize,
    },
    /// It is whole; what follows its bytes belongs to the next protocol.
    Header(Header),
    /// The connection begins with something else.
    Absent,
    /// It begins like one, and is broken. The connection must be closed.
    Malformed(Malformed),
}

/// What is wrong with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A line of version 1 does not end within 107 bytes.
    #[error("the line has no end within 107 bytes")]
    LineTooLong,
    /// A line of version 1 is not `PROXY`, protocol, two addresses and two ports, each behind one space.
    #[error("the line is not of the form PROXY TCP4|TCP6 source destination port port")]
    Line,
    /// A version of the binary form that is not 2.
    #[error("version {0} of the binary form")]
    Version(u8),
    /// Neither LOCAL nor PROXY.
    #[error("command {0}")]
    Command(u8),
    /// A family or transport that is not defined.
    #[error("family and transport {0:#04x}")]
    Family(u8),
    /// The header is longer than [`HEADER_BYTES_MAX`].
    #[error("the header announces {announced} bytes, the limit is {HEADER_BYTES_MAX}")]
    TooLarge {
        /// With its first 16.
        announced: usize,
    },
    /// The addresses do not fit the announced length.
    #[error("the addresses are longer than the header")]
    Addresses,
    /// A field behind the addresses does not fit what is left.
    #[error("field {0:#04x} is longer than the header, or too short")]
    Field(u8),
    /// A field came twice.
    #[error("field {0:#04x} came twice")]
    Twice(u8),
    /// A field that must be UTF-8 or a name is not.
    #[error("field {0:#04x} is not text")]
    Text(u8),
    /// The header's checksum is not the one that it announces.
    #[error("the checksum is {announced:#010x}, the header's is {found:#010x}")]
    Checksum {
        /// What the header says.
        announced: u32,
        /// What its bytes make.
        found: u32,
    },
}

/// The form that a header came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// What a header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The form.
    pub version: Version,
    /// Whose the connection is.
    pub origin: Origin,
    /// The fields behind the addresses; all empty in version 1.
    pub fields: Fields,
    /// Its length in bytes.
    pub bytes: usize,
}

impl Header {
    /// The client's address, if it is known.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        if let Origin::Client { source, .. } = self.origin { Some(source) } else { None }
    }
}

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The sender's own: a health check. Its socket's addresses hold.
    Local,
    /// A client's, over IP.
    Client {
        /// The client's address.
        source: SocketAddr,
        /// The address that it connected to.
        destination: SocketAddr,
        /// What carried it.
        transport: Transport,
    },
    /// A client's, over a Unix socket; the paths are not kept.
    Unix,
    /// Not known. The socket's addresses hold.
    Unknown,
}

/// What carried a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP.
    Stream,
    /// UDP, QUIC for one.
    Datagram,
}

/// The fields of version 2 that are read. §2.2.1 to §2.2.8; others are passed over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    /// The protocol that was agreed on upon TLS, e.g. `h2`.
    pub alpn: Option<Box<[u8]>>,
    /// The name that the client asked for, usually by SNI: UTF-8, in lower case if ASCII.
    pub authority: Option<Box<str>>,
    /// How the connection came with TLS.
    pub tls: Option<Tls>,
    /// Up to 128 bytes that name the connection.
    pub unique_id: Option<Box<[u8]>>,
    /// The header bore a checksum, and it is right.
    pub checked: bool,
}

/// What the sender says of TLS between the client and itself. §2.2.6.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "three are the flags of the protocol, independent of each other")]
pub struct Tls {
    /// The client connected with TLS.
    pub used: bool,
    /// It showed a certificate in this connection.
    pub certificate: bool,
    /// It showed one in this session.
    pub certificate_in_session: bool,
    /// The certificate was verified, or there was none.
    pub verified: bool,
    /// E.g. `TLSv1.3`.
    pub version: Option<Box<str>>,
    /// The common name of the client's certificate.
    pub common_name: Option<Box<str>>,
}

/// Looks at the first bytes of a connection.
#[must_use]
pub fn peek(input: &[u8]) -> Peek {
    if starts_like(input, v1::START) {
        return v1::peek(input);
    }
    if starts_like(input, &v2::SIGNATURE) {
        return v2::peek(input);
    }
    Peek::Absent
}

/// All that came of `start` is as it should be.
fn starts_like(input: &[u8], start: &[u8]) -> bool {
    let common = input.len().min(start.len());
    input[..common] == start[..common]
}

#[cfg(test)]
mod tests;

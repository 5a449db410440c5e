//! Version 2: binary. §2.2.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Fields, HEADER_BYTES_MAX, Header, Malformed, Origin, Peek, Tls, Transport, Version, crc32c};

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
const FIXED_BYTES: usize = 16;

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const CRC32C: u8 = 0x03;
const UNIQUE_ID: u8 = 0x05;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
/// §2.2.5.
const UNIQUE_ID_BYTES_MAX: usize = 128;

/// Reads a header; what came of its signature is right.
pub(super) fn peek(input: &[u8]) -> Peek {
    let Some(fixed) = input.first_chunk::<FIXED_BYTES>() else {
        return Peek::Incomplete { needed: FIXED_BYTES };
    };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let bytes = FIXED_BYTES + length;
    let version = fixed[12] >> 4;
    if version != 2 {
        return Peek::Malformed(Malformed::Version(version));
    }
    if bytes > HEADER_BYTES_MAX {
        return Peek::Malformed(Malformed::TooLarge { announced: bytes });
    }
    let Some(header) = input.get(..bytes) else { return Peek::Incomplete { needed: bytes } };
    match read(header, fixed[12] & 0x0f, fixed[13]) {
        Ok((origin, fields)) => Peek::Header(Header { version: Version::V2, origin, fields, bytes }),
        Err(malformed) => Peek::Malformed(malformed),
    }
}

fn read(header: &[u8], command: u8, family: u8) -> Result<(Origin, Fields), Malformed> {
    match command {
        // Family, addresses and fields of LOCAL are to be ignored: they say nothing of a client.
        0 => return Ok((Origin::Local, Fields::default())),
        1 => {}
        _ => return Err(Malformed::Command(command)),
    }
    let rest = &header[FIXED_BYTES..];
    let (origin, rest) = match family {
        0x11 => ip::<4>(rest, Transport::Stream)?,
        0x12 => ip::<4>(rest, Transport::Datagram)?,
        0x21 => ip::<16>(rest, Transport::Stream)?,
        0x22 => ip::<16>(rest, Transport::Datagram)?,
        // Two paths of 108 bytes.
        0x31 | 0x32 => (Origin::Unix, rest.get(216..).ok_or(Malformed::Addresses)?),
        // Senders give unspecified addresses no length.
        0x00 => (Origin::Unknown, rest),
        _ => return Err(Malformed::Family(family)),
    };
    Ok((origin, fields(header, rest)?))
}

/// Two addresses of `N` bytes and two ports, and what follows.
fn ip<const N: usize>(rest: &[u8], transport: Transport) -> Result<(Origin, &[u8]), Malformed>
where
    [u8; N]: IntoAddress,
{
    let parts = || {
        let (source, rest) = rest.split_first_chunk::<N>()?;
        let (destination, rest) = rest.split_first_chunk::<N>()?;
        let (ports, rest) = rest.split_first_chunk::<4>()?;
        Some((*source, *destination, *ports, rest))
    };
    let (source, destination, [a, b, c, d], rest) = parts().ok_or(Malformed::Addresses)?;
    let source = source.with_port(u16::from_be_bytes([a, b]));
    let destination = destination.with_port(u16::from_be_bytes([c, d]));
    Ok((Origin::Client { source, destination, transport }, rest))
}

trait IntoAddress {
    fn with_port(self, port: u16) -> SocketAddr;
}

impl IntoAddress for [u8; 4] {
    fn with_port(self, port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::from(self), port))
    }
}

impl IntoAddress for [u8; 16] {
    fn with_port(self, port: u16) -> SocketAddr {
        SocketAddr::from((Ipv6Addr::from(self), port))
    }
}

/// A field's type and value, and what is behind it.
type Field<'a> = (u8, &'a [u8], &'a [u8]);

fn next_field(rest: &[u8]) -> Result<Option<Field<'_>>, Malformed> {
    match *rest {
        [] => Ok(None),
        [kind, high, low, ref tail @ ..] => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let (value, rest) = tail.split_at_checked(length).ok_or(Malformed::Field(kind))?;
            Ok(Some((kind, value, rest)))
        }
        [kind, ..] => Err(Malformed::Field(kind)),
    }
}

fn fields(header: &[u8], mut rest: &[u8]) -> Result<Fields, Malformed> {
    let mut fields = Fields::default();
    while let Some((kind, value, behind)) = next_field(rest)? {
        let twice = match kind {
            ALPN => fields.alpn.replace(value.into()).is_some(),
            AUTHORITY => fields.authority.replace(authority(value)?).is_some(),
            UNIQUE_ID if value.len() > UNIQUE_ID_BYTES_MAX => return Err(Malformed::Field(kind)),
            UNIQUE_ID => fields.unique_id.replace(value.into()).is_some(),
            SSL => fields.tls.replace(tls(value)?).is_some(),
            CRC32C => {
                let end = header.len() - behind.len();
                check(header, end, value)?;
                std::mem::replace(&mut fields.checked, true)
            }
            _ => false,
        };
        if twice {
            return Err(Malformed::Twice(kind));
        }
        rest = behind;
    }
    Ok(fields)
}

/// §2.2.3: the checksum is that of the header with zeros in its place, which ends at `end`.
fn check(header: &[u8], end: usize, value: &[u8]) -> Result<(), Malformed> {
    let announced = u32::from_be_bytes(value.try_into().map_err(|_| Malformed::Field(CRC32C))?);
    let found = crc32c::checksum(&[&header[..end - 4], &[0; 4], &header[end..]]);
    if found == announced { Ok(()) } else { Err(Malformed::Checksum { announced, found }) }
}

/// A name that tenants may be found by: no control bytes, not empty.
fn authority(value: &[u8]) -> Result<Box<str>, Malformed> {
    let text = text(AUTHORITY, value)?;
    if text.is_empty() || text.len() > 255 {
        return Err(Malformed::Text(AUTHORITY));
    }
    Ok(text.to_ascii_lowercase().into_boxed_str())
}

fn text(kind: u8, value: &[u8]) -> Result<&str, Malformed> {
    let text = str::from_utf8(value).map_err(|_| Malformed::Text(kind))?;
    if text.chars().any(char::is_control) { Err(Malformed::Text(kind)) } else { Ok(text) }
}

/// One byte of flags, four that are zero if the certificate was verified, and fields of its own.
fn tls(value: &[u8]) -> Result<Tls, Malformed> {
    let (&[client, verify @ ..], mut rest) = value.split_first_chunk::<5>().ok_or(Malformed::Field(SSL))?;
    let mut tls = Tls {
        used: client & 1 != 0,
        certificate: client & 2 != 0,
        certificate_in_session: client & 4 != 0,
        verified: verify == [0; 4],
        ..Tls::default()
    };
    while let Some((kind, value, behind)) = next_field(rest)? {
        let twice = match kind {
            SSL_VERSION => tls.version.replace(text(kind, value)?.into()).is_some(),
            SSL_CN => tls.common_name.replace(text(kind, value)?.into()).is_some(),
            _ => false,
        };
        if twice {
            return Err(Malformed::Twice(kind));
        }
        rest = behind;
    }
    Ok(tls)
}

/// Writes a header, with a checksum if [`Fields::checked`] says so.
///
/// Addresses of different families become those of IPv6. [`Origin::Unix`] is written as unspecified, since its paths are
/// not kept; so are the addresses of [`Origin::Local`], which has no fields.
///
/// # Panics
/// If the fields do not fit into [`HEADER_BYTES_MAX`]; each may have up to 255 bytes without reaching it.
pub fn put_v2(out: &mut Vec<u8>, origin: &Origin, fields: &Fields) {
    let start = out.len();
    out.extend_from_slice(&SIGNATURE);
    let local = matches!(origin, Origin::Local);
    out.push(if local { 0x20 } else { 0x21 });
    put_addresses(out, origin);
    let checksum_at = if local { None } else { put_fields(out, fields) };
    let length = out.len() - start - FIXED_BYTES;
    assert!(length + FIXED_BYTES <= HEADER_BYTES_MAX, "the fields of a header fit into its bound");
    out[start + 14..start + 16].copy_from_slice(&small(length));
    if let Some(at) = checksum_at {
        let checksum = crc32c::checksum(&[&out[start..]]);
        out[at..at + 4].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Family and transport, room for the length, addresses and ports.
fn put_addresses(out: &mut Vec<u8>, origin: &Origin) {
    let Origin::Client { source, destination, transport } = origin else {
        out.extend_from_slice(&[0, 0, 0]);
        return;
    };
    let transport = match transport {
        Transport::Stream => 1,
        Transport::Datagram => 2,
    };
    if let (SocketAddr::V4(from), SocketAddr::V4(to)) = (source, destination) {
        out.extend_from_slice(&[0x10 | transport, 0, 0]);
        out.extend_from_slice(&from.ip().octets());
        out.extend_from_slice(&to.ip().octets());
    } else {
        out.extend_from_slice(&[0x20 | transport, 0, 0]);
        for address in [source, destination] {
            out.extend_from_slice(&mapped(address).octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn mapped(address: &SocketAddr) -> Ipv6Addr {
    match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
        SocketAddr::V6(v6) => *v6.ip(),
    }
}

/// Returns where the checksum goes, if there is one.
fn put_fields(out: &mut Vec<u8>, fields: &Fields) -> Option<usize> {
    let mut checksum_at = None;
    if fields.checked {
        put_field(out, CRC32C, &[0; 4]);
        checksum_at = Some(out.len() - 4);
    }
    if let Some(alpn) = &fields.alpn {
        put_field(out, ALPN, alpn);
    }
    if let Some(authority) = &fields.authority {
        put_field(out, AUTHORITY, authority.as_bytes());
    }
    if let Some(unique_id) = &fields.unique_id {
        put_field(out, UNIQUE_ID, unique_id);
    }
    if let Some(tls) = &fields.tls {
        let mut value =
            vec![u8::from(tls.used) | u8::from(tls.certificate) << 1 | u8::from(tls.certificate_in_session) << 2];
        value.extend_from_slice(&u32::from(!tls.verified).to_be_bytes());
        if let Some(version) = &tls.version {
            put_field(&mut value, SSL_VERSION, version.as_bytes());
        }
        if let Some(name) = &tls.common_name {
            put_field(&mut value, SSL_CN, name.as_bytes());
        }
        put_field(out, SSL, &value);
    }
    checksum_at
}

fn put_field(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&small(value.len()));
    out.extend_from_slice(value);
}

fn small(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("fields are bounded far below 64 KiB").to_be_bytes()
}

//! Frames to TCP segments, and back: the window field, flags, and the bits of congestion notification.

mod options;
mod rewrite;

pub use options::SynOptions;
pub use rewrite::{set_ecn, set_flags, set_window};

use options::read_options;

/// VLAN tags that are stepped over.
const TAGS_MAX: usize = 2;
/// Extension headers of IPv6 that are stepped over.
const EXTENSIONS_MAX: usize = 8;
/// Headers before that of TCP take no more.
const HEADERS_MOST: usize = 256;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Its number among protocols.
pub(crate) const TCP: u8 = 6;

/// One end of a flow. An IPv4 address stands as its IPv6 form, `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The address, in the order of the wire.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

/// Bits of the flags of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender has no more to say.
    pub const FIN: Self = Self(0x01);
    /// The first segment either way.
    pub const SYN: Self = Self(0x02);
    /// The flow is over at once.
    pub const RST: Self = Self(0x04);
    /// The acknowledgement counts.
    pub const ACK: Self = Self(0x10);
    /// Echoes a CE mark.
    pub const ECE: Self = Self(0x40);
    /// The echo was heard.
    pub const CWR: Self = Self(0x80);

    /// True if all bits of `others` are set.
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// The bits that `others` has not.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// The two bits of explicit congestion notification in an IP header. Source: RFC 3168, §5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ecn(pub u8);

impl Ecn {
    /// Routers drop instead of marking.
    pub const NOT_ECT: Self = Self(0);
    /// Routers may mark.
    pub const ECT0: Self = Self(2);
    /// A router marked.
    pub const CE: Self = Self(3);
}

/// What matters of a TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it comes from.
    pub source: Endpoint,
    /// Where it goes.
    pub destination: Endpoint,
    /// Sequence number of its first byte.
    pub seq: u32,
    /// The next byte that its sender expects; counts if `flags` have ACK.
    pub ack: u32,
    /// Flags.
    pub flags: Flags,
    /// The window field as it stands, unscaled.
    pub window: u16,
    /// Bytes of payload.
    pub payload: u32,
    /// What the IP header says of congestion.
    pub ecn: Ecn,
    /// What a segment with SYN offers; nothing in others.
    pub options: SynOptions,
}

impl Segment {
    /// The sequence number after the segment: SYN and FIN count as a byte each.
    #[must_use]
    pub const fn end(&self) -> u32 {
        let syn = self.flags.has(Flags::SYN) as u32;
        let fin = self.flags.has(Flags::FIN) as u32;
        self.seq.wrapping_add(self.payload).wrapping_add(syn).wrapping_add(fin)
    }
}

/// A segment, and where its headers stand in the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The segment.
    pub segment: Segment,
    /// Bytes before the IP header.
    pub ip_at: usize,
    /// Bytes before the TCP header.
    pub header_at: usize,
}

/// Why a frame is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skipped {
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Another protocol than TCP, encapsulated TCP among them.
    NotTcp,
    /// A part of a datagram: the header may be in another one.
    Fragment,
    /// More VLAN tags or extension headers than are stepped over.
    TooDeep,
    /// The frame ends within a header, or a header is shorter than its least.
    Broken,
}

/// Reads an Ethernet frame. `frame` may end after the headers; lengths are those of the IP header, or of `wire_bytes`, the
/// length of the whole frame, where that says 0 because the packet is too large for its field.
///
/// # Errors
/// [`Skipped`] if the frame is to be left alone.
pub fn parse(frame: &[u8], wire_bytes: u32) -> Result<Parsed, Skipped> {
    let mut at = 12;
    let mut kind = be16(frame, at)?;
    for _ in 0..TAGS_MAX {
        if VLAN.contains(&kind) {
            at += 4;
            kind = be16(frame, at)?;
        }
    }
    at += 2;
    let ip = match kind {
        IPV4 => ipv4(frame, at, wire_bytes)?,
        IPV6 => ipv6(frame, at, wire_bytes)?,
        kind if VLAN.contains(&kind) => return Err(Skipped::TooDeep),
        _ => return Err(Skipped::NotIp),
    };
    tcp(frame, &ip)
}

/// What an IP header says of the TCP segment behind it.
struct Ip {
    source: [u8; 16],
    destination: [u8; 16],
    ecn: u8,
    /// Where the IP header begins.
    begins: usize,
    /// Where the TCP header begins.
    at: usize,
    /// Where the datagram ends.
    end: usize,
}

fn ipv4(frame: &[u8], at: usize, wire_bytes: u32) -> Result<Ip, Skipped> {
    let first = byte(frame, at)?;
    let header = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header < 20 {
        return Err(Skipped::Broken);
    }
    // More fragments follow, or this is not the first.
    if be16(frame, at + 6)? & 0x3fff != 0 {
        return Err(Skipped::Fragment);
    }
    if byte(frame, at + 9)? != TCP {
        return Err(Skipped::NotTcp);
    }
    Ok(Ip {
        source: mapped(array(frame, at + 12)?),
        destination: mapped(array(frame, at + 16)?),
        ecn: byte(frame, at + 1)? & 3,
        begins: at,
        at: at + header,
        end: end_of(be16(frame, at + 2)?, at, wire_bytes),
    })
}

fn ipv6(frame: &[u8], at: usize, wire_bytes: u32) -> Result<Ip, Skipped> {
    if byte(frame, at)? >> 4 != 6 {
        return Err(Skipped::Broken);
    }
    let mut next = byte(frame, at + 6)?;
    let mut header_at = at + 40;
    for _ in 0..EXTENSIONS_MAX {
        let length = match next {
            TCP => break,
            // Hop-by-hop, routing and destination options count in eights beyond the first.
            0 | 43 | 60 => (usize::from(byte(frame, header_at + 1)?) + 1) * 8,
            // An authentication header counts in fours beyond the first two.
            51 => (usize::from(byte(frame, header_at + 1)?) + 2) * 4,
            44 => return Err(Skipped::Fragment),
            _ => return Err(Skipped::NotTcp),
        };
        next = byte(frame, header_at)?;
        header_at += length;
    }
    if next != TCP || header_at > HEADERS_MOST {
        return Err(Skipped::TooDeep);
    }
    Ok(Ip {
        source: array(frame, at + 8)?,
        destination: array(frame, at + 24)?,
        ecn: byte(frame, at + 1)? >> 4 & 3,
        begins: at,
        at: header_at,
        end: end_of(be16(frame, at + 4)?, at + 40, wire_bytes),
    })
}

/// Where a datagram ends whose length field counts from `from`.
fn end_of(length: u16, from: usize, wire_bytes: u32) -> usize {
    if length == 0 { usize::try_from(wire_bytes).unwrap_or(usize::MAX) } else { from + usize::from(length) }
}

fn tcp(frame: &[u8], ip: &Ip) -> Result<Parsed, Skipped> {
    let at = ip.at;
    let header = usize::from(byte(frame, at + 12)? >> 4) * 4;
    if header < 20 {
        return Err(Skipped::Broken);
    }
    let flags = Flags(byte(frame, at + 13)?);
    let payload = ip.end.checked_sub(at + header).ok_or(Skipped::Broken)?;
    let options = if flags.has(Flags::SYN) {
        read_options(frame.get(at + 20..at + header).ok_or(Skipped::Broken)?)
    } else {
        SynOptions::default()
    };
    let segment = Segment {
        source: Endpoint { address: ip.source, port: be16(frame, at)? },
        destination: Endpoint { address: ip.destination, port: be16(frame, at + 2)? },
        seq: be32(frame, at + 4)?,
        ack: be32(frame, at + 8)?,
        flags,
        window: be16(frame, at + 14)?,
        payload: u32::try_from(payload).unwrap_or(u32::MAX),
        ecn: Ecn(ip.ecn),
        options,
    };
    // The checksum, which the rewriting needs too.
    be16(frame, at + 16)?;
    Ok(Parsed { segment, ip_at: ip.begins, header_at: at })
}

fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn byte(frame: &[u8], at: usize) -> Result<u8, Skipped> {
    frame.get(at).copied().ok_or(Skipped::Broken)
}

fn be16(frame: &[u8], at: usize) -> Result<u16, Skipped> {
    array(frame, at).map(u16::from_be_bytes)
}

fn be32(frame: &[u8], at: usize) -> Result<u32, Skipped> {
    array(frame, at).map(u32::from_be_bytes)
}

fn array<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], Skipped> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Skipped::Broken)
}

#[cfg(test)]
mod tests;

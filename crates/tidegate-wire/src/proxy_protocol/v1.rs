//! Version 1: a line of text. §2.1.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::{Fields, Header, Malformed, Origin, Peek, Transport, Version};

pub(super) const START: &[u8] = b"PROXY ";
/// With its CRLF: the longest UNKNOWN line that the document shows.
const LINE_BYTES_MAX: usize = 107;
/// `PROXY UNKNOWN` and CRLF.
const LINE_BYTES_MIN: usize = 15;

/// Reads a line; what came of its first word is right.
pub(super) fn peek(input: &[u8]) -> Peek {
    let window = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(feed) = memchr::memchr(b'\n', window) else {
        if window.len() == LINE_BYTES_MAX {
            return Peek::Malformed(Malformed::LineTooLong);
        }
        return Peek::Incomplete { needed: LINE_BYTES_MIN.max(input.len() + 1) };
    };
    let origin = window[..feed].strip_suffix(b"\r").and_then(|line| str::from_utf8(line).ok()).and_then(origin);
    match origin {
        Some(origin) => {
            Peek::Header(Header { version: Version::V1, origin, fields: Fields::default(), bytes: feed + 1 })
        }
        None => Peek::Malformed(Malformed::Line),
    }
}

fn origin(line: &str) -> Option<Origin> {
    let mut words = line.split(' ');
    words.next().filter(|word| *word == "PROXY")?;
    let (source, destination) = match words.next()? {
        // Whatever follows is to be ignored.
        "UNKNOWN" => return Some(Origin::Unknown),
        "TCP4" => addresses::<Ipv4Addr>(&mut words)?,
        "TCP6" => addresses::<Ipv6Addr>(&mut words)?,
        _ => return None,
    };
    let ports = (port(words.next()?)?, port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    Some(Origin::Client {
        source: SocketAddr::new(source, ports.0),
        destination: SocketAddr::new(destination, ports.1),
        transport: Transport::Stream,
    })
}

fn addresses<'a, A: FromStr + Into<IpAddr>>(words: &mut impl Iterator<Item = &'a str>) -> Option<(IpAddr, IpAddr)> {
    let mut next = || words.next()?.parse::<A>().ok().map(Into::into);
    Some((next()?, next()?))
}

/// Decimal, without zeros or signs in front.
fn port(word: &str) -> Option<u16> {
    let number = word.parse::<u16>().ok()?;
    (number.to_string() == word).then_some(number)
}

/// Writes a line. Addresses of different families, a datagram's and those of Unix sockets are `UNKNOWN`: version 1 has
/// no words for them, nor for [`Origin::Local`].
pub fn put_v1(out: &mut Vec<u8>, origin: &Origin) {
    let family = match origin {
        Origin::Client { source: SocketAddr::V4(_), destination: SocketAddr::V4(_), transport: Transport::Stream } => {
            "TCP4"
        }
        Origin::Client { source: SocketAddr::V6(_), destination: SocketAddr::V6(_), transport: Transport::Stream } => {
            "TCP6"
        }
        _ => {
            out.extend_from_slice(b"PROXY UNKNOWN\r\n");
            return;
        }
    };
    if let Origin::Client { source, destination, .. } = origin {
        let (from, to) = (source.ip(), destination.ip());
        write!(out, "PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port())
            .expect("writing to memory does not fail");
    }
}

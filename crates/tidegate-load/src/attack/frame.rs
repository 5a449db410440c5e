//! HTTP/2 frames as bytes, right and wrong ones: as much as the scripts need, and no more.
//!
//! A proper client library refuses to send what an attacker sends. Written here: a frame header over any payload, and header
//! blocks of literals. Read here: frame headers, and the few fields that say how the target answered.
//!
//! Source: RFC 9113, sections 4.1 and 6; RFC 7541, sections 5 and 6.

/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest payload that a peer must take without being asked, and the longest that is read here.
pub(super) const PAYLOAD_MAX: usize = 16_384;
/// A stream's number has 31 bits; after this one there is no next.
pub(super) const STREAM_MAX: u32 = 0x7fff_ffff;

/// Types of frames (RFC 9113, section 6).
pub(super) mod kind {
    pub(in crate::attack) const DATA: u8 = 0;
    pub(in crate::attack) const HEADERS: u8 = 1;
    pub(in crate::attack) const RST_STREAM: u8 = 3;
    pub(in crate::attack) const SETTINGS: u8 = 4;
    pub(in crate::attack) const PING: u8 = 6;
    pub(in crate::attack) const GOAWAY: u8 = 7;
    pub(in crate::attack) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::attack) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub(in crate::attack) const END_STREAM: u8 = 1;
    pub(in crate::attack) const END_HEADERS: u8 = 4;
    pub(in crate::attack) const PADDED: u8 = 8;
    pub(in crate::attack) const PRIORITY: u8 = 32;
}

/// Settings (RFC 9113, section 6.5.2).
pub(super) mod setting {
    pub(in crate::attack) const HEADER_TABLE_SIZE: u16 = 1;
    pub(in crate::attack) const INITIAL_WINDOW_SIZE: u16 = 4;
}

/// The error code of a client that changed its mind (RFC 9113, section 7).
pub(super) const CANCEL: u32 = 8;

/// Appends a frame. `payload` may be longer than a peer takes; longer than a frame can be it may not.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    assert!(length < 1 << 24, "a frame's length has 24 bits");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(stream & STREAM_MAX).to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a SETTINGS frame with these settings.
pub(super) fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let mut payload = Vec::with_capacity(6 * settings.len());
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    write(out, kind::SETTINGS, 0, 0, &payload);
}

/// A request whose header block is the same each time.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    /// `GET` or `POST`; others are written in full.
    pub(super) method: &'a str,
    /// `:scheme` is `https`.
    pub(super) is_tls: bool,
    /// `:authority`.
    pub(super) authority: &'a str,
    /// `:path`.
    pub(super) path: &'a str,
}

impl Request<'_> {
    /// Its header block, without any use of the dynamic table.
    pub(super) fn block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(32 + self.authority.len() + self.path.len());
        match self.method {
            "GET" => block.push(0x82),
            "POST" => block.push(0x83),
            other => write_literal(&mut block, Name::Indexed(2), other.as_bytes()),
        }
        block.push(if self.is_tls { 0x87 } else { 0x86 });
        write_literal(&mut block, Name::Indexed(1), self.authority.as_bytes());
        if self.path == "/" {
            block.push(0x84);
        } else {
            write_literal(&mut block, Name::Indexed(4), self.path.as_bytes());
        }
        block
    }
}

/// The name of a header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    /// An entry of the static table, below 15.
    Indexed(u8),
    /// In full.
    Full(&'a [u8]),
}

/// Appends a header that enters no table (RFC 7541, section 6.2.2).
pub(super) fn write_literal(block: &mut Vec<u8>, name: Name<'_>, value: &[u8]) {
    write_header(block, 0x00, name, value);
}

/// Appends a header that enters the dynamic table (RFC 7541, section 6.2.1).
pub(super) fn write_remembered(block: &mut Vec<u8>, name: Name<'_>, value: &[u8]) {
    write_header(block, 0x40, name, value);
}

fn write_header(block: &mut Vec<u8>, form: u8, name: Name<'_>, value: &[u8]) {
    match name {
        Name::Indexed(index) => block.push(form | index),
        Name::Full(name) => {
            block.push(form);
            write_string(block, name);
        }
    }
    write_string(block, value);
}

/// A string that is not compressed (RFC 7541, section 5.2).
fn write_string(block: &mut Vec<u8>, text: &[u8]) {
    const PREFIX_MAX: usize = 127;
    match u8::try_from(text.len()) {
        Ok(length) if usize::from(length) < PREFIX_MAX => block.push(length),
        _ => {
            block.push(0x7f);
            let mut rest = text.len() - PREFIX_MAX;
            while rest >= 0x80 {
                block.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
                rest >>= 7;
            }
            block.push(u8::try_from(rest).expect("below 128"));
        }
    }
    block.extend_from_slice(text);
}

/// The nine bytes before a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Bytes of the payload.
    pub(super) length: usize,
    /// The type.
    pub(super) kind: u8,
    /// The flags.
    pub(super) flags: u8,
    /// The stream, 0 for the connection.
    pub(super) stream: u32,
}

impl Head {
    /// Bytes of a frame header.
    pub(super) const BYTES: usize = 9;

    /// Reads one.
    pub(super) fn read(bytes: &[u8; Self::BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) & STREAM_MAX }
    }
}

/// The error code in the payload of `RST_STREAM` (at 0) or GOAWAY (at 4).
pub(super) fn error_code(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(payload.get(at..at + 4)?.try_into().ok()?))
}

/// The name of an error code (RFC 9113, section 7).
pub(super) fn error_name(code: u32) -> &'static str {
    match code {
        0x0 => "NO_ERROR",
        0x1 => "PROTOCOL_ERROR",
        0x2 => "INTERNAL_ERROR",
        0x3 => "FLOW_CONTROL_ERROR",
        0x4 => "SETTINGS_TIMEOUT",
        0x5 => "STREAM_CLOSED",
        0x6 => "FRAME_SIZE_ERROR",
        0x7 => "REFUSED_STREAM",
        0x8 => "CANCEL",
        0x9 => "COMPRESSION_ERROR",
        0xa => "CONNECT_ERROR",
        0xb => "ENHANCE_YOUR_CALM",
        0xc => "INADEQUATE_SECURITY",
        0xd => "HTTP_1_1_REQUIRED",
        _ => "unknown",
    }
}

/// The status in the payload of a HEADERS frame that begins with it, as RFC 9113 asks for (section 8.3).
///
/// `None` if it comes from the dynamic table, which our settings have closed, or if these are trailers.
pub(super) fn status(head: Head, payload: &[u8]) -> Option<u16> {
    let mut block = payload;
    if head.flags & flag::PADDED != 0 {
        block = block.get(1..)?;
    }
    if head.flags & flag::PRIORITY != 0 {
        block = block.get(5..)?;
    }
    // A peer that heard our table size begins with its own size of the table.
    while block.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
        block = block.get(1..)?;
    }
    let (first, rest) = block.split_first()?;
    match first {
        0x88..=0x8e => Some([200, 204, 206, 304, 400, 404, 500][usize::from(first - 0x88)]),
        // A literal whose name is one of the entries for `:status`, in each of the three forms.
        0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e => digits(rest),
        _ => None,
    }
}

/// Three digits, plain or in Huffman's code (RFC 7541, appendix B: five bits for 0 to 2, six for the others).
fn digits(bytes: &[u8]) -> Option<u16> {
    let (length, rest) = bytes.split_first()?;
    let text = rest.get(..usize::from(length & 0x7f))?;
    if length & 0x80 == 0 {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    let bits = text.iter().take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
    let mut left = 8 * u32::try_from(text.len().min(3)).ok()?;
    let mut take = |count: u32| {
        let taken = bits >> left.checked_sub(count)? & ((1 << count) - 1);
        left -= count;
        Some(taken)
    };
    let mut value = 0;
    for _ in 0..3 {
        let five = take(5)?;
        let digit = if five <= 2 { five } else { (five << 1 | take(1)?).checked_sub(0b01_1001)? + 3 };
        value = value * 10 + digit;
    }
    u16::try_from(value).ok().filter(|status| (100..=999).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_begins_with_nine_bytes() {
        let mut out = Vec::new();
        write(&mut out, kind::RST_STREAM, 0, 5, &CANCEL.to_be_bytes());
        assert_eq!(out, [0, 0, 4, 3, 0, 0, 0, 0, 5, 0, 0, 0, 8]);
        let head = Head::read(out[..9].try_into().unwrap());
        assert_eq!(head, Head { length: 4, kind: kind::RST_STREAM, flags: 0, stream: 5 });
        assert_eq!(error_code(&out[9..], 0).map(error_name), Some("CANCEL"));
    }

    #[test]
    fn settings_are_six_bytes_each() {
        let mut out = Vec::new();
        write_settings(&mut out, &[(setting::HEADER_TABLE_SIZE, 0), (setting::INITIAL_WINDOW_SIZE, 1)]);
        assert_eq!(out[..9], [0, 0, 12, 4, 0, 0, 0, 0, 0]);
        assert_eq!(out[9..], [0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1]);
    }

    #[test]
    fn a_request_is_its_four_pseudo_headers() {
        let request = Request { method: "GET", is_tls: false, authority: "a.example", path: "/" };
        assert_eq!(request.block(), *b"\x82\x86\x01\x09a.example\x84");
        let request = Request { method: "PUT", is_tls: true, authority: "b", path: "/x" };
        assert_eq!(request.block(), *b"\x02\x03PUT\x87\x01\x01b\x04\x02/x");
    }

    #[test]
    fn long_strings_have_long_lengths() {
        // RFC 7541, section 5.1: 1,337 after a prefix of seven bits is 127 and 1,210 in groups of seven bits.
        let mut block = Vec::new();
        write_remembered(&mut block, Name::Full(b"x"), &[b'y'; 1_337]);
        assert_eq!(block[..6], [0x40, 1, b'x', 0x7f, 0xba, 0x09]);
        assert_eq!(block.len(), 6 + 1_337);
        let mut block = Vec::new();
        write_literal(&mut block, Name::Full(b"x"), &[b'y'; 127]);
        assert_eq!(block[..5], [0, 1, b'x', 0x7f, 0]);
    }

    #[test]
    fn the_status_is_read_in_every_form() {
        let read = |payload: &[u8]| status(Head { length: payload.len(), kind: 1, flags: 4, stream: 1 }, payload);
        assert_eq!(read(&[0x88]), Some(200));
        assert_eq!(read(&[0x8e]), Some(500));
        assert_eq!(read(&[0x20, 0x88]), Some(200));
        assert_eq!(read(b"\x48\x03429"), Some(429));
        // RFC 7541, appendix C.6: `302` is 6402 and `307` is 640eff in Huffman's code.
        assert_eq!(read(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(read(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        for cut in [&b""[..], b"\x48", b"\x48\x03\x34", b"\x48\x82\x64", b"\xbe"] {
            assert_eq!(read(cut), None, "{cut:?}");
        }
        let padded = Head { length: 7, kind: 1, flags: flag::PADDED | flag::PRIORITY, stream: 1 };
        assert_eq!(status(padded, &[0, 0, 0, 0, 0, 0, 0x88]), Some(200));
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(flags: u8, payload: Vec<u8>) {
            let _ = status(Head { length: payload.len(), kind: kind::HEADERS, flags, stream: 1 }, &payload);
            let _ = error_code(&payload, 4);
        }
    }
}

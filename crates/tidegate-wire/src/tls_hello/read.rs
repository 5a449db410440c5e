//! The body of a `ClientHello`. RFC 8446 §4.1.2.

use std::net::IpAddr;

use super::{Hello, Malformed};

/// What is left of a structure.
struct Reader<'a> {
    rest: &'a [u8],
    /// Of what, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8], what: &'static str) -> Self {
        Self { rest, what }
    }

    fn error(&self) -> Malformed {
        Malformed::Length(self.what)
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or_else(|| self.error())?;
        self.rest = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.rest.split_first().ok_or_else(|| self.error())?;
        self.rest = rest;
        Ok(byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.error())?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    /// A part behind its length of one byte.
    fn short(&mut self, what: &'static str) -> Result<Reader<'a>, Malformed> {
        let length = self.u8()?;
        self.take(usize::from(length)).map(|part| Reader::new(part, what)).map_err(|_| Malformed::Length(what))
    }

    /// A part behind its length of two bytes.
    fn long(&mut self, what: &'static str) -> Result<Reader<'a>, Malformed> {
        let length = self.u16()?;
        self.take(usize::from(length)).map(|part| Reader::new(part, what)).map_err(|_| Malformed::Length(what))
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(self.error()) }
    }
}

const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;

/// Reads the body of the message; `bytes` is the caller's to fill in.
pub(super) fn hello(body: &[u8]) -> Result<Hello, Malformed> {
    let mut body = Reader::new(body, "hello");
    let legacy_version = body.u16()?;
    body.take(32)?; // The random bytes.
    if body.short("session id")?.rest.len() > 32 {
        return Err(Malformed::Length("session id"));
    }
    let suites = body.long("cipher suites")?.rest.len();
    if suites == 0 || !suites.is_multiple_of(2) {
        return Err(Malformed::Length("cipher suites"));
    }
    if body.short("compression methods")?.is_empty() {
        return Err(Malformed::Length("compression methods"));
    }
    // Without the extension `supported_versions`, RFC 8446 §4.2.1.
    let mut hello = Hello { tls12: legacy_version >= TLS12, ..Hello::default() };
    // TLS 1.2 and earlier: the extensions may be missing altogether.
    if body.is_empty() {
        return Ok(hello);
    }
    let extensions = body.long("extensions")?;
    body.end()?;
    read_extensions(extensions, &mut hello)?;
    Ok(hello)
}

/// Which of the extensions that matter came.
#[derive(Default)]
struct Seen(u8);

impl Seen {
    fn once(&mut self, bit: u8, name: &'static str) -> Result<(), Malformed> {
        let before = self.0;
        self.0 |= 1 << bit;
        if before == self.0 { Err(Malformed::Twice(name)) } else { Ok(()) }
    }
}

/// All others, GREASE (RFC 8701) among them, are passed over.
fn read_extensions(mut extensions: Reader<'_>, hello: &mut Hello) -> Result<(), Malformed> {
    let mut seen = Seen::default();
    while !extensions.is_empty() {
        if hello.psk {
            return Err(Malformed::PskNotLast);
        }
        let kind = extensions.u16()?;
        let content = extensions.long("extension")?;
        match kind {
            0 => {
                seen.once(0, "server_name")?;
                hello.server_name = server_name(content)?;
            }
            16 => {
                seen.once(1, "application_layer_protocol_negotiation")?;
                hello.alpn = alpn(content)?;
            }
            35 => {
                seen.once(2, "session_ticket")?;
                hello.ticket = !content.is_empty();
            }
            41 => {
                seen.once(3, "pre_shared_key")?;
                hello.psk = true;
            }
            42 => {
                seen.once(4, "early_data")?;
                hello.early_data = true;
            }
            43 => {
                seen.once(5, "supported_versions")?;
                versions(content, hello)?;
            }
            0xfe0d => {
                seen.once(6, "encrypted_client_hello")?;
                hello.encrypted_hello = true;
            }
            _ => {}
        }
    }
    Ok(())
}

fn versions(mut content: Reader<'_>, hello: &mut Hello) -> Result<(), Malformed> {
    let mut list = content.short("supported versions")?;
    content.end()?;
    if list.is_empty() {
        return Err(list.error());
    }
    hello.tls12 = false;
    while !list.is_empty() {
        let version = list.u16()?;
        hello.tls12 |= version == TLS12;
        hello.tls13 |= version == TLS13;
    }
    Ok(())
}

fn alpn(mut content: Reader<'_>) -> Result<Box<[u8]>, Malformed> {
    let mut list = content.long("protocols")?;
    content.end()?;
    let whole = list.rest;
    while !list.is_empty() {
        if list.short("protocol")?.is_empty() {
            return Err(Malformed::Length("protocol"));
        }
    }
    if whole.is_empty() {
        return Err(Malformed::Length("protocols"));
    }
    Ok(whole.into())
}

/// RFC 6066 §3: a list of names of different kinds; only that of hosts was ever defined.
fn server_name(mut content: Reader<'_>) -> Result<Option<Box<str>>, Malformed> {
    let mut list = content.long("server names")?;
    content.end()?;
    if list.is_empty() {
        return Err(list.error());
    }
    let mut found = None;
    while !list.is_empty() {
        let kind = list.u8()?;
        let name = list.long("server name")?;
        if kind == 0 {
            if found.is_some() {
                return Err(Malformed::Twice("host_name"));
            }
            found = Some(name.rest);
        }
    }
    found.map_or(Ok(None), host_name)
}

/// The name in lower case, `None` for an address.
fn host_name(name: &[u8]) -> Result<Option<Box<str>>, Malformed> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let text = str::from_utf8(name).map_err(|_| Malformed::ServerName)?;
    if text.parse::<IpAddr>().is_ok() {
        return Ok(None);
    }
    if name.len() > 253 || !name.split(|&byte| byte == b'.').all(is_label) {
        return Err(Malformed::ServerName);
    }
    Ok(Some(text.to_ascii_lowercase().into_boxed_str()))
}

/// Letters, digits, inner hyphens; underscores, which names of services have.
fn is_label(label: &[u8]) -> bool {
    let fits = matches!(label.len(), 1..=63) && label[0] != b'-' && label[label.len() - 1] != b'-';
    fits && label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

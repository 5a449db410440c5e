//! Request targets and hosts.

use std::net::Ipv6Addr;

use super::grammar::{NAME, PATH, QUERY, decimal, first_not, is};
use super::limits::Fault;

/// Methods with rules of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Connect,
    Options,
    Trace,
    Other,
}

impl Method {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

/// The four forms of RFC 9112 §3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form<'a> {
    Origin,
    Asterisk,
    /// The authority of an absolute target, or all of CONNECT's.
    Named(&'a [u8]),
}

/// The form of `target`, if it fits the method. Faults count from its start.
pub(super) fn form(method: Method, target: &[u8]) -> Result<Form<'_>, Fault> {
    match (method, target.first()) {
        (_, None) => Err(Fault::bad("the request target is empty", 0)),
        (Method::Connect, _) => connect(target),
        (_, Some(b'/')) => path_and_query(target, 0).map(|()| Form::Origin),
        (Method::Options, Some(b'*')) if target.len() == 1 => Ok(Form::Asterisk),
        (_, Some(b'*')) => Err(Fault::bad("the target `*` belongs to OPTIONS", 0)),
        _ => absolute(target),
    }
}

fn connect(target: &[u8]) -> Result<Form<'_>, Fault> {
    match host(target) {
        Ok(Port::Given) => Ok(Form::Named(target)),
        Ok(Port::Absent) => Err(Fault::bad("the target of CONNECT has no port", target.len())),
        Err(_) => Err(Fault::bad("the target of CONNECT is not host:port", 0)),
    }
}

fn absolute(target: &[u8]) -> Result<Form<'_>, Fault> {
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
        .ok_or(Fault::bad("the target is neither a path nor an http or https address", 0))?;
    let rest = &target[scheme.len()..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = &rest[..end];
    host(authority).map_err(|_| Fault::bad("the target names no sound host", scheme.len()))?;
    path_and_query(&rest[end..], scheme.len() + end)?;
    Ok(Form::Named(authority))
}

/// A path, which may be empty, and a query. `start` is where they begin in the target.
fn path_and_query(text: &[u8], start: usize) -> Result<(), Fault> {
    let path_end = memchr::memchr(b'?', text).unwrap_or(text.len());
    let (path, query) = text.split_at(path_end);
    let mut at = 0;
    while let Some(&byte) = path.get(at) {
        if byte == b'%' {
            match path.get(at + 1..at + 3) {
                Some(b"00") => return Err(Fault::bad("the path has an encoded NUL", start + at)),
                Some([high, low]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {}
                _ => return Err(Fault::bad("the path has a broken percent encoding", start + at)),
            }
        } else if !is(PATH, byte) {
            return Err(Fault::bad("the path has a byte that none has", start + at));
        }
        at += 1;
    }
    // A percent sign in a query is often only that; nobody routes by it.
    match first_not(QUERY, query) {
        Some(bad) => Err(Fault::bad("the query has a byte that none has", start + path_end + bad)),
        None => Ok(()),
    }
}

/// Whether a host came with a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Port {
    Given,
    Absent,
}

/// A name, an IPv4 or a bracketed IPv6 address, and perhaps a port of one to five digits.
///
/// Stricter than RFC 3986 §3.2.2: no percent encoding, no user, no empty host or port.
pub(super) fn host(value: &[u8]) -> Result<Port, Fault> {
    let name_end = if value.first() == Some(&b'[') {
        let end =
            memchr::memchr(b']', value).ok_or(Fault::bad("an IPv6 address has no closing bracket", value.len()))?;
        str::from_utf8(&value[1..end])
            .ok()
            .and_then(|text| text.parse::<Ipv6Addr>().ok())
            .ok_or(Fault::bad("the brackets hold no IPv6 address", 1))?;
        end + 1
    } else {
        let end = memchr::memchr(b':', value).unwrap_or(value.len());
        // 253: the longest name of DNS, and a dot behind it.
        if end == 0 || end > 254 || value[0] == b'.' {
            return Err(Fault::bad("the host is empty or too long", 0));
        }
        if let Some(bad) = first_not(NAME, &value[..end]) {
            return Err(Fault::bad("the host has a byte that no name has", bad));
        }
        end
    };
    match &value[name_end..] {
        [] => Ok(Port::Absent),
        [b':', port @ ..] => {
            let number = if port.len() <= 5 { decimal(port) } else { None };
            match number {
                Some(number) if u16::try_from(number).is_ok() => Ok(Port::Given),
                _ => Err(Fault::bad("the port is not a number below 65,536", name_end)),
            }
        }
        _ => Err(Fault::bad("something stands behind the host", name_end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_belongs_to_its_method() {
        assert_eq!(form(Method::Other, b"/a%20b?c=%"), Ok(Form::Origin));
        assert_eq!(form(Method::Options, b"*"), Ok(Form::Asterisk));
        assert_eq!(form(Method::Other, b"HTTP://a.example:80?q"), Ok(Form::Named(b"a.example:80")));
        assert_eq!(form(Method::Connect, b"a.example:443"), Ok(Form::Named(b"a.example:443")));
        for (method, target) in [
            (Method::Other, &b"*"[..]),
            (Method::Options, b"**"),
            (Method::Connect, b"/"),
            (Method::Connect, b"a.example"),
            (Method::Other, b"a.example:443"),
            (Method::Other, b"ftp://a.example/"),
            (Method::Other, b"http://u@a.example/"),
            (Method::Other, b"http:///"),
            (Method::Other, b""),
        ] {
            assert!(form(method, target).is_err(), "{}", target.escape_ascii());
        }
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        for sound in ["a", "A-b_c.example.", "127.0.0.1", "[::1]", "xn--bcher-kva.example"] {
            assert_eq!(host(sound.as_bytes()), Ok(Port::Absent), "{sound}");
        }
        assert_eq!(host(b"[2001:db8::1]:8443"), Ok(Port::Given));
        for bad in
            ["", ":80", "a:", "a:65536", "a:000080", "a:8a", "a b", "a/b", "a@b", "a,b", "[::1", "[::1]x", "[a]", ".a"]
        {
            assert!(host(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_is_where_it_shows() {
        assert_eq!(form(Method::Other, b"/a\\b").map_err(|fault| fault.at), Err(2));
        assert_eq!(form(Method::Other, b"/a%0g").map_err(|fault| fault.at), Err(2));
        assert_eq!(form(Method::Other, b"http://a/?b#c").map_err(|fault| fault.at), Err(11));
    }
}

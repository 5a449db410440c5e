//! What of a message's headers goes on, and what the proxy adds.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::StatusCode;
use http::header::{CONNECTION, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::request::Parts;
use tidegate_wire::http1::hop::{self, Forward, Options};
use tidegate_wire::http1::{is_host, is_target};

use crate::config::{Forwarded, HeaderEdits, Server};
use crate::io::listen::settings::Settings;
use crate::io::listen::thread::Connection;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Gateways that turn fields into variables read an underscore as the hyphen.
const LOOKALIKES: [HeaderName; 2] =
    [HeaderName::from_static("content_length"), HeaderName::from_static("transfer_encoding")];

/// The headers list more options of the connection than any reader tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadConnection;

/// Whether trailers of an answer reach the client: from HTTP/2 to HTTP/2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trailers {
    /// They do; the request may ask for them with `TE: trailers`.
    GoOn,
    /// They are read and dropped here, so `TE` is removed from the request.
    EndHere,
}

/// Removes what ends at this hop. True if the request asks for `WebSocket`, which then still stands there.
pub(crate) fn strip_request(headers: &mut HeaderMap, trailers: Trailers) -> Result<bool, BadConnection> {
    let listed = take(headers);
    let options = read(&listed)?;
    let websocket = !listed.is_empty()
        && hop::asks_for_websocket(headers.get_all(UPGRADE).iter().map(HeaderValue::as_bytes), &options);
    strip(headers, |name, value| match name {
        b"te" if trailers == Trailers::EndHere => Forward::Drop,
        _ => hop::request(name, value, &options),
    });
    if websocket {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    Ok(websocket)
}

/// Removes what ends at this hop from an answer.
pub(crate) fn strip_response(status: u16, headers: &mut HeaderMap) -> Result<(), BadConnection> {
    let listed = take(headers);
    let options = read(&listed)?;
    strip(headers, |name, value| hop::response(status, name, value, &options));
    Ok(())
}

/// Takes all `Connection` fields out.
fn take(headers: &mut HeaderMap) -> Vec<HeaderValue> {
    match headers.entry(CONNECTION) {
        http::header::Entry::Occupied(entry) => entry.remove_entry_mult().1.collect(),
        http::header::Entry::Vacant(_) => Vec::new(),
    }
}

fn read(listed: &[HeaderValue]) -> Result<Options<'_>, BadConnection> {
    Options::read(listed.iter().map(HeaderValue::as_bytes)).map_err(|_| BadConnection)
}

fn strip(headers: &mut HeaderMap, what: impl Fn(&[u8], &[u8]) -> Forward) {
    // Most messages lose nothing, and an empty vector allocates nothing.
    let mut gone: Vec<HeaderName> = Vec::new();
    for (name, value) in headers.iter_mut() {
        match what(name.as_str().as_bytes(), value.as_bytes()) {
            Forward::Keep => {}
            Forward::Drop => gone.push(name.clone()),
            Forward::Replace(other) => *value = HeaderValue::from_static(other),
        }
    }
    for name in gone {
        headers.remove(name);
    }
}

/// Tells the upstream where the request came from. What a peer says that is not trusted is not passed on.
pub(crate) fn add_forwarded(connection: &Connection, settings: &Settings, parts: &mut Parts) {
    let origin = &connection.origin;
    let trusted = !settings.config.trusted.is_empty() && settings.trusts(origin.client.ip());
    let headers = &mut parts.headers;
    if !trusted {
        for name in [&FOR, &PROTO, &FORWARDED_HOST, &FORWARDED_PORT, &REAL_IP, &FORWARDED] {
            headers.remove(name);
        }
    }
    let wanted = settings.config.forwarded;
    if matches!(wanted, Forwarded::XForwarded | Forwarded::Both) {
        match joined(headers, &FOR, connection.address.as_bytes()) {
            Some(value) => headers.insert(FOR, value),
            None => headers.insert(FOR, connection.address.clone()),
        };
        if !headers.contains_key(&PROTO) {
            headers.insert(PROTO, settings.proto[usize::from(origin.tls)].clone());
        }
        if let Some(host) = headers.get(HOST).cloned()
            && !headers.contains_key(&FORWARDED_HOST)
        {
            headers.insert(FORWARDED_HOST, host);
        }
    }
    if matches!(wanted, Forwarded::Standard | Forwarded::Both) {
        let element = element(origin.client.ip(), headers.get(HOST), origin.tls);
        let value = joined(headers, &FORWARDED, element.as_bytes());
        if let Some(value) = value.or_else(|| HeaderValue::try_from(element).ok()) {
            headers.insert(FORWARDED, value);
        }
    }
}

/// All lines of `name` as one, with `more` behind them; `None` if there is none. A hop may add a line of its own instead
/// of writing to the one that is there.
fn joined(headers: &HeaderMap, name: &HeaderName, more: &[u8]) -> Option<HeaderValue> {
    let mut parts: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    if parts.is_empty() {
        return None;
    }
    parts.push(more);
    HeaderValue::from_bytes(&parts.join(&b", "[..])).ok()
}

/// One element of `Forwarded` (RFC 7239).
fn element(client: IpAddr, host: Option<&HeaderValue>, tls: bool) -> String {
    let mut text = match client.to_canonical() {
        IpAddr::V4(address) => format!("for={address}"),
        IpAddr::V6(address) => format!("for=\"[{address}]\""),
    };
    // No quote and no backslash is in a host, from either protocol.
    if let Some(host) = host.and_then(|host| host.to_str().ok()) {
        write!(text, ";host=\"{host}\"").expect("strings take every byte");
    }
    text.push_str(if tls { ";proto=https" } else { ";proto=http" });
    text
}

/// The client at the far end of the trusted hops, as they have written it.
pub(crate) fn client_of(connection: &Connection, settings: &Settings, headers: &HeaderMap) -> IpAddr {
    let peer = connection.origin.client.ip();
    if settings.config.trusted.is_empty() || !settings.trusts(peer) {
        return peer;
    }
    let standard = settings.config.forwarded == Forwarded::Standard;
    far_end(peer, headers, standard, |address| settings.trusts(address))
}

/// By one of the two headers: where both came, by the one that is written here. Of two a hop may have passed one on that
/// the client made up.
fn far_end(peer: IpAddr, headers: &HeaderMap, standard: bool, trusts: impl Fn(IpAddr) -> bool) -> IpAddr {
    let lines = |name| headers.get_all(name).iter().rev().map(HeaderValue::as_bytes);
    if headers.contains_key(FORWARDED) && (standard || !headers.contains_key(FOR)) {
        let elements = lines(&FORWARDED).flat_map(|line| rsplit(line, b','));
        farthest(peer, elements.map(named_in), trusts)
    } else {
        let parts = lines(&FOR).flat_map(|line| line.rsplit(|&byte| byte == b','));
        farthest(peer, parts.map(address), trusts)
    }
}

/// Each hop writes whom it saw behind what it was told, so only the end of the list is sure: from there back to the first
/// address that is not trusted. What cannot be read ends the way too; the client is then the farthest hop that is known.
fn farthest(peer: IpAddr, seen: impl Iterator<Item = Option<IpAddr>>, trusts: impl Fn(IpAddr) -> bool) -> IpAddr {
    let mut farthest = peer;
    for address in seen {
        let Some(address) = address else { return farthest };
        farthest = address;
        if !trusts(address) {
            return farthest;
        }
    }
    farthest
}

/// Whom an element of `Forwarded` is for, if that is an address (RFC 7239, section 6).
fn named_in(element: &[u8]) -> Option<IpAddr> {
    let pairs = rsplit(element, b';').map(|pair| pair.trim_ascii().split_at_checked(4));
    let mut named = pairs.flatten().filter(|(name, _)| name.eq_ignore_ascii_case(b"for="));
    let (Some((_, node)), None) = (named.next(), named.next()) else { return None };
    let bare = node.strip_prefix(b"\"").and_then(|node| node.strip_suffix(b"\""));
    address(bare.unwrap_or(node))
}

/// `text` without what divides it outside quotes, the last part first. From the end, because there the quotes are a hop's:
/// one that a client left open before them changes nothing.
fn rsplit(text: &[u8], divider: u8) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(text);
    std::iter::from_fn(move || {
        let text = left.take()?;
        let mut is_quoted = false;
        for (at, &byte) in text.iter().enumerate().rev() {
            if byte == b'"' {
                let escapes = text[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
                is_quoted ^= escapes % 2 == 0;
            } else if byte == divider && !is_quoted {
                left = Some(&text[..at]);
                return Some(&text[at + 1..]);
            }
        }
        Some(text)
    })
}

/// An address as hops write it: some add the port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

/// A request of HTTP/1.0 may name no host; what goes on is HTTP/1.1 and must (RFC 9112, section 3.2).
pub(crate) fn complete_host(headers: &mut HeaderMap, servers: &[Server]) {
    if !headers.contains_key(HOST)
        && let Some(server) = servers.first()
        && let Ok(name) = HeaderValue::try_from(server.to_string())
    {
        headers.insert(HOST, name);
    }
}

/// Removes what a gateway behind may take for one of `names`. O(1) without any; most configurations name none.
pub(crate) fn drop_lookalikes<'a>(headers: &mut HeaderMap, names: impl Iterator<Item = &'a HeaderName>) {
    for name in names {
        let real = name.as_str().as_bytes();
        let is_like = |other: &&HeaderName| *other != name && hop::reads_as(other.as_str().as_bytes(), real);
        let gone: Vec<HeaderName> = headers.keys().filter(is_like).cloned().collect();
        for name in gone {
            headers.remove(name);
        }
    }
}

/// What the configuration changes.
pub(crate) fn edit(headers: &mut HeaderMap, edits: &HeaderEdits) {
    for name in &edits.remove {
        headers.remove(name);
    }
    for (name, value) in &edits.set {
        headers.insert(name, value.clone());
    }
}

/// Why a request of HTTP/2 is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsound {
    pub(crate) status: StatusCode,
    pub(crate) detail: &'static str,
}

/// Of an HTTP/2 request, for an upstream that speaks HTTP/1: the host, and one field of cookies (RFC 9113, 8.2.3). It is
/// held to what the guard holds requests of HTTP/1 to: one sound host, a sound path, at most `fields` fields, and none that
/// readers could take for one that says how long the content is.
pub(crate) fn from_http2(parts: &mut Parts, fields: usize) -> Result<(), Unsound> {
    let bad = |detail| Err(Unsound { status: StatusCode::BAD_REQUEST, detail });
    if let Some(authority) = parts.uri.authority()
        && let Ok(host) = HeaderValue::try_from(authority.as_str())
    {
        parts.headers.insert(HOST, host);
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let one = (hosts.next(), hosts.next());
    if !matches!(one, (Some(host), None) if is_host(host.as_bytes())) {
        return bad("The request does not name one sound host.");
    }
    if let Some(target) = parts.uri.path_and_query()
        && !is_target(parts.method.as_str().as_bytes(), target.as_str().as_bytes())
    {
        return bad("The path has what no path has, or a broken or NUL percent encoding.");
    }
    if LOOKALIKES.iter().any(|name| parts.headers.contains_key(name)) {
        return bad("A field looks like one that says how long the content is.");
    }
    let cookies = parts.headers.get_all(http::header::COOKIE);
    if cookies.iter().nth(1).is_some() {
        let all: Vec<&[u8]> = cookies.iter().map(HeaderValue::as_bytes).collect();
        if let Ok(value) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
            parts.headers.insert(http::header::COOKIE, value);
        }
    }
    // Of cookies too each was a field on its way here only.
    if parts.headers.len() > fields {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(Unsound { status, detail: "There are too many fields." });
    }
    parts.headers.remove(EXPECT);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        fields.iter().map(field).collect()
    }

    #[test]
    fn what_the_connection_lists_ends_here() {
        let mut headers =
            map(&[("connection", "x-secret, keep-alive"), ("x-secret", "1"), ("keep-alive", "5"), ("accept", "*/*")]);
        assert_eq!(strip_request(&mut headers, Trailers::EndHere), Ok(false));
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn trailers_are_asked_for_where_they_go_on() {
        for (trailers, told) in [(Trailers::GoOn, &[("te", "trailers")][..]), (Trailers::EndHere, &[])] {
            let mut headers = map(&[("te", "gzip, trailers"), ("connection", "te")]);
            assert_eq!(strip_request(&mut headers, trailers), Ok(false));
            assert_eq!(headers, map(told));
        }
    }

    #[test]
    fn websocket_goes_on() {
        let mut headers = map(&[("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "k")]);
        assert_eq!(strip_request(&mut headers, Trailers::EndHere), Ok(true));
        assert_eq!(headers.get("upgrade").unwrap(), "websocket");
        let mut other = map(&[("connection", "Upgrade"), ("upgrade", "h2c")]);
        assert_eq!(strip_request(&mut other, Trailers::EndHere), Ok(false));
        assert!(other.is_empty());
    }

    #[test]
    fn the_client_is_found_from_the_end_and_nobody_can_put_another_before_it() {
        let trusts = |address: IpAddr| address.to_string().starts_with("10.");
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        for (lines, client) in [
            (&[][..], "10.0.0.1"),
            (&["203.0.113.9"][..], "203.0.113.9"),
            (&["x, 203.0.113.9"], "203.0.113.9"),
            (&["198.51.100.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            (&["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
            (&["\u{fc}", "203.0.113.9"], "203.0.113.9"),
            (&["198.51.100.1, unknown, 10.0.0.2"], "10.0.0.2"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["203.0.113.9:4711", "10.0.0.2"], "203.0.113.9"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FOR, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            assert_eq!(far_end(peer, &headers, false, trusts).to_string(), client, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_names_the_client_by_the_same_rule() {
        let trusts = |address: IpAddr| address.to_string().starts_with("10.");
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        for (lines, client) in [
            (&["for=203.0.113.9"][..], "203.0.113.9"),
            (&["For=\"203.0.113.9:4711\";proto=https"], "203.0.113.9"),
            (&["proto=http; for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=\"[2001:db8::1]\""], "2001:db8::1"),
            (&["for=198.51.100.1, for=203.0.113.9, for=10.0.0.2"], "203.0.113.9"),
            (&["for=198.51.100.1", "for=203.0.113.9", "for=10.0.0.2"], "203.0.113.9"),
            (&["for=198.51.100.1, for=unknown, for=10.0.0.2"], "10.0.0.2"),
            (&["for=198.51.100.1, for=_hidden;by=10.0.0.2"], "10.0.0.1"),
            (&["for=198.51.100.1, proto=https"], "10.0.0.1"),
            (&["for=198.51.100.1;for=198.51.100.2"], "10.0.0.1"),
            (&["for=203.0.113.9;host=\"a, for=198.51.100.1\""], "203.0.113.9"),
            (&["for=203.0.113.9;host=\"a\\\", for=198.51.100.1\""], "203.0.113.9"),
            (&["for=\"198.51.100.1, for=203.0.113.9;host=\"a.example\""], "203.0.113.9"),
            (&["for=198.51.100.1;host=\"\\\\, for=203.0.113.9;host=\"a.example\""], "203.0.113.9"),
            (&[""], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED, HeaderValue::from_static(line));
            }
            for standard in [false, true] {
                assert_eq!(far_end(peer, &headers, standard, trusts).to_string(), client, "{lines:?}");
            }
            headers.append(FOR, HeaderValue::from_static("192.0.2.1"));
            assert_eq!(far_end(peer, &headers, true, trusts).to_string(), client, "{lines:?}");
            assert_eq!(far_end(peer, &headers, false, trusts).to_string(), "192.0.2.1", "{lines:?}");
        }
    }

    #[test]
    fn what_earlier_hops_wrote_goes_on_whole() {
        let mut headers = map(&[("x-forwarded-for", "198.51.100.1")]);
        assert_eq!(joined(&headers, &REAL_IP, b"10.0.0.1"), None);
        headers.append(FOR, HeaderValue::from_static("203.0.113.9, 10.0.0.2"));
        let all = joined(&headers, &FOR, b"10.0.0.1").unwrap();
        assert_eq!(all, "198.51.100.1, 203.0.113.9, 10.0.0.2, 10.0.0.1");
    }

    #[test]
    fn a_request_of_http2_names_one_sound_host() {
        for (uri, hosts, told) in [
            ("https://a.example/", &[][..], Some("a.example")),
            ("https://a.example:1/", &["b.example", "c.example"], Some("a.example:1")),
            ("/", &["b.example"], Some("b.example")),
            ("/", &[], None),
            ("/", &["b.example", "c.example"], None),
            ("/", &["a\";for=1.2.3.4"], None),
            ("https://u@a.example/", &[], None),
        ] {
            let mut request = http::Request::builder().uri(uri);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(from_http2(&mut parts, 8).is_ok(), told.is_some(), "{uri} {hosts:?}");
            if let Some(told) = told {
                assert_eq!(parts.headers.get(HOST).unwrap(), told);
            }
        }
    }

    #[test]
    fn a_path_of_http2_is_held_to_what_one_of_http1_is() {
        for (method, uri, sound) in [
            ("GET", "https://a.example/a%20b?c=%", true),
            ("GET", "https://a.example", true),
            ("OPTIONS", "*", true),
            ("GET", "https://a.example/a%00", false),
            ("GET", "https://a.example/a%0", false),
            ("GET", "https://a.example/a%zz", false),
            ("GET", "https://a.example/a\"b", false),
            ("GET", "https://a.example/\u{fc}", false),
        ] {
            let request = http::Request::builder().method(method).uri(uri).header(HOST, "a.example");
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(from_http2(&mut parts, 8).is_ok(), sound, "{method} {uri}");
        }
    }

    #[test]
    fn what_looks_like_a_field_of_the_configuration_ends_here() {
        let mut headers = map(&[("x_plan", "gold"), ("x-plan", "free"), ("x_other", "1")]);
        let own = HeaderName::from_static("x-plan");
        drop_lookalikes(&mut headers, [&own].into_iter());
        assert_eq!(headers, map(&[("x-plan", "free"), ("x_other", "1")]));
    }

    #[test]
    fn fields_of_http2_are_bounded_and_told_apart_as_those_of_http1() {
        let sound = |fields: &[(&'static str, &'static str)]| {
            let (mut parts, ()) = http::Request::builder().uri("https://a.example/").body(()).unwrap().into_parts();
            for &(name, value) in fields {
                parts.headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            from_http2(&mut parts, 3).map_err(|unsound| unsound.status.as_u16())
        };
        assert_eq!(sound(&[("a", "1"), ("a", "2")]), Ok(()), "the host is the third");
        assert_eq!(sound(&[("a", "1"), ("a", "2"), ("b", "3")]), Err(431));
        assert_eq!(sound(&[("a", "1"), ("cookie", "b=1"), ("cookie", "c=2"), ("cookie", "d=3")]), Ok(()));
        for lookalike in ["content_length", "transfer_encoding"] {
            assert_eq!(sound(&[(lookalike, "1")]), Err(400), "{lookalike}");
        }
    }

    #[test]
    fn a_forwarded_element_quotes_what_needs_it() {
        let host = HeaderValue::from_static("a.example:8080");
        let text = element("2001:db8::1".parse().unwrap(), Some(&host), true);
        assert_eq!(text, "for=\"[2001:db8::1]\";host=\"a.example:8080\";proto=https");
        assert_eq!(element("192.0.2.1".parse().unwrap(), None, false), "for=192.0.2.1;proto=http");
    }
}

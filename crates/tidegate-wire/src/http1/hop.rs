//! Which fields go no further than this connection. RFC 9110 §7.6.1.

use super::grammar::{is_token, members};

/// How many options are told apart; a request that lists more is refused by the guard.
const OPTIONS_MAX: usize = 16;

/// What the Connection fields of one message list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a> {
    names: [&'a [u8]; OPTIONS_MAX],
    count: usize,
}

/// A Connection field that lists something else than up to sixteen tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("Connection lists something else than up to {OPTIONS_MAX} tokens")]
pub struct BadOptions;

impl<'a> Options<'a> {
    /// Reads the values of all Connection fields.
    ///
    /// # Errors
    /// [`BadOptions`]; such a message is not forwarded, since what it hides is not known.
    pub fn read(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, BadOptions> {
        let mut options = Self { names: [&[]; OPTIONS_MAX], count: 0 };
        for option in values.into_iter().flat_map(members) {
            if !is_token(option) {
                return Err(BadOptions);
            }
            *options.names.get_mut(options.count).ok_or(BadOptions)? = option;
            options.count += 1;
        }
        Ok(options)
    }

    /// `option` is among them, in any case.
    #[must_use]
    pub fn contains(&self, option: &[u8]) -> bool {
        self.names[..self.count].iter().any(|name| name.eq_ignore_ascii_case(option))
    }

    /// The connection ends behind this message.
    #[must_use]
    pub fn close(&self) -> bool {
        self.contains(b"close")
    }
}

/// What becomes of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forward {
    /// It goes on as it is.
    Keep,
    /// It ends here.
    Drop,
    /// It goes on with this value.
    Replace(&'static str),
}

/// Fields that end at every hop, whether Connection says so or not.
///
/// Transfer-Encoding: the next hop's framing is its own. Proxy-Authorization and its kin: they speak to a proxy.
/// HTTP2-Settings: an upgrade to HTTP/2 is not forwarded. Proxy: gateways turn it into the variable `HTTP_PROXY`.
const ENDS_HERE: [&[u8]; 10] = [
    b"connection",
    b"http2-settings",
    b"keep-alive",
    b"proxy",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-authorization",
    b"proxy-connection",
    b"proxy-features",
    b"transfer-encoding",
];

/// Fields that Connection cannot take away: those for all recipients, and those that others decide by.
///
/// A client that lists `X-Forwarded-For` or `Authorization` wants the next hop to judge by something else.
const STAYS: [&[u8]; 29] = [
    b"accept-encoding",
    b"age",
    b"authorization",
    b"cache-control",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"date",
    b"etag",
    b"expires",
    b"forwarded",
    b"host",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"location",
    b"max-forwards",
    b"origin",
    b"pragma",
    b"range",
    b"set-cookie",
    b"vary",
    b"via",
    b"www-authenticate",
    b"x-real-ip",
];

/// How the fields begin in which proxies tell where a request came from.
const FORWARDED: &[u8] = b"x-forwarded-";

/// Whether Connection may take the field away.
fn may_be_listed(name: &[u8]) -> bool {
    let is_forwarded = name.get(..FORWARDED.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORWARDED));
    !is_forwarded && !is_among(name, &STAYS)
}

fn is_among(name: &[u8], set: &[&[u8]]) -> bool {
    set.iter().any(|member| member.eq_ignore_ascii_case(name))
}

/// What becomes of a field of a request.
///
/// TE keeps `trailers` and nothing else. Upgrade goes on for `WebSocket` only, and only if Connection lists it; the
/// caller then writes `Connection: Upgrade` itself. Expect ends here: this hop answers it.
#[must_use]
pub fn request(name: &[u8], value: &[u8], options: &Options<'_>) -> Forward {
    match name.len() {
        2 if name.eq_ignore_ascii_case(b"te") => {
            // RFC 9110 §10.1.4: a sender of TE lists it in Connection; many do not, and mean it all the same.
            let trailers = members(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
            if trailers { Forward::Replace("trailers") } else { Forward::Drop }
        }
        6 if name.eq_ignore_ascii_case(b"expect") => Forward::Drop,
        7 if name.eq_ignore_ascii_case(b"upgrade") => upgrade(value, options),
        _ if is_lookalike(name) => Forward::Drop,
        _ => any(name, options),
    }
}

/// Whether a gateway may take `name` for a field that ends here or that others decide by: `X_Forwarded_For`.
///
/// Gateways that turn fields into variables (CGI, WSGI, Rack) read an underscore as the hyphen, and which of two
/// fields wins is not known. O(length) for names without an underscore, which are nearly all.
#[must_use]
pub fn is_lookalike(name: &[u8]) -> bool {
    name.contains(&b'_')
        && (name.get(..FORWARDED.len()).is_some_and(|start| reads_as(start, FORWARDED))
            || ENDS_HERE.iter().chain(&STAYS).any(|real| reads_as(name, real)))
}

/// Whether the two are one name where underscores are read as hyphens, in any case.
#[must_use]
pub fn reads_as(name: &[u8], real: &[u8]) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == real.len() && name.iter().zip(real).all(|(&one, &other)| plain(one) == plain(other))
}

/// What becomes of a field of an answer; Upgrade goes on with 101 only.
#[must_use]
pub fn response(status: u16, name: &[u8], value: &[u8], options: &Options<'_>) -> Forward {
    if name.eq_ignore_ascii_case(b"upgrade") {
        return if status == 101 { upgrade(value, options) } else { Forward::Drop };
    }
    any(name, options)
}

/// Whether a request asks for `WebSocket`: the values of its Upgrade fields, and its Connection.
#[must_use]
pub fn asks_for_websocket<'a>(upgrades: impl IntoIterator<Item = &'a [u8]>, options: &Options<'_>) -> bool {
    options.contains(b"upgrade") && upgrades.into_iter().any(lists_websocket)
}

fn lists_websocket(value: &[u8]) -> bool {
    members(value).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

fn upgrade(value: &[u8], options: &Options<'_>) -> Forward {
    if options.contains(b"upgrade") && lists_websocket(value) { Forward::Replace("websocket") } else { Forward::Drop }
}

fn any(name: &[u8], options: &Options<'_>) -> Forward {
    if is_among(name, &ENDS_HERE) || (options.contains(name) && may_be_listed(name)) {
        return Forward::Drop;
    }
    Forward::Keep
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options<'a>(values: &[&'a str]) -> Options<'a> {
        Options::read(values.iter().map(|value| value.as_bytes())).expect("sound options")
    }

    #[test]
    fn listed_fields_end_here_but_not_those_that_others_decide_by() {
        let options = options(&["close, X-Private", "x-forwarded-for,Host , content-length"]);
        assert!(options.close());
        for (name, forward) in [
            ("x-private", Forward::Drop),
            ("X-Other", Forward::Keep),
            ("X-Forwarded-For", Forward::Keep),
            ("Host", Forward::Keep),
            ("Content-Length", Forward::Keep),
            ("Connection", Forward::Drop),
            ("Keep-Alive", Forward::Drop),
            ("Transfer-Encoding", Forward::Drop),
            ("Proxy", Forward::Drop),
        ] {
            assert_eq!(request(name.as_bytes(), b"x", &options), forward, "{name}");
        }
    }

    #[test]
    fn names_that_a_gateway_reads_as_others_end_here() {
        let none = options(&[]);
        for (name, forward) in [
            ("X_Forwarded_For", Forward::Drop),
            ("x-forwarded_for", Forward::Drop),
            ("X_Forwarded_Anything", Forward::Drop),
            ("x_real-ip", Forward::Drop),
            ("Content_Length", Forward::Drop),
            ("transfer_encoding", Forward::Drop),
            ("Proxy_Authorization", Forward::Drop),
            ("keep_alive", Forward::Drop),
            ("Content_Type", Forward::Drop),
            ("X-Forwarded-For", Forward::Keep),
            ("X_Custom", Forward::Keep),
            ("x_forwarded", Forward::Keep),
            ("_", Forward::Keep),
        ] {
            assert_eq!(request(name.as_bytes(), b"x", &none), forward, "{name}");
        }
        assert!(reads_as(b"X_Plan", b"x-plan") && !reads_as(b"X_Plan", b"x-plan2"));
    }

    #[test]
    fn te_keeps_trailers_only() {
        let none = options(&[]);
        assert_eq!(request(b"TE", b"gzip, trailers;q=0", &none), Forward::Drop);
        assert_eq!(request(b"TE", b"gzip, Trailers", &none), Forward::Replace("trailers"));
        assert_eq!(request(b"Expect", b"100-continue", &none), Forward::Drop);
    }

    #[test]
    fn upgrades_go_on_for_websocket_that_connection_lists() {
        let (listed, not) = (options(&["Upgrade"]), options(&["keep-alive"]));
        assert_eq!(request(b"Upgrade", b"h2c, WebSocket", &listed), Forward::Replace("websocket"));
        assert_eq!(request(b"Upgrade", b"websocket", &not), Forward::Drop);
        assert_eq!(request(b"Upgrade", b"h2c", &listed), Forward::Drop);
        assert_eq!(response(101, b"upgrade", b"websocket", &listed), Forward::Replace("websocket"));
        assert_eq!(response(200, b"upgrade", b"websocket", &listed), Forward::Drop);
        assert!(asks_for_websocket([&b"websocket"[..]], &listed));
        assert!(!asks_for_websocket([&b"websocket"[..]], &not));
    }

    #[test]
    fn connection_lists_few_tokens_or_is_refused() {
        assert_eq!(Options::read([&b"close;"[..]]), Err(BadOptions));
        let many = "a,".repeat(OPTIONS_MAX + 1);
        assert_eq!(Options::read([many.as_bytes()]), Err(BadOptions));
        assert!(Options::read([&b",, ,"[..]]).is_ok_and(|options| !options.contains(b"")));
    }
}

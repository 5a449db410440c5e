//! Who may ask an admin API what.
//!
//! Whoever reaches the loopback interface may read. A browser on the same machine reaches it too, and takes two attacks
//! with it: a foreign page that sends us requests, which its Origin gives away, and a page that has its own name
//! resolve to 127.0.0.1, which its Host gives away. Writes need the token in any case.
//!
//! nsqd's HTTP API has a [`WriteGuard`] instead: its clients send no token and no Origin, and its reads are open.
//!
//! Here is only the decision, on texts. The middleware of feature `http` asks it for HTTP servers.

use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;

/// The secret that lets its holder write.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// This secret, which is not empty.
    ///
    /// # Panics
    /// If it is empty: nobody could tell it from none.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        let secret = secret.into();
        assert!(!secret.is_empty(), "an empty token is no token");
        Self(secret)
    }

    /// Whether `authorization` is `Bearer` and the token.
    fn is_in(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|value| value.split_once(' '));
        given.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case("bearer") && self.is(given.trim()))
    }

    /// Whether `given` is it; takes as long for a near miss as for any other.
    fn is(&self, given: &str) -> bool {
        let (given, wanted) = (given.as_bytes(), self.0.as_bytes());
        let differences = given.iter().zip(wanted).fold(0, |seen, (a, b)| black_box(seen | (a ^ b)));
        given.len() == wanted.len() && differences == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// From where an API can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// From this machine: requests must call us by a name of loopback, and reads are open.
    Loopback,
    /// Through a unix socket, whose file says who may: as loopback, by any name.
    Socket,
    /// From the network, because somebody said so: any name, and reads need the token too.
    Network,
}

impl Reach {
    /// From where the interface named `host` can be reached.
    #[must_use]
    pub fn of_host(host: &str) -> Self {
        if is_loopback_name(host) { Self::Loopback } else { Self::Network }
    }
}

/// What requests are held against.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Without one, nobody writes.
    pub token: Option<Token>,
    /// From where the API can be reached.
    pub reach: Reach,
}

/// What a request says about where it comes from. A header that is no text is `Some("?")`.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Whether it changes nothing: GET and HEAD.
    pub reads: bool,
    /// Without a query.
    pub path: &'a str,
    /// The header `Host`.
    pub host: Option<&'a str>,
    /// The header `Origin`.
    pub origin: Option<&'a str>,
    /// The header `Authorization`.
    pub authorization: Option<&'a str>,
}

/// Why a request is not answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denied {
    /// 421: the name is none of ours.
    #[error("Host is `{host}`; use localhost or 127.0.0.1, or bind the API to another address")]
    UnknownHost {
        /// As sent.
        host: String,
    },
    /// 403: a page of another site asks.
    #[error("Origin is `{origin}`; pages of other sites may not use this API")]
    ForeignOrigin {
        /// As sent.
        origin: String,
    },
    /// 401: the token is missing or wrong.
    #[error("send `Authorization: Bearer <token>` with the token that it was started with")]
    NoToken,
    /// 401: there is no token, so nobody can have it.
    #[error("it was started without a token, so nothing can be changed; start it with one")]
    NeverAllowed,
}

impl Denied {
    /// The status of an HTTP answer that says so.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::UnknownHost { .. } => 421,
            Self::ForeignOrigin { .. } => 403,
            Self::NoToken | Self::NeverAllowed => 401,
        }
    }

    /// A word for programs, and a title that is always the same for it.
    #[must_use]
    pub const fn kind(&self) -> (&'static str, &'static str) {
        match self {
            Self::UnknownHost { .. } => ("unknown-host", "Unknown host"),
            Self::ForeignOrigin { .. } => ("foreign-origin", "Foreign origin"),
            Self::NoToken | Self::NeverAllowed => ("token", "Token missing or wrong"),
        }
    }
}

/// Paths that a supervisor without a token may ask, wherever the API listens.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

impl Guard {
    /// Whether `asked` is answered.
    pub fn check(&self, asked: Asked<'_>) -> Result<(), Denied> {
        let host = asked.host.unwrap_or_default();
        if self.reach == Reach::Loopback && !is_loopback(host) {
            return Err(Denied::UnknownHost { host: host.to_owned() });
        }
        if let Some(origin) = asked.origin.filter(|origin| !is_own(origin, host)) {
            return Err(Denied::ForeignOrigin { origin: origin.to_owned() });
        }
        let open = asked.reads && (self.reach != Reach::Network || PROBES.contains(&asked.path));
        if open || self.is_authorized(asked.authorization) {
            return Ok(());
        }
        Err(if self.token.is_some() { Denied::NoToken } else { Denied::NeverAllowed })
    }

    fn is_authorized(&self, authorization: Option<&str>) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_in(authorization))
    }
}

/// By which names an API may be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// By any: whoever can reach it may write.
    Any,
    /// By these, and by every IP address and `localhost`: a page that has its name resolve to us sends that name.
    Named(Vec<String>),
}

impl Hosts {
    /// Whether `host`, with or without a port, is one of them. Only programs leave it out, browsers never do.
    fn know(&self, host: Option<&str>) -> bool {
        let (Self::Named(names), Some(host)) = (self, host) else { return true };
        let name = name_of(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok()
            || names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Which pages may use an API, beside its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origins {
    /// Those of any site.
    Any,
    /// Those of these, as browsers write them: `https://tools.example`.
    Named(Vec<String>),
}

/// What writes are held against where reads are open.
#[derive(Clone, Debug)]
pub struct WriteGuard {
    /// Without one, none is asked for.
    pub token: Option<Token>,
    /// Names that writes may call it by.
    pub hosts: Hosts,
    /// Pages that may write.
    pub origins: Origins,
}

impl WriteGuard {
    /// Whether `asked` is answered.
    pub fn check(&self, asked: Asked<'_>) -> Result<(), Denied> {
        if asked.reads {
            return Ok(());
        }
        if !self.hosts.know(asked.host) {
            return Err(Denied::UnknownHost { host: asked.host.unwrap_or_default().to_owned() });
        }
        if let (Origins::Named(named), Some(origin)) = (&self.origins, asked.origin) {
            let known = named.iter().any(|known| known.eq_ignore_ascii_case(origin));
            if !known && !is_own(origin, asked.host.unwrap_or_default()) {
                return Err(Denied::ForeignOrigin { origin: origin.to_owned() });
            }
        }
        match &self.token {
            Some(token) if !token.is_in(asked.authorization) => Err(Denied::NoToken),
            _ => Ok(()),
        }
    }
}

/// Whether `host`, with or without a port, can only be this machine.
fn is_loopback(host: &str) -> bool {
    is_loopback_name(name_of(host))
}

/// `host` without its port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a page of `origin` came from `host` itself.
fn is_own(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Asked<'static> =
        Asked { reads: true, path: "/x", host: Some("localhost"), origin: None, authorization: None };

    fn check(reach: Reach, token: Option<&str>, asked: Asked<'_>) -> u16 {
        let guard = Guard { token: token.map(Token::new), reach };
        guard.check(asked).map_or_else(|denied| denied.status(), |()| 200)
    }

    #[test]
    fn loopback_is_read_by_its_own_names_only() {
        let by = |reach, host| check(reach, None, Asked { host: Some(host), ..READ });
        for host in ["localhost", "LOCALHOST:7070", "127.0.0.1:1", "127.9.9.9", "[::1]:7070", "[::1]"] {
            assert_eq!(by(Reach::Loopback, host), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost:x"]
        {
            assert_eq!(by(Reach::Loopback, host), 421, "{host}");
        }
        assert_eq!(check(Reach::Loopback, None, Asked { path: "/healthz", host: None, ..READ }), 421);
        assert_eq!(by(Reach::Socket, "anything"), 200);
    }

    #[test]
    fn foreign_pages_are_refused_even_with_the_token() {
        let host = Some("127.0.0.1:7070");
        let from = |origin| {
            let asked = Asked { host, origin: Some(origin), authorization: Some("Bearer s3cret"), ..READ };
            check(Reach::Loopback, Some("s3cret"), asked)
        };
        assert_eq!(from("http://127.0.0.1:7070"), 200);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:80", "file://"] {
            assert_eq!(from(origin), 403, "{origin}");
        }
    }

    #[test]
    fn writes_need_the_token() {
        let write =
            |token, given| check(Reach::Loopback, token, Asked { reads: false, authorization: Some(given), ..READ });
        assert_eq!(write(Some("s3cret"), "Bearer s3cret"), 200);
        assert_eq!(write(Some("s3cret"), "bearer  s3cret"), 200);
        for given in ["Bearer s3cre", "Bearer s3crets", "Bearer S3cret", "Bearer ", "Basic s3cret", "s3cret", ""] {
            assert_eq!(write(Some("s3cret"), given), 401, "{given}");
        }
        assert_eq!(write(None, "Bearer "), 401);
    }

    #[test]
    fn from_the_network_all_but_the_probes_need_the_token() {
        let read = |path, authorization| {
            check(Reach::Network, Some("s"), Asked { path, host: Some("a.example"), authorization, ..READ })
        };
        assert_eq!(read("/api/v1/snapshot", None), 401);
        assert_eq!(read("/api/v1/snapshot", Some("Bearer s")), 200);
        assert_eq!((read("/healthz", None), read("/readyz", None), read("/metrics", None)), (200, 200, 401));
    }

    const WRITE: Asked<'static> = Asked { reads: false, path: "/pub", ..READ };

    #[test]
    fn writes_by_an_unknown_name_are_refused_and_reads_are_open() {
        let hosts = Hosts::Named(vec!["nsq.example".to_owned()]);
        let guard = WriteGuard { token: None, hosts, origins: Origins::Named(Vec::new()) };
        for host in ["localhost:4151", "127.0.0.1", "10.1.2.3:4151", "[2001:db8::1]:4151", "[::1]", "NSQ.example.:4151"]
        {
            assert_eq!(guard.check(Asked { host: Some(host), ..WRITE }), Ok(()), "{host}");
        }
        for host in ["evil.example:4151", "nsq.example.evil", "127.0.0.1.evil.example", "", "nsq.example:x", "?"] {
            let denied = Denied::UnknownHost { host: host.to_owned() };
            assert_eq!(guard.check(Asked { host: Some(host), ..WRITE }), Err(denied), "{host}");
            assert_eq!(guard.check(Asked { host: Some(host), ..READ }), Ok(()));
        }
        assert_eq!(guard.check(Asked { host: None, ..WRITE }), Ok(()), "a program of HTTP/1.0");
        let any = WriteGuard { hosts: Hosts::Any, ..guard };
        assert_eq!(any.check(Asked { host: Some("evil.example"), ..WRITE }), Ok(()));
    }

    #[test]
    fn writes_of_foreign_pages_are_refused() {
        let origins = Origins::Named(vec!["https://tools.example".to_owned()]);
        let guard = WriteGuard { token: None, hosts: Hosts::Any, origins };
        let from = |guard: &WriteGuard, origin| {
            guard.check(Asked { host: Some("10.0.0.1:4151"), origin: Some(origin), ..WRITE }).is_ok()
        };
        assert!(from(&guard, "http://10.0.0.1:4151") && from(&guard, "https://tools.example"));
        for origin in ["http://evil.example", "null", "http://10.0.0.1", "http://tools.example", ""] {
            assert!(!from(&guard, origin), "{origin}");
        }
        assert!(from(&WriteGuard { origins: Origins::Any, ..guard }, "http://evil.example"));
    }

    #[test]
    fn a_token_is_asked_for_if_there_is_one() {
        let token = Some(Token::new("s3cret"));
        let guard = WriteGuard { token, hosts: Hosts::Any, origins: Origins::Any };
        assert_eq!(guard.check(WRITE), Err(Denied::NoToken));
        assert_eq!(guard.check(Asked { authorization: Some("Bearer s3cre"), ..WRITE }), Err(Denied::NoToken));
        assert_eq!(guard.check(Asked { authorization: Some("Bearer s3cret"), ..WRITE }), Ok(()));
        assert_eq!(guard.check(READ), Ok(()));
    }

    #[test]
    fn the_interface_says_from_where() {
        assert_eq!(["127.0.0.1", "localhost", "::1"].map(Reach::of_host), [Reach::Loopback; 3]);
        assert_eq!(["", "0.0.0.0", "::", "10.0.0.1"].map(Reach::of_host), [Reach::Network; 4]);
    }
}

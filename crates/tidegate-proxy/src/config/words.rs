//! The words and small values of `[proxy]`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

pub use crate::machine::neighbours::Mode;

use tidegate_runtime::config::choice;
use tidegate_runtime::config::units::{Bytes, Span};

use crate::machine::bandwidth::Bandwidth;
use crate::machine::rate_limit::Prefix;
use crate::machine::upstream::names;

choice! {
    /// The tenant of hosts that the configuration does not list.
    Unknown {
        /// They share one tenant: invented names win nothing.
        Together = "together",
        /// Each host is a tenant.
        Apart = "apart",
    }
}

choice! {
    /// Which headers tell upstreams where a request came from.
    Forwarded {
        /// `X-Forwarded-For`, `-Proto`, `-Host`: what most services read.
        XForwarded = "x-forwarded",
        /// `Forwarded` (RFC 7239).
        Standard = "forwarded",
        /// All of them.
        Both = "both",
        /// None; those of clients are removed all the same, unless they are trusted.
        Off = "off",
    }
}

choice! {
    /// What a listener does with the PROXY protocol.
    ProxyProtocolIn {
        /// It is not spoken: its header is an error, as any other bytes before TLS or HTTP.
        Off = "off",
        /// Trusted peers may send the header.
        Accept = "accept",
        /// Trusted peers must send the header, and only they may connect.
        Require = "require",
    }
}

choice! {
    /// Which header of the PROXY protocol stands before a connection to an upstream.
    ProxyProtocolOut {
        /// None.
        Off = "off",
        /// The text form.
        V1 = "v1",
        /// The binary form, with the SNI name as authority.
        V2 = "v2",
    }
}

choice! {
    /// How a server of an upstream is chosen.
    Balance {
        /// Of two at random, the one with fewer requests in flight: near the best choice, without asking all.
        LeastLoaded = "least_loaded",
        /// One after another.
        RoundRobin = "round_robin",
        /// The one that has the key of the request, while it is not overloaded.
        Hash = "hash",
    }
}

choice! {
    /// What is spoken with an upstream.
    UpstreamProtocol {
        /// HTTP/1.1, one request at a time on each of many connections that are kept.
        Http1 = "http1",
        /// HTTP/2 without TLS, known beforehand to be spoken.
        H2c = "h2c",
        /// HTTP/2 over TLS, agreed on by ALPN.
        Http2 = "http2",
    }
}

impl UpstreamProtocol {
    /// Whether requests share connections as streams of HTTP/2.
    #[must_use]
    pub const fn is_http2(self) -> bool {
        matches!(self, Self::H2c | Self::Http2)
    }
}

choice! {
    /// A version of TLS.
    TlsVersion {
        /// Of 2008, with the suites that are not broken.
        Tls12 = "1.2",
        /// Of 2018.
        Tls13 = "1.3",
    }
}

choice! {
    /// How a connection ends whose tenant is refused at its `ClientHello`.
    RefuseHello {
        /// With a TCP reset: the least work, and nothing to send.
        Reset = "reset",
        /// With a fatal TLS alert, which clients report more clearly.
        Alert = "alert",
    }
}

choice! {
    /// Which headers tell clients about their share.
    RateLimitHeaders {
        /// `RateLimit` and `RateLimit-Policy` of the IETF's draft 10.
        Draft = "draft",
        /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
        Legacy = "x",
        /// All of them.
        Both = "both",
        /// None.
        Off = "off",
    }
}

choice! {
    /// The form of the access log.
    LogFormat {
        /// An object in each line, with times, tenant and what was decided.
        Json = "json",
        /// The Common Log Format.
        Common = "common",
    }
}

choice! {
    /// What has a line in the access log in any case.
    LogAlways {
        /// Answers of 500 and above that are no refusals.
        ServerErrors = "5xx",
        /// What a limit refused, or had no room.
        Refused = "refused",
        /// Requests whose `traceparent` has the sampled flag.
        Traced = "traced",
    }
}

choice! {
    /// What the proxy does with W3C Trace Context.
    Trace {
        /// Nothing: `traceparent` and `tracestate` pass as they are.
        Pass = "pass",
        /// It is a span of each trace, and begins one where there is none.
        Add = "add",
    }
}

/// What tells tenants apart.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TenantBy {
    /// The name that the client asks for in its `ClientHello`, and of its requests the host, which must be a name of the same
    /// certificate or tenant. A tenant is known, and can be refused, before any cryptography.
    #[default]
    Sni,
    /// The same: it says what counts without TLS.
    Host,
    /// The route of a request.
    Route,
    /// A header of a request, by its name in lower case; requests without it, or from others than those who may send it, are
    /// told apart by host.
    Header(String),
}

impl fmt::Display for TenantBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sni => f.write_str("sni"),
            Self::Host => f.write_str("host"),
            Self::Route => f.write_str("route"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl<'de> Deserialize<'de> for TenantBy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = TenantBy;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"sni\", \"host\", \"route\" or \"header:\" with a header's name")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TenantBy, E> {
                let is_token = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
                match (text, text.strip_prefix("header:")) {
                    ("sni", _) => Ok(TenantBy::Sni),
                    ("host", _) => Ok(TenantBy::Host),
                    ("route", _) => Ok(TenantBy::Route),
                    (_, Some(name)) if !name.is_empty() && name.bytes().all(is_token) => {
                        Ok(TenantBy::Header(name.to_ascii_lowercase()))
                    }
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_str(Reader)
    }
}

/// What of a request decides which server it meets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HashBy {
    /// The client's address.
    Source,
    /// The host that it asks for.
    Host,
    /// The path that the upstream gets, without the query.
    Path,
    /// A header that the upstream gets.
    Header(http::HeaderName),
}

impl fmt::Display for HashBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("source"),
            Self::Host => f.write_str("host"),
            Self::Path => f.write_str("path"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl<'de> Deserialize<'de> for HashBy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = HashBy;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"source\", \"host\", \"path\" or \"header:\" with a header's name")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HashBy, E> {
                let header = || text.strip_prefix("header:").and_then(|name| name.parse().ok());
                match text {
                    "source" => Ok(HashBy::Source),
                    "host" => Ok(HashBy::Host),
                    "path" => Ok(HashBy::Path),
                    _ => header().map(HashBy::Header).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_str(Reader)
    }
}

/// When the names of servers are asked for again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Resolve {
    /// When their records end.
    #[default]
    Ttl,
    /// So often, whatever their records say.
    Every(Duration),
    /// Not; the system is asked when there is no address, or none that answers.
    Off,
}

impl fmt::Display for Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ttl => f.write_str("ttl"),
            Self::Every(span) => write!(f, "{span:?}"),
            Self::Off => f.write_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for Resolve {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Resolve;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"ttl\", \"off\" or a duration from 1s to 5m such as \"30s\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Resolve, E> {
                let bounds = names::AGAIN_MIN..=names::AGAIN_MAX;
                match (text, text.parse()) {
                    ("ttl", _) => Ok(Resolve::Ttl),
                    ("off", _) => Ok(Resolve::Off),
                    (_, Ok(Span(span))) if bounds.contains(&span) => Ok(Resolve::Every(span)),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_str(Reader)
    }
}

/// Statuses of a server that is well: one, or from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statuses {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Statuses {
    /// Those of answers; others may come before one.
    const ALL: std::ops::RangeInclusive<u16> = 200..=599;

    fn new(first: u16, last: u16) -> Option<Self> {
        let fits = Self::ALL.contains(&first) && Self::ALL.contains(&last) && first <= last;
        fits.then_some(Self { first, last })
    }
}

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Statuses;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status from 200 to 599 such as 204, or a range of them such as \"200-399\"")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Statuses, E> {
                let status = u16::try_from(number).ok();
                let one = status.and_then(|status| Statuses::new(status, status));
                one.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Statuses, E> {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let both = first.parse().ok().zip(last.parse().ok());
                let range = both.and_then(|(first, last)| Statuses::new(first, last));
                range.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// A range of addresses, such as `10.0.0.0/8`, `2001:db8::/32` or `192.0.2.7`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    network: IpAddr,
    bits: u8,
}

/// A text that is no range of addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is not {accepted}", accepted = Cidr::ACCEPTED)]
pub struct NotACidr {
    /// The text.
    pub found: String,
}

impl Cidr {
    const ACCEPTED: &'static str = "an address such as \"192.0.2.7\" or a range such as \"10.0.0.0/8\"";

    /// Whether `address` is in it. IPv4 addresses in their IPv6 form count as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }

    /// The range as the limiters want it.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        Prefix::new(self.network, self.bits).expect("no range has more bits than its addresses")
    }

    /// Addresses of this machine.
    #[must_use]
    pub const fn loopback() -> [Self; 2] {
        [
            Self { network: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), bits: 8 },
            Self { network: IpAddr::V6(Ipv6Addr::LOCALHOST), bits: 128 },
        ]
    }
}

impl FromStr for Cidr {
    type Err = NotACidr;

    fn from_str(text: &str) -> Result<Self, NotACidr> {
        let wrong = || NotACidr { found: text.to_owned() };
        let (network, bits) = text.split_once('/').map_or((text, None), |(network, bits)| (network, Some(bits)));
        let network: IpAddr = network.parse().map_err(|_| wrong())?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) if bits.bytes().all(|c| c.is_ascii_digit()) => bits.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
            None => most,
        };
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { network, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Cidr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Cidr::ACCEPTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cidr, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        from.deserialize_str(Reader)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Bytes per second, such as `100MB/s`; at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRate(pub u64);

impl ByteRate {
    pub(super) const ACCEPTED: &'static str = "bytes per second such as \"100MB/s\" or \"512KiB/s\"";

    /// What `text` says; `None` if it is no such rate.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let Bytes(bytes) = text.trim().strip_suffix("/s")?.parse().ok()?;
        (1..=Bandwidth::RATE_MAX).contains(&bytes).then_some(Self(bytes))
    }
}

impl<'de> Deserialize<'de> for ByteRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = ByteRate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ByteRate::ACCEPTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteRate, E> {
                ByteRate::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        // A bare number says neither bytes nor seconds.
        from.deserialize_any(Reader)
    }
}

/// How much of a resource there is, as written.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) enum CapacityText {
    /// It is left out.
    #[default]
    Default,
    Text(String),
    Number(f64),
}

impl<'de> Deserialize<'de> for CapacityText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = CapacityText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"learnt\", \"unlimited\", a rate such as \"2560/s\", or an amount such as 10000 or \"512MiB\"",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<CapacityText, E> {
                Ok(CapacityText::Text(text.to_owned()))
            }
            #[expect(clippy::cast_precision_loss, reason = "no capacity needs more than 53 bits")]
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<CapacityText, E> {
                Ok(CapacityText::Number(number as f64))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<CapacityText, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<CapacityText, E> {
                if !(number.is_finite() && number > 0.0) {
                    return Err(E::invalid_value(Unexpected::Float(number), &self));
                }
                Ok(CapacityText::Number(number))
            }
        }
        from.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_their_addresses_and_no_others() {
        let holds = |range: &str, address: &str| range.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("0.0.0.0/0", "203.0.113.9") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1") && holds("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!holds("2001:db8::/33", "2001:db8:8000::1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"), "IPv4 in IPv6");
    }

    #[test]
    fn bandwidth_is_bytes_per_second() {
        for (text, bytes) in [("100MB/s", 100_000_000), ("1 KiB/s", 1_024), ("7/s", 7)] {
            assert_eq!(ByteRate::parse(text), Some(ByteRate(bytes)), "{text}");
        }
        for text in ["", "100MB", "0/s", "100MB/m", "100Mbit/s", "-1/s", "2000TB/s"] {
            assert_eq!(ByteRate::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_range_is_none() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/+8", "a", "10.0.0.0/8/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn tenants_are_told_apart_by_what_the_file_says() {
        let by = |text: &str| serde_json::from_value::<TenantBy>(text.into());
        assert_eq!(by("sni").unwrap(), TenantBy::Sni);
        assert_eq!(by("header:X-Customer").unwrap(), TenantBy::Header("x-customer".to_owned()));
        for text in ["", "header:", "header:a b", "cookie"] {
            assert!(by(text).unwrap_err().to_string().contains("expected \"sni\""), "{text}");
        }
    }
}

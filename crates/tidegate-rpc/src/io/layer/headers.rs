//! What travels in headers and trailers: an ask with the request, a grant with the answer.
//!
//! | header | on | value |
//! |---|---|---|
//! | `tidegate-client` | requests | the client's number, 16 hexadecimal digits |
//! | `tidegate-ask` | requests | `d=3,x,c,p=128,t=7,b=1500,r=80` |
//! | `tidegate-grant` | answers | `w=4,l=17,t=20000,s=812,i=5` |
//! | `tidegate-shed` | answers | why the call was shed: a word of [`reason_word`]. Its handler never ran |
//! | `tidegate-shed-at` | answers | `client` or `server` |
//!
//! An ask: `d` demand, `x` exact, `c` credited, `p` priority, `t` tenant, `b` budget in µs, `r` round trip in µs,
//! `k` the chance with which the client let the call through in 1/65536, if that is not what this server told it. A
//! grant: `w` window, `l` level, `t` lease in µs, `s` the time that the call was at the server in µs, `i` the server's number.
//! Parts in any order, missing parts are zero (the priority: [`Priority::DEFAULT`]), unknown parts are skipped, and a value that is no
//! number voids the whole header. What is longer than [`MAX_LEN`] bytes is not read.
//!
//! The grammar is the book's page `reference/rpc-protocol.md`; its cases are `vectors/rpc/headers.json`, which the Go
//! package is held to as well.

use core::fmt::Write as _;
use core::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::machine::{Ask, Grant, Priority, ShedReason, Tenant};

/// Names the client whose session a request belongs to.
pub const CLIENT: HeaderName = HeaderName::from_static("tidegate-client");
/// Carries an [`Ask`].
pub const ASK: HeaderName = HeaderName::from_static("tidegate-ask");
/// Carries a [`Grant`], as a header or a trailer.
pub const GRANT: HeaderName = HeaderName::from_static("tidegate-grant");
/// Marks an answer whose handler never ran: the call is safe to send again.
pub const SHED: HeaderName = HeaderName::from_static("tidegate-shed");
/// Where it was shed.
pub const SHED_AT: HeaderName = HeaderName::from_static("tidegate-shed-at");
/// How often a gRPC call was sent before.
pub(super) const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");
/// The deadline of a gRPC call, as time left.
pub(super) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The target of a request that only tells a demand, in its `tidegate-ask`. The layer answers it itself, with status 204,
/// when there is a grant for the client or after [`DEMAND_PATIENCE`].
pub const DEMAND_PATH: &str = "/tidegate.v1.Demand/Tell";
/// How long a demand waits for a grant before it is answered without one.
pub const DEMAND_PATIENCE: Duration = Duration::from_secs(1);

/// The longest value that is read, in bytes: 7 parts of at most 13 bytes fit.
pub const MAX_LEN: usize = 128;

/// The longest time that is read, in microseconds: 35 years. A longer one is taken for it.
const MICROS_MAX: u64 = 1 << 50;

/// A grant as it was read from an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrantHeader {
    /// The permission.
    pub grant: Grant,
    /// How long the call was at the server.
    pub server_time: Duration,
    /// The number of the server among those that may answer in each other's place; 0 if it gave itself none.
    pub instance: u64,
}

/// The value of `tidegate-ask`.
pub(super) fn write_ask(ask: &Ask) -> HeaderValue {
    let mut text = Text::default();
    text.number("d", u64::from(ask.demand));
    text.flag("x", ask.exact);
    text.flag("c", ask.credited);
    if ask.priority != Priority::DEFAULT {
        text.number("p", u64::from(ask.priority.0));
    }
    if ask.tenant != Tenant::default() {
        text.number("t", u64::from(ask.tenant.0));
    }
    if let Some(budget) = ask.budget {
        text.number("b", micros(budget));
    }
    if !ask.round_trip.is_zero() {
        text.number("r", micros(ask.round_trip));
    }
    if ask.chance != 0 {
        text.number("k", ask.chance.into());
    }
    text.into_value()
}

/// The ask of a request; `None` if it has none or a broken one.
pub(super) fn read_ask(headers: &HeaderMap) -> Option<Ask> {
    let mut ask = Ask { aware: true, ..Ask::default() };
    for part in parts(headers.get(ASK)?)? {
        match part? {
            ("d", value) => ask.demand = value.saturated(),
            ("x", _) => ask.exact = true,
            ("c", _) => ask.credited = true,
            ("p", value) => ask.priority = Priority(u8::try_from(value.0).unwrap_or(u8::MAX)),
            ("t", value) => ask.tenant = Tenant(value.saturated()),
            ("b", value) => ask.budget = Some(value.time()),
            ("r", value) => ask.round_trip = value.time(),
            ("k", value) => ask.chance = value.saturated(),
            _ => {}
        }
    }
    Some(ask)
}

/// The value of `tidegate-grant`.
pub(super) fn write_grant(header: &GrantHeader) -> HeaderValue {
    let mut text = Text::default();
    text.number("w", u64::from(header.grant.window));
    text.number("l", u64::from(header.grant.level));
    if !header.grant.lease.is_zero() {
        // At least 1: a lease of 0 µs would mean "until the next grant".
        text.number("t", micros(header.grant.lease).max(1));
    }
    text.number("s", micros(header.server_time));
    if header.instance != 0 {
        text.number("i", header.instance);
    }
    text.into_value()
}

/// The grant of an answer; `None` if it has none or a broken one.
pub(super) fn read_grant(headers: &HeaderMap) -> Option<GrantHeader> {
    let mut header = GrantHeader::default();
    for part in parts(headers.get(GRANT)?)? {
        match part? {
            ("w", value) => header.grant.window = value.saturated(),
            ("l", value) => header.grant.level = value.saturated(),
            ("t", value) => header.grant.lease = value.time(),
            ("s", value) => header.server_time = value.time(),
            ("i", value) => header.instance = value.0,
            _ => {}
        }
    }
    Some(header)
}

/// The value of `tidegate-client`.
pub(super) fn write_client(client: u64) -> HeaderValue {
    HeaderValue::try_from(format!("{client:016x}")).expect("hexadecimal digits")
}

/// The client that a request names; `None` unless it is 1..=16 hexadecimal digits.
pub(super) fn read_client(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(CLIENT)?.to_str().ok()?;
    let digits = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

/// The time that a gRPC caller leaves: at most 8 digits and a unit, as gRPC's HTTP/2 mapping says.
pub(super) fn read_grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_hours(number)),
        "M" => Some(Duration::from_mins(number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// When a gRPC server wants a call back, from the value of `grpc-retry-pushback-ms`; `None` is never, which gRPC says with a
/// negative number, or with what is none of at most 31 bits.
pub(super) fn read_pushback(value: &HeaderValue) -> Option<Duration> {
    seconds_or_ms(value).map(|ms| Duration::from_millis(ms.into()))
}

/// The same of `Retry-After`. Its other form, a date, is never.
pub(super) fn read_retry_after(value: &HeaderValue) -> Option<Duration> {
    seconds_or_ms(value).map(|seconds| Duration::from_secs(seconds.into()))
}

fn seconds_or_ms(value: &HeaderValue) -> Option<u32> {
    let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|number| *number <= u32::MAX / 2)
}

/// The value of `grpc-timeout`: in microseconds, or in the next unit of which 8 digits are enough.
pub(super) fn write_grpc_timeout(left: Duration) -> HeaderValue {
    const DIGITS: u128 = 99_999_999;
    let text = if left.as_micros() <= DIGITS {
        format!("{}u", left.as_micros())
    } else if left.as_millis() <= DIGITS {
        format!("{}m", left.as_millis())
    } else {
        format!("{}S", u128::from(left.as_secs()).min(DIGITS))
    };
    let mut value = HeaderValue::try_from(text).expect("digits and a letter");
    value.set_sensitive(true);
    value
}

/// The reasons and their words.
const REASONS: [(ShedReason, &str); 9] = [
    (ShedReason::NoCredit, "no_credit"),
    (ShedReason::Expired, "expired"),
    (ShedReason::ClientFull, "client_full"),
    (ShedReason::Delay, "delay"),
    (ShedReason::Deadline, "deadline"),
    (ShedReason::Priority, "priority"),
    (ShedReason::Share, "share"),
    (ShedReason::ServerFull, "server_full"),
    (ShedReason::Lost, "lost"),
];

/// The word for a reason in `tidegate-shed`.
#[must_use]
pub fn reason_word(reason: ShedReason) -> &'static str {
    REASONS.iter().find(|(known, _)| *known == reason).map_or("other", |(_, word)| word)
}

/// The reason that an answer names; `None` if it was not shed, or if the header is empty. A word of a later version reads
/// as [`ShedReason::Delay`].
#[must_use]
pub fn shed_reason(headers: &HeaderMap) -> Option<ShedReason> {
    let word = headers.get(SHED).filter(|word| !word.is_empty())?;
    Some(REASONS.iter().find(|(_, known)| word == known).map_or(ShedReason::Delay, |(reason, _)| *reason))
}

/// A whole number of a header.
struct Number(u64);

impl Number {
    fn saturated(&self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// As microseconds.
    fn time(&self) -> Duration {
        Duration::from_micros(self.0.min(MICROS_MAX))
    }
}

/// The parts of a value, if it has any; an item is `None` if it is broken, a part without `=` counts as 1.
fn parts(value: &HeaderValue) -> Option<impl Iterator<Item = Option<(&str, Number)>>> {
    let text = value.to_str().ok().filter(|text| text.len() <= MAX_LEN)?;
    // Else an empty grant would be one of nothing, until the next.
    if text.bytes().all(|byte| matches!(byte, b',' | b' ' | b'\t')) {
        return None;
    }
    Some(text.split(',').map(|part| {
        let (name, number) = part.trim().split_once('=').unwrap_or((part.trim(), "1"));
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| Some((name, Number(number.parse().ok()?))))?
    }))
}

/// A value that is written without allocating until it is whole.
#[derive(Default)]
struct Text {
    bytes: String,
}

impl Text {
    fn separate(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.reserve(48);
        } else {
            self.bytes.push(',');
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.separate();
        write!(self.bytes, "{name}={value}").expect("writing to a string does not fail");
    }

    fn flag(&mut self, name: &str, set: bool) {
        if set {
            self.separate();
            self.bytes.push_str(name);
        }
    }

    /// The value, which is another one each time: marked so that HTTP/2 does not put it into the connection's table,
    /// where it would push out what is worth keeping.
    fn into_value(self) -> HeaderValue {
        let mut value =
            HeaderValue::from_maybe_shared(bytes::Bytes::from(self.bytes)).expect("letters, digits and commas");
        value.set_sensitive(true);
        value
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod vectors;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: HeaderName, value: HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(name, value)])
    }

    proptest! {
        #[test]
        fn an_ask_survives_its_header(
            demand: u32, exact: bool, credited: bool, priority: u8, tenant: u32, round_trip: u32, chance: u16,
            budget in proptest::option::of(0_u64..1 << 50),
        ) {
            let ask = Ask {
                demand, exact, credited, aware: true, priority: Priority(priority), claimed: None,
                tenant: Tenant(tenant),
                budget: budget.map(Duration::from_micros), round_trip: Duration::from_micros(u64::from(round_trip)),
                chance: chance.into(), group: 0,
            };
            let value = write_ask(&ask);
            prop_assert!(value.len() <= MAX_LEN);
            prop_assert_eq!(read_ask(&headers(ASK, value)), Some(ask));
        }

        #[test]
        fn a_grant_survives_its_header(window: u32, level: u32, lease: u32, server_time: u32, instance: u64) {
            let header = GrantHeader {
                grant: Grant { window, level, lease: Duration::from_micros(u64::from(lease)) },
                server_time: Duration::from_micros(u64::from(server_time)),
                instance,
            };
            prop_assert_eq!(read_grant(&headers(GRANT, write_grant(&header))), Some(header));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let _ = read_ask(&headers(ASK, value.clone()));
                let _ = read_grant(&headers(GRANT, value.clone()));
                let _ = read_client(&headers(CLIENT, value.clone()));
                let _ = shed_reason(&headers(SHED, value.clone()));
                let _ = read_grpc_timeout(&headers(GRPC_TIMEOUT, value));
            }
        }

        #[test]
        fn no_text_of_the_alphabet_makes_a_reader_panic(text in "[dxcptbrwlsik=,0-9 -]{0,140}") {
            let value = HeaderValue::try_from(text).unwrap();
            let _ = read_ask(&headers(ASK, value.clone()));
            let _ = read_grant(&headers(GRANT, value));
        }

        #[test]
        fn a_client_survives_its_header(client: u64) {
            prop_assert_eq!(read_client(&headers(CLIENT, write_client(client))), Some(client));
        }
    }

    #[test]
    fn grpc_timeouts_are_written_as_they_are_read() {
        let there_and_back = |span: Duration| {
            let value = write_grpc_timeout(span);
            assert!(value.len() <= 9);
            read_grpc_timeout(&headers(GRPC_TIMEOUT, value))
        };
        for span in
            [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(99_999_999), Duration::from_secs(100)]
        {
            assert_eq!(there_and_back(span), Some(span));
        }
        assert_eq!(there_and_back(Duration::from_hours(48)), Some(Duration::from_hours(48)));
        assert_eq!(there_and_back(Duration::MAX), Some(Duration::from_secs(99_999_999)));
    }

    #[test]
    fn every_reason_has_its_own_word() {
        for (reason, word) in REASONS {
            assert_eq!(reason_word(reason), word);
            assert_eq!(shed_reason(&headers(SHED, HeaderValue::from_static(word))), Some(reason));
        }
    }

    #[test]
    fn broken_asks_are_none_and_unknown_parts_are_skipped() {
        let read = |text: &'static str| read_ask(&headers(ASK, HeaderValue::from_static(text)));
        assert_eq!(read("d=1,zz=9,new").unwrap().demand, 1);
        for broken in ["d=-1", "d=1x", "d=99999999999999999999", "d=", "p=+1"] {
            assert_eq!(read(broken), None, "{broken}");
        }
        assert_eq!(read("d=99999999999").unwrap().demand, u32::MAX);
        assert_eq!(read_ask(&headers(ASK, HeaderValue::try_from("d=1,".repeat(40)).unwrap())), None);
    }

    #[test]
    fn grpc_timeouts_are_read_as_grpc_writes_them() {
        let read = |text: &'static str| read_grpc_timeout(&headers(GRPC_TIMEOUT, HeaderValue::from_static(text)));
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("99999999H"), Some(Duration::from_hours(99_999_999)));
        for broken in ["", "5", "m", "123456789m", "+5m", "5x", "5\u{7f}m"] {
            let Ok(value) = HeaderValue::from_str(broken) else { continue };
            assert_eq!(read_grpc_timeout(&headers(GRPC_TIMEOUT, value)), None, "{broken}");
        }
    }
}

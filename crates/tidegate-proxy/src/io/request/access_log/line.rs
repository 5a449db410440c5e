//! A line about one request.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use tidegate_wire::trace_context::{SpanId, TraceId};

use crate::config::LogFormat;

/// Bytes of a text from a client that a line shows; the rest is cut.
const MOST_OF_A_TEXT: usize = 2_048;

/// Where and why something was refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refused<'a> {
    /// `accept`, `hello`, `request` or `queue`.
    pub stage: &'a str,
    /// What was short: a resource, or the limit that says no.
    pub resource: &'a str,
    /// `over_share`, `system_full`, `rate_limit`, `no_route`, `misdirected`, `unknown_name` or
    /// `malformed`.
    pub cause: &'a str,
    /// What the client was told.
    pub retry_after: Option<Duration>,
}

/// One request, when it has ended. Texts are as the client sent them.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// When its first byte came, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The client, as the PROXY protocol or trusted headers name it.
    pub client: IpAddr,
    /// The method; empty for a connection that was refused before there was one.
    pub method: &'a str,
    /// Without a port.
    pub host: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Such as `HTTP/2.0`.
    pub version: &'a str,
    /// Of the answer; 0 if there was none.
    pub status: u16,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the answer's body.
    pub response_bytes: u64,
    /// Whose it was.
    pub tenant: &'a str,
    /// `share` or `overflow`; empty if it was refused.
    pub lane: &'a str,
    /// The route's name.
    pub route: &'a str,
    /// The upstream's name.
    pub upstream: &'a str,
    /// If it was refused.
    pub refused: Option<Refused<'a>>,
    /// From first byte to last.
    pub total: Duration,
    /// Waiting for the limits.
    pub queued: Duration,
    /// Until the server's first byte.
    pub first_byte: Duration,
    /// The header.
    pub referer: &'a str,
    /// The header.
    pub user_agent: &'a str,
    /// The trace that it belongs to.
    pub trace_id: Option<TraceId>,
    /// The proxy's own span of that trace.
    pub span_id: Option<SpanId>,
    /// The span that it came from.
    pub parent_id: Option<SpanId>,
    /// The probability with which it was to be written.
    pub sample: f64,
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Self {
            at_ns: 0,
            client: IpAddr::from([0, 0, 0, 0]),
            method: "",
            host: "",
            target: "",
            version: "",
            status: 0,
            request_bytes: 0,
            response_bytes: 0,
            tenant: "",
            lane: "",
            route: "",
            upstream: "",
            refused: None,
            total: Duration::ZERO,
            queued: Duration::ZERO,
            first_byte: Duration::ZERO,
            referer: "",
            user_agent: "",
            trace_id: None,
            span_id: None,
            parent_id: None,
            sample: 1.0,
        }
    }
}

/// Adds `entry` and a newline to `line`.
pub(super) fn write(line: &mut Vec<u8>, format: LogFormat, entry: &Entry<'_>) {
    match format {
        LogFormat::Json => json(line, entry),
        LogFormat::Common => common(line, entry),
    }
    line.push(b'\n');
}

fn json(line: &mut Vec<u8>, entry: &Entry<'_>) {
    line.extend_from_slice(b"{\"time\":\"");
    rfc3339(line, entry.at_ns);
    line.push(b'"');
    put(line, format_args!(",\"client\":\"{}\"", entry.client));
    for (key, text) in [
        ("method", entry.method),
        ("host", entry.host),
        ("target", entry.target),
        ("version", entry.version),
        ("tenant", entry.tenant),
        ("lane", entry.lane),
        ("route", entry.route),
        ("upstream", entry.upstream),
        ("referer", entry.referer),
        ("user_agent", entry.user_agent),
    ] {
        if !text.is_empty() {
            put(line, format_args!(",\"{key}\":\""));
            escaped(line, text);
            line.push(b'"');
        }
    }
    let Entry { status, request_bytes, response_bytes, .. } = entry;
    put(
        line,
        format_args!(
            ",\"status\":{status},\"request_bytes\":{request_bytes},\"response_bytes\":{response_bytes},\"total_us\":{}",
            entry.total.as_micros()
        ),
    );
    for (key, span) in [("queued_us", entry.queued), ("first_byte_us", entry.first_byte)] {
        if !span.is_zero() {
            put(line, format_args!(",\"{key}\":{}", span.as_micros()));
        }
    }
    if let Some(id) = entry.trace_id {
        put(line, format_args!(",\"trace_id\":\"{id}\""));
    }
    for (key, id) in [("span_id", entry.span_id), ("parent_id", entry.parent_id)] {
        if let Some(id) = id {
            put(line, format_args!(",\"{key}\":\"{id}\""));
        }
    }
    if entry.sample < 1.0 {
        put(line, format_args!(",\"sample\":{}", entry.sample));
    }
    if let Some(Refused { stage, resource, cause, retry_after }) = entry.refused {
        put(
            line,
            format_args!(",\"refused\":{{\"stage\":\"{stage}\",\"resource\":\"{resource}\",\"cause\":\"{cause}\""),
        );
        if let Some(after) = retry_after {
            put(line, format_args!(",\"retry_after_ms\":{}", after.as_millis()));
        }
        line.push(b'}');
    }
    line.push(b'}');
}

/// `client - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 2326`, with `-` for no bytes.
fn common(line: &mut Vec<u8>, entry: &Entry<'_>) {
    put(line, format_args!("{} - - [", entry.client));
    clf_time(line, entry.at_ns);
    line.extend_from_slice(b"] \"");
    if entry.method.is_empty() {
        line.push(b'-');
    } else {
        escaped(line, entry.method);
        line.push(b' ');
        escaped(line, entry.target);
        put(line, format_args!(" {}", entry.version));
    }
    match entry.response_bytes {
        0 => put(line, format_args!("\" {} -", entry.status)),
        bytes => put(line, format_args!("\" {} {bytes}", entry.status)),
    }
}

fn put(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    line.write_fmt(text).expect("writing to memory does not fail");
}

/// `text` as the inside of a JSON string, bounded; also safe in a quoted field of the common format.
fn escaped(line: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(MOST_OF_A_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &text.as_bytes()[..end];
    let mut plain = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(byte, b'"' | b'\\' | 0..=0x1f | 0x7f) {
            line.extend_from_slice(&bytes[plain..at]);
            plain = at + 1;
            match byte {
                b'"' => line.extend_from_slice(b"\\\""),
                b'\\' => line.extend_from_slice(b"\\\\"),
                other => put(line, format_args!("\\u{other:04x}")),
            }
        }
    }
    line.extend_from_slice(&bytes[plain..]);
}

/// `2026-11-21T17:34:05.123456Z`.
fn rfc3339(line: &mut Vec<u8>, at_ns: i64) {
    let (date, secs, micros) = split(at_ns);
    let (year, month, day) = date;
    put(
        line,
        format_args!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            secs / 3_600,
            secs / 60 % 60,
            secs % 60
        ),
    );
}

/// `21/Nov/2026:17:34:05 +0000`.
fn clf_time(line: &mut Vec<u8>, at_ns: i64) {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let ((year, month, day), secs, _) = split(at_ns);
    let month = MONTHS.get(usize::try_from(month - 1).unwrap_or(0)).unwrap_or(&"Jan");
    put(
        line,
        format_args!("{day:02}/{month}/{year:04}:{:02}:{:02}:{:02} +0000", secs / 3_600, secs / 60 % 60, secs % 60),
    );
}

/// Year, month from 1 and day; second of the day; microsecond of the second.
fn split(at_ns: i64) -> ((i64, i64, i64), i64, i64) {
    const DAY: i64 = 86_400;
    let secs = at_ns.div_euclid(1_000_000_000);
    let micros = at_ns.rem_euclid(1_000_000_000) / 1_000;
    (civil(secs.div_euclid(DAY)), secs.rem_euclid(DAY), micros)
}

/// The Gregorian date `days` after 1970-01-01. Years begin in March here, so that the leap day is the last of its year,
/// and months have 153 days in every five.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: LogFormat, entry: &Entry<'_>) -> String {
        let mut line = Vec::new();
        write(&mut line, format, entry);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_778, (2026, 11, 21)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }

    #[test]
    fn a_json_line_says_who_was_refused_where_and_why() {
        let entry = Entry {
            at_ns: 1_795_282_445_123_456_789,
            client: IpAddr::from([192, 0, 2, 7]),
            method: "GET",
            host: "b.example",
            target: "/a\"b\\c\n",
            version: "HTTP/1.1",
            status: 429,
            tenant: "b.example",
            refused: Some(Refused {
                stage: "request",
                resource: "requests",
                cause: "over_share",
                retry_after: Some(Duration::from_millis(1_500)),
            }),
            total: Duration::from_micros(87),
            ..Entry::default()
        };
        let line = text(LogFormat::Json, &entry);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["time"], "2026-11-21T17:34:05.123456Z");
        assert_eq!((&value["client"], &value["target"]), (&"192.0.2.7".into(), &"/a\"b\\c\n".into()));
        assert_eq!(
            (&value["refused"]["cause"], &value["refused"]["retry_after_ms"]),
            (&"over_share".into(), &1_500.into())
        );
        assert_eq!((&value["status"], &value["total_us"], &value["lane"]), (&429.into(), &87.into(), &().into()));
        assert!(line.ends_with("}\n"));
    }

    #[test]
    fn a_json_line_says_which_trace_it_belongs_to_and_what_part_of_all_lines_it_is_of() {
        let entry = Entry {
            trace_id: Some(TraceId::of_random(0xab)),
            span_id: Some(SpanId::of_random(1)),
            sample: 0.01,
            ..Entry::default()
        };
        let value: serde_json::Value = serde_json::from_str(&text(LogFormat::Json, &entry)).unwrap();
        assert_eq!(value["trace_id"], "000000000000000000000000000000ab");
        assert_eq!((&value["span_id"], &value["parent_id"]), (&"0000000000000001".into(), &().into()));
        assert_eq!(value["sample"], 0.01);
        assert!(!text(LogFormat::Json, &Entry::default()).contains("sample"), "it is 1 where nothing is left out");
    }

    #[test]
    fn the_common_format_is_common() {
        let entry = Entry {
            at_ns: 1_795_282_445_123_456_789,
            client: IpAddr::from([192, 0, 2, 7]),
            method: "GET",
            target: "/a?b=c",
            version: "HTTP/2.0",
            status: 200,
            response_bytes: 2_326,
            ..Entry::default()
        };
        assert_eq!(
            text(LogFormat::Common, &entry),
            "192.0.2.7 - - [21/Nov/2026:17:34:05 +0000] \"GET /a?b=c HTTP/2.0\" 200 2326\n"
        );
        let refused = Entry { method: "", status: 0, response_bytes: 0, ..entry };
        assert!(text(LogFormat::Common, &refused).ends_with("] \"-\" 0 -\n"));
    }

    #[test]
    fn nothing_that_a_client_sends_makes_a_second_line() {
        let hostile =
            Entry { method: "GET", target: "/\r\n{\"status\":200}\n", user_agent: "a\u{0}b\u{7f}", ..Entry::default() };
        for format in [LogFormat::Json, LogFormat::Common] {
            let line = text(format, &hostile);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(line.bytes().all(|byte| byte == b'\n' || byte >= 0x20), "{line}");
        }
        let long = "é".repeat(5_000);
        let line = text(LogFormat::Json, &Entry { target: &long, ..Entry::default() });
        assert!(line.len() < 2_300 && serde_json::from_str::<serde_json::Value>(&line).is_ok());
    }
}

//! The query of a request, read as strictly as Go reads it.

use std::fmt::Write as _;

use axum::http::Uri;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::answer::Refusal;

/// The pairs of a query, in their order.
#[derive(Clone, Default, Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// The query of `uri`. A semicolon or a broken escape makes all of it invalid.
    pub(super) fn of(uri: &Uri) -> Result<Self, Refusal> {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let read = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (!pair.contains(';')).then_some(())?;
            Some((unescape(key)?, unescape(value)?))
        };
        pairs.map(read).collect::<Option<_>>().map(Self).ok_or(Refusal::bad("INVALID_REQUEST"))
    }

    /// The first value of `key`.
    pub(super) fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// The topic; `invalid` if its name breaks the rule, which endpoints call by different words.
    pub(super) fn topic(&self, invalid: Refusal) -> Result<TopicName, Refusal> {
        let name = self.first("topic").ok_or(Refusal::bad("MISSING_ARG_TOPIC"))?;
        TopicName::new(name).map_err(|_| invalid)
    }

    /// Topic and channel.
    pub(super) fn topic_and_channel(&self) -> Result<(TopicName, ChannelName), Refusal> {
        let topic = self.topic(Refusal::bad("INVALID_ARG_TOPIC"))?;
        let channel = self.first("channel").ok_or(Refusal::bad("MISSING_ARG_CHANNEL"))?;
        let channel = ChannelName::new(channel).map_err(|_| Refusal::bad("INVALID_ARG_CHANNEL"))?;
        Ok((topic, channel))
    }

    /// A switch: `true`, `1`, `false` or `0`; `None` for anything else.
    pub(super) fn switch(&self, key: &str) -> Option<bool> {
        match self.first(key)? {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }
}

/// `text` without its escapes; bytes that are no UTF-8 become U+FFFD, which no name contains.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                rest = tail;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).expect("two hexadecimal digits are a byte")
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// `value` with everything escaped that means something in a query.
pub(crate) fn escape(value: &[u8]) -> String {
    let mut escaped = String::with_capacity(value.len());
    for &byte in value {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(char::from(byte)),
            _ => write!(escaped, "%{byte:02X}").expect("writing to a string does not fail"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Result<Query, Refusal> {
        Query::of(&format!("/x?{text}").parse().unwrap())
    }

    #[test]
    fn the_first_value_counts_and_escapes_are_undone() {
        let query = query("topic=a%23ephemeral&topic=b&&c+d=%41%2B+&alone").unwrap();
        assert_eq!(query.first("topic"), Some("a#ephemeral"));
        assert_eq!(query.first("c d"), Some("A+ "));
        assert_eq!((query.first("alone"), query.first("none")), (Some(""), None));
    }

    #[test]
    fn broken_escapes_and_semicolons_spoil_all_of_it() {
        for bad in ["a=%", "a=%4", "a=%zz", "a=1&b=%+1", "a=1;b=2"] {
            assert!(query(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn escaping_survives_the_way_back() {
        let every: Vec<u8> = (0..=127).collect();
        assert_eq!(unescape(&escape(&every)).unwrap().as_bytes(), every);
        assert_eq!(escape("é&=".as_bytes()), "%C3%A9%26%3D");
    }
}

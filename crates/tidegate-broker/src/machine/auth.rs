//! What a client may do, as its AUTH server said.
//!
//! The answer of an AUTH server grants permissions on topics and channels by regular expressions, which match anywhere
//! in a name unless they are anchored. Publishing is checked as the channel of the empty name: a grant without
//! channels, or whose channels demand a character, does not let anybody publish.

use std::fmt;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::Instant;
use tidegate_wire::nsq::{ChannelName, TopicName};

/// Most patterns of one answer. A client's state is kept as long as its connection.
const MOST_PATTERNS: usize = 4_096;
/// Bound on one compiled pattern, in bytes: about a hundred times what a pattern for names needs.
const PATTERN_BYTES: usize = 256 << 10;
/// Bound on the cache of one pattern, in bytes; a pattern that outgrows it gets slower, not wrong.
const PATTERN_CACHE_BYTES: usize = 64 << 10;

/// What an AUTH server granted to a client, and until when.
#[derive(Clone, Debug)]
pub struct AuthState {
    /// Who the client is, for people.
    pub identity: String,
    /// Where to read about it.
    pub identity_url: String,
    /// When the server must be asked again.
    pub expires: Instant,
    grants: Vec<Grant>,
}

/// Why an AUTH server's answer is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// It is not the JSON of an answer.
    #[error("the answer is not an authorization")]
    Json(#[from] serde_json::Error),
    /// It grants what nobody knows.
    #[error("unknown permission {permission:?}; known are \"publish\" and \"subscribe\"")]
    UnknownPermission {
        /// As it came.
        permission: String,
    },
    /// One of its patterns is no regular expression, or too large a one.
    #[error("cannot compile {pattern:?}")]
    BadPattern {
        /// As it came.
        pattern: String,
        /// What is wrong with it.
        #[source]
        source: Box<regex::Error>,
    },
    /// It holds more patterns than a client may have.
    #[error("{patterns} patterns exceed the limit of {limit}")]
    TooManyPatterns {
        /// Topics and channels together.
        patterns: usize,
        /// The bound.
        limit: usize,
    },
    /// It has expired before it came.
    #[error("ttl of {ttl} s is not positive")]
    BadTtl {
        /// As it came.
        ttl: i64,
    },
}

impl AuthState {
    /// Reads an AUTH server's answer, which came at `now`.
    ///
    /// Keys are matched without regard to case, absent and null fields are empty, and unknown ones are ignored, as
    /// the servers written for nsqd are used to.
    ///
    /// # Errors
    /// An answer with anything wrong in it grants nothing.
    pub fn from_json(answer: &[u8], now: Instant) -> Result<Self, AuthError> {
        let answer: Answer = serde_json::from_value(with_lower_case_keys(serde_json::from_slice(answer)?))?;
        let authorizations = answer.authorizations.unwrap_or_default();
        let patterns = authorizations.iter().map(|a| 1 + a.channels.as_ref().map_or(0, Vec::len)).sum();
        if patterns > MOST_PATTERNS {
            return Err(AuthError::TooManyPatterns { patterns, limit: MOST_PATTERNS });
        }
        let grants = authorizations.into_iter().map(Grant::new).collect::<Result<_, _>>()?;
        let ttl = answer.ttl.unwrap_or(0);
        let seconds = u64::try_from(ttl).ok().filter(|s| *s > 0).ok_or(AuthError::BadTtl { ttl })?;
        Ok(Self {
            identity: answer.identity.unwrap_or_default(),
            identity_url: answer.identity_url.unwrap_or_default(),
            expires: now + Duration::from_secs(seconds),
            grants,
        })
    }

    /// Whether the client may subscribe to `channel` of `topic`, or, without a channel, publish to `topic`.
    #[must_use]
    pub fn is_allowed(&self, topic: &TopicName, channel: Option<&ChannelName>) -> bool {
        self.grants.iter().any(|grant| grant.allows(topic, channel))
    }

    /// Whether the answer is too old to decide by.
    #[must_use]
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires < now
    }

    /// How many authorizations the answer held. A client with none is not authorized, whatever its identity.
    #[must_use]
    pub fn permission_count(&self) -> usize {
        self.grants.len()
    }

    /// What AUTH answers to the client.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Response<'a> {
            identity: &'a str,
            identity_url: &'a str,
            permission_count: usize,
        }
        let response = Response {
            identity: &self.identity,
            identity_url: &self.identity_url,
            permission_count: self.permission_count(),
        };
        serde_json::to_vec(&response).expect("strings and a number are JSON")
    }
}

#[derive(Deserialize)]
struct Answer {
    ttl: Option<i64>,
    identity: Option<String>,
    identity_url: Option<String>,
    authorizations: Option<Vec<Authorization>>,
}

#[derive(Deserialize)]
struct Authorization {
    topic: Option<String>,
    channels: Option<Vec<String>>,
    permissions: Option<Vec<String>>,
}

fn with_lower_case_keys(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key.to_lowercase(), with_lower_case_keys(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(with_lower_case_keys).collect(),
        scalar => scalar,
    }
}

#[derive(Clone, Debug)]
struct Grant {
    topic: Pattern,
    channels: Vec<Pattern>,
    publish: bool,
    subscribe: bool,
}

impl Grant {
    fn new(authorization: Authorization) -> Result<Self, AuthError> {
        let (mut publish, mut subscribe) = (false, false);
        for permission in authorization.permissions.unwrap_or_default() {
            match permission.as_str() {
                "publish" => publish = true,
                "subscribe" => subscribe = true,
                _ => return Err(AuthError::UnknownPermission { permission }),
            }
        }
        let topic = Pattern::new(authorization.topic.unwrap_or_default())?;
        let channels = authorization.channels.unwrap_or_default();
        let channels = channels.into_iter().map(Pattern::new).collect::<Result<_, _>>()?;
        Ok(Self { topic, channels, publish, subscribe })
    }

    fn allows(&self, topic: &TopicName, channel: Option<&ChannelName>) -> bool {
        let permitted = if channel.is_some() { self.subscribe } else { self.publish };
        let channel = channel.map_or("", ChannelName::as_str);
        permitted && self.topic.matches(topic.as_str()) && self.channels.iter().any(|c| c.matches(channel))
    }
}

/// A regular expression that matches anywhere. Most are plain text or match everything, and cost no automaton.
#[derive(Clone)]
enum Pattern {
    Anything,
    Contains(String),
    Regex(Regex),
}

impl Pattern {
    fn new(pattern: String) -> Result<Self, AuthError> {
        if matches!(pattern.as_str(), "" | ".*" | "^.*" | ".*$" | "^.*$") {
            return Ok(Self::Anything);
        }
        if regex::escape(&pattern) == pattern {
            return Ok(Self::Contains(pattern));
        }
        // Names are ASCII, and so are \w and \d in Go. Patterns that name a Unicode class need the larger tables.
        let compiled = Self::compile(&pattern, false).or_else(|_| Self::compile(&pattern, true));
        compiled.map(Self::Regex).map_err(|source| AuthError::BadPattern { pattern, source: Box::new(source) })
    }

    fn compile(pattern: &str, unicode: bool) -> Result<Regex, regex::Error> {
        RegexBuilder::new(pattern)
            .unicode(unicode)
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_CACHE_BYTES)
            .build()
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Anything => true,
            Self::Contains(text) => name.contains(text.as_str()),
            Self::Regex(regex) => regex.is_match(name.as_bytes()),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anything => f.write_str("/.*/"),
            Self::Contains(text) => write!(f, "/{text}/"),
            Self::Regex(regex) => write!(f, "/{}/", regex.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(7);

    fn granted(topic: &str, channels: &[&str], permissions: &[&str]) -> AuthState {
        let answer = serde_json::json!({
            "ttl": 60, "identity": "ada", "identity_url": "http://x/ada",
            "authorizations": [{"topic": topic, "channels": channels, "permissions": permissions}],
        });
        AuthState::from_json(answer.to_string().as_bytes(), NOW).unwrap()
    }

    fn may(state: &AuthState, topic: &str, channel: Option<&str>) -> bool {
        let channel = channel.map(|c| ChannelName::new(c).unwrap());
        state.is_allowed(&TopicName::new(topic).unwrap(), channel.as_ref())
    }

    #[test]
    fn patterns_match_anywhere_unless_anchored() {
        let state = granted("sens", &["^b.*e$"], &["subscribe"]);
        assert!(may(&state, "my-sensors", Some("blue")));
        assert!(!may(&state, "my-sensors", Some("blues")));
        assert!(!may(&state, "other", Some("blue")));
        let ascii = granted(r"^\w{2,64}$", &[r"\d"], &["subscribe"]);
        assert!(may(&ascii, "ab", Some("c1")));
        assert!(!may(&ascii, "a-b", Some("c1")));
        assert!(may(&granted(r"^\p{L}+$", &[".*"], &["publish"]), "ab", None));
    }

    #[test]
    fn publishing_is_checked_as_the_channel_of_the_empty_name() {
        assert!(may(&granted("t", &[".*"], &["publish"]), "t", None));
        assert!(may(&granted("t", &["^$"], &["publish"]), "t", None));
        assert!(!may(&granted("t", &["c"], &["publish"]), "t", None));
        assert!(!may(&granted("t", &[], &["publish"]), "t", None));
        assert!(!may(&granted("t", &[".*"], &["subscribe"]), "t", None));
        assert!(!may(&granted("t", &[".*"], &["publish"]), "t", Some("c")));
    }

    #[test]
    fn one_grant_must_allow_all_of_it() {
        let answer = br#"{"ttl":1,"authorizations":[
            {"topic":"a","channels":[".*"],"permissions":["publish"]},
            {"topic":"b","channels":["x"],"permissions":["subscribe"]}]}"#;
        let state = AuthState::from_json(answer, NOW).unwrap();
        assert!(may(&state, "a", None) && may(&state, "b", Some("x")));
        assert!(!may(&state, "a", Some("x")) && !may(&state, "b", None));
        assert_eq!(state.permission_count(), 2);
    }

    #[test]
    fn the_client_is_told_who_it_is() {
        let json = granted("t", &[], &[]).to_json();
        let text = r#"{"identity":"ada","identity_url":"http://x/ada","permission_count":1}"#;
        assert_eq!(std::str::from_utf8(&json), Ok(text));
    }

    #[test]
    fn answers_are_read_as_go_reads_json() {
        let state = AuthState::from_json(br#"{"TTL":5,"Identity":"x","identity_url":null,"more":1}"#, NOW).unwrap();
        assert_eq!((state.identity.as_str(), state.permission_count()), ("x", 0));
        assert_eq!(state.expires, NOW + Duration::from_secs(5));
        assert!(!state.is_expired(state.expires) && state.is_expired(state.expires.plus_nanos(1)));
    }

    #[test]
    fn an_answer_with_anything_wrong_grants_nothing() {
        let wrong = |answer: &str| AuthState::from_json(answer.as_bytes(), NOW).unwrap_err();
        assert!(matches!(wrong("{"), AuthError::Json(_)));
        assert!(matches!(wrong(r#"{"ttl":"5"}"#), AuthError::Json(_)));
        assert!(matches!(wrong("{}"), AuthError::BadTtl { ttl: 0 }));
        assert!(matches!(wrong(r#"{"ttl":-1}"#), AuthError::BadTtl { ttl: -1 }));
        let grant = |grant: &str| wrong(&format!(r#"{{"ttl":5,"authorizations":[{grant}]}}"#));
        assert!(matches!(grant(r#"{"permissions":["delete"]}"#), AuthError::UnknownPermission { .. }));
        assert!(matches!(grant(r#"{"topic":"("}"#), AuthError::BadPattern { .. }));
        assert!(matches!(grant(r#"{"channels":["(a{500}){500}"]}"#), AuthError::BadPattern { .. }));
        let many = vec![r#""x""#; MOST_PATTERNS].join(",");
        assert!(matches!(grant(&format!(r#"{{"channels":[{many}]}}"#)), AuthError::TooManyPatterns { .. }));
    }
}

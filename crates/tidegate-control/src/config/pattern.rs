//! Patterns over the names of publishers, for those that send no correlation key.

/// A pattern: `*` stands for any number of characters, everything else for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern(String);

impl Pattern {
    /// Longest pattern, in bytes.
    pub const BYTES_MAX: usize = 128;

    /// The pattern `text`; `None` if it is empty or longer than [`Self::BYTES_MAX`].
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= Self::BYTES_MAX).then(|| Self(text.to_owned()))
    }

    /// Whether all of `text` is what the pattern stands for. O(length of the pattern × length of the text).
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut seen) = (0, 0);
        // The last star, and how much of the text it stands for so far ends where.
        let mut star: Option<(usize, usize)> = None;
        while seen < text.len() {
            if pattern.get(at) == Some(&b'*') {
                star = Some((at, seen));
                at += 1;
            } else if pattern.get(at) == Some(&text[seen]) {
                at += 1;
                seen += 1;
            } else if let Some((place, end)) = star {
                star = Some((place, end + 1));
                (at, seen) = (place + 1, end + 1);
            } else {
                return false;
            }
        }
        pattern[at..].iter().all(|&byte| byte == b'*')
    }
}

/// Publishers whose names match have this key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Correlation {
    /// Of the client id; any if there is none.
    pub client: Option<Pattern>,
    /// Of the host name; any if there is none.
    pub host: Option<Pattern>,
    /// The key: publishers of one key send together.
    pub key: String,
}

impl Correlation {
    /// Whether a publisher that sends no key has this one.
    #[must_use]
    pub fn matches(&self, client_id: &str, hostname: &str) -> bool {
        let is = |pattern: &Option<Pattern>, name: &str| pattern.as_ref().is_none_or(|pattern| pattern.matches(name));
        is(&self.client, client_id) && is(&self.host, hostname)
    }
}

/// The key of a publisher that sends none: that of the first pattern that matches.
#[must_use]
pub fn key_of<'a>(patterns: &'a [Correlation], client_id: &str, hostname: &str) -> Option<&'a str> {
    patterns.iter().find(|pattern| pattern.matches(client_id, hostname)).map(|pattern| pattern.key.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (text, name, matches) in [
            ("sensor-*", "sensor-17", true),
            ("sensor-*", "sensor-", true),
            ("sensor-*", "a-sensor-1", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*.eu.*", "x.eu.example", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("**x", "yyx", true),
        ] {
            assert_eq!(pattern(text).matches(name), matches, "{text} {name}");
        }
        assert_eq!((Pattern::new(""), Pattern::new(&"a".repeat(129))), (None, None));
    }

    #[test]
    fn many_stars_take_no_more_than_the_product_of_the_lengths() {
        // A search that tried every way to divide the text among the stars would never end.
        assert!(!pattern(&"*a".repeat(60)).matches(&"a".repeat(59)));
        assert!(pattern(&"*a".repeat(60)).matches(&"a".repeat(60)));
    }

    #[test]
    fn the_first_pattern_that_matches_gives_the_key() {
        let of = |client: Option<&str>, host: Option<&str>, key: &str| Correlation {
            client: client.map(pattern),
            host: host.map(pattern),
            key: key.to_owned(),
        };
        let all = [of(Some("s-*"), Some("eu-*"), "eu"), of(Some("s-*"), None, "rest"), of(None, Some("us-1"), "us")];
        let key = |client: &str, host: &str| key_of(&all, client, host).map(str::to_owned);
        assert_eq!(key("s-1", "eu-9").as_deref(), Some("eu"));
        assert_eq!(key("s-1", "us-1").as_deref(), Some("rest"));
        assert_eq!(key("x", "us-1").as_deref(), Some("us"));
        assert_eq!(key("x", "us-2"), None);
    }
}

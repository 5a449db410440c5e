//! How a publisher is called, and what it says of itself.

use std::fmt;
use std::net::IpAddr;

use tidegate_core::Instant;

/// Bytes of an identity or a correlation key.
pub const LABEL_BYTES_MAX: usize = 128;
/// Of a derived name: the rest of an identity is for its number.
const DERIVED_BYTES_MAX: usize = LABEL_BYTES_MAX - "#65537".len();

/// The name of a publisher or a correlation key: 1 to 128 bytes without control characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label(Box<str>);

/// A text that is no [`Label`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a name of a publisher or a correlation key has 1 to {LABEL_BYTES_MAX} bytes and no control characters")]
pub struct BadLabel;

impl Label {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`BadLabel`] says the rule.
    pub fn new(text: &str) -> Result<Self, BadLabel> {
        let fits = (1..=LABEL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if fits { Ok(Self(text.into())) } else { Err(BadLabel) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The client of a publish over HTTP.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HttpPublisher {
    /// Its address; `None` over a unix socket.
    pub address: Option<IpAddr>,
    /// What else it is correlated with.
    pub correlation: Option<Label>,
}

/// How a publisher came by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Naming {
    /// It gave itself one.
    Chosen,
    /// From its client id and host.
    Derived,
    /// From its address: it publishes over HTTP, and has no connection that would end.
    Address,
}

/// Somebody who publishes, as shards tell each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Who {
    name: Box<str>,
    naming: Naming,
    correlation: Option<Label>,
    remote: Box<str>,
    client_id: Box<str>,
    hostname: Box<str>,
    /// When it connected, or was first heard of.
    since: Instant,
}

/// What a connection says of itself.
pub(super) struct Introduction<'a> {
    pub(super) name: Option<&'a Label>,
    pub(super) correlation: Option<&'a Label>,
    pub(super) remote: &'a str,
    pub(super) client_id: &'a str,
    pub(super) hostname: &'a str,
    pub(super) connected: Instant,
}

impl From<Introduction<'_>> for Who {
    fn from(said: Introduction<'_>) -> Self {
        // They may be megabytes long, and outlive the connection. What moves a terminal's cursor is not shown to anybody.
        let shown = |text| clip(text, LABEL_BYTES_MAX).replace(char::is_control, "-");
        let [client_id, hostname] = [said.client_id, said.hostname].map(shown);
        let (name, naming) = match said.name {
            Some(name) => (name.as_str().into(), Naming::Chosen),
            None => (format!("{client_id}@{hostname}").into(), Naming::Derived),
        };
        Self {
            name,
            naming,
            correlation: said.correlation.cloned(),
            remote: said.remote.into(),
            client_id: client_id.into(),
            hostname: hostname.into(),
            since: said.connected,
        }
    }
}

impl Who {
    pub(super) fn over_http(by: &HttpPublisher, now: Instant) -> Self {
        let remote = by.address.map_or_else(|| "unix".to_owned(), |address| address.to_string());
        Self {
            name: format!("http@{remote}").into(),
            naming: Naming::Address,
            correlation: by.correlation.clone(),
            client_id: "http".into(),
            hostname: remote.as_str().into(),
            remote: remote.into(),
            since: now,
        }
    }

    /// The name that it has where it is the only one of its name.
    pub(super) fn own_name(&self) -> &str {
        if self.naming == Naming::Derived { self.place().0 } else { &self.name }
    }

    /// The name without a number at its end, and the number that it has, if it is not to get one.
    pub(super) fn place(&self) -> (&str, Option<u32>) {
        match self.naming {
            Naming::Chosen | Naming::Address => {
                let (base, number) = split(&self.name);
                (base, Some(number))
            }
            Naming::Derived => {
                let mut base = clip(&self.name, DERIVED_BYTES_MAX);
                while let (shorter, 2..) = split(base) {
                    base = shorter;
                }
                (base, None)
            }
        }
    }

    /// It publishes over HTTP, and has no connection that would end.
    pub(super) fn is_address(&self) -> bool {
        self.naming == Naming::Address
    }

    pub(super) fn correlation(&self) -> Option<&Label> {
        self.correlation.as_ref()
    }

    pub(super) fn remote(&self) -> &str {
        &self.remote
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    pub(super) fn hostname(&self) -> &str {
        &self.hostname
    }

    /// When it connected, or was first heard of.
    pub(super) fn since(&self) -> Instant {
        self.since
    }
}

/// `base#n` is the nth of `base`; any other text is the first of itself. So two places have two identities.
fn split(name: &str) -> (&str, u32) {
    let numbered = name.rsplit_once('#').and_then(|(base, digits)| {
        let plain = digits.bytes().all(|digit| digit.is_ascii_digit()) && !digits.starts_with('0');
        let number = digits.parse::<u32>().ok().filter(|number| plain && *number >= 2)?;
        Some((base, number))
    });
    numbered.unwrap_or((name, 1))
}

/// As much of `text` as fits into `bytes`.
fn clip(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_without_control_characters() {
        assert_eq!(Label::new("sensors/7").unwrap().as_str(), "sensors/7");
        for bad in ["", "a\nb", "\u{7f}", &"x".repeat(129)] {
            assert_eq!(Label::new(bad), Err(BadLabel), "{bad:?}");
        }
        assert!(Label::new(&"é".repeat(64)).is_ok() && Label::new(&"é".repeat(65)).is_err(), "bytes count");
    }

    #[test]
    fn a_name_has_a_place_with_or_without_a_number() {
        let said = |name: Option<&Label>, client_id: &str, hostname: &str| {
            let introduction =
                Introduction { name, correlation: None, remote: "r", client_id, hostname, connected: Instant::ZERO };
            let who = Who::from(introduction);
            let (base, number) = who.place();
            (base.to_owned(), number)
        };
        let chosen = |name: &str| said(Label::new(name).ok().as_ref(), "c", "h");
        let place = |base: &str, number: Option<u32>| (base.to_owned(), number);
        assert_eq!(chosen("a#7"), place("a", Some(7)));
        for plain in ["a", "a#", "a#1", "a#07", "a#+7", "a#7x", "a#99999999999"] {
            assert_eq!(chosen(plain), place(plain, Some(1)));
        }
        assert_eq!(said(None, "c", "h"), place("c@h", None));
        assert_eq!(said(None, "c", "h#3#4"), place("c@h", None), "numbers are given, not said");
        assert_eq!(said(None, "c\u{1b}[2J", "h\n"), place("c-[2J@h-", None), "a terminal does not obey it");
        let long = "é".repeat(3_000_000);
        assert_eq!(said(None, &long, &long), place(&"é".repeat(61), None));
        let by = HttpPublisher { address: "10.0.0.7".parse().ok(), correlation: None };
        assert_eq!(Who::over_http(&by, Instant::ZERO).place(), ("http@10.0.0.7", Some(1)));
        assert_eq!(Who::over_http(&HttpPublisher::default(), Instant::ZERO).place(), ("http@unix", Some(1)));
    }
}

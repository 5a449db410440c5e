//! What the console is told at start.

use std::time::Duration;

use axum::http::Uri;
use tokio::sync::watch;

/// Everything the console needs to know. `ConsoleConfig::default()` is a console without brokers that refuses writes.
#[derive(Clone, Debug)]
pub struct ConsoleConfig {
    /// The brokers to show, in the order in which they are shown.
    pub brokers: Vec<BrokerSource>,
    /// The proxies whose neighbours to show, in the order in which they are shown.
    pub proxies: Vec<ProxySource>,
    /// What a page must send as `Authorization: Bearer ...` with each write. Empty: every write is refused.
    pub write_token: String,
    /// Base address of the demo's control, `http://host:port`. `None`: there is no demo.
    pub demo: Option<String>,
    /// Base address of the admin API of a `tidegate rpc serve`, `http://host:port`. `None`: there is none to show.
    pub rpc: Option<String>,
    /// The control whose placements to show. `None`: there is none.
    pub control: Option<ControlSource>,
    /// The shaper whose devices and classes to show. `None`: there is none.
    pub shaper: Option<ShaperSource>,
    /// Names under which the console may be addressed, besides `localhost` and the loopback addresses. A page that was
    /// lured to resolve its own name to 127.0.0.1 sends another name and is refused.
    pub allowed_hosts: Vec<String>,
    /// Pause between two polls of the brokers while somebody watches.
    pub poll_interval: Duration,
    /// Becomes `true` when the process is about to exit: event streams end, so that a graceful shutdown is not held up.
    pub stop: Option<watch::Receiver<bool>>,
}

/// A broker's admin API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokerSource {
    /// Shown in the page and part of the console's addresses: unique, 1 to 64 of `[A-Za-z0-9._-]`.
    pub name: String,
    /// `http://host:port`, without a path.
    pub admin_url: String,
    /// What the broker wants as `Authorization: Bearer ...`.
    pub token: Option<String>,
}

/// A proxy's admin API.
#[derive(Clone, Debug)]
pub struct ProxySource {
    /// Shown in the page and part of the console's addresses: unique, 1 to 64 of `[A-Za-z0-9._-]`.
    pub name: String,
    /// `http://host:port`, without a path.
    pub admin_url: String,
    /// What the proxy wants as `Authorization: Bearer ...`.
    pub token: Option<String>,
}

/// A control's admin API.
#[derive(Clone, Debug)]
pub struct ControlSource {
    /// `http://host:port`, without a path.
    pub admin_url: String,
    /// What control wants as `Authorization: Bearer ...`.
    pub token: Option<String>,
    /// The brokers that control places topics on, as they are now: control's file may be read again. The console asks them what
    /// they lend, and does not list their topics.
    pub brokers: watch::Receiver<Vec<BrokerSource>>,
}

/// A shaper's admin API.
#[derive(Clone, Debug)]
pub struct ShaperSource {
    /// `http://host:port`, without a path.
    pub admin_url: String,
    /// What the shaper wants as `Authorization: Bearer ...`.
    pub token: Option<String>,
}

/// A configuration that cannot work.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not something that a browser could put into an address unescaped.
    #[error("name `{name}` is not 1 to 64 of letters, digits, `.`, `_` and `-`")]
    BadName {
        /// The name found.
        name: String,
    },
    /// Two brokers, or two proxies, of one name.
    #[error("name `{name}` is used twice")]
    NameTwice {
        /// The name found.
        name: String,
    },
    /// Not a plain HTTP base address.
    #[error("address `{url}` is not of the form http://host:port")]
    BadUrl {
        /// The address found.
        url: String,
    },
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            proxies: Vec::new(),
            write_token: String::new(),
            demo: None,
            rpc: None,
            control: None,
            shaper: None,
            allowed_hosts: Vec::new(),
            // Four times a second: the eye follows it, and an edited limit is seen in force well within a second.
            poll_interval: Duration::from_millis(250),
            stop: None,
        }
    }
}

impl ConsoleConfig {
    /// Finds what [`router`](crate::router) could only report by showing a broker as unreachable.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_sources(self.brokers.iter().map(|broker| (broker.name.as_str(), broker.admin_url.as_str())))?;
        if let Some(control) = &self.control {
            let lenders = control.brokers.borrow();
            check_sources(lenders.iter().map(|broker| (broker.name.as_str(), broker.admin_url.as_str())))?;
        }
        check_sources(self.proxies.iter().map(|proxy| (proxy.name.as_str(), proxy.admin_url.as_str())))?;
        let control = self.control.as_ref().map(|control| &control.admin_url);
        let shaper = self.shaper.as_ref().map(|shaper| &shaper.admin_url);
        let others = [self.demo.as_ref(), self.rpc.as_ref(), control, shaper];
        others.into_iter().flatten().try_for_each(|url| base_address(url).map(drop))
    }
}

/// Names and addresses of one kind of source.
fn check_sources<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), ConfigError> {
    let mut names = Vec::new();
    for (name, url) in sources {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let dots_only = name.bytes().all(|byte| byte == b'.');
        if dots_only || name.len() > 64 || !name.bytes().all(plain) {
            return Err(ConfigError::BadName { name: name.to_owned() });
        }
        if names.contains(&name) {
            return Err(ConfigError::NameTwice { name: name.to_owned() });
        }
        names.push(name);
        base_address(url)?;
    }
    Ok(())
}

/// `scheme://authority` of a base address, without a slash at its end.
pub(crate) fn base_address(url: &str) -> Result<String, ConfigError> {
    let bad = || ConfigError::BadUrl { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
    match uri.authority() {
        Some(authority) if plain => Ok(format!("http://{authority}")),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_brokers(brokers: &[(&str, &str)]) -> ConsoleConfig {
        let source = |&(name, url): &(&str, &str)| BrokerSource {
            name: name.to_owned(),
            admin_url: url.to_owned(),
            token: None,
        };
        ConsoleConfig { brokers: brokers.iter().map(source).collect(), ..ConsoleConfig::default() }
    }

    #[test]
    fn good_sources_pass() {
        let config = with_brokers(&[("a", "http://127.0.0.1:4160"), ("b.c-d", "http://[::1]:4160/")]);
        assert_eq!(config.check(), Ok(()));
        assert_eq!(base_address("http://[::1]:4160/"), Ok("http://[::1]:4160".to_owned()));
    }

    #[test]
    fn names_that_cannot_stand_in_an_address_are_found() {
        for name in ["", "..", "a/b", "a b", "ü"] {
            let error = with_brokers(&[(name, "http://h:1")]).check();
            assert_eq!(error, Err(ConfigError::BadName { name: name.to_owned() }));
        }
        let twice = with_brokers(&[("a", "http://h:1"), ("a", "http://h:2")]).check();
        assert_eq!(twice, Err(ConfigError::NameTwice { name: "a".to_owned() }));
    }

    #[test]
    fn addresses_with_more_or_less_than_host_and_port_are_found() {
        for url in ["127.0.0.1:4160", "https://h:1", "http://h:1/api", "http://h:1/?q", "/x", ""] {
            assert_eq!(base_address(url), Err(ConfigError::BadUrl { url: url.to_owned() }), "{url}");
        }
    }
}

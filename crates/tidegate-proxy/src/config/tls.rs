//! What of TLS a listener speaks, as names of its standards.

use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::{NamedGroup, SupportedCipherSuite, SupportedProtocolVersion};
use tidegate_runtime::config::ConfigError;

use super::section::ListenSection;
use super::words::TlsVersion;
use crate::config::place::Place;

/// What of TLS is spoken; without lists, all that the provider has but what is broken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsPolicy {
    /// The oldest version.
    pub version_min: TlsVersion,
    /// Names of cipher suites as the standards write them; `None` for all, else one at least for each version.
    pub ciphers: Option<Vec<String>>,
    /// Names of key exchange groups; `None` for all, else one at least.
    pub groups: Option<Vec<String>>,
}

impl TlsPolicy {
    /// The versions that are spoken.
    #[must_use]
    pub fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        static ONLY_1_3: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
        match self.version_min {
            TlsVersion::Tls12 => rustls::ALL_VERSIONS,
            TlsVersion::Tls13 => &ONLY_1_3,
        }
    }

    /// The provider with the suites and groups that are spoken, and no others.
    #[must_use]
    pub fn provider(&self) -> CryptoProvider {
        let mut provider = aws_lc_rs::default_provider();
        if let Some(names) = &self.ciphers {
            provider.cipher_suites.retain(|suite| names.contains(&suite_name(suite)));
        }
        if let Some(names) = &self.groups {
            provider.kx_groups.retain(|group| names.contains(&group_name(*group)));
        }
        provider
    }
}

pub(super) fn policy(place: &Place<'_>, section: &ListenSection) -> Result<TlsPolicy, ConfigError> {
    let given = [
        ("tls_version_min", section.tls_version_min.is_some()),
        ("ciphers", section.ciphers.is_some()),
        ("key_exchange", section.key_exchange.is_some()),
    ];
    if let Some((key, _)) = given.into_iter().find(|(_, given)| *given && !section.tls) {
        return Err(place.problem(key, "found it without TLS", "leave it out, or add tls = true"));
    }
    let policy = TlsPolicy {
        version_min: section.tls_version_min.unwrap_or_default(),
        ciphers: names(place, "ciphers", section.ciphers.as_deref(), aws_lc_rs::DEFAULT_CIPHER_SUITES, suite_name)?,
        groups: names(place, "key_exchange", section.key_exchange.as_deref(), aws_lc_rs::DEFAULT_KX_GROUPS, |group| {
            group_name(*group)
        })?,
    };
    let provider = policy.provider();
    for version in policy.versions() {
        if !provider.cipher_suites.iter().any(|suite| suite.version() == *version) {
            let remedy = "add one: a version that is spoken needs it; without 1.2 say tls_version_min = \"1.3\"";
            let found = format_args!("found none for TLS {}", version_name(version));
            return Err(place.problem("ciphers", found, remedy));
        }
        if !provider.kx_groups.iter().any(|group| group.usable_for_version(version.version)) {
            let remedy = "add one, such as \"X25519\": a version that is spoken needs it";
            let found = format_args!("found none for TLS {}", version_name(version));
            return Err(place.problem("key_exchange", found, remedy));
        }
    }
    if let Some(unused) = provider.cipher_suites.iter().find(|suite| !policy.versions().contains(&suite.version()))
        && policy.ciphers.is_some()
    {
        let name = suite_name(unused);
        let found = format_args!("{name} is of TLS 1.2, which is not spoken");
        return Err(place.problem("ciphers", found, "leave it out, or say tls_version_min = \"1.2\""));
    }
    Ok(policy)
}

/// The names of those among `all` that `given` lists, in whatever case.
fn names<T>(
    place: &Place<'_>,
    key: &str,
    given: Option<&[String]>,
    all: &[T],
    name: impl Fn(&T) -> String,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(given) = given else { return Ok(None) };
    let known: Vec<_> = all.iter().map(name).collect();
    let mut found: Vec<String> = Vec::new();
    for text in given {
        let Some(name) = known.iter().find(|name| name.eq_ignore_ascii_case(text)) else {
            let remedy = format!("expected some of {}", known.join(", "));
            return Err(place.problem(key, format_args!("found {text:?}"), remedy));
        };
        if found.contains(name) {
            return Err(place.problem(key, format_args!("{name} is there twice"), "keep one of them"));
        }
        found.push(name.clone());
    }
    if found.is_empty() {
        let remedy = format!("expected some of {}; leave it out for all", known.join(", "));
        return Err(place.problem(key, "the list is empty", remedy));
    }
    Ok(Some(found))
}

/// As in RFC 8446: rustls says `TLS13_` where the standard says `TLS_`.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.strip_prefix("TLS13_").map_or_else(|| name.to_owned(), |rest| format!("TLS_{rest}"))
}

fn group_name(group: &dyn SupportedKxGroup) -> String {
    NamedGroup::as_str(&group.name()).unwrap_or_default().to_owned()
}

fn version_name(version: &SupportedProtocolVersion) -> &'static str {
    if *version == rustls::version::TLS13 { "1.3" } else { "1.2" }
}

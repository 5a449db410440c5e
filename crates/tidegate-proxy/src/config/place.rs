//! A section of the file, for errors in it.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_runtime::config::units::{Bytes, Span};
use tidegate_runtime::config::{ConfigError, Document};

use crate::config::words::Cidr;

/// A section of the file, for errors in it.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) document: &'a Document,
    pub(super) key: String,
}

impl<'a> Place<'a> {
    pub(super) fn below(&self, key: impl Display) -> Place<'a> {
        Place { document: self.document, key: format!("{}.{key}", self.key) }
    }

    pub(super) fn problem(&self, key: &str, found: impl Display, remedy: impl Display) -> ConfigError {
        self.document.problem(&format!("{}.{key}", self.key), found, remedy)
    }

    /// `given`, or `default`, if it is in `bounds`.
    pub(super) fn number<T: PartialOrd + Display + Copy>(
        &self,
        key: &str,
        given: Option<T>,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> Result<T, ConfigError> {
        let value = given.unwrap_or(default);
        if bounds.contains(&value) {
            return Ok(value);
        }
        let remedy = format!("expected a number from {} to {}", bounds.start(), bounds.end());
        Err(self.problem(key, format_args!("found {value}"), remedy))
    }

    /// `given`, or `default`, if it is neither shorter than `least` nor longer than a day.
    pub(super) fn span(
        &self,
        key: &str,
        given: Option<Span>,
        default: Duration,
        least: Duration,
    ) -> Result<Duration, ConfigError> {
        let span = given.map_or(default, |Span(span)| span);
        if span < least || span > Duration::from_hours(24) {
            let remedy = format!("expected a duration from {least:?} to 24h");
            return Err(self.problem(key, format_args!("found {span:?}"), remedy));
        }
        Ok(span)
    }

    /// Bytes that fit a `T`, from `least` on.
    pub(super) fn bytes<T: TryFrom<u64>>(
        &self,
        key: &str,
        given: Option<Bytes>,
        default: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<T, ConfigError> {
        let bytes = self.number(key, given.map(|Bytes(bytes)| bytes), default, bounds)?;
        T::try_from(bytes).map_err(|_| self.problem(key, format_args!("found {bytes}"), "expected fewer bytes"))
    }
}

/// A host name, perhaps with `*.` before it, in lower case.
pub(super) fn host_name(place: &Place<'_>, key: &str, text: &str) -> Result<String, ConfigError> {
    let name = text.to_ascii_lowercase();
    let plain = name.strip_prefix("*.").unwrap_or(&name);
    let is_label = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c))
    };
    let is_name = plain.len() <= 253 && plain.split('.').all(is_label);
    let is_address = plain.parse::<std::net::Ipv6Addr>().is_ok();
    if is_name || is_address {
        return Ok(name);
    }
    let remedy = "expected a host name without scheme and port, such as \"shop.example.com\" or \"*.example.com\"";
    Err(place.problem(key, format_args!("found {text:?}"), remedy))
}

/// A name of our own: what fits a log line, a metric and a path.
pub(super) fn own_name(place: &Place<'_>, key: &str, name: &str) -> Result<(), ConfigError> {
    if !name.is_empty() && name.len() <= 253 && name.bytes().all(|c| c.is_ascii_graphic() && c != b'"' && c != b'\\') {
        return Ok(());
    }
    let remedy = "expected 1 to 253 visible ASCII characters without quotes and backslashes";
    Err(place.problem(key, format_args!("found {name:?}"), remedy))
}

/// Reads a list of ranges by name.
pub(super) type Lists = std::collections::BTreeMap<String, Vec<Cidr>>;

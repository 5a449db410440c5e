//! Where an etcd is, and how long it is waited for. Plain values, which every build can read from a configuration.

use std::path::PathBuf;
use std::time::Duration;

/// Most endpoints. An etcd of more than seven nodes is slower, not safer.
pub const MAX_ENDPOINTS: usize = 16;
/// Longest prefix: as much as requests have room for beside their keys.
const MAX_PREFIX_BYTES: usize = 128;

/// Where a user's password is if no file is named.
pub const PASSWORD_VARIABLE: &str = "TIDEGATE_ETCD_PASSWORD";

/// Files for TLS to `https` endpoints. They are read when the store is connected.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EtcdTls {
    /// Authorities that vouch for the nodes, as PEM; the system's if there is none.
    pub authorities: Option<PathBuf>,
    /// The certificate that this client shows, and its key, as PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Who this client is to an etcd that has users. The password is read whenever it is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdUser {
    /// The user.
    pub name: String,
    /// The password, in a file that only its owner can read; else it is in [`PASSWORD_VARIABLE`].
    pub password_file: Option<PathBuf>,
}

/// Where an etcd is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdOptions {
    endpoints: Vec<String>,
    prefix: String,
    answer_within: Duration,
    tls: EtcdTls,
    user: Option<EtcdUser>,
}

/// What is wrong with such options.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdOptionsError {
    /// There is no endpoint.
    #[error("there is no endpoint")]
    NoEndpoint,
    /// There are too many.
    #[error("found {found} endpoints")]
    TooManyEndpoints {
        /// How many.
        found: usize,
    },
    /// One is neither `http://HOST:PORT` nor `https://HOST:PORT`.
    #[error("found {found:?}")]
    BadEndpoint {
        /// Its place in the list.
        index: usize,
        /// Its text.
        found: String,
    },
    /// There are files for TLS, and no endpoint is `https`.
    #[error("no endpoint is https")]
    NoTls,
    /// The prefix does not end with a slash, or is too long.
    #[error("found {found:?}")]
    BadPrefix {
        /// Its text.
        found: String,
    },
    /// The time is too short or too long.
    #[error("found {found:?}")]
    BadTime {
        /// The time.
        found: Duration,
    },
}

impl EtcdOptionsError {
    /// What to write instead.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::NoEndpoint => "name the nodes of the etcd, such as [\"http://10.0.0.1:2379\"]",
            Self::TooManyEndpoints { .. } => "name 16 at most: a client needs only some of the nodes",
            Self::BadEndpoint { .. } => "expected https://HOST:PORT or http://HOST:PORT, without a user or a path",
            Self::NoTls => "write the endpoints as https://HOST:PORT, or remove the key",
            Self::BadPrefix { .. } => "expected a text that ends with a slash, of 128 bytes at most",
            Self::BadTime { .. } => "expected 50ms to 10s",
        }
    }
}

impl EtcdOptions {
    /// Under which keys everything is by default.
    pub const PREFIX: &'static str = "/tidegate/";
    /// How long a node has for an answer by default. An etcd on disks answers within some 10 ms; a leader that stands still
    /// costs two or three of these beside the 1 s to 2 s of an election.
    pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);

    /// The nodes at `endpoints`, in the order in which they are tried.
    ///
    /// # Errors
    /// If there is none, more than [`MAX_ENDPOINTS`], or one that is neither `http://HOST:PORT` nor `https://HOST:PORT`.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, EtcdOptionsError> {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        if endpoints.is_empty() {
            return Err(EtcdOptionsError::NoEndpoint);
        }
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(EtcdOptionsError::TooManyEndpoints { found: endpoints.len() });
        }
        if let Some(index) = endpoints.iter().position(|endpoint| !is_endpoint(endpoint)) {
            return Err(EtcdOptionsError::BadEndpoint { index, found: endpoints[index].clone() });
        }
        Ok(Self {
            endpoints,
            prefix: Self::PREFIX.to_owned(),
            answer_within: Self::ANSWER_WITHIN,
            tls: EtcdTls::default(),
            user: None,
        })
    }

    /// With these files for its `https` endpoints.
    ///
    /// # Errors
    /// If there is a file, and no such endpoint.
    pub fn tls(self, tls: EtcdTls) -> Result<Self, EtcdOptionsError> {
        let is_https = |endpoint: &String| endpoint.starts_with(HTTPS);
        if tls != EtcdTls::default() && !self.endpoints.iter().any(is_https) {
            return Err(EtcdOptionsError::NoTls);
        }
        Ok(Self { tls, ..self })
    }

    /// As this user of the etcd.
    #[must_use]
    pub fn user(self, user: EtcdUser) -> Self {
        Self { user: Some(user), ..self }
    }

    /// Everything is under keys that begin with `prefix`.
    ///
    /// # Errors
    /// If it does not end with a slash, or is longer than 128 bytes.
    pub fn prefix(self, prefix: impl Into<String>) -> Result<Self, EtcdOptionsError> {
        let prefix = prefix.into();
        if !prefix.ends_with('/') || prefix.len() > MAX_PREFIX_BYTES {
            return Err(EtcdOptionsError::BadPrefix { found: prefix });
        }
        Ok(Self { prefix, ..self })
    }

    /// A node that does not answer within `time` is left for the next one.
    ///
    /// # Errors
    /// If it is shorter than 50 ms or longer than 10 s.
    pub fn answer_within(self, time: Duration) -> Result<Self, EtcdOptionsError> {
        if time < Duration::from_millis(50) || time > Duration::from_secs(10) {
            return Err(EtcdOptionsError::BadTime { found: time });
        }
        Ok(Self { answer_within: time, ..self })
    }

    /// The nodes.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The files for TLS.
    #[must_use]
    pub const fn tls_files(&self) -> &EtcdTls {
        &self.tls
    }

    /// The user, if the etcd has users.
    #[must_use]
    pub const fn as_user(&self) -> Option<&EtcdUser> {
        self.user.as_ref()
    }

    /// What all keys begin with.
    #[must_use]
    pub fn key_prefix(&self) -> &str {
        &self.prefix
    }

    /// How long a node has for an answer.
    #[must_use]
    pub const fn time_of_answer(&self) -> Duration {
        self.answer_within
    }
}

/// What endpoints with TLS begin with.
const HTTPS: &str = "https://";

/// Whether it is `http://HOST:PORT` or `https://HOST:PORT`.
fn is_endpoint(text: &str) -> bool {
    let rest = text.strip_prefix(HTTPS).or_else(|| text.strip_prefix("http://"));
    let Some((host, port)) = rest.and_then(|rest| rest.rsplit_once(':')) else { return false };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let hosts = if bracketed {
        host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        !host.is_empty() && host.chars().all(named)
    };
    hosts && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port_over_http_or_https() {
        for endpoint in [
            "http://127.0.0.1:2379",
            "http://etcd-1.internal:2379",
            "http://[::1]:2379",
            "https://etcd-1.internal:2379",
        ] {
            assert!(is_endpoint(endpoint), "{endpoint}");
        }
        for endpoint in [
            "",
            "127.0.0.1:2379",
            "ftp://127.0.0.1:2379",
            "https://etcd/2379",
            "http://127.0.0.1",
            "http://127.0.0.1:0",
            "http://127.0.0.1:2379/",
            "http://me:secret@etcd:2379",
            "http://:2379",
            "http://[x]:2379",
        ] {
            assert!(!is_endpoint(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = EtcdOptions::new(["http://a:1", "b:2"]).unwrap_err();
        assert_eq!(error, EtcdOptionsError::BadEndpoint { index: 1, found: "b:2".to_owned() });
        assert_eq!(EtcdOptions::new(Vec::<String>::new()).unwrap_err(), EtcdOptionsError::NoEndpoint);
        let options = EtcdOptions::new(["http://a:1"]).unwrap();
        assert_eq!((options.key_prefix(), options.time_of_answer()), ("/tidegate/", Duration::from_millis(500)));
        assert!(options.clone().prefix("tidegate").is_err());
        let tls = EtcdTls { authorities: Some("ca.pem".into()), identity: None };
        assert_eq!(options.clone().tls(tls.clone()), Err(EtcdOptionsError::NoTls));
        assert!(EtcdOptions::new(["https://a:1"]).unwrap().tls(tls).is_ok());
        assert!(options.answer_within(Duration::from_millis(1)).is_err());
    }
}

//! `[store]`: where limits that are set live outlast the process.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_runtime::config::units::Span;
use tidegate_runtime::config::{ConfigError, Document};
use tidegate_runtime::store::{EtcdOptions, EtcdOptionsError, EtcdTls, EtcdUser};

/// What a binary without the feature says of an etcd.
pub(crate) const WITHOUT_ETCD: &str = "found \"etcd\", and this tidegate is built without it";
/// What to do about it.
pub(crate) const WITH_ETCD: &str = "build it with `cargo build --release --features etcd`, or set store.kind to \"embedded\", which serves one process";

/// What to do about half of a pair.
const PAIR: &str = "a certificate and its key are given together";

/// The section, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    kind: Kind,
    path: Option<PathBuf>,
    endpoints: Option<Vec<String>>,
    prefix: Option<String>,
    answer_within: Option<Span>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Embedded,
    Etcd,
}

/// Which store there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StorePlace {
    /// A file, for this process.
    Embedded(PathBuf),
    /// An etcd, for several.
    Etcd(EtcdOptions),
}

impl StoreSection {
    /// `data_path` is where the file is by default.
    pub(crate) fn check(self, document: &Document, data_path: &Path) -> Result<StorePlace, ConfigError> {
        match self.kind {
            Kind::Embedded => {
                let of_etcd = [
                    ("store.endpoints", self.endpoints.is_some()),
                    ("store.prefix", self.prefix.is_some()),
                    ("store.answer_within", self.answer_within.is_some()),
                    ("store.ca_file", self.ca_file.is_some()),
                    ("store.cert_file", self.cert_file.is_some()),
                    ("store.key_file", self.key_file.is_some()),
                    ("store.user", self.user.is_some()),
                    ("store.password_file", self.password_file.is_some()),
                ];
                if let Some((key, _)) = of_etcd.into_iter().find(|(_, given)| *given) {
                    let remedy = "add kind = \"etcd\" to [store], or remove the key";
                    return Err(document.problem(key, "only an etcd has it", remedy));
                }
                Ok(StorePlace::Embedded(self.path.unwrap_or_else(|| data_path.join("control.redb"))))
            }
            Kind::Etcd if cfg!(not(feature = "etcd")) => Err(document.problem("store.kind", WITHOUT_ETCD, WITH_ETCD)),
            Kind::Etcd => self.etcd(document),
        }
    }

    fn etcd(self, document: &Document) -> Result<StorePlace, ConfigError> {
        if self.path.is_some() {
            let remedy = "remove the key, or set store.kind to \"embedded\"";
            return Err(document.problem("store.path", "an etcd has its own files", remedy));
        }
        let tls_key = [
            ("store.ca_file", self.ca_file.is_some()),
            ("store.cert_file", self.cert_file.is_some()),
            ("store.key_file", self.key_file.is_some()),
        ];
        let tls_key = tls_key.into_iter().find_map(|(key, given)| given.then_some(key)).unwrap_or("store.endpoints");
        let identity = match (self.cert_file, self.key_file) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(document.problem("store.cert_file", "key_file is missing", PAIR)),
            (None, Some(_)) => return Err(document.problem("store.key_file", "cert_file is missing", PAIR)),
        };
        if self.password_file.is_some() && self.user.is_none() {
            let remedy = "name the user with store.user, or remove the key";
            return Err(document.problem("store.password_file", "there is no user", remedy));
        }
        let read = || {
            let options = EtcdOptions::new(self.endpoints.unwrap_or_default())?;
            let mut options = options.tls(EtcdTls { authorities: self.ca_file, identity })?;
            if let Some(name) = self.user {
                options = options.user(EtcdUser { name, password_file: self.password_file });
            }
            if let Some(prefix) = self.prefix {
                options = options.prefix(prefix)?;
            }
            match self.answer_within {
                Some(Span(time)) => options.answer_within(time),
                None => Ok(options),
            }
        };
        let wrong = |error: EtcdOptionsError| {
            let key = match &error {
                EtcdOptionsError::BadEndpoint { index, .. } => format!("store.endpoints[{index}]"),
                EtcdOptionsError::BadPrefix { .. } => "store.prefix".to_owned(),
                EtcdOptionsError::BadTime { .. } => "store.answer_within".to_owned(),
                EtcdOptionsError::NoTls => tls_key.to_owned(),
                _ => "store.endpoints".to_owned(),
            };
            document.problem(&key, &error, error.remedy())
        };
        read().map(StorePlace::Etcd).map_err(wrong)
    }
}

impl StorePlace {
    /// What works, and is probably not meant.
    pub(crate) fn warning(&self) -> Option<String> {
        let Self::Etcd(options) = self else { return None };
        let near = ["https://", "http://127.", "http://localhost:", "http://[::1]:"];
        let far = options.endpoints().iter().find(|endpoint| !near.iter().any(|start| endpoint.starts_with(start)))?;
        let more = match options.as_user() {
            Some(_) => "and so does the password of store.user",
            None => "and whoever reaches it can change them",
        };
        Some(format!(
            "store.endpoints has {far}, which other machines may reach: limits travel there unencrypted, {more}"
        ))
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(path) => write!(f, "{}", path.display()),
            Self::Etcd(options) => write!(
                f,
                "{} under {}, {:?}",
                options.endpoints().join(", "),
                options.key_prefix(),
                options.time_of_answer()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        store: StoreSection,
    }

    fn read(text: &str) -> Result<StorePlace, String> {
        let document = Document::new("tidegate.toml", format!("[store]\n{text}\n"));
        let File { store } = document.parse().map_err(|error| error.to_string())?;
        store.check(&document, Path::new("data")).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_word_it_is_a_file_in_the_data_path() {
        assert_eq!(read(""), Ok(StorePlace::Embedded("data/control.redb".into())));
        assert_eq!(read("kind = \"embedded\"\npath = \"x.redb\""), Ok(StorePlace::Embedded("x.redb".into())));
    }

    #[test]
    fn keys_of_the_other_kind_are_errors() {
        assert_eq!(
            read("prefix = \"/a/\"").unwrap_err(),
            "tidegate.toml:2: store.prefix: only an etcd has it; add kind = \"etcd\" to [store], or remove the key"
        );
        assert!(read("kind = \"zookeeper\"").unwrap_err().contains("expected `embedded` or `etcd`"));
    }

    #[cfg(not(feature = "etcd"))]
    #[test]
    fn a_binary_without_etcd_says_so_and_how_to_get_one() {
        assert_eq!(
            read("path = \"x\"\nkind = \"etcd\"").unwrap_err(),
            "tidegate.toml:3: store.kind: found \"etcd\", and this tidegate is built without it; build it with `cargo build \
             --release --features etcd`, or set store.kind to \"embedded\", which serves one process"
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn an_etcd_is_its_nodes_and_a_prefix() {
        use std::time::Duration;

        let etcd = |rest: &str| read(&format!("kind = \"etcd\"\n{rest}"));
        let nodes = "endpoints = [\"http://10.0.0.1:2379\", \"http://10.0.0.2:2379\"]";
        let Ok(StorePlace::Etcd(options)) = etcd(nodes) else { panic!("it is whole") };
        assert_eq!((options.endpoints().len(), options.key_prefix()), (2, "/tidegate/"));
        let Ok(StorePlace::Etcd(options)) = etcd(&format!("{nodes}\nprefix = \"/a/\"\nanswer_within = \"2s\"")) else {
            panic!("it is whole")
        };
        assert_eq!((options.key_prefix(), options.time_of_answer()), ("/a/", Duration::from_secs(2)));
        assert!(StorePlace::Etcd(options).warning().unwrap().contains("http://10.0.0.1:2379"));
        let Ok(near) = etcd("endpoints = [\"http://127.0.0.1:2379\"]") else { panic!("it is whole") };
        assert_eq!(near.warning(), None);
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn what_is_wrong_with_an_etcd_is_said_at_its_key() {
        let error = |rest: &str| read(&format!("kind = \"etcd\"\n{rest}")).unwrap_err();
        let tls = "endpoints = [\"https://a:1\"]";
        assert!(error(&format!("{tls}\ncert_file = \"a.pem\"")).contains("store.cert_file: key_file is missing"));
        assert!(error(&format!("{tls}\npassword_file = \"p\"")).contains("store.password_file: there is no user"));
        let plain = "endpoints = [\"http://a:1\"]\nca_file = \"ca.pem\"";
        assert!(error(plain).contains("tidegate.toml:4: store.ca_file: no endpoint is https"), "{}", error(plain));
        let ok = "endpoints = [\"http://a:1\"]";
        assert!(error("").contains("store.endpoints: there is no endpoint; name the nodes of the etcd"));
        let second = error("endpoints = [\n\"http://a:1\",\n\"ftp://b:2\"]");
        assert!(second.starts_with("tidegate.toml:5: store.endpoints[1]: found \"ftp://b:2\""), "{second}");
        assert!(error(&format!("{ok}\nprefix = \"a\"")).starts_with("tidegate.toml:4: store.prefix: found \"a\""));
        assert!(error(&format!("{ok}\nanswer_within = \"1ms\"")).starts_with("tidegate.toml:4: store.answer_within"));
        assert!(error(&format!("{ok}\npath = \"a\"")).starts_with("tidegate.toml:4: store.path: an etcd has"));
    }
}

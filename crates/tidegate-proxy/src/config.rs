//! `[proxy]` of `tidegate.toml`, checked once.
//!
//! | module | its one job |
//! |---|---|
//! | [`words`] | the words and small values of the section |
//! | `section` | the section as it is written, every key optional |
//! | `check`, `edges` | from one to the other, with errors that name file, line, key, value and remedy |
//! | `place` | a section of the file, for errors in it |
//! | [`checked`] | [`Config`]: every default applied, every bound checked |
//! | [`paths`] | the form of a path that routes are found by |
//! | [`routes`] | which route a request takes |
//! | [`tenancy`] | whose request it is |
//! | `tls` | what of TLS a listener speaks |
//!
//! A file with an address, an upstream and a route is enough, and nothing in it is tuned:
//!
//! ```
//! use tidegate_proxy::config::Config;
//! use tidegate_runtime::config::Document;
//!
//! let text = r#"
//! [[proxy.listen]]
//! address = "127.0.0.1:8080"
//! [[proxy.upstream]]
//! name = "shop"
//! servers = ["127.0.0.1:9000"]
//! [[proxy.route]]
//! upstream = "shop"
//! "#;
//! let config = Config::from_document(&Document::new("tidegate.toml", text), 2)?;
//! assert_eq!(config.routes[0].path, "/");
//! # Ok::<(), tidegate_runtime::config::ConfigError>(())
//! ```

mod check;
pub mod checked;
mod edges;
pub mod paths;
mod place;
pub mod routes;
mod section;
pub mod tenancy;
#[cfg(test)]
mod tests;
mod tls;
pub mod words;

pub use checked::{
    AccessLog, Amount, Certificate, ClientCertificate, Config, HeaderEdits, Health, Http, Limits, Listener, LogTarget,
    RateLimit, Retries, Route, Server, SniRule, Spool, Tenant, Tenants, Timeouts, Trust, Upstream, UpstreamTls,
};
pub use paths::PlainPath;
pub use routes::Routes;
pub use section::Section;
pub use tenancy::Tenancy;
pub use tls::TlsPolicy;
pub use words::{
    Balance, Cidr, Forwarded, HashBy, LogAlways, LogFormat, Mode, ProxyProtocolIn, ProxyProtocolOut, RateLimitHeaders,
    RefuseHello, Resolve, Statuses, TenantBy, TlsVersion, Trace, Unknown, UpstreamProtocol,
};

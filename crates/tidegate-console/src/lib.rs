//! The web console: its API, its event stream and the embedded pages.
//!
//! The console knows brokers and proxies only by their admin API, which it reads over HTTP. While somebody watches, one
//! poller asks each of them for its snapshot four times a second, derives rates from differences of counters, and streams
//! the result to at most [`MAX_WATCHERS`] pages. Writes (limits, pause, empty, undo, a proxy's mode, the demo's load) are
//! passed on after the console's own token was checked. A control is asked for its placements, its brokers for what they
//! lend, and a shaper for its classes, when a page asks.
//!
//! | module | job |
//! |---|---|
//! | [`config`] | what the console is told at start |
//! | `snapshot` | the admin API's snapshot, as far as the console reads it |
//! | `rates` | counters to rates |
//! | `view` | what a page is shown: rows and brokers |
//! | `neighbours` | what a page is shown of proxies: who uses what, who lends, who was refused |
//! | `series` | the last five minutes of each row |
//! | `frame` | one state of everything, as a whole and as the difference to the one before |
//! | `feed` | the shared poller and its watchers |
//! | `lending` | what brokers lend each other, as each tells of itself |
//! | `admin_client` | requests to brokers and to the demo, bounded in time and size |
//! | `api` | the console's own HTTP API |
//! | `guard` | Host, Origin, token and security headers |
//! | `assets` | the embedded pages |
//!
//! ```no_run
//! use tidegate_console::{BrokerSource, ConsoleConfig, router};
//!
//! # async fn serve() -> std::io::Result<()> {
//! let broker = BrokerSource {
//!     name: "local".to_owned(),
//!     admin_url: "http://127.0.0.1:4160".to_owned(),
//!     token: Some("the broker's token".to_owned()),
//! };
//! let config = ConsoleConfig {
//!     brokers: vec![broker],
//!     write_token: "the console's token".to_owned(),
//!     ..ConsoleConfig::default()
//! };
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:7070").await?;
//! axum::serve(listener, router(config)).await
//! # }
//! ```
//!
//! It does not listen, does not speak TLS and keeps nothing on disk: limits live in the broker.

mod admin_client;
mod api;
mod assets;
pub mod config;
mod feed;
mod frame;
mod guard;
mod lending;
mod neighbours;
mod rates;
mod series;
mod snapshot;
mod view;

pub use api::router;
pub use config::{BrokerSource, ConfigError, ConsoleConfig, ControlSource, ProxySource, ShaperSource};
pub use feed::MAX_WATCHERS;

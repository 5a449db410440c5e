//! The proxy itself: sockets, TLS, HTTP and time around the machines.
//!
//! | module | its one job |
//! |---|---|
//! | `listen` | threads, their ports, and connections until they are served |
//! | `conn` | a connection: its bytes, its time, and its account |
//! | `request` | a request: judged, sent to its upstream, answered, logged |
//! | `http1`, `http2` | what is spoken |
//! | `spool` | large bodies on disk |
//! | `upstream` | servers, connections to them, their health |
//! | [`admin`] | the proxy's own API |
//! | [`answers`] | what upstreams send, without sockets: for tests |
//!
//! ```no_run
//! use tidegate_proxy::{config::Config, io::Proxy};
//! use tidegate_runtime::config::Document;
//!
//! let text = std::fs::read_to_string("tidegate.toml")?;
//! let proxy = Proxy::start(Config::from_document(&Document::new("tidegate.toml", text), 2)?)?;
//! println!("{:?}", proxy.addresses());
//! proxy.drain();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod admin;
pub mod answers;
mod conn;
mod http1;
mod http2;
mod lend;
mod listen;
mod request;
mod spool;
mod upstream;

pub use conn::tls::certificate_warnings;
pub use listen::files::{FileProblem, check_files};
pub use listen::ports::Passed;
pub use listen::proxy::{Ports, Proxy};
pub use request::access_log;

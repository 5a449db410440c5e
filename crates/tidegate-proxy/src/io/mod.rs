//! The proxy itself: sockets, TLS, HTTP and time around the machines.
//!
//! | module | its one job |
//! |---|---|
//! | `conn` | a connection: its bytes, its time, and its account |
//! | `request` | a request: judged, sent to its upstream, answered, logged |
//! | `worker` | the threads: one for each core, and two beside it |
//! | `ports` | ports of all threads, and what holds for who comes by one |
//! | `accept`, `hello` | a connection: taken, judged by its first bytes, served |
//! | `starts` | whose handshake begins next |
//! | `signer` | what the core's other threads compute: handshakes beyond their tenants' shares |
//! | `cpu` | a quota of processor time, and what is left of it |
//! | `refused` | connections that are refused, until they are ended |
//! | `seats` | who is ended when there is no room for one more |
//! | `files` | what is wrong with the files that a configuration names |
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

mod accept;
pub mod admin;
pub mod answers;
mod conn;
mod cpu;
mod files;
mod hello;
mod http1;
mod http2;
mod listen;
mod ports;
mod proxy;
mod refused;
mod request;
mod seats;
mod settings;
mod signer;
mod spool;
mod starts;
mod thread;
mod upstream;
mod worker;

pub use conn::tls::certificate_warnings;
pub use files::{FileProblem, check_files};
pub use ports::Passed;
pub use proxy::{Ports, Proxy};
pub use request::access_log;

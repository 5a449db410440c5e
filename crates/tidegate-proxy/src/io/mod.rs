//! The proxy itself: sockets, TLS, HTTP and time around the machines.
//!
//! | module | its one job |
//! |---|---|
//! | `request` | a request: judged, sent to its upstream, answered, logged |
//! | `worker` | the threads: one for each core, and two beside it |
//! | `ports` | ports of all threads, and what holds for who comes by one |
//! | `accept`, `hello`, `serve` | a connection: taken, judged by its first bytes, served |
//! | `fair` | whose tasks run next, where several tenants have some |
//! | `starts` | whose handshake begins next |
//! | `signer` | what the core's other threads compute: handshakes beyond their tenants' shares |
//! | `cpu` | a quota of processor time, and what is left of it |
//! | `waits` | requests that wait until their tenants may have more |
//! | `refused` | connections that are refused, until they are ended |
//! | `seats` | who is ended when there is no room for one more |
//! | `tls`, `socket`, `transport` | certificates by name; a client's socket; with or without TLS |
//! | `server_stream` | a server's socket, with or without TLS |
//! | `ocsp`, `tickets` | what is stapled to a certificate; sessions that several nodes resume |
//! | `files` | what is wrong with the files that a configuration names |
//! | `http1`, `http2`, `websocket` | what is spoken |
//! | `pace` | bodies and tunnels that go on when they may |
//! | `spool` | large bodies on disk |
//! | `upstream` | servers, connections to them, their health |
//! | `limiter`, `account`, `meter` | the machines at work; what a tenant uses |
//! | `timers` | time-outs |
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
mod account;
pub mod admin;
pub mod answers;
mod conn;
mod cpu;
mod fair;
mod files;
mod hello;
mod http1;
mod http2;
mod limiter;
mod listen;
mod meter;
mod ocsp;
mod pace;
mod ports;
mod proxy;
mod refused;
mod request;
mod seats;
mod serve;
mod server_stream;
mod settings;
mod signer;
mod socket;
mod spool;
mod starts;
mod thread;
mod tickets;
mod timers;
mod tls;
mod transport;
mod upstream;
mod validity;
mod waits;
mod websocket;
mod worker;

pub use files::{FileProblem, check_files};
pub use ports::Passed;
pub use proxy::{Ports, Proxy};
pub use request::access_log;
pub use tls::certificate_warnings;

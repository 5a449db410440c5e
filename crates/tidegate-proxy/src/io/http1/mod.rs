//! HTTP/1.1 on both sides of the proxy.
//!
//! | module | its one job |
//! |---|---|
//! | `ahead` | what of a client's connection is in memory beyond what is counted for every connection |
//! | [`server`] | serves a client's connection: one request after another |
//! | [`request`] | a client's request: its head, and its body as it comes |
//! | [`client`] | a connection to an upstream: one exchange after another |
//! | [`answer`] | the head of an answer |
//! | [`decode`] | where a body ends |
//! | [`mod@write`] | heads and bodies as bytes |
//!
//! hyper's HTTP/1 would do for a proxy that serves a connection where it was accepted. Here a connection changes its
//! thread between two requests, before the second one is worked on, and both sides of an exchange run in one task, so
//! that its time is its tenant's and no channel stands between them.

mod ahead;
pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod decode;
pub(crate) mod request;
pub(crate) mod server;
pub(crate) mod write;

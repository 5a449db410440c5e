//! Bytes to messages and back, parsed here only.
//!
//! [`nsq`] is the NSQ TCP protocol, version 2; [`rpc`] is `tidegate-rpc`; [`lend`] is what parts of a limit that lend
//! each other tokens say. [`tls_hello`] and [`proxy_protocol`] are what
//! a connection to the proxy begins with, [`http1`] guards the requests that follow, [`http2`] is what a server of it begins
//! with, and [`trace_context`] says which trace requests belong to.

pub mod http1;
pub mod http2;
pub mod lend;
pub mod nsq;
pub mod proxy_protocol;
pub mod rpc;
pub mod tls_hello;
pub mod trace_context;

//! One connection: its bytes, its time, and the account that its work is on.
//!
//! | module | its one job |
//! |---|---|
//! | `serve` | a connection from its first byte to its last |
//! | `socket`, `transport` | a client's socket, with or without TLS |
//! | `server_stream` | a server's socket, with or without TLS |
//! | `tls` | certificates by name |
//! | `keys` | private keys, for each kind of thread its own |
//! | `ocsp`, `tickets` | what is stapled to a certificate; sessions that several nodes resume |
//! | `validity`, `der` | until when a certificate is valid; elements of DER |
//! | `websocket` | what goes both ways after an upgrade |
//! | `limiter`, `account`, `meter` | the machines at work; what a tenant uses |
//! | `fair` | whose tasks run next, where several tenants have some |
//! | `waits` | requests that wait until their tenants may have more |
//! | `pace` | bodies and tunnels that go on when they may |
//! | `held` | what connections and streams hold in memory |
//! | `timers` | time-outs |
//! | `processor` | on which processor a thread runs, and before which others |

pub(crate) mod account;
pub(crate) mod der;
pub(crate) mod fair;
pub(crate) mod held;
pub(crate) mod keys;
pub(crate) mod limiter;
pub(crate) mod meter;
pub(crate) mod ocsp;
pub(crate) mod pace;
pub(crate) mod processor;
pub(crate) mod serve;
pub(crate) mod server_stream;
pub(crate) mod socket;
pub(crate) mod tickets;
pub(crate) mod timers;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod validity;
pub(crate) mod waits;
pub(crate) mod websocket;

//! HTTP/1.x requests, checked before any HTTP library sees them.
//!
//! [`Guard`] follows a connection's requests and lets through what every careful reader understands alike; [`hop`] says
//! which fields go no further than this connection; [`vectors`] reads the cases that hold both, and any other proxy, to
//! account.
//!
//! ```
//! use tidegate_wire::http1::{Guard, Limits};
//!
//! let mut guard = Guard::new(Limits::default());
//! let sound = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
//! assert_eq!(guard.feed(sound), Ok(sound.len()));
//! let two_lengths = b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
//! assert_eq!(guard.feed(two_lengths).map_err(|violation| violation.status), Err(400));
//! ```

mod chunk;
mod glance;
mod grammar;
mod guard;
mod head;
pub mod hop;
mod limits;
mod target;
pub mod vectors;

pub use glance::glance_host;
pub use guard::{Guard, Phase};
pub use limits::{Limits, Violation};

/// Whether `value` can stand in a `Host`: a name, an IPv4 or a bracketed IPv6 address, and perhaps a port.
///
/// What the guard asks of HTTP/1; for requests that came by another way.
#[must_use]
pub fn is_host(value: &[u8]) -> bool {
    target::host(value).is_ok()
}

/// Whether `target` can be asked for with `method`: a sound path and query, `*` or an address, as the method wants.
///
/// What the guard asks of HTTP/1; for requests that came by another way.
#[must_use]
pub fn is_target(method: &[u8], target: &[u8]) -> bool {
    target::form(target::Method::of(method), target).is_ok()
}

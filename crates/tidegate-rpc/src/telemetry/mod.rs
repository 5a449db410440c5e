//! What a server does and lacks, for programs and people.
//!
//! Any service with a [`ServerLayer`](crate::io::layer::ServerLayer) has it:
//!
//! ```
//! use tidegate_rpc::io::layer::ServerLayer;
//!
//! let layer = ServerLayer::default();
//! let telemetry = layer.telemetry();
//! // From time to time, for Prometheus or a page of one's own:
//! let figures = telemetry.figures();
//! assert_eq!(figures.calls.offered_total, 0);
//! assert!(telemetry.prometheus().contains("\ntidegate_rpc_offered_calls_total 0\n"));
//! // What is short, and why, in one sentence.
//! assert!(figures.short.unwrap().sentence.starts_with("Nothing is short"));
//! ```
//!
//! | module | its one job |
//! |---|---|
//! | `book` | what is counted |
//! | `calls` | calls by what became of them, and classes of priorities |
//! | `changes` | changes of the server's state, for `tracing` |
//! | [`console`] | the page, as a service (feature `console`) |
//! | `figures` | a server at one moment |
//! | `meter` | the metrics for OpenTelemetry (feature `opentelemetry`) |
//! | `metrics` | the list of metrics |
//! | [`prometheus`] | the metrics as text |
//! | `tenants` | rows for the tenants with the most calls |
//!
//! With `tracing`, whoever subscribes is told when calls are held back and no longer, when something else is short, and when a dry
//! run begins and ends: a few lines a minute at most, whatever the load. No refusal is a line.
//!
//! It keeps no history and sends nothing anywhere.

mod book;
mod calls;
mod changes;
#[cfg(feature = "console")]
pub mod console;
mod figures;
#[cfg(feature = "opentelemetry")]
mod meter;
mod metrics;
pub mod prometheus;
mod tenants;

use core::fmt;
use core::net::IpAddr;
use std::borrow::Cow;
use std::sync::Arc;

use tidegate_core::Instant;

pub use self::book::{Book, CallOf, Serving};
pub use self::calls::{Calls, Class};
pub(crate) use self::changes::{Change, Reporter};
pub use self::figures::{CLIENTS, CallsTotal, ClassRow, ClientRow, Control, Figures, Look, ShortRow, TenantRow, Times};

use crate::io::layer::Seen;

/// Where figures come from.
pub(crate) trait Source: Send + Sync {
    /// What is to be seen now.
    fn look(&self) -> Look;
    /// The clock.
    fn now(&self) -> Instant;
    /// The address of a request's peer.
    #[cfg_attr(not(feature = "console"), expect(dead_code, reason = "only the console tells peers apart"))]
    fn peer(&self, seen: Seen<'_>) -> Option<IpAddr>;
}

/// A server's figures, for whoever asks. Clones ask the same server.
#[derive(Clone)]
pub struct Telemetry {
    source: Arc<dyn Source>,
    name: Cow<'static, str>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Telemetry {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self { source, name: "tidegate".into() }
    }

    /// With another name for the scheme, which is `tidegate`.
    #[must_use]
    pub fn named(mut self, scheme: impl Into<Cow<'static, str>>) -> Self {
        self.name = scheme.into();
        self
    }

    /// The server now. O(sessions) under the layer's lock: for once a second, not for every call.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let look = self.source.look();
        Figures::of(self.name.clone(), &[look], self.source.now())
    }

    /// [`Self::figures`] as a page for Prometheus, of the type [`prometheus::CONTENT_TYPE`].
    #[must_use]
    pub fn prometheus(&self) -> String {
        prometheus::page(&self.figures())
    }
}

//! What a user may choose of the client's layer.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_runtime::clock;

use super::config::Seen;
use super::headers::read_grpc_timeout;
use crate::machine::{Priority, Tenant};

/// An extension of a request: how much it matters. [`Priority::DEFAULT`] without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallPriority(pub Priority);

/// An extension of a request: within which time its answer is worth something. Without it `grpc-timeout` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallBudget(pub Duration);

/// The client layer's settings.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Whom this client's calls belong to; the server may know better.
    pub tenant: Tenant,
    pub(super) exempt: Arc<dyn Fn(Seen<'_>) -> bool + Send + Sync>,
    pub(super) clock: fn() -> Instant,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            tenant: Tenant::default(),
            exempt: Arc::new(|seen| super::config::is_health_check(seen.uri)),
            clock: clock::now,
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl ClientConfig {
    /// Requests that the rule is true for pass by. By default health checks.
    #[must_use]
    pub fn exempt(mut self, rule: impl Fn(Seen<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.exempt = Arc::new(rule);
        self
    }

    /// Another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: fn() -> Instant) -> Self {
        self.clock = clock;
        self
    }
}

/// What a request says about itself.
pub(super) fn wishes<B>(request: &http::Request<B>) -> (Priority, Option<Duration>) {
    let extensions = request.extensions();
    let priority = extensions.get().map_or(Priority::DEFAULT, |CallPriority(priority)| *priority);
    let budget = extensions.get().map(|CallBudget(budget)| *budget);
    (priority, budget.or_else(|| read_grpc_timeout(request.headers())))
}

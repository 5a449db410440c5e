//! What a user may choose of the client's layer.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use tidegate_core::Instant;
use tidegate_core::limit::RetryTerms;
use tidegate_runtime::clock;

use super::config::Seen;
use super::current::CallContext;
use super::headers::{PREVIOUS_ATTEMPTS, read_grpc_timeout};
use super::retry::Paid;
use crate::machine::{Priority, Tenant};

/// An extension of a request: how much it matters. Without it the priority of the call counts whose handler sends it,
/// see [`CallContext`]; outside of handlers [`Priority::DEFAULT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallPriority(pub Priority);

/// An extension of a request: within which time its answer is worth something. Without it `grpc-timeout` counts. A
/// handler leaves its calls no more than what it has left itself, see [`CallContext`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallBudget(pub Duration);

/// The client layer's settings.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// The tenant of this client's calls; the server may know better. If it is 0, a call that a handler makes has the
    /// tenant of the handler's own call.
    pub tenant: Tenant,
    /// What may be sent again. It binds [`RetryLayer`](super::RetryLayer), and callers that repeat calls themselves and say
    /// so in `grpc-previous-rpc-attempts`: beyond it their repeats fail here.
    pub retries: RetryConfig,
    pub(super) exempt: Arc<dyn Fn(Seen<'_>) -> bool + Send + Sync>,
    pub(super) clock: fn() -> Instant,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            tenant: Tenant::default(),
            retries: RetryConfig::default(),
            exempt: Arc::new(|seen| super::config::is_health_check(seen.uri)),
            clock: clock::now,
        }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("tenant", &self.tenant)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
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

/// What may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryConfig {
    /// Calls that may be sent again for 100 that were served. Default 10: in the worst case a tenth of the load is repeats.
    pub percent: u32,
    /// And each second besides, for callers that make few calls. Default 1; 0 for none.
    pub floor_per_s: u32,
    /// Of what was earned by served calls and not used, as many are kept. Default 10: what served calls of long ago earned
    /// shall not all be sent in the first moment of an overload.
    pub burst: u32,
    /// How often one call is sent at most, the first time included. Default 3.
    pub attempts: u32,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self { percent: 10, floor_per_s: 1, burst: 10, attempts: 3 }
    }
}

impl RetryConfig {
    /// What the budget allows. Served calls pay for it, refusals do not.
    pub(super) fn terms(&self) -> RetryTerms {
        RetryTerms { share: f64::from(self.percent) / 100.0, saved: self.burst, floor_per_s: self.floor_per_s }
    }
}

/// What a request says about itself, or inherits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wishes {
    pub(super) priority: Priority,
    pub(super) tenant: Tenant,
    /// Time within which it must be answered.
    pub(super) budget: Option<Duration>,
    /// Whether that is what a handler has left, and not what the request says.
    pub(super) is_inherited: bool,
    /// Whether its caller sends it again, and the budget has not been asked.
    pub(super) is_retry: bool,
}

impl Wishes {
    /// What `request` says or inherits when the layer gets it at `now`.
    pub(super) fn of<B>(request: &http::Request<B>, config: &ClientConfig, now: Instant) -> Self {
        let extensions = request.extensions();
        let context = extensions.get().cloned().or_else(CallContext::current).unwrap_or_default();
        let own = extensions.get().map(|CallBudget(budget)| *budget);
        let own = own.or_else(|| read_grpc_timeout(request.headers()));
        let left = context.deadline.map(|deadline| deadline.since(now));
        let is_inherited = left.is_some_and(|left| own.is_none_or(|own| left < own));
        Self {
            priority: extensions.get().map_or(context.priority, |CallPriority(priority)| *priority),
            tenant: if config.tenant == Tenant::default() { context.tenant } else { config.tenant },
            budget: if is_inherited { left } else { own },
            is_inherited,
            is_retry: is_retry(request.headers()) && extensions.get::<Paid>().is_none(),
        }
    }
}

/// Whether these are the headers of a call that was sent before.
fn is_retry(headers: &http::HeaderMap) -> bool {
    let before = headers.get(PREVIOUS_ATTEMPTS).map(http::HeaderValue::as_bytes);
    before.is_some_and(|before| before.iter().any(|digit| *digit != b'0'))
}

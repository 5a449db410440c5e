//! What a user may choose of the server's layer.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use http::{Extensions, HeaderMap, Uri};
use serde::Serialize;
use tidegate_core::Instant;
use tidegate_runtime::{clock, cpu};
use tokio::runtime::Handle;

use super::answer::Dialect;
use super::headers::read_ask;
use super::stamp;
use crate::machine::{Claims, Known, Priority, Tenant};

/// What a rule of the configuration sees of a request.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its target.
    pub uri: &'a Uri,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What the server and outer layers attached to it.
    pub extensions: &'a Extensions,
}

impl<'a> Seen<'a> {
    pub(super) fn of<B>(request: &'a http::Request<B>) -> Self {
        Self { uri: request.uri(), headers: request.headers(), extensions: request.extensions() }
    }

    /// The other end of its connection, if it is among its extensions; see [`ServerConfig::peer`].
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        stamp::peer(self.extensions)
    }

    /// The tenant that it claims to belong to, for a rule that believes some callers; `None` from callers without the
    /// layer.
    #[must_use]
    pub fn claimed_tenant(&self) -> Option<Tenant> {
        read_ask(self.headers).map(|ask| ask.tenant)
    }

    /// Likewise how much it claims to matter.
    #[must_use]
    pub fn claimed_priority(&self) -> Option<Priority> {
        read_ask(self.headers).map(|ask| ask.priority)
    }
}

/// Until when a call counts as running.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Until {
    /// Until its response head. A stream that lives for hours would otherwise hold a credit for hours and look like an
    /// hour of service; the answer of a unary call is complete when its head is.
    #[default]
    Head,
    /// Until the last byte of its body: for handlers that do their work while they stream. The grant then travels in
    /// the trailers, if the answer has any.
    Body,
}

/// Whether verdicts are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are.
    #[default]
    Enforce,
    /// They are only counted, everything is admitted, and no grants are sent. What would have been shed is found with a
    /// server on paper, on which calls take what they were measured to take: see [`crate::machine::shadow`].
    DryRun,
}

type Rule<T> = Arc<dyn Fn(Seen<'_>) -> T + Send + Sync>;
type NameRule = Arc<dyn for<'a> Fn(Seen<'a>) -> Option<&'a str> + Send + Sync>;

/// The server layer's settings.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Whether verdicts are carried out, until [`super::ServerLayer::set_mode`] says otherwise.
    pub mode: Mode,
    /// Until when a call counts as running.
    pub until: Until,
    /// How far callers are trusted that claim a tenant or a priority. By default no further than strangers:
    /// [`Claims::Untrusted`].
    pub claims: Claims,
    /// Threads of the executor that runs the handlers, at least 1: so many handlers are polled at a time. By default
    /// those of the tokio runtime in which the configuration is made; outside of any, as many as there are CPUs.
    pub threads: usize,
    /// How many times a call whose turn has come lets the rest of the run queue go first. Between two handlers,
    /// requests must be read (1), looked at (2) and refusals written (3).
    pub yields: u8,
    /// After so much time of handlers the run queue goes first again; sooner would cost more system calls than handlers
    /// of a few microseconds are worth, later would delay refusals.
    pub look_every: Duration,
    /// Sessions at most; beyond it calls are shed.
    pub sessions: usize,
    /// Admitted calls that no core has started, at most; beyond it calls are shed, whatever the machine would say.
    pub waiting: usize,
    /// A session that has been silent for so long, and for as long as the level holds that it was told, is closed, and
    /// what was granted to it is void.
    pub lease: Duration,
    /// What shed callers without the layer are asked to wait before they try again; spread by half of it to both sides.
    pub pushback: Duration,
    /// The number by which callers know this server among others that answer in its place, behind a balancer for
    /// example: from 1 to 2^53 - 1, or 0 for none. By default a random one.
    pub instance: u64,
    pub(super) exempt: Rule<bool>,
    pub(super) tenant: Option<Rule<Tenant>>,
    pub(super) priority: Option<Rule<Option<Priority>>>,
    pub(super) peer: Rule<Option<IpAddr>>,
    pub(super) method: NameRule,
    pub(super) clock: fn() -> Instant,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            until: Until::default(),
            claims: Claims::default(),
            threads: Handle::try_current().map_or_else(|_| cpu::cores(), |runtime| runtime.metrics().num_workers()),
            yields: 3,
            look_every: Duration::from_micros(200),
            // 100,000 sessions are some 20 MB with the machine's state.
            sessions: 100_000,
            // Far above what any scheme lets wait; a request may hold a few KiB while it does.
            waiting: 16_384,
            // Longer than any keep-alive pause of a busy client, short enough that a dead one is soon forgotten.
            lease: Duration::from_secs(10),
            // Callers without the layer know nothing better than a second; retry policies of gRPC double it.
            pushback: Duration::from_secs(1),
            // std's hasher is seeded from the system's randomness; 53 bits are a number in every language.
            instance: (RandomState::new().hash_one(0) >> 11).max(1),
            exempt: Arc::new(|seen| is_health_check(seen.uri)),
            tenant: None,
            priority: None,
            peer: Arc::new(|seen| seen.peer().map(|peer| peer.ip())),
            method: Arc::new(|seen| (Dialect::of(seen.headers) == Dialect::Grpc).then(|| seen.uri.path())),
            clock: clock::now,
        }
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("mode", &self.mode)
            .field("until", &self.until)
            .field("claims", &self.claims)
            .field("threads", &self.threads)
            .field("yields", &self.yields)
            .field("look_every", &self.look_every)
            .field("sessions", &self.sessions)
            .field("waiting", &self.waiting)
            .field("lease", &self.lease)
            .field("pushback", &self.pushback)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// CPUs that handlers can have at a time: as many as this process may use, quotas of its control groups rounded up,
    /// and at most one for each of the `threads`. A machine that is made for this layer wants this number.
    #[must_use]
    pub fn cores(&self) -> u32 {
        let cores = cpu::cores().min(self.threads);
        u32::try_from(cores).unwrap_or(u32::MAX)
    }

    /// Requests that the rule is true for pass by: they are neither counted as load nor shed. By default
    /// [`is_health_check`] of the path.
    #[must_use]
    pub fn exempt(mut self, rule: impl Fn(Seen<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.exempt = Arc::new(rule);
        self
    }

    /// What the rules know of a request.
    pub(super) fn known(&self, seen: Seen<'_>) -> Known {
        Known {
            tenant: self.tenant.as_ref().map(|rule| rule(seen)),
            priority: self.priority.as_ref().and_then(|rule| rule(seen)),
        }
    }

    /// Whom a request belongs to, whatever its client claims: by its [`Seen::peer`], by the client's certificate where
    /// the server attaches it to its extensions, or by anything else in it that the server can check.
    #[must_use]
    pub fn tenant(mut self, rule: impl Fn(Seen<'_>) -> Tenant + Send + Sync + 'static) -> Self {
        self.tenant = Some(Arc::new(rule));
        self
    }

    /// How much a request matters, whatever its client claims, with the layer or without; `None` leaves it to
    /// [`ServerConfig::claims`]. By its method, for example: `|seen| (seen.uri.path() ==
    /// "/reports").then_some(Priority::BATCH)`.
    ///
    /// A client with the layer does not know of it and lets its calls through by its own priority; what the server's
    /// differs from that it makes good itself, by refusals.
    #[must_use]
    pub fn priority(mut self, rule: impl Fn(Seen<'_>) -> Option<Priority> + Send + Sync + 'static) -> Self {
        self.priority = Some(Arc::new(rule));
        self
    }

    /// The address of a request's peer: clients without the layer are told apart by it. Where nobody knows it, each
    /// connection with a [`ConnectionInfo`](super::ConnectionInfo) is a session, and all without are one.
    ///
    /// By default it is read from the extensions `ConnectionInfo` and `SocketAddr`, with feature `tonic` also from what
    /// tonic attaches, with feature `axum` from `ConnectInfo` of either. Servers that attach another one need a rule.
    #[must_use]
    pub fn peer(mut self, rule: impl Fn(Seen<'_>) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.peer = Arc::new(rule);
        self
    }

    /// What a request asks for, if its name is one of a few: what calls of one method take is no measure for those of
    /// another. By default the path of a gRPC call; other paths may be of any number. Up to 63 methods are told apart.
    #[must_use]
    pub fn method(mut self, rule: impl for<'a> Fn(Seen<'a>) -> Option<&'a str> + Send + Sync + 'static) -> Self {
        self.method = Arc::new(rule);
        self
    }

    /// Another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: fn() -> Instant) -> Self {
        self.clock = clock;
        self
    }
}

/// Whether this is the target of a health check: gRPC's health service, or `/healthz`, `/livez`, `/readyz`.
///
/// An overloaded server that fails its health checks is restarted or taken out, and its load meets the others.
#[must_use]
pub fn is_health_check(uri: &Uri) -> bool {
    let path = uri.path();
    path.starts_with("/grpc.health.v1.Health/") || matches!(path, "/healthz" | "/livez" | "/readyz")
}

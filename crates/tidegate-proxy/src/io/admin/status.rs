//! How the proxy stands: what it runs with and what it counted.

use std::net::SocketAddr;

use serde::Serialize;
use tidegate_runtime::cpu::CpuLimits;

use crate::config::{self, Balance, Config, ProxyProtocolIn, ProxyProtocolOut, UpstreamProtocol};
use crate::io::conn::tls::Expiry;
pub use crate::io::request::times::ResponseTimes;
use crate::machine::bandwidth;
use crate::machine::rate_limit::{Counts, Outlook};

/// What a proxy is doing as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It serves.
    #[default]
    Serving,
    /// It finishes requests under way and takes no more.
    Draining,
}

/// What a proxy counted, over all its threads. Lists may be shorter than the configuration's: the rest is zero.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// What it is doing.
    pub phase: Phase,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Times that another configuration took the place of the one before.
    pub reloads: u64,
    /// Times that it stayed, since the other one could not be read or used.
    pub reloads_failed: u64,
    /// The last reload failed: what is in force is not what the file says.
    pub last_reload_failed: bool,
    /// Where it listens, with the ports that the system picked; in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    /// Where it takes datagrams of proxies that lend tokens, if it does.
    pub lend_address: Option<SocketAddr>,
    /// Client connections that are open.
    pub connections: u64,
    /// Client connections since the start.
    pub connections_total: u64,
    /// TLS handshakes that ended well, since the start.
    pub handshakes_total: u64,
    /// TLS handshakes that did not end well, since the start.
    pub handshakes_failed_total: u64,
    /// TLS handshakes that resumed a session, of those that ended well, since the start.
    pub handshakes_resumed_total: u64,
    /// Connections refused at their `ClientHello`, since the start.
    pub hellos_refused_total: u64,
    /// Handshakes beyond their tenants' shares, since the start.
    pub handshakes_beyond_total: u64,
    /// Clients that took too long, since the start.
    pub clients_timed_out_total: u64,
    /// Times that there was no file left to open for a connection, since the start.
    pub out_of_files_total: u64,
    /// Requests and first bytes that broke the rules, since the start.
    pub malformed_total: u64,
    /// Requests by route, in the order of the configuration.
    pub requests_total: Vec<u64>,
    /// Answers by the first digit of their status; at 0 what ended without one.
    pub responses_total: [u64; 6],
    /// Upstreams, in the order of the configuration.
    pub upstreams: Vec<LiveUpstream>,
    /// Rate limits: those of routes, then those of SNI names.
    pub rate_limits: Vec<LiveRateLimit>,
    /// What was counted of tenants that have a bandwidth, by name.
    pub bandwidths: Vec<(String, bandwidth::Counts)>,
    /// When certificates end, in the order of the configuration.
    pub certificates: Vec<Expiry>,
    /// Lines of the access log that were written, and that were dropped.
    pub access_log: (u64, u64),
    /// Where large bodies wait.
    pub spool: LiveSpool,
    /// What the process may use of the processors.
    pub cpu: Option<CpuLimits>,
    /// Lines that the access log left out, as it is told to.
    pub unlogged_total: u64,
    /// How long answers took; only for metrics, and else empty.
    pub times: ResponseTimes,
}

/// How the spool stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LiveSpool {
    /// Bytes of the bodies in it.
    pub bytes: u64,
    /// Pieces that the disk did not take, since the start.
    pub failed_writes: u64,
    /// Pieces that it did not give back, since the start.
    pub failed_reads: u64,
}

/// What was counted of an upstream.
#[derive(Clone, Debug, Default)]
pub struct LiveUpstream {
    /// Requests that wait for a connection.
    pub waiting: u64,
    /// Requests that may wait for the heads of their answers, as learnt; `None` while nothing holds them up. Of the threads
    /// that have such a limit.
    pub limit: Option<u64>,
    /// Requests that wait for the heads of their answers; 0 if nothing is learnt.
    pub in_flight: u64,
    /// Tries after the first.
    pub retries_total: u64,
    /// TLS handshakes with its servers.
    pub handshakes: LiveHandshakes,
    /// Lookups of the names of its servers that ended, since the start.
    pub lookups_total: u64,
    /// Of these, without an address.
    pub lookups_failed_total: u64,
    /// In the order of the configuration; a name whose addresses are known is as many servers.
    pub servers: Vec<LiveServer>,
    /// What each of them is called; empty if that is what the configuration calls them.
    pub labels: Vec<String>,
}

impl LiveUpstream {
    /// The servers of `upstream`, with what was counted of them.
    pub(super) fn servers_of<'a>(
        &'a self,
        upstream: &'a config::Upstream,
    ) -> impl Iterator<Item = (String, LiveServer)> + 'a {
        let of_file = upstream.servers.iter().map(ToString::to_string).filter(|_| self.labels.is_empty());
        let labels = self.labels.iter().cloned().chain(of_file);
        labels.enumerate().map(|(place, label)| (label, self.servers.get(place).copied().unwrap_or_default()))
    }
}

/// TLS handshakes with the servers of an upstream since the start, without those of health checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LiveHandshakes {
    /// With certificates.
    #[serde(rename = "full_total")]
    pub full: u64,
    /// That went on with an earlier session.
    #[serde(rename = "resumed_total")]
    pub resumed: u64,
    /// That did not end well.
    #[serde(rename = "failed_total")]
    pub failed: u64,
}

/// Whether a server gets requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It does.
    #[default]
    Up,
    /// Its requests failed; it is left alone for a while.
    Ejected,
    /// Its checks fail.
    Down,
}

/// What was counted of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveServer {
    /// As the worst of the threads sees it.
    pub health: Health,
    /// Requests under way.
    pub active: u64,
    /// Requests since the start.
    pub requests_total: u64,
    /// Those that failed.
    pub failures_total: u64,
}

/// What was counted of a rate limit.
#[derive(Clone, Debug, Default)]
pub struct LiveRateLimit {
    /// What it is told apart by: two may have one tag.
    pub name: String,
    /// `remap` for a route's, `sni` for a name's.
    pub scope: &'static str,
    /// The first part of its metrics' names.
    pub prefix: String,
    /// The route's or the SNI name, or what the configuration says.
    pub tag: String,
    /// What it counted.
    pub counts: Counts,
    /// What it would say to the next one.
    pub outlook: Outlook,
}

/// `GET /api/v1/proxy`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    version: &'static str,
    phase: Phase,
    uptime_s: f64,
    reloads: u64,
    reloads_failed: u64,
    last_reload_failed: bool,
    threads: usize,
    overflow_threads: usize,
    cpu: Option<CpuJson>,
    tenants_by: String,
    connections: u64,
    connections_total: u64,
    handshakes_total: u64,
    handshakes_failed_total: u64,
    handshakes_resumed_total: u64,
    hellos_refused_total: u64,
    handshakes_beyond_total: u64,
    clients_timed_out_total: u64,
    out_of_files_total: u64,
    malformed_total: u64,
    requests_total: u64,
    responses_total: ResponsesJson,
    listeners: Vec<ListenerJson>,
    routes: Vec<RouteJson>,
    upstreams: Vec<UpstreamJson>,
    rate_limits: Vec<RateLimitJson>,
    access_log: Option<AccessLogJson>,
    spool: Option<SpoolJson>,
    warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CpuJson {
    processors: usize,
    /// `null` without a quota; so are the two that follow.
    quota_cores: Option<f64>,
    throttled_periods_total: Option<u64>,
    throttled_s_total: Option<f64>,
}

impl CpuJson {
    fn of(limits: &CpuLimits) -> Self {
        Self {
            processors: limits.processors,
            quota_cores: limits.quota.map(|quota| quota.cores()),
            throttled_periods_total: limits.throttled.map(|throttled| throttled.periods),
            throttled_s_total: limits.throttled.map(|throttled| throttled.time.as_secs_f64()),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ResponsesJson {
    #[serde(rename = "1xx")]
    informational: u64,
    #[serde(rename = "2xx")]
    successful: u64,
    #[serde(rename = "3xx")]
    redirections: u64,
    #[serde(rename = "4xx")]
    client_errors: u64,
    #[serde(rename = "5xx")]
    server_errors: u64,
    none: u64,
}

#[derive(Clone, Debug, Serialize)]
struct ListenerJson {
    address: String,
    tls: bool,
    protocols: Vec<&'static str>,
    proxy_protocol: ProxyProtocolIn,
}

#[derive(Clone, Debug, Serialize)]
struct RouteJson {
    name: String,
    host: Option<String>,
    path: String,
    methods: Vec<String>,
    upstream: String,
    rewrite: Option<String>,
    tenant: Option<String>,
    requests_total: u64,
}

#[derive(Clone, Debug, Serialize)]
struct UpstreamJson {
    name: String,
    protocol: UpstreamProtocol,
    balance: Balance,
    hash_by: Option<String>,
    proxy_protocol: ProxyProtocolOut,
    tls: Option<UpstreamTlsJson>,
    checked: bool,
    adaptive_concurrency: bool,
    waiting: u64,
    concurrency_limit: Option<u64>,
    resolve: String,
    lookups_total: u64,
    lookups_failed_total: u64,
    failure_statuses: Vec<u16>,
    retry_statuses: Vec<u16>,
    retries_total: u64,
    servers: Vec<ServerJson>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct UpstreamTlsJson {
    verified: bool,
    handshakes: LiveHandshakes,
}

#[derive(Clone, Debug, Serialize)]
struct ServerJson {
    address: String,
    health: Health,
    active: u64,
    requests_total: u64,
    failures_total: u64,
}

#[derive(Clone, Debug, Serialize)]
struct RateLimitJson {
    scope: &'static str,
    tag: String,
    active: u64,
    queue: u64,
    admitted_total: u64,
    queued_total: u64,
    rejected_total: u64,
    expired_total: u64,
    resumed_total: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct AccessLogJson {
    written_total: u64,
    dropped_total: u64,
    left_out_total: u64,
    sample: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct SpoolJson {
    bytes: u64,
    max_bytes: u64,
    failed_writes_total: u64,
    failed_reads_total: u64,
}

impl Status {
    /// What `config` says, with what `live` counted.
    #[must_use]
    pub fn of(config: &Config, live: &Live) -> Self {
        let [none, informational, successful, redirections, client_errors, server_errors] = live.responses_total;
        let address = |index: usize, listener: &config::Listener| {
            live.addresses.get(index).unwrap_or(&listener.address).to_string()
        };
        let listeners = config.listeners.iter().enumerate().map(|(index, listener)| ListenerJson {
            address: address(index, listener),
            tls: listener.tls,
            protocols: [(listener.http2, "h2"), (listener.http1, "http/1.1")]
                .into_iter()
                .filter_map(|(spoken, name)| spoken.then_some(name))
                .collect(),
            proxy_protocol: listener.proxy_protocol,
        });
        let upstreams = config
            .upstreams
            .iter()
            .enumerate()
            .map(|(index, upstream)| upstream_json(upstream, live.upstreams.get(index)));
        let routes = config.routes.iter().enumerate().map(|(index, route)| RouteJson {
            name: route.name.clone(),
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.iter().map(ToString::to_string).collect(),
            upstream: config.upstreams[route.upstream].name.clone(),
            rewrite: route.rewrite.clone(),
            tenant: route.tenant.clone(),
            requests_total: live.requests_total.get(index).copied().unwrap_or(0),
        });
        Self {
            version: env!("CARGO_PKG_VERSION"),
            phase: live.phase,
            uptime_s: live.uptime_s,
            reloads: live.reloads,
            reloads_failed: live.reloads_failed,
            last_reload_failed: live.last_reload_failed,
            threads: config.threads,
            overflow_threads: config.overflow_threads,
            cpu: live.cpu.as_ref().map(CpuJson::of),
            tenants_by: config.tenants.by.to_string(),
            connections: live.connections,
            connections_total: live.connections_total,
            handshakes_total: live.handshakes_total,
            handshakes_failed_total: live.handshakes_failed_total,
            handshakes_resumed_total: live.handshakes_resumed_total,
            hellos_refused_total: live.hellos_refused_total,
            handshakes_beyond_total: live.handshakes_beyond_total,
            clients_timed_out_total: live.clients_timed_out_total,
            out_of_files_total: live.out_of_files_total,
            malformed_total: live.malformed_total,
            requests_total: live.responses_total.iter().sum(),
            responses_total: ResponsesJson {
                informational,
                successful,
                redirections,
                client_errors,
                server_errors,
                none,
            },
            listeners: listeners.collect(),
            routes: routes.collect(),
            upstreams: upstreams.collect(),
            rate_limits: live.rate_limits.iter().map(rate_limit_json).collect(),
            access_log: config.access_log.as_ref().map(|log| {
                let (written_total, dropped_total) = live.access_log;
                let (left_out_total, sample) = (live.unlogged_total, log.sampling.sample);
                AccessLogJson { written_total, dropped_total, left_out_total, sample }
            }),
            spool: config.spool.as_ref().map(|spool| {
                let LiveSpool { bytes, failed_writes, failed_reads } = live.spool;
                let (failed_writes_total, failed_reads_total) = (failed_writes, failed_reads);
                SpoolJson { bytes, max_bytes: spool.max_bytes, failed_writes_total, failed_reads_total }
            }),
            warnings: config.warnings.clone(),
        }
    }
}

fn upstream_json(upstream: &config::Upstream, live: Option<&LiveUpstream>) -> UpstreamJson {
    let unknown = LiveUpstream::default();
    let live = live.unwrap_or(&unknown);
    let servers = live.servers_of(upstream).map(|(address, live)| ServerJson {
        address,
        health: live.health,
        active: live.active,
        requests_total: live.requests_total,
        failures_total: live.failures_total,
    });
    UpstreamJson {
        name: upstream.name.clone(),
        protocol: upstream.protocol,
        balance: upstream.balance,
        hash_by: upstream.hash_by.as_ref().map(ToString::to_string),
        proxy_protocol: upstream.proxy_protocol,
        tls: upstream.tls.as_ref().map(|tls| UpstreamTlsJson {
            verified: tls.trust != config::Trust::Unverified,
            handshakes: live.handshakes,
        }),
        checked: upstream.health.is_some(),
        adaptive_concurrency: upstream.adaptive_concurrency,
        waiting: live.waiting,
        concurrency_limit: live.limit,
        resolve: upstream.resolve.to_string(),
        lookups_total: live.lookups_total,
        lookups_failed_total: live.lookups_failed_total,
        failure_statuses: upstream.failure_statuses.clone(),
        retry_statuses: upstream.retries.statuses.clone(),
        retries_total: live.retries_total,
        servers: servers.collect(),
    }
}

fn rate_limit_json(limit: &LiveRateLimit) -> RateLimitJson {
    let Counts { admitted, queued, rejected, expired, resumed, active, queue } = limit.counts;
    RateLimitJson {
        scope: limit.scope,
        tag: limit.tag.clone(),
        active,
        queue,
        admitted_total: admitted,
        queued_total: queued,
        rejected_total: rejected,
        expired_total: expired,
        resumed_total: resumed,
    }
}

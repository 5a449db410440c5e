//! `[proxy]` as it is written; [`super::check`] makes a [`Config`](super::Config) of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tidegate_core::Rate;
use tidegate_runtime::config::units::{Bytes, Span};

use super::words::{
    Balance, ByteRate, CapacityText, Cidr, Forwarded, HashBy, LogAlways, LogFormat, Mode, ProxyProtocolIn,
    ProxyProtocolOut, RateLimitHeaders, RefuseHello, Resolve, Statuses, TenantBy, TlsVersion, Trace, Unknown,
    UpstreamProtocol,
};

/// `[proxy]`: every key may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    pub(super) threads: Option<usize>,
    pub(super) overflow_threads: Option<usize>,
    pub(super) drain_timeout: Option<Span>,
    pub(super) trusted: Vec<Cidr>,
    pub(super) forwarded: Forwarded,
    pub(super) trace: Trace,
    pub(super) strict_sni: Option<bool>,
    pub(super) ticket_keys: Vec<PathBuf>,
    pub(super) admin_address: Option<String>,
    pub(super) lend_address: Option<String>,
    pub(super) name_servers: Vec<String>,
    pub(super) upgrade_socket: Option<PathBuf>,
    pub(super) listen: Vec<ListenSection>,
    pub(super) certificate: Vec<CertificateSection>,
    pub(super) upstream: Vec<UpstreamSection>,
    pub(super) route: Vec<RouteSection>,
    pub(super) sni: Vec<SniSection>,
    pub(super) lists: BTreeMap<String, ListSection>,
    pub(super) tenants: TenantsSection,
    pub(super) tenant: Vec<TenantSection>,
    pub(super) limits: LimitsSection,
    pub(super) timeouts: TimeoutsSection,
    pub(super) http: HttpSection,
    pub(super) spool: Option<SpoolSection>,
    pub(super) access_log: Option<AccessLogSection>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListenSection {
    pub(super) address: Option<String>,
    pub(super) tls: bool,
    pub(super) tls_version_min: Option<TlsVersion>,
    pub(super) ciphers: Option<Vec<String>>,
    pub(super) key_exchange: Option<Vec<String>>,
    pub(super) alpn: Option<Vec<String>>,
    pub(super) proxy_protocol: ProxyProtocolIn,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CertificateSection {
    #[serde(default)]
    pub(super) names: Vec<String>,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) ocsp: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpstreamSection {
    pub(super) name: String,
    pub(super) servers: Vec<String>,
    #[serde(default)]
    pub(super) resolve: Resolve,
    #[serde(default)]
    pub(super) weights: BTreeMap<String, u16>,
    pub(super) slow_start: Option<Span>,
    pub(super) adaptive_concurrency: Option<bool>,
    #[serde(default)]
    pub(super) balance: Balance,
    pub(super) hash_by: Option<HashBy>,
    #[serde(default)]
    pub(super) protocol: UpstreamProtocol,
    #[serde(default)]
    pub(super) proxy_protocol: ProxyProtocolOut,
    pub(super) tls: Option<UpstreamTlsSection>,
    pub(super) max_connections: Option<u32>,
    pub(super) max_streams: Option<u32>,
    pub(super) queue: Option<u32>,
    pub(super) health: Option<HealthSection>,
    #[serde(default)]
    pub(super) failure_statuses: Vec<u16>,
    #[serde(default)]
    pub(super) retries: RetriesSection,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UpstreamTlsSection {
    pub(super) roots: Option<String>,
    pub(super) name: Option<String>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) verify: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HealthSection {
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    pub(super) statuses: Option<Vec<Statuses>>,
    pub(super) interval: Option<Span>,
    pub(super) timeout: Option<Span>,
    pub(super) rise: Option<u32>,
    pub(super) fall: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RetriesSection {
    pub(super) attempts: Option<u32>,
    pub(super) budget: Option<f64>,
    pub(super) statuses: Vec<u16>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteSection {
    pub(super) name: Option<String>,
    pub(super) host: Option<String>,
    pub(super) path: Option<String>,
    #[serde(default)]
    pub(super) methods: Vec<String>,
    pub(super) upstream: String,
    pub(super) rewrite: Option<String>,
    #[serde(default)]
    pub(super) set_request_headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) remove_request_headers: Vec<String>,
    #[serde(default)]
    pub(super) set_response_headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) remove_response_headers: Vec<String>,
    pub(super) tenant: Option<String>,
    pub(super) rate_limit: Option<RateLimitSection>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SniSection {
    pub(super) names: Vec<String>,
    pub(super) aliases: Vec<String>,
    pub(super) default: bool,
    pub(super) rate_limit: Option<RateLimitSection>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RateLimitSection {
    pub(super) limit: Option<u32>,
    pub(super) rate: Option<Rate>,
    pub(super) burst: Option<u64>,
    pub(super) divided: bool,
    pub(super) queue: Option<u32>,
    pub(super) max_age: Option<Span>,
    pub(super) error: Option<u16>,
    pub(super) retry: Option<Span>,
    pub(super) header: Option<String>,
    pub(super) connections: bool,
    pub(super) prefix: Option<String>,
    pub(super) tag: Option<String>,
    pub(super) allow: Vec<String>,
    pub(super) deny: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSection {
    pub(super) cidr: Vec<Cidr>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TenantsSection {
    pub(super) by: TenantBy,
    pub(super) header_from: Vec<Cidr>,
    pub(super) unknown: Option<Unknown>,
    pub(super) max_tracked: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantSection {
    pub(super) name: String,
    pub(super) weight: Option<u32>,
    pub(super) bandwidth: Option<ByteRate>,
    #[serde(default, rename = "match")]
    pub(super) matches: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    pub(super) mode: Mode,
    pub(super) reserve: Option<f64>,
    pub(super) newcomers: Option<f64>,
    pub(super) tick: Option<Span>,
    pub(super) patience: Option<Span>,
    pub(super) capacities: CapacitiesSection,
    pub(super) refuse_hello: RefuseHello,
    pub(super) rate_limit_headers: RateLimitHeaders,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CapacitiesSection {
    pub(super) handshakes: CapacityText,
    pub(super) connections: CapacityText,
    pub(super) requests: CapacityText,
    pub(super) network_bytes: CapacityText,
    pub(super) disk_bytes: CapacityText,
    pub(super) event_time: CapacityText,
    pub(super) memory: CapacityText,
    pub(super) handshake_time: CapacityText,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TimeoutsSection {
    pub(super) client_hello: Option<Span>,
    pub(super) handshake: Option<Span>,
    pub(super) header: Option<Span>,
    pub(super) body_idle: Option<Span>,
    pub(super) body_rate_min: Option<ByteRate>,
    pub(super) upstream_connect: Option<Span>,
    pub(super) upstream_first_byte: Option<Span>,
    pub(super) upstream_idle: Option<Span>,
    pub(super) upstream_keep_alive: Option<Span>,
    pub(super) total: Option<Span>,
    pub(super) write_stall: Option<Span>,
    pub(super) write_rate_min: Option<ByteRate>,
    pub(super) keep_alive: Option<Span>,
    pub(super) upgraded_idle: Option<Span>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HttpSection {
    pub(super) max_head: Option<Bytes>,
    pub(super) max_headers: Option<usize>,
    pub(super) max_body: Option<Bytes>,
    pub(super) h2_max_concurrent_streams: Option<u32>,
    pub(super) h2_max_header_list: Option<Bytes>,
    pub(super) h2_max_resets: Option<usize>,
    pub(super) h2_stream_window: Option<Bytes>,
    pub(super) h2_connection_window: Option<Bytes>,
    pub(super) h2_websocket: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SpoolSection {
    pub(super) above: Option<Bytes>,
    pub(super) directory: Option<PathBuf>,
    pub(super) max_bytes: Option<Bytes>,
    pub(super) threads: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessLogSection {
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) format: LogFormat,
    pub(super) sample: Option<f64>,
    pub(super) always: Option<Vec<LogAlways>>,
}

//! Every option with its default applied and its bounds checked.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tidegate_wire::nsq::TopicName;

use super::lend::{LendAddress, lend_address};
use super::options::{Flag, Options};
use super::value::{ClientAuth, Durability, LogLevel, QueuePolicy, TlsRequired, TlsVersion};
use crate::machine::lanes::{SPREAD_SHARDS_MAX, SPREAD_TOPICS_MAX};

/// What some defaults depend on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The host name.
    pub name: String,
    /// CPUs that this process may use.
    pub cpus: usize,
}

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// Name or number of an interface; empty for all of them.
        host: String,
        /// The port; 0 for one that the system picks.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// The broker's certificate and what it asks of clients'.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerTls {
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
    /// What is asked of clients.
    pub client_auth: ClientAuth,
}

/// All of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// Set if TLS is served.
    pub server: Option<ServerTls>,
    /// PEM file of the authorities that vouch for clients (if they must be vouched for) and for AUTH servers.
    pub root_ca: Option<PathBuf>,
    /// Who must speak TLS.
    pub required: TlsRequired,
    /// The floor as configured.
    pub min_version: TlsVersion,
}

/// What is pushed to a statsd server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statsd {
    /// `host:port` of the server; without one, nothing is pushed.
    pub address: Option<String>,
    /// In front of every name; `%s` stands for this broker's host and port.
    pub prefix: String,
    /// Between two pushes.
    pub interval: Duration,
    /// Whether memory is among the figures.
    pub mem_stats: bool,
    /// Upper bound of one packet's size.
    pub packet_bytes: usize,
    /// Whether ephemeral topics and channels are left out.
    pub exclude_ephemeral: bool,
}

impl Default for Statsd {
    fn default() -> Self {
        Self {
            address: None,
            prefix: "nsq.%s".to_owned(),
            interval: Duration::from_mins(1),
            mem_stats: true,
            // What passes every network in one piece.
            packet_bytes: 508,
            exclude_ephemeral: false,
        }
    }
}

/// The broker's configuration; its values are in bounds and consistent.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Least severity that is logged.
    pub log_level: LogLevel,
    /// In front of every log line.
    pub log_prefix: String,
    /// Part of every message id, 0 to 1023.
    pub node_id: u16,
    /// The NSQ protocol.
    pub tcp_address: Address,
    /// nsqd's HTTP API.
    pub http_address: Option<Address>,
    /// nsqd's HTTP API with TLS; only served with a certificate.
    pub https_address: Option<Address>,
    /// Connections to each of the two, at a time.
    pub http_max_connections: usize,
    /// Names that writes may call them by, beside their own; `*` is any.
    pub http_allowed_hosts: Vec<String>,
    /// Web origins whose pages may write, beside their own; `*` is any.
    pub http_allowed_origins: Vec<String>,
    /// With the token that writes must show.
    pub http_token_file: Option<PathBuf>,
    /// The host that nsqlookupd hands out.
    pub broadcast_address: String,
    /// The TCP port that nsqlookupd hands out, if not the one we listen on.
    pub broadcast_tcp_port: Option<u16>,
    /// The HTTP port that nsqlookupd hands out, if not the one we listen on.
    pub broadcast_http_port: Option<u16>,
    /// `host:port` each.
    pub lookupd_tcp_addresses: Vec<String>,
    /// `host:port` or a URL each; not empty means clients must AUTH.
    pub auth_http_addresses: Vec<String>,
    /// Bound on connecting over HTTP.
    pub http_client_connect_timeout: Duration,
    /// Bound on an answer over HTTP.
    pub http_client_request_timeout: Duration,

    /// Folder of queues and metadata.
    pub data_path: PathBuf,
    /// Messages in memory, for each topic and each channel.
    pub mem_queue_size: usize,
    /// A queue's file is not written past this size, but holds at least one record.
    pub max_bytes_per_file: u64,
    /// Records between two syncs.
    pub sync_every: u64,
    /// Time between two syncs.
    pub sync_timeout: Duration,

    /// Unless negotiated.
    pub msg_timeout: Duration,
    /// Bound on negotiation and TOUCH.
    pub max_msg_timeout: Duration,
    /// Bytes of one body.
    pub max_msg_size: u32,
    /// Bound on DPUB and REQ.
    pub max_req_timeout: Duration,
    /// Bytes of one command's body.
    pub max_body_size: u32,

    /// Bound on negotiation.
    pub max_heartbeat_interval: Duration,
    /// Bound on RDY.
    pub max_rdy_count: u32,
    /// Bound on negotiation.
    pub max_output_buffer_size: u32,
    /// Bound on negotiation.
    pub max_output_buffer_timeout: Duration,
    /// Bound on negotiation.
    pub min_output_buffer_timeout: Duration,
    /// Unless negotiated.
    pub output_buffer_timeout: Duration,
    /// Consumers of one channel.
    pub max_channel_consumers: Option<u32>,

    /// Quantiles in (0, 1] of the time from publish to FIN.
    pub e2e_percentiles: Vec<f64>,
    /// How far they look back.
    pub e2e_window: Duration,

    /// Figures pushed to statsd.
    pub statsd: Statsd,

    /// TLS.
    pub tls: Tls,
    /// Whether deflate can be negotiated.
    pub deflate: bool,
    /// 1 to 9.
    pub max_deflate_level: u8,
    /// Whether snappy can be negotiated.
    pub snappy: bool,

    /// Threads that share the topics, at least 1.
    pub shards: usize,
    /// Topics whose publishers stay on all shards.
    pub spread_topics: BTreeSet<TopicName>,
    /// Tidegate's admin API.
    pub admin_address: Option<Address>,
    /// Where datagrams of lending come in.
    pub lend: Option<LendAddress>,
    /// Bytes of messages in memory, for each topic and each channel.
    pub max_queue_bytes: u64,
    /// What happens beyond.
    pub queue_policy: QueuePolicy,
    /// Bytes of messages that wait for a topic's tokens.
    pub max_line_bytes: u64,
    /// What OK means.
    pub durability: Durability,
    /// For reproducible runs.
    pub seed: Option<u64>,

    /// What the user asked for and does not get.
    pub warnings: Vec<Warning>,
}

/// Something the user asked for and does not get.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// The option is known but does nothing here.
    NoEffect {
        /// The key.
        key: &'static str,
    },
    /// The version floor is below what is spoken.
    TlsFloor {
        /// As configured.
        floor: TlsVersion,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEffect { key } => {
                let help = Flag::find_key(key).map_or("", |flag| flag.help);
                write!(f, "{key} has no effect here: {help}")
            }
            Self::TlsFloor { floor } => {
                write!(f, "tls_min_version is {}, but clients need tls1.2 at least", floor.as_str())
            }
        }
    }
}

/// A value out of bounds, or values that do not go together.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number out of bounds.
    #[error("{key} is {found}; it must be from {min} to {max}")]
    OutOfRange {
        /// The key in the file.
        key: &'static str,
        /// As given.
        found: i64,
        /// The least.
        min: i64,
        /// The most.
        max: i64,
    },
    /// A duration of zero where time must pass.
    #[error("{key} is 0; it must be longer than that")]
    ZeroDuration {
        /// The key in the file.
        key: &'static str,
    },
    /// No address.
    #[error("{key} is {found:?}; it must be {accepted}")]
    Address {
        /// The key in the file.
        key: &'static str,
        /// As given.
        found: String,
        /// What it can be.
        accepted: &'static str,
    },
    /// A quantile out of bounds.
    #[error("{key} holds {found}; a quantile is above 0 and up to 1")]
    Quantile {
        /// The key in the file.
        key: &'static str,
        /// As given.
        found: f64,
    },
    /// A key that makes no sense without another.
    #[error("{key} is {found:?}, which needs {needs}")]
    Incomplete {
        /// The key in the file.
        key: &'static str,
        /// As given.
        found: String,
        /// The other.
        needs: &'static str,
    },
}

impl ConfigError {
    /// The key to point at in the file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::OutOfRange { key, .. }
            | Self::ZeroDuration { key }
            | Self::Address { key, .. }
            | Self::Quantile { key, .. }
            | Self::Incomplete { key, .. } => key,
        }
    }
}

// Bodies travel behind a signed 32-bit length, and a record on disk adds its 26 bytes of timestamp, attempts and id.
const MAX_MSG_SIZE: i64 = i32::MAX as i64 - 26;

impl Config {
    /// nsqd's defaults for what `options` leaves out, and every bound checked.
    pub fn from_options(options: Options, host: &Host) -> Result<Self, ConfigError> {
        let warnings = warnings(&options);
        let o = options;
        let tls = tls(&o)?;
        let statsd = statsd(&o)?;
        let e2e_percentiles = o.e2e_processing_latency_percentiles.unwrap_or_default();
        if let Some(&found) = e2e_percentiles.iter().find(|q| !(**q > 0.0 && **q <= 1.0)) {
            return Err(ConfigError::Quantile { key: "e2e_processing_latency_percentiles", found });
        }
        let shards = match o.shards {
            Some(shards) => number("shards", Some(shards), 0, 1..=256)?,
            None => host.cpus.clamp(1, 256),
        };
        Ok(Self {
            log_level: o.log_level.unwrap_or(LogLevel::Info),
            log_prefix: o.log_prefix.unwrap_or_else(|| "[nsqd] ".to_owned()),
            node_id: match o.id {
                Some(id) => number("id", Some(id), 0, 0..=1023)?,
                None => node_id_of(&host.name),
            },
            tcp_address: address("tcp_address", o.tcp_address.as_deref().unwrap_or("0.0.0.0:4150"))?,
            http_address: maybe_address("http_address", o.http_address.as_deref().unwrap_or("0.0.0.0:4151"))?,
            https_address: maybe_address("https_address", o.https_address.as_deref().unwrap_or("0.0.0.0:4152"))?,
            http_max_connections: number("http_max_connections", o.http_max_connections, 1_024, 2..=65_536)?,
            // As nsqd, which looks at no Host.
            http_allowed_hosts: hosts(o.http_allowed_hosts.unwrap_or_else(|| vec!["*".to_owned()]))?,
            http_allowed_origins: origins(o.http_allowed_origins.unwrap_or_default())?,
            http_token_file: o.http_token_file.filter(|path| !path.as_os_str().is_empty()),
            broadcast_address: o.broadcast_address.unwrap_or_else(|| host.name.clone()),
            broadcast_tcp_port: port("broadcast_tcp_port", o.broadcast_tcp_port)?,
            broadcast_http_port: port("broadcast_http_port", o.broadcast_http_port)?,
            lookupd_tcp_addresses: remote_addresses(
                "nsqlookupd_tcp_addresses",
                o.nsqlookupd_tcp_addresses.unwrap_or_default(),
            )?,
            auth_http_addresses: urls("auth_http_addresses", o.auth_http_addresses.unwrap_or_default())?,
            http_client_connect_timeout: o.http_client_connect_timeout.unwrap_or(Duration::from_secs(2)),
            http_client_request_timeout: o.http_client_request_timeout.unwrap_or(Duration::from_secs(5)),

            data_path: o.data_path.filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(|| ".".into()),
            // Below zero nsqd has no queue in memory, as with zero.
            mem_queue_size: number("mem_queue_size", o.mem_queue_size.map(|n| n.max(0)), 10_000, 0..=i64::MAX)?,
            max_bytes_per_file: number("max_bytes_per_file", o.max_bytes_per_file, 104_857_600, 1..=i64::MAX)?,
            // With zero nsqd syncs around every record, as with one.
            sync_every: number::<u64>("sync_every", o.sync_every, 2500, 0..=i64::MAX)?.max(1),
            sync_timeout: span("sync_timeout", o.sync_timeout, Duration::from_secs(2))?,

            msg_timeout: span("msg_timeout", o.msg_timeout, Duration::from_mins(1))?,
            max_msg_timeout: span("max_msg_timeout", o.max_msg_timeout, Duration::from_mins(15))?,
            max_msg_size: number("max_msg_size", o.max_msg_size, 1024 * 1024, 1..=MAX_MSG_SIZE)?,
            max_req_timeout: o.max_req_timeout.unwrap_or(Duration::from_hours(1)),
            max_body_size: number("max_body_size", o.max_body_size, 5 * 1024 * 1024, 1..=i64::from(i32::MAX))?,

            max_heartbeat_interval: span("max_heartbeat_interval", o.max_heartbeat_interval, Duration::from_mins(1))?,
            max_rdy_count: number("max_rdy_count", o.max_rdy_count, 2500, 1..=i64::from(u32::MAX))?,
            max_output_buffer_size: number(
                "max_output_buffer_size",
                o.max_output_buffer_size,
                64 * 1024,
                0..=i64::from(i32::MAX),
            )?,
            max_output_buffer_timeout: o.max_output_buffer_timeout.unwrap_or(Duration::from_secs(30)),
            min_output_buffer_timeout: o.min_output_buffer_timeout.unwrap_or(Duration::from_millis(25)),
            output_buffer_timeout: o.output_buffer_timeout.unwrap_or(Duration::from_millis(250)),
            max_channel_consumers: Some(number(
                "max_channel_consumers",
                o.max_channel_consumers,
                0,
                0..=i64::from(u32::MAX),
            )?)
            .filter(|&most| most > 0),

            e2e_percentiles,
            e2e_window: span(
                "e2e_processing_latency_window_time",
                o.e2e_processing_latency_window_time,
                Duration::from_mins(10),
            )?,

            statsd,
            tls,
            deflate: o.deflate.unwrap_or(true),
            max_deflate_level: number("max_deflate_level", o.max_deflate_level, 6, 1..=9)?,
            snappy: o.snappy.unwrap_or(true),

            shards,
            spread_topics: spread_topics(o.spread_topics.unwrap_or_default(), shards)?,
            admin_address: maybe_address("admin_address", o.admin_address.as_deref().unwrap_or(""))?,
            lend: lend_address(o.lend_address.as_deref(), o.lend_key_file, shards)?,
            // Ten thousand messages of 6.5 KiB, or 64 of nsqd's largest: what a queue may take of a small machine.
            max_queue_bytes: number("max_queue_bytes", o.max_queue_bytes, 64 * 1024 * 1024, 0..=i64::MAX)?,
            queue_policy: o.queue_policy.unwrap_or(QueuePolicy::Overflow),
            max_line_bytes: number("max_line_bytes", o.max_line_bytes, 16 * 1024 * 1024, 0..=i64::MAX)?,
            durability: o.durability.unwrap_or(Durability::Memory),
            seed: o.seed.map(i64::cast_unsigned),
            warnings,
        })
    }

    /// The option `key` as nsqd's `GET /config/{key}` shows it: durations in nanoseconds, enumerations as numbers.
    /// `None` for what is no option of nsqd's, or does nothing here.
    #[must_use]
    pub fn nsqd_value(&self, key: &str) -> Option<Json> {
        Some(match key {
            "id" => json!(self.node_id),
            "log_level" => json!(self.log_level as u8 + 1),
            "log_prefix" => json!(self.log_prefix),
            "tcp_address" => json!(self.tcp_address.to_string()),
            "http_address" => optional(self.http_address.as_ref()),
            "https_address" => optional(self.https_address.as_ref()),
            "broadcast_address" => json!(self.broadcast_address),
            "broadcast_tcp_port" => json!(self.broadcast_tcp_port.unwrap_or(0)),
            "broadcast_http_port" => json!(self.broadcast_http_port.unwrap_or(0)),
            "nsqlookupd_tcp_addresses" => json!(self.lookupd_tcp_addresses),
            "auth_http_addresses" => json!(self.auth_http_addresses),
            "http_client_connect_timeout" => ns(self.http_client_connect_timeout),
            "http_client_request_timeout" => ns(self.http_client_request_timeout),
            "data_path" => json!(self.data_path),
            "mem_queue_size" => json!(self.mem_queue_size),
            "max_bytes_per_file" => json!(self.max_bytes_per_file),
            "sync_every" => json!(self.sync_every),
            "sync_timeout" => ns(self.sync_timeout),
            "msg_timeout" => ns(self.msg_timeout),
            "max_msg_timeout" => ns(self.max_msg_timeout),
            "max_msg_size" => json!(self.max_msg_size),
            "max_req_timeout" => ns(self.max_req_timeout),
            "max_body_size" => json!(self.max_body_size),
            "max_heartbeat_interval" => ns(self.max_heartbeat_interval),
            "max_rdy_count" => json!(self.max_rdy_count),
            "max_output_buffer_size" => json!(self.max_output_buffer_size),
            "max_output_buffer_timeout" => ns(self.max_output_buffer_timeout),
            "min_output_buffer_timeout" => ns(self.min_output_buffer_timeout),
            "output_buffer_timeout" => ns(self.output_buffer_timeout),
            "max_channel_consumers" => json!(self.max_channel_consumers.unwrap_or(0)),
            "e2e_processing_latency_percentiles" => json!(self.e2e_percentiles),
            "e2e_processing_latency_window_time" => ns(self.e2e_window),
            "statsd_address" => optional(self.statsd.address.as_ref()),
            "statsd_prefix" => json!(self.statsd.prefix),
            "statsd_interval" => ns(self.statsd.interval),
            "statsd_mem_stats" => json!(self.statsd.mem_stats),
            "statsd_udp_packet_size" => json!(self.statsd.packet_bytes),
            "statsd_exclude_ephemeral" => json!(self.statsd.exclude_ephemeral),
            "tls_cert" => optional(self.tls.server.as_ref().map(|tls| tls.cert.display())),
            "tls_key" => optional(self.tls.server.as_ref().map(|tls| tls.key.display())),
            "tls_client_auth_policy" => optional(self.tls.server.as_ref().map(|tls| tls.client_auth.as_str())),
            "tls_root_ca_file" => optional(self.tls.root_ca.as_ref().map(|path| path.display())),
            "tls_required" => json!(self.tls.required as u8),
            // The wire's number of TLS 1.0 and its successors.
            "tls_min_version" => json!(0x0301_u16 + self.tls.min_version as u16),
            "deflate" => json!(self.deflate),
            "max_deflate_level" => json!(self.max_deflate_level),
            "snappy" => json!(self.snappy),
            _ => return None,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

fn optional(value: Option<impl fmt::Display>) -> Json {
    value.map_or_else(|| json!(""), |value| json!(value.to_string()))
}

fn ns(span: Duration) -> Json {
    json!(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

fn number<T: TryFrom<i64>>(
    key: &'static str,
    given: Option<i64>,
    default: i64,
    bounds: RangeInclusive<i64>,
) -> Result<T, ConfigError> {
    let found = given.unwrap_or(default);
    Some(found)
        .filter(|found| bounds.contains(found))
        .and_then(|found| T::try_from(found).ok())
        .ok_or(ConfigError::OutOfRange { key, found, min: *bounds.start(), max: *bounds.end() })
}

fn port(key: &'static str, given: Option<i64>) -> Result<Option<u16>, ConfigError> {
    Ok(Some(number(key, given, 0, 0..=65535)?).filter(|&port| port != 0))
}

fn span(key: &'static str, given: Option<Duration>, default: Duration) -> Result<Duration, ConfigError> {
    Some(given.unwrap_or(default)).filter(|span| !span.is_zero()).ok_or(ConfigError::ZeroDuration { key })
}

/// Host and port of `text` in Go's form; `None` if it is not that form (and so the path of a unix socket).
fn host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => text.rsplit_once(':')?,
    };
    let bare = !text.starts_with('[');
    (!(port.contains(':') || bare && host.contains(':'))).then_some((host, port))
}

fn address(key: &'static str, text: &str) -> Result<Address, ConfigError> {
    let refuse = || ConfigError::Address {
        key,
        found: text.to_owned(),
        accepted: "address:port, :port for all interfaces, or the path of a unix socket",
    };
    match host_port(text) {
        Some((host, port)) => Ok(Address::Tcp { host: host.to_owned(), port: port.parse().map_err(|_| refuse())? }),
        None if text.is_empty() => Err(refuse()),
        None => Ok(Address::Unix(text.into())),
    }
}

fn maybe_address(key: &'static str, text: &str) -> Result<Option<Address>, ConfigError> {
    if text.is_empty() { Ok(None) } else { address(key, text).map(Some) }
}

fn remote_addresses(key: &'static str, texts: Vec<String>) -> Result<Vec<String>, ConfigError> {
    for text in &texts {
        let fine = host_port(text).is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !fine {
            return Err(ConfigError::Address { key, found: text.clone(), accepted: "host:port" });
        }
    }
    Ok(texts)
}

fn urls(key: &'static str, texts: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let (urls, addresses): (Vec<String>, Vec<String>) =
        texts.iter().cloned().partition(|text| text.starts_with("http://") || text.starts_with("https://"));
    drop(urls);
    remote_addresses(key, addresses).map(|_| texts).map_err(|error| match error {
        ConfigError::Address { key, found, .. } => {
            ConfigError::Address { key, found, accepted: "host:port or a URL of http or https" }
        }
        other => other,
    })
}

fn spread_topics(names: Vec<String>, shards: usize) -> Result<BTreeSet<TopicName>, ConfigError> {
    let key = "spread_topics";
    if names.len() > SPREAD_TOPICS_MAX {
        let most = i64::try_from(SPREAD_TOPICS_MAX).unwrap_or(i64::MAX);
        let found = i64::try_from(names.len()).unwrap_or(i64::MAX);
        return Err(ConfigError::OutOfRange { key, found, min: 0, max: most });
    }
    if let Some(name) = names.first().filter(|_| shards > SPREAD_SHARDS_MAX) {
        return Err(incomplete(key, name, "at most 64 shards"));
    }
    let topic = |name: String| {
        TopicName::new(&name).map_err(|_| ConfigError::Address { key, found: name, accepted: "a valid topic name" })
    };
    names.into_iter().map(topic).collect()
}

/// Names without a port: the header is compared without its own.
fn hosts(names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    match names.iter().find(|name| name.is_empty() || name.contains(['/', ':'])) {
        Some(found) => Err(ConfigError::Address {
            key: "http_allowed_hosts",
            found: found.clone(),
            accepted: "a host name without a port, or * for any",
        }),
        None => Ok(names),
    }
}

/// Origins as browsers send them: without a path.
fn origins(origins: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let is_fine = |origin: &&String| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        *origin == "*" || authority.is_some_and(|authority| !authority.is_empty() && !authority.contains('/'))
    };
    match origins.iter().find(|origin| !is_fine(origin)) {
        Some(found) => Err(ConfigError::Address {
            key: "http_allowed_origins",
            found: found.clone(),
            accepted: "an origin such as https://tools.example, without a path, or * for any",
        }),
        None => Ok(origins),
    }
}

/// Largest payload of a UDP packet over IPv4.
const UDP_BYTES_MAX: i64 = 65_507;

fn statsd(o: &Options) -> Result<Statsd, ConfigError> {
    let default = Statsd::default();
    let address = o.statsd_address.clone().filter(|address| !address.is_empty());
    remote_addresses("statsd_address", address.clone().into_iter().collect())?;
    let interval = match &address {
        Some(_) => span("statsd_interval", o.statsd_interval, default.interval)?,
        // It means nothing without an address, with nsqd too.
        None => o.statsd_interval.unwrap_or(default.interval),
    };
    // With zero and less nsqd fills packets of 4,096 bytes.
    let packet_bytes = o.statsd_udp_packet_size.map(|bytes| if bytes <= 0 { 4_096 } else { bytes });
    Ok(Statsd {
        address,
        prefix: o.statsd_prefix.clone().unwrap_or(default.prefix),
        interval,
        mem_stats: o.statsd_mem_stats.unwrap_or(default.mem_stats),
        packet_bytes: number("statsd_udp_packet_size", packet_bytes, 508, 1..=UDP_BYTES_MAX)?,
        exclude_ephemeral: o.statsd_exclude_ephemeral.unwrap_or(default.exclude_ephemeral),
    })
}

fn tls(o: &Options) -> Result<Tls, ConfigError> {
    let file = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let client_auth = o.tls_client_auth_policy.unwrap_or(ClientAuth::None);
    let server = match (file(&o.tls_cert), file(&o.tls_key)) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some(ServerTls { cert, key, client_auth }),
        (Some(cert), None) => return Err(incomplete("tls_cert", cert.display(), "tls_key")),
        (None, Some(key)) => return Err(incomplete("tls_key", key.display(), "tls_cert")),
    };
    let root_ca = file(&o.tls_root_ca_file);
    let mut required = o.tls_required.unwrap_or(TlsRequired::No);
    if client_auth != ClientAuth::None && required == TlsRequired::No {
        required = TlsRequired::Yes;
    }
    if server.is_none() && required != TlsRequired::No {
        let (key, found) = match o.tls_required {
            Some(TlsRequired::Yes) => ("tls_required", "true"),
            Some(TlsRequired::ExceptHttp) => ("tls_required", "tcp-https"),
            _ => ("tls_client_auth_policy", client_auth.as_str()),
        };
        return Err(incomplete(key, found, "tls_cert and tls_key"));
    }
    if client_auth == ClientAuth::RequireVerify && root_ca.is_none() {
        // nsqd would fall back to the system's public authorities, who would vouch for anybody with a web site.
        return Err(incomplete("tls_client_auth_policy", client_auth.as_str(), "tls_root_ca_file"));
    }
    Ok(Tls { server, root_ca, required, min_version: o.tls_min_version.unwrap_or(TlsVersion::Tls10) })
}

fn incomplete(key: &'static str, found: impl fmt::Display, needs: &'static str) -> ConfigError {
    ConfigError::Incomplete { key, found: found.to_string(), needs }
}

fn warnings(o: &Options) -> Vec<Warning> {
    let idle = [
        ("queue_scan_worker_pool_max", o.queue_scan_worker_pool_max.is_some()),
        ("queue_scan_selection_count", o.queue_scan_selection_count.is_some()),
    ];
    let mut warnings: Vec<Warning> =
        idle.into_iter().filter(|(_, given)| *given).map(|(key, _)| Warning::NoEffect { key }).collect();
    // nsqd's default floor is 1.0; only who asked for it by name is told.
    if let Some(floor @ (TlsVersion::Tls10 | TlsVersion::Tls11)) = o.tls_min_version {
        warnings.push(Warning::TlsFloor { floor });
    }
    warnings
}

/// The default node id: like nsqd's it is the same for a host on every start. Another hash than nsqd's, which is of no
/// consequence: the id only has to differ from the peers'.
fn node_id_of(host: &str) -> u16 {
    // FNV-1a, folded to ten bits.
    let hash = host.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    u16::try_from((hash ^ (hash >> 10) ^ (hash >> 20)) % 1024).expect("ten bits fit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FLAGS;

    fn host() -> Host {
        Host { name: "box".into(), cpus: 2 }
    }

    fn check(arguments: &[&str]) -> Result<Config, ConfigError> {
        let line = Options::from_flags(arguments.iter().copied()).unwrap();
        Config::from_options(line.options, &host())
    }

    /// The defaults stand in two places, as text for the user and as values in the code; this holds them together.
    #[test]
    fn the_defaults_of_the_help_are_those_in_force() {
        let mut written = Options::default();
        for flag in FLAGS.iter().filter(|flag| !flag.default.is_empty()) {
            written.apply_flag(flag.name, flag.default).unwrap();
        }
        let mut written = Config::from_options(written, &host()).unwrap();
        assert_eq!(written.warnings.len(), 3, "{:?}", written.warnings);
        written.warnings.clear();
        assert_eq!(written, check(&[]).unwrap());
    }

    #[test]
    fn what_the_host_says_fills_in() {
        let config = check(&[]).unwrap();
        assert_eq!((config.broadcast_address.as_str(), config.shards), ("box", 2));
        assert!(config.node_id < 1024);
        assert_eq!(config.node_id, check(&[]).unwrap().node_id);
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn addresses_are_tcp_or_unix() {
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port };
        for (text, expected) in [
            ("127.0.0.1:80", tcp("127.0.0.1", 80)),
            (":0", tcp("", 0)),
            ("[::1]:4150", tcp("::1", 4150)),
            ("/run/a.sock", Address::Unix("/run/a.sock".into())),
            ("nsqd.sock", Address::Unix("nsqd.sock".into())),
            ("::1", Address::Unix("::1".into())),
        ] {
            assert_eq!(address("tcp_address", text), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        assert!(check(&["-tcp-address="]).is_err());
        assert!(check(&["-tcp-address=:99999"]).is_err());
        assert_eq!(check(&["-http-address="]).unwrap().http_address, None);
    }

    #[test]
    fn bounds_are_named() {
        for (arguments, key, text) in [
            (&["-node-id=1024"][..], "id", "id is 1024; it must be from 0 to 1023"),
            (&["-max-deflate-level=0"], "max_deflate_level", "max_deflate_level is 0; it must be from 1 to 9"),
            (&["-sync-timeout=0"], "sync_timeout", "sync_timeout is 0; it must be longer than that"),
            (
                &["-e2e-processing-latency-percentile=1.1"],
                "e2e_processing_latency_percentiles",
                "e2e_processing_latency_percentiles holds 1.1; a quantile is above 0 and up to 1",
            ),
            (
                &["-lookupd-tcp-address=localhost"],
                "nsqlookupd_tcp_addresses",
                "nsqlookupd_tcp_addresses is \"localhost\"; it must be host:port",
            ),
            (
                &["-auth-http-address=ftp://x"],
                "auth_http_addresses",
                "auth_http_addresses is \"ftp://x\"; it must be host:port or a URL of http or https",
            ),
        ] {
            let error = check(arguments).unwrap_err();
            assert_eq!((error.key(), error.to_string().as_str()), (key, text));
        }
        assert!(check(&["-e2e-processing-latency-percentile=NaN"]).is_err());
        assert_eq!(check(&["-mem-queue-size=-1"]).unwrap().mem_queue_size, 0);
        assert_eq!(check(&["-sync-every=0"]).unwrap().sync_every, 1);
        assert_eq!(check(&["-auth-http-address=https://a/b"]).unwrap().auth_http_addresses, ["https://a/b"]);
    }

    #[test]
    fn tls_is_all_or_nothing() {
        assert_eq!(check(&["-tls-cert=c"]).unwrap_err().to_string(), "tls_cert is \"c\", which needs tls_key");
        assert_eq!(
            check(&["-tls-required"]).unwrap_err().to_string(),
            "tls_required is \"true\", which needs tls_cert and tls_key"
        );
        let both = ["-tls-cert=c", "-tls-key=k", "-tls-client-auth-policy=require"];
        let config = check(&both).unwrap();
        assert_eq!(config.tls.required, TlsRequired::Yes, "a policy implies that TLS is required");
        let verify = ["-tls-cert=c", "-tls-key=k", "-tls-client-auth-policy=require-verify"];
        assert_eq!(check(&verify).unwrap_err().key(), "tls_client_auth_policy");
    }

    #[test]
    fn what_does_nothing_is_said() {
        let config = check(&["-queue-scan-selection-count=9", "-tls-min-version=tls1.1"]).unwrap();
        let texts: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2);
        assert!(texts[0].starts_with("queue_scan_selection_count has no effect here"), "{texts:?}");
        assert_eq!(texts[1], "tls_min_version is tls1.1, but clients need tls1.2 at least");
    }

    #[test]
    fn who_may_write_over_http_is_checked() {
        let config = check(&[]).unwrap();
        assert_eq!((config.http_allowed_hosts, config.http_allowed_origins), (vec!["*".to_owned()], Vec::new()));
        assert_eq!((config.http_max_connections, config.http_token_file), (1_024, None));
        let config = check(&["-http-allowed-host=a.example", "-http-allowed-origin=https://b.example:8080"]).unwrap();
        assert_eq!(config.http_allowed_hosts, ["a.example"]);
        assert_eq!(config.http_allowed_origins, ["https://b.example:8080"]);
        for wrong in [
            "-http-allowed-host=a.example:4151",
            "-http-allowed-host=http://a.example",
            "-http-allowed-origin=b.example",
            "-http-allowed-origin=https://b.example/",
            "-http-max-connections=1",
        ] {
            let error = check(&[wrong]).unwrap_err();
            assert!(wrong.starts_with(&format!("-{}", &error.key().replace('_', "-")[..12])), "{error}");
        }
    }

    #[test]
    fn values_show_as_nsqd_shows_them() {
        let config = check(&["-msg-timeout=1m", "-log-level=warn", "-lookupd-tcp-address=a:1"]).unwrap();
        assert_eq!(config.nsqd_value("msg_timeout"), Some(json!(60_000_000_000_u64)));
        assert_eq!(config.nsqd_value("log_level"), Some(json!(3)));
        assert_eq!(config.nsqd_value("tls_min_version"), Some(json!(769)));
        assert_eq!(config.nsqd_value("tls_required"), Some(json!(0)));
        assert_eq!(config.nsqd_value("nsqlookupd_tcp_addresses"), Some(json!(["a:1"])));
        assert_eq!(config.nsqd_value("tls_cert"), Some(json!("")));
        assert_eq!(config.nsqd_value("shards"), None);
        let shown = FLAGS.iter().filter(|flag| config.nsqd_value(flag.key).is_some()).count();
        // nsqd's 53 flags less four that are no options and two of its scanner.
        assert_eq!(shown, 47);
    }

    #[test]
    fn statsd_needs_an_address_that_is_one_and_time_between_pushes() {
        let config = check(&["-statsd-address=s:8125", "-statsd-udp-packet-size=0"]).unwrap();
        assert_eq!((config.statsd.address.as_deref(), config.statsd.packet_bytes), (Some("s:8125"), 4_096));
        assert!(check(&["-statsd-interval=0s"]).unwrap().statsd.address.is_none());
        let error = |arguments: &[&str]| check(arguments).unwrap_err().to_string();
        assert_eq!(error(&["-statsd-address=s"]), "statsd_address is \"s\"; it must be host:port");
        assert_eq!(
            error(&["-statsd-address=s:1", "-statsd-interval=0s"]),
            "statsd_interval is 0; it must be longer than that"
        );
        assert_eq!(
            error(&["-statsd-udp-packet-size=70000"]),
            "statsd_udp_packet_size is 70000; it must be from 1 to 65507"
        );
    }
}

//! What the proxy runs with: every default applied, every bound checked.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use tidegate_core::Rate;

use super::tls::TlsPolicy;
use super::words::{
    Balance, Cidr, Forwarded, HashBy, LogFormat, Mode, ProxyProtocolIn, ProxyProtocolOut, RateLimitHeaders,
    RefuseHello, Resolve, Statuses, TenantBy, Trace, Unknown, UpstreamProtocol,
};
use crate::machine::Resource;
use crate::machine::patience::Patience;
use crate::machine::sampling::Sampling;

/// The proxy's configuration; its values are in bounds and consistent.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Threads that accept and serve, 1 to 256; by default one for each CPU.
    pub threads: usize,
    /// Threads that serve what is admitted beyond a tenant's share with what is left of the CPUs; 0 for none, and then
    /// the others serve it too. By default as many as [`threads`](Self::threads).
    pub overflow_threads: usize,
    /// How long requests under way may take to end when the proxy is told to stop.
    pub drain_timeout: Duration,
    /// Peers whose PROXY headers and forwarding headers are believed.
    pub trusted: Vec<Cidr>,
    /// Which headers tell upstreams where a request came from.
    pub forwarded: Forwarded,
    /// What it does with W3C Trace Context.
    pub trace: Trace,
    /// Whether a `ClientHello` with a name that no certificate is for is refused; one without a name never is. Without a value:
    /// yes, if the certificates name any hosts.
    pub strict_sni: Option<bool>,
    /// Files of keys for session tickets, at most 16. The first encrypts, all decrypt; without one each process has its own.
    pub ticket_keys: Vec<PathBuf>,
    /// Where the admin API listens; `None` for no admin API.
    pub admin: Option<SocketAddr>,
    /// Where datagrams of other proxies come with which it lends tokens of a limit that they divide; `None` to lend nothing.
    pub lend: Option<SocketAddr>,
    /// Who is asked for the names of servers, at most 8; none for whom the system asks.
    pub name_servers: Vec<SocketAddr>,
    /// Where a successor takes the ports over; `None` for nowhere.
    pub upgrade_socket: Option<PathBuf>,
    /// Where clients connect; one at least.
    pub listeners: Vec<Listener>,
    /// For listeners with TLS, the first for clients that name no host.
    pub certificates: Vec<Certificate>,
    /// Their names are unique.
    pub upstreams: Vec<Upstream>,
    /// As in the file; [`Routes`](super::Routes) says which one a request takes.
    pub routes: Vec<Route>,
    /// Limits by the name that the client asks for in its `ClientHello`.
    pub sni: Vec<SniRule>,
    /// Ranges of addresses by name.
    pub lists: BTreeMap<String, Vec<Cidr>>,
    /// Who shares the proxy.
    pub tenants: Tenants,
    /// How tenants are kept from each other.
    pub limits: Limits,
    /// How long anything may take.
    pub timeouts: Timeouts,
    /// Bounds on what a request may be.
    pub http: Http,
    /// Where large bodies wait; `None` if they stay in memory.
    pub spool: Option<Spool>,
    /// What is written about each request, if anything.
    pub access_log: Option<AccessLog>,
    /// What works, and is probably not meant.
    pub warnings: Vec<String>,
}

/// A port that clients connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Port 0 for one that the system picks.
    pub address: SocketAddr,
    /// Whether TLS is spoken; then there is a certificate.
    pub tls: bool,
    /// What of it.
    pub tls_policy: TlsPolicy,
    /// Whether HTTP/2 is spoken: by ALPN over TLS, else by prior knowledge (h2c).
    pub http2: bool,
    /// Whether HTTP/1.1 is spoken. One of the two is.
    pub http1: bool,
    /// Whether clients are announced by the PROXY protocol.
    pub proxy_protocol: ProxyProtocolIn,
}

/// A certificate and its key, read again whenever the files change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// Names in lower case, `*.example.com` for one label below; empty for those in the certificate.
    pub names: Vec<String>,
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
    /// DER file of the OCSP response that is stapled to it.
    pub ocsp: Option<PathBuf>,
}

/// Servers that do the same work.
#[derive(Clone, PartialEq, Debug)]
pub struct Upstream {
    /// As routes name it.
    pub name: String,
    /// One at least.
    pub servers: Vec<Server>,
    /// When the names among them are asked for again.
    pub resolve: Resolve,
    /// Of each of them, its part of the requests beside the others', 0 to 1,000; 0 for a server that gets none.
    pub weights: Vec<u16>,
    /// Over which span a server that came back gets its full part.
    pub slow_start: Duration,
    /// Whether it is learnt how many requests they can work on at once.
    pub adaptive_concurrency: bool,
    /// How one is chosen.
    pub balance: Balance,
    /// What decides, if a hash does.
    pub hash_by: Option<HashBy>,
    /// What is spoken with them.
    pub protocol: UpstreamProtocol,
    /// Whether they are told the client by the PROXY protocol.
    pub proxy_protocol: ProxyProtocolOut,
    /// How TLS is spoken with them; `None` for no TLS. Always there with [`UpstreamProtocol::Http2`].
    pub tls: Option<UpstreamTls>,
    /// Most connections to one server, from all threads, each of which has its part, at least 1.
    pub max_connections: u32,
    /// Most requests of HTTP/2 under way, for each server that is up, from all threads, each of which has its part, at least 1. Over
    /// HTTP/1 each request costs its client a connection; streams cost nothing.
    pub max_streams: u32,
    /// Most requests that wait for a connection, for each server and from all threads, each of which has its part, at
    /// least 1 if it is not 0. Tenants take turns; when there is no room, one who has most of those who wait is refused
    /// with 503.
    pub queue: u32,
    /// Whether servers are asked for their health.
    pub health: Option<Health>,
    /// Statuses of answers that speak against their server as if there were none; each from 500 to 599, once.
    pub failure_statuses: Vec<u16>,
    /// What happens after a server failed.
    pub retries: Retries,
}

impl Upstream {
    /// Whether it makes a difference there who sent a request.
    #[must_use]
    pub fn wants_client(&self) -> bool {
        !self.failure_statuses.is_empty() || self.hash_by == Some(HashBy::Source)
    }
}

/// A server of an upstream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Server {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// One of its addresses, if it is a name that was found; `None` as it is configured.
    pub address: Option<IpAddr>,
}

impl Server {
    /// As it is configured, whatever its address.
    #[must_use]
    pub fn configured(&self) -> String {
        Self { address: None, ..self.clone() }.to_string()
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{}", SocketAddr::new(address, self.port))
        } else if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// TLS to the servers of an upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpstreamTls {
    /// Whose certificates are accepted.
    pub trust: Trust,
    /// The name that every server's certificate must be for; `None` for the host of each server's own address, which then
    /// is a name, unless certificates are not verified.
    pub name: Option<String>,
    /// What servers are shown that ask for a certificate.
    pub client: Option<ClientCertificate>,
}

/// Whose certificates are accepted of servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Those of authorities that the system trusts.
    System,
    /// Those of the authorities in this PEM file.
    File(PathBuf),
    /// Anybody's: for tests.
    Unverified,
}

/// The proxy's own certificate and its key, read again whenever the files change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    /// PEM file of the chain.
    pub cert: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
}

impl UpstreamTls {
    /// The files that are read, each with its key in the configuration.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let roots = match &self.trust {
            Trust::File(roots) => Some(("roots", roots.as_path())),
            Trust::System | Trust::Unverified => None,
        };
        let client = self.client.iter();
        let client = client.flat_map(|client| [("cert", client.cert.as_path()), ("key", client.key.as_path())]);
        roots.into_iter().chain(client)
    }
}

/// How servers are asked for their health.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// What is asked for, with `GET`.
    pub path: String,
    /// The Host of the question; the server's own if `None`.
    pub host: Option<String>,
    /// Statuses of a server that is well.
    pub statuses: Vec<Statuses>,
    /// Between two questions.
    pub interval: Duration,
    /// For one answer; shorter than the interval.
    pub timeout: Duration,
    /// Good answers in a row after which a server gets requests again.
    pub rise: u32,
    /// Bad answers in a row after which it gets none.
    pub fall: u32,
}

/// Second tries of requests that no server has answered, or none well.
#[derive(Clone, PartialEq, Debug)]
pub struct Retries {
    /// Tries after the first, each on another server if there is one; 0 to 5.
    pub attempts: u32,
    /// Second tries as a part of first ones, 0 to 1: retries never add more load than that.
    pub budget: f64,
    /// Statuses that are tried again as if there were no answer, of requests that may be repeated; each from 500 to 599,
    /// once.
    pub statuses: Vec<u16>,
}

/// Which requests go where.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// For logs, metrics and as a tenant; unique.
    pub name: String,
    /// In lower case and without a port; `*.example.com` for any name below; `None` for every host.
    pub host: Option<String>,
    /// What the path must begin with, up to a `/` or its end; begins with `/`.
    pub path: String,
    /// Empty for every method.
    pub methods: Vec<Method>,
    /// Index in [`Config::upstreams`].
    pub upstream: usize,
    /// What stands in the place of [`path`](Self::path) in the request that the upstream gets.
    pub rewrite: Option<String>,
    /// Of requests, before they go to the upstream.
    pub request_headers: HeaderEdits,
    /// Of responses, before they go to the client.
    pub response_headers: HeaderEdits,
    /// Whose requests these are, whatever else tells tenants apart.
    pub tenant: Option<String>,
    /// A limit of its own.
    pub rate_limit: Option<RateLimit>,
}

/// Headers that are removed, then those that are set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeaderEdits {
    /// These go.
    pub remove: Vec<HeaderName>,
    /// These are there, once, whatever was there before.
    pub set: Vec<(HeaderName, HeaderValue)>,
}

/// Limits of connections by SNI name.
#[derive(Clone, PartialEq, Debug)]
pub struct SniRule {
    /// In lower case. Each has a limiter of its own.
    pub names: Vec<String>,
    /// Other names that share the limiter of the one in `names`.
    pub aliases: Vec<String>,
    /// Whether all names without a rule share a limiter of this one.
    pub default: bool,
    /// The limit.
    pub rate_limit: RateLimit,
}

/// The `rate_limit` plugin of Apache Traffic Server, option by option.
#[derive(Clone, PartialEq, Debug)]
pub struct RateLimit {
    /// Most transactions at once (connections, for SNI rules and with [`connections`](Self::connections)).
    pub limit: Option<u32>,
    /// Most that begin each second.
    pub rate: Option<Rate>,
    /// Most that begin at once when none began for a while; at least 1. By default what `rate` admits in a second.
    pub burst: u64,
    /// Whether `rate` and `burst` are those of several proxies together, of which `tidegate control` gives each a part:
    /// before its first part nothing begins here. By default each proxy has all of them.
    pub divided: bool,
    /// Most that wait, first come first served, when the limit is reached; 0 to refuse at once.
    pub queue: u32,
    /// How long one may wait; `None` for as long as it takes.
    pub max_age: Option<Duration>,
    /// The status of a refusal, 400 to 599.
    pub error: StatusCode,
    /// What `Retry-After` of a refusal says, in whole seconds; `None` for no such header.
    pub retry: Option<Duration>,
    /// The request header that tells the upstream how many milliseconds a request waited.
    pub header: Option<HeaderName>,
    /// Whether it counts client connections instead of transactions.
    pub connections: bool,
    /// What metrics begin with.
    pub prefix: String,
    /// What metrics are told apart by; by default the route's or the SNI name.
    pub tag: Option<String>,
    /// Names of lists whose addresses are exempt: they pass and are not counted.
    pub allow: Vec<String>,
    /// Names of lists whose addresses are always refused.
    pub deny: Vec<String>,
}

/// Who shares the proxy.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenants {
    /// What tells them apart.
    pub by: TenantBy,
    /// Addresses whose header is believed, if one tells them apart: those of whoever puts it there. Others' requests are told
    /// apart by host. Not empty then, and else empty.
    pub header_from: Vec<Cidr>,
    /// The tenant of hosts that no certificate, route, SNI rule or tenant lists. Without a value: `Together` if any of these
    /// lists a host, else `Apart`.
    pub unknown: Option<Unknown>,
    /// How many are known at once; more share the place of the last.
    pub max_tracked: usize,
    /// Those with a name or a weight of their own.
    pub named: Vec<Tenant>,
}

/// A tenant with a name or a weight of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its part of what there is, against the others' 1; 1 to 1000.
    pub weight: u32,
    /// Most bytes per second of its bodies and tunnels, both directions and all threads together; `None` for any number.
    pub bandwidth: Option<u64>,
    /// What it is known by: SNI names, hosts, routes or header values; `*.example.com` for any name below.
    pub matches: Vec<String>,
}

/// How much of a resource there is, for the whole proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Amount {
    /// Time of the cores is learnt while the proxy runs, and bounds handshakes and requests too, which cost such time;
    /// connections are bounded by open files, and memory by what there is.
    #[default]
    Learnt,
    /// As much as anybody wants: nothing tells how many bytes the network and the disk can move.
    Unlimited,
    /// Units for each second (counters) or at once (gauges); at least 1.
    Fixed(u64),
}

/// How tenants are kept from each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// Whether they are.
    pub mode: Mode,
    /// The part of each capacity that nobody has as a share, 0 to 0.9: who needs more than his share takes turns there.
    pub reserve: f64,
    /// The part of each capacity for tenants without a share yet, 0 to 0.5.
    pub newcomers: f64,
    /// How often shares follow demand.
    pub tick: Duration,
    /// How long a request waits that is beyond its tenant's share before it is refused; zero if it does not wait.
    pub patience: Duration,
    /// By [`Resource::index`].
    pub capacities: [Amount; Resource::COUNT],
    /// How a connection ends whose tenant is refused at its `ClientHello`.
    pub refuse_hello: RefuseHello,
    /// Which headers tell clients about their share.
    pub rate_limit_headers: RateLimitHeaders,
}

/// How long anything may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// From the connection to the whole `ClientHello` (and PROXY header).
    pub client_hello: Duration,
    /// From the `ClientHello` to the end of the TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request to the end of its head.
    pub header: Duration,
    /// Between two reads of a request's body.
    pub body_idle: Duration,
    /// Least bytes per second of a request's body, over [`body_idle`](Self::body_idle); `None` for any.
    pub body_rate_min: Option<u64>,
    /// For a connection to an upstream.
    pub upstream_connect: Duration,
    /// From the request's end to the first byte of the upstream's answer.
    pub upstream_first_byte: Duration,
    /// Between two reads of the upstream's answer, and between two writes of the request.
    pub upstream_idle: Duration,
    /// For the next request on a connection to an upstream that is kept. 4 s unless configured: Apache httpd, Node.js and
    /// others close after 5 s, and a request that meets that may not be sent again.
    pub upstream_keep_alive: Duration,
    /// For a request from head to last byte; `None` for as long as bytes move.
    pub total: Option<Duration>,
    /// For a client to take more bytes of an answer.
    pub write_stall: Duration,
    /// Least bytes per second that a client takes of an answer, over [`write_stall`](Self::write_stall); `None` for any.
    pub write_rate_min: Option<u64>,
    /// For the next request on a connection.
    pub keep_alive: Duration,
    /// Without a byte in either direction, after an upgrade such as to WebSocket.
    pub upgraded_idle: Duration,
}

impl Timeouts {
    /// With a client that sends a body.
    #[must_use]
    pub const fn body_patience(&self) -> Patience {
        Patience::new(self.body_idle, self.body_rate_min)
    }

    /// With a client that takes an answer.
    #[must_use]
    pub const fn write_patience(&self) -> Patience {
        Patience::new(self.write_stall, self.write_rate_min)
    }
}

/// Bounds on what a request may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Http {
    /// Bytes of request line and headers.
    pub max_head: usize,
    /// Headers of a request.
    pub max_headers: usize,
    /// Bytes of a request's body; `None` for any number.
    pub max_body: Option<u64>,
    /// Requests at once on one HTTP/2 connection.
    pub h2_max_concurrent_streams: u32,
    /// Bytes of a decoded HTTP/2 header list.
    pub h2_max_header_list: u32,
    /// Streams that a client may reset faster than they are closed; beyond, the connection ends.
    pub h2_max_resets: usize,
    /// Bytes that a client may send on a stream before it is read.
    pub h2_stream_window: u32,
    /// Bytes that a client may send on a connection before they are read.
    pub h2_connection_window: u32,
    /// Whether a stream of HTTP/2 may become a WebSocket (RFC 8441).
    pub h2_websocket: bool,
}

impl Http {
    /// Most headers of a request that can be permitted: a parser has room for so many.
    pub const HEADERS_MAX: usize = 256;
}

/// Where large bodies wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spool {
    /// Bytes of a body that do not go there.
    pub above: u64,
    /// A folder of the proxy alone.
    pub directory: PathBuf,
    /// Bytes of all bodies in it. One tenant's take as much as is left for all others; beyond, an answer waits for its
    /// client, and a request is refused.
    pub max_bytes: u64,
    /// Threads that read and write there, 1 to 64.
    pub threads: usize,
}

/// What is written about each request.
#[derive(Clone, PartialEq, Debug)]
pub struct AccessLog {
    /// Where to.
    pub to: LogTarget,
    /// In which form.
    pub format: LogFormat,
    /// Of which requests.
    pub sampling: Sampling,
}

/// Where lines go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogTarget {
    /// To standard output.
    Stdout,
    /// To the end of this file, which is opened again on SIGHUP.
    File(PathBuf),
}

//! The configuration, as the way of a request uses it: looked up, not searched; converted once.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use http::{HeaderMap, HeaderValue};
use rustls::server::ProducesTickets;
use tidegate_core::Instant;
use tidegate_runtime::process;
use tidegate_wire::http1::Limits as HttpLimits;
use tokio::sync::Notify;

use crate::config::{Amount, Cidr, Config, RateLimit, Routes, SniRule, Tenancy};
use crate::error::ProxyError;
use crate::io::conn::held::HELD_TLS;
use crate::io::conn::limiter::NeighboursConfig;
use crate::io::conn::pace::SharedBandwidth;
use crate::io::conn::tls::{self, Certificates};
use crate::io::request::gate::Gate;
use crate::io::upstream::Tls;
use crate::machine::Resource;
use crate::machine::neighbours::Capacity;
use crate::machine::rate_limit::{Lists, PrefixSet, Selector, Selectors};

/// What is in force from one reload to the next.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) routes: Routes,
    pub(crate) tenancy: Tenancy,
    /// The header that tells tenants apart.
    pub(crate) tenant_header: Option<http::HeaderName>,
    /// Of each route, the gate before its requests.
    pub(crate) route_gates: Vec<Option<Arc<Gate>>>,
    /// Names in the `ClientHello` that have a gate.
    sni: Selectors,
    /// Of each of them, the gate before its connections.
    sni_gates: Vec<Arc<Gate>>,
    /// Told when somebody begins to wait at a gate.
    pub(crate) gates_queued: Arc<Notify>,
    /// All of them once, for metrics and timers.
    pub(crate) gates: Vec<Arc<Gate>>,
    /// Bytes per second of the tenants that have a number, by name.
    pub(crate) bandwidths: HashMap<String, Arc<SharedBandwidth>, RandomState>,
    /// For each listener with TLS.
    pub(crate) tls: Vec<Option<Arc<rustls::ServerConfig>>>,
    /// What is spoken with.
    pub(crate) certificates: Arc<Certificates>,
    /// For each upstream with TLS.
    pub(crate) upstream_tls: Vec<Option<Tls>>,
    pub(crate) http: HttpLimits,
    /// Connections that one core's memory has room for, whatever is spoken on them.
    pub(crate) memory_places: usize,
    /// What `X-Forwarded-Proto` says, without TLS and with it.
    pub(crate) proto: [HeaderValue; 2],
}

/// Longer targets cannot be held.
const TARGET_MAX: usize = u16::MAX as usize - 1;

impl Settings {
    /// `config` compiled. What `before` has and this one keeps, such as who is inside which gate, stays.
    pub(crate) fn new(config: Config, before: Option<&Self>, now: Instant) -> Result<Arc<Self>, ProxyError> {
        let certificates = Certificates::load(&config.certificates)?;
        let tls = tls::server_configs(&config, &certificates, before.and_then(own_tickets))?;
        let upstream_tls = Tls::load(&config.upstreams, before.map_or(&[], |before| &before.upstream_tls))?;
        let gates_queued = before.map(|before| Arc::clone(&before.gates_queued)).unwrap_or_default();
        let mut gates = Gates { before, config: &config, all: Vec::new(), queued: &gates_queued, now };
        let route_gates: Vec<_> = config
            .routes
            .iter()
            .map(|route| route.rate_limit.as_ref().map(|rule| gates.named(&format!("route {}", route.name), rule)))
            .collect();
        let (selectors, sni_gates) = config.sni.iter().flat_map(|rule| gates.sni(rule)).unzip();
        let http = HttpLimits {
            head_bytes: config.http.max_head,
            request_line_bytes: config.http.max_head.min(TARGET_MAX),
            field_bytes: config.http.max_head,
            fields: config.http.max_headers,
            body_bytes: config.http.max_body.unwrap_or(HttpLimits::default().body_bytes),
            ..HttpLimits::default()
        };
        let tenancy = Tenancy::new(&config, certificates.names());
        let tenant_header = tenancy.header().and_then(|name| name.parse().ok());
        let gates = gates.all;
        for old in before.iter().flat_map(|before| &before.gates) {
            if !gates.iter().any(|gate| Arc::ptr_eq(gate, old)) {
                old.lift(now);
            }
        }
        Ok(Arc::new(Self {
            routes: Routes::new(&config),
            tenancy,
            tenant_header,
            route_gates,
            sni: Selectors::new(selectors),
            sni_gates,
            gates_queued,
            gates,
            bandwidths: bandwidths(&config, before, now),
            tls,
            certificates,
            upstream_tls,
            http,
            memory_places: memory_places(of_a_core(&config, Resource::Memory)),
            proto: [HeaderValue::from_static("http"), HeaderValue::from_static("https")],
            config,
        }))
    }

    /// The gate before connections that ask for `sni`.
    pub(crate) fn sni_gate(&self, sni: Option<&str>) -> Option<&Arc<Gate>> {
        self.sni.find(sni).map(|place| &self.sni_gates[place])
    }

    /// The limiter's settings for one of the cores.
    pub(crate) fn neighbours(&self) -> NeighboursConfig {
        let limits = &self.config.limits;
        NeighboursConfig {
            mode: limits.mode,
            capacities: Resource::ALL
                .map(|resource| of_a_core(&self.config, resource).map_or(Capacity::Learnt, Capacity::Fixed)),
            weights: self.config.tenants.named.iter().map(|tenant| (tenant.name.clone(), tenant.weight)).collect(),
            tenants_max: u32::try_from(self.config.tenants.max_tracked).unwrap_or(NeighboursConfig::TENANTS_MAX),
            tick: limits.tick,
            reserve: limits.reserve,
            newcomers: limits.newcomers,
            ..NeighboursConfig::default()
        }
    }

    /// Whether a `ClientHello` with this name is refused, since no certificate is for it.
    pub(crate) fn is_strange(&self, sni: Option<&str>) -> bool {
        let is_certified = |sni| self.tenancy.is_certified(sni);
        // Certificates for addresses alone are for every name, unless the file says otherwise.
        let of_no_host = self.config.strict_sni != Some(true);
        self.config.strict_sni != Some(false) && sni.is_some_and(|sni| !is_certified(sni).unwrap_or(of_no_host))
    }

    /// What a request says in the header that tells tenants apart, if it comes from whoever may say so.
    pub(crate) fn tenant_header<'a>(&self, client: std::net::IpAddr, headers: &'a HeaderMap) -> Option<&'a str> {
        let name = self.tenant_header.as_ref()?;
        let is_believed = || self.config.tenants.header_from.iter().any(|range| range.contains(client));
        headers.get(name).filter(|_| is_believed())?.to_str().ok()
    }

    /// Whether the headers of this peer about earlier hops are believed.
    pub(crate) fn trusts(&self, peer: std::net::IpAddr) -> bool {
        self.config.trusted.iter().any(|range| range.contains(peer))
    }
}

/// Session tickets with keys of the proxy's own, if there are any: they outlive a reload.
fn own_tickets(before: &Settings) -> Option<Arc<dyn ProducesTickets>> {
    let any = before.tls.iter().flatten().next().filter(|_| before.config.ticket_keys.is_empty());
    any.map(|any| Arc::clone(&any.ticketer))
}

/// Those of tenants who had one before go on, and a tenant that has none any more is held up no longer.
fn bandwidths(
    config: &Config,
    before: Option<&Settings>,
    now: Instant,
) -> HashMap<String, Arc<SharedBandwidth>, RandomState> {
    let old = |name: &str| before.and_then(|before| before.bandwidths.get(name));
    let mut made = HashMap::default();
    for tenant in &config.tenants.named {
        match (old(&tenant.name), tenant.bandwidth) {
            (Some(old), rate) => {
                old.set_rate(rate, now);
                if rate.is_some() {
                    made.insert(tenant.name.clone(), Arc::clone(old));
                }
            }
            (None, Some(rate)) => {
                made.insert(tenant.name.clone(), SharedBandwidth::new(rate, now));
            }
            (None, None) => {}
        }
    }
    for (name, old) in before.iter().flat_map(|before| &before.bandwidths) {
        if !made.contains_key(name) {
            old.set_rate(None, now);
        }
    }
    made
}

/// What one core has of `resource`, if that is known beforehand. Each has its part; a core that gets fewer connections than
/// others wastes some of it.
fn of_a_core(config: &Config, resource: Resource) -> Option<u64> {
    let amount = match config.limits.capacities[resource.index()] {
        Amount::Fixed(units) => Some(units),
        Amount::Learnt => found(resource),
        Amount::Unlimited => None,
    };
    let part = amount.map(|units| (units / config.threads.max(1) as u64).max(1));
    if resource != Resource::Connections {
        return part;
    }
    // Fewer than there are places: a tenant runs into its share before it has taken those of others.
    let places = memory_places(of_a_core(config, Resource::Memory));
    let most = (places - places / 8).max(1) as u64;
    part.map(|part| part.min(most)).or((places < usize::MAX).then_some(most))
}

/// Nobody asks for a connection without TLS before its first request: where there are no more places than these, those
/// who send none never fill the memory, and one of them ends for the next.
fn memory_places(memory: Option<u64>) -> usize {
    let counted = memory.map(|bytes| bytes.min(NeighboursConfig::capacity_max(Resource::Memory)));
    counted.and_then(|bytes| usize::try_from(bytes / HELD_TLS).ok()).unwrap_or(usize::MAX)
}

/// What the machine itself says there is. A client's connection may have one to an upstream beside it, and few files stay for
/// the rest: so who opens connections without end runs into its share before files run out. Of the memory a quarter is for what waits for clients and servers: the kernel's buffers of the same connections are not counted.
fn found(resource: Resource) -> Option<u64> {
    match resource {
        Resource::Connections => Some(connections(process::open_files_limit())).filter(|most| *most < 1 << 32),
        Resource::Memory => process::memory_limit().map(|bytes| bytes / 4),
        _ => None,
    }
}

/// Connections of clients that so many files are enough for, if each has one to an upstream: ports, logs, the runtimes'
/// files and those of the spool take some.
pub(crate) fn connections(files: u64) -> u64 {
    files.saturating_sub(64 + files / 64) / 2
}

struct Gates<'a> {
    before: Option<&'a Settings>,
    config: &'a Config,
    all: Vec<Arc<Gate>>,
    queued: &'a Arc<Notify>,
    now: Instant,
}

impl Gates<'_> {
    fn named(&mut self, name: &str, rule: &RateLimit) -> Arc<Gate> {
        let lists = Lists { allow: self.ranges(&rule.allow), deny: self.ranges(&rule.deny) };
        let old = self.before.and_then(|before| before.gates.iter().find(|gate| gate.name == name));
        let gate = match old {
            Some(old) => {
                old.reload(rule.clone(), lists, self.now);
                Arc::clone(old)
            }
            None => Gate::new(name.to_owned(), rule.clone(), lists, Arc::clone(self.queued), self.now),
        };
        self.all.push(Arc::clone(&gate));
        gate
    }

    /// One gate for each name of the rule; aliases share that of the first.
    fn sni(&mut self, rule: &SniRule) -> Vec<(Selector, Arc<Gate>)> {
        let mut all = Vec::new();
        let mut aliases = rule.aliases.clone();
        for name in &rule.names {
            let selector = Selector { name: name.clone(), aliases: std::mem::take(&mut aliases), default: false };
            all.push((selector, self.named(&format!("sni {name}"), &rule.rate_limit)));
        }
        if rule.default {
            let selector = Selector { name: String::new(), aliases, default: true };
            all.push((selector, self.named("sni *", &rule.rate_limit)));
        }
        all
    }

    fn ranges(&self, names: &[String]) -> PrefixSet {
        names.iter().filter_map(|name| self.config.lists.get(name)).flatten().map(Cidr::prefix).collect()
    }
}

/// Settings, counted by each thread for itself: a request that holds them touches no other thread's memory.
#[derive(Debug)]
pub(crate) struct InForce(pub(crate) Arc<Settings>);

impl std::ops::Deref for InForce {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;

    #[test]
    fn a_tenant_meets_its_share_of_the_connections_before_the_places_for_which_there_is_memory_are_taken() {
        for (memory, connections) in [("1MiB", "\"learnt\""), ("64MiB", "100_000"), ("16KiB", "100_000")] {
            let text = format!(
                "[[proxy.upstream]]\nname = \"u\"\nservers = [\"127.0.0.1:1\"]\n[[proxy.route]]\nupstream = \"u\"\n\
                 [proxy.limits.capacities]\nmemory = \"{memory}\"\nconnections = {connections}\n"
            );
            let config = Config::from_document(&Document::new("t.toml", text), 1).unwrap();
            let places = memory_places(of_a_core(&config, Resource::Memory)) as u64;
            let most = of_a_core(&config, Resource::Connections).unwrap();
            assert!((1..=places.max(1)).contains(&most) && (places < 8 || most < places), "{most} of {places}");
        }
    }
}

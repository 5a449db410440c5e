//! What the configuration says, as the machines want it.

use std::time::Duration;

use super::names::Addresses;
use super::tls::Tls;
use crate::config::{self, ProxyProtocolOut, Server, UpstreamProtocol};
use crate::machine::upstream::{
    ActiveConfig, Balance, ConnectionsTuning, Key, PoolConfig, RetryConfig, ServerConfig, SharingTuning,
};

/// Connections that are each for one client are searched for his, one by one.
const IDLE_SEARCHED: usize = 1_024;

/// One upstream for one thread.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    /// As routes name it.
    pub(crate) name: String,
    /// In the order of [`PoolConfig::servers`].
    pub(crate) servers: Vec<Server>,
    /// This thread's part of the slots.
    pub(crate) pool: PoolConfig,
    /// How servers are asked for their health; `None` for not at all.
    pub(crate) health: Option<ActiveConfig>,
    /// What is spoken with the servers.
    pub(crate) protocol: UpstreamProtocol,
    /// Whether they are told the client by the PROXY protocol.
    pub(crate) announce: ProxyProtocolOut,
    /// How TLS is spoken with them; `None` for no TLS.
    pub(crate) tls: Option<Tls>,
    /// For a connection.
    pub(crate) connect_timeout: Duration,
    /// Connections to one server that may wait for the next request.
    pub(crate) max_idle: usize,
    /// How long one may wait.
    pub(crate) idle_timeout: Duration,
    /// How connections of HTTP/2 are shared.
    pub(crate) http2: ConnectionsTuning,
}

/// Which of how many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// From 0.
    pub(crate) index: u32,
    /// All of them.
    pub(crate) of: u32,
}

impl Part {
    /// This thread's part of `whole`; the parts sum to it, but each has one at least.
    fn share(self, whole: u32) -> u32 {
        let of = self.of.max(1);
        (whole / of + u32::from(self.index < whole % of)).max(1)
    }
}

impl Settings {
    /// All upstreams of `config` for one of its threads; `tls` of each of them.
    pub(crate) fn of(config: &config::Config, tls: &[Option<Tls>], part: Part) -> Vec<Self> {
        let all = config.upstreams.iter().zip(tls);
        all.map(|(upstream, tls)| Self::one(upstream, tls.clone(), &config.timeouts, part)).collect()
    }

    /// With each server that is a name as one server for each of its addresses, as far as they are known. A server that is
    /// there already, by its address or by another name, is not there twice.
    pub(crate) fn resolved(&self, addresses: &Addresses) -> Self {
        let mut this = self.clone();
        this.servers.clear();
        this.pool.servers.clear();
        for (server, config) in self.servers.iter().zip(&self.pool.servers) {
            let found = addresses.of(&self.name, &server.host).unwrap_or_default();
            let at = |&address| Server { address: Some(address), ..server.clone() };
            let all = found.iter().map(at).chain(found.is_empty().then(|| server.clone()));
            for server in all {
                let label = server.to_string();
                if this.servers.iter().all(|other: &Server| other.to_string() != label) {
                    this.pool.servers.push(ServerConfig { id: Key::of(label.as_bytes()).number(), ..*config });
                    this.servers.push(server);
                }
            }
        }
        let (before, now) = (self.servers.len().max(1) as u64, this.servers.len() as u64);
        let queue = u64::from(self.pool.max_pending) * now / before;
        this.pool.max_pending = u32::try_from(queue).unwrap_or(u32::MAX);
        this
    }

    fn one(upstream: &config::Upstream, tls: Option<Tls>, timeouts: &config::Timeouts, part: Part) -> Self {
        let max_connections = part.share(upstream.max_connections);
        let servers = u32::try_from(upstream.servers.len()).unwrap_or(u32::MAX);
        let queue = if upstream.queue == 0 { 0 } else { part.share(upstream.queue).saturating_mul(servers) };
        let http2 = ConnectionsTuning::default();
        let tries = u8::try_from(upstream.retries.attempts.saturating_add(1)).unwrap_or(u8::MAX);
        let one = |(server, &weight): (&Server, &u16)| {
            let id = Key::of(server.to_string().as_bytes()).number();
            ServerConfig { id, weight, max_connections }
        };
        let pool = PoolConfig {
            servers: upstream.servers.iter().zip(&upstream.weights).map(one).collect(),
            slow_start: upstream.slow_start,
            balance: match upstream.balance {
                config::Balance::LeastLoaded => Balance::LeastLoaded,
                config::Balance::RoundRobin => Balance::RoundRobin,
                config::Balance::Hash => Balance::Hash,
            },
            max_streams: part.share(upstream.max_streams),
            max_pending: queue,
            // Waiting for a connection is a part of connecting, as far as the client can tell.
            pending_timeout: timeouts.upstream_connect,
            retry: RetryConfig {
                tries,
                share: upstream.retries.budget,
                statuses: upstream.retries.statuses.clone(),
                ..RetryConfig::default()
            },
            failure_statuses: upstream.failure_statuses.clone(),
            learnt: upstream.adaptive_concurrency.then(SharingTuning::default),
            ..PoolConfig::default()
        };
        Self {
            name: upstream.name.clone(),
            servers: upstream.servers.clone(),
            health: upstream.health.as_ref().map(|health| ActiveConfig {
                interval: health.interval,
                timeout: health.timeout,
                path: Some(health.path.clone()),
                host: health.host.clone(),
                statuses: health.statuses.iter().map(|statuses| statuses.first..=statuses.last).collect(),
                rise: health.rise,
                fall: health.fall,
            }),
            pool,
            protocol: upstream.protocol,
            announce: upstream.proxy_protocol,
            tls,
            connect_timeout: timeouts.upstream_connect,
            max_idle: match upstream.proxy_protocol {
                ProxyProtocolOut::Off => max_connections as usize,
                ProxyProtocolOut::V1 | ProxyProtocolOut::V2 => (max_connections as usize).min(IDLE_SEARCHED),
            },
            idle_timeout: timeouts.upstream_keep_alive,
            http2: ConnectionsTuning {
                max: http2.max.min(max_connections as usize),
                idle: timeouts.upstream_keep_alive,
                ..http2
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;

    #[test]
    fn a_name_is_as_many_servers_as_it_has_addresses_and_none_is_there_twice() {
        let text = "[[proxy.upstream]]\nname = \"u\"\nservers = [\"a.example:80\", \"192.0.2.2:80\", \"b.example:80\"]\n\
                    weights = { \"a.example:80\" = 3 }\nqueue = 30\n";
        let config = config::Config::from_document(&Document::new("t.toml", text), 1).unwrap();
        let configured = Settings::of(&config, &[None], Part { index: 0, of: 1 }).remove(0);
        let nothing = configured.resolved(&Addresses::default());
        assert_eq!(nothing, configured, "before the first answer names are what they are");
        let found = [1, 2, 3].map(|last| [192, 0, 2, last].into());
        let settings = configured.resolved(&Addresses::one("u", "a.example", &found));
        let servers: Vec<_> = settings.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "b.example:80"]);
        let weights: Vec<_> = settings.pool.servers.iter().map(|server| server.weight).collect();
        assert_eq!((weights, settings.pool.max_pending), (vec![3, 3, 3, 1], 120));
        assert_eq!(settings.servers[0].configured(), "a.example:80");
    }

    #[test]
    fn parts_sum_to_the_whole_while_each_has_one() {
        let sum = |whole, of| (0..of).map(|index| Part { index, of }.share(whole)).sum::<u32>();
        assert_eq!((sum(10, 3), sum(1_024, 7), sum(3, 3)), (10, 1_024, 3));
        assert_eq!(sum(2, 4), 4, "a thread without a slot could not work at all");
    }
}

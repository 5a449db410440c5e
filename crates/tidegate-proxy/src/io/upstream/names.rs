//! Asks for the addresses of servers that are written with a name, for all threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Hosts, TokioResolver};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::system::System;
use crate::config::{Config, Resolve, Server};
use crate::machine::upstream::names::{AGAIN_MIN, Changed, Name};

/// How long one lookup may take, whatever it asks.
const LOOKUP: Duration = Duration::from_secs(5);
/// Lookups at once; others wait for one to end.
const LOOKUPS_MAX: usize = 16;
/// Names that need no name server.
const HOSTS: &str = "/etc/hosts";
/// Where the system's name servers are.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Reports of servers that do not answer, between two looks at them; more say nothing new.
const REPORTS_MAX: usize = 64;

/// An upstream, and the name of one or more of its servers.
pub(crate) type Key = (String, String);

/// The addresses of every name that was found, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Addresses(Arc<BTreeMap<Key, Vec<IpAddr>>>);

impl Addresses {
    /// Of one upstream's one name.
    #[cfg(test)]
    pub(super) fn one(upstream: &str, host: &str, addresses: &[IpAddr]) -> Self {
        Self(Arc::new(BTreeMap::from([((upstream.to_owned(), host.to_owned()), addresses.to_vec())])))
    }

    /// Of this name; `None` if it has not been found yet, or is not asked for.
    pub(crate) fn of(&self, upstream: &str, host: &str) -> Option<&[IpAddr]> {
        // Names are few, and looked up when one of them changes.
        self.0.iter().find(|((of, name), _)| of == upstream && name == host).map(|(_, found)| found.as_slice())
    }
}

/// What was counted of the lookups for an upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lookups {
    /// That ended.
    pub(crate) total: u64,
    /// Of these, without an address.
    pub(crate) failed: u64,
}

/// By upstream.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupCounts(Arc<Mutex<BTreeMap<String, Lookups>>>);

impl LookupCounts {
    pub(crate) fn of(&self, upstream: &str) -> Lookups {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(upstream).copied().unwrap_or_default()
    }

    fn count(&self, upstream: &str, failed: bool) {
        let counts = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.entry(upstream.to_owned()).or_default();
        counts.total += 1;
        counts.failed += u64::from(failed);
    }
}

/// What a thread has of the names.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) addresses: watch::Receiver<Addresses>,
    /// For names that are not followed.
    pub(crate) system: System,
    unreachable: mpsc::Sender<Key>,
}

impl Known {
    /// Nothing, for good.
    #[cfg(test)]
    pub(super) fn nothing() -> Self {
        let (addresses, (unreachable, _)) = (watch::channel(Addresses::default()).1, mpsc::channel(1));
        Self { addresses, system: System::new(), unreachable }
    }

    /// The names of servers that have no address after `most`, each with its upstream. Until then it is waited for
    /// them.
    pub(crate) async fn missing(&self, config: &Config, most: Duration) -> Vec<Key> {
        let deadline = tokio::time::Instant::now() + most;
        let mut asked = JoinSet::new();
        let mut missing = BTreeSet::new();
        for upstream in &config.upstreams {
            for server in upstream.servers.iter().filter(|server| is_name(server)) {
                let key = (upstream.name.clone(), server.host.clone());
                let (this, is_followed) = (self.clone(), is_asked_for(upstream.resolve, server));
                let of = key.clone();
                if missing.insert(key) {
                    asked.spawn(async move {
                        let found = this.found(&of, is_followed);
                        tokio::time::timeout_at(deadline, found).await.is_ok().then_some(of)
                    });
                }
            }
        }
        while let Some(ended) = asked.join_next().await {
            // None of them panics; a name of one that did is missing.
            if let Ok(Some(found)) = ended {
                missing.remove(&found);
            }
        }
        missing.into_iter().collect()
    }

    /// Waits until a name has an address, for as long as it is polled.
    async fn found(self, (upstream, host): &Key, is_followed: bool) {
        let mut addresses = self.addresses;
        if is_followed && addresses.wait_for(|known| known.of(upstream, host).is_some()).await.is_ok() {
            return;
        }
        while self.system.addresses(host, None).await.is_err() {
            // It takes a result for as long.
            tokio::time::sleep(AGAIN_MIN).await;
        }
    }

    /// Nothing answers at this server: if its address is one of a name, that may have moved.
    pub(super) fn unreachable(&self, upstream: &str, server: &Server) {
        if server.address.is_some() {
            let _ = self.unreachable.try_send((upstream.to_owned(), server.host.clone()));
        }
    }
}

/// The names of all servers. Runs on one thread; dropping it ends its lookups.
#[derive(Debug)]
pub(crate) struct Names {
    published: watch::Sender<Addresses>,
    unreachable: mpsc::Receiver<Key>,
    counts: LookupCounts,
    all: BTreeMap<Key, Asked>,
    name_servers: Vec<SocketAddr>,
    /// Made when the first name is there, and anew when what it is made from changes; of its own cache nothing is used.
    resolver: Option<TokioResolver>,
    files: Files,
    lookups: JoinSet<(Key, Found)>,
}

#[derive(Debug)]
struct Asked {
    machine: Name,
    resolve: Resolve,
}

/// Addresses, and for how long.
type Found = Result<(Vec<IpAddr>, Duration), String>;

impl Names {
    /// No names yet, and what threads are to have of them.
    pub(crate) fn new() -> (Self, Known, LookupCounts) {
        let (published, addresses) = watch::channel(Addresses::default());
        let (report, unreachable) = mpsc::channel(REPORTS_MAX);
        let counts = LookupCounts::default();
        let this = Self {
            published,
            unreachable,
            counts: counts.clone(),
            all: BTreeMap::new(),
            name_servers: Vec::new(),
            resolver: None,
            files: Files::default(),
            lookups: JoinSet::new(),
        };
        (this, Known { addresses, system: System::new(), unreachable: report }, counts)
    }

    /// What is known now.
    pub(crate) fn addresses(&self) -> Addresses {
        self.published.borrow().clone()
    }

    /// From now on asks for the names of the servers in `config`. What is known of those that stay, stays.
    pub(crate) fn set(&mut self, config: &Config) {
        let now = clock::now();
        let mut old = std::mem::take(&mut self.all);
        for upstream in &config.upstreams {
            for server in upstream.servers.iter().filter(|server| is_asked_for(upstream.resolve, server)) {
                let key = (upstream.name.clone(), server.host.clone());
                let resolve = upstream.resolve;
                let known = old.remove(&key).filter(|known| known.resolve == resolve);
                let new = || Asked { machine: Name::new(now), resolve };
                self.all.entry(key).or_insert_with(|| known.unwrap_or_else(new));
            }
        }
        self.name_servers.clone_from(&config.name_servers);
        // Whoever reloads wants all of it to be read again.
        self.resolver = None;
        self.publish();
    }

    /// Asks when it is time to, until an answer changed something. Can be dropped at any time.
    pub(crate) async fn changed(&mut self) {
        loop {
            self.ask(clock::now());
            // While there is no room for a lookup, one that ends makes some.
            let due = self.next_timeout().filter(|_| self.lookups.len() < LOOKUPS_MAX);
            let due = async {
                match due {
                    Some(due) => tokio::time::sleep(due - clock::now()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                Some(key) = self.unreachable.recv() => {
                    if let Some(asked) = self.all.get_mut(&key) {
                        asked.machine.on_unreachable(clock::now());
                    }
                }
                Some(ended) = self.lookups.join_next() => {
                    // A lookup does not panic; if one did, its name is asked for no more.
                    if let Ok((key, found)) = ended && self.take(&key, found, clock::now()) {
                        return self.publish();
                    }
                }
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.all.values().filter_map(|asked| asked.machine.next_timeout()).min()
    }

    fn ask(&mut self, now: Instant) {
        for (key, asked) in &mut self.all {
            if self.lookups.len() >= LOOKUPS_MAX || asked.machine.next_timeout().is_none_or(|due| due > now) {
                continue;
            }
            asked.machine.on_asked(now);
            if self.files.have_changed(now) {
                self.resolver = None;
            }
            let resolver = match &self.resolver {
                Some(resolver) => Ok(resolver.clone()),
                None => {
                    resolver(&self.name_servers, &self.files.hosts).inspect(|new| self.resolver = Some(new.clone()))
                }
            };
            let key = key.clone();
            self.lookups.spawn_local(async move {
                let found = match resolver {
                    Ok(resolver) => look_up(&resolver, &key.1).await,
                    Err(error) => Err(error.to_string()),
                };
                (key, found)
            });
        }
    }

    /// What a lookup found; true if that is news.
    fn take(&mut self, key: &Key, found: Found, now: Instant) -> bool {
        let (upstream, host) = key;
        // It may be gone, or be asked for in another way.
        let Some(Asked { machine, resolve }) = self.all.get_mut(key) else { return false };
        let error = match found {
            Ok((found, valid)) => {
                let valid = match *resolve {
                    Resolve::Every(span) => span,
                    Resolve::Ttl | Resolve::Off => valid,
                };
                let is_empty = found.is_empty();
                if let Some(Changed { came, gone, left_out }) = machine.on_answer(found, valid, now) {
                    tracing::info!(upstream, host, came, gone, left_out, "a server's name has other addresses");
                    self.counts.count(upstream, false);
                    return true;
                }
                if !is_empty {
                    self.counts.count(upstream, false);
                    return false;
                }
                "it has no address".to_owned()
            }
            Err(error) => {
                machine.on_failure(now);
                error
            }
        };
        self.counts.count(upstream, true);
        if machine.failures() == 1 {
            let known = machine.addresses().len();
            tracing::warn!(upstream, host, error, known, "a server's name is not found: what is known of it stays");
        }
        false
    }

    fn publish(&self) {
        let known = self.all.iter().filter(|(_, asked)| !asked.machine.addresses().is_empty());
        let known = known.map(|(key, asked)| (key.clone(), asked.machine.addresses().to_vec())).collect();
        self.published.send_if_modified(|published| {
            let is_new = *published.0 != known;
            if is_new {
                published.0 = Arc::new(known);
            }
            is_new
        });
    }
}

/// Names of this machine are none of the name servers' business.
fn is_asked_for(resolve: Resolve, server: &Server) -> bool {
    resolve != Resolve::Off && is_name(server) && !server.host.ends_with(".localhost")
}

/// One that somebody has to be asked for.
fn is_name(server: &Server) -> bool {
    server.host != "localhost" && server.host.parse::<IpAddr>().is_err()
}

/// The system's files that a resolver is made from.
#[derive(Debug)]
struct Files {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    seen: [Option<Print>; 2],
    looked: Option<Instant>,
}

/// What is different when a file was written or replaced.
type Print = (u64, u64, Option<SystemTime>);

impl Default for Files {
    fn default() -> Self {
        Self { hosts: HOSTS.into(), resolv_conf: RESOLV_CONF.into(), seen: [None; 2], looked: None }
    }
}

impl Files {
    /// Whether one of them is another than at the last look. They are looked at once a second at most.
    fn have_changed(&mut self, now: Instant) -> bool {
        if self.looked.is_some_and(|looked| now.since(looked) < AGAIN_MIN) {
            return false;
        }
        self.looked = Some(now);
        let print = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.modified().ok()))
        };
        let now = [&self.hosts, &self.resolv_conf].map(print);
        std::mem::replace(&mut self.seen, now) != now
    }
}

/// Asks these servers, or those of the system if there are none; for what is not in the file `hosts`.
fn resolver(name_servers: &[SocketAddr], hosts: &Path) -> Result<TokioResolver, NetError> {
    let mut builder = if name_servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let one = |address: &SocketAddr| {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            server.connections.iter_mut().for_each(|connection| connection.port = address.port());
            server
        };
        let config = ResolverConfig::from_name_servers(name_servers.iter().map(one).collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    // Addresses of a family that the machine has no way to would be servers that fail.
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.timeout = LOOKUP / 4;
    let mut resolver = builder.build()?;
    let mut known = Hosts::default();
    if File::open(hosts).and_then(|file| known.read_hosts_conf(file)).is_ok() {
        resolver.set_hosts(Arc::new(known));
    }
    Ok(resolver)
}

async fn look_up(resolver: &TokioResolver, host: &str) -> Found {
    resolver.clear_cache();
    let found = tokio::time::timeout(LOOKUP, resolver.lookup_ip(host)).await;
    let found = found.map_err(|_| format!("no answer within {LOOKUP:?}"))?.map_err(|error| error.to_string())?;
    let valid = found.as_lookup().answers().iter().map(|record| record.ttl).min().unwrap_or_default();
    Ok((found.iter().collect(), Duration::from_secs(valid.into())))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tidegate_runtime::config::Document;
    use tokio::net::UdpSocket;
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    /// A name server on loopback that knows one name, and how often it was asked for its IPv4 addresses.
    struct Dns {
        address: SocketAddr,
        /// Its addresses; none for a name that does not exist.
        zone: watch::Sender<Vec<Ipv4Addr>>,
        asked: watch::Receiver<u32>,
    }

    impl Dns {
        async fn new(ttl: u32) -> Self {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let (zone, known) = watch::channel(Vec::new());
            let (count, asked) = watch::channel(0);
            tokio::task::spawn_local(async move {
                let mut bytes = [0; 512];
                while let Ok((read, from)) = socket.recv_from(&mut bytes).await {
                    let answer = answer(&bytes[..read], &known.borrow(), ttl);
                    count.send_modify(|asked| *asked += u32::from(is_of_ipv4(&bytes[..read])));
                    socket.send_to(&answer, from).await.unwrap();
                }
            });
            Self { address, zone, asked }
        }
    }

    /// Where the first question ends, and whether it is for addresses of IPv4 (RFC 1035, section 4).
    fn question(query: &[u8]) -> (usize, bool) {
        let mut at = 12;
        while query[at] != 0 {
            at += 1 + usize::from(query[at]);
        }
        (at + 5, query[at + 1..at + 3] == [0, 1])
    }

    fn is_of_ipv4(query: &[u8]) -> bool {
        question(query).1
    }

    fn answer(query: &[u8], addresses: &[Ipv4Addr], ttl: u32) -> Vec<u8> {
        let (end, is_of_ipv4) = question(query);
        let addresses = if is_of_ipv4 { addresses } else { &[] };
        let rcode = if addresses.is_empty() { 3 } else { 0 };
        let mut out = query[..end].to_vec();
        out[2..12].copy_from_slice(&[0x81, 0x80 | rcode, 0, 1, 0, u8::try_from(addresses.len()).unwrap(), 0, 0, 0, 0]);
        for address in addresses {
            out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
            out.extend_from_slice(&ttl.to_be_bytes());
            out.extend_from_slice(&[0, 4]);
            out.extend_from_slice(&address.octets());
        }
        out
    }

    fn run<F: Future>(test: F) -> F::Output {
        Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(test)
    }

    fn config(dns: SocketAddr, resolve: &str) -> Config {
        let text = format!(
            "[proxy]\nname_servers = [\"{dns}\"]\n[[proxy.upstream]]\nname = \"shop\"\nservers = [\"shop.internal:80\", \
             \"127.0.0.1:81\", \"localhost:82\"]\nresolve = \"{resolve}\"\n"
        );
        Config::from_document(&Document::new("t.toml", text), 1).unwrap()
    }

    #[test]
    fn a_name_is_followed_as_its_records_say_and_what_is_known_outlives_a_failure() {
        run(async {
            let mut dns = Dns::new(0).await;
            let (mut names, known, counts) = Names::new();
            dns.zone.send_replace(vec![[127, 0, 0, 3].into(), [127, 0, 0, 2].into()]);
            names.set(&config(dns.address, "ttl"));
            assert_eq!(names.all.len(), 1, "addresses and names of this machine are not asked for");
            names.changed().await;
            let expected = [[127, 0, 0, 2].into(), [127, 0, 0, 3].into()];
            assert_eq!(known.addresses.borrow().of("shop", "shop.internal"), Some(&expected[..]));
            assert_eq!(known.addresses.borrow().of("bank", "shop.internal"), None);
            // The name goes, and comes back elsewhere: a second later each time, since the records say 0.
            dns.zone.send_replace(Vec::new());
            let asked = *dns.asked.borrow();
            tokio::select! {
                () = names.changed() => panic!("a failed lookup changes nothing"),
                _ = dns.asked.wait_for(|&now| now > asked) => {}
            }
            dns.zone.send_replace(vec![[127, 0, 0, 4].into()]);
            names.changed().await;
            assert_eq!(known.addresses.borrow().of("shop", "shop.internal"), Some(&[[127, 0, 0, 4].into()][..]));
            let counts = counts.of("shop");
            assert!(counts.failed >= 1 && counts.total > counts.failed, "{counts:?}");
            // A reload keeps what is known, and forgets what is not asked for any more.
            names.set(&config(dns.address, "ttl"));
            assert_eq!(names.addresses(), *known.addresses.borrow());
            names.set(&config(dns.address, "off"));
            assert_eq!(names.addresses().of("shop", "shop.internal"), None);
        });
    }

    #[test]
    fn a_name_whose_server_does_not_answer_is_asked_for_before_its_time() {
        run(async {
            let dns = Dns::new(3_600).await;
            let (mut names, known, _) = Names::new();
            dns.zone.send_replace(vec![[127, 0, 0, 2].into()]);
            names.set(&config(dns.address, "5m"));
            names.changed().await;
            dns.zone.send_replace(vec![[127, 0, 0, 3].into()]);
            let server = Server { host: "shop.internal".to_owned(), port: 80, address: Some([127, 0, 0, 2].into()) };
            known.unreachable("shop", &server);
            names.changed().await;
            assert_eq!(known.addresses.borrow().of("shop", "shop.internal"), Some(&[[127, 0, 0, 3].into()][..]));
        });
    }

    #[test]
    fn the_hosts_file_is_read_again_when_it_changed() {
        run(async {
            let dns = Dns::new(0).await;
            let (mut names, known, _) = Names::new();
            let hosts = std::env::temp_dir().join(format!("tidegate-hosts-{}", std::process::id()));
            let is_at =
                |last: u8| known.addresses.borrow().of("shop", "shop.internal") == Some(&[[127, 0, 0, last].into()]);
            let write = |last: u8| {
                std::fs::write(&hosts, format!("# {}\n127.0.0.{last} shop.internal\n", "-".repeat(last.into())))
                    .unwrap();
            };
            names.files.hosts.clone_from(&hosts);
            write(2);
            names.set(&config(dns.address, "1s"));
            names.changed().await;
            assert!(is_at(2));
            // Without a reload, at the next lookup.
            write(3);
            names.changed().await;
            assert!(is_at(3));
            std::fs::remove_file(&hosts).unwrap();
            dns.zone.send_replace(vec![[127, 0, 0, 4].into()]);
            names.changed().await;
            assert!(is_at(4), "without the file the name servers are asked");
        });
    }

    #[test]
    fn it_is_waited_for_names_that_have_no_address_yet() {
        run(async {
            let dns = Dns::new(0).await;
            let (mut names, known, _) = Names::new();
            let config = config(dns.address, "1s");
            names.set(&config);
            let missing = known.missing(&config, Duration::from_millis(10));
            let key = ("shop".to_owned(), "shop.internal".to_owned());
            tokio::select! {
                missing = missing => assert_eq!(missing, [key]),
                () = names.changed() => panic!("it has none"),
            }
            dns.zone.send_replace(vec![[127, 0, 0, 2].into()]);
            let missing = known.missing(&config, Duration::from_mins(1));
            let follow = async {
                loop {
                    names.changed().await;
                }
            };
            tokio::select! {
                missing = missing => assert!(missing.is_empty(), "{missing:?}"),
                () = follow => {}
            }
        });
    }

    #[test]
    fn what_is_answered_is_a_message_of_dns() {
        let query = [&[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1][..], b"more"].concat();
        let answer = answer(&query, &[[127, 0, 0, 2].into()], 9);
        assert_eq!(&answer[..2], [0, 7]);
        assert_eq!(answer[19..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 2]);
    }
}

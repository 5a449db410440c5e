//! A proxy that runs.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::clock;
use tokio::sync::{mpsc, watch};

use super::ports::{self, Passed, Slots};
use super::settings::Settings;
use super::thread::{Counts, Shared, Total};
use super::worker::{self, Class, Control, Start};
use super::{cpu, signer};
use crate::config::tenancy::Tenancy;
use crate::config::{self, Config, LogTarget, Mode, RateLimit};
use crate::error::ProxyError;
use crate::io::admin::Source;
use crate::io::admin::parts::Limits;
use crate::io::admin::status::{Health, Live, LiveRateLimit, LiveServer, LiveSpool, LiveUpstream, Phase};
use crate::io::conn::limiter::{Limiter, Snapshot};
use crate::io::conn::processor;
use crate::io::lend;
use crate::io::request::access_log::{AccessLog, Totals};
use crate::io::request::times::{Published, ResponseTimes};
use crate::io::spool::folder::{self, Spool};
use crate::io::upstream::{self, Checks, Known, LookupCounts, Names, Part, System, UpstreamState, Verdicts};
use crate::machine::neighbours;

/// A proxy that runs. Dropping it stops it at once; [`drain`](Self::drain) lets requests end first.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<State>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    side: Option<Side>,
    /// Reads what other proxies say that lend.
    lend: Option<JoinHandle<io::Result<()>>>,
}

/// What the API looks at.
#[derive(Debug)]
struct State {
    control: watch::Sender<Control>,
    limiters: Vec<Arc<Limiter>>,
    shared: Arc<Shared>,
    /// Lines of all access logs that there were.
    log_lines: Arc<Totals>,
    /// Of all spools that there were.
    spool_failures: Arc<folder::Failures>,
    lookups: LookupCounts,
    known: Known,
    lend_address: Option<SocketAddr>,
    started: Instant,
    reloads: Reloads,
    /// One change at a time.
    changing: Mutex<Changing>,
}

/// How readings of the configuration ended.
#[derive(Default, Debug)]
struct Reloads {
    in_force: AtomicU64,
    failed: AtomicU64,
    /// The last one did.
    last_failed: AtomicBool,
}

impl Reloads {
    fn count(&self, is_in_force: bool) {
        // Figures of their own; nothing else is ordered by them.
        let counter = if is_in_force { &self.in_force } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        self.last_failed.store(!is_in_force, Ordering::Relaxed);
    }
}

/// What one change leaves for the next.
#[derive(Default, Debug)]
struct Changing {
    /// Set while it runs: it stays until the next start.
    mode: Option<Mode>,
    slots: Slots,
    log: Option<AccessLog>,
    /// Those whose place others took, until their last lines are written.
    retired_logs: Vec<AccessLog>,
}

/// The ports of a proxy that runs.
#[derive(Clone, Debug)]
pub struct Ports(Arc<State>);

impl Ports {
    /// Those that are open now: of each its address in the file, and the sockets of all threads.
    #[must_use]
    pub fn open(&self) -> Vec<(SocketAddr, Vec<Arc<TcpListener>>)> {
        self.0.control.borrow().ports.iter().map(|port| port.to_pass()).collect()
    }
}

/// From one look at the quota of processor time to the next.
const LOOK: Duration = Duration::from_secs(1);

/// The thread for what no request waits for: health checks, names, and looks at quotas.
#[derive(Debug)]
struct Side {
    checks: mpsc::UnboundedSender<Arc<Settings>>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Opens every port and starts every thread.
    pub fn start(config: Config) -> Result<Self, ProxyError> {
        let this = Self::prepare(config, Vec::new())?;
        this.accept();
        Ok(this)
    }

    /// The same, with the ports of `config` that another process has `passed`. It takes no connections before
    /// [`accept`](Self::accept): until then the other process can go on as if nothing had been.
    pub fn prepare(config: Config, mut passed: Vec<Passed>) -> Result<Self, ProxyError> {
        let now = clock::now();
        let (cores, overflow) = (config.threads.max(1), config.overflow_threads.min(config.threads.max(1)));
        let settings = Settings::new(config, None, now)?;
        let mut changing = Changing::default();
        let ports = ports::open(&settings.config.listeners, cores, &[], &mut passed, &mut changing.slots)?;
        let log_lines = Arc::<Totals>::default();
        changing.log = start_log(&settings.config, &log_lines)?;
        let log = changing.log.as_ref().map(AccessLog::way);
        let verdicts = Arc::new(watch::Sender::new(Verdicts::default()));
        let counts = (0..cores).map(|_| Mutex::default()).collect();
        let times = (0..cores).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { counts, times, cpu: cpu::Seen::new() });
        let (names, known, lookups) = Names::new();
        let side = Side::start(&settings, &verdicts, (names, known.system.clone()), &shared)?;
        let spool_failures = Arc::default();
        let spool = open_spool(&settings.config, None, &spool_failures)?;
        let lend = settings
            .config
            .lend
            .map(|address| lend::listen(address).map_err(|source| ProxyError::Listen { address, source }));
        let (lend, lend_address) = lend.transpose()?.unzip();
        let limiters: Vec<_> = (0..cores).map(|_| Arc::new(Limiter::new(settings.neighbours(), now))).collect();
        let control = watch::Sender::new(Control {
            settings: Arc::clone(&settings),
            ports,
            accepting: false,
            log,
            spool,
            draining: false,
            stop: false,
        });
        let state = Arc::new(State {
            control,
            limiters,
            shared,
            log_lines,
            spool_failures,
            lookups,
            known: known.clone(),
            lend_address,
            started: now,
            reloads: Reloads::default(),
            changing: Mutex::new(changing),
        });
        let lend = lend.map(|socket| {
            let control = state.control.subscribe();
            spawn("proxy-lend".to_owned(), move || {
                lend::run(&socket, || control.borrow().stop, || control.borrow().settings.gates.clone());
                Ok(())
            })
        });
        let lend = lend.transpose()?;
        let mut this = Self { state, threads: Vec::new(), side: Some(side), lend };
        let processors = processor::processors();
        for core in 0..cores {
            let processor = processors.get(core).copied().filter(|_| processors.len() == cores);
            let plan = Plan { core, cores, overflow, processor };
            this.start_core(&plan, &verdicts, &known)?;
        }
        Ok(this)
    }

    fn start_core(&mut self, plan: &Plan, verdicts: &watch::Sender<Verdicts>, known: &Known) -> Result<(), ProxyError> {
        let (core, processor) = (plan.core, plan.processor);
        let mut desk = None;
        if core < plan.overflow {
            let (to_others, jobs) = signer::desk();
            for (jobs, (name, class)) in jobs.into_iter().zip([("overflow", Class::Idle), ("stand-in", Class::Normal)])
            {
                self.threads.push(spawn(format!("{name}-{core}"), move || {
                    worker::run_other(jobs, class, processor);
                    Ok(())
                })?);
            }
            desk = Some(to_others);
        }
        let start = Start {
            index: core,
            part: Part { index: small(core), of: small(plan.cores) },
            shared: Arc::clone(&self.state.shared),
            limiter: Arc::clone(&self.state.limiters[core]),
            control: self.state.control.subscribe(),
            verdicts: verdicts.subscribe(),
            known: known.clone(),
            desk,
            seed: clock::now().as_nanos() ^ (core as u64).rotate_left(32),
            processor,
        };
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.threads.push(spawn(format!("proxy-{core}"), move || worker::run(start, &tell))?);
        has_started(&told)
    }

    /// Where it listens, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.state.addresses()
    }

    /// Puts another configuration in force. No connection ends, and what is known of tenants stays; so does a mode that
    /// was set by the API.
    ///
    /// # Errors
    /// If certificates cannot be read, a new port cannot be had, or a key changed that cannot change while the proxy runs;
    /// then nothing changes.
    pub fn reload(&self, config: Config) -> Result<(), ProxyError> {
        let outcome = self.put_in_force(config);
        self.state.reloads.count(outcome.is_ok());
        outcome
    }

    /// Counts a reload that failed before there was a configuration.
    pub fn reload_failed(&self) {
        self.state.reloads.count(false);
    }

    fn put_in_force(&self, mut config: Config) -> Result<(), ProxyError> {
        let mut changing = lock(&self.state.changing);
        config.limits.mode = changing.mode.unwrap_or(config.limits.mode);
        let Control { settings: old, ports, spool, .. } = self.state.control.borrow().clone();
        needs_restart(&old.config, &config)?;
        let cores = old.config.threads.max(1);
        let ports = ports::open(&config.listeners, cores, &ports, &mut Vec::new(), &mut changing.slots)?;
        let is_other_log = old.config.access_log != config.access_log;
        let mut log = if is_other_log { start_log(&config, &self.state.log_lines)? } else { None };
        let spool = if old.config.spool == config.spool {
            spool
        } else {
            open_spool(&config, spool.as_deref(), &self.state.spool_failures)?
        };
        let settings = Settings::new(config, Some(&old), clock::now())?;
        if let Some(side) = &self.side {
            // A side thread that is gone has nothing to check.
            let _ = side.checks.send(Arc::clone(&settings));
        }
        if is_other_log {
            std::mem::swap(&mut changing.log, &mut log);
        }
        self.state.control.send_modify(|control| {
            control.settings = settings;
            control.ports = ports;
            control.spool = spool;
            control.log = changing.log.as_ref().map(AccessLog::way);
        });
        changing.retired_logs.retain(|log| !log.has_ended());
        if let Some(before) = log {
            before.retire();
            changing.retired_logs.push(before);
        }
        Ok(())
    }

    /// Opens the access log again, after it was moved away.
    pub fn reopen_log(&self) {
        if let Some(log) = &lock(&self.state.changing).log {
            log.reopen();
        }
    }

    /// Takes connections from now on.
    pub fn accept(&self) {
        self.state.control.send_modify(|control| control.accepting = true);
    }

    /// Waits until the name of each server has an address, for `most` at most. Those that have none then, each with its
    /// upstream: `(upstream, name)`.
    pub fn names_missing(&self, most: Duration) -> impl Future<Output = Vec<(String, String)>> + Send + 'static {
        let (known, config) = (self.state.known.clone(), self.state.control.borrow().settings.config.clone());
        async move { known.missing(&config, most).await }
    }

    /// Its ports, for a successor.
    #[must_use]
    pub fn ports(&self) -> Ports {
        Ports(Arc::clone(&self.state))
    }

    /// Leaves the ports to a successor that has them, and drains: each connection is served one request more, or waits half
    /// of `drain_timeout` for it, so that no client finds its connection closed while it asks. Returns as
    /// [`drain`](Self::drain) does.
    #[must_use]
    pub fn hand_over(self) -> bool {
        let patience = self.state.control.borrow().settings.config.drain_timeout;
        let began = clock::now();
        self.state.control.send_modify(|control| control.ports = [].into());
        // What threads counted before they knew about it is no end.
        let (first, last) = (began + worker::ROUND * 3, began + patience / 2);
        while clock::now() < last && (clock::now() < first || self.state.live().connections > 0) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.drain_within(patience.saturating_sub(clock::now().since(began)))
    }

    /// Takes no more connections, lets requests under way end for as long as the configuration says, and stops. Returns
    /// when that is done: true if nothing had to be cut off.
    #[must_use]
    pub fn drain(self) -> bool {
        let patience = self.state.control.borrow().settings.config.drain_timeout;
        self.drain_within(patience)
    }

    /// The same with this patience.
    #[must_use]
    pub fn drain_within(mut self, patience: Duration) -> bool {
        self.state.control.send_modify(|control| {
            control.draining = true;
            // Each thread closes its own when it has taken what waits there.
            control.ports = [].into();
        });
        let deadline = clock::now() + patience;
        let ended = |threads: &[JoinHandle<_>]| threads.iter().all(JoinHandle::is_finished);
        while !ended(&self.threads) && clock::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let clean = ended(&self.threads);
        self.stop();
        clean
    }

    /// What the admin API stands on.
    #[must_use]
    pub fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.state) as Arc<dyn Source>
    }

    /// Who shares it, over all its threads.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.state.neighbours()
    }

    fn stop(&mut self) {
        self.state.control.send_modify(|control| control.stop = true);
        for thread in self.threads.drain(..).chain(self.lend.take()) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "a thread of the proxy ended early"),
                Err(_) => tracing::error!("a thread of the proxy panicked"),
            }
        }
        if let Some(Side { checks, thread }) = self.side.take() {
            drop(checks);
            let _ = thread.join();
        }
        // Here, where a caller waits for the end in any case: whoever is the last to look at the state waits for no disk.
        let mut changing = lock(&self.state.changing);
        let logs = changing.log.take().into_iter().chain(changing.retired_logs.drain(..)).collect();
        drop(changing);
        AccessLog::close(logs);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Which core of how many.
struct Plan {
    core: usize,
    cores: usize,
    overflow: usize,
    processor: Option<usize>,
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("threads are at most 512")
}

fn spawn(
    name: String,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<JoinHandle<io::Result<()>>, ProxyError> {
    let builder = std::thread::Builder::new().name(name);
    builder.spawn(run).map_err(|source| ProxyError::Thread { source })
}

/// Waits for a thread to say that it runs. One that cannot must not be noticed by its clients, which would wait at its
/// sockets for good.
fn has_started(told: &std::sync::mpsc::Receiver<io::Result<()>>) -> Result<(), ProxyError> {
    // One that says nothing has panicked.
    let said = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    said.map_err(|source| ProxyError::Thread { source })
}

/// What threads are made from stays as it was at the start.
fn needs_restart(old: &Config, new: &Config) -> Result<(), ProxyError> {
    let changed = [
        ("proxy.threads", old.threads != new.threads),
        ("proxy.overflow_threads", old.overflow_threads != new.overflow_threads),
        ("proxy.admin_address", old.admin != new.admin),
        ("proxy.lend_address", old.lend != new.lend),
        ("proxy.upgrade_socket", old.upgrade_socket != new.upgrade_socket),
    ];
    match changed.into_iter().find(|(_, changed)| *changed) {
        Some((key, _)) => Err(ProxyError::NeedsRestart { key }),
        None => Ok(()),
    }
}

/// The spool that `config` names, if it names one.
fn open_spool(
    config: &Config,
    before: Option<&Spool>,
    failures: &Arc<folder::Failures>,
) -> Result<Option<Arc<Spool>>, ProxyError> {
    let Some(spool) = &config.spool else { return Ok(None) };
    let opened = Spool::open(spool, before, failures);
    opened.map(Some).map_err(|source| ProxyError::Spool { path: spool.directory.clone(), source })
}

/// Starts the log that `config` names, if it names one.
fn start_log(config: &Config, totals: &Arc<Totals>) -> Result<Option<AccessLog>, ProxyError> {
    let Some(log) = &config.access_log else { return Ok(None) };
    let started = AccessLog::start_counting(log, Arc::clone(totals));
    started.map(Some).map_err(|source| ProxyError::AccessLog { path: path_of(log), source })
}

fn path_of(log: &config::AccessLog) -> std::path::PathBuf {
    match &log.to {
        LogTarget::File(path) => path.clone(),
        LogTarget::Stdout => "standard output".into(),
    }
}

impl Side {
    fn start(
        settings: &Arc<Settings>,
        verdicts: &Arc<watch::Sender<Verdicts>>,
        (mut names, system): (Names, System),
        shared: &Arc<Shared>,
    ) -> Result<Self, ProxyError> {
        let (checks, mut changes) = mpsc::unbounded_channel::<Arc<Settings>>();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let (mut settings, verdicts, shared) = (Arc::clone(settings), Arc::clone(verdicts), Arc::clone(shared));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build_local(tokio::runtime::LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // Whoever started this thread waits for the answer.
            let _ = tell.send(Ok(()));
            worker::run_to_end(runtime, async move {
                let mut checks = Checks::new(verdicts, system, clock::now().as_nanos());
                names.set(&settings.config);
                loop {
                    let all = Part { index: 0, of: 1 };
                    let configured = upstream::Settings::of(&settings.config, &settings.upstream_tls, all);
                    let addresses = names.addresses();
                    let servers: Vec<_> = configured.iter().map(|one| one.resolved(&addresses)).collect();
                    checks.set(&servers);
                    let newer = loop {
                        tokio::select! {
                            newer = changes.recv() => break Some(newer),
                            () = names.changed() => break None,
                            () = tokio::time::sleep(LOOK) => shared.cpu.look(),
                        }
                    };
                    match newer {
                        Some(Some(newer)) => settings = newer,
                        Some(None) => return,
                        None => continue,
                    }
                    names.set(&settings.config);
                }
            });
        };
        let builder = std::thread::Builder::new().name("proxy-side".to_owned());
        let thread = builder.spawn(run).map_err(|source| ProxyError::Thread { source })?;
        has_started(&told)?;
        Ok(Self { checks, thread })
    }
}

impl State {
    fn spool(&self) -> LiveSpool {
        let bytes = self.control.borrow().spool.as_ref().map_or(0, |spool| spool.bytes());
        let (failed_writes, failed_reads) = self.spool_failures.counts();
        LiveSpool { bytes, failed_writes, failed_reads }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.control.borrow().ports.iter().map(|port| port.address).collect()
    }
}

impl Source for State {
    fn config(&self) -> Arc<Config> {
        Arc::new(self.control.borrow().settings.config.clone())
    }

    fn tenancy(&self) -> Tenancy {
        self.control.borrow().settings.tenancy.clone()
    }

    fn neighbours(&self) -> Snapshot {
        let now = clock::now();
        let mut all = self.limiters.iter().map(|limiter| limiter.snapshot(now));
        let mut sum = all.next().unwrap_or_default();
        all.for_each(|one| sum.add(&one));
        sum
    }

    fn live(&self) -> Live {
        let settings = Arc::clone(&self.control.borrow().settings);
        let counts: Vec<Counts> = self.shared.counts.iter().map(|counts| lock(counts).clone()).collect();
        let total = |total: Total| counts.iter().map(|counts| counts.totals[total as usize]).sum();
        let mut live = Live {
            phase: if self.control.borrow().draining { Phase::Draining } else { Phase::Serving },
            uptime_s: clock::now().since(self.started).as_secs_f64(),
            reloads: self.reloads.in_force.load(Ordering::Relaxed),
            reloads_failed: self.reloads.failed.load(Ordering::Relaxed),
            last_reload_failed: self.reloads.last_failed.load(Ordering::Relaxed),
            addresses: self.addresses(),
            lend_address: self.lend_address,
            connections: counts.iter().map(|counts| counts.connections).sum(),
            connections_total: total(Total::Accepted),
            handshakes_total: total(Total::Handshakes),
            handshakes_failed_total: total(Total::HandshakesFailed),
            handshakes_resumed_total: total(Total::Resumed),
            hellos_refused_total: total(Total::RefusedAtHello),
            handshakes_beyond_total: total(Total::Beyond),
            clients_timed_out_total: total(Total::TimedOut),
            out_of_files_total: total(Total::OutOfFiles),
            malformed_total: total(Total::Malformed),
            unlogged_total: total(Total::Unlogged),
            requests_total: vec![0; settings.config.routes.len()],
            access_log: self.log_lines.get(),
            spool: self.spool(),
            cpu: Some(self.shared.cpu.limits()),
            ..Live::default()
        };
        for counts in &counts {
            for (sum, route) in live.requests_total.iter_mut().zip(&settings.config.routes) {
                *sum += counts.requests_of(&route.name);
            }
            for (sum, more) in live.responses_total.iter_mut().zip(&counts.responses) {
                *sum += more;
            }
        }
        live.upstreams =
            settings.config.upstreams.iter().map(|upstream| sum_of(&upstream.name, &counts, &self.lookups)).collect();
        live.rate_limits = rate_limits(&settings, clock::now());
        live.certificates = settings.certificates.expiries().to_vec();
        let bandwidths = settings.bandwidths.iter().map(|(name, bandwidth)| (name.clone(), bandwidth.counts()));
        live.bandwidths = bandwidths.collect();
        live.bandwidths.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        live
    }

    fn times(&self) -> ResponseTimes {
        let threads: Vec<Published> = self.shared.times.iter().map(|times| lock(times).clone()).collect();
        ResponseTimes::sum(&self.control.borrow().settings.config, &threads)
    }

    fn limits(&self) -> Limits {
        Limits::new(self.control.borrow().settings.gates.clone())
    }

    fn set_mode(&self, mode: Mode) {
        let mut set = lock(&self.changing);
        set.mode = Some(mode);
        for limiter in &self.limiters {
            limiter.with(|limiter| {
                let config = neighbours::NeighboursConfig { mode, ..limiter.config().clone() };
                limiter.reconfigure(config, clock::now());
            });
        }
    }
}

/// An upstream, over all threads.
fn sum_of(name: &str, counts: &[Counts], lookups: &LookupCounts) -> LiveUpstream {
    let lookups = lookups.of(name);
    let mut sum =
        LiveUpstream { lookups_total: lookups.total, lookups_failed_total: lookups.failed, ..LiveUpstream::default() };
    let all = counts.iter().flat_map(|counts| &counts.upstreams).filter(|state: &&UpstreamState| state.name == name);
    for state in all {
        sum.waiting += state.pending as u64;
        sum.limit = match (sum.limit, state.limit) {
            (sum, None) => sum,
            (sum, Some(limit)) => Some(sum.unwrap_or(0) + u64::from(limit)),
        };
        sum.in_flight += u64::from(state.in_flight);
        sum.retries_total += state.retries;
        sum.handshakes.full += state.handshakes.full;
        sum.handshakes.resumed += state.handshakes.resumed;
        sum.handshakes.failed += state.handshakes.failed;
        for (label, more) in &state.servers {
            // Threads learn of other addresses one after the other.
            let place = sum.labels.iter().position(|known| known == label).unwrap_or_else(|| {
                sum.labels.push(label.clone());
                sum.servers.push(LiveServer::default());
                sum.servers.len() - 1
            });
            let server = &mut sum.servers[place];
            server.active += u64::from(more.active);
            server.requests_total += more.requests;
            server.failures_total += more.failures;
            server.health = match (more.up, more.ejected, server.health) {
                (false, ..) | (_, _, Health::Down) => Health::Down,
                (_, true, _) | (_, _, Health::Ejected) => Health::Ejected,
                _ => Health::Up,
            };
        }
    }
    sum
}

fn rate_limits(settings: &Settings, now: Instant) -> Vec<LiveRateLimit> {
    let rule_of = |name: &str| -> Option<&RateLimit> {
        if let Some(route) = name.strip_prefix("route ") {
            return settings.config.routes.iter().find(|other| other.name == route)?.rate_limit.as_ref();
        }
        let sni = name.strip_prefix("sni ")?;
        let fits = |rule: &&config::SniRule| rule.names.iter().any(|name| name == sni) || (sni == "*" && rule.default);
        settings.config.sni.iter().find(fits).map(|rule| &rule.rate_limit)
    };
    let one = |gate: &Arc<crate::io::request::gate::Gate>| {
        let rule = rule_of(&gate.name);
        let (kind, of) = gate.name.split_once(' ').unwrap_or(("", &gate.name));
        LiveRateLimit {
            name: gate.name.clone(),
            scope: if kind == "sni" { "sni" } else { "remap" },
            prefix: rule.map_or_else(String::new, |rule| rule.prefix.clone()),
            tag: rule.and_then(|rule| rule.tag.clone()).unwrap_or_else(|| of.to_owned()),
            counts: gate.counts(),
            outlook: gate.outlook(now),
        }
    };
    settings.gates.iter().map(one).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Abuse scripts against a proxy on this machine, and a well-behaved tenant beside them.
//!
//! A script does what an attacker does, as fast as a core lets it, for some seconds. Meanwhile, and before and after, a
//! *victim* asks for the same path in an open loop on connections of its own, and counts what share of its requests was
//! answered in time. That share is what a script is about: a proxy that closes attackers' connections and starves its
//! other tenants has not withstood it.
//!
//! | module | its one job |
//! |---|---|
//! | `dial` | connections, to loopback only |
//! | `frame` | HTTP/2 frames as bytes |
//! | `script` | what there is, and what each does |
//! | `flood` | scripts of endless frames |
//! | `slow` | scripts that hold connections |
//! | `hello` | scripts that stop at the TLS handshake |
//! | `victim` | the tenant that shall not notice |
//! | `tally`, `report` | what a run found |
//! | [`smuggling`] | requests that two servers may read differently |
//!
//! Bounds: the connections of a script are its own setting and at most [`CONNECTIONS_MAX`]; a frame that is read has at most
//! 16 KiB; the victim has at most 20,000 requests in flight, more count as late.

mod context;
mod dial;
mod flood;
mod frame;
mod hello;
mod report;
mod script;
mod slow;
pub mod smuggling;
mod tally;
#[cfg(test)]
mod tests;
mod victim;

use std::rc::Rc;
use std::thread;
use std::time::Duration;

use tidegate_core::Instant;
use tidegate_runtime::{clock, process};
use tokio::task::LocalSet;

pub use dial::Loopback;
pub use report::{AttackReport, GOODPUT_AFTER_LEAST, GOODPUT_LEAST, GROWTH_BYTES_MAX, Objective, ProcessReport};
pub use script::Script;
pub use tally::{Handshakes, Tally};
pub use victim::{Phase, VictimReport};

use crate::error::LoadError;
use crate::poll::{Poller, prioritise_thread};
use crate::target::Cpu;
use context::Context;
use report::ProcessWatch;

/// More than a machine has ports for.
pub const CONNECTIONS_MAX: usize = 60_000;
/// Files beside the script's connections: the victim's connections, runtimes, standard streams.
const FILES_BESIDE: u64 = 400;
/// The attackers' niceness: on a full core the victim's clock goes first, or its delays would be the generator's.
const NICE: i32 = 10;
/// From the end of the attack until the victim's requests count as "after".
const SETTLE_NS: u64 = 1_000_000_000;
const SAMPLE_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What to do to whom.
#[derive(Clone, Debug)]
pub struct AttackConfig {
    /// The script.
    pub script: Script,
    /// The proxy.
    pub target: Loopback,
    /// It speaks TLS there; else HTTP/1.1 and HTTP/2 with prior knowledge.
    pub is_tls: bool,
    /// The host by which the proxy knows the attacker as a tenant, in SNI, `Host` and `:authority`.
    pub host: String,
    /// The path that attackers ask for.
    pub path: String,
    /// The victim's host.
    pub victim_host: String,
    /// The path that the victim asks for.
    pub victim_path: String,
    /// The victim's requests per second; every other one on a new connection.
    pub victim_rate_per_s: f64,
    /// How long the attack lasts.
    pub seconds: u64,
    /// How long the victim is alone before it, and again after it.
    pub calm_seconds: u64,
    /// Connections of the script instead of its own number.
    pub connections: Option<usize>,
    /// The proxy's process, to watch its memory and CPU time.
    pub pid: Option<u32>,
    /// Same seed, same arrivals and same garbage.
    pub seed: u64,
}

impl AttackConfig {
    /// Ten seconds of `script` on `target`, with hosts of the documentation's.
    #[must_use]
    pub fn new(script: Script, target: Loopback) -> Self {
        Self {
            script,
            target,
            is_tls: false,
            host: "noisy.example".to_owned(),
            path: "/".to_owned(),
            victim_host: "quiet.example".to_owned(),
            victim_path: "/".to_owned(),
            victim_rate_per_s: 100.0,
            seconds: 10,
            calm_seconds: 3,
            connections: None,
            pid: None,
            seed: 1,
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let refuse = |key, value: String, expected| Err(LoadError::Config { key, value, expected });
        if self.script.needs_tls() && !self.is_tls {
            return refuse("name", self.script.name().to_owned(), "a script that needs no TLS, or --tls");
        }
        if !(1.0..=10_000.0).contains(&self.victim_rate_per_s) {
            return refuse("victim-rate", self.victim_rate_per_s.to_string(), "1 to 10,000 requests a second");
        }
        if !(1..=3_600).contains(&self.seconds) || !(1..=600).contains(&self.calm_seconds) {
            let both = format!("{} and {}", self.seconds, self.calm_seconds);
            return refuse("seconds", both, "1 to 3,600 seconds of attack and 1 to 600 of calm");
        }
        if self.connections.is_some_and(|connections| connections == 0 || connections > CONNECTIONS_MAX) {
            return refuse("connections", format!("{:?}", self.connections), "1 to 60,000");
        }
        for (key, path) in [("path", &self.path), ("victim-path", &self.victim_path)] {
            if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
                return refuse(key, path.clone(), "a path of visible ASCII that begins with a slash");
            }
        }
        Ok(())
    }

    /// How many connections, and whether this machine lets us have them.
    fn connections(&self, limit: u64) -> Result<usize, LoadError> {
        let spare = usize::try_from(limit.saturating_sub(FILES_BESIDE)).unwrap_or(usize::MAX);
        let wanted = match self.connections {
            Some(connections) => connections,
            // As many as there can be is what this script is about.
            None if self.script == Script::FdExhaustion => self.script.connections().min(spare),
            None => self.script.connections(),
        };
        if wanted > spare || wanted == 0 {
            return Err(LoadError::OpenFiles { connections: wanted, wanted: wanted as u64 + FILES_BESIDE, limit });
        }
        Ok(wanted)
    }
}

/// When what happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) start: Instant,
    pub(crate) attack: Instant,
    pub(crate) attack_end: Instant,
    pub(crate) after: Instant,
    pub(crate) end: Instant,
}

impl Plan {
    fn new(config: &AttackConfig, start: Instant) -> Self {
        let attack = start.plus_nanos(config.calm_seconds * SECOND_NS);
        let attack_end = attack.plus_nanos(config.seconds * SECOND_NS);
        let after = attack_end.plus_nanos(SETTLE_NS);
        Self { start, attack, attack_end, after, end: after.plus_nanos(config.calm_seconds * SECOND_NS) }
    }
}

/// Runs the script with the victim beside it.
///
/// # Errors
/// [`LoadError::Config`] for settings without a meaning, [`LoadError::OpenFiles`] if this machine does not allow as many
/// connections, [`LoadError::Target`] if the process cannot be watched, [`LoadError::Os`] if the machine refuses something.
/// That the target does not answer is a finding, not an error, unless it answers nobody from the start:
/// [`LoadError::Unanswered`].
pub fn run(config: &AttackConfig) -> Result<AttackReport, LoadError> {
    config.check()?;
    let connections = config.connections(process::raise_open_files_limit())?;
    if let Some(pid) = config.pid {
        Cpu::of(pid)?;
    }
    let victim = victim::Victim::new(config)?;
    let dial = dial::Dial::new(config.target, config.is_tls, &config.host)?.with_many_sources();
    let plan = Plan::new(config, clock::now().plus_nanos(SECOND_NS / 10));
    thread::scope(|scope| {
        let victim = scope.spawn(move || victim.run(plan));
        let attack = scope.spawn(move || attack(config, connections, dial, plan));
        let watch = config.pid.map(|pid| watch(pid, plan)).transpose();
        let victim = victim.join().expect("the victim does not panic")?;
        let attack = attack.join().expect("a script does not panic")?;
        Ok(AttackReport::new(config, connections, attack, victim, watch?))
    })
}

/// Looks at the target's process until the end.
fn watch(pid: u32, plan: Plan) -> Result<ProcessReport, LoadError> {
    let mut poller = Poller::new()?;
    let mut watch = ProcessWatch::new(pid)?;
    let mut at = plan.start;
    while at < plan.end {
        at = at.plus_nanos(SAMPLE_NS);
        poller.sleep(at)?;
        watch.look(plan, clock::now())?;
    }
    Ok(watch.report())
}

/// All connections of the script, on a thread of their own.
fn attack(config: &AttackConfig, connections: usize, dial: dial::Dial, plan: Plan) -> Result<Tally, LoadError> {
    prioritise_thread(NICE)?;
    let runtime = runtime()?;
    let hello = dial.hello()?;
    let context = Rc::new(Context::new(config, dial, hello));
    let local = LocalSet::new();
    runtime.block_on(local.run_until(async {
        sleep_until(plan.attack).await;
        for number in 0..connections {
            tokio::task::spawn_local(context::repeat(Rc::clone(&context), config.script, number));
        }
        sleep_until(plan.attack_end).await;
    }));
    // Closes every connection.
    drop(local);
    Ok(context.tally())
}

/// One thread, as the victim and the script each have.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, LoadError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadError::os("start a runtime"))
}

/// Until `at` on our clock; tokio's timers are whole milliseconds.
pub(crate) async fn sleep_until(at: Instant) {
    loop {
        let left = at.nanos_since(clock::now());
        if left == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

//! `tidegate rpc serve`: a `tidegate-rpc` server that computes, to be measured and to be tried out.
//!
//! Its work is counted in rounds of the processor: a core that is taken away from it does not shorten it.

use std::hint::black_box;
use std::net::SocketAddr;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_core::Rng;
use tidegate_rpc::config::Scheme;
use tidegate_rpc::io::tcp::{Address, Handler, HandlerFailed, RpcServer, ServerConfig, ShardStats};
use tidegate_rpc::machine::Claims;
use tidegate_runtime::{clock, process};

use crate::failure::Failure;
use crate::output;
use crate::rpc_watch::{Shown, Source, Wanted, Watch, Watched, show};
use crate::signals::Signals;

/// `tidegate rpc serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen: a port, 0 for one that the system picks, or `unix:PATH` for callers of this machine
    #[arg(long, visible_alias = "listen", value_name = "ADDRESS:PORT|unix:PATH", default_value = "127.0.0.1:4160")]
    address: Address,
    /// How calls are controlled: tidegate, breakwater, dagor, seda, aqm, `client_rate`, probing, `static_limit` or none
    #[arg(long, value_name = "NAME", default_value = "tidegate", value_parser = scheme, conflicts_with = "scheme_json")]
    scheme: Scheme,
    /// The same with settings, such as `{"kind": "breakwater", "target_delay_us": 80}`
    #[arg(long, value_name = "JSON", value_parser = scheme_json)]
    scheme_json: Option<Scheme>,
    /// Listen at a second port, or at PATH.bare, without any control, to measure the capacity of the same process
    #[arg(long)]
    bare: bool,
    /// Threads, each with its own listener and control
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    shards: usize,
    /// How far callers are trusted that claim a tenant or a priority
    #[arg(long, value_enum, default_value = "untrusted")]
    claims: TrustIn,
    /// Work of a call on average, in microseconds of this processor as it is now
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "work_rounds")]
    work_us: u64,
    /// The same in rounds, for a run that is to do exactly what another did
    #[arg(long, value_name = "N")]
    work_rounds: Option<u64>,
    /// How the work of calls varies
    #[arg(long, value_enum, default_value = "constant")]
    work_law: WorkLaw,
    /// Longest time between two looks at the sockets while calls wait, in microseconds, beside a handler's
    #[arg(long, value_name = "N", default_value_t = 50)]
    poll_every_us: u64,
    /// Look for new calls so long before sleeping, in microseconds
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy_poll_us: u64,
    /// Show the server's figures as JSON and for Prometheus, read-only and on loopback
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
    /// Show them in a web console, on loopback
    #[arg(long, value_name = "ADDRESS:PORT")]
    console: Option<SocketAddr>,
    /// Same seed, same work
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// [`Claims`], as a flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TrustIn {
    /// Tenants are ignored, and no call matters more than the default
    Untrusted,
    /// Priorities are believed
    Priorities,
    /// Tenants are believed as well
    Trusted,
}

impl From<TrustIn> for Claims {
    fn from(trust: TrustIn) -> Self {
        match trust {
            TrustIn::Untrusted => Self::Untrusted,
            TrustIn::Priorities => Self::Priorities,
            TrustIn::Trusted => Self::Trusted,
        }
    }
}

/// How the work of calls varies about its mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum WorkLaw {
    /// Not at all
    Constant,
    /// Exponentially distributed
    Exponential,
    /// Half of the mean for nine of ten, five and a half times the mean for the tenth
    Bimodal,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::named(name).ok_or_else(|| format!("one of {}", Scheme::NAMES.join(", ")))
}

fn scheme_json(text: &str) -> Result<Scheme, String> {
    let scheme: Scheme = serde_json::from_str(text).map_err(|error| error.to_string())?;
    scheme.check().map_err(|error| error.to_string())?;
    Ok(scheme)
}

/// The first line of the output.
#[derive(Serialize)]
struct Started {
    address: Address,
    bare_address: Option<Address>,
    scheme: &'static str,
    work_rounds: u64,
    pid: u32,
    /// Where its figures are, if anybody asked for them.
    #[serde(flatten)]
    shown: Shown,
}

/// The last line.
#[derive(Serialize)]
struct Ended {
    shards: Vec<ShardStats>,
    bare_shards: Vec<ShardStats>,
}

/// Serves until it is told to end.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let wanted = Wanted { admin: args.admin, console: args.console };
    // Before the work is measured, which takes a while on a busy machine.
    wanted.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot start a runtime").because(error))?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    // As far as the system lets us: what is refused beyond is counted.
    let _ = process::raise_open_files_limit();
    let work_rounds = args.work_rounds.unwrap_or_else(|| rounds_of(args.work_us));
    let chosen = args.scheme_json.as_ref().unwrap_or(&args.scheme);
    let config = ServerConfig {
        address: args.address.clone(),
        shards: args.shards,
        claims: args.claims.into(),
        poll_every_us: args.poll_every_us,
        busy_poll_us: args.busy_poll_us,
        ..ServerConfig::default()
    };
    let is_watched = args.admin.is_some() || args.console.is_some();
    let (controlled, watches) = if is_watched {
        start_watched(args, &config, chosen, work_rounds)?
    } else {
        (start(args, &config, chosen, work_rounds)?, Vec::new())
    };
    let bare = if args.bare {
        let config = ServerConfig { address: beside(&args.address), ..config };
        let none = Scheme::named("none").expect("a scheme of that name exists");
        Some(start(args, &config, &none, work_rounds)?)
    } else {
        None
    };
    let source = Source { scheme: chosen.name(), watches };
    let (servers, shown) = runtime.block_on(show(wanted, source))?;
    json_line(&Started {
        address: controlled.address().clone(),
        bare_address: bare.as_ref().map(|server| server.address().clone()),
        scheme: chosen.name(),
        work_rounds,
        pid: std::process::id(),
        shown,
    })?;
    runtime.block_on(async {
        signals.wait().await;
        servers.stop().await;
    });
    let bare_shards = bare.as_ref().map(RpcServer::stats).unwrap_or_default();
    let ended = Ended { shards: controlled.stats(), bare_shards };
    for server in [Some(controlled), bare].into_iter().flatten() {
        server.stop().map_err(|error| Failure::new("a shard ended early").because(error))?;
    }
    json_line(&ended)
}

/// Where the same process listens without control.
fn beside(address: &Address) -> Address {
    match address {
        Address::Tcp(address) => SocketAddr::new(address.ip(), 0).into(),
        Address::Unix(path) => {
            let mut bare = path.clone().into_os_string();
            bare.push(".bare");
            Address::Unix(bare.into())
        }
    }
}

fn start(args: &ServeArgs, config: &ServerConfig, scheme: &Scheme, rounds: u64) -> Result<RpcServer, Failure> {
    let server = RpcServer::start(config, |shard| (scheme.server(1, clock::now()), computing(args, shard, rounds)));
    server.map_err(|error| Failure::new("cannot serve").because(error))
}

/// The same with a look at each shard. It costs each call some locks that nobody else holds.
fn start_watched(
    args: &ServeArgs,
    config: &ServerConfig,
    scheme: &Scheme,
    rounds: u64,
) -> Result<(RpcServer, Vec<Watch>), Failure> {
    let mut watches = Vec::new();
    let server = RpcServer::start(config, |shard| {
        let now = clock::now();
        let (machine, watch) = Watched::new(scheme.server(1, now), now);
        watches.push(watch);
        (machine, computing(args, shard, rounds))
    });
    let server = server.map_err(|error| Failure::new("cannot serve").because(error))?;
    Ok((server, watches))
}

/// A handler that computes and answers what it was sent.
fn computing(args: &ServeArgs, shard: usize, rounds: u64) -> impl Handler + Send + use<> {
    let mut rng = Rng::stream(args.seed, shard as u64);
    let law = args.work_law;
    move |payload: &[u8], answer: &mut Vec<u8>| -> Result<(), HandlerFailed> {
        black_box(compute(law.draw(rounds, &mut rng)));
        answer.extend_from_slice(payload);
        Ok(())
    }
}

fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new("the result cannot be written as JSON").because(error))?;
    output::line(text)
}

impl WorkLaw {
    /// Rounds of one call, `mean` on average.
    fn draw(self, mean: u64, rng: &mut Rng) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a count"
        )]
        let times = |factor: f64| (mean as f64 * factor) as u64;
        match self {
            Self::Constant => mean,
            Self::Exponential => times(rng.exponential()),
            Self::Bimodal => times(if rng.chance(0.1) { 5.5 } else { 0.5 }),
        }
    }
}

/// Computes `rounds` rounds of one to two nanoseconds.
fn compute(rounds: u64) -> u64 {
    (0..rounds).fold(0x9e37_79b9_7f4a_7c15, |x: u64, round| black_box(x.rotate_left(7).wrapping_mul(5) ^ round))
}

/// Rounds that take `us` microseconds of this processor, by the fastest of several tries.
fn rounds_of(us: u64) -> u64 {
    const TRY: u64 = 2_000_000;
    let fastest = (0..20).map(|_| {
        let start = clock::process_cpu_ns();
        black_box(compute(TRY));
        clock::process_cpu_ns() - start
    });
    let ns = fastest.min().unwrap_or(1).max(1);
    us.saturating_mul(1_000).saturating_mul(TRY) / ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_has_the_mean_that_was_asked_for() {
        let mut rng = Rng::new(7);
        for law in [WorkLaw::Constant, WorkLaw::Exponential, WorkLaw::Bimodal] {
            let sum: u64 = (0..100_000).map(|_| law.draw(10_000, &mut rng)).sum();
            assert!((980_000_000..1_020_000_000).contains(&sum), "{law:?}: {sum}");
        }
    }
}

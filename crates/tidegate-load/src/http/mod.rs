//! A measured run of HTTP load against one proxy or server, from outside.
//!
//! [`run`] gives every source of an [`HttpBenchConfig`] a thread, and returns an [`HttpBenchReport`]. Response times count
//! from the intended times. The calling thread only wakes when a rate changes, to read what the server has used.
//!
//! | module | its one job |
//! |---|---|
//! | `config` | what a run is |
//! | `schedule` | intended times at rates that change |
//! | `slots` | the connections of a source, and what is under way on each |
//! | `socket`, `tls` | connections without waiting |
//! | `framing`, `answer`, `h2` | the bytes of requests and answers |
//! | `connection` | one request after the other on one connection |
//! | `engine`, `hello` | the loop of a source: requests; beginnings of handshakes |
//! | `made_up` | names that are another one each time |
//! | `tally` | what became of them |
//! | [`live`] | a tenant whose rate changes while it is watched |
//! | [`idle`] | what a connection costs that says nothing |
//! | [`upstream`] | the server behind the proxies |

mod answer;
mod config;
mod connection;
mod engine;
mod framing;
mod h2;
mod hello;
pub mod idle;
pub mod live;
mod made_up;
mod schedule;
mod slots;
mod socket;
mod tally;
mod tls;
pub mod upstream;

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;

pub use self::config::{Http, HttpBenchConfig, Kind, RECORDS_MAX, Source, Step};
use self::engine::Engine;
use self::hello::Flood;
pub use self::tally::{Bin, Ending, PhaseReport, SourceReport};
use crate::bench::Invalid;
use crate::error::LoadError;
use crate::poll::{Poller, allow_open_files, prepare_thread, prioritise_thread, put_first};
use crate::target::{Cpu, Memory};

const MS_NS: u64 = 1_000_000;
/// From the start of the threads to the first request.
const LEAD_NS: u64 = 50 * MS_NS;

/// All figures of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HttpBenchReport {
    /// What was run.
    pub config: HttpBenchConfig,
    /// Why this run must not count; `None` if it may.
    pub invalid: Option<Invalid>,
    /// Each source, in the order of the configuration.
    pub sources: Vec<SourceReport>,
    /// What the server and the generator used, from one change of a rate to the next.
    pub spans: Vec<Span>,
    /// The server's memory at the window's beginning and end: the sum over its processes.
    pub memory: Option<(Memory, Memory)>,
}

/// CPU time in one part of the window.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Since the window's beginning.
    pub from_ms: u64,
    /// Since the window's beginning.
    pub to_ms: u64,
    /// Of the server, in seconds; zero if its processes were not given.
    pub target_cpu_s: f64,
    /// Of this process, in seconds.
    pub generator_cpu_s: f64,
}

/// When, in one run, what happens.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// The first request.
    start: Instant,
    /// The measured window.
    from: Instant,
    /// Its end, and that of the load.
    to: Instant,
    /// Nobody waits longer.
    end: Instant,
}

/// Runs `config`.
///
/// # Errors
/// [`LoadError`] if the configuration describes no load, or this machine does not let it be made. A server that is not
/// there is no error: it shows in the figures.
pub fn run(config: &HttpBenchConfig) -> Result<HttpBenchReport, LoadError> {
    config.check()?;
    allow_open_files(config.sockets())?;
    let start = clock::now().plus_nanos(LEAD_NS);
    let from = start.plus_nanos(config.warm_up_ms * MS_NS);
    let to = from.plus_nanos(config.duration_ms * MS_NS);
    let times = Times { start, from, to, end: to.plus_nanos(config.drain_ms * MS_NS) };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..config.sources.len()).map(|number| scope.spawn(move || run_source(config, number, times))).collect();
        let used = observe(config, times);
        let reports = threads.into_iter().map(|thread| thread.join().expect("a load thread panicked"));
        let sources = reports.collect::<Result<Vec<_>, _>>()?;
        let (spans, memory) = used?;
        Ok(HttpBenchReport { config: config.clone(), invalid: verdict(config, &sources), sources, spans, memory })
    })
}

fn run_source(config: &HttpBenchConfig, number: usize, times: Times) -> Result<SourceReport, LoadError> {
    prepare_thread(config.cpu)?;
    let source = &config.sources[number];
    prioritise_thread(source.nice)?;
    if source.real_time {
        put_first()?;
    }
    match source.kind {
        Kind::Request => Engine::new(config, number, times)?.run(),
        Kind::Hello => Flood::new(config, number, times)?.run(),
    }
}

/// The seed of one source: its arrivals do not change with the sources beside it.
fn seed_of(config: &HttpBenchConfig, number: usize) -> u64 {
    Rng::stream(config.seed, number as u64).u64()
}

/// What is read at an edge.
struct Reading {
    at: Instant,
    target: Vec<Cpu>,
    generator_ns: u64,
}

impl Reading {
    fn take(config: &HttpBenchConfig) -> Result<Self, LoadError> {
        let target = config.pids.iter().map(|pid| Cpu::of(*pid)).collect::<Result<_, _>>()?;
        Ok(Self { at: clock::now(), target, generator_ns: clock::process_cpu_ns() })
    }

    fn span_to(&self, next: &Self, origin: Instant) -> Span {
        let target_ns = self.target.iter().zip(&next.target).map(|(before, after)| after.used_since(before)).sum();
        let seconds = |ns| Duration::from_nanos(ns).as_secs_f64();
        Span {
            from_ms: self.at.nanos_since(origin) / MS_NS,
            to_ms: next.at.nanos_since(origin) / MS_NS,
            target_cpu_s: seconds(target_ns),
            generator_cpu_s: seconds(next.generator_ns.saturating_sub(self.generator_ns)),
        }
    }
}

type Used = (Vec<Span>, Option<(Memory, Memory)>);

/// Reads what was used whenever a rate changes.
fn observe(config: &HttpBenchConfig, times: Times) -> Result<Used, LoadError> {
    let memory = || -> Result<Memory, LoadError> {
        config.pids.iter().try_fold(Memory::default(), |sum, pid| {
            let one = Memory::of(*pid)?;
            Ok(Memory { rss_bytes: sum.rss_bytes + one.rss_bytes, pss_bytes: sum.pss_bytes + one.pss_bytes })
        })
    };
    let mut sleeper = Poller::new()?;
    let mut readings = Vec::new();
    let before = memory()?;
    for edge in tally::edges(config, times.from, times.to) {
        sleeper.sleep(edge)?;
        readings.push(Reading::take(config)?);
    }
    let after = memory()?;
    let spans = readings.windows(2).map(|pair| pair[0].span_to(&pair[1], times.from)).collect();
    Ok((spans, (!config.pids.is_empty()).then_some((before, after))))
}

fn verdict(config: &HttpBenchConfig, sources: &[SourceReport]) -> Option<Invalid> {
    if sources.iter().all(|source| source.total.endings.is_empty()) {
        return Some(Invalid::Empty);
    }
    let judged = config.sources.iter().zip(sources).filter(|(source, _)| source.judged);
    let us_p99 = judged.map(|(_, report)| report.lateness.us_p99).fold(0.0, f64::max);
    (us_p99 > config.lateness_us_p99_max).then_some(Invalid::Late { us_p99 })
}

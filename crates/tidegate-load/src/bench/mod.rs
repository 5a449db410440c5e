//! A measured run against one NSQ broker, from outside.
//!
//! [`run`] opens the connections, offers the load of a [`BenchConfig`], and returns a [`BenchReport`]. Publishers and
//! consumers live in one thread or two, each a loop around epoll; the calling thread only wakes to read the target's CPU
//! time when the measured window begins and ends, so that reading it makes no message late.

mod config;
mod consume;
mod engine;
mod publish;
mod report;

use std::sync::Arc;
use std::thread;

use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;

pub use self::config::{Action, BenchConfig, Command, Pace, ReleaseConfig, Threads};
use self::engine::{Counters, Engine, Figures, Links, Progress, Run, Times};
pub use self::report::{BenchReport, Conservation, Invalid, TargetUse, Window};
use crate::error::LoadError;
use crate::latency::LatencySummary;
use crate::link::{Identify, Link, Subscription};
use crate::poll::{Poller, allow_open_files, prepare_thread};
use crate::spans;
use crate::target::{Cpu, Memory};

const MS_NS: u64 = 1_000_000;
/// From the opening of the last connection to the first message: both threads are up by then.
const LEAD_NS: u64 = 20 * MS_NS;
/// How often the observer looks whether the run has ended before its window.
const GLANCE_NS: u64 = 20 * MS_NS;

/// Runs `config`.
///
/// # Errors
/// [`LoadError`] if the configuration describes no load, the broker cannot be reached or breaks the protocol, or an open
/// loop offers far more than it takes.
pub fn run(config: &BenchConfig) -> Result<BenchReport, LoadError> {
    config.check()?;
    allow_open_files((config.publishers + config.consumers) as usize)?;
    let links = open(config)?;
    let start = clock::now().plus_nanos(LEAD_NS);
    let run = Run {
        number: config.expect.as_ref().map_or_else(|| run_number(start), |manifest| manifest.run),
        times: times(config, start),
        counters: Arc::new(Counters::default()),
    };
    if let Some(expected) = &config.expect {
        run.counters.publishing_ends(expected);
    }
    let engines = engines(config, links, &run)?;
    thread::scope(|scope| {
        let threads: Vec<_> = engines.into_iter().map(|engine| scope.spawn(|| engine.run())).collect();
        let observed = observe(config, &run);
        let mut figures = Figures::default();
        for thread in threads {
            let part = thread.join().expect("a load thread panicked")?;
            figures.publish = figures.publish.or(part.publish);
            figures.consume = figures.consume.or(part.consume);
        }
        let mut observed = observed?;
        if let (Some(_), Some(consume)) = (&config.expect, &figures.consume) {
            // The run waited for stragglers; the flow ended before.
            observed.to.at = consume.last.clamp(observed.from.at, observed.to.at.max(observed.from.at));
        }
        if let (Some(file), Some(consume)) = (&config.deliveries, &figures.consume) {
            spans::write(file, consume.deliveries.as_deref().unwrap_or_default())
                .map_err(LoadError::os("write the deliveries"))?;
        }
        Ok(report(config, &observed, figures))
    })
}

/// Consumers first, so that their channel is there before the first message.
fn open(config: &BenchConfig) -> Result<Links, LoadError> {
    let identify = Identify::new(config.buffering, config.msg_timeout_ms);
    let subscription = Subscription { topic: &config.topic, channel: &config.channel };
    let open = |subscription| Link::open(config.address, Some(&identify), subscription);
    let consumers = (0..config.consumers).map(|_| open(Some(subscription))).collect::<Result<_, _>>()?;
    let publishers = (0..config.publishers).map(|_| open(None)).collect::<Result<_, _>>()?;
    Ok(Links { publishers, consumers })
}

fn engines(config: &BenchConfig, links: Links, run: &Run) -> Result<Vec<Engine>, LoadError> {
    let cpu = |thread: usize| config.cpus.get(thread).copied();
    if config.thread_count() == 1 {
        return Ok(vec![Engine::new(config, links, run, cpu(0))?]);
    }
    let Links { publishers, consumers } = links;
    let publish = Links { publishers, ..Links::default() };
    let consume = Links { consumers, ..Links::default() };
    Ok(vec![Engine::new(config, publish, run, cpu(0))?, Engine::new(config, consume, run, cpu(1))?])
}

fn times(config: &BenchConfig, start: Instant) -> Times {
    let from = start.plus_nanos(config.warm_up_ms * MS_NS);
    let to = from.plus_nanos(config.duration_ms * MS_NS);
    // A consumer that does not know what to wait for has nothing to wait for.
    let has_end = config.publishers > 0 || config.expect.is_some();
    let drain_ms = if has_end { config.drain_ms } else { 0 };
    Times { start, measured: from..to, end: to.plus_nanos(drain_ms * MS_NS) }
}

/// Differs from run to run, also with the same seed.
fn run_number(start: Instant) -> u32 {
    let number = Rng::new(start.as_nanos()).below(u64::from(u32::MAX));
    u32::try_from(number).expect("below a 32-bit bound")
}

/// One reading at an edge of the measured window.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    progress: Progress,
    generator_ns: u64,
    target: Option<Cpu>,
}

#[derive(Debug)]
struct Observed {
    from: Reading,
    to: Reading,
    memory: Option<Memory>,
}

/// Reads counts and CPU times when the window begins and when it, or all work, ends.
fn observe(config: &BenchConfig, run: &Run) -> Result<Observed, LoadError> {
    let read = || -> Result<Reading, LoadError> {
        Ok(Reading {
            target: target_reading(config, Cpu::of)?,
            at: clock::now(),
            progress: run.counters.progress(),
            generator_ns: clock::process_cpu_ns(),
        })
    };
    prepare_thread(None)?;
    let mut sleeper = Poller::new()?;
    let mut sleep = |until: Instant| {
        while clock::now() < until && !run.counters.is_over() {
            sleeper.sleep(clock::now().plus_nanos(GLANCE_NS).min(until))?;
        }
        Ok::<_, LoadError>(())
    };
    if config.warm_up_ms > 0 {
        sleep(run.times.measured.start)?;
    }
    // Without a warm-up this is read before anything moves, so that the first messages are not missed.
    let mut from = read()?;
    from.at = from.at.max(run.times.measured.start);
    sleep(run.times.measured.end)?;
    let to = read()?;
    Ok(Observed { from, to, memory: target_reading(config, Memory::of)? })
}

/// `None` if no process is given, or if it is gone and may be.
fn target_reading<T>(config: &BenchConfig, read: impl Fn(u32) -> Result<T, LoadError>) -> Result<Option<T>, LoadError> {
    match config.pid.map(read) {
        Some(Err(_)) if config.tolerate_disconnect => Ok(None),
        reading => reading.transpose(),
    }
}

fn report(config: &BenchConfig, observed: &Observed, figures: Figures) -> BenchReport {
    let Figures { publish, consume } = figures;
    let is_consumed = consume.is_some();
    let window = window(observed);
    let mut conservation = Conservation::default();
    let manifest = publish.as_ref().map(|publish| &publish.manifest).or(config.expect.as_ref());
    if let Some(manifest) = manifest {
        conservation.add_published(manifest);
        conservation.lost = consume.as_ref().map(|consume| consume.ledger.lost(manifest));
    }
    let (mut lateness, mut answer) = (LatencySummary::default(), LatencySummary::default());
    if let Some(publish) = &publish {
        (lateness, answer) = (publish.lateness.summary(), publish.answer.summary());
        conservation.unsent = publish.unsent;
    }
    let (mut end_to_end, mut timers, mut release) = (LatencySummary::default(), LatencySummary::default(), None);
    let (mut access_expected, mut access_error) = (LatencySummary::default(), LatencySummary::default());
    if let Some(consume) = consume {
        (end_to_end, timers) = (consume.end_to_end.summary(), consume.timers.summary());
        release = consume.release.map(|law| law.report());
        if let Some(check) = &consume.access {
            (access_expected, access_error) = (check.expected().summary(), check.error().summary());
        }
        conservation.received = consume.ledger.received();
        conservation.foreign = consume.foreign;
        conservation.consumer_errors = consume.errors;
        conservation.consumer_error_last = consume.last_error;
    }
    BenchReport {
        config: config.clone(),
        invalid: verdict(config, &window, &lateness),
        target: target(observed, &window, is_consumed),
        window,
        lateness,
        answer,
        end_to_end,
        timers,
        conservation,
        release,
        access_expected,
        access_error,
        generator_cpu_s: seconds(observed.to.generator_ns - observed.from.generator_ns),
        manifest: publish.filter(|_| config.manifest).map(|publish| publish.manifest),
    }
}

fn verdict(config: &BenchConfig, window: &Window, lateness: &LatencySummary) -> Option<Invalid> {
    if lateness.us_p99 > config.lateness_us_p99_max {
        return Some(Invalid::Late { us_p99: lateness.us_p99 });
    }
    (window.written + window.delivered == 0).then_some(Invalid::Empty)
}

fn window(observed: &Observed) -> Window {
    let (from, to) = (&observed.from, &observed.to);
    let length_s = to.at.since(from.at).as_secs_f64();
    let accepted = to.progress.accepted - from.progress.accepted;
    let delivered = to.progress.delivered - from.progress.delivered;
    Window {
        length_s,
        written: to.progress.written - from.progress.written,
        accepted,
        delivered,
        accepted_per_s: ratio(accepted, length_s),
        delivered_per_s: ratio(delivered, length_s),
    }
}

fn target(observed: &Observed, window: &Window, is_consumed: bool) -> Option<TargetUse> {
    let (from, to) = (observed.from.target?, observed.to.target?);
    let cpu_s = seconds(to.used_since(&from));
    let messages = if is_consumed { window.delivered } else { window.accepted };
    Some(TargetUse {
        cpu_s,
        cpu_ticks_s: seconds(to.accounted_ns.saturating_sub(from.accounted_ns)),
        cpu_us_per_message: if messages == 0 { 0.0 } else { 1e6 / ratio(messages, cpu_s) },
        accepted_per_cpu_s: ratio(window.accepted, cpu_s),
        delivered_per_cpu_s: ratio(window.delivered, cpu_s),
        memory: observed.memory?,
    })
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

/// `count / of`, zero where that has no meaning.
fn ratio(count: u64, of: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let count = count as f64;
    if of > 0.0 { count / of } else { 0.0 }
}

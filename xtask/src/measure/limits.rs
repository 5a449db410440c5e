//! The bars of the limiter, on the real broker: it records when each message came, was released and went.

use std::path::{Path, PathBuf};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::json;

use super::bench::{Bench, TRIES, number};
use super::broker::{Broker, SHARDS, free_address, shards_in_words};
use super::table::Figure;
use super::trace::{self, Law, Replay};
use crate::http;
use crate::process::Group;

pub(super) const TOPIC: &str = "limited";
/// The paper's own setting: a tenth above 10,000/s, and 99 % of Poisson arrivals undelayed.
const RATE_PER_S: u32 = 11_000;
const BURST: u32 = 26;
/// Half the rate: a publisher that keeps to it conforms by far.
const PAUSED_PACE_PER_S: u32 = 5_000;
/// Not counted.
const WARM_UP_MS: u64 = 500;
/// Longer than any run here.
const RECORD_S: u32 = 3_600;

/// The broker with one limited topic, recording it.
#[derive(Debug)]
pub(super) struct Limited {
    /// Where clients connect.
    pub(super) broker: Broker,
    trace: PathBuf,
}

impl Limited {
    fn start(bench: &Bench, shards: u32, rate_per_s: u32, burst: u32) -> Result<Self> {
        Self::start_named(bench, "limited", shards, (rate_per_s, burst))
    }

    /// One of several, with a folder of its own.
    pub(super) fn start_named(bench: &Bench, name: &str, shards: u32, (rate_per_s, burst): (u32, u32)) -> Result<Self> {
        let data = bench.folder(name)?;
        let (tcp, http_address, admin) = (free_address()?, free_address()?, free_address()?);
        std::fs::create_dir_all(&data).into_diagnostic()?;
        let config = data.join("tidegate.toml");
        let text = format!(
            "[admin]\naddress = \"{admin}\"\n[console]\naddress = \"\"\n[broker]\ntcp_address = \"{tcp}\"\nhttp_address = \"{http_address}\"\n\
             shards = {shards}\ndata_path = \"{}\"\n[[topic]]\nname = \"{TOPIC}\"\nrate = \"{rate_per_s}/s\"\nburst = {burst}\n",
            data.display()
        );
        std::fs::write(&config, text).into_diagnostic()?;
        let broker = Broker::up(bench, &config, &data, tcp)?;
        let created = http::request(&http_address, "POST", &format!("/topic/create?topic={TOPIC}"), b"")?;
        if created.status != 200 {
            miette::bail!("the topic cannot be created: {} {}", created.status, created.body);
        }
        record(&admin, &data)?;
        Ok(Self { broker, trace: data.join(format!("{TOPIC}.trace")) })
    }

    /// Ends the broker, so that its trace is complete.
    pub(super) fn finish(self) -> Result<PathBuf> {
        self.broker.stop()?;
        Ok(self.trace)
    }
}

fn record(admin: &str, data: &Path) -> Result<()> {
    let token = std::fs::read_to_string(data.join("admin.token")).into_diagnostic().wrap_err("the admin token")?;
    let path = format!("/api/v1/record/{TOPIC}?seconds={RECORD_S}");
    let answer = http::request_with_token(admin, "POST", &path, token.trim())?;
    if answer.status / 100 == 2 { Ok(()) } else { miette::bail!("no recording: {} {}", answer.status, answer.body) }
}

/// Each message's real delay against Eq. 2 over the stamps that the broker recorded.
pub(super) fn access_delay(bench: &Bench) -> Result<Vec<Figure>> {
    SHARDS.into_iter().map(|shards| access_delay_with(bench, shards)).collect()
}

fn access_delay_with(bench: &Bench, shards: u32) -> Result<Figure> {
    let limited = Limited::start(bench, shards, RATE_PER_S, BURST)?;
    let length = bench.size(30_000, 2_000);
    bench.load(
        &limited.broker,
        &format!("topic={TOPIC} publishers=1000 spin_us=100 pace.open.rate_per_s=10000 duration_ms={length}"),
    )?;
    let mut replay = Replay::new(RATE_PER_S, BURST);
    let (mut errors_ns, mut delayed) = (Vec::new(), 0_u64);
    trace::read(&limited.finish()?, |passage| {
        let expected = replay.delay_ns(passage.arrival_ns);
        delayed += u64::from(expected > 0);
        errors_ns.push((passage.passed_ns - passage.arrival_ns - expected).abs());
    })?;
    errors_ns.sort_unstable();
    let quantile_us =
        |share: usize| errors_ns.get(errors_ns.len() * share / 1000).map_or(f64::NAN, |ns| microseconds(*ns));
    let (median, p99, p999) = (quantile_us(500), quantile_us(990), quantile_us(999));
    Ok(Figure {
        what: format!("{}, {} messages, {delayed} delayed", shards_in_words(shards), errors_ns.len()),
        value: format!("{p99:.1} us at p99"),
        spread: format!("p50 {median:.1} us, p99.9 {p999:.1} us"),
        passes: p99 <= 100.0 && delayed > 0,
        runs: json!({ "us_p50": median, "us_p99": p99, "us_p999": p999, "messages": errors_ns.len() }),
    })
}

/// Releases by real stamps, with more offered than the limit lets through.
pub(super) fn release_law(bench: &Bench) -> Result<Vec<Figure>> {
    SHARDS.into_iter().map(|shards| release_law_with(bench, shards)).collect()
}

fn release_law_with(bench: &Bench, shards: u32) -> Result<Figure> {
    let (rate_per_s, burst) = (100_000, 100);
    let limited = Limited::start(bench, shards, rate_per_s, burst)?;
    let length = bench.size(101_000, 2_000);
    let load = format!(
        "topic={TOPIC} publishers=100 pace.saturate.window=64 warm_up_ms=0 duration_ms={length} drain_ms=30000"
    );
    bench.load(&limited.broker, &load)?;
    let mut law = Law::new(rate_per_s, burst);
    let messages = trace::read(&limited.finish()?, |passage| law.release(passage.release_ns))?;
    Ok(Figure {
        what: format!("{}, {messages} messages, real stamps", shards_in_words(shards)),
        value: format!("{} violations", law.violations),
        spread: String::new(),
        passes: law.violations == 0 && messages >= bench.size(10_000_000, 100_000),
        runs: json!({ "messages": messages, "violations": law.violations }),
    })
}

/// Traffic that conforms by far, while the broker is held still again and again.
pub(super) fn paused_reader(bench: &Bench) -> Result<Vec<Figure>> {
    SHARDS.into_iter().map(|shards| paused_reader_with(bench, shards)).collect()
}

fn paused_reader_with(bench: &Bench, shards: u32) -> Result<Figure> {
    // A publisher that was late sends all that it missed at once. Up to this lateness even that conforms.
    let late_us_max = f64::from(BURST - 1) * 1e6 / f64::from(PAUSED_PACE_PER_S);
    for _ in 0..TRIES {
        let run = held_still_often(bench, shards)?;
        if bench.quick || run.late_us <= late_us_max {
            return Ok(run.figure(shards));
        }
    }
    miette::bail!("the publisher was over {late_us_max} us late in {TRIES} runs: something else uses this machine")
}

/// What a broker that was held still made of traffic that conforms.
struct PausedRun {
    pauses: u64,
    messages: u64,
    /// Held by the bucket after they were read.
    delayed: u64,
    /// The longest of these delays.
    longest_ns: i128,
    /// What a bucket that charges messages when they are read would delay. Without any, the pauses did not tell.
    delayed_by_reading: u64,
    /// The generator's lateness at most.
    late_us: f64,
}

impl PausedRun {
    fn figure(&self, shards: u32) -> Figure {
        let Self { pauses, messages, delayed, longest_ns, delayed_by_reading, late_us } = self;
        Figure {
            what: format!("{}, {messages} messages at {PAUSED_PACE_PER_S}/s, {pauses} pauses", shards_in_words(shards)),
            value: format!("{delayed} delayed by the bucket"),
            spread: format!("{delayed_by_reading} if charged when read"),
            passes: *delayed == 0 && *delayed_by_reading > 0,
            runs: json!({
                "messages": messages, "pauses": pauses, "delayed": delayed, "delay_us_max": microseconds(*longest_ns),
                "delayed_if_charged_when_read": delayed_by_reading, "publisher_late_us_max": late_us,
            }),
        }
    }
}

fn held_still_often(bench: &Bench, shards: u32) -> Result<PausedRun> {
    let limited = Limited::start(bench, shards, RATE_PER_S, BURST)?;
    let pauses = bench.size(40, 5);
    let load = format!(
        "run topic={TOPIC} publishers=1 pace.open.rate_per_s={PAUSED_PACE_PER_S} pace.open.process=periodic \
         warm_up_ms={WARM_UP_MS} duration_ms={} lateness_us_p99_max=1e9",
        pauses * 250
    );
    let said = limited.trace.with_extension("report");
    let report = std::fs::File::create(&said).into_diagnostic()?;
    let mut generator = Group::spawn(bench.generator(&limited.broker, &load).stdout(report))?;
    // The generator's first messages come in a rush.
    generator.wait(Duration::from_millis(WARM_UP_MS))?;
    for _ in 0..pauses {
        if generator.wait(Duration::from_millis(200))?.is_some() {
            break;
        }
        limited.broker.hold_still(Duration::from_millis(50))?;
    }
    let ended = generator.wait(Duration::from_mins(1))?;
    if ended.is_none_or(|status| !status.success()) {
        miette::bail!("the load generator ended with {ended:?}");
    }
    let report = serde_json::from_slice(&std::fs::read(&said).into_diagnostic()?).into_diagnostic()?;
    let late_us = number(&report, "/lateness/us_max")?;
    let mut when_read = Replay::new(RATE_PER_S, BURST);
    let (mut delayed, mut longest_ns, mut delayed_by_reading) = (0, 0, 0);
    let (mut messages, mut begin_ns) = (0_u64, None);
    trace::read(&limited.finish()?, |passage| {
        let begin_ns = *begin_ns.get_or_insert(passage.arrival_ns + i128::from(WARM_UP_MS) * 1_000_000);
        if passage.arrival_ns < begin_ns {
            return;
        }
        messages += 1;
        let held_ns = passage.held_ns();
        delayed += u64::from(held_ns > 0);
        longest_ns = longest_ns.max(held_ns);
        delayed_by_reading += u64::from(when_read.delay_ns(passage.read_ns) > 0);
    })?;
    Ok(PausedRun { pauses, messages, delayed, longest_ns, delayed_by_reading, late_us })
}

#[expect(clippy::cast_precision_loss, reason = "errors of microseconds are far below 2^53 ns")]
fn microseconds(ns: i128) -> f64 {
    ns as f64 / 1e3
}

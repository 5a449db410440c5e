//! One measured run: bulk flows, the probe beside them, and what else is sent.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_runtime::clock;

use super::churn::{self, ChurnConfig};
use super::flood::{self, FloodConfig};
use super::probe::{self, Times};
use super::quiet::Spoiled;
use super::report::{Evidence, GapFigures, SendReport};
use super::sample::Look;
use super::{bulk, connect, join, requests_at, sample, spawn};
use crate::error::LoadError;
use crate::gaps::Watch;
use crate::load_thread::LoadThread;
use crate::poll::allow_open_files;

/// Samples that are kept: 64 MiB.
const SAMPLES_MAX: u64 = 1 << 20;

/// What to send.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendConfig {
    /// The receiver's.
    pub address: SocketAddr,
    /// The receiver's for requests; the next port if it is not given.
    pub requests: Option<SocketAddr>,
    /// Bulk flows.
    pub flows: usize,
    /// Their congestion control (`cubic`, `bbr`, `reno`); the kernel's own if empty.
    pub congestion: String,
    /// Requests per second, evenly; 0 for none.
    pub requests_per_s: u32,
    /// What is not measured yet.
    pub warm_up_ms: u64,
    /// What is measured.
    pub duration_ms: u64,
    /// How often TCP is asked.
    pub sample_us: u64,
    /// A file with a line `AT,ACKED` for each sample: nanoseconds of the monotonic clock, and bytes of payload that were
    /// acknowledged by then.
    pub samples: Option<PathBuf>,
    /// Short flows beside.
    pub churn: Option<ChurnConfig>,
    /// Datagrams beside.
    pub flood: Option<FloodConfig>,
    /// A machine that did not wake us for this long did nothing for us.
    pub gap_us: u64,
    /// What follows such a gap is left out too, for this long.
    pub gap_after_ms: u64,
}

impl Default for SendConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 5201)),
            requests: None,
            flows: 1,
            congestion: String::new(),
            requests_per_s: 1_000,
            warm_up_ms: 1_000,
            duration_ms: 5_000,
            sample_us: 1_000,
            samples: None,
            churn: None,
            flood: None,
            gap_us: 500,
            gap_after_ms: 10,
        }
    }
}

impl SendConfig {
    fn check(&self) -> Result<(), LoadError> {
        let refuse = |key, value: u64, expected| Err(LoadError::Config { key, value: value.to_string(), expected });
        if self.sample_us == 0 {
            return refuse("sample_us", 0, "at least 1");
        }
        if self.duration_ms == 0 {
            return refuse("duration_ms", 0, "at least 1");
        }
        self.flood.as_ref().map_or(Ok(()), FloodConfig::check)?;
        let samples = self.duration_ms.saturating_mul(1_000) / self.sample_us * (self.flows as u64).max(1);
        if samples > SAMPLES_MAX {
            return refuse("duration_ms", self.duration_ms, "a million samples at most: fewer flows, or less often");
        }
        Ok(())
    }
}

/// Sends as `config` says.
///
/// # Errors
/// [`LoadError`] for a configuration that says nothing, a receiver that is not there or goes away.
pub fn run(config: &SendConfig) -> Result<SendReport, LoadError> {
    config.check()?;
    let short = config.churn.as_ref().map_or(0, |churn| churn.at_once);
    allow_open_files(config.flows + short)?;
    let flows = (0..config.flows).map(|_| connect(config.address, &config.congestion));
    let flows: Arc<Vec<TcpStream>> = Arc::new(flows.collect::<Result<_, _>>()?);
    let requests = match config.requests_per_s {
        0 => None,
        per_s => {
            let address = config.requests.unwrap_or_else(|| requests_at(config.address));
            Some((connect(address, &config.congestion)?, 1_000_000_000 / u64::from(per_s)))
        }
    };
    let gaps = Watch::start(config.gap_us)?;
    let spent_before = clock::process_cpu_ns();
    let written = flows.clone();
    let writer = LoadThread::start("bulk", move |stop| bulk::write(&written, &stop))?;
    let from = clock::now().plus_nanos(config.warm_up_ms * 1_000_000);
    let until = from.plus_nanos(config.duration_ms * 1_000_000);
    let asked = flows.clone();
    // Half a period later than requests, so that they do not meet.
    let times = Times { from, until, every_ns: config.sample_us * 1_000 };
    let shifted = Times { from: from.plus_nanos(times.every_ns / 2), ..times };
    let samples = spawn("samples", move || sample::sample(&asked, shifted))?;
    let probed = requests
        .map(|(stream, every_ns)| spawn("requests", move || probe::probe(&stream, Times { from, until, every_ns })));
    let address = config.address;
    let congestion = config.congestion.clone();
    let churned = config
        .churn
        .clone()
        .map(|churn| spawn("churn", move || churn::churn(&churn, address, &congestion, from, until)));
    let flooded = config.flood.clone().map(|flood| spawn("flood", move || flood::flood(&flood, address, times)));
    let looks = join(samples)?;
    let probed = probed.transpose()?.map(join).transpose()?.unwrap_or_default();
    let churn = churned.transpose()?.map(join).transpose()?;
    let (flood, datagrams) = flooded.transpose()?.map(join).transpose()?.unzip();
    let datagrams = datagrams.unwrap_or_default();
    writer.stop()?;
    let cpu_s = Duration::from_nanos(clock::process_cpu_ns() - spent_before).as_secs_f64();
    if let Some(file) = &config.samples {
        std::fs::write(file, lines(&looks)).map_err(LoadError::os("write the samples"))?;
    }
    let (seen, gaps) = gaps.finish()?;
    let spoiled = Spoiled::new(gaps, config.gap_after_ms * 1_000_000);
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns")]
    let left_out_ms = spoiled.nanos_between(from, until) as f64 / 1e6;
    let gaps = GapFigures { count: seen.gaps, late_us_max: seen.late_us_max, left_out_ms };
    let evidence = Evidence { looks: &looks, probed: &probed, datagrams: &datagrams, spoiled: &spoiled };
    Ok(evidence.report(cpu_s, gaps, churn, flood))
}

fn lines(looks: &[Look]) -> String {
    looks.iter().fold(String::new(), |mut text, look| {
        let acked: u64 = look.flows.iter().map(|flow| flow.acked_bytes).sum();
        writeln!(text, "{},{acked}", look.at.as_nanos()).expect("a String takes all");
        text
    })
}

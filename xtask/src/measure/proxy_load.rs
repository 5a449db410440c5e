//! Load on proxies: a run of `tidegate bench http` on CPU 1, beside the upstream.

use std::process::Stdio;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Map, Value, json};

use super::bench::{Bench, number};
use super::broker::pinned;
use super::proxy_server::{Limiting, Running, Setting, with_all_files};
use super::rpc_server::{self, Server};

/// The server behind all goes before what makes noise on the same CPU, where we may say so.
const FIRST_NICE: i32 = -10;
/// A run whose generator was late is repeated, but no oftener.
const TRIES: u32 = 2;
/// A handshake takes some 400 us of the client's thread: who comes meanwhile is late.
const TLS_LATENESS_US_MAX: f64 = 2_000.0;

/// The quiet tenant.
pub(super) const A: &str = "a.example";
/// The noisy one.
pub(super) const B: &str = "b.example";

/// The server behind all proxies.
pub(super) fn upstream(bench: &Bench) -> Result<Server> {
    upstream_with(bench, &format!("nice={}", nice(FIRST_NICE)))
}

/// A server of A's own: what B has its server do is no proxy's doing, and A must not wait for it.
pub(super) fn upstream_of_a(bench: &Bench) -> Result<Server> {
    upstream_with(bench, &format!("real_time={}", rustix::process::geteuid().is_root()))
}

/// One that delays so many requests at once; 0 for as many as come.
pub(super) fn upstream_workers(bench: &Bench, workers: u32) -> Result<Server> {
    upstream_with(bench, &format!("workers={workers}"))
}

fn upstream_with(bench: &Bench, key: &str) -> Result<Server> {
    let mut command = pinned("1");
    command.arg(bench.places.tidegate()).args(["bench", "upstream", key]);
    rpc_server::start(bench, "upstream", &mut command)
}

/// `wanted` if we may have it.
fn nice(wanted: i32) -> i32 {
    if rustix::process::geteuid().is_root() { wanted } else { 0 }
}

/// One source; further keys come on top of these.
pub(super) fn source(name: &str, rate_per_s: f64, keys: Value) -> Value {
    // What is measured must not wait for noise of the same CPU, and noise need not be punctual.
    let is_measured = name == A;
    let real_time = is_measured && rustix::process::geteuid().is_root();
    let mut source = json!({ "name": name, "rate_per_s": rate_per_s, "real_time": real_time, "judged": is_measured });
    extend(&mut source, keys);
    source
}

/// A new TLS connection for each request.
pub(super) fn new_tls() -> Value {
    json!({ "tls": true, "new_connections": true, "connections": 4_000 })
}

fn extend(value: &mut Value, keys: Value) {
    if let (Value::Object(object), Value::Object(keys)) = (value, keys) {
        object.extend(keys);
    }
}

/// A run against `proxy`; `keys` are those of the generator's configuration, sources included.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Speak TLS.
    pub(super) tls: bool,
    /// The configuration but for what the proxy says.
    pub(super) keys: Value,
}

impl Load {
    /// Runs it; a run whose generator was late is repeated.
    pub(super) fn run(&self, bench: &Bench, proxy: &Running) -> Result<Value> {
        let lateness = if bench.quick {
            1e9
        } else if self.tls {
            TLS_LATENESS_US_MAX
        } else {
            100.0
        };
        let mut config = json!({
            "address": if self.tls { &proxy.tls } else { &proxy.plain },
            "certificate": if self.tls { json!(proxy.certificate) } else { Value::Null },
            "pids": proxy.pids(),
            "local_addresses": 64,
            "lateness_us_p99_max": lateness,
        });
        extend(&mut config, self.keys.clone());
        let Value::Object(config) = config else { unreachable!("an object was made above") };
        let mut report = execute(bench, &["http"], &config)?;
        for _ in 1..TRIES {
            if report["invalid"].is_null() {
                return Ok(report);
            }
            report = execute(bench, &["http"], &config)?;
        }
        // Long runs on a machine of others are hardly ever on time. It is said beside the figures.
        if !report["invalid"].is_null() {
            let Some(us_p99) = report.pointer("/invalid/late/us_p99").and_then(Value::as_f64) else {
                miette::bail!("the load generator measured nothing")
            };
            bench.note_late(us_p99, lateness);
        }
        Ok(report)
    }
}

/// Requests a second that the core can answer for one tenant, nothing limited: on new connections with TLS, on 64 kept ones
/// without.
pub(super) fn capacity(bench: &Bench, setting: &Setting, tls: bool) -> Result<f64> {
    if tls { closed(bench, setting, true, new_tls(), 32) } else { capacity_of(bench, setting, 64) }
}

/// The same, on so many kept connections: the more there are, the dearer is each request.
pub(super) fn capacity_of(bench: &Bench, setting: &Setting, connections: usize) -> Result<f64> {
    closed(bench, setting, false, json!({}), connections)
}

fn closed(bench: &Bench, setting: &Setting, tls: bool, mut keys: Value, connections: usize) -> Result<f64> {
    let proxy = Running::start(bench, &Setting { limiting: Limiting::Off, ..*setting })?;
    (keys["closed"], keys["connections"]) = (json!(true), json!(connections));
    let duration = bench.size(6_000, 1_500);
    let keys = json!({ "sources": [source(B, 1.0, keys)], "warm_up_ms": 1_000, "duration_ms": duration });
    let report = Load { tls, keys }.run(bench, &proxy)?;
    proxy.stop()?;
    Phase::of(&report, 0, 0)?.answered_per_s()
}

/// `tidegate bench` with these words and keys, and the JSON that it prints.
pub(super) fn execute(bench: &Bench, words: &[&str], config: &Map<String, Value>) -> Result<Value> {
    let mut command = pinned("1");
    command.args(with_all_files()).arg(bench.places.tidegate()).arg("bench").args(words);
    command.args(config.iter().map(|(key, value)| format!("{key}={value}"))).stdin(Stdio::null());
    let said = command.output().into_diagnostic().wrap_err("the load generator")?;
    serde_json::from_slice(&said.stdout)
        .map_err(|_| miette::miette!("the load generator: {}", String::from_utf8_lossy(&said.stderr)))
}

/// A phase of a source, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase<'a> {
    report: &'a Value,
}

impl<'a> Phase<'a> {
    /// Phase `phase` of source `source`.
    pub(super) fn of(report: &'a Value, source: usize, phase: usize) -> Result<Self> {
        let report = report.pointer(&format!("/sources/{source}/phases/{phase}"));
        report.map(|report| Self { report }).ok_or_else(|| miette::miette!("the report has no phase {phase}"))
    }

    /// Requests.
    pub(super) fn offered(self) -> Result<f64> {
        number(self.report, "/offered")
    }

    /// Requests answered.
    pub(super) fn answered(self) -> Result<f64> {
        number(self.report, "/answered")
    }

    /// Per second.
    pub(super) fn answered_per_s(self) -> Result<f64> {
        number(self.report, "/answered_per_s")
    }

    /// Of all requests, how many were answered.
    pub(super) fn share(self) -> Result<f64> {
        Ok(self.answered()? / self.offered()?.max(1.0))
    }

    /// Response time of what was answered; not a number if nothing was, which reaches no bar.
    pub(super) fn us_p99(self) -> Result<f64> {
        self.response("us_p99")
    }

    /// The longest of the same.
    pub(super) fn us_max(self) -> Result<f64> {
        self.response("us_max")
    }

    /// Median of the same.
    pub(super) fn us_p50(self) -> Result<f64> {
        self.response("us_p50")
    }

    fn response(self, key: &str) -> Result<f64> {
        if self.answered()? > 0.0 { number(self.report, &format!("/response/{key}")) } else { Ok(f64::NAN) }
    }

    /// Requests that ended so; see `Ending` of the generator.
    pub(super) fn ended(self, ending: &str) -> f64 {
        self.report.pointer(&format!("/endings/{ending}")).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Requests that the proxy said no to, or closed.
    pub(super) fn refused(self) -> Result<f64> {
        number(self.report, "/notice/count")
    }

    /// Length in seconds.
    pub(super) fn seconds(self) -> Result<f64> {
        Ok((number(self.report, "/to_ms")? - number(self.report, "/from_ms")?) / 1e3)
    }

    /// How requests ended, for the file.
    pub(super) fn endings(self) -> Value {
        self.report["endings"].clone()
    }
}

/// CPU seconds of the proxy in part `span` of a run.
pub(super) fn cpu_s(report: &Value, span: usize) -> Result<f64> {
    number(report, &format!("/spans/{span}/target_cpu_s"))
}

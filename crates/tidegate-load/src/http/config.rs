//! What a run of HTTP load is.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::made_up::DIGITS;
use crate::arrivals::Process;
use crate::error::LoadError;

/// One run against one proxy or server. Every key has a default; times are in the unit that ends the key's name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpBenchConfig {
    /// Where all sources connect.
    pub address: SocketAddr,
    /// Who sends what; each source has a thread of its own, so that one cannot make another late but by using the CPU.
    pub sources: Vec<Source>,
    /// PEM file with the one certificate that TLS connections must show. Without it any is taken, and its handshake
    /// signature is not looked at: a load generator has nothing to lose, and its CPU is the server's on a small machine.
    pub certificate: Option<PathBuf>,
    /// Same seed, same intended times.
    pub seed: u64,

    /// Load before the measured window, at the first rate.
    pub warm_up_ms: u64,
    /// The measured window.
    pub duration_ms: u64,
    /// After the window, how long to wait for what is outstanding.
    pub drain_ms: u64,
    /// Length of a bin of the timeline; 0 leaves the timeline out.
    pub bin_ms: u64,

    /// CPU to bind the generator to; none leaves it to the kernel.
    pub cpu: Option<u32>,
    /// The server's processes, for their CPU time and memory.
    pub pids: Vec<u32>,
    /// Loopback addresses to connect from, so that ports do not run out; 0 leaves the choice to the kernel. Only for
    /// servers on an IPv4 loopback address.
    pub local_addresses: u32,
    /// A generator later than this at p99 makes the run invalid; see [`Source::judged`].
    pub lateness_us_p99_max: f64,
}

/// Who sends, what and how often.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct Source {
    /// The tenant: server name of the TLS handshake and `Host` of every request.
    pub name: String,
    /// If it is not 0, `name` begins with six digits, which count up through so many names: a new one for each hello, or, for
    /// HTTP/1.1 without TLS, for each request.
    pub made_up_names: u32,
    /// What is sent.
    pub kind: Kind,
    /// How arrivals follow each other.
    pub process: Process,
    /// Arrivals per second until the first step. 0 is silence.
    pub rate_per_s: f64,
    /// Later rates; times count from the beginning of the measured window, ascending.
    pub steps: Vec<Step>,
    /// Closed loop instead, for capacities and for noise: all connections are busy while the rate is not 0, whatever it is.
    pub closed: bool,
    /// A closed loop: a connection rests for so long after a refusal or a failure, and for twice as long after each further one
    /// in a row, up to 64 times that; spread from half of it to one and a half. 0 asks again at once.
    pub back_off_ms: u64,
    /// Connections: kept alive, exactly so many at most; else, how many may be under way at once.
    pub connections: u32,
    /// Requests that may wait until a connection is free; those beyond are not sent. With `new_connections` none waits.
    pub waiting_max: usize,
    /// A new connection for each request.
    pub new_connections: bool,
    /// TLS 1.3 with X25519 and no resumption.
    pub tls: bool,
    /// Version of HTTP.
    pub http: Http,
    /// The request's method.
    pub method: String,
    /// The request's path and query.
    pub path: String,
    /// Further header fields, as `name: value`.
    pub headers: Vec<String>,
    /// Bytes of the request's body.
    pub body_bytes: usize,
    /// How long an answer is waited for, from the intended time on.
    pub timeout_ms: u64,
    /// Niceness of the source's thread, -20 to 19.
    pub nice: i32,
    /// The thread goes before all of other users and sources (`SCHED_FIFO`): what is to be measured beside noise from the
    /// same CPU. Only for a source that asks little, and who may.
    pub real_time: bool,
    /// Its lateness spoils the run. That of noise need not.
    pub judged: bool,
    /// Keep each request of the measured window, up to [`RECORDS_MAX`].
    pub record: bool,
}

/// Requests of a source that wait for a connection, if nothing else is said.
const WAITING_MAX: usize = 100_000;

/// At most so many requests of a source are kept one by one.
pub const RECORDS_MAX: usize = 200_000;

/// What a source sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Requests; their answers are read whole.
    #[default]
    Request,
    /// The bytes of one `ClientHello` on a connection of its own, and nothing after it: no cryptography here.
    Hello,
}

/// Version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Http {
    /// HTTP/1.1.
    #[default]
    H1,
    /// HTTP/2, by ALPN or with prior knowledge; one request at a time on a connection.
    H2,
}

/// From then on, that many.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Since the beginning of the measured window.
    pub at_ms: u64,
    /// Arrivals per second.
    pub rate_per_s: f64,
}

impl Default for HttpBenchConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            sources: vec![Source::default()],
            certificate: None,
            seed: 1,
            warm_up_ms: 500,
            duration_ms: 5_000,
            drain_ms: 1_000,
            bin_ms: 0,
            cpu: None,
            pids: Vec::new(),
            local_addresses: 0,
            lateness_us_p99_max: 100.0,
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self {
            name: "localhost".into(),
            made_up_names: 0,
            kind: Kind::Request,
            process: Process::Poisson,
            rate_per_s: 100.0,
            steps: Vec::new(),
            closed: false,
            back_off_ms: 0,
            connections: 16,
            waiting_max: WAITING_MAX,
            new_connections: false,
            tls: false,
            http: Http::H1,
            method: "GET".into(),
            path: "/".into(),
            headers: Vec::new(),
            body_bytes: 0,
            timeout_ms: 5_000,
            nice: 0,
            real_time: false,
            judged: true,
            record: false,
        }
    }
}

impl HttpBenchConfig {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// [`LoadError::Config`] for the first key that describes no load.
    pub fn check(&self) -> Result<(), LoadError> {
        require(!self.sources.is_empty() && self.sources.len() <= 64, "sources", &self.sources.len(), "1 to 64")?;
        require(self.duration_ms > 0, "duration_ms", &0, "at least 1")?;
        let is_loopback = matches!(self.address, SocketAddr::V4(address) if address.ip().is_loopback());
        let addresses = self.local_addresses;
        require(addresses <= 10_000, "local_addresses", &addresses, "up to 10000")?;
        require(
            addresses == 0 || is_loopback,
            "local_addresses",
            &addresses,
            "0, as the server is not on 127.0.0.0/8",
        )?;
        require(self.bin_ms == 0 || self.duration_ms / self.bin_ms <= 100_000, "bin_ms", &self.bin_ms, "fewer bins")?;
        self.sources.iter().try_for_each(Source::check)
    }

    /// How many sockets may be open at once.
    pub(super) fn sockets(&self) -> usize {
        self.sources.iter().map(|source| source.connections as usize).sum()
    }
}

impl Source {
    /// The rate `ms` after the measured window began; negative times are the warm-up.
    pub(super) fn rate_at(&self, ms: i64) -> f64 {
        let passed = |step: &&Step| i64::try_from(step.at_ms).is_ok_and(|at| at <= ms);
        self.steps.iter().take_while(passed).last().map_or(self.rate_per_s, |step| step.rate_per_s)
    }

    pub(super) fn check(&self) -> Result<(), LoadError> {
        let is_rate = |rate: f64| rate.is_finite() && (0.0..=1e7).contains(&rate);
        require(is_rate(self.rate_per_s), "rate_per_s", &self.rate_per_s, "0 to 10000000")?;
        for step in &self.steps {
            require(is_rate(step.rate_per_s), "steps", &step.rate_per_s, "rates of 0 to 10000000")?;
        }
        let is_ascending = self.steps.is_sorted_by(|a, b| a.at_ms < b.at_ms);
        require(
            is_ascending && self.steps.len() <= 1_000,
            "steps",
            &self.steps.len(),
            "up to 1000, ascending in time",
        )?;
        require((1..=200_000).contains(&self.connections), "connections", &self.connections, "1 to 200000")?;
        require(self.timeout_ms > 0, "timeout_ms", &0, "at least 1")?;
        let may_rest = self.closed && self.back_off_ms <= 60_000;
        require(self.back_off_ms == 0 || may_rest, "back_off_ms", &self.back_off_ms, "up to 60000, of a closed loop")?;
        require(self.body_bytes <= 64 << 20, "body_bytes", &self.body_bytes, "up to 67108864")?;
        let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        require(is_word(&self.name), "name", &self.name, "a host name")?;
        let begins = self.name.bytes().take_while(u8::is_ascii_digit).count() >= DIGITS;
        let is_plain = matches!(self.kind, Kind::Hello) || (self.http == Http::H1 && !self.tls);
        let makes_up = self.made_up_names <= 1_000_000 && begins && is_plain;
        require(
            self.made_up_names == 0 || makes_up,
            "made_up_names",
            &self.made_up_names,
            "up to 1000000, of a name that begins with six digits, over HTTP/1.1 without TLS or of hellos",
        )?;
        require(is_word(&self.method), "method", &self.method, "a method")?;
        require(is_word(&self.path), "path", &self.path, "a path without blanks")?;
        let is_field = |field: &String| field.contains(": ") && !field.contains(['\r', '\n']);
        require(self.headers.iter().all(is_field), "headers", &self.headers.join(", "), "`name: value` each")
    }
}

fn require(holds: bool, key: &'static str, value: &dyn ToString, expected: &'static str) -> Result<(), LoadError> {
    if holds { Ok(()) } else { Err(LoadError::Config { key, value: value.to_string(), expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_load_and_survives_json() {
        let config = HttpBenchConfig::default();
        config.check().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<HttpBenchConfig>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<HttpBenchConfig>("{}").unwrap(), config);
    }

    #[test]
    fn a_rate_holds_from_its_step_on() {
        let step = |at_ms, rate_per_s| Step { at_ms, rate_per_s };
        let source = Source { rate_per_s: 0.0, steps: vec![step(5, 2.0), step(9, 0.0)], ..Source::default() };
        let busy: Vec<bool> = [-3, 4, 5, 8, 9, 100].map(|ms| source.rate_at(ms) > 0.0).into();
        assert_eq!(busy, [false, false, true, true, false, false]);
    }

    #[test]
    fn what_is_no_load_is_refused() {
        let with = |source: Source| HttpBenchConfig { sources: vec![source], ..HttpBenchConfig::default() };
        let step = |at_ms| Step { at_ms, rate_per_s: 1.0 };
        for broken in [
            HttpBenchConfig { sources: Vec::new(), ..HttpBenchConfig::default() },
            HttpBenchConfig { duration_ms: 0, ..HttpBenchConfig::default() },
            HttpBenchConfig { local_addresses: 1, address: ([8, 8, 8, 8], 1).into(), ..HttpBenchConfig::default() },
            with(Source { rate_per_s: f64::NAN, ..Source::default() }),
            with(Source { steps: vec![step(5), step(5)], ..Source::default() }),
            with(Source { connections: 0, ..Source::default() }),
            with(Source { back_off_ms: 1, ..Source::default() }),
            with(Source { path: "/a b".into(), ..Source::default() }),
            with(Source { headers: vec!["a: b\r\nc: d".into()], ..Source::default() }),
        ] {
            assert!(broken.check().is_err(), "{broken:?}");
        }
    }
}

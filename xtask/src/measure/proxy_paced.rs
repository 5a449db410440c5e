//! A tenant that is held to a number of bytes per second, with answers and tunnels that do not end, beside one that asks for
//! little.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use super::bench::{Bench, median, range};
use super::proxy_load::{A, Load, Phase, source, upstream_of_a};
use super::proxy_server::{KeyKind, Limiting, Proxy, Running, Setting, ensure};
use super::table::Figure;
use crate::clock::{self, Stopwatch};

const ROUNDS: usize = 5;
/// Requests of A in a second, on connections that are kept.
const QUIET_PER_S: f64 = 1_000.0;
/// What B is held to.
const BYTES_PER_S: f64 = 100e6;
/// B's bytes per second, by its number, away from 1.
const OFF_MOST: f64 = 0.05;
/// A's p99 beside B, by that alone.
const SLOWER_MOST: f64 = 1.5;
/// Answers of B, and as many tunnels.
const CROWDS: [usize; 2] = [1, 50];
/// Each answer's length: none comes to its end.
const LONG: &str = "10737418240";
/// The name of B: it is in the configuration of this row alone.
const HELD: &str = "held.example";
const TABLE: &str = "\n[[proxy.tenant]]\nname = \"held.example\"\nbandwidth = \"100MB/s\"\n";
const BLOCK: usize = 64 << 10;

/// What one round came to.
struct Came {
    alone_us_p99: f64,
    us_p99: f64,
    missed: f64,
    bytes_per_s: f64,
}

/// The row.
pub(super) fn paced(bench: &Bench) -> Result<Vec<Figure>> {
    ensure(bench)?;
    let quiet = upstream_of_a(bench)?;
    let mut figures = Vec::new();
    for crowd in CROWDS {
        let mut rounds = Vec::new();
        for round in 0..bench.size(ROUNDS, 1) {
            let came = one(bench, crowd, quiet.said("address")?).wrap_err_with(|| format!("{crowd} of each"))?;
            println!(
                "paced bytes, {crowd} answers and {crowd} tunnels, round {}: A's p99 {:.0} us, alone {:.0} us; B {:.1} MB/s",
                round + 1,
                came.us_p99,
                came.alone_us_p99,
                came.bytes_per_s / 1e6,
            );
            rounds.push(came);
        }
        figures.extend(figures_of(crowd, &rounds));
    }
    quiet.stop()?;
    Ok(figures)
}

fn figures_of(crowd: usize, rounds: &[Came]) -> [Figure; 2] {
    let ratios: Vec<f64> = rounds.iter().map(|came| came.us_p99 / came.alone_us_p99.max(1.0)).collect();
    let rates: Vec<f64> = rounds.iter().map(|came| came.bytes_per_s / BYTES_PER_S).collect();
    let missed: f64 = rounds.iter().map(|came| came.missed).sum();
    let worst = rates.iter().map(|rate| (rate - 1.0).abs()).fold(0.0, f64::max);
    let runs = rounds.iter().map(|came| {
        json!({
            "us_p99": came.us_p99, "alone_us_p99": came.alone_us_p99, "missed": came.missed,
            "bytes_per_s": came.bytes_per_s,
        })
    });
    let runs: serde_json::Value = runs.collect();
    let name = format!("{crowd} long answers and {crowd} tunnels of B");
    [
        Figure {
            what: format!("{name}: A's p99 (bar: {SLOWER_MOST}x alone)"),
            value: format!("{:.2}x alone, {missed:.0} missed", median(&ratios)),
            spread: format!("{} over {}", range(&ratios), ratios.len()),
            passes: median(&ratios) <= SLOWER_MOST && missed == 0.0,
            runs: runs.clone(),
        },
        Figure {
            what: format!("{name}: bytes per second (bar: within {:.0} % of 100 MB/s)", OFF_MOST * 100.0),
            value: format!("{:.3} of the number", median(&rates)),
            spread: format!("{} over {}", range(&rates), rates.len()),
            passes: worst <= OFF_MOST,
            runs,
        },
    ]
}

fn one(bench: &Bench, crowd: usize, of_a: &str) -> Result<Came> {
    let endless = Endless::start()?;
    let setting =
        Setting { of_a: Some(of_a), ..Setting::new(Proxy::Tidegate, Limiting::On, KeyKind::P256, &endless.address) };
    let proxy = Running::start_with(bench, &setting, TABLE)?;
    let duration = bench.size(10_000, 1_500);
    let keys = json!({
        "sources": [source(A, QUIET_PER_S, json!({ "connections": 8 }))],
        "warm_up_ms": 1_000, "duration_ms": duration,
    });
    let load = Load { tls: false, keys };
    let alone = load.run(bench, &proxy)?;
    let crowd = Crowd::start(&proxy.plain, crowd)?;
    // The burst at the beginning is not the rate.
    clock::rest(Duration::from_secs(1));
    let (watch, before) = (Stopwatch::start(), crowd.bytes());
    let beside = load.run(bench, &proxy)?;
    let (bytes, elapsed) = (crowd.bytes() - before, watch.elapsed());
    let broken = crowd.stop();
    proxy.stop()?;
    drop(endless);
    miette::ensure!(broken == 0, "{broken} answers or tunnels of B ended");
    let (alone, beside) = (Phase::of(&alone, 0, 0)?, Phase::of(&beside, 0, 0)?);
    #[expect(clippy::cast_precision_loss, reason = "some gigabytes")]
    let bytes_per_s = bytes as f64 / elapsed.as_secs_f64();
    Ok(Came {
        alone_us_p99: alone.us_p99()?,
        us_p99: beside.us_p99()?,
        missed: beside.offered()? - beside.answered()?,
        bytes_per_s,
    })
}

/// All that is not the proxy runs on the other CPU.
fn on_other_cpu() {
    let mut set = CpuSet::new();
    set.set(1);
    // Where there is no such CPU, the kernel places the thread.
    let _ = sched_setaffinity(None, &set);
}

/// A server of bytes without end, behind a head or in a tunnel.
struct Endless {
    address: String,
    ends: Arc<AtomicBool>,
}

impl Endless {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").into_diagnostic()?;
        let address = listener.local_addr().into_diagnostic()?.to_string();
        let ends = Arc::<AtomicBool>::default();
        let told = Arc::clone(&ends);
        std::thread::spawn(move || {
            on_other_cpu();
            for stream in listener.incoming().map_while(Result::ok) {
                // Relaxed: the flag stands for itself.
                if told.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::spawn(move || give(stream));
            }
        });
        Ok(Self { address, ends })
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the thread that listens.
        drop(TcpStream::connect(&self.address));
    }
}

/// Gives until the other side takes no more.
fn give(mut stream: TcpStream) {
    let Some(head) = read_head(&mut stream) else { return };
    let answer = if head.to_ascii_lowercase().contains("upgrade:") {
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".to_owned()
    } else {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n")
    };
    let block = vec![b'x'; BLOCK];
    let mut result = stream.write_all(answer.as_bytes());
    while result.is_ok() {
        result = stream.write_all(&block);
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// B's clients, each with one thread.
struct Crowd {
    taken: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<bool>>,
}

impl Crowd {
    /// So many that read an answer, and so many that read a tunnel.
    fn start(proxy: &str, of_each: usize) -> Result<Self> {
        let (taken, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut threads = Vec::new();
        for upgrade in ["", "Connection: Upgrade\r\nUpgrade: websocket\r\n"].repeat(of_each) {
            let mut stream = TcpStream::connect(proxy).into_diagnostic()?;
            stream.set_read_timeout(Some(Duration::from_millis(500))).into_diagnostic()?;
            let head = format!("GET /?bytes={LONG} HTTP/1.1\r\nHost: {HELD}\r\n{upgrade}\r\n");
            stream.write_all(head.as_bytes()).into_diagnostic()?;
            let (taken, ends) = (Arc::clone(&taken), Arc::clone(&ends));
            threads.push(std::thread::spawn(move || take(stream, &taken, &ends)));
        }
        Ok(Self { taken, ends, threads })
    }

    fn bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// How many ended before they were told to.
    fn stop(self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap_or(false)).filter(|stayed| !stayed).count()
    }
}

/// Reads until it is told to stop; false if the other side ended before.
fn take(mut stream: TcpStream, taken: &AtomicU64, ends: &AtomicBool) -> bool {
    on_other_cpu();
    let mut block = vec![0; BLOCK];
    while !ends.load(Ordering::Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => return false,
            Ok(read) => {
                taken.fetch_add(read as u64, Ordering::Relaxed);
            }
            // A pause in which nothing comes: look whether it is over.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_without_end_behind_a_head_and_in_a_tunnel() {
        let endless = Endless::start().unwrap();
        let crowd = Crowd::start(&endless.address, 2).unwrap();
        let enough = clock::poll(Duration::from_secs(20), || (crowd.bytes() > 4 * 1_000_000).then_some(()));
        assert!(enough.is_some());
        assert_eq!(crowd.stop(), 0);
    }
}

//! Brokers that lend each other tokens, as processes: together they keep the whole limit while datagrams are lost, one is
//! killed and started again, and one stands still.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::{Value, json};

use super::bench::{Bench, median, range};
use super::broker::{Broker, free_address};
use super::table::Figure;
use super::trace::{self, Law};
use crate::process::Group;
use crate::{clock, http, rng};

const TOPIC: &str = "lent";
/// The paper's own setting.
const RATE_PER_S: u32 = 11_000;
const BURST: u32 = 26;
/// Of all publishers together.
const PACE_PER_S: u32 = 9_600;
const BROKERS: u32 = 3;
/// One datagram in so many is lost.
const LOST_ONE_IN: u64 = 5;
/// Longer than a loan lasts without a word.
const STANDSTILL: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the brokers lend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lends {
    On,
    Off,
}

/// What happens to the brokers meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Datagrams are lost, a broker is killed and started again, another one stands still.
    All,
}

/// Carries datagrams to one broker, and loses some.
struct Relay {
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Relay {
    fn start(to: String, loses: Trouble, seed: u64) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").into_diagnostic()?;
        // Only so that it sees that it is to stop.
        socket.set_read_timeout(Some(Duration::from_millis(50))).into_diagnostic()?;
        let (address, stop) = (socket.local_addr().into_diagnostic()?.to_string(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut rng, mut bytes, mut carried) = (rng::Rng::new(seed), [0; 2_048], 0);
            while !stopped.load(Ordering::Relaxed) {
                let Ok(length) = socket.recv(&mut bytes) else { continue };
                if loses == Trouble::None || rng.below(LOST_ONE_IN) > 0 {
                    // A broker that is not there loses it as well.
                    let _ = socket.send_to(&bytes[..length], &to);
                    carried += 1;
                }
            }
            carried
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Datagrams that it carried.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

/// One broker, where it is found again after it was killed.
struct Place {
    number: u32,
    folder: PathBuf,
    tcp: String,
    admin: String,
    broker: Option<Broker>,
    /// What its runs recorded.
    traces: Vec<PathBuf>,
}

impl Place {
    fn new(bench: &Bench, number: u32, lend: &str) -> Result<Self> {
        let folder = bench.folder(&format!("lending-{number}"))?;
        std::fs::create_dir_all(&folder).into_diagnostic()?;
        let (tcp, admin) = (free_address()?, free_address()?);
        let text = format!(
            "[admin]\naddress = \"{admin}\"\n[console]\naddress = \"\"\n[broker]\ntcp_address = \"{tcp}\"\nhttp_address = \"\"\n\
             shards = 1\nlend_address = \"{lend}\"\ndata_path = \"{}\"\n",
            folder.display()
        );
        std::fs::write(folder.join("tidegate.toml"), text).into_diagnostic()?;
        Ok(Self { number, folder, tcp, admin, broker: None, traces: Vec::new() })
    }

    /// Starts the broker, and gives it its part before anybody publishes.
    fn start(&mut self, bench: &Bench, relays: &[Relay], lends: Lends) -> Result<()> {
        self.broker = Some(Broker::up(bench, &self.folder.join("tidegate.toml"), &self.folder, self.tcp.clone())?);
        let parts = http::request(&self.admin, "GET", "/api/v1/parts", b"")?;
        let parts: Value = serde_json::from_str(&parts.body).into_diagnostic()?;
        let now_us = parts["now_us"].as_u64().ok_or_else(|| miette::miette!("the broker tells no time: {parts}"))?;
        self.send("PUT", "/api/v1/parts", &order(self.number, relays, (lends, now_us)).to_string())?;
        self.send("POST", &format!("/api/v1/topics/{TOPIC}/prepare"), r#"{"channels": ["c"]}"#)?;
        self.send("POST", &format!("/api/v1/record/{TOPIC}?seconds=3600"), "")
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Result<()> {
        let token = std::fs::read_to_string(self.folder.join("admin.token")).into_diagnostic().wrap_err("the token")?;
        let answer = http::send_with_token(&self.admin, method, path, token.trim(), body.as_bytes())?;
        if answer.status / 100 == 2 {
            return Ok(());
        }
        miette::bail!("{method} {path}: {} {}", answer.status, answer.body)
    }

    fn lending(&self) -> Option<Value> {
        let answer = http::request(&self.admin, "GET", "/api/v1/lending", b"").ok()?;
        serde_json::from_str(&answer.body).ok()
    }

    /// Waits until it has joined, and holds nothing back any more.
    fn until_joined(&self) -> Result<()> {
        let joined = || {
            let topic = &self.lending()?["topics"][0];
            (topic["state"] == "lends" && topic["withheld"] == 0).then_some(())
        };
        clock::poll(PATIENCE, joined).ok_or_else(|| miette::miette!("broker {} never joins", self.number))
    }

    /// The run ends; its recording is kept.
    fn keep_trace(&mut self, killed: bool) -> Result<()> {
        self.send("DELETE", &format!("/api/v1/record/{TOPIC}"), "")?;
        let Some(broker) = self.broker.take() else { return Ok(()) };
        let trace = self.folder.join(format!("{TOPIC}.trace"));
        if killed {
            // The writer of traces has it when the file grows no more.
            let mut length = 0;
            clock::poll(PATIENCE, || {
                let before = std::mem::replace(&mut length, std::fs::metadata(&trace).ok()?.len());
                (before == length && length > 0).then_some(())
            });
            broker.kill();
        } else {
            broker.stop()?;
        }
        let kept = self.folder.join(format!("run-{}.trace", self.traces.len()));
        std::fs::rename(&trace, &kept).into_diagnostic()?;
        self.traces.push(kept);
        Ok(())
    }

    fn publish(&self, bench: &Bench, length_ms: u64) -> Result<Group> {
        let broker = self.broker.as_ref().ok_or_else(|| miette::miette!("it does not run"))?;
        let rate = PACE_PER_S / BROKERS;
        let load = format!(
            "run topic={TOPIC} channel=c publishers=100 seed={} pace.open.rate_per_s={rate} warm_up_ms=0 \
             duration_ms={length_ms} lateness_us_p99_max=1e9",
            // Loads of one seed would be the same at each broker: all parts would be empty together.
            self.number + 1
        );
        let report = std::fs::File::create(self.folder.join("report")).into_diagnostic()?;
        Group::spawn(bench.generator(broker, &load).stdout(report))
    }
}

/// A broker's third of the limit; the relays are where the others find each.
fn order(own: u32, relays: &[Relay], (lends, now_us): (Lends, u64)) -> Value {
    let share = |number: u32| BURST / BROKERS + u32::from(number < BURST % BROKERS);
    let node = |(number, relay): (u32, &Relay)| json!({ "number": number, "name": number.to_string(), "burst": share(number), "addresses": [relay.address] });
    let nodes: Vec<Value> = (0..).zip(relays).map(node).collect();
    let rate = format!("{RATE_PER_S}/{BROKERS}s");
    let mut part = json!({ "topic": TOPIC, "rate_per_s": rate, "burst": share(own) });
    if lends == Lends::On {
        part["lend"] = json!({ "generation": 1, "own": own, "nodes": nodes });
    }
    let until_us = now_us + 3_600_000_000_u64;
    json!({ "revision": 1, "lease_ms": 3_600_000, "until_us": until_us, "parts": [part] })
}

/// Three brokers, with and without lending in turn, and then with everything that goes wrong. The host's own pauses delay
/// messages in either, so the two are compared pair by pair.
pub(super) fn lending(bench: &Bench) -> Result<Vec<Figure>> {
    let length_ms = bench.size(10_000, 6_000);
    let (mut split, mut lent) = (Vec::new(), Vec::new());
    for pair in 0..bench.pairs() {
        let mut turns = [Lends::Off, Lends::On];
        turns.rotate_left(pair % 2);
        for lends in turns {
            let outcome = run(bench, lends, Trouble::None, length_ms)?;
            if lends == Lends::On { lent.push(outcome) } else { split.push(outcome) }
        }
    }
    let ratios: Vec<f64> = lent.iter().zip(&split).map(|(lent, split)| lent.mean_us / split.mean_us).collect();
    let ratio = median(&ratios);
    let troubled = run(bench, Lends::On, Trouble::All, bench.size(30_000, 6_000))?;
    Ok(vec![
        Outcome::of_all(&split).figure("static split", true),
        Outcome::of_all(&lent).figure("lending", lent.iter().all(|outcome| outcome.frames > 0.0)),
        Figure {
            what: format!("mean access delay, lending of a split's, {} pairs", ratios.len()),
            value: format!("{ratio:.2}"),
            spread: range(&ratios),
            passes: ratio < 0.5,
            runs: json!(ratios),
        },
        troubled.figure("lending; a fifth of the datagrams lost, one broker killed, one stopped for 1.5 s", true),
    ])
}

struct Outcome {
    messages: u64,
    violations: u64,
    mean_us: f64,
    p99_us: f64,
    /// Datagrams for each message.
    frames: f64,
}

impl Outcome {
    /// Messages and violations of all runs, and the medians of the rest.
    fn of_all(runs: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        Self {
            messages: runs.iter().map(|run| run.messages).sum(),
            violations: runs.iter().map(|run| run.violations).sum(),
            mean_us: of(|run| run.mean_us),
            p99_us: of(|run| run.p99_us),
            frames: of(|run| run.frames),
        }
    }

    fn figure(&self, what: &str, more: bool) -> Figure {
        let Self { messages, violations, mean_us, p99_us, frames } = self;
        Figure {
            what: format!("{what}, {messages} messages"),
            value: format!("{violations} violations"),
            spread: format!("access delay {mean_us:.0} us mean, {p99_us:.0} us p99; {frames:.3} datagrams a message"),
            passes: *violations == 0 && *messages > 0 && more,
            runs: json!({ "messages": messages, "violations": violations, "us_mean": mean_us, "us_p99": p99_us, "frames": frames }),
        }
    }
}

fn run(bench: &Bench, lends: Lends, trouble: Trouble, length_ms: u64) -> Result<Outcome> {
    let lend = (0..BROKERS).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let relays = (0..).zip(&lend).map(|(seed, to)| Relay::start(to.clone(), trouble, seed));
    let relays = relays.collect::<Result<Vec<_>>>()?;
    let places = (0..).zip(&lend).map(|(number, lend)| Place::new(bench, number, lend));
    let mut places = places.collect::<Result<Vec<_>>>()?;
    for place in &mut places {
        place.start(bench, &relays, lends)?;
    }
    if lends == Lends::On {
        places.iter().try_for_each(Place::until_joined)?;
    }
    let mut loads = places.iter().map(|place| place.publish(bench, length_ms)).collect::<Result<Vec<_>>>()?;
    if trouble == Trouble::All {
        let third = Duration::from_millis(length_ms / 3);
        clock::rest(third);
        // Its generator ends with its connections; another one follows.
        places[1].keep_trace(true)?;
        drop(loads.remove(1));
        places[1].start(bench, &relays, lends)?;
        loads.push(places[1].publish(bench, length_ms / 3)?);
        if let Some(broker) = &places[2].broker {
            broker.hold_still(STANDSTILL)?;
        }
    }
    for mut load in loads {
        load.wait(Duration::from_millis(length_ms) + PATIENCE)?;
    }
    for place in &mut places {
        place.keep_trace(false)?;
    }
    let frames = relays.into_iter().map(Relay::stop).sum();
    judge(places.iter().flat_map(|place| &place.traces), frames)
}

fn judge<'a>(traces: impl Iterator<Item = &'a PathBuf>, frames: u64) -> Result<Outcome> {
    let (mut releases, mut delays) = (Vec::new(), Vec::new());
    for file in traces {
        read(file, &mut releases, &mut delays)?;
    }
    releases.sort_unstable();
    delays.sort_unstable();
    let mut law = Law::new(RATE_PER_S, BURST);
    for &at in &releases {
        law.release(at);
    }
    let messages = releases.len() as u64;
    let p99_us = delays.get(delays.len() * 99 / 100).map_or(f64::NAN, |ns| microseconds(*ns));
    let mean_us = microseconds(delays.iter().sum::<i128>()) / float(messages.max(1));
    Ok(Outcome {
        messages,
        violations: law.violations,
        mean_us,
        p99_us,
        frames: float(frames) / float(messages.max(1)),
    })
}

fn read(file: &Path, releases: &mut Vec<i128>, delays: &mut Vec<i128>) -> Result<()> {
    trace::read(file, |passage| {
        releases.push(passage.release_ns);
        delays.push(passage.held_ns());
    })?;
    Ok(())
}

fn microseconds(ns: i128) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sums of a run's delays are below 2^53 ns")]
    let ns = ns as f64;
    ns / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn float(count: u64) -> f64 {
    count as f64
}

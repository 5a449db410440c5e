//! Many topics: made by PUB, saved at the stop, found at the start, watched while they work.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use miette::{IntoDiagnostic, Result, WrapErr as _};
use serde_json::json;

use super::bench::{Bench, median, number, range};
use super::broker::{Addresses, Broker, Kind, SHARDS, shards_in_words};
use super::memory::depths;
use super::table::Figure;
use crate::clock::{self, Stopwatch};
use crate::http;
use crate::nsq::{Client, Frame};
use crate::process::Group;

const PATIENCE: Duration = Duration::from_mins(2);
/// A message that does not come for so long is lost: a slow disk holds messages up for seconds.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// PUBs without an answer, while topics are made.
const WINDOW: usize = 100;
/// Channels of a topic: with one message in each, so many queues go to disk.
const CHANNELS: [&str; 2] = ["a", "b"];
/// Messages a second over all topics, while a probe is measured.
const BUSY_PER_S: u32 = 2_000;
/// Messages a second of the probe.
const PROBE_PER_S: u32 = 500;
/// What the page of the console asks for and keeps open.
const FEED: &str = "/api/v1/events";
/// p99 with the watchers by p99 without, at most.
const SLOWER_MAX: f64 = 2.0;

fn topic(number: usize) -> String {
    format!("crowd-{number}")
}

/// 10,000 topics made, 20,000 queues saved and found.
pub(super) fn come_and_go(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for shards in SHARDS {
        figures.extend(come_and_go_with(bench, shards)?);
    }
    Ok(figures)
}

fn come_and_go_with(bench: &Bench, shards: u32) -> Result<Vec<Figure>> {
    let topics = bench.size(10_000, 300);
    let data = bench.folder("crowd")?;
    let addresses = Addresses::free()?;
    let flag = format!("-shards={shards}");
    let start = || Broker::start_at(bench, Kind::Ours, &data, &addresses, &[&flag]);
    let broker = start()?;
    let watch = Stopwatch::start();
    publish_to_each(&broker.tcp, topics)?;
    let made = watch.elapsed();
    // The messages so far are at their topics; the first channel gets them, the second one a message of its own.
    for channel in CHANNELS {
        for number in 0..topics {
            let path = format!("/channel/create?topic={}&channel={channel}", topic(number));
            let answer = http::request(&broker.http, "POST", &path, b"")?;
            if answer.status != 200 {
                miette::bail!("{path}: {} {}", answer.status, answer.body);
            }
        }
    }
    publish_to_each(&broker.tcp, topics)?;
    let accepted = depths(&broker.http)?;
    let watch = Stopwatch::start();
    broker.stop()?;
    let saved = watch.elapsed();
    let watch = Stopwatch::start();
    let broker = start()?;
    let found = watch.elapsed();
    let said = depths(&broker.http)?;
    let (mut delivered, mut slowest) = (0, Duration::ZERO);
    for number in 0..topics {
        for (channel, expected) in CHANNELS.into_iter().zip([2, 1]) {
            let watch = Stopwatch::start();
            delivered += drain(&broker.tcp, &topic(number), channel, expected)?;
            slowest = slowest.max(watch.elapsed());
        }
    }
    broker.stop()?;
    // The first message of a topic went to the first channel alone, or waited for both: a topic hands on what it has
    // when it gets its first channel.
    let expected = topics as u64 * 3;
    let name = |what: &str| format!("{what}, {}", shards_in_words(shards));
    let timed = |what: &str, took: Duration, bar: u64| Figure {
        what: name(what),
        value: format!("{:.2} s (bar {bar} s)", took.as_secs_f64()),
        spread: String::new(),
        passes: took <= Duration::from_secs(bar),
        runs: json!(took.as_secs_f64()),
    };
    Ok(vec![
        timed(&format!("{topics} topics made by PUB"), made, 5),
        timed(&format!("SIGTERM with {} queues", topics * CHANNELS.len()), saved, 30),
        timed("start on them", found, 15),
        Figure {
            what: name("messages"),
            value: format!("{} lost of {expected}", expected.saturating_sub(delivered)),
            spread: format!(
                "depths before the stop {accepted}, at the first look after it {said}; the slowest channel took {} ms",
                slowest.as_millis()
            ),
            passes: delivered >= expected && said == accepted,
            runs: json!({ "expected": expected, "delivered": delivered, "depth_before": accepted, "depth_after": said }),
        },
    ])
}

/// One message to each topic, [`WINDOW`] at a time.
fn publish_to_each(address: &str, topics: usize) -> Result<()> {
    let mut client = Client::connect(address, PATIENCE)?;
    let numbers: Vec<usize> = (0..topics).collect();
    for some in numbers.chunks(WINDOW) {
        for number in some {
            client.put_pub(&topic(*number), b"x");
        }
        client.flush()?;
        for number in some {
            match client.answer()? {
                Frame::Response(_) => {}
                other => miette::bail!("PUB to {} is answered with {other:?}", topic(*number)),
            }
        }
    }
    Ok(())
}

/// How many messages of a channel come, up to `expected`.
fn drain(address: &str, topic: &str, channel: &str, expected: u64) -> Result<u64> {
    let mut client = Client::subscribe(address, topic, channel, 10, LOST_AFTER)?;
    let mut ids = BTreeSet::new();
    while (ids.len() as u64) < expected {
        match client.answer_if_any() {
            Some(Frame::Message(id, _)) => {
                client.put_fin(&id);
                client.flush()?;
                ids.insert(id);
            }
            Some(_) => {}
            None => break,
        }
    }
    Ok(ids.len() as u64)
}

/// 10,000 active topics, and somebody who looks at all of them.
pub(super) fn watched(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for shards in SHARDS {
        figures.push(watched_with(bench, shards)?);
    }
    Ok(figures)
}

/// A broker with everything that looks at it.
struct Running {
    broker: Broker,
    data: PathBuf,
    admin: String,
    console: String,
}

fn watched_with(bench: &Bench, shards: u32) -> Result<Figure> {
    let topics = bench.size(10_000, 300);
    let data = bench.folder("watched")?;
    std::fs::create_dir_all(&data).into_diagnostic()?;
    let [tcp, http_address, admin, console] = [(); 4].map(|()| super::broker::free_address());
    let (tcp, http_address, admin, console) = (tcp?, http_address?, admin?, console?);
    let config = data.join("tidegate.toml");
    let text = format!(
        "[admin]\naddress = \"{admin}\"\n[console]\naddress = \"{console}\"\n[broker]\ntcp_address = \"{tcp}\"\n\
         http_address = \"{http_address}\"\nshards = {shards}\nmem_queue_size = 1000000\ndata_path = \"{}\"\n",
        data.display()
    );
    std::fs::write(&config, text).into_diagnostic()?;
    let broker = Broker::up(bench, &config, &data, tcp)?;
    publish_to_each(&broker.tcp, topics)?;
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let running = Running { broker, data, admin, console };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| keep_busy(&running.broker.tcp, topics, &is_over, &sent));
        let mut measure = || -> Result<()> {
            for round in 0..bench.size(5, 1) {
                for watched in [round % 2 == 0, round % 2 == 1] {
                    (if watched { &mut with } else { &mut without }).push(probe(bench, &running, watched)?);
                }
            }
            Ok(())
        };
        let measured = measure();
        // Relaxed: the flag stands for itself.
        is_over.store(true, Ordering::Relaxed);
        busy.join().expect("the publisher panicked")?;
        measured
    })?;
    running.broker.stop()?;
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    let slower = median(&ratios);
    Ok(Figure {
        what: format!("{topics} topics, {}", shards_in_words(shards)),
        value: format!("{slower:.2}x: p99 {:.0} us, watched {:.0} us", median(&without), median(&with)),
        spread: format!("{} over {} rounds; {} messages beside", range(&ratios), ratios.len(), sent.into_inner()),
        passes: slower <= SLOWER_MAX,
        runs: json!({ "us_p99": without, "us_p99_watched": with, "ratios": ratios }),
    })
}

/// Messages to all topics in turn, evenly, until it is over.
fn keep_busy(address: &str, topics: usize, is_over: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let mut client = Client::connect(address, PATIENCE)?;
    let (watch, mut number) = (Stopwatch::start(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        let due = u64::from(BUSY_PER_S) * u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX) / 1_000;
        let some = number..due.min(number + 100);
        for number in some.clone() {
            let at = usize::try_from(number % topics as u64).expect("a remainder below a length");
            client.put_pub(&topic(at), b"x");
        }
        client.flush()?;
        for _ in some.clone() {
            client.answer()?;
        }
        number = some.end.max(number);
        clock::rest(Duration::from_millis(10));
    }
    sent.store(number, Ordering::Relaxed);
    Ok(())
}

/// p99 of a topic of its own, from the intended time to the consumer, in microseconds.
fn probe(bench: &Bench, running: &Running, watched: bool) -> Result<f64> {
    let Running { broker, data, admin, console } = running;
    let length = bench.size(10_000, 1_500);
    let load = format!(
        "topic=probe publishers=10 buffering=unbuffered pace.open.rate_per_s={PROBE_PER_S} duration_ms={length} \
         spin_us=60 lateness_us_p99_max=1e9"
    );
    let said = data.with_extension("probe.json");
    let report = std::fs::File::create(&said).into_diagnostic()?;
    let mut generator = Group::spawn(bench.generator(broker, &format!("run {load}")).stdout(report))?;
    // The console's page asks for its feed and keeps it open.
    let _feed = if watched { Some(Feed::open(console)?) } else { None };
    let watch = Stopwatch::start();
    let ended = loop {
        if let Some(status) = generator.wait(Duration::from_secs(1))? {
            break status;
        }
        if watch.elapsed() > PATIENCE {
            miette::bail!("the load generator did not end");
        }
        if watched {
            let answer = http::request(admin, "GET", "/metrics", b"")?;
            if answer.status != 200 {
                miette::bail!("/metrics: {}", answer.status);
            }
        }
    };
    if !ended.success() {
        miette::bail!("the load generator ended with {ended}");
    }
    let report = serde_json::from_slice(&std::fs::read(&said).into_diagnostic()?).into_diagnostic()?;
    number(&report, "/end_to_end/us_p99").wrap_err("the probe")
}

/// The console's feed, read and thrown away by a thread that ends with the connection.
struct Feed {
    stream: std::net::TcpStream,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Feed {
    fn open(console: &str) -> Result<Self> {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(console).into_diagnostic()?;
        write!(stream, "GET {FEED} HTTP/1.1\r\nHost: {console}\r\nAccept: text/event-stream\r\n\r\n")
            .into_diagnostic()?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).into_diagnostic()?;
        if !head.ends_with(b" 200") {
            miette::bail!("the console answers {FEED} with {}", String::from_utf8_lossy(&head));
        }
        let mut source = stream.try_clone().into_diagnostic()?;
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while source.read(&mut bytes).is_ok_and(|read| read > 0) {}
        });
        Ok(Self { stream, reader: Some(reader) })
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // An error means that the console has closed it already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

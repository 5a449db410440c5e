//! A witness at the sockets of a broker whose limits, topics and processes come and go.
//!
//! It publishes to several topics, consumes from three channels of each, always ready, and notes when each message came.
//! It connects again whenever a connection is closed, so it sees the broker through restarts. Beside it, threads that do
//! little but read the clock note for how long the machine ran something else. At the end everything stands in one
//! file; judging it is not done here, so that the judge shares no code with the broker.
//!
//! | channel | what it is for |
//! |---|---|
//! | `all` | no limit of its own: shows what leaves the topic |
//! | `part` | a limit of its own |
//! | `brief#ephemeral` | a limit of its own, and gone with its consumer |
//!
//! Commands come on standard input, a line each:
//!
//! | line | what |
//! |---|---|
//! | `quiet N` | stops publishing to topic N; `quiet N` is answered when no message of it is outstanding, `busy N` after 3 s |
//! | `go N` | publishes to topic N again |
//! | `brief N` | closes the consumer of the ephemeral channel of topic N, which then connects again |
//! | `end` | stops publishing, waits until nothing comes to `all` any more, writes the file and leaves |
//!
//! The file has a line for each thing seen; times are nanoseconds of the monotonic clock, N is a topic's number, C the
//! number of a channel in the table above, from 0:
//!
//! | line | what |
//! |---|---|
//! | `d,N,C,SEQUENCE,AT` | a delivery |
//! | `a,N,SEQUENCE,SENT,ANSWERED` | a publish that was answered with OK |
//! | `r,N,REFUSED` | publishes that were refused |
//! | `u,N,C,AT`, `x,N,C,AT` | the consumer is ready; it was ready for the last time |
//! | `g,FROM,TO` | the machine ran something else, or the witness was busy |
//! | `over` | the end: a file without it is torn |

mod probe;
mod record;
mod topic;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use serde::{Deserialize, Serialize};
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;

use self::probe::Probes;
use self::record::{Book, Seen};
use self::topic::Topic;
use crate::error::LoadError;
use crate::link::Scratch;
use crate::poll::{Poller, allow_open_files, prepare_thread};

/// How often due messages are written, commands are read and closed connections are opened again.
const TICK_NS: u64 = 1_000_000;
/// The witness itself counts as a gap from here on; the same for its probes.
const GAP_NS: u64 = 200_000;
/// At the end, nothing more is expected after this silence.
const SILENCE_NS: u64 = 1_500_000_000;
/// At the end, nobody waits longer.
const DRAIN_NS: u64 = 30_000_000_000;
/// `quiet` is answered at the latest after this time.
const QUIET_NS: u64 = 3_000_000_000;
/// Connections of a topic: a publisher and a consumer of each channel.
const LINKS: usize = 4;

/// What to watch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WitnessConfig {
    /// The broker's TCP address; it stays the same through restarts.
    pub address: SocketAddr,
    /// What the names of the topics begin with; their numbers follow.
    pub topic: String,
    /// Number of topics.
    pub topics: u32,
    /// Messages per second that are published to each topic while it is its turn.
    pub offered_per_s: u32,
    /// Messages of a topic that are published and not yet seen, at most.
    pub backlog_max: u64,
    /// Same seed, same turns of the topics.
    pub seed: u64,
    /// The file.
    pub out: PathBuf,
    /// The CPU of the witness.
    pub cpu: Option<u32>,
    /// CPUs that are probed for gaps.
    pub probes: Vec<u32>,
}

impl Default for WitnessConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 4150)),
            topic: "law".into(),
            topics: 16,
            offered_per_s: 750,
            backlog_max: 300,
            seed: 1,
            out: "witness.csv".into(),
            cpu: None,
            probes: Vec::new(),
        }
    }
}

/// What was seen, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WitnessReport {
    /// Deliveries over all channels.
    pub delivered: u64,
    /// Publishes answered with OK.
    pub accepted: u64,
    /// Publishes answered with an error.
    pub refused: u64,
    /// Gaps that were noted.
    pub gaps: u64,
    /// Things that were not noted, since there was no more room: the file is worth nothing then.
    pub left_out: u64,
}

/// Watches until standard input says `end` or ends.
///
/// # Errors
/// [`LoadError`] if the first connections fail, or the file cannot be written.
pub fn run(config: &WitnessConfig) -> Result<WitnessReport, LoadError> {
    let is_load = config.topics > 0 && config.offered_per_s > 0;
    if !is_load {
        return Err(LoadError::Config { key: "topics", value: config.topics.to_string(), expected: "at least 1" });
    }
    allow_open_files(config.topics as usize * LINKS)?;
    let probes = Probes::start(&config.probes)?;
    prepare_thread(config.cpu)?;
    let mut witness = Witness::new(config)?;
    witness.watch(&commands())?;
    let Witness { mut book, topics, .. } = witness;
    for gap in probes.stop()? {
        book.note(gap);
    }
    let refused = topics.iter().map(Topic::refused);
    book.write(&config.out, refused).map_err(LoadError::os("write what was seen"))?;
    Ok(WitnessReport { refused: topics.iter().map(Topic::refused).sum(), ..book.report() })
}

/// Lines of standard input; the sender is gone when it ends.
fn commands() -> Receiver<String> {
    let (heard, commands) = mpsc::sync_channel(64);
    // It ends with the process: nothing can wake it from its read.
    std::thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| heard.send(line)));
    commands
}

#[derive(Debug)]
struct Witness {
    poller: Poller,
    topics: Vec<Topic>,
    book: Book,
    scratch: Scratch,
    /// `quiet` was asked of a topic, and when to give up.
    asked: Vec<(usize, Instant)>,
    last_arrival: Instant,
    ending: Option<Instant>,
}

impl Witness {
    fn new(config: &WitnessConfig) -> Result<Self, LoadError> {
        let mut rng = Rng::new(config.seed);
        let now = clock::now();
        let topics = (0..config.topics).map(|number| Topic::new(config, number, rng.split(), now)).collect();
        Ok(Self {
            poller: Poller::new()?,
            topics,
            book: Book::new(),
            scratch: Scratch::new(),
            asked: Vec::new(),
            last_arrival: now,
            ending: None,
        })
    }

    fn watch(&mut self, commands: &Receiver<String>) -> Result<(), LoadError> {
        let (mut due, mut before) = (clock::now(), clock::now());
        loop {
            self.poller.wait(due, 0)?;
            let woke = clock::now();
            if woke.nanos_since(due) > GAP_NS {
                self.book.note(Seen::Gap { from: due, to: woke });
            }
            self.read(before)?;
            if woke >= due {
                self.tick(commands, woke)?;
                due = woke.plus_nanos(TICK_NS);
            }
            let now = clock::now();
            if now.nanos_since(woke) > GAP_NS {
                self.book.note(Seen::Gap { from: woke, to: now });
            }
            if self.is_over(now) {
                return Ok(());
            }
            before = woke;
        }
    }

    /// Reads what came; a connection that is closed was good `before`.
    fn read(&mut self, before: Instant) -> Result<(), LoadError> {
        for index in 0.. {
            let Some(ready) = self.poller.ready(index) else { break };
            let token = usize::try_from(ready.token).expect("a token of ours");
            let topic = &mut self.topics[token / LINKS];
            if let Some(at) = topic.read(token % LINKS, &mut self.scratch, &mut self.book)? {
                self.last_arrival = self.last_arrival.max(at);
            }
            topic.forget_closed(token % LINKS, &self.poller, before, &mut self.book)?;
        }
        Ok(())
    }

    fn tick(&mut self, commands: &Receiver<String>, now: Instant) -> Result<(), LoadError> {
        loop {
            match commands.try_recv() {
                Ok(line) => self.obey(&line, now)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.end(now);
                    break;
                }
            }
        }
        // One failure is enough to know that the broker is away: others are tried at the next tick.
        let mut is_away = false;
        for topic in &mut self.topics {
            is_away = is_away || !topic.connect(&self.poller, &mut self.book);
            topic.publish(now);
            topic.flush(&self.poller, now, &mut self.book)?;
        }
        let topics = &self.topics;
        self.asked.retain(|&(number, until)| {
            let answer = if topics[number].is_drained(now) {
                "quiet"
            } else if now >= until {
                "busy"
            } else {
                return true;
            };
            say(answer, number);
            false
        });
        Ok(())
    }

    fn obey(&mut self, line: &str, now: Instant) -> Result<(), LoadError> {
        let wrong =
            || LoadError::Config { key: "command", value: line.to_owned(), expected: "quiet N, go N, brief N or end" };
        if line == "end" {
            self.end(now);
            return Ok(());
        }
        let (verb, number) = line.split_once(' ').ok_or_else(wrong)?;
        let number: usize = number.parse().map_err(|_| wrong())?;
        let topic = self.topics.get_mut(number).ok_or_else(wrong)?;
        match verb {
            "quiet" => {
                topic.pause();
                self.asked.push((number, now.plus_nanos(QUIET_NS)));
            }
            "go" => topic.resume(now),
            "brief" => topic.close_brief(&self.poller, &mut self.book)?,
            _ => return Err(wrong()),
        }
        Ok(())
    }

    fn end(&mut self, now: Instant) {
        self.topics.iter_mut().for_each(Topic::pause);
        self.ending.get_or_insert(now);
    }

    fn is_over(&self, now: Instant) -> bool {
        self.ending.is_some_and(|since| {
            let silent_since = self.last_arrival.max(since);
            now.nanos_since(silent_since) > SILENCE_NS || now.nanos_since(since) > DRAIN_NS
        })
    }
}

fn say(answer: &str, number: usize) {
    let mut out = io::stdout().lock();
    // The operator that asked may have left meanwhile; then standard input ends too.
    let _ = writeln!(out, "{answer} {number}").and_then(|()| out.flush());
}

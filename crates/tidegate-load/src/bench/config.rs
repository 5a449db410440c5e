//! What a run is.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_core::Rate;
use tidegate_wire::nsq::{ChannelName, TopicName};

use crate::arrivals::{Process, Shape};
use crate::error::LoadError;
use crate::ledger::Manifest;
use crate::link::Buffering;
use crate::stamp::STAMP_BYTES;

/// One run against one broker. Every key has a default; times are in the unit that ends the key's name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BenchConfig {
    /// The broker's TCP address.
    pub address: SocketAddr,
    /// Where to publish and subscribe.
    pub topic: String,
    /// The consumers' channel.
    pub channel: String,
    /// Same seed, same intended times.
    pub seed: u64,

    /// Publishing connections; 0 only consumes.
    pub publishers: u32,
    /// Open or closed loop.
    pub pace: Pace,
    /// How a batch is written.
    pub command: Command,
    /// Messages that arrive at once and, for MPUB, share a command.
    pub batch: u32,
    /// Bytes of a message, at least 32: the stamp that says who sent it when. 100 by default: a
    /// sensor's reading with its names.
    pub payload_bytes: usize,

    /// Consuming connections; 0 only publishes.
    pub consumers: u32,
    /// Messages in flight for each consumer; nsqd's largest by default.
    pub rdy: u32,
    /// What consumers let the broker buffer.
    pub buffering: Buffering,
    /// What consumers do with a message.
    pub action: Action,
    /// The time-out consumers negotiate; 0 leaves the broker's own.
    pub msg_timeout_ms: u32,

    /// Load before the measured window, with the same process.
    pub warm_up_ms: u64,
    /// The measured window.
    pub duration_ms: u64,
    /// After the window, how long to wait for what is outstanding; what comes later is lost.
    pub drain_ms: u64,

    /// Publishers and consumers in one thread, or in one each.
    pub threads: Threads,
    /// CPUs to bind the threads to, publishers' first; none leaves it to the kernel.
    pub cpus: Vec<u32>,
    /// The generator's niceness, -20 to 19: below 0, which takes privileges, it gets a contended CPU first.
    pub nice: i32,
    /// Busy waiting before each intended time; buys punctuality with CPU.
    pub spin_us: u64,
    /// The broker's process, for its CPU time and memory.
    pub pid: Option<u32>,

    /// A generator later than this at p99 makes the run invalid.
    pub lateness_us_p99_max: f64,
    /// A limit that the deliveries of the whole run are held to.
    pub release: Option<ReleaseConfig>,
    /// A limit on this topic alone, by which each message's release is checked; its `slack_us` is not used. The broker
    /// must stamp messages with their arrival, as Tidegate does.
    pub access: Option<ReleaseConfig>,
    /// A file for when each message was sent and when it came for the first time: a line `SENT,CAME` each, in nanoseconds
    /// of the monotonic clock, and `over` at the end.
    pub deliveries: Option<PathBuf>,
    /// What an earlier run published and this one is to find.
    pub expect: Option<Manifest>,
    /// Report what was published, for a later run's `expect`.
    pub manifest: bool,
    /// Go on without connections that the broker closes, as it does when it is stopped.
    pub tolerate_disconnect: bool,
}

impl Default for BenchConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 4150)),
            topic: "bench".into(),
            channel: "bench".into(),
            seed: 1,
            publishers: 1_000,
            pace: Pace::default(),
            command: Command::Pub,
            batch: 1,
            payload_bytes: 100,
            consumers: 1,
            rdy: 2_500,
            buffering: Buffering::Default,
            action: Action::Finish,
            msg_timeout_ms: 0,
            warm_up_ms: 1_000,
            duration_ms: 10_000,
            drain_ms: 10_000,
            threads: Threads::One,
            cpus: Vec::new(),
            nice: 0,
            spin_us: 0,
            pid: None,
            lateness_us_p99_max: 100.0,
            release: None,
            access: None,
            deliveries: None,
            expect: None,
            manifest: false,
            tolerate_disconnect: false,
        }
    }
}

/// When to send.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pace {
    /// Open loop: at intended times that do not depend on the broker. Nothing is skipped; what is late is sent at once.
    Open {
        /// How arrivals follow each other.
        #[serde(default)]
        process: Process,
        /// Messages per second of all publishers together.
        rate_per_s: f64,
    },
    /// Closed loop, as fast as it goes: for messages per CPU second only. Its delays say nothing about a service.
    Saturate {
        /// Commands that each publisher may have unanswered.
        window: u32,
        /// Messages that may be published and not yet delivered: half of nsqd's memory queue, so that it does not
        /// overflow to disk.
        #[serde(default = "half_a_memory_queue")]
        backlog_max: u64,
    },
}

fn half_a_memory_queue() -> u64 {
    5_000
}

impl Default for Pace {
    fn default() -> Self {
        Self::Open { process: Process::Poisson, rate_per_s: 10_000.0 }
    }
}

/// How a batch is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// One PUB for each message, without waiting for answers.
    Pub,
    /// One PUB for each message, each after the answer to the one before.
    PubWait,
    /// One MPUB for each batch.
    Mpub,
    /// One DPUB for each message; the lateness of its delivery is measured.
    Dpub {
        /// Asked for.
        delay_ms: u64,
    },
}

/// What a consumer does with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// FIN.
    Finish,
    /// Nothing, ever: messages stay in flight.
    Hold,
    /// REQ the first time, FIN the second; the lateness of the second is measured.
    Requeue {
        /// Asked for.
        delay_ms: u64,
    },
    /// Nothing the first time, FIN the second; the lateness of the second is measured against `msg_timeout_ms`.
    TimeOut,
}

/// Threads of the generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threads {
    /// Publishers and consumers share one.
    One,
    /// One each.
    Two,
}

/// A limit as an observer checks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseConfig {
    /// Messages per second.
    pub rate_per_s: u64,
    /// Messages at once.
    pub burst: u64,
    /// What the observation may be late by.
    #[serde(default)]
    pub slack_us: u64,
}

impl ReleaseConfig {
    pub(crate) fn rate(self) -> Rate {
        Rate::per_s(self.rate_per_s)
    }
}

impl BenchConfig {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// [`LoadError::Config`] for the first key that describes no load.
    pub fn check(&self) -> Result<(), LoadError> {
        let require = |holds: bool, key, value: &dyn ToString, expected| {
            if holds { Ok(()) } else { Err(LoadError::Config { key, value: value.to_string(), expected }) }
        };
        let names = "1 to 64 of the characters . a-z A-Z 0-9 _ -, optionally ending in #ephemeral";
        require(TopicName::new(&self.topic).is_ok(), "topic", &self.topic, names)?;
        require(ChannelName::new(&self.channel).is_ok(), "channel", &self.channel, names)?;
        require(self.publishers + self.consumers > 0, "publishers", &0, "at least one publisher or consumer")?;
        let bodies = STAMP_BYTES..=1 << 20;
        require(bodies.contains(&self.payload_bytes), "payload_bytes", &self.payload_bytes, "32 to 1048576")?;
        require((1..=10_000).contains(&self.batch), "batch", &self.batch, "1 to 10000")?;
        require(self.duration_ms > 0, "duration_ms", &self.duration_ms, "at least 1")?;
        match self.pace {
            Pace::Open { rate_per_s, .. } => {
                let is_rate = rate_per_s.is_finite() && rate_per_s > 0.0;
                require(is_rate || self.publishers == 0, "rate_per_s", &rate_per_s, "a positive number")?;
            }
            Pace::Saturate { window, backlog_max } => {
                require(window > 0, "window", &window, "at least 1")?;
                let fits = backlog_max >= u64::from(self.batch);
                require(fits, "backlog_max", &backlog_max, "at least `batch`")?;
            }
        }
        let is_reader = self.expect.is_none() || (self.publishers == 0 && self.consumers > 0);
        require(is_reader, "expect", &"a manifest", "a run of consumers only")?;
        if self.action == Action::TimeOut {
            require(self.msg_timeout_ms > 0, "msg_timeout_ms", &0, "a time-out to measure against, in ms")?;
        }
        for (limit, key) in [(self.release, "release.rate_per_s"), (self.access, "access.rate_per_s")] {
            require(limit.is_none_or(|limit| limit.rate_per_s > 0), key, &0, "at least 1")?;
        }
        let has_cpus = self.cpus.is_empty() || self.cpus.len() >= self.thread_count();
        require(has_cpus, "cpus", &format!("{:?}", self.cpus), "none, or one for each thread")
    }

    pub(crate) fn thread_count(&self) -> usize {
        if self.threads == Threads::Two && self.publishers > 0 && self.consumers > 0 { 2 } else { 1 }
    }

    /// The arrivals of an open loop; `None` for a closed one, or without publishers.
    pub(crate) fn shape(&self) -> Option<Shape> {
        match self.pace {
            Pace::Open { process, rate_per_s } if self.publishers > 0 => {
                Some(Shape { process, rate_per_s, batch: self.batch, publishers: self.publishers })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_load_and_survives_json() {
        let config = BenchConfig::default();
        config.check().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<BenchConfig>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<BenchConfig>("{}").unwrap(), config);
        assert!(serde_json::from_str::<BenchConfig>(r#"{"ratio":1}"#).is_err());
    }

    #[test]
    fn what_is_no_load_is_refused_by_its_key() {
        let refused = |change: fn(&mut BenchConfig)| {
            let mut config = BenchConfig::default();
            change(&mut config);
            match config.check() {
                Err(LoadError::Config { key, .. }) => key,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(|c| c.topic = "a b".into()), "topic");
        assert_eq!(refused(|c| c.payload_bytes = 31), "payload_bytes");
        assert_eq!(refused(|c| (c.publishers, c.consumers) = (0, 0)), "publishers");
        assert_eq!(refused(|c| c.pace = Pace::Open { process: Process::Poisson, rate_per_s: f64::NAN }), "rate_per_s");
        assert_eq!(refused(|c| c.pace = Pace::Saturate { window: 0, backlog_max: 1 }), "window");
        assert_eq!(refused(|c| c.action = Action::TimeOut), "msg_timeout_ms");
        assert_eq!(refused(|c| c.expect = Some(Manifest::default())), "expect");
        assert_eq!(refused(|c| (c.threads, c.cpus) = (Threads::Two, vec![1])), "cpus");
    }
}

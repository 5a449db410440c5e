//! What an idle connection costs a broker.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::client;

use crate::error::LoadError;
use crate::link::{Buffering, Heard, Identify, Link, Scratch, Subscription};
use crate::poll::{Poller, allow_open_files};
use crate::target::Memory;

const MS_NS: u64 = 1_000_000;

/// What to open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdleConfig {
    /// The broker's TCP address.
    pub address: SocketAddr,
    /// The broker's process.
    pub pid: u32,
    /// Connections that stay open and say nothing but heartbeats.
    pub connections: u32,
    /// How far each goes before it falls silent.
    pub stage: Stage,
    /// For subscribers.
    pub topic: String,
    /// For subscribers.
    pub channel: String,
    /// What a subscriber lets the broker buffer.
    pub buffering: Buffering,
    /// From the last connection to the second reading.
    pub settle_ms: u64,
}

/// How far a connection goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The magic only.
    Plain,
    /// IDENTIFY, as a publisher that has nothing to say.
    Identified,
    /// IDENTIFY, SUB and RDY 1, as a consumer of a topic in which nothing happens.
    Subscribed,
}

impl Default for IdleConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 4150)),
            pid: 0,
            connections: 10_000,
            stage: Stage::Identified,
            topic: "idle".into(),
            channel: "idle".into(),
            buffering: Buffering::Default,
            settle_ms: 3_000,
        }
    }
}

/// What they cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdleReport {
    /// What was opened.
    pub config: IdleConfig,
    /// Before the first connection.
    pub before: Memory,
    /// With all of them, settled.
    pub after: Memory,
    /// Growth of the resident set for each connection.
    pub rss_bytes_per_connection: f64,
    /// Growth of the proportional set for each connection.
    pub pss_bytes_per_connection: f64,
    /// Connections that the broker closed meanwhile.
    pub closed: u32,
}

/// Opens the connections, lets the broker settle, and reads its memory before and after.
///
/// # Errors
/// [`LoadError`] if a connection fails or the process cannot be read.
pub fn measure(config: &IdleConfig) -> Result<IdleReport, LoadError> {
    if config.connections == 0 {
        return Err(LoadError::Config { key: "connections", value: "0".into(), expected: "at least 1" });
    }
    allow_open_files(config.connections as usize)?;
    let before = Memory::of(config.pid)?;
    let mut poller = Poller::new()?;
    let mut links = Vec::with_capacity(config.connections as usize);
    let identify = Identify::new(config.buffering, 0);
    let subscription = Subscription { topic: &config.topic, channel: &config.channel };
    for token in 0..u64::from(config.connections) {
        let identify = (config.stage != Stage::Plain).then_some(&identify);
        let mut link =
            Link::open(config.address, identify, (config.stage == Stage::Subscribed).then_some(subscription))?;
        if config.stage == Stage::Subscribed {
            client::put_rdy(link.out(), 1);
            link.flush().map_err(LoadError::os("write to the broker"))?;
        }
        poller.add(&link, token).map_err(LoadError::os("watch a socket"))?;
        links.push(Some(link));
    }
    let closed = keep_alive(&mut poller, &mut links, clock::now().plus_nanos(config.settle_ms * MS_NS))?;
    let after = Memory::of(config.pid)?;
    let per_connection = |before: u64, after: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let growth = after as f64 - before as f64;
        growth / f64::from(config.connections)
    };
    Ok(IdleReport {
        config: config.clone(),
        before,
        after,
        rss_bytes_per_connection: per_connection(before.rss_bytes, after.rss_bytes),
        pss_bytes_per_connection: per_connection(before.pss_bytes, after.pss_bytes),
        closed,
    })
}

/// Answers heartbeats until `until`; returns how many connections the broker closed.
fn keep_alive(poller: &mut Poller, links: &mut [Option<Link>], until: Instant) -> Result<u32, LoadError> {
    let (mut scratch, mut closed) = (Scratch::new(), 0);
    while clock::now() < until {
        poller.wait(until, 0)?;
        for index in 0.. {
            let Some(ready) = poller.ready(index) else { break };
            let slot = &mut links[usize::try_from(ready.token).expect("a token of ours")];
            let Some(link) = slot else { continue };
            // A heartbeat's answer is four bytes into an empty socket buffer: it is sent, or the connection is dead.
            if link.read(&mut scratch, |_, _| {})? == Heard::Closed || link.flush().is_err() {
                poller.remove(&*link).map_err(LoadError::os("forget a socket"))?;
                *slot = None;
                closed += 1;
            }
        }
    }
    Ok(closed)
}

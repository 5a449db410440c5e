//! Registration with nsqlookupds.
//!
//! One task follows what the broker has; one task for each nsqlookupd makes that daemon know the same. The latter
//! compare what they registered with what there is, so that nothing queues up while a daemon is away, and a new
//! connection registers everything.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_wire::nsq::{ChannelName, TopicName};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::handle::{BrokerHandle, Notice};
use super::http::client::HttpClient;
use super::http::query::escape;
use crate::machine::admin::AdminRequest;

/// What nsqlookupd tells consumers and tools about this broker. It wants all of it.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// The host to connect to.
    pub broadcast_address: String,
    /// The port of the NSQ protocol.
    pub tcp_port: u16,
    /// The port of nsqd's HTTP API.
    pub http_port: u16,
    /// The host's name.
    pub hostname: String,
    /// A semantic version.
    pub version: String,
}

/// How patient to be.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a connection, and for each answer.
    pub answer: Duration,
    /// Between two signs of life.
    pub ping: Duration,
    /// Before the second attempt to connect; doubled before each further one.
    pub first_retry: Duration,
    /// At most between two attempts.
    pub last_retry: Duration,
    /// A new topic waits so long for its turn to be asked for; then it starts with no more channels than it has.
    pub start: Duration,
}

impl Default for Patience {
    /// nsqd's times.
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(1),
            ping: Duration::from_secs(15),
            first_retry: Duration::from_millis(100),
            last_retry: Duration::from_secs(15),
            // As long as nsqd's client waits for one answer, by default.
            start: Duration::from_secs(5),
        }
    }
}

/// Topics whose channels are asked for at a time.
const QUESTIONS: usize = 32;
/// Commands that are sent before their answers are read.
const PIPELINE: usize = 64;
/// Largest answer of an nsqlookupd: a hundred thousand channels' names of a topic are less.
const MOST_ANSWER_BYTES: usize = 8 << 20;

/// A topic, or a channel of one. A topic sorts before its channels.
type Registration = (TopicName, Option<ChannelName>);

/// Tells nsqlookupds what the broker has.
#[derive(Clone, Debug)]
pub struct Lookupd {
    wanted: watch::Sender<BTreeSet<Registration>>,
    new_topics: Arc<Mutex<NewTopics>>,
    /// Has the task look at them; ends it when the last one is dropped.
    wake: mpsc::Sender<()>,
}

/// Topics that wait to be started, in order of their creation. Each is there once and goes when it is deleted, so there
/// are never more of them than topics.
#[derive(Default, Debug)]
struct NewTopics {
    next: u64,
    numbers: BTreeMap<TopicName, u64>,
    in_order: BTreeMap<u64, (TopicName, Instant)>,
}

impl NewTopics {
    fn add(&mut self, topic: TopicName, now: Instant) {
        if let Entry::Vacant(vacant) = self.numbers.entry(topic.clone()) {
            vacant.insert(self.next);
            self.in_order.insert(self.next, (topic, now));
            self.next += 1;
        }
    }

    fn remove(&mut self, topic: &TopicName) {
        if let Some(number) = self.numbers.remove(topic) {
            self.in_order.remove(&number);
        }
    }

    /// The topic that waits longest, and since when.
    fn pop(&mut self) -> Option<(TopicName, Instant)> {
        let (_, first) = self.in_order.pop_first()?;
        self.numbers.remove(&first.0);
        Some(first)
    }
}

impl Lookupd {
    /// Keeps the nsqlookupds at `addresses`, which may change, up to date until the last handle is dropped, which ends
    /// the task. `http` asks them for the channels of new topics.
    #[must_use]
    pub fn start(
        identity: Identity,
        patience: Patience,
        http: HttpClient,
        broker: BrokerHandle,
        addresses: watch::Receiver<Vec<String>>,
    ) -> (Self, JoinHandle<()>) {
        let wanted = watch::Sender::new(BTreeSet::new());
        let new_topics = Arc::<Mutex<NewTopics>>::default();
        // One wake-up is enough for all that is new.
        let (wake, woken) = mpsc::channel(1);
        let directory = Directory {
            identity,
            patience,
            http,
            broker,
            wanted: wanted.clone(),
            peers: BTreeMap::new(),
            new_topics: new_topics.clone(),
            late: false,
        };
        (Self { wanted, new_topics, wake }, tokio::spawn(directory.run(woken, addresses)))
    }

    /// Takes note of what a shard said, and waits for nobody. Every new topic is started, with the channels that some
    /// nsqlookupd knows.
    pub fn observe(&self, notice: &Notice) {
        match notice.clone() {
            Notice::TopicCreated(topic) => {
                self.wanted.send_if_modified(|wanted| wanted.insert((topic.clone(), None)));
                lock(&self.new_topics).add(topic, clock::now());
                // If there is no room, the task is about to look.
                self.wake.try_send(()).ok();
            }
            Notice::ChannelCreated(topic, channel) => {
                self.wanted.send_if_modified(|wanted| wanted.insert((topic, Some(channel))));
            }
            Notice::ChannelDeleted(topic, channel) => {
                self.wanted.send_if_modified(|wanted| wanted.remove(&(topic, Some(channel))));
            }
            Notice::TopicDeleted(topic) => {
                lock(&self.new_topics).remove(&topic);
                self.wanted.send_modify(|wanted| wanted.retain(|(name, _)| *name != topic));
            }
            Notice::PauseChanged(..) => {}
        }
    }
}

fn lock(topics: &Mutex<NewTopics>) -> MutexGuard<'_, NewTopics> {
    // Nothing in it panics half-way.
    topics.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The task that owns all others.
struct Directory {
    identity: Identity,
    patience: Patience,
    http: HttpClient,
    broker: BrokerHandle,
    wanted: watch::Sender<BTreeSet<Registration>>,
    peers: BTreeMap<String, Peer>,
    new_topics: Arc<Mutex<NewTopics>>,
    /// The last topic had waited too long to be asked for.
    late: bool,
}

struct Peer {
    task: AbortHandle,
    /// `host:port` of the daemon's HTTP API, while it is connected.
    http: watch::Receiver<Option<String>>,
}

impl Directory {
    async fn run(mut self, mut woken: mpsc::Receiver<()>, mut addresses: watch::Receiver<Vec<String>>) {
        // Dropping the sets ends what runs in them.
        let mut connections = JoinSet::new();
        let mut questions = JoinSet::new();
        let mut addresses_follow = true;
        self.connect(&addresses.borrow_and_update(), &mut connections);
        loop {
            while questions.len() < QUESTIONS
                && let Some(topic) = self.next_topic()
            {
                questions.spawn(self.start_topic(topic));
            }
            tokio::select! {
                changed = addresses.changed(), if addresses_follow => {
                    addresses_follow = changed.is_ok();
                    self.connect(&addresses.borrow_and_update(), &mut connections);
                }
                woken = woken.recv() => if woken.is_none() {
                    return;
                },
                Some(_) = questions.join_next() => {}
                Some(_) = connections.join_next() => {}
            }
        }
    }

    fn next_topic(&self) -> Option<(TopicName, Instant)> {
        lock(&self.new_topics).pop()
    }

    fn connect(&mut self, addresses: &[String], connections: &mut JoinSet<()>) {
        self.peers.retain(|address, peer| {
            let keep = addresses.contains(address);
            if !keep {
                tracing::info!(%address, "nsqlookupd removed");
                peer.task.abort();
            }
            keep
        });
        for address in addresses {
            if !self.peers.contains_key(address) {
                tracing::info!(%address, "nsqlookupd added");
                let (http_sender, http) = watch::channel(None);
                let link = Link {
                    address: address.clone(),
                    identity: self.identity.clone(),
                    patience: self.patience,
                    wanted: self.wanted.subscribe(),
                    http: http_sender,
                };
                let task = connections.spawn(link.run());
                self.peers.insert(address.clone(), Peer { task, http });
            }
        }
    }

    /// Asks every connected nsqlookupd for the topic's channels, so that they get its first message too, and starts it.
    /// Slow daemons do not hold topics up for longer than the patience says.
    fn start_topic(&mut self, (topic, since): (TopicName, Instant)) -> impl Future<Output = ()> + Send + use<> {
        let mut daemons: Vec<String> = self.peers.values().filter_map(|peer| peer.http.borrow().clone()).collect();
        let late = clock::now() - since >= self.patience.start && !daemons.is_empty();
        if late {
            daemons.clear();
            if !self.late {
                tracing::warn!(%topic, "nsqlookupds answer slowly; new topics start without the channels known there");
            }
        }
        self.late = late;
        let (http, broker) = (self.http.clone(), self.broker.clone());
        async move {
            let mut asking = JoinSet::new();
            for daemon in daemons {
                asking.spawn(channels_of(http.clone(), daemon, topic.clone()));
            }
            // The client's own patience bounds each question.
            let channels: BTreeSet<ChannelName> = asking.join_all().await.into_iter().flatten().collect();
            let request = AdminRequest::StartTopic(topic.clone(), channels.into_iter().collect());
            broker.ask_topic(&topic, request).await;
        }
    }
}

/// The channels of `topic` that the nsqlookupd at `daemon` knows, but for ephemeral ones, which nobody has here yet.
async fn channels_of(http: HttpClient, daemon: String, topic: TopicName) -> Vec<ChannelName> {
    #[derive(Deserialize)]
    struct Channels {
        channels: Option<Vec<String>>,
    }
    let address = format!("http://{daemon}/channels?topic={}", escape(topic.as_str().as_bytes()));
    let answer = match http.get(&address, MOST_ANSWER_BYTES).await {
        Ok(answer) => answer,
        Err(error) => {
            // It may just not know the topic.
            tracing::debug!(%daemon, %topic, %error, "nsqlookupd names no channels");
            return Vec::new();
        }
    };
    let channels = serde_json::from_slice::<Channels>(&answer).ok().and_then(|answer| answer.channels);
    let names = channels.unwrap_or_default().into_iter().filter_map(|name| ChannelName::new(&name).ok());
    names.filter(|name| !name.is_ephemeral()).collect()
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum LinkError {
    #[error("connection failed")]
    Io(#[from] io::Error),
    #[error("no answer in time")]
    TimedOut(#[from] tokio::time::error::Elapsed),
    #[error("answer of {announced} bytes exceeds the limit of {limit}")]
    TooLarge { announced: u32, limit: usize },
    #[error("{bytes} bytes that nobody asked for")]
    Unasked { bytes: usize },
    #[error("IDENTIFY answered with {answer:?}")]
    NotIdentified { answer: String },
}

/// The task for one nsqlookupd.
struct Link {
    address: String,
    identity: Identity,
    patience: Patience,
    wanted: watch::Receiver<BTreeSet<Registration>>,
    http: watch::Sender<Option<String>>,
}

impl Link {
    async fn run(mut self) {
        let mut retry = self.patience.first_retry;
        loop {
            let error = match self.connect().await {
                Ok(connection) => {
                    retry = self.patience.first_retry;
                    self.serve(connection).await
                }
                Err(error) => error,
            };
            self.http.send_replace(None);
            tracing::warn!(address = %self.address, %error, "nsqlookupd is not reached");
            sleep(retry).await;
            retry = (retry * 2).min(self.patience.last_retry);
        }
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        #[derive(Deserialize)]
        struct Daemon {
            #[serde(default)]
            broadcast_address: String,
            #[serde(default)]
            http_port: u16,
        }
        let stream = timeout(self.patience.answer, TcpStream::connect(&self.address)).await??;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream: BufReader::new(stream), patience: self.patience.answer };
        let identity = serde_json::to_vec(&self.identity).expect("strings and numbers are JSON");
        let length = u32::try_from(identity.len()).expect("an identity is short");
        connection.send(&[b"  V1IDENTIFY\n", &length.to_be_bytes()[..], &identity].concat()).await?;
        let answer = connection.answer().await?;
        let daemon: Daemon = serde_json::from_slice(&answer)
            .map_err(|_| LinkError::NotIdentified { answer: String::from_utf8_lossy(&answer).into_owned() })?;
        if daemon.broadcast_address.is_empty() {
            tracing::warn!(address = %self.address, "nsqlookupd does not say where its HTTP API is");
        } else {
            let host = daemon.broadcast_address;
            let bare_ipv6 = host.contains(':') && !host.starts_with('[');
            let host = if bare_ipv6 { format!("[{host}]") } else { host };
            self.http.send_replace(Some(format!("{host}:{}", daemon.http_port)));
        }
        tracing::info!(address = %self.address, "registered with nsqlookupd");
        Ok(connection)
    }

    /// Registers everything, then every change, and pings, until something fails.
    async fn serve(&mut self, mut connection: Connection) -> LinkError {
        let mut registered = BTreeSet::new();
        let mut ping = interval(self.patience.ping);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        self.wanted.mark_changed();
        loop {
            let done = tokio::select! {
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.register(&mut registered, &mut connection).await,
                    // The broker is going; the daemon notices by the connection.
                    Err(_) => std::future::pending().await,
                },
                _ = ping.tick() => connection.command("PING\n").await,
                error = connection.closed() => Err(error),
            };
            if let Err(error) = done {
                return error;
            }
        }
    }

    async fn register(
        &mut self,
        registered: &mut BTreeSet<Registration>,
        connection: &mut Connection,
    ) -> Result<(), LinkError> {
        let wanted = self.wanted.borrow_and_update().clone();
        let mut lines: Vec<String> = registered.difference(&wanted).map(|gone| line("UNREGISTER", gone)).collect();
        // Channels before their topic: the daemon forgets the channels of a topic that goes.
        lines.reverse();
        lines.extend(wanted.difference(registered).map(|new| line("REGISTER", new)));
        for batch in lines.chunks(PIPELINE) {
            connection.send(batch.concat().as_bytes()).await?;
            for line in batch {
                connection.expect_ok(line).await?;
            }
        }
        *registered = wanted;
        Ok(())
    }
}

fn line(verb: &str, (topic, channel): &Registration) -> String {
    match channel {
        Some(channel) => format!("{verb} {topic} {channel}\n"),
        None => format!("{verb} {topic}\n"),
    }
}

/// A connection on which every command has an answer.
struct Connection {
    stream: BufReader<TcpStream>,
    patience: Duration,
}

impl Connection {
    async fn command(&mut self, line: &str) -> Result<(), LinkError> {
        self.send(line.as_bytes()).await?;
        self.expect_ok(line).await
    }

    /// Waits until the daemon closes. Between commands it has nothing to say.
    async fn closed(&mut self) -> LinkError {
        match self.stream.fill_buf().await {
            Ok([]) => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
            Ok(unasked) => LinkError::Unasked { bytes: unasked.len() },
            Err(error) => error.into(),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        Ok(timeout(self.patience, self.stream.write_all(bytes)).await??)
    }

    async fn expect_ok(&mut self, line: &str) -> Result<(), LinkError> {
        let answer = self.answer().await?;
        if answer != b"OK" {
            // Errors that matter end the connection, and the next one registers everything again.
            let answer = String::from_utf8_lossy(&answer);
            tracing::warn!(command = line.trim_end(), %answer, "nsqlookupd refuses");
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<Vec<u8>, LinkError> {
        let patience = self.patience;
        let read = async {
            let announced = self.stream.read_u32().await?;
            let length = announced as usize;
            if length > MOST_ANSWER_BYTES {
                return Err(LinkError::TooLarge { announced, limit: MOST_ANSWER_BYTES });
            }
            let mut answer = vec![0; length];
            self.stream.read_exact(&mut answer).await?;
            Ok(answer)
        };
        timeout(patience, read).await?
    }
}

#[cfg(test)]
mod tests;

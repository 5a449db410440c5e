//! A running broker: its threads, and how it is started and stopped.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use tidegate_core::Instant;
use tidegate_runtime::{clock, process};
use tidegate_wire::nsq::{ChannelName, TopicName};
use tokio::runtime;
use tokio::sync::{mpsc, watch};

use super::adoption::adopt;
use super::auth_client::{Applicant, AuthClient};
use super::buckets::{self, BootTime, Kept};
use super::disk_queue::{Listing, SystemFiles};
use super::disk_thread::{DiskHandle, DiskThread, DiskThreadOptions};
use super::handle::{BrokerHandle, Notice};
use super::http::NSQD_VERSION;
use super::http::client::HttpClient;
use super::kept_parts::{self, PartsKeeper};
use super::lend_boot::next_boot;
use super::lend_socket::{self, LendError, LendSocket};
use super::listener::Listener;
use super::mailbox::{Inbound, ShardMailbox};
use super::metadata::{DataLock, Metadata, MetadataError};
use super::names::{NamesHandle, NamesKeeper, StartingNames, pause};
use super::shard_thread::{self, Authentication, End, Parts, Surroundings, Waiting};
use super::trace::TraceWriter;
use crate::config::{self, Address, Config};
use crate::machine::admin::AdminRequest;
use crate::machine::contracts::KeptBucket;
use crate::machine::host_of;
use crate::machine::limiter::{Contract, Source};
use crate::machine::log::{LogCommand, LogEvent};
use crate::machine::parts::KeptPart;
use crate::machine::shard::{OutputBuffer, QueuePolicy, Shard, ShardConfig};
use crate::machine::trace::Traced;

/// Half of nsqd's client time-out, which has no flag.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// nsqd's deadline for a TLS handshake, which has no flag either.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// A contract that is in force from the start.
#[derive(Clone, Debug)]
pub struct StartingLimit {
    /// Of this topic,
    pub topic: TopicName,
    /// or of this channel of it.
    pub channel: Option<ChannelName>,
    /// The contract.
    pub contract: Contract,
    /// Where it comes from.
    pub source: Source,
}

/// What a broker is given beside its configuration.
pub struct Extras {
    /// Contracts in force from the start.
    pub limits: Vec<StartingLimit>,
    /// For the AUTH servers.
    pub http: HttpClient,
    /// TLS for the NSQ protocol, as [`super::tls`] makes it from the configuration.
    pub tls: Option<Arc<ServerConfig>>,
    /// Where background work runs.
    pub runtime: runtime::Handle,
}

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path}")]
    DataFolder {
        /// As configured.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: MetadataError,
    },
    /// Datagrams of lending cannot be taken.
    #[error("cannot lend tokens to other brokers")]
    Lend(#[from] LendError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[from] io::Error),
}

/// Why a broker did not stop cleanly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The file of topics and channels could not be written. All messages are saved, those too of queues that the file
    /// does not name.
    #[error("the last changes of topics and channels are not saved")]
    Metadata(#[from] MetadataError),
    /// Queues on disk could not be synced.
    #[error("{queues} queues on disk were not synced")]
    Unsynced {
        /// How many.
        queues: usize,
    },
    /// A shard ended early, or its messages could not be saved in time.
    #[error("shard {shard} did not save all its messages")]
    Shard {
        /// Its number.
        shard: usize,
    },
}

/// A running broker. Dropping it without [`Broker::stop`] loses what is in memory, as a crash would.
pub struct Broker {
    handle: BrokerHandle,
    tcp_address: Address,
    mailboxes: Arc<[Arc<ShardMailbox>]>,
    shards: Vec<JoinHandle<bool>>,
    /// The first shard that ended though nobody told it to.
    ended: watch::Receiver<Option<usize>>,
    disk: DiskThread,
    names: NamesKeeper,
    /// What the shards that have drained say of their tokens.
    kept: Arc<Mutex<Kept>>,
    data_path: PathBuf,
    notices: Option<mpsc::UnboundedReceiver<Notice>>,
    trace: TraceWriter,
    _lock: DataLock,
}

impl Broker {
    /// Opens the data folder, brings back what an earlier run left, and listens.
    pub fn start(config: &Config, extras: Extras) -> Result<Self, StartError> {
        let Extras { limits, http, tls, runtime } = extras;
        let folder = |source| StartError::DataFolder { path: config.data_path.clone(), source };
        let lock = DataLock::take(&config.data_path).map_err(folder)?;
        let mut found = Metadata::read(&config.data_path).map_err(folder)?;
        if !found.invalid_names.is_empty() {
            tracing::warn!(names = ?found.invalid_names, "nsqd.dat has names that are none; they are left out");
        }
        let disk_options = DiskThreadOptions::new(config);
        let listing = Listing::read(&SystemFiles, &config.data_path)
            .map_err(|source| folder(MetadataError::Io { action: "list", path: config.data_path.clone(), source }))?;
        let adopted = adopt(&SystemFiles, &disk_options, &listing, &mut found.metadata);
        let listener = Listener::bind(&config.tcp_address)
            .map_err(|source| StartError::Listen { address: config.tcp_address.to_string(), source })?;
        let lend = config.lend.as_ref().map(|at| lend_socket::bind(at, config.shards)).transpose()?.unwrap_or_default();
        let lend_addresses: Arc<[_]> = lend.iter().map(LendSocket::address).collect();
        let boot = if lend.is_empty() {
            None
        } else {
            Some(next_boot(&SystemFiles, &config.data_path, clock::realtime_ns())?)
        };
        let mut lend = lend.into_iter();
        // Once nothing common can fail any more: a start that fails is not taken for a crash by the next one.
        let used = !found.metadata.topics.is_empty() || adopted;
        let (tokens, noted) = buckets::take(&SystemFiles, &config.data_path, used, &BootTime::now());
        if let Err(error) = noted {
            tracing::error!(%error, "cannot write tidegate.buckets: after a crash limits may give out a burst too many");
        }
        let (parts, parts_keeper) = parts_of_earlier_run(&config.data_path);
        let tcp_address = listener.local_address();

        let (boxes, inboxes): (Vec<_>, Vec<_>) =
            (0..config.shards).map(|_| ShardMailbox::new()).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let mailboxes: Arc<[Arc<ShardMailbox>]> = boxes.into_iter().map(Arc::new).collect();
        let answers = mailboxes.clone();
        let disk = DiskThread::start(disk_options, listing, move |shard, event: LogEvent| {
            answers[shard].send(Inbound::Log(event));
        })?;
        let at_start = StartingNames { names: found.metadata.clone(), adopted };
        let (data_path, listeners) = (config.data_path.clone(), mailboxes.clone());
        let write = move |names: &Metadata| names.write(&data_path, NSQD_VERSION);
        let names = NamesKeeper::start(at_start, config.shards, write, move |shard, notices| {
            listeners[shard].send(Inbound::NamesSaved(notices));
        })?;
        let (notice_sender, notices) = mpsc::unbounded_channel();
        let trace = TraceWriter::start(config.data_path.clone())?;
        let auth = Arc::new(AuthClient::new(&config.auth_http_addresses, http));

        let (ended_sender, ended) = watch::channel(None);
        let mut shards = Vec::with_capacity(config.shards);
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let (opened, openings) = std::sync::mpsc::channel();
        for (number, inbox) in inboxes.into_iter().enumerate() {
            let left = Left { limits: &limits, names: &found.metadata, tokens: &tokens, parts: &parts };
            let shard = new_shard((config, number), boot, left);
            let surroundings = ThreadSurroundings {
                disk: disk.handle(),
                names: names.handle(),
                notices: notice_sender.clone(),
                trace: trace.handle(),
                auth: auth.clone(),
                kept: kept.clone(),
                mailbox: mailboxes[number].clone(),
                runtime: runtime.clone(),
            };
            let waiting = Waiting::new(number, &mailboxes[number], tls.is_some(), lend.next())?;
            let of_shard = Parts {
                number,
                shard,
                mailboxes: mailboxes.clone(),
                inbox,
                opened: Some(opened.clone()),
                tls: tls.clone(),
                handshake_time: HANDSHAKE_TIME,
                surroundings,
            };
            let alive = Alive { number, ended: ended_sender.clone(), drained: false };
            let thread = std::thread::Builder::new()
                .name(format!("shard-{number}"))
                .spawn(move || alive.run(|| shard_thread::run(of_shard, waiting)))?;
            shards.push(thread);
        }
        drop(opened);
        // Nobody is served before each queue has said what it holds. A shard that ended has said all it can.
        while openings.recv().is_ok() {}
        mailboxes[0].send(Inbound::Listen(listener));
        let handle = BrokerHandle::new(mailboxes.iter().map(|mailbox| mailbox.clone() as _).collect());
        let handle = handle.keeping(parts_keeper).lending_at(lend_addresses);
        let notices = Some(notices);
        let data_path = config.data_path.clone();
        Ok(Self {
            handle,
            tcp_address,
            mailboxes,
            shards,
            ended,
            disk,
            names,
            kept,
            data_path,
            notices,
            trace,
            _lock: lock,
        })
    }

    /// Speaks to the shards.
    #[must_use]
    pub fn handle(&self) -> BrokerHandle {
        self.handle.clone()
    }

    /// Where it listens for the NSQ protocol; the port is the real one.
    #[must_use]
    pub fn tcp_address(&self) -> &Address {
        &self.tcp_address
    }

    /// What happens to topics and channels, from the start; `None` after the first call.
    pub fn take_notices(&mut self) -> Option<mpsc::UnboundedReceiver<Notice>> {
        self.notices.take()
    }

    /// Returns the number of a shard once it has ended though it was not told to: it panicked, or it could not wait for
    /// its sockets any more. Its topics are gone from this process, so the process should save the others and end.
    pub async fn shard_ended(&self) -> usize {
        let mut ended = self.ended.clone();
        let number = ended.wait_for(Option::is_some).await.ok().and_then(|number| *number);
        match number {
            Some(number) => number,
            // Every shard ended as it was told.
            None => std::future::pending().await,
        }
    }

    /// Takes nothing more, closes every connection, saves every message, and ends.
    ///
    /// # Errors
    /// [`StopError`] if something could not be saved.
    pub async fn stop(self) -> Result<(), StopError> {
        for mailbox in self.mailboxes.iter() {
            mailbox.send(Inbound::Drain);
        }
        let Self { shards, ended: failed, disk, names, trace, kept, data_path, .. } = self;
        // Joining waits for the disk; the runtime's threads have other work.
        let ended = tokio::task::spawn_blocking(move || {
            // All of them are waited for, whatever becomes of one.
            let saved: Vec<bool> = shards.into_iter().map(|thread| thread.join().unwrap_or(false)).collect();
            let unsaved = saved.iter().position(|saved| !saved);
            let unsynced = disk.stop();
            let names = names.stop();
            trace.stop();
            if unsaved.is_none() && failed.borrow().is_none() {
                // Without it the next start takes this for a crash, and limits for empty. A shard that failed has not
                // said what is left of its tokens.
                let kept = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
                if let Err(error) = buckets::keep(&SystemFiles, &data_path, &kept, BootTime::now()) {
                    tracing::error!(%error, "cannot write tidegate.buckets: limits begin empty at the next start");
                }
            }
            match (unsaved, unsynced) {
                (Some(shard), _) => Err(StopError::Shard { shard }),
                (None, 0) => Ok(names?),
                (None, queues) => Err(StopError::Unsynced { queues }),
            }
        });
        ended.await.unwrap_or(Err(StopError::Shard { shard: 0 }))
    }
}

/// Says when a shard's thread has ended without being told to, also by a panic.
struct Alive {
    number: usize,
    ended: watch::Sender<Option<usize>>,
    drained: bool,
}

impl Alive {
    /// `true` if all messages of the shard were saved.
    fn run(mut self, shard: impl FnOnce() -> End) -> bool {
        match shard() {
            End::Drained { saved } => {
                self.drained = true;
                saved
            }
            End::Failed { saved } => saved,
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if !self.drained {
            let number = self.number;
            self.ended.send_modify(|first| *first = first.or(Some(number)));
        }
    }
}

/// The node's parts of limits as an earlier run left them, and what keeps them from now on.
fn parts_of_earlier_run(folder: &Path) -> (Vec<KeptPart>, PartsKeeper) {
    let boot_id = process::boot_id().unwrap_or_default();
    let parts = kept_parts::read(&SystemFiles, folder, &boot_id, clock::now()).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read tidegate.parts: topics have their whole limits until control speaks");
        Vec::new()
    });
    let keeper = PartsKeeper::new(folder, boot_id, &parts);
    (parts, keeper)
}

fn new_shard((config, number): (&Config, usize), boot: Option<u32>, left: Left<'_>) -> Shard {
    let now = clock::now();
    let mut shard = Shard::new(shard_config(config, number), now, clock::realtime_ns());
    if let Some(boot) = boot {
        shard.start_lending(boot, now);
    }
    bring_back(&mut shard, (number, config.shards), left, now);
    shard
}

/// What an earlier run left, and the contracts in force from the start.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// The contracts.
    pub limits: &'a [StartingLimit],
    /// Topics and channels.
    pub names: &'a Metadata,
    /// What is left of the tokens.
    pub tokens: &'a buckets::Found,
    /// The node's parts of limits.
    pub parts: &'a [KeptPart],
}

/// Gives a new shard, the first number of so many, its part of what an earlier run left.
pub fn bring_back(shard: &mut Shard, (number, shards): (usize, usize), left: Left<'_>, now: Instant) {
    let Left { limits, names: metadata, tokens, parts } = left;
    match tokens {
        buckets::Found::Nothing => {}
        buckets::Found::Unknown => shard.forget_buckets(now),
        buckets::Found::Kept(kept, downtime) => {
            let home = |bucket: &&KeptBucket| crate::machine::home_shard(bucket.key.topic.as_str(), shards) == number;
            let stopped = now.minus_nanos(tidegate_core::time::nanos(*downtime));
            if let Some(unknown_for) = kept.unknown_for {
                shard.forget_buckets(stopped.minus_nanos(tidegate_core::time::nanos(unknown_for)));
            }
            shard.restore_buckets(kept.buckets.iter().filter(home).cloned().collect(), stopped);
        }
    }
    let home = |part: &&KeptPart| crate::machine::home_shard(part.topic.as_str(), shards) == number;
    shard.restore_parts(parts.iter().filter(home).cloned(), now);
    for limit in limits {
        let contract = Some((limit.contract, limit.source));
        let request = match &limit.channel {
            None => AdminRequest::SetTopicLimit(limit.topic.clone(), contract),
            Some(channel) => AdminRequest::SetChannelLimit(limit.topic.clone(), channel.clone(), contract),
        };
        shard.on_admin(request, now);
    }
    for topic in &metadata.topics {
        if crate::machine::home_shard(topic.name.as_str(), shards) == number {
            let channels: Vec<_> =
                topic.channels.iter().map(|channel| (channel.name.clone(), pause(channel.paused))).collect();
            shard.restore(&topic.name, pause(topic.paused), &channels, now);
        }
    }
}

pub(super) fn shard_config(config: &Config, number: usize) -> ShardConfig {
    ShardConfig {
        shard: number,
        shards: config.shards,
        node_id: config.node_id,
        version: NSQD_VERSION.to_owned(),
        max_msg_size: config.max_msg_size as usize,
        max_body_size: config.max_body_size as usize,
        max_rdy_count: config.max_rdy_count,
        msg_timeout: config.msg_timeout,
        max_msg_timeout: config.max_msg_timeout,
        max_req_timeout: config.max_req_timeout,
        heartbeat: HEARTBEAT,
        max_heartbeat: config.max_heartbeat_interval,
        output_buffer: OutputBuffer {
            size: 16 * 1024,
            size_max: config.max_output_buffer_size,
            timeout: config.output_buffer_timeout,
            timeout_min: config.min_output_buffer_timeout,
            timeout_max: config.max_output_buffer_timeout,
        },
        tls: config.tls.server.is_some(),
        tls_required: config.tls.required != config::TlsRequired::No,
        snappy: config.snappy,
        deflate: config.deflate.then(|| u32::from(config.max_deflate_level)),
        auth: !config.auth_http_addresses.is_empty(),
        max_channel_consumers: config.max_channel_consumers.map_or(0, |limit| limit as usize),
        mem_queue_size: config.mem_queue_size,
        max_queue_bytes: config.max_queue_bytes,
        queue_policy: match config.queue_policy {
            config::QueuePolicy::Overflow => QueuePolicy::Overflow,
            config::QueuePolicy::BackPressure => QueuePolicy::BackPressure,
            config::QueuePolicy::Refuse => QueuePolicy::Refuse,
            config::QueuePolicy::DropOldest => QueuePolicy::DropOldest,
        },
        line_bytes: config.max_line_bytes,
        spread: config.spread_topics.clone(),
        topics_wait_for_start: !config.lookupd_tcp_addresses.is_empty(),
        e2e_percentiles: config.e2e_percentiles.clone(),
        e2e_window: config.e2e_window,
        seed: config.seed.unwrap_or_else(|| clock::realtime_ns().cast_unsigned()),
    }
}

/// The rest of the process, as a shard's thread reaches it.
struct ThreadSurroundings {
    disk: DiskHandle,
    names: NamesHandle,
    notices: mpsc::UnboundedSender<Notice>,
    trace: super::trace::TraceHandle,
    auth: Arc<AuthClient>,
    kept: Arc<Mutex<Kept>>,
    mailbox: Arc<ShardMailbox>,
    runtime: runtime::Handle,
}

impl Surroundings for ThreadSurroundings {
    fn log(&self, shard: usize, command: LogCommand) {
        if self.disk.send(shard, command).is_err() {
            tracing::error!(shard, "the disk thread has ended");
        }
    }

    fn notice(&self, shard: usize, notice: Notice) {
        self.names.observe(shard, notice.clone());
        // Nobody listens once the broker is stopping.
        let _ = self.notices.send(notice);
    }

    fn trace(&self, topic: TopicName, traced: Traced) {
        self.trace.send(topic, traced);
    }

    fn keep(&self, kept: Kept) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).join(kept);
    }

    fn authenticate(&self, asked: Authentication) {
        let (auth, mailbox) = (self.auth.clone(), self.mailbox.clone());
        self.runtime.spawn(async move {
            let Authentication { conn, serial, secret, remote_address, tls, common_name } = asked;
            let remote_ip = host_of(&remote_address);
            let applicant = Applicant { remote_ip, tls, secret: &secret, common_name: &common_name };
            let answer = auth.authorize(applicant).await;
            if let Err(error) = &answer {
                tracing::warn!(%error, remote_address, "a client could not be authorized");
            }
            mailbox.send(Inbound::Authorized(conn, serial, answer.ok()));
        });
    }
}

#[cfg(test)]
mod tests;

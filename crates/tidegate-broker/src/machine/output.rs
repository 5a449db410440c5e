//! What a shard tells its driver to do.

use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::{Pause, PublishRefused};
use super::client::Client;
use super::log::LogCommand;
use super::topic::Passage;

/// A connection's place in its shard; reused after it is closed.
pub type ConnId = usize;

/// What the driver must carry out, in order. Bytes for a client's socket are not here: they wait in its output buffer,
/// and the driver drains the buffers of [`super::shard::Shard::next_dirty`].
#[derive(Debug)]
pub enum Output {
    /// Close the connection once its output is written.
    Close(ConnId),
    /// Answer to IDENTIFY is in the output: write it, then wrap the connection in these layers, then call
    /// [`super::shard::Shard::on_layer`] for each as it stands.
    Upgrade(ConnId, Layers),
    /// Ask the AUTH server; answer with [`super::shard::Shard::on_authorized`].
    Authenticate {
        /// Who asks.
        conn: ConnId,
        /// Which connection it is, should the number be reused before the answer comes.
        serial: u64,
        /// What it sent in AUTH.
        secret: Vec<u8>,
    },
    /// From now on this connection's arrivals matter to the nanosecond.
    Stamp(ConnId),
    /// The connection may be read again; it has bytes that were not taken.
    Resume(ConnId),
    /// For the message log.
    Log(LogCommand),
    /// Of a topic that is being recorded.
    Trace(TopicName, Vec<Passage>),
    /// For whoever keeps track of topics and channels.
    Notice(Notice),
    /// Hand the connection to the shard that owns its topic.
    Migrate {
        /// Which.
        conn: ConnId,
        /// Where to.
        shard: usize,
    },
    /// For another shard.
    Peer {
        /// Which.
        shard: usize,
        /// What.
        message: PeerMessage,
    },
}

impl Output {
    /// The connection that it is about, by a number that is good only as long as the connection.
    pub(super) fn connection(&self) -> Option<ConnId> {
        match self {
            Self::Close(conn)
            | Self::Upgrade(conn, _)
            | Self::Authenticate { conn, .. }
            | Self::Stamp(conn)
            | Self::Resume(conn)
            | Self::Migrate { conn, .. } => Some(*conn),
            Self::Log(_) | Self::Trace(..) | Self::Notice(_) | Self::Peer { .. } => None,
        }
    }
}

/// The layers that a client has negotiated, applied in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// TLS first.
    pub tls: bool,
    /// Then snappy,
    pub snappy: bool,
    /// or deflate at this level.
    pub deflate: Option<u32>,
}

/// What a shard tells the rest of the process, without waiting for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A topic came to be. With `AdminRequest::StartTopic` it begins to flow, if the broker has nsqlookupds to ask.
    TopicCreated(TopicName),
    /// A topic is gone.
    TopicDeleted(TopicName),
    /// A channel came to be.
    ChannelCreated(TopicName, ChannelName),
    /// A channel is gone.
    ChannelDeleted(TopicName, ChannelName),
    /// A topic, or a channel of it, was paused or resumed.
    PauseChanged(TopicName, Option<ChannelName>, Pause),
}

/// What shards tell each other.
#[derive(Debug)]
pub enum PeerMessage {
    /// Publish for a client of the sender.
    Publish(Box<PeerPublish>),
    /// What became of it.
    Published {
        /// The client's connection on the shard that is told.
        conn: ConnId,
        /// Which connection it is, should the number be reused.
        serial: u64,
        /// What the client said: PUB, MPUB or DPUB.
        verb: &'static str,
        /// The outcome.
        result: Result<(), PublishRefused>,
    },
}

/// A publish whose topic lives on another shard than its publisher.
#[derive(Debug)]
pub struct PeerPublish {
    /// Where the answer goes.
    pub from_shard: usize,
    /// The publisher.
    pub conn: ConnId,
    /// Which connection it is.
    pub serial: u64,
    /// What it said: PUB, MPUB or DPUB.
    pub verb: &'static str,
    /// The topic.
    pub topic: TopicName,
    /// The bodies.
    pub bodies: Vec<Vec<u8>>,
    /// Nanoseconds to hold it back.
    pub defer_ns: u64,
    /// When it arrived.
    pub arrival: tidegate_core::Instant,
    /// When it was read.
    pub read: tidegate_core::Instant,
}

/// A connection on its way between shards.
#[derive(Debug)]
pub struct Migrant(pub(super) Box<Client>);

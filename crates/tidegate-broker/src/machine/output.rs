//! What a shard tells its driver to do.

use std::net::SocketAddr;

use tidegate_core::lend::Frame;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::{AdminReply, Pause};
use super::client::Client;
use super::log::LogCommand;
pub use super::peers::{PeerAnswers, PeerBatch};
use super::trace::Traced;

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
    Trace(TopicName, Traced),
    /// For whoever keeps track of topics and channels.
    Notice(Notice),
    /// Hand the connection to the shard that owns its topic.
    Migrate {
        /// Which.
        conn: ConnId,
        /// Where to.
        shard: usize,
    },
    /// The answer to a request that was answered [`super::admin::Answered::Later`] with this number.
    AdminReply(u64, AdminReply),
    /// A datagram for another broker; it may be lost.
    Lend(SocketAddr, Frame),
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
            Self::Log(_)
            | Self::Trace(..)
            | Self::Notice(_)
            | Self::AdminReply(..)
            | Self::Lend(..)
            | Self::Peer { .. } => None,
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
    /// Publish for clients of the sender.
    Publish(PeerBatch),
    /// What became of it.
    Answers(PeerAnswers),
}

/// A connection on its way between shards.
#[derive(Debug)]
pub struct Migrant(pub(super) Box<Client>);

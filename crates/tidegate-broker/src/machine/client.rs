//! A connection, as its shard sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tidegate_core::Instant;
use tidegate_core::timer_wheel::TimerKey;
use tidegate_wire::nsq::TopicName;

use super::acks::Answers;
use super::auth::AuthState;
use super::channel::ChannelKey;
use super::messages::MessageKey;
use super::publishers::{Label, PublisherRef};
use super::snapshot::ClientSnapshot;
use super::topic::TopicKey;
use super::who::Who;

/// Output waiting for a socket above which its client gets no more messages.
pub(super) const OUTPUT_BYTES_HIGH: usize = 256 * 1024;
/// Topics for which a connection's publishes are counted one by one; the rest are counted together.
const PUB_COUNTS_MAX: usize = 100;

/// How far a connection has come; the numbers are nsqd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Magic not seen.
    Greeting,
    /// May IDENTIFY, AUTH, SUB and publish.
    Init,
    Subscribed,
    /// After CLS: finishes what it has.
    Closing,
    /// To be closed once its output is written.
    Dead,
}

/// Why the next command of a connection is not looked at yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    /// It is.
    Free,
    /// Layers are being put on.
    Upgrading,
    /// Its AUTH server has not answered yet.
    Authorizing,
    /// The line of its topic is full.
    LineFull,
    /// Answers to its earlier publishes are awaited: too many, or all of them before its next command.
    Answers,
    /// It is moving to another shard.
    Moving,
}

impl Hold {
    /// The broker does not read the connection, whatever the client does.
    pub(super) fn is_ours(self) -> bool {
        !matches!(self, Self::Free | Self::Upgrading)
    }
}

/// A message delivered and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) message: MessageKey,
    pub(super) attempts: u16,
    pub(super) timer: TimerKey,
    pub(super) delivered: Instant,
}

/// The topic that a connection published to last.
#[derive(Clone, Debug)]
pub(super) enum LastPub {
    /// On this shard; and who the connection is there, if the topic was watched then.
    Here(TopicKey, PublisherRef),
    /// On another one.
    Elsewhere(TopicName),
}

/// Keys are message ids as they are on the wire.
pub(super) type InFlightMap = HashMap<[u8; 16], InFlight, RandomState>;

#[expect(clippy::struct_excessive_bools, reason = "independent facts about a connection")]
#[derive(Debug)]
pub(super) struct Client {
    pub(super) serial: u64,
    pub(super) state: State,
    pub(super) hold: Hold,
    pub(super) out: Vec<u8>,
    /// Answers that are awaited, and those behind them.
    pub(super) answers: Answers,
    /// A publish of it waits for room while it goes on.
    pub(super) parked: bool,
    /// It stands in the shard's list of connections with output.
    pub(super) dirty: bool,
    /// It stands in its channel's list of clients that may get a message.
    pub(super) listed_ready: bool,
    /// It is closed once all that was taken from it is answered; nothing more is taken.
    pub(super) leaving: bool,
    /// Arrival stamps have been asked for.
    pub(super) stamped: bool,
    pub(super) tls: bool,
    pub(super) sample_rate: u8,
    pub(super) ready: u32,
    pub(super) in_flight: InFlightMap,
    pub(super) topic: Option<TopicKey>,
    pub(super) channel: Option<ChannelKey>,
    /// The topic it published to last.
    pub(super) last_pub: Option<LastPub>,
    pub(super) heartbeat_ns: u64,
    pub(super) heartbeat: Option<TimerKey>,
    pub(super) last_heard: Instant,
    pub(super) msg_timeout_ns: u64,
    pub(super) message_count: u64,
    pub(super) finish_count: u64,
    pub(super) requeue_count: u64,
    pub(super) about: Box<About>,
}

/// What is rarely looked at.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) remote_address: String,
    pub(super) client_id: String,
    pub(super) hostname: String,
    pub(super) user_agent: String,
    pub(super) connected_unix_s: i64,
    pub(super) connected: Instant,
    /// The name that it gave itself as a publisher.
    pub(super) publisher: Option<Label>,
    pub(super) correlation: Option<Label>,
    /// As topics see it, once one has asked.
    pub(super) who: Option<Arc<Who>>,
    /// Topics of this shard in which it has a place as a publisher.
    pub(super) topics: BTreeSet<TopicKey>,
    /// Other shards that know it as a publisher.
    pub(super) introduced: Vec<usize>,
    pub(super) auth: Option<AuthState>,
    pub(super) secret: Vec<u8>,
    pub(super) snappy: bool,
    pub(super) deflate: bool,
    pub(super) tls_version: String,
    pub(super) tls_cipher_suite: String,
    pub(super) pub_counts: Vec<(TopicName, u64)>,
}

/// The host of `address`, which is `host:port`: an IPv6 address without its brackets, as Go splits it; empty if there is
/// no port, as for the peer of a unix socket.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl Client {
    /// May it be sent a message now?
    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Subscribed
            && self.in_flight.len() < self.ready as usize
            && self.out.len() < OUTPUT_BYTES_HIGH
    }

    pub(super) fn count_publishes(&mut self, topic: &TopicName, count: u64) {
        let counts = &mut self.about.pub_counts;
        if let Some(at) = counts.iter().position(|(name, _)| name == topic) {
            counts[at].1 += count;
        } else if counts.len() < PUB_COUNTS_MAX {
            counts.push((topic.clone(), count));
        }
    }

    /// Whether it has published to `topic`, as far as is known: beyond so many topics it counts as a publisher of each.
    pub(super) fn publishes_to(&self, topic: &TopicName) -> bool {
        let counts = &self.about.pub_counts;
        counts.len() >= PUB_COUNTS_MAX || counts.iter().any(|(name, _)| name == topic)
    }

    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let about = &self.about;
        ClientSnapshot {
            client_id: about.client_id.clone(),
            hostname: about.hostname.clone(),
            version: "V2",
            remote_address: about.remote_address.clone(),
            state: match self.state {
                State::Greeting | State::Init => 0,
                State::Subscribed => 3,
                State::Closing | State::Dead => 4,
            },
            ready_count: i64::from(self.ready),
            in_flight_count: i64::try_from(self.in_flight.len()).unwrap_or(i64::MAX),
            message_count: self.message_count,
            finish_count: self.finish_count,
            requeue_count: self.requeue_count,
            connect_ts: about.connected_unix_s,
            sample_rate: i32::from(self.sample_rate),
            deflate: about.deflate,
            snappy: about.snappy,
            user_agent: about.user_agent.clone(),
            pub_counts: about.pub_counts.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            authed: about.auth.is_some(),
            auth_identity: about.auth.as_ref().map(|auth| auth.identity.clone()).unwrap_or_default(),
            auth_identity_url: about.auth.as_ref().map(|auth| auth.identity_url.clone()).unwrap_or_default(),
            tls: self.tls,
            tls_cipher_suite: about.tls_cipher_suite.clone(),
            tls_version: about.tls_version.clone(),
            tls_negotiated_protocol: String::new(),
            tls_negotiated_protocol_is_mutual: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_bare() {
        let hosts = ["10.0.0.1:5", "[2001:db8::1]:5", "[fe80::1%2]:5", "@", ""].map(host_of);
        assert_eq!(hosts, ["10.0.0.1", "2001:db8::1", "fe80::1%2", "", ""]);
    }
}

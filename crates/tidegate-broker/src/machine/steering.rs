//! What moves publishers from node to node: whether a topic is ready for them, and how a connection is let go.

use std::collections::BTreeSet;

use tidegate_core::Instant;
use tidegate_wire::nsq::{ChannelName, TopicName};

use super::admin::{AdminReply, Creation, Readiness};
use super::client::Hold;
use super::output::ConnId;
use super::publishers::Link;
use super::shard::Shard;

impl Shard {
    /// Says which of `channels`, or of all channels of the topic if none is named, have no consumer.
    pub(super) fn prepare(
        &mut self,
        name: &TopicName,
        channels: &[ChannelName],
        creation: Creation,
        now: Instant,
    ) -> AdminReply {
        if creation == Creation::IfMissing {
            let topic = self.topic(name, now);
            for channel in channels {
                self.channel(topic, channel, now);
            }
        }
        let Some(key) = self.topics_by_name.get(name) else { return AdminReply::TopicNotFound };
        let topic = &self.topics[*key];
        let asked: BTreeSet<&ChannelName> =
            if channels.is_empty() { topic.channels.keys().collect() } else { channels.iter().collect() };
        let has_consumer = |channel: &ChannelName| {
            topic.channels.get(channel).is_some_and(|key| !self.channels[*key].clients.is_empty())
        };
        let missing = asked.into_iter().filter(|channel| !has_consumer(channel)).cloned().collect();
        AdminReply::Readiness(Readiness { started: topic.started, missing })
    }

    /// Lets the publishers of `topic` go that are called one of `identities`: nothing more is taken from their
    /// connections, which are closed when all that was taken is answered. Answers whom it found.
    pub(super) fn disconnect_publishers(&mut self, topic: &TopicName, identities: &[String]) -> Vec<String> {
        let asked: BTreeSet<&str> = identities.iter().map(String::as_str).collect();
        let mut found = BTreeSet::new();
        let mut conns = Vec::new();
        let watch = self.topics_by_name.get(topic).and_then(|key| self.topics[*key].watch.as_deref());
        for (conn, client) in self.clients.iter().filter(|(_, client)| client.publishes_to(topic)) {
            let link = Link { shard: self.config.shard, serial: client.serial };
            let listed = watch.and_then(|watch| watch.publishers.identity_of(link));
            let identity = listed.unwrap_or_else(|| client.about.introduce().own_name().to_owned());
            if asked.contains(identity.as_str()) {
                found.insert(identity);
                conns.push(conn);
            }
        }
        for conn in conns {
            self.clients[conn].leaving = true;
            self.leave_if_answered(conn);
        }
        found.into_iter().collect()
    }

    /// Closes a connection that is let go, unless something that was taken from it is not answered yet.
    pub(super) fn leave_if_answered(&mut self, conn: ConnId) {
        let client = &self.clients[conn];
        // Layers and an AUTH are the end of a command that was taken. One that moves is closed where it goes.
        let busy = matches!(client.hold, Hold::Upgrading | Hold::Authorizing | Hold::Moving);
        if client.answers.is_empty() && !busy {
            self.kill(conn);
        }
    }
}

//! What a limit is on.

use std::fmt;
use std::str::FromStr;

use tidegate_wire::nsq::{BadName, ChannelName, TopicName};

/// A topic, or a channel of it; written `topic` or `topic/channel`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Target {
    pub(crate) topic: TopicName,
    pub(crate) channel: Option<ChannelName>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.channel {
            Some(channel) => write!(f, "{}/{channel}", self.topic),
            None => write!(f, "{}", self.topic),
        }
    }
}

impl FromStr for Target {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let (topic, channel) = match text.split_once('/') {
            Some((topic, channel)) => (topic, Some(ChannelName::new(channel)?)),
            None => (text, None),
        };
        Ok(Self { topic: TopicName::new(topic)?, channel })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_as_they_are_written() {
        for text in ["orders", "orders/archive", "a#ephemeral/b#ephemeral"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "/", "a/", "a/b/c", "a b"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}

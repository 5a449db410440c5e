//! Six brokers, alike, and what their sensors say.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_broker::config::Options;
use tidegate_broker::io::admin::Target;
use tidegate_console::BrokerSource;
use tidegate_control::io::broker_api::DelayAnswer;
use tidegate_control::io::client::NodeClient;
use tidegate_runtime::causes::with_causes;
use tidegate_wire::nsq::TopicName;

use super::plan::{Plan, TOPIC};
use crate::demo;
use crate::failure::Failure;
use crate::running::Running;
use crate::scratch::Folder;
use crate::token::Token;

/// Brokers that run; dropping them does not save their messages.
pub(super) struct Brokers {
    running: Vec<Running>,
    clients: Vec<NodeClient>,
    plan: Plan,
    /// Where clients connect.
    pub(super) doors: Vec<SocketAddr>,
}

/// What a broker saw of the topic.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) producers: usize,
    pub(super) delay: DelayAnswer,
}

/// `a`, `b`, ...
fn name(number: usize) -> String {
    ('a'..='z').nth(number).map_or_else(|| format!("n{number}"), String::from)
}

impl Brokers {
    pub(super) async fn start(plan: &Plan, folder: &Folder, token: &Token) -> Result<Self, Failure> {
        let mut brokers = Self { running: Vec::new(), clients: Vec::new(), plan: *plan, doors: Vec::new() };
        for number in 0..plan.brokers as usize {
            let running =
                demo::broker(&folder.path().join(name(number)), Options::default(), Vec::new(), token).await?;
            let admin = running.admin.as_ref().ok_or_else(|| Failure::new("a broker has no admin API"))?;
            brokers.clients.push(NodeClient::new(&admin.here, Some(token.reveal())));
            brokers.doors.push(demo::socket_address(&running.tcp)?);
            brokers.running.push(running);
        }
        Ok(brokers)
    }

    /// Each with its name and its admin API.
    fn admins(&self) -> impl Iterator<Item = (String, &str)> {
        self.clients.iter().enumerate().map(|(number, client)| (name(number), client.address()))
    }

    /// As control's file declares them.
    pub(super) fn declared(&self) -> String {
        let node = |((name, admin), nsq): ((String, &str), &SocketAddr)| {
            let mcap = self.plan.mcap_per_s;
            format!("{{ name = \"{name}\", admin = \"http://{admin}\", nsq = \"{nsq}\", mcap = \"{mcap}/s\" }}")
        };
        let nodes: Vec<String> = self.admins().zip(&self.doors).map(node).collect();
        nodes.join(", ")
    }

    /// As the console asks them.
    pub(super) fn sources(&self, token: &Token) -> Vec<BrokerSource> {
        let source = |(name, admin): (String, &str)| BrokerSource {
            name,
            admin_url: format!("http://{admin}"),
            token: Some(token.reveal().to_owned()),
        };
        self.admins().map(source).collect()
    }

    /// Puts a static part of the limit in force on each broker, or takes it away.
    pub(super) async fn limit(&self, is_split: bool) -> Result<(), Failure> {
        let topic = TopicName::new(TOPIC).expect("a plain word is a name");
        let target = Target { topic, channel: None };
        let limits = is_split.then(|| (target, self.plan.contract()));
        for broker in &self.running {
            let set = broker.limits.set_file(limits.clone()).await;
            set.map_err(|error| Failure::new("a broker does not take its limit").because(error))?;
        }
        Ok(())
    }

    /// What each saw over the last `seconds` whole seconds.
    pub(super) async fn seen(&self, seconds: u32, slo: Duration) -> Result<Vec<Seen>, Failure> {
        let mut all = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let answer = client.publishers(TOPIC, seconds, slo).await.map_err(|error| {
                Failure::new(format!("broker {} does not say what it saw: {}", name(number), with_causes(&error)))
            })?;
            let producers = answer.publishers.iter().filter(|publisher| publisher.messages > 0).count();
            all.push(Seen { name: name(number), producers, delay: answer.delay });
        }
        Ok(all)
    }

    pub(super) async fn stop(self) -> Result<(), Failure> {
        let mut ended = Ok(());
        for broker in self.running {
            ended = ended.and(broker.stop().await);
        }
        ended
    }
}
